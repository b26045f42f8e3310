//! One strike, and what became of it.

use super::answers::Sums;
use super::between::Moment;
use super::script::{Memory, Run, Strike, see_all};
use super::{Cell, Kind, Trial, Verdict, What, answers, names};
use crate::caught::caught;
use crate::enemy::reference::Reference;
use crate::stack::{Stack, StackOptions};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use holdfast_object::{Arena, Error, ManualClock, ObjectStore};
use holdfast_physical::check::{CheckOptions, check};
use holdfast_physical::scribble::{
    BATCH_PARTS, Blow, Choice, Exactness, Lab, LogicBug, MetaKind, Missed, Pattern, State,
};
use holdfast_physical::{MetadataProtection, Module, OpenOptions};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

/// Not a field, but what [`Pattern::CopySlot`] strikes.
pub(super) const WHOLE_SLOT: &str = "whole slot";

/// Whether something called so is struck in this way.
pub(super) fn fits(kind: Kind, field: &str, pattern: Pattern) -> bool {
    match pattern {
        Pattern::CopySlot => field == WHOLE_SLOT,
        // Nothing but the audit is to find it, which has no equation for some fields (`docs/audit.md`): tests of the physical layer strike these.
        Pattern::KeepAll => field != WHOLE_SLOT && matches!(kind, Kind::Store(kind) if kind.is_audited(field)),
        _ => field != WHOLE_SLOT,
    }
}

/// Fields that can be struck at a moment.
pub(super) type Fields = BTreeSet<(Kind, State, String)>;

/// A script without a strike.
pub(super) struct Twin {
    script: u64,
    /// What there is at each moment.
    pub(super) survey: Vec<(Moment, Fields)>,
    /// What the store says at each, if it can be asked.
    said: Vec<Vec<String>>,
    /// Pages at each, if they can be read.
    pages: Vec<Sums>,
    /// The device, right after the recovery point.
    image: MemoryDevice,
    facts: [Vec<String>; 3],
}

/// Whether a logic bug is tried at a moment: while changes can still be made, and not where what they would be part of is put together. That of
/// the log is, before something goes there; that of a bound of pages, when nothing that follows sets it right.
pub(super) fn can_have_bug(bug: LogicBug, moment: Moment) -> bool {
    match bug {
        LogicBug::LogHead => moment == Moment::Appending,
        LogicBug::PageBound => moment == Moment::Applied,
        _ => matches!(moment, Moment::Between | Moment::Applied),
    }
}

/// What it is, if a field is to be changed wrongly at a moment, by who may: of what the epoch has changed and is changing, records when it changes nothing
/// more in them.
pub(super) fn can_be_wrong(kind: Kind, state: State, field: &str, moment: Moment) -> Option<MetaKind> {
    let Kind::Store(kind) = kind else { return None };
    let is_then = moment == Moment::Applied || moment == Moment::Between && kind != MetaKind::Record;
    (is_then && state == State::Changed && field != WHOLE_SLOT && kind.is_held_against(field)).then_some(kind)
}

/// What the last recovery point on a device says.
fn facts(device: &MemoryDevice) -> Result<[Vec<String>; 3], String> {
    let told = |error: holdfast_object::Error| error.to_string();
    let (arena, clock) = (Arena::new(64, 4096).map_err(|error| error.to_string())?, Arc::new(ManualClock::new(0, 0)));
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let module = Module::open(Arc::new(device.clone()), arena, clock, &options).map_err(told)?;
    let of = |exactness| module.lab().facts(exactness).map_err(told);
    Ok([of(Exactness::Epochs)?, of(Exactness::Generations)?, of(Exactness::Contents)?])
}

pub(super) fn survey(memory: &Memory, moment: Moment) -> Fields {
    let attributes = memory.attributes.survey().into_iter();
    let pages = memory.pages.survey().into_iter();
    let mut fields: Fields = pages.map(|(kind, state, field)| (Kind::Page(kind), state, field.to_string())).collect();
    fields.extend(attributes.map(|(state, field)| (Kind::Attributes, state, field)));
    let lab = memory.module.lab();
    for kind in MetaKind::ALL {
        for target in lab.targets(kind) {
            let Some(layout) = lab.layout(&target) else { continue };
            if kind.has_slots() && layout.used.len() > 1 {
                fields.insert((Kind::Store(kind), target.state, WHOLE_SLOT.to_string()));
            }
            fields.extend(layout.fields.into_iter().map(|(name, ..)| (Kind::Store(kind), target.state, name)));
        }
    }
    if moment == Moment::Appending {
        // One is put together by and by: it is waited for.
        fields.extend(BATCH_PARTS.map(|part| (Kind::Store(MetaKind::LogBatch), State::Changed, part.to_string())));
    }
    fields
}

impl Twin {
    /// Whether something of the kind that is struck at this moment so that no sum sees it is changed legally afterwards, where there is such a thing. The
    /// bitmap always is, and of records those are struck that are. A snapshot list changes with a snapshot, before anything else of its epoch, and is
    /// looked at when the epoch is put together.
    pub(super) fn changes_later(&self, kind: Kind, event: usize) -> bool {
        let changes = |(moment, fields): &(Moment, Fields)| {
            let is_there = |(of, state, _): &(Kind, State, String)| (*of, *state) == (kind, State::Changed);
            matches!(moment, Moment::Between | Moment::Applied) && fields.iter().any(is_there)
        };
        kind != Kind::Store(MetaKind::SnapshotList) || self.survey[event..].iter().any(changes)
    }

    pub(super) fn run(store: &Reference, script: u64, metadata: MetadataProtection) -> Result<Twin, String> {
        let found = Arc::new(Mutex::new(Vec::new()));
        let note = found.clone();
        let mut run = Run::open(store, script, metadata)?;
        run.looks_at_log = true;
        let look: Strike = Box::new(move |_, moment, memory| {
            let is_asked = answers::can_be_asked(moment);
            let said = if is_asked { answers::all(memory, &answers::objects(memory)) } else { Vec::new() };
            let is_read = answers::can_be_read(moment);
            let pages = if is_read { answers::pages(memory) } else { Sums::new() };
            note.lock().push((moment, survey(memory, moment), said, pages));
        });
        run.up_to_recovery_point(look, Box::new(|_, _, _| ()))?;
        let image = MemoryDevice::clone(&run.device);
        run.go_on()?;
        if let Some(error) = run.errors.first() {
            return Err(format!("script {script}, without a strike: {error}"));
        }
        let facts = facts(&image)?;
        let mut twin = Twin { script, survey: Vec::new(), said: Vec::new(), pages: Vec::new(), image, facts };
        for (moment, fields, said, pages) in found.lock().drain(..) {
            twin.survey.push((moment, fields));
            twin.said.push(said);
            twin.pages.push(pages);
        }
        Ok(twin)
    }
}

/// Whether a strike comes while all is believed that is looked at once a second. A whole pointer that is copied over another of its block leads to a
/// good page then (`docs/audit.md`, "Not yet"): the store is asked after the second.
fn is_at_once(cell: &Cell, choice: u64) -> bool {
    choice >> 63 == 1 && cell.pattern != Some(Pattern::CopySlot)
}

/// Strikes at a cell; tells what was hit.
///
/// # Errors
/// Why nothing was.
fn strike(memory: &Memory, cell: &Cell, seed: u64) -> Result<String, String> {
    let nothing = |there: Option<String>| there.ok_or("there is no such thing in this state that it fits".to_string());
    let lab: Lab<'_> = memory.module.lab();
    match (&cell.what, cell.pattern) {
        (What::Field { kind: Kind::Page(kind), state, field }, Some(pattern)) => {
            nothing(memory.pages.strike(*kind, *state, field, pattern, seed))
        }
        (What::Field { kind: Kind::Attributes, state, field }, Some(pattern)) => {
            nothing(memory.attributes.strike(*state, field, pattern, seed))
        }
        (What::Field { kind: Kind::Store(MetaKind::LogBatch), field, .. }, Some(pattern)) => {
            let choice = Choice { field: Some(field.clone()), ..Choice::of(MetaKind::LogBatch, pattern, seed) };
            lab.lay_ambush(Blow::Scribble(choice), 1, Duration::MAX);
            // Told is what has become of it.
            Ok(String::new())
        }
        (What::Bug(bug), _) => match lab.logic_bug(*bug, seed >> 1) {
            Ok(Some(told)) => Ok(format!("{bug}: {told}")),
            Ok(None) => Err("there is nothing to which it could happen".into()),
            // It is met on the way, by what looks at each change.
            Err(error @ (Error::GivenUp(_) | Error::Corrupt(_))) => Ok(format!("{bug}, not done: {error}")),
            // No room, say: nobody has met anything.
            Err(error) => Err(format!("it could not be done: {error}")),
        },
        (What::Wrong { kind, field }, _) => {
            let changed = lab.change_wrongly(*kind, field, seed).map(|changed| changed.to_string());
            changed.map_err(|_| "nothing has it that the epoch is changing".into())
        }
        (What::Field { kind: Kind::Store(kind), state, field }, Some(Pattern::KeepAll)) => {
            let struck = lab.strike_audited(*kind, *state, field, seed).map(|struck| struck.to_string());
            struck.map_err(|_| "nothing that an equation counts of it is changed legally afterwards".into())
        }
        (What::Field { kind: Kind::Store(kind), state, field }, Some(pattern)) => {
            let (states, field) = (vec![*state], Some(field.clone()).filter(|field| field != WHOLE_SLOT));
            let choice = Choice { states, field, ..Choice::of(*kind, pattern, seed) };
            match lab.strike_chosen(&choice) {
                Ok(struck) => Ok(struck.to_string()),
                Err(Missed::Nothing(_)) => Err("no number has what the pattern asks for".into()),
                Err(missed) => Err(missed.to_string()),
            }
        }
        // Those are not of a moment in memory, but of a request.
        (What::NameBug(_), _) | (What::Field { .. }, None) => Err("it is not in memory".into()),
    }
}

/// The same, with a new store.
///
/// # Errors
/// Why there was nothing to strike.
pub(super) fn run(
    store: &Reference,
    twin: &Twin,
    cell: &Cell,
    event: usize,
    choice: u64,
    metadata: MetadataProtection,
) -> Result<Trial, String> {
    if let What::NameBug(bug) = cell.what {
        return Ok(names::run(store, twin.script, (cell, bug), event, choice, metadata));
    }
    let mut trial = Trial::new(cell, (twin.script, event, choice));
    let struck = Arc::new(Mutex::new(Err("its moment did not come".to_string())));
    let (note, wanted) = (struck.clone(), cell.clone());
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let (note_wrong, note_wrong_pages, expected) = (wrong.clone(), wrong.clone(), twin.said[event].clone());
    let (pages_now, pages_before) = (twin.pages[event].clone(), twin.pages[0].clone());
    let is_copy = cell.pattern == Some(Pattern::CopySlot);
    let is_at_once = is_at_once(cell, choice);
    let outcome = caught(|| {
        let mut run = Run::open(store, twin.script, metadata)?;
        run.looks_at_log = cell.moment.is_of_log();
        run.at_once = is_at_once.then_some(event);
        let blow: Strike = Box::new(move |number, moment, memory| {
            if number != event {
                return;
            }
            let is_asked = is_at_once && answers::can_be_asked(moment);
            let objects = if is_asked { answers::objects(memory) } else { Vec::new() };
            *note.lock() = strike(memory, &wanted, choice);
            if is_asked {
                *note_wrong.lock() = answers::differences(&answers::all(memory, &objects), &expected);
            }
        });
        let then: Strike = Box::new(move |number, moment, memory| {
            if number == event && is_copy && answers::can_be_read(moment) {
                *note_wrong_pages.lock() = answers::wrong_pages(memory, &pages_now, &pages_before);
            }
        });
        run.up_to_recovery_point(blow, then)?;
        if matches!(cell.what, What::Field { kind: Kind::Store(MetaKind::LogBatch), .. }) {
            let fallen = run.module.lab().lift_ambush();
            let blown = fallen.blown.first().map(ToString::to_string);
            *struck.lock() = blown.ok_or("no batch with such a part was put together".into());
        }
        if struck.lock().is_err() {
            return Ok(());
        }
        let counters = run.module.status().counters;
        let image = MemoryDevice::clone(&run.device);
        let is_noticed = counters.scribbles + counters.audit_failures + counters.restarts + bad_pages(&run) > 0;
        trial.stored = judge(&image, twin, is_noticed);
        let went_on = run.go_on();
        let counters = run.module.status().counters;
        trial.verdict = match (counters.audit_failures, counters.scribbles + bad_pages(&run)) {
            (0, 0) => Verdict::Harmless,
            (0, _) => Verdict::Scribble,
            _ => Verdict::Logic,
        };
        trial.begun_anew = counters.restarts > 0;
        trial.errors.append(&mut run.errors);
        went_on?;
        trial.stored.extend(mount_again(run)?);
        Ok(())
    });
    trial.errors.append(&mut wrong.lock());
    trial.errors.extend(outcome.err());
    trial.struck = struck.lock().clone()?;
    Ok(trial)
}

/// Pages and attributes found to be bad in memory.
pub(super) fn bad_pages(run: &Run) -> u64 {
    let status = run.maker.stack.cache.status();
    status.pages_reread
        + status.pages_renewed
        + status.pages_lost
        + status.attributes_renewed
        + status.operations_renewed
}

/// What is wrong with it, judged from scratch.
pub(super) fn what_check_finds(image: &MemoryDevice) -> Vec<String> {
    match check(Arc::new(image.clone()), &CheckOptions { ends: true, ..CheckOptions::default() }) {
        Ok(report) => report.findings.iter().map(|finding| format!("check: {finding:?}")).collect(),
        Err(error) => vec![format!("check: {error}")],
    }
}

/// What of a recovery point is not as it is without a strike.
fn judge(image: &MemoryDevice, twin: &Twin, is_noticed: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    if !is_noticed {
        let [mut mine, mut other] = [Box::new([0; BLOCK_SIZE]), Box::new([0; BLOCK_SIZE])];
        for block in 0..image.blocks() {
            let read = |device: &MemoryDevice, bytes: &mut [u8; BLOCK_SIZE]| {
                device.read(block, &mut [IoSliceMut::new(bytes)]).is_ok()
            };
            if !(read(image, &mut mine) && read(&twin.image, &mut other)) || mine != other {
                let at = (0..BLOCK_SIZE).find(|at| mine[*at] != other[*at]).unwrap_or(0);
                wrong.push(format!("block {block} is another one, from byte {at} on"));
                break;
            }
        }
    }
    wrong.extend(what_check_finds(image));
    match facts(image) {
        Ok(facts) => {
            // An epoch more, as a sync has closed one, is not wrong.
            let is_longer = facts[0].first().map(|line| epoch(line)) != twin.facts[0].first().map(|line| epoch(line));
            let exactness = if is_longer { 2 } else { usize::from(is_noticed) };
            let (mine, other) = (&facts[exactness], &twin.facts[exactness]);
            let differs = mine.iter().zip(other).find(|(mine, other)| mine != other);
            match differs {
                Some((mine, other)) => wrong.push(format!("it says \"{mine}\", not \"{other}\"")),
                None if mine.len() != other.len() => wrong.push("it says more or less than it should".into()),
                None => {}
            }
        }
        Err(error) => wrong.push(format!("it cannot be read: {error}")),
    }
    wrong
}

fn epoch(line: &str) -> Option<&str> {
    line.split(" epoch ").nth(1)?.split(' ').next()
}

/// Unmounts or loses power, mounts, and reads everything; gives what is wrong.
pub(super) fn mount_again(run: Run) -> Result<Vec<String>, String> {
    let told = |error: holdfast_object::Error| error.to_string();
    let clock = run.maker.stack.clock.clone();
    let mut wrong = Vec::new();
    if run.is_closed_in_the_end() {
        run.maker.stack.close().map_err(told)?;
    }
    let report =
        check(Arc::new(MemoryDevice::clone(&run.device)), &CheckOptions { ends: true, ..CheckOptions::default() })
            .map_err(told)?;
    wrong.extend(report.findings.iter().map(|finding| format!("check at the end: {finding:?}")));
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::clone(&run.device));
    match Stack::open(device, &StackOptions::new(1024), &clock) {
        Ok(stack) => {
            let seen = see_all(&run.maker, &run.snapshots, &stack);
            wrong.extend(seen.into_iter().map(|error| format!("mounted again: {error}")));
        }
        Err(error) => wrong.push(format!("it cannot be mounted: {error}")),
    }
    Ok(wrong)
}
