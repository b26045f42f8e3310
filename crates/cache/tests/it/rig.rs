//! A cache on a physical module on a memory device, that can lose its power.

use crate::wrong::Wrong;
use holdfast_block::MemoryDevice;
use holdfast_cache::{Cache, Options, Recovered};
use holdfast_integrity::{Algorithm, Protection};
use holdfast_logical::Logical;
use holdfast_object::*;
use holdfast_physical::{CreateOptions, Module, OpenOptions};
use std::sync::Arc;

/// Frames of the test's arena.
pub(crate) const FRAMES: u32 = 512;

pub(crate) struct Rig {
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) cache: Cache,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) module: Arc<Module>,
    /// Between both.
    pub(crate) store: Arc<Wrong>,
    /// What opening found.
    pub(crate) recovered: Recovered,
}

impl Rig {
    pub(crate) fn new(blocks: u64) -> Rig {
        Rig::with_frames(blocks, FRAMES)
    }

    pub(crate) fn with_frames(blocks: u64, frames: u32) -> Rig {
        let device = Arc::new(MemoryDevice::new(blocks));
        let clock = Arc::new(ManualClock::new(1_000_000_000, 1_000));
        let options = CreateOptions::new([1; 16], [2; 16]);
        Module::create(device.clone(), Arena::new(64, 4096).unwrap(), clock, &options).unwrap();
        Rig::open_with(device.clone(), device, &OpenOptions::default(), frames)
    }

    fn open(device: Arc<MemoryDevice>) -> Rig {
        Rig::open_through(device.clone(), device)
    }

    /// Opens the store on `device` through something that stands in front of it.
    pub(crate) fn open_through(device: Arc<MemoryDevice>, front: Arc<dyn holdfast_block::Device>) -> Rig {
        Rig::open_with(device, front, &OpenOptions::default(), FRAMES)
    }

    /// Opens the store with memory for as little clean metadata as can be.
    pub(crate) fn forgetful(device: Arc<MemoryDevice>, front: Arc<dyn holdfast_block::Device>) -> Rig {
        let options = OpenOptions { node_cache_bytes: 0, ..OpenOptions::default() };
        Rig::open_with(device, front, &options, FRAMES)
    }

    /// Closes the store, and opens it so, with as much memory.
    pub(crate) fn remount_through(self, front: Arc<dyn holdfast_block::Device>) -> Rig {
        self.cache.close().unwrap();
        let (device, frames) = (self.device.clone(), self.arena.frames());
        drop(self);
        Rig::open_with(device, front, &OpenOptions::default(), frames)
    }

    /// Opens the store as a mount in this mode does.
    pub(crate) fn remount_in(self, mode: Protection) -> Rig {
        self.cache.close().unwrap();
        let device = self.device.clone();
        drop(self);
        Rig::open_with(
            device.clone(),
            device,
            &OpenOptions { protection: Some(mode), ..OpenOptions::default() },
            FRAMES,
        )
    }

    fn open_with(
        device: Arc<MemoryDevice>,
        front: Arc<dyn holdfast_block::Device>,
        options: &OpenOptions,
        frames: u32,
    ) -> Rig {
        let clock = Arc::new(ManualClock::new(2_000_000_000, 1_000));
        let arena = Arena::new(frames, 64 << 10).unwrap();
        let module = Module::open(front, arena.clone(), clock.clone(), options).unwrap();
        let module = Arc::new(module);
        let store = Arc::new(Wrong::new(Arc::new(Logical::assemble(vec![module.clone()]).unwrap())));
        let options = Options::for_frames(frames);
        let (cache, recovered) =
            Cache::open(store.clone(), arena.clone(), clock.clone(), DomainId::MAIN, options).unwrap();
        Rig { device, arena, cache, clock, module, store, recovered }
    }

    /// The power fails: memory is gone, the device has what was written.
    pub(crate) fn power_cut(self) -> Rig {
        let device = self.device.clone();
        drop(self);
        Rig::open(device)
    }

    pub(crate) fn remount(self) -> Rig {
        self.cache.close().unwrap();
        self.power_cut()
    }

    pub(crate) fn create(&self, kind: Kind) -> ObjectId {
        let id = self.cache.new_object().unwrap();
        let class = if kind == Kind::Regular { Class::Own } else { Class::Names };
        let mut attributes = Attributes::new(kind, class, 0o644, 1, 2, Timestamp { secs: 5, nanos: 6 });
        attributes.nlink = 1;
        self.submit(vec![Op::Create { id, attributes }]).unwrap();
        id
    }

    pub(crate) fn submit(&self, ops: Vec<Op>) -> Result<Outcome> {
        let purpose = if ops.iter().any(|op| matches!(op, Op::Delete { .. } | Op::Truncate { .. })) {
            Purpose::Release
        } else {
            Purpose::Ordinary
        };
        self.cache.submit(Transaction { ops, purpose, ..Transaction::default() })
    }

    /// Writes bytes as naming does: fragments with the checksum of their bytes.
    pub(crate) fn write(&self, id: ObjectId, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut pins = Vec::new();
        let mut fragments = Vec::new();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let start = (at % PAGE_SIZE as u64) as usize;
            let length = (PAGE_SIZE - start).min(bytes.len() - done);
            let part = &bytes[done..done + length];
            let mut frame = self.cache.frames(1)?.pop().unwrap();
            frame[start..start + length].copy_from_slice(part);
            let pin = frame.publish(Algorithm::Crc64Nvme.sum(part));
            if length == PAGE_SIZE && self.cache.attributes(id)?.kind.is_metadata() {
                pin.seal_for(id, at / PAGE_SIZE as u64);
            }
            fragments.push(Fragment {
                index: at / PAGE_SIZE as u64,
                start: start as u16,
                end: (start + length) as u16,
                page: pin.page(),
            });
            pins.push(pin);
            done += length;
        }
        self.submit(vec![Op::Write { id, fragments, size_min: offset + bytes.len() as u64 }]).map(|_| ())
    }

    /// A page as a reader gets it: verified, and read again if it does not match.
    pub(crate) fn page(&self, id: ObjectId, index: PageIndex) -> Result<[u8; PAGE_SIZE]> {
        let view = self.cache.read(id, index, 1)?.pop().expect("one page");
        self.verified(id, index, view)
    }

    fn verified(&self, id: ObjectId, index: PageIndex, mut view: PageView) -> Result<[u8; PAGE_SIZE]> {
        if let PageView::Data(page) = &view
            && page.verify().is_err()
        {
            view = self.cache.reread(id, index, page.page())?;
        }
        Ok(match view {
            PageView::Data(page) => *page.verify().expect("verified page"),
            PageView::Zero => [0; PAGE_SIZE],
        })
    }

    /// The object's bytes up to its size, each page verified.
    pub(crate) fn contents(&self, id: ObjectId) -> Result<Vec<u8>> {
        let size = self.cache.attributes(id)?.size as usize;
        let mut bytes = Vec::with_capacity(size);
        let pages = size.div_ceil(PAGE_SIZE);
        let mut index = 0;
        while index < pages {
            let count = (pages - index).min(32);
            for (at, view) in (index as u64..).zip(self.cache.read(id, index as u64, count)?) {
                bytes.extend_from_slice(&self.verified(id, at, view)?);
            }
            index += count;
        }
        bytes.truncate(size);
        Ok(bytes)
    }

    /// Flips a bit of a page, which is in memory afterwards.
    pub(crate) fn flip(&self, id: ObjectId, index: PageIndex, at: u64) {
        let views = self.cache.read(id, index, 1).unwrap();
        let PageView::Data(page) = &views[0] else { panic!("page {index} has no bytes") };
        // SAFETY: `page` is not looked at, and the threads that a test may have look at other pages.
        unsafe { self.arena.flip(page.page().frame, at as u32 * 8 + 4) };
    }
}

/// Bytes that differ from page to page and from seed to seed.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}
