//! Frames of metadata: pages of directories, links and extended attributes, and the twins of those that are changed.
//!
//! Where the process protects memory ([`holdfast_guard`]), they lie behind the ordinary frames in a region of their own, are written in windows
//! only, and a stray write ends the process with a report that names the page. Devices and the kernel know no windows: what they read into is
//! an ordinary frame, which is then exchanged. Elsewhere pages of metadata are in ordinary frames, and only twins lie here.
//!
//! Invariants: a frame of metadata is written in a window, by the owner of its [`MetadataFrame`] or of the sole reference to a twin; there are
//! no more pages of metadata than pages have room, and no more twins than pages that they are twins of, but for some that are just being made.

use super::free::ORDINARY;
use super::{Arena, Descriptor, FrameMut, Header, PageSeal, PinnedPage};
use crate::{Kind, ObjectId, PAGE_SIZE, PageIndex};
use holdfast_guard::{self as guard, Protect, Region};
use holdfast_integrity::{Algorithm, Checksum, MergeError, PageSums, merge_page};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The list of frames of metadata.
pub(super) const METADATA: usize = 1;
/// Twins that are being made while there is one of each page: more than threads.
const IN_THE_MAKING: u32 = 1024;
/// What reports call the memory.
const REGION: &str = "pages of directories, links and attributes";

/// All frames of an arena with so many ordinary ones: the first one behind those is for [`Begin`].
pub(super) fn all_frames(ordinary: u32) -> Option<u32> {
    ordinary.checked_mul(3)?.checked_add(1 + IN_THE_MAKING)
}

/// What the frames of metadata begin with: by it a signal handler finds the arena.
#[repr(C)]
struct Begin {
    magic: u64,
    /// Bytes from the arena's first one to here.
    back: usize,
}

const MAGIC: u64 = u64::from_le_bytes(*b"HFMETAF1");

/// Changes pages of metadata: in a window, where they are locked. Around a batch it makes one window of many; nothing in there may wait for a device.
#[inline]
pub fn changing<R>(changes: impl FnOnce() -> R) -> R {
    guard::open(changes)
}

impl Arena {
    /// Locks the frames of metadata, if this process locks anything.
    pub(super) fn lock_metadata(&mut self) -> io::Result<()> {
        let start = self.frame(self.frames);
        let back = start.addr() - self.base.addr();
        // SAFETY: the frame is nobody's, as none is handed out yet, and this one never will be.
        unsafe { start.cast::<Begin>().write(Begin { magic: MAGIC, back }) };
        if guard::protect() == Protect::Off {
            return Ok(());
        }
        self.base.expose_provenance();
        if !back.is_multiple_of(rustix::param::page_size()) {
            return Err(io::Error::other(
                "pages of the system are larger than those of metadata, which cannot be locked",
            ));
        }
        let start = NonNull::new(start).expect("within the mapping");
        let bytes = (self.all_frames - self.frames) as usize * PAGE_SIZE;
        // SAFETY: the mapping lives until the arena is dropped, which drops the region before; nobody else sets the rights of its pages.
        let lock = unsafe { Region::cover(REGION, start, bytes) };
        self.lock = Some(lock.map_err(io::Error::other)?);
        Ok(())
    }

    /// The calling thread may be older than the lock.
    #[inline]
    pub(super) fn admit_to(&self, frame: u32) {
        if frame >= self.frames && self.lock.is_some() {
            guard::admit_thread();
        }
    }

    /// Twins that there are, each of which takes a page of memory beside the room for pages.
    pub fn twins(&self) -> u64 {
        self.header().twins.load(Ordering::Relaxed)
    }

    fn take_metadata(&self) -> u32 {
        self.take(METADATA).expect("more frames of metadata than pages, twins and threads")
    }
}

impl FrameMut {
    /// A frame for a page of metadata, in place of this one. Its bytes are whatever they were.
    pub fn into_metadata(self) -> MetadataFrame {
        self.exchanged(|_, _| {})
    }

    /// The same, with the bytes of this one: what a device has read.
    pub fn into_metadata_with_bytes(self) -> MetadataFrame {
        self.exchanged(|from, to| {
            // SAFETY: two frames that are nobody else's.
            changing(|| unsafe { ptr::copy_nonoverlapping(from, to, PAGE_SIZE) });
        })
    }

    fn exchanged(mut self, carry: impl FnOnce(*const u8, *mut u8)) -> MetadataFrame {
        if self.arena.lock.is_some() && self.frame < self.arena.frames {
            // The room that was taken for a page stays taken.
            let frame = self.arena.take_metadata();
            carry(self.arena.frame(self.frame), self.arena.frame(frame));
            let ordinary = std::mem::replace(&mut self.frame, frame);
            self.arena.put(ordinary);
            self.arena.bound_memory(ORDINARY);
        }
        MetadataFrame(self)
    }
}

/// A frame for a page of metadata, being filled: its only owner.
#[derive(Debug)]
pub struct MetadataFrame(FrameMut);

impl MetadataFrame {
    fn fill<R>(&mut self, fill: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        changing(|| fill(&mut self.0))
    }

    /// Gets these bytes, and gives their checksum: of the bytes where they come from, so that a copy gone wrong is seen by the next reader.
    pub fn copy_summed(&mut self, bytes: &[u8; PAGE_SIZE], algorithm: Algorithm) -> Checksum {
        self.fill(|frame| algorithm.sum_copied(bytes, frame))
    }

    /// Becomes the page `old` with `part` written at byte `at`, each under its checksum ([`merge_page`]).
    ///
    /// # Errors
    /// One of the two has not the checksum; then nothing has changed.
    pub fn merge(
        &mut self,
        old: (&[u8; PAGE_SIZE], Checksum),
        at: usize,
        part: (&[u8], Checksum),
        algorithm: Algorithm,
    ) -> Result<Checksum, MergeError> {
        self.fill(|frame| merge_page(old.0, old.1, at, part.0, part.1, algorithm, frame))
    }

    /// Makes the bytes immutable, under the checksum that the caller has for them.
    pub fn publish(self, checksum: Checksum) -> PinnedPage {
        self.0.publish(checksum)
    }

    /// The same, under what the store knows of them.
    pub fn publish_with(self, sums: PageSums) -> PinnedPage {
        self.0.publish_with(sums)
    }

    /// The same, under the checksum and the second sum that the caller has for them.
    pub fn publish_sealed(self, checksum: Checksum, seal: PageSeal) -> PinnedPage {
        let page = self.0.publish(checksum);
        page.set_seal(seal);
        page
    }

    /// The page `page` once more, under the same sums.
    pub fn publish_copy(mut self, page: &PinnedPage) -> PinnedPage {
        self.fill(|bytes| bytes.copy_from_slice(page.bytes()));
        let copy = self.0.publish(page.sum());
        if let Some(seal) = page.seal() {
            copy.set_seal(seal);
        }
        if let Some((object, index, kind)) = page.owner() {
            copy.belongs_to(object, index, kind);
        }
        copy
    }
}

impl PinnedPage {
    /// Whether it lies where pages of metadata have to.
    pub fn is_in_place(&self) -> bool {
        self.arena.lock.is_none() || self.page.frame >= self.arena.frames
    }

    /// Whose page of metadata it is, for reports.
    pub fn belongs_to(&self, object: ObjectId, index: PageIndex, kind: Kind) {
        let words = &self.arena.descriptor(self.page.frame).strong_bytes;
        for (word, value) in words.iter().zip([object.0, index, kind as u64]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn owner(&self) -> Option<(ObjectId, PageIndex, Kind)> {
        self.arena.descriptor(self.page.frame).owner()
    }

    /// The page once more, in a frame that takes no room from pages. `before`: the twin of another version, whose memory is used again if
    /// nobody else has it.
    pub fn twin(&self, before: Option<PinnedPage>) -> PinnedPage {
        let frame = before.and_then(PinnedPage::taken_back).unwrap_or_else(|| {
            let arena = &self.arena;
            arena.header().twins.fetch_add(1, Ordering::Relaxed);
            let frame = arena.take_metadata();
            arena.descriptor(frame).is_twin.store(1, Ordering::Relaxed);
            FrameMut { arena: arena.clone(), frame }
        });
        MetadataFrame(frame).publish_copy(self)
    }

    /// Its frame, if this is the only reference to it.
    fn taken_back(self) -> Option<FrameMut> {
        let descriptor = self.arena.descriptor(self.page.frame);
        descriptor.references.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).ok()?;
        descriptor.generation.fetch_add(1, Ordering::AcqRel);
        descriptor.published.store(0, Ordering::Relaxed);
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used again, so the reference is moved out exactly once.
        let arena: Arc<Arena> = unsafe { ptr::read(&this.arena) };
        Some(FrameMut { arena, frame: this.page.frame })
    }
}

impl Descriptor {
    fn owner(&self) -> Option<(ObjectId, PageIndex, Kind)> {
        if self.strong.load(Ordering::Relaxed) != Algorithm::None.id() {
            return None;
        }
        let [object, index, kind, _] = &self.strong_bytes;
        let kind = Kind::from_raw(u8::try_from(kind.load(Ordering::Relaxed)).ok()?)?;
        Some((ObjectId(object.load(Ordering::Relaxed)), index.load(Ordering::Relaxed), kind))
    }
}

/// For [`guard::report_faults`]: tells which page a stray write was aimed at.
pub fn tell_aim(fault: &guard::Fault<'_>) {
    if fault.place.region == REGION {
        guard::tell(format_args!("holdfast: it was aimed at {}", Aim::at(fault.place.start, fault.place.offset)));
    }
}

/// What a stray write was aimed at.
struct Aim {
    what: What,
    /// The byte of the page.
    byte: usize,
}

enum What {
    /// What the frames begin with.
    Begin,
    Frame {
        owner: Option<(ObjectId, PageIndex, Kind)>,
        is_twin: bool,
        is_published: bool,
    },
}

impl Aim {
    /// Of a place in the frames of metadata that begin at `start`. Takes no lock and no memory: called in a signal handler.
    fn at(start: usize, offset: usize) -> Aim {
        let (number, byte) = (offset / PAGE_SIZE, offset % PAGE_SIZE);
        // SAFETY: a region of this name begins with this, for as long as it is one; it does not change.
        let begin = unsafe { &*ptr::with_exposed_provenance::<Begin>(start) };
        if number == 0 || begin.magic != MAGIC {
            return Aim { what: What::Begin, byte };
        }
        let base = start - begin.back;
        // SAFETY: so far before it the arena begins, with its header and then a descriptor of each frame; what changes of them is atomic.
        let descriptor = unsafe {
            let ordinary = (*ptr::with_exposed_provenance::<Header>(base)).frames as usize;
            &*ptr::with_exposed_provenance::<Descriptor>(base + PAGE_SIZE).add(ordinary + number)
        };
        let is_twin = descriptor.is_twin.load(Ordering::Relaxed) != 0;
        let is_published = descriptor.published.load(Ordering::Relaxed) != 0;
        Aim { what: What::Frame { owner: descriptor.owner(), is_twin, is_published }, byte }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let What::Frame { owner, is_twin, is_published } = self.what else {
            return f.write_str("what the frames begin with");
        };
        write!(f, "byte {} of ", self.byte)?;
        if !is_published {
            f.write_str("a frame that has no page, or one that is being made")?;
        }
        let Some((object, index, kind)) = owner else {
            return if is_published { f.write_str("a page that is nobody's yet") } else { Ok(()) };
        };
        f.write_str(match (is_published, is_twin) {
            (false, _) => "; the last one was ",
            (true, true) => "the twin of ",
            (true, false) => "",
        })?;
        write!(f, "page {index} of object {object}, ")?;
        f.write_str(match kind {
            Kind::Directory => "a directory",
            Kind::Symlink => "a symbolic link",
            Kind::Xattr => "extended attributes",
            _ => "of another kind",
        })
    }
}

#[cfg(test)]
mod tests;
