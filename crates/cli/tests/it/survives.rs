//! What the interface is for: a C program and an unmodified program under `holdfast run` each survive a flipped bit in a clean page, in a changed
//! page and on the disk, and the example of the Rust crate. Another Rust program: `confined.rs`; of a Python program: `tests/suites/python.sh`.

#[path = "../../../client/examples/ledger.rs"]
#[expect(dead_code, reason = "its main, which is started by hand")]
mod ledger;

use crate::c_library::compiled;
use crate::rig::{PATIENCE, Rig, flip, fuse, is_there, places};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const BLOCK: usize = 4096;
const BLOCKS: usize = 10;
/// Of the blocks, those that go bad: on the disk, clean in memory, and changed.
const OF_DISK: usize = 2;
const OF_CLEAN: usize = 5;
const OF_CHANGED: usize = 3;

/// What the programs write.
fn made(seed: usize) -> Vec<u8> {
    (0..BLOCK * BLOCKS).map(|at| ((at * 31 + at / BLOCK * 7 + seed * 101) % 251) as u8).collect()
}

/// Runs a program; at each of the lines that it says, does something and lets it go on.
fn with(mut command: Command, mut at: impl FnMut(&str)) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (said, waits) = std::sync::mpsc::channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || out.lines().try_for_each(|line| said.send(line.unwrap())));
    let mut is_done = false;
    loop {
        match waits.recv_timeout(PATIENCE) {
            Ok(line) if line == "done" => is_done = true,
            Ok(line) => {
                at(&line);
                stdin.write_all(b"\n").unwrap();
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(error) => {
                child.kill().unwrap();
                panic!("{command:?}: {error}");
            }
        }
    }
    drop(reader);
    ended(child, is_done, &command);
}

fn ended(mut child: Child, is_done: bool, command: &Command) {
    let status = child.wait().unwrap();
    assert!(status.success() && is_done, "{command:?}: {status}");
}

/// `program` gives the command for a step.
fn survives(rig: &Rig, program: impl Fn(&Path, &str) -> Command) {
    let file = rig.lab("cache=16M,epoch=60000").join("f");
    with(program(&file, "memory"), |line| {
        if line == "stored" {
            rig.run(["sync", "m"]).exits(0);
            rig.flip("/f", OF_CLEAN, "clean");
        } else {
            assert_eq!(line, "changed");
            rig.flip("/f", OF_CHANGED, "dirty");
        }
    });
    rig.run(["unmount", "m"]).exits(0);

    let store = rig.path("s");
    // Wherever it is: in the intent log, too, which had it at the fsync.
    let block = &made(2)[OF_DISK * BLOCK..][..BLOCK];
    let stored: Vec<_> = places(&store, block).into_iter().filter(|at| at.is_multiple_of(BLOCK as u64)).collect();
    assert!(!stored.is_empty(), "stored as it is");
    stored.into_iter().for_each(|at| flip(&store, at + 100));
    rig.run(["mount", "s", "m"]).exits(0);
    with(program(&file, "disk"), |line| panic!("{line}"));
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(&file).unwrap() == made(2), "the block was written again");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_c_program_survives_flipped_bits() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let binary = compiled(&rig, "survives.c");
    survives(&rig, |file, step| {
        let mut command = Command::new(&binary);
        command.arg(file).arg(step);
        command
    });
}

#[test]
fn an_unmodified_program_survives_flipped_bits() {
    if !fuse() || !is_there("python3") {
        return;
    }
    let rig = Rig::new();
    let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/py/survives.py");
    survives(&rig, |file, step| {
        let mut command = rig.under(["--stats", "--", "python3"]);
        command.arg(&script).arg(file).arg(step).stderr(fs::File::create(rig.path(step)).unwrap());
        command
    });
    // A plain program gets errors in the same places: these were the library's.
    for step in ["memory", "disk"] {
        let told = fs::read_to_string(rig.path(step)).unwrap();
        let stats: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
        assert!(stats["verified_reads"].as_u64() > Some(0) && stats["bad"].as_u64() > Some(0), "{step}: {told}");
    }
}

#[test]
fn the_example_of_the_rust_crate_leaves_files_elsewhere_as_they_are() {
    let rig = Rig::new();
    let path = rig.path("elsewhere");
    fs::write(&path, b"content").unwrap();
    let error = ledger::Ledger::create(&path, made(2)).err().unwrap();
    assert!(error.to_string().contains("in no Holdfast mount"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"content");
}

#[test]
fn the_example_of_the_rust_crate_survives_flipped_bits() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let path = rig.lab("cache=16M,epoch=60000").join("f");
    let store = rig.path("s");
    // The last block is not whole.
    let entries = made(2)[..BLOCK * BLOCKS - 100].to_vec();
    let ledger = ledger::Ledger::create(&path, entries.clone()).unwrap();
    rig.flip("/f", OF_CHANGED, "dirty");
    rig.flip("/f", BLOCKS - 1, "dirty");
    assert!(fs::read(&path).is_err(), "without the example's care");
    ledger.sync().unwrap();
    rig.run(["sync", "m"]).exits(0);
    rig.flip("/f", OF_CLEAN, "clean");
    assert!(ledger.read().unwrap() == entries);
    drop(ledger);
    rig.run(["unmount", "m"]).exits(0);

    let block = &entries[OF_DISK * BLOCK..][..BLOCK];
    let stored: Vec<_> = places(&store, block).into_iter().filter(|at| at.is_multiple_of(BLOCK as u64)).collect();
    assert!(!stored.is_empty(), "stored as it is");
    stored.into_iter().for_each(|at| flip(&store, at + 100));
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(&path).is_err(), "bad on the disk");
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let ledger = ledger::Ledger::open(file, entries.clone()).unwrap();
    assert!(ledger.read().unwrap() == entries);
    drop(ledger);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(&path).unwrap() == entries, "the blocks were written again");
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}
