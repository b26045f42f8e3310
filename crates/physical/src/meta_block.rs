//! Metadata blocks in memory. Their bytes change only through the typed methods here, and each of those passes one hook.

use crate::block_pool::PooledBlock;
use crate::disk::{Block, Disk, RawBlock};
use crate::format::blockptr::{BlockPointer, POINTER_BYTES};
use crate::format::snapshot::{DEAD_BYTES, SNAPSHOT_BYTES};
use crate::format::{DeadRun, POINTERS, RECORD_BYTES};
use holdfast_integrity::{Mismatch, Unverified, Verified, crc64, identity_mix};
use holdfast_object::{DomainId, Error, ObjectId, ObjectKey, Place, Result};

/// Identity of a metadata block: the object, the level in its tree (0 only in domain 0), the index in that level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct NodeKey {
    pub(crate) domain: u16,
    pub(crate) object: u64,
    pub(crate) level: u8,
    pub(crate) index: u64,
}

impl NodeKey {
    pub(crate) fn new(key: ObjectKey, level: u8, index: u64) -> NodeKey {
        NodeKey { domain: key.domain.0, object: key.object.0, level, index }
    }

    pub(crate) fn object_key(self) -> ObjectKey {
        ObjectKey { domain: DomainId(self.domain), object: ObjectId(self.object) }
    }

    /// The block one level up that points to this one, and the slot in it.
    pub(crate) fn parent(self) -> (NodeKey, usize) {
        let slot = (self.index % POINTERS) as usize;
        (NodeKey { level: self.level + 1, index: self.index / POINTERS, ..self }, slot)
    }

    /// What is mixed into the checksum.
    pub(crate) fn mix(self) -> u64 {
        identity_mix(self.domain, self.object, self.level, self.index)
    }

    pub(crate) fn place(self, disk: &Disk, address: u64) -> Place {
        Place {
            object: Some(self.object_key()),
            level: Some(self.level),
            index: Some(self.index),
            ..disk.place(address)
        }
    }
}

/// A block of metadata: of pointers, records, bits or counters. There is no `&mut [u8]`.
///
/// Invariant: only an *owned* block (made or copied for the epoch being built) changes.
#[derive(Clone)]
pub(crate) struct MetaBlock {
    bytes: PooledBlock,
    owned: bool,
}

impl MetaBlock {
    /// A new block of zeros, owned.
    pub(crate) fn new() -> MetaBlock {
        MetaBlock { bytes: Block::zeroed(), owned: true }
    }

    /// A block as read. Only verified bytes become one.
    pub(crate) fn clean(bytes: Verified<RawBlock>) -> MetaBlock {
        MetaBlock { bytes: bytes.into_inner().0, owned: false }
    }

    /// A copy to change.
    pub(crate) fn to_owned_copy(&self) -> MetaBlock {
        MetaBlock { bytes: self.bytes.clone(), owned: true }
    }

    /// No changes from now on: the block is as on the device.
    pub(crate) fn release(&mut self) {
        self.owned = false;
    }

    pub(crate) fn bytes(&self) -> &[u8; 4096] {
        &self.bytes.0
    }

    /// The checksum by which the block's parent knows it.
    pub(crate) fn checksum(&self, key: NodeKey) -> u64 {
        crc64(self.bytes()) ^ key.mix()
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.bytes.0.as_chunks::<8>().0.iter().all(|word| *word == [0; 8])
    }

    fn slot<const N: usize>(&self, slot: usize) -> &[u8; N] {
        &self.bytes.0.as_chunks::<N>().0[slot]
    }

    pub(crate) fn pointer(&self, slot: usize) -> BlockPointer {
        BlockPointer::decode(self.slot(slot))
    }

    pub(crate) fn pointer_kind_is_hole(&self, slot: usize) -> bool {
        BlockPointer::encodes_hole(self.slot(slot))
    }

    pub(crate) fn put_pointer(&mut self, slot: usize, pointer: &BlockPointer) {
        self.change(slot * POINTER_BYTES, &pointer.encode());
    }

    pub(crate) fn record(&self, slot: usize) -> &[u8; RECORD_BYTES] {
        self.slot(slot)
    }

    /// Puts an encoded record, or zeros.
    pub(crate) fn put_record(&mut self, slot: usize, record: &[u8; RECORD_BYTES]) {
        self.change(slot * RECORD_BYTES, record);
    }

    pub(crate) fn word(&self, word: usize) -> u64 {
        u64::from_le_bytes(*self.slot(word))
    }

    pub(crate) fn bit(&self, bit: usize) -> bool {
        self.word(bit / 64) >> (bit % 64) & 1 == 1
    }

    pub(crate) fn set_bit(&mut self, bit: usize, value: bool) {
        let word = self.word(bit / 64);
        let mask = 1u64 << (bit % 64);
        let word = if value { word | mask } else { word & !mask };
        self.change(bit / 64 * 8, &word.to_le_bytes());
    }

    pub(crate) fn counter(&self, slot: usize) -> u32 {
        u32::from_le_bytes(*self.slot(slot))
    }

    pub(crate) fn put_counter(&mut self, slot: usize, value: u32) {
        self.change(slot * 4, &value.to_le_bytes());
    }

    pub(crate) fn snapshot(&self, slot: usize) -> &[u8; SNAPSHOT_BYTES] {
        self.slot(slot)
    }

    /// Puts an encoded entry of a snapshot list, or zeros.
    pub(crate) fn put_snapshot(&mut self, slot: usize, snapshot: &[u8; SNAPSHOT_BYTES]) {
        self.change(slot * SNAPSHOT_BYTES, snapshot);
    }

    pub(crate) fn dead_run(&self, slot: usize) -> &[u8; DEAD_BYTES] {
        self.slot(slot)
    }

    pub(crate) fn put_dead_run(&mut self, slot: usize, run: &DeadRun) {
        self.change(slot * DEAD_BYTES, &run.encode());
    }

    pub(crate) fn clear_dead_run(&mut self, slot: usize) {
        self.change(slot * DEAD_BYTES, &[0; DEAD_BYTES]);
    }

    /// Puts the 64-bit words of a bitmap, the first of them at word 0.
    pub(crate) fn put_words(&mut self, words: &[u64]) {
        for (at, word) in words.iter().enumerate() {
            if self.word(at) != *word {
                self.change(at * 8, &word.to_le_bytes());
            }
        }
    }

    /// The hook that every change passes.
    fn change(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.owned, "a metadata block of a recovery point is not changed");
        self.bytes.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Reads and verifies the block that `pointer` names, from its second copy if the first is bad, which is then
    /// repaired.
    pub(crate) fn load(disk: &Disk, key: NodeKey, pointer: &BlockPointer) -> Result<MetaBlock> {
        let mut first_error = None;
        for address in pointer.addresses() {
            match read_copy(disk, key, pointer, address) {
                Ok(bytes) => {
                    let block = MetaBlock::clean(bytes);
                    if first_error.is_some() {
                        disk.repair(pointer.address[0], block.bytes(), &key.place(disk, pointer.address[0]));
                    }
                    block.check(disk, key, address)?;
                    return Ok(block);
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let error = match first_error {
            // With the object: it is its damage, and no one else's.
            Some(Error::Device(fault)) if key.domain != DomainId::SYSTEM.0 => {
                Error::corrupt(key.place(disk, pointer.address[0]), "tree block", "a readable copy", fault.to_string())
            }
            Some(error) => error,
            None => Error::corrupt(
                key.place(disk, 0),
                "block pointer",
                "an address",
                "none: a dirty block is missing in memory",
            ),
        };
        disk.note_unrepaired(pointer.address[0], &error);
        Err(error)
    }

    /// Checks what can be checked within the block: the pointers of a tree block.
    pub(crate) fn check(&self, disk: &Disk, key: NodeKey, address: u64) -> Result<()> {
        if key.level == 0 {
            return Ok(());
        }
        for slot in 0..POINTERS as usize {
            BlockPointer::decode_checked(self.slot(slot), key.level - 1, disk.newest(), disk.blocks())
                .map_err(|fault| fault.at(key.place(disk, address)))?;
        }
        Ok(())
    }
}

/// Reads one copy and compares its checksum with the pointer's.
pub(crate) fn read_copy(disk: &Disk, key: NodeKey, pointer: &BlockPointer, address: u64) -> Result<Verified<RawBlock>> {
    verify(disk.read_unverified(address)?, key, pointer)
        .map_err(|Mismatch { expected, got }| Error::corrupt(key.place(disk, address), "checksum", expected, got))
}

/// Compares bytes with the checksum in the pointer to them.
pub(crate) fn verify(
    bytes: Unverified<RawBlock>,
    key: NodeKey,
    pointer: &BlockPointer,
) -> std::result::Result<Verified<RawBlock>, Mismatch> {
    match pointer.sums.primary.as_u64() {
        Some(expected) if pointer.seeded => bytes.verify_identified(expected, key.mix()),
        _ => bytes.verify(pointer.sums.primary),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "not changed")]
    fn a_released_block_does_not_change() {
        let mut block = MetaBlock::new();
        block.set_bit(5, true);
        block.release();
        block.set_bit(6, true);
    }

    #[test]
    fn typed_updates() {
        let mut block = MetaBlock::new();
        assert!(block.is_zero());
        block.set_bit(4096 * 8 - 1, true);
        assert!(block.bit(4096 * 8 - 1) && !block.is_zero());
        block.set_bit(4096 * 8 - 1, false);
        block.put_counter(1023, 7);
        assert_eq!(block.counter(1023), 7);
        block.put_counter(1023, 0);
        assert!(block.is_zero());
        let pointer = BlockPointer::lost(9);
        block.put_pointer(63, &pointer);
        assert_eq!(block.pointer(63), pointer);
        assert!(block.pointer_kind_is_hole(62) && !block.pointer_kind_is_hole(63));
    }

    #[test]
    fn the_checksum_is_bound_to_the_place() {
        let key = NodeKey { domain: 1, object: 2, level: 3, index: 4 };
        let block = MetaBlock::new();
        let sums = [key, NodeKey { index: 5, ..key }, NodeKey { level: 2, ..key }, NodeKey { object: 3, ..key }];
        let sums: std::collections::BTreeSet<u64> = sums.into_iter().map(|key| block.checksum(key)).collect();
        assert_eq!(sums.len(), 4);
    }
}
