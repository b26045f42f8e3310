//! What is told of the room in the store: right also while a count has gone bad that nobody has verified yet.

use super::{Alloc, reserve_of};
use crate::words::Mask;
use holdfast_object::Space;

impl Alloc {
    pub(crate) fn space(&self) -> Space {
        self.space_of(self.total(), self.used.free(), self.pending.count().wrapping_add(self.held.count()))
    }

    fn space_of(&self, total: u64, free: u64, pending: u64) -> Space {
        Space {
            total,
            free,
            pending,
            reserve: reserve_of(total, self.limits.kept.get(), free).min(free),
            set_aside: self.limits.set_aside.get(),
            quota: self.limits.quota.get(),
            reserved: self.reserved(),
        }
    }

    /// As [`Alloc::space`]; in the place of a count that has gone bad, what it counts. It stays bad, for whoever verifies it.
    pub(crate) fn space_told(&self) -> Space {
        let of = |mask: &Mask| mask.counted().verified("number of bits").unwrap_or_else(|_| mask.count_of_chunks());
        let total = self.total.verified("number of all blocks").unwrap_or_else(|_| self.blocks_in_all());
        let free =
            self.used.counted_free().verified("number of all free blocks").unwrap_or_else(|_| self.used.free_anew());
        self.space_of(total, free, of(&self.pending).wrapping_add(of(&self.held)))
    }
}

#[cfg(test)]
mod tests {
    use crate::commit::tests::Rig;
    use crate::scribble::MetaKind;
    use holdfast_object::ObjectStore;

    #[test]
    fn what_is_told_is_right_while_a_count_is_not() {
        let rig = Rig::new();
        rig.fill(2, 20);
        rig.commit().unwrap();
        rig.fill(2, 5);
        let told = || rig.module.status().space;
        let (lab, before, mut bad) = (rig.module.lab(), told(), 0);
        assert!(before.pending > 0 && before.reserve > 0);
        for target in lab.targets(MetaKind::Counts) {
            let fields = lab.layout(&target).unwrap().fields;
            assert!(fields.len() > 10);
            for (name, at, length) in fields {
                let strike = || lab.strike(&target, at + length - 1, &[1 << 6]).unwrap();
                strike();
                assert_eq!(told(), before, "{name}");
                bad += usize::from(rig.module.base.alloc.lock().space() != before);
                strike();
            }
        }
        assert!(bad >= 3, "of {bad} counts it is told");
        rig.commit().unwrap();
    }
}
