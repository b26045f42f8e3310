//! Data of the log that is lost while main does not have it (asynchronous mode). Main goes on without these blocks: reading them fails until they
//! are written anew, or a scrub finds a backup that has them. Main's label says that there are such, and the log keeps the pages that tell which
//! they are as long as it has room, so that an opening finds them again.

use super::append::Head;
use super::at::Kept;
use super::catch_up::MainSide;
use super::damage::bad;
use super::device::{Failure, Flashlog};
use super::format::{Damage, Label, Point, State};
use super::kept::Looked;
use super::open::Joined;
use super::stages::{Knowledge, KnownBad};
use super::staging::Backup;
use super::{Bad, Error};
use std::collections::BTreeSet;

/// A version that the log has lost on its way to main.
pub(super) struct Lost {
    pub(super) address: u64,
    /// Where it was in the log.
    pub(super) position: u64,
    pub(super) sum: u64,
    pub(super) got: u64,
    pub(super) failure: Failure,
}

impl Flashlog {
    /// Takes over what was known of main before this set was opened: blocks that nobody has as they were, and whether these are all.
    pub(super) fn learn_bad(&self, bad: KnownBad, knowledge: Knowledge) {
        {
            let mut stages = self.stages.lock();
            // What the log tells of them was known there.
            stages.knowledge = stages.knowledge.max(knowledge);
            for (address, sums) in bad {
                if stages.find(address).is_none() {
                    // What the log has told of is known already.
                    stages.lose_untold(address, sums);
                }
            }
        }
        if let Err(error) = self.note_known_damage() {
            // It fails where it is used if it must.
            tracing::error!(device = &*self.name, %error, "what is lost cannot be noted");
        }
    }

    /// Main goes on without these. In synchronous mode it does not: it has everything then, or says that it is a
    /// mixture, and the set is not opened.
    pub(super) fn go_on_without(&self, main: &mut MainSide, lost: &[Lost]) -> Result<(), Failure> {
        let Some(first) = lost.first() else { return Ok(()) };
        if !self.is_read_from_log() {
            return Err(first.failure.clone());
        }
        let newest: Vec<&Lost> = {
            let mut stages = self.stages.lock();
            // Of what has been written again since nothing is lost, once that is durable.
            let is_newest = |lost: &&Lost| stages.find(lost.address).is_some_and(|found| found.is_at(lost.position));
            let (newest, rewritten): (Vec<&Lost>, Vec<&Lost>) = lost.iter().partition(is_newest);
            newest.iter().for_each(|lost| stages.lose(lost.address, (lost.sum, lost.got)));
            for lost in rewritten {
                let behind = stages.is_durable(lost.address).then_some(stages.durable.page);
                stages.rewritten.entry(lost.address).or_insert(behind);
            }
            let applied = stages.applied;
            stages.held.get_or_insert(applied);
            newest
        };
        if !newest.is_empty() {
            let (device, blocks, error) = (&*self.name, newest.len(), &first.failure.error);
            tracing::error!(device, blocks, %error, "the log has lost data that main does not have: main goes on without");
        }
        self.note_known_damage_at(main)
    }

    /// Of what the log keeps, these versions are lost, and main has them neither. Where they are the newest, main's label says so from then on, and
    /// reading fails. How many these are.
    pub(super) fn note_lost_in_log(&self, looked: &Looked) -> Result<u64, Error> {
        let newest = self.newest_of(looked)?;
        if !newest.is_empty() {
            self.lose_in_log(&newest);
            self.note_known_damage()?;
        }
        Ok(newest.len() as u64)
    }

    fn lose_in_log(&self, newest: &[Kept]) {
        let from = self.head.lock().labels.label.tail;
        let mut stages = self.stages.lock();
        for kept in newest {
            if stages.find(kept.address).is_none() {
                stages.lose(kept.address, (kept.sum, 0));
            } else {
                // What main does not have yet is read from the log, and fails by itself.
                let behind = stages.durable.page;
                stages.rewritten.entry(kept.address).or_insert(Some(behind));
            }
            stages.held.get_or_insert(from);
        }
    }

    /// The same at an opening, of what has been looked at whenever main's label tells of such blocks: whether the log tells which these are. If the
    /// log has come to a main that was alone, the caller says whether it does, and which have come on top.
    pub(super) fn recognise_lost(&self, looked: &Looked, joined: Option<&Joined>) -> Result<(), Error> {
        let newest = self.newest_of(looked)?;
        let (before, is_told) = {
            let stages = self.stages.lock();
            (stages.forgotten, joined.map_or(!stages.is_untold, |joined| joined.tells))
        };
        if before.blocks == 0 && newest.is_empty() {
            return Ok(());
        }
        self.lose_in_log(&newest);
        let brought = match looked.damage {
            None if before.blocks > 0 => self.bring_what_log_has(before.first)?,
            _ => Vec::new(),
        };
        let [told, of_newest] =
            [&looked.lost, &newest].map(|lost| lost.iter().map(|kept| kept.address).collect::<BTreeSet<u64>>());
        // Unless an earlier version is lost as well.
        let lost_once = looked.lost.chunk_by(|a, b| a.address == b.address).filter(|lost| lost.len() == 1);
        let newest_once: BTreeSet<u64> =
            lost_once.map(|lost| lost[0].address).filter(|at| of_newest.contains(at)).collect();
        let of_joined = |of: fn(&Joined) -> &BTreeSet<u64>| -> BTreeSet<u64> {
            joined.map_or_else(BTreeSet::new, |joined| of(joined).intersection(&newest_once).copied().collect())
        };
        let [added, noted] = [of_joined(|joined| &joined.added), of_joined(|joined| &joined.noted)];
        // All that the label tells of, and not others in their place. It has been told of those that are noted by main alone, or of none of them.
        let are_all = |untold: &BTreeSet<u64>| {
            let told = || of_newest.iter().filter(|at| !added.contains(at) && !untold.contains(at)).chain(&brought);
            told().count() as u64 == before.blocks && told().min() == Some(&before.first)
        };
        let is_known = match looked.damage {
            _ if before.blocks == 0 => true,
            // Main alone may have written some of them, or not. Those that are not found may be there, and have main's older version now.
            None if joined.is_some() && (told != of_newest || !(are_all(&noted) || are_all(&BTreeSet::new()))) => false,
            // Or another one is counted for them. A single one is known by its address.
            None if before.blocks > 1 && joined.is_some_and(|joined| joined.covers) => false,
            None => is_told,
            // The others may be behind the page.
            Some(_) => is_told && before.blocks == 1 && of_newest.iter().eq([&before.first]),
        };
        if !is_known {
            let (device, Bad { blocks, first }) = (self.main.name(), before);
            tracing::warn!(
                device,
                blocks,
                first,
                "blocks of main are damaged, and it is not known of all which they are: they may be older there"
            );
        }
        {
            let from = self.head.lock().labels.label.tail;
            let mut stages = self.stages.lock();
            // Also what was read well at first, and badly then.
            if !stages.known_bad.is_empty() {
                stages.held.get_or_insert(from);
            }
            stages.knowledge = if is_known { Knowledge::All } else { Knowledge::Forgotten };
            stages.is_untold = !is_known;
            // Those that are known may be others.
            let blocks = before.blocks.saturating_sub((newest.len() - added.union(&noted).count()) as u64).max(1);
            stages.forgotten = Bad { blocks, ..before };
        }
        self.note_known_damage()
    }

    /// That main may be copied over what a backup has. Where it is not known which blocks of main are older than what was written there, the
    /// backup may have the newer version.
    pub(super) fn check_forgotten(&self, backup: &Label) -> Result<(), Error> {
        if backup.state == State::Copying || self.stages.lock().knowledge != Knowledge::Forgotten {
            return Ok(());
        }
        let Bad { blocks, first } = self.damage.lock().main;
        Err(Error::Forgotten { device: self.main.name().into(), blocks, first })
    }

    /// What the label of a backup says, of which all was copied from main or compared with it: blocks that may be older there, if nobody knows which.
    pub(super) fn damage_of_copy(&self) -> Damage {
        let is_forgotten = self.stages.lock().knowledge == Knowledge::Forgotten;
        let main = if is_forgotten { self.damage.lock().main } else { Bad::default() };
        Damage { main, ..Damage::default() }
    }

    /// That main may be compared with a backup: what that has of blocks of which it was forgotten that they are damaged may be older than what main
    /// has by now, if this has been settled since.
    pub(super) fn check_of_forgotten(&self, backup: &Backup) -> Result<(), Error> {
        if !self.is_copied_again(backup) {
            return Ok(());
        }
        let Bad { blocks, first } = backup.label().damage.main;
        Err(Error::OfForgotten { device: backup.labels.device.name().into(), blocks, first })
    }

    /// Whether a backup was copied while it was forgotten which blocks of main are damaged, and this is settled: all of it is compared then.
    pub(super) fn is_copied_again(&self, backup: &Backup) -> bool {
        backup.is_of_forgotten() && self.stages.lock().knowledge != Knowledge::Forgotten
    }

    /// Whether it is forgotten which blocks of main are damaged, at the latest when the set is closed.
    pub(super) fn forgets_damage(&self) -> bool {
        let stages = self.stages.lock();
        stages.knowledge == Knowledge::Forgotten || stages.is_untold && !stages.known_bad.is_empty()
    }

    /// What main has where nobody knows that it is damaged counts from now on: a backup gets it, though it may have had a newer version.
    pub fn accept_forgotten(&self) {
        let mut stages = self.stages.lock();
        if stages.knowledge != Knowledge::All {
            stages.knowledge = Knowledge::Accepted;
        }
    }

    /// Not any more, if no backup has got all of it meanwhile.
    pub fn forget_again(&self) {
        let mut stages = self.stages.lock();
        if stages.knowledge == Knowledge::Accepted {
            stages.knowledge = Knowledge::Forgotten;
        }
    }

    /// Blocks of main that nobody who was asked has as they were, as far as it is known which: reading them fails until they are written. When
    /// the set is opened again, only its log can tell which they are.
    pub fn lost_blocks(&self) -> Bad {
        let addresses: Vec<u64> = self.stages.lock().known_bad.keys().copied().collect();
        bad([&addresses])
    }

    /// Whether main has this block not as it was, and nobody who was asked.
    pub(super) fn is_known_bad(&self, address: u64) -> bool {
        self.stages.lock().known_bad.contains_key(&address)
    }

    /// Whether all that nobody had is written anew, and main's label tells of it still.
    pub(super) fn is_all_rewritten(&self) -> bool {
        let is_told = self.damage.lock().main.blocks > 0;
        is_told && {
            let stages = self.stages.lock();
            stages.knowledge == Knowledge::All && stages.known_bad.is_empty()
        }
    }

    /// What is before it can be let go of: what backup and main have, but for what tells which blocks nobody has.
    pub(super) fn tail(&self, head: &Head, applied: Point) -> Point {
        let tail = head.tail(applied);
        self.stages.lock().held.filter(|held| held.page < tail.page).unwrap_or(tail)
    }

    /// The log has no room: what only tells which blocks nobody has is let go of as well, when main and its label have what was written anew of
    /// them. Whether there was such, in front of what is needed otherwise.
    pub(super) fn lets_go_of_held(&self, head: &mut Head, applied: Point) -> Result<bool, Failure> {
        let tail = head.tail(applied);
        if self.stages.lock().held.is_none_or(|held| held.page >= tail.page) {
            return Ok(false);
        }
        if self.is_all_rewritten() {
            self.flush_log(head)?;
            self.catch_up_to_durable()?;
        }
        self.forget_held().map(|()| true)
    }

    /// The same where it cannot be waited for. Main's label says so first: it would be taken for one of blocks that the log tells of.
    pub(super) fn forget_held(&self) -> Result<(), Failure> {
        let (had, blocks) = {
            let mut stages = self.stages.lock();
            let blocks = stages.known_bad.len() + stages.rewritten.len();
            stages.is_untold |= blocks > 0;
            (stages.held.take().is_some(), blocks)
        };
        if blocks > 0 {
            let mut main = self.main_side_at_once();
            // A main that is alone has others who write its labels.
            self.check_latch()?;
            self.note_known_damage_at(&mut main)?;
        }
        if had && blocks > 0 {
            let device = &*self.name;
            tracing::warn!(
                device,
                blocks,
                "the log lets go of what tells which blocks of main are damaged: that is forgotten when the set is closed"
            );
        }
        Ok(())
    }
}

impl Bad {
    /// Not more than there are in a set of so many blocks.
    pub(super) fn within(self, blocks: u64) -> Bad {
        Bad { blocks: self.blocks.min(blocks - self.first), ..self }
    }

    /// Both, where some may be the same: so many there are at least.
    pub(super) fn at_least(self, other: Bad) -> Bad {
        match (self.blocks, other.blocks) {
            (_, 0) => self,
            (0, _) => other,
            (some, more) => Bad { blocks: some.max(more), first: self.first.min(other.first) },
        }
    }

    /// Both.
    pub(super) fn and(self, other: Bad) -> Bad {
        match (self.blocks, other.blocks) {
            (_, 0) => self,
            (0, _) => other,
            (some, more) => Bad { blocks: some + more, first: self.first.min(other.first) },
        }
    }
}
