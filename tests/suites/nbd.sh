#!/usr/bin/env bash
# The NBD server against real clients: nbdinfo, nbdcopy, libnbd's Python, qemu-img, qemu-io, fio, and nbdfuse with a loop device and ext4 on
# it; TLS, sockets from a service manager, and a server that is killed and started again under its clients. What libnbd's own interop programs, and
# nbdkit's tests of its nbd plugin, expect of servers is held to here, in words of our own ("interop: ..."); those of libnbd's programs that can start this server are run as well.
#
# It runs in a mount namespace of its own. SECONDS_FIO is the time that fio gets (default 3).
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for nbd) || exit 1
become_root "$@"
[ -n "${NAMESPACE:-}" ] || NAMESPACE=1 exec unshare --mount --propagation private bash "$0" "$@"
# The Python that the package with libnbd is for.
export PATH=/usr/bin:$PATH
SERVE=${SERVE:-$TARGET/release/examples/nbd-serve}
[ -x "$SERVE" ] || { echo "nbd: no binary at $SERVE: cargo build --release -p holdfast-block --example nbd-serve"; exit 1; }
HOLDFAST=$SERVE   # nothing else of Holdfast's is needed
suite_begin nbd
cd "$WORK" || die "no $WORK"
SOCKET=$WORK/s
URI="nbd+unix:///?socket=$SOCKET"
. "$ROOT/tests/suites/servers.sh"

# serve ARGUMENT...: starts a server and waits until it listens.
serve() { start_server listening "$SERVE" "$@"; }

# has WHAT TEXT COMMAND...: the command succeeds, and prints the text.
has() {
    local what=$1 text=$2 out; shift 2
    if out=$(bounded 60 "$@" 2>&1) && [[ $out == *"$text"* ]]; then pass "$what"; else fail "$what: \"$text\" is not in:"; printf '%s\n' "$out" | tail -n 25 | sed 's/^/    /'; fi
}

# refused WHAT TEXT COMMAND...: the command fails, and prints the text.
refused() {
    local what=$1 text=$2 out; shift 2
    if ! out=$(bounded 60 "$@" 2>&1) && [[ $out == *"$text"* ]]; then pass "$what"; else fail "$what: it succeeds, or \"$text\" is not in:"; printf '%s\n' "$out" | tail -n 25 | sed 's/^/    /'; fi
}

# ---- nbdinfo, nbdcopy -------------------------------------------------------------------------------------------------

truncate -s 256M disk
serve disk --socket "$SOCKET" --name main
for line in "can_multi_conn: true" "can_fua: true" "can_fast_zero: true" "can_df: true" "base:allocation" "block_size_minimum: 1" "is_read_only: false"; do
    has "nbdinfo: $line" "$line" nbdinfo "$URI"
done
has "nbdinfo --list" 'export="main"' nbdinfo --list "$URI"
refused "an export that there is not" "No such file or directory for export: other" nbdinfo "nbd+unix:///other?socket=$SOCKET"
# Data with holes between, at odd places.
python3 - "$SEED" image <<'PYTHON'
import os, random, sys
random.seed(int(sys.argv[1]))
with open(sys.argv[2], "wb") as image:
    image.truncate(256 << 20)
    for _ in range(150):
        image.seek(random.randrange((64 << 20) - 300_000))
        image.write(random.randbytes(random.randrange(1, 300_000)))
PYTHON
check "nbdcopy in, over several connections" bounded 60 nbdcopy --connections=4 image "$URI"
check "nbdcopy out" bounded 60 nbdcopy "$URI" out
check "what came out is what went in" cmp image out
has "nbdinfo --map shows holes" "hole,zero" nbdinfo --map "$URI"
nbdinfo --map=base:allocation --json "$URI" >map.json
check "which are holes of the file, and only these" python3 - map.json disk <<'PYTHON'
import json, os, sys
file = os.open(sys.argv[2], os.O_RDONLY)
size = os.fstat(file).st_size
at = 0
for run in json.load(open(sys.argv[1])):
    assert run["offset"] == at, run
    at += run["length"]
    try:
        data = os.lseek(file, run["offset"], os.SEEK_DATA)
    except OSError:
        data = size
    assert (data >= at) == (run["type"] == 3), run
assert at == size
PYTHON
check "nbdinfo --is readonly says no" bash -c '! nbdinfo --is readonly "$1"' - "$URI"

# ---- libnbd by hand ---------------------------------------------------------------------------------------------------

check "libnbd: FUA, holes, status, zeros, trims, errors, flush over connections" bounded 60 nbdsh -u "$URI" -c "$(cat <<'PYTHON'
def expect(number, what, *arguments):
    try:
        what(*arguments)
    except nbd.Error as error:
        assert error.errno == number, (error, number)
        return
    raise AssertionError(f"{what} should have failed")

h.set_strict_mode(0)
size = h.get_size()
h.zero(size, 0)
h.pwrite(b"x" * 10_000, 4095, nbd.CMD_FLAG_FUA)
assert h.pread(10_002, 4094) == b"\0" + b"x" * 10_000 + b"\0"
h.pwrite(b"y", 5000)
h.flush()
other = nbd.NBD()
other.connect_uri(h.get_uri())
assert other.pread(3, 4999) == b"xyx"
other.pwrite(b"z", 5000)
other.flush()
assert h.pread(3, 4999) == b"xzx"
# Chunks: a hole, then data, then nothing but a hole.
h.zero(1 << 20, 1 << 20)
h.pwrite(b"d" * 4096, (1 << 20) + (512 << 10))
chunks = []
h.pread_structured(1 << 20, 1 << 20, lambda data, offset, status, error: chunks.append((status, offset, len(data))))
assert [chunk[0] for chunk in chunks] == [nbd.READ_HOLE, nbd.READ_DATA] and chunks[0][1] == 1 << 20, chunks
chunks.clear()
h.pread_structured(1 << 20, 1 << 20, lambda data, offset, status, error: chunks.append((status, len(data))), nbd.CMD_FLAG_DF)
assert chunks == [(nbd.READ_DATA, 1 << 20)], chunks
# Zeros: in a sparse file quickly, also of parts; trims lose nothing beside them.
h.pwrite(b"a" * 20_000, 100_000)
h.zero(10_000, 105_000, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert h.pread(20_000, 100_000) == b"a" * 5000 + b"\0" * 10_000 + b"a" * 5000
h.trim(10_000, 100_001, nbd.CMD_FLAG_FUA)
assert h.pread(1, 100_000) == b"a"
h.cache(4096, 0)
# What is wrong is refused, and the connection goes on.
expect("EINVAL", h.pread, 2, size - 1)
expect("ENOSPC", h.pwrite, b"ab", size - 1)
expect("EINVAL", h.trim, 2, size - 1)
expect("EINVAL", h.block_status, 1, 0, lambda *a: 0)
expect("ENOTSUP", h.zero, 10, 3, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(1, 100_000) == b"a"
PYTHON
)"
check "libnbd: simple replies, and an export by the old option" bounded 60 python3 - "$SOCKET" <<'PYTHON'
import nbd, sys
h = nbd.NBD()
h.set_request_structured_replies(False)
h.connect_unix(sys.argv[1])
assert not h.get_structured_replies_negotiated() and not h.can_df()
h.pwrite(b"simple", 7777)
assert h.pread(6, 7777) == b"simple"
h.shutdown()
h = nbd.NBD()
h.set_handshake_flags(0)
h.connect_unix(sys.argv[1])
assert h.pread(6, 7777) == b"simple"
PYTHON
check "libnbd: block status in one piece, and many requests in flight" bounded 60 python3 - "$SOCKET" "$SEED" <<'PYTHON'
import nbd, random, sys
random.seed(int(sys.argv[2]))
h = nbd.NBD()
h.add_meta_context("base:allocation")
h.connect_unix(sys.argv[1])
assert h.can_meta_context("base:allocation")
runs = []
h.block_status(1 << 20, 4097, lambda context, offset, entries, error: runs.append((context, offset, entries)), nbd.CMD_FLAG_REQ_ONE)
assert len(runs) == 1 and runs[0][:2] == ("base:allocation", 4097) and len(runs[0][2]) == 2 and runs[0][2][0] <= 1 << 20, runs
base, area = 128 << 20, 1 << 20
model = bytearray(h.pread(area, base))
for _ in range(200):
    cuts = sorted(random.sample(range(area), 32))
    cookies, reads = [], []
    for start, end in zip(cuts, cuts[1:]):
        if random.random() < 0.5:
            data = random.randbytes(end - start)
            model[start:end] = data
            cookies.append(h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), base + start))
        else:
            buffer = nbd.Buffer(end - start)
            reads.append((buffer, start, end))
            cookies.append(h.aio_pread(buffer, base + start))
    for cookie in cookies:
        while not h.aio_command_completed(cookie):
            h.poll(-1)
    for buffer, start, end in reads:
        assert buffer.to_bytearray() == model[start:end], (start, end)
assert h.pread(area, base) == model
PYTHON

# ---- what libnbd's interop programs expect of servers -----------------------------------------------------------------

# One by one in docs/nbd.md; those of TLS and of sockets from a service manager are below.
check "interop: size, 512 bytes read, 512 written and read with those before, an orderly end" bounded 30 python3 - "$SOCKET" <<'PYTHON'
import nbd, sys
for name in "", "main":
    h = nbd.NBD()
    h.set_export_name(name)
    h.connect_unix(sys.argv[1])
    assert h.get_size() == 256 << 20
    before = h.pread(512, 0)
    h.pwrite(b"1" * 512, 512)
    assert h.pread(1024, 0) == before + b"1" * 512
    h.shutdown()
    assert h.aio_is_closed()
PYTHON
check "interop: the list of exports, with what they are, and leaving without one" bounded 30 python3 - "$SOCKET" <<'PYTHON'
import nbd, sys
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(sys.argv[1])
exports = []
assert h.opt_list(lambda *export: exports.append(export)) == 1
assert exports == [("main", "disk, by nbd-serve")], exports
h.opt_abort()
assert h.aio_is_closed()
PYTHON
check "interop: block sizes, told when they are asked for" bounded 30 python3 - "$SOCKET" <<'PYTHON'
import nbd, sys
for asks, sizes in (True, [1, 4096, 32 << 20]), (False, [0, 0, 0]):
    h = nbd.NBD()
    h.set_opt_mode(True)
    h.set_request_block_size(asks)
    h.connect_unix(sys.argv[1])
    for choose in h.opt_info, h.opt_go:
        choose()
        assert [h.get_block_size(which) for which in (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)] == sizes, (asks, choose)
    h.shutdown()
PYTHON
check "interop: an export that there is not is refused, and the talk goes on" bounded 30 python3 - "$SOCKET" <<'PYTHON'
import nbd, sys
h = nbd.NBD()
h.set_opt_mode(True)
h.set_full_info(True)
h.connect_unix(sys.argv[1])
for choose in h.opt_info, h.opt_go:
    h.set_export_name("other")
    try:
        choose()
        sys.exit("there is one")
    except nbd.Error as error:
        assert error.errno == "ENOENT" and h.aio_is_negotiating(), error
h.set_export_name("")
h.opt_info()
assert (h.get_size(), h.is_read_only(), h.get_canonical_export_name()) == (256 << 20, False, "main")
h.opt_go()
assert h.pread(1, 0)
PYTHON
check "interop: contexts by their names, by the beginning of a name, all, and none" bounded 30 python3 - "$SOCKET" <<'PYTHON'
import nbd, sys
ALL = ["base:allocation"]
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(sys.argv[1])
for queries, expected in ([], ALL), (["x-nosuch:"], []), (["x-nosuch:", "base:allocation"], ALL), (["base:"], ALL):
    h.clear_meta_contexts()
    for query in queries: h.add_meta_context(query)
    found = []
    assert h.opt_list_meta_context(lambda name: found.append(name)) == len(expected) and found == expected, (queries, found)
# To be used, one is called by all of its name.
h.opt_go()
assert not h.can_meta_context("base:allocation")
PYTHON
check "interop: a hole and data in one read, and an error of the client's own leaves the connection as it was" bounded 30 python3 - "$SOCKET" <<'PYTHON'
import errno, nbd, sys
h = nbd.NBD()
h.add_meta_context("base:allocation")
h.connect_unix(sys.argv[1])
assert h.can_df()
START, HALF = 48 << 20, 512 << 10
h.zero(2 * HALF, START)
h.pwrite(b"d" * HALF, START + HALF)
def told(fails):
    def chunk(data, offset, status, error):
        # The first error stays.
        assert error.value == (errno.EPROTO if fails and chunks else 0), error.value
        chunks.append((status, offset - START, bytes(data)))
        if fails:
            error.value = errno.EPROTO if len(chunks) == 1 else errno.ECONNREFUSED
            return -1
    return chunk
for fails in False, True:
    chunks = []
    try:
        h.pread_structured(2 * HALF, START, told(fails))
        assert not fails
    except nbd.Error as error:
        assert fails and error.errno == "EPROTO" and h.aio_is_ready(), error
    assert chunks == [(nbd.READ_HOLE, 0, bytes(HALF)), (nbd.READ_DATA, HALF, b"d" * HALF)]
# In one piece.
chunks = []
h.pread_structured(2 * HALF, START, told(False), nbd.CMD_FLAG_DF)
assert chunks == [(nbd.READ_DATA, 0, bytes(HALF) + b"d" * HALF)]
assert h.pread(1, 0)
h.shutdown()
PYTHON
check "interop: what newer clients ask for first, extended headers, is refused, and the talk goes on" bounded 30 python3 - "$SOCKET" <<'PYTHON'
import socket, struct, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(20)
receive = lambda count: s.recv(count, socket.MSG_WAITALL)
assert len(receive(18)) == 18
s.sendall(struct.pack(">I", 3))
def ask(number):
    s.sendall(b"IHAVEOPT" + struct.pack(">II", number, 0))
    magic, option, kind, length = struct.unpack(">QIII", receive(20))
    assert magic == 0x3E889045565A9 and option == number
    return kind, receive(length)
UNKNOWN, DONE = 0x80000001, 1
assert ask(11)[0] == UNKNOWN
assert ask(8) == (DONE, b"")
assert ask(2) == (DONE, b"")
PYTHON

# ---- nbdkit's nbd plugin before the server, as nbdkit's tests have it before others -----------------------------------

# through COMMAND: by the plugin, which has connected once for all of its clients.
through() { bounded 30 nbdkit --exit-with-parent -U - nbd "uri=$URI" shared=true --run "$1" 9>&-; }
check "nbdkit's nbd plugin: size, flags and block sizes go through" through 'nbdsh -u "$uri" -c "
assert h.get_size() == 256 << 20 and h.can_multi_conn() and h.can_fua() and h.can_fast_zero() and h.can_trim() and not h.is_read_only()
assert [h.get_block_size(which) for which in (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)] == [1, 4096, 32 << 20]"'
nbdinfo --map --totals "$URI" >totals
through 'nbdinfo --map --totals "$uri"' >totals-through
check "nbdkit's nbd plugin: what is allocated goes through" cmp totals totals-through
has "nbdkit's nbd plugin: the list of exports goes through" 'export="main"' nbdkit --exit-with-parent -U - nbd "uri=$URI" dynamic-export=true --run 'nbdinfo --list "$uri"'

# ---- QEMU -------------------------------------------------------------------------------------------------------------

check "qemu-img convert" bounded 120 qemu-img convert -n -W -f raw -O raw image "$URI"
check "qemu-img compare" bounded 60 qemu-img compare -s -f raw -F raw image "$URI"
has "qemu-img map" '"zero": true' qemu-img map -f raw --output=json "$URI"
check "qemu-io: FUA, zeros, discards, at odd places" bounded 60 qemu-io -f raw -c 'write -P 7 1k 3k' -c 'read -P 7 1k 3k' -c 'write -f -P 8 512 512' -c 'read -P 8 512 512' \
    -c 'write -P 9 1M 200k' -c 'write -z 1028k 100k' -c 'read -P 0 1028k 100k' -c 'read -P 9 1M 4k' -c 'write -zu 1M 200k' -c 'read -P 0 1M 200k' -c 'discard 2M 1M' \
    -c 'aio_write -P 3 3M 1M' -c 'aio_write -P 4 4M 1M' -c aio_flush -c 'read -P 3 3M 1M' -c 'read -P 4 4M 1M' -c flush "$URI"

# ---- fio --------------------------------------------------------------------------------------------------------------

for job in "randwrite 4k 16" "randrw 1000 8" "write 1M 4"; do
    read -r mode bs depth <<<"$job"
    bounded 90 fio --name="$mode" --ioengine=nbd --uri="$URI" --rw="$mode" --bs="$bs" --iodepth="$depth" --size=64M --offset=64M --io_size=32M \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed="$SEED" >"fio-$mode-$bs.log" 2>&1 && ! grep -q 'err= *[1-9]' "fio-$mode-$bs.log"
    status=$?
    if [ $status = 0 ]; then pass "fio $job"; else fail "fio $job: exit $status"; tail -n 20 "fio-$mode-$bs.log"; fi
done

# ---- a file system on it ----------------------------------------------------------------------------------------------

mkdir -p fuse
# attach: the export as a loop device.
attach() {
    nbdfuse fuse/disk "$URI" >>nbdfuse.log 2>&1 9>&- &
    OTHERS+=($!)
    disown $!
    for _ in $(seq 100); do [ -s fuse/disk ] && break; sleep 0.05; done   # nbdfuse tells nobody when it is ready
    LOOP_NOW=$(losetup --find --show fuse/disk) || die "no loop device over nbdfuse"
    LOOPS+=("$LOOP_NOW")
}
detach() {
    losetup -d "$LOOP_NOW"
    for _ in $(seq 100); do umount fuse 2>/dev/null && break; sleep 0.1; done   # the kernel lets go of the loop device's file later
    ! mountpoint -q fuse
}
attach
check "mkfs.ext4" bounded 60 mkfs.ext4 -q -F "$LOOP_NOW"
check "mounted" mount "$LOOP_NOW" "$MNT"
# The times of the directory itself are set last of all.
check "files are copied to it" cp -a /usr/include/linux "$MNT/tree"
check "changed, removed, renamed" bash -c 'cd "$1" && rm -r tree/netfilter* && mv tree/can renamed && ln tree/fs.h linked && truncate -s 1M tree/nbd.h && sync -f .' - "$MNT"
manifest "$MNT" >before
check "unmounted" umount "$MNT"
check "fsck is clean" e2fsck -f -n "$LOOP_NOW"
check "nbdfuse goes" detach
end_server
check "the socket goes with the server" test ! -e "$SOCKET"
serve disk --socket "$SOCKET" --name main
attach
check "mounted from another server" mount -o ro "$LOOP_NOW" "$MNT"
manifest "$MNT" >after
check "everything is there" cmp before after
umount "$MNT"
check "nbdfuse goes again" detach

# ---- a server that is killed under its clients ------------------------------------------------------------------------

# nbdkit's retry filter, between fio and the server, connects again and repeats; so does QEMU with reconnect-delay.
nbdkit --exit-with-parent -f -U "$WORK/retry" --filter=retry nbd "uri=$URI" retries=20 retry-delay=1 retry-exponential=no >>nbdkit.log 2>&1 9>&- &
OTHERS+=($!)
disown $!
for _ in $(seq 100); do [ -S retry ] && break; sleep 0.05; done   # nbdkit tells nobody when its socket is there
bounded 90 fio --name=retry --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/retry" --rw=randwrite --bs=4k --iodepth=8 --size=64M --time_based --runtime="${SECONDS_FIO:-3}" \
    --randseed="$SEED" >fio-retry.log 2>&1 9>&- &
SIDE=$!
for signal in KILL TERM; do
    sleep 1   # some of the load
    end_server $signal
    serve disk --socket "$SOCKET" --name main
done
if wait "$SIDE" && ! grep -q 'err= *[1-9]' fio-retry.log; then pass "nbdkit's retry filter hides kill -9 and a restart"; else fail "nbdkit's retry filter"; tail -n 20 fio-retry.log; fi
SIDE=''
qemu="json:{\"driver\":\"raw\",\"file\":{\"driver\":\"nbd\",\"server\":{\"type\":\"unix\",\"path\":\"$SOCKET\"},\"reconnect-delay\":20}}"
mkfifo commands
bounded 60 qemu-io "$qemu" <commands >qemu-reconnect.log 2>&1 9>&- &
QEMU=$!
exec 7>commands
echo 'write -P 5 0 64k' >&7
for _ in $(seq 100); do grep -q 'wrote 65536' qemu-reconnect.log && break; sleep 0.05; done   # nothing tells the shell that a line has been written to a file
end_server KILL
printf 'write -P 6 64k 64k\nread -P 5 0 64k\nread -P 6 64k 64k\nflush\n' >&7
exec 7>&-
serve disk --socket "$SOCKET" --name main
if wait $QEMU && ! grep -q -i -E 'error|fail|verification' qemu-reconnect.log; then pass "QEMU connects again, and what was answered is there"; else fail "QEMU after kill -9"; cat qemu-reconnect.log; fi
end_server

# ---- who else may and may not -----------------------------------------------------------------------------------------

serve disk --socket "$SOCKET" --read-only --connections 2
has "a read-only export" "is_read_only: true" nbdinfo "$URI"
check "refuses writes" bounded 30 nbdsh -u "$URI" -c "
h.set_strict_mode(0)
try: h.pwrite(b'x', 0); raise SystemExit(1)
except nbd.Error as error: assert error.errno == 'EPERM', error"
check "one connection too many is turned away, and later comes in" bounded 30 python3 - "$SOCKET" <<'PYTHON'
import nbd, sys, time
held = [nbd.NBD() for _ in range(2)]
for h in held: h.connect_unix(sys.argv[1])
try:
    nbd.NBD().connect_unix(sys.argv[1])
    sys.exit("a third one came in")
except nbd.Error: pass
held.pop().shutdown()
for _ in range(100):
    try: nbd.NBD().connect_unix(sys.argv[1]); break
    except nbd.Error: time.sleep(0.05)   # its place is free a moment after it has left
else: sys.exit("nobody came in")
PYTHON
end_server
# A server that is just beginning: nothing tells the shell when its socket is there but looking again.
has "the socket is private" "600" bash -c '"$0" disk --socket "$1" >/dev/null & p=$!; for i in $(seq 100); do [ -S "$1" ] && break; sleep 0.05; done; stat -c %a "$1"; kill $p; wait $p' "$SERVE" "$WORK/private"

serve disk --listen 127.0.0.1:0
PORT=$(sed -n 's/.*tcp:127.0.0.1://p' serve.out)
has "TCP" "export-size: 268435456" nbdinfo "nbd://127.0.0.1:$PORT"
end_server

check "a socket of the service manager's" bounded 30 python3 - "$SERVE" "$WORK/activated" disk <<'PYTHON'
import nbd, os, socket, subprocess, sys
serve, path, disk = sys.argv[1:]
listening = socket.socket(socket.AF_UNIX)
listening.bind(path); listening.listen()
def start():
    # As a service manager does it: descriptor 3, and whose it is.
    pid = os.fork()
    if pid == 0:
        os.dup2(listening.fileno(), 3)
        os.set_inheritable(3, True)
        os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
        os.execv(serve, [serve, disk])
    return pid
h = nbd.NBD()
server = start()
h.connect_unix(path)
h.pwrite(b"first", 0)
os.kill(server, 15)
assert os.waitpid(server, 0)[1] == 0
# In between there is no server, but a socket.
other = nbd.NBD()
other.aio_connect(path)
server = start()
while other.aio_is_connecting(): other.poll(-1)
assert other.pread(5, 0) == b"first"
other.shutdown()
os.kill(server, 15)
assert os.waitpid(server, 0)[1] == 0
PYTHON

truncate -s 6G large
printf x | dd of=large bs=1 seek=$((5 << 30)) conv=notrunc status=none
serve large --socket "$SOCKET"
nbdinfo --map --json "$URI" >large.json
check "interop: what is allocated of more than 4 GiB" python3 - large.json <<'PYTHON'
import json, sys
runs, at = json.load(open(sys.argv[1])), 0
for run in runs:
    assert run["offset"] == at
    at += run["length"]
data = [run["offset"] for run in runs if run["type"] == 0]
assert at == 6 << 30 and data == [5 << 30], runs
PYTHON
end_server

truncate -s 1M small
check "interop: a socket of libnbd's own making" bounded 30 python3 - "$SERVE" small <<'PYTHON'
import nbd, sys
h = nbd.NBD()
h.connect_systemd_socket_activation(sys.argv[1:])
assert h.get_size() == 1 << 20
assert h.pread(512, 0) == bytes(512)
h.shutdown()
PYTHON

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
mkdir bare && cp tls/ca-cert.pem bare/
serve disk --socket "$SOCKET" --listen 127.0.0.1:0 --tls-certificates tls
PORT=$(sed -n 's/.*tcp:127.0.0.1://p' serve.out)
has "TLS over TCP" "with TLS" nbdinfo "nbds://127.0.0.1:$PORT?tls-certificates=$WORK/client"
has "TLS on a unix socket" "with TLS" nbdinfo "nbds+unix:///?socket=$SOCKET&tls-certificates=$WORK/client&tls-hostname=localhost"
refused "without TLS" "Operation not supported for the default export" nbdinfo "$URI"
check "nbdcopy through TLS" bounded 60 nbdcopy image "nbds://127.0.0.1:$PORT?tls-certificates=$WORK/client"
check "and back" bounded 60 nbdcopy "nbds://127.0.0.1:$PORT?tls-certificates=$WORK/client" out
check "the same" cmp image out
# allowed.py SOCKET NEGOTIATED CREDENTIALS...: that a client with these has TLS, whether it may or must use it; or that one that may goes on without.
cat >allowed.py <<'PYTHON'
import nbd, sys
path, negotiated, *credentials = sys.argv[1:]
for of in credentials:
    for mode in (nbd.TLS_ALLOW, nbd.TLS_REQUIRE) if negotiated == "True" else (nbd.TLS_ALLOW,):
        h = nbd.NBD()
        h.set_tls(mode)
        h.set_tls_username("alice")
        h.set_tls_certificates("client") if of == "certificates" else h.set_tls_psk_file("keys.psk")
        h.connect_unix(path)
        assert str(h.get_tls_negotiated()) == negotiated, of
        assert h.get_size() == 256 << 20
        assert len(h.pread(512, 0)) == 512
        h.shutdown()
PYTHON
echo "alice:$(openssl rand -hex 32)" >keys.psk
check "interop: a client that may use TLS, or must, has it" bounded 30 python3 allowed.py "$SOCKET" True certificates
refused "interop: a pre-shared key opens nothing" "nbd_connect_unix" python3 allowed.py "$SOCKET" True key
has "nbdkit's nbd plugin: TLS goes no further" "export-size: 268435456" nbdkit --exit-with-parent -U - --tls=off nbd "uri=nbds+unix:///?socket=$SOCKET&tls-hostname=localhost" tls=require "tls-certificates=$WORK/client" --run 'nbdinfo "$uri"'
has "QEMU through TLS" "file format: raw" qemu-img info --object "tls-creds-x509,id=t,dir=$WORK/client,endpoint=client" --image-opts "driver=raw,file.driver=nbd,file.host=127.0.0.1,file.port=$PORT,file.tls-creds=t"
check "bytes that come before TLS do not count as if they came through it" bounded 30 python3 - "$SOCKET" <<'PYTHON'
import socket, struct, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(20)
assert len(s.recv(18, socket.MSG_WAITALL)) == 18
option = lambda number: b"IHAVEOPT" + struct.pack(">II", number, 0)
s.sendall(struct.pack(">I", 3) + option(5) + option(8))
assert s.recv(1) == b"", "the server went on"
PYTHON
end_server
serve disk --socket "$SOCKET"
check "interop: a client that may use TLS goes on without where there is none" bounded 30 python3 allowed.py "$SOCKET" False certificates key
end_server
serve disk --socket "$SOCKET" --tls-certificates tls --tls-verify-peer
has "a client with a certificate" "with TLS" nbdinfo "nbds+unix:///?socket=$SOCKET&tls-certificates=$WORK/client&tls-hostname=localhost"
refused "a client without one" "nbd_connect_uri" nbdinfo "nbds+unix:///?socket=$SOCKET&tls-certificates=$WORK/bare&tls-hostname=localhost"
end_server

# ---- libnbd's own programs ---------------------------------------------------------------------------------------------
# Which server they start is compiled into them: this one, by the socket that libnbd makes for it. A source package cannot be had everywhere.

# interop WHAT PROGRAM FLAG...: compiles one of libnbd's interop programs and runs it.
interop() {
    local what="libnbd's $2: $1" program=$2; shift 2
    if cc -o "libnbd/interop/$program" -I configured -I libnbd/tests -I libnbd/common/include -DSERVER="\"$SERVE\"" "$@" "libnbd/interop/$program.c" libnbd/interop/requires.c -lnbd >cc.log 2>&1; then
        # To a file: a program that fails leaves its server, which would hold a pipe.
        if bounded 30 env -C libnbd/interop "./$program" >interop.log 2>&1; then pass "$what"; else fail "$what: $(tail -n 1 interop.log)"; fi
    else
        fail "$what: it is not compiled: $(grep -m 1 error cc.log)"
    fi
}
if fetch_source libnbd >source.log 2>&1 && dpkg-source --no-check -x "$TOOLS"/libnbd/libnbd_*.dsc libnbd >>source.log 2>&1; then
    mkdir configured && : >configured/config.h
    mkdir -p libnbd/tests/pki && cp client/* libnbd/tests/pki && cp keys.psk libnbd/tests
    activated=(-DSOCKET_ACTIVATION=1 -DNEEDS_TMPFILE=1)
    interop "a file" interop "${activated[@]}" -DSERVER_PARAMS=TMPFILE
    interop "an export with a name" interop "${activated[@]}" -DSERVER_PARAMS='TMPFILE, "--name", "hello"' -DEXPORT_NAME='"hello"'
    interop "TLS that is required" interop "${activated[@]}" -DSERVER_PARAMS="TMPFILE, \"--tls-certificates\", \"$WORK/tls\"" -DCERTS=1 -DTLS_MODE=LIBNBD_TLS_REQUIRE
    interop "TLS that is allowed" interop "${activated[@]}" -DSERVER_PARAMS="TMPFILE, \"--tls-certificates\", \"$WORK/tls\"" -DCERTS=1 -DTLS_MODE=LIBNBD_TLS_ALLOW
    interop "TLS that is allowed, and not there" interop "${activated[@]}" -DSERVER_PARAMS=TMPFILE -DCERTS=1 -DTLS_MODE=LIBNBD_TLS_ALLOW -DTLS_FALLBACK=1
    interop "keys that are allowed, and not there" interop "${activated[@]}" -DSERVER_PARAMS=TMPFILE -DPSK=1 -DTLS_MODE=LIBNBD_TLS_ALLOW -DTLS_FALLBACK=1
    interop "the list of exports" list-exports -DSOCKET_ACTIVATION=1 -DSERVER_PARAMS='"../../small", "--name", "main"' -DEXPORTS='"main"' -DDESCRIPTIONS='"../../small, by nbd-serve"'
    interop "a socket of libnbd's" socket-activation -DSERVER_PARAMS=tmpfile
else
    skip "libnbd's own programs: no source: $(tail -n 1 source.log)"
fi

refused "a directory without certificates" "server-cert.pem" "$SERVE" disk --socket "$SOCKET" --tls-certificates client
check "no panic, no bug" bash -c '! grep -i -E "panicked|bug" "$1"' - serve.log
cleanup
suite_end
