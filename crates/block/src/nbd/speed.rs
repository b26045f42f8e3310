//! Whether the device answers from memory, so that handing a request to another thread would cost more than the request.

use std::array::from_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Kinds of request that differ in how long they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Reads.
    Read,
    /// Writes that need not be durable.
    Write,
    /// Flushes, and whatever ends in one.
    Flush,
}

/// Requests that take less than this are quick: a thread takes about as long to wake up.
const QUICK: Duration = Duration::from_micros(40);

/// What moving a byte in memory may take besides, in picoseconds.
const PER_BYTE_PS: u64 = 500;

/// One slow request says no more than this, as it may have been the scheduler.
const MOST: Duration = Duration::from_micros(320);

/// So long nobody is off the processor for the scheduler's sake: the device waits for something now and then.
const LONG: Duration = Duration::from_millis(8);

/// After a long request so many more count as slow. A device that gathers writes is quick for some hundred, and then takes long for all of
/// them; whoever reads the requests must not be the one who waits for it.
const WARY: u32 = 1000;

/// How long a kind of request took lately.
#[derive(Debug)]
struct Lately {
    /// A moving mean over about eight of them, in nanoseconds.
    mean_ns: AtomicU32,
    /// Left of [`WARY`].
    wary: AtomicU32,
}

/// How long the kinds of request took lately.
#[derive(Debug)]
pub(super) struct Speed([Lately; 3]);

impl Default for Speed {
    /// Slow until seen otherwise.
    fn default() -> Self {
        let slow = 4 * QUICK.as_nanos() as u32;
        Speed(from_fn(|_| Lately { mean_ns: AtomicU32::new(slow), wary: AtomicU32::new(0) }))
    }
}

impl Speed {
    pub(super) fn is_quick(&self, kind: Kind) -> bool {
        let Lately { mean_ns, wary } = &self.0[kind as usize];
        u128::from(mean_ns.load(Ordering::Relaxed)) < QUICK.as_nanos() && wary.load(Ordering::Relaxed) == 0
    }

    pub(super) fn saw(&self, kind: Kind, bytes: u32, took: Duration) {
        let moving = Duration::from_nanos(u64::from(bytes) * PER_BYTE_PS / 1000);
        let took = took.saturating_sub(moving);
        let Lately { mean_ns, wary } = &self.0[kind as usize];
        // Two threads at once lose one of their observations.
        match wary.load(Ordering::Relaxed) {
            _ if took >= LONG => wary.store(WARY, Ordering::Relaxed),
            0 => {}
            left => wary.store(left - 1, Ordering::Relaxed),
        }
        let old = mean_ns.load(Ordering::Relaxed);
        mean_ns.store(old - old / 8 + took.min(MOST).as_nanos() as u32 / 8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_several_to_change_its_mind() {
        let speed = Speed::default();
        assert!(!speed.is_quick(Kind::Read));
        (0..40).for_each(|_| speed.saw(Kind::Read, 4096, Duration::from_micros(3)));
        assert!(speed.is_quick(Kind::Read) && !speed.is_quick(Kind::Write));
        let slow = (0..).take_while(|_| {
            speed.saw(Kind::Read, 4096, Duration::from_micros(200));
            speed.is_quick(Kind::Read)
        });
        assert!((1..4).contains(&slow.count()));
        (0..40).for_each(|_| speed.saw(Kind::Read, 1 << 20, Duration::from_micros(500)));
        assert!(speed.is_quick(Kind::Read));
    }

    #[test]
    fn a_device_that_takes_long_now_and_then_is_slow() {
        let speed = Speed::default();
        let quick = || speed.saw(Kind::Write, 4096, Duration::from_micros(3));
        (0..40).for_each(|_| quick());
        assert!(speed.is_quick(Kind::Write));
        speed.saw(Kind::Write, 4096, Duration::from_millis(50));
        (1..WARY).for_each(|_| quick());
        assert!(!speed.is_quick(Kind::Write));
        quick();
        assert!(speed.is_quick(Kind::Write));
    }
}
