//! What is promised and kept back: numbers that are in no block, nor made anew from any. Each is kept twice, and put right once in a second;
//! what is asked in between is right as long as one of the two is.

use super::Alloc;
use crate::guarded::{Doubled, Guarded};
use crate::meta_block::Scribble;
use holdfast_object::Epoch;

/// What an epoch was promised, and what it has taken.
#[derive(Clone, Default, Debug)]
pub(super) struct Reservation {
    pub(super) reserved: Doubled,
    pub(super) taken: Doubled,
    /// Of these, for the bitmap, the object table of domain 0 and the reference table. Nobody reserves the former, and the
    /// latter only for what copies add to it, not for what overwriting shared pages takes off: they come out of the reserve.
    pub(super) own: Doubled,
}

impl Reservation {
    pub(super) fn left(&self) -> u64 {
        self.reserved.get().saturating_sub(self.taken.get())
    }

    /// Blocks taken beyond the promise, of the store's own only those above `margin`.
    pub(super) fn beyond(&self, margin: u64) -> u64 {
        self.taken.get().saturating_sub(self.own.get().min(margin)).saturating_sub(self.reserved.get())
    }
}

/// A number, if there is one.
#[derive(Clone, Debug)]
pub(super) struct Maybe(Doubled);

impl Maybe {
    pub(super) fn new(number: Option<u64>) -> Maybe {
        // No device has so many blocks.
        Maybe(Doubled::new(number.unwrap_or(u64::MAX)))
    }

    pub(super) fn get(&self) -> Option<u64> {
        Some(self.0.get()).filter(|number| *number != u64::MAX)
    }
}

/// What a store keeps back.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// Kept back for privileged users.
    pub(super) set_aside: Doubled,
    /// Most blocks that may be in use, if there is a limit.
    pub(super) quota: Maybe,
    /// If there are snapshots: blocks of metadata, both copies counted as one, that the newest of them has and the domain still has
    /// too. To remove what they lead to, each must be written anew.
    pub(super) kept: Maybe,
    pub(super) log_blocks: Doubled,
}

/// State of a block that was written ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Placed(Guarded);

impl Placed {
    /// An epoch that never comes, so that nobody frees the block: of what has gone bad.
    const UNKNOWN: Placed = Placed::new(u64::MAX >> 1, true);

    pub(super) const fn new(epoch: Epoch, wanted: bool) -> Placed {
        Placed(Guarded::new(epoch << 1 | wanted as u64))
    }

    fn verify(self) -> Result<u64, Scribble> {
        self.0.get("for which epoch a block was written ahead")
    }

    fn word(self) -> u64 {
        self.verify().unwrap_or(u64::MAX)
    }

    pub(super) fn epoch(self) -> Epoch {
        self.word() >> 1
    }

    pub(super) fn is_wanted(self) -> bool {
        self.word() & 1 == 1
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(super) fn scribbled(&mut self) -> &mut u64 {
        self.0.scribbled()
    }
}

impl Alloc {
    fn doubled(&self) -> impl Iterator<Item = &Doubled> {
        let Limits { set_aside, quota, kept, log_blocks } = &self.limits;
        let reservations = self.reservations.values().flat_map(|of| [&of.reserved, &of.taken, &of.own]);
        [set_aside, &quota.0, &kept.0, log_blocks, &self.no_run_of, &self.no_gap_of].into_iter().chain(reservations)
    }

    fn doubled_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Doubled)> {
        let Limits { set_aside, quota, kept, log_blocks } = &mut self.limits;
        let limits = [
            ("blocks set aside", set_aside),
            ("quota", &mut quota.0),
            ("blocks of metadata that snapshots keep", &mut kept.0),
            ("blocks of the log", log_blocks),
            ("length of a run that there is none of", &mut self.no_run_of),
            ("length of a gap that there is none of", &mut self.no_gap_of),
        ];
        let reservations = self.reservations.values_mut().flat_map(|of| {
            [
                ("blocks reserved", &mut of.reserved),
                ("reserved blocks taken", &mut of.taken),
                ("reserved blocks of the store's own", &mut of.own),
            ]
        });
        limits.into_iter().chain(reservations)
    }

    /// Whether all of these numbers are good.
    pub(crate) fn numbers_are_good(&self) -> bool {
        self.doubled().all(Doubled::is_good) && self.placements.values().all(|placed| placed.verify().is_ok())
    }

    /// Puts them right. Gives what was wrong.
    pub(crate) fn heal_numbers(&mut self) -> Vec<Scribble> {
        let mut healed: Vec<Scribble> = self.doubled_mut().filter_map(|(what, number)| number.heal(what)).collect();
        for placed in self.placements.values_mut() {
            healed.extend(placed.verify().err().inspect(|_| *placed = Placed::UNKNOWN));
        }
        healed
    }

    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn number_cells<'a>(&'a mut self, cells: &mut crate::scribble::Cells<'a>) {
        let mut epochs = 0;
        for (what, number) in self.doubled_mut() {
            epochs += u64::from(what == "blocks reserved");
            let name = if epochs == 0 { what.to_string() } else { format!("{what}, epoch {epochs}") };
            cells.own(&name, number.scribbled());
        }
    }
}
