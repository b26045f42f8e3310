//! The offline check of a store: everything against everything.
//!
//! | file | compares |
//! |---|---|
//! | `labels` | labels and rings of superblocks with each other |
//! | `walk` | every block of every tree with its parent's pointer, both copies; records with what they count |
//! | `twice` | blocks that two pointers name, and the bad copies of all others, which are put right |
//! | `births` | blocks that only snapshots reach with the runs of dead lists, by birth |
//! | `marked` | what is reached and what the bitmap has with what the superblock counts, where a snapshot cannot be read everywhere |
//! | `account` | blocks reached with the bitmap, references counted with the reference table, objects with the maps |
//! | `crate::log_check` | every block of the intent log with what its batches say |
//! | `rewrite` | and writes anew a bitmap that is wrong, and blocks with entries that are |

mod account;
mod births;
mod end;
mod labels;
mod marked;
mod report;
mod rewrite;
mod twice;
mod walk;

pub use report::{BitmapRemedy, BlockRole, BlockUse, Finding, FindingKind, NoChecksum, Report};

use crate::base::Base;
use crate::disk::Disk;
use crate::format::{Label, Superblock};
use crate::log_recovery::LogOf;
use crate::module::{OpenOptions, base, log_area};
use crate::open::{Bitmap, load_system, read_label, read_superblocks};
use crate::tree::Trees;
use holdfast_block::Device;
use holdfast_object::{Error, Place, Result, SystemClock};
use marked::InUse;
use std::sync::Arc;
use walk::{ReadPages, Walk};

/// What the check does.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Bad copies of labels, superblocks and metadata are replaced by good ones. If everything that names blocks can be read, but for what only snapshots
    /// have, and the intent log has
    /// nothing to replay, a bitmap that is wrong is written anew, so that blocks that had leaked are free then (none that a snapshot reaches, or may have where it
    /// cannot be read); entries that are free and not empty are emptied; an entry of a list of snapshots that cannot be read becomes that of a deleted one; and counts of the reference table that are too
    /// high are lowered, but for blocks that a snapshot reaches by a tree block that only it has. Otherwise nothing is written.
    pub repair: bool,
    /// Pages of regular files are not read: only metadata is checked.
    pub skip_data: bool,
    /// What is behind the end of an object must be zeros, or not there: so whoever changes a store by way of the cache leaves it. The store itself
    /// keeps what it is given.
    pub ends: bool,
}

/// Checks the store on `device`, which nobody else may have open.
///
/// # Errors
/// As [`crate::Module::open`], if the device holds no store whose labels and newest superblock can be made out; everything
/// else is in the report. [`Error::Device`] if a repair failed.
pub fn check(device: Arc<dyn Device>, options: &CheckOptions) -> Result<Report> {
    check_watched(device, options, &mut |_| {})
}

/// How far a check has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Blocks done, each copy counted; at most `blocks_total`.
    pub blocks: u64,
    /// Blocks in use, as the superblock counts them.
    pub blocks_total: u64,
}

/// As [`check`], and calls `progress` every thousand blocks.
///
/// # Errors
/// As [`check`].
pub fn check_watched(
    device: Arc<dyn Device>,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let mut seen = 0u64;
    run(device, options, &mut |_, blocks_total| {
        seen += 1;
        if seen.is_multiple_of(BLOCKS_PER_PROGRESS) {
            // Shared blocks come once for each use.
            progress(Progress { blocks: seen.min(blocks_total), blocks_total });
        }
    })
}

/// Blocks between two calls of whoever watches a check: 4 MiB.
const BLOCKS_PER_PROGRESS: u64 = 1024;

/// Tells every block of the newest recovery point that is in use, with what it is used for. Blocks that are shared are
/// told once for each use.
///
/// # Errors
/// As [`check`].
pub fn block_uses(device: Arc<dyn Device>) -> Result<Vec<BlockUse>> {
    let mut uses = Vec::new();
    run(device, &CheckOptions { skip_data: true, ..CheckOptions::default() }, &mut |used, _| uses.push(used))?;
    Ok(uses)
}

/// `visit` gets each block in use, and how many there should be.
pub(crate) fn run(
    device: Arc<dyn Device>,
    options: &CheckOptions,
    visit: &mut dyn FnMut(BlockUse, u64),
) -> Result<Report> {
    let label = read_label(&*device)?;
    let (superblock, trees) = load(&device, &label)?;
    // A power cut while the store grew may have left it larger than its bitmap.
    let covered = Label { blocks: superblock.covered(&label), ..label.clone() };
    let blocks_total = covered.blocks.saturating_sub(superblock.free);
    let visit = &mut |used| visit(used, blocks_total);
    let base = looking(&device, &covered, &superblock, options.repair);
    let mut report =
        Report { store_uuid: label.store, epoch: superblock.epoch, clean: superblock.clean, ..Report::default() };
    let whole = looking(&device, &label, &superblock, options.repair);
    labels::check(&*device, &whole.disk, &label, &superblock, options.repair, &mut report, visit)?;
    let pages = if options.skip_data { ReadPages::Metadata } else { ReadPages::All };
    let mut walk = Walk::new(&base, &covered, &superblock, pages, options.repair, &mut report, visit);
    walk.ends = options.ends;
    walk.trees(&trees);
    walk.finish(&trees);
    let mut seen = walk.into_seen();
    let bitmap_is_right = account::check(&base.disk, &covered, &superblock, &mut seen, &mut report);
    let in_use = InUse::of(&label, &superblock, &seen);
    let sees_all = seen.hidden_in_snapshot.is_none();
    let (hides_more, entries) = (seen.hidden.is_some(), seen.entries);
    let log_is_empty = check_log(&base.disk, &label, &superblock, &mut report, visit);
    if options.repair && report.repaired > 0 {
        base.disk.flush()?;
    }
    report.bitmap = match in_use {
        _ if bitmap_is_right && entries.are_good() && !entries.has_counts_left => BitmapRemedy::NotNeeded,
        InUse::Unknown if hides_more => BitmapRemedy::None,
        _ if bitmap_is_right && entries.are_good() => BitmapRemedy::AfterSnapshots,
        // A mount goes by that bitmap, and deletes snapshots.
        InUse::Unknown | InUse::Marked { has_room: false, .. } if bitmap_is_right && !entries.have_snapshots => {
            BitmapRemedy::AfterSnapshots
        }
        InUse::Unknown | InUse::Marked { has_room: false, .. } => BitmapRemedy::None,
        _ if log_is_empty => BitmapRemedy::Repair,
        // No mount would take changes, and so replay the log; or it would go by what is wrong.
        _ if !sees_all && (!bitmap_is_right || entries.have_snapshots) => BitmapRemedy::None,
        _ => BitmapRemedy::RepairAfterReplay,
    };
    if let InUse::Marked { more, .. } = in_use
        && report.bitmap != BitmapRemedy::None
    {
        report.withheld_blocks = more;
    }
    if options.repair && report.bitmap == BitmapRemedy::Repair {
        rewrite::anew(&device, &superblock, &entries, sees_all)?;
        let now = run(device, &CheckOptions { repair: false, ..*options }, &mut |_, _| {})?;
        report.compare(&now);
    }
    Ok(report)
}

/// What [`reach`] found.
pub(crate) struct Reached {
    /// Blocks in use, one bit each.
    pub(crate) used: Vec<u64>,
    /// Blocks of metadata, two copies counted as one, of the domain `main`.
    pub(crate) metadata: u64,
}

/// All blocks that a recovery point uses, labels and log among them, one bit each: what its bitmap must say. What a snapshot reaches is among them also if
/// no dead list has it. What it may reach where it cannot be read only a repair answers for ([`marked`]), which knows that the intent log has nothing there:
/// `bitmap` says who asks.
///
/// # Errors
/// [`Error::Corrupt`] if there may be others, because something that names blocks cannot be read or is wrong.
pub(crate) fn reach(
    base: &Base,
    label: &Label,
    superblock: &Superblock,
    trees: &Trees,
    bitmap: Bitmap,
) -> Result<Reached> {
    let (mut report, mut ignore) = (Report::default(), |_: BlockUse| {});
    let mut walk = Walk::new(base, label, superblock, ReadPages::None, false, &mut report, &mut ignore);
    walk.trees(trees);
    if bitmap != Bitmap::AsStored {
        walk.add_uncounted();
    }
    let mut seen = walk.into_seen();
    account::add_fixed(&base.disk, label, &mut seen, &mut report);
    let in_use = match (bitmap, &seen.hidden_in_snapshot) {
        // What a repair does depends on whether all can be read: it is not to change in between.
        (Bitmap::AsStored | Bitmap::Anew { sees_all: true }, Some(_)) => InUse::Unknown,
        _ => InUse::of(label, superblock, &seen),
    };
    match in_use {
        InUse::Reached => {}
        InUse::Marked { more, has_room: true } => {
            tracing::warn!(blocks = more, "a snapshot cannot be read everywhere: what it may have there stays in use");
            marked::add_marked(label, &mut seen);
        }
        InUse::Marked { .. } | InUse::Unknown => {
            let hidden = seen.hidden.or(seen.hidden_in_snapshot);
            let (place, what) = hidden.unwrap_or_else(|| (base.disk.place(0), "not so".to_string()));
            return Err(Error::corrupt(place, "blocks in use", "all within reach", what));
        }
    }
    Ok(Reached { used: seen.used, metadata: seen.metadata })
}

/// The newest recovery point and its domain 0. Here nothing is repaired: that is the walk's business, which reports it.
fn load(device: &Arc<dyn Device>, label: &Label) -> Result<(Superblock, Trees)> {
    let Some(superblock) = read_superblocks(&**device, label)?.into_iter().next() else {
        let place = Place { device: Some(device.name().to_string()), ..Place::default() };
        return Err(Error::corrupt(place, "superblocks", "a valid one", "none"));
    };
    let trees = load_system(&looking(device, label, &superblock, false), &superblock)?;
    Ok((superblock, trees))
}

fn looking(device: &Arc<dyn Device>, label: &Label, superblock: &Superblock, repair: bool) -> Base {
    let disk = Disk::new(device.clone(), label.blocks);
    disk.raise_newest(superblock.epoch);
    if !repair {
        disk.latch("checked without repair".to_string());
    }
    let options = OpenOptions { node_cache_bytes: 0, ..OpenOptions::default() };
    base(disk, label, label.blocks, &options, Arc::new(SystemClock::default()))
}

/// What the intent log holds beyond the recovery point; whether that is nothing.
fn check_log(
    disk: &Disk,
    label: &Label,
    superblock: &Superblock,
    report: &mut Report,
    visit: &mut dyn FnMut(BlockUse),
) -> bool {
    let before = report.found;
    let log = LogOf { store: &label.store, last: superblock };
    let mut is_empty = false;
    match crate::log_check::check(disk, &log_area(label), &log, report, visit) {
        Ok(state) => {
            report.log_batches = state.batches;
            is_empty = state.is_empty;
            if superblock.clean && state.batches > 0 {
                let what = format!("{} batches, and the store was closed in order", state.batches);
                report.find(FindingKind::Log, disk.place(label.log_start), what);
            }
        }
        Err(Error::Corrupt(corruption)) => {
            let what = corruption.without_place();
            report.find(FindingKind::Log, corruption.place, what);
        }
        Err(error) => report.find(FindingKind::Unreadable, disk.place(label.log_start), error.to_string()),
    }
    is_empty && report.found == before
}
