//! Changed pages of metadata that go bad in memory: their twins take their place, and nobody notices.

use crate::front::Front;
use crate::rig::{Rig, pattern};
use holdfast_cache::{FlipPart, FrozenPart};
use holdfast_integrity::{Algorithm, crc64_neutral};
use holdfast_object::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

const PAGE: u64 = PAGE_SIZE as u64;

/// What a directory has after it was changed.
fn newest() -> Vec<u8> {
    pattern(2, 3 * PAGE_SIZE)
}

/// A directory of three old pages in the store and three new ones in memory.
fn changed(rig: &Rig) -> ObjectId {
    let id = rig.create(Kind::Directory);
    rig.write(id, 0, &pattern(1, 3 * PAGE_SIZE)).unwrap();
    rig.cache.sync_all().unwrap();
    rig.write(id, 0, &newest()).unwrap();
    id
}

/// Inverts a bit of a page, or of what it is kept under.
fn hit(rig: &Rig, id: ObjectId, index: PageIndex, part: FlipPart) {
    hit_bits(rig, id, index, part, &[5]);
}

fn hit_bits(rig: &Rig, id: ObjectId, index: PageIndex, part: FlipPart, bits: &[u32]) {
    let quiet = rig.cache.quiet();
    let pages = quiet.resident_pages(|object, _| object == id);
    quiet.flip(&pages[index as usize], part, bits).unwrap();
}

/// Bits of a page that leave its checksum as it is.
fn unseen() -> Vec<u32> {
    let (at, bytes) = crc64_neutral(8 * 20).unwrap();
    let bits = 8 * at as u32..8 * (at + bytes.len()) as u32;
    bits.filter(|bit| bytes[*bit as usize / 8 - at] >> (bit % 8) & 1 == 1).collect()
}

fn read(rig: &Rig, id: ObjectId, index: PageIndex) {
    let views = rig.cache.read(id, index, 1).unwrap();
    let PageView::Data(page) = &views[0] else { panic!("no bytes") };
    assert!(page.verify().is_err(), "it was hit");
    let PageView::Data(page) = rig.cache.reread(id, index, page.page()).unwrap() else { panic!("no bytes") };
    let at = index as usize * PAGE_SIZE;
    assert_eq!(page.verify().unwrap()[..], newest()[at..at + PAGE_SIZE]);
}

#[test]
fn whoever_finds_it() {
    type Finder = fn(&Rig, ObjectId);
    let finders: [(&str, Finder); 4] = [
        ("the writer of epochs", |rig, _| assert!(rig.cache.sync_all().is_ok())),
        ("a sync", |rig, id| ObjectCache::make_durable(&rig.cache, id, Durability::All).unwrap()),
        ("a write to a part", |rig, id| rig.write(id, PAGE + 7, &newest()[PAGE_SIZE + 7..PAGE_SIZE + 11]).unwrap()),
        ("a reader", |rig, id| read(rig, id, 1)),
    ];
    for (finder, find) in finders {
        let bits = [5];
        for (part, bits) in [(FlipPart::Bytes, &bits[..]), (FlipPart::Sum, &bits), (FlipPart::Bytes, &unseen())] {
            for is_cut in [false, true] {
                let rig = Rig::new(2048);
                let id = changed(&rig);
                hit_bits(&rig, id, 1, part, bits);
                find(&rig, id);
                rig.cache.check();
                assert_eq!(rig.cache.bad_pages(id, 0, 100).unwrap(), [], "{finder}");
                assert_eq!(rig.contents(id).unwrap(), newest(), "{finder}");
                rig.cache.sync(id, Durability::All).unwrap_or_else(|error| panic!("{finder}: {error}"));
                let status = rig.cache.status();
                let counts = (status.pages_renewed, status.scribbles, status.pages_lost);
                assert_eq!(counts, (1, 1, 0), "{finder}, {part:?}");
                let rig = if is_cut { rig.power_cut() } else { rig.remount() };
                assert_eq!(rig.contents(id).unwrap(), newest(), "{finder}, cut: {is_cut}");
            }
        }
    }
}

#[test]
fn twins_go_with_the_recovery_point() {
    let rig = Rig::new(2048);
    let id = changed(&rig);
    rig.cache.check();
    rig.cache.sync_all().unwrap();
    rig.cache.check();
    hit(&rig, id, 1, FlipPart::Bytes);
    read(&rig, id, 1);
    let status = rig.cache.status();
    assert_eq!((status.pages_renewed, status.pages_reread, status.scribbles), (0, 1, 1), "the store has it");
}

/// A page that goes bad at one of the device's writes: after it was verified, as all pages are before they are handed to the device.
#[test]
fn one_that_goes_bad_while_it_is_written_is_written_again() {
    let mut restarts = 0;
    for write in 0..12 {
        let rig = Rig::new(2048);
        let id = changed(&rig);
        let device = rig.device.clone();
        let rig = rig.remount();
        drop(rig);
        let (arena, at) = (Arc::new(OnceLock::<(Arc<Arena>, u32)>::new()), Arc::new(AtomicU32::new(0)));
        let (of, counted) = (arena.clone(), at.clone());
        let front = Front::new(device.clone(), move |first| {
            if let Some((arena, frame)) = of.get()
                && counted.fetch_add(1, Ordering::Relaxed) == write
            {
                // SAFETY: nobody looks at the page meanwhile: this is the only thread.
                unsafe { arena.flip(*frame, 77) };
            }
            first
        });
        let rig = Rig::open_through(device, front);
        rig.write(id, 0, &pattern(3, 3 * PAGE_SIZE)).unwrap();
        let frame = {
            let views = rig.cache.read(id, 1, 1).unwrap();
            let PageView::Data(page) = &views[0] else { panic!("no bytes") };
            page.page().frame
        };
        assert!(arena.set((rig.arena.clone(), frame)).is_ok());
        rig.cache.sync_all().unwrap_or_else(|error| panic!("hit at write {write}: {error}"));
        rig.cache.check();
        restarts += rig.module.status().counters.restarts;
        let was_hit = at.load(Ordering::Relaxed) > write;
        let rig = rig.power_cut();
        assert_eq!(rig.contents(id).unwrap(), pattern(3, 3 * PAGE_SIZE), "hit at write {write}: {was_hit}");
    }
    assert!(restarts > 0, "no write was hit between the verification and the superblock");
}

#[test]
fn a_page_that_is_put_in_the_place_of_another_is_refused() {
    let rig = Rig::new(2048);
    let (id, file) = (changed(&rig), rig.create(Kind::Regular));
    let sealed = || {
        let mut frame = rig.cache.frames(1).unwrap().pop().unwrap();
        frame.fill(3);
        let page = frame.publish(Algorithm::Crc64Nvme.sum(&[3; PAGE_SIZE]));
        page.seal_for(id, 1);
        page
    };
    for (object, index) in [(id, 2), (file, 1)] {
        let page = sealed();
        let fragments = vec![Fragment { index, start: 0, end: PAGE_SIZE as u16, page: page.page() }];
        let refused = rig.submit(vec![Op::Write { id: object, fragments, size_min: 0 }]).map(drop).unwrap_err();
        assert!(matches!(&refused, Error::Protocol(what) if what.contains("sealed as another one")), "{refused}");
    }
    let page = sealed();
    let fragments = vec![Fragment { index: 1, start: 0, end: PAGE_SIZE as u16, page: page.page() }];
    rig.submit(vec![Op::Write { id, fragments, size_min: 0 }]).unwrap();
    rig.cache.check();
}

/// Operations are in the log of the arena twice: the first bytes of either half are the header of the first record.
#[test]
fn of_the_operation_log_too() {
    let flip = |rig: &Rig, half: u64| {
        let at = rig.arena.frame_offset(0) - rig.arena.log_region().1 as u64 * (2 - half) / 2 + 16;
        let mut byte = [0];
        rustix::io::pread(rig.arena.memory(), &mut byte, at).unwrap();
        rustix::io::pwrite(rig.arena.memory(), &[byte[0] ^ 0x10], at).unwrap();
    };
    for half in [0, 1] {
        let rig = Rig::new(2048);
        let id = rig.create(Kind::Regular);
        flip(&rig, half);
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.cache.status().operations_renewed, 1 - half);
        let rig = rig.power_cut();
        assert_eq!(rig.cache.attributes(id).unwrap().mode, 0o644);
    }
    let rig = Rig::new(2048);
    rig.create(Kind::Regular);
    [0, 1].into_iter().for_each(|half| flip(&rig, half));
    let error = rig.cache.sync_all().unwrap_err().to_string();
    assert!(error.contains("operation log in memory") && error.contains("have the memory tested"), "{error}");
}

/// What an epoch consists of goes bad while it is handed down: it is begun anew with what was frozen.
#[test]
fn of_what_an_epoch_consists_of_too() {
    for part in [FrozenPart::Operation, FrozenPart::Given] {
        let rig = Rig::new(2048);
        let [kept, gone] = [(); 2].map(|()| rig.create(Kind::Regular));
        rig.cache.sync_all().unwrap();
        rig.submit(vec![Op::Delete { id: gone }]).unwrap();
        rig.cache.strike_frozen_part(part, kept.0 ^ gone.0);
        rig.cache.sync_all().unwrap();
        assert_eq!(found_and_begun_anew(&rig), (1, 1), "{part:?}");
        let rig = rig.power_cut();
        assert!(rig.cache.attributes(kept).is_ok() && rig.cache.attributes(gone).is_err(), "{part:?}");
    }
    let rig = Rig::new(2048);
    let files = [(); 3].map(|()| rig.create(Kind::Regular));
    for id in files {
        rig.write(id, 2 * PAGE, &pattern(5, PAGE_SIZE)).unwrap();
        rig.cache.strike_frozen_part(FrozenPart::Place(id), 1);
    }
    rig.cache.sync_all().unwrap();
    assert_eq!(found_and_begun_anew(&rig), (1, 1), "all of it is put right at once");
    let rig = rig.power_cut();
    for id in files {
        assert_eq!(rig.page(id, 2).unwrap()[..], pattern(5, PAGE_SIZE));
        assert_eq!(rig.cache.seek(id, 3 * PAGE, Seek::Data).unwrap(), None);
    }
}

fn found_and_begun_anew(rig: &Rig) -> (u64, u64) {
    let counters = rig.cache.store_status().counters;
    (counters.scribbles, counters.restarts)
}
