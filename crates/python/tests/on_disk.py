"""A bit flips on the disk under a program that uses the package: `on_disk.py write FILE`, `flip STORE`, `survive FILE`; the last two with the
store unmounted in between. Only what writes and survives needs the package."""

import os
import random
import sys
from pathlib import Path

BLOCK, BAD = 4096, 2
CONTENT = random.Random(4).randbytes(10 * BLOCK)
BLOCKS = [CONTENT[at : at + BLOCK] for at in range(0, len(CONTENT), BLOCK)]


def write(path: str) -> None:
    import holdfast

    with holdfast.FileIO(path, "w+") as f:
        f.pwrite(CONTENT, 0)
        f.fsync()


def flip(store: str) -> None:
    content = Path(store).read_bytes()
    places = [at for at in range(0, len(content), BLOCK) if content[at : at + BLOCK] == BLOCKS[BAD]]
    assert places, "stored as it is"
    with open(store, "r+b", buffering=0) as file:
        for at in places:
            os.pwrite(file.fileno(), bytes([content[at + 100] ^ 16]), at + 100)


def survive(path: str) -> None:
    import holdfast

    with holdfast.FileIO(path, "r+") as f:
        for offset, length in [(0, len(CONTENT)), (BAD * BLOCK + 10, 20)]:
            try:
                f.pread(length, offset)
            except holdfast.IntegrityError as error:
                told = (error.side, error.operation, error.blocks, error.errno, error.in_transfer)
                assert told == ("device", "read", [BAD], 5, False), told
                assert error.device_address is not None
                assert str(error).startswith("bad bytes on the device: read at byte "), error
            else:
                raise AssertionError("bad bytes were returned")
        for number, block in enumerate(BLOCKS):
            assert number == BAD or f.pread(BLOCK, number * BLOCK) == block, number
        f.pwrite(BLOCKS[BAD], BAD * BLOCK)
        f.fsync()
        assert f.pread(len(CONTENT), 0) == CONTENT


{"write": write, "flip": flip, "survive": survive}[sys.argv[1]](sys.argv[2])
