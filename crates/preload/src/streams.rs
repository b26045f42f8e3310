//! stdio. Its functions read and write by calls inside libc that no other library can take over; but all of them, of all streams on
//! descriptors, go through two entries of two tables: `_IO_file_jumps` for bytes and `_IO_wfile_jumps` for wide characters, which are
//! exported, as are the functions in the entries. So the entries are found by what is in them, whatever else the table has, and are
//! replaced. If they are not found just once in each table, it is another libc, and stdio stays as it is.

use crate::buffers::Buffers;
use crate::exports::attempt;
use crate::sys;
use crate::transfer::{At, Outcome, read, write};
use libc::{c_int, c_ushort, c_void, dl_phdr_info, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A stream, as far as <bits/types/struct_FILE.h> tells and it is used here.
#[repr(C)]
struct Stream {
    flags: c_int,
    buffers: [*mut c_void; 13],
    fileno: c_int,
    flags2: c_int,
    old_offset: i64,
    column: c_ushort,
    rest: [u8; 6],
    lock: *mut c_void,
    /// Where it is in the file, if that is known; -1 otherwise.
    offset: i64,
}
const _: () = assert!(std::mem::offset_of!(Stream, fileno) == 112 && std::mem::offset_of!(Stream, offset) == 144);

/// `_IO_ERR_SEEN` of that header.
const ERROR_SEEN: c_int = 0x20;
/// `_IO_FLAGS2_NOTCANCEL` of libio.h: the stream was opened with the letter c.
const NOT_CANCELLED: c_int = 2;

type Function = unsafe extern "C-unwind" fn(*mut Stream, *mut c_void, ssize_t) -> ssize_t;

/// libc's own; 0 before they are replaced.
static READ: AtomicUsize = AtomicUsize::new(0);
static WRITE: AtomicUsize = AtomicUsize::new(0);

/// What was in the entry.
fn original(which: &AtomicUsize) -> Function {
    // SAFETY: it is set to the address of a function of this type before any entry is replaced.
    unsafe { std::mem::transmute(which.load(Ordering::Relaxed)) }
}

/// The system's calls of most streams are points of cancellation.
///
/// # Safety
/// It is a stream.
unsafe fn cancel_if_asked(stream: *const Stream) {
    // SAFETY: it is a stream.
    if unsafe { (*stream).flags2 } & NOT_CANCELLED == 0 {
        sys::cancel_if_asked();
    }
}

/// As `_IO_file_read`.
unsafe extern "C-unwind" fn stream_read(stream: *mut Stream, buffer: *mut c_void, length: ssize_t) -> ssize_t {
    // SAFETY: stdio passes the stream that it reads.
    let fd = unsafe { (*stream).fileno };
    // SAFETY: as above.
    unsafe { cancel_if_asked(stream) };
    match attempt(|| read(fd, || Buffers::one(buffer, length.max(0) as usize), At::Own)) {
        Outcome::Done(count) => count as ssize_t,
        Outcome::Failed(_) => -1,
        // SAFETY: stdio's arguments, for its function.
        Outcome::Left => unsafe { original(&READ)(stream, buffer, length) },
    }
}

/// As `_IO_file_write`: writes all of it, or as much as can be, and marks a stream that has failed.
unsafe extern "C-unwind" fn stream_write(stream: *mut Stream, bytes: *mut c_void, length: ssize_t) -> ssize_t {
    // SAFETY: stdio passes the stream that it writes.
    let fd = unsafe { (*stream).fileno };
    let mut done = 0;
    let mut more = 0;
    while done < length {
        // SAFETY: as above.
        unsafe { cancel_if_asked(stream) };
        let rest = bytes.wrapping_byte_offset(done);
        match attempt(|| write(fd, || Buffers::one(rest, (length - done) as usize), At::Own)) {
            Outcome::Done(count) if count > 0 => done += count as ssize_t,
            Outcome::Done(_) | Outcome::Failed(_) => {
                // SAFETY: as above.
                unsafe { (*stream).flags |= ERROR_SEEN };
                break;
            }
            Outcome::Left => {
                // SAFETY: stdio's arguments, of which a part is done, for its function.
                more = unsafe { original(&WRITE)(stream, rest, length - done) };
                break;
            }
        }
    }
    // SAFETY: as above. What libc's function has done it has counted.
    unsafe {
        if (*stream).offset >= 0 {
            (*stream).offset += done as i64;
        }
    }
    done + more.max(0)
}

/// Takes over stdio; `false` if this is not the libc that it is known of.
pub(crate) fn take_over() -> bool {
    let (Some(read), Some(write)) = (symbol(c"_IO_file_read"), symbol(c"_IO_file_write")) else { return false };
    let found: Option<Vec<_>> = [c"_IO_file_jumps", c"_IO_wfile_jumps"]
        .into_iter()
        .map(|name| {
            let table = table(name)?;
            Some([
                (entry(table, read.0)?, stream_read as *const () as usize),
                (entry(table, write.0)?, stream_write as *const () as usize),
            ])
        })
        .collect();
    let Some(found) = found else { return false };
    READ.store(read.0, Ordering::SeqCst);
    WRITE.store(write.0, Ordering::SeqCst);
    found.into_iter().flatten().all(|(entry, function)| replace(entry, function))
}

/// Address and size of what libc exports under this name.
fn symbol(name: &CStr) -> Option<(usize, usize)> {
    /// Of <dlfcn.h>: the symbol's entry is wanted.
    const RTLD_DL_SYMENT: c_int = 1;
    unsafe extern "C" {
        fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
    }
    // SAFETY: the name ends with NUL.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if address.is_null() {
        return None;
    }
    // SAFETY: zeros are a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut entry = std::ptr::null_mut();
    // SAFETY: the results have their types.
    let known = unsafe { dladdr1(address, &mut info, &mut entry, RTLD_DL_SYMENT) };
    if known == 0 || entry.is_null() {
        return None;
    }
    // SAFETY: with this flag it is an entry of the symbol table, which stays for as long as the library.
    let entry = unsafe { &*entry.cast::<libc::Elf64_Sym>() };
    Some((address as usize, entry.st_size as usize))
}

/// The words of a table.
fn table(name: &CStr) -> Option<&'static [AtomicUsize]> {
    let (address, bytes) = symbol(name)?;
    if bytes == 0 || bytes > 4096 || address % align_of::<usize>() != 0 {
        return None;
    }
    // SAFETY: libc has a table of so many bytes there, for as long as it is loaded, and that is for as long as the process.
    Some(unsafe { std::slice::from_raw_parts(address as *const AtomicUsize, bytes / size_of::<usize>()) })
}

/// The one entry with this function.
fn entry(table: &'static [AtomicUsize], function: usize) -> Option<&'static AtomicUsize> {
    let mut found = table.iter().filter(|entry| entry.load(Ordering::Relaxed) == function);
    match (found.next(), found.next()) {
        (Some(entry), None) => Some(entry),
        _ => None,
    }
}

/// Puts another function into an entry; the table is as it was afterwards, in memory that cannot be written to.
fn replace(entry: &'static AtomicUsize, function: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
    let address = std::ptr::from_ref(entry) as usize;
    let page = (address / PAGE_BYTES * PAGE_BYTES) as *mut c_void;
    let fixed = is_fixed(address);
    // SAFETY: the page is there, and only rights are added to it.
    if fixed && unsafe { libc::mprotect(page, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return false;
    }
    entry.store(function, Ordering::SeqCst);
    if fixed {
        // SAFETY: that it cannot be written to is what the loader has made of it.
        unsafe { libc::mprotect(page, PAGE_BYTES, libc::PROT_READ) };
    }
    true
}

/// Whether the loader has taken the right to write there, once it was filled.
fn is_fixed(address: usize) -> bool {
    unsafe extern "C" fn look(info: *mut dl_phdr_info, _: size_t, data: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr passes it, and what it was given.
        let (info, address) = unsafe { (&*info, *data.cast::<usize>()) };
        (0..info.dlpi_phnum).any(|index| {
            // SAFETY: there are so many.
            let header = unsafe { &*info.dlpi_phdr.add(index.into()) };
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            header.p_type == libc::PT_GNU_RELRO && address.wrapping_sub(start) < header.p_memsz as usize
        }) as c_int
    }
    let mut address = address;
    // SAFETY: the function has the right type, and what it is given lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut address).cast()) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_as_the_header_says() {
        // SAFETY: names end with NUL, buffers have the lengths given, the stream is used until it is closed.
        unsafe {
            let file = libc::tmpfile();
            let stream = file.cast::<Stream>();
            assert_eq!((*stream).fileno, libc::fileno(file));
            assert_eq!(libc::fwrite(b"0123456789".as_ptr().cast(), 1, 10, file), 10);
            assert_eq!((libc::fflush(file), libc::fseek(file, 3, libc::SEEK_SET)), (0, 0));
            let mut bytes = [0u8; 4];
            assert_eq!(libc::fread(bytes.as_mut_ptr().cast(), 1, 4, file), 4);
            assert_eq!(&bytes, b"3456");
            assert_eq!((*stream).offset, 10, "all of it has been read");
            assert_eq!(libc::fclose(file), 0);
            let closed = libc::fopen(c"/dev/null".as_ptr(), c"r".as_ptr());
            assert_eq!(libc::fwrite(b"x".as_ptr().cast(), 1, 1, closed), 0);
            assert_ne!((*closed.cast::<Stream>()).flags & ERROR_SEEN, 0);
            libc::fclose(closed);
        }
    }

    #[test]
    fn the_entries_are_ours_and_cannot_be_written_to() {
        // Taken over when the test began.
        assert_ne!(READ.load(Ordering::Relaxed), 0);
        for name in [c"_IO_file_jumps", c"_IO_wfile_jumps"] {
            let table = table(name).unwrap();
            for (function, was) in
                [(stream_read as *const () as usize, &READ), (stream_write as *const () as usize, &WRITE)]
            {
                let entry = entry(table, function).expect("once");
                assert!(super::entry(table, was.load(Ordering::Relaxed)).is_none());
                let address = std::ptr::from_ref(entry) as usize;
                assert_eq!(crate::sys::is_writable(address, 8).unwrap_or(false), !is_fixed(address));
            }
        }
    }
}
