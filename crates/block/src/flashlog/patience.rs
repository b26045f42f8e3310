//! Devices that are read again, or waited for, before a failure of theirs counts; and what is known of their failures.
//!
//! A device that comes back gets what was written since its last flush once more, if it is the one that went: by its label, and by some of
//! the blocks that were flushed last. Nobody above sees more of it than that a request took long.

use super::device::{Options, Order};
use super::format::{Decoded, LABELS_BLOCKS, Label, Role, Uuid};
use super::labels::newest;
use super::policy::{Patience, Policy, Symptom};
use super::turns::Timer;
use super::unread::Unread;
use super::{Error, Mode};
use crate::device::{read_one_by_one, write_zeros};
use crate::nbd::Extent;
use crate::{AlignedBuf, BLOCK_SIZE, Device, Error as DeviceError, Read, Write};
use holdfast_integrity::crc64;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A device that has gone is looked for so often.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// So long it is asked whether a device has gone whose write or flush has failed, and how often.
const GOING_MOST: Duration = Duration::from_secs(1);
const GOING_EVERY: Duration = Duration::from_millis(50);
/// So much is kept of what a device has not flushed: then it is flushed.
const UNFLUSHED_BYTES_MOST: usize = 16 << 20;
/// Blocks that a device is recognised by.
const WITNESSES: usize = 32;

/// Where devices are: paths, which this crate knows nothing of. Devices are called by their [names](Device::name).
pub trait Source: Send + Sync {
    /// A device of this name is in use from now on.
    fn opened(&self, name: &str);
    /// Whether it is still there. Asked after a request that has failed.
    fn is_there(&self, name: &str) -> bool;
    /// Opens what is in its place for exclusive use; nobody has the one before any more. None if there is nothing.
    fn reopen(&self, name: &str) -> Option<Arc<dyn Device>>;
}

/// How a device has failed so far.
#[derive(Clone, Debug, Default)]
pub struct Trouble {
    /// It has gone, and is waited for since then.
    pub waiting_since: Option<SystemTime>,
    /// What is in its place, and why it is not the one.
    pub refused: Option<String>,
    /// So often it was gone and came back.
    pub returns: u64,
    /// Reads that failed and did not when they were tried again.
    pub mended_reads: u64,
    /// Reads that failed for good, and were told to whoever asked.
    pub failed_reads: u64,
    /// Blocks of these that were neither read nor written since.
    pub unread_blocks: u64,
    /// The last failure.
    pub last: Option<DeviceError>,
}

/// What is known of the devices of a set, and how long they are waited for.
pub struct Watch {
    policy: Policy,
    mode: Mode,
    timer: Arc<dyn Timer>,
    now: Arc<dyn Fn() -> SystemTime + Send + Sync>,
    source: Box<dyn Source>,
    troubles: Mutex<Vec<(Role, Trouble)>>,
    /// Of main, log and backup.
    unread: Mutex<[Unread; 3]>,
    has_unread: AtomicBool,
    is_ending: AtomicBool,
    is_closing: AtomicBool,
    order: Order,
}

impl Watch {
    /// With the mode and the clocks of these options.
    pub fn new(policy: Policy, options: &Options, source: Box<dyn Source>) -> Arc<Watch> {
        let (timer, now) = (Arc::clone(&options.timer), Arc::clone(&options.now));
        let (troubles, is_ending, is_closing) = (Mutex::default(), AtomicBool::new(false), AtomicBool::new(false));
        let (unread, has_unread) = (Mutex::default(), AtomicBool::new(false));
        let (mode, order) = (options.mode, options.order);
        Arc::new(Watch { policy, mode, timer, now, source, troubles, unread, has_unread, is_ending, is_closing, order })
    }

    /// The device as one that has the policy's patience.
    ///
    /// # Errors
    /// Its label cannot be read, or, if it is waited for, what is in its cache cannot be made durable.
    pub fn over(self: &Arc<Watch>, role: Role, device: Arc<dyn Device>) -> Result<Arc<dyn Device>, Error> {
        Ok(Arc::new(Patient::new(Arc::clone(self), role, device)?))
    }

    /// What has befallen the devices, of those that something has.
    pub fn troubles(&self) -> Vec<(Role, Trouble)> {
        let mut troubles = self.troubles.lock().clone();
        let unread = self.unread.lock();
        for (role, trouble) in &mut troubles {
            trouble.unread_blocks = unread[*role as usize].blocks();
        }
        troubles
    }

    /// A read of these blocks has failed.
    fn note_failed(&self, role: Role, blocks: Range<u64>) {
        self.unread.lock()[role as usize].failed(blocks);
        self.has_unread.store(true, Ordering::SeqCst);
    }

    /// These blocks were read, or written.
    fn note_well(&self, role: Role, blocks: Range<u64>) {
        if self.has_unread.load(Ordering::SeqCst) {
            let mut unread = self.unread.lock();
            unread[role as usize].well(&blocks);
            self.has_unread.store(unread.iter().any(|unread| unread.blocks() > 0), Ordering::SeqCst);
        }
    }

    /// Whether anybody waits for a device.
    pub(super) fn is_waiting(&self) -> bool {
        self.troubles.lock().iter().any(|(_, trouble)| trouble.waiting_since.is_some())
    }

    /// Nobody waits any longer, nor from now on: what a device fails at has failed.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.timer.wake();
    }

    /// The set is about to be closed: backups, and logs on their way back, are cut off where they are, and no backup is waited for. They go on with
    /// the next one, as after a power cut.
    pub fn cut_off(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        self.timer.wake();
    }

    /// Whether a device of this role is neither waited for nor tried again: what it fails at has failed.
    fn is_over(&self, role: Role) -> bool {
        self.is_ending.load(Ordering::SeqCst) || role == Role::Backup && self.is_closing.load(Ordering::SeqCst)
    }

    /// That the set stays open.
    pub(super) fn check_open(&self, device: &Arc<str>) -> Result<(), DeviceError> {
        match self.is_closing.load(Ordering::SeqCst) {
            true => Err(DeviceError::Unsuitable { device: Arc::clone(device), reason: "the set is being closed" }),
            false => Ok(()),
        }
    }

    fn note(&self, role: Role, note: impl FnOnce(&mut Trouble)) {
        let mut all = self.troubles.lock();
        let at = all.iter().position(|(of, _)| *of == role).unwrap_or_else(|| {
            all.push((role, Trouble::default()));
            all.len() - 1
        });
        note(&mut all[at].1);
    }

    /// Until then, or until nobody is to wait for such a device.
    fn pause(&self, role: Role, until: Duration) {
        loop {
            let ticket = self.timer.ticket();
            if self.timer.now() >= until || self.is_over(role) {
                return;
            }
            self.timer.wait(ticket, Some(until));
        }
    }
}

/// Who a device is, and which of its labels is the newest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    set: Uuid,
    own: Uuid,
    generation: u64,
    sequence: u64,
}

impl Identity {
    fn of(label: &Label) -> Identity {
        let own = match label.role {
            Role::Main => label.main,
            Role::Log => label.log,
            Role::Backup => label.backup,
        };
        Identity { set: label.set, own, generation: label.generation, sequence: label.sequence }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { set, own, generation, sequence } = self;
        write!(f, "{own} of set {set}, generation {generation}, label {sequence}")
    }
}

/// Something that the device has done and may forget.
struct Done {
    first: u64,
    what: What,
    identity: Option<Identity>,
}

enum What {
    Write(AlignedBuf),
    Zero { count: u64, keep: bool },
}

/// What a device that comes back is recognised by, and what it gets.
#[derive(Default)]
struct Memory {
    unflushed: VecDeque<Done>,
    /// Number of the first of them.
    first: u64,
    bytes: usize,
    /// The label that it has durably, and those that it may have.
    labels: Vec<Identity>,
    /// Blocks that were flushed, with checksums, the last ones.
    witnesses: VecDeque<(u64, u64)>,
}

impl Memory {
    /// These blocks are about to be something else.
    fn begin(&mut self, blocks: Range<u64>, identity: Option<Identity>) {
        self.witnesses.retain(|(address, _)| !blocks.contains(address));
        self.labels.extend(identity);
    }

    fn done(&mut self, done: Done) {
        if let What::Write(bytes) = &done.what {
            self.bytes += bytes.len();
        }
        self.unflushed.push_back(done);
    }

    /// Everything before this number is durable.
    fn flushed(&mut self, end: u64) {
        while self.first < end {
            let Some(Done { first, what, identity }) = self.unflushed.pop_front() else { return };
            self.first += 1;
            if let Some(at) = identity.and_then(|identity| self.labels.iter().position(|known| *known == identity)) {
                self.labels.drain(..at);
            }
            let What::Write(bytes) = what else { continue };
            self.bytes -= bytes.len();
            let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
            let Some(last) = blocks.last().filter(|_| !self.is_unflushed(first + blocks.len() as u64 - 1)) else {
                continue;
            };
            self.witnesses.push_back((first + blocks.len() as u64 - 1, crc64(last)));
            if self.witnesses.len() > WITNESSES {
                self.witnesses.pop_front();
            }
        }
    }

    fn is_unflushed(&self, address: u64) -> bool {
        self.unflushed.iter().any(|done| {
            let count = match &done.what {
                What::Write(bytes) => (bytes.len() / BLOCK_SIZE) as u64,
                What::Zero { count, .. } => *count,
            };
            (done.first..done.first + count).contains(&address)
        })
    }
}

/// The device that there is, or why there is none.
struct Now {
    device: Result<Arc<dyn Device>, DeviceError>,
    /// So often that has changed.
    epoch: u64,
}

/// A device with the policy's patience.
struct Patient {
    name: Arc<str>,
    role: Role,
    watch: Arc<Watch>,
    blocks: AtomicU64,
    /// It is waited for, so that what it may forget is kept.
    is_kept: bool,
    now: RwLock<Now>,
    memory: Mutex<Memory>,
}

impl Patient {
    fn new(watch: Arc<Watch>, role: Role, device: Arc<dyn Device>) -> Result<Patient, Error> {
        let patience = watch.policy.entry(role, Symptom::Gone, watch.mode).patience;
        let is_kept = patience != Patience::None;
        if is_kept {
            // What a killed process has left in its cache nobody could give it again.
            device.flush()?;
        }
        let mut memory = Memory::default();
        if let Decoded::Valid(label) = newest(&*device, role)? {
            memory.labels.push(Identity::of(&label));
        }
        watch.source.opened(device.name());
        watch.unread.lock()[role as usize].is_of(&device.name().into());
        Ok(Patient {
            name: device.name().into(),
            role,
            blocks: AtomicU64::new(device.blocks()),
            is_kept,
            now: RwLock::new(Now { device: Ok(device), epoch: 0 }),
            memory: Mutex::new(memory),
            watch,
        })
    }

    /// Does it with the device that there is, as often and as long as the policy says.
    fn with<T>(&self, mut act: impl FnMut(&dyn Device) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        if self.role == Role::Backup {
            self.watch.check_open(&self.name)?;
        }
        let mut tries = 0;
        loop {
            let (error, epoch) = {
                let now = self.now.read();
                let device = now.device.as_ref().map_err(Clone::clone)?;
                match act(&**device) {
                    Ok(done) => {
                        if tries > 0 {
                            self.watch.note(self.role, |trouble| trouble.mended_reads += 1);
                        }
                        return Ok(done);
                    }
                    Err(error) => (error, now.epoch),
                }
            };
            if !error.root().is_device_failure() {
                return Err(error);
            }
            let error = self.or_gone(error);
            let symptom = Symptom::of(&error);
            match self.watch.policy.entry(self.role, symptom, self.watch.mode).patience {
                Patience::Retry { times, pause } if tries < times && !self.watch.is_over(self.role) => {
                    tries += 1;
                    self.watch.pause(self.role, self.watch.timer.now() + pause);
                }
                Patience::Wait { most } => self.wait(epoch, &error, most)?,
                _ => {
                    tracing::error!(device = &*self.name, %error, "a request failed");
                    self.watch.note(self.role, |trouble| {
                        trouble.failed_reads += u64::from(symptom == Symptom::Read);
                        trouble.last = Some(error.clone());
                    });
                    return Err(error);
                }
            }
        }
    }

    /// A device that was unplugged says anything; what is in its place tells. The system may fail its requests before it takes the place away, so
    /// it is asked for a while, if another thing is to be done then. (A read is tried again anyway.)
    fn or_gone(&self, error: DeviceError) -> DeviceError {
        let (symptom, watch) = (Symptom::of(&error), &self.watch);
        if symptom == Symptom::Gone {
            return error;
        }
        let [of_gone, of_symptom] =
            [Symptom::Gone, symptom].map(|symptom| watch.policy.entry(self.role, symptom, watch.mode));
        let is_patient = symptom != Symptom::Read && of_gone != of_symptom;
        let until = watch.timer.now() + GOING_MOST;
        while watch.source.is_there(&self.name) {
            let at = watch.timer.now();
            if !is_patient || at >= until || watch.is_over(self.role) {
                return error;
            }
            watch.pause(self.role, until.min(at + GOING_EVERY));
        }
        let (device, operation, first) = (Arc::clone(&self.name), error.operation(), error.first());
        let source = Arc::new(io::Error::from_raw_os_error(libc::ENODEV));
        DeviceError::Io { device, operation, first, length_bytes: error.length_bytes(), source }
    }

    /// Waits for the device, unless somebody has done so since.
    fn wait(&self, epoch: u64, error: &DeviceError, most: Duration) -> Result<(), DeviceError> {
        let mut now = self.now.write();
        if now.epoch != epoch {
            return Ok(());
        }
        let (watch, role) = (&self.watch, self.role);
        // Nobody else can open it otherwise.
        *now = Now { device: Err(error.clone()), epoch: epoch + 1 };
        let since = (watch.now)();
        watch.note(role, |trouble| (trouble.waiting_since, trouble.last) = (Some(since), Some(error.clone())));
        watch.timer.wake();
        tracing::error!(device = &*self.name, %error, ?most, "the {role} device has gone, and is waited for");
        let until = watch.timer.now() + most;
        let back = loop {
            if watch.is_over(role) {
                break None;
            }
            let found = watch.source.reopen(&self.name);
            let judged = found.map(|device| self.resume(&*device).map(|()| device));
            match judged {
                Some(Ok(device)) => break Some(device),
                Some(Err(why)) => {
                    tracing::warn!(device = &*self.name, why, "what is there is not the device that has gone");
                    watch.note(role, |trouble| trouble.refused = Some(why));
                }
                None => watch.note(role, |trouble| trouble.refused = None),
            }
            let at = watch.timer.now();
            if at >= until {
                break None;
            }
            watch.pause(role, until.min(at + LOOK_EVERY));
        };
        watch.note(role, |trouble| {
            (trouble.waiting_since, trouble.refused) = (None, None);
            trouble.returns += u64::from(back.is_some());
        });
        let Some(device) = back else { return Err(error.clone()) };
        tracing::warn!(device = &*self.name, "the {role} device is back");
        watch.source.opened(&self.name);
        now.device = Ok(device);
        watch.timer.wake();
        Ok(())
    }

    /// Recognises the device, and gives it what it may have forgotten.
    fn resume(&self, device: &dyn Device) -> Result<(), String> {
        let mut memory = self.memory.lock();
        let says = |error: DeviceError| error.to_string();
        if device.blocks() < self.blocks.load(Ordering::Acquire) {
            return Err(format!("it has {} blocks only", device.blocks()));
        }
        match newest(device, self.role).map_err(says)? {
            Decoded::Valid(label) if memory.labels.contains(&Identity::of(&label)) => {}
            Decoded::Valid(label) => {
                let (role, is) = (self.role, Identity::of(&label));
                let had: Vec<String> = memory.labels.iter().map(Identity::to_string).collect();
                let had = had.join(", or ");
                return Err(format!("it is the {role} device {is}, and the one that has gone is {had}"));
            }
            _ => return Err("it has no label".into()),
        }
        for (address, sum) in &memory.witnesses {
            let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
            device.read(*address, &mut [IoSliceMut::new(&mut block)]).map_err(says)?;
            if crc64(&block) != *sum {
                return Err(format!("block {address} is not as it was flushed: an older copy, or it lost something"));
            }
        }
        for Done { first, what, .. } in &memory.unflushed {
            match what {
                _ if self.watch.order == Order::ForgetsUnflushed => {}
                What::Write(bytes) => device.write(*first, &[IoSlice::new(bytes)]).map_err(says)?,
                What::Zero { count, keep } => {
                    if !device.zero(*first, *count, *keep).map_err(says)? {
                        write_zeros(device, *first, *count).map_err(says)?;
                    }
                }
            }
        }
        device.flush().map_err(says)?;
        let end = memory.first + memory.unflushed.len() as u64;
        memory.flushed(end);
        Ok(())
    }

    fn begin(&self, first: u64, count: u64, bufs: &[IoSlice<'_>]) {
        if self.is_kept {
            let identity = self.label_in(first, bufs);
            self.memory.lock().begin(first..first + count, identity);
        }
    }

    /// Remembers what the device has done. Before anybody can find it gone.
    fn done(&self, first: u64, what: impl FnOnce() -> (What, Option<Identity>)) {
        if self.is_kept {
            let (what, identity) = what();
            self.memory.lock().done(Done { first, what, identity });
        }
    }

    fn label_in(&self, first: u64, bufs: &[IoSlice<'_>]) -> Option<Identity> {
        let blocks = self.blocks.load(Ordering::Acquire);
        let area = Label::area(self.role, blocks);
        if !(area..area + LABELS_BLOCKS).contains(&first) {
            return None;
        }
        let bytes = gathered(bufs);
        match Label::decode(bytes.first_chunk()?, first, blocks) {
            Decoded::Valid(label) => Some(Identity::of(&label)),
            _ => None,
        }
    }

    fn relieve(&self) -> Result<(), DeviceError> {
        if self.memory.lock().bytes > UNFLUSHED_BYTES_MOST { self.flush() } else { Ok(()) }
    }
}

fn gathered(bufs: &[IoSlice<'_>]) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(bufs.iter().map(|buf| buf.len()).sum());
    let mut at = 0;
    for buf in bufs {
        bytes[at..at + buf.len()].copy_from_slice(buf);
        at += buf.len();
    }
    bytes
}

fn blocks_of(bufs: &[IoSlice<'_>]) -> u64 {
    (bufs.iter().map(|buf| buf.len()).sum::<usize>() / BLOCK_SIZE) as u64
}

impl Device for Patient {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceError> {
        let blocks = first..first + (bufs.iter().map(|buf| buf.len()).sum::<usize>() / BLOCK_SIZE) as u64;
        let done = self.with(|device| device.read(first, bufs));
        match &done {
            Ok(()) => self.watch.note_well(self.role, blocks),
            Err(error) if error.root().is_device_failure() && Symptom::of(error) == Symptom::Read => {
                self.watch.note_failed(self.role, blocks);
            }
            Err(_) => {}
        }
        done
    }

    fn read_batch(&self, reads: &mut [Read<'_>]) -> Result<(), DeviceError> {
        let is_done = match &self.now.read().device {
            Ok(device) => device.read_batch(reads),
            Err(error) => Err(error.clone()),
        };
        if is_done.is_ok() {
            for Read { first, bufs, .. } in reads.iter() {
                let blocks = (bufs.iter().map(|buf| buf.len()).sum::<usize>() / BLOCK_SIZE) as u64;
                self.watch.note_well(self.role, *first..*first + blocks);
            }
            return Ok(());
        }
        read_one_by_one(self, reads)
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        self.begin(first, blocks_of(bufs), bufs);
        self.with(|device| {
            device.write(first, bufs)?;
            self.done(first, || (What::Write(gathered(bufs)), self.label_in(first, bufs)));
            Ok(())
        })?;
        self.watch.note_well(self.role, first..first + blocks_of(bufs));
        self.relieve()
    }

    fn write_batch(&self, writes: &[Write<'_>]) -> Result<(), DeviceError> {
        for write in writes {
            self.begin(write.first, blocks_of(write.bufs), write.bufs);
        }
        self.with(|device| {
            device.write_batch(writes)?;
            for Write { first, bufs } in writes {
                self.done(*first, || (What::Write(gathered(bufs)), self.label_in(*first, bufs)));
            }
            Ok(())
        })?;
        for Write { first, bufs } in writes {
            self.watch.note_well(self.role, *first..*first + blocks_of(bufs));
        }
        self.relieve()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let end = {
            let memory = self.memory.lock();
            memory.first + memory.unflushed.len() as u64
        };
        self.with(|device| device.flush())?;
        self.memory.lock().flushed(end);
        Ok(())
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), DeviceError> {
        self.begin(first, count, &[]);
        self.with(|device| device.discard(first, count))
    }

    fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, DeviceError> {
        self.begin(first, count, &[]);
        self.with(|device| {
            let is_done = device.zero(first, count, keep)?;
            if is_done {
                self.done(first, || (What::Zero { count, keep }, None));
                self.watch.note_well(self.role, first..first + count);
            }
            Ok(is_done)
        })
    }

    /// Of a device that is waited for, nothing is known.
    fn writes_zeros(&self, keep: bool) -> bool {
        self.now.read().device.as_ref().map_or(true, |device| device.writes_zeros(keep))
    }

    fn allocation(&self, first: u64, most: u64) -> Extent {
        let unknown = Extent { blocks: most, flags: 0 };
        self.now.read().device.as_ref().map_or(unknown, |device| device.allocation(first, most))
    }

    fn grow(&self, blocks: u64) -> Result<u64, DeviceError> {
        let grown = self.with(|device| device.grow(blocks))?;
        self.blocks.store(grown, Ordering::Release);
        Ok(grown)
    }
}
