//! A device as clients see it: a row of bytes.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::edges::Edges;
use super::extents::{AllData, Context, Extents};
use super::protocol::Errno;
use super::speed::Speed;
use crate::{AlignedBuf, BLOCK_SIZE, Device, Error};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Reads from so many bytes on are worth asking whether there is anything to read.
const ASK_FOR_ZEROS: u64 = 64 << 10;

/// Zeros are written in pieces of so many bytes.
const ZEROS_BYTES: usize = 1 << 20;

/// Runs that one reply tells of, in one context.
const MOST_EXTENTS: usize = 1024;

/// A device under the name by which clients ask for it. Whoever else changes it while it is served does so by the same [`Edges`].
pub struct Export {
    name: String,
    description: String,
    device: Arc<dyn Device>,
    extents: Arc<dyn Extents>,
    is_read_only: bool,
    edges: Arc<Edges>,
    pub(super) speed: Speed,
}

/// Why a request was not done.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) errno: Errno,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(errno: Errno, message: impl Into<String>) -> Self {
        Refusal { errno, message: message.into() }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let errno = match &error {
            Error::ReadOnly { .. } => Errno::NotPermitted,
            Error::OutOfRange { .. } | Error::Misaligned { .. } => Errno::Invalid,
            Error::Io { source, .. } => match source.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Errno::NoSpace,
                Some(libc::ENOMEM) => Errno::NoMemory,
                _ => Errno::Io,
            },
            _ => Errno::Io,
        };
        Refusal { errno, message: error.to_string() }
    }
}

impl Export {
    /// Serves `device` under `name`, which at most 4096 bytes of UTF-8 without NUL may be; the first export of a server is also
    /// that of clients which give no name.
    pub fn new(name: &str, device: Arc<dyn Device>) -> Self {
        Export {
            name: name.into(),
            description: String::new(),
            device,
            extents: Arc::new(AllData),
            is_read_only: false,
            edges: Arc::default(),
            speed: Speed::default(),
        }
    }

    /// With what is known of the device's blocks.
    #[must_use]
    pub fn with_extents(mut self, extents: Arc<dyn Extents>) -> Self {
        self.extents = extents;
        self
    }

    /// The device is changed by others as well, which have the same of these: see [`Edges::over`].
    #[must_use]
    pub fn with_edges(mut self, edges: Arc<Edges>) -> Self {
        self.edges = edges;
        self
    }

    /// With a description, for people.
    #[must_use]
    pub fn described(mut self, description: &str) -> Self {
        self.description = description.into();
        self
    }

    /// For reading only.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn description(&self) -> &str {
        &self.description
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(super) fn contexts(&self) -> &[Context] {
        self.extents.contexts()
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.device.blocks() * BLOCK
    }

    /// Fills the part of `blocks` that holds the bytes, which are the blocks of [`covering`]. How many bytes are zeros at the
    /// beginning, without having been put there, is the answer.
    pub(super) fn read(&self, bytes: &Range<u64>, blocks: &mut [u8]) -> Result<u64, Refusal> {
        let covering = covering(bytes);
        let mut skip = 0;
        if bytes.end - bytes.start >= ASK_FOR_ZEROS {
            let most = covering.end - covering.start;
            skip = self.extents.zeros_ahead(covering.start, most).min(most);
        }
        if covering.start + skip < covering.end {
            let rest = &mut blocks[(skip * BLOCK) as usize..((covering.end - covering.start) * BLOCK) as usize];
            self.device.read(covering.start + skip, &mut [IoSliceMut::new(rest)])?;
        }
        let zeros_end = ((covering.start + skip) * BLOCK).min(bytes.end);
        Ok(zeros_end.saturating_sub(bytes.start))
    }

    /// Writes the bytes, which lie in `blocks` where the blocks of [`covering`] have them; the rest of the first and last block is
    /// filled in here.
    pub(super) fn write(&self, bytes: &Range<u64>, blocks: &mut [u8]) -> Result<(), Refusal> {
        let covering = covering(bytes);
        let blocks = &mut blocks[..((covering.end - covering.start) * BLOCK) as usize];
        let (head, tail) = ((bytes.start % BLOCK) as usize, (bytes.end % BLOCK) as usize);
        let _hold = self.edges.hold(covering.clone(), head != 0 || tail != 0);
        if head != 0 || tail != 0 {
            let mut old = AlignedBuf::zeroed(BLOCK_SIZE);
            let last = covering.end - 1;
            if head != 0 {
                self.device.read(covering.start, &mut [IoSliceMut::new(&mut old)])?;
                blocks[..head].copy_from_slice(&old[..head]);
            }
            if tail != 0 {
                if head == 0 || last != covering.start {
                    self.device.read(last, &mut [IoSliceMut::new(&mut old)])?;
                }
                let at = blocks.len() - BLOCK_SIZE + tail;
                blocks[at..].copy_from_slice(&old[tail..]);
            }
        }
        Ok(self.device.write(covering.start, &[IoSlice::new(blocks)])?)
    }

    /// Makes the bytes read as zeros, allocated if `keep`. If `fast`, then faster than by writing them, or not at all.
    pub(super) fn zero(&self, bytes: &Range<u64>, keep: bool, fast: bool) -> Result<(), Refusal> {
        let whole = within(bytes);
        let is_left = whole.is_empty() || fast && self.device.writes_zeros(keep);
        let done = !is_left && {
            let _hold = self.edges.hold(whole.clone(), false);
            self.device.zero(whole.start, whole.end - whole.start, keep)?
        };
        if !done && fast {
            return Err(Refusal::new(Errno::NotSupported, "zeros are not faster than a write here"));
        }
        if whole.is_empty() {
            return self.zero_part(bytes.clone());
        }
        let edges = [bytes.start..whole.start * BLOCK, whole.end * BLOCK..bytes.end];
        edges.into_iter().filter(|edge| !edge.is_empty()).try_for_each(|edge| self.zero_part(edge))?;
        if !done {
            let _hold = self.edges.hold(whole.clone(), false);
            let (mut at, zeros) = (whole.start, zeros());
            while at < whole.end {
                let count = (whole.end - at).min((ZEROS_BYTES / BLOCK_SIZE) as u64);
                self.device.write(at, &[IoSlice::new(&zeros[..(count * BLOCK) as usize])])?;
                at += count;
            }
        }
        Ok(())
    }

    /// Writes zeros over parts of one block, or of two.
    fn zero_part(&self, bytes: Range<u64>) -> Result<(), Refusal> {
        let mut blocks = AlignedBuf::zeroed(2 * BLOCK_SIZE);
        self.write(&bytes, &mut blocks)
    }

    /// Says that the bytes are not needed any more; of blocks that are concerned in part nothing is done.
    pub(super) fn trim(&self, bytes: &Range<u64>) -> Result<(), Refusal> {
        let whole = within(bytes);
        if whole.is_empty() {
            return Ok(());
        }
        let _hold = self.edges.hold(whole.clone(), false);
        Ok(self.device.discard(whole.start, whole.end - whole.start)?)
    }

    /// Makes durable what all clients have written.
    pub(super) fn flush(&self) -> Result<(), Refusal> {
        if self.is_read_only {
            return Ok(());
        }
        Ok(self.device.flush()?)
    }

    /// Runs of bytes with the same flags, from the first of the bytes on: length, flags. At least one.
    pub(super) fn status(&self, context: Context, bytes: &Range<u64>, one: bool) -> Result<Vec<(u32, u32)>, Refusal> {
        let covering = covering(bytes);
        let (mut at, mut from) = (covering.start, bytes.start);
        let mut runs: Vec<(u32, u32)> = Vec::new();
        while at < covering.end {
            let extent = self.extents.extent(context, at, covering.end - at)?;
            at = (at + extent.blocks.max(1)).min(covering.end);
            let to = (at * BLOCK).min(bytes.end);
            // The bytes are no more than a request's, whose length has 32 bits.
            let length = (to - from) as u32;
            let is_full = runs.len() == if one { 1 } else { MOST_EXTENTS };
            match runs.last_mut() {
                Some(last) if last.1 == extent.flags => last.0 += length,
                _ if is_full => break,
                _ => runs.push((length, extent.flags)),
            }
            from = to;
        }
        Ok(runs)
    }
}

/// The blocks that have any of the bytes.
pub(super) fn covering(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / BLOCK..bytes.end.div_ceil(BLOCK)
}

/// The blocks that have nothing but of the bytes; empty if there are none.
fn within(bytes: &Range<u64>) -> Range<u64> {
    let start = bytes.start.div_ceil(BLOCK);
    start..(bytes.end / BLOCK).max(start)
}

fn zeros() -> &'static [u8] {
    static ZEROS: OnceLock<AlignedBuf> = OnceLock::new();
    ZEROS.get_or_init(|| AlignedBuf::zeroed(ZEROS_BYTES))
}
