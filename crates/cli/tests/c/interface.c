/* Uses the C library as a program would: `interface FILE` writes, reads and verifies FILE, which is in a mount. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <holdfast.h>

static void fail(const char *what, int line)
{
    fprintf(stderr, "line %d: %s (errno %d)\n", line, what, errno);
    exit(1);
}

#define MUST(what) do { if (!(what)) fail(#what, __LINE__); } while (0)

/* What the words for a flipped bit begin with. */
#define TOLD "write at byte 4000: bad bytes in memory (block 1; write it again): "

/* Two of 128 KiB and one that begins and ends within blocks. */
enum { LARGE = 128 << 10, START = 4000, LENGTH = 10000 };

static unsigned char written[LARGE], back[LARGE], sums[33 * HOLDFAST_SUM_BYTES_MAX], got[sizeof sums];

/* The limit of file sizes, as for pwrite(2); but nothing is written of what does not fit, and there is no signal. */
static void limited(int fd)
{
    struct holdfast_error error;
    struct rlimit before, limit;
    struct stat status;
    off_t size, at;

    MUST(fstat(fd, &status) == 0 && getrlimit(RLIMIT_FSIZE, &before) == 0);
    size = status.st_size;
    limit = (struct rlimit){ (rlim_t)size + 5, before.rlim_max };
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    MUST(holdfast_pwrite(fd, written, 6, size, &error) == -1 && errno == EFBIG && error.errnum == EFBIG);
    MUST(error.kind == HOLDFAST_ERROR_SYSTEM && error.offset == (uint64_t)size && error.done == 0);
    MUST(holdfast_pwrite(fd, written, LARGE, size - 100, NULL) == -1 && errno == EFBIG);
    MUST(holdfast_append(fd, written, 6, &at, &error) == -1 && error.errnum == EFBIG);
    MUST(fstat(fd, &status) == 0 && status.st_size == size);
    MUST(holdfast_pwrite(fd, written, 3, size, NULL) == 3 && holdfast_append(fd, written, 2, &at, NULL) == 2);
    MUST(at == size + 3 && holdfast_append(fd, written, 1, &at, NULL) == -1 && errno == EFBIG);
    MUST(setrlimit(RLIMIT_FSIZE, &before) == 0);
}

/* Buffers of which not all is there: as pwrite(2) has it, and nothing is written. */
static void nowhere(int fd)
{
    struct holdfast_error error;
    struct stat before, after;
    off_t at = -7;

    MUST(fstat(fd, &before) == 0);
    for (int bits = 40; bits <= 62; bits += 11) {
        size_t length = (size_t)1 << bits;
        struct iovec vector[2] = {{written, 10}, {written + 10, length}};
        MUST(holdfast_pwrite(fd, written, length, 0, &error) == -1 && errno == EFAULT && error.errnum == EFAULT);
        MUST(error.kind == HOLDFAST_ERROR_SYSTEM && error.operation == HOLDFAST_WRITE && error.done == 0);
        MUST(holdfast_pwritev(fd, vector, 2, 5, NULL) == -1 && errno == EFAULT);
        MUST(holdfast_pwrite_sums(fd, written, length, 0, HOLDFAST_XXH3, sums, NULL) == -1 && errno == EFAULT);
        MUST(holdfast_append(fd, written, length, &at, NULL) == -1 && errno == EFAULT && at == -7);
    }
    MUST(fstat(fd, &after) == 0 && before.st_size == after.st_size);
}

int main(int argc, char **argv)
{
    struct holdfast_features features;
    struct holdfast_error error;

    MUST(argc == 2);
    MUST(holdfast_abi_version() == HOLDFAST_ABI_VERSION);
    /* The library's idea of the layouts. */
    MUST(sizeof(struct holdfast_error) == 528 && offsetof(struct holdfast_error, blocks) == 40);
    MUST(offsetof(struct holdfast_error, text) == 296 && offsetof(struct holdfast_error, in_transfer) == 496);
    MUST(sizeof(struct holdfast_features) == 104 && offsetof(struct holdfast_features, mode) == 32);
    MUST(offsetof(struct holdfast_features, may_read) == 24 && offsetof(struct holdfast_features, capabilities) == 72);
    MUST(offsetof(struct holdfast_features, interface_version_least) == 80 && offsetof(struct holdfast_features, reserved) == 88);

    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0);
    MUST(holdfast_features(fd, &features) == 0);
    MUST(features.interface_version_least == 1 && features.capabilities == HOLDFAST_CAN_APPEND);
    MUST(features.interface_version == 1 && features.may_read == 1 && features.may_write == 1);
    MUST(features.algorithms >> HOLDFAST_CRC64 & 1 && features.algorithms >> features.page_algorithm & 1);
    MUST(features.transfer_bytes_max >= HOLDFAST_BLOCK_BYTES);

    for (int i = 0; i < LARGE; i++)
        written[i] = (unsigned char)(i * 7 + i / 256);
    MUST(holdfast_pwrite(fd, written, LARGE, 0, &error) == LARGE);
    MUST(holdfast_pread(fd, back, LARGE, 0, &error) == LARGE && memcmp(written, back, LARGE) == 0);
    MUST(holdfast_pread(fd, back, LARGE, LARGE - 10, NULL) == 10);
    MUST(holdfast_pread(fd, back, LARGE, LARGE, NULL) == 0);

    for (int algorithm = HOLDFAST_NONE; algorithm <= HOLDFAST_BLAKE3; algorithm++) {
        size_t bytes = holdfast_sum_bytes(algorithm);
        size_t blocks = holdfast_blocks(START, LENGTH);
        MUST(blocks == 4 && bytes <= HOLDFAST_SUM_BYTES_MAX && holdfast_algorithm_name(algorithm) != NULL);
        memset(written, algorithm + 1, LENGTH);
        MUST(holdfast_sums(algorithm, written, LENGTH, START, sums) == 0);
        MUST(holdfast_pwrite_sums(fd, written, LENGTH, START, algorithm, sums, &error) == LENGTH);
        memset(got, 0xee, sizeof got);
        MUST(holdfast_pread_sums(fd, back, LENGTH, START, algorithm, got, &error) == LENGTH);
        MUST(memcmp(written, back, LENGTH) == 0 && memcmp(sums, got, blocks * bytes) == 0);
        MUST(got[blocks * bytes] == 0xee);
        if (algorithm == HOLDFAST_NONE)
            continue;
        /* A bit flips after the checksums were made: it is told, and nothing is written. */
        written[100] ^= 32;
        errno = 0;
        memset(&error, 0xee, sizeof error);
        MUST(holdfast_pwrite_sums(fd, written, LENGTH, START, algorithm, sums, &error) == -1 && errno == EIO);
        MUST(error.kind == HOLDFAST_ERROR_MEMORY && error.operation == HOLDFAST_WRITE && error.errnum == EIO);
        MUST(error.block_count == 1 && error.blocks[0] == 1 && error.offset == START && error.done == 0);
        MUST(error.device_address == HOLDFAST_NO_ADDRESS && error.in_transfer == 1);
        MUST(strncmp(error.text, TOLD, strlen(TOLD)) == 0);
        MUST(holdfast_pwrite_sums(fd, written, LENGTH, START, algorithm, sums, NULL) == -1);
        MUST(holdfast_pread(fd, back, LENGTH, START, &error) == LENGTH && back[100] == algorithm + 1);
    }
    MUST(strcmp(holdfast_algorithm_name(HOLDFAST_CRC64), "crc64-nvme") == 0 && holdfast_algorithm_name(7) == NULL);
    /* The check value of CRC-64/NVME: of "123456789". */
    uint64_t crc;
    MUST(holdfast_sums(HOLDFAST_CRC64, "123456789", 9, 0, &crc) == 0 && crc == 0xae8b14860a799888u);

    struct iovec vector[3] = {{written, 5000}, {NULL, 0}, {written + 5000, 3000}};
    MUST(holdfast_pwritev(fd, vector, 3, 1, &error) == 8000);
    vector[0].iov_base = back, vector[2].iov_base = back + 5000;
    MUST(holdfast_preadv(fd, vector, 3, 1, &error) == 8000 && memcmp(back, written, 8000) == 0);
    MUST(holdfast_preadv_sums(fd, vector, 3, 1, HOLDFAST_XXH3, got, &error) == 8000);
    MUST(holdfast_sums(HOLDFAST_XXH3, written, 8000, 1, sums) == 0 && memcmp(sums, got, 16) == 0);
    vector[0].iov_base = written, vector[2].iov_base = written + 5000;
    MUST(holdfast_pwritev_sums(fd, vector, 3, 1, HOLDFAST_XXH3, sums, &error) == 8000);

    uint64_t bad[4];
    MUST(holdfast_bad_blocks(fd, 0, bad, 4, &error) == 0);
    MUST(holdfast_bad_blocks(fd, 0, NULL, 4, &error) == -1 && errno == EINVAL);

    /* At the end, wherever that is. */
    off_t end = lseek(fd, 0, SEEK_END), at = -1;
    MUST(holdfast_append(fd, written, 8192, &at, &error) == 8192 && at == end);
    MUST(holdfast_append(fd, "end", 3, NULL, NULL) == 3 && lseek(fd, 0, SEEK_END) == end + 8195);
    MUST(holdfast_pread(fd, back, 8195, end, &error) == 8195);
    MUST(memcmp(back, written, 8192) == 0 && memcmp((char *)back + 8192, "end", 3) == 0);
    MUST(holdfast_append(fd, NULL, 0, &at, &error) == 0 && at == end + 8195);
    MUST(holdfast_append(fd, NULL, 1, &at, &error) == -1 && errno == EINVAL && strstr(error.text, "NULL"));
    MUST(holdfast_append(-1, "", 0, &at, &error) == -1 && errno == EBADF);

    /* What makes no sense. */
    MUST(holdfast_pread(fd, back, 1, -1, &error) == -1 && errno == EINVAL && error.kind == HOLDFAST_ERROR_SYSTEM);
    MUST(holdfast_pread_sums(fd, back, 1, 0, 7, got, &error) == -1 && errno == EINVAL);
    MUST(holdfast_pread(fd, back, 2, INT64_MAX - 1, &error) == -1 && errno == EINVAL && strstr(error.text, "position"));
    struct iovec overlapping[2] = {{back + 99, 100}, {back, 100}};
    MUST(holdfast_preadv(fd, overlapping, 2, 0, &error) == -1 && errno == EINVAL && strstr(error.text, "overlap"));
    MUST(holdfast_pwritev(fd, overlapping, 2, 0, &error) == 200);
    overlapping[0].iov_base = back + 100;
    MUST(holdfast_preadv(fd, overlapping, 2, 0, &error) == 200);
    MUST(holdfast_preadv(fd, vector, -1, 0, &error) == -1 && errno == EINVAL);
    MUST(holdfast_pwrite(fd, NULL, 1, 0, &error) == -1 && errno == EINVAL && strstr(error.text, "NULL"));
    MUST(holdfast_pwrite(-1, written, 1, 0, &error) == -1 && errno == EBADF);
    MUST(holdfast_sums(HOLDFAST_CRC64, written, 1, -1, sums) == -1 && errno == EINVAL);
    MUST(holdfast_pwrite(fd, written, 0, 0, &error) == 0);
    int other = open(argv[0], O_RDONLY);
    MUST(other >= 0 && holdfast_features(other, &features) == -1 && errno == ENOTTY);
    MUST(holdfast_pread(other, back, 1, 0, &error) == -1 && error.kind == HOLDFAST_ERROR_UNSUPPORTED);
    nowhere(fd);
    limited(fd);
    puts("done");
    return 0;
}
