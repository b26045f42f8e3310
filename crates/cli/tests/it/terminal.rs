//! What is seen on a terminal only. script(1) makes one.

use crate::rig::Rig;
use std::process::Command;

#[test]
fn a_check_shows_a_bar_on_a_terminal_and_takes_it_away() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no script(1)");
        return;
    }
    let rig = Rig::new();
    rig.store("s", "64M");
    let check = format!("{} check s", env!("CARGO_BIN_EXE_holdfast"));
    let seen = Command::new("script")
        .args(["-q", "-e", "-c", &check, "/dev/null"])
        .current_dir(rig.path(""))
        .env("TERM", "xterm")
        .output()
        .unwrap();
    let screen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(seen.status.success(), "{screen}");
    let bar = screen.find("checking names [").unwrap_or_else(|| panic!("no bar: {screen:?}"));
    let cleared = screen.rfind("\x1b[2K").unwrap_or_else(|| panic!("not taken away: {screen:?}"));
    let words = screen.find("recovery point").unwrap();
    assert!(bar < cleared && cleared < words && screen.contains("objects"), "{screen:?}");
}
