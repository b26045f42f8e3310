//! Which blocks a transfer touches.

use std::ops::Range;

/// Bytes in a block.
pub const BLOCK_BYTES: usize = 4096;

/// The part of a transfer that lies in one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The block, counted from the start of the file.
    pub block: u64,
    /// Its bytes, counted from the start of the transfer.
    pub range: Range<usize>,
}

/// How many blocks `length` bytes from `offset` on touch.
pub fn blocks(offset: u64, length: usize) -> usize {
    let within = (offset % BLOCK_BYTES as u64) as usize;
    if length == 0 { 0 } else { (within.saturating_add(length)).div_ceil(BLOCK_BYTES) }
}

/// The pieces of `length` bytes from `offset` on, in order: one per block.
pub fn pieces(offset: u64, length: usize) -> impl ExactSizeIterator<Item = Piece> {
    let within = (offset % BLOCK_BYTES as u64) as usize;
    let first = offset / BLOCK_BYTES as u64;
    (0..blocks(offset, length)).map(move |index| {
        let start = (index * BLOCK_BYTES).saturating_sub(within);
        let end = ((index + 1) * BLOCK_BYTES - within).min(length);
        Piece { block: first + index as u64, range: start..end }
    })
}
