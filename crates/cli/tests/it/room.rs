//! What `df` says while deletions are not a recovery point yet.

use crate::rig::{Rig, eventually, fuse};
use std::fs;
use std::path::Path;

const MIB: usize = 1 << 20;
/// Blocks of tables and trees that are not counted.
const FEW: u64 = 64;

/// Free blocks, and those for ordinary users.
fn df(mount: &Path) -> (u64, u64) {
    let room = rustix::fs::statvfs(mount).unwrap();
    assert!(room.f_bfree <= room.f_blocks && room.f_bavail <= room.f_bfree);
    (room.f_bfree, room.f_bavail)
}

#[test]
fn df_shows_at_once_what_was_deleted() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "256M");
    let mount = rig.directory("m");
    rig.run(["mount", "s", "m", "-o", "epoch=60000"]).exits(0);
    let content = vec![0x5a; 64 * MIB];
    let before = df(&mount);
    // So much that the store has it, and so little that no epoch ends for it.
    for (synced, mib) in [(true, 64), (false, 32)] {
        fs::write(mount.join("f"), &content[..mib * MIB]).unwrap();
        if synced {
            rig.run(["sync", "m"]).exits(0);
        }
        let with = df(&mount);
        let written = mib as u64 * 256;
        assert!(with.0 + written < before.0 + FEW && with.1 + written < before.1 + FEW, "{before:?} {with:?}");
        fs::remove_file(mount.join("f")).unwrap();
        // The kernel forgets the file a moment after it is gone; no epoch ends meanwhile.
        let epoch = || rig.run(["status", "m", "--json"]).exits(0).json()["epoch"].clone();
        let unchanged = epoch();
        let is_back = || {
            let now = df(&mount);
            now.0.abs_diff(before.0) < FEW && now.1.abs_diff(before.1) < FEW
        };
        eventually("the space is there again", is_back);
        assert_eq!(epoch(), unchanged);
        let status = rig.run(["status", "m", "--json"]).exits(0).json();
        let free = status["space"]["free_bytes"].as_u64().unwrap();
        assert!(free / 4096 + 4 * FEW > before.0, "{status}");
    }

    // What others have is not free.
    fs::write(mount.join("f"), &content).unwrap();
    fs::copy(mount.join("f"), mount.join("copy")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    let with = df(&mount);
    fs::remove_file(mount.join("f")).unwrap();
    fs::metadata(mount.join("f")).unwrap_err();
    assert!(df(&mount).0 <= with.0 + FEW, "a copy has it");
    // The tree of the first is free, its pages are not.
    rig.run(["snapshot", "create", "m", "kept"]).exits(0);
    let with = df(&mount);
    assert!(with.0 + 16384 < before.0 + FEW, "{before:?} {with:?}");
    fs::remove_file(mount.join("copy")).unwrap();
    fs::write(mount.join("new"), &content[..16 * MIB]).unwrap();
    fs::remove_file(mount.join("new")).unwrap();
    fs::metadata(mount.join("copy")).unwrap_err();
    assert!(df(&mount).0 <= with.0 + FEW, "a snapshot has it");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}
