#!/usr/bin/env python3
"""What `holdfast run` costs: dd and cp with and without it, in turn; medians of wall time. docs/interface.md has the figures.

    tests/suites/run-cost.py DIRECTORY_IN_A_MOUNT [ROUNDS] [HOLDFAST]
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

MB = 64


def seconds(words):
    start = time.monotonic()
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def main():
    mount = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 11
    holdfast = sys.argv[3] if len(sys.argv) > 3 else "target/release/holdfast"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        big, file, copy = f"{elsewhere}/big", f"{mount}/run-cost", f"{elsewhere}/copy"
        with open(big, "wb") as out:
            out.write(os.urandom(MB << 20))
        jobs = []
        for size in (4096, 131072):
            words = [f"bs={size}", f"count={(MB << 20) // size}"]
            jobs.append((f"dd to the mount, {size}", ["dd", f"if={big}", f"of={file}", "conv=notrunc", *words], (MB << 20) // size))
            jobs.append((f"dd from the mount, {size}", ["dd", f"if={file}", "of=/dev/null", *words], (MB << 20) // size))
        jobs.append(("cp to the mount", ["cp", big, file], 0))
        jobs.append(("cp from the mount", ["cp", file, copy], 0))
        jobs.append(("dd elsewhere, 512", ["dd", "if=/dev/zero", "of=/dev/null", "bs=512", "count=200000"], 400_000))
        jobs.append(("true", ["true"], 0))
        times = {}
        for turn in range(rounds):
            for name, words, _ in jobs:
                for under in (turn % 2 == 0, turn % 2 == 1):
                    time_s = seconds([holdfast, "run", "--", *words] if under else words)
                    times.setdefault((name, under), []).append(time_s)
        os.remove(file)
    print(f"| job, {MB} MiB, medians of {rounds} | plain | `holdfast run` | ratio | more per call |")
    print("|---|---|---|---|---|")
    for name, _, calls in jobs:
        plain, checked = (statistics.median(times[name, under]) * 1e3 for under in (False, True))
        more = f"{(checked - plain) * 1e3 / calls:.1f} µs" if calls else "–"
        print(f"| {name} | {plain:.0f} ms | {checked:.0f} ms | {checked / plain:.2f} | {more} |")


if __name__ == "__main__":
    main()
