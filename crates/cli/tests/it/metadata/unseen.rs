//! Addresses that go bad where no sum sees it: `holdfast inject --pattern keep-all`.

use super::{OPTIONS, PAGE, content, counter, inject, log};
use crate::rig::{Rig, fuse};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Files beside it whose metadata is where the wrong addresses lead.
const OTHERS: usize = 60;
/// Blocks of pointers of the file, each with 64 of them.
const LEAVES: usize = 8;

/// What a repair would write over is another file's.
#[test]
fn a_pointer_that_goes_bad_where_no_sum_sees_it_costs_no_other_file() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab(OPTIONS);
    let mut files: Vec<_> = (0..OTHERS).map(|number| (format!("f{number}"), content(number, 65))).collect();
    files.push(("big".into(), content(7, 64 * LEAVES)));
    files.iter().for_each(|(name, bytes)| fs::write(mount.join(name), bytes).unwrap());
    // Then only what is read is in memory.
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "--lab", "s", "m", "-o", OPTIONS]).exits(0);
    let big = mount.join("big");
    File::open(&big).unwrap().read_exact_at(&mut [0; PAGE], 0).unwrap();
    for slot in 1..LEAVES {
        let at = format!("--level 2 --index 0 --offset {} --seed {slot}", 64 * slot);
        inject(&rig, &format!("--memory=clean --kind block-tree --path /big --pattern keep-all {at}"));
    }
    let is_right = || {
        for (name, bytes) in files.iter().rev() {
            assert!(fs::read(mount.join(name)).unwrap() == *bytes, "{name} has other contents");
        }
    };
    is_right();
    let status = rig.run(["status", "m", "--json"]).json();
    assert_eq!((&status["blocks_repaired"], &status["blocks_unrepaired"]), (&0.into(), &0.into()), "{status}");
    assert_eq!(counter(&rig, "scribbles"), 1, "the block that had it is read again");
    let said = log(&rig);
    let line = said.lines().find(|line| line.contains("and no sum sees it")).expect("a line about it");
    let parts = ["tree block 0 of level 2", "pointer in slot 1 in memory", "as on the device", "for epoch"];
    parts.iter().for_each(|part| assert!(line.contains(part), "{part}: {line}"));
    // Applications go on.
    fs::write(mount.join("new"), content(3, 2)).unwrap();
    rig.run(["sync", "m"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    is_right();
    rig.run(["unmount", "m"]).exits(0);
}
