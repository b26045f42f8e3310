//! What was found damaged is remembered, on main, until whoever looks again finds it mended: nobody is told that all is well meanwhile.

use super::Error;
use super::catch_up::MainSide;
use super::device::{Failure, Flashlog, Side};
use super::format::{Bad, Damage};
use super::scrub::Scrubbed;
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

    /// All of main and a backup was compared.
    pub(super) fn note_scrubbed(&self, done: &Scrubbed) -> Result<(), Error> {
        let main = bad([&done.lost]);
        let backup = bad([&done.waiting, &done.doubtful]);
        self.note_damage(|damage| *damage = Damage { main, backup })?;
        self.stages.lock().has_forgotten = false;
        self.forget_lost_data();
        Ok(())
    }

    /// What the log has was compared with main: of the rest nothing new is known.
    pub(super) fn note_scrubbed_with_log(&self, done: &Scrubbed) -> Result<(), Error> {
        self.note_lost(&done.lost)?;
        self.forget_lost_data();
        Ok(())
    }

    /// Of these blocks of main the log has nothing else, and neither is as it was.
    pub(super) fn note_lost(&self, lost: &[u64]) -> Result<(), Error> {
        if lost.is_empty() {
            return Ok(());
        }
        let found = bad([lost]);
        self.note_damage(|damage| damage.main = found.with(damage.main))
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

    fn note_damage(&self, change: impl FnOnce(&mut Damage)) -> Result<(), Error> {
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
