//! Writing to the log: data strictly one after the other, then the pages that name it.

use super::chunk::Chunk;
use super::device::{Failure, Flashlog, Order, Side};
use super::format::{Label, PageBuilder, PageHead, Point, Regions};
use super::labels::Labelled;
use super::ring::{Area, Rings};
use super::scan::Scan;
use super::stages::Stage;
use crate::{AlignedBuf, BLOCK_SIZE, Error, Operation};
use std::sync::Arc;

/// So many blocks have room in a page at least: 124 in entries of one block each, some fewer with zeros in between, as these
/// [count in memory](Chunk::memory_blocks).
const BLOCKS_OF_A_PAGE: u64 = 120;

/// Pages that so many blocks may take.
pub(super) fn pages_for(blocks: u64) -> u64 {
    blocks.div_ceil(BLOCKS_OF_A_PAGE) + 1
}

/// The end of the log. Whoever has it is the only one who writes to the log device, but for what is damaged and written again.
pub(super) struct Head {
    pub(super) labels: Labelled,
    pub(super) next: Point,
    /// Something was written since the last flush of the log.
    pub(super) is_unflushed: bool,
    /// The label says so: no page is of its generation.
    pub(super) is_closed: bool,
    /// There are blocks since the last page that is a barrier.
    pub(super) is_unmarked: bool,
    /// Nothing has come since the log's label, or its last page, has said that everything before is durable.
    pub(super) is_sealed: bool,
    /// Number of the next barrier.
    pub(super) barrier: u64,
    /// A backup has everything before; what is behind is kept for it.
    pub(super) keep: Option<Point>,
    /// What the backup does not have of the pages that were let go of, if there are such. The label names this map.
    pub(super) changed: Option<Regions>,
    /// What has been added to it since a backup began to copy it.
    pub(super) changed_since: Regions,
    /// A backup has all of the map of this number, and no state yet: until then the map says so.
    pub(super) copied_map: Option<u64>,
    /// The failure after which nothing is written to the log any more.
    pub(super) failed: Option<Failure>,
}

/// What a power cut may leave of what is written to the log at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterCut {
    /// The pages that got there up to the first that did not: their blocks are in the order in which they were written.
    SomePages,
    /// All pages, or none: what is in them is in another order, and in front of the last one's end there is no state.
    AllOrNone,
}

impl Head {
    /// What is before it can be let go of, when main has everything before `applied`.
    pub(super) fn tail(&self, applied: Point) -> Point {
        self.keep.filter(|keep| keep.page < applied.page).unwrap_or(applied)
    }

    /// For those who have waited for the head: what they would write would be behind a gap. They fail as the first one did.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Passes a result on, and remembers a failure. One of main's is no reason to write nothing to the log.
    pub(super) fn note<T>(&mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &result
            && failure.side != Side::Main
        {
            self.failed.get_or_insert_with(|| failure.clone());
        }
        result
    }
}

impl Flashlog {
    /// Writes what is gathered to the log; with `is_barrier`, ends it with a page that says so.
    pub(super) fn append(&self, head: &mut Head, is_barrier: bool) -> Result<(), Failure> {
        head.check()?;
        self.check_latch()?;
        // Whoever gathers more waits for the head, so that it does not become more than this. Room for as much again is left
        // for the case that main fails and nothing can be let go of.
        if self.stages.lock().gathered_blocks() == 0 && !(is_barrier && head.is_unmarked) {
            return Ok(());
        }
        let blocks_most = 2 * self.gather_blocks;
        let made = self.make_room(head, 2 * blocks_most, 2 * pages_for(blocks_most));
        head.note(made)?;
        self.append_gathered(head, is_barrier)
    }

    /// The same without making room: what has none is refused.
    pub(super) fn append_gathered(&self, head: &mut Head, is_barrier: bool) -> Result<(), Failure> {
        head.check()?;
        let written = self.write_gathered(head, is_barrier, AfterCut::SomePages);
        head.note(written)
    }

    /// Writes what is gathered to the log, and flushes it, so that after a power cut meanwhile all of it is there or none: it may be in another order
    /// than it was written in, so that some of its pages would make a state that there never was.
    pub(super) fn append_whole(&self, head: &mut Head) -> Result<(), Failure> {
        head.check()?;
        let blocks = self.stages.lock().gathered_blocks();
        let made = self.make_room(head, blocks, pages_for(blocks));
        head.note(made)?;
        let written = self.write_gathered(head, true, AfterCut::AllOrNone);
        head.note(written)?;
        self.flush_log(head)
    }

    fn write_gathered(&self, head: &mut Head, is_barrier: bool, after_cut: AfterCut) -> Result<(), Failure> {
        let batch = self.stages.lock().take_gathered();
        let is_barrier = is_barrier && (head.is_unmarked || !batch.is_empty());
        if batch.is_empty() && !is_barrier {
            return Ok(());
        }
        for (first, chunk) in &batch {
            self.verify_chunk(*first, chunk)?;
        }
        self.write_pages(head, &batch, is_barrier, after_cut)?;
        head.is_sealed = false;
        head.is_unmarked = !is_barrier;
        head.barrier += u64::from(is_barrier);
        Ok(())
    }

    /// A page without blocks, which says that everything before it is durable.
    pub(super) fn append_seal(&self, head: &mut Head) -> Result<(), Failure> {
        head.check()?;
        let written = self.write_pages(head, &[], false, AfterCut::SomePages);
        head.note(written)?;
        head.is_sealed = true;
        Ok(())
    }

    fn write_pages(
        &self,
        head: &mut Head,
        batch: &[(u64, Arc<Chunk>)],
        is_barrier: bool,
        after_cut: AfterCut,
    ) -> Result<(), Failure> {
        self.say_open(head)?;
        let (durable, applied) = {
            let stages = self.stages.lock();
            (stages.durable, stages.applied)
        };
        let head_of_pages = PageHead {
            log: head.labels.label.log,
            number: 0,
            previous: 0,
            generation: head.labels.label.generation,
            data: 0,
            applied: applied.page,
            durable: durable.page,
            is_barrier,
            // The last one is the state.
            is_partial: after_cut == AfterCut::AllOrNone,
            barrier: head.barrier,
            time: (self.options.now)(),
        };
        let (pages, next) = pages(batch, head.next, &head_of_pages);
        let (tail, areas) = (head.labels.label.tail, self.rings.areas);
        if next.page - tail.page > areas.meta_blocks || next.data - tail.data > areas.data_blocks {
            // After main has failed, in an earlier session as well, and nothing could be let go of.
            return Err(self.no_room("the log has no room for what is in memory"));
        }
        self.mark_dirty(batch);
        let data: Vec<&[u8]> = batch.iter().map(|(_, chunk)| chunk.bytes()).filter(|bytes| !bytes.is_empty()).collect();
        let (log, Point { page, data: position, .. }) = (&self.rings, head.next);
        let written = match after_cut {
            // A page without its blocks, after a power cut, is cut off by their checksums.
            AfterCut::SomePages => log.write_at_once(&[(Area::Data, position, &data), (Area::Meta, page, &[&pages])]),
            // Without the first page none behind it counts.
            AfterCut::AllOrNone => {
                let (first, others) = pages.split_at(BLOCK_SIZE);
                let others: &[&[u8]] = if others.is_empty() { &[] } else { &[others] };
                log.write_at_once(&[(Area::Data, position, &data), (Area::Meta, page + 1, others)])
                    .and_then(|()| log.device.flush())
                    .and_then(|()| log.write(Area::Meta, page, &[first]))
            }
        };
        written.map_err(Failure::of(Side::Log))?;
        {
            let now = self.options.timer.now();
            let mut stages = self.stages.lock();
            stages.age.logged = now;
            if self.is_read_from_log() {
                stages.leave_memory(batch, head.next.data);
            }
            stages.promote(Stage::Writing, Stage::Logged);
            stages.logged = next;
            stages.ends.push(next, &areas);
            stages.sealing.written();
        }
        head.next = next;
        head.is_unflushed = true;
        Ok(())
    }

    /// Flushes the log; what is in it then may go to main.
    pub(super) fn flush_log(&self, head: &mut Head) -> Result<(), Failure> {
        head.check()?;
        let was_unflushed = head.is_unflushed;
        if was_unflushed {
            head.note(self.rings.device.flush().map_err(Failure::of(Side::Log)))?;
            head.is_unflushed = false;
        }
        let is_told = {
            let mut stages = self.stages.lock();
            stages.logged_is_durable(head.next);
            was_unflushed && self.note_flushed(head, &mut stages)
        };
        if is_told {
            self.options.timer.wake();
        }
        Ok(())
    }

    /// Sees to it that so much can be written; main catches up if it must.
    fn make_room(&self, head: &mut Head, blocks: u64, pages: u64) -> Result<(), Failure> {
        let areas = self.rings.areas;
        loop {
            let label = &head.labels.label;
            let (used_pages, used_blocks) = (head.next.page - label.tail.page, head.next.data - label.tail.data);
            let has_room = used_pages + pages <= areas.meta_blocks && used_blocks + blocks <= areas.data_blocks;
            // An old point would make the next opening read much.
            let is_long = head.next.page - label.applied.page > areas.meta_blocks / 8;
            let applied = self.stages.lock().applied;
            let has_moved = applied.page > label.applied.page || self.tail(head, applied).page > label.tail.page;
            match (has_room, has_moved) {
                (true, false) => return Ok(()),
                (true, true) if !is_long => return Ok(()),
                (_, true) => self.write_points(head, applied)?,
                (false, false) if self.lets_go_of_held(head, applied)? => {}
                (false, false) => {
                    let is_kept = head.keep.is_some_and(|keep| keep.page < applied.page);
                    // What main has already may be enough.
                    let is_enough = head.next.page - applied.page + pages <= areas.meta_blocks
                        && head.next.data - applied.data + blocks <= areas.data_blocks;
                    if !(is_kept && is_enough) {
                        self.flush_log(head)?;
                        self.catch_up_for_room(applied)?;
                        if self.stages.lock().applied.page > applied.page {
                            continue;
                        }
                    }
                    if is_kept {
                        tracing::warn!(device = &*self.name, "the log is full: the next backup copies changed regions");
                        self.uses.lose();
                        // What tells which blocks are lost only when that is not enough.
                        let held = self.stages.lock().held;
                        let is_behind = |held: &Point| head.keep.is_some_and(|keep| keep.page < held.page);
                        self.let_go_of_kept(head, held.filter(is_behind).unwrap_or(applied))?;
                    } else {
                        // The areas are several times as large as what is written at once.
                        return Err(self.no_room("the log has no room although main has everything"));
                    }
                }
            }
        }
    }

    /// Marks the regions of all pages that are kept for the backup, up to a point before which main has everything, and lets go of
    /// them: the next backup copies these regions.
    pub(super) fn let_go_of_kept(&self, head: &mut Head, to: Point) -> Result<(), Failure> {
        let (from, let_go_of) = (head.keep.unwrap_or(to), head.labels.label.tail);
        let found = regions_between(&self.rings, &head.labels.label, from, to);
        let (mut marked, _) = found.map_err(Failure::of(Side::Log))?;
        head.changed_since.add(&marked);
        let is_copied = head.copied_map == Some(head.labels.label.map);
        if let Some(before) = head.changed.as_ref().filter(|_| !is_copied) {
            marked.add(before);
            marked.from = before.from;
        }
        let barrier = head.barrier;
        if self.stages.lock().held.is_none_or(|held| held.page < to.page) {
            head.note(self.forget_held())?;
        }
        // An opening begins with what main does not have, which must not be in front of the tail.
        let applied = Some(head.labels.label.applied).filter(|applied| applied.page > to.page).unwrap_or(to);
        let change = |label: &mut Label| (label.tail, label.applied, label.barrier) = (to, applied, barrier);
        let written = head.labels.write_map(&marked, change);
        head.note(written.map_err(Failure::of(Side::Log)))?;
        (head.changed, head.keep) = (Some(marked), Some(to));
        self.trim(head, let_go_of);
        Ok(())
    }

    /// Writes a label of the log that lets go of what main has. Only then is it overwritten.
    pub(super) fn write_points(&self, head: &mut Head, applied: Point) -> Result<(), Failure> {
        let (tail, barrier, let_go_of) = (self.tail(head, applied), head.barrier, head.labels.label.tail);
        let durable = self.stages.lock().durable.page;
        if self.options.order == Order::ReuseBeforeLabel {
            (head.labels.label.tail, head.labels.label.applied) = (tail, applied);
            return Ok(());
        }
        let written = head.labels.write(|label| {
            (label.tail, label.applied, label.barrier) = (tail, applied, barrier);
            label.durable = durable;
        });
        head.note(written.map_err(Failure::of(Side::Log)))?;
        self.trim(head, let_go_of);
        Ok(())
    }

    fn no_room(&self, reason: &'static str) -> Failure {
        Failure { side: Side::Log, error: Error::Unsuitable { device: Arc::clone(&self.name), reason } }
    }

    fn verify_chunk(&self, first: u64, chunk: &Chunk) -> Result<(), Failure> {
        match chunk.first_damaged() {
            None => Ok(()),
            Some(index) => {
                let got = holdfast_integrity::crc64(chunk.block(index));
                Err(self.damaged(Side::Memory, Operation::Write, first + index as u64, chunk.sums()[index], got))
            }
        }
    }
}

/// The regions that a part of the log has blocks of; all, if a page of it is damaged, which comes with it.
pub(super) fn regions_between(
    rings: &Rings,
    label: &Label,
    from: Point,
    to: Point,
) -> Result<(Regions, Option<super::Error>), Error> {
    let mut scan = Scan::new(rings, label, from, false);
    let (mut regions, mut damage) = (Regions::none(label.blocks), None);
    while scan.at.page < to.page {
        match scan.next_there() {
            Ok(page) => {
                for entry in &page.entries {
                    regions.mark(entry.first, entry.blocks());
                }
            }
            Err(super::Error::Device(error)) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "a page of the log is damaged: everything counts as changed");
                (regions, damage) = (Regions::all(label.blocks), Some(error));
                break;
            }
        }
    }
    Ok((regions.about(from.page, to.page), damage))
}

/// The pages for a batch from `at` on, and the point after them. The last one is the barrier, if one is wanted.
pub(super) fn pages(batch: &[(u64, Arc<Chunk>)], at: Point, head: &PageHead) -> (AlignedBuf, Point) {
    let mut pages: Vec<[u8; 4096]> = Vec::new();
    let mut next = at;
    let mut builder = PageBuilder::new();
    let mut finish = |builder: PageBuilder, is_barrier: bool| {
        let blocks = builder.blocks();
        let Point { page, data, previous } = next;
        let (bytes, sum) = builder.finish(&PageHead { number: page, previous, data, is_barrier, ..head.clone() });
        pages.push(bytes);
        next = Point { page: page + 1, data: data + blocks, previous: sum };
        next.data
    };
    let mut data = at.data;
    for (first, chunk) in batch {
        let mut done = 0;
        while done < chunk.covered_blocks() {
            let appended = match chunk.as_zeros() {
                Some(zeros) => builder.append_zeros(data, first + done, zeros.count - done, zeros.keep),
                None => builder.append(data, first + done, &chunk.sums()[done as usize..]) as u64,
            };
            match appended {
                0 => data = finish(std::mem::replace(&mut builder, PageBuilder::new()), false),
                some => done += some,
            }
        }
    }
    finish(builder, head.is_barrier);
    (AlignedBuf::copy_of(&pages.concat()), next)
}
