# Shared by the suites: the file system under test behind one set of functions, and the counting of results.
#
# A suite is a bash script that sources this file, calls `suite_begin NAME`, uses the fs_* functions and `pass`/`fail`/
# `skip`, and ends with `suite_end`, which prints `NAME: N passed, N failed, N skipped` and sets the exit code.
#
# Environment:
#   FS              file system under test: holdfast (default), ext4, btrfs, fuse2fs. The others check the suites themselves.
#   HOLDFAST        the binary (default: the release build)
#   HOLDFAST_OPTS   mount options for holdfast, as after -o (default allow_other: suites change to other users)
#   MOUNT_OPTS      further mount options for holdfast, for instance noatime
#   STORE_SIZE      size of the store (default 4G; holdfast takes it from the disk at once)
#   SUITE_WORK      where stores, logs and downloads live (default: target/suites; must be on a disk, not in memory)
#   SEED            seed of the random parts (default: from the clock; always printed)
# shellcheck shell=bash

set -u -o pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
TOOLS=$ROOT/target/tools
FS=${FS:-holdfast}
HOLDFAST_OPTS=${HOLDFAST_OPTS:-allow_other}
MOUNT_OPTS=${MOUNT_OPTS:-}
HOLDFAST=${HOLDFAST:-$TARGET/release/holdfast}
WITNESS=${WITNESS:-$TARGET/release/holdfast-witness}
STORE_SIZE=${STORE_SIZE:-4G}
SUITE_WORK=${SUITE_WORK:-$ROOT/target/suites}
SEED=${SEED:-$(date +%s)}
export PATH=$PATH:/usr/sbin:/sbin

PASSED=0 FAILED=0 SKIPPED=0
DAEMON=      # process (and process group) that serves the mount; empty for kernel file systems
SIDE=        # writer in the background, ended with the suite
LOOP=        # loop device of a kernel file system
MNT=         # where the file system under test is mounted

# ---- results ----------------------------------------------------------------------------------------------------------

say()  { printf '%s: %s\n' "$NAME" "$*"; }
pass() { PASSED=$((PASSED + 1)); [ -z "${VERBOSE:-}" ] || say "pass: $*"; }
fail() { FAILED=$((FAILED + 1)); say "FAIL: $*"; }
skip() { SKIPPED=$((SKIPPED + 1)); say "skip: $*"; }

# check WHAT COMMAND...: one result; the output of the command is shown only when it fails.
check() {
    local what=$1 out; shift
    if out=$("$@" 2>&1); then pass "$what"; else fail "$what (exit $?): $*"; printf '%s\n' "$out" | tail -n 25 | sed 's/^/    /'; fi
}

# die WHAT: the suite cannot go on. Counts as a failure, and the result line is still printed.
die() { fail "$*"; suite_end; }

suite_end() {
    fs_teardown
    [ "$FAILED" = 0 ] || say "logs and store kept in $WORK; replay with: FS=$FS SEED=$SEED $0"
    [ "$FAILED" != 0 ] || [ -n "${KEEP:-}" ] || rm -rf "$WORK"
    trap - EXIT
    printf '%s: %d passed, %d failed, %d skipped\n' "$NAME" "$PASSED" "$FAILED" "$SKIPPED"
    [ "$FAILED" = 0 ]; exit
}

# bounded SECONDS COMMAND...: ends the command when its time is up. It stays in the suite's process group (which timeout would
# otherwise leave), so that whoever ends the suite ends it too.
bounded() { timeout --foreground -k 10 "$@"; }
export -f bounded

# ---- set-up -----------------------------------------------------------------------------------------------------------

# become_root "$@": mounting needs root. Runs the script again with sudo if it must, with the settings in the environment, but in root's
# home; call it after install_tool.
become_root() {
    local settings
    [ "$(id -u)" != 0 ] || return 0
    sudo -n true || { echo "$0: needs root: run it as root, or by a user whose sudo asks for no password"; exit 1; }
    mapfile -t -d '' settings < <(env -0 | grep -zvE '^(HOME|USER|LOGNAME|MAIL|SHELL|_|(XDG|SUDO)_[A-Z_]*|BASH_FUNC_[^=]*)=')
    exec sudo -n env "${settings[@]}" SEED="$SEED" bash "$0" "$@"
}

# install_packages PACKAGE...: Debian packages that are not there yet; silent when nothing is missing.
install_packages() {
    local missing=() package sudo=
    for package in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} != 0 ] || return 0
    command -v apt-get >/dev/null || { echo "missing packages, and no apt-get to install them: ${missing[*]}"; return 1; }
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    echo "installing Debian packages: ${missing[*]}"
    local apt="$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120" output
    output=$({ $apt update && $apt install -y --no-install-recommends --no-remove "${missing[@]}"; } 2>&1) || { printf '%s\n' "$output"; return 1; }
}

# packages_for STEP: the packages that packages.txt lists for it; packages_except STEP...: those that any other step needs.
packages_for() { awk -v suite="$1" '!/^#/ { for (i = 2; i <= NF; i++) if ($i == suite) print $1 }' "$ROOT/tests/suites/packages.txt"; }
packages_except() { awk -v not=" $* " '!/^#/ { for (i = 2; i <= NF; i++) if (!index(not, " " $i " ")) { print $1; next } }' "$ROOT/tests/suites/packages.txt"; }

# install_tool CRATE VERSION: from crates.io into target/tools, once.
install_tool() {
    local crate=$1 version=$2
    grep -qs "\"$crate $version " "$TOOLS/.crates2.json" && [ -x "$TOOLS/bin/$crate" ] && return 0
    echo "installing $crate $version from crates.io into target/tools"
    CARGO_TARGET_DIR=$TOOLS/build cargo install --quiet --locked --root "$TOOLS" --version "$version" "$crate" >&2
}

# fetch_source PACKAGE: Debian's source package, downloaded once to target/tools/PACKAGE. deb-src lines live in a private apt directory: the
# machine's own lists stay as they are. After suite_begin.
fetch_source() {
    local to=$TOOLS/$1
    ls "$to/$1"_*.dsc >/dev/null 2>&1 && return 0
    local apt=$WORK/apt code mirror
    code=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(sed -nE 's/^(URIs:|deb( \[[^]]*\])?) *(https?:[^ ]*debian)\/? .*/\3/p; s/^URIs: *(https?:[^ ]*debian)\/?$/\1/p' \
        /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v security | head -n 1)
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$to.part"
    chmod -R a+rX "$WORK" "$TOOLS"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} $code main" >"$apt/sources.list"
    local options=(-qq -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$apt/lists"
        -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root -o Acquire::Retries=3)
    apt-get "${options[@]}" update && (cd "$to.part" && apt-get "${options[@]}" source --download-only "$1") && mv "$to.part" "$to"
}

# wheels DIRECTORY: builds the Python package into it, with maturin from PyPI in an environment below target/tools.
wheels() {
    [ -x "$TOOLS/python/bin/maturin" ] || { python3 -m venv "$TOOLS/python" && "$TOOLS/python/bin/pip" install --quiet 'maturin>=1.9.4,<2'; } || return 1
    "$TOOLS/python/bin/maturin" build --release --locked --manifest-path "$ROOT/crates/python/Cargo.toml" --out "$1"
}

# suite_begin NAME: checks what is needed, prepares an empty work directory, mounts nothing yet.
suite_begin() {
    NAME=$1
    WORK=$SUITE_WORK/$NAME.$FS
    mkdir -p "$SUITE_WORK"
    exec 9>"$WORK.lock"
    flock -n 9 || { echo "$NAME: already running on $FS"; exit 1; }
    # Under /tmp because suites change to users who cannot enter a private home directory; one for each work directory, so that two
    # checkouts do not unmount each other's.
    MNT=/tmp/holdfast-$NAME-$FS-$(printf %s "$WORK" | cksum | cut -d ' ' -f 1)
    # Remains of a run that was killed, with what its programs wrote when the mount was gone.
    umount -l "$MNT" 2>/dev/null
    mountpoint -q "$MNT" || rm -rf --one-file-system "$MNT"
    losetup -n -O NAME -j "$WORK/store" 2>/dev/null | xargs -r -n 1 losetup -d
    rm -rf "$WORK"
    mkdir -p "$WORK"
    mkdir -p "$MNT" && chmod 755 "$MNT"
    trap 'fail "stopped before its end"; suite_end' EXIT
    trap 'fail "interrupted or out of time"; suite_end' INT TERM
    case $FS in holdfast | fuse2fs)
        [ -e /dev/fuse ] || die "there is no /dev/fuse here: load the module (modprobe fuse) or, in a container, pass --device /dev/fuse"
        { : <>/dev/fuse; } 2>/dev/null || die "/dev/fuse cannot be opened: the container or the user lacks permission for it"
    esac
    [ "$FS" != holdfast ] || [ -x "$HOLDFAST" ] || die "no binary at $HOLDFAST: build it first (cargo build --release)"
    say "on $FS, seed $SEED"
}

# ---- the file system under test ---------------------------------------------------------------------------------------

# fs_create: a new, empty file system. Not mounted.
fs_create() {
    IMAGE=$WORK/store
    rm -f "$IMAGE"
    case $FS in
        holdfast) "$HOLDFAST" create "$IMAGE" --size "$STORE_SIZE" >"$WORK/create.log" 2>&1 ;;
        ext4 | fuse2fs) truncate -s "$STORE_SIZE" "$IMAGE" && mkfs.ext4 -q -F "$IMAGE" >"$WORK/create.log" 2>&1 ;;
        btrfs) truncate -s "$STORE_SIZE" "$IMAGE" && mkfs.btrfs -q -f "$IMAGE" >"$WORK/create.log" 2>&1 ;;
        *) die "unknown file system FS=$FS" ;;
    esac || { cat "$WORK/create.log"; die "cannot create a store on $FS"; }
}

# fs_serve COMMAND...: starts a FUSE daemon in a process group of its own, so that fs_crash can kill all of it at once.
fs_serve() {
    local log=$WORK/daemon.log
    setsid "$@" >>"$log" 2>&1 9>&- &
    DAEMON=$!
    disown "$DAEMON"   # bash would report its death
    for _ in $(seq 300); do
        mountpoint -q "$MNT" && stat "$MNT/." >/dev/null 2>&1 && return 0
        kill -0 "$DAEMON" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 25 "$log"
    return 1
}

# fs_mount: returns when the file system is usable; fails the suite if it is not within 30 s.
fs_mount() {
    case $FS in
        holdfast) fs_serve "$HOLDFAST" mount "$IMAGE" "$MNT" -o "$HOLDFAST_OPTS,$MOUNT_OPTS" --foreground ;;
        fuse2fs) fs_serve fuse2fs -f -o allow_other,fakeroot "$IMAGE" "$MNT" ;;
        ext4 | btrfs)
            LOOP=$(losetup --find --show "$IMAGE") && mount -t "$FS" "$LOOP" "$MNT" ;;
    esac || die "cannot mount the store on $FS"
}

# fs_unmount: orderly; fails the suite if the daemon has not ended after 60 s.
fs_unmount() {
    case $FS in
        holdfast) bounded 60 "$HOLDFAST" unmount "$MNT" >>"$WORK/daemon.log" 2>&1 ;;
        *) bounded 60 umount "$MNT" ;;
    esac || die "cannot unmount $MNT"
    fs_release 600 || die "the daemon is still there 60 s after the unmount"
}

# fs_release TENTHS: waits for the daemon to end, frees the loop device.
fs_release() {
    if [ -n "$DAEMON" ]; then
        for _ in $(seq "$1"); do kill -0 "$DAEMON" 2>/dev/null || break; sleep 0.1; done
        ! kill -0 "$DAEMON" 2>/dev/null || return 1
    fi
    [ -z "$LOOP" ] || losetup -d "$LOOP"
    DAEMON='' LOOP=''
}

fs_remount() { fs_unmount; fs_mount; }

# fs_crash: what was not made durable is lost, as in a power cut. The file system is unmounted afterwards.
# FUSE: SIGKILL to the daemon. ext4: the shutdown ioctl without a log flush (EXT4_IOC_SHUTDOWN, NOLOGFLUSH); an fsync that is
# under way then may answer without having done its work, so the writer ($SIDE) is stopped around it.
fs_crash() {
    case $FS in
        holdfast | fuse2fs) kill -KILL -- "-$DAEMON" ;;
        ext4)
            [ -z "${SIDE:-}" ] || { kill -STOP "$SIDE" 2>/dev/null && sleep 0.2; }
            perl -e 'open(my $d, "<", $ARGV[0]) or die; my $how = pack("L", 2); ioctl($d, 0x8004587d, $how) or die "shutdown: $!"' "$MNT" || die "the shutdown ioctl failed"
            [ -z "${SIDE:-}" ] || kill -CONT "$SIDE" 2>/dev/null || true ;;
        *) return 1 ;;
    esac || die "cannot crash $FS"
    fs_crash_done
}

# fs_crash_done: after the daemon has been killed, the mount goes away.
fs_crash_done() {
    # Processes with open files still see errors from the dead mount; wait for them to leave it.
    for _ in $(seq 50); do umount "$MNT" 2>/dev/null && break; sleep 0.1; done
    ! mountpoint -q "$MNT" || umount -l "$MNT"
    fs_release 100 || die "the daemon survived SIGKILL"
}

# can_crash: true if fs_crash works for this file system.
can_crash() { [ "$FS" != btrfs ]; }

# fs_check: offline check of the unmounted store; non-zero if anything is wrong with it.
fs_check() {
    case $FS in
        holdfast) "$HOLDFAST" check "$IMAGE" ;;
        ext4 | fuse2fs)
            # The check itself never replays the journal; replaying is not a repair.
            e2fsck -E journal_only -y "$IMAGE" >/dev/null 2>&1
            e2fsck -f -n "$IMAGE" ;;
        btrfs) btrfs check --readonly --force "$IMAGE" ;;
    esac
}

# fs_teardown: whatever state the suite stopped in, nothing stays mounted and no daemon stays behind.
fs_teardown() {
    cd / || true
    [ -z "${SIDE:-}" ] || kill -KILL "$SIDE" 2>/dev/null
    if mountpoint -q "$MNT" || [ -n "$DAEMON" ]; then
        case $FS in
            holdfast) bounded 30 "$HOLDFAST" unmount "$MNT" >/dev/null 2>&1 ;;
            *) bounded 30 umount "$MNT" 2>/dev/null ;;
        esac
        fs_release 100 || kill -KILL -- "-$DAEMON" 2>/dev/null
        ! mountpoint -q "$MNT" || umount -l "$MNT"
        fs_release 50
    fi
    rmdir "$MNT" 2>/dev/null
}

# witness_verify DIR JOURNAL: everything that fsync answered is there. A change that was not answered must be there whole or not at
# all on Holdfast; others do not promise that.
witness_verify() {
    local loose=--loose
    [ "$FS" != holdfast ] || loose=
    "$WITNESS" verify $loose "$1" "$2"
}

# manifest DIR: sha256, mode, size and link target of everything below DIR, in a stable order.
manifest() {
    (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum &&
        find . -printf '%p %y %m %U:%G %l %T@ ' \( -type f -printf '%s\n' -o -printf '\n' \) | LC_ALL=C sort)
}
