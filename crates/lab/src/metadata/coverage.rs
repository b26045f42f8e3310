//! Which cells there are, which have been met, and which cannot be.

use super::{Cell, Kind, Moment, What};
use holdfast_physical::scribble::{MetaKind, Pattern};
use std::collections::{BTreeMap, BTreeSet};

/// What a campaign has to meet: a field in a way, or a logic bug, before or after further updates.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Need {
    /// Of which kind it is; `None` for a logic bug.
    pub kind: Option<Kind>,
    /// The field, or the logic bug.
    pub name: String,
    /// How it is written over.
    pub pattern: Option<Pattern>,
    /// Legal updates follow before the recovery point.
    pub is_before: bool,
}

impl Need {
    pub(super) fn of(cell: &Cell) -> Need {
        let (kind, name) = match &cell.what {
            What::Field { kind, field, .. } => (Some(*kind), field.clone()),
            bug @ (What::Bug(_) | What::NameBug(_) | What::Wrong { .. }) => (None, bug.to_string()),
        };
        Need { kind, name, pattern: cell.pattern, is_before: cell.moment.is_before_updates() }
    }

    fn is_known_to_lack(&self) -> bool {
        let is_last = |kind: Kind| LAST_FIELDS.contains(&(kind.name(), self.name.as_str()));
        self.pattern == Some(Pattern::KeepChecksum) && self.kind.is_some_and(is_last)
    }
}

/// Kinds and fields at which nothing keeps the checksum, or not always: what does is longer than a word, and behind them there is little or
/// nothing left. Whatever else a
/// campaign of enough strikes has not met fails it: a way to strike that no longer finds anything would else be taken for a field that is not
/// there.
const LAST_FIELDS: &[(&str, &str)] = &[
    ("record", "root.birth_log, upper part"),
    ("record", "root.birth_phys, upper part"),
    ("label", "crc"),
    ("superblock", "crc"),
    ("intent-log", "recovered.newest"),
    ("snapshot", "metadata"),
    ("snapshot", "pages_left"),
    ("dead-run", "count"),
    ("dead-run", "flags"),
    ("counts", "check of held"),
    ("numbers", "epoch prepared"),
    ("numbers", "times begun anew"),
    ("audit", "twin of entries.squares"),
    ("destination", "check of address[1]"),
];

/// Cells of a campaign.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    there: BTreeSet<Cell>,
    met: BTreeSet<Cell>,
    /// Strikes, by pattern, and by kind or of logic bugs.
    strikes: BTreeMap<(Option<Kind>, Option<Pattern>), u64>,
    /// Cells at which there was nothing to strike though they seemed to be there, and why.
    missed: BTreeMap<Cell, String>,
}

/// A kind in numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its name, or that of logic bugs.
    pub name: &'static str,
    /// What has to be met, and how much of it has been.
    pub needs: (usize, usize),
    /// Cells, and how many of them have been met.
    pub cells: (usize, usize),
    /// Fields, and how many of them have been met.
    pub fields: (usize, usize),
    /// Strikes, by pattern.
    pub strikes: [u64; Pattern::ALL.len()],
}

/// What cannot be met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreachable {
    /// Whose.
    pub kind: Kind,
    /// Which fields; none: there are none.
    pub names: Vec<String>,
    /// Before or after further updates; `None`: neither.
    pub is_before: Option<bool>,
    /// Why.
    pub why: String,
}

fn kind_of(cell: &Cell) -> Option<Kind> {
    match cell.what {
        What::Field { kind, .. } => Some(kind),
        What::Bug(_) | What::NameBug(_) | What::Wrong { .. } => None,
    }
}

fn field(cell: &Cell) -> Option<(Kind, &str)> {
    match &cell.what {
        What::Field { kind, field, .. } => Some((*kind, field)),
        What::Bug(_) | What::NameBug(_) | What::Wrong { .. } => None,
    }
}

fn needs_of<'a>(cells: impl Iterator<Item = &'a Cell>) -> BTreeSet<Need> {
    cells.map(Need::of).collect()
}

impl Coverage {
    /// A cell that can be struck.
    pub(super) fn there(&mut self, cell: &Cell) {
        self.there.insert(cell.clone());
    }

    /// One that has been.
    pub(super) fn struck(&mut self, cell: &Cell) {
        self.met.insert(cell.clone());
        self.missed.remove(cell);
        *self.strikes.entry((kind_of(cell), cell.pattern)).or_default() += 1;
    }

    /// One that could not be.
    pub(super) fn missed(&mut self, cell: Cell, why: String) {
        if !self.met.contains(&cell) {
            self.missed.insert(cell, why);
        }
    }

    /// Cells, and how many of them have been met.
    pub fn cells(&self) -> (usize, usize) {
        (self.there.len(), self.met.len())
    }

    /// What has to be met, and how much of it has been.
    pub fn needs(&self) -> (usize, usize) {
        (needs_of(self.there.iter()).len(), needs_of(self.met.iter()).len())
    }

    /// What has not been met: nothing was to be struck at any of its cells, or there were too few strikes.
    fn lacking(&self) -> BTreeSet<Need> {
        needs_of(self.there.iter()).difference(&needs_of(self.met.iter())).cloned().collect()
    }

    /// What is known to have nothing to strike, and had nothing.
    pub fn known_lacking(&self) -> Vec<String> {
        self.lacking().iter().filter(|need| need.is_known_to_lack()).map(ToString::to_string).collect()
    }

    /// Not of one kind alone, or of bugs.
    fn is_whole(&self) -> bool {
        let has = |is_bug: bool| self.there.iter().any(|cell| kind_of(cell).is_none() == is_bug);
        has(true) && has(false)
    }

    /// By kind, logic bugs last.
    pub fn rows(&self) -> Vec<Row> {
        let of = |kind: Option<Kind>| {
            let of_kind = |cells: &BTreeSet<Cell>| -> Vec<Cell> {
                cells.iter().filter(|cell| kind_of(cell) == kind).cloned().collect()
            };
            let (there, met) = (of_kind(&self.there), of_kind(&self.met));
            let fields = |cells: &[Cell]| cells.iter().filter_map(field).collect::<BTreeSet<_>>().len();
            Row {
                name: kind.map_or("logic bugs", Kind::name),
                needs: (needs_of(there.iter()).len(), needs_of(met.iter()).len()),
                cells: (there.len(), met.len()),
                fields: (fields(&there), fields(&met)),
                strikes: Pattern::ALL.map(|pattern| self.strikes.get(&(kind, Some(pattern))).copied().unwrap_or(0)),
            }
        };
        let rows = Kind::all().map(Some).chain([None]).map(of);
        rows.filter(|row| row.cells.0 > 0).collect()
    }

    /// What there is on one side of further updates only, or at no moment.
    pub fn unreachable(&self) -> Vec<Unreachable> {
        let mut moments: BTreeMap<(Kind, &str), BTreeSet<Moment>> = BTreeMap::new();
        for cell in &self.there {
            if let Some(field) = field(cell) {
                moments.entry(field).or_default().insert(cell.moment);
            }
        }
        // Fields of a kind that are there at the same moments, together.
        let mut lacking: BTreeMap<(Kind, bool, BTreeSet<Moment>), Vec<String>> = BTreeMap::new();
        for ((kind, name), moments) in moments {
            for is_before in [true, false] {
                if !moments.iter().any(|moment| moment.is_before_updates() == is_before) {
                    lacking.entry((kind, is_before, moments.clone())).or_default().push(name.to_string());
                }
            }
        }
        let of = |((kind, is_before, moments), names): ((Kind, bool, BTreeSet<Moment>), _)| {
            let moments: Vec<&str> = moments.into_iter().map(Moment::name).collect();
            let why = format!("it is there at no other moments than: {}", moments.join("; "));
            Unreachable { kind, names, is_before: Some(is_before), why }
        };
        let mut unreachable: Vec<Unreachable> = lacking.into_iter().map(of).collect();
        if self.is_whole() && !self.there.iter().any(|cell| kind_of(cell) == Some(NEVER_THERE)) {
            let why = "the cache writes nothing ahead yet".to_string();
            unreachable.push(Unreachable { kind: NEVER_THERE, names: Vec::new(), is_before: None, why });
        }
        unreachable
    }

    /// Cells that seemed to be there, at which there was nothing to strike at any place that was tried: how many of a kind, and why.
    pub fn missed_cells(&self) -> BTreeMap<(Option<Kind>, &str), usize> {
        let mut missed = BTreeMap::new();
        for (cell, why) in &self.missed {
            *missed.entry((kind_of(cell), why.as_str())).or_default() += 1;
        }
        missed
    }

    /// What a campaign of enough strikes should have met, and has not.
    pub fn unmet(&self) -> Vec<String> {
        let unmet: Vec<Need> = self.lacking().into_iter().filter(|need| !need.is_known_to_lack()).collect();
        let told = |need: &Need| {
            let why = self.missed.iter().rev().find(|(cell, _)| Need::of(cell) == *need).map(|(_, why)| why.as_str());
            format!("{need}: {}", why.unwrap_or("too few strikes"))
        };
        let kinds: BTreeSet<Kind> = self.there.iter().filter_map(kind_of).collect();
        let missing = Kind::all().filter(|kind| self.is_whole() && *kind != NEVER_THERE && !kinds.contains(kind));
        unmet.iter().map(told).chain(missing.map(|kind| format!("{kind}: there is none at any moment"))).collect()
    }
}

/// The cache writes nothing ahead yet; tests of the physical layer strike it.
const NEVER_THERE: Kind = Kind::Store(MetaKind::WrittenAhead);

impl std::fmt::Display for Need {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Need { kind, name, pattern, is_before } = self;
        kind.iter().try_for_each(|kind| write!(f, "{kind}, "))?;
        write!(f, "{name}")?;
        pattern.iter().try_for_each(|pattern| write!(f, ", {pattern}"))?;
        f.write_str(if *is_before { ", before further updates" } else { ", after further updates" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_physical::scribble::State;

    #[test]
    fn what_finds_nothing_to_strike_is_not_met() {
        let of = |field: &str, pattern| Cell {
            what: What::Field { kind: Kind::Store(MetaKind::Superblock), field: field.into(), state: State::InUse },
            pattern: Some(pattern),
            moment: Moment::Rest,
        };
        let mut coverage = Coverage::default();
        for cell in [of("free", Pattern::Bit), of("epoch", Pattern::Bit), of("crc", Pattern::KeepChecksum)] {
            coverage.there(&cell);
            coverage.missed(cell, "nothing there".into());
        }
        coverage.struck(&of("free", Pattern::Bit));
        assert_eq!(coverage.needs(), (3, 1));
        assert_eq!(coverage.unmet(), ["superblock, epoch, bit, before further updates: nothing there"]);
        assert_eq!(coverage.known_lacking(), ["superblock, crc, keep-checksum, before further updates"]);
    }
}
