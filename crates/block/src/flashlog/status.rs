//! How a set that is in use is doing.

use super::alone::Alone;
use super::append::Head;
use super::device::{Flashlog, Mode, Options};
use super::format::{Damage, Role, Uuid};
use super::patience::Trouble;
use super::stages::Knowledge;
use crate::Error;
use std::time::Duration;

/// So long the status is asked for between those who write, before it waits its turn.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a set is doing at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// What an answered flush says.
    pub mode: Mode,
    /// The failure after which no changes are taken, if there was one.
    pub failure: Option<Error>,
    /// The set.
    pub set: Uuid,
    /// Its main device.
    pub main: Uuid,
    /// Its log device.
    pub log: Uuid,
    /// Goes up with every opening, closing and change of the set.
    pub generation: u64,
    /// Blocks of the set's device.
    pub blocks: u64,
    /// Blocks that are not on main for certain, as [`Flashlog::behind_blocks`] counts them.
    pub behind_blocks: u64,
    /// Blocks of data in the log that it may not let go of, and how many it has room for.
    pub log_blocks: (u64, u64),
    /// The same of pages.
    pub log_pages: (u64, u64),
    /// The backup for which the log is kept.
    pub backup: Option<Uuid>,
    /// Blocks written to the log since that backup's state, those that were written several times counted several times.
    pub since_backup_blocks: Option<u64>,
    /// Blocks that this backup may lack and that are not in the log any more, which was full, or is new: the next backup copies them. Never
    /// none where there may be such: until that backup, backup and log are not the set.
    pub changed_blocks: u64,
    /// Number of the next barrier.
    pub barrier: u64,
    /// What was found damaged, and not found mended since.
    pub damage: Damage,
    /// Which blocks of main that are is not known of all, or only until the set is closed.
    pub forgets_damage: bool,
    /// Pages that the log keeps for the backup are damaged: with what is left, main can be made anew only as it was in front of them. The next
    /// backup compares everything.
    pub log_damage: Option<super::Error>,
    /// What has befallen the devices, if they are watched.
    pub troubles: Vec<(Role, Trouble)>,
}

impl Flashlog {
    /// How the set is doing now. Waits for what is being written to the log; if that is full, until main has caught up. While a device that
    /// has gone is waited for, what was known last, with what is known now of the devices.
    pub fn status(&self) -> Status {
        let timer = &self.options.timer;
        let until = timer.now() + PATIENCE;
        let status = loop {
            let ticket = timer.ticket();
            if self.options.watch.as_ref().is_some_and(|watch| watch.is_waiting())
                && let Some(last) = self.last_status.lock().clone()
            {
                let failure = self.latch.cause().cloned();
                return Status { failure, behind_blocks: self.behind_blocks(), troubles: self.troubles(), ..last };
            }
            if let Some(head) = self.head.try_lock() {
                break self.status_at(&head);
            }
            if timer.now() >= until {
                break self.status_at(&self.head.lock());
            }
            timer.wait(ticket, Some(until));
        };
        *self.last_status.lock() = Some(status.clone());
        status
    }

    fn troubles(&self) -> Vec<(Role, Trouble)> {
        self.options.watch.as_ref().map_or_else(Vec::new, |watch| watch.troubles())
    }

    fn status_at(&self, head: &Head) -> Status {
        let (label, areas, next) = (&head.labels.label, self.rings.areas, head.next);
        let applied = self.stages.lock().applied;
        let tail = self.tail(head, applied);
        // One lock after the other.
        let damage = *self.damage.lock();
        let forgets_damage = self.forgets_damage();
        let log_damage = self.kept_damage.lock().clone();
        Status {
            mode: self.options.mode,
            failure: self.latch.cause().cloned(),
            set: label.set,
            main: label.main,
            log: label.log,
            generation: label.generation,
            blocks: self.blocks,
            behind_blocks: self.behind_blocks(),
            log_blocks: (next.data - tail.data, areas.data_blocks),
            log_pages: (next.page - tail.page, areas.meta_blocks),
            backup: (label.backup != Uuid::NONE).then_some(label.backup),
            since_backup_blocks: head.keep.map(|keep| next.data - keep.data),
            changed_blocks: head.changed.as_ref().map_or(0, |changed| changed.marked_blocks().max(1)),
            barrier: head.barrier,
            damage,
            forgets_damage,
            log_damage,
            troubles: self.troubles(),
        }
    }
}

impl Alone {
    /// How main is doing without its log.
    pub(super) fn status(&self, options: &Options) -> Status {
        let marks = self.marks.lock();
        let label = &marks.labels.label;
        Status {
            mode: options.mode,
            failure: None,
            set: label.set,
            main: label.main,
            log: label.log,
            generation: label.generation,
            blocks: self.blocks,
            behind_blocks: 0,
            log_blocks: (0, 0),
            log_pages: (0, 0),
            backup: None,
            since_backup_blocks: None,
            changed_blocks: 0,
            barrier: 0,
            damage: label.damage,
            forgets_damage: self.knowledge == Knowledge::Forgotten || !self.known_bad.lock().is_empty(),
            log_damage: None,
            troubles: options.watch.as_ref().map_or_else(Vec::new, |watch| watch.troubles()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flashlog::tests::Unplugged;
    use crate::flashlog::{Create, Options, create};
    use crate::{BLOCK_SIZE, Device, MemoryDevice};
    use std::io::IoSlice;
    use std::sync::Arc;

    #[test]
    fn it_tells_what_is_in_the_log_and_since_which_backup() {
        let [main, log, backup] = [1024, 2048, 2048].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
        create(main.clone(), log.clone(), &Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) })
            .unwrap();
        let options = Options { mode: Mode::Asynchronous, ..Options::default() };
        let (flashlog, _) = Flashlog::open(main.clone(), log.clone(), &options).unwrap();
        let write = |first| {
            flashlog.write(first, &[IoSlice::new(&[7; 10 * BLOCK_SIZE])]).unwrap();
            flashlog.flush().unwrap();
        };
        write(0);
        let status = flashlog.status();
        assert_eq!((status.behind_blocks, status.log_blocks.0, status.log_pages.0), (10, 10, 1));
        assert_eq!((status.set, status.backup, status.since_backup_blocks), (Uuid([1; 16]), None, None));
        flashlog.create_backup(backup.clone(), Uuid([4; 16])).unwrap();
        flashlog.backup(backup).unwrap();
        assert_eq!((flashlog.status().since_backup_blocks, flashlog.status().changed_blocks), (Some(0), 0));
        write(5);
        flashlog.catch_up().unwrap();
        let status = flashlog.status();
        assert_eq!((status.behind_blocks, status.log_blocks.0, status.since_backup_blocks), (0, 10, Some(10)));
        assert_eq!((status.backup, status.failure.is_some()), (Some(Uuid([4; 16])), false));
        drop(flashlog);
        let (flashlog, _) = Flashlog::open(main, Unplugged::after(&log, 8), &options).unwrap();
        while flashlog.flush().and_then(|()| flashlog.write(0, &[IoSlice::new(&[7; BLOCK_SIZE])])).is_ok() {}
        assert!(flashlog.status().failure.is_some());
    }
}
