//! Bringing a backup up to date while the set is in use: a full copy first, then of what the log has since the backup's state only the
//! newest version of each block, in the order of addresses.

use super::Error;
use super::device::{Failure, Flashlog};
use super::format::{Fault, Point, Staging, State, Uuid};
use super::ring::Area;
use super::scan::Scan;
use super::staging::Backup;
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use holdfast_integrity::crc64;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Blocks that are copied at once: 1 MiB.
const COPY_BLOCKS: u64 = 256;
/// A full copy notes how far it is each so many blocks: 64 MiB.
const NOTE_BLOCKS: u64 = 64 * COPY_BLOCKS;

/// What a backup did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackedUp {
    /// Everything was copied, or the rest of everything.
    pub is_full: bool,
    /// Blocks copied from the log.
    pub blocks: u64,
    /// States that it went through: more than one if not all had room in the staging area.
    pub steps: u64,
}

/// The newest version of each block in a part of the log: position and checksum.
type Newest = BTreeMap<u64, (u64, u64)>;

impl Flashlog {
    /// Makes a device a backup of this set. What it had is lost; it is no state of the set until [`Flashlog::backup`] is done.
    ///
    /// # Errors
    /// [`Error::TooSmall`]: it takes the set's size and 4 MiB at least; [`Error::Device`].
    pub fn create_backup(&self, device: Arc<dyn Device>, name: Uuid) -> Result<(), Error> {
        Backup::create(device, &self.head.lock().labels.label, name)
    }

    /// Brings a backup to the state of now. The set stays in use. If this is cut off, the backup has a state that there was (after its
    /// first full copy), and the next call goes on.
    ///
    /// # Errors
    /// [`Error`] tells which device failed or is the wrong one. A failure of the backup device does not touch the set.
    pub fn backup(&self, device: Arc<dyn Device>) -> Result<BackedUp, Error> {
        let _writing = self.uses.write(&self.name)?;
        let mut backup = Backup::open(device)?;
        let mut done = BackedUp { is_full: self.begin_backup(&mut backup)?, ..BackedUp::default() };
        if done.is_full {
            self.copy_all(&mut backup)?;
        }
        let end = self.durable_point()?;
        while backup.label().applied.page < end.page {
            let step = self.copy_newest(&mut backup, end);
            // What was overwritten meanwhile looks like damage.
            let is_kept = self.head.lock().keep.is_some();
            match step {
                _ if !is_kept => return Err(Error::Overflowed { device: self.rings.device.name().into() }),
                step => done.blocks += step?,
            }
            done.steps += 1;
            self.head.lock().keep = Some(backup.label().applied);
        }
        if done.is_full {
            backup.flush()?;
            backup.labels.write(|label| (label.state, label.staging) = (State::Open, Staging::default()))?;
        }
        Ok(done)
    }

    /// Everything that was answered up to now is in the log, durably, before this point.
    pub(super) fn durable_point(&self) -> Result<Point, Error> {
        let mut head = self.head.lock();
        let done = self.append(&mut head, true).and_then(|()| self.flush_log(&mut head));
        let next = head.next;
        drop(head);
        Ok(self.watch(done).map(|()| next)?)
    }

    /// Finds out whether the log has what the backup needs. If not, it begins anew, and the log keeps everything from now on.
    fn begin_backup(&self, backup: &mut Backup) -> Result<bool, Error> {
        let from = self.durable_point()?;
        let mut head = self.head.lock();
        let (of_log, of_backup) = (head.labels.label.clone(), backup.label().clone());
        if of_log.set != of_backup.set {
            let device = backup.labels.device.name().into();
            return Err(Error::OtherSet { device, expected: of_log.set, got: of_backup.set });
        }
        let is_kept = head.keep.is_some()
            && of_log.backup == of_backup.backup
            && of_log.log == of_backup.log
            && (of_log.tail.page..=head.next.page).contains(&of_backup.applied.page);
        // A copy has what was not durable yet, which a later opening may not have found in the log.
        let is_of_before = of_backup.state == State::Copying && of_backup.generation != of_log.generation;
        if is_kept && !is_of_before {
            return Ok(of_backup.state == State::Copying);
        }
        // The label first: once a backup counts on the log, the log keeps it.
        head.keep = Some(from);
        let applied = self.stages.lock().applied;
        let written = self.write_points_for(&mut head, applied, of_backup.backup);
        drop(head);
        self.watch(written)?;
        backup.labels.write(|label| {
            label.state = State::Copying;
            (label.applied, label.staging) = (from, Staging::default());
            (label.main, label.log, label.generation) = (of_log.main, of_log.log, of_log.generation);
        })?;
        Ok(true)
    }

    /// Copies all blocks, as they are when it gets there. What is written meanwhile comes from the log.
    fn copy_all(&self, backup: &mut Backup) -> Result<(), Error> {
        let mut bytes = AlignedBuf::zeroed(COPY_BLOCKS as usize * BLOCK_SIZE);
        for first in (backup.label().staging.copied..self.blocks).step_by(COPY_BLOCKS as usize) {
            let count = COPY_BLOCKS.min(self.blocks - first);
            let part = &mut bytes[..count as usize * BLOCK_SIZE];
            self.read(first, &mut [IoSliceMut::new(part)])?;
            backup.write(first, part)?;
            if (first + count).is_multiple_of(NOTE_BLOCKS) {
                backup.flush()?;
                backup.labels.write(|label| label.staging.copied = first + count)?;
            }
        }
        backup.flush()?;
        backup.labels.write(|label| label.staging.copied = self.blocks)?;
        Ok(())
    }

    /// One step: as many pages of the log as have room in the staging area. How many blocks it was.
    fn copy_newest(&self, backup: &mut Backup, end: Point) -> Result<u64, Error> {
        let (newest, to) = self.newest_versions(backup.label().applied, end, backup.staging_blocks())?;
        let is_copying = backup.label().state == State::Copying;
        let mut stager = backup.stager();
        let all: Vec<(u64, (u64, u64))> = newest.into_iter().collect();
        for batch in all.chunks(COPY_BLOCKS as usize) {
            let bytes = self.read_newest(batch)?;
            if is_copying {
                // There is no state yet that it could spoil.
                let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
                let mut at = 0;
                for run in batch.chunk_by(|a, b| a.0 + 1 == b.0) {
                    backup.write(run[0].0, blocks[at..at + run.len()].as_flattened())?;
                    at += run.len();
                }
            } else {
                let sums: Vec<(u64, u64)> = batch.iter().map(|(address, (_, sum))| (*address, *sum)).collect();
                backup.stage(&mut stager, &sums, &bytes)?;
            }
        }
        if is_copying {
            backup.flush()?;
            backup.labels.write(|label| label.applied = to)?;
        } else {
            backup.commit(stager, to)?;
        }
        Ok(all.len() as u64)
    }

    /// What a part of the log comes to: from a point on, up to the end, or up to where the next page would make it more than so many.
    fn newest_versions(&self, from: Point, end: Point, blocks_most: u64) -> Result<(Newest, Point), Error> {
        let label = self.head.lock().labels.label.clone();
        let mut scan = Scan::new(&self.rings, &label, from, false);
        let (mut newest, mut to) = (Newest::new(), from);
        while to.page < end.page {
            let Some(page) = scan.next()? else {
                let (device, block) = (self.rings.device.name().into(), self.rings.block(Area::Meta, to.page));
                let fault = Fault::new("page of the log", format!("page {}", to.page), "another");
                return Err(Error::Damaged { device, block, fault });
            };
            if newest.len() as u64 + page.blocks() > blocks_most {
                break;
            }
            for entry in &page.entries {
                for (index, sum) in (0..).zip(&entry.sums) {
                    newest.insert(entry.first + index, (entry.data + index, *sum));
                }
            }
            to = scan.at;
        }
        Ok((newest, to))
    }

    /// Reads blocks from the log and verifies them.
    fn read_newest(&self, batch: &[(u64, (u64, u64))]) -> Result<AlignedBuf, Error> {
        let mut bytes = AlignedBuf::zeroed(batch.len() * BLOCK_SIZE);
        let (mut blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        for run in batch.chunk_by(|a, b| a.1.0 + 1 == b.1.0) {
            let (now, later) = blocks.split_at_mut(run.len());
            blocks = later;
            self.rings.read(Area::Data, run[0].1.0, now.as_flattened_mut())?;
            for (block, (address, (position, sum))) in now.iter_mut().zip(run) {
                if crc64(block) != *sum {
                    self.make_good(block, *address, *sum, *position).map_err(|Failure { error, .. }| error)?;
                }
            }
        }
        Ok(bytes)
    }
}
