//! A large discard in the log: what is kept of it in memory.
//!
//! What it comes to: `HOLDFAST_DISCARD_GIB=1024 cargo test -p holdfast-block --lib flashlog::discard_tests -- --nocapture`
use super::append::pages;
use super::at::Behind;
use super::chunk::{Chunk, Zeros};
use super::format::{PageHead, Point, Role, State};
use super::labels::Labelled;
use super::ring::{Area, Rings};
use super::staging::Backup;
use super::tests::{block, get, names};
use super::*;
use crate::{BLOCK_SIZE, MemoryDevice};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// Blocks that are written, one in so many.
const ONE_IN: u64 = 1000;

/// A log with some blocks, a discard of everything, and some blocks again; and a backup that has nothing of it.
fn with_discard(blocks: u64) -> (Arc<MemoryDevice>, Arc<MemoryDevice>, Point) {
    let name = Uuid([60; 16]);
    let sizes = [blocks + 256, blocks / 256 + 65_536, Backup::blocks_least(blocks)];
    let [main, log, backup] = sizes.map(|blocks| Arc::new(MemoryDevice::new(blocks)));
    assert_eq!(create(main, log.clone(), &names(1)).unwrap(), blocks);
    let mut labels = Labelled::read(log.clone(), Role::Log).unwrap();
    Backup::create(backup.clone(), &labels.label, name).unwrap();
    let of_log = labels.label.clone();
    let mut of_backup = Labelled::read(backup.clone(), Role::Backup).unwrap();
    of_backup
        .write(|label| {
            label.state = State::Open;
            label.is_of(&of_log);
        })
        .unwrap();
    let some = |number: u64| {
        let one = |at: u64| {
            let bytes = block(number + at);
            (at * ONE_IN, Arc::new(Chunk::arrive(&[IoSlice::new(&bytes)], 0, 1, &Arc::default())))
        };
        (0..64).map(one).collect::<Vec<_>>()
    };
    let discard = (0, Arc::new(Chunk::zeros(Zeros { count: blocks, keep: false })));
    let batch = [some(1), vec![discard], some(7000)].concat();
    let head = PageHead {
        log: of_log.log,
        number: 0,
        previous: 0,
        generation: of_log.generation,
        data: 0,
        applied: 0,
        durable: 0,
        is_barrier: true,
        is_partial: false,
        barrier: 0,
        time: SystemTime::UNIX_EPOCH,
    };
    let (pages, next) = pages(&batch, Point::default(), &head);
    let rings = Rings { device: log.clone(), areas: of_log.areas };
    rings.write(Area::Meta, 0, &[&pages]).unwrap();
    rings.write(Area::Data, 0, &batch.iter().map(|(_, chunk)| chunk.bytes()).collect::<Vec<_>>()).unwrap();
    labels.write(|label| (label.backup, label.durable, label.barrier) = (name, next.page, 1)).unwrap();
    (backup, log, next)
}

/// What this process has in memory, and had at most, in MiB.
fn memory_mib() -> [u64; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    [of("VmRSS:"), of("VmHWM:")]
}

/// Does something, and tells how much memory that took at most.
fn measured<T>(what: &str, does: impl FnOnce() -> T) -> T {
    // The most of before is forgotten, if the kernel does that.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let ([before, _], begun) = (memory_mib(), Instant::now());
    let done = does();
    println!("{what}: {} MiB more than before at most, {:.1?}", memory_mib()[1] - before, begun.elapsed());
    done
}

#[test]
fn a_large_discard_is_a_run_in_memory() {
    let gib: u64 = std::env::var("HOLDFAST_DISCARD_GIB").map_or(16, |gib| gib.parse().unwrap());
    let (backup, log, end) = with_discard(gib << 18);
    println!("{gib} GiB, {} pages", end.page);
    let past = measured("a state in between", || Past::open(backup.clone(), log.clone(), At::Now).unwrap());
    assert_eq!(past.blocks_in_log(), gib << 18);
    for at in 0..64 {
        assert!(get(&past, at * ONE_IN) == block(7000 + at) && get(&past, at * ONE_IN + 1) == [0; BLOCK_SIZE]);
    }
    drop(past);
    let backup = Backup::look(backup).unwrap();
    let behind = Behind::closed(&backup, &Labelled::read(log, Role::Log).unwrap()).unwrap();
    // Between two blocks that were written is one run.
    assert_eq!(behind.newest(end).unwrap().in_memory(), 2 * 64);
    let damaged = measured("what a main made anew needs", || behind.damaged_data(end).unwrap());
    assert!(damaged.is_none());
}
