//! The tours of the guide and of the page on protection, and the first five minutes of the README, as they stand there.

use crate::rig::{Rig, fuse};
use std::path::Path;
use std::process::{Command, Output};

const README: &str = include_str!("../../../../README.md");
const GUIDE: &str = include_str!("../../../../docs/guide.md");
const PROTECTION: &str = include_str!("../../../../docs/protection.md");

/// The lines of a page's tour, in so many blocks, as a script that ends at the first one that does not do what the page says.
fn script(page: &str, blocks_expected: usize) -> String {
    let mut script = String::new();
    let mut blocks = 0;
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```sh tour" => (inside, blocks) = (true, blocks + 1),
            "```" => inside = false,
            line if inside => {
                script += &match line.strip_prefix("! ") {
                    Some(fails) => format!("if {fails}; then echo 'should fail: {fails}'; exit 1; fi\n"),
                    None => format!("{line} || {{ echo 'failed: {line}'; exit 1; }}\n"),
                }
            }
            _ => {}
        }
    }
    assert_eq!(blocks, blocks_expected, "it is another tour");
    // Empty lines make no command.
    script.replace(" || { echo 'failed: '; exit 1; }\n", "\n")
}

/// Runs a script with the binary under test as `holdfast`.
fn bash(rig: &Rig, script: &str) -> Output {
    let binaries = Path::new(env!("CARGO_BIN_EXE_holdfast")).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(binaries.to_path_buf()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    // A server that is left would keep the output open.
    let script = format!("trap 'kill $(jobs -p) 2> /dev/null' EXIT\n{script}");
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(rig.path("")).env("PATH", path.unwrap()).env("HOME", rig.path("home"));
    // Others may serve sets meanwhile.
    bash.env("HOLDFAST_RUNTIME_DIR", rig.path("run"));
    bash.output().unwrap()
}

#[test]
fn the_tour_of_the_guide_works() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let output = bash(&rig, &script(GUIDE, 5));
    // Whatever happened, nothing stays mounted.
    rig.run(["unmount", "tour"]);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
    for said in [
        "- numbers\n",
        "M letters/ada\n",
        "bytes 28672 to 32767",
        "(repaired), in /letters",
        "(LOST), in /numbers",
        "Dear Ada,\n",
    ] {
        assert!(out.contains(said), "{said:?} is not in {out}");
    }
}

#[test]
fn the_tour_of_flipped_bits_works() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let output = bash(&rig, &script(PROTECTION, 5));
    rig.run(["unmount", "lab"]);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
    for said in
        ["LAB", "where it is dirty", "where it is clean", "1 page found corrupt IN MEMORY", "on the disk, in block"]
    {
        assert!(out.contains(said), "{said:?} is not in {out}");
    }
    // Of the three errors that applications get, the last cmp finds other bytes instead.
    assert_eq!(error.matches("Input/output error").count(), 3, "{error}");
    assert!(out.contains("numbers lab/numbers differ"), "{out}\n{error}");
}

/// The command lines of a section of the README.
fn commands_of(section: &str) -> Vec<&'static str> {
    let (_, section) = README.split_once(&format!("## {section}\n")).unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut inside = false;
    let mut lines = Vec::new();
    for line in section.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => lines.push(line),
            _ => {}
        }
    }
    lines
}

#[test]
fn the_first_five_minutes_of_the_readme_work() {
    let (make, lines): (Vec<_>, Vec<_>) =
        commands_of("Five minutes").into_iter().partition(|line| line.starts_with("make "));
    let targets: Vec<_> = make.iter().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(targets, ["run", "test", "install"], "what they do, other tests try");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for target in targets {
        let tried =
            Command::new("make").arg("-n").arg("-C").arg(&repository).arg(target).env_remove("MAKEFLAGS").output();
        assert!(tried.is_ok_and(|tried| tried.status.success()), "make {target}");
    }
    assert!(lines.len() >= 10, "{lines:?}");
    if !fuse() {
        return;
    }
    // In the places that it names there may be something.
    let rig = Rig::new();
    let (data, mount) = (rig.path("data"), rig.directory("m"));
    let line = |line: &&str| {
        let here = line.replace("/data", data.to_str().unwrap()).replace("/mnt", mount.to_str().unwrap());
        let command = here.split_once(" #").unwrap_or((&here, "")).0.trim();
        // Mounts of the tests beside this one are among all, and somebody may have to see to them.
        let unwell = if command == "holdfast status" { "[ $? = 3 ] || " } else { "" };
        format!("{command} || {unwell}{{ echo 'failed: {command}'; exit 1; }}\n")
    };
    let clone = format!("cp -r {}/docs . || exit 1\n", repository.display());
    let output = bash(&rig, &(clone + &lines.iter().map(line).collect::<String>()));
    rig.run(["unmount", "m"]);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
}

#[test]
fn the_disk_the_stick_and_the_backup_of_the_readme_work() {
    let rig = Rig::new();
    let lines = commands_of("A disk, a stick and a backup");
    assert!(lines.len() >= 5, "{lines:?}");
    let line = |line: &&str| {
        // It is copied whole, and nothing is on it.
        let line = line.replace("1G", "64M");
        let (command, _) = line.split_once(" #").unwrap_or((&line, ""));
        match command.trim_end().strip_suffix('&') {
            // A person reads what it says before going on.
            Some(server) => format!(
                "set -m; {server} >told & until [ -s told ]; do kill -0 %1 || exit 1; sleep 0.05; done # it tells nobody but the reader\n"
            ),
            None => format!("{command} || {{ echo 'failed: {command}'; exit 1; }}\n"),
        }
    };
    let output = bash(&rig, &lines.iter().map(line).collect::<String>());
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
    assert!(rig.path("new.img").exists(), "{out}");
}
