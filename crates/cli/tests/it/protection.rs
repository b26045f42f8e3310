//! Protection modes of a store and of a mount.

use crate::rig::{Rig, fuse};
use std::fs;

const MODES: [&str; 9] = [
    "uniform",
    "uniform=blake3",
    "none",
    "disk",
    "end-to-end=fletcher256",
    "static",
    "static=strong",
    "dynamic=0",
    "dynamic=92",
];

fn content(seed: usize) -> Vec<u8> {
    (0..100_000).map(|at: usize| (at * 7 + seed * 31 + at / 251) as u8).collect()
}

#[test]
fn a_store_keeps_its_mode_and_a_mount_may_have_another() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.directory("m");
    for mode in MODES {
        let made = rig.run(["create", "s", "--size", "32M", "--force", "--protection", mode, "--json"]).exits(0).json();
        assert_eq!(made["protection"], mode);
        // What one mode has written is read, changed in the middle of pages and added to in every other.
        for (round, by) in MODES.iter().enumerate() {
            rig.run(["mount", "s", "m", "-o", &format!("protection={by}")]).exits(0);
            let status = rig.run(["status", "m", "--json"]).exits(0).json();
            assert_eq!(
                (status["protection"].as_str(), status["protection_of_store"].as_str()),
                (Some(*by), Some(mode))
            );
            for earlier in 0..round {
                let mut expected = content(earlier);
                expected[5000..5000 + earlier + 1].fill(b'!');
                assert!(fs::read(mount.join(format!("f{earlier}"))).unwrap() == expected, "{mode}, {by}, {earlier}");
            }
            let path = mount.join(format!("f{round}"));
            fs::write(&path, content(round)).unwrap();
            if round % 2 == 0 {
                rig.run(["sync", "m"]).exits(0);
            }
            let file = fs::File::options().write(true).open(&path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![b'!'; round + 1], 5000).unwrap();
            file.sync_all().unwrap();
            drop(file);
            if round % 3 == 0 {
                // What was synced comes back from the intent log.
                rig.kill_daemon("m");
            }
            rig.run(["unmount", "m"]).exits(0);
        }
        rig.run(["check", "s"]).exits(0);
    }
    let words = rig.run(["status", "s"]).exits(0).out;
    assert!(words.contains("protection") && words.contains("dynamic=92"), "{words}");
}

#[test]
fn a_mode_that_there_is_not_is_refused() {
    let rig = Rig::new();
    let ran = rig.run(["create", "s", "--size", "4M", "--protection", "some"]).exits(2);
    assert!(ran.err.contains("unknown protection mode 'some'") && !rig.path("s").exists(), "{ran:?}");
    let ran = rig.run(["create", "s", "--size", "4M", "--protection", "end-to-end=md5"]).exits(2);
    assert!(ran.err.contains("unknown checksum algorithm 'md5'"), "{ran:?}");
    let made = rig.run(["create", "s", "--size", "4M", "--protection", "auto"]).exits(0).out;
    assert!(made.contains("the cheapest that keeps at most one silent corruption in a zettabyte"), "{made}");
    let advice = rig.run(["reliability", "--json"]).exits(0).json();
    let made = rig.run(["status", "s", "--json"]).exits(0).json();
    let mode = advice["recommendation"]["mode"].as_str().expect("a mode");
    // With a t_switch, if it is dynamic.
    let is_so = made["protection"].as_str().is_some_and(|made| made.split('=').next() == Some(mode));
    assert!(is_so, "{mode} is what the model says of this machine: {made}");
    rig.directory("m");
    let ran = rig.run(["mount", "s", "m", "-o", "protection=some"]);
    assert!(ran.err.contains("mount option protection: unknown protection mode 'some'"), "{ran:?}");
}
