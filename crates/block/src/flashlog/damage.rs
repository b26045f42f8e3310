//! What was found damaged is remembered, on main, until whoever looks again finds it mended: nobody is told that all is well meanwhile.

use super::Error;
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
        self.note_damage(|damage| *damage = Damage { main, backup })
    }

    /// What the log has was compared with main: of the rest nothing new is known.
    pub(super) fn note_scrubbed_with_log(&self, done: &Scrubbed) -> Result<(), Error> {
        self.note_lost(&done.lost)
    }

    /// Of these blocks of main the log has nothing else, and neither is as it was.
    pub(super) fn note_lost(&self, lost: &[u64]) -> Result<(), Error> {
        if lost.is_empty() {
            return Ok(());
        }
        let found = bad([lost]);
        self.note_damage(|damage| damage.main = found.with(damage.main))
    }

    /// Another backup is made, of which nothing is known.
    pub(super) fn note_new_backup(&self) -> Result<(), Error> {
        self.note_damage(|damage| damage.backup = Bad::default())
    }

    fn note_damage(&self, change: impl FnOnce(&mut Damage)) -> Result<(), Error> {
        let mut main = self.main_side_at_once();
        let mut damage = main.labels.label.damage;
        change(&mut damage);
        if damage == main.labels.label.damage {
            return Ok(());
        }
        // A main that goes on alone has others who write its labels.
        self.check_latch().map_err(|Failure { error, .. }| error)?;
        let written = main.labels.write(|label| label.damage = damage).map_err(Failure::of(Side::Main));
        drop(main);
        self.heed(written)?;
        *self.damage.lock() = damage;
        Ok(())
    }
}

fn bad<const N: usize>(found: [&[u64]; N]) -> Bad {
    let blocks = found.iter().map(|blocks| blocks.len() as u64).sum();
    Bad { blocks, first: found.into_iter().flatten().min().copied().unwrap_or(0) }
}

impl Bad {
    /// The same with what was known before; some may be in both.
    fn with(self, before: Bad) -> Bad {
        match before.blocks {
            0 => self,
            blocks => Bad { blocks: self.blocks.max(blocks), first: self.first.min(before.first) },
        }
    }
}
