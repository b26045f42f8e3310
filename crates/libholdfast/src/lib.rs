//! `libholdfast.so`: the C library of the checksum-aware interface.
//!
//! Only translation: what is done is in [`holdfast_client`], what it means is said in `include/holdfast.h` and `man/holdfast.3`. Layouts
//! are those of the header; the test `crates/cli/tests/it/c_library.rs` compiles against it and compares.
//!
//! Invariant of every function: pointers are what the header asks for, or the caller is at fault, as with pread(2).

mod types;

pub use types::{HoldfastError, HoldfastFeatures};

use holdfast_client::{Algorithm, BLOCK_BYTES, Checksum, Error, File, Operation, descriptor, pieces};
use libc::{c_char, c_int, c_void, iovec, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

/// As in the header.
pub const ABI_VERSION: u32 = 0x0001_0004;

fn algorithm(number: c_int) -> Option<Algorithm> {
    u8::try_from(number).ok().and_then(|number| Algorithm::parse(number).ok())
}

fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// What a call returns; and tells an error.
///
/// # Safety
/// `into` is null or points to a `struct holdfast_error`.
unsafe fn finish(result: Result<usize, Error>, into: *mut HoldfastError) -> ssize_t {
    match result {
        Ok(length) => ssize_t::try_from(length).unwrap_or(ssize_t::MAX),
        Err(error) => {
            set_errno(error.errno);
            if !into.is_null() {
                // SAFETY: the caller says so.
                unsafe { into.write(HoldfastError::from(&error)) };
            }
            -1
        }
    }
}

const NULL_BUFFER: &str = "a buffer is NULL";
const IMPOSSIBLE_LENGTH: &str = "buffers of an impossible length";

fn invalid(operation: Operation, offset: off_t, text: &str) -> Error {
    Error::from_errno(operation, u64::try_from(offset).unwrap_or(0), libc::EINVAL, text)
}

/// What the arguments of a transfer mean.
///
/// # Safety
/// `vector` points to `count` elements that name memory of the caller's.
unsafe fn arguments<'a>(
    operation: Operation,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    number: c_int,
) -> Result<(BorrowedFd<'a>, &'a [iovec], u64, Algorithm), Error> {
    let fail = |text| invalid(operation, offset, text);
    if fd < 0 {
        return Err(Error::from_errno(operation, 0, libc::EBADF, "no descriptor"));
    }
    let start = u64::try_from(offset).map_err(|_| fail("a negative offset"))?;
    let count = usize::try_from(count).map_err(|_| fail("a negative count"))?;
    let algorithm = algorithm(number).ok_or_else(|| fail("no such algorithm"))?;
    if count > 0 && vector.is_null() {
        return Err(fail("the vector of buffers is NULL"));
    }
    // SAFETY: the caller says so; with none, the address is not used.
    let vector = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(vector, count) } };
    let total = vector.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len));
    if vector.iter().any(lacks) {
        return Err(fail(NULL_BUFFER));
    }
    if total.is_none_or(|total| total > ssize_t::MAX as usize) {
        return Err(fail(IMPOSSIBLE_LENGTH));
    }
    // SAFETY: not negative; whether it is open the kernel says.
    Ok((unsafe { BorrowedFd::borrow_raw(fd) }, vector, start, algorithm))
}

/// Whether a byte is in two of them: what was verified would be overwritten, and a slice that is written to must have its bytes alone.
fn overlap(vector: &[iovec]) -> bool {
    let is_there = |part: &&iovec| part.iov_len > 0;
    let range = |part: &iovec| (part.iov_base as usize, (part.iov_base as usize).saturating_add(part.iov_len));
    let mut ranges: Vec<_> = vector.iter().filter(is_there).map(range).collect();
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[1].0 < pair[0].1)
}

/// Bytes of a buffer that are worth a question whether they are there. A wrong length is mostly far larger.
const QUESTIONABLE: usize = 1 << 20;

/// Whether memory is mapped where the buffer is, as far as a long one goes: checksums would be made of what is not there, where pwrite(2) has EFAULT.
fn is_there(start: *const c_void, length: usize) -> bool {
    const PAGE: usize = 4096;
    if length <= QUESTIONABLE {
        return true;
    }
    let first = start as usize / PAGE * PAGE;
    let Some(end) = (start as usize).checked_add(length) else { return false };
    // SAFETY: this does nothing but look for what is not mapped (since Linux 2.6.19), whatever is there.
    let result = unsafe { libc::msync(first as *mut c_void, end - first, libc::MS_ASYNC) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM)
}

fn not_there(offset: u64) -> Error {
    Error::from_errno(Operation::Write, offset, libc::EFAULT, "there are not so many bytes in memory")
}

fn lacks(part: &iovec) -> bool {
    part.iov_base.is_null() && part.iov_len > 0
}

/// Where its bytes start. Without bytes it may have no address, and a slice must have one.
fn start(part: &iovec) -> *mut u8 {
    if part.iov_len == 0 { std::ptr::dangling_mut() } else { part.iov_base.cast() }
}

/// # Safety
/// As for [`arguments`]; `sums` is null or has room for all checksums, `error` is null or a `struct holdfast_error`.
unsafe fn read(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    number: c_int,
    sums: *mut u8,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    let done = unsafe { arguments(Operation::Read, fd, vector, count, offset, number) }.and_then(
        |(fd, vector, offset, algorithm)| {
            if overlap(vector) {
                return Err(Error::from_errno(Operation::Read, offset, libc::EINVAL, "buffers that overlap"));
            }
            // SAFETY: the caller's memory, which it does not use meanwhile; no byte is in two of them.
            let buffer = |part| IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(start(part), part.iov_len) });
            let mut buffers: Vec<_> = vector.iter().map(buffer).collect();
            let mut got = Vec::new();
            let length = descriptor::read_at(fd, &mut buffers, offset, algorithm, &mut got)?;
            if !sums.is_null() {
                for (index, sum) in got.iter().enumerate() {
                    let bytes = sum.as_bytes();
                    // SAFETY: the caller has room for the checksums of all blocks of the transfer; this has no more.
                    unsafe { sums.add(index * bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                }
            }
            Ok(length)
        },
    );
    // SAFETY: passed on.
    unsafe { finish(done, error) }
}

/// # Safety
/// As for [`read`]; `sums` is null, or has the checksums of all blocks.
unsafe fn write(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    number: c_int,
    sums: *const u8,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    let done = unsafe { arguments(Operation::Write, fd, vector, count, offset, number) }.and_then(
        |(fd, vector, offset, algorithm)| {
            if !vector.iter().all(|part| is_there(part.iov_base, part.iov_len)) {
                return Err(not_there(offset));
            }
            // SAFETY: the caller's memory, which it does not change meanwhile.
            let buffer = |part| IoSlice::new(unsafe { std::slice::from_raw_parts(start(part), part.iov_len) });
            let buffers: Vec<_> = vector.iter().map(buffer).collect();
            let digest = algorithm.digest_len();
            let blocks = holdfast_client::blocks(offset, buffers.iter().map(|buffer| buffer.len()).sum());
            let own = (!sums.is_null()).then(|| {
                let one = |index: usize| {
                    // SAFETY: the caller has the checksums of all blocks of the transfer.
                    let bytes = unsafe { std::slice::from_raw_parts(sums.add(index * digest), digest) };
                    Checksum::from_bytes(algorithm, bytes).expect("of the algorithm's length")
                };
                (0..blocks).map(one).collect::<Vec<_>>()
            });
            descriptor::write_at(fd, &buffers, offset, algorithm, own.as_deref())
        },
    );
    // SAFETY: passed on.
    unsafe { finish(done, error) }
}

fn single(buffer: *const c_void, length: size_t) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: length }
}

const DEFAULT: c_int = Algorithm::Crc64Nvme as c_int;

/// See holdfast.h.
#[unsafe(no_mangle)]
pub extern "C" fn holdfast_abi_version() -> u32 {
    ABI_VERSION
}

/// See holdfast.h.
///
/// # Safety
/// `features` points to a `struct holdfast_features`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_features(fd: c_int, features: *mut HoldfastFeatures) -> c_int {
    if fd < 0 || features.is_null() {
        set_errno(if fd < 0 { libc::EBADF } else { libc::EINVAL });
        return -1;
    }
    // SAFETY: not negative; whether it is open the kernel says.
    match File::new(unsafe { BorrowedFd::borrow_raw(fd) }) {
        Ok(file) => {
            // SAFETY: the caller says so.
            unsafe { features.write(HoldfastFeatures::from(file.features())) };
            0
        }
        Err(error) => {
            set_errno(error.errno);
            -1
        }
    }
}

/// See holdfast.h.
#[unsafe(no_mangle)]
pub extern "C" fn holdfast_sum_bytes(number: c_int) -> size_t {
    algorithm(number).map_or(0, Algorithm::digest_len)
}

/// See holdfast.h.
#[unsafe(no_mangle)]
pub extern "C" fn holdfast_algorithm_name(number: c_int) -> *const c_char {
    let name: &CStr = match algorithm(number) {
        None => return std::ptr::null(),
        Some(Algorithm::None) => c"none",
        Some(Algorithm::Xor64) => c"xor64",
        Some(Algorithm::Crc64Nvme) => c"crc64-nvme",
        Some(Algorithm::Crc32c) => c"crc32c",
        Some(Algorithm::Fletcher256) => c"fletcher256",
        Some(Algorithm::Xxh3) => c"xxh3",
        Some(Algorithm::Blake3) => c"blake3",
    };
    name.as_ptr()
}

/// See holdfast.h.
#[unsafe(no_mangle)]
pub extern "C" fn holdfast_blocks(offset: off_t, length: size_t) -> size_t {
    u64::try_from(offset).map_or(0, |offset| holdfast_client::blocks(offset, length))
}

/// See holdfast.h.
///
/// # Safety
/// `buffer` has `length` bytes, `sums` room for the checksums.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_sums(
    number: c_int,
    buffer: *const c_void,
    length: size_t,
    offset: off_t,
    sums: *mut c_void,
) -> c_int {
    let (Some(algorithm), Ok(offset)) = (algorithm(number), u64::try_from(offset)) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    if length == 0 || algorithm == Algorithm::None {
        return 0;
    }
    if buffer.is_null() || sums.is_null() || length > ssize_t::MAX as usize {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller says so.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) };
    let mut to = sums.cast::<u8>();
    for piece in pieces(offset, length) {
        let sum = algorithm.sum(&bytes[piece.range]);
        let sum = sum.as_bytes();
        // SAFETY: the caller has room for one checksum per block, and this is one.
        unsafe {
            to.copy_from_nonoverlapping(sum.as_ptr(), sum.len());
            to = to.add(sum.len());
        }
    }
    0
}

/// See holdfast.h.
///
/// # Safety
/// `blocks` has room for `count` numbers, `error` is null or a `struct holdfast_error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_bad_blocks(
    fd: c_int,
    first: u64,
    blocks: *mut u64,
    count: size_t,
    error: *mut HoldfastError,
) -> ssize_t {
    // An error is about the block from which on it is asked.
    let place = first.saturating_mul(BLOCK_BYTES as u64);
    let found = if fd < 0 {
        Err(Error::from_errno(Operation::Write, place, libc::EBADF, "no descriptor"))
    } else if blocks.is_null() && count > 0 {
        Err(Error::from_errno(Operation::Write, place, libc::EINVAL, "no room for the blocks"))
    } else {
        // SAFETY: not negative; whether it is open the kernel says.
        descriptor::bad_blocks(unsafe { BorrowedFd::borrow_raw(fd) }, first, count)
    };
    let stored = found.map(|found| {
        if !found.is_empty() {
            // SAFETY: the caller has room for `count` numbers, and these are no more.
            unsafe { blocks.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
        }
        found.len()
    });
    // SAFETY: passed on.
    unsafe { finish(stored, error) }
}

/// See holdfast.h.
///
/// # Safety
/// `buffer` has `length` bytes, `error` is null or a `struct holdfast_error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_pread(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    offset: off_t,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { read(fd, &single(buffer, length), 1, offset, DEFAULT, std::ptr::null_mut(), error) }
}

/// See holdfast.h.
///
/// # Safety
/// As for [`holdfast_pread`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_pwrite(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    offset: off_t,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { write(fd, &single(buffer, length), 1, offset, DEFAULT, std::ptr::null(), error) }
}

/// See holdfast.h.
///
/// # Safety
/// As for [`holdfast_pread`]; `offset` is null or an `off_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_append(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    offset: *mut off_t,
    error: *mut HoldfastError,
) -> ssize_t {
    let appended = if fd < 0 {
        Err(Error::from_errno(Operation::Write, 0, libc::EBADF, "no descriptor"))
    } else if buffer.is_null() && length > 0 {
        Err(invalid(Operation::Write, 0, NULL_BUFFER))
    } else if length > isize::MAX as usize {
        Err(invalid(Operation::Write, 0, IMPOSSIBLE_LENGTH))
    } else if !is_there(buffer, length) {
        Err(not_there(0))
    } else {
        let bytes = match length {
            0 => &[],
            // SAFETY: the caller has so many bytes there.
            _ => unsafe { std::slice::from_raw_parts(buffer.cast(), length) },
        };
        // SAFETY: not negative; whether it is open the kernel says.
        descriptor::append_part(unsafe { BorrowedFd::borrow_raw(fd) }, bytes, Algorithm::Crc64Nvme)
    };
    let at = match &appended {
        Ok((at, _)) => Some(*at),
        // Appended all the same.
        Err(error) if error.done > 0 => Some(error.offset),
        Err(_) => None,
    };
    if let Some(at) = at.filter(|_| !offset.is_null()) {
        // SAFETY: the caller says that it is one. Positions are less than 2^63.
        unsafe { offset.write(at as off_t) };
    }
    let done = appended.map(|(_, done)| done);
    // SAFETY: passed on.
    unsafe { finish(done, error) }
}

/// See holdfast.h.
///
/// # Safety
/// `vector` has `count` elements that name the caller's memory, `error` is null or a `struct holdfast_error`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_preadv(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { read(fd, vector, count, offset, DEFAULT, std::ptr::null_mut(), error) }
}

/// See holdfast.h.
///
/// # Safety
/// As for [`holdfast_preadv`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_pwritev(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { write(fd, vector, count, offset, DEFAULT, std::ptr::null(), error) }
}

/// See holdfast.h.
///
/// # Safety
/// As for [`holdfast_pread`]; `sums` is null or has room for all checksums.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_pread_sums(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    offset: off_t,
    algorithm: c_int,
    sums: *mut c_void,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { read(fd, &single(buffer, length), 1, offset, algorithm, sums.cast(), error) }
}

/// See holdfast.h.
///
/// # Safety
/// As for [`holdfast_pwrite`]; `sums` has all checksums, or is null: they are made here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_pwrite_sums(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    offset: off_t,
    algorithm: c_int,
    sums: *const c_void,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { write(fd, &single(buffer, length), 1, offset, algorithm, sums.cast(), error) }
}

/// See holdfast.h.
///
/// # Safety
/// As for [`holdfast_preadv`]; `sums` is null or has room for all checksums.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_preadv_sums(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    algorithm: c_int,
    sums: *mut c_void,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { read(fd, vector, count, offset, algorithm, sums.cast(), error) }
}

/// See holdfast.h.
///
/// # Safety
/// As for [`holdfast_pwritev`]; `sums` has all checksums, or is null: they are made here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_pwritev_sums(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    algorithm: c_int,
    sums: *const c_void,
    error: *mut HoldfastError,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe { write(fd, vector, count, offset, algorithm, sums.cast(), error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn an_error_about_bad_blocks_is_at_the_first_of_them() {
        let none = std::fs::File::open("/dev/null").unwrap();
        let mut room = [0; 2];
        for (fd, blocks, errno) in [
            (-1, room.as_mut_ptr(), libc::EBADF),
            (none.as_raw_fd(), std::ptr::null_mut(), libc::EINVAL),
            (none.as_raw_fd(), room.as_mut_ptr(), libc::ENOTTY),
        ] {
            let mut error = std::mem::MaybeUninit::uninit();
            // SAFETY: there is room for two blocks where there is any, and for an error.
            assert_eq!(unsafe { holdfast_bad_blocks(fd, 3, blocks, 2, error.as_mut_ptr()) }, -1);
            // SAFETY: a call that fails tells the error.
            let error = unsafe { error.assume_init() };
            assert_eq!((error.errnum, error.offset), (errno, 3 * 4096));
            let text = error.text.map(|byte| byte as u8);
            assert!(text.starts_with(b"write at byte 12288: "), "{}", String::from_utf8_lossy(&text));
        }
    }
}
