#!/usr/bin/env bash
# fio with verification: each job writes blocks that carry a checksum, their own offset and a random seed, and reads them again:
# while it writes, at its end, and once more from the disk after a remount.
# RUNTIME_S bounds each job's time, SIZE its file.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for fio) || exit 1
become_root "$@"
suite_begin fio

# NAME ENGINE MODE and further options of fio. The files stay, for the second reading.
jobs=$(cat <<'JOBS'
seq       psync  write     --bs=128k --end_fsync=1
rand      psync  randwrite --bs=4k --fsync=32
mixed     psync  randrw    --bsrange=512-64k --bs_unaligned=1 --rwmixread=40
small     psync  write     --bs=700 --fdatasync=64
mmap      mmap   randwrite --bs=4k --fsync=64
mmapseq   mmap   write     --bs=32k
direct    libaio randwrite --bs=4k --direct=1 --iodepth=16
directmix libaio randrw    --bssplit=4k/50:16k/30:128k/20 --direct=1 --iodepth=8
osync     psync  randwrite --bs=8k --sync=1
vector    pvsync randwrite --bs=16k
threads   psync  randwrite --bs=4k --numjobs=4 --thread
JOBS
)
# run JOB ENGINE MODE OPTION...
run() {
    local name=$1 engine=$2 mode=$3; shift 3
    local size=${SIZE:-16m}
    # With O_SYNC each write waits for the disk.
    [ "$name" != osync ] || size=2m
    bounded "${LIMIT:-120}" fio --name="$name" --directory="$MNT" --ioengine="$engine" --rw="$mode" --size="$size" "$@" \
        --verify=crc32c-intel --verify_fatal=1 --verify_state_save=0 --randseed="$SEED" --group_reporting --minimal --output="$WORK/$name.out" "${how[@]}"
}
fs_create
fs_mount
how=(--do_verify=1)
while read -r name engine mode options; do
    # shellcheck disable=SC2086
    check "$name: write and verify" run "$name" "$engine" "$mode" $options
done <<<"$jobs"
(cd "$MNT" && sha256sum -- *) >"$WORK/sums"
fs_remount
check "same contents after a remount" bash -c "cd '$MNT' && sha256sum --quiet -c '$WORK/sums'"
how=(--verify_only)
while read -r name engine mode options; do
    case $mode in *rw*) continue ;; esac   # fio cannot tell which blocks a mixed job had written
    # shellcheck disable=SC2086
    check "$name: verify after a remount" run "$name" "$engine" "$mode" $options
done <<<"$jobs"
# A check that cannot fail proves nothing: one changed byte in the middle of a block must be found.
printf 'X' | dd of="$MNT/seq.0.0" bs=1 seek=1000000 conv=notrunc status=none
if run seq psync write --bs=128k >/dev/null 2>&1; then fail "fio does not notice a changed byte"; else pass "fio notices a changed byte"; fi
fs_unmount
check "store is clean" fs_check
suite_end
