//! Files with checksums.

use crate::error::{Error, Result};
use crate::store::Shared;
use holdfast_integrity::{Algorithm, Checksum};
use holdfast_interface::{BLOCK_BYTES, Operation, parts, pieces};
use holdfast_naming::{self as naming, SumsWanted, WRITE_MAX};
use holdfast_object::{Durability, ObjectId};
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// How often bytes are asked for again that went bad on the way.
const ATTEMPTS_MAX: usize = 3;
/// Bytes of a read whose pages are held at once; and of a write, which is a transaction.
const STEP_BYTES: usize = 1 << 20;

const _: () = assert!(STEP_BYTES <= WRITE_MAX && STEP_BYTES.is_multiple_of(BLOCK_BYTES));

/// An open file of a store in this process. Positions are given with each call; it can be shared by threads.
#[derive(Debug)]
pub struct File {
    store: Arc<Shared>,
    id: ObjectId,
    algorithm: Algorithm,
    /// What this one has been told of bad pages.
    seen: Mutex<u64>,
}

impl File {
    /// Of an object that is held as open.
    pub(crate) fn of(store: Arc<Shared>, id: ObjectId, path: &str) -> Result<File> {
        let (algorithm, seen, found) = {
            let space = &store.layers()?.namespace;
            (space.cache().protection().memory(), space.errors_begin(id), space.getattr(id))
        };
        let algorithm = if algorithm == Algorithm::None { Algorithm::Crc64Nvme } else { algorithm };
        let file = File { store, id, algorithm, seen: Mutex::new(seen) };
        match found.map(|attributes| attributes.kind) {
            Ok(holdfast_object::Kind::Regular) => Ok(file),
            Ok(holdfast_object::Kind::Directory) => Err(Error::name(path)(naming::Error::IsDirectory(id))),
            Ok(_) => Err(Error::name(path)(naming::Error::InvalidArgument("only a regular file has contents"))),
            Err(error) => Err(Error::name(path)(error)),
        }
    }

    /// With checksums of this algorithm from now on. Without this they are of the kind that pages have in memory, and go on as they are;
    /// if pages have none, they are CRC-64.
    #[must_use]
    pub fn with_algorithm(mut self, algorithm: Algorithm) -> File {
        self.algorithm = algorithm;
        self
    }

    /// Of the checksums.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The object, for [`Store::namespace`](crate::Store::namespace).
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Bytes in the file.
    ///
    /// # Errors
    /// [`Error::Failed`]; [`Error::Store`] here and in all calls if the store was closed.
    pub fn len(&self) -> Result<u64> {
        let attributes = self.store.layers()?.namespace.getattr(self.id).map_err(self.failed(Operation::Read, 0, 0))?;
        Ok(attributes.size)
    }

    /// Whether there are none.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn is_empty(&self) -> Result<bool> {
        self.len().map(|length| length == 0)
    }

    /// Fills `buffer` from byte `offset` of the file on; gives how many bytes there were before the end of the file. Pages are verified as
    /// they are copied.
    ///
    /// # Errors
    /// [`Error::Failed`]. The buffer's contents are then not to be used.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset.saturating_add(done as u64);
            let step = step(at, buffer.len() - done);
            let read = self.store.layers()?.namespace.read_into(self.id, at, &mut buffer[done..done + step]);
            let got = read.map_err(self.failed(Operation::Read, at, done))?;
            done += got;
            if got < step {
                break;
            }
        }
        Ok(done)
    }

    /// The same, verified in `buffer`, and with the checksum of each block in `sums`, for the program to keep.
    ///
    /// # Errors
    /// [`Error::Transfer`], [`Error::Failed`]. The buffer's contents are then not to be used.
    pub fn read_at_with_sums(&self, buffer: &mut [u8], offset: u64, sums: &mut Vec<Checksum>) -> Result<usize> {
        self.read_vectored_at_with_sums(&mut [IoSliceMut::new(buffer)], offset, sums)
    }

    /// [`File::read_at_with_sums`] into several buffers, one after another. A checksum is of a block, in however many buffers.
    ///
    /// # Errors
    /// As for [`File::read_at_with_sums`].
    pub fn read_vectored_at_with_sums(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        offset: u64,
        sums: &mut Vec<Checksum>,
    ) -> Result<usize> {
        let (length, mut done) = (parts::length(buffers), 0);
        while done < length {
            let step = step(offset.saturating_add(done as u64), length - done);
            let (got, of_step) = self.read_step(buffers, offset, done, step)?;
            sums.extend(of_step);
            done += got;
            if got < step {
                break;
            }
        }
        Ok(done)
    }

    /// Reads to byte `done` of the buffers, until what has arrived has its checksums.
    fn read_step(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        offset: u64,
        done: usize,
        length: usize,
    ) -> Result<(usize, Vec<Checksum>)> {
        let at = offset.saturating_add(done as u64);
        let mut blocks = Vec::new();
        for attempt in 0..ATTEMPTS_MAX {
            // One that did not have it came from a page that went bad, or went bad on the way: then the page is looked at as well.
            let how = SumsWanted { algorithm: self.algorithm, verify: attempt > 0 };
            let read = self.store.layers()?.namespace.read_with_sums(self.id, at, length, how, false);
            let (data, sums) = read.map_err(self.failed(Operation::Read, at, done))?;
            let mut to = done;
            for slice in data.slices() {
                parts::scatter(buffers, to, slice);
                to += slice.len();
            }
            let bad = pieces(at, data.len()).zip(&sums).filter(|(piece, sum)| {
                let range = done + piece.range.start..done + piece.range.end;
                parts::sum(buffers, range, self.algorithm) != **sum
            });
            blocks = bad.map(|(piece, _)| piece.block).collect();
            if blocks.is_empty() {
                return Ok((data.len(), sums));
            }
        }
        Err(Error::Transfer { operation: Operation::Read, offset: at, done, blocks })
    }

    /// Writes all of `buffer` from byte `offset` of the file on. Pages get their checksums as they are copied.
    ///
    /// # Errors
    /// [`Error::Failed`] says how much was written.
    pub fn write_at(&self, buffer: &[u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset.saturating_add(done as u64);
            let step = step(at, buffer.len() - done);
            let layers = self.store.layers()?;
            let written = layers.namespace.write(&layers.request, self.id, at, &buffer[done..done + step], false);
            done += written.map_err(self.failed(Operation::Write, at, done))?;
        }
        Ok(done)
    }

    /// Writes all of `buffer` if it has these checksums, of [`File::algorithm`], one per block, in the store's memory.
    ///
    /// # Errors
    /// [`Error::Transfer`], [`Error::Failed`] say how much was written, up to the start of a block; [`Error::Invalid`] for another number
    /// of checksums or another algorithm.
    pub fn write_at_with_sums(&self, buffer: &[u8], offset: u64, sums: &[Checksum]) -> Result<usize> {
        let (operation, mut done, mut rest) = (Operation::Write, 0, sums);
        if pieces(offset, buffer.len()).len() != sums.len() || sums.iter().any(|sum| sum.algorithm() != self.algorithm)
        {
            return Err(Error::Invalid { operation, offset, what: "one checksum is needed for each block" });
        }
        while done < buffer.len() {
            let at = offset.saturating_add(done as u64);
            let step = step(at, buffer.len() - done);
            let (of_step, later) = rest.split_at(pieces(at, step).len());
            rest = later;
            let layers = self.store.layers()?;
            let written = layers.namespace.write_with_sums(
                &layers.request,
                self.id,
                at,
                &buffer[done..done + step],
                of_step,
                false,
            );
            written.map_err(|error| match error {
                naming::Error::Mismatch { blocks, .. } => Error::Transfer { operation, offset: at, done, blocks },
                error => self.failed(operation, at, done)(error),
            })?;
            done += step;
        }
        Ok(done)
    }

    /// [`File::write_at_with_sums`] of several buffers, one after another, which are copied together first: the checksums are verified
    /// behind that.
    ///
    /// # Errors
    /// As for [`File::write_at_with_sums`].
    pub fn write_vectored_at_with_sums(
        &self,
        buffers: &[IoSlice<'_>],
        offset: u64,
        sums: &[Checksum],
    ) -> Result<usize> {
        if let [buffer] = buffers {
            return self.write_at_with_sums(buffer, offset, sums);
        }
        let mut together = vec![0; parts::length(buffers)];
        parts::gather(buffers, 0..together.len(), &mut together);
        self.write_at_with_sums(&together, offset, sums)
    }

    /// The checksums that a write of these bytes needs.
    pub fn sums(&self, buffer: &[u8], offset: u64) -> Vec<Checksum> {
        pieces(offset, buffer.len()).map(|piece| self.algorithm.sum(&buffer[piece.range])).collect()
    }

    /// Makes the file's changes durable.
    ///
    /// # Errors
    /// [`Error::Failed`]; of blocks that went bad in memory before they were stored, once for each [`File`]. They are bad until they are
    /// written again ([`File::bad_blocks`]); what the device had before is still there.
    pub fn sync(&self) -> Result<()> {
        let space = &self.store.layers()?.namespace;
        let mut seen = self.seen.lock();
        let done = space.make_durable(self.id, Durability::All).and_then(|()| space.errors_tell(self.id, &mut seen));
        done.map_err(self.failed(Operation::Write, 0, 0))
    }

    /// Blocks of this file that were written, by whomever, and went bad in memory before they were stored: ascending. Reading them is an
    /// error until they are written again.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn bad_blocks(&self) -> Result<Vec<u64>> {
        self.store.layers()?.namespace.bad_blocks(self.id, 0, usize::MAX).map_err(self.failed(Operation::Write, 0, 0))
    }

    fn failed(&self, operation: Operation, offset: u64, done: usize) -> impl FnOnce(naming::Error) -> Error {
        move |source| Error::Failed { operation, offset, done, source }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A file without a name goes with its last user; of a store that was closed, when that is opened again.
        let Ok(layers) = self.store.layers() else { return };
        if let Err(error) = layers.namespace.release(self.id) {
            tracing::warn!(%error, object = %self.id, "could not be let go of");
        }
    }
}

/// Bytes from `at` on that are done together: up to the start of a block, if not to the end.
fn step(at: u64, left: usize) -> usize {
    left.min(STEP_BYTES - (at % BLOCK_BYTES as u64) as usize)
}
