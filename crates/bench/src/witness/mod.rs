//! The witness of what `fsync` promised.
//!
//! Several actors change files on the file system under test and note in a *journal* on another file system what they begin and
//! what `fsync` has answered. After a crash, [`verify`] compares: all that was answered must be there, and what was
//! begun and not answered may be there, but only whole.
//!
//! | actor | change | afterwards |
//! |---|---|---|
//! | `log` | appends a record of 16 to 8000 bytes, fdatasync | at least the answered records; then whole records only |
//! | `create` | a new file of up to 64 KiB in a directory, fsync of the file | every answered file, whole |
//! | `remove` | unlinks one of these files, fsync of the directory | no file whose removal was answered |
//! | `replace` | a new version beside the old one, fsync, rename over it, fsync of the directory | one whole version, not older than the answered one |
//! | `block` | overwrites one of 256 blocks of 4 KiB, fdatasync | each block whole, not older than its answered version |
//!
//! All contents follow from a seed, so that the journal needs to hold numbers only.

mod actors;
mod contents;
mod journal;
mod verify;

#[cfg(test)]
mod tests;

pub use actors::{Actor, Outcome, write};
pub use journal::{Journal, Record, Stage};
pub use verify::{Finding, Report, Unanswered, verify};
