//! The intent log: what a sync made durable since the last recovery point. Appending, and forgetting.
//!
//! The area has two halves; epoch `e` uses half `e % 2` from its start, so that one epoch can be appended to while the one
//! before is being written. Each append is one write and one flush under one lock: if a batch has a successor, it had been
//! acknowledged. So that the last one has a successor too, a *seal* is written behind it when the log has been idle for a while
//! (its caller says when): an empty batch, without a flush of its own, since nothing depends on it. There is always room for
//! one. Reading it back is in `log_recovery`.
//!
//! A batch also tells what the blocks of its pages held before, so that a torn page can be told from a damaged one. That is
//! known because the whole area is read before the first append. Invariant: `contents` has what a power cut before the next
//! flush may bring back, so an append waits for a flush after that reading. (Of the blocks of a seal only once it is durable; they
//! are not written again before.)

mod body;
mod contents;
mod ends;
mod scribble;

use crate::commit::CommitOrder;
use crate::format::RING_SLOTS;
use crate::format::log::{HEADER_BYTES, LogHeader, SectorSums, encode_sums, sector_sums};
use crate::format::ops::encode_op;
use crate::guarded::Guarded;
use crate::log_recovery::Recovered;
use crate::meta_block::Scribble;
use crate::module::Module;
use crate::read::page_place;
use crate::scribble::Moment;
use crate::sealed::Gist;
use body::Body;
use contents::Contents;
pub(crate) use ends::Ends;
use ends::{Half, SealedEnds};
use holdfast_integrity::Algorithm;
use holdfast_object::{
    DomainId, Epoch, Error, LogBatch, ObjectId, ObjectKey, Op, PAGE_SIZE, PageIndex, PinnedPage, Place, Result,
};
use rustc_hash::FxHashMap;
use std::io::IoSlice;
use std::ops::Range;

/// Blocks of a seal: two heads.
const SEAL_BLOCKS: u64 = 2;
/// Most buffers in one device write.
const SLICES_MAX: usize = 1024;

/// State of the log area.
pub(crate) struct IntentLog {
    ends: SealedEnds,
    /// What was found in it; `None` before it was read.
    pub(crate) recovered: Option<Recovered>,
    /// Sector sums of what each block of the area holds, where known; empty before it was read.
    contents: Contents,
    /// What was read is durable, so that a power cut brings nothing older back.
    is_durable: bool,
    /// Objects that batches of unpublished epochs create, by epoch, and whether their pages are metadata.
    creates: FxHashMap<(DomainId, ObjectId), Created>,
}

/// An epoch, and whether pages are metadata: the last bit.
#[derive(Clone, Copy)]
struct Created(Guarded);

impl Created {
    fn new(epoch: Epoch, is_metadata: bool) -> Created {
        Created(Guarded::new(epoch << 1 | u64::from(is_metadata)))
    }

    fn get(self) -> std::result::Result<(Epoch, bool), Scribble> {
        let word = self.0.get("what is known of an object that the intent log creates")?;
        Ok((word >> 1, word & 1 == 1))
    }
}

/// A page that is put into the log.
struct Page {
    key: ObjectKey,
    index: PageIndex,
    pin: PinnedPage,
}

impl Page {
    /// # Errors
    /// It has gone bad in memory.
    fn verify(&self) -> Result<()> {
        let Err(mismatch) = self.pin.verify() else { return Ok(()) };
        let (expected, got) = mismatch.expected_and_got();
        let place = page_place(self.key, self.index, Place::default());
        Err(Error::corrupt(place, "page in memory", expected, got))
    }
}

impl IntentLog {
    pub(crate) fn new(area: Range<u64>) -> IntentLog {
        IntentLog {
            ends: SealedEnds::new(Ends::new(area)),
            recovered: None,
            contents: Contents::default(),
            is_durable: false,
            creates: FxHashMap::default(),
        }
    }

    /// The one way to change where it ends: to what has become of what was verified.
    fn set_ends(&mut self, ends: Ends) {
        self.ends = SealedEnds::new(ends);
    }

    /// Takes note of what the blocks of the area hold, as they were read: `None` for those that could not be; not of those that have been
    /// `written` since.
    pub(crate) fn note_contents<'a>(
        &mut self,
        ends: &Ends,
        blocks: impl Iterator<Item = Option<&'a [u8; 4096]>>,
        written: impl Iterator<Item = u64>,
    ) {
        self.contents.note_read(blocks);
        written.for_each(|block| self.contents.forget(ends.place(block)));
    }

    /// Has not been read yet, or what was found is not yet in a recovery point.
    pub(crate) fn is_unread(&self) -> bool {
        self.recovered.as_ref().is_none_or(|recovered| recovered.newest.get() != 0)
    }

    /// A log area just zeroed: there is nothing to read.
    pub(crate) fn set_empty(&mut self) {
        self.recovered = Some(Recovered::default());
        let blocks = self.ends.ends.half(0).start..self.ends.ends.half(1).end;
        self.contents.note_read(blocks.map(|_| Some(&[0; 4096])));
    }
}

impl Module {
    /// See [`holdfast_object::ObjectStore::log_append`].
    pub(crate) fn append_to_log(&self, batch: &LogBatch) -> Result<bool> {
        self.disk().check_writable()?;
        self.fall_into_ambush(Moment::Appending);
        if !self.have_places(batch) {
            // The recovery point cannot have all of them either, but who waits is told which.
            return Ok(false);
        }
        let mut log = self.log.lock();
        let Gist { store, epoch: last, .. } = self.sealed.gist(self.disk())?;
        if batch.epoch <= last {
            // The epoch was written while the batch was put together: all of it is durable.
            return Ok(true);
        }
        self.read_log(&mut log)?;
        if log.is_unread() {
            // The area still holds what a recovery needs.
            return Ok(false);
        }
        let mut ends = self.ends(&mut log)?;
        if !self.log_is_sound(&ends) {
            return Ok(false);
        }
        let index = (batch.epoch % 2) as usize;
        let mut half = ends.halves[index];
        if half.epoch != batch.epoch {
            if half.epoch != 0 {
                return Ok(false);
            }
            half = Half::of(batch.epoch);
        }
        let twice = self.twice(&mut log, batch)?;
        let mut body = Body::new(self.disk().metadata.rolls());
        let mut pages: Vec<Page> = Vec::new();
        let mut again: Vec<usize> = Vec::new();
        for (op, &twice) in batch.ops.iter().zip(&twice) {
            let Op::Write { id, fragments, size_min } = op else {
                body.put(|bytes| encode_op(bytes, op, twice));
                continue;
            };
            let mut logged = fragments.clone();
            for fragment in &mut logged {
                if !fragment.is_whole() {
                    return Err(Error::Protocol("a part of a page below the cache".to_string()));
                }
                let Some(pin) = self.arena.pin(fragment.page) else {
                    return Err(Error::Protocol(format!("page frame {} is free", fragment.page.frame)));
                };
                // The log's own checksum, generated before that of memory is verified.
                let known = Some(pin.sum()).filter(|sum| sum.algorithm() == Algorithm::Crc64Nvme);
                let crc = known.unwrap_or_else(|| Algorithm::Crc64Nvme.sum(pin.bytes()));
                let page = Page { key: ObjectKey { domain: batch.domain, object: *id }, index: fragment.index, pin };
                page.verify()?;
                fragment.page.checksum = crc.as_number();
                if twice {
                    again.push(pages.len());
                }
                pages.push(page);
            }
            let op = Op::Write { id: *id, fragments: logged, size_min: *size_min };
            body.put(|bytes| encode_op(bytes, &op, twice));
        }
        self.batch_falls_into_ambush("entries", body.scribbled(0));
        let room = ends.half(index);
        let page_blocks = pages.len() + again.len();
        let entries_bytes = body.bytes().len();
        // As if the sums of all that was there before were known: without them the head may be too long, not too short.
        let sums_bytes_max = size_of::<SectorSums>() * (pages.len() + page_blocks);
        let head_blocks = (HEADER_BYTES + entries_bytes + sums_bytes_max).div_ceil(PAGE_SIZE);
        let blocks = (2 * head_blocks + page_blocks) as u64;
        if half.used + blocks + SEAL_BLOCKS > room.end - room.start {
            return Ok(false);
        }
        if !log.is_durable {
            self.disk().flush()?;
            log.is_durable = true;
        }
        let start = room.start + half.used;
        let first_page = start + head_blocks as u64;
        let old = log.contents.of_run(ends.place(first_page), page_blocks, self.disk());
        let new: Vec<SectorSums> = pages.iter().map(|page| sector_sums(page.pin.bytes())).collect();
        body.put(|bytes| encode_sums(bytes, &new, old.as_deref()));
        self.batch_falls_into_ambush("sums", body.scribbled(entries_bytes));
        let [mut head, mut copy] = [(); 2].map(|()| body.head(head_blocks));
        let entries_crc = match body.sum() {
            Ok(sum) => sum,
            Err(scribble) => {
                self.give_up_batch(scribble);
                return Ok(false);
            }
        };
        let before = ends.halves[1 - index];
        let before = if before.epoch < batch.epoch { before } else { Half::default() };
        let header = LogHeader {
            store,
            start,
            base: last,
            epoch: batch.epoch,
            sequence: half.batches(),
            domain: batch.domain.0,
            head_blocks: head_blocks as u32,
            page_blocks: page_blocks as u32,
            entries_bytes: entries_bytes as u32,
            sums_bytes: (body.bytes().len() - entries_bytes) as u32,
            previous_epoch: before.epoch,
            previous_batches: before.batches_to_tell(),
            entries_crc,
            chain: half.last.map_or(0, |last| last.link()),
        };
        let headers = [false, true].map(|copy| header.encode(copy));
        head[..HEADER_BYTES].copy_from_slice(&headers[0]);
        copy[..HEADER_BYTES].copy_from_slice(&headers[1]);
        let said = HEADER_BYTES + body.bytes().len();
        self.batch_falls_into_ambush("head", &mut head[..said]);
        self.batch_falls_into_ambush("second head", &mut copy[..said]);
        let rolls = self.disk().metadata.rolls();
        if rolls && let Err(scribble) = body.verify_heads([&head, &copy], &headers) {
            self.give_up_batch(scribble);
            return Ok(false);
        }
        let mut slices = Vec::with_capacity(page_blocks + 2);
        slices.push(IoSlice::new(&head));
        slices.extend(pages.iter().map(|page| IoSlice::new(&page.pin.bytes()[..])));
        slices.extend(again.iter().map(|&at| IoSlice::new(&pages[at].pin.bytes()[..])));
        slices.push(IoSlice::new(&copy));
        let mut at = header.start;
        for run in slices.chunks(SLICES_MAX) {
            self.disk().write_run(at, run)?;
            at += run.iter().map(|slice| (slice.len() / PAGE_SIZE) as u64).sum::<u64>();
        }
        if self.base.commit_order == CommitOrder::SealBeforeFlush {
            self.write_seal(&header.seal())?;
        }
        self.disk().flush()?;
        self.disk().counters.logged(blocks * PAGE_SIZE as u64);
        self.batch_falls_into_ambush("written head", &mut head[..said]);
        if rolls {
            let heads = body.verify_heads([&head, &copy], &headers);
            let pages = pages.iter().try_for_each(Page::verify);
            if heads.is_err() || pages.is_err() {
                // Whatever is there: nobody is told that it is durable, and nothing comes behind it.
                (start..start + blocks).for_each(|block| log.contents.forget(ends.place(block)));
                ends.give_up(batch.epoch);
                log.set_ends(ends);
                if let Err(scribble) = heads {
                    self.give_up_batch(scribble);
                }
                return pages.map(|()| false);
            }
        }
        let pages = new.iter().chain(again.iter().map(|&at| &new[at])).copied();
        let heads = [&head, &copy].map(|head| head.as_chunks().0.iter().map(sector_sums));
        let [head, copy] = heads;
        log.contents.note_written(ends.place(start), head.chain(pages).chain(copy));
        half.extend(header);
        ends.halves[index] = half;
        log.set_ends(ends);
        Ok(true)
    }

    /// What is to be durable does not go through the log.
    fn give_up_batch(&self, scribble: Scribble) {
        self.disk().note_scribble(scribble, None, "what was to be in the log becomes a recovery point");
    }

    /// See [`holdfast_object::ObjectStore::log_seal`].
    pub(crate) fn seal_log(&self) -> Result<bool> {
        // No recovery point is made meanwhile: the flush of the one that makes the log obsolete comes after the seal, so that no
        // batch is ever written over a seal that is not durable.
        let _committing = self.committing.lock();
        let mut log = self.log.lock();
        let mut ends = self.ends(&mut log)?;
        if !self.log_is_sound(&ends) {
            return Ok(false);
        }
        let index = usize::from(ends.halves[1].epoch > ends.halves[0].epoch);
        let mut half = ends.halves[index];
        let Some(last) = half.last.filter(|_| !half.is_sealed()) else { return Ok(false) };
        self.disk().check_writable()?;
        let header = last.seal();
        let room = ends.half(index);
        debug_assert!(header.start == room.start + half.used && header.start + header.blocks() <= room.end);
        let heads = self.write_seal(&header)?;
        let headers = [false, true].map(|copy| header.encode(copy));
        if let Err(scribble) = Body::new(false).verify_heads(heads.each_ref().map(|head| &head[..]), &headers) {
            let blocks = header.start..header.start + header.blocks();
            blocks.for_each(|block| log.contents.forget(ends.place(block)));
            ends.give_up(header.epoch);
            log.set_ends(ends);
            self.disk().note_scribble(scribble, None, "the log has no seal, and gets nothing more");
            return Ok(false);
        }
        self.disk().counters.sealed(SEAL_BLOCKS * PAGE_SIZE as u64);
        log.contents
            .note_written(ends.place(header.start), heads.iter().flat_map(|head| head.as_chunks().0).map(sector_sums));
        half.extend(header);
        ends.halves[index] = half;
        log.set_ends(ends);
        Ok(true)
    }

    /// Whether what is known of the log's ends fits together. If not, an append may go anywhere: what is to be durable becomes a recovery point
    /// instead, which makes the log obsolete.
    fn log_is_sound(&self, ends: &Ends) -> bool {
        if ends.is_given_up() {
            return false;
        }
        if !self.disk().metadata.audits() {
            return true;
        }
        let Err(why) = ends.audit() else { return true };
        self.disk().counters.audit_failed();
        let error = format!(
            "audit of the intent log: not so: \"log heads\": {why} (a logic bug, to be reported; nothing is appended)"
        );
        tracing::error!("{error}");
        self.disk().ambush.found(&error);
        false
    }

    /// The log of `epoch` and those before is not needed any more: it is in a recovery point, for which the device was
    /// flushed.
    pub(crate) fn forget_log(&self, epoch: Epoch) {
        let mut log = self.log.lock();
        // What cannot be told stays as bad as it is, and nothing is appended.
        if let Ok(mut ends) = self.ends(&mut log) {
            ends.forget(epoch);
            log.set_ends(ends);
        }
        log.is_durable |= log.recovered.is_some();
        log.creates.retain(|_, created| created.get().is_ok_and(|(created, _)| created > epoch));
        if let Some(recovered) = log.recovered.as_mut().filter(|recovered| recovered.newest.get() <= epoch) {
            *recovered = Recovered::default();
        }
    }

    /// Whether the log has batches appended since the store was opened that no recovery point has made obsolete.
    pub(crate) fn log_is_used(&self, log: &mut IntentLog) -> Result<bool> {
        Ok(self.ends(log)?.is_used())
    }

    /// Gives the heads written.
    fn write_seal(&self, header: &LogHeader) -> Result<[Vec<u8>; 2]> {
        let heads = [false, true].map(|copy| header.head(&[], copy));
        self.disk().write_run(header.start, &heads.each_ref().map(|head| IoSlice::new(head)))?;
        Ok(heads)
    }

    /// For each operation, whether its pages are metadata. An object that nobody here knows counts as metadata.
    fn twice(&self, log: &mut IntentLog, batch: &LogBatch) -> Result<Vec<bool>> {
        let trees = self.trees();
        let mut twice = Vec::with_capacity(batch.ops.len());
        for op in &batch.ops {
            let id = op.target();
            if let Op::Create { attributes, .. } = op {
                let created = Created::new(batch.epoch, attributes.kind.is_metadata());
                log.creates.insert((batch.domain, id), created);
            }
            twice.push(match op {
                Op::Write { .. } => match log.creates.get(&(batch.domain, id)).map(|created| created.get()) {
                    Some(Ok((_, is_metadata))) => is_metadata,
                    Some(Err(scribble)) => {
                        let key = ObjectKey { domain: batch.domain, object: id };
                        self.disk().note_scribble(scribble, Some(key), "its pages are logged twice");
                        true
                    }
                    None => {
                        let record = trees.find(&self.base, ObjectKey { domain: batch.domain, object: id })?;
                        record.is_none_or(|record| record.kind.is_metadata())
                    }
                },
                _ => false,
            });
        }
        Ok(twice)
    }

    /// An epoch that may be the next recovery point: above the last one, and above torn batches in the log.
    pub(crate) fn epoch_above_log(&self) -> Result<Epoch> {
        let mut log = self.log.lock();
        self.read_log(&mut log)?;
        let last = self.superblock()?.epoch;
        let newest = log.recovered.as_ref().map_or(0, |recovered| recovered.newest.get());
        let epoch = last.max(newest) + 1;
        // Not in the slot of the last one.
        Ok(epoch + u64::from((epoch - last).is_multiple_of(RING_SLOTS)))
    }

    /// `Err` if the log has, or may have, batches of `epoch` or later ones that were never replayed: they would come back
    /// to life.
    pub(crate) fn check_above_log(&self, epoch: Epoch) -> Result<()> {
        let mut log = self.log.lock();
        self.read_log(&mut log)?;
        match log.recovered.as_ref().map_or(0, |recovered| recovered.newest.get()) {
            newest if newest >= epoch => {
                Err(Error::Protocol(format!("epoch {epoch}, and the intent log has epoch {newest}")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
