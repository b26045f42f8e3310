//! Frames and pages: getting memory, loading from the store, replacing what was found corrupt.

use crate::Cache;
use crate::object::{Object, Residence};
use crate::ranges::Missing;
use crate::scribbled::Mend;
use crate::state::State;
use holdfast_object::{
    Corruption, Error, FrameMut, ObjectId, PAGE_SIZE, PageIndex, PageMismatch, PageRef, PageSource, PageView,
    PinnedPage, Place, Result, Seek, Side, VerifiedBy,
};
use std::sync::atomic::Ordering;

/// Frames freed at least when the hand must go round.
pub(crate) const EVICT_AT_LEAST: usize = 64;
/// Objects that the hand looks at for each one that is loaded.
const EVICT_OBJECT_STEPS: usize = 256;
/// How often a page is read again that somebody else has put there unverified.
const REREADS_MAX: usize = 3;
/// How often an epoch is written to get frames before giving up.
const FLUSHES_FOR_FRAMES: usize = 3;

/// What is known in memory of a page.
pub(crate) enum Found {
    /// Its newest version.
    Page(PinnedPage),
    /// It reads as zero.
    Zero,
    /// The store knows.
    InStore,
    /// The store will know once this epoch is a recovery point.
    After(u64),
}

impl Object {
    /// Looks a page up without asking the store.
    pub(crate) fn find(&self, index: PageIndex) -> Result<Found> {
        if let Some(slot) = self.pages.get(&index) {
            slot.referenced.store(true, Ordering::Relaxed);
            return Ok(Found::Page(slot.page.clone()));
        }
        if let Some(error) = self.bad.get(index) {
            return Err(error.clone());
        }
        Ok(match self.overlay.missing(index) {
            Missing::Zero => Found::Zero,
            Missing::After(epoch) => Found::After(epoch),
            Missing::Stored if self.progress.is_in_store()? => Found::InStore,
            Missing::Stored => Found::Zero,
        })
    }
}

impl Cache {
    /// Empty frames: free ones, else evicted ones, else after writing an epoch. Called without any lock.
    pub(crate) fn take_frames(&self, count: usize) -> Result<Vec<FrameMut>> {
        let mut frames = Vec::with_capacity(count);
        let mut flushes = 0;
        loop {
            while frames.len() < count
                && let Some(frame) = self.arena.allocate()
            {
                frames.push(frame);
            }
            if frames.len() == count {
                return Ok(frames);
            }
            let freed = self.state.write().evict((count - frames.len()).max(EVICT_AT_LEAST));
            if freed == 0 {
                // What this call holds could be what another waits for.
                frames.clear();
                if flushes == FLUSHES_FOR_FRAMES || count > self.arena.frames() as usize {
                    return Err(Error::NoFrames { frames: u64::from(self.arena.frames()) });
                }
                flushes += 1;
                self.close_epoch()?;
            }
        }
    }

    /// Calls `use_it` with the state and an object, getting its attributes from the store if they are not known. What it goes by is put right before.
    pub(crate) fn with_object<T>(&self, id: ObjectId, mut use_it: impl FnMut(&State, &Object) -> T) -> Result<T> {
        loop {
            let evictions = {
                let state = self.state.read();
                if let Some(object) = state.objects.get(&id) {
                    if object.attributes.is_good() && object.progress.is_created_known() {
                        object.referenced.store(true, Ordering::Relaxed);
                        return Ok(use_it(&state, object));
                    }
                    drop(state);
                    let mut state = self.state.write();
                    state.heal(id)?;
                    if let Some(object) = state.objects.get(&id).filter(|object| !object.progress.is_created_known()) {
                        object.progress.is_in_store()?;
                    }
                    continue;
                }
                if state.gone.contains_key(&id) {
                    return Err(Error::NoObject(state.key(id)));
                }
                state.evictions
            };
            let key = holdfast_object::ObjectKey { domain: self.domain, object: id };
            let mut object = Object::new(self.store.attributes(key)?);
            object.levels = self.store.levels(key)?;
            let mut state = self.state.write();
            if state.evictions != evictions || state.objects.contains_key(&id) || state.gone.contains_key(&id) {
                continue;
            }
            state.evict_objects(self.options.objects_max, EVICT_OBJECT_STEPS);
            state.insert_object(id, object);
        }
    }

    /// Loads `first..first + demanded` and, if that goes well, on to `first + wanted`. Gives views of the demanded pages.
    pub(crate) fn load(
        &self,
        id: ObjectId,
        first: PageIndex,
        demanded: usize,
        wanted: usize,
        version: u64,
        by: VerifiedBy,
    ) -> Result<Vec<PageView>> {
        let key = holdfast_object::ObjectKey { domain: self.domain, object: id };
        let is_metadata = self.with_object(id, |_, object| object.attributes.kind.is_metadata())?;
        let mut frames = self.take_frames(wanted)?;
        let given = match by {
            VerifiedBy::Store => self.store.read(key, first, &mut frames),
            VerifiedBy::Reader => self.store.read_forwarded(key, first, &mut frames),
        };
        let sources = match given {
            Ok(sources) => sources,
            // The error may be about a page that nobody asked for.
            Err(_) if wanted > demanded => return self.load(id, first, demanded, demanded, version, by),
            Err(error) => return Err(error),
        };
        if sources.len() != frames.len() {
            return Err(Error::Protocol(format!("{} pages asked, {} given", frames.len(), sources.len())));
        }
        let mut views = Vec::with_capacity(demanded);
        let mut state = self.state.write();
        let current = state.objects.get(&id).is_some_and(|object| object.version == version);
        for (position, (frame, source)) in frames.into_iter().zip(sources).enumerate() {
            let index = first + position as u64;
            let view = match source {
                PageSource::Data { sums, identity } => {
                    let page = match is_metadata {
                        true => frame.into_metadata_with_bytes().publish_with(sums),
                        false => frame.publish_with(sums),
                    };
                    if current {
                        state.put_clean(id, index, page.clone(), identity);
                    }
                    PageView::Data(page)
                }
                PageSource::Hole => PageView::Zero,
                PageSource::Lost(side) if position < demanded => return Err(lost(&state, id, index, side)),
                PageSource::Lost(_) => continue,
            };
            if position < demanded {
                views.push(view);
            }
        }
        Ok(views)
    }

    /// A reader found a page's bytes not to match their checksum: in memory, or, if nobody has verified them since they came, on the device,
    /// which the store then finds and says.
    pub(crate) fn reread_page(&self, id: ObjectId, index: PageIndex, bad: PageRef) -> Result<PageView> {
        let mut view = self.reread_once(id, index, bad)?;
        for _ in 1..REREADS_MAX {
            match &view {
                // Another reader's, which has not been verified yet.
                PageView::Data(page) if page.verify().is_err() => view = self.reread_once(id, index, page.page())?,
                _ => break,
            }
        }
        // If it is none after that either, whoever asked finds it out as before.
        Ok(view)
    }

    fn reread_once(&self, id: ObjectId, index: PageIndex, bad: PageRef) -> Result<PageView> {
        let mut was_clean = false;
        let mut was_changed = None;
        let mut was_metadata = None;
        {
            let mut state = self.state.write();
            let slot = state.objects.get(&id).and_then(|object| object.pages.get(&index));
            let slot = slot.filter(|slot| slot.page.page() == bad);
            if let Some((changed, residence)) = slot.map(|slot| (slot.page.clone(), slot.residence)) {
                let page = state.for_reader(changed.clone());
                match page.verify() {
                    // The reader was hit, not the page.
                    Ok(_) => return Ok(PageView::Data(page)),
                    Err(mismatch) => {
                        let clean = matches!(residence, Residence::Clean(_));
                        let is_metadata = changed.seal().is_some();
                        if !is_metadata {
                            let key = state.key(id);
                            tracing::warn!(%key, index, clean, "a page does not match its checksum");
                        }
                        if !clean {
                            if let Some(page) = state.renew(id, index, bad) {
                                return Ok(PageView::Data(page));
                            }
                            was_changed = Some((changed, mismatch));
                        } else {
                            was_metadata = is_metadata.then(|| (changed, state.changed_for(id, index)));
                            if let Some(object) = state.objects.get_mut(&id) {
                                object.drop_page(index);
                            }
                        }
                        was_clean = clean;
                    }
                }
            }
        }
        if let Some((changed, mismatch)) = was_changed {
            if let Some(page) = self.bring_back(id, index, &changed) {
                return Ok(PageView::Data(page));
            }
            let mut state = self.state.write();
            // It may have been written again.
            if state
                .objects
                .get(&id)
                .and_then(|object| object.pages.get(&index))
                .is_some_and(|slot| slot.page.page() == bad)
            {
                let error = bad_page(&state, id, index, &mismatch);
                state.lose_dirty(id, index, &error);
                return Err(error);
            }
        }
        let mut views = self.read_pages_by(id, index, 1, VerifiedBy::Store)?;
        if was_clean {
            self.counters.reread.add(1);
        }
        // What another reader has put there, and nobody has verified, says nothing of the memory yet.
        if let (Some((bad, changed)), Some(PageView::Data(good))) = (was_metadata, views.first())
            && good.verify().is_ok()
        {
            self.state.write().tell_scribble((id, index), &bad, (good, Mend::Device), changed);
        }
        views.pop().ok_or_else(|| Error::Protocol("one page asked, none given".into()))
    }

    /// See [`holdfast_object::ObjectCache::seek`].
    pub(crate) fn seek_page(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>> {
        if self.with_object(id, |_, object| !object.overlay.is_empty())? {
            // Afterwards pages in memory and in the store together are the truth.
            self.close_epoch()?;
        }
        loop {
            let published = |state: &State| (state.open.epoch, state.freezing);
            let before = published(&self.state.read());
            let found = self.seek_once(id, offset, what)?;
            // A page may have been looked for in the store before an epoch put it there, and in memory after it had left:
            // that happens only where an epoch became a recovery point meanwhile.
            if published(&self.state.read()) == before {
                return Ok(found);
            }
        }
    }

    fn seek_once(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>> {
        let key = holdfast_object::ObjectKey { domain: self.domain, object: id };
        let page = PAGE_SIZE as u64;
        let (size, in_store) =
            self.with_object(id, |_, object| (object.attributes.size, object.progress.is_in_store()))?;
        let in_store = in_store?;
        if offset >= size {
            return Ok(None);
        }
        let end = size.div_ceil(page);
        // A bad page is data: whoever skipped it as a hole would take zeroes for what was lost.
        let in_memory = |index: PageIndex| {
            self.with_object(id, |_, object| object.pages.contains_key(&index) || object.bad.contains(index))
        };
        let mut index = offset / page;
        let found = match what {
            Seek::Data => {
                let here = self.with_object(id, |_, object| {
                    let good = object.pages.range(index..).next().map(|(&index, _)| index);
                    let bad = object.bad.range(index..).next().map(|(&index, _)| index);
                    good.into_iter().chain(bad).min()
                })?;
                let there = if in_store { self.store.seek(key, index, Seek::Data)? } else { None };
                here.into_iter().chain(there).min().filter(|&found| found < end)
            }
            Seek::Hole => loop {
                if in_store {
                    index = self.store.seek(key, index, Seek::Hole)?.unwrap_or(end);
                }
                if index >= end || !in_memory(index)? {
                    break Some(index.min(end));
                }
                index += 1;
            },
        };
        Ok(found.map(|index| (index * page).max(offset).min(size)))
    }
}

fn lost(state: &State, id: ObjectId, index: PageIndex, side: Side) -> Error {
    let place = Place { object: Some(state.key(id)), index: Some(index), ..Place::default() };
    Error::Lost { side, place: Box::new(place) }
}

/// The error for a page whose bytes in memory are not what was written.
pub(crate) fn bad_page(state: &State, id: ObjectId, index: PageIndex, mismatch: &PageMismatch) -> Error {
    let (expected, got) = mismatch.expected_and_got();
    Error::Corrupt(Box::new(Corruption {
        place: Place { object: Some(state.key(id)), index: Some(index), ..Place::default() },
        what: "checksum of a changed page in memory".into(),
        expected,
        got,
    }))
}

/// The error for a page that the store could not take, because it cannot read what leads to its place.
pub(crate) fn unreachable_page(state: &State, id: ObjectId, index: PageIndex) -> Error {
    let place = Place { object: Some(state.key(id)), index: Some(index), ..Place::default() };
    Error::corrupt(place, "tree block above the page", "a good copy", "none, so the page was not stored")
}
