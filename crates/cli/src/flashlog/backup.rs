//! Bringing a backup of an opened set up to date, by the server or by a command.

use super::control::{Copied, Replaced};
use super::ground::{self, Wanted};
use super::sets::{self, explain};
use crate::failure::{Failure, Result};
use crate::output::Report;
use crate::{quoting, size};
use holdfast_block::flashlog::{BackedUp, Error, Flashlog, ReadAhead, Role, Verified, backup_blocks_least, set_blocks};
use holdfast_block::{BLOCK_SIZE, Device};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// Where a backup goes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BackupTo {
    /// File or disk; absolute.
    pub(crate) path: PathBuf,
    /// Size of a file that is made for it.
    pub(crate) size_bytes: Option<u64>,
    /// Whatever is there may go.
    pub(crate) force: bool,
    /// Nobody has named it this time: if the set has a backup, this must be it.
    #[serde(default)]
    pub(crate) is_remembered: bool,
    /// Also if main may have older data than the backup, and nobody knows where.
    #[serde(default)]
    pub(crate) accept_loss: bool,
}

impl BackupTo {
    /// Where backups went before.
    pub(crate) fn remembered(path: PathBuf) -> BackupTo {
        BackupTo { path, size_bytes: None, force: false, is_remembered: true, accept_loss: false }
    }
}

/// What a backup did.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BackupReport {
    set: String,
    backup: String,
    /// Of a store that is mounted: it has this recovery point, or a later one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recovery_point: Option<u64>,
    /// The device is a backup of this set only now.
    new: bool,
    /// UUID of the backup that the set had before, whose place it has taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaces: Option<String>,
    /// Everything was copied.
    full: bool,
    copied_bytes: u64,
    /// How many states it went through.
    steps: u64,
    /// Copied, although they may be damage on main: nobody knows whether they were written, and they differ from what the backup had by one bit.
    #[serde(default)]
    doubtful_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    doubtful_first_block: Option<u64>,
    /// Their checksums on the backup were damaged, and main was not found to have the same: they count as damaged there.
    #[serde(default)]
    unchecked_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unchecked_first_block: Option<u64>,
    /// Of this block the log has lost an earlier version: it went over the states that have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    over_damage_first_block: Option<u64>,
    /// Not all had room in the staging area: the backup had no state until this was done.
    #[serde(default)]
    had_no_state: bool,
    /// What reading it back has shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<VerifiedReport>,
}

/// Runs of blocks: first block and count; the first ones.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct BadBlocks {
    blocks: u64,
    runs: Vec<(u64, u64)>,
}

/// Runs that are named.
const RUNS_MOST: usize = 100;

impl BadBlocks {
    pub(crate) fn of(ranges: &[Range<u64>]) -> BadBlocks {
        let length = |range: &Range<u64>| range.end - range.start;
        let runs = ranges.iter().take(RUNS_MOST).map(|range| (range.start, length(range))).collect();
        BadBlocks { blocks: ranges.iter().map(length).sum(), runs }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.blocks == 0
    }

    /// A line, if there are any.
    pub(crate) fn words(&self, what: &str) -> String {
        let Some((first, _)) = self.runs.first() else { return String::new() };
        format!("{what}: {}, first block {first} of the set.\n", size::show(sets::bytes(self.blocks)))
    }
}

/// What reading a backup back has shown.
#[derive(Debug, Serialize, Deserialize)]
struct VerifiedReport {
    bytes: u64,
    damaged: BadBlocks,
    /// Their checksums are damaged.
    unknown: BadBlocks,
}

impl VerifiedReport {
    fn of(verified: &Verified) -> VerifiedReport {
        let (damaged, unknown) = (BadBlocks::of(&verified.damaged), BadBlocks::of(&verified.unknown));
        VerifiedReport { bytes: sets::bytes(verified.blocks), damaged, unknown }
    }

    fn is_good(&self) -> bool {
        self.damaged.blocks == 0 && self.unknown.blocks == 0
    }

    fn words(&self) -> String {
        if self.is_good() {
            return format!("All of it was read back: {}.\n", size::show(self.bytes));
        }
        self.damaged.words("DAMAGED") + &self.unknown.words("NOT KNOWN, as the checksums are damaged")
    }
}

impl BackupReport {
    /// Nothing is wrong with it, as far as was looked at.
    pub(crate) fn is_good(&self) -> bool {
        self.verified.as_ref().is_none_or(VerifiedReport::is_good)
    }
}

impl Report for BackupReport {
    fn words(&self) -> String {
        let (backup, copied) = (quoting::name(&self.backup), size::show(self.copied_bytes));
        let point = self.recovery_point.map(|point| format!(", at recovery point {point}")).unwrap_or_default();
        let verified = self.verified.as_ref().map_or(String::new(), VerifiedReport::words);
        let done = match self.full {
            true => format!("{backup} is a complete copy{point}: {copied} were copied.\n"),
            false => format!("{backup} is up to date{point}: {copied} were new.\n"),
        };
        let doubtful = self.doubtful_first_block.map_or(String::new(), |first| {
            format!(
                "DOUBTFUL: {}, first block {first} of the set: one bit each is otherwise than it was, and nobody knows whether they were written.\n",
                size::show(self.doubtful_bytes)
            )
        });
        let unchecked = self.unchecked_first_block.map_or(String::new(), |first| {
            format!(
                "DOUBTFUL: {}, first block {first} of the set: their checksums on the backup were damaged, and main has something else, or could not be \
                 compared (damaged there itself, gone, or written meanwhile). Nobody knows whether the backup's are right: main stays what \
                 it is, and they count as damaged until a backup gets them written anew, or a scrub finds main to have the same; a backup elsewhere (--to OTHER) is copied whole.\n",
                size::show(self.unchecked_bytes)
            )
        });
        let over = self.over_damage_first_block.map_or(String::new(), |first| {
            let without = if self.had_no_state { ", and had no state until this was done" } else { "" };
            format!(
                "The log has lost earlier versions, first block {first} of the set: the backup went on to later ones{without}.\n"
            )
        });
        done + &over + &doubtful + &unchecked + &verified
    }
}

/// Makes the device a backup of the set if it is none yet, and brings it up to date. `tell` gets how far it is, `heed` what a device of
/// the set failed at.
pub(crate) fn run(
    flashlog: &Flashlog,
    to: &BackupTo,
    verify: bool,
    tell: &mut dyn FnMut(Copied),
    heed: impl FnOnce(&holdfast_block::Error),
) -> Result<BackupReport> {
    let status = flashlog.status();
    let set_bytes = sets::bytes(status.blocks);
    let wanted = Wanted {
        path: &to.path,
        role: Role::Backup,
        size_bytes: to.size_bytes,
        default_bytes: default_bytes(set_bytes),
        least_bytes: sets::bytes(backup_blocks_least(status.blocks)),
        force: to.force,
        keeps: false,
    };
    // One from before the set became larger is given up only if that is wanted.
    let is_own = |label: &holdfast_block::flashlog::Inspected| {
        label.role == Role::Backup && label.set == status.set && (label.blocks == status.blocks || !to.force)
    };
    // Where a disk is not mounted, its directory may be there: a new file would be none of what the log is kept for.
    if to.is_remembered && status.backup.is_some() {
        let hint = "plug in its disk, or say where a new one is to be made: --to DEVICE";
        let label = sets::look_for_label(&to.path).map_err(|failure| failure.hint(hint))?;
        if !is_own(&label) {
            let what = format!("{} is not the backup of this set", to.path.display());
            return Err(Failure::new(what).hint(hint));
        }
    }
    let mut ground = ground::take(&wanted, is_own)?;
    let own = ground.label.as_ref().filter(|label| is_own(label));
    let (new, is_backup) = (own.is_none(), own.and_then(|label| label.backup));
    let is_bytes = sets::size_bytes(&*ground.device);
    if let Some(asked) = to.size_bytes.filter(|asked| !new && asked.abs_diff(is_bytes) >= BLOCK_SIZE as u64) {
        let (path, is, asked) = (shown(&to.path), size::show(is_bytes), size::show(asked));
        return Err(Failure::usage(format!("{path} is a backup of this set already, of {is} and not {asked}"))
            .hint("it goes on as it is without --size; a file can be made larger with truncate(1)"));
    }
    let before = status.backup.filter(|before| is_backup != Some(*before));
    let is_in_its_place = before.is_some() && ground.label.as_ref().and_then(|label| label.backup) == before;
    if let (true, true, Some(before)) = (new, is_in_its_place, before) {
        // Its labels may be where the device ended before.
        flashlog.give_up_backup(before).map_err(explain)?;
    }
    if new {
        flashlog.create_backup(ground.device.clone(), sets::random_uuid()?).map_err(explain)?;
    }
    if ground.is_new() {
        // There was room for all of it. What it has nothing of it need not take.
        ground.device.give_up_reservation();
    }
    // From here on it is worth going on with.
    ground.keep();
    let mut device: Arc<dyn Device> = ground.device.clone();
    // If it goes, it can be opened again only if nobody has it.
    drop(ground);
    if let Some(watch) = flashlog.watch() {
        device = watch.over(Role::Backup, device).map_err(explain)?;
    }
    // Nothing is refused any more for what the device is.
    if let Some(before) = before {
        let is_kept = !is_in_its_place && status.changed_blocks == 0 && status.log_damage.is_none();
        tracing::warn!(is_kept, "{} takes the place of the backup of before, {before}", to.path.display());
        let replaces = Some(Replaced { backup: before.to_string(), is_kept });
        tell(Copied { done_bytes: 0, total_bytes: set_bytes, replaces });
    }
    if to.accept_loss {
        flashlog.accept_forgotten();
    }
    let done = bring_up_to_date(flashlog, device.clone(), &mut |done, total| {
        tell(Copied { done_bytes: sets::bytes(done), total_bytes: sets::bytes(total), replaces: None });
    });
    // What is given up is so for this backup.
    flashlog.forget_again();
    let done = done.map_err(|error| {
        if let Some(failed) = error.of_device() {
            heed(failed);
        }
        let is_of_set = |of: &str| of != device.name();
        match &error {
            Error::Device(holdfast_block::Error::Damaged { device, .. }) if is_of_set(device) => Failure::new(
                error.to_string(),
            )
            .hint("scrub tells which blocks nobody has as they were; when they are written anew, the backup goes on"),
            _ => explain(error),
        }
    })?;
    let verified = match verify {
        true => Some(VerifiedReport::of(&flashlog.verify_backup(device).map_err(explain)?)),
        false => None,
    };
    Ok(BackupReport {
        set: status.set.to_string(),
        backup: shown(&to.path),
        recovery_point: None,
        new,
        replaces: before.map(|before| before.to_string()),
        full: done.is_full,
        copied_bytes: sets::bytes(done.blocks + done.copied_blocks),
        steps: done.steps,
        doubtful_bytes: sets::bytes(done.doubtful_blocks),
        doubtful_first_block: done.doubtful_first,
        unchecked_bytes: sets::bytes(done.unchecked_blocks),
        unchecked_first_block: done.unchecked_first,
        over_damage_first_block: done.over_damage_first,
        had_no_state: done.had_no_state,
        verified,
    })
}

/// A backup. What is copied from the set is read in advance by a thread of its own, so that set and backup work at once.
pub(crate) fn bring_up_to_date(
    flashlog: &Flashlog,
    device: Arc<dyn Device>,
    tell: &mut dyn FnMut(u64, u64),
) -> std::result::Result<BackedUp, Error> {
    let ahead = ReadAhead::default();
    thread::scope(|scope| {
        let reader = thread::Builder::new().name("read-ahead".into());
        if let Err(error) = reader.spawn_scoped(scope, || flashlog.read_ahead(&ahead)) {
            tracing::warn!(%error, "no thread can be started: set and backup work in turns");
        }
        flashlog.backup_ahead(device, &ahead, tell)
    })
}

/// Of a file for a backup: what it takes at least, and a staging area.
pub(crate) fn default_bytes(set_bytes: u64) -> u64 {
    let least = sets::bytes(backup_blocks_least(set_bytes.div_ceil(BLOCK_SIZE as u64)));
    least.saturating_add((set_bytes / 16).clamp(16 << 20, 4 << 30))
}

/// The same for a new set with a main of so many bytes, and of one at least.
pub(crate) fn sizes(main_bytes: u64) -> [u64; 2] {
    let least = backup_blocks_least(set_blocks(main_bytes / BLOCK_SIZE as u64));
    [default_bytes(main_bytes), sets::bytes(least)]
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_block::MemoryDevice;
    use holdfast_block::flashlog::check_backup;

    #[test]
    fn a_file_for_backups_has_room_for_a_set_of_any_size() {
        for mib in [4, 100, 1 << 20, (2 << 20) - 1, 2 << 20, 3 << 20, 64 << 20] {
            let main = MemoryDevice::new(mib << 8);
            let file = MemoryDevice::new(default_bytes(mib << 20) / BLOCK_SIZE as u64);
            check_backup(&main, &file).unwrap_or_else(|error| panic!("a main of {mib} MiB: {error}"));
        }
    }

    #[test]
    fn a_backup_that_is_done_tells_what_of_it_is_doubtful() {
        let mut report = BackupReport {
            set: "set".into(),
            backup: "disk".into(),
            recovery_point: None,
            new: false,
            replaces: None,
            full: false,
            copied_bytes: 4096,
            steps: 1,
            doubtful_bytes: 0,
            doubtful_first_block: None,
            unchecked_bytes: 0,
            unchecked_first_block: None,
            over_damage_first_block: None,
            had_no_state: false,
            verified: None,
        };
        assert!(!report.words().contains("DOUBTFUL"));
        (report.unchecked_bytes, report.unchecked_first_block) = (509 * 4096, Some(510));
        let words = report.words();
        assert!(
            words.contains("DOUBTFUL: 1.99 MiB, first block 510 of the set") && words.contains("--to OTHER"),
            "{words}"
        );
        assert!(words.contains("main has something else, or could not be compared"), "{words}");
        assert!(report.is_good());
    }
}
