//! Numbers that are in no block, and are used for as long as the store is open: each has a check beside it, and those that cannot be made anew
//! from something else a copy elsewhere in memory, from which they are put right.

use crate::meta_block::Scribble;
use crate::scribble::Cells;
use std::ops::{AddAssign, SubAssign};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number with a check, which sees each change of one of the two, and one of both but for 2^-64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Guarded {
    number: u64,
    check: u64,
}

const fn check_of(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 0xbf58_476d_1ce4_e5b9
}

impl Guarded {
    pub(crate) const fn new(number: u64) -> Guarded {
        Guarded { number, check: check_of(number) }
    }

    /// # Errors
    /// Somebody has written to it who must not.
    pub(crate) fn get(&self, what: &'static str) -> Result<u64, Scribble> {
        Scribble::unless_equal(what, check_of(self.number), self.check).map(|()| self.number)
    }

    /// As it is, for what is verified afterwards.
    pub(crate) fn unverified(&self) -> u64 {
        self.number
    }

    fn is_good(&self) -> bool {
        check_of(self.number) == self.check
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn scribbled(&mut self) -> &mut u64 {
        &mut self.number
    }
}

/// Where both copies of a block are to be written, or 0, each with a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination([Guarded; 2]);

impl Destination {
    pub(crate) const NONE: Destination = Destination::new([0; 2]);

    pub(crate) const fn new([first, second]: [u64; 2]) -> Destination {
        Destination([Guarded::new(first), Guarded::new(second)])
    }

    /// # Errors
    /// Somebody has written to it who must not.
    pub(crate) fn get(&self) -> Result<[u64; 2], Scribble> {
        let [first, second] = &self.0;
        let what = "address to which a block is to be written";
        Ok([first.get(what)?, second.get(what)?])
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn cells(&mut self) -> Cells<'_> {
        let mut cells = Cells::default();
        for (nth, Guarded { number, check }) in self.0.iter_mut().enumerate() {
            cells.own(&format!("address[{nth}]"), number);
            cells.own(&format!("check of address[{nth}]"), check);
        }
        cells
    }
}

/// A number that changes by differences, with a check that follows these and never the number: what somebody has written to one of the two stays
/// to be seen, whatever changes afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    number: u64,
    check: u64,
}

/// What a difference makes of the check: odd, so that none is lost.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Counted {
    pub(crate) const fn new(number: u64) -> Counted {
        Counted { number, check: !number.wrapping_mul(STEP) }
    }

    /// As it is.
    pub(crate) fn get(&self) -> u64 {
        self.number
    }

    fn change(&mut self, more: u64) {
        self.number = self.number.wrapping_add(more);
        self.check = self.check.wrapping_sub(more.wrapping_mul(STEP));
    }

    /// # Errors
    /// Somebody has written to it who must not.
    pub(crate) fn verified(&self, what: &'static str) -> Result<u64, Scribble> {
        Scribble::unless_equal(what, Counted::new(self.number).check, self.check).map(|()| self.number)
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn cells<'a>(&'a mut self, name: &str, cells: &mut Cells<'a>) {
        cells.own(name, &mut self.number);
        cells.own(&format!("check of {name}"), &mut self.check);
    }
}

impl Default for Counted {
    fn default() -> Counted {
        Counted::new(0)
    }
}

impl AddAssign<u64> for Counted {
    fn add_assign(&mut self, more: u64) {
        self.change(more);
    }
}

impl SubAssign<u64> for Counted {
    fn sub_assign(&mut self, less: u64) {
        self.change(less.wrapping_neg());
    }
}

/// A number that is right as long as one of two places in memory is.
#[derive(Clone, Debug)]
pub(crate) struct Doubled {
    here: Guarded,
    /// Not next to it.
    apart: Box<Guarded>,
}

impl Doubled {
    pub(crate) fn new(number: u64) -> Doubled {
        Doubled { here: Guarded::new(number), apart: Box::new(Guarded::new(number)) }
    }

    pub(crate) fn get(&self) -> u64 {
        if self.here.is_good() || !self.apart.is_good() { self.here.number } else { self.apart.number }
    }

    pub(crate) fn set(&mut self, number: u64) {
        (self.here, *self.apart) = (Guarded::new(number), Guarded::new(number));
    }

    pub(crate) fn add(&mut self, number: u64) {
        self.set(self.get() + number);
    }

    /// Whether both are good.
    pub(crate) fn is_good(&self) -> bool {
        self.here.is_good() && self.here == *self.apart
    }

    /// Puts one right from the other. Gives what was wrong.
    pub(crate) fn heal(&mut self, what: &'static str) -> Option<Scribble> {
        if self.is_good() {
            return None;
        }
        let (here, apart) = (self.here, *self.apart);
        self.set(self.get());
        Scribble::unless_equal(what, self.here.number, here.number)
            .and(Scribble::unless_equal(what, self.here.number, apart.number))
            .and(Scribble::unless_equal(what, self.here.check, here.check))
            .and(Scribble::unless_equal(what, self.here.check, apart.check))
            .err()
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn scribbled(&mut self) -> &mut u64 {
        self.here.scribbled()
    }
}

/// A number with a check, for many readers; who changes it or puts it right holds a lock beside it.
pub(crate) struct Watched {
    number: AtomicU64,
    check: AtomicU64,
}

impl Watched {
    pub(crate) fn new(number: u64) -> Watched {
        Watched { number: AtomicU64::new(number), check: AtomicU64::new(check_of(number)) }
    }

    /// `None`: it is being changed, or somebody has written to it who must not.
    pub(crate) fn get(&self) -> Option<u64> {
        let number = self.number.load(Ordering::Acquire);
        (self.check.load(Ordering::Acquire) == check_of(number)).then_some(number)
    }

    pub(crate) fn set(&self, number: u64) {
        self.number.store(number, Ordering::Release);
        self.check.store(check_of(number), Ordering::Release);
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn scribbled(&self) -> &AtomicU64 {
        &self.number
    }
}

impl Default for Doubled {
    fn default() -> Doubled {
        Doubled::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_difference_makes_a_scribble_right() {
        for flipped in [1, 1 << 63, u64::MAX, 0xff00] {
            let mut number = Counted::new(4711);
            number += 5;
            number -= 6;
            assert_eq!(number.verified("number"), Ok(4710));
            for strike in 0..2 {
                let mut number = number;
                *if strike == 0 { &mut number.number } else { &mut number.check } ^= flipped;
                number += 3;
                number -= 4000;
                assert!(number.verified("number").is_err(), "{flipped:#x}, {strike}");
            }
        }
    }

    #[test]
    fn one_of_two_places_is_enough() {
        for flipped in [1, 1 << 63, u64::MAX, 0xff00] {
            let mut number = Doubled::new(4711);
            for strike in 0..5 {
                assert_eq!(number.heal("number"), None);
                match strike {
                    0 => number.here.number ^= flipped,
                    1 => number.here.check ^= flipped,
                    2 => number.apart.number ^= flipped,
                    3 => number.apart.check ^= flipped,
                    _ => number.here = Guarded { number: flipped, check: flipped },
                }
                assert!(!number.is_good());
                assert_eq!(number.get(), 4711);
                assert!(number.heal("number").is_some() && number.is_good());
                assert_eq!(number.get(), 4711);
            }
        }
    }
}
