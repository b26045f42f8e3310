//! Devices that take as long as a disk, a USB stick or an SSD would: contents below, time and wear here.
//!
//! A [`Timed`] device asks its [`Model`] what a request costs, and then waits: for the simulated time of a [`Virtual`] clock, where
//! threads take turns; or for real ([`Real`]), sped up, where several threads keep several devices busy at once.
//!
//! The models are simple and told in full, so that figures can be understood: no caches, no queues. What they tell apart is what decides a log's worth:
//! sequential from scattered, and on flash whether erase blocks are filled from front to back.
//!
//! | file | device |
//! |---|---|
//! | `clock` | simulated time for several threads |
//! | `disk` | seeks, rotation, and a motor that stops when nobody asks |
//! | `flash` | USB stick: few open erase blocks; SSD: none that show |

mod clock;
mod disk;
mod flash;
#[cfg(test)]
mod tests;

pub use clock::{Guest, Virtual};
pub use disk::{Disk, DiskOptions};
pub use flash::{Ssd, SsdOptions, Stick, StickOptions};

use holdfast_block::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice};
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What a device costs for a request, in nanoseconds, and in wear. Requests come one after the other; `now_ns` is when this one begins.
pub trait Model: Send {
    /// Blocks are read.
    fn read(&mut self, blocks: Range<u64>, now_ns: u64) -> u64;
    /// Blocks are written.
    fn write(&mut self, blocks: Range<u64>, now_ns: u64) -> u64;
    /// What was written is made durable.
    fn flush(&mut self) -> u64;
    /// Blocks are not needed.
    fn discard(&mut self, blocks: Range<u64>);
    /// Wear of flash since the beginning.
    fn wear(&self) -> Wear {
        Wear::default()
    }
    /// The motor, if there is one, up to `now_ns`.
    fn motor(&self, _now_ns: u64) -> Motor {
        Motor::default()
    }
}

/// Wear of flash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wear {
    /// Pages of 4 KiB programmed, the device's own copies too.
    pub programmed: u64,
    /// Erase blocks erased.
    pub erased: u64,
    /// How often the one that is worn most was erased.
    pub erased_most: u64,
}

/// What a disk's motor has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Motor {
    /// How long it was on.
    pub on_ns: u64,
    /// How often it was started.
    pub starts: u64,
}

/// What a device has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Activity {
    /// Reads, writes and flushes.
    pub requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// How long it was at work.
    pub busy_ns: u64,
    /// Wear of its flash.
    pub wear: Wear,
    /// Its motor.
    pub motor: Motor,
}

/// Time for devices.
pub trait Pace: Send + Sync {
    /// Nanoseconds since the beginning.
    fn now_ns(&self) -> u64;
    /// Returns at that time or later.
    fn wait_until(&self, at_ns: u64);
}

/// The time of the machine, going so many times as fast.
#[derive(Debug)]
pub struct Real {
    start: Instant,
    speed: f64,
}

impl Real {
    /// From now on.
    pub fn new(speed: f64) -> Real {
        assert!(speed > 0.0);
        Real { start: Instant::now(), speed }
    }
}

impl Pace for Real {
    fn now_ns(&self) -> u64 {
        (self.start.elapsed().as_nanos() as f64 * self.speed) as u64
    }

    fn wait_until(&self, at_ns: u64) {
        // What is shorter than the scheduler's own delays is made up for with the next wait, as a device is busy until a fixed time.
        const SHORTEST: Duration = Duration::from_micros(200);
        let left = Duration::from_nanos((at_ns.saturating_sub(self.now_ns()) as f64 / self.speed) as u64);
        if left >= SHORTEST {
            // The wait is what the device is for: it takes as long as a real one would.
            std::thread::sleep(left);
        }
    }
}

/// A device in memory that takes its time.
pub struct Timed {
    below: Arc<MemoryDevice>,
    pace: Arc<dyn Pace>,
    state: Mutex<State>,
}

struct State {
    model: Box<dyn Model>,
    /// When it is done with everything so far.
    free_at_ns: u64,
    activity: Activity,
}

impl Timed {
    /// The contents of a device with the time of a model.
    pub fn new(below: Arc<MemoryDevice>, model: Box<dyn Model>, pace: Arc<dyn Pace>) -> Timed {
        let state = State { model, free_at_ns: 0, activity: Activity::default() };
        Timed { below, pace, state: Mutex::new(state) }
    }

    /// What it has done up to now.
    pub fn activity(&self) -> Activity {
        let state = self.state.lock();
        let motor = state.model.motor(self.pace.now_ns().max(state.free_at_ns));
        Activity { wear: state.model.wear(), motor, ..state.activity }
    }

    /// Does a request after those before it.
    fn take_time(&self, request: impl FnOnce(&mut dyn Model, &mut Activity, u64) -> u64) {
        let done_ns = {
            let mut state = self.state.lock();
            let State { model, free_at_ns, activity } = &mut *state;
            let start_ns = self.pace.now_ns().max(*free_at_ns);
            let cost_ns = request(&mut **model, activity, start_ns);
            activity.requests += 1;
            activity.busy_ns += cost_ns;
            *free_at_ns = start_ns + cost_ns;
            *free_at_ns
        };
        self.pace.wait_until(done_ns);
    }
}

fn length(bytes: usize) -> u64 {
    (bytes / BLOCK_SIZE) as u64
}

impl Filter for Timed {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let blocks = length(super::length_mut(bufs));
        self.below.read(first, bufs)?;
        self.take_time(|model, activity, now_ns| {
            activity.read_bytes += blocks * BLOCK;
            model.read(first..first + blocks, now_ns)
        });
        Ok(())
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let blocks = length(bufs.iter().map(|buf| buf.len()).sum());
        self.below.write(first, bufs)?;
        self.take_time(|model, activity, now_ns| {
            activity.written_bytes += blocks * BLOCK;
            model.write(first..first + blocks, now_ns)
        });
        Ok(())
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.below.flush()?;
        self.take_time(|model, _, _| model.flush());
        Ok(())
    }

    fn on_discard(&self, first: u64, count: u64) -> Result<(), Error> {
        self.below.discard(first, count)?;
        self.state.lock().model.discard(first..first + count);
        Ok(())
    }
}

/// How long bytes take at a rate of bytes a second.
fn transfer_ns(blocks: u64, bytes_per_s: u64) -> u64 {
    (u128::from(blocks * BLOCK) * 1_000_000_000 / u128::from(bytes_per_s)) as u64
}
