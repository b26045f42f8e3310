//! What each way of protecting data is good for: the qualitative table 6.12 of E. Hoh's thesis (Karlsruhe 2010), executed.
//!
//! A host writes 64 blocks and flushes; a backup or a snapshot is made. Then it writes on, flushes now and then, and something happens.
//! Whatever the scheme offers is tried to get the data back, and the best of it is compared with what was written. Each cell is the worst
//! of many seeds.
//!
//! Disks are on one controller, the log is a stick on USB, and so is a backup disk, which is attached for backups only.

mod copy_on_write;
mod flashlog;
mod medium;
mod plain;

use crate::document::Place;
use crate::numbered::block;
use holdfast_block::flashlog::Mode;
use holdfast_block::{BLOCK_SIZE, MemoryDevice};
use medium::{BLOCKS, Contents, Fuse, Medium};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt::Write;
use std::sync::Arc;

/// Seeds of one cell.
const SEEDS: u64 = 40;
/// Of a hundred blocks, a controller gone mad writes over so many.
const GARBAGE_PERCENT: u32 = 25;
/// Blocks of a file, for a program that goes from one to the next and flushes each.
const FILE_BLOCKS: usize = 8;

/// What the media have afterwards; none if one is gone.
type Media = [Option<MemoryDevice>];

/// A scheme in use.
trait Model {
    fn write(&mut self, at: usize, bytes: &[u8; BLOCK_SIZE]) -> Result<(), String>;
    fn flush(&mut self) -> Result<(), String>;
    /// Makes a backup or a snapshot, if the scheme has such.
    fn save(&mut self) -> Result<(), String>;
    fn read(&self) -> Result<Contents, String>;
}

/// How data is protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// Not at all.
    Disk,
    /// Two disks that have the same.
    Raid1,
    /// A copy on another disk, now and then.
    Backup,
    /// Kept states on the same disk, on which nothing is overwritten.
    Snapshots,
    /// Main, log and backup; a flush waits for main and log.
    Flashlog,
    /// The same; a flush waits for the log only, and main gets everything later.
    FlashlogAsync,
}

impl Scheme {
    /// In the order of the table.
    pub const ALL: [Scheme; 6] =
        [Scheme::Disk, Scheme::Raid1, Scheme::Backup, Scheme::Snapshots, Scheme::Flashlog, Scheme::FlashlogAsync];

    fn name(self) -> &'static str {
        match self {
            Scheme::Disk => "disk",
            Scheme::Raid1 => "RAID 1",
            Scheme::Backup => "backup",
            Scheme::Snapshots => "snapshots",
            Scheme::Flashlog => "Flashlog",
            Scheme::FlashlogAsync => "Flashlog, asynchronous",
        }
    }

    /// Its media: name, blocks, whether it is on the disks' controller, whether it is there while the host works.
    fn media(self) -> Vec<(&'static str, u64, bool, bool)> {
        let disk_blocks = BLOCKS as u64;
        let [main, log, backup] = flashlog::MEDIA_BLOCKS;
        match self {
            Scheme::Disk => vec![("disk", disk_blocks, true, true)],
            Scheme::Raid1 => vec![("first disk", disk_blocks, true, true), ("second disk", disk_blocks, true, true)],
            Scheme::Backup => vec![("disk", disk_blocks, true, true), ("backup", disk_blocks, false, false)],
            Scheme::Snapshots => vec![("disk", copy_on_write::DISK_BLOCKS, true, true)],
            Scheme::Flashlog | Scheme::FlashlogAsync => {
                vec![("main", main, true, true), ("log", log, false, true), ("backup", backup, false, false)]
            }
        }
    }

    fn start(self, media: &[Arc<Medium>]) -> Result<Box<dyn Model>, String> {
        Ok(match self {
            Scheme::Disk | Scheme::Backup => Box::new(plain::Plain::new(media, 1)),
            Scheme::Raid1 => Box::new(plain::Plain::new(media, 2)),
            Scheme::Snapshots => Box::new(copy_on_write::CopyOnWrite::new(media)),
            Scheme::Flashlog | Scheme::FlashlogAsync => {
                Box::new(flashlog::Set::new(media, self.mode()).map_err(|error| error.to_string())?)
            }
        })
    }

    /// Of a Flashlog.
    fn mode(self) -> Mode {
        if self == Scheme::FlashlogAsync { Mode::Asynchronous } else { Mode::Synchronous }
    }

    /// All that can be got back from what the media have.
    fn recover(self, media: &Media) -> Vec<Contents> {
        match self {
            Scheme::Disk | Scheme::Backup => plain::recover(media, 1),
            Scheme::Raid1 => plain::recover(media, 2),
            Scheme::Snapshots => copy_on_write::recover(media),
            Scheme::Flashlog | Scheme::FlashlogAsync => flashlog::recover(media, self.mode()),
        }
    }
}

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mishap {
    /// The power goes, and what is in the caches of host and devices with it.
    PowerFailure,
    /// The host dies with its memory; the devices finish what they have got.
    KernelPanic,
    /// Any one device fails for good, at any request.
    DeviceFailure,
    /// All disks are gone at any request, and back later.
    ControllerGone,
    /// The controller writes garbage to all disks.
    ControllerMad,
    /// A bit flips in the host's memory before a block is handed over; it is noticed some writes later.
    MemoryFault,
    /// Everything is deleted, by the ordinary way.
    Deletion,
    /// A program that may write the files encrypts all of them in place.
    FilesEncrypted,
    /// It does so again and again, until it has written more than a log has room for.
    FilesEncryptedLong,
    /// Something with all rights encrypts whatever is attached.
    Malware,
}

impl Mishap {
    /// In the order of the table.
    pub const ALL: [Mishap; 10] = [
        Mishap::PowerFailure,
        Mishap::KernelPanic,
        Mishap::DeviceFailure,
        Mishap::ControllerGone,
        Mishap::ControllerMad,
        Mishap::MemoryFault,
        Mishap::Deletion,
        Mishap::FilesEncrypted,
        Mishap::FilesEncryptedLong,
        Mishap::Malware,
    ];

    fn name(self) -> &'static str {
        match self {
            Mishap::PowerFailure => "power failure",
            Mishap::KernelPanic => "kernel panic",
            Mishap::DeviceFailure => "a device fails",
            Mishap::ControllerGone => "the disks' controller drops out",
            Mishap::ControllerMad => "the disks' controller writes garbage",
            Mishap::MemoryFault => "memory flips a bit of a write",
            Mishap::Deletion => "accidental deletion",
            Mishap::FilesEncrypted => "malicious encryption through the file system",
            Mishap::FilesEncryptedLong => "the same, of more than a log has room for",
            Mishap::Malware => "encryption of all that is attached",
        }
    }

    /// What the thesis says of RAID, backup, snapshots and Flashlog.
    fn thesis(self) -> [&'static str; 4] {
        match self {
            Mishap::PowerFailure => ["-", "+", "+", "+"],
            Mishap::KernelPanic => ["-", "+", "-", "+"],
            Mishap::DeviceFailure => ["++", "+", "-", "++"],
            Mishap::ControllerGone | Mishap::ControllerMad => ["+/-", "+", "-", "+"],
            Mishap::MemoryFault => ["-", "+", "+", "+"],
            // Its table has "user error", beside which its text puts viruses.
            Mishap::Deletion | Mishap::FilesEncrypted | Mishap::FilesEncryptedLong | Mishap::Malware => {
                ["-", "+", "+", "+"]
            }
        }
    }
}

/// What cannot be got back, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lost {
    /// Nothing that was answered.
    Nothing,
    /// What no flush had answered; what is there is a state that there was.
    Unflushed,
    /// What no flush had answered; some of it is there and some is not, and a block may have parts of two.
    Mixture,
    /// What was written after the mishap had struck.
    Since,
    /// What was written since the backup or the snapshot.
    SinceSaved,
    /// Everything: no state can be got back whole.
    Everything,
}

impl Lost {
    fn text(self) -> &'static str {
        match self {
            Lost::Nothing => "nothing",
            Lost::Unflushed => "what was not flushed",
            Lost::Mixture => "what was not flushed, a mixture is left",
            Lost::Since => "what came after it",
            Lost::SinceSaved => "what came since the last one",
            Lost::Everything => "**everything**",
        }
    }
}

/// What came of one experiment, or of all of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// How the data was protected.
    pub scheme: Scheme,
    /// What happened.
    pub mishap: Mishap,
    /// What is gone for good.
    pub lost: Lost,
    /// Before anything was done about it, reading gave wrong bytes without a word.
    pub is_silent: bool,
    /// Beside a mixture, there is an older state that is whole.
    pub has_whole: bool,
}

/// All cells.
///
/// # Errors
/// In words, if something that has nothing to do with the mishaps fails, with seed.
pub fn run() -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for mishap in Mishap::ALL {
        for scheme in Scheme::ALL {
            let mut worst = Cell { scheme, mishap, lost: Lost::Nothing, is_silent: false, has_whole: true };
            for seed in 0..SEEDS {
                let cell = experiment(scheme, mishap, seed)
                    .map_err(|what| format!("{} of {}, seed {seed}: {what}", mishap.name(), scheme.name()))?;
                worst.lost = worst.lost.max(cell.lost);
                worst.is_silent |= cell.is_silent;
                worst.has_whole &= cell.has_whole;
            }
            cells.push(worst);
        }
    }
    Ok(cells)
}

/// What the host has written.
struct History {
    saved: Vec<u64>,
    writes: Vec<(usize, u64)>,
    flushed: usize,
    answered: usize,
}

impl History {
    fn after(&self, writes: usize) -> Vec<u64> {
        let mut now = self.saved.clone();
        self.writes[..writes].iter().for_each(|(at, content)| now[*at] = *content);
        now
    }

    /// After how many writes it was so, if it ever was.
    fn newest(&self, found: &Contents) -> Option<usize> {
        let is = |writes: &usize| self.after(*writes).iter().zip(found).all(|(is, found)| Some(*is) == *found);
        (0..=self.writes.len()).rev().find(is)
    }

    /// Each block has what was flushed, or some of what was written to it since.
    fn is_mixture(&self, found: &Contents) -> bool {
        let flushed = self.after(self.flushed);
        let since = &self.writes[self.flushed..];
        found.iter().enumerate().all(|(at, found)| {
            let is_written = since.iter().any(|(to, _)| *to == at);
            found.map_or(is_written, |found| found == flushed[at] || since.contains(&(at, found)))
        })
    }

    /// What is lost if this is what was got back. What came behind a mishap that struck after so many writes is wanted, but what it did not.
    fn lost(&self, found: &Contents, struck: Option<usize>) -> Lost {
        match (self.newest(found), struck) {
            (Some(writes), Some(struck)) if writes >= struck => Lost::Since,
            (Some(writes), None) if writes >= self.answered => Lost::Nothing,
            (Some(writes), None) if writes >= self.flushed => Lost::Unflushed,
            (Some(_), _) => Lost::SinceSaved,
            (None, None) if self.is_mixture(found) => Lost::Mixture,
            (None, _) => Lost::Everything,
        }
    }
}

fn experiment(scheme: Scheme, mishap: Mishap, seed: u64) -> Result<Cell, String> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let specs = scheme.media();
    let attached: Vec<usize> = (0..specs.len()).filter(|at| specs[*at].3).collect();
    let victim = attached[rng.random_range(0..attached.len())];
    let is_hit = |at: usize| match mishap {
        Mishap::PowerFailure | Mishap::KernelPanic => specs[at].3,
        Mishap::DeviceFailure => at == victim,
        Mishap::ControllerGone => specs[at].2,
        _ => false,
    };
    let fuse = Fuse::new();
    let media: Vec<Arc<Medium>> =
        specs.iter().enumerate().map(|(at, spec)| Medium::new(spec.0, spec.1, &fuse, is_hit(at))).collect();
    let mut model = scheme.start(&media)?;
    let mut history = History { saved: Vec::new(), writes: Vec::new(), flushed: 0, answered: 0 };
    for at in 0..BLOCKS {
        history.saved.push(at as u64 + 1);
        model.write(at, &block(at as u64 + 1))?;
    }
    model.flush()?;
    model.save()?;
    let mut content = 1000;
    let mut write = |model: &mut dyn Model, history: &mut History, rng: &mut Pcg64Mcg| {
        content += 1;
        let at = rng.random_range(0..BLOCKS);
        history.writes.push((at, content));
        if model.write(at, &block(content)).is_ok() {
            history.answered = history.writes.len();
        }
    };
    for number in 1..=20 {
        write(&mut *model, &mut history, &mut rng);
        if number % 5 == 0 {
            model.flush()?;
            history.flushed = history.answered;
        }
    }
    let (mut struck, mut is_silent) = (None, false);
    match mishap {
        Mishap::PowerFailure | Mishap::KernelPanic | Mishap::DeviceFailure | Mishap::ControllerGone => {
            fuse.light(rng.random_range(1..12));
            for _ in 0..10 {
                write(&mut *model, &mut history, &mut rng);
            }
            fuse.light(0);
            // What was refused may be there or not. A host that is still there flushes.
            if mishap != Mishap::PowerFailure && mishap != Mishap::KernelPanic && model.flush().is_ok() {
                history.flushed = history.answered;
            }
        }
        Mishap::ControllerMad => {
            for (medium, _) in media.iter().zip(&specs).filter(|(_, spec)| spec.2) {
                medium.write_garbage(GARBAGE_PERCENT, &mut rng)?;
            }
            is_silent = model.read().is_ok_and(|found| history.newest(&found).is_none());
        }
        Mishap::MemoryFault => {
            struck = Some(history.writes.len());
            let at = rng.random_range(0..BLOCKS);
            let mut bytes = block(999);
            bytes[rng.random_range(0..BLOCK_SIZE)] ^= 1;
            model.write(at, &bytes)?;
            model.flush()?;
            for _ in 0..10 {
                // Elsewhere, so that it is not made good by chance.
                let elsewhere = (at + rng.random_range(1..BLOCKS)) % BLOCKS;
                model.write(elsewhere, &block(2000))?;
                model.flush()?;
            }
            is_silent = model.read().is_ok_and(|found| found[at].is_none());
        }
        Mishap::Deletion => {
            for at in 0..BLOCKS {
                model.write(at, &block(0))?;
            }
            model.flush()?;
        }
        Mishap::FilesEncrypted => encrypt(&mut *model, BLOCKS, &mut rng)?,
        // So many have no room in it, as labels and entries have some of it.
        Mishap::FilesEncryptedLong => encrypt(&mut *model, flashlog::MEDIA_BLOCKS[1] as usize, &mut rng)?,
        Mishap::Malware => {
            for (medium, _) in media.iter().zip(&specs).filter(|(_, spec)| spec.3) {
                medium.write_garbage(100, &mut rng)?;
            }
        }
    }
    drop(model);
    let left = |(at, medium): (usize, &Arc<Medium>)| match mishap {
        Mishap::DeviceFailure if at == victim => None,
        Mishap::PowerFailure => Some(medium.after_power_cut(&mut rng)),
        _ => Some(medium.as_it_is(&mut rng)),
    };
    let left: Vec<Option<MemoryDevice>> = media.iter().enumerate().map(left).collect();
    let found: Vec<Lost> = scheme.recover(&left).iter().map(|found| history.lost(found, struck)).collect();
    let lost = found.iter().min().copied().unwrap_or(Lost::Everything);
    Ok(Cell { scheme, mishap, lost, is_silent, has_whole: found.iter().any(|lost| is_whole(*lost)) })
}

/// A program reads all files and writes them in place, with a stream of a key of its own over what they had, each flushed: round by round,
/// until it has written so many blocks.
fn encrypt(model: &mut dyn Model, blocks: usize, rng: &mut Pcg64Mcg) -> Result<(), String> {
    let mut stream = Pcg64Mcg::seed_from_u64(rng.random());
    let read: Option<Vec<[u8; BLOCK_SIZE]>> = model.read()?.into_iter().map(|content| content.map(block)).collect();
    let mut files = read.ok_or("what it reads is nothing that was written")?;
    for number in 0..blocks {
        let at = number % BLOCKS;
        files[at].iter_mut().for_each(|byte| *byte ^= stream.random::<u8>());
        model.write(at, &files[at])?;
        if (number + 1) % FILE_BLOCKS == 0 {
            model.flush()?;
        }
    }
    Ok(())
}

fn is_whole(lost: Lost) -> bool {
    !matches!(lost, Lost::Mixture | Lost::Everything)
}

/// The table, as in `docs/flashlog-table.md`.
pub fn markdown(cells: &[Cell]) -> String {
    let names: Vec<&str> = Scheme::ALL.iter().map(|scheme| scheme.name()).collect();
    let mut out = format!("| what happens | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for row in cells.chunks(Scheme::ALL.len()) {
        let _ = write!(out, "| {} |", row[0].mishap.name());
        // It says nothing of a lone disk, and does not tell the modes apart.
        let thesis = std::iter::once(None).chain(row[0].mishap.thesis().map(Some)).chain([None]);
        for (cell, thesis) in row.iter().zip(thesis) {
            let whole =
                if cell.lost == Lost::Mixture && cell.has_whole { "; or what came since the last one" } else { "" };
            let silent = if cell.is_silent { "; unnoticed" } else { "" };
            let thesis = thesis.map_or(String::new(), |thesis| format!(" ({thesis})"));
            let _ = write!(out, " {}{whole}{silent}{thesis} |", cell.lost.text());
        }
        out.push('\n');
    }
    out
}

/// Where the table stands.
pub const PLACE: Place = Place { page: "docs/flashlog-table.md", mark: "table" };
