//! Reading the log from a point on: which pages follow each other, and where it ends.

use super::Error;
use super::at::Kept;
use super::format::{Fault, Label, Page, Point, State, hex};
use super::ring::{Area, Rings, Unread};
use crate::{AlignedBuf, BLOCK_SIZE};
use std::sync::Arc;

/// Pages that are read at once: 256 KiB.
const READ_PAGES: u64 = 64;
/// So far is looked behind the end for a page that says that there was more: 1 MiB.
const LOOK_AHEAD_PAGES: u64 = 256;

/// Of a page's data that nothing says was durable, what is there.
pub(super) enum Data {
    /// All of it.
    There,
    /// Some of it is another: it was not flushed.
    Cut,
    /// Some of it cannot be read, and nobody has it: it may have been flushed.
    Unread(Error),
}

impl Data {
    /// Whether the log ends in front of the page. What cannot be read there is `unread` then, in the place of what is behind: if a power cut took the
    /// page's data, none of that was flushed.
    pub(super) fn ends_log(self, unread: &mut Option<Error>) -> bool {
        match self {
            Data::There => return false,
            Data::Cut => *unread = None,
            Data::Unread(error) => *unread = Some(error),
        }
        true
    }
}

/// Whether all data of a page is there, each block as the caller judges it.
pub(super) fn look_for_data(
    rings: &Rings,
    page: &Page,
    mut is_good: impl FnMut(&mut [u8; BLOCK_SIZE], Kept, u64) -> Result<bool, crate::Error>,
) -> Result<Data, Error> {
    let mut found = Data::There;
    for entry in &page.entries {
        if entry.sums().is_empty() {
            continue;
        }
        let mut bytes = AlignedBuf::zeroed(entry.sums().len() * BLOCK_SIZE);
        let unread = rings.read_what_can_be(Area::Data, entry.data, &mut bytes)?;
        let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        for ((block, kept), position) in blocks.iter_mut().zip(Kept::of(entry)).zip(entry.data..) {
            if is_good(block, kept, position)? {
                continue;
            }
            let Some(why) = unread.why(position) else { return Ok(Data::Cut) };
            if let Data::There = found {
                let got = format!("none ({why}), for block {} of the set", kept.address);
                let fault = Fault::new("checksum of a block at the end of the log", hex(kept.sum), got);
                let (device, block) = (rings.device.name().into(), rings.block(Area::Data, position));
                found = Data::Unread(Error::Damaged { device, block, fault });
            }
        }
    }
    Ok(found)
}

/// Reads pages one after the other.
pub(super) struct Scan<'a> {
    rings: &'a Rings,
    label: &'a Label,
    /// Of the next page.
    pub(super) at: Point,
    /// The page before that goes on in it.
    goes_on: bool,
    any_generation: bool,
    mends: bool,
    buffer: AlignedBuf,
    /// Number of the page that the buffer begins with, and how many it has.
    buffered: (u64, u64),
    /// Of these.
    unread: Unread,
}

impl<'a> Scan<'a> {
    /// From a point on, which the label has.
    pub(super) fn new(rings: &'a Rings, label: &'a Label, at: Point, any_generation: bool) -> Scan<'a> {
        let buffer = AlignedBuf::zeroed(READ_PAGES as usize * BLOCK_SIZE);
        let (goes_on, mends, unread) = (false, true, Unread::default());
        Scan { rings, label, at, goes_on, any_generation, mends, buffer, buffered: (0, 0), unread }
    }

    /// Writes nothing: a page that is made good is so in memory only.
    pub(super) fn without_mending(mut self) -> Scan<'a> {
        self.mends = false;
        self
    }

    /// The next page; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Page>, Error> {
        if !self.has_room() {
            return Ok(None);
        }
        let found = *self.bytes(self.at.page)?;
        let mut bytes = found;
        let page = Page::decode_mending(&mut bytes, self.label.blocks).ok().filter(|page| self.is_next(page));
        if let Some(page) = &page {
            if self.mends && bytes != found {
                self.rings.write(Area::Meta, self.at.page, &[&AlignedBuf::copy_of(&bytes)])?;
            }
            self.goes_on = page.head.is_partial;
            self.at =
                Point { page: page.head.number + 1, data: page.head.data + page.data_blocks(), previous: page.sum };
        }
        Ok(page)
    }

    /// Whether there is room for a next page.
    fn has_room(&self) -> bool {
        let used = self.at.page.checked_sub(self.label.tail.page);
        used.is_some_and(|used| used < self.rings.areas.meta_blocks)
    }

    /// That the next page, at which this ends, cannot be read: nobody knows whether there is one. To be asked right after [`Scan::next`].
    pub(super) fn unread_end(&self) -> Option<Error> {
        // Of a generation that is only begun there are none: the set was closed.
        let is_known = self.label.state == State::Opening && self.at.page >= self.label.start;
        let is_unread = self.has_room() && !is_known && self.unread.why(self.at.page).is_some();
        is_unread.then(|| self.missing())
    }

    /// The next page, which is known to be there.
    pub(super) fn next_there(&mut self) -> Result<Page, Error> {
        self.next()?.ok_or_else(|| self.missing())
    }

    /// That the next page is not there.
    pub(super) fn missing(&self) -> Error {
        let (device, block) = (self.rings.device.name().into(), self.rings.block(Area::Meta, self.at.page));
        let got = self.unread.why(self.at.page).map_or("another".to_string(), |why| format!("none: {why}"));
        let fault = Fault::new("page of the log", format!("page {}", self.at.page), got);
        Error::Damaged { device, block, fault }
    }

    /// Whether this page follows on those before.
    fn is_next(&self, page: &Page) -> bool {
        let head = &page.head;
        // Pages that an opening has cut off are of an earlier generation, and must not come back when the end gets there again.
        let is_of_its_time = match head.number < self.label.start {
            true => head.generation < self.label.generation,
            false => head.generation == self.label.generation,
        };
        let room = self.rings.areas.data_blocks;
        head.log == self.label.log
            && head.number == self.at.page
            && head.previous == self.at.previous
            && head.data == self.at.data
            && (is_of_its_time || self.any_generation)
            && (head.data + page.data_blocks()).checked_sub(self.label.tail.data).is_some_and(|used| used <= room)
    }

    /// That the end is one. If the label, or a later page, counts the missing one as durable, it was damaged.
    pub(super) fn verify_end(&mut self) -> Result<(), Error> {
        let got = self.at.page;
        let Label { start, durable, .. } = *self.label;
        // A main that is alone has told, too.
        let expected = start.max(durable).max(got + u64::from(self.goes_on));
        let device = || -> Arc<str> { self.rings.device.name().into() };
        let block = self.rings.block(Area::Meta, got);
        if got < expected {
            return Err(Error::MissingPages { device: device(), block, expected, got });
        }
        let device = device();
        let missing = self.unread.why(got).map_or("none".to_string(), |why| format!("none ({why})"));
        self.later_page(got, &missing)?.map_or(Ok(()), |fault| Err(Error::Damaged { device, block, fault }))
    }

    /// That a later page counts the missing one as durable, instead of which there is this.
    fn later_page(&mut self, missing: u64, got: &str) -> Result<Option<Fault>, Error> {
        let end = self.label.tail.page.saturating_add(self.rings.areas.meta_blocks);
        for number in missing + 1..end.min(missing + LOOK_AHEAD_PAGES) {
            let blocks = self.label.blocks;
            let mut bytes = *self.bytes(number)?;
            let Ok(page) = Page::decode_mending(&mut bytes, blocks) else { continue };
            let head = &page.head;
            let is_ours = head.log == self.label.log && head.generation == self.label.generation;
            if is_ours && head.number == number && head.durable > missing {
                let got = format!("{got}, and page {number} ({}) counts it as durable", hex(page.sum));
                return Ok(Some(Fault::new("page of the log", format!("page {missing}"), got)));
            }
        }
        Ok(None)
    }

    fn bytes(&mut self, number: u64) -> Result<&[u8; BLOCK_SIZE], Error> {
        let (first, count) = self.buffered;
        if !(first..first + count).contains(&number) {
            let count = READ_PAGES.min(self.rings.areas.meta_blocks);
            let buffer = &mut self.buffer[..count as usize * BLOCK_SIZE];
            self.unread = self.rings.read_what_can_be(Area::Meta, number, buffer)?;
            self.buffered = (number, count);
        }
        let (pages, _none) = self.buffer.as_chunks::<BLOCK_SIZE>();
        Ok(&pages[(number - self.buffered.0) as usize])
    }
}
