//! Pages of metadata that are written are held against those that requests have put.

use super::*;
use crate::flush::Written;
use crate::frozen::Places;
use crate::lab::{FlipError, FlipPart, PageState};
use crate::object::Residence;
use crate::state::FrozenObject;
use crate::twin::Twin;
use holdfast_integrity::Algorithm;
use rand::{Rng as _, SeedableRng};
use rand_pcg::Pcg64Mcg;

const PAGE: u64 = PAGE_SIZE as u64;

impl Rig {
    fn page(&self, fill: u8, part: std::ops::Range<usize>) -> PinnedPage {
        let mut frame = self.cache.frames(1).unwrap().pop().unwrap();
        frame.fill(fill);
        let sum = Algorithm::Crc64Nvme.sum(&frame[part]);
        frame.publish(sum)
    }

    /// Whole pages, each full of one byte.
    pub(super) fn write(&self, id: ObjectId, pages: &[(PageIndex, u8)]) {
        let made: Vec<PinnedPage> = pages.iter().map(|(_, fill)| self.page(*fill, 0..PAGE_SIZE)).collect();
        let fragments = made.iter().zip(pages).map(|(page, (index, _))| {
            page.seal_for(id, *index);
            Fragment { index: *index, start: 0, end: PAGE_SIZE as u16, page: page.page() }
        });
        let fragments: Vec<Fragment> = fragments.collect();
        let size_min = fragments.iter().map(|fragment| (fragment.index + 1) * PAGE).max().unwrap_or(0);
        self.submit(vec![Op::Write { id, fragments, size_min }]);
    }

    fn write_part(&self, id: ObjectId, index: PageIndex, fill: u8) {
        let made = self.page(fill, 7..900);
        let fragments = vec![Fragment { index, start: 7, end: 900, page: made.page() }];
        self.submit(vec![Op::Write { id, fragments, size_min: index * PAGE + 900 }]);
    }

    fn read(&self, id: ObjectId, index: PageIndex) -> Option<PinnedPage> {
        let PageView::Data(page) = self.cache.read(id, index, 1).unwrap().remove(0) else { return None };
        if page.verify().is_ok() {
            return Some(page);
        }
        let PageView::Data(page) = self.cache.reread(id, index, page.page()).unwrap() else { return None };
        assert!(page.verify().is_ok());
        Some(page)
    }

    /// Sizes and bytes of what has pages.
    fn contents(&self) -> Vec<(u64, Vec<Vec<u8>>)> {
        let bytes = |id, index| self.read(id, index).map_or_else(|| vec![0; PAGE_SIZE], |page| page.bytes().to_vec());
        let of = |id| (self.cache.attributes(id).unwrap().size, (0..PAGES).map(|index| bytes(id, index)).collect());
        [DIRECTORY, OTHER].map(of).to_vec()
    }
}

/// Pages that objects have here.
const PAGES: u64 = 6;

type Bug = fn(&mut FrozenEpoch, &PinnedPage);

/// What it is, the page that is told if it is one, and how.
type Named = (&'static str, Option<(ObjectId, PageIndex)>, Bug);

fn of(frozen: &mut FrozenEpoch, id: ObjectId) -> &mut FrozenObject {
    let at = position(frozen, id);
    &mut frozen.objects[at]
}

/// `before` is page 1 of the directory as the last recovery point has it. Page 0 of both objects has changed, and page 1 and 2 of the directory.
const BUGS: [Named; 8] = [
    ("a page left out", Some((DIRECTORY, 1)), |frozen, _| drop(of(frozen, DIRECTORY).pages.remove(1))),
    ("all pages of an object left out", Some((OTHER, 0)), |frozen, _| of(frozen, OTHER).pages.clear()),
    ("several left out", None, |frozen, _| of(frozen, DIRECTORY).pages.clear()),
    ("the version of before", Some((DIRECTORY, 1)), |frozen, before| {
        of(frozen, DIRECTORY).pages[1].1 = before.clone();
        of(frozen, DIRECTORY).twins[1].1 = Twin::of(before, None);
    }),
    ("another index", Some((DIRECTORY, 5)), |frozen, _| of(frozen, DIRECTORY).pages[2].0 = 5),
    ("another object", Some((OTHER, 3)), |frozen, _| {
        let (_, page) = of(frozen, DIRECTORY).pages.remove(1);
        of(frozen, OTHER).pages.push((3, page));
    }),
    ("two in each other's place", None, |frozen, _| {
        let [(_, first), (_, second), _] = &mut of(frozen, DIRECTORY).pages[..] else { panic!("three pages") };
        std::mem::swap(first, second);
    }),
    ("one too many", Some((DIRECTORY, 4)), |frozen, before| {
        of(frozen, DIRECTORY).pages.push((4, before.clone()));
    }),
];

/// A directory and a link, both changed, and page 1 of the directory as it was.
fn changed() -> (Rig, PinnedPage) {
    let rig = Rig::new(2048);
    rig.write(DIRECTORY, &[(0, 1), (1, 2), (2, 3), (3, 4)]);
    rig.write(OTHER, &[(0, 5)]);
    rig.cache.sync_all().unwrap();
    let before = rig.read(DIRECTORY, 1).unwrap();
    rig.write(DIRECTORY, &[(0, 11), (2, 12)]);
    rig.write(DIRECTORY, &[(1, 13), (2, 14)]);
    rig.write(OTHER, &[(0, 15)]);
    (rig, before)
}

type PagesAndTwins = (Vec<(PageIndex, PinnedPage)>, Vec<(PageIndex, Twin)>);

/// Done right when that has been found so many times.
fn plant_at(mut times: usize, bug: Bug, before: PinnedPage) {
    let mut good: Option<Vec<PagesAndTwins>> = None;
    plant(move |frozen| {
        if let Some(good) = good.take() {
            for (object, (pages, twins)) in frozen.objects.iter_mut().zip(good) {
                (object.pages, object.twins) = (pages, twins);
            }
        }
        if times > 0 {
            times -= 1;
            good = Some(frozen.objects.iter().map(|object| (object.pages.clone(), object.twins.clone())).collect());
            bug(frozen, &before);
        }
        frozen.objects.iter_mut().for_each(|object| object.places = Places::of(object.id, &object.pages));
    });
}

#[test]
fn each_wrong_page_is_a_logic_bug() {
    for (what, _, bug) in BUGS {
        let (rig, before) = changed();
        let expected = rig.contents();
        plant_at(1, bug, before);
        rig.cache.sync_all().unwrap();
        BUG.take();
        assert_eq!((rig.counts(), rig.contents()), ([1, 0, 1, 0, 0], expected.clone()), "{what}");
        rig.cache.check();
        let rig = rig.power_cut();
        assert_eq!(rig.contents(), expected, "{what}, mounted again");
        rig.write(DIRECTORY, &[(1, 21)]);
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.counts(), [0; 5], "{what}, the next epoch");
    }
}

#[test]
fn the_report_names_equation_sums_and_page() {
    for (what, page, bug) in BUGS {
        let (rig, before) = changed();
        let (epoch, put) = (rig.cache.store_status().epoch, rig.cache.state.read().open.proved.pages().unwrap());
        plant_at(3, bug, before);
        let told = rig.cache.sync_all().unwrap_err().to_string();
        BUG.take();
        let mut parts = vec![
            format!("audit of epoch {}, domain {}: \"pages proved\"", epoch + 1, DomainId::MAIN.0),
            format!("{put} pages of directories, links and attributes, as requests have put them"),
            "by what was written".to_string(),
            "a logic bug".to_string(),
            "it failed 3 times in a row".to_string(),
        ];
        parts.extend(page.map(|(id, index)| format!("which differ in page {index} of {id} only")));
        for part in parts {
            assert!(told.contains(&part), "{what}, no {part:?}: {told}");
        }
        assert_eq!(told.contains("which differ in"), page.is_some(), "{what}: {told}");
        assert_eq!((rig.counts(), rig.cache.store_status().epoch), ([3, 0, 2, 0, 0], epoch), "{what}");
        let suspects = page.map(|(object, _)| ObjectKey { domain: DomainId::MAIN, object });
        assert_eq!(rig.cache.store.suspects(), Vec::from_iter(suspects), "{what}");
        let rig = rig.power_cut();
        assert_eq!(rig.read(DIRECTORY, 1).unwrap().bytes()[0], 2, "{what}: nothing of it is stored");
    }
}

/// That requests have not been audited says nothing of pages.
#[test]
fn pages_of_what_nobody_has_audited_are_judged() {
    let (rig, before) = changed();
    rig.submit_proved(vec![Op::SetAttributes { id: FILE, set: AttrSet::default() }], None);
    plant_at(1, BUGS[0].2, before);
    rig.cache.sync_all().unwrap();
    BUG.take();
    assert_eq!(rig.counts(), [1, 0, 1, 0, 1]);
}

/// A page and its twin have gone bad, each otherwise.
fn lose(rig: &Rig, id: ObjectId, index: PageIndex) {
    let mut state = rig.cache.state.write();
    let slot = state.objects.get_mut(&id).unwrap().pages.get_mut(&index).unwrap();
    slot.twin = Some(Twin::of(&slot.page.with_flipped_sum(5), None));
    slot.page = slot.page.with_flipped_sum(9);
}

#[test]
fn pages_of_which_nobody_knows_what_they_were_are_held_against_nothing() {
    type Ends = fn(&Rig);
    // In what way the page goes, and whether it is the sum of requests that is not known then.
    let ends: [(&str, Ends, u64); 5] = [
        ("written again", |rig| rig.write(DIRECTORY, &[(1, 21)]), 1),
        ("cut off", |rig| rig.submit(vec![Op::Truncate { id: DIRECTORY, size: 0 }]), 1),
        ("deleted", |rig| rig.submit(vec![Op::Delete { id: DIRECTORY }]), 1),
        (
            "found bad",
            |rig| {
                let PageView::Data(page) = rig.cache.read(DIRECTORY, 1, 1).unwrap().remove(0) else {
                    panic!("no bytes")
                };
                assert!(rig.cache.reread(DIRECTORY, 1, page.page()).is_err());
            },
            1,
        ),
        ("handed down", |_| (), 0),
    ];
    for (what, end, unknown) in ends {
        let (rig, _) = changed();
        lose(&rig, DIRECTORY, 1);
        end(&rig);
        let _told_of_what_is_lost = rig.cache.sync_all();
        assert_eq!(rig.counts(), [0, 0, 0, unknown, 1], "{what}");
        rig.write(OTHER, &[(0, 22)]);
        let _told_of_what_is_lost = rig.cache.sync_all();
        assert_eq!(rig.counts(), [0, 0, 0, unknown, 1], "{what}, the next epoch");
    }
}

/// Nor is it a bug what the store refuses, as it says so.
#[test]
fn pages_that_the_store_has_not_taken_are_told_by_it() {
    type Tell = fn(&mut Written);
    let tells: [(&str, Tell, Option<bool>); 4] = [
        ("nothing", |_| (), None),
        ("rejected", |written| written.rejected.push((DIRECTORY, 1)), Some(true)),
        ("another one rejected", |written| written.rejected.push((OTHER, 1)), None),
        ("done in part", |written| written.half_done.extend([DIRECTORY]), Some(true)),
    ];
    for (what, tell, expected) in tells {
        let (rig, _) = changed();
        let mut frozen = rig.cache.state.write().freeze().unwrap();
        let mut written = Written::default();
        for object in &frozen.objects {
            let fragment = |(index, page): &(PageIndex, PinnedPage)| crate::flush::whole(*index, page.page());
            let fragments: Vec<Fragment> = object.pages.iter().map(fragment).collect();
            let taken = fragments.iter().filter(|fragment| (object.id, fragment.index) != (DIRECTORY, 1));
            let identity = BlockIdentity { address: 9, birth: 1 };
            written.identities.extend(taken.map(|fragment| ((object.id, fragment.index), identity)));
            written.note_pages(&frozen, object.id, &fragments);
        }
        tell(&mut written);
        let compared = rig.cache.compare_pages(&mut frozen, &written);
        assert_eq!(compared.ok(), expected, "{what}");
    }
}

/// Something random with pages of metadata.
fn act(rig: &Rig, random: &mut Pcg64Mcg) {
    let (id, fill) = ([DIRECTORY, OTHER][random.random_range(0..2)], random.random());
    let (index, offset) = (random.random_range(0..PAGES - 1), random.random_range(0..PAGES * PAGE));
    let offset = if random.random() { offset } else { offset.next_multiple_of(PAGE) };
    match random.random_range(0..10) {
        0..3 => rig.write(id, &[(index, fill), (index + 1, 1 + fill / 2)]),
        3 => rig.write(id, &[(index, fill)]),
        4 => rig.write_part(id, index, fill),
        5 => rig.submit(vec![Op::Truncate { id, size: offset }]),
        6 => rig.submit(vec![Op::Zero { id, offset, length: random.random_range(1..2 * PAGE) }]),
        // A number is given once more only when a recovery point has the object that had it.
        7 if rig.cache.state.read().objects[&OTHER].progress.created_in().is_none() => {
            rig.submit(vec![Op::Delete { id: OTHER }]);
            rig.submit(vec![Op::Create { id: OTHER, attributes: rig.new_attributes(Kind::Symlink) }]);
        }
        7..9 => assert!(rig.cache.state.write().evict(64) <= 64),
        _ => {
            // Found by whoever comes by it, or by nobody.
            let quiet = rig.cache.at_any_moment();
            let pages = quiet.resident_pages(|_, attributes| attributes.kind.is_metadata());
            let pages: Vec<_> = pages.iter().filter(|page| page.state == PageState::Dirty).collect();
            if let Some(page) = pages.get(random.random_range(0..=pages.len())) {
                let part = if random.random() { FlipPart::Sum } else { FlipPart::Bytes };
                let done = quiet.flip(page, part, &[random.random_range(0..64)]);
                assert!(matches!(done, Ok(()) | Err(FlipError::InUse)), "{done:?}");
            }
        }
    }
}

/// Pages come and go in each way, in the open epoch also while one is written, and go bad in memory: that is nobody's bug.
#[test]
fn whatever_comes_and_goes_the_sum_is_that_of_what_is_written() {
    let first: u64 = std::env::var("HOLDFAST_SEED").map_or(0, |seed| seed.parse().expect("a seed"));
    for seed in first..first + 60 {
        println!("HOLDFAST_SEED={seed} cargo test -p holdfast-cache --lib proved::tests::pages::whatever");
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let rig = Arc::new(Rig::new(4096));
        let meanwhile = (rig.clone(), std::cell::RefCell::new(Pcg64Mcg::seed_from_u64(!seed)));
        plant(move |_| {
            let (rig, random) = &meanwhile;
            let random = &mut *random.borrow_mut();
            (0..random.random_range(0..6)).for_each(|_| act(rig, random));
        });
        for step in 0..40 {
            match random.random_range(0..8) {
                0 => assert_eq!(rig.cache.sync_all().err(), None, "seed {seed}, step {step}"),
                1 => rig.cache.sync_object(DIRECTORY).unwrap(),
                _ => act(&rig, &mut random),
            }
            rig.cache.check();
            let [audit_failures, _, restarts, _, unproved] = rig.counts();
            assert_eq!([audit_failures, restarts, unproved], [0; 3], "seed {seed}, step {step}");
        }
        BUG.take();
        rig.cache.sync_all().unwrap();
        let expected = rig.contents();
        let rig = Arc::into_inner(rig).expect("nobody else has it");
        let rig = if random.random() { rig.remount() } else { rig.power_cut() };
        assert_eq!(rig.contents(), expected, "seed {seed}");
    }
}

/// See [`super::what_it_costs`].
pub(super) fn what_it_costs(pages: u64, took: &mut impl FnMut((&'static str, bool), Instant)) {
    let rig = Rig::new(2048);
    rig.write(DIRECTORY, &[(0, 1)]);
    let mut state = rig.cache.state.write();
    let mut sums = ProvedSums::default();
    let slot = &state.objects[&DIRECTORY].pages[&0];
    assert_eq!(slot.residence, Residence::Dirty);
    let checksum = slot.page.page().checksum;
    let start = Instant::now();
    for index in 0..pages {
        sums.put_page(DIRECTORY, std::hint::black_box(index), checksum);
        sums.drop_page(DIRECTORY, std::hint::black_box(index), slot);
    }
    took(("a page put over another", true), start);
    assert_eq!(sums.pages(), Some(SetDigest::NOTHING));
    let frozen = state.freeze().unwrap();
    let page = frozen.objects[0].pages[0].1.page();
    let mut written = Written::default();
    let identity = BlockIdentity { address: 9, birth: 1 };
    written.identities.extend((0..pages).map(|index| ((DIRECTORY, index), identity)));
    let fragments: Vec<Fragment> = (0..pages).map(|index| crate::flush::whole(index, page)).collect();
    let start = Instant::now();
    fragments.chunks(4).for_each(|some| written.note_pages(&frozen, DIRECTORY, some));
    took(("a page written", true), start);
    assert_eq!(written.pages.count(), pages);
}
