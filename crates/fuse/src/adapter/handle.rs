//! What an open file's handle says: the flags of its open, and a number that tells it from others. It stays right in another process;
//! what is kept beside it is only what it has been told of (`told.rs`).

use crate::errno::Errno;
use holdfast_interface::Access;
use holdfast_object::Durability;

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const DATA_SYNC: u64 = 1 << 2;
const FULL_SYNC: u64 = 1 << 3;
const NO_ATIME: u64 = 1 << 4;
/// Bits for flags.
const FLAG_BITS: u32 = 8;

/// The flags of open(2) that the kernel does not send with an ioctl. A handle of 0, which a file has that was opened by
/// an older version, permits nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Handle(u64);

impl Handle {
    /// The upper bits of `number` are lost.
    pub(super) fn new(flags: u32, number: u64) -> Handle {
        let flags = flags as i32;
        let access = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        let has = |flag, bit| if flags & flag == flag { bit } else { 0 };
        let sync = has(libc::O_DSYNC, DATA_SYNC) | has(libc::O_SYNC, FULL_SYNC);
        Handle(number << FLAG_BITS | access | sync | has(libc::O_NOATIME, NO_ATIME))
    }

    /// As the kernel gives it back.
    pub(super) fn of_raw(raw: u64) -> Handle {
        Handle(raw)
    }

    pub(super) fn raw(self) -> u64 {
        self.0
    }

    pub(super) fn access(self) -> Access {
        Access { read: self.0 & READ != 0, write: self.0 & WRITE != 0 }
    }

    pub(super) fn may_read(self) -> Result<(), Errno> {
        if self.access().read { Ok(()) } else { Err(Errno::BADF) }
    }

    pub(super) fn may_write(self) -> Result<(), Errno> {
        if self.access().write { Ok(()) } else { Err(Errno::BADF) }
    }

    /// What the open asks every write to make durable before it is answered.
    pub(super) fn sync(self) -> Option<Durability> {
        let durability = if self.0 & FULL_SYNC != 0 { Durability::All } else { Durability::Data };
        (self.0 & DATA_SYNC != 0).then_some(durability)
    }

    pub(super) fn is_quiet(self) -> bool {
        self.0 & NO_ATIME != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_back() {
        let of = |flags: i32| Handle::of_raw(Handle::new(flags as u32, u64::MAX - 5).raw());
        assert_eq!(of(libc::O_RDONLY).access(), Access { read: true, write: false });
        assert_eq!(of(libc::O_WRONLY | libc::O_APPEND).access(), Access { read: false, write: true });
        assert_eq!(of(libc::O_RDWR).access(), Access { read: true, write: true });
        assert_eq!(of(libc::O_RDWR).sync(), None);
        assert_eq!(of(libc::O_DSYNC).sync(), Some(Durability::Data));
        assert_eq!(of(libc::O_SYNC).sync(), Some(Durability::All));
        assert!(of(libc::O_NOATIME).is_quiet() && !of(libc::O_SYNC).is_quiet());
        assert_ne!(Handle::new(2, 5), Handle::new(2, 6));
        assert_eq!(Handle::of_raw(0).may_read(), Err(Errno::BADF));
        assert_eq!(of(libc::O_RDONLY).may_write(), Err(Errno::BADF));
    }
}
