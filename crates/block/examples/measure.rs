//! Measures a device: batches against single requests. `docs/decisions/0003-block-io.md` has the results.
//!
//! ```text
//! cargo run --release -p holdfast-block --example measure -- PATH [SIZE_MIB] [ROUNDS]
//! ```
//! PATH is created (1024 MiB by default) if it does not exist, and **overwritten** if it does.

use std::io::{IoSlice, IoSliceMut};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use holdfast_block::{Access, AlignedBuf, BLOCK_SIZE, Device, Error, FileDevice, Read, Write};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Blocks per timed step.
const STEP_BLOCKS: usize = 8192;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: measure PATH [SIZE_MIB] [ROUNDS]   (PATH is overwritten)");
        return ExitCode::from(2);
    };
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |argument| argument.parse());
    let (Ok(size_mib), Ok(rounds)) = (number(1024), number(5)) else {
        eprintln!("SIZE_MIB and ROUNDS are numbers");
        return ExitCode::from(2);
    };
    match run(&path, size_mib, rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &std::path::Path, size_mib: u64, rounds: u64) -> Result<(), Error> {
    let device = if path.exists() {
        FileDevice::open(path, Access::ReadWrite)?
    } else {
        FileDevice::create_file(path, size_mib << 20)?
    };
    // Written once, so that no later write has to turn an unwritten extent into a written one.
    let megabyte = AlignedBuf::copy_of(&vec![0x5a; 1 << 20]);
    for first in (0..device.blocks() / 256).map(|at| at * 256) {
        device.write(first, &[IoSlice::new(&megabyte)])?;
    }
    device.flush()?;
    println!("{}: {} MiB, direct I/O: {}", device.name(), device.blocks() >> 8, device.is_direct());
    println!("median of {rounds} rounds, thousand blocks of 4 KiB per second; the variants of a row are interleaved");
    println!("{:<26} {:>10} {:>10} {:>7}", "", "one by one", "batched", "ratio");
    for depth in [2, 4, 16, 64, 256] {
        row(&format!("random reads, {depth} a batch"), rounds, |batched, seed| read(&device, depth, batched, seed))?;
    }
    for depth in [2, 4, 16, 64, 256] {
        row(&format!("random writes, {depth} a batch"), rounds, |batched, seed| write(&device, depth, batched, seed))?;
    }
    Ok(())
}

fn row(name: &str, rounds: u64, step: impl Fn(bool, u64) -> Result<Duration, Error>) -> Result<(), Error> {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for batched in [false, true] {
            times[usize::from(batched)].push(step(batched, round)?);
        }
    }
    let [single, batched] = times.map(|mut times| {
        times.sort();
        STEP_BLOCKS as f64 / times[times.len() / 2].as_secs_f64() / 1000.0
    });
    println!("{name:<26} {single:>10.1} {batched:>10.1} {:>7.2}", batched / single);
    Ok(())
}

/// Distinct random blocks, as a batch wants them.
fn addresses(device: &FileDevice, depth: usize, rng: &mut Pcg64Mcg) -> Vec<u64> {
    let stride = device.blocks() / depth as u64;
    (0..depth as u64).map(|part| part * stride + rng.random_range(0..stride)).collect()
}

fn read(device: &FileDevice, depth: usize, batched: bool, seed: u64) -> Result<Duration, Error> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut memory = AlignedBuf::zeroed(depth * BLOCK_SIZE);
    let start = Instant::now();
    for _ in 0..STEP_BLOCKS / depth {
        let mut slices: Vec<_> = memory.chunks_mut(BLOCK_SIZE).map(|block| [IoSliceMut::new(block)]).collect();
        let addresses = addresses(device, depth, &mut rng);
        if batched {
            let mut reads: Vec<_> =
                addresses.into_iter().zip(&mut slices).map(|(first, bufs)| Read::new(first, bufs)).collect();
            device.read_batch(&mut reads)?;
        } else {
            addresses.into_iter().zip(&mut slices).try_for_each(|(first, bufs)| device.read(first, bufs))?;
        }
    }
    Ok(start.elapsed())
}

/// Each step ends with a flush, as an epoch does.
fn write(device: &FileDevice, depth: usize, batched: bool, seed: u64) -> Result<Duration, Error> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let memory = AlignedBuf::copy_of(&vec![0xa5; depth * BLOCK_SIZE]);
    let slices: Vec<_> = memory.chunks(BLOCK_SIZE).map(|block| [IoSlice::new(block)]).collect();
    let start = Instant::now();
    for _ in 0..STEP_BLOCKS / depth {
        let addresses = addresses(device, depth, &mut rng).into_iter().zip(&slices);
        if batched {
            let writes: Vec<_> = addresses.map(|(first, bufs)| Write { first, bufs }).collect();
            device.write_batch(&writes)?;
        } else {
            addresses.into_iter().try_for_each(|(first, bufs)| device.write(first, bufs))?;
        }
    }
    device.flush()?;
    Ok(start.elapsed())
}
