//! Error numbers. Nothing outside this crate knows them.

use holdfast_naming::{Error, ErrorKind};

/// A positive error number of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

#[allow(missing_docs)]
impl Errno {
    pub const BADF: Errno = Errno(libc::EBADF);
    pub const INTR: Errno = Errno(libc::EINTR);
    pub const INVAL: Errno = Errno(libc::EINVAL);
    pub const IO: Errno = Errno(libc::EIO);
    pub const NOSYS: Errno = Errno(libc::ENOSYS);
    pub const NOTTY: Errno = Errno(libc::ENOTTY);
    pub const OPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    pub const PERM: Errno = Errno(libc::EPERM);
    pub const RANGE: Errno = Errno(libc::ERANGE);
    pub const STALE: Errno = Errno(libc::ESTALE);
}

impl From<&Error> for Errno {
    fn from(error: &Error) -> Errno {
        Errno(match error.kind() {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Exists => libc::EEXIST,
            ErrorKind::NotDirectory => libc::ENOTDIR,
            ErrorKind::IsDirectory => libc::EISDIR,
            ErrorKind::NotEmpty => libc::ENOTEMPTY,
            ErrorKind::NameTooLong => libc::ENAMETOOLONG,
            ErrorKind::Access => libc::EACCES,
            ErrorKind::Permission => libc::EPERM,
            ErrorKind::TooManyLinks => libc::EMLINK,
            ErrorKind::InvalidArgument => libc::EINVAL,
            ErrorKind::NoAttribute => libc::ENODATA,
            ErrorKind::Range => libc::ERANGE,
            ErrorKind::AttributeTooBig => libc::E2BIG,
            ErrorKind::Stale => libc::ESTALE,
            ErrorKind::FileTooBig => libc::EFBIG,
            ErrorKind::BeyondEnd => libc::ENXIO,
            ErrorKind::NotSupported => libc::EOPNOTSUPP,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::OverQuota => libc::EDQUOT,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::NoMemory => libc::ENOMEM,
            ErrorKind::Corrupt | ErrorKind::Device | ErrorKind::Internal => libc::EIO,
        })
    }
}
