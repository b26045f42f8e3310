//! Which block has the pointer that an equation of what each block must be by itself has found: sums do not say. It is looked for in the changed
//! blocks when such an equation does not hold, and not before, so it costs nothing where all is well.

use super::{Facts, LABEL_BLOCKS, owner};
use crate::base::Base;
use crate::format::blockptr::{Glance, PointerKind};
use crate::format::record::RecordGlance;
use crate::format::{DeadRun, SystemKind};
use crate::meta_block::{MetaBlock, NodeKey};
use crate::objects::system_kind;
use crate::tree::Trees;
use holdfast_object::{Epoch, ObjectKey};

/// What pointers must be, whatever the others are.
struct Limits {
    /// The epoch that becomes a recovery point.
    newest: Epoch,
    /// The last block that a pointer can name.
    last: u64,
}

/// Whether a pointer is against an equation, where pointers must be of this level.
type Offends = fn(&Limits, &Glance, u8) -> bool;

fn of_equation(name: &str) -> Option<Offends> {
    Some(match name {
        "pending" => |_, pointer, _| *pointer == Glance::PENDING,
        "levels" => |_, pointer, level| {
            is_placed(pointer) && (pointer.level != level || (pointer.kind == PointerKind::Tree) != (pointer.level > 0))
        },
        "births" => |limits, pointer, _| is_placed(pointer) && pointer.birth_log > limits.newest,
        "birth order" => {
            |_, pointer, _| is_placed(pointer) && !(0 < pointer.birth_phys && pointer.birth_phys <= pointer.birth_log)
        }
        "range" => |limits, pointer, _| pointer.address.into_iter().any(|address| limits.is_beyond(address)),
        _ => return None,
    })
}

/// Neither a hole nor a placeholder.
fn is_placed(pointer: &Glance) -> bool {
    pointer.kind != PointerKind::Hole && *pointer != Glance::PENDING
}

impl Limits {
    fn is_beyond(&self, address: u64) -> bool {
        address != 0 && !(2 * LABEL_BLOCKS..=self.last).contains(&address)
    }
}

impl Facts<'_> {
    /// The last block that is none of a label's.
    pub(super) fn last_block(&self) -> u64 {
        self.blocks - 2 * LABEL_BLOCKS - 1
    }
}

impl Trees {
    /// For people: the first of the changed blocks that has something against this equation, and in which slot; with the object that it is of, if it is
    /// one's. Nothing if it is none of those about single pointers.
    pub(super) fn offender(&self, base: &Base, name: &str, facts: &Facts<'_>) -> Option<(String, Option<ObjectKey>)> {
        let offends = of_equation(name)?;
        let limits = Limits { newest: facts.next.epoch, last: facts.last_block() };
        let mut keys: Vec<_> = self.dirty.keys().copied().collect();
        keys.sort_unstable();
        let of_block = |key: NodeKey| {
            let dirty = &self.dirty[&key];
            let slot = slot(&dirty.block, key, &limits, offends, name == "range")?;
            // Where it would have been written, if that is known.
            let [address, _] = dirty.address.get().unwrap_or_default();
            let mut place = key.place(&base.disk, address);
            place.address = place.address.filter(|_| address != 0);
            Some((format!("; slot {slot} of {place}"), owner(key, slot)))
        };
        Some(keys.into_iter().find_map(of_block).unwrap_or_else(|| {
            let root = Glance::of(&facts.next.root.root);
            let told = match offends(&limits, &root, facts.next.root.levels) {
                true => "; the pointer in the superblock",
                false => "; no changed block has it any more",
            };
            (told.into(), None)
        }))
    }
}

/// The first slot of a block that offends.
fn slot(block: &MetaBlock, key: NodeKey, limits: &Limits, offends: Offends, of_runs: bool) -> Option<usize> {
    let bytes = block.bytes();
    if key.level > 0 {
        return bytes.as_chunks().0.iter().position(|slot| offends(limits, &Glance::at(slot), key.level - 1));
    }
    match system_kind(key.object)? {
        SystemKind::ObjectTable => bytes.as_chunks().0.iter().position(|slot| {
            let record = RecordGlance::at(slot);
            offends(limits, &record.root, record.levels)
        }),
        SystemKind::DeadLists if of_runs => bytes.as_chunks().0.iter().position(|slot| {
            let run = DeadRun::glance(slot);
            let is_beyond = |first: u64| {
                first != 0
                    && (limits.is_beyond(first) || limits.is_beyond(first.saturating_add(u64::from(run.count) - 1)))
            };
            run.count > 0 && run.address.into_iter().any(is_beyond)
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BlockPointer, Record};
    use crate::meta_block::{MetadataProtection, OwnedBlock};
    use crate::objects::{dead_of, system_key, table_of};
    use holdfast_integrity::{Checksum, StoredSums};
    use holdfast_object::{Attributes, Class, DomainId, Kind, Timestamp};

    #[test]
    fn records_and_runs_are_looked_at_too() {
        let limits = Limits { newest: 9, last: 1000 };
        let found =
            |block: &OwnedBlock, key, name| slot(block, key, &limits, of_equation(name).unwrap(), name == "range");
        let of_system = |object| NodeKey::new(system_key(object), 0, 0);

        let key = of_system(table_of(DomainId::MAIN));
        let mut block = OwnedBlock::new(key, MetadataProtection::Rolling);
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
        let mut record = Record::object(attributes, 1);
        let sums = StoredSums::of(Checksum::crc64(0));
        let root = BlockPointer {
            address: [500, 0],
            birth_phys: 10,
            birth_log: 10,
            kind: PointerKind::Data,
            level: 0,
            seeded: false,
            sums,
        };
        (record.root, record.levels) = (root, 0);
        block.edit(key).put_record(5, &record.encode());
        assert_eq!((found(&block, key, "births"), found(&block, key, "levels")), (Some(5), None));

        let key = of_system(dead_of(DomainId::MAIN));
        let mut block = OwnedBlock::new(key, MetadataProtection::Rolling);
        block.edit(key).put_dead_run(3, &DeadRun { address: [900, 0], birth_log: 3, count: 101, is_page: true });
        block.edit(key).put_dead_run(7, &DeadRun { address: [900, 0], birth_log: 3, count: 102, is_page: true });
        assert_eq!((found(&block, key, "range"), found(&block, key, "births")), (Some(7), None));
    }
}
