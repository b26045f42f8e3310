#!/bin/bash
# shellcheck disable=SC2317  # the jobs are called by name, in a process of their own
# Records three traces of real programs at work, for `holdfast-trace replay`.
#
# Usage: record-traces.sh DIRECTORY [SECONDS]    (TRACE is the holdfast-trace binary)
#
# Each is somebody who does something, looks at it for a while, and goes on, for SECONDS (default 360), below DIRECTORY/NAME, on whatever file system
# that is; DIRECTORY/NAME.trace is the result. strace slows the programs down, so the times between calls are longer than without it.
set -u -o pipefail

# In a process of its own, which is what strace watches.
if [ "${1:-}" = --do ]; then
    DO=$2 FOR=$3
    set --
fi

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Absolute: recording goes elsewhere. Looked for before anything is recorded.
TRACE=$(realpath -e "${TRACE:-${CARGO_TARGET_DIR:-$ROOT/target}/release/holdfast-trace}") || exit 1
SELF=$ROOT/tests/suites/record-traces.sh

# Somebody looks at a result: the time between two steps is a part of what is recorded, as it decides how old pages become.
think() { sleep 5; }

# A program of 60 files: one is edited, it is built and run.
compile() {
    for unit in {1..60}; do
        for number in {1..40}; do
            echo "int f${unit}_$number(int x) { return x * $number + $unit; }"
        done > "unit$unit.c"
        cc -O1 -c "unit$unit.c"
    done
    echo 'int f1_1(int); int main(void) { return f1_1(0) != 1; }' > main.c
    ar rcs all.a unit*.o
    local turn=0
    while [ "$SECONDS" -lt "$1" ]; do
        turn=$((turn + 1))
        echo "int g$turn(int x) { return x + $turn; }" >> "unit$((turn % 60 + 1)).c"
        cc -O1 -c "unit$((turn % 60 + 1)).c" && ar rcs all.a unit*.o && cc -o program main.c all.a && ./program
        grep -c return unit*.c > counts
        think
    done
}

# This project's history: cloned, read, changed, committed, packed.
project() {
    git clone -q --no-hardlinks "$ROOT" copy 2> /dev/null
    cd copy || exit 1
    git config user.email nobody@localhost
    git config user.name nobody
    local turn=0
    while [ "$SECONDS" -lt "$1" ]; do
        turn=$((turn + 1))
        git log --stat -20 > ../log
        git grep -c fn > ../found
        echo "$turn" >> README.md
        git add README.md && git commit -qm "turn $turn"
        git diff HEAD~1 > ../diff
        [ $((turn % 10)) = 0 ] && git gc -q
        think
    done
}

# A database: rows come in, reports are made, a script reads all of it.
database() {
    sqlite3 base.db 'create table sale(id integer primary key, shop int, cents int, note text); create index by_shop on sale(shop)'
    local turn=0
    while [ "$SECONDS" -lt "$1" ]; do
        turn=$((turn + 1))
        sqlite3 base.db "with recursive n(x) as (select 1 union all select x + 1 from n where x < 800)
            insert into sale(shop, cents, note) select abs(random()) % 100, abs(random()) % 10000, hex(randomblob(40)) from n"
        sqlite3 base.db 'select shop, sum(cents), count(*) from sale group by shop' > "report$((turn % 12))"
        sqlite3 base.db "update sale set cents = cents + 1 where shop = $((turn % 100))"
        python3 -c 'import sqlite3; print(sum(row[0] for row in sqlite3.connect("base.db").execute("select cents from sale")))' > sum
        think
    done
}

if [ -n "${DO:-}" ]; then
    "$DO" "$FOR"
    exit 0
fi

DIRECTORY=$(realpath "${1:?usage: record-traces.sh DIRECTORY [SECONDS]}")
SECONDS_LONG=${2:-360}

record() { # NAME
    rm -rf "${DIRECTORY:?}/$1"
    mkdir -p "$DIRECTORY/$1"
    cd "$DIRECTORY/$1" || exit 1
    strace -f -ttt -y -s 0 -o "$DIRECTORY/$1.strace" bash "$SELF" --do "$1" "$SECONDS_LONG" || exit 1
    "$TRACE" convert --root "$DIRECTORY/$1" "$DIRECTORY/$1.strace" "$DIRECTORY/$1.trace" || exit 1
    rm -rf "${DIRECTORY:?}/$1" "$DIRECTORY/$1.strace"
}

pids=()
for name in compile project database; do
    record $name &
    pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit $failed
