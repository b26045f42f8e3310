//! Two sums of something that is kept decoded: of the form that it is encoded to.

use crate::meta_block::Scribble;
use holdfast_integrity::{crc64, crc64_flips};

/// Longest form.
const FORM_BYTES: usize = 1024;

/// The CRC-64 of a form, and a second sum, which sees what a CRC cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FormSums {
    pub(crate) crc: u64,
    second: u64,
}

/// Odd, and unlike each other: SplitMix64.
const WEIGHTS: [u64; FORM_BYTES / 8] = {
    let mut weights = [0; FORM_BYTES / 8];
    let mut at = 0;
    while at < weights.len() {
        let mut z = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        weights[at] = (z ^ (z >> 31)) | 1;
        at += 1;
    }
    weights
};

impl FormSums {
    /// Of whole words, 128 at most.
    pub(crate) fn of(form: &[u8]) -> FormSums {
        let (words, rest) = form.as_chunks::<8>();
        debug_assert!(rest.is_empty() && form.len() <= FORM_BYTES);
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let second =
            words.zip(&WEIGHTS).fold(0, |sum: u64, (word, weight)| sum.wrapping_add(word.wrapping_mul(*weight)));
        FormSums { crc: crc64(form), second }
    }

    /// The form as it was, if one word of it alone is another one now: found by both sums.
    pub(crate) fn before(&self, form: &[u8]) -> Option<Vec<u8>> {
        let got = FormSums::of(form);
        let words = form.as_chunks::<8>().0.iter().zip(&WEIGHTS).enumerate().rev();
        let (at, word) = words.zip(crc64_flips(self.crc ^ got.crc)).find_map(|((at, (word, weight)), flips)| {
            let is = u64::from_le_bytes(*word);
            let grown = (is ^ flips).wrapping_sub(is).wrapping_mul(*weight);
            (flips != 0 && got.second.wrapping_add(grown) == self.second).then_some((at, is ^ flips))
        })?;
        let mut before = form.to_vec();
        before[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        Some(before)
    }

    /// Whether these are those of a form. `names` of the two.
    ///
    /// # Errors
    /// They are not: somebody has written to it who must not.
    pub(crate) fn verify(&self, form: &[u8], names: [&'static str; 2]) -> Result<(), Scribble> {
        let got = FormSums::of(form);
        Scribble::unless_equal(names[0], self.crc, got.crc)?;
        Scribble::unless_equal(names[1], self.second, got.second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_that_has_gone_bad_is_known_by_the_sums() {
        let form: [u8; 512] = std::array::from_fn(|at| (at * 7) as u8);
        let sums = FormSums::of(&form);
        for at in [0, 7, 8, 300, 511] {
            let mut bad = form;
            bad[at] ^= 0x41;
            assert_eq!(sums.before(&bad).as_deref(), Some(&form[..]), "byte {at}");
        }
        assert_eq!(sums.before(&form), None, "nothing has");
        let mut bad = form;
        (bad[0], bad[100]) = (9, 9);
        assert_eq!(sums.before(&bad), None, "two have");
        assert_eq!(FormSums { crc: sums.crc ^ 4, ..sums }.before(&form), None, "the sum has");
    }
}
