//! Which cells there are, and which have been met.

use super::{Cell, Kind, What};
use holdfast_naming::NameBug;
use holdfast_physical::scribble::{LogicBug, MetaKind, Pattern};
use std::collections::{BTreeMap, BTreeSet};

/// So many strikes meet each kind in each way, and each logic bug: fewer may not.
pub const MANY: u64 = 5_000;

/// Of a kind, or of logic bugs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Of {
    there: BTreeSet<Cell>,
    met: BTreeSet<Cell>,
    /// Strikes, by pattern.
    strikes: BTreeMap<Option<Pattern>, u64>,
}

/// Cells of a campaign, by kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    kinds: BTreeMap<Kind, Of>,
    bugs: Of,
}

/// A kind in numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its name, or that of logic bugs.
    pub name: &'static str,
    /// Cells, and how many of them have been met.
    pub cells: (usize, usize),
    /// Fields, and how many of them have been met.
    pub fields: (usize, usize),
    /// Strikes, by pattern.
    pub strikes: [u64; Pattern::ALL.len()],
}

fn field(cell: &Cell) -> Option<&str> {
    match &cell.what {
        What::Field { field, .. } => Some(field),
        What::Bug(_) | What::NameBug(_) => None,
    }
}

impl Of {
    fn row(&self, name: &'static str) -> Row {
        let fields = |cells: &BTreeSet<Cell>| cells.iter().filter_map(field).collect::<BTreeSet<_>>().len();
        Row {
            name,
            cells: (self.there.len(), self.met.len()),
            fields: (fields(&self.there), fields(&self.met)),
            strikes: Pattern::ALL.map(|pattern| self.strikes.get(&Some(pattern)).copied().unwrap_or(0)),
        }
    }
}

impl Coverage {
    fn of(&mut self, cell: &Cell) -> &mut Of {
        match cell.what {
            What::Field { kind, .. } => self.kinds.entry(kind).or_default(),
            What::Bug(_) | What::NameBug(_) => &mut self.bugs,
        }
    }

    /// A cell that can be struck.
    pub(super) fn there(&mut self, cell: &Cell) {
        self.of(cell).there.insert(cell.clone());
    }

    /// One that has been.
    pub(super) fn struck(&mut self, cell: &Cell) {
        let of = self.of(cell);
        of.met.insert(cell.clone());
        *of.strikes.entry(cell.pattern).or_default() += 1;
    }

    /// Cells, and how many of them have been met.
    pub fn cells(&self) -> (usize, usize) {
        let all = self.kinds.values().chain([&self.bugs]);
        all.fold((0, 0), |(there, met), of| (there + of.there.len(), met + of.met.len()))
    }

    /// By kind, logic bugs last.
    pub fn rows(&self) -> Vec<Row> {
        let kinds = self.kinds.iter().map(|(kind, of)| of.row(kind.name()));
        kinds.chain([self.bugs.row("logic bugs")]).collect()
    }

    /// What a campaign of [`MANY`] strikes should have met, and has not: kinds of metadata, ways to write over one, and logic bugs.
    pub fn unmet(&self) -> Vec<String> {
        let mut unmet = Vec::new();
        // The cache writes nothing ahead yet.
        for kind in Kind::all().filter(|kind| *kind != Kind::Store(MetaKind::WrittenAhead)) {
            let strikes = |pattern| self.kinds.get(&kind).and_then(|of| of.strikes.get(&Some(pattern)));
            let missing = Pattern::ALL.into_iter().filter(|pattern| strikes(*pattern).is_none());
            unmet.extend(missing.map(|pattern| format!("{kind}, {}", pattern.name())));
        }
        let is_met = |what: &What| self.bugs.met.iter().any(|cell| cell.what == *what);
        let bugs = LogicBug::ALL.into_iter().map(What::Bug).chain(NameBug::ALL.into_iter().map(What::NameBug));
        unmet.extend(bugs.filter(|what| !is_met(what)).map(|what| what.to_string()));
        unmet
    }
}
