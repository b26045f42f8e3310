#!/usr/bin/env bash
# A Flashlog set behind its server, against real clients, in both modes: nbdcopy through TLS, a server that is killed between the writes of
# several connections and their flush, one that is killed as soon as libnbd or qemu-io have the answer to a write with FUA or to a flush, and
# nbdfuse with a loop device and ext4 on it while the server is started again; two contexts in one answer, as libnbd's interop programs have it. What a
# single file behind the same protocol does is in nbd.sh.
#
# It runs in a mount namespace of its own. ROUNDS is how often the server is killed in each mode (default 6).
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for nbd) || exit 1
become_root "$@"
[ -n "${NAMESPACE:-}" ] || NAMESPACE=1 exec unshare --mount --propagation private bash "$0" "$@"
# The Python that the package with libnbd is for.
export PATH=/usr/bin:$PATH
suite_begin nbd-set
cd "$WORK" || die "no $WORK"
SOCKET=$WORK/s
export HOLDFAST HOLDFAST_RUNTIME_DIR=$WORK/run
. "$ROOT/tests/suites/servers.sh"

# serve ARGUMENT...: serves the set of $SET in $MODE, and waits until it listens.
serve() { start_server '^}' "$HOLDFAST" flashlog serve --json --main "$SET/main" --log "$SET/log" --mode "$MODE" "$@"; }

# new_set NAME SIZE
new_set() {
    SET=$WORK/$1
    mkdir "$SET"
    check "a set is made" "$HOLDFAST" flashlog create --main "$SET/main" --log "$SET/log" --size "$2"
}

# retry: a socket behind which nbdkit connects to the server again whenever it is gone.
retry() {
    rm -f "$WORK/retry"
    nbdkit --exit-with-parent -f -U "$WORK/retry" --filter=retry nbd "uri=nbd+unix:///?socket=$SOCKET" retries=60 retry-delay=1 retry-exponential=no >>nbdkit.log 2>&1 9>&- &
    RETRY=$!
    OTHERS+=("$RETRY")
    disown "$RETRY"
    for _ in $(seq 100); do [ -S retry ] && return; sleep 0.05; done   # nbdkit tells nobody when its socket is there
    die "no nbdkit"
}

# ---- TLS --------------------------------------------------------------------------------------------------------------

mkdir tls client
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority -keyout ca-key.pem -out tls/ca-cert.pem 2>/dev/null
# certificate NAME SUBJECT DIRECTORY
certificate() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$3/$1-key.pem" -out request.pem 2>/dev/null
    openssl x509 -req -in request.pem -CA tls/ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile <(echo "subjectAltName=DNS:$2,IP:127.0.0.1") -out "$3/$1-cert.pem" 2>/dev/null
}
certificate server localhost tls
certificate client somebody client
cp tls/ca-cert.pem client/

for MODE in sync async; do
    new_set "tls-$MODE" 96M
    serve --listen 127.0.0.1:0 --tls-certificates tls --tls-verify-peer
    URI=$(sed -n 's|.*"\(nbds\?://[^"]*\)".*|\1|p' serve.out)
    PORT=${URI##*:}
    PORT=${PORT%%[!0-9]*}
    URI="nbds://127.0.0.1:$PORT?tls-certificates=$WORK/client"
    size=$(nbdinfo --size "$URI") || die "no size through TLS"
    # More than the log has room for, with holes.
    python3 - "$SEED" image "$size" <<'PYTHON'
import random, sys
random.seed(int(sys.argv[1]))
size = int(sys.argv[3])
with open(sys.argv[2], "wb") as image:
    image.truncate(size)
    for _ in range(300):
        length = random.randrange(1, 300_000)
        image.seek(random.randrange(size - length))
        image.write(random.randbytes(length))
PYTHON
    check "$MODE: nbdcopy to a set through TLS, over several connections" bounded 120 nbdcopy --flush --connections=4 image "$URI"
    check "$MODE: and back" bounded 120 nbdcopy "$URI" out
    check "$MODE: the same" cmp image out
    check "$MODE: without TLS nobody comes in" bash -c '! nbdinfo "nbd://127.0.0.1:$1"' - "$PORT"
    end_server KILL
    serve --listen 127.0.0.1:0 --tls-certificates tls
    PORT=$(sed -n 's|.*"nbds\?://[^":]*:\([0-9]*\).*|\1|p' serve.out)
    check "$MODE: from the next server, after kill -9" bounded 120 nbdcopy "nbds://127.0.0.1:$PORT?tls-certificates=$WORK/client" again
    check "$MODE: the same" cmp image again
    end_server
    rm -rf "$SET"
done

# ---- what libnbd's interop programs expect ------------------------------------------------------------------------------

# Two contexts in one answer: what is allocated, and what has changed since the backup. And a set on a socket that libnbd makes.
cat >contexts.py <<'PYTHON'
import errno, nbd, subprocess, sys
path, backup = sys.argv[1], sys.argv[2:]
K, CHANGED = 1 << 10, "x-holdfast:not-backed-up"
h = nbd.NBD()
for context in "base:allocation", CHANGED: h.add_meta_context(context)
h.connect_unix(path)
assert all(h.can_meta_context(context) for context in ("base:allocation", CHANGED))
h.pwrite(b"a" * (128 * K), 0)
h.flush()
subprocess.run(backup, check=True)
h.pwrite(b"b" * (64 * K), 64 * K)
h.zero(64 * K, 512 * K)
h.flush()
def status(flags=0, fails=False):
    found = {}
    def extents(context, offset, entries, error):
        assert offset == 0 and context not in found, context
        # The first error stays.
        assert error.value == (errno.EPROTO if fails and found else 0), error.value
        runs = []
        for length, flags in zip(entries[::2], entries[1::2]):
            # Main was allocated in full: not all zeros are holes.
            if context == "base:allocation": flags &= ~nbd.STATE_HOLE
            if runs and runs[-1][1] == flags: length += runs.pop()[0]
            runs.append((length, flags))
        found[context] = runs
        if fails:
            error.value = errno.EPROTO if len(found) == 1 else errno.ECONNREFUSED
            return -1
    try:
        h.block_status(1024 * K, 0, extents, flags)
        assert not fails
    except nbd.Error as error:
        assert fails and error.errno == "EPROTO" and h.aio_is_ready(), error
    return found
for fails in False, True:
    found = status(fails=fails)
    assert found[CHANGED] == [(64 * K, 0), (64 * K, 1), (384 * K, 0), (64 * K, 1), (448 * K, 0)], found
    assert found["base:allocation"] == [(128 * K, 0), (896 * K, nbd.STATE_ZERO)], found
found = status(nbd.CMD_FLAG_REQ_ONE)
assert all(len(runs) == 1 for runs in found.values()) and found[CHANGED] == [(64 * K, 0)], found
assert h.pread(1, 0) == b"a"
h.shutdown()
PYTHON
for MODE in sync async; do
    new_set "contexts-$MODE" 64M
    serve --socket "$SOCKET"
    check "$MODE: what is allocated and what is not backed up, at once" bounded 60 python3 contexts.py "$SOCKET" "$HOLDFAST" flashlog backup --main "$SET/main" --log "$SET/log" --to "$SET/backup"
    end_server
    check "$MODE: a socket of libnbd's own making" bounded 60 python3 - "$HOLDFAST" flashlog serve --main "$SET/main" --log "$SET/log" --mode "$MODE" <<'PYTHON'
import nbd, sys
h = nbd.NBD()
h.connect_systemd_socket_activation(sys.argv[1:])
assert h.get_size() == 63 << 20
assert h.pread(512, 128 << 10) == bytes(512) and h.pread(1, 64 << 10) == b"b"
h.shutdown()
PYTHON
    rm -rf "$SET"
done

# ---- kill -9 between writes and their flush ---------------------------------------------------------------------------

# Two connections write, and a flush on one of them answers for both. What was not flushed when the server was killed is there or not, block
# by block; a flush that the next server answers says nothing about it.
for MODE in sync async; do
    new_set "killed-$MODE" 64M
    serve --socket "$SOCKET"
    retry
    mkfifo orders answers
    bounded 240 python3 - "$WORK/retry" "$SEED" "${ROUNDS:-6}" >killed.log 2>&1 9>&- <<'PYTHON' &
import nbd, random, sys
path, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
BLOCK, BLOCKS = 4096, 2048
orders, answers = open("orders", "w"), open("answers")
connections = [nbd.NBD() for _ in range(2)]
for connection in connections:
    connection.connect_unix(path)
    assert connection.can_multi_conn() and connection.can_flush()
flushed, since, number = {}, {}, 0

def write(count):
    global number
    # Each connection has blocks of its own: two writes of one block at once have no order.
    under_way = []
    for _ in range(count):
        number += 1
        at = random.randrange(BLOCKS)
        # And a block has one write under way.
        if len(under_way) == 16 or at in [block for *_, block in under_way]:
            finish(under_way)
        content = number.to_bytes(8, "little") * (BLOCK // 8)
        of = connections[at % 2]
        under_way.append((of, of.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(content)), at * BLOCK), at))
        since.setdefault(at, []).append(number)
    finish(under_way)

def finish(under_way):
    for of, cookie, _ in under_way:
        while not of.aio_command_completed(cookie):
            of.poll(-1)
    under_way.clear()

def flush(of):
    of.flush()
    for at, numbers in since.items():
        flushed[at] = numbers[-1]
    since.clear()

def verify(when):
    for at in range(BLOCKS):
        found = connections[(at + 1) % 2].pread(BLOCK, at * BLOCK)
        one = int.from_bytes(found[:8], "little")
        assert found == found[:8] * (BLOCK // 8), f"{when}: block {at} is a mixture"
        allowed = [flushed.get(at, 0)] + since.get(at, [])
        assert one in allowed, f"{when}: block {at} has write {one}, and may have {allowed}"
        if at in since:
            flushed[at] = one
    since.clear()

for round in range(rounds):
    write(random.randrange(100, 1500))
    flush(connections[round % 2])
    write(random.randrange(1, 1500))
    print("kill", file=orders, flush=True)
    assert answers.readline() == "served\n"
    # It connects again for this.
    connections[round % 2].flush()
    verify(f"round {round}")
print("done", file=orders, flush=True)
print(f"{rounds} rounds, {number} writes")
PYTHON
    CLIENT=$!
    exec 7<orders 8>answers
    while read -r -t 120 order <&7 && [ "$order" = kill ]; do
        end_server KILL
        serve --socket "$SOCKET"
        echo served >&8
    done
    exec 7<&- 8>&-
    if wait "$CLIENT"; then pass "$MODE: what was flushed over two connections survives kill -9"; else fail "$MODE: kill -9 between writes and flush"; tail -n 20 killed.log; fi
    rm orders answers
    kill "$RETRY"
    end_server
    # Exit code 3: it has no backup. Of anything else it would say more.
    check "$MODE: nothing but a backup is missing" bash -c '"$1" flashlog status "$2/main" "$2/log" >said; [ $? = 3 ] && grep -q "^  state   open$" said && grep -q "^  state   no backup goes with the log: " said' - "$HOLDFAST" "$SET"
    rm -rf "$SET"
done

# ---- kill -9 as soon as something is answered ---------------------------------------------------------------------------

# Whoever has got the answer to a write with FUA, or to a flush, kills the server in the next moment. What had been answered so is there, in
# synchronous mode on main as well.
cat >answered.py <<'PYTHON'
import json, nbd, os, random, signal, subprocess, sys
step, path = sys.argv[1:3]
BLOCK, BLOCKS = 4096, 2048
has = {int(at): value for at, value in json.load(open("answered.json")).items()}

def runs():
    # Less than is written to the log unasked, and what comes later may be over what came before.
    for _ in range(random.randrange(1, 6)):
        count = random.randrange(1, 24)
        yield random.randrange(BLOCKS - count), count, random.randrange(1, 256)

def qemu_io(server, fua):
    client = subprocess.Popen(["qemu-io", "-f", "raw", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = b""
    def until(end):
        nonlocal said
        while end not in said:
            some = os.read(client.stdout.fileno(), 4096)
            assert some, f"qemu-io ended: {said}"
            said += some
        said = said.split(end, 1)[1]
    until(b"qemu-io> ")
    def ask(order):
        client.stdin.write(f"{order}\n".encode())
        client.stdin.flush()
    for first, count, value in runs():
        ask(f"write {'-f ' if fua else ''}-P {value} {first * BLOCK} {count * BLOCK}")
        until(f"wrote {count * BLOCK}/{count * BLOCK} bytes".encode())
        until(b"qemu-io> ")
        has.update((at, value) for at in range(first, first + count))
    if not fua:
        ask("flush")
        until(b"qemu-io> ")
    os.kill(server, signal.SIGKILL)
    client.kill()
    client.wait()

def libnbd(server, how):
    connection = nbd.NBD()
    connection.connect_uri(path)
    fua = nbd.CMD_FLAG_FUA if how != "flush" else 0
    if how == "zero":
        connection.pwrite(bytes([255]) * (BLOCKS * BLOCK), 0)
        connection.flush()
        has.update((at, 255) for at in range(BLOCKS))
    for first, count, value in runs():
        if how == "zero":
            value = 0
            connection.zero(count * BLOCK, first * BLOCK, fua)
        else:
            connection.pwrite(bytes([value]) * (count * BLOCK), first * BLOCK, fua)
        has.update((at, value) for at in range(first, first + count))
    if how == "flush":
        connection.flush()
    os.kill(server, signal.SIGKILL)

if step == "write":
    server, how, seed = int(sys.argv[3]), sys.argv[4], sys.argv[5]
    random.seed(seed)
    if how.startswith("qemu-io"):
        qemu_io(server, how == "qemu-io FUA")
    else:
        libnbd(server, how)
    json.dump(has, open("answered.json", "w"))
else:
    if step == "served":
        connection = nbd.NBD()
        connection.connect_uri(path)
        read = lambda at: connection.pread(BLOCK, at * BLOCK)
    else:
        main = open(path, "rb")
        read = lambda at: os.pread(main.fileno(), BLOCK, at * BLOCK)
    lost = [at for at, value in has.items() if read(at) != bytes([value]) * BLOCK]
    if step == "served":
        # Each round tells of its own.
        json.dump({at: value for at, value in has.items() if at not in lost}, open("answered.json", "w"))
    assert not lost, f"of {len(has)} blocks {len(lost)} are not as they were answered, the first of them {min(lost)}"
PYTHON

for MODE in sync async; do
    new_set "answered-$MODE" 64M
    serve --socket "$SOCKET"
    URI="nbd+unix:///?socket=$SOCKET"
    echo '{}' >answered.json
    for round in $(seq 3); do
        for how in FUA zero flush "qemu-io FUA" "qemu-io flush"; do
            bounded 60 python3 answered.py write "$URI" "$SERVER" "$how" "$SEED $round $how" || die "$MODE: $how: no answer to a write"
            tail --pid="$SERVER" -f /dev/null
            [ "$MODE" = async ] || check "$MODE: $how, kill -9, main alone, round $round" python3 answered.py main "$SET/main"
            serve --socket "$SOCKET"
            check "$MODE: $how, kill -9 at once, round $round" bounded 60 python3 answered.py served "$URI"
        done
    done
    end_server
    rm -rf "$SET"
done

# ---- a file system over restarts --------------------------------------------------------------------------------------

mkdir -p fuse
for MODE in sync async; do
    new_set "mounted-$MODE" 128M
    serve --socket "$SOCKET"
    retry
    nbdfuse fuse/disk "nbd+unix:///?socket=$WORK/retry" >>nbdfuse.log 2>&1 9>&- &
    OTHERS+=($!)
    disown $!
    for _ in $(seq 100); do [ -s fuse/disk ] && break; sleep 0.05; done   # nbdfuse tells nobody when it is ready
    LOOP_NOW=$(losetup --find --show fuse/disk) || die "no loop device over nbdfuse"
    LOOPS+=("$LOOP_NOW")
    check "$MODE: mkfs.ext4" bounded 60 mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$LOOP_NOW"
    check "$MODE: mounted" mount "$LOOP_NOW" "$MNT"
    check "$MODE: files are copied to it" cp -a /usr/include/linux "$MNT/tree"
    # It is stopped in order in the middle of work, which waits for the next one.
    cp -a "$MNT/tree" "$MNT/copy" 2>copy.log 9>&- &
    SIDE=$!
    sleep 0.3   # some of the work
    end_server
    serve --socket "$SOCKET"
    if wait "$SIDE"; then pass "$MODE: a restart under a mounted file system"; else fail "$MODE: a restart under a mounted file system"; tail copy.log; fi
    SIDE=''
    check "$MODE: changed, removed, renamed, and flushed" bash -c 'cd "$1" && rm -r tree/netfilter* && mv tree/can renamed && ln tree/fs.h linked && sync -f .' - "$MNT"
    # syncfs(2) writes metadata behind its flush, and a mounted file system never learns that a server has forgotten what it had answered: all of
    # it must have been flushed.
    check "$MODE: all of it is flushed" sync "$LOOP_NOW"
    end_server KILL
    serve --socket "$SOCKET"
    check "$MODE: work goes on after kill -9" bash -c 'cd "$1" && cp -a copy third && rm -r copy && truncate -s 1M tree/nbd.h && sync -f .' - "$MNT"
    manifest "$MNT" >before
    check "$MODE: unmounted" umount "$MNT"
    check "$MODE: fsck is clean" e2fsck -f -n "$LOOP_NOW"
    losetup -d "$LOOP_NOW"
    for _ in $(seq 100); do umount fuse 2>/dev/null && break; sleep 0.1; done   # the kernel lets go of the loop device's file later
    check "$MODE: nbdfuse goes" bash -c '! mountpoint -q "$1"' - fuse
    kill "$RETRY"
    end_server KILL
    # Main by itself, which the next server has brought up to date.
    serve --socket "$SOCKET"
    check "$MODE: main is brought up to date" "$HOLDFAST" flashlog catch-up --main "$SET/main" --log "$SET/log"
    end_server
    size=$(($(stat -c %s "$SET/main") - (1 << 20)))
    LOOP_NOW=$(losetup --find --show --read-only --sizelimit "$size" "$SET/main") || die "no loop device over main"
    LOOPS+=("$LOOP_NOW")
    check "$MODE: fsck of main alone is clean" e2fsck -f -n "$LOOP_NOW"
    check "$MODE: main alone is mounted" mount -o ro,noload "$LOOP_NOW" "$MNT"
    manifest "$MNT" >after
    check "$MODE: everything is there" cmp before after
    umount "$MNT"
    losetup -d "$LOOP_NOW"
    rm -rf "$SET"
done

check "no panic, no bug" bash -c '! grep -i -E "panicked|bug" "$1"' - serve.log
cleanup
suite_end
