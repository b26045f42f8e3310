//! Scrub of a mounted store: what `inject` damages is all found; pauses, restarts and crashes do not lose the place.

use crate::rig::{Rig, eventually, fuse};
use crate::summed::opened;
use holdfast_client::Kind;
use rustix::fs::{XattrFlags, setxattr};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn fill(mount: &Path, files: usize, bytes: usize) {
    for directory in ["a", "b"] {
        let directory = mount.join(directory);
        fs::create_dir(&directory).unwrap();
        for number in 0..files {
            let file = directory.join(format!("f{number}"));
            let content: Vec<u8> = (0..bytes).map(|at| (at / 4096 * 31 + at % 251 + number) as u8).collect();
            fs::write(&file, content).unwrap();
            setxattr(&file, "user.note", format!("note {number}").as_bytes(), XattrFlags::empty()).unwrap();
        }
    }
}

fn status(rig: &Rig) -> Value {
    rig.run(["scrub", "m", "--status", "--json"]).exits(0).json()
}

#[test]
fn everything_damaged_is_found_once_and_told_by_path() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    fill(&rig.mounted(""), 8, 70 * 4096);
    rig.run(["unmount", "m"]).exits(0);
    // Second copies: neither mounting nor reading meets them, so it is the scrub that does. (The bitmap's would be written
    // anew with the first epoch.)
    let metadata = ["object-table", "system-tree", "block-tree", "map", "directory", "xattr"];
    for kind in metadata {
        let store = ["inject", "s", "--kind", kind, "--copy", "2", "--fault"];
        let faults = ["flip", "drop"];
        // One block of each kind, so that the counts are exact.
        let fault = faults[kind.len() % 2];
        rig.run(store.into_iter().chain([fault])).exits(0);
    }
    for (path, page) in [("/a/f3", "5"), ("/b/f7", "69")] {
        rig.run(["inject", "s", "--kind", "file-data", "--path", path, "--page", page, "--bits", "3"]).exits(0);
    }
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(status(&rig)["condition"], "never");
    let found = rig.run(["scrub", "m", "--wait", "--json"]).exits(3).json();
    let counts = &found["counts"];
    assert_eq!(found["condition"], "done");
    assert_eq!(counts["repaired"], metadata.len(), "{found}");
    assert_eq!((&counts["lost"], &counts["unrepaired"]), (&2.into(), &0.into()), "{found}");
    let lost = |path: &str| {
        let findings = found["findings"].as_array().unwrap();
        findings.iter().any(|found| found["path"] == path && found["fate"] == "lost")
    };
    assert!(lost("/a/f3") && lost("/b/f7"), "{found}");
    let words = rig.run(["scrub", "m", "--status"]).exits(0).out;
    assert!(words.contains("2 pages of files LOST") && words.contains("in /a/f3"), "{words}");
    assert!(rig.run(["status", "m"]).exits(3).out.contains("2 pages of files LOST"));

    let again = rig.run(["scrub", "m", "--wait", "--json"]).exits(3).json();
    assert_eq!((&again["found"], &again["counts"]["lost_before"]), (&0.into(), &2.into()), "{again}");
    // What was lost before is why, and is said.
    let words = rig.run(["status", "m"]).exits(3).out;
    assert!(words.contains("; no new errors; 2 pages of files LOST before"), "{words}");
    assert!(words.contains("2 pages LOST as of the last scrub: holdfast check "), "{words}");
    for mounted in ["still", "again"] {
        for (path, page) in [("a/f3", 5), ("b/f7", 69)] {
            let path = rig.path("m").join(path);
            let error = fs::read(&path).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(5), "EIO, and not {error}");
            let error = opened(&path).read_at(&mut [0; 4096], page * 4096).unwrap_err();
            assert_eq!((error.kind, &error.blocks[..]), (Kind::Device, &[page][..]), "mounted {mounted}: {error}");
        }
        rig.run(["unmount", "m"]).exits(0);
        if mounted == "still" {
            rig.run(["mount", "s", "m"]).exits(0);
        }
    }
    let check = rig.run(["check", "s", "--json"]).exits(4).json();
    assert_eq!((&check["blocks"]["lost_pages"], &check["errors"]), (&2.into(), &2.into()), "{check}");
    assert!(!check["advice"].to_string().contains("make a new store"), "{check}");
    assert!(check["blocks"]["findings"][0].to_string().contains("went bad on the device"), "{check}");
    let lost = |at: usize| (&check["blocks"]["findings"][at]["path"], &check["blocks"]["findings"][at]["first_byte"]);
    assert_eq!([lost(0), lost(1)], [(&"/a/f3".into(), &(5 * 4096).into()), (&"/b/f7".into(), &(69 * 4096).into())]);
    rig.run(["scrub", "."]).exits(1).says("is in no mount");
}

#[test]
fn a_scrub_rests_goes_on_and_survives_a_crash() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    fill(&rig.mounted(""), 20, 100 * 4096);
    rig.run(["sync", "m"]).exits(0);
    for asked in ["--pause", "--resume", "--cancel"] {
        rig.run(["scrub", "m", asked]).exits(1).says("no scrub is");
    }
    rig.run(["scrub", "m", "--rate", "1M"]).exits(0);
    let rate = |arguments: &[&str]| rig.run(arguments).exits(0).json()["rate_bytes_per_s"].clone();
    assert_eq!(rate(&["scrub", "m", "--json"]), 1 << 20, "who asks again does not mean another rate");
    let read = |status: &Value| status["counts"].as_object().unwrap()["data"].as_u64().unwrap();
    eventually("some data is read", || read(&status(&rig)) > 20);
    rig.run(["scrub", "m", "--pause"]).exits(0);
    // A step may have been under way; then it rests.
    let mut paused = status(&rig);
    eventually("it rests", || {
        let now = status(&rig);
        let rests = now["counts"] == paused["counts"];
        rests && now["condition"] == "paused"
    });
    paused = status(&rig);
    assert!(rig.run(["scrub", "m", "--status"]).exits(0).out.contains("paused at"));
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(status(&rig)["counts"], paused["counts"], "also in the next mount");
    rig.run(["scrub", "m", "--resume"]).exits(0);
    eventually("it goes on", || read(&status(&rig)) > read(&paused));

    rig.kill_daemon("m");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    let after = status(&rig);
    assert_eq!((&after["condition"], after["started_s"] == paused["started_s"]), (&"running".into(), true));
    assert!(read(&after) >= read(&paused), "it begins where it was: {after} after {paused}");
    rig.run(["scrub", "m", "--cancel"]).exits(0);
    assert_eq!(status(&rig)["condition"], "cancelled");

    let whole = rig.run(["scrub", "m", "--wait", "--json"]).exits(0).json();
    assert_eq!((&whole["condition"], &whole["found"]), (&"done".into(), &0.into()));
    let (blocks, data) = (whole["blocks_in_use"].as_u64().unwrap(), read(&whole));
    assert!(data == 2 * 20 * 100 && blocks > data, "{whole}");

    // A limit goes with its scrub, and before that when it is told to.
    assert_eq!(rate(&["scrub", "m", "--rate", "100K", "--json"]), 100 << 10);
    assert_eq!(rate(&["scrub", "m", "--rate", "0", "--wait", "--json"]), 0);
    assert_eq!(rate(&["scrub", "m", "--rate", "100K", "--json"]), 100 << 10);
    rig.run(["scrub", "m", "--cancel"]).exits(0);
    assert!(rig.run(["status", "m"]).exits(0).out.contains("cancelled on 20"), "when that was");
    assert_eq!(rate(&["scrub", "m", "--wait", "--json"]), 0);
}
