//! Choosing what is written over, and with what.

use super::{Lab, MetaKind, State, Struck, Target};
use crate::inject::Random;
use holdfast_integrity::crc64_neutral;
use serde::{Deserialize, Serialize};

/// How something is written over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// One bit.
    #[default]
    Bit,
    /// A word of 8 bytes, or less if the field is shorter.
    Word,
    /// 16 to 512 bytes from there on.
    Range,
    /// Bits that leave the CRC of the bytes as it is: multiples of its polynomial.
    KeepChecksum,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Pattern; 4] = [Pattern::Bit, Pattern::Word, Pattern::Range, Pattern::KeepChecksum];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Bit => "bit",
            Pattern::Word => "word",
            Pattern::Range => "range",
            Pattern::KeepChecksum => "keep-checksum",
        }
    }

    /// Bytes to be inverted from byte `at` on, of a field that begins there and has `length` bytes, in a form of `end`: where they begin, and
    /// which bits.
    fn bits(self, at: usize, length: usize, end: usize, random: &mut Random) -> Option<(usize, Vec<u8>)> {
        // One bit at least.
        let some = |count: usize, random: &mut Random| -> Vec<u8> {
            (0..count).map(|nth| random.below(256) as u8 | u8::from(nth == 0)).collect()
        };
        match self {
            Pattern::Bit => {
                let bit = random.below(8 * length as u64) as usize;
                Some((at + bit / 8, vec![1 << (bit % 8)]))
            }
            Pattern::Word => {
                let (word, count) = (random.below((length / 8) as u64) as usize, length.min(8));
                Some((at + 8 * word, some(count, random)))
            }
            Pattern::Range => {
                let most = length.clamp(16, 512).max(16 + random.below(497) as usize);
                Some((at, some(most.min(end - at), random)))
            }
            Pattern::KeepChecksum => {
                // The sum of several is one, too.
                let mut bytes = vec![0; (end - at).min(24)];
                for _ in 0..=random.below(3) {
                    let (first, neutral) = crc64_neutral(8 * at + random.below(8 * length.min(2) as u64) as usize)?;
                    let place = bytes.get_mut(first - at..first - at + neutral.len())?;
                    place.iter_mut().zip(neutral).for_each(|(byte, flipped)| *byte ^= flipped);
                }
                bytes.iter().any(|byte| *byte != 0).then_some((at, bytes))
            }
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What is to be written over: what is not said is decided by the seed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// Of this kind.
    pub kind: MetaKind,
    /// In one of these states; none: in any.
    pub states: Vec<State>,
    /// Of this object of this domain.
    pub object: Option<(u16, u64)>,
    /// On this level.
    pub level: Option<u8>,
    /// With this index.
    pub index: Option<u64>,
    /// In this field.
    pub field: Option<String>,
    /// From this byte of its form on.
    pub offset: Option<usize>,
    /// So many bytes.
    pub length: Option<usize>,
    /// How.
    pub pattern: Pattern,
    /// Decides the rest.
    pub seed: u64,
}

impl Choice {
    /// Of a kind, with nothing said but that.
    pub fn of(kind: MetaKind, pattern: Pattern, seed: u64) -> Choice {
        Choice {
            kind,
            states: Vec::new(),
            object: None,
            level: None,
            index: None,
            field: None,
            offset: None,
            length: None,
            pattern,
            seed,
        }
    }

    fn fits(&self, target: &Target) -> bool {
        (self.states.is_empty() || self.states.contains(&target.state))
            && self.object.is_none_or(|object| target.object == Some(object))
            && self.level.is_none_or(|level| target.level == level)
            && self.index.is_none_or(|index| target.index == index)
    }
}

/// Why nothing was written over.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Missed {
    /// Nothing in memory is what was asked for.
    #[error("nothing of the kind {0} is in memory that is what was asked for")]
    NoSuch(MetaKind),
    /// It has no such field.
    #[error("nothing of the kind {kind} that is there has a field {field}; there are: {fields}")]
    NoField {
        /// What has not.
        kind: MetaKind,
        /// What was asked for.
        field: String,
        /// What there is.
        fields: String,
    },
    /// It ends before.
    #[error("it has {0} bytes, from byte 0 on")]
    Beyond(usize),
    /// The bytes are of no number, or somebody is at work with it.
    #[error("nothing was struck there: no number has these bytes, or somebody is at work with it")]
    Nothing,
}

/// Places that are tried, as a pattern may have no bits where there is a number.
const ATTEMPTS: usize = 8;

impl Lab<'_> {
    /// Writes over what was chosen, as nobody may.
    ///
    /// # Errors
    /// Why nothing was.
    pub fn strike_chosen(&self, choice: &Choice) -> Result<Struck, Missed> {
        let kind = choice.kind;
        let targets: Vec<Target> = self.targets(kind).into_iter().filter(|target| choice.fits(target)).collect();
        if targets.is_empty() {
            return Err(Missed::NoSuch(kind));
        }
        let mut random = Random::new(choice.seed);
        let mut missed = Missed::Nothing;
        for _ in 0..ATTEMPTS {
            let target = &targets[random.below(targets.len() as u64) as usize];
            let Some(layout) = self.layout(target) else { continue };
            let end = layout.slots * layout.slot_bytes;
            let (at, length) = match (&choice.field, choice.offset) {
                (_, Some(at)) => (at, choice.length.unwrap_or(1)),
                (Some(field), None) => {
                    let Some((_, first, length)) = layout.fields.iter().find(|(name, ..)| name == field) else {
                        let fields: Vec<&str> = layout.fields.iter().map(|(name, ..)| name.as_str()).collect();
                        missed = Missed::NoField { kind, field: field.clone(), fields: fields.join(", ") };
                        continue;
                    };
                    // Mostly where something is.
                    let slots = layout.used.len() as u64;
                    let slot = match random.below(8) {
                        0 => random.below(layout.slots as u64) as usize,
                        _ if slots == 0 => 0,
                        _ => layout.used[random.below(slots) as usize],
                    };
                    (slot * layout.slot_bytes + first, choice.length.unwrap_or(*length))
                }
                (None, None) => (random.below(end as u64) as usize, choice.length.unwrap_or(1)),
            };
            if at + length > end || length == 0 {
                return Err(Missed::Beyond(end));
            }
            let Some((at, bits)) = choice.pattern.bits(at, length, end, &mut random) else { continue };
            if let Some(struck) = self.strike(target, at, &bits) {
                return Ok(struck);
            }
        }
        Err(missed)
    }
}
