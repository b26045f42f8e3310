//! Replays a trace on all layers in this process, one call after the other, at the trace's own times by a clock that is moved: an hour of a trace
//! takes as long as its calls, and pages are as old as they were when it was recorded.
//!
//! Whatever a call reads goes into a sum, which must come out the same in all modes.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_block::{Access as DeviceAccess, Device, FileDevice};
use holdfast_integrity::{Protection, crc64};
use holdfast_naming::{Access, Create, Namespace, RenameMode, Request, SetAttr};
use holdfast_object::{Durability, Kind, ManualClock, ObjectId, PAGE_SIZE};

use super::format::{Call, Event, TracePath};
use crate::error::{At, Error, Result};
use crate::pattern::Generator;
use crate::stack::{Options, Stack, other};

/// Nanoseconds after 1970 at which replays begin: 2020-01-01.
const START_NS: u64 = 1_577_836_800_000_000_000;
/// What one request reads or writes at most, as from the kernel.
const REQUEST_BYTES: usize = 128 << 10;
/// The clock moves by no more at a time, so that what is due by age is done when it is due.
const TICK_US: u64 = 1_000_000;
const READ_WRITE: Access = Access::READ.and(Access::WRITE);
/// What a trace may write in all.
const STORE_BYTES_MAX: u64 = 1 << 40;
/// Room beside what the trace writes.
const SPARE_BYTES: u64 = 512 << 20;

/// What a replay came to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Time in reads all of whose pages were in memory.
    pub warm: Duration,
    /// Time in all reads.
    pub reads: Duration,
    /// Pages of 4 KiB that were read.
    pub pages: u64,
    /// Of these, those in memory.
    pub hits: u64,
    /// Of these, those that had been there for longer than t_switch.
    pub switched: u64,
    /// Of all that was read, in order.
    pub sum: u64,
    /// Calls that made no sense, as they were about files that the trace does not tell of, and the first.
    pub skipped: u64,
    /// The first of them, with the reason.
    pub first_skipped: Option<String>,
}

/// Replays a trace on a new store in the file `store`, which is made and stays.
///
/// # Errors
/// Those of the file; those of the store other than that a file is not there.
pub fn replay(events: &[Event], store: &Path, mode: Protection, pool_bytes: u64) -> Result<Outcome> {
    let sum = |sum: u64, event: &Event| sum.checked_add(bytes_of(&event.call)).filter(|sum| *sum <= STORE_BYTES_MAX);
    let written = events.iter().try_fold(0, sum);
    let written = written.ok_or_else(|| Error::Usage(format!("it writes more than {STORE_BYTES_MAX} bytes")))?;
    let clock = Arc::new(ManualClock::new(START_NS, 0));
    let device = FileDevice::create_file(store, (2 * written + SPARE_BYTES).next_multiple_of(1 << 20));
    let device: Arc<dyn Device> = Arc::new(device.map_err(other).at("create", store)?);
    let options = Options::new(mode, pool_bytes, clock.clone());
    let stack = Stack::create(device, &options).at("create", store)?;
    let mut replayer = Replayer::new(stack, clock.clone());
    let is_before = |event: &&Event| matches!(event.call, Call::DirectoryExists(_) | Call::FileExists(..));
    for event in events.iter().filter(is_before) {
        replayer.call(&event.call).at("prepare", store)?;
    }
    replayer.stack.close().at("close", store)?;
    let device = FileDevice::open(store, DeviceAccess::ReadWrite).map_err(other).at("open", store)?;
    let stack = Stack::open(Arc::new(device), &options).at("open", store)?;
    let mut replayer = Replayer::new(stack, clock);
    for event in events.iter().filter(|event| !is_before(event)) {
        replayer.wait_until(event.at_us).at("write to", store)?;
        if let Err(error) = replayer.call(&event.call) {
            replayer.outcome.skipped += 1;
            replayer.outcome.first_skipped.get_or_insert_with(|| format!("{event}: {error}"));
        }
    }
    let Replayer { stack, outcome, .. } = replayer;
    stack.close().at("close", store)?;
    if outcome.skipped * 10 > events.len() as u64 {
        let first = outcome.first_skipped.unwrap_or_default();
        return Err(Error::Usage(format!("{} of {} calls make no sense: {first}", outcome.skipped, events.len())));
    }
    Ok(outcome)
}

fn bytes_of(call: &Call) -> u64 {
    match call {
        Call::FileExists(_, bytes) => *bytes,
        Call::Write { length, .. } => *length,
        _ => 0,
    }
}

struct Replayer {
    stack: Stack,
    clock: Arc<ManualClock>,
    now_us: u64,
    open: HashMap<u64, ObjectId>,
    /// Bytes to write, from a place that moves on, so that no two writes are the same.
    pattern: Vec<u8>,
    written: usize,
    buffer: Vec<u8>,
    outcome: Outcome,
}

impl Replayer {
    fn new(stack: Stack, clock: Arc<ManualClock>) -> Replayer {
        let mut pattern = vec![0; 8 * REQUEST_BYTES];
        Generator::new(&[1]).fill(&mut pattern);
        let (open, buffer, outcome) = (HashMap::new(), vec![0; REQUEST_BYTES], Outcome::default());
        Replayer { stack, clock, now_us: 0, open, pattern, written: 0, buffer, outcome }
    }

    /// What is due by then is done.
    fn wait_until(&mut self, at_us: u64) -> std::io::Result<()> {
        while self.now_us < at_us {
            let step_us = (at_us - self.now_us).min(TICK_US - self.now_us % TICK_US);
            self.clock.advance_ns(step_us * 1000);
            self.now_us += step_us;
            if self.now_us.is_multiple_of(TICK_US) {
                self.stack.cache.tick().map_err(other)?;
            }
        }
        Ok(())
    }

    fn namespace(&self) -> Arc<Namespace> {
        self.stack.namespace.clone()
    }

    /// The object of a path.
    fn find(&self, path: &TracePath) -> std::io::Result<ObjectId> {
        self.walk(&path.names().collect::<Vec<_>>())
    }

    fn walk(&self, names: &[&[u8]]) -> std::io::Result<ObjectId> {
        let namespace = self.namespace();
        names.iter().try_fold(ObjectId::ROOT, |parent, name| {
            let found = namespace.lookup(&Request::ROOT, parent, name).map_err(other)?;
            namespace.forget(found.id, 1).map_err(other)?;
            Ok(found.id)
        })
    }

    /// A path's directory and the name in it.
    fn parent<'p>(&self, path: &'p TracePath) -> std::io::Result<(ObjectId, &'p [u8])> {
        let names: Vec<&[u8]> = path.names().collect();
        let (last, above) = names.split_last().ok_or_else(|| other("the directory itself"))?;
        Ok((self.walk(above)?, last))
    }

    fn file(&self, number: u64) -> std::io::Result<ObjectId> {
        self.open.get(&number).copied().ok_or_else(|| other("it is not open"))
    }

    fn call(&mut self, call: &Call) -> std::io::Result<()> {
        let namespace = self.namespace();
        let root = &Request::ROOT;
        match call {
            Call::DirectoryExists(path) if path.names().next().is_none() => Ok(()),
            Call::DirectoryExists(path) | Call::MakeDirectory(path) => {
                let (parent, name) = self.parent(path)?;
                let made = namespace.mkdir(root, parent, name, 0o755).map_err(other)?;
                namespace.forget(made.id, 1).map_err(other)
            }
            Call::FileExists(path, bytes) => {
                let id = self.create(path, false)?;
                self.write(id, 0, *bytes)?;
                namespace.release(id).map_err(other)
            }
            Call::Open { file, path, create, truncate } => {
                let id = if *create { self.create(path, *truncate)? } else { self.find(path)? };
                if !create {
                    namespace.open(root, id, READ_WRITE, *truncate).map_err(other)?;
                }
                self.open.insert(*file, id);
                Ok(())
            }
            Call::Read { file, offset, length } => self.read(self.file(*file)?, *offset, *length),
            Call::Write { file, offset, length } => self.write(self.file(*file)?, *offset, *length),
            Call::Truncate { file, size } => {
                let set = SetAttr { size: Some(*size), opened: true, ..SetAttr::default() };
                namespace.setattr(root, self.file(*file)?, &set).map_err(other).map(drop)
            }
            Call::Sync(file) => namespace.sync(self.file(*file)?, Durability::All).map_err(other),
            Call::Close(file) => {
                let id = self.file(*file)?;
                self.open.remove(file);
                namespace.release(id).map_err(other)
            }
            Call::RemoveDirectory(path) => {
                let (parent, name) = self.parent(path)?;
                namespace.rmdir(root, parent, name).map_err(other)
            }
            Call::Unlink(path) => {
                let (parent, name) = self.parent(path)?;
                namespace.unlink(root, parent, name).map_err(other)
            }
            Call::Rename(from, to) => {
                let ((parent, name), (to_parent, to_name)) = (self.parent(from)?, self.parent(to)?);
                namespace.rename(root, parent, name, to_parent, to_name, RenameMode::Replace).map_err(other)
            }
            Call::Link(from, to) => {
                let (id, (parent, name)) = (self.find(from)?, self.parent(to)?);
                let found = namespace.link(root, id, parent, name).map_err(other)?;
                namespace.forget(found.id, 1).map_err(other)
            }
        }
    }

    /// An open file.
    fn create(&self, path: &TracePath, truncate: bool) -> std::io::Result<ObjectId> {
        let (parent, name) = self.parent(path)?;
        let how = Create { mode: 0o644, exclusive: false, wanted: READ_WRITE, truncate };
        let namespace = self.namespace();
        let id = namespace.create(&Request::ROOT, parent, name, &how).map_err(other)?.found.id;
        namespace.forget(id, 1).map_err(other)?;
        Ok(id)
    }

    fn read(&mut self, id: ObjectId, offset: u64, length: u64) -> std::io::Result<()> {
        if self.namespace().getattr(id).map_err(other)?.kind != Kind::Regular {
            return Err(other("not a file"));
        }
        for (offset, length) in requests(offset, length) {
            let before = self.stack.cache.status();
            let start = Instant::now();
            let data = self.stack.namespace.read(id, offset, length).map_err(other)?;
            let mut rest = &mut self.buffer[..];
            for slice in data.slices() {
                let (here, after) = rest.split_at_mut(slice.len());
                here.copy_from_slice(slice);
                rest = after;
            }
            let took = start.elapsed();
            let after = self.stack.cache.status();
            self.outcome.reads += took;
            if after.page_misses == before.page_misses {
                self.outcome.warm += took;
            }
            // Of what was there: nothing behind the file's end, and no directories, as looking up names reads.
            self.outcome.pages += after.page_hits + after.page_misses - before.page_hits - before.page_misses;
            self.outcome.hits += after.page_hits - before.page_hits;
            self.outcome.switched += after.pages_switched - before.pages_switched;
            self.outcome.sum = self.outcome.sum.rotate_left(1) ^ crc64(&self.buffer[..data.len()]);
        }
        Ok(())
    }

    fn write(&mut self, id: ObjectId, offset: u64, length: u64) -> std::io::Result<()> {
        for (offset, length) in requests(offset, length) {
            // Odd, and so in all places before it comes again.
            self.written = (self.written + 4099) % (self.pattern.len() - REQUEST_BYTES);
            let bytes = &self.pattern[self.written..][..length];
            self.stack.namespace.write(&Request::ROOT, id, offset, bytes, false).map_err(other)?;
        }
        Ok(())
    }
}

/// A range in the pieces in which the kernel asks for it.
fn requests(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + length;
    let mut at = offset;
    std::iter::from_fn(move || {
        let next = (at - at % PAGE_SIZE as u64 + REQUEST_BYTES as u64).min(end);
        let piece = (at < end).then(|| (at, (next - at) as usize));
        at = next;
        piece
    })
}

/// Whether replays of one trace in several modes agree.
///
/// # Errors
/// Not all have read the same.
pub fn compare(outcomes: &[(Protection, &Outcome)]) -> Result<()> {
    let Some(((first, expected), others)) = outcomes.split_first() else { return Ok(()) };
    let differs = others.iter().find(|(_, outcome)| (outcome.sum, outcome.skipped) != (expected.sum, expected.skipped));
    let say =
        |mode: &dyn Display, outcome: &Outcome| format!("{mode}: {:016x}, {} skipped", outcome.sum, outcome.skipped);
    match differs {
        Some((mode, outcome)) => Err(Error::Usage(format!(
            "modes have read different bytes; {}; {}",
            say(first, expected),
            say(mode, outcome)
        ))),
        None => Ok(()),
    }
}
