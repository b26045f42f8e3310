//! Metadata blocks in memory. Their bytes change only through the typed methods of [`Edit`], and each of those passes one hook.
//!
//! A block keeps its checksum from the device to memory and back (*High-Performance Metadata Integrity Protection in the WAFL
//! Copy-on-Write File System*, FAST 2017, §4): it is verified when read, taken over, changed with the bytes from what changes alone,
//! and is what the parent of the block gets when it is written. It is never made anew from bytes that have been in memory, so what else
//! writes to them shows: when a clean block is copied to be changed, and when a block has been written, before the superblock that would
//! name it.

mod owned;

pub use owned::AUDIT_BYTES_PER_CHANGED_BLOCK;
pub(crate) use owned::{Edit, OwnedBlock, Watched};

use crate::counters::Own;
use crate::disk::{Block, Disk, RawBlock};
use crate::format::blockptr::{BlockPointer, POINTER_BYTES};
use crate::format::record::RecordGlance;
use crate::format::snapshot::{DEAD_BYTES, SNAPSHOT_BYTES};
use crate::format::{POINTERS, RECORD_BYTES, RECORDS};
use crate::locked_block::{LockedBlock, Slot};
use crate::objects::{BITMAP, system_key};
use crate::own_records::misled;
use crate::slots::{self, Limits, Misfit, Parts, Remains};
use crate::words;
use holdfast_integrity::{
    CRC64_OF_ZEROS, Delta, Mismatch, Unverified, Verified, crc64, crc64_and_tally, identity_mix, identity_tag,
    prefetch_line, tally,
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
    #[inline]
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
    /// For measurements only: the same audit, of what a comparison with a copy made before a block's first change gives, as Recon does it.
    Compared,
}

impl MetadataProtection {
    /// Whether blocks have sums from the device to memory and back, and are verified.
    pub(crate) fn rolls(self) -> bool {
        self != MetadataProtection::Off
    }

    /// Whether what changes is audited.
    pub(crate) fn audits(self) -> bool {
        matches!(self, MetadataProtection::Audited | MetadataProtection::Compared)
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

    /// A block that is to be changed is not there.
    pub(crate) fn that_misses_a_block() -> Scribble {
        Scribble::that_misses("number of such blocks of the epoch being built")
    }

    /// What there is one of is not there.
    pub(crate) fn that_misses(what: &'static str) -> Scribble {
        Scribble { what, expected: 1, got: 0 }
    }

    pub(crate) fn at(self, place: Place) -> Corruption {
        let Scribble { what, expected, got } = self;
        let what = format!("{what} in memory, to which somebody has written who must not");
        Corruption { place, what, expected: format!("{expected:#018x}"), got: format!("{got:#018x}") }
    }
}

/// A block of metadata: of pointers, records, bits or counters. There is no `&mut [u8]`, and the memory is locked where the process protects it.
///
/// Invariants:
/// - only what an [`OwnedBlock`] has changes;
/// - with [`MetadataProtection::rolls`], `sums` are those of the bytes as they were read, and of all legal changes since. If the bytes are others, somebody
///   else has written to them ([`MetaBlock::verify`]).
#[derive(Clone)]
pub(crate) struct MetaBlock {
    bytes: LockedBlock,
    sums: Sums,
}

/// What is known of a block beside its bytes.
#[derive(Clone, Copy)]
struct Sums {
    /// The checksum by which the block's parent knows it: CRC-64, bound to the block's place.
    sum: u64,
    /// A second sum, which sees what a CRC cannot.
    tally: u32,
    /// Which block this is: 32 bits of the mix of its key. [`BELIEVED`] without protection.
    tag: u32,
}

/// Instead of the tag: the block has no sums. Neither what is left of bytes that were cleared or set, nor the tag of any block ([`tag_of`]).
const BELIEVED: u32 = 0x6265_6c76;

/// Tag of the block with this mix.
fn tag_of(mix: u64) -> u32 {
    match identity_tag(mix) {
        BELIEVED => !BELIEVED,
        tag => tag,
    }
}

impl Sums {
    const BELIEVED: Sums = Sums { sum: 0, tally: 0, tag: BELIEVED };
}

/// What the protection of a block takes of memory: its sums, with its tag, and when it was verified ([`crate::node_cache`]).
pub const PROTECTION_BYTES_PER_BLOCK: usize = size_of::<MetaBlock>() - size_of::<LockedBlock>() + size_of::<u32>();

// The goal of the measurements: 0.5 % of each cached block.
const _: () = assert!(200 * PROTECTION_BYTES_PER_BLOCK <= size_of::<Block>());

impl MetaBlock {
    /// A block of zeros.
    fn zeroed(key: NodeKey, protection: MetadataProtection) -> MetaBlock {
        let of_zeros = |mix: u64| Sums { sum: CRC64_OF_ZEROS ^ mix, tally: 0, tag: tag_of(mix) };
        let sums = if protection.rolls() { of_zeros(key.mix()) } else { Sums::BELIEVED };
        MetaBlock { bytes: LockedBlock::zeroed(key), sums }
    }

    /// A block as read. Only verified bytes become one, and their checksum comes with them.
    pub(crate) fn clean(
        bytes: Verified<RawBlock>,
        key: NodeKey,
        pointer: &BlockPointer,
        protection: MetadataProtection,
    ) -> MetaBlock {
        let read = bytes.into_inner().0;
        let bytes = LockedBlock::new(&read.0, key, pointer.address[0]);
        if !protection.rolls() {
            return MetaBlock { bytes, sums: Sums::BELIEVED };
        }
        let mix = key.mix();
        let sum = match pointer.sums.primary.as_u64() {
            Some(sum) if pointer.seeded => sum,
            _ => crc64(&read.0) ^ mix,
        };
        let sums = Sums { sum, tally: tally(&read.0), tag: tag_of(mix) };
        MetaBlock { bytes, sums }
    }

    /// It is at this address on the device from now on. Gives the place that it has in memory.
    pub(crate) fn put_address(&self, address: u64) -> Slot {
        self.bytes.put_address(address);
        self.bytes.slot()
    }

    /// The place that it has in memory.
    pub(crate) fn slot_in_memory(&self) -> Slot {
        self.bytes.slot()
    }

    /// Whether it has sums.
    fn rolls(&self) -> bool {
        self.sums.tag != BELIEVED
    }

    /// Whether the bytes are what was read and legally changed since.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn verify(&self, key: NodeKey) -> std::result::Result<(), Scribble> {
        if !self.rolls() {
            return Ok(());
        }
        let mix = key.mix();
        self.has_tag(tag_of(mix))?;
        self.is_at_home(key)?;
        let (crc, tally) = crc64_and_tally(self.bytes());
        Scribble::between((self.sums.sum, self.sums.tally), (crc ^ mix, tally))
    }

    /// Which of its words has gone bad, by its sums alone.
    pub(crate) fn bad(&self, key: NodeKey) -> words::Bad {
        let of_block = words::Sums::new(self.sums.sum ^ key.mix(), self.sums.tally);
        of_block.bad(&std::array::from_fn(|at| u64::from_le_bytes(self.bytes().as_chunks().0[at])))
    }

    /// Whether this is the block of that identity.
    ///
    /// # Errors
    /// It is another one.
    pub(crate) fn is_block(&self, key: NodeKey) -> std::result::Result<(), Scribble> {
        if !self.rolls() {
            return Ok(());
        }
        self.has_tag(tag_of(key.mix()))?;
        self.is_at_home(key)
    }

    /// Whether the memory that it has is that block's: the address of it is in ordinary memory. Through another one somebody else's would be read, and
    /// written to.
    ///
    /// # Errors
    /// It is not, and may be none that can be read.
    #[inline]
    pub(crate) fn is_at_home(&self, key: NodeKey) -> std::result::Result<(), Scribble> {
        self.bytes.is_home_of(key).map_err(|other| Scribble {
            what: "owner of the block's place",
            expected: key.mix(),
            got: other.map_or(0, NodeKey::mix),
        })
    }

    fn has_tag(&self, tag: u32) -> std::result::Result<(), Scribble> {
        Scribble::unless_equal("identity", tag.into(), self.sums.tag.into())
    }

    pub(crate) fn bytes(&self) -> &[u8; 4096] {
        &self.bytes.0
    }

    /// The checksum by which the block's parent knows it.
    pub(crate) fn checksum(&self, key: NodeKey) -> u64 {
        if self.rolls() { self.sums.sum } else { crc64(self.bytes()) ^ key.mix() }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.bytes.0.as_chunks::<8>().0.iter().all(|word| *word == [0; 8])
    }

    fn slot<const N: usize>(&self, slot: usize) -> &[u8; N] {
        &self.bytes.0.as_chunks::<N>().0[slot]
    }

    /// What the record in a slot says of its pages.
    pub(crate) fn page_bound(&self, slot: usize) -> u64 {
        RecordGlance::at(self.slot(slot)).page_bound
    }

    pub(crate) fn pointer(&self, slot: usize) -> BlockPointer {
        BlockPointer::decode(self.slot(slot))
    }

    /// Asks the processor for the pointer, as the block is verified soon, and then each of its pointers looked at.
    pub(crate) fn prefetch_pointer(&self, slot: usize) {
        prefetch_line(self.bytes(), slot * POINTER_BYTES);
    }

    pub(crate) fn pointer_kind_is_hole(&self, slot: usize) -> bool {
        BlockPointer::encodes_hole(self.slot(slot))
    }

    pub(crate) fn record(&self, slot: usize) -> &[u8; RECORD_BYTES] {
        self.slot(slot)
    }

    pub(crate) fn word(&self, word: usize) -> u64 {
        u64::from_le_bytes(*self.slot(word))
    }

    pub(crate) fn bit(&self, bit: usize) -> bool {
        self.word(bit / 64) >> (bit % 64) & 1 == 1
    }

    pub(crate) fn counter(&self, slot: usize) -> u32 {
        u32::from_le_bytes(*self.slot(slot))
    }

    pub(crate) fn snapshot(&self, slot: usize) -> &[u8; SNAPSHOT_BYTES] {
        self.slot(slot)
    }

    pub(crate) fn dead_run(&self, slot: usize) -> &[u8; DEAD_BYTES] {
        self.slot(slot)
    }

    /// The hook that every change passes, with what it does to the checksums. These come first: bytes that go bad on the way
    /// into the block are seen then. The window that the bytes are written in is opened around the batch, which is cheaper.
    #[inline]
    fn change(&mut self, at: usize, bytes: &[u8], delta: impl FnOnce(&MetaBlock) -> Delta) {
        if self.rolls() {
            delta(self).apply(&mut self.sums.sum, &mut self.sums.tally);
        }
        self.bytes.write(at, bytes);
    }

    /// Past the hook, as nobody may: see [`crate::scribble`].
    pub(crate) fn scribbled(&mut self) -> &mut LockedBlock {
        &mut self.bytes
    }

    /// The same, with its sums taken along, as if they did not see it, and nothing of it is counted.
    pub(crate) fn scribbled_unseen(&mut self, at: usize, bytes: &[u8]) {
        self.put_over(at, bytes);
    }

    fn put_over(&mut self, at: usize, bytes: &[u8]) {
        self.change(at, bytes, |block| Delta::of(at, &block.bytes.0[at..at + bytes.len()], bytes));
    }

    #[cfg(test)]
    pub(crate) fn scribble(&mut self, at: usize, pattern: &[u8]) {
        self.scribbled().scribble(at, pattern, false);
    }

    /// Reads and verifies the block that `pointer` names, from its second copy if the first is bad, which is then
    /// repaired if it `is_named` by the pointer ([`Trees::is_named`](crate::tree::Trees::is_named), whose errors it has). Nor is the device blamed
    /// if there is none and the pointer may come from memory that has gone bad (`is_in_doubt`).
    pub(crate) fn load(
        disk: &Disk,
        key: NodeKey,
        pointer: &BlockPointer,
        is_named: impl FnOnce() -> Result<bool>,
        is_in_doubt: impl FnOnce() -> bool,
    ) -> Result<MetaBlock> {
        let mut first_error = None;
        for address in pointer.addresses() {
            match read_copy(disk, key, pointer, address) {
                Ok(bytes) => {
                    let mut block = MetaBlock::clean(bytes, key, pointer, disk.metadata);
                    if first_error.is_some() && is_named()? {
                        disk.repair(pointer.address[0], block.bytes(), &key.place(disk, pointer.address[0]));
                    }
                    if key.domain == DomainId::SYSTEM.0 {
                        pointer.addresses().for_each(|address| disk.is_readable(address));
                    }
                    block.settle(disk, key, address)?;
                    return Ok(block);
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let error = match first_error {
            Some(error) if is_in_doubt() => return Err(misled(disk, key.place(disk, pointer.address[0]), &error)),
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
        // That has no place of its own.
        if let Error::Device(_) = error {
            disk.note_damaged(&key.place(disk, pointer.address[0]));
        }
        Err(error)
    }

    /// Judges what can be judged within the block, which has just been read: each of its slots. Of one that is free nothing is left.
    ///
    /// # Errors
    /// One cannot be what it says, and each of the others is believed as it is: of a block of pointers, or of the bitmap. Of other blocks that is
    /// told, and costs only who asks for that slot: whoever takes something from it decodes it.
    pub(crate) fn settle(&mut self, disk: &Disk, key: NodeKey, address: u64) -> Result<()> {
        let limits = Limits::of(disk);
        let Err(misfit) = slots::check(self.bytes(), key, Parts::ALL, limits) else { return Ok(()) };
        let error = misfit.clone().at(key.place(disk, address));
        let remains = slots::remains(self.bytes(), key, limits);
        let is_about_remains = remains.first().is_some_and(|first| first.misfit == misfit);
        self.clear(&remains);
        let is_believed = key.level > 0 || key.object_key() == system_key(BITMAP);
        match is_believed.then(|| slots::check(self.bytes(), key, Parts::ALL, limits)) {
            Some(Err(misfit)) => {
                let error = misfit.at(key.place(disk, address));
                disk.note_unrepaired(address, &error);
                return Err(error);
            }
            _ if is_about_remains => disk.note_remains(address, &error),
            _ if Own::of(key.object_key()) == Own::Tables && key.domain == DomainId::SYSTEM.0 => {
                for slot in slots::misfits(self.bytes(), key, limits).iter().map(Misfit::slot) {
                    let object = ObjectId(key.index * RECORDS + slot as u64);
                    disk.counters.damaged(ObjectKey { domain: DomainId((key.object / 16) as u16), object });
                }
                disk.count_unrepaired(address, &error);
            }
            _ => disk.note_unrepaired(address, &error),
        }
        Ok(())
    }

    /// Takes out what means nothing.
    pub(crate) fn clear(&mut self, remains: &[Remains]) {
        remains.iter().for_each(|remains| self.put_over(remains.at, &remains.good));
    }
}

impl Drop for MetaBlock {
    fn drop(&mut self) {
        if self.rolls() && self.bytes.home_of().is_none_or(|key| tag_of(key.mix()) != self.sums.tag) {
            self.bytes.forget();
        }
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
