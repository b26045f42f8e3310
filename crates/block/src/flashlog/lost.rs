//! Data of the log that is lost while main does not have it (asynchronous mode). Main goes on without these blocks: reading them fails until they
//! are written anew, or a scrub finds a backup that has them. Main's label says that there are such, and the log keeps the pages that tell which
//! they are as long as it has room, so that an opening finds them again.

use super::append::Head;
use super::at::Kept;
use super::catch_up::MainSide;
use super::damage::bad;
use super::device::{Failure, Flashlog};
use super::format::{Label, Point, State};
use super::kept::Looked;
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
    /// Main goes on without these. In synchronous mode it does not: it has everything then, or the set is not opened.
    pub(super) fn go_on_without(&self, main: &mut MainSide, lost: &[Lost]) -> Result<(), Failure> {
        let Some(first) = lost.first() else { return Ok(()) };
        if !self.is_read_from_log() {
            return Err(first.failure.clone());
        }
        let newest: Vec<u64> = {
            let mut stages = self.stages.lock();
            // Of what has been written again since nothing is lost.
            let is_newest = |lost: &&Lost| stages.find(lost.address).is_some_and(|found| found.is_at(lost.position));
            let all: Vec<&Lost> = lost.iter().filter(is_newest).collect();
            stages.known_bad.extend(all.iter().map(|lost| (lost.address, (lost.sum, lost.got))));
            all.iter().map(|lost| lost.address).collect()
        };
        if newest.is_empty() {
            return Ok(());
        }
        let (device, blocks, error) = (&*self.name, newest.len(), &first.failure.error);
        tracing::error!(device, blocks, %error, "the log has lost data that main does not have: main goes on without");
        {
            let mut stages = self.stages.lock();
            let applied = stages.applied;
            stages.held.get_or_insert(applied);
        }
        self.note_damage_at(main, |damage| damage.main = bad([&newest]).with(damage.main))
    }

    /// Of what the log keeps, these versions are lost, and main has them neither. Where they are the newest, main's label says so from then on, and
    /// reading fails. How many these are.
    pub(super) fn note_lost_in_log(&self, looked: &Looked) -> Result<u64, Error> {
        let newest = self.newest_of(looked)?;
        if newest.is_empty() {
            return Ok(0);
        }
        let from = self.head.lock().labels.label.tail;
        {
            let mut stages = self.stages.lock();
            for kept in &newest {
                // What main does not have yet is read from the log, and fails by itself.
                if stages.find(kept.address).is_none() {
                    stages.known_bad.insert(kept.address, (kept.sum, 0));
                    stages.held.get_or_insert(from);
                }
            }
        }
        let addresses: Vec<u64> = newest.iter().map(|kept| kept.address).collect();
        self.note_lost(&addresses)?;
        Ok(newest.len() as u64)
    }

    /// The log tells of these blocks, of which it has lost a version, and main's label of some: whether it tells of others.
    pub(super) fn note_forgotten(&self, lost: &[Kept]) {
        let Bad { blocks, first } = self.damage.lock().main;
        let told: BTreeSet<u64> = lost.iter().map(|kept| kept.address).collect();
        let has_forgotten = (told.len() as u64) < blocks || blocks > 0 && !told.contains(&first);
        if has_forgotten {
            let device = self.main.name();
            tracing::warn!(
                device,
                blocks,
                first,
                "blocks of main are damaged, and it is not known of all which they are: they may be older there"
            );
        }
        self.stages.lock().has_forgotten = has_forgotten;
    }

    /// That main may be copied over what a backup has. Where it is not known which blocks of main are older than what was written there, the
    /// backup may have the newer version.
    pub(super) fn check_forgotten(&self, backup: &Label) -> Result<(), Error> {
        if backup.state == State::Copying || !self.stages.lock().has_forgotten {
            return Ok(());
        }
        let Bad { blocks, first } = self.damage.lock().main;
        Err(Error::Forgotten { device: self.main.name().into(), blocks, first })
    }

    /// Whether it is forgotten which blocks of main are damaged, at the latest when the set is closed.
    pub(super) fn forgets_damage(&self) -> bool {
        let stages = self.stages.lock();
        stages.has_forgotten || !stages.known_bad.is_empty() && stages.held.is_none()
    }

    /// What main has where nobody knows that it is damaged counts from now on: a backup gets it, though it may have had a newer version.
    pub fn accept_forgotten(&self) {
        self.stages.lock().has_forgotten = false;
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

    /// What is before it can be let go of: what backup and main have, but for what tells which blocks nobody has.
    pub(super) fn tail(&self, head: &Head, applied: Point) -> Point {
        let tail = head.tail(applied);
        let mut stages = self.stages.lock();
        if stages.known_bad.is_empty() && stages.rewritten.is_empty() {
            stages.held = None;
        }
        stages.held.filter(|held| held.page < tail.page).unwrap_or(tail)
    }

    /// The log has no room, or a page of it is damaged: what only tells which blocks nobody has is let go of as well. Whether there was such.
    pub(super) fn lets_go_of_held(&self) -> bool {
        let (had, blocks) = {
            let mut stages = self.stages.lock();
            (stages.held.take().is_some(), stages.known_bad.len() + stages.rewritten.len())
        };
        if had && blocks > 0 {
            let device = &*self.name;
            tracing::warn!(
                device,
                blocks,
                "the log lets go of what tells which blocks of main are damaged: that is forgotten when the set is closed"
            );
        }
        had
    }
}

impl Bad {
    /// The same with what was known before; some may be in both.
    pub(super) fn with(self, before: Bad) -> Bad {
        match before.blocks {
            0 => self,
            blocks => Bad { blocks: self.blocks.max(blocks), first: self.first.min(before.first) },
        }
    }
}
