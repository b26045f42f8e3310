//! Decoders of single structures with what coverage-guided fuzzing has kept (`fuzz/corpus/`), and with mutations of it for a while.
//! `HOLDFAST_FUZZ_SECONDS` says how long for all of them (6 s if not), `HOLDFAST_SEED` runs the same mutations again.

use crate::number;
use holdfast_lab::foreign::decoders;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is kept for a decoder, and sound structures.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut kept: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    kept.extend(decoders::seeds(name));
    kept
}

fn mutated(corpus: &[Vec<u8>], rng: &mut Pcg64Mcg) -> Vec<u8> {
    let mut bytes = corpus.choose(rng).expect("no corpus is empty").clone();
    for _ in 0..rng.random_range(1..4) {
        let at = if bytes.is_empty() { 0 } else { rng.random_range(0..bytes.len()) };
        match rng.random_range(0..6) {
            0 => bytes.truncate(at),
            1 => bytes.extend((0..rng.random_range(1..40)).map(|_| rng.random::<u8>())),
            2 => {
                let other = corpus.choose(rng).expect("no corpus is empty");
                bytes.splice(at.., other.get(at..).unwrap_or_default().iter().copied());
            }
            3 if at + 8 <= bytes.len() => {
                let value = 1u64.checked_shl(rng.random_range(0..65)).unwrap_or(0).wrapping_sub(rng.random_range(0..2));
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            4 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
            _ if at < bytes.len() => bytes[at] = rng.random(),
            _ => {}
        }
    }
    bytes
}

#[test]
fn decoders_take_any_bytes() {
    let all: Vec<_> = decoders::all().collect();
    let seed = std::env::var("HOLDFAST_SEED").ok().map(|_| number("HOLDFAST_SEED", 0));
    let seed = seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64);
    println!(
        "replay: HOLDFAST_SEED={seed} cargo test -p holdfast-lab --test it decoders_take_any_bytes -- --nocapture"
    );
    let each = Duration::from_secs_f64(number("HOLDFAST_FUZZ_SECONDS", 6) as f64 / all.len() as f64);
    for (name, decode) in all {
        let corpus = corpus(name);
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        corpus.iter().for_each(|bytes| decode(bytes));
        let (start, mut runs) = (Instant::now(), 0u64);
        while start.elapsed() < each {
            decode(&mutated(&corpus, &mut rng));
            runs += 1;
        }
        println!("{name}: {} kept, {runs} mutations", corpus.len());
    }
}
