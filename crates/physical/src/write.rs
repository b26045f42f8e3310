//! Writing pages to new blocks: verified at the last moment, in long runs.

use crate::alloc::Zone;
use crate::disk::Block;
use crate::module::Module;
use crate::read::page_place;
use crate::requests::{Requests, Route};
use holdfast_integrity::{Algorithm, Checksum, Protection, StoredSums, crc64};
use holdfast_object::{Epoch, Error, ObjectKey, PAGE_SIZE, PageIndex, PageRef, PinnedPage, Place, Placement, Result};

/// Pages verified and then written together: 1 MiB, which stays in the processor's cache in between.
const WINDOW: usize = 256;

/// A page to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) page: PageRef,
    /// Metadata: in two copies.
    pub(crate) twice: bool,
    /// In its object, the page follows the one before it here.
    pub(crate) follows: bool,
}

/// Lengths of the rows of pages that follow each other in their object.
fn strings<'a>(pages: impl Iterator<Item = &'a Outgoing>) -> Vec<u64> {
    let mut strings: Vec<u64> = Vec::new();
    for page in pages {
        match strings.last_mut().filter(|_| page.follows) {
            Some(string) => *string += 1,
            None => strings.push(1),
        }
    }
    strings
}

/// A page in its blocks, under the checksums that its pointer is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) address: [u64; 2],
    pub(crate) sums: StoredSums,
}

/// Whether just made checksums are those of `uniform` or `static`, and one of them is what the page has in memory.
fn are_as_in_memory(sums: &StoredSums, pin: &PinnedPage, mode: Protection) -> bool {
    let now = sums.under(mode.memory()).and_then(|sum| sum.as_u64());
    now.is_some() && now == pin.number_under(mode.memory()) && mode.switches_after().is_none()
}

/// What became of a page: where it is, or nothing if its bytes did not match their checksum.
pub(crate) type Landed = Option<Stored>;

impl Module {
    /// Writes pages to newly allocated blocks, of the epoch being built or, with `ahead`, placed for a later one. With an
    /// error nothing stays allocated.
    pub(crate) fn write_pages(&self, epoch: Epoch, pages: &[Outgoing], ahead: bool) -> Result<Vec<Landed>> {
        let mut landed = Vec::with_capacity(pages.len());
        for window in pages.chunks(WINDOW) {
            if let Err(error) = self.write_window(epoch, window, ahead, &mut landed) {
                self.cancel(&landed);
                return Err(error);
            }
        }
        Ok(landed)
    }

    /// Gives back blocks of pages that nothing names yet.
    pub(crate) fn cancel(&self, landed: &[Landed]) {
        let blocks = landed.iter().flatten().flat_map(|stored| stored.address).filter(|&block| block != 0);
        let blocks: Vec<u64> = blocks.collect();
        self.base.alloc.lock().cancel(&blocks);
    }

    fn write_window(&self, epoch: Epoch, window: &[Outgoing], ahead: bool, landed: &mut Vec<Landed>) -> Result<()> {
        let mut pins: Vec<(PinnedPage, bool)> = Vec::with_capacity(window.len());
        let mut good = Vec::with_capacity(window.len());
        for outgoing in window {
            let Some(pin) = self.arena.pin(outgoing.page) else {
                return Err(Error::Protocol(format!("page frame {} is free", outgoing.page.frame)));
            };
            pins.push((pin, outgoing.twice));
        }
        // Metadata is under CRC-64 in every mode.
        let modes = [self.protection, Protection::Uniform];
        let mut just_made = [false, true].map(|twice| {
            let pages = pins.iter().filter(|(_, is_twice)| *is_twice == twice).map(|(pin, _)| pin.bytes());
            modes[usize::from(twice)].sums_of(pages).into_iter()
        });
        for (pin, twice) in &pins {
            let (mode, just_made) = (modes[usize::from(*twice)], just_made[usize::from(*twice)].next());
            // By far the most frequent: without a detour by way of any algorithm.
            if let Some(sums) = just_made.filter(|sums| are_as_in_memory(sums, pin, mode)) {
                good.push(Some(sums));
                continue;
            }
            let sums = StoredSums::generate_summed(pin.bytes(), just_made, pin.sums(), mode).ok();
            good.push(sums.filter(|_| pin.verify_seal().is_ok()).inspect(|sums| {
                if mode.switches_after().is_some() {
                    pin.set_strong(sums.primary);
                }
            }));
        }
        let twice = window.iter().zip(&good).filter(|(page, good)| page.twice && good.is_some()).count() as u64;
        let once = window.iter().zip(&good).filter(|(page, good)| !page.twice && good.is_some());
        let strings = strings(once.map(|(page, _)| page));
        let once: u64 = strings.iter().sum();
        let mut data = self.allocate_data(epoch, &strings, ahead)?.into_iter();
        let mut copies = [Vec::new().into_iter(), Vec::new().into_iter()];
        for copy in 0..2 {
            match self.allocate_pages(epoch, Zone::Meta(copy), twice, ahead) {
                Ok(blocks) => copies[copy] = blocks.into_iter(),
                Err(error) => {
                    let mut alloc = self.base.alloc.lock();
                    alloc.cancel(data.as_slice());
                    alloc.cancel(copies[0].as_slice());
                    return Err(error);
                }
            }
        }
        let mut writes: Vec<(u64, &[u8; PAGE_SIZE])> = Vec::with_capacity((once + 2 * twice) as usize);
        let mut route = Route::default();
        for ((pin, twice), good) in pins.iter().zip(good) {
            let mut next = |blocks: &mut std::vec::IntoIter<u64>| {
                let block = blocks.next().unwrap_or_default();
                debug_assert_ne!(block, 0, "as many blocks as good pages");
                writes.push((block, pin.bytes()));
                // As it gets into the pointer.
                route.add(block, pin.bytes());
                block
            };
            landed.push(good.map(|sums| {
                let address = if *twice { [next(&mut copies[0]), next(&mut copies[1])] } else { [next(&mut data), 0] };
                Stored { address, sums }
            }));
        }
        writes.sort_unstable_by_key(|(address, _)| *address);
        self.disk().submit(&Requests::new(self.disk(), writes)?.along(route))
    }

    fn allocate_data(&self, epoch: Epoch, strings: &[u64], ahead: bool) -> Result<Vec<u64>> {
        let mut alloc = self.base.alloc.lock();
        let outcome = alloc.allocate_strings(epoch, strings);
        let blocks = self.base.handed_out(&alloc, outcome)?;
        if ahead {
            // Under the same lock: the bitmap being written must not have them.
            alloc.place(epoch, blocks.iter().copied());
        }
        Ok(blocks)
    }

    fn allocate_pages(&self, epoch: Epoch, zone: Zone, count: u64, ahead: bool) -> Result<Vec<u64>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut alloc = self.base.alloc.lock();
        let outcome = alloc.allocate_many(epoch, zone, count);
        let blocks = self.base.handed_out(&alloc, outcome)?;
        if ahead {
            // Under the same lock: the bitmap being written must not have them.
            alloc.place(epoch, blocks.iter().copied());
        }
        Ok(blocks)
    }

    /// Writes a page that this module made itself.
    pub(crate) fn write_block(&self, epoch: Epoch, block: &Block, twice: bool) -> Result<Stored> {
        let zones: &[Zone] = if twice { &[Zone::Meta(0), Zone::Meta(1)] } else { &[Zone::Data] };
        let mut address = [0; 2];
        for (at, &zone) in zones.iter().enumerate() {
            match self.allocate_pages(epoch, zone, 1, false) {
                Ok(blocks) => address[at] = blocks[0],
                Err(error) => {
                    self.base.alloc.lock().cancel(&address[..at]);
                    return Err(error);
                }
            }
        }
        let stored = address.iter().filter(|&&address| address != 0);
        self.disk().write_blocks(stored.map(|&address| (address, &block.0)))?;
        Ok(Stored { address, sums: StoredSums::of(Checksum::crc64(crc64(&block.0))) })
    }

    /// See [`holdfast_object::ObjectStore::place`].
    pub(crate) fn place_pages(
        &self,
        key: ObjectKey,
        epoch: Epoch,
        pages: &[(PageIndex, PageRef)],
    ) -> Result<Vec<Placement>> {
        self.disk().check_writable()?;
        self.claim_first()?;
        // An object that only the cache knows yet counts as a regular file: only those have pages worth placing.
        let twice = self.trees.read().find(&self.base, key)?.is_some_and(|record| record.kind.is_metadata());
        let mut before = None;
        let outgoing = pages.iter().map(|&(index, page)| {
            let follows = before.replace(index).is_some_and(|before: PageIndex| before.checked_add(1) == Some(index));
            Outgoing { page, twice, follows }
        });
        let outgoing: Vec<Outgoing> = outgoing.collect();
        // Before the pages are verified on their way to the device: the log has to tell a block that was written from one that was not.
        let mut crcs = Vec::with_capacity(pages.len());
        for (_, page) in pages {
            let Some(pin) = self.arena.pin(*page) else {
                return Err(Error::Protocol(format!("page frame {} is free", page.frame)));
            };
            let known =
                Some(pin.sum()).filter(|sum| sum.algorithm() == Algorithm::Crc64Nvme).and_then(|sum| sum.as_u64());
            crcs.push(known.unwrap_or_else(|| crc64(std::hint::black_box(pin.bytes()))));
        }
        let landed = self.write_pages(epoch, &outgoing, true)?;
        if let Some(at) = landed.iter().position(Option::is_none) {
            self.cancel(&landed);
            let place = page_place(key, pages[at].0, Place::default());
            let expected = self.arena.pin(pages[at].1).map_or(Checksum::none(), |pin| pin.sum());
            return Err(Error::corrupt(place, "page in memory", format!("checksum {expected}"), "another"));
        }
        let placement = |(stored, checksum): (Stored, u64)| Placement {
            address: stored.address[0],
            address_2: stored.address[1],
            checksum,
            sums: stored.sums,
            birth: epoch,
        };
        Ok(landed.into_iter().flatten().zip(crcs).map(placement).collect())
    }
}
