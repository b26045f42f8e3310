//! Devices that fail on purpose, devices that remember, and devices that take their time.
//!
//! - [`FaultDevice`] wraps any device and does to it what a [`FaultPlan`] says: flipped bits, lost, torn and misdirected
//!   writes, read, write and flush errors, a device that vanishes.
//! - [`Recorder`] wraps any device and remembers every write and flush. From its log, [`CrashImages`] builds what a power
//!   cut at any moment may leave on the medium.
//! - [`timed`]: devices in memory that take as long as a disk, a USB stick or an SSD, and tell of wear.
//!
//! But for [`timed::Real`], nothing here waits, reads a clock or draws random numbers of its own: the same plan or seed gives the same bytes.

mod crash;
mod fault;
mod plan;
mod recorder;
#[cfg(test)]
mod tests;
pub mod timed;

pub use crash::{CrashImages, CrashMode, Left};
pub use fault::{FaultDevice, Firing};
pub use plan::{Fault, FaultPlan, Rule, Tear};
pub use recorder::Recorder;

use std::io::{IoSlice, IoSliceMut};

/// What a disk writes in one piece, in bytes. Sectors of one write are torn from each other, a sector in itself never is.
pub const SECTOR_BYTES: usize = 512;

/// Sectors in a block.
pub const SECTORS_PER_BLOCK: usize = holdfast_block::BLOCK_SIZE / SECTOR_BYTES;

/// The bytes of scattered buffers in one piece.
fn gather(bufs: &[IoSlice<'_>]) -> Vec<u8> {
    bufs.iter().map(|buf| &**buf).collect::<Vec<&[u8]>>().concat()
}

/// Total length of the buffers of a read, in bytes.
fn length_mut(bufs: &[IoSliceMut<'_>]) -> usize {
    bufs.iter().map(|buf| buf.len()).sum()
}
