#!/usr/bin/env bash
# Holdfast as ordinary users have it: everything from `create` to `unmount` without root, through fusermount3, and what is refused to
# them, each refusal one sentence that says what to do.
#
# It runs in a mount namespace of its own, with its own /dev/fuse and its own /etc, in which there are two more users, an empty fuse.conf,
# and mtab, which fusermount3 reads and not every container has. So nothing of it is left on the machine, and nothing else on the machine
# can be in its way.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for user) || exit 1
become_root "$@"
[ -n "${NAMESPACE:-}" ] || NAMESPACE=1 exec unshare --mount --propagation private bash "$0" "$@"
suite_begin user
[ "$FS" = holdfast ] || { skip "only holdfast has these words"; suite_end; }

PLACE=/tmp/holdfast-user-place
ALICE=43001 BOB=43002
mkdir -p "$WORK/place" "$PLACE"
chmod 755 "$WORK/place"
mount --bind "$WORK/place" "$PLACE" || die "cannot bind $WORK/place"
cp "$HOLDFAST" "$PLACE/holdfast" && chmod 755 "$PLACE/holdfast"
HF=$PLACE/holdfast
mkdir "$PLACE/etc" && mount -t tmpfs -o mode=755 tmpfs "$PLACE/etc" && cp -a /etc/. "$PLACE/etc"   # in memory, as there are secrets in it
printf 'alice:x:%s:%s::%s/alice:/bin/sh\nbob:x:%s:%s::%s/bob:/bin/sh\n' $ALICE $ALICE $PLACE $BOB $BOB $PLACE >>"$PLACE/etc/passwd"
: >"$PLACE/etc/fuse.conf"
ln -sfn /proc/self/mounts "$PLACE/etc/mtab"
mknod "$PLACE/fuse" c 10 229 && chmod 666 "$PLACE/fuse"
mount --bind "$PLACE/etc" /etc && mount --bind "$PLACE/fuse" /dev/fuse || die "cannot give the namespace files of its own"
install -d -o $ALICE -g $ALICE -m 755 "$PLACE/alice"
install -d -o $BOB -g $BOB -m 755 "$PLACE/bob"

# as USER COMMAND...: in the user's home, with nothing of root's environment. USER_PATH is the PATH.
as() {
    local user=$1 uid=$BOB; shift
    [ "$user" != alice ] || uid=$ALICE
    (cd "$PLACE/$user" && bounded 30 setpriv --reuid="$uid" --regid="$uid" --clear-groups \
        env -i HOME="$PLACE/$user" USER="$user" PATH="${USER_PATH:-/usr/bin:/bin}" "$@")
}

# root_does COMMAND...
root_does() { (cd "$PLACE/alice" && HOME=$PLACE/root bounded 30 "$@"); }

# does WHAT TEXT COMMAND...: exit code 0, and the text is in what it prints.
does() { ends_with 0 "$@"; }

# ends_with CODE WHAT TEXT COMMAND...: the same with another exit code.
ends_with() {
    local code=$1 what=$2 text=$3 out ended=0; shift 3
    out=$("$@" 2>&1) || ended=$?
    if [ $ended != "$code" ]; then fail "$what (exit $ended)"; printf '%s\n' "$out" | sed 's/^/    /'; return; fi
    if [[ $out == *"$text"* ]]; then pass "$what"; else fail "$what: \"$text\" is not in:"; printf '%s\n' "$out" | sed 's/^/    /'; fi
}

# refused WHAT MESSAGE HINT COMMAND...: exit code 1; one line with the message, and one with the hint unless that is empty.
refused() {
    local what=$1 message=$2 hint=$3 out status lines=1; shift 3
    out=$("$@" 2>&1); status=$?
    [ -z "$hint" ] || lines=2
    if [ $status = 1 ] && [[ $out == holdfast:*"$message"* ]] && [[ $out == *"$hint"* ]] && [ "$(printf '%s\n' "$out" | wc -l)" = $lines ]; then
        pass "$what"
    else
        fail "$what: exit $status, and not \"$message\", \"$hint\":"; printf '%s\n' "$out" | sed 's/^/    /'
    fi
}

# is WHAT VALUE EXPECTED
is() { if [ "$2" = "$3" ]; then pass "$1"; else fail "$1: $2, not $3"; fi; }

# gone STORE: waits until nobody has the store any more.
gone() { for _ in $(seq 100); do flock -n "$1" true && return 0; sleep 0.1; done; return 1; }

# ---- a day of an ordinary user ----------------------------------------------------------------------------------------

does "create" "Made the store" as alice "$HF" create s --size 32M
as alice mkdir m
does "mount" "Mounted" as alice "$HF" mount s m
does "files" "42" as alice sh -c 'mkdir m/d && echo 42 >m/d/f && ln m/d/f m/g && chmod 640 m/g && mv m/d/f m/d/h && cat m/g'
is "they are the user's" "$(as alice stat -c %u:%g:%a m/g)" "$ALICE:$ALICE:640"
does "sync" "is durable" as alice "$HF" sync m
does "snapshot" ".holdfast/snapshots/monday" as alice "$HF" snapshot create m monday
does "what changed" "- g" as alice sh -c "rm m/g && '$HF' snapshot diff m monday"
does "a file comes back" "42" as alice sh -c 'cp m/.holdfast/snapshots/monday/g m/g && cat m/g'
does "scrub" "no errors" as alice "$HF" scrub m --wait
does "status" "(epoch|.)" as alice sh -c "'$HF' status m | sed -n 's/.*recovery point.*/(epoch|.)/p'"
does "the table of mounts" "$PLACE/alice/s fuse.holdfast" as alice findmnt -n -o SOURCE,FSTYPE m
does "snapshot delete" "is gone" as alice "$HF" snapshot delete m monday
is "the log is private" "$(stat -c %a:%u "$PLACE"/alice/.local/state/holdfast/*.log)" "600:$ALICE"
is "so is the record of the scrub" "$(stat -c %a:%u "$PLACE"/alice/.local/state/holdfast/scrub-*.json)" "600:$ALICE"
is "so is their directory" "$(stat -c %a "$PLACE"/alice/.local/state/holdfast)" "700"
is "and the store" "$(stat -c %a:%u "$PLACE"/alice/s)" "600:$ALICE"
is "setuid and devices mean nothing" "$(as alice findmnt -n -o VFS-OPTIONS m)" "rw,nosuid,nodev,relatime"
as alice sh -c 'exec sleep 60 <m/g' 2>/dev/null &
SIDE=$!
disown "$SIDE"   # bash would report its death
for _ in $(seq 100); do [ -n "$(pgrep -u $ALICE -x sleep)" ] && break; sleep 0.05; done
refused "a mount in use stays, and says by whom" "is busy" "sleep (" as alice "$HF" unmount m
pkill -u $ALICE -x sleep; SIDE=
for _ in $(seq 100); do pgrep -u $ALICE -x sleep >/dev/null || break; sleep 0.05; done
rm /etc/mtab
refused "without /etc/mtab" "failed to open /etc/mtab" "ln -s /proc/self/mounts /etc/mtab" as alice "$HF" unmount m
ln -s /proc/self/mounts /etc/mtab
does "unmount" "is clean" as alice "$HF" unmount m
does "check" "" as alice "$HF" check s

# ---- fusermount3 -u, and a daemon that dies ---------------------------------------------------------------------------

does "mount again" "Mounted" as alice "$HF" mount s m
does "fusermount3 -u" "" as alice fusermount3 -u m
gone "$PLACE/alice/s" || fail "the daemon is still there 10 s after fusermount3 -u"
does "it leaves the store clean" "not mounted, clean" as alice "$HF" status s
does "mount for kill -9" "Mounted" as alice "$HF" mount s m
pid=$(as alice "$HF" status --json m | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
kill -KILL "$pid"
gone "$PLACE/alice/s"
refused "a daemon that died" "its daemon has died" "holdfast mount" as alice "$HF" sync m
ends_with 3 "status says what to do" "holdfast unmount" as alice "$HF" status m
does "mount takes the dead one away" "Mounted" as alice "$HF" mount s m

# ---- others, and root -------------------------------------------------------------------------------------------------

refused "root uses it" "not even root" "do it as alice" root_does "$HF" sync m
check "the kernel refuses root" sh -c "! ls $PLACE/alice/m 2>/dev/null"
does "root looks at it" "not accessible" root_does "$HF" status m
as bob mkdir m
refused "another user uses it" "mount of alice" "do it as alice" as bob "$HF" snapshot create ../alice/m x
refused "another user unmounts it" "only root and alice" "" as bob "$HF" unmount ../alice/m
refused "another user's store" "this user may not read and write it" "belongs to alice, mode 600" as bob "$HF" mount ../alice/s m
refused "the same, read-only" "this user may not read it" "belongs to alice, mode 600" as bob "$HF" mount ../alice/s m -o ro
does "root unmounts it" "is clean" root_does "$HF" unmount m
does "bob has a store" "Made the store" as bob "$HF" create s --size 16M
mkdir "$PLACE/roots" "$PLACE/all" && chmod 1777 "$PLACE/all"
refused "a directory that is not his" "another user's directory" "his own" as bob "$HF" mount s "$PLACE/roots"
refused "a directory of everybody's" "another user's directory" "his own" as bob "$HF" mount s "$PLACE/all"
refused "a directory that he may not look into" "Permission denied" "" as bob "$HF" mount s /root/x
refused "no directory" "No such file" "mkdir -p nowhere" as bob "$HF" mount s nowhere
chmod 400 "$PLACE/bob/s"
refused "a store that he may only read" "this user may not read and write it" "mode 400" as bob "$HF" mount s m
does "can be mounted for reading" "Mounted" as bob "$HF" mount s m -o ro
does "and unmounted" "Unmounted" as bob "$HF" unmount m
chmod 600 "$PLACE/bob/s"

# ---- allow_other ------------------------------------------------------------------------------------------------------

refused "allow_other" "allow_other is not allowed" "user_allow_other to /etc/fuse.conf" as bob "$HF" mount s m -o allow_other
echo user_allow_other >"$PLACE/etc/fuse.conf"
does "allow_other with the line" "Mounted" as bob "$HF" mount s m -o allow_other
does "shared by permissions" "for all" as bob sh -c 'echo for all >m/f; chmod 644 m/f; echo mine >m/mine; chmod 600 m/mine; cat m/f'
does "others read" "for all" as alice cat ../bob/m/f
check "not what they may not" sh -c "! setpriv --reuid=$ALICE --regid=$ALICE --clear-groups cat $PLACE/bob/m/mine 2>/dev/null"
does "others look at its state" "recovery point" as alice "$HF" status ../bob/m
refused "but make no snapshots" "only root and the user who mounted" "" as alice "$HF" snapshot create ../bob/m x
does "root reads" "mine" cat "$PLACE/bob/m/mine"
does "unmount a shared one" "is clean" as bob "$HF" unmount m

# ---- without fusermount3, without /dev/fuse ---------------------------------------------------------------------------

USER_PATH=/nonexistent refused "without fusermount3" "there is no fusermount3" "fuse3" as bob "$HF" mount s m
rm -rf "$PLACE/bob/.local"
USER_PATH=/nonexistent refused "up without fusermount3" "there is no fusermount3" "fuse3" as bob "$HF" up
chmod 600 "$PLACE/fuse"
refused "without access to /dev/fuse" "/dev/fuse cannot be opened" "chmod 666 /dev/fuse" as bob "$HF" mount s m
refused "up without access to /dev/fuse" "/dev/fuse cannot be opened" "chmod 666 /dev/fuse" as bob "$HF" up
umount /dev/fuse
mount -t tmpfs tmpfs "$PLACE/roots" && mkdir "$PLACE/roots/x" && mount --bind "$PLACE/roots" /dev
refused "without /dev/fuse" "there is no /dev/fuse" "modprobe fuse" as bob "$HF" mount s m
refused "up without /dev/fuse" "there is no /dev/fuse" "modprobe fuse" as bob "$HF" up
umount /dev
mount --bind "$PLACE/fuse" /dev/fuse && chmod 666 "$PLACE/fuse"
is "nothing was made in vain" "$(ls -A "$PLACE/bob" | tr '\n' ' ')" "m s "
does "a nosuid fusermount3" "" as bob sh -c 'mkdir bin && cp /usr/bin/fusermount3 bin/'
USER_PATH=$PLACE/bob/bin refused "a fusermount3 without rights" "lacks the right" "setuid bit" as bob "$HF" mount s m

# ---- up ---------------------------------------------------------------------------------------------------------------

mount -t tmpfs -o size=400m,mode=755,uid=$BOB,gid=$BOB tmpfs "$PLACE/bob"   # so that the store is a small one
does "up" "Holdfast is up, with a new store" as bob "$HF" up
does "up again" "already up" as bob "$HF" up
is "its store is private" "$(stat -c %a "$PLACE/bob/.local/share/holdfast/main.store" "$PLACE/bob/.local/share/holdfast" | tr '\n' ' ')" "600 700 "
does "down" "is clean" as bob "$HF" unmount Holdfast

# Whatever went wrong above, no daemon stays behind, and nothing that is mounted in what is to be removed.
for user in alice bob; do
    for dir in "$PLACE/$user/m" "$PLACE/$user/Holdfast"; do ! mountpoint -q "$dir" || root_does "$HF" unmount "$dir" >/dev/null 2>&1; done
done
umount "$PLACE/bob" "$PLACE/roots" 2>/dev/null
is "no daemon is left" "$(ps -u $ALICE,$BOB -o stat=,args= | grep -v '^Z')" ""
umount /etc "$PLACE/etc" /dev/fuse "$PLACE" && rmdir "$PLACE"
suite_end
