//! The state of a store, as `status` tells it and as a running mount tells it to `status`.

use crate::audited::Audited;
use crate::flashlog::report::SetReport;
use crate::given_up::{GivenUp, NotStored};
use crate::holder;
use crate::output::{self, Report, count, table};
use crate::paths::shell;
use crate::quoting::{self, cut};
use crate::scrub::{ScrubCondition, ScrubReport};
use crate::size;
use holdfast_cache::CacheStatus;
use holdfast_integrity::Protection;
use holdfast_object::{PAGE_SIZE, SnapshotDeletion, Space, StoreCounters, StoreStatus};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a store is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Condition {
    /// In use.
    Mounted,
    /// Mounted once, but nobody serves the mount any more.
    Abandoned,
    /// Mounted, but the process that serves the mount does not say anything that makes sense.
    NotAnswering,
    /// Mounted, and this user may not look.
    Inaccessible,
    /// Not in use, and left in order.
    Clean,
    /// Not in use, and not left in order: the next mount replays its intent log.
    Unclean,
    /// On the main disk of a Flashlog whose log is not there, so that nobody can look at it.
    WithoutLog,
}

/// Everything there is to say about a store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct StoreReport {
    /// Path of the file or disk.
    pub(crate) store: String,
    pub(crate) condition: Condition,
    /// Directory of the mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mounted_on: Option<String>,
    /// Why no changes are taken, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read_only: Option<String>,
    /// Changes are not taken because a device or the memory failed, or something in the store is wrong.
    #[serde(default)]
    pub(crate) latched: bool,
    /// Of these, that something was wrong with it when it was mounted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stopped_at_opening: bool,
    #[serde(flatten)]
    pub(crate) figures: Option<Figures>,
    /// The page pool of a mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<CacheFigures>,
    /// The Flashlog that it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) flashlog: Option<SetReport>,
    /// Of a store that is looked at on the backup of a set: which that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) flashlog_device: Option<OneDevice>,
    /// The last scrub of a mounted store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scrub: Option<ScrubReport>,
    /// Why the root directory of a mount cannot be read, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) root_damage: Option<String>,
    /// Files of a mount with pages that went bad in memory before they were stored, and have not been written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_stored: Option<NotStored>,
    /// Files of a mount that takes no changes any more with pages that only its memory has: written last, and not synced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_written: Option<NotStored>,
    /// What mounts before this one, or before now, could not store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) given_up: Option<GivenUp>,
    /// The process that serves a mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) daemon: Option<Daemon>,
}

/// A device of a set without the others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct OneDevice {
    pub(crate) role: String,
    pub(crate) set: String,
    /// The state that is looked at with the log, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
}

/// What only somebody who has the store open can say.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) uuid: String,
    /// Last recovery point.
    pub(crate) epoch: u64,
    /// Files, directories and everything else.
    pub(crate) objects: u64,
    pub(crate) snapshots: u64,
    /// What the snapshots keep together, and deleted ones still, and nothing else has: about, as files that share blocks (clones) may have
    /// some of them. Without it: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshots_kept_bytes: Option<u64>,
    /// Deleted snapshots of which something is still to be freed: the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) snapshot_deletions: Vec<Deletion>,
    /// How many there are of them.
    #[serde(default)]
    pub(crate) snapshot_deletions_count: u64,
    /// About how many runs of blocks are left of all of them.
    #[serde(default)]
    pub(crate) snapshot_deletion_runs_left: u64,
    /// How the contents of files are protected.
    #[serde(default)]
    pub(crate) protection: String,
    /// How they are protected if the mount does not say otherwise.
    #[serde(default)]
    pub(crate) protection_of_store: String,
    pub(crate) space: SpaceFigures,
    /// Blocks repaired from another copy since the store was opened.
    pub(crate) blocks_repaired: u64,
    /// Different blocks found without a good copy since the store was opened.
    pub(crate) blocks_unrepaired: u64,
    /// Different blocks found since the store was opened with something in entries that are free: nothing is lost.
    #[serde(default)]
    pub(crate) blocks_with_remains: u64,
    pub(crate) devices: Vec<String>,
    pub(crate) counters: StoreCounters,
}

/// The deletion of a snapshot that is gone, while something of it is left to be freed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Deletion {
    /// Its number, and the name that it had.
    pub(crate) id: u16,
    pub(crate) name: String,
    /// About how many runs of blocks are left.
    pub(crate) runs_left: u64,
}

impl From<SnapshotDeletion> for Deletion {
    fn from(deletion: SnapshotDeletion) -> Deletion {
        let SnapshotDeletion { id, name, runs_left } = deletion;
        Deletion { id: id.0, name, runs_left }
    }
}

/// What a report says of snapshots.
#[derive(Default)]
pub(crate) struct SnapshotFigures {
    pub(crate) count: u64,
    pub(crate) kept_bytes: Option<u64>,
    pub(crate) deletions: Vec<SnapshotDeletion>,
}

/// Of a store whose own mode is `none`, in a mount that has another.
const UNVERIFIED: &str = "what was written in mode none has no checksum until it is written again; `holdfast scrub` counts such blocks, \
     `holdfast check` names the files";

fn is_of_none(mode: &str) -> bool {
    mode == Protection::None.to_string()
}

/// Deletions that a report names.
const DELETIONS_NAMED: usize = 8;
/// Characters of their names where they would be too long.
const DELETION_NAME_CUT: usize = 64;

/// Space, in bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct SpaceFigures {
    pub(crate) total_bytes: u64,
    pub(crate) used_bytes: u64,
    /// Not in use, the reserve included.
    pub(crate) free_bytes: u64,
    /// For new data, with the blocks that it needs besides.
    pub(crate) available_bytes: u64,
    /// Freed, and free for others when the open epoch is closed; part of `free_bytes`.
    pub(crate) pending_bytes: u64,
    /// Kept back, so that files can always be deleted; part of `free_bytes`.
    pub(crate) reserve_bytes: u64,
    /// Set aside for root; part of `free_bytes`.
    #[serde(default)]
    pub(crate) set_aside_bytes: u64,
    /// Most that may be in use, if the mount has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quota_bytes: Option<u64>,
    /// Set aside for changes not written yet; part of `free_bytes`.
    pub(crate) reserved_bytes: u64,
}

impl SpaceFigures {
    /// That there is a quota, and nothing comes of it. (The store may grow later.)
    pub(crate) fn useless_quota(&self) -> Option<String> {
        let quota_bytes = self.quota_bytes.filter(|quota| *quota > self.total_bytes)?;
        let (quota, total) = (size::show(quota_bytes), size::show(self.total_bytes));
        Some(format!(
            "the quota of {quota} is more than the store has, {total}: it limits nothing unless the store grows"
        ))
    }
}

impl From<&Space> for SpaceFigures {
    fn from(space: &Space) -> SpaceFigures {
        let bytes = |blocks: u64| blocks.saturating_mul(PAGE_SIZE as u64);
        let free = space.free.saturating_add(space.pending).min(space.total);
        SpaceFigures {
            total_bytes: bytes(space.total),
            used_bytes: bytes(space.total - free),
            free_bytes: bytes(free),
            available_bytes: bytes(space.available_pages()),
            pending_bytes: bytes(space.pending),
            reserve_bytes: bytes(space.reserve),
            set_aside_bytes: bytes(space.set_aside),
            quota_bytes: space.quota.map(bytes),
            reserved_bytes: bytes(space.reserved),
        }
    }
}

/// The page pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct CacheFigures {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Changed, and in no recovery point yet.
    pub(crate) dirty_bytes: u64,
    /// Beside all of that: second copies of changed pages of directories, links and attributes.
    #[serde(default)]
    pub(crate) twins_bytes: u64,
    /// Since the mount was made.
    pub(crate) transactions: u64,
    /// Pages found corrupt in memory and read again.
    pub(crate) pages_reread: u64,
    /// Changed pages of directories, links and attributes found corrupt in memory, whose twin took their place.
    #[serde(default)]
    pub(crate) pages_renewed: u64,
    /// Of both, those of directories, links and attributes.
    #[serde(default)]
    pub(crate) scribbles: u64,
    /// Attributes of objects found corrupt in memory, and made anew from their twin, or read again.
    #[serde(default)]
    pub(crate) attributes_renewed: u64,
    /// Records of the operation log found corrupt in memory, and read of its twin.
    #[serde(default)]
    pub(crate) operations_renewed: u64,
    /// Changed pages found corrupt in memory: not stored, and errors until they are written again.
    #[serde(default)]
    pub(crate) pages_bad: u64,
    /// Of those that were, also what has been written again or cut off since.
    #[serde(default)]
    pub(crate) pages_lost: u64,
    /// Pages read that were in memory, or known to be zero, since the mount was made.
    pub(crate) page_hits: u64,
    /// Of these, those that had been there for longer than t_switch (mode `dynamic`).
    #[serde(default)]
    pub(crate) pages_switched: u64,
    /// Pages read that had to come from the store.
    pub(crate) page_misses: u64,
    /// Calls of fsync, fdatasync and the like.
    pub(crate) syncs: u64,
    /// Time spent in writing epochs.
    pub(crate) epochs_ms: u64,
    /// Recovery points of which the records were not held against what changes of names have proved.
    #[serde(default)]
    pub(crate) epochs_unproved: u64,
}

impl From<&CacheStatus> for CacheFigures {
    fn from(status: &CacheStatus) -> CacheFigures {
        let bytes = |pages: u64| pages.saturating_mul(PAGE_SIZE as u64);
        CacheFigures {
            total_bytes: bytes(status.frames.into()),
            free_bytes: bytes(status.frames_free.into()),
            dirty_bytes: bytes(status.pages_dirty),
            twins_bytes: bytes(status.twins),
            transactions: status.transactions,
            pages_reread: status.pages_reread,
            pages_renewed: status.pages_renewed,
            scribbles: status.scribbles,
            attributes_renewed: status.attributes_renewed,
            operations_renewed: status.operations_renewed,
            pages_bad: status.pages_bad,
            pages_lost: status.pages_lost,
            page_hits: status.page_hits,
            pages_switched: status.pages_switched,
            page_misses: status.page_misses,
            syncs: status.syncs,
            epochs_ms: status.epochs_ms,
            epochs_unproved: status.epochs_unproved,
        }
    }
}

/// The process that serves a mount.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Daemon {
    /// As it sees itself.
    pub(crate) pid: u32,
    /// The name space that this number is of, as /proc names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid_namespace: Option<String>,
    /// Of the mount, as after `-o`.
    pub(crate) options: String,
    pub(crate) version: String,
    /// Made with `--lab`: it can be damaged on purpose while it is used.
    #[serde(default)]
    pub(crate) lab: bool,
    /// How the memory of metadata is locked against stray writes, in words.
    #[serde(default)]
    pub(crate) metadata_pages: String,
    /// Which equations must hold: `all`, `store` or `none`.
    #[serde(default)]
    pub(crate) audit: Audited,
    /// What the reliability model says against the mode of protection that the mount was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) protection_warning: Option<String>,
    /// Where its log is, if it is in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<String>,
    /// The store had been closed in order when it was mounted; not so after a power cut.
    pub(crate) was_clean: bool,
    /// The recovery point that it was opened at.
    pub(crate) recovered_from: u64,
    /// Superblocks that no label had a good copy of when the store was mounted: a newer recovery point may have been lost.
    pub(crate) superblocks_lost: u64,
    /// Batches of the intent log replayed when the store was opened.
    pub(crate) batches_replayed: u64,
    /// Synced pages that it had lost by then: they read as an error. Paths are in the log of the mount.
    #[serde(default)]
    pub(crate) synced_pages_lost: u64,
    /// Batches left out, since they were not whole: a power cut has cut their sync short, or they have been damaged since.
    #[serde(default)]
    pub(crate) batches_torn: u64,
    /// Requests refused, as what they would have changed did not fit together.
    #[serde(default)]
    pub(crate) name_audit_failures: u64,
}

impl Figures {
    pub(crate) fn new(
        uuid: [u8; 16],
        snapshots: SnapshotFigures,
        (protection, of_store): (Protection, Protection),
        status: StoreStatus,
    ) -> Figures {
        Figures {
            uuid: show_uuid(&uuid),
            snapshots: snapshots.count,
            snapshots_kept_bytes: snapshots.kept_bytes,
            snapshot_deletions_count: snapshots.deletions.len() as u64,
            snapshot_deletion_runs_left: snapshots.deletions.iter().map(|deletion| deletion.runs_left).sum(),
            snapshot_deletions: snapshots.deletions.into_iter().take(DELETIONS_NAMED).map(Deletion::from).collect(),
            protection: protection.to_string(),
            protection_of_store: of_store.to_string(),
            epoch: status.epoch,
            objects: status.objects,
            space: SpaceFigures::from(&status.space),
            blocks_repaired: status.repaired,
            blocks_unrepaired: status.unrepaired,
            blocks_with_remains: status.remains,
            devices: status.devices,
            counters: status.counters,
        }
    }
}

pub(crate) fn show_uuid(bytes: &[u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(*bytes));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

impl StoreReport {
    /// Pages that went bad in memory before they were stored, and have not been written again.
    pub(crate) fn pages_bad(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.pages_bad)
    }

    /// Nothing but where it is.
    pub(crate) fn bare(store: &Path, condition: Condition, mounted_on: Option<&Path>) -> StoreReport {
        StoreReport {
            store: store.display().to_string(),
            condition,
            mounted_on: mounted_on.map(|directory| directory.display().to_string()),
            read_only: None,
            latched: false,
            stopped_at_opening: false,
            figures: None,
            cache: None,
            flashlog: None,
            flashlog_device: None,
            scrub: None,
            root_damage: None,
            not_stored: None,
            not_written: None,
            given_up: None,
            daemon: None,
        }
    }

    /// As JSON of at most so many bytes: where it would be longer, paths and names are cut; whoever asks knows the paths from elsewhere.
    pub(crate) fn to_json(&self, bytes_max: usize) -> Vec<u8> {
        output::json_within(self, bytes_max, |report| {
            cut(&mut report.store);
            report.mounted_on.as_mut().map(cut);
            report.read_only.as_mut().map(cut);
            report.root_damage.as_mut().map(cut);
            report.not_stored.as_mut().map(NotStored::shorten);
            report.not_written.as_mut().map(NotStored::shorten);
            report.given_up.as_mut().map(GivenUp::shorten);
            if let Some(set) = &mut report.flashlog {
                [&mut set.main, &mut set.log].into_iter().chain(set.problem.as_mut()).for_each(cut);
            }
            if let Some(figures) = &mut report.figures {
                figures.devices.iter_mut().for_each(cut);
                for deletion in &mut figures.snapshot_deletions {
                    deletion.name = deletion.name.chars().take(DELETION_NAME_CUT).collect();
                }
            }
            if let Some(daemon) = &mut report.daemon {
                daemon.log = None;
                daemon.protection_warning.as_mut().map(cut);
            }
        })
    }

    /// What a mount does not protect as that is how the store was made. Nothing where it was mounted in that mode on demand, of which the
    /// reliability model has something to say.
    pub(crate) fn unprotected_by_store(&self) -> Option<&'static str> {
        let figures = self.figures.as_ref()?;
        let was_asked_for = self.daemon.as_ref().is_some_and(|daemon| daemon.protection_warning.is_some());
        let is_so = is_of_none(&figures.protection) && is_of_none(&figures.protection_of_store) && !was_asked_for;
        is_so.then_some(
            "the store's own protection mode is none: contents of files are not verified, neither in memory nor on the disk; -o protection=auto, at each mount, takes a mode that does, for what is written from then on",
        )
    }

    /// What was found in memory to have been written to by nobody who may: blocks of the store's metadata, and pages of directories, links and
    /// attributes.
    pub(crate) fn scribbles(&self) -> u64 {
        let of_store = self.figures.as_ref().map_or(0, |figures| figures.counters.scribbles);
        of_store + self.cache.as_ref().map_or(0, |cache| cache.scribbles)
    }

    /// Whether it is on a Flashlog that has lost one of its devices.
    pub(crate) fn is_unprotected(&self) -> bool {
        self.flashlog.as_ref().is_some_and(|set| !set.protected)
    }

    /// Whether it is the backup of a set, or an earlier state, which is never closed.
    pub(crate) fn is_backup(&self) -> bool {
        self.flashlog_device.is_some()
    }

    fn headline(&self) -> String {
        let store = quoting::name(&self.store);
        match (self.condition, quoting::name(self.mounted_on.as_deref().unwrap_or("?"))) {
            (Condition::Mounted, directory) => format!("{directory}  ({store})"),
            (Condition::Abandoned, directory) => {
                format!("{directory}  ({store}): ABANDONED, its daemon has died")
            }
            (Condition::NotAnswering, directory) => format!("{directory}  ({store}): does NOT ANSWER"),
            (Condition::Inaccessible, directory) => {
                format!("{directory}  ({store}): another user's, made without allow_other; not accessible")
            }
            (Condition::Clean | Condition::Unclean, _) if self.is_backup() => format!("{store}: a backup, not mounted"),
            (Condition::Clean, directory) if self.mounted_on.is_some() => {
                format!("{store}: clean, but the daemon of its mount on {directory} has died")
            }
            (Condition::Clean, _) => format!("{store}: not mounted, clean"),
            (Condition::Unclean, directory) if self.mounted_on.is_some() => {
                format!("{store}: not closed in order, as the daemon of its mount on {directory} has died")
            }
            (Condition::Unclean, _) => {
                format!("{store}: not mounted, not closed in order; the next mount replays its intent log")
            }
            (Condition::WithoutLog, _) => {
                format!(
                    "{store}: on the main disk of a Flashlog, and its LOG IS NOT THERE, which may have what was written last"
                )
            }
        }
    }
}

impl Report for StoreReport {
    fn words(&self) -> String {
        let mut rows = Vec::new();
        let labels = std::iter::once("what to do").chain(std::iter::repeat(""));
        rows.extend(labels.zip(self.what_to_do()));
        if let Some(damage) = &self.root_damage {
            rows.push(("ROOT DIRECTORY", format!("cannot be read: {damage}")));
        }
        if let Some(reason) = &self.read_only {
            rows.push(("READ-ONLY", reason.clone()));
        }
        if let Some(figures) = &self.figures {
            let space = &figures.space;
            let (used, total) = (size::show(space.used_bytes), size::show(space.total_bytes));
            let quota = space.quota_bytes.map(|quota| format!(", quota {}", size::show(quota))).unwrap_or_default();
            rows.push((
                "space",
                format!("{used} of {total} used, {} available{quota}", size::show(space.available_bytes)),
            ));
            rows.push(("objects", figures.objects.to_string()));
            if !figures.protection.is_empty() {
                let own = &figures.protection_of_store;
                let also =
                    if *own == figures.protection { String::new() } else { format!("; the store's own mode: {own}") };
                rows.push(("protection", figures.protection.clone() + &also));
                let warning = self.daemon.as_ref().and_then(|daemon| daemon.protection_warning.clone());
                rows.extend(warning.map(|warning| ("", warning)));
                if is_of_none(own) && !is_of_none(&figures.protection) {
                    rows.push(("", UNVERIFIED.into()));
                }
            }
            if figures.snapshots > 0 {
                let kept = figures.snapshots_kept_bytes;
                let with = if figures.snapshot_deletions_count > 0 { " with the deleted ones" } else { "" };
                let kept = kept.map(|bytes| format!(", keeping {}{with}", size::show(bytes))).unwrap_or_default();
                let hint = match &self.mounted_on {
                    Some(directory) => {
                        format!("; each one: holdfast snapshot list {}", shell(Path::new(directory)))
                    }
                    None => String::new(),
                };
                rows.push(("snapshots", format!("{}{kept}{hint}", figures.snapshots)));
            }
            let goes_on = self.condition == Condition::Mounted && self.read_only.is_none();
            let what = if goes_on { "deleting" } else { "left to free" };
            let runs = |runs_left: u64| count(runs_left, "run of blocks", "runs of blocks");
            for Deletion { name, runs_left, .. } in &figures.snapshot_deletions {
                rows.push((what, format!("snapshot {}, {} to go", quoting::name(name), runs(*runs_left))));
            }
            let named = figures.snapshot_deletions.len() as u64;
            if figures.snapshot_deletions_count > named {
                let others = count(figures.snapshot_deletions_count - named, "other snapshot", "other snapshots");
                rows.push((what, format!("{others}; {} in all", runs(figures.snapshot_deletion_runs_left))));
            }
            let opened = if self.condition == Condition::Mounted { "mounted" } else { "opened for this" };
            rows.push(("recovery point", format!("epoch {}", figures.epoch)));
            let remains = match figures.blocks_with_remains {
                0 => String::new(),
                blocks => format!(
                    "; {} with free entries that are NOT EMPTY (nothing is lost)",
                    count(blocks, "block", "blocks")
                ),
            };
            rows.push((
                "blocks",
                match (figures.blocks_repaired, figures.blocks_unrepaired) {
                    // Opening has read next to nothing.
                    (0, 0) if self.condition != Condition::Mounted => {
                        "not read now; `holdfast check` reads them all".to_string()
                    }
                    // The last scrub may have been that of an earlier mount.
                    (0, 0) if self.scrub.as_ref().is_some_and(ScrubReport::has_losses) => {
                        "no further corrupt one met on the disk since it was mounted; see scrub".to_string()
                    }
                    (0, 0) => "no corrupt one met on the disk since it was mounted".to_string(),
                    (repaired, 0) => format!("{repaired} repaired since it was {opened}"),
                    (repaired, lost) => {
                        format!("{repaired} repaired, {lost} CORRUPT since it was {opened}; see `holdfast check`")
                    }
                } + &remains,
            ));
        }
        if let Some(set) = &self.flashlog {
            rows.extend(set.rows());
        }
        if let Some(OneDevice { role, set, at }) = &self.flashlog_device {
            rows.push(match at {
                Some(at) => ("Flashlog", format!("set {set} as it was, read-only: {at}")),
                None => ("Flashlog", format!("this is the {role} device of set {set}")),
            });
        }
        if let Some(cache) = &self.cache {
            let mut text = format!(
                "{} of {} in use, {} not yet written",
                size::show(cache.total_bytes.saturating_sub(cache.free_bytes)),
                size::show(cache.total_bytes),
                size::show(cache.dirty_bytes)
            );
            let mended = (cache.pages_reread + cache.pages_renewed).saturating_sub(cache.scribbles);
            if mended > 0 {
                text.push_str(&format!(", {} found corrupt IN MEMORY", count(mended, "page", "pages")));
            }
            if cache.operations_renewed > 0 {
                let times = count(cache.operations_renewed, "time", "times");
                text.push_str(&format!(
                    ", operations, or numbers about objects and the log, found corrupt IN MEMORY {times}"
                ));
            }
            if cache.attributes_renewed > 0 {
                let times = count(cache.attributes_renewed, "time", "times");
                text.push_str(&format!(", attributes found corrupt IN MEMORY {times}"));
            }
            rows.push(("memory", text));
            if cache.pages_bad > 0 {
                let pages = count(cache.pages_bad, "page", "pages");
                rows.push((
                    "NOT STORED",
                    format!(
                        "{pages} went bad in memory, or could not be put into a damaged file; errors until written again; `holdfast sync` has \
                         the log name the files"
                    ),
                ));
                rows.extend(self.not_stored.iter().flat_map(NotStored::lines).map(|line| ("", line)));
            }
            if cache.pages_lost > 0 {
                let pages = match cache.pages_lost {
                    1 => "1 page of a file went bad in memory before it was stored".to_string(),
                    pages => format!("{pages} pages of files went bad in memory before they were stored"),
                };
                let again = match cache.pages_lost.saturating_sub(cache.pages_bad) {
                    1 => "1 of these was".to_string(),
                    others => format!("{others} of these were"),
                };
                rows.push(("since mounted", format!("{pages}; {again} written again or cut off; the log has all")));
            }
        }
        if let Some(not_written) = &self.not_written {
            let files = count(not_written.files, "file", "files");
            rows.push((
                "NOT WRITTEN",
                format!("the last writes to {files} are in memory only: copy them elsewhere before it is unmounted"),
            ));
            rows.extend(not_written.lines().map(|line| ("", line)));
        }
        if let Some(given_up) = &self.given_up {
            rows.push(("GIVEN UP", given_up.line()));
            rows.extend(given_up.lines().map(|line| ("", line)));
        }
        let scribbles = self.scribbles();
        let found = self.figures.as_ref().map(|figures| &figures.counters);
        if let Some(counters) = found.filter(|counters| scribbles + counters.audit_failures > 0) {
            let mut found = Vec::new();
            found.extend((scribbles > 0).then(|| count(scribbles, "scribble", "scribbles")));
            found.extend(
                (counters.audit_failures > 0).then(|| count(counters.audit_failures, "logic bug", "logic bugs")),
            );
            let anew = count(counters.restarts, "recovery point", "recovery points");
            let (found, see) = (found.join(" and "), "the log names each, and nothing of it is on the disk");
            rows.push(("METADATA", format!("{found} found IN MEMORY, {anew} begun anew; {see}")));
        }
        if let Some(scrub) = self.scrub.as_ref().filter(|scrub| scrub.condition != ScrubCondition::Never) {
            rows.push(("scrub", scrub.line()));
        }
        if let Some(daemon) = &self.daemon {
            if daemon.lab {
                rows.push(("LAB", "its memory and its disk can be damaged on purpose: holdfast inject".to_string()));
            }
            rows.push(("options", daemon.options.clone()));
            if !daemon.metadata_pages.is_empty() {
                rows.push(("metadata", format!("pages {}", daemon.metadata_pages)));
            }
            if let Some(warning) = daemon.audit.warning() {
                rows.push(("audit", warning.into()));
            }
            let log = daemon.log.as_deref().map(|log| format!(", log in {log}")).unwrap_or_default();
            let whose = if holder::is_of_here(daemon) { "" } else { " of another name space" };
            rows.push(("daemon", format!("process {}{whose}, version {}{log}", daemon.pid, daemon.version)));
            if !daemon.was_clean {
                let batches = count(daemon.batches_replayed, "batch", "batches");
                rows.push(("recovered", format!("{batches} of the intent log, when it was mounted")));
            }
            if daemon.synced_pages_lost > 0 {
                let pages = count(daemon.synced_pages_lost, "synced page", "synced pages");
                rows.push((
                    "LOST",
                    format!("{pages}, found damaged in the intent log when it was mounted; see the daemon's log"),
                ));
            }
            if daemon.batches_torn > 0 {
                let batches = count(daemon.batches_torn, "batch", "batches");
                rows.push((
                    "left out",
                    format!("{batches} at the end of the intent log, not whole when it was mounted"),
                ));
            }
            if daemon.superblocks_lost > 0 {
                let lost = count(daemon.superblocks_lost, "superblock", "superblocks");
                rows.push(("perhaps older", format!("{lost} had no good copy when it was mounted")));
            }
        }
        format!("{}\n{}", self.headline(), table(&rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::SnapshotId;

    #[test]
    fn a_report_survives_json_and_tells_trouble_in_words() {
        let space = Space { total: 1000, free: 300, pending: 100, reserve: 50, reserved: 25, ..Space::default() };
        let status = StoreStatus { epoch: 7, space, unrepaired: 3, ..StoreStatus::default() };
        let mut report = StoreReport::bare(Path::new("/s"), Condition::Mounted, Some(Path::new("/m")));
        report.figures =
            Some(Figures::new([0xab; 16], SnapshotFigures::default(), (Protection::Uniform, Protection::Disk), status));
        report.read_only = Some("device /s: write failed at block 9".into());
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<StoreReport>(&json).unwrap(), report);
        let words = report.words();
        for part in ["/m  (/s)", "READ-ONLY", "block 9", "2.34 MiB of 3.91 MiB used, 1008 KiB available", "3 CORRUPT"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert_eq!(report.figures.as_ref().unwrap().uuid, "abababab-abab-abab-abab-abababababab");
        assert!(report.is_unwell(), "it has corrupt blocks");
        report.figures.as_mut().unwrap().blocks_unrepaired = 0;
        assert!(!report.is_unwell());
    }

    /// As many deletions at once as there can be, and paths as long as they can be.
    #[test]
    fn a_report_fits_whatever_is_in_it() {
        let deletion = |id: u16| SnapshotDeletion {
            id: SnapshotId(id),
            // What JSON makes six times as long.
            name: "\u{1}".repeat(255),
            runs_left: 1 << 27,
        };
        let snapshots = SnapshotFigures { deletions: (1..=4096).map(deletion).collect(), ..SnapshotFigures::default() };
        let long = "/\u{1}".repeat(2000);
        let status = StoreStatus { devices: vec![long.clone()], ..StoreStatus::default() };
        let mut report = StoreReport::bare(Path::new(&long), Condition::Mounted, Some(Path::new(&long)));
        report.figures = Some(Figures::new([0; 16], snapshots, (Protection::Uniform, Protection::Uniform), status));
        let json = report.to_json(16_000);
        assert!(json.len() <= 16_000, "{}", json.len());
        let reply: StoreReport = serde_json::from_slice(&json).unwrap();
        let figures = reply.figures.as_ref().unwrap();
        assert_eq!(figures.snapshot_deletions.len(), DELETIONS_NAMED);
        assert_eq!((figures.snapshot_deletions_count, figures.snapshot_deletion_runs_left), (4096, 4096 << 27));
        assert!(reply.words().contains("4088 other snapshots"), "{}", reply.words());
        // With names as they are, and short paths, it is not cut.
        (report.store, report.mounted_on) = ("/s".into(), None);
        report.figures.as_mut().unwrap().devices.clear();
        assert_eq!(serde_json::from_slice::<StoreReport>(&report.to_json(16_000)).unwrap(), report);
        // Nobody goes on with them where nothing changes.
        assert!(report.words().contains("deleting"));
        report.read_only = Some("mounted with the option ro".into());
        assert!(!report.words().contains("deleting") && report.words().contains("left to free"));
    }

    #[test]
    fn a_bare_report_has_no_figures() {
        let report = StoreReport::bare(Path::new("/s"), Condition::Abandoned, Some(Path::new("/m")));
        let json = serde_json::to_string(&report).unwrap();
        assert!(!json.contains("epoch"), "{json}");
        assert_eq!(serde_json::from_str::<StoreReport>(&json).unwrap(), report);
    }

    #[test]
    fn impossible_figures_do_not_overflow() {
        let space = Space {
            total: u64::MAX,
            free: u64::MAX,
            pending: u64::MAX,
            reserve: u64::MAX,
            reserved: 1,
            ..Space::default()
        };
        assert_eq!(SpaceFigures::from(&space).available_bytes, 0);
    }
}
