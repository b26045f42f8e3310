#!/usr/bin/env python3
"""What warm reads of 128 KiB through the mount cost, judged by runs of the program, as docs/integrity-speed.md says: where the kernel puts
a process' pools makes some hundredths that stay as long as it does, so that the pairs of one run say too little. Needs root.

    tests/suites/warm-by-runs.py [SEEDS] [BENCH]

Each of SEEDS (12) seeds has a run in either order of the modes. Prints one line for each run, then the table: the median of the runs and
its 95 % interval by the sign test.
"""

import math
import statistics
import subprocess
import sys

ORDERS = (["none", "disk", "static", "uniform"], ["uniform", "static", "disk", "none"])
ROW = "warm read, sequential, 128 KiB"


def ratios(bench, modes, seed):
    """A run's ratios to `none`, by mode, and what `none` took, in µs. The program's are to the mode that it is given first."""
    words = [bench, "--parts", "requests", "--ways", "mount", "--only", "warm read, sequential, 128", "--modes", ",".join(modes)]
    words += ["--rounds", "6", "--pool-rounds", "1", "--sample-mib", "1024", "--seed", str(seed)]
    out = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    head = by_cpu = None
    for line in out.splitlines():
        if line.startswith("### "):
            by_cpu = line.startswith("### Mount, by CPU time")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if by_cpu and cells[0] == "work":
            head = cells
        if by_cpu and cells[0] == ROW:
            first_us = float(cells[1])
            to_first = {modes[0]: 1.0} | {head[at]: float(cells[at].split()[0]) for at in range(3, len(cells))}
            none_us = first_us / to_first["none"]
            return {mode: to_first[mode] / to_first["none"] for mode in ORDERS[0][1:]}, none_us
    sys.exit(f"{' '.join(words)}: no row \"{ROW}\" by CPU time in what it printed:\n{out}")


def interval(values):
    """Median and its 95 % interval by the sign test: of 24 the 7th and the 18th."""
    values, count = sorted(values), len(values)
    off = 0
    while off + 1 < count - off and sum(math.comb(count, k) for k in range(off + 1)) / 2**count <= 0.025:
        off += 1
    low = max(off - 1, 0)
    return statistics.median(values), values[low], values[count - 1 - low]


def main():
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    bench = sys.argv[2] if len(sys.argv) > 2 else "target/release/holdfast-bench-integrity"
    runs = []
    for seed in range(1, seeds + 1):
        for modes in ORDERS:
            ratio, none_us = ratios(bench, modes, seed)
            runs.append((modes[0], ratio, none_us))
            print(f"seed {seed}, {modes[0]} first: none {none_us:.1f} µs, " + ", ".join(f"{mode} {value:.2f}" for mode, value in ratio.items()), flush=True)
    print(f"\n| {ROW}, mount | none, µs | " + " | ".join(ORDERS[0][1:]) + " |\n|---|---:|" + "---:|" * 3)
    for name, chosen in [(f"{len(runs)} runs", runs)] + [(f"`{first}` first", [run for run in runs if run[0] == first]) for first in ("none", "uniform")]:
        cells = [f"{statistics.median(run[2] for run in chosen):.1f}"]
        for mode in ORDERS[0][1:]:
            middle, low, high = interval([run[1][mode] for run in chosen])
            cells.append(f"{middle:.2f} ({low:.2f}–{high:.2f})")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
