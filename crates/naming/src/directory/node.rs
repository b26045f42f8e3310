//! Reading and building one page of a directory. The bytes are foreign: every step of a walk is checked.

use super::layout::*;
use crate::error::{Error, Result};
use crate::name;
use crate::rolled::Rolled;
use holdfast_object::{Kind, ObjectId, PAGE_SIZE};
use zerocopy::{FromBytes, IntoBytes};

/// What the parent says about a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expect {
    pub(super) owner: ObjectId,
    pub(super) page: u64,
    /// `None`: the root tells.
    pub(super) level: Option<u8>,
    /// Keys are at least this.
    pub(super) low: u64,
    /// Keys are below this.
    pub(super) high: u64,
    /// Pages of the directory.
    pub(super) pages: u64,
}

impl Expect {
    pub(super) fn corrupt(&self, offset: usize, what: &'static str) -> Error {
        Error::CorruptDirectory { object: self.owner, page: self.page, offset, what }
    }
}

/// A node whose frame is checked and whose records are checked as they are walked.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    records: &'a [u8],
    pub(super) level: u8,
    count: u16,
    expect: Expect,
}

/// A record of a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafRecord<'a> {
    pub(crate) key: u64,
    pub(crate) object: ObjectId,
    pub(crate) kind: Kind,
    pub(crate) name: &'a [u8],
    /// Where it begins, in bytes from the first record.
    pub(crate) at: usize,
}

impl LeafRecord<'_> {
    pub(super) fn length(&self) -> usize {
        ENTRY_BYTES + self.name.len()
    }
}

/// A record of a branch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BranchRecord {
    pub(super) key: u64,
    pub(super) child: u64,
}

impl<'a> Node<'a> {
    /// Checks everything about the page but its records.
    pub(super) fn parse(image: &'a Image, expect: Expect) -> Result<Node<'a>> {
        let offset = node_offset(expect.page);
        let (raw, body) =
            NodeRaw::ref_from_prefix(&image[offset..]).map_err(|_| expect.corrupt(offset, "node is cut off"))?;
        if raw.magic != NODE_MAGIC {
            return Err(expect.corrupt(offset, "not a node"));
        }
        if raw.owner.get() != expect.owner.0 {
            return Err(expect.corrupt(offset, "node of another directory"));
        }
        if raw.page.get() != expect.page {
            return Err(expect.corrupt(offset, "node of another page"));
        }
        if raw.reserved != 0 || raw.reserved_2 != [0; 6] {
            return Err(expect.corrupt(offset, "reserved bytes are not zero"));
        }
        if raw.level > LEVEL_MAX || expect.level.is_some_and(|level| level != raw.level) {
            return Err(expect.corrupt(offset, "wrong level"));
        }
        let used = usize::from(raw.used.get());
        let records = body.get(..used).ok_or_else(|| expect.corrupt(offset, "records are longer than the page"))?;
        if raw.level > 0 && (raw.count.get() == 0 || used != usize::from(raw.count.get()) * BRANCH_BYTES) {
            return Err(expect.corrupt(offset, "wrong number of branches"));
        }
        if expect.page != 0 && raw.count.get() == 0 {
            return Err(expect.corrupt(offset, "empty node"));
        }
        Ok(Node { records, level: raw.level, count: raw.count.get(), expect })
    }

    /// The records' bytes.
    pub(super) fn records(&self) -> &'a [u8] {
        self.records
    }

    /// The entries; level 0 only. Stops at the first error.
    pub(super) fn entries(&self) -> Entries<'a> {
        debug_assert_eq!(self.level, 0);
        Entries { node: *self, at: 0, seen: 0, low: self.expect.low, failed: false }
    }

    /// The branches; levels above 0 only.
    pub(super) fn branches(&self) -> impl Iterator<Item = Result<BranchRecord>> + use<'a> {
        debug_assert!(self.level > 0);
        let expect = self.expect;
        let mut low = expect.low;
        self.records.chunks_exact(BRANCH_BYTES).enumerate().map(move |(slot, bytes)| {
            let at = records_offset(expect.page) + slot * BRANCH_BYTES;
            let raw = BranchRaw::read_from_bytes(bytes).map_err(|_| expect.corrupt(at, "branch is cut off"))?;
            let key = raw.key.get();
            if key < low || key >= expect.high {
                return Err(expect.corrupt(at, "branch key out of order"));
            }
            low = key + 1;
            let child = raw.child.get();
            if child == 0 || child >= expect.pages {
                return Err(expect.corrupt(at, "branch to a page that is not there"));
            }
            Ok(BranchRecord { key, child })
        })
    }

    /// Checks all records and that the rest of the page is zero: before the page is changed.
    pub(super) fn check(&self, image: &Image) -> Result<()> {
        if self.level == 0 {
            self.entries().try_for_each(|entry| entry.map(drop))?;
        } else {
            self.branches().try_for_each(|branch| branch.map(drop))?;
        }
        let end = records_offset(self.expect.page) + self.records.len();
        match not_zero(&image[end..]) {
            None => Ok(()),
            Some(offset) => Err(self.expect.corrupt(end + offset, "bytes behind the last record")),
        }
    }
}

/// The first byte that is not zero. Many at a time: a page that is about to change has a thousand behind its records.
fn not_zero(bytes: &[u8]) -> Option<usize> {
    let (parts, _) = bytes.as_chunks::<64>();
    let zeroes = parts.iter().take_while(|part| **part == [0; 64]).count() * 64;
    bytes[zeroes..].iter().position(|&byte| byte != 0).map(|at| zeroes + at)
}

/// Walks over the entries of a leaf.
pub(super) struct Entries<'a> {
    node: Node<'a>,
    at: usize,
    seen: u16,
    low: u64,
    failed: bool,
}

impl<'a> Entries<'a> {
    fn step(&mut self) -> Result<Option<LeafRecord<'a>>> {
        let expect = &self.node.expect;
        let offset = records_offset(expect.page) + self.at;
        let rest = self.node.records.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return match self.seen == self.node.count {
                true => Ok(None),
                false => Err(expect.corrupt(offset, "fewer entries than counted")),
            };
        }
        if self.seen == self.node.count {
            return Err(expect.corrupt(offset, "more entries than counted"));
        }
        let (raw, rest) = EntryRaw::ref_from_prefix(rest).map_err(|_| expect.corrupt(offset, "entry is cut off"))?;
        let key = raw.key.get();
        if key < self.low || key >= expect.high {
            return Err(expect.corrupt(offset, "entry key out of order"));
        }
        let object =
            ObjectId::from_raw(raw.object.get()).ok_or_else(|| expect.corrupt(offset + 8, "entry names no object"))?;
        let kind = Kind::from_raw(raw.kind)
            .filter(|&kind| kind != Kind::Xattr)
            .ok_or_else(|| expect.corrupt(offset + 16, "entry of unknown kind"))?;
        let name = rest
            .get(..usize::from(raw.name_length))
            .filter(|bytes| name::is_storable(bytes))
            .ok_or_else(|| expect.corrupt(offset + 17, "entry with an impossible name"))?;
        let record = LeafRecord { key, object, kind, name, at: self.at };
        self.low = key + 1;
        self.at += record.length();
        self.seen += 1;
        Ok(Some(record))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<LeafRecord<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.step();
        self.failed = next.is_err();
        next.transpose()
    }
}

/// Appends an entry's record.
pub(super) fn push_entry(records: &mut Vec<u8>, key: u64, object: ObjectId, kind: Kind, name: &[u8]) {
    assert!(name::is_storable(name), "name checked by the caller");
    assert!(key < KEY_END && object != ObjectId::NONE && object <= ObjectId::MAX, "key {key}, object {object}");
    let raw = EntryRaw { key: key.into(), object: object.0.into(), kind: kind as u8, name_length: name.len() as u8 };
    records.extend_from_slice(raw.as_bytes());
    records.extend_from_slice(name);
}

/// Appends a branch's record.
pub(super) fn push_branch(records: &mut Vec<u8>, branch: BranchRecord) {
    assert!(branch.key < KEY_END && branch.child != 0, "{branch:?}");
    records.extend_from_slice(BranchRaw { key: branch.key.into(), child: branch.child.into() }.as_bytes());
}

/// The lengths of the records that were built in memory, in order.
pub(super) fn record_lengths(records: &[u8], level: u8) -> impl Iterator<Item = usize> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = records.get(at..).filter(|rest| !rest.is_empty())?;
        let length = if level > 0 { BRANCH_BYTES } else { ENTRY_BYTES + usize::from(rest[ENTRY_BYTES - 1]) };
        at += length;
        Some(length)
    })
}

/// Key of the record that was built in memory at `at`.
pub(super) fn record_key(records: &[u8], at: usize) -> u64 {
    let mut key = [0; 8];
    key.copy_from_slice(&records[at..at + 8]);
    u64::from_le_bytes(key)
}

/// Makes a page a node with these records, of which the first `same` bytes are there already.
pub(super) fn put_node(image: &mut Rolled, owner: ObjectId, page: u64, level: u8, records: &[u8], same: usize) {
    assert!(records.len() <= capacity(page), "{} bytes of records in page {page}", records.len());
    assert!(level <= LEVEL_MAX, "level {level}");
    let raw = NodeRaw {
        magic: NODE_MAGIC,
        level,
        reserved: 0,
        count: (record_lengths(records, level).count() as u16).into(),
        used: (records.len() as u16).into(),
        reserved_2: [0; 6],
        owner: owner.0.into(),
        page: page.into(),
    };
    let end_before = end_of(image, page);
    image.put(node_offset(page), raw.as_bytes());
    let at = records_offset(page);
    image.put(at + same, &records[same..]);
    image.end(at + records.len(), end_before);
}

/// From where on there are only zeroes in a page that was verified. What it says of that is a part of what changes: if it has gone bad since, so
/// has the checksum.
fn end_of(image: &Image, page: u64) -> usize {
    match NodeRaw::ref_from_prefix(&image[node_offset(page)..]) {
        Ok((raw, _)) if raw.magic == NODE_MAGIC => PAGE_SIZE.min(records_offset(page) + usize::from(raw.used.get())),
        _ if image[..FREE_MAGIC.len()] == FREE_MAGIC => FREE_BYTES,
        _ => image.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1),
    }
}

/// Makes a page a free one.
pub(super) fn put_free(image: &mut Rolled, owner: ObjectId, page: u64, next: u64) {
    let raw =
        FreeRaw { magic: FREE_MAGIC, reserved: [0; 4], owner: owner.0.into(), page: page.into(), next: next.into() };
    let end_before = end_of(image, page);
    image.put(0, raw.as_bytes());
    image.end(FREE_BYTES, end_before);
}

/// Reads a free page: the next one.
pub(super) fn parse_free(image: &Image, expect: Expect) -> Result<u64> {
    let (raw, rest) = FreeRaw::ref_from_prefix(image).map_err(|_| expect.corrupt(0, "free page is cut off"))?;
    if raw.magic != FREE_MAGIC || raw.owner.get() != expect.owner.0 || raw.page.get() != expect.page {
        return Err(expect.corrupt(0, "not a free page of this directory"));
    }
    if raw.reserved != [0; 4] || not_zero(rest).is_some() {
        return Err(expect.corrupt(FREE_BYTES, "reserved bytes are not zero"));
    }
    let next = raw.next.get();
    if next >= expect.pages || next == expect.page {
        return Err(expect.corrupt(24, "next free page is not there"));
    }
    Ok(next)
}

/// The changing part of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) seed: u64,
    pub(super) pages: u64,
    pub(super) free_head: u64,
    pub(super) free_count: u64,
    pub(super) hash_bits: u8,
}

impl Header {
    /// Reads page 0 of a directory of `size` bytes.
    pub(super) fn parse(image: &Image, owner: ObjectId, size: u64) -> Result<Header> {
        let corrupt = |offset, what| Error::CorruptDirectory { object: owner, page: 0, offset, what };
        let (raw, _) = HeaderRaw::ref_from_prefix(image).map_err(|_| corrupt(0, "header is cut off"))?;
        if raw.magic != HEADER_MAGIC {
            return Err(corrupt(0, "not a directory's first page"));
        }
        let header = Header {
            seed: raw.seed.get(),
            pages: raw.pages.get(),
            free_head: raw.free_head.get(),
            free_count: raw.free_count.get(),
            hash_bits: raw.hash_bits,
        };
        if header.pages.checked_mul(PAGE_SIZE as u64) != Some(size) {
            return Err(corrupt(16, "number of pages differs from the directory's size"));
        }
        if header.free_head >= header.pages || header.free_count >= header.pages {
            return Err(corrupt(24, "list of free pages is longer than the directory"));
        }
        if (header.free_head == 0) != (header.free_count == 0) {
            return Err(corrupt(24, "list of free pages and its length differ"));
        }
        if header.hash_bits == 0 || header.hash_bits > HASH_BITS {
            return Err(corrupt(40, "impossible number of hash bits"));
        }
        if raw.reserved != [0; 7] {
            return Err(corrupt(41, "reserved bytes are not zero"));
        }
        Ok(header)
    }

    /// Puts it into page 0.
    pub(super) fn put(&self, image: &mut Rolled) {
        let raw = HeaderRaw {
            magic: HEADER_MAGIC,
            seed: self.seed.into(),
            pages: self.pages.into(),
            free_head: self.free_head.into(),
            free_count: self.free_count.into(),
            hash_bits: self.hash_bits,
            reserved: [0; 7],
        };
        image.put(0, raw.as_bytes());
    }
}
