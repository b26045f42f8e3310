//! Stores made larger, mounted and not.

use crate::rig::{Rig, fuse};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn df(directory: &Path) -> rustix::fs::StatVfs {
    rustix::fs::statvfs(directory).unwrap()
}

#[test]
fn a_mounted_store_grows_while_it_is_used_and_shows_it_at_once() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let bytes: Vec<u8> = (0..40 << 20).map(|at: usize| (at / 4096 % 251) as u8).collect();
    fs::write(mount.join("a"), &bytes).unwrap();
    assert!(fs::write(mount.join("b"), &bytes).is_err(), "no room for another one");
    let before = df(&mount);
    let grown = rig.run(["grow", "m", "128M", "--json"]).exits(0).json();
    assert_eq!(grown["before_bytes"], 64 << 20);
    assert_eq!(grown["size_bytes"], 128 << 20);
    assert_eq!(grown["allocated"], true);
    let file = fs::metadata(rig.path("s")).unwrap();
    assert!(file.len() == 128 << 20 && file.blocks() * 512 >= 128 << 20, "allocated as it was: {file:?}");
    let after = df(&mount);
    assert_eq!((after.f_blocks - before.f_blocks) * after.f_frsize, 64 << 20);
    assert!(after.f_bavail > before.f_bavail + before.f_blocks / 2);
    let status = rig.run(["status", "m", "--json"]).exits(0).json();
    assert!(status["space"]["total_bytes"].as_u64().unwrap() > 120 << 20);
    fs::write(mount.join("b"), &bytes).unwrap();

    rig.run(["grow", "m", "100M"]).exits(2).says("cannot become smaller");
    rig.run(["grow", "m", "+1K"]).exits(0);
    rig.run(["grow", "m", "+8K"]).exits(2).says("128 KiB at least");
    rig.run(["grow", "m", "1000P"]).exits(2).says("too large");
    rig.run(["grow", "m"]).exits(0);
    // By the name of the store, and by so much.
    rig.run(["grow", "s", "+16M"]).exits(0);
    rig.run(["grow", "m", "100T"]).exits(1).says("cannot have");
    assert_eq!(fs::metadata(rig.path("s")).unwrap().len(), 144 << 20, "no larger than before the attempt");
    fs::write(mount.join("c"), b"goes on").unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "ro"]).exits(0);
    assert!(fs::read(mount.join("a")).unwrap() == bytes && fs::read(mount.join("b")).unwrap() == bytes);
    rig.run(["grow", "m", "256M"]).exits(1).says("read");
}

#[test]
fn a_store_that_is_not_mounted_grows_into_its_file_and_a_sparse_one_stays_sparse() {
    let rig = Rig::new();
    let store = rig.store("s", "16M");
    let file = fs::File::options().write(true).open(&store).unwrap();
    file.set_len((48 << 20) + 5).unwrap();
    let grown = rig.run(["grow", "s", "--json"]).exits(0).json();
    assert_eq!((grown["size_bytes"].as_u64(), grown["allocated"].as_bool()), (Some(48 << 20), Some(false)));
    rig.run(["check", "s"]).exits(0);
    rig.run(["grow", "s", "1G"]).exits(0);
    let file = fs::metadata(&store).unwrap();
    assert!(file.len() == 1 << 30 && file.blocks() * 512 < 64 << 20, "{file:?}");
    rig.run(["check", "s"]).exits(0);
    rig.run(["grow", "s", "1G"]).exits(0);
    rig.run(["grow", "nothing", "1G"]).exits(1).says("nothing");
    rig.run(["grow", ".", "1G"]).exits(1).says("is in no mount");
}
