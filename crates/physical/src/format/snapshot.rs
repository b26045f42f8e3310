//! Snapshots of a domain, and the blocks that only they have.

use super::fields::{Fields, fields};
use super::record::{Record, RecordKind, SystemKind};
use super::{Fault, LABEL_BLOCKS, RECORD_BYTES, expect_zero, split_address};
use holdfast_object::{Epoch, SNAPSHOT_NAME_MAX, SnapshotId, Timestamp, check_snapshot_name};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an entry of a snapshot list.
pub(crate) const SNAPSHOT_BYTES: usize = 1024;
/// Entries in a page of a snapshot list.
pub(crate) const SNAPSHOTS: u64 = 4;
/// Largest number that a snapshot of a store can have; new ones get none above [`SnapshotId::MAX`].
const NUMBER_MAX: SnapshotId = SnapshotId(0xFFFE);
/// Bytes of a run in a dead list.
pub(crate) const DEAD_BYTES: usize = 32;
/// Runs in a page of a dead list.
pub(crate) const DEAD_RUNS: u64 = 128;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawSnapshot {
    id: U16,
    name_bytes: U16,
    nanos: U32,
    secs: I64,
    epoch: U64,
    objects: U64,
    metadata_before: U64,
    flags: U32,
    reserved: [u8; 84],
    name: [u8; 256],
    reserved_2: [u8; 128],
    table: [u8; RECORD_BYTES],
}
const _: () = assert!(size_of::<RawSnapshot>() == SNAPSHOT_BYTES);
const _: () = assert!(std::mem::offset_of!(RawSnapshot, flags) == 40);
const _: () = assert!(std::mem::offset_of!(RawSnapshot, name) == 128);
const _: () = assert!(std::mem::offset_of!(RawSnapshot, table) == 512);

pub(crate) const FIELDS: Fields = fields!(RawSnapshot {
    id,
    name_bytes,
    nanos,
    secs,
    epoch,
    objects,
    metadata_before,
    flags,
    reserved,
    name,
    reserved_2,
    table,
});

const FLAG_DELETED: u32 = 1;

/// An entry of a snapshot list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StoredSnapshot {
    pub(crate) id: SnapshotId,
    pub(crate) name: String,
    pub(crate) created: Timestamp,
    /// The recovery point that it keeps.
    pub(crate) epoch: Epoch,
    pub(crate) objects: u64,
    /// When it was made: blocks of metadata, two copies counted as one, that the snapshot before it and the domain both had.
    pub(crate) metadata_before: u64,
    /// It is deleted, and part of its dead list is left. Some of what its trees name may be free.
    pub(crate) is_deleted: bool,
    /// Record of the domain's object table at that recovery point.
    pub(crate) table: Record,
}

impl StoredSnapshot {
    pub(crate) fn encode(&self) -> [u8; SNAPSHOT_BYTES] {
        let mut name = [0; 256];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let raw = RawSnapshot {
            id: U16::new(self.id.0),
            name_bytes: U16::new(self.name.len() as u16),
            nanos: U32::new(self.created.nanos),
            secs: I64::new(self.created.secs),
            epoch: U64::new(self.epoch),
            objects: U64::new(self.objects),
            metadata_before: U64::new(self.metadata_before),
            flags: U32::new(if self.is_deleted { FLAG_DELETED } else { 0 }),
            reserved: [0; 84],
            name,
            reserved_2: [0; 128],
            table: self.table.encode(),
        };
        zerocopy::transmute!(raw)
    }

    /// Whether an entry says that it is free, and holds no more than one stray write: one in use has more.
    pub(crate) fn is_free(bytes: &[u8; SNAPSHOT_BYTES]) -> bool {
        let raw: &RawSnapshot = zerocopy::transmute_ref!(bytes);
        raw.id.get() == SnapshotId::LIVE.0 && super::is_stray(bytes)
    }

    /// What can be made out of an entry in use that cannot be what it says: number and name, each if it could be one.
    pub(crate) fn glance(bytes: &[u8; SNAPSHOT_BYTES]) -> (Option<SnapshotId>, Option<String>) {
        let raw: &RawSnapshot = zerocopy::transmute_ref!(bytes);
        let id = SnapshotId(raw.id.get());
        let name = raw.name.get(..usize::from(raw.name_bytes.get())).and_then(|name| std::str::from_utf8(name).ok());
        let name = name.filter(|name| check_snapshot_name(name).is_ok()).map(str::to_string);
        ((id != SnapshotId::LIVE && id <= NUMBER_MAX).then_some(id), name)
    }

    /// The table's record in such an entry, if it can be one of a recovery point no newer than `epoch`.
    pub(crate) fn glance_table(bytes: &[u8; SNAPSHOT_BYTES], epoch: Epoch, blocks: u64) -> Option<Record> {
        let raw: &RawSnapshot = zerocopy::transmute_ref!(bytes);
        let record = Record::decode(&raw.table, epoch, blocks, false).ok()??;
        (record.kind == RecordKind::System(SystemKind::ObjectTable)).then_some(record)
    }

    /// Decodes and checks an entry; `None` if it is free. `epoch` and `blocks` as for a block pointer.
    pub(crate) fn decode(
        bytes: &[u8; SNAPSHOT_BYTES],
        epoch: Epoch,
        blocks: u64,
    ) -> Result<Option<StoredSnapshot>, Fault> {
        let raw: RawSnapshot = zerocopy::transmute!(*bytes);
        let id = SnapshotId(raw.id.get());
        if id == SnapshotId::LIVE {
            expect_zero("free entry of the snapshot list", bytes)?;
            return Ok(None);
        }
        if id > NUMBER_MAX {
            return Err(Fault::new("number of snapshot", format!("at most {}", NUMBER_MAX.0), id.0));
        }
        if raw.flags.get() & !FLAG_DELETED != 0 {
            return Err(Fault::new("flags of snapshot", "0 or 1", raw.flags));
        }
        expect_zero("reserved bytes of snapshot", &raw.reserved)?;
        expect_zero("reserved bytes of snapshot", &raw.reserved_2)?;
        let length = usize::from(raw.name_bytes.get());
        let Some((name, rest)) = raw.name.split_at_checked(length).filter(|_| length <= SNAPSHOT_NAME_MAX) else {
            return Err(Fault::new("length of snapshot name", format!("at most {SNAPSHOT_NAME_MAX}"), length));
        };
        expect_zero("bytes behind snapshot name", rest)?;
        let name = std::str::from_utf8(name).ok().filter(|name| check_snapshot_name(name).is_ok());
        let Some(name) = name else { return Err(Fault::new("name of snapshot", "one it can have", "another")) };
        let kept = raw.epoch.get();
        if kept == 0 || kept >= epoch {
            return Err(Fault::new("epoch of snapshot", format!("1 to {}", epoch.saturating_sub(1)), kept));
        }
        if raw.nanos.get() >= 1_000_000_000 {
            return Err(Fault::new("nanoseconds", "below 10^9", raw.nanos));
        }
        let table = match Record::decode(&raw.table, kept, blocks, false)? {
            Some(record) if record.kind == RecordKind::System(SystemKind::ObjectTable) => record,
            _ => return Err(Fault::new("record in snapshot", "an object table's", "another")),
        };
        Ok(Some(StoredSnapshot {
            id,
            name: name.to_string(),
            created: Timestamp { secs: raw.secs.get(), nanos: raw.nanos.get() },
            epoch: kept,
            objects: raw.objects.get(),
            metadata_before: raw.metadata_before.get(),
            is_deleted: raw.flags.get() == FLAG_DELETED,
            table,
        }))
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawDead {
    address: [U64; 2],
    birth_log: U64,
    count: U32,
    flags: U32,
}
const _: () = assert!(size_of::<RawDead>() == DEAD_BYTES);

pub(crate) const DEAD_FIELDS: Fields = fields!(RawDead { address, birth_log, count, flags });

const FLAG_PAGE: u32 = 1;

/// Neighbouring blocks that the domain does not have any more, and its newest snapshot has. Where there are second copies
/// they are neighbours too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeadRun {
    pub(crate) address: [u64; 2],
    /// Logical birth of the pointers that named them.
    pub(crate) birth_log: Epoch,
    pub(crate) count: u32,
    /// Pages of objects, which other pointers may name too.
    pub(crate) is_page: bool,
}

impl DeadRun {
    /// Appends `next` if it is the run's neighbour and of one kind with it.
    pub(crate) fn merge(&mut self, next: &DeadRun) -> bool {
        let count = u64::from(self.count);
        let follows = |copy: usize| match (self.address[copy], next.address[copy]) {
            (0, 0) => true,
            (0, _) | (_, 0) => false,
            (address, next) => address + count == next,
        };
        let same = self.birth_log == next.birth_log && self.is_page == next.is_page;
        let Some(together) = self.count.checked_add(next.count).filter(|_| same && follows(0) && follows(1)) else {
            return false;
        };
        self.count = together;
        true
    }

    /// Takes this many blocks off its end, of those that it has more of.
    pub(crate) fn split_off(&mut self, count: u32) -> DeadRun {
        assert!(0 < count && count < self.count, "{count} of {self:?}");
        self.count -= count;
        let behind = |address: u64| if address == 0 { 0 } else { address + u64::from(self.count) };
        DeadRun { address: self.address.map(behind), count, ..*self }
    }

    /// Decodes without judging; free bytes are a run of no blocks.
    pub(crate) fn glance(bytes: &[u8; DEAD_BYTES]) -> DeadRun {
        let raw: &RawDead = zerocopy::transmute_ref!(bytes);
        DeadRun {
            address: raw.address.map(U64::get),
            birth_log: raw.birth_log.get(),
            count: raw.count.get(),
            is_page: raw.flags.get() & FLAG_PAGE != 0,
        }
    }

    /// The blocks, with both addresses.
    pub(crate) fn blocks(self) -> impl Iterator<Item = [u64; 2]> {
        let DeadRun { address: [first, second], count, .. } = self;
        (0..u64::from(count)).map(move |at| [first + at, if second == 0 { 0 } else { second + at }])
    }

    /// Blocks of the device, copies counted.
    pub(crate) fn blocks_in_all(&self) -> u64 {
        u64::from(self.count) * if self.address[1] == 0 { 1 } else { 2 }
    }

    pub(crate) fn encode(&self) -> [u8; DEAD_BYTES] {
        let raw = RawDead {
            address: self.address.map(U64::new),
            birth_log: U64::new(self.birth_log),
            count: U32::new(self.count),
            flags: U32::new(if self.is_page { FLAG_PAGE } else { 0 }),
        };
        zerocopy::transmute!(raw)
    }

    /// Whether a place says that it is free, holds no more than one stray write, and would not be a run if it did not say so. `epoch` and `blocks` as for [`DeadRun::decode`].
    pub(crate) fn is_free(bytes: &[u8; DEAD_BYTES], epoch: Epoch, blocks: u64) -> bool {
        let run = DeadRun::glance(bytes);
        let is_used = || DeadRun::decode(&DeadRun { count: 1, ..run }.encode(), epoch, blocks).is_ok();
        run.count == 0 && (*bytes == [0; DEAD_BYTES] || super::is_stray(bytes) && !is_used())
    }

    /// Decodes and checks; `None` if the place is free.
    pub(crate) fn decode(bytes: &[u8; DEAD_BYTES], epoch: Epoch, blocks: u64) -> Result<Option<DeadRun>, Fault> {
        let raw: RawDead = zerocopy::transmute!(*bytes);
        let run = DeadRun::glance(bytes);
        if run.count == 0 {
            expect_zero("free run of a dead list", bytes)?;
            return Ok(None);
        }
        if raw.flags.get() & !FLAG_PAGE != 0 {
            return Err(Fault::new("flags of dead run", "0 or 1", raw.flags));
        }
        if run.birth_log == 0 || run.birth_log > epoch {
            return Err(Fault::new("birth of dead run", format!("1 to {epoch}"), run.birth_log));
        }
        for (copy, &address) in run.address.iter().enumerate() {
            if address == 0 && copy == 1 {
                continue;
            }
            let (device, block) = split_address(address);
            let last = block.saturating_add(u64::from(run.count));
            if device != 0 || block < 2 * LABEL_BLOCKS || last > blocks.saturating_sub(2 * LABEL_BLOCKS) {
                let expected = format!("{} to {} on device 0", 2 * LABEL_BLOCKS, blocks);
                return Err(Fault::new("blocks of dead run", expected, format!("{} from {block}", run.count)));
            }
        }
        Ok(Some(run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> StoredSnapshot {
        StoredSnapshot {
            metadata_before: 5,
            is_deleted: false,
            id: SnapshotId(7),
            name: "before".into(),
            created: Timestamp { secs: 3, nanos: 4 },
            epoch: 5,
            objects: 9,
            table: Record::system(SystemKind::ObjectTable, 1),
        }
    }

    #[test]
    fn snapshots_round_trip_and_foreign_ones_are_refused() {
        let bytes = snapshot().encode();
        assert_eq!(StoredSnapshot::decode(&bytes, 6, 1000).unwrap().unwrap(), snapshot());
        assert_eq!(StoredSnapshot::decode(&[0; SNAPSHOT_BYTES], 6, 1000).unwrap(), None);
        assert!(StoredSnapshot::decode(&bytes, 5, 1000).is_err(), "of an epoch that is not before this one");
        let deleted = StoredSnapshot { is_deleted: true, ..snapshot() };
        assert_eq!(StoredSnapshot::decode(&deleted.encode(), 6, 1000).unwrap().unwrap(), deleted);
        // Numbers that new ones do not get any more.
        let old = StoredSnapshot { id: NUMBER_MAX, ..snapshot() };
        assert_eq!(StoredSnapshot::decode(&old.encode(), 6, 1000).unwrap().unwrap(), old);
        let beyond = StoredSnapshot { id: SnapshotId(NUMBER_MAX.0 + 1), ..snapshot() };
        assert!(StoredSnapshot::decode(&beyond.encode(), 6, 1000).is_err());
        for (at, byte) in [(0, 0), (3, 1), (7, 255), (40, 2), (44, 1), (128, b'/'), (134, 1), (400, 1), (512, 1)] {
            let mut bytes = bytes;
            bytes[at] = byte;
            assert!(StoredSnapshot::decode(&bytes, 6, 1000).is_err(), "byte {at}");
        }
    }

    #[test]
    fn neighbours_are_one_run() {
        let run = |address, second, count| DeadRun { address: [address, second], birth_log: 3, count, is_page: true };
        let mut first = run(100, 0, 2);
        assert!(first.merge(&run(102, 0, 3)) && first == run(100, 0, 5));
        assert!(!first.merge(&run(106, 0, 1)) && !first.merge(&run(105, 300, 1)));
        assert!(!first.merge(&DeadRun { birth_log: 4, ..run(105, 0, 1) }));
        let mut twice = run(100, 500, 1);
        assert!(!twice.merge(&run(101, 502, 1)) && twice.merge(&run(101, 501, 1)));
        assert_eq!(twice.blocks().collect::<Vec<_>>(), [[100, 500], [101, 501]]);
        let mut parts = [run(100, 500, 5), run(100, 0, 5)];
        assert_eq!(parts.each_mut().map(|run| run.split_off(2)), [run(103, 503, 2), run(103, 0, 2)]);
        assert_eq!(parts, [run(100, 500, 3), run(100, 0, 3)]);
        assert_eq!(DeadRun::decode(&twice.encode(), 3, 1000).unwrap(), Some(twice));
        assert!(DeadRun::decode(&twice.encode(), 2, 1000).is_err());
        assert!(DeadRun::decode(&run(100, 990, 10).encode(), 3, 1000).is_err());
        assert_eq!(DeadRun::decode(&[0; DEAD_BYTES], 3, 1000).unwrap(), None);
    }
}
