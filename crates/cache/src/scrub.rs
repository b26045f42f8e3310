//! Scrub steps as seen from above the store: a page that the store has no good copy of may be in memory still, as one of the
//! object or of another one, or of a snapshot, that shares the block. Then it is written over the bad one, so that it is good for
//! all of them, or, where the device does not take it, to another block. Otherwise it is marked as lost, so that it is an error
//! until it is written again, and never zeros. A page of a snapshot is never written again and needs no mark.

use crate::Cache;
use crate::object::Residence;
use crate::oplog::OpLog;
use crate::pages::Found;
use holdfast_integrity::Algorithm;
use holdfast_object::space::levels;
use holdfast_object::{
    BlockIdentity, Error, Fate, Kind, Mending, ObjectId, ObjectKey, Op, PageIndex, PageSource, PinnedPage, Purpose,
    Result, ScrubCursor, ScrubFinding, ScrubStep, Side, SnapshotId,
};

impl Cache {
    /// Scrubs some `blocks` blocks from `cursor` on; see [`holdfast_object::ObjectStore::scrub_step`]. Pages of files without
    /// a good copy are written again from memory or marked as lost; what is not done in place is in the recovery point of the open
    /// epoch.
    ///
    /// # Errors
    /// Those of the store.
    pub fn scrub_step(&self, cursor: &ScrubCursor, blocks: u64) -> Result<ScrubStep> {
        let mut step = self.store.scrub_step(cursor, blocks)?;
        let mut sound = Vec::new();
        for (at, finding) in step.findings.iter_mut().enumerate() {
            let place = &finding.place;
            // One that has a good copy has no block here, and can be read.
            let (Some(key), Some(index), Some(block), Fate::Unrepaired) =
                (place.object, place.index, finding.block, finding.fate)
            else {
                continue;
            };
            if key.domain != self.domain {
                continue;
            }
            match self.condemn(key, index, block)? {
                Some(fate) => finding.fate = fate,
                None => sound.push(at),
            }
            if finding.fate != Fate::Unrepaired || sound.last() == Some(&at) {
                step.counts.unrepaired -= 1;
            }
            step.counts.repaired += u64::from(finding.fate == Fate::Repaired);
            step.counts.lost += u64::from(finding.fate == Fate::Lost);
        }
        let mut at = 0;
        step.findings.retain(|_: &ScrubFinding| {
            at += 1;
            !sound.contains(&(at - 1))
        });
        Ok(step)
    }

    /// Decides about a page that the store had no good copy of; `None` if that is true no more, since the page has been
    /// changed meanwhile.
    fn condemn(&self, key: ObjectKey, index: PageIndex, block: BlockIdentity) -> Result<Option<Fate>> {
        let id = key.object;
        let mut frames = self.take_frames(1)?;
        // The store's version of the page stays what it is meanwhile.
        let _no_epoch_is_written = self.flushing.lock();
        match self.store.read(key, index, &mut frames) {
            Ok(sources) if matches!(sources[..], [PageSource::Lost(_)]) => return Ok(Some(Fate::Lost)),
            Ok(_) | Err(Error::NoObject(_)) => return Ok(None),
            Err(Error::Corrupt(_) | Error::Device(_)) => {}
            Err(error) => return Err(error),
        }
        // In the modes without checksums in memory a page that was read is not known to be what was stored.
        let mut as_stored = Vec::new();
        for page in self.copies_in_memory(block) {
            match self.store.mend(key, index, page.page())? {
                Mending::Done => {
                    tracing::error!(%key, page = index, "a page had no good copy in the store, and was mended from memory");
                    return Ok(Some(Fate::Repaired));
                }
                Mending::NotDone => as_stored.push(page.page()),
                Mending::OtherBytes => {}
            }
        }
        let is_file = self.store.attributes(key)?.kind == Kind::Regular;
        if id.snapshot() != SnapshotId::LIVE {
            tracing::error!(%key, page = index, "a page of a snapshot is lost");
            return Ok(Some(if is_file { Fate::Lost } else { Fate::Unrepaired }));
        }
        let mut state = self.state.write();
        if state.read_only.is_some() || state.freezing.is_some() {
            return Ok(Some(Fate::Unrepaired));
        }
        if state.gone.contains_key(&id) {
            return Ok(None);
        }
        let in_memory = match state.objects.get(&id).map(|object| object.find(index)) {
            None | Some(Ok(Found::InStore)) => None,
            Some(Ok(Found::Page(page))) => Some(page),
            // Cut off, punched, or known to be bad already.
            Some(Ok(Found::Zero | Found::After(_)) | Err(_)) => return Ok(None),
        };
        let is_clean = |id: ObjectId| {
            let slot = state.objects.get(&id).and_then(|object| object.pages.get(&index));
            slot.is_some_and(|slot| matches!(slot.residence, Residence::Clean(_)))
        };
        if in_memory.is_some() && !is_clean(id) {
            // It is on its way to another block.
            return Ok(None);
        }
        // One that has a checksum in memory was verified by the store's when it was read, whatever that has become since.
        let is_good = |page: &PinnedPage| {
            page.verify().is_ok()
                && (page.expected().algorithm() != Algorithm::None || as_stored.contains(&page.page()))
        };
        let good = in_memory.filter(is_good);
        if good.is_none() && !is_file {
            return Ok(Some(Fate::Unrepaired));
        }
        let record = OpLog::encode(&[&Op::Lose { id, pages: vec![index], side: Side::Device }])?;
        // The page, the tree blocks above it, the object's record and the blocks above that.
        let blocks = 2 * (1 + u64::from(levels(index)) + 2 + u64::from(levels(id.0)));
        match self.store.reserve(state.open.epoch, blocks, Purpose::Release) {
            Ok(()) => {}
            Err(error) if error.is_full() => return Ok(Some(Fate::Unrepaired)),
            Err(error) => return Err(error),
        }
        let admitted = match good {
            Some(_) => state.next_sequence().map(drop),
            None if state.log.has_room(&record) => {
                state.next_sequence().and_then(|sequence| state.log.append(sequence, &record))
            }
            None => return Ok(Some(Fate::Unrepaired)),
        };
        if let Err(error) = admitted {
            drop(state);
            self.latch(&error);
            return Err(error);
        }
        let fate = match good {
            Some(page) => {
                // No transaction has put it.
                if !is_file {
                    state.open.proved.put_page(id, index, page.page().checksum);
                }
                state.put_dirty(id, index, page);
                Fate::Repaired
            }
            None => {
                if let Some(object) = state.objects.get_mut(&id) {
                    object.drop_page(index);
                    object.version += 1;
                }
                Fate::Lost
            }
        };
        state.open.objects.insert(id);
        let epoch = state.open.epoch;
        if let Some(object) = state.objects.get_mut(&id) {
            object.progress.changed_in.set(epoch);
        }
        if state.open.since_ns == 0 {
            state.open.since_ns = self.clock.monotonic_ns().max(1);
        }
        tracing::error!(%key, page = index, ?fate, "a page had no good copy in the store");
        Ok(Some(fate))
    }

    /// Good pages in memory that are what a block should have: of any object that shares it, of snapshots too.
    fn copies_in_memory(&self, block: BlockIdentity) -> Vec<PinnedPage> {
        let state = self.state.read();
        let slots = state.objects.values().flat_map(|object| object.pages.values());
        let copies = slots.filter(|slot| slot.residence == Residence::Clean(block) && slot.page.verify().is_ok());
        copies.map(|slot| slot.page.clone()).collect()
    }
}
