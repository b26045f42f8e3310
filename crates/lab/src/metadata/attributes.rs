//! Attributes of objects in the cache, which has them before the store does.

use holdfast_cache::{ATTRIBUTE_FIELDS, AttributesCopy, Cache};
use holdfast_object::ObjectId;
use holdfast_physical::inject::Random;
use holdfast_physical::scribble::{Pattern, State};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How a field of a copy is called.
fn prefix(copy: AttributesCopy) -> &'static str {
    match copy {
        AttributesCopy::Newest => "",
        AttributesCopy::TwinOfNewest => "twin of ",
        AttributesCopy::Stable => "stable ",
        AttributesCopy::TwinOfStable => "twin of stable ",
        AttributesCopy::Frozen => "frozen ",
        AttributesCopy::TwinOfFrozen => "twin of frozen ",
    }
}

/// Most fields that a range reaches over.
const RANGE_FIELDS: u64 = 8;

/// The attributes of a stack's cache.
pub(super) struct Attributes {
    cache: Arc<Cache>,
    /// What is struck is of one of these, if one of them has it.
    pub(super) about: Vec<ObjectId>,
}

impl Attributes {
    pub(super) fn new(cache: Arc<Cache>) -> Attributes {
        Attributes { cache, about: Vec::new() }
    }

    /// Of which there is such a copy.
    fn objects(&self, copy: AttributesCopy) -> impl Iterator<Item = (ObjectId, State)> {
        let resident = self.cache.resident_objects().into_iter();
        // Snapshots have theirs, too; those of live objects are what changes.
        let live =
            resident.filter(move |known| known.object.live() == known.object && (known.is_frozen || !copy.is_frozen()));
        live.map(|known| (known.object, if known.is_changed { State::Changed } else { State::Clean }))
    }

    /// What can be struck.
    pub(super) fn survey(&self) -> BTreeSet<(State, String)> {
        let of_copy = |copy| {
            let states: BTreeSet<State> = self.objects(copy).map(|(_, state)| state).collect();
            let fields =
                move |state| ATTRIBUTE_FIELDS.iter().map(move |(field, _)| (state, format!("{}{field}", prefix(copy))));
            states.into_iter().flat_map(fields)
        };
        AttributesCopy::ALL.into_iter().flat_map(of_copy).collect()
    }

    /// Strikes; tells what was hit.
    pub(super) fn strike(&self, state: State, field: &str, pattern: Pattern, seed: u64) -> Option<String> {
        let mut random = Random::new(seed);
        // The longest that fits: "twin of stable" has all others in it.
        let mut copies = AttributesCopy::ALL.to_vec();
        copies.sort_by_key(|copy| std::cmp::Reverse(prefix(*copy).len()));
        let (copy, field) = copies.into_iter().find_map(|copy| Some((copy, field.strip_prefix(prefix(copy))?)))?;
        let objects = self.objects(copy).filter(|(_, is)| *is == state).map(|(object, _)| object);
        let mut objects: Vec<ObjectId> = objects.collect();
        if objects.iter().any(|object| self.about.contains(object)) {
            objects.retain(|object| self.about.contains(object));
        }
        let object = *objects.get(random.below(objects.len() as u64) as usize)?;
        let first = ATTRIBUTE_FIELDS.iter().position(|(name, _)| *name == field)?;
        let word = |random: &mut Random| 1 + random.below(u64::MAX);
        // There is no CRC to keep. What a sum without a memory of places would not see is the same change twice.
        let same = word(&mut random);
        type Bits = Box<dyn FnMut(&mut Random) -> u64>;
        let (count, mut bits): (u64, Bits) = match pattern {
            Pattern::Bit => (1, Box::new(|random| 1 << random.below(16))),
            Pattern::Word => (1, Box::new(word)),
            Pattern::Range => (2 + random.below(RANGE_FIELDS - 1), Box::new(word)),
            Pattern::KeepChecksum => (2, Box::new(move |_| same)),
            Pattern::KeepAll | Pattern::CopySlot => return None,
        };
        let mut hit = Vec::new();
        for (name, _) in ATTRIBUTE_FIELDS.iter().skip(first).take(count as usize) {
            let bits = bits(&mut random);
            if !self.cache.strike_attributes(object, copy, name, bits) {
                return None;
            }
            hit.push(format!("{name} by {bits:#x}"));
        }
        Some(format!("{object}, {}{} ({})", prefix(copy), hit.join(", "), state.name()))
    }
}
