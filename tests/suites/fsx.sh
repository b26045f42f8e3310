#!/usr/bin/env bash
# Data correctness of one file under random operations, mmap among them: the crate `fsx`.
# 20,000 operations per seed; odd seeds without msync after a write to the mapping, so that the kernel decides when
# mapped pages reach the file system.
# SEED=N starts with another seed; SEEDS and OPERATIONS change how much is run.
. "$(dirname "$0")/lib.sh"
install_tool fsx 0.3.2 || exit 1
become_root "$@"
suite_begin fsx

fs_create
fs_mount
mkdir "$WORK/artifacts"
for i in $(seq 0 $((${SEEDS:-4} - 1))); do
    seed=$((SEED + i))
    cp "$ROOT/tests/suites/fsx.toml" "$WORK/fsx.toml"
    [ $((seed % 2)) = 0 ] || sed -i '1i nomsyncafterwrite = true' "$WORK/fsx.toml"
    say "seed $seed"
    check "seed $seed (replay: SEED=$seed SEEDS=1 tests/suites/fsx.sh)" bounded "${LIMIT:-120}" \
        "$TOOLS/bin/fsx" -f "$WORK/fsx.toml" -S "$seed" -N "${OPERATIONS:-20000}" -P "$WORK/artifacts" "$MNT/file.$seed"
done

# What fsx left is still the same when it comes from the disk.
sha256sum "$MNT"/file.* | sed "s,$MNT/,," >"$WORK/sums"
fs_remount
check "same contents after a remount" bash -c "cd '$MNT' && sha256sum --quiet -c '$WORK/sums'"
fs_unmount
check "store is clean after fsx" fs_check
suite_end
