//! Windows of a thread, and the rights a thread has outside them.
//!
//! Invariant of an admitted thread: it can write into regions exactly while its `OPEN` is the way in which the process is protected now.
//!
//! Windows are the duration of a call and no values: so they close in the order in which they opened, by construction, and none
//! can be leaked, or be carried over the border of [`closed`] or of a thread.

use crate::keys::{self, Rights};
use crate::{CHANGING, Protect, fault, protect, region};
use std::cell::Cell;

thread_local! {
    /// The way of protection that the window of this thread lifts. Windows opened before [`install`](crate::install) lift none, and go on doing
    /// so. Constant and without a destructor, so that reading it is one load at any time.
    static OPEN: Cell<Option<Protect>> = const { Cell::new(None) };
}

/// What `CHANGING` protects besides the list of regions.
pub(crate) struct OpenWindows {
    /// Threads with a window open, with [`Protect::Pages`]. The pages can be written while it is above 0.
    pub(crate) count: usize,
}

/// Does something with a window open: its thread can write into all regions. For a batch of changes: opening and closing takes some 45 ns.
///
/// It is closed when `changes` returns or panics. Windows nest, and the outermost one closes: a function that needs one opens it, and
/// costs next to nothing where its caller has. Not in signal handlers, which may have interrupted a window's opening.
///
/// Write through pointers that come from [`Region::as_ptr`](crate::Region::as_ptr), best inside. What is borrowed from elsewhere (a `&mut` argument)
/// is to the compiler out of everybody's reach, and it may move a store through it over the border of the window.
///
/// # Panics
/// With [`Protect::Pages`], when the system cannot change the rights of the pages.
#[inline]
pub fn open<R>(changes: impl FnOnce() -> R) -> R {
    struct Close {
        lifted: Protect,
        before: Option<Protect>,
    }
    impl Drop for Close {
        #[inline]
        fn drop(&mut self) {
            OPEN.set(self.before);
            set_rights(self.lifted, Rights::Read);
        }
    }
    let (lifted, before) = (protect(), OPEN.get());
    if before == Some(lifted) {
        return changes();
    }
    set_rights(lifted, Rights::Write);
    OPEN.set(Some(lifted));
    let _close = Close { lifted, before };
    changes()
}

/// Whether this thread has a window open: for the assertions of those who write.
#[inline]
pub fn is_open() -> bool {
    OPEN.get() == Some(protect())
}

/// Does something with this thread's windows closed, and opens them again, also when it panics: for device I/O and foreign code in the middle
/// of a batch, and for making threads. It may open windows of its own.
pub fn closed<R>(what: impl FnOnce() -> R) -> R {
    struct Reopen(Protect);
    impl Drop for Reopen {
        fn drop(&mut self) {
            set_rights(self.0, Rights::Write);
            OPEN.set(Some(self.0));
        }
    }
    let _reopen = OPEN.take().map(|lifted| {
        set_rights(lifted, Rights::Read);
        Reopen(lifted)
    });
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
fn set_rights(how: Protect, rights: Rights) {
    match how {
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
