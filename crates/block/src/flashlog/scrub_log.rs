//! Main verified with what its log still has, without a backup at hand.

use super::at::{Behind, Kept};
use super::device::{Failure, Flashlog, Side};
use super::newest::Since;
use super::ring::Area;
use super::scrub::{Scrubbed, has_sum, mended, read_block};
use super::verify::read_each;
use super::{Error, format::Point};
use crate::{AlignedBuf, BLOCK_SIZE, Operation};
use holdfast_integrity::crc64;
use std::io::IoSlice;

/// Blocks compared at once: 1 MiB.
const BATCH_BLOCKS: usize = 256;

impl Flashlog {
    /// Compares main with the log, as far as that goes back, and makes good what is damaged on main or in the log. Of the other blocks there is no checksum
    /// but a backup's: they are counted as [unverified](Scrubbed::unverified). The set stays in use.
    ///
    /// # Errors
    /// [`Error::LetGo`] if so much was written meanwhile that the log has been written over; [`Error`] tells which device failed. Damaged
    /// blocks are no error, pages of the log are one as for [`Flashlog::scrub`].
    pub fn scrub_with_log(&self) -> Result<Scrubbed, Error> {
        let _writing = self.uses.write(&self.name)?;
        self.latch.check(&self.name, Operation::Write, None, 0)?;
        let to = self.durable_point()?;
        let (behind, from) = {
            let head = self.head.lock();
            let from = head.labels.label.tail;
            (Behind::of_log(&head.labels, from, to), from)
        };
        let looked = self.look_at_log(from, to, None)?;
        self.catch_up()?;
        let found = self.compare_with_log(behind, (from, to), 0, Scrubbed::of_log(&looked));
        // What is written over looks like damage.
        let is_let_go = || self.has_let_go_of(from);
        match found {
            Ok(mut done) => {
                done.unverified = self.blocks - done.blocks;
                self.note_scrubbed_with_log()?;
                Ok(done)
            }
            Err(Error::Damaged { .. }) if is_let_go() => Err(Error::LetGo { device: self.rings.device.name().into() }),
            Err(error) => Err(error),
        }
    }

    /// At an opening, of a main whose label tells of blocks that nobody had: the log may have been read badly then. Gives what main got.
    pub(super) fn bring_what_log_has(&self, first: u64) -> Result<Vec<u64>, Error> {
        let (behind, from, to) = {
            let head = self.head.lock();
            let (from, to) = (head.labels.label.tail, head.next);
            (Behind::of_log(&head.labels, from, to), from, to)
        };
        let done = self.compare_with_log(behind, (from, to), first, Scrubbed::default())?;
        Ok(done.main_repaired)
    }

    /// Compares blocks from `first` on with what the log has between two points.
    fn compare_with_log(
        &self,
        behind: Behind,
        (from, to): (Point, Point),
        first: u64,
        done: Scrubbed,
    ) -> Result<Scrubbed, Error> {
        let newest = behind.newest_between(from, to)?;
        let mut scrub = WithLog { set: self, behind, since: Since::default(), to, done };
        let mut batch: Vec<Kept> = Vec::new();
        for kept in newest.from(first) {
            if batch.last().is_some_and(|last| last.address + 1 != kept.address) || batch.len() == BATCH_BLOCKS {
                scrub.compare(&batch)?;
                batch.clear();
            }
            batch.push(kept);
        }
        if !batch.is_empty() {
            scrub.compare(&batch)?;
        }
        Ok(scrub.done)
    }
}

struct WithLog<'a> {
    set: &'a Flashlog,
    behind: Behind,
    /// What the log got since this began, up to a point.
    since: Since,
    to: Point,
    done: Scrubbed,
}

impl WithLog<'_> {
    fn compare(&mut self, batch: &[Kept]) -> Result<(), Error> {
        let mut bytes = AlignedBuf::zeroed(batch.len() * BLOCK_SIZE);
        let could = read_each(&*self.set.main, batch[0].address, &mut bytes);
        let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
        for ((block, could), kept) in blocks.iter().zip(could).zip(batch) {
            if !could || crc64(block) != kept.sum || self.set.is_known_bad(kept.address) {
                self.judge(*kept)?;
            }
            self.done.blocks += 1;
        }
        Ok(())
    }

    /// Looks at one block again while nobody writes to main, and makes it good.
    fn judge(&mut self, kept: Kept) -> Result<(), Error> {
        let set = self.set;
        let main_side = set.main_side_at_once();
        // A main that goes on alone has newer blocks than the log.
        set.latch.check(&set.name, Operation::Read, Some(kept.address), BLOCK_SIZE as u64)?;
        let (durable, is_coming) = {
            let stages = set.stages.lock();
            (stages.durable, stages.find(kept.address).is_some())
        };
        // Main has nothing that is not in the log, durably.
        self.behind.each_entry(self.to, durable, |entry| self.since.add(entry))?;
        self.to = durable;
        let kept = self.since.get(kept.address).unwrap_or(kept);
        let main = read_block(&*set.main, kept.address);
        if is_coming {
            return Ok(());
        }
        if has_sum(&main, kept.sum) {
            set.stages.lock().known_bad.remove(&kept.address);
            return Ok(());
        }
        let from_log = || {
            let mut block = Box::new([0; BLOCK_SIZE]);
            let is_read = match kept.position() {
                Some(position) => set.rings.read(Area::Data, position, &mut block[..]).is_ok(),
                None => true,
            };
            mended(&is_read.then_some(block), kept.sum)
        };
        let Some(block) = mended(&main, kept.sum).or_else(from_log) else {
            let got = main.as_ref().map_or(0, |block| crc64(&block[..]));
            let mut stages = set.stages.lock();
            // It may be written just now.
            if stages.find(kept.address).is_none() {
                stages.lose_untold(kept.address, (kept.sum, got));
                self.done.lost.push(kept.address);
            }
            return Ok(());
        };
        let aligned = AlignedBuf::copy_of(&*block);
        let written = set.main.write(kept.address, &[IoSlice::new(&aligned)]).and_then(|()| set.main.flush());
        if written.is_ok() {
            set.stages.lock().known_bad.remove(&kept.address);
        }
        drop(main_side);
        set.heed(written.map_err(|error| Failure { side: Side::Main, error }))?;
        self.done.main_repaired.push(kept.address);
        Ok(())
    }
}
