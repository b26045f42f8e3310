//! What the log keeps for the next backup, read again: labels and pages may be whole where data is lost. What is damaged is made good from
//! main. If it is pages, what they said is not known any more: the status says so, and the next backup compares everything.

use super::Error;
use super::append::regions_between;
use super::at::{Behind, Kept, is_good};
use super::device::{Failure, Flashlog, Side};
use super::format::{Entry, Label, Page, Point, Uuid};
use super::ring::Area;
use super::scan::Scan;
use super::scrub::Stopped;
use crate::{AlignedBuf, BLOCK_SIZE, Operation};
use holdfast_integrity::crc64;

/// So many of the last pages are looked at when a log comes, with a block of each: what a stick forgets first.
const LAST_PAGES: u64 = 32;
/// And so many of all.
const SPREAD_PAGES: u64 = 96;

/// What was found in the data that the log keeps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Looked {
    /// Addresses of blocks that were damaged and are good again.
    pub(super) mended: Vec<u64>,
    /// Blocks that are damaged, and that main has not as they were.
    pub(super) lost: Vec<Kept>,
}

/// What has become of a block that looked damaged.
enum Judged {
    /// It is good, or the log has let go of it meanwhile.
    Fine,
    Mended,
    Lost,
}

impl Flashlog {
    /// Looks at some of what the log keeps for a backup, as it comes or is opened, and at all of it if any of that is damaged. (An opening
    /// reads the pages, all of them if they are not too many: see `dirty`.)
    ///
    /// # Errors
    /// As for [`Flashlog::look_at_all`]. The set does not heed a failure: it is not in use.
    pub(super) fn look_at_kept(&self) -> Result<Looked, Error> {
        let (label, to) = {
            let head = self.head.lock();
            (head.labels.label.clone(), head.next)
        };
        if label.backup == Uuid::NONE || !self.is_some_damaged(&label, to) {
            return Ok(Looked::default());
        }
        tracing::warn!(device = self.rings.device.name(), "the log has lost data: all that it keeps is read");
        self.look_at_all(label.tail, to).map_err(|stopped| match stopped {
            Stopped::Failed(Failure { error, .. }) => error.into(),
            Stopped::Other(error) => error,
        })
    }

    /// The same at an opening. Of what nobody has as it was, and no later version is there, main's label knows from then on; of pages that are
    /// damaged, the status. Gives how many blocks were made good.
    pub(super) fn open_kept(&self) -> Result<u64, Error> {
        let looked = match self.look_at_kept() {
            Err(damage @ Error::Damaged { .. }) => {
                self.note_damaged_log(&damage);
                return Ok(0);
            }
            looked => looked?,
        };
        self.note_lost(&self.newest_of(&looked.lost)?)?;
        Ok(looked.mended.len() as u64)
    }

    /// Reads for a scrub what the log has between two points, and makes good what is damaged.
    pub(super) fn look_at_log(&self, from: Point, to: Point) -> Result<Looked, Error> {
        let looked = match self.look_at_all(from, to) {
            Ok(looked) => Ok(looked),
            Err(Stopped::Other(error)) => Err(error),
            Err(Stopped::Failed(failure)) => Ok(self.heed(Err(failure))?),
        };
        match &looked {
            // What is written over looks like damage.
            Err(Error::Damaged { .. }) if self.has_let_go_of(from) => {
                return Err(Error::LetGo { device: self.rings.device.name().into() });
            }
            Err(damage @ Error::Damaged { .. }) => self.note_damaged_log(damage),
            _ => {}
        }
        looked
    }

    /// That data of the log is damaged which main does not have either.
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
    pub(super) fn gives_up_kept_for(&self, error: &Error) -> Result<bool, Error> {
        if !matches!(error, Error::Damaged { device, .. } if **device == *self.rings.device.name()) {
            return Ok(false);
        }
        let mut head = self.head.lock();
        let label = head.labels.label.clone();
        let (_, damage) = regions_between(&self.rings, &label, label.tail, head.next)?;
        let Some(damage) = damage else { return Ok(false) };
        self.note_damaged_log(&damage);
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

    /// Of these blocks the addresses of those of which the log has no later version.
    pub(super) fn newest_of(&self, lost: &[Kept]) -> Result<Vec<u64>, Error> {
        if lost.is_empty() {
            return Ok(Vec::new());
        }
        let (behind, to) = {
            let head = self.head.lock();
            (Behind::of_log(&head.labels, head.labels.label.tail, head.next), head.next)
        };
        let newest = behind.newest(to)?;
        let is_newest = |kept: &&Kept| {
            newest.binary_search_by_key(&kept.address, |newest| newest.address).is_ok_and(|at| newest[at] == **kept)
        };
        Ok(lost.iter().filter(is_newest).map(|kept| kept.address).collect())
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

    /// Reads all data that the log keeps between two points, and makes good what is damaged. The set may be in use.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is a page; a failure of the log to take what is good again.
    fn look_at_all(&self, from: Point, to: Point) -> Result<Looked, Stopped> {
        let label = self.head.lock().labels.label.clone();
        let mut looked = Looked::default();
        let mut scan = Scan::new(&self.rings, &label, from, false).without_mending();
        while scan.at.page < to.page {
            let page = match scan.next_there() {
                Err(Error::Device(_)) => return Err(scan.missing().into()),
                page => page?,
            };
            for entry in page.entries.iter().filter(|entry| !entry.sums().is_empty()) {
                self.look_at_entry(entry, &mut looked)?;
            }
        }
        if !looked.mended.is_empty() {
            self.rings.device.flush().map_err(|error| Stopped::Failed(Failure { side: Side::Log, error }))?;
        }
        let (mended, lost) = (looked.mended.len(), looked.lost.len());
        if mended + lost > 0 {
            let device = self.rings.device.name();
            tracing::warn!(
                device,
                mended,
                lost,
                "blocks that the log keeps were damaged; main had those that were mended"
            );
        }
        looked.mended.sort_unstable();
        looked.lost.sort_unstable_by_key(|kept| kept.address);
        Ok(looked)
    }

    fn look_at_entry(&self, entry: &Entry, looked: &mut Looked) -> Result<(), Stopped> {
        let mut bytes = AlignedBuf::zeroed(entry.sums().len() * BLOCK_SIZE);
        let is_read = self.rings.read(Area::Data, entry.data, &mut bytes).is_ok();
        let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
        for (block, kept) in blocks.iter().zip(Kept::of(entry)) {
            if is_read && crc64(block) == kept.sum {
                continue;
            }
            match self.judge_in_log(&kept)? {
                Judged::Fine => {}
                Judged::Mended => looked.mended.push(kept.address),
                Judged::Lost => looked.lost.push(kept),
            }
        }
        Ok(())
    }

    /// Looks at one block again while the log lets go of nothing and nobody writes to main, and makes it good.
    fn judge_in_log(&self, kept: &Kept) -> Result<Judged, Stopped> {
        let Some(position) = kept.position() else { return Ok(Judged::Fine) };
        let head = self.head.lock();
        let _main = self.main_side_at_once();
        self.latch.check(&self.name, Operation::Read, Some(kept.address), BLOCK_SIZE as u64)?;
        if position < head.labels.label.tail.data {
            return Ok(Judged::Fine);
        }
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
        let is_read = self.rings.read(Area::Data, position, &mut block).is_ok();
        let Some(bytes) = block.first_chunk_mut::<BLOCK_SIZE>() else { return Ok(Judged::Lost) };
        if is_read && crc64(bytes) == kept.sum {
            return Ok(Judged::Fine);
        }
        if !self.is_made_good(bytes, kept.address, kept.sum) {
            return Ok(Judged::Lost);
        }
        let written = self.rings.write(Area::Data, position, &[&block]);
        written.map_err(|error| Stopped::Failed(Failure { side: Side::Log, error }))?;
        Ok(Judged::Mended)
    }
}
