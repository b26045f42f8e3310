//! `mount -o at=…`: a store on a Flashlog as it was at a barrier, by its backup and its log.

use crate::rig::{Rig, fuse};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn tree(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().to_str().unwrap().into(), fs::read(&path).unwrap())).collect()
}

/// The number and the time of the last moment, and the time in seconds.
fn last_moment(rig: &Rig) -> (u64, String, u64) {
    let moments = rig.run(["flashlog", "at", "--backup", "c", "--list", "--json"]).exits(0).json();
    let last = moments["moments"].as_array().unwrap().last().unwrap().clone();
    let time = last["time"].as_str().unwrap().replacen(' ', "T", 1).replace(" UTC", "Z");
    (last["number"].as_u64().unwrap(), time, last["seconds"].as_u64().unwrap())
}

#[test]
fn a_store_is_mounted_as_it_was_at_a_barrier() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.run(["create", "--main", "a", "--log", "b", "--backup", "c", "--size", "64M"]).exits(0);
    let (directory, then) = (rig.directory("m"), rig.directory("then"));
    rig.run(["mount", "a", "m"]).exits(0);
    for number in 0..20 {
        fs::write(directory.join(format!("file{number}")), format!("{number}\n").repeat(3000)).unwrap();
    }
    rig.run(["flashlog", "backup", "m", "--to", "c"]).exits(0);
    let of_backup = tree(&directory);
    fs::write(directory.join("later"), [1; 100_000]).unwrap();
    fs::write(directory.join("file3"), b"changed").unwrap();
    rig.run(["sync", "m"]).exits(0);
    let before = tree(&directory);
    let (barrier, time, seconds) = last_moment(&rig);
    // What is encrypted then by mistake or by malice, in another second: a time that is asked for has no parts of one.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    for number in 0..20 {
        fs::write(directory.join(format!("file{number}")), [0xee; 20_000]).unwrap();
    }
    fs::remove_file(directory.join("later")).unwrap();
    rig.run(["sync", "m"]).exits(0);
    let spoiled = tree(&directory);
    // As long as it is in use, its server shows it.
    let refused = rig.run(["mount", "c", "then", "-o", &format!("at={barrier}"), "--timeout", "1"]).exits(1);
    let said = format!("/b is of the set that is mounted on {}", directory.display());
    assert!(refused.err.contains(&said) && refused.err.contains("holdfast unmount"), "{refused:?}");
    rig.run(["unmount", "m"]).exits(0);

    let at = |store: &str, at: &str, files: &BTreeMap<String, Vec<u8>>| {
        let mounted = rig.run(["mount", store, "then", "-o", &format!("at={at}")]).exits(0);
        // The end of what was unmounted is as any store that is clean.
        assert!(at == "now" || mounted.out.contains("It is an earlier state, "), "{mounted:?}");
        assert!(&tree(&then) == files, "{store} at {at}");
        let status = rig.run(["status", "then", "--json"]).exits(0).json();
        assert!(status["flashlog_device"]["at"].is_string(), "{status}");
        assert!(status["read_only"].is_string(), "{status}");
        assert!(fs::write(then.join("new"), b"no").is_err());
        rig.run(["unmount", "then"]).exits(0);
    };
    // By backup or main; whatever was looked at stays as it is.
    let bytes = ["a", "b", "c"].map(|name| fs::read(rig.path(name)).unwrap());
    for store in ["c", "a"] {
        at(store, &barrier.to_string(), &before);
        at(store, &time, &before);
        at(store, &format!("@{seconds}"), &before);
        at(store, "now", &spoiled);
    }
    assert!(["a", "b", "c"].map(|name| fs::read(rig.path(name)).unwrap()) == bytes);
    rig.run(["mount", "c", "then", "-o", "at=1"])
        .exits(1)
        .says("what is wanted (barrier 1): the first one behind it is barrier");
    // A number alone is never a time.
    let refused = rig.run(["mount", "c", "then", "-o", &format!("at={seconds}")]).exits(1);
    let said = format!("there is no barrier {seconds}: the last one is barrier ");
    assert!(refused.err.contains(&said) && refused.err.contains("@SECONDS"), "{refused:?}");
    let refused =
        rig.run(["flashlog", "at", "--backup", "c", "--log", "b", "--barrier", &seconds.to_string()]).exits(1);
    assert!(refused.err.contains(&said), "{refused:?}");
    // And the set goes on.
    rig.run(["mount", "a", "m"]).exits(0);
    assert!(tree(&directory) == spoiled);
    rig.run(["unmount", "m"]).exits(0);

    // Main is dead, and the log is elsewhere.
    fs::remove_file(rig.path("a")).unwrap();
    rig.directory("stick");
    fs::rename(rig.path("b"), rig.path("stick/b")).unwrap();
    rig.run(["mount", "c", "then", "-o", &format!("at={barrier}")]).exits(1).says("which is not there");
    at("c", &format!("{barrier},log=stick/b"), &before);
    rig.run(["mount", "c", "then", "-o", "ro"]).exits(0);
    assert!(tree(&then) == of_backup);
    rig.run(["unmount", "then"]).exits(0);
    // Other stores have no past.
    rig.store("plain", "64M");
    rig.run(["mount", "plain", "then", "-o", "at=3"]).exits(2).says("is on no Flashlog");
}
