//! Putting a set together again: who the devices are, where the log ends, and what main still needs.

use super::Error;
use super::alone::Alone;
use super::append::Head;
use super::catch_up::{MainSide, Pace};
use super::chunk::zero_sum;
use super::device::{Failure, Flashlog, Mode, Options, Order, Side};
use super::fetch::Fetching;
use super::format::{Label, Of, Page, PageHead, Regions, Role, State, Uuid};
use super::labels::Labelled;
use super::ring::Rings;
use super::scan::{Data, Scan, look_for_data};
use super::stages::{Knowledge, Place, Stage, Stages, Version};
use super::turns::Turn;
use crate::{Device, Latch};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};

/// What an opening has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// The set's generation now.
    pub generation: u64,
    /// Pages of the log that main may not have had.
    pub pages: u64,
    /// Blocks that these name.
    pub blocks: u64,
    /// Pages behind the end that were there without all of their data: a power cut took it.
    pub cut_pages: u64,
    /// The end of the log could not be read. Main has what it had, or what the log has in front of that; the log began anew, and the next backup
    /// compares everything.
    pub is_end_unread: bool,
    /// Blocks that the log keeps for a backup and that were damaged there; they are good again.
    pub mended_blocks: u64,
}

/// What is known of a log's end, before it is read.
#[derive(Debug)]
pub(super) enum End {
    /// Nothing but what label and pages say.
    Open,
    /// All that was flushed is in front of what cannot be read; or that is given up.
    Known,
    /// The same: the log has come to a main that was alone.
    Joined(Joined),
}

/// What is known of a log that has come to a main that was alone.
#[derive(Debug)]
pub(super) struct Joined {
    /// Whether it tells of the blocks of main that are damaged, as main's label has it.
    pub(super) tells: bool,
    /// Blocks that were found lost when it came, of which main's label does not tell.
    pub(super) added: BTreeSet<u64>,
    /// The same, of which it tells, if main alone has had it written since.
    pub(super) noted: BTreeSet<u64>,
    /// Main alone did not know which are damaged, and may have written some of them anew: others that are lost may count in their place.
    pub(super) covers: bool,
}

impl End {
    fn joined(&self) -> Option<&Joined> {
        match self {
            End::Joined(joined) => Some(joined),
            End::Open | End::Known => None,
        }
    }
}

/// Where a log ends.
pub(super) struct Found {
    /// The last page before the end.
    pub(super) last: Option<PageHead>,
    /// How many behind it are cut off.
    cut_pages: u64,
    /// What is behind it cannot be read, so that nobody knows whether it was flushed.
    pub(super) unread: Option<Error>,
}

impl Flashlog {
    /// Puts a set together again. Whatever has happened to it, log and main are then at the same state; in synchronous mode main is
    /// written before this returns.
    ///
    /// # Errors
    /// [`Error`] tells which device cannot be used, and why. What main has got of the log until then is whole, or main says that it is a
    /// mixture: the next opening begins with it again. [`Error::Damaged`] also if the end of the log cannot be read, so that nobody knows whether
    /// there is something that was flushed, and main may lack what was answered: then [`Options::drop_later`] gives it up.
    pub fn open(main: Arc<dyn Device>, log: Arc<dyn Device>, options: &Options) -> Result<(Flashlog, Opened), Error> {
        Self::put_together(main, log, options, End::Open)
    }

    /// The same.
    pub(super) fn put_together(
        main: Arc<dyn Device>,
        log: Arc<dyn Device>,
        options: &Options,
        known: End,
    ) -> Result<(Flashlog, Opened), Error> {
        let (of_main, of_log) = (Arc::clone(&main), Arc::clone(&log));
        let main = Labelled::read(main, Role::Main)?;
        let log = Labelled::read(log, Role::Log)?;
        judge(&main, &log)?;
        // In synchronous mode main has what was answered.
        let is_behind = main.label.is_asynchronous || main.label.state != State::Open;
        let flashlog = Self::assemble(main, log, options)?;
        let end = flashlog.find_end()?;
        if let (End::Open, Some(unread)) = (&known, &end.unread) {
            if is_behind && !options.drop_later {
                return Err(unread.clone());
            }
            if is_behind {
                // Cut off behind it, nobody would know any more.
                flashlog.all_counts_as_changed()?;
            }
            drop(flashlog);
            return Self::begin_anew(of_main, of_log, options, (unread, is_behind));
        }
        let mut opened = flashlog.recover(&end)?;
        opened.mended_blocks = flashlog.open_kept(known.joined())?;
        flashlog.find_dirty();
        // There is one to tell from now on, whatever the devices do.
        flashlog.status();
        Ok((flashlog, opened))
    }

    /// A set that has not looked at its log yet.
    pub(super) fn assemble(main: Labelled, log: Labelled, options: &Options) -> Result<Flashlog, Error> {
        let areas = log.label.areas;
        let blocks = main.label.blocks;
        let changed = log.read_map()?.map(|changed| changed.of_larger(blocks));
        let damage = Mutex::new(main.label.damage);
        let mut stages = Stages::at(log.label.applied, options.memory_blocks);
        if main.label.damage.main.blocks > 0 {
            // Until the log has been asked.
            stages.knowledge = Knowledge::Forgotten;
            (stages.forgotten, stages.is_untold) = (main.label.damage.main, !main.label.damage.log_tells);
        }
        Ok(Flashlog {
            damage,
            name: format!("flashlog of {} and {}", main.device.name(), log.device.name()).into(),
            blocks,
            gather_blocks: options.gather_blocks.clamp(1, (areas.data_blocks / 8).min(areas.meta_blocks)),
            options: options.clone(),
            rings: Rings { device: Arc::clone(&log.device), areas },
            main: Arc::clone(&main.device),
            stages: Mutex::new(stages),
            logger: Condvar::new(),
            fetching: Fetching::default(),
            writers: AtomicUsize::new(0),
            main_side: Turn::new(MainSide { labels: main, failed: None }, Arc::clone(&options.timer)),
            head: Turn::new(
                Head {
                    next: log.label.applied,
                    keep: (log.label.backup != Uuid::NONE).then_some(log.label.tail),
                    labels: log,
                    is_unflushed: false,
                    is_closed: false,
                    is_unmarked: false,
                    is_sealed: true,
                    barrier: 0,
                    failed: None,
                    changed,
                    changed_since: Regions::none(blocks),
                    copied_map: None,
                },
                Arc::clone(&options.timer),
            ),
            latch: Latch::new(),
            failed: OnceLock::new(),
            uses: Arc::default(),
            is_leaving: AtomicBool::new(false),
            is_alone: Mutex::new(false),
            dirty: Mutex::default(),
            lacking: Mutex::default(),
            kept_damage: Mutex::default(),
            last_status: Mutex::default(),
            memory: Arc::default(),
            awaited: Mutex::default(),
        })
    }

    /// Opens a set of whose log the end cannot be read. Main may have what was there, as it was answered. So it gets what the log has in front of
    /// that only if it may lack it (`is_behind`), as older versions would come over newer ones; then it is alone for a moment, and the log begins
    /// anew, with everything to be compared by the next backup.
    fn begin_anew(
        main: Arc<dyn Device>,
        log: Arc<dyn Device>,
        options: &Options,
        (unread, is_behind): (&Error, bool),
    ) -> Result<(Flashlog, Opened), Error> {
        let device = log.name();
        tracing::error!(
            device,
            error = %unread,
            is_behind,
            "the end of the log cannot be read: the log begins anew, and the next backup compares everything"
        );
        let mut opened = Opened::default();
        if is_behind {
            let (set, brought) = Self::put_together(Arc::clone(&main), Arc::clone(&log), options, End::Known)?;
            set.settle()?;
            opened = brought;
        }
        let (set, joined, _) = Alone::open(main, options, true)?.join_as(log, options, true)?;
        Ok((set, Opened { generation: joined.generation, is_end_unread: true, ..opened }))
    }

    /// The log's map says that the backup lacks everything, whatever the log keeps for it.
    fn all_counts_as_changed(&self) -> Result<(), Error> {
        let mut head = self.head.lock();
        if head.labels.label.backup == Uuid::NONE {
            return Ok(());
        }
        let from = head.changed.as_ref().map_or(head.labels.label.tail.page, |changed| changed.from);
        // A backup that has all that is known does not have all.
        let all = Regions::all(self.blocks).about(from, head.next.page + 1);
        Ok(head.labels.write_map(&all, |_| ())?)
    }

    fn recover(&self, end: &Found) -> Result<Opened, Error> {
        let Found { last, cut_pages, .. } = end;
        let rebuilt = self.head.lock().labels.label.rebuilt;
        let needed = last.as_ref().filter(|head| head.generation > rebuilt).map_or(0, |head| head.applied);
        let mut opened = Opened { cut_pages: *cut_pages, ..Opened::default() };
        {
            let mut head = self.head.lock();
            head.barrier = head.labels.label.barrier;
            if let Some(last) = last {
                head.barrier = head.barrier.max(last.barrier + u64::from(last.is_barrier));
            }
            // What was read is there; that it is durable is certain only now. The mended pages and blocks too.
            self.rings.device.flush()?;
            self.begin_generation(&mut head).map_err(|Failure { error, .. }| error)?;
            opened.generation = head.labels.label.generation;
        }
        let (label, next) = {
            let head = self.head.lock();
            (head.labels.label.clone(), head.next)
        };
        let mut scan = self.scan(&label);
        while scan.at.page < next.page {
            let page = scan.next_there()?;
            if page.head.number < needed {
                continue;
            }
            opened.pages += 1;
            opened.blocks += page.blocks();
            self.remember(&page);
            self.stages.lock().ends.push(scan.at, &self.rings.areas);
            let is_over = self.stages.lock().index_blocks() > self.options.index_blocks;
            if is_over {
                // Main may be further than the pages say, so that this takes some of it back, until it has everything that was found.
                let done = self.apply_as_mixture(&mut self.main_side.lock(), Pace::AtOnce);
                done.map_err(|Failure { error, .. }| Error::Device(error))?;
            }
        }
        if !self.is_read_from_log() || self.behind_blocks() == 0 {
            self.catch_up_to_durable().map_err(|Failure { error, .. }| Error::Device(error))?;
        }
        let next = self.head.lock().next;
        let mut stages = self.stages.lock();
        (stages.logged, stages.durable) = (next, next);
        if stages.index_blocks() == 0 {
            (stages.written, stages.applied) = (next, next);
        } else {
            stages.age.begin(Stage::Durable, self.options.timer.now());
        }
        Ok(opened)
    }

    /// All pages from the label's point on.
    pub(super) fn scan<'a>(&'a self, label: &'a Label) -> Scan<'a> {
        Scan::new(&self.rings, label, label.applied, self.options.order == Order::AnyGeneration)
    }

    /// Where the log ends. Pages are read twice instead of being kept: there may be more than memory has room for.
    pub(super) fn find_end(&self) -> Result<Found, Error> {
        let mut head = self.head.lock();
        let label = head.labels.label.clone();
        let mut scan = self.scan(&label);
        let (mut pages, mut durable) = (0, label.start.max(label.durable));
        while let Some(page) = scan.next()? {
            pages += 1;
            durable = durable.max(page.head.durable_pages());
        }
        let mut unread = scan.unread_end();
        scan.verify_end()?;
        // What has been flushed is there or damaged, which shows when it is read. Of the rest, data may be missing.
        let mut scan = self.scan(&label);
        let mut last = None;
        head.next = scan.at;
        while pages > 0 {
            let page = scan.next_there()?;
            if page.head.number >= durable && self.look_for_data(&page)?.ends_log(&mut unread) {
                break;
            }
            head.is_unmarked = !page.head.is_barrier && (head.is_unmarked || page.blocks() > 0);
            (head.next, last) = (scan.at, Some(page.head));
            pages -= 1;
        }
        Ok(Found { last, cut_pages: pages, unread })
    }

    /// Whether all data of a page is there.
    fn look_for_data(&self, page: &Page) -> Result<Data, Error> {
        look_for_data(&self.rings, page, |block, kept, position| {
            match self.verify_or_mend(block, kept.address, kept.sum, position) {
                Ok(()) => Ok(true),
                Err(Failure { error: crate::Error::Damaged { .. }, .. }) => Ok(false),
                Err(Failure { error, .. }) => Err(error),
            }
        })
    }

    /// Takes a page's blocks into the index.
    fn remember(&self, page: &Page) {
        let mut stages = self.stages.lock();
        for entry in &page.entries {
            match &entry.of {
                Of::Data(sums) => {
                    for (index, sum) in (0..).zip(sums) {
                        let version = Version { sum: *sum, place: Place::Log(entry.data + index) };
                        stages.found(entry.first + index, version);
                    }
                }
                Of::Zeros { .. } if self.options.order == Order::ForgetsZeros => {}
                Of::Zeros { count, keep } => {
                    for address in entry.first..entry.first + count {
                        stages.found(address, Version { sum: zero_sum(), place: Place::Zeros(*keep) });
                    }
                }
            }
        }
    }

    /// Gives the set a new generation, on both devices: one that misses it is older from then on. Pages from here on are of it; all before are
    /// durable.
    pub(super) fn begin_generation(&self, head: &mut Head) -> Result<(), Failure> {
        let mut main = self.main_side.lock();
        let (start, barrier) = (head.next.page, head.barrier);
        // An opening that was cut off has given main its generation or not, and nothing is of it yet: it is taken again, so that main
        // is never behind by more than one.
        let was_opening = head.labels.label.state == State::Opening;
        head.is_closed = false;
        let generation = head.labels.label.generation + u64::from(!was_opening);
        let is_asynchronous = self.options.mode == Mode::Asynchronous;
        let begun = head.labels.write(|label| {
            label.state = State::Opening;
            (label.generation, label.start, label.barrier) = (generation, start, barrier);
            label.durable = start;
            label.is_asynchronous = is_asynchronous;
        });
        head.note(begun.map_err(Failure::of(Side::Log)))?;
        let followed = main.labels.write(|label| {
            label.generation = generation;
            // Main may still lack what was written in that mode: it says so until it has everything.
            label.is_asynchronous |= is_asynchronous;
        });
        followed.map_err(Failure::of(Side::Main))?;
        let begun = head.labels.write(|label| label.state = State::Open);
        head.note(begun.map_err(Failure::of(Side::Log)))
    }

    /// The log's label begins the generation that the next opening takes, of which there is no page: what cannot be read behind the end is nothing
    /// then.
    pub(super) fn say_closed(&self, head: &mut Head) -> Result<(), Failure> {
        let closed = head.labels.write(|label| {
            label.state = State::Opening;
            label.generation += 1;
        });
        head.note(closed.map_err(Failure::of(Side::Log)))?;
        head.is_closed = true;
        Ok(())
    }

    /// The set is used on: before a page is written, the label says that there may be some.
    pub(super) fn say_open(&self, head: &mut Head) -> Result<(), Failure> {
        if !head.is_closed {
            return Ok(());
        }
        // Main's generation.
        let opened = head.labels.write(|label| (label.state, label.generation) = (State::Open, label.generation - 1));
        head.note(opened.map_err(Failure::of(Side::Log)))?;
        head.is_closed = false;
        Ok(())
    }
}

/// That the two devices are of one set, and at the same generation of it.
pub(super) fn judge(main: &Labelled, log: &Labelled) -> Result<(), Error> {
    let name = |of: &Labelled| -> Arc<str> { of.device.name().into() };
    let (of_main, of_log): (&Label, &Label) = (&main.label, &log.label);
    if of_main.set != of_log.set {
        return Err(Error::OtherSet { device: name(log), expected: of_main.set, got: of_log.set });
    }
    let (main_generation, log_generation) = (of_main.generation, of_log.generation);
    if of_main.main != of_log.main && of_main.generation <= of_log.generation {
        let (expected, got) = (of_log.main, of_main.main);
        return Err(Error::Replaced { device: name(main), role: Role::Main, expected, got });
    }
    if of_main.log != of_log.log {
        let (expected, got) = (of_main.log, of_log.log);
        return Err(Error::Replaced { device: name(log), role: Role::Log, expected, got });
    }
    if of_main.state == State::Alone {
        return Err(Error::Alone { device: name(main), generation: main_generation });
    }
    if log_generation < main_generation {
        return Err(Error::Older { device: name(log), expected: main_generation, got: log_generation });
    }
    let missed = log_generation - main_generation;
    if missed > 1 || (missed == 1 && of_log.state != State::Opening) {
        return Err(Error::Older { device: name(main), expected: log_generation, got: main_generation });
    }
    if of_main.blocks != of_log.blocks {
        let fault = super::Fault::new("blocks of the set's device", of_main.blocks, of_log.blocks);
        return Err(Error::Damaged { device: name(log), block: of_log.place(), fault });
    }
    Ok(())
}
