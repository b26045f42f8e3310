//! Reading and writing files in a Holdfast mount with a checksum per block, from the application's buffer to the disk and back.
//!
//! ```no_run
//! use holdfast_client::File;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = File::new(std::fs::File::options().read(true).write(true).open("/mnt/holdfast/ledger")?)?;
//! // Checksums are made over this buffer; the mount takes the bytes only if they still have them.
//! file.write_at(b"credit 100", 4090)?;
//! // What arrives in the buffer is verified there.
//! let mut buffer = [0; 10];
//! let length = file.read_at(&mut buffer, 4090)?;
//! # let _ = length;
//! # Ok(())
//! # }
//! ```
//!
//! Any offset and length will do. A *block* is 4 KiB of the file, counted from its start; a transfer has one checksum for each block
//! that it touches, over just the bytes transferred in it ([`pieces`] gives them in order).
//!
//! - [`File::read_at`], [`File::write_at`] make and verify the checksums themselves;
//! - [`File::read_at_with_sums`], [`File::write_at_with_sums`] give them to the application, and take the application's own;
//! - the `vectored` forms do the same for several buffers at once;
//! - [`File::append`] writes at the end, wherever that is by then.
//!
//! The descriptor is an ordinary one, opened by the application; it may be shared by threads. What the interface does goes by ioctls
//! on it (`docs/decisions/0010-checksum-interface.md`), also for another user than the mount's, and from a container.
//!
//! # Asynchronously
//!
//! All of these wait. [`Workers`] are threads that do so for a program that has an executor, or none, and gets a future for each call:
//!
//! ```no_run
//! # use holdfast_client::{Error, File, Workers};
//! # async fn read(plain: std::fs::File) -> Result<(), Box<dyn std::error::Error>> {
//! let file = std::sync::Arc::new(File::new(plain)?);
//! let workers = Workers::new(4, 64)?; // threads, and calls in flight at most
//! let of_call = file.clone();
//! let read = workers.run(move || {
//!     let mut buffer = vec![0; 4096];
//!     let length = of_call.read_at(&mut buffer, 0)?;
//!     buffer.truncate(length);
//!     Ok::<_, Error>(buffer)
//! })?;
//! // Others can be handed in meanwhile.
//! let buffer = read.await?; // or read.wait()?
//! # drop(buffer);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/in_flight.rs` is a program with many of them in flight.
//!
//! # Errors
//!
//! [`Error`] says where bytes went bad ([`Kind::Memory`] or [`Kind::Device`]), whether in reading or in writing, and in which
//! blocks, so that an application can write them again.
//!
//! # What it does not do
//!
//! Mappings (mmap) have no checksums. Stores through a shared mapping are seen by a read that starts after them; a page that stays
//! mapped while it is written by this interface is old in the mapping until the kernel drops it.

// With it go the libraries for C and Python, which are built on this one.
const _: () = assert!(!holdfast_integrity::IS_BLIND, "the client is not built with the feature `blind`");

pub mod descriptor;
mod error;
mod file;
mod read;
mod transport;
mod write;

pub use error::{Error, Kind, Result};
pub use file::File;
pub use holdfast_integrity::{Algorithm, Checksum};
pub use holdfast_interface::{
    Access, BLOCK_BYTES, Capabilities, Features, Full, Operation, Pending, Piece, Workers, blocks, pieces,
};
pub use write::Appended;
