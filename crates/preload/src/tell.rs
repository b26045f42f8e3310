//! What is said on standard error: one line for a call that failed since bytes did not have their checksum, or for an fsync that failed.
//!
//! A program may have closed its standard error, and opened a file that got its number. So nothing is said unless descriptor 2 is what it was
//! when the program started.

use crate::{counters, sys};
use holdfast_client::{Error, Kind, Operation};
use holdfast_interface::run::{Counter, QUIET_VARIABLE};
use libc::c_int;
use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicU64, Ordering};

/// Device and inode of standard error; 0, 0: nothing is said.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

fn stderr() -> (u64, u64) {
    let is = |status: sys::Status| (u64::from(status.device.0) << 32 | u64::from(status.device.1), status.inode);
    sys::status(libc::STDERR_FILENO, sys::Age::Known).map_or((0, 0), is)
}

pub(crate) fn start() {
    if std::env::var_os(QUIET_VARIABLE).is_none() {
        let (device, inode) = stderr();
        DEVICE.store(device, Ordering::Relaxed);
        INODE.store(inode, Ordering::Relaxed);
    }
}

/// A transfer has failed, or a read has ended before bytes that are bad; says so if it was by such bytes. At once in the second case, too: to some
/// programs a short read is the end of the file. `is_taken`: all bytes of the write are in the file.
pub(crate) fn failed(fd: c_int, error: &Error, is_taken: bool) {
    let side = match error.kind {
        Kind::Memory => "in memory",
        Kind::Device => "on the device",
        _ => return,
    };
    counters::add(Counter::Bad, 1);
    say(|process| line(&program(), process, &path(fd), side, error, is_taken));
}

/// Most blocks that a line about fsync names.
pub(crate) const BLOCKS_MAX: usize = 32;

/// fsync or fdatasync has failed. Blocks that went bad in the mount's memory before they were stored are bytes that were bad; without any it is
/// something else, of which only the mount knows.
pub(crate) fn not_durable(fd: c_int, call: &str, blocks: &[u64]) {
    if !blocks.is_empty() {
        counters::add(Counter::Bad, 1);
    }
    say(|process| durability_line(&program(), process, &path(fd), call, blocks));
}

fn durability_line(program: &str, process: c_int, path: &str, call: &str, blocks: &[u64]) -> String {
    let start = format!("holdfast: {program} ({process}): {path}:");
    if blocks.is_empty() {
        return format!("{start} {call}: not all is on the device: the mount's log says why\n");
    }
    let named: Vec<String> = blocks.iter().take(BLOCKS_MAX).map(u64::to_string).collect();
    let more = if blocks.len() > BLOCKS_MAX { ", …" } else { "" };
    let named = named.join(", ");
    format!(
        "{start} bad bytes in memory: {call}: what was written is not stored: write it again (blocks [{named}{more}])\n"
    )
}

/// A file's mount does not offer the interface, or in another version only: said once in all programs, where it is counted.
pub(crate) fn refused(fd: c_int, is_other_version: bool) {
    counters::add(Counter::LeftAlone, 1);
    if counters::counted(Counter::Refused, 1) == Some(0) {
        say(|process| {
            format!(
                "holdfast: {} ({process}): {}: nothing is verified: {}\n",
                program(),
                path(fd),
                why(is_other_version)
            )
        });
    }
}

fn why(is_other_version: bool) -> String {
    let text = if is_other_version { OTHER_VERSION } else { "" };
    // It has words of its own, and needs none of the system's.
    Error::from_errno(Operation::Read, 0, libc::EOPNOTSUPP, text).words().into_owned()
}

const OTHER_VERSION: &str = "the file's mount and this library speak different versions of the interface for checksums";

/// Given the number of this process.
fn say(line: impl FnOnce(c_int) -> String) {
    let (device, inode) = (DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed));
    if (device, inode) != (0, 0) && stderr() == (device, inode) {
        // SAFETY: no memory is passed.
        let process = unsafe { libc::getpid() };
        sys::say(libc::STDERR_FILENO, line(process).as_bytes());
    }
}

fn line(program: &str, process: c_int, path: &str, side: &str, error: &Error, is_taken: bool) -> String {
    // A synchronous write is told of what of the file is not on the disk, which need not be its own: to repeat it may append it twice.
    let taken = if is_taken { "; the bytes of this write are in the file" } else { "" };
    // Without the words of the system's, which may be asked for by nobody who may be in a signal handler: these errors have their own.
    format!("holdfast: {program} ({process}): {path}: bad bytes {side}: {error}{taken}\n")
}

fn program() -> String {
    unsafe extern "C" {
        /// glibc's; the last part of argv[0].
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: glibc sets it before any library starts; a program that changes it gives it another string.
    let name = unsafe { program_invocation_short_name };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: as above.
    plain(unsafe { CStr::from_ptr(name) }.to_bytes())
}

fn path(fd: c_int) -> String {
    let mut target = vec![0; libc::PATH_MAX as usize];
    let link = CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let length = sys::link(&link, &mut target);
    if length == 0 { format!("descriptor {fd}") } else { plain(&target[..length]) }
}

/// In one line.
fn plain(name: &[u8]) -> String {
    let escape =
        |letter: char| if letter.is_control() { letter.escape_default().collect() } else { String::from(letter) };
    String::from_utf8_lossy(name).chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_why() {
        assert!(why(false).contains("cache=kernel") && !why(false).contains("version"), "{}", why(false));
        assert!(why(true).contains("different versions") && !why(true).contains("cache=kernel"), "{}", why(true));
    }

    #[test]
    fn a_line_says_it_all() {
        let mut error = Error::from_errno(Operation::Read, 12_288, libc::EIO, "it is bad");
        error.blocks = vec![3];
        assert_eq!(
            line("cp", 12, &plain(b"/m/a\nb"), "in memory", &error, false),
            "holdfast: cp (12): /m/a\\nb: bad bytes in memory: read at byte 12288: it is bad (blocks [3])\n"
        );
        assert_eq!(
            line("dd", 12, "/m/a", "in memory", &error, true),
            "holdfast: dd (12): /m/a: bad bytes in memory: read at byte 12288: it is bad (blocks [3]); the bytes of this write are in the file\n"
        );
        let durability = |blocks: &[u64]| durability_line("cp", 12, "/m/a", "fsync", blocks);
        assert_eq!(
            durability(&[3, 5]),
            "holdfast: cp (12): /m/a: bad bytes in memory: fsync: what was written is not stored: write it again (blocks [3, 5])\n"
        );
        assert_eq!(
            durability(&[]),
            "holdfast: cp (12): /m/a: fsync: not all is on the device: the mount's log says why\n"
        );
        assert!(durability(&[7; BLOCKS_MAX]).ends_with("7, 7])\n"));
        assert!(durability(&[7; BLOCKS_MAX + 1]).ends_with("7, 7, …])\n"), "there are more");
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(path(std::os::fd::AsRawFd::as_raw_fd(&file)).contains(&program()), "{}", program());
        assert_eq!(path(-1), "descriptor -1");
    }
}
