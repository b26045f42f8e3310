//! Free space given back to the host.

use crate::rig::{Rig, fuse};
use std::fs;
use std::os::unix::fs::MetadataExt;

const MIB: usize = 1 << 20;

#[test]
fn a_trimmed_store_takes_up_less_of_its_host_and_loses_nothing() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let content = |number: usize| -> Vec<u8> { (0..2 * MIB).map(|at| (at % 251 + at / 4096 + number) as u8).collect() };
    for number in 0..8 {
        fs::write(mount.join(format!("f{number}")), content(number)).unwrap();
    }
    let used = || fs::metadata(rig.path("s")).unwrap().blocks() * 512;
    let before = used();
    assert!(before >= 64 << 20, "allocated in full");
    let first = rig.run(["trim", "m", "--json"]).exits(0).json();
    let (trimmed, then) = (first["trimmed_bytes"].as_u64().unwrap(), used());
    assert_eq!(first["allocated_bytes"], then);
    assert!(then < before - trimmed / 10 * 9, "{trimmed} bytes free, {before} allocated before, {then} after");
    for number in 0..6 {
        fs::remove_file(mount.join(format!("f{number}"))).unwrap();
    }
    rig.run(["trim", "m"]).exits(0);
    assert!(used() + 11 * MIB as u64 <= then, "what was deleted is given back: {} of {then}", used());
    for number in 6..8 {
        assert!(fs::read(mount.join(format!("f{number}"))).unwrap() == content(number));
    }
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);

    rig.run(["mount", "s", "m"]).exits(0);
    fs::write(mount.join("f0"), content(0)).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "ro"]).exits(0);
    assert!(fs::read(mount.join("f0")).unwrap() == content(0));
    rig.run(["trim", "m"]).exits(1).says("could not be trimmed");
    rig.run(["trim", "."]).exits(1).says("is in no mount");
}
