//! What pages of names consist of, field by field: for who writes over them on purpose (`holdfast inject`, the lab). It believes nothing of what
//! the bytes say.

use crate::directory::layout::*;
use crate::xattr;
use holdfast_object::{Kind, PAGE_SIZE, PageIndex};
use std::ops::Range;
use zerocopy::FromBytes;

/// A field of a page: its name, which others may have, too, and where it is.
pub type PageField = (&'static str, Range<usize>);

/// First bytes of a struct's fields, in their order.
macro_rules! form {
    ($raw:ty, $prefix:literal: $($field:ident)*) => {
        &[$((concat!($prefix, stringify!($field)), std::mem::offset_of!($raw, $field)),)*]
    };
}
pub(crate) use form;

/// Fields so far.
#[derive(Default)]
pub(crate) struct Fields {
    all: Vec<PageField>,
    end: usize,
}

impl Fields {
    /// A struct of so many bytes comes next.
    pub(crate) fn put(&mut self, form: &[(&'static str, usize)], bytes: usize) {
        let ends = form.iter().skip(1).map(|(_, first)| *first).chain([bytes]);
        let at = self.end;
        self.all.extend(form.iter().zip(ends).map(|((name, first), end)| (*name, at + first..at + end)));
        self.end += bytes;
    }

    /// So many bytes come next.
    pub(crate) fn bytes(&mut self, name: &'static str, bytes: usize) {
        self.all.push((name, self.end..self.end + bytes));
        self.end += bytes;
    }
}

const HEADER: &[(&str, usize)] = form!(HeaderRaw, "header.": magic seed pages free_head free_count hash_bits reserved);
const NODE: &[(&str, usize)] = form!(NodeRaw, "node.": magic level reserved count used reserved_2 owner page);
const ENTRY: &[(&str, usize)] = form!(EntryRaw, "entry.": key object kind name_length);
const BRANCH: &[(&str, usize)] = form!(BranchRaw, "branch.": key child);
const FREE: &[(&str, usize)] = form!(FreeRaw, "free.": magic reserved owner page next);

fn directory(index: PageIndex, bytes: &[u8; PAGE_SIZE], fields: &mut Fields) {
    if index == 0 {
        fields.put(HEADER, HEADER_BYTES);
    }
    let node = &bytes[node_offset(index)..];
    if node.starts_with(&FREE_MAGIC) {
        return fields.put(FREE, FREE_BYTES);
    }
    let Ok((raw, body)) = NodeRaw::ref_from_prefix(node) else { return };
    fields.put(NODE, NODE_BYTES);
    let mut records = body.get(..usize::from(raw.used.get())).unwrap_or(body);
    if raw.level > 0 {
        return records.chunks_exact(BRANCH_BYTES).for_each(|_| fields.put(BRANCH, BRANCH_BYTES));
    }
    while let Ok((entry, rest)) = EntryRaw::ref_from_prefix(records) {
        let (name, rest) = rest.split_at(usize::from(entry.name_length).min(rest.len()));
        fields.put(ENTRY, ENTRY_BYTES);
        fields.bytes("entry.name", name.len());
        records = rest;
    }
}

/// What is in a page of an object of this kind.
pub fn page_fields(kind: Kind, index: PageIndex, bytes: &[u8; PAGE_SIZE]) -> Vec<PageField> {
    let mut fields = Fields::default();
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    match kind {
        Kind::Directory => directory(index, bytes, &mut fields),
        Kind::Xattr if index == 0 => xattr::fields(bytes, &mut fields),
        Kind::Xattr => fields.bytes("attributes", used),
        Kind::Symlink => fields.bytes("target", used),
        _ => fields.bytes("contents", PAGE_SIZE),
    }
    fields.bytes("behind the end", PAGE_SIZE.saturating_sub(fields.end));
    let mut all = fields.all;
    all.iter_mut().for_each(|(_, range)| range.end = range.end.min(PAGE_SIZE));
    all.retain(|(_, range)| !range.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngCore, SeedableRng};
    use zerocopy::IntoBytes;

    fn page_of(parts: &[&[u8]]) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        let bytes = parts.concat();
        page[..bytes.len()].copy_from_slice(&bytes);
        page
    }

    #[test]
    fn a_leaf_consists_of_its_entries() {
        let entry = |name: &str| {
            let name_length = name.len() as u8;
            let raw = EntryRaw { key: 5.into(), object: 9.into(), kind: 1, name_length };
            [raw.as_bytes(), name.as_bytes()].concat()
        };
        let records = [entry("a"), entry("second")].concat();
        let node = NodeRaw {
            magic: NODE_MAGIC,
            level: 0,
            reserved: 0,
            count: 2.into(),
            used: (records.len() as u16).into(),
            reserved_2: [0; 6],
            owner: 3.into(),
            page: 7.into(),
        };
        let fields = page_fields(Kind::Directory, 7, &page_of(&[node.as_bytes(), &records]));
        let names: Vec<_> = fields.iter().map(|field| field.0).collect();
        let of_entry = ["entry.key", "entry.object", "entry.kind", "entry.name_length", "entry.name"];
        assert_eq!(names[..3], ["node.magic", "node.level", "node.reserved"]);
        assert_eq!((&names[8..13], &names[13..18]), (&of_entry[..], &of_entry[..]));
        assert_eq!(fields[17], ("entry.name", 32 + 19 + 18..32 + 19 + 24));
        assert_eq!(fields[18], ("behind the end", 75..PAGE_SIZE));
    }

    #[test]
    fn fields_of_any_bytes_lie_one_behind_the_other() {
        let seed = rand::random();
        eprintln!("seed {seed}");
        let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        let mut noise = [0; PAGE_SIZE];
        for round in 0..200 {
            random.fill_bytes(&mut noise);
            let kind = [Kind::Directory, Kind::Xattr, Kind::Symlink, Kind::Regular][round % 4];
            for index in 0..2 {
                let mut at = 0;
                for (name, range) in page_fields(kind, index, &noise) {
                    assert_eq!(range.start, at, "{name} of {kind:?}, page {index}");
                    at = range.end;
                }
                assert_eq!(at, PAGE_SIZE);
            }
        }
    }
}
