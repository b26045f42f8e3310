//! The ways in which an application gets at a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use holdfast_integrity::{Algorithm, Checksum};
use holdfast_naming::{Namespace, Request, SumsWanted};
use holdfast_object::{Durability, ObjectId};

use crate::pattern::BLOCK;

/// An open file. Positions and lengths are those of whole blocks.
pub(crate) trait Access {
    /// Fills the buffer.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of the bytes.
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// What was written is durable.
    fn sync(&self) -> io::Result<()>;
}

/// pread, pwrite, fsync.
impl Access for File {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// The checksum-aware interface of a mount: checksums made and verified in this process.
impl Access for holdfast_client::File {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let length = self.read_at(buffer, offset)?;
        whole(length, buffer.len())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let length = self.write_at(bytes, offset)?;
        whole(length, bytes.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.get_ref().sync_all()
    }
}

/// The library for a store in this process: pages are verified in the pool, as they are copied.
impl Access for holdfast_embedded::File {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let length = self.read_at(buffer, offset).map_err(io::Error::other)?;
        whole(length, buffer.len())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let length = self.write_at(bytes, offset).map_err(io::Error::other)?;
        whole(length, bytes.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync().map_err(io::Error::other)
    }
}

/// The same with a checksum per block, made here before a write and verified in the buffer by the library.
pub(crate) struct WithSums(pub(crate) holdfast_embedded::File);

impl Access for WithSums {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let length = self.0.read_at_with_sums(buffer, offset, &mut Vec::new()).map_err(io::Error::other)?;
        whole(length, buffer.len())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let length = self.0.write_at_with_sums(bytes, offset, &self.0.sums(bytes, offset));
        whole(length.map_err(io::Error::other)?, bytes.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync().map_err(io::Error::other)
    }
}

fn whole(got: usize, wanted: usize) -> io::Result<()> {
    if got == wanted { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// A file of a stack in this process, read into a buffer of the application's.
pub(crate) struct Embedded {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) id: ObjectId,
    /// Checksums of this algorithm go along with the bytes: made here before a write, verified here after a read. Without, pages are
    /// verified in the pool, right before they are copied out of it.
    pub(crate) sums: Option<Algorithm>,
}

impl Access for Embedded {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let Some(algorithm) = self.sums else {
            let length = self.namespace.read_into(self.id, offset, buffer).map_err(io::Error::other)?;
            return whole(length, buffer.len());
        };
        let how = SumsWanted { algorithm, verify: false };
        let read = self.namespace.read_with_sums(self.id, offset, buffer.len(), how, false);
        let (data, sums) = read.map_err(io::Error::other)?;
        copy(data.slices(), buffer)?;
        whole(sums.len() * BLOCK, buffer.len())?;
        let mut blocks = std::hint::black_box(&*buffer).chunks_exact(BLOCK).zip(sums);
        blocks.try_for_each(|(block, sum)| sum.verify(block)).map_err(io::Error::other)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let Some(algorithm) = self.sums else {
            let length = self.namespace.write(&Request::ROOT, self.id, offset, bytes, false);
            return whole(length.map_err(io::Error::other)?, bytes.len());
        };
        let sums: Vec<Checksum> = bytes.chunks_exact(BLOCK).map(|block| algorithm.sum(block)).collect();
        let written = self.namespace.write_with_sums(&Request::ROOT, self.id, offset, bytes, &sums, false);
        written.map(drop).map_err(io::Error::other)
    }

    fn sync(&self) -> io::Result<()> {
        self.namespace.sync(self.id, Durability::All).map_err(io::Error::other)
    }
}

fn copy<'a>(slices: impl Iterator<Item = &'a [u8]>, buffer: &mut [u8]) -> io::Result<()> {
    let mut rest = buffer;
    for slice in slices {
        let (here, after) = rest.split_at_mut_checked(slice.len()).ok_or(io::ErrorKind::InvalidData)?;
        here.copy_from_slice(slice);
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
