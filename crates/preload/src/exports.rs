//! The functions of libc that are taken over. Each comes to a transfer, or to the function that it stands for.
//!
//! The frame that calls that function has nothing to drop, as a cancelled thread is unwound through it. A transfer is not interrupted: the
//! thread ends before it, or in a later call.

use crate::buffers::Buffers;
use crate::next::Next;
use crate::sys;
use crate::transfer::{self, At, Outcome};
use libc::{c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Tries, and leaves errno as a call of libc would.
pub(crate) fn attempt(transfer: impl FnOnce() -> Outcome) -> Outcome {
    let errno = sys::errno();
    // Functions of libc that a transfer uses are points of cancellation too, and its frames have much to drop.
    let cancellation = sys::set_cancellation(sys::CANCEL_DISABLE);
    // What panics is a bug; the program gets an error, as it must not be unwound.
    let outcome = catch_unwind(AssertUnwindSafe(transfer)).unwrap_or(Outcome::Failed(libc::EIO));
    sys::set_cancellation(cancellation);
    sys::set_errno(if let Outcome::Failed(number) = outcome { number } else { errno });
    outcome
}

/// Functions of libc, each under all of its names.
macro_rules! taken_over {
    ($(fn $($name:ident)|+ ($($arguments:tt)*) = $transfer:expr;)*) => {
        #[allow(non_upper_case_globals, reason = "as they are called in libc")]
        mod nexts {
            use super::{CStr, Next};
            $($(pub(super) static $name: Next =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => Next::new(name),
                    Err(_) => panic!("it has one NUL, at its end"),
                };)+)*
        }

        /// Finds all of what is taken over, so that no signal handler has to.
        pub(crate) fn find() {
            $($(nexts::$name.find();)+)*
        }

        $(export! { [$($name)+] ($($arguments)*) = $transfer })*
    };
}

macro_rules! export {
    ([$($name:ident)+] $arguments:tt = $transfer:expr) => {
        $(export! { $name $arguments = $transfer })+
    };
    ($name:ident($($argument:ident: $kind:ty),*) = $transfer:expr) => {
        /// As in libc.
        ///
        /// # Safety
        /// As in libc.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> ssize_t {
            sys::cancel_if_asked();
            match attempt(|| $transfer) {
                Outcome::Done(count) => count as ssize_t,
                Outcome::Failed(_) => -1,
                Outcome::Left => {
                    let next = nexts::$name.find();
                    if next.is_null() {
                        sys::set_errno(libc::ENOSYS);
                        return -1;
                    }
                    type Function = unsafe extern "C-unwind" fn($($kind),*) -> ssize_t;
                    // SAFETY: the function of that name has these arguments.
                    let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
                    // SAFETY: the caller's arguments, for the function that it has called.
                    unsafe { next($($argument),*) }
                }
            }
        }
    };
}

taken_over! {
    fn read | __read(fd: c_int, buffer: *mut c_void, count: size_t) = transfer::read(fd, one(buffer, count), At::Own);
    fn write | __write(fd: c_int, buffer: *const c_void, count: size_t) = transfer::write(fd, one(buffer, count), At::Own);
    fn pread | pread64 | __pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) =
        transfer::read(fd, one(buffer, count), At::Position(offset));
    fn pwrite | pwrite64 | __pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off_t) =
        transfer::write(fd, one(buffer, count), At::Position(offset));
    fn readv(fd: c_int, parts: *const iovec, count: c_int) = transfer::read(fd, several(parts, count), At::Own);
    fn writev(fd: c_int, parts: *const iovec, count: c_int) = transfer::write(fd, several(parts, count), At::Own);
    fn preadv | preadv64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) =
        transfer::read(fd, several(parts, count), At::Position(offset));
    fn pwritev | pwritev64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) =
        transfer::write(fd, several(parts, count), At::Position(offset));
    fn preadv2 | preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) =
        flagged(flags, || transfer::read(fd, several(parts, count), At::own_or(offset)));
    fn pwritev2 | pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) =
        flagged(flags, || transfer::write(fd, several(parts, count), At::own_or(offset)));

    fn sendfile | sendfile64(to: c_int, from: c_int, position: *mut off_t, count: size_t) =
        transfer::copy(from, to, count, transfer::Copy::Through);
    fn splice(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, count: size_t, flags: c_uint) =
        transfer::copy(from, to, count, transfer::Copy::Through);
    fn copy_file_range(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, count: size_t, flags: c_uint) =
        transfer::copy(from, to, count, transfer::Copy::Range);

    // What programs call that are compiled with _FORTIFY_SOURCE: `room` is what the buffer has.
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t) =
        fitting(count, room, || transfer::read(fd, one(buffer, count), At::Own));
    fn __pread_chk | __pread64_chk(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t, room: size_t) =
        fitting(count, room, || transfer::read(fd, one(buffer, count), At::Position(offset)));
}

/// Looked at only if the file is in a mount.
fn one(buffer: *const c_void, count: size_t) -> impl FnOnce() -> Option<Buffers> {
    move || Buffers::one(buffer.cast_mut(), count)
}

fn several(parts: *const iovec, count: c_int) -> impl FnOnce() -> Option<Buffers> {
    move || Buffers::several(parts, count)
}

/// What flags ask for only the system can do.
fn flagged(flags: c_int, transfer: impl FnOnce() -> Outcome) -> Outcome {
    if flags == 0 { transfer() } else { Outcome::Left }
}

/// What does not fit ends the program, and that is libc's to do.
fn fitting(count: usize, room: usize, transfer: impl FnOnce() -> Outcome) -> Outcome {
    if count <= room { transfer() } else { Outcome::Left }
}
