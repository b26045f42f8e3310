//! Block devices: where Holdfast's bytes finally live.
//!
//! A [`Device`] is a row of 4 KiB blocks that can be read, written, flushed and discarded. Two are here: a regular file
//! or disk ([`FileDevice`], with direct I/O and exclusive use) and memory ([`MemoryDevice`], cloned copy-on-write in
//! microseconds). [`flashlog`] makes one of two: a disk, and a log of what is written to it. A [`Filter`] stands in front of
//! a device and changes something of what goes through it. [`nbd`] serves a device to clients, `ublk` (a feature) to the kernel. The fault devices and the write recorder live in `holdfast-lab`.
//!
//! What every device promises, and no more:
//! - A read returns what the last completed write of the block carried, unless the medium lies. Checksums are the
//!   business of the layers above.
//! - Requests that are in flight at the same time are not ordered among themselves. A write that has returned is visible
//!   to every later read, but durable only once a later [`Device::flush`] has returned `Ok`. Until then a power cut may
//!   keep it, lose it, or keep some of its 512-byte sectors, independently of every other write.
//! - A failed write or flush *latches*: all later writes, flushes and discards fail with the first cause
//!   ([`Error::Latched`]). After a failed flush the kernel has dropped the dirty state, so a second flush that returns
//!   success would prove nothing. Reads still work.

mod aligned;
mod device;
mod error;
mod file;
mod filter;
pub mod flashlog;
mod latch;
mod memory;
pub mod nbd;
#[cfg(feature = "ublk")]
pub mod ublk;

pub use aligned::AlignedBuf;
pub use device::{BLOCK_SIZE, Device, Read, Write, check_request};
pub use error::{Error, Operation};
pub use file::{Access, FileDevice};
pub use filter::Filter;
pub use latch::Latch;
pub use memory::MemoryDevice;
