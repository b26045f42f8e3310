//! Admission: a planned transaction takes its place in the order of all transactions, in one step under the lock.

use crate::Cache;
use crate::object::Object;
use crate::oplog::OpLog;
use crate::plan::{Held, Plan, Planned, Planner, Step, Want};
use crate::state::State;
use crate::unlogged::{Brought, Change, OPERATIONS, Unlogged};
use holdfast_object::space::levels;
use holdfast_object::{
    Class, Error, FrameMut, Kind, ObjectId, ObjectKey, Op, Outcome, PAGE_SIZE, PageIndex, Purpose, Result, SnapshotId,
    Transaction, changing,
};
use std::sync::atomic::Ordering;

const PAGE: u64 = PAGE_SIZE as u64;
/// Rounds of fetching what a plan wants. Each brings something new unless memory is far too small for the transaction.
const ROUNDS_MAX: usize = 64;
/// Pages that a copy may store once more rather than wait for an epoch to be written.
const UNWRITTEN_MAX: usize = 64;
/// Recovery points made for the space they free, before a transaction is refused.
const EPOCHS_FOR_SPACE: usize = 2;

impl Cache {
    /// See [`holdfast_object::ObjectCache::submit`].
    pub(crate) fn submit_transaction(&self, transaction: Transaction) -> Result<Outcome> {
        if transaction.answer.len() > Transaction::ANSWER_MAX {
            return Err(Error::Protocol(format!("answer of {} bytes", transaction.answer.len())));
        }
        if let Some(request) = transaction.request
            && let Some(answer) = self.sessions.lock().answer(request)
        {
            return Ok(Outcome::Repeated { answer });
        }
        if let Some(kept) = transaction.ops.iter().find_map(kept_object) {
            return Err(Error::InSnapshot(ObjectKey { domain: self.domain, object: kept }));
        }
        let structural: Vec<&Op> = transaction.ops.iter().filter(|op| is_structural(op)).collect();
        let payload = if structural.is_empty() { Vec::new() } else { OpLog::encode(&structural)? };
        self.wait_for_writer()?;
        if transaction.ops.iter().any(|op| self.copies_much_unwritten(op)) {
            self.close_epoch()?;
        }
        for op in &transaction.ops {
            self.check_way(op)?;
        }

        let mut spare: Vec<FrameMut> = Vec::new();
        // Pages loaded for the plan stay until it is made.
        let mut held: Vec<Held> = Vec::new();
        let mut epochs = 0;
        let mut replaces = false;
        let cuts_within = transaction.ops.iter().any(cuts_within);
        for _ in 0..ROUNDS_MAX {
            let mut state = self.state.write();
            state.writable()?;
            if !state.log.has_room(&payload) {
                drop(state);
                self.close_epoch()?;
                continue;
            }
            let had = spare.len();
            let reference_blocks = self.reference_blocks.load(Ordering::Relaxed);
            let plan = match Planner::new(&mut state, &self.arena, &mut spare, &held, reference_blocks)
                .plan(&transaction.ops)?
            {
                Planned::Ready(plan) => plan,
                Planned::Wants(wants) => {
                    drop(state);
                    // Frames that went into pages of this round's plan will be needed again.
                    let used = had - spare.len();
                    self.fetch(&wants, used, &mut spare, &mut held)?;
                    continue;
                }
            };
            let purpose = match transaction.purpose {
                _ if replaces => Purpose::Release,
                // It stores anew what a snapshot may have as well. The reserve is for removals, which do not.
                Purpose::Release if cuts_within && state.has_snapshots => Purpose::Ordinary,
                purpose => purpose,
            };
            if let Err(error) = self.reserve(&mut state, &plan, purpose) {
                drop(state);
                if !error.is_full() {
                    return Err(error);
                }
                if purpose != Purpose::Release && self.only_replaces(&transaction.ops)? {
                    replaces = true;
                    continue;
                }
                if epochs == EPOCHS_FOR_SPACE {
                    return Err(error);
                }
                epochs += 1;
                self.close_epoch()?;
                continue;
            }
            let open = &mut state.open;
            let since_ns = if transaction.lazy { &mut open.lazy_since_ns } else { &mut open.since_ns };
            if *since_ns == 0 {
                *since_ns = self.clock.monotonic_ns().max(1);
            }
            let sequence = match admit(&mut state, &transaction, plan, &payload) {
                Ok(sequence) => sequence,
                Err(error) => {
                    drop(state);
                    self.latch(&error);
                    return Err(error);
                }
            };
            if let Some(request) = transaction.request {
                self.sessions.lock().note(request, transaction.answer);
            }
            let due = state.is_due(&self.options, 1);
            drop(state);
            if due {
                self.wake_writer();
            }
            return Ok(Outcome::Done { sequence });
        }
        Err(Error::NoFrames { frames: u64::from(self.arena.frames()) })
    }

    fn fetch(&self, wants: &[Want], used: usize, spare: &mut Vec<FrameMut>, held: &mut Vec<Held>) -> Result<()> {
        for want in wants {
            match *want {
                Want::Object(id) => self.with_object(id, |_, _| ())?,
                Want::Page(id, index) => {
                    let version = self.state.read().version(id);
                    let views = self.read_pages(id, index, 1)?;
                    held.extend(views.into_iter().map(|view| Held { id, index, version, view }));
                }
                Want::Reread(id, index, bad) => {
                    let version = self.state.read().version(id);
                    let view = self.reread_page(id, index, bad)?;
                    held.push(Held { id, index, version, view });
                }
                Want::Epoch(_) => self.close_epoch().map(|_| ())?,
                Want::Frame => {}
            }
        }
        let frames = wants.iter().filter(|want| **want == Want::Frame).count();
        // Wanted pages will each want a frame in the next round.
        let pages = wants.iter().filter(|want| matches!(want, Want::Page(..) | Want::Reread(..))).count();
        spare.extend(self.take_frames(used + frames + pages)?);
        Ok(())
    }

    /// Whether an operation copies so many pages that the store does not have yet, and that so would be stored twice, that
    /// it should have them first.
    fn copies_much_unwritten(&self, op: &Op) -> bool {
        let Op::Copy { source, source_first, pages, .. } = op else { return false };
        let state = self.state.read();
        let Some(object) = state.objects.get(source) else { return false };
        object.dirty.range(*source_first..source_first.saturating_add(*pages)).nth(UNWRITTEN_MAX).is_some()
    }

    /// Nothing is admitted of which it is known now that the recovery point has to pass it over, or that it would copy what cannot be read: the object would
    /// be shown otherwise than it is stored.
    fn check_way(&self, op: &Op) -> Result<()> {
        let is_concerned = match op {
            // One that lengthens the object, too: it removes what is stored behind the end.
            Op::Truncate { size, .. } => *size > 0,
            Op::Zero { length, .. } => *length > 0,
            Op::Copy { .. } => true,
            _ => false,
        };
        if !is_concerned {
            return Ok(());
        }
        match self.store.check_way(self.domain, op) {
            // What is admitted already may have removed it. Who tries again and again has no recovery point made each time.
            Err(error @ Error::Corrupt(_)) if self.is_unwritten(op) => match self.close_epoch() {
                Ok(_) => self.store.check_way(self.domain, op),
                Err(_) => Err(error),
            },
            told => told,
        }
    }

    /// Whether no recovery point has all that has been admitted of an operation's objects.
    fn is_unwritten(&self, op: &Op) -> bool {
        let source = if let Op::Copy { source, .. } = op { Some(*source) } else { None };
        let state = self.state.read();
        let unwritten = state.freezing.unwrap_or(state.open.epoch);
        std::iter::once(op.target()).chain(source).any(|id| {
            let known = state.objects.get(&id);
            known.map_or_else(|| state.gone.contains_key(&id), |object| !object.progress.is_written(unwritten))
        })
    }

    /// Whether the operations take no more space than they give back once their epoch is a recovery point. Such a
    /// transaction may use the reserve: what has room in the store, written or allocated, keeps it.
    fn only_replaces(&self, ops: &[Op]) -> Result<bool> {
        for op in ops {
            match op {
                Op::SetAttributes { .. } => {}
                Op::Write { id, fragments, .. } => {
                    for run in fragments.chunk_by(|a, b| a.index + 1 == b.index) {
                        if !self.are_replaceable(*id, run[0].index, run.len())? {
                            return Ok(false);
                        }
                    }
                }
                Op::Truncate { size, .. } if size.is_multiple_of(PAGE) => {}
                Op::Truncate { id, size } if self.are_replaceable(*id, size / PAGE, 1)? => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// See [`holdfast_object::ObjectStore::replaceable`].
    fn are_replaceable(&self, id: ObjectId, first: PageIndex, count: usize) -> Result<bool> {
        match self.store.replaceable(ObjectKey { domain: self.domain, object: id }, first, count) {
            // Not for here to say.
            Err(Error::Corrupt(_)) => Ok(false),
            told => told,
        }
    }

    fn reserve(&self, state: &mut State, plan: &Plan, purpose: Purpose) -> Result<()> {
        let demand = state.open.demand.plus(plan.demand);
        let notes = if state.has_snapshots { demand.note_blocks() } else { 0 };
        let needed = demand.blocks() + notes;
        let Some(missing) = needed.checked_sub(state.open.reserved).filter(|&missing| missing > 0) else {
            return Ok(());
        };
        let epoch = state.open.epoch;
        let generous = missing.max(self.options.reserve_step_blocks);
        let got = match self.store.reserve(epoch, generous, Purpose::Ordinary) {
            Ok(()) => generous,
            Err(error) if error.is_full() => {
                self.store.reserve(epoch, missing, purpose)?;
                missing
            }
            Err(error) => return Err(error),
        };
        state.open.reserved += got;
        Ok(())
    }
}

/// The object of a snapshot that an operation would change, or copy from.
fn kept_object(op: &Op) -> Option<ObjectId> {
    let source = if let Op::Copy { source, .. } = op { *source } else { op.target() };
    [op.target(), source].into_iter().find(|id| id.snapshot() != SnapshotId::LIVE)
}

/// In how many places a page of the object is stored.
fn copies(object: &Object) -> u64 {
    if object.attributes.kind.is_metadata() { 2 } else { 1 }
}

/// Whether a cut leaves a part of a page, which is stored anew.
fn cuts_within(op: &Op) -> bool {
    match op {
        Op::Truncate { size, .. } => !size.is_multiple_of(PAGE),
        Op::Zero { offset, length, .. } => {
            !offset.is_multiple_of(PAGE) || !offset.saturating_add(*length).is_multiple_of(PAGE)
        }
        _ => false,
    }
}

/// Operations that the log keeps in order. Data and attributes are kept as their newest version instead.
fn is_structural(op: &Op) -> bool {
    !matches!(op, Op::Write { .. } | Op::SetAttributes { .. })
}

/// # Errors
/// It is not known any more which transaction was the last one, or where its operations go; then nothing of it is admitted.
fn admit(state: &mut State, transaction: &Transaction, plan: Plan, payload: &[u8]) -> Result<u64> {
    let sequence = state.next_sequence()?;
    if !payload.is_empty() {
        state.log.append(sequence, payload)?;
    }
    state.open.proved.add(transaction.proved);
    state.open.demand = state.open.demand.plus(plan.demand);
    state.open.tree.extend(plan.tree);
    for (op, step) in transaction.ops.iter().zip(plan.steps) {
        apply(state, op, step, sequence);
    }
    if let Some(id) = transaction.brings {
        state.brings.insert(id, Brought::new(id, sequence));
    }
    Ok(sequence)
}

fn apply(state: &mut State, op: &Op, step: Step, sequence: u64) {
    let epoch = state.open.epoch;
    let id = op.target();
    state.open.objects.insert(id);
    match op {
        Op::Create { attributes, .. } => create(state, id, attributes.clone(), sequence),
        Op::Delete { .. } => delete(state, id, sequence),
        Op::SetAttributes { set, .. } => {
            let object = state.objects.get_mut(&id).expect("planned object is present");
            object.set_attributes(set, sequence);
        }
        Op::Write { size_min, .. } => {
            put_pages(state, op, step);
            let object = state.objects.get_mut(&id).expect("planned object is present");
            object.attributes.change(|attributes| attributes.size = attributes.size.max(*size_min));
            changed(object, sequence);
        }
        Op::Truncate { size, .. } => {
            let unwritten = state.freezing.unwrap_or(epoch);
            let store_has_none = {
                let object = state.objects.get_mut(&id).expect("planned object is present");
                let grows = *size >= object.attributes.size;
                state.open.freeing.shrinks(id, object, size.div_ceil(PAGE), unwritten);
                object.attributes.change(|attributes| attributes.size = *size);
                grows || object.progress.created_in() == Some(epoch)
            };
            cut(state, id, size.div_ceil(PAGE), PageIndex::MAX, store_has_none);
            put_pages(state, op, step);
            structural(state, id, Change::Truncate { id, size: *size }, sequence);
        }
        Op::Zero { offset, length, .. } => {
            let object = state.objects.get(&id).expect("planned object is present");
            let created_now = object.progress.created_in() == Some(epoch);
            let first = offset.div_ceil(PAGE);
            let end = (offset + length) / PAGE;
            if first < end {
                cut(state, id, first, end, created_now);
            }
            put_pages(state, op, step);
            structural(state, id, Change::Zero { id, offset: *offset, length: *length }, sequence);
        }
        Op::Copy { source, target_first, pages, size_min, .. } => {
            cut(state, id, *target_first, target_first + pages, true);
            let object = state.objects.get_mut(&id).expect("planned object is present");
            object.overlay.copied(*target_first..target_first + pages, epoch);
            object.attributes.change(|attributes| attributes.size = attributes.size.max(*size_min));
            object.progress.copied.set(epoch);
            object.levels = object.levels.max(levels((target_first + pages).saturating_sub(1)));
            changed(object, sequence);
            if let Step::Shared(shared) = step {
                for (index, page, identity) in shared {
                    match identity {
                        None => state.put_dirty(id, index, page),
                        Some(identity) => state.put_clean(id, index, page, identity),
                    }
                }
            }
            let source = state.objects.get_mut(source).expect("planned object is present");
            source.progress.copied.set(epoch);
        }
        Op::Adopt { .. } | Op::Lose { .. } => unreachable!("refused by the planner"),
    }
    if let Some(object) = state.objects.get_mut(&id) {
        object.progress.changed_in.set(epoch);
        if object.progress.has_newer_names() {
            state.names_unlogged.insert(id);
        }
    }
}

fn create(state: &mut State, id: ObjectId, mut attributes: holdfast_object::Attributes, sequence: u64) {
    state.open.creations += 1;
    // Epochs never repeat, so neither do generations.
    attributes.generation = (state.open.epoch << 24) + state.open.creations;
    attributes.blocks = 0;
    let mut object = Object::new(attributes);
    let is_owned = is_owned(&object);
    let progress = &mut object.progress;
    progress.created.set(state.open.epoch);
    progress.create_unlogged.set(1);
    let changed = if is_owned { &mut progress.own_changed } else { &mut progress.names_changed };
    changed.set(sequence);
    state.insert_object(id, object);
}

/// Extended attributes of a file follow the file's own changes, their creation and deletion too.
fn is_owned(object: &Object) -> bool {
    object.attributes.kind == Kind::Xattr && object.attributes.class == Class::Own
}

fn delete(state: &mut State, id: ObjectId, sequence: u64) {
    let mut object = state.objects.remove(&id).expect("planned object is present");
    state.open.pages = state.open.pages.saturating_sub(object.dirty.len() as u64);
    state.open.freeing.dropped(object.dirty.len() as u64, copies(&object));
    state.open.proved.drop_pages(id, &object, ..);
    let unwritten = state.freezing.unwrap_or(state.open.epoch);
    state.open.freeing.shrinks(id, &object, 0, unwritten);
    state.gone.insert(id, state.open.epoch);
    state.names_unlogged.remove(&id);
    state.brings.remove(&id);
    state.evictions += 1;
    // Deletions that this object's own changes were to bring.
    for change in object.structural.drain(..) {
        match change.is_good() {
            false => state.spoil(1, OPERATIONS),
            true if change.is_delete() => state.gone_unlogged.push(change.listed_at(sequence)),
            true => {}
        }
    }
    let gone = Unlogged::new(Change::Delete { id }, sequence);
    let owner = object.attributes.parent;
    match state.objects.get_mut(&owner) {
        Some(owner) if is_owned(&object) => owner.structural.push(gone),
        _ => state.gone_unlogged.push(gone),
    }
}

fn changed(object: &mut Object, sequence: u64) {
    object.version += 1;
    let is_own = object.is_own();
    let progress = &mut object.progress;
    let changed = if is_own { &mut progress.own_changed } else { &mut progress.names_changed };
    changed.set(sequence);
}

fn structural(state: &mut State, id: ObjectId, change: Change, sequence: u64) {
    let object = state.objects.get_mut(&id).expect("planned object is present");
    object.structural.push(Unlogged::new(change, sequence));
    changed(object, sequence);
}

/// Pages `first..end` are gone; what the store has of them does not count any more.
fn cut(state: &mut State, id: ObjectId, first: PageIndex, end: PageIndex, store_has_none: bool) {
    let epoch = state.open.epoch;
    let object = state.objects.get_mut(&id).expect("planned object is present");
    let before = object.dirty.len();
    state.open.proved.drop_pages(id, object, first..end);
    object.drop_pages(first, end);
    let dropped = (before - object.dirty.len()) as u64;
    state.open.pages = state.open.pages.saturating_sub(dropped);
    state.open.freeing.dropped(dropped, copies(object));
    object.fresh_pages = object.fresh_pages.min(object.dirty.len() as u64 + object.frozen_pages);
    if !store_has_none {
        object.overlay.zero(first..end, epoch);
    }
}

fn put_pages(state: &mut State, op: &Op, step: Step) {
    let Step::Pages(pages) = step else { return };
    let id = op.target();
    if !state.objects.get(&id).is_some_and(|object| object.attributes.kind.is_metadata()) {
        return pages.into_iter().for_each(|(index, page)| state.put_dirty(id, index, page));
    }
    // Whole pages as the request has them, and not as they were planned; where a part is merged into what was there, there is nothing else.
    let fragments = if let Op::Write { fragments, .. } = op { &fragments[..] } else { &[] };
    for fragment in fragments.iter().filter(|fragment| fragment.is_whole()) {
        state.open.proved.put_page(id, fragment.index, fragment.page.checksum);
    }
    for (index, page) in &pages {
        let fragment = fragments.binary_search_by_key(index, |fragment| fragment.index);
        if !fragment.is_ok_and(|at| fragments[at].is_whole()) {
            state.open.proved.put_page(id, *index, page.page().checksum);
        }
    }
    // One window for the twins of all of them.
    changing(|| pages.into_iter().for_each(|(index, page)| state.put_dirty(id, index, page)));
}
