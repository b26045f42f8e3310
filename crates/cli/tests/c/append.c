/* Appends three bytes to FILE, by a descriptor with O_SYNC if a second argument is there, and prints what came of it, where, and how many bytes
   an error says are in the file: `append FILE [synchronous]`. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include <holdfast.h>

int main(int argc, char **argv)
{
    int fd = argc >= 2 ? open(argv[1], O_RDWR | O_CREAT | (argc > 2 ? O_SYNC : 0), 0644) : -1;
    struct holdfast_error error = {.done = 0};
    off_t offset = -7;
    ssize_t done = holdfast_append(fd, "abc", 3, &offset, &error);
    printf("%zd %d at %lld done %llu\n", done, done < 0 ? errno : 0, (long long)offset, (unsigned long long)error.done);
    return 0;
}
