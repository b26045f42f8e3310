//! Decoders of single structures with what coverage-guided fuzzing has kept (`fuzz/corpus/`), and with mutations of it for a while.
//! `HOLDFAST_FUZZ_SECONDS` says how long for all of them (6 s if not), `HOLDFAST_SEED` runs the same mutations again.
//! `HOLDFAST_CORPUS=write` moves what is kept to the present version of the format, for which a new version is the reason.

use crate::number;
use holdfast_lab::foreign::decoders;
use holdfast_physical::FORMAT_VERSION;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Sound structures that are kept for each decoder: files with this prefix.
const SOUND: &str = "sound-";
const SOUND_MAX: usize = 8;
/// Decoders of what has a version, and where that is: four bytes behind eight of magic.
const VERSIONED: [&str; 3] = ["label", "superblock", "log-header"];
const VERSION: Range<usize> = 8..12;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name)
}

/// The files that are kept for a decoder, by path.
fn kept(name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let directory = directory(name);
    let files = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let paths = files.map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// What is kept for a decoder, and sound structures.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    kept(name).into_values().chain(decoders::seeds(name)).collect()
}

/// Whether it stops at the version of a decoder's structure, which is one of those that the format had before.
fn is_outdated(name: &str, bytes: &[u8]) -> bool {
    let version = bytes.get(VERSION).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")));
    VERSIONED.contains(&name) && version.is_some_and(|version| (1..FORMAT_VERSION).contains(&version))
}

/// New sound structures in place of those that are kept, and the present version in the others.
fn renew(name: &str) {
    for (path, mut bytes) in kept(name) {
        if path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(SOUND)) {
            std::fs::remove_file(&path).unwrap();
        } else if is_outdated(name, &bytes) {
            bytes[VERSION].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let seeds = decoders::seeds(name);
    for (number, bytes) in seeds.iter().step_by(seeds.len().div_ceil(SOUND_MAX)).enumerate() {
        std::fs::write(directory(name).join(format!("{SOUND}{number}")), bytes).unwrap();
    }
}

#[test]
fn the_kept_corpus_is_of_the_present_format() {
    for (name, decode) in decoders::all() {
        if std::env::var("HOLDFAST_CORPUS").is_ok_and(|value| value == "write") {
            renew(name);
        }
        let kept = kept(name);
        let old = kept.values().filter(|bytes| is_outdated(name, bytes)).count();
        // The sound ones are the last.
        let has_value = kept.values().rev().any(|bytes| decode(bytes));
        let renewed_by = "HOLDFAST_CORPUS=write cargo test -p holdfast-lab --test it the_kept_corpus";
        assert!(has_value, "{name}: nothing that is kept is a value; renew it: {renewed_by}");
        // The fuzzer may keep one for that: it is an error of its own.
        assert!(old * 4 <= kept.len(), "{name}: {old} of {} are of an older version: {renewed_by}", kept.len());
    }
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
        for bytes in &corpus {
            decode(bytes);
        }
        let (start, mut runs) = (Instant::now(), 0u64);
        while start.elapsed() < each {
            decode(&mutated(&corpus, &mut rng));
            runs += 1;
        }
        println!("{name}: {} kept, {runs} mutations", corpus.len());
    }
}

/// It makes a directory if it is asked to, and not one called `--help`.
#[test]
fn seeds_are_written_where_it_is_said_and_help_makes_nothing() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("decoder-seeds-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let run = |argument: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_decoder-seeds"));
        command.arg(argument).current_dir(&directory).output().unwrap()
    };
    let help = run("--help");
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("Usage: "), "{help:?}");
    assert_eq!(run("--what").status.code(), Some(2));
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "nothing is made");
    let named = run("sound");
    let names: Vec<_> = decoders::all().map(|(name, _)| name).collect();
    assert_eq!(String::from_utf8_lossy(&named.stdout).lines().collect::<Vec<_>>(), names);
    assert!(names.iter().all(|name| directory.join("sound").join(name).join("sound-0").exists()));
    std::fs::remove_dir_all(&directory).unwrap();
}
