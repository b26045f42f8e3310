//! Whether to ask again and again for what comes next, or to go to sleep for it.
//!
//! A client with one request at a time sends the next one some 20 µs after its reply. If it runs on another processor, sleeping and being
//! woken takes longer than all else: on two idle ones of a virtual machine 49 µs a request of 4 KiB, and 23 without. If it runs on the same
//! one, asking keeps it from running. So both are tried, and what had the shorter waits lately is done.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// So long it is asked before sleeping.
pub(super) const ASK: Duration = Duration::from_micros(50);

/// One wait in so many is of the other kind, to see whether that has become the better one.
const OTHER: u32 = 32;

/// A longer wait says no more than this: the client had nothing to ask for.
const LONGEST: Duration = Duration::from_micros(400);

/// How long the waits of both kinds took lately, for the one thread that receives.
#[derive(Debug)]
pub(super) struct Asking {
    /// Moving means over about eight, in nanoseconds.
    asked_ns: AtomicU32,
    slept_ns: AtomicU32,
    waits: AtomicU32,
}

impl Default for Asking {
    /// Asking is taken to be better until seen otherwise.
    fn default() -> Self {
        let slept_ns = AtomicU32::new(ASK.as_nanos() as u32);
        Asking { asked_ns: AtomicU32::new(0), slept_ns, waits: AtomicU32::new(0) }
    }
}

impl Asking {
    /// Whether to ask this time.
    pub(super) fn is_worth_it(&self) -> bool {
        let waits = self.waits.fetch_add(1, Ordering::Relaxed);
        let (asked, slept) = (self.asked_ns.load(Ordering::Relaxed), self.slept_ns.load(Ordering::Relaxed));
        let is_better = asked <= slept && u128::from(asked) < ASK.as_nanos();
        is_better != (waits % OTHER == OTHER - 1)
    }

    /// So long it took until something came.
    pub(super) fn saw(&self, asked: bool, took: Duration) {
        let mean = if asked { &self.asked_ns } else { &self.slept_ns };
        let old = mean.load(Ordering::Relaxed);
        mean.store(old - old / 8 + took.min(LONGEST).as_nanos() as u32 / 8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often of 1000 it asks, where waits take so many µs asked and slept.
    fn asks(asking: &Asking, asked_us: u64, slept_us: u64) -> usize {
        let wait = |_: &u32| {
            let asks = asking.is_worth_it();
            asking.saw(asks, Duration::from_micros(if asks { asked_us } else { slept_us }));
            asks
        };
        (0..1000).filter(wait).count()
    }

    #[test]
    fn what_took_less_lately_is_done() {
        let asking = Asking::default();
        assert!(asks(&asking, 20, 45) > 950, "a client on another processor");
        assert!(asks(&asking, 45, 20) < 400, "it has come to this one");
        assert!(asks(&asking, 45, 20) < 50);
        assert!(asks(&asking, 1000, 1000) < 50, "nothing to do");
        asks(&asking, 20, 45);
        assert!(asks(&asking, 20, 45) > 950, "back again");
    }
}
