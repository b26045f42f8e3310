//! What the records of a recovery point say is held against what was handed down for it.

use crate::rig::{Rig, pattern};
use crate::wrong::Bug;
use holdfast_object::*;

/// Leaves one field as it was, as [`all`] has it of 1. The store itself refuses a name without a directory.
type Omission = fn(&mut AttrSet);

const OMISSIONS: [(&str, Omission); 14] = [
    ("mode", |set| set.mode = None),
    ("uid", |set| set.uid = None),
    ("gid", |set| set.gid = None),
    ("nlink", |set| set.nlink = None),
    ("entries", |set| set.entries = None),
    ("atime", |set| set.atime = None),
    ("mtime", |set| set.mtime = None),
    ("ctime", |set| set.ctime = None),
    ("btime", |set| set.btime = None),
    ("parent", |set| set.parent = all(1).parent),
    ("xattr", |set| set.xattr = None),
    ("flags", |set| set.flags = None),
    ("name_key", |set| set.name_key = all(1).name_key),
    ("other_names", |set| set.other_names = None),
];

/// All that can be set, with other values for each `number`.
fn all(number: u32) -> AttrSet {
    let (id, time) = (ObjectId(100 + u64::from(number)), Timestamp { secs: number.into(), nanos: number });
    AttrSet {
        mode: Some(number as u16),
        uid: Some(number),
        gid: Some(number),
        nlink: Some(1 + number),
        entries: Some(number.into()),
        atime: Some(time),
        mtime: Some(time),
        ctime: Some(time),
        btime: Some(time),
        parent: Some(id),
        xattr: Some(id),
        // There is one alone.
        policy: None,
        flags: Some(number),
        name_key: Some(number.into()),
        other_names: Some(vec![NamePlace { directory: id, key: number.into() }]),
    }
}

/// A file that is about to get other attributes and more bytes.
fn changed() -> (Rig, ObjectId) {
    let rig = Rig::new(2048);
    let id = rig.create(Kind::Regular);
    rig.write(id, 0, &pattern(1, 5000)).unwrap();
    rig.submit(vec![Op::SetAttributes { id, set: all(1) }]).unwrap();
    rig.cache.sync_all().unwrap();
    rig.submit(vec![Op::SetAttributes { id, set: all(2) }]).unwrap();
    rig.write(id, 5000, &pattern(2, 5000)).unwrap();
    (rig, id)
}

/// Of operations on attributes of this object.
fn attributes_of(wanted: ObjectId, omission: Omission) -> Bug {
    Box::new(move |ops| {
        let sets = ops.iter_mut().filter_map(|op| match op {
            Op::SetAttributes { id, set } if *id == wanted => Some(set),
            _ => None,
        });
        sets.map(omission).count() > 0
    })
}

fn sizes_of(wanted: ObjectId, change: fn(u64) -> u64) -> Bug {
    Box::new(move |ops| {
        let sizes = ops.iter_mut().filter_map(|op| match op {
            Op::Write { id, size_min, .. } if *id == wanted => Some(size_min),
            _ => None,
        });
        sizes.map(|size| *size = change(*size)).count() > 0
    })
}

fn bugs(id: ObjectId) -> Vec<(&'static str, Bug)> {
    let omitted = OMISSIONS.map(|(field, omission)| (field, attributes_of(id, omission)));
    let sizes = [("size, too large", sizes_of(id, |size| size + 1)), ("size, too small", sizes_of(id, |_| 0))];
    omitted.into_iter().chain(sizes).collect()
}

#[test]
fn a_record_that_is_not_as_handed_down_is_a_logic_bug() {
    for at in 0..bugs(ObjectId::NONE).len() {
        let (rig, id) = changed();
        let (field, bug) = bugs(id).swap_remove(at);
        let expected = rig.cache.attributes(id).unwrap();
        rig.store.plant(1, bug);
        rig.cache.sync_all().unwrap();
        let counters = rig.cache.store_status().counters;
        assert_eq!((counters.audit_failures, counters.scribbles, counters.restarts), (1, 0, 1), "{field}");
        rig.cache.check();
        let rig = rig.remount();
        assert_eq!(rig.cache.attributes(id).unwrap(), expected, "{field}, mounted again");
        assert_eq!(rig.contents(id).unwrap(), [pattern(1, 5000), pattern(2, 5000)].concat(), "{field}");
    }
}

#[test]
fn what_is_never_as_handed_down_is_told_and_not_stored() {
    let (rig, id) = changed();
    let before = rig.cache.store_status().epoch;
    rig.store.plant(usize::MAX, attributes_of(id, |set| set.uid = None));
    let told = rig.cache.sync_all().unwrap_err().to_string();
    assert!(told.contains("\"attributes\"") && told.contains("uid: expected 2, got 1"), "{told}");
    assert!(told.contains("a logic bug") && told.contains("it failed 3 times in a row"), "{told}");
    assert_eq!(rig.cache.store_status().counters.audit_failures, 3);
    assert_eq!(rig.module.suspects(), [ObjectKey { domain: DomainId::MAIN, object: id }]);
    assert_eq!(rig.cache.store_status().epoch, before);
    let rig = rig.power_cut();
    assert_eq!(rig.cache.attributes(id).unwrap().uid, 1);
}
