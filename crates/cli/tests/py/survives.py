"""An ordinary program that survives flipped bits: the same steps as tests/c/survives.c, without a word of Holdfast."""

import errno
import os
import sys

BLOCK, BLOCKS, OF_MEMORY, OF_DISK = 4096, 10, 3, 2


def made(seed):
    return bytes((at * 31 + at // BLOCK * 7 + seed * 101) % 251 for at in range(BLOCK * BLOCKS))


def at(where):
    print(where, flush=True)
    assert sys.stdin.readline()


def fails(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == errno.EIO, error
    else:
        raise AssertionError("no error")


def is_bad(fd, block, wanted):
    # As of a disk: what is before it at most, then the error.
    try:
        assert os.pread(fd, len(wanted), 0) == wanted[: block * BLOCK]
    except OSError as error:
        assert error.errno == errno.EIO, error
    fails(os.pread, fd, len(wanted), block * BLOCK)
    fails(os.pread, fd, 20, block * BLOCK + 10)
    for other in set(range(BLOCKS)) - {block}:
        assert os.pread(fd, BLOCK, other * BLOCK) == wanted[other * BLOCK :][:BLOCK]


def write_again(fd, block, wanted):
    assert os.pwrite(fd, wanted[block * BLOCK :][:BLOCK], block * BLOCK) == BLOCK
    os.fsync(fd)
    assert os.pread(fd, len(wanted), 0) == wanted


fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
old, new = made(1), made(2)
if sys.argv[2] == "disk":
    is_bad(fd, OF_DISK, new)
    write_again(fd, OF_DISK, new)
else:
    assert os.pwrite(fd, old, 0) == len(old)
    os.fsync(fd)
    at("stored")
    assert os.pread(fd, len(old), 0) == old
    assert os.pwrite(fd, new, 0) == len(new)
    at("changed")
    fails(os.fsync, fd)
    os.fsync(fd)
    is_bad(fd, OF_MEMORY, new)
    write_again(fd, OF_MEMORY, new)
print("done")
