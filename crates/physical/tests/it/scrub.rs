//! Scrub: every copy is read, what can be repaired is, nothing sound is called bad, whatever goes on meanwhile.

use crate::damage::{read_all, sample};
use crate::rig::*;
use holdfast_block::{Device, Error, Filter, MemoryDevice};
use holdfast_integrity::Algorithm;
use holdfast_object::{
    Batch, DomainId, Fate, Fragment, Kind, ObjectId, ObjectStore, Op, PAGE_SIZE, ScrubCounts, ScrubCursor, ScrubFinding,
};
use holdfast_physical::check::{BlockRole, block_uses, check};
use holdfast_physical::{LABELS, Module, OpenOptions, RING_SLOTS};
use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

/// Blocks of labels and rings.
const LABEL_BLOCKS: u64 = LABELS as u64 * (1 + RING_SLOTS);

/// From `cursor` to the end, so many blocks at a time; the cursor goes through JSON each time.
pub(crate) fn scrub(module: &Module, blocks: u64) -> (ScrubCounts, Vec<ScrubFinding>) {
    let (mut counts, mut findings, mut cursor) = (ScrubCounts::default(), Vec::new(), ScrubCursor::default());
    while cursor != ScrubCursor::End {
        let step = module.scrub_step(&cursor, blocks).unwrap();
        counts.add(&step.counts);
        findings.extend(step.findings);
        cursor = step.cursor;
    }
    (counts, findings)
}

#[test]
fn every_block_in_use_is_read() {
    let rig = sample();
    let uses = block_uses(rig.device.clone()).unwrap();
    let of = |wanted: &[BlockRole]| {
        let uses = uses.iter().filter(|used| wanted.contains(&used.role));
        uses.map(|used| used.block).collect::<BTreeSet<_>>().len() as u64
    };
    let tree_of = |system: bool| {
        let trees = uses.iter().filter(|used| used.role == BlockRole::Tree && used.kind.is_none() == system);
        trees.count() as u64
    };
    for blocks in [1, 7, 1 << 20] {
        let (counts, findings) = scrub(&rig.module, blocks);
        assert_eq!(findings, []);
        use BlockRole::{Bitmap, Data, Map, MetadataPage, ObjectTable, References};
        let system = of(&[ObjectTable, Bitmap, References, Map]) + tree_of(true);
        let expected = ScrubCounts {
            labels: LABEL_BLOCKS,
            system,
            tree: tree_of(false),
            names: of(&[MetadataPage]),
            data: of(&[Data]),
            ..ScrubCounts::default()
        };
        assert_eq!(counts, expected, "{blocks} blocks a step");
    }
}

#[test]
fn every_damaged_copy_is_found_and_repaired_or_told() {
    let rig = sample();
    let image = rig.device.as_ref().clone();
    let uses = block_uses(rig.device.clone()).unwrap();
    let mut tried = BTreeSet::new();
    for used in uses.iter().filter(|used| used.role != BlockRole::Data || tried.insert(used.block)) {
        let device = Arc::new(image.clone());
        device.alter(used.block, |block| block[1234] ^= 0x10).unwrap();
        let module = rig.open_on(device.clone()).unwrap();
        let (counts, findings) = scrub(&module, 16);
        let what = format!("{used:?}: {findings:?}");
        let repaired = module.status().repaired;
        if used.role == BlockRole::Data {
            assert!(findings.iter().all(|found| found.fate == Fate::Unrepaired), "{what}");
            assert!(counts.unrepaired > 0 && repaired == 0, "{what}");
            assert!(findings.iter().any(|found| found.place.object == used.object), "{what}");
        } else {
            // Opening the store reads some of them, and repairs first copies.
            assert_eq!(repaired, 1, "{what}");
            assert_eq!(counts.unrepaired, 0, "{what}");
            assert!(findings.iter().all(|found| found.fate == Fate::Repaired), "{what}");
            assert!(findings.iter().all(|found| found.place.address == Some(used.block)), "{what}");
            let report = check(device.clone(), &Default::default()).unwrap();
            assert_eq!(report.findings, [], "{what}");
        }
        let (again, _) = scrub(&module, 16);
        assert_eq!(again.repaired, 0, "{what}");
        assert_eq!(again.unrepaired, counts.unrepaired, "{what}");
    }
}

#[test]
fn damage_everywhere_is_all_found_in_one_go() {
    let rig = sample();
    let image = rig.device.as_ref().clone();
    let device = Arc::new(image.clone());
    let uses = block_uses(rig.device.clone()).unwrap();
    // Second copies: opening and reading do not meet them.
    let second: BTreeSet<u64> =
        uses.iter().filter(|used| used.object.is_some() && used.copy == 1).map(|used| used.block).collect();
    for &block in &second {
        device.alter(block, |bytes| bytes[7] ^= 1).unwrap();
    }
    let module = rig.open_on(device.clone()).unwrap();
    let (counts, findings) = scrub(&module, 100);
    assert_eq!(counts.repaired, second.len() as u64);
    let found: BTreeSet<u64> = findings.iter().filter_map(|found| found.place.address).collect();
    assert_eq!(found, second);
    assert_eq!(scrub(&module, 100).1, []);
    assert!(device.snapshot() == image.snapshot(), "repaired blocks are what they were");
    read_all(&rig, &module).unwrap();
}

#[test]
fn a_store_that_takes_no_changes_is_scrubbed_and_not_written() {
    let rig = sample();
    let device = Arc::new(rig.device.as_ref().clone());
    let uses = block_uses(rig.device.clone()).unwrap();
    let tree = uses.iter().find(|used| used.role == BlockRole::Tree && used.copy == 1).unwrap();
    device.alter(tree.block, |bytes| bytes[0] ^= 1).unwrap();
    let before = device.snapshot();
    let options = OpenOptions::read_only();
    let module = Module::open(device.clone(), rig.arena.clone(), rig.clock.clone(), &options).unwrap();
    let (counts, findings) = scrub(&module, 50);
    assert_eq!((counts.repaired, counts.unrepaired), (0, 1));
    assert_eq!((findings[0].place.address, findings[0].fate), (Some(tree.block), Fate::Unrepaired));
    assert!(device.snapshot() == before);
}

#[test]
fn a_scrub_goes_on_where_it_was_after_a_restart() {
    let mut rig = sample();
    let mut cursor = ScrubCursor::default();
    let mut counts = ScrubCounts::default();
    let whole = scrub(&rig.module, 1 << 20).0;
    let mut restarts = 0;
    while cursor != ScrubCursor::End {
        let step = rig.module.scrub_step(&cursor, 10).unwrap();
        counts.add(&step.counts);
        cursor = step.cursor;
        rig.reopen();
        restarts += 1;
    }
    assert!(restarts > 3);
    // Which of the shared blocks have been read is not known after a restart.
    assert!(counts.data > whole.data);
    assert_eq!(ScrubCounts { data: whole.data, ..counts }, whole);
}

/// Whether a page is shared is looked up with its neighbours: counters that cannot be read are not asked for by each page.
#[test]
fn counters_of_references_are_looked_up_for_many_pages_at_once() {
    const PAGES: u64 = 512;
    let mut rig = Rig::new(4096);
    let pages: Vec<_> = (0..PAGES).map(|index| (index, pattern(index))).collect();
    let write = rig.write_op(2, &pages);
    rig.apply(vec![create_op(2, Kind::Regular), create_op(3, Kind::Regular), write]);
    rig.commit();
    let copy = Op::Copy {
        source: ObjectId(2),
        source_first: 0,
        target: ObjectId(3),
        target_first: 0,
        pages: 1,
        size_min: PAGE_SIZE as u64,
    };
    rig.apply(vec![copy]);
    rig.commit();
    let uses = block_uses(rig.device.clone()).unwrap();
    let counters: Vec<u64> =
        uses.iter().filter(|used| used.role == BlockRole::References).map(|used| used.block).collect();
    assert_eq!(counters.len(), 2, "one page, twice");
    for block in counters {
        rig.device.write(block, &[std::io::IoSlice::new(&[0x55; PAGE_SIZE])]).unwrap();
    }
    rig.reopen();
    let reads = || rig.module.status().counters.device_reads;
    let before = reads();
    let (counts, findings) = scrub(&rig.module, 1 << 20);
    let reads = reads() - before;
    assert!(counts.data > PAGES && findings.len() == 1, "{counts:?}, {findings:?}");
    println!("{PAGES} pages: {reads} reads of the device");
    // Pages come in runs, metadata one by one: far fewer than pages, if none of them asks for the bad counters itself.
    assert!(reads < PAGES / 2, "{reads}");
}

/// Reads of the scrubbing thread take long: until some epochs have been published, or are held up.
struct Slow {
    inner: Arc<MemoryDevice>,
    published: AtomicU64,
    scrubber: Mutex<Option<ThreadId>>,
}

impl Slow {
    /// So many that a block freed meanwhile is in use again.
    const EPOCHS: u64 = 12;
    /// The writer waits for the scrub: so often it is given the chance not to.
    const CHANCES: usize = 300;
}

impl Filter for Slow {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        if *self.scrubber.lock().unwrap() == Some(std::thread::current().id()) {
            let until = self.published.load(Ordering::Relaxed) + Slow::EPOCHS;
            for _ in 0..Slow::CHANCES {
                if self.published.load(Ordering::Relaxed) >= until {
                    break;
                }
                std::thread::yield_now();
            }
        }
        self.inner.read(first, bufs)
    }
}

/// Blocks are freed and reused all the time; none may be judged by what it was.
#[test]
fn nothing_sound_is_called_bad_while_everything_changes() {
    const FILES: u64 = 4;
    const EPOCHS: u64 = 400;
    let memory = Arc::new(MemoryDevice::new(1024));
    let slow = Arc::new(Slow { inner: memory.clone(), published: AtomicU64::new(0), scrubber: Mutex::new(None) });
    let mut rig = Rig::on(memory, slow.clone(), holdfast_physical::CommitOrder::Correct);
    rig.apply((1..=FILES + 1).map(|id| create_op(id, Kind::Regular)).collect());
    // Leaves so little room that it is soon used again.
    let filler: Vec<_> = (0..500).map(|index| (index, pattern(index))).collect();
    let filler = rig.write_op(FILES + 1, &filler);
    rig.apply(vec![filler]);
    rig.commit();
    let (module, arena) = (&rig.module, &rig.arena);
    let done = AtomicBool::new(false);
    let scrubs = std::thread::scope(|scope| {
        let scrubber = scope.spawn(|| {
            *slow.scrubber.lock().unwrap() = Some(std::thread::current().id());
            let mut scrubs = 0;
            while !done.load(Ordering::Relaxed) || scrubs == 0 {
                let (_, findings) = scrub(module, 1 << 20);
                assert_eq!(findings, [], "in scrub {scrubs}");
                scrubs += 1;
            }
            scrubs
        });
        for epoch in 0.. {
            if scrubber.is_finished() || epoch >= EPOCHS && done.swap(true, Ordering::Relaxed) {
                break;
            }
            let id = 1 + epoch % FILES;
            let mut pins = Vec::new();
            let mut fragment = |index: u64| {
                let mut frame = arena.allocate().expect("a frame");
                let bytes = pattern(epoch << 20 | id << 10 | index);
                frame.copy_from_slice(&bytes);
                let pin = frame.publish(Algorithm::Crc64Nvme.sum(&bytes));
                let page = pin.page();
                pins.push(pin);
                Fragment { index, start: 0, end: PAGE_SIZE as u16, page }
            };
            let fragments: Vec<_> = (0..20).map(&mut fragment).collect();
            let ops = vec![Op::Write { id: ObjectId(id), fragments, size_min: 0 }];
            let batch = Batch { domain: DomainId::MAIN, epoch: module.epoch() + 1, ops };
            module.apply(&batch).unwrap();
            module.prepare(batch.epoch).unwrap();
            module.publish(batch.epoch).unwrap();
            slow.published.fetch_add(1, Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
        scrubber.join().unwrap()
    });
    assert!(scrubs > 0);
    rig.check();
}
