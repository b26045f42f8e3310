//! As users of mount(8) know it: its options, the helper under its name, umount(8).

use crate::rig::{Rig, eventually, fuse, has_ended};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

#[test]
fn mount_8_finds_the_helper_and_umount_8_leaves_a_clean_store() {
    if !fuse() || !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: mount(8) needs root");
    }
    let rig = Rig::new();
    let store = rig.store("s", "16M");
    let mount = rig.directory("m");
    // mount(8) looks for helpers in /sbin and its like only: the link is put there, in a mount namespace that ends with the script.
    let helper = rig.path("mount.holdfast");
    symlink(env!("CARGO_BIN_EXE_holdfast"), &helper).unwrap();
    let script = r#"
        set -e
        sbin=$(mktemp -d) && cp -a "$HELPER" "$sbin/" && mount --make-rprivate / && mount --bind "$sbin" /sbin
        mount -t holdfast -o noatime,nosuid,x-mine "$STORE" "$DIR"
        grep " $DIR rw,nosuid,noatime - fuse.holdfast $STORE" /proc/self/mountinfo
        echo content >"$DIR/f"
        pid=$("$HOLDFAST" status --json "$DIR" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
        echo "pid=$pid"
        umount -i "$DIR"
        ! mount -t holdfast -o sparkle "$STORE" "$DIR" || exit 9
    "#;
    let run = Command::new("unshare")
        .args(["--mount", "bash", "-c", script])
        .env("HELPER", &helper)
        .env("HOLDFAST", env!("CARGO_BIN_EXE_holdfast"))
        .env("HOME", rig.path("home"))
        .env("STORE", &store)
        .env("DIR", &mount)
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}\n{err}");
    assert!(err.contains("mount option \"sparkle\" is not known"), "{err}");
    let pid =
        out.lines().find_map(|line| line.strip_prefix("pid=")).and_then(|pid| pid.parse().ok()).expect("a daemon");
    // umount(8) returns before the daemon has written the rest.
    eventually("the daemon ends", || has_ended(pid));
    assert_eq!(rig.run(["status", "s", "--json"]).exits(0).json()["condition"], "clean");
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(fs::read_to_string(mount.join("f")).unwrap(), "content\n");
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn arguments_in_the_wrong_order_are_recognised() {
    let rig = Rig::new();
    rig.store("s", "4M");
    rig.directory("m");
    let swapped = rig.run(["mount", "m", "s"]).exits(2).says("the store comes first");
    assert!(swapped.err.contains("holdfast mount s m"), "{swapped:?}");
}

#[test]
fn who_unmounts_from_within_is_not_in_its_own_way() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let ran = rig.command().args(["unmount", "."]).current_dir(&mount).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    rig.run(["check", "s"]).exits(0);
}
