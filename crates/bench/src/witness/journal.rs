//! The journal: one line per change begun and per change answered, on a file system that does not crash.
//!
//! A line is `begin|done ACTOR NUMBER PLACE`. Each is one write(2) in append mode, so a killed witness leaves whole lines, but
//! for the last one perhaps.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::actors::Actor;
use crate::error::{At, Error, Result};

/// Whether a change was begun or answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// About to be made: it may be on the disk from now on.
    Begin,
    /// Answered by fsync: it must be on the disk from now on.
    Done,
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Begun or answered.
    pub stage: Stage,
    /// Who made the change.
    pub actor: Actor,
    /// Number of the change: counts up from 1 for each actor.
    pub number: u64,
    /// Which block or file it concerns; 0 where there is only one.
    pub place: u64,
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Starts an empty journal with the seed as its first line.
    pub fn create(path: &Path, seed: u64) -> Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).open(path).at("create", path)?;
        (&file).write_all(format!("seed {seed}\n").as_bytes()).at("write", path)?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Notes a record. May be called from several threads.
    pub fn note(&self, record: Record) -> Result<()> {
        let stage = if record.stage == Stage::Begin { "begin" } else { "done" };
        let line = format!("{stage} {} {} {}\n", record.actor.name(), record.number, record.place);
        (&self.file).write_all(line.as_bytes()).at("write", &self.path)
    }

    /// Reads a journal back: its seed and its records.
    pub fn read(path: &Path) -> Result<(u64, Vec<Record>)> {
        let text = fs::read_to_string(path).at("read", path)?;
        // A line without its end is one that a killed witness did not finish: it announces nothing.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines().enumerate();
        let bad = |(index, line): (usize, &str)| Error::Journal {
            path: path.to_path_buf(),
            line: index + 1,
            text: line.to_owned(),
        };
        let first = lines.next().unwrap_or((0, ""));
        let seed = first.1.strip_prefix("seed ").and_then(|seed| seed.parse().ok()).ok_or_else(|| bad(first))?;
        let records: Result<Vec<Record>> = lines.map(|line| parse(line.1).ok_or_else(|| bad(line))).collect();
        Ok((seed, records?))
    }
}

fn parse(line: &str) -> Option<Record> {
    let mut words = line.split(' ');
    let stage = match words.next()? {
        "begin" => Stage::Begin,
        "done" => Stage::Done,
        _ => return None,
    };
    let actor = Actor::from_name(words.next()?)?;
    let number = words.next()?.parse().ok()?;
    let place = words.next()?.parse().ok()?;
    words.next().is_none().then_some(Record { stage, actor, number, place })
}
