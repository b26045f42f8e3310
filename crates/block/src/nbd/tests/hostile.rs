//! Clients that send anything at all: no panic, no hang, and the server goes on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::scope;
use std::time::Instant;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::protocol::Put;
use super::client::{FLUSH, READ, STATUS, TRIM, WRITE, ZEROES, option, queries, request, wish};
use super::{fuzz_budget, memory, seed};

/// A session that keeps to the protocol.
fn session(random: &mut Pcg64Mcg) -> Vec<Vec<u8>> {
    let mut parts = vec![random.random_range(0..4_u32).to_be_bytes().to_vec()];
    let context = ["base:allocation", "base:", "x-holdfast:not-backed-up", ":"];
    for _ in 0..random.random_range(0..6) {
        parts.push(match random.random_range(0..8) {
            0 => option(3, &[]),
            1 | 2 => option(8, &[]),
            3 => option(9, &queries("disk", &[context.choose(random).unwrap()])),
            4 | 5 => option(10, &queries("disk", &[context.choose(random).unwrap()])),
            6 => option(6, &wish("disk", &[0, 1, 2, 3])),
            _ => option(5, &[]),
        });
    }
    parts.push(if random.random() { option(7, &wish("disk", &[3])) } else { option(1, b"disk") });
    for cookie in 0..random.random_range(0..20) {
        let command = *[READ, WRITE, WRITE, FLUSH, TRIM, ZEROES, STATUS].choose(random).unwrap();
        let length = random.random_range(1..20_000_u32);
        let (offset, length) = if command == FLUSH { (0, 0) } else { (random.random_range(0..240_000), length) };
        let mut bytes = request(command, 0, cookie, offset, length);
        if command == WRITE {
            bytes.raw(&vec![cookie as u8; length as usize]);
        }
        parts.push(bytes);
    }
    parts
}

/// Changes bytes, numbers, the end, or the order.
fn mutate(parts: &mut Vec<Vec<u8>>, random: &mut Pcg64Mcg) {
    for _ in 0..random.random_range(1..5) {
        let at = random.random_range(0..parts.len());
        let part = &mut parts[at];
        // The head is where the numbers are.
        let near = |random: &mut Pcg64Mcg, length: usize| random.random_range(0..length.clamp(1, 40));
        match random.random_range(0..6) {
            0 if !part.is_empty() => {
                let place = near(random, part.len());
                part[place] ^= 1 << random.random_range(0..8);
            }
            1 if part.len() >= 4 => {
                let place = near(random, part.len() - 3);
                let value =
                    *[0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 65_536, random.random()].choose(random).unwrap();
                part[place..place + 4].copy_from_slice(&value.to_be_bytes());
            }
            2 => part.truncate(random.random_range(0..=part.len())),
            3 => part.extend(std::iter::repeat_with(|| random.random::<u8>()).take(9)),
            4 => drop(parts.swap_remove(at)),
            _ => {
                let copy = part.clone();
                parts.insert(at, copy);
            }
        }
        if parts.is_empty() {
            return;
        }
    }
}

#[test]
fn no_bytes_of_a_client_do_harm() {
    let test = "no_bytes_of_a_client_do_harm";
    let first = seed(test);
    let (_, server) = memory(64);
    let end = Instant::now() + fuzz_budget();
    let mut count = 0_u64;
    while count == 0 || std::env::var_os("HOLDFAST_SEED").is_none() && Instant::now() < end {
        let seed = first.wrapping_add(count);
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut parts = session(&mut random);
        mutate(&mut parts, &mut random);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let outcome = scope(|scope| {
            let served = scope.spawn(|| server.serve(theirs.into(), "anybody"));
            let mut listening = ours.try_clone().unwrap();
            let answers = scope.spawn(move || {
                let mut bytes = Vec::new();
                // The server may leave in the middle of what it is being told.
                let _ = listening.read_to_end(&mut bytes);
                bytes
            });
            for part in &parts {
                if ours.write_all(part).is_err() {
                    break;
                }
            }
            let _ = ours.shutdown(Shutdown::Write);
            (served.join(), answers.join())
        });
        let (Ok(_), Ok(answers)) = outcome else {
            panic!("HOLDFAST_SEED={seed} cargo test -p holdfast-block {test} -- --nocapture");
        };
        assert!(answers.starts_with(b"NBDMAGICIHAVEOPT"), "seed {seed}");
        count += 1;
    }
    println!("{count} sessions");
}
