#!/usr/bin/env bash
# Coverage-guided fuzzing of every decoder of foreign bytes, by libFuzzer (built from the sources of the crate `libfuzzer-sys`; needs
# g++), with stable Rust. It starts from sound structures and from what is kept in fuzz/corpus/.
#
# SECONDS_EACH  for each decoder (default 20); the whole stack, `store`, gets STORE_SECONDS (default three times as long)
# DECODERS      which (default: all)
# KEEP=1        adds to fuzz/corpus/ what reaches new code, and drops what reaches nothing of its own; sound-* stays
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for fuzz) || exit 1
NAME=fuzz

seconds=${SECONDS_EACH:-20}
work=$SUITE_WORK/fuzz
target=$TARGET/fuzz
triple=$(rustc -vV | sed -n 's/^host: //p')
# What cargo-fuzz passes, without the sanitizers, which need nightly: counters and compared values at every edge.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
(cd "$ROOT/fuzz" && CARGO_TARGET_DIR=$target RUSTFLAGS="$coverage" cargo build --quiet --target "$triple") || { say "it does not build"; exit 1; }
fuzzer=$target/$triple/debug/holdfast-fuzz

# keep DECODER: makes its corpus anew, the smallest files that reach all that the old ones and the new ones reach.
keep() {
    local corpus=$ROOT/fuzz/corpus/$1 kept=$work/kept/$1
    rm -rf "$kept"
    mkdir -p "$kept"
    cp "$corpus"/sound-* "$kept"
    "$fuzzer" -merge=1 -max_len=4096 "$kept" "$corpus" "$work/new/$1" || return 1
    rm "$corpus"/*
    cp "$kept"/* "$corpus"
}

mkdir -p "$work"
mapfile -t known < <(cd "$ROOT" && cargo run --quiet -p holdfast-lab --bin decoder-seeds -- "$work/sound")
[ ${#known[@]} != 0 ] || { say "no decoders"; exit 1; }
read -r -a decoders <<<"${DECODERS:-${known[*]}}"
for decoder in "${decoders[@]}"; do
    limit=$seconds
    [ "$decoder" != store ] || limit=${STORE_SECONDS:-$((seconds * 3))}
    mkdir -p "$work/new/$decoder" "$work/finds/$decoder"
    log=$work/$decoder.log
    export DECODER=$decoder
    if "$fuzzer" -max_total_time="$limit" -timeout=60 -rss_limit_mb=2048 -max_len=4096 -seed="$((SEED % 4294967295))" \
        -artifact_prefix="$work/finds/$decoder/" "$work/new/$decoder" "$ROOT/fuzz/corpus/$decoder" "$work/sound/$decoder" >"$log" 2>&1; then
        pass "$decoder"
        say "$decoder: $(sed -nE 's/^#([0-9]+)\s+DONE +cov: ([0-9]+).*/\1 executions, \2 edges/p' "$log"), $limit s"
    else
        fail "$decoder: $(grep -E -m 1 'panicked at|ERROR: libFuzzer' "$log"); the bytes are in $work/finds/$decoder, replay: DECODER=$decoder $fuzzer FILE"
    fi
    [ -z "${KEEP:-}" ] || keep "$decoder" >>"$log" 2>&1 || fail "$decoder: what reaches new code cannot be kept, see $log"
done
printf '%s: %s passed, %s failed, %s skipped\n' "$NAME" "$PASSED" "$FAILED" "$SKIPPED"
[ "$FAILED" = 0 ]
