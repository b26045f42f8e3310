//! Numbers kept three times: what two copies say is right.
//!
//! Any value of such a number looks right, and of a wrong one nothing tells later: if up to which transaction an object's changes are durable is struck
//! upwards, a sync answers without logging. So nobody gets a number that only one copy says, and no change is made of one. Two more copies are as cheap
//! to compare as a check is to make, and they put the number right as well.
//!
//! Each copy is kept under a mask of its own: the same byte, written over all of them, makes copies that differ. Of such none is taken, not the highest
//! either, which zeros and ones would make the highest that there is.

use holdfast_object::{Error, Place};

/// No two copies say the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AllDiffer;

/// Nobody knows any more what the epoch has, nor what is durable.
pub(crate) fn lost(what: &str, expected: &str, got: &str) -> Error {
    let what = format!("{what} in memory, to which somebody has written who must not");
    let consequence = "changes since the last recovery point that were not synced are lost; unmount, have the memory tested, and mount again";
    Error::corrupt(Place::default(), what, expected, format!("{got}: {consequence}"))
}

impl AllDiffer {
    /// The same of a number without which nothing can be taken any more.
    pub(crate) fn of(self, what: &str) -> Error {
        lost(what, "the same in two of three copies", "three that differ")
    }
}

const MASKS: [u64; 3] = [0, !0, 0x5555_5555_5555_5555];

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Thrice([u64; 3]);

impl Thrice {
    pub(crate) const fn new(number: u64) -> Thrice {
        Thrice([number ^ MASKS[0], number ^ MASKS[1], number ^ MASKS[2]])
    }

    /// A number that is not known, nor what becomes of it by what is added.
    pub(crate) const fn unknown() -> Thrice {
        Thrice([0, 1, 2])
    }

    pub(crate) fn set(&mut self, number: u64) {
        *self = Thrice::new(number);
    }

    fn said(self) -> [u64; 3] {
        let Thrice([first, second, third]) = self;
        [first ^ MASKS[0], second ^ MASKS[1], third ^ MASKS[2]]
    }

    /// What at least two copies say, if there is such a number.
    pub(crate) fn get(self) -> Option<u64> {
        let [first, second, third] = self.said();
        if first == second || first == third { Some(first) } else { (second == third).then_some(second) }
    }

    /// Which bits differ between copies. Without a branch, as many numbers are asked at a time.
    pub(crate) fn differing(self) -> u64 {
        let [first, second, third] = self.said();
        (first ^ second) | (first ^ third)
    }

    /// Makes a copy anew that says something else than the two others; whether there was one.
    pub(crate) fn heal(&mut self) -> Result<bool, AllDiffer> {
        if self.differing() == 0 {
            return Ok(false);
        }
        self.set(self.get().ok_or(AllDiffer)?);
        Ok(true)
    }

    /// At least this from now on.
    pub(crate) fn raise(&mut self, to: u64) {
        self.set(self.get().map_or(to, |number| number.max(to)));
    }

    /// So much more, modulo 2^64: each copy from itself, so that one that has gone bad stays another one.
    #[inline]
    pub(crate) fn add(&mut self, more: u64) {
        for (copy, mask) in self.0.iter_mut().zip(MASKS) {
            *copy = (*copy ^ mask).wrapping_add(more) ^ mask;
        }
    }

    /// Inverts bits of one copy, as nobody may.
    pub(crate) fn strike(&mut self, copy: usize, bits: u64) {
        self.0[copy % 3] ^= bits;
    }

    /// Writes one byte all over it, as nobody may.
    pub(crate) fn overwrite(&mut self, byte: u8) {
        self.0 = [u64::from_ne_bytes([byte; 8]); 3];
    }
}

impl Default for Thrice {
    fn default() -> Thrice {
        Thrice::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_copies_outvote_one() {
        for copy in 0..3 {
            for bit in 0..u64::BITS {
                let mut number = Thrice::new(77);
                number.strike(copy, 1 << bit);
                assert_eq!((number.get(), number.differing()), (Some(77), 1 << bit), "copy {copy}, bit {bit}");
                assert_eq!((number.heal(), number.heal()), (Ok(true), Ok(false)), "copy {copy}, bit {bit}");
                assert_eq!(number, Thrice::new(77));
            }
        }
    }

    #[test]
    fn what_is_added_makes_no_copy_right() {
        for copy in 0..3 {
            for bit in 0..u64::BITS {
                let mut number = Thrice::new(77);
                number.add(5);
                number.strike(copy, 1 << bit);
                number.add(u64::MAX - 1);
                assert_eq!((number.get(), number.heal()), (Some(80), Ok(true)), "copy {copy}, bit {bit}");
                assert_eq!(number, Thrice::new(80));
            }
        }
    }

    #[test]
    fn of_three_that_differ_none_is_believed() {
        let mut number = Thrice::new(77);
        number.strike(0, 8);
        number.strike(2, 4);
        assert_eq!((number.get(), number.heal()), (None, Err(AllDiffer)));
        number.raise(5);
        assert_eq!(number.get(), Some(5));
        let mut unknown = Thrice::unknown();
        unknown.add(3);
        assert_eq!((unknown.get(), unknown.heal()), (None, Err(AllDiffer)));
        for byte in 0..=u8::MAX {
            number.overwrite(byte);
            assert_eq!((number.get(), number.heal()), (None, Err(AllDiffer)), "{byte:#x} over all copies");
        }
    }
}
