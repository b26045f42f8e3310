//! Stores with foreign bytes behind good checksums: kept ones, and random ones for a while. `HOLDFAST_FUZZ_SECONDS` says how
//! long (4 s if not); `HOLDFAST_SEED` runs one again. A store that fails is printed as a file for `corpus/`.

use crate::number;
use holdfast_lab::foreign::{Edit, Image, Pool, Visit, parse, random, render, sample, try_edits};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;
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
    let blocks = |prefix: &str| -> Vec<_> {
        let of_it = image.names().filter(|name| name.to_string().starts_with(prefix));
        of_it.map(|name| image.bytes(name).unwrap()).collect()
    };
    let superblock = &blocks("superblock")[0];
    assert!(superblock[136] != 0 && superblock[160] != 0, "blocks set aside, a mode of its own");
    // A head without entries and pages.
    assert!(blocks("log:").iter().any(|head| head[68..76] == [0; 8]), "a seal");
    let entries: Vec<_> = blocks("0:19:0:").iter().flat_map(|page| page.chunks(1024)).map(|entry| entry[40]).collect();
    assert_eq!(entries, [0, 0, 1, 0], "the third snapshot is half deleted");
    // Its dead list is in pages of its own.
    assert!(image.names().any(|name| name.to_string().starts_with(&format!("0:20:0:{}:", 2u64 << 20))));
    let below_trees = image.names().filter(|name| name.level == 1).map(|name| image.bytes(name).unwrap());
    let below_trees: Vec<_> = below_trees.flat_map(|block| block.as_chunks::<64>().0.to_vec()).collect();
    let roots: Vec<_> = blocks("0:16:0:").iter().flat_map(|page| page.as_chunks::<512>().0.to_vec()).collect();
    let roots: Vec<[u8; 64]> = roots.iter().map(|record| *record[384..].first_chunk().unwrap()).collect();
    assert!([&below_trees, &roots].iter().all(|pointers| pointers.iter().any(|pointer| pointer[22] & 3 == 3)), "lost");
    let pages = below_trees.iter().filter(|pointer| pointer[22] & 3 == 1);
    let kinds: BTreeSet<u8> = pages.map(|pointer| pointer[23]).collect();
    assert_eq!(Vec::from_iter(kinds), [0, 1, 2, 3, 4, 5, 6, 0x14, 0x26], "checksums of each kind, and second ones");
}

#[test]
fn a_changed_page_is_read_whatever_its_checksum() {
    let image = sample().unwrap();
    let sound = run(&image, &[], "nothing changed");
    let mut changed = 0;
    for block in image.names().filter(|name| name.to_string().starts_with("1:") && name.level == 0) {
        if image.bytes(block).unwrap()[..100] == [9; 100] {
            let seen = run(&image, &[Edit { block, offset: 0, bytes: vec![8] }], "a page of a protected file");
            assert_eq!(seen, sound, "{block}");
            changed += 1;
        }
    }
    assert!(changed >= 7, "{changed}");
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
    // Some there are without edits: lost pages are read.
    let errors_of_sound = run(&image, &[], "nothing changed").errors;
    let (mut runs, mut opened, mut troubled) = (0, 0, 0);
    for seed in first.. {
        let edits = random(&image, &pool, &mut Pcg64Mcg::seed_from_u64(seed));
        let replay =
            format!("HOLDFAST_SEED={seed} cargo test -p holdfast-lab --test it foreign_bytes_anywhere -- --nocapture");
        let seen = run(&image, &edits, &replay);
        (runs, opened, troubled) = (
            runs + 1,
            opened + u32::from(seen.opened),
            troubled + u32::from(!seen.opened || seen.errors > errors_of_sound),
        );
        if one.is_some() || Instant::now() >= end {
            break;
        }
    }
    println!("{runs} stores from seed {first} on, {opened} could be opened, {troubled} were in trouble");
    assert!(one.is_some() || opened > runs / 4 && troubled > 0, "{opened} of {runs}: nothing was tested");
}
