//! A program that has many transfers with checksums in flight from one thread, and what one of them costs.
//!
//! `cargo run --release -p holdfast-client --example in_flight -- FILE [ROUNDS [CALLS]]` writes to FILE, which is in a mount, and reads it again; then it
//! times reads of 4 KiB that the mount has in memory: in nanoseconds of one of CALLS, medians of ROUNDS.

use holdfast_client::{BLOCK_BYTES, Error, Pending, Workers};
use std::fs;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::Instant;

/// A call has its own handle of the file.
type File = Arc<holdfast_client::File<fs::File>>;

const DEPTHS: [usize; 2] = [1, 16];
const BLOCKS: u64 = 256;

struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The least executor: it has one future. Any other will do as well.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Arc::new(Parked(thread::current())).into();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// The buffer belongs to the call, and comes back with what was read.
fn read_block(workers: &Workers, file: &File, block: u64) -> Pending<Result<Vec<u8>, Error>> {
    let file = file.clone();
    let call = move || {
        let mut buffer = vec![0; BLOCK_BYTES];
        let length = file.read_at(&mut buffer, block * BLOCK_BYTES as u64)?;
        buffer.truncate(length);
        Ok(buffer)
    };
    workers.run(call).expect("no more are begun than there is room for")
}

async fn all<T>(begun: Vec<Pending<T>>) -> Vec<T> {
    let mut values = Vec::new();
    for pending in begun {
        values.push(pending.await);
    }
    values
}

/// Reads blocks, all of them in flight at once; each of them can fail by itself.
pub(crate) async fn read(workers: &Workers, file: &File, blocks: &[u64]) -> Vec<Result<Vec<u8>, Error>> {
    all(blocks.iter().map(|&block| read_block(workers, file, block)).collect()).await
}

/// Writes blocks, all of them in flight at once, and has them stored once they are written: calls that are in flight together have no order.
pub(crate) async fn write(workers: &Workers, file: &File, blocks: Vec<(u64, Vec<u8>)>) -> io::Result<()> {
    let write_block = |(block, bytes): (u64, Vec<u8>)| {
        let file = file.clone();
        let call = move || file.write_at(&bytes, block * BLOCK_BYTES as u64);
        workers.run(call).expect("no more are begun than there is room for")
    };
    for written in all(blocks.into_iter().map(write_block).collect()).await {
        written?;
    }
    let file = file.clone();
    workers.run(move || file.get_ref().sync_all()).map_err(io::Error::other)?.await
}

/// Begins calls, of which so many are in flight; in nanoseconds of one.
fn timed<T>(depth: usize, calls: u64, mut begin: impl FnMut(u64) -> Pending<T>) -> f64 {
    let start = Instant::now();
    let mut begun = std::collections::VecDeque::new();
    block_on(async {
        for call in 0..calls {
            if begun.len() == depth {
                begun.pop_front().expect("at least one is in flight").await;
            }
            begun.push_back(begin(call));
        }
        all(begun.into()).await;
    });
    start.elapsed().as_nanos() as f64 / calls as f64
}

/// The same reads by as many threads, each of which waits for its own.
fn timed_threads(file: &File, depth: usize, calls: u64) -> f64 {
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..depth {
            scope.spawn(|| {
                let mut buffer = vec![0; BLOCK_BYTES];
                for call in 0..calls / depth as u64 {
                    file.read_at(&mut buffer, call % BLOCKS * BLOCK_BYTES as u64).expect("a read");
                }
            });
        }
    });
    start.elapsed().as_nanos() as f64 / (calls / depth as u64 * depth as u64) as f64
}

fn run(path: &Path, rounds: usize, calls: u64) -> io::Result<()> {
    let plain = fs::File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let file = Arc::new(holdfast_client::File::new(plain)?);
    let workers = Workers::new(4, BLOCKS as usize)?;
    let made = |block: u64| vec![block as u8; BLOCK_BYTES];
    block_on(async {
        write(&workers, &file, (0..BLOCKS).map(|block| (block, made(block))).collect()).await?;
        for (block, read) in (0..).zip(read(&workers, &file, &(0..BLOCKS).collect::<Vec<_>>()).await) {
            assert_eq!(read?, made(block), "read as it was written");
        }
        io::Result::Ok(())
    })?;
    println!("{BLOCKS} blocks written, stored and read, all of them in flight at once and verified");

    println!("{:28}{:>10}{:>10}", "in flight", DEPTHS[0], DEPTHS[1]);
    let mut times = [const { [const { Vec::new() }; DEPTHS.len()] }; 3];
    for _ in 0..rounds {
        for (number, depth) in DEPTHS.into_iter().enumerate() {
            let workers = Workers::new(depth, depth)?;
            times[0][number].push(timed_threads(&file, depth, calls));
            times[1][number].push(timed(depth, calls, |call| read_block(&workers, &file, call % BLOCKS)));
            times[2][number].push(timed(depth, calls, |_| workers.run(|| ()).expect("there is room")));
        }
    }
    for (name, times) in
        ["read, threads that wait", "read, asynchronous", "nothing, asynchronous"].iter().zip(&mut times)
    {
        let medians = times.each_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
        });
        println!("{name:28}{:10.0}{:10.0}", medians[0], medians[1]);
    }
    Ok(())
}

fn main() -> ExitCode {
    let all: Vec<String> = std::env::args().collect();
    // Behind the program's own name.
    let arguments = all.get(1..).unwrap_or_default();
    let number = |index: usize, default: u64| arguments.get(index).map_or(Some(default), |text| text.parse().ok());
    let (Some(path), Some(rounds), Some(calls)) = (arguments.first(), number(1, 11), number(2, 4000)) else {
        eprintln!("in_flight: FILE [ROUNDS [CALLS]]: which file in a mount?");
        return ExitCode::FAILURE;
    };
    match run(Path::new(path), rounds as usize, calls.max(16)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("in_flight: {path}: {error}");
            ExitCode::FAILURE
        }
    }
}
