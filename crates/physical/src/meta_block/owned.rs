//! Blocks that the epoch being built has made or copied, and changes.
//!
//! What only these need of memory is here, and not in each block that is cached.

use super::{LockedBlock, MetaBlock, MetadataProtection, NodeKey, Scribble};
use crate::audit::{Audit, Counting};
use crate::format::blockptr::{BlockPointer, POINTER_BYTES};
use crate::format::snapshot::{DEAD_BYTES, SNAPSHOT_BYTES};
use crate::format::{DeadRun, RECORD_BYTES};
use crate::slots::Parts;
use holdfast_integrity::Delta;
use std::ops::Deref;
use std::sync::Arc;

/// What a block that has changed takes of memory besides, until the recovery point, to know how it is audited, and what of it is judged. A part of
/// [`crate::PROTECTION_BYTES_PER_CHANGED_BLOCK`].
pub const AUDIT_BYTES_PER_CHANGED_BLOCK: usize = size_of::<Watched>() + size_of::<Parts>();

/// A block that can be changed. Readers may have it too ([`OwnedBlock::share`]); then a change copies it first.
///
/// Invariant: what changes is counted if it is to be audited, right away and in the sums of the epoch.
pub(crate) struct OwnedBlock {
    block: Arc<MetaBlock>,
    /// It is as on the device from now on, and does not change.
    released: bool,
    /// What of it has been changed.
    changed: Parts,
    watched: Watched,
}

/// How it is known what has changed since a block was read, or made.
pub(crate) enum Watched {
    /// Not at all: nothing is audited.
    Not,
    /// Each update counts.
    Counted,
    /// By the bytes from before.
    Copied(Box<[u8; 4096]>),
}

impl Deref for OwnedBlock {
    type Target = MetaBlock;

    fn deref(&self) -> &MetaBlock {
        &self.block
    }
}

impl OwnedBlock {
    /// A new block of zeros.
    pub(crate) fn new(key: NodeKey, protection: MetadataProtection) -> OwnedBlock {
        OwnedBlock::from(MetaBlock::zeroed(key, protection), protection)
    }

    /// A block that nobody else has, to change. If it has been in memory, it is to be verified first.
    pub(crate) fn from(block: MetaBlock, protection: MetadataProtection) -> OwnedBlock {
        let watched = match protection {
            MetadataProtection::Off | MetadataProtection::Rolling => Watched::Not,
            MetadataProtection::Audited => Watched::Counted,
            MetadataProtection::Compared => Watched::Copied(Box::new(*block.bytes())),
        };
        // That of its copy is not its own.
        block.put_address(0);
        OwnedBlock { block: Arc::new(block), released: false, changed: Parts::default(), watched }
    }

    /// For whoever reads it. He keeps it as it is now.
    pub(crate) fn share(&self) -> Arc<MetaBlock> {
        self.block.clone()
    }

    pub(crate) fn into_shared(self) -> Arc<MetaBlock> {
        self.block
    }

    /// To change it. `key`: the block that the caller means.
    ///
    /// # Panics
    /// It is another one, has been released, or is to be [counted](OwnedBlock::edit_if).
    #[inline]
    pub(crate) fn edit(&mut self, key: NodeKey) -> Edit<'_> {
        assert!(!matches!(self.watched, Watched::Counted), "an update that the audit would not see");
        let edit = self.edit_with(key, None);
        edit.unwrap_or_else(|why| panic!("{key:?} is another block ({why:?}): a legal change to it would go unseen"))
    }

    /// The same, counted, for who knows what to do if it is another one.
    ///
    /// # Errors
    /// It [is](MetaBlock::is_block) another one, or has been released.
    #[inline(always)]
    pub(crate) fn edit_if<'a>(&'a mut self, key: NodeKey, audit: &'a mut Audit) -> Result<Edit<'a>, Scribble> {
        let counting = match self.watched {
            Watched::Counted => Some(Counting::of(audit, key)),
            Watched::Not | Watched::Copied(_) => None,
        };
        self.edit_with(key, counting)
    }

    #[inline(always)]
    fn edit_with<'a>(&'a mut self, key: NodeKey, counting: Option<Counting<'a>>) -> Result<Edit<'a>, Scribble> {
        self.block.is_block(key)?;
        // Of a recovery point: it is not changed.
        Scribble::unless_equal("changes that it takes", 1, u64::from(!self.released))?;
        Ok(Edit { block: Arc::make_mut(&mut self.block), changed: &mut self.changed, counting })
    }

    /// What of it has been changed, as long as it has been one to change.
    pub(crate) fn changed_parts(&self) -> Parts {
        self.changed
    }

    /// Whether it is complete, and does not change any more.
    pub(crate) fn is_released(&self) -> bool {
        self.released
    }

    /// No changes from now on: the block is as on the device. Gives what tells of changes until then, which is to be audited
    /// ([`crate::audit::Audit::complete`]).
    #[must_use]
    pub(crate) fn release(&mut self) -> Watched {
        self.released = true;
        std::mem::replace(&mut self.watched, Watched::Not)
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn scribbled(&mut self) -> &mut LockedBlock {
        Arc::make_mut(&mut self.block).scribbled()
    }

    /// The same, with the sums of its bytes taken along.
    pub(crate) fn scribbled_unseen(&mut self, at: usize, bytes: &[u8]) {
        Arc::make_mut(&mut self.block).scribbled_unseen(at, bytes);
    }

    #[cfg(test)]
    pub(crate) fn scribble(&mut self, at: usize, pattern: &[u8]) {
        self.scribbled().scribble(at, pattern, false);
    }
}

/// A block that is being changed.
pub(crate) struct Edit<'a> {
    block: &'a mut MetaBlock,
    changed: &'a mut Parts,
    counting: Option<Counting<'a>>,
}

impl Deref for Edit<'_> {
    type Target = MetaBlock;

    fn deref(&self) -> &MetaBlock {
        self.block
    }
}

impl Edit<'_> {
    /// Counts for the audit what is about to change. The bytes are those before.
    #[inline]
    fn count(&mut self, count: impl FnOnce(&mut Counting<'_>, &[u8; 4096])) {
        if let Some(counting) = &mut self.counting {
            count(counting, self.block.bytes());
        }
    }

    /// [`MetaBlock::change`], which is noted.
    #[inline]
    fn change(&mut self, at: usize, bytes: &[u8], delta: impl FnOnce(&MetaBlock) -> Delta) {
        self.changed.add(at, bytes.len());
        self.block.change(at, bytes, delta);
    }

    #[inline]
    pub(crate) fn put_pointer(&mut self, slot: usize, pointer: &BlockPointer) {
        self.put_encoded(slot, pointer.encode());
    }

    /// An encoded pointer, whatever it says.
    #[inline]
    pub(crate) fn put_encoded(&mut self, slot: usize, new: [u8; POINTER_BYTES]) {
        self.count(|counting, bytes| counting.pointer(&bytes.as_chunks().0[slot], &new));
        self.change(slot * POINTER_BYTES, &new, |block| Delta::of_slot(slot, block.slot::<POINTER_BYTES>(slot), &new));
    }

    /// Puts an encoded record, or zeros.
    pub(crate) fn put_record(&mut self, slot: usize, record: &[u8; RECORD_BYTES]) {
        self.count(|counting, bytes| counting.record(slot, &bytes.as_chunks().0[slot], record));
        self.change_any(slot * RECORD_BYTES, record);
    }

    pub(crate) fn set_bit(&mut self, bit: usize, value: bool) {
        let (old, mask) = (self.block.word(bit / 64), 1u64 << (bit % 64));
        self.put_word(bit / 64, if value { old | mask } else { old & !mask });
    }

    pub(crate) fn put_counter(&mut self, slot: usize, value: u32) {
        let old = self.block.counter(slot);
        self.count(|counting, _| counting.counter(slot, old, value));
        // As a part of its word, of which a change costs a quarter of that of bytes anywhere.
        let (word, shift) = (slot / 2, slot % 2 * 32);
        self.change(slot * 4, &value.to_le_bytes(), |block| {
            let before = block.word(word);
            Delta::of_word(word, before, before ^ u64::from(block.counter(slot) ^ value) << shift)
        });
    }

    /// Puts an encoded entry of a snapshot list, or zeros.
    pub(crate) fn put_snapshot(&mut self, slot: usize, snapshot: &[u8; SNAPSHOT_BYTES]) {
        self.count(|counting, bytes| counting.snapshot(slot, &bytes.as_chunks().0[slot], snapshot));
        self.change_any(slot * SNAPSHOT_BYTES, snapshot);
    }

    pub(crate) fn put_dead_run(&mut self, slot: usize, run: &DeadRun) {
        self.change_dead_run(slot, &run.encode());
    }

    pub(crate) fn clear_dead_run(&mut self, slot: usize) {
        self.change_dead_run(slot, &[0; DEAD_BYTES]);
    }

    /// An encoded run, whatever it says.
    pub(crate) fn change_dead_run(&mut self, slot: usize, run: &[u8; DEAD_BYTES]) {
        self.count(|counting, bytes| counting.dead_run(&bytes.as_chunks().0[slot], run));
        self.change_any(slot * DEAD_BYTES, run);
    }

    /// Puts the 64-bit words of a bitmap, the first of them at word 0.
    pub(crate) fn put_words(&mut self, words: &[u64]) {
        for (at, word) in words.iter().enumerate() {
            if self.block.word(at) != *word {
                self.put_word(at, *word);
            }
        }
    }

    fn put_word(&mut self, word: usize, value: u64) {
        let old = self.block.word(word);
        self.count(|counting, _| counting.word(word, old, value));
        self.change(word * 8, &value.to_le_bytes(), |block| Delta::of_word(word, block.word(word), value));
    }

    fn change_any(&mut self, at: usize, bytes: &[u8]) {
        self.change(at, bytes, |block| Delta::of(at, &block.bytes.0[at..at + bytes.len()], bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_integrity::crc64;
    use holdfast_object::Side;

    const KEY: NodeKey = NodeKey { domain: 1, object: 2, level: 3, index: 4 };

    #[test]
    fn a_released_block_does_not_change() {
        let mut block = OwnedBlock::new(KEY, MetadataProtection::Rolling);
        block.edit(KEY).set_bit(5, true);
        let _ = block.release();
        assert_eq!(block.edit_with(KEY, None).err().unwrap().what, "changes that it takes");
    }

    #[test]
    #[should_panic(expected = "another block")]
    fn another_block_than_meant_does_not_change() {
        OwnedBlock::new(KEY, MetadataProtection::Rolling).edit(NodeKey { index: 5, ..KEY }).set_bit(5, true);
    }

    #[test]
    #[should_panic(expected = "an update that the audit would not see")]
    fn a_block_that_is_counted_does_not_change_uncounted() {
        OwnedBlock::new(KEY, MetadataProtection::Audited).edit(KEY).set_bit(5, true);
    }

    #[test]
    fn readers_keep_what_they_have() {
        let mut block = OwnedBlock::new(KEY, MetadataProtection::Rolling);
        let before = block.share();
        block.edit(KEY).set_bit(5, true);
        assert!(before.is_zero() && block.bit(5));
    }

    #[test]
    fn typed_updates() {
        let mut owned = OwnedBlock::new(KEY, MetadataProtection::Rolling);
        let mut block = owned.edit(KEY);
        assert!(block.is_zero());
        block.set_bit(4096 * 8 - 1, true);
        assert!(block.bit(4096 * 8 - 1) && !block.is_zero());
        block.set_bit(4096 * 8 - 1, false);
        block.put_counter(1023, 7);
        assert_eq!(block.counter(1023), 7);
        block.put_counter(1023, 0);
        assert!(block.is_zero());
        let pointer = BlockPointer::lost(9, Side::Memory);
        block.put_pointer(63, &pointer);
        assert_eq!(block.pointer(63), pointer);
        assert!(block.pointer_kind_is_hole(62) && !block.pointer_kind_is_hole(63));
    }

    type Update = fn(&mut Edit<'_>);

    /// Every way to change a block, on bytes that are there already.
    fn updates() -> [(&'static str, Update); 8] {
        [
            ("put_pointer", |block| block.put_pointer(63, &BlockPointer::lost(9, Side::Memory))),
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
    fn full() -> OwnedBlock {
        let mut block = OwnedBlock::new(KEY, MetadataProtection::Rolling);
        for slot in 0..8 {
            block.edit(KEY).put_record(slot, &std::array::from_fn(|at| (at * 7 + slot) as u8));
        }
        block
    }

    #[test]
    fn the_checksum_follows_every_update() {
        for (name, update) in updates() {
            let mut block = full();
            update(&mut block.edit(KEY));
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
                    update(&mut block.edit(KEY));
                }
                let found = block.verify(KEY).unwrap_err();
                assert_eq!(found.what, what, "{name}");
                assert_eq!(MetaBlock::clone(&block).verify(KEY), Err(found), "{name}");
            }
        }
    }

    /// What keeps the address of its bytes is ordinary memory.
    #[test]
    fn nothing_is_written_or_freed_where_the_memory_is_not_the_block_s() {
        let another = NodeKey { index: 5, ..KEY };
        let mut other = OwnedBlock::new(another, MetadataProtection::Rolling);
        other.edit(another).put_record(0, &[0x55; RECORD_BYTES]);
        let bytes = *other.bytes();
        let ordinary = crate::disk::Block::zeroed();
        let address = |bytes: &[u8; 4096]| bytes.as_ptr().expose_provenance();
        let of_other = address(other.bytes());
        let places = [
            ("another block's", of_other),
            ("the middle of one", of_other + 64),
            ("a table's", of_other >> 21 << 21),
            ("nobody's", address(&ordinary.0)),
            ("none", 1 << 46),
            ("no address", 1 << 62),
        ];
        for (place, address) in places {
            for (name, update) in updates() {
                let mut block = full();
                block.scribbled().misplace(address);
                let mut found = None;
                match block.edit_with(KEY, None) {
                    Ok(mut edit) => update(&mut edit),
                    Err(scribble) => found = Some(scribble),
                }
                let found = found.unwrap_or_else(|| panic!("{place}: {name} goes there"));
                assert_eq!((found.what, block.verify(KEY)), ("owner of the block's place", Err(found)), "{place}");
                assert_eq!(MetaBlock::clone(&block).verify(KEY).unwrap_err().what, found.what, "{place}");
                if place != "another block's" {
                    block.scribbled().write(0, &[0xFF; 64]);
                }
                drop(block);
                assert!(*other.bytes() == bytes && ordinary.0 == [0; 4096], "{place}, {name}");
            }
            let blocks: Vec<OwnedBlock> = (0..20).map(|_| full()).collect();
            assert!(blocks.iter().all(|block| address != block.bytes().as_ptr().addr()), "{place}: given to two");
        }
        other.edit(another).set_bit(5, true);
        assert_eq!(other.verify(another), Ok(()));
    }

    #[test]
    fn the_checksum_is_bound_to_the_place() {
        let keys = [KEY, NodeKey { index: 5, ..KEY }, NodeKey { level: 2, ..KEY }, NodeKey { object: 3, ..KEY }];
        let blocks = keys.map(|key| OwnedBlock::new(key, MetadataProtection::Rolling));
        let sums: std::collections::BTreeSet<u64> =
            blocks.iter().zip(keys).map(|(block, key)| block.checksum(key)).collect();
        assert_eq!(sums.len(), 4);
        assert!(
            blocks[0].is_block(KEY).is_ok()
                && blocks[1..].iter().all(|block| block.is_block(KEY).is_err() && block.verify(KEY).is_err())
        );
    }
}
