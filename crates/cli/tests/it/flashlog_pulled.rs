//! A laptop's story with a store of Holdfast's on the set, and a stick that really goes away ([`Stick`]), three times while the set writes to it.

use crate::rig::{Rig, Stick, fuse};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// The contents of a file; longer ones take a while to be written.
fn contents(number: usize) -> Vec<u8> {
    format!("{number} of the laptop's files\n").repeat(1 + number * 1103 % 3000).into_bytes()
}

/// Writes a file that is there for good, with its name, when this returns.
fn write(directory: &Path, number: usize) -> io::Result<()> {
    let mut file = File::create(directory.join(number.to_string()))?;
    file.write_all(&contents(number))?;
    file.sync_all()?;
    File::open(directory)?.sync_all()
}

/// That all of the first files are there, as they were written.
#[track_caller]
pub(crate) fn has_all(directory: &Path, count: usize, when: &str) {
    for number in 0..count {
        let found = fs::read(directory.join(number.to_string()));
        assert!(found.is_ok_and(|found| found == contents(number)), "{when}, file {number} of {count}");
    }
}

/// Writes files from this one on, and tells how many there are after each, until it is told to end or one fails. How many there are then, and what one
/// failed at.
fn work(directory: &Path, first: usize, tell: Sender<usize>, is_over: &AtomicBool) -> (usize, Option<io::Error>) {
    let mut number = first;
    while !is_over.load(Ordering::Relaxed) {
        if let Err(error) = write(directory, number) {
            return (number, Some(error));
        }
        number += 1;
        tell.send(number).expect("somebody listens until the end");
    }
    (number, None)
}

/// Works, and has the stick pulled out so long after the first file. How many files are there for certain.
pub(crate) fn work_and_pull(
    stick: &Stick,
    directory: &Path,
    count: usize,
    after: Duration,
    is_synchronous: bool,
) -> usize {
    let is_over = AtomicBool::new(false);
    let (tell, told) = channel();
    let (now, failed) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(directory, count, tell, &is_over));
        let mut there = told.recv().unwrap_or(count);
        // It is pulled in the middle of whatever is done then.
        let until = Instant::now() + after;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && let Ok(number) = told.recv_timeout(left)
        {
            there = number;
        }
        stick.pull();
        let pulled_at = told.try_iter().last().unwrap_or(there);
        // Work goes on without it, for some more files, or ends.
        while told.recv().is_ok_and(|number| !is_synchronous || number < pulled_at + 5) {}
        is_over.store(true, Ordering::Relaxed);
        worker.join().unwrap()
    });
    match is_synchronous {
        true => assert!(failed.is_none(), "{failed:?}"),
        // What only the stick has must not be gone on without.
        false => assert!(failed.is_some(), "the set takes changes that are nowhere"),
    }
    if is_synchronous {
        has_all(directory, now, "without the stick");
    }
    now
}

/// The computer, and its stick.
struct Laptop<'a> {
    rig: &'a Rig,
    stick: Stick<'a>,
    directory: PathBuf,
}

impl<'a> Laptop<'a> {
    /// Main `disk`, the log on the stick, a backup; mounted.
    fn new(rig: &'a Rig, mode: &str) -> Laptop<'a> {
        let (stick, directory) = (Stick::plug_in(rig), rig.directory("m"));
        let create = ["create", "--main", "disk", "--log", "usb/stick", "--backup", "backup", "--size", "64M"];
        // Room for whatever a fast machine writes until the stick is out: what a full log forgets would be on main alone.
        rig.run([&create[..], &["--log-size", "96M", "--mode", mode]].concat()).exits(0);
        let laptop = Laptop { rig, stick, directory };
        laptop.mount("disk");
        laptop
    }

    fn mount(&self, main: &str) {
        self.rig.run(["mount", main, "m", "-o", "log=usb/stick"]).exits(0);
    }

    /// The power fails.
    fn switch_off(&self) {
        self.rig.kill_daemon("m");
        self.rig.run(["unmount", "m"]);
    }
}

impl Drop for Laptop<'_> {
    fn drop(&mut self) {
        // The set first: it is on the stick.
        self.rig.run(["unmount", "--force", "m"]);
    }
}

fn story(mode: &str) {
    let is_synchronous = mode == "sync";
    let rig = Rig::new();
    let laptop = Laptop::new(&rig, mode);
    (0..10).for_each(|number| write(&laptop.directory, number).unwrap());
    rig.run(["flashlog", "backup", "m", "--to", "backup"]).exits(0);
    let mut count = 10;
    for after_ms in [0, 23, 151] {
        count = work_and_pull(&laptop.stick, &laptop.directory, count, Duration::from_millis(after_ms), is_synchronous);
        if is_synchronous {
            let status = rig.run(["status", "m"]).exits(3).out;
            assert!(status.contains("NOT PROTECTED: main is without a log since 20"), "{status}");
            laptop.stick.put_back();
            rig.run(["flashlog", "attach", "m", "--log", "usb/stick"]).exits(0);
        } else {
            laptop.switch_off();
            // Without the stick main lacks something: nobody works with it unasked.
            rig.run(["mount", "disk", "m"]).exits(1);
            laptop.stick.put_back();
            laptop.mount("disk");
        }
        rig.run(["status", "m"]).exits(0);
        has_all(&laptop.directory, count, "with the stick again");
        write(&laptop.directory, count).unwrap();
        count += 1;
    }
    laptop.switch_off();

    // The disk dies.
    fs::remove_file(rig.path("disk")).unwrap();
    rig.run(["mount", "disk", "m"]).exits(1);
    rig.run(["flashlog", "rebuild", "--backup", "backup", "--log", "usb/stick", "--main", "new disk"]).exits(0);
    laptop.mount("new disk");
    has_all(&laptop.directory, count, "from backup and stick");
    write(&laptop.directory, count).unwrap();
    rig.run(["scrub", "m", "--wait"]).exits(0);
    rig.run(["unmount", "m"]).exits(0);
    let checked = rig.run(["check", "new disk", "--log", "usb/stick", "--json"]).exits(0).json();
    assert_eq!(checked["errors"], 0, "{checked}");
}

#[test]
fn a_stick_that_is_pulled_out_while_it_is_written_to_in_synchronous_mode_costs_nothing() {
    if fuse() {
        story("sync");
    }
}

#[test]
fn a_stick_that_is_pulled_out_while_it_is_written_to_in_asynchronous_mode_costs_nothing_that_was_synced() {
    if fuse() {
        story("async");
    }
}
