//! One block damaged, one thing done, one verdict.

use super::foresight::{Check, Foresight};
use super::reference::{Reference, SEAL_NS, catalogue};
use super::{Trial, Verdict, Work, copies};
use crate::caught::caught;
use crate::look::{Seen, walk};
use crate::maker::{Maker, STEP_NS};
use crate::model::{Action, Data, Driver, Model, Node};
use crate::stack::Stack;
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use holdfast_naming::{Atime, Namespace, NewNode, XattrMode};
use holdfast_object::{Clock, Kind, ObjectId, SnapshotId, Snapshots};
use holdfast_physical::check::{CheckOptions, check};
use holdfast_physical::inject::{
    self, BlockClass, Catalogue, Change, Copies, Fault, InjectError, Injection, Selection,
};
use std::sync::Arc;

/// What was met while the work was done.
#[derive(Default)]
struct Met {
    seen: Seen,
    repaired: u64,
    unrepaired: u64,
    /// The state found is one from before the last things that were made durable.
    older: bool,
    /// The mount has said that something may be missing.
    is_told: bool,
}

impl Met {
    /// What `holdfast mount` tells its user.
    fn hear(&mut self, stack: &Stack) {
        let recovered = &stack.recovered;
        let lost = recovered.lost.len() as u64 + recovered.batches_torn + stack.module.unknown_slots();
        self.is_told |= lost > 0 || stack.cache.status().read_only.is_some();
    }

    fn count(&mut self, stack: &Stack, since: (u64, u64)) {
        let now = counts(stack);
        (self.repaired, self.unrepaired) = (self.repaired + now.0 - since.0, self.unrepaired + now.1 - since.1);
    }
}

fn counts(stack: &Stack) -> (u64, u64) {
    let status = stack.cache.store_status();
    (status.repaired, status.unrepaired)
}

/// Whether a store has a block of the kind, and another one if the fault needs two.
pub(super) fn fits(store: &Reference, class: BlockClass, fault: Fault) -> bool {
    match fault {
        Fault::Duplicate | Fault::Swap => {
            plan(&store.image, &store.catalogue, class, fault, false, 0).is_ok_and(|plan| plan.is_some())
        }
        Fault::Flip { .. } | Fault::FlipBit { .. } | Fault::Drop => store.catalogue.of_class(class).next().is_some(),
    }
}

/// Damages a store, and works with it. `None` where there is nothing to damage in this way.
pub(super) fn run(
    store: &Reference,
    class: BlockClass,
    fault: Fault,
    all_copies: bool,
    work: Work,
    seed: u64,
) -> Result<Option<Trial>, String> {
    run_with(store, (class, fault, all_copies, work, seed), &|device| check(device, &CheckOptions::default()))
}

/// As [`run`], with this check right after the damage.
fn run_with(
    store: &Reference,
    (class, fault, all_copies, work, seed): (BlockClass, Fault, bool, Work, u64),
    look_first: Check<'_>,
) -> Result<Option<Trial>, String> {
    let plan = |device: &MemoryDevice, catalogue: &Catalogue| plan(device, catalogue, class, fault, all_copies, seed);
    let device = Arc::new(store.image.clone());
    let mut trial =
        Trial { class, fault, all_copies, work, seed, verdict: Verdict::NotMet, message: None, wrong: Vec::new() };
    let mut met = Met::default();
    let mut done = None;
    if work != Work::Remount {
        let Some(injection) = plan(&device, &store.catalogue)? else { return Ok(None) };
        strike(&device, &injection)?;
        done = Some((Foresight::of(&device, &injection, look_first), injection));
    }
    let outcome = caught(|| match work {
        Work::Mount => mount(store, &device, &mut met).map(drop),
        Work::Read => read(store, &device, &mut met),
        Work::Create => create(store, &device, &mut met),
        Work::Remount => remount(store, &device, &mut met, class, |device| {
            let Some(injection) = plan(device, &catalogue(device)?)? else { return Ok(false) };
            strike(device, &injection)?;
            done = Some((Foresight::of(device, &injection, look_first), injection));
            Ok(true)
        }),
    });
    met.seen.wrong.extend(outcome.err());
    let Some((foresight, injection)) = done else { return Ok(None) };
    judge(&device, &injection, &foresight, met, &mut trial)?;
    Ok(Some(trial))
}

fn plan(
    device: &MemoryDevice,
    catalogue: &Catalogue,
    class: BlockClass,
    fault: Fault,
    all_copies: bool,
    seed: u64,
) -> Result<Option<Injection>, String> {
    let most = catalogue.of_class(class).map(|target| target.copies.len()).max().unwrap_or(0);
    if all_copies && most < 2 {
        return Ok(None);
    }
    let mut selection =
        Selection { class, object: None, page: None, held: true, copies: copies(all_copies, most, seed), seed };
    loop {
        return match inject::plan(device, catalogue, &selection, fault) {
            Ok(injection) if all_copies && injection.target.copies.len() < 2 => Ok(None),
            Ok(injection) => Ok(Some(injection)),
            Err(InjectError::NoSuchCopy { .. }) => {
                selection.copies = Copies::One(0);
                continue;
            }
            // In a place where the bytes are so already, and where there is no other.
            Err(InjectError::ZeroAlready(_) | InjectError::NoOther(_) | InjectError::NoSuchBlock(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
    }
}

fn strike(device: &MemoryDevice, injection: &Injection) -> Result<(), String> {
    let blocks = injection.changes.iter().map(|change| (change.block, &*change.after));
    inject::write(device, blocks).map_err(|error| error.to_string())
}

/// Opens and reclaims, as a mount does. `None` if it is refused.
fn mount(store: &Reference, device: &Arc<MemoryDevice>, met: &mut Met) -> Result<Option<Opened>, String> {
    let stack = match store.open(device.clone()) {
        Ok(stack) => stack,
        Err(error) => {
            met.seen.error("mount", &error.into());
            return Ok(None);
        }
    };
    met.hear(&stack);
    let namespace = stack.namespace(Atime::Never);
    if let Some(reason) = stack.cache.status().read_only {
        met.seen.read_only = true;
        met.seen.message("mount", reason);
    } else if let Err(error) = namespace.reclaim_orphans() {
        met.seen.error_in(&namespace, "orphans", &error);
    }
    met.count(&stack, (0, 0));
    // Whatever else is done: what is there is right, or an error with a place.
    let mut looked = Seen::default();
    met.older = look(store, &namespace, &store.model, &mut looked);
    met.seen.wrong.append(&mut looked.wrong);
    Ok(Some(Opened { stack, looked }))
}

/// A store that was mounted, and what reading all of it met.
struct Opened {
    stack: Stack,
    looked: Seen,
}

/// Reads everything, now and in the snapshots. Whether an older state is found, complete.
fn look(store: &Reference, namespace: &Namespace, model: &Model, seen: &mut Seen) -> bool {
    let mut now = walk(namespace, model, &store.driver, SnapshotId::LIVE);
    let mut is_older = false;
    if !now.wrong.is_empty() {
        for older in &store.older {
            let then = walk(namespace, older, &store.driver, SnapshotId::LIVE);
            if then.wrong.is_empty() {
                (now, is_older) = (then, true);
                break;
            }
        }
    }
    let add = |from: &mut Seen, seen: &mut Seen| {
        seen.errors.append(&mut from.errors);
        seen.wrong.append(&mut from.wrong);
    };
    add(&mut now, seen);
    for (id, model) in &store.snapshots {
        add(&mut walk(namespace, model, &store.driver, *id), seen);
    }
    is_older
}

fn read(store: &Reference, device: &Arc<MemoryDevice>, met: &mut Met) -> Result<(), String> {
    let Some(Opened { stack, mut looked, .. }) = mount(store, device, met)? else { return Ok(()) };
    met.seen.errors.append(&mut looked.errors);
    let mounted = (met.repaired, met.unrepaired);
    met.count(&stack, mounted);
    Ok(())
}

fn create(store: &Reference, device: &Arc<MemoryDevice>, met: &mut Met) -> Result<(), String> {
    // Which state it comes up in, found out on a medium of its own: nothing may be read here before.
    let probe = store.open(Arc::new(MemoryDevice::clone(device)));
    let stack = match store.open(device.clone()) {
        Ok(stack) => stack,
        Err(error) => {
            met.seen.error("mount", &error.into());
            return Ok(());
        }
    };
    met.hear(&stack);
    let mut model = store.model.clone();
    if let Ok(probe) = probe {
        let probe = probe.namespace(Atime::Never);
        if !walk_is_right(&probe, &model, &store.driver)
            && let Some(older) = store.older.iter().find(|older| walk_is_right(&probe, older, &store.driver))
        {
            (model, met.older) = (older.clone(), true);
        }
    }
    let namespace = stack.namespace(Atime::Never);
    let mut driver = store.driver.clone();
    driver.forget_gone(&model);
    driver.replace_namespace(namespace.clone());
    create_all(&stack, &mut driver, &mut model, &mut met.seen);
    let snapshot = stack.cache.snapshot_create("new");
    if let Err(error) = snapshot.map(drop).and_then(|()| stack.close()) {
        met.seen.error_in(&namespace, "snapshot and unmount", &error.into());
    }
    met.count(&stack, (0, 0));
    let mut after = walk(&stack.namespace(Atime::Never), &model, &driver, SnapshotId::LIVE);
    met.seen.wrong.append(&mut after.wrong);
    Ok(())
}

fn walk_is_right(namespace: &Namespace, model: &Model, driver: &Driver) -> bool {
    walk(namespace, model, driver, SnapshotId::LIVE).wrong.is_empty()
}

/// In every directory a file with contents and an extended attribute.
fn create_all(stack: &Stack, driver: &mut Driver, model: &mut Model, seen: &mut Seen) {
    let directories: Vec<Node> = model
        .nodes()
        .filter(|(_, inode)| inode.kind == Kind::Directory && inode.nlink > 0)
        .map(|(node, _)| node)
        .collect();
    for parent in directories {
        let node = Node(model.created());
        let data = Data { seed: u64::from(node.0), length: 2 * BLOCK_SIZE };
        let value = Data { seed: 5, length: 20 };
        let actions = [
            Action::Mknod { parent, name: b"new".to_vec(), node: NewNode::Regular, mode: 0o600 },
            Action::Write { node, offset: 0, data, clear_set_ids: false },
            Action::SetXattr { node, name: b"user.new".to_vec(), value, mode: XattrMode::Set },
        ];
        for action in actions {
            stack.clock.advance_ns(STEP_NS);
            match driver.apply(&action) {
                Ok(_) => drop(model.apply(&action, stack.clock.now())),
                Err(error) => {
                    seen.error_in(driver.namespace(), &format!("{action:?}"), &error);
                    break;
                }
            }
        }
    }
}

/// In use, damaged, changed, unmounted, mounted. For a block of the `class` that there would be none of otherwise, what is done
/// before the damage makes one.
fn remount(
    store: &Reference,
    device: &Arc<MemoryDevice>,
    met: &mut Met,
    class: BlockClass,
    mut damage: impl FnMut(&MemoryDevice) -> Result<bool, String>,
) -> Result<(), String> {
    let stack = store.open(device.clone()).map_err(|error| error.to_string())?;
    let namespace = stack.namespace(Atime::Never);
    namespace.reclaim_orphans().map_err(|error| error.to_string())?;
    let mut seen = Seen::default();
    look(store, &namespace, &store.model, &mut seen);
    if let Some(error) = seen.errors.pop().or(seen.wrong.pop()) {
        return Err(format!("before any damage: {error}"));
    }
    let mut driver = store.driver.clone();
    driver.forget_gone(&store.model);
    driver.replace_namespace(namespace);
    let mut maker = Maker { driver, model: store.model.clone(), stack };
    if class == BlockClass::Map {
        // The map of orphans is empty once those that the mount found have been reclaimed: a file is removed that is in use.
        let (parent, name) = (Node::ROOT, b"file 11".to_vec());
        maker.act(Action::Lookup { parent, name: name.clone() })?;
        maker.act(Action::Unlink { parent, name })?;
    }
    maker.act(Action::SyncAll)?;
    if class == BlockClass::IntentLog {
        // Else there is nothing in it.
        let file =
            maker.model.nodes().find(|(_, inode)| inode.kind == Kind::Regular && inode.nlink > 0).map(|(node, _)| node);
        let file = file.ok_or("the store has no file")?;
        for seed in [91, 92] {
            maker.write(file, 0, seed, BLOCK_SIZE)?;
            maker.act(Action::Sync { node: file, data_only: false })?;
            maker.stack.clock.advance_ns(SEAL_NS);
            maker.stack.cache.tick().map_err(|error| error.to_string())?;
        }
    }
    if !damage(device)? {
        return Ok(());
    }
    let before = counts(&maker.stack);
    create_all(&maker.stack, &mut maker.driver, &mut maker.model, &mut met.seen);
    if let Err(error) = maker.stack.close() {
        met.seen.error_in(maker.driver.namespace(), "unmount", &error.into());
    }
    met.count(&maker.stack, before);
    let Maker { driver, mut model, .. } = maker;
    model.end_sessions();
    let again = match store.open(device.clone()) {
        Ok(stack) => stack,
        Err(error) => {
            met.seen.error("mount", &error.into());
            return Ok(());
        }
    };
    let namespace = again.namespace(Atime::Never);
    if let Some(reason) = again.cache.status().read_only {
        met.seen.message("mount", reason);
    } else if let Err(error) = namespace.reclaim_orphans() {
        met.seen.error_in(&namespace, "orphans", &error);
    }
    met.count(&again, (0, 0));
    let mut after = walk(&namespace, &model, &driver, SnapshotId::LIVE);
    met.seen.wrong.append(&mut after.wrong);
    for (id, model) in &store.snapshots {
        met.seen.wrong.append(&mut walk(&namespace, model, &store.driver, *id).wrong);
    }
    let root = namespace.getattr(ObjectId::ROOT);
    if let Err(error) = root {
        met.seen.error_in(&namespace, "root", &error);
    }
    Ok(())
}

/// The verdict, and the promises.
fn judge(
    device: &Arc<MemoryDevice>,
    injection: &Injection,
    foresight: &Foresight,
    met: Met,
    trial: &mut Trial,
) -> Result<(), String> {
    let Met { seen, repaired, unrepaired, older, is_told } = met;
    trial.message = seen.errors.first().cloned();
    trial.wrong = seen.wrong;
    let (bad, found) = left(device, injection);
    trial.verdict = match () {
        () if !seen.errors.is_empty() || seen.read_only || unrepaired > 0 => Verdict::Error,
        () if older => Verdict::Older,
        () if repaired > 0 || bad == 0 => Verdict::Recovered,
        () => Verdict::NotMet,
    };
    if !foresight.untold.is_empty() {
        let blocks = &foresight.untold;
        trial.wrong.push(format!("a check before the work says nothing of blocks that were struck: {blocks:?}"));
    }
    if older {
        if !foresight.is_told {
            trial.wrong.push("the state is an older one, and a check had found nothing".into());
        }
        if !is_told {
            trial.wrong.push("the state is an older one, and the mount has not said so".into());
        }
    }
    if bad > 0 && trial.verdict == Verdict::NotMet && !found {
        trial.wrong.push("the damage is in use, was not met, and a check does not find it".into());
    }
    if trial.verdict == Verdict::Recovered && bad == injection.changes.len() {
        trial.wrong.push("counted as repaired, and every block that was struck is bad".into());
    }
    // All of these are read, from the first copy.
    let all_read =
        [BlockClass::ObjectTable, BlockClass::BlockTree, BlockClass::Directory, BlockClass::Xattr, BlockClass::Symlink];
    let is_first = injection.changes.iter().any(|change| change.block == injection.target.copies[0]);
    let is_read = trial.work == Work::Read && all_read.contains(&trial.class) && is_first;
    if is_read && !trial.all_copies && trial.verdict != Verdict::Recovered {
        trial.wrong.push("it was read, the other copy was good, and it is bad as before".into());
    }
    // Of two blocks that are swapped, both are struck.
    let other = injection.other.as_ref().filter(|_| trial.fault == Fault::Swap);
    let struck = std::iter::once(&injection.target).chain(other);
    let has_copy = !trial.all_copies && struck.into_iter().all(|target| target.copies.len() > 1);
    if has_copy && matches!(trial.verdict, Verdict::Error | Verdict::Older) {
        let said = trial.message.as_deref().unwrap_or("counted as beyond repair");
        trial.wrong.push(format!("a copy was good, and yet: {said}"));
    }
    Ok(())
}

/// How many of the blocks that were struck a check finds bad, or would if it got as far; and whether it finds anything.
fn left(device: &Arc<MemoryDevice>, injection: &Injection) -> (usize, bool) {
    let shared: Arc<dyn Device> = Arc::new(MemoryDevice::clone(device));
    let unchanged = |change: &Change| inject::read(&*shared, change.block).is_ok_and(|now| now == change.after);
    match check(shared.clone(), &CheckOptions::default()) {
        Err(_) => (injection.changes.iter().filter(|change| unchanged(change)).count(), true),
        Ok(report) => {
            let is_bad = |change: &&Change| {
                let here = report.findings.iter().any(|finding| finding.place.address == Some(change.block));
                here || (report.incomplete && unchanged(change))
            };
            (injection.changes.iter().filter(is_bad).count(), report.unrepaired() > 0)
        }
    }
}

#[cfg(test)]
mod tests;
