/* A mount that takes at most 64 KiB in one request, as far as the client library can see: loaded before the program's libraries. With
   APPENDS=unknown it is one of before there were appends, with APPENDS=senseless it knows them and takes each for one that makes no sense. */

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = 16, BAD = 21, MOST = 64 << 10, FLAG_APPEND = 2 };

int ioctl(int fd, unsigned long number, ...)
{
    int (*real)(int, unsigned long, void *) = (int (*)(int, unsigned long, void *))dlsym(RTLD_NEXT, "ioctl");
    uint32_t most = MOST, length;
    const char *appends = getenv("APPENDS");
    va_list arguments;
    va_start(arguments, number);
    unsigned char *payload = va_arg(arguments, void *);
    va_end(arguments);
    unsigned command = (number >> 8 & 0xff) == 'H' ? number & 0xff : 0;
    if (command > FEATURES && command <= BAD) {
        memcpy(&length, payload + 4, 4);
        if (length > most || (appends && payload[3] & FLAG_APPEND)) {
            errno = EINVAL;
            return -1;
        }
    }
    int result = real(fd, number, payload);
    if (command == FEATURES && result == 0)
        memcpy(payload + 8, &most, 4);
    if (command == FEATURES && result == 0 && appends && strcmp(appends, "unknown") == 0)
        memset(payload + 56, 0, 8);
    return result;
}
