/* Appends three bytes to FILE, and prints what came of it: `append FILE`. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include <holdfast.h>

int main(int argc, char **argv)
{
    int fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0644) : -1;
    ssize_t done = holdfast_append(fd, "abc", 3, NULL, NULL);
    printf("%zd %d\n", done, done < 0 ? errno : 0);
    return 0;
}
