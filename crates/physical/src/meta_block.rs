//! Metadata blocks in memory. Their bytes change only through the typed methods here, and each of those passes one hook.
//!
//! A block keeps its checksum from the device to memory and back (*High-Performance Metadata Integrity Protection in the WAFL
//! Copy-on-Write File System*, FAST 2017, §4): it is verified when read, taken over, changed with the bytes from what changes alone,
//! and is what the parent of the block gets when it is written. It is never made anew from bytes that have been in memory, so what else
//! writes to them shows: when a clean block is copied to be changed, and when a block has been written, before the superblock that would
//! name it.

use crate::audit::Changes;
use crate::block_pool::PooledBlock;
use crate::disk::{Block, Disk, RawBlock};
use crate::format::blockptr::{BlockPointer, POINTER_BYTES};
use crate::format::snapshot::{DEAD_BYTES, SNAPSHOT_BYTES};
use crate::format::{DeadRun, POINTERS, RECORD_BYTES};
use holdfast_integrity::{
    CRC64_OF_ZEROS, Delta, Mismatch, Unverified, Verified, crc64, identity_mix, identity_tag, tally,
};
use holdfast_object::{Corruption, DomainId, Error, ObjectId, ObjectKey, Place, Result};

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

/// How blocks of metadata are protected while they are in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MetadataProtection {
    /// For measurements only, as what the others are compared with: not at all. A block gets its checksum when a recovery point is put
    /// together, from whatever is in memory then.
    Off,
    /// For measurements only: by rolling checksums, which are verified.
    Rolling,
    /// By rolling checksums; and what changes is audited before it becomes a recovery point.
    #[default]
    Audited,
}

impl MetadataProtection {
    /// Whether blocks have sums from the device to memory and back, and are verified.
    pub(crate) fn rolls(self) -> bool {
        self != MetadataProtection::Off
    }

    /// Whether what changes is counted, and audited.
    pub(crate) fn audits(self) -> bool {
        self == MetadataProtection::Audited
    }
}

/// Bytes of a block in memory that no legal change has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scribble {
    /// Which sum of the bytes is not what it should be.
    what: &'static str,
    expected: u64,
    got: u64,
}

impl Scribble {
    /// Of checksum and tally, as they should be and as they are.
    pub(crate) fn between(expected: (u64, u32), got: (u64, u32)) -> std::result::Result<(), Scribble> {
        Scribble::unless_equal("checksum", expected.0, got.0)?;
        Scribble::unless_equal("tally", expected.1.into(), got.1.into())
    }

    pub(crate) fn unless_equal(what: &'static str, expected: u64, got: u64) -> std::result::Result<(), Scribble> {
        if expected == got { Ok(()) } else { Err(Scribble { what, expected, got }) }
    }

    pub(crate) fn at(self, place: Place) -> Corruption {
        let Scribble { what, expected, got } = self;
        let what = format!("{what} in memory, to which somebody has written who must not");
        Corruption { place, what, expected: format!("{expected:#018x}"), got: format!("{got:#018x}") }
    }
}

/// A block of metadata: of pointers, records, bits or counters. There is no `&mut [u8]`.
///
/// Invariants:
/// - only an *owned* block (made or copied for the epoch being built) changes, and what changes is counted if it is to be audited;
/// - with [`MetadataProtection::rolls`], `sums` are those of the bytes as they were read, and of all legal changes since. If the bytes are others, somebody
///   else has written to them ([`MetaBlock::verify`]).
#[derive(Clone)]
pub(crate) struct MetaBlock {
    bytes: PooledBlock,
    protection: MetadataProtection,
    sums: Sums,
    owned: bool,
    /// What has changed, of an owned block that is audited.
    changes: Option<Box<Changes>>,
}

/// What is known of a block beside its bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sums {
    /// The checksum by which the block's parent knows it: CRC-64, bound to the block's place.
    sum: u64,
    /// A second sum, which sees what a CRC cannot.
    tally: u32,
    /// Which block this is: 32 bits of the mix of its key.
    tag: u32,
}

impl MetaBlock {
    /// A new block of zeros, owned.
    pub(crate) fn new(key: NodeKey, protection: MetadataProtection) -> MetaBlock {
        let of_zeros = |mix: u64| Sums { sum: CRC64_OF_ZEROS ^ mix, tally: 0, tag: identity_tag(mix) };
        let sums = if protection.rolls() { of_zeros(key.mix()) } else { Sums::default() };
        MetaBlock { bytes: Block::zeroed(), protection, sums, owned: false, changes: None }.into_owned()
    }

    /// A block as read. Only verified bytes become one, and their checksum comes with them.
    pub(crate) fn clean(
        bytes: Verified<RawBlock>,
        key: NodeKey,
        pointer: &BlockPointer,
        protection: MetadataProtection,
    ) -> MetaBlock {
        let bytes = bytes.into_inner().0;
        if !protection.rolls() {
            return MetaBlock { bytes, protection, sums: Sums::default(), owned: false, changes: None };
        }
        let mix = key.mix();
        let sum = match pointer.sums.primary.as_u64() {
            Some(sum) if pointer.seeded => sum,
            _ => crc64(&bytes.0) ^ mix,
        };
        let sums = Sums { sum, tally: tally(&bytes.0), tag: identity_tag(mix) };
        MetaBlock { bytes, protection, sums, owned: false, changes: None }
    }

    /// A copy to change, which is to be verified first if this one has been in memory for long.
    pub(crate) fn to_own(&self) -> MetaBlock {
        self.clone().into_owned()
    }

    /// This block, to change.
    pub(crate) fn into_owned(self) -> MetaBlock {
        let changes = self.protection.audits().then(Box::default);
        MetaBlock { owned: true, changes, ..self }
    }

    /// Whether the bytes are what was read and legally changed since.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn verify(&self, key: NodeKey) -> std::result::Result<(), Scribble> {
        if !self.protection.rolls() {
            return Ok(());
        }
        let got = (crc64(self.bytes()) ^ key.mix(), tally(self.bytes()));
        Scribble::between((self.sums.sum, self.sums.tally), got)
    }

    /// Whether this is the block of that identity.
    pub(crate) fn is(&self, key: NodeKey) -> bool {
        !self.protection.rolls() || self.sums.tag == identity_tag(key.mix())
    }

    /// No changes from now on: the block is as on the device. Gives what had changed until then.
    pub(crate) fn release(&mut self) -> Option<Box<Changes>> {
        self.owned = false;
        self.changes.take()
    }

    /// What has changed since the block was read, or made.
    pub(crate) fn changes(&self) -> Option<&Changes> {
        self.changes.as_deref()
    }

    /// Counts for the audit what is about to change. The bytes are those before.
    #[inline]
    fn count(&mut self, count: impl FnOnce(&mut Changes, &[u8; 4096])) {
        if let Some(changes) = &mut self.changes {
            count(changes, &self.bytes.0);
        }
    }

    pub(crate) fn bytes(&self) -> &[u8; 4096] {
        &self.bytes.0
    }

    /// The checksum by which the block's parent knows it.
    pub(crate) fn checksum(&self, key: NodeKey) -> u64 {
        if self.protection.rolls() { self.sums.sum } else { crc64(self.bytes()) ^ key.mix() }
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
        let new = pointer.encode();
        self.count(|changes, bytes| changes.pointer(&bytes.as_chunks().0[slot], &new));
        self.change(slot * POINTER_BYTES, &new, |block| Delta::of_slot(slot, block.slot::<POINTER_BYTES>(slot), &new));
    }

    pub(crate) fn record(&self, slot: usize) -> &[u8; RECORD_BYTES] {
        self.slot(slot)
    }

    /// Puts an encoded record, or zeros.
    pub(crate) fn put_record(&mut self, slot: usize, record: &[u8; RECORD_BYTES]) {
        self.count(|changes, bytes| changes.record(slot, &bytes.as_chunks().0[slot], record));
        self.change_any(slot * RECORD_BYTES, record);
    }

    pub(crate) fn word(&self, word: usize) -> u64 {
        u64::from_le_bytes(*self.slot(word))
    }

    pub(crate) fn bit(&self, bit: usize) -> bool {
        self.word(bit / 64) >> (bit % 64) & 1 == 1
    }

    pub(crate) fn set_bit(&mut self, bit: usize, value: bool) {
        let (old, mask) = (self.word(bit / 64), 1u64 << (bit % 64));
        self.put_word(bit / 64, if value { old | mask } else { old & !mask });
    }

    pub(crate) fn counter(&self, slot: usize) -> u32 {
        u32::from_le_bytes(*self.slot(slot))
    }

    pub(crate) fn put_counter(&mut self, slot: usize, value: u32) {
        let old = self.counter(slot);
        self.count(|changes, _| changes.counter(slot, old, value));
        self.change_any(slot * 4, &value.to_le_bytes());
    }

    pub(crate) fn snapshot(&self, slot: usize) -> &[u8; SNAPSHOT_BYTES] {
        self.slot(slot)
    }

    /// Puts an encoded entry of a snapshot list, or zeros.
    pub(crate) fn put_snapshot(&mut self, slot: usize, snapshot: &[u8; SNAPSHOT_BYTES]) {
        self.change_any(slot * SNAPSHOT_BYTES, snapshot);
    }

    pub(crate) fn dead_run(&self, slot: usize) -> &[u8; DEAD_BYTES] {
        self.slot(slot)
    }

    pub(crate) fn put_dead_run(&mut self, slot: usize, run: &DeadRun) {
        self.change_dead_run(slot, &run.encode());
    }

    pub(crate) fn clear_dead_run(&mut self, slot: usize) {
        self.change_dead_run(slot, &[0; DEAD_BYTES]);
    }

    fn change_dead_run(&mut self, slot: usize, run: &[u8; DEAD_BYTES]) {
        self.count(|changes, bytes| changes.dead_run(&bytes.as_chunks().0[slot], run));
        self.change_any(slot * DEAD_BYTES, run);
    }

    /// Puts the 64-bit words of a bitmap, the first of them at word 0.
    pub(crate) fn put_words(&mut self, words: &[u64]) {
        for (at, word) in words.iter().enumerate() {
            if self.word(at) != *word {
                self.put_word(at, *word);
            }
        }
    }

    fn put_word(&mut self, word: usize, value: u64) {
        let old = self.word(word);
        self.count(|changes, _| changes.word(word, old, value));
        self.change(word * 8, &value.to_le_bytes(), |block| Delta::of_word(word, block.word(word), value));
    }

    fn change_any(&mut self, at: usize, bytes: &[u8]) {
        self.change(at, bytes, |block| Delta::of(at, &block.bytes.0[at..at + bytes.len()], bytes));
    }

    /// The hook that every change passes, with what it does to the checksums. These come first: bytes that go bad on the way
    /// into the block are seen then.
    #[inline]
    fn change(&mut self, at: usize, bytes: &[u8], delta: impl FnOnce(&MetaBlock) -> Delta) {
        assert!(self.owned, "a metadata block of a recovery point is not changed");
        if self.protection.rolls() {
            delta(self).apply(&mut self.sums.sum, &mut self.sums.tally);
        }
        self.bytes.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn scribble(&mut self, at: usize, pattern: &[u8]) {
        self.bytes.0[at..].iter_mut().zip(pattern).for_each(|(byte, flipped)| *byte ^= flipped);
    }

    /// Reads and verifies the block that `pointer` names, from its second copy if the first is bad, which is then
    /// repaired.
    pub(crate) fn load(disk: &Disk, key: NodeKey, pointer: &BlockPointer) -> Result<MetaBlock> {
        let mut first_error = None;
        for address in pointer.addresses() {
            match read_copy(disk, key, pointer, address) {
                Ok(bytes) => {
                    let block = MetaBlock::clean(bytes, key, pointer, disk.metadata);
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

    const KEY: NodeKey = NodeKey { domain: 1, object: 2, level: 3, index: 4 };

    #[test]
    #[should_panic(expected = "not changed")]
    fn a_released_block_does_not_change() {
        let mut block = MetaBlock::new(KEY, MetadataProtection::Rolling);
        block.set_bit(5, true);
        block.release();
        block.set_bit(6, true);
    }

    #[test]
    fn typed_updates() {
        let mut block = MetaBlock::new(KEY, MetadataProtection::Rolling);
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

    type Update = fn(&mut MetaBlock);

    /// Every way to change a block, on bytes that are there already.
    fn updates() -> [(&'static str, Update); 8] {
        [
            ("put_pointer", |block| block.put_pointer(63, &BlockPointer::lost(9))),
            ("put_record", |block| block.put_record(3, &[0x55; RECORD_BYTES])),
            ("set_bit", |block| block.set_bit(77, !block.bit(77))),
            ("put_counter", |block| block.put_counter(5, 0xFFFF_FFFF)),
            ("put_snapshot", |block| block.put_snapshot(1, &[0xA1; SNAPSHOT_BYTES])),
            ("put_dead_run", |block| {
                block.put_dead_run(9, &DeadRun { address: [8, 0], birth_log: 3, count: 2, is_page: true });
            }),
            ("clear_dead_run", |block| block.clear_dead_run(9)),
            ("put_words", |block| block.put_words(&[u64::MAX; 512])),
        ]
    }

    /// A block that has something everywhere.
    fn full() -> MetaBlock {
        let mut block = MetaBlock::new(KEY, MetadataProtection::Rolling);
        for slot in 0..8 {
            block.put_record(slot, &std::array::from_fn(|at| (at * 7 + slot) as u8));
        }
        block
    }

    #[test]
    fn the_checksum_follows_every_update() {
        for (name, update) in updates() {
            let mut block = full();
            update(&mut block);
            assert_ne!(block.bytes(), full().bytes(), "{name}");
            assert_eq!(block.verify(KEY), Ok(()), "{name}");
            assert_eq!(block.checksum(KEY), crc64(block.bytes()) ^ KEY.mix(), "{name}");
        }
    }

    #[test]
    fn no_update_makes_a_scribble_right() {
        let (at, unseen) = holdfast_integrity::crc64_neutral(4000 * 8).unwrap();
        for (name, update) in updates() {
            for (at, pattern, what) in [(4001, &[1][..], "checksum"), (at, &unseen[..], "tally")] {
                let mut block = full();
                block.scribble(at, pattern);
                if name != "put_words" {
                    update(&mut block);
                }
                let found = block.verify(KEY).unwrap_err();
                assert_eq!(found.what, what, "{name}");
                assert_eq!(block.to_own().verify(KEY), Err(found), "{name}");
            }
        }
    }

    #[test]
    fn the_checksum_is_bound_to_the_place() {
        let keys = [KEY, NodeKey { index: 5, ..KEY }, NodeKey { level: 2, ..KEY }, NodeKey { object: 3, ..KEY }];
        let blocks = keys.map(|key| MetaBlock::new(key, MetadataProtection::Rolling));
        let sums: std::collections::BTreeSet<u64> =
            blocks.iter().zip(keys).map(|(block, key)| block.checksum(key)).collect();
        assert_eq!(sums.len(), 4);
        assert!(blocks[0].is(KEY) && blocks[1..].iter().all(|block| !block.is(KEY) && block.verify(KEY).is_err()));
    }
}
