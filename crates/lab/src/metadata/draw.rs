//! What is struck in which order, by seed: first what a campaign has to meet ([`Need`]), then all other cells, each of them once; then it begins
//! again. Kinds take turns, so that a campaign that is cut short has been at all of them.

use super::coverage::Need;
use super::script;
use super::trial::{self, Twin};
use super::{Cell, Done, Kind, Plan, Trial, What};
use crate::enemy::reference::Reference;
use holdfast_naming::NameBug;
use holdfast_physical::scribble::{LogicBug, Pattern};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};

/// Places at which a cell is tried, until there is something to strike at one of them: what is there only while a snapshot goes away is at few.
const TRIES: usize = 96;

/// Where a cell is: in which script, and at which number of its moments.
type Places = BTreeMap<Cell, Vec<(u64, usize)>>;

/// A campaign under way.
pub(super) struct Draw<'a> {
    plan: &'a Plan,
    store: &'a Reference,
    twins: &'a [Twin],
    places: Places,
    random: Pcg64Mcg,
    done: Done,
}

/// Things of kinds, each with its kind's number, by turns: one of each kind, then another of each.
fn by_turns<T>(things: impl IntoIterator<Item = (Option<Kind>, T)>, random: &mut Pcg64Mcg) -> Vec<T> {
    let mut kinds: BTreeMap<Option<Kind>, Vec<T>> = BTreeMap::new();
    things.into_iter().for_each(|(kind, thing)| kinds.entry(kind).or_default().push(thing));
    kinds.values_mut().for_each(|things| things.shuffle(random));
    let mut queues: Vec<_> = kinds.into_values().map(Vec::into_iter).collect();
    let mut order = Vec::new();
    loop {
        let before = order.len();
        order.extend(queues.iter_mut().filter_map(Iterator::next));
        if order.len() == before {
            return order;
        }
    }
}

fn places(plan: &Plan, twins: &[Twin], done: &mut Done) -> Places {
    let mut places = Places::new();
    for (script, twin) in twins.iter().enumerate() {
        for (event, (moment, fields)) in twin.survey.iter().enumerate() {
            let moment = *moment;
            let mut there = |what, pattern| {
                places.entry(Cell { what, pattern, moment }).or_default().push((script as u64, event));
            };
            for (kind, state, field) in fields.iter().filter(|(kind, ..)| plan.kind.is_none_or(|only| only == *kind)) {
                done.fields.entry(*kind).or_default().insert(field.clone());
                let is_asked = |pattern: &Pattern| plan.ways.has(*pattern);
                let is_found = |pattern: &Pattern| *pattern != Pattern::KeepAll || twin.changes_later(*kind, event);
                let fits = |pattern: &Pattern| trial::fits(*kind, field, *pattern) && is_found(pattern);
                for pattern in Pattern::ALL.into_iter().filter(|pattern| is_asked(pattern) && fits(pattern)) {
                    there(What::Field { kind: *kind, state: *state, field: field.clone() }, Some(pattern));
                }
            }
            if plan.kind.is_some() || !plan.ways.has_bugs() {
                continue;
            }
            let bugs = LogicBug::ALL.into_iter().filter(|bug| trial::can_have_bug(*bug, moment));
            bugs.for_each(|bug| there(What::Bug(bug), None));
            for (kind, state, field) in fields {
                if let Some(kind) = trial::can_be_wrong(*kind, *state, field, moment) {
                    there(What::Wrong { kind, field: field.clone() }, None);
                }
            }
            if script::can_have_name_bugs(moment) {
                NameBug::ALL.into_iter().for_each(|bug| there(What::NameBug(bug), None));
            }
        }
    }
    places
}

impl<'a> Draw<'a> {
    pub(super) fn new(plan: &'a Plan, store: &'a Reference, twins: &'a [Twin]) -> Draw<'a> {
        let mut done = Done::default();
        let places = places(plan, twins, &mut done);
        places.keys().for_each(|cell| done.coverage.there(cell));
        Draw { plan, store, twins, places, random: Pcg64Mcg::seed_from_u64(plan.seed), done }
    }

    fn is_at_end(&self) -> bool {
        self.done.trials.len() as u64 >= self.plan.injections
    }

    /// Strikes at a cell, at one of its places.
    ///
    /// # Errors
    /// Why there was nothing to strike at any that was tried.
    fn strike(&mut self, cell: &Cell, told: &mut dyn FnMut(&Trial)) -> Result<(), String> {
        let mut places = self.places[cell].clone();
        places.shuffle(&mut self.random);
        let mut why = String::new();
        for (script, event) in places.into_iter().take(TRIES) {
            let (twin, choice) = (&self.twins[script as usize], self.random.random());
            match trial::run(self.store, twin, cell, event, choice, self.plan.metadata) {
                Ok(trial) => {
                    told(&trial);
                    self.done.coverage.struck(cell);
                    self.done.trials.push(trial);
                    return Ok(());
                }
                Err(missed) => why = missed,
            }
        }
        Err(why)
    }

    /// All of it.
    ///
    /// # Errors
    /// In words, if there is nothing to strike.
    pub(super) fn run(mut self, told: &mut dyn FnMut(&Trial)) -> Result<Done, String> {
        while !self.is_at_end() {
            let before = self.done.trials.len();
            let mut left: BTreeSet<Cell> = self.places.keys().cloned().collect();
            let mut needs: BTreeMap<Need, Vec<Cell>> = BTreeMap::new();
            left.iter().for_each(|cell| needs.entry(Need::of(cell)).or_default().push(cell.clone()));
            let needs = needs.into_iter().map(|(need, cells)| (need.kind, cells));
            for mut cells in by_turns(needs, &mut self.random) {
                cells.shuffle(&mut self.random);
                for cell in cells {
                    if self.is_at_end() {
                        return Ok(self.done);
                    }
                    left.remove(&cell);
                    match self.strike(&cell, told) {
                        Ok(()) => break,
                        Err(why) => self.done.coverage.missed(cell, why),
                    }
                }
            }
            let left = left.into_iter().map(|cell| (Need::of(&cell).kind, cell));
            for cell in by_turns(left, &mut self.random) {
                if self.is_at_end() {
                    return Ok(self.done);
                }
                if let Err(why) = self.strike(&cell, told) {
                    self.done.coverage.missed(cell, why);
                }
            }
            if self.done.trials.len() == before {
                return Err("there is nothing to strike".into());
            }
        }
        Ok(self.done)
    }
}
