//! The tour of the guide, as it stands there.

use crate::rig::{Rig, fuse};
use std::path::Path;
use std::process::Command;

const GUIDE: &str = include_str!("../../../../docs/guide.md");

/// The lines of the tour as a script that ends at the first one that does not do what the guide says.
fn script() -> String {
    let mut script = String::new();
    let mut blocks = 0;
    let mut inside = false;
    for line in GUIDE.lines() {
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
    assert_eq!(blocks, 5, "the guide has another tour");
    // Empty lines make no command.
    script.replace(" || { echo 'failed: '; exit 1; }\n", "\n")
}

#[test]
fn the_tour_of_the_guide_works() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let binaries = Path::new(env!("CARGO_BIN_EXE_holdfast")).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(binaries.to_path_buf()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let (home, directory) = (rig.path("home"), rig.path(""));
    let mut tour = Command::new("bash");
    tour.args(["-c", &script()]).current_dir(directory).env("PATH", path.unwrap()).env("HOME", home);
    let output = tour.output().unwrap();
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
