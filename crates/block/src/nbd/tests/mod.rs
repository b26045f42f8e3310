//! A server against clients by hand, over pairs of sockets.

mod client;
mod hostile;
mod life;
mod requests;
mod talk;

use std::sync::Arc;
use std::time::Duration;

use super::{Export, Limits, Server};
use crate::MemoryDevice;

/// Short enough for tests, long enough for a busy machine.
const LIMITS: Limits = Limits {
    connections: 4,
    connection_bytes: 40 << 20,
    workers: 4,
    negotiation: Duration::from_secs(20),
    patience: Duration::from_secs(20),
    grace: Duration::from_secs(20),
};

/// A server of memory, with what is known of it.
fn memory(blocks: u64) -> (Arc<MemoryDevice>, Server) {
    let device = Arc::new(MemoryDevice::new(blocks));
    let export = Export::new("disk", device.clone()).with_extents(device.clone()).described("a disk");
    (device, Server::new(vec![export]).limited(LIMITS))
}

/// The seed of a random test: from `HOLDFAST_SEED`, or from the clock; printed with the command that replays it.
fn seed(test: &str) -> u64 {
    let seed = match std::env::var("HOLDFAST_SEED") {
        Ok(seed) => seed.parse().expect("HOLDFAST_SEED is a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64,
    };
    println!("replay: HOLDFAST_SEED={seed} cargo test -p holdfast-block {test} -- --nocapture");
    seed
}

/// How long to fuzz: `HOLDFAST_FUZZ_SECONDS`, or a second and a half.
fn fuzz_budget() -> Duration {
    match std::env::var("HOLDFAST_FUZZ_SECONDS") {
        Ok(seconds) => Duration::from_secs(seconds.parse().expect("HOLDFAST_FUZZ_SECONDS is a number")),
        Err(_) => Duration::from_millis(1500),
    }
}
