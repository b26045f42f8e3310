//! A module on a memory device, and shorthands.

use holdfast_block::{Device, MemoryDevice};
use holdfast_integrity::{Algorithm, Checksum, crc64};
use holdfast_object::{
    Applied, Arena, Attributes, Batch, Class, DomainId, Epoch, Fragment, FrameMut, Kind, ManualClock, ObjectId,
    ObjectKey, ObjectStore, Op, PAGE_SIZE, PageIndex, PageSource, PinnedPage, Result, Timestamp,
};
use holdfast_physical::check::{CheckOptions, Report, check};
use holdfast_physical::{CommitOrder, CreateOptions, Module, OpenOptions};
use std::sync::Arc;

pub(crate) type Page = [u8; PAGE_SIZE];

pub(crate) fn options() -> CreateOptions {
    CreateOptions::new(*b"0123456789abcdef", *b"fedcba9876543210")
}

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(1_700_000_000_000_000_000, 1_000_000))
}

pub(crate) fn key(object: u64) -> ObjectKey {
    ObjectKey { domain: DomainId::MAIN, object: ObjectId(object) }
}

pub(crate) fn attributes(kind: Kind, nlink: u32) -> Attributes {
    let class = if kind == Kind::Regular { Class::Own } else { Class::Names };
    Attributes { nlink, ..Attributes::new(kind, class, 0o644, 1000, 100, Timestamp { secs: 5, nanos: 6 }) }
}

pub(crate) fn create_op(id: u64, kind: Kind) -> Op {
    Op::Create { id: ObjectId(id), attributes: attributes(kind, 1) }
}

/// A page with contents that depend on all of `seed`.
pub(crate) fn pattern(seed: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    for (at, word) in page.chunks_exact_mut(8).enumerate() {
        let value = (seed ^ at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ seed;
        word.copy_from_slice(&value.to_le_bytes());
    }
    page
}

/// A module on a device in memory, or on one that wraps it.
pub(crate) struct Rig {
    /// The memory.
    pub(crate) device: Arc<MemoryDevice>,
    /// What the module is on.
    pub(crate) top: Arc<dyn Device>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) module: Arc<Module>,
    pub(crate) options: OpenOptions,
    /// Pages of batches that may have to be applied again.
    pins: Vec<PinnedPage>,
}

impl Rig {
    pub(crate) fn new(blocks: u64) -> Rig {
        let device = Arc::new(MemoryDevice::new(blocks));
        Rig::on(device.clone(), device, CommitOrder::Correct)
    }

    /// On `top`, which keeps its blocks in `device`.
    pub(crate) fn on(device: Arc<MemoryDevice>, top: Arc<dyn Device>, commit_order: CommitOrder) -> Rig {
        let (arena, clock) = (Arena::new(4096, 0).unwrap(), clock());
        Module::create(top.clone(), arena.clone(), clock.clone(), &options()).unwrap();
        let options = OpenOptions { node_cache_bytes: 1 << 18, commit_order, ..OpenOptions::default() };
        let module = Arc::new(Module::open(top.clone(), arena.clone(), clock.clone(), &options).unwrap());
        Rig { device, top, arena, clock, module, options, pins: Vec::new() }
    }

    /// The store on another device, as another user of the same memory.
    pub(crate) fn over(of: &Rig, device: Arc<MemoryDevice>) -> Result<Rig> {
        let module = Arc::new(of.open_on(device.clone())?);
        let Rig { arena, clock, options, .. } = of;
        let (arena, clock, options) = (arena.clone(), clock.clone(), options.clone());
        Ok(Rig { top: device.clone(), device, arena, clock, module, options, pins: Vec::new() })
    }

    /// Opens what is on the device now, as after a crash.
    pub(crate) fn reopen(&mut self) {
        self.pins.clear();
        self.module = Arc::new(self.open_on(self.top.clone()).unwrap());
    }

    pub(crate) fn open_on(&self, device: Arc<dyn Device>) -> Result<Module> {
        Module::open(device, self.arena.clone(), self.clock.clone(), &self.options)
    }

    pub(crate) fn next_epoch(&self) -> Epoch {
        self.module.epoch() + 1
    }

    pub(crate) fn pin(&mut self, bytes: &Page) -> holdfast_object::PageRef {
        let mut frame = self.arena.allocate().expect("a frame");
        frame.copy_from_slice(bytes);
        let pin = frame.publish(Algorithm::Crc64Nvme.sum(bytes));
        let page = pin.page();
        self.pins.push(pin);
        page
    }

    pub(crate) fn fragment(&mut self, index: PageIndex, bytes: &Page) -> Fragment {
        Fragment { index, start: 0, end: PAGE_SIZE as u16, page: self.pin(bytes) }
    }

    pub(crate) fn write_op(&mut self, id: u64, pages: &[(PageIndex, Page)]) -> Op {
        let fragments: Vec<_> = pages.iter().map(|(index, bytes)| self.fragment(*index, bytes)).collect();
        let size_min = pages.last().map_or(0, |(index, _)| (index + 1) * PAGE_SIZE as u64);
        Op::Write { id: ObjectId(id), fragments, size_min }
    }

    pub(crate) fn batch(&self, ops: Vec<Op>) -> Batch {
        Batch { domain: DomainId::MAIN, epoch: self.next_epoch(), ops }
    }

    pub(crate) fn try_apply(&mut self, ops: Vec<Op>) -> Result<Applied> {
        self.module.apply(&self.batch(ops))
    }

    pub(crate) fn apply(&mut self, ops: Vec<Op>) -> Applied {
        self.try_apply(ops).unwrap()
    }

    pub(crate) fn commit(&mut self) -> Epoch {
        self.try_commit().unwrap()
    }

    pub(crate) fn try_commit(&mut self) -> Result<Epoch> {
        let epoch = self.next_epoch();
        self.module.prepare(epoch)?;
        self.module.publish(epoch)?;
        self.pins.clear();
        Ok(epoch)
    }

    /// Checks what is on the device: nothing is wrong.
    pub(crate) fn check(&self) -> Report {
        let report = check(self.device.clone(), &CheckOptions::default()).unwrap();
        assert_eq!(report.findings, [], "{report:?}");
        report
    }

    pub(crate) fn frames(&self, count: usize) -> Vec<FrameMut> {
        (0..count).map(|_| self.arena.allocate().expect("a frame")).collect()
    }

    pub(crate) fn try_read(&self, id: u64, first: PageIndex, count: usize) -> Result<Vec<Option<Page>>> {
        read(&self.module, &self.arena, id, first, count)
    }

    pub(crate) fn read(&self, id: u64, first: PageIndex, count: usize) -> Vec<Option<Page>> {
        self.try_read(id, first, count).unwrap()
    }

    pub(crate) fn read_one(&self, id: u64, index: PageIndex) -> Option<Page> {
        self.read(id, index, 1)[0]
    }
}

/// Pages of an object; `None` for holes. A lost page is a panic.
pub(crate) fn read(
    module: &Module,
    arena: &Arc<Arena>,
    id: u64,
    first: PageIndex,
    count: usize,
) -> Result<Vec<Option<Page>>> {
    let mut frames: Vec<FrameMut> = (0..count).map(|_| arena.allocate().expect("a frame")).collect();
    let sources = module.read(key(id), first, &mut frames)?;
    Ok(sources
        .iter()
        .zip(&frames)
        .map(|(source, frame)| match source {
            PageSource::Data { sums, .. } => {
                assert_eq!(sums.memory, Checksum::crc64(crc64(&frame[..])));
                Some(**frame)
            }
            PageSource::Hole => None,
            PageSource::Lost(_) => panic!("page of {id} is lost"),
        })
        .collect())
}
