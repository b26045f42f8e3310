//! Talking to a running mount: what FUSE has no request for, as ioctls on a directory of the mount.
//!
//! The kernel passes neither sync(2) nor syncfs(2) to a FUSE file system (tested on Linux 6.18), so closing an epoch on
//! request needs a way of its own. The numbers and payloads are defined here once, for the server and for its clients.
//!
//! | ioctl | number | payload from the mount |
//! |---|---|---|
//! | [`HOLDFAST_IOC_SYNC`] | `_IOR('H', 1, u64)` | epoch of the recovery point that now has everything, native byte order |
//! | [`HOLDFAST_IOC_STATUS`] | `_IOR('H', 2, [u8; 16000])` | u32 length, native byte order; that many bytes of JSON; zeros |
//! | [`HOLDFAST_IOC_SCRUB`] | `_IOWR('H', 3, [u8; 16000])` | the same, both ways: a request, and the reply to it |
//! | [`HOLDFAST_IOC_SNAPSHOT`] | `_IOWR('H', 5, [u8; 16000])` | the same, both ways: a request about snapshots, and the reply to it |
//! | [`HOLDFAST_IOC_REMOUNT`] | `_IOWR('H', 7, [u8; 16000])` | the same, both ways: options of the mount, and whether it has them |
//! | [`HOLDFAST_IOC_TRIM`] | `_IOWR('H', 4, [u64; 3])` | where to begin, and two zeros; where the next step begins, the size of the store, and how much of the step is free and was discarded; in bytes, native byte order |
//! | [`FS_IOC_SHUTDOWN`] | `_IOR('X', 125, u32)` | zeros: the number that other file systems have for it |
//! | [`HOLDFAST_IOC_GROW`] | `_IOWR('H', 6, [u8; 16000])` | the same, both ways: how large the store is to be, and what it is |
//! | [`HOLDFAST_IOC_INJECT`] | `_IOWR('H', 8, [u8; 16000])` | the same, both ways: damage on purpose, and what it was; ENOTTY if the mount was not made for it |
//! | [`HOLDFAST_IOC_CHECK`] | `_IOWR('H', 9, [u8; 16000])` | the same, both ways: a request about a check, and the reply to it |
//!
//! The kernel carries at most 16,383 bytes in an ioctl of a FUSE file system, whence the size of those that carry JSON.

use holdfast_object::{Epoch, Result};
use rustix::fd::AsFd;
use rustix::ioctl::{Updater, ioctl, opcode};
use std::io;

/// Bytes that the reply to [`HOLDFAST_IOC_STATUS`] has.
pub const STATUS_BYTES: usize = 16_000;
const LENGTH_BYTES: usize = size_of::<u32>();
/// Most bytes of JSON that a status can have.
pub const STATUS_JSON_BYTES_MAX: usize = STATUS_BYTES - LENGTH_BYTES;

/// Closes the open epoch; answers when it is a recovery point.
pub const HOLDFAST_IOC_SYNC: u32 = opcode::read::<u64>(b'H', 1);
/// Asks for the state of the mount.
pub const HOLDFAST_IOC_STATUS: u32 = opcode::read::<[u8; STATUS_BYTES]>(b'H', 2);

/// Asks for a scrub, or about it.
pub const HOLDFAST_IOC_SCRUB: u32 = opcode::read_write::<[u8; STATUS_BYTES]>(b'H', 3);

/// Gives free space back to the host, in steps.
pub const HOLDFAST_IOC_TRIM: u32 = opcode::read_write::<[u64; 3]>(b'H', 4);

/// Makes, lists, deletes or compares snapshots.
pub const HOLDFAST_IOC_SNAPSHOT: u32 = opcode::read_write::<[u8; STATUS_BYTES]>(b'H', 5);

/// Stops the file system where it stands, as ext4, XFS and others do on this number. What is to be written before is said by the
/// caller behind a pointer that the kernel does not pass on for a number of this direction, so the name space always is.
pub const FS_IOC_SHUTDOWN: u32 = opcode::read::<u32>(b'X', 125);

/// Makes the store larger.
pub const HOLDFAST_IOC_GROW: u32 = opcode::read_write::<[u8; STATUS_BYTES]>(b'H', 6);

/// Changes options of the mount.
pub const HOLDFAST_IOC_REMOUNT: u32 = opcode::read_write::<[u8; STATUS_BYTES]>(b'H', 7);

/// Damages pages and blocks on purpose, in a mount made for it.
pub const HOLDFAST_IOC_INJECT: u32 = opcode::read_write::<[u8; STATUS_BYTES]>(b'H', 8);

/// Asks for a check, or about it.
pub const HOLDFAST_IOC_CHECK: u32 = opcode::read_write::<[u8; STATUS_BYTES]>(b'H', 9);

// _IOC of <asm-generic/ioctl.h>: direction (read is 2, write 1) << 30, size << 16, type << 8, number.
const _: () = assert!(HOLDFAST_IOC_SYNC == 2 << 30 | 8 << 16 | (b'H' as u32) << 8 | 1);
const _: () = assert!(HOLDFAST_IOC_STATUS == 2 << 30 | (STATUS_BYTES as u32) << 16 | (b'H' as u32) << 8 | 2);
const _: () = assert!(HOLDFAST_IOC_SCRUB == 3 << 30 | (STATUS_BYTES as u32) << 16 | (b'H' as u32) << 8 | 3);
const _: () = assert!(HOLDFAST_IOC_SNAPSHOT == 3 << 30 | (STATUS_BYTES as u32) << 16 | (b'H' as u32) << 8 | 5);
const _: () = assert!(HOLDFAST_IOC_GROW == 3 << 30 | (STATUS_BYTES as u32) << 16 | (b'H' as u32) << 8 | 6);
const _: () = assert!(HOLDFAST_IOC_REMOUNT == 3 << 30 | (STATUS_BYTES as u32) << 16 | (b'H' as u32) << 8 | 7);
const _: () = assert!(HOLDFAST_IOC_INJECT == 3 << 30 | (STATUS_BYTES as u32) << 16 | (b'H' as u32) << 8 | 8);
const _: () = assert!(HOLDFAST_IOC_CHECK == 3 << 30 | (STATUS_BYTES as u32) << 16 | (b'H' as u32) << 8 | 9);
const _: () = assert!(HOLDFAST_IOC_TRIM == 3 << 30 | 24 << 16 | (b'H' as u32) << 8 | 4);
// XFS_IOC_GOINGDOWN of <xfs/xfs_fs.h>.
const _: () = assert!(FS_IOC_SHUTDOWN == 0x8004_587d);

/// A step of a trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trimmed {
    /// Where the next step begins; not before the end of the store if this was the last one.
    pub next_bytes: u64,
    /// Of the store.
    pub size_bytes: u64,
    /// What the step found free.
    pub discarded_bytes: u64,
}

/// What whoever runs a mount does when asked by ioctl. Called from FUSE workers, from several at once.
pub trait Control: Send + Sync {
    /// Makes everything that was answered before the call durable. Gives the epoch of the recovery point that has it.
    ///
    /// # Errors
    /// Those of the store; [`holdfast_object::Error::ReadOnly`] once a device has failed; that of the first page that went bad in memory
    /// since the last call, and so is not stored: everything else is.
    fn sync(&self) -> Result<Epoch>;

    /// The state of the mount as one JSON object of at most [`STATUS_JSON_BYTES_MAX`] bytes.
    fn status_json(&self) -> Vec<u8>;

    /// Does what a JSON object asks about scrubbing; answers with another one of at most [`STATUS_JSON_BYTES_MAX`] bytes.
    fn scrub_json(&self, request: &[u8]) -> Vec<u8>;

    /// Does what a JSON object of the user `uid` asks about a check; answers with another one of at most [`STATUS_JSON_BYTES_MAX`] bytes.
    fn check_json(&self, uid: u32, request: &[u8]) -> Vec<u8>;

    /// Does what a JSON object of the user `uid` asks about snapshots; answers with another one of at most
    /// [`STATUS_JSON_BYTES_MAX`] bytes.
    fn snapshot_json(&self, uid: u32, request: &[u8]) -> Vec<u8>;

    /// Makes the store larger as a JSON object of the user `uid` asks; answers with another one of at most
    /// [`STATUS_JSON_BYTES_MAX`] bytes.
    fn grow_json(&self, uid: u32, request: &[u8]) -> Vec<u8>;

    /// Gives the mount the options that a JSON object of the user `uid` has; answers with another one of at most
    /// [`STATUS_JSON_BYTES_MAX`] bytes.
    fn remount_json(&self, uid: u32, request: &[u8]) -> Vec<u8>;

    /// Damages what a JSON object of the user `uid` says; answers with another one of at most [`STATUS_JSON_BYTES_MAX`] bytes. `None` for a
    /// mount that was not made for it.
    fn inject_json(&self, uid: u32, request: &[u8]) -> Option<Vec<u8>> {
        let _ = (uid, request);
        None
    }

    /// Tells the device what is free in some part of the store from a place on, in a file also if it was allocated in full. At 0, everything
    /// is written first.
    ///
    /// # Errors
    /// Those of the store.
    fn trim(&self, from_bytes: u64) -> Result<Trimmed>;

    /// For the user `uid`: logs the names, then stops: nothing is written any more, and [`Control::is_down`] from then on.
    /// False if this user may not.
    ///
    /// # Errors
    /// Those of the store, which then has stopped all the same.
    fn shut_down(&self, uid: u32) -> Result<bool>;

    /// Whether it has been stopped: nothing but status is answered any more.
    fn is_down(&self) -> bool;
}

/// Why a control ioctl has no reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The payload is not what the number says: the caller's mistake, and nothing of the store's.
    Malformed,
    /// What was asked for failed.
    Failed(holdfast_object::Error),
}

impl From<holdfast_object::Error> for Refused {
    fn from(error: holdfast_object::Error) -> Refused {
        Refused::Failed(error)
    }
}

/// The reply to a control ioctl of the user `uid` with this payload, or `None` if `command` is none of ours (ENOTTY).
///
/// # Errors
/// Those of [`Control::sync`], [`Control::trim`]; [`Refused::Malformed`] for a payload without a request.
pub fn answer(
    control: &dyn Control,
    uid: u32,
    command: u32,
    payload: &[u8],
) -> Option<std::result::Result<Vec<u8>, Refused>> {
    let asked = |reply: &dyn Fn(&[u8]) -> Option<Vec<u8>>| match unpack_status(payload) {
        Ok(request) => reply(&request).map(|reply| Ok(pack_status(&reply))),
        Err(error) => {
            tracing::debug!(%error, command, "a control ioctl makes no sense");
            Some(Err(Refused::Malformed))
        }
    };
    match command {
        HOLDFAST_IOC_SYNC => Some(control.sync().map(|epoch| epoch.to_ne_bytes().to_vec()).map_err(Refused::from)),
        HOLDFAST_IOC_STATUS => Some(Ok(pack_status(&control.status_json()))),
        HOLDFAST_IOC_TRIM => Some(match payload.first_chunk() {
            None => Err(Refused::Malformed),
            Some(from) => control.trim(u64::from_ne_bytes(*from)).map_err(Refused::from).map(|trimmed| {
                let Trimmed { next_bytes, size_bytes, discarded_bytes } = trimmed;
                [next_bytes, size_bytes, discarded_bytes].map(u64::to_ne_bytes).concat()
            }),
        }),
        HOLDFAST_IOC_SCRUB => asked(&|request| Some(control.scrub_json(request))),
        HOLDFAST_IOC_CHECK => asked(&|request| Some(control.check_json(uid, request))),
        HOLDFAST_IOC_SNAPSHOT => asked(&|request| Some(control.snapshot_json(uid, request))),
        HOLDFAST_IOC_GROW => asked(&|request| Some(control.grow_json(uid, request))),
        HOLDFAST_IOC_REMOUNT => asked(&|request| Some(control.remount_json(uid, request))),
        HOLDFAST_IOC_INJECT => asked(&|request| control.inject_json(uid, request)),
        _ => None,
    }
}

/// A status too long to be carried is answered with an empty one; the client says that it could not be had.
fn pack_status(json: &[u8]) -> Vec<u8> {
    let json = if json.len() <= STATUS_JSON_BYTES_MAX { json } else { &[] };
    let mut reply = vec![0; STATUS_BYTES];
    reply[..LENGTH_BYTES].copy_from_slice(&(json.len() as u32).to_ne_bytes());
    reply[LENGTH_BYTES..][..json.len()].copy_from_slice(json);
    reply
}

fn unpack_status(reply: &[u8]) -> io::Result<Vec<u8>> {
    let (length, rest) = reply.split_first_chunk::<LENGTH_BYTES>().ok_or_else(not_ours)?;
    let length = usize::try_from(u32::from_ne_bytes(*length)).unwrap_or(usize::MAX);
    match rest.get(..length) {
        Some(json) if length > 0 => Ok(json.to_vec()),
        _ => Err(not_ours()),
    }
}

fn not_ours() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the mount gave no answer that makes sense")
}

/// Asks the mount that `directory` is in to close its epoch, after the kernel has handed down what it has kept. Gives the epoch
/// of the recovery point.
///
/// # Errors
/// The mount's, as the kernel passes them on: ENOTTY if it is not one of Holdfast's, EROFS if it takes no changes any
/// more, ENOTCONN if nobody serves it. EIO, once: pages that were written went bad in memory before they were stored, and everything
/// else is durable. Where the kernel could not hand down what it had: why, ENOSPC for example; what it could is durable.
pub fn sync(directory: impl AsFd) -> io::Result<Epoch> {
    // No request comes of this itself, but the writes of what the kernel holds do.
    let handed_down = hand_down(&directory);
    let mut epoch: u64 = 0;
    // SAFETY: the number says that a u64 is written, and `epoch` is one; a shorter reply leaves the rest of it zero.
    unsafe { ioctl(directory, Updater::<HOLDFAST_IOC_SYNC, u64>::new(&mut epoch)) }?;
    handed_down?;
    // The first epoch is 1.
    if epoch == 0 { Err(not_ours()) } else { Ok(epoch) }
}

/// Whether a mount answered EIO.
pub fn is_io_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

/// Asks the mount that `directory` is in to give free space back to its host: one step, from a place on.
///
/// # Errors
/// As for [`sync`].
pub fn trim(directory: impl AsFd, from_bytes: u64) -> io::Result<Trimmed> {
    let mut payload = [from_bytes, 0, 0];
    // SAFETY: the number says that three u64 are read and written, and `payload` has as many; a shorter reply leaves the rest of it as it is.
    unsafe { ioctl(directory, Updater::<HOLDFAST_IOC_TRIM, [u64; 3]>::new(&mut payload)) }?;
    let [next_bytes, size_bytes, discarded_bytes] = payload;
    // Each step gets on, so there is an end.
    if next_bytes <= from_bytes { Err(not_ours()) } else { Ok(Trimmed { next_bytes, size_bytes, discarded_bytes }) }
}

/// Stops the mount that `directory` is in where it stands.
///
/// # Errors
/// As for [`sync`]; EPERM for users other than root and who mounted.
pub fn shut_down(directory: impl AsFd) -> io::Result<()> {
    let mut reply: u32 = 0;
    // SAFETY: the number says that a u32 is written, and `reply` is one.
    unsafe { ioctl(directory, Updater::<FS_IOC_SHUTDOWN, u32>::new(&mut reply)) }?;
    Ok(())
}

/// Asks the mount that `directory` is in for its state, a JSON object.
///
/// # Errors
/// As for [`sync`].
pub fn status_json(directory: impl AsFd) -> io::Result<Vec<u8>> {
    let mut reply = [0; STATUS_BYTES];
    // SAFETY: the number says that so many bytes are written, and `reply` has as many.
    unsafe { ioctl(directory, Updater::<HOLDFAST_IOC_STATUS, [u8; STATUS_BYTES]>::new(&mut reply)) }?;
    unpack_status(&reply)
}

/// Asks the mount that `directory` is in for a scrub, or about it. Request and reply are JSON objects.
///
/// # Errors
/// As for [`sync`]; InvalidInput if the request has more than [`STATUS_JSON_BYTES_MAX`] bytes.
pub fn scrub(directory: impl AsFd, request: &[u8]) -> io::Result<Vec<u8>> {
    exchange::<HOLDFAST_IOC_SCRUB>(directory, request)
}

/// Asks the mount that `directory` is in for a check, or about it. Request and reply are JSON objects.
///
/// # Errors
/// As for [`scrub`].
pub fn check(directory: impl AsFd, request: &[u8]) -> io::Result<Vec<u8>> {
    exchange::<HOLDFAST_IOC_CHECK>(directory, request)
}

/// Has the kernel hand down what it has kept of the mount that `directory` is in.
///
/// # Errors
/// Why it could not hand down all of it, at any time until now; told once.
pub fn hand_down(directory: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::syncfs(directory)?)
}

/// Asks the mount that `directory` is in about snapshots. Request and reply are JSON objects.
///
/// # Errors
/// As for [`scrub`].
pub fn snapshot(directory: impl AsFd, request: &[u8]) -> io::Result<Vec<u8>> {
    exchange::<HOLDFAST_IOC_SNAPSHOT>(directory, request)
}

/// Asks the mount that `directory` is in to make its store larger. Request and reply are JSON objects.
///
/// # Errors
/// As for [`scrub`].
pub fn grow(directory: impl AsFd, request: &[u8]) -> io::Result<Vec<u8>> {
    exchange::<HOLDFAST_IOC_GROW>(directory, request)
}

/// Gives the mount that `directory` is in other options. Request and reply are JSON objects.
///
/// # Errors
/// As for [`scrub`].
pub fn remount(directory: impl AsFd, request: &[u8]) -> io::Result<Vec<u8>> {
    exchange::<HOLDFAST_IOC_REMOUNT>(directory, request)
}

/// Asks the mount that `directory` is in to damage something, after the kernel has handed down what it has kept. Request and reply are JSON
/// objects. `None`: it was not made for it.
///
/// # Errors
/// As for [`scrub`].
pub fn inject(directory: impl AsFd, request: &[u8]) -> io::Result<Option<Vec<u8>>> {
    hand_down(&directory)?;
    match exchange::<HOLDFAST_IOC_INJECT>(directory, request) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => Ok(None),
        reply => reply.map(Some),
    }
}

fn exchange<const COMMAND: u32>(directory: impl AsFd, request: &[u8]) -> io::Result<Vec<u8>> {
    if request.len() > STATUS_JSON_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut payload: [u8; STATUS_BYTES] = pack_status(request).try_into().map_err(|_| not_ours())?;
    // SAFETY: the numbers that this is for say that so many bytes are read and written, and `payload` has as many.
    unsafe { ioctl(directory, Updater::<COMMAND, [u8; STATUS_BYTES]>::new(&mut payload)) }?;
    unpack_status(&payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::Error;

    struct Fixed(Result<Epoch>, Vec<u8>);

    impl Control for Fixed {
        fn sync(&self) -> Result<Epoch> {
            self.0.clone()
        }

        fn status_json(&self) -> Vec<u8> {
            self.1.clone()
        }

        fn scrub_json(&self, request: &[u8]) -> Vec<u8> {
            request.iter().rev().copied().collect()
        }

        fn check_json(&self, uid: u32, request: &[u8]) -> Vec<u8> {
            [&[uid as u8], request].concat()
        }

        fn snapshot_json(&self, uid: u32, request: &[u8]) -> Vec<u8> {
            [&[uid as u8], request].concat()
        }

        fn grow_json(&self, uid: u32, request: &[u8]) -> Vec<u8> {
            [request, &[uid as u8]].concat()
        }

        fn remount_json(&self, uid: u32, request: &[u8]) -> Vec<u8> {
            [request, &[uid as u8]].concat()
        }

        fn trim(&self, from_bytes: u64) -> Result<Trimmed> {
            self.0.clone().map(|size_bytes| Trimmed { next_bytes: from_bytes + 1, size_bytes, discarded_bytes: 1 })
        }

        fn shut_down(&self, uid: u32) -> Result<bool> {
            Ok(uid == 0)
        }

        fn is_down(&self) -> bool {
            false
        }
    }

    #[test]
    fn replies_have_the_size_that_the_number_says() {
        let control = Fixed(Ok(7), b"{\"epoch\":7}".to_vec());
        assert_eq!(answer(&control, 0, HOLDFAST_IOC_SYNC, &[]).unwrap().unwrap(), 7u64.to_ne_bytes());
        let reply = answer(&control, 0, HOLDFAST_IOC_STATUS, &[]).unwrap().unwrap();
        assert_eq!(reply.len(), STATUS_BYTES);
        assert_eq!(unpack_status(&reply).unwrap(), b"{\"epoch\":7}");
        let step = [3u64, 0, 0].map(u64::to_ne_bytes).concat();
        let trimmed = answer(&control, 0, HOLDFAST_IOC_TRIM, &step).unwrap().unwrap();
        assert_eq!(trimmed, [4u64, 7, 1].map(u64::to_ne_bytes).concat());
        assert!(answer(&control, 0, HOLDFAST_IOC_TRIM + 1, &[]).is_none());
        assert!(answer(&control, 0, HOLDFAST_IOC_INJECT, &pack_status(b"{}")).is_none(), "off unless it is asked for");
    }

    #[test]
    fn a_request_has_its_bytes_and_a_bad_one_is_an_error() {
        let control = Fixed(Ok(7), Vec::new());
        let reply = answer(&control, 0, HOLDFAST_IOC_SCRUB, &pack_status(b"abc")).unwrap().unwrap();
        assert_eq!(unpack_status(&reply).unwrap(), b"cba");
        let reply = answer(&control, 8, HOLDFAST_IOC_CHECK, &pack_status(b"abc")).unwrap().unwrap();
        assert_eq!(unpack_status(&reply).unwrap(), b"\x08abc");
        let reply = answer(&control, 9, HOLDFAST_IOC_SNAPSHOT, &pack_status(b"abc")).unwrap().unwrap();
        assert_eq!(unpack_status(&reply).unwrap(), b"\x09abc");
        let reply = answer(&control, 9, HOLDFAST_IOC_GROW, &pack_status(b"abc")).unwrap().unwrap();
        assert_eq!(unpack_status(&reply).unwrap(), b"abc\x09");
        let reply = answer(&control, 9, HOLDFAST_IOC_REMOUNT, &pack_status(b"abc")).unwrap().unwrap();
        assert_eq!(unpack_status(&reply).unwrap(), b"abc\x09");
        assert_eq!(answer(&control, 0, HOLDFAST_IOC_SCRUB, b"ab"), Some(Err(Refused::Malformed)));
        assert_eq!(answer(&control, 0, HOLDFAST_IOC_TRIM, b"ab"), Some(Err(Refused::Malformed)));
        assert!(scrub(std::fs::File::open("/").unwrap(), &[0; STATUS_BYTES]).is_err());
    }

    #[test]
    fn errors_pass_through() {
        let error = Error::ReadOnly("device gone".into());
        let control = Fixed(Err(error.clone()), Vec::new());
        assert_eq!(answer(&control, 0, HOLDFAST_IOC_SYNC, &[]), Some(Err(Refused::Failed(error))));
    }

    #[test]
    fn a_status_fits_exactly_or_is_left_out() {
        let longest = vec![b'x'; STATUS_JSON_BYTES_MAX];
        assert_eq!(unpack_status(&pack_status(&longest)).unwrap(), longest);
        let over = vec![b'x'; STATUS_JSON_BYTES_MAX + 1];
        assert!(unpack_status(&pack_status(&over)).is_err());
    }

    #[test]
    fn foreign_replies_are_errors() {
        assert!(unpack_status(&[]).is_err());
        assert!(unpack_status(&[1, 0]).is_err());
        assert!(unpack_status(&u32::MAX.to_ne_bytes()).is_err());
        assert!(unpack_status(&[0; STATUS_BYTES]).is_err());
    }

    #[test]
    fn what_is_no_mount_of_ours_says_so() {
        let directory = std::fs::File::open("/").unwrap();
        assert!(sync(&directory).is_err());
        assert!(status_json(&directory).is_err());
    }
}
