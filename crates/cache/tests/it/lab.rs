//! Bits flipped on purpose in a cache that is in use.

use crate::rig::{Rig, pattern};
use holdfast_cache::{FlipError, FlipPart, PageState, ResidentPage};
use holdfast_object::*;

/// The pages of an object.
fn resident(rig: &Rig, id: ObjectId) -> Vec<ResidentPage> {
    rig.cache.quiet().resident_pages(|object, _| object == id)
}

fn hit(rig: &Rig, id: ObjectId, index: usize, part: FlipPart) {
    let page = resident(rig, id)[index];
    rig.cache.quiet().flip(&page, part, &[5]).unwrap();
}

/// As a reader does that finds a page bad.
fn find(rig: &Rig, id: ObjectId, index: PageIndex) -> Result<PageView> {
    let views = rig.cache.read(id, index, 1)?;
    let PageView::Data(page) = &views[0] else { panic!("no bytes") };
    assert!(page.verify().is_err(), "page {index} is bad");
    rig.cache.reread(id, index, page.page())
}

#[test]
fn pages_are_hit_in_the_state_that_they_are_in() {
    for part in [FlipPart::Bytes, FlipPart::Sum] {
        let rig = Rig::new(2048);
        let (id, other) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
        rig.write(other, 0, &pattern(9, PAGE_SIZE)).unwrap();
        rig.write(id, 0, &pattern(1, 3 * PAGE_SIZE)).unwrap();
        assert!(
            resident(&rig, id).iter().map(|page| (page.index, page.state)).eq((0..3).map(|i| (i, PageState::Dirty)))
        );
        rig.cache.sync_all().unwrap();
        assert!(resident(&rig, id).iter().all(|page| page.state == PageState::Clean && page.sum_bits == 64));
        // As the store has it: read again from there.
        hit(&rig, id, 1, part);
        rig.cache.check();
        assert!(find(&rig, id, 1).is_ok());
        assert_eq!(rig.contents(id).unwrap(), pattern(1, 3 * PAGE_SIZE));
        assert_eq!(rig.cache.status().pages_reread, 1, "{part:?}");
        // Not yet: it is not stored.
        rig.write(id, 0, &pattern(2, 3 * PAGE_SIZE)).unwrap();
        hit(&rig, id, 1, part);
        rig.cache.check();
        assert!(rig.cache.sync(id, Durability::All).is_err(), "{part:?}");
        assert_eq!(rig.cache.bad_objects(), [(id, 1)]);
        rig.cache.check();
        // One that an epoch finds.
        rig.write(id, 0, &pattern(3, 3 * PAGE_SIZE)).unwrap();
        hit(&rig, id, 2, part);
        rig.cache.sync_all().unwrap();
        rig.cache.check();
        assert_eq!(rig.cache.bad_objects(), [(id, 1)], "{part:?}");
        assert_eq!(rig.contents(other).unwrap(), pattern(9, PAGE_SIZE));
    }
}

#[test]
fn what_is_not_there_is_not_hit() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &pattern(1, PAGE_SIZE)).unwrap();
    let page = resident(&rig, id)[0];
    let flip = |page: &ResidentPage, part, bits: &[u32]| rig.cache.quiet().flip(page, part, bits);
    let clean = ResidentPage { state: PageState::Clean, ..page };
    assert_eq!(flip(&clean, FlipPart::Bytes, &[5]), Err(FlipError::Is(PageState::Dirty)));
    let absent = ResidentPage { index: 7, ..page };
    assert_eq!(flip(&absent, FlipPart::Bytes, &[5]), Err(FlipError::NotInMemory));
    for (part, bits) in [(FlipPart::Bytes, PAGE_BITS), (FlipPart::Sum, 64)] {
        let refused = Err(FlipError::NoSuchBit { bit: bits, bits });
        assert_eq!(flip(&page, part, &[3, bits]), refused, "nor is the one that there is");
    }
    let reader = rig.cache.read(id, 0, 1).unwrap();
    assert_eq!(
        flip(&page, FlipPart::Bytes, &[5]),
        Err(FlipError::InUse),
        "its bytes would change under a reader's eyes"
    );
    drop(reader);
    assert_eq!(rig.contents(id).unwrap(), pattern(1, PAGE_SIZE));
}

#[test]
fn a_bit_flips_whatever_is_under_way() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &pattern(1, PAGE_SIZE)).unwrap();
    let page = resident(&rig, id)[0];
    // As whoever writes an epoch, it keeps out those who wait for there to be none.
    let writing = rig.cache.quiet();
    rig.cache.at_any_moment().flip(&page, FlipPart::Bytes, &[5]).unwrap();
    drop(writing);
    assert!(rig.cache.sync(id, Durability::All).is_err());
    rig.cache.check();
}

#[test]
fn a_page_below_is_met_by_the_next_reader() {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &pattern(1, 2 * PAGE_SIZE)).unwrap();
    assert_eq!(rig.cache.quiet().below(id, 1, || panic!("not called")), Err::<(), _>(FlipError::Is(PageState::Dirty)));
    rig.cache.sync_all().unwrap();
    assert_eq!(rig.cache.quiet().below(id, 1, || 7), Ok(7));
    assert_eq!(resident(&rig, id).len(), 1);
    rig.cache.check();
    let misses = rig.cache.status().page_misses;
    assert_eq!(rig.contents(id).unwrap(), pattern(1, 2 * PAGE_SIZE));
    assert_eq!(rig.cache.status().page_misses, misses + 1);
}
