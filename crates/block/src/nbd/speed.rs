//! Whether the device answers from memory, so that handing a request to another thread would cost more than the request.

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

/// How long the kinds of request took lately: moving means over about eight of them.
#[derive(Debug)]
pub(super) struct Speed([AtomicU32; 3]);

impl Default for Speed {
    /// Slow until seen otherwise.
    fn default() -> Self {
        Speed([const { AtomicU32::new(4 * QUICK.as_nanos() as u32) }; 3])
    }
}

impl Speed {
    pub(super) fn is_quick(&self, kind: Kind) -> bool {
        u128::from(self.0[kind as usize].load(Ordering::Relaxed)) < QUICK.as_nanos()
    }

    pub(super) fn saw(&self, kind: Kind, bytes: u32, took: Duration) {
        let moving = Duration::from_nanos(u64::from(bytes) * PER_BYTE_PS / 1000);
        let took = took.saturating_sub(moving).min(MOST).as_nanos() as u32;
        let mean = &self.0[kind as usize];
        let old = mean.load(Ordering::Relaxed);
        // Two threads at once lose one of their observations.
        mean.store(old - old / 8 + took / 8, Ordering::Relaxed);
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
}
