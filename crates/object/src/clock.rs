//! Time comes from outside, so that the simulator can run the layers by seed.

use crate::Timestamp;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Wall-clock time, for the times of files.
    fn now(&self) -> Timestamp;
    /// Nanoseconds since some moment; never goes back. For ages and time-outs.
    fn monotonic_ns(&self) -> u64;
    /// The same in milliseconds, and some milliseconds late, for whoever asks often and needs no order of events: reading it moves no
    /// clock.
    fn monotonic_ms(&self) -> u64;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    start_coarse_ms: u64,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: Instant::now(), start_coarse_ms: coarse_ms() }
    }
}

/// Milliseconds of the monotonic clock as of the last tick, some 4 ms ago: a fourth of the time of an exact reading.
fn coarse_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() },
            Err(_) => Timestamp::default(),
        }
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn monotonic_ms(&self) -> u64 {
        coarse_ms().saturating_sub(self.start_coarse_ms)
    }
}

/// A clock that moves by a fixed step each time it is read (but not in milliseconds), and when told.
#[derive(Debug)]
pub struct ManualClock {
    now_ns: AtomicU64,
    step_ns: u64,
}

impl ManualClock {
    /// Starts at `start_ns` after 1970 and moves by `step_ns` at each reading.
    pub fn new(start_ns: u64, step_ns: u64) -> ManualClock {
        ManualClock { now_ns: AtomicU64::new(start_ns), step_ns }
    }

    /// Moves the clock on.
    pub fn advance_ns(&self, by_ns: u64) {
        self.now_ns.fetch_add(by_ns, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let ns = self.monotonic_ns();
        Timestamp { secs: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
    }

    fn monotonic_ns(&self) -> u64 {
        self.now_ns.fetch_add(self.step_ns, Ordering::Relaxed)
    }

    fn monotonic_ms(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed) / 1_000_000
    }
}
