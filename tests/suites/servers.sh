# For suites with a server and devices behind it; sourced behind lib.sh, after suite_begin.

LOOPS=()
SERVER='' OTHERS=()

cleanup() {
    cd /
    umount -R "$MNT" 2>/dev/null
    for loop in "${LOOPS[@]}"; do losetup -d "$loop" 2>/dev/null; done
    umount -l "$WORK/fuse" 2>/dev/null
    for process in $SERVER "${OTHERS[@]}"; do kill "$process" 2>/dev/null; done
}
trap 'cleanup; fail "stopped before its end"; suite_end' EXIT
trap 'cleanup; fail "interrupted or out of time"; suite_end' INT TERM

# start_server PATTERN COMMAND...: starts it, and waits until it has printed a line of this pattern.
start_server() {
    local pattern=$1; shift
    : >"$WORK/serve.out"
    "$@" >"$WORK/serve.out" 2>>"$WORK/serve.log" 9>&- &
    SERVER=$!
    disown "$SERVER"
    for _ in $(seq 200); do
        grep -q "$pattern" "$WORK/serve.out" && return 0
        kill -0 "$SERVER" 2>/dev/null || break
        sleep 0.05   # nothing tells the shell that a line has been written to a file
    done
    cat "$WORK/serve.log"
    die "no server: $*"
}

# end_server [SIGNAL]: waits until it is gone.
end_server() {
    kill "-${1:-TERM}" "$SERVER"
    tail --pid="$SERVER" -f /dev/null
    SERVER=''
}
