//! Blocks of a Flashlog's devices in which bits flip, or that cannot be read any more, while it is closed or in use: what is read, what is told,
//! what is refused, what is copied on, and what can be got back.

mod trial;

use holdfast_block::flashlog::{Mode, log_blocks_least};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use std::fmt::{self, Write};
use std::ops::Range;
use trial::{Seen, mapped, trial, unwritten};

/// Blocks of the set's device; main has as many for labels.
const BLOCKS: u64 = 256;
const MAIN_BLOCKS: u64 = 512;
const BACKUP_BLOCKS: u64 = 1536;
/// Where a backup has checksums, staged pages and staged data, 1 MiB the first two.
const SUMS: u64 = BLOCKS;
const STAGED_PAGES: u64 = SUMS + 256;
const STAGED_DATA: u64 = STAGED_PAGES + 256;

/// What is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// One copy of the newest label of main, log or backup.
    Label(usize),
    /// Both copies.
    Labels(usize),
    /// The newest map of regions, of a main that is alone or of a log that was full.
    Map(usize),
    /// The host's data on main or backup.
    Data(usize),
    /// A page of the log.
    Page,
    /// Data in the log.
    LogData,
    /// A page of a log that was idle for a second, so that a seal is behind the last one.
    SealedPage,
    /// Data in the same.
    SealedData,
    /// Checksums of a backup's data.
    Sums,
    /// A page of what a backup that was cut off had staged.
    StagedPage,
    /// Data of the same.
    StagedData,
    /// A block on main that nobody has written since the backup, beside such as were, before it is copied in this way.
    Unwritten(Way),
}

/// How a backup gets what its set's log has not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The log was full.
    Overflow,
    /// The log was away, and is back.
    Attach,
    /// The log was away, and is another one.
    NewLog,
    /// The same, and it is not known what the backup lacks, so that everything is compared.
    Compare,
}

const MAIN: usize = 0;
const LOG: usize = 1;
const BACKUP: usize = 2;
const NAMES: [&str; 3] = ["main", "log", "backup"];

impl Target {
    /// In the order of the table.
    pub const ALL: [Target; 21] = [
        Target::Label(0),
        Target::Labels(0),
        Target::Map(0),
        Target::Data(0),
        Target::Label(1),
        Target::Labels(1),
        Target::Map(1),
        Target::Page,
        Target::SealedPage,
        Target::LogData,
        Target::SealedData,
        Target::Label(2),
        Target::Labels(2),
        Target::Data(2),
        Target::Sums,
        Target::StagedPage,
        Target::StagedData,
        Target::Unwritten(Way::Overflow),
        Target::Unwritten(Way::Attach),
        Target::Unwritten(Way::NewLog),
        Target::Unwritten(Way::Compare),
    ];

    fn device(self) -> usize {
        match self {
            Target::Label(device) | Target::Labels(device) | Target::Map(device) | Target::Data(device) => device,
            Target::Page | Target::SealedPage | Target::LogData | Target::SealedData => 1,
            Target::Sums | Target::StagedPage | Target::StagedData => 2,
            Target::Unwritten(_) => 0,
        }
    }

    fn name(self) -> String {
        let what = match self {
            Target::Label(_) => "newest label, one copy",
            Target::Labels(_) => "newest label, both copies",
            Target::Map(MAIN) => "map of regions, it is alone",
            Target::Map(_) => "map of regions, it was full",
            Target::Data(_) => "data",
            Target::Page => "page",
            Target::LogData => "data",
            Target::SealedPage => "page, idle for a second",
            Target::SealedData => "data, idle for a second",
            Target::Sums => "checksums",
            Target::StagedPage => "staged page",
            Target::StagedData => "staged data",
            Target::Unwritten(Way::Overflow) => "unwritten data, the log was full",
            Target::Unwritten(Way::Attach) => "unwritten data, the log was away",
            Target::Unwritten(Way::NewLog) => "unwritten data, a new log",
            Target::Unwritten(Way::Compare) => "unwritten data, all is compared",
        };
        format!("{}: {what}", NAMES[self.device()])
    }

    /// One of two copies, or a map, which counts as of everything if it cannot be read: nothing is refused for it, nor lost.
    fn has_others(self) -> bool {
        matches!(self, Target::Label(_) | Target::Map(_))
    }

    fn is_sealed(self) -> bool {
        matches!(self, Target::SealedPage | Target::SealedData)
    }

    /// Where it may be on its device.
    fn area(self) -> Range<u64> {
        let least = log_blocks_least();
        match self {
            Target::Data(_) | Target::Unwritten(_) => 0..BLOCKS,
            Target::Label(0) | Target::Labels(0) | Target::Map(0) => BLOCKS..MAIN_BLOCKS,
            Target::Label(1) | Target::Labels(1) | Target::Map(1) => 0..256,
            Target::Label(_) | Target::Labels(_) | Target::Map(_) => BACKUP_BLOCKS - 256..BACKUP_BLOCKS,
            Target::Page | Target::SealedPage => 256..512,
            Target::LogData | Target::SealedData => 512..least,
            Target::Sums => SUMS..STAGED_PAGES,
            Target::StagedPage => STAGED_PAGES..STAGED_DATA,
            Target::StagedData => STAGED_DATA..BACKUP_BLOCKS - 256,
        }
    }
}

/// How a block is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hit {
    /// So many of its bits flip.
    Bits(u32),
    /// Reading it is an error until it is written again, as of a disk's sector.
    Unreadable,
    /// A mistake to be found: what cannot be read is taken for zeros.
    TakenForZeros,
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hit::Bits(1) => f.write_str("1 bit"),
            Hit::Bits(bits) => write!(f, "{bits} bits"),
            Hit::Unreadable => f.write_str("unreadable"),
            Hit::TakenForZeros => f.write_str("taken for zeros"),
        }
    }
}

/// Which hits: what is promised, or a mistake that must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hits {
    /// All that are promised something of.
    Promised,
    /// [`Hit::TakenForZeros`].
    Planted,
}

impl Hits {
    /// Each with the mode of the set; without one a trial's seed says which.
    fn all(self) -> Vec<(Hit, Option<Mode>)> {
        let in_both = |hit| [(hit, Some(Mode::Synchronous)), (hit, Some(Mode::Asynchronous))];
        match self {
            Hits::Promised => [&[(Hit::Bits(1), None), (Hit::Bits(3), None)][..], &in_both(Hit::Unreadable)].concat(),
            Hits::Planted => in_both(Hit::TakenForZeros).to_vec(),
        }
    }
}

/// What is done with a set that was hit, and may be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Anew,
    Open,
    Attach,
    CatchUp,
    BackUp,
    Scrub,
}

/// Their names, in their order.
const STEPS: [&str; 6] = ["main anew", "opening", "attaching", "catching up", "backup", "scrub"];

/// What came of the trials of one row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What was hit.
    pub target: Target,
    /// How each of its blocks was.
    pub hit: Hit,
    /// The set's mode; none if it was the one or the other.
    pub mode: Option<Mode>,
    /// How many trials.
    pub trials: u64,
    /// Everything went as if nothing had happened.
    pub unharmed: u64,
    /// An error told of it.
    pub told: u64,
    /// Wrong bytes were read from the set, or from a main made anew, without an error.
    pub wrong: u64,
    /// A good block on another device was overwritten with damage.
    pub spread: u64,
    /// Damage to what the last flush had written was taken for what a power cut leaves: the set is at a state before that flush.
    pub cut: u64,
    /// With the others, everything that a flush had answered could be had, whatever was read before.
    pub restored: u64,
    /// That could not be done, although another device had it.
    pub missing: u64,
    /// In so many trials, each of [`STEPS`] was refused.
    refused: [u64; STEPS.len()],
}

/// All rows.
///
/// # Errors
/// In words, if something goes wrong that has nothing to do with what was hit, with the seed.
pub fn run(seed: u64, trials: u64, hits: Hits) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for target in Target::ALL {
        for (hit, mode) in hits.all() {
            let mut row = Row::new(target, hit, mode);
            for number in 0..trials {
                let of_trial = seed.wrapping_add(number);
                let mut rng = Pcg64Mcg::seed_from_u64(of_trial);
                let done = match target {
                    Target::Unwritten(way) => unwritten(way, (hit, mode), &mut rng),
                    Target::Map(_) => mapped(target, (hit, mode), &mut rng),
                    _ => trial(target, (hit, mode), &mut rng),
                };
                row.count(&done.map_err(|what| format!("{}, {hit}, seed {of_trial}: {what}", target.name()))?);
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

impl Row {
    fn new(target: Target, hit: Hit, mode: Option<Mode>) -> Row {
        let (trials, unharmed, told, wrong, spread, cut, restored, missing) = (0, 0, 0, 0, 0, 0, 0, 0);
        let refused = [0; STEPS.len()];
        Row { target, hit, mode, trials, unharmed, told, wrong, spread, cut, restored, missing, refused }
    }

    fn is_unharmed(&self) -> bool {
        self.unharmed == self.trials && self.refused == [0; STEPS.len()]
    }

    fn count(&mut self, seen: &Seen) {
        self.trials += 1;
        self.unharmed += u64::from(!seen.is_told && !seen.is_wrong && !seen.is_cut);
        self.cut += u64::from(seen.is_cut);
        self.missing += u64::from(seen.is_elsewhere && !seen.is_restored);
        self.told += u64::from(seen.is_told);
        self.wrong += u64::from(seen.is_wrong);
        self.spread += u64::from(seen.is_spread);
        self.restored += u64::from(seen.is_restored);
        for (count, is_refused) in self.refused.iter_mut().zip(seen.refused) {
            *count += u64::from(is_refused);
        }
    }
}

/// The table, as in `docs/flashlog.md`.
pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "| what is hit | how | trials | unharmed | told | wrong without a word | copied on | taken for a power cut's | all there, with the others | refused |\n|---|---|--:|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for Row { target, hit, mode, trials, unharmed, told, wrong, spread, cut, restored, missing: _, refused } in rows {
        let name = target.name();
        let mode = match mode {
            None => "",
            Some(Mode::Synchronous) => ", sync",
            Some(Mode::Asynchronous) => ", async",
        };
        let refused = STEPS.iter().zip(refused).filter(|(_, count)| **count > 0);
        let refused: Vec<String> = refused.map(|(step, count)| format!("{step} {count}")).collect();
        let refused = refused.join(", ");
        let _ = writeln!(
            out,
            "| {name} | {hit}{mode} | {trials} | {unharmed} | {told} | {wrong} | {spread} | {cut} | {restored} | {refused} |"
        );
    }
    out
}

/// What in these rows is not as it must be.
pub fn broken(rows: &[Row]) -> Vec<String> {
    let mut broken = Vec::new();
    for row in rows {
        let bits = if let Hit::Bits(bits) = row.hit { bits } else { 0 };
        // Main's data has no checksums of its own, and where nobody knows what was written it is taken for that. What cannot be read is never
        // taken for anything.
        let has_sums = bits == 0 || !matches!(row.target, Target::Data(MAIN) | Target::Unwritten(_));
        let is_guessed = bits > 0 && row.target == Target::Unwritten(Way::Compare);
        let promises = [
            ("wrong bytes are read without a word", !has_sums || row.wrong == 0),
            ("damage is copied to another device", is_guessed || row.spread == 0),
            ("one bit is copied without a word", !is_guessed || bits > 1 || row.told == row.trials),
            ("something cannot be got back that another device had", row.missing == 0),
            (
                "one copy of a label, or a block of a map, stops something",
                !row.target.has_others() || row.is_unharmed(),
            ),
            ("one bit is taken for a power cut", bits != 1 || row.cut == 0),
            ("what cannot be read is taken for a power cut", row.hit != Hit::Unreadable || row.cut == 0),
            ("damage in front of a seal is taken for a power cut", !row.target.is_sealed() || row.cut == 0),
            ("damage is taken for a power cut that is not in the log", row.target.device() == LOG || row.cut == 0),
        ];
        broken.extend(promises.iter().filter(|(_, is_kept)| !is_kept).map(|(what, _)| format!("{what}: {row:?}")));
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As before one block of labels or maps could be unreadable: the set was refused, and main had everything all the same.
    #[test]
    fn a_copy_of_a_label_that_stops_something_breaks_a_promise() {
        for target in Target::ALL {
            let mut row = Row::new(target, Hit::Unreadable, Some(Mode::Synchronous));
            row.count(&Seen { is_told: true, is_restored: true, is_elsewhere: true, ..Seen::default() });
            assert_eq!(broken(&[row]).is_empty(), !target.has_others(), "{target:?}");
            row = Row { told: 0, unharmed: 1, ..row };
            assert_eq!(broken(&[row]), [""; 0], "{target:?}");
            row.refused[Step::Open as usize] = 1;
            assert_eq!(broken(&[row]).is_empty(), !target.has_others(), "{target:?}");
        }
    }
}
