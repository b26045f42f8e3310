/* Does ordinary things and odd ones to files in the directory that it is called with, and prints what comes of them. Whoever takes its calls
   over has to leave the output as it is. Compiled with _FORTIFY_SOURCE. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#define SAY(what, ...) printf("%-28s " what "\n", __func__, __VA_ARGS__)
#define MUST(is) do { if (!(is)) { printf("%s:%d: %s: %s\n", __func__, __LINE__, #is, strerror(errno)); exit(1); } } while (0)

/* Result and errno, which stays if nothing fails. */
#define TRY(call) do { errno = 77; long result_ = (call); SAY("%s = %ld, %d", #call, result_, errno); } while (0)

static char big[3 << 20];
/* Where a size comes from that the compiler must not know: it would look into it. */
static volatile size_t huge = (size_t)-1;

static int make(const char *name, int flags)
{
    int fd = open(name, flags | O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0);
    return fd;
}

static unsigned sum(const char *name)
{
    unsigned all = 0, length = 0;
    FILE *file = fopen(name, "r");
    MUST(file);
    for (int c; (c = getc(file)) != EOF; length++)
        all = all * 31 + (unsigned)c;
    MUST(!fclose(file));
    return all + length * 7;
}

static void bad_arguments(void)
{
    int fd = make("a", 0);
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(page != MAP_FAILED && !mprotect(page + 4096, 4096, PROT_NONE));
    char *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *bad = (char *)16, *volatile hidden = bad;
    struct iovec one = {big, 10}, parts[2] = {{big, 5}, {bad, 5}}, lap[2] = {{big, 8}, {big + 4, 8}};
    struct iovec *volatile nothing = NULL;
    TRY(write(fd, big, 20000));
    TRY(write(fd, hidden, 10));
    TRY(pwrite(fd, page + 4000, 200, 0) <= 96);
    TRY(write(fd, big, 0));
    TRY(write(fd, hidden, 0));
    TRY(lseek(fd, 0, SEEK_CUR));
    TRY(lseek(fd, 0, SEEK_SET));
    TRY(read(fd, hidden, 10));
    TRY(read(fd, constant, 10));
    TRY(read(fd, hidden, 20000));
    TRY(read(fd, page, 0));
    TRY(lseek(fd, 0, SEEK_CUR));
    TRY(pread(fd, big, 10, -5));
    TRY(pwrite(fd, big, 10, -5));
    TRY(pread(fd, big, 10, 20000));
    TRY(pread(fd, big, sizeof big, 19990));
    TRY(read(fd, big, sizeof big));
    TRY(read(fd, big, sizeof big));
    TRY(write(fd, constant, 100));
    TRY(readv(fd, nothing, 1));
    TRY(preadv(fd, &one, 0, 0));
    TRY(preadv(fd, &one, -1, 0));
    TRY(preadv(fd, &one, 2000, 0));
    TRY(preadv(fd, lap, 2, 0));
    TRY(writev(fd, parts, 2));
    TRY(preadv2(fd, &one, 1, -1, 0));
    TRY(preadv2(fd, &one, 1, 0, 0));
    TRY(preadv2(fd, &one, 1, 0, 0x40000000));
    TRY(pwritev2(fd, &one, 1, 3, RWF_DSYNC));
    TRY(pwritev2(fd, &one, 1, -1, 0));
    TRY(lseek(fd, 0, SEEK_CUR));
    TRY(pwrite(fd, big, huge, 0) > 0);
    TRY(ftruncate(fd, 20000));
    MUST(!close(fd));
    TRY(read(fd, big, 10));
    TRY(write(fd, big, 10));
    fd = open("a", O_RDONLY);
    TRY(write(fd, big, 10));
    MUST(!close(fd));
    fd = open("a", O_WRONLY);
    TRY(read(fd, big, 10));
    TRY(pread(fd, big, 10, 0));
    MUST(!close(fd));
    fd = open(".", O_RDONLY | O_DIRECTORY);
    TRY(read(fd, big, 10));
    MUST(!close(fd));
    fd = open("a", O_PATH);
    TRY(read(fd, big, 10));
    MUST(!close(fd));
    SAY("%u", sum("a"));
}

static void descriptors(void)
{
    int pipes[2], a = make("b", 0), b, number;
    MUST(!pipe(pipes) && write(pipes[1], "pipe", 4) == 4);
    MUST(write(a, "file contents", 13) == 13 && lseek(a, 0, SEEK_SET) == 0);
    number = a;
    MUST(read(a, big, 4) == 4);
    MUST(dup2(pipes[0], a) == a && read(a, big, 10) == 4);
    SAY("%.4s", big);
    MUST(!close(a) && (b = open("b", O_RDWR)) == number && read(b, big, 4) == 4);
    SAY("%.4s", big);
    int other = dup(b);
    MUST(read(other, big, 5) == 5 && lseek(b, 0, SEEK_CUR) == 9);
    SAY("%.5s", big);
    MUST(!close_range(b, b, 0) && read(other, big, 100) == 4 && !close(other));
    SAY("%.4s", big);
    for (int i = 0; i < 2; i++)
        close(pipes[i]);
}

static void appending(void)
{
    int a = make("c", O_APPEND), b = open("c", O_RDWR), c = make("d", O_DSYNC | O_NONBLOCK);
    TRY(write(a, "one ", 4));
    TRY(write(b, "ONE", 3));
    TRY(pwrite(a, "two ", 4, 0));
    TRY(fcntl(b, F_SETFL, O_APPEND));
    TRY(write(b, "three ", 6));
    TRY(lseek(b, 0, SEEK_CUR));
    TRY(fcntl(b, F_SETFL, 0));
    TRY(lseek(b, 1, SEEK_SET));
    TRY(write(b, "n", 1));
    TRY(pread(a, big, 100, 0));
    SAY("%.14s", big);
    TRY(write(c, big, 5000));
    MUST(!close(a) && !close(b) && !close(c));
}

/* Processes and threads that share a position: each write has its place, each byte is read by one. */
static int shared_fd;

static void *writing(void *argument)
{
    char line[40];
    for (int i = 0; i < 60; i++) {
        int length = snprintf(line, sizeof line, "%ld %d and so on\n", (long)argument, i);
        MUST(write(shared_fd, line, (size_t)length) == length);
    }
    return NULL;
}

static void *reading(void *count)
{
    char byte[7];
    ssize_t length;
    while ((length = read(shared_fd, byte, sizeof byte)) > 0)
        *(long *)count += length;
    return NULL;
}

static void sharing(void)
{
    pthread_t threads[2];
    long counts[3] = {0, 0, 0};
    shared_fd = make("e", 0);
    for (long child = 0; child < 2; child++) {
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            writing((void *)(100 + child));
            _exit(0);
        }
    }
    for (long i = 0; i < 2; i++)
        MUST(!pthread_create(&threads[i], NULL, writing, (void *)i));
    for (int i = 0; i < 2; i++)
        MUST(!pthread_join(threads[i], NULL));
    while (wait(NULL) > 0)
        ;
    struct stat status;
    MUST(!fstat(shared_fd, &status));
    SAY("%ld bytes", (long)status.st_size);
    MUST(lseek(shared_fd, 0, SEEK_SET) == 0);
    for (int i = 0; i < 2; i++)
        MUST(!pthread_create(&threads[i], NULL, reading, &counts[i]));
    for (int i = 0; i < 2; i++)
        MUST(!pthread_join(threads[i], NULL));
    SAY("%ld bytes read, at %ld", counts[0] + counts[1], (long)lseek(shared_fd, 0, SEEK_CUR));
    FILE *lines = fopen("e", "r");
    int count = 0;
    while (fgets(big, 100, lines))
        count += strstr(big, " and so on\n") != NULL;
    SAY("%d lines", count);
    MUST(!fclose(lines) && !close(shared_fd));
    if (vfork() == 0)
        execlp("sh", "sh", "-c", "cat b >f; exec cat f >>g", NULL);
    MUST(wait(NULL) > 0);
    SAY("%u %u", sum("f"), sum("g"));
}

/* A handler that writes while the program is in malloc. */
static int signal_fd;
static volatile sig_atomic_t signals;

static void on_alarm(int number)
{
    (void)number;
    char bytes[5000];
    memset(bytes, 's', sizeof bytes);
    if (write(signal_fd, bytes, sizeof bytes) == sizeof bytes && pread(signal_fd, bytes, sizeof bytes, 0) == sizeof bytes)
        signals++;
}

static void in_a_signal_handler(void)
{
    signal_fd = make("h", 0);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, old;
    struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    MUST(!sigaction(SIGALRM, &action, &old) && !setitimer(ITIMER_REAL, &every, NULL));
    while (signals < 100) {
        char *all[50];
        for (int i = 0; i < 50; i++)
            memset(all[i] = malloc(100 + 300 * (size_t)i), 1, 100);
        for (int i = 0; i < 50; i++)
            free(all[i]);
        MUST(pwrite(signal_fd, big, 100, 0) == 100);
    }
    MUST(!setitimer(ITIMER_REAL, &never, NULL) && !sigaction(SIGALRM, &old, NULL));
    SAY("%d", lseek(signal_fd, 0, SEEK_CUR) == signals * 5000L);
    MUST(!close(signal_fd));
}

static void cleanup(void *done)
{
    *(int *)done = 1;
}

static int cancelled;
static atomic_int waiting_tid;

static void *waiting(void *fd)
{
    char byte;
    pthread_cleanup_push(cleanup, &cancelled);
    atomic_store(&waiting_tid, gettid());
    MUST(read(*(int *)fd, &byte, 1) == 1);
    pthread_cleanup_pop(0);
    return NULL;
}

/* Whether a thread of this process sleeps in the kernel. */
static int sleeps(int tid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *stat = fopen(path, "r");
    MUST(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1 && !fclose(stat));
    return state == 'S';
}

static void cancelling(void)
{
    int pipes[2];
    pthread_t thread;
    void *result;
    MUST(!pipe(pipes) && !pthread_create(&thread, NULL, waiting, &pipes[0]));
    while (!atomic_load(&waiting_tid) || !sleeps(waiting_tid))
        sched_yield();
    MUST(!pthread_cancel(thread) && !pthread_join(thread, &result));
    SAY("%d %d", result == PTHREAD_CANCELED, cancelled);
    close(pipes[0]);
    close(pipes[1]);
}

/* What a thread does that has been cancelled already: the next call ends it, wherever the file is. */
enum { CANCELLED_READ, CANCELLED_WRITE, CANCELLED_STREAM, CANCELLED_LATER, CANCELLED_NEVER };

static struct { int how, fd, stage; FILE *file; } doomed;

static void *dooming(void *nothing)
{
    int state = 0;
    char byte = 'x';
    if (doomed.how >= CANCELLED_LATER)
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cleanup_push(cleanup, &cancelled);
    pthread_cancel(pthread_self());
    if (doomed.how == CANCELLED_READ)
        doomed.stage = (int)pread(doomed.fd, &byte, 1, 0);
    else if (doomed.how == CANCELLED_STREAM)
        doomed.stage = fputc(byte, doomed.file);
    else
        doomed.stage = (int)pwrite(doomed.fd, &byte, 1, 0);
    if (doomed.how == CANCELLED_LATER) {
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
        doomed.stage = state == PTHREAD_CANCEL_DISABLE ? 10 : 11;
        pwrite(doomed.fd, "later", 5, 0);
        doomed.stage = 12;
    }
    pthread_cleanup_pop(0);
    return nothing;
}

static void cancelled_before(void)
{
    doomed.fd = make("n", 0);
    MUST(write(doomed.fd, "contents", 8) == 8 && (doomed.file = fopen("o", "w")) && !setvbuf(doomed.file, NULL, _IONBF, 0));
    for (doomed.how = CANCELLED_READ; doomed.how <= CANCELLED_NEVER; doomed.how++) {
        pthread_t thread;
        void *result;
        cancelled = doomed.stage = 0;
        MUST(!pthread_create(&thread, NULL, dooming, NULL) && !pthread_join(thread, &result));
        SAY("%d: %d %d %d", doomed.how, result == PTHREAD_CANCELED, cancelled, doomed.stage);
    }
    MUST(!close(doomed.fd) && !fclose(doomed.file));
    SAY("%u %u", sum("n"), sum("o"));
}

static void limits(void)
{
    int fd = make("i", 0);
    memset(big, 'i', sizeof big);
    struct rlimit old, limit;
    MUST(!getrlimit(RLIMIT_FSIZE, &old));
    limit = old;
    limit.rlim_cur = 10000;
    signal(SIGXFSZ, SIG_IGN);
    MUST(!setrlimit(RLIMIT_FSIZE, &limit));
    TRY(write(fd, big, 9000));
    TRY(write(fd, big, 9000));
    TRY(write(fd, big, 9000));
    TRY(pwrite(fd, big, 10, 20000));
    MUST(!setrlimit(RLIMIT_FSIZE, &old));
    signal(SIGXFSZ, SIG_DFL);
    SAY("%u", sum("i"));
    MUST(!close(fd));
}

static void streams(void)
{
    FILE *file = fopen("j", "w+");
    char word[20], *line = NULL;
    size_t room = 0;
    int number;
    MUST(file && fileno(file) >= 0);
    for (int i = 0; i < 3000; i++)
        fprintf(file, "line %d\n", i);
    SAY("%ld", ftell(file));
    rewind(file);
    MUST(fscanf(file, "%19s %d", word, &number) == 2);
    SAY("%s %d", word, number);
    MUST(!fseek(file, -10, SEEK_END) && fgets(big, 100, file));
    SAY("%s", strtok(big, "\n"));
    MUST(!fseeko(file, 5000, SEEK_SET) && fputs("OVERWRITTEN", file) >= 0 && !fflush(file));
    MUST(getline(&line, &room, file) > 0);
    SAY("%s", strtok(line, "\n"));
    MUST(ungetc('u', file) == 'u' && getc(file) == 'u');
    MUST(fread(big, 1, 20, file) == 20);
    SAY("%.5s", big);
    memset(big, 'k', sizeof big);
    MUST((file = freopen("k", "w", file)) && !setvbuf(file, NULL, _IONBF, 0) && fwrite(big, 1, sizeof big, file) == sizeof big);
    MUST((file = freopen("j", "a+", file)) && fputs("appended\n", file) >= 0 && !fclose(file));
    MUST((file = fdopen(open("j", O_RDONLY), "r")));
    TRY(fputs("x", file));
    SAY("%d", ferror(file) != 0);
    MUST(!fclose(file));
    MUST((file = fopen("l", "w")) && fwprintf(file, L"wide \u00e4 %d\n", 5) > 0 && fputwc(L'\u00fc', file) && !fclose(file));
    MUST((file = fopen("l", "r")) && fgetwc(file) == L'w' && fgetws((wchar_t *)big, 20, file) && !fclose(file));
    SAY("%d", (int)wcslen((wchar_t *)big));
    MUST((file = popen("cat j", "r")));
    number = 0;
    while (fgets(big, 100, file))
        number++;
    MUST(!pclose(file));
    SAY("%d %u %u %u", number, sum("j"), sum("k"), sum("l"));
    free(line);
}

static void large(void)
{
    int fd = make("m", 0);
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 31 >> 3);
    struct iovec parts[300];
    for (int i = 0; i < 300; i++)
        parts[i] = (struct iovec){big + i * 5000, 4999};
    TRY(write(fd, big, sizeof big));
    TRY(pwritev(fd, parts, 300, 77));
    TRY(ftruncate(fd, 3000001));
    TRY(lseek(fd, 100, SEEK_SET));
    TRY(readv(fd, parts, 300));
    TRY(read(fd, big, sizeof big));
    TRY(lseek(fd, 5000000, SEEK_SET));
    TRY(read(fd, big, 10));
    TRY(write(fd, big, 10));
    SAY("%u", sum("m"));
    MUST(!close(fd));
}

int main(int count, char **words)
{
    MUST(count == 2 && !chdir(words[1]) && setlocale(LC_ALL, "C.UTF-8"));
    setvbuf(stdout, NULL, _IOLBF, 0);
    bad_arguments();
    descriptors();
    appending();
    sharing();
    in_a_signal_handler();
    cancelling();
    cancelled_before();
    limits();
    streams();
    large();
    puts("done");
    return 0;
}
