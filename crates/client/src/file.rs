//! Files with checksums.

use crate::descriptor;
use crate::error::{Error, Kind, Result};
use crate::read::Read;
use crate::transport;
use crate::write::{Write, append_part};
use holdfast_integrity::{Algorithm, Checksum};
use holdfast_interface::{Features, Operation};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;

/// An open file in a Holdfast mount. Positions are given with each call; it can be shared by threads.
#[derive(Debug)]
pub struct File<F: AsFd = std::fs::File> {
    fd: F,
    features: Features,
    algorithm: Algorithm,
    unreachable: AtomicBool,
}

impl<F: AsFd> File<F> {
    /// Takes a descriptor. Checksums are of the kind that pages have in the mount's memory until [`File::with_algorithm`] says otherwise:
    /// they go on as they are there. If pages have none, they are CRC-64.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] if the file is in no mount that offers this.
    pub fn new(fd: F) -> Result<File<F>> {
        let features = transport::features(fd.as_fd()).map_err(|error| {
            let system = Error::system(Operation::Read, 0, &error);
            match error.raw_os_error() {
                Some(_) => system,
                // A version that is not known here.
                None => Error { kind: Kind::Unsupported, errno: libc::EOPNOTSUPP, ..system },
            }
        })?;
        let algorithm = match features.page_algorithm {
            Algorithm::None => Algorithm::Crc64Nvme,
            own => own,
        };
        Ok(File { fd, features, algorithm, unreachable: AtomicBool::new(false) })
    }

    /// With checksums of this algorithm from now on.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] if the mount does not know it.
    pub fn with_algorithm(self, algorithm: Algorithm) -> Result<File<F>> {
        if !self.features.algorithms.contains(&algorithm) {
            let error = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            let text = format!("the mount does not know {algorithm}");
            return Err(Error { text, ..Error::system(Operation::Read, 0, &error) });
        }
        Ok(File { algorithm, ..self })
    }

    /// What the mount offers, and what the descriptor may do.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Of the checksums.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The descriptor, for fsync and whatever else.
    pub fn get_ref(&self) -> &F {
        &self.fd
    }

    /// The descriptor again.
    pub fn into_inner(self) -> F {
        self.fd
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Fills `buffer` from byte `offset` of the file on; gives how many bytes there were before the end of the file. They were verified
    /// in `buffer`.
    ///
    /// # Errors
    /// See [`Error`]. Of the buffer, the first [`Error::done`] bytes are then good, which end before the first bad block; behind them
    /// are zeros, wherever anything has arrived.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read_at_with_sums(buffer, offset, &mut Vec::new())
    }

    /// The same, and puts the checksum of each block into `sums`, for the application to keep.
    ///
    /// # Errors
    /// As for [`File::read_at`].
    pub fn read_at_with_sums(&self, buffer: &mut [u8], offset: u64, sums: &mut Vec<Checksum>) -> Result<usize> {
        self.read_vectored_at_with_sums(&mut [IoSliceMut::new(buffer)], offset, sums)
    }

    /// [`File::read_at`] into several buffers, one after another.
    ///
    /// # Errors
    /// As for [`File::read_at`].
    pub fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.read_vectored_at_with_sums(buffers, offset, &mut Vec::new())
    }

    /// [`File::read_at_with_sums`] into several buffers, one after another. A checksum is of a block, in however many buffers.
    ///
    /// # Errors
    /// As for [`File::read_at`].
    pub fn read_vectored_at_with_sums(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        offset: u64,
        sums: &mut Vec<Checksum>,
    ) -> Result<usize> {
        let most = self.features.transfer_bytes_max;
        Read { fd: self.fd(), buffers, offset, algorithm: self.algorithm, careful: false, most, touched: 0 }.run(sums)
    }

    /// Writes all of `buffer` from byte `offset` of the file on, also on a descriptor that was opened with O_APPEND. The checksums are
    /// made first, and the mount takes no block that does not have its own.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::done`] says how much was written, up to the start of a block if not to the end.
    pub fn write_at(&self, buffer: &[u8], offset: u64) -> Result<usize> {
        self.write_vectored_at(&[IoSlice::new(buffer)], offset)
    }

    /// Writes all of `buffer` under checksums that the application has for it, of [`File::algorithm`], one per block. Nothing is written if a byte
    /// of it does not have its checksum in `buffer`, in however many requests it would go.
    ///
    /// # Errors
    /// As for [`File::write_at`]; EINVAL for another number of checksums or another algorithm.
    pub fn write_at_with_sums(&self, buffer: &[u8], offset: u64, sums: &[Checksum]) -> Result<usize> {
        self.write_vectored_at_with_sums(&[IoSlice::new(buffer)], offset, sums)
    }

    /// [`File::write_at`] of several buffers, one after another.
    ///
    /// # Errors
    /// As for [`File::write_at`].
    pub fn write_vectored_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        self.writing(buffers, offset).run_summed()
    }

    /// [`File::write_at_with_sums`] of several buffers, one after another.
    ///
    /// # Errors
    /// As for [`File::write_at_with_sums`].
    pub fn write_vectored_at_with_sums(
        &self,
        buffers: &[IoSlice<'_>],
        offset: u64,
        sums: &[Checksum],
    ) -> Result<usize> {
        self.writing(buffers, offset).run(sums)
    }

    /// Appends bytes from the start of `buffer` on, as many as go in one request, and gives where they are and how many they are: all of 8 KiB, and
    /// of 1 MiB where the mount can read this process's memory. Nobody's bytes come between them or are written over, whoever else
    /// appends, also by ordinary writes with O_APPEND.
    ///
    /// # Errors
    /// See [`Error`]. Nothing was written if [`Error::done`] is 0; if not, so many bytes were appended, from [`Error::offset`] on, and could not be made
    /// durable as the descriptor asks (`O_SYNC`, `O_DSYNC`): a repetition would append them again, and fsync is what can be repeated. Blocks of
    /// bytes that went bad on the way are counted from the first of them. [`Kind::Unsupported`] if the mount is of a version that does not know this.
    pub fn append(&self, buffer: &[u8]) -> Result<(u64, usize)> {
        append_part(self.fd(), buffer, self.algorithm, &self.unreachable, self.features.transfer_bytes_max)
    }

    /// Blocks of this file that were written, by whomever, and went bad in memory before they were stored: ascending. fsync has told
    /// EIO, and reading them is an error, until they are written again. What the disk had before is still there.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn bad_blocks(&self) -> Result<Vec<u64>> {
        descriptor::bad_blocks(self.fd(), 0, usize::MAX)
    }

    fn writing<'a, 'b>(&'a self, buffers: &'a [IoSlice<'b>], offset: u64) -> Write<'a, 'b> {
        let (algorithm, unreachable) = (self.algorithm, &self.unreachable);
        let (most, checked) = (Cell::new(self.features.transfer_bytes_max), Cell::new(false));
        Write { fd: self.fd(), buffers, offset, algorithm, append: None, unreachable, most, checked }
    }
}
