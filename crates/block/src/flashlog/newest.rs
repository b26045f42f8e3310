//! The newest version of each block that pages name, by address. In memory it goes by the entries: of data 24 bytes a block, of zeros a run,
//! however much was discarded.

use super::at::Kept;
use super::format::{Entry, GROUP_BLOCKS, Of};
use super::ranges::Ranges;
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks of data, before they are put in order for the first time.
const ORDERED_LEAST: usize = 1 << 16;

/// The newest versions up to some page. Those that were added count when they are [in order](Newest::put_in_order).
#[derive(Default)]
pub(super) struct Newest {
    /// In the order of addresses, but for those that were added since they were put in order last.
    data: Vec<Kept>,
    /// What has become zeros since it was written, or was not written.
    zeros: Ranges,
    /// So many were left when they were put in order.
    ordered: usize,
}

/// The same for whoever asks after each few that come: always in order, at some 60 bytes of memory for each block of data.
#[derive(Default)]
pub(super) struct Since {
    data: BTreeMap<u64, Kept>,
    zeros: Ranges,
}

impl Since {
    /// What comes next.
    pub(super) fn add(&mut self, entry: &Entry) {
        let blocks = entry.first..entry.first + entry.blocks();
        match &entry.of {
            Of::Data(_) => {
                self.zeros.remove(&blocks);
                self.data.extend(Kept::of(entry).map(|kept| (kept.address, kept)));
            }
            Of::Zeros { .. } => {
                while let Some((&address, _)) = self.data.range(blocks.clone()).next() {
                    self.data.remove(&address);
                }
                self.zeros.add(blocks);
            }
        }
    }

    /// The newest version of a block.
    pub(super) fn get(&self, address: u64) -> Option<Kept> {
        self.data.get(&address).copied().or_else(|| self.zeros.has(address).then(|| Kept::zeros(address)))
    }
}

/// Blocks in a row: one of data, or zeros.
enum Piece {
    Data(Kept),
    Zeros(Range<u64>),
}

impl Newest {
    /// Of versions of which each is of another block.
    pub(super) fn of(all: impl Iterator<Item = Kept>) -> Newest {
        let mut newest = Newest::default();
        for kept in all {
            if kept.is_zeros() {
                newest.zeros.add(kept.address..kept.address + 1);
            } else {
                newest.data.push(kept);
            }
        }
        newest.put_in_order();
        newest
    }

    /// What comes next.
    pub(super) fn add(&mut self, entry: &Entry) {
        let blocks = entry.first..entry.first + entry.blocks();
        match &entry.of {
            Of::Data(_) => {
                self.zeros.remove(&blocks);
                self.data.extend(Kept::of(entry));
                // Up to twice as many, so that it is not done too often.
                if self.data.len() >= (2 * self.ordered).max(ORDERED_LEAST) {
                    self.put_in_order();
                }
            }
            Of::Zeros { .. } => self.zeros.add(blocks),
        }
    }

    /// Keeps of each block the newest version only: of data that with the greatest position, if it is not zeros by now.
    pub(super) fn put_in_order(&mut self) {
        self.data.sort_unstable_by_key(|kept| (kept.address, kept.position()));
        self.data.dedup_by(|later, earlier| {
            let is_same = later.address == earlier.address;
            if is_same {
                *earlier = *later;
            }
            is_same
        });
        let mut zeros = self.zeros.from(0).peekable();
        self.data.retain(|kept| {
            while zeros.next_if(|run| run.end <= kept.address).is_some() {}
            zeros.peek().is_none_or(|run| kept.address < run.start)
        });
        self.ordered = self.data.len();
    }

    /// All that there is to come has come.
    pub(super) fn end(&mut self) {
        self.put_in_order();
        self.data.shrink_to_fit();
    }

    /// The newest version of a block.
    pub(super) fn get(&self, address: u64) -> Option<Kept> {
        match self.data.binary_search_by_key(&address, |kept| kept.address) {
            Ok(at) => Some(self.data[at]),
            Err(_) => self.zeros.has(address).then(|| Kept::zeros(address)),
        }
    }

    /// Those that are not zeros.
    pub(super) fn data(&self) -> &[Kept] {
        &self.data
    }

    /// Only these.
    pub(super) fn into_data(self) -> Vec<Kept> {
        self.data
    }

    /// How many blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.data.len() as u64 + self.zeros.blocks()
    }

    /// How many that is in memory.
    #[cfg(test)]
    pub(super) fn in_memory(&self) -> usize {
        self.data.len() + self.zeros.len()
    }

    fn pieces(&self, first: u64) -> impl Iterator<Item = Piece> {
        let from = self.data.partition_point(|kept| kept.address < first);
        let mut data = self.data[from..].iter().peekable();
        let mut zeros = self.zeros.from(first).peekable();
        std::iter::from_fn(move || match (data.peek(), zeros.peek()) {
            (Some(kept), Some(run)) if run.start < kept.address => zeros.next().map(Piece::Zeros),
            (Some(_), _) => data.next().map(|kept| Piece::Data(*kept)),
            (None, _) => zeros.next().map(Piece::Zeros),
        })
    }

    /// One after the other, from a block on.
    pub(super) fn from(&self, first: u64) -> impl Iterator<Item = Kept> {
        self.pieces(first).flat_map(|piece| {
            let (data, zeros) = match piece {
                Piece::Data(kept) => (Some(kept), 0..0),
                Piece::Zeros(run) => (None, run),
            };
            data.into_iter().chain(zeros.map(Kept::zeros))
        })
    }

    /// Entries that name these in the order of addresses.
    pub(super) fn entries(&self) -> u64 {
        let of_data = self.data.chunk_by(|a, b| a.address + 1 == b.address).count();
        (of_data + self.zeros.len()) as u64
    }

    /// Groups of blocks that have some of these; of zeros only.
    pub(super) fn groups(&self) -> (u64, u64) {
        let all = self.pieces(0).map(|piece| match piece {
            Piece::Data(kept) => kept.address..kept.address + 1,
            Piece::Zeros(run) => run,
        });
        (groups(all), groups(self.zeros.from(0)))
    }
}

/// Groups that runs in order touch.
fn groups(runs: impl Iterator<Item = Range<u64>>) -> u64 {
    let (mut count, mut behind) = (0, 0);
    for run in runs {
        let of_run = (run.start / GROUP_BLOCKS).max(behind)..run.end.div_ceil(GROUP_BLOCKS);
        count += of_run.end.saturating_sub(of_run.start);
        behind = of_run.end.max(behind);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::chunk::zero_sum;
    use super::*;
    use std::collections::BTreeSet;

    fn of_data(first: u64, data: u64, sums: &[u64]) -> Entry {
        Entry { first, data, of: Of::Data(sums.to_vec()) }
    }

    fn of_zeros(first: u64, data: u64, count: u64) -> Entry {
        Entry { first, data, of: Of::Zeros { count, keep: false } }
    }

    #[test]
    fn it_is_the_newest_version_of_each_block_whatever_came_before() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..200 {
            let (mut newest, mut since, mut expected) = (Newest::default(), Since::default(), BTreeMap::new());
            let (mut position, span) = (0, 1 + random(3000));
            for _ in 0..random(80) {
                let (first, count) = (random(span), 1 + random(40));
                if random(2) == 0 {
                    let sums: Vec<u64> = (0..count).map(|_| random(1 << 30)).collect();
                    newest.add(&of_data(first, position, &sums));
                    since.add(&of_data(first, position, &sums));
                    for (index, sum) in (0..).zip(sums) {
                        expected.insert(first + index, (Some(position + index), sum));
                    }
                    position += count;
                } else {
                    newest.add(&of_zeros(first, position, 10 * count));
                    since.add(&of_zeros(first, position, 10 * count));
                    (first..first + 10 * count).for_each(|at| {
                        expected.insert(at, (None, zero_sum()));
                    });
                }
                if random(10) == 0 {
                    newest.put_in_order();
                }
            }
            newest.end();
            let found = |kept: Kept| (kept.address, (kept.position(), kept.sum));
            let from = random(span);
            for from in [0, from] {
                let all = expected.range(from..).map(|(address, version)| (*address, *version));
                assert!(newest.from(from).map(found).eq(all), "round {round}");
            }
            for at in 0..span + 500 {
                let version = expected.get(&at).map(|version| (at, *version));
                assert_eq!([newest.get(at), since.get(at)].map(|kept| kept.map(found)), [version; 2], "round {round}");
            }
            assert_eq!(newest.blocks(), expected.len() as u64);
            let zeros: Vec<u64> = newest.from(0).filter(Kept::is_zeros).map(|kept| kept.address).collect();
            let groups_of =
                |all: &mut dyn Iterator<Item = u64>| all.map(|at| at / GROUP_BLOCKS).collect::<BTreeSet<_>>();
            let [all, of_zeros] =
                [groups_of(&mut expected.keys().copied()), groups_of(&mut zeros.iter().copied())].map(|set| set.len());
            assert_eq!(newest.groups(), (all as u64, of_zeros as u64), "round {round}");
            let data: Vec<u64> = newest.data().iter().map(|kept| kept.address).collect();
            let entries = [&data, &zeros].map(|all| all.chunk_by(|a, b| a + 1 == *b).count() as u64);
            assert_eq!(newest.entries(), entries.iter().sum::<u64>(), "round {round}");
            let again = Newest::of(newest.from(0));
            assert!(again.from(0).map(found).eq(newest.from(0).map(found)) && again.in_memory() == newest.in_memory());
        }
    }

    #[test]
    fn zeros_are_runs_in_memory_however_many_entries_they_came_in() {
        let mut newest = Newest::default();
        for at in 0..1 << 16 {
            newest.add(&of_zeros(at << 12, 0, 1 << 12));
        }
        for at in 0..100 {
            newest.add(&of_data(at << 20, at, &[at]));
            newest.add(&of_zeros(at << 10, at + 1, 1));
        }
        newest.end();
        assert_eq!((newest.blocks(), newest.data().len(), newest.in_memory()), (1 << 28, 99, 99 + 100));
    }

    #[test]
    fn what_is_asked_after_each_that_comes_is_not_put_in_order_each_time() {
        let mut since = Since::default();
        // Some seconds, and not hours.
        for at in 0..1 << 20 {
            since.add(&of_data(at, at, &[at]));
            assert_eq!(since.get(at / 2).and_then(|kept| kept.position()), Some(at / 2));
        }
        since.add(&of_zeros(0, 1 << 20, 1 << 30));
        assert!(since.data.is_empty() && since.zeros.len() == 1);
    }

    #[test]
    fn what_is_written_again_and_again_is_kept_twice_at_most() {
        let mut newest = Newest::default();
        for position in 0..10 * ORDERED_LEAST as u64 {
            newest.add(&of_data(position % 50, position, &[position]));
            assert!(newest.data.len() <= ORDERED_LEAST);
        }
        newest.end();
        assert_eq!(newest.in_memory(), 50);
    }
}
