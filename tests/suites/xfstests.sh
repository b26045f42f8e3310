#!/usr/bin/env bash
# The group generic of xfstests, on Holdfast only: tests/suites/xfstests.sh CHECKOUT [TEST...]
# CHECKOUT is a directory with xfstests, built there with its own make; it stays as it is. TESTs are as check of xfstests takes them:
# generic/001, -g quick, -x attr; none runs the group auto of generic.
# xfstests.expected lists what does not pass, with the reason. A failure or skip that is not listed is red; a listed one that passes now is
# told, so that the list can shrink. LIMIT is the time for all of it in seconds; when it is up, the tests that have ended count.
# Accounts that the tests change to (fsgqa and others), and the links for mount(8), are taken away again if they were not there before.
. "$(dirname "$0")/lib.sh"
[ -x "${1:-}/check" ] && [ -x "$1/ltp/fsstress" ] ||
    { echo "usage: $0 CHECKOUT [TEST...]: a directory with xfstests, built with make in it"; exit 2; }
# shellcheck disable=SC2046
install_packages $(packages_for xfstests) || exit 1
become_root "$@"
[ "$FS" = holdfast ] || { echo "xfstests: knows $FS by itself, without this script"; exit 2; }
checkout=$(realpath "$1"); shift
[ $# != 0 ] || set -- -g generic/auto
HOLDFAST=$(realpath "$HOLDFAST")
suite_begin xfstests
expected=$ROOT/tests/suites/xfstests.expected
export HOLDFAST STORE_SIZE

users=() links=()
# What was not there before goes again; suite_end calls it by fs_teardown.
clean_up() {
    # Each test is a session of its own: one that was running when the time was up still does.
    local process
    for process in /proc/[0-9]*; do
        [[ $(readlink "$process/cwd") != "$WORK"/* ]] || kill -KILL "${process#/proc/}"
    done 2>/dev/null
    # Not ours alone: a store that the tests mount once more somewhere else.
    findmnt -rno TARGET,SOURCE | awk -v work="$WORK/" 'index($2, work) == 1 { print $1 }' | tac |
        while read -r place; do bounded 60 umount "$place" || umount -l "$place"; done
    local name
    for name in "${links[@]}"; do rm -f "$name"; done
    for name in "${users[@]}"; do userdel "$name"; done 2>/dev/null
    users=() links=()
}
eval "lib_$(declare -f fs_teardown)"
fs_teardown() { lib_fs_teardown; clean_up; }

for name in fsgqa 123456-fsgqa fsgqa2; do
    id "$name" >/dev/null 2>&1 && continue
    useradd --badname --no-create-home --home-dir / --user-group "$name" 2>"$WORK/users.log" || die "no account $name: $(cat "$WORK/users.log")"
    users+=("$name")
done
for name in /sbin/mount.holdfast /sbin/mount.fuse.holdfast; do
    if [ ! -e "$name" ]; then
        ln -sfn "$HOLDFAST" "$name"
        links+=("$name")
    fi
    [ "$(realpath "$name")" = "$HOLDFAST" ] || die "$name is not $HOLDFAST: make install, or HOLDFAST=$(realpath "$name")"
done

# The checkout, with files of ours in the place of two: check is run where it lies, and looks for everything there.
mkdir "$WORK/checkout" "$WORK/scratch" "$WORK/results"
ln -s "$checkout"/* "$WORK/checkout/"
rm -f "$WORK/checkout/"{common,local.config,results}
cp -r "$checkout/common" "$WORK/checkout/common"
cat >"$WORK/checkout/local.config" <<CONFIG
export FSTYP=fuse FUSE_SUBTYP=.holdfast
export TEST_DEV=$WORK/test.store TEST_DIR=$MNT
export SCRATCH_DEV=$WORK/scratch.store SCRATCH_MNT=$WORK/scratch
export MOUNT_OPTIONS=-o$HOLDFAST_OPTS${MOUNT_OPTS:+,$MOUNT_OPTS}
export TEST_FS_MOUNT_OPTS=\$MOUNT_OPTIONS
export RESULT_BASE=$WORK/results
CONFIG
# For a file system in user space that it does not know, xfstests empties a directory where it should make a file system, leaves out
# the check after each test, and does not take the type that it has mounted for the one of the table of mounts.
cat >>"$WORK/checkout/common/rc" <<'RC'

_fs_type() { _df_device "$1" | awk '{ print $2 }' | sed "s/^fuse$FUSE_SUBTYP\$/fuse/"; }
_scratch_mkfs() {
    _scratch_unmount >/dev/null 2>&1
    "$HOLDFAST" create --force --size "$STORE_SIZE" "$SCRATCH_DEV"
}
_holdfast_check() {
    local store=$1 directory=$2 mounted=
    ! mountpoint -q "$directory" || { mounted=yes; umount "$directory" || return 1; }
    if ! "$HOLDFAST" check "$store" >"$tmp.holdfast" 2>&1; then
        _log_err "holdfast check: $store is damaged"
        cat "$tmp.holdfast" >>"$seqres.full"
        status=1
        [ "$iam" = check ] || _exit 1
        return 1
    fi
    [ -z "$mounted" ] || mount -t "$FSTYP$FUSE_SUBTYP" $MOUNT_OPTIONS "$store" "$directory"
}
_check_scratch_fs() { _holdfast_check "$SCRATCH_DEV" "$SCRATCH_MNT"; }
_check_test_fs() { _holdfast_check "$TEST_DEV" "$TEST_DIR"; }
RC
"$HOLDFAST" create --size "$STORE_SIZE" "$WORK/test.store" >"$WORK/create.log" 2>&1 || { cat "$WORK/create.log"; die "cannot create a store"; }
"$HOLDFAST" create --size "$STORE_SIZE" "$WORK/scratch.store" >>"$WORK/create.log" 2>&1 || { cat "$WORK/create.log"; die "cannot create a store"; }

(cd "$WORK/checkout" && unset NAME && bounded "${LIMIT:-36000}" ./check "$@") >"$WORK/output" 2>&1
status=$?
[ $status != 124 ] || fail "out of time, LIMIT=${LIMIT:-36000}: see the end of $WORK/output"

# results: "TEST passed|failed|skipped REASON", one line for each test that has ended; in the output, lines that are indented or follow
# a test's own belong to it.
results() {
    awk 'function tell() { if (test != "") print test, result, reason; test = "" }
        /^(Ran|Not run|Failures|Passed all|Failed|Interrupted|SECTION)/ { tell(); next }
        /^[a-z0-9]+\/[0-9]+ / {
            tell()
            test = $1; reason = ""; result = "failed"
            if (match($0, /\[not run\] */)) { result = "skipped"; reason = substr($0, RSTART + RLENGTH) }
            else if (/ [0-9]+s$/) result = "passed"
            else if (match($0, /(\[failed|- output|_check|holdfast check).*/)) reason = substr($0, RSTART)
            else if (/ \.\.\. *$/ || NF == 1) result = "unknown"
            next
        }
        test != "" && result == "unknown" { result = "failed"; reason = $0 }
        END { if (result != "unknown") tell() }' "$WORK/output"
}

# listed TEST RESULT MESSAGE: the reason in xfstests.expected, by the test's name or by what xfstests says.
listed() {
    awk -v test="$1" -v result="$2" -v message="$3" '
        /^#/ || NF < 3 { next }
        $2 != result && !($2 == "may-fail" && result == "fail") { next }
        $1 == test { sub(/^[^ ]+ +[^ ]+ +/, ""); print; exit }
        $1 == "*" { split($0, part, "\""); if (index(message, part[2])) { sub(/^ */, "", part[3]); print part[3]; exit } }' "$expected"
}
declare -A why=()   # how many cannot run for each reason
while read -r name result message; do
    case $result in
        passed) pass "$name"
            ! grep -q "^$name [fs]" "$expected" || say "passes now, take it off xfstests.expected: $name" ;;
        skipped)
            reason=$(listed "$name" skip "$message")
            if [ -n "$reason" ]; then SKIPPED=$((SKIPPED + 1)) why[$reason]=$((${why[$reason]:-0} + 1))
            else fail "skipped, not listed: $name: $message"; fi ;;
        failed)
            reason=$(listed "$name" fail "$message")
            if [ -n "$reason" ]; then skip "known failure: $name: $reason"
            else fail "$name: $message"; awk -v name="$name" '$1 == name { n = 12; next } /^[a-z0-9]+\/[0-9]+ / { n = 0 } n-- > 0' "$WORK/output"; fi ;;
    esac
done < <(results)
for reason in "${!why[@]}"; do say "skip: ${why[$reason]} tests: $reason"; done
[ $((PASSED + FAILED + SKIPPED)) != 0 ] || { tail -n 25 "$WORK/output"; fail "no test was run"; }
suite_end
