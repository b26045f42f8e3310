//! The changes, each noted before it is begun and after fsync has answered.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::contents::{self, BLOCKS};
use super::journal::{Journal, Record, Stage};
use crate::error::{At, Error, Result};
use crate::pattern::{BLOCK, Generator};

/// Who makes a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Actor {
    /// Appends records.
    Log,
    /// Creates files.
    Create,
    /// Removes some of these files.
    Remove,
    /// Replaces a file by rename.
    Replace,
    /// Overwrites blocks.
    Block,
}

impl Actor {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Log, Self::Create, Self::Remove, Self::Replace, Self::Block];

    /// As in the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Create => "create",
            Self::Remove => "remove",
            Self::Replace => "replace",
            Self::Block => "block",
        }
    }

    /// The reverse of [`Actor::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|actor| actor.name() == name)
    }
}

/// How the writing ended.
#[derive(Debug)]
pub struct Outcome {
    /// Changes that fsync answered.
    pub answered: u64,
    /// The first error of each actor: expected if the file system was made to crash.
    pub errors: Vec<Error>,
}

/// The changes of one run: where, noted where, until when.
struct Run<'a> {
    root: &'a Path,
    seed: u64,
    journal: &'a Journal,
    deadline: Instant,
    stop: AtomicBool,
    answered: AtomicU64,
}

/// Prepares `root` (a new directory), then lets all actors work until `duration` has passed or one of them meets an error.
pub fn write(root: &Path, journal: &Journal, seed: u64, duration: Duration) -> Result<Outcome> {
    prepare(root, seed)?;
    let run = Run {
        root,
        seed,
        journal,
        deadline: Instant::now() + duration,
        stop: AtomicBool::new(false),
        answered: AtomicU64::new(0),
    };
    let actors: [fn(&Run<'_>) -> Result<()>; 4] = [append_records, create_and_remove, replace, overwrite];
    let errors = std::thread::scope(|scope| {
        let threads = actors.map(|actor| {
            let run = &run;
            scope.spawn(move || actor(run).inspect_err(|_| run.stop.store(true, Ordering::Relaxed)))
        });
        let results = threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        results.into_iter().filter_map(Result::err).collect()
    });
    Ok(Outcome { answered: run.answered.into_inner(), errors })
}

/// What is there before the first change; made durable, so that verification may rely on it.
fn prepare(root: &Path, seed: u64) -> Result<()> {
    for dir in [root.to_path_buf(), contents::files_dir(root), contents::versions_dir(root)] {
        fs::create_dir(&dir).at("create", &dir)?;
    }
    let blocks: Vec<u8> = contents::block(seed, 0).repeat(BLOCKS as usize);
    let initial = [
        (contents::log_path(root), Vec::new()),
        (contents::blocks_path(root), blocks),
        (contents::version_path(root), contents::version(seed, 0)),
    ];
    for (path, bytes) in initial {
        let mut file = File::create_new(&path).at("create", &path)?;
        file.write_all(&bytes).at("write", &path)?;
        file.sync_all().at("fsync", &path)?;
    }
    for dir in [contents::versions_dir(root), root.to_path_buf()] {
        sync_dir(&dir)?;
    }
    root.parent().map_or(Ok(()), sync_dir)
}

impl Run<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && Instant::now() < self.deadline
    }

    /// Makes one change and notes it before and after; `change` returns when it is durable.
    fn change(&self, actor: Actor, number: u64, place: u64, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let note = |stage| self.journal.note(Record { stage, actor, number, place });
        note(Stage::Begin)?;
        change()?;
        note(Stage::Done)?;
        self.answered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn append_records(run: &Run<'_>) -> Result<()> {
    let path = contents::log_path(run.root);
    let mut file = OpenOptions::new().append(true).open(&path).at("open", &path)?;
    for number in (1..).take_while(|_| run.goes_on()) {
        run.change(Actor::Log, number, 0, || {
            file.write_all(&contents::log_record(run.seed, number)).at("append to", &path)?;
            file.sync_data().at("fdatasync", &path)
        })?;
    }
    Ok(())
}

fn create_and_remove(run: &Run<'_>) -> Result<()> {
    let mut removals = 0;
    let mut generator = Generator::new(&[run.seed, 100]);
    let mut present = Vec::new();
    for number in (1..).take_while(|_| run.goes_on()) {
        let path = contents::file_path(run.root, number);
        run.change(Actor::Create, number, number, || {
            let mut file = File::create_new(&path).at("create", &path)?;
            file.write_all(&contents::file(run.seed, number)).at("write", &path)?;
            file.sync_all().at("fsync", &path)
        })?;
        present.push(number);
        if generator.below(4) == 0 {
            let victim = present.swap_remove(generator.below(present.len() as u64) as usize);
            removals += 1;
            let path = contents::file_path(run.root, victim);
            run.change(Actor::Remove, removals, victim, || {
                fs::remove_file(&path).at("unlink", &path)?;
                sync_dir(&contents::files_dir(run.root))
            })?;
        }
    }
    Ok(())
}

fn replace(run: &Run<'_>) -> Result<()> {
    let path = contents::version_path(run.root);
    let temporary = path.with_extension("new");
    for number in (1..).take_while(|_| run.goes_on()) {
        run.change(Actor::Replace, number, 0, || {
            let mut file = File::create(&temporary).at("create", &temporary)?;
            file.write_all(&contents::version(run.seed, number)).at("write", &temporary)?;
            file.sync_all().at("fsync", &temporary)?;
            fs::rename(&temporary, &path).at("rename to", &path)?;
            sync_dir(&contents::versions_dir(run.root))
        })?;
    }
    Ok(())
}

fn overwrite(run: &Run<'_>) -> Result<()> {
    let path = contents::blocks_path(run.root);
    let file = OpenOptions::new().write(true).open(&path).at("open", &path)?;
    let mut generator = Generator::new(&[run.seed, 101]);
    for number in (1..).take_while(|_| run.goes_on()) {
        let place = generator.below(BLOCKS);
        run.change(Actor::Block, number, place, || {
            file.write_all_at(&contents::block(run.seed, number), place * BLOCK as u64).at("write", &path)?;
            file.sync_data().at("fdatasync", &path)
        })?;
    }
    Ok(())
}

fn sync_dir(path: &Path) -> Result<()> {
    File::open(path).at("open", path)?.sync_all().at("fsync", path)
}
