//! What the next log batch and the next recovery point go by, beside pages and attributes, goes bad in memory: what was synced is there all the same.

use crate::metadata::{Model, change, compare};
use crate::rig::{Rig, pattern};
use holdfast_cache::{AttributesCopy, CapturedPart, FrozenPart, PendingPart, ProgressNumber};
use holdfast_object::*;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const PAGE: u64 = PAGE_SIZE as u64;

/// A file of five pages that the store has.
fn stored(rig: &Rig) -> ObjectId {
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &old()).unwrap();
    rig.cache.sync_all().unwrap();
    id
}

fn old() -> Vec<u8> {
    pattern(1, 5 * PAGE_SIZE)
}

/// Strikes, syncs one object, and cuts the power. Where the strike is one at what cannot be made anew, a recovery point takes the place of the log batch.
fn synced(rig: Rig, id: ObjectId, strike: Option<(PendingPart, u64)>, is_lost: bool) -> Rig {
    if let Some((part, bits)) = strike {
        assert!(rig.cache.strike_pending(part, bits), "{part:?} is there");
    }
    let before = rig.cache.store_status().epoch;
    rig.cache.sync(id, Durability::All).unwrap();
    let is_closed = rig.cache.store_status().epoch > before;
    assert_eq!(is_closed, strike.is_some() && is_lost, "{strike:?}: a recovery point in place of a log batch");
    assert_eq!(rig.cache.status().operations_renewed, u64::from(strike.is_some()), "{strike:?}: told");
    rig.cache.check();
    // Afterwards all is as before.
    let before = rig.cache.store_status().epoch;
    rig.write(id, 0, &old()[..7]).unwrap();
    rig.cache.sync(id, Durability::All).unwrap();
    assert_eq!(rig.cache.store_status().epoch, before, "{strike:?}: logged again");
    rig.power_cut()
}

/// With and without a strike.
fn both(part: PendingPart, bits: u64) -> [Option<(PendingPart, u64)>; 2] {
    [None, Some((part, bits))]
}

#[test]
fn a_truncation_that_goes_bad_cuts_nothing_off() {
    for number in 0..2 {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        rig.submit(vec![Op::Truncate { id, size: 3 * PAGE }]).unwrap();
        let strike = both(PendingPart::Operation(id), 3 * PAGE)[number];
        let rig = synced(rig, id, strike, true);
        assert_eq!(rig.contents(id).unwrap()[..], old()[..3 * PAGE_SIZE], "{strike:?}");
    }
}

#[test]
fn a_zeroing_that_goes_bad_zeroes_nothing_else() {
    for number in 0..2 {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        rig.submit(vec![Op::Zero { id, offset: 2 * PAGE, length: PAGE }]).unwrap();
        let strike = both(PendingPart::Operation(id), PAGE)[number];
        let rig = synced(rig, id, strike, true);
        let mut expected = old();
        expected[2 * PAGE_SIZE..3 * PAGE_SIZE].fill(0);
        assert_eq!(rig.contents(id).unwrap(), expected, "{strike:?}");
    }
}

#[test]
fn a_deletion_that_goes_bad_deletes_nothing_else() {
    for number in 0..2 {
        let rig = Rig::new(2048);
        let [kept, gone, synced_one] = [(); 3].map(|()| stored(&rig));
        rig.submit(vec![Op::Delete { id: gone }]).unwrap();
        rig.write(synced_one, 0, &old()[..9]).unwrap();
        let strike = both(PendingPart::Deletion, kept.0 ^ gone.0)[number];
        let rig = synced(rig, synced_one, strike, true);
        assert_eq!(rig.contents(kept).unwrap(), old(), "{strike:?}");
        assert!(matches!(rig.contents(gone), Err(Error::NoObject(_))), "{strike:?}");
    }
}

/// A recovery point comes first: nothing of it is left that syncs would go on about.
#[test]
fn what_goes_bad_before_a_recovery_point_is_not_left_behind() {
    for is_page in [false, true] {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        rig.write(id, 0, &old()[..7]).unwrap();
        rig.submit(vec![Op::Truncate { id, size: 3 * PAGE }]).unwrap();
        let part = if is_page { PendingPart::Logged(id, 0) } else { PendingPart::Operation(id) };
        assert!(rig.cache.strike_pending(part, 4));
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.cache.status().operations_renewed, 1, "{part:?}: told");
        rig.cache.check();
        rig.write(id, 0, &old()[..7]).unwrap();
        rig.cache.sync_all().unwrap();
        let before = rig.cache.store_status().epoch;
        rig.write(id, 0, &old()[..7]).unwrap();
        rig.cache.sync(id, Durability::All).unwrap();
        assert_eq!(rig.cache.store_status().epoch, before, "{part:?}: logged again");
        let rig = rig.power_cut();
        assert_eq!(rig.contents(id).unwrap()[..], old()[..3 * PAGE_SIZE], "{part:?}");
    }
}

/// Extended attributes go with their file: into the log with it, and with the names when it is deleted, too.
#[test]
fn a_deletion_of_extended_attributes_that_goes_bad_deletes_nothing_else() {
    for is_owner_deleted in [false, true] {
        for number in 0..2 {
            let rig = Rig::new(2048);
            let [kept, owner, synced_one] = [(); 3].map(|()| stored(&rig));
            let xattr = rig.cache.new_object().unwrap();
            let time = Timestamp { secs: 5, nanos: 6 };
            let mut attributes = Attributes::new(Kind::Xattr, Class::Own, 0, 1, 2, time);
            (attributes.nlink, attributes.parent) = (1, owner);
            let set = AttrSet { xattr: Some(xattr), ..AttrSet::default() };
            rig.submit(vec![Op::Create { id: xattr, attributes }, Op::SetAttributes { id: owner, set }]).unwrap();
            rig.cache.sync_all().unwrap();
            let set = AttrSet { xattr: Some(ObjectId::NONE), ..AttrSet::default() };
            rig.submit(vec![Op::Delete { id: xattr }, Op::SetAttributes { id: owner, set }]).unwrap();
            let strike = both(PendingPart::Operation(owner), xattr.0 ^ kept.0)[number];
            let rig = if is_owner_deleted {
                if let Some((part, bits)) = strike {
                    assert!(rig.cache.strike_pending(part, bits));
                }
                rig.submit(vec![Op::Delete { id: owner }]).unwrap();
                assert_eq!(rig.cache.status().operations_renewed, u64::from(strike.is_some()));
                rig.cache.sync(synced_one, Durability::All).unwrap();
                rig.power_cut()
            } else {
                synced(rig, owner, strike, true)
            };
            assert_eq!(rig.contents(kept).unwrap(), old(), "{strike:?}");
            assert!(matches!(rig.cache.attributes(xattr), Err(Error::NoObject(_))), "{strike:?}");
            assert_eq!(rig.cache.attributes(owner).is_err(), is_owner_deleted, "{strike:?}");
        }
    }
}

/// Whoever else is synced, a file that a rename has put in another's place has its contents.
#[test]
fn a_file_that_goes_along_with_a_rename_does_so_when_that_goes_bad() {
    for number in 0..2 {
        let rig = Rig::new(2048);
        let [renamed, other] = [(); 2].map(|()| stored(&rig));
        let newest = pattern(2, 5 * PAGE_SIZE);
        rig.write(renamed, 0, &newest).unwrap();
        let set = AttrSet { parent: Some(ObjectId::ROOT), name_key: Some(77), ..AttrSet::default() };
        let ops = vec![Op::SetAttributes { id: renamed, set }];
        rig.cache.submit(Transaction { ops, brings: Some(renamed), ..Transaction::default() }).unwrap();
        let strike = both(PendingPart::Brought(renamed), 1 << 40)[number];
        let rig = synced(rig, other, strike, true);
        assert_eq!(rig.cache.attributes(renamed).unwrap().name_key, 77, "{strike:?}");
        assert_eq!(rig.contents(renamed).unwrap(), newest, "{strike:?}");
    }
}

/// It becomes another page that there is, another one with changes, and none.
#[test]
fn no_log_batch_lacks_a_page() {
    for bits in [0, 1, 3, 1 << 40] {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        let mut expected = old();
        for index in [1, 2] {
            let at = index as usize * PAGE_SIZE;
            expected[at..at + PAGE_SIZE].copy_from_slice(&pattern(index + 5, PAGE_SIZE));
            rig.write(id, index * PAGE, &expected[at..at + PAGE_SIZE]).unwrap();
        }
        let strike = (bits != 0).then_some((PendingPart::Logged(id, 1), bits));
        let rig = synced(rig, id, strike, false);
        assert_eq!(rig.contents(id).unwrap(), expected, "{strike:?}");
    }
}

/// It becomes an object that there is, and none.
#[test]
fn no_log_batch_lacks_a_directory() {
    for number in 0..3 {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        let directory = rig.create(Kind::Directory);
        rig.write(directory, 0, &pattern(3, 2 * PAGE_SIZE)).unwrap();
        let strike = |bits| (PendingPart::Names(directory), bits);
        let strike = [None, Some(strike(directory.0 ^ id.0)), Some(strike(1 << 30))][number];
        let rig = synced(rig, id, strike, false);
        assert_eq!(rig.contents(directory).unwrap(), pattern(3, 2 * PAGE_SIZE), "{strike:?}");
    }
}

/// Bits of a number about an object, so that it says something else.
fn bits_of(number: ProgressNumber) -> u64 {
    if number == ProgressNumber::CreateUnlogged { 1 } else { 1 << 40 }
}

/// Each number, in each of its copies.
fn numbers() -> impl Iterator<Item = (ProgressNumber, usize)> {
    ProgressNumber::ALL.into_iter().flat_map(|number| (0..3).map(move |copy| (number, copy)))
}

/// A file that the store has, and a new one; struck before it is written, and afterwards.
#[test]
fn no_log_batch_lacks_a_file_of_which_a_number_goes_bad() {
    for (is_stored, is_before) in [(true, false), (true, true), (false, false), (false, true)] {
        for (number, copy) in numbers() {
            let rig = Rig::new(2048);
            let id = if is_stored { stored(&rig) } else { rig.create(Kind::Regular) };
            let newest = pattern(2, 5 * PAGE_SIZE);
            let strike = (PendingPart::Progress(id, number, copy), bits_of(number));
            if !is_before {
                rig.write(id, 0, &newest).unwrap();
            }
            assert!(rig.cache.strike_pending(strike.0, strike.1));
            if is_before {
                rig.write(id, 0, &newest).unwrap();
            }
            assert_eq!(rig.contents(id).unwrap(), newest, "{strike:?}");
            let before = rig.cache.store_status().epoch;
            rig.cache.sync(id, Durability::All).unwrap();
            assert_eq!(rig.cache.store_status().epoch, before, "{strike:?}: logged");
            assert_eq!(rig.cache.status().operations_renewed, 1, "{strike:?}: told");
            rig.cache.check();
            let rig = rig.power_cut();
            assert_eq!(rig.contents(id).unwrap(), newest, "{strike:?}, stored: {is_stored}, before: {is_before}");
        }
    }
}

/// Of a change of attributes nothing else tells: no page has to be logged.
#[test]
fn no_log_batch_lacks_attributes_of_which_a_number_goes_bad() {
    for (number, copy) in numbers() {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        let set = AttrSet { mode: Some(0o600), ..AttrSet::default() };
        rig.submit(vec![Op::SetAttributes { id, set }]).unwrap();
        assert!(rig.cache.strike_pending(PendingPart::Progress(id, number, copy), bits_of(number)));
        rig.cache.sync(id, Durability::All).unwrap();
        let rig = rig.power_cut();
        assert_eq!(rig.cache.attributes(id).unwrap().mode, 0o600, "{number:?}, copy {copy}");
    }
}

/// Its names go into the log with whatever else is synced.
#[test]
fn no_log_batch_lacks_a_directory_of_which_a_number_goes_bad() {
    for (is_before, (number, copy)) in numbers().flat_map(|number| [(false, number), (true, number)]) {
        let rig = Rig::new(2048);
        let [id, directory] = [stored(&rig), rig.create(Kind::Directory)];
        rig.cache.sync_all().unwrap();
        let newest = pattern(3, 2 * PAGE_SIZE);
        if !is_before {
            rig.write(directory, 0, &newest).unwrap();
        }
        assert!(rig.cache.strike_pending(PendingPart::Progress(directory, number, copy), bits_of(number)));
        if is_before {
            rig.write(directory, 0, &newest).unwrap();
        }
        rig.cache.sync(id, Durability::All).unwrap();
        assert_eq!(rig.cache.status().operations_renewed, 1, "{number:?}, copy {copy}: told");
        let rig = rig.power_cut();
        assert_eq!(rig.contents(directory).unwrap(), newest, "{number:?}, copy {copy}, before: {is_before}");
    }
}

/// A copy can become durable with its epoch only.
#[test]
fn no_log_batch_has_a_copy_of_which_a_number_goes_bad() {
    for (number, copy) in numbers() {
        let rig = Rig::new(2048);
        let [source, target] = [(); 2].map(|()| stored(&rig));
        rig.write(source, 0, &pattern(2, 5 * PAGE_SIZE)).unwrap();
        rig.cache.sync_all().unwrap();
        let size_min = 5 * PAGE;
        rig.submit(vec![Op::Copy { source, source_first: 0, target, target_first: 0, pages: 5, size_min }]).unwrap();
        assert!(rig.cache.strike_pending(PendingPart::Progress(target, number, copy), bits_of(number)));
        let before = rig.cache.store_status().epoch;
        rig.cache.sync(target, Durability::All).unwrap();
        assert!(rig.cache.store_status().epoch > before, "{number:?}, copy {copy}: a recovery point");
        let rig = rig.power_cut();
        assert_eq!(rig.contents(target).unwrap(), pattern(2, 5 * PAGE_SIZE), "{number:?}, copy {copy}");
    }
}

/// Bytes to be written over all copies of a number, those that come most often among them; or bits of two copies are inverted.
const ALL_OVER: [Option<u8>; 4] = [None, Some(0), Some(0x55), Some(0xFF)];

/// No two copies of a number agree afterwards.
fn make_differ(rig: &Rig, part: impl Fn(usize) -> PendingPart, byte: Option<u8>) {
    assert!(match byte {
        Some(byte) => rig.cache.overwrite_pending(part(0), byte),
        None => rig.cache.strike_pending(part(0), 1 << 5) && rig.cache.strike_pending(part(1), 1 << 40),
    });
}

/// Nothing tells what it was: the object counts as changed.
#[test]
fn a_number_in_which_no_two_copies_agree_goes_into_no_log_batch() {
    for (number, byte) in ProgressNumber::ALL.into_iter().flat_map(|number| ALL_OVER.map(|byte| (number, byte))) {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        rig.write(id, 0, &pattern(2, 5 * PAGE_SIZE)).unwrap();
        let part = |copy| PendingPart::Progress(id, number, copy);
        make_differ(&rig, part, byte);
        let rig = synced(rig, id, Some((part(2), 0)), true);
        let mut expected = pattern(2, 5 * PAGE_SIZE);
        expected[..7].copy_from_slice(&old()[..7]);
        assert_eq!(rig.contents(id).unwrap(), expected, "{number:?}, {byte:?}");
    }
}

/// Somebody comes upon what has gone bad of an object that reads it.
fn read_with_bad_attributes(rig: &Rig, id: ObjectId) {
    assert!(rig.cache.strike_attributes(id, AttributesCopy::Newest, "mode", 1));
    rig.cache.attributes(id).unwrap();
}

/// Nobody changes it, and no attributes go bad: a file of the store's and one of a snapshot's are read all the same.
#[test]
fn an_object_is_read_of_which_nobody_knows_when_it_was_created() {
    for byte in ALL_OVER {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        let kept = id.in_snapshot(rig.cache.snapshot_create("a").unwrap().id);
        // No page is in memory then.
        let rig = rig.remount();
        for id in [id, kept] {
            rig.cache.attributes(id).unwrap();
            make_differ(&rig, |copy| PendingPart::Progress(id, ProgressNumber::Created, copy), byte);
            assert_eq!(rig.contents(id).unwrap(), old(), "{byte:?}, {id}");
        }
        rig.cache.sync_all().unwrap();
        rig.cache.check();
    }
}

/// The recovery point has all of it, though nothing else of it has changed: afterwards it is not one with changes for ever.
#[test]
fn an_object_of_which_a_number_is_lost_is_in_the_next_recovery_point() {
    for number in ProgressNumber::ALL {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        let kept = id.in_snapshot(rig.cache.snapshot_create("a").unwrap().id);
        for id in [id, kept] {
            assert_eq!(rig.contents(id).unwrap(), old());
            make_differ(&rig, |copy| PendingPart::Progress(id, number, copy), Some(0));
            read_with_bad_attributes(&rig, id);
        }
        assert_eq!(rig.cache.status().operations_renewed, 2, "{number:?}: told");
        let before = rig.cache.store_status().epoch;
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.cache.store_status().epoch, before + 1, "{number:?}");
        let changed: Vec<_> = rig.cache.resident_objects().into_iter().filter(|known| known.is_changed).collect();
        assert_eq!(changed, [], "{number:?}");
        rig.cache.check();
        let rig = rig.remount();
        for id in [id, kept] {
            assert_eq!(rig.contents(id).unwrap(), old(), "{number:?}, {id}");
            assert_eq!(rig.cache.attributes(id).unwrap().mode, 0o644, "{number:?}, {id}");
        }
    }
}

/// That there must be no log batch is not forgotten, and there is one where there may be.
#[test]
fn up_to_where_there_is_no_log_batch_is_known() {
    for (copy, is_spoilt) in (0..3).flat_map(|copy| [(copy, false), (copy, true)]) {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        rig.write(id, 0, &pattern(2, 5 * PAGE_SIZE)).unwrap();
        if is_spoilt {
            make_differ(&rig, |copy| PendingPart::Progress(id, ProgressNumber::OwnChanged, copy), None);
            read_with_bad_attributes(&rig, id);
        }
        // It is 0 where there may be one, and else the last transaction.
        let bits = rig.cache.status().transactions;
        assert!(rig.cache.strike_pending(PendingPart::Spoilt(copy), bits));
        let before = rig.cache.store_status().epoch;
        rig.cache.sync(id, Durability::All).unwrap();
        assert_eq!(rig.cache.store_status().epoch > before, is_spoilt, "copy {copy}: a recovery point");
        rig.cache.sync_all().unwrap();
        assert_eq!(rig.cache.status().operations_renewed, 1 + u64::from(is_spoilt), "copy {copy}: told");
        let rig = rig.power_cut();
        assert_eq!(rig.contents(id).unwrap(), pattern(2, 5 * PAGE_SIZE), "copy {copy}");
    }
    for byte in ALL_OVER {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        rig.write(id, 7, &old()[7..]).unwrap();
        make_differ(&rig, PendingPart::Spoilt, byte);
        let rig = synced(rig, id, Some((PendingPart::Spoilt(2), 0)), true);
        assert_eq!(rig.contents(id).unwrap(), old(), "{byte:?}");
    }
}

/// Neither an object nor a page that it has; when the next one comes, nothing is left of it.
#[test]
fn no_recovery_point_lacks_a_page_or_an_object() {
    type Part = fn(ObjectId) -> PendingPart;
    let parts: [Part; 3] = [PendingPart::Object, |id| PendingPart::Page(id, 1), |id| PendingPart::Page(id, 4)];
    for part in parts {
        for bits in [0, 1, 1 << 40] {
            let rig = Rig::new(2048);
            let ids = [Kind::Regular, Kind::Directory].map(|kind| {
                let id = rig.create(kind);
                rig.write(id, 0, &old()).unwrap();
                id
            });
            rig.cache.sync_all().unwrap();
            let mut expected = old();
            for index in [1, 4] {
                let at = index as usize * PAGE_SIZE;
                expected[at..at + PAGE_SIZE].copy_from_slice(&pattern(index + 5, PAGE_SIZE));
                for id in ids {
                    rig.write(id, index * PAGE, &expected[at..at + PAGE_SIZE]).unwrap();
                }
            }
            let strikes = ids.map(|id| if bits == 0 { None } else { Some(part(id)) });
            for part in strikes.into_iter().flatten() {
                assert!(rig.cache.strike_pending(part, bits), "{part:?} is there");
            }
            let sets = if strikes[0] == Some(PendingPart::Object(ids[0])) { 1 } else { 2 };
            rig.cache.sync_all().unwrap();
            let expected_count = if bits == 0 { 0 } else { sets };
            assert_eq!(rig.cache.status().operations_renewed, expected_count, "{strikes:?}, {bits:#x}");
            rig.cache.check();
            rig.write(ids[0], 0, &old()[..9]).unwrap();
            rig.cache.sync_all().unwrap();
            assert_eq!(rig.cache.status().operations_renewed, expected_count, "{strikes:?}, {bits:#x}");
            let rig = rig.power_cut();
            for id in ids {
                assert_eq!(rig.contents(id).unwrap(), expected, "{strikes:?}, {bits:#x}");
            }
        }
    }
}

/// What an epoch has lies between two positions in the operation log: what was deleted and cut is so afterwards, and the store takes more.
#[test]
fn no_recovery_point_lacks_an_operation_as_a_position_goes_bad() {
    type Part = fn(usize) -> PendingPart;
    let parts: [Part; 3] = [PendingPart::LogHead, PendingPart::LogTail, PendingPart::LogStart];
    for (part, copy) in parts.into_iter().flat_map(|part| (0..3).map(move |copy| (part, copy))) {
        for bits in [1, 1 << 5, 1 << 40] {
            let strike = part(copy);
            let rig = Rig::new(2048);
            let [cut, gone] = [(); 2].map(|()| stored(&rig));
            rig.submit(vec![Op::Truncate { id: cut, size: 2 * PAGE }]).unwrap();
            assert!(rig.cache.strike_pending(strike, bits));
            rig.submit(vec![Op::Delete { id: gone }]).unwrap();
            rig.cache.sync_all().unwrap();
            rig.cache.check();
            let made = stored(&rig);
            let rig = rig.power_cut();
            assert_eq!(rig.contents(cut).unwrap()[..], old()[..2 * PAGE_SIZE], "{strike:?}, {bits:#x}");
            assert!(matches!(rig.contents(gone), Err(Error::NoObject(_))), "{strike:?}, {bits:#x}");
            assert_eq!(rig.contents(made).unwrap(), old(), "{strike:?}, {bits:#x}");
        }
    }
}

/// Struck twice, nobody knows which operations the epoch has: the store takes no more, and what was synced is there.
#[test]
fn where_the_operation_log_ends_is_not_guessed() {
    let parts: [fn(usize) -> PendingPart; 3] = [PendingPart::LogHead, PendingPart::LogTail, PendingPart::LogStart];
    for (part, byte) in parts.into_iter().flat_map(|part| ALL_OVER.map(|byte| (part, byte))) {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        rig.submit(vec![Op::Truncate { id, size: 2 * PAGE }]).unwrap();
        rig.cache.sync(id, Durability::All).unwrap();
        make_differ(&rig, part, byte);
        let outcome = rig.cache.sync_all();
        assert!(matches!(outcome, Err(Error::Corrupt(_))), "{:?}: {outcome:?}", part(0));
        assert!(rig.cache.status().read_only.is_some());
        let rig = rig.power_cut();
        assert_eq!(rig.contents(id).unwrap()[..], old()[..2 * PAGE_SIZE], "{:?}", part(0));
    }
}

/// If the last transaction were another one, what comes next would count as durable.
#[test]
fn no_log_batch_lacks_what_comes_after_a_number_that_goes_bad() {
    for copy in 0..3 {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        let all = rig.cache.status().transactions;
        assert!(rig.cache.strike_pending(PendingPart::Sequence(copy), all));
        rig.write(id, 0, &pattern(2, 5 * PAGE_SIZE)).unwrap();
        rig.submit(vec![Op::Truncate { id, size: 4 * PAGE }]).unwrap();
        assert_eq!(rig.cache.status().transactions, all + 2, "copy {copy}");
        assert_eq!(rig.cache.status().operations_renewed, 1, "copy {copy}: told");
        rig.cache.sync(id, Durability::All).unwrap();
        let rig = rig.power_cut();
        assert_eq!(rig.contents(id).unwrap()[..], pattern(2, 5 * PAGE_SIZE)[..4 * PAGE_SIZE], "copy {copy}");
    }
}

/// Too high, it would make all that comes later count as durable. Before a change and after one; by a sync of the object, and of everything.
#[test]
fn which_transaction_was_the_last_one_is_not_guessed() {
    for (byte, is_before, syncs_all) in ALL_OVER
        .into_iter()
        .flat_map(|byte| [(byte, false, false), (byte, false, true), (byte, true, false), (byte, true, true)])
    {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        let change_mode = |mode| {
            let set = AttrSet { mode: Some(mode), ..AttrSet::default() };
            rig.submit(vec![Op::SetAttributes { id, set }])
        };
        let sync = || if syncs_all { rig.cache.sync_all().map(drop) } else { rig.cache.sync(id, Durability::All) };
        if !is_before {
            change_mode(0o640).unwrap();
        }
        make_differ(&rig, PendingPart::Sequence, byte);
        let outcomes = [0o640, 0o600].map(|mode| {
            let changed = if mode == 0o640 && !is_before { Ok(()) } else { change_mode(mode).map(drop) };
            (mode, changed.and_then(|()| sync()))
        });
        let is_read_only = rig.cache.status().read_only.is_some();
        let rig = rig.power_cut();
        let expected = outcomes.iter().rfind(|(_, outcome)| outcome.is_ok()).map_or(0o644, |(mode, _)| *mode);
        let case = format!("{byte:?} before: {is_before}, all: {syncs_all}: {outcomes:?}");
        assert_eq!(rig.cache.attributes(id).unwrap().mode, expected, "{case}");
        assert_eq!(rig.contents(id).unwrap(), old(), "{case}");
        assert!(is_read_only && matches!(outcomes[0].1, Err(Error::Corrupt(_))), "{case}");
    }
}

/// The epoch being written takes no change along that came after it.
#[test]
fn no_recovery_point_counts_for_more_than_it_has() {
    let rig = Rig::new(2048);
    let id = stored(&rig);
    rig.write(id, 0, &pattern(2, 5 * PAGE_SIZE)).unwrap();
    rig.cache.strike_frozen_part(FrozenPart::Sequence, 1 << 40);
    rig.cache.sync_all().unwrap();
    assert_eq!(rig.cache.status().operations_renewed, 1, "told");
    let set = AttrSet { mode: Some(0o600), ..AttrSet::default() };
    rig.submit(vec![Op::SetAttributes { id, set }]).unwrap();
    rig.cache.sync(id, Durability::All).unwrap();
    let rig = rig.power_cut();
    assert_eq!(rig.cache.attributes(id).unwrap().mode, 0o600);
}

/// It is how an epoch is closed in time, and no more.
#[test]
fn a_wrong_number_of_changed_pages_ends_nothing() {
    for bits in [5, 1 << 40] {
        let rig = Rig::new(2048);
        let id = stored(&rig);
        rig.write(id, 0, &pattern(2, 5 * PAGE_SIZE)).unwrap();
        assert_eq!(rig.cache.status().pages_dirty, 5);
        assert!(rig.cache.strike_pending(PendingPart::DirtyPages, bits));
        rig.submit(vec![Op::Truncate { id, size: PAGE }]).unwrap();
        rig.cache.sync(id, Durability::All).unwrap();
        let rig = rig.power_cut();
        assert_eq!(rig.contents(id).unwrap()[..], pattern(2, 5 * PAGE_SIZE)[..PAGE_SIZE], "{bits:#x}");
    }
}

/// While a batch is written it is known whose changes it has. If that goes bad, nobody's count as logged: neither those of another object, nor those that
/// came meanwhile.
#[test]
fn nothing_counts_as_logged_that_a_batch_does_not_have() {
    for (part, is_struck) in [
        (CapturedPart::Own, false),
        (CapturedPart::Own, true),
        (CapturedPart::Names, true),
        (CapturedPart::Sequence, true),
    ] {
        let rig = Rig::new(2048);
        let [logged, other] = [(); 2].map(|()| stored(&rig));
        let directories = [(); 2].map(|()| rig.create(Kind::Directory));
        rig.cache.sync_all().unwrap();
        let change_mode = |id, mode| {
            let set = AttrSet { mode: Some(mode), ..AttrSet::default() };
            rig.submit(vec![Op::SetAttributes { id, set }]).unwrap();
        };
        let newest = pattern(2, 5 * PAGE_SIZE);
        rig.write(logged, 0, &newest).unwrap();
        change_mode(other, 0o640);
        rig.write(directories[0], 0, &pattern(3, PAGE_SIZE)).unwrap();
        let bits = match part {
            CapturedPart::Own => logged.0 ^ other.0,
            CapturedPart::Names => directories[0].0 ^ directories[1].0,
            CapturedPart::Sequence => 1 << 40,
        };
        if is_struck {
            rig.cache.strike_captured_part(part, bits);
        }
        let before = rig.cache.store_status().epoch;
        rig.cache.sync(logged, Durability::All).unwrap();
        assert_eq!(rig.cache.store_status().epoch > before, is_struck, "{part:?}: a recovery point, too");
        assert_eq!(rig.cache.status().operations_renewed, u64::from(is_struck), "{part:?}: told");
        change_mode(logged, 0o600);
        [other, logged].into_iter().for_each(|id| rig.cache.sync(id, Durability::All).unwrap());
        rig.cache.check();
        let rig = rig.power_cut();
        let mode = |id| rig.cache.attributes(id).unwrap().mode;
        assert_eq!((mode(logged), mode(other)), (0o600, 0o640), "{part:?}");
        assert_eq!(rig.contents(logged).unwrap(), newest, "{part:?}");
        assert_eq!(rig.contents(directories[0]).unwrap(), pattern(3, PAGE_SIZE), "{part:?}");
    }
}

/// Strikes something of a file, if there is such a thing of it.
fn strike_some(rig: &Rig, random: &mut Pcg64Mcg, model: &Model) {
    let Some(&id) = model.files.keys().nth(random.random_range(0..model.files.len().max(1))) else { return };
    let index = random.random_range(0..50);
    let parts = [
        PendingPart::Operation(id),
        PendingPart::Deletion,
        PendingPart::Names(id),
        PendingPart::Object(id),
        PendingPart::Logged(id, index),
        PendingPart::Page(id, index),
        // One copy: two that say the same would be right.
        PendingPart::Progress(id, ProgressNumber::ALL[random.random_range(0..ProgressNumber::ALL.len())], 0),
        PendingPart::LogHead(0),
        PendingPart::LogTail(0),
        PendingPart::LogStart(0),
        PendingPart::Sequence(0),
        PendingPart::Spoilt(0),
        PendingPart::Proved(random.random_range(0..16), 0),
    ];
    let bits = if random.random() { random.random_range(1..64) } else { 1 << random.random_range(0..64) };
    rig.cache.strike_pending(parts[random.random_range(0..parts.len())], bits);
}

/// Random changes and syncs, while another thread makes recovery points.
#[test]
fn whatever_is_struck_what_was_synced_is_there() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let (first, runs) = (number("HOLDFAST_SEED", 1), number("HOLDFAST_RUNS", 60));
    let mut found = 0;
    for seed in first..first + runs {
        println!(
            "replay: HOLDFAST_SEED={seed} HOLDFAST_RUNS=1 cargo test -p holdfast-cache --test it whatever_is_struck"
        );
        let rig = Rig::new(4096);
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut model = Model::default();
        std::thread::scope(|scope| {
            // It ends when nobody can ask any more, also if this thread panics.
            let (ask, asked) = std::sync::mpsc::sync_channel(1);
            let cache = &rig.cache;
            scope.spawn(move || {
                for () in asked {
                    cache.sync_all().unwrap();
                }
            });
            for _ in 0..200 {
                change(&rig, &mut random, &mut model).unwrap();
                if random.random_ratio(1, 4) {
                    strike_some(&rig, &mut random, &model);
                }
                if random.random_ratio(1, 4) {
                    // One that waits will do.
                    let _ = ask.try_send(());
                }
            }
        });
        // No recovery point comes that has all of it.
        for _ in 0..6 {
            change(&rig, &mut random, &mut model).unwrap();
            (0..6).for_each(|_| strike_some(&rig, &mut random, &model));
        }
        for id in model.files.keys() {
            rig.cache.sync(*id, Durability::All).unwrap();
        }
        found += rig.cache.status().operations_renewed;
        compare(&rig, &model.files, "before a power cut");
        let rig = rig.power_cut();
        compare(&rig, &model.files, "after a power cut");
    }
    assert!(found > runs, "{found} of what was struck was found");
}
