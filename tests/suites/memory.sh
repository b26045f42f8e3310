#!/usr/bin/env bash
# The daemon's memory: with FILES files made and looked up and VOLUME_MB written and as much read it stays within its configured
# cache plus 128 MiB. Printed at each stage: the peak of its resident memory (VmHWM), and what it is now: anonymous, and shared,
# which is the pool of pages.
. "$(dirname "$0")/lib.sh"
become_root "$@"
suite_begin memory
[ "$FS" = holdfast ] || { skip "$FS is not a daemon with a configured cache"; suite_end; }

cache_mb=${CACHE_MB:-64}
MOUNT_OPTS=cache=${cache_mb}M${MOUNT_OPTS:+,$MOUNT_OPTS}
limit_kb=$(((cache_mb + 128) * 1024))
files=${FILES:-100000} volume_mb=${VOLUME_MB:-2048} file_mb=${FILE_MB:-256}
field() { awk -v name="$1:" '$1 == name { print $2 }' "/proc/$DAEMON/status"; }
# stage WHAT: prints a line, and one result.
stage() {
    local peak; peak=$(field VmHWM)
    printf '%s: %-44s peak %4d MiB, now %4d MiB anonymous, %4d MiB pages\n' "$NAME" "$1" $((peak / 1024)) \
        $(($(field RssAnon) / 1024)) $(($(field RssShmem) / 1024))
    [ "$peak" -le "$limit_kb" ] && pass "$1" || fail "$1: the peak is $peak KiB, $limit_kb KiB are allowed"
}

fs_create
fs_mount
say "cache $cache_mb MiB, limit $((limit_kb / 1024)) MiB"
stage "mounted"
# A thousand files in each directory; each has its number in it.
make_files() { perl -e '
    my ($dir, $files) = @ARGV;
    for my $n (0 .. $files - 1) {
        my $d = sprintf("%s/%04d", $dir, $n / 1000);
        if ($n % 1000 == 0) { mkdir $d or die "$d: $!" }
        open(my $f, ">", "$d/$n") or die "$d/$n: $!";
        print $f $n; close $f or die "$d/$n: $!";
    }' "$@"; }
check "$files files are made" make_files "$MNT" "$files"
stage "$files files made"
check "all are listed with their attributes" bash -c "[ \$(find '$MNT' -type f -size -2 -printf x | wc -c) = $files ]"
stage "all looked up"
check "all are read" bash -c "[ \$(find '$MNT' -type f -print0 | xargs -0 cat | wc -c) = $(perl -e 'my $s = 0; $s += length for 0 .. $ARGV[0] - 1; print $s' "$files") ]"
stage "all read"
# The volume as a file that is written again and again, each time with other bytes, and read back.
for round in $(seq $((volume_mb / file_mb))); do
    perl -MFcntl -e 'my $block = pack("L*", map { $_ * $ARGV[2] } 1 .. 262144); sysopen(my $f, $ARGV[0], O_RDWR | O_CREAT) or die;
        for (1 .. $ARGV[1]) { syswrite($f, $block) == 1048576 or die "write: $!" }' "$MNT/big" "$file_mb" "$round" || fail "round $round: write"
    perl -e 'my $block = pack("L*", map { $_ * $ARGV[2] } 1 .. 262144); open(my $f, "<", $ARGV[0]) or die;
        for (1 .. $ARGV[1]) { my $got; sysread($f, $got, 1048576) == 1048576 && $got eq $block or die "other bytes at MiB $_" }' "$MNT/big" "$file_mb" "$round" || fail "round $round: read"
    [ $((round % 8)) != 0 ] || [ "$round" = $((volume_mb / file_mb)) ] || stage "$((round * file_mb)) MiB written and read"
done
stage "$volume_mb MiB written and read"
check "all are removed" bash -c "rm -r '$MNT'/*"
stage "all removed"
fs_unmount
check "store is clean" fs_check
suite_end
