//! A store that is full again and again: it is filled until nothing goes in any more, files are deleted, it is filled again, and
//! the power fails at random moments. Each time everything has been deleted, the free space is what it was.
//!
//! What must hold, and ends the run where it does not:
//! - only a lack of space refuses anything, and never a removal, be it by a rename over the name, whatever snapshots keep of what is to be
//!   removed, a cut to nothing, or the deletion of a snapshot;
//! - a file has the bytes that were written to it, as far as it goes (a power cut may have cut it short);
//! - after a power cut and after closing, the check of the store finds nothing (but torn superblocks after the former);
//! - with nothing left, free blocks are as many as in the beginning, but for [`TALLER_BLOCKS`].
//!
//! - a snapshot has the bytes that its files had, also in a full store and after a power cut;
//! - the check of a recovery point that is kept while others are made finds nothing, or has had to give way.
//!
//! Everything follows from the seed. A new kind of thing that takes space is a step in [`Torture::fill`], and must be taken
//! away in [`Torture::empty`].

use crate::device::{CrashMode, Recorder};
use crate::stack::{self, Stack, StackOptions};
use holdfast_block::{Device, MemoryDevice};
use holdfast_naming::{Atime, Error, ErrorKind, Namespace, NewNode, RenameMode, Request, SpaceMode, XattrMode};
use holdfast_object::{Durability, Kind, ObjectCache, ObjectId, Snapshots};
use holdfast_physical::check::{CheckOptions, Finding, FindingKind, Report as CheckReport, check};
use holdfast_physical::{DeletionSlice, Frozen};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Snapshots at a time.
const SNAPSHOTS: usize = 3;
/// Refusals in a row after which a store counts as full.
const FULL_AFTER: u32 = 12;
/// Trees that have grown do not get lower again: the root directory's and those of the store's four maps may keep a block per
/// level, twice. It is a bound for ever, not for each round, so a leak gets beyond it soon.
const TALLER_BLOCKS: u64 = 5 * 2 * 2;
/// Nanoseconds after which an epoch is due.
const EPOCH_NS: u64 = 5_000_000_000;

/// How to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Decides everything.
    pub seed: u64,
    /// Size of the store in blocks of 4 KiB, 512 and more.
    pub blocks: u64,
    /// Page frames.
    pub frames: u32,
    /// How often the store is filled and emptied.
    pub rounds: u32,
    /// Ends earlier, at the end of a round.
    pub time: Option<Duration>,
}

impl Options {
    /// Each second store discards what it frees: the recorder takes that for zeros.
    fn stack(&self) -> StackOptions {
        let mut options = StackOptions::new(self.frames);
        options.physical.discard = self.seed.is_multiple_of(2);
        // Most deletions of snapshots take several steps.
        options.physical.deletion_slice = DeletionSlice { runs: 64, blocks: 512 };
        options
    }
}

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Rounds of filling and emptying.
    pub rounds: u32,
    /// Changes that were taken.
    pub changes: u64,
    /// Changes refused for want of space.
    pub refused: u64,
    /// Power cuts.
    pub crashes: u32,
    /// Files whose bytes were compared.
    pub files_read: u64,
    /// Recovery points that were kept, and checked.
    pub kept: u32,
    /// Those that were not kept to the end, as there was room only with what they had.
    pub given_up: u32,
}

/// A run that found something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The run.
    pub options: Options,
    /// Round, from 0.
    pub round: u32,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { seed, blocks, frames, .. } = self.options;
        let rounds = self.round + 1;
        write!(
            f,
            "round {}: {}\nreplay: cargo run --release -p holdfast-lab --bin space-torture -- --seed {seed} --blocks {blocks} \
             --frames {frames} --rounds {rounds}",
            self.round, self.what
        )
    }
}

/// One in four files has holes; the others must have every byte.
fn may_have_holes(number: u64) -> bool {
    number.is_multiple_of(4)
}

/// The bytes of file `number` from `offset` on: each word of 8 bytes is mixed from the file and its place.
fn contents(number: u64, offset: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| (number << 40 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) | 1;
    (offset..offset + length as u64).map(|at| word(at / 8).to_le_bytes()[(at % 8) as usize]).collect()
}

/// A snapshot's name, and files as they were: number, object in the snapshot, size.
type Snapshot = (String, Vec<(u64, ObjectId, u64)>);

struct Torture {
    options: Options,
    rng: Pcg64Mcg,
    device: Arc<Recorder>,
    stack: Stack,
    names: Arc<Namespace>,
    /// Number of the next file.
    next: u64,
    /// Directories that are there.
    directories: Vec<ObjectId>,
    /// Regular files that are there: number, object, directory.
    files: Vec<(u64, ObjectId, ObjectId)>,
    /// Snapshots that are there, oldest first.
    snapshots: Vec<Snapshot>,
    /// A recovery point that is kept.
    frozen: Option<Arc<Frozen>>,
    report: Report,
}

type Step<T> = Result<T, String>;

/// Runs.
///
/// # Errors
/// The first thing that does not hold.
pub fn run(options: Options) -> Result<Report, Box<Failure>> {
    let fail = |round: u32, what: String| Box::new(Failure { options, round, what });
    let start = Instant::now();
    let mut torture = Torture::new(options).map_err(|what| fail(0, what))?;
    let free_at_first = torture.free_when_empty().map_err(|what| fail(0, what))?;
    for round in 0..options.rounds {
        torture.round(free_at_first).map_err(|what| fail(round, what))?;
        if options.time.is_some_and(|time| start.elapsed() >= time) {
            break;
        }
    }
    Ok(torture.report)
}

fn says(error: impl fmt::Display) -> String {
    error.to_string()
}

impl Torture {
    fn new(options: Options) -> Step<Torture> {
        let device = Arc::new(MemoryDevice::new(options.blocks));
        let clock = stack::clock();
        stack::create(device.clone(), &clock).map_err(says)?;
        let device = Arc::new(Recorder::in_memory(&device));
        let stack = Stack::open(device.clone(), &options.stack(), &clock).map_err(says)?;
        let names = stack.namespace(Atime::Relative);
        let rng = Pcg64Mcg::seed_from_u64(options.seed);
        let (directories, files, snapshots) = (vec![ObjectId::ROOT], Vec::new(), Vec::new());
        let report = Report::default();
        Ok(Torture { options, rng, device, stack, names, next: 0, directories, files, snapshots, frozen: None, report })
    }

    fn round(&mut self, free_at_first: u64) -> Step<()> {
        let fills = self.rng.random_range(1..5);
        for _ in 0..fills {
            self.fill()?;
            if self.rng.random_bool(0.5) {
                self.crash()?;
            }
            let share = self.rng.random_range(0.1..1.0);
            self.thin(share)?;
            if self.rng.random_bool(0.5) {
                self.crash()?;
            }
        }
        self.empty()?;
        let free = self.free_when_empty()?;
        if !(free_at_first.saturating_sub(TALLER_BLOCKS)..=free_at_first).contains(&free) {
            return Err(format!("{free} blocks are free with nothing left, {free_at_first} were in the beginning"));
        }
        self.reopen()?;
        self.report.rounds += 1;
        Ok(())
    }

    /// Counts a change; `None` if there was no room for it.
    fn taken<T>(&mut self, outcome: Result<T, Error>) -> Step<Option<T>> {
        match outcome {
            Ok(done) => {
                self.report.changes += 1;
                Ok(Some(done))
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.report.refused += 1;
                Ok(None)
            }
            Err(error) => Err(format!("refused for something else than space: {error}")),
        }
    }

    /// Puts things in until nothing goes in any more.
    fn fill(&mut self) -> Step<()> {
        let mut refused = 0;
        while refused < FULL_AFTER {
            let done = match self.rng.random_range(0..100) {
                0..45 => self.write()?,
                45..70 => self.create()?,
                70..76 => self.directory()?,
                76..82 => self.link()?,
                82..88 => self.attribute()?,
                88..92 => self.punch_or_cut()?,
                92..95 => self.sync()?,
                95 => self.snapshot()?,
                _ => {
                    self.tick()?;
                    true
                }
            };
            refused = if done { 0 } else { refused + 1 };
            self.keep()?;
            if self.rng.random_ratio(1, 400) {
                self.crash()?;
            }
        }
        Ok(())
    }

    /// Has a recovery point kept, or checks the one that is.
    fn keep(&mut self) -> Step<()> {
        let Some(frozen) = self.frozen.as_ref() else {
            if self.rng.random_ratio(1, 40) {
                self.frozen = Some(Arc::new(self.stack.module.freeze().map_err(says)?));
            }
            return Ok(());
        };
        if !self.rng.random_ratio(1, 60) {
            return Ok(());
        }
        let outcome = check(frozen.clone(), &CheckOptions { ends: true, ..CheckOptions::default() });
        if frozen.over().is_some() {
            self.report.given_up += 1;
        } else {
            self.report.kept += 1;
            expect_sound("of a recovery point that is kept", false, outcome)?;
        }
        self.frozen = None;
        Ok(())
    }

    fn some_directory(&mut self) -> ObjectId {
        self.directories[self.rng.random_range(0..self.directories.len())]
    }

    fn some_file(&mut self) -> Option<(u64, ObjectId, ObjectId)> {
        let at = self.rng.random_range(0..self.files.len().max(1));
        self.files.get(at).copied()
    }

    fn create(&mut self) -> Step<bool> {
        let (directory, number) = (self.some_directory(), self.next);
        let made = self.names.mknod(&Request::ROOT, directory, name('f', number).as_bytes(), NewNode::Regular, 0o600);
        let Some(found) = self.taken(made)? else { return Ok(false) };
        self.next += 1;
        self.names.forget(found.id, 1).map_err(says)?;
        self.files.push((number, found.id, directory));
        Ok(true)
    }

    /// Appends, or writes over what is there.
    fn write(&mut self) -> Step<bool> {
        let Some((number, id, _)) = self.some_file() else { return self.create() };
        let size = self.names.getattr(id).map_err(says)?.size;
        let most: usize = [300, 5_000, 70_000, 400_000][self.rng.random_range(0..4)];
        let length = self.rng.random_range(1..most);
        let offset = if self.rng.random_bool(0.7) { size } else { self.rng.random_range(0..=size) };
        let bytes = contents(number, offset, length);
        let written = self.names.write(&Request::ROOT, id, offset, &bytes, false);
        Ok(self.taken(written)?.is_some())
    }

    fn directory(&mut self) -> Step<bool> {
        let parent = self.some_directory();
        let made = self.names.mkdir(&Request::ROOT, parent, name('d', self.next).as_bytes(), 0o700);
        let Some(found) = self.taken(made)? else { return Ok(false) };
        self.next += 1;
        self.names.forget(found.id, 1).map_err(says)?;
        self.directories.push(found.id);
        Ok(true)
    }

    fn link(&mut self) -> Step<bool> {
        let Some((_, id, _)) = self.some_file() else { return self.create() };
        let directory = self.some_directory();
        let made = self.names.link(&Request::ROOT, id, directory, name('l', self.next).as_bytes());
        let Some(found) = self.taken(made)? else { return Ok(false) };
        self.next += 1;
        self.names.forget(found.id, 1).map_err(says)?;
        Ok(true)
    }

    fn attribute(&mut self) -> Step<bool> {
        let Some((number, id, _)) = self.some_file() else { return self.create() };
        let length = self.rng.random_range(0..9_000);
        let value = contents(number, 0, length);
        let set = self.names.setxattr(&Request::ROOT, id, b"user.torture", &value, XattrMode::Set);
        Ok(self.taken(set)?.is_some())
    }

    fn punch_or_cut(&mut self) -> Step<bool> {
        let Some((number, id, _)) = self.some_file() else { return self.create() };
        let size = self.names.getattr(id).map_err(says)?.size;
        if size == 0 {
            return self.create();
        }
        let offset = self.rng.random_range(0..size);
        let done = if may_have_holes(number) {
            let length = self.rng.random_range(1..=size);
            self.names.allocate(&Request::ROOT, id, offset, length, SpaceMode::Punch, false)
        } else {
            let set = holdfast_naming::SetAttr { size: Some(offset), ..holdfast_naming::SetAttr::default() };
            self.names.setattr(&Request::ROOT, id, &set).map(drop)
        };
        Ok(self.taken(done)?.is_some())
    }

    fn sync(&mut self) -> Step<bool> {
        let Some((_, id, _)) = self.some_file() else { return self.create() };
        let synced = self.names.sync(id, Durability::All);
        Ok(self.taken(synced)?.is_some())
    }

    /// Makes a snapshot, or deletes one if there are some.
    fn snapshot(&mut self) -> Step<bool> {
        if self.snapshots.len() == SNAPSHOTS {
            return self.delete_snapshot().map(|()| true);
        }
        let name = name('s', self.next);
        self.next += 1;
        let made = match self.stack.cache.snapshot_create(&name) {
            Ok(info) => Ok(info),
            Err(error) => Err(Error::Object(error)),
        };
        let Some(info) = self.taken(made)? else { return Ok(false) };
        let mut files = Vec::with_capacity(self.files.len());
        for &(number, id, _) in &self.files {
            files.push((number, id.in_snapshot(info.id), self.names.getattr(id).map_err(says)?.size));
        }
        self.snapshots.push((name, files));
        Ok(true)
    }

    /// Compares a snapshot with what it must have, and deletes it.
    fn delete_snapshot(&mut self) -> Step<()> {
        let at = self.rng.random_range(0..self.snapshots.len());
        let (name, files) = self.snapshots.remove(at);
        for (number, id, size) in files {
            let got =
                self.names.getattr(id).map_err(|error| format!("file {number} of snapshot {name}: {error}"))?.size;
            if got != size {
                return Err(format!("file {number} of snapshot {name} has {got} bytes instead of {size}"));
            }
            self.compare(number, id)?;
        }
        let deleted = self.stack.cache.snapshot_delete(&name);
        deleted.map(drop).map_err(|error| format!("snapshot {name}, the {at}th, cannot be deleted: {error}"))
    }

    fn tick(&mut self) -> Step<()> {
        self.stack.clock.advance_ns(EPOCH_NS);
        self.stack.cache.tick().map_err(says)?;
        self.stack.cache.check();
        Ok(())
    }

    /// Compares and removes about this share of the files.
    fn thin(&mut self, share: f64) -> Step<()> {
        let mut kept = Vec::new();
        for file in std::mem::take(&mut self.files) {
            if !self.rng.random_bool(share) {
                kept.push(file);
                continue;
            }
            self.compare(file.0, file.1)?;
            self.keep()?;
            if self.rng.random_ratio(1, 8) && self.rename_over_link(file)? {
                continue;
            }
            let removed = self.remove(Kind::Regular, file.2, name('f', file.0).as_bytes());
            removed.map_err(|error| format!("file {} cannot be removed: {error}; {}", file.0, self.room()))?;
            if self.rng.random_ratio(1, 40) {
                self.tick()?;
            }
        }
        self.files = kept;
        // What other names lead to is still in the list of the directory's entries.
        self.list()
    }

    /// Gives a file the name of another one's link in its directory, if there is one.
    fn rename_over_link(&mut self, (number, id, directory): (u64, ObjectId, ObjectId)) -> Step<bool> {
        let entries = self.names.entries(&Request::ROOT, directory).map_err(says)?;
        let Some((link, ..)) = entries.into_iter().find(|(name, of, _)| name.starts_with(b"l") && *of != id) else {
            return Ok(false);
        };
        let old = name('f', number);
        let renamed =
            self.names.rename(&Request::ROOT, directory, old.as_bytes(), directory, &link, RenameMode::Replace);
        renamed.map_err(|error| format!("file {number} cannot be renamed over a name: {error}; {}", self.room()))?;
        Ok(true)
    }

    /// Removes a name; of some files the contents first.
    fn remove(&mut self, kind: Kind, directory: ObjectId, name: &[u8]) -> Result<(), Error> {
        if kind == Kind::Directory {
            return self.names.rmdir(&Request::ROOT, directory, name);
        }
        if self.rng.random_ratio(1, 8) {
            let found = self.names.lookup(&Request::ROOT, directory, name)?;
            let nothing = holdfast_naming::SetAttr { size: Some(0), ..holdfast_naming::SetAttr::default() };
            let cut = self.names.setattr(&Request::ROOT, found.id, &nothing);
            self.names.forget(found.id, 1)?;
            cut?;
        }
        self.names.unlink(&Request::ROOT, directory, name)
    }

    fn room(&self) -> String {
        format!("{} snapshots, {:?}", self.snapshots.len(), self.stack.cache.space())
    }

    fn compare(&mut self, number: u64, id: ObjectId) -> Step<()> {
        let size = self.names.getattr(id).map_err(says)?.size;
        let mut offset = 0;
        while offset < size {
            let read = self.names.read(id, offset, 65_536).map_err(|error| format!("file {number}: {error}"))?.to_vec();
            let expected = contents(number, offset, read.len());
            if read.is_empty() {
                return Err(format!("file {number} ends at {offset}, its size is {size}"));
            }
            let holes = may_have_holes(number);
            let wrong = read.iter().zip(&expected).position(|(got, wanted)| got != wanted && !(holes && *got == 0));
            if let Some(at) = wrong {
                let at = offset + at as u64;
                return Err(format!("file {number} of {size} bytes has other bytes at {at}"));
            }
            offset += read.len() as u64;
        }
        self.report.files_read += 1;
        Ok(())
    }

    /// Takes the lists of directories and files from the store, with every file under the name of its number only.
    fn list(&mut self) -> Step<()> {
        (self.directories, self.files) = (vec![ObjectId::ROOT], Vec::new());
        let mut at = 0;
        while let Some(&directory) = self.directories.get(at) {
            at += 1;
            for (name, id, kind) in self.names.entries(&Request::ROOT, directory).map_err(says)? {
                let text = String::from_utf8_lossy(&name).into_owned();
                let number = text[1..].parse().map_err(|_| format!("there is a name {text:?}"))?;
                match (kind, &text[..1]) {
                    (Kind::Directory, "d") => self.directories.push(id),
                    (Kind::Regular, "f") => self.files.push((number, id, directory)),
                    (Kind::Regular, "l") => {}
                    _ => return Err(format!("{text:?} is a {kind:?}")),
                }
            }
        }
        Ok(())
    }

    /// Removes everything, deepest first.
    fn empty(&mut self) -> Step<()> {
        self.list()?;
        for (number, id, _) in self.files.clone() {
            self.compare(number, id)?;
        }
        for directory in self.directories.clone().into_iter().rev() {
            for (name, _, kind) in self.names.entries(&Request::ROOT, directory).map_err(says)? {
                let removed = self.remove(kind, directory, &name);
                let says =
                    |error| format!("{} cannot be removed: {error}; {}", String::from_utf8_lossy(&name), self.room());
                removed.map_err(says)?;
            }
        }
        self.list()?;
        while !self.snapshots.is_empty() {
            self.delete_snapshot()?;
        }
        self.stack.free_deleted().map_err(says)?;
        if self.directories.len() + self.files.len() != 1 {
            return Err("not everything could be removed".into());
        }
        Ok(())
    }

    /// Free blocks of the empty store, in a recovery point of their own.
    fn free_when_empty(&mut self) -> Step<u64> {
        // The root directory keeps its first page once it has had an entry.
        self.create()?;
        let Some((number, _, directory)) = self.files.pop() else { return Err("an empty store has no room".into()) };
        self.names.unlink(&Request::ROOT, directory, name('f', number).as_bytes()).map_err(says)?;
        self.frozen = None;
        // The first makes the recovery point; after the second what it freed can be used.
        for _ in 0..2 {
            self.tick()?;
            self.names.sync_all().map_err(says)?;
        }
        let space = self.stack.cache.space();
        Ok(space.free + space.pending)
    }

    /// Closes the store in order, checks it and opens it again.
    fn reopen(&mut self) -> Step<()> {
        self.frozen = None;
        self.stack.close().map_err(says)?;
        self.check_store("after closing", false)?;
        self.open()
    }

    /// The power fails: of what the device was told last, some is there and some is not.
    fn crash(&mut self) -> Step<()> {
        self.frozen = None;
        let images = self.device.crash_images();
        let end = *images.positions().end();
        let back = self.rng.random_range(0..=end.min(40));
        let mode = CrashMode::ALL[self.rng.random_range(0..CrashMode::ALL.len())];
        let image = images.image(end - back, mode, &mut self.rng);
        self.device = Arc::new(Recorder::in_memory(&image));
        self.report.crashes += 1;
        self.check_store("after a power cut", true)?;
        self.open()
    }

    fn open(&mut self) -> Step<()> {
        // A new recorder, so that the old log is forgotten.
        let options = self.options.stack();
        self.stack =
            Stack::open(self.device.clone(), &options, &self.stack.clock).map_err(|error| format!("open: {error}"))?;
        self.names = self.stack.namespace(Atime::Relative);
        self.names.reclaim_orphans().map_err(|error| format!("orphans: {error}"))?;
        // The power may have failed before the last one was made or deleted.
        let there = self.stack.cache.snapshots().map_err(says)?;
        self.snapshots.retain(|(name, _)| there.iter().any(|info| info.name == *name));
        for info in there {
            if !self.snapshots.iter().any(|(name, _)| *name == info.name) {
                self.snapshots.push((info.name, Vec::new()));
            }
        }
        self.snapshots.sort_by_key(|(name, _)| name[1..].parse::<u64>().unwrap_or(0));
        self.list()
    }

    /// `torn`: the power failed, so superblocks may be torn or not be in all labels yet. Opening sees to these.
    fn check_store(&self, when: &str, torn: bool) -> Step<()> {
        let device: Arc<dyn Device> = self.device.clone();
        expect_sound(when, torn, check(device, &CheckOptions { ends: true, ..CheckOptions::default() }))
    }
}

fn expect_sound(when: &str, torn: bool, checked: holdfast_object::Result<CheckReport>) -> Step<()> {
    let report = checked.map_err(|error| format!("check {when}: {error}"))?;
    let is_wrong = |finding: &&Finding| !(torn && finding.kind == FindingKind::Superblock);
    let findings: Vec<String> = report.findings.iter().filter(is_wrong).take(8).map(ToString::to_string).collect();
    if findings.is_empty() && !report.incomplete {
        return Ok(());
    }
    Err(format!("{when} the check finds {} things wrong:\n  {}", report.found, findings.join("\n  ")))
}

fn name(kind: char, number: u64) -> String {
    format!("{kind}{number}")
}
