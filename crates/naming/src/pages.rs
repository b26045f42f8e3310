//! Reading pages: what comes out is verified at that moment.

use crate::error::{Error, Result};
use holdfast_object::{self as object, ObjectCache, ObjectId, ObjectKey, PAGE_SIZE, PageIndex, PageView, PinnedPage};

/// A page at a page boundary: a slice across two pages costs the kernel twice the work.
#[repr(align(4096))]
struct Aligned([u8; PAGE_SIZE]);

/// A page of zeroes, for what was never written.
static ZERO_PAGE: Aligned = Aligned([0; PAGE_SIZE]);
/// How often a page is read again before it is given up.
const REREADS_MAX: usize = 3;

/// Verifies a page; reads it again from below if it does not match. Corrupt bytes do not get out.
fn verified(cache: &dyn ObjectCache, id: ObjectId, index: PageIndex, mut view: PageView) -> Result<PageView> {
    for _ in 0..REREADS_MAX {
        let (page, got) = match &view {
            PageView::Zero => return Ok(view),
            PageView::Data(page) => match page.verify() {
                Ok(_) => return Ok(view),
                Err(got) => (page.page(), got),
            },
        };
        tracing::warn!(object = id.0, index, expected = page.checksum, got, "page in memory does not match");
        view = cache.reread(id, index, page)?;
    }
    let place = object::Place {
        object: Some(ObjectKey { domain: cache.domain(), object: id }),
        index: Some(index),
        ..object::Place::default()
    };
    Err(object::Error::corrupt(place, "checksum in memory", "a page that stays right", "one that changes").into())
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

/// Bytes of a file, verified when they were read, in the pages that hold them. The pages stay as long as this does.
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
        if length == 0 {
            return Ok(ReadData::default());
        }
        let page = PAGE_SIZE as u64;
        let (first, start) = (offset / page, (offset % page) as usize);
        let count = (start + length).div_ceil(PAGE_SIZE);
        let views = cache.read(id, first, count)?;
        if views.len() != count {
            return Err(short_read());
        }
        let pages = (first..).zip(views).map(|(index, view)| verified(cache, id, index, view));
        Ok(ReadData { pages: pages.collect::<Result<_>>()?, start, length })
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
            let bytes = match view {
                PageView::Data(page) => page.bytes(),
                PageView::Zero => &ZERO_PAGE.0,
            };
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
