//! Giving a log to a main that is alone: the one that it had, which gets what has changed as pages, or a new one.
//!
//! The log gets pages while main is written; they are of a generation that its label does not have yet, and count for nothing until main
//! stands still for a moment and the labels say that both are together again. Cut off before, main is alone as it was.

use super::alone::{Alone, Marks};
use super::append::{pages, pages_for, regions_between};
use super::at::Kept;
use super::chunk::Chunk;
use super::create::log_blocks_least;
use super::device::{Flashlog, Options, Order};
use super::format::{Areas, Bad, Damage, LABEL_AREA_BLOCKS, Label, PageHead, Point, Regions, Role, State, Uuid};
use super::kept::Looked;
use super::labels::Labelled;
use super::open::{End, Found, Joined};
use super::ranges::Ranges;
use super::ring::{Area, Rings, read_those_that_can_be};
use super::stages::Knowledge;
use super::{Error, Opened};
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::Arc;

/// Blocks that go to the log at once: 1 MiB, with one page.
const COPY_BLOCKS: u64 = 256;
/// So much may be left to do when main stands still.
const REST_BLOCKS: u64 = COPY_BLOCKS;
/// Most passes before that.
const PASSES_MOST: u64 = 8;

/// Which log a main that was alone has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attached {
    /// A new one. The next backup copies, of regions with so many blocks, what is otherwise on main; if it is not known which these are, of
    /// all.
    New {
        /// Blocks in regions that the backup may lack.
        changed_blocks: Option<u64>,
    },
    /// The one that it had, with so many blocks that it lacked: backup and log are everything, as before.
    Back {
        /// Blocks that it got.
        blocks: u64,
        /// Blocks that it had lost of what it keeps for the backup, and that are good again.
        mended_blocks: u64,
        /// Blocks that it had lost, and that main has not as they were either, or that main has or may have written alone and cannot read. The status
        /// tells of them from now on.
        lost_blocks: u64,
    },
    /// The one that it had, which does not get what has changed: the next backup copies so many blocks of changed regions.
    BackWithMap {
        /// Blocks in changed regions.
        blocks: u64,
        /// Not for lack of room: it is forgotten which blocks of main are damaged, and in some regions which ones main has written alone, so that what
        /// it has there may be older than what the backup has. That is not written over then.
        may_be_older: bool,
    },
}

/// A log that is being brought up to date.
struct Joining {
    log: Labelled,
    rings: Rings,
    next: Point,
    /// Where the pages begin that it gets.
    start: Point,
    /// What is behind the tail is kept for the backup.
    tail: Point,
    barrier: u64,
    generation: u64,
    blocks: u64,
    /// Blocks that it had lost, of what it keeps, and that are lost of what it gets.
    looked: Looked,
    /// Those of them of which main did not know, and of which its label does not tell.
    added: BTreeSet<u64>,
    /// The same, of which it may tell by now.
    noted: BTreeSet<u64>,
    /// Blocks of main that it is to get and that could not be read.
    unread: Ranges,
    /// What is behind its end cannot be read: nobody knows what the backup lacks of what main has.
    is_end_unread: bool,
    /// If main alone has forgotten which of its blocks are damaged: a block that none of them is in front of, and where they may be.
    forgotten: Option<(u64, Regions)>,
    /// It would have got a version of one that may be one of these of which nobody knows that main alone has written it.
    may_be_older: bool,
    /// It has got what main alone has written of one that may be one of these: another one that is lost may count in its place.
    covers: bool,
}

impl Alone {
    /// Gives main the log that it had.
    pub(super) fn join(&self, log: Arc<dyn Device>, options: &Options) -> Result<(Flashlog, Opened, Attached), Error> {
        self.join_as(log, options, false)
    }

    /// The same. Something at the end of the log could not be read, and may be on main, so that nobody knows what the backup lacks.
    pub(super) fn join_as(
        &self,
        log: Arc<dyn Device>,
        options: &Options,
        is_end_unread: bool,
    ) -> Result<(Flashlog, Opened, Attached), Error> {
        let mut joining = self.begin_joining(log, options)?;
        joining.is_end_unread |= is_end_unread;
        let is_kept = joining.log.label.backup != Uuid::NONE;
        let mut gets_pages = is_kept && !joining.is_end_unread;
        let mut lacking = self.take_since();
        for _ in 0..PASSES_MOST {
            if !gets_pages || lacking.marked_blocks() <= REST_BLOCKS {
                break;
            }
            gets_pages = joining.copy(self, &lacking, options)?;
            // What is written anew of them meanwhile is marked.
            if gets_pages && joining.unread.blocks() > REST_BLOCKS {
                gets_pages = joining.copy_unread(self, options)?;
            }
            lacking = self.take_since();
        }
        // From here on main stands still.
        let mut gate = self.gate.write();
        lacking.add(&self.take_since_closed());
        gets_pages = gets_pages
            && joining.copy(self, &lacking, options)?
            && joining.copy_unread(self, options)?
            && joining.end_copy(options)?;
        let (mut attached, map) = match (is_kept, gets_pages) {
            (true, false) => {
                let (map, may_be_older) = (joining.map_of_all(self)?, joining.may_be_older);
                (Attached::BackWithMap { blocks: map.marked_blocks(), may_be_older }, Some(map))
            }
            _ => {
                let (blocks, mended_blocks) = (joining.blocks, joining.looked.mended.len() as u64);
                (Attached::Back { blocks, mended_blocks, lost_blocks: 0 }, None)
            }
        };
        self.main.flush()?;
        joining.say_so(self.blocks, map.as_ref())?;
        let (log, generation) = (Arc::clone(&joining.log.device), joining.log.label.generation);
        let [added, noted] = [&mut joining.added, &mut joining.noted].map(std::mem::take);
        let joined = Joined { tells: is_kept && map.is_none(), added, noted, covers: joining.covers };
        let (flashlog, opened) = self.say_together(log, generation, None, joined, options)?;
        if let Attached::Back { mended_blocks, lost_blocks, .. } = &mut attached {
            *mended_blocks += opened.mended_blocks;
            match flashlog.note_lost_in_log(&joining.looked) {
                Ok(blocks) => *lost_blocks = blocks,
                // It is attached, and fails where it is used if it must.
                Err(error) => tracing::error!(device = &*flashlog.name, %error, "what is lost cannot be noted"),
            }
        }
        self.hand_over_bad(&flashlog);
        *gate = true;
        Ok((flashlog, opened, attached))
    }

    /// Gives main a new log. What the device had is lost.
    pub(super) fn join_new(
        &self,
        log: Arc<dyn Device>,
        name: Uuid,
        options: &Options,
    ) -> Result<(Flashlog, Opened, Attached), Error> {
        if log.blocks() < log_blocks_least() {
            let (blocks, least) = (log.blocks(), log_blocks_least());
            return Err(Error::TooSmall { device: log.name().into(), role: Role::Log, blocks, least });
        }
        let mut gate = self.gate.write();
        self.main.flush()?;
        let (of_main, dirty) = {
            let marks = self.marks.lock();
            (marks.labels.label.clone(), self.lacking_on_backup(&marks)?)
        };
        let generation = of_main.generation + 1;
        let areas = Areas::between(LABEL_AREA_BLOCKS, log.blocks());
        let label = Label {
            state: State::Opening,
            log: name,
            generation,
            ..of_main.of_newcomer(Role::Log, log.blocks(), areas)
        };
        let mut labels = Labelled::create(Arc::clone(&log), label)?;
        if let Some(dirty) = &dirty {
            labels.write_map(dirty, |label| {
                (label.backup, label.backup_sequence) = (of_main.backup, of_main.backup_sequence);
            })?;
        }
        let joined = Joined { tells: false, added: BTreeSet::new(), noted: BTreeSet::new(), covers: false };
        let (flashlog, opened) = self.say_together(log, generation, Some(name), joined, options)?;
        self.hand_over_bad(&flashlog);
        *gate = true;
        // Never nothing, as the status has it.
        let changed_blocks = dirty.map(|dirty| dirty.marked_blocks().max(1));
        Ok((flashlog, opened, Attached::New { changed_blocks }))
    }

    /// The regions that the backup lacks: of what was written with the log, and without it. None if it is not known which these are.
    fn lacking_on_backup(&self, marks: &Marks) -> Result<Option<Regions>, Error> {
        let Some(mut dirty) = marks.labels.read_dirty()? else { return Ok(None) };
        if self.order != Order::NewLogForgetsAlone {
            dirty.add(&marks.changed);
        }
        Ok(Some(dirty.about(0, 0)))
    }

    /// Main's label says that it has a log again, which has what it had, and tells of it, or not, and the set is opened. If it cannot be, main is alone
    /// once more.
    fn say_together(
        &self,
        log: Arc<dyn Device>,
        generation: u64,
        name: Option<Uuid>,
        mut joined: Joined,
        options: &Options,
    ) -> Result<(Flashlog, Opened), Error> {
        let mut marks = self.marks.lock();
        let before = marks.labels.label.clone();
        let main = self.main_as_labelled(before.device_blocks)?;
        marks.labels.write(|label| {
            (label.state, label.generation, label.has_map) = (State::Open, generation, false);
            label.log = name.unwrap_or(label.log);
            (label.left, label.durable) = (0, 0);
            (label.backup, label.backup_sequence, label.dirty) = (Uuid::NONE, 0, 0);
            // Main may have written some of these blocks, which shows below.
            label.damage.log_tells = false;
        })?;
        joined.tells &= before.damage.log_tells;
        let log_tells = joined.tells;
        let opened = Flashlog::put_together(Arc::clone(&main), log, options, End::Joined(joined));
        if opened.is_err() {
            // The opening may have written labels as well. The generation is one that the log may have.
            let newest = Labelled::read(Arc::clone(&main), Role::Main);
            marks.labels = newest.unwrap_or_else(|_| Labelled { device: main, label: marks.labels.label.clone() });
            // Of regions that were said to have changed as a whole it says less now, so that others of their blocks are marked again.
            let map = marks.told(marks.labels.label.damage);
            marks.note(map, |label| {
                (label.state, label.left, label.log) = (State::Alone, before.left, before.log);
                label.durable = before.durable;
                (label.backup, label.backup_sequence, label.dirty) =
                    (before.backup, before.backup_sequence, before.dirty);
                label.damage.log_tells = log_tells && label.damage.main == before.damage.main;
            })?;
        }
        opened
    }

    /// Takes what has been written since the last time, when all who have marked something have written it.
    fn take_since(&self) -> Regions {
        let _gate = self.gate.write();
        self.take_since_closed()
    }

    fn take_since_closed(&self) -> Regions {
        std::mem::replace(&mut self.marks.lock().since, Regions::none(self.blocks))
    }

    /// Finds out how far the log is, and what it lacks. Each time gets a generation of its own.
    fn begin_joining(&self, log: Arc<dyn Device>, options: &Options) -> Result<Joining, Error> {
        let mut log = Labelled::read(log, Role::Log)?;
        let of_main = self.marks.lock().labels.label.clone();
        let lost_before = of_main.damage;
        judge(&of_main, &self.main, &log)?;
        // A copy from before, or one that has lost what was flushed, has not got so far.
        let durable = of_main.durable;
        log.label.durable = log.label.durable.max(durable);
        let main = Labelled { device: Arc::clone(&self.main), label: of_main };
        let probe = Flashlog::assemble(main, log, options)?;
        let Found { last, unread, .. } = probe.find_end()?;
        let (next, label) = {
            let head = probe.head.lock();
            (head.next, head.labels.label.clone())
        };
        // If main knows how far the log was durable, its map has what was behind that.
        let unread = unread.filter(|_| durable == 0);
        if let Some(error) = &unread {
            tracing::warn!(
                device = probe.rings.device.name(),
                %error,
                "the end of the log cannot be read: the next backup compares everything"
            );
        }
        // Pages before this one were on main when the last was written. What the log has behind that may not be what main has.
        let on_main = last.as_ref().filter(|head| head.generation > label.rebuilt).map_or(0, |head| head.applied);
        let mut behind = Regions::none(self.blocks);
        let mut scan = probe.scan(&label);
        while scan.at.page < next.page {
            let page = scan.next_there()?;
            for entry in page.entries.iter().filter(|_| page.head.number >= on_main) {
                behind.mark(entry.first, entry.blocks());
            }
        }
        // While main is still in use. What pages are damaged then, the opening says.
        let looked = probe.look_at_kept()?;
        let lost = probe.newest_of(&looked)?;
        let forgotten = if self.knowledge == Knowledge::All {
            None
        } else {
            let within = match lost_before {
                // What the log told of is there, whether it has it well or not.
                Damage { main: Bad { blocks: 1, first }, log_tells: true, .. } => {
                    let mut one = Regions::none(self.blocks);
                    one.mark(first, 1);
                    one
                }
                // If its coming was cut off, it may have begun anew, and tells nothing.
                Damage { log_tells: true, .. } if !label.has_map => {
                    regions_between(&probe.rings, &label, label.tail, next)?.0
                }
                _ => Regions::all(self.blocks),
            };
            Some((lost_before.main.first, within))
        };
        let log = Labelled { device: Arc::clone(&probe.rings.device), label };
        log.device.flush()?;
        let barrier = last.map_or(0, |head| head.barrier + u64::from(head.is_barrier)).max(log.label.barrier);
        let tail = if log.label.backup == Uuid::NONE { next } else { log.label.tail };
        let (mut added, mut noted) = (BTreeSet::new(), BTreeSet::new());
        {
            // Waits for those who have marked something, as `take_since` does.
            let _gate = self.gate.write();
            let mut marks = self.marks.lock();
            // Of what main has not written since it has an older version, if any; but not of what was given up with the log.
            let is_older = |kept: &&Kept| ![&marks.changed, &behind].iter().any(|map| map.has(kept.address, 1));
            let mut known_bad = self.known_bad.lock();
            if self.knowledge == Knowledge::All {
                let unknown = lost.iter().filter(|kept| !known_bad.contains_key(&kept.address));
                for kept in unknown {
                    if is_older(&kept) { &mut noted } else { &mut added }.insert(kept.address);
                }
            }
            known_bad.extend(lost.iter().filter(is_older).map(|kept| (kept.address, (kept.sum, 0))));
            drop(known_bad);
            let highest = marks.labels.label.generation.max(log.label.generation);
            marks.changed.add(&behind);
            let changed = marks.changed.clone();
            marks.since.add(&changed);
            let map = marks.told(lost_before);
            marks.note(map, |label| label.generation = highest + 1)?;
        }
        let generation = self.marks.lock().labels.label.generation + 1;
        let rings = Rings { device: Arc::clone(&log.device), areas: log.label.areas };
        Ok(Joining {
            log,
            rings,
            next,
            start: next,
            tail,
            barrier,
            generation,
            blocks: 0,
            looked,
            added,
            noted,
            unread: Ranges::default(),
            is_end_unread: unread.is_some(),
            forgotten,
            may_be_older: false,
            covers: false,
        })
    }
}

impl Joining {
    /// Whether a block of these, of which nobody knows that main alone has written it, may be one of those that are damaged: as a page of the log,
    /// what main had before would count as the newest version.
    fn may_get_older(&self, alone: &Alone, regions: &Regions) -> bool {
        let Some((first, within)) = &self.forgotten else { return false };
        let (own, mut at) = (alone.marks.lock().own.clone(), *first);
        while let Some((mut next, count)) = regions.next_run(at, u64::MAX) {
            at = next + count;
            while next < at {
                let (own_first, own_count) =
                    own.next_run(next, at - next).filter(|(own, _)| *own < at).unwrap_or((at, 0));
                if within.next_run(next, 1).is_some_and(|(one, _)| one < own_first) {
                    return true;
                }
                next = own_first + own_count;
            }
        }
        false
    }

    /// Copies what is marked from main to the log, but for what main cannot read. Whether there was room, and nothing that may be older.
    fn copy(&mut self, alone: &Alone, regions: &Regions, options: &Options) -> Result<bool, Error> {
        self.may_be_older |= self.may_get_older(alone, regions);
        if self.may_be_older {
            return Ok(false);
        }
        let mut from = 0;
        if options.order == Order::AttachSkipsBlock {
            from = regions.next_run(0, 1).map_or(0, |(first, count)| first + count);
        }
        self.copy_runs(alone, from, |at| regions.next_runs(at, COPY_BLOCKS), false, options)
    }

    /// When main stands still and all the rest is there, or before if that is much, the same of what it could not read, which it is asked for once more. What it cannot read
    /// then either is lost, and the log says so by checksums that its data has not: no main is made anew without it, and no backup made, as if it had
    /// not been written.
    fn copy_unread(&mut self, alone: &Alone, options: &Options) -> Result<bool, Error> {
        let unread = std::mem::take(&mut self.unread);
        let next = |at| -> Vec<(u64, u64)> {
            let run = unread.from(at).next();
            run.map(|run| (run.start, (run.end - run.start).min(COPY_BLOCKS))).into_iter().collect()
        };
        self.copy_runs(alone, 0, next, true, options)
    }

    /// Copies runs of blocks, from one on, that come as many at once as are read at once. What main cannot read is noted, or lost (`or_loses`).
    fn copy_runs(
        &mut self,
        alone: &Alone,
        mut at: u64,
        next: impl Fn(u64) -> Vec<(u64, u64)>,
        or_loses: bool,
        options: &Options,
    ) -> Result<bool, Error> {
        let (mut bytes, memory) = (AlignedBuf::zeroed(COPY_BLOCKS as usize * BLOCK_SIZE), Arc::default());
        let labels = Label::area(Role::Main, alone.marks.lock().labels.label.device_blocks);
        // Pages have many entries, and blocks that were written here and there take one page for many.
        let (mut batch, mut gathered) = (Vec::new(), 0);
        loop {
            let runs = next(at);
            let blocks: u64 = runs.iter().map(|(_, count)| count).sum();
            if gathered > 0 && (runs.is_empty() || gathered + blocks > COPY_BLOCKS) {
                if !self.has_room(gathered) {
                    return Ok(false);
                }
                self.append(&std::mem::take(&mut batch), false, options)?;
                self.blocks += std::mem::take(&mut gathered);
            }
            let (Some(&(first, _)), Some(&(last, count))) = (runs.first(), runs.last()) else { return Ok(true) };
            if let Some(watch) = &options.watch {
                watch.check_open(&alone.name)?;
            }
            at = last + count;
            let part = &mut bytes[..(at - first) as usize * BLOCK_SIZE];
            // What is between them need not be readable.
            let could = read_those_that_can_be(&*alone.main, labels, first, part)?;
            // Of what nobody has, an older version is none for the log.
            for (run, count) in alone.without_bad(runs) {
                let mut from = (run - first) as usize;
                for some in could[from..from + count as usize].chunk_by(|a, b| a == b) {
                    let address = first + from as u64;
                    let addresses = address..address + some.len() as u64;
                    let written = &part[from * BLOCK_SIZE..(from + some.len()) * BLOCK_SIZE];
                    from += some.len();
                    let chunk = match some[0] {
                        true => {
                            // It may have been written anew.
                            self.unread.remove(&addresses);
                            if let Some((first, within)) = self.forgotten.as_ref().filter(|_| !self.covers) {
                                self.covers = addresses.clone().any(|at| at >= *first && within.has_block(at));
                            }
                            Chunk::arrive(&[IoSlice::new(written)], 0, some.len(), &memory)
                        }
                        false if or_loses => {
                            let (chunk, data) = (Chunk::lost(some.len()), self.next.data + gathered);
                            let lost = addresses.clone().zip(data..).zip(chunk.sums());
                            self.looked.lost.extend(lost.map(|((at, data), sum)| Kept::at(at, data, *sum)));
                            self.added.extend(addresses);
                            chunk
                        }
                        false => {
                            self.unread.add(addresses);
                            continue;
                        }
                    };
                    batch.push((address, Arc::new(chunk)));
                    gathered += some.len() as u64;
                }
            }
        }
    }

    /// A barrier behind everything, durable. Whether there was room.
    fn end_copy(&mut self, options: &Options) -> Result<bool, Error> {
        if !self.has_room(0) {
            return Ok(false);
        }
        self.append(&[], true, options)?;
        self.barrier += 1;
        self.log.device.flush()?;
        Ok(true)
    }

    /// A quarter stays free, so that the log does not let go of everything with the next writes.
    fn has_room(&self, count: u64) -> bool {
        let areas = self.rings.areas;
        let (pages, blocks) = (self.next.page - self.tail.page, self.next.data - self.tail.data + count);
        pages + pages_for(count) < areas.meta_blocks / 4 * 3 && blocks <= areas.data_blocks / 4 * 3
    }

    fn append(&mut self, batch: &[(u64, Arc<Chunk>)], is_barrier: bool, options: &Options) -> Result<(), Error> {
        let head = PageHead {
            log: self.log.label.log,
            number: 0,
            previous: 0,
            generation: self.generation,
            data: 0,
            applied: self.start.page,
            durable: self.start.page,
            is_barrier,
            // Until the last one main's regions are there in part.
            is_partial: !is_barrier,
            barrier: self.barrier,
            time: (options.now)(),
        };
        let (pages, next) = pages(batch, self.next, &head);
        let data: Vec<&[u8]> = batch.iter().map(|(_, chunk)| chunk.bytes()).collect();
        self.rings.write(Area::Data, self.next.data, &data)?;
        self.rings.write(Area::Meta, self.next.page, &[&pages])?;
        self.next = next;
        Ok(())
    }

    /// What the backup lacks, if the log lets go of everything that it had.
    fn map_of_all(&self, alone: &Alone) -> Result<Regions, Error> {
        let mut map = match self.is_end_unread {
            true => Regions::all(alone.blocks),
            false => regions_between(&self.rings, &self.log.label, self.tail, self.start)?.0.of_larger(alone.blocks),
        };
        let from = match self.log.read_map()? {
            Some(before) => {
                map.add(&before);
                before.from
            }
            None => self.tail.page,
        };
        map.add(&alone.marks.lock().changed);
        Ok(map.about(from, self.behind().page))
    }

    /// Where the log begins anew, if it gets no pages of what main has done alone. One number is left out, which stands for that: a backup
    /// that had everything when the log went has not got this far.
    fn behind(&self) -> Point {
        Point { page: self.start.page + 1, ..self.start }
    }

    /// The log's label says that it has everything; or, with a map, that it begins anew behind what it had. The set may have become larger.
    fn say_so(&mut self, blocks: u64, map: Option<&Regions>) -> Result<(), Error> {
        let (next, tail, barrier) = (self.next, self.tail, self.barrier);
        let start = if map.is_some() { self.behind() } else { self.start };
        // Pages that it has got are of the generation before, and do not count.
        let generation = self.generation + u64::from(map.is_some());
        let change = |label: &mut Label| {
            let state = if map.is_some() { State::Opening } else { State::Open };
            (label.state, label.generation, label.start) = (state, generation, start.page);
            label.barrier = barrier;
            label.durable = if map.is_some() { start.page } else { next.page };
            (label.tail, label.applied) = if map.is_some() { (start, start) } else { (tail, next) };
        };
        let before = if blocks == self.log.label.blocks { None } else { self.log.read_map()? };
        let before = before.map(|map| map.of_larger(blocks));
        self.log.label.blocks = blocks;
        match map.or(before.as_ref()) {
            Some(map) => self.log.write_map(map, change)?,
            None => self.log.write(change)?,
        }
        Ok(())
    }
}

/// That the log is the one that main had, and has missed nothing but what main has done alone.
fn judge(of_main: &Label, main: &Arc<dyn Device>, log: &Labelled) -> Result<(), Error> {
    let (name, of_log) = (|of: &Arc<dyn Device>| -> Arc<str> { of.name().into() }, &log.label);
    if of_main.set != of_log.set {
        return Err(Error::OtherSet { device: name(&log.device), expected: of_main.set, got: of_log.set });
    }
    if of_main.log != of_log.log {
        let (device, role) = (name(&log.device), Role::Log);
        return Err(Error::Replaced { device, role, expected: of_main.log, got: of_log.log });
    }
    if of_main.main != of_log.main {
        let (device, role) = (name(main), Role::Main);
        return Err(Error::Replaced { device, role, expected: of_log.main, got: of_main.main });
    }
    // An attaching, or an opening, that was cut off has given the log a later generation.
    let newest = of_main.generation + 1 + u64::from(of_log.state == State::Opening);
    let was_cut_off = (of_main.left..=newest).contains(&of_log.generation);
    if of_log.generation > newest {
        let (expected, got) = (of_log.generation, of_main.generation);
        return Err(Error::Older { device: name(main), expected, got });
    }
    if of_log.generation != of_main.left && !was_cut_off {
        let (expected, got) = (of_main.left, of_log.generation);
        return Err(Error::Older { device: name(&log.device), expected, got });
    }
    // Main may have become larger without it.
    if of_main.blocks < of_log.blocks {
        let fault = super::Fault::new("blocks of the set's device", of_main.blocks, of_log.blocks);
        return Err(Error::Damaged { device: name(&log.device), block: of_log.place(), fault });
    }
    Ok(())
}
