//! A stack for a thread's signal handlers that is large enough to look at another one: those that the standard library makes are a few KiB.

use crate::memory::{self, Mapping};
use std::cell::OnceCell;
use std::mem::ManuallyDrop;
use std::ptr;

/// Bytes: unwinding takes several KiB, the symbols of a backtrace some tens, the saved AVX-512 registers 3.
const BYTES: usize = 128 << 10;

/// Bytes of stack with which the handler dares to unwind.
pub(crate) const ENOUGH: usize = 64 << 10;

struct SignalStack {
    mapping: ManuallyDrop<Mapping>,
}

thread_local! {
    static OWN: OnceCell<Option<SignalStack>> = const { OnceCell::new() };
}

/// Sees to it that signal handlers of this thread have at least [`ENOUGH`] bytes of stack of their own, as far as the system
/// allows: without it a report has no frames.
pub(crate) fn ensure() {
    // Too late while the thread ends.
    let _ = OWN.try_with(|own| {
        own.get_or_init(|| if usable_bytes() >= ENOUGH { None } else { SignalStack::install() });
    });
}

fn current() -> Option<libc::stack_t> {
    let mut stack = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: only asks.
    (unsafe { libc::sigaltstack(ptr::null(), &mut stack) } == 0).then_some(stack)
}

/// Bytes of this thread's signal stack, 0 if it has none. Can be called in handlers.
pub(crate) fn usable_bytes() -> usize {
    current().filter(|stack| stack.ss_flags & libc::SS_DISABLE == 0).map_or(0, |stack| stack.ss_size)
}

impl SignalStack {
    fn install() -> Option<SignalStack> {
        let page = memory::page_size();
        let mapping = Mapping::new(BYTES + page).ok()?;
        // A page below that nobody can write to, against a handler that needs more.
        memory::set_writable(mapping.address(), page, false).ok()?;
        let stack =
            libc::stack_t { ss_sp: (mapping.address() + page) as *mut libc::c_void, ss_flags: 0, ss_size: BYTES };
        // SAFETY: the memory is this thread's alone, and stays until `drop`, in the same thread, has it taken out of use. The stack that was
        // in use belongs to whoever made it; the standard library frees its own when the thread ends.
        (unsafe { libc::sigaltstack(&stack, ptr::null_mut()) } == 0)
            .then(|| SignalStack { mapping: ManuallyDrop::new(mapping) })
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        let own = self.mapping.address()..self.mapping.address() + self.mapping.bytes();
        let out_of_use = current().is_some_and(|stack| {
            if !own.contains(&(stack.ss_sp as usize)) {
                return true;
            }
            let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: BYTES };
            // SAFETY: if it succeeds, handlers run on the thread's own stack from now on. It does not in a handler, which runs on this one.
            (unsafe { libc::sigaltstack(&none, ptr::null_mut()) }) == 0
        });
        if out_of_use {
            // SAFETY: nothing runs on it, and it is dropped nowhere else. Otherwise, in a handler that ends the process by `exit`, it stays.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
