//! Files with checksums.

use crate::error::{Error, Result};
use crate::store::Shared;
use holdfast_integrity::{Algorithm, Checksum};
use holdfast_interface::{Access, BLOCK_BYTES, Features, Operation, TRANSFER_BYTES_MAX, parts, pieces};
use holdfast_naming::{self as naming, SumsWanted, WRITE_MAX};
use holdfast_object::{Durability, MAX_OBJECT_BYTES, ObjectId};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// How often bytes are asked for again that went bad on the way.
const ATTEMPTS_MAX: usize = 3;
/// Bytes of a read whose pages are held at once; and of a write, which is a transaction.
const STEP_BYTES: usize = TRANSFER_BYTES_MAX;

/// As lseek(2) has it.
const POSITION_MAX: u64 = i64::MAX as u64;

const _: () = assert!(STEP_BYTES <= WRITE_MAX && STEP_BYTES.is_multiple_of(BLOCK_BYTES));

/// An open file of a store in this process. Positions are given with each call; it can be shared by threads.
#[derive(Debug)]
pub struct File {
    store: Arc<Shared>,
    id: ObjectId,
    features: Features,
    algorithm: Algorithm,
    /// What this one has been told of bad pages.
    seen: Mutex<u64>,
}

impl File {
    /// Of an object that is held as open.
    pub(crate) fn of(store: Arc<Shared>, id: ObjectId, path: &str) -> Result<File> {
        let (mode, seen, found) = {
            let space = &store.layers()?.namespace;
            (space.cache().protection(), space.errors_begin(id), space.getattr(id))
        };
        let mut features = Features::all(Access { read: true, write: true }, mode.memory(), mode.to_string());
        features.transfer_bytes_max = STEP_BYTES;
        let algorithm = match features.page_algorithm {
            Algorithm::None => Algorithm::Crc64Nvme,
            own => own,
        };
        let file = File { store, id, features, algorithm, seen: Mutex::new(seen) };
        match found.map(|attributes| attributes.kind) {
            Ok(holdfast_object::Kind::Regular) => Ok(file),
            Ok(holdfast_object::Kind::Directory) => Err(Error::name(path)(naming::Error::IsDirectory(id))),
            Ok(_) => Err(Error::name(path)(naming::Error::InvalidArgument("only a regular file has contents"))),
            Err(error) => Err(Error::name(path)(error)),
        }
    }

    /// With checksums of this algorithm from now on. Without this they are of the kind that pages have in memory, and go on as they are;
    /// if pages have none, they are CRC-64.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none of [`File::features`].
    pub fn with_algorithm(mut self, algorithm: Algorithm) -> Result<File> {
        if !self.features.algorithms.contains(&algorithm) {
            return Err(invalid(Operation::Read, 0, "there are no checksums of this algorithm"));
        }
        self.algorithm = algorithm;
        Ok(self)
    }

    /// What the store offers.
    pub fn features(&self) -> &Features {
        &self.features
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
    /// [`Error::Failed`] says how much is good, behind which the buffer has zeros, wherever anything has arrived; [`Error::Invalid`] beyond the largest position in a file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        within_positions(Operation::Read, offset, buffer.len())?;
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let step = step(at, buffer.len() - done);
            let read = self.store.layers()?.namespace.read_into(self.id, at, &mut buffer[done..done + step]);
            // A page that turned out to be bad has been copied by then.
            let read = read.inspect_err(|_| buffer[done..done + step].fill(0));
            let got = read.map_err(self.failed(Operation::Read, at, done))?;
            done += got;
            if got < step {
                break;
            }
        }
        Ok(done)
    }

    /// The same, verified in `buffer`, and puts the checksum of each block into `sums`, for the program to keep; nothing else is in there then.
    ///
    /// # Errors
    /// [`Error::Transfer`], and as for [`File::read_at`].
    pub fn read_at_with_sums(&self, buffer: &mut [u8], offset: u64, sums: &mut Vec<Checksum>) -> Result<usize> {
        self.read_vectored_at_with_sums(&mut [IoSliceMut::new(buffer)], offset, sums)
    }

    /// [`File::read_at`] into several buffers, one after another, which are verified as by [`File::read_at_with_sums`].
    ///
    /// # Errors
    /// As for [`File::read_at_with_sums`].
    pub fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        match buffers {
            [buffer] => self.read_at(buffer, offset),
            buffers => self.read_vectored_at_with_sums(buffers, offset, &mut Vec::new()),
        }
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
        sums.clear();
        let (length, mut done) = (parts::length(buffers), 0);
        within_positions(Operation::Read, offset, length)?;
        while done < length {
            let step = step(offset + done as u64, length - done);
            let read = self.read_step(buffers, offset, done, step);
            // What has arrived of it was bad.
            let (got, of_step) = read.inspect_err(|_| parts::clear(buffers, done..done + step))?;
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
        let at = offset + done as u64;
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
    /// [`Error::Failed`] says how much was written; [`Error::Invalid`] beyond the largest position in a file.
    pub fn write_at(&self, buffer: &[u8], offset: u64) -> Result<usize> {
        self.write_vectored_at(&[IoSlice::new(buffer)], offset)
    }

    /// Writes all of `buffer` if it has these checksums, of [`File::algorithm`], one per block, in the store's memory. Nothing is written if a byte
    /// of it does not have its checksum in `buffer`.
    ///
    /// # Errors
    /// [`Error::Transfer`], [`Error::Failed`] say how much was written, up to the start of a block; [`Error::Invalid`] for another number
    /// of checksums or another algorithm, and beyond the largest position in a file.
    pub fn write_at_with_sums(&self, buffer: &[u8], offset: u64, sums: &[Checksum]) -> Result<usize> {
        self.write_vectored_at_with_sums(&[IoSlice::new(buffer)], offset, sums)
    }

    /// [`File::write_at`] of several buffers, one after another.
    ///
    /// # Errors
    /// As for [`File::write_at`].
    pub fn write_vectored_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        let (length, mut done) = (parts::length(buffers), 0);
        within_positions(Operation::Write, offset, length)?;
        while done < length {
            let at = offset + done as u64;
            let bytes = together(buffers, done..done + step(at, length - done));
            let size = at + bytes.len() as u64;
            if size > MAX_OBJECT_BYTES {
                // A write with checksums has none of its bytes in such a file, and this has not either.
                let source = naming::Error::FileTooBig { object: self.id, size };
                return Err(self.failed(Operation::Write, at, done)(source));
            }
            let layers = self.store.layers()?;
            let written = layers.namespace.write(&layers.request, self.id, at, &bytes, false);
            done += written.map_err(self.failed(Operation::Write, at, done))?;
        }
        Ok(done)
    }

    /// [`File::write_at_with_sums`] of several buffers, one after another. A checksum is of a block, in however many buffers.
    ///
    /// # Errors
    /// As for [`File::write_at_with_sums`].
    pub fn write_vectored_at_with_sums(
        &self,
        buffers: &[IoSlice<'_>],
        offset: u64,
        sums: &[Checksum],
    ) -> Result<usize> {
        let (operation, length, mut done, mut rest) = (Operation::Write, parts::length(buffers), 0, sums);
        within_positions(operation, offset, length)?;
        if pieces(offset, length).len() != sums.len() || sums.iter().any(|sum| sum.algorithm() != self.algorithm) {
            return Err(invalid(operation, offset, "one checksum is needed for each block"));
        }
        if step(offset, length) < length {
            // In several transactions: nothing shall be written if one of them will be refused.
            let sum = |range| parts::sum(buffers, range, self.algorithm);
            let bad = pieces(offset, length).zip(sums).filter(|(piece, own)| sum(piece.range.clone()) != **own);
            let blocks: Vec<u64> = bad.map(|(piece, _)| piece.block).collect();
            if !blocks.is_empty() {
                return Err(Error::Transfer { operation, offset, done, blocks });
            }
        }
        while done < length {
            let at = offset + done as u64;
            // What is copied together is verified behind that.
            let bytes = together(buffers, done..done + step(at, length - done));
            let (of_step, later) = rest.split_at(pieces(at, bytes.len()).len());
            rest = later;
            let layers = self.store.layers()?;
            let space = &layers.namespace;
            let written = space.write_with_sums(&layers.request, self.id, at, &bytes, of_step, false);
            written.map_err(not_taken(at, done))?;
            done += bytes.len();
        }
        Ok(done)
    }

    /// Appends bytes from the start of `buffer` on, as many as go in one transaction, and gives where they are and how many they are: all of
    /// 1 MiB. Nobody's bytes come between them or are written over, whoever else appends. Checksums are made over `buffer` and verified
    /// in the store's memory.
    ///
    /// # Errors
    /// [`Error::Transfer`], [`Error::Failed`]: nothing was written. Blocks of bytes that went bad on the way are counted from the first of them.
    pub fn append(&self, buffer: &[u8]) -> Result<(u64, usize)> {
        let bytes = &buffer[..buffer.len().min(STEP_BYTES)];
        let layers = self.store.layers()?;
        let (sums, last) = (self.sums(bytes, 0), POSITION_MAX);
        let appended = layers.namespace.append_with_sums(&layers.request, self.id, last, bytes, &sums, false);
        Ok((appended.map_err(not_taken(0, 0))?, bytes.len()))
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

/// As in a mount.
fn within_positions(operation: Operation, offset: u64, length: usize) -> Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= POSITION_MAX => Ok(()),
        _ => Err(invalid(operation, offset, "beyond the largest position in a file")),
    }
}

fn invalid(operation: Operation, offset: u64, what: &'static str) -> Error {
    Error::Invalid { operation, offset, what }
}

/// Why a write with checksums failed.
fn not_taken(offset: u64, done: usize) -> impl FnOnce(naming::Error) -> Error {
    let operation = Operation::Write;
    move |error| match error {
        naming::Error::Mismatch { blocks, .. } => Error::Transfer { operation, offset, done, blocks },
        source => Error::Failed { operation, offset, done, source },
    }
}

/// A part of the buffers as one piece, copied if they are several.
fn together<'a>(buffers: &'a [IoSlice<'_>], range: Range<usize>) -> Cow<'a, [u8]> {
    let mut places = parts::parts(buffers, range.clone());
    if let (Some((index, within)), None) = (places.next(), places.next()) {
        return Cow::Borrowed(&buffers[index][within]);
    }
    let mut bytes = vec![0; range.len()];
    parts::gather(buffers, range, &mut bytes);
    Cow::Owned(bytes)
}
