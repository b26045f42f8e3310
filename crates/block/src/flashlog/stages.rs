//! What main does not have yet: from which stage to which a block goes, and where its newest version is.
//!
//! ```text
//!  a write ─► Gathered ─► Writing ─► Logged ─► Durable ─► Applying ─► Applied ─► (main is flushed)
//!             (memory)    (to the    (in the   (the log    (to main)   (on main)
//!                         log)       log)      is flushed)
//! ```
//!
//! A block may be in several stages; the newest version is the one that is least far.

use super::chunk::{Chunk, zero_sum};
use super::device::INDEX_ENTRY_BYTES;
use super::format::{Areas, Bad, Point};
use super::recent::Recent;
use super::seal::Sealing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Gathered,
    Writing,
    Logged,
    Durable,
    Applying,
    Applied,
}

/// Newest first.
const STAGES: usize = 6;

/// Where the bytes of a version are.
#[derive(Clone)]
pub(super) enum Place {
    /// This block of a chunk.
    Memory(Arc<Chunk>, usize),
    /// At this position of the data area.
    Log(u64),
    /// Both, of what a stage says that it is in the log: see [`Stages::held`].
    Held(Arc<Chunk>, usize, u64),
    /// Nowhere: it is zeros. Whether its room is not given up.
    Zeros(bool),
}

/// A block as one write made it.
#[derive(Clone)]
pub(super) struct Version {
    pub(super) sum: u64,
    pub(super) place: Place,
}

impl Version {
    /// Whether it is at that place of the log.
    pub(super) fn is_at(&self, position: u64) -> bool {
        matches!(self.place, Place::Log(at) | Place::Held(_, _, at) if at == position)
    }
}

/// The blocks of one stage by address.
pub(super) type Map = BTreeMap<u64, Version>;

/// Blocks of main that nobody has as they were, with the checksums that they should have, and that they have.
pub(super) type KnownBad = BTreeMap<u64, (u64, u64)>;

/// What is known of the blocks that main's label tells of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Knowledge {
    /// Of some at least it is forgotten which they are.
    Forgotten,
    /// As the others, and whoever was asked takes main for what it is.
    Accepted,
    /// Which they are.
    #[default]
    All,
}

impl Knowledge {
    /// For what goes on with main in place of this set, where nobody was asked.
    pub(super) fn passed_on(self) -> Knowledge {
        if self == Knowledge::Accepted { Knowledge::Forgotten } else { self }
    }
}

// Two thirds of a node are used.
const _: () = assert!(size_of::<(u64, Version)>() as u64 * 3 / 2 <= INDEX_ENTRY_BYTES);

/// Main gets a full log in so many steps.
pub(super) const STEPS: u64 = 8;
/// So many places where a step may end are remembered of a full log.
const ENDS: u64 = 64;

/// Maps are merged one block after the other if one is so many times smaller, so that a flush of a few blocks costs no more than these.
const MUCH_SMALLER: usize = 8;

#[derive(Default)]
pub(super) struct Stages {
    /// Shared with whoever writes one of them to main.
    maps: [Arc<Map>; STAGES],
    /// The gathered writes, in order.
    gathered: Vec<(u64, Arc<Chunk>)>,
    /// Blocks in memory by stage, versions that have been replaced included.
    memory_blocks: [u64; STAGES],
    /// Everything before is durable in the log.
    pub(super) durable: Point,
    /// Everything before is on main, or has a newer version behind it that is durable in the log.
    pub(super) written: Point,
    /// The same, durably on main.
    pub(super) applied: Point,
    /// Everything before is in the log, perhaps not durably.
    pub(super) logged: Point,
    pub(super) company: Company,
    pub(super) known_bad: KnownBad,
    /// Whether these are all that main's label tells of.
    pub(super) knowledge: Knowledge,
    /// Unless they are: of how many it is forgotten which they are, and an address that none of them is in front of.
    pub(super) forgotten: Bad,
    /// Of some of all these the log does not tell, or not for much longer.
    pub(super) is_untold: bool,
    /// Of such blocks, those that were written since: main must have everything in front of a page of the log, durably, before they are well. Which
    /// page that is is not known before they are durable there: a power cut would bring them back.
    pub(super) rewritten: BTreeMap<u64, Option<u64>>,
    /// What the log keeps for them, though main has everything else: from here on it tells which they are.
    pub(super) held: Option<Point>,
    pub(super) age: Age,
    pub(super) sealing: Sealing,
    /// Asynchronous mode: the end of what is in the log.
    pub(super) recent: Recent,
    /// The same: where main may stop on the way, in order.
    pub(super) ends: Ends,
    /// The same: main has stopped on the way, and is at no state that the log tells; without the log it is at none, or as it was before.
    pub(super) is_between: bool,
}

/// When what main does not have was written.
#[derive(Default)]
pub(super) struct Age {
    /// The last write.
    pub(super) newest: Duration,
    /// The first write of each stage.
    first: [Option<Duration>; STAGES],
    /// The log was last written to.
    pub(super) logged: Duration,
    /// Main last got something.
    pub(super) main_used: Option<Duration>,
}

impl Age {
    /// A write has come to a stage. Whether main had everything.
    pub(super) fn begin(&mut self, stage: Stage, now: Duration) -> bool {
        let had_all = self.oldest().is_none();
        self.newest = now;
        self.first[stage as usize].get_or_insert(now);
        had_all
    }

    /// The first write that main may not have durably.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.first.iter().flatten().min().copied()
    }

    fn promote(&mut self, from: Stage, to: Stage) {
        let both = [self.first[from as usize].take(), self.first[to as usize]];
        self.first[to as usize] = both.into_iter().flatten().min();
    }
}

/// Ends of what was written to the log at once, not too near each other.
#[derive(Default)]
pub(super) struct Ends(VecDeque<Point>);

impl Ends {
    /// The log has been written up to this point, and is of this size.
    pub(super) fn push(&mut self, point: Point, areas: &Areas) {
        let last = self.0.back().copied().unwrap_or_default();
        if is_apart(last, point, areas, ENDS) {
            self.0.push_back(point);
        }
    }

    fn let_go_before(&mut self, point: Point) {
        while self.0.front().is_some_and(|end| end.page <= point.page) {
            self.0.pop_front();
        }
    }

    /// The last end between two points that has nothing from this position on before it.
    pub(super) fn last_before(&self, position: u64, from: Point, to: Point) -> Option<Point> {
        let is_between = |end: &&Point| end.page > from.page && end.page < to.page && end.data <= position;
        self.0.iter().rev().find(is_between).copied()
    }

    /// The end of the next step from a point on, if it is before the other.
    pub(super) fn step(&self, from: Point, to: Point, areas: &Areas) -> Option<Point> {
        self.0.iter().copied().find(|end| is_apart(from, *end, areas, STEPS)).filter(|end| end.page < to.page)
    }
}

/// Whether half of a step, or more, is between two points.
pub(super) fn is_half_step(from: Point, to: Point, areas: &Areas) -> bool {
    is_apart(from, to, areas, 2 * STEPS)
}

/// Whether there is one of so many parts of the log between two points.
fn is_apart(from: Point, to: Point, areas: &Areas, parts: u64) -> bool {
    let (data, pages) = (to.data.saturating_sub(from.data), to.page.saturating_sub(from.page));
    data >= areas.data_blocks / parts || pages >= areas.meta_blocks / parts
}

/// Who is there beside those who write and read.
#[derive(Default)]
pub(super) struct Company {
    /// Threads in [`Flashlog::serve_main`](super::Flashlog::serve_main).
    pub(super) servers: usize,
    /// Of them, those that have nothing to do.
    pub(super) idle: usize,
    /// They are to end.
    pub(super) is_ending: bool,
    /// Writers that wait for memory.
    pub(super) waiting: usize,
    /// Servers that wait until nobody writes to the log.
    pub(super) patient: usize,
    /// Those who wait for what a server is doing.
    pub(super) hurried: usize,
    /// How many have waited so.
    pub(super) turns: u64,
    /// Threads in [`Flashlog::serve_log`](super::Flashlog::serve_log).
    pub(super) loggers: usize,
}

impl Stages {
    /// Nothing, and how much of what is in the log is kept in memory as well.
    pub(super) fn at(points: Point, recent_most: u64) -> Stages {
        let recent = Recent::new(recent_most);
        Stages { logged: points, durable: points, written: points, applied: points, recent, ..Stages::default() }
    }

    /// A write has come.
    pub(super) fn accept(&mut self, first: u64, chunk: Arc<Chunk>) {
        let written = first..first + chunk.covered_blocks();
        let were_bad: Vec<u64> = self.known_bad.range(written).map(|(address, _)| *address).collect();
        for address in were_bad {
            self.known_bad.remove(&address);
            self.rewritten.insert(address, None);
        }
        let map = Arc::make_mut(&mut self.maps[Stage::Gathered as usize]);
        for (index, sum) in chunk.sums().iter().enumerate() {
            let version = Version { sum: *sum, place: Place::Memory(Arc::clone(&chunk), index) };
            map.insert(first + index as u64, version);
        }
        if let Some(zeros) = chunk.as_zeros() {
            let version = Version { sum: zero_sum(), place: Place::Zeros(zeros.keep) };
            map.extend((first..first + zeros.count).map(|address| (address, version.clone())));
        }
        self.memory_blocks[Stage::Gathered as usize] += chunk.memory_blocks();
        self.gathered.push((first, chunk));
    }

    pub(super) fn gathered_blocks(&self) -> u64 {
        self.memory_blocks[Stage::Gathered as usize]
    }

    /// Blocks in memory, versions that have been replaced included.
    pub(super) fn memory_blocks(&self) -> u64 {
        self.memory_blocks.iter().sum()
    }

    /// The same of one stage.
    pub(super) fn memory_of(&self, stage: Stage) -> u64 {
        self.memory_blocks[stage as usize]
    }

    /// Blocks that are in any stage, those of several counted several times.
    pub(super) fn index_blocks(&self) -> u64 {
        self.maps.iter().map(|map| map.len() as u64).sum()
    }

    /// Takes the gathered writes into stage `Writing`.
    pub(super) fn take_gathered(&mut self) -> Vec<(u64, Arc<Chunk>)> {
        self.promote(Stage::Gathered, Stage::Writing);
        std::mem::take(&mut self.gathered)
    }

    /// Lets everything of one stage into another.
    pub(super) fn promote(&mut self, from: Stage, to: Stage) {
        let [newer, older] = [from, to].map(|stage| std::mem::take(&mut self.maps[stage as usize]));
        self.maps[to as usize] = merge(newer, older);
        self.age.promote(from, to);
        self.memory_blocks[to as usize] += std::mem::take(&mut self.memory_blocks[from as usize]);
    }

    /// What a stage has.
    pub(super) fn map(&self, stage: Stage) -> &Arc<Map> {
        &self.maps[stage as usize]
    }

    /// A block found in the log when it was opened.
    pub(super) fn found(&mut self, address: u64, version: Version) {
        self.known_bad.remove(&address);
        Arc::make_mut(&mut self.maps[Stage::Durable as usize]).insert(address, version);
    }

    /// What was `Writing` is in the log from `position` on, one after the other, and in memory only as long as there is room.
    pub(super) fn leave_memory(&mut self, batch: &[(u64, Arc<Chunk>)], mut position: u64) {
        let map = Arc::make_mut(&mut self.maps[Stage::Writing as usize]);
        for (first, chunk) in batch.iter().filter(|(_, chunk)| chunk.as_zeros().is_none()) {
            for index in 0..chunk.blocks() {
                if let Some(version) = map.get_mut(&(first + index as u64))
                    && matches!(&version.place, Place::Memory(of, at) if Arc::ptr_eq(of, chunk) && *at == index)
                {
                    version.place = Place::Log(position);
                }
                position += 1;
            }
            self.recent.push(position - chunk.blocks() as u64, Arc::clone(chunk));
        }
        self.memory_blocks[Stage::Writing as usize] = 0;
    }

    /// What is in the log is durable there, up to this point.
    pub(super) fn logged_is_durable(&mut self, next: Point) {
        self.promote(Stage::Logged, Stage::Durable);
        self.durable = next;
        let on_the_way = [Stage::Gathered, Stage::Writing].map(|stage| &self.maps[stage as usize]);
        for (address, behind) in &mut self.rewritten {
            if behind.is_none() && !on_the_way.iter().any(|map| map.contains_key(address)) {
                *behind = Some(next.page);
            }
        }
    }

    /// Whether no version of a block is on its way to the log.
    pub(super) fn is_durable(&self, address: u64) -> bool {
        let on_the_way = [Stage::Gathered, Stage::Writing, Stage::Logged];
        !on_the_way.iter().any(|stage| self.map(*stage).contains_key(&address))
    }

    /// Nobody has this block as it was, and nothing newer.
    pub(super) fn lose(&mut self, address: u64, sums: (u64, u64)) {
        self.rewritten.remove(&address);
        self.known_bad.entry(address).or_insert(sums);
    }

    /// The same, where the log may not keep what tells of it.
    pub(super) fn lose_untold(&mut self, address: u64, sums: (u64, u64)) {
        self.is_untold |= !self.known_bad.contains_key(&address);
        self.lose(address, sums);
    }

    /// This block is not as it was, and is being written anew.
    pub(super) fn rewrite_untold(&mut self, address: u64) {
        self.is_untold = true;
        self.rewritten.entry(address).or_insert(None);
    }

    /// What main's label is to tell of blocks that nobody has as they were. While main is a mixture nothing gets well, nor on the way: what was
    /// written anew may have been let go of because it was written once more, which main does not have.
    pub(super) fn bad(&mut self, is_mixture: bool) -> Bad {
        if !is_mixture && !self.is_between {
            let applied = self.applied.page;
            self.rewritten.retain(|_, behind| behind.is_none_or(|behind| applied < behind));
        }
        let all: BTreeSet<u64> = self.known_bad.keys().chain(self.rewritten.keys()).copied().collect();
        let found = Bad { blocks: all.len() as u64, first: all.first().copied().unwrap_or(0) };
        match self.knowledge {
            Knowledge::All => found,
            Knowledge::Forgotten | Knowledge::Accepted => found.and(self.forgotten),
        }
    }

    /// Main's label tells what [`Stages::bad`] said: the log need not, of what is well.
    pub(super) fn told_bad(&mut self) {
        if self.known_bad.is_empty() && self.rewritten.is_empty() {
            self.held = None;
            self.is_untold &= self.knowledge != Knowledge::All;
        }
    }

    /// What is `Durable` goes to main.
    pub(super) fn take_durable(&mut self) {
        self.promote(Stage::Durable, Stage::Applying);
    }

    /// What was `Applying` is on main, and with it everything in the log before `point`.
    pub(super) fn written(&mut self, point: Point) {
        self.promote(Stage::Applying, Stage::Applied);
        self.written = point;
    }

    /// The same of a part of what was `Applying`; the rest stays.
    pub(super) fn written_in_part(&mut self, done: Map, point: Point) {
        let rest = Arc::make_mut(&mut self.maps[Stage::Applying as usize]);
        for address in done.keys() {
            rest.remove(address);
        }
        let before = std::mem::take(&mut self.maps[Stage::Applied as usize]);
        self.maps[Stage::Applied as usize] = merge(Arc::new(done), before);
        self.written = point;
    }

    /// What was `Applied` is durable there.
    pub(super) fn applied(&mut self) {
        self.maps[Stage::Applied as usize] = Arc::default();
        self.memory_blocks[Stage::Applied as usize] = 0;
        self.applied = self.written;
        self.age.first[Stage::Applied as usize] = None;
        self.recent.let_go_before(self.applied.data);
        self.ends.let_go_before(self.applied);
    }

    /// The first block from this one on that main does not have for certain.
    pub(super) fn next_address(&self, first: u64) -> Option<u64> {
        self.maps.iter().filter_map(|map| map.range(first..).next()).map(|(address, _)| *address).min()
    }

    /// The newest version of a block, if main does not have it for certain.
    pub(super) fn find(&self, address: u64) -> Option<&Version> {
        self.maps.iter().find_map(|map| map.get(&address))
    }

    /// The same version with its bytes, if it is in the log and memory still has it.
    pub(super) fn held(&self, version: &Version) -> Option<Version> {
        let Place::Log(position) = version.place else { return None };
        let (chunk, index) = self.recent.find(position)?;
        Some(Version { sum: version.sum, place: Place::Held(Arc::clone(chunk), index, position) })
    }

    /// The same of blocks in a row.
    pub(super) fn find_all(&self, first: u64, count: u64) -> Vec<Option<Version>> {
        let mut found = vec![None; count as usize];
        for map in &self.maps {
            for (address, version) in map.range(first..first + count) {
                let of = &mut found[(address - first) as usize];
                of.get_or_insert_with(|| self.held(version).unwrap_or_else(|| version.clone()));
            }
        }
        found
    }

    /// Whether there are versions that only the log has, newest or not.
    pub(super) fn has_some_in_log(&self) -> bool {
        self.maps.iter().flat_map(|map| map.values()).any(|version| matches!(version.place, Place::Log(_)))
    }

    /// The newest version of all blocks that main does not have for certain.
    pub(super) fn newest(&self) -> Map {
        let mut all = Map::new();
        for map in self.maps.iter().rev() {
            all.extend(map.iter().map(|(address, version)| (*address, version.clone())));
        }
        all
    }

    /// Damages the first gathered block, as bad memory would.
    #[cfg(test)]
    pub(super) fn damage_gathered(&mut self) {
        let (_, chunk) = &mut self.gathered[0];
        self.maps[Stage::Gathered as usize] = Arc::default();
        Arc::get_mut(chunk).expect("nobody else has it").damage();
    }
}

/// Of a block that is in both, the newer version.
fn merge(newer: Arc<Map>, older: Arc<Map>) -> Arc<Map> {
    if newer.is_empty() {
        return older;
    }
    if older.is_empty() {
        return newer;
    }
    let (mut newer, mut older) = (Arc::unwrap_or_clone(newer), Arc::unwrap_or_clone(older));
    if older.len() / MUCH_SMALLER > newer.len() {
        older.extend(newer);
        Arc::new(older)
    } else if newer.len() / MUCH_SMALLER > older.len() {
        for (address, version) in older {
            newer.entry(address).or_insert(version);
        }
        Arc::new(newer)
    } else {
        older.append(&mut newer);
        Arc::new(older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_let_go_of_up_to_the_last_end_before_what_is_needed() {
        let areas = Areas { meta_start: 256, meta_blocks: 640, data_start: 896, data_blocks: 640 };
        let at = |page: u64| Point { page, data: 10 * page, previous: 0 };
        let mut ends = Ends::default();
        (1..=9).for_each(|page| ends.push(at(page), &areas));
        let last = |needed, from, to| ends.last_before(needed, at(from), at(to)).map(|end| end.page);
        assert_eq!(last(45, 0, 9), Some(4));
        assert_eq!(last(40, 0, 9), Some(4));
        assert_eq!((last(9, 0, 9), last(45, 4, 9)), (None, None));
        // Not what is not durable.
        assert_eq!(last(u64::MAX, 2, 7), Some(6));
        assert!(is_half_step(at(1), at(5), &areas) && !is_half_step(at(1), at(4), &areas));
    }

    #[test]
    fn what_was_written_anew_is_not_well_before_main_has_it_though_the_log_lets_go_of_it() {
        let mut stages = Stages::default();
        stages.lose(7, (1, 2));
        let before = stages.bad(false);
        assert_eq!(before, Bad { blocks: 1, first: 7 });
        stages.known_bad.clear();
        stages.rewritten.insert(7, Some(10));
        // It was written once more, and the log lets go of the version that was durable first.
        (stages.applied.page, stages.is_between) = (20, true);
        assert_eq!(stages.bad(false), before);
        stages.is_between = false;
        assert_eq!(stages.bad(false), Bad::default());
    }

    #[test]
    fn what_was_written_while_main_caught_up_has_its_own_age() {
        let seconds = Duration::from_secs;
        let mut stages = Stages::default();
        assert!(stages.age.begin(Stage::Gathered, seconds(1)));
        assert!(!stages.age.begin(Stage::Gathered, seconds(2)));
        stages.take_gathered();
        stages.age.begin(Stage::Gathered, seconds(5));
        stages.promote(Stage::Writing, Stage::Logged);
        stages.promote(Stage::Logged, Stage::Durable);
        stages.take_durable();
        stages.written(Point::default());
        assert_eq!(stages.age.oldest(), Some(seconds(1)));
        stages.applied();
        assert_eq!(stages.age.oldest(), Some(seconds(5)));
    }

    #[test]
    fn of_two_maps_the_newer_versions_count_whatever_their_sizes() {
        for (old, new) in [(0, 5), (5, 0), (100, 3), (3, 100), (40, 60)] {
            let map = |count: u64, step: u64, sum: u64| -> Arc<Map> {
                Arc::new((0..count).map(|at| (at * step, Version { sum, place: Place::Log(at) })).collect())
            };
            let (older, newer) = (map(old, 2, 1), map(new, 3, 2));
            // One is in use elsewhere.
            let in_use = Arc::clone(&older);
            let merged = merge(Arc::clone(&newer), older);
            let expected = |at: &u64| if newer.contains_key(at) { 2 } else { 1 };
            assert!(merged.iter().all(|(at, version)| version.sum == expected(at)), "{old} and {new}");
            assert!(in_use.keys().chain(newer.keys()).all(|at| merged.contains_key(at)), "{old} and {new}");
            assert!(in_use.values().all(|version| version.sum == 1) && in_use.len() as u64 == old);
        }
    }
}
