//! Protection modes of a store and of a mount.

use crate::rig::{Rig, fuse};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

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

/// In whatever mode a mount looks at file contents: an error for who reads the block, and for nobody else; and a scrub finds it.
#[test]
fn a_bad_block_is_an_error_of_its_own() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.directory("m");
    let end_to_end = ["end-to-end=xor64", "end-to-end=crc64"];
    let modes = MODES.into_iter().filter(|mode| *mode != "none").chain(end_to_end);
    // A store of the same mode, and one of the default.
    for (made, by) in modes.map(|mode| (mode, mode)).chain(end_to_end.map(|mode| ("uniform", mode))) {
        rig.run(["create", "s", "--size", "32M", "--force", "--protection", made]).exits(0);
        let options = format!("protection={by}");
        rig.run(["mount", "s", "m", "-o", &options]).exits(0);
        for name in ["hit", "other"] {
            fs::write(mount.join(name), content(1)).unwrap();
        }
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["inject", "s", "--kind", "file-data", "--path", "/hit", "--page", "2"]).exits(0);
        rig.run(["mount", "s", "m", "-o", &options]).exits(0);
        for _ in 0..2 {
            let error = fs::read(mount.join("hit")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{made}, {by}: {error}");
        }
        let file = fs::File::options().write(true).open(mount.join("hit")).unwrap();
        let error = std::os::unix::fs::FileExt::write_all_at(&file, b"a part of it", 2 * 4096 + 5).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{made}, {by}: {error}");
        drop(file);
        assert!(fs::read(mount.join("other")).unwrap() == content(1), "{made}, {by}");
        let scrubbed = rig.run(["scrub", "m", "--wait"]).exits(3);
        assert!(scrubbed.out.contains("1 page of files LOST"), "{made}, {by}: {scrubbed:?}");
        rig.run(["unmount", "m"]).exits(0);
    }
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

#[test]
fn the_model_decides_what_is_left_to_it() {
    let rig = Rig::new();
    let make = |mode: &str, more: &[&str]| {
        let create = ["create", "s", "--size", "4M", "--force", "--protection", mode];
        let made = rig.run([&create, more, &["--json"]].concat()).exits(0).json();
        let words = rig.run([&create, more].concat()).exits(0).out;
        for said in ["protection_reason", "protection_warning"] {
            assert!(made[said].as_str().is_none_or(|said| words.contains(said)), "{words}");
        }
        assert_eq!(words.contains("Warning: "), made["protection_warning"].is_string(), "{words}");
        // What is known of the machine stands there once, and so does until when xor is enough.
        for once in ["memory: ", "disk: ", "92.4 s"] {
            assert!(words.matches(once).count() <= 1, "{words}");
        }
        let said = |name: &str| made[name].as_str().unwrap_or_default().to_string();
        [said("protection"), said("protection_reason"), said("protection_warning")]
    };
    // The worst memory there is: xor is never enough. The disk is told of too.
    let worst = ["--memory-fit", "167066", "--uber", "1e-11", "--uptime", "1h"];
    for (mode, is) in [("static", "static=strong"), ("dynamic", "dynamic=0")] {
        let [protection, reason, warning] = make(mode, &worst);
        assert_eq!((protection.as_str(), warning.as_str()), (is, ""));
        assert!(reason.contains("xor in memory is never enough") && reason.contains("disk: as given"), "{reason}");
        // Enough for less.
        let [protection, ..] = make(mode, &[&worst[..], &["--goal", "petabyte"]].concat());
        assert!(protection != is, "{protection}");
    }
    // By the paper's costs Fletcher is cheaper than what the paper does not have.
    let [protection, reason, _] = make("auto", &[&worst[..], &["--costs", "published"]].concat());
    assert!(protection == "static=strong" && reason.contains("for pages up to 60 minutes in memory"), "{reason}");
    assert_eq!(make("auto", &worst)[0], "uniform");
    // Without ECC a minute and a half, with it seven weeks.
    assert_eq!(make("dynamic", &["--ecc", "no", "--checksum-data", "published"])[0], "dynamic=92");
    let [protection, reason, _] = make("dynamic", &["--ecc", "yes", "--uptime", "30d"]);
    let t_switch_s: u32 = protection.strip_prefix("dynamic=").and_then(|seconds| seconds.parse().ok()).unwrap();
    assert!((7 * 7 * 86400..8 * 7 * 86400).contains(&t_switch_s), "{protection}");
    assert!(reason.contains("weeks; memory: with ECC, as given"), "{reason}");
    // What is written out is done, and warned of.
    let [protection, reason, warning] = make("dynamic=90s", &worst);
    assert_eq!((protection.as_str(), reason.as_str()), ("dynamic=90", ""));
    assert!(warning.starts_with("by the reliability model dynamic=90 does not keep at most one silent"), "{warning}");
    assert_eq!(make("static=strong", &worst)[2], "");
    // Who describes a machine hears what comes of it, whatever the mode.
    let agrees = "by the reliability model it keeps at most one silent corruption in a zettabyte read for pages up to ";
    for (mode, machine, memory) in [
        ("uniform", &worst[..], "memory: as given; disk: as given"),
        ("uniform", &["--config", "1"], "memory: sample configuration 1"),
    ] {
        let [protection, reason, warning] = make(mode, machine);
        assert_eq!((protection.as_str(), warning.as_str()), (mode, ""));
        assert!(reason.starts_with(agrees) && reason.contains(memory), "{reason}");
    }
    assert_eq!(make("uniform", &[]), ["uniform", "", ""]);
    // Of `static` for how long xor is enough.
    let [protection, reason, warning] = make("static", &["--ecc", "yes", "--uptime", "1d"]);
    assert_eq!((protection.as_str(), warning.as_str()), ("static", ""));
    assert!(reason.contains("weeks; memory: with ECC, as given"), "{reason}");
    let [_, reason, warning] = make("static", &["--ecc", "yes"]);
    assert!(reason.is_empty() && warning.contains("weeks in memory (memory: with ECC"), "not for a year: {warning}");
    make("static", &["--config", "2", "--checksum-data", "published"]);
    // What modes cost is of no matter to one that is named.
    let ran = rig.run(["create", "s", "--force", "--protection", "uniform", "--costs", "published"]).exits(2);
    assert!(ran.err.contains("--costs has no effect but on --protection auto"), "{ran:?}");
    let ran = rig.run(["create", "s", "--force", "--ecc", "yes"]).exits(2);
    assert!(ran.err.contains("--protection"), "{ran:?}");
    let ran = rig.run(["create", "s", "--force", "--protection", "dynamic=90ms"]).exits(2);
    assert!(ran.err.contains("\"ms\" is no unit of time; try 30s"), "{ran:?}");
}

/// As `create` does. Of the store's own mode the model had its say when it was made: `none` is told all the same.
#[test]
fn a_mount_warns_of_a_mode_that_misses_the_goal() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.run(["create", "s", "--size", "32M", "--protection", "none"]).exits(0);
    rig.directory("m");
    let mount = |options: &[&str]| {
        let said = rig.run([&["mount", "s", "m"], options].concat()).exits(0).err;
        let status = rig.run(["status", "m"]).exits(0).out;
        let json = rig.run(["status", "m", "--json"]).exits(0).json();
        rig.run(["unmount", "m"]).exits(0);
        let log = fs::read_to_string(json["daemon"]["log"].as_str().unwrap()).unwrap();
        let in_log =
            log.lines().rfind(|line| line.contains("opened by holdfast") || line.contains("by the reliability model"));
        let warning = json["daemon"]["protection_warning"].as_str().map(str::to_string);
        let is_own = options.is_empty();
        for told in [&said, &log.rsplit("opened by holdfast").next().unwrap().to_string()] {
            assert_eq!(told.contains("the store's own protection mode is none: contents"), is_own, "{told}");
        }
        match &warning {
            None => assert!(
                said.lines().count() == usize::from(is_own)
                    && !status.contains("does not keep")
                    && !in_log.unwrap().contains("model")
            ),
            Some(warning) => assert!(
                said.contains(warning) && status.contains(warning) && in_log.unwrap().contains(warning),
                "{said} {status} {log}"
            ),
        }
        warning
    };
    assert_eq!(mount(&[]), None);
    assert_eq!(mount(&["-o", "protection=uniform"]), None);
    assert_eq!(mount(&["-o", "protection=auto"]), None);
    for mode in ["none", "disk"] {
        let warning = mount(&["-o", &format!("protection={mode}")]).unwrap();
        let says =
            format!("by the reliability model {mode} does not keep at most one silent corruption in a zettabyte");
        let remedy = "; -o protection=auto takes a mode that keeps it, for what is written from then on";
        assert!(warning.starts_with(&says) && warning.ends_with(remedy), "{warning}");
    }
}

#[test]
fn a_mount_goes_by_its_machine() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.directory("m");
    for mode in ["auto", "static", "dynamic", "dynamic=2m"] {
        // On another machine, whatever this one is.
        rig.run(["create", "s", "--size", "32M", "--force", "--protection", "none"]).exits(0);
        rig.run(["mount", "s", "m", "-o", &format!("protection={mode}")]).exits(0);
        let mounted = rig.run(["status", "m", "--json"]).exits(0).json();
        rig.run(["unmount", "m"]).exits(0);
        let made = rig.run(["create", "s", "--size", "4M", "--force", "--protection", mode, "--json"]).exits(0).json();
        assert_eq!(mounted["protection"], made["protection"], "{mode}");
        assert_eq!(mounted["protection_of_store"], "none");
    }
    // A mount is of no other machine, but a store may have been made for one: the worst has the strong checksum throughout.
    for (mode, is) in [("static", "static=strong"), ("dynamic", "dynamic=0")] {
        let machine = ["--memory-fit", "167066", "--uptime", "1h"];
        let create = ["create", "s", "--size", "32M", "--force", "--protection", mode];
        rig.run([&create[..], &machine].concat()).exits(0);
        rig.run(["mount", "s", "m"]).exits(0);
        let mounted = rig.run(["status", "m", "--json"]).exits(0).json();
        rig.run(["unmount", "m"]).exits(0);
        assert_eq!([&mounted["protection"], &mounted["protection_of_store"]], [is, is]);
    }
}

/// What was written in mode `none` is counted wherever all is read, until it is written again in another one, as the words say.
#[test]
fn blocks_without_a_checksum_are_told_until_they_are_written_again() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.directory("m");
    let mounted = |mode: &str| {
        rig.run(["mount", "s", "m", "-o", &format!("protection={mode}")]).exits(0);
    };
    // Of a store made for it, and of one that was only mounted so.
    for made in ["none", "uniform"] {
        rig.run(["create", "s", "--size", "32M", "--force", "--protection", made]).exits(0);
        mounted("none");
        fs::create_dir(mount.join("d")).unwrap();
        fs::write(mount.join("d/old"), content(1)).unwrap();
        fs::write(mount.join("other"), content(2)).unwrap();
        rig.run(["unmount", "m"]).exits(0);
        mounted("uniform");
        fs::write(mount.join("new"), content(3)).unwrap();
        // Half of it is new: the rest keeps what it has.
        std::os::unix::fs::FileExt::write_all_at(
            &fs::File::options().write(true).open(mount.join("other")).unwrap(),
            &content(2)[..10 * 4096],
            0,
        )
        .unwrap();
        rig.run(["sync", "m"]).exits(0);
        let status = rig.run(["status", "m"]).exits(0).out;
        assert_eq!(status.contains("what was written in mode none has no checksum"), made == "none", "{status}");
        // 25 of the one, 15 of the other.
        let says = "40 blocks of files without a checksum (160 KiB)";
        let scrubbed = rig.run(["scrub", "m", "--wait"]).exits(0).out;
        let told = format!("no errors; {says} NOT verified\n");
        assert!(scrubbed.contains(&told) && scrubbed.contains("needs at each mount"), "{scrubbed}");
        let (_, remedy) = scrubbed.split_once("needs at each mount): ").unwrap();
        let remedy = remedy.split(';').next().unwrap().to_string();
        assert!(rig.run(["status", "m"]).exits(0).out.contains(&told));
        for store in ["m", "s"] {
            let checked = rig.run(["check", store]).exits(0).out;
            let sums = format!("\nno errors in what could be verified; {says}, in 2 files, could NOT be verified\n");
            for part in [&sums, "\n  /d/old: 100 KiB\n", "\n  /other: 60.0 KiB\n"] {
                assert!(checked.contains(part), "{part}: {checked}");
            }
            assert_eq!(checked.matches("no error").count(), 1, "{checked}");
            let checked = rig.run(["check", store, "--json"]).exits(0).json();
            let found = &checked["blocks"]["no_checksum"];
            assert_eq!((&found["blocks"], &found["bytes"]), (&40.into(), &(160 << 10).into()), "{checked}");
            assert_eq!((&found["files"], &found["named"][0]["path"]), (&2.into(), &"/d/old".into()), "{checked}");
            if store == "m" {
                rig.run(["unmount", "m"]).exits(0);
            }
        }
        // No checksum was made of what is there: whatever it has become.
        rig.run(["inject", "s", "--kind", "file-data", "--path", "/d/old", "--page", "3"]).exits(0);
        mounted("uniform");
        let scrubbed = rig.run(["scrub", "m", "--wait", "--json"]).exits(0).json();
        assert_eq!((&scrubbed["counts"]["no_checksum"], &scrubbed["found"]), (&40.into(), &0.into()), "{scrubbed}");
        fs::hard_link(mount.join("d/old"), mount.join("d/link")).unwrap();
        let before = fs::read(mount.join("d/old")).unwrap();
        for file in ["d/old", "other"] {
            let command = remedy.replace("FILE", &format!("'{}'", mount.join(file).display()));
            assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
        }
        assert!(fs::read(mount.join("d/link")).unwrap() == before && before.len() == content(1).len());
        assert_eq!(fs::metadata(mount.join("d/old")).unwrap().nlink(), 2, "{remedy}");
        // At once: what has been written again is looked at, and not the last recovery point.
        let scrubbed = rig.run(["scrub", "m", "--wait"]).exits(0).out;
        assert!(scrubbed.contains("; no errors\n") && !scrubbed.contains("checksum"), "{scrubbed}");
        rig.run(["unmount", "m"]).exits(0);
        assert!(!rig.run(["check", "s"]).exits(0).out.contains("checksum"));
    }
}
