//! Stores with foreign bytes behind good checksums: kept ones, and random ones for a while. `HOLDFAST_FUZZ_SECONDS` says how
//! long (4 s if not); `HOLDFAST_SEED` runs one again. A store that fails is printed as a file for `corpus/`.

use crate::number;
use holdfast_lab::foreign::{Edit, Image, Pool, Visit, parse, random, render, sample, try_edits};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use std::time::{Duration, Instant};

fn run(image: &Image, edits: &[Edit], what: &str) -> Visit {
    try_edits(image, edits, what).unwrap_or_else(|failure| panic!("{what}: {}\n{}", failure.what, failure.edits))
}

#[test]
fn the_sample_is_sound() {
    let image = sample().unwrap();
    let seen = run(&image, &[], "nothing changed");
    assert!(seen.opened && seen.reopened && seen.answered > 1000, "{seen:?}");
    // Each structure: tables, bitmap, references, maps of objects and orphans, snapshots and dead lists; log batches.
    for part in ["0:0", "0:1", "0:2", "0:16", "0:17", "0:18", "0:19", "0:20", "1:1", "1:2"] {
        assert!(image.names().any(|name| name.to_string().starts_with(&format!("{part}:0:"))), "{part}");
    }
    assert!(image.names().filter(|name| name.to_string().starts_with("log:")).count() >= 3);
    assert!(image.names().any(|name| name.version > 0), "a block that only a snapshot has");
    assert!(image.names().any(|name| name.level > 2));
}

#[test]
fn checksums_are_made_as_they_were() {
    let image = sample().unwrap();
    let sound = image.with_edits(&[]).snapshot();
    for block in image.names() {
        let bytes = image.bytes(block).unwrap()[..4000].to_vec();
        let edit = Edit { block, offset: 0, bytes: bytes.clone() };
        assert!(image.with_edits(std::slice::from_ref(&edit)).snapshot() == sound, "{block} with its own bytes");
        assert_eq!(parse(&render(std::slice::from_ref(&edit))).unwrap(), [edit]);
        let other = Edit { block, offset: 3000, bytes: vec![!bytes[3000]] };
        assert!(image.with_edits(&[other]).snapshot() != sound, "{block} with other bytes");
    }
}

#[test]
fn kept_foreign_bytes_are_errors_at_worst() {
    let image = sample().unwrap();
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/corpus");
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let edits = parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        run(&image, &edits, &file.display().to_string());
    }
}

#[test]
fn foreign_bytes_anywhere_are_errors_at_worst() {
    let image = sample().unwrap();
    let pool = Pool::new(&image);
    let one = std::env::var("HOLDFAST_SEED").ok().map(|_| number("HOLDFAST_SEED", 0));
    let first = one.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64);
    let end = Instant::now() + Duration::from_secs(number("HOLDFAST_FUZZ_SECONDS", 4));
    let (mut runs, mut opened, mut troubled) = (0, 0, 0);
    for seed in first.. {
        let edits = random(&image, &pool, &mut Pcg64Mcg::seed_from_u64(seed));
        let replay =
            format!("HOLDFAST_SEED={seed} cargo test -p holdfast-lab --test it foreign_bytes_anywhere -- --nocapture");
        let seen = run(&image, &edits, &replay);
        (runs, opened, troubled) =
            (runs + 1, opened + u32::from(seen.opened), troubled + u32::from(!seen.opened || seen.errors > 400));
        if one.is_some() || Instant::now() >= end {
            break;
        }
    }
    println!("{runs} stores from seed {first} on, {opened} could be opened, {troubled} were in trouble");
    assert!(one.is_some() || opened > runs / 4 && troubled > 0, "{opened} of {runs}: nothing was tested");
}
