//! `holdfast run`: unmodified programs do under it what they do without, what they transfer is verified, and flipped bits are caught.

use crate::confined::refuse;
use crate::rig::{Ran, Rig, copy_program, fuse, is_there, lacks};
use crate::summed::opened;
use holdfast_client::Kind;
use holdfast_interface::run::{COUNTERS_MAGIC, COUNTERS_VARIABLE, CountersName, LIBRARY};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The preloaded library, which no test can be linked with, built to where the binary finds it.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let binary = Path::new(env!("CARGO_BIN_EXE_holdfast"));
        let directory = binary.parent().unwrap();
        let release = directory.ends_with("release").then_some("--release");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "holdfast-preload"]).args(release);
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).env("CARGO_TARGET_DIR", directory.parent().unwrap());
        assert!(cargo.status().unwrap().success(), "{cargo:?}");
        let library = directory.join(LIBRARY);
        assert!(library.exists(), "{}", library.display());
        library
    })
}

/// Runs a command, directly or under `holdfast run`.
pub(crate) fn ran(mut command: Command) -> Ran {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Ran {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// What was counted; the last line on standard error.
#[track_caller]
fn stats(ran: &Ran) -> Value {
    let line = ran.err.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn number(stats: &Value, name: &str) -> u64 {
    stats[name].as_u64().unwrap_or_else(|| panic!("{name} is not in {stats}"))
}

impl Rig {
    /// `holdfast run` with these words.
    pub(crate) fn under<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Command {
        library();
        let mut command = self.command();
        command.args(["--json", "run"]).args(words);
        command
    }

    /// A C program or library made of one file.
    pub(crate) fn compiled(&self, source: &str, options: &[&str]) -> PathBuf {
        let program = self.path(&source.replace('.', "-"));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        let mut compiler = Command::new("cc");
        // Warnings are about calls that are wrong on purpose.
        compiler.args(["-std=gnu11", "-O2", "-w", "-D_GNU_SOURCE"]).args(options).arg(&path).arg("-o").arg(&program);
        ran(compiler).exits(0);
        program
    }
}

/// Programs, and scripts that use them in an empty directory and print what came of it. `$SOURCE` is a directory with some files.
const PROGRAMS: [(&str, &str); 7] = [
    ("cp", "cp -r $SOURCE copy; cp copy/a.h b; cat copy/* b | cksum"),
    ("tar", "tar -cf a.tar -C $SOURCE .; mkdir x; tar -xf a.tar -C x; cat x/* | cksum; tar -df a.tar -C x"),
    (
        "sqlite3",
        "sqlite3 db 'create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000)
             insert into t select i, hex(i * i) from n; create index x on t(b)'
         sqlite3 db 'begin; update t set b = b || a where a % 3; commit; delete from t where a % 7 = 0; vacuum'
         sqlite3 db 'pragma integrity_check; select count(*), sum(a), max(b) from t'
         sqlite3 db 'pragma journal_mode = wal; insert into t values(1, 2); select count(*) from t'",
    ),
    (
        "python3",
        r#"cat >program.py <<'END'
import os, mmap
text = ''.join(f'line {n} ä\n' for n in range(20000))
with open('text', 'w', encoding='utf-8') as file: file.write(text)
with open('text', encoding='utf-8') as file: assert file.read() == text
with open('data', 'wb+', buffering=0) as file:
    file.write(bytes(range(256)) * 1000)
    assert os.pread(file.fileno(), 5000, 77) == (bytes(range(256)) * 1000)[77:5077]
    os.pwritev(file.fileno(), [b'one', b'two'], 100)
    file.seek(98)
    print(file.read(10))
    file.truncate(1000)
with open('data', 'r+b') as file:
    print(sum(mmap.mmap(file.fileno(), 0)[:]))
with open('text', 'a') as file: file.write('end')
print(os.path.getsize('text'))
END
         python3 program.py"#,
    ),
    (
        "git",
        "export GIT_AUTHOR_DATE='@0 +0000' GIT_COMMITTER_DATE='@0 +0000' GIT_CONFIG_GLOBAL=/dev/null
         export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a
         git init -q -b main one; cp $SOURCE/* one; git -C one add -A; git -C one commit -q -m first
         echo change >>one/a.h; git -C one commit -q -a -m second; git -C one fsck --full --strict
         git -C one gc -q; git clone -q --no-hardlinks one two; git -C two fsck --full --strict
         git -C two rev-parse HEAD; git -C two status --porcelain; diff -r -x .git one two",
    ),
    (
        "cc",
        "cat >main.c <<'END'
#include <stdio.h>
int main(void) { for (int i = 0; i < 3; i++) printf(\"%d\\n\", i * i); return 0; }
END
         cc -O1 -g -c main.c -o main.o; cc main.o -o main; ./main",
    ),
    (
        "sort",
        "sort -r $SOURCE/* >lines; rev lines >back; sed -i s/a/ä/ lines; dd if=lines of=part bs=1000 skip=3 conv=fsync 2>dd
         (echo one; echo two) >out; cat out lines back part dd | sed s/,.*// | cksum",
    ),
];

/// The others are on every system where this is built.
const MAY_BE_MISSING: [&str; 3] = ["sqlite3", "python3", "git"];

#[test]
fn unmodified_programs_do_as_ever_and_are_verified() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let source = rig.directory("source");
    for (index, name) in ["a.h", "b.h", "c.h", "empty", "long"].into_iter().enumerate() {
        let lines = [40, 3000, 1, 0, 60_000][index];
        let text: String = (0..lines).map(|line| format!("{} line {} of {name}\n", line * 7919 % 1000, line)).collect();
        fs::write(source.join(name), text).unwrap();
    }
    for (program, script) in PROGRAMS {
        if Command::new(program).arg("--version").output().is_err() {
            assert!(MAY_BE_MISSING.contains(&program), "there is no {program}");
            lacks("program", &format!("there is no {program}"));
            continue;
        }
        let [plain, verified] = [false, true].map(|is_verified| {
            let directory = mount.join(format!("{program}-{is_verified}"));
            fs::create_dir(&directory).unwrap();
            let script = format!("set -e; cd {}\n{script}", directory.display());
            let mut command = match is_verified {
                false => Command::new("sh"),
                true => rig.under(["--stats", "--", "sh"]),
            };
            command.args(["-c", &script]).env("SOURCE", &source).env("LC_ALL", "C.UTF-8");
            ran(command).exits(0)
        });
        assert_eq!(verified.out, plain.out, "{program}");
        assert!(!plain.out.is_empty(), "{program} prints what came of it");
        let stats = stats(&verified);
        eprintln!("{program}: {stats}");
        for name in ["verified_reads", "verified_read_bytes", "verified_writes", "verified_written_bytes"] {
            assert!(number(&stats, name) > 0, "{program}: {name}: {stats}");
        }
        assert_eq!(number(&stats, "bad"), 0, "{program}: {stats}");
        assert_eq!(number(&stats, "programs"), number(&stats, "programs_with_stdio"), "{program}: {stats}");
    }
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

/// Every call that is taken over, with right and wrong arguments, descriptors that change, positions that are shared, signals, cancellation.
#[test]
fn odd_calls_give_what_they_give_without() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let program = rig.compiled("ordinary.c", &["-D_FORTIFY_SOURCE=2", "-pthread"]);
    for name in ["plain", "verified", "elsewhere", "elsewhere-verified"] {
        fs::create_dir(if name.starts_with('e') { rig.path(name) } else { mount.join(name) }).unwrap();
    }
    let mut command = Command::new(&program);
    command.arg(mount.join("plain"));
    let plain = ran(command).exits(0);
    assert!(plain.out.ends_with("done\n"), "{}", plain.out);
    let mut command = rig.under(["--stats"]);
    command.arg(&program).arg(mount.join("verified"));
    let verified = ran(command).exits(0);
    assert_eq!(verified.out, plain.out);
    let counted = stats(&verified);
    // How many it makes, while signals and cancellation interrupt it, depends on the time.
    assert!(number(&counted, "verified_reads") > 200 && number(&counted, "verified_writes") > 200, "{counted}");
    assert!(number(&counted, "left_alone") > 0 && number(&counted, "bad") == 0, "{counted}");
    // Files that are in no mount of Holdfast's.
    let mut command = Command::new(&program);
    command.arg(rig.path("elsewhere"));
    let plain = ran(command).exits(0);
    let mut command = rig.under(["--stats"]);
    command.arg(&program).arg(rig.path("elsewhere-verified"));
    let left = ran(command).exits(0);
    assert_eq!(left.out, plain.out);
    let counted = stats(&left);
    assert_eq!((number(&counted, "verified_reads"), number(&counted, "left_alone")), (0, 0), "{counted}");
}

/// In the library's own buffers, or the program's, between the mount's answer and the comparison.
#[test]
fn bits_that_flip_on_the_way_are_caught() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let shim = rig.compiled("flip.c", &["-shared", "-fPIC", "-ldl"]);
    let content: Vec<u8> = (0..40_000u32).map(|index| (index * 31 % 251) as u8).collect();
    let (short, long, copy) = (mount.join("short"), mount.join("long"), mount.join("copy"));
    fs::write(&short, &content[..6000]).unwrap();
    fs::write(&long, &content).unwrap();
    let flipping = |flip: &str, flips: &str, options: &[&str], words: &[&OsStr]| {
        let mut command = rig.under(options);
        command.arg("--").args(words).env("LD_PRELOAD", &shim).env("FLIP", flip).env("FLIPS", flips);
        command.env("LC_ALL", "C");
        let output = command.output().unwrap();
        (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let cat = OsStr::new("cat");
    // It is asked for again.
    for (flip, path, length) in [("read", &short, 6000), ("long-read", &long, 40_000)] {
        let (code, out, err) = flipping(flip, "1", &["--stats"], &[cat, path.as_os_str()]);
        assert_eq!(code, Some(0), "{flip}: {err}");
        assert!(out == content[..length], "{flip}: the program has got what is in the file");
        assert!(err.contains("\"bad\":0"), "{err}");
    }
    // However often it is asked for: an error, and one line.
    let (code, out, err) = flipping("read", "1000", &[], &[cat, short.as_os_str()]);
    assert_eq!((code, out.len()), (Some(1), 0), "{err}");
    let line = err.lines().find(|line| line.starts_with("holdfast: ")).expect("a line");
    assert!(line.contains("short: bad bytes in memory: read at byte 0") && line.contains("blocks [0]"), "{line}");
    assert!(line.contains("cat (") && err.contains("Input/output error") && err.lines().count() == 2, "{err}");
    let (code, _, err) = flipping("read", "1000", &["--quiet"], &[cat, short.as_os_str()]);
    assert_eq!((code, err.lines().count()), (Some(1), 1), "only the program's: {err}");
    // Written: the mount does not take it, and gets it again.
    let dd = |options: &str, flips: &str| {
        let script = format!("dd if={} of={} bs=6000 count=1 {options}", long.display(), copy.display());
        flipping("write", flips, &["--stats"], &["sh", "-c", &script].map(OsStr::new))
    };
    let (code, _, err) = dd("", "1");
    assert_eq!(code, Some(0), "{err}");
    assert!(fs::read(&copy).unwrap() == content[..6000] && err.contains("\"bad\":0"), "{err}");
    let (code, _, err) = dd("conv=notrunc seek=1", "1000");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("bad bytes in memory: write at byte 6000"), "{err}");
    assert!(fs::read(&copy).unwrap() == content[..6000], "nothing of it was taken, and it was not left to the system");
    // Appended.
    let log = mount.join("log");
    let append = |flips: &str| {
        let script = format!("echo line >>{}", log.display());
        flipping("write", flips, &["--stats"], &["sh", "-c", &script].map(OsStr::new))
    };
    for (flips, expected) in [("0", "line\n"), ("1", "line\nline\n")] {
        let (code, _, err) = append(flips);
        assert_eq!((code, &*fs::read_to_string(&log).unwrap()), (Some(0), expected), "{err}");
        assert!(err.contains("\"verified_writes\":1") && err.contains("\"left_alone\":0"), "{err}");
    }
    let (code, _, err) = append("1000");
    assert!(code != Some(0) && err.contains("log: bad bytes in memory: write at byte "), "{code:?}: {err}");
    assert_eq!(fs::read_to_string(&log).unwrap(), "line\nline\n");
}

/// Positions, streams, the limit of file sizes, and what is too long for one request, by descriptors that append.
#[test]
fn appends_are_verified_and_do_as_ever() {
    const PROGRAM: &str = r#"
import os, resource, signal, sys
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
print(os.write(fd, b'abc'), os.lseek(fd, 0, os.SEEK_CUR), os.write(fd, b''))
os.lseek(fd, 1, os.SEEK_SET)
print(os.pwrite(fd, b'de', 0), os.lseek(fd, 0, os.SEEK_CUR), os.pread(fd, 10, 0))
print(os.writev(fd, [b'f' * 3000, b'g' * 3000]), os.lseek(fd, 0, os.SEEK_CUR))
for length in [4091, 12_288, 100_000, 1 << 20, 3 << 20]:
    print(os.write(fd, bytes(range(256)) * (length // 256 + 1)), os.fstat(fd).st_size)
with open(path, 'a') as file:
    print(file.tell())
    file.write('line\n' * 3000)
    file.flush()
    print(file.tell())
size = os.fstat(fd).st_size
signal.signal(signal.SIGXFSZ, lambda *_: print('SIGXFSZ'))
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, resource.RLIM_INFINITY))
print(os.write(fd, b'12345678'))
try:
    os.write(fd, b'9')
except OSError as error:
    print(error.strerror)
print(os.fstat(fd).st_size - size, os.pread(fd, 100, size - 5))
"#;
    if !fuse() || !is_there("python3") {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let [plain, verified] = [false, true].map(|is_verified| {
        let mut command = match is_verified {
            false => Command::new("python3"),
            true => rig.under(["--stats", "--", "python3"]),
        };
        command.args(["-c", PROGRAM]).arg(mount.join(is_verified.to_string()));
        ran(command).exits(0)
    });
    assert_eq!(verified.out, plain.out);
    assert!(plain.out.contains("SIGXFSZ") && plain.out.contains("File too large"), "{}", plain.out);
    assert!(fs::read(mount.join("true")).unwrap() == fs::read(mount.join("false")).unwrap());
    let counted = stats(&verified);
    assert!(number(&counted, "verified_writes") >= 7, "{counted}");
    assert_eq!(
        number(&counted, "left_alone"),
        4,
        "two that are longer than a request, two beyond the limit: {counted}"
    );
}

/// The kernel would copy past the program's memory: sendfile, copy_file_range, splice.
#[test]
fn whole_files_come_through_the_programs_memory() {
    const PROGRAM: &str = r#"
import os, shutil, socket, sys
a, b, here, there = sys.argv[1:]
shutil.copyfile(here, a); shutil.copyfile(a, b); shutil.copyfile(b, there)
source, target = os.open(a, os.O_RDONLY), os.open(there, os.O_RDWR)
def tell(call, *arguments):
    try:
        print(call.__name__, call(*arguments))
    except OSError as error:
        print(call.__name__, error.errno)
tell(os.sendfile, target, source, 0, 10)
tell(os.copy_file_range, source, target, 10)
tell(os.copy_file_range, target, os.open(b, os.O_RDWR), 10)
out, into = os.pipe()
tell(os.sendfile, into, source, 0, 10)
if hasattr(os, 'splice'):
    tell(os.splice, source, into, 10)
one, other = socket.socketpair()
print(one.sendfile(open(a, 'rb'), 0, 5), len(other.recv(9)))
"#;
    if !fuse() || !is_there("python3") {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let content: Vec<u8> = (0..150_000u32).map(|index| (index * 31 % 251) as u8).collect();
    let [here, there, back] = ["here", "there", "back"].map(|name| rig.path(name));
    fs::write(&here, &content).unwrap();
    let mut command = rig.under(["--stats", "--", "python3", "-c", PROGRAM]);
    command.arg(mount.join("a")).arg(mount.join("b")).arg(&here).arg(&there);
    let copied = ran(command).exits(0);
    for name in ["m/a", "m/b", "there"] {
        assert!(fs::read(rig.path(name)).unwrap() == content, "{name}");
    }
    let (invalid, across) = (libc::EINVAL, libc::EXDEV);
    let told = |name: &str, result: i32| copied.out.matches(&format!("{name} {result}\n")).count();
    assert_eq!(told("copy_file_range", across), 2, "{copied:?}");
    let splices = copied.out.matches("splice ").count();
    assert_eq!((told("sendfile", invalid), told("splice", invalid)), (2, splices), "{copied:?}");
    let counted = stats(&copied);
    assert!(number(&counted, "verified_read_bytes") >= 300_000, "{counted}");
    assert_eq!((number(&counted, "verified_written_bytes"), number(&counted, "left_alone")), (300_000, 0), "{counted}");
    // coreutils.
    let run = |words: [&Path; 2]| {
        let mut command = rig.under(["--stats", "--", "cp", "--reflink=auto"]);
        command.args(words);
        stats(&ran(command).exits(0))
    };
    let counted = run([&here, &mount.join("c")]);
    assert_eq!((number(&counted, "verified_written_bytes"), number(&counted, "left_alone")), (150_000, 0), "{counted}");
    let counted = run([&mount.join("c"), &back]);
    assert_eq!((number(&counted, "verified_read_bytes"), number(&counted, "left_alone")), (150_000, 0), "{counted}");
    assert!(fs::read(&back).unwrap() == content && fs::read(mount.join("c")).unwrap() == content);
    // Within a mount nothing comes through anybody's memory.
    let counted = run([&mount.join("c"), &mount.join("d")]);
    assert!(fs::read(mount.join("d")).unwrap() == content);
    let verified = number(&counted, "verified_read_bytes");
    assert!(verified == 150_000 || verified == 0 && number(&counted, "left_alone") > 0, "{counted}");
    // Between two mounts.
    rig.store("s2", "64M");
    let other = rig.directory("m2");
    rig.run(["mount", "s2", "m2"]).exits(0);
    let counted = run([&mount.join("c"), &other.join("c")]);
    assert_eq!((number(&counted, "verified_written_bytes"), number(&counted, "left_alone")), (150_000, 0), "{counted}");
    assert!(fs::read(other.join("c")).unwrap() == content);
    rig.run(["unmount", "m2"]).exits(0);
    // Elsewhere nothing is changed.
    let mut command = rig.under(["--stats", "--", "python3", "-c"]);
    command.arg("import os, sys; print(os.sendfile(os.open(sys.argv[2], 66), os.open(sys.argv[1], 0), 0, 9))");
    command.args([&here, &rig.path("new")]);
    let elsewhere = ran(command).exits(0);
    assert_eq!((elsewhere.out.as_str(), number(&stats(&elsewhere), "left_alone")), ("9\n", 0), "{elsewhere:?}");
}

#[test]
fn a_static_program_is_told_from_one_that_verified_nothing() {
    let rig = Rig::new();
    fs::write(rig.path("static.c"), "int main(void) { return 0; }\n").unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-static").arg(rig.path("static.c")).arg("-o").arg(rig.path("static"));
    if !compiler.output().is_ok_and(|output| output.status.success()) {
        return lacks("library", "there is no static libc");
    }
    library();
    let run = |program: &Path| {
        let mut command = rig.command();
        command.args(["run", "--stats"]).arg("--").arg(program);
        ran(command).exits(0).err
    };
    let told = run(&rig.path("static"));
    assert!(told.contains("the library was not loaded (a static program?)"), "{told}");
    let told = run(Path::new("true"));
    assert!(
        told.contains("1 program") && told.contains("verified on the way to and from the mount: 0 reads"),
        "{told}"
    );
}

/// A mount that has no checksums for programs is counted, and named by the first call of all programs.
#[test]
fn a_mount_that_refuses_is_told_once() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("cache=kernel");
    let script = "cd $0; echo line >f; cat f; sh -c 'cat f; cp f g'; cmp f g";
    let run = |options: &[&str]| {
        let mut command = rig.under(options);
        command.args(["--", "sh", "-c", script]).arg(&mount);
        ran(command).exits(0)
    };
    let refused = run(&["--stats"]);
    assert_eq!(refused.out, "line\nline\n");
    let counted = stats(&refused);
    assert_eq!((number(&counted, "verified_reads"), number(&counted, "verified_writes")), (0, 0), "{counted}");
    assert!(number(&counted, "left_alone") >= 6, "{counted}");
    assert_eq!(number(&counted, "refused"), number(&counted, "left_alone"), "{counted}");
    let lines: Vec<_> = refused.err.lines().filter(|line| line.contains("cache=kernel")).collect();
    let why = "/f: nothing is verified: the file's mount has no checksums for programs (it has cache=kernel, or is none of Holdfast's)";
    assert!(matches!(&lines[..], [line] if line.ends_with(why)), "{refused:?}");
    assert_eq!(run(&["--stats", "--quiet"]).err.lines().count(), 1);
    assert_eq!(run(&[]).err, "");
}

/// The system does it in any mount: a failure leaves nothing alone that would be verified elsewhere.
#[test]
fn an_fsync_that_fails_in_a_mount_that_refuses_is_not_counted() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab("cache=kernel,cache=16M,epoch=60000").join("f");
    fs::write(&path, [1; 8192]).unwrap();
    // The kernel hands down what it keeps.
    rustix::fs::syncfs(fs::File::open(&path).unwrap()).unwrap();
    rig.flip("/f", 1, "dirty");
    let mut command = rig.under(["--stats"]);
    command.args(["--", "sync"]).arg(&path);
    let failed = ran(command).exits(1);
    assert!(failed.err.contains("Input/output error") && !failed.err.contains("nothing is verified"), "{failed:?}");
    let counted = stats(&failed);
    assert_eq!((number(&counted, "refused"), number(&counted, "left_alone")), (0, 0), "{counted}");
}

/// A filter from before the program starts: reads are verified, writes are the system's, and what mappings have stored is seen and stays.
#[test]
fn programs_that_may_not_hand_down_what_mappings_have() {
    const PROGRAM: &str = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
print(os.write(fd, bytes(6000)))
mapping = mmap.mmap(fd, 6000)
mapping[10:14] = b'kept'
print(os.pread(fd, 5, 9))
mapping[20:24] = b'also'
print(os.pwrite(fd, b'written', 100), os.write(fd, b'end'))
print(os.pread(fd, 8192, 0)[:110].hex(), os.fstat(fd).st_size)
with open(sys.argv[1], 'ab') as file: file.write(b'appended')
mapping.close()
print(open(sys.argv[1], 'rb').read()[-12:])
"#;
    const CALLS: [libc::c_long; 1] = [libc::SYS_sync_file_range];
    if !fuse() || !is_there("python3") {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let mut command = Command::new("python3");
    command.args(["-c", PROGRAM]).arg(mount.join("plain"));
    let plain = ran(command).exits(0);
    for errno in [libc::EPERM, libc::ENOSYS] {
        let mut command = rig.under(["--stats", "--", "python3"]);
        command.args(["-c", PROGRAM]).arg(mount.join(errno.to_string()));
        // SAFETY: it allocates nothing.
        unsafe { command.pre_exec(move || refuse(&CALLS, errno)) };
        let refused = ran(command).exits(0);
        assert_eq!(refused.out, plain.out, "{errno}");
        let counted = stats(&refused);
        assert!(number(&counted, "verified_reads") >= 3, "{counted}");
        assert_eq!((number(&counted, "verified_writes"), number(&counted, "left_alone")), (0, 4), "{counted}");
    }
    // A library has no system to leave it to.
    let file = opened(&mount.join("plain"));
    let refused = std::thread::spawn(move || {
        refuse(&CALLS, libc::EPERM).unwrap();
        let mut buffer = [0; 4];
        assert_eq!((file.read_at(&mut buffer, 20), &buffer), (Ok(4), b"also"));
        [file.write_at(b"x", 0).unwrap_err(), file.append(b"x").unwrap_err()]
    });
    for error in refused.join().unwrap() {
        assert_eq!((error.kind, error.errno), (Kind::System, libc::EPERM), "{error}");
        assert!(error.to_string().contains("sync_file_range"), "{error}");
    }
}

#[test]
fn a_flipped_bit_in_the_mounts_memory_is_mended_or_an_error() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.lab("epoch=60000,cache=16M");
    let content: Vec<u8> = (0..40_000u32).map(|index| (index * 37 % 241) as u8).collect();
    let other: Vec<u8> = content.iter().map(|byte| byte ^ 0x55).collect();
    fs::write(rig.path("content"), &content).unwrap();
    fs::write(rig.path("other"), &other).unwrap();
    let run = |words: &[&str]| {
        let mut command = rig.under(["--"]);
        command.args(words).env("LC_ALL", "C");
        ran(command)
    };
    let same = |name: &str| run(&["cmp", "m/f", name]);
    run(&["cp", "content", "m/f"]).exits(0);
    rig.run(["sync", "m"]).exits(0);
    // Clean: read again from the disk.
    rig.flip("/f", 4, "clean");
    same("content").exits(0);
    // Dirty: an error for who reads, and for who makes it durable; mended by writing it again.
    run(&["dd", "if=other", "of=m/f", "conv=notrunc", "bs=40000"]).exits(0);
    rig.flip("/f", 5, "dirty");
    let failed = run(&["cat", "m/f"]).exits(1);
    assert!(
        failed.err.contains("m/f: bad bytes in memory: read at byte ") && failed.err.contains("blocks [5]"),
        "{failed:?}"
    );
    let failed = run(&["sync", "m/f"]).exits(1);
    assert!(failed.err.contains("Input/output error"), "{failed:?}");
    assert!(
        failed.err.contains("m/f: bad bytes in memory: fsync: ") && failed.err.contains("(blocks [5])"),
        "{failed:?}"
    );
    run(&["dd", "if=other", "of=m/f", "conv=notrunc,fsync", "bs=4096", "seek=5", "skip=5", "count=1"]).exits(0);
    same("other").exits(0);
    // Told by a synchronous write of another page, once, whose own bytes are good.
    run(&["dd", "if=content", "of=m/f", "conv=notrunc", "bs=40000"]).exits(0);
    rig.flip("/f", 0, "dirty");
    let synchronous = || {
        run(&["dd", "if=content", "of=m/f", "conv=notrunc", "oflag=dsync", "bs=4096", "seek=1", "skip=1", "count=1"])
    };
    let failed = synchronous().exits(1);
    assert!(failed.err.contains("m/f: bad bytes in memory: write at byte 4096"), "{failed:?}");
    assert!(failed.err.contains("the bytes of this write are in the file"), "{failed:?}");
    synchronous().exits(0);
    run(&["dd", "if=content", "of=m/f", "conv=notrunc,fsync", "bs=4096", "count=1"]).exits(0);
    same("content").exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

/// A block of the disk arrives before it is verified. dd goes on with its buffer all the same, and tar takes a read that ends early for the end.
#[test]
fn bytes_that_are_bad_are_left_in_no_buffer_and_told_at_once() {
    const PROGRAM: &str = "import os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDONLY)\n\
        for at in 0, 12288:\n\
        \tbuffer = bytearray(b'-' * 65536)\n\
        \ttry: done = os.preadv(fd, [buffer], at)\n\
        \texcept OSError as error: print(error.errno); done = 0\n\
        \tprint(done, set(buffer[done:]) <= set(b'-\\0'))\n";
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab("epoch=60000,cache=16M");
    let content: Vec<u8> = (0..40_000u32).map(|index| (index * 37 % 191) as u8 + 46).collect();
    fs::write(mount.join("f"), &content).unwrap();
    rig.run(["sync", "m"]).exits(0);
    // A line for each call that ends by it.
    let under = |words: &[&str], calls: u64| {
        let mut command = rig.under(["--stats", "--"]);
        command.args(words).env("LC_ALL", "C");
        let ran = ran(command);
        let lines = ran.err.lines().filter(|line| line.contains("m/f: bad bytes on the device: read at byte ")).count();
        assert_eq!((number(&stats(&ran), "bad"), lines as u64), (calls, calls), "{words:?}: {ran:?}");
        ran
    };
    for (page, size, calls) in [(3, "4096", 1), (5, "65536", 2)] {
        rig.run(["inject", "m", "--kind", "file-data", "--path", "/f", "--page", &page.to_string()]).exits(0);
        let (input, output) = ("if=m/f", format!("of={size}"));
        under(&["dd", input, &output, &format!("bs={size}"), "conv=noerror,sync", "count=10"], calls).exits(0);
        let mut copied = fs::read(rig.path(size)).unwrap();
        copied.resize(content.len(), 0);
        let bad = page * 4096..(page + 1) * 4096;
        let is_good = |(at, byte): (usize, &u8)| *byte == content[at] || (*byte == 0 && at >= bad.start);
        assert!(copied.iter().enumerate().all(is_good), "{size}: what is not good is zero");
        assert!(copied[bad].iter().all(|byte| *byte == 0), "{size}: all of the block");
        fs::write(mount.join("f"), &content).unwrap();
        rig.run(["sync", "m"]).exits(0);
    }
    rig.run(["inject", "m", "--kind", "file-data", "--path", "/f", "--page", "3"]).exits(0);
    let mut buffer = [b'-'; 40_000];
    let error = opened(&mount.join("f")).read_at(&mut buffer, 0).unwrap_err();
    assert_eq!((error.done, &error.blocks[..]), (12_288, &[3][..]), "{error}");
    assert!(buffer[error.done..].iter().all(|byte| [0, b'-'].contains(byte)) && buffer[..12_288] == content[..12_288]);
    under(&["cat", "m/f"], 2).exits(1);
    if is_there("tar") {
        under(&["tar", "-cf", "f.tar", "m/f"], 1).exits(1);
    }
    if is_there("python3") {
        let read = under(&["python3", "-c", PROGRAM, "m/f"], 2).exits(0);
        assert_eq!(read.out, format!("12288 True\n{}\n0 True\n", libc::EIO), "{read:?}");
    }
}

/// Its bytes are in the file, and what it meets is told once. A program that repeats it writes them where they were to be.
#[test]
fn a_synchronous_write_that_fails_leaves_the_position() {
    const PROGRAM: &str = "import os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDWR | os.O_SYNC)\n\
        os.lseek(fd, 8192, os.SEEK_SET)\n\
        try: os.write(fd, b'x' * (3 << 20))\n\
        except OSError as error: print(error.errno, os.lseek(fd, 0, os.SEEK_CUR))\n";
    if !fuse() || !is_there("python3") {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab("epoch=60000").join("f");
    fs::write(&path, [b'a'; 8192]).unwrap();
    rig.flip("/f", 1, "dirty");
    let mut command = rig.under(["--quiet", "--", "python3", "-c", PROGRAM]);
    command.arg(&path);
    assert_eq!(ran(command).exits(0).out, "5 8192\n");
    assert!(fs::metadata(&path).unwrap().len() > 8192, "the first request's bytes");
    rig.run(["unmount", "m"]).exits(1);
}

/// The process that a program counts for may have ended, and what has its number now has another file in that place.
fn counters_of_others_are_left_alone(rig: &Rig) {
    let memory = |name: &str| fs::File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    let ordinary = fs::File::options().read(true).write(true).create_new(true).open(rig.path("letter")).unwrap();
    let of_run = |nonce: u128| {
        let header = CountersName { nonce, path: String::new() }.header();
        [&header[..], &[0; 1000]].concat()
    };
    let counted_under = |file: &fs::File, content: &[u8], value: &dyn Fn(String) -> String| {
        file.write_all_at(content, 0).unwrap();
        let mut command = rig.under(["--", "true"]);
        command.env(COUNTERS_VARIABLE, value(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())));
        ran(command).exits(0);
        let mut now = vec![0; content.len()];
        file.read_exact_at(&mut now, 0).unwrap();
        now != content
    };
    let counted = |file: &fs::File, content: &[u8]| {
        counted_under(file, content, &|path| CountersName { nonce: 7, path }.to_string())
    };
    assert!(counted(&memory("holdfast-run"), &of_run(7)));
    assert!(!counted(&memory("holdfast-run"), &of_run(8)), "of another run");
    assert!(!counted_under(&memory("holdfast-run"), &of_run(7), &|path| path), "of no run");
    assert!(!counted(&memory("holdfast-run"), &[0; 1000]), "no magic bytes");
    assert!(!counted(&memory("holdfast-run"), &[&COUNTERS_MAGIC[..], &[0; 1000]].concat()), "nothing but those");
    assert!(!counted(&memory("holdfast"), &of_run(7)), "another name");
    assert!(!counted(&ordinary, &of_run(7)) && !counted(&ordinary, &[0; 1000]), "a file");
}

#[test]
fn exit_codes_descriptors_and_what_is_missing() {
    let rig = Rig::new();
    let run = |words: &[&str]| ran(rig.under(words));
    run(&["--", "sh", "-c", "exit 7"]).exits(7);
    run(&["--stats", "--", "sh", "-c", "exit 7"]).exits(7);
    run(&["--stats", "--", "sh", "-c", "kill -TERM $$"]).exits(128 + 15);
    run(&["--", "/nowhere/at/all"]).exits(127);
    run(&["--", "/etc/passwd"]).exits(126);
    run(&[]).exits(2);
    // The program has its descriptors, and what was to be preloaded besides.
    let script =
        "holdfast=$0; exec 7</etc/passwd; $holdfast run -- sh -c 'cmp /dev/fd/7 /etc/passwd; echo $LD_PRELOAD'";
    let mut command = rig.under(["--", "sh", "-c", script, env!("CARGO_BIN_EXE_holdfast")]);
    command.env("LD_PRELOAD", "libc.so.6");
    let shown = ran(command).exits(0).out;
    assert!(shown.trim_end().ends_with("libholdfast_preload.so:libc.so.6"), "{shown}");
    counters_of_others_are_left_alone(&rig);
    // As it is installed.
    let [bin, lib] = ["prefix/bin", "prefix/lib"].map(|name| rig.path(name));
    for path in [&bin, &lib] {
        fs::create_dir_all(path).unwrap();
    }
    let binary = bin.join("holdfast");
    copy_program(&binary);
    let installed = || {
        let mut command = Command::new(&binary);
        command.args(["run", "--stats", "--", "true"]);
        ran(command)
    };
    let failed = installed().exits(1).says("libholdfast_preload.so is neither in ");
    assert!(failed.err.contains("make install"), "{failed:?}");
    fs::copy(library(), lib.join(LIBRARY)).unwrap();
    assert!(installed().exits(0).err.contains("1 program,"));
    let spaced = rig.directory("a space").join("library.so");
    fs::copy(library(), &spaced).unwrap();
    fs::set_permissions(&spaced, fs::Permissions::from_mode(0o755)).unwrap();
    for (path, says) in [(spaced.as_path(), "no path with a space"), (Path::new("nowhere.so"), "there is no library")] {
        let mut command = rig.command();
        command.args(["run", "--", "true"]).env("HOLDFAST_PRELOAD", path);
        ran(command).exits(1).says(says);
    }
}

#[test]
fn an_option_that_there_is_not_is_no_program() {
    let rig = Rig::new();
    rig.run(["run", "--bogus", "--", "true"]).exits(2).says("there is no option --bogus");
    rig.run(["run", "--", "-x"]).exits(2).says("there is no option -x");
}
