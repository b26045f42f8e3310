//! The C library: its header, what it exports, and a program that uses it.

use crate::rig::{Rig, fuse, is_there, root};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../libholdfast")
}

/// As the build of this test has left it.
pub(crate) fn library() -> PathBuf {
    // A use of it, so that it is built.
    assert_eq!(holdfast::ABI_VERSION, holdfast::holdfast_abi_version());
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libholdfast.so");
    assert!(library.exists(), "{}", library.display());
    library
}

/// A directory with the library as it is installed.
fn installed(rig: &Rig) -> PathBuf {
    let directory = rig.directory("lib");
    symlink(library(), directory.join("libholdfast.so.1")).unwrap();
    symlink("libholdfast.so.1", directory.join("libholdfast.so")).unwrap();
    directory
}

/// Runs a program; gives what it printed.
#[track_caller]
fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out.into_owned()
}

/// A program that uses the library.
pub(crate) fn compiled(rig: &Rig, name: &str) -> PathBuf {
    compiled_from(rig, &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name), &name.replace('.', "-"))
}

fn compiled_from(rig: &Rig, source: &Path, name: &str) -> PathBuf {
    let libraries = installed(rig);
    let program = rig.path(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-pthread", "-I"]);
    compiler.arg(sources().join("include")).arg(source).arg("-o").arg(&program);
    compiler.arg("-L").arg(&libraries).arg("-lholdfast").arg(format!("-Wl,-rpath,{}", libraries.display()));
    ran(&mut compiler);
    program
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let header = fs::read_to_string(sources().join("include/holdfast.h")).unwrap();
    let mut code = String::new();
    let mut rest = header.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").unwrap().1;
    }
    code.push_str(rest);
    let calls = code.split('(').filter_map(|before| before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next());
    let declared: BTreeSet<&str> = calls.filter(|name| name.starts_with("holdfast_")).collect();
    assert!(declared.len() >= 14, "{declared:?}");
    let symbols = ran(Command::new("nm").args(["--dynamic", "--defined-only", "--format=posix"]).arg(library()));
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(exported, declared);
    let dynamic = ran(Command::new("readelf").arg("--dynamic").arg(library()));
    assert!(dynamic.contains("soname: [libholdfast.so.1]"), "{dynamic}");
    let page = fs::read_to_string(sources().join("man/holdfast.3")).unwrap();
    for name in declared {
        assert!(page.contains(name), "{name} has no place in the manual page");
    }
}

#[test]
fn the_manual_page_is_shown_without_a_warning() {
    if !is_there("man") {
        return;
    }
    let page = sources().join("man/holdfast.3");
    let man = Command::new("man")
        .args(["--warnings=all", "-l"])
        .arg(page)
        .env("LC_ALL", "C.UTF-8")
        .env("MANWIDTH", "120")
        .output()
        .unwrap();
    let (shown, said) = (String::from_utf8_lossy(&man.stdout), String::from_utf8_lossy(&man.stderr));
    assert!(man.status.success() && said.is_empty(), "{said}");
    assert!(shown.contains("HOLDFAST_FLETCHER256") && shown.contains("RETURN VALUE"), "{shown}");
}

/// As they stand there: the first shows what a failed write tells, the second writes bad blocks again.
#[test]
fn the_manual_pages_examples_do_what_they_say() {
    if !fuse() {
        return;
    }
    let page = fs::read_to_string(sources().join("man/holdfast.3")).unwrap();
    let (_, examples) = page.split_once(".SH EXAMPLES\n").unwrap();
    // What stands in front of the first one ends nowhere.
    let mut examples = examples.split(".EX\n").filter_map(|rest| {
        let (code, _) = rest.split_once("\n.EE\n")?;
        Some(code.replace("\\-", "-").replace("\\e", "\\"))
    });
    let (told, recovery) = (examples.next().unwrap(), examples.next().unwrap());
    let rig = Rig::new();
    let source = rig.path("examples.c");
    let program = format!(
        "#include <errno.h>\n#include <fcntl.h>\n#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n#include <holdfast.h>\n\
         {recovery}\n\
         static char contents[40000];\n\
         int main(int argc, char **argv)\n{{\n\
             char record[3] = \"abc\";\n\
             off_t offset = 0;\n\
             int fd = open(argv[argc - 1], O_RDWR | O_CREAT, 0644);\n\
             memset(contents, 'b', sizeof contents);\n\
             {{\n{told}\n}}\n\
             if (pwrite(fd, contents, sizeof contents, 0) != sizeof contents)\n\
                 return 1;\n\
             puts(\"changed\");\n\
             fflush(stdout);\n\
             if (getchar() == EOF)\n\
                 return 2;\n\
             return make_durable(fd, contents, sizeof contents) == 0 ? 0 : 3;\n}}\n"
    );
    fs::write(&source, program).unwrap();
    let program = compiled_from(&rig, &source, "examples");
    let path = rig.lab("cache=16M,epoch=60000").join("f");
    let mut child = Command::new(&program).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "changed\n");
    // The last one is not whole.
    [3, 9].into_iter().for_each(|block| rig.flip("/f", block, "dirty"));
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(fs::read(&path).unwrap() == [b'b'; 40_000], "the blocks were written again");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
    // Elsewhere there are no checksums: the first example says so.
    let told = Command::new(&program).arg(rig.path("elsewhere")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stderr), "write at byte 0: the file is in no Holdfast mount\n");
}

/// A mount that does not know appends is told from one that takes this one for senseless.
#[test]
fn a_mount_of_before_there_were_appends_is_unsupported() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.mounted("").join("f");
    let program = compiled(&rig, "append.c");
    let shim = rig.compiled("lower.c", &["-shared", "-fPIC", "-ldl"]);
    let with = |appends: &str| ran(Command::new(&program).arg(&path).env("LD_PRELOAD", &shim).env("APPENDS", appends));
    assert_eq!(with("unknown"), format!("-1 {} at -7 done 0\n", libc::EOPNOTSUPP));
    assert_eq!(with("senseless"), format!("-1 {} at -7 done 0\n", libc::EINVAL));
    assert_eq!(ran(Command::new(&program).arg(&path)), "3 0 at 0 done 0\n");
}

/// What fails is to make it durable, as another page of the file went bad: a program that repeated it would append twice.
#[test]
fn an_append_that_fails_and_has_appended_says_where() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab("epoch=60000").join("f");
    let program = compiled(&rig, "append.c");
    fs::write(&path, [b'a'; 10_000]).unwrap();
    rig.flip("/f", 1, "dirty");
    let append = || ran(Command::new(&program).arg(&path).arg("synchronous"));
    assert_eq!(append(), format!("-1 {} at 10000 done 3\n", libc::EIO));
    assert_eq!(fs::metadata(&path).unwrap().len(), 10_003);
    // Another descriptor, which has been told of nothing yet that it has to be told of.
    assert_eq!(append(), "3 0 at 10003 done 0\n");
    fs::File::options().write(true).open(&path).unwrap().write_all_at(&[b'b'; 4096], 4096).unwrap();
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_c_program_writes_reads_and_sees_a_flipped_bit() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let program = compiled(&rig, "interface.c");
    assert_eq!(ran(Command::new(&program).arg(mount.join("f"))), "done\n");
    // With a mount that takes fewer bytes at once: each step of a transfer is shorter.
    let shim = rig.compiled("lower.c", &["-shared", "-fPIC", "-ldl"]);
    assert_eq!(ran(Command::new(&program).arg(mount.join("g")).env("LD_PRELOAD", shim)), "done\n");
    assert!(fs::read(mount.join("f")).unwrap() == fs::read(mount.join("g")).unwrap());
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn threads_of_a_c_program_share_a_descriptor_and_get_their_own_errors() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let file = rig.mounted("").join("f");
    assert_eq!(ran(Command::new(compiled(&rig, "threads.c")).arg(file)), "");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

/// Compiled with what pkg-config says, and started by a loader that was told of the library by `make install`.
#[test]
fn a_c_program_is_built_with_what_was_installed_and_starts() {
    if !["make", "pkg-config"].into_iter().all(is_there) {
        return;
    }
    let rig = Rig::new();
    let prefix = rig.path("prefix");
    // The real ldconfig, with files of its own: the machine's stay as they are.
    fs::write(rig.path("ld.so.conf"), format!("{}\n", prefix.join("lib").display())).unwrap();
    let (conf, cache) = (rig.path("ld.so.conf"), rig.path("ld.so.cache"));
    let ldconfig = format!("/sbin/ldconfig -f {} -C {}", conf.display(), cache.display());
    let make = |target: &str, ldconfig: &str| {
        let mut make = Command::new("make");
        make.args(["--no-print-directory", "-C"]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        make.arg(target).arg(concat!("HOLDFAST=", env!("CARGO_BIN_EXE_holdfast")));
        make.arg(format!("LIBRARY={}", library().display()));
        make.arg(format!("PRELOAD={}", crate::run::library().display()));
        make.arg(format!("SBIN={}", rig.path("sbin").display())).arg(format!("PREFIX={}", prefix.display()));
        make.arg("DESTDIR=").arg(format!("LDCONFIG={ldconfig}")).env_remove("MAKEFLAGS");
        ran(&mut make)
    };
    let said = make("install", &ldconfig);
    assert!(!said.contains("the loader does not look"), "{said}");
    let said = make("install", "false");
    assert!(said.contains("the loader does not look"), "it is told, and no failure: {said}");

    let asked = |what: &str| {
        let mut ask = Command::new("pkg-config");
        ran(ask.args([what, "holdfast"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))).trim().to_owned()
    };
    assert_eq!(asked("--modversion"), env!("CARGO_PKG_VERSION"));
    let source = rig.path("version.c");
    let code = "#include <holdfast.h>\n#include <stdio.h>\n\
                int main(void) { return printf(\"%u %u\\n\", HOLDFAST_ABI_VERSION, (unsigned)holdfast_abi_version()) < 0; }\n";
    fs::write(&source, code).unwrap();
    let program = rig.path("version");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror"]).args(asked("--cflags").split(' ')).arg(&source);
    ran(compiler.args(asked("--libs").split(' ')).arg("-o").arg(&program));
    if !root("only root can give a program another ld.so.cache") {
        return;
    }
    let started = || {
        let mut apart = Command::new("unshare");
        let script = "mount --bind \"$1\" /etc/ld.so.cache && exec \"$2\"";
        apart.args(["--mount", "sh", "-c", script, "sh"]).arg(&cache).arg(&program).output().unwrap()
    };
    let output = started();
    let version = holdfast::ABI_VERSION;
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{version} {version}\n"), "{output:?}");
    make("uninstall", &ldconfig);
    assert!(!started().status.success() && !prefix.join("lib/pkgconfig/holdfast.pc").exists());
    let known = fs::read(&cache).unwrap();
    assert!(!known.windows(11).any(|part| part == b"libholdfast"), "the loader was told that it is gone");
}
