//! Devices that fail, and threads that get in each other's way.

use crate::damage::log;
use crate::rig::*;
use holdfast_block::{Device, Error as BlockError, Filter, MemoryDevice, Operation};
use holdfast_integrity::Algorithm;
use holdfast_object::{DomainId, Error, Kind, LogBatch, ObjectId, ObjectStore, Op, PageSource, Side};
use holdfast_physical::check::{BlockUse, CheckOptions, block_uses, check};
use holdfast_physical::{CommitOrder, check::BlockRole};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// A device whose changes fail from a given one on, or whose reads of one block fail.
struct Failing {
    device: Arc<MemoryDevice>,
    /// Writes and flushes that still succeed; negative: it has failed.
    changes_left: AtomicI64,
    bad_block: AtomicU64,
    /// It can be read again once something has read the first label.
    is_passing: AtomicBool,
}

impl Failing {
    fn new(blocks: u64) -> (Arc<MemoryDevice>, Arc<Failing>) {
        let device = Arc::new(MemoryDevice::new(blocks));
        let failing = Failing {
            device: device.clone(),
            changes_left: AtomicI64::new(i64::MAX),
            bad_block: AtomicU64::new(u64::MAX),
            is_passing: AtomicBool::new(false),
        };
        (device, Arc::new(failing))
    }

    fn error(&self, operation: Operation, first: Option<u64>) -> BlockError {
        BlockError::Io {
            device: "failing".into(),
            operation,
            first,
            length_bytes: 4096,
            source: Arc::new(std::io::Error::other("planted")),
        }
    }

    fn change(&self, operation: Operation, first: Option<u64>) -> Result<(), BlockError> {
        match self.changes_left.fetch_sub(1, Ordering::Relaxed) > 0 {
            true => Ok(()),
            false => Err(self.error(operation, first)),
        }
    }
}

impl Filter for Failing {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), BlockError> {
        let blocks = bufs.iter().map(|buf| buf.len() as u64 / 4096).sum::<u64>();
        if first == 0 && self.is_passing.load(Ordering::Relaxed) {
            self.bad_block.store(u64::MAX, Ordering::Relaxed);
        }
        let bad = self.bad_block.load(Ordering::Relaxed);
        if (first..first + blocks).contains(&bad) {
            return Err(self.error(Operation::Read, Some(bad)));
        }
        self.device.read(first, bufs)
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), BlockError> {
        self.change(Operation::Write, Some(first))?;
        self.device.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), BlockError> {
        self.change(Operation::Flush, None)
    }

    fn on_discard(&self, _first: u64, _count: u64) -> Result<(), BlockError> {
        Ok(())
    }
}

type Step<'a> = dyn Fn(&Rig) -> Result<(), Error> + 'a;

#[test]
fn a_failed_write_or_flush_latches_and_reads_go_on() {
    let mut failed_at = Vec::new();
    for changes in 0..40 {
        let (device, failing) = Failing::new(4096);
        let mut rig = Rig::on(device, failing.clone(), CommitOrder::Correct);
        let write = rig.write_op(2, &[(0, pattern(1))]);
        rig.apply(vec![create_op(2, Kind::Regular), create_op(1, Kind::Directory), write]);
        rig.commit();
        let epoch = rig.next_epoch();
        let page = rig.fragment(0, &pattern(2));
        let write = Op::Write { id: ObjectId(2), fragments: vec![page], size_min: 0 };
        let other = Op::Write { id: ObjectId(1), fragments: vec![page], size_min: 0 };
        failing.changes_left.store(changes, Ordering::Relaxed);
        let batch = LogBatch { epoch, domain: DomainId::MAIN, ops: vec![write.clone()] };
        let steps: [(&str, &Step<'_>); 5] = [
            ("log", &|rig| rig.module.log_append(&batch).map(drop)),
            ("place", &|rig| rig.module.place(key(2), epoch, &[(5, page.page)]).map(drop)),
            ("apply", &|rig| rig.module.apply(&rig.batch(vec![write.clone(), other.clone()])).map(drop)),
            ("prepare", &|rig| rig.module.prepare(epoch)),
            ("publish", &|rig| rig.module.publish(epoch)),
        ];
        let failed = steps.iter().find_map(|(name, step)| step(&rig).err().map(|error| (*name, error)));
        let Some((name, error)) = failed else {
            // From here on nothing fails any more.
            break;
        };
        failed_at.push(name);
        match &error {
            Error::Device(fault) => assert!(fault.device == "failing" && fault.cause.contains("planted"), "{error}"),
            error => panic!("{error}"),
        }
        let reason = rig.module.status().read_only.unwrap();
        assert!(reason.contains("failing"), "{reason}");
        for (_, step) in steps {
            assert!(matches!(step(&rig), Err(Error::ReadOnly(_))));
        }
        assert!(matches!(rig.module.close(), Err(Error::ReadOnly(_))));
        assert!(rig.read_one(2, 0).is_some(), "reads go on");
        failing.changes_left.store(i64::MAX, Ordering::Relaxed);
        let module = rig.open_on(rig.device.clone()).unwrap();
        let page = read(&module, &rig.arena, 2, 0, 1).unwrap()[0];
        assert!(page == Some(pattern(1)) || page == Some(pattern(2)) && module.epoch() == epoch);
        let report = check(rig.device.clone(), &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
        assert_eq!(report.unrepaired(), 0, "{report:?}");
    }
    for name in ["log", "place", "apply", "prepare", "publish"] {
        assert!(failed_at.contains(&name), "{failed_at:?}");
    }
}

#[test]
fn a_block_that_cannot_be_read_is_read_from_its_second_copy_or_named() {
    let (device, failing) = Failing::new(1024);
    let mut rig = Rig::on(device, failing.clone(), CommitOrder::Correct);
    let pages: Vec<_> = (0..70).map(|index| (index, pattern(index))).collect();
    let ops = vec![create_op(1, Kind::Directory), create_op(2, Kind::Regular), rig.write_op(1, &pages[..3])];
    let write = rig.write_op(2, &pages);
    rig.apply(ops.into_iter().chain([write]).collect());
    rig.commit();
    for used in block_uses(rig.device.clone()).unwrap() {
        failing.bad_block.store(used.block, Ordering::Relaxed);
        let module = rig.open_on(rig.top.clone()).unwrap_or_else(|error| panic!("{used:?}: {error}"));
        assert_eq!(module.epoch(), 2, "{used:?}");
        assert_eq!(read(&module, &rig.arena, 1, 2, 1).unwrap(), [Some(pattern(2))]);
        let outcome = read(&module, &rig.arena, 2, 0, 70);
        if used.role == BlockRole::Data {
            assert!(matches!(outcome, Err(Error::Device(fault)) if fault.address == Some(used.block)), "{used:?}");
        } else {
            assert_eq!(outcome.unwrap()[69], Some(pattern(69)), "{used:?}");
        }
    }
}

/// Readers see whole pages of the right object at all times, while epochs come and go, blocks are freed and reused, pages
/// are placed and the log is appended to.
#[test]
fn readers_and_writers_together() {
    let mut rig = Rig::new(2048);
    rig.options.node_cache_bytes = 0;
    rig.reopen();
    const FILES: u64 = 4;
    const PAGES: u64 = 100;
    let ops: Vec<Op> = (2..2 + FILES).map(|id| create_op(id, Kind::Regular)).collect();
    rig.apply(ops);
    rig.commit();
    let done = AtomicBool::new(false);
    let (module, arena) = (&rig.module, &rig.arena);
    // The first words of a page tell which it is.
    let page = |id: u64, index: u64, round: u64| {
        let mut page = pattern(id << 40 | index << 20 | round);
        page[..8].copy_from_slice(&id.to_le_bytes());
        page[8..16].copy_from_slice(&index.to_le_bytes());
        page
    };
    let pin = |bytes: &Page| {
        let mut frame = arena.allocate().unwrap();
        frame.copy_from_slice(bytes);
        frame.publish(Algorithm::Crc64Nvme.sum(bytes))
    };
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let done = &done;
            scope.spawn(move || {
                let mut seen = 0u64;
                let mut at = thread;
                while !done.load(Ordering::Relaxed) || seen == 0 {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let (id, index) = (2 + (at >> 33) % FILES, (at >> 40) % PAGES);
                    let mut frames: Vec<_> = (0..3).map(|_| arena.allocate().unwrap()).collect();
                    let sources = module.read(key(id), index, &mut frames).unwrap();
                    for (offset, (source, frame)) in sources.iter().zip(&frames).enumerate() {
                        if let PageSource::Data { .. } = source {
                            assert_eq!(frame[..8], id.to_le_bytes());
                            assert_eq!(frame[8..16], (index + offset as u64).to_le_bytes());
                            seen += 1;
                        }
                    }
                    assert_eq!(module.attributes(key(id)).unwrap().kind, Kind::Regular);
                }
            });
        }
        let done = &done;
        let appender = scope.spawn(move || {
            let mut appended = 0u64;
            while !done.load(Ordering::Relaxed) || appended == 0 {
                let epoch = module.epoch() + 2;
                let pin = pin(&page(2, 0, appended));
                let fragment = holdfast_object::Fragment { index: 0, start: 0, end: 4096, page: pin.page() };
                let op = Op::Write { id: ObjectId(2), fragments: vec![fragment], size_min: 0 };
                match module.log_append(&LogBatch { epoch, domain: DomainId::MAIN, ops: vec![op] }) {
                    Ok(true) => appended += 1,
                    Ok(false) | Err(Error::Protocol(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                if module.status().space.free > 800 {
                    let placed = module.place(key(2), epoch, &[(0, pin.page())]).unwrap();
                    module.unplace(epoch, &placed).unwrap();
                }
                std::thread::yield_now();
            }
        });
        for round in 0..60 {
            let epoch = module.epoch() + 1;
            for id in 2..2 + FILES {
                let first = (round * 37 + id * 11) % PAGES;
                let pins: Vec<_> = (first..(first + 30).min(PAGES)).map(|at| (at, pin(&page(id, at, round)))).collect();
                let fragments = pins
                    .iter()
                    .map(|(index, pin)| holdfast_object::Fragment {
                        index: *index,
                        start: 0,
                        end: 4096,
                        page: pin.page(),
                    })
                    .collect();
                let mut ops = vec![Op::Write { id: ObjectId(id), fragments, size_min: 0 }];
                if round % 7 == id {
                    ops.push(Op::Truncate { id: ObjectId(id), size: 10 * 4096 });
                }
                module.apply(&holdfast_object::Batch { domain: DomainId::MAIN, epoch, ops }).unwrap();
            }
            module.prepare(epoch).unwrap();
            module.publish(epoch).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        appender.join().unwrap();
    });
    // What the appender unplaced for epochs to come is freed with them.
    rig.reopen();
    let report = check(rig.device.clone(), &CheckOptions::default()).unwrap();
    assert_eq!(report.found, 0, "{report:?}");
}

/// A store on a device that can fail, with an empty object 1, and an object 2 of two pages.
fn two_pages() -> (Arc<MemoryDevice>, Arc<Failing>, Rig) {
    let (device, failing) = Failing::new(1024);
    let mut rig = Rig::on(device.clone(), failing.clone(), CommitOrder::Correct);
    let two = rig.write_op(2, &[(0, pattern(1)), (1, pattern(2))]);
    rig.apply(vec![create_op(1, Kind::Regular), create_op(2, Kind::Regular), two]);
    rig.commit();
    (device, failing, rig)
}

/// The same, of which the block above the pages of object 2 has just failed, and can be read the next time.
fn with_an_error_that_passes() -> Rig {
    let (device, failing, mut rig) = two_pages();
    let uses = block_uses(device.clone()).unwrap();
    let mut copies = uses.iter().filter(|used| used.role == BlockRole::Tree && used.object == Some(key(2)));
    let (first, second) = (copies.next().unwrap(), copies.next().unwrap());
    device.alter(second.block, |bytes| bytes.fill(0)).unwrap();
    rig.reopen();
    failing.bad_block.store(first.block, Ordering::Relaxed);
    assert!(rig.try_read(2, 0, 1).is_err());
    failing.is_passing.store(true, Ordering::Relaxed);
    rig
}

/// It is read again before anything is put into its place.
#[test]
fn no_tree_block_is_made_anew_for_an_error_that_passes() {
    let mut rig = with_an_error_that_passes();
    let two = rig.write_op(2, &[(0, pattern(4))]);
    assert_eq!(rig.apply(vec![two]).rejected, []);
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read(2, 0, 2), [4, 2].map(|seed| Some(pattern(seed))));
    rig.check();
}

/// Nor is anything lost of a copy.
#[test]
fn a_copy_has_what_could_not_be_read_for_a_moment() {
    let mut rig = with_an_error_that_passes();
    let target_first = 5;
    let copy =
        Op::Copy { source: ObjectId(2), source_first: 0, target: ObjectId(1), target_first, pages: 2, size_min: 0 };
    assert!(rig.apply(vec![copy]).lost.is_empty());
    rig.commit();
    rig.reopen();
    assert_eq!(rig.read(1, target_first, 2), [1, 2].map(|seed| Some(pattern(seed))));
}

/// As where it gives something else.
#[test]
fn nothing_is_logged_where_the_device_does_not_give_the_object_table() {
    let (device, failing, mut rig) = two_pages();
    let uses = block_uses(device.clone()).unwrap();
    let is_table =
        |used: &&BlockUse| used.role == BlockRole::ObjectTable && used.object.is_some_and(|key| key.object.0 > 0);
    let table: Vec<u64> = uses.iter().filter(is_table).map(|used| used.block).collect();
    let [first, second] = table[..] else { panic!("{table:?}") };
    device.alter(second, |bytes| bytes.fill(0)).unwrap();
    rig.reopen();
    rig.module.log_next(&mut |_| Ok(Vec::new())).unwrap();
    failing.bad_block.store(first, Ordering::Relaxed);
    assert!(matches!(rig.module.attributes(key(2)), Err(Error::Device(_))));
    assert!(!log(&mut rig, 3));
}

#[test]
fn a_tree_block_that_the_device_cannot_read_costs_its_object_only() {
    let (device, failing, mut rig) = two_pages();
    let uses = block_uses(device.clone()).unwrap();
    let mut copies = uses.iter().filter(|used| used.role == BlockRole::Tree && used.object == Some(key(2)));
    failing.bad_block.store(copies.next().unwrap().block, Ordering::Relaxed);
    device.alter(copies.next().unwrap().block, |bytes| bytes.fill(0)).unwrap();
    assert!(copies.next().is_none());
    rig.reopen();
    let error = rig.try_read(2, 0, 1).unwrap_err();
    assert_eq!(error.object(), Some(ObjectId(2)), "{error}");
    assert!(error.to_string().contains("planted"), "{error}");
    let (one, two) = (rig.write_op(1, &[(0, pattern(3))]), rig.write_op(2, &[(0, pattern(4))]));
    let applied = rig.apply(vec![two, one]);
    assert_eq!(applied.rejected, []);
    rig.commit();
    assert_eq!(rig.module.status().read_only, None);
    assert_eq!(rig.read_one(1, 0), Some(pattern(3)));
    assert_eq!(rig.read_one(2, 0), Some(pattern(4)));
    assert_eq!(rig.module.read(key(2), 1, &mut rig.frames(1)).unwrap(), [PageSource::Lost(Side::Device)]);
}

#[test]
fn a_page_to_be_cut_that_the_device_cannot_read_is_lost() {
    let (device, failing, mut rig) = two_pages();
    let uses = block_uses(device.clone()).unwrap();
    let page = uses.iter().find(|used| used.object == Some(key(2)) && used.role == BlockRole::Data && used.index == 1);
    failing.bad_block.store(page.unwrap().block, Ordering::Relaxed);
    rig.apply(vec![Op::Truncate { id: ObjectId(2), size: 4096 + 100 }]);
    rig.commit();
    failing.bad_block.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(rig.module.attributes(key(2)).unwrap().size, 4096 + 100);
    assert_eq!(rig.read_one(2, 0), Some(pattern(1)));
    let sources = rig.module.read(key(2), 1, &mut rig.frames(1)).unwrap();
    assert_eq!(sources, [PageSource::Lost(Side::Device)]);
    rig.check();
}
