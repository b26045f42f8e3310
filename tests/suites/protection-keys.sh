#!/bin/bash
# Runs what needs memory protection keys on a machine that has none: in a virtual machine whose processor, emulated by QEMU, has them.
#
# Usage: protection-keys.sh    (part of `make test-long`; needs root for packages that are missing, not for itself)
#
# The tests of crates/guard and those of crates/physical, object and cache about metadata in memory, mounts that are worked with, killed and
# recovered, with a kernel of Debian's. A test that finds no keys would skip what it is about, so that is a failure here (CPU=max,pku=off: see it
# fail).
#
# That kernel has Yama, so transfers with checksums are tested here, too, where nobody may look into other processes (crates/cli/tests/it/yama.rs,
# and confined.rs with ptrace_scope=1). ONLY=yama: that alone.
set -u -o pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/suites/lib.sh
. "$ROOT/tests/suites/lib.sh"
install_packages qemu-system-x86 busybox-static e2fsprogs fuse3 util-linux

ONLY=${ONLY:-}
WORK=$(mktemp -d) || exit 1
trap 'rm -rf "$WORK"' EXIT
say() { echo "protection-keys: $*"; }

# Unpacked only: nothing of this machine is to boot it.
KERNEL=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
(cd "$WORK" && apt-get download -qq "$KERNEL" && dpkg -x "$KERNEL"*.deb kernel) || { say "no kernel: linux-image-cloud-amd64"; exit 1; }

# Paths of the test binaries of a crate.
binaries() {
    cargo test --manifest-path "$ROOT/Cargo.toml" -p "$1" "${@:2}" --no-run --message-format=json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}
mapfile -t GUARD < <(binaries holdfast-guard --lib --test it)
mapfile -t PHYSICAL < <(binaries holdfast-physical --lib)
mapfile -t OBJECT < <(binaries holdfast-object --lib)
mapfile -t CACHE < <(binaries holdfast-cache --test it)
[ "${#GUARD[@]}${#PHYSICAL[@]}${#OBJECT[@]}${#CACHE[@]}" = 2111 ] || { say "the tests cannot be built"; exit 1; }

# The command's tests come with the command itself.
CLI=() HOLDFAST=
while read -r file; do
    case $file in */deps/*) CLI+=("$file") ;; *) HOLDFAST=$file ;; esac
done < <(binaries holdfast --test it)
[ "${#CLI[@]}" = 1 ] && [ -n "$HOLDFAST" ] || { say "holdfast and its tests cannot be built"; exit 1; }

# What containers and sandboxes are made with.
TOOLS=(/usr/bin/unshare /usr/bin/setpriv /bin/mount /bin/umount /usr/sbin/pivot_root)
TESTS=("${GUARD[@]}" "${PHYSICAL[@]}" "${OBJECT[@]}" "${CACHE[@]}" "${CLI[@]}")
ALL=("${TESTS[@]}" "$HOLDFAST" /bin/sh /usr/bin/timeout /usr/bin/fusermount3 "${TOOLS[@]}")
mkdir -p "$WORK"/root/{bin,etc,proc,sys,dev,tmp,disk,tests,usr/bin}
cp "${TESTS[@]}" "$HOLDFAST" "$WORK/root/tests/"
strip -g "$WORK"/root/tests/*
mv "$WORK/root/tests/holdfast" "$WORK/root/bin/"
cp -L /bin/busybox /bin/sh /usr/bin/timeout /usr/bin/fusermount3 "${TOOLS[@]}" "$WORK/root/bin/"
# Where the command's tests look for it, and for a disk to work on.
mkdir -p "$WORK/root$(dirname "$HOLDFAST")"
ln -s /bin/holdfast "$WORK/root$HOLDFAST"
ln -s /disk/tmp "$WORK/root$(dirname "$(dirname "$HOLDFAST")")/tmp"
ln -s /proc/mounts "$WORK/root/etc/mtab"
printf '%s\n' root:x:0:0:root:/disk:/bin/sh user:x:65533:65533::/: other:x:65534:65534::/: >"$WORK/root/etc/passwd"
# Users may let others see their mounts.
echo user_allow_other >"$WORK/root/etc/fuse.conf"
ldd "${ALL[@]}" | grep -o '/[^ )]*\.so[^ )]*' | sort -u | while read -r library; do
    mkdir -p "$WORK/root$(dirname "$library")" && cp -L "$library" "$WORK/root$library"
done
# A disk with a file system that takes direct I/O, and the modules for it.
truncate -s 2G "$WORK/disk" && mkfs.ext4 -q -F "$WORK/disk"
VERSION=$(basename "$WORK"/kernel/lib/modules/*)
busybox depmod -b "$WORK/kernel" "$VERSION"
MODULES=(virtio_pci virtio_blk crc32c_generic ext4 fuse)
(
    cd "$WORK/kernel" && cp --parents "lib/modules/$VERSION/modules.dep" "$WORK/root"
    for module in "${MODULES[@]}"; do
        # The module, and those that it needs.
        grep -E "(^|/)$module\.ko:" "lib/modules/$VERSION/modules.dep" | tr -d : | tr ' ' '\n' | grep . |
            while read -r file; do cp --parents "lib/modules/$VERSION/$file" "$WORK/root"; done
    done
)
cp "$ROOT/tests/suites/protection-keys-mount.sh" "$WORK/root/tests/mount"
cat >"$WORK/root/init" <<INIT
#!/bin/busybox sh
for command in grep poweroff uname modprobe dd md5sum cmp pidof mkdir rm cp ln chown chmod cat touch true switch_root; do
    /bin/busybox ln -s busybox /bin/\$command
done
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /tmp
export PATH=/bin RUST_BACKTRACE=0
cd /tmp
echo "kernel \$(uname -r)"
grep -q -w ospke /proc/cpuinfo && echo "keys: yes"
for module in ${MODULES[*]}; do modprobe \$module; done
mount -t ext4 /dev/vda /disk
mkdir /disk/tmp
[ "$ONLY" = yama ] || . /tests/keys
# The tests of containers exchange the root directory, which the one in memory that a kernel begins with does not permit.
for part in /*; do
    case \$part in /disk | /proc | /sys | /dev | /init) ;; *) cp -a "\$part" /disk/ ;; esac
done
mkdir -p /disk/proc /disk/sys /disk/dev
ln -s / /disk/disk
for part in proc sys dev; do mount -n --move "/\$part" "/disk/\$part"; done
exec switch_root /disk /tests/yama
INIT
cat >"$WORK/root/tests/keys" <<KEYS
$(for test in "${GUARD[@]##*/}"; do echo "/tests/$test --nocapture --test-threads=1 && echo 'passed: $test'"; done)
/tests/${PHYSICAL[0]##*/} --nocapture --test-threads=1 locked_block:: meta_block:: node_cache:: commit:: && echo 'passed: ${PHYSICAL[0]##*/}'
/tests/${OBJECT[0]##*/} --nocapture --test-threads=1 arena:: && echo 'passed: ${OBJECT[0]##*/}'
/tests/${CACHE[0]##*/} --nocapture --test-threads=1 stray_writes:: twins:: && echo 'passed: ${CACHE[0]##*/}'
/tests/${CLI[0]##*/} --nocapture --test-threads=1 locked:: && echo 'passed: ${CLI[0]##*/}'
(cd /disk && HOME=/disk sh -eu /tests/mount) && echo 'passed: a mount'
KEYS
cat >"$WORK/root/tests/yama" <<YAMA
#!/bin/sh
chmod 755 / /tests /bin; chmod 1777 /tmp; chmod 666 /dev/fuse /dev/null
chown 0:0 /bin/fusermount3; chmod 4755 /bin/fusermount3
echo 1 >/proc/sys/kernel/yama/ptrace_scope && cd /tmp &&
    /tests/${CLI[0]##*/} --nocapture --test-threads=1 --exact confined::programs_in_containers_and_daemons_in_sandboxes &&
    /tests/${CLI[0]##*/} --nocapture --test-threads=1 --exact --ignored yama::transfers_pass_whatever_the_kernel_permits &&
    echo 'passed: transfers with checksums, with ptrace_scope from 0 to 3'
poweroff -f
YAMA
chmod +x "$WORK/root/init" "$WORK/root/tests/yama"
(cd "$WORK/root" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$WORK/initrd"

say "in a virtual machine"
timeout -k 10 1800 qemu-system-x86_64 -accel tcg -cpu "${CPU:-max}" -m 2000 -smp 2 -nographic -no-reboot \
    -drive "file=$WORK/disk,if=virtio,format=raw" -kernel "$WORK"/kernel/boot/vmlinuz-* -initrd "$WORK/initrd" -append "console=ttyS0 quiet panic=-1" </dev/null | tr -d '\r' >"$WORK/log"
grep -a -o -E '(kernel [0-9]|keys: |passed: |test result: |test .* FAILED|ptrace_scope [0-9]).*' "$WORK/log"
PARTS=8
[ "$ONLY" != yama ] || PARTS=1
# What the tests say where they skip something, as they would with no keys.
if [ "$(grep -a -c '^passed' "$WORK/log")" = "$PARTS" ] && grep -a -q '^keys: yes' "$WORK/log" &&
    ! grep -a -E 'no memory protection keys|has none|SKIPPED' "$WORK/log"; then
    say "all passed, with protection keys"
else
    tail -n 60 "$WORK/log"
    say "FAILED"
    exit 1
fi
