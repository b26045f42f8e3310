//! Blocks that two pointers name, and are no pages that the reference table counts as shared. What one of the two should have there is not what the other one has: one of them finds a bad
//! copy, and puts right what it takes for that over what is the other's, as that does the next time. So it is told of both, and nothing
//! is written there. That is known when all trees have been walked: until then bad copies wait.

use super::report::{BlockUse, Finding, FindingKind, Report};
use super::walk::{ReadPages, Walk};
use crate::format::{BlockPointer, split_address};
use crate::meta_block::{NodeKey, read_copy};
use crate::module::log_area;
use crate::named::Answer;
use crate::tree::Trees;
use holdfast_object::Place;
use std::collections::BTreeMap;

/// Blocks that two pointers name, by number, with the places of these pointers as far as they are known.
type NamedTwice = BTreeMap<u64, Vec<Place>>;

/// A bad copy of a block that has a good one.
pub(super) struct BadCopy {
    pub(super) key: NodeKey,
    pub(super) pointer: BlockPointer,
    pub(super) address: u64,
    pub(super) place: Place,
    pub(super) what: String,
}

impl Walk<'_> {
    /// The places of the pointers to blocks that are named twice: the trees are walked once more for them.
    fn named_twice(&self, trees: &Trees) -> NamedTwice {
        let mut twice: NamedTwice = self.twice.iter().map(|block| (*block, Vec::new())).collect();
        if twice.is_empty() {
            return twice;
        }
        let (mut ignored, mut told) = (Report::default(), 0);
        let mut visit = |used: BlockUse| {
            if let Some(places) = twice.get_mut(&used.block)
                && told < Report::FINDINGS_MAX
            {
                told += 1;
                let (level, index) = (Some(used.level), Some(used.index));
                places.push(Place { object: used.object, level, index, ..self.base.disk.place(used.block) });
            }
        };
        Walk::new(self.base, self.label, self.superblock, ReadPages::Metadata, false, &mut ignored, &mut visit)
            .trees(trees);
        twice
    }

    /// Tells of blocks that are named twice, and puts right bad copies of the others.
    pub(super) fn finish(&mut self, trees: &Trees) {
        self.tell_unlisted(trees);
        self.add_uncounted();
        for (block, places) in self.named_twice(trees) {
            let mut find = |place, what| self.report.find(FindingKind::DoublyUsed, place, what);
            for (at, place) in places.iter().enumerate() {
                let mut others = (0..).zip(&places).filter(|(other, _)| *other != at);
                find(
                    place.clone(),
                    match others.next() {
                        Some((_, other)) => format!("two pointers name this block: it is used by {} too", of(other)),
                        None => "a dead list or another pointer names this block, too".into(),
                    },
                );
            }
            if places.is_empty() {
                find(self.base.disk.place(block), "two pointers name this block".into());
            }
        }
        self.put_right();
    }

    /// Writes good copies over bad ones, if that is wanted. Each has been in memory since it was found, so it is read again, and so is the
    /// pointer.
    pub(super) fn put_right(&mut self) {
        for bad in std::mem::take(&mut self.bad) {
            let repaired = self.repair && self.is_named_once(bad.address) && self.replace(&bad);
            let BadCopy { place, what, .. } = bad;
            self.report.add(Finding { kind: FindingKind::BadCopy, place, what, repaired });
        }
    }

    fn is_named_once(&self, address: u64) -> bool {
        let block = split_address(address).1;
        !self.twice.contains(&block) && !log_area(self.label).contains(&block)
    }

    fn replace(&self, bad: &BadCopy) -> bool {
        let (disk, pointer) = (&self.base.disk, &bad.pointer);
        let good = || {
            let mut others = pointer.addresses().filter(|address| *address != bad.address);
            others.find_map(|address| read_copy(disk, bad.key, pointer, address).ok())
        };
        self.on_device.ask(bad.key, pointer) == Answer::Same
            && good().is_some_and(|good| disk.write_blocks([(bad.address, &good.into_inner().0.0)]).is_ok())
    }
}

/// Of what a place is, without the block, which is that of the other one.
fn of(place: &Place) -> String {
    Place { device: None, address: None, ..place.clone() }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::walk::ReadPages;
    use crate::check::{BlockUse, looking};
    use crate::commit::tests::Rig;
    use holdfast_block::Device;
    use holdfast_object::{DomainId, ObjectId, ObjectKey};
    use std::sync::Arc;

    /// As one that has gone bad since it was read from the block above.
    #[test]
    fn nothing_is_repaired_through_a_pointer_that_the_device_does_not_have() {
        let rig = Rig::new();
        rig.make(3);
        rig.fill(2, 70);
        rig.fill(3, 1);
        rig.commit().unwrap();
        let (label, superblock) = (rig.module.label().unwrap(), rig.module.superblock().unwrap());
        let key = |object| ObjectKey { domain: DomainId::MAIN, object: ObjectId(object) };
        let (right, other) = {
            let trees = rig.module.trees.read();
            let root = |object| trees.get(&rig.module.base, key(object)).unwrap().root;
            (root(2), root(3).address[0])
        };
        let wrong = BlockPointer { address: [other, right.address[1]], ..right };
        let device: Arc<dyn Device> = rig.device.clone();
        let base = looking(&device, &label, &superblock, true);
        let before = rig.device.snapshot();
        for (pointer, damaged) in [(wrong, None), (right, Some(right.address[0]))] {
            if let Some(block) = damaged {
                rig.device.alter(block, |bytes| bytes[5] ^= 1).unwrap();
            }
            let (mut report, mut visit) = (Report::default(), |_: BlockUse| {});
            let mut walk = Walk::new(&base, &label, &superblock, ReadPages::All, true, &mut report, &mut visit);
            assert!(walk.load(NodeKey::new(key(2), 2, 0), &pointer).is_some());
            walk.put_right();
            let found: Vec<_> = report.findings.iter().map(|finding| (finding.kind, finding.repaired)).collect();
            assert_eq!(found, [(FindingKind::BadCopy, damaged.is_some())]);
            assert!(rig.device.snapshot() == before);
        }
    }
}
