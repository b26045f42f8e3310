//! INIT: what kernel and daemon agree on when a file system is mounted.
//!
//! The agreement outlives the process that made it ([`Negotiated`] is plain data): a new process that takes over the
//! descriptor is not asked again.

use crate::abi::{InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, init_flags as flag};
use serde::{Deserialize, Serialize};

/// Largest write in bytes, and with it the receive buffer. 256 pages are the kernel's default limit.
pub const WRITE_BYTES_MAX: u32 = 1 << 20;
const PAGES_MAX: u16 = 256;

/// What we make use of where the kernel offers it.
///
/// The kernel checks access by mode and access control list (POSIX_ACL implies `default_permissions`); naming keeps the lists,
/// lets new objects inherit them, and so has to see the umask (DONT_MASK), which a default list takes the place of.
///
/// Not taken: locks (they stay in the kernel), the atomic O_TRUNC (a separate SETATTR says whether setuid is to be cleared),
/// splice. The writeback cache only where it is asked for ([`Caching::Kernel`]).
const WANTED: u64 = flag::ASYNC_READ
    | flag::EXPORT_SUPPORT
    | flag::BIG_WRITES
    | flag::DONT_MASK
    | flag::HAS_IOCTL_DIR
    | flag::DO_READDIRPLUS
    | flag::READDIRPLUS_AUTO
    | flag::ASYNC_DIO
    | flag::PARALLEL_DIROPS
    | flag::POSIX_ACL
    | flag::ABORT_ERROR
    | flag::MAX_PAGES
    | flag::CACHE_SYMLINKS
    | flag::HANDLE_KILLPRIV_V2
    | flag::SETXATTR_EXT
    | flag::INIT_EXT
    | flag::CREATE_SUPP_GROUP
    | flag::DIRECT_IO_ALLOW_MMAP
    | flag::HAS_RESEND;

/// Who keeps the pages of files for applications.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Caching {
    /// The daemon alone: every read and write of an application is a request, and every byte is verified on its way. Only
    /// pages that are mapped are the kernel's.
    #[default]
    Direct,
    /// The kernel: it answers reads of what it has, keeps written pages for a while and hands them down later, and is then the
    /// owner of a file's size and times.
    Kernel,
}

/// What was agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Negotiated {
    /// Minor version of the kernel's protocol.
    pub minor: u32,
    /// Flags of [`crate::abi::init_flags`] that both know.
    pub flags: u64,
    /// Largest write in bytes.
    pub write_bytes_max: u32,
}

impl Negotiated {
    /// Who keeps the pages of files.
    pub fn caching(&self) -> Caching {
        if self.flags & flag::WRITEBACK_CACHE != 0 { Caching::Kernel } else { Caching::Direct }
    }
}

/// The kernel speaks a protocol that is too old or too new.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the kernel speaks FUSE {major}.{minor}; 7.{MINOR_MIN} or newer is needed (Linux 5.4)")]
pub struct Unsupported {
    /// Its major version.
    pub major: u32,
    /// Its minor version.
    pub minor: u32,
}

/// Answers the kernel's offer.
pub fn negotiate(offer: &InitIn, caching: Caching) -> Result<(Negotiated, InitOut), Unsupported> {
    if offer.major != MAJOR || offer.minor < MINOR_MIN {
        return Err(Unsupported { major: offer.major, minor: offer.minor });
    }
    let extended = u64::from(offer.flags) & flag::INIT_EXT != 0;
    let offered = u64::from(offer.flags) | if extended { u64::from(offer.flags2) << 32 } else { 0 };
    let wanted = match caching {
        Caching::Direct => WANTED,
        Caching::Kernel => WANTED | flag::WRITEBACK_CACHE,
    };
    let flags = offered & wanted;
    let agreed = Negotiated { minor: offer.minor.min(MINOR), flags, write_bytes_max: WRITE_BYTES_MAX };
    let answer = InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: offer.max_readahead,
        flags: flags as u32,
        max_background: 64,
        congestion_threshold: 48,
        max_write: WRITE_BYTES_MAX,
        time_gran: 1,
        max_pages: PAGES_MAX,
        map_alignment: 0,
        flags2: (flags >> 32) as u32,
        ..InitOut::default()
    };
    Ok((agreed, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_both_know_is_agreed() {
        let offer = InitIn { major: 7, minor: 45, flags: u32::MAX, flags2: u32::MAX, ..InitIn::default() };
        let (agreed, answer) = negotiate(&offer, Caching::Direct).unwrap();
        assert_eq!(agreed.flags, WANTED);
        assert_eq!(u64::from(answer.flags) | u64::from(answer.flags2) << 32, WANTED);
        assert_eq!(agreed.caching(), Caching::Direct);
        let (agreed, answer) = negotiate(&offer, Caching::Kernel).unwrap();
        assert_eq!((agreed.flags, agreed.caching()), (WANTED | flag::WRITEBACK_CACHE, Caching::Kernel));
        assert_eq!(u64::from(answer.flags) & flag::WRITEBACK_CACHE, flag::WRITEBACK_CACHE);
        let old = InitIn { flags: flag::BIG_WRITES as u32, flags2: u32::MAX, minor: 35, ..offer };
        assert_eq!(
            negotiate(&old, Caching::Kernel).unwrap().0.flags,
            flag::BIG_WRITES,
            "the second half counts only with INIT_EXT"
        );
    }

    #[test]
    fn other_protocols_are_refused() {
        let offer = |major, minor| InitIn { major, minor, ..InitIn::default() };
        assert!(negotiate(&offer(7, 30), Caching::Direct).is_err());
        assert!(negotiate(&offer(8, 0), Caching::Direct).is_err());
    }
}
