#!/usr/bin/env bash
# The Python package: built into a wheel, installed into an environment of its own, and tried on a mount, with bits flipped in the daemon's memory.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for python) || exit 1
become_root "$@"
suite_begin python
[ "$FS" = holdfast ] || { skip "only holdfast has checksums to give"; suite_end; }

wheels "$WORK/wheels" >"$WORK/wheel.log" 2>&1 || { tail -n 25 "$WORK/wheel.log"; die "no wheel could be built"; }
python3 -m venv "$WORK/python" && "$WORK/python/bin/pip" install --quiet --no-index --find-links "$WORK/wheels" holdfast || die "the wheel cannot be installed"

fs_create
fs_mount
export HOLDFAST HOLDFAST_MOUNT=$MNT HOLDFAST_DAEMON=$DAEMON
cd "$ROOT/crates/python/tests" || die "the package has no tests"
bounded 120 "$WORK/python/bin/python" -m unittest -v test_holdfast >"$WORK/unittest.log" 2>&1
status=$?
while read -r name result; do
    case $result in
        ok) pass "$name" ;;
        skipped*) skip "$name: $result" ;;
        *) fail "$name: $result" ;;
    esac
done < <(sed -nE 's/^(test_\w+).* \.\.\. (.*)$/\1 \2/p' "$WORK/unittest.log")
check "all of them ran to their end" test $status = 0
[ $status = 0 ] || tail -n 40 "$WORK/unittest.log"
cd "$WORK" || exit 1
check "the package says which types it has" test -e "$(echo "$WORK"/python/lib/python3*/site-packages/holdfast/py.typed)"
# A bit flips on the disk, while nobody has the block in memory.
bounded 60 "$WORK/python/bin/python" "$ROOT/crates/python/tests/on_disk.py" write "$MNT/on-disk" || die "on_disk.py cannot write"
fs_unmount
check "the store is sound" fs_check
check "a block is flipped on the disk" python3 "$ROOT/crates/python/tests/on_disk.py" flip "$IMAGE"
fs_mount
check "a flipped bit on the disk is told, and a block that is written again is good" \
    bounded 60 "$WORK/python/bin/python" "$ROOT/crates/python/tests/on_disk.py" survive "$MNT/on-disk"
fs_unmount
check "the store is sound again" fs_check
suite_end
