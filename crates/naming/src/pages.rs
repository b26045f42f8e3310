//! Reading pages: what comes out is verified at that moment.

use crate::error::{Error, Result};
use crate::sums;
use holdfast_integrity::{Algorithm, Checksum, crc64_copied, crc64_copied_of_followed, prefetch_ahead};
use holdfast_object::{self as object, ObjectCache, ObjectId, ObjectKey, PAGE_SIZE, PageIndex, PageView, PinnedPage};
use std::ops::Range;

/// A page at a page boundary: a slice across two pages costs the kernel twice the work.
#[repr(align(4096))]
struct Aligned([u8; PAGE_SIZE]);

/// A page of zeroes, for what was never written.
static ZERO_PAGE: Aligned = Aligned([0; PAGE_SIZE]);

/// The page that is read where nothing is stored.
pub(crate) fn zero_page() -> &'static [u8; PAGE_SIZE] {
    &ZERO_PAGE.0
}

fn bytes_of(view: &PageView) -> &[u8; PAGE_SIZE] {
    match view {
        PageView::Data(page) => page.bytes(),
        PageView::Zero => zero_page(),
    }
}

fn to_be_verified(view: &PageView) -> Option<&[u8; PAGE_SIZE]> {
    match view {
        PageView::Data(page) if page.is_verified() => Some(page.bytes()),
        _ => None,
    }
}

/// Under which algorithm a page is, if several of them are summed together.
fn summed_together(view: &PageView) -> Option<Algorithm> {
    let PageView::Data(page) = view else { return None };
    page.algorithm_of_number()
}

/// So many pages are verified together.
const TOGETHER: usize = 32;

/// Verifies pages, `first` being the index of the first one; a bad one is read again from below, and takes the place of its view.
fn verify(cache: &dyn ObjectCache, id: ObjectId, first: PageIndex, views: &mut [PageView]) -> Result<()> {
    if let [view] = views {
        *view = verified(cache, id, first, std::mem::replace(view, PageView::Zero))?;
        return Ok(());
    }
    let mut index = first;
    for views in views.chunks_mut(TOGETHER) {
        // Those under what the first one is under, of which all are summed before one is compared.
        let algorithm = views.iter().find_map(summed_together).unwrap_or(Algorithm::Crc64Nvme);
        let mut blocks = [zero_page(); TOGETHER];
        let (mut expected, mut of, mut count) = ([0; TOGETHER], [0; TOGETHER], 0);
        for (at, view) in views.iter().enumerate() {
            if let PageView::Data(page) = view
                && let Some(sum) = page.number_under(algorithm)
            {
                (blocks[count], expected[count], of[count]) = (page.bytes(), sum, at);
                count += 1;
            }
        }
        let mut sums = [0; TOGETHER];
        algorithm.number_each(&blocks[..count], &mut sums[..count]);
        let mut is_good = [false; TOGETHER];
        (0..count).for_each(|n| is_good[of[n]] = sums[n] == expected[n]);
        for at in 0..views.len() {
            if !is_good[at] {
                prefetch_ahead(at, |at| views.get(at).and_then(to_be_verified));
                let view = std::mem::replace(&mut views[at], PageView::Zero);
                views[at] = verified(cache, id, index + at as u64, view)?;
            }
        }
        index += views.len() as u64;
    }
    Ok(())
}

/// How often a page is read again before it is given up.
const REREADS_MAX: usize = 3;

/// Verifies a page; reads it again from below if it does not match. Corrupt bytes do not get out.
fn verified(cache: &dyn ObjectCache, id: ObjectId, index: PageIndex, mut view: PageView) -> Result<PageView> {
    for _ in 0..REREADS_MAX {
        let (page, mismatch) = match &view {
            PageView::Zero => return Ok(view),
            PageView::Data(page) => match page.verify() {
                Ok(_) => return Ok(view),
                Err(mismatch) => (page, mismatch),
            },
        };
        tell_mismatch(id, index, page, &mismatch);
        view = cache.reread(id, index, page.page())?;
    }
    Err(never_right(cache, id, index))
}

/// Tells that a page is asked for again. Of a page of metadata the cache does, which knows what the right bytes are.
fn tell_mismatch(id: ObjectId, index: PageIndex, page: &PinnedPage, mismatch: &dyn std::fmt::Display) {
    if page.seal().is_none() {
        tracing::warn!(object = id.0, index, %mismatch, "a page does not match its checksum: it is read again");
    }
}

/// The error for a page that does not match however often it is read.
fn never_right(cache: &dyn ObjectCache, id: ObjectId, index: PageIndex) -> Error {
    let place = object::Place {
        object: Some(ObjectKey { domain: cache.domain(), object: id }),
        index: Some(index),
        ..object::Place::default()
    };
    object::Error::corrupt(place, "checksum in memory", "a page that stays right", "one that changes").into()
}

/// The checksum of a part of a page for whoever gets the part, by the rules of [`sums::of_part`]. A page that does not match is read
/// again from below and takes the place of `view`.
fn summed(
    cache: &dyn ObjectCache,
    id: ObjectId,
    index: PageIndex,
    view: &mut PageView,
    part: Range<usize>,
    how: SumsWanted,
) -> Result<Checksum> {
    for _ in 0..REREADS_MAX {
        let page = match view {
            PageView::Zero => {
                return sums::of_zeroes(part, how).map_err(|_| never_right(cache, id, index));
            }
            PageView::Data(page) => match sums::of_part(page, part.clone(), how) {
                Ok(sum) => return Ok(sum),
                Err(error) => {
                    tell_mismatch(id, index, page, &error);
                    page.page()
                }
            },
        };
        *view = cache.reread(id, index, page)?;
    }
    Err(never_right(cache, id, index))
}

/// One verified page; `None` if nothing is stored there.
pub(crate) fn read_page(cache: &dyn ObjectCache, id: ObjectId, index: PageIndex) -> Result<Option<PinnedPage>> {
    let view = cache.read(id, index, 1)?.into_iter().next().ok_or_else(short_read)?;
    Ok(match verified(cache, id, index, view)? {
        PageView::Data(page) => Some(page),
        PageView::Zero => None,
    })
}

fn short_read() -> Error {
    Error::Object(object::Error::Protocol("fewer pages than asked for".into()))
}

/// Which checksums a reader wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SumsWanted {
    /// Of which algorithm.
    pub algorithm: Algorithm,
    /// Pages are verified also where their own checksum is what the reader gets, and a bad one is read again from below: for a
    /// reader who found a block bad.
    pub verify: bool,
}

/// Bytes of a file, verified when they were read or with a checksum of each page's part, in the pages that hold them. The pages stay as long as this does.
#[derive(Debug, Default)]
pub struct ReadData {
    pages: Vec<PageView>,
    /// First byte within the first page.
    start: usize,
    length: usize,
}

impl ReadData {
    /// Reads `length` bytes from `offset` on, whatever the object's size.
    pub(crate) fn read(cache: &dyn ObjectCache, id: ObjectId, offset: u64, length: usize) -> Result<ReadData> {
        let mut data = ReadData::views(cache, id, offset, length)?;
        let first = offset / PAGE_SIZE as u64;
        verify(cache, id, first, &mut data.pages)?;
        Ok(data)
    }

    /// Reads as [`ReadData::read`] does, into memory of the caller's. Pages are copied right after they are verified, so that they come from
    /// memory once.
    pub(crate) fn read_into(cache: &dyn ObjectCache, id: ObjectId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut data = ReadData::views(cache, id, offset, buffer.len())?;
        if let [PageView::Data(page)] = &data.pages[..]
            && let (Some(expected), Ok(whole)) = (page.crc64(), <&mut [u8; PAGE_SIZE]>::try_from(&mut *buffer))
        {
            // Summed while it is copied. What does not match does not stay there.
            let copied = if page.is_followed() { crc64_copied_of_followed } else { crc64_copied };
            if copied(page.bytes(), whole) == expected {
                return Ok(());
            }
            whole.fill(0);
        }
        let mut first = offset / PAGE_SIZE as u64;
        let (mut start, mut rest) = (data.start, buffer);
        for views in data.pages.chunks_mut(TOGETHER) {
            verify(cache, id, first, views)?;
            for view in &*views {
                let (piece, after) = rest.split_at_mut(rest.len().min(PAGE_SIZE - start));
                piece.copy_from_slice(&bytes_of(view)[start..start + piece.len()]);
                (start, rest) = (0, after);
            }
            first += views.len() as u64;
        }
        Ok(())
    }

    /// As [`ReadData::read`], with the checksum of each page's part instead of a verification.
    pub(crate) fn read_with_sums(
        cache: &dyn ObjectCache,
        id: ObjectId,
        offset: u64,
        length: usize,
        how: SumsWanted,
    ) -> Result<(ReadData, Vec<Checksum>)> {
        let mut data = ReadData::views(cache, id, offset, length)?;
        let mut sums = Vec::with_capacity(data.pages.len());
        let (mut start, mut left) = (data.start, length);
        for (index, view) in (offset / PAGE_SIZE as u64..).zip(&mut data.pages) {
            let end = (start + left).min(PAGE_SIZE);
            sums.push(summed(cache, id, index, view, start..end, how)?);
            left -= end - start;
            start = 0;
        }
        Ok((data, sums))
    }

    /// The pages, none of them verified yet.
    fn views(cache: &dyn ObjectCache, id: ObjectId, offset: u64, length: usize) -> Result<ReadData> {
        if length == 0 {
            return Ok(ReadData::default());
        }
        let page = PAGE_SIZE as u64;
        let (first, start) = (offset / page, (offset % page) as usize);
        let count = (start + length).div_ceil(PAGE_SIZE);
        let pages = cache.read(id, first, count)?;
        if pages.len() != count {
            return Err(short_read());
        }
        Ok(ReadData { pages, start, length })
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none: the end of the file.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes, in order, in pieces of a page at most; for a vectored reply.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (mut start, mut left) = (self.start, self.length);
        self.pages.iter().map(move |view| {
            let bytes = bytes_of(view);
            let end = (start + left).min(PAGE_SIZE);
            let slice = &bytes[start..end];
            left -= end - start;
            start = 0;
            slice
        })
    }

    /// The bytes in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        self.slices().for_each(|slice| bytes.extend_from_slice(slice));
        bytes
    }
}
