"""What can go wrong beyond what the system's errors tell."""

from __future__ import annotations


class _Failed(OSError):
    def __init__(
        self,
        errno: int,
        words: str,
        side: str | None = None,
        operation: str = "read",
        offset: int = 0,
        done: int = 0,
        blocks: list[int] | None = None,
        device_address: int | None = None,
        in_transfer: bool = False,
    ) -> None:
        super().__init__(errno, words)
        #: Where bytes went bad: "memory" or "device".
        self.side = side
        #: What was being done: "read" or "write".
        self.operation = operation
        #: Where in the file the failed part of the transfer begins, in bytes. Of an append whose bytes were taken, where they are.
        self.offset = offset
        #: Bytes of the transfer that were done before, from its start on. Of a read, all before the first bad block. Of a write whose bytes were
        #: taken but could not be made durable (O_SYNC, O_DSYNC), those of the failed part as well: they are in the file.
        self.done = done
        #: The bad blocks of 4 KiB, counted from the start of the file; empty if not known.
        self.blocks = list(blocks or ())
        #: The 4 KiB block of the device, if one is concerned and known.
        self.device_address = device_address
        #: Whether the bytes of this transfer did not have their checksums where they arrived: of a write nothing in the request was taken. If not,
        #: the blocks had gone bad before; a synchronous write can tell that though its own bytes, as many as `done` says, were taken.
        self.in_transfer = in_transfer

    def __reduce__(self):  # type: ignore[no-untyped-def]
        fields = (self.side, self.operation, self.offset, self.done, self.blocks, self.device_address, self.in_transfer)
        return type(self), (self.errno, self.strerror, *fields)


class IntegrityError(_Failed):
    """Bytes are not what was written."""

    def __str__(self) -> str:
        blocks = f" (blocks {self.blocks})" if self.blocks else ""
        where = {"memory": "in memory", "device": "on the device"}.get(self.side, f"in {self.side}")
        return f"bad bytes {where}: {self.operation} at byte {self.offset}: {self.strerror}{blocks}"


class UnsupportedError(_Failed):
    """The file is in no Holdfast mount, or in one that does not offer checksums (mount option cache=kernel), or in another version."""
