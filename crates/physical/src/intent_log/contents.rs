//! What the blocks of the log's area hold, by their sector sums: heads of batches tell it of what is written over.
//!
//! Of a block of which it is not known, nothing is told. So what has gone bad here is not known any more, and goes nowhere.

use crate::disk::Disk;
use crate::format::log::{SectorSums, sector_sums};
use crate::meta_block::Scribble;
use zerocopy::transmute;

/// Of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    sums: SectorSums,
    /// See [`weigh`]; of a block of which nothing is known, [`UNKNOWN`]'s.
    check: u64,
}

const UNKNOWN: Known = Known { sums: [0; 8], check: 0x756e_6b6e_6f77_6e21 };

/// Odd.
const WEIGHTS: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];

/// One for each sum that differs, whatever it is, and for others but one in 2^64.
fn weigh(sums: &SectorSums) -> u64 {
    let words: [u64; 4] = transmute!(*sums);
    words.into_iter().zip(WEIGHTS).fold(0, |sum: u64, (word, weight)| sum.wrapping_add(word.wrapping_mul(weight)))
}

impl Known {
    fn of(sums: SectorSums) -> Known {
        Known { check: weigh(&sums), sums }
    }

    /// # Errors
    /// Somebody has written to it who must not.
    fn get(&self) -> Result<Option<SectorSums>, Scribble> {
        if *self == UNKNOWN {
            return Ok(None);
        }
        let what = "sum of what is known of a block of the intent log";
        Scribble::unless_equal(what, self.check, weigh(&self.sums)).map(|()| Some(self.sums))
    }
}

/// By block of the area.
#[derive(Default)]
pub(super) struct Contents(Vec<Known>);

impl Contents {
    /// All blocks, as they were read: `None` for those that could not be.
    pub(super) fn note_read<'a>(&mut self, blocks: impl Iterator<Item = Option<&'a [u8; 4096]>>) {
        self.0 = blocks.map(|block| block.map_or(UNKNOWN, |block| Known::of(sector_sums(block)))).collect();
    }

    /// This one has been written since, who knows with what.
    pub(super) fn forget(&mut self, at: usize) {
        self.0[at] = UNKNOWN;
    }

    /// What has been written from there on.
    pub(super) fn note_written(&mut self, at: usize, sums: impl Iterator<Item = SectorSums>) {
        for (known, sums) in self.0[at..].iter_mut().zip(sums) {
            *known = Known::of(sums);
        }
    }

    /// What so many blocks hold from there on, if it is known of all of them.
    pub(super) fn of_run(&mut self, at: usize, count: usize, disk: &Disk) -> Option<Vec<SectorSums>> {
        let run = self.0.get_mut(at..at + count)?;
        let mut all = Some(Vec::with_capacity(count));
        for known in run {
            let sums = known.get().unwrap_or_else(|scribble| {
                *known = UNKNOWN;
                disk.note_scribble(scribble, None, "it is not known any more what the block holds");
                None
            });
            match (sums, &mut all) {
                (Some(sums), Some(all)) => all.push(sums),
                (None, _) => all = None,
                (Some(_), None) => {}
            }
        }
        all
    }

    pub(super) fn blocks(&self) -> usize {
        self.0.len()
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(super) fn scribbled(&mut self, at: usize) -> Option<&mut SectorSums> {
        self.0.get_mut(at).map(|known| &mut known.sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_of_what_is_known_of_a_block_counts() {
        let known = Known::of([0x1357_9bdf; 8]);
        assert_eq!(known.get(), Ok(Some(known.sums)));
        for bit in 0..32 * 8 {
            let mut struck = known;
            struck.sums[bit / 32] ^= 1 << (bit % 32);
            struck.get().unwrap_err();
        }
        for bit in 0..64 {
            Known { check: known.check ^ 1 << bit, ..known }.get().unwrap_err();
        }
        assert_eq!(UNKNOWN.get(), Ok(None));
    }
}
