//! Runs of blocks that the epoch being built adds to a dead list. They are in no block yet, so nothing else has sums of them.
//!
//! Invariant: the sum is that of the runs as they were put in, which is compared before they go into blocks. The equations of the audit
//! alone would not do: two of them are sums of numbers, in which a difference in the uppermost bits of a run's place vanishes if it has an
//! even number of blocks.

use crate::format::DeadRun;
use crate::meta_block::Scribble;

#[derive(Clone, Debug, Default)]
pub(super) struct Dying {
    runs: Vec<DeadRun>,
    /// Of [`check_of`] each.
    sum: u64,
}

/// Another one if any bit of the run is another one: each step can be undone.
fn check_of(run: &DeadRun) -> u64 {
    let words = [run.address[0], run.address[1], run.birth_log, u64::from(run.count) << 1 | u64::from(run.is_page)];
    words.into_iter().fold(0xbf58_476d_1ce4_e5b9, |check: u64, word| {
        (check ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

impl Dying {
    pub(super) fn put(&mut self, run: DeadRun) {
        if let Some(last) = self.runs.last_mut() {
            let before = check_of(last);
            if last.merge(&run) {
                self.sum = self.sum.wrapping_sub(before).wrapping_add(check_of(last));
                return;
            }
        }
        self.sum = self.sum.wrapping_add(check_of(&run));
        self.runs.push(run);
    }

    /// # Errors
    /// Somebody has written to one of them who must not.
    pub(super) fn verify(&self) -> Result<(), Scribble> {
        let sum = self.runs.iter().fold(0, |sum: u64, run| sum.wrapping_add(check_of(run)));
        Scribble::unless_equal("sum of runs that are to join a dead list", self.sum, sum)
    }

    pub(super) fn runs(&self) -> &[DeadRun] {
        &self.runs
    }

    /// Takes the first ones out, up to so many.
    pub(super) fn take(&mut self, count: usize) -> Vec<DeadRun> {
        let taken: Vec<DeadRun> = self.runs.drain(..count.min(self.runs.len())).collect();
        self.sum = taken.iter().fold(self.sum, |sum, run| sum.wrapping_sub(check_of(run)));
        taken
    }

    /// A logic bug: one of them is another one, or gone.
    pub(super) fn alter(&mut self, nth: usize, change: impl FnOnce(DeadRun) -> Option<DeadRun>) -> DeadRun {
        let run = self.runs.remove(nth);
        self.sum = self.sum.wrapping_sub(check_of(&run));
        if let Some(changed) = change(run) {
            self.sum = self.sum.wrapping_add(check_of(&changed));
            self.runs.insert(nth, changed);
        }
        run
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(super) fn scribbled(&mut self) -> &mut [DeadRun] {
        &mut self.runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_of_each_run_is_seen() {
        let mut dying = Dying::default();
        let run = |address: u64, count| DeadRun { address: [address, 9 * address], birth_log: 3, count, is_page: true };
        [run(100, 2), run(200, 1), run(300, 64)].into_iter().for_each(|run| dying.put(run));
        dying.put(DeadRun { address: [364, 2764], ..run(1, 4) });
        assert_eq!((dying.runs().len(), dying.verify()), (3, Ok(())), "the last one was merged");
        for nth in 0..3 {
            for bit in 0..64 {
                let flips: [fn(&mut DeadRun, u64); 4] = [
                    |run, bit| run.address[0] ^= bit,
                    |run, bit| run.address[1] ^= bit,
                    |run, bit| run.birth_log ^= bit,
                    |run, bit| run.count ^= bit as u32 | (bit >> 32) as u32,
                ];
                for flip in flips {
                    let mut struck = dying.clone();
                    flip(&mut struck.scribbled()[nth], 1 << bit);
                    assert!(struck.verify().is_err(), "run {nth}, bit {bit}");
                }
            }
            let mut struck = dying.clone();
            struck.scribbled()[nth].is_page = false;
            assert!(struck.verify().is_err());
        }
        assert_eq!((dying.take(2).len(), dying.verify()), (2, Ok(())));
        dying.alter(0, |run| Some(DeadRun { birth_log: 9, ..run }));
        assert_eq!((dying.verify(), dying.take(9).len(), dying.runs().len()), (Ok(()), 1, 0));
    }
}
