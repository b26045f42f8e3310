//! The arena: page frames and their descriptors in one piece of memory that several processes can map.
//!
//! Everything in it is found by offset; nothing in it is a pointer. Layout, in bytes from its start:
//!
//! ```text
//! 0                     header (one page): magic, version, number of frames, free-list head, offsets
//! 4096                  descriptors, 64 bytes each
//! log_offset            the operation log's bytes (opaque here)
//! frames_offset         frames, 4096 bytes each: the ordinary ones, then those of metadata ([`metadata`])
//! ```
//!
//! Where the process protects memory ([`holdfast_guard`]), frames of metadata are locked: their bytes change in windows only.
//!
//! Invariants:
//! - a frame is *free* (0 references, on the free list), *being filled* (owned by exactly one [`FrameMut`], 0 references),
//!   or *published* (one reference per [`PinnedPage`], bytes immutable);
//! - a frame's generation counts how often it has been freed, so an old [`PageRef`] is recognised;
//! - a page of metadata has a second sum ([`PageSeal`]), from when it is published or put in its place, until the frame is;
//! - a published frame's descriptor says under which checksums its bytes are; a second, strong one may come later and does not
//!   change then;
//! - what has come from the device without a look at it (checksum forwarding) is verified by the strong checksum before the other one counts.

mod flip;
mod free;
mod metadata;
mod seal;

use holdfast_guard::Region;
use holdfast_integrity::{Algorithm, Checksum, PageSums, crc64};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::PAGE_SIZE;
pub use flip::PAGE_BITS;
use free::{FrameLists, TIME_MAX_NS};
pub use metadata::{MetadataFrame, changing, tell_aim};
pub use seal::{PageMismatch, PageSeal};

const MAGIC: u64 = u64::from_le_bytes(*b"HFARENA1");
const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
const NO_FRAME: u32 = u32::MAX;
/// In the place of the time since when a page is in memory: nobody has said so yet.
const UNSAID: u64 = 1;
const PUBLISHED: u8 = 1;
/// Published, and nobody has verified it since it came from the device: its first reader goes by the strong checksum.
const FORWARDED: u8 = 2;

/// Names a published page: its frame, that frame's generation, and a number from its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PageRef {
    /// Number of the frame.
    pub frame: u32,
    /// The frame's generation when the page was published.
    pub generation: u32,
    /// The memory checksum of the page (or of the fragment that it holds), if it has 8 bytes or fewer: the frame's descriptor says of
    /// which algorithm. Else 0: then the descriptor has the checksum.
    pub checksum: u64,
}

#[repr(C)]
struct Header {
    magic: u64,
    frames: u64,
    log_offset: u64,
    log_bytes: u64,
    frames_offset: u64,
    /// Pages that there is room for yet.
    free_count: AtomicU64,
    /// Frames that hold twins; they are not part of the room for pages.
    twins: AtomicU64,
    /// Frames that take memory.
    with_memory: AtomicU64,
    /// Of ordinary frames, and of those of metadata.
    lists: [FrameLists; 2],
}

#[repr(C)]
struct Descriptor {
    references: AtomicU32,
    generation: AtomicU32,
    _rest: u32,
    /// Algorithm of the checksum in the [`PageRef`].
    fast: AtomicU8,
    /// Algorithm of `strong_bytes`, written after them.
    strong: AtomicU8,
    /// What a frame in use is: a page, or a twin ([`metadata`]).
    is_twin: AtomicU8,
    /// Whether a page is published in the frame: [`PUBLISHED`], [`FORWARDED`], or 0.
    published: AtomicU8,
    /// When the page came into memory, in nanoseconds of the cache's clock, where that counts, or [`UNSAID`]. Of a free frame its link
    /// ([`free`]), and 0 of one that was never used.
    since_ns: AtomicU64,
    /// A strong checksum; of a page of metadata, which has none, whose page it is.
    strong_bytes: [AtomicU64; 4],
    /// The second sum of a page of metadata ([`PageSeal`]); 0 if it has none.
    seal: AtomicU64,
}
const _: () = assert!(DESCRIPTOR_BYTES == 64);

/// Page frames in shared memory.
pub struct Arena {
    base: *mut u8,
    bytes: usize,
    /// Pages that there is room for: as many as there are ordinary frames.
    frames: u32,
    all_frames: u32,
    log_offset: usize,
    log_bytes: usize,
    frames_offset: usize,
    memory: OwnedFd,
    /// Locks the frames of metadata, if anything is locked in this process.
    lock: Option<Region>,
    /// Held by whoever makes a list of free frames anew, and how often that was.
    rebuilding: Mutex<u64>,
}

// SAFETY: all shared state behind `base` is atomic, or bytes of a frame, which only a unique `FrameMut` writes and only
// holders of a reference read.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("frames", &self.frames).field("free", &self.free_frames()).finish()
    }
}

impl Arena {
    /// A new arena with `frames` page frames (at least 1) and `log_bytes` for the operation log.
    pub fn new(frames: u32, log_bytes: usize) -> std::io::Result<Arc<Arena>> {
        let all_frames = metadata::all_frames(frames).filter(|_| frames > 0);
        let all_frames = all_frames.unwrap_or_else(|| panic!("frames: {frames}"));
        let round = |bytes: usize| bytes.div_ceil(PAGE_SIZE) * PAGE_SIZE;
        let log_offset = PAGE_SIZE + round(all_frames as usize * DESCRIPTOR_BYTES);
        let log_bytes = round(log_bytes);
        let frames_offset = log_offset + log_bytes;
        let bytes = frames_offset + all_frames as usize * PAGE_SIZE;
        let memory = rustix::fs::memfd_create("holdfast-arena", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, bytes as u64)?;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &memory,
                0,
            )?
        };
        let base = base.cast::<u8>();
        let (lock, rebuilding) = (None, Mutex::new(0));
        let mut arena =
            Arena { base, bytes, frames, all_frames, log_offset, log_bytes, frames_offset, memory, lock, rebuilding };
        // SAFETY: the mapping is at least a page, page-aligned, zeroed, and not yet shared.
        unsafe {
            arena.base.cast::<Header>().write(Header {
                magic: MAGIC,
                frames: u64::from(frames),
                log_offset: log_offset as u64,
                log_bytes: log_bytes as u64,
                frames_offset: frames_offset as u64,
                free_count: AtomicU64::new(u64::from(frames)),
                twins: AtomicU64::new(0),
                with_memory: AtomicU64::new(0),
                lists: [FrameLists::new(0), FrameLists::new(frames + 1)],
            });
        }
        arena.lock_metadata()?;
        arena.check();
        Ok(Arc::new(arena))
    }

    /// Asserts what the header says against what this process mapped.
    pub fn check(&self) {
        let header = self.header();
        assert_eq!(header.magic, MAGIC, "arena header scribbled");
        assert_eq!(header.frames, u64::from(self.frames), "arena header scribbled");
        assert_eq!(header.log_offset, self.log_offset as u64, "arena header scribbled");
        assert_eq!(header.log_bytes, self.log_bytes as u64, "arena header scribbled");
        assert_eq!(header.frames_offset, self.frames_offset as u64, "arena header scribbled");
    }

    /// Pages that there is room for.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Pages that there is room for yet.
    pub fn free_frames(&self) -> u32 {
        u32::try_from(self.header().free_count.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// The memory file, for another process to map.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Where in the memory file a frame's bytes begin.
    pub fn frame_offset(&self, frame: u32) -> u64 {
        (self.frames_offset + frame as usize * PAGE_SIZE) as u64
    }

    /// The operation log's bytes: start and length, for its one owner.
    pub fn log_region(&self) -> (*mut u8, usize) {
        // SAFETY: `log_offset` lies within the mapping.
        (unsafe { self.base.add(self.log_offset) }, self.log_bytes)
    }

    /// Takes a reference to a published page; `None` if the frame has been freed since.
    pub fn pin(self: &Arc<Self>, page: PageRef) -> Option<PinnedPage> {
        if page.frame >= self.all_frames {
            return None;
        }
        let descriptor = self.descriptor(page.frame);
        let taken = descriptor
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |references| (references > 0).then(|| references + 1))
            .is_ok();
        if !taken {
            return None;
        }
        let pinned = PinnedPage { arena: self.clone(), page, is_switched: false, is_followed: false };
        (descriptor.generation.load(Ordering::Acquire) == page.generation).then_some(pinned)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping starts with a header, written in `new`; later changes go through its atomics.
        unsafe { &*self.base.cast::<Header>() }
    }

    fn descriptor(&self, frame: u32) -> &Descriptor {
        assert!(frame < self.all_frames, "frame {frame} of {}", self.all_frames);
        // SAFETY: within the mapping by the assertion; all fields that change are atomics; zeroes are valid.
        unsafe { &*self.base.add(PAGE_SIZE + frame as usize * DESCRIPTOR_BYTES).cast::<Descriptor>() }
    }

    fn frame(&self, frame: u32) -> *mut u8 {
        assert!(frame < self.all_frames, "frame {frame} of {}", self.all_frames);
        // SAFETY: within the mapping by the assertion.
        unsafe { self.base.add(self.frames_offset + frame as usize * PAGE_SIZE) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        drop(self.lock.take());
        // SAFETY: nothing borrows from the mapping any more: handles keep the arena alive.
        unsafe {
            let _ = rustix::mm::munmap(self.base.cast(), self.bytes);
        }
    }
}

/// A frame being filled: its only owner. For a page of metadata it is exchanged ([`FrameMut::into_metadata`]).
pub struct FrameMut {
    arena: Arc<Arena>,
    frame: u32,
}

impl fmt::Debug for FrameMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameMut({})", self.frame)
    }
}

impl FrameMut {
    /// Makes the bytes immutable, under the checksum that the caller has for them.
    pub fn publish(self, checksum: Checksum) -> PinnedPage {
        self.publish_with(PageSums::of(checksum))
    }

    /// The same, with what readers verify after the switch.
    pub fn publish_with(self, sums: PageSums) -> PinnedPage {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used again, so the reference is moved out exactly once.
        let arena = unsafe { std::ptr::read(&this.arena) };
        let descriptor = arena.descriptor(this.frame);
        let generation = descriptor.generation.load(Ordering::Acquire);
        let is_fast = sums.memory.algorithm().digest_len() <= 8;
        let (fast, strong) = if is_fast { (sums.memory, sums.strong) } else { (Checksum::none(), sums.memory) };
        descriptor.fast.store(fast.algorithm().id(), Ordering::Relaxed);
        descriptor.set_strong(strong);
        descriptor.since_ns.store(UNSAID, Ordering::Relaxed);
        descriptor.seal.store(0, Ordering::Relaxed);
        let by_strong = sums.is_forwarded && sums.strong.algorithm() != Algorithm::None;
        assert!(is_fast || !by_strong, "a page has room for one strong checksum");
        descriptor.published.store(if by_strong { FORWARDED } else { PUBLISHED }, Ordering::Relaxed);
        let before = descriptor.references.swap(1, Ordering::AcqRel);
        debug_assert_eq!(before, 0, "frame {} published while referenced", this.frame);
        let page = PageRef { frame: this.frame, generation, checksum: fast.as_number() };
        PinnedPage { page, arena, is_switched: false, is_followed: false }
    }
}

impl Deref for FrameMut {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &[u8; PAGE_SIZE] {
        // SAFETY: frames are PAGE_SIZE long, and this handle is the only one to the frame.
        unsafe { &*self.arena.frame(self.frame).cast() }
    }
}

impl DerefMut for FrameMut {
    fn deref_mut(&mut self) -> &mut [u8; PAGE_SIZE] {
        // SAFETY: as above; `&mut self` makes the borrow unique.
        unsafe { &mut *self.arena.frame(self.frame).cast() }
    }
}

impl Drop for FrameMut {
    fn drop(&mut self) {
        self.arena.free(self.frame);
    }
}

impl Descriptor {
    fn is_forwarded(&self) -> bool {
        self.published.load(Ordering::Relaxed) == FORWARDED
    }

    fn set_strong(&self, checksum: Checksum) {
        let bytes = checksum.to_padded();
        for (word, bytes) in self.strong_bytes.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        self.strong.store(checksum.algorithm().id(), Ordering::Release);
    }

    /// That of [`Algorithm::None`] if there is none, or the descriptor has been scribbled on.
    fn strong(&self) -> Checksum {
        let Ok(algorithm) = Algorithm::parse(self.strong.load(Ordering::Acquire)) else { return Checksum::none() };
        let mut bytes = [0; holdfast_integrity::DIGEST_MAX];
        for (word, bytes) in self.strong_bytes.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Checksum::from_bytes(algorithm, &bytes[..algorithm.digest_len()]).unwrap_or(Checksum::none())
    }
}

/// A reference to a published page; the page stays as long as one is held.
pub struct PinnedPage {
    arena: Arc<Arena>,
    page: PageRef,
    /// Whether the strong checksum is the one that counts for this reader.
    is_switched: bool,
    /// Whether the page behind it in memory is what this reader comes to next.
    is_followed: bool,
}

impl PinnedPage {
    /// Its name.
    pub fn page(&self) -> PageRef {
        self.page
    }

    /// Its bytes, not verified.
    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        self.arena.admit_to(self.page.frame);
        // SAFETY: published bytes are not written while a reference is held, and `self` is one.
        unsafe { &*self.arena.frame(self.page.frame).cast() }
    }

    /// The checksum that it is kept under in memory; of [`Algorithm::None`] in the modes without one.
    pub fn sum(&self) -> Checksum {
        let descriptor = self.arena.descriptor(self.page.frame);
        match Algorithm::parse(descriptor.fast.load(Ordering::Relaxed)) {
            Ok(Algorithm::None) => descriptor.strong(),
            Ok(algorithm) => Checksum::from_number(algorithm, self.page.checksum),
            // Scribbled on: nothing that the bytes can have.
            Err(_) => Checksum::crc64(!crc64(self.bytes())),
        }
    }

    /// All checksums that are known of it.
    pub fn sums(&self) -> PageSums {
        let descriptor = self.arena.descriptor(self.page.frame);
        PageSums { memory: self.sum(), strong: descriptor.strong(), is_forwarded: descriptor.is_forwarded() }
    }

    /// The strong checksum is known from now on, for those who switch to it. The caller has verified the page after generating it.
    pub fn set_strong(&self, checksum: Checksum) {
        let descriptor = self.arena.descriptor(self.page.frame);
        if descriptor.strong.load(Ordering::Acquire) == Algorithm::None.id() {
            descriptor.set_strong(checksum);
        }
    }

    /// It is in memory since now, by the clock of whoever asks with [`PinnedPage::since_ns`]; unless that has been said before, of a page that
    /// another place gets, too: what was in memory for long can have been hit for long.
    pub fn set_since(&self, now_ns: u64) {
        let since = &self.arena.descriptor(self.page.frame).since_ns;
        let now_ns = now_ns.clamp(UNSAID + 1, TIME_MAX_NS);
        let _known = since.compare_exchange(UNSAID, now_ns, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// See [`PinnedPage::set_since`]; 0 if nobody has said so yet.
    pub fn since_ns(&self) -> u64 {
        match self.arena.descriptor(self.page.frame).since_ns.load(Ordering::Relaxed) {
            UNSAID => 0,
            since_ns => since_ns,
        }
    }

    /// This reader goes by the strong checksum, if there is one.
    pub fn switched(mut self) -> PinnedPage {
        self.is_switched =
            self.arena.descriptor(self.page.frame).strong.load(Ordering::Acquire) != Algorithm::None.id();
        self
    }

    /// Whether this reader goes by the strong checksum.
    pub fn is_switched(&self) -> bool {
        self.is_switched
    }

    /// This reader comes to `next` after it: whether that lies behind it in memory is [`PinnedPage::is_followed`].
    pub fn set_next(&mut self, next: &PinnedPage) {
        self.is_followed = self.page.frame + 1 == next.page.frame;
    }

    /// Whether who reads it knows that the page behind it in memory is read next, and can ask for that on the way.
    pub fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// The checksum that counts for this reader: the strong one after the switch, and of a page that nobody has verified since it came from
    /// the device.
    pub fn expected(&self) -> Checksum {
        let descriptor = self.arena.descriptor(self.page.frame);
        if self.is_switched || descriptor.is_forwarded() { descriptor.strong() } else { self.sum() }
    }

    /// The caller has verified the bytes by `expected`, a checksum of the page. If that was the strong one, then a page from the device is as
    /// any other from now on: readers go by what it has in memory.
    pub fn set_verified(&self, expected: &Checksum) {
        let descriptor = self.arena.descriptor(self.page.frame);
        if descriptor.is_forwarded() && expected.algorithm().id() == descriptor.strong.load(Ordering::Relaxed) {
            descriptor.published.store(PUBLISHED, Ordering::Relaxed);
        }
    }

    /// Its bytes, if they match the checksum now, and the second sum of a page of metadata. In the modes without checksums in memory they
    /// always do, unless it has a second sum.
    pub fn verify(&self) -> Result<&[u8; PAGE_SIZE], PageMismatch> {
        let bytes = self.bytes();
        if let Some(seal) = self.seal() {
            return self.verify_both(seal).map(|()| bytes);
        }
        // By far the most frequent: without a detour by way of any algorithm.
        if self.crc64().is_some_and(|expected| crc64(bytes) == expected) {
            return Ok(bytes);
        }
        let expected = self.expected();
        expected.verify(bytes)?;
        self.set_verified(&expected);
        Ok(bytes)
    }

    /// The checksum that counts for this reader, if it is a CRC-64 and all that there is to verify.
    pub fn crc64(&self) -> Option<u64> {
        self.number_under(Algorithm::Crc64Nvme)
    }

    /// The checksum that counts for this reader as a number, if it is of an algorithm, of 8 bytes at most, and all that there is to verify.
    pub fn number_under(&self, algorithm: Algorithm) -> Option<u64> {
        let fast = self.arena.descriptor(self.page.frame).fast.load(Ordering::Relaxed);
        (fast == algorithm.id() && self.is_number_all()).then_some(self.page.checksum)
    }

    /// Under which algorithm there is such a number.
    pub fn algorithm_of_number(&self) -> Option<Algorithm> {
        let fast = Algorithm::parse(self.arena.descriptor(self.page.frame).fast.load(Ordering::Relaxed)).ok()?;
        (fast != Algorithm::None && fast.digest_len() <= 8 && self.is_number_all()).then_some(fast)
    }

    /// Whether the number in its [`PageRef`], if it is of a checksum, is all that there is to verify.
    #[inline]
    fn is_number_all(&self) -> bool {
        let descriptor = self.arena.descriptor(self.page.frame);
        !self.is_switched && !descriptor.is_forwarded() && descriptor.seal.load(Ordering::Relaxed) == 0
    }

    /// Whether [`PinnedPage::verify`] looks at its bytes.
    pub fn is_verified(&self) -> bool {
        self.expected().algorithm() != Algorithm::None || self.seal().is_some()
    }

    /// Whether nobody else refers to the page at this moment.
    pub fn is_sole(&self) -> bool {
        self.arena.descriptor(self.page.frame).references.load(Ordering::Acquire) == 1
    }
}

impl fmt::Debug for PinnedPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedPage({:?})", self.page)
    }
}

impl Clone for PinnedPage {
    fn clone(&self) -> Self {
        self.arena.descriptor(self.page.frame).references.fetch_add(1, Ordering::AcqRel);
        PinnedPage {
            arena: self.arena.clone(),
            page: self.page,
            is_switched: self.is_switched,
            is_followed: self.is_followed,
        }
    }
}

impl Drop for PinnedPage {
    fn drop(&mut self) {
        if self.arena.descriptor(self.page.frame).references.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.arena.free(self.page.frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> Checksum {
        Checksum::crc64(crc64(bytes))
    }

    #[test]
    fn a_forwarded_page_is_under_its_strong_checksum_until_that_has_been_verified() {
        let arena = Arena::new(1, 0).unwrap();
        let mut frame = arena.allocate().unwrap();
        frame.fill(9);
        let [memory, strong] = [Algorithm::Xor64, Algorithm::Blake3].map(|algorithm| algorithm.sum(&[9; PAGE_SIZE]));
        let page = frame.publish_with(PageSums { memory, strong, is_forwarded: true });
        assert_eq!((page.expected(), page.sums().memory), (strong, memory));
        assert_eq!(page.number_under(Algorithm::Xor64), None, "nobody goes by the number alone");
        page.set_verified(&memory);
        assert_eq!(page.clone().expected(), strong, "that says nothing about the device");
        assert!(arena.pin(page.page()).unwrap().verify().is_ok());
        assert_eq!((page.expected(), page.clone().switched().expected()), (memory, strong));
        assert_eq!(page.number_under(Algorithm::Xor64), memory.as_u64());
        drop(page);
        let next = arena.allocate().unwrap().publish_with(PageSums { memory, strong, is_forwarded: false });
        assert_eq!(next.expected(), memory);
    }

    #[test]
    fn a_page_is_kept_under_any_checksum() {
        let arena = Arena::new(1, 0).unwrap();
        for algorithm in Algorithm::ALL {
            let mut frame = arena.allocate().unwrap();
            frame.fill(9);
            let page = frame.publish(algorithm.sum(&[9; PAGE_SIZE]));
            assert_eq!(page.sum(), algorithm.sum(&[9; PAGE_SIZE]));
            assert_eq!(arena.pin(page.page()).unwrap().sum(), page.sum());
            assert!(page.verify().is_ok());
            rustix::io::pwrite(arena.memory(), &[8], arena.frame_offset(0) + 77).unwrap();
            assert_eq!(page.verify().is_err(), algorithm != Algorithm::None, "{algorithm}");
        }
    }

    #[test]
    fn a_reader_that_has_switched_goes_by_the_strong_checksum() {
        let arena = Arena::new(1, 0).unwrap();
        let mut frame = arena.allocate().unwrap();
        frame.fill(9);
        let page = frame.publish(Algorithm::Xor64.sum(&[9; PAGE_SIZE]));
        // Two flips that xor does not see.
        for at in [100, 108] {
            rustix::io::pwrite(arena.memory(), &[8], arena.frame_offset(0) + at).unwrap();
        }
        assert!(page.verify().is_ok() && page.clone().switched().verify().is_ok(), "no strong one is known");
        page.set_strong(Algorithm::Fletcher256.sum(&[9; PAGE_SIZE]));
        assert!(page.verify().is_ok() && page.clone().switched().verify().is_err());
        page.set_strong(Algorithm::Fletcher256.sum(page.bytes()));
        assert!(page.clone().switched().verify().is_err(), "it does not change");
        drop(page);
        let page = arena.allocate().unwrap().publish(Checksum::none());
        assert_eq!(page.sums(), PageSums::of(Checksum::none()), "the next page has none");
    }

    #[test]
    fn a_page_has_the_time_that_was_said_first() {
        // Of a clock that begins in 1970, too.
        for now_ns in [7, 1_800_000_000_000_000_000] {
            let arena = Arena::new(1, 0).unwrap();
            let page = arena.allocate().unwrap().publish(Checksum::none());
            assert_eq!(page.since_ns(), 0);
            page.set_since(now_ns);
            page.set_since(now_ns + 1);
            assert_eq!(page.since_ns(), now_ns);
            drop(page);
            assert_eq!(arena.allocate().unwrap().publish(Checksum::none()).since_ns(), 0);
        }
    }

    #[test]
    fn frames_go_round() {
        let arena = Arena::new(3, 0).unwrap();
        let mut frames: Vec<_> = std::iter::from_fn(|| arena.allocate()).collect();
        assert_eq!(frames.len(), 3);
        assert!(arena.allocate().is_none());
        let mut frame = frames.pop().unwrap();
        frame.fill(7);
        let page = frame.publish(sum(&[7; PAGE_SIZE]));
        let name = page.page();
        assert!(page.verify().is_ok());
        let second = arena.pin(name).unwrap();
        drop(page);
        assert_eq!(second.bytes()[4095], 7);
        assert!(arena.allocate().is_none());
        drop(second);
        assert!(arena.pin(name).is_none(), "a freed frame is not pinned by its old name");
        let again = arena.allocate().unwrap().publish(Checksum::none());
        assert!(arena.pin(name).is_none() || again.page().frame != name.frame);
        drop(frames);
        drop(again);
        assert_eq!(arena.free_frames(), 3);
    }

    #[test]
    fn a_flip_in_shared_memory_is_seen() {
        let arena = Arena::new(1, 0).unwrap();
        let mut frame = arena.allocate().unwrap();
        frame.fill(1);
        let page = frame.publish(sum(&[1; PAGE_SIZE]));
        rustix::io::pwrite(arena.memory(), &[0], arena.frame_offset(page.page().frame) + 100).unwrap();
        assert!(page.verify().is_err());
    }

    #[test]
    fn threads_share_the_free_list() {
        let arena = Arena::new(64, 0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let arena = &arena;
                scope.spawn(move || {
                    for round in 0..2000u32 {
                        let Some(mut frame) = arena.allocate() else { continue };
                        let value = thread ^ round as u8;
                        frame.fill(value);
                        let page = frame.publish(sum(&[value; PAGE_SIZE]));
                        let other = page.clone();
                        drop(page);
                        assert!(other.verify().is_ok());
                    }
                });
            }
        });
        assert_eq!(arena.free_frames(), 64);
    }
}
