//! Mounting, reading and changing a damaged store.

use super::damage::{Copies, Fault, device};
use super::reference::{BlockKind, Reference};
use crate::caught::caught;
use crate::look::{Seen, walk};
use crate::model::{Action, Data, Driver, Model};
use crate::stack::{Stack, StackOptions};
use holdfast_block::{BLOCK_SIZE, Device};
use holdfast_naming::{Atime, Namespace, NewNode, SetAttr, XattrMode};
use holdfast_object::{Clock, Kind, ManualClock, SnapshotId};
use std::sync::Arc;

/// What became of a phase of a trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The damage was not met, or did not matter.
    Fine,
    /// Met, and put right from another copy.
    Repaired,
    /// What needs the block fails with an error that names the place; the rest is right.
    Error,
    /// Met, and counted in the status; nothing else depends on it.
    Counted,
    /// Everything is there, but no changes are taken.
    ReadOnly,
    /// The store does not open; the error says why.
    Refused,
    /// All is as it was before the last thing that was made durable.
    Older,
    /// The phase before had ended it.
    NotReached,
}

impl Phase {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Fine => "fine",
            Phase::Repaired => "repaired",
            Phase::Error => "error",
            Phase::Counted => "counted",
            Phase::ReadOnly => "read-only",
            Phase::Refused => "refused",
            Phase::Older => "older state",
            Phase::NotReached => "–",
        }
    }
}

/// One trial.
#[derive(Clone, Debug)]
pub struct Cell {
    /// What was struck.
    pub kind: BlockKind,
    /// How.
    pub fault: Fault,
    /// How many copies of it.
    pub copies: Copies,
    /// Opening the store and reclaiming what has no name.
    pub mount: Phase,
    /// Reading everything.
    pub read: Phase,
    /// Changing everything.
    pub change: Phase,
    /// The first error met, in its own words.
    pub message: Option<String>,
    /// What must never be: wrong bytes, panics, errors without a place.
    pub wrong: Vec<String>,
    /// Which of the older states was found.
    older: Option<usize>,
}

/// What became of a phase in which this was seen, given how many blocks were repaired, and how many could not be.
fn phase_of(seen: &Seen, (repaired, unrepaired): (u64, u64)) -> Phase {
    match () {
        () if !seen.errors.is_empty() => Phase::Error,
        () if seen.read_only => Phase::ReadOnly,
        () if repaired > 0 => Phase::Repaired,
        () if unrepaired > 0 => Phase::Counted,
        () => Phase::Fine,
    }
}

/// One trial of a kind of block that the store has.
pub(super) fn run(store: &Reference, kind: BlockKind, fault: Fault, copies: Copies) -> Cell {
    let mut cell = Cell {
        kind,
        fault,
        copies,
        mount: Phase::NotReached,
        read: Phase::NotReached,
        change: Phase::NotReached,
        message: None,
        wrong: Vec::new(),
        older: None,
    };
    for part in [mount_and_read, mount_and_change] {
        let outcome = caught(|| {
            let device = device(&store.image, &store.targets[&kind], fault, copies);
            part(store, device, &mut cell);
            Ok(())
        });
        cell.wrong.extend(outcome.err());
    }
    cell
}

fn open(store: &Reference, device: Arc<dyn Device>) -> Result<Stack, holdfast_object::Error> {
    Stack::open(device, &StackOptions::new(1024), &Arc::new(ManualClock::new(store.now_ns, 0)))
}

/// Opens and reclaims, as a mount does.
fn mount(store: &Reference, device: Arc<dyn Device>, cell: &mut Cell) -> Option<(Stack, Arc<Namespace>)> {
    let stack = match open(store, device) {
        Ok(stack) => stack,
        Err(error) => {
            cell.mount = Phase::Refused;
            cell.message.get_or_insert(error.to_string());
            return None;
        }
    };
    let namespace = stack.namespace(Atime::Never);
    let mut seen = Seen { read_only: stack.cache.status().read_only.is_some(), ..Seen::default() };
    if let Some(reason) = stack.cache.status().read_only {
        cell.message.get_or_insert(reason);
    } else if let Err(error) = namespace.reclaim_orphans() {
        seen.error_in(&namespace, "orphans", &error);
    }
    finish(&mut cell.message, &mut cell.wrong, &seen);
    cell.mount = phase_of(&seen, counts(&stack, (0, 0)));
    Some((stack, namespace))
}

/// Blocks repaired, and found damaged beyond repair, since these counts.
fn counts(stack: &Stack, since: (u64, u64)) -> (u64, u64) {
    let status = stack.cache.store_status();
    (status.repaired - since.0, status.unrepaired - since.1)
}

fn finish(message: &mut Option<String>, wrong: &mut Vec<String>, seen: &Seen) {
    if let Some(error) = seen.errors.first() {
        message.get_or_insert(error.clone());
    }
    wrong.extend(seen.wrong.iter().cloned());
}

fn mount_and_read(store: &Reference, device: Arc<dyn Device>, cell: &mut Cell) {
    let Some((stack, namespace)) = mount(store, device, cell) else { return };
    let before = counts(&stack, (0, 0));
    let mut seen = walk(&namespace, &store.model, &store.driver, SnapshotId::LIVE);
    if !seen.wrong.is_empty() {
        for (number, model) in store.older.iter().enumerate() {
            let older = walk(&namespace, model, &store.driver, SnapshotId::LIVE);
            if older.wrong.is_empty() {
                (cell.mount, cell.older) = (Phase::Older, Some(number));
                seen = older;
                break;
            }
        }
    }
    finish(&mut cell.message, &mut cell.wrong, &seen);
    cell.read = phase_of(&seen, counts(&stack, before));
}

fn mount_and_change(store: &Reference, device: Arc<dyn Device>, cell: &mut Cell) {
    let Some((stack, namespace)) = mount(store, device.clone(), cell) else { return };
    let mut model = store.model.clone();
    if let Some(number) = cell.older {
        cell.mount = Phase::Older;
        model = store.older[number].clone();
    }
    let mut driver = store.driver.clone();
    driver.replace_namespace(namespace.clone());
    let before = counts(&stack, (0, 0));
    let mut seen = Seen::default();
    for action in changes(&model) {
        stack.clock.advance_ns(1_000_003);
        match driver.apply(&action) {
            Ok(_) => drop(model.apply(&action, stack.clock.now())),
            Err(error) => seen.error_in(&namespace, &format!("{action:?}"), &error),
        }
    }
    match namespace.sync_all() {
        Err(error) => seen.error_in(&namespace, "sync", &error),
        Ok(_) => {
            // What was written is what is read, also after the next mount.
            let phase = phase_of(&seen, (0, 0));
            let now = stack.namespace(Atime::Never);
            let mut after = walk(&now, &model, &driver, SnapshotId::LIVE);
            seen.wrong.append(&mut after.wrong);
            drop((now, namespace, driver.clone()));
            if phase != Phase::ReadOnly {
                remount(store, device, &model, &driver, &mut seen);
            }
        }
    }
    finish(&mut cell.message, &mut cell.wrong, &seen);
    cell.change = phase_of(&seen, counts(&stack, before));
}

fn remount(store: &Reference, device: Arc<dyn Device>, model: &Model, driver: &Driver, seen: &mut Seen) {
    match open(store, device) {
        Ok(stack) => {
            let mut after = walk(&stack.namespace(Atime::Never), model, driver, SnapshotId::LIVE);
            seen.wrong.append(&mut after.wrong);
        }
        Err(error) => seen.wrong.push(format!("after changes that were made durable the store does not open: {error}")),
    }
}

/// Something to everything.
fn changes(model: &Model) -> Vec<Action> {
    let mut actions = Vec::new();
    for (node, inode) in model.nodes().filter(|(_, inode)| inode.nlink > 0) {
        match inode.kind {
            Kind::Regular => {
                let data = Data { seed: 31, length: 100 };
                actions.push(Action::Write { node, offset: 10, data, clear_set_ids: false });
                if inode.data.len() > 64 * BLOCK_SIZE {
                    let size = Some(inode.data.len() as u64 - 3 * BLOCK_SIZE as u64 - 17);
                    actions.push(Action::SetAttr { node, set: SetAttr { size, ..SetAttr::default() } });
                }
                if !inode.xattrs.is_empty() {
                    let value = Data { seed: 32, length: 200 };
                    let name = b"user.second".to_vec();
                    actions.push(Action::SetXattr { node, name, value, mode: XattrMode::Set });
                }
            }
            Kind::Directory => {
                let name = b"new".to_vec();
                actions.push(Action::Mknod { parent: node, name, node: NewNode::Regular, mode: 0o600 });
                if inode.entries.contains_key(&b"link"[..]) {
                    actions.push(Action::Unlink { parent: node, name: b"link".to_vec() });
                }
            }
            _ => {}
        }
    }
    actions
}
