//! Metadata in memory: every kind × every field × every way to write to it × every moment, and logic bugs; what becomes of each.
//!
//! | file | job |
//! |---|---|
//! | `script` | what is done with the store |
//! | `between` | moments at which something can happen |
//! | `pages` | what the cache has of metadata, and striking it |
//! | `attributes` | the same of attributes that the store does not have yet |
//! | `names` | logic bugs of the name space |
//! | `coverage` | which cells there are, and which have been met |
//! | `trial` | one strike, and what became of it |
//! | `table` | the results for people |
//!
//! Each trial opens a store of its own in memory, all layers of it, and strikes once. A run of the same script without a strike is what it is
//! compared with. Promises, of which each trial checks all:
//! - *nothing of it is stored*: the recovery point is what it is without the strike: byte by byte if nothing has been noticed, and else by
//!   all that it says apart from where blocks are; a check of it from scratch finds nothing; all contents are right when it is mounted anew;
//! - *nobody notices*: each application operation has the answer that it should, then and later;
//! - *it is named for what it is*: what was written over is found to be a scribble, if it is found, and not a logic bug, unless the pattern keeps
//!   checksums; a logic bug is found, as one.

mod attributes;
mod between;
mod coverage;
mod names;
mod pages;
mod script;
mod table;
mod trial;

use crate::enemy::reference::Reference;
pub use between::Moment;
pub use coverage::{Coverage, MANY};
use holdfast_naming::NameBug;
use holdfast_physical::MetadataProtection;
use holdfast_physical::scribble::{LogicBug, MetaKind, Pattern, State};
pub use pages::PageKind;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};
pub use table::{markdown, text};
use trial::Twin;

/// A kind of metadata.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// In the store's memory.
    Store(MetaKind),
    /// A page in the cache.
    Page(PageKind),
    /// Attributes of an object in the cache.
    Attributes,
}

impl Kind {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Kind> {
        let pages = PageKind::ALL.into_iter().map(Kind::Page);
        MetaKind::ALL.into_iter().map(Kind::Store).chain(pages).chain([Kind::Attributes])
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Store(kind) => kind.name(),
            Kind::Page(kind) => kind.name(),
            Kind::Attributes => "attributes",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What is struck.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum What {
    /// A field of something in memory.
    Field {
        /// What it is.
        kind: Kind,
        /// What it is to the epoch being built.
        state: State,
        /// By name.
        field: String,
    },
    /// Something is done wrongly by the store.
    Bug(LogicBug),
    /// By the name space.
    NameBug(NameBug),
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            What::Field { kind, state, field } => write!(f, "{kind} ({}), {field}", state.name()),
            What::Bug(bug) => write!(f, "logic bug {bug}"),
            What::NameBug(bug) => write!(f, "logic bug of names {bug}"),
        }
    }
}

/// A cell of the campaign.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cell {
    /// What is struck.
    pub what: What,
    /// How; `None` for a logic bug.
    pub pattern: Option<Pattern>,
    /// When.
    pub moment: Moment,
}

/// What became of a strike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// It was found to be a scribble.
    Scribble,
    /// An equation did not hold.
    Logic,
    /// Nothing was noticed, and nothing of it was stored.
    Harmless,
}

impl Verdict {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Scribble => "a scribble",
            Verdict::Logic => "a logic bug",
            Verdict::Harmless => "not found",
        }
    }
}

/// One strike.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Where and how.
    pub cell: Cell,
    /// Which script, which number of its moments, and the choice between what fits.
    pub replay: (u64, usize, u64),
    /// What was hit.
    pub struck: String,
    /// What became of it.
    pub verdict: Verdict,
    /// The epoch was begun anew. If not so, and something was found, it was put right or read again in its place.
    pub begun_anew: bool,
    /// Something of it was stored.
    pub stored: Vec<String>,
    /// Application operations that have gone wrong.
    pub errors: Vec<String>,
}

/// Which trials.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Decides all.
    pub seed: u64,
    /// How many strikes.
    pub injections: u64,
    /// Protection of the store: a weaker one than the default must make the campaign fail.
    pub metadata: MetadataProtection,
    /// Only this kind.
    pub kind: Option<Kind>,
}

/// What a campaign has found.
#[derive(Debug, Default)]
pub struct Done {
    /// Each strike.
    pub trials: Vec<Trial>,
    /// Fields that there are, by kind.
    pub fields: BTreeMap<Kind, BTreeSet<String>>,
    /// Cells, and which of them have been struck.
    pub coverage: Coverage,
}

impl Trial {
    fn new(cell: &Cell, replay: (u64, usize, u64)) -> Trial {
        Trial {
            cell: cell.clone(),
            replay,
            struck: String::new(),
            verdict: Verdict::Harmless,
            begun_anew: false,
            stored: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn is_broken(&self) -> bool {
        !self.stored.is_empty() || !self.errors.is_empty() || self.is_misnamed()
    }

    /// It was found to be what it is not. (What keeps checksums may be called a logic bug.)
    pub fn is_misnamed(&self) -> bool {
        match self.cell.pattern {
            None => self.verdict != Verdict::Logic,
            Some(Pattern::KeepChecksum) => false,
            Some(_) => self.verdict == Verdict::Logic,
        }
    }
}

impl Done {
    /// Trials in which a promise was broken.
    pub fn broken(&self) -> impl Iterator<Item = &Trial> {
        self.trials.iter().filter(|trial| trial.is_broken())
    }
}

/// What each kind has to be struck: a queue of cells for each, in an order by seed, gone through again and again.
type Queues = Vec<Vec<(u64, usize, Cell)>>;

/// Strikes so many times; `told` is called after each.
///
/// # Errors
/// In words, if a script does not even work without a strike.
pub fn run(plan: &Plan, told: &mut dyn FnMut(&Trial)) -> Result<Done, String> {
    let store = Reference::make_closed()?;
    let mut random = Pcg64Mcg::seed_from_u64(plan.seed);
    let twins =
        (0..script::SCRIPTS).map(|number| Twin::run(&store, number, plan.metadata)).collect::<Result<Vec<_>, _>>()?;
    let mut done = Done::default();
    let queues = queues(plan, &twins, &mut random, &mut done);
    queues.iter().flatten().for_each(|(.., cell)| done.coverage.there(cell));
    let mut at = vec![0; queues.len()];
    let mut missed = 0;
    while (done.trials.len() as u64) < plan.injections {
        let before = done.trials.len();
        for (queue, at) in queues.iter().zip(&mut at) {
            let Some((script, event, cell)) = queue.get(*at % queue.len().max(1)) else { continue };
            *at += 1;
            if done.trials.len() as u64 == plan.injections {
                break;
            }
            let choice = random.random();
            match trial::run(&store, &twins[*script as usize], cell, *event, choice, plan.metadata) {
                Some(trial) => {
                    told(&trial);
                    done.coverage.struck(cell);
                    done.trials.push(trial);
                }
                None => missed += 1,
            }
        }
        if before == done.trials.len() && missed > 100 * queues.len() {
            return Err("there is nothing to strike".into());
        }
    }
    Ok(done)
}

/// By kind, then logic bugs; in each the cells come in an order by chance, each at one of the scripts and moments where it can be.
fn queues(plan: &Plan, twins: &[Twin], random: &mut Pcg64Mcg, done: &mut Done) -> Queues {
    let mut places: BTreeMap<Cell, Vec<(u64, usize)>> = BTreeMap::new();
    for (script, twin) in twins.iter().enumerate() {
        for (event, (moment, fields)) in twin.survey.iter().enumerate() {
            let moment = *moment;
            for (kind, state, field) in fields.iter().filter(|(kind, ..)| plan.kind.is_none_or(|only| only == *kind)) {
                done.fields.entry(*kind).or_default().insert(field.clone());
                let what = What::Field { kind: *kind, state: *state, field: field.clone() };
                for &pattern in &Pattern::ALL {
                    let cell = Cell { what: what.clone(), pattern: Some(pattern), moment };
                    places.entry(cell).or_default().push((script as u64, event));
                }
            }
            let bugs = LogicBug::ALL.into_iter().filter(|_| plan.kind.is_none() && trial::can_have_bugs(moment));
            for bug in bugs {
                let cell = Cell { what: What::Bug(bug), pattern: None, moment };
                places.entry(cell).or_default().push((script as u64, event));
            }
            let bugs = NameBug::ALL.into_iter().filter(|_| plan.kind.is_none() && script::can_have_name_bugs(moment));
            for bug in bugs {
                let cell = Cell { what: What::NameBug(bug), pattern: None, moment };
                places.entry(cell).or_default().push((script as u64, event));
            }
        }
    }
    type Queue = Vec<(u64, usize, Cell)>;
    let mut queues: BTreeMap<(u8, Option<Kind>), Queue> = BTreeMap::new();
    for (cell, places) in places {
        let (script, event) = places[random.random_range(0..places.len())];
        let kind = match cell.what {
            What::Field { kind, .. } => (0, Some(kind)),
            What::Bug(_) => (1, None),
            What::NameBug(_) => (2, None),
        };
        queues.entry(kind).or_default().push((script, event, cell));
    }
    queues.values_mut().for_each(|queue| queue.shuffle(random));
    queues.into_values().collect()
}
