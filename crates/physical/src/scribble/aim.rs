//! Writing over what is not the store's but has the same enemies: pages of names in the cache. What they consist of is said by who knows.

use super::Pattern;
use crate::inject::Random;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Where, and with what: what is not said is decided by chance.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Aim {
    /// In a field of this name.
    pub field: Option<String>,
    /// From this byte on.
    pub offset: Option<usize>,
    /// So many bytes.
    pub length: Option<usize>,
    /// How.
    pub pattern: Pattern,
    /// With these bytes, and not by a pattern.
    pub bytes: Option<Vec<u8>>,
}

/// Why nothing was written over.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misaimed {
    /// There is no such field.
    #[error("it has no field {field}; there are: {fields}")]
    NoField {
        /// What was asked for.
        field: String,
        /// What there is.
        fields: String,
    },
    /// It ends before.
    #[error("there is no byte {last}: it has {bytes}, from byte 0 on")]
    Beyond {
        /// The last byte that was asked for.
        last: usize,
        /// How many there are.
        bytes: usize,
    },
    /// The pattern is one of blocks that have slots, or sums beside them.
    #[error(
        "{0} is for blocks of the store's own metadata: a page has no slots, and no two sums that could be taken along"
    )]
    OfBlocks(Pattern),
    /// It would stay as it is.
    #[error("nothing was struck: it has these bytes already, or no room for the pattern")]
    Nothing,
}

/// Places that are tried, as a pattern may have no room where one is.
const ATTEMPTS: usize = 8;

impl Aim {
    /// Bits to be inverted of what has these fields and this form, from a byte on.
    ///
    /// # Errors
    /// See [`Misaimed`].
    pub fn bits(
        &self,
        fields: &[(&'static str, Range<usize>)],
        form: &[u8],
        random: &mut Random,
    ) -> Result<(usize, Vec<u8>), Misaimed> {
        if let Pattern::KeepAll | Pattern::CopySlot = self.pattern {
            return Err(Misaimed::OfBlocks(self.pattern));
        }
        for _ in 0..ATTEMPTS {
            let (at, length) = self.place(fields, form.len(), random)?;
            let last = at.saturating_add(length.max(1) - 1);
            if last >= form.len() {
                return Err(Misaimed::Beyond { last, bytes: form.len() });
            }
            let bits = match &self.bytes {
                Some(bytes) => Some((at, form[at..].iter().zip(bytes).map(|(old, new)| old ^ new).collect())),
                None => self.pattern.bits(at, length, form.len(), self.length, random),
            };
            if let Some((at, bits)) = bits
                && bits.iter().any(|byte: &u8| *byte != 0)
            {
                return Ok((at, bits));
            }
        }
        Err(Misaimed::Nothing)
    }

    /// First byte and length of what is to be written over.
    fn place(
        &self,
        fields: &[(&'static str, Range<usize>)],
        end: usize,
        random: &mut Random,
    ) -> Result<(usize, usize), Misaimed> {
        let length = self.bytes.as_ref().map(Vec::len).or(self.length);
        let Some(field) = &self.field else {
            let at = self.offset.unwrap_or_else(|| random.below(end as u64) as usize);
            return Ok((at, length.unwrap_or(1)));
        };
        let named: Vec<&Range<usize>> =
            fields.iter().filter(|(name, _)| name == field).map(|(_, range)| range).collect();
        if named.is_empty() {
            let mut all: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            all.sort_unstable();
            all.dedup();
            return Err(Misaimed::NoField { field: field.clone(), fields: all.join(", ") });
        }
        let Range { start, end } = named[random.below(named.len() as u64) as usize].clone();
        // Anywhere in it, if it is to begin there.
        let skipped = match (self.pattern, length) {
            (Pattern::KeepChecksum, None) => random.below((end - start) as u64) as usize,
            _ => 0,
        };
        Ok((start + skipped, length.unwrap_or(end - start - skipped)))
    }
}

/// The name of the field that has a byte.
pub fn field_of(fields: &[(&'static str, Range<usize>)], at: usize) -> &'static str {
    fields.iter().find(|(_, range)| range.contains(&at)).map_or("nothing", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_integrity::crc64;

    const FIELDS: &[(&str, Range<usize>)] = &[("head", 0..4), ("twice", 4..12), ("twice", 12..20), ("rest", 20..64)];

    #[test]
    fn what_is_struck_is_where_and_as_it_was_said() {
        let form: [u8; 64] = std::array::from_fn(|at| at as u8);
        let (mut met, of) = ([0; 2], |aim: &Aim, seed| aim.bits(FIELDS, &form, &mut Random::new(seed)));
        for seed in 0..300 {
            let field = |name: &str, pattern| Aim { field: Some(name.into()), pattern, ..Aim::default() };
            let (at, bits) = of(&field("twice", Pattern::Bit), seed).unwrap();
            assert_eq!((field_of(FIELDS, at), bits.len(), bits[0].count_ones()), ("twice", 1, 1));
            met[usize::from(at >= 12)] += 1;
            let (at, bits) = of(&field("rest", Pattern::KeepChecksum), seed).unwrap();
            let mut other = form;
            other[at..].iter_mut().zip(&bits).for_each(|(byte, bits)| *byte ^= bits);
            assert!(at >= 20 && other != form && crc64(&other) == crc64(&form), "seed {seed}");
            let aim = Aim { offset: Some(9), length: Some(3), pattern: Pattern::Range, ..Aim::default() };
            let (at, bits) = of(&aim, seed).unwrap();
            assert_eq!((at, bits.len()), (9, 3));
        }
        assert!(met.iter().all(|met| *met > 50), "{met:?}");
        let bytes = Aim { field: Some("head".into()), bytes: Some(vec![0, 9]), ..Aim::default() };
        assert_eq!(of(&bytes, 1), Ok((0, vec![0, 8])));
        assert_eq!(of(&Aim { bytes: Some(vec![0, 1]), ..bytes }, 1), Err(Misaimed::Nothing));
        let beyond = Aim { offset: Some(60), length: Some(5), pattern: Pattern::Range, ..Aim::default() };
        assert_eq!(of(&beyond, 1), Err(Misaimed::Beyond { last: 64, bytes: 64 }));
        for pattern in [Pattern::KeepAll, Pattern::CopySlot] {
            assert_eq!(of(&Aim { pattern, ..Aim::default() }, 1), Err(Misaimed::OfBlocks(pattern)));
        }
        let none = of(&Aim { field: Some("tail".into()), ..Aim::default() }, 1).unwrap_err();
        assert_eq!(none.to_string(), "it has no field tail; there are: head, rest, twice");
    }
}
