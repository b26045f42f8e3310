//! What is done to the devices.

use super::{AnyModel, Bench, MIB_BLOCKS, of_device, used};
use holdfast_block::{BLOCK_SIZE, Device};
use holdfast_lab::device::timed::{Activity, Timed};
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use crate::error::Result;
use crate::pattern::Generator;

/// A stream: bytes a second, as of a television recording, and how long.
const STREAM_S: u64 = 600;
const STREAM_BLOCKS_A_SECOND: u64 = MIB_BLOCKS / 2;
/// Seconds between its flushes.
const STREAM_FLUSH_S: u64 = 5;

/// A compilation: objects, their size, what computing one of them takes, and how many come between two flushes (5 s).
const OBJECTS: u64 = 3000;
const OBJECT_BLOCKS: u64 = 8;
const OBJECT_TIME: Duration = Duration::from_millis(200);
const OBJECTS_A_FLUSH: u64 = 25;

/// Work with pauses: seconds from one to the next, and of them those in which a MiB each is written.
const ROUND_S: u64 = 120;
const ROUND_WORK_S: u64 = 20;

/// Of a pause. A Flashlog takes the disk for asleep then; its motor turns, so that starting it is nobody's.
const PAUSE: Duration = Duration::from_secs(8);

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
    /// Ten minutes: 20 s in which a MiB each second is written, then 100 s in which nothing is.
    Pauses,
    /// Ten minutes of computing, of which each 200 ms give 32 KiB somewhere; durable every 5 s. What is read is in memory.
    Compilation,
    /// Half a MiB each second for ten minutes, durable every 5 s.
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

fn length(blocks: u64) -> String {
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

impl Bench {
    /// Runs a load.
    ///
    /// # Errors
    /// Of the device, which do not happen.
    pub fn run(&self, load: Load) -> Result<Measured> {
        if matches!(load, Load::Rewrite | Load::Overflow) {
            self.in_a_row(0, self.sizes.load)?;
        }
        if load == Load::Rewrite {
            self.settle()?;
            self.clock.pass(PAUSE);
        }
        if load == Load::MixedReads {
            self.scatter(1, self.sizes.scattered, false)?;
            // More than memory keeps of what came last, and with it less than main would be woken for.
            self.in_a_row(self.sizes.area, self.sizes.load / 2)?;
        }
        let source = match load {
            Load::CopyIn => Some(used(self.sizes.load, AnyModel::Disk, &self.clock)?),
            _ => None,
        };
        let (start_s, main, log) = (self.seconds(), self.main.activity(), self.log.as_deref().map(Timed::activity));
        let blocks = match load {
            Load::Sequential | Load::Rewrite | Load::Overflow => self.in_a_row(0, self.sizes.load)?,
            Load::Longer => self.in_a_row(0, 3 * self.sizes.load)?,
            Load::Scattered(blocks) => {
                self.scatter(blocks, (self.sizes.load / blocks).min(self.sizes.scattered), false)?
            }
            Load::Reads(blocks) => self.read_all(blocks, (self.sizes.load / blocks).min(self.sizes.scattered))?,
            Load::Durable => self.scatter(1, self.sizes.scattered / 4, true)?,
            Load::MixedReads => self.read_mixed()?,
            Load::Mixed => self.mixed()?,
            Load::Copy => self.copy()?,
            Load::CopyIn => source.as_deref().map_or(Ok(0), |source| self.copy_from(source))?,
            Load::Pauses => self.work_with_pauses()?,
            Load::Stream => self.stream()?,
            Load::Compilation => self.compile()?,
        };
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

    fn read(&self, first: u64, bytes: &mut [u8]) -> Result<()> {
        self.device.read(first, &mut [IoSliceMut::new(bytes)]).map_err(of_device)
    }

    pub(super) fn flush(&self) -> Result<()> {
        self.device.flush().map_err(of_device)
    }

    fn in_a_row(&self, start: u64, blocks: u64) -> Result<u64> {
        let bytes = vec![0xA5; MIB_BLOCKS as usize * BLOCK_SIZE];
        for first in (start..start + blocks).step_by(MIB_BLOCKS as usize) {
            self.write(first, &bytes)?;
        }
        self.flush().map(|()| blocks)
    }

    fn scatter(&self, blocks: u64, count: u64, each: bool) -> Result<u64> {
        let bytes = vec![0x5A; blocks as usize * BLOCK_SIZE];
        for first in self.places(blocks, count) {
            self.write(first, &bytes)?;
            if each {
                self.flush()?;
            }
        }
        self.flush().map(|()| blocks * count)
    }

    fn read_all(&self, blocks: u64, count: u64) -> Result<u64> {
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        for first in self.places(blocks, count) {
            self.read(first, &mut bytes)?;
        }
        Ok(blocks * count)
    }

    fn read_mixed(&self) -> Result<u64> {
        let mut bytes = vec![0; BLOCK_SIZE];
        let mut elsewhere = Generator::new(&[9]);
        for (at, new) in self.places(1, self.sizes.scattered).enumerate() {
            let first = if at % 2 == 0 { new } else { elsewhere.below(self.sizes.area) };
            self.read(first, &mut bytes)?;
        }
        Ok(self.sizes.scattered)
    }

    fn mixed(&self) -> Result<u64> {
        let (mut bytes, mut random) = (vec![0xA5; MIB_BLOCKS as usize * BLOCK_SIZE], Generator::new(&[8]));
        for number in 0..self.sizes.load / MIB_BLOCKS {
            self.write(number * MIB_BLOCKS, &bytes)?;
            self.read(random.below(number + 1) * MIB_BLOCKS, &mut bytes)?;
        }
        self.flush().map(|()| 2 * self.sizes.load)
    }

    fn copy(&self) -> Result<u64> {
        let mut bytes = vec![0; MIB_BLOCKS as usize * BLOCK_SIZE];
        let (from, to) = (self.places(MIB_BLOCKS, self.sizes.load / MIB_BLOCKS), self.sizes.area);
        for (number, from) in from.enumerate() {
            self.read(from, &mut bytes)?;
            self.write(to + number as u64 * MIB_BLOCKS, &bytes)?;
        }
        self.flush().map(|()| self.sizes.load)
    }

    fn copy_from(&self, source: &Timed) -> Result<u64> {
        let mut bytes = vec![0; MIB_BLOCKS as usize * BLOCK_SIZE];
        for first in (0..self.sizes.load).step_by(MIB_BLOCKS as usize) {
            source.read(first, &mut [IoSliceMut::new(&mut bytes)]).map_err(of_device)?;
            self.write(first, &bytes)?;
        }
        self.flush().map(|()| self.sizes.load)
    }

    fn work_with_pauses(&self) -> Result<u64> {
        let bytes = vec![0x22; MIB_BLOCKS as usize * BLOCK_SIZE];
        let count = STREAM_S / ROUND_S * ROUND_WORK_S;
        for (number, first) in (1..).zip(self.places(MIB_BLOCKS, count)) {
            self.write(first, &bytes)?;
            self.clock.pass(Duration::from_secs(1));
            if number % ROUND_WORK_S == 0 {
                self.flush()?;
                self.clock.pass(Duration::from_secs(ROUND_S - ROUND_WORK_S));
            }
        }
        Ok(count * MIB_BLOCKS)
    }

    fn compile(&self) -> Result<u64> {
        let bytes = vec![0x11; OBJECT_BLOCKS as usize * BLOCK_SIZE];
        for (number, first) in (1..).zip(self.places(OBJECT_BLOCKS, OBJECTS)) {
            self.clock.pass(OBJECT_TIME);
            self.write(first, &bytes)?;
            if number % OBJECTS_A_FLUSH == 0 {
                self.flush()?;
            }
        }
        self.flush().map(|()| OBJECTS * OBJECT_BLOCKS)
    }

    fn stream(&self) -> Result<u64> {
        let bytes = vec![0x3C; STREAM_BLOCKS_A_SECOND as usize * BLOCK_SIZE];
        let start_s = self.seconds();
        for second in 0..STREAM_S {
            let first = second * STREAM_BLOCKS_A_SECOND;
            self.write(first, &bytes)?;
            if (second + 1) % STREAM_FLUSH_S == 0 {
                self.flush()?;
            }
            let wait_s = (start_s + (second + 1) as f64 - self.seconds()).max(0.0);
            self.clock.pass(Duration::from_secs_f64(wait_s));
        }
        self.flush().map(|()| STREAM_S * STREAM_BLOCKS_A_SECOND)
    }

    /// Places of scattered requests, each a multiple of its length.
    fn places(&self, blocks: u64, count: u64) -> impl Iterator<Item = u64> + use<> {
        let (mut random, area) = (Generator::new(&[blocks]), self.sizes.area);
        (0..count).map(move |_| random.below(area / blocks) * blocks)
    }
}

/// What was done between two moments.
fn since(now: &Activity, before: &Activity) -> Activity {
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
