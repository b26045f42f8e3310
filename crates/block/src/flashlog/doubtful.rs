//! Blocks of a backup whose checksums were damaged, or could not be read: nobody knows whether they are as they were written. Where the others of
//! their group get a new checksum they have [none](no_sum), on the backup: so they count as damaged for whoever reads it, and get nowhere, until
//! they are written or copied anew, or main is found to have the same.

use super::Error;
use super::chunk::no_sum;
use super::damage::bad;
use super::device::Flashlog;
use super::format::{Bad, Damage, Label, Point, Staging, State};
use super::scrub::{Scrub, Scrubbed};
use super::staged::Stager;
use super::staging::Backup;
use super::sums::SumsReader;
use std::collections::BTreeMap;

/// What is known of such blocks since a backup was opened.
#[derive(Default)]
pub(super) struct Doubtful {
    /// Groups that have some.
    groups: BTreeMap<u64, Bad>,
    /// What main's label told of the backup, and what it tells since they were found.
    pub(super) noted: Option<(Bad, Bad)>,
}

impl Doubtful {
    /// A group has these checksums from now on.
    pub(super) fn see(&mut self, group: u64, first: u64, sums: &[u64]) {
        let mut without = (first..).zip(sums).filter(|(_, sum)| **sum == no_sum());
        match without.next() {
            Some((first, _)) => {
                self.groups.insert(group, Bad { blocks: 1 + without.count() as u64, first });
            }
            None => {
                self.groups.remove(&group);
            }
        }
    }

    pub(super) fn all(&self) -> Bad {
        self.groups.values().fold(Bad::default(), |all, of_group| all.and(*of_group))
    }

    /// What main's label is to tell of the backup, which tells this.
    pub(super) fn note(&mut self, told: Bad) -> Bad {
        // They may be some of those that it tells of already.
        let now = told.at_least(self.all());
        // Somebody may have looked since they were noted: what was found is as what was told before.
        let before = self.noted.filter(|(_, last)| *last == told).map_or(told, |(before, _)| before);
        self.noted = Some((before, now));
        now
    }
}

impl Flashlog {
    /// Makes what is staged a backup's next state.
    pub(super) fn commit(
        &self,
        backup: &mut Backup,
        mut stager: Stager,
        to: Point,
        of_log: &Label,
    ) -> Result<(), Error> {
        backup.stage_sums(&mut stager)?;
        self.note_doubtful(backup)?;
        backup.commit(stager, to, of_log)
    }

    /// What was copied is a backup's state.
    pub(super) fn end_copy(&self, backup: &mut Backup) -> Result<(), Error> {
        backup.flush()?;
        // A copy of some of it keeps the rest, and calls that were cut off may have met damage.
        let mut reader = SumsReader::default();
        for group in 0..backup.groups() {
            let sums = reader.read_or_none(backup, group)?;
            let (first, count) = backup.group_blocks(group);
            backup.doubtful.see(group, first, &sums[..count as usize]);
        }
        self.note_doubtful(backup)?;
        Ok(backup.labels.write(|label| (label.state, label.staging) = (State::Open, Staging::default()))?)
    }

    /// Main's label tells of them before they are in a state of the backup: cut off behind that, nobody would.
    pub(super) fn note_doubtful(&self, backup: &mut Backup) -> Result<(), Error> {
        let found = backup.doubtful.all();
        if found.blocks == 0 {
            return Ok(());
        }
        let (device, Bad { blocks, first }) = (backup.labels.device.name(), found);
        tracing::warn!(device, blocks, first, "checksums of a backup are damaged: its blocks have none from now on");
        self.note_damage(|damage| damage.backup = backup.doubtful.note(damage.backup))
    }

    /// A backup is up to date: what main has as well gets its checksum. Those that are left without.
    pub(super) fn settle_doubtful(&self, mut backup: Backup) -> Bad {
        let of = std::mem::take(&mut backup.doubtful);
        let mut left = of.all();
        if left.blocks > 0 {
            match self.compare_doubtful(backup, of.groups.into_keys()) {
                Ok(found) => left = found,
                // Main may be gone. The backup is done.
                Err(error) => {
                    let device = &*self.name;
                    tracing::warn!(device, %error, "a backup whose checksums are damaged could not be compared with main");
                }
            }
        }
        if let Some((before, noted)) = of.noted
            && before.at_least(left) != noted
        {
            let note = |damage: &mut Damage| {
                // Somebody may have looked meanwhile.
                if damage.backup == noted {
                    damage.backup = before.at_least(left);
                }
            };
            if let Err(error) = self.note_damage(note) {
                tracing::warn!(device = &*self.name, %error, "the status tells of more doubtful blocks than there are");
            }
        }
        left
    }

    fn compare_doubtful(&self, backup: Backup, groups: impl Iterator<Item = u64>) -> Result<Bad, Error> {
        let end = self.durable_point()?;
        let behind = self.behind_backup(&backup, end)?;
        // A main that sleeps has not what the backup has from the log.
        self.catch_up()?;
        let mut scrub = Scrub::new(self, backup, behind, end, Scrubbed::default());
        scrub.doubtful(groups)?;
        Ok(bad([&scrub.done.waiting, &scrub.done.doubtful]))
    }
}
