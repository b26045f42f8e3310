#!/usr/bin/env bash
# A real build on the mount: OpenSSH's source from Debian is unpacked, configured and built; every file has the same contents,
# size, mode and times after a remount. Then the daemon is killed in the middle of a build, with the witness writing beside it:
# everything that fsync answered is there afterwards, the store is clean, and ssh can be built again.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for openssh) || exit 1
become_root "$@"
suite_begin openssh

check "apt-get source openssh" fetch_source openssh
[ $FAILED = 0 ] || suite_end
dsc=$(ls "$TOOLS"/openssh/openssh_*.dsc)

# unpack DIR; configure DIR; build DIR: each bounded in time, output in $WORK.
unpack()    { bounded 120 dpkg-source --no-check -x "$dsc" "$1"; }
# Debian's patches change configure.ac, so configure is made anew.
configure() { (cd "$1" && bounded 120 autoreconf -f -i && bounded 300 ./configure --quiet --without-pam --with-privsep-path="$1/empty"); }
build()     { bounded 600 make -s -C "$1" -j2; }

fs_create
fs_mount
tree=$MNT/openssh
for step in unpack configure build; do
    check "$step" "$step" "$tree"
    [ $FAILED = 0 ] || suite_end   # the rest would only repeat it
done
check "the built program runs" "$tree/ssh" -V
check "the built key generator works" "$tree/ssh-keygen" -q -t ed25519 -N '' -f "$MNT/key"
manifest "$MNT" >"$WORK/before"
files=$(wc -l <"$WORK/before")
[ "$files" -gt 2000 ] && pass "a build tree worth comparing" || fail "only $files lines in the manifest"
fs_remount
manifest "$MNT" >"$WORK/after"
check "same contents, attributes and times after a remount" diff "$WORK/before" "$WORK/after"
check "nothing is left to build after the remount" bash -c "bounded 60 make -C '$tree' -q ssh"

if can_crash && [ -x "$WITNESS" ]; then
    check "make clean" make -s -C "$tree" clean
    build "$tree" >"$WORK/build.log" 2>&1 &
    builder=$!
    "$WITNESS" write "$MNT/witness" "$WORK/journal" --seed "$SEED" --seconds 120 --crash-mark "$WORK/crashed" >"$WORK/witness.log" 2>&1 &
    SIDE=$!
    sleep "${KILL_AFTER:-8}"
    kill -0 "$builder" 2>/dev/null || fail "the build was over before the crash: set KILL_AFTER lower"
    touch "$WORK/crashed"
    fs_crash
    wait "$builder" 2>/dev/null
    if wait "$SIDE"; then pass "no error before the crash"; else fail "error before the crash"; tail -n 5 "$WORK/witness.log"; fi
    SIDE=''
    say "killed in the middle of the build; $(head -n 1 "$WORK/witness.log")"
    check "store is clean after the crash" fs_check
    fs_mount
    check "everything that fsync answered is there" witness_verify "$MNT/witness" "$WORK/journal"
    # What was durable before the crash and not touched since: the source files.
    grep -E '^[0-9a-f]{64} .*\.(c|h|sh|in|1|5|8)$' "$WORK/before" | grep -v -e ' ./openssh/config.h$' >"$WORK/sources"
    check "the $(wc -l <"$WORK/sources") source files are unchanged" bash -c "cd '$MNT' && sha256sum --quiet -c '$WORK/sources'"
    # Object files that were being written may be incomplete, as after any power cut.
    check "clean and build ssh again after the crash" bash -c "make -s -C '$tree' clean && bounded 600 make -s -C '$tree' -j2 ssh"
    check "the program built after the crash runs" "$tree/ssh" -V
else
    skip "crash in the middle of a build: $FS cannot be made to crash"
fi
fs_unmount
check "store is clean" fs_check
suite_end
