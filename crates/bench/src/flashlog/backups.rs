//! Backups: a full copy, then what is new in the log, against replaying the log write by write.

use super::loads::Time;
use super::{AnyModel, Bench, Log, MIB_BLOCKS, Setup, Sizes, of_device, of_set, used};
use crate::error::Result;
use crate::pattern::Generator;
use crate::report::{number, table};
use holdfast_block::flashlog::{BackedUp, Flashlog, Mode, ReadAhead, Timer, Uuid};
use holdfast_block::{BLOCK_SIZE, Device};
use holdfast_lab::device::timed::{Timed, Virtual};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Scattered writes of 4 KiB between two backups, and to how many blocks: some are written again and again.
const WRITES: u64 = 20_000;
const WRITTEN_BLOCKS: u64 = 4096;
/// What a backup needs beside the set's size.
const BESIDE_BLOCKS: u64 = 64 * MIB_BLOCKS;
/// How much faster the incremental backup is to be than a replay.
const GOAL: f64 = 5.0;

/// Simulated seconds of one log.
#[derive(Clone, Copy, Debug)]
pub struct Backups {
    log: Log,
    /// The first one, of all of main, which is full of data.
    full_s: f64,
    /// The next one.
    next_s: f64,
    /// Blocks that it wrote.
    next_blocks: u64,
    /// All writes in their order, read from the log one after the other.
    replay_s: f64,
}

impl Backups {
    /// How many times as long as the next backup a replay takes.
    pub(super) fn times(&self) -> f64 {
        self.replay_s / self.next_s
    }
}

/// A set with a second disk for backups.
///
/// # Errors
/// Of the devices, which do not happen.
pub fn backups(log: Log, sizes: Sizes) -> Result<Backups> {
    let bench = Bench::new(Setup::Flashlog(log, Mode::Asynchronous), sizes)?;
    let Some(flashlog) = &bench.flashlog else { unreachable!("it is one") };
    let device = used(sizes.main + BESIDE_BLOCKS, AnyModel::Disk, &bench.clock)?;
    // Zeros would take another way than data.
    let data = vec![0x55; (MIB_BLOCKS as usize) * BLOCK_SIZE];
    for first in (0..bench.device.blocks()).step_by(MIB_BLOCKS as usize) {
        let blocks = MIB_BLOCKS.min(bench.device.blocks() - first) as usize;
        bench.write(first, &data[..blocks * BLOCK_SIZE])?;
    }
    bench.flush()?;
    bench.settle()?;
    flashlog.create_backup(device.clone(), Uuid([4; 16])).map_err(of_set)?;
    let start_s = bench.seconds();
    back_up(&bench.clock, flashlog, &device)?;
    let full_s = bench.seconds() - start_s;
    let mut random = Generator::new(&[WRITES]);
    let hot: Vec<u64> = (0..WRITTEN_BLOCKS).map(|_| random.below(sizes.area)).collect();
    let places: Vec<u64> = (0..WRITES).map(|_| hot[random.below(WRITTEN_BLOCKS) as usize]).collect();
    let bytes = vec![0x77; BLOCK_SIZE];
    for place in &places {
        bench.write(*place, &bytes)?;
    }
    bench.flush()?;
    let start_s = bench.seconds();
    let done = back_up(&bench.clock, flashlog, &device)?;
    let next_s = bench.seconds() - start_s;
    // Both motors run: the backup was made just now.
    bench.clock.pass(Duration::from_secs(1));
    let (start_s, mut read) = (bench.seconds(), vec![0; BLOCK_SIZE]);
    let source = bench.log.as_deref().unwrap_or(&bench.main);
    for (at, place) in (0..).zip(&places) {
        source.read(at % sizes.log, &mut [IoSliceMut::new(&mut read)]).map_err(of_device)?;
        device.write(*place, &[IoSlice::new(&read)]).map_err(of_device)?;
    }
    device.flush().map_err(of_device)?;
    Ok(Backups { log, full_s, next_s, next_blocks: done.blocks, replay_s: bench.seconds() - start_s })
}

/// With a thread that reads in advance, as the command has it.
fn back_up(clock: &Virtual, set: &Flashlog, device: &Arc<Timed>) -> Result<BackedUp> {
    let (ahead, guest, has_ended) = (ReadAhead::default(), clock.guest(), AtomicBool::new(false));
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            guest.begin(clock, || {
                set.read_ahead(&ahead);
                has_ended.store(true, Ordering::SeqCst);
                clock.wake();
            });
        });
        let done = set.backup_ahead(device.clone(), &ahead, &mut |_, _| ());
        // In simulated time, where others may have nothing to do before this goes on.
        loop {
            let ticket = clock.ticket();
            if has_ended.load(Ordering::SeqCst) {
                return done;
            }
            clock.wait(ticket, None);
        }
    });
    done.map_err(of_set)
}

/// The table, and the goal.
pub fn backup_table(all: &[Backups]) -> String {
    let header = ["log", "full copy, s", "next backup, s", "blocks", "replay, s", "replay / backup", "goal", "verdict"];
    let body = all.iter().map(|one| {
        let ratio = one.times();
        let verdict = if ratio >= GOAL { "met" } else { "**missed**" };
        let log = if one.log == Log::Stick { "stick" } else { "SSD" };
        let cells = [number(one.full_s), number(one.next_s), one.next_blocks.to_string(), number(one.replay_s)];
        [vec![log.to_owned()], cells.to_vec(), vec![number(ratio), number(GOAL), verdict.to_owned()]].concat()
    });
    format!(
        "## Backups\n\n{WRITES} scattered writes of 4 KiB to {WRITTEN_BLOCKS} blocks between the first one and the next.\n\n{}",
        table(&header.map(str::to_owned), body.collect())
    )
}
