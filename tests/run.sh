#!/usr/bin/env bash
# Runs the project's checks: `tests/run.sh test` or `tests/run.sh long`; `tests/run.sh test STEP...` runs only the named steps.
#
# Each step has a time limit and a log in target/test-logs/; its line tells the time and the results, and a step that fails shows
# the end of its log. At the end stands once more what failed. The last line is the sum: `N passed, N failed`. A step that counts nothing itself counts as one.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
ROOT=$PWD
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
LOGS=$ROOT/target/test-logs
mode=${1:-test}; shift
only=" $* "
export SEED=${SEED:-$(date +%s)}
export CARGO_TERM_COLOR=never

# The crash explorer of the lab; its arguments are the budgets below.
EXPLORER=${EXPLORER:-cargo run --quiet --release -p holdfast-lab --bin crash-explorer --}

case $mode in
    # The aim is 20 minutes on 2 cores that do nothing else; a busy machine gets more rather than a red run.
    test) total_limit_s=4200; explorer="--states 1000000 --seconds 60 --at-least 2000"; flashlog="--states 1000000 --seconds 60 --at-least 2000"; torture_s=20 ;;
    # The aim is 14 hours on 2 cores: 2 h explorer, half an hour Flashlog, 1 h full stores, 2 h foreign bytes, 1 h release tests, 2 h fsx, 5 h the other suites.
    long) total_limit_s=61200; explorer="--states 100000 --seconds 7200 --at-least 100000"; flashlog="--states 40000 --seconds 1800 --at-least 20000"; torture_s=3600 ;;
    *) echo "usage: $0 test|long [STEP...]"; exit 2 ;;
esac

mkdir -p "$LOGS"
passed=0 failed=0 skipped=0 failures=

# counts LOG: "passed failed skipped" from the results of cargo test and of the suites.
counts() {
    awk '/^test result: / { for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^passed/) p += $i; if ($(i + 1) ~ /^failed/) f += $i; if ($(i + 1) ~ /^ignored/) s += $i } }
        /^[a-z0-9-]+: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $2; f += $4; s += $6 }
        END { print p + 0, f + 0, s + 0 }' "$1"
}

# what_failed LOG: the tests that it says have failed, else its last line.
what_failed() {
    local named
    named=$(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p; s/^[a-z0-9-]+: FAIL: (.*)$/\1/p; s/^error(\[E[0-9]+\])?: (.*)$/\2/p' "$1" | head -n 10 | paste -sd ';')
    echo "${named:-$(tail -n 1 "$1")}"
}

# step NAME LIMIT_S COMMAND...
step() {
    local name=$1 limit_s=$2 log=$LOGS/$1.log start=$SECONDS status p f s; shift 2
    [ "$only" = "  " ] || [[ $only == *" $name "* ]] || return 0
    local left_s=$((total_limit_s - SECONDS))
    [ $limit_s -lt $left_s ] || limit_s=$((left_s > 1 ? left_s : 1))
    # The whole log of a step is kept; `timeout` ends the step's process group, and the suites then clean up after themselves.
    timeout -k 60 $limit_s "$@" >"$log" 2>&1 </dev/null
    status=$?
    read -r p f s < <(counts "$log")
    if [ $status != 0 ] && [ "$f" = 0 ]; then f=1; fi
    if [ $status = 0 ] && [ $((p + f + s)) = 0 ]; then p=1; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-16s %4d s   %s\n' "$name" $((SECONDS - start)) "$p passed, $f failed$([ "$s" = 0 ] || echo ", $s skipped")"
    [ $status != 124 ] || echo "    out of time: the limit is $limit_s s"
    [ "$f" = 0 ] && return 0
    tail -n 40 "$log" | sed 's/^/    /'; echo "    the whole log: $log"
    failures+="$name: $(what_failed "$log")"$'\n'
    return 1
}

# suite NAME LIMIT_S [VARIABLE=VALUE...]
suite() {
    local name=$1 limit_s=$2; shift 2
    step "$name" "$limit_s" env "$@" "tests/suites/$name.sh"
}

# What the README says that a machine must have; everything else is installed. Each line says what to do.
requirements() {
    local status=0 sudo=
    lacks() { echo "$1"; status=1; }
    cargo --version || lacks "there is no cargo: install Rust 1.90 or newer, https://rustup.rs"
    cargo fmt --version && cargo clippy --version || lacks "rustfmt or clippy is missing: rustup component add rustfmt clippy"
    [ "$(command -v cc)" ] || lacks "there is no C compiler: install the packages gcc and libc6-dev"
    [ -e /dev/fuse ] || lacks "there is no /dev/fuse: load the module (modprobe fuse) or, in a container, pass --device /dev/fuse"
    [ -e /dev/loop-control ] || lacks "there is no /dev/loop-control: load the module (modprobe loop) or, in a container, pass it and the loop devices (--device)"
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    if ! $sudo true; then lacks "the suites mount, which needs root: run this as root, or by a user whose sudo asks for no password"
    elif ! $sudo unshare --mount true; then lacks "root may not mount here: a container needs --cap-add SYS_ADMIN"
    elif ! $sudo unshare --mount sh -c 'mount -t tmpfs tmpfs /run && mknod /run/null c 1 3'; then
        lacks "root may make no devices here: a container needs --cap-add MKNOD, and no name space of users"
    fi
    return $status
}
# install_all MODE: what the tests and the suites need, in one go, so that apt's lists are fetched once at most. Fuzzing is for hours.
install_all() (
    requirements || exit 1
    . tests/suites/lib.sh
    # shellcheck disable=SC2046
    install_packages $(packages_except bench trace xfstests $([ "$1" = long ] || echo fuzz udev)) && install_tool pjdfstest 0.2.2 && install_tool fsx 0.3.2
)
export -f requirements install_all   # names that no program has: the suites see them

# It mounts, which needs root.
directories="$([ "$(id -u)" = 0 ] || echo sudo -n) env HOLDFAST=$TARGET/release/holdfast SEED=$SEED tests/suites/directories.py ${SUITE_WORK:-$ROOT/target/suites}/directories"
echo "seed $SEED"
# First, as the tests of `unit` run some of these programs, too.
step install 900 bash -c "install_all $mode"
step fmt 60 cargo fmt --all --check
# The mutants themselves are for hours; that each still has its place in the sources is not.
step mutants-listed 60 tests/suites/mutants.py --check
# The feature has no dependency, and only these two, and the tests as a release, build it.
step clippy 600 cargo clippy --workspace --all-targets --features holdfast/ublk -- -D warnings
# What `requirements` has seen is there; a test that does not find it has failed, and is not skipped. But who is not root skips those that need root.
export HOLDFAST_REQUIRE=fuse,program$([ "$(id -u)" != 0 ] || echo ,root)
# Most of its time tests wait, for recovery points and for programs: two for each processor.
step unit 1800 env RUST_TEST_THREADS=$(($(nproc) * 2)) cargo test --workspace --features holdfast/ublk --no-fail-fast
# The random tests that a variable lengthens: more seeds, longer fuzzing, more kills.
[ "$mode" = test ] || step release 5400 env HOLDFAST_RUNS=200 HOLDFAST_FUZZ_SECONDS=600 HOLDFAST_KILL_SECONDS=300 cargo test --workspace --features holdfast/ublk --no-fail-fast --release
# shellcheck disable=SC2086
step explorer $([ "$mode" = test ] && echo 600 || echo 7500) $EXPLORER --seed "$SEED" $explorer
# shellcheck disable=SC2086
step flashlog $([ "$mode" = test ] && echo 600 || echo 2400) cargo run --quiet --release -p holdfast-lab --bin flashlog-explorer -- --seed "$SEED" $flashlog
[ "$mode" = test ] || step flips 1800 cargo run --quiet --release -p holdfast-lab --bin flashlog-flips -- --seed "$SEED" --trials 200
[ "$mode" = test ] || step enemy 3600 cargo run --quiet --release -p holdfast-lab --bin enemy-table -- --seed "$SEED" --trials 200
# With verification switched off the experiment of random flips must fail, and for what it counts: not as it was not built, or did not run.
# What is built so stays by itself.
blind() {
    cargo build --quiet --release --target-dir target/blind -p holdfast-lab --features blind --bin flip-campaign || return
    local said status
    said=$(target/blind/release/flip-campaign --seed "$SEED" --trials 1 --seconds 3)
    status=$?
    echo "$said"
    [ $status = 1 ] && grep -qE '^[1-9][0-9]* trials in which a mode that verifies memory let corrupt bytes out$' <<<"$said"
}
export -f blind
[ "$mode" = test ] || step blind 1200 env SEED="$SEED" bash -c blind
[ "$mode" = test ] || step mutants 9000 tests/suites/mutants.py "${SUITE_WORK:-$ROOT/target/suites}/mutants"
[ "$mode" = test ] || step metadata 3600 cargo run --quiet --release -p holdfast-lab --bin metadata-campaign -- --seed "$SEED" --injections 20000
[ "$mode" = test ] || step metadata-operations 3600 cargo run --quiet --release -p holdfast-lab --bin metadata-campaign -- --seed "$SEED" --by-operation
# Flips anywhere in a daemon have no goal: that they are tried, and that what comes of them is counted.
anywhere() {
    cargo build --quiet --release -p holdfast -p holdfast-lab --bin holdfast --bin flip-campaign || return
    local said sudo=
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    said=$($sudo "$TARGET/release/flip-campaign" --seed "$SEED" --anywhere --modes uniform --trials 2 --seconds 2 --dir "${SUITE_WORK:-$ROOT/target/suites}/flips") || return
    echo "$said"
    awk -F '|' '/^\| [a-z]+ \| `uniform` / && $4 == 2 && $5 > 0 { rows++ } END { exit rows != 4 }' <<<"$said"
}
export -f anywhere
export TARGET ROOT
[ "$mode" = test ] || step anywhere 1800 bash -c anywhere
# In a virtual machine whose processor is emulated; its kernel has Yama, so this has ptrace_scope=1, too.
[ "$mode" = test ] || step protection-keys 5400 tests/suites/protection-keys.sh
step torture $((torture_s * 2 + 300)) cargo run --quiet --release -p holdfast-lab --bin space-torture -- --seed "$SEED" --seconds $torture_s
[ "$mode" = test ] || step foreign 3900 cargo run --quiet --release -p holdfast-lab --bin foreign-bytes -- --seed "$SEED" --seconds 3600
step build 600 cargo build --release -p holdfast -p holdfast-bench
# By itself: it wants TLS of holdfast-block, which the others do without.
step build-nbd 300 cargo build --release -p holdfast-block --example nbd-serve
if [ "$mode" = test ]; then
    suite pjdfstest 120
    suite posix 180
    suite user 60
    suite fsx 400
    suite sqlite 120
    # The same through the kernel's page cache.
    step pjdfstest-kernel 120 env MOUNT_OPTS=cache=kernel tests/suites/pjdfstest.sh
    step posix-kernel 180 env MOUNT_OPTS=cache=kernel tests/suites/posix.sh
    step fsx-kernel 400 env MOUNT_OPTS=cache=kernel tests/suites/fsx.sh
    step sqlite-kernel 120 env MOUNT_OPTS=cache=kernel tests/suites/sqlite.sh
    suite git 120
    suite python 300
    suite kill9 120 SECONDS_LIMIT=30
    suite full 120 SECONDS_LIMIT=25
    suite openssh 480
    suite stress 150
    suite fio 120
    suite loads 120
    suite rsync 120
    suite nbd 180
    suite nbd-set 180
    suite postgres 120
    suite memory 150 FILES=60000 VOLUME_MB=1024
    step directories 300 $directories 20000
else
    suite fuzz 6000 SECONDS_EACH=120 STORE_SECONDS=1800
    suite pjdfstest 300
    suite posix 1800 LIMIT=1500 ENTRIES=1000000
    suite user 60
    # A seed takes 25 minutes, on a busy machine more than an hour.
    suite fsx 14400 SEEDS=3 OPERATIONS=200000 LIMIT=4800
    suite sqlite 300
    suite git 300
    suite python 600
    suite kill9 1200 SECONDS_LIMIT=900
    suite full 4200 SECONDS_LIMIT=3600 STORE_SIZE=256M
    suite openssh 1200
    suite stress 1800 RUNTIME_S=10 WORKERS=2 AT_ONCE=1
    suite fio 1200 SIZE=256m LIMIT=400
    suite loads 1800 RUNTIME_S=120 CLIENTS=8 BONNIE_MB=1024 BONNIE_FILES=16 TRANSACTIONS=100000 POSTMARK_FILES=10000 LIMIT=900
    suite nbd 600 SECONDS_FIO=60
    suite nbd-set 900 ROUNDS=60
    # In a virtual machine whose processor is emulated.
    suite udev 4500
    suite rsync 1800 TREES="/usr/share /usr/include /usr/lib"
    suite memory 3600 FILES=1000000 VOLUME_MB=16384 FILE_MB=1024 STORE_SIZE=8G
    step directories 5400 $directories 1000000
    suite postgres 900 ROUNDS=12 RUNTIME_S=10 SCALE=10
    # The same through the kernel's page cache.
    step pjdfstest-kernel 300 env MOUNT_OPTS=cache=kernel tests/suites/pjdfstest.sh
    step posix-kernel 1800 env MOUNT_OPTS=cache=kernel LIMIT=1500 ENTRIES=1000000 tests/suites/posix.sh
    step fsx-kernel 9600 env MOUNT_OPTS=cache=kernel SEEDS=2 OPERATIONS=200000 LIMIT=4800 tests/suites/fsx.sh
    step sqlite-kernel 300 env MOUNT_OPTS=cache=kernel tests/suites/sqlite.sh
    step fio-kernel 1200 env MOUNT_OPTS=cache=kernel SIZE=256m LIMIT=400 tests/suites/fio.sh
    step postgres-kernel 600 env MOUNT_OPTS=cache=kernel ROUNDS=6 RUNTIME_S=10 SCALE=10 tests/suites/postgres.sh
    step stress-kernel 1200 env MOUNT_OPTS=cache=kernel RUNTIME_S=5 WORKERS=2 AT_ONCE=1 tests/suites/stress.sh
    step deny 900 make --silent deny
fi
[ -z "$failures" ] || printf 'what failed, with seed %s:\n%s' "$SEED" "$failures"
[ $skipped = 0 ] || echo "$skipped skipped: the reasons are in the logs"
echo "$SECONDS s on $(nproc) cores"
echo "$passed passed, $failed failed" | tee "$LOGS/closing-line"
[ $failed = 0 ]
