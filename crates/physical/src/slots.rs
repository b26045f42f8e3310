//! What each slot of a metadata block must be by itself, whatever the others are: addresses in range, types, levels, births that are not in the
//! future. Each block that is read is judged by it, and of each that is written the slots that have changed, whether or not anything is audited:
//! no sum says that a single value can be none, and `audit=none` makes no sums. The offline check judges by it, too.
//!
//! A slot that is free and not zero ([`Remains`]) means nothing: whoever reads the block gets it as it should be, and so it is written the next time
//! that something in the block changes, or when the check repairs it.

use crate::audit::owner;
use crate::base::Base;
use crate::disk::Disk;
use crate::format::blockptr::POINTER_BYTES;
use crate::format::snapshot::{DEAD_BYTES, SNAPSHOT_BYTES};
use crate::format::{
    BITS, BlockPointer, COUNTERS, DeadRun, Fault, RECORD_BYTES, RECORDS, Record, RecordKind, StoredSnapshot,
    SystemKind, room,
};
use crate::meta_block::NodeKey;
use crate::objects::{OBJECT_END, SYSTEM_END, system_kind};
use crate::tree::Trees;
use holdfast_object::{DomainId, Epoch, Error, Place, Result};
use std::ops::Range;

/// By what slots are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The newest epoch that anything can be of.
    pub(crate) newest: Epoch,
    /// Blocks of the device.
    pub(crate) blocks: u64,
}

impl Limits {
    /// What can be read of a device.
    pub(crate) fn of(disk: &Disk) -> Limits {
        Limits { newest: disk.newest(), blocks: disk.blocks() }
    }
}

/// A slot that can be none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Misfit {
    slot: usize,
    fault: Fault,
}

impl Misfit {
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    pub(crate) fn at(self, place: Place) -> Error {
        let Misfit { slot, fault: Fault { what, expected, got } } = self;
        Error::corrupt(place, format!("{what} in slot {slot}"), expected, got)
    }
}

const PART_BYTES: usize = 64;

/// Parts of a block, of [`PART_BYTES`] each: bit by bit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Parts(u64);

impl Parts {
    pub(crate) const ALL: Parts = Parts(u64::MAX);

    /// Adds those in which these bytes are.
    #[inline]
    pub(crate) fn add(&mut self, at: usize, bytes: usize) {
        let (first, last) = (at / PART_BYTES, (at + bytes).div_ceil(PART_BYTES).clamp(1, 64) - 1);
        self.0 |= u64::MAX << (first % 64) & u64::MAX >> (63 - last);
    }

    fn each(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let part = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(part)
        })
    }
}

/// Which slots of a block are judged.
#[derive(Clone, Copy)]
struct Which {
    /// Those that have something in these parts,
    parts: Parts,
    /// from this one on.
    first: usize,
}

/// Judges slots of so many bytes.
fn each<const N: usize>(
    bytes: &[u8; 4096],
    which: Which,
    judge: impl Fn(usize, &[u8; N]) -> std::result::Result<(), Fault>,
) -> std::result::Result<(), Misfit> {
    let slots = bytes.as_chunks::<N>().0;
    let mut next = which.first;
    for part in which.parts.each() {
        let (first, end) = (part * PART_BYTES / N, ((part + 1) * PART_BYTES).div_ceil(N));
        // The part before may have judged a slot that is longer than a part.
        let (from, last) = (next.max(first), end.min(slots.len()));
        for (slot, bytes) in (from..).zip(slots.get(from..last).unwrap_or_default()) {
            judge(slot, bytes).map_err(|fault| Misfit { slot, fault })?;
        }
        next = next.max(end);
    }
    Ok(())
}

/// Whether all slots in these parts of a block can be what they say.
///
/// # Errors
/// The first one that cannot.
pub(crate) fn check(bytes: &[u8; 4096], key: NodeKey, parts: Parts, limits: Limits) -> std::result::Result<(), Misfit> {
    check_from(bytes, key, Which { parts, first: 0 }, limits)
}

fn check_from(bytes: &[u8; 4096], key: NodeKey, which: Which, limits: Limits) -> std::result::Result<(), Misfit> {
    let Limits { newest, blocks } = limits;
    if let Some(below) = key.level.checked_sub(1) {
        return each(bytes, which, |_, slot| BlockPointer::check(slot, below, newest, blocks));
    }
    match kind_of(key) {
        Some(SystemKind::ObjectTable) => each(bytes, which, |slot, bytes| record(key, slot, bytes, limits)),
        Some(SystemKind::Bitmap) => bits(key, bytes, which, &room(blocks), true),
        Some(SystemKind::ObjectMap | SystemKind::OrphanMap) => bits(key, bytes, which, &(1..OBJECT_END), false),
        Some(SystemKind::References) => references(key, bytes, which, &room(blocks)),
        Some(SystemKind::SnapshotList) => {
            each(bytes, which, |_, entry| StoredSnapshot::decode(entry, newest, blocks).map(drop))
        }
        Some(SystemKind::DeadLists) => each(bytes, which, |_, run| DeadRun::decode(run, newest, blocks).map(drop)),
        None => Ok(()),
    }
}

/// What has the slots of a block of pages; of a tree block, of which object it is.
fn kind_of(key: NodeKey) -> Option<SystemKind> {
    if key.domain == DomainId::SYSTEM.0 { system_kind(key.object) } else { None }
}

/// What is in a slot that is free, or in bits and counters that nothing has: it means nothing, and should not be there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Remains {
    pub(crate) misfit: Misfit,
    /// Byte of the block from which on there should be something else.
    pub(crate) at: usize,
    pub(crate) good: Vec<u8>,
}

/// All slots of a block that cannot be what they say.
pub(crate) fn misfits(bytes: &[u8; 4096], key: NodeKey, limits: Limits) -> Vec<Misfit> {
    let (mut found, mut first) = (Vec::new(), 0);
    while let Err(misfit) = check_from(bytes, key, Which { parts: Parts::ALL, first }, limits) {
        first = misfit.slot + 1;
        found.push(misfit);
    }
    found
}

/// All remains in a block.
pub(crate) fn remains(bytes: &[u8; 4096], key: NodeKey, limits: Limits) -> Vec<Remains> {
    let remains = |misfit: Misfit| {
        let (at, good) = mended(bytes, key, misfit.slot, limits)?;
        Some(Remains { misfit, at, good })
    };
    misfits(bytes, key, limits).into_iter().filter_map(remains).collect()
}

/// In the place of each slot of a block of pointers that cannot be what it says, what is to be there: nothing if it is free, and else this.
pub(crate) fn replaced<'a>(
    bytes: &[u8; 4096],
    key: NodeKey,
    limits: Limits,
    by: impl Fn(usize) -> &'a BlockPointer,
) -> Vec<Remains> {
    let replaced = |misfit: Misfit| {
        let replaced = || (misfit.slot * POINTER_BYTES, by(misfit.slot).encode().to_vec());
        let (at, good) = mended(bytes, key, misfit.slot, limits).unwrap_or_else(replaced);
        Remains { misfit, at, good }
    };
    misfits(bytes, key, limits).into_iter().map(replaced).collect()
}

/// What should be in the place of a slot that cannot be what it says, and from which byte on, if that is known: it is free. A slot that holds
/// more than one stray write leaves, or that would be one in use, did not what tells them apart say that it is free, is not taken for free: it was in use,
/// and more than that has gone bad.
fn mended(bytes: &[u8; 4096], key: NodeKey, slot: usize, limits: Limits) -> Option<(usize, Vec<u8>)> {
    let Limits { newest, blocks } = limits;
    let emptied = |length: usize| Some((slot * length, vec![0; length]));
    if let Some(below) = key.level.checked_sub(1) {
        let pointer: &[u8; POINTER_BYTES] = bytes.as_chunks().0.get(slot)?;
        return BlockPointer::is_free(pointer, below, newest, blocks).then(|| emptied(POINTER_BYTES))?;
    }
    match kind_of(key)? {
        SystemKind::ObjectTable => {
            let record: &[u8; RECORD_BYTES] = bytes.as_chunks().0.get(slot)?;
            Record::is_free(record, newest, blocks).then(|| emptied(RECORD_BYTES))?
        }
        SystemKind::SnapshotList => {
            let entry: &[u8; SNAPSHOT_BYTES] = bytes.as_chunks().0.get(slot)?;
            StoredSnapshot::is_free(entry).then(|| emptied(SNAPSHOT_BYTES))?
        }
        SystemKind::DeadLists => {
            // None is free with one in use behind it.
            let behind: &[[u8; DEAD_BYTES]] = bytes.as_chunks().0.get(slot..)?;
            let are_free = behind.iter().all(|run| DeadRun::is_free(run, newest, blocks));
            are_free.then(|| emptied(DEAD_BYTES))?
        }
        SystemKind::ObjectMap | SystemKind::OrphanMap => {
            let word = u64::from_le_bytes(*bytes.as_chunks().0.get(slot)?);
            let first = key.index.saturating_mul(BITS).saturating_add(64 * slot as u64);
            Some((slot * 8, (word & !outside(&(1..OBJECT_END), first)).to_le_bytes().to_vec()))
        }
        SystemKind::References => emptied(size_of::<u32>()),
        // That is made anew from what there is.
        SystemKind::Bitmap => None,
    }
}

/// Whether a record is of what has this place.
fn record(key: NodeKey, slot: usize, bytes: &[u8; RECORD_BYTES], limits: Limits) -> std::result::Result<(), Fault> {
    let Some(record) = Record::decode(bytes, limits.newest, limits.blocks, false)? else { return Ok(()) };
    let id = key.index.saturating_mul(RECORDS).saturating_add(slot as u64);
    let fits = match (key.object, record.kind) {
        (0, RecordKind::System(kind)) => (1..SYSTEM_END).contains(&id) && system_kind(id) == Some(kind),
        (1.., RecordKind::Object(_)) => (1..OBJECT_END).contains(&id),
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => {
            Err(Fault::new("kind of object record", format!("one that {id} can be"), format!("{:?}", record.kind)))
        }
    }
}

/// Whether the records that have changed in a block of an object table are of objects that have: a good one in the place of another is none by itself.
///
/// # Errors
/// The first one that is not.
pub(crate) fn check_owners(
    key: NodeKey,
    parts: Parts,
    is_changed: impl Fn(u64) -> bool,
) -> std::result::Result<(), Misfit> {
    const PARTS: usize = RECORD_BYTES / PART_BYTES;
    if key.level > 0 || kind_of(key) != Some(SystemKind::ObjectTable) {
        return Ok(());
    }
    for slot in 0..RECORDS as usize {
        let id = key.index.saturating_mul(RECORDS).saturating_add(slot as u64);
        if parts.0 >> (PARTS * slot) & ((1 << PARTS) - 1) != 0 && !is_changed(id) {
            let fault = Fault::new("record", "one of an object that the epoch has changed", format!("that of {id}"));
            return Err(Misfit { slot, fault });
        }
    }
    Ok(())
}

/// Whether the bits of all numbers that are not `inside` are as they must be.
fn bits(
    key: NodeKey,
    bytes: &[u8; 4096],
    which: Which,
    inside: &Range<u64>,
    are_set: bool,
) -> std::result::Result<(), Misfit> {
    let first = key.index.saturating_mul(BITS);
    if inside.contains(&first) && inside.contains(&first.saturating_add(BITS - 1)) {
        return Ok(());
    }
    each(bytes, which, |word, bits: &[u8; 8]| {
        let first = first.saturating_add(64 * word as u64);
        let bits = u64::from_le_bytes(*bits);
        match outside(inside, first) & if are_set { !bits } else { bits } {
            0 => Ok(()),
            wrong => {
                let expected = format!(
                    "{} outside of {} to {}",
                    if are_set { "set" } else { "clear" },
                    inside.start,
                    inside.end - 1
                );
                Err(Fault::new("bit", expected, format!("number {} is not", first + u64::from(wrong.trailing_zeros()))))
            }
        }
    })
}

/// Which of 64 numbers from `first` on are not `inside`.
fn outside(inside: &Range<u64>, first: u64) -> u64 {
    let below = |end: u64| match end.saturating_sub(first) {
        many @ 0..64 => (1 << many) - 1,
        _ => u64::MAX,
    };
    below(inside.start) | !below(inside.end)
}

/// Whether nothing refers to what is no block to store something in.
fn references(key: NodeKey, bytes: &[u8; 4096], which: Which, room: &Range<u64>) -> std::result::Result<(), Misfit> {
    let first = key.index.saturating_mul(COUNTERS);
    if room.contains(&first) && room.contains(&first.saturating_add(COUNTERS - 1)) {
        return Ok(());
    }
    each(bytes, which, |slot, counter: &[u8; 4]| {
        let (block, count) = (first.saturating_add(slot as u64), u32::from_le_bytes(*counter));
        match count == 0 || room.contains(&block) {
            true => Ok(()),
            false => Err(Fault::new("references", format!("0 to block {block}"), count)),
        }
    })
}

impl Trees {
    /// Whether each slot that the epoch being built has changed can be what it says, for blocks that are about to be written.
    ///
    /// # Errors
    /// [`Error::GivenUp`]: one cannot. No recovery point is made of it.
    pub(crate) fn check_slots(&self, base: &Base, epoch: Epoch) -> Result<()> {
        let Some(misfit) = self.misfit_in_words(base) else { return Ok(()) };
        // If somebody has written to it who must not, that is told.
        self.verify_written(base)?;
        let of_slot = self.misfit.as_ref().and_then(|(key, _, misfit)| owner(*key, misfit.slot));
        base.disk.suspect(of_slot.into_iter().collect());
        Err(self.give_up_as_wrong(base, epoch, "slots that can be what they say", &[misfit]))
    }

    /// The first one that cannot.
    pub(crate) fn misfit_in_words(&self, base: &Base) -> Option<String> {
        let (key, address, misfit) = self.misfit.as_ref()?;
        let Misfit { slot, fault } = misfit;
        Some(format!("slot {slot} of {}: {fault}", key.place(&base.disk, *address)))
    }
}

#[cfg(test)]
mod tests;
