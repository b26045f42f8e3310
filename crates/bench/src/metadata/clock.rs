//! The machine's clock, which can be put forward.

use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_object::{Clock, SystemClock, Timestamp};

/// As dear to read as the machine's: stores read it often.
#[derive(Default)]
pub(super) struct Forwarded {
    system: SystemClock,
    ahead_ns: AtomicU64,
}

impl Forwarded {
    pub(super) fn forward_ns(&self, by_ns: u64) {
        self.ahead_ns.fetch_add(by_ns, Ordering::Relaxed);
    }
}

impl Clock for Forwarded {
    fn now(&self) -> Timestamp {
        self.system.now()
    }

    fn monotonic_ns(&self) -> u64 {
        self.system.monotonic_ns() + self.ahead_ns.load(Ordering::Relaxed)
    }

    fn monotonic_ms(&self) -> u64 {
        self.system.monotonic_ms() + self.ahead_ns.load(Ordering::Relaxed) / 1_000_000
    }
}
