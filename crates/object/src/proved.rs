//! What requests prove of names, as sums over what attributes of objects say: from the request, which has held them against the pages of
//! directories, they go down with its transaction, and whoever makes a recovery point holds them against its records.

use crate::{Attributes, Kind, NamePlace, ObjectId};
use holdfast_integrity::SetDigest;
use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign, Sub};

/// A number for an entry or a link, that of the object with its kind. Ids have 48 bits.
pub fn link_number(object: ObjectId, kind: u8) -> u64 {
    object.0 | u64::from(kind) << 48
}

/// A number for three numbers, such that others are most unlikely to have the same.
pub fn mixed([first, second, third]: [u64; 3]) -> u64 {
    // Odd multiples (the digits of square roots: of 2, 3 and 5), and the finalizer of SplitMix64.
    let sum = first.wrapping_mul(0x6a09_e667_f3bc_c909);
    let sum = sum.wrapping_add(second.wrapping_mul(0xbb67_ae85_84ca_a73b));
    let mut mixed = sum.wrapping_add(third.wrapping_mul(0x3c6e_f372_fe94_f82b));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A number for a name of an object.
pub fn name_number(object: ObjectId, place: NamePlace) -> u64 {
    mixed([object.0, place.directory.0, place.key])
}

/// Of objects, or of how their attributes differ between two states. Modulo 2^64, as all sums of the audits: in any order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Proved {
    /// Link counts, by [`link_number`]. Objects with extended attributes have none that anything names.
    pub links: SetDigest,
    /// Entries that directories say they have, by directory.
    pub entries: SetDigest,
    /// Objects without a name.
    pub nameless: SetDigest,
    /// Names that objects list, by [`name_number`].
    pub names: SetDigest,
}

impl Proved {
    /// Of no object.
    pub const NOTHING: Proved = Proved {
        links: SetDigest::NOTHING,
        entries: SetDigest::NOTHING,
        nameless: SetDigest::NOTHING,
        names: SetDigest::NOTHING,
    };

    /// What the sums are of, in the order of [`Proved::sums`].
    pub const NAMES: [&str; 4] = ["links", "entries", "nameless", "names"];

    /// Of an object that says so. Of names that it has in two states nothing need be said in either.
    #[inline]
    pub fn of(id: ObjectId, kind: Kind, nlink: u32, entries: u64, names: impl Iterator<Item = NamePlace>) -> Proved {
        let (number, mut of_object) = (SetDigest::of(id.0), Proved::NOTHING);
        if kind != Kind::Xattr {
            of_object.links = SetDigest::of(link_number(id, kind as u8)).times(nlink.into());
        }
        if kind == Kind::Directory {
            of_object.entries = number.times(entries);
        }
        if nlink == 0 {
            of_object.nameless = number;
        }
        names.for_each(|place| of_object.names += SetDigest::of(name_number(id, place)));
        of_object
    }

    /// Of an object with these attributes.
    pub fn by(id: ObjectId, attributes: &Attributes) -> Proved {
        Proved::of(id, attributes.kind, attributes.nlink, attributes.entries, attributes.names())
    }

    /// All of them, in the order of their names.
    pub fn sums(self) -> [SetDigest; Proved::NAMES.len()] {
        let Proved { links, entries, nameless, names } = self;
        [links, entries, nameless, names]
    }

    /// From all of them, in the same order.
    pub fn from_sums([links, entries, nameless, names]: [SetDigest; Proved::NAMES.len()]) -> Proved {
        Proved { links, entries, nameless, names }
    }
}

impl Add for Proved {
    type Output = Proved;

    #[inline]
    fn add(self, other: Proved) -> Proved {
        Proved {
            links: self.links + other.links,
            entries: self.entries + other.entries,
            nameless: self.nameless + other.nameless,
            names: self.names + other.names,
        }
    }
}

impl AddAssign for Proved {
    #[inline]
    fn add_assign(&mut self, other: Proved) {
        *self = *self + other;
    }
}

impl Sub for Proved {
    type Output = Proved;

    #[inline]
    fn sub(self, other: Proved) -> Proved {
        Proved {
            links: self.links - other.links,
            entries: self.entries - other.entries,
            nameless: self.nameless - other.nameless,
            names: self.names - other.names,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Class, Timestamp};

    /// Which sums of an object are others if its attributes change so.
    fn differing(kind: Kind, change: fn(&mut Attributes)) -> Vec<&'static str> {
        let mut attributes = Attributes::new(kind, Class::Names, 0o644, 0, 0, Timestamp::default());
        (attributes.nlink, attributes.parent, attributes.name_key) = (1, ObjectId(3), 256);
        let by = |attributes: &Attributes| Proved::by(ObjectId(9), attributes);
        let before = by(&attributes);
        change(&mut attributes);
        let more = by(&attributes) - before;
        assert_eq!(before + more, by(&attributes));
        assert_eq!(Proved::from_sums(more.sums()), more);
        let sums = Proved::NAMES.into_iter().zip(more.sums());
        sums.filter(|(_, sum)| *sum != SetDigest::NOTHING).map(|(name, _)| name).collect()
    }

    #[test]
    fn each_field_is_in_its_sum() {
        let other = |of: &mut Attributes| of.other_names.push(NamePlace { directory: ObjectId(4), key: 512 });
        for kind in [Kind::Directory, Kind::Regular, Kind::Symlink] {
            assert_eq!(differing(kind, |of| of.nlink = 2), ["links"], "{kind:?}");
            assert_eq!(differing(kind, |of| of.nlink = 0), ["links", "nameless"], "{kind:?}");
            assert_eq!(differing(kind, |of| of.name_key = 257), ["names"], "{kind:?}");
            assert_eq!(differing(kind, |of| of.parent = ObjectId(4)), ["names"], "{kind:?}");
            assert_eq!(differing(kind, other), ["names"], "{kind:?}");
            assert!(differing(kind, |of| of.mode = 0).is_empty(), "{kind:?}");
        }
        assert_eq!(differing(Kind::Directory, |of| of.entries = 1), ["entries"]);
        assert!(differing(Kind::Regular, |of| of.entries = 1).is_empty());
        assert!(differing(Kind::Xattr, |of| of.nlink = 2).is_empty());
        assert_eq!(differing(Kind::Regular, |of| of.kind = Kind::Fifo), ["links"]);
    }
}
