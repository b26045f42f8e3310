//! The ceiling of the wire: how fast a file system in memory is through it, with nothing behind.
//!
//! `cargo run --release -p holdfast-fuse --example wire_speed -- [ROUNDS [SECONDS_PER_STEP [WORKERS]]]`, as root. Steps are
//! interleaved; each line gives the median and the range of the rounds.

#[path = "../tests/it/memory.rs"]
mod memory;

use holdfast_fuse::{Caching, MountOptions, Session, mount, unmount};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 256 << 20;
const SMALL: usize = 4 << 10;
const LARGE: usize = 1 << 20;

/// Does `operation` with a counter until the time is over, in `threads` threads; gives operations per second.
fn rate(threads: u64, step: Duration, operation: impl Fn(u64) + Sync) -> f64 {
    let start = Instant::now();
    let done: u64 = std::thread::scope(|scope| {
        let operation = &operation;
        let run = move |thread: u64| {
            let mut count = 0;
            while start.elapsed() < step {
                operation(count * threads + thread);
                count += 1;
            }
            count
        };
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("a step does not panic")).sum()
    });
    done as f64 / start.elapsed().as_secs_f64()
}

/// A place in the file for a counter: Fibonacci hashing, which spreads successive numbers.
fn scattered(count: u64) -> u64 {
    (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (FILE_BYTES / SMALL as u64) * SMALL as u64
}

fn sequential(count: u64) -> u64 {
    count * LARGE as u64 % FILE_BYTES
}

fn argument(position: usize, default: f64) -> f64 {
    std::env::args().nth(position).map_or(default, |value| value.parse().expect("a number"))
}

fn measure(directory: &Path, rounds: usize, step: Duration) -> std::io::Result<()> {
    let path = directory.join("data");
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    for index in 0..FILE_BYTES / LARGE as u64 {
        file.write_all_at(&vec![index as u8 | 1; LARGE], index * LARGE as u64)?;
    }
    let read = |size: usize, offset: u64| {
        let mut buffer = [0; SMALL];
        let mut large = Vec::new();
        let buffer = if size == SMALL {
            &mut buffer[..]
        } else {
            large.resize(size, 0);
            &mut large[..]
        };
        file.read_exact_at(buffer, offset).expect("a read");
        assert_ne!(black_box(buffer[0]), 0, "a page that was never written");
    };
    let write = |offset| file.write_all_at(&[7; SMALL], offset).expect("a write");
    let lookup = || assert!(std::fs::metadata(directory.join("none")).is_err());
    type Step<'a> = (&'a str, f64, &'a str, Box<dyn Fn() -> f64 + 'a>);
    let mib = LARGE as f64 / 1e9;
    let steps: Vec<Step<'_>> = vec![
        ("4 KiB random reads, 1 thread", 1e-3, "k/s", Box::new(|| rate(1, step, |n| read(SMALL, scattered(n))))),
        ("4 KiB random reads, 4 threads", 1e-3, "k/s", Box::new(|| rate(4, step, |n| read(SMALL, scattered(n))))),
        ("4 KiB random writes, 1 thread", 1e-3, "k/s", Box::new(|| rate(1, step, |n| write(scattered(n))))),
        ("1 MiB sequential reads, 1 thread", mib, "GB/s", Box::new(|| rate(1, step, |n| read(LARGE, sequential(n))))),
        ("1 MiB sequential reads, 4 threads", mib, "GB/s", Box::new(|| rate(4, step, |n| read(LARGE, sequential(n))))),
        ("lookups of no name, 1 thread", 1e-3, "k/s", Box::new(|| rate(1, step, |_| lookup()))),
    ];
    let mut rates = vec![Vec::new(); steps.len()];
    for _ in 0..rounds {
        for (rates, (_, scale, _, run)) in rates.iter_mut().zip(&steps) {
            rates.push(run() * scale);
        }
    }
    for (rates, (name, _, unit, _)) in rates.iter_mut().zip(&steps) {
        rates.sort_by(f64::total_cmp);
        let (low, high) = (rates[0], rates[rates.len() - 1]);
        println!("{name:35} {:8.2} {unit:5} ({low:.2} to {high:.2})", rates[rates.len() / 2]);
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let (rounds, seconds, workers) = (argument(1, 5.0) as usize, argument(2, 1.0), argument(3, 2.0) as usize);
    let directory = tempfile::tempdir()?;
    let options = MountOptions { source: "wire_speed".into(), ..MountOptions::default() };
    let session = Session::start(mount(directory.path(), &options)?, Caching::Direct)?;
    let memory = Arc::new(memory::Memory::new());
    let mut serving = Vec::new();
    for _ in 0..workers {
        let (mut worker, memory) = (session.worker(session.clone_device()?)?, memory.clone());
        serving.push(std::thread::spawn(move || worker.serve(&*memory)));
    }
    println!("{workers} workers, {rounds} rounds of {seconds} s per step");
    let measured = measure(directory.path(), rounds.max(1), Duration::from_secs_f64(seconds));
    unmount(directory.path(), false)?;
    for worker in serving {
        worker.join().expect("a worker does not panic")?;
    }
    measured
}
