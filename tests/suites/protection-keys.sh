#!/bin/bash
# Runs what needs memory protection keys on a machine that has none: in a virtual machine whose processor, emulated by QEMU, has them.
#
# Usage: protection-keys.sh    (no part of `make test`; needs root for packages that are missing, not for itself)
#
# The tests of crates/guard and those of crates/physical about metadata in memory, and a mount that is worked with, killed and recovered,
# with a kernel of Debian's. A test that finds no keys would skip what it is about, so that is a failure here (CPU=max,pku=off: see it
# fail).
set -u -o pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/suites/lib.sh
. "$ROOT/tests/suites/lib.sh"
install_packages qemu-system-x86 busybox-static e2fsprogs fuse3

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
[ "${#GUARD[@]}${#PHYSICAL[@]}" = 21 ] || { say "the tests cannot be built"; exit 1; }

HOLDFAST=$(cargo build --manifest-path "$ROOT/Cargo.toml" -p holdfast --bin holdfast --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
[ -n "$HOLDFAST" ] || { say "holdfast cannot be built"; exit 1; }

ALL=("${GUARD[@]}" "${PHYSICAL[@]}" "$HOLDFAST" /bin/sh /usr/bin/timeout /usr/bin/fusermount3)
mkdir -p "$WORK"/root/{bin,etc,proc,sys,dev,tmp,disk,tests}
cp "${GUARD[@]}" "${PHYSICAL[@]}" "$HOLDFAST" "$WORK/root/tests/"
strip -g "$WORK"/root/tests/*
mv "$WORK/root/tests/holdfast" "$WORK/root/bin/"
cp -L /bin/busybox /bin/sh /usr/bin/timeout /usr/bin/fusermount3 "$WORK/root/bin/"
ln -s /proc/mounts "$WORK/root/etc/mtab"
echo 'root:x:0:0:root:/disk:/bin/sh' >"$WORK/root/etc/passwd"
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
for command in mount grep poweroff uname modprobe dd md5sum cmp pidof mkdir rm; do /bin/busybox ln -s busybox /bin/\$command; done
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
export PATH=/bin RUST_BACKTRACE=0
cd /tmp
echo "kernel \$(uname -r)"
grep -q -w ospke /proc/cpuinfo && echo "keys: yes"
$(for test in "${GUARD[@]##*/}"; do echo "/tests/$test --nocapture --test-threads=1 && echo 'passed: $test'"; done)
/tests/${PHYSICAL[0]##*/} --nocapture --test-threads=1 locked_block:: meta_block:: node_cache:: commit:: && echo 'passed: ${PHYSICAL[0]##*/}'
for module in ${MODULES[*]}; do modprobe \$module; done
mount -t ext4 /dev/vda /disk && (cd /disk && HOME=/disk sh -eu /tests/mount) && echo 'passed: a mount'
poweroff -f
INIT
chmod +x "$WORK/root/init"
(cd "$WORK/root" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$WORK/initrd"

say "in a virtual machine"
timeout -k 10 1800 qemu-system-x86_64 -accel tcg -cpu "${CPU:-max}" -m 2000 -smp 2 -nographic -no-reboot \
    -drive "file=$WORK/disk,if=virtio,format=raw" -kernel "$WORK"/kernel/boot/vmlinuz-* -initrd "$WORK/initrd" -append "console=ttyS0 quiet panic=-1" </dev/null | tr -d '\r' >"$WORK/log"
grep -a -o -E '(kernel [0-9]|keys: |passed: |test result: |test .* FAILED).*' "$WORK/log"
# What the tests say where they skip something, as they would with no keys.
if [ "$(grep -a -c '^passed' "$WORK/log")" = 4 ] && grep -a -q '^keys: yes' "$WORK/log" &&
    ! grep -a -E 'no memory protection keys|has none' "$WORK/log"; then
    say "all passed, with protection keys"
else
    tail -n 60 "$WORK/log"
    say "FAILED"
    exit 1
fi
