//! Damage to the intent log: what `check` says before the mount is what the mount and its files say.

use crate::rig::{Rig, eventually, fuse};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

const FILES: [&str; 5] = ["f0", "f1", "f2", "f3", "f4"];

fn content(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(3 * 4096).collect()
}

/// Whether the intent log ends with a seal: the head of an empty batch, twice (docs/format.md).
fn is_sealed(store: &Path) -> bool {
    let mut start = vec![0; 4 << 20];
    let length = File::open(store).unwrap().read_at(&mut start, 0).unwrap();
    let number = |block: &[u8; 4096], at: usize| u32::from_le_bytes(*block[at..].first_chunk().unwrap());
    let heads: Vec<_> = start[..length].as_chunks().0.iter().filter(|block| block.starts_with(b"HFINTENT")).collect();
    let last = heads.iter().map(|head| number(head, 56)).max();
    heads.iter().filter(|head| Some(number(head, 56)) == last && number(head, 72) == 0).count() == 2
}

/// A store whose daemon was killed a moment after five files had been written and synced.
fn killed(rig: &Rig) {
    let mount = rig.mounted("epoch=60000");
    for name in FILES {
        let mut file = File::create_new(mount.join(name)).unwrap();
        file.write_all(&content(name)).unwrap();
        file.sync_all().unwrap();
    }
    let store = rig.path("s");
    eventually("the log is sealed", || is_sealed(&store));
    rig.kill_daemon("m");
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_check_of_a_damaged_log_says_what_a_mount_will_find() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    killed(&rig);
    fs::copy(rig.path("s"), rig.path("kept")).unwrap();
    let (mut lost, mut refused, mut repaired) = (0, 0, 0);
    for seed in 1..=8 {
        for fault in ["drop", "swap", "flip"] {
            let what = format!("{fault}, seed {seed}");
            fs::copy(rig.path("kept"), rig.path("s")).unwrap();
            let (number, kind) = (seed.to_string(), ["--kind", "intent-log", "--copy", "all"]);
            let inject = ["inject", "s", "--fault", fault, "--seed", &number].into_iter().chain(kind);
            rig.run(inject).exits(0);
            let check = rig.run(["check", "s", "--json"]);
            let found = check.json();
            let named = |kind: &str| -> BTreeSet<String> {
                let findings = found["blocks"]["findings"].as_array().unwrap().iter();
                let of_kind = findings.filter(|finding| finding["kind"] == kind);
                of_kind.map(|finding| finding["path"].as_str().unwrap_or("?").to_string()).collect()
            };
            assert_eq!(check.code, Some(if found["errors"] == 0 { 0 } else { 4 }), "{what}: {found}");
            let mount = rig.run(["mount", "s", "m"]);
            if mount.code != Some(0) {
                assert!(!named("log").is_empty(), "{what}: {mount:?}, and the check found {found}");
                refused += 1;
                continue;
            }
            let wrong = |name: &&str| fs::read(rig.path("m").join(name)).map_err(|error| error.raw_os_error());
            let bad: BTreeSet<String> =
                FILES.iter().filter(|name| wrong(name) == Err(Some(5))).map(|name| format!("/{name}")).collect();
            // Without their directory all are gone.
            let told = named("unreadable");
            let all_of_them = || FILES.iter().map(|name| format!("/{name}")).collect();
            assert_eq!(bad, if told.contains("/") { all_of_them() } else { told.clone() }, "{what}: {found}");
            let mut older = FILES
                .iter()
                .filter(|name| wrong(name).is_ok_and(|now| now != content(name)) || wrong(name) == Err(Some(2)));
            // A seal is behind the last batch: no power cut has been before it was synced.
            assert_eq!(older.next(), None, "{what}: {mount:?}, and the check found {found}");
            let ran = rig.run(["status", "m", "--json"]);
            let status = ran.json();
            // Whoever has read a damaged file has met it.
            let code = if status["blocks_unrepaired"] == 0 { 0 } else { 3 };
            ran.exits(code);
            assert_eq!(status["daemon"]["synced_pages_lost"] == 0, bad.is_empty(), "{what}: {status}");
            if !bad.is_empty() {
                lost += 1;
                assert!(
                    mount.err.contains("LOST") && mount.err.contains("its log names the files"),
                    "{what}: {mount:?}"
                );
                assert!(rig.run(["status", "m"]).exits(code).out.contains("LOST"), "{what}");
                let log = fs::read_to_string(status["daemon"]["log"].as_str().unwrap()).unwrap();
                for path in &told {
                    assert!(log.contains(&format!("{path}: bytes ")), "{what}: {log}");
                }
            } else if found["errors"] != 0 {
                repaired += 1;
            }
            rig.run(["unmount", "m"]).exits(0);
        }
    }
    assert!(lost > 2 && repaired > 2, "lost {lost}, refused {refused}, repaired {repaired}");
}

#[test]
fn flipped_bits_in_the_log_are_put_right_by_check() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    killed(&rig);
    let before = fs::read(rig.path("s")).unwrap();
    rig.run(["inject", "s", "--kind", "intent-log", "--fault", "flip", "--seed", "3"]).exits(0);
    rig.run(["check", "s"]).exits(4);
    rig.run(["check", "s", "--repair"]).exits(1);
    assert!(fs::read(rig.path("s")).unwrap() == before, "it is as it was");
    rig.run(["check", "s"]).exits(0);
}
