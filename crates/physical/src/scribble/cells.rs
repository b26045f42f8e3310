//! What is in memory as numbers, not as the bytes of a block: each with the place that it has in the form that the thing has on the device,
//! or, if it has none there, in a form of its own.

use crate::format::blockptr::{self, FLAG_SEEDED, LEVEL_SHIFT, PointerKind, kind_of, level_of};
use crate::format::record::FIELDS as RECORD;
use crate::format::snapshot::{self, DEAD_FIELDS, SNAPSHOT_BYTES};
use crate::format::{BlockPointer, DeadRun, RECORD_BYTES, Record, RecordKind, StoredSnapshot, SystemKind};
use holdfast_integrity::Checksum;
use holdfast_object::{Kind, Timestamp};
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// A number, or one of few things.
pub(crate) enum Number<'a> {
    /// As it is in memory; what is narrower on the device in two parts.
    Bytes(&'a mut [u8]),
    Atomic(&'a AtomicU64),
    Bool(&'a mut bool),
    Kind(&'a mut RecordKind),
    /// Kind, level, whether the block's identity is in the checksum.
    Shape(&'a mut PointerKind, &'a mut u8, &'a mut bool),
    Sum(&'a mut Checksum),
}

fn shape(kind: PointerKind, level: u8, seeded: bool) -> u8 {
    kind as u8 | level << LEVEL_SHIFT | if seeded { FLAG_SEEDED } else { 0 }
}

impl Number<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Number::Bytes(bytes) => bytes.to_vec(),
            Number::Atomic(number) => number.load(Ordering::Relaxed).to_le_bytes().to_vec(),
            Number::Bool(is_so) => vec![u8::from(**is_so)],
            Number::Kind(RecordKind::Object(kind)) => vec![*kind as u8],
            Number::Kind(RecordKind::System(kind)) => vec![*kind as u8],
            Number::Shape(kind, level, seeded) => vec![shape(**kind, **level, **seeded)],
            Number::Sum(sum) => sum.as_u64().unwrap_or(0).to_le_bytes().to_vec(),
        }
    }

    /// Inverts these bits of its bytes. What is one of few things becomes another of them.
    fn flip(&mut self, pattern: &[u8]) {
        match self {
            Number::Bytes(bytes) => bytes.iter_mut().zip(pattern).for_each(|(byte, flipped)| *byte ^= flipped),
            Number::Atomic(number) => {
                let flipped = pattern.try_into().map(u64::from_le_bytes).unwrap_or(0);
                number.fetch_xor(flipped, Ordering::Relaxed);
            }
            Number::Bool(is_so) => **is_so = !**is_so,
            Number::Kind(kind) => {
                **kind = match kind {
                    RecordKind::Object(Kind::Regular) => RecordKind::Object(Kind::Directory),
                    RecordKind::Object(_) => RecordKind::Object(Kind::Regular),
                    RecordKind::System(SystemKind::ObjectMap) => RecordKind::System(SystemKind::OrphanMap),
                    RecordKind::System(_) => RecordKind::System(SystemKind::ObjectMap),
                };
            }
            Number::Shape(kind, level, seeded) => {
                let flipped = shape(**kind, **level, **seeded) ^ pattern[0];
                (**kind, **level, **seeded) = (kind_of(flipped), level_of(flipped), flipped & FLAG_SEEDED != 0);
            }
            Number::Sum(sum) => {
                let flipped = pattern.try_into().map(u64::from_le_bytes).unwrap_or(0);
                if let Some(number) = sum.as_u64() {
                    **sum = Checksum::crc64(number ^ flipped);
                }
            }
        }
    }
}

struct Cell<'a> {
    name: String,
    at: usize,
    number: Number<'a>,
}

/// A field of a form: its name, its first byte, its length.
pub(crate) type Part = (String, usize, usize);

/// Numbers of one thing.
#[derive(Default)]
pub(crate) struct Cells<'a>(Vec<Cell<'a>>);

impl<'a> Cells<'a> {
    fn put(&mut self, name: impl Into<String>, at: usize, number: Number<'a>) {
        self.0.push(Cell { name: name.into(), at, number });
    }

    fn number(&mut self, name: &str, at: usize, number: &'a mut (impl IntoBytes + FromBytes)) {
        self.put(name, at, Number::Bytes(number.as_mut_bytes()));
    }

    fn time(&mut self, name: &str, (secs, nanos): (usize, usize), time: &'a mut Timestamp) {
        self.number(&format!("{name}.secs"), secs, &mut time.secs);
        self.number(&format!("{name}.nanos"), nanos, &mut time.nanos);
    }

    /// One that has no place on the device, behind all others.
    pub(crate) fn own(&mut self, name: &str, number: &'a mut (impl IntoBytes + FromBytes)) {
        self.number(name, self.end(), number);
    }

    pub(crate) fn own_atomic(&mut self, name: &str, number: &'a AtomicU64) {
        self.put(name, self.end(), Number::Atomic(number));
    }

    pub(crate) fn end(&self) -> usize {
        self.0.iter().map(|cell| cell.at + cell.number.bytes().len()).max().unwrap_or(0)
    }

    /// In the order of their places.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> =
            self.0.iter().map(|cell| (cell.name.clone(), cell.at, cell.number.bytes().len())).collect();
        parts.sort_by_key(|part| part.1);
        parts
    }

    /// The form that they have together.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut form = vec![0; self.end()];
        for cell in &self.0 {
            let bytes = cell.number.bytes();
            form[cell.at..cell.at + bytes.len()].copy_from_slice(&bytes);
        }
        form
    }

    /// Inverts bits of that form. Where there is no number, nothing is.
    pub(crate) fn flip(&mut self, at: usize, pattern: &[u8]) {
        for cell in &mut self.0 {
            let of = |byte: usize| byte.checked_sub(at).and_then(|byte| pattern.get(byte)).copied().unwrap_or(0);
            let mine: Vec<u8> = (cell.at..cell.at + cell.number.bytes().len()).map(of).collect();
            if mine.iter().any(|flipped| *flipped != 0) {
                cell.number.flip(&mine);
            }
        }
    }

    /// A pointer that is at `at` of the form. What its numbers have beyond those on the device goes behind the `end` of the form.
    fn pointer(&mut self, name: &str, at: usize, end: usize, pointer: &'a mut BlockPointer) {
        let of = |field: &str| at + blockptr::FIELDS.at(field);
        let BlockPointer { address: [first, second], birth_phys, birth_log, kind, level, seeded, sums } = pointer;
        let numbers = [
            ("address[0]", of("address"), 6, first),
            ("address[1]", of("address") + 6, 6, second),
            ("birth_phys", of("birth_phys"), 5, birth_phys),
            ("birth_log", of("birth_log"), 5, birth_log),
        ];
        for (beyond, (field, at, length, number)) in numbers.into_iter().enumerate() {
            let (low, high) = number.as_mut_bytes().split_at_mut(length);
            self.put(format!("{name}.{field}"), at, Number::Bytes(low));
            self.put(format!("{name}.{field}, upper part"), end + 3 * beyond, Number::Bytes(high));
        }
        self.put(format!("{name}.shape"), of("shape"), Number::Shape(kind, level, seeded));
        if sums.primary.as_u64().is_some() {
            self.put(format!("{name}.primary"), of("primary"), Number::Sum(&mut sums.primary));
        }
    }

    /// A record that is at `start` of a form which is as long as `end`.
    fn record(&mut self, prefix: &str, start: usize, end: usize, record: &'a mut Record) {
        let at = |field: &str| start + RECORD.at(field);
        let Record { kind, attributes, levels, project, created, changed, page_bound, root } = record;
        let names = |field: &str| format!("{prefix}{field}");
        self.put(names("kind"), at("kind"), Number::Kind(kind));
        self.number(&names("levels"), at("levels"), levels);
        self.number(&names("mode"), at("mode"), &mut attributes.mode);
        self.number(&names("policy"), at("policy"), &mut attributes.policy.0);
        self.number(&names("generation"), at("generation"), &mut attributes.generation);
        self.number(&names("uid"), at("uid"), &mut attributes.uid);
        self.number(&names("gid"), at("gid"), &mut attributes.gid);
        self.number(&names("nlink"), at("nlink"), &mut attributes.nlink);
        self.number(&names("rdev"), at("rdev"), &mut attributes.rdev);
        self.number(&names("size"), at("size"), &mut attributes.size);
        self.number(&names("blocks"), at("blocks"), &mut attributes.blocks);
        self.number(&names("entries"), at("entries"), &mut attributes.entries);
        self.number(&names("parent"), at("parent"), &mut attributes.parent.0);
        self.number(&names("xattr"), at("xattr"), &mut attributes.xattr.0);
        self.number(&names("flags"), at("flags"), &mut attributes.flags);
        self.number(&names("project"), at("project"), project);
        let times = [
            ("atime", &mut attributes.atime),
            ("mtime", &mut attributes.mtime),
            ("ctime", &mut attributes.ctime),
            ("btime", &mut attributes.btime),
        ];
        for (nth, (name, time)) in times.into_iter().enumerate() {
            self.time(&names(name), (at("secs") + 8 * nth, at("nanos") + 4 * nth), time);
        }
        self.number(&names("created"), at("created"), created);
        self.number(&names("changed"), at("changed"), changed);
        self.number(&names("page_bound"), at("page_bound"), page_bound);
        self.number(&names("name_key"), at("name_key"), &mut attributes.name_key);
        for (nth, name) in attributes.other_names.iter_mut().enumerate() {
            let at = at("other_names") + 16 * nth;
            self.number(&names(&format!("other_names[{nth}].directory")), at, &mut name.directory.0);
            self.number(&names(&format!("other_names[{nth}].key")), at + 8, &mut name.key);
        }
        self.pointer(&names("root"), at("root"), end, root);
    }

    pub(crate) fn of_record(record: &'a mut Record) -> Cells<'a> {
        let mut cells = Cells::default();
        cells.record("", 0, RECORD_BYTES, record);
        cells
    }

    /// What a list of snapshots has of one, as it is kept in memory.
    pub(crate) fn of_snapshot(stored: &'a mut StoredSnapshot) -> Cells<'a> {
        let at = |field: &str| snapshot::FIELDS.at(field);
        let mut cells = Cells::default();
        cells.number("id", at("id"), &mut stored.id.0);
        cells.time("created", (at("secs"), at("nanos")), &mut stored.created);
        cells.number("epoch", at("epoch"), &mut stored.epoch);
        cells.number("objects", at("objects"), &mut stored.objects);
        cells.number("metadata_before", at("metadata_before"), &mut stored.metadata_before);
        cells.put("flags", at("flags"), Number::Bool(&mut stored.is_deleted));
        cells.record("table.", at("table"), SNAPSHOT_BYTES, &mut stored.table);
        cells
    }

    pub(crate) fn of_dead_run(run: &'a mut DeadRun) -> Cells<'a> {
        let at = |field: &str| DEAD_FIELDS.at(field);
        let [first, second] = &mut run.address;
        let mut cells = Cells::default();
        cells.number("address[0]", at("address"), first);
        cells.number("address[1]", at("address") + 8, second);
        cells.number("birth_log", at("birth_log"), &mut run.birth_log);
        cells.number("count", at("count"), &mut run.count);
        cells.put("flags", at("flags"), Number::Bool(&mut run.is_page));
        cells
    }
}

/// The fields of a pointer that is at `at`.
pub(crate) fn pointer_parts(parts: &mut Vec<Part>, prefix: &str, at: usize) {
    for (name, offset, length) in blockptr::FIELDS.each() {
        let copies = if name == "address" { 2 } else { 1 };
        for copy in 0..copies {
            let name = if copies == 2 { format!("{prefix}{name}[{copy}]") } else { format!("{prefix}{name}") };
            parts.push((name, at + offset + copy * length / copies, length / copies));
        }
    }
}

/// The fields of a record that is at `at`.
pub(crate) fn record_parts(parts: &mut Vec<Part>, prefix: &str, at: usize) {
    for (name, offset, length) in RECORD.each() {
        match name {
            "root" => pointer_parts(parts, &format!("{prefix}root."), at + offset),
            _ => parts.push((format!("{prefix}{name}"), at + offset, length)),
        }
    }
}
