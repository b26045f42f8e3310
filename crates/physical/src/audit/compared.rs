//! What an auditor does who does not see the updates, as Recon does (*Recon: Verifying File System Consistency at Runtime*, FAST 2012; of a store
//! that writes to new places, WAFL paper, §2.5). For measurements only: [`MetadataProtection::Compared`](crate::MetadataProtection).
//!
//! He has a copy of each block from before its first change, and keeps blocks that go away as they were. When a recovery point is put together, he
//! makes out of the differences which blocks pointers name, or do not name any more, and which bits are set or cleared, and holds the two lists
//! against each other, block by block. What one of them has alone must be in the equation *blocks* ([`super::EQUATIONS`]); all others are the same.

use super::{Audit, Counting, Digest};
use crate::format::blockptr::Glance;
use crate::format::record::RecordGlance;
use crate::format::{BITS, SystemKind};
use crate::meta_block::{MetaBlock, NodeKey};
use holdfast_object::ObjectKey;
use rustc_hash::FxHashMap;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Compared {
    /// Tree blocks that went away as they were.
    gone: Vec<(ObjectKey, Arc<MetaBlock>)>,
    lists: Lists,
}

/// Both lists, by chunk of the bitmap: the bit in it, and whether it has been set, or its pointer has gone.
#[derive(Default)]
pub(crate) struct Lists {
    chunks: FxHashMap<u64, Vec<(u16, bool)>>,
}

impl Lists {
    fn add(&mut self, block: u64, more: bool) {
        self.chunks.entry(block / BITS).or_default().push(((block % BITS) as u16, more));
    }

    fn put(&mut self, pointer: &Glance) {
        pointer.address.into_iter().filter(|&address| address != 0).for_each(|address| self.add(address, false));
    }

    fn gone(&mut self, pointer: &Glance) {
        pointer.address.into_iter().filter(|&address| address != 0).for_each(|address| self.add(address, true));
    }

    pub(super) fn pointer(&mut self, old: &Glance, new: &Glance) {
        self.gone(old);
        self.put(new);
    }

    /// 64 bits of the bitmap.
    pub(super) fn word(&mut self, first: u64, old: u64, new: u64) {
        for bit in (0..64).filter(|bit| (old ^ new) >> bit & 1 == 1) {
            self.add(first + bit, new >> bit & 1 == 1);
        }
    }

    /// Blocks that only one of the lists has: bits set less those cleared, less blocks named, and more those not named any more.
    fn unmatched(&self) -> Digest {
        let mut more = vec![0i32; BITS as usize];
        let mut unmatched = Digest::NOTHING;
        for (chunk, blocks) in &self.chunks {
            for (bit, is_more) in blocks {
                more[usize::from(*bit)] += if *is_more { 1 } else { -1 };
            }
            for (bit, _) in blocks {
                let more = std::mem::take(&mut more[usize::from(*bit)]);
                if more != 0 {
                    unmatched += Digest::of(chunk * BITS + u64::from(*bit)).times(i64::from(more) as u64);
                }
            }
        }
        unmatched
    }
}

impl Audit {
    /// A block is complete, or goes away: it is compared with what it was before its first change.
    pub(super) fn compare(&mut self, key: NodeKey, before: &[u8; 4096], after: &[u8; 4096]) {
        let lists = &mut self.compared.get_or_insert_default().lists;
        let mut counting = Counting::into(&mut self.sums, key);
        if key.level > 0 {
            return each_other(before, after, |_, old, new| {
                counting.pointer(old, new);
                lists.pointer(&Glance::at(old), &Glance::at(new));
            });
        }
        match counting.kind() {
            Some(SystemKind::ObjectTable) => each_other(before, after, |slot, old, new| {
                counting.record(slot, old, new);
                lists.pointer(&RecordGlance::at(old).root, &RecordGlance::at(new).root);
            }),
            Some(kind @ (SystemKind::Bitmap | SystemKind::ObjectMap | SystemKind::OrphanMap)) => {
                each_other(before, after, |word, old, new| {
                    let (old, new) = (u64::from_le_bytes(*old), u64::from_le_bytes(*new));
                    counting.word(word, old, new);
                    if kind == SystemKind::Bitmap {
                        lists.word(key.index * BITS + word as u64 * 64, old, new);
                    }
                });
            }
            Some(SystemKind::References) => each_other(before, after, |slot, old, new| {
                counting.counter(slot, u32::from_le_bytes(*old), u32::from_le_bytes(*new));
            }),
            Some(SystemKind::DeadLists) => each_other(before, after, |_, old, new| counting.dead_run(old, new)),
            Some(SystemKind::SnapshotList) => {
                each_other(before, after, |slot, old, new| counting.snapshot(slot, old, new));
            }
            None => {}
        }
    }

    /// A tree block goes away as a whole, and is kept as it is.
    pub(super) fn keep_gone(&mut self, key: ObjectKey, block: Arc<MetaBlock>) {
        self.compared.get_or_insert_default().gone.push((key, block));
    }

    /// All that changes is complete: what has gone away is looked at.
    pub(crate) fn look_at_gone(&mut self) {
        let Some(mut compared) = self.compared.take() else { return };
        for (key, block) in std::mem::take(&mut compared.gone) {
            self.all_gone(key, &block);
            block.bytes().as_chunks().0.iter().for_each(|slot| compared.lists.gone(&Glance::at(slot)));
        }
        self.compared = Some(compared);
    }

    /// What only one of the lists has, if this auditor is asked.
    pub(super) fn unmatched(&self) -> Option<Digest> {
        self.compared.as_ref().map(|compared| compared.lists.unmatched())
    }
}

/// Calls `visit` with number, old and new bytes of each slot of so many bytes that is another one now.
fn each_other<const N: usize>(
    before: &[u8; 4096],
    after: &[u8; 4096],
    mut visit: impl FnMut(usize, &[u8; N], &[u8; N]),
) {
    for (slot, (old, new)) in before.as_chunks().0.iter().zip(after.as_chunks().0).enumerate() {
        if old != new {
            visit(slot, old, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_list_has_alone_is_told() {
        let mut lists = Lists::default();
        let pointer = |address: [u64; 2]| Glance { address, ..Glance::PENDING };
        lists.pointer(&pointer([0, 0]), &pointer([70, BITS + 5]));
        lists.word(64, 0, 1 << 6);
        assert_eq!(lists.unmatched(), -Digest::of(BITS + 5));
        lists.word(BITS, 0, 1 << 5);
        assert_eq!(lists.unmatched(), Digest::NOTHING);
        // Each other's sums: 70 and 74 go, 71 and 73 come.
        lists.word(64, 1 << 6 | 1 << 10, 1 << 7 | 1 << 9);
        let alone = Digest::of(71) + Digest::of(73) - Digest::of(70) - Digest::of(74);
        assert_eq!(lists.unmatched(), alone);
        lists.pointer(&pointer([70, 74]), &pointer([71, 73]));
        assert_eq!(lists.unmatched(), Digest::NOTHING);
    }
}
