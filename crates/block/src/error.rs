//! What can go wrong with a block device, always with the place where it did.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::BLOCK_SIZE;

/// What was being done to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Creating the file behind a device.
    Create,
    /// Opening the device.
    Open,
    /// Taking the device for exclusive use.
    Lock,
    /// Reading blocks.
    Read,
    /// Writing blocks.
    Write,
    /// Making completed writes durable.
    Flush,
    /// Giving up the contents of blocks.
    Discard,
    /// Making the device larger.
    Grow,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Create => "create",
            Operation::Open => "open",
            Operation::Lock => "lock",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
            Operation::Grow => "grow",
        })
    }
}

/// A failed request to a block device. Cheap to clone, so that a latched cause can be handed out again.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is held by another mount, check or process.
    #[error("{device}: in use by another process or mount")]
    InUse {
        /// Path of the device.
        device: Arc<str>,
    },
    /// The path does not name something that can be a block device.
    #[error("{device}: cannot be used as a block device: {reason}")]
    Unsuitable {
        /// Path of the device.
        device: Arc<str>,
        /// Why not.
        reason: &'static str,
    },
    /// What the device showed is not to be had any more; that says nothing about what is stored.
    #[error("{device}: {operation} refused{}: {reason}", Place(Some(*first), *length_bytes))]
    Over {
        /// Name of the device.
        device: Arc<str>,
        /// What was being done.
        operation: Operation,
        /// First block of the request.
        first: u64,
        /// Length of the request in bytes.
        length_bytes: u64,
        /// Why.
        reason: &'static str,
    },
    /// The operating system refused or failed the request.
    #[error("{device}: {operation} failed{}: {source}", Place(*first, *length_bytes))]
    Io {
        /// Name of the device.
        device: Arc<str>,
        /// What was being done.
        operation: Operation,
        /// First block of the request; `None` where the request has no address.
        first: Option<u64>,
        /// Length of the request in bytes; 0 where it has none.
        length_bytes: u64,
        /// The operating system's answer.
        source: Arc<io::Error>,
    },
    /// The device answered with fewer bytes than it has by its own account (it shrank, or lies about its size).
    #[error("{device}: {operation} ended early{}: {done_bytes} bytes transferred", Place(Some(*first), *length_bytes))]
    EndedEarly {
        /// Name of the device.
        device: Arc<str>,
        /// What was being done.
        operation: Operation,
        /// First block of the request.
        first: u64,
        /// Length of the request in bytes.
        length_bytes: u64,
        /// Bytes transferred before the end.
        done_bytes: u64,
    },
    /// Somebody has cut the file off, or the disk is not there any more, and has no blocks. Nothing is written to it any more: a file would become as
    /// long as it was, with zeros in between.
    #[error("{device}: {operation} refused{}: it has {blocks} blocks only, and had {expected}", Place(*first, *length_bytes))]
    Shrunk {
        /// Path of the device.
        device: Arc<str>,
        /// What was being done.
        operation: Operation,
        /// First block of the request; none for a flush.
        first: Option<u64>,
        /// Length of the request in bytes.
        length_bytes: u64,
        /// Blocks that are left.
        blocks: u64,
        /// Blocks that it had.
        expected: u64,
    },
    /// A block does not match the checksum that it was given when it was written, and nobody has a good copy.
    #[error("{device}: {operation} found damage at block {first}: expected checksum {expected:#018x}, got {got:#018x}")]
    Damaged {
        /// Name of the device.
        device: Arc<str>,
        /// What was being done.
        operation: Operation,
        /// The block.
        first: u64,
        /// CRC-64 of what was written.
        expected: u64,
        /// CRC-64 of what is there.
        got: u64,
    },
    /// The request reaches past the end of the device: a bug of the caller, or an address taken from damaged metadata.
    #[error("{device}: {operation} out of range{}: the device has {blocks} blocks", Place(Some(*first), *length_bytes))]
    OutOfRange {
        /// Name of the device.
        device: Arc<str>,
        /// What was being done.
        operation: Operation,
        /// First block of the request.
        first: u64,
        /// Length of the request in bytes.
        length_bytes: u64,
        /// Size of the device in blocks.
        blocks: u64,
    },
    /// The length is zero or not a multiple of 4096: a bug of the caller.
    #[error("{device}: {operation} misaligned at block {first}: {length_bytes} bytes is no whole number of blocks")]
    Misaligned {
        /// Name of the device.
        device: Arc<str>,
        /// What was being done.
        operation: Operation,
        /// First block of the request.
        first: u64,
        /// Length of the request in bytes.
        length_bytes: u64,
    },
    /// A change was asked of a device that is open for reading only.
    #[error("{device}: {operation} refused{}: the device is open read-only", Place(*first, *length_bytes))]
    ReadOnly {
        /// Name of the device.
        device: Arc<str>,
        /// What was being done.
        operation: Operation,
        /// First block of the request; `None` where the request has no address.
        first: Option<u64>,
        /// Length of the request in bytes; 0 where it has none.
        length_bytes: u64,
    },
    /// An earlier write or flush failed, so this change was not attempted.
    #[error("{device}: {operation} refused{}: latched by an earlier error: {cause}", Place(*first, *length_bytes))]
    Latched {
        /// Name of the device.
        device: Arc<str>,
        /// What was being done.
        operation: Operation,
        /// First block of the request; `None` where the request has no address.
        first: Option<u64>,
        /// Length of the request in bytes; 0 where it has none.
        length_bytes: u64,
        /// The error that latched the device.
        #[source]
        cause: Arc<Error>,
    },
}

/// Shows " at block 7 (8192 bytes)", or nothing for a request without an address.
struct Place(Option<u64>, u64);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(first) if self.1 == BLOCK_SIZE as u64 => write!(f, " at block {first}"),
            Some(first) => write!(f, " at block {first} ({} bytes)", self.1),
            None => Ok(()),
        }
    }
}

impl Error {
    /// The device's name: a path, or "memory".
    pub fn device(&self) -> &str {
        match self {
            Error::InUse { device }
            | Error::Unsuitable { device, .. }
            | Error::Over { device, .. }
            | Error::Io { device, .. }
            | Error::EndedEarly { device, .. }
            | Error::Shrunk { device, .. }
            | Error::Damaged { device, .. }
            | Error::OutOfRange { device, .. }
            | Error::Misaligned { device, .. }
            | Error::ReadOnly { device, .. }
            | Error::Latched { device, .. } => device,
        }
    }

    /// What was being done.
    pub fn operation(&self) -> Operation {
        match self {
            Error::InUse { .. } => Operation::Lock,
            Error::Unsuitable { .. } => Operation::Open,
            Error::Over { operation, .. }
            | Error::Io { operation, .. }
            | Error::EndedEarly { operation, .. }
            | Error::Shrunk { operation, .. }
            | Error::Damaged { operation, .. }
            | Error::OutOfRange { operation, .. }
            | Error::Misaligned { operation, .. }
            | Error::ReadOnly { operation, .. }
            | Error::Latched { operation, .. } => *operation,
        }
    }

    /// First block of the failed request, if it had an address.
    pub fn first(&self) -> Option<u64> {
        match self {
            Error::InUse { .. } | Error::Unsuitable { .. } => None,
            Error::Over { first, .. }
            | Error::EndedEarly { first, .. }
            | Error::Damaged { first, .. }
            | Error::OutOfRange { first, .. }
            | Error::Misaligned { first, .. } => Some(*first),
            Error::Io { first, .. }
            | Error::Shrunk { first, .. }
            | Error::ReadOnly { first, .. }
            | Error::Latched { first, .. } => *first,
        }
    }

    /// Length of the failed request in bytes, 0 if it had none.
    pub fn length_bytes(&self) -> u64 {
        match self {
            Error::InUse { .. } | Error::Unsuitable { .. } => 0,
            Error::Damaged { .. } => BLOCK_SIZE as u64,
            Error::Over { length_bytes, .. }
            | Error::Io { length_bytes, .. }
            | Error::EndedEarly { length_bytes, .. }
            | Error::Shrunk { length_bytes, .. }
            | Error::OutOfRange { length_bytes, .. }
            | Error::Misaligned { length_bytes, .. }
            | Error::ReadOnly { length_bytes, .. }
            | Error::Latched { length_bytes, .. } => *length_bytes,
        }
    }

    /// Whether the device itself failed, as against a request that it was right to refuse. Such a failure of a write or
    /// flush latches the device.
    pub fn is_device_failure(&self) -> bool {
        matches!(self, Error::Io { .. } | Error::EndedEarly { .. } | Error::Shrunk { .. } | Error::Damaged { .. })
    }

    /// What went wrong, without the place: the system's words where it was the system. Of a latched error the whole error
    /// that started it, since that was elsewhere.
    pub fn reason(&self) -> String {
        match self {
            Error::Io { source, .. } => source.to_string(),
            Error::EndedEarly { done_bytes, .. } => format!("it ended early, after {done_bytes} bytes"),
            Error::Shrunk { blocks, expected, .. } => format!("it has {blocks} blocks only, and had {expected}"),
            Error::Damaged { .. } => "it does not match its checksum".to_string(),
            Error::OutOfRange { blocks, .. } => format!("out of range: the device has {blocks} blocks"),
            Error::Misaligned { .. } => "not a whole number of blocks".to_string(),
            Error::ReadOnly { .. } => "the device is open read-only".to_string(),
            Error::Unsuitable { reason, .. } | Error::Over { reason, .. } => (*reason).to_string(),
            Error::InUse { .. } => "in use by another process or mount".to_string(),
            Error::Latched { .. } => format!("after an earlier error: {}", self.root()),
        }
    }

    /// The error that started it: of a latched error the cause, otherwise the error itself.
    pub fn root(&self) -> &Error {
        match self {
            Error::Latched { cause, .. } => cause.root(),
            other => other,
        }
    }
}
