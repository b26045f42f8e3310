//! After the crash: what the journal says against what the file system holds.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::actors::Actor;
use super::contents::{self, BLOCKS};
use super::journal::{Journal, Record, Stage};
use crate::error::{At, Result};
use crate::pattern::BLOCK;

/// One promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whose promise.
    pub actor: Actor,
    /// The file and what is wrong with it.
    pub what: String,
}

/// What a change may have left that was begun and that fsync never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The whole change or nothing: Holdfast's promise (each object's contents follow a prefix of its own changes).
    WholeOrAbsent,
    /// Whatever: POSIX promises nothing, and ext4 may show half of a write or zeros.
    Anything,
}

/// What the verification saw.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Answered changes that were verified.
    pub answered: u64,
    /// Changes begun and not answered.
    pub unanswered: u64,
    /// Promises not kept; empty if all is well.
    pub findings: Vec<Finding>,
}

/// Begun and answered changes by actor, and for each place the newest of each.
#[derive(Default)]
struct Ledger {
    newest_begun: BTreeMap<Actor, u64>,
    newest_answered: BTreeMap<Actor, u64>,
    answered_at: BTreeMap<(Actor, u64), u64>,
    begun_at: BTreeMap<(Actor, u64), Vec<u64>>,
}

impl Ledger {
    fn of(records: &[Record]) -> Self {
        let mut ledger = Self::default();
        for record in records {
            match record.stage {
                Stage::Begin => {
                    ledger.newest_begun.insert(record.actor, record.number);
                    ledger.begun_at.entry((record.actor, record.place)).or_default().push(record.number);
                }
                Stage::Done => {
                    ledger.newest_answered.insert(record.actor, record.number);
                    ledger.answered_at.insert((record.actor, record.place), record.number);
                }
            }
        }
        ledger
    }

    fn begun(&self, actor: Actor) -> u64 {
        self.newest_begun.get(&actor).copied().unwrap_or(0)
    }

    fn answered(&self, actor: Actor) -> u64 {
        self.newest_answered.get(&actor).copied().unwrap_or(0)
    }

    fn is_answered(&self, actor: Actor, place: u64) -> bool {
        self.answered_at.contains_key(&(actor, place))
    }
}

/// Compares the directory with the journal. An error is one of the journal or of reading; a broken promise is a finding.
pub fn verify(root: &Path, journal: &Path, rule: Unanswered) -> Result<Report> {
    let (seed, records) = Journal::read(journal)?;
    let ledger = Ledger::of(&records);
    let answered = records.iter().filter(|record| record.stage == Stage::Done).count() as u64;
    let mut report = Report { answered, unanswered: records.len() as u64 - 2 * answered, findings: Vec::new() };
    let mut found = |actor: Actor, what: String| report.findings.push(Finding { actor, what });
    log(root, seed, rule, &ledger, &mut found)?;
    files(root, seed, rule, &ledger, &mut found)?;
    replaced(root, seed, &ledger, &mut found)?;
    blocks(root, seed, rule, &ledger, &mut found)?;
    Ok(report)
}

/// Reads a file; `None` if it is not there.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        other => other.at("read", path).map(Some),
    }
}

fn log(root: &Path, seed: u64, rule: Unanswered, ledger: &Ledger, found: &mut impl FnMut(Actor, String)) -> Result<()> {
    let path = contents::log_path(root);
    let bytes = read(&path)?.unwrap_or_default();
    let (begun, answered) = (ledger.begun(Actor::Log), ledger.answered(Actor::Log));
    let mut rest = bytes.as_slice();
    let mut whole = 0;
    while whole < begun {
        let Some(after) = rest.strip_prefix(contents::log_record(seed, whole + 1).as_slice()) else { break };
        rest = after;
        whole += 1;
    }
    if whole < answered {
        found(Actor::Log, format!("{}: {answered} records were answered, {whole} are there", path.display()));
    } else if !rest.is_empty() && (rule == Unanswered::WholeOrAbsent || whole == begun) {
        let size = rest.len();
        found(Actor::Log, format!("{}: {size} bytes after record {whole} are not a whole record", path.display()));
    }
    Ok(())
}

fn files(
    root: &Path,
    seed: u64,
    rule: Unanswered,
    ledger: &Ledger,
    found: &mut impl FnMut(Actor, String),
) -> Result<()> {
    for number in 1..=ledger.begun(Actor::Create) {
        let path = contents::file_path(root, number);
        let name = path.display();
        let bytes = read(&path)?;
        let removal_begun = ledger.begun_at.contains_key(&(Actor::Remove, number));
        match bytes {
            Some(_) if ledger.is_answered(Actor::Remove, number) => {
                found(Actor::Remove, format!("{name}: its removal was answered, and it is there"));
            }
            None if ledger.is_answered(Actor::Create, number) && !removal_begun => {
                found(Actor::Create, format!("{name}: was answered, and is not there"));
            }
            Some(bytes) if bytes != contents::file(seed, number) => {
                // Creating and writing are two changes: between them the file is empty.
                let acceptable = bytes.is_empty() || rule == Unanswered::Anything;
                if ledger.is_answered(Actor::Create, number) || !acceptable {
                    found(Actor::Create, format!("{name}: {} bytes that were never written so", bytes.len()));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn replaced(root: &Path, seed: u64, ledger: &Ledger, found: &mut impl FnMut(Actor, String)) -> Result<()> {
    let path = contents::version_path(root);
    let Some(bytes) = read(&path)? else {
        found(Actor::Replace, format!("{}: is not there, and was never removed", path.display()));
        return Ok(());
    };
    let possible = ledger.answered(Actor::Replace)..=ledger.begun(Actor::Replace);
    match contents::number_of(&bytes) {
        Some(number) if possible.contains(&number) && bytes == contents::version(seed, number) => {}
        Some(number) if bytes == contents::version(seed, number) => {
            let (oldest, newest) = possible.into_inner();
            found(Actor::Replace, format!("{}: version {number}, not {oldest} to {newest}", path.display()));
        }
        _ => found(Actor::Replace, format!("{}: {} bytes that are no whole version", path.display(), bytes.len())),
    }
    Ok(())
}

fn blocks(
    root: &Path,
    seed: u64,
    rule: Unanswered,
    ledger: &Ledger,
    found: &mut impl FnMut(Actor, String),
) -> Result<()> {
    let path = contents::blocks_path(root);
    let bytes = read(&path)?.unwrap_or_default();
    if bytes.len() != BLOCKS as usize * BLOCK {
        found(Actor::Block, format!("{}: {} bytes instead of {BLOCKS} blocks", path.display(), bytes.len()));
    }
    for (place, block) in (0..BLOCKS).zip(bytes.chunks_exact(BLOCK)) {
        let answered = ledger.answered_at.get(&(Actor::Block, place)).copied().unwrap_or(0);
        let begun = ledger.begun_at.get(&(Actor::Block, place));
        let number = contents::number_of(block).unwrap_or(0);
        let unanswered = begun.and_then(|begun| begun.last()).is_some_and(|newest| *newest > answered);
        if unanswered && rule == Unanswered::Anything {
            continue;
        }
        let was_written = number == 0 || begun.is_some_and(|begun| begun.contains(&number));
        if !was_written || block != contents::block(seed, number) {
            found(Actor::Block, format!("{}, block {place}: bytes that were never written so", path.display()));
        } else if number < answered {
            let what = format!("{}, block {place}: change {number}, and {answered} was answered", path.display());
            found(Actor::Block, what);
        }
    }
    Ok(())
}
