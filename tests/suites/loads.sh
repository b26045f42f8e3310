#!/usr/bin/env bash
# Three loads of file servers and mail spools, run as they are: dbench (its own trace of a file server), bonnie++ and postmark.
# Each must end without an error and leave a store that checks clean; figures are printed and not judged.
# RUNTIME_S is dbench's time, CLIENTS their number, BONNIE_MB bonnie++'s volume, TRANSACTIONS postmark's.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for loads) || exit 1
become_root "$@"
suite_begin loads

fs_create
fs_mount
mkdir "$MNT/dbench" "$MNT/bonnie" "$MNT/postmark"
# It starts its clients together by a System V semaphore if the machine has these, and says so if not.
bounded $((${RUNTIME_S:-8} * 3 + 60)) dbench -D "$MNT/dbench" -t "${RUNTIME_S:-8}" "${CLIENTS:-4}" >"$WORK/dbench.log" 2>&1
status=$?
if [ $status = 0 ] && grep -q '^Throughput' "$WORK/dbench.log" && ! grep -v 'barrier semaphore' "$WORK/dbench.log" | grep -qiE 'failed|error'
then pass dbench; say "dbench: $(grep '^Throughput' "$WORK/dbench.log")"
else fail "dbench, exit $status"; grep -iE 'failed|error' "$WORK/dbench.log" | head | sed 's/^/    /'; tail -n 3 "$WORK/dbench.log"; fi

# -f: MiB that are written and read byte by byte, none by default. -r: it would want a volume of twice the machine's memory; -n: files in units of 1024, of up to 4 KiB in 8 directories.
mb=${BONNIE_MB:-64}
bounded "${LIMIT:-300}" bonnie++ -d "$MNT/bonnie" -s "$mb" -r $((mb / 2)) -n "${BONNIE_FILES:-2}:4096:16:8" -f${BONNIE_BYTE_MB:-} -u root -q -m holdfast \
    >"$WORK/bonnie.csv" 2>"$WORK/bonnie.log"
status=$?
if [ $status = 0 ] && [ "$(wc -l <"$WORK/bonnie.csv")" = 1 ] && ! grep -qiE "can't|error|bad" "$WORK/bonnie.log"
then pass "bonnie++"
else fail "bonnie++, exit $status"; tail -n 10 "$WORK/bonnie.log" | sed 's/^/    /'; fi

{
    echo "set location $MNT/postmark"
    echo "set seed $((SEED % 2147483647))"
    echo "set number ${POSTMARK_FILES:-2000}"
    echo "set subdirectories 20"
    echo "set transactions ${TRANSACTIONS:-10000}"
    echo "set size 500 100000"
    echo "run"
    echo "quit"
} | bounded "${LIMIT:-300}" postmark >"$WORK/postmark.log" 2>&1
status=$?
if [ $status = 0 ] && grep -q 'transactions ' "$WORK/postmark.log" && ! grep -qE 'Error|cannot|fail' "$WORK/postmark.log"
then pass postmark; say "postmark: $(grep -m 1 'per second' "$WORK/postmark.log" | xargs)"
else fail "postmark, exit $status"; grep -E 'Error|cannot|fail' "$WORK/postmark.log" | head | sed 's/^/    /'; fi

[ -z "$(find "$MNT/bonnie" "$MNT/postmark" -type f | head -n 1)" ] && pass "both removed all their files" || fail "files of bonnie++ or postmark are left"
manifest "$MNT" >"$WORK/before"
fs_remount
manifest "$MNT" >"$WORK/after"
check "same files after a remount" cmp "$WORK/before" "$WORK/after"
check "removing all of it" rm -r "$MNT/dbench" "$MNT/bonnie" "$MNT/postmark"
fs_unmount
check "store is clean" fs_check
suite_end
