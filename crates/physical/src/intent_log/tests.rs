//! What goes bad in memory on its way into the log.

use super::*;
use crate::OpenOptions;
use crate::commit::tests::Rig;
use crate::scribble::{BATCH_PARTS, Blow, Choice, MetaKind, Pattern};
use holdfast_block::{Device, Error as BlockError, Filter, MemoryDevice};
use holdfast_object::{Arena, AttrSet, Fragment, ManualClock, ObjectStore};
use parking_lot::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

const OBJECT: ObjectId = ObjectId(2);

fn page(arena: &Arc<Arena>, byte: u8) -> PinnedPage {
    let mut frame = arena.allocate().unwrap();
    frame.fill(byte);
    let sum = Algorithm::Crc64Nvme.sum(&frame[..]);
    frame.publish(sum)
}

fn ops(page: &PinnedPage) -> Vec<Op> {
    let fragments = vec![Fragment { index: 3, start: 0, end: PAGE_SIZE as u16, page: page.page() }];
    let set = AttrSet { mode: Some(0o600), uid: Some(77), ..AttrSet::default() };
    let write = Op::Write { id: OBJECT, fragments, size_min: 4 * PAGE_SIZE as u64 };
    vec![write, Op::SetAttributes { id: OBJECT, set }]
}

fn append(module: &Module, epoch: Epoch, page: &PinnedPage) -> Result<bool> {
    module.log_append(&LogBatch { domain: DomainId::MAIN, epoch, ops: ops(page) })
}

/// What a mount after a power cut would replay: attributes that are set.
fn replayed(device: &MemoryDevice) -> Vec<AttrSet> {
    let (arena, clock) = (Arena::new(64, 0).unwrap(), Arc::new(ManualClock::new(0, 1)));
    let device: Arc<dyn Device> = Arc::new(device.clone());
    let module = Module::open(device, arena.clone(), clock, &OpenOptions::default()).unwrap();
    let mut sets = Vec::new();
    let mut frames = |count| Ok((0..count).map(|_| arena.allocate().unwrap()).collect());
    while let Some(recovered) = module.log_next(&mut frames).unwrap() {
        assert_eq!(recovered.lost, []);
        sets.extend(recovered.batch.ops.into_iter().filter_map(|op| match op {
            Op::SetAttributes { set, .. } => Some(set),
            _ => None,
        }));
    }
    sets
}

/// A flip of anything that a batch says, at any time from when it is encoded until it is written.
#[test]
fn what_goes_bad_on_its_way_into_the_log_is_not_durable_by_it() {
    for (part, seed) in BATCH_PARTS.into_iter().flat_map(|part| [(part, 1), (part, 2)]) {
        for pattern in [Pattern::Bit, Pattern::Word, Pattern::Range, Pattern::KeepChecksum] {
            let rig = Rig::new();
            let page = page(&rig.arena, 7);
            let epoch = rig.module.epoch() + 1;
            assert!(append(&rig.module, epoch, &page).unwrap());
            let sound = replayed(&rig.device);
            assert_eq!((sound.len(), sound[0].uid), (1, Some(77)));
            let choice = Choice { field: Some(part.into()), ..Choice::of(MetaKind::LogBatch, pattern, seed) };
            rig.module.lab().lay_ambush(Blow::Scribble(choice), 1, Duration::MAX);
            let what = format!("{part}, {pattern}");
            assert!(!append(&rig.module, epoch, &page).unwrap(), "{what}");
            assert_eq!(rig.module.lab().lift_ambush().blown.len(), 1, "{what}");
            assert_eq!(rig.module.status().counters.scribbles, 1, "{what}");
            // What was durable still is, and what was to be either is not there, or is what it should be.
            let after = replayed(&rig.device);
            assert!(!after.is_empty() && after.iter().all(|set| *set == sound[0]), "{what}: {after:?}");
            let is_written = part == "written head";
            assert_eq!(append(&rig.module, epoch, &page).unwrap(), !is_written, "{what}");
            rig.make(3);
            rig.commit().unwrap();
            assert!(append(&rig.module, epoch + 1, &page).unwrap(), "{what}");
            assert_eq!(rig.stored().1, epoch, "{what}");
        }
    }
}

/// A device upon whose writes something happens in the memory of pages.
struct Struck {
    inner: MemoryDevice,
    memory: File,
    /// A byte that becomes another one with the next write.
    at: Mutex<Option<u64>>,
}

impl Filter for Struck {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> std::result::Result<(), BlockError> {
        if let Some(at) = self.at.lock().take() {
            self.memory.write_all_at(&[0x5a], at).unwrap();
        }
        self.inner.write(first, bufs)
    }
}

#[test]
fn a_page_that_goes_bad_while_it_is_written_to_the_log_is_not_durable_by_it() {
    let rig = Rig::new();
    let (arena, clock) = (Arena::new(64, 0).unwrap(), Arc::new(ManualClock::new(0, 1)));
    let memory = File::from(arena.memory().try_clone_to_owned().unwrap());
    let device = Arc::new(Struck { inner: MemoryDevice::clone(&rig.device), memory, at: Mutex::new(None) });
    let module = Module::open(device.clone(), arena.clone(), clock, &OpenOptions::default()).unwrap();
    module.log_next(&mut |_| Ok(Vec::new())).unwrap();
    let (epoch, good, bad) = (module.epoch() + 1, page(&arena, 7), page(&arena, 9));
    assert!(append(&module, epoch, &good).unwrap());
    *device.at.lock() = Some(arena.frame_offset(bad.page().frame) + 100);
    let error = append(&module, epoch, &bad).unwrap_err();
    assert!(error.to_string().contains("page 3") && error.to_string().contains("page in memory"), "{error}");
    assert_eq!(*device.at.lock(), None);
    assert!(!append(&module, epoch, &good).unwrap(), "what is there is not known");
    module.prepare(epoch).unwrap();
    module.publish(epoch).unwrap();
    assert!(append(&module, epoch + 1, &good).unwrap());
}
