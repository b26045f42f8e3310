//! What requests do, one by one and many at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::protocol::flag;
use super::client::{CACHE, Client, DISCONNECT, FLUSH, Got, READ, STATUS, TRIM, WRITE, ZEROES, request};
use super::{LIMITS, memory, seed};
use crate::flashlog::{self, Uuid};
use crate::nbd::{Context, Export, Extent, Extents, NOT_BACKED_UP, Server};
use crate::{Device, Error, Filter, MemoryDevice};

#[test]
fn bytes_at_any_place_and_of_any_length() {
    for structured in [false, true] {
        let (device, server) = memory(8);
        scope(|scope| {
            let mut client = Client::ready(scope, &server, structured, &[]);
            let bytes: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
            for (offset, length) in
                [(0, 4096), (1, 1), (4095, 2), (100, 8192), (4096, 10_000), (8191, 4097), (22_767, 10_000)]
            {
                let mut whole = device.snapshot();
                whole[offset..offset + length].copy_from_slice(&bytes[..length]);
                assert_eq!(client.does(WRITE, 0, offset as u64, length as u32, &bytes[..length]), 0);
                assert!(device.snapshot() == whole, "{length} bytes at {offset}");
                let flags = if structured { flag::DF } else { 0 };
                assert!(
                    client.read(offset as u64, length as u32, flags) == bytes[..length],
                    "{length} bytes at {offset}"
                );
            }
        });
    }
}

#[test]
fn zeros_and_trims_concern_their_bytes_only() {
    let (device, server) = memory(8);
    scope(|scope| {
        let mut client = Client::ready(scope, &server, true, &[]);
        for (offset, length) in [(0, 32_768), (1, 4094), (4000, 200), (5000, 20_000), (4096, 4096), (8192, 1)] {
            for flags in [0, flag::NO_HOLE, flag::FUA] {
                assert_eq!(client.does(WRITE, 0, 0, 32_768, &[9; 32_768]), 0);
                assert_eq!(client.does(ZEROES, flags, offset as u64, length as u32, &[]), 0);
                let mut whole = vec![9; 32_768];
                whole[offset..offset + length].fill(0);
                assert!(device.snapshot() == whole, "{length} bytes at {offset}");
            }
            client.does(WRITE, 0, 0, 32_768, &[9; 32_768]);
            assert_eq!(client.does(TRIM, 0, offset as u64, length as u32, &[]), 0);
            let now = device.snapshot();
            assert!((0..32_768).all(|at| now[at] == 9 || (offset..offset + length).contains(&at)));
        }
        // Memory forgets whole blocks quickly; there are none here.
        assert_eq!(client.does(ZEROES, flag::FAST_ZERO, 4096, 8192, &[]), 0);
        client.put(&request(ZEROES, flag::FAST_ZERO, 1, 4097, 100));
        assert_eq!(client.outcome(1).0, 95);
    });
}

#[test]
fn wrong_requests_are_refused_with_a_reason_and_the_next_one_is_served() {
    let (device, server) = memory(8);
    scope(|scope| {
        let mut client = Client::ready(scope, &server, true, &[]);
        client.put(&request(WRITE, 0, 5, 32_767, 2));
        client.put(b"ab");
        let (error, message) = client.outcome(5);
        assert_eq!((error, message.as_str()), (28, "Write of 2 bytes at 32767: the export has 32768 bytes"));
        let large = vec![1; (32 << 20) + 1];
        for (command, flags, offset, length, data, wanted) in [
            (READ, 0, 32_768, 1, &[][..], 22),
            (READ, 0, u64::MAX, u32::MAX, &[], 22),
            (READ, 0, 0, 0, &[], 22),
            (READ, flag::NO_HOLE, 0, 1, &[], 22),
            (READ, flag::REQ_ONE, 0, 1, &[], 22),
            (WRITE, 0, u64::MAX, 3, b"abc", 28),
            (WRITE, 0, 0, large.len() as u32, &large, 28),
            (WRITE, 1 << 9, 0, 3, b"abc", 22),
            (WRITE, 0, 0, 0, b"", 22),
            (TRIM, 0, 0, u32::MAX, &[], 22),
            (TRIM, flag::NO_HOLE, 0, 1, &[], 22),
            (ZEROES, 0, 0, u32::MAX, &[], 28),
            (CACHE, 0, 32_768, 1, &[], 22),
            (CACHE, flag::DF, 0, 1, &[], 22),
            (FLUSH, 0, 1, 0, &[], 22),
            (FLUSH, 0, 0, 1, &[], 22),
            (STATUS, 0, 0, 1, &[], 22),
            (8, 0, 0, 0, &[], 22),
            (0xffff, 0, 0, 1, &[], 22),
            (CACHE, 0, 0, 32_768, &[], 0),
            (FLUSH, flag::FUA, 0, 0, &[], 0),
        ] {
            assert_eq!(client.does(command, flags, offset, length, data), wanted, "command {command}");
        }
        assert!(device.snapshot() == vec![0; 32_768]);
        client.put(&request(DISCONNECT, 0, 0, 0, 0));
        assert!(client.is_over());
    });
}

#[test]
fn more_than_may_be_asked_at_once() {
    // Larger than the largest request, but it takes no memory.
    let (_, server) = memory(16 << 10);
    for (structured, wanted) in [(false, 22), (true, 75)] {
        scope(|scope| {
            let mut client = Client::ready(scope, &server, structured, &[]);
            assert_eq!(client.does(READ, 0, 0, (32 << 20) + 1, &[]), wanted);
            assert!(client.read(4095, 32 << 20, 0) == vec![0; 32 << 20]);
            assert_eq!(client.does(ZEROES, 0, 0, 64 << 20, &[]), 0);
            // Bytes that would be skipped for too long.
            client.put(&request(WRITE, 0, 1, 0, (64 << 20) + 1));
            assert!(client.is_over());
        });
    }
}

#[test]
fn zeros_that_are_known_are_told_in_so_many_words() {
    let (device, server) = memory(64);
    scope(|scope| {
        let mut client = Client::ready(scope, &server, true, &[]);
        client.does(WRITE, 0, 40 << 12, 4096, &[7; 4096]);
        client.put(&request(READ, 0, 3, 100, 50 << 12));
        let Got::Chunk { done: false, kind: 2, cookie: 3, payload } = client.got() else { panic!("no hole") };
        assert_eq!(payload, [&100_u64.to_be_bytes()[..], &((40 << 12) - 100_u32).to_be_bytes()].concat());
        let Got::Chunk { done: true, kind: 1, cookie: 3, payload } = client.got() else { panic!("no data") };
        assert!(payload[8..] == device.snapshot()[40 << 12..(50 << 12) + 100]);
        client.put(&request(READ, 0, 3, 0, 40 << 12));
        let Got::Chunk { done: true, kind: 2, .. } = client.got() else { panic!("no hole") };
        client.put(&request(READ, flag::DF, 3, 100, 50 << 12));
        let Got::Chunk { done: true, kind: 1, cookie: 3, payload } = client.got() else { panic!("no data") };
        assert!(payload[8..] == device.snapshot()[100..(50 << 12) + 100]);
    });
}

/// Every third block has not been backed up.
struct Thirds(MemoryDevice);

impl Filter for Thirds {
    fn below(&self) -> &dyn Device {
        &self.0
    }
}

impl Extents for Thirds {
    fn contexts(&self) -> &[Context] {
        &[Context::Allocation, Context::BackUp]
    }

    fn extent(&self, context: Context, first: u64, most: u64) -> Result<Extent, Error> {
        match context {
            Context::Allocation => Ok(Extent { blocks: most + 5, flags: 0 }),
            Context::BackUp => Ok(Extent { blocks: 1, flags: if first % 3 == 2 { NOT_BACKED_UP } else { 0 } }),
        }
    }
}

#[test]
fn the_state_of_blocks_is_told_in_every_context_that_was_chosen() {
    let device = Arc::new(Thirds(MemoryDevice::new(6000)));
    let server = Server::new(vec![Export::new("disk", device.clone()).with_extents(device)]).limited(LIMITS);
    scope(|scope| {
        let contexts = ["base:allocation", "x-holdfast:not-backed-up"];
        let mut client = Client::ready(scope, &server, true, &contexts);
        let mut status = |flags, offset, length| {
            client.put(&request(STATUS, flags, 9, offset, length));
            let mut runs = [Vec::new(), Vec::new()];
            for (at, found) in runs.iter_mut().enumerate() {
                let Got::Chunk { done, kind: 5, cookie: 9, payload } = client.got() else { panic!("no status") };
                assert_eq!((done, &payload[..4]), (at == 1, &[0, 0, 0, at as u8 + 1][..]));
                let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
                found.extend(payload[4..].chunks(8).map(|run| (number(&run[..4]), number(&run[4..]))));
            }
            runs
        };
        let runs = status(0, 100, 5 << 12);
        assert_eq!(runs, [vec![(5 << 12, 0)], vec![(8092, 0), (4096, 1), (8192, 0), (100, 1)]]);
        assert_eq!(status(flag::REQ_ONE, 100, 8192), [vec![(8192, 0)], vec![(8092, 0)]]);
        // Not more than a bounded number of runs.
        assert_eq!(status(0, 0, 6000 << 12)[1].len(), 1024);
    });
}

#[test]
fn zeros_and_trims_of_a_flashlog_are_holes_at_once() {
    let [main, log] = [1280, 1024].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
    let names = flashlog::Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
    flashlog::create(main.clone(), log.clone(), &names).unwrap();
    let options = flashlog::Options { mode: flashlog::Mode::Asynchronous, ..flashlog::Options::default() };
    let set = Arc::new(flashlog::Flashlog::open(main.clone(), log, &options).unwrap().0);
    let server = Server::new(vec![Export::new("disk", set.clone()).with_extents(set.clone())]).limited(LIMITS);
    scope(|scope| {
        let mut client = Client::ready(scope, &server, true, &["base:allocation"]);
        assert_eq!(client.does(WRITE, 0, 0, 80 << 12, &[7; 80 << 12]), 0);
        assert_eq!(client.does(ZEROES, flag::FAST_ZERO, 100, 20 << 12, &[]), 0);
        assert_eq!(client.does(TRIM, 0, 30 << 12, 20 << 12, &[]), 0);
        assert_eq!(client.does(ZEROES, flag::NO_HOLE, 60 << 12, 4 << 12, &[]), 0);
        let mut expected = vec![7; 80 << 12];
        for range in [100..100 + (20 << 12), 30 << 12..50 << 12, 60 << 12..64 << 12] {
            expected[range].fill(0);
        }
        for is_on_main in [false, true] {
            assert!(client.read(0, 80 << 12, flag::DF) == expected, "on main: {is_on_main}");
            client.put(&request(STATUS, 0, 9, 0, 60 << 12));
            let Got::Chunk { done: true, kind: 5, cookie: 9, payload } = client.got() else { panic!("no status") };
            let numbers: Vec<u32> = payload.as_chunks::<4>().0.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect();
            let runs = [(1, 0), (19, 3), (10, 0), (20, 3), (10, 0)];
            assert_eq!(numbers[1..], runs.map(|(blocks, flags)| [blocks << 12, flags]).concat());
            set.settle().unwrap();
        }
        assert!(main.snapshot()[..80 << 12] == expected);
        client.put(&request(DISCONNECT, 0, 0, 0, 0));
        assert!(client.is_over());
    });
}

/// Counts flushes, and says what they were for.
struct Counting {
    below: MemoryDevice,
    flushes: AtomicUsize,
}

impl Filter for Counting {
    fn below(&self) -> &dyn Device {
        &self.below
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.below.flush()
    }
}

#[test]
fn fua_and_flush_are_answered_after_the_device_has_flushed() {
    let device = Arc::new(Counting { below: MemoryDevice::new(8), flushes: AtomicUsize::new(0) });
    let server = Server::new(vec![Export::new("disk", device.clone())]).limited(LIMITS);
    let flushes = || device.flushes.load(Ordering::Relaxed);
    scope(|scope| {
        let mut client = Client::ready(scope, &server, true, &[]);
        let mut other = Client::ready(scope, &server, false, &[]);
        client.does(WRITE, 0, 0, 3, b"abc");
        assert_eq!(flushes(), 0);
        other.does(FLUSH, 0, 0, 0, &[]);
        assert_eq!(flushes(), 1);
        client.does(WRITE, flag::FUA, 0, 3, b"abc");
        client.does(ZEROES, flag::FUA, 0, 3, &[]);
        client.does(TRIM, flag::FUA, 0, 3, &[]);
        assert_eq!(flushes(), 4);
        assert_eq!(client.read(0, 3, flag::FUA), [0; 3]);
        assert_eq!(flushes(), 4);
    });
}

#[test]
fn what_is_for_reading_only_stays_as_it_is() {
    let device = Arc::new(MemoryDevice::new(8));
    let server = Server::new(vec![Export::new("disk", device.clone()).read_only()]).limited(LIMITS);
    scope(|scope| {
        let mut client = Client::ready(scope, &server, true, &[]);
        assert_eq!(client.does(WRITE, 0, 0, 3, b"abc"), 1);
        assert_eq!(client.does(ZEROES, 0, 0, 3, &[]), 1);
        assert_eq!(client.does(TRIM, 0, 0, 3, &[]), 1);
        assert_eq!(client.does(FLUSH, 0, 0, 0, &[]), 0);
        assert_eq!(client.read(0, 3, 0), [0; 3]);
    });
}

/// Takes its time between reading and telling, so that what is read is old by then if nobody sees to it.
struct Hesitant(MemoryDevice);

impl Filter for Hesitant {
    fn below(&self) -> &dyn Device {
        &self.0
    }

    fn on_read(&self, first: u64, bufs: &mut [std::io::IoSliceMut<'_>]) -> Result<(), Error> {
        self.0.read(first, bufs)?;
        (0..20).for_each(|_| std::thread::yield_now());
        Ok(())
    }
}

/// Writes of parts of the same blocks by many at a time: nobody's bytes are lost, neither those of parts nor of whole blocks.
#[test]
fn parts_of_one_block_written_at_the_same_time() {
    const ROUNDS: u64 = 300;
    let device = Arc::new(Hesitant(MemoryDevice::new(3)));
    let server = Server::new(vec![Export::new("disk", device.clone())]).limited(LIMITS);
    scope(|all| {
        // Bytes 0..1000 and 1000..5000 and 5000..12288, each written by one, whose last value must be there in the end.
        for (offset, length) in [(0_u64, 1000_u32), (1000, 4000), (5000, 3192), (8192, 4096)] {
            let mut client = Client::ready(all, &server, true, &[]);
            all.spawn(move || {
                for round in 0..ROUNDS {
                    // Two at a time, of which the workers do both: halves of what is this client's.
                    let (first, second) = (length / 2, length - length / 2);
                    let byte = [(round % 250) as u8 + 1];
                    client.put(&request(WRITE, flag::FUA, 1, offset, first));
                    client.put(&byte.repeat(first as usize));
                    client.put(&request(WRITE, flag::FUA, 2, offset + u64::from(first), second));
                    client.put(&byte.repeat(second as usize));
                    for _ in 0..2 {
                        assert!(matches!(client.got(), Got::Simple { error: 0, .. }));
                    }
                    assert!(client.read(offset, length, 0) == byte.repeat(length as usize), "bytes at {offset}");
                }
            });
        }
    });
    assert!(device.0.snapshot() == [((ROUNDS - 1) % 250) as u8 + 1].repeat(3 * 4096), "bytes have been lost");
}

/// Requests of all kinds, several in flight, against a plain array of bytes.
#[test]
fn random_requests_do_what_they_do_to_bytes() {
    let seed = seed("random_requests_do_what_they_do_to_bytes");
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    for round in 0..6 {
        const SIZE: usize = 200 * 4096;
        let (device, server) = memory(SIZE as u64 / 4096);
        let mut model = vec![0_u8; SIZE];
        scope(|scope| {
            let mut client = Client::ready(scope, &server, round % 2 == 0, &[]);
            for _ in 0..60 {
                // Those in flight together are about different bytes, as their order is nobody's promise.
                let mut cuts: Vec<usize> = (0..=8).map(|_| random.random_range(0..SIZE)).collect();
                cuts.sort_unstable();
                let mut reads = HashMap::new();
                let mut sent = 0;
                for (cookie, pair) in cuts.windows(2).enumerate() {
                    let (start, end) = (pair[0], pair[1].min(pair[0] + random.random_range(1..100_000)));
                    if start == end {
                        continue;
                    }
                    let (offset, length, cookie) = (start as u64, (end - start) as u32, cookie as u64);
                    sent += 1;
                    match random.random_range(0..8) {
                        0..3 => {
                            let fill: u8 = random.random();
                            model[start..end].fill(fill);
                            let flags = if random.random_ratio(1, 4) { flag::FUA } else { 0 };
                            client.put(&request(WRITE, flags, cookie, offset, length));
                            client.put(&model[start..end]);
                        }
                        3..6 => {
                            reads.insert(cookie, (start, end));
                            client.put(&request(READ, 0, cookie, offset, length));
                        }
                        6 => {
                            model[start..end].fill(0);
                            let flags = if random.random() { flag::NO_HOLE } else { 0 };
                            client.put(&request(ZEROES, flags, cookie, offset, length));
                        }
                        _ => client.put(&request(FLUSH, 0, cookie, 0, 0)),
                    }
                }
                while sent > 0 {
                    match client.got() {
                        Got::Simple { error, cookie } => {
                            assert_eq!(error, 0);
                            if let Some((start, end)) = reads.remove(&cookie) {
                                assert!(client.take(end - start) == model[start..end], "round {round}: {start}..{end}");
                            }
                            sent -= 1;
                        }
                        Got::Chunk { done, kind, cookie, payload } => {
                            let at = u64::from_be_bytes(payload[..8].try_into().unwrap()) as usize;
                            let (start, end) = reads[&cookie];
                            let data = match kind {
                                1 => payload[8..].to_vec(),
                                2 => vec![0; u32::from_be_bytes(payload[8..].try_into().unwrap()) as usize],
                                _ => panic!("chunk of kind {kind:#x}"),
                            };
                            assert!(start <= at && at + data.len() <= end);
                            assert!(data == model[at..at + data.len()], "round {round}: {start}..{end}");
                            sent -= usize::from(done);
                        }
                    }
                }
            }
        });
        assert!(device.snapshot() == model, "round {round}: the device is not as the model");
    }
}
