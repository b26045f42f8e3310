"""The package against a mount: HOLDFAST_MOUNT is a directory in one, HOLDFAST_DAEMON the process that serves it, HOLDFAST the program."""

import array
import asyncio
import ctypes
import errno
import fcntl
import functools
import io
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
import zipfile
from pathlib import Path

import holdfast

MOUNT = Path(os.environ["HOLDFAST_MOUNT"])
CONTENT = bytes(n * 31 % 251 for n in range(200_000))


def flip_in_pool(page: bytes) -> None:
    """Flips a bit of the page in the daemon's memory that has these bytes."""
    descriptors = Path(f"/proc/{os.environ['HOLDFAST_DAEMON']}/fd").iterdir()
    pool = next(path for path in descriptors if "holdfast-arena" in os.readlink(path))
    flipped = 0
    with open(pool, "r+b", buffering=0) as file:
        for frame in range(os.fstat(file.fileno()).st_size // 4096):
            if os.pread(file.fileno(), 4096, frame * 4096) == page:
                os.pwrite(file.fileno(), bytes([page[77] ^ 8]), frame * 4096 + 77)
                flipped += 1
    assert flipped, "the page is in memory"


def sync() -> None:
    subprocess.run([os.environ["HOLDFAST"], "sync", MOUNT], check=True, stdout=subprocess.DEVNULL)


class Files(unittest.TestCase):
    def path(self) -> Path:
        return MOUNT / self.id().rpartition(".")[2]

    def test_it_is_as_the_built_in_files_are(self):
        # Each step on a file of ours and on one of Python's; results and contents are the same.
        ours, theirs = self.path(), self.path().with_suffix(".builtin")
        steps = [
            ("w", lambda f: (f.write("häl\nlo\n" * 9000), f.tell())),
            ("r", lambda f: (f.read(7), f.readline(), f.readlines(50), f.read())),
            ("r+", lambda f: (f.readline(), f.seek(0, 2), f.write("end"), f.flush(), f.seek(5), f.read(3))),
            ("rb", lambda f: (f.read(10), f.peek(1)[:1], f.seek(-5, 2), f.read(), f.read(), f.tell())),
            ("r+b", lambda f: (f.seek(50_000), f.write(CONTENT), f.truncate(120_000), f.seek(49_999), f.read(9000))),
            ("w+b", lambda f: (f.write(CONTENT), f.seek(0), f.read(), f.readinto(bytearray(5)))),
            ("rb", lambda f: [len(line) for line in f]),
            ("rb", lambda f: (f.readable(), f.writable(), f.seekable(), f.closed, f.raw.mode)),
        ]
        for mode, step in steps:
            encoding = {} if "b" in mode else {"encoding": "utf-8"}
            with holdfast.open(ours, mode, **encoding) as f:
                got = step(f)
            with open(theirs, mode, **encoding) as f:
                self.assertEqual(got, step(f), mode)
            self.assertEqual(ours.read_bytes(), theirs.read_bytes(), mode)

    def test_raw_files(self):
        with holdfast.FileIO(self.path(), "w+") as f:
            self.assertIsInstance(f, io.RawIOBase)
            self.assertEqual(f.write(CONTENT), len(CONTENT))
            self.assertEqual(f.pread(5000, 77), CONTENT[77:5077])
            self.assertEqual(f.pread(1 << 40, 199_990), CONTENT[199_990:])
            self.assertEqual(f.pread(5, 1 << 40), b"")
            self.assertEqual(f.pwrite(memoryview(b"xyz")[1:], 4095), 2)
            self.assertEqual((f.tell(), f.pread(2, 4095)), (200_000, b"yz"))
            self.assertEqual((f.seek(10), f.read(4), f.seek(2, 1)), (10, CONTENT[10:14], 16))
            self.assertEqual(f.readall()[-5:], CONTENT[-5:])
            buffer = bytearray(10)
            self.assertEqual((f.readinto(buffer), f.pread_into(memoryview(buffer)[5:], 0)), (0, 5))
            self.assertEqual(buffer[5:], CONTENT[:5])
            self.assertEqual((f.truncate(5), f.pread(10, 0), f.bad_blocks()), (5, CONTENT[:5], []))
            f.fsync()
            with self.assertRaises(TypeError):
                f.pread_into(b"constant", 0)
            with self.assertRaises(TypeError):
                f.write("text")
        with self.assertRaises(ValueError):
            f.read()
        with holdfast.FileIO(os.open(self.path(), os.O_RDONLY)) as f:
            self.assertEqual(f.read(), CONTENT[:5])
            with self.assertRaises(io.UnsupportedOperation):
                f.write(b"x")

    def test_raw_files_do_what_those_of_io_do(self):
        # The same script over both, on files with the same contents; what is raised is told as well.
        def outcome(call):
            try:
                return call()
            except Exception as error:
                return type(error), getattr(error, "errno", None)

        def modes(FileIO, path):
            words = "r w x a r+ w+ x+ a+ +r rb br+ rbb ww rw + b t rt r++ U".split()
            for number, mode in enumerate([*words, "", 5, None]):
                made = path.with_name(f"{path.name}-{number}")
                if "x" not in str(mode):
                    made.write_bytes(CONTENT[:100])
                f = outcome(lambda: FileIO(made, mode))
                if not isinstance(f, io.RawIOBase):
                    yield mode, f
                    continue
                with f:
                    yield mode, f.mode, f.tell(), f.readable(), f.writable(), f.seekable(), f.isatty(), f.closefd
                    yield f.name == made, os.get_inheritable(f.fileno()), fcntl.fcntl(f, fcntl.F_GETFL) & os.O_APPEND
                    yield outcome(lambda: f.read(5)), outcome(lambda: f.read(None)), outcome(lambda: f.read(0))
                    yield outcome(lambda: f.write(b"written")), f.tell(), outcome(lambda: f.truncate()), f.tell()
                yield made.read_bytes(), f.closed, outcome(f.tell), outcome(f.fileno), outcome(f.readable)

        def descriptors(FileIO, path):
            path.write_bytes(CONTENT)
            fd = os.open(path, os.O_RDWR)
            os.lseek(fd, 1000, os.SEEK_SET)
            with FileIO(fd, "r+", closefd=False) as f:
                yield f.tell(), f.read(10), os.lseek(fd, 0, os.SEEK_CUR), f.name == fd, f.closefd
                os.lseek(fd, 50, os.SEEK_SET)
                yield f.tell(), f.readinto(memoryview(bytearray(20))[5:]), f.tell()
                f.seek(7)
                yield os.read(fd, 3), f.tell(), f.write(b"xyz"), os.lseek(fd, 0, os.SEEK_CUR), len(f.readall())
                other = os.dup(fd)
                yield f.seek(-5, os.SEEK_END), os.read(other, 3), f.read(), f.read()
                os.close(other)
            yield os.fstat(fd).st_size
            with FileIO(fd, "w", closefd=False) as f:
                yield f.tell(), f.mode, os.fstat(fd).st_size
            with io.TextIOWrapper(io.BufferedReader(FileIO(fd)), "latin-1") as f:
                f.seek(0)
                yield [len(line) for line in f]
            yield outcome(lambda: os.fstat(fd))
            with FileIO(os.open(path, os.O_WRONLY | os.O_APPEND), "w") as f:
                f.seek(0)
                yield f.write(b"at the end"), f.tell()
            with FileIO(os.open(path, os.O_WRONLY), "a") as f:
                yield f.tell()
            with FileIO(path, "a") as f:
                # Another program that is given it appends as well.
                subprocess.run(["sh", "-c", "echo appended; echo twice"], stdout=f, check=True)
                yield f.write(b"end"), f.tell()
            yield path.read_bytes()

        def places(FileIO, path):
            path.write_bytes(CONTENT)
            with FileIO(path, "r+") as f:
                for offset, whence in [(5, 0), (5, 1), (-5, 2), (-1, 0), (0, 9), (1 << 63, 0), (10, 3), (10, 4), (1.5, 0)]:
                    yield offset, whence, outcome(lambda: f.seek(offset, whence)), f.tell()
                yield f.seek(1 << 40), f.read(5), f.readall(), f.seek(CONTENT.index(b"\n")), f.readline(), f.tell()
                for size in [-1, 1 << 63, "5", 1.5, 100]:
                    yield outcome(lambda: f.truncate(size)), os.fstat(f.fileno()).st_size
                yield outcome(lambda: f.write("text")), outcome(lambda: f.readinto(b"bytes")), outcome(lambda: f.read("5"))
            for mode in ["r", "w"]:
                with FileIO(path, mode) as f:
                    yield outcome(lambda: f.truncate(1)), outcome(lambda: f.read(1)), outcome(lambda: f.readinto(bytearray(1)))
                    yield outcome(lambda: f.write(b"bytes")), outcome(lambda: f.read(-2))

        def openers(FileIO, path):
            path.write_bytes(CONTENT[:50])
            directory = os.open(path.parent, os.O_RDONLY)
            given = []

            def opener(name, flags):
                given.append((name == path.name, flags & ~os.O_TRUNC))
                return os.open(name, flags, dir_fd=directory)

            for mode in ["r", "r+", "a", "a+", "w", "w+", "x"]:
                with_it = outcome(lambda: FileIO(path.name, mode, opener=opener))
                if isinstance(with_it, io.RawIOBase):
                    with with_it as f:
                        yield mode, f.tell(), os.get_inheritable(f.fileno()), os.fstat(f.fileno()).st_size
                else:
                    yield mode, with_it
            os.close(directory)
            yield given
            for wrong in [lambda *_: -1, lambda *_: "3", lambda: 3]:
                yield outcome(lambda: FileIO(path, opener=wrong))

        def wrong_files(FileIO, path):
            for file in [-1, -5, 3.5, None, "a\0b", path.parent, path / "below", 999_999]:
                yield outcome(lambda: FileIO(file))
            yield outcome(lambda: FileIO(path, closefd=False))
            directory = os.open(path.parent, os.O_RDONLY)
            yield outcome(lambda: FileIO(directory, closefd=False))
            os.close(directory)

        for script in [modes, descriptors, places, openers, wrong_files]:
            got, expected = (
                list(script(FileIO, self.path().with_name(f"{script.__name__}-{number}")))
                for number, FileIO in enumerate([holdfast.FileIO, io.FileIO])
            )
            self.assertGreater(len(expected), 8, script.__name__)
            for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
                self.assertEqual(ours, theirs, f"{script.__name__}, answer {number}")

    def test_open_takes_what_the_built_in_takes(self):
        def outcome(call):
            try:
                with call() as f:
                    return type(f), f.mode, f.name, f.read(3) if f.readable() else f.tell()
            except Exception as error:
                return type(error), getattr(error, "errno", None)

        path = str(self.path())
        Path(path).write_bytes(CONTENT[:100])
        directory = os.open(MOUNT, os.O_RDONLY)
        modes = "r rt tr rb br r+ +r +rb w wt a ab+ ttr rr rw z b t".split()
        calls = [(file, mode) for file in (path, Path(path)) for mode in modes]
        calls += [(path, 5), (3.5, "r"), (None, "r"), (-1, "r"), (MOUNT, "r")]
        for file, mode in calls:
            got, expected = (outcome(lambda: made(file, mode)) for made in (holdfast.open, open))
            self.assertEqual(got, expected, (file, mode))
        ascii = {"errors": "ignore", "encoding": "ascii"}
        for more in [{"buffering": 0}, {"buffering": 1}, {"closefd": False}, {"newline": ""}, ascii]:
            for mode in ["r", "rb"]:
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    got = outcome(lambda: holdfast.open(path, mode, **more))
                    ours = [warning.category for warning in warned]
                    expected = outcome(lambda: open(path, mode, **more))
                if got[0] is holdfast.FileIO:
                    got = io.FileIO, *got[1:]
                self.assertEqual((got, ours * 2), (expected, [warning.category for warning in warned]), (mode, more))
        with holdfast.open("in the mount", "w", opener=lambda name, flags: os.open(name, flags, dir_fd=directory)) as f:
            f.write("found")
        os.close(directory)
        self.assertEqual((MOUNT / "in the mount").read_text(), "found")

    def test_places_that_there_are_not(self):
        # As os.pread and os.pwrite.
        with holdfast.FileIO(self.path(), "w+") as f:
            for call in [
                lambda pread, pwrite: pread(5, -1),
                lambda pread, pwrite: pread(-1, 0),
                lambda pread, pwrite: pread(5, 1 << 63),
                lambda pread, pwrite: pwrite(b"x", -1),
                lambda pread, pwrite: pwrite(b"x", 1 << 63),
            ]:
                theirs = functools.partial(os.pread, f.fileno()), functools.partial(os.pwrite, f.fileno())
                raised = []
                for pread, pwrite in [(f.pread, f.pwrite), theirs]:
                    with self.assertRaises((OSError, OverflowError)) as error:
                        call(pread, pwrite)
                    raised.append((type(error.exception), getattr(error.exception, "errno", None)))
                self.assertEqual(*raised)

    def test_an_error_of_the_system_says_how_much_was_done(self):
        self.path().write_bytes(CONTENT)
        with holdfast.FileIO(os.open(self.path(), os.O_RDONLY), "r+") as f, self.assertRaises(OSError) as error:
            f.pwrite(b"x", 4096)
        told = error.exception
        self.assertEqual((told.errno, told.done, told.offset), (errno.EBADF, 0, 4096))

    def test_appending(self):
        path, before = self.path(), b"before"
        path.write_bytes(before)
        size = len(before)
        with holdfast.open(path, "ab", buffering=0) as one, holdfast.open(path, "a") as other, open(path, "ab") as plain:
            self.assertEqual(one.tell(), size)
            one.seek(0)
            self.assertEqual((one.write(b"one"), one.tell()), (3, size + 3))
            plain.write(b"plain")
            plain.flush()
            other.write("other")
            other.flush()
            self.assertEqual(one.write(b"last"), 4)
            big = bytes(range(256)) * 20_000
            done = 0
            while done < len(big):
                done += one.write(big[done:])
        self.assertEqual(path.read_bytes(), before + b"oneplainotherlast" + big)
        with holdfast.open(path, "ab+") as f:
            f.write(b"end")
            f.seek(-7, os.SEEK_END)
            self.assertEqual(f.read(), big[-4:] + b"end")
        new = path.with_name("appended")
        with holdfast.open(new, "a") as f:
            f.write("made")
        self.assertEqual(new.read_bytes(), b"made")

    def test_modes(self):
        for mode in ["aa", "rw", "", "r++", "b", "z"]:
            with self.assertRaises(ValueError, msg=mode):
                holdfast.FileIO(self.path(), mode)
        with holdfast.open(self.path(), "x") as f:
            f.write("x")
        with self.assertRaises(FileExistsError):
            holdfast.open(self.path(), "x")
        with self.assertRaises(FileNotFoundError):
            holdfast.open(MOUNT / "nowhere")
        with holdfast.open(self.path(), "w") as f:
            self.assertEqual(os.fstat(f.fileno()).st_size, 0, "emptied when opened")
        link = self.path().with_suffix(".link")
        link.symlink_to("linked")
        with holdfast.open(link, "w") as f:
            f.write("y")
        self.assertEqual((MOUNT / "linked").read_text(), "y")

    def test_other_libraries_take_them(self):
        with holdfast.open(self.path(), "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("content", CONTENT)
        with holdfast.open(self.path(), "rb") as f:
            self.assertEqual(zipfile.ZipFile(f).read("content"), CONTENT)

    def test_files_elsewhere(self):
        before = len(os.listdir("/proc/self/fd"))
        with self.assertRaises(holdfast.UnsupportedError) as raised:
            holdfast.open("/etc/passwd")
        self.assertIn(raised.exception.errno, (25, 95))
        self.assertEqual(len(os.listdir("/proc/self/fd")), before, "it was closed again")

    def test_files_elsewhere_stay_as_they_are(self):
        with tempfile.TemporaryDirectory() as directory:
            there, new, link = (Path(directory, name) for name in ["there", "new", "link"])
            there.write_bytes(CONTENT)
            link.symlink_to("linked")
            before = len(os.listdir("/proc/self/fd"))
            for path, mode in [(there, "w"), (there, "w+b"), (there, "r+"), (new, "w"), (new, "x"), (link, "w")]:
                with self.assertRaises(holdfast.UnsupportedError, msg=mode):
                    holdfast.open(path, mode)
                self.assertEqual(there.read_bytes(), CONTENT, mode)
                self.assertEqual(sorted(os.listdir(directory)), ["link", "there"], mode)
            self.assertEqual(len(os.listdir("/proc/self/fd")), before, "they were closed again")
            with open(there, "r+b") as f:
                with self.assertRaises(holdfast.UnsupportedError):
                    holdfast.FileIO(f.fileno(), "w")
                self.assertEqual(f.read(), CONTENT, "neither closed nor emptied")

    def test_buffers_of_all_items(self):
        # As the built-in raw files: any buffer in one piece, counted in bytes.
        class Record(ctypes.Structure):
            _fields_ = [("one", ctypes.c_uint64), ("other", ctypes.c_float)]

        record = Record(1, 0.5)
        buffers = [array.array("d", [1.5] * 700), array.array("b", [-1] * 5), (ctypes.c_int * 3)(1, 2, 3), record]
        buffers.append(memoryview(bytearray(24)).cast("I", (2, 3)))
        with holdfast.FileIO(self.path(), "w+") as f, open(self.path().with_suffix(".builtin"), "w+b", 0) as theirs:
            for buffer in buffers:
                content = bytes(buffer)
                self.assertEqual(f.write(buffer), theirs.write(buffer))
                self.assertEqual(f.pwrite(buffer, 0), len(content))
                ctypes.memset((ctypes.c_char * len(content)).from_buffer(buffer), 0, len(content))
                self.assertEqual(f.seek(0), theirs.seek(0))
                self.assertEqual(f.readinto(buffer), len(content))
                self.assertEqual(bytes(buffer), content)
                ctypes.memset((ctypes.c_char * len(content)).from_buffer(buffer), 0, len(content))
                self.assertEqual(f.pread_into(buffer, 0), len(content))
                self.assertEqual(bytes(buffer), content)
            pieces = memoryview(bytearray(10))[::2]
            for file in (f, theirs):
                with self.assertRaises(BufferError):
                    file.write(pieces)
                with self.assertRaises(TypeError):
                    file.readinto(pieces)
                self.assertEqual((file.write(b""), file.readinto(bytearray())), (0, 0))
            held = bytearray(5)
            f.pread_into(held, 0)
            held.clear()

    def test_features(self):
        with holdfast.open(self.path(), "wb", 0) as f:
            found = f.features
            self.assertEqual((found.version, found.mode, found.may_read, found.may_write), (1, "uniform", False, True))
            self.assertEqual((found.version_least, found.capabilities), (1, holdfast.Capabilities.APPEND))
            self.assertIn(found.algorithm, dict(found.algorithms))
            self.assertEqual(holdfast.features(f.fileno()), found)
        newer = holdfast.Capabilities(1 << 40 | 1)
        self.assertTrue(holdfast.Capabilities.APPEND in newer and newer.value == 1 << 40 | 1, "unknown ones stay")
        self.assertRegex(holdfast.__version__, r"^\d+\.\d+\.\d+")

    def test_threads_transfer_at_once(self):
        right = []

        def transfer(number):
            block = bytes([number]) * 300_000
            with holdfast.FileIO(MOUNT / f"thread-{number}", "w+") as f:
                for _ in range(20):
                    f.pwrite(block, 5)
                    right.append(f.pread(300_000, 5) == block)

        threads = [threading.Thread(target=transfer, args=(number,)) for number in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(right, [True] * 60)

    def test_other_threads_run_meanwhile(self):
        # A thread is woken to count once, right before a transfer. It would do so only afterwards if the transfer kept the interpreter's lock,
        # which nobody is asked for: it is the only step between two looks at the count that can let go of it.
        counted, turns, done = [0], threading.Semaphore(0), threading.Event()

        def count():
            while turns.acquire() and not done.is_set():
                counted[0] += 1

        def counts_during(transfer, *arguments):
            turns.release()
            before = counted[0]
            transfer(*arguments)
            return counted[0] > before

        buffer = bytearray(8 << 20)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(60)
        counter = threading.Thread(target=count)
        counter.start()
        try:
            with holdfast.FileIO(self.path(), "w+") as f:
                # The system may let the counter wait for a whole transfer, and not for twenty.
                for transfer in (f.pwrite, f.pread_into):
                    self.assertTrue(any(counts_during(transfer, buffer, 0) for _ in range(20)), transfer)
        finally:
            done.set()
            turns.release()
            sys.setswitchinterval(interval)
            counter.join()

    def test_good_bytes_before_a_bad_block_are_given(self):
        # As the built-in files give them: the error is that of the read that begins with the block. The kernel asks the same mount.
        path, lines = self.path(), "".join(f"line {number:06}\n" for number in range(5000)).encode()
        bad = 10 * 4096
        with holdfast.FileIO(path, "w") as f:
            f.pwrite(lines, 0)
            flip_in_pool(lines[bad : bad + 4096])
            with self.assertRaises(OSError):
                f.fsync()

        def told(open):
            def outcome(call):
                try:
                    return call()
                except OSError as error:
                    return "failed", error.errno

            with open(path, "rb") as f:
                yield f.read(100), f.tell(), outcome(lambda: len(f.read()))
            with open(path, "rb", buffering=0) as f:
                for _ in range(2):
                    yield outcome(lambda: f.readinto(bytearray(60_000))), f.tell()
                yield f.seek(bad + 4096), f.read(7), f.seek(100), outcome(f.readall), f.tell()
            with open(path) as f:
                yield outcome(lambda: [f.readline() for _ in range(3000)][-1]), outcome(lambda: list(f))

        for number, (ours, theirs) in enumerate(zip(told(holdfast.open), told(open), strict=True)):
            self.assertEqual(ours, theirs, f"answer {number}")
        with holdfast.open(path, "rb") as f, self.assertRaises(holdfast.IntegrityError) as raised:
            f.seek(bad - 10)
            self.assertEqual(len(f.read(10)), 10)
            f.read(1)
        self.assertEqual((raised.exception.blocks, raised.exception.done), ([10], 0))
        with holdfast.FileIO(path, "r+") as f:
            with self.assertRaises(holdfast.IntegrityError) as raised:
                f.pread(60_000, 0)
            self.assertEqual(raised.exception.done, bad)
            f.pwrite(lines[bad : bad + 4096], bad)
            self.assertEqual(f.readall(), lines)

    def test_a_flipped_bit_is_mended_or_told(self):
        with holdfast.FileIO(self.path(), "w+") as f:
            f.pwrite(CONTENT, 0)
            f.fsync()
            sync()
            flip_in_pool(CONTENT[4 * 4096 : 5 * 4096])
            self.assertEqual(f.pread(len(CONTENT), 0), CONTENT, "read again from the disk")
            other = bytes(byte ^ 0x55 for byte in CONTENT)
            f.pwrite(other, 0)
            flip_in_pool(other[5 * 4096 : 6 * 4096])
            with self.assertRaises(holdfast.IntegrityError) as raised:
                f.pread(len(other), 0)
            error = raised.exception
            self.assertEqual((error.side, error.operation, error.blocks, error.errno), ("memory", "read", [5], 5))
            self.assertFalse(error.in_transfer, "it was bad before")
            self.assertTrue(str(error).startswith("bad bytes in memory: read at byte "), str(error))
            self.assertIsInstance(error, OSError)
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((str(again), again.blocks), (str(error), [5]))
            with self.assertRaises(OSError):
                f.fsync()
            self.assertEqual(f.bad_blocks(), [5])
            f.pwrite(other[5 * 4096 : 6 * 4096], 5 * 4096)
            self.assertEqual((f.bad_blocks(), f.pread(len(other), 0)), ([], other))
            f.fsync()

    def examples(self, section: str) -> list[str]:
        page = Path(__file__).resolve().parents[3].joinpath("docs/interface.md").read_text()
        examples = page.split(f"\n## {section}\n")[1].split("\n## ")[0].split("```python\n")[1:]
        return [example.split("```")[0] for example in examples]

    def test_many_transfers_are_in_flight(self):
        names = {}
        [example] = self.examples("An asynchronous form")
        exec(example, names)
        # Of no other file.
        contents = bytes(byte ^ 0x71 for byte in CONTENT[: 32 * 4096])
        blocks = [contents[start : start + 4096] for start in range(0, len(contents), 4096)]

        async def transfers(file):
            writes = (asyncio.to_thread(file.pwrite, block, number * 4096) for number, block in enumerate(blocks))
            self.assertEqual(await asyncio.gather(*writes), [4096] * len(blocks))
            flip_in_pool(blocks[7])
            return await names["read_blocks"](file, range(len(blocks)))

        with holdfast.FileIO(self.path(), "w+") as f:
            read = asyncio.run(transfers(f))
            bad = read.pop(7)
            self.assertEqual(read, blocks[:7] + blocks[8:])
            self.assertIsInstance(bad, holdfast.IntegrityError)
            self.assertEqual((bad.side, bad.operation, bad.offset, bad.blocks), ("memory", "read", 7 * 4096, [7]))
            f.pwrite(blocks[7], 7 * 4096)
            self.assertEqual(f.pread(len(contents), 0), contents)

    def test_the_examples_of_the_page_do_what_they_say(self):
        first, recovery = self.examples("Python")
        path = self.path()
        assert "/mnt/ledger" in first
        for _ in range(2):
            exec(first.replace("/mnt/ledger", str(path)), {})
        self.assertEqual(path.read_text(), "credit 100\n" * 2, "a new file is made")
        names = {}
        exec(recovery, names)
        # Of no other file.
        contents = bytes(byte ^ 0x2A for byte in CONTENT[:-100])
        with holdfast.FileIO(path, "w+") as f:
            f.pwrite(contents, 0)
            flip_in_pool(contents[5 * 4096 : 6 * 4096])
            names["make_durable"](f, contents)
            self.assertEqual((f.bad_blocks(), f.pread(len(contents), 0)), ([], contents))


if __name__ == "__main__":
    unittest.main()
