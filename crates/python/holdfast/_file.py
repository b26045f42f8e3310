"""File objects over transfers with checksums."""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import io
import os
import stat
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from . import _native
from ._native import BLOCK_BYTES

__all__ = ["BLOCK_BYTES", "Capabilities", "Features", "FileIO", "features", "open"]

#: As for the built-in open(): a name and flags, to a descriptor.
Opener = Callable[[Any, int], int]


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


def _refuse_directory(fd: int, name: Any) -> None:
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)


class Capabilities(enum.IntFlag):
    """What a mount knows beyond what each of its version does. Bits that have no name here stay as they came."""

    #: Writes that append: files opened with "a".
    APPEND = 1


@dataclass(frozen=True, slots=True)
class Features:
    """What a mount offers, and what a descriptor may do. There can be more of it in the future."""

    #: Version of the interface; the latest that the mount knows.
    version: int
    #: The first that it still knows.
    version_least: int
    #: What it knows beyond them.
    capabilities: Capabilities
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
    version, least, capabilities, *others = _native.features(fd)
    return Features(version, least, Capabilities(capabilities), *others)


def _kind(mode: str) -> str:
    """The letter of a mode, and "+" behind it for both ways."""
    if not isinstance(mode, str):
        raise TypeError(f"argument 'mode' must be str, not {type(mode).__name__}")
    if set(mode) - set("rwxab+"):
        raise ValueError(f"invalid mode: {mode!r}")
    letters = [letter for letter in mode if letter in "rwxa"]
    if len(letters) != 1 or mode.count("+") > 1:
        raise ValueError("Must have exactly one of create/read/write/append mode and at most one plus")
    return letters[0] + "+" * mode.count("+")


class FileIO(io.RawIOBase):
    """A file in a Holdfast mount, without a buffer, as io.FileIO. Give it to io.BufferedReader, io.BufferedWriter or io.BufferedRandom, or
    use open().

    mode is "r", "w", "x" or "a", and "+" for both ways. The position is the descriptor's own, as io.FileIO's is: a descriptor that is given is read
    and written from where it is, and whoever has it as well sees it move. With "a", and with a descriptor that has O_APPEND, each write goes
    to the end of the file, wherever that is by then: nobody's bytes come between those of one write, or are written over. It can write fewer bytes
    than it is given, but all of 8 KiB. Through a descriptor with O_SYNC or O_DSYNC it can fail and have written, as io.FileIO's can: so many bytes as the
    error's `done` says, at its `offset`; to repeat it would append them again. An opener is not given O_TRUNC: the file is emptied afterwards, if it is in a mount.
    """

    def __init__(
        self,
        file: str | bytes | os.PathLike[Any] | int,
        mode: str = "r",
        closefd: bool = True,
        opener: Opener | None = None,
    ) -> None:
        super().__init__()
        self._fd = -1
        self._lock = threading.Lock()
        kind = _kind(mode)
        both = kind.endswith("+")
        self._reads, self._writes = both or kind == "r", both or kind[0] != "r"
        #: As io.FileIO has it: "w+" and "r+" are the same once a file is open.
        self.mode = {"x": "xb", "a": "ab"}.get(kind[0], "rb" if self._reads else "wb") + "+" * both
        self.name = file
        self._closes = closefd
        if isinstance(file, int):
            if file < 0:
                raise ValueError("negative file descriptor")
            _refuse_directory(file, file)
            self._features = features(file)
            self._fd = file
        else:
            if not closefd:
                raise ValueError("Cannot use closefd=False with file name")
            self._fd, self._features = self._opened(file, kind, opener)
        self._appends = kind[0] == "a" or bool(fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_APPEND)
        if kind[0] == "a":
            os.lseek(self._fd, 0, os.SEEK_END)

    @staticmethod
    def _opened(
        path: str | bytes | os.PathLike[Any], kind: str, opener: Opener | None
    ) -> tuple[int, Features]:
        """A descriptor and what its mount offers. Where that is nothing, no file is emptied, and none is left that was not there."""
        way = os.O_CLOEXEC | (os.O_RDWR if kind.endswith("+") else os.O_RDONLY if kind == "r" else os.O_WRONLY)
        if kind[0] == "a":
            # For whoever else is given the descriptor.
            way |= os.O_APPEND
        made: Any = None
        if opener is not None:
            fd = opener(path, way | {"r": 0, "x": os.O_CREAT | os.O_EXCL}.get(kind[0], os.O_CREAT))
            if not isinstance(fd, int):
                raise TypeError("expected integer from opener")
            if fd < 0:
                raise ValueError(f"opener returned {fd}")
            os.set_inheritable(fd, False)
        elif kind[0] == "r":
            fd = os.open(path, way)
        elif kind[0] == "x":
            fd, made = os.open(path, way | os.O_CREAT | os.O_EXCL, 0o666), path
        else:
            fd, made = _open_or_make(path, way)
        try:
            _refuse_directory(fd, path)
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
            raise io.UnsupportedOperation(f"File not open for {'reading' if reads else 'writing'}")
        return self._fd

    def __repr__(self) -> str:
        if self.closed:
            return "<holdfast.FileIO [closed]>"
        return f"<holdfast.FileIO name={self.name!r} mode={self.mode!r} closefd={self._closes}>"

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
        """Fill a buffer from a position on; gives how many bytes there were before the end of the file. The object's position stays. Of a
        buffer that a bad block comes into, as many bytes are good as the error's `done` says."""
        return _native.pread_into(self._open(reads=True), buffer, offset, self._features.algorithm, False)

    def pread(self, length: int, offset: int) -> bytes:
        """Up to so many bytes from a position on. The object's position stays."""
        fd = self._open(reads=True)
        if length < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        there = max(os.fstat(fd).st_size - offset, 0)
        buffer = bytearray(min(length, there))
        return bytes(memoryview(buffer)[: self.pread_into(buffer, offset)])

    def pwrite(self, data: Any, offset: int) -> int:
        """Write all of a buffer at a position. The object's position stays."""
        return _native.pwrite(self._open(writes=True), data, offset, self._features.algorithm)

    def readinto(self, buffer: Any) -> int:
        fd = self._open(reads=True)
        with self._lock:
            return self._next(fd, buffer)

    def _next(self, fd: int, buffer: Any) -> int:
        """Reads on, up to a bad block: the read that begins with it raises."""
        position = os.lseek(fd, 0, os.SEEK_CUR)
        got = _native.pread_into(fd, buffer, position, self._features.algorithm, True)
        os.lseek(fd, position + got, os.SEEK_SET)
        return got

    def read(self, size: int | None = -1, /) -> bytes:
        # The base class takes no None, which io.FileIO does.
        return super().read(-1 if size is None else size) or b""

    def readall(self) -> bytes:
        fd = self._open(reads=True)
        with self._lock:
            buffer = memoryview(bytearray(max(os.fstat(fd).st_size - os.lseek(fd, 0, os.SEEK_CUR), 0)))
            got = 0
            while more := self._next(fd, buffer[got:]):
                got += more
        rest = bytes(buffer[:got])
        # What has been added meanwhile, up to the end.
        return rest + (super().readall() or b"") if rest else rest

    def write(self, data: Any) -> int:
        fd = self._open(writes=True)
        with self._lock:
            if self._appends:
                position, done = _native.append(fd, data, self._features.algorithm)
            else:
                position = os.lseek(fd, 0, os.SEEK_CUR)
                done = self.pwrite(data, position)
            os.lseek(fd, position + done, os.SEEK_SET)
            return done

    def tell(self) -> int:
        return os.lseek(self._open(), 0, os.SEEK_CUR)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        fd = self._open()
        with self._lock:
            return os.lseek(fd, offset, whence)

    def truncate(self, size: int | None = None) -> int:
        fd = self._open(writes=True)
        size = self.tell() if size is None else size
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
    opener: Opener | None = None,
) -> IO[Any]:
    """As the built-in open(), for a file in a Holdfast mount. The file itself, with pread(), fsync() and so on, is `.raw`, or `.buffer.raw`
    of a text file. Raises UnsupportedError for files elsewhere."""
    if not isinstance(file, int):
        file = os.fspath(file)
    if not isinstance(mode, str):
        raise TypeError(f"open() argument 'mode' must be str, not {type(mode).__name__}")
    if set(mode) - set("rwxabt+") or len(set(mode)) < len(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    binary = "b" in mode
    if binary and "t" in mode:
        raise ValueError("can't have text and binary mode at once")
    if binary and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode takes no encoding, errors or newline")
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    if binary and buffering == 1:
        warnings.warn("line buffering (buffering=1) isn't supported in binary mode", RuntimeWarning, stacklevel=2)
    raw = FileIO(file, mode.replace("t", ""), closefd, opener)
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
