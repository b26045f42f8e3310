#!/usr/bin/env bash
# The NBD server beside nbdkit's file plugin: the same file, the same kind of socket, the same fio jobs, in turns; medians and ratios.
#
#   nbdkit    a file                                twice   two nbdkits, two files: the same job on each at once, the slower one counts
#   holdfast  the same, by this server              sync, async   a Flashlog of both files, by this server
#   serve-sync, serve-async   the same by `holdfast flashlog serve`, if that is built: past the page cache (O_DIRECT)
#   nbdkit-past, twice-past   nbdkit as far past the page cache as it goes: cache=none, which lets the kernel forget what was read or written,
#                             and an advice to the kernel that is true of the job; what the cache had before it is dropped
#
# The others go through the page cache. A Flashlog writes everything to two files, so what it can be held against is
# `twice`, past the page cache `twice-past`; reads have main alone, as one nbdkit. In jobs that end in "flushed", SIZE is written once and then flushed, and the time of that counts as well:
# in the others nbdkit leaves everything in the page cache, while a Flashlog flushes both files whenever it has gathered enough.
#
# ROUNDS (default 5), RUNTIME_S of each job (default 2), PLACES: directories for the files (default /dev/shm and the work directory). SIZE of the file
# (default 512M). JOBS runs only these, by number; SERVERS only these.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for nbd) || exit 1
become_root "$@"
SERVE=${SERVE:-$TARGET/release/examples/nbd-serve}
CLI=$HOLDFAST
[ -x "$SERVE" ] || { echo "nbd-speed: no binary at $SERVE: cargo build --release -p holdfast-block --example nbd-serve"; exit 1; }
HOLDFAST=$SERVE   # nothing else of Holdfast's is needed
suite_begin nbd-speed
SIZE=${SIZE:-512M}
read -r -a places <<<"${PLACES:-/dev/shm $WORK}"
jobs=("randwrite 4k 1" "randwrite 4k 16" "randread 4k 1" "randread 4k 16" "write 1M 1" "write 1M 4" "read 1M 1" "read 1M 4"
    "randwrite 4k 1 flushed" "randwrite 4k 16 flushed" "write 1M 1 flushed" "write 1M 4 flushed")
read -r -a chosen <<<"${JOBS:-${!jobs[*]}}"
default=(nbdkit twice holdfast sync async)
[ ! -x "$CLI" ] || default+=(nbdkit-past twice-past serve-sync serve-async)
read -r -a servers <<<"${SERVERS:-${default[*]}}"
FILE='' LOG='' PIDS=()
stop_servers() { local pid; for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; done; PIDS=(); }
cleanup() { stop_servers; [ -z "$FILE" ] || rm -f "$FILE" "$LOG"; }
trap 'cleanup; fail "stopped before its end"; suite_end' EXIT
trap 'cleanup; fail "interrupted or out of time"; suite_end' INT TERM

# measure SERVER JOB: MB/s of one run, appended to a file of numbers.
measure() {
    local server=$1 mode bs depth end load sockets=("$WORK/s") jobs=() socket file plugin=() advice
    read -r mode bs depth end <<<"$2"
    load=(--time_based --runtime="${RUNTIME_S:-2}")
    [ -z "$end" ] || load=(--end_fsync=1)
    # Nobody pays for what others have left.
    sync "$FILE" "$LOG"
    case $server in
        *-past | serve-*)
            advice=normal   # of writes that are not scattered: "sequential" is for reads
            [[ $mode != rand* ]] || advice=random
            [ "$mode" != read ] || advice=sequential
            for file in "$FILE" "$LOG"; do dd if="$file" iflag=nocache count=0 status=none; done
            [[ $server == serve-* ]] || plugin=(cache=none fadvise="$advice") ;;
        # Whoever was here before has put some into the cache, or out of it.
        *) cat "$FILE" "$LOG" >/dev/null ;;
    esac
    rm -f "$WORK/s" "$WORK/t"
    case $server in
        nbdkit*) nbdkit -f -U "$WORK/s" file "$FILE" "${plugin[@]}" >/dev/null 2>&1 9>&- & ;;
        twice*)
            nbdkit -f -U "$WORK/s" file "$FILE" "${plugin[@]}" >/dev/null 2>&1 9>&- & PIDS+=($!)
            sockets+=("$WORK/t")
            nbdkit -f -U "$WORK/t" file "$LOG" "${plugin[@]}" >/dev/null 2>&1 9>&- & ;;
        holdfast) "$SERVE" "$FILE" --buffered --socket "$WORK/s" >/dev/null 2>&1 9>&- & ;;
        sync) "$SERVE" "$FILE" --log "$LOG" --buffered --socket "$WORK/s" >/dev/null 2>&1 9>&- & ;;
        async) "$SERVE" "$FILE" --log "$LOG" --asynchronous --buffered --socket "$WORK/s" >/dev/null 2>&1 9>&- & ;;
        serve-*)
            "$CLI" flashlog create --force --main "$FILE" --log "$LOG" >/dev/null 2>>"$WORK/cli.log" || die "no Flashlog could be made: $(tail -n 1 "$WORK/cli.log")"
            "$CLI" flashlog serve --main "$FILE" --log "$LOG" --mode "${server#serve-}" --socket "$WORK/s" --control "$WORK/control" >/dev/null 2>&1 9>&- & ;;
    esac
    PIDS+=($!)
    for socket in "${sockets[@]}"; do
        for _ in $(seq 200); do [ -S "$socket" ] && break; sleep 0.05; done   # they do not tell when they listen
        jobs+=(--name="job${#jobs[@]}" --uri="nbd+unix:///?socket=$socket" --size="$SIZE")
    done
    fio --ioengine=nbd --rw="$mode" --bs="$bs" --iodepth="$depth" \
        "${load[@]}" --randseed="$SEED" --norandommap --output-format=json "${jobs[@]}" >"$WORK/out.json" 2>>"$WORK/fio.log" || die "fio failed: $server $2"
    # fio says before the document that it has connected.
    python3 -c 'import json, sys; jobs = json.loads("{" + sys.stdin.read().split("{", 1)[1])["jobs"]; print(round(min(job["read"]["bw_bytes"] + job["write"]["bw_bytes"] for job in jobs) / 1e6, 1))' \
        <"$WORK/out.json" >>"$WORK/$server.${2// /-}"
    stop_servers
}
median() { sort -n "$1" | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }

printf '| file on | job | %s | holdfast / nbdkit | sync / twice | async / twice | serve-sync / twice-past | serve-async / twice-past |\n|---|---|%s---|---|---|---|---|\n' \
    "$(printf '%s | ' "${servers[@]}" | sed 's/ | $//')" "$(printf -- '---|%.0s' "${servers[@]}")"
# ratio A B: of two medians, if both were measured; against `twice` for writes, against one nbdkit for reads, which a Flashlog has from main alone.
ratio() { [ -s "$WORK/$1.${job// /-}" ] && [ -s "$WORK/$2.${job// /-}" ] && awk "BEGIN { printf \"%.2f\", $(median "$WORK/$1.${job// /-}") / $(median "$WORK/$2.${job// /-}") }"; }
for place in "${places[@]}"; do
    FILE=$place/holdfast-nbd-speed LOG=$place/holdfast-nbd-speed.log
    # Main of a Flashlog has labels at its end.
    for path in "$FILE" "$LOG"; do
        head -c $(($(numfmt --from=iec "$SIZE") + (4 << 20))) /dev/urandom >"$path" || die "no room in $place"
    done
    kind=$(stat -f -c %T "$place")
    for server in "${servers[@]}"; do rm -f "$WORK/$server".*; done
    for round in $(seq "${ROUNDS:-5}"); do
        for at in "${chosen[@]}"; do
            for step in "${!servers[@]}"; do
                # Who begins changes from round to round.
                measure "${servers[(step + round) % ${#servers[@]}]}" "${jobs[at]}"
            done
        done
    done
    for at in "${chosen[@]}"; do
        job=${jobs[at]}
        against=twice; [[ $job != *read* ]] || against=nbdkit
        printf '| %s | %s |' "$kind" "$job"
        for server in "${servers[@]}"; do printf ' %s |' "$(median "$WORK/$server.${job// /-}")"; done
        printf ' %s |' "$(ratio holdfast nbdkit)" "$(ratio sync "$against")" "$(ratio async "$against")" "$(ratio serve-sync "$against-past")" "$(ratio serve-async "$against-past")"
        echo
    done
    rm -f "$FILE" "$LOG"; FILE='' LOG=''
done
pass "measured"
suite_end
