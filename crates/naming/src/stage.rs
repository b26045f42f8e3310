//! Collecting a transaction: operations, and the frames with the bytes that they name.

use crate::audit::{Audit, Audits};
use crate::bugs::Bugs;
use crate::error::{Error, Result};
use crate::rolled::Rolled;
use crate::sums;
use holdfast_integrity::{Algorithm, Checksum, prefetch_part};
use holdfast_object::{
    Fragment, FrameMut, ObjectCache, ObjectId, Op, Outcome, PAGE_SIZE, PageIndex, PinnedPage, Proved, Purpose,
    RequestId, Transaction, changing,
};
use std::ops::Range;

/// A transaction in the making. Dropped without [`Staged::submit`], nothing has happened.
pub(crate) struct Staged<'a> {
    cache: &'a dyn ObjectCache,
    ops: Vec<Op>,
    /// Keeps the frames until the cache has taken over.
    pins: Vec<PinnedPage>,
    purpose: Purpose,
    brings: Option<ObjectId>,
    lazy: bool,
    /// What it is to do wrongly, if anything.
    bugs: Option<&'a Bugs>,
    /// Who audits it, if it is to be audited.
    audits: Option<&'a Audits>,
    /// Made when there is something to tell: most transactions are writes to files, of which there is nothing.
    audit: Option<Box<Audit<'a>>>,
}

impl<'a> Staged<'a> {
    pub(crate) fn new(cache: &'a dyn ObjectCache) -> Staged<'a> {
        let purpose = Purpose::Ordinary;
        Staged {
            cache,
            ops: Vec::new(),
            pins: Vec::new(),
            purpose,
            brings: None,
            lazy: false,
            bugs: None,
            audits: None,
            audit: None,
        }
    }

    /// It may be wrong, on purpose.
    pub(crate) fn with(self, bugs: &'a Bugs) -> Staged<'a> {
        Staged { bugs: Some(bugs), ..self }
    }

    pub(crate) fn bugs(&self) -> Option<&'a Bugs> {
        self.bugs
    }

    /// It is audited before it is submitted.
    pub(crate) fn audited(self, audits: &'a Audits) -> Staged<'a> {
        Staged { audits: Some(audits), ..self }
    }

    /// What the audit is to know beside the operations, if there is to be one.
    pub(crate) fn audit(&mut self) -> Option<&mut Audit<'a>> {
        let audits = self.audits?;
        Some(self.audit.get_or_insert_with(|| Box::new(Audit::new(audits))))
    }

    pub(crate) fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    #[cfg(test)]
    pub(crate) fn unaudited(&mut self) -> Option<Box<Audit<'a>>> {
        self.audits = None;
        self.audit.take()
    }

    #[cfg(test)]
    pub(crate) fn ops(&mut self) -> &mut Vec<Op> {
        &mut self.ops
    }

    /// The transaction is a user's; a privileged one has room that others do not.
    pub(crate) fn by(mut self, is_privileged: bool) -> Staged<'a> {
        if is_privileged {
            self.purpose = Purpose::Privileged;
        }
        self
    }

    /// The transaction frees space, or must not fail for want of it.
    pub(crate) fn may_use_reserve(&mut self) {
        self.purpose = Purpose::Release;
    }

    /// See [`Transaction::lazy`].
    pub(crate) fn is_lazy(&mut self) {
        self.lazy = true;
    }

    /// See [`Transaction::brings`].
    pub(crate) fn brings(&mut self, id: ObjectId) {
        self.brings = Some(id);
    }

    /// Writes whole pages of metadata, in ascending order of index.
    ///
    /// # Errors
    /// [`Error::Scribbled`], and those of the cache. Then this is not to be submitted.
    pub(crate) fn pages<'b>(
        &mut self,
        id: ObjectId,
        images: impl ExactSizeIterator<Item = (PageIndex, &'b Rolled)>,
        size_min: u64,
    ) -> Result<()> {
        if images.len() == 0 {
            return Ok(());
        }
        let frames = self.cache.frames(images.len())?;
        let mut fragments = Vec::with_capacity(images.len());
        changing(|| {
            images.zip(frames).try_for_each(|((index, image), frame)| {
                let pin = image.publish(id, index, frame)?;
                fragments.push(Fragment { index, start: 0, end: PAGE_SIZE as u16, page: pin.page() });
                self.pins.push(pin);
                Ok::<(), Error>(())
            })
        })?;
        self.ops.push(Op::Write { id, fragments, size_min });
        Ok(())
    }

    /// The bytes `from..to` read as zero; nothing if there are none.
    pub(crate) fn zero(&mut self, id: ObjectId, from: u64, to: u64) {
        if from < to {
            self.ops.push(Op::Zero { id, offset: from, length: to - from });
        }
    }

    /// Writes a file's pages of zeroes, which are stored, unlike holes. One frame serves all of them.
    pub(crate) fn zero_pages(&mut self, id: ObjectId, pages: Range<PageIndex>, size_min: u64) -> Result<()> {
        let image = [0; PAGE_SIZE];
        let Some(mut frame) = self.cache.frames(1)?.pop() else { return Ok(()) };
        frame.copy_from_slice(&image);
        let pin = frame.publish(self.cache.protection().memory().sum(&image));
        let page = pin.page();
        self.pins.push(pin);
        let fragments = pages.map(|index| Fragment { index, start: 0, end: PAGE_SIZE as u16, page }).collect();
        self.ops.push(Op::Write { id, fragments, size_min });
        Ok(())
    }

    /// Writes bytes of a file at a position.
    pub(crate) fn bytes(&mut self, id: ObjectId, offset: u64, bytes: &[u8]) -> Result<()> {
        self.bytes_under(self.cache.protection().memory(), id, offset, bytes, None)
    }

    /// Writes bytes of metadata at a position.
    pub(crate) fn metadata_bytes(&mut self, id: ObjectId, offset: u64, bytes: &[u8]) -> Result<()> {
        self.bytes_under(Algorithm::Crc64Nvme, id, offset, bytes, None)
    }

    /// Writes bytes of a file at a position. `sums` came with them, one for each page's part.
    ///
    /// # Errors
    /// [`Error::Mismatch`] names the pages whose bytes do not have the checksum that came with them; then this is not to be
    /// submitted.
    pub(crate) fn bytes_with_sums(
        &mut self,
        id: ObjectId,
        offset: u64,
        bytes: &[u8],
        sums: Option<&[Checksum]>,
    ) -> Result<()> {
        self.bytes_under(self.cache.protection().memory(), id, offset, bytes, sums)
    }

    fn bytes_under(
        &mut self,
        algorithm: Algorithm,
        id: ObjectId,
        offset: u64,
        mut bytes: &[u8],
        sums: Option<&[Checksum]>,
    ) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let page = PAGE_SIZE as u64;
        let size_min = offset + bytes.len() as u64;
        let (mut index, mut start) = (offset / page, (offset % page) as usize);
        let count = (start + bytes.len()).div_ceil(PAGE_SIZE);
        if sums.is_some_and(|sums| sums.len() != count) {
            return Err(Error::InvalidArgument("one checksum is needed for each block"));
        }
        let mut filled = Vec::with_capacity(count);
        let mut bad = Vec::new();
        let mut frames = self.cache.frames(count)?.into_iter();
        if let Some(frame) = frames.as_slice().first() {
            prefetch_part(frame, start..PAGE_SIZE.min(start + bytes.len()));
        }
        let mut position = 0;
        while let Some(mut frame) = frames.next() {
            let (piece, rest) = bytes.split_at(bytes.len().min(PAGE_SIZE - start));
            let end = start + piece.len();
            // While a page comes in, the processor gets the frame of the next one. A neighbour in memory it sees coming.
            if let Some(next) = frames.as_slice().first().filter(|next| next.as_ptr() != frame.as_ptr_range().end) {
                prefetch_part(next, 0..rest.len().min(PAGE_SIZE));
            }
            let checksum = match sums {
                Some(sums) => sums::receive(piece, sums[position], algorithm, &mut frame[start..end]).ok(),
                None => Some(algorithm.sum_copied(piece, &mut frame[start..end])),
            };
            match checksum {
                Some(checksum) => filled.push((frame, checksum, index, start as u16..end as u16)),
                None => bad.push(index),
            }
            (bytes, index, start, position) = (rest, index + 1, 0, position + 1);
        }
        assert!(bytes.is_empty(), "as many frames as asked for");
        if !bad.is_empty() {
            return Err(Error::Mismatch { object: id, blocks: bad });
        }
        // All of them by now: publishing one waits for what has been stored to it, while the processor could go on with the next.
        let publish = |(frame, checksum, index, part): (FrameMut, Checksum, PageIndex, Range<u16>)| {
            let pin = frame.publish(checksum);
            let page = pin.page();
            self.pins.push(pin);
            Fragment { index, start: part.start, end: part.end, page }
        };
        let fragments = filled.into_iter().map(publish).collect();
        self.ops.push(Op::Write { id, fragments, size_min });
        Ok(())
    }

    /// Does it. `answer` is kept for a repetition of the request.
    ///
    /// # Errors
    /// [`Error::Audit`]: it does not fit together, and nothing of it is done. Those of the cache.
    pub(crate) fn submit(self, request: Option<RequestId>, answer: Vec<u8>) -> Result<Outcome> {
        #[cfg(test)]
        let this = crate::audit::plant::in_operations(self);
        #[cfg(not(test))]
        let this = self;
        let Staged { cache, mut ops, pins, purpose, brings, lazy, bugs, audits, audit } = this;
        if let Some(bugs) = bugs {
            bugs.plant(&mut ops);
        }
        let proved = match audits {
            Some(audits) if audit.is_some() || ops.iter().any(Audit::is_about) => {
                Some(audit.unwrap_or_else(|| Box::new(Audit::new(audits))).verify(cache, &ops, request)?)
            }
            Some(_) => Some(Proved::NOTHING),
            None => None,
        };
        let outcome = cache.submit(Transaction { request, answer, ops, purpose, lazy, brings, proved })?;
        drop(pins);
        Ok(outcome)
    }
}
