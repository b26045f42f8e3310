/* Threads that share a descriptor: `threads FILE`. Each writes and reads blocks of its own, in turns with the others', and gets its own errors. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <holdfast.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)

enum { BLOCK = HOLDFAST_BLOCK_BYTES, THREADS = 8, ROUNDS = 50 };

static int fd;

static void *transfers(void *number)
{
    unsigned own = (unsigned)(uintptr_t)number;
    unsigned char bytes[BLOCK], back[BLOCK], sum[HOLDFAST_SUM_BYTES_MAX];
    struct holdfast_error error;
    for (unsigned round = 0; round < ROUNDS; round++) {
        off_t offset = (off_t)(round * THREADS + own) * BLOCK;
        memset(bytes, (int)(own * 31 + round), BLOCK);
        MUST(holdfast_pwrite(fd, bytes, BLOCK, offset, &error) == BLOCK);
        MUST(holdfast_pread(fd, back, BLOCK, offset, &error) == BLOCK && memcmp(back, bytes, BLOCK) == 0);
        /* As a bit that flips behind its back. */
        MUST(holdfast_sums(HOLDFAST_CRC64, bytes, BLOCK, offset, sum) == 0);
        bytes[round] ^= 4;
        errno = 0;
        MUST(holdfast_pwrite_sums(fd, bytes, BLOCK, offset, HOLDFAST_CRC64, sum, &error) == -1 && errno == EIO);
        MUST(error.kind == HOLDFAST_ERROR_MEMORY && error.offset == (uint64_t)offset && error.block_count == 1);
        MUST(error.blocks[0] == (uint64_t)offset / BLOCK);
    }
    return NULL;
}

int main(int count, char **words)
{
    pthread_t threads[THREADS];
    MUST(count == 2 && (fd = open(words[1], O_RDWR | O_CREAT, 0644)) >= 0);
    for (uintptr_t number = 0; number < THREADS; number++)
        MUST(pthread_create(&threads[number], NULL, transfers, (void *)number) == 0);
    for (unsigned number = 0; number < THREADS; number++)
        MUST(pthread_join(threads[number], NULL) == 0);
    return 0;
}
