#!/bin/bash
# Disks of a Flashlog plugged in and out under udev and systemd. Part of udev.sh, which starts it in a virtual machine with the set's main and log,
# does what it asks of QEMU's monitor (`monitor: …`), and counts its results.
set -u -o pipefail
say() { echo "udev: $*"; }
pass() { echo "pass: $*"; }
fail() { echo "FAIL: $*"; }
check() {
    local what=$1 out; shift
    if out=$("$@" 2>&1); then pass "$what"; else fail "$what (exit $?): $*"; printf '%s\n' "$out" | tail -n 25 | sed 's/^/    /'; fi
}
# within SECONDS COMMAND...: until it is true.
within() {
    local until=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || { "$@"; return 1; }
        sleep 0.2
    done
}
# When it cannot go on.
end() { fail "$*"; report; power_off; exit; }
report() {
    systemctl --no-pager --full status 'holdfast-flashlog*' 2>&1
    journalctl --no-pager -b -u 'holdfast*' -u systemd-udevd | tail -n 60
}
# There is no logind to tell of it.
power_off() { systemctl poweroff 2>/dev/null; }
monitor() { echo "monitor: $*"; }

USB=/dev/disk/by-id/usb-QEMU_QEMU_HARDDISK_
# plug NAME, virtio NAME, unplug NAME; the disk's name in /dev is in $DISK then.
plug() { monitor "device_add usb-storage,id=$1,drive=$1,serial=$1"; arrived "$USB$1-0:0"; }
virtio() { monitor "device_add virtio-blk-pci,id=$1,drive=$1,serial=$1"; arrived "/dev/disk/by-id/virtio-$1"; }
arrived() {
    within 120 test -e "$1" || end "$1 does not come"
    DISK=$(readlink -f "$1")
    DEVICE=$(systemd-escape --path --suffix=device "$DISK")
    UNIT=$(systemd-escape --path --template=holdfast-flashlog-backup@.service "$DISK")
}
unplug() {
    monitor "device_del $1"
    within 120 is_gone || end "$DISK does not go"
    udevadm settle
}
is_gone() { [ ! -e "$DISK" ] && ! systemctl -q is-active "$DEVICE"; }

# property NAME: of the backup's unit.
property() { systemctl show --value -p "$1" "$UNIT"; }
has() { [ "$(property "$1")" = "$2" ]; }
# Units of backups that are, or were, anything at all.
units() { systemctl list-units --all --plain --no-legend 'holdfast-flashlog-backup@*'; }
none() { [ -z "$(units)" ] || { units; return 1; }; }
quiet() { [ "$(systemctl list-jobs --no-legend 2>&1 | grep -c holdfast)" = 0 ]; }
well() { within 60 quiet && none_failed; }
none_failed() { [ -z "$(failed)" ] || { systemctl --failed; return 1; }; }
failed() { systemctl list-units --plain --no-legend --state=failed; }
# Of a unit that has ended well systemd forgets all, so the journal is asked. began, finished: how often.
began() { journalctl -b -o cat -u "$UNIT" | grep -c '^Starting '; }
finished() { journalctl -b -o cat -u "$UNIT" | grep -c '^Finished '; }
done_after() { [ "$(finished)" -gt "$1" ] && ! has ActiveState activating; }
# links ROLE: the name that stays leads to the disk.
links() { [ "$(readlink -f "/dev/disk/by-holdfast-flashlog/$SET-$1")" = "$DISK" ]; }

# The set: what is written since the backup, and whether all is as it should be.
status() { holdfast flashlog status "$@"; }
since() { status --json | sed -n 's/.*"since_backup_bytes": *\([0-9]*\).*/\1/p'; }
is_new() { status && [ "$(since)" = 0 ]; }
is_behind() { [ "$(since)" -gt 0 ] || { status; return 1; }; }
URI="nbd+unix:///?socket=/run/holdfast/laptop.nbd"
# write MIB: other bytes each time, at the beginning of the set.
write() { head -c "${1}M" /dev/urandom >/root/data && nbdcopy --flush /root/data "$URI"; }
holds_data() { rm -f /root/read; nbdcopy "$URI" /root/read && cmp -n "$(stat -c %s /root/data)" /root/read /root/data; }

say "Linux $(uname -r), $(systemctl --version | head -n 1)"
UNIT=holdfast-flashlog-backup@none.service
within 300 test -e /dev/disk/by-id/virtio-main -a -e /dev/disk/by-id/virtio-log || end "no main or log"
udevadm settle

# ---- a set, served as the documentation says ---------------------------------------------------------------------------

check "a set is made" holdfast flashlog create --main /dev/disk/by-id/virtio-main --log /dev/disk/by-id/virtio-log
SET=$(status --export /dev/disk/by-id/virtio-main | sed -n 's/^HOLDFAST_FLASHLOG_SET=//p')
for role in main log; do
    DISK=$(readlink -f "/dev/disk/by-id/virtio-$role")
    check "udev names the $role as soon as it is one" within 60 links $role
done
mkdir -p /etc/holdfast/flashlog
printf '%s\n' "MAIN=/dev/disk/by-holdfast-flashlog/$SET-main" "LOG=/dev/disk/by-holdfast-flashlog/$SET-log" >/etc/holdfast/flashlog/laptop.conf
check "its socket is there" systemctl enable --now holdfast-flashlog@laptop.socket
check "the first client starts its server" write 8
check "it serves by names that stay" systemctl is-active holdfast-flashlog@laptop.service
check "neither main nor log start a backup" none

# ---- a disk of no Flashlog ----------------------------------------------------------------------------------------------

plug foreign
udevadm settle
links_to() { find -L /dev/disk/by-holdfast-flashlog -samefile "$DISK"; }
no_link() { [ -z "$(links_to)" ] || { links_to; return 1; }; }
check "a disk of no Flashlog gets no name" no_link
no_variable() { ! udevadm info "$DISK" | grep -E 'HOLDFAST|SYSTEMD_WANTS'; }
check "and no variable" no_variable
check "and starts nothing" none
check "it is there as ever" blkid "$DISK"
unplug foreign

# ---- the backup ---------------------------------------------------------------------------------------------------------

plug backup
udevadm settle
check "a disk that is to be a backup starts nothing yet" none
check "a first backup is made by hand" holdfast flashlog backup --to "$DISK"
check "udev names the backup as soon as it is one" within 60 links backup
udevadm settle
check "which starts nothing, as it was there before" none
unplug backup
check "its name goes with it" test ! -e "/dev/disk/by-holdfast-flashlog/$SET-backup"
check "the set is written further" write 16
check "so the backup lacks something" is_behind

udevadm monitor --udev --property --subsystem-match=block >/root/events &
MONITOR=$!
plug backup
check "plugged in, it has its name" within 60 links backup
# What is told of it later has this no more.
wants() { awk -v RS= -v disk="DEVNAME=$DISK\n" -v unit="SYSTEMD_WANTS=$UNIT\n" '/\nACTION=add\n/ && index($0 "\n", disk) && index($0 "\n", unit) { found = 1 } END { exit !found }' /root/events || { grep -E 'ACTION|SYSTEMD|HOLDFAST' /root/events; return 1; }; }
within 60 wants || end "udev does not have systemd want its unit"
pass "udev has systemd want its unit"
within 200 done_after 0 || end "its unit does not bring it up to date"
pass "the unit brings it up to date"
check "status says so" is_new
check "and so does reading it back" holdfast flashlog backup --to "$DISK" --verify
check "it keeps its name" within 60 links backup
check "nothing has failed" well
udevadm settle
not_again() { [ "$(began)" = 1 ] && ! has ActiveState activating; }
check "writing to it has not started its unit again" not_again
udevadm trigger --settle --action=change "$DISK"
check "nor has a change that udev tells of" not_again
kill $MONITOR
unplug backup
check "unplugged, nothing has failed" well
check "the set is what it was" is_new
check "it is written further" write 40
check "and read" holds_data

# ---- pulled out while it is written ---------------------------------------------------------------------------------------

plug backup
check "its unit is at work" within 60 has ActiveState activating
copying() { status | grep -i 'backing up\|being copied\|backup.*%' || status --json | grep '"backing_up": *true'; }
check "and the server copies" within 60 copying
unplug backup
stopped() { ! systemctl -q is-active "$UNIT" && ! has ActiveState activating && ! has SubState auto-restart; }
check "pulled out meanwhile, its unit is at an end" within 60 stopped
journalctl -b -o cat -u "$UNIT" | tail -n 6 | sed 's/^/    /'
# Whether it says so itself depends on who is faster, systemd or the server.
no_other() { failed; ! failed | grep -v -F "$UNIT"; }
check "nothing else has failed" no_other
check "the set is served on" holds_data
check "and the backup lacks what it lacked" is_behind
check "it takes writes" write 8
LAST=$(finished)
plug backup
check "plugged in again, it is brought up to date" within 300 done_after "$LAST"
check "nothing has failed" well
check "status says so" is_new
check "and so does reading it back" holdfast flashlog backup --to "$DISK" --verify
unplug backup

# ---- another bus, and a server that is not up -----------------------------------------------------------------------------

check "the set is written further" write 4
STICK=$UNIT
virtio backup
check "as a disk of another kind it has its name" within 60 links backup
check "and is brought up to date" within 300 done_after 0
check "status says so" is_new
unplug backup
check "unplugged, nothing has failed" well

check "the set is written further" write 4
check "its server ends" systemctl stop holdfast-flashlog@laptop.socket holdfast-flashlog@laptop.service
LAST=$(UNIT=$STICK finished)
plug backup
check "without a server its unit waits" within 120 has SubState auto-restart
check "the server is started" systemctl start holdfast-flashlog@laptop.socket holdfast-flashlog@laptop.service
check "and within a minute the backup is brought up to date" within 240 done_after "$LAST"
check "status says so" is_new
unplug backup
check "unplugged, nothing has failed" well
check "the set is what it was" holds_data

say "at its end"
power_off
