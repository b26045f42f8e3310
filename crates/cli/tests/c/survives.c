/* A program that survives flipped bits: `survives FILE memory` and `survives FILE disk`. It says where it is, one word a line, and waits for
   a line before it goes on: meanwhile bits are flipped. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <holdfast.h>

static void fail(const char *what, int line)
{
    fprintf(stderr, "line %d: %s (errno %d)\n", line, what, errno);
    exit(1);
}

#define MUST(what) do { if (!(what)) fail(#what, __LINE__); } while (0)

enum { BLOCK = HOLDFAST_BLOCK_BYTES, BLOCKS = 10, ALL = BLOCK * BLOCKS, OF_MEMORY = 3, OF_DISK = 2 };

static unsigned char wanted[ALL], back[ALL];
static struct holdfast_error error;

/* As the test has them, too. */
static void make(unsigned seed)
{
    for (unsigned at = 0; at < ALL; at++)
        wanted[at] = (unsigned char)((at * 31 + at / BLOCK * 7 + seed * 101) % 251);
}

static void at(const char *where)
{
    char line[8];
    puts(where);
    fflush(stdout);
    MUST(fgets(line, sizeof line, stdin) != NULL);
}

static void all_is_good(int fd)
{
    MUST(holdfast_pread(fd, back, ALL, 0, &error) == ALL && memcmp(back, wanted, ALL) == 0);
}

/* The block is told, whoever asks, and the others can be read. */
static void is_bad(int fd, unsigned block, unsigned kind)
{
    for (int part = 0; part < 2; part++) {
        off_t offset = part ? block * BLOCK + 10 : 0;
        size_t length = part ? 20 : ALL;
        errno = 0;
        MUST(holdfast_pread(fd, back, length, offset, &error) == -1 && errno == EIO);
        MUST(error.kind == kind && error.operation == HOLDFAST_READ && error.in_transfer == 0);
        MUST(error.block_count == 1 && error.blocks[0] == block);
        char told[sizeof error.text];
        int is_device = kind == HOLDFAST_ERROR_DEVICE;
        snprintf(told, sizeof told, "read at byte %llu: bad bytes %s (block %u; write it again, whole%s): ", (unsigned long long)error.offset,
                 is_device ? "on the device" : "in memory", block, is_device ? ", or restore it" : "");
        MUST(strncmp(error.text, told, strlen(told)) == 0);
        MUST((error.device_address != HOLDFAST_NO_ADDRESS) == (kind == HOLDFAST_ERROR_DEVICE));
    }
    for (unsigned other = 0; other < BLOCKS; other++)
        if (other != block)
            MUST(holdfast_pread(fd, back, BLOCK, other * BLOCK, &error) == BLOCK && memcmp(back, wanted + other * BLOCK, BLOCK) == 0);
}

static void write_again(int fd, unsigned block)
{
    MUST(holdfast_pwrite(fd, wanted + block * BLOCK, BLOCK, block * BLOCK, &error) == BLOCK);
    MUST(fsync(fd) == 0);
    all_is_good(fd);
}

int main(int argc, char **argv)
{
    uint64_t bad[BLOCKS];

    MUST(argc == 3);
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
    MUST(fd >= 0);
    if (strcmp(argv[2], "disk") == 0) {
        make(2);
        is_bad(fd, OF_DISK, HOLDFAST_ERROR_DEVICE);
        write_again(fd, OF_DISK);
        puts("done");
        return 0;
    }
    make(1);
    MUST(holdfast_pwrite(fd, wanted, ALL, 0, &error) == ALL && fsync(fd) == 0);
    at("stored");
    all_is_good(fd);
    make(2);
    MUST(holdfast_pwrite(fd, wanted, ALL, 0, &error) == ALL);
    at("changed");
    MUST(fsync(fd) == -1 && errno == EIO);
    MUST(fsync(fd) == 0);
    MUST(holdfast_bad_blocks(fd, 0, bad, BLOCKS, &error) == 1 && bad[0] == OF_MEMORY);
    is_bad(fd, OF_MEMORY, HOLDFAST_ERROR_MEMORY);
    write_again(fd, OF_MEMORY);
    MUST(holdfast_bad_blocks(fd, 0, bad, BLOCKS, &error) == 0);
    puts("done");
    return 0;
}
