//! Reading pages: found in the trees, read in runs, verified, repaired from the second copy.

use crate::format::blockptr::PointerKind;
use crate::format::{BlockPointer, PAGES_MAX, RecordKind};
use crate::meta_block::NodeKey;
use crate::module::Module;
use crate::named::OnDevice;
use crate::own_records::misled;
use holdfast_integrity::{Checksum, Mismatch, PageSums, Protection, StoredSums};
use holdfast_object::{
    DeviceFault, Error, FrameMut, ObjectKey, PAGE_SIZE, PageIndex, PageSource, Place, Result, Side, VerifiedBy,
};
use std::io::IoSliceMut;

/// Most pages in one device read: 4 MiB.
const RUN_MAX: usize = 1024;

impl Module {
    /// See [`holdfast_object::ObjectStore::read`] and [`holdfast_object::ObjectStore::read_forwarded`].
    pub(crate) fn read_pages(
        &self,
        key: ObjectKey,
        first: PageIndex,
        frames: &mut [FrameMut],
        by: VerifiedBy,
    ) -> Result<Vec<PageSource>> {
        if first.saturating_add(frames.len() as u64) > PAGES_MAX {
            return Err(Error::Limit { what: "page of an object", limit: PAGES_MAX, got: first });
        }
        let _gate = self.gate.read();
        let (pointers, mode, by) = {
            let trees = self.trees();
            let (state, live) = trees.state_of(key)?;
            let mut record = state.find(&self.base, live)?.ok_or(Error::NoObject(key))?;
            let mut pointers = state.pages(&self.base, live, &record, first, frames.len())?;
            if !pointers.iter().all(is_data) {
                // The root may have gone bad, or the number of levels.
                record = state.find_now(&self.base, live)?.ok_or(Error::NoObject(key))?;
                pointers = state.pages(&self.base, live, &record, first, frames.len())?;
            }
            // What metadata says is taken at its word by more than its readers.
            let by = if record.kind.is_metadata() { VerifiedBy::Store } else { by };
            (pointers, self.mode_of(record.kind), by)
        };
        let mut buffers: Vec<&mut [u8; PAGE_SIZE]> = frames.iter_mut().map(|frame| &mut **frame).collect();
        let sums = self.read_pointers(key, first, &pointers, &mut buffers, mode, by)?;
        Ok(pointers.iter().zip(sums).map(|(pointer, sums)| source(pointer, sums)).collect())
    }

    /// Metadata is under CRC-64 in every mode.
    fn mode_of(&self, kind: RecordKind) -> Protection {
        if kind.is_metadata() { Protection::Uniform } else { self.protection }
    }

    /// Reads one page of data into `bytes`, verified against what is stored.
    pub(crate) fn read_page(
        &self,
        key: ObjectKey,
        index: PageIndex,
        pointer: &BlockPointer,
        bytes: &mut [u8; PAGE_SIZE],
    ) -> Result<()> {
        self.read_pointers(key, index, &[*pointer], &mut [bytes], Protection::Uniform, VerifiedBy::Store).map(drop)
    }

    /// Reads the data that `pointers` name into the buffers beside them. Neighbours on the device are read together, and
    /// runs apart from each other in one batch. Gives what each page is to have in memory.
    fn read_pointers(
        &self,
        key: ObjectKey,
        first: PageIndex,
        pointers: &[BlockPointer],
        buffers: &mut [&mut [u8; PAGE_SIZE]],
        mode: Protection,
        by: VerifiedBy,
    ) -> Result<Vec<PageSums>> {
        let is_next = |a: &BlockPointer, b: &BlockPointer| is_data(a) && is_data(b) && a.address[0] + 1 == b.address[0];
        let runs = || pointers.chunk_by(is_next).flat_map(|run| run.chunks(RUN_MAX));
        let mut addresses = Vec::new();
        let mut slices: Vec<Vec<IoSliceMut<'_>>> = Vec::new();
        let mut rest = buffers.iter_mut();
        for run in runs() {
            let mine = rest.by_ref().take(run.len());
            if is_data(&run[0]) {
                addresses.push(run[0].address[0]);
                slices.push(mine.map(|buffer| IoSliceMut::new(&mut buffer[..])).collect());
            } else {
                mine.for_each(drop);
            }
        }
        let mut good = self.disk().read_runs(&addresses, slices).into_iter();
        let forwarded = |pointer: &BlockPointer| {
            let is_passed_on = by == VerifiedBy::Reader;
            is_passed_on.then(|| pointer.sums.forwarded(mode)).flatten()
        };
        let data = pointers.iter().zip(buffers.iter());
        let data = data.filter(|(pointer, _)| is_data(pointer) && forwarded(pointer).is_none());
        let data = data.filter(|_| pointers.len() > 1).map(|(_, buffer)| &**buffer);
        let mut just_made = mode.sums_of(data).into_iter();
        let mut sums = Vec::with_capacity(pointers.len());
        for run in runs() {
            let is_read = is_data(&run[0]) && good.next().unwrap_or(false);
            for pointer in run {
                let at = sums.len();
                if !is_data(pointer) {
                    sums.push(PageSums::of(Checksum::none()));
                    continue;
                }
                let passed_on = forwarded(pointer);
                if let Some(passed_on) = passed_on.filter(|_| is_read) {
                    sums.push(passed_on);
                    continue;
                }
                let just_made = if passed_on.is_none() { just_made.next() } else { None };
                let loaded = match is_read.then(|| load(pointer, buffers[at], just_made, mode, by)) {
                    Some(Ok(loaded)) => loaded,
                    _ => self.read_again(key, first + at as u64, pointer, buffers[at], (mode, by))?,
                };
                sums.push(loaded);
            }
        }
        Ok(sums)
    }

    /// A page whose first reading failed: each copy alone. A bad one before a good one is repaired.
    fn read_again(
        &self,
        key: ObjectKey,
        index: PageIndex,
        pointer: &BlockPointer,
        bytes: &mut [u8; PAGE_SIZE],
        (mode, by): (Protection, VerifiedBy),
    ) -> Result<PageSums> {
        let mut first_error = None;
        for address in pointer.addresses() {
            let read = self.disk().read_block(address, bytes).map_err(|error| of_page(key, index, error));
            let outcome = read.and_then(|()| {
                load(pointer, bytes, None, mode, by).map_err(|Mismatch { expected, got }| {
                    let place = page_place(key, index, self.disk().place(address));
                    Error::corrupt(place, "checksum", expected, got)
                })
            });
            match outcome {
                Ok(sums) => {
                    let node = NodeKey::new(ObjectKey { object: key.object.live(), ..key }, 0, index);
                    let is_named = || self.trees().is_named(&self.base, &OnDevice::new(self.disk()), node, pointer);
                    if first_error.is_some() && is_named()? {
                        let place = page_place(key, index, self.disk().place(pointer.address[0]));
                        self.disk().repair(pointer.address[0], bytes, &place);
                    }
                    return Ok(sums);
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        if let Some(error) = first_error.as_ref().filter(|_| self.trees.read().is_in_doubt(&self.base)) {
            let place = page_place(key, index, self.disk().place(pointer.address[0]));
            return Err(misled(self.disk(), place, error));
        }
        let error = first_error.unwrap_or_else(|| {
            let place = page_place(key, index, self.disk().place(0));
            Error::corrupt(place, "block pointer", "an address", "none")
        });
        self.disk().note_unrepaired(pointer.address[0], &error);
        Err(error)
    }
}

/// What a page is to have in memory. Where its reader verifies it, the mode says whether it is looked at here, too.
fn load(
    pointer: &BlockPointer,
    bytes: &[u8; PAGE_SIZE],
    just_made: Option<StoredSums>,
    mode: Protection,
    by: VerifiedBy,
) -> std::result::Result<PageSums, Mismatch> {
    match by {
        VerifiedBy::Store => pointer.sums.load_verified(bytes, just_made, mode),
        VerifiedBy::Reader => pointer.sums.load_summed(bytes, just_made, mode),
    }
}

fn is_data(pointer: &BlockPointer) -> bool {
    pointer.kind == PointerKind::Data
}

/// `place`, as that of a page.
pub(crate) fn page_place(key: ObjectKey, index: PageIndex, place: Place) -> Place {
    Place { object: Some(key), level: Some(0), index: Some(index), ..place }
}

/// The device's failure, as that to read a page.
fn of_page(key: ObjectKey, index: PageIndex, error: Error) -> Error {
    match error {
        Error::Device(fault) => Error::Device(Box::new(DeviceFault { page: Some((key, index)), ..*fault })),
        error => error,
    }
}

fn source(pointer: &BlockPointer, sums: PageSums) -> PageSource {
    match pointer.kind {
        PointerKind::Hole => PageSource::Hole,
        PointerKind::Data => PageSource::Data { sums, identity: pointer.identity() },
        PointerKind::LostInMemory => PageSource::Lost(Side::Memory),
        PointerKind::LostOnDevice | PointerKind::Tree => PageSource::Lost(Side::Device),
    }
}
