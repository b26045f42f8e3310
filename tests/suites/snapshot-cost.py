#!/usr/bin/env python3
"""What making, deleting and comparing snapshots costs, and how long others wait meanwhile, on a real mount.

Usage: snapshot-cost.py DIRECTORY [PAGES [FILES]]    (as root or with fusermount3; HOLDFAST is the binary, SEED the seed)

DIRECTORY is for the store (five times the data) and the mount; both are removed at the end. PAGES of 4 KiB are kept by
each snapshot (default 262144: 1 GiB; 0 leaves this part out). While a snapshot is made or deleted, two processes go on: one looks up a new name
each time, so that the daemon is asked and no cache of the kernel answers, one writes 4 KiB to a file of its own and calls
fsync. Their worst and their 99th percentile are compared with those of the same time without a snapshot.

Then a store of FILES files (default 100000; 0 leaves this part out), half of them in one directory, is changed in 10, 100 and
1000 files between snapshots, and these are compared, each time after a new mount, so that no cache has anything. What comes out is
asserted. Beside it, what it takes to walk through two snapshots and compare all attributes, as without `snapshot diff`.
"""
import json, multiprocessing, os, random, subprocess, sys, time

PAGE = 4096
# Recovery points while all pages are overwritten: so many that in each hardly two pages are neighbours, whose runs would be merged.
EPOCHS = 32
HOLDFAST = os.environ.get("HOLDFAST", "target/release/holdfast")
SEED = int(os.environ.get("SEED", "1"))


def holdfast(*arguments):
    done = subprocess.run([HOLDFAST, *arguments, "--json"], capture_output=True, timeout=300)
    if done.returncode:
        sys.exit(f"holdfast {' '.join(arguments)}: {(done.stdout + done.stderr).decode()}")
    return json.loads(done.stdout)


# Between two requests of a process that is kept waiting: the daemon and what is measured need the CPU, too.
PAUSE_S = 0.001


def look_up(mount, under_way, stop, out):
    waits, number = [], 0
    while not stop.is_set():
        number += 1
        began = time.monotonic()
        try:
            os.stat(f"{mount}/none-{os.getpid()}-{number}")
        except FileNotFoundError:
            pass
        waits.append(time.monotonic() - began)
        under_way.set()
        # A rate is what is asked for: without a pause this process takes a CPU from the daemon, and measures itself.
        time.sleep(PAUSE_S)
    out.put(("look up", waits))


def write(mount, under_way, stop, out):
    waits = []
    fd = os.open(f"{mount}/others", os.O_RDWR | os.O_CREAT)
    while not stop.is_set():
        began = time.monotonic()
        os.pwrite(fd, os.urandom(PAGE), 0)
        os.fsync(fd)
        waits.append(time.monotonic() - began)
        under_way.set()
        # A rate, as above: back to back, each fsync would close the batch of the one before and fill the log.
        time.sleep(PAUSE_S)
    os.close(fd)
    out.put(("write + fsync", waits))


class Rig:
    def __init__(self, directory, pages):
        self.store, self.mount = f"{directory}/cost.store", f"{directory}/cost.mount"
        self.pages, self.random = pages, random.Random(SEED)
        os.makedirs(self.mount)
        holdfast("create", self.store, "--size", str(5 * pages * PAGE + (256 << 20)))
        self.mount_it()

    def mount_it(self):
        # No recovery point comes by age: what is dirty stays so until something asks for one.
        holdfast("mount", self.store, self.mount, "-o", "epoch=60000,cache=1G")

    def end(self):
        subprocess.run([HOLDFAST, "unmount", self.mount], timeout=120)
        os.remove(self.store)
        os.rmdir(self.mount)

    def status(self):
        return holdfast("status", self.mount)

    def cpu_s(self, pid):
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def fill(self, name):
        with open(f"{self.mount}/{name}", "wb", buffering=0) as file:
            for _ in range(self.pages // 256):
                file.write(os.urandom(256 * PAGE))

    def churn(self, name):
        order = list(range(self.pages))
        self.random.shuffle(order)
        fd = os.open(f"{self.mount}/{name}", os.O_RDWR)
        for at, page in enumerate(order):
            os.pwrite(fd, os.urandom(PAGE), page * PAGE)
            if at % (self.pages // EPOCHS) == 0:
                self.sync()
        os.close(fd)
        self.sync()

    def sync(self):
        holdfast("sync", self.mount)

    def measure(self, what, action):
        before = self.status()
        pid = before["daemon"]["pid"]
        stop, out = multiprocessing.Event(), multiprocessing.Queue()
        begun = {each: multiprocessing.Event() for each in (look_up, write)}
        others = [multiprocessing.Process(target=each, args=(self.mount, begun[each], stop, out)) for each in begun]
        for other in others:
            other.start()
        for event in begun.values():
            assert event.wait(timeout=60), "one of the others does not get under way"
        cpu, began = self.cpu_s(pid), time.monotonic()
        action()
        wall, cpu = time.monotonic() - began, self.cpu_s(pid) - cpu
        stop.set()  # a request that is still waiting is counted: it ends before its process looks
        waits = dict(out.get(timeout=120) for _ in others)
        for other in others:
            other.join()
        written = self.status()["counters"]["written_bytes"] - before["counters"]["written_bytes"]
        cells = [what, f"{wall:.2f}", f"{cpu:.2f}", f"{written / 2**20:.1f}"]
        for who in ("look up", "write + fsync"):
            ordered = sorted(waits[who])
            p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
            cells.append(f"{p99 * 1000:.1f} / {ordered[-1] * 1000:.0f}")
        print("| " + " | ".join(cells) + " |", flush=True)

    def create(self, name):
        holdfast("snapshot", "create", self.mount, name)

    def delete(self, name):
        holdfast("snapshot", "delete", self.mount, name)

    def only_bytes(self, name):
        return next(s["only_bytes"] for s in holdfast("snapshot", "list", self.mount)["snapshots"] if s["name"] == name)

    def pins(self, name, at_least):
        got = self.only_bytes(name)
        assert got >= at_least, f"snapshot {name} pins {got} bytes, expected {at_least} at least"


def run(rig):
    data = rig.pages * PAGE
    print("| | wall, s | daemon CPU, s | written, MiB | look up, p99 / max, ms | write + fsync, p99 / max, ms |")
    print("|---|---:|---:|---:|---:|---:|")
    # What is done here is nothing, for a time: the others' waits without a snapshot.
    rig.measure("nothing, for 3 s", lambda: time.sleep(3))
    rig.fill("data")
    rig.sync()
    rig.measure("create, all clean", lambda: rig.create("churned"))
    rig.churn("data")
    rig.pins("churned", data)
    rig.measure("list (the dead list is read)", lambda: rig.only_bytes("churned"))
    rig.measure("delete, random overwrites of all", lambda: rig.delete("churned"))
    rig.create("older")
    rig.create("newer")
    rig.churn("data")
    rig.measure("delete in a chain, all goes to the older one", lambda: rig.delete("newer"))
    rig.pins("older", data)
    rig.measure("delete that older one", lambda: rig.delete("older"))
    # The worst place: all runs of the one in the middle go over to the older one, and there is a newer one as well.
    for name in ("first", "middle"):
        rig.create(name)
    rig.churn("data")
    rig.create("last")
    rig.measure("delete in the middle of three", lambda: rig.delete("middle"))
    rig.pins("first", data)
    for name in ("last", "first"):
        rig.delete(name)
    rig.fill("sequential")
    rig.sync()
    rig.create("whole")
    os.remove(f"{rig.mount}/sequential")
    rig.sync()
    rig.pins("whole", data)
    rig.measure("delete, one sequential file", lambda: rig.delete("whole"))
    rig.sync()
    # A quarter of the page pool, and the writer begins by itself.
    amount = min(data, 1 << 30) * 3 // 16
    fd = os.open(f"{rig.mount}/dirty", os.O_RDWR | os.O_CREAT)
    for _ in range(amount >> 20):
        os.write(fd, os.urandom(1 << 20))
    os.close(fd)
    dirty = rig.status()["cache"]["dirty_bytes"]
    assert dirty >= amount, f"{dirty} bytes are dirty of {amount}"
    dirty >>= 20
    rig.measure(f"create, {dirty} MiB dirty", lambda: rig.create("of dirty data"))


# Files in each directory but the one with half of all.
WIDTH = 500


class Tree:
    """FILES files, and what has changed in them."""

    def __init__(self, rig, files):
        self.rig, self.directories = rig, ["wide"] + [f"some/{n // 16}/{n}" for n in range(files // 2 // WIDTH)]
        self.files = [f"{d}/file {n}" for d in self.directories for n in range(files // 2 if d == "wide" else WIDTH)]
        for directory in self.directories:
            os.makedirs(f"{rig.mount}/{directory}")
        for name in self.files:
            with open(f"{rig.mount}/{name}", "wb") as file:
                file.write(b"as it was")

    def change(self, count):
        names = self.rig.random.sample(self.files, count)
        for name in names:
            with open(f"{self.rig.mount}/{name}", "wb") as file:
                file.write(b"changed")
        return {("M", name) for name in names}

    def second_names(self, count):
        """Files with two names; a snapshot later, of each only the one that it got last is there."""
        below = self.files[len(self.files) // 2 :]
        names = {name: f"{self.rig.random.choice(self.directories)}/again {n}" for n, name in enumerate(below[:count])}
        for name, second in names.items():
            os.link(f"{self.rig.mount}/{name}", f"{self.rig.mount}/{second}")
            os.remove(f"{self.rig.mount}/{name}")
        return names

    def change_second_names(self, names):
        for second in names.values():
            with open(f"{self.rig.mount}/{second}", "wb") as file:
                file.write(b"changed by another name")
        return {("M", second) for second in names.values()}


def cold(rig, what, action):
    """Measures with empty caches: wall time, CPU time of the daemon, and blocks that it reads."""
    holdfast("unmount", rig.mount)
    rig.mount_it()
    before = rig.status()
    cpu, began = rig.cpu_s(before["daemon"]["pid"]), time.monotonic()
    result = action()
    wall, cpu = time.monotonic() - began, rig.cpu_s(before["daemon"]["pid"]) - cpu
    read = rig.status()["counters"]["read_bytes"] - before["counters"]["read_bytes"]
    print(f"| {what} | {wall:.2f} | {cpu:.2f} | {read // PAGE} |", flush=True)
    return result


def compare(rig, what, old, new, expected):
    changes = cold(rig, what, lambda: holdfast("snapshot", "diff", rig.mount, old, new)["changes"])
    got = {(change["change"], change["path"]) for change in changes}
    assert got == expected, f"{what}: missing {expected - got}, too much {got - expected}"


def walk(directory, path, seen):
    """Goes through an open directory, from there and not by long paths, as find(1) does."""
    with os.scandir(directory) as entries:
        for entry in entries:
            below, state = f"{path}/{entry.name}", entry.stat(follow_symlinks=False)
            seen[below] = (state.st_mode, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            if entry.is_dir(follow_symlinks=False):
                descriptor = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
                walk(descriptor, below, seen)
                os.close(descriptor)


def walk_both(rig, old, new):
    states = ({}, {})
    for name, seen in zip((old, new), states):
        descriptor = os.open(f"{rig.mount}/.holdfast/snapshots/{name}", os.O_RDONLY | os.O_DIRECTORY)
        walk(descriptor, ".", seen)
        os.close(descriptor)
    return sum(states[1].get(path) != state for path, state in states[0].items())


def run_diff(rig, files):
    tree = Tree(rig, files)
    print(f"\n| {files} files | wall, s | daemon CPU, s | blocks read |")
    print("|---|---:|---:|---:|")
    rig.create("begin")
    before = "begin"
    for count in (10, 100, 1000):
        expected = tree.change(count)
        rig.create(f"after {count}")
        compare(rig, f"diff, {count} files changed", before, f"after {count}", expected)
        before = f"after {count}"
    names = tree.second_names(100)
    rig.create("second names")
    expected = tree.change_second_names(names)
    rig.create("after second names")
    compare(rig, "diff, 100 files changed that lost their first name before", "second names", "after second names", expected)
    rig.create("again")
    compare(rig, "diff, nothing changed", "after second names", "again", set())
    found = cold(rig, "walk through two snapshots and compare", lambda: walk_both(rig, "after 100", "after 1000"))
    assert found == 1000, f"{found} files differ"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(f"seed {SEED}, load {os.getloadavg()[0]:.1f}")
    pages, files = (int(number) for number in (sys.argv[2:] + ["262144", "100000"][len(sys.argv) - 2 :]))
    for count, part, size in ((pages, run, pages), (files, lambda rig: run_diff(rig, files), files * 2)):
        if count == 0:
            continue
        rig = Rig(sys.argv[1], size)
        try:
            part(rig)
        finally:
            rig.end()


main()
