//! Metadata in memory: every kind × every field × every way to write to it × every moment, and logic bugs; what becomes of each.
//!
//! | file | job |
//! |---|---|
//! | `script` | what is done with the store |
//! | `answers` | what the store says to whoever asks it past the cache |
//! | `between` | moments at which something can happen |
//! | `pages` | what the cache has of metadata, and striking it |
//! | `attributes` | the same of attributes that the store does not have yet |
//! | `names` | logic bugs of the name space |
//! | `coverage` | which cells there are, and which have been met |
//! | `draw` | which are struck, in which order |
//! | `replay` | one strike of a campaign once more |
//! | `trial` | one strike, and what became of it |
//! | `table` | the results for people |
//! | `operations` | each field × each operation of an application, which runs alone after the strike |
//! | `operations_acts` | the operations |
//! | `operations_table` | their results for people |
//!
//! Each trial opens a store of its own in memory, all layers of it, and strikes once. A run of the same script without a strike is what it is
//! compared with. Promises, of which each trial checks all:
//! - *nothing of it is stored*: the recovery point is what it is without the strike: byte by byte if nothing has been noticed, and else by
//!   all that it says apart from where blocks are; a check of it from scratch finds nothing; all contents are right when it is mounted anew;
//! - *nobody notices*: each application operation has the answer that it should, then and later;
//! - *it is named for what it is*: what was written over is found to be a scribble, if it is found, and not a logic bug, unless the pattern keeps
//!   checksums; what no sum sees is found where the audit has it, and a logic bug is, both as that.

mod answers;
mod attributes;
mod between;
mod coverage;
mod draw;
mod names;
pub mod operations;
mod operations_acts;
mod operations_table;
mod pages;
mod replay;
mod script;
mod table;
mod trial;

use crate::enemy::reference::Reference;
pub use between::Moment;
pub use coverage::{Coverage, Need, Unreachable};
use holdfast_naming::NameBug;
use holdfast_physical::MetadataProtection;
use holdfast_physical::scribble::{LogicBug, MetaKind, Pattern, State};
pub use pages::PageKind;
pub use replay::again;
use std::collections::{BTreeMap, BTreeSet};
pub use table::{markdown, share, text};
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
    /// A field of something that the epoch has changed is changed wrongly, by who may change it.
    Wrong {
        /// What it is.
        kind: MetaKind,
        /// By name.
        field: String,
    },
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            What::Field { kind, state, field } => write!(f, "{kind} ({}), {field}", state.name()),
            What::Bug(bug) => write!(f, "logic bug {bug}"),
            What::NameBug(bug) => write!(f, "logic bug of names {bug}"),
            What::Wrong { kind, field } => write!(f, "{kind} changed wrongly, {field}"),
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
    /// In which ways.
    pub ways: Ways,
}

/// Ways of a campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ways {
    /// All of them, and logic bugs.
    #[default]
    All,
    /// This one.
    Pattern(Pattern),
    /// Logic bugs only, wrong changes of fields among them.
    Bugs,
}

impl Ways {
    fn has(self, pattern: Pattern) -> bool {
        matches!(self, Ways::All) || self == Ways::Pattern(pattern)
    }

    fn has_bugs(self) -> bool {
        !matches!(self, Ways::Pattern(_))
    }
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

    /// It was found to be what it is not. (What keeps the checksum may be called a logic bug, and only the audit can find what no sum sees.)
    pub fn is_misnamed(&self) -> bool {
        match self.cell.pattern {
            None | Some(Pattern::KeepAll) => self.verdict != Verdict::Logic,
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

/// Strikes so many times; `told` is called after each.
///
/// # Errors
/// In words, if a script does not even work without a strike.
pub fn run(plan: &Plan, told: &mut dyn FnMut(&Trial)) -> Result<Done, String> {
    let store = Reference::make_closed()?;
    let twins =
        (0..script::SCRIPTS).map(|number| Twin::run(&store, number, plan.metadata)).collect::<Result<Vec<_>, _>>()?;
    draw::Draw::new(plan, &store, &twins).run(told)
}
