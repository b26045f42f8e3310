//! What was found damaged is remembered, on main, until whoever looks again finds it mended: nobody is told that all is well meanwhile.

use super::Error;
use super::catch_up::MainSide;
use super::device::{Failure, Flashlog, Side};
use super::format::{Bad, Damage, State};
use super::scrub::Scrubbed;
use super::stages::Knowledge;
use super::verify::{Verified, verify_backup};
use crate::Device;
use std::sync::Arc;

impl Flashlog {
    /// Reads a backup of this set back, as [`verify_backup`] does, and remembers what is damaged.
    ///
    /// # Errors
    /// As for [`verify_backup`]; a failure of main.
    pub fn verify_backup(&self, device: Arc<dyn Device>) -> Result<Verified, Error> {
        let verified = verify_backup(device)?;
        let bad = verified.damaged.iter().chain(&verified.unknown);
        let backup = Bad { blocks: verified.bad_blocks(), first: bad.map(|range| range.start).min().unwrap_or(0) };
        self.note_damage(|damage| damage.backup = backup)?;
        Ok(verified)
    }

    /// All of main and a backup was compared, but for what is doubtful, or being written. If that was copied while it was forgotten which blocks of
    /// main are damaged (`of_forgotten`), these are the same there: nothing more is known of them.
    pub(super) fn note_scrubbed(&self, done: &Scrubbed, of_forgotten: bool) -> Result<(), Error> {
        let backup = bad([&done.waiting, &done.doubtful]);
        {
            let mut stages = self.stages.lock();
            // A doubtful block may be one of them: the backup's would be right then. So may one that waits: a power cut may take what was written.
            let mut not_compared = done.doubtful.iter().chain(&done.waiting);
            let may_be_one = not_compared.any(|address| *address >= stages.forgotten.first);
            if !of_forgotten && !may_be_one {
                stages.knowledge = Knowledge::All;
            }
        }
        self.note_damage(|damage| damage.backup = backup)?;
        self.note_known_damage()?;
        self.forget_lost_data();
        Ok(())
    }

    /// What the log has was compared with main: of the rest nothing new is known.
    pub(super) fn note_scrubbed_with_log(&self) -> Result<(), Error> {
        self.note_known_damage()?;
        self.forget_lost_data();
        Ok(())
    }

    /// Main's label tells of the blocks that nobody has, as far as it is known now which these are.
    pub(super) fn note_known_damage(&self) -> Result<(), Error> {
        let mut main = self.main_side_at_once();
        self.check_latch().map_err(|Failure { error, .. }| error)?;
        let noted = self.note_known_damage_at(&mut main);
        drop(main);
        Ok(self.heed(noted)?)
    }

    /// The same by whoever has main.
    pub(super) fn note_known_damage_at(&self, main: &mut MainSide) -> Result<(), Failure> {
        let is_mixture = main.labels.label.state == State::CatchingUp;
        self.note_damage_at(main, |damage| {
            let mut stages = self.stages.lock();
            damage.main = stages.bad(is_mixture).within(self.blocks);
            damage.log_tells = damage.main.blocks > 0 && !stages.is_untold;
        })?;
        self.stages.lock().told_bad();
        Ok(())
    }

    /// Main has got something, durably, and is at a state: of what was written anew its label tells no more.
    pub(super) fn tell_less_damage(&self, main: &mut MainSide) -> Result<(), Failure> {
        match main.labels.label.damage.main.blocks {
            0 => Ok(()),
            _ => self.note_known_damage_at(main),
        }
    }

    /// A backup that was compared with all of main has everything as main has it: nobody has anything else that would have to be looked for.
    pub(super) fn note_compared(&self) -> Result<(), Error> {
        {
            let mut stages = self.stages.lock();
            if stages.knowledge != Knowledge::Accepted {
                return Ok(());
            }
            stages.knowledge = Knowledge::All;
        }
        self.note_known_damage()
    }

    /// All data that the log keeps has been read since: what of it is lost is known now as main's damage, or not needed.
    fn forget_lost_data(&self) {
        let mut noted = self.kept_damage.lock();
        if matches!(*noted, Some(Error::Device(_))) {
            *noted = None;
        }
    }

    /// Another backup is made, of which nothing is known.
    pub(super) fn note_new_backup(&self) -> Result<(), Error> {
        self.note_damage(|damage| damage.backup = Bad::default())
    }

    pub(super) fn note_damage(&self, change: impl FnOnce(&mut Damage)) -> Result<(), Error> {
        let mut main = self.main_side_at_once();
        // A main that goes on alone has others who write its labels.
        self.check_latch().map_err(|Failure { error, .. }| error)?;
        let noted = self.note_damage_at(&mut main, change);
        drop(main);
        Ok(self.heed(noted)?)
    }

    /// The same by whoever has main.
    pub(super) fn note_damage_at(&self, main: &mut MainSide, change: impl FnOnce(&mut Damage)) -> Result<(), Failure> {
        let mut damage = main.labels.label.damage;
        change(&mut damage);
        if damage != main.labels.label.damage {
            main.labels.write(|label| label.damage = damage).map_err(Failure::of(Side::Main))?;
            *self.damage.lock() = damage;
        }
        Ok(())
    }
}

pub(super) fn bad<const N: usize>(found: [&[u64]; N]) -> Bad {
    let blocks = found.iter().map(|blocks| blocks.len() as u64).sum();
    Bad { blocks, first: found.into_iter().flatten().min().copied().unwrap_or(0) }
}
