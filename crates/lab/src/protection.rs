//! What each protection mode makes of flipped bits: the paper's table III (Z²FS, section IV-B), for all modes.
//!
//! A page of a file is hit at one of the moments of its life: written and not stored yet (t0–t1), stored then by a recovery point or by an
//! fsync's batch in the intent log, on the device (t1–t2), or in memory again (t2–t3), there also after it has been in memory for longer than t_switch. Then it is read as an application would, and once
//! more from a stack that is opened anew; where reading is an error, once more after the application has written the page again. A page of a
//! directory is hit as well: of that the device has two copies, of which one is hit, and the memory has a twin until it is stored. What the stack
//! did about it is known by its counters, and that a bad copy was repaired by the device, which has the right bytes there again.

use crate::document::Place;
use crate::maker::Maker;
use crate::model::{Action, Data, Node};
use crate::stack::{self, Stack, StackOptions};
use holdfast_block::{Device, MemoryDevice};
use holdfast_integrity::{Algorithm, Protection};
use holdfast_naming::{Atime, Request};
use holdfast_object::{Durability, ObjectCache, ObjectId, PAGE_SIZE};
use holdfast_physical::check::{BlockRole, block_uses};
use std::fmt::Write;
use std::io::IoSliceMut;
use std::sync::Arc;

/// 8 MiB.
const DEVICE_BLOCKS: u64 = 2048;
const PAGES: usize = 4;
/// The page that is hit.
const PAGE: u64 = 1;
/// The modes of the table.
const MODES: [Protection; 14] = [
    Protection::None,
    Protection::Disk,
    Protection::EndToEnd(Algorithm::Xor64),
    Protection::EndToEnd(Algorithm::Fletcher256),
    Protection::EndToEnd(Algorithm::Crc64Nvme),
    Protection::EndToEnd(Algorithm::Crc32c),
    Protection::EndToEnd(Algorithm::Xxh3),
    Protection::EndToEnd(Algorithm::Blake3),
    Protection::Static { strong: false },
    Protection::Static { strong: true },
    Protection::Dynamic { t_switch_s: 92 },
    Protection::Dynamic { t_switch_s: 0 },
    Protection::Uniform,
    Protection::UniformBlake3,
];

/// Modes in which a page of a directory is hit: it is under CRC-64 in all.
const MODES_OF_DIRECTORIES: [Protection; 4] = [
    Protection::None,
    Protection::Static { strong: false },
    Protection::Dynamic { t_switch_s: 92 },
    Protection::Uniform,
];

/// Whose page is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A file's: one copy on the device.
    File,
    /// A directory's: two.
    Directory,
}

/// When bits flip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// t0–t1: written, in memory only; a recovery point is made then.
    Dirty,
    /// t0–t1 as well; an fsync is made then, which goes to the intent log, and then the power fails.
    Logged,
    /// t0–t1 as well, after an fsync that has put it into the intent log; a recovery point is made then.
    Synced,
    /// t1–t2: on the device.
    Stored,
    /// t2–t3: in memory, as on the device.
    Clean,
    /// The same, 200 s after it was read.
    CleanForLong,
}

impl Moment {
    /// In the order of a page's life.
    pub const ALL: [Moment; 6] =
        [Moment::Dirty, Moment::Logged, Moment::Synced, Moment::Stored, Moment::Clean, Moment::CleanForLong];
}

/// Which bits flip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flips {
    /// One.
    One,
    /// The same bit of two words: xor does not see it.
    Pair,
}

/// What a reader got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    /// What was written last.
    Good,
    /// What was written before that.
    Old,
    /// An error.
    Error,
    /// Other bytes, without a word.
    Wrong,
}

impl Got {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Got::Good => "good",
            Got::Old => "old",
            Got::Error => "EIO",
            Got::Wrong => "**wrong**",
        }
    }
}

/// What the stack did about flipped bits, until they had been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// It did not notice them.
    None,
    /// Found in memory, and read again from below.
    ReadAgain,
    /// Found in memory, where a twin took the page's place.
    Renewed,
    /// Found in memory before the page was stored, which it was not.
    Refused,
    /// Found on the device, where a good copy was written over them.
    Repaired,
    /// Found on the device, which has no good copy.
    Found,
}

impl Act {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Act::None => "unnoticed",
            Act::ReadAgain => "read again",
            Act::Renewed => "twin taken",
            Act::Refused => "not stored",
            Act::Repaired => "repaired",
            Act::Found => "found",
        }
    }
}

/// What came of one trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The store's mode.
    pub mode: Protection,
    /// Whose page it was.
    pub owner: Owner,
    /// Which bits flipped.
    pub flips: Flips,
    /// When.
    pub moment: Moment,
    /// What the stack did about it.
    pub act: Act,
    /// What an application that reads gets.
    pub read: Got,
    /// What it gets when the store has been closed, or has lost power, and was opened again.
    pub reopened: Got,
    /// Whether an fsync told of it.
    pub is_told: bool,
    /// If reading was an error: what is read when the application has written the page again, with an fsync that succeeded, and the store has been closed and opened.
    pub again: Option<Got>,
}

/// All trials.
///
/// # Errors
/// In words, if something that has nothing to do with the flips fails.
pub fn run() -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    let files = MODES.into_iter().map(|mode| (mode, Owner::File));
    let directories = MODES_OF_DIRECTORIES.into_iter().map(|mode| (mode, Owner::Directory));
    for (mode, owner) in files.chain(directories) {
        for flips in [Flips::One, Flips::Pair] {
            for moment in Moment::ALL {
                let mut cell = trial(mode, owner, flips, moment, false)?;
                if cell.read == Got::Error && owner == Owner::File {
                    cell.again = Some(trial(mode, owner, flips, moment, true)?.reopened);
                }
                cells.push(cell);
            }
        }
    }
    Ok(cells)
}

struct Trial {
    maker: Maker,
    owner: Owner,
    object: ObjectId,
}

fn says(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn bytes(seed: u64) -> Vec<u8> {
    Data { seed, length: PAGES * PAGE_SIZE }.bytes()
}

fn trial(mode: Protection, owner: Owner, flips: Flips, moment: Moment, writes_again: bool) -> Result<Cell, String> {
    let device = Arc::new(MemoryDevice::new(DEVICE_BLOCKS));
    let clock = stack::clock();
    let options = StackOptions::new(256);
    stack::create_with(device.clone(), &clock, mode).map_err(says)?;
    let stack = Stack::open(device.clone(), &options, &clock).map_err(says)?;
    let mut maker = Maker::new(stack);
    let node = match owner {
        Owner::File => maker.file(Node::ROOT, "file", PAGES)?,
        Owner::Directory => {
            let made = Node(maker.model.created());
            maker.act(Action::Mkdir { parent: Node::ROOT, name: b"directory".to_vec(), mode: 0o755 })?;
            made
        }
    };
    let object = maker.driver.object(node).ok_or("there is no object")?;
    let mut trial = Trial { maker, owner, object };
    trial.change(node, 1)?;
    trial.maker.stack.cache.sync_all().map_err(says)?;
    trial.change(node, 2)?;
    if moment == Moment::Synced {
        trial.maker.stack.cache.sync(trial.object, Durability::All).map_err(says)?;
    }
    if matches!(moment, Moment::Dirty | Moment::Logged | Moment::Synced) {
        trial.flip(flips)?;
    }
    if moment != Moment::Logged {
        trial.maker.stack.cache.sync_all().map_err(says)?;
    }
    let told = |trial: &Trial| trial.maker.stack.cache.sync(trial.object, Durability::All).is_err();
    let mut is_told = told(&trial);
    let mut hit = None;
    match moment {
        Moment::Dirty | Moment::Logged | Moment::Synced => {}
        Moment::Stored => {
            trial.maker.stack.close().map_err(says)?;
            let uses = block_uses(device.clone()).map_err(says)?;
            let mine = uses.iter().find(|used| {
                let object = used.object.map(|key| key.object);
                let is_page = matches!(used.role, BlockRole::Data | BlockRole::MetadataPage);
                is_page && object == Some(trial.object) && (used.level, used.index) == (0, trial.page())
            });
            let block = mine.ok_or("the page has no block")?.block;
            hit = Some((block, stored(&device, block)?));
            let strike = |bytes: &mut [u8; PAGE_SIZE]| {
                bits(flips).iter().for_each(|bit| bytes[*bit as usize / 8] ^= 1 << (bit % 8))
            };
            device.alter(block, strike).map_err(says)?;
            trial.maker.stack = Stack::open(device.clone(), &options, &clock).map_err(says)?;
        }
        Moment::Clean | Moment::CleanForLong => {
            if moment == Moment::CleanForLong {
                clock.advance_ns(200_000_000_000);
            }
            trial.flip(flips)?;
        }
    }
    let read = trial.got();
    is_told |= told(&trial);
    let is_mended = hit.map(|(block, before)| Ok::<_, String>(stored(&device, block)? == before)).transpose()?;
    let act = trial.act(is_mended == Some(true))?;
    if writes_again && read == Got::Error {
        trial.write_again()?;
    }
    if moment != Moment::Logged {
        trial.maker.stack.close().map_err(says)?;
    }
    trial.maker.stack = Stack::open(device, &options, &clock).map_err(says)?;
    let reopened = trial.got();
    Ok(Cell { mode, owner, flips, moment, act, read, reopened, is_told, again: None })
}

/// What the device has there.
fn stored(device: &MemoryDevice, block: u64) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; PAGE_SIZE];
    device.read(block, &mut [IoSliceMut::new(&mut bytes)]).map_err(says)?;
    Ok(bytes)
}

/// The bits of a page that flip.
fn bits(flips: Flips) -> &'static [u32] {
    const FIRST: u32 = 1000 * 8 + 4;
    match flips {
        Flips::One => &[FIRST],
        Flips::Pair => &[FIRST, FIRST + 64 * 8],
    }
}

impl Trial {
    fn flip(&self, flips: Flips) -> Result<(), String> {
        self.maker.stack.flip(self.object, self.page(), bits(flips)).map_err(says)
    }

    /// By the counters of the stack, in which nothing else has gone bad. `is_mended`: the device was hit, and has again what it had before.
    fn act(&self, is_mended: bool) -> Result<Act, String> {
        let cache = &self.maker.stack.cache;
        let (memory, store) = (cache.status(), cache.store_status());
        match (memory.pages_reread, memory.pages_renewed, memory.pages_lost, store.repaired, store.unrepaired) {
            (0, 0, 0, 0, 0) if !is_mended => Ok(Act::None),
            (1.., 0, 0, 0, 0) if !is_mended => Ok(Act::ReadAgain),
            (0, 1.., 0, 0, 0) if !is_mended => Ok(Act::Renewed),
            (0, 0, 1.., 0, 0) if !is_mended => Ok(Act::Refused),
            (0, 0, 0, 1.., 0) if is_mended => Ok(Act::Repaired),
            (0, 0, 0, 0, 1..) if !is_mended => Ok(Act::Found),
            counted => {
                Err(format!("the counters {counted:?} and the device (mended: {is_mended}) do not fit together"))
            }
        }
    }

    /// The page that is hit.
    fn page(&self) -> u64 {
        match self.owner {
            Owner::File => PAGE,
            Owner::Directory => 0,
        }
    }

    /// Writes the file, or makes a file in the directory, for the first or the second time.
    fn change(&mut self, node: Node, time: u64) -> Result<(), String> {
        match self.owner {
            Owner::File => self.maker.write(node, 0, time, PAGES * PAGE_SIZE),
            Owner::Directory => self.maker.file(node, &time.to_string(), 1).map(drop),
        }
    }

    /// As an application does that was told of an error: the page once more, and an fsync.
    fn write_again(&self) -> Result<(), String> {
        let stack = &self.maker.stack;
        let (namespace, at) = (stack.namespace(Atime::Never), PAGE as usize * PAGE_SIZE);
        let page = &bytes(2)[at..at + PAGE_SIZE];
        namespace.write(&Request::ROOT, self.object, at as u64, page, false).map_err(says)?;
        stack.cache.sync(self.object, Durability::All).map_err(says)
    }

    /// What is in the directory: both files, or only the first.
    fn listed(&self) -> Got {
        let namespace = self.maker.stack.namespace(Atime::Never);
        let entries = match namespace.entries(&Request::ROOT, self.object) {
            Ok(entries) => entries,
            Err(error) => return of_error(&error),
        };
        let mut names: Vec<_> = entries.into_iter().map(|(name, ..)| name).collect();
        names.sort();
        match &names[..] {
            [first, second] if (&first[..], &second[..]) == (b"1", b"2") => Got::Good,
            [only] if only == b"1" => Got::Old,
            _ => Got::Wrong,
        }
    }

    fn got(&self) -> Got {
        if self.owner == Owner::Directory {
            return self.listed();
        }
        let namespace = self.maker.stack.namespace(Atime::Never);
        match namespace.read(self.object, 0, PAGES * PAGE_SIZE) {
            Err(error) => of_error(&error),
            Ok(data) if data.to_vec() == bytes(2) => Got::Good,
            Ok(data) => {
                // The other pages are the new ones in any case.
                let (data, mut expected) = (data.to_vec(), bytes(2));
                let page = PAGE as usize * PAGE_SIZE..(PAGE as usize + 1) * PAGE_SIZE;
                expected[page.clone()].copy_from_slice(&bytes(1)[page]);
                if data == expected { Got::Old } else { Got::Wrong }
            }
        }
    }
}

/// An error that does not tell of bad bytes, no memory say, is none that a reader may get.
fn of_error(error: &holdfast_naming::Error) -> Got {
    use holdfast_object::Error::{Corrupt, Lost};
    match error {
        holdfast_naming::Error::Object(Corrupt(_) | Lost { .. }) => Got::Error,
        _ => Got::Wrong,
    }
}

/// The table, as in `docs/protection.md`.
pub fn markdown(cells: &[Cell]) -> String {
    let mut out = String::from(
        "| mode | flips | t0–t1, then a recovery point | t0–t1, then an fsync | after an fsync, then a recovery point | t1–t2, on the device | t2–t3, in memory | in memory for 200 s |\n|---|---|---|---|---|---|---|---|\n",
    );
    for row in cells.chunks(Moment::ALL.len()) {
        let flips = if row[0].flips == Flips::One { "one bit" } else { "a pair" };
        let owner = if row[0].owner == Owner::File { "" } else { ", a directory" };
        let _ = write!(out, "| `{}`{owner} | {flips} |", row[0].mode);
        for cell in row {
            let told = if cell.is_told { ", `fsync` tells" } else { "" };
            let again = cell.again.map(|got| format!("; again: {}", got.name())).unwrap_or_default();
            let (act, read, reopened) = (cell.act.name(), cell.read.name(), cell.reopened.name());
            let _ = write!(out, " {act}: {read}{told}; {reopened}{again} |");
        }
        out.push('\n');
    }
    out
}

/// Where the table stands.
pub const PLACE: Place = Place { page: "docs/protection.md", mark: "flips" };
