//! The simulated year: which files somebody makes, changes and removes, day by day. Only a plan is made here, from a seed;
//! [`super::apply`] carries it out, so that every file system goes through the same.
//!
//! The files at the start take up 50 % of the store and lie in 40 projects (directories). A file has, at random, 0.5–16 KiB (70 % of
//! them), 16–512 KiB (25 %) or 0.5–8 MiB (5 %), the logarithm of its size evenly distributed, as sizes are in a home directory
//! (Agrawal and others: "A five-year study of file-system metadata", FAST 2007). Two databases of 1/64 of the store each and three logs
//! stand beside them. Each day, in four parts with a recovery point after each:
//!
//! - 28 files are made, and 28 more that are removed within the day (what a build leaves);
//! - 12 are saved again as editors do: written under another name, fsync, renamed over the old;
//! - 320 places of 4–16 KiB are overwritten in the databases, four fifths of them in a fifth of the pages, with fsync after
//!   each 16;
//! - 60 entries of up to 4 KiB are appended to the logs in turn, with fsync after each 6; on Sundays each log gets a new file, and those
//!   older than four weeks are removed;
//! - 160 letters of 1–8 KiB come into a spool directory, and those of four days ago go;
//! - 6 files move to another project; every 30th day a project changes its name;
//! - as many files, chosen at random, are removed as it takes to have the same amount of data again;
//! - a snapshot is made. Kept are 7 daily ones, 4 weekly ones and 12 monthly ones. When the files and what the snapshots pin would
//!   take up more than 75 % of the store, the oldest snapshots go first, as somebody would do whose disk gets full.

use std::collections::BTreeSet;

use crate::pattern::{BLOCK, Generator};

/// Projects that files lie in.
const PROJECTS: u64 = 40;
/// Logs that are appended to.
const LOGS: u64 = 3;
/// Databases that are overwritten in place.
const DATABASES: u64 = 2;
/// Parts of a day, with a recovery point after each.
const PARTS: u64 = 4;
/// Days that a letter stays in the spool.
const SPOOL_DAYS: u64 = 4;
/// Days that a log that is not written any more is kept.
const LOG_DAYS: u64 = 28;
/// Of the store, in percent: files at the start, and most that files and snapshots may take up together.
const START_PERCENT: u64 = 50;
const FULL_PERCENT: u64 = 75;

/// One thing somebody does. Paths are relative to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Makes a directory.
    MakeDirectory(String),
    /// Makes a file and writes it; no fsync.
    Create { path: String, id: u64, bytes: u64 },
    /// Writes a file anew beside the old one, fsync, renames it over that.
    Save { path: String, id: u64, bytes: u64 },
    /// Writes over blocks (first block, number) of a file, then fsync.
    Overwrite { path: String, id: u64, places: Vec<(u64, u64)> },
    /// Writes behind the end of a file, which is made if it is not there; `sync`: then fsync.
    Append { path: String, id: u64, offset: u64, bytes: u64, sync: bool },
    /// Renames a file or a directory.
    Rename { from: String, to: String },
    /// Removes a file.
    Remove(String),
    /// Makes everything durable: a recovery point.
    Settle,
    /// Keeps a snapshot of this name.
    Snapshot(String),
    /// Gives up a snapshot.
    DropSnapshot(String),
}

/// A file as it should be at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    /// Number, which its contents name.
    pub(super) id: u64,
    /// Its size.
    pub(super) bytes: u64,
    /// What it is.
    pub(super) class: Class,
    /// Day of its contents.
    born: u64,
    /// Project, for a [`Class::Document`].
    project: u64,
}

/// What a file is: it decides what happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Written as a whole, in a project.
    Document,
    /// Overwritten in place, at random.
    Database,
    /// Appended to.
    Log,
    /// In the spool for some days.
    Letter,
}

/// Contents that the files have no more: of the days `born..died`.
#[derive(Clone, Copy, Debug)]
struct Dead {
    born: u64,
    died: u64,
    bytes: u64,
}

/// The state of the plan.
#[derive(Debug)]
pub(super) struct Year {
    random: Generator,
    store_bytes: u64,
    files: Vec<File>,
    /// Name of each project: its number and how often it has been renamed.
    projects: Vec<u64>,
    /// Day of each page of each database.
    database_pages: Vec<Vec<u64>>,
    live_bytes: u64,
    target_bytes: u64,
    next_id: u64,
    day: u64,
    /// Days of the snapshots that are kept.
    kept: BTreeSet<u64>,
    dead: Vec<Dead>,
}

impl Year {
    /// A year on a store of `store_mib` MiB.
    pub(super) fn new(store_mib: u64, seed: u64) -> Self {
        let store_bytes = store_mib << 20;
        Self {
            random: Generator::new(&[seed, 365]),
            store_bytes,
            files: Vec::new(),
            projects: vec![0; PROJECTS as usize],
            database_pages: Vec::new(),
            live_bytes: 0,
            target_bytes: store_bytes / 100 * START_PERCENT,
            next_id: 1,
            day: 0,
            kept: BTreeSet::new(),
            dead: Vec::new(),
        }
    }

    /// All files as they are now, with their paths, in the order in which they were made.
    pub(super) fn files(&self) -> Vec<(String, File)> {
        // A log to which nothing was written yet is not there.
        self.files.iter().filter(|file| file.bytes > 0).map(|file| (self.path(file), file.clone())).collect()
    }

    /// Snapshots that are kept now.
    pub(super) fn snapshots(&self) -> Vec<String> {
        self.kept.iter().map(|day| snapshot_name(*day)).collect()
    }

    /// Day 0: what is there when the year begins.
    pub(super) fn begin(&mut self) -> Vec<Step> {
        let mut steps: Vec<Step> = ["logs", "spool"].map(|name| Step::MakeDirectory(name.to_owned())).to_vec();
        steps.extend((0..PROJECTS).map(|project| Step::MakeDirectory(self.project(project))));
        let database_blocks = (self.store_bytes / 64 / BLOCK as u64).max(64);
        for _ in 0..DATABASES {
            self.database_pages.push(vec![0; database_blocks as usize]);
            steps.push(self.create(Class::Database, database_blocks * BLOCK as u64));
        }
        for _ in 0..LOGS {
            self.add(Class::Log, 0);
        }
        while self.live_bytes < self.target_bytes {
            let bytes = self.size();
            steps.push(self.create(Class::Document, bytes));
        }
        steps.push(Step::Settle);
        steps
    }

    /// The next day.
    pub(super) fn day(&mut self) -> Vec<Step> {
        self.day += 1;
        let mut steps = Vec::new();
        for part in 0..PARTS {
            self.part(part, &mut steps);
            steps.push(Step::Settle);
        }
        self.snapshots_of_the_day(&mut steps);
        steps
    }

    fn part(&mut self, part: u64, steps: &mut Vec<Step>) {
        let mut brief = Vec::new();
        for _ in 0..28 / PARTS {
            let bytes = self.size();
            steps.push(self.create(Class::Document, bytes));
            let bytes = self.size();
            steps.push(self.create(Class::Document, bytes));
            brief.push(self.next_id - 1);
        }
        for _ in 0..12 / PARTS {
            steps.extend(self.save());
        }
        for _ in 0..320 / 16 / PARTS {
            steps.push(self.overwrite());
        }
        for entry in 0..60 / PARTS {
            steps.push(self.append(entry % 6 == 5));
        }
        for _ in 0..160 / PARTS {
            let bytes = 1024 + self.random.below(7 * 1024);
            steps.push(self.create(Class::Letter, bytes));
        }
        steps.extend((0..6).filter(|n| n % PARTS == part).filter_map(|_| self.change_project()).collect::<Vec<_>>());
        self.remove_where(|file| brief.contains(&file.id), steps);
        if part == 0 {
            self.end_of_old(steps);
        }
        while self.live_bytes > self.target_bytes {
            let Some(at) = self.pick(|file| file.class == Class::Document) else { break };
            steps.push(Step::Remove(self.path(&self.files[at])));
            self.forget(at);
        }
    }

    /// What goes because of its age, and what the calendar says.
    fn end_of_old(&mut self, steps: &mut Vec<Step>) {
        let day = self.day;
        self.remove_where(|file| file.class == Class::Letter && file.born + SPOOL_DAYS <= day, steps);
        if day.is_multiple_of(7) {
            self.remove_where(|file| file.class == Class::Log && file.born + LOG_DAYS <= day, steps);
            (0..LOGS).for_each(|_| self.add(Class::Log, 0));
        }
        if day.is_multiple_of(30) {
            let project = self.random.below(PROJECTS);
            let from = self.project(project);
            self.projects[project as usize] += 1;
            steps.push(Step::Rename { from, to: self.project(project) });
        }
    }

    fn snapshots_of_the_day(&mut self, steps: &mut Vec<Step>) {
        let day = self.day;
        steps.push(Step::Snapshot(snapshot_name(day)));
        self.kept.insert(day);
        let (stay, go): (BTreeSet<u64>, BTreeSet<u64>) = self.kept.iter().partition(|made| stays(**made, day));
        self.kept = stay;
        steps.extend(go.into_iter().map(|made| Step::DropSnapshot(snapshot_name(made))));
        while self.live_bytes + self.pinned_bytes() > self.store_bytes / 100 * FULL_PERCENT && self.kept.len() > 1 {
            steps.extend(self.kept.pop_first().map(|made| Step::DropSnapshot(snapshot_name(made))));
        }
    }

    /// What only snapshots have: contents with a snapshot between their beginning and their end. Forgets the others.
    pub(super) fn pinned_bytes(&mut self) -> u64 {
        let kept = &self.kept;
        self.dead.retain(|dead| kept.range(dead.born..dead.died).next().is_some());
        self.dead.iter().map(|dead| dead.bytes).sum()
    }

    /// Bytes of all files.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    // ---- single steps

    fn size(&mut self) -> u64 {
        let (low, high) = match self.random.below(100) {
            0..70 => (512.0, 16384.0),
            70..95 => (16384.0, 524_288.0),
            _ => (524_288.0, f64::from(8 << 20)),
        };
        let place = self.random.below(1 << 20) as f64 / f64::from(1 << 20);
        (low * f64::powf(high / low, place)) as u64
    }

    fn add(&mut self, class: Class, bytes: u64) {
        let project = self.random.below(PROJECTS);
        self.live_bytes += allocated(bytes);
        self.files.push(File { id: self.next_id, bytes, class, born: self.day, project });
        self.next_id += 1;
    }

    fn create(&mut self, class: Class, bytes: u64) -> Step {
        self.add(class, bytes);
        let file = &self.files[self.files.len() - 1];
        Step::Create { path: self.path(file), id: file.id, bytes }
    }

    fn save(&mut self) -> Option<Step> {
        let at = self.pick(|file| file.class == Class::Document && file.bytes < 512 << 10)?;
        let (old, change) = (self.files[at].bytes, self.random.below(8192));
        let bytes = (old + change).saturating_sub(4096).max(512);
        self.bury(at);
        self.live_bytes = self.live_bytes - allocated(old) + allocated(bytes);
        self.files[at].bytes = bytes;
        self.files[at].born = self.day;
        Some(Step::Save { path: self.path(&self.files[at]), id: self.files[at].id, bytes })
    }

    fn overwrite(&mut self) -> Step {
        let database = self.random.below(DATABASES) as usize;
        let blocks = self.database_pages[database].len() as u64;
        let mut places = Vec::new();
        for _ in 0..16 {
            let within = if self.random.below(5) < 4 { blocks / 5 } else { blocks };
            let count = 1 + self.random.below(4);
            let first = self.random.below(within).min(blocks - count);
            places.push((first, count));
            for page in first..first + count {
                let born = std::mem::replace(&mut self.database_pages[database][page as usize], self.day);
                self.dead.push(Dead { born, died: self.day, bytes: BLOCK as u64 });
            }
        }
        let file = &self.files[database];
        Step::Overwrite { path: self.path(file), id: file.id, places }
    }

    fn append(&mut self, sync: bool) -> Step {
        let nth = self.random.below(LOGS) as usize;
        let logs = self.files.iter().enumerate().filter(|(_, file)| file.class == Class::Log);
        // The newest ones are written.
        let at = logs.map(|(at, _)| at).rev().nth(nth).unwrap_or(0);
        let bytes = 64 + self.random.below(4096);
        let offset = self.files[at].bytes;
        self.files[at].bytes += bytes;
        self.live_bytes += allocated(offset + bytes) - allocated(offset);
        Step::Append { path: self.path(&self.files[at]), id: self.files[at].id, offset, bytes, sync }
    }

    fn change_project(&mut self) -> Option<Step> {
        let at = self.pick(|file| file.class == Class::Document)?;
        let from = self.path(&self.files[at]);
        self.files[at].project = (self.files[at].project + 1 + self.random.below(PROJECTS - 1)) % PROJECTS;
        Some(Step::Rename { from, to: self.path(&self.files[at]) })
    }

    fn remove_where(&mut self, goes: impl Fn(&File) -> bool, steps: &mut Vec<Step>) {
        for at in (0..self.files.len()).rev() {
            if goes(&self.files[at]) {
                let path = self.path(&self.files[at]);
                // A log to which nothing was written in its week was never made.
                if self.files[at].bytes > 0 {
                    steps.push(Step::Remove(path));
                }
                self.forget(at);
            }
        }
    }

    fn pick(&mut self, which: impl Fn(&File) -> bool) -> Option<usize> {
        const TRIES: usize = 200;
        (0..TRIES).map(|_| self.random.below(self.files.len() as u64) as usize).find(|at| which(&self.files[*at]))
    }

    fn forget(&mut self, at: usize) {
        self.bury(at);
        self.live_bytes -= allocated(self.files[at].bytes);
        // In order: databases stay the first, and logs from old to new.
        self.files.remove(at);
    }

    fn bury(&mut self, at: usize) {
        let File { bytes, born, .. } = self.files[at];
        self.dead.push(Dead { born, died: self.day, bytes: allocated(bytes) });
    }

    fn project(&self, project: u64) -> String {
        format!("project-{project:02}.{}", self.projects[project as usize])
    }

    fn path(&self, file: &File) -> String {
        let id = file.id;
        match file.class {
            Class::Document => format!("{}/file-{id}", self.project(file.project)),
            Class::Database => format!("database-{id}"),
            Class::Log => format!("logs/log-{id}"),
            Class::Letter => format!("spool/{id}"),
        }
    }
}

/// The policy: 7 daily snapshots, 4 weekly ones, 12 monthly ones.
fn stays(made: u64, today: u64) -> bool {
    let age = today - made;
    age < 7 || made.is_multiple_of(7) && age < 28 || made.is_multiple_of(30) && age < 360
}

fn allocated(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK as u64)
}

fn snapshot_name(day: u64) -> String {
    format!("day-{day:03}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_year_by_the_same_seed_is_the_same_and_keeps_its_bounds() {
        let (mut a, mut b) = (Year::new(64, 7), Year::new(64, 7));
        assert_eq!(a.begin(), b.begin());
        for day in 1..=365 {
            let steps = a.day();
            assert_eq!(steps, b.day(), "day {day}");
            let used = a.live_bytes() + a.pinned_bytes();
            assert!(used <= a.store_bytes / 100 * FULL_PERCENT || a.kept.len() == 1, "day {day}: {used} bytes");
            // A large file is an eighth of so small a store.
            assert!(a.live_bytes() * 10 > a.target_bytes * 7, "day {day}: {} bytes live", a.live_bytes());
            assert!(a.kept.contains(&day) && a.kept.len() <= 7 + 4 + 12);
        }
        assert_ne!(Year::new(64, 8).begin(), Year::new(64, 7).begin());
    }

    #[test]
    fn with_room_the_snapshots_are_those_of_the_policy() {
        let mut kept = BTreeSet::new();
        for day in 1..=365 {
            kept.insert(day);
            kept.retain(|made| stays(*made, day));
        }
        let daily: Vec<u64> = (359..=365).collect();
        let expected: BTreeSet<u64> = daily.into_iter().chain([343, 350, 357]).chain((30..=360).step_by(30)).collect();
        assert_eq!(kept, expected);
    }

    #[test]
    fn contents_are_pinned_while_a_snapshot_is_between_their_beginning_and_their_end() {
        let mut year = Year::new(64, 1);
        year.dead = vec![Dead { born: 3, died: 3, bytes: 1 }, Dead { born: 3, died: 5, bytes: 10 }];
        year.kept = BTreeSet::from([2, 4, 5]);
        assert_eq!(year.pinned_bytes(), 10);
        year.kept = BTreeSet::from([2, 5]);
        assert_eq!(year.pinned_bytes(), 0);
    }
}
