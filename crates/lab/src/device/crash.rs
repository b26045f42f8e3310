//! What a power cut may leave on the medium.
//!
//! The model is that of [`holdfast_block`]: what a flush has covered is there; of the rest each 512-byte sector of each
//! write is there or not, independently. So an earlier write may also have the last word over a later one of the same
//! block. One image costs time in proportion to the writes not covered, not to the device: images share their blocks with
//! the log and with each other.

use holdfast_block::{Device, Error, MemoryDevice};
use rand::Rng;
use rand::seq::SliceRandom;
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::recorder::{Entry, Recorded, Recorder};
use super::{SECTOR_BYTES, SECTORS_PER_BLOCK, Tear};

/// What becomes of the writes that no flush has covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashMode {
    /// None is there.
    AllDropped,
    /// All are there, in order.
    AllApplied,
    /// Each is there or not, whole.
    RandomSubset,
    /// All are there, but of the last ones (one to three) only some sectors: what the cut interrupted.
    TornTail,
    /// Some are there, applied in another order. If two overlap, an earlier one has the last word over a later one.
    Reordered,
    /// Each is dropped, torn or applied, in another order.
    Mixed,
}

impl CrashMode {
    /// All modes.
    pub const ALL: [CrashMode; 6] = [
        CrashMode::AllDropped,
        CrashMode::AllApplied,
        CrashMode::RandomSubset,
        CrashMode::TornTail,
        CrashMode::Reordered,
        CrashMode::Mixed,
    ];
}

/// The images that power cuts during a recorded run may leave. See [`super::Recorder::crash_images`].
///
/// A *position* is a number of log entries (writes, discards and flushes) that have happened; 0 is before the first.
pub struct CrashImages {
    entries: Vec<Entry>,
    /// Per flush, and when the device alone had lost its power: its position, what is durable after it, and the uncovered writes before it. The
    /// first stands for the start, at position 0.
    durable: Vec<Durable>,
}

struct Durable {
    position: usize,
    image: MemoryDevice,
    /// Entry numbers of writes begun before this flush which neither it nor an earlier one covers, ascending.
    uncovered: Vec<usize>,
}

impl CrashImages {
    pub(super) fn new(mut base: MemoryDevice, entries: Vec<Entry>) -> Self {
        let mut durable = vec![Durable { position: 0, image: base.clone(), uncovered: Vec::new() }];
        let mut uncovered = Vec::new();
        for (number, entry) in entries.iter().enumerate() {
            match entry {
                Entry::Write(_) => uncovered.push(number),
                Entry::Flush { covers, except } => {
                    let covered = |number: &usize| number < covers && !except.contains(number);
                    for write in uncovered.iter().filter(|number| covered(number)) {
                        apply(&base, recorded(&entries, *write));
                    }
                    uncovered.retain(|number| !covered(number));
                    durable.push(Durable { position: number + 1, image: base.clone(), uncovered: uncovered.clone() });
                }
                Entry::Cut(image) => {
                    base = image.clone();
                    uncovered.clear();
                    durable.push(Durable { position: number + 1, image: base.clone(), uncovered: Vec::new() });
                }
            }
        }
        CrashImages { entries, durable }
    }

    /// All positions: 0 to the number of entries.
    pub fn positions(&self) -> RangeInclusive<usize> {
        0..=self.entries.len()
    }

    /// The positions right after each successful flush, and each loss of power of the device alone, ascending.
    pub fn flushes(&self) -> impl Iterator<Item = usize> {
        self.durable[1..].iter().map(|durable| durable.position)
    }

    /// How many writes are at stake in a power cut at `position`. With none, every mode gives the same image.
    ///
    /// # Panics
    /// If the position is not one of [`CrashImages::positions`].
    pub fn at_stake(&self, position: usize) -> usize {
        self.volatile(position).1.len()
    }

    /// Which blocks are.
    pub(super) fn blocks_at_stake(&self, position: usize) -> BTreeSet<u64> {
        self.volatile(position).1.into_iter().flat_map(range).collect()
    }

    /// An image that a power cut at `position` may leave. The same position, mode and state of `rng` give the same image.
    ///
    /// # Panics
    /// If the position is not one of [`CrashImages::positions`].
    pub fn image(&self, position: usize, mode: CrashMode, rng: &mut impl Rng) -> MemoryDevice {
        let (durable, mut writes) = self.volatile(position);
        let image = durable.clone();
        match mode {
            CrashMode::AllDropped => {}
            CrashMode::AllApplied => writes.iter().for_each(|write| apply(&image, write)),
            CrashMode::RandomSubset => {
                // Mostly dropped and mostly applied are as telling as half and half.
                let share = [0.1, 0.5, 0.9][rng.random_range(0..3)];
                writes.iter().filter(|_| rng.random_bool(share)).for_each(|write| apply(&image, write));
            }
            CrashMode::TornTail => {
                let torn = rng.random_range(1..=3).min(writes.len());
                let (whole, tail) = writes.split_at(writes.len() - torn);
                whole.iter().for_each(|write| apply(&image, write));
                tail.iter().for_each(|write| apply_torn(&image, write, rng));
            }
            CrashMode::Reordered => {
                let last = earlier_of_overlapping(&writes, rng);
                let kept = if writes.is_empty() { 0 } else { rng.random_range(1..=writes.len()) };
                if let Some((earlier, later)) = last {
                    apply(&image, writes[later]);
                    let earlier = writes[earlier];
                    let blocks = range(earlier);
                    writes.shuffle(rng);
                    // Anything else that touches these blocks would take the last word away.
                    writes.retain(|write| !overlaps(&range(write), &blocks));
                    writes.iter().take(kept).for_each(|write| apply(&image, write));
                    apply(&image, earlier);
                } else {
                    writes.shuffle(rng);
                    writes.iter().take(kept).for_each(|write| apply(&image, write));
                }
            }
            CrashMode::Mixed => {
                writes.shuffle(rng);
                for write in writes {
                    match rng.random_range(0..3) {
                        0 => {}
                        1 => apply_torn(&image, write, rng),
                        _ => apply(&image, write),
                    }
                }
            }
        }
        image
    }

    /// What is durable at a position, and the writes that may be there beside it, in order.
    /// What a process that is killed at `position` leaves.
    ///
    /// # Panics
    /// If the position is not one of [`CrashImages::positions`].
    pub fn left(&self, position: usize) -> Left {
        let at = self.durable_at(position);
        let cached = self.at_risk(at, position).map(|number| Arc::clone(recorded(&self.entries, number))).collect();
        Left { durable: at.image.clone(), cached }
    }

    fn volatile(&self, position: usize) -> (&MemoryDevice, Vec<&Recorded>) {
        let durable = self.durable_at(position);
        let writes = self.at_risk(durable, position);
        (&durable.image, writes.map(|number| &**recorded(&self.entries, number)).collect())
    }

    fn durable_at(&self, position: usize) -> &Durable {
        assert!(position <= self.entries.len(), "position {position} of {}", self.entries.len());
        let at = self.durable.partition_point(|durable| durable.position <= position) - 1;
        &self.durable[at]
    }

    /// Entry numbers of the writes that no flush has covered.
    fn at_risk<'a>(&'a self, durable: &'a Durable, position: usize) -> impl Iterator<Item = usize> + 'a {
        let since = (durable.position..position).filter(|number| matches!(self.entries[*number], Entry::Write(_)));
        durable.uncovered.iter().copied().chain(since)
    }
}

/// A device as a killed process leaves it: what is durable, and in its cache what was not flushed.
#[derive(Clone)]
pub struct Left {
    durable: MemoryDevice,
    cached: Vec<Arc<Recorded>>,
}

impl Left {
    /// Nothing of this one is in a cache.
    pub fn durable(device: &MemoryDevice) -> Left {
        Left { durable: device.clone(), cached: Vec::new() }
    }

    /// What the next process finds.
    pub fn seen(&self) -> MemoryDevice {
        let seen = self.durable.clone();
        self.cached.iter().for_each(|write| apply(&seen, write));
        seen
    }

    /// The same, recorded: what is in the cache is at stake until that process flushes the device.
    ///
    /// # Errors
    /// None of a device in memory.
    pub fn recorder(&self) -> Result<Recorder, Error> {
        let recorder = Recorder::in_memory(&self.durable);
        for write in &self.cached {
            let blocks: Vec<IoSlice<'_>> = write.blocks.iter().map(|block| IoSlice::new(&block[..])).collect();
            recorder.write(write.first, &blocks)?;
        }
        Ok(recorder)
    }

    /// The device is larger now.
    ///
    /// # Errors
    /// None of a device in memory.
    pub fn larger(self, blocks: u64) -> Result<Left, Error> {
        self.durable.grow(blocks)?;
        Ok(self)
    }
}

fn recorded(entries: &[Entry], number: usize) -> &Arc<Recorded> {
    match &entries[number] {
        Entry::Write(recorded) => recorded,
        Entry::Flush { .. } | Entry::Cut(_) => unreachable!("only writes are kept by number"),
    }
}

fn range(write: &Recorded) -> std::ops::Range<u64> {
    write.first..write.first + write.blocks.len() as u64
}

fn overlaps(a: &std::ops::Range<u64>, b: &std::ops::Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Two overlapping writes by number, the earlier first; drawn among neighbours in address order.
fn earlier_of_overlapping(writes: &[&Recorded], rng: &mut impl Rng) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..writes.len()).collect();
    order.sort_by_key(|number| (writes[*number].first, *number));
    let pairs: Vec<_> = order
        .windows(2)
        .filter(|pair| overlaps(&range(writes[pair[0]]), &range(writes[pair[1]])))
        .map(|pair| (pair[0].min(pair[1]), pair[0].max(pair[1])))
        .collect();
    if pairs.is_empty() { None } else { Some(pairs[rng.random_range(0..pairs.len())]) }
}

fn apply(image: &MemoryDevice, write: &Recorded) {
    for (at, block) in (write.first..).zip(&write.blocks) {
        image.share(at, Arc::clone(block)).expect("the recorder has checked the address");
    }
}

fn apply_torn(image: &MemoryDevice, write: &Recorded, rng: &mut impl Rng) {
    let sectors = write.blocks.len() * SECTORS_PER_BLOCK;
    let tear = Tear::random(sectors, rng);
    for (number, (at, block)) in (write.first..).zip(&write.blocks).enumerate() {
        let first = number * SECTORS_PER_BLOCK;
        let torn = image.alter(at, |old| {
            for sector in (0..SECTORS_PER_BLOCK).filter(|sector| tear.keeps(first + sector, sectors)) {
                let bytes = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                old[bytes.clone()].copy_from_slice(&block[bytes]);
            }
        });
        torn.expect("the recorder has checked the address");
    }
}
