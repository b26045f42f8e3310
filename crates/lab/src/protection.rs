//! What each protection mode makes of flipped bits: the paper's table III (Z²FS, section IV-B), for all modes.
//!
//! A page of a file is hit at one of the moments of its life: written and not stored yet (t0–t1), on the device (t1–t2), or in memory
//! again (t2–t3), there also after it has been in memory for longer than t_switch. Then it is read as an application would, and once
//! more from a stack that is opened anew.

use crate::document::Place;
use crate::maker::Maker;
use crate::model::{Data, Node};
use crate::stack::{self, Stack, StackOptions};
use holdfast_block::MemoryDevice;
use holdfast_integrity::{Algorithm, Protection};
use holdfast_naming::Atime;
use holdfast_object::{Durability, ObjectCache, ObjectId, PAGE_SIZE};
use holdfast_physical::check::{BlockRole, block_uses};
use std::fmt::Write;
use std::sync::Arc;

/// 8 MiB.
const DEVICE_BLOCKS: u64 = 2048;
const PAGES: usize = 4;
/// The page that is hit.
const PAGE: u64 = 1;
/// The modes of the table.
const MODES: [Protection; 9] = [
    Protection::None,
    Protection::Disk,
    Protection::EndToEnd(Algorithm::Xor64),
    Protection::EndToEnd(Algorithm::Fletcher256),
    Protection::Static { strong: false },
    Protection::Static { strong: true },
    Protection::Dynamic { t_switch_s: 92 },
    Protection::Dynamic { t_switch_s: 0 },
    Protection::Uniform,
];

/// When bits flip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// t0–t1: written, in memory only.
    Dirty,
    /// t1–t2: on the device.
    Stored,
    /// t2–t3: in memory, as on the device.
    Clean,
    /// The same, 200 s after it was read.
    CleanForLong,
}

impl Moment {
    /// In the order of a page's life.
    pub const ALL: [Moment; 4] = [Moment::Dirty, Moment::Stored, Moment::Clean, Moment::CleanForLong];
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

/// What came of one trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The store's mode.
    pub mode: Protection,
    /// Which bits flipped.
    pub flips: Flips,
    /// When.
    pub moment: Moment,
    /// What an application that reads gets.
    pub read: Got,
    /// What it gets when the store has been closed and opened again.
    pub reopened: Got,
    /// Whether an fsync told of it.
    pub is_told: bool,
}

/// All trials.
///
/// # Errors
/// In words, if something that has nothing to do with the flips fails.
pub fn run() -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for mode in MODES {
        for flips in [Flips::One, Flips::Pair] {
            for moment in Moment::ALL {
                cells.push(trial(mode, flips, moment)?);
            }
        }
    }
    Ok(cells)
}

struct Trial {
    maker: Maker,
    file: ObjectId,
}

fn says(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn bytes(seed: u64) -> Vec<u8> {
    Data { seed, length: PAGES * PAGE_SIZE }.bytes()
}

fn trial(mode: Protection, flips: Flips, moment: Moment) -> Result<Cell, String> {
    let device = Arc::new(MemoryDevice::new(DEVICE_BLOCKS));
    let clock = stack::clock();
    let options = StackOptions::new(256);
    stack::create_with(device.clone(), &clock, mode).map_err(says)?;
    let stack = Stack::open(device.clone(), &options, &clock).map_err(says)?;
    let mut maker = Maker::new(stack);
    let node = maker.file(Node::ROOT, "file", PAGES)?;
    maker.write(node, 0, 1, PAGES * PAGE_SIZE)?;
    let file = maker.driver.object(node).ok_or("the file has no object")?;
    let mut trial = Trial { maker, file };
    trial.maker.stack.cache.sync_all().map_err(says)?;
    trial.maker.write(node, 0, 2, PAGES * PAGE_SIZE)?;
    if moment == Moment::Dirty {
        trial.flip(flips)?;
    }
    trial.maker.stack.cache.sync_all().map_err(says)?;
    let told = |trial: &Trial| trial.maker.stack.cache.sync(trial.file, Durability::All).is_err();
    let mut is_told = told(&trial);
    match moment {
        Moment::Dirty => {}
        Moment::Stored => {
            trial.maker.stack.close().map_err(says)?;
            let uses = block_uses(device.clone()).map_err(says)?;
            let mine = uses.iter().find(|used| {
                let object = used.object.map(|key| key.object);
                used.role == BlockRole::Data && object == Some(trial.file) && (used.level, used.index) == (0, PAGE)
            });
            let block = mine.ok_or("the page has no block")?.block;
            let hit = |bytes: &mut [u8; PAGE_SIZE]| {
                bits(flips).iter().for_each(|bit| bytes[*bit as usize / 8] ^= 1 << (bit % 8))
            };
            device.alter(block, hit).map_err(says)?;
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
    trial.maker.stack.close().map_err(says)?;
    trial.maker.stack = Stack::open(device, &options, &clock).map_err(says)?;
    let reopened = trial.got();
    Ok(Cell { mode, flips, moment, read, reopened, is_told })
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
        self.maker.stack.flip(self.file, PAGE, bits(flips)).map_err(says)
    }

    fn got(&self) -> Got {
        let namespace = self.maker.stack.namespace(Atime::Never);
        match namespace.read(self.file, 0, PAGES * PAGE_SIZE) {
            Err(_) => Got::Error,
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

/// The table, as in `docs/protection.md`.
pub fn markdown(cells: &[Cell]) -> String {
    let mut out = String::from(
        "| mode | flips | t0–t1, not stored yet | t1–t2, on the device | t2–t3, in memory | in memory for 200 s |\n|---|---|---|---|---|---|\n",
    );
    for row in cells.chunks(Moment::ALL.len()) {
        let flips = if row[0].flips == Flips::One { "one bit" } else { "a pair" };
        let _ = write!(out, "| `{}` | {flips} |", row[0].mode);
        for cell in row {
            let told = if cell.is_told { ", `fsync` tells" } else { "" };
            let _ = write!(out, " {}{told}; {} |", cell.read.name(), cell.reopened.name());
        }
        out.push('\n');
    }
    out
}

/// Where the table stands.
pub const PLACE: Place = Place { page: "docs/protection.md", mark: "flips" };
