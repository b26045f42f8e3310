//! Faults of memory on purpose, in a cache that is in use: bits of pages, or of the checksums that they are kept under, are inverted. Nothing
//! calls this but tests, the lab, and a mount made for it (`holdfast mount --lab`).
//!
//! No epoch is being written meanwhile, so a page is either changed and in no recovery point (t0–t1), or as the store has it (t2–t3); whoever
//! wants bits to flip at any moment does without that ([`Cache::at_any_moment`]).

use crate::Cache;
use crate::object::Residence;
use crate::state::State;
use holdfast_object::{Attributes, Epoch, ObjectId, PAGE_BITS, PAGE_SIZE, PageIndex};
use parking_lot::MutexGuard;
use std::fmt;

/// Where the newest version of a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// In memory, and in no recovery point yet.
    Dirty,
    /// In memory, and in the store.
    Clean,
}

impl fmt::Display for PageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageState::Dirty => "dirty",
            PageState::Clean => "clean",
        })
    }
}

/// A page in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResidentPage {
    /// Whose.
    pub object: ObjectId,
    /// Which.
    pub index: PageIndex,
    /// Where else it is.
    pub state: PageState,
    /// Bits of the checksum that it is kept under in memory; 0 in the modes without one.
    pub sum_bits: u32,
}

/// What of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlipPart {
    /// Its bytes: of [`holdfast_object::PAGE_BITS`] bits.
    Bytes,
    /// The same without unlocking them, which ends the process where they are locked.
    Astray,
    /// The checksum in memory: of [`ResidentPage::sum_bits`].
    Sum,
}

/// Why nothing was inverted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlipError {
    /// The page is not in memory.
    NotInMemory,
    /// It is in another state than was asked for.
    Is(PageState),
    /// There are fewer bits.
    NoSuchBit {
        /// Asked for.
        bit: u32,
        /// How many there are.
        bits: u32,
    },
    /// Somebody reads the page at this moment, or another file has it too: bytes that someone has a reference to must not change.
    InUse,
}

impl fmt::Display for FlipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlipError::NotInMemory => f.write_str("the page is not in memory"),
            FlipError::Is(state) => write!(f, "the page is {state}"),
            FlipError::InUse => f.write_str("the page is being read, or is in memory for two files"),
            FlipError::NoSuchBit { bit, bits } => write!(f, "there is no bit {bit} of {bits}"),
        }
    }
}

impl std::error::Error for FlipError {}

fn state_of(residence: Residence) -> PageState {
    match residence {
        Residence::Clean(_) => PageState::Clean,
        Residence::Dirty | Residence::Frozen => PageState::Dirty,
    }
}

/// A cache while no epoch is being written, but for [`Cache::at_any_moment`]. Transactions go on.
pub struct Quiet<'a> {
    cache: &'a Cache,
    _no_epoch_is_written: Option<MutexGuard<'a, ()>>,
}

impl Cache {
    /// Makes a recovery point, also if nothing has changed: for what is to happen meanwhile.
    ///
    /// # Errors
    /// As a sync of everything.
    pub fn make_recovery_point(&self) -> holdfast_object::Result<Epoch> {
        self.close_epoch_with(Some(|_| Ok(())))
    }

    /// Waits until no epoch is being written, and keeps others from being written.
    pub fn quiet(&self) -> Quiet<'_> {
        Quiet { cache: self, _no_epoch_is_written: Some(self.flushing.lock()) }
    }

    /// Waits for nothing: an epoch may be written meanwhile. Its pages count as [`PageState::Dirty`], and may be clean at once.
    pub fn at_any_moment(&self) -> Quiet<'_> {
        Quiet { cache: self, _no_epoch_is_written: None }
    }
}

impl Quiet<'_> {
    /// Pages in memory of the objects that are wanted, by object and index.
    pub fn resident_pages(&self, is_wanted: impl Fn(ObjectId, &Attributes) -> bool) -> Vec<ResidentPage> {
        let state = self.cache.state.read();
        let objects = state.objects.iter().filter(|(id, object)| is_wanted(**id, &object.attributes));
        let pages = objects.flat_map(|(&object, known)| {
            known.pages.iter().map(move |(&index, slot)| ResidentPage {
                object,
                index,
                state: state_of(slot.residence),
                sum_bits: slot.page.sum_bits(),
            })
        });
        let mut pages: Vec<_> = pages.collect();
        pages.sort_unstable_by_key(|page| (page.object, page.index));
        pages
    }

    /// The bytes of a page in memory, as they are.
    pub fn bytes(&self, page: &ResidentPage) -> Option<Box<[u8; PAGE_SIZE]>> {
        let state = self.cache.state.read();
        let slot = state.objects.get(&page.object)?.pages.get(&page.index)?;
        Some(Box::new(*slot.page.bytes()))
    }

    /// Inverts bits of a page in memory that is in the state that `page` says.
    ///
    /// # Errors
    /// See [`FlipError`]; then nothing has changed.
    pub fn flip(&self, page: &ResidentPage, part: FlipPart, bits: &[u32]) -> Result<(), FlipError> {
        let mut state = self.cache.state.write();
        let slot = state.objects.get_mut(&page.object).and_then(|known| known.pages.get_mut(&page.index));
        let slot = slot.ok_or(FlipError::NotInMemory)?;
        let is = state_of(slot.residence);
        if is != page.state {
            return Err(FlipError::Is(is));
        }
        let of = match part {
            FlipPart::Bytes | FlipPart::Astray => PAGE_BITS,
            FlipPart::Sum => slot.page.sum_bits(),
        };
        if let Some(&bit) = bits.iter().find(|bit| **bit >= of) {
            return Err(FlipError::NoSuchBit { bit, bits: of });
        }
        match part {
            FlipPart::Bytes if slot.page.flip(bits) => {}
            FlipPart::Astray if slot.page.flip_astray(bits) => {}
            FlipPart::Bytes | FlipPart::Astray => return Err(FlipError::InUse),
            FlipPart::Sum => bits.iter().for_each(|&bit| slot.page = slot.page.with_flipped_sum(bit)),
        }
        Ok(())
    }

    /// Calls `damage`, for what it does to the blocks of a page in the store, and takes the page out of memory, so that the next reader
    /// meets it.
    ///
    /// # Errors
    /// [`FlipError::Is`] if the page has changes that the store lacks; then `damage` was not called.
    pub fn below<T>(&self, object: ObjectId, index: PageIndex, damage: impl FnOnce() -> T) -> Result<T, FlipError> {
        let of_page = |state: &State| {
            let slot = state.objects.get(&object)?.pages.get(&index)?;
            Some(state_of(slot.residence))
        };
        if of_page(&self.cache.state.read()) == Some(PageState::Dirty) {
            return Err(FlipError::Is(PageState::Dirty));
        }
        let done = damage();
        let mut state = self.cache.state.write();
        let is_clean = of_page(&state) == Some(PageState::Clean);
        if let Some(known) = state.objects.get_mut(&object) {
            if is_clean {
                known.drop_page(index);
            }
            // What is being read at this moment was read before.
            known.version += 1;
        }
        Ok(done)
    }
}
