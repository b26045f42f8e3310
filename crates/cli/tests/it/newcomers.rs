//! What people type who do not know the commands by heart, and what they are told.

use crate::rig::{Rig, fuse};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn a_mistake_in_the_command_line_gets_a_hint() {
    let rig = Rig::new();
    rig.store("s", "4M");
    for (line, hint) in [
        (&["--json", "frob"][..], "holdfast --help lists"),
        (&["--json", "--log-level", "frob", "status"], "holdfast status --help"),
        (&["--json", "stats"], "status may be meant"),
        (&["--json", "create", "x", "--size", "big"], "holdfast create --help"),
        (&["--json", "mount", "s", "absent"], "mkdir -p absent"),
        (&["--json", "create", "not here/s"], "mkdir -p 'not here'"),
        (&["--json", "snapshot", "list"], "holdfast snapshot --help"),
    ] {
        let failed = rig.run(line).json();
        assert!(failed["error"]["hint"].as_str().unwrap().contains(hint), "{line:?}: {failed}");
    }
    for action in ["restore", "rollback"] {
        let told = rig.run(["snapshot", action, "m", "monday"]).exits(2).says("is there to be copied");
        assert!(told.err.contains("cp -a --reflink=auto DIR/.holdfast/snapshots/NAME/FILE"), "{told:?}");
    }
}

#[test]
fn a_store_stands_for_its_mount() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    symlink("s", rig.path("link")).unwrap();
    fs::write(mount.join("f"), "content").unwrap();
    for line in [
        &["sync", "s"][..],
        &["snapshot", "create", "s", "monday"],
        &["snapshot", "list", "link"],
        &["snapshot", "diff", "s", "monday"],
        &["scrub", "s", "--wait"],
        &["trim", "link"],
        &["snapshot", "delete", "s", "monday"],
        &["unmount", "link"],
    ] {
        rig.run(line).exits(0);
    }
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
    for line in [&["sync", "s"][..], &["trim", "s"], &["scrub", "s"], &["snapshot", "create", "s", "x"]] {
        rig.run(line).exits(1).says("is a store that is not mounted");
    }
    rig.run(["unmount", "s"]).exits(1).says("s is not mounted");
}

#[test]
fn snapshots_that_are_not_there_and_arguments_the_wrong_way_round() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let none = rig.run(["snapshot", "delete", "m", "nope"]).exits(1).says("there is no snapshot nope");
    assert!(none.err.contains("snapshot create DIR NAME"), "{none:?}");
    for name in ["monday", "tuesday"] {
        rig.run(["snapshot", "create", "m", name]).exits(0);
    }
    let some = rig.run(["snapshot", "diff", "m", "nope"]).exits(1).says("there is no snapshot nope");
    assert!(some.err.contains("there are: tuesday, monday"), "{some:?}");
    let swapped = rig.run(["snapshot", "create", "wednesday", "m"]).exits(2).says("the directory comes first");
    assert!(swapped.err.contains("holdfast snapshot create m wednesday"), "{swapped:?}");
    let swapped = rig.run(["snapshot", "delete", "monday", "m"]).exits(2);
    assert!(swapped.err.contains("holdfast snapshot delete m monday"), "{swapped:?}");
    let swapped = rig.run(["snapshot", "diff", "monday", "m"]).exits(2);
    assert!(swapped.err.contains("holdfast snapshot diff m monday"), "{swapped:?}");

    // Changes are told by path; of a file with two names, the first becomes the first.
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/x1"), "x").unwrap();
    fs::hard_link(mount.join("d/x1"), mount.join("d/x2")).unwrap();
    fs::write(mount.join("b"), "b").unwrap();
    rig.run(["snapshot", "create", "m", "friday"]).exits(0);
    for number in ["2", "1"] {
        fs::rename(mount.join("d/x").with_file_name(format!("x{number}")), mount.join(format!("d/y{number}"))).unwrap();
    }
    fs::remove_file(mount.join("b")).unwrap();
    fs::write(mount.join("c"), "c").unwrap();
    let diff = rig.run(["snapshot", "diff", "m", "friday"]).exits(0).out;
    let lines: Vec<_> = diff.lines().filter(|line| !line.starts_with('M')).collect();
    assert_eq!(lines, ["- b", "+ c", "R d/x1 -> d/y1", "R d/x2 -> d/y2"], "{diff}");
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_mount_whose_daemon_died_says_what_to_do() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.mounted("");
    rig.kill_daemon("m");
    for asked in ["m", "s"] {
        let words = rig.run(["status", asked]).exits(3).out;
        let (store, mount) = (rig.path("s"), rig.path("m"));
        let again = format!("holdfast mount {} {} makes the mount anew", store.display(), mount.display());
        assert!(words.contains("daemon") && words.contains(&again), "{words}");
    }
    assert!(rig.run(["status", "m"]).exits(3).out.contains("ABANDONED"));
    let words = rig.run(["unmount", "m"]).exits(0).out;
    assert!(words.contains("whose daemon had died") && !words.contains("read-only"), "{words}");
    // It was like that and is mounted read-only.
    rig.run(["mount", "s", "m", "-o", "ro"]).exits(0);
    let words = rig.run(["unmount", "m"]).exits(0).out;
    assert!(words.contains("which was read-only") && words.contains("as it was") && !words.contains("died"), "{words}");
    rig.run(["mount", "s", "m"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "ro"]).exits(0);
    let words = rig.run(["unmount", "m"]).exits(0).out;
    assert!(
        words.contains("which was read-only") && words.contains("is clean") && !words.contains("written"),
        "{words}"
    );
}

#[test]
fn lost_pages_are_not_denied() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::write(mount.join("f"), vec![7; 40_000]).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let injected = rig.run(["inject", "s", "--kind", "file-data", "--path", "/f", "--page", "3"]).exits(0).out;
    assert!(injected.contains("1 byte changed, the first at byte "), "{injected}");
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(rig.run(["status", "m"]).exits(0).out.contains("no corrupt one met"));
    rig.run(["scrub", "m", "--wait"]).exits(3);
    for _ in 0..2 {
        let words = rig.run(["status", "m"]).exits(3).out;
        assert!(words.contains("1 page of files LOST") && !words.contains("no corrupt one"), "{words}");
        assert!(words.contains("done on 20") && words.contains(" UTC in "), "of when that is: {words}");
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["mount", "s", "m"]).exits(0);
    }
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_second_name_is_new_and_what_else_changed_is_told_by_the_first() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::create_dir(mount.join("d")).unwrap();
    // The order in a directory is that of a hash: with so many files, some second names come before the first ones.
    let files = || (10..30).map(|number| mount.join(format!("d/f{number}")));
    files().for_each(|file| fs::write(file, "x").unwrap());
    rig.run(["snapshot", "create", "m", "monday"]).exits(0);
    let mut expected = vec!["M d".to_string()];
    for file in files() {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&file, file.with_extension("too")).unwrap();
        let name = file.strip_prefix(&mount).unwrap().display();
        expected.extend([format!("A {name}"), format!("+ {name}.too")]);
    }
    let diff = rig.run(["snapshot", "diff", "m", "monday"]).exits(0).out;
    assert_eq!(diff.lines().collect::<Vec<_>>(), expected, "{diff}");
    rig.run(["unmount", "m"]).exits(0);
}

/// Whatever names are, what is printed of them is one line, and no terminal obeys it.
#[test]
fn names_with_control_characters_are_shown_and_not_obeyed() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let (store, evil) = ("s\x1b[2J\nno errors", "f\x1b]0;x\x07\n- gone");
    let shown = r#""f\033]0;x\007\n- gone""#;
    rig.store(store, "64M");
    let mount = rig.directory("m");
    let run = |line: &[&str], code: i32| {
        let ran = rig.run(line);
        // Mounts of other tests may be unwell.
        let ran = if line == ["status"] { ran } else { ran.exits(code) };
        for text in [&ran.out, &ran.err] {
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{line:?}: {text:?}");
            assert!(!text.lines().any(|line| line.starts_with("- gone") || line == "no errors"), "{line:?}: {text:?}");
        }
        ran
    };
    run(&["mount", store, "m"], 0);
    fs::write(mount.join(evil), vec![7; 40_000]).unwrap();
    run(&["sync", "m"], 0);
    let made = run(&["snapshot", "create", "m", evil], 0).out;
    assert!(made.contains(&format!("Snapshot {shown} keeps")), "{made}");
    assert!(run(&["snapshot", "list", "m"], 0).out.contains(shown));
    run(&["snapshot", "create", "m", evil], 1).says("there is a snapshot f\\033]0");
    let none = run(&["snapshot", "diff", "m", "\x1bc"], 1).says(r#"there is no snapshot "\033c""#);
    assert!(none.err.contains(&format!("there are: {shown}")), "{none:?}");
    fs::rename(mount.join(evil), mount.join(format!("{evil} and more"))).unwrap();
    let diff = run(&["snapshot", "diff", "m", evil], 0).out;
    assert_eq!(diff, format!("M .\nR {shown} -> {} and more\"\n", shown.trim_end_matches('"')));
    for line in
        [&["status"][..], &["status", "m"], &["trim", "m"], &["grow", "m", "65M"], &["snapshot", "delete", "m", evil]]
    {
        run(line, 0);
    }
    let metrics = run(&["status", "--metrics", "m"], 0).out;
    let label = r#"/s\\033[2J\nno errors",directory=""#;
    assert!(metrics.lines().filter(|line| !line.starts_with('#')).all(|line| line.contains(label)), "{metrics}");
    let status = rig.run(["status", "m", "--json"]).exits(0).json();
    assert_eq!(status["store"], rig.path(store).to_str().unwrap());
    run(&["unmount", "m"], 0);

    let path = format!("/{evil} and more");
    let shown = format!(r#""/{} and more""#, &shown[1..shown.len() - 1]);
    let injected = run(&["inject", store, "--kind", "file-data", "--path", &path, "--page", "3"], 0).out;
    let (_, undo) = injected.split_once("Undo with: holdfast ").unwrap();
    assert!(injected.contains(&shown) && undo.starts_with(r"inject $'s\033[2J\nno errors' --undo $'"), "{injected}");
    assert!(run(&["check", store], 4).out.contains(&format!("in {shown}, bytes 12288 to 16383\n")));
    run(&["mount", store, "m"], 0);
    assert!(run(&["scrub", "m", "--wait"], 3).out.contains(&format!("in {shown}\n")));
    run(&["status", "m"], 3);
    run(&["unmount", "m"], 0);
    run(&["status", store], 0);
    run(&["mount", store, "absent\x1b[2J"], 1);
}
