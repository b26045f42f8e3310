//! Extended attributes of one file as bytes of an object. `docs/format-directory.md` has the format as a table.
//!
//! A header, then the attributes without gaps, in ascending order of name. All of it is written anew at each change; it
//! is small. An object of no bytes has no attributes.

use crate::error::{Error, Result};
use crate::forms::{Fields, form};
use holdfast_object::ObjectId;
use std::collections::BTreeMap;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest value, in bytes.
pub const XATTR_VALUE_MAX: usize = 65_536;
/// Longest list of names, each with its NUL, in bytes.
pub const XATTR_LIST_MAX: usize = 65_536;
/// Most that the attributes of a file take together, in bytes.
pub const XATTR_TOTAL_MAX: usize = 1 << 20;
/// Longest name, in bytes.
pub(crate) const XATTR_NAME_MAX: usize = 255;

const MAGIC: [u8; 4] = *b"HFXA";

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderRaw {
    magic: [u8; 4],
    /// Attributes.
    count: U32,
    /// The object whose attributes these are.
    owner: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AttributeRaw {
    /// 1..=255; the name follows, then the value.
    name_length: u8,
    reserved: [u8; 3],
    /// 0..=65536
    value_length: U32,
}

const _: () = {
    assert!(size_of::<HeaderRaw>() == 16);
    assert!(size_of::<AttributeRaw>() == 8);
};

/// What the first page of them consists of. It believes nothing of what the bytes say.
pub(crate) fn fields(bytes: &[u8], fields: &mut Fields) {
    fields.put(form!(HeaderRaw, "": magic count owner), size_of::<HeaderRaw>());
    let Ok((header, mut rest)) = HeaderRaw::ref_from_prefix(bytes) else { return };
    for _ in 0..header.count.get() {
        let Ok((raw, tail)) = AttributeRaw::ref_from_prefix(rest) else { return };
        let (name, tail) = tail.split_at(usize::from(raw.name_length).min(tail.len()));
        let (value, tail) = tail.split_at((raw.value_length.get() as usize).min(tail.len()));
        fields.put(form!(AttributeRaw, "attribute.": name_length reserved value_length), size_of::<AttributeRaw>());
        fields.bytes("attribute.name", name.len());
        fields.bytes("attribute.value", value.len());
        rest = tail;
    }
}

/// The attributes of one file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Xattrs(BTreeMap<Vec<u8>, Vec<u8>>);

impl Xattrs {
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    pub(crate) fn set(&mut self, name: &[u8], value: &[u8]) {
        self.0.insert(name.to_vec(), value.to_vec());
    }

    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        self.0.remove(name).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.keys().map(Vec::as_slice)
    }

    /// Bytes of the list of names, each with its NUL.
    pub(crate) fn list_bytes(&self) -> usize {
        self.0.keys().map(|name| name.len() + 1).sum()
    }

    /// Reads what [`Xattrs::encode`] wrote into the object `id`.
    pub(crate) fn decode(bytes: &[u8], id: ObjectId, owner: ObjectId) -> Result<Xattrs> {
        let corrupt = |offset, what| Error::CorruptAttributes { object: id, offset, what };
        if bytes.is_empty() {
            return Ok(Xattrs::default());
        }
        let (header, mut rest) = HeaderRaw::ref_from_prefix(bytes).map_err(|_| corrupt(0, "header is cut off"))?;
        if header.magic != MAGIC {
            return Err(corrupt(0, "not extended attributes"));
        }
        if header.owner.get() != owner.0 {
            return Err(corrupt(8, "attributes of another object"));
        }
        let mut attributes: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        while !rest.is_empty() {
            let at = bytes.len() - rest.len();
            let (raw, tail) = AttributeRaw::ref_from_prefix(rest).map_err(|_| corrupt(at, "attribute is cut off"))?;
            let (name_length, value_length) = (usize::from(raw.name_length), raw.value_length.get() as usize);
            if raw.reserved != [0; 3] || name_length == 0 || value_length > XATTR_VALUE_MAX {
                return Err(corrupt(at, "impossible attribute"));
            }
            let (name, tail) = tail.split_at_checked(name_length).ok_or_else(|| corrupt(at, "name is cut off"))?;
            let (value, tail) = tail.split_at_checked(value_length).ok_or_else(|| corrupt(at, "value is cut off"))?;
            if name.contains(&0) || attributes.last_key_value().is_some_and(|(last, _)| last.as_slice() >= name) {
                return Err(corrupt(at, "names out of order"));
            }
            attributes.insert(name.to_vec(), value.to_vec());
            rest = tail;
        }
        if attributes.len() as u64 != u64::from(header.count.get()) {
            return Err(corrupt(4, "number of attributes is wrong"));
        }
        Ok(Xattrs(attributes))
    }

    /// All of them as bytes.
    pub(crate) fn encode(&self, owner: ObjectId) -> Vec<u8> {
        let header = HeaderRaw { magic: MAGIC, count: (self.0.len() as u32).into(), owner: owner.0.into() };
        let mut bytes = header.as_bytes().to_vec();
        for (name, value) in &self.0 {
            assert!((1..=XATTR_NAME_MAX).contains(&name.len()) && value.len() <= XATTR_VALUE_MAX);
            let (name_length, value_length) = (name.len() as u8, (value.len() as u32).into());
            bytes.extend_from_slice(AttributeRaw { name_length, reserved: [0; 3], value_length }.as_bytes());
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(value);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Xattrs {
        let mut xattrs = Xattrs::default();
        xattrs.set(b"user.b", b"second");
        xattrs.set(b"user.a", b"");
        xattrs.set(b"trusted.long", &[7; 5000]);
        xattrs
    }

    #[test]
    fn goes_round() {
        let (id, owner) = (ObjectId(9), ObjectId(4));
        let bytes = sample().encode(owner);
        assert_eq!(Xattrs::decode(&bytes, id, owner), Ok(sample()));
        assert_eq!(Xattrs::decode(&[], id, owner), Ok(Xattrs::default()));
        assert!(Xattrs::decode(&bytes, id, ObjectId(5)).is_err(), "another file's");
    }

    #[test]
    fn foreign_bytes_are_errors() {
        let (id, owner) = (ObjectId(9), ObjectId(4));
        let bytes = sample().encode(owner);
        for length in 1..bytes.len() {
            assert!(Xattrs::decode(&bytes[..length], id, owner).is_err(), "cut at {length}");
        }
        for at in 0..200 {
            for value in [0, 1, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                // Whatever it says, it does not panic, and what it accepts goes round.
                if let Ok(xattrs) = Xattrs::decode(&bytes, id, owner) {
                    assert_eq!(xattrs.encode(owner), bytes);
                }
            }
        }
    }
}
