//! Memory that is locked against stray writes.
//!
//! What lies in a [`Region`] can be read at any time and written only inside a window, which the code that is meant to
//! change it opens for a batch of changes ([`open`]). A write from anywhere else (a pointer gone astray, a buffer overrun, a use after
//! free) faults in the culprit's own instruction, instead of being found later or never. After the WAFL file system, which
//! locks its metadata pages so (Kumar et al., "High-Performance Metadata Integrity Protection in the WAFL Copy-on-Write
//! File System", FAST '17).
//!
//! ```
//! use holdfast_guard::{Protect, Region, install, open};
//!
//! // Once, before other threads and before the first region; `Off` where the machine has no protection keys.
//! let how = if install(Protect::Keys).is_ok() { Protect::Keys } else { Protect::Off };
//! let region = Region::new("metadata", 2 << 20)?;
//! let block = region.as_ptr();
//! open(|| {
//!     // SAFETY: the region is that long, nobody else uses it, and this thread has a window open.
//!     unsafe { block.write_bytes(7, 4096) };
//! });
//! // SAFETY: as above; reading needs no window.
//! assert_eq!(unsafe { block.read() }, 7);
//! assert_eq!(region.admits_writes(), how == Protect::Off);
//! # Ok::<(), holdfast_guard::RegionError>(())
//! ```
//!
//! # Rights belong to threads
//!
//! With [`Protect::Keys`] a window is open for the thread that opened it and for no other:
//!
//! - A new thread starts with its creator's rights of that moment. Created outside a window, it can read; created inside one it
//!   could write until it is admitted, so create threads outside, or in [`closed`].
//! - A thread older than [`install`] can neither read nor write until it calls [`admit_thread`], which every entry
//!   point of code that reads regions does: 1 or 2 ns when there is nothing to do. [`open`] needs no admission.
//! - A signal handler has no access to any region, neither read nor write, whatever the thread it interrupts has.
//! - A system call writes into user memory with the rights of its thread: `read` into a region outside a window, and direct
//!   I/O into it, answer EFAULT. A worker of io_uring has the rights that its creator had when it made the worker.
//!
//! # What gets through
//!
//! The key is checked for the accesses of programs by virtual address. These pass: `/proc/self/mem`, `process_vm_writev`, reads of
//! io_uring into registered buffers, `madvise(MADV_DONTNEED)`, another mapping of the same memory without the key, the hardware, and
//! the thread that has a window open, wherever in whatever region it writes. So windows are short, and [`closed`] for foreign code
//! and device I/O; checksums see what passes.

mod fault;
mod keys;
mod memory;
mod region;
mod signal_stack;
mod window;

pub use fault::{Access, Fault, report_faults, tell};
pub use region::{Place, Region, RegionError, place_of};
pub use window::{admit_thread, closed, is_open, open};

use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

/// How regions are locked, for the whole process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Protect {
    /// Not at all: windows are only counted.
    Off = 0,
    /// With a memory protection key (PKU, x86-64): a window takes some 45 ns and belongs to its thread. For production.
    Keys = 1,
    /// With mprotect, for diagnosis where there are no keys: a window takes microseconds, more with the number of regions and threads,
    /// and is open to all threads while any has one open.
    Pages = 2,
}

impl fmt::Display for Protect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protect::Off => "off",
            Protect::Keys => "keys",
            Protect::Pages => "pages",
        })
    }
}

/// Why memory cannot be protected in the way asked for.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// Protection keys are used on x86-64 only.
    #[error("memory protection keys are supported on x86-64 only")]
    Architecture,
    /// The processor (or what a virtual machine shows of it) has none.
    #[error("this CPU has no memory protection keys (no \"pku\" in /proc/cpuinfo)")]
    Cpu,
    /// The processor has them, and the kernel does not use them.
    #[error(
        "the kernel has memory protection keys switched off (no \"ospke\" in /proc/cpuinfo; started with \"nopku\"?)"
    )]
    Kernel,
    /// A process has 15, and other code in this one has taken all.
    #[error("all memory protection keys of this process are taken")]
    NoKeyLeft,
    /// A system call that should have worked did not; a filter of system calls (seccomp) is the usual reason.
    #[error("{call}: {source}")]
    System {
        /// Which call.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
    /// A page with the key could be written to in spite of it, or not inside a window: an emulator that only pretends to have keys.
    #[error("memory protection keys do not protect here: a write into a locked page {0}")]
    NotEnforced(&'static str),
    /// The process is protected in another way already, for as long as it lives.
    #[error("memory is protected already, in the way \"{0}\"")]
    Installed(Protect),
    /// Regions made before would stay open.
    #[error("protection of memory must be chosen before the first memory is to be protected")]
    RegionsExist,
}

static PROTECT: AtomicU8 = AtomicU8::new(Protect::Off as u8);

/// Held while the way of protection, the list of regions or the rights of pages (as opposed to those of threads) change.
static CHANGING: Mutex<window::OpenWindows> = Mutex::new(window::OpenWindows { count: 0 });

/// The way in which the regions of this process are locked.
#[inline]
pub fn protect() -> Protect {
    match PROTECT.load(Ordering::Acquire) {
        1 => Protect::Keys,
        2 => Protect::Pages,
        _ => Protect::Off,
    }
}

/// Chooses how regions are locked: once in the life of a process, before the first region, and best before other threads, for
/// those that exist must call [`admit_thread`]. A library leaves that to its program: without this call nothing is locked.
/// A window that another thread has open at that moment lifts nothing and is as if closed; a new one inside it opens.
///
/// With keys, one key is allocated, and a page is tried: the kernel must refuse to write into it outside a window, and agree inside.
///
/// # Errors
/// That way is not available here, and why; nothing has changed then. Choosing the same once more is none.
///
/// # Panics
/// This thread has a window open.
pub fn install(how: Protect) -> Result<(), Unavailable> {
    assert!(!is_open(), "the way of protection changes inside a window");
    let _changing = CHANGING.lock();
    let now = protect();
    if now == how {
        return Ok(());
    }
    if now != Protect::Off {
        return Err(Unavailable::Installed(now));
    }
    if region::any() {
        return Err(Unavailable::RegionsExist);
    }
    if how == Protect::Keys {
        keys::install()?;
    }
    PROTECT.store(how as u8, Ordering::Release);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The unit tests share a process, in which nothing is ever installed: what has consequences runs in `tests/it/`, in children.
    #[test]
    fn without_protection_windows_are_only_counted() {
        assert_eq!(protect(), Protect::Off);
        let region = Region::new("test", 1).unwrap();
        assert!(region.admits_writes());
        assert!(!is_open());
        open(|| {
            open(|| assert!(is_open()));
            assert!(is_open(), "the outermost one counts");
            closed(|| {
                assert!(!is_open());
                open(|| assert!(is_open()));
                assert!(!is_open());
            });
            assert!(is_open());
        });
        assert!(!is_open());
        assert!(matches!(install(Protect::Pages), Err(Unavailable::RegionsExist)));
        assert!(install(Protect::Off).is_ok());
    }

    #[test]
    fn a_window_closes_when_its_batch_panics() {
        let batch = std::panic::catch_unwind(|| open(|| closed(|| panic!("planted"))));
        assert!(batch.is_err());
        assert!(!is_open());
    }
}
