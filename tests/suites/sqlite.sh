#!/usr/bin/env bash
# SQLite on the mount: transactions in both journal modes, integrity after a remount, and every committed row after SIGKILL of
# the daemon.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for sqlite) || exit 1
become_root "$@"
suite_begin sqlite

fs_create
fs_mount
db() { bounded 60 sqlite3 -batch -bail "$@"; }
expect() { local what=$1 wanted=$2 got; got=$(db "$3" "$4" 2>&1); [ "$got" = "$wanted" ] && pass "$what" || fail "$what: $wanted expected, got: $got"; }

for mode in delete wal; do
    base=$MNT/$mode.db
    expect "$mode: journal mode is taken" "$mode" "$base" "PRAGMA journal_mode=$mode;"
    check "$mode: 20,000 rows with an index" db "$base" "
        CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, payload BLOB);
        CREATE INDEX by_name ON t(name);
        BEGIN;
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
            INSERT INTO t SELECT i, 'name ' || (i * 7919 % 20000), randomblob(i % 300) FROM n;
        COMMIT;"
    check "$mode: a transaction that is rolled back" db "$base" "BEGIN; DELETE FROM t WHERE id % 2; UPDATE t SET name = 'x'; ROLLBACK;"
    expect "$mode: it left nothing" "20000|0" "$base" "SELECT count(*), sum(name = 'x') FROM t;"
    check "$mode: updates and deletes" db "$base" "UPDATE t SET payload = zeroblob(500) WHERE id % 3 = 0; DELETE FROM t WHERE id % 5 = 0;"
    check "$mode: vacuum" db "$base" "VACUUM;"
    # Two writers at once: locks, and in WAL mode a shared-memory index.
    for writer in 1 2; do
        for row in $(seq 100); do echo "INSERT INTO t(name) VALUES('writer $writer row $row');"; done |
            bounded 60 sqlite3 -batch -bail -cmd ".timeout 30000" "$base" >"$WORK/writer.$writer" 2>&1 &
        eval "writer_$writer=$!"
    done
    # shellcheck disable=SC2154
    if wait "$writer_1" && wait "$writer_2"; then pass "$mode: two writers"; else fail "$mode: two writers: $(cat "$WORK"/writer.*)"; fi
    expect "$mode: all rows are there" 16200 "$base" "SELECT count(*) FROM t;"
    sum[$((${#mode} - 3))]=$(db "$base" "SELECT count(*), sum(length(payload)), sum(id) FROM t;")
done
fs_remount
for mode in delete wal; do
    expect "$mode: integrity after a remount" ok "$MNT/$mode.db" "PRAGMA integrity_check;"
    expect "$mode: same rows after a remount" "${sum[$((${#mode} - 3))]}" "$MNT/$mode.db" "SELECT count(*), sum(length(payload)), sum(id) FROM t;"
done

# Each row is a transaction of its own; its number is printed after the commit has been answered.
#
# In the delete mode a transaction is committed by unlinking its journal, and synchronous=FULL does not sync the directory after
# that: a journal that is back after a power cut legally rolls the last committed row back. EXTRA adds that sync
# (https://sqlite.org/pragma.html#pragma_synchronous). In WAL mode the sync of the WAL is the commit, and FULL does it.
declare -A synchronous=([delete]=EXTRA [wal]=FULL)
if can_crash; then
    for mode in delete wal; do
        base=$MNT/crash-$mode.db
        db "$base" "PRAGMA journal_mode=$mode; CREATE TABLE t(id INTEGER PRIMARY KEY, digest TEXT);" >/dev/null || fail "$mode: create table"
        { echo "PRAGMA synchronous=${synchronous[$mode]};"
          for row in $(seq 200000); do echo "INSERT INTO t VALUES($row, hex(sha3($row))); SELECT 'row', $row;"; done; } 2>/dev/null |
            bounded 60 stdbuf -oL sqlite3 -batch -bail "$base" >"$WORK/committed.$mode" 2>"$WORK/crash.$mode" &
        SIDE=$!
        sleep 3
        fs_crash
        wait "$SIDE" 2>/dev/null
        SIDE=''
        committed=$(grep '^row|' "$WORK/committed.$mode" | tail -n 1 | cut -d'|' -f2)
        say "$mode: killed after ${committed:-no} committed rows"
        [ "${committed:-0}" -gt 10 ] || fail "$mode: too few rows before the crash to prove anything: $(cat "$WORK/crash.$mode")"
        # In the delete mode SQLite takes a commit for done if it cannot open the directory to sync it (unixDelete, os_unix.c). So the last
        # row may be one whose journal was unlinked just before the daemon died; a program that dies with the machine never says that.
        [ "$mode" = wal ] || committed=$((committed - 1))
        check "$mode: store is clean after the crash" fs_check
        fs_mount
        expect "$mode: integrity after the crash" ok "$base" "PRAGMA integrity_check;"
        expect "$mode: all committed rows are there" "${committed:-0}|${committed:-0}" "$base" \
            "SELECT count(*), sum(digest = hex(sha3(id))) FROM t WHERE id <= ${committed:-0};"
    done
else
    skip "$FS cannot be made to crash"
fi
fs_unmount
check "store is clean" fs_check
suite_end
