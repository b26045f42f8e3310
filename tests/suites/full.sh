#!/usr/bin/env bash
# A store that is full, on a real mount: filled until nothing goes in, thinned out, filled again, with snapshots, and SIGKILL to the
# daemon at random moments. A removal is never refused; files that fsync has answered for are whole; when all is gone, `df` says what it
# said in the beginning. SECONDS_LIMIT bounds the whole (default 30).
STORE_SIZE=${STORE_SIZE:-48M}
. "$(dirname "$0")/lib.sh"
become_root "$@"
suite_begin full
can_crash || { skip "$FS cannot be made to crash"; suite_end; }

RANDOM=$((SEED % 32768))
end=$((SECONDS + ${SECONDS_LIMIT:-30}))
snapshots() { [ "$FS" = holdfast ]; }
available() { stat -f -c '%f' "$MNT"; }
settle() { if snapshots; then "$HOLDFAST" sync "$MNT" >/dev/null; else sync -f "$MNT"; fi; }
# A file's bytes follow from its name.
content() { { yes "$1 the same line again and again" || :; } 2>/dev/null | head -c "$2"; }

# fill: files of all sizes until one does not fit. A file counts once it has been synced; of what does not fit a part may be there.
fill() {
    local refused=0 name size
    while [ $refused -lt 3 ]; do
        number=$((number + 1))
        name=$MNT/d$((RANDOM % 5))/f$number
        size=$(((RANDOM % 4 == 0 ? 1 << 20 : 1 << 12) + RANDOM * 8))
        mkdir -p "${name%/*}" 2>>"$WORK/refused.log"
        if content "f$number" $size 2>>"$WORK/refused.log" >"$name" && sync "$name" 2>>"$WORK/refused.log"; then
            echo "$name f$number $size" >>"$WORK/there"
            fitted=$((fitted + 1))
        else
            rm -f "$name" || { fail "round $round: a file that did not fit cannot be removed"; return 1; }
            refused=$((refused + 1))
        fi
        [ $SECONDS -lt $((end + 20)) ] || break
    done
}

# thin SHARE: removes about SHARE of 8 files, after having compared them.
thin() {
    local name seed size kept=$WORK/kept bad=0
    : >"$kept"
    while read -r name seed size; do
        cmp -s <(content "$seed" "$size") "$name" || { fail "round $round: $name has other bytes, or is not there"; bad=1; }
        if [ $((RANDOM % 8)) -lt "$1" ]; then
            rm "$name" 2>>"$WORK/refused.rm" || { fail "round $round: $name cannot be removed: $(tail -n 1 "$WORK/refused.rm")"; bad=1; }
        else
            echo "$name $seed $size" >>"$kept"
        fi
    done <"$WORK/there"
    mv "$kept" "$WORK/there"
    [ $bad = 0 ]
}

crash_and_go_on() {
    fs_crash
    check "round $round: store is sound after the crash" fs_check
    fs_mount
}

number=0 fitted=0 round=0 made=0
fs_create
fs_mount
for directory in 0 1 2 3 4; do mkdir "$MNT/d$directory"; done
settle
first=$(available)
while [ $SECONDS -lt $end ] && [ $FAILED = 0 ]; do
    round=$((round + 1))
    : >"$WORK/there"
    for _ in 1 2; do
        fill || break
        [ $((RANDOM % 2)) = 0 ] || crash_and_go_on
        check "round $round: files are whole, and can be removed from a full store" thin 4 || break
        if snapshots && "$HOLDFAST" snapshot create "$MNT" "s$round-$RANDOM" >/dev/null 2>>"$WORK/refused.log"; then made=$((made + 1)); fi
        [ $((RANDOM % 2)) = 0 ] || crash_and_go_on
    done
    [ $FAILED = 0 ] || break
    check "round $round: everything can be removed" thin 8
    find "$MNT" -mindepth 2 -type f -delete || fail "round $round: remains cannot be removed"
    if snapshots; then
        for name in $(ls "$MNT/.holdfast/snapshots" | shuf --random-source=<(yes "$SEED$round")); do
            check "round $round: snapshot $name of a full store can be deleted" "$HOLDFAST" snapshot delete "$MNT" "$name"
        done
    fi
    settle
    last=$(available)
    # Trees and directories that have become taller keep a few blocks, for ever and not for each round.
    if [ "$last" -le "$first" ] && [ "$last" -ge $((first - 60)) ]; then pass "round $round: df says what it said"
    else fail "round $round: $last blocks are free with nothing left, $first were in the beginning"; fi
done
[ "$(wc -l <"$WORK/refused.log")" -gt 0 ] && [ "$fitted" -gt 50 ] || fail "only $fitted files fitted: nothing was tested"
say "$round rounds, $fitted files, $made snapshots, $(wc -l <"$WORK/refused.log") refused"
fs_unmount
check "store is sound at the end" fs_check
suite_end
