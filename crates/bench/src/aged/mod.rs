//! An aged store compared with a fresh one: a simulated year of churn on one, its final contents copied into the other, then the
//! same work on both in turns.
//!
//! | file | what |
//! |---|---|
//! | `year` | what happens in the year, by seed |
//! | `apply` | carries it out |
//! | `probe` | what is measured |
//! | `layout` | metadata, runs of files, free space |
//! | `tables` | what came out |

mod apply;
mod layout;
mod probe;
mod tables;
mod year;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::apply::{Contents, apply};
use self::layout::{Layout, Runs, btrfs_metadata, runs_by_filefrag};
use self::probe::{Ground, LARGE_FILE_BYTES, Measured, Probe};
pub use self::tables::tables;
use self::year::{Class, Year};
use crate::error::{At, Result};
use crate::peer::{BTRFS_SNAPSHOTS, Kind, Peer, Site, drop_caches};

/// How much to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which file systems.
    pub kinds: Vec<Kind>,
    /// Where; each is made below in two stores, `aged` and `fresh`.
    pub site: Site,
    /// Days of the year.
    pub days: u64,
    /// Rounds of measurements.
    pub rounds: u64,
    /// Of the year and of all measurements.
    pub seed: u64,
}

/// Groups of files whose runs are told apart: name, class, sizes.
const GROUPS: [(&str, Class, std::ops::Range<u64>); 4] = [
    ("large files", Class::Document, LARGE_FILE_BYTES..u64::MAX),
    ("smaller files", Class::Document, 0..LARGE_FILE_BYTES),
    ("databases", Class::Database, 0..u64::MAX),
    ("logs", Class::Log, 0..u64::MAX),
];

/// How the year went on one file system.
#[derive(Clone, Debug)]
pub struct Ageing {
    /// Time for each day; the first is what was there at the beginning.
    pub days: Vec<Duration>,
    /// Bytes of files at the end.
    pub live_bytes: u64,
    /// Of contents that only snapshots have, by the plan.
    pub pinned_bytes: u64,
    /// At the end.
    pub files: u64,
    /// Kept at the end.
    pub snapshots: u64,
}

/// One store of one file system.
#[derive(Debug)]
pub struct Subject {
    kind: Kind,
    peer: Peer,
    ground: Ground,
    /// By the index in [`Probe::ALL`]: a measurement for each round.
    measured: Vec<Vec<Measured>>,
    /// Files and runs by the index in [`GROUPS`].
    runs: Vec<(u64, Runs)>,
    /// Of a Holdfast store.
    layout: Option<Layout>,
    /// Of btrfs: bytes of metadata.
    metadata_bytes: Option<u64>,
}

/// An aged store, a fresh one with the same files, and what was found.
#[derive(Debug)]
pub struct Pair {
    kind: Kind,
    ageing: Ageing,
    fresh: Subject,
    aged: Subject,
    /// Of a Holdfast store: aged, after everything was removed and the snapshots deleted; the time of the latter; a new one.
    emptied: Option<(Layout, Duration, Layout)>,
}

/// Ages, copies, measures. `progress` gets what is being done.
pub fn execute(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for kind in &plan.kinds {
        pairs.push(prepare(plan, *kind, progress)?);
    }
    for round in 0..plan.rounds {
        for (at, probe) in Probe::ALL.into_iter().enumerate() {
            if probe == Probe::RemoveAll && round + 1 < plan.rounds {
                continue;
            }
            let mut subjects: Vec<&mut Subject> =
                pairs.iter_mut().flat_map(|pair| [&mut pair.fresh, &mut pair.aged]).collect();
            let count = subjects.len();
            for turn in 0..count {
                let subject = &mut subjects[(turn + round as usize) % count];
                progress(&format!("round {}: {} on {}", round + 1, probe.name(), subject.kind.name()));
                if probe.is_for(&subject.peer) {
                    let measured = subject.measure(probe, round)?;
                    subject.measured[at].push(measured);
                }
            }
        }
    }
    for pair in &mut pairs {
        progress(&format!("emptying {}", pair.kind.name()));
        pair.empty(plan)?;
    }
    Ok(pairs)
}

fn prepare(plan: &Plan, kind: Kind, progress: &mut dyn FnMut(&str)) -> Result<Pair> {
    let site = |name: &str| -> Result<Site> {
        let dir = plan.site.dir.join(name);
        fs::create_dir_all(&dir).at("create", &dir)?;
        Ok(Site { dir, ..plan.site.clone() })
    };
    let aged = Peer::create(kind, &site("aged")?)?;
    let (mut year, mut contents) = (Year::new(plan.site.store_mib, plan.seed), Contents::new(plan.seed));
    let mut days = Vec::new();
    for day in 0..=plan.days {
        progress(&format!("{}: day {day}", kind.name()));
        let steps = if day == 0 { year.begin() } else { year.day() };
        let start = Instant::now();
        steps.iter().try_for_each(|step| apply(step, &aged, &mut contents))?;
        days.push(start.elapsed());
    }
    let files = year.files();
    let ageing = Ageing {
        days,
        live_bytes: year.live_bytes(),
        pinned_bytes: year.pinned_bytes(),
        files: files.len() as u64,
        snapshots: if kind.has_snapshots() { year.snapshots().len() as u64 } else { 0 },
    };
    progress(&format!("{}: copying into a fresh store", kind.name()));
    let fresh = Peer::create(kind, &site("fresh")?)?;
    copy(aged.root(), fresh.root())?;
    let subject = |peer: Peer| -> Result<Subject> {
        let ground = Ground::new(files.clone(), plan.seed);
        let mut subject = Subject {
            kind,
            peer,
            ground,
            measured: vec![Vec::new(); Probe::ALL.len()],
            runs: Vec::new(),
            layout: None,
            metadata_bytes: None,
        };
        subject.look()?;
        Ok(subject)
    };
    Ok(Pair { kind, ageing, fresh: subject(fresh)?, aged: subject(aged)?, emptied: None })
}

/// Everything below `from`, in the order of names, as `cp -r` would.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let entries = fs::read_dir(from).at("read", from)?.collect::<std::io::Result<Vec<_>>>().at("read", from)?;
    let mut names: Vec<_> = entries.into_iter().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    for name in names.into_iter().filter(|name| name != BTRFS_SNAPSHOTS && name != "lost+found") {
        let (from, to) = (from.join(&name), to.join(&name));
        if fs::symlink_metadata(&from).at("stat", &from)?.is_dir() {
            fs::create_dir(&to).at("create", &to)?;
            copy(&from, &to)?;
        } else {
            fs::copy(&from, &to).at("copy", &from)?;
        }
    }
    Ok(())
}

/// The object of an inode number: the upper 16 bits name a snapshot, and there is none.
const OBJECT_BITS: u64 = (1 << 48) - 1;

impl Subject {
    /// How it lies on its device.
    fn look(&mut self) -> Result<()> {
        self.peer.settle()?;
        let root = self.peer.root().to_path_buf();
        let mut groups: Vec<(Vec<PathBuf>, u64)> = Vec::new();
        for (_, class, sizes) in GROUPS {
            let of = self.ground.of(class, sizes);
            groups.push(of.fold((Vec::new(), 0), |(mut paths, bytes), (path, file)| {
                paths.push(root.join(path));
                (paths, bytes + file.bytes)
            }));
        }
        if self.kind == Kind::Btrfs {
            self.metadata_bytes = Some(btrfs_metadata(&root)?);
        }
        if !self.kind.is_holdfast() {
            for (paths, bytes) in &groups {
                self.runs.push((paths.len() as u64, runs_by_filefrag(paths, *bytes)?));
            }
            return Ok(());
        }
        let inode = |path: &PathBuf| Ok(fs::metadata(path).at("stat", path)?.ino() & OBJECT_BITS);
        let inodes = groups.iter().map(|(paths, _)| paths.iter().map(inode).collect::<Result<Vec<u64>>>());
        let inodes = inodes.collect::<Result<Vec<_>>>()?;
        let layout = self.unmounted_layout()?;
        let count = |group: Vec<u64>| (group.len() as u64, layout.runs_of(group));
        self.runs = inodes.into_iter().map(count).collect();
        self.layout = Some(layout);
        Ok(())
    }

    fn unmounted_layout(&mut self) -> Result<Layout> {
        self.peer.unmount()?;
        let layout = Layout::read(self.peer.store())?;
        self.peer.mount()?;
        Ok(layout)
    }

    fn measure(&mut self, probe: Probe, round: u64) -> Result<Measured> {
        self.ground.prepare(probe, &self.peer, round)?;
        self.peer.settle()?;
        if probe.starts_cold() {
            self.peer.unmount()?;
            drop_caches()?;
            self.peer.mount()?;
        }
        let measured = self.ground.run(probe, &self.peer, round)?;
        self.ground.clear(probe, &self.peer, round)?;
        self.peer.settle()?;
        Ok(measured)
    }
}

impl Pair {
    /// After the last probe: nothing but snapshots is there.
    fn empty(&mut self, plan: &Plan) -> Result<()> {
        if !self.kind.is_holdfast() {
            return Ok(());
        }
        let mut year = Year::new(plan.site.store_mib, plan.seed);
        year.begin();
        (0..plan.days).for_each(|_| drop(year.day()));
        let start = Instant::now();
        year.snapshots().iter().try_for_each(|name| self.aged.peer.drop_snapshot(name))?;
        self.aged.peer.settle()?;
        let took = start.elapsed();
        for path in fs::read_dir(self.aged.peer.root()).at("read", self.aged.peer.root())?.flatten() {
            fs::remove_dir(path.path()).at("remove", path.path())?;
        }
        self.aged.peer.settle()?;
        let emptied = self.aged.unmounted_layout()?;
        let site = Site { dir: plan.site.dir.join("new"), ..plan.site.clone() };
        fs::create_dir_all(&site.dir).at("create", &site.dir)?;
        let mut new = Peer::create(self.kind, &site)?;
        new.settle()?;
        new.unmount()?;
        self.emptied = Some((emptied, took, Layout::read(new.store())?));
        Ok(())
    }
}
