//! Object records: eight to a block of an object table.

use super::blockptr::{BlockPointer, Glance, POINTER_BYTES};
use super::fields::{Fields, fields};
use super::{Fault, LEVELS_MAX, PAGES_MAX, RECORD_BYTES, expect_zero};
use holdfast_object::{
    Attributes, Class, Epoch, Kind, MAX_OBJECT_BYTES, NAMES_LISTED_MAX, NamePlace, ObjectId, PolicyId, Timestamp,
};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    kind: u8,
    class: u8,
    levels: u8,
    pointer_size: u8,
    mode: U16,
    policy: U16,
    generation: U64,
    uid: U32,
    gid: U32,
    nlink: U32,
    rdev: U32,
    size: U64,
    blocks: U64,
    entries: U64,
    parent: U64,
    xattr: U64,
    flags: U32,
    project: U32,
    secs: [I64; 4],
    nanos: [U32; 4],
    created: U64,
    changed: U64,
    page_bound: U64,
    dedup_xor: [u8; 32],
    compression: u8,
    placement: u8,
    reserved: [u8; 6],
    name_key: U64,
    /// Directory and key.
    other_names: [[U64; 2]; NAMES_LISTED_MAX - 1],
    reserved_2: [u8; 8],
    root: [u8; POINTER_BYTES],
    root_reserved: [u8; 64],
}
const _: () = assert!(size_of::<Raw>() == RECORD_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, secs) == 80);
const _: () = assert!(std::mem::offset_of!(Raw, name_key) == 192);
const _: () = assert!(std::mem::offset_of!(Raw, root) == 384);

pub(crate) const FIELDS: Fields = fields!(Raw {
    kind,
    class,
    levels,
    pointer_size,
    mode,
    policy,
    generation,
    uid,
    gid,
    nlink,
    rdev,
    size,
    blocks,
    entries,
    parent,
    xattr,
    flags,
    project,
    secs,
    nanos,
    created,
    changed,
    page_bound,
    dedup_xor,
    compression,
    placement,
    reserved,
    name_key,
    other_names,
    reserved_2,
    root,
    root_reserved,
});

/// What one of the store's own objects, in domain 0, is. The numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SystemKind {
    ObjectTable = 0x80,
    Bitmap = 0x81,
    References = 0x82,
    ObjectMap = 0x83,
    OrphanMap = 0x84,
    SnapshotList = 0x85,
    DeadLists = 0x86,
}

/// Kind of a record in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordKind {
    Object(Kind),
    System(SystemKind),
}

impl RecordKind {
    fn raw(self) -> u8 {
        match self {
            RecordKind::Object(kind) => kind as u8,
            RecordKind::System(kind) => kind as u8,
        }
    }

    fn from_raw(raw: u8) -> Option<RecordKind> {
        Some(match raw {
            0x80 => RecordKind::System(SystemKind::ObjectTable),
            0x81 => RecordKind::System(SystemKind::Bitmap),
            0x82 => RecordKind::System(SystemKind::References),
            0x83 => RecordKind::System(SystemKind::ObjectMap),
            0x84 => RecordKind::System(SystemKind::OrphanMap),
            0x85 => RecordKind::System(SystemKind::SnapshotList),
            0x86 => RecordKind::System(SystemKind::DeadLists),
            raw => RecordKind::Object(Kind::from_raw(raw)?),
        })
    }

    /// Whether pages of such an object are stored in two copies.
    pub(crate) fn is_metadata(self) -> bool {
        match self {
            RecordKind::Object(kind) => kind.is_metadata(),
            RecordKind::System(_) => true,
        }
    }
}

/// A decoded object record.
///
/// Invariants: `levels <= 6`; the root pointer's level is `levels`; no page is stored at or beyond `page_bound`;
/// `created <= changed`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) kind: RecordKind,
    /// Attributes of an object of a domain; of a system object only `size` 0 and `blocks` mean something.
    pub(crate) attributes: Attributes,
    /// Levels of tree blocks; 0: the root pointer points to page 0 itself.
    pub(crate) levels: u8,
    /// Project for quotas, 0 so far.
    pub(crate) project: u32,
    /// Epoch of creation.
    pub(crate) created: Epoch,
    /// Epoch of the last change.
    pub(crate) changed: Epoch,
    /// No page is stored at or beyond this index.
    pub(crate) page_bound: u64,
    pub(crate) root: BlockPointer,
}

/// What of an encoded record the audit counts, read without judging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordGlance {
    pub(crate) is_used: bool,
    pub(crate) generation: u64,
    pub(crate) levels: u8,
    pub(crate) nlink: u32,
    pub(crate) blocks: u64,
    pub(crate) page_bound: u64,
    pub(crate) root: Glance,
}

impl RecordGlance {
    pub(crate) fn at(bytes: &[u8; RECORD_BYTES]) -> RecordGlance {
        let raw: &Raw = zerocopy::transmute_ref!(bytes);
        RecordGlance {
            is_used: raw.kind != 0,
            generation: raw.generation.get(),
            levels: raw.levels,
            nlink: raw.nlink.get(),
            blocks: raw.blocks.get(),
            page_bound: raw.page_bound.get(),
            root: Glance::at(&raw.root),
        }
    }
}

impl Record {
    pub(crate) fn object(attributes: Attributes, epoch: Epoch) -> Record {
        Record {
            kind: RecordKind::Object(attributes.kind),
            attributes: Attributes { size: 0, blocks: 0, ..attributes },
            levels: 0,
            project: 0,
            created: epoch,
            changed: epoch,
            page_bound: 0,
            root: BlockPointer::HOLE,
        }
    }

    pub(crate) fn system(kind: SystemKind, epoch: Epoch) -> Record {
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0, 0, 0, Timestamp::default());
        Record { kind: RecordKind::System(kind), ..Record::object(attributes, epoch) }
    }

    /// Encodes into a slot of an object table.
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let a = &self.attributes;
        let times = [a.atime, a.mtime, a.ctime, a.btime];
        debug_assert!(a.other_names.len() < NAMES_LISTED_MAX);
        let mut other_names = [[U64::ZERO; 2]; NAMES_LISTED_MAX - 1];
        for (raw, name) in other_names.iter_mut().zip(&a.other_names) {
            *raw = [U64::new(name.directory.0), U64::new(name.key)];
        }
        let raw = Raw {
            kind: self.kind.raw(),
            class: if matches!(self.kind, RecordKind::System(_)) { 0 } else { a.class as u8 },
            levels: self.levels,
            pointer_size: 0,
            mode: U16::new(a.mode),
            policy: U16::new(a.policy.0),
            generation: U64::new(a.generation),
            uid: U32::new(a.uid),
            gid: U32::new(a.gid),
            nlink: U32::new(a.nlink),
            rdev: U32::new(a.rdev),
            size: U64::new(a.size),
            blocks: U64::new(a.blocks),
            entries: U64::new(a.entries),
            parent: U64::new(a.parent.0),
            xattr: U64::new(a.xattr.0),
            flags: U32::new(a.flags),
            project: U32::new(self.project),
            secs: times.map(|time| I64::new(time.secs)),
            nanos: times.map(|time| U32::new(time.nanos)),
            created: U64::new(self.created),
            changed: U64::new(self.changed),
            page_bound: U64::new(self.page_bound),
            dedup_xor: [0; 32],
            compression: 0,
            placement: 0,
            reserved: [0; 6],
            name_key: U64::new(a.name_key),
            other_names,
            reserved_2: [0; 8],
            root: self.root.encode(),
            root_reserved: [0; 64],
        };
        zerocopy::transmute!(raw)
    }

    /// Whether a slot says that it is free, holds no more than one stray write, and would not be a record in use if it did not say so. `epoch` and `blocks` as for [`Record::decode`].
    pub(crate) fn is_free(bytes: &[u8; RECORD_BYTES], epoch: Epoch, blocks: u64) -> bool {
        let is_used = |kind: u8| {
            let mut bytes = *bytes;
            bytes[0] = kind;
            Record::decode(&bytes, epoch, blocks, false).is_ok_and(|record| record.is_some())
        };
        bytes[0] == 0 && super::is_stray(bytes) && !(1..=u8::MAX).any(is_used)
    }

    /// Decodes and checks a slot; `None` if it is free. `epoch` and `blocks` as for [`BlockPointer::decode_checked`].
    /// A root that is dirty in memory is accepted only with `pending`.
    pub(crate) fn decode(
        bytes: &[u8; RECORD_BYTES],
        epoch: Epoch,
        blocks: u64,
        pending: bool,
    ) -> Result<Option<Record>, Fault> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.kind == 0 {
            expect_zero("free object record", bytes)?;
            return Ok(None);
        }
        let Some(kind) = RecordKind::from_raw(raw.kind) else {
            return Err(Fault::new("kind of object record", "a known one", raw.kind));
        };
        let (object_kind, class) = match (kind, raw.class) {
            (RecordKind::Object(kind), 1) => (kind, Class::Names),
            (RecordKind::Object(kind), 2) => (kind, Class::Own),
            (RecordKind::System(_), 0) => (Kind::Regular, Class::Own),
            (_, class) => return Err(Fault::new("class of object record", "1 or 2", class)),
        };
        if raw.pointer_size != 0 {
            return Err(Fault::new(
                "block pointer size",
                "0 (64 bytes); others are of a newer version",
                raw.pointer_size,
            ));
        }
        if raw.levels > LEVELS_MAX {
            return Err(Fault::new("levels of object", format!("at most {LEVELS_MAX}"), raw.levels));
        }
        if (raw.compression, raw.placement) != (0, 0) {
            let got = format!("{}, {}", raw.compression, raw.placement);
            return Err(Fault::new("compression, placement", "0, 0", got));
        }
        expect_zero("dedup xor", &raw.dedup_xor)?;
        expect_zero("reserved bytes of object record", &raw.reserved)?;
        expect_zero("reserved bytes of object record", &raw.reserved_2)?;
        expect_zero("reserved bytes of root pointer", &raw.root_reserved)?;
        let root = match pending && raw.root == BlockPointer::PENDING.encode() {
            true => BlockPointer::PENDING,
            false => BlockPointer::decode_checked(&raw.root, raw.levels, epoch, blocks)?,
        };
        let mut times = [Timestamp::default(); 4];
        for (time, (secs, nanos)) in times.iter_mut().zip(raw.secs.iter().zip(&raw.nanos)) {
            *time = Timestamp { secs: secs.get(), nanos: nanos.get() };
            if time.nanos >= 1_000_000_000 {
                return Err(Fault::new("nanoseconds", "below 10^9", time.nanos));
            }
        }
        if raw.size.get() > MAX_OBJECT_BYTES || raw.page_bound.get() > PAGES_MAX || raw.blocks.get() > PAGES_MAX {
            let got = format!("{}, {}, {}", raw.size, raw.page_bound, raw.blocks);
            return Err(Fault::new("size, page bound, blocks", "within the limits", got));
        }
        let (created, changed) = (raw.created.get(), raw.changed.get());
        if created == 0 || created > changed || changed > epoch {
            let expected = format!("1 <= created <= changed <= {epoch}");
            return Err(Fault::new("epochs of object record", expected, format!("{created}, {changed}")));
        }
        for id in [raw.parent.get(), raw.xattr.get()] {
            if id > ObjectId::MAX.0 {
                return Err(Fault::new("object id", "48 bits", id));
            }
        }
        let names = raw.other_names.map(|[directory, key]| (directory.get(), key.get()));
        let (names, free) = names.split_at(names.iter().take_while(|name| **name != (0, 0)).count());
        let is_one = |&(directory, key): &(u64, u64)| (1..=ObjectId::MAX.0).contains(&directory) && key > 0;
        if free.iter().any(|name| *name != (0, 0)) || !names.iter().all(is_one) {
            return Err(Fault::new(
                "names of object record",
                "directories with keys, then zeroes",
                format!("{names:?}"),
            ));
        }
        let [atime, mtime, ctime, btime] = times;
        let record = Record {
            kind,
            attributes: Attributes {
                kind: object_kind,
                class,
                generation: raw.generation.get(),
                mode: raw.mode.get(),
                uid: raw.uid.get(),
                gid: raw.gid.get(),
                nlink: raw.nlink.get(),
                rdev: raw.rdev.get(),
                size: raw.size.get(),
                blocks: raw.blocks.get(),
                entries: raw.entries.get(),
                atime,
                mtime,
                ctime,
                btime,
                parent: ObjectId(raw.parent.get()),
                name_key: raw.name_key.get(),
                other_names: names
                    .iter()
                    .map(|&(directory, key)| NamePlace { directory: ObjectId(directory), key })
                    .collect(),
                xattr: ObjectId(raw.xattr.get()),
                policy: PolicyId(raw.policy.get()),
                flags: raw.flags.get(),
            },
            levels: raw.levels,
            project: raw.project.get(),
            created,
            changed,
            page_bound: raw.page_bound.get(),
            root,
        };
        let Attributes { parent, name_key, ref other_names, .. } = record.attributes;
        if !record.attributes.has_possible_names() {
            let got = format!("parent {}, name key {name_key}, {} others", parent.0, other_names.len());
            return Err(Fault::new("names of object record", "a first one, with its directory, or none", got));
        }
        if matches!(kind, RecordKind::System(_)) && (parent, name_key) != (ObjectId::NONE, 0) {
            let got = format!("parent {}, name key {name_key}", parent.0);
            return Err(Fault::new("names of the record of a system object", "none, and no parent", got));
        }
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let now = Timestamp { secs: -5, nanos: 999_999_999 };
        let mut attributes = Attributes::new(Kind::Directory, Class::Names, 0o755, 1, 2, now);
        attributes.nlink = 2;
        attributes.parent = ObjectId(77);
        attributes.generation = u64::MAX;
        attributes.name_key = 256;
        attributes.other_names = vec![NamePlace { directory: ObjectId::MAX, key: u64::MAX }; NAMES_LISTED_MAX - 1];
        Record::object(attributes, 3)
    }

    #[test]
    fn round_trip() {
        for record in [record(), Record::system(SystemKind::Bitmap, 1)] {
            assert_eq!(Record::decode(&record.encode(), 3, 1000, false).unwrap().unwrap(), record);
        }
        assert_eq!(Record::decode(&[0; 512], 3, 1000, false).unwrap(), None);
    }

    /// What builds have written: files that were removed while open, or made without a name, and what is from before names were listed.
    #[test]
    fn records_of_objects_without_listed_names_are_read() {
        let mut record = record();
        record.attributes.other_names.clear();
        for (parent, key, links) in [(77, 0, 0), (77, 0, 2), (0, 0, 0), (77, 256, 1)] {
            let a = &mut record.attributes;
            (a.parent, a.name_key, a.nlink) = (ObjectId(parent), key, links);
            assert_eq!(Record::decode(&record.encode(), 3, 1000, false).unwrap().as_ref(), Some(&record));
        }
    }

    #[test]
    fn foreign_records_are_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = record().encode();
            bytes[at] = byte;
            Record::decode(&bytes, 3, 1000, false)
        };
        for (at, byte) in [
            (0, 9),
            (0, 0),
            (1, 3),
            (2, 7),
            (3, 1),
            (47, 1),
            (115, 255),
            (128, 9),
            (190, 1),
            (206, 1),
            (376, 1),
            (384, 1),
            (500, 1),
        ] {
            assert!(with(at, byte).is_err(), "byte {at}");
        }
        // A name behind a gap, one without a directory, one without a key.
        let names = std::mem::offset_of!(Raw, other_names);
        for gone in [names..names + 16, names..names + 8, names + 8..names + 16] {
            let mut bytes = record().encode();
            bytes[gone.clone()].fill(0);
            assert!(Record::decode(&bytes, 3, 1000, false).is_err(), "without bytes {gone:?}");
        }
        // Without the directory of the first name; without its key, but with others.
        let (parent, key) = (std::mem::offset_of!(Raw, parent), std::mem::offset_of!(Raw, name_key));
        for gone in [parent, key] {
            let mut bytes = record().encode();
            bytes[gone..gone + 8].fill(0);
            let fault = Record::decode(&bytes, 3, 1000, false).unwrap_err();
            assert_eq!(fault.what, "names of object record");
        }
        // The store's own objects have none at all.
        for at in [parent, key, names] {
            let mut bytes = Record::system(SystemKind::Bitmap, 1).encode();
            bytes[at] = 1;
            assert!(Record::decode(&bytes, 3, 1000, false).is_err(), "byte {at}");
            bytes[parent..parent + 8].copy_from_slice(&77u64.to_le_bytes());
            bytes[key..key + 8].copy_from_slice(&256u64.to_le_bytes());
            assert!(Record::decode(&bytes, 3, 1000, false).is_err(), "byte {at}, with a first name");
        }
        let mut pending = record();
        pending.root = BlockPointer::PENDING;
        assert!(Record::decode(&pending.encode(), 3, 1000, false).is_err());
        assert!(Record::decode(&pending.encode(), 3, 1000, true).is_ok());
        // Not one with something in the bytes that a pointer does not use.
        let bytes = pending.encode();
        let differing = |at: usize| {
            let mut other = bytes;
            other[at] ^= 0x80;
            other
        };
        let root = std::mem::offset_of!(Raw, root);
        for at in root..root + std::mem::size_of_val(&pending.root.encode()) {
            if let Ok(Some(record)) = Record::decode(&differing(at), 3, 1000, true) {
                assert!(record.encode() == differing(at), "byte {at}");
            }
        }
    }
}
