//! What a batch says, operations and sector sums, from when it is put into bytes until these are on the device.
//!
//! What is in the head of a batch is replayed after a power cut if its checksum is right. So none is made of bytes that nobody has looked after
//! since they were encoded: each piece gets a sum at once, the checksum of the head is made before those are verified, and what was written is
//! compared with them again before it counts as durable. These sums are of another polynomial: what keeps the one changes the other.

use crate::format::log::HEADER_BYTES;
use crate::meta_block::Scribble;
use holdfast_integrity::{crc32c, crc64};
use holdfast_object::PAGE_SIZE;

/// Operations, then sector sums.
pub(super) struct Body {
    bytes: Vec<u8>,
    /// Where each piece ends, and its sum.
    pieces: Vec<(usize, u32)>,
    /// Nobody looks after it otherwise: memory is believed.
    is_summed: bool,
}

impl Body {
    pub(super) fn new(is_summed: bool) -> Body {
        Body { bytes: Vec::new(), pieces: Vec::new(), is_summed }
    }

    /// The next piece.
    pub(super) fn put(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        encode(&mut self.bytes);
        if self.is_summed {
            self.pieces.push((self.bytes.len(), crc32c(&self.bytes[start..])));
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The checksum of all of it.
    ///
    /// # Errors
    /// Somebody has written to it who must not.
    pub(super) fn sum(&self) -> Result<u64, Scribble> {
        // Before those that it follows from are verified.
        let sum = crc64(&self.bytes);
        let mut start = 0;
        for &(end, expected) in &self.pieces {
            let piece = self.bytes.get(start..end).unwrap_or_default();
            Scribble::unless_equal("sum of what is put into the intent log", expected.into(), crc32c(piece).into())?;
            start = end;
        }
        Ok(sum)
    }

    /// A head of so many blocks, still without its header. Before [`Body::sum`], so that both are of the same bytes.
    pub(super) fn head(&self, blocks: usize) -> Vec<u8> {
        let mut head = Vec::with_capacity(blocks * PAGE_SIZE);
        head.resize(HEADER_BYTES, 0);
        head.extend(&self.bytes);
        head.resize(blocks * PAGE_SIZE, 0);
        head
    }

    /// Whether both heads are what they are to be: before they are written, and afterwards.
    ///
    /// # Errors
    /// Somebody has written to them who must not; afterwards, perhaps before they were written.
    pub(super) fn verify_heads(&self, heads: [&[u8]; 2], headers: &[[u8; HEADER_BYTES]; 2]) -> Result<(), Scribble> {
        for (head, header) in heads.into_iter().zip(headers) {
            let (own, rest) = head.split_at(HEADER_BYTES);
            for (meant, is) in [(&header[..], own), (&self.bytes, &rest[..self.bytes.len()])] {
                if meant != is {
                    let differs = (0..is.len()).find(|at| meant[*at] != is[*at]).unwrap_or(0);
                    let what = "byte of a head that was put into the intent log";
                    Scribble::unless_equal(what, meant[differs].into(), is[differs].into())?;
                }
            }
        }
        Ok(())
    }

    /// What nobody may do, from a byte on: see [`crate::scribble`].
    pub(super) fn scribbled(&mut self, from: usize) -> &mut [u8] {
        &mut self.bytes[from..]
    }
}
