#!/usr/bin/env bash
# A power cut in the middle of fsync-ing writers, again and again: SIGKILL to the daemon at a random moment, remount, and
# the witness compares everything that fsync ever answered with what is there. `check` must find the store clean each time.
# SECONDS_LIMIT bounds the whole (default 40); each round uses the same store, so losses that show late are seen too.
. "$(dirname "$0")/lib.sh"
become_root "$@"
suite_begin kill9
[ -x "$WITNESS" ] || die "no binary at $WITNESS: build it first (cargo build --release -p holdfast-bench)"
can_crash || { skip "$FS cannot be made to crash"; suite_end; }

RANDOM=$((SEED % 32768))
end=$((SECONDS + ${SECONDS_LIMIT:-40}))
round=0
fs_create
while [ $SECONDS -lt $end ] && [ $FAILED = 0 ]; do   # the first failure ends the loop: its store is the evidence
    round=$((round + 1))
    fs_mount
    "$WITNESS" write "$MNT/round.$round" "$WORK/journal.$round" --seed $((SEED + round)) --seconds 60 \
        --crash-mark "$WORK/crashed.$round" >"$WORK/witness.$round" 2>&1 &
    SIDE=$!
    until grep -qs '^done' "$WORK/journal.$round" || ! kill -0 "$SIDE" 2>/dev/null; do sleep 0.02; done
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    touch "$WORK/crashed.$round"
    fs_crash
    if wait "$SIDE"; then pass "round $round: no error before the crash"
    else fail "round $round: error before the crash"; tail -n 5 "$WORK/witness.$round"; fi
    SIDE=''
    check "round $round: store is clean after the crash" fs_check
    fs_mount
    for earlier in $(seq "$round"); do
        check "round $round: everything answered in round $earlier is there" \
            witness_verify "$MNT/round.$earlier" "$WORK/journal.$earlier"
    done
    fs_unmount
done
answered=$(cat "$WORK"/journal.* | grep -c '^done')
say "$round crashes, $answered changes answered by fsync"
[ "$answered" -gt 100 ] || fail "only $answered changes were answered: nothing was tested"
check "store is clean at the end" fs_check
suite_end
