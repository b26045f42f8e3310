//! Metadata in the memory of a mount, damaged on purpose: `holdfast inject --memory`, `--logic-bug`. Each time the application goes on, and what
//! is on the disk is right.

mod meanwhile;
mod told;
mod unseen;

use crate::rig::{Rig, await_end, fuse};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use told::tells_what_and_when;

const PAGE: usize = 4096;
/// More than a record points to by itself, so that there are trees.
const PAGES: usize = 70;
/// Epochs are closed by the tests.
const OPTIONS: &str = "epoch=60000,cache=32M";

const PATTERNS: [&str; 4] = ["bit", "word", "range", "keep-checksum"];

/// An application, and what its files should hold.
struct Work {
    mount: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
}

fn content(seed: usize, pages: usize) -> Vec<u8> {
    (0..pages * PAGE).map(|at| ((at + at / PAGE * 77 + seed) * 31 % 251) as u8).collect()
}

impl Work {
    /// A store with blocks of every kind: shared ones, a snapshot, what only that has.
    fn new(rig: &Rig, options: &str) -> Work {
        let mut work = Work { mount: rig.lab(options), files: BTreeMap::new() };
        fs::create_dir(work.mount.join("d")).unwrap();
        (0..4).for_each(|number| work.put(&format!("d/f{number}"), content(number, PAGES)));
        rig.run(["sync", "m"]).exits(0);
        work.copy("d/f0", "copy");
        rig.run(["snapshot", "create", "m", "kept"]).exits(0);
        work.change("d/f1", 3, 90);
        rig.run(["sync", "m"]).exits(0);
        work
    }

    fn put(&mut self, name: &str, bytes: Vec<u8>) {
        fs::write(self.mount.join(name), &bytes).unwrap();
        self.files.insert(name.into(), bytes);
    }

    /// Shares blocks.
    fn copy(&mut self, from: &str, to: &str) {
        fs::copy(self.mount.join(from), self.mount.join(to)).unwrap();
        self.files.insert(to.into(), self.files[from].clone());
    }

    fn change(&mut self, name: &str, page: usize, seed: usize) {
        let file = File::options().write(true).open(self.mount.join(name)).unwrap();
        let bytes = content(seed, 1);
        file.write_all_at(&bytes, (page * PAGE) as u64).unwrap();
        self.files.get_mut(name).unwrap()[page * PAGE..][..PAGE].copy_from_slice(&bytes);
    }

    fn remove(&mut self, name: &str) {
        fs::remove_file(self.mount.join(name)).unwrap();
        self.files.remove(name);
    }

    /// Changes something of everything: pages, shared and kept by the snapshot too, files, names.
    fn go_on(&mut self, round: usize) {
        for number in 0..4 {
            self.change(&format!("d/f{number}"), (round + 17 * number) % PAGES, round + number);
        }
        self.put(&format!("new {round}"), content(round, 2));
        self.copy("d/f2", &format!("copy {round}"));
        for gone in [format!("new {}", round.wrapping_sub(1)), format!("copy {}", round.wrapping_sub(1))] {
            if self.files.contains_key(&gone) {
                self.remove(&gone);
            }
        }
    }

    /// Not an error, and not a wrong byte.
    #[track_caller]
    fn is_right(&self) {
        for (name, bytes) in &self.files {
            assert!(fs::read(self.mount.join(name)).unwrap() == *bytes, "{name} has other contents");
        }
        let kept = fs::read(self.mount.join(".holdfast/snapshots/kept/d/f1")).unwrap();
        assert!(kept == content(1, PAGES), "the snapshot has other contents");
    }

    /// Unmounts, checks, mounts, reads.
    fn is_stored(&self, rig: &Rig) {
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(0);
        rig.run(["mount", "s", "m"]).exits(0);
        self.is_right();
        rig.run(["unmount", "m"]).exits(0);
    }
}

/// `holdfast inject m` with these words behind it.
fn inject(rig: &Rig, words: &str) -> Value {
    rig.run(["inject", "m", "--json"].into_iter().chain(words.split_whitespace())).exits(0).json()
}

fn counter(rig: &Rig, name: &str) -> u64 {
    rig.run(["status", "m", "--json"]).exits(0).json()["counters"][name].as_u64().unwrap()
}

fn log(rig: &Rig) -> String {
    let status = rig.run(["status", "m", "--json"]).json();
    fs::read_to_string(status["daemon"]["log"].as_str().unwrap()).unwrap()
}

fn a_second_passes() {
    // What was verified less than a second ago is believed: nothing tells when that is over but time.
    std::thread::sleep(Duration::from_millis(1100));
}

#[test]
fn what_is_clean_is_struck_found_and_not_stored() {
    if !fuse() {
        return;
    }
    let kinds = [
        "object-table",
        "system-tree",
        "block-tree",
        "bitmap",
        "reference-table",
        "map",
        "snapshot-list",
        "dead-list",
        "record",
        "allocator",
        "label",
        "superblock",
        "intent-log",
        "snapshot",
        "counts",
        "numbers",
    ];
    let rig = Rig::new();
    let mut work = Work::new(&rig, OPTIONS);
    for (round, pattern) in PATTERNS.into_iter().enumerate() {
        work.go_on(round);
        rig.run(["sync", "m"]).exits(0);
        rig.run(["snapshot", "list", "m"]).exits(0);
        for kind in kinds {
            let words = format!("--memory=clean --kind {kind} --pattern {pattern} --seed {round}");
            let done = inject(&rig, &words);
            let struck = &done["struck"][0];
            assert_eq!(struck["kind"], kind, "{done}");
            assert_ne!(struck["scribble"]["before"], struck["scribble"]["after"], "{done}");
            assert!(log(&rig).contains("damaged on purpose"));
        }
        let before = counter(&rig, "scribbles");
        a_second_passes();
        work.go_on(20 + round);
        work.is_right();
        rig.run(["snapshot", "create", "m", pattern]).exits(0);
        rig.run(["sync", "m"]).exits(0);
        assert!(counter(&rig, "scribbles") > before, "{pattern}: nothing was noticed");
        work.is_right();
        rig.run(["snapshot", "delete", "m", pattern]).exits(0);
    }
    let said = log(&rig);
    for part in [
        "of the record in memory",
        "second sum of the label in memory",
        "second sum of the superblock in memory",
        "begun anew from the last one",
    ] {
        assert!(said.contains(part), "{part:?} is not in the log: {said}");
    }
    assert!(rig.run(["status", "m"]).exits(0).out.contains("found IN MEMORY"));
    work.is_stored(&rig);
}

/// What an operation makes of a file follows from its record: the block that has it is verified before, however lately that was done.
#[test]
fn no_change_follows_from_a_record_that_has_just_gone_bad() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab(OPTIONS).join("f");
    let mut expected = content(1, 1);
    fs::write(&path, &expected).unwrap();
    for (round, field) in
        ["size", "size", "blocks", "mode", "uid", "nlink", "page_bound", "generation"].into_iter().enumerate()
    {
        // It is as on the disk, and has been verified when it was written.
        rig.run(["sync", "m"]).exits(0);
        let (before, seed) = (fs::metadata(&path).unwrap(), round.to_string());
        let strike = ["inject", "m", "--memory=clean", "--kind", "object-table", "--path", "/f", "--field", field];
        rig.run([&strike[..], &["--seed", &seed]].concat()).exits(0);
        let mut file = File::options().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, b"more").unwrap();
        expected.extend_from_slice(b"more");
        drop(file);
        rig.run(["sync", "m"]).exits(0);
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(0);
        rig.run(["mount", "--lab", "s", "m", "-o", OPTIONS]).exits(0);
        let after = fs::metadata(&path).unwrap();
        assert_eq!(after.len(), expected.len() as u64, "{field}");
        assert_eq!(
            (after.mode(), after.uid(), after.nlink()),
            (before.mode(), before.uid(), before.nlink()),
            "{field}"
        );
        assert!(fs::read(&path).unwrap() == expected, "{field}");
    }
}

#[test]
fn what_a_recovery_point_is_made_of_is_struck_and_found_in_time() {
    if !fuse() {
        return;
    }
    // What says so, if it is always the same that does.
    let kinds = [
        ("block-tree", "tree block "),
        ("map", "(map of "),
        ("reference-table", "(reference table)"),
        ("record", "the record"),
        ("allocator", "(allocation bitmap)"),
        ("superblock", "superblock"),
        ("dead-run", "runs that are to join a dead list"),
        ("audit", "of the audit in memory"),
    ];
    let rig = Rig::new();
    let mut work = Work::new(&rig, OPTIONS);
    for (round, pattern) in PATTERNS.into_iter().enumerate() {
        for (number, (kind, says)) in kinds.into_iter().enumerate() {
            work.go_on(round * kinds.len() + number);
            let words = format!("--memory=dirty --kind {kind} --pattern {pattern} --seed {round}");
            let before = rig.run(["status", "m", "--json"]).exits(0).json()["epoch"].as_u64().unwrap();
            let done = inject(&rig, &words);
            let made = &done["recovery_point"];
            let count = |what: &str| made[what].as_u64().unwrap();
            assert!(made["read_only"].is_null() && count("epoch") > before, "{done}");
            assert!(count("restarts") == 1 && count("scribbles") + count("audit_failures") > 0, "{done}");
            let found = made["found"][0].as_str().unwrap();
            assert!(found.contains(says), "{kind}: {found}");
            assert!(log(&rig).contains(found), "the log has it too");
            work.is_right();
        }
    }
    work.is_stored(&rig);
}

/// What the help calls the values of an option.
fn values(rig: &Rig, option: &str) -> Vec<String> {
    let help = rig.run(["inject", "--help"]).exits(0).out;
    let (_, names) = help.split_once(option).unwrap();
    let (_, names) = names.split_once("[possible values: ").unwrap();
    names.split_once(']').unwrap().0.split(',').map(|name| name.trim().to_string()).collect()
}

/// All that a recovery point is made of, and what is in use meanwhile, in every way, while somebody works as one does.
#[test]
fn each_kind_is_struck_while_work_goes_on_and_told() {
    if !fuse() {
        return;
    }
    let of_pages = ["directory", "xattr", "symlink", "file-data"];
    let rig = Rig::new();
    let mut work = Work::new(&rig, "epoch=200,cache=32M");
    let guide = include_str!("../../../../docs/guide.md");
    let is_over = AtomicBool::new(false);
    let (rig, is_over) = (&rig, &is_over);
    let work = std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            for round in 0.. {
                work.go_on(round);
                let name = format!("round {round}");
                rig.run(["snapshot", "create", "m", &name]).exits(0);
                let (mount, file) = (&work.mount, format!("new {round}"));
                File::open(mount.join(&file)).unwrap().sync_all().unwrap();
                fs::hard_link(mount.join(&file), mount.join("link")).unwrap();
                fs::remove_file(mount.join("link")).unwrap();
                work.is_right();
                // What the snapshot alone has from then on: of the other one's pages the first rounds leave none.
                work.change("d/f3", round % PAGES, round + 3);
                rig.run(["sync", "m"]).exits(0);
                rig.run(["snapshot", "delete", "m", &name]).exits(0);
                // That has closed an epoch. After a copy that shares blocks a sync would close one, too, and not go into the log.
                work.change("d/f0", round % PAGES, round + 7);
                File::open(work.mount.join("d/f0")).unwrap().sync_all().unwrap();
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
            work
        });
        let stops = StopsAtTheEnd(is_over);
        for kind in values(rig, "--kind <KIND>") {
            assert!(guide.contains(&format!("`{kind}`")), "the guide has no {kind}");
            for (seed, pattern) in PATTERNS.into_iter().enumerate() {
                if of_pages.contains(&&*kind) || kind == "written-ahead" {
                    continue;
                }
                let words = format!("--memory=dirty --kind {kind} --pattern {pattern} --seed {seed} --wait 50");
                let done = inject(rig, &words);
                let (struck, made) = (&done["struck"][0], &done["recovery_point"]);
                assert_eq!(struck["kind"], *kind, "{done}");
                assert!(made["read_only"].is_null(), "{done}");
                let found = made["found"].as_array().unwrap();
                let is_found = made["scribbles"].as_u64().unwrap() + made["audit_failures"].as_u64().unwrap() > 0;
                // What is in use all the time is looked at when it is used, and some sums are changed legally before.
                let may_wait = struck["state"] == "in use" || struck["state"] == "clean" || kind == "audit";
                assert!(is_found && !found.is_empty() || may_wait, "{kind}, {pattern}: {done}");
                // Of what is a block, or a record: which.
                let object = struck["object"].as_str().unwrap_or_default();
                let names = |found: &Value| found.as_str().unwrap().contains(object);
                assert!(!is_found || found.iter().any(names), "{kind}, {pattern}: {done}");
                let field = struck["scribble"]["field"].as_str().unwrap();
                let tells = |found: &Value| tells_what_and_when(&kind, field, found.as_str().unwrap());
                let is_scribble = is_found && made["audit_failures"] == 0;
                assert!(!is_scribble || found.iter().any(tells), "{kind}, {pattern}: {done}");
            }
        }
        drop(stops);
        worker.join().unwrap()
    });
    assert!(counter(rig, "scribbles") > 60);
    rig.run(["status", "m"]).exits(0);
    work.is_right();
    work.is_stored(rig);
}

/// Ends who works meanwhile, also where the test fails.
struct StopsAtTheEnd<'a>(&'a AtomicBool);

impl Drop for StopsAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_strike_waits_for_its_recovery_point_and_not_for_ever() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mut work = Work::new(&rig, OPTIONS);
    rig.run(["sync", "m"]).exits(0);
    // Nothing happens: it ends in time, says what it has waited for, and nothing is struck afterwards.
    for (way, what) in [
        (
            "--memory=dirty --kind snapshot-list --wait 1",
            "snapshot-list, changed for it was in memory while any recovery",
        ),
        ("--memory=dirty --kind log-batch --wait 1", "there was not an fsync that goes into the intent log"),
        ("--logic-bug dead-run-lost --wait 1", "there is nothing now to which dead-run-lost could happen"),
    ] {
        let start = Instant::now();
        rig.run(["inject", "m"].into_iter().chain(way.split_whitespace())).exits(1).says(what);
        assert!((1..30).contains(&start.elapsed().as_secs()), "{way}: {:?}", start.elapsed());
    }
    // Nor does who sees whether the mount gets on end it before.
    let words = "--timeout 1 inject m --memory=dirty --kind snapshot-list --wait 6";
    rig.run(words.split(' ')).exits(1).says("snapshot-list, changed for it was in memory while any recovery");
    rig.run(["snapshot", "create", "m", "unharmed"]).exits(0);
    work.go_on(0);
    assert_eq!(["scribbles", "audit_failures", "restarts"].map(|name| counter(&rig, name)), [0; 3]);
    // It is what somebody else does that is struck.
    let waiting = |way: &'static str| rig.command().args(way.split(' ')).stdout(Stdio::piped()).spawn().unwrap();
    for (way, does) in [
        ("inject m --json --memory=dirty --kind snapshot-list --wait 50", "snapshot create m"),
        ("inject m --json --memory=dirty --kind log-batch --wait 50", "fsync"),
        ("inject m --json --memory=dirty --kind dead-run --wait 50 --times 2", "remove"),
    ] {
        let mut struck = waiting(way);
        for round in 0.. {
            match does {
                "fsync" => {
                    let path = work.mount.join("d/f1");
                    work.change("d/f1", round % PAGES, round);
                    File::open(path).unwrap().sync_all().unwrap();
                }
                "remove" => {
                    work.change("d/f3", round % PAGES, round);
                    rig.run(["sync", "m"]).exits(0);
                }
                words => drop(rig.run(words.split(' ').chain([&*format!("s{round}")])).exits(0)),
            }
            if let Some(status) = struck.try_wait().unwrap() {
                assert!(status.success(), "{way}");
                break;
            }
        }
        let done: Value = serde_json::from_reader(struck.stdout.take().unwrap()).unwrap();
        assert!(done["recovery_point"]["scribbles"].as_u64().unwrap() > 0, "{done}");
        assert!(done["recovery_point"]["read_only"].is_null(), "{done}");
        work.is_right();
    }
    work.is_stored(&rig);
}

/// Logic bugs of which the sums of the equation that fails do not say (all of) which objects they are about.
const OF_NO_OBJECT: [&str; 9] = [
    "bit-without-pointer",
    "pointer-without-bit",
    "pointer-to-used-block",
    "free-count",
    "block-count",
    "metadata-count",
    "metadata-kept-count",
    "dead-run-lost",
    "snapshot-backdated",
];

#[test]
fn each_logic_bug_is_found_by_the_audit_and_told() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mut work = Work::new(&rig, OPTIONS);
    let names = values(&rig, "--logic-bug <NAME>");
    let many = names.len();
    assert!(many >= 22 && names.iter().any(|name| name == "pointer-to-used-block"), "{names:?}");
    for (round, bug) in names.into_iter().enumerate() {
        work.go_on(round);
        let done = inject(&rig, &format!("--logic-bug {bug} --seed {round}"));
        let (struck, made) = (&done["struck"][0], &done["recovery_point"]);
        assert!(struck["logic_bug"] == *bug && !struck["what"].as_str().unwrap().is_empty(), "{done}");
        assert_eq!((&made["audit_failures"], &made["scribbles"]), (&1.into(), &0.into()), "{done}");
        let found = made["found"][0].as_str().unwrap();
        assert!(found.contains("a logic bug"), "{done}");
        let log = log(&rig);
        if bug == "log-head" {
            // What was to be in the log is in a recovery point, of which nothing is begun anew.
            assert_eq!((&made["restarts"], &made["read_only"]), (&0.into(), &Value::Null), "{done}");
            assert!(found.contains("nothing is appended") && log.contains(found), "{done}");
            work.is_right();
            continue;
        }
        assert_eq!((&made["restarts"], &made["read_only"]), (&1.into(), &Value::Null), "{done}");
        let given_up = log.lines().rfind(|line| line.contains("an epoch is given up")).expect("told");
        assert!(given_up.contains("all up to transaction ") && given_up.contains(" objects changed: "), "{given_up}");
        let is_of_objects = given_up.contains(" objects in question: #") && given_up.contains(" operations on them");
        assert!(is_of_objects || OF_NO_OBJECT.contains(&&*bug), "{bug}: {given_up}");
        work.is_right();
    }
    assert!(rig.run(["status", "m"]).exits(0).out.contains(&format!("{many} logic bugs found IN MEMORY")));
    work.is_stored(&rig);
}

#[test]
fn a_logic_bug_that_nothing_audits_is_said_to_be_stored() {
    if !fuse() {
        return;
    }
    for (audit, is_unaudited) in [("none", true), ("store", false)] {
        let rig = Rig::new();
        let work = Work::new(&rig, &format!("{OPTIONS},audit={audit}"));
        let said = rig.run(["inject", "m", "--logic-bug", "object-count"]).exits(0).out;
        assert_eq!(said.contains("nothing will find it, as this mount has audit=none"), is_unaudited, "{said}");
        assert_eq!(said.contains("1 logic bug"), !is_unaudited, "{said}");
        let done = inject(&rig, "--logic-bug object-count");
        assert_eq!(done["recovery_point"]["is_unaudited"].as_bool().unwrap_or(false), is_unaudited, "{done}");
        work.is_right();
        rig.run(["unmount", "m"]).exits(0);
        let code = rig.run(["check", "s"]).code;
        assert_eq!(code == Some(0), !is_unaudited, "{code:?}");
    }
}

#[test]
fn the_same_again_and_again_makes_the_store_read_only_and_it_says_what_to_do() {
    if !fuse() {
        return;
    }
    for words in ["--memory=dirty --kind record --field mode", "--logic-bug object-count"] {
        let rig = Rig::new();
        let mut work = Work::new(&rig, OPTIONS);
        // One time less is survived, more than once.
        for round in 0..2 {
            work.put("d/more", content(round, 1));
            let done = inject(&rig, &format!("{words} --times 2"));
            assert_eq!(done["recovery_point"]["restarts"], 2, "{done}");
            assert!(done["recovery_point"]["read_only"].is_null(), "{done}");
        }
        work.remove("d/more");
        rig.run(["sync", "m"]).exits(0);
        let kept = work.files.clone();
        work.put("too late", content(1, 1));
        let done = inject(&rig, &format!("{words} --times 3"));
        assert_eq!(done["struck"].as_array().unwrap().len(), 3, "{done}");
        let why = done["recovery_point"]["read_only"].as_str().expect("a reason");
        let advice = "have the memory tested (or report what is called a logic bug), and mount again";
        assert!(why.contains("it failed 3 times in a row") && why.starts_with("read-only: copy elsewhere"), "{why}");
        assert!(why.find(advice).unwrap() < why.find("it failed").unwrap(), "{why}");
        // What is read is right, what is written is refused, and everybody is told why.
        work.is_right();
        let error = fs::write(work.mount.join("refused"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
        let status = rig.run(["status", "m"]).exits(3).out;
        assert!(status.contains("READ-ONLY") && status.contains(advice), "{status}");
        assert_eq!(rig.run(["status", "m", "--json"]).exits(3).json()["latched"], true);
        let log_path = rig.run(["status", "m", "--json"]).json()["daemon"]["log"].as_str().unwrap().to_string();
        assert!(log(&rig).contains("the store is read-only from now on"));
        rig.run(["sync", "m"]).exits(1).says("it takes no changes");
        let named = "/too late: 1 page (bytes 0 to 4095)";
        assert!(status.contains("NOT WRITTEN") && status.contains(named), "{status}");
        rig.run(["unmount", "m"])
            .exits(1)
            .says(named)
            .says("the last writes to 1 file were in memory only, and are lost");
        assert!(fs::read_to_string(log_path).unwrap().contains("was written last, and is not on the disk"));
        rig.run(["check", "s"]).exits(0);
        rig.run(["mount", "s", "m"]).exits(0);
        work.files = kept;
        work.is_right();
        assert!(!work.mount.join("too late").exists());
        work.put("again", content(2, 1));
        work.is_stored(&rig);
    }
}

#[test]
fn what_was_struck_is_listed_chosen_and_put_back() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let work = Work::new(&rig, OPTIONS);
    let all = rig.run(["inject", "m", "--memory", "--list", "--json"]).exits(0).json();
    let listed: Vec<&str> = all["counts"].as_array().unwrap().iter().map(|count| count[0].as_str().unwrap()).collect();
    for kind in ["object-table", "block-tree", "bitmap", "reference-table", "label", "superblock", "snapshot", "counts"]
    {
        assert!(listed.contains(&kind), "{listed:?}");
    }
    let words = rig.run(["inject", "m", "--memory", "--list", "--kind", "block-tree", "--path", "/d/f2"]).exits(0).out;
    assert!(words.contains("(/d/f2)") && !words.contains("(/d/f1)") && words.contains("birth_log"), "{words}");

    // The size of a file, in the object table.
    let one = "--memory=clean --kind object-table --path /d/f2 --field size --bytes ff";
    let done = inject(&rig, one);
    let struck = &done["struck"][0];
    assert!(struck["scribble"]["field"].as_str().unwrap().starts_with("size of "), "{done}");
    assert_eq!((&struck["scribble"]["before"], &struck["scribble"]["after"]), (&"00".into(), &"ff".into()), "{done}");
    undo(&rig, &done);
    // The same bytes of the same block, exactly as asked for.
    let tree = "--memory=clean --kind block-tree --path /d/f2 --level 1 --index 1 --offset 130 --length 40";
    let done = inject(&rig, tree);
    let struck = &done["struck"][0];
    assert_eq!((&struck["level"], &struck["index"], &struck["path"]), (&1.into(), &1.into(), &"/d/f2".into()));
    let (at, bytes) = (struck["scribble"]["offset"].as_u64().unwrap(), struck["scribble"]["before"].as_str().unwrap());
    assert!(at >= 130 && at + bytes.len() as u64 / 2 <= 170, "{done}");
    undo(&rig, &done);
    undo(&rig, &inject(&rig, "--memory --kind label --field label --pattern keep-checksum"));
    undo(&rig, &inject(&rig, "--memory --kind counts --field free"));
    // What no checksum sees is taken back with its sums.
    for (field, says) in [("size", "no equation of the audit has this field"), ("blocks", "This field is audited")] {
        let way = format!("--memory=clean --kind object-table --path /d/f2 --field {field} --pattern keep-all");
        let told = rig.run(["inject", "m"].into_iter().chain(way.split_whitespace())).exits(0).out;
        assert!(told.contains(says) && !told.contains("It is found when it is used next"), "{told}");
        let (_, command) = told.split_once("while nobody has noticed: holdfast ").unwrap();
        rig.run(command.split_whitespace()).exits(0);
    }
    a_second_passes();
    work.is_right();
    fs::write(work.mount.join("d/f2"), content(5, PAGES)).unwrap();
    rig.run(["sync", "m"]).exits(0);
    let noticed = ["scribbles", "audit_failures", "restarts"].map(|name| counter(&rig, name));
    assert_eq!(noticed, [0; 3], "all was as it should be");
    // Not put back, it is found: by which file, block and byte.
    inject(&rig, tree);
    a_second_passes();
    fs::write(work.mount.join("d/f2"), content(6, PAGES)).unwrap();
    rig.run(["sync", "m"]).exits(0);
    assert_eq!(counter(&rig, "scribbles"), 1);
    let said = log(&rig);
    let line = said.lines().rfind(|line| line.contains("the block is read again")).expect("a line about it");
    assert!(line.contains("tree block 1 of level 1") && line.contains("from byte"), "{line}");
}

/// Pages of names are metadata as blocks of the store are, whether the device has them or not.
#[test]
fn a_scribble_upon_a_page_of_names_is_told_with_its_bytes() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab("protect=off,epoch=60000");
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/f"), content(1, 1)).unwrap();
    std::os::unix::fs::symlink("where it leads", mount.join("d/l")).unwrap();
    let ways = [("directory", "/d", "entry.key"), ("symlink", "/d/l", "target")];
    for (found, (kind, path, field)) in ways.iter().flat_map(|way| [way, way]).enumerate() {
        let state = if found % 2 == 0 { "dirty" } else { "clean" };
        if state == "clean" {
            rig.run(["sync", "m"]).exits(0);
        } else {
            fs::remove_file(mount.join("d/l")).unwrap();
            std::os::unix::fs::symlink("where it leads", mount.join("d/l")).unwrap();
        }
        let way = format!("--memory={state} --kind {kind} --path {path} --field {field} --pattern word --seed 5");
        let done = inject(&rig, &way);
        let scribble = &done["scribble"];
        let (before, after) = (scribble["before"].as_str().unwrap(), scribble["after"].as_str().unwrap());
        // One of these looks at the page that was struck. The kernel keeps a link that it has read.
        fs::read_dir(mount.join("d")).unwrap().for_each(|entry| drop(entry.unwrap()));
        if (*kind, state) == ("symlink", "clean") {
            assert_eq!(fs::read_link(mount.join("d/l")).unwrap(), Path::new("where it leads"));
        }
        rig.run(["sync", "m"]).exits(0);
        let said = log(&rig);
        let (done, whose) = match state {
            "dirty" => ("the page's twin takes its place", "in its twin"),
            _ => ("the page is read again", "on the device"),
        };
        let line = said.lines().rfind(|line| line.contains(done)).expect("a line about it");
        let has = format!("expected {before}, as {whose}, got {after}");
        assert!(line.contains(" error ") && line.contains("object 1:") && line.contains(", page 0: "), "{line}");
        assert!(line.contains(&has) && line.contains("; last changed legally for epoch "), "{has}: {line}");
        assert!(!said.contains("a page does not match its checksum"), "{said}");
        let status = rig.run(["status", "m"]).exits(0).out;
        let count = if found == 0 { "1 scribble".into() } else { format!("{} scribbles", found + 1) };
        assert!(status.contains(&format!("{count} found IN MEMORY")), "{status}");
        assert!(!status.contains("found corrupt IN MEMORY"), "as contents are: {status}");
    }
}

/// Runs the command that puts back what was there.
fn undo(rig: &Rig, done: &Value) {
    let words = done["undo"].as_str().unwrap().strip_prefix("holdfast ").unwrap();
    let again = rig.run(words.split_whitespace().chain(["--json"])).exits(0).json();
    let bytes = |done: &Value, which: &str| done["struck"][0]["scribble"][which].clone();
    assert_eq!((bytes(&again, "before"), bytes(&again, "after")), (bytes(done, "after"), bytes(done, "before")));
}

#[test]
fn what_cannot_be_struck_is_refused_and_says_why() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "64M");
    rig.directory("m");
    rig.run(["inject", "s", "--memory", "--kind", "counts"]).exits(1).says("not mounted: it has no memory");
    rig.run(["inject", "s", "--kind", "counts"]).exits(2).says("counts is not on the disk");
    rig.run(["inject", "s", "--logic-bug", "free-count"]).exits(1).says("not mounted: it has no memory");
    // Not without --lab, in any way.
    rig.run(["mount", "s", "m"]).exits(0);
    let ways = [
        "--memory --kind label",
        "--memory=dirty --kind record",
        "--logic-bug free-count",
        "--memory --list",
        "--memory --kind label --stray",
    ];
    for way in ways {
        rig.run(["inject", "m"].into_iter().chain(way.split_whitespace())).exits(1).says("and not with --lab");
    }
    assert_eq!(counter(&rig, "restarts"), 0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "--lab", "s", "m", "-o", "ro"]).exits(0);
    for way in ["--memory=dirty --kind record", "--logic-bug free-count"] {
        rig.run(["inject", "m"].into_iter().chain(way.split_whitespace())).exits(1).says("mounted read-only");
    }
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "--lab", "s", "m", "-o", "protect=off,epoch=60000"]).exits(0);
    for (way, code, part) in [
        ("--memory --kind bitmap --offset 4096", 1, "there is no byte 4096: it has 4096, from byte 0 on"),
        ("--memory --kind bitmap --offset 4000 --length 97", 1, "there is no byte 4096"),
        ("--memory --kind label --pattern copy-slot", 1, "label does not consist of slots"),
        ("--memory --kind record --pattern keep-all", 1, "record is no block with two sums of its own"),
        ("--memory --kind bitmap --pattern word --bytes 00", 2, "with --bytes there is only keep-all"),
        ("--memory --kind label --field nonsense", 1, "has a field nonsense; there are: magic,"),
        (
            "--memory --kind block-tree --object 99 --level 3",
            1,
            "nothing of the kind block-tree, object 1:99, level 3 is in memory now",
        ),
        ("--memory --kind dead-run", 1, "nothing of the kind dead-run is in memory now"),
        ("--memory=clean --kind dead-run", 2, "dead-run is never clean"),
        ("--memory=clean --kind audit", 2, "audit is never clean"),
        ("--memory=clean --kind destination", 2, "destination is never clean"),
        ("--memory --kind log-batch", 2, "only while a sync goes into the intent log"),
        ("--memory=dirty --kind log-batch --field nonsense", 1, "no field nonsense; there are: entries, sums, head,"),
        ("--memory=dirty --kind written-ahead", 2, "a mount has nothing of the kind written-ahead"),
        // What is there and has no such field is not waited for.
        ("--memory=dirty --kind counts --field nonsense --wait 3600", 1, "has a field nonsense; there are: next_gen"),
        (
            "--memory=dirty --kind block-tree --wait 0",
            1,
            "nothing of the kind block-tree, changed for it was in memory while a recovery point was made",
        ),
        ("--memory=dirty --kind log-batch --wait 0", 1, "there was not an fsync that goes into the intent log"),
        ("--memory --kind record --path /none", 1, "/none: no \"none\""),
        ("--memory --kind label --path /", 2, "label is not of one file"),
        ("--memory --kind label --bit 5", 2, "--bit is for pages of files, and label is metadata"),
        ("--memory --kind label --checksum", 2, "--checksum is for pages of files"),
        ("--memory --kind label --times 2", 2, "--times is for what a recovery point is struck with"),
        ("--memory --kind label --stray", 1, "its pages of metadata are not locked"),
        ("--logic-bug reference-too-few --wait 0", 1, "there is nothing now to which reference-too-few could happen"),
        ("--kind label", 2, "only in a store that is not mounted"),
    ] {
        rig.run(["inject", "m"].into_iter().chain(way.split_whitespace())).exits(code).says(part);
    }
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_write_that_goes_astray_ends_the_daemon_which_tells_what_it_was_aimed_at() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mut work = Work::new(&rig, &format!("{OPTIONS},protect=pages"));
    // In a window: found later.
    inject(&rig, "--memory=clean --kind block-tree --path /d/f2");
    rig.run(["sync", "m"]).exits(0);
    work.put("synced", content(3, 3));
    File::open(work.mount.join("synced")).unwrap().sync_all().unwrap();
    let daemon = rig.daemon("m");
    let done = inject(&rig, "--memory=clean --kind block-tree --path /d/f2 --level 1 --index 0 --offset 77 --stray");
    await_end(daemon);
    let report: Vec<&str> = done["report"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert!(report[0].starts_with("holdfast: stray write into protected memory"), "{done}");
    assert!(report.iter().any(|line| line.contains("called from")), "{done}");
    let aim = report.last().unwrap();
    assert!(aim.contains("byte 77 of the block of object 1:") && aim.contains("level 1, index 0"), "{aim}");
    assert!(fs::read_to_string(done["log"].as_str().unwrap()).unwrap().contains(aim));
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    work.is_right();
    work.is_stored(&rig);
}

#[test]
fn what_is_not_audited_is_told() {
    if !fuse() {
        return;
    }
    for (audit, says, is_found) in [("store", "NOT AUDITED", true), ("none", "OFF", false)] {
        let rig = Rig::new();
        let mut work = Work::new(&rig, &format!("{OPTIONS},audit={audit}"));
        work.go_on(0);
        let done = inject(&rig, "--logic-bug object-count --seed 0");
        assert_eq!(done["recovery_point"]["audit_failures"], u64::from(is_found), "{done}");
        work.is_right();
        let told = rig.run(["status", "m"]).exits(0).out;
        assert!(told.lines().any(|line| line.contains("audit") && line.contains(says)), "{told}");
        assert_eq!(rig.run(["status", "m", "--json"]).exits(0).json()["daemon"]["audit"], audit);
        rig.run(["unmount", "m"]).exits(0);
        rig.run(["check", "s"]).exits(if is_found { 0 } else { 4 });
    }
    let rig = Rig::new();
    rig.mounted("");
    assert_eq!(rig.run(["status", "m", "--json"]).exits(0).json()["daemon"]["audit"], "all");
    assert!(!rig.run(["status", "m"]).exits(0).out.contains("audit"), "nothing to be told");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m", "-o", "audit=names"]).exits(2).says("neither all nor store nor none");
}
