//! The program's memory, as it names it in a call. It is looked at before anything is done: the system answers EFAULT to an address
//! that is none, where a library would be killed.

use crate::sys;
use libc::{c_int, c_void, iovec};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

/// Most bytes that Linux transfers in one call.
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// Buffers of one call, as one row of bytes.
pub(crate) struct Buffers {
    parts: Vec<iovec>,
    total: usize,
}

impl Buffers {
    /// One. `None` wherever the call is one that only the system can answer.
    pub(crate) fn one(buffer: *mut c_void, length: usize) -> Option<Buffers> {
        Buffers::new(vec![iovec { iov_base: buffer, iov_len: length }])
    }

    /// Several.
    pub(crate) fn several(parts: *const iovec, count: c_int) -> Option<Buffers> {
        let count = usize::try_from(count).ok().filter(|count| (1..=libc::UIO_MAXIOV as usize).contains(count))?;
        if !sys::is_readable(parts as usize, count * size_of::<iovec>()) {
            return None;
        }
        // SAFETY: it has just been read from, and has the type that the caller says.
        let parts = (0..count).map(|index| unsafe { parts.add(index).read_unaligned() }).collect();
        Buffers::new(parts)
    }

    fn new(parts: Vec<iovec>) -> Option<Buffers> {
        let add = |sum: usize, part: &iovec| sum.checked_add(part.iov_len).filter(|&sum| sum <= isize::MAX as usize);
        let total = parts.iter().try_fold(0, add)?;
        let mut buffers = Buffers { parts, total };
        buffers.truncate(TRANSFER_BYTES_MAX);
        Some(buffers)
    }

    /// In bytes.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Only the first so many bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        let mut left = length.min(self.total);
        self.total = left;
        for part in &mut self.parts {
            part.iov_len = part.iov_len.min(left);
            left -= part.iov_len;
        }
        self.parts.retain(|part| part.iov_len > 0);
    }

    /// Whether all of it can be read.
    pub(crate) fn are_readable(&self) -> bool {
        self.parts.iter().all(|part| sys::is_readable(part.iov_base as usize, part.iov_len))
    }

    /// Whether a read of the file at this position can be put into it, as one row of bytes.
    pub(crate) fn can_take(&self, fd: c_int, offset: i64) -> bool {
        let writable = |part: &iovec| sys::is_writable(part.iov_base as usize, part.iov_len);
        !self.overlap()
            && self.parts.iter().map(writable).all(|is| is != Some(false))
            && (self.parts.iter().all(|part| writable(part).is_some()) || sys::takes(fd, &self.parts, offset))
    }

    /// Whether a byte is in two of them: bytes that were verified would be overwritten by others.
    pub(crate) fn overlap(&self) -> bool {
        if self.parts.len() < 2 {
            return false;
        }
        let mut ranges: Vec<_> =
            self.parts.iter().map(|part| (part.iov_base as usize, part.iov_base as usize + part.iov_len)).collect();
        ranges.sort_unstable();
        ranges.windows(2).any(|pair| pair[1].0 < pair[0].1)
    }

    /// The parts of the range.
    fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (*mut u8, usize)> {
        let mut start = 0;
        self.parts.iter().filter_map(move |part| {
            let here = range.start.max(start)..range.end.min(start + part.iov_len);
            let within = here.start.wrapping_sub(start);
            start += part.iov_len;
            (here.start < here.end).then(|| (part.iov_base.cast::<u8>().wrapping_add(within), here.len()))
        })
    }

    /// To be read from. It was found readable.
    pub(crate) fn slices(&self, range: Range<usize>) -> Vec<IoSlice<'_>> {
        // SAFETY: the caller's buffers, which have so many bytes: it says so, and they were there.
        self.pieces(range)
            .map(|(start, length)| IoSlice::new(unsafe { std::slice::from_raw_parts(start, length) }))
            .collect()
    }

    /// To be filled. It was found that it [can take](Buffers::can_take) it, or the kernel checks.
    pub(crate) fn slices_mut(&mut self, range: Range<usize>) -> Vec<IoSliceMut<'_>> {
        let slice = |(start, length)| {
            // SAFETY: as above; and they do not overlap.
            IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(start, length) })
        };
        self.pieces(range).map(slice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: &mut [u8]) -> iovec {
        iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn parts_are_one_row() {
        let mut bytes = *b"abcdefghij";
        let (a, rest) = bytes.split_at_mut(4);
        let (b, c) = rest.split_at_mut(0);
        let parts = [part(a), part(b), part(c)];
        let mut buffers = Buffers::several(parts.as_ptr(), 3).unwrap();
        assert_eq!(buffers.total(), 10);
        let row = |buffers: &Buffers, range| {
            buffers.slices(range).iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(row(&buffers, 0..10), b"abcdefghij");
        assert_eq!(row(&buffers, 3..5), b"de");
        assert_eq!(row(&buffers, 5..5), b"");
        buffers.truncate(6);
        assert_eq!((buffers.total(), row(&buffers, 2..6)), (6, b"cdef".to_vec()));
        buffers.slices_mut(3..6).iter_mut().for_each(|slice| slice.fill(b'x'));
        assert_eq!(&bytes, b"abcxxxghij");
    }

    #[test]
    fn what_is_odd_is_the_systems() {
        let mut bytes = [0; 10];
        let one = part(&mut bytes);
        assert!(Buffers::several(&one, 0).is_none() && Buffers::several(&one, -1).is_none());
        assert!(Buffers::several(&one, 1025).is_none() && Buffers::several(std::ptr::null(), 1).is_none());
        let huge = iovec { iov_len: usize::MAX, ..one };
        assert!(Buffers::several([huge, one].as_ptr(), 2).is_none());
        let large = Buffers::one(one.iov_base, isize::MAX as usize).unwrap();
        assert_eq!(large.total(), TRANSFER_BYTES_MAX);
        let later = iovec { iov_base: one.iov_base.wrapping_byte_add(9), iov_len: 5 };
        let after = iovec { iov_base: one.iov_base.wrapping_byte_add(10), iov_len: 5 };
        assert!(Buffers::several([later, one].as_ptr(), 2).unwrap().overlap());
        assert!(!Buffers::several([after, one].as_ptr(), 2).unwrap().overlap());
        assert!(!Buffers::one(std::ptr::null_mut(), 5).unwrap().are_readable());
    }
}
