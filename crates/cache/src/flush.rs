//! Writing an epoch: freeze it, hand it down, make it a recovery point.

use crate::Cache;
use crate::frozen;
use crate::involved::Involved;
use crate::object::Residence;
use crate::pages::{bad_page, unreachable_page};
use crate::plan::{ZERO_SUMS, ZEROES};
use crate::state::{FrozenEpoch, FrozenObject, State};
use crate::unlogged::{OPERATIONS, Unlogged};
use holdfast_integrity::SetDigest;
use holdfast_object::{
    AttrSet, Attributes, Batch, BlockIdentity, DomainId, Epoch, Error, Found, Fragment, ObjectId, ObjectKey,
    ObjectStore, Op, PAGE_SIZE, PageIndex, PageRef, Proved, Result, Seek, Side,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// Pages handed down at a time: 16 MiB, so that reads get their turn in between.
const PAGES_PER_BATCH: usize = 4096;

/// An epoch that takes longer to write than epochs are apart, and than this (in milliseconds), is told in the log.
const SLOW_MS_MIN: u64 = 5_000;

/// What became of an epoch's pages.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) identities: FxHashMap<(ObjectId, PageIndex), BlockIdentity>,
    pub(crate) rejected: Vec<(ObjectId, PageIndex)>,
    /// Pages that operations should have changed which were passed over.
    passed_over: Vec<(ObjectId, PageIndex)>,
    /// Objects of which an operation was passed over, or done in part, whatever came behind it.
    pub(crate) half_done: FxHashSet<ObjectId>,
    /// Runs of pages that copies have lost, and nothing behind them has replaced.
    lost: Vec<(ObjectId, Range<PageIndex>)>,
    /// Objects' stored blocks afterwards.
    blocks: FxHashMap<ObjectId, u64>,
    /// Which versions of pages of metadata the store has.
    pub(crate) pages: SetDigest,
}

impl Cache {
    /// To be called from time to time: closes the open epoch if it is old or large enough, and seals the intent log if that has
    /// been idle for a while. Gives the last recovery point if it made one.
    ///
    /// Frees a slice of what deleted snapshots had as well.
    pub fn tick(&self) -> Result<Option<Epoch>> {
        self.go_on_deleting();
        let due = {
            let state = self.state.read();
            let now_ns = self.clock.monotonic_ns();
            let is_old = |since_ns: u64, age_max_ms: u64| {
                since_ns != 0 && now_ns.saturating_sub(since_ns) >= age_max_ms.saturating_mul(1_000_000)
            };
            let is_old = is_old(state.open.since_ns, self.options.epoch_age_max_ms)
                || is_old(state.open.lazy_since_ns, self.options.lazy_age_max_ms);
            state.read_only.is_none() && !state.open.is_empty(&state.log) && (is_old || state.is_due(&self.options, 1))
        };
        if due {
            return self.close_epoch().map(Some);
        }
        self.seal_if_idle()?;
        Ok(None)
    }

    /// Blocks until an epoch may be due, at most so long. For the thread that calls [`Cache::tick`].
    pub fn wait_for_work(&self, at_most: Duration) {
        let mut due = self.writer_due.lock();
        if !*due {
            self.writer_wake.wait_for(&mut due, at_most);
        }
        *due = false;
    }

    /// Wakes whoever waits for work.
    pub fn wake_writer(&self) {
        *self.writer_due.lock() = true;
        self.writer_wake.notify_one();
    }

    /// A writer far ahead of the store writes an epoch itself before it goes on.
    pub(crate) fn wait_for_writer(&self) -> Result<()> {
        if self.state.read().is_due(&self.options, 2) {
            self.close_epoch()?;
        }
        Ok(())
    }

    /// Makes all that has been admitted a recovery point. Called without any lock.
    pub(crate) fn close_epoch(&self) -> Result<Epoch> {
        self.close_epoch_with(None::<fn(Epoch) -> Result<()>>)
    }

    /// The same, with something to do in the store before anything of the epoch goes down; then the epoch is written also if
    /// it is empty. If that fails and the store goes on, the epoch is written all the same, and the error given.
    ///
    /// If what the store makes of it goes bad in memory, all of it is handed down once more.
    pub(crate) fn close_epoch_with(&self, mut first: Option<impl FnMut(Epoch) -> Result<()>>) -> Result<Epoch> {
        let _one_at_a_time = self.flushing.lock();
        let frozen = {
            let mut state = self.state.write();
            if state.freezing.is_some() {
                // An epoch that could not be written: nothing admitted since, and not all before, is durable.
                state.writable()?;
                return Err(Error::Protocol("an epoch was left unwritten".into()));
            }
            if first.is_none() && state.open.is_empty(&state.log) {
                return Ok(self.store.status().epoch);
            }
            state.writable()?;
            state.freeze()
        };
        let start_ns = self.clock.monotonic_ns();
        let mut refused = Ok(());
        let mut attempt = |frozen: &mut FrozenEpoch| {
            if let Some(first) = &mut first {
                refused = first(frozen.epoch);
                if let Err(error @ (Error::Device(_) | Error::ReadOnly(_) | Error::GivenUp(_))) = &refused {
                    return Err(error.clone());
                }
            }
            self.write_epoch(frozen)
        };
        let outcome = frozen.and_then(|mut frozen| {
            let written = loop {
                match attempt(&mut frozen) {
                    Err(Error::GivenUp(why)) => {
                        let suspects = self.store.suspects();
                        let suspects = suspects.iter().filter(|key| key.domain == self.domain).map(|key| key.object);
                        let transactions = Involved { frozen: &frozen, suspects: &suspects.collect::<Vec<_>>() };
                        let epoch = frozen.epoch;
                        tracing::warn!(%why, epoch, %transactions, "an epoch is given up");
                        self.store.begin_anew()?;
                    }
                    outcome => break outcome?,
                }
            };
            self.note_time(&frozen, self.clock.monotonic_ns().saturating_sub(start_ns) / 1_000_000);
            Ok((frozen, written))
        });
        match outcome {
            Ok((frozen, written)) => {
                let epoch = frozen.epoch;
                let mut state = self.state.write();
                let outcome = state.published(frozen, &written);
                state.trim(self.options.objects_max, self.arena.frames() as usize);
                outcome.map(|()| epoch)
            }
            Err(error) => Err(error),
        }
        .inspect_err(|error| self.latch(error))
        .and_then(|epoch| refused.map(|()| epoch))
    }

    fn note_time(&self, frozen: &FrozenEpoch, took_ms: u64) {
        self.counters.epochs_ms.add(took_ms);
        if took_ms > self.options.epoch_age_max_ms.max(SLOW_MS_MIN) {
            let pages: usize = frozen.objects.iter().map(|object| object.pages.len()).sum();
            let (epoch, objects) = (frozen.epoch, frozen.objects.len());
            tracing::warn!(epoch, took_ms, pages, objects, "an epoch took long to write: the device is slow, or busy");
        }
    }

    fn write_epoch(&self, frozen: &mut FrozenEpoch) -> Result<Written> {
        let mut written = Written::default();
        self.strike_frozen(frozen);
        #[cfg(test)]
        crate::proved::tests::do_wrongly(frozen);
        let names_before = self.names_before(frozen)?;
        let ops = without_passing(&frozen.ops).into_iter().filter_map(whole_pages).collect();
        let mut batch = Batch { domain: self.domain, epoch: frozen.epoch, ops };
        let cut: FxHashSet<ObjectId> = cut_objects(&frozen.ops);
        let mut pages = 0;
        self.strike_frozen(frozen);
        for at in 0..frozen.objects.len() {
            self.heal_frozen(frozen.epoch, &mut frozen.objects[at])?;
            let object = &frozen.objects[at];
            let (id, length) = (object.id, object.pages.len());
            if length == 0 {
                // Pages written and punched again may have made it longer.
                batch.ops.push(Op::Write { id, fragments: Vec::new(), size_min: object.attributes.size });
            }
            // Setting the size takes away what is behind it, so pages allocated there follow.
            let within = pages_within(&object.pages, object.attributes.size);
            for (part, cut_first) in [(0..within, false), (within..length, cut.contains(&id))] {
                if cut_first {
                    batch.ops.push(Op::Truncate { id, size: frozen.objects[at].attributes.size });
                }
                for first in part.clone().step_by(PAGES_PER_BATCH) {
                    let object = &frozen.objects[at];
                    let chunk = &object.pages[first..part.end.min(first + PAGES_PER_BATCH)];
                    pages += chunk.len();
                    let fragments = chunk.iter().map(|(index, page)| whole(*index, page.page())).collect();
                    batch.ops.push(Op::Write { id, fragments, size_min: object.attributes.size });
                    if pages >= PAGES_PER_BATCH {
                        self.apply(frozen, &mut batch, &mut written)?;
                        self.strike_frozen(frozen);
                        // That has taken a while, and the rest of its pages and its attributes follow.
                        self.heal_frozen(frozen.epoch, &mut frozen.objects[at])?;
                        pages = 0;
                    }
                }
            }
            batch.ops.push(Op::SetAttributes { id, set: all_attributes(&frozen.objects[at].attributes) });
        }
        self.apply(frozen, &mut batch, &mut written)?;
        self.strike_frozen(frozen);
        self.renew_rejected(frozen, &mut batch, &mut written)?;
        self.bring_back_frozen(frozen, &mut batch, &mut written)?;
        self.mark_lost(frozen, &mut batch, &mut written)?;
        let mut passed_over = std::mem::take(&mut written.passed_over);
        passed_over.retain(|page| !written.identities.contains_key(page));
        written.passed_over = still_passed_over(&*self.store, self.domain, passed_over)?;
        let lost = std::mem::take(&mut written.lost);
        written.lost = still_lost(&*self.store, self.domain, lost)?;
        self.verify_frozen(frozen)?;
        let are_pages_judged = self.compare_pages(frozen, &written)?;
        self.store.prepare(frozen.epoch)?;
        self.strike_frozen(frozen);
        let names = self.read_back(frozen, &mut written)?;
        let are_names_judged = self.compare_proved(frozen, names_before, names)?;
        self.counters.epochs_unproved.add(u64::from(!are_pages_judged || !are_names_judged));
        self.store.publish(frozen.epoch)?;
        self.strike_frozen(frozen);
        Ok(written)
    }

    /// What the recovery point says of the objects that have changed, while it can be begun anew: what is published has been written. It must be what was
    /// handed down, whoever did it; but how many pages they have is what the store says. Gives what they say of names.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: of one it says something else.
    fn read_back(&self, frozen: &mut FrozenEpoch, written: &mut Written) -> Result<Proved> {
        let (mut wrong, mut names) = (None, Proved::NOTHING);
        let all = self.attributes_of(frozen.objects.iter().map(|object| object.id).collect());
        for (object, (key, stored)) in frozen.objects.iter_mut().zip(all) {
            // What has gone bad here since is not what the store is blamed for.
            self.heal_frozen(frozen.epoch, object)?;
            let mut stored = match stored {
                Ok(stored) => stored,
                Err(Error::NoObject(_)) => {
                    wrong.get_or_insert((key, "no record".to_string()));
                    continue;
                }
                // A record that says what none can say was made so here. One of a block that the device does not give has an address.
                Err(Error::Corrupt(why)) if why.place.address.is_none() => {
                    wrong.get_or_insert((key, why.to_string()));
                    continue;
                }
                Err(error) => return Err(error),
            };
            written.blocks.insert(object.id, stored.blocks);
            names += Proved::by(object.id, &stored);
            // One that could not be cut has the size that it had, and whoever waits for it is told.
            if written.half_done.contains(&object.id) || frozen.uncut.contains(&object.id) {
                stored.size = object.attributes.size;
            }
            if let Some(differs) = object.attributes.unlike(stored) {
                wrong.get_or_insert((key, differs));
            }
        }
        let Some((key, differs)) = wrong else { return Ok(names) };
        // Nor which object it is.
        self.verify_frozen(frozen)?;
        Err(self.store.give_up(Found::LogicBug, frozen::not_as_handed_down(key, frozen.epoch, &differs)))
    }

    /// Whether the store was given what was frozen.
    ///
    /// # Errors
    /// [`Error::GivenUp`] if not: what is frozen has been put right, and the epoch can be begun anew with it.
    pub(crate) fn verify_frozen(&self, frozen: &mut FrozenEpoch) -> Result<()> {
        let mut bad = None;
        if let Some(differs) = frozen.ops.heal()? {
            bad = Some(frozen::told("operations of an epoch", differs, frozen.epoch));
        }
        // All of them: each time that it is begun anew counts.
        for object in &mut frozen.objects {
            if let Some(differs) = object.places.heal(&mut object.id, &mut object.pages)? {
                bad.get_or_insert_with(|| frozen::told("places of pages", differs, frozen.epoch));
            }
        }
        bad.map_or(Ok(()), |why| Err(self.store.give_up(Found::Scribble, why)))
    }

    /// Attributes wait for as long as the pages before them take to be handed down.
    fn heal_frozen(&self, epoch: Epoch, object: &mut FrozenObject) -> Result<()> {
        match object.attributes.heal() {
            Ok(None) => Ok(()),
            healed => self.state.write().note_healed(object.id, healed, Some(epoch)),
        }
    }

    /// Hands down the twins of pages of metadata that went bad in memory.
    fn renew_rejected(&self, frozen: &mut FrozenEpoch, batch: &mut Batch, written: &mut Written) -> Result<()> {
        for (id, index) in std::mem::take(&mut written.rejected) {
            let mut object = frozen.objects.iter_mut().find(|object| object.id == id);
            object.as_mut().map_or(Ok(()), |object| self.heal_frozen(frozen.epoch, object))?;
            let bad = object.and_then(|object| {
                let (_, page) = object.pages.iter_mut().find(|(at, _)| *at == index)?;
                let (_, twin) = object.twins.iter().find(|(at, _)| *at == index)?;
                // It may have been refused for the tree blocks above it.
                page.verify().is_err().then_some((page, twin, object.attributes.size))
            });
            let renewed = bad.and_then(|(page, twin, size_min)| {
                *page = self.state.write().renew_frozen(id, index, page, twin)?;
                Some(Op::Write { id, fragments: vec![whole(index, page.page())], size_min })
            });
            match renewed {
                Some(op) => batch.ops.push(op),
                None => written.rejected.push((id, index)),
            }
        }
        self.apply(frozen, batch, written)
    }

    /// Pages that went bad in memory and of which the store has no older version are lost with this recovery point: it would have
    /// holes there, which read as zeros.
    fn mark_lost(&self, frozen: &FrozenEpoch, batch: &mut Batch, written: &mut Written) -> Result<()> {
        for &(id, index) in written.rejected.iter().chain(&frozen.unsettled) {
            let key = ObjectKey { domain: self.domain, object: id };
            match self.store.seek(key, index, Seek::Data) {
                Ok(found) if found == Some(index) => {}
                Ok(_) => batch.ops.push(Op::Lose { id, pages: vec![index], side: Side::Memory }),
                // What leads to the page cannot be read, so nothing old comes out of it either; or the object is gone.
                Err(Error::Corrupt(_) | Error::NoObject(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.apply(frozen, batch, written)
    }

    pub(crate) fn apply(&self, frozen: &FrozenEpoch, batch: &mut Batch, written: &mut Written) -> Result<()> {
        let before = frozen::sum_of_batch(&batch.ops)?;
        self.strike_given(&mut batch.ops);
        let applied = self.store.apply(batch)?;
        if frozen::sum_of_batch(&batch.ops)? != before {
            let why = frozen::corruption(None, "operations that the store is given");
            return Err(self.store.give_up(Found::Scribble, why));
        }
        written.identities.extend(applied.written.into_iter().map(|(id, index, identity)| ((id, index), identity)));
        written.rejected.extend(applied.rejected);
        written.half_done.extend(applied.passed_over.iter().map(|(id, _)| *id));
        written.passed_over.extend(applied.passed_over);
        written.lost.extend(applied.lost);
        for op in &batch.ops {
            if let Op::Write { id, fragments, .. } = op {
                written.note_pages(frozen, *id, fragments);
            }
        }
        batch.ops.clear();
        Ok(())
    }
}

/// Of pages that operations should have changed which were passed over, and that were not written since: those that what came behind has not removed
/// either.
pub(crate) fn still_passed_over(
    store: &dyn ObjectStore,
    domain: DomainId,
    pages: Vec<(ObjectId, PageIndex)>,
) -> Result<Vec<(ObjectId, PageIndex)>> {
    let mut still = Vec::new();
    for (object, page) in pages {
        match store.seek(ObjectKey { domain, object }, page, Seek::Data) {
            Ok(found) if found != Some(page) => {}
            Err(Error::NoObject(_)) => {}
            Ok(_) | Err(Error::Corrupt(_)) => still.push((object, page)),
            Err(error) => return Err(error),
        }
    }
    Ok(still)
}

/// Of pages that copies have lost, the runs that still are.
pub(crate) fn still_lost(
    store: &dyn ObjectStore,
    domain: DomainId,
    lost: Vec<(ObjectId, Range<PageIndex>)>,
) -> Result<Vec<(ObjectId, Range<PageIndex>)>> {
    let mut still = Vec::new();
    for (object, pages) in lost {
        match store.lost_pages(ObjectKey { domain, object }, pages.clone()) {
            Ok(runs) => still.extend(runs.into_iter().map(|run| (object, run))),
            // It is not known any more, so who waits is rather told in vain.
            Err(Error::Corrupt(_)) => still.push((object, pages)),
            Err(Error::NoObject(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(still)
}

/// Without the operations on objects that came and went within the epoch (rvLoris §IV-A), unless another object was
/// copied from one.
fn without_passing(ops: &[Op]) -> Vec<Op> {
    let mut created = FxHashSet::default();
    let mut passing = FxHashSet::default();
    for op in ops {
        match op {
            Op::Create { id, .. } => drop(created.insert(*id)),
            Op::Delete { id } if created.contains(id) => drop(passing.insert(*id)),
            _ => {}
        }
    }
    for op in ops {
        if let Op::Copy { source, .. } = op {
            passing.remove(source);
        }
    }
    ops.iter().filter(|op| !passing.contains(&op.target())).cloned().collect()
}

/// A cut as the store is told of it: in whole pages. A page that is cut within is dirty here, so its newest version follows;
/// the store need not make a version of its own for each cut.
pub(crate) fn whole_pages(op: Op) -> Option<Op> {
    const PAGE: u64 = PAGE_SIZE as u64;
    match op {
        Op::Truncate { id, size } => Some(Op::Truncate { id, size: size.next_multiple_of(PAGE) }),
        Op::Zero { id, offset, length } => {
            let (first, end) = (offset.next_multiple_of(PAGE), (offset + length) / PAGE * PAGE);
            (first < end).then(|| Op::Zero { id, offset: first, length: end - first })
        }
        op => Some(op),
    }
}

/// Objects whose size was set: [`whole_pages`] leaves it too large.
fn cut_objects(ops: &[Op]) -> FxHashSet<ObjectId> {
    ops.iter().filter(|op| matches!(op, Op::Truncate { .. })).map(Op::target).collect()
}

/// How many of these pages, in ascending order, an object of `size` bytes has bytes in.
pub(crate) fn pages_within<T>(pages: &[(PageIndex, T)], size: u64) -> usize {
    pages.partition_point(|(index, _)| *index < size.div_ceil(PAGE_SIZE as u64))
}

pub(crate) fn whole(index: PageIndex, page: PageRef) -> Fragment {
    Fragment { index, start: 0, end: PAGE_SIZE as u16, page }
}

pub(crate) fn all_attributes(attributes: &Attributes) -> AttrSet {
    AttrSet {
        mode: Some(attributes.mode),
        uid: Some(attributes.uid),
        gid: Some(attributes.gid),
        nlink: Some(attributes.nlink),
        entries: Some(attributes.entries),
        atime: Some(attributes.atime),
        mtime: Some(attributes.mtime),
        ctime: Some(attributes.ctime),
        btime: Some(attributes.btime),
        parent: Some(attributes.parent),
        xattr: Some(attributes.xattr),
        policy: Some(attributes.policy),
        flags: Some(attributes.flags),
        name_key: Some(attributes.name_key),
        other_names: Some(attributes.other_names.clone()),
    }
}

impl State {
    /// The frozen epoch is a recovery point: what has not changed since is clean.
    fn published(&mut self, frozen: FrozenEpoch, written: &Written) -> Result<()> {
        // Nothing is durable by a number that may be too high.
        let sequence = frozen.sequence.get().ok_or_else(|| frozen::corruption(None, "last transaction of an epoch"));
        let sequence = sequence.map_err(|bad| Error::Corrupt(Box::new(bad)))?;
        self.note_numbers("last transaction of an epoch", u64::from(frozen.sequence.differing() != 0));
        let rejected: FxHashSet<_> = written.rejected.iter().copied().collect();
        let (mut struck, mut renewed) = (0, Vec::new());
        for mut past in frozen.objects {
            let id = past.id;
            self.heal(id)?;
            let healed = past.attributes.heal();
            self.note_healed(id, healed, Some(frozen.epoch))?;
            let mut bad = Vec::new();
            let Some(object) = self.objects.get_mut(&id) else { continue };
            for (index, page) in past.pages {
                let Some(slot) = object.pages.get_mut(&index) else { continue };
                if slot.residence != Residence::Frozen {
                    continue;
                }
                if rejected.contains(&(id, index)) {
                    bad.push((index, slot.page.verify().err()));
                    continue;
                }
                let Some(&identity) = written.identities.get(&(id, index)) else {
                    return Err(Error::Protocol(format!("the store does not say where page {index} of {id} is")));
                };
                slot.residence = Residence::Clean(identity);
                slot.twin = None;
                object.frozen_pages = object.frozen_pages.saturating_sub(1);
                object.unlogged.remove(&index);
                // Most pages are told by their checksum not to be: their bytes are not in the processor's cache any more.
                if ZERO_SUMS.contains(&page.page().checksum) && page.bytes() == &ZEROES {
                    // A large range that was allocated would fill the memory with slots that share one frame.
                    object.pages.remove(&index);
                    continue;
                }
                if !std::mem::replace(&mut slot.queued, true) {
                    self.clean.push_back((id, index));
                }
            }
            object.overlay.published(frozen.epoch);
            // What went bad and was not to outlast the epoch is not told from what was: no sync may come upon it.
            let before = object.structural.len();
            object.structural.retain(Unlogged::is_good);
            struck += before - object.structural.len();
            object.structural.retain(|change| change.outlasts_epoch(sequence));
            if object.renew_unlogged() {
                renewed.push(id);
            }
            if object.progress.own_durable.get().is_none_or(|durable| durable < sequence) {
                object.set_stable(past.attributes);
            }
            object.progress.published(frozen.epoch, sequence);
            object.fresh_pages = object.dirty.len() as u64;
            if let Some(&blocks) = written.blocks.get(&id) {
                object.attributes.change(|attributes| attributes.blocks = blocks);
            }
            for (index, mismatch) in bad {
                if let Some(mismatch) = mismatch {
                    let error = bad_page(self, id, index, &mismatch);
                    self.lose_dirty(id, index, &error);
                } else {
                    let (key, error) = (self.key(id), unreachable_page(self, id, index));
                    tracing::error!(%key, page = index, %error, "a changed page has no place, and was not stored");
                    self.give_up_dirty(id, index, &error);
                }
                if let Some(object) = self.objects.get_mut(&id) {
                    object.bad.settle(index, self.errors);
                }
            }
        }
        // The store has logged why. What was found before is told, and of a newer page the next recovery point tells.
        let told: BTreeSet<_> = written.rejected.iter().chain(&frozen.unsettled).copied().collect();
        for (id, pages) in &written.lost {
            for run in self.untold(*id, pages.clone(), &told) {
                let error = unreachable_page(self, *id, run.start);
                self.tell_lost(*id, run, error);
            }
        }
        for &(id, index) in &written.passed_over {
            if self.untold(id, index..index + 1, &told).is_empty() {
                continue;
            }
            let error = unreachable_page(self, id, index);
            self.give_up_dirty(id, index, &error);
            if let Some(object) = self.objects.get_mut(&id) {
                object.bad.settle(index, self.errors);
            }
        }
        self.uncut.extend(&written.half_done);
        self.uncut.retain(|id| self.objects.contains_key(id));
        self.names_unlogged.retain(|id| self.objects.get(id).is_some_and(|object| object.progress.has_newer_names()));
        self.gone.retain(|_, epoch| *epoch > frozen.epoch);
        self.gone_unlogged.retain(|gone| gone.outlasts_epoch(sequence));
        self.brings.retain(|id, brought| brought.outlasts(*id, sequence));
        if self.spoilt.get().is_some_and(|at| at <= sequence) {
            self.spoilt.set(0);
        }
        self.spoil(struck, OPERATIONS);
        renewed.into_iter().for_each(|id| self.note_members(Some(id), "pages to be logged"));
        self.log.release(self.open.log_start);
        self.freezing = None;
        self.writing = None;
        for (id, index) in frozen.unsettled {
            if let Some(object) = self.objects.get_mut(&id) {
                object.bad.settle(index, frozen.errors);
            }
        }
        Ok(())
    }

    /// Of pages of an object the runs that are in memory as the recovery point has them, and are not `told` already. In a time that goes by runs, and by
    /// pages that are not: a run may be as long as a file, and everybody waits.
    fn untold(
        &self,
        id: ObjectId,
        pages: Range<PageIndex>,
        told: &BTreeSet<(ObjectId, PageIndex)>,
    ) -> Vec<Range<PageIndex>> {
        let Some(object) = self.objects.get(&id) else { return Vec::new() };
        let told = told.range((id, pages.start)..(id, pages.end)).map(|(_, index)| *index);
        let others: BTreeSet<PageIndex> = object.dirty.range(pages.clone()).copied().chain(told).collect();
        let mut untold = Vec::new();
        for run in object.overlay.stored(pages) {
            let mut from = run.start;
            for &other in others.range(run.clone()) {
                if from < other {
                    untold.push(from..other);
                }
                from = other + 1;
            }
            if from < run.end {
                untold.push(from..run.end);
            }
        }
        untold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frozen::FrozenOps;
    use crate::object::Object;
    use crate::thrice::Thrice;
    use holdfast_integrity::Protection;
    use holdfast_object::{Arena, Class, Kind, ManualClock, Timestamp};
    use rand::{Rng, SeedableRng};
    use std::sync::Arc;

    const ID: ObjectId = ObjectId(2);

    fn state() -> State {
        let (arena, clock) = (Arena::new(16, 4096).expect("arena"), Arc::new(ManualClock::new(0, 0)));
        let mut state = State::new(DomainId::MAIN, Protection::Uniform, clock, 2, arena, [0; 2], None);
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp::default());
        state.insert_object(ID, Object::new(attributes));
        state
    }

    /// Of 2^40 pages nobody sees the end who looks at each.
    #[test]
    fn a_run_that_is_lost_takes_no_longer_than_what_is_newer_in_it() {
        let mut state = state();
        let object = state.objects.get_mut(&ID).expect("it is there");
        object.dirty = [5, 1000].into_iter().collect();
        object.overlay.zero(100..200, 4);
        let frozen = FrozenEpoch {
            epoch: 3,
            sequence: Thrice::new(9),
            ops: FrozenOps::new(Vec::new()).expect("none"),
            proved: Default::default(),
            objects: Vec::new(),
            uncut: Default::default(),
            unsettled: vec![(ID, 7)],
            errors: 0,
        };
        state.published(frozen, &Written { lost: vec![(ID, 0..1 << 40)], ..Written::default() }).expect("it is sound");
        let bad = &state.objects[&ID].bad;
        for (first, expected) in
            [(0, [0, 1, 2, 3]), (4, [4, 6, 8, 9]), (98, [98, 99, 200, 201]), (999, [999, 1001, 1002, 1003])]
        {
            assert_eq!(bad.list(first, 4), expected, "from {first} on");
        }
    }

    #[test]
    fn what_is_told_by_runs_is_what_is_told_page_by_page() {
        const PAGES: u64 = 40;
        for seed in 0..300 {
            let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
            let mut state = state();
            let mut some = |most: u64| -> BTreeSet<PageIndex> {
                (0..rng.random_range(0..=most)).map(|_| rng.random_range(0..PAGES)).collect()
            };
            let (dirty, told, starts) = (some(8), some(8), some(3));
            let object = state.objects.get_mut(&ID).expect("it is there");
            object.dirty = dirty.iter().copied().collect();
            starts.iter().for_each(|start| object.overlay.zero(*start..start + 5, 4));
            let newer = |page: &PageIndex| starts.range(page.saturating_sub(4)..=*page).next().is_some();
            let told_of = told.iter().flat_map(|page| [(ID, *page), (ObjectId(3), page + 1)]).collect();
            let untold: Vec<_> = state.untold(ID, 3..PAGES - 3, &told_of);
            assert!(untold.iter().all(|run| !run.is_empty()), "seed {seed}: {untold:?}");
            let pages: Vec<_> = untold.into_iter().flatten().collect();
            let others = |page: &PageIndex| dirty.contains(page) || told.contains(page) || newer(page);
            let expected: Vec<_> = (3..PAGES - 3).filter(|page| !others(page)).collect();
            assert_eq!(pages, expected, "seed {seed}: {dirty:?} changed, {told:?} told, from {starts:?} on zeros");
        }
    }
}
