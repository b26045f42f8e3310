//! What goes bad in memory between a look at the log and the replay of what was found.

use super::*;
use crate::commit::tests::Rig;
use crate::commit::tests::meanwhile::{Meanwhile, Request, flip};
use holdfast_block::MemoryDevice;
use holdfast_integrity::Algorithm;
use holdfast_object::{AttrSet, Fragment, ObjectKey, ObjectStore, PAGE_SIZE};
use std::sync::Arc;

const OBJECT: ObjectId = ObjectId(2);

/// A store with a batch in its log: a page, one that was written ahead, and attributes.
fn logged() -> (Rig, Epoch) {
    let rig = Rig::new();
    let page = |byte: u8| {
        let mut frame = rig.arena.allocate().unwrap();
        frame.fill(byte);
        let sum = Algorithm::Crc64Nvme.sum(&frame[..]);
        frame.publish(sum)
    };
    let (pinned, ahead) = (page(7), page(9));
    let (epoch, key) = (rig.module.epoch() + 1, ObjectKey { domain: DomainId::MAIN, object: OBJECT });
    let placed = rig.module.place(key, epoch, &[(20, ahead.page())]).unwrap();
    let fragments = vec![Fragment { index: 3, start: 0, end: PAGE_SIZE as u16, page: pinned.page() }];
    let set = AttrSet { mode: Some(0o600), uid: Some(77), ..AttrSet::default() };
    let ops = vec![
        Op::Write { id: OBJECT, fragments, size_min: 4 * PAGE_SIZE as u64 },
        Op::Adopt { id: OBJECT, pages: vec![(20, placed[0])], size_min: 21 * PAGE_SIZE as u64 },
        Op::SetAttributes { id: OBJECT, set },
        Op::Truncate { id: OBJECT, size: 25 * PAGE_SIZE as u64 },
    ];
    assert!(rig.module.log_append(&LogBatch { domain: DomainId::MAIN, epoch, ops }).unwrap());
    (rig, epoch)
}

/// What an opening replays.
fn replayed(module: &Module) -> Result<Option<RecoveredBatch>> {
    module.log_next(&mut |count| Ok((0..count).map(|_| module.arena.allocate().unwrap()).collect()))
}

/// Nothing of it becomes a recovery point, and another opening finds all that was synced.
fn is_given_up<T: std::fmt::Debug>(what: &str, outcome: Result<T>, module: &Module, device: &MemoryDevice) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::GivenUp(_)), "{what}: {error}");
    assert!(error.to_string().contains("in memory, to which somebody has written"), "{what}: {error}");
    assert_eq!(module.status().counters.scribbles, 1, "{what}");
    assert!(matches!(module.prepare(module.epoch() + 3), Err(Error::GivenUp(_))), "{what}");
    let (_, again) = Meanwhile::open_on(device.clone());
    let batch = replayed(&again).unwrap().unwrap();
    assert_eq!((batch.batch.ops.len(), batch.lost.len(), again.status().counters.scribbles), (4, 0, 0), "{what}");
}

#[test]
fn a_batch_that_goes_bad_while_it_waits_is_not_replayed() {
    type Strike = Box<dyn Fn(&mut Replay)>;
    let mut strikes: Vec<(String, Strike)> = vec![
        ("epoch".into(), Box::new(|replay| replay.epoch += 1)),
        ("domain".into(), Box::new(|replay| replay.domain.0 ^= 1)),
        ("a page lost".into(), Box::new(|replay| replay.lost.push((OBJECT, 3)))),
        ("no page".into(), Box::new(|replay| drop(replay.pages.pop()))),
        ("its sums".into(), Box::new(|replay| replay.sums.0 ^= 1)),
        ("where a page is".into(), Box::new(|replay| replay.pages[0] = PageBytes::At(3))),
    ];
    let (rig, _) = logged();
    let (_, module) = Meanwhile::open(&rig);
    module.claim_first().unwrap();
    let bytes = module.log.lock().recovered.as_ref().unwrap().queue[0].entries.len();
    assert!(bytes > 100);
    strikes.extend((0..bytes).map(|at| {
        let strike: Strike = Box::new(move |replay| replay.entries[at] ^= 1 << (at % 8));
        (format!("byte {at} of its entries"), strike)
    }));
    for (what, strike) in strikes {
        let (device, module) = Meanwhile::open(&rig);
        module.claim_first().unwrap();
        strike(&mut module.log.lock().recovered.as_mut().unwrap().queue[0]);
        is_given_up(&what, replayed(&module), &module, &device.inner);
    }
}

#[test]
fn a_batch_that_goes_bad_while_its_pages_are_read_is_not_replayed() {
    let (rig, _) = logged();
    let (device, module) = Meanwhile::open(&rig);
    module.claim_first().unwrap();
    // The last operation, which has no page.
    let at = {
        let log = module.log.lock();
        let entries = &log.recovered.as_ref().unwrap().queue[0].entries;
        &raw const entries[entries.len() - 2] as usize
    };
    let mut is_struck = false;
    device.set(move |request, _, _| {
        if request == Request::Read && !std::mem::replace(&mut is_struck, true) {
            flip(at as *const u8, 4);
        }
    });
    let outcome = replayed(&module);
    device.unset();
    is_given_up("while pages are read", outcome, &module, &device.inner);
}

/// A page that was put right is in memory only.
#[test]
fn a_page_that_was_put_right_and_goes_bad_is_not_blamed_on_the_device() {
    let (rig, _) = logged();
    let (device, module) = Meanwhile::open(&rig);
    module.claim_first().unwrap();
    {
        let mut log = module.log.lock();
        let page = &mut log.recovered.as_mut().unwrap().queue[0];
        let PageBytes::At(block) = page.pages[0] else { panic!("it is whole") };
        let mut bytes = Block::zeroed();
        bytes.0 = [7; 4096];
        bytes.0[100] ^= 1;
        page.pages[0] = PageBytes::Corrected(block, bytes);
        page.sums = sums_of(&page.form());
    }
    is_given_up("a page that was put right", replayed(&module), &module, &device.inner);
}

type FoundStrike = fn(&mut Found);

#[test]
fn a_batch_that_goes_bad_before_it_is_judged_is_not_replayed() {
    let strikes: [(&str, FoundStrike); 10] = [
        ("domain", |found| found.header.domain ^= 1),
        ("epoch", |found| found.header.epoch += 1),
        ("size", |found| found.ops[3] = Op::Truncate { id: OBJECT, size: 0 }),
        ("object", |found| found.ops[3] = Op::Truncate { id: ObjectId(3), size: 25 * PAGE_SIZE as u64 }),
        ("an operation less", |found| drop(found.ops.pop())),
        ("copies", |found| found.twice[0] ^= true),
        ("sector sums", |found| found.new[0][3] ^= 1),
        ("entries", |found| found.body[9] ^= 1),
        ("heads", |found| found.has_both_heads ^= true),
        ("a page's checksum", |found| {
            let Op::Write { fragments, .. } = &mut found.ops[0] else { panic!("it is the first") };
            fragments[0].page.checksum ^= 1;
        }),
    ];
    let (rig, epoch) = logged();
    for (what, strike) in strikes {
        let (device, module) = Meanwhile::open(&rig);
        judged(&module, epoch, |found, half| {
            strike(found);
            is_given_up(what, module.replay(half, found, true).map(|_| ()), &module, &device.inner);
        });
    }
    // While the page that was written ahead is looked for.
    let (device, module) = Meanwhile::open(&rig);
    judged(&module, epoch, |found, half| {
        let at = &raw const found.body[9] as usize;
        device.set(move |request, _, _| {
            if request == Request::Read {
                flip(at as *const u8, 1);
            }
        });
        let outcome = module.replay(half, found, true).map(|_| ());
        device.unset();
        is_given_up("while it is judged", outcome, &module, &device.inner);
    });
}

fn judged(module: &Arc<Module>, epoch: Epoch, with: impl FnOnce(&mut Found, &HalfBytes<'_>)) {
    let last = module.superblock().unwrap();
    let ends = crate::intent_log::Ends::new(crate::module::log_area(&module.label().unwrap()));
    let halves = [0, 1].map(|half| HalfBytes::read(module.disk(), ends.half(half)).unwrap());
    let store = module.store_uuid();
    let mut survey = Survey::of(&halves, &LogOf { store: &store, last: &last }).unwrap();
    let (_, half, found) = survey.parts.iter_mut().find(|(of, ..)| *of == epoch).unwrap();
    with(&mut found[0], half);
}

#[test]
fn pages_that_are_gone_are_so_from_their_own_operation_only() {
    let page = |index| Fragment {
        index,
        start: 0,
        end: PAGE_SIZE as u16,
        page: holdfast_object::PageRef { frame: 0, generation: 0, checksum: index },
    };
    let write =
        |pages: &[u64]| Op::Write { id: OBJECT, fragments: pages.iter().copied().map(page).collect(), size_min: 1 };
    let delete = Op::Delete { id: ObjectId(5) };
    let gone = |of: (usize, usize), index| GonePage { of, object: OBJECT, index, address: 0 };
    let ops = [write(&[3, 4]), delete.clone(), write(&[4, 5, 6])];
    assert_eq!(without(&ops, &[]), ops);
    let lose = |pages: &[u64]| Op::Lose { id: OBJECT, pages: pages.to_vec(), side: Side::Device };
    let got = without(&ops, &[gone((0, 1), 4), gone((2, 1), 5), gone((2, 2), 6)]);
    assert_eq!(got, [write(&[3]), lose(&[4]), delete, write(&[4]), lose(&[5, 6])]);
}
