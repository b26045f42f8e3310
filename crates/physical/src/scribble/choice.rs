//! Choosing what is written over, and with what.

use super::{Lab, Layout, LogicBug, MetaKind, State, Struck, Target, Write};
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
    /// A word, and both sums of the block follow it, as if it were bits that neither of them sees: only the audit can find it, if it has an equation for
    /// what is struck, and something legal is changed in that place.
    KeepAll,
    /// A whole slot becomes what another one of the same block is: what it says is good, and of another place. In no field.
    CopySlot,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Pattern; 6] =
        [Pattern::Bit, Pattern::Word, Pattern::Range, Pattern::KeepChecksum, Pattern::KeepAll, Pattern::CopySlot];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Bit => "bit",
            Pattern::Word => "word",
            Pattern::Range => "range",
            Pattern::KeepChecksum => "keep-checksum",
            Pattern::KeepAll => "keep-all",
            Pattern::CopySlot => "copy-slot",
        }
    }

    /// Bytes to be inverted from byte `at` on, of a field that begins there and has `length` bytes, in a form of `end`: where they begin, and
    /// which bits. A range has as many bytes as were `asked` for. `None` if there is no room, and for [`Pattern::KeepAll`] and [`Pattern::CopySlot`], which are of a block.
    pub(super) fn bits(
        self,
        at: usize,
        length: usize,
        end: usize,
        asked: Option<usize>,
        random: &mut Random,
    ) -> Option<(usize, Vec<u8>)> {
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
            Pattern::Range if asked.is_some() => Some((at, some(length, random))),
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
            Pattern::KeepAll | Pattern::CopySlot => None,
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
    /// In this slot of its form.
    pub slot: Option<usize>,
    /// From this byte of its form on, or, with a slot, of that.
    pub offset: Option<usize>,
    /// So many bytes.
    pub length: Option<usize>,
    /// How.
    pub pattern: Pattern,
    /// With these bytes, and not by a pattern; with [`Pattern::KeepAll`] the sums follow them.
    pub bytes: Option<Vec<u8>>,
    /// Outside of any window, as who must not: where the memory is locked, this ends the process.
    pub astray: bool,
    /// Decides the rest.
    pub seed: u64,
}

impl Choice {
    /// First byte and length of what is to be written over.
    fn place(&self, layout: &Layout, random: &mut Random) -> Result<(usize, usize), Missed> {
        let length = self.bytes.as_ref().map(Vec::len).or(self.length);
        let of_slot = self.slot.map(|slot| slot.saturating_mul(layout.slot_bytes));
        let (first, of_field) = match (&self.field, self.offset) {
            (_, Some(offset)) => return Ok((of_slot.unwrap_or(0).saturating_add(offset), length.unwrap_or(1))),
            (Some(field), None) => {
                let found = layout.fields.iter().find(|(name, ..)| name == field);
                let (_, first, length) = found.ok_or_else(|| {
                    let fields: Vec<&str> = layout.fields.iter().map(|(name, ..)| name.as_str()).collect();
                    Missed::NoField { kind: self.kind, field: field.clone(), fields: fields.join(", ") }
                })?;
                (*first, *length)
            }
            (None, None) => {
                let slot = of_slot.unwrap_or_else(|| random.below(layout.slots as u64) as usize * layout.slot_bytes);
                return Ok((slot.saturating_add(layout.some_byte(random)), length.unwrap_or(1)));
            }
        };
        let slots = layout.used.len() as u64;
        let slot = match of_slot {
            Some(slot) => slot,
            // Mostly where something is.
            None => {
                let slot = match random.below(8) {
                    0 => random.below(layout.slots as u64) as usize,
                    _ if slots == 0 => 0,
                    _ => layout.used[random.below(slots) as usize],
                };
                slot * layout.slot_bytes
            }
        };
        Ok((slot.saturating_add(first), length.unwrap_or(of_field)))
    }

    /// Of a kind, with nothing said but that.
    pub fn of(kind: MetaKind, pattern: Pattern, seed: u64) -> Choice {
        Choice {
            kind,
            states: Vec::new(),
            object: None,
            level: None,
            index: None,
            field: None,
            slot: None,
            offset: None,
            length: None,
            pattern,
            bytes: None,
            astray: false,
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
    #[error("{target}: there is no byte {last}: it has {bytes}, from byte 0 on")]
    Beyond {
        /// What does.
        target: Target,
        /// The last byte that was asked for.
        last: usize,
        /// How long it is.
        bytes: usize,
    },
    /// It has one form, and not several slots of the same.
    #[error("{0} does not consist of slots, of which one could become what another one is")]
    NoSlots(MetaKind),
    /// It is no block that has sums beside it.
    #[error("{0} is no block with two sums of its own that could be taken along")]
    NoSums(MetaKind),
    /// It is in memory that is never locked.
    #[error("{0} is not kept in memory that is locked, so nothing can go astray there")]
    NeverLocked(MetaKind),
    /// The bytes are of no number, or somebody is at work with it.
    #[error("{0}: nothing was struck: no number has these bytes, they are so already, or somebody is at work with it")]
    Nothing(Target),
    /// There is nothing to which a logic bug could happen.
    #[error("there is nothing now to which {0} could happen")]
    NothingFor(LogicBug),
    /// What leads there cannot be read.
    #[error("{0}")]
    Unread(String),
}

/// Places that are tried, as a pattern may have no bits where there is a number.
const ATTEMPTS: usize = 8;

impl Lab<'_> {
    /// What of the kind that was chosen is in memory and fits.
    pub fn chosen(&self, choice: &Choice) -> Vec<Target> {
        self.targets(choice.kind).into_iter().filter(|target| choice.fits(target)).collect()
    }

    /// Writes over what was chosen, as nobody may.
    ///
    /// # Errors
    /// Why nothing was.
    pub fn strike_chosen(&self, choice: &Choice) -> Result<Struck, Missed> {
        let kind = choice.kind;
        let targets = self.chosen(choice);
        if targets.is_empty() {
            return Err(Missed::NoSuch(kind));
        }
        if choice.astray && !kind.is_lockable() {
            return Err(Missed::NeverLocked(kind));
        }
        let is_copy = choice.pattern == Pattern::CopySlot && choice.bytes.is_none();
        if is_copy && !kind.has_slots() {
            return Err(Missed::NoSlots(kind));
        }
        let is_unseen = choice.pattern == Pattern::KeepAll;
        if is_unseen && (!kind.is_block() || choice.astray) {
            return Err(Missed::NoSums(kind));
        }
        let mut random = Random::new(choice.seed);
        let mut missed = Missed::Nothing(targets[0]);
        for _ in 0..ATTEMPTS {
            let target = &targets[random.below(targets.len() as u64) as usize];
            let Some(layout) = self.layout(target) else { continue };
            if is_copy {
                match self.copy_slot(target, &layout, choice, &mut random) {
                    Some(struck) => return Ok(struck),
                    None => missed = Missed::Nothing(*target),
                }
                continue;
            }
            let end = layout.slots * layout.slot_bytes;
            let (at, length) = match choice.place(&layout, &mut random) {
                Ok(place) => place,
                Err(refusal) => {
                    missed = refusal;
                    continue;
                }
            };
            let last = at.saturating_add(length.max(1) - 1);
            if last >= end {
                return Err(Missed::Beyond { target: *target, last, bytes: end });
            }
            let struck = match &choice.bytes {
                Some(bytes) if is_unseen => self.with(target, |form| form.bytes()).and_then(|form| {
                    let bits: Vec<u8> = form[at..].iter().zip(bytes).map(|(old, new)| old ^ new).collect();
                    self.strike_unseen(target, at, &bits)
                }),
                Some(bytes) => self.write(target, at, Write::Bytes(bytes), choice.astray),
                None if is_unseen => {
                    let bits = Pattern::Word.bits(at, length, end, None, &mut random);
                    bits.and_then(|(at, bits)| self.strike_unseen(target, at, &bits))
                }
                None => choice
                    .pattern
                    .bits(at, length, end, choice.length, &mut random)
                    .and_then(|(at, bits)| self.write(target, at, Write::Flip(&bits), choice.astray)),
            };
            match struck {
                Some(struck) => return Ok(struck),
                None => missed = Missed::Nothing(*target),
            }
        }
        Err(missed)
    }

    /// A slot in which something is becomes what another one is; the one that was chosen, or that has the byte that was.
    fn copy_slot(&self, target: &Target, layout: &Layout, choice: &Choice, random: &mut Random) -> Option<Struck> {
        let some = |slots: &[usize], random: &mut Random| slots.get(random.below(slots.len() as u64) as usize).copied();
        let said = choice.slot.or(choice.offset.map(|offset| offset / layout.slot_bytes));
        let slot = said.or_else(|| some(&layout.used, random))?;
        let others: Vec<usize> = layout.used.iter().copied().filter(|other| *other != slot).collect();
        let other = some(&others, random)? * layout.slot_bytes;
        let bytes = self.with(target, |form| form.bytes())?;
        let bytes = &bytes[other..other + layout.slot_bytes];
        self.write(target, slot * layout.slot_bytes, Write::Bytes(bytes), choice.astray)
    }
}
