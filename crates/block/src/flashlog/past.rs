//! The set as it was at a barrier, read-only: of each block what the log has up to there, and for the others the backup.

use super::Error;
use super::at::{At, Barrier, Behind, is_good};
use super::chunk::zero_sum;
use super::device::Flashlog;
use super::format::Role;
use super::labels::Labelled;
use super::newest::Newest;
use super::ring::{Area, Rings};
use super::staging::Backup;
use super::sums::{Base, Based};
use crate::device::scatter;
use crate::{AlignedBuf, BLOCK_SIZE, Device, Operation, check_request};
use holdfast_integrity::crc64;
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A state that a set had, as a device that cannot be written. It keeps 24 bytes in memory for each block that was written between the
/// backup's state and this one (up to twice as much while it is opened), so 6 MiB for each GiB of a log at most, and some 30 for each
/// run of zeros, however long.
/// It is as large as the set is now, with zeros where that had nothing then.
pub struct Past {
    name: Arc<str>,
    blocks: u64,
    base: Base,
    /// What the log has up to the barrier; none of the backup's own state, for which it need not be there.
    log: Option<InLog>,
    barrier: Option<Barrier>,
    /// Of a set in use.
    held: Option<Hold>,
}

/// The newest version of each block that a log has of a state, by address.
struct InLog {
    rings: Rings,
    newest: Newest,
}

/// A block of a state.
#[derive(Clone, Copy)]
struct Place {
    is_in_log: bool,
    /// Of the device that it is on; none if it is zeros.
    block: Option<u64>,
    sum: Option<u64>,
}

impl Past {
    /// Opens a state of a set that is not in use. Main is not needed; nothing is written to the devices.
    ///
    /// # Errors
    /// [`Error`] tells which device cannot be used, and why; [`Error::TooEarly`] if the backup has gone past that state.
    pub fn open(backup: Arc<dyn Device>, log: Arc<dyn Device>, at: At) -> Result<Past, Error> {
        let backup = Backup::look(backup)?;
        let log = Labelled::read(log, Role::Log)?;
        let behind = Behind::closed(&backup, &log)?;
        Past::of(backup, behind, at, None)
    }

    /// Opens what a backup has by itself, for when its log is lost. Nothing is written.
    ///
    /// # Errors
    /// [`Error::Incomplete`]: it has no state. [`Error`] tells what else is wrong with it.
    pub fn of_backup(backup: Arc<dyn Device>) -> Result<Past, Error> {
        let backup = Backup::look(backup)?;
        backup.check_complete()?;
        Ok(Past {
            name: format!("{} without a log", backup.labels.device.name()).into(),
            blocks: backup.label().blocks,
            base: Base::of(backup)?,
            log: None,
            barrier: None,
            held: None,
        })
    }

    fn of(backup: Backup, behind: Behind, at: At, held: Option<Hold>) -> Result<Past, Error> {
        // The set may have become larger since. What it has there is in the log, or was never written.
        let blocks = behind.blocks().max(backup.label().blocks);
        let (point, barrier) = behind.choose(&behind.survey()?, at)?;
        let newest = behind.newest(point)?;
        let state = match &barrier {
            Some(barrier) => barrier.to_string(),
            None => format!("page {}", point.page),
        };
        Ok(Past {
            name: format!("{} with {} at {state}", backup.labels.device.name(), behind.rings.device.name()).into(),
            blocks,
            base: Base::of(backup)?,
            log: Some(InLog { rings: behind.rings, newest }),
            barrier,
            held,
        })
    }

    /// The barrier, if the state is one.
    pub fn barrier(&self) -> Option<Barrier> {
        self.barrier
    }

    /// Whether it is what a backup has by itself.
    pub fn is_without_log(&self) -> bool {
        self.log.is_none()
    }

    /// Blocks that are read from the log.
    pub fn blocks_in_log(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.newest.blocks())
    }

    fn places(&self, first: u64, count: u64) -> Result<Vec<Place>, crate::Error> {
        let on_backup = self.base.backup.label().blocks.saturating_sub(first).min(count);
        let mut based = self.base.find(first, on_backup)?;
        based.resize(count as usize, Based { block: None, sum: Some(zero_sum()) });
        let in_log = |address: u64| {
            let log = self.log.as_ref()?;
            let kept = log.newest.get(address)?;
            let block = kept.position().map(|position| log.rings.block(Area::Data, position));
            Some(Place { is_in_log: true, block, sum: Some(kept.sum) })
        };
        let place = |(address, based): (u64, Based)| {
            in_log(address).unwrap_or(Place { is_in_log: false, block: based.block, sum: based.sum })
        };
        Ok((first..).zip(based).map(place).collect())
    }

    fn fill(&self, first: u64, bytes: &mut AlignedBuf) -> Result<(), crate::Error> {
        let (mut blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        let places = self.places(first, blocks.len() as u64)?;
        let are_neighbours = |a: &Place, b: &Place| match (a.block, b.block) {
            (Some(of_a), Some(of_b)) => a.is_in_log == b.is_in_log && of_a + 1 == of_b,
            (of_a, of_b) => of_a == of_b,
        };
        for run in places.chunk_by(are_neighbours) {
            let (now, later) = blocks.split_at_mut(run.len());
            blocks = later;
            match run[0].block {
                Some(block) => {
                    self.device(run[0].is_in_log).read(block, &mut [IoSliceMut::new(now.as_flattened_mut())])?;
                }
                None => now.as_flattened_mut().fill(0),
            }
            for (block, place) in now.iter_mut().zip(run) {
                self.verify(block, place)?;
            }
        }
        Ok(())
    }

    fn device(&self, is_log: bool) -> &dyn Device {
        match &self.log {
            Some(log) if is_log => &*log.rings.device,
            _ => &*self.base.backup.labels.device,
        }
    }

    /// A block whose checksum is not known counts as damaged.
    fn verify(&self, block: &mut [u8; BLOCK_SIZE], place: &Place) -> Result<(), crate::Error> {
        if place.sum.is_some_and(|sum| is_good(block, sum)) {
            return Ok(());
        }
        if self.held.as_ref().is_some_and(Hold::is_lost) {
            let reason = "the log was full and has let go of this state";
            return Err(crate::Error::Unsuitable { device: Arc::clone(&self.name), reason });
        }
        let (device, first) = (self.device(place.is_in_log).name().into(), place.block.unwrap_or_default());
        let (expected, got) = (place.sum.unwrap_or_default(), crc64(block));
        Err(crate::Error::Damaged { device, operation: Operation::Read, first, expected, got })
    }

    fn refuse(&self, operation: Operation, first: Option<u64>, length_bytes: u64) -> crate::Error {
        crate::Error::ReadOnly { device: Arc::clone(&self.name), operation, first, length_bytes }
    }
}

impl Device for Past {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let count = check_request(&self.name, Operation::Read, self.blocks, first, length_bytes)?;
        let mut bytes = AlignedBuf::zeroed(count as usize * BLOCK_SIZE);
        self.fill(first, &mut bytes)?;
        scatter(&bytes, bufs);
        Ok(())
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        Err(self.refuse(Operation::Write, Some(first), bufs.iter().map(|buf| buf.len() as u64).sum()))
    }

    /// There is nothing to be made durable.
    fn flush(&self) -> Result<(), crate::Error> {
        Ok(())
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), crate::Error> {
        Err(self.refuse(Operation::Discard, Some(first), count.saturating_mul(BLOCK_SIZE as u64)))
    }
}

impl Flashlog {
    /// The barriers between a backup's state and now, in order.
    ///
    /// # Errors
    /// As for [`barriers`](super::barriers); [`Error::Busy`] while a backup is being made.
    pub fn barriers(&self, backup: Arc<dyn Device>) -> Result<Vec<Barrier>, Error> {
        let (_backup, behind, hold) = self.behind(backup, At::Now)?;
        let survey = behind.survey().map_err(|error| self.or_let_go(hold.losses, error))?;
        match survey.damage {
            Some(damage) => Err(self.or_let_go(hold.losses, damage)),
            None => Ok(survey.barriers.into_iter().map(|(barrier, _)| barrier).collect()),
        }
    }

    /// A state of this set while it is in use. As long as it is there, no backup is made. If the log gets full meanwhile, the set goes on:
    /// what the log lets go of then cannot be read from the state any more, which its errors say.
    ///
    /// # Errors
    /// As for [`Past::open`]; [`Error::Busy`] while a backup is being made.
    pub fn past(&self, backup: Arc<dyn Device>, at: At) -> Result<Past, Error> {
        let (backup, behind, hold) = self.behind(backup, at)?;
        let losses = hold.losses;
        // What was let go of meanwhile may have been overwritten, which looks like damage.
        Past::of(backup, behind, at, Some(hold)).map_err(|error| self.or_let_go(losses, error))
    }

    fn or_let_go(&self, losses: u64, error: Error) -> Error {
        match self.uses.losses() == losses {
            true => error,
            false => Error::LetGo { device: self.rings.device.name().into() },
        }
    }

    fn behind(&self, backup: Arc<dyn Device>, at: At) -> Result<(Backup, Behind, Hold), Error> {
        let hold = self.uses.read(&self.name)?;
        let backup = Backup::look(backup)?;
        let end = match at {
            At::Now => self.durable_point()?,
            _ => self.stages.lock().durable,
        };
        let head = self.head.lock();
        let behind = Behind::open(&backup, &head.labels, end)?;
        if head.keep.is_none() {
            let (device, first) = (backup.labels.device.name().into(), head.labels.label.tail.page);
            return Err(Error::Gap { device, first, needed: backup.point().page });
        }
        Ok((backup, behind, hold))
    }
}

/// Who uses the backup of a set, and what the log has for it: any number of readers of states, or one who makes a backup.
#[derive(Default)]
pub(super) struct Uses {
    now: Mutex<Use>,
    /// How often the log has let go of what a backup did not have.
    losses: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Use {
    #[default]
    None,
    Readers(u64),
    Backup,
}

/// As long as it is there, the backup stays as it is.
pub(super) struct Hold {
    uses: Arc<Uses>,
    losses: u64,
}

/// As long as it is there, nobody else uses the backup.
pub(super) struct Writing(Arc<Uses>);

impl Uses {
    /// Somebody reads.
    pub(super) fn read(self: &Arc<Uses>, device: &Arc<str>) -> Result<Hold, Error> {
        let mut now = self.now.lock();
        *now = match *now {
            Use::None => Use::Readers(1),
            Use::Readers(count) => Use::Readers(count + 1),
            Use::Backup => return Err(Error::Busy { device: Arc::clone(device), with: "a backup" }),
        };
        Ok(Hold { uses: Arc::clone(self), losses: self.losses() })
    }

    /// Somebody makes a backup.
    pub(super) fn write(self: &Arc<Uses>, device: &Arc<str>) -> Result<Writing, Error> {
        let mut now = self.now.lock();
        let with = match *now {
            Use::None => {
                *now = Use::Backup;
                return Ok(Writing(Arc::clone(self)));
            }
            Use::Readers(_) => "a state that is being read",
            Use::Backup => "another backup",
        };
        Err(Error::Busy { device: Arc::clone(device), with })
    }

    /// How often the log has let go of what the backup did not have.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// The log lets go of what the backup does not have. Before it is written over.
    pub(super) fn lose(&self) {
        self.losses.fetch_add(1, Ordering::Release);
    }
}

impl Hold {
    fn is_lost(&self) -> bool {
        self.uses.losses() != self.losses
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut now = self.uses.now.lock();
        *now = match *now {
            Use::Readers(count) if count > 1 => Use::Readers(count - 1),
            _ => Use::None,
        };
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        *self.0.now.lock() = Use::None;
    }
}
