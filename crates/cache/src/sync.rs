//! Making one object durable without writing an epoch: group commit of the intent log (docs/architecture.md, "The life
//! of an fsync").
//!
//! A log batch carries what no earlier batch and no recovery point has: of the name space all of it (so that names and
//! link counts are those after a prefix of all transactions), of an object's own changes all up to now, for the objects
//! that wait for a sync and those that a rename put in another's place. It is captured in one step under the lock, as
//! the newest state rather than as the way to it: creations, then truncations and zeroings in their order, then pages,
//! then sizes and attributes, then deletions. Replaying a batch twice, or on an epoch that has it already, gives the same.
//!
//! Where that would be wrong or slow (copies, whose result depends on the order of two objects' changes; more pages than
//! [`crate::Options::logged_pages_max`]; a full log; pages, or operations for the batch, that went bad in memory) the epoch is closed instead.
//!
//! A log in which nothing more happens is sealed by [`Cache::tick`]: the last batch gets a mark behind it by which its loss is told.

use crate::Cache;
use crate::flush::{all_attributes, pages_within, whole, whole_pages};
use crate::frozen::fold;
use crate::lab_attributes::CapturedPart;
use crate::object::Object;
use crate::pages::bad_page;
use crate::sealed_attributes::SealedAttributes;
use crate::state::State;
use crate::unlogged::Unlogged;
use holdfast_object::{AttrSet, Error, LogBatch, ObjectId, Op, PageIndex, PageRef, PinnedPage, Result};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// A batch with what becomes durable by it.
pub(crate) struct Capture {
    batch: LogBatch,
    sequence: u64,
    names: Vec<ObjectId>,
    /// With the attributes captured.
    own: Vec<(ObjectId, SealedAttributes)>,
    pages: Vec<(ObjectId, PageIndex, PageRef)>,
    /// Keeps the frames until the batch is written.
    pins: Vec<PinnedPage>,
    /// Of what becomes durable: while the batch is written, somebody may write to it who must not.
    sum: u64,
}

impl Capture {
    /// Of the objects, and of the transaction up to which they are in the batch. A page is let go only if it is the one that was given, and attributes
    /// have a sum of their own.
    fn sum(&self) -> u64 {
        let ids = self.names.iter().chain(self.own.iter().map(|(id, _)| id));
        ids.fold(fold(self.sequence, self.names.len() as u64), |sum, id| fold(sum, id.0))
    }

    /// Inverts bits of the transaction or of an object, as nobody may; whether there is such a one.
    pub(crate) fn strike(&mut self, part: CapturedPart, bits: u64) -> bool {
        let number = match part {
            CapturedPart::Sequence => Some(&mut self.sequence),
            CapturedPart::Names => self.names.first_mut().map(|id| &mut id.0),
            CapturedPart::Own => self.own.first_mut().map(|(id, _)| &mut id.0),
        };
        number.map(|number| *number ^= bits).is_some()
    }
}

impl Cache {
    /// See [`holdfast_object::ObjectCache::sync`].
    pub(crate) fn sync_object(&self, id: ObjectId) -> Result<()> {
        self.counters.syncs.add(1);
        self.make_durable(id)?;
        self.tell_errors(id, None).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// The same, and tells nobody of bad pages.
    pub(crate) fn make_durable(&self, id: ObjectId) -> Result<()> {
        if !self.needs_sync(id)? {
            return Ok(());
        }
        self.sync_queue.lock().push(id);
        let _one_at_a_time = self.logging.lock();
        // Whoever had the lock before may have taken this object along.
        if !self.needs_sync(id)? {
            return Ok(());
        }
        let mut ids: BTreeSet<ObjectId> = self.sync_queue.lock().drain(..).collect();
        ids.insert(id);
        loop {
            let captured = {
                let mut state = self.state.write();
                state.writable()?;
                capture(&mut state, &ids, self.options.logged_pages_max)
            };
            let Some(mut captured) = captured.inspect_err(|error| self.latch(error))? else {
                return self.close_epoch().map(|_| ());
            };
            match self.store.log_append(&captured.batch) {
                Ok(true) => {
                    self.unsealed_ns.store(self.clock.monotonic_ns().max(1), Ordering::Relaxed);
                    self.strike_captured(&mut captured);
                    let is_known = self.state.write().logged(captured);
                    return match is_known.inspect_err(|error| self.latch(error))? {
                        true => Ok(()),
                        false => self.close_epoch().map(|_| ()),
                    };
                }
                // The epoch is handed down anew, with what this batch would have had.
                Ok(false) | Err(Error::GivenUp(_)) => return self.close_epoch().map(|_| ()),
                // A page that no longer matches costs that page only: what is left is captured anew.
                Err(Error::Corrupt(_)) if self.state.write().lose_bad(&captured) => {}
                Err(error) => {
                    self.latch(&error);
                    return Err(error);
                }
            }
        }
    }

    /// Seals the intent log if it has been idle for a while, once. Whether a batch that is lost later had been answered is known by
    /// what was appended after it; in a busy log that is the next batch, which costs nothing more.
    pub(crate) fn seal_if_idle(&self) -> Result<()> {
        let last_ns = self.unsealed_ns.load(Ordering::Relaxed);
        let idle_ns = self.clock.monotonic_ns().saturating_sub(last_ns);
        let is_idle = last_ns != 0 && idle_ns >= self.options.seal_idle_ms.saturating_mul(1_000_000);
        if !is_idle || self.state.read().read_only.is_some() {
            return Ok(());
        }
        if self.unsealed_ns.compare_exchange(last_ns, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.store.log_seal().inspect_err(|error| self.latch(error))?;
        }
        Ok(())
    }

    fn needs_sync(&self, id: ObjectId) -> Result<bool> {
        let state = self.state.read();
        let own = match state.objects.get(&id) {
            Some(object) => object.progress.has_newer_own() || !object.unlogged.is_empty(),
            None if state.gone.contains_key(&id) => return Err(Error::NoObject(state.key(id))),
            None => false,
        };
        let names = !state.names_unlogged.is_empty() || !state.gone_unlogged.is_empty();
        Ok(own || names || state.is_spoilt())
    }
}

/// `None`: close the epoch instead.
///
/// # Errors
/// What is to be logged has gone bad in memory, and cannot be made anew.
fn capture(state: &mut State, ids: &BTreeSet<ObjectId>, pages_max: usize) -> Result<Option<Capture>> {
    state.renew_names();
    state.verify_unlogged();
    let names: Vec<ObjectId> = state.names_unlogged.iter().copied().collect();
    let asked: Vec<ObjectId> = ids.iter().chain(state.brings.keys()).copied().collect();
    names.iter().chain(&asked).try_for_each(|&id| state.heal(id))?;
    let own = own_objects(state, &asked);
    own.iter().try_for_each(|&id| state.heal(id))?;
    let sequence = state.sequence()?;
    Ok(capture_good(state, sequence, (names, own), pages_max))
}

/// The same of attributes that are as they should be, up to this transaction.
fn capture_good(
    state: &mut State,
    sequence: u64,
    (names, own): (Vec<ObjectId>, Vec<ObjectId>),
    pages_max: usize,
) -> Option<Capture> {
    let whole_objects = names.iter().copied().filter(|id| state.objects.get(id).is_some_and(|object| !object.is_own()));
    let whole_objects: Vec<ObjectId> = whole_objects.chain(own.iter().copied()).collect();
    whole_objects.iter().for_each(|&id| state.verify_unlogged_of(id));
    if state.is_spoilt() {
        return None;
    }
    let oldest = state.freezing.unwrap_or(state.open.epoch);

    let mut creates = Vec::new();
    let mut structural: Vec<(u64, Op)> = Vec::new();
    let mut writes = Vec::new();
    let mut attributes = Vec::new();
    let mut pages = Vec::new();
    let mut pins = Vec::new();

    for &id in &names {
        let object = state.objects.get(&id)?;
        if object.is_own() {
            if object.progress.create_unlogged.get()? != 0 {
                creates.push(Op::Create { id, attributes: without_size(&object.stable) });
            }
            let current = &object.attributes;
            let set = AttrSet {
                nlink: Some(current.nlink),
                parent: Some(current.parent),
                name_key: Some(current.name_key),
                other_names: Some(current.other_names.clone()),
                ctime: Some(object.stable.ctime),
                ..AttrSet::default()
            };
            attributes.push(Op::SetAttributes { id, set });
        }
    }
    for &id in &whole_objects {
        let object = state.objects.get(&id)?;
        // A batch cannot say that a page is lost, and its size would make a hole of it.
        if object.progress.is_copied_since(oldest) || object.bad.unsettled().next().is_some() {
            return None;
        }
        if object.progress.create_unlogged.get()? != 0 && !(object.is_own() && names.contains(&id)) {
            creates.push(Op::Create { id, attributes: without_size(&object.attributes) });
        }
        for change in &object.structural {
            let (at, op) = change.op()?;
            structural.extend(whole_pages(op).map(|op| (at, op)));
        }
        if pages.len() + object.unlogged.len() > pages_max {
            return None;
        }
        let mut unlogged = Vec::with_capacity(object.unlogged.len());
        for &index in object.unlogged.iter() {
            let page = object.pages.get(&index)?.page.clone();
            unlogged.push((index, page.page()));
            pages.push((id, index, page.page()));
            pins.push(page);
        }
        let size = object.attributes.size;
        let (within, behind) = unlogged.split_at(pages_within(&unlogged, size));
        let write = |pages: &[(PageIndex, PageRef)]| {
            let fragments = pages.iter().map(|&(index, page)| whole(index, page)).collect();
            Op::Write { id, fragments, size_min: size }
        };
        if !within.is_empty() {
            writes.push(write(within));
        }
        // Setting the size takes away what is behind it, so it is set only after a cut, and pages allocated there follow.
        let is_cut = object.structural.iter().any(Unlogged::is_truncate);
        if is_cut {
            attributes.push(Op::Truncate { id, size });
        }
        if !is_cut || !behind.is_empty() {
            attributes.push(write(behind));
        }
        attributes.push(Op::SetAttributes { id, set: all_attributes(&object.attributes) });
    }
    let own = own.into_iter().filter_map(|id| Some((id, state.objects.get(&id)?.attributes.clone()))).collect();
    structural.sort_by_key(|(at, _)| *at);
    let deletes: Vec<Op> = state.gone_unlogged.iter().map(|gone| Some(gone.op()?.1)).collect::<Option<_>>()?;
    let (early, late): (Vec<Op>, Vec<Op>) =
        structural.into_iter().map(|(_, op)| op).partition(|op| !matches!(op, Op::Delete { .. }));
    let ops = creates.into_iter().chain(early).chain(writes).chain(attributes).chain(late).chain(deletes).collect();
    let batch = LogBatch { epoch: state.open.epoch, domain: state.domain, ops };
    state.open.logged = true;
    let mut captured = Capture { batch, sequence, names, own, pages, pins, sum: 0 };
    captured.sum = captured.sum();
    Some(captured)
}

/// The objects whose own changes the batch must have: those asked for, those that renames brought, and what holds
/// their extended attributes.
fn own_objects(state: &State, asked: &[ObjectId]) -> Vec<ObjectId> {
    let mut own = BTreeSet::new();
    for id in asked {
        let Some(object) = state.objects.get(id).filter(|object| object.is_own()) else { continue };
        own.insert(*id);
        let xattr = object.attributes.xattr;
        if state.objects.get(&xattr).is_some_and(Object::is_own) {
            own.insert(xattr);
        }
    }
    own.into_iter().collect()
}

fn without_size(attributes: &holdfast_object::Attributes) -> holdfast_object::Attributes {
    holdfast_object::Attributes { size: 0, blocks: 0, ..attributes.clone() }
}

impl State {
    /// Gives up the captured pages whose bytes no longer match, or puts their twins in their place; whether there were any.
    fn lose_bad(&mut self, captured: &Capture) -> bool {
        let mut any = false;
        for ((id, index, page), pin) in captured.pages.iter().zip(&captured.pins) {
            let Err(mismatch) = pin.verify() else { continue };
            any = true;
            let current = self.objects.get(id).and_then(|object| object.pages.get(index));
            if current.is_some_and(|slot| slot.page.page() == *page) && self.renew(*id, *index, *page).is_none() {
                let error = bad_page(self, *id, *index, &mismatch);
                self.lose_dirty(*id, *index, &error);
            }
        }
        any
    }

    /// A batch is durable: what has not changed since is logged. Whether it is known what that is; if not, nothing counts as logged, and there is no
    /// other batch before a recovery point.
    ///
    /// # Errors
    /// What has been logged has gone bad in memory meanwhile, and cannot be made anew: it is not known what the next batch is to go by.
    fn logged(&mut self, captured: Capture) -> Result<bool> {
        if captured.sum() != captured.sum {
            self.spoil(1, "what a log batch makes durable");
            return Ok(false);
        }
        let sequence = captured.sequence;
        for id in &captured.names {
            self.heal_progress(*id);
            if let Some(object) = self.objects.get_mut(id) {
                let progress = &mut object.progress;
                progress.names_durable.raise(sequence);
                progress.create_unlogged.set(0);
                let is_logged = !progress.has_newer_names();
                if !object.is_own() {
                    object.structural.retain(|change| change.outlasts_batch(sequence));
                }
                if is_logged {
                    self.names_unlogged.remove(id);
                }
            }
        }
        for (id, mut attributes) in captured.own {
            self.heal(id)?;
            let healed = attributes.heal();
            let changed = self.objects.get(&id).and_then(|object| object.progress.changed_in());
            self.note_healed(id, healed, changed)?;
            if let Some(object) = self.objects.get_mut(&id) {
                if object.progress.own_durable.get().is_none_or(|durable| durable < sequence) {
                    object.set_stable(attributes);
                    object.progress.own_durable.set(sequence);
                }
                object.progress.create_unlogged.set(0);
                object.structural.retain(|change| change.outlasts_batch(sequence));
            }
        }
        for (id, index, page) in captured.pages {
            if let Some(object) = self.objects.get_mut(&id)
                && object.pages.get(&index).is_some_and(|slot| slot.page.page() == page)
            {
                object.unlogged.remove(&index);
            }
        }
        self.gone_unlogged.retain(|gone| gone.outlasts_batch(sequence));
        self.brings.retain(|id, brought| brought.outlasts(*id, sequence));
        drop(captured.pins);
        Ok(true)
    }
}
