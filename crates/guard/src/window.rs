//! Windows of a thread, and the rights a thread has outside them.
//!
//! Invariant of an admitted thread: it can write into regions exactly while its `DEPTH` is above 0.

use crate::keys::{self, Rights};
use crate::{CHANGING, Protect, fault, protect, region};
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// Windows that this thread has open. Constant and without a destructor, so that reading it is one load at any time.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// What `CHANGING` protects besides the list of regions.
pub(crate) struct OpenWindows {
    /// Threads with a window open, with [`Protect::Pages`]. The pages can be written while it is above 0.
    pub(crate) count: usize,
}

/// While it lives, its thread can write into all regions. Opened for a batch of changes: opening and closing takes some 45 ns.
///
/// Windows nest, and the last one to go closes: a function that needs one opens it, and costs next to nothing where its caller has.
/// It cannot go to another thread. Leaked, it leaves its thread unprotected.
#[must_use = "it is closed again when dropped"]
pub struct Window {
    of_this_thread: PhantomData<*const ()>,
}

/// Opens a window for this thread. Not in signal handlers, which may have interrupted a window's opening.
///
/// # Panics
/// With [`Protect::Pages`], when the system cannot change the rights of the pages.
#[inline]
pub fn open() -> Window {
    DEPTH.with(|depth| {
        let before = depth.get();
        if before == 0 {
            set_rights(Rights::Write);
        }
        depth.set(before + 1);
    });
    Window { of_this_thread: PhantomData }
}

impl Drop for Window {
    #[inline]
    fn drop(&mut self) {
        DEPTH.with(|depth| {
            let left = depth.get() - 1;
            depth.set(left);
            if left == 0 {
                set_rights(Rights::Read);
            }
        });
    }
}

/// Whether this thread has a window open: for the assertions of those who write.
#[inline]
pub fn is_open() -> bool {
    DEPTH.get() > 0
}

/// Does something with this thread's windows closed, and opens them again, also when it panics: for device I/O and foreign code in the middle
/// of a batch, and for making threads. It may open windows of its own.
pub fn closed<R>(what: impl FnOnce() -> R) -> R {
    struct Reopen(u32);
    impl Drop for Reopen {
        fn drop(&mut self) {
            if self.0 > 0 {
                set_rights(Rights::Write);
            }
            DEPTH.set(self.0);
        }
    }
    let reopen = Reopen(DEPTH.replace(0));
    if reopen.0 > 0 {
        set_rights(Rights::Read);
    }
    what()
}

/// Gives this thread the rights that belong to it: to read, and to write if it has a window open. Needed before it reads a region if it may be
/// older than [`install`](crate::install), and by threads made inside a window; called at the entry points of code that
/// reads regions, 1 or 2 ns when there is nothing to do. Where faults are reported, it sees to a signal stack that is large enough, too.
#[inline]
pub fn admit_thread() {
    match protect() {
        Protect::Off => return,
        Protect::Keys => keys::ensure_rights(if is_open() { Rights::Write } else { Rights::Read }),
        Protect::Pages => {}
    }
    fault::ready_thread();
}

#[inline]
fn set_rights(rights: Rights) {
    match protect() {
        Protect::Off => {}
        Protect::Keys => keys::set_rights(rights),
        Protect::Pages => set_rights_of_pages(rights),
    }
}

/// For all threads, as pages know no threads: the first one in opens, the last one out closes.
#[cold]
fn set_rights_of_pages(rights: Rights) {
    let mut windows = CHANGING.lock();
    match rights {
        Rights::Write => {
            if windows.count == 0 {
                region::set_all_writable(true);
            }
            windows.count += 1;
        }
        Rights::Read => {
            windows.count -= 1;
            if windows.count == 0 {
                region::set_all_writable(false);
            }
        }
    }
}
