#!/usr/bin/env bash
# stress-ng's file-system class, each stressor by itself with --verify, one result each.
# stress.expected lists the stressors that do not pass, with the reason. A failure or skip that is not listed is red; a listed
# one that passes now is told, so that the list can shrink. FS=ext4 gives the reference: there the list does not count.
# RUNTIME_S is the time of each stressor, WORKERS its processes; AT_ONCE stressors run side by side, each in a directory of its own. Arguments: the stressors to run; none runs all.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for stress) || exit 1
become_root "$@"
suite_begin stress

fs_create
fs_mount
read -r -a stressors < <(stress-ng --class 'filesystem?' 2>/dev/null | sed -n 's/^class .* stressors: //p')
[ ${#stressors[@]} -gt 40 ] || die "stress-ng names only ${#stressors[@]} stressors of its file-system class"
[ $# = 0 ] || stressors=("$@")
expected=$ROOT/tests/suites/stress.expected
[ "$FS" = holdfast ] || expected=/dev/null

# run NAME: leaves its exit code in $WORK/NAME.status. --seed: the same choices for the same seed. A stressor that hangs is ended
# after 60 s more, and is a failure.
run() {
    mkdir "$MNT/$1"
    bounded $((${RUNTIME_S:-1} + 60)) stress-ng --"$1" "${WORKERS:-1}" --timeout "${RUNTIME_S:-1}s" --verify --seed "$SEED" \
        --temp-path "$MNT/$1" --hdd-bytes 64M --iomix-bytes 64M --fallocate-bytes 64M --copy-file-bytes 128M >"$WORK/$1.log" 2>&1
    echo $? >"$WORK/$1.status"
}
for name in "${stressors[@]}"; do
    run "$name" &
    while [ "$(jobs -rp | wc -l)" -ge "${AT_ONCE:-4}" ]; do wait -n; done
done
wait

for name in "${stressors[@]}"; do
    log=$WORK/$name.log
    status=$(cat "$WORK/$name.status")
    read -r _ listed reason < <(awk -v name="$name" '$1 == name' "$expected") || listed=''
    # 3: no resources; 4: not implemented here. A stressor that skips itself may also end with 0.
    result=failed
    case $status in
        0) result=passed; ! grep -q 'skipped: 1[^0-9]' "$log" || result=skipped ;;
        3 | 4) result=skipped ;;
        # It runs the pathological ones, which are known to bring machines down, only when told so by another option.
        1) ! grep -q 'No stress workers invoked' "$log" || result=skipped ;;
    esac
    first=$(grep -E 'fail:|skipp|error:|cannot' "$log" | head -n 1 | sed 's/^stress-ng: *[a-z]*: *\[[0-9]*\] *//')
    case $result in
        passed) pass "$name"
            [ -z "$listed" ] || say "passes now, take it off stress.expected: $name" ;;
        skipped)
            if [ "$FS" != holdfast ]; then skip "$name: $first"
            elif [ "$listed" = skip ]; then skip "$name: $reason"
            else fail "skipped, not listed: $name: $first"; fi ;;
        failed)
            if [ "$listed" = fail ]; then skip "known failure: $name: $reason"
            else fail "$name, exit $status: $first"; grep -E 'fail|error' "$log" | head -n 8 | sed 's/^/    /'; fi ;;
    esac
    rm -rf "${MNT:?}/$name" || fail "$name: what it left cannot be removed"
done
check "nothing is left" test -z "$(ls -A "$MNT" | grep -v '^lost+found$')"
fs_remount
fs_unmount
check "store is clean" fs_check
suite_end
