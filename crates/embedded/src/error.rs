//! What went wrong, where, and with which blocks.

use holdfast_interface::Operation;
use holdfast_naming::{self as naming, Damage, Side};
use std::path::PathBuf;

/// Result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed call.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A store could not be made, opened or closed.
    #[error("{}: {reason}", path.display())]
    Store {
        /// Of the file or disk.
        path: PathBuf,
        /// In words.
        reason: String,
    },
    /// There is no such file, it is none, or it cannot be made.
    #[error("{name}: {source}")]
    Name {
        /// As it was given.
        name: String,
        /// Why.
        source: naming::Error,
    },
    /// Bytes did not have their checksum where they arrived. Of a write nothing was taken; the contents of a read's buffers are not to be
    /// used.
    #[error("{} at byte {offset}: bytes in memory do not have their checksum (blocks {blocks:?})", word(*operation))]
    Transfer {
        /// What was being done.
        operation: Operation,
        /// Where in the file the failed part begins, in bytes.
        offset: u64,
        /// Bytes of the transfer that were done before.
        done: usize,
        /// The blocks, of 4 KiB, counted from the start of the file.
        blocks: Vec<u64>,
    },
    /// The store could not do it.
    #[error("{} at byte {offset}: {source}", word(*operation))]
    Failed {
        /// What was being done.
        operation: Operation,
        /// Where in the file the failed part begins, in bytes.
        offset: u64,
        /// Bytes of the transfer that were done before.
        done: usize,
        /// Why.
        source: naming::Error,
    },
    /// What the program asks makes no sense.
    #[error("{} at byte {offset}: {what}", word(*operation))]
    Invalid {
        /// What was being done.
        operation: Operation,
        /// Where in the file, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

fn word(operation: Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Write => "write",
    }
}

impl Error {
    /// Whether bytes are bad or the device failed, and then where: in memory, or on the device.
    pub fn side(&self) -> Option<Side> {
        match self {
            Error::Transfer { .. } => Some(Side::Memory),
            error => error.damage().map(|damage| damage.side),
        }
    }

    /// The blocks that are bad or cannot be read, as far as is known. What the device failed to write has none: it is whatever was not synced.
    pub fn blocks(&self) -> Vec<u64> {
        match self {
            Error::Transfer { blocks, .. } => blocks.clone(),
            error => error.damage().and_then(|damage| damage.block).into_iter().collect(),
        }
    }

    /// The name of the device that has bad bytes or failed, if one is concerned and known. (What it was asked to do is told in words.)
    pub fn device(&self) -> Option<&str> {
        self.damage()?.device
    }

    /// The 4 KiB block of the device that is bad or with which it failed, if one is concerned and known; the first of several that it was
    /// asked for at once.
    pub fn device_address(&self) -> Option<u64> {
        self.damage()?.device_address
    }

    fn damage(&self) -> Option<Damage<'_>> {
        match self {
            Error::Failed { source, .. } | Error::Name { source, .. } => source.damage(),
            _ => None,
        }
    }

    pub(crate) fn name(name: &str) -> impl FnOnce(naming::Error) -> Error {
        move |source| Error::Name { name: name.to_owned(), source }
    }
}
