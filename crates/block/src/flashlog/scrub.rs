//! Main and backup compared while the set is in use: a block that is damaged on one is made good from the other, or from the log.

use super::Error;
use super::at::{Behind, Kept, is_good};
use super::catch_up::MainSide;
use super::chunk::no_sum;
use super::device::{Failure, Flashlog, Side};
use super::format::{GroupSums, Point};
use super::kept::Looked;
use super::newest::{Newest, Since};
use super::ring::Area;
use super::staging::Backup;
use super::sums::SumsReader;
use super::turns::TurnGuard;
use super::verify::read_each;
use crate::{AlignedBuf, BLOCK_SIZE, Device, Operation};
use holdfast_integrity::crc64;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// What a comparison of main and backup has shown, by address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Blocks compared.
    pub blocks: u64,
    /// They were damaged on main, and are good again.
    pub main_repaired: Vec<u64>,
    /// They were damaged on the backup, and are good again.
    pub backup_repaired: Vec<u64>,
    /// They are damaged on the backup. They have been written since its state, so that the next backup replaces them.
    pub waiting: Vec<u64>,
    /// They are damaged on main, and nobody has them as they were. Reading them fails until they are written.
    pub lost: Vec<u64>,
    /// Their checksums on the backup were damaged, now or before, and main has something else than the backup, or is known not to have them as they
    /// were, or one of the two cannot be read: nobody knows what is right. The backup's count as damaged, and main's stay what they are.
    pub doubtful: Vec<u64>,
    /// They were damaged in the log, where an earlier version of them may have been, and are good again.
    pub log_repaired: Vec<u64>,
    /// They are damaged in the log, and main has not the same. Unless they are [lost](Scrubbed::lost), there is a later version of them, and
    /// only states in between cannot be gone back to.
    pub log_damaged: Vec<u64>,
    /// Blocks of main that nobody has a checksum of: without a backup, all that the log does not have.
    pub unverified: u64,
}

impl Scrubbed {
    /// Nothing is damaged any more.
    pub fn is_good(&self) -> bool {
        [&self.waiting, &self.lost, &self.doubtful, &self.log_damaged].iter().all(|bad| bad.is_empty())
    }
}

impl Scrubbed {
    /// What the log has been found to have.
    pub(super) fn of_log(looked: &Looked) -> Scrubbed {
        let log_damaged = looked.lost.iter().map(|kept| kept.address).collect();
        Scrubbed { log_repaired: looked.mended.clone(), log_damaged, ..Scrubbed::default() }
    }
}

impl Flashlog {
    /// Compares main with a backup, block by block, and makes good what is damaged on one of them. The set stays in use. What was written
    /// since the backup's state is compared with the log instead, as far as main has it, and what the log has of it is read and made good
    /// as well. In memory: as for a [`Past`](super::Past).
    ///
    /// # Errors
    /// [`Error`] tells which device cannot be used, and why; [`Error::Gap`] if the backup is to be brought up to date before. Damaged
    /// blocks are no error, but [`Error::Damaged`] is one if it is pages of the log: the status says so, and the next backup compares everything.
    pub fn scrub(&self, device: Arc<dyn Device>) -> Result<Scrubbed, Error> {
        let _writing = self.uses.write(&self.name)?;
        let losses = self.uses.losses();
        self.latch.check(&self.name, Operation::Write, None, 0)?;
        let set = self.head.lock().labels.label.set;
        let backup = Backup::open_of(device, set)?;
        self.check_of_forgotten(&backup)?;
        let end = self.durable_point()?;
        let behind = self.behind_backup(&backup, end)?;
        backup.check_size(self.blocks)?;
        // Before main gets it: what the log has lost the backup may have.
        let mut looked = Looked::default();
        let applied = self.stages.lock().applied;
        if applied.page < backup.point().page {
            match self.look_at_log(applied, backup.point(), Some(&backup)) {
                // Main has got it meanwhile.
                Err(Error::LetGo { .. }) => {}
                found => looked.mended = found?.mended,
            }
        }
        looked.add(self.look_at_log(backup.point(), end, Some(&backup))?);
        self.catch_up()?;
        let mut scrub = Scrub::new(self, backup, behind, end, Scrubbed::of_log(&looked));
        match scrub.all() {
            Ok(()) => {
                self.note_scrubbed(&scrub.done, scrub.backup.is_of_forgotten())?;
                Ok(scrub.done)
            }
            // What was let go of may have been overwritten, which looks like damage.
            Err(Stopped::Other(_)) if self.uses.losses() != losses => {
                Err(Error::LetGo { device: self.rings.device.name().into() })
            }
            Err(Stopped::Other(error)) => Err(error),
            Err(Stopped::Failed(failure)) => Ok(self.heed(Err(failure))?),
        }
    }

    /// What the log has behind a backup's state, durably up to a point.
    pub(super) fn behind_backup(&self, backup: &Backup, end: Point) -> Result<Behind, Error> {
        let head = self.head.lock();
        if head.keep.is_none() {
            let (device, first) = (backup.labels.device.name().into(), head.labels.label.tail.page);
            return Err(Error::Gap { device, first, needed: backup.point().page });
        }
        Behind::open(backup, &head.labels, end)
    }
}

/// Why it ended early.
pub(super) enum Stopped {
    /// Writing to a device of the set failed, which the set must know.
    Failed(Failure),
    Other(Error),
}

impl<E: Into<Error>> From<E> for Stopped {
    fn from(error: E) -> Stopped {
        Stopped::Other(error.into())
    }
}

pub(super) struct Scrub<'a> {
    set: &'a Flashlog,
    backup: Backup,
    behind: Behind,
    /// What the log has behind the backup's state.
    newest: Newest,
    /// What it got since this began, up to a point.
    since: Since,
    to: Point,
    /// Checksums that blocks of a group get, as they had none, and main has them as well; and that those have none which an older program marked.
    sums: BTreeMap<u64, u64>,
    pub(super) done: Scrubbed,
}

pub(super) type Block = [u8; BLOCK_SIZE];

/// A block as it is while nobody writes to main.
struct Seen<'a> {
    _main_side: TurnGuard<'a, MainSide>,
    /// The newest version that the log has behind the backup's state.
    in_log: Option<Kept>,
    is_coming: bool,
    is_on_the_way: bool,
    main: Option<Box<Block>>,
    backup: Option<Box<Block>>,
}

impl<'a> Scrub<'a> {
    /// Of a backup, and of the log behind it up to a point.
    pub(super) fn new(set: &'a Flashlog, backup: Backup, behind: Behind, to: Point, done: Scrubbed) -> Scrub<'a> {
        let (newest, since, sums) = (Newest::default(), Since::default(), BTreeMap::new());
        Scrub { set, backup, behind, newest, since, to, sums, done }
    }

    fn all(&mut self) -> Result<(), Stopped> {
        self.newest = self.behind.newest(self.to)?;
        let mut reader = SumsReader::default();
        for group in 0..self.backup.groups() {
            let sums = reader.read_or_none(&self.backup, group)?;
            self.group(group, &sums)?;
        }
        Ok(self.backup.flush()?)
    }

    /// Of these groups only the blocks that have no checksum, and nothing on main.
    pub(super) fn doubtful(&mut self, groups: impl Iterator<Item = u64>) -> Result<(), Error> {
        self.newest = self.behind.newest(self.to)?;
        let mut reader = SumsReader::default();
        for group in groups {
            let sums = reader.read_or_none(&self.backup, group)?;
            let (first, count) = self.backup.group_blocks(group);
            for (address, sum) in (first..first + count).zip(sums.iter()) {
                if *sum == no_sum() {
                    let seen = self.see(address)?;
                    self.doubt(address, &seen);
                }
            }
            self.write_sums()?;
        }
        Ok(self.backup.flush()?)
    }

    fn group(&mut self, group: u64, sums: &GroupSums) -> Result<(), Stopped> {
        let (first, count) = self.backup.group_blocks(group);
        let read = |device: &dyn Device| {
            let mut bytes = AlignedBuf::zeroed(count as usize * BLOCK_SIZE);
            let could = read_each(device, first, &mut bytes);
            let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
            blocks.iter().zip(could).map(|(block, could)| could.then(|| crc64(block))).collect::<Vec<Option<u64>>>()
        };
        let (on_main, on_backup) = (read(&*self.set.main), read(&*self.backup.labels.device));
        for (at, address) in (0..).zip(first..first + count) {
            let sum = sums[at];
            let expected = self.in_log(address).map_or(sum, |kept| kept.sum);
            if on_backup[at] != Some(sum) || on_main[at] != Some(expected) || self.set.is_known_bad(address) {
                self.judge(address, sum)?;
            }
            self.done.blocks += 1;
        }
        Ok(self.write_sums()?)
    }

    /// Where the checksums of the group are damaged, all others have none from then on; if there is nothing to write, they stay damaged, which is the
    /// same to whoever reads them.
    fn write_sums(&mut self) -> Result<(), crate::Error> {
        let sums = std::mem::take(&mut self.sums);
        self.backup.write_sums(&sums)
    }

    /// The newest version of a block that the log has behind the backup's state.
    fn in_log(&self, address: u64) -> Option<Kept> {
        self.since.get(address).or_else(|| self.newest.get(address))
    }

    fn see(&mut self, address: u64) -> Result<Seen<'a>, Error> {
        let set = self.set;
        let _main_side = set.main_side_at_once();
        // A main that goes on alone has newer blocks than the log.
        set.latch.check(&set.name, Operation::Read, Some(address), BLOCK_SIZE as u64)?;
        let (durable, is_coming, is_on_the_way) = {
            let stages = set.stages.lock();
            (stages.durable, stages.find(address).is_some(), !stages.is_durable(address))
        };
        // Main has nothing that is not in the log, durably.
        self.behind.each_entry(self.to, durable, |entry| self.since.add(entry))?;
        self.to = durable;
        let in_log = self.in_log(address);
        let main = read_block(&*set.main, address);
        let backup = read_block(&*self.backup.labels.device, address);
        Ok(Seen { _main_side, in_log, is_coming, is_on_the_way, main, backup })
    }

    /// A block of which the backup has no checksum, and gets one only if main has the same. What is newer than the backup proves nothing, nor does
    /// what main is known not to have as it was.
    fn doubt(&mut self, address: u64, seen: &Seen<'_>) {
        match &seen.backup {
            _ if seen.in_log.is_some() || seen.is_coming => self.done.waiting.push(address),
            Some(block) if seen.main == seen.backup && !self.set.is_known_bad(address) => {
                self.sums.insert(address, crc64(&block[..]));
            }
            _ => self.done.doubtful.push(address),
        }
    }

    /// Looks at one block again while nobody writes to main, and makes it good.
    fn judge(&mut self, address: u64, sum: u64) -> Result<(), Stopped> {
        let (set, seen) = (self.set, self.see(address)?);
        let Seen { in_log, is_coming, is_on_the_way, ref main, ref backup, .. } = seen;
        // Where it found no match, an older program's scrub wrote what the backup's block has with all bits flipped.
        let is_flipped = has_sum(backup, !sum);
        if sum == no_sum() || is_flipped {
            if is_flipped {
                self.sums.insert(address, no_sum());
            }
            self.doubt(address, &seen);
            if in_log.is_none() {
                // There is nothing else that main could be compared with.
                return Ok(());
            }
        } else if !has_sum(backup, sum) {
            match mended(backup, sum).or_else(|| main.clone().filter(|block| crc64(&block[..]) == sum)) {
                Some(block) => {
                    let aligned = AlignedBuf::copy_of(&*block);
                    self.backup.labels.device.write(address, &[IoSlice::new(&aligned)])?;
                    self.done.backup_repaired.push(address);
                }
                None if in_log.is_some() || is_coming => self.done.waiting.push(address),
                // Main's is told below.
                None => {}
            }
        }
        let expected = in_log.map_or(sum, |kept| kept.sum);
        if is_on_the_way && !has_sum(main, expected) {
            // A power cut may take what comes.
            set.stages.lock().rewrite_untold(address);
        }
        if is_coming {
            return Ok(());
        }
        if has_sum(main, expected) {
            set.stages.lock().known_bad.remove(&address);
            return Ok(());
        }
        let from_log = || in_log.and_then(|kept| mended(&self.read_log(kept), expected));
        let from_backup = || mended(backup, expected);
        match mended(main, expected).or_else(from_log).or_else(from_backup) {
            Some(block) => {
                let aligned = AlignedBuf::copy_of(&*block);
                let written = set.main.write(address, &[IoSlice::new(&aligned)]).and_then(|()| set.main.flush());
                written.map_err(|error| Stopped::Failed(Failure { side: Side::Main, error }))?;
                set.stages.lock().known_bad.remove(&address);
                self.done.main_repaired.push(address);
            }
            None => {
                let got = main.as_ref().map_or(0, |block| crc64(&block[..]));
                let mut stages = set.stages.lock();
                if stages.find(address).is_none() {
                    stages.lose_untold(address, (expected, got));
                    self.done.lost.push(address);
                }
            }
        }
        Ok(())
    }

    fn read_log(&self, kept: Kept) -> Option<Box<Block>> {
        let mut block = Box::new([0; BLOCK_SIZE]);
        match kept.position() {
            Some(position) => self.set.rings.read(Area::Data, position, &mut block[..]).ok().map(|()| block),
            None => Some(block),
        }
    }
}

pub(super) fn read_block(device: &dyn Device, address: u64) -> Option<Box<Block>> {
    let mut block = Box::new([0; BLOCK_SIZE]);
    device.read(address, &mut [IoSliceMut::new(&mut block[..])]).ok().map(|()| block)
}

pub(super) fn has_sum(block: &Option<Box<Block>>, sum: u64) -> bool {
    block.as_ref().is_some_and(|block| crc64(&block[..]) == sum)
}

/// A block with this checksum, if need be with one bit flipped back.
pub(super) fn mended(block: &Option<Box<Block>>, sum: u64) -> Option<Box<Block>> {
    let mut block = block.clone()?;
    is_good(&mut block, sum).then_some(block)
}
