#!/usr/bin/env bash
# What POSIX and Linux say beyond pjdfstest: access control lists with getfacl and setfacl, inheritance, capabilities and
# set-id bits taken away by writes, O_TMPFILE, ranges (allocate, punch, seek, copy), locks, large files, limits.
# ENTRIES=1000000 measures a directory of so many entries besides.
# FS=ext4 checks the suite itself: ours must do as ext4 does. With MOUNT_OPTS=cache=kernel five cases expect what the kernel's page cache does.
# Python 3 makes the system calls that the shell cannot.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for posix) || exit 1
become_root "$@"
suite_begin posix

CALLS=$ROOT/tests/suites/posix.py
# as UID GID COMMAND...: as that user, without other groups.
as() { local uid=$1 gid=$2; shift 2; setpriv --reuid "$uid" --regid "$gid" --clear-groups "$@"; }
# refused COMMAND...: it fails.
refused() { ! "$@"; }
# same EXPECTED COMMAND...: it prints that.
same() {
    local expected=$1 got; shift
    got=$("$@") || return 1
    [ "$got" = "$expected" ] || { printf 'expected: %s\ngot: %s\n' "$expected" "$got"; return 1; }
}
# acl PATH...: lists in one line, without remarks.
acl() { getfacl -cpnE "$@" 2>/dev/null | paste -sd ' ' | sed 's/ *$//'; }
export FS MOUNT_OPTS
mode() { stat -c %a "$1"; }

access_control_lists() {
    local d=$MNT/acl
    mkdir "$d" && chmod 755 "$d"
    echo text >"$d/file" && chmod 600 "$d/file"
    check "nobody else reads" refused as 1000 1000 cat "$d/file"
    check "setfacl names a user" setfacl -m u:1000:r "$d/file"
    check "the mode has the mask" same 640 mode "$d/file"
    check "getfacl" same "user::rw- user:1000:r-- group::--- mask::r-- other::---" acl "$d/file"
    check "the user reads" as 1000 1000 cat "$d/file"
    check "another does not" refused as 1001 1001 cat "$d/file"
    check "nor does the user write" refused as 1000 1000 bash -c "echo >>'$d/file'"
    check "access(2) says so too" as 1000 1000 test -r "$d/file"
    check "of writing as well" refused as 1000 1000 test -w "$d/file"
    check "chmod changes the mask" chmod 600 "$d/file"
    check "chmod: getfacl" same "user::rw- user:1000:r-- group::--- mask::--- other::---" acl "$d/file"
    check "the mask keeps the user out" refused as 1000 1000 cat "$d/file"
    check "only the owner sets a list" refused as 1000 1000 setfacl -m u:1000:rw "$d/file"
    check "setfacl -b" setfacl -b "$d/file"
    check "nothing is left of the list" same "user::rw- group::--- other::---" acl "$d/file"
    check "not even an attribute" same "" getfattr -m - --only-values "$d/file"
    check "a group" setfacl -m g:2000:rw "$d/file"
    check "its member writes" as 1001 2000 bash -c "echo >>'$d/file'"
    check "a supplementary member writes" setpriv --reuid 1001 --regid 1001 --groups 2000 bash -c "echo >>'$d/file'"
    check "no default list on a file" refused setfacl -d -m u:1000:r "$d/file"

    mkdir "$d/parent" && chmod 777 "$d/parent"
    check "default list" setfacl -d -m u:1000:rwx,g::rx,o::- "$d/parent"
    (umask 077 && touch "$d/parent/file" && mkdir "$d/parent/below" && mkfifo "$d/parent/fifo" && ln -s x "$d/parent/link")
    check "a new file inherits instead of the umask" same "user::rw- user:1000:rwx group::r-x mask::rw- other::---" \
        acl "$d/parent/file"
    check "so does a new directory" same "user::rwx user:1000:rwx group::r-x mask::rwx other::--- default:user::rwx default:user:1000:rwx default:group::r-x default:mask::rwx default:other::---" \
        acl "$d/parent/below"
    check "and a pipe" same 660 mode "$d/parent/fifo"
    check "a link has no list" same 777 mode "$d/parent/link"
    (umask 027 && touch "$d/plain" && mkdir "$d/plaindir")
    check "elsewhere the umask counts" same "640 750" bash -c "stat -c %a '$d/plain' '$d/plaindir' | paste -sd ' '"
    check "cp -a takes the list along" bash -c "cp -a '$d/parent/file' '$d/copy' && cmp <(getfacl -cpn '$d/parent/file') <(getfacl -cpn '$d/copy')"
    # A list set by somebody outside of the group takes setgid away.
    touch "$d/setgid" && chown 1000:2000 "$d/setgid" && chmod 2755 "$d/setgid"
    check "a list set from outside the group" as 1000 1000 setfacl -m u:1001:r "$d/setgid"
    check "takes setgid" same 755 mode "$d/setgid"
    acl "$d/copy" "$d/parent" >"$WORK/acl.before"
}

set_ids_and_capabilities() {
    local d=$MNT/set
    mkdir "$d" && chmod 777 "$d"
    reset() { rm -f "$d/file"; echo text >"$d/file"; chown 1000:1000 "$d/file"; chmod "$1" "$d/file"; }
    reset 6755
    check "a write by another" as 1000 1000 bash -c "echo >>'$d/file'"
    check "takes both" same 755 mode "$d/file"
    reset 6745; as 1000 1000 bash -c "echo >>'$d/file'"
    check "setgid without group execution stays" same 2745 mode "$d/file"
    reset 6755; echo more >>"$d/file"
    check "the superuser's write leaves them" same 6755 mode "$d/file"
    reset 6755; as 1000 1000 truncate -s 1 "$d/file"
    check "a truncation takes them" same 755 mode "$d/file"
    reset 6755; as 1000 1000 bash -c ": >'$d/file'"
    check "opening with O_TRUNC takes them" same 755 mode "$d/file"
    reset 6755; as 1000 1000 fallocate -l 8192 "$d/file"
    check "fallocate takes them" same 755 mode "$d/file"
    reset 6755; chown 1000:1000 "$d/file"
    check "chown takes them" same 755 mode "$d/file"
    reset 755; setcap cap_net_raw+ep "$d/file"
    check "capabilities are kept" same "cap_net_raw=ep" bash -c "getcap '$d/file' | sed 's/.* //'"
    echo more >>"$d/file"
    check "and go with a write, even the superuser's" same "" getcap "$d/file"
    setcap cap_net_raw+ep "$d/file"; truncate -s 0 "$d/file"
    check "with a truncation" same "" getcap "$d/file"
    setcap cap_net_raw+ep "$d/file"; chown 1001 "$d/file"
    check "with another owner" same "" getcap "$d/file"
    reset 644
    check "chmod by somebody outside of the group" bash -c "chown 1000:2000 '$d/file' && setpriv --reuid 1000 --regid 1000 --clear-groups chmod 2755 '$d/file'"
    check "drops setgid" same 755 mode "$d/file"
    mkdir "$d/group" && chown 0:2000 "$d/group" && chmod 2777 "$d/group"
    as 1000 1000 bash -c "touch '$d/group/file'; mkdir '$d/group/below'"
    check "a setgid directory hands down its group" same "2000 2000 2755" \
        bash -c "echo \$(stat -c %g '$d/group/file' '$d/group/below') \$(stat -c %a '$d/group/below')"
    setpriv --reuid 1000 --regid 1000 --groups 2000 bash -c "cd '$d/group' && umask 0 && python3 -c 'import os; os.close(os.open(\"x\", os.O_CREAT, 0o2775))'"
    check "setgid at creation stays for a supplementary member" same 2775 mode "$d/group/x"
    mkdir "$d/sticky" && chmod 1777 "$d/sticky" && as 1000 1000 touch "$d/sticky/file"
    check "a sticky directory keeps what is another's" refused as 1001 1001 rm -f "$d/sticky/file"
    check "its owner removes it" as 1000 1000 rm "$d/sticky/file"
}

extended_attributes() {
    local d=$MNT/xattr
    mkdir "$d" && chmod 777 "$d" && touch "$d/file" && chmod 666 "$d/file" && ln -s file "$d/link" && mkfifo -m 666 "$d/fifo"
    check "trusted is the superuser's" setfattr -n trusted.a -v 1 "$d/file"
    check "and nobody else's to set" refused as 1000 1000 setfattr -n trusted.b -v 1 "$d/file"
    check "nor to see" same "" as 1000 1000 getfattr -d -m - "$d/file"
    check "security is read by all" bash -c "setfattr -n security.a -v 1 '$d/file' && $(declare -f as); as 1000 1000 getfattr --only-values -n security.a '$d/file'"
    check "user is not for links" refused setfattr -h -n user.a -v 1 "$d/link"
    check "nor for pipes" refused setfattr -n user.a -v 1 "$d/fifo"
    check "trusted is, on links too" setfattr -h -n trusted.a -v 1 "$d/link"
}

fs_create
fs_mount
access_control_lists
set_ids_and_capabilities
extended_attributes
# One result per line: "ok WHAT" or "FAIL WHAT: WHY"; "skip WHAT: WHY".
run_calls() {
    local line
    while IFS= read -r line; do
        case $line in
            "ok "*) pass "${line#ok }" ;;
            "skip "*) skip "${line#skip }" ;;
            *) fail "${line#FAIL }" ;;
        esac
    done < <(bounded ${LIMIT:-300} python3 "$CALLS" "$@" 2>&1; echo "ok $1 ran (exit $?)" | sed 's/^ok \(.*exit [^0]\)/FAIL \1/')
}
run_calls calls "$MNT"
fs_remount
check "lists are the same after a remount" same "$(cat "$WORK/acl.before")" acl "$MNT/acl/copy" "$MNT/acl/parent"
run_calls after "$MNT"
if can_crash; then
    free() { stat -f -c '%f' "$MNT"; }
    fs_remount
    before=$(free)
    python3 "$CALLS" orphans "$MNT" >"$WORK/orphans" 2>&1 &
    SIDE=$!
    until grep -qs '^ok' "$WORK/orphans" || ! kill -0 "$SIDE" 2>/dev/null; do sleep 0.1; done
    during=$(free)
    fs_crash
    wait "$SIDE"
    SIDE=''
    fs_mount
    # Given back in the first epoch, 5 s at most.
    for _ in $(seq 100); do
        after=$(free)
        [ $((before - after)) -ge 2000 ] || break
        sleep 0.1
    done
    # 4 KiB blocks: 128 MiB are 32768 of them.
    check "files without a name take room ($before, $during)" test $((before - during)) -gt 32000
    check "which a crash gives back ($after)" test $((before - after)) -lt 2000
fi
if [ -n "${ENTRIES:-}" ]; then
    export ENTRIES
    VERBOSE=1 run_calls entries "$MNT"
    [ -z "$DAEMON" ] || say "memory of the daemon: $(awk '/VmHWM/ { print $2, $3 }' "/proc/$DAEMON/status")"
fi
fs_unmount
check "store is clean" fs_check
suite_end
