//! Each field of metadata in memory × each operation of an application: a bit of the field is struck directly before the operation, which runs
//! alone. What became of it, as in table 3.5 of Zhang's dissertation (*Cooperative Data Protection*, §3.3).
//!
//! All fields of a kind are struck in the same place of the same thing before an operation, by the seed, so that they can be compared. Of what is
//! the operation's own (its file's tree, record, attributes; its directory's pages), if the kind has any of that in memory.

use super::attributes::Attributes;
use super::between::Moment;
use super::operations_acts::Wrong;
use super::pages::Pages;
use super::replay::named;
use super::script::{Memory, Run, SECOND_NS};
use super::trial::{self, Fields, WHOLE_SLOT};
use super::{Kind, answers};
use crate::caught::{PANIC, caught};
use crate::enemy::reference::Reference;
use crate::model::{Action, Model};
use holdfast_object::{DomainId, ObjectId, ObjectKey, ObjectStore, SnapshotId};
use holdfast_physical::MetadataProtection;
use holdfast_physical::scribble::{Choice, MetaKind, Pattern, State};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

pub use super::operations_acts::Operation;
pub use super::operations_table::{markdown, text};

/// Places at which a field is tried, until it can be struck at one.
const TRIES: u64 = 8;

/// Cells of one operation, when not all are struck.
const CELLS_AT_A_TIME: usize = 8;

/// In which state the store is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Way {
    /// As it was mounted; in the end it is closed.
    Clean,
    /// With changes since the last recovery point, some of them in the intent log; in the end there is a power cut.
    Changed,
}

impl Way {
    const ALL: [Way; 2] = [Way::Clean, Way::Changed];

    fn name(self) -> &'static str {
        match self {
            Way::Clean => "clean",
            Way::Changed => "changed",
        }
    }
}

/// A cell of the table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cell {
    /// What runs after the strike.
    pub operation: Operation,
    /// Of what.
    pub kind: Kind,
    /// Which field.
    pub field: String,
}

/// What an operation met.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// Nothing was noticed, and it completed right.
    Quiet,
    /// Something was read again, or put right in its place, and it completed right.
    PutRight,
    /// The epoch was begun anew, and it completed right.
    Anew,
    /// It failed, or its answer was wrong; or the recovery point after it failed.
    Failed,
    /// It gave wrong bytes; or what is read then or after the next mount is wrong, or a check finds something.
    Bad,
    /// It panicked, or what came after it.
    Crashed,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 6] =
        [Outcome::Quiet, Outcome::PutRight, Outcome::Anew, Outcome::Failed, Outcome::Bad, Outcome::Crashed];

    /// In the table.
    pub fn letter(self) -> char {
        match self {
            Outcome::Quiet => '.',
            Outcome::PutRight => 'R',
            Outcome::Anew => 'A',
            Outcome::Failed => 'E',
            Outcome::Bad => 'B',
            Outcome::Crashed => 'C',
        }
    }
}

/// One strike.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Which field, before which operation.
    pub cell: Cell,
    /// The state of the store, that of what was struck, and what decides the rest.
    pub replay: (Way, State, u64),
    /// What was hit.
    pub struck: String,
    /// What the operation met.
    pub outcomes: BTreeSet<Outcome>,
    /// What met it afterwards, when everything was synced, and read: one of the first three.
    pub later: Outcome,
    /// An equation did not hold, as if there had been a logic bug.
    pub is_named_logic: bool,
    /// What has gone wrong.
    pub wrong: Vec<String>,
}

impl Trial {
    /// It failed, gave bad data, or crashed.
    pub fn is_broken(&self) -> bool {
        self.outcomes.iter().any(|outcome| *outcome >= Outcome::Failed)
    }

    /// What [`again`] takes.
    pub fn replay(&self) -> String {
        let Cell { operation, kind, field } = &self.cell;
        let (way, state, choice) = self.replay;
        format!("{operation}:{}:{choice}:{kind}:{}:{field}", way.name(), state.name())
    }

    fn note(&mut self, outcome: Outcome, what: impl IntoIterator<Item = String>) {
        for what in what {
            let is_panic = what.starts_with(PANIC);
            self.outcomes.insert(if is_panic { Outcome::Crashed } else { outcome });
            self.wrong.push(what);
        }
    }
}

/// Which strikes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Decides all.
    pub seed: u64,
    /// How often each field is struck before an operation, in each state of the store that it is there in.
    pub times: u64,
    /// Only so many fields × operations, of a few operations.
    pub cells: Option<usize>,
    /// Only this operation.
    pub operation: Option<Operation>,
    /// Only this kind.
    pub kind: Option<Kind>,
    /// Protection of the store.
    pub metadata: MetadataProtection,
    /// How many operations are tried at the same time.
    pub at_once: usize,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Done {
    /// Each strike.
    pub trials: Vec<Trial>,
    /// Cells that could not be struck, though there are such fields, and why.
    pub missed: BTreeMap<Cell, String>,
}

impl Done {
    /// Strikes after which an operation failed, gave bad data, or crashed.
    pub fn broken(&self) -> impl Iterator<Item = &Trial> {
        self.trials.iter().filter(|trial| trial.is_broken())
    }

    /// Fields × operations that were struck.
    pub fn cells(&self) -> usize {
        self.trials.iter().map(|trial| &trial.cell).collect::<BTreeSet<_>>().len()
    }
}

/// What has been noticed so far.
#[derive(Clone, Copy)]
struct Noticed {
    all: u64,
    restarts: u64,
    logic: u64,
}

impl Noticed {
    fn of(run: &Run) -> Noticed {
        let counters = run.module.status().counters;
        let logic = counters.audit_failures + run.maker.driver.namespace().audit_failures();
        let restarts = counters.restarts;
        Noticed { all: counters.scribbles + restarts + logic + trial::bad_pages(run), restarts, logic }
    }

    fn since(self, before: Noticed) -> Outcome {
        match (self.restarts > before.restarts, self.all > before.all) {
            (true, _) => Outcome::Anew,
            (false, true) => Outcome::PutRight,
            (false, false) => Outcome::Quiet,
        }
    }
}

/// An operation without a strike.
struct Twin {
    operation: Operation,
    way: Way,
    /// Pages and attributes in the cache; or the store's own, with little in the cache, so that it is asked.
    is_of_cache: bool,
    fields: Fields,
    answer: String,
}

fn is_of_cache(kind: Kind) -> bool {
    !matches!(kind, Kind::Store(_))
}

/// Up to the strike.
fn ready(
    store: &Reference,
    operation: Operation,
    way: Way,
    is_of_cache: bool,
    metadata: MetadataProtection,
) -> Result<(Run, Memory), String> {
    let mut run = Run::open(store, operation.script(way), metadata)?;
    if way == Way::Changed {
        run.begin()?;
        run.update(0)?;
    }
    operation.prepare(&mut run, way)?;
    let (module, arena, cache) = (run.module.clone(), run.maker.stack.arena.clone(), run.maker.stack.cache.clone());
    let (pages, attributes) = (Pages::new(cache.clone(), arena.clone()), Attributes::new(cache));
    let mut memory = Memory { module, pages, attributes, arena };
    if is_of_cache {
        run.read_all("before");
    } else {
        look_through(store, &memory, operation);
    }
    if let Some(error) = run.errors.first() {
        return Err(error.clone());
    }
    let mut about = operation.about(&run)?;
    let has_attributes = |object: &ObjectId| memory.module.attributes(key(*object)).ok();
    let xattrs: Vec<ObjectId> = about.iter().filter_map(has_attributes).map(|of| of.xattr).collect();
    about.extend(xattrs.into_iter().filter(|xattr| *xattr != ObjectId::NONE));
    memory.pages.look();
    memory.pages.about.clone_from(&about);
    memory.attributes.about = about;
    Ok((run, memory))
}

/// Has the store read everything past the cache that is in its last recovery point; or in snapshots, for what reads these. Blocks of both are not
/// told from each other when one is struck.
fn look_through(store: &Reference, memory: &Memory, operation: Operation) {
    let live = std::iter::once((SnapshotId::LIVE, &store.model)).filter(|_| !operation.reads_snapshots());
    let kept = store.snapshots.iter().filter(|_| operation.reads_snapshots());
    let states = live.chain(kept.map(|(id, model)| (*id, model)));
    let of_state = |(id, model): (SnapshotId, &Model)| -> Vec<ObjectId> {
        let objects = model.nodes().filter_map(|(node, _)| store.driver.object(node));
        objects.map(|object| object.in_snapshot(id)).collect()
    };
    let named: Vec<ObjectKey> = states.flat_map(of_state).map(key).collect();
    let xattrs = named.iter().filter_map(|of| memory.module.attributes(*of).ok()).map(|of| of.xattr);
    let xattrs: Vec<ObjectKey> = xattrs.filter(|xattr| *xattr != ObjectId::NONE).map(key).collect();
    answers::all(memory, &named);
    answers::all(memory, &xattrs);
}

fn key(object: ObjectId) -> ObjectKey {
    ObjectKey { domain: DomainId::MAIN, object }
}

/// Two that are there from the beginning to the end.
fn snapshots(store: &Reference) -> Result<[SnapshotId; 2], String> {
    match &store.snapshots[..] {
        [(first, _), .., (last, _)] => Ok([*first, *last]),
        _ => Err("the store has too few snapshots".into()),
    }
}

impl Twin {
    fn run(
        store: &Reference,
        operation: Operation,
        way: Way,
        is_of_cache: bool,
        metadata: MetadataProtection,
    ) -> Result<Twin, String> {
        let told = |error: String| format!("{operation}, {}, without a strike: {error}", way.name());
        let (mut run, memory) = ready(store, operation, way, is_of_cache, metadata).map_err(told)?;
        let mut fields = trial::survey(&memory, Moment::Rest);
        fields.retain(|(kind, _, field)| is_of_cache == self::is_of_cache(*kind) && field != WHOLE_SLOT);
        run.maker.stack.clock.advance_ns(SECOND_NS);
        let before = Noticed::of(&run);
        let mut trial = Trial::of(operation, way);
        let answer = perform(&mut trial, &mut run, snapshots(store)?, None);
        let found = Noticed::of(&run).since(before);
        finish(&mut trial, run);
        match (answer, trial.wrong.first()) {
            (_, Some(error)) => Err(told(error.clone())),
            (Some(answer), None) if found == Outcome::Quiet && trial.later == Outcome::Quiet => {
                Ok(Twin { operation, way, is_of_cache, fields, answer })
            }
            _ => Err(told("something was noticed".into())),
        }
    }

    fn all(store: &Reference, operation: Operation, metadata: MetadataProtection) -> Result<Vec<Twin>, String> {
        let ways = Way::ALL.into_iter().flat_map(|way| [(way, false), (way, true)]);
        ways.map(|(way, is_of_cache)| Twin::run(store, operation, way, is_of_cache, metadata)).collect()
    }
}

impl Trial {
    /// Of which nothing is known yet.
    fn of(operation: Operation, way: Way) -> Trial {
        Trial {
            cell: Cell { operation, kind: Kind::Attributes, field: String::new() },
            replay: (way, State::Clean, 0),
            struck: String::new(),
            outcomes: BTreeSet::new(),
            later: Outcome::Quiet,
            is_named_logic: false,
            wrong: Vec::new(),
        }
    }
}

/// The operation; its answer, if it has one. `expected`: the answer that it should have.
fn perform(trial: &mut Trial, run: &mut Run, snapshots: [SnapshotId; 2], expected: Option<&str>) -> Option<String> {
    let operation = trial.cell.operation;
    let of_answer = if operation.gives_bytes() { Outcome::Bad } else { Outcome::Failed };
    match operation.act(run, snapshots) {
        Ok(answer) => {
            let other = expected.filter(|expected| *expected != answer);
            trial.note(of_answer, other.map(|expected| format!("{operation}: {answer}, expected {expected}")));
            return Some(answer);
        }
        Err(Wrong::Failed(error)) => trial.note(Outcome::Failed, [error]),
        Err(Wrong::Answer(error)) => trial.note(of_answer, [error]),
    }
    None
}

/// All is synced, read, and mounted again.
fn finish(trial: &mut Trial, mut run: Run) {
    let before = Noticed::of(&run);
    if trial.cell.operation != Operation::Unmount {
        trial.note(Outcome::Failed, run.maker.act(Action::SyncAll).err());
        run.read_all("afterwards");
    }
    let then = Noticed::of(&run);
    trial.later = then.since(before);
    trial.is_named_logic = then.logic > 0;
    trial.note(Outcome::Bad, run.errors.drain(..));
    match trial::mount_again(run) {
        Ok(wrong) => trial.note(Outcome::Bad, wrong),
        Err(error) => trial.note(Outcome::Failed, [error]),
    }
}

/// Strikes one bit; tells what was hit.
///
/// # Errors
/// Why nothing was.
fn strike(memory: &Memory, cell: &Cell, state: State, seed: u64) -> Result<String, String> {
    let nothing = |there: Option<String>| there.ok_or("there is no such thing in this state".to_string());
    let kind = match cell.kind {
        Kind::Page(kind) => return nothing(memory.pages.strike(kind, state, &cell.field, Pattern::Bit, seed)),
        Kind::Attributes => return nothing(memory.attributes.strike(state, &cell.field, Pattern::Bit, seed)),
        Kind::Store(kind) => kind,
    };
    let lab = memory.module.lab();
    let (states, field) = (vec![state], Some(cell.field.clone()));
    let any = Choice { states, field, ..Choice::of(kind, Pattern::Bit, seed) };
    let about = memory.attributes.about.iter();
    let mut choices: Vec<Choice> = match kind {
        MetaKind::BlockTree => {
            about.map(|id| Choice { object: Some((DomainId::MAIN.0, id.0)), ..any.clone() }).collect()
        }
        MetaKind::ObjectTable => {
            let of_record = |id: &ObjectId| {
                let (object, index, slot) = lab.place_in_table(key(*id));
                let (object, level, index, slot) = (Some(object), Some(0), Some(index), Some(slot));
                Choice { object, level, index, slot, ..any.clone() }
            };
            about.map(of_record).collect()
        }
        _ => Vec::new(),
    };
    if !choices.is_empty() {
        let first = (seed % choices.len() as u64) as usize;
        choices.rotate_left(first);
    }
    choices.push(any);
    let mut why = String::new();
    for choice in choices {
        match lab.strike_chosen(&choice) {
            Ok(struck) => return Ok(struck.to_string()),
            Err(missed) => why = missed.to_string(),
        }
    }
    Err(why)
}

/// Whether the strike comes while all is believed that is looked at once a second.
fn is_at_once(choice: u64) -> bool {
    choice >> 63 == 1
}

/// One strike, with a new store.
///
/// # Errors
/// Why there was nothing to strike.
fn run_one(
    store: &Reference,
    twin: &Twin,
    cell: &Cell,
    state: State,
    choice: u64,
    metadata: MetadataProtection,
) -> Result<Trial, String> {
    let mut trial = Trial::of(twin.operation, twin.way);
    (trial.cell, trial.replay) = (cell.clone(), (twin.way, state, choice));
    let mut missed = None;
    let outcome = caught(|| {
        let (mut run, memory) = ready(store, twin.operation, twin.way, twin.is_of_cache, metadata)?;
        let clock = run.maker.stack.clock.clone();
        if is_at_once(choice) {
            clock.advance_ns(SECOND_NS);
            memory.module.lab().look_at_all();
        }
        let before = Noticed::of(&run);
        match strike(&memory, cell, state, choice) {
            Ok(struck) => trial.struck = struck,
            Err(why) => {
                missed = Some(why);
                return Ok(());
            }
        }
        if !is_at_once(choice) {
            clock.advance_ns(SECOND_NS);
        }
        perform(&mut trial, &mut run, snapshots(store)?, Some(&twin.answer));
        trial.outcomes.insert(Noticed::of(&run).since(before));
        finish(&mut trial, run);
        Ok(())
    });
    trial.note(Outcome::Failed, outcome.err());
    missed.map_or(Ok(trial), Err)
}

/// Decides what of a kind is struck, and when: the same for all of its fields. What comes at once in one state of the store does not in the other.
fn choice(seed: u64, operation: Operation, kind: Kind, way: Way, nth: u64) -> u64 {
    let mixed = |parts: &[u64]| {
        parts.iter().fold(seed, |sum, part| {
            (sum ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29)
        })
    };
    let kind = Kind::all().position(|other| other == kind).unwrap_or(0) as u64;
    let (of, way) = ([operation as u64, kind], way as u64);
    let is_at_once = (mixed(&of) >> 40 ^ way ^ nth) & 1;
    is_at_once << 63 | mixed(&[of[0], of[1], way, nth]) >> 1
}

/// Of several states, that in which what an operation is about is likely to be.
fn state_of(states: &[State], kind: Kind, way: Way, choice: u64) -> State {
    match way {
        Way::Changed if is_of_cache(kind) && states.contains(&State::Changed) => State::Changed,
        _ => states[(choice % states.len() as u64) as usize],
    }
}

/// Strikes each field before each operation; `told` is called of each strike, some time after it.
///
/// # Errors
/// In words, if an operation does not even work without a strike.
pub fn run(plan: &Plan, told: &mut dyn FnMut(&Trial)) -> Result<Done, String> {
    let store = Reference::make_closed()?;
    let all = Operation::ALL.iter().copied();
    let mut operations: Vec<Operation> = all.filter(|of| plan.operation.is_none_or(|only| only == *of)).collect();
    if let Some(cells) = plan.cells {
        operations.shuffle(&mut Pcg64Mcg::seed_from_u64(plan.seed));
        operations.truncate(cells.div_ceil(CELLS_AT_A_TIME));
    }
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..plan.at_once.max(1) {
            let (send, operations, next, store) = (send.clone(), &operations, &next, &store);
            scope.spawn(move || {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(operation) = operations.get(nth) else { return };
                    let most = plan.cells.map(|cells| (cells - nth * CELLS_AT_A_TIME).min(CELLS_AT_A_TIME));
                    if send.send(before(store, plan, *operation, most)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut done = Done::default();
        for part in receive {
            let Done { trials, missed } = part?;
            trials.iter().for_each(&mut *told);
            done.trials.extend(trials);
            done.missed.extend(missed);
        }
        done.trials.sort_by(|one, other| one.cell.cmp(&other.cell));
        Ok(done)
    })
}

/// Strikes before one operation: each field, or `most` of them.
fn before(store: &Reference, plan: &Plan, operation: Operation, most: Option<usize>) -> Result<Done, String> {
    let mut done = Done::default();
    let twins = Twin::all(store, operation, plan.metadata)?;
    let mut cells: BTreeMap<Cell, BTreeMap<usize, Vec<State>>> = BTreeMap::new();
    for (nth, twin) in twins.iter().enumerate() {
        for (kind, state, field) in &twin.fields {
            if plan.kind.is_none_or(|only| only == *kind) {
                let cell = Cell { operation, kind: *kind, field: field.clone() };
                cells.entry(cell).or_default().entry(nth).or_default().push(*state);
            }
        }
    }
    let mut cells: Vec<_> = cells.into_iter().collect();
    if let Some(most) = most {
        cells.shuffle(&mut Pcg64Mcg::seed_from_u64(plan.seed ^ operation as u64));
        cells.truncate(most);
    }
    for (cell, places) in cells {
        let mut outcome = Err(String::new());
        for (twin, states) in places.into_iter().map(|(nth, states)| (&twins[nth], states)) {
            for nth in 0..plan.times {
                match strike_somewhere(store, twin, &cell, &states, nth, plan) {
                    Ok(trial) => {
                        done.trials.push(trial);
                        outcome = Ok(());
                    }
                    Err(why) => outcome = outcome.or(Err(why)),
                }
            }
        }
        if let Err(why) = outcome {
            done.missed.insert(cell, why);
        }
    }
    Ok(done)
}

/// One strike, at one of several places.
///
/// # Errors
/// Why there was nothing to strike at any.
fn strike_somewhere(
    store: &Reference,
    twin: &Twin,
    cell: &Cell,
    states: &[State],
    nth: u64,
    plan: &Plan,
) -> Result<Trial, String> {
    let mut outcome = Err(String::new());
    for attempt in 0..TRIES {
        // Even steps: what comes at once does so in each attempt.
        let choice = choice(plan.seed, cell.operation, cell.kind, twin.way, nth + attempt * 2 * plan.times);
        let state = state_of(states, cell.kind, twin.way, choice);
        outcome = run_one(store, twin, cell, state, choice, plan.metadata);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Strikes as a line says that [`Trial::replay`] gave.
///
/// # Errors
/// In words: it is no such line, or there is nothing to strike.
pub fn again(line: &str, metadata: MetadataProtection) -> Result<Done, String> {
    let parts: Vec<&str> = line.split(':').collect();
    let [operation, way, choice, kind, state, field] = parts[..] else {
        return Err(format!("{line}: a strike is OPERATION:clean|changed:CHOICE:KIND:STATE:FIELD"));
    };
    let operation = named(Operation::ALL.iter().copied(), operation, ToString::to_string)?;
    let way = named(Way::ALL, way, |way| way.name().to_string())?;
    let choice = choice.parse::<u64>().map_err(|error| format!("{choice}: {error}"))?;
    let kind = named(Kind::all(), kind, ToString::to_string)?;
    let state = named(State::ALL, state, |state| state.name().to_string())?;
    let cell = Cell { operation, kind, field: field.to_string() };
    let store = Reference::make_closed()?;
    let twin = Twin::run(&store, operation, way, is_of_cache(kind), metadata)?;
    let trial = run_one(&store, &twin, &cell, state, choice, metadata)?;
    Ok(Done { trials: vec![trial], missed: BTreeMap::new() })
}
