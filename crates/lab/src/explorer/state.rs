//! One crash state: an image is recovered, and everything about the result is checked.

use super::history::History;
use super::objects::Objects;
use super::observe::{list, observe};
use super::oracle::judge;
use super::snapshots::{Kept, judge_again, judge_snapshots};
use super::workload::{Moment, Run, model_at};
use crate::device::{CrashMode, Recorder};
use crate::model::{Difference, compare};
use crate::stack::{Stack, StackOptions};
use holdfast_block::{Device, MemoryDevice};
use holdfast_naming::Atime;
use holdfast_object::{DomainId, ManualClock, ObjectStore, Snapshots};
use holdfast_physical::DeletionSlice;
use holdfast_physical::check::{CheckOptions, check};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::Arc;

/// Page frames of the recovering stack.
const FRAMES: u32 = 1024;
/// Runs in which it frees what deleted snapshots had: in many steps, in some, in one.
const SLICES: [usize; 3] = [2, 8, 1000];
/// After a crash.
const RECOVERY_NS: u64 = 3_600_000_000_000;

/// What was seen of a state that is in order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Batches of the intent log replayed.
    pub(super) batches: u64,
    /// The whole tree was compared with the model's.
    pub(super) compared_with_model: bool,
    /// Snapshots that were as they should.
    pub(super) snapshots: u64,
    /// Crashes during the recovery, and of what comes after it.
    pub(super) nested: u64,
    /// States, those among them, in which a deleted snapshot was not all free yet.
    pub(super) deletions_left: u64,
}

/// For a stack that recovers: one that frees what deleted snapshots had in so many runs at a time.
fn options(runs: usize) -> StackOptions {
    let mut options = StackOptions::new(FRAMES);
    options.physical.deletion_slice = DeletionSlice { runs, blocks: 8 * runs as u64 };
    options
}

fn has_deletion_left(stack: &Stack) -> u64 {
    u64::from(!stack.cache.snapshot_deletions().is_empty())
}

/// Checks one image of a crash at `position`. With `nested`, so many crashes of its recovery too.
pub(super) fn examine(
    run: &Run,
    position: usize,
    image: &MemoryDevice,
    nested: u64,
    rng: &mut Pcg64Mcg,
) -> Result<Seen, String> {
    let recorder = Arc::new(Recorder::in_memory(image));
    let clock = Arc::new(ManualClock::new(run.now_ns + RECOVERY_NS, 0));
    let options = options(SLICES[rng.random_range(0..SLICES.len())]);
    let stack =
        Stack::open(recorder.clone(), &options, &clock).map_err(|error| format!("the store does not open: {error}"))?;
    let recovered_at = recorder.position();
    let mut seen =
        Seen { batches: stack.recovered.batches, deletions_left: has_deletion_left(&stack), ..Seen::default() };
    if let Some(reason) = stack.module.status().read_only {
        return Err(format!("the store opens for reading only: {reason}"));
    }
    let found = observe(&stack)?;
    let prefix = judge(&run.history, position, &found, seen.batches == 0)?;
    check_names(&stack)?;
    seen.compared_with_model = compare_with_model(&stack, run, prefix, &found)?;
    let kept = judge_snapshots(&run.history, position, &stack, |sequence| model_at(&run.moments, sequence))?;
    seen.snapshots = kept.len() as u64;
    let gone = kept.choose(rng);
    go_on(&stack, gone)?;
    drop(stack);
    check_device(recorder.clone())?;
    let images = recorder.crash_images();
    for number in 0..nested {
        // In the recovery, or when it is over and a snapshot is being deleted.
        let is_late = rng.random_bool(0.5);
        let last = *images.positions().end();
        let at = rng.random_range(if is_late { recovered_at..=last } else { 0..=recovered_at });
        let mode = CrashMode::ALL[rng.random_range(0..CrashMode::ALL.len())];
        let mut image_rng = Pcg64Mcg::seed_from_u64(rng.random());
        let image = images.image(at, mode, &mut image_rng);
        let before = Before { objects: &found, kept: &kept, gone: gone.filter(|_| is_late), is_late };
        seen.deletions_left += examine_again(&run.history, position, &image, &before, &options, &clock)
            .map_err(|error| format!("crash {number} of the recovery, at its position {at}, {mode:?}: {error}"))?;
        seen.nested += 1;
    }
    Ok(seen)
}

/// What a recovery found.
struct Before<'a> {
    objects: &'a Objects,
    kept: &'a [Kept],
    /// This snapshot was being deleted afterwards.
    gone: Option<&'a Kept>,
    /// What has no name was being reclaimed afterwards.
    is_late: bool,
}

impl Before<'_> {
    /// What has no name was there, and may be gone in part or all.
    fn put_back_orphans(&self, found: &mut Objects) {
        for (id, orphan) in self.objects.iter().filter(|(_, object)| object.attributes.nlink == 0) {
            for id in [*id, orphan.attributes.xattr] {
                if let Some(object) = self.objects.get(&id) {
                    found.insert(id, object.clone());
                }
            }
        }
    }
}

/// A recovery that was cut off, or what came after it, and that was done again finds the same. Gives 1 if it found a deletion of a
/// snapshot not yet done.
fn examine_again(
    history: &History,
    position: usize,
    image: &MemoryDevice,
    before: &Before<'_>,
    options: &StackOptions,
    clock: &Arc<ManualClock>,
) -> Result<u64, String> {
    let device = Arc::new(image.clone());
    let stack =
        Stack::open(device.clone(), options, clock).map_err(|error| format!("the store does not open: {error}"))?;
    let deletions_left = has_deletion_left(&stack);
    let mut found = observe(&stack)?;
    if before.is_late {
        before.put_back_orphans(&mut found);
    }
    judge(history, position, &found, false)?;
    for (id, object) in before.objects {
        let Some(again) = found.get(id) else { return Err(format!("{id} was recovered and is gone")) };
        let pages = object.pages_unlike(again);
        if object.attributes != again.attributes || !pages.is_empty() {
            let (before, now) = (&object.attributes, &again.attributes);
            return Err(format!("{id} was recovered as {before:?} and is now {now:?}, pages unlike: {pages:?}"));
        }
    }
    if let Some(id) = found.keys().find(|id| !before.objects.contains_key(id)) {
        return Err(format!("{id} was not recovered at first and is there now"));
    }
    judge_again(&stack, history, before.kept, before.gone)?;
    check_names(&stack)?;
    go_on(&stack, None)?;
    drop(stack);
    check_device(device)?;
    Ok(deletions_left)
}

/// Names, links and objects fit together.
fn check_names(stack: &Stack) -> Result<(), String> {
    let report = holdfast_naming::check::check(&*stack.cache, list(stack)?);
    if report.is_clean() && !report.incomplete {
        return Ok(());
    }
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    Err(format!("the name space is damaged:\n  {}", findings.join("\n  ")))
}

/// Compares the tree with the model's after the same transactions, if the model was kept there: all of it if the regular
/// files are as after these transactions too, otherwise the names.
fn compare_with_model(stack: &Stack, run: &Run, prefix: u64, found: &Objects) -> Result<bool, String> {
    let at = run.moments.partition_point(|moment| moment.sequence < prefix);
    let Some(Moment { sequence, model, driver }) = run.moments.get(at) else { return Ok(false) };
    if *sequence != prefix {
        return Ok(false);
    }
    let namespace = stack.namespace(Atime::Never);
    // Contents of a file may be those of another prefix; the oracle has checked them.
    let of_files =
        ["mode", "owner", "size", "atime", "mtime", "ctime", "contents", "names of extended attributes", "value"];
    let mut differences: Vec<Difference> = compare(&namespace, model);
    differences.retain(|difference| !of_files.contains(&difference.what));
    for (node, inode) in model.nodes().filter(|(_, inode)| inode.nlink > 0) {
        let object = driver.object(node).and_then(|id| found.get(&id));
        if object.is_none_or(|object| object.attributes.kind != inode.kind) {
            return Err(format!("{node:?} of the model is not there as {:?}", inode.kind));
        }
    }
    if differences.is_empty() {
        return Ok(true);
    }
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    Err(format!("the tree differs from the model after transaction {prefix}:\n  {}", lines.join("\n  ")))
}

/// The store is as good as any: what has no name is reclaimed, a snapshot is deleted, and what is left is in order.
fn go_on(stack: &Stack, gone: Option<&Kept>) -> Result<(), String> {
    if let Some(Kept { name, .. }) = gone {
        stack.cache.snapshot_delete(name).map_err(|error| format!("delete of snapshot {name}: {error}"))?;
    }
    stack.free_deleted().map_err(|error| format!("what deleted snapshots had is not freed: {error}"))?;
    let namespace = stack.namespace(Atime::Never);
    namespace.reclaim_orphans().map_err(|error| format!("orphans cannot be reclaimed: {error}"))?;
    namespace.sync_all().map_err(|error| format!("sync after the recovery: {error}"))?;
    stack.check()?;
    let orphans = stack.module.orphans(DomainId::MAIN).map_err(|error| format!("orphans: {error}"))?;
    if !orphans.is_empty() {
        return Err(format!("orphans left: {orphans:?}"));
    }
    check_names(stack)?;
    stack.close().map_err(|error| format!("close after the recovery: {error}"))
}

/// Everything on the device fits together.
fn check_device(device: Arc<dyn Device>) -> Result<(), String> {
    let report = check(device, &CheckOptions { ends: true, ..CheckOptions::default() })
        .map_err(|error| format!("the check cannot begin: {error}"))?;
    if report.found == 0 && report.clean && !report.incomplete {
        return Ok(());
    }
    let findings: Vec<String> = report.findings.iter().take(8).map(ToString::to_string).collect();
    Err(format!("the check finds {} things wrong, clean {}:\n  {}", report.found, report.clean, findings.join("\n  ")))
}
