//! A set that outlasts its log: it goes on with main alone, and takes a log back, while it is in use.

use super::alone::{Alone, NotGrown};
use super::attach::Attached;
use super::create::set_blocks;
use super::device::{Flashlog, Mode, Options, Side};
use super::format::{AREA_UNIT_BLOCKS, LABEL_AREA_BLOCKS, Role};
use super::past::Uses;
use super::patience::Watch;
use super::policy::{Action, Policy, Symptom};
use super::{Error, Status, Uuid};
use crate::nbd::{Context, Extent, Extents, NOT_BACKED_UP, ZERO};
use crate::{BLOCK_SIZE, Device, Error as DeviceError, Latch, Operation, Read};
use parking_lot::{Mutex, RwLock};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

/// Whether what is written survives the loss of a device.
#[derive(Clone, Debug)]
pub enum Protection {
    /// Log and main are there.
    Protected,
    /// Main alone takes changes: what is written now is on no other device.
    Alone {
        /// The generation in which the log was there last.
        since: u64,
        /// When it went; `None` if main was alone already when it was opened.
        time: Option<SystemTime>,
        /// Blocks in regions that have changed since.
        changed_blocks: u64,
    },
    /// No changes are taken.
    Stopped {
        /// Why.
        cause: DeviceError,
    },
}

#[derive(Clone)]
enum Now {
    Set(Arc<Flashlog>),
    Alone(Arc<Alone>),
}

/// A set as one device, with its log or without. What becomes of it when a device fails is a [`Policy`]'s.
pub struct Lasting {
    name: Arc<str>,
    blocks: AtomicU64,
    options: Options,
    policy: Policy,
    /// A device has failed, and no changes are taken from whoever asks here. The set has a latch of its own.
    ended: Latch,
    /// Of all the sets that it has been: whoever reads a state of one needs the backup as it is.
    uses: Arc<Uses>,
    now: RwLock<Now>,
    /// One log at a time is attached or detached.
    changing: Mutex<()>,
    is_ending: AtomicBool,
}

impl Lasting {
    /// Takes a set that has been opened.
    pub fn of(set: Flashlog, policy: Policy) -> Lasting {
        let (blocks, options) = (set.blocks(), set.options.clone());
        Self::new(Now::Set(Arc::new(set)), blocks, options, policy)
    }

    /// Opens main without its log, which is lost or not there. What is written changes main at once. A main that was alone goes on as it is;
    /// one that was not is alone from then on. Of a set that was in asynchronous mode, the log may have what was answered and main has not:
    /// that is given up for good if `may_lose`.
    ///
    /// # Errors
    /// [`Error::Mixture`] if main is nothing without the log; [`Error::PerhapsBehind`] without `may_lose`.
    pub fn open_alone(
        main: Arc<dyn Device>,
        options: &Options,
        policy: Policy,
        may_lose: bool,
    ) -> Result<Lasting, Error> {
        let alone = Alone::open(main, options, may_lose)?;
        tracing::warn!(device = alone.name(), "main is without a log: what is written is not protected");
        let blocks = alone.blocks;
        Ok(Self::new(Now::Alone(Arc::new(alone)), blocks, options.clone(), policy))
    }

    fn new(now: Now, blocks: u64, options: Options, policy: Policy) -> Lasting {
        let (name, uses) = match &now {
            Now::Set(set) => (set.name().into(), Arc::clone(&set.uses)),
            Now::Alone(alone) => (alone.name().into(), Arc::default()),
        };
        let (now, changing) = (RwLock::new(now), Mutex::new(()));
        let (blocks, ended, is_ending) = (AtomicU64::new(blocks), Latch::new(), AtomicBool::new(false));
        Lasting { name, blocks, options, policy, ended, uses, now, changing, is_ending }
    }

    /// The set, if it has its log: for backups and the like.
    pub fn set(&self) -> Option<Arc<Flashlog>> {
        match self.now() {
            Now::Set(set) => Some(set),
            Now::Alone(_) => None,
        }
    }

    /// Who watches the devices, if anybody does.
    pub fn watch(&self) -> Option<&Arc<Watch>> {
        self.options.watch.as_ref()
    }

    /// What is done when a device fails.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How well what is written is protected.
    pub fn protection(&self) -> Protection {
        self.look().1
    }

    /// The same, and how the set is doing. Of a log that is not there all figures are 0.
    pub fn status(&self) -> (Status, Protection) {
        match self.look() {
            (Now::Set(set), protection) => (set.status(), protection),
            (Now::Alone(alone), protection) => (alone.status(&self.options), protection),
        }
    }

    fn look(&self) -> (Now, Protection) {
        loop {
            let now = self.now();
            let protection = match &now {
                Now::Set(set) => match set.latch.cause() {
                    Some(_) if self.goes_on_without(set) => continue,
                    Some(cause) => Protection::Stopped { cause: cause.clone() },
                    None => Protection::Protected,
                },
                Now::Alone(alone) => match self.ended.cause() {
                    Some(cause) => Protection::Stopped { cause: cause.clone() },
                    None => {
                        let marks = alone.marks.lock();
                        let (since, changed_blocks) = (marks.labels.label.left, marks.changed.marked_blocks());
                        Protection::Alone { since, time: alone.time, changed_blocks }
                    }
                },
            };
            return (now, protection);
        }
    }

    /// Makes everything durable on main.
    ///
    /// # Errors
    /// As for [`Device::flush`].
    pub fn settle(&self) -> Result<(), DeviceError> {
        self.act(Operation::Flush, (None, 0), |now| match now {
            Now::Set(set) => set.settle(),
            Now::Alone(alone) => alone.settle(),
        })
    }

    /// As [`Lasting::settle`], for closing: a copy of main or log that was made while the set was in use is refused from then on, as
    /// [`Flashlog::close`] has it.
    ///
    /// # Errors
    /// As for [`Device::flush`].
    pub fn close(&self) -> Result<(), DeviceError> {
        self.act(Operation::Flush, (None, 0), |now| match now {
            Now::Set(set) => set.close(),
            Now::Alone(alone) => alone.settle(),
        })
    }

    /// Main gets everything, the log can be taken away, and main is alone from then on.
    ///
    /// # Errors
    /// [`Error::Protection`] if it is alone; [`Error::Device`].
    pub fn detach_log(&self) -> Result<(), Error> {
        let _changing = self.changing.lock();
        let Now::Set(set) = self.now() else { return Err(self.refuse("without a log")) };
        self.part(&set)
    }

    fn part(&self, set: &Arc<Flashlog>) -> Result<(), Error> {
        set.leave_log()?;
        match self.go_alone(set)? {
            true => Ok(()),
            false => Err(self.refuse("while the log has what main has not")),
        }
    }

    /// Main is larger, and the set becomes so. The log leaves, main's labels go to its new end while main is alone, and the log comes back;
    /// cut off in between, main is alone, as large as it was or as it is to be, and takes its log.
    fn grow_onto(&self, device_blocks: u64) -> Result<u64, Error> {
        let uses = self.uses.write(&self.name)?;
        let log = match self.now() {
            Now::Set(set) => {
                self.part(&set)?;
                Some(Arc::clone(&set.rings.device))
            }
            Now::Alone(_) => None,
        };
        let Now::Alone(alone) = self.now() else { return Err(self.refuse("with a log")) };
        let grown = match alone.grown(device_blocks) {
            Ok(grown) => Arc::new(grown),
            Err(NotGrown { error, is_as_before: false }) => {
                self.ended.close(&error);
                return Err(self.parted(log.is_some(), error.into()));
            }
            Err(NotGrown { error, is_as_before: true }) => {
                drop(uses);
                let is_parted = log.is_some_and(|log| !self.take_back(&alone, log));
                return Err(self.parted(is_parted, error.into()));
            }
        };
        *self.now.write() = Now::Alone(Arc::clone(&grown));
        self.blocks.store(grown.blocks, Ordering::Release);
        tracing::info!(device = &*self.name, blocks = grown.blocks, "the set has become larger");
        drop(uses);
        if let Some(log) = log {
            self.take_back(&grown, log);
        }
        Ok(grown.blocks)
    }

    /// The log that has left for a moment comes back. Whether it did; whoever asks is told that main is alone if not.
    fn take_back(&self, alone: &Alone, log: Arc<dyn Device>) -> bool {
        match alone.join(log, &self.options) {
            Ok((set, _opened, _attached)) => {
                self.take_over(set);
                true
            }
            Err(error) => {
                tracing::error!(device = &*self.name, %error, "the log that has left does not come back");
                false
            }
        }
    }

    fn parted(&self, is_parted: bool, cause: Error) -> Error {
        let device = Arc::clone(&self.name);
        if is_parted { Error::Parted { device, cause: Box::new(cause) } } else { cause }
    }

    /// What is done with main from now on is done with this set.
    fn take_over(&self, mut set: Flashlog) {
        set.uses = Arc::clone(&self.uses);
        let set = Arc::new(set);
        *self.now.write() = Now::Set(Arc::clone(&set));
        if self.is_ending.load(Ordering::SeqCst) {
            set.end_main();
        }
        self.options.timer.wake();
    }

    /// Gives main the log that it had. It gets what has changed meanwhile; the set is in use all the time, and stands still only at the end.
    /// A set that has stopped because its log failed, as main had not everything or the policy wants it so, goes on with it: everything that was
    /// answered is there.
    ///
    /// # Errors
    /// [`Error`] tells why it cannot be this one; main is alone, or the set has stopped, as before.
    pub fn attach_log(&self, log: Arc<dyn Device>) -> Result<Attached, Error> {
        self.attach(|alone| alone.join(Arc::clone(&log), &self.options), |stopped| stopped.rejoin(Arc::clone(&log)))
    }

    /// Gives main a new log with this name, which must be random. What the device had is lost. The next backup copies what the backup may
    /// lack, if that is known, or compares everything with main.
    ///
    /// # Errors
    /// [`Error::TooSmall`], [`Error::Device`]; main is alone as before. [`Error::Protection`] if main has not everything.
    pub fn attach_new_log(&self, log: Arc<dyn Device>, name: Uuid) -> Result<Attached, Error> {
        self.attach(
            |alone| alone.join_new(Arc::clone(&log), name, &self.options),
            |_| Err(self.refuse("with another log: the one that has gone has what main has not")),
        )
    }

    fn attach(
        &self,
        join: impl FnOnce(&Alone) -> Result<(Flashlog, super::Opened, Attached), Error>,
        rejoin: impl FnOnce(&Flashlog) -> Result<(Flashlog, Attached), Error>,
    ) -> Result<Attached, Error> {
        let _changing = self.changing.lock();
        let join = |alone: &Alone| join(alone).map(|(set, _opened, attached)| (set, attached));
        let (set, attached) = match self.look().0 {
            Now::Alone(alone) => join(&alone)?,
            Now::Set(set) if set.latch.cause().is_none() || set.failed_role() != Role::Log => {
                return Err(self.refuse("with a log"));
            }
            Now::Set(stopped) => match stopped.alone() {
                // It has everything, and was not to go on without the log.
                Some(alone) => join(&alone?)?,
                // It may have been stopping when it was asked first.
                None if stopped.failed_role() != Role::Log => return Err(self.refuse("with a log")),
                None => rejoin(&stopped)?,
            },
        };
        self.take_over(set);
        tracing::info!(device = &*self.name, ?attached, "main has a log again");
        Ok(attached)
    }

    /// As [`Flashlog::serve_main`], through all changes of the log.
    pub fn serve_main(&self) {
        self.serve(Flashlog::serve_main);
    }

    /// As [`Flashlog::serve_log`], through all changes of the log.
    pub fn serve_log(&self) {
        self.serve(Flashlog::serve_log);
    }

    /// As [`Flashlog::serve_reads`], through all changes of the log.
    pub fn serve_reads(&self) {
        if self.options.mode == Mode::Asynchronous {
            self.serve(Flashlog::serve_reads);
        }
    }

    fn serve(&self, serve: impl Fn(&Flashlog)) {
        while !self.is_ending.load(Ordering::SeqCst) {
            let ticket = self.options.timer.ticket();
            match self.now() {
                Now::Set(set) if set.latch.cause().is_none() => serve(&set),
                Now::Set(set) if self.goes_on_without(&set) => {}
                _ if self.is_ending.load(Ordering::SeqCst) => {}
                _ => self.options.timer.wait(ticket, None),
            }
        }
    }

    /// Ends [`Lasting::serve_main`], [`Lasting::serve_log`] and [`Lasting::serve_reads`].
    pub fn end_main(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        if let Now::Set(set) = self.now() {
            set.end_main();
        }
        self.options.timer.wake();
    }

    fn refuse(&self, with: &'static str) -> Error {
        Error::Protection { device: Arc::clone(&self.name), with }
    }

    fn now(&self) -> Now {
        self.now.read().clone()
    }

    /// Does what the policy says of a failure of main or log that somebody else got from the set: a backup, say. Whoever uses this device need
    /// not tell it what it has answered.
    pub fn heed(&self, error: &DeviceError) {
        self.heed_with(&self.now(), error);
    }

    fn heed_with(&self, now: &Now, error: &DeviceError) {
        let root = error.root();
        let is_of = |device: &Arc<dyn Device>| root.device() == device.name();
        let (role, side) = match now {
            _ if !root.is_device_failure() => return,
            Now::Set(set) if is_of(&set.rings.device) => (Role::Log, Side::Log),
            Now::Set(set) if is_of(&set.main) => (Role::Main, Side::Main),
            Now::Alone(alone) if is_of(&alone.main) => (Role::Main, Side::Main),
            _ => return,
        };
        if self.policy.entry(role, Symptom::of(error), self.options.mode).action == Action::Tell {
            return;
        }
        match now {
            Now::Set(set) if set.latch.cause().is_none() => set.fail(side, root.clone()),
            Now::Set(_) => {}
            Now::Alone(_) => {
                if self.ended.close(root) {
                    tracing::error!(device = &*self.name, error = %root, "a device failed: no changes are taken");
                }
            }
        }
    }

    /// Refuses what the policy does not let through any more.
    fn check(&self, now: &Now, operation: Operation, place: (Option<u64>, u64)) -> Result<(), DeviceError> {
        let (latch, role) = match now {
            Now::Set(set) => (&set.latch, set.failed_role()),
            Now::Alone(_) => (&self.ended, Role::Main),
        };
        let Some(cause) = latch.cause() else { return Ok(()) };
        let is_stopped = || self.policy.entry(role, Symptom::of(cause), self.options.mode).action == Action::Stop;
        // The set itself refuses changes.
        if operation != Operation::Read && matches!(now, Now::Alone(_)) || is_stopped() {
            return latch.check(&self.name, operation, place.0, place.1);
        }
        Ok(())
    }

    /// Whether the set has ended and main takes over, as the policy wants it.
    fn goes_on_without(&self, set: &Arc<Flashlog>) -> bool {
        let Some(cause) = set.latch.cause() else { return false };
        let entry = self.policy.entry(Role::Log, Symptom::of(cause), self.options.mode);
        let is_wanted = set.is_leaving.load(Ordering::SeqCst)
            || set.failed_role() == Role::Log && entry.action == Action::GoOnAlone;
        if !is_wanted {
            return false;
        }
        match self.go_alone(set) {
            Ok(is_alone) => is_alone,
            Err(error) => {
                tracing::error!(device = &*self.name, %error, "main cannot go on alone");
                false
            }
        }
    }

    /// Lets main take over from a set whose log is gone. `Ok(false)` if that cannot be.
    fn go_alone(&self, ended: &Arc<Flashlog>) -> Result<bool, Error> {
        let Some(alone) = ended.alone() else { return Ok(false) };
        let mut now = self.now.write();
        if matches!(&*now, Now::Set(set) if Arc::ptr_eq(set, ended)) {
            tracing::warn!(device = &*self.name, "main is without a log: what is written is not protected");
            *now = Now::Alone(Arc::new(alone?));
            drop(now);
            self.options.timer.wake();
        }
        Ok(true)
    }

    /// Does it with what there is, and again if that has changed meanwhile.
    fn act<T>(
        &self,
        operation: Operation,
        place: (Option<u64>, u64),
        mut act: impl FnMut(&Now) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        loop {
            let now = self.now();
            let error = match self.check(&now, operation, place).and_then(|()| act(&now)) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            self.heed_with(&now, &error);
            let has_changed = match &now {
                Now::Set(set) => self.goes_on_without(set),
                Now::Alone(alone) => alone.is_over(),
            };
            if !has_changed {
                return Err(error);
            }
        }
    }
}

impl Extents for Lasting {
    fn contexts(&self) -> &[Context] {
        Flashlog::CONTEXTS
    }

    /// What no log takes, no backup gets before the log is back: all of it is said to lack.
    fn extent(&self, context: Context, first: u64, most: u64) -> Result<Extent, DeviceError> {
        match (self.look().0, context) {
            (Now::Set(set), _) => set.extent(context, first, most),
            (Now::Alone(_), Context::BackUp) => Ok(Extent { blocks: most, flags: NOT_BACKED_UP }),
            (Now::Alone(alone), _) => Ok(alone.allocation(first, most)),
        }
    }

    fn zeros_ahead(&self, first: u64, most: u64) -> u64 {
        let Extent { blocks, flags } = self.allocation(first, most);
        if flags & ZERO == 0 { 0 } else { blocks }
    }
}

impl Device for Lasting {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceError> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.act(Operation::Read, (Some(first), length_bytes), |now| match now {
            Now::Set(set) => set.read(first, bufs),
            Now::Alone(alone) => alone.read(first, bufs),
        })
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        let place = (reads.first().map(|read| read.first), 0);
        self.act(Operation::Read, place, |now| match now {
            Now::Set(set) => set.read_batch(reads),
            Now::Alone(alone) => alone.read_batch(reads),
        })
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        let length_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.act(Operation::Write, (Some(first), length_bytes), |now| match now {
            Now::Set(set) => set.write(first, bufs),
            Now::Alone(alone) => alone.write(first, bufs),
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.act(Operation::Flush, (None, 0), |now| match now {
            Now::Set(set) => set.flush(),
            Now::Alone(alone) => alone.flush(),
        })
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), DeviceError> {
        let place = (Some(first), count.saturating_mul(BLOCK_SIZE as u64));
        self.act(Operation::Discard, place, |now| match now {
            Now::Set(set) => set.discard(first, count),
            Now::Alone(alone) => alone.discard(first, count),
        })
    }

    fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, DeviceError> {
        let place = (Some(first), count.saturating_mul(BLOCK_SIZE as u64));
        self.act(Operation::Write, place, |now| match now {
            Now::Set(set) => set.zero(first, count, keep),
            Now::Alone(alone) => alone.zero(first, count, keep),
        })
    }

    fn writes_zeros(&self, keep: bool) -> bool {
        match self.now() {
            Now::Set(set) => set.writes_zeros(keep),
            Now::Alone(alone) => alone.writes_zeros(keep),
        }
    }

    fn allocation(&self, first: u64, most: u64) -> Extent {
        match self.now() {
            Now::Set(set) => set.allocation(first, most),
            Now::Alone(alone) => alone.allocation(first, most),
        }
    }

    fn grow(&self, blocks: u64) -> Result<u64, DeviceError> {
        let _changing = self.changing.lock();
        let before = self.blocks();
        if (1..=before).contains(&blocks) {
            return Ok(before);
        }
        let (main, from) = match self.now() {
            Now::Set(set) => (Arc::clone(&set.main), set.main_side.lock().labels.label.device_blocks),
            Now::Alone(alone) => (Arc::clone(&alone.main), alone.marks.lock().labels.label.device_blocks),
        };
        // The labels of both ends must have a place of their own.
        let wanted = blocks.next_multiple_of(AREA_UNIT_BLOCKS).max(from) + LABEL_AREA_BLOCKS;
        let device_blocks = main.grow(if blocks == 0 { 0 } else { wanted })?;
        let has_place = device_blocks == from || device_blocks >= from + LABEL_AREA_BLOCKS;
        if set_blocks(device_blocks) <= before || !has_place {
            return Ok(before);
        }
        self.grow_onto(device_blocks).map_err(|error| match error {
            Error::Device(error) | Error::LabelUnread { cause: error, .. } => error,
            error => {
                tracing::error!(device = &*self.name, %error, "the set cannot become larger");
                let reason = match error {
                    Error::Busy { .. } => "its backup is in use, and the set cannot become larger now",
                    Error::Parted { .. } => {
                        "the set cannot become larger, and its log has not come back: main is without it; its log file tells why"
                    }
                    _ => "the set cannot become larger; its log tells why",
                };
                DeviceError::Unsuitable { device: Arc::clone(&self.name), reason }
            }
        })
    }
}
