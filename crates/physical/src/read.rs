//! Reading pages: found in the trees, read in runs, verified, repaired from the second copy.

use crate::format::blockptr::PointerKind;
use crate::format::{BlockPointer, PAGES_MAX, hex};
use crate::module::Module;
use holdfast_integrity::crc64;
use holdfast_object::{Error, FrameMut, ObjectKey, PAGE_SIZE, PageIndex, PageSource, Place, Result};
use std::io::IoSliceMut;

/// Most pages in one device read: 4 MiB.
const RUN_MAX: usize = 1024;

impl Module {
    /// See [`holdfast_object::ObjectStore::read`].
    pub(crate) fn read_pages(
        &self,
        key: ObjectKey,
        first: PageIndex,
        frames: &mut [FrameMut],
    ) -> Result<Vec<PageSource>> {
        if first.saturating_add(frames.len() as u64) > PAGES_MAX {
            return Err(Error::Limit { what: "page of an object", limit: PAGES_MAX, got: first });
        }
        let _gate = self.gate.read();
        let pointers = {
            let trees = self.trees.read();
            let record = trees.get(&self.base, key)?;
            trees.pages(&self.base, key, &record, first, frames.len())?
        };
        let mut buffers: Vec<&mut [u8; PAGE_SIZE]> = frames.iter_mut().map(|frame| &mut **frame).collect();
        self.read_pointers(key, first, &pointers, &mut buffers)?;
        Ok(pointers.iter().map(source).collect())
    }

    /// Reads one page of data into `bytes`.
    pub(crate) fn read_page(
        &self,
        key: ObjectKey,
        index: PageIndex,
        pointer: &BlockPointer,
        bytes: &mut [u8; PAGE_SIZE],
    ) -> Result<()> {
        self.read_pointers(key, index, &[*pointer], &mut [bytes])
    }

    /// Reads the data that `pointers` name into the buffers beside them. Neighbours on the device are read together.
    fn read_pointers(
        &self,
        key: ObjectKey,
        first: PageIndex,
        pointers: &[BlockPointer],
        buffers: &mut [&mut [u8; PAGE_SIZE]],
    ) -> Result<()> {
        let mut start = 0;
        while start < pointers.len() {
            if pointers[start].kind != PointerKind::Data {
                start += 1;
                continue;
            }
            let address = pointers[start].address[0];
            let length = (1..(pointers.len() - start).min(RUN_MAX))
                .find(|&at| {
                    let next = &pointers[start + at];
                    next.kind != PointerKind::Data || next.address[0] != address + at as u64
                })
                .unwrap_or((pointers.len() - start).min(RUN_MAX));
            let run = &mut buffers[start..start + length];
            let read = {
                let mut slices: Vec<IoSliceMut<'_>> = run.iter_mut().map(|buf| IoSliceMut::new(&mut buf[..])).collect();
                self.disk().read(address, &mut slices)
            };
            for (at, buffer) in run.iter_mut().enumerate() {
                let pointer = &pointers[start + at];
                if read.is_err() || crc64(&buffer[..]) != pointer.checksum {
                    self.read_again(key, first + (start + at) as u64, pointer, buffer)?;
                }
            }
            start += length;
        }
        Ok(())
    }

    /// A page whose first reading failed: each copy alone. A bad one before a good one is repaired.
    fn read_again(
        &self,
        key: ObjectKey,
        index: PageIndex,
        pointer: &BlockPointer,
        bytes: &mut [u8; PAGE_SIZE],
    ) -> Result<()> {
        let mut first_error = None;
        for address in pointer.addresses() {
            let outcome = self.disk().read_block(address, bytes).and_then(|()| {
                let got = crc64(&bytes[..]);
                if got == pointer.checksum {
                    return Ok(());
                }
                let place = page_place(key, index, self.disk().place(address));
                Err(Error::corrupt(place, "checksum", hex(pointer.checksum), hex(got)))
            });
            match outcome {
                Ok(()) => {
                    if first_error.is_some() {
                        self.disk().repair(pointer.address[0], bytes);
                    }
                    return Ok(());
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        self.disk().note_unrepaired();
        Err(first_error.unwrap_or_else(|| {
            let place = page_place(key, index, self.disk().place(0));
            Error::corrupt(place, "block pointer", "an address", "none")
        }))
    }
}

/// `place`, as that of a page.
pub(crate) fn page_place(key: ObjectKey, index: PageIndex, place: Place) -> Place {
    Place { object: Some(key), level: Some(0), index: Some(index), ..place }
}

fn source(pointer: &BlockPointer) -> PageSource {
    match pointer.kind {
        PointerKind::Hole => PageSource::Hole,
        PointerKind::Data => PageSource::Data { checksum: pointer.checksum, identity: pointer.identity() },
        PointerKind::Lost | PointerKind::Tree => PageSource::Lost,
    }
}
