//! What each open file has been told of pages that went bad in memory before they were stored: fsync tells each descriptor once.
//!
//! Kept per handle, which is what descriptors share that came from one open(2) by dup or fork. Only what is not 0 is kept, so that
//! there is nothing to keep before the first bad page. A handle of another process that served the mount before begins with 0: with
//! everything that is bad since this one serves it.

use holdfast_naming::{Error, Namespace};
use holdfast_object::ObjectId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(super) struct Told {
    /// There is, or was, something in `seen`: as long as nothing has gone bad, its lock is never taken.
    any: AtomicBool,
    seen: Mutex<HashMap<u64, u64>>,
}

impl Told {
    /// A file is opened under this handle.
    pub(super) fn open(&self, namespace: &Namespace, id: ObjectId, handle: u64) {
        let begin = namespace.errors_begin(id);
        if begin != 0 {
            self.any.store(true, Ordering::Release);
            self.seen.lock().insert(handle, begin);
        }
    }

    pub(super) fn release(&self, handle: u64) {
        if self.any.load(Ordering::Acquire) {
            self.seen.lock().remove(&handle);
        }
    }

    /// The error that is new to the handle, if there is one.
    pub(super) fn tell(&self, namespace: &Namespace, id: ObjectId, handle: u64) -> Result<(), Error> {
        let any = self.any.load(Ordering::Acquire);
        let mut upto = if any { self.seen.lock().get(&handle).copied().unwrap_or(0) } else { 0 };
        namespace.errors_tell(id, &mut upto).or_else(|error| {
            self.any.store(true, Ordering::Release);
            let mut seen = self.seen.lock();
            let told = seen.entry(handle).or_default();
            if *told >= upto {
                // Of two threads that sync through one handle at once, one is told.
                return Ok(());
            }
            *told = upto;
            Err(error)
        })
    }
}
