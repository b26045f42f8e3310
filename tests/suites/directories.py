#!/usr/bin/env python3
"""What a very large directory costs: entries are made, listed, looked at, renamed and removed, on a Holdfast mount and beside it on ext4.

Usage: directories.py DIRECTORY [ENTRIES] [--write]    (as root; HOLDFAST is the binary, SEED the seed)

DIRECTORY is for the two stores, files on the same disk (about 5 KiB an entry each), and is empty again at the end. ENTRIES empty files (default
1,000,000) are made in one directory of each. Both file systems take turns, a twentieth of the work at a time, so that what else the machine does meets
both. After each kind of work all is made durable, which counts. Every listing is checked: each name once, and no other. --write puts the
table into docs/directories.md.

Times: wall, and CPU of this process (which includes what the kernel does for it) and of the daemon, in microseconds an entry. What ext4 does
in threads of the kernel is in nobody's CPU time.
"""
import contextlib, json, os, random, resource, signal, subprocess, sys, time

HOLDFAST = os.environ.get("HOLDFAST", "target/release/holdfast")
SEED = int(os.environ.get("SEED") or time.time())
TURNS = 20
INODE_BYTES = 256
UMOUNT_S = 120
DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/directories.md")
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def run(*command):
    done = subprocess.run(command, capture_output=True, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {(done.stdout + done.stderr).decode()}")
    return done.stdout


class Holdfast:
    name = "Holdfast"

    def __init__(self, directory, entries):
        self.store, self.mount = f"{directory}/directories.store", f"{directory}/directories.holdfast"
        os.makedirs(self.mount)
        run(HOLDFAST, "create", self.store, "--size", str((256 << 20) + entries * 5 * 1024))
        self.begin()

    def begin(self):
        run(HOLDFAST, "mount", self.store, self.mount)
        self.pid = self.status()["daemon"]["pid"]

    def stop(self):
        run(HOLDFAST, "unmount", self.mount)

    def status(self):
        return json.loads(run(HOLDFAST, "status", self.mount, "--json"))

    def daemon_cpu_s(self):
        fields = open(f"/proc/{self.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def sync(self):
        run(HOLDFAST, "sync", self.mount)

    def used_bytes(self):
        # What the recovery point before the last one had is free with the next.
        self.sync()
        return self.status()["space"]["used_bytes"]

    def check(self):
        run(HOLDFAST, "check", self.store)


class Ext4:
    name = "ext4"

    def __init__(self, directory, entries):
        self.store, self.mount = f"{directory}/directories.ext4", f"{directory}/directories.mount"
        os.makedirs(self.mount)
        with open(self.store, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, (256 << 20) + entries * 1024)
        run("mkfs.ext4", "-q", "-F", "-I", str(INODE_BYTES), "-N", str(entries + 1000), self.store)
        self.begin()

    def begin(self):
        run("mount", "-o", "loop", self.store, self.mount)

    def stop(self):
        run("umount", self.mount)

    def daemon_cpu_s(self):
        return 0

    def sync(self):
        run("sync", "-f", self.mount)

    def used_bytes(self):
        state = os.statvfs(self.mount)
        return (state.f_blocks - state.f_bfree) * state.f_frsize + (state.f_files - state.f_ffree) * INODE_BYTES

    def check(self):
        run("fsck.ext4", "-f", "-n", self.store)


class Cost:
    def __init__(self):
        self.wall_s = self.own_cpu_s = self.daemon_cpu_s = 0


def own_cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def daemons_counted(costs):
    """Over the whole time: a daemon also works while another file system has its turn, but only on what it was given in its own."""
    before = {system: system.daemon_cpu_s() for system in costs}
    yield
    for system, cost in costs.items():
        cost.daemon_cpu_s = system.daemon_cpu_s() - before[system]


def measured(cost, action):
    before = time.monotonic(), own_cpu_s()
    result = action()
    cost.wall_s += time.monotonic() - before[0]
    cost.own_cpu_s += own_cpu_s() - before[1]
    return result


def in_turns(systems, numbers, work):
    """Does the work for each of the numbers in each file system; what it cost by file system."""
    costs = {system: Cost() for system in systems}
    length = -(-len(numbers) // TURNS)
    with daemons_counted(costs):
        for start in range(0, len(numbers), length):
            part = numbers[start : start + length]
            for system in systems:
                measured(costs[system], lambda: [work(f"{system.mount}/d", number) for number in part])
        for system in systems:
            measured(costs[system], system.sync)
    return costs


def check_names(names, prefix, entries, system):
    seen = bytearray(entries)
    for name in names:
        if not name.startswith(prefix) or not name[len(prefix) :].isdigit() or int(name[len(prefix) :]) >= entries:
            sys.exit(f"{system.name}: there is a name {name!r}")
        seen[int(name[len(prefix) :])] += 1
    wrong = [number for number, count in enumerate(seen) if count != 1]
    if wrong:
        sys.exit(f"{system.name}: of {prefix}{wrong[0]} there are {seen[wrong[0]]}, and {len(wrong)} are wrong in all")


def listed(systems, prefix, entries):
    costs = {system: Cost() for system in systems}
    with daemons_counted(costs):
        for system in systems:
            check_names(measured(costs[system], lambda: os.listdir(f"{system.mount}/d")), prefix, entries, system)
    return costs


def make(directory, number):
    os.close(os.open(f"{directory}/entry-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def look(directory, number):
    os.stat(f"{directory}/entry-{number}")


def rename(directory, number):
    os.rename(f"{directory}/entry-{number}", f"{directory}/renamed-{number}")


def remove(directory, number):
    os.unlink(f"{directory}/renamed-{number}")


def measure(systems, entries):
    shuffled = random.Random(SEED)

    def at_random():
        numbers = list(range(entries))
        shuffled.shuffle(numbers)
        return numbers

    def anew():
        for system in systems:
            system.stop()
            system.begin()

    for system in systems:
        os.mkdir(f"{system.mount}/d")
    empty = {system: system.used_bytes() for system in systems}
    rows = [("create", in_turns(systems, range(entries), make))]
    bytes_each = {system: (system.used_bytes() - empty[system]) / entries for system in systems}
    rows.append(("list, just made", listed(systems, "entry-", entries)))
    anew()
    rows.append(("list, after a new mount", listed(systems, "entry-", entries)))
    rows.append(("stat, at random", in_turns(systems, at_random(), look)))
    rows.append(("rename, at random", in_turns(systems, at_random(), rename)))
    anew()
    listed(systems, "renamed-", entries)
    rows.append(("unlink, at random", in_turns(systems, at_random(), remove)))
    for system in systems:
        left = os.listdir(f"{system.mount}/d")
        if left:
            sys.exit(f"{system.name}: {len(left)} entries are left, one is {left[0]!r}")
        system.stop()
        system.check()
    return rows, bytes_each


def table(systems, entries, rows, bytes_each):
    text = f"{entries:,} entries, seed {SEED}, load {os.getloadavg()[0]:.1f} at the end on {os.cpu_count()} cores:\n\n"
    text += "| microseconds an entry | " + " | ".join(f"{system.name}, wall | {system.name}, CPU" for system in systems) + " |\n"
    text += "|---|" + "---:|" * 2 * len(systems) + "\n"
    for what, costs in rows:
        cells = []
        for system in systems:
            cost, each = costs[system], 1e6 / entries
            cpu = f"{cost.own_cpu_s * each:.1f}"
            if isinstance(system, Holdfast):
                cpu += f" + {cost.daemon_cpu_s * each:.1f}"
            cells += [f"{cost.wall_s * each:.1f}", cpu]
        text += f"| {what} | " + " | ".join(cells) + " |\n"
    text += "\nBytes for each entry, with its inode: " + ", ".join(f"{s.name} {bytes_each[s]:.0f}" for s in systems) + ".\n"
    return text


def clear(directory):
    for kind in ("holdfast", "mount"):
        mount = f"{directory}/directories.{kind}"
        # Not if it is seen to be a mount: of one whose daemon is gone nothing can be seen.
        for how in ([], ["-l"]):
            with contextlib.suppress(subprocess.TimeoutExpired):
                if not subprocess.run(["umount", *how, mount], stderr=subprocess.DEVNULL, timeout=UMOUNT_S).returncode:
                    break
        with contextlib.suppress(OSError):
            os.rmdir(mount)
    for kind in ("store", "ext4"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(f"{directory}/directories.{kind}")


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    if not arguments:
        sys.exit(__doc__)
    entries = int(arguments[1]) if len(arguments) > 1 else 1_000_000
    directory = os.path.abspath(arguments[0])
    os.makedirs(directory, exist_ok=True)
    print(f"replay with: SEED={SEED} {sys.argv[0]} {directory} {entries}", flush=True)
    # Also when its time is up, everything is taken away; what is left of a run that was killed, now.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    clear(directory)
    systems = []
    try:
        for kind in (Holdfast, Ext4):
            systems.append(kind(directory, entries))
        text = table(systems, entries, *measure(systems, entries))
    finally:
        clear(directory)
    print(text)
    if "--write" in sys.argv:
        document = open(DOCUMENT).read()
        head, rest = document.split(BEGIN)
        open(DOCUMENT, "w").write(head + BEGIN + text + END + rest.split(END)[1])
    # Three listings of each and an empty directory at the end, or it would not have come to here.
    print("directories: 8 passed, 0 failed, 0 skipped")


main()
