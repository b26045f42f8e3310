"""File objects over transfers with checksums."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from typing import IO, Any, NamedTuple

from . import _native
from ._native import BLOCK_BYTES

__all__ = ["BLOCK_BYTES", "Features", "FileIO", "features", "open"]


def _open_or_make(path: str | bytes | os.PathLike[Any], way: int) -> tuple[int, Any]:
    """A descriptor of what is there, as it is, or of a new file; and the path of what was made."""
    try:
        return os.open(path, way), None
    except FileNotFoundError:
        # A link to nowhere makes what it leads to.
        target = os.path.realpath(path) if os.path.islink(path) else path
    try:
        return os.open(target, way | os.O_CREAT | os.O_EXCL, 0o666), target
    except FileExistsError:
        # Somebody else has made it meanwhile.
        return os.open(path, way | os.O_CREAT, 0o666), None


class Features(NamedTuple):
    """What a mount offers, and what a descriptor may do."""

    #: Version of the interface.
    version: int
    #: The store's protection mode.
    mode: str
    #: Number of the algorithm that is used.
    algorithm: int
    #: All that can be used: numbers and names.
    algorithms: list[tuple[int, str]]
    #: Most bytes of one request.
    transfer_bytes_max: int
    may_read: bool
    may_write: bool


def features(fd: int) -> Features:
    """Ask what the mount of an open file offers. Raises UnsupportedError if it is none of Holdfast's."""
    return Features(*_native.features(fd))


class FileIO(io.RawIOBase):
    """A file in a Holdfast mount, without a buffer. Give it to io.BufferedReader, io.BufferedWriter or io.BufferedRandom, or use open().

    mode is "r", "w", "x" or "a", and "+" for both ways. With "a" each write goes to the end of the file, wherever that is by then: nobody's
    bytes come between those of one write, or are written over. It can write fewer bytes than it is given, but all of 8 KiB.
    """

    def __init__(self, file: str | bytes | os.PathLike[Any] | int, mode: str = "r", closefd: bool = True) -> None:
        super().__init__()
        self._fd = -1
        kind = mode.replace("b", "", 1)
        if kind.rstrip("+") not in ("r", "w", "x", "a") or kind.count("+") > 1:
            raise ValueError(f"invalid mode: {mode!r}")
        both = kind.endswith("+")
        self._appends = kind[0] == "a"
        self._reads, self._writes = both or kind == "r", both or kind[0] != "r"
        self.mode = kind + "b"
        self.name = file
        self._closes = closefd
        if isinstance(file, int):
            self._features = features(file)
            self._fd = file
        else:
            if not closefd:
                raise ValueError("only a descriptor can be left open")
            self._fd, self._features = self._opened(file, kind)
        self._position = os.fstat(self._fd).st_size if self._appends else 0
        self._lock = threading.Lock()

    @staticmethod
    def _opened(path: str | bytes | os.PathLike[Any], kind: str) -> tuple[int, Features]:
        """A descriptor and what its mount offers. Where that is nothing, no file is emptied, and none is left that was not there."""
        way = os.O_CLOEXEC | (os.O_RDWR if kind.endswith("+") else os.O_RDONLY if kind == "r" else os.O_WRONLY)
        made: Any = None
        if kind[0] == "r":
            fd = os.open(path, way)
        elif kind[0] == "x":
            fd, made = os.open(path, way | os.O_CREAT | os.O_EXCL, 0o666), path
        else:
            fd, made = _open_or_make(path, way)
        try:
            found = features(fd)
            if kind[0] == "w":
                os.ftruncate(fd, 0)
            return fd, found
        except BaseException:
            with contextlib.suppress(OSError):
                if made is not None and os.path.samestat(os.fstat(fd), os.lstat(made)):
                    os.unlink(made)
            os.close(fd)
            raise

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._closes:
            os.close(fd)

    def _open(self, reads: bool = False, writes: bool = False) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if (reads and not self._reads) or (writes and not self._writes):
            raise io.UnsupportedOperation("read" if reads else "write")
        return self._fd

    @property
    def closefd(self) -> bool:
        return self._closes

    @property
    def features(self) -> Features:
        """What the mount offers."""
        return self._features

    def fileno(self) -> int:
        return self._open()

    def readable(self) -> bool:
        self._open()
        return self._reads

    def writable(self) -> bool:
        self._open()
        return self._writes

    def seekable(self) -> bool:
        self._open()
        return True

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._release()

    def pread_into(self, buffer: Any, offset: int) -> int:
        """Fill a buffer from a position on; gives how many bytes there were before the end of the file. The object's position stays."""
        return _native.pread_into(self._open(reads=True), buffer, offset, self._features.algorithm)

    def pread(self, length: int, offset: int) -> bytes:
        """Up to so many bytes from a position on. The object's position stays."""
        there = max(os.fstat(self._open(reads=True)).st_size - offset, 0)
        buffer = bytearray(min(length, there))
        return bytes(memoryview(buffer)[: self.pread_into(buffer, offset)])

    def pwrite(self, data: Any, offset: int) -> int:
        """Write all of a buffer at a position. The object's position stays."""
        return _native.pwrite(self._open(writes=True), data, offset, self._features.algorithm)

    def readinto(self, buffer: Any) -> int:
        with self._lock:
            got = self.pread_into(buffer, self._position)
            self._position += got
            return got

    def readall(self) -> bytes:
        with self._lock:
            rest = self.pread(2**63 - 1, self._position)
            self._position += len(rest)
        # What has been added meanwhile, up to the end.
        return rest + (super().readall() or b"") if rest else rest

    def write(self, data: Any) -> int:
        with self._lock:
            if self._appends:
                self._position, done = _native.append(self._open(writes=True), data, self._features.algorithm)
            else:
                done = self.pwrite(data, self._position)
            self._position += done
            return done

    def tell(self) -> int:
        self._open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        fd = self._open()
        with self._lock:
            if whence == os.SEEK_SET:
                position = offset
            elif whence == os.SEEK_CUR:
                position = self._position + offset
            elif whence == os.SEEK_END:
                position = os.fstat(fd).st_size + offset
            else:
                raise ValueError(f"invalid whence: {whence}")
            if position < 0:
                raise ValueError(f"negative position {position}")
            self._position = position
            return position

    def truncate(self, size: int | None = None) -> int:
        fd = self._open(writes=True)
        size = self._position if size is None else size
        os.ftruncate(fd, size)
        return size

    def fsync(self) -> None:
        """Make what was written durable. OSError with EIO says that blocks went bad in memory before; bad_blocks() has them."""
        os.fsync(self._open())

    def bad_blocks(self, first: int = 0) -> list[int]:
        """Blocks, from `first` on, that went bad in memory before they were stored, for the program to write again."""
        return _native.bad_blocks(self._open(), first)


def open(
    file: str | bytes | os.PathLike[Any] | int,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
) -> IO[Any]:
    """As the built-in open(), for a file in a Holdfast mount. The file itself, with pread(), fsync() and so on, is `.raw`, or `.buffer.raw`
    of a text file. Raises UnsupportedError for files elsewhere."""
    binary = "b" in mode
    text = not binary
    if "t" in mode:
        if binary:
            raise ValueError("can't have text and binary mode at once")
        mode = mode.replace("t", "", 1)
    if binary and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode takes no encoding, errors or newline")
    if buffering == 0 and text:
        raise ValueError("can't have unbuffered text I/O")
    raw = FileIO(file, mode, closefd)
    if buffering == 0:
        return raw  # type: ignore[return-value]
    size = buffering if buffering > 1 else 1 << 17
    try:
        buffer: Any
        if "+" in mode:
            buffer = io.BufferedRandom(raw, size)
        elif raw.writable():
            buffer = io.BufferedWriter(raw, size)
        else:
            buffer = io.BufferedReader(raw, size)
        if binary:
            return buffer
        result = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
        result.mode = mode  # type: ignore[misc]
        return result
    except BaseException:
        raw.close()
        raise


