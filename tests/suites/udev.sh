#!/usr/bin/env bash
# A Flashlog's backup plugged in under udev, with the rule and the units of contrib: in a virtual machine with Debian, systemd as process 1, and a
# USB stick that QEMU's monitor plugs in and out. What is looked at there is in udev-guest.sh.
#
# Usage: udev.sh    (part of `make test-long`; needs root, for Debian's root directory)
#
# DEBIAN=FILE.tar is a root directory that stays for other runs; it is made if it is not there.
# RULES=FILE takes another rule: with one that does not know a backup (`sed 's/=="backup"/=="main"/'`), it fails.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for udev) || exit 1
become_root "$@"
suite_begin udev
RULES=${RULES:-$ROOT/contrib/udev/90-holdfast-flashlog.rules}
GUEST=$WORK/root

# The same release as here, as the binary goes by its libraries.
RELEASE=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
DEBIAN=${DEBIAN:-$WORK/debian.tar}
# What the initial RAM disk needs for the root, and no more.
# shellcheck disable=SC2016
[ -e "$DEBIAN" ] || bounded 1800 mmdebstrap --quiet --mode=root --variant=essential --include=systemd,systemd-sysv,udev,kmod,libnbd-bin,linux-image-amd64 \
    --aptopt='APT::Install-Recommends "false"' --essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"' \
    --essential-hook='echo MODULES=list >"$1/etc/initramfs-tools/conf.d/udev"' \
    --essential-hook='printf "%s\n" virtio_pci virtio_blk ext4 >"$1/usr/share/initramfs-tools/modules.d/udev"' \
    "$RELEASE" "$DEBIAN" >"$WORK/debian.log" 2>&1 || { tail -n 25 "$WORK/debian.log"; die "no root directory with Debian"; }
{ mkdir "$GUEST" && tar -xf "$DEBIAN" -C "$GUEST"; } || die "no root directory with Debian"

# As `make install` has it.
install -D -m 755 "$HOLDFAST" "$GUEST/usr/local/bin/holdfast" && strip "$GUEST/usr/local/bin/holdfast"
install -D -m 644 -t "$GUEST/usr/local/lib/systemd/system" "$ROOT"/contrib/systemd/holdfast*
install -D -m 644 "$RULES" "$GUEST/usr/local/lib/udev/rules.d/90-holdfast-flashlog.rules"
install -m 755 "$ROOT/tests/suites/udev-guest.sh" "$GUEST/usr/local/bin/"
cat >"$GUEST/etc/systemd/system/test.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
ExecStart=/usr/local/bin/udev-guest.sh
StandardOutput=file:/dev/ttyS1
StandardError=inherit
[Install]
WantedBy=multi-user.target
UNIT
chroot "$GUEST" systemctl --quiet enable test.service || die "no unit for the test"
bounded 300 mke2fs -q -t ext4 -d "$GUEST" "$WORK/root.img" 2G >"$WORK/mke2fs.log" || die "no disk with Debian"
cp -L "$GUEST/vmlinuz" "$GUEST/initrd.img" "$WORK/"
rm -rf --one-file-system "$GUEST"
truncate -s 64M "$WORK/main" && truncate -s 64M "$WORK/log" && truncate -s 80M "$WORK/backup" && truncate -s 16M "$WORK/foreign"
mke2fs -q -t ext4 "$WORK/foreign"

# ---- the machine --------------------------------------------------------------------------------------------------------

# A stick is slow: so it can be pulled out while it is written.
# shellcheck disable=SC2054
MACHINE=(-accel tcg -m 1024 -smp 2 -display none -no-reboot -monitor stdio -serial "file:$WORK/console" -serial "file:$WORK/said"
    -object throttle-group,id=slow,x-bps-write=3145728 -device qemu-xhci
    -drive "file=$WORK/root.img,if=none,id=root,format=raw" -device virtio-blk-pci,drive=root,serial=root
    -drive "file=$WORK/main,if=none,id=main,format=raw" -device virtio-blk-pci,drive=main,serial=main
    -drive "file=$WORK/log,if=none,id=log,format=raw" -device virtio-blk-pci,drive=log,serial=log
    -blockdev "raw,node-name=foreign,file.driver=file,file.filename=$WORK/foreign"
    -blockdev "throttle,node-name=backup,throttle-group=slow,file.driver=raw,file.file.driver=file,file.file.filename=$WORK/backup"
    -kernel "$WORK/vmlinuz" -initrd "$WORK/initrd.img" -append "root=/dev/vda rootfstype=ext4 rw console=ttyS0 quiet systemd.default_timeout_start_sec=600")
: >"$WORK/said"
mkfifo "$WORK/monitor"
exec 8<>"$WORK/monitor"
say "in a virtual machine"
qemu-system-x86_64 "${MACHINE[@]}" <&8 >/dev/null 2>"$WORK/qemu.log" 9>&- &
SIDE=$!
# What the machine says, as it says it: asks of the monitor are done, results counted.
while IFS= read -r line; do
    case $line in
        monitor:*) echo "${line#monitor: }" >&8 ;;
        pass:*) pass "${line#pass: }" ;;
        FAIL:*) fail "${line#FAIL: }" ;;
        "udev: at its end") END=1 ;&
        *) echo "$line" ;;
    esac
done < <(bounded "${LIMIT:-2400}" tail -q -n +1 -f --pid=$SIDE "$WORK/said" | stdbuf -oL tr -d '\r')
kill $SIDE 2>/dev/null   # it is off, unless its time was up
wait $SIDE
SIDE=
[ -n "${END:-}" ] || { tail -n 25 "$WORK/console" "$WORK/qemu.log"; fail "the machine has not come to its end"; }
suite_end
