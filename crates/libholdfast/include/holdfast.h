/*
 * holdfast.h: reading and writing files in a Holdfast mount with a checksum per block, from the application's buffer to the disk
 * and back. See holdfast(3). Link with -lholdfast.
 *
 * A block is 4096 bytes of the file, counted from its start. A transfer of any offset and length has one checksum for each block
 * that it touches; where it covers a part of a block, the checksum is of just the bytes transferred.
 *
 * Functions are safe for threads, also on one descriptor. What is here keeps its meaning and layout within an ABI version.
 */
#ifndef HOLDFAST_H
#define HOLDFAST_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this header describes; holdfast_abi_version() says what the library has. Equal upper 16 bits: compatible. */
#define HOLDFAST_ABI_VERSION 0x00010004u

#define HOLDFAST_BLOCK_BYTES 4096
#define HOLDFAST_SUM_BYTES_MAX 32
#define HOLDFAST_ERROR_BLOCKS 32

/* Algorithms, and the bytes of a checksum. Bit n of struct holdfast_features.algorithms: the mount knows algorithm n. */
#define HOLDFAST_NONE 0        /*  0: nothing is verified */
#define HOLDFAST_XOR64 1       /*  8: exclusive or of the 64-bit little-endian words */
#define HOLDFAST_CRC64 2       /*  8: CRC-64/NVME, the default */
#define HOLDFAST_CRC32C 3      /*  4: CRC-32C (Castagnoli) */
#define HOLDFAST_FLETCHER256 4 /* 32: two one's-complement sums of the 128-bit little-endian words */
#define HOLDFAST_XXH3 5        /*  8: XXH3, 64 bits, seed 0 */
#define HOLDFAST_BLAKE3 6      /* 32: BLAKE3 */

/* Kinds of errors. */
#define HOLDFAST_ERROR_MEMORY 1      /* bytes changed in memory, here or in the mount's process or between */
#define HOLDFAST_ERROR_DEVICE 2      /* bytes on a device are not what was written, or the device failed */
#define HOLDFAST_ERROR_UNSUPPORTED 3 /* no mount of Holdfast's, or one that does not offer this */
#define HOLDFAST_ERROR_SYSTEM 4      /* any other; see errnum */

#define HOLDFAST_READ 1
#define HOLDFAST_WRITE 2

#define HOLDFAST_NO_ADDRESS UINT64_MAX

/* What went wrong. Functions fill it in if they return -1, and leave it alone otherwise. */
struct holdfast_error {
    int32_t errnum;          /* as errno has it */
    uint32_t kind;           /* HOLDFAST_ERROR_... */
    uint32_t operation;      /* HOLDFAST_READ or HOLDFAST_WRITE */
    uint32_t block_count;    /* blocks that are bad; 0 where it is not known which */
    uint64_t offset;         /* of the part of the transfer that failed, in bytes from the start of the file; of an append whose bytes were taken,
                                where they are */
    uint64_t done;           /* bytes of the transfer that were done before; of a read, all before the first bad block: they are good, and
                                behind them the buffer has zeros, wherever anything has arrived; of a
                                write whose bytes were taken but could not be made durable (O_SYNC, O_DSYNC), those of the failed part
                                as well: they are in the file (from version 0x00010004 on; before, they were left out) */
    uint64_t device_address; /* the 4 KiB block of the device, bad or with which it failed, or HOLDFAST_NO_ADDRESS */
    uint64_t blocks[HOLDFAST_ERROR_BLOCKS]; /* the first bad blocks of the file, ascending */
    char text[200];          /* in words, ends with NUL: what failed and where, which side and blocks are bad and what can be done, then
                                details; if these have no room, "…" in UTF-8 stands for what was cut off */
    /* 1: the bytes of this transfer did not have their checksums where they arrived, and of a write nothing in the request was taken. 0: what is
       bad was there before; a synchronous write can tell it though its own bytes, as many as `done` says, were taken. From version 0x00010001 on. */
    uint32_t in_transfer;
    uint32_t reserved_1;
    uint64_t reserved[3];
};

/* Bits of struct holdfast_features.capabilities. */
#define HOLDFAST_CAN_APPEND 1u /* holdfast_append() */

/* What a mount offers. */
struct holdfast_features {
    uint32_t interface_version;
    uint32_t page_algorithm;     /* of pages in the mount's memory: with it checksums are forwarded and not made anew; HOLDFAST_CRC64
                                    if the library does not know it */
    uint64_t algorithms;         /* one bit each */
    uint64_t transfer_bytes_max; /* of one request; longer transfers are several */
    uint32_t may_read;           /* this descriptor, 0 or 1 */
    uint32_t may_write;
    char mode[40];               /* the store's protection mode, "" if it is not known */
    /* What the mount knows beyond what each of its version does: HOLDFAST_CAN_... From version 0x00010003 on; before, these are 0. */
    uint64_t capabilities;
    uint32_t interface_version_least; /* the first version that it still knows; interface_version is the latest */
    uint32_t reserved_1;
    uint64_t reserved[2];
};

uint32_t holdfast_abi_version(void);

/* 0, or -1 and errno: ENOTTY or EOPNOTSUPP where it is not offered. Works on directories too. */
int holdfast_features(int fd, struct holdfast_features *features);

/* Bytes of a checksum; 0 for HOLDFAST_NONE and for what is not known. */
size_t holdfast_sum_bytes(int algorithm);

/* The algorithm's name, or NULL for what is not known. */
const char *holdfast_algorithm_name(int algorithm);

/* How many blocks, and so checksums, a transfer has. */
size_t holdfast_blocks(off_t offset, size_t length);

/* Makes the checksums of a transfer: holdfast_blocks() times holdfast_sum_bytes() bytes. 0, or -1 and errno (EINVAL). */
int holdfast_sums(int algorithm, const void *buffer, size_t length, off_t offset, void *sums);

/*
 * pread(2) and pwrite(2) and their vectored forms with CRC-64 checksums made and verified here. Reads give fewer bytes only at the
 * end of the file; writes write all, at the offset also with O_APPEND. -1: errno, and *error unless it is NULL.
 */
ssize_t holdfast_pread(int fd, void *buffer, size_t length, off_t offset, struct holdfast_error *error);
ssize_t holdfast_pwrite(int fd, const void *buffer, size_t length, off_t offset, struct holdfast_error *error);
ssize_t holdfast_preadv(int fd, const struct iovec *vector, int count, off_t offset, struct holdfast_error *error);
ssize_t holdfast_pwritev(int fd, const struct iovec *vector, int count, off_t offset, struct holdfast_error *error);

/*
 * Appends bytes from the start of the buffer on, as many as go in one request, and gives how many they are; *offset, unless it is NULL, is
 * where they are. That is all of 8 KiB, and of 1 MiB where the mount can read this process's memory. Nobody's bytes come between
 * them or are written over, whoever else appends, also by write(2) with O_APPEND. Since version 1.2; -1 with EOPNOTSUPP if the mount is older.
 * -1 with error->done not 0: so many bytes were appended, at *offset, but could not be made durable as the descriptor asks (O_SYNC, O_DSYNC).
 * To repeat the call would append them again; fsync(2) can be repeated. With error->done 0 nothing was written, and *offset is left alone.
 */
ssize_t holdfast_append(int fd, const void *buffer, size_t length, off_t *offset, struct holdfast_error *error);

/*
 * Reads and writes with checksums that the application gets, verified here against the bytes in its buffer, or brings. `sums` has
 * holdfast_sum_bytes() for each block of the transfer, one after another. Nothing is written of bytes that do not have theirs in the buffer.
 */
ssize_t holdfast_pread_sums(int fd, void *buffer, size_t length, off_t offset, int algorithm, void *sums,
                            struct holdfast_error *error);
ssize_t holdfast_pwrite_sums(int fd, const void *buffer, size_t length, off_t offset, int algorithm, const void *sums,
                             struct holdfast_error *error);
ssize_t holdfast_preadv_sums(int fd, const struct iovec *vector, int count, off_t offset, int algorithm, void *sums,
                             struct holdfast_error *error);
ssize_t holdfast_pwritev_sums(int fd, const struct iovec *vector, int count, off_t offset, int algorithm, const void *sums,
                              struct holdfast_error *error);

/*
 * Blocks of the file that were written, by whomever, and went bad in the mount's memory before they were stored, from block `first`
 * on, at most `count` of them, ascending. fsync(2) has told EIO, and reading them is an error, until they are written again. Gives how
 * many; -1 on error, which is about a write at the byte where the block `first` begins.
 */
ssize_t holdfast_bad_blocks(int fd, uint64_t first, uint64_t *blocks, size_t count, struct holdfast_error *error);

#ifdef __cplusplus
}
#endif

#endif
