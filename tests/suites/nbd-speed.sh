#!/usr/bin/env bash
# The NBD server beside nbdkit's file plugin: the same file, the same kind of socket, the same fio jobs, in turns; medians and ratios.
#
# Both go through the page cache, as nbdkit knows nothing else. ROUNDS (default 5), RUNTIME_S of each job (default 2), PLACES: directories for the
# file (default /dev/shm and the work directory). SIZE of the file (default 512M). JOBS runs only these, by number.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for nbd) || exit 1
become_root "$@"
SERVE=${SERVE:-$TARGET/release/examples/nbd-serve}
[ -x "$SERVE" ] || { echo "nbd-speed: no binary at $SERVE: cargo build --release -p holdfast-block --example nbd-serve"; exit 1; }
HOLDFAST=$SERVE   # nothing else of Holdfast's is needed
suite_begin nbd-speed
SIZE=${SIZE:-512M}
read -r -a places <<<"${PLACES:-/dev/shm $WORK}"
jobs=("randwrite 4k 1" "randwrite 4k 16" "randread 4k 1" "randread 4k 16" "write 1M 1" "write 1M 4" "read 1M 1" "read 1M 4")
read -r -a chosen <<<"${JOBS:-${!jobs[*]}}"
FILE=''
cleanup() { [ -z "$SIDE" ] || kill "$SIDE" 2>/dev/null; [ -z "$FILE" ] || rm -f "$FILE"; }
trap 'cleanup; fail "stopped before its end"; suite_end' EXIT
trap 'cleanup; fail "interrupted or out of time"; suite_end' INT TERM

# measure SERVER JOB: MB/s of one run, appended to a file of numbers.
measure() {
    local server=$1 mode bs depth
    read -r mode bs depth <<<"$2"
    rm -f "$WORK/s"
    case $server in
        holdfast) "$SERVE" "$FILE" --buffered --socket "$WORK/s" >/dev/null 2>&1 9>&- & ;;
        nbdkit) nbdkit -f -U "$WORK/s" file "$FILE" >/dev/null 2>&1 9>&- & ;;
    esac
    SIDE=$!
    for _ in $(seq 100); do [ -S "$WORK/s" ] && break; sleep 0.05; done   # neither tells when it listens
    fio --name=job --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/s" --rw="$mode" --bs="$bs" --iodepth="$depth" --size="$SIZE" \
        --time_based --runtime="${RUNTIME_S:-2}" --randseed="$SEED" --norandommap --output-format=json >"$WORK/out.json" 2>>"$WORK/fio.log" || die "fio failed: $server $2"
    # fio says before the document that it has connected.
    python3 -c 'import json, sys; job = json.loads("{" + sys.stdin.read().split("{", 1)[1])["jobs"][0]; print(round((job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / 1e6, 1))' \
        <"$WORK/out.json" >>"$WORK/$server.${2// /-}"
    kill "$SIDE"
    wait "$SIDE" 2>/dev/null
    SIDE=''
}
median() { sort -n "$1" | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }

printf '| file on | job | nbdkit MB/s | Holdfast MB/s | ratio |\n|---|---|---|---|---|\n'
for place in "${places[@]}"; do
    FILE=$place/holdfast-nbd-speed
    head -c "$(numfmt --from=iec "$SIZE")" /dev/urandom >"$FILE" || die "no room in $place"
    kind=$(stat -f -c %T "$place")
    rm -f "$WORK"/nbdkit.* "$WORK"/holdfast.*
    for round in $(seq "${ROUNDS:-5}"); do
        for at in "${chosen[@]}"; do
            # Who begins changes from round to round.
            order="nbdkit holdfast"; [ $((round % 2)) = 0 ] || order="holdfast nbdkit"
            for server in $order; do measure "$server" "${jobs[at]}"; done
        done
    done
    for at in "${chosen[@]}"; do
        job=${jobs[at]}
        theirs=$(median "$WORK/nbdkit.${job// /-}") ours=$(median "$WORK/holdfast.${job// /-}")
        printf '| %s | %s | %s | %s | %s |\n' "$kind" "$job" "$theirs" "$ours" "$(awk "BEGIN { printf \"%.2f\", $ours / $theirs }")"
    done
    rm -f "$FILE"; FILE=''
done
pass "measured"
suite_end
