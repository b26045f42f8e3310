//! What a reader that goes through an object is told of the page that it comes to next.

use crate::rig::{Rig, pattern};
use holdfast_object::*;

const PAGES: u64 = 16;

fn page(rig: &Rig, id: ObjectId, index: PageIndex) -> PinnedPage {
    match rig.cache.read(id, index, 1).unwrap().pop() {
        Some(PageView::Data(page)) => page,
        other => panic!("page {index} is {other:?}"),
    }
}

fn address(page: &PinnedPage) -> usize {
    page.bytes().as_ptr().addr()
}

#[test]
fn a_page_is_followed_where_the_next_one_lies_behind_it_in_memory() {
    let rig = Rig::new(1024);
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &pattern(1, PAGES as usize * PAGE_SIZE)).unwrap();
    // This one gets another frame.
    rig.cache.sync_all().unwrap();
    rig.write(id, 5 * PAGE_SIZE as u64, &pattern(2, PAGE_SIZE)).unwrap();
    let addresses: Vec<usize> = (0..PAGES).map(|index| address(&page(&rig, id, index))).collect();
    let neighbours: Vec<bool> = addresses.windows(2).map(|two| two[0] + PAGE_SIZE == two[1]).collect();
    assert!(neighbours.contains(&true) && neighbours.contains(&false), "nothing is tested: {neighbours:?}");
    for (index, is_followed) in (0..).zip(&neighbours) {
        assert_eq!(page(&rig, id, index).is_followed(), *is_followed, "page {index}");
    }
    assert!(!page(&rig, id, PAGES - 1).is_followed(), "the last page has none behind it");
    // From the end to the beginning; page 0 is the beginning of whatever comes.
    for index in (1..PAGES).rev() {
        assert!(!page(&rig, id, index).is_followed(), "page {index} of a reader that goes backwards");
    }
}
