//! What is done to the devices.

use super::{AnyModel, Bench, MIB_BLOCKS, Sizes, of_device, used};
use holdfast_block::{BLOCK_SIZE, Device};
use holdfast_lab::device::timed::{Activity, Pace, Timed};
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use crate::error::Result;
use crate::pattern::Generator;

/// A stream: blocks a second, as of a television recording.
const STREAM_BLOCKS_A_SECOND: u64 = MIB_BLOCKS / 2;
/// Seconds between its flushes.
const STREAM_FLUSH_S: u64 = 5;

/// A compilation: objects a second, their size, what computing one of them takes, and how many come between two flushes (5 s).
const OBJECTS_A_SECOND: u64 = 5;
const OBJECT_BLOCKS: u64 = 8;
const OBJECT_TIME: Duration = Duration::from_millis(200);
const OBJECTS_A_FLUSH: u64 = 25;

/// Work with pauses: seconds from one to the next, and of them those in which a MiB each is written.
const ROUND_S: u64 = 120;
const ROUND_WORK_S: u64 = 20;

/// Of a pause. A Flashlog takes the disk for asleep then; its motor turns, so that starting it is nobody's.
pub const PAUSE: Duration = Duration::from_secs(8);

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Pieces of 1 MiB one after the other, then a flush.
    Sequential,
    /// The same again over the same place, after a pause.
    Rewrite,
    /// The same without one: a log that is full before main has its contents.
    Overflow,
    /// Three times as much in a row, of which nothing is written again, then a flush: more than a log.
    Longer,
    /// Scattered writes of so many blocks, then a flush.
    Scattered(u64),
    /// Scattered reads of so many blocks, of what is not new.
    Reads(u64),
    /// Scattered writes of 4 KiB, each durable before the next.
    Durable,
    /// Scattered reads of 4 KiB, half of them of what was written before: in asynchronous mode only the log has that, and memory not any more.
    MixedReads,
    /// A MiB is written in a row, another of what was written is read, and so on.
    Mixed,
    /// Files of 1 MiB are read, which are not new, and written elsewhere.
    Copy,
    /// Files are read from another disk, a MiB after the other, and written in a row.
    CopyIn,
    /// Ten minutes ([`Sizes::steady_s`]): 20 s in which a MiB each second is written, then 100 s in which nothing is.
    Pauses,
    /// As long as much computing, of which each 200 ms give 32 KiB somewhere; durable every 5 s. What is read is in memory.
    Compilation,
    /// Half a MiB each second, as long, durable every 5 s.
    Stream,
}

impl Load {
    /// The table of rates.
    pub const RATES: [Load; 9] = [
        Load::Sequential,
        Load::Rewrite,
        Load::Overflow,
        Load::Longer,
        Load::CopyIn,
        Load::Durable,
        Load::MixedReads,
        Load::Mixed,
        Load::Copy,
    ];
    /// Blocks of the requests of the tables of scattered ones: 4 KiB to 16 MiB.
    pub const RECORDS: [u64; 7] = [1, 4, 16, 64, 256, 1024, 4096];
    /// What counts is how long a disk is awake.
    pub const AWAKE: [Load; 4] = [Load::Stream, Load::Compilation, Load::Pauses, Load::CopyIn];
    /// What counts is what it does to flash.
    pub const WEAR: [Load; 3] = [Load::Sequential, Load::Scattered(1), Load::Durable];

    /// Its name in tables.
    pub fn name(self) -> String {
        match self {
            Load::Sequential => "write, 1 MiB in a row".into(),
            Load::Rewrite => "rewrite, 1 MiB in a row".into(),
            Load::Overflow => "rewrite at once, more than a log".into(),
            Load::Longer => "write, 1 MiB in a row, more than a log".into(),
            Load::Scattered(blocks) => format!("write, scattered, {}", length(blocks)),
            Load::Reads(blocks) => format!("read, scattered, {}", length(blocks)),
            Load::Durable => "write, scattered, 4 KiB, each flushed".into(),
            Load::MixedReads => "read, scattered, 4 KiB, half of it new".into(),
            Load::Mixed => "write, 1 MiB in a row, and read as much of it".into(),
            Load::Copy => "copy of files of 1 MiB".into(),
            Load::CopyIn => "copy of files from another disk".into(),
            Load::Pauses => "work with pauses".into(),
            Load::Stream => "stream".into(),
            Load::Compilation => "compilation".into(),
        }
    }
}

pub(super) fn length(blocks: u64) -> String {
    if blocks < MIB_BLOCKS { format!("{} KiB", 4 * blocks) } else { format!("{} MiB", blocks / MIB_BLOCKS) }
}

/// What a load took.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Simulated seconds.
    pub seconds: f64,
    /// Bytes that the load read or wrote.
    pub bytes: u64,
    /// What main did, or the only device.
    pub main: Activity,
    /// What the log did.
    pub log: Option<Activity>,
}

impl Measured {
    /// Millions of bytes a second.
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

/// Whose time a load takes.
pub(super) trait Time: Sync {
    /// Since some moment.
    fn seconds(&self) -> f64;
    /// Gives when so much is over.
    fn pass(&self, time: Duration);
}

impl Time for Bench {
    fn seconds(&self) -> f64 {
        self.clock.now_ns() as f64 / 1e9
    }

    fn pass(&self, time: Duration) {
        self.clock.pass(time);
    }
}

impl Bench {
    /// Runs a load.
    ///
    /// # Errors
    /// Of the device, which do not happen.
    pub fn run(&self, load: Load) -> Result<Measured> {
        let mut runner = Runner::new(&*self.device, self, self.sizes, load, None);
        runner.prepare()?;
        if load == Load::Rewrite {
            self.settle()?;
            self.clock.pass(PAUSE);
        }
        let source = match load {
            Load::CopyIn => Some(used(self.sizes.load, AnyModel::Disk, &self.clock)?),
            _ => None,
        };
        let (start_s, main, log) = (self.seconds(), self.main.activity(), self.log.as_deref().map(Timed::activity));
        let blocks = runner.run(source.as_deref().map(|source| source as &dyn Device))?;
        Ok(Measured {
            seconds: self.seconds() - start_s,
            bytes: blocks * BLOCK_SIZE as u64,
            main: since(&self.main.activity(), &main),
            log: self.log.as_deref().zip(log).map(|(device, before)| since(&device.activity(), &before)),
        })
    }

    pub(super) fn write(&self, first: u64, bytes: &[u8]) -> Result<()> {
        self.device.write(first, &[IoSlice::new(bytes)]).map_err(of_device)
    }

    pub(super) fn flush(&self) -> Result<()> {
        self.device.flush().map_err(of_device)
    }
}

/// A load on a device, modelled or real.
pub(super) struct Runner<'a> {
    device: &'a dyn Device,
    time: &'a dyn Time,
    sizes: Sizes,
    load: Load,
    /// Other places in each; none for the only one.
    round: Option<u64>,
    /// What is written, and where is read to; filled before the load begins.
    bytes: Vec<u8>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        device: &'a dyn Device,
        time: &'a dyn Time,
        sizes: Sizes,
        load: Load,
        round: Option<u64>,
    ) -> Runner<'a> {
        let blocks = match load {
            Load::Scattered(blocks) | Load::Reads(blocks) => blocks.max(MIB_BLOCKS),
            _ => MIB_BLOCKS,
        };
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        Generator::new(&[round.unwrap_or(0)]).fill(&mut bytes);
        Runner { device, time, sizes, load, round, bytes }
    }

    /// What is there before the load begins.
    pub(super) fn prepare(&mut self) -> Result<()> {
        match self.load {
            Load::Rewrite | Load::Overflow => self.in_a_row(0, self.sizes.load).map(drop),
            Load::MixedReads => {
                self.scatter(1, self.sizes.scattered, false)?;
                // More than memory keeps of what came last, and with it less than main would be woken for.
                self.in_a_row(self.sizes.area, self.sizes.load / 2).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Gives the blocks that were read or written. Only [`Load::CopyIn`] has a source.
    pub(super) fn run(&mut self, source: Option<&dyn Device>) -> Result<u64> {
        let Sizes { load, scattered, .. } = self.sizes;
        match self.load {
            Load::Sequential | Load::Rewrite | Load::Overflow => self.in_a_row(0, load),
            Load::Longer => self.in_a_row(0, 3 * load),
            Load::Scattered(blocks) => self.scatter(blocks, (load / blocks).min(scattered), false),
            Load::Reads(blocks) => self.read_all(blocks, (load / blocks).min(scattered)),
            Load::Durable => self.scatter(1, scattered / 4, true),
            Load::MixedReads => self.read_mixed(),
            Load::Mixed => self.mixed(),
            Load::Copy => self.copy(),
            Load::CopyIn => source.map_or(Ok(0), |source| self.copy_from(source)),
            Load::Pauses => self.work_with_pauses(),
            Load::Stream => self.stream(),
            Load::Compilation => self.compile(),
        }
    }

    fn write(&self, first: u64, blocks: u64) -> Result<()> {
        let bytes = &self.bytes[..blocks as usize * BLOCK_SIZE];
        self.device.write(first, &[IoSlice::new(bytes)]).map_err(of_device)
    }

    fn read(&mut self, first: u64, blocks: u64) -> Result<()> {
        let bytes = &mut self.bytes[..blocks as usize * BLOCK_SIZE];
        self.device.read(first, &mut [IoSliceMut::new(bytes)]).map_err(of_device)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush().map_err(of_device)
    }

    fn in_a_row(&self, start: u64, blocks: u64) -> Result<u64> {
        for first in (start..start + blocks).step_by(MIB_BLOCKS as usize) {
            self.write(first, MIB_BLOCKS)?;
        }
        self.flush().map(|()| blocks)
    }

    fn scatter(&self, blocks: u64, count: u64, each: bool) -> Result<u64> {
        for first in self.places(blocks, count) {
            self.write(first, blocks)?;
            if each {
                self.flush()?;
            }
        }
        self.flush().map(|()| blocks * count)
    }

    fn read_all(&mut self, blocks: u64, count: u64) -> Result<u64> {
        for first in self.places(blocks, count) {
            self.read(first, blocks)?;
        }
        Ok(blocks * count)
    }

    fn read_mixed(&mut self) -> Result<u64> {
        let mut elsewhere = Generator::new(&[9]);
        for (at, new) in self.places(1, self.sizes.scattered).enumerate() {
            let first = if at % 2 == 0 { new } else { elsewhere.below(self.sizes.area) };
            self.read(first, 1)?;
        }
        Ok(self.sizes.scattered)
    }

    fn mixed(&mut self) -> Result<u64> {
        let mut random = Generator::new(&[8]);
        for number in 0..self.sizes.load / MIB_BLOCKS {
            self.write(number * MIB_BLOCKS, MIB_BLOCKS)?;
            self.read(random.below(number + 1) * MIB_BLOCKS, MIB_BLOCKS)?;
        }
        self.flush().map(|()| 2 * self.sizes.load)
    }

    fn copy(&mut self) -> Result<u64> {
        let (from, to) = (self.places(MIB_BLOCKS, self.sizes.load / MIB_BLOCKS), self.sizes.area);
        for (number, from) in from.enumerate() {
            self.read(from, MIB_BLOCKS)?;
            self.write(to + number as u64 * MIB_BLOCKS, MIB_BLOCKS)?;
        }
        self.flush().map(|()| self.sizes.load)
    }

    fn copy_from(&mut self, source: &dyn Device) -> Result<u64> {
        for first in (0..self.sizes.load).step_by(MIB_BLOCKS as usize) {
            let bytes = &mut self.bytes[..MIB_BLOCKS as usize * BLOCK_SIZE];
            source.read(first, &mut [IoSliceMut::new(bytes)]).map_err(of_device)?;
            self.write(first, MIB_BLOCKS)?;
        }
        self.flush().map(|()| self.sizes.load)
    }

    fn work_with_pauses(&self) -> Result<u64> {
        let count = self.sizes.steady_s / ROUND_S * ROUND_WORK_S;
        for (number, first) in (1..).zip(self.places(MIB_BLOCKS, count)) {
            self.write(first, MIB_BLOCKS)?;
            self.time.pass(Duration::from_secs(1));
            if number % ROUND_WORK_S == 0 {
                self.flush()?;
                self.time.pass(Duration::from_secs(ROUND_S - ROUND_WORK_S));
            }
        }
        Ok(count * MIB_BLOCKS)
    }

    fn compile(&self) -> Result<u64> {
        let objects = self.sizes.steady_s * OBJECTS_A_SECOND;
        for (number, first) in (1..).zip(self.places(OBJECT_BLOCKS, objects)) {
            self.time.pass(OBJECT_TIME);
            self.write(first, OBJECT_BLOCKS)?;
            if number % OBJECTS_A_FLUSH == 0 {
                self.flush()?;
            }
        }
        self.flush().map(|()| objects * OBJECT_BLOCKS)
    }

    fn stream(&self) -> Result<u64> {
        let start_s = self.time.seconds();
        for second in 0..self.sizes.steady_s {
            self.write(second * STREAM_BLOCKS_A_SECOND, STREAM_BLOCKS_A_SECOND)?;
            if (second + 1) % STREAM_FLUSH_S == 0 {
                self.flush()?;
            }
            let wait_s = (start_s + (second + 1) as f64 - self.time.seconds()).max(0.0);
            self.time.pass(Duration::from_secs_f64(wait_s));
        }
        self.flush().map(|()| self.sizes.steady_s * STREAM_BLOCKS_A_SECOND)
    }

    /// Places of scattered requests, each a multiple of its length.
    fn places(&self, blocks: u64, count: u64) -> impl Iterator<Item = u64> + use<> {
        let seed: Vec<u64> = [blocks].into_iter().chain(self.round).collect();
        let (mut random, area) = (Generator::new(&seed), self.sizes.area);
        (0..count).map(move |_| random.below(area / blocks) * blocks)
    }
}

/// What was done between two moments.
pub(super) fn since(now: &Activity, before: &Activity) -> Activity {
    let (mut wear, mut motor) = (now.wear, now.motor);
    wear.programmed -= before.wear.programmed;
    wear.erased -= before.wear.erased;
    motor.on_ns -= before.motor.on_ns;
    motor.starts -= before.motor.starts;
    Activity {
        requests: now.requests - before.requests,
        read_bytes: now.read_bytes - before.read_bytes,
        written_bytes: now.written_bytes - before.written_bytes,
        busy_ns: now.busy_ns - before.busy_ns,
        wear,
        motor,
    }
}
