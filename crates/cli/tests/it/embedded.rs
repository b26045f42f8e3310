//! A store that a program has in its own process, and a mount has before and after.

use crate::rig::{Rig, fuse};
use holdfast_embedded::{Options, Store};
use std::fs;

#[test]
fn a_program_and_a_mount_take_turns_with_a_store() {
    let rig = Rig::new();
    let path = rig.path("s");
    let bytes: Vec<u8> = (0..300_007).map(|at: u32| (at * 31 % 251) as u8).collect();
    let store = Store::create(&path, 64 << 20, &Options::default()).unwrap();
    let file = store.create_file("by the program").unwrap();
    file.write_at_with_sums(&bytes, 0, &file.sums(&bytes, 0)).unwrap();
    // A command sees that it is in use.
    let ran = rig.run(["check", "s"]);
    assert!(ran.code != Some(0) && ran.err.contains("in use"), "{ran:?}");
    drop(file);
    store.close().unwrap();
    rig.run(["check", "s"]).exits(0);
    if !fuse() {
        return;
    }
    let mount = rig.directory("m");
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(mount.join("by the program")).unwrap() == bytes);
    let refused = Store::open(&path, &Options::default()).unwrap_err().to_string();
    assert!(refused.contains("in use"), "{refused}");
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/by the mount"), &bytes).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    let store = Store::open(&path, &Options::default()).unwrap();
    let mut back = vec![0; bytes.len()];
    let file = store.open_file("d/by the mount").unwrap();
    assert_eq!(file.read_at_with_sums(&mut back, 0, &mut Vec::new()).unwrap(), bytes.len());
    assert!(back == bytes);
    drop(file);
    store.close().unwrap();
    rig.run(["check", "s"]).exits(0);
}
