//! Error tables: pages that go bad in memory before the store has them, and who is told.

use crate::rig::{Rig, pattern};
use holdfast_object::*;
use holdfast_physical::check::{BlockRole, block_uses};

const PAGE: u64 = PAGE_SIZE as u64;

/// A file of three old pages in the store and three new ones in memory.
fn changed(rig: &Rig) -> ObjectId {
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &pattern(1, 3 * PAGE_SIZE)).unwrap();
    rig.cache.sync_all().unwrap();
    rig.write(id, 0, &pattern(2, 3 * PAGE_SIZE)).unwrap();
    id
}

fn bad(rig: &Rig, id: ObjectId) -> Vec<PageIndex> {
    rig.cache.bad_pages(id, 0, 100).unwrap()
}

/// A descriptor of the object.
struct Open<'a>(&'a Rig, ObjectId, u64);

impl<'a> Open<'a> {
    fn new(rig: &'a Rig, id: ObjectId) -> Open<'a> {
        Open(rig, id, rig.cache.errors_begin(id))
    }

    /// What fsync says.
    fn sync(&mut self) -> Result<()> {
        ObjectCache::make_durable(&self.0.cache, self.1, Durability::All)?;
        let Some((seen, error)) = self.0.cache.errors_tell(self.1, self.2) else { return Ok(()) };
        self.2 = seen;
        Err(error)
    }
}

fn is_memory_error(error: &Error, id: ObjectId, index: PageIndex) -> bool {
    let Error::Corrupt(corruption) = error else { return false };
    let place = &corruption.place;
    place.device.is_none() && place.object.map(|key| key.object) == Some(id) && place.index == Some(index)
}

#[test]
fn every_descriptor_is_told_once_by_whoever_finds_it() {
    type Finder = fn(&Rig, ObjectId);
    let finders: [(&str, Finder); 4] = [
        ("the writer of epochs", |rig, _| assert!(rig.cache.sync_all().is_ok())),
        ("a sync", |rig, id| ObjectCache::make_durable(&rig.cache, id, Durability::Data).unwrap()),
        ("a write to a part", |rig, id| assert!(rig.write(id, PAGE + 7, b"part").is_err())),
        ("a reader", |rig, id| {
            let views = rig.cache.read(id, 1, 1).unwrap();
            let PageView::Data(page) = &views[0] else { panic!("no bytes") };
            assert!(rig.cache.reread(id, 1, page.page()).is_err());
        }),
    ];
    for (finder, find) in finders {
        let rig = Rig::new(2048);
        let other = changed(&rig);
        let id = changed(&rig);
        let (mut one, mut two, mut elsewhere) = (Open::new(&rig, id), Open::new(&rig, id), Open::new(&rig, other));
        rig.flip(id, 1, 77);
        find(&rig, id);
        assert_eq!(bad(&rig, id), [1], "{finder}");
        assert!(is_memory_error(&one.sync().unwrap_err(), id, 1), "{finder}");
        one.sync().unwrap();
        assert!(two.sync().is_err(), "{finder}: the second is told, too");
        two.sync().unwrap();
        Open::new(&rig, id).sync().unwrap_or_else(|_| panic!("{finder}: one opened after others were told"));
        elsewhere.sync().unwrap();
        assert!(is_memory_error(&rig.contents(id).unwrap_err(), id, 1), "{finder}: telling mends nothing");
        assert_eq!(rig.contents(other).unwrap(), pattern(2, 3 * PAGE_SIZE));
        rig.cache.check();
        let rig = rig.remount();
        let mut expected = pattern(2, 3 * PAGE_SIZE);
        expected[PAGE_SIZE..2 * PAGE_SIZE].copy_from_slice(&pattern(1, 3 * PAGE_SIZE)[PAGE_SIZE..2 * PAGE_SIZE]);
        assert_eq!(rig.contents(id).unwrap(), expected, "{finder}: the old contents of that page only");
    }
}

#[test]
fn who_comes_first_after_an_error_that_nobody_knows_is_told() {
    let rig = Rig::new(2048);
    let id = changed(&rig);
    rig.flip(id, 1, 77);
    rig.cache.sync_all().unwrap();
    let (mut late, mut too) = (Open::new(&rig, id), Open::new(&rig, id));
    assert!(late.sync().is_err());
    assert!(too.sync().is_err(), "opened before anybody was told");
    Open::new(&rig, id).sync().unwrap();
    // Another page: all are told again.
    rig.write(id, 0, &pattern(3, PAGE_SIZE)).unwrap();
    rig.flip(id, 0, 77);
    assert!(is_memory_error(&late.sync().unwrap_err(), id, 0));
    assert!(too.sync().is_err());
    assert_eq!(bad(&rig, id), [0, 1]);
    assert_eq!(rig.cache.status().pages_lost, 2);
}

#[test]
fn writing_it_again_clears_the_entry() {
    let rig = Rig::new(2048);
    let id = changed(&rig);
    let mut open = Open::new(&rig, id);
    rig.flip(id, 1, 77);
    assert!(open.sync().is_err());
    assert!(rig.write(id, PAGE + 1, b"a part of it does not").is_err());
    assert_eq!(bad(&rig, id), [1]);
    rig.write(id, PAGE, &pattern(2, 3 * PAGE_SIZE)[PAGE_SIZE..2 * PAGE_SIZE]).unwrap();
    assert_eq!(bad(&rig, id), []);
    open.sync().unwrap();
    let rig = rig.power_cut();
    assert_eq!(rig.contents(id).unwrap(), pattern(2, 3 * PAGE_SIZE));
}

/// The block at the end of a file is written again as far as the file goes, and what is behind that reads as zero.
#[test]
fn the_last_block_is_written_again_up_to_the_end_of_the_file() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    let (length, last) = (2 * PAGE_SIZE + 100, 2 * PAGE);
    rig.write(id, 0, &pattern(1, length)).unwrap();
    rig.flip(id, 2, 77);
    assert!(rig.write(id, last, &pattern(2, 99)).is_err(), "a byte of it is left");
    assert!(rig.write(id, last + 1, &pattern(2, 99)).is_err());
    assert_eq!(bad(&rig, id), [2]);
    rig.write(id, last, &pattern(2, 100)).unwrap();
    assert_eq!(bad(&rig, id), []);
    let expected = |length: usize| [&pattern(1, 2 * PAGE_SIZE)[..], &pattern(2, 100), &vec![0; length]].concat();
    assert!(rig.contents(id).unwrap() == expected(0));
    rig.submit(vec![Op::Truncate { id, size: 3 * PAGE }]).unwrap();
    assert!(rig.contents(id).unwrap() == expected(PAGE_SIZE - 100), "nothing of the old page has come back");
}

#[test]
fn what_is_cut_off_is_no_error() {
    type Cut = fn(ObjectId) -> Op;
    let cuts: [(Cut, &[PageIndex]); 4] = [
        (|id| Op::Truncate { id, size: PAGE }, &[]),
        (|id| Op::Truncate { id, size: 2 * PAGE }, &[1]),
        (|id| Op::Zero { id, offset: PAGE, length: PAGE }, &[2]),
        (|id| Op::Delete { id }, &[]),
    ];
    for (number, (cut, left)) in cuts.into_iter().enumerate() {
        let rig = Rig::new(2048);
        let id = changed(&rig);
        let mut open = Open::new(&rig, id);
        rig.flip(id, 1, 77);
        rig.flip(id, 2, 77);
        rig.cache.sync_all().unwrap();
        assert_eq!(bad(&rig, id), [1, 2]);
        rig.submit(vec![cut(id)]).unwrap();
        let is_there = rig.cache.attributes(id).is_ok();
        assert_eq!(if is_there { bad(&rig, id) } else { vec![] }, left, "cut {number}");
        assert_eq!(rig.cache.errors_tell(id, open.2).is_some(), !left.is_empty(), "cut {number}");
        if number == 1 {
            assert!(open.sync().is_err());
            assert!(rig.submit(vec![Op::Truncate { id, size: PAGE + 9 }]).is_err(), "within a bad page");
        }
        rig.cache.sync_all().unwrap();
        rig.cache.check();
    }
}

#[test]
fn a_snapshot_has_the_old_contents_or_knows_that_there_are_none() {
    let rig = Rig::new(2048);
    let id = changed(&rig);
    rig.write(id, 3 * PAGE, &pattern(5, PAGE_SIZE)).unwrap();
    rig.flip(id, 1, 77);
    rig.flip(id, 3, 77);
    let snapshot = rig.cache.snapshot_create("s").unwrap().id;
    let kept = id.in_snapshot(snapshot);
    let page = |index| match &rig.cache.read(kept, index, 1)?[0] {
        PageView::Data(page) => Ok(page.verify().unwrap().to_vec()),
        PageView::Zero => Ok(vec![0; PAGE_SIZE]),
    };
    assert_eq!(page(0).unwrap(), pattern(2, PAGE_SIZE));
    assert_eq!(page(1).unwrap(), pattern(1, 3 * PAGE_SIZE)[PAGE_SIZE..2 * PAGE_SIZE]);
    assert!(matches!(page(3), Err(Error::Lost { side: Side::Memory, .. })), "never zeros");
    assert_eq!(bad(&rig, id), [1, 3], "the file itself is as bad as before");
}

/// Told by a sync, then the power fails: the size says that there is a page, and no epoch had it.
#[test]
fn what_a_sync_lost_is_no_hole_after_a_power_cut() {
    for finder_reads in [false, true] {
        let rig = Rig::new(2048);
        let id = rig.create(Kind::Regular);
        rig.write(id, 0, &pattern(1, 2 * PAGE_SIZE)).unwrap();
        rig.flip(id, 0, 77);
        if finder_reads {
            assert!(rig.write(id, 1, b"part").is_err());
        }
        assert!(Open::new(&rig, id).sync().is_err());
        let rig = rig.power_cut();
        assert!(
            matches!(rig.cache.read(id, 0, 1), Err(Error::Lost { side: Side::Memory, .. })),
            "found before the sync: {finder_reads}"
        );
        assert!(rig.cache.read(id, 1, 1).is_ok());
    }
}

#[test]
fn a_bad_page_is_no_hole_to_seek() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    rig.write(id, 2 * PAGE, &pattern(1, PAGE_SIZE)).unwrap();
    rig.flip(id, 2, 77);
    assert!(Open::new(&rig, id).sync().is_err());
    assert_eq!(rig.cache.seek(id, 0, Seek::Data).unwrap(), Some(2 * PAGE));
    assert_eq!(rig.cache.seek(id, 2 * PAGE, Seek::Hole).unwrap(), Some(3 * PAGE));
}

#[test]
fn a_copy_of_a_bad_page_is_bad_in_both_files() {
    let rig = Rig::new(2048);
    let (id, copy) = (changed(&rig), rig.create(Kind::Regular));
    let whole =
        |source, target| Op::Copy { source, source_first: 0, target, target_first: 0, pages: 3, size_min: 3 * PAGE };
    rig.submit(vec![whole(id, copy)]).unwrap();
    let (mut one, mut two) = (Open::new(&rig, id), Open::new(&rig, copy));
    rig.flip(id, 1, 77);
    rig.cache.sync_all().unwrap();
    assert!(one.sync().is_err() && two.sync().is_err());
    assert_eq!((bad(&rig, id), bad(&rig, copy)), (vec![1], vec![1]));
    assert!(rig.submit(vec![whole(id, rig.create(Kind::Regular))]).is_err(), "what is bad is not copied");
    let rig = rig.remount();
    assert_eq!(
        rig.contents(id).unwrap()[PAGE_SIZE..2 * PAGE_SIZE],
        pattern(1, 3 * PAGE_SIZE)[PAGE_SIZE..2 * PAGE_SIZE]
    );
    assert_eq!(
        rig.contents(copy).unwrap()[PAGE_SIZE..2 * PAGE_SIZE],
        pattern(1, 3 * PAGE_SIZE)[PAGE_SIZE..2 * PAGE_SIZE]
    );
}

/// However many objects come and go, an object with an error is remembered, and the sequence goes on.
#[test]
fn an_error_is_not_forgotten_for_lack_of_use() {
    let rig = Rig::new(16_384);
    let id = changed(&rig);
    let mut open = Open::new(&rig, id);
    rig.flip(id, 1, 77);
    rig.cache.sync_all().unwrap();
    for _ in 0..1200 {
        rig.create(Kind::Regular);
    }
    rig.cache.sync_all().unwrap();
    assert!(rig.cache.status().objects <= 1100, "objects are forgotten: {}", rig.cache.status().objects);
    assert!(open.sync().is_err());
    open.sync().unwrap();
}

#[test]
fn whoever_syncs_everything_is_told_once_of_all_objects() {
    let rig = Rig::new(2048);
    let (one, two) = (changed(&rig), changed(&rig));
    rig.write(one, 0, &pattern(2, 3 * PAGE_SIZE)).unwrap();
    let mut open = Open::new(&rig, one);
    let sync_all = |rig: &Rig| {
        rig.cache.sync_all().unwrap();
        rig.cache.errors_tell_all()
    };
    rig.flip(one, 1, 77);
    rig.flip(two, 2, 77);
    assert!(open.sync().is_err(), "who is told elsewhere does not count");
    assert!(is_memory_error(&sync_all(&rig).unwrap(), one, 1), "the first");
    assert!(sync_all(&rig).is_none(), "and with it the other");
    assert_eq!(rig.cache.bad_objects(), [(one, 1), (two, 1)]);
    assert!(Open::new(&rig, two).sync().is_err(), "nor does it tell descriptors");
    rig.write(two, 0, &pattern(4, PAGE_SIZE)).unwrap();
    rig.flip(two, 0, 77);
    assert!(is_memory_error(&sync_all(&rig).unwrap(), two, 0), "news");
    rig.write(two, 0, &pattern(4, PAGE_SIZE)).unwrap();
    rig.flip(two, 0, 77);
    ObjectCache::make_durable(&rig.cache, two, Durability::All).unwrap();
    rig.write(two, 0, &pattern(4, PAGE_SIZE)).unwrap();
    assert!(sync_all(&rig).is_none(), "written again before anybody asked");
    assert_eq!((rig.cache.status().pages_bad, rig.cache.status().pages_lost), (2, 4));
}

/// A store opened anew takes over what is bad, or says that it cannot: never the old contents all of a sudden.
#[test]
fn what_is_bad_is_taken_over_by_a_cache_that_is_opened_anew_or_stays() {
    let rig = Rig::new(2048);
    // In another block of the table than the root, whose record is read when the store is opened.
    let [.., gone, id] = [(); 10].map(|()| changed(&rig));
    rig.write(gone, 0, &pattern(2, 3 * PAGE_SIZE)).unwrap();
    let mut open = Open::new(&rig, id);
    rig.flip(id, 1, 77);
    rig.flip(gone, 1, 77);
    rig.cache.sync_all().unwrap();
    rig.cache.close().unwrap();
    assert!(open.sync().is_err());
    let seen = open.2;
    {
        // As a store that was used elsewhere in between: no reason to fail.
        let other = Rig::open_through(rig.device.clone(), rig.device.clone());
        other.submit(vec![Op::Delete { id: gone }]).unwrap();
        other.cache.close().unwrap();
    }
    let uses = block_uses(rig.device.clone()).unwrap();
    let anew = Rig::open_through(rig.device.clone(), rig.device.clone());
    // Now the table of objects cannot be read, and now it can.
    let damage = || {
        for used in uses.iter().filter(|used| used.role == BlockRole::ObjectTable) {
            rig.device.alter(used.block, |bytes| bytes[100] ^= 4).unwrap();
        }
    };
    rig.cache.hold(id, Hold::Open, 1);
    damage();
    assert!(matches!(anew.cache.adopt_sessions(&rig.cache), Err(Error::Corrupt(_))));
    assert_eq!((bad(&rig, id), rig.cache.held()), (vec![1], vec![id]), "as it was");
    damage();
    anew.cache.adopt_sessions(&rig.cache).unwrap();
    assert_eq!((bad(&anew, id), anew.cache.held()), (vec![1], vec![id]));
    assert!(is_memory_error(&anew.contents(id).unwrap_err(), id, 1));
    Open(&anew, id, seen).sync().unwrap();
    assert!(Open(&anew, id, 0).sync().is_err());
    anew.cache.check();
}
