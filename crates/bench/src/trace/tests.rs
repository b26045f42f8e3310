use super::format::{Call, Event, TracePath, parse, text};
use super::replay::{compare, replay};
use super::strace::Converter;
use super::*;

/// What `strace -f -ttt -y -s 0` prints, of a shell that has a compiler and others work in /w: dup, fork, append, rename, a name in octal, a call on
/// two lines, a file outside.
const RECORDED: &str = r#"100 5.000000 openat(AT_FDCWD</w>, "in", O_RDONLY) = 3</w/in>
100 5.000010 fstat(3</w/in>, {st_mode=S_IFREG|0644, st_size=10000, ...}) = 0
100 5.000020 read(3</w/in>, ""..., 4096) = 4096
100 5.000030 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD) = 101
101 5.000040 read(3</w/in>,  <unfinished ...>
100 5.000050 dup(3</w/in>) = 4</w/in>
101 5.000060 <... read resumed>""..., 4096) = 4096
101 5.000070 +++ exited with 0 +++
100 5.000080 close(3</w/in>) = 0
100 5.000090 read(4</w/in>, ""..., 4096) = 1808
100 5.000100 close(4</w/in>) = 0
100 5.000110 openat(AT_FDCWD</w>, "sub/o\303\274t", O_RDWR|O_CREAT|O_TRUNC, 0644) = 3</w/sub/o\303\274t>
100 5.000120 write(3</w/sub/o\303\274t>, ""..., 5000) = 5000
100 5.000130 pread64(3</w/sub/o\303\274t>, ""..., 100, 4900) = 100
100 5.000140 rename("sub/o\303\274t", "sub/renamed") = 0
100 5.000150 lseek(3</w/sub/renamed>, 4096, SEEK_SET) = 4096
100 5.000160 read(3</w/sub/renamed>, ""..., 4096) = 904
100 5.000170 ftruncate(3</w/sub/renamed>, 4000) = 0
100 5.000180 fsync(3</w/sub/renamed>) = 0
100 5.000190 openat(AT_FDCWD</w>, "/etc/passwd", O_RDONLY) = 5</etc/passwd>
100 5.000200 read(5</etc/passwd>, ""..., 4096) = 1000
100 5.000210 openat(AT_FDCWD</w>, "log", O_WRONLY|O_APPEND) = 6</w/log>
100 5.000220 fstat(6</w/log>, {st_mode=S_IFREG|0644, st_size=77, ...}) = 0
100 5.000230 write(6</w/log>, ""..., 3) = 3
100 205.000000 pread64(3</w/sub/renamed>, ""..., 100, 0) = 100
100 205.000010 unlink("sub/renamed") = 0
100 205.000020 close(3</w/sub/renamed (deleted)>) = 0
100 205.000021 openat(AT_FDCWD</w>, "/w", O_RDONLY|O_CLOEXEC) = 7</w>
100 205.000022 fdatasync(7</w>) = 0
100 205.000023 close(7</w>) = 0
100 205.000024 openat(AT_FDCWD</w>, "sub", O_RDONLY|O_CLOEXEC) = 7</w/sub>
100 205.000025 fsync(7</w/sub>) = 0
100 205.000026 close(7</w/sub>) = 0
100 205.000030 mkdir("d", 0777) = 0
100 205.000040 rmdir("d") = 0
100 205.000050 open("none", O_RDONLY) = -1 ENOENT (No such file or directory)
"#;

fn converted() -> Vec<Event> {
    let mut converter = Converter::new(b"/w");
    RECORDED.lines().for_each(|line| converter.line(line));
    converter.finish().unwrap()
}

#[test]
fn what_is_not_as_strace_is_asked_to_print_it_is_refused() {
    let converted = |lines: &str| {
        let mut converter = Converter::new(b"/w");
        lines.lines().for_each(|line| converter.line(line));
        converter.finish()
    };
    let call = "openat(AT_FDCWD</w>, \"in\", O_RDONLY) = 3</w/in>";
    for lines in ["", "\x7fELF", call, &format!("5.000000 {call}"), &format!("100 12:00:05.000000 {call}")] {
        assert!(converted(lines).unwrap_err().contains("strace -f -ttt -y"), "{lines}");
    }
    let plain = "100 5.000000 openat(AT_FDCWD, \"in\", O_RDONLY) = 3\n100 5.000001 read(3, \"\"..., 5) = 5";
    assert!(converted(plain).unwrap_err().contains("strace -y"));
    // Of no file below the root, but understood.
    assert_eq!(converted("100 5.000000 read(3</etc/passwd>, \"\"..., 5) = 5"), Ok(vec![]));
}

#[test]
fn what_strace_saw_becomes_a_trace() {
    let expected = "# holdfast trace 1\n\
        0 exists /sub/\n\
        0 exists /in 10000\n\
        0 exists /log 77\n\
        0 open 0 /in -\n\
        20 read 0 0 4096\n\
        50 read 0 4096 4096\n\
        90 read 0 8192 1808\n\
        100 close 0\n\
        110 open 1 /sub/o%C3%BCt ct\n\
        120 write 1 0 5000\n\
        130 read 1 4900 100\n\
        140 rename /sub/o%C3%BCt /sub/renamed\n\
        160 read 1 4096 904\n\
        170 truncate 1 4000\n\
        180 sync 1\n\
        210 open 2 /log -\n\
        230 write 2 77 3\n\
        200000000 read 1 0 100\n\
        200000010 unlink /sub/renamed\n\
        200000020 close 1\n\
        200000030 mkdir /d\n\
        200000040 rmdir /d\n";
    let events = converted();
    // A call that ends after another has begun comes behind it, at the other's time.
    assert_eq!(text(&events), expected);
    assert_eq!(parse(&text(&events)), Ok(events));
}

#[test]
fn all_modes_read_the_same_and_pages_grow_old() {
    let events = converted();
    let dir = tempfile::tempdir().expect("a directory");
    let run = |mode| replay(&events, &dir.path().join(format!("{mode}.store")), mode, 16 << 20).expect("it replays");
    let outcomes: Vec<(Protection, Outcome)> = MODES.into_iter().map(|mode| (mode, run(mode))).collect();
    let all: Vec<_> = outcomes.iter().map(|(mode, outcome)| (*mode, outcome)).collect();
    compare(&all).expect("the same bytes");
    for (mode, outcome) in &outcomes {
        assert_eq!((outcome.skipped, &outcome.first_skipped), (0, &None), "{mode}");
        assert_eq!(outcome.pages, 6, "{mode}: three of /in, three of the other");
        assert!(outcome.reads >= outcome.warm && outcome.hits >= 3, "{mode}: {outcome:?}");
        let is_dynamic = mode.switches_after().is_some();
        assert_eq!(outcome.switched, u64::from(is_dynamic), "{mode}: one read after 200 s");
    }
    let mut other = outcomes[0].1.clone();
    other.sum ^= 1;
    assert!(compare(&[all[0], (all[1].0, &other)]).is_err(), "other bytes are noticed");
}

#[test]
fn a_trace_of_other_files_is_refused() {
    let open = Call::Open { file: 0, path: TracePath(b"/none".to_vec()), create: false, truncate: false };
    let events = [Event { at_us: 0, call: open }];
    let dir = tempfile::tempdir().expect("a directory");
    let error = replay(&events, &dir.path().join("store"), Protection::Uniform, 16 << 20).unwrap_err();
    assert!(error.to_string().contains("0 open 0 /none -"), "{error}");
}
