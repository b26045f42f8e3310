//! A store in the program's own process: what a mount has, without the kernel between the program and it.
//!
//! ```
//! use holdfast_embedded::{Options, Store};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("ledger.holdfast");
//! let store = Store::create(&path, 64 << 20, &Options::default())?;
//! let file = store.create_file("accounts")?;
//! file.write_at(b"credit 100", 4090)?;
//! file.sync()?;
//!
//! let (mut buffer, mut sums) = ([0; 10], Vec::new());
//! let length = file.read_at_with_sums(&mut buffer, 4090, &mut sums)?;
//! // One checksum for each block of 4 KiB of the file, over the bytes that were read of it.
//! assert_eq!((&buffer[..length], sums.len()), (&b"credit 100"[..], 2));
//! drop(file);
//! store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Store`] opens and makes stores, the same that `holdfast mount` takes, one program at a time; it has a thread that makes recovery points.
//! - [`File`] has reads and writes at any offset and length, with checksums that the program makes or keeps, also of several buffers, and appends:
//!   the calls of the crate `holdfast-client`, which is for files in a mount.
//!   Calls may come from any number of threads. They wait for the device; [`Workers`] are threads for that, and give a future for each call, as
//!   in `holdfast-client`.
//! - [`Store::namespace`] has the rest of POSIX: directories, names, attributes, links ([`naming`]).
//!
//! A transfer has one checksum for each block that it touches, over just the bytes transferred in it ([`pieces`] gives them in order).
//! [`Error`] tells device or memory, read or write, and which blocks.
//!
//! # What protects what
//! [`File::write_at_with_sums`] verifies the program's checksums over what has arrived in the store's memory, and
//! [`File::read_at_with_sums`] verifies, in the program's buffer, what has arrived there. [`File::write_at`] and [`File::read_at`] make and
//! verify the pages' own checksums while they copy, which is faster, and leaves the copy in the program's buffer to the program.
//!
//! If metadata goes bad in memory, nothing of it reaches the device, and the store takes no changes any more: open it again, which
//! replays what fsync has answered. A mount does that by itself.

mod error;
mod file;
mod store;

pub use error::{Error, Result};
pub use file::File;
pub use holdfast_integrity::{Algorithm, Checksum, Protection};
pub use holdfast_interface::{Access, BLOCK_BYTES, Features, Full, Operation, Pending, Piece, Workers, pieces};
pub use holdfast_naming as naming;
pub use holdfast_naming::{Namespace, Request, Side};
pub use holdfast_object::ObjectId;
pub use store::{Options, Store};
