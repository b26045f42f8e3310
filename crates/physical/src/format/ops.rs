//! Operations in the intent log: a fixed little-endian encoding.
//!
//! An operation is a tag byte and its fields in the order of their declaration; a list is its length (u32) and its
//! elements. The pages of a `Write` follow the entries in the batch; an element here is their index and CRC-64. A `Write`
//! whose pages are in the batch twice has the second tag.

use super::Fault;
use holdfast_integrity::{Algorithm, Checksum, DIGEST_MAX, StoredSums};
use holdfast_object::{
    AttrSet, Attributes, Class, Fragment, Kind, NAMES_LISTED_MAX, NamePlace, ObjectId, Op, PAGE_SIZE, PageRef,
    Placement, PolicyId, Side, SnapshotId, Timestamp,
};

const CREATE: u8 = 1;
const DELETE: u8 = 2;
const WRITE: u8 = 3;
const WRITE_TWICE: u8 = 4;
const ADOPT: u8 = 5;
const LOSE: u8 = 6;
const TRUNCATE: u8 = 7;
const ZERO: u8 = 8;
const SET_ATTRIBUTES: u8 = 9;
const COPY: u8 = 10;
const LOSE_ON_DEVICE: u8 = 11;

/// Appends the encoding of `op`. `twice` says of a `Write` whether its pages are stored twice. The checksums of pages are CRC-64 here
/// in every mode.
pub(crate) fn encode_op(out: &mut Vec<u8>, op: &Op, twice: bool) {
    let mut w = Writer(out);
    match op {
        Op::Create { id, attributes } => {
            w.u8(CREATE);
            w.u64(id.0);
            w.attributes(attributes);
        }
        Op::Delete { id } => {
            w.u8(DELETE);
            w.u64(id.0);
        }
        Op::Write { id, fragments, size_min } => {
            w.u8(if twice { WRITE_TWICE } else { WRITE });
            w.u64(id.0);
            w.u32(fragments.len() as u32);
            for fragment in fragments {
                w.u64(fragment.index);
                w.u64(fragment.page.checksum);
            }
            w.u64(*size_min);
        }
        Op::Adopt { id, pages, size_min } => {
            w.u8(ADOPT);
            w.u64(id.0);
            w.u32(pages.len() as u32);
            for (index, placement) in pages {
                for value in [*index, placement.address, placement.address_2, placement.checksum, placement.birth] {
                    w.u64(value);
                }
                w.sums(&placement.sums);
            }
            w.u64(*size_min);
        }
        Op::Lose { id, pages, side } => {
            w.u8(match side {
                Side::Memory => LOSE,
                Side::Device => LOSE_ON_DEVICE,
            });
            w.u64(id.0);
            w.u32(pages.len() as u32);
            pages.iter().for_each(|&page| w.u64(page));
        }
        Op::Truncate { id, size } => {
            w.u8(TRUNCATE);
            w.u64(id.0);
            w.u64(*size);
        }
        Op::Zero { id, offset, length } => {
            w.u8(ZERO);
            [id.0, *offset, *length].into_iter().for_each(|value| w.u64(value));
        }
        Op::SetAttributes { id, set } => {
            w.u8(SET_ATTRIBUTES);
            w.u64(id.0);
            w.set(set);
        }
        Op::Copy { source, source_first, target, target_first, pages, size_min } => {
            w.u8(COPY);
            for value in [source.0, *source_first, target.0, *target_first, *pages, *size_min] {
                w.u64(value);
            }
        }
    }
}

/// Decodes all operations; for each `Write` in turn, whether its pages are stored twice. Frames of pages are 0.
pub(crate) fn decode_ops(bytes: &[u8]) -> Result<(Vec<Op>, Vec<bool>), Fault> {
    let mut r = Reader(bytes);
    let (mut ops, mut twice) = (Vec::new(), Vec::new());
    while !r.0.is_empty() {
        let tag = r.u8()?;
        ops.push(match tag {
            CREATE => Op::Create { id: r.id()?, attributes: r.attributes()? },
            DELETE => Op::Delete { id: r.id()? },
            WRITE | WRITE_TWICE => {
                twice.push(tag == WRITE_TWICE);
                let id = r.id()?;
                let fragments = r.list(16, |r| {
                    let index = r.u64()?;
                    let page = PageRef { frame: 0, generation: 0, checksum: r.u64()? };
                    Ok(Fragment { index, start: 0, end: PAGE_SIZE as u16, page })
                })?;
                Op::Write { id, fragments, size_min: r.u64()? }
            }
            ADOPT => {
                let id = r.id()?;
                let pages = r.list(41, |r| {
                    let index = r.u64()?;
                    let (address, address_2, checksum, birth) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
                    Ok((index, Placement { address, address_2, checksum, birth, sums: r.sums()? }))
                })?;
                Op::Adopt { id, pages, size_min: r.u64()? }
            }
            LOSE | LOSE_ON_DEVICE => {
                let side = if tag == LOSE { Side::Memory } else { Side::Device };
                Op::Lose { id: r.id()?, pages: r.list(8, |r| r.u64())?, side }
            }
            TRUNCATE => Op::Truncate { id: r.id()?, size: r.u64()? },
            ZERO => Op::Zero { id: r.id()?, offset: r.u64()?, length: r.u64()? },
            SET_ATTRIBUTES => Op::SetAttributes { id: r.id()?, set: r.set()? },
            COPY => Op::Copy {
                source: r.id()?,
                source_first: r.u64()?,
                target: r.id()?,
                target_first: r.u64()?,
                pages: r.u64()?,
                size_min: r.u64()?,
            },
            tag => return Err(Fault::new("operation in the intent log", "a known tag", tag)),
        });
    }
    Ok((ops, twice))
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
    /// The numbers of the algorithms, then the checksums.
    fn sums(&mut self, sums: &StoredSums) {
        self.u8(sums.primary.algorithm().id() | sums.secondary.algorithm().id() << 4);
        self.0.extend(sums.primary.as_bytes());
        self.0.extend(sums.secondary.as_bytes());
    }
    fn time(&mut self, time: Timestamp) {
        self.u64(time.secs as u64);
        self.u32(time.nanos);
    }

    fn attributes(&mut self, a: &Attributes) {
        self.u8(a.kind as u8);
        self.u8(a.class as u8);
        self.u64(a.generation);
        self.u16(a.mode);
        [a.uid, a.gid, a.nlink, a.rdev].into_iter().for_each(|value| self.u32(value));
        self.u64(a.entries);
        [a.atime, a.mtime, a.ctime, a.btime].into_iter().for_each(|time| self.time(time));
        self.u64(a.parent.0);
        self.u64(a.xattr.0);
        self.u16(a.policy.0);
        self.u32(a.flags);
        self.u64(a.name_key);
        self.names(&a.other_names);
    }

    fn names(&mut self, names: &[NamePlace]) {
        self.u8(names.len() as u8);
        for name in names {
            self.u64(name.directory.0);
            self.u64(name.key);
        }
    }

    /// A mask of the fields that are there, in the order of their declaration, and these.
    fn set(&mut self, set: &AttrSet) {
        let at = self.0.len();
        self.u16(0);
        let mut mask = 0u16;
        let mut bit = 0;
        let mut has = |is: bool| {
            mask |= u16::from(is) << bit;
            bit += 1;
        };
        has(set.mode.is_some());
        has(set.uid.is_some());
        has(set.gid.is_some());
        has(set.nlink.is_some());
        has(set.entries.is_some());
        has(set.atime.is_some());
        has(set.mtime.is_some());
        has(set.ctime.is_some());
        has(set.btime.is_some());
        has(set.parent.is_some());
        has(set.xattr.is_some());
        has(set.policy.is_some());
        has(set.flags.is_some());
        has(set.name_key.is_some());
        has(set.other_names.is_some());
        self.0[at..at + 2].copy_from_slice(&mask.to_le_bytes());
        set.mode.into_iter().for_each(|value| self.u16(value));
        [set.uid, set.gid, set.nlink].into_iter().flatten().for_each(|value| self.u32(value));
        set.entries.into_iter().for_each(|value| self.u64(value));
        [set.atime, set.mtime, set.ctime, set.btime].into_iter().flatten().for_each(|time| self.time(time));
        [set.parent, set.xattr].into_iter().flatten().for_each(|id| self.u64(id.0));
        set.policy.into_iter().for_each(|policy| self.u16(policy.0));
        set.flags.into_iter().for_each(|flags| self.u32(flags));
        set.name_key.into_iter().for_each(|key| self.u64(key));
        set.other_names.iter().for_each(|names| self.names(names));
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        match self.0.split_first_chunk::<N>() {
            Some((bytes, rest)) => {
                self.0 = rest;
                Ok(*bytes)
            }
            None => Err(Fault::new("entries of the intent log", format!("{N} bytes more"), self.0.len())),
        }
    }
    fn u8(&mut self) -> Result<u8, Fault> {
        Ok(u8::from_le_bytes(self.take()?))
    }
    fn u16(&mut self) -> Result<u16, Fault> {
        Ok(u16::from_le_bytes(self.take()?))
    }
    fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    fn sums(&mut self) -> Result<StoredSums, Fault> {
        let ids = self.u8()?;
        let mut sum = |id: u8, bytes_max: usize| {
            let algorithm = Algorithm::parse(id).ok().filter(|algorithm| algorithm.digest_len() <= bytes_max);
            let algorithm = algorithm.ok_or_else(|| Fault::new("checksums in the intent log", "known ones", ids))?;
            let Some((bytes, rest)) = self.0.split_at_checked(algorithm.digest_len()) else {
                return Err(Fault::new("checksum in the intent log", algorithm, format!("{} bytes", self.0.len())));
            };
            self.0 = rest;
            Checksum::from_bytes(algorithm, bytes)
                .map_err(|error| Fault::new("checksum in the intent log", "of its length", error))
        };
        Ok(StoredSums { primary: sum(ids & 0xf, DIGEST_MAX)?, secondary: sum(ids >> 4, 8)? })
    }
    fn id(&mut self) -> Result<ObjectId, Fault> {
        let raw = self.u64()?;
        let live = ObjectId::from_raw(raw).filter(|id| id.snapshot() == SnapshotId::LIVE);
        live.ok_or_else(|| Fault::new("object id in the intent log", "1 to 2^48 - 1", raw))
    }

    fn list<T>(
        &mut self,
        element_bytes: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, Fault>,
    ) -> Result<Vec<T>, Fault> {
        let count = self.u32()? as usize;
        // Before memory is asked for.
        if count > self.0.len() / element_bytes {
            return Err(Fault::new("length of a list in the intent log", format!("{} bytes", self.0.len()), count));
        }
        (0..count).map(|_| element(self)).collect()
    }

    fn time(&mut self) -> Result<Timestamp, Fault> {
        let time = Timestamp { secs: self.u64()? as i64, nanos: self.u32()? };
        if time.nanos >= 1_000_000_000 {
            return Err(Fault::new("nanoseconds in the intent log", "below 10^9", time.nanos));
        }
        Ok(time)
    }

    /// An id, or none.
    fn link(&mut self) -> Result<ObjectId, Fault> {
        match self.u64()? {
            raw if raw <= ObjectId::MAX.0 => Ok(ObjectId(raw)),
            raw => Err(Fault::new("object id in the intent log", "48 bits", raw)),
        }
    }

    fn attributes(&mut self) -> Result<Attributes, Fault> {
        let (kind, class) = (self.u8()?, self.u8()?);
        let kind = Kind::from_raw(kind).ok_or_else(|| Fault::new("kind in the intent log", "1 to 8", kind))?;
        let class = match class {
            1 => Class::Names,
            2 => Class::Own,
            class => return Err(Fault::new("class in the intent log", "1 or 2", class)),
        };
        let attributes = Attributes {
            kind,
            class,
            generation: self.u64()?,
            mode: self.u16()?,
            uid: self.u32()?,
            gid: self.u32()?,
            nlink: self.u32()?,
            rdev: self.u32()?,
            size: 0,
            blocks: 0,
            entries: self.u64()?,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
            btime: self.time()?,
            parent: self.link()?,
            xattr: self.link()?,
            policy: PolicyId(self.u16()?),
            flags: self.u32()?,
            name_key: self.u64()?,
            other_names: self.names()?,
        };
        match attributes.has_possible_names() {
            true => Ok(attributes),
            false => Err(impossible_names(Some(attributes.parent), Some(attributes.name_key))),
        }
    }

    fn names(&mut self) -> Result<Vec<NamePlace>, Fault> {
        let count = usize::from(self.u8()?);
        if count >= NAMES_LISTED_MAX {
            let expected = format!("{} at most", NAMES_LISTED_MAX - 1);
            return Err(Fault::new("other names in the intent log", expected, count));
        }
        let name = |r: &mut Self| match (r.id()?, r.u64()?) {
            (_, 0) => Err(Fault::new("key of a name in the intent log", "above 0", 0)),
            (directory, key) => Ok(NamePlace { directory, key }),
        };
        (0..count).map(|_| name(self)).collect()
    }

    fn set(&mut self) -> Result<AttrSet, Fault> {
        let mask = self.u16()?;
        if mask >> 15 != 0 {
            return Err(Fault::new("attributes in the intent log", "15 known ones", format!("{mask:#x}")));
        }
        fn read<'a, T>(
            r: &mut Reader<'a>,
            mask: u16,
            bit: u32,
            value: impl FnOnce(&mut Reader<'a>) -> Result<T, Fault>,
        ) -> Result<Option<T>, Fault> {
            if mask >> bit & 1 == 1 { value(r).map(Some) } else { Ok(None) }
        }
        let set = AttrSet {
            mode: read(self, mask, 0, Reader::u16)?,
            uid: read(self, mask, 1, Reader::u32)?,
            gid: read(self, mask, 2, Reader::u32)?,
            nlink: read(self, mask, 3, Reader::u32)?,
            entries: read(self, mask, 4, Reader::u64)?,
            atime: read(self, mask, 5, Reader::time)?,
            mtime: read(self, mask, 6, Reader::time)?,
            ctime: read(self, mask, 7, Reader::time)?,
            btime: read(self, mask, 8, Reader::time)?,
            parent: read(self, mask, 9, Reader::link)?,
            xattr: read(self, mask, 10, Reader::link)?,
            policy: read(self, mask, 11, |r| r.u16().map(PolicyId))?,
            flags: read(self, mask, 12, Reader::u32)?,
            name_key: read(self, mask, 13, Reader::u64)?,
            other_names: read(self, mask, 14, Reader::names)?,
        };
        if set.has_possible_names() { Ok(set) } else { Err(impossible_names(set.parent, set.name_key)) }
    }
}

fn impossible_names(parent: Option<ObjectId>, name_key: Option<u64>) -> Fault {
    let got = format!("parent {:?}, name key {name_key:?}", parent.map(|parent| parent.0));
    Fault::new("names in the intent log", "a first one, with its directory, or none", got)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    fn samples() -> Vec<Op> {
        let time = Timestamp { secs: -7, nanos: 5 };
        let mut attributes = Attributes::new(Kind::Symlink, Class::Names, 0o777, 1, 2, time);
        (attributes.nlink, attributes.parent, attributes.generation) = (1, ObjectId(9), 77);
        (attributes.name_key, attributes.other_names) = (6, vec![NamePlace { directory: ObjectId(1), key: 5 }]);
        let id = ObjectId(5);
        let page = PageRef { frame: 0, generation: 0, checksum: 0xfeed };
        let sums = StoredSums { primary: Algorithm::Fletcher256.sum(b"1"), secondary: Algorithm::Xor64.sum(b"2") };
        let placement = Placement { address: 100, address_2: 200, checksum: 3, sums, birth: 4 };
        let plain = Placement { sums: StoredSums::of(Checksum::crc64(3)), ..placement };
        let set = AttrSet { uid: Some(3), mtime: Some(time), parent: Some(ObjectId(3)), ..AttrSet::default() };
        vec![
            Op::Create { id, attributes },
            Op::Delete { id },
            Op::Write { id, fragments: vec![Fragment { index: 3, start: 0, end: 4096, page }], size_min: 10 },
            Op::Adopt { id, pages: vec![(1, placement), (2, plain)], size_min: 0 },
            Op::Lose { id, pages: vec![1, 5], side: Side::Memory },
            Op::Lose { id, pages: vec![1, 5], side: Side::Device },
            Op::Truncate { id, size: 7 },
            Op::Zero { id, offset: 1, length: 2 },
            Op::SetAttributes { id, set },
            Op::SetAttributes {
                id,
                set: AttrSet {
                    mode: Some(1),
                    uid: Some(2),
                    gid: Some(3),
                    nlink: Some(4),
                    entries: Some(5),
                    atime: Some(time),
                    mtime: Some(time),
                    ctime: Some(time),
                    btime: Some(time),
                    parent: Some(id),
                    xattr: Some(id),
                    policy: Some(PolicyId(6)),
                    flags: Some(7),
                    name_key: Some(8),
                    other_names: Some(vec![NamePlace { directory: id, key: 9 }; NAMES_LISTED_MAX - 1]),
                },
            },
            Op::Copy { source: id, source_first: 1, target: ObjectId(6), target_first: 2, pages: 3, size_min: 4 },
        ]
    }

    #[test]
    fn round_trip() {
        let mut bytes = Vec::new();
        samples().iter().for_each(|op| encode_op(&mut bytes, op, true));
        assert_eq!(decode_ops(&bytes).unwrap(), (samples(), vec![true]));
    }

    #[test]
    fn names_that_no_object_can_have_are_refused() {
        let id = ObjectId(5);
        let other = NamePlace { directory: ObjectId(1), key: 300 };
        let mut attributes = Attributes::new(Kind::Regular, Class::Own, 0, 0, 0, Timestamp::default());
        attributes.name_key = 256;
        let without_directory = attributes.clone();
        (attributes.name_key, attributes.other_names) = (0, vec![other]);
        let set = |name_key, others: Option<Vec<NamePlace>>| {
            let set = AttrSet { parent: Some(ObjectId(0)), name_key, other_names: others, ..AttrSet::default() };
            Op::SetAttributes { id, set }
        };
        let ops = [
            Op::Create { id, attributes: without_directory },
            Op::Create { id, attributes },
            set(None, None),
            set(Some(256), Some(vec![])),
            set(Some(0), Some(vec![other])),
            set(Some(0), None),
        ];
        for op in ops {
            let mut bytes = Vec::new();
            encode_op(&mut bytes, &op, false);
            assert_eq!(decode_ops(&bytes).unwrap_err().what, "names in the intent log", "{op:?}");
            assert!(crate::op_limits::check_limits(&op).is_err(), "{op:?}");
        }
        let mut bytes = Vec::new();
        let gone = set(Some(0), Some(vec![]));
        encode_op(&mut bytes, &gone, false);
        assert_eq!(decode_ops(&bytes).unwrap().0, [gone]);
    }

    #[test]
    fn cut_or_changed_bytes_give_errors_not_panics() {
        let mut bytes = Vec::new();
        samples().iter().for_each(|op| encode_op(&mut bytes, op, false));
        for end in 0..bytes.len() {
            let _ = decode_ops(&bytes[..end]);
        }
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(1);
        for _ in 0..20_000 {
            let mut bytes = bytes.clone();
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
            let _ = decode_ops(&bytes);
        }
        assert!(decode_ops(&[99]).is_err());
        assert!(decode_ops(&[LOSE, 1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]).is_err());
    }
}
