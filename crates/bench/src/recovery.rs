//! What it takes to recover from a flipped bit: a cold read, a warm read, and a write with fsync, with and without one (Y. Zhang, *Cooperative Data
//! Protection*, figures 4.16 to 4.18), on all layers in this process.
//!
//! - *Cold*: the block is not in memory. The flip is in the bytes that the device gives, the first time.
//! - *Warm*: the block is in memory, which has the flip.
//! - *Write*: the block is written, and then has the flip; fsync fails, and the application writes again.

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_block::{Device, Error as DeviceError, FileDevice, Filter};
use holdfast_cache::{FlipPart, PageState};
use holdfast_integrity::{Algorithm, Protection};
use holdfast_naming::{NewNode, Request};
use holdfast_object::{Durability, ObjectId, PAGE_SIZE, SystemClock};

use crate::error::{At, Result};
use crate::pattern::Generator;
use crate::report;
use crate::stack::{Options, Stack, other};

/// Memory for pages.
const POOL_BYTES: u64 = 16 << 20;
/// Size of the store.
const STORE_BYTES: u64 = 256 << 20;
/// Which bit is flipped.
const BIT: u32 = 4242;

/// What was done to the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// Read from the device.
    Cold,
    /// Read from memory.
    Warm,
    /// Written, and fsync.
    Write,
}

impl Case {
    /// In the order of the figures.
    pub const ALL: [Case; 3] = [Case::Cold, Case::Warm, Case::Write];

    /// Whether in this mode a flip is noticed, and recovered from. Where it is not, only the case without one is measured.
    fn is_noticed(self, mode: Protection) -> bool {
        match self {
            Case::Cold => mode.verifies_at_device(),
            Case::Warm | Case::Write => mode.memory() != Algorithm::None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Case::Cold => "cold read",
            Case::Warm => "warm read",
            Case::Write => "write + fsync",
        }
    }
}

/// How long one request took, and its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// All of it, until the application has what it wanted.
    pub whole: Duration,
    /// Of this, what was done again for the flipped bit: the second read of the device, or the application's second write and fsync.
    pub again: Duration,
    /// Of this, reads of the device.
    pub reads: Part,
    /// Of this, writes to the device.
    pub writes: Part,
    /// Of this, flushes of the device.
    pub flushes: Part,
}

/// Requests to the device of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// How many.
    pub count: u64,
    /// How long.
    pub time: Duration,
}

/// The median of a case, without and with a flip.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which case.
    pub case: Case,
    /// Which mode.
    pub mode: Protection,
    /// Whether a bit was flipped.
    pub flipped: bool,
    /// Of each round.
    pub costs: Vec<Cost>,
}

#[derive(Default)]
struct Meter {
    count: AtomicU64,
    nanos: AtomicU64,
    last_nanos: AtomicU64,
}

impl Meter {
    fn time<T>(&self, request: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = request();
        let took_nanos = start.elapsed().as_nanos() as u64;
        self.nanos.fetch_add(took_nanos, Ordering::Relaxed);
        self.last_nanos.store(took_nanos, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        done
    }

    fn last(&self) -> Duration {
        Duration::from_nanos(self.last_nanos.load(Ordering::Relaxed))
    }

    fn take(&self) -> Part {
        let nanos = self.nanos.swap(0, Ordering::Relaxed);
        Part { count: self.count.swap(0, Ordering::Relaxed), time: Duration::from_nanos(nanos) }
    }
}

/// A device whose requests are timed, and whose next read of the block that has the mark gives a flipped bit.
struct Watched {
    device: FileDevice,
    reads: Meter,
    writes: Meter,
    flushes: Meter,
    mark: [u8; 16],
    is_armed: AtomicBool,
}

impl Watched {
    fn take(&self, whole: Duration, again: Duration) -> Cost {
        Cost { whole, again, reads: self.reads.take(), writes: self.writes.take(), flushes: self.flushes.take() }
    }
}

impl Filter for Watched {
    fn below(&self) -> &dyn Device {
        &self.device
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> std::result::Result<(), DeviceError> {
        let done = self.reads.time(|| self.device.read(first, bufs));
        let is_block = |buf: &&mut IoSliceMut<'_>| buf.len() == PAGE_SIZE && buf.starts_with(&self.mark);
        if let Some(block) = bufs.iter_mut().find(is_block)
            && self.is_armed.swap(false, Ordering::Relaxed)
        {
            block[BIT as usize / 8] ^= 1 << (BIT % 8);
        }
        done
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> std::result::Result<(), DeviceError> {
        self.writes.time(|| self.device.write(first, bufs))
    }

    fn on_flush(&self) -> std::result::Result<(), DeviceError> {
        self.flushes.time(|| self.device.flush())
    }
}

/// A file of one block on a store of its own.
struct Subject {
    stack: Stack,
    device: Arc<Watched>,
    id: ObjectId,
    bytes: Vec<u8>,
    generator: Generator,
}

impl Subject {
    fn new(store: &Path, mode: Protection) -> std::io::Result<Subject> {
        let (mut bytes, mut generator) = (vec![0; PAGE_SIZE], Generator::new(&[7]));
        generator.fill(&mut bytes);
        let mark = *bytes.first_chunk().expect("a page is longer");
        let device = Arc::new(Watched {
            device: FileDevice::create_file(store, STORE_BYTES).map_err(other)?,
            reads: Meter::default(),
            writes: Meter::default(),
            flushes: Meter::default(),
            mark,
            is_armed: AtomicBool::new(false),
        });
        let options = Options::new(mode, POOL_BYTES, Arc::new(SystemClock::default()));
        let stack = Stack::create(device.clone(), &options)?;
        let made = stack.namespace.mknod(&Request::ROOT, ObjectId::ROOT, b"block", NewNode::Regular, 0o644);
        let subject = Subject { id: made.map_err(other)?.id, stack, device, bytes, generator };
        subject.write()?;
        subject.stack.namespace.sync_all().map_err(other)?;
        Ok(subject)
    }

    fn write(&self) -> std::io::Result<()> {
        self.stack.namespace.write(&Request::ROOT, self.id, 0, &self.bytes, false).map_err(other).map(drop)
    }

    fn fsync(&self) -> std::io::Result<()> {
        self.stack.namespace.sync(self.id, Durability::All).map_err(other)
    }

    /// Reads the block as an application does, into a buffer of its own; what comes must be right.
    fn read(&self) -> std::io::Result<Duration> {
        let mut buffer = vec![0; PAGE_SIZE];
        let start = Instant::now();
        let data = self.stack.namespace.read(self.id, 0, PAGE_SIZE).map_err(other)?;
        data.slices().for_each(|slice| buffer.copy_from_slice(slice));
        let took = start.elapsed();
        if buffer == self.bytes { Ok(took) } else { Err(other("the reader got other bytes than were written")) }
    }

    /// Flips the bit of the page in memory, which must be there in this state.
    fn flip(&self, state: PageState) -> std::io::Result<()> {
        let quiet = self.stack.cache.quiet();
        let pages = quiet.resident_pages(|id, _| id == self.id);
        let page = pages.iter().find(|page| page.state == state).ok_or_else(|| other(format!("no {state} page")))?;
        quiet.flip(page, FlipPart::Bytes, &[BIT]).map_err(other)
    }

    fn cost(&mut self, case: Case, flipped: bool) -> std::io::Result<Cost> {
        match case {
            Case::Cold => {
                self.stack.cache.quiet().below(self.id, 0, || ()).map_err(other)?;
                self.device.is_armed.store(flipped, Ordering::Relaxed);
            }
            Case::Warm => {
                self.read()?;
                if flipped {
                    self.flip(PageState::Clean)?;
                }
            }
            Case::Write => {
                // Another block than the last, so that nothing is known of it; its mark stays.
                self.generator.fill(&mut self.bytes[16..]);
            }
        }
        self.device.take(Duration::ZERO, Duration::ZERO);
        if case != Case::Write {
            let took = self.read()?;
            let is_met = !self.device.is_armed.load(Ordering::Relaxed);
            let again = if flipped { self.device.reads.last() } else { Duration::ZERO };
            return if is_met { Ok(self.device.take(took, again)) } else { Err(other("the flipped bit was not met")) };
        }
        let start = Instant::now();
        self.write()?;
        let mut took = start.elapsed();
        if flipped {
            self.flip(PageState::Dirty)?;
        }
        let start = Instant::now();
        let told = self.fsync();
        took += start.elapsed();
        if told.is_err() != flipped {
            return Err(other(format!(
                "fsync of a block {} a flipped bit: {told:?}",
                if flipped { "with" } else { "without" }
            )));
        }
        let mut again = Duration::ZERO;
        if flipped {
            let start = Instant::now();
            self.write()?;
            self.fsync()?;
            again = start.elapsed();
        }
        let cost = self.device.take(took + again, again);
        self.stack.namespace.sync_all().map_err(other)?;
        self.read()?;
        Ok(cost)
    }
}

/// Runs all cases in all modes, `rounds` times in turns, on stores in `dir`; those with a flip in the modes that notice it.
///
/// # Errors
/// Those of the stores; a flip that should have been noticed and was not, or a reader that got wrong bytes.
pub fn execute(dir: &Path, modes: &[Protection], rounds: u64, progress: &mut dyn FnMut(&str)) -> Result<Vec<Row>> {
    let (mut subjects, mut rows) = (Vec::new(), Vec::new());
    for (number, mode) in modes.iter().enumerate() {
        let store = dir.join(format!("recovery-{number}.store"));
        let _ = std::fs::remove_file(&store);
        subjects.push(Subject::new(&store, *mode).at("make a file on", &store)?);
        let cases = Case::ALL.into_iter().flat_map(|case| [(case, false), (case, true)]);
        let measured = cases.filter(|(case, flipped)| !flipped || case.is_noticed(*mode));
        rows.push(
            measured.map(|(case, flipped)| Row { case, mode: *mode, flipped, costs: Vec::new() }).collect::<Vec<_>>(),
        );
    }
    for round in 0..rounds {
        progress(&format!("round {} of {rounds}", round + 1));
        for (subject, rows) in subjects.iter_mut().zip(&mut rows) {
            for row in rows {
                let place = format!("{}, {}", row.mode, row.case.name());
                row.costs.push(subject.cost(row.case, row.flipped).at("measure", place)?);
            }
        }
    }
    for (number, subject) in subjects.into_iter().enumerate() {
        let store = dir.join(format!("recovery-{number}.store"));
        subject.stack.close().at("close", &store)?;
        std::fs::remove_file(&store).at("remove", &store)?;
    }
    Ok(rows.into_iter().flatten().collect())
}

/// The table: medians in microseconds, and how many requests the device got.
pub fn table(rows: &[Row]) -> String {
    let header = [
        "case",
        "mode",
        "flipped bit",
        "whole, µs",
        "until noticed, µs",
        "again, µs",
        "device reads",
        "device writes",
        "device flushes",
        "rest, µs",
    ];
    let body = rows.iter().map(|row| {
        let part = |of: fn(&Cost) -> Part| {
            let count = median(row.costs.iter().map(|cost| of(cost).count as f64));
            let time = median(row.costs.iter().map(|cost| of(cost).time.as_secs_f64() * 1e6));
            if count == 0.0 { "–".to_owned() } else { format!("{time:.0} µs in {count:.0}") }
        };
        let rest = |cost: &Cost| cost.whole.saturating_sub(cost.reads.time + cost.writes.time + cost.flushes.time);
        vec![
            row.case.name().to_owned(),
            row.mode.to_string(),
            if row.flipped { "yes" } else { "no" }.to_owned(),
            micros(row, |cost| cost.whole),
            if row.flipped { micros(row, |cost| cost.whole - cost.again) } else { "–".to_owned() },
            if row.flipped { micros(row, |cost| cost.again) } else { "–".to_owned() },
            part(|cost| cost.reads),
            part(|cost| cost.writes),
            part(|cost| cost.flushes),
            micros(row, rest),
        ]
    });
    report::table(&header.map(str::to_owned), body.collect())
}

/// The median of a part, in microseconds.
fn micros(row: &Row, part: impl Fn(&Cost) -> Duration) -> String {
    format!("{:.1}", median(row.costs.iter().map(|cost| part(cost).as_secs_f64() * 1e6)))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_costs_what_its_recovery_needs() {
        let dir = tempfile::tempdir().expect("a directory");
        let modes = [Protection::Uniform, Protection::Static { strong: false }];
        let rows = execute(dir.path(), &modes, 3, &mut |_| ()).expect("every flip is met and recovered from");
        assert_eq!(rows.len(), 12);
        for row in &rows {
            for cost in &row.costs {
                let seen = (cost.reads.count, cost.writes.count > 0, cost.flushes.count > 0);
                let expected = match (row.case, row.flipped) {
                    (Case::Cold, false) | (Case::Warm, true) => (1, false, false),
                    (Case::Cold, true) => (2, false, false),
                    (Case::Warm, false) => (0, false, false),
                    (Case::Write, _) => (seen.0, true, true),
                };
                assert_eq!(seen, expected, "{}, {}, flipped: {}", row.mode, row.case.name(), row.flipped);
                // Of a warm read what is done again is the only read of the device.
                let is_part = !cost.again.is_zero() && cost.again < cost.whole;
                assert_eq!(is_part, row.flipped, "{}, {}", row.mode, row.case.name());
                assert!(row.case != Case::Cold || cost.again < cost.reads.time || !row.flipped, "one of two reads");
            }
        }
        assert_eq!(table(&rows).lines().count(), 2 + rows.len());
    }

    #[test]
    fn flips_are_measured_where_a_mode_notices_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let flipped = |mode| {
            let rows = execute(dir.path(), &[mode], 1, &mut |_| ()).expect("every flip is met and recovered from");
            rows.into_iter().filter(|row| row.flipped).map(|row| row.case).collect::<Vec<_>>()
        };
        assert_eq!(flipped(Protection::None), [Case::Cold; 0]);
        assert_eq!(flipped(Protection::Disk), [Case::Cold]);
        assert_eq!(flipped(Protection::Dynamic { t_switch_s: 92 }), Case::ALL);
    }
}
