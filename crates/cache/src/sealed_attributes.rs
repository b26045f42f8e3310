//! Attributes in memory: kept twice, under a sum that says which of the two is right.
//!
//! What an application set last is nowhere else until a log batch or a recovery point has it, and whoever hands it down makes a checksum of what it
//! finds. So both are compared before they are used, for an answer, for a change, and before they go down; where they differ, the sum decides,
//! and nobody notices. Comparing is as cheap as asking the clock, so it is done each time and not once in a second.
//!
//! Invariant: each change is made of both, and never of one from the other. The sum is made anew only while they are equal, so that a change
//! does not make right what was wrong before.

use crate::object::Object;
use crate::state::State;
use holdfast_object::{Attributes, Corruption, Epoch, Error, NamePlace, ObjectId, Place, Result};
use std::ops::Deref;

/// Neither of the two has the sum that it should.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BothBad {
    expected: u64,
    got: [u64; 2],
    /// In which fields the twin differs.
    differs: String,
}

impl BothBad {
    pub(crate) fn at(self, place: Place) -> Error {
        let BothBad { expected, got: [got, twin], differs } = self;
        Error::Corrupt(Box::new(Corruption {
            place,
            what: "attributes in memory, to which somebody has written who must not".into(),
            expected: format!("sum {expected:#x}"),
            got: format!("{got:#x}, and of the twin {twin:#x}, in which {differs}"),
        }))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct SealedAttributes {
    newest: Attributes,
    twin: Attributes,
    sum: u64,
}

impl SealedAttributes {
    pub(crate) fn new(attributes: Attributes) -> SealedAttributes {
        SealedAttributes { sum: sum(&attributes), twin: attributes.clone(), newest: attributes }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.newest == self.twin
    }

    /// Makes the bad one of the two anew from the good one, if one is bad; then, which fields were.
    pub(crate) fn heal(&mut self) -> std::result::Result<Option<String>, BothBad> {
        if self.is_good() {
            return Ok(None);
        }
        let got = [sum(&self.newest), sum(&self.twin)];
        if got[1] == self.sum {
            let differs = differs(&self.twin, &self.newest);
            self.newest.clone_from(&self.twin);
            Ok(Some(differs))
        } else if got[0] == self.sum {
            let differs = format!("of the twin, {}", differs(&self.newest, &self.twin));
            self.twin.clone_from(&self.newest);
            Ok(Some(differs))
        } else {
            Err(BothBad { expected: self.sum, got, differs: differs(&self.newest, &self.twin) })
        }
    }

    /// In which fields the store has something else, but for the pages, which it counts.
    pub(crate) fn unlike(&self, mut stored: Attributes) -> Option<String> {
        stored.blocks = self.newest.blocks;
        (stored != self.newest).then(|| differs(&self.newest, &stored))
    }

    /// Changes both. Where both are bad they stay so.
    pub(crate) fn change(&mut self, change: impl Fn(&mut Attributes)) {
        let _both_bad = self.heal();
        change(&mut self.newest);
        change(&mut self.twin);
        if self.is_good() {
            self.sum = sum(&self.newest);
        }
    }

    /// One of the two as nobody may.
    pub(crate) fn strike(&mut self, of_twin: bool, strike: impl FnOnce(&mut Attributes)) {
        strike(if of_twin { &mut self.twin } else { &mut self.newest });
    }
}

impl Deref for SealedAttributes {
    type Target = Attributes;

    fn deref(&self) -> &Attributes {
        &self.newest
    }
}

/// Which fields are others than in good ones, by name.
fn differs(good: &Attributes, bad: &Attributes) -> String {
    macro_rules! each {
        ($($field:ident),* $(,)?) => {{
            // All of them, or it does not compile.
            let Attributes { $($field),* } = good;
            [$((*$field != bad.$field).then(|| {
                format!("{}: expected {:?}, got {:?}", stringify!($field), $field, bad.$field)
            })),*]
        }};
    }
    let told = each!(
        kind,
        class,
        generation,
        mode,
        uid,
        gid,
        nlink,
        rdev,
        size,
        blocks,
        entries,
        atime,
        mtime,
        ctime,
        btime,
        parent,
        name_key,
        other_names,
        xattr,
        policy,
        flags,
    );
    told.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Odd, and without a pattern: the first digits of π.
const FACTORS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345];

/// The high half of the product is taken in as well, so that high bits count as much as low ones.
fn mixed(sum: u64, word: u64, factor: usize) -> u64 {
    let product = u128::from(sum ^ word) * u128::from(FACTORS[factor]);
    product as u64 ^ (product >> 64) as u64
}

/// Of all fields. Two chains, so that the processor does two steps at a time.
fn sum(attributes: &Attributes) -> u64 {
    let Attributes {
        kind,
        class,
        generation,
        mode,
        uid,
        gid,
        nlink,
        rdev,
        size,
        blocks,
        entries,
        atime,
        mtime,
        ctime,
        btime,
        parent,
        name_key,
        other_names,
        xattr,
        policy,
        flags,
    } = attributes;
    let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let times = [atime, mtime, ctime, btime];
    let [secs, nanos] = [times.map(|time| time.secs as u64), times.map(|time| u64::from(time.nanos))];
    let first = [
        u64::from(*kind as u8) << 24 | u64::from(*class as u8) << 16 | u64::from(*mode),
        pair(*uid, *gid),
        pair(*nlink, *rdev),
        pair(*flags, u32::from(policy.0)),
        *generation,
        *size,
        *blocks,
        *entries,
        parent.0,
    ];
    let second = [
        secs[0],
        secs[1],
        secs[2],
        secs[3],
        nanos[0] << 32 | nanos[1],
        nanos[2] << 32 | nanos[3],
        xattr.0,
        *name_key,
        other_names.len() as u64,
    ];
    let mut sums = [FACTORS[1], FACTORS[0]];
    for (one, other) in first.into_iter().zip(second) {
        sums = [mixed(sums[0], one, 0), mixed(sums[1], other, 1)];
    }
    for NamePlace { directory, key } in other_names {
        sums = [mixed(sums[0], directory.0, 0), mixed(sums[1], *key, 1)];
    }
    mixed(sums[0], sums[1].rotate_left(32), 1)
}

impl Object {
    /// Both kinds of its attributes; which fields of which had to be made anew.
    fn heal(&mut self) -> std::result::Result<Vec<String>, BothBad> {
        let mut renewed = Vec::new();
        renewed.extend(self.attributes.heal()?);
        renewed.extend(self.stable.heal()?.map(|differs| format!("of those that are durable, {differs}")));
        Ok(renewed)
    }
}

impl State {
    /// Attributes that have gone bad in memory are made anew, and numbers about the object. If both copies of attributes are bad, an object that the store
    /// has as well is forgotten, and read again by whoever wants it.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: they are nowhere else.
    pub(crate) fn heal(&mut self, id: ObjectId) -> Result<()> {
        let Some(object) = self.objects.get(&id) else { return Ok(()) };
        if object.attributes.is_good() && object.stable.is_good() && object.progress.is_good() {
            return Ok(());
        }
        self.heal_progress(id);
        let Some(object) = self.objects.get_mut(&id) else { return Ok(()) };
        let healed = object.heal();
        let changed = object.progress.changed_in();
        let is_stored = object.is_clean() && object.progress.is_written(self.freezing.unwrap_or(self.open.epoch));
        self.note_healed(id, healed, changed).or_else(|error| {
            if !is_stored || self.names_unlogged.contains(&id) || self.brings.contains_key(&id) {
                return Err(error);
            }
            tracing::warn!(%error, "they are read again");
            self.objects.remove(&id);
            self.evictions += 1;
            self.attributes_renewed += 1;
            Ok(())
        })
    }

    /// Says so. `changed`: for which epoch they were last changed legally, if one since the store was opened.
    pub(crate) fn note_healed(
        &mut self,
        id: ObjectId,
        healed: std::result::Result<impl IntoIterator<Item = String>, BothBad>,
        changed: Option<Epoch>,
    ) -> Result<()> {
        let key = self.key(id);
        for differs in healed.map_err(|bad| bad.at(Place { object: Some(key), ..Place::default() }))? {
            self.attributes_renewed += 1;
            let changed = match changed {
                Some(epoch) => format!("last changed legally for epoch {epoch}"),
                None => "not changed legally since they came from the store".into(),
            };
            tracing::warn!(%key, differs, changed, "attributes went bad in memory: their twin takes their place");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::{Class, Kind, Timestamp};

    #[test]
    fn a_change_does_not_make_right_what_was_wrong_before() {
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp::default());
        let mut sealed = SealedAttributes::new(attributes);
        sealed.strike(false, |newest| newest.uid ^= 1);
        sealed.strike(true, |twin| twin.gid ^= 1);
        sealed.change(|both| both.mode = 0o600);
        let bad = sealed.heal().expect_err("both are bad, and it is not known what was right");
        let told = bad.at(Place::default()).to_string();
        assert!(told.ends_with(", in which uid: expected 1, got 0; gid: expected 0, got 1"), "{told}");
    }

    #[test]
    fn what_has_gone_bad_is_told_by_field() {
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 7, Timestamp::default());
        let mut sealed = SealedAttributes::new(attributes.clone());
        assert_eq!(sealed.heal(), Ok(None));
        sealed.strike(false, |newest| (newest.size, newest.mtime.nanos) = (1 << 40, 5));
        let told = sealed.heal().unwrap().expect("healed");
        let mtime = "mtime: expected Timestamp { secs: 0, nanos: 0 }, got Timestamp { secs: 0, nanos: 5 }";
        assert_eq!(told, format!("size: expected 0, got 1099511627776; {mtime}"));
        sealed.strike(true, |twin| twin.gid = 0);
        assert_eq!(sealed.heal(), Ok(Some("of the twin, gid: expected 7, got 0".into())));
        assert_eq!(*sealed, attributes);
    }
}
