//! Another backup in the place of the one that the set has. Until it has a state, the log is kept for the one of before, and main can be made
//! anew with that; then one label of the log's changes over.
//!
//! What is written meanwhile the log keeps for both, from the earlier one of their states on. How far the copy is only its own label says
//! (*copying*, of no map): it is gone on with if the log still has all that has come since it was begun. If the log gets full before it is
//! done, the one of before goes with it no more in any case: then it is kept for the other one, which lacks what was let go of.

use super::Error;
use super::append::Head;
use super::at::verify_join;
use super::backup::{BackedUp, OF_NO_MAP, Pass, Way, forget_point};
use super::device::{Failure, Flashlog, Side};
use super::format::{Label, Point, Regions, State, Uuid};
use super::staging::Backup;
use super::turns::TurnGuard;

impl Flashlog {
    /// The device of a backup gets something else: if it is the one that the log is kept for, the set has none from here on.
    ///
    /// # Errors
    /// [`Error::Device`]: the log has failed.
    pub fn give_up_backup(&self, name: Uuid) -> Result<(), Error> {
        let mut head = self.head.lock();
        if head.labels.label.backup != name {
            return Ok(());
        }
        (head.keep, head.changed, head.changed_since) = (None, None, Regions::none(self.blocks));
        let applied = self.stages.lock().applied;
        let tail = self.tail(&head, applied);
        let (let_go_of, barrier) = (head.labels.label.tail, head.barrier);
        let written = head.labels.write(|label| {
            (label.tail, label.applied, label.barrier) = (tail, applied, barrier);
            (label.backup, label.backup_sequence, label.has_map) = (Uuid::NONE, 0, false);
        });
        self.is_kept_for_another(head, let_go_of, written)
    }

    /// Brings a backup to a state of the set, and then to the place of another one that has a state and goes with the log. Whether all of it was
    /// copied, or compared. Without another one, or if the log has not all that it needs, nothing is done: there is nothing to be kept.
    pub(super) fn copy_beside(
        &self,
        backup: &mut Backup,
        (done, way): (&mut BackedUp, &mut Way<'_>),
    ) -> Result<bool, Error> {
        let Some(pass) = self.begin_beside(backup)? else { return Ok(false) };
        let is_copying = backup.label().state == State::Copying;
        let is_left =
            if is_copying { backup.label().staging.copied < self.blocks } else { !self.goes_with_log(backup) };
        if is_left {
            let is_known = self.has_true_sums(backup);
            self.copy_changed(backup, pass, (1, is_known), done, way)?;
        }
        done.is_full |= is_copying;
        let end = self.durable_point()?;
        while self.goes_with_log(backup) && backup.label().applied.page < end.page {
            let was = backup.label().applied;
            match self.copy_newest(backup, end, (done, way)) {
                Ok(blocks) => done.blocks += blocks,
                Err(error) if backup.label().state == State::Staged => return Err(error),
                // What was let go of meanwhile may have been overwritten, which looks like damage.
                Err(_) if self.has_let_go_of(was) => break,
                Err(error) if self.gives_up_kept_for(&error, backup)? => break,
                Err(error) if backup.label().state == State::Copying => {
                    let Some(blocks) = self.step_over(backup, end, error, (done, way))? else { break };
                    done.blocks += blocks;
                }
                Err(error) => return Err(error),
            }
            done.steps += 1;
        }
        self.change_over(backup)?;
        Ok(is_copying || is_left)
    }

    /// What is to be copied, if another backup is to be kept until that is done.
    fn begin_beside(&self, backup: &mut Backup) -> Result<Option<Pass>, Error> {
        let now = self.durable_point()?;
        let of_log = {
            let head = self.head.lock();
            let label = head.labels.label.clone();
            let is_kept = head.keep.is_some() && head.changed.is_none() && label.backup != Uuid::NONE;
            if !is_kept || label.backup == backup.label().backup || label.set != backup.label().set {
                return Ok(None);
            }
            label
        };
        if self.kept_damage.lock().is_some() {
            return Ok(None);
        }
        let keep = match self.is_gone_on_with(backup, &of_log, now) {
            true => {
                let (mut head, from) = (self.head.lock(), backup.label().applied);
                if head.changed.is_some() || head.labels.label.tail.page > from.page {
                    return Ok(None);
                }
                // It may be of before the other one's state: the log is kept from there on, for both.
                head.keep = head.keep.map(|keep| if from.page < keep.page { from } else { keep });
                from
            }
            false => {
                self.check_forgotten(backup.label())?;
                forget_point(backup, &of_log)?;
                self.begin_copy(backup, &of_log, now)?;
                now
            }
        };
        let regions = Regions::all(self.blocks).about(keep.page, keep.page);
        Ok(Some(Pass { regions, map: of_log.map, keep, is_beside: true }))
    }

    /// Whether a copy that was cut off can be finished, or the state gone on from that it came to: the log has all that was written since, and
    /// main is the same. (One that was made anew may be at an earlier state.)
    fn is_gone_on_with(&self, backup: &Backup, of_log: &Label, now: Point) -> bool {
        let of = backup.label();
        (of.state != State::Copying || of.map == OF_NO_MAP)
            && (of.log, of.main) == (of_log.log, of_log.main)
            && (of_log.tail.page..=now.page).contains(&of.applied.page)
            && verify_join(&self.rings, of_log, of.applied).is_ok()
            && !self.is_copied_again(backup)
    }

    /// Whether what it has is as of a point of the log, but for what the log has behind that.
    fn goes_with_log(&self, backup: &Backup) -> bool {
        let (of, of_log) = (backup.label(), self.head.lock().labels.label.clone());
        let is_copied = of.state != State::Copying || of.staging.copied == self.blocks;
        is_copied && of.log == of_log.log && of_log.tail.page <= of.applied.page
    }

    /// From now on the log is kept for this backup, and not for the one of before.
    fn change_over(&self, backup: &mut Backup) -> Result<(), Error> {
        let of_log = self.head.lock().labels.label.log;
        if backup.label().log != of_log {
            // It was to be compared, and the log was full meanwhile.
            return Ok(());
        }
        if self.goes_with_log(backup) && backup.label().state == State::Copying {
            self.end_copy(backup)?;
        }
        let Label { state, backup: name, sequence, applied: from, staging, .. } = backup.label().clone();
        let mut head = self.head.lock();
        let (applied, durable) = {
            let stages = self.stages.lock();
            (stages.applied, stages.durable.page)
        };
        let (let_go_of, barrier) = (head.labels.label.tail, head.barrier);
        let written = match &head.changed {
            None if state == State::Open && let_go_of.page <= from.page => {
                head.keep = Some(from);
                let tail = self.tail(&head, applied);
                head.labels.write(|label| {
                    (label.tail, label.applied, label.barrier, label.durable) = (tail, applied, barrier, durable);
                    (label.backup, label.backup_sequence) = (name, sequence);
                })
            }
            changed => {
                let device = backup.labels.device.name();
                tracing::warn!(device, "the log was full: the backup of before does not go with it any more");
                // What was let go of since it has had its state, and what is not copied yet. A map that begins later does not tell that.
                let told = changed.clone().filter(|map| map.from <= from.page);
                let mut map = told.unwrap_or_else(|| Regions::all(self.blocks).about(from.page, head.next.page));
                if state == State::Copying {
                    map.mark(staging.copied, self.blocks - staging.copied);
                }
                let written = head.labels.write_map(&map, |label| (label.backup, label.backup_sequence) = (name, 0));
                head.changed = Some(map);
                written
            }
        };
        head.changed_since = Regions::none(self.blocks);
        self.is_kept_for_another(head, let_go_of, written)
    }

    /// A label says, if it could be written, for which backup the log is kept now; what it let go of with that is room.
    fn is_kept_for_another(
        &self,
        mut head: TurnGuard<'_, Head>,
        let_go_of: Point,
        written: Result<(), crate::Error>,
    ) -> Result<(), Error> {
        let written = head.note(written.map_err(Failure::of(Side::Log)));
        if written.is_ok() {
            self.trim(&head, let_go_of);
        }
        drop(head);
        self.heed(written)?;
        self.forget_dirty();
        Ok(())
    }
}
