//! What goes bad while the device is asked, between a look at what is known of it and what is written.

use super::*;
use crate::commit::tests::Rig;
use crate::commit::tests::meanwhile::{Meanwhile, Request, flip};
use crate::format::Features;
use crate::format::LABELS;
use crate::format::record;
use crate::format::superblock::{ring_block, slot};
use crate::module::Module;
use holdfast_block::{Device, MemoryDevice};
use holdfast_integrity::Protection;
use holdfast_object::{Attributes, Batch, Class, DomainId, Kind, ObjectId, ObjectStore, Op, ScrubCursor, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A byte of the features, the part that a reader must know: in a label, in a superblock.
const INCOMPAT: [usize; 2] = [88, 96];

fn make(module: &Module, id: u64) {
    let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
    let ops = vec![Op::Create { id: ObjectId(id), attributes: Attributes { nlink: 1, ..attributes } }];
    module.apply(&Batch { domain: DomainId::MAIN, epoch: module.epoch() + 1, ops }).unwrap();
}

fn scribbles(module: &Module) -> u64 {
    module.status().counters.scribbles
}

/// Opened anew; what is known of the device then.
fn known(device: &MemoryDevice) -> (Label, Superblock) {
    let (_, module) = Meanwhile::open_on(device.clone());
    module.sealed.both(module.disk()).unwrap()
}

/// What the next superblock takes over from the label and the last one is verified when all else is complete, and not as it was when the
/// epoch was begun.
#[test]
fn what_is_taken_over_is_verified_when_the_epoch_is_complete() {
    for (is_label, at) in [(true, INCOMPAT[0]), (false, INCOMPAT[1]), (false, 16), (false, 136)] {
        let rig = Rig::new();
        let (device, module) = Meanwhile::open(&rig);
        let before = known(&device.inner);
        make(&module, 3);
        // Staging reads blocks then.
        module.base.cache.clear();
        let (struck, of) = (Arc::new(AtomicU64::new(0)), module.clone());
        let count = struck.clone();
        device.set(move |request, _, _| {
            if request == Request::Read && count.fetch_add(1, Ordering::Relaxed) == 0 {
                of.sealed.scribble(is_label, at, 0x10);
            }
        });
        let epoch = module.epoch() + 1;
        module.prepare(epoch).unwrap();
        device.unset();
        assert!(struck.load(Ordering::Relaxed) > 0, "nothing was read");
        assert_eq!(scribbles(&module), 1, "label: {is_label}, at {at}");
        module.publish(epoch).unwrap();
        let after = known(&device.inner);
        assert_eq!((&after.0, after.1.epoch, after.1.features), (&before.0, epoch, before.1.features));
    }
}

type Strike = fn(&mut Superblock);

const STRIKES: [(&str, Strike); 8] = [
    ("features", |superblock| superblock.features.incompat ^= 1),
    ("store", |superblock| superblock.store[3] ^= 1),
    ("device", |superblock| superblock.device[3] ^= 1),
    ("protection", |superblock| superblock.protection = Protection::None),
    ("set aside", |superblock| superblock.set_aside ^= 1),
    ("epoch", |superblock| superblock.epoch ^= 1),
    ("free", |superblock| superblock.free ^= 1),
    ("root", |superblock| superblock.root.project ^= 1),
];

#[test]
fn a_superblock_that_went_bad_before_it_was_sealed_is_given_up() {
    for (what, strike) in STRIKES {
        let rig = Rig::new();
        let disk = rig.module.disk();
        let good = rig.module.superblock().unwrap();
        assert_eq!(Sealed::open_as(disk, &SealedSuperblock::new(&good), &good).unwrap(), good);
        let mut bad = good.clone();
        strike(&mut bad);
        let error = Sealed::open_as(disk, &SealedSuperblock::new(&bad), &good).unwrap_err();
        assert!(matches!(error, Error::GivenUp(_)), "{what}: {error}");
        assert_eq!((scribbles(&rig.module), disk.check_sound().is_err()), (1, true), "{what}");
    }
}

#[test]
fn what_is_worked_with_is_compared_when_the_work_is_done() {
    let rig = Rig::new();
    let (disk, sealed) = (rig.module.disk(), &rig.module.sealed);
    let (label, superblock) = sealed.both(disk).unwrap();
    sealed.check_held(disk, &label, &superblock).unwrap();
    for (what, strike) in STRIKES {
        let mut bad = superblock.clone();
        strike(&mut bad);
        let error = sealed.check_held(disk, &label, &bad).unwrap_err();
        assert!(error.to_string().contains("superblock that is worked with in memory"), "{what}: {error}");
    }
    let bad = Label { features: Features { incompat: 1, ..label.features }, ..label };
    let error = sealed.check_held(disk, &bad, &superblock).unwrap_err();
    assert!(error.to_string().contains("label that is worked with in memory"), "{error}");
    assert_eq!(scribbles(&rig.module), STRIKES.len() as u64 + 1);
    assert!(disk.check_sound().is_ok(), "nothing was made of it");
}

/// While all labels and rings are read.
#[test]
fn what_a_scrub_works_with_is_looked_at_before_anything_is_put_right() {
    let rig = Rig::new();
    let (device, module) = Meanwhile::open(&rig);
    let before = known(&device.inner);
    let of = module.clone();
    let mut is_struck = false;
    device.set(move |request, _, _| {
        if request == Request::Read && !std::mem::replace(&mut is_struck, true) {
            of.sealed.scribble(true, INCOMPAT[0], 0x10);
            of.sealed.scribble(false, INCOMPAT[1], 0x10);
        }
    });
    let step = module.scrub_step(&ScrubCursor::Start, 1).unwrap();
    device.unset();
    assert_eq!((scribbles(&module), step.counts.repaired, step.counts.unrepaired), (2, 0, 0));
    assert_eq!(known(&device.inner), before);
}

/// A copy, before the device has it or afterwards; or what they were made from.
#[test]
fn copies_of_a_superblock_are_looked_at_once_they_are_written() {
    for (number, moment) in (0..LABELS).flat_map(|number| [(number, Request::Write), (number, Request::Written)]) {
        for is_copy in [true, false] {
            let what = format!("label {number}, {moment:?}, copy: {is_copy}");
            let rig = Rig::new();
            let (device, module) = Meanwhile::open(&rig);
            make(&module, 3);
            let epoch = module.epoch() + 1;
            module.prepare(epoch).unwrap();
            let sealed = module.committing.lock().prepared.as_ref().unwrap().block.bytes().as_ptr() as usize;
            let block = ring_block(number, slot(epoch), module.blocks());
            device.set(move |request, first, bytes| {
                if (request, first) == (moment, block) {
                    // The features: a reader that believed this one would refuse the store.
                    flip(if is_copy { bytes } else { sealed as *const u8 }.wrapping_add(INCOMPAT[1]), 0x10);
                }
            });
            let error = module.publish(epoch).unwrap_err();
            device.unset();
            assert!(matches!(error, Error::Corrupt(_)), "{what}: {error}");
            let told =
                if is_copy { "copy of a superblock in memory" } else { "second sum of the superblock in memory" };
            assert!(error.to_string().contains(told), "{what}: {error}");
            let reason = module.status().read_only.expect("latched");
            assert!(reason.contains("while it was written"), "{what}: {reason}");
            assert_eq!(scribbles(&module), 1, "{what}");
            // The other copies are good.
            assert_eq!(known(&device.inner).1.epoch, epoch, "{what}");
        }
    }
}

/// The last superblock is kept as it was written, and not made anew from what was decoded before the device had it.
#[test]
fn what_was_written_is_what_is_known_afterwards() {
    let rig = Rig::new();
    rig.make(3);
    let epoch = rig.module.epoch() + 1;
    rig.module.prepare(epoch).unwrap();
    let address = |sealed: &SealedSuperblock| sealed.block.bytes().as_ptr();
    let prepared = address(rig.module.committing.lock().prepared.as_ref().unwrap());
    rig.module.publish(epoch).unwrap();
    assert_eq!(address(&rig.module.sealed.published.lock()), prepared);
}

#[test]
fn what_goes_bad_while_a_store_grows_is_in_no_label() {
    for nth in 0.. {
        let rig = Rig::new();
        let inner = MemoryDevice::clone(&rig.device);
        inner.grow(3 * 4096).unwrap();
        let (device, module) = Meanwhile::open_on(inner);
        let before = known(&device.inner);
        let (written, of) = (Arc::new(AtomicU64::new(0)), module.clone());
        let count = written.clone();
        device.set(move |request, _, _| {
            if request == Request::Write && count.fetch_add(1, Ordering::Relaxed) == nth {
                of.sealed.scribble(true, INCOMPAT[0], 0x10);
                of.sealed.scribble(false, INCOMPAT[1], 0x10);
            }
        });
        assert_eq!(module.grow(0).unwrap(), 3 * 4096, "write {nth}");
        device.unset();
        // After the last write nobody asks.
        let (label, superblock) = module.sealed.both(module.disk()).unwrap();
        let is_struck = written.load(Ordering::Relaxed) > nth;
        assert_eq!(scribbles(&module), if is_struck { 2 } else { 0 }, "write {nth}");
        let grown = Label { blocks: 3 * 4096, ..before.0 };
        assert_eq!((&label, &superblock), (&grown, &before.1), "write {nth}");
        assert_eq!(known(&device.inner), (grown, before.1), "write {nth}");
        if !is_struck {
            assert!(nth > 6, "{nth} writes");
            break;
        }
    }
}

#[test]
fn which_field_of_a_prepared_superblock_has_gone_bad_is_told_by_its_sums() {
    // Its checksum, and what is in the record of the table of objects, too.
    let root = FIELDS.at("root");
    let in_root = [("root.kind", root), ("root.root.address", root + record::FIELDS.at("root"))];
    for (field, at) in [("magic", 3), ("free", FIELDS.at("free") + 1), ("crc", 4095)].into_iter().chain(in_root) {
        let rig = Rig::new();
        let (disk, good) = (rig.module.disk(), rig.module.superblock().unwrap());
        let mut sealed = SealedSuperblock::new(&good);
        let was = sealed.block.bytes()[at];
        sealed.scribbled().write(at, &[!was]);
        let error = Sealed::open(disk, &sealed).unwrap_err().to_string();
        assert!(error.contains(&format!(", {field}: expected ")), "{error}");
        let epoch = format!(", last changed legally for epoch {}", disk.newest());
        assert!(error.contains(&epoch), "{error}");
    }
}
