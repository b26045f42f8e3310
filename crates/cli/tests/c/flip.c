/* Flips a bit of the bytes that travel between a program and a mount, in the ioctls and calls of the client library: loaded behind the
   library that does the checking. FLIP is what to flip ("read", "long-read", "write") and how often: FLIP=read FLIPS=1. */

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { READ = 17, WRITE = 19, REQUEST_BYTES = 48, REPLY_BYTES = 96, SUM_BYTES = 8, BLOCK_BYTES = 4096 };

static int left = -1;

static int wanted(const char *what)
{
    const char *flip = getenv("FLIP"), *flips = getenv("FLIPS");
    if (left < 0)
        left = flips ? atoi(flips) : 0;
    if (!flip || strcmp(flip, what) || left == 0)
        return 0;
    left--;
    return 1;
}

/* Where the bytes begin behind the head and the checksums. */
static size_t data(size_t head, uint64_t offset, uint32_t length)
{
    return head + SUM_BYTES * ((offset % BLOCK_BYTES + length + BLOCK_BYTES - 1) / BLOCK_BYTES);
}

int ioctl(int fd, unsigned long number, ...)
{
    int (*real)(int, unsigned long, void *) = (int (*)(int, unsigned long, void *))dlsym(RTLD_NEXT, "ioctl");
    va_list arguments;
    va_start(arguments, number);
    unsigned char *payload = va_arg(arguments, void *);
    va_end(arguments);
    int ours = (number >> 8 & 0xff) == 'H', result;
    uint64_t offset;
    uint32_t length;
    if (ours && (number & 0xff) == WRITE && wanted("write")) {
        memcpy(&length, payload + 4, 4);
        memcpy(&offset, payload + 8, 8);
        payload[data(REQUEST_BYTES, offset, length)] ^= 16;
    }
    result = real(fd, number, payload);
    if (ours && (number & 0xff) == READ && result == 0 && wanted("read")) {
        memcpy(&length, payload + 8, 4);
        memcpy(&offset, payload + 16, 8);
        if (length > 0)
            payload[data(REPLY_BYTES, offset, length)] ^= 16;
    }
    return result;
}

long syscall(long number, ...)
{
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_preadv && result > 5000 && wanted("long-read"))
        ((unsigned char *)((struct iovec *)a[1])[0].iov_base)[5000] ^= 16;
    return result;
}
