//! Mounts whose metadata is in locked memory.

use crate::rig::{Rig, fuse};
use std::fs;

fn locked(rig: &Rig) -> String {
    let status = rig.run(["status", "m", "--json"]).exits(0).json();
    status["daemon"]["metadata_pages"].as_str().expect("words").to_string()
}

/// Asked of the system, and not of what is tested.
fn has_keys() -> bool {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap();
    info.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "ospke"))
}

#[test]
fn a_mount_locks_its_metadata_where_it_can_and_says_so() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.mounted("");
    let words = locked(&rig);
    match has_keys() {
        true => assert_eq!(words, "locked with protection keys"),
        false => assert!(words.starts_with("not locked: ") && words.contains("protection keys"), "{words}"),
    }
    let status = rig.run(["status", "m"]).exits(0).out;
    assert!(status.contains(&format!("pages {words}")), "{status}");
    let log = fs::read_dir(rig.path("home/.local/state/holdfast")).unwrap().next().unwrap().unwrap().path();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains(&format!("metadata pages: {words}")), "{log}");
    rig.run(["unmount", "m"]).exits(0);

    rig.run(["mount", "s", "m", "-o", "protect=off"]).exits(0);
    assert!(locked(&rig).starts_with("not locked, as"), "{}", locked(&rig));
    rig.run(["unmount", "m"]).exits(0);

    let ran = rig.run(["mount", "s", "m", "-o", "protect=keys"]);
    match has_keys() {
        true => drop(ran.exits(0)),
        false => drop(ran.exits(1).says("cannot be locked as protect=keys says: ")),
    }
}

/// What a mount does with metadata it does in windows; its threads can read it; and devices read and write beside the lock.
#[test]
fn a_mount_works_with_locked_metadata() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("protect=pages,epoch=50,threads=4");
    assert!(locked(&rig).starts_with("locked with mprotect"), "{}", locked(&rig));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mount = &mount;
            scope.spawn(move || {
                let directory = mount.join(format!("d{thread}"));
                fs::create_dir(&directory).unwrap();
                for file in 0..60 {
                    let path = directory.join(format!("f{file}"));
                    fs::write(&path, vec![thread as u8; 1000 * file]).unwrap();
                    fs::File::open(&path).unwrap().sync_all().unwrap();
                    if file % 3 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
            });
        }
    });
    rig.run(["snapshot", "create", "m", "one"]).exits(0);
    fs::remove_dir_all(mount.join("d1")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    rig.run(["scrub", "m", "--wait"]).exits(0);
    rig.run(["snapshot", "delete", "m", "one"]).exits(0);
    // From the device, and with a log to replay.
    fs::write(mount.join("d2/last"), b"kept").unwrap();
    fs::File::open(mount.join("d2/last")).unwrap().sync_all().unwrap();
    rig.kill_daemon("m");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "protect=pages"]).exits(0);
    assert_eq!(fs::read(mount.join("d2/last")).unwrap(), b"kept");
    for file in (0..60).filter(|file| file % 3 != 0) {
        assert!(fs::read(mount.join(format!("d3/f{file}"))).unwrap() == vec![3; 1000 * file], "{file}");
    }
    rig.run(["mount", "s", "m", "-o", "remount,ro"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "remount,rw"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}
