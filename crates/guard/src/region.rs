//! Regions, and the list of them that a signal handler can read.
//!
//! Invariants: the list only grows, an entry is used again for a region of the same name; an entry names a region from before its pages
//! are locked until nobody has it any more; entries change under [`CHANGING`], and are read without it.

use crate::memory::{self, Mapping};
use crate::{CHANGING, Protect, keys, protect};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Memory that can be written only inside a window ([`open`](crate::open)), zeros at first.
///
/// Who may touch which of its bytes when is between its users, as with any memory; this type only has the pages.
pub struct Region {
    entry: &'static Entry,
    start: usize,
    bytes: usize,
    /// `None`: somebody else's, covered.
    mapping: Option<Mapping>,
}

/// A region could not be made.
#[derive(Debug, thiserror::Error)]
#[error("protecting {bytes} bytes of memory for {region}: {call}: {source}")]
pub struct RegionError {
    /// The name it would have had.
    pub region: &'static str,
    /// Its length.
    pub bytes: usize,
    /// What was tried.
    pub call: &'static str,
    /// The system's answer. Usually there is no memory left, or no mapping (`vm.max_map_count`).
    pub source: io::Error,
}

/// Where in which region an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The region's name.
    pub region: &'static str,
    /// Its first address, which tells regions of one name apart.
    pub start: usize,
    /// Bytes from there.
    pub offset: usize,
}

impl Region {
    /// New memory of `bytes`, rounded up to whole pages of the system. The name stands in reports of stray writes.
    ///
    /// # Errors
    /// The system has none, or cannot lock it.
    ///
    /// # Panics
    /// `bytes` is 0.
    pub fn new(name: &'static str, bytes: usize) -> Result<Region, RegionError> {
        Region::aligned(name, bytes, memory::page_size())
    }

    /// The same, beginning at a multiple of `alignment`, so that who has an address in it finds the first one.
    ///
    /// # Errors
    /// As [`Region::new`].
    ///
    /// # Panics
    /// `bytes` is 0, or `alignment` is no power of two.
    pub fn aligned(name: &'static str, bytes: usize, alignment: usize) -> Result<Region, RegionError> {
        assert!(bytes > 0, "a region of no bytes");
        assert!(alignment.is_power_of_two(), "an alignment to {alignment}");
        let failed = |call, source| RegionError { region: name, bytes, call, source };
        let page = memory::page_size();
        let whole =
            bytes.checked_next_multiple_of(page).ok_or_else(|| failed("mmap", io::ErrorKind::OutOfMemory.into()))?;
        let mapping = Mapping::aligned(whole, alignment.max(page)).map_err(|source| failed("mmap", source))?;
        let (start, bytes) = (mapping.address(), mapping.bytes());
        let entry = register(name, start, bytes)?;
        Ok(Region { entry, start, bytes, mapping: Some(mapping) })
    }

    /// Locks memory that somebody else has mapped, private or shared, until the value is dropped; then it can be written as before.
    ///
    /// # Safety
    /// It stays mapped, and for reading and writing, for as long as the value lives; and nobody else sets the rights of these pages.
    ///
    /// # Errors
    /// The system cannot lock it.
    ///
    /// # Panics
    /// It does not begin at a page of the system or is not some whole ones.
    pub unsafe fn cover(name: &'static str, memory: NonNull<u8>, bytes: usize) -> Result<Region, RegionError> {
        let (start, page) = (memory.as_ptr() as usize, memory::page_size());
        assert!(
            bytes > 0 && start.is_multiple_of(page) && bytes.is_multiple_of(page),
            "{bytes} bytes at {start:#x} are not whole pages"
        );
        Ok(Region { entry: register(name, start, bytes)?, start, bytes, mapping: None })
    }

    /// The first byte. Pointers for writing come from here, and not from references (see [`open`](crate::open)).
    pub fn as_ptr(&self) -> *mut u8 {
        self.start as *mut u8
    }

    /// Bytes, a multiple of the system's page size.
    #[allow(clippy::len_without_is_empty, reason = "none is")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether all of `bytes` at `address` lie in the region.
    pub fn contains(&self, address: *const u8, bytes: usize) -> bool {
        let offset = (address as usize).wrapping_sub(self.start);
        offset <= self.bytes && bytes <= self.bytes - offset
    }

    /// Whether the calling thread could write into the region now. Asks the kernel, which takes about a microsecond: for tests and
    /// self-checks. Nothing is changed by it.
    pub fn admits_writes(&self) -> bool {
        memory::admits_writes(self.start)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _changing = CHANGING.lock();
        // Memory of our own vanishes with the mapping, after this; what the key leaves behind would be locked for its next user.
        let unlocked = if self.mapping.is_some() { Ok(()) } else { unlock(self.start, self.bytes) };
        self.entry.free();
        if let Err(error) = unlocked {
            panic!("{} bytes of {} stay locked: {error}", self.bytes, self.entry.name);
        }
    }
}

/// Lets everybody write into pages again, as far as this code is concerned.
fn unlock(start: usize, bytes: usize) -> io::Result<()> {
    match protect() {
        Protect::Off => Ok(()),
        Protect::Keys => keys::unlock(start, bytes),
        Protect::Pages => memory::set_writable(start, bytes, true),
    }
}

/// A region in the list, or free to become one.
struct Entry {
    name: &'static str,
    /// `usize::MAX` if free.
    start: AtomicUsize,
    end: AtomicUsize,
    next: Option<&'static Entry>,
}

static NEWEST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

impl Entry {
    fn set(&self, start: usize, bytes: usize) {
        self.end.store(start + bytes, Ordering::Release);
        self.start.store(start, Ordering::Release);
    }

    fn free(&self) {
        self.start.store(usize::MAX, Ordering::Release);
    }

    /// First address and the one after the last.
    fn range(&self) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Acquire);
        // Freed and used again in between: then the end is another region's.
        let unchanged = self.start.load(Ordering::Acquire) == start;
        (start != usize::MAX && unchanged).then_some((start, end))
    }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: null or an entry; entries are never freed.
    let newest = unsafe { NEWEST.load(Ordering::Acquire).as_ref() };
    std::iter::successors(newest, |entry| entry.next)
}

/// Enters a region, and locks its pages.
fn register(name: &'static str, start: usize, bytes: usize) -> Result<&'static Entry, RegionError> {
    let changing = CHANGING.lock();
    let entry = match entries().find(|entry| entry.name == name && entry.range().is_none()) {
        Some(entry) => entry,
        None => {
            let next = entries().next();
            let (unused, end) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
            let entry: &'static mut Entry = Box::leak(Box::new(Entry { name, start: unused, end, next }));
            NEWEST.store(entry, Ordering::Release);
            entry
        }
    };
    entry.set(start, bytes);
    let (call, locked) = match protect() {
        Protect::Off => ("", Ok(())),
        Protect::Keys => ("pkey_mprotect", keys::lock(start, bytes)),
        Protect::Pages => ("mprotect", memory::set_writable(start, bytes, changing.count > 0)),
    };
    if let Err(source) = locked {
        // The kernel goes mapping by mapping: those before the one that it could not change are locked.
        let unlocked = unlock(start, bytes);
        entry.free();
        if let Err(error) = unlocked {
            panic!("{bytes} bytes of {name} could not be locked ({source}), and some stay locked: {error}");
        }
        return Err(RegionError { region: name, bytes, call, source });
    }
    Ok(entry)
}

/// Whether there are regions.
pub(crate) fn any() -> bool {
    entries().any(|entry| entry.range().is_some())
}

/// Lets all threads write into all regions, or none. Called under [`CHANGING`].
pub(crate) fn set_all_writable(writable: bool) {
    for entry in entries() {
        if let Some((start, end)) = entry.range()
            && let Err(error) = memory::set_writable(start, end - start, writable)
        {
            // With rights not as they should be, what follows is a fault where none belongs, or none where one does.
            panic!("rights of {} bytes of {} at {start:#x}: {error}", end - start, entry.name);
        }
    }
}

/// The region that an address lies in. Takes no lock and no memory, so that a signal handler can ask.
pub fn place_of(address: usize) -> Option<Place> {
    entries().find_map(|entry| {
        let (start, end) = entry.range()?;
        (start..end).contains(&address).then(|| Place { region: entry.name, start, offset: address - start })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;

    #[test]
    fn an_address_is_found_while_its_region_lives() {
        let first = Region::new("first", 3 * memory::page_size()).unwrap();
        let second = Region::new("second", 1).unwrap();
        assert_eq!(second.len(), memory::page_size());
        let at = first.as_ptr() as usize;
        assert_eq!(place_of(at + 5000), Some(Place { region: "first", start: at, offset: 5000 }));
        let last = second.as_ptr() as usize + second.len() - 1;
        assert_eq!(place_of(last).unwrap().region, "second");
        assert!(first.contains(first.as_ptr(), first.len()));
        assert!(!first.contains(first.as_ptr(), first.len() + 1));
        assert!(!first.contains(first.as_ptr().wrapping_sub(1), 1));
        assert!(!first.contains(first.as_ptr().wrapping_add(1), usize::MAX));

        let entry = second.entry as *const Entry;
        drop(second);
        // Another test's region may be there by now.
        let found = |address| place_of(address).map(|place| place.region);
        assert_ne!(found(last), Some("second"));
        // A name that comes and goes takes one entry.
        let again = Region::new("second", 1).unwrap();
        assert!(ptr::eq(again.entry, entry));
        drop(first);
        assert_ne!(found(at), Some("first"));
    }

    #[test]
    fn a_region_begins_where_it_should_and_takes_no_more() {
        for (bytes, alignment) in [(1, 1), (64 << 10, 2 << 20), (2 << 20, 2 << 20), (3 << 20, 64 << 20)] {
            let region = Region::aligned("aligned", bytes, alignment).unwrap();
            assert!((region.as_ptr() as usize).is_multiple_of(alignment));
            assert_eq!(region.len(), bytes.next_multiple_of(memory::page_size()));
            open(|| {
                // SAFETY: the region is that long, and nobody else's.
                unsafe { region.as_ptr().write_bytes(7, region.len()) };
            });
        }
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        let error = Region::new("everything", usize::MAX / 2).err().unwrap();
        assert_eq!((error.region, error.call), ("everything", "mmap"));
        assert!(Region::new("more", usize::MAX).is_err());
    }
}
