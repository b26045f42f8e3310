//! What the log keeps for the next backup, read again: labels and pages may be whole where data is lost. What is damaged is made good from
//! main. If it is pages, what they said is not known any more: the status says so, and the next backup compares everything.

use super::Error;
use super::append::regions_between;
use super::at::{Behind, Kept, is_good};
use super::device::{Failure, Flashlog, Side};
use super::format::{Label, Page, Point, Uuid};
use super::open::Joined;
use super::ring::Area;
use super::scan::Scan;
use super::scrub::Stopped;
use super::staging::Backup;
use super::verify::read_each;
use crate::{AlignedBuf, BLOCK_SIZE, Device, Operation};
use holdfast_integrity::crc64;
use std::collections::BTreeMap;
use std::time::Duration;

/// So many of the last pages are looked at when a log comes, with a block of each: what a stick forgets first.
const LAST_PAGES: u64 = 32;
/// And so many of all.
const SPREAD_PAGES: u64 = 96;
/// Blocks that are read and made good at once: 1 MiB.
const LOOK_BLOCKS: usize = 256;
/// How often is told how far that is.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What was found in the data that the log keeps.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// Addresses of blocks that were damaged and are good again.
    pub(super) mended: Vec<u64>,
    /// Blocks that are damaged, and that main has not as they were.
    pub(super) lost: Vec<Kept>,
    /// A page that is damaged: what is behind it was not read.
    pub(super) damage: Option<Error>,
}

impl Looked {
    /// With what was found elsewhere in the log.
    pub(super) fn add(&mut self, other: Looked) {
        self.mended.extend(other.mended);
        self.mended.sort_unstable();
        self.lost.extend(other.lost);
        self.lost.sort_unstable_by_key(|kept| kept.address);
        self.damage = self.damage.take().or(other.damage);
    }
}

impl Flashlog {
    /// Looks at some of what the log keeps for a backup, as it comes or is opened, and at all of it if any of that is damaged, or if main's label
    /// tells of blocks that nobody has, as the log may tell which these are. (An opening reads the pages, all of them if they are not too
    /// many: see `dirty`.)
    ///
    /// # Errors
    /// As for [`Flashlog::look_at_all`]. The set does not heed a failure: it is not in use.
    pub(super) fn look_at_kept(&self) -> Result<Looked, Error> {
        let (label, to) = {
            let head = self.head.lock();
            (head.labels.label.clone(), head.next)
        };
        if self.damage.lock().main.blocks == 0 {
            if label.backup == Uuid::NONE || !self.is_some_damaged(&label, to) {
                return Ok(Looked::default());
            }
            tracing::warn!(device = self.rings.device.name(), "the log has lost data: all that it keeps is read");
        }
        self.look_at_all_unheeded(label.tail, to)
    }

    fn look_at_all_unheeded(&self, from: Point, to: Point) -> Result<Looked, Error> {
        self.look_at_all(from, to, None).map_err(|stopped| match stopped {
            Stopped::Failed(Failure { error, .. }) => error.into(),
            Stopped::Other(error) => error,
        })
    }

    /// The same at an opening. Of what neither has as it was, and no later version is there, main's label knows from then on; of pages that are
    /// damaged, the status. Gives how many blocks were made good.
    pub(super) fn open_kept(&self, joined: Option<&Joined>) -> Result<u64, Error> {
        let looked = self.look_at_kept()?;
        looked.damage.iter().for_each(|damage| self.note_damaged_log(damage));
        self.recognise_lost(&looked, joined)?;
        Ok(looked.mended.len() as u64)
    }

    /// Reads for a scrub what the log has between two points, and makes good what is damaged, if need be from a backup.
    pub(super) fn look_at_log(&self, from: Point, to: Point, backup: Option<&Backup>) -> Result<Looked, Error> {
        let looked = match self.look_at_all(from, to, backup) {
            Ok(looked) => looked,
            Err(Stopped::Other(error)) => return Err(error),
            Err(Stopped::Failed(failure)) => self.heed(Err(failure))?,
        };
        match looked.damage {
            None => Ok(looked),
            // What is written over looks like damage.
            Some(_) if self.has_let_go_of(from) => Err(Error::LetGo { device: self.rings.device.name().into() }),
            Some(damage) => {
                self.note_damaged_log(&damage);
                Err(damage)
            }
        }
    }

    /// That data of the log is damaged which main does not have either, as a reader has found.
    pub(super) fn note_lost_data(&self, failure: &Failure) {
        if matches!(failure.error, crate::Error::Damaged { .. }) {
            self.note_damaged_log(&failure.error.clone().into());
        }
    }

    /// That something which the log keeps is damaged: a main made anew would be as it was in front of that.
    pub(super) fn note_damaged_log(&self, damage: &Error) {
        let mut noted = self.kept_damage.lock();
        if noted.is_none() {
            tracing::error!(device = &*self.name, %damage, "the log is damaged: what it keeps is not all there");
            *noted = Some(damage.clone());
        }
    }

    /// Whether the log has been written over from this point on, or may be.
    pub(super) fn has_let_go_of(&self, from: Point) -> bool {
        self.head.lock().labels.label.tail.page > from.page
    }

    /// A backup has met damaged pages: the log lets go of what it keeps, as it is not known what that is, and everything counts as changed.
    /// Whether that is the error. Pages that are whole and follow on each other, but not on the backup's state, are no damage: the backup is of
    /// another time.
    pub(super) fn gives_up_kept_for(&self, error: &Error, backup: &Backup) -> Result<bool, Error> {
        if !matches!(error, Error::Damaged { device, .. } if **device == *self.rings.device.name()) {
            return Ok(false);
        }
        let mut head = self.head.lock();
        let label = head.labels.label.clone();
        let (_, damage) = regions_between(&self.rings, &label, label.tail, head.next)?;
        let Some(damage) = damage else { return Ok(false) };
        self.note_damaged_log(&damage);
        self.check_forgotten(backup.label())?;
        let done = self.flush_log(&mut head).and_then(|()| self.catch_up_to_durable()).and_then(|()| {
            self.uses.lose();
            let applied = self.stages.lock().applied;
            // As a page of it is damaged, that marks everything.
            self.let_go_of_kept(&mut head, applied)
        });
        drop(head);
        self.heed(done)?;
        Ok(true)
    }

    /// Those of the lost versions of which the log has no later one. Where a page is damaged, nobody knows whether it had one: what is in no page
    /// behind it counts as lost if main's label has told of such blocks before; otherwise main has what was written last, as far as is known.
    pub(super) fn newest_of(&self, looked: &Looked) -> Result<Vec<Kept>, Error> {
        let lost = &looked.lost;
        match looked.damage {
            _ if lost.is_empty() => return Ok(Vec::new()),
            Some(_) if self.damage.lock().main.blocks == 0 => return Ok(Vec::new()),
            Some(_) => {
                let first = self.damage.lock().main.first;
                let lost: Vec<Kept> = lost.iter().filter(|kept| kept.address >= first).copied().collect();
                return Ok(self.newest_in_good_pages(&lost));
            }
            None => {}
        }
        let (behind, to) = {
            let head = self.head.lock();
            (Behind::of_log(&head.labels, head.labels.label.tail, head.next), head.next)
        };
        let newest = behind.newest(to)?;
        let is_newest = |kept: &&Kept| newest.get(kept.address) == Some(**kept);
        Ok(lost.iter().filter(is_newest).copied().collect())
    }

    /// The same by the pages that are good, each by itself.
    fn newest_in_good_pages(&self, lost: &[Kept]) -> Vec<Kept> {
        let (label, to) = {
            let head = self.head.lock();
            (head.labels.label.clone(), head.next)
        };
        let mut newest: BTreeMap<u64, Kept> = lost.iter().map(|kept| (kept.address, *kept)).collect();
        let mut block = [0; BLOCK_SIZE];
        for number in label.tail.page..to.page {
            let could = self.rings.read(Area::Meta, number, &mut block).is_ok();
            let page = could.then(|| Page::decode_mending(&mut block, label.blocks).ok()).flatten();
            let page = page.filter(|page| (page.head.log, page.head.number) == (label.log, number));
            for kept in page.iter().flat_map(|page| &page.entries).flat_map(Kept::of) {
                newest.entry(kept.address).and_modify(|newest| *newest = kept);
            }
        }
        let is_newest = |kept: &&Kept| newest.get(&kept.address) == Some(*kept);
        lost.iter().filter(is_newest).copied().collect()
    }

    /// Whether a page of a few, or a block that one of them names, is damaged beyond a flipped bit, or cannot be read.
    fn is_some_damaged(&self, label: &Label, to: Point) -> bool {
        let pages = label.tail.page..to.page;
        let step = ((pages.end - pages.start) / SPREAD_PAGES).max(1);
        let last = pages.end.saturating_sub(LAST_PAGES);
        let is_chosen = |number: &u64| *number >= last || (number - label.tail.page).is_multiple_of(step);
        pages.filter(is_chosen).any(|number| !self.is_page_good(label, number))
    }

    /// Whether this page is there, and the last block that it has data of.
    fn is_page_good(&self, label: &Label, number: u64) -> bool {
        let mut block = [0; BLOCK_SIZE];
        if self.rings.read(Area::Meta, number, &mut block).is_err() {
            return false;
        }
        match Page::decode_mending(&mut block, label.blocks) {
            Ok(page) if (page.head.log, page.head.number) == (label.log, number) => {
                page.entries.iter().flat_map(Kept::of).filter(|kept| !kept.is_zeros()).last().is_none_or(|kept| {
                    let position = kept.position().unwrap_or_default();
                    self.rings.read(Area::Data, position, &mut block).is_ok() && is_good(&mut block, kept.sum)
                })
            }
            _ => false,
        }
    }

    /// Reads all data that the log keeps between two points, and makes good what is damaged, from main or a backup. The set may be in use. It ends
    /// at a page that is damaged.
    ///
    /// # Errors
    /// A failure of the log to take what is good again.
    fn look_at_all(&self, from: Point, to: Point, backup: Option<&Backup>) -> Result<Looked, Stopped> {
        let label = self.head.lock().labels.label.clone();
        let (timer, device) = (&self.options.timer, self.rings.device.name());
        let (mut looked, mut told) = (Looked::default(), timer.now());
        let mut all: Vec<Kept> = Vec::new();
        let mut scan = Scan::new(&self.rings, &label, from, false).without_mending();
        while scan.at.page < to.page {
            let page = match scan.next_there() {
                Err(Error::Device(_) | Error::Damaged { .. }) => {
                    looked.damage = Some(scan.missing());
                    break;
                }
                page => page?,
            };
            // Pages follow each other, and so does their data.
            all.extend(page.entries.iter().flat_map(Kept::of).filter(|kept| !kept.is_zeros()));
            while all.len() >= LOOK_BLOCKS {
                let later = all.split_off(LOOK_BLOCKS);
                self.look_at_data(&all, backup, &mut looked)?;
                all = later;
            }
            if timer.now() >= told + TELL_EVERY {
                told = timer.now();
                let (read, of) = (scan.at.data - from.data, to.data - from.data);
                let (mended, lost) = (looked.mended.len(), looked.lost.len());
                tracing::info!(device, read, of, mended, lost, "blocks that the log keeps are read");
            }
        }
        self.look_at_data(&all, backup, &mut looked)?;
        if !looked.mended.is_empty() {
            self.rings.device.flush().map_err(|error| Stopped::Failed(Failure { side: Side::Log, error }))?;
        }
        let (mended, lost) = (looked.mended.len(), looked.lost.len());
        if mended + lost > 0 {
            tracing::warn!(
                device,
                mended,
                lost,
                "blocks that the log keeps were damaged; those that others have were mended"
            );
        }
        looked.mended.sort_unstable();
        looked.lost.sort_unstable_by_key(|kept| kept.address);
        Ok(looked)
    }

    /// The same of blocks that are in a row in the log.
    fn look_at_data(&self, all: &[Kept], backup: Option<&Backup>, looked: &mut Looked) -> Result<(), Stopped> {
        let mut bytes = AlignedBuf::zeroed(all.len() * BLOCK_SIZE);
        let could = self.read_in_log(all, &mut bytes);
        let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
        let found: Vec<(Kept, bool)> = (all.iter().zip(blocks).zip(could))
            .map(|((kept, block), could)| (*kept, could && crc64(block) == kept.sum))
            .collect();
        for run in found.chunk_by(|a, b| a.1 == b.1).filter(|run| !run[0].1) {
            let run: Vec<Kept> = run.iter().map(|(kept, _)| *kept).collect();
            self.mend_in_log(&run, backup, looked)?;
        }
        Ok(())
    }

    /// Reads blocks that are in a row in the log. Which could be read.
    fn read_in_log(&self, all: &[Kept], bytes: &mut [u8]) -> Vec<bool> {
        let read = |kept: &Kept, bytes: &mut [u8]| {
            let position = kept.position().unwrap_or_default();
            self.rings.read(Area::Data, position, bytes).is_ok()
        };
        if all.first().is_none_or(|first| read(first, bytes)) {
            return vec![true; all.len()];
        }
        let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        all.iter().zip(blocks).map(|(kept, block)| read(kept, block)).collect()
    }

    /// Looks again at blocks that are in a row in the log, while that lets go of nothing and nobody writes to main, and makes them good.
    fn mend_in_log(&self, all: &[Kept], backup: Option<&Backup>, looked: &mut Looked) -> Result<(), Stopped> {
        let head = self.head.lock();
        let _main = self.main_side_at_once();
        let count = all.len() as u64 * BLOCK_SIZE as u64;
        self.latch.check(&self.name, Operation::Read, all.first().map(|kept| kept.address), count)?;
        let tail = head.labels.label.tail.data;
        let let_go_of = all.iter().take_while(|kept| kept.position().is_none_or(|at| at < tail)).count();
        let all = &all[let_go_of..];
        let mut bytes = AlignedBuf::zeroed(all.len() * BLOCK_SIZE);
        let could = self.read_in_log(all, &mut bytes);
        let (blocks, _none) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        let fine: Vec<bool> = (all.iter().zip(&*blocks).zip(&could))
            .map(|((kept, block), could)| *could && crc64(block) == kept.sum)
            .collect();
        let mut good: Vec<bool> = (all.iter().zip(&mut *blocks).zip(could))
            .map(|((kept, block), could)| could && is_good(block, kept.sum))
            .collect();
        let others = [Some(&*self.main), backup.map(|backup| &*backup.labels.device)];
        let mut at = 0;
        for run in all.chunk_by(|a, b| a.address + 1 == b.address) {
            let part = at..at + run.len();
            for other in others.into_iter().flatten() {
                if !good[part.clone()].iter().all(|good| *good) {
                    take_from(other, run, &mut blocks[part.clone()], &mut good[part.clone()]);
                }
            }
            at = part.end;
        }
        let judged: Vec<(bool, bool)> = good.into_iter().zip(fine).collect();
        let mut at = 0;
        for run in judged.chunk_by(|a, b| a == b) {
            let part = &all[at..at + run.len()];
            let (is_good, was_fine) = run[0];
            if is_good && !was_fine {
                let position = part[0].position().unwrap_or_default();
                let written = &bytes[at * BLOCK_SIZE..(at + run.len()) * BLOCK_SIZE];
                let written = self.rings.write(Area::Data, position, &[written]);
                written.map_err(|error| Stopped::Failed(Failure { side: Side::Log, error }))?;
                looked.mended.extend(part.iter().map(|kept| kept.address));
            } else if !is_good {
                looked.lost.extend(part);
            }
            at += run.len();
        }
        Ok(())
    }
}

/// Takes from a device that has blocks in their place those that are not good and that it has as they were.
fn take_from(device: &dyn Device, run: &[Kept], blocks: &mut [[u8; BLOCK_SIZE]], good: &mut [bool]) {
    let mut bytes = AlignedBuf::zeroed(run.len() * BLOCK_SIZE);
    let could = read_each(device, run[0].address, &mut bytes);
    let (theirs, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    for (((kept, block), good), (their, could)) in run.iter().zip(blocks).zip(good).zip(theirs.iter().zip(could)) {
        if !*good && could && crc64(their) == kept.sum {
            *block = *their;
            *good = true;
        }
    }
}
