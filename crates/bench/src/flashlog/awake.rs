//! What a real main does while something steady goes on, in real time: the measure of the energy it needs.

use super::Load;
use crate::report::{number, table};
use holdfast_block::{Device, Error, Filter};
use holdfast_lab::device::timed::Activity;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The loads: a device at the pace of a recording, or of a processor.
pub(super) const LOADS: [Load; 2] = [Load::Stream, Load::Compilation];

/// A device that counts what is asked of it, and the time in which it has a request, however many at once.
pub(super) struct Counted {
    below: Arc<dyn Device>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    activity: Activity,
    under_way: u32,
    /// When the first of them came.
    since: Option<Instant>,
}

impl Counted {
    pub(super) fn new(below: Arc<dyn Device>) -> Counted {
        Counted { below, state: Mutex::default() }
    }

    /// Up to now, without requests that are not done.
    pub(super) fn activity(&self) -> Activity {
        self.state().activity
    }

    /// Numbers only: whole at any time.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count<T>(&self, read_bytes: usize, written_bytes: usize, request: impl FnOnce() -> T) -> T {
        {
            let mut state = self.state();
            state.under_way += 1;
            state.since.get_or_insert_with(Instant::now);
        }
        let done = request();
        let mut state = self.state();
        state.under_way -= 1;
        state.activity.requests += 1;
        state.activity.read_bytes += read_bytes as u64;
        state.activity.written_bytes += written_bytes as u64;
        if state.under_way == 0 {
            let busy = state.since.take().map_or(0, |since| since.elapsed().as_nanos());
            state.activity.busy_ns += u64::try_from(busy).unwrap_or(u64::MAX);
        }
        done
    }
}

impl Filter for Counted {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let bytes = bufs.iter().map(|buf| buf.len()).sum();
        self.count(bytes, 0, || self.below.read(first, bufs))
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let bytes = bufs.iter().map(|buf| buf.len()).sum();
        self.count(0, bytes, || self.below.write(first, bufs))
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.count(0, 0, || self.below.flush())
    }
}

/// One load on one setup.
pub(super) struct Awake {
    pub(super) load: Load,
    pub(super) setup: &'static str,
    /// What the load is asked for, and what it took.
    pub(super) steady_s: u64,
    pub(super) seconds: f64,
    /// From the beginning of the load to its end.
    pub(super) meanwhile: Activity,
    /// Until main has everything.
    pub(super) afterwards: Activity,
}

impl Awake {
    fn row(&self) -> Vec<String> {
        let mb = |bytes: u64| number(bytes as f64 / 1e6);
        let busy_s = |activity: &Activity| activity.busy_ns as f64 / 1e9;
        let [now, then] = [&self.meanwhile, &self.afterwards];
        vec![
            format!("{}, {} s", self.load.name(), self.steady_s),
            self.setup.to_owned(),
            now.requests.to_string(),
            mb(now.read_bytes),
            mb(now.written_bytes),
            number(1e3 * busy_s(now)),
            number(100.0 * busy_s(now) / self.seconds),
            then.requests.to_string(),
            mb(then.written_bytes),
            number(1e3 * busy_s(then)),
        ]
    }
}

/// The table.
pub(super) fn awake_table(runs: &[Awake]) -> String {
    let header = [
        "load",
        "setup",
        "main's requests",
        "MB read",
        "MB written",
        "active, ms",
        "active, % of the time",
        "afterwards: requests",
        "MB written",
        "active, ms",
    ];
    table(&header.map(str::to_owned), runs.iter().map(Awake::row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_block::{BLOCK_SIZE, MemoryDevice};

    #[test]
    fn requests_bytes_and_time_are_counted() {
        let device = Counted::new(Arc::new(MemoryDevice::new(8)));
        let mut bytes = vec![7; 2 * BLOCK_SIZE];
        device.write(1, &[IoSlice::new(&bytes)]).unwrap();
        device.flush().unwrap();
        device.read(1, &mut [IoSliceMut::new(&mut bytes[..BLOCK_SIZE])]).unwrap();
        let Activity { requests, read_bytes, written_bytes, busy_ns, .. } = device.activity();
        assert_eq!((requests, read_bytes, written_bytes), (3, 4096, 8192));
        assert!(busy_ns > 0 && device.state().under_way == 0);
    }

    #[test]
    fn time_with_two_requests_at_once_counts_once() {
        let device = Counted::new(Arc::new(MemoryDevice::new(8)));
        let start = Instant::now();
        let inner = || {
            let begun = Instant::now();
            while begun.elapsed().as_millis() < 5 {}
        };
        device.count(0, 0, || device.count(0, 0, inner));
        let (busy_ns, most_ns) = (u128::from(device.activity().busy_ns), start.elapsed().as_nanos());
        assert!((5_000_000..=most_ns).contains(&busy_ns), "{busy_ns} of {most_ns}");
    }
}
