//! Stores that are full: for users, for root, by quota; and where programs are told that write through the kernel's pages.

use crate::rig::{Rig, fuse, lacks};
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

/// Writes until it is refused; how many bytes went in, and why no more did.
fn fill(path: &Path) -> (usize, Error) {
    let mut file = File::create(path).unwrap();
    let part: Vec<u8> = (0..64 << 10).map(|at| (at / 4096) as u8).collect();
    let mut written = 0;
    loop {
        match file.write(&part) {
            Ok(count) => written += count,
            Err(error) => return (written, error),
        }
    }
}

fn space(rig: &Rig, name: &str) -> u64 {
    rig.run(["status", "m", "--json"]).exits(0).json()["space"][name].as_u64().unwrap()
}

#[test]
fn what_is_set_aside_is_for_root_alone() {
    if !fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let rig = Rig::new();
    rig.run(["create", "s", "--size", "64M", "--reserve", "60%"]).exits(2);
    rig.run(["create", "s", "--size", "64M", "--reserve", "40M"]).exits(2).says("more than half");
    rig.run(["create", "s", "--size", "64M", "--reserve", "25%"]).exits(0);
    let mount = rig.directory("m");
    rig.run(["mount", "s", "m", "-o", "allow_other"]).exits(0);
    assert_eq!(space(&rig, "set_aside_bytes"), 16 << 20);
    let room = rustix::fs::statvfs(&mount).unwrap();
    assert!((room.f_bfree - room.f_bavail) * room.f_frsize >= 16 << 20);
    // Through a descriptor of root's, so that the way there need not be open to others; what a user writes is the user's.
    let user = mount.join("user");
    File::create(&user).unwrap();
    let file = File::options().write(true).open(&user).unwrap();
    let as_user = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups", "dd", "if=/dev/zero", "bs=64k", "status=none"])
        .stdout(file)
        .output();
    let Ok(output) = as_user else { return lacks("program", "there is no setpriv") };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("No space left"), "{said}");
    let (written, error) = fill(&mount.join("root"));
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!((15 * MIB..18 * MIB).contains(&written), "{written}");
    fs::remove_file(&user).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_full_store_says_what_makes_room_for_a_snapshot() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    fs::write(mount.join("first"), vec![1; 8 * MIB]).unwrap();
    fill(&mount.join("f"));
    let refused = |name: &str| {
        let failed = rig.run(["snapshot", "create", "m", name]).exits(1).says("no room for a snapshot: ");
        assert!(failed.err.contains("iB must be free") && !failed.err.contains("block"), "{failed:?}");
        failed.err
    };
    let hint = refused("one");
    assert!(hint.contains("delete files of ") && hint.contains("holdfast grow DIR +SIZE"), "{hint}");
    fs::remove_file(mount.join("f")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    rig.run(["snapshot", "create", "m", "one"]).exits(0);
    fs::remove_file(mount.join("first")).unwrap();
    fill(&mount.join("g"));
    let hint = refused("two");
    assert!(hint.contains("delete snapshots") && hint.contains("; one gives back 8."), "{hint}");
    rig.run(["snapshot", "delete", "m", "one"]).exits(0);
    rig.run(["snapshot", "create", "m", "two"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "quota=1M"]).exits(0);
    let over = rig.run(["snapshot", "create", "m", "three"]).exits(1).says("of the quota must be free");
    assert!(over.err.contains("larger quota"), "{over:?}");
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_quota_that_limits_nothing_is_told() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "64M");
    let mount = rig.directory("m");
    let told = rig.run(["mount", "s", "m", "-o", "quota=1G"]).exits(0);
    assert!(told.err.contains("the quota of 1.00 GiB is more than the store has"), "{told:?}");
    let size = || {
        let room = rustix::fs::statvfs(&mount).unwrap();
        room.f_blocks * room.f_frsize
    };
    assert!(size() < 64 << 20, "what is not there is not shown");
    let status = rig.run(["status", "m"]).exits(0).out;
    assert!(status.contains(", quota 1.00 GiB"), "{status}");
    let log = rig.run(["status", "m", "--json"]).exits(0).json()["daemon"]["log"].as_str().unwrap().to_string();
    assert!(fs::read_to_string(log).unwrap().contains("the quota of 1.00 GiB"));
    rig.run(["unmount", "m"]).exits(0);
    assert_eq!(rig.run(["mount", "s", "m", "-o", "quota=32M"]).exits(0).err, "");
    // As df has it: the quota as the size, and of it what is in use of the store.
    let room = rustix::fs::statvfs(&mount).unwrap();
    assert_eq!(size(), 32 << 20);
    assert_eq!((room.f_blocks - room.f_bfree) * room.f_frsize, space(&rig, "used_bytes"));
    assert!(space(&rig, "total_bytes") > 32 << 20);
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn beyond_the_quota_is_edquot_and_removal_works() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("quota=16M");
    let room = rustix::fs::statvfs(&mount).unwrap();
    assert_eq!(room.f_blocks * room.f_frsize, 16 << 20);
    let (written, error) = fill(&mount.join("f"));
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error}");
    assert!((14 * MIB..16 * MIB).contains(&written), "{written}");
    let at_most = rustix::fs::statvfs(&mount).unwrap();
    assert!(at_most.f_bavail * at_most.f_frsize < 1 << 20);
    fs::remove_file(mount.join("f")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    fs::write(mount.join("g"), vec![1; 8 * MIB]).unwrap();
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    let (more, error) = fill(&mount.join("h"));
    assert!(error.kind() == ErrorKind::StorageFull && more > 30 * MIB, "{more}, {error}");
}

/// The kernel takes what it has no room for; fsync and msync tell, and what they answered for is there.
#[test]
fn what_the_kernel_cannot_hand_down_is_told_by_fsync() {
    if !fuse() {
        return;
    }
    for (options, kind) in
        [("cache=kernel", ErrorKind::StorageFull), ("cache=kernel,quota=32M", ErrorKind::QuotaExceeded)]
    {
        let rig = Rig::new();
        let mount = rig.mounted(options);
        let small = vec![7; 3 * MIB];
        let mut kept = File::create(mount.join("kept")).unwrap();
        kept.write_all(&small).unwrap();
        kept.sync_all().unwrap();
        let mut file = File::create(mount.join("f")).unwrap();
        let part = vec![5; MIB];
        // The kernel may have noticed by itself before the end.
        let told = (0..70).find_map(|_| file.write_all(&part).err()).or_else(|| file.sync_all().err());
        assert_eq!(told.map(|error| error.kind()), Some(kind), "{options}");
        let mapped = File::options().read(true).write(true).create_new(true).open(mount.join("mapped")).unwrap();
        mapped.set_len(8 * MIB as u64).unwrap();
        let msynced =
            crate::caching::write_mapped(&mapped, 2048, 9).map_err(Error::from).and_then(|()| mapped.sync_all());
        assert!(msynced.is_err(), "{options}: what had no room is told, not lost in silence");
        drop((file, mapped));
        fs::remove_file(mount.join("f")).unwrap();
        fs::remove_file(mount.join("mapped")).unwrap();
        // The kernel tells once more what it could not hand down, to who asks for all of the mount.
        rig.run(["sync", "m"]);
        rig.run(["sync", "m"]).exits(0);
        let mut again = File::create(mount.join("again")).unwrap();
        again.write_all(&small).unwrap();
        again.sync_all().unwrap();
        drop((kept, again));
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(0);
        rig.run(["mount", "s", "m"]).exits(0);
        assert!(fs::read(mount.join("kept")).unwrap() == small && fs::read(mount.join("again")).unwrap() == small);
    }
}

#[test]
fn with_discard_the_host_gets_back_what_is_freed() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("discard");
    let used = || fs::metadata(rig.path("s")).unwrap().blocks() as usize * 512;
    let bytes: Vec<u8> = (0..20 * MIB).map(|at| (at / 4096 % 251) as u8).collect();
    fs::write(mount.join("kept"), &bytes[..4 * MIB]).unwrap();
    fs::write(mount.join("f"), &bytes).unwrap();
    rig.run(["sync", "m"]).exits(0);
    rig.run(["trim", "m"]).exits(0);
    let full = used();
    fs::remove_file(mount.join("f")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    assert!(used() + 19 * MIB < full, "{} of {full}", used());
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(mount.join("kept")).unwrap() == bytes[..4 * MIB]);
}
