//! What can go wrong with a name-space request. Each kind has one meaning; a front end turns it into its own number.

use holdfast_object::{self as object, ObjectId, PageMismatch};
use std::fmt;

/// Result of naming's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// A name for a message: bytes that need not be UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Name {
        Name(bytes.into())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A failed request. Nothing of it was done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A page that a request was changing has gone bad in memory. Nothing was done: the request can be done anew.
    #[error("page {page} of object {object} has gone bad in memory while it was changed: {mismatch}")]
    Scribbled {
        /// Whose.
        object: ObjectId,
        /// Which.
        page: u64,
        /// What legal changes have left, and what its bytes have.
        mismatch: PageMismatch,
    },
    /// The directory has no entry of that name, or was removed itself.
    #[error("no {name} in directory {parent}")]
    NotFound {
        /// The directory.
        parent: ObjectId,
        /// The name.
        name: Name,
    },
    /// The directory has an entry of that name.
    #[error("{name} exists already in directory {parent}")]
    Exists {
        /// The directory.
        parent: ObjectId,
        /// The name.
        name: Name,
    },
    /// A directory is needed here.
    #[error("object {0} is not a directory")]
    NotDirectory(ObjectId),
    /// A directory cannot be used here.
    #[error("object {0} is a directory")]
    IsDirectory(ObjectId),
    /// A directory that has entries cannot be removed or replaced.
    #[error("directory {0} is not empty")]
    NotEmpty(ObjectId),
    /// A name or link target beyond its limit.
    #[error("{length} bytes are too long for a name or target: {limit} at most")]
    NameTooLong {
        /// In bytes.
        length: usize,
        /// In bytes.
        limit: usize,
    },
    /// The mode bits do not give the caller this access.
    #[error("no {wanted} access to object {object}")]
    Access {
        /// To what.
        object: ObjectId,
        /// "read", "write" or "search", or several of them.
        wanted: &'static str,
    },
    /// The operation is for somebody else to do, or for nobody.
    #[error("not permitted on object {object}: {what}")]
    Permission {
        /// On what.
        object: ObjectId,
        /// What is not permitted.
        what: &'static str,
    },
    /// The file has as many names as it can have.
    #[error("object {0} has too many names")]
    TooManyLinks(ObjectId),
    /// The request makes no sense.
    #[error("invalid: {0}")]
    InvalidArgument(&'static str),
    /// The file has no extended attribute of that name.
    #[error("object {object} has no attribute {name}")]
    NoAttribute {
        /// The file.
        object: ObjectId,
        /// The attribute.
        name: Name,
    },
    /// The file has an extended attribute of that name.
    #[error("object {object} has an attribute {name} already")]
    AttributeExists {
        /// The file.
        object: ObjectId,
        /// The attribute.
        name: Name,
    },
    /// The caller's buffer is too small.
    #[error("{needed} bytes do not fit into {room}")]
    Range {
        /// In bytes.
        needed: usize,
        /// In bytes.
        room: usize,
    },
    /// An extended attribute's value or the list of names beyond its limit.
    #[error("extended attribute or list of {length} bytes: {limit} at most")]
    AttributeTooBig {
        /// In bytes.
        length: usize,
        /// In bytes.
        limit: usize,
    },
    /// All extended attributes of the file together are beyond the limit.
    #[error("the extended attributes of object {0} leave no room")]
    AttributesFull(ObjectId),
    /// The object that the caller remembers is gone.
    #[error("object {0} does not exist any more")]
    Stale(ObjectId),
    /// A directory cannot be moved into itself or below.
    #[error("directory {directory} cannot be moved into itself or below: {into}")]
    IntoItself {
        /// What was to be moved.
        directory: ObjectId,
        /// Where to.
        into: ObjectId,
    },
    /// The file would become larger than a file can be.
    #[error("object {object}: {size} bytes are beyond the largest file")]
    FileTooBig {
        /// The file.
        object: ObjectId,
        /// The size that was asked for.
        size: u64,
    },
    /// The file would become larger than the caller permits itself.
    #[error("object {object}: {size} bytes are beyond the caller's limit of file sizes (RLIMIT_FSIZE)")]
    BeyondLimit {
        /// The file.
        object: ObjectId,
        /// The size that was asked for.
        size: u64,
    },
    /// There is no data (no hole) from there on.
    #[error("object {object}: nothing to find from byte {offset} on")]
    BeyondEnd {
        /// The file.
        object: ObjectId,
        /// In bytes.
        offset: u64,
    },
    /// Not offered.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// All keys for the hash of this name are taken: 256 names with the same 55-bit hash in one directory.
    #[error("directory {parent} has no key left for {name}")]
    DirectoryFull {
        /// The directory.
        parent: ObjectId,
        /// The name.
        name: Name,
    },
    /// A directory's page is not what it should be, although its checksum is right.
    #[error("corrupt directory {object}, page {page}, byte {offset}: {what}")]
    CorruptDirectory {
        /// The directory.
        object: ObjectId,
        /// Page of it.
        page: u64,
        /// Byte in the page.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// Extended attributes are not what they should be, although their checksum is right.
    #[error("corrupt extended attributes {object}, byte {offset}: {what}")]
    CorruptAttributes {
        /// The object that holds them.
        object: ObjectId,
        /// Byte in it.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// Objects contradict each other.
    #[error("corrupt name space at object {object}: {what}")]
    CorruptTree {
        /// The object.
        object: ObjectId,
        /// What is wrong.
        what: &'static str,
    },
    /// Bytes to be written do not have the checksums that came with them.
    #[error("object {object}: what came for blocks {blocks:?} does not have its checksum")]
    Mismatch {
        /// The file.
        object: ObjectId,
        /// Of 4 KiB, counted from the start of the file, ascending.
        blocks: Vec<u64>,
    },
    /// What the request would change does not fit together.
    #[error(
        "audit of a transaction ({transaction}): not so: {failed} (a logic bug, to be reported; nothing of it is done)"
    )]
    Audit {
        /// Equations that do not hold, with both sums.
        failed: String,
        /// What it would have done.
        transaction: String,
    },
    /// From below.
    #[error(transparent)]
    Object(object::Error),
}

/// An [`Error`] without its place; for front ends and tests to compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum ErrorKind {
    NotFound,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    NameTooLong,
    Access,
    Permission,
    TooManyLinks,
    InvalidArgument,
    NoAttribute,
    Range,
    AttributeTooBig,
    Stale,
    FileTooBig,
    BeyondEnd,
    NotSupported,
    NoSpace,
    /// The quota is used up.
    OverQuota,
    ReadOnly,
    NoMemory,
    Corrupt,
    Device,
    Internal,
}

impl Error {
    /// What happened, without the place.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::NotFound { .. } => ErrorKind::NotFound,
            Error::Exists { .. } | Error::AttributeExists { .. } => ErrorKind::Exists,
            Error::NotDirectory(_) => ErrorKind::NotDirectory,
            Error::IsDirectory(_) => ErrorKind::IsDirectory,
            Error::NotEmpty(_) => ErrorKind::NotEmpty,
            Error::NameTooLong { .. } => ErrorKind::NameTooLong,
            Error::Access { .. } => ErrorKind::Access,
            Error::Permission { .. } => ErrorKind::Permission,
            Error::TooManyLinks(_) => ErrorKind::TooManyLinks,
            Error::InvalidArgument(_) | Error::IntoItself { .. } => ErrorKind::InvalidArgument,
            Error::NoAttribute { .. } => ErrorKind::NoAttribute,
            Error::Range { .. } => ErrorKind::Range,
            Error::AttributeTooBig { .. } => ErrorKind::AttributeTooBig,
            Error::AttributesFull(_) | Error::DirectoryFull { .. } => ErrorKind::NoSpace,
            Error::Stale(_) => ErrorKind::Stale,
            Error::FileTooBig { .. } | Error::BeyondLimit { .. } => ErrorKind::FileTooBig,
            Error::BeyondEnd { .. } => ErrorKind::BeyondEnd,
            Error::NotSupported(_) => ErrorKind::NotSupported,
            Error::CorruptDirectory { .. }
            | Error::CorruptAttributes { .. }
            | Error::CorruptTree { .. }
            | Error::Scribbled { .. }
            | Error::Mismatch { .. } => ErrorKind::Corrupt,
            Error::Audit { .. } => ErrorKind::Internal,
            Error::Object(error) => match error {
                object::Error::NoObject(_) => ErrorKind::Stale,
                object::Error::NoSpace { .. } => ErrorKind::NoSpace,
                object::Error::OverQuota { .. } => ErrorKind::OverQuota,
                object::Error::Corrupt(_) | object::Error::GivenUp(_) | object::Error::Lost { .. } => {
                    ErrorKind::Corrupt
                }
                object::Error::Device(_) => ErrorKind::Device,
                object::Error::ReadOnly(_) | object::Error::InSnapshot(_) => ErrorKind::ReadOnly,
                object::Error::NoSnapshot(_) => ErrorKind::NotFound,
                object::Error::SnapshotExists(_) => ErrorKind::Exists,
                object::Error::SnapshotName(_) | object::Error::Smaller { .. } => ErrorKind::InvalidArgument,
                object::Error::Limit { .. } => ErrorKind::FileTooBig,
                object::Error::NoFrames { .. } => ErrorKind::NoMemory,
                object::Error::ObjectExists(_) | object::Error::NoStore(_) | object::Error::Protocol(_) => {
                    ErrorKind::Internal
                }
            },
        }
    }

    pub(crate) fn not_found(parent: ObjectId, name: &[u8]) -> Error {
        Error::NotFound { parent, name: name.into() }
    }

    pub(crate) fn exists(parent: ObjectId, name: &[u8]) -> Error {
        Error::Exists { parent, name: name.into() }
    }
}

impl From<object::Error> for Error {
    fn from(error: object::Error) -> Error {
        match error {
            object::Error::NoObject(key) => Error::Stale(key.object),
            error => Error::Object(error),
        }
    }
}
