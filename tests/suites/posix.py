"""System calls of the posix suite: `posix.py calls DIR` on a fresh mount, `posix.py after DIR` when it is mounted again.

One line per case: "ok WHAT", "FAIL WHAT: WHY", "skip WHAT: WHY". What is expected is what ext4 does (FS=ext4 runs the same), but for
five cases with MOUNT_OPTS=cache=kernel, in which the kernel keeps pages and attributes (docs/guide.md): where it says KERNEL, what it does
instead is expected.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
PAGE = 4096
KEEP_SIZE, PUNCH, ZERO = 1, 2, 16
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
AT_FDCWD, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW = -100, 0x1000, 0x400
KERNEL = "cache=kernel" in os.environ.get("MOUNT_OPTS", "").split(",")
SIZE_MAX = {"holdfast": 1 << 44}.get(os.environ.get("FS"), (1 << 44) - PAGE)

CASES = {"calls": [], "after": [], "orphans": [], "entries": []}


def case(phase="calls"):
    def add(function):
        CASES[phase].append(function)
        return function

    return add


class Skip(Exception):
    pass


def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def fallocate(fd, mode, offset, length):
    call("fallocate", fd, mode, ctypes.c_long(offset), ctypes.c_long(length))


def renameat2(old, new, flags):
    call("renameat2", AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags)


def name_it(fd, path):
    call("linkat", AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW)


def fails(number, function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        assert error.errno == number, f"{error}, not {errno.errorcode[number]}"
    else:
        raise AssertionError(f"no {errno.errorcode[number]}")


def new(path, flags=0, data=b""):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o644)
    if data:
        assert os.pwrite(fd, data, 0) == len(data)
    return fd


def same(got, expected):
    assert got == expected, f"{got!r}, not {expected!r}"


def pattern(length, seed=1):
    return random.Random(seed).randbytes(length)


def blocks(fd):
    """Of 512 bytes, that the file takes up."""
    if not KERNEL:
        return os.fstat(fd).st_blocks
    # The kernel's own count is late; this asks the daemon.
    AT_STATX_FORCE_SYNC, STATX_BLOCKS, BLOCKS_AT = 0x2000, 0x400, 48
    answer = ctypes.create_string_buffer(256)
    call("statx", fd, b"", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BLOCKS, answer)
    return struct.unpack_from("Q", answer, BLOCKS_AT)[0]


def segments(fd):
    """Data and holes, in order, to the end of the file."""
    found, at, end = [], 0, os.fstat(fd).st_size
    while at < end:
        hole = os.lseek(fd, at, os.SEEK_HOLE)
        if hole > at:
            found.append(("data", at, hole))
        if hole == end:
            break
        try:
            at = os.lseek(fd, hole, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO
            at = end
        found.append(("hole", hole, at))
    return found


# ---- files without a name -----------------------------------------------------------------------------------------------


@case()
def temporary_files(d):
    fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"contents")
    same((os.fstat(fd).st_nlink, os.listdir(d)), (0, []))
    name_it(fd, f"{d}/name")
    same((os.fstat(fd).st_nlink, open(f"{d}/name").read()), (1, "contents"))
    os.close(fd)
    fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)
    call("linkat", fd, b"", AT_FDCWD, f"{d}/second".encode(), AT_EMPTY_PATH)
    same(os.stat(f"{d}/second").st_nlink, 1)
    fd = os.open(d, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    fails(errno.ENOENT, name_it, fd, f"{d}/third")
    fails(errno.EINVAL, os.open, d, os.O_TMPFILE | os.O_RDONLY, 0o600)
    fd = os.open(f"{d}/name", os.O_RDWR)
    os.unlink(f"{d}/name")
    fails(errno.ENOENT, name_it, fd, f"{d}/again")
    same(os.pread(fd, 100, 0), b"contents")


# ---- ranges -------------------------------------------------------------------------------------------------------------


@case()
def allocate(d):
    fd = new(f"{d}/f", data=b"head")
    fallocate(fd, 0, 0, 1 << 20)
    seen = os.fstat(fd)
    same(seen.st_size, 1 << 20)
    assert seen.st_blocks * 512 >= 1 << 20, f"{seen.st_blocks} blocks"
    same(os.pread(fd, 1 << 21, 0), b"head" + bytes((1 << 20) - 4))
    fallocate(fd, KEEP_SIZE, 1 << 20, 1 << 20)
    seen = os.fstat(fd)
    same(seen.st_size, 1 << 20)
    assert seen.st_blocks * 512 >= 2 << 20, f"{seen.st_blocks} blocks behind the end as well"
    os.fsync(fd)
    assert os.fstat(fd).st_blocks * 512 >= 2 << 20, "after a sync too"
    os.pwrite(fd, b"tail", (2 << 20) - 4)
    same(os.pread(fd, PAGE, (2 << 20) - PAGE), bytes(PAGE - 4) + b"tail")
    os.posix_fallocate(fd, 0, 3 << 20)
    same(os.fstat(fd).st_size, 3 << 20)
    same(os.pread(fd, 4, 0), b"head")
    for offset, length, number in [(0, 0, errno.EINVAL), (-1, 1, errno.EINVAL), (0, 1 << 45, errno.EFBIG)]:
        fails(number, fallocate, fd, 0, offset, length)
    fails(errno.EBADF, fallocate, os.open(f"{d}/f", os.O_RDONLY), 0, 0, 1)
    read, _ = os.pipe()
    fails(errno.EBADF, fallocate, read, 0, 0, 1)
    fails(errno.EOPNOTSUPP, fallocate, fd, PUNCH, 0, 1)


@case()
def punch_and_zero(d):
    data = bytearray(pattern(20 * PAGE))
    fd = new(f"{d}/f", data=data)
    os.fsync(fd)

    def change(mode, offset, length):
        fallocate(fd, mode, offset, length)
        if mode & ~KEEP_SIZE in (PUNCH, ZERO):
            end = min(offset + length, len(data))
            data[offset:end] = bytes(max(end - offset, 0))
            if not mode & KEEP_SIZE and offset + length > len(data):
                data.extend(bytes(offset + length - len(data)))
        same(os.fstat(fd).st_size, len(data))
        same(os.pread(fd, len(data) + PAGE, 0), bytes(data))

    before = blocks(fd)
    change(PUNCH | KEEP_SIZE, 2 * PAGE, 4 * PAGE)
    os.fsync(fd)
    same(before - blocks(fd), 4 * 8)
    expected = [("data", 0, 2 * PAGE), ("hole", 2 * PAGE, 6 * PAGE), ("data", 6 * PAGE, 20 * PAGE)]
    same(segments(fd)[:3], [("data", 0, 20 * PAGE)] if KERNEL else expected)
    change(PUNCH | KEEP_SIZE, 7 * PAGE + 100, 300)
    change(PUNCH | KEEP_SIZE, 8 * PAGE - 5, PAGE + 10)
    change(PUNCH | KEEP_SIZE, 19 * PAGE, 100 * PAGE)
    change(ZERO, 10 * PAGE + 1, 3 * PAGE)
    change(ZERO | KEEP_SIZE, 19 * PAGE + 7, 40 * PAGE)
    change(ZERO, 19 * PAGE + 7, 4 * PAGE)
    os.fsync(fd)
    same(os.pread(fd, len(data), 0), bytes(data))
    before = blocks(fd)
    fallocate(fd, ZERO | KEEP_SIZE, 0, 2 * PAGE)
    assert blocks(fd) >= before, "a zeroed range keeps its room"


@case()
def data_and_holes(d):
    fd = new(f"{d}/f")
    os.pwrite(fd, b"x", 10 * PAGE)
    os.pwrite(fd, b"y", 1 << 30)
    end = (1 << 30) + 1
    if KERNEL:
        # All of it is data, as the kernel does not say what it still has.
        for _ in range(2):
            same(segments(fd), [("data", 0, end)])
            same((os.lseek(fd, 3, os.SEEK_DATA), os.lseek(fd, 3, os.SEEK_HOLE)), (3, end))
            for what in (os.SEEK_DATA, os.SEEK_HOLE):
                fails(errno.ENXIO, os.lseek, fd, end, what)
            os.fsync(fd)
        return
    expected = [
        ("hole", 0, 10 * PAGE),
        ("data", 10 * PAGE, 11 * PAGE),
        ("hole", 11 * PAGE, 1 << 30),
        ("data", 1 << 30, end),
    ]
    same(segments(fd), expected)
    os.fsync(fd)
    same(segments(fd), expected)
    os.pwrite(fd, b"z", 20 * PAGE)
    same(os.lseek(fd, 11 * PAGE, os.SEEK_DATA), 20 * PAGE)
    same(os.lseek(fd, 10 * PAGE + 3, os.SEEK_DATA), 10 * PAGE + 3)
    same(os.lseek(fd, 3, os.SEEK_HOLE), 3)
    os.ftruncate(fd, 2 << 30)
    same(os.lseek(fd, end + PAGE, os.SEEK_HOLE), end + PAGE)
    fails(errno.ENXIO, os.lseek, fd, end + PAGE, os.SEEK_DATA)
    for what in (os.SEEK_DATA, os.SEEK_HOLE):
        fails(errno.ENXIO, os.lseek, fd, 2 << 30, what)
    fallocate(fd, PUNCH | KEEP_SIZE, 10 * PAGE, PAGE)
    same(os.lseek(fd, 0, os.SEEK_DATA), 20 * PAGE)


def copy(source, target, length, at_source, at_target):
    copied = 0
    while copied < length:
        count = os.copy_file_range(source, target, length - copied, at_source + copied, at_target + copied)
        if count == 0:
            break
        copied += count
    return copied


@case()
def copies(d):
    data = pattern(3 << 20)
    source = new(f"{d}/source", data=data)
    target = new(f"{d}/target")
    same(copy(source, target, len(data), 0, 0), len(data))
    same(os.pread(target, len(data) + 1, 0), data)
    expected = bytearray(data)
    for length, at_source, at_target in [
        (100_000, 5000, 1_000_001),
        (200_000, 4096 + 17, 8192 + 17),
        (1 << 20, 1 << 20, 0),
        (10, 3, 5),
        (70_000, len(data) - 70_000, len(data) + 12_345),
    ]:
        same(copy(source, target, length, at_source, at_target), length)
        if at_target + length > len(expected):
            expected.extend(bytes(at_target + length - len(expected)))
        expected[at_target : at_target + length] = data[at_source : at_source + length]
        same(os.pread(target, len(expected) + 1, 0), bytes(expected))
    os.fsync(target)
    same(os.pread(target, len(expected) + 1, 0), bytes(expected))
    same(os.copy_file_range(source, target, 10, len(data), 0), 0)
    # Within one file.
    same(copy(source, source, 1 << 20, 0, 4 << 20), 1 << 20)
    same(os.pread(source, 1 << 20, 4 << 20), data[: 1 << 20])
    fails(errno.EINVAL, os.copy_file_range, source, source, 100, 0, 50)
    # Neither file changes with the other afterwards.
    os.pwrite(source, b"changed", 0)
    same(os.pread(target, 7, 0), bytes(expected[:7]))


@case()
def copies_share(d):
    if os.environ.get("FS", "holdfast") != "holdfast":
        raise Skip("ext4 shares no blocks")
    size = 64 << 20
    source = new(f"{d}/source")
    for at in range(0, size, 1 << 20):
        os.pwrite(source, pattern(1 << 20, at), at)
    os.fsync(source)
    free = lambda: os.statvfs(d).f_bfree * os.statvfs(d).f_frsize
    before = free()
    targets = [new(f"{d}/target{number}") for number in range(4)]
    for target in targets:
        same(copy(source, target, size, 0, 0), size)
        os.fsync(target)
        same(blocks(target), blocks(source))
    assert before - free() < size // 4, f"four copies of {size} bytes take {before - free()}"
    for at in range(0, size, 1 << 20):
        same(os.pread(targets[3], 1 << 20, at), pattern(1 << 20, at))


# ---- sizes, names, links ------------------------------------------------------------------------------------------------


@case()
def largest_file(d):
    fd = new(f"{d}/f")
    same(os.pwrite(fd, b"end", SIZE_MAX - 3), 3)
    same(os.fstat(fd).st_size, SIZE_MAX)
    same(os.pread(fd, 100, SIZE_MAX - 5), b"\0\0end")
    fails(errno.EFBIG, os.ftruncate, fd, SIZE_MAX + 1)
    if KERNEL:
        # It takes what the daemon then refuses.
        late = new(f"{d}/late")
        same(os.pwrite(late, b"x", SIZE_MAX), 1)
        fails(errno.EFBIG, os.fsync, late)
    else:
        fails(errno.EFBIG, os.pwrite, fd, b"x", SIZE_MAX)
        same(os.pwrite(fd, b"12345", SIZE_MAX - 2), 2)
        same(os.lseek(fd, 0, os.SEEK_DATA), SIZE_MAX - PAGE)
    os.fsync(fd)
    assert blocks(fd) <= 64
    os.ftruncate(fd, 1 << 40)
    same(segments(fd), [("data" if KERNEL else "hole", 0, 1 << 40)])
    os.ftruncate(fd, SIZE_MAX)
    same(os.pread(fd, 100, SIZE_MAX - 5), bytes(5))
    same(os.lseek(fd, 0, os.SEEK_END), SIZE_MAX)


@case()
def names(d):
    long = "n" * 255
    os.close(new(f"{d}/{long}"))
    same(os.listdir(d), [long])
    for path in (f"{d}/{long}x", f"{d}/{'ä' * 128}"):
        fails(errno.ENAMETOOLONG, os.open, path, os.O_CREAT | os.O_RDWR)
    odd = bytes(number for number in range(1, 256) if number != ord("/"))
    os.mkdir(os.fsencode(d) + b"/" + odd)
    assert odd in os.listdir(os.fsencode(d))
    # As long as a path can be: 4095 bytes.
    here = os.getcwd()
    os.chdir(d)
    depth = 0
    while len(os.getcwd()) + 202 < 4095:
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
        depth += 1
    path = os.getcwd()
    path += "/" + "f" * (4095 - len(path) - 1)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR))
    os.rename(path, path[:-1] + "g")
    fails(errno.ENAMETOOLONG, os.stat, path + "x")
    os.unlink(path[:-1] + "g")
    for _ in range(depth):
        os.chdir("..")
        os.rmdir("d" * 200)
    os.chdir(here)


@case()
def renames(d):
    for name in "ab":
        os.close(new(f"{d}/{name}", data=name.encode()))
    fails(errno.EEXIST, renameat2, f"{d}/a", f"{d}/b", NOREPLACE)
    renameat2(f"{d}/a", f"{d}/c", NOREPLACE)
    renameat2(f"{d}/b", f"{d}/c", EXCHANGE)
    same((open(f"{d}/b").read(), open(f"{d}/c").read()), ("a", "b"))
    fails(errno.ENOENT, renameat2, f"{d}/b", f"{d}/none", EXCHANGE)
    fails(errno.EINVAL, renameat2, f"{d}/b", f"{d}/c", EXCHANGE | NOREPLACE)
    os.mkdir(f"{d}/below")
    renameat2(f"{d}/b", f"{d}/below", EXCHANGE)
    assert stat.S_ISDIR(os.stat(f"{d}/b").st_mode)
    renameat2(f"{d}/c", f"{d}/b/moved", WHITEOUT)
    seen = os.lstat(f"{d}/c")
    same((stat.S_ISCHR(seen.st_mode), seen.st_rdev, open(f"{d}/b/moved").read()), (True, 0, "b"))
    os.unlink(f"{d}/c")


@case()
def special_files(d):
    os.mknod(f"{d}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    same(os.stat(f"{d}/null").st_rdev, os.makedev(1, 3))
    os.mknod(f"{d}/block", stat.S_IFBLK | 0o600, os.makedev(0xABC, 0x12345))
    seen = os.stat(f"{d}/block")
    same((os.major(seen.st_rdev), os.minor(seen.st_rdev)), (0xABC, 0x12345))
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{d}/socket")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(f"{d}/socket")
    server.accept()[0].sendall(b"hello")
    same(client.recv(10), b"hello")
    os.mkfifo(f"{d}/pipe")
    writer = subprocess.Popen(["sh", "-c", f"echo through >'{d}/pipe'"])
    same(open(f"{d}/pipe").read(), "through\n")
    writer.wait()


@case()
def link_limit(d):
    if os.environ.get("FS", "holdfast") != "holdfast":
        raise Skip("the limit is ours")
    os.close(new(f"{d}/f"))
    for number in range(64_999):
        os.link(f"{d}/f", f"{d}/{number}")
    same(os.stat(f"{d}/f").st_nlink, 65_000)
    fails(errno.EMLINK, os.link, f"{d}/f", f"{d}/more")
    os.unlink(f"{d}/0")
    os.link(f"{d}/f", f"{d}/more")


@case()
def attribute_limits(d):
    path = f"{d}/f"
    os.close(new(path))
    attribute = lambda name, value, flags=0: os.setxattr(path, name, value, flags)
    fails(errno.E2BIG, attribute, "user.a", bytes(65_537))
    fails(errno.ERANGE, attribute, "user." + "n" * 251, b"")
    fails(errno.EOPNOTSUPP, attribute, "other.a", b"")
    fails(errno.ENODATA, attribute, "user.a", b"", os.XATTR_REPLACE)
    attribute("user." + "n" * 250, b"1", os.XATTR_CREATE)
    fails(errno.EEXIST, attribute, "user." + "n" * 250, b"1", os.XATTR_CREATE)
    attribute("user.a", b"12345")
    buffer = ctypes.create_string_buffer(100)
    for size, expected in [(0, 5), (5, 5), (4, -1)]:
        same(libc.getxattr(path.encode(), b"user.a", buffer, size), expected)
    same(ctypes.get_errno(), errno.ERANGE)
    fails(errno.ENODATA, os.getxattr, path, "user.b")
    fails(errno.ENODATA, os.removexattr, path, "user.b")

    def fill():
        for number in range(40):
            attribute(f"user.large{number}", bytes(60_000))

    fails(errno.ENOSPC, fill)
    same(os.getxattr(path, "user.a"), b"12345")


# ---- times --------------------------------------------------------------------------------------------------------------


@case()
def times(d):
    NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2

    def utimens(atime, mtime):
        value = struct.pack("qqqq", *atime, *mtime)
        call("utimensat", AT_FDCWD, f"{d}/f".encode(), value, 0)

    start = time.time_ns() - 20_000_000
    fd = new(f"{d}/f", data=b"x")
    utimens((1, 2), (3, 4))
    seen = os.stat(fd)
    same((seen.st_atime_ns, seen.st_mtime_ns), (1_000_000_002, 3_000_000_004))
    utimens((0, OMIT), (-5, 6))
    seen = os.stat(fd)
    same((seen.st_atime_ns, seen.st_mtime_ns), (1_000_000_002, -5_000_000_000 + 6))
    utimens((0, NOW), (0, OMIT))
    seen = os.stat(fd)
    assert seen.st_atime_ns >= start and seen.st_mtime_ns < 0
    before = seen.st_ctime_ns
    utimens((0, OMIT), (0, OMIT))
    same(os.stat(fd).st_ctime_ns, before)
    fails(errno.EINVAL, utimens, (0, 1_000_000_000), (0, 0))
    birth = int(subprocess.check_output(["stat", "-c", "%W", f"{d}/f"]))
    assert start // 10**9 <= birth <= time.time(), f"birth {birth}"
    os.pwrite(fd, b"y", 0)
    os.utime(fd, (0, 0))
    same(int(subprocess.check_output(["stat", "-c", "%W", f"{d}/f"])), birth)


@case()
def access_times(d):
    fd = new(f"{d}/f", data=b"x")
    day_ns = 86_400 * 10**9
    now = time.time_ns()

    def read_after(atime, mtime, flags=0, kept=False):
        if KERNEL and not kept:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.utime(fd, ns=(atime, mtime))
        again = os.open(f"{d}/f", os.O_RDONLY | flags)
        os.pread(again, 1, 0)
        os.close(again)
        return os.stat(fd).st_atime_ns

    if KERNEL:
        # What it has is read without the daemon, which notes the time when it is asked for a page.
        same(read_after(now - 2 * day_ns, now - 3 * day_ns, kept=True), now - 2 * day_ns)
    assert read_after(now - 2 * day_ns, now - 3 * day_ns) > now - day_ns, "older than a day"
    assert read_after(now - 3600 * 10**9, now) > now - 60 * 10**9, "older than the last change"
    same(read_after(now - 2 * day_ns, now - day_ns, os.O_NOATIME), now - 2 * day_ns)
    os.mkdir(f"{d}/directory")
    os.utime(f"{d}/directory", ns=(0, 0))
    os.listdir(f"{d}/directory")
    assert os.stat(f"{d}/directory").st_atime_ns > now - 60 * 10**9


# ---- several users of one file ------------------------------------------------------------------------------------------


@case()
def locks(d):
    path = f"{d}/f"
    os.close(new(path, data=bytes(100)))
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    fcntl.flock(first, fcntl.LOCK_EX)
    fails(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(first, fcntl.LOCK_UN)
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(second, fcntl.LOCK_UN)
    # POSIX locks belong to processes.
    fcntl.lockf(first, fcntl.LOCK_EX, 10, 0)
    script = (
        "import fcntl, os, sys\n"
        f"fd = os.open({path!r}, os.O_RDWR)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 50)\n"
        "try: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)\n"
        "except BlockingIOError: sys.exit(7)\n"
    )
    same(subprocess.run([sys.executable, "-c", script]).returncode, 7)
    waiter = subprocess.Popen([sys.executable, "-c", script.replace(" | fcntl.LOCK_NB", "")])
    time.sleep(0.3)  # it is to wait for the lock; that it does cannot be seen otherwise
    same(waiter.poll(), None)
    fcntl.lockf(first, fcntl.LOCK_UN, 10, 0)
    same(waiter.wait(20), 0)
    # Those of an open file description.
    lock = lambda kind: struct.pack("hhqqi4x", kind, 0, 0, 10, 0)
    fcntl.fcntl(first, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK))
    fails(errno.EAGAIN, fcntl.fcntl, second, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK))
    os.close(first)
    fcntl.fcntl(second, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK))


@case()
def appending(d):
    path = f"{d}/f"
    os.close(new(path))
    script = (
        "import os, sys\n"
        f"fd = os.open({path!r}, os.O_WRONLY | os.O_APPEND)\n"
        "for number in range(500): os.write(fd, (sys.argv[1] + '%07d\\n' % number).encode())\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, name]) for name in "abcd"]
    same([writer.wait() for writer in writers], [0] * 4)
    lines = open(path).read().split("\n")[:-1]
    same(sorted(lines), sorted(f"{name}{number:07}" for name in "abcd" for number in range(500)))


@case()
def direct(d):
    fd = new(f"{d}/f", os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 20)
    buffer.write(pattern(1 << 20))
    same(os.pwritev(fd, [buffer], 0), 1 << 20)
    same(os.pwritev(fd, [buffer], 1 << 20), 1 << 20)
    other = os.open(f"{d}/f", os.O_RDWR)
    same(os.pread(other, 2 << 20, 0), pattern(1 << 20) * 2)
    os.pwrite(other, b"through", 5)
    again = mmap.mmap(-1, PAGE)
    same(os.preadv(fd, [again], 0), PAGE)
    same(again[5:12], b"through")


@case()
def mapped(d):
    fd = new(f"{d}/f", data=pattern(10 * PAGE))
    view = mmap.mmap(fd, 10 * PAGE)
    same(view[:], pattern(10 * PAGE))
    view[100:104] = b"mmap"
    view.flush()
    same(os.pread(fd, 4, 100), b"mmap")
    os.pwrite(fd, b"file", 200)
    same(view[200:204], b"file")


# ---- directories --------------------------------------------------------------------------------------------------------


@case()
def reading_while_it_changes(d):
    """Entries that stay are seen exactly once, whatever comes and goes."""
    stay = {f"stay{number:05}" for number in range(3000)}
    for name in stay:
        os.close(os.open(f"{d}/{name}", os.O_CREAT | os.O_WRONLY))
    stop = threading.Event()
    errors = []

    def change(seed):
        rng = random.Random(seed)
        there = []
        try:
            while not stop.is_set():
                if there and rng.random() < 0.5:
                    os.unlink(there.pop(rng.randrange(len(there))))
                else:
                    name = f"{d}/go{seed}.{rng.randrange(1 << 40):x}{'x' * rng.randrange(200)}"
                    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
                    there.append(name)
        except OSError as error:
            errors.append(error)

    changers = [threading.Thread(target=change, args=(seed,)) for seed in (1, 2)]
    for changer in changers:
        changer.start()
    try:
        for _ in range(10):
            seen = [name for name in os.listdir(d) if name.startswith("stay")]
            same((len(seen), set(seen)), (len(stay), stay))
    finally:
        stop.set()
        for changer in changers:
            changer.join()
    same(errors, [])


@case()
def positions_in_directories(d):
    names = {f"entry{number}" for number in range(2000)}
    for name in names:
        os.mkdir(f"{d}/{name}")
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long
    stream = ctypes.c_void_p(libc.opendir(d.encode()))

    def following():
        entry = libc.readdir(stream)
        if not entry:
            return None
        length = struct.unpack("H", ctypes.string_at(entry + 16, 2))[0]
        return ctypes.string_at(entry + 19, length - 19).split(b"\0")[0].decode()

    order, positions = [], []
    while True:
        positions.append(libc.telldir(stream))
        name = following()
        if name is None:
            break
        order.append(name)
    same((len(order), set(order)), (2002, names | {".", ".."}))
    # Half of it goes; positions in front of what stays are still right.
    rng = random.Random(5)
    gone = set(rng.sample(sorted(names), 1000))
    for name in gone:
        os.rmdir(f"{d}/{name}")
    rest = [name for name in order if name not in gone]
    for at in rng.sample(range(len(order)), 200):
        libc.seekdir(stream, ctypes.c_long(positions[at]))
        expected = next((name for name in order[at:] if name not in gone), None)
        got = following()
        while got in gone:  # read into the library's buffer before it went
            got = following()
        same(got, expected)
    libc.rewinddir(stream)
    again = []
    while (name := following()) is not None:
        again.append(name)
    same(again, rest)
    libc.closedir(stream)


# ---- what is the same after a remount -----------------------------------------------------------------------------------


@case()
def kept(d):
    fd = new(f"{d}/ranges")
    os.pwrite(fd, pattern(PAGE), 5 * PAGE)
    fallocate(fd, KEEP_SIZE, 0, 40 * PAGE)
    fallocate(fd, PUNCH | KEEP_SIZE, PAGE, PAGE)
    fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"named")
    name_it(fd, f"{d}/named")


@case("after")
def kept_after(d):
    d = d.replace("kept_after", "kept")
    fd = os.open(f"{d}/ranges", os.O_RDWR)
    same(os.pread(fd, 100 * PAGE, 0), bytes(5 * PAGE) + pattern(PAGE))
    assert os.fstat(fd).st_blocks >= 39 * 8, f"{os.fstat(fd).st_blocks} blocks"
    same((open(f"{d}/named").read(), os.stat(f"{d}/named").st_nlink), ("named", 1))


# ---- what a crash leaves behind; large directories -----------------------------------------------------------------------


@case("orphans")
def orphans(d):
    """Files without a name, 64 MiB each and durable; open until the file system is gone under them."""
    held = [os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600), new(f"{d}/unlinked")]
    os.unlink(f"{d}/unlinked")
    for fd in held:
        for at in range(0, 64 << 20, 1 << 20):
            os.pwrite(fd, pattern(1 << 20, at), at)
        os.fsync(fd)
    print("ok files without a name are open", flush=True)
    try:
        while True:
            os.fstat(held[0])
            os.fsync(held[0])
            time.sleep(0.1)  # until the daemon is killed
    except OSError:
        os._exit(0)


@case("entries")
def entries(d):
    count = int(os.environ["ENTRIES"])
    step = count // 10
    rates = []
    for first in range(0, count, step):
        start = time.monotonic()
        for number in range(first, first + step):
            os.close(os.open(f"{d}/entry-{number}", os.O_CREAT | os.O_WRONLY))
        rates.append(step / (time.monotonic() - start))
    told = [f"created {rates[0]:.0f}/s at first, {rates[-1]:.0f}/s at last"]
    # A machine that does other things slows all of it; a directory that is searched from end to end, a hundred times.
    assert min(rates) > max(rates) / 10, f"{rates}"

    def timed(what, amount, function):
        start = time.monotonic()
        function()
        told.append(f"{what} {amount / (time.monotonic() - start):.0f}/s")

    order = random.Random(1).sample(range(count), min(count, 50_000))
    timed("looked up", len(order), lambda: [os.stat(f"{d}/entry-{number}") for number in order])
    seen = []
    timed("read", count, lambda: seen.extend(os.listdir(d)))
    same((len(seen), len(set(seen))), (count, count))
    timed("removed", count, lambda: [os.unlink(f"{d}/entry-{number}") for number in range(count)])
    same(os.listdir(d), [])
    print(f"ok {count} entries in a directory: {', '.join(told)}", flush=True)


# ---- file handles ---------------------------------------------------------------------------------------------------------


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]


def handle_of(path):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    call("name_to_handle_at", AT_FDCWD, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0)
    return handle


def open_handle(d, handle):
    mount = os.open(d, os.O_RDONLY)
    try:
        fd = libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return fd
    finally:
        os.close(mount)


def forget_names():
    with open("/proc/sys/vm/drop_caches", "w") as knob:
        knob.write("2")


def read_handle(d, handle):
    fd = open_handle(d, handle)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


@case()
def file_handles(d):
    os.close(new(f"{d}/file", data=b"found by its handle"))
    os.mkdir(f"{d}/directory")
    os.close(new(f"{d}/gone"))
    file, directory, gone = (handle_of(f"{d}/{name}") for name in ("file", "directory", "gone"))
    os.unlink(f"{d}/gone")
    os.rename(f"{d}/file", f"{d}/directory/elsewhere")
    forget_names()
    same(read_handle(d, file), b"found by its handle")
    fd = open_handle(d, directory)
    same(os.listdir(fd), ["elsewhere"])
    os.close(fd)
    fails(errno.ESTALE, open_handle, d, gone)
    with open(f"{d}/handle", "wb") as out:
        out.write(bytes(file))


@case("after")
def file_handles_after(d):
    d = d.replace("file_handles_after", "file_handles")
    handle = Handle.from_buffer_copy(open(f"{d}/handle", "rb").read())
    same(read_handle(d, handle), b"found by its handle")


def main():
    phase, root = sys.argv[1:]
    for function in CASES[phase]:
        name = function.__name__.replace("_", " ")
        d = f"{root}/{function.__name__}"
        try:
            if phase != "after":
                os.mkdir(d)
            function(d)
            print(f"ok {name}", flush=True)
        except Skip as reason:
            print(f"skip {name}: {reason}", flush=True)
        except Exception as error:
            line = error.__traceback__
            while line.tb_next and line.tb_next.tb_frame.f_code.co_filename == __file__:
                line = line.tb_next
            text = " ".join(str(error).split())[:300]
            print(f"FAIL {name}: line {line.tb_lineno}: {type(error).__name__} {text}", flush=True)


main()
