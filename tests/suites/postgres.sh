#!/usr/bin/env bash
# PostgreSQL on the mount, by its own crash habits: pgbench runs, clients record each row whose commit was answered, the daemon and
# the server are killed in the middle, and after a remount and the server's own recovery every recorded row is there.
# Also: pgbench's balances agree, the indexes agree with the tables (amcheck), the page checksums are right.
# ROUNDS crashes, each after RUNTIME_S seconds. The server is reached through a socket in a directory of its own only.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for postgres) || exit 1
become_root "$@"
suite_begin postgres
can_crash || { skip "$FS cannot be made to crash"; suite_end; }

bin=$(dirname "$(ls -d /usr/lib/postgresql/*/bin/initdb | sort -V | tail -n 1)")
id postgres >/dev/null 2>&1 || die "the package made no user postgres"
data=$MNT/data
socket=$(mktemp -d /tmp/holdfast-postgres.XXXXXX)
chown postgres "$socket"
POSTMASTER=

as_postgres() { (cd / && setpriv --reuid postgres --regid postgres --clear-groups env PATH="$bin:$PATH" PGHOST="$socket" PGUSER=postgres PGDATABASE=postgres "$@"); }
start_server() {
    # exec, so that POSTMASTER is the server itself.
    (cd / && exec setpriv --reuid postgres --regid postgres --clear-groups "$bin/postgres" -D "$data" -k "$socket" \
        -c listen_addresses= -c max_wal_size=256MB -c wal_sync_method="${WAL_SYNC_METHOD:-fdatasync}" 9>&-) >>"$WORK/server.log" 2>&1 &
    POSTMASTER=$!
    disown "$POSTMASTER"
    for _ in $(seq 600); do
        as_postgres pg_isready -q && return 0
        kill -0 "$POSTMASTER" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$WORK/server.log"
    return 1
}
# kill_server: SIGKILL to the server and to its processes, which have groups of their own.
kill_server() {
    local pids=("$POSTMASTER")
    mapfile -t -O 1 pids < <(pgrep -P "$POSTMASTER")
    kill -KILL "${pids[@]}" 2>/dev/null
    for _ in $(seq 100); do kill -0 "${pids[@]}" 2>/dev/null || break; sleep 0.1; done
    POSTMASTER=
}
# stop_server: in order.
stop_server() {
    kill -INT "$POSTMASTER" || return 1
    for _ in $(seq 600); do kill -0 "$POSTMASTER" 2>/dev/null || { POSTMASTER=; return 0; }; sleep 0.1; done
    return 1
}
trap '[ -z "$POSTMASTER" ] || kill_server; rm -rf "$socket"; fail "stopped before its end"; suite_end' EXIT
sql() { as_postgres psql -X -q -A -t -v ON_ERROR_STOP=1 "$@"; }
expect() { local what=$1 wanted=$2 got; got=$(sql -c "$3" 2>&1); [ "$got" = "$wanted" ] && pass "$what" || fail "$what: $wanted expected, got: $got"; }

fs_create
fs_mount
mkdir "$data" && chown postgres "$data" && chmod 700 "$data"
check "initdb" as_postgres initdb --data-checksums -A trust -D "$data"
start_server && pass "server starts" || die "the server does not start"
check "pgbench -i" as_postgres pgbench -i -q -s "${SCALE:-2}"
check "table of the recorded rows" sql -c "CREATE TABLE committed(client int, row int, digest text, PRIMARY KEY(client, row)); CREATE EXTENSION amcheck;"

total=0
for round in $(seq "${ROUNDS:-2}"); do
    as_postgres pgbench -n -c 4 -j 2 -T 60 >"$WORK/pgbench.$round" 2>&1 &
    bench=$!
    clients=()
    for client in 1 2 3; do
        # Each row is a transaction; psql prints it when its commit has been answered.
        for row in $(seq 100000); do
            echo "INSERT INTO committed VALUES($((round * 10 + client)), $row, md5('$row')) RETURNING row;"
        done 2>/dev/null | as_postgres stdbuf -oL "$bin/psql" -X -q -A -t -v ON_ERROR_STOP=1 >"$WORK/committed.$round.$client" 2>"$WORK/client.$round.$client" &
        clients+=($!)
    done
    sleep "${RUNTIME_S:-3}"
    # Every other round the server alone dies: what it has written and not synced is still in the daemon.
    if [ $((round % 2)) = 1 ]; then
        say "round $round: the daemon and the server are killed"
        kill -KILL -- "-$DAEMON"
        kill_server
        fs_crash_done
    else
        say "round $round: the server is killed"
        kill_server
    fi
    wait "$bench" "${clients[@]}" 2>/dev/null
    [ $((round % 2)) = 0 ] || { check "round $round: store is clean after the crash" fs_check; fs_mount; }
    rm -f "$data/postmaster.pid"
    start_server && pass "round $round: the server recovers" || die "round $round: the server does not start again"
    for client in 1 2 3; do
        # A line may be cut: it counts when its end is there.
        rows=$(awk '{ n++ } END { print n + 0 }' "$WORK/committed.$round.$client")
        [ -z "$(tail -c 1 "$WORK/committed.$round.$client")" ] || rows=$((rows - 1))
        total=$((total + rows))
        [ "$rows" -gt 10 ] || fail "round $round: client $client had only $rows rows answered: $(tail -n 2 "$WORK/client.$round.$client")"
        expect "round $round: all $rows rows that client $client had answered are there" "$rows|$rows" \
            "SELECT count(*), sum((digest = md5(row::text))::int) FROM committed WHERE client = $((round * 10 + client)) AND row <= $rows"
    done
    expect "round $round: no rows but these and those in flight" t \
        "SELECT bool_and(n = last AND first = 1) FROM (SELECT count(*) AS n, min(row) AS first, max(row) AS last FROM committed GROUP BY client) AS c"
    expect "round $round: pgbench's balances agree" t "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
        AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers)
        AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"
    check "round $round: indexes agree with tables" as_postgres pg_amcheck --heapallindexed
done
say "$total rows answered in ${ROUNDS:-2} rounds"
check "server stops" stop_server
fs_remount
check "page checksums after a remount" as_postgres pg_checksums --check -D "$data"
start_server && pass "server starts after a remount" || fail "the server does not start after a remount"
expect "recorded rows after a remount" t "SELECT count(*) >= $total FROM committed"
stop_server
trap 'fail "stopped before its end"; suite_end' EXIT
rm -rf "$socket"
fs_unmount
check "store is clean" fs_check
suite_end
