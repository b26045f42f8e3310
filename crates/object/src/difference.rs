//! In which bytes a page or block in memory differs from a good copy of it: for whoever is to find out who has written there.

use crate::PAGE_SIZE;
use std::fmt::Write;

/// Most bytes that are told.
const BYTES_MAX: usize = 16;

/// Of two pages that are not the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// How many bytes differ.
    pub count: usize,
    /// The first one that does.
    pub first: usize,
    /// The last one that does.
    pub last: usize,
    /// What the good copy has from the first one on, in hexadecimal digits; 16 bytes at most.
    pub good: String,
    /// What the bad one has there.
    pub bad: String,
}

impl Difference {
    /// `None` if they are the same.
    pub fn between(good: &[u8; PAGE_SIZE], bad: &[u8; PAGE_SIZE]) -> Option<Difference> {
        let differs = |at: &usize| good[*at] != bad[*at];
        let (first, last) = ((0..PAGE_SIZE).find(differs)?, (0..PAGE_SIZE).rev().find(differs)?);
        let count = (first..=last).filter(differs).count();
        let end = last.min(first + BYTES_MAX - 1);
        let hex = |bytes: &[u8; PAGE_SIZE]| {
            bytes[first..=end].iter().fold(String::new(), |mut hex, byte| {
                // Writing to a string does not fail.
                let _ = write!(hex, "{byte:02x}");
                hex
            })
        };
        let more = if end < last { "…" } else { "" };
        let [good, bad] = [good, bad].map(|bytes| hex(bytes) + more);
        Some(Difference { count, first, last, good, bad })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_named() {
        let good = [7; PAGE_SIZE];
        let mut bad = good;
        assert_eq!(Difference::between(&good, &bad), None);
        (bad[100], bad[102]) = (0, 255);
        let (first, last) = (100, 102);
        let expected = Difference { count: 2, first, last, good: "070707".into(), bad: "0007ff".into() };
        assert_eq!(Difference::between(&good, &bad), Some(expected));
        bad[4095] = 1;
        let told = Difference::between(&good, &bad).unwrap();
        assert_eq!((told.count, told.last, told.good), (3, 4095, "07".repeat(16) + "…"));
    }
}
