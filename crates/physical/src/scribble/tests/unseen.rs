//! Scribbles that no sum sees: what the audit finds of them, and what it does not.

use super::*;
use crate::check::{CheckOptions, check};
use crate::format::BlockPointer;
use crate::meta_block::MetadataProtection;
use std::collections::BTreeMap;

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fate {
    /// An equation, or what each slot must be, did not hold: nothing is stored.
    Named,
    /// Who uses it meets something that makes no sense: an error, and nothing wrong.
    Met,
    /// It is stored, and `check` finds it.
    Checked,
    /// It is stored.
    Stored,
    /// It is written over, or goes.
    Gone,
}

fn rig_with(metadata: MetadataProtection) -> Rig {
    let rig = Rig::with(metadata);
    // Beside what changes.
    rig.make(5);
    rig.fill(5, 2);
    rig.commit().unwrap();
    prepare(&rig);
    rig
}

/// Changes of everything that has something in it, in two recovery points.
fn work(rig: &Rig) -> Result<(), Error> {
    (0..70).try_for_each(|page| rig.write(2, page))?;
    rig.try_make(9)?;
    let (epoch, ops) = (rig.module.epoch() + 1, vec![Op::Delete { id: ObjectId(3) }]);
    rig.module.apply(&Batch { domain: DomainId::MAIN, epoch, ops })?;
    rig.commit()?;
    for info in rig.module.snapshots(DomainId::MAIN)? {
        while rig.module.snapshot_delete(DomainId::MAIN, rig.module.epoch() + 1, info.id)? {}
    }
    rig.commit()
}

fn fate(rig: &Rig, target: &Target, at: usize, unstruck: &Rig) -> Option<Fate> {
    // Of a map: what an object has that stays.
    rig.module.lab().strike_unseen(target, at, &[1 << 5])?;
    match work(rig) {
        Err(Error::GivenUp(why)) if why.to_string().contains("a logic bug") => return Some(Fate::Named),
        Err(_) => return Some(Fate::Met),
        Ok(()) => {}
    }
    assert_eq!(rig.module.status().counters.scribbles, 0, "{target}, byte {at}: it was seen");
    match check(rig.device.clone(), &CheckOptions::default()) {
        Ok(report) if report.findings.is_empty() => {
            let is_gone = rig.device.snapshot() == unstruck.device.snapshot();
            Some(if is_gone { Fate::Gone } else { Fate::Stored })
        }
        _ => Some(Fate::Checked),
    }
}

/// Slots of a block that are struck.
const SLOTS_MAX: usize = 5;

/// The best that becomes of each field, in any of the slots of these kinds.
fn fates(metadata: MetadataProtection, kinds: &[MetaKind]) -> BTreeMap<(MetaKind, String), Fate> {
    let mut fates = BTreeMap::new();
    let unstruck = rig_with(metadata);
    work(&unstruck).expect("nothing is wrong");
    let first = rig_with(metadata);
    for kind in kinds.iter().copied() {
        for target in first.module.lab().targets(kind) {
            let layout = first.module.lab().layout(&target).expect("it is listed");
            // What stands for a dirty block is replaced in any case, and asserted by builds for tests.
            let is_pending = |slot: &usize| {
                let trees = first.module.trees.read();
                let block = trees.dirty.get(&target.key()).filter(|_| target.state == State::Changed);
                target.level > 0 && block.is_some_and(|dirty| dirty.block.pointer(*slot) == BlockPointer::PENDING)
            };
            for slot in layout.used.iter().filter(|slot| !is_pending(slot)).take(SLOTS_MAX) {
                for (field, at, _) in &layout.fields {
                    let best = fates.get(&(kind, field.clone())).copied();
                    if best == Some(Fate::Named) {
                        continue;
                    }
                    if let Some(fate) = fate(&rig_with(metadata), &target, slot * layout.slot_bytes + at, &unstruck) {
                        fates.insert((kind, field.clone()), best.map_or(fate, |best| best.min(fate)));
                    }
                }
            }
        }
    }
    fates
}

/// A kind, and which of its fields have which fate.
fn row(fates: &BTreeMap<(MetaKind, String), Fate>, kind: MetaKind) -> String {
    let of_kind = fates.iter().filter(|((of, _), _)| *of == kind);
    let column = |wanted: Fate| {
        let (of_fate, others): (Vec<_>, Vec<_>) = of_kind.clone().partition(|(_, fate)| **fate == wanted);
        match (of_fate.is_empty(), others.is_empty()) {
            (true, _) => "–".to_string(),
            (false, true) => "all".to_string(),
            _ => of_fate.iter().map(|((_, field), _)| format!("`{field}`")).collect::<Vec<_>>().join(", "),
        }
    };
    let columns = [Fate::Named, Fate::Met, Fate::Checked, Fate::Stored, Fate::Gone].map(column);
    format!("| {kind} | {} |", columns.join(" | "))
}

/// What is stored is on a list, which the documentation has: an equation more makes it shorter, and nothing makes it longer unseen.
#[test]
fn what_no_sum_sees_is_a_logic_bug_or_on_the_list_of_what_is_not_audited() {
    let kinds: Vec<MetaKind> = MetaKind::ALL.into_iter().filter(|kind| kind.is_block()).collect();
    let fates = fates(MetadataProtection::Audited, &kinds);
    for ((kind, field), fate) in &fates {
        assert_eq!(kind.is_audited(field), *fate == Fate::Named, "{kind}, {field}: what `holdfast inject` says of it");
    }
    let mut missing = Vec::new();
    let document = include_str!("../../../../../docs/audit.md");
    for kind in kinds {
        let row = row(&fates, kind);
        missing.extend((!document.contains(&row)).then_some(row));
    }
    assert!(missing.is_empty(), "docs/audit.md does not have:\n{}", missing.join("\n"));
}

#[test]
fn without_the_audit_what_no_sum_sees_is_stored() {
    let kind = MetaKind::ObjectTable;
    let [audited, rolling] =
        [MetadataProtection::Audited, MetadataProtection::Rolling].map(|metadata| fates(metadata, &[kind]));
    for field in ["blocks", "root.address[0]"] {
        let of = |fates: &BTreeMap<_, _>| fates.get(&(kind, field.to_string())).copied();
        assert_eq!(of(&audited), Some(Fate::Named), "{field}");
        assert!(matches!(of(&rolling), Some(Fate::Checked | Fate::Stored)), "{field}: {:?}", of(&rolling));
    }
}

/// It goes to the device with the one that changes, and an equation of changes knows nothing of it.
#[test]
fn an_entry_of_a_list_that_no_sum_sees_is_a_logic_bug_as_another_one_changes() {
    let made = Timestamp { secs: 1, nanos: 0 };
    for metadata in [MetadataProtection::Audited, MetadataProtection::Compared, MetadataProtection::Rolling] {
        // The snapshot's, and a free one.
        for slot in [0, 3] {
            let rig = rig_with(metadata);
            rig.commit().unwrap();
            let before = rig.stored();
            let list = target(&rig, MetaKind::SnapshotList, State::Clean);
            let entry = || {
                let list = target(&rig, MetaKind::SnapshotList, State::Clean);
                rig.module.lab().with(&list, |form| form.bytes()[1024 * slot..][..1024].to_vec())
            };
            let sound = entry();
            let struck = rig.module.lab().strike_unseen(&list, 1024 * slot + 600, &[1 << 5]).expect("it is there");
            let create = || rig.module.snapshot_create(DomainId::MAIN, rig.module.epoch() + 1, "after", made).unwrap();
            create();
            match rig.commit() {
                Ok(()) => assert_eq!(metadata, MetadataProtection::Rolling, "{struck} is stored"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("\"snapshots\"") && error.contains("a logic bug"), "{struck}: {error}");
                    assert_eq!(rig.stored(), before, "{struck}");
                    rig.module.begin_anew().unwrap();
                    create();
                    rig.commit().unwrap();
                    assert_eq!(rig.module.status().counters.scribbles, 0, "{struck}");
                    assert_eq!(entry(), sound, "{struck}");
                }
            }
        }
    }
}
