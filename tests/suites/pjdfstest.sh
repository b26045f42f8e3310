#!/usr/bin/env bash
# POSIX conformance: the Rust rewrite of pjdfstest (crate `pjdfstest`), 398 cases.
# pjdfstest.expected lists the cases that do not pass, with the reason. A failure or skip that is not listed is red; a
# listed one that passes now is told, so that the list can shrink.
# Arguments: patterns of the cases to run; none runs all.
. "$(dirname "$0")/lib.sh"
install_tool pjdfstest 0.2.2 || exit 1
become_root "$@"
suite_begin pjdfstest

config=$ROOT/tests/suites/pjdfstest.toml
secondary=$(mktemp -d /dev/shm/pjdfstest.XXXXXX)   # another file system, for EXDEV

# The EROFS cases call mount(8). On a FUSE mount it would start a helper (mount.fuse3) to mount anew instead of letting the
# kernel change the flag; -i prevents that.
mkdir "$WORK/bin"
printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >"$WORK/bin/mount"
chmod +x "$WORK/bin/mount"
PATH=$WORK/bin:$PATH

# run CONFIG ARGUMENT...: appends to $WORK/output.
run() {
    local status config=$1; shift
    NO_COLOR=1 bounded "${LIMIT:-180}" "$TOOLS/bin/pjdfstest" -c "$config" -p "$MNT" -s "$secondary" "$@" \
        >"$WORK/output.part" 2>&1
    status=$?
    cat "$WORK/output.part" >>"$WORK/output"
    [ $status != 124 ] || fail "out of time: $*"
    grep -q '^Summary' "$WORK/output.part" || { tail -n 5 "$WORK/output.part"; fail "ended early, exit $status: $*"; }
}

# results: "name ok|FAILED|skipped", one line per case; in the output, lines that start with a tab explain the one above.
results() { awk '!/^\t/ && NF == 2 && ($2 == "ok" || $2 == "FAILED" || $2 == "skipped")' "$WORK/output"; }

fs_create
fs_mount
run "$config" "$@"
sed 's/^allow_remount = false/allow_remount = true/' "$config" >"$WORK/remount.toml"
remounting=$(results | awk '$1 ~ /::erofs_/ && $2 == "skipped" { print $1 }')
for name in $remounting; do
    sed -i "/^$name .*skipped/d" "$WORK/output"
    run "$WORK/remount.toml" --exact "pjdfstest::tests::$name"   # names are matched with the prefix that is not printed
done
rm -rf "$secondary"

expected=$ROOT/tests/suites/pjdfstest.expected
while read -r name result; do
    read -r _ listed reason < <(awk -v name="$name" '$1 == name' "$expected") || listed=''
    case $result in
        ok) pass "$name"
            [ -z "$listed" ] || say "passes now, take it off pjdfstest.expected: $name" ;;
        skipped)
            if [ "$listed" = skip ]; then skip "$name: $reason"; else fail "skipped, not listed: $name"; fi ;;
        FAILED)
            if [ "$listed" = fail ]; then skip "known failure: $name: $reason"
            else fail "$name"; awk -v name="$name" '$1 == name { n = 4; next } n-- > 1 { print "    " $0 }' "$WORK/output"; fi ;;
    esac
done < <(results)
[ $# != 0 ] || check "all 398 cases were run" test "$(results | wc -l)" = 398

fs_unmount
check "store is clean after pjdfstest" fs_check
suite_end
