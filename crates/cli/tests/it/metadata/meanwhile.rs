//! Work that goes on while metadata goes bad again and again.

use super::{PATTERNS, a_second_passes, content, counter, log};
use crate::rig::{Rig, fuse};
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Several who write, sync and read.
#[test]
fn nobody_notices_who_works_meanwhile() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.lab("epoch=100,cache=32M");
    let kinds = ["object-table", "block-tree", "bitmap", "map", "record", "label", "superblock", "counts"];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let (mount, is_over) = (&mount, &is_over);
                scope.spawn(move || {
                    let mut round = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        works(&mount.join(format!("w{worker}")), round)?;
                        round += 1;
                    }
                    Ok::<usize, std::io::Error>(round)
                })
            })
            .collect();
        for number in 0..64 {
            let (kind, pattern) = (kinds[number % kinds.len()], PATTERNS[number / kinds.len() % 4]);
            let words = format!("inject m --memory=clean --kind {kind} --pattern {pattern} --seed {number}");
            // What is in memory at a moment is what work has brought there.
            let ran = rig.run(words.split_whitespace());
            assert!(ran.code == Some(0) || ran.err.contains("in memory now"), "{ran:?}");
        }
        is_over.store(true, Ordering::Relaxed);
        for worker in workers {
            let rounds = worker.join().unwrap().unwrap_or_else(|error| panic!("{error}: {}", log(&rig)));
            assert!(rounds > 0);
        }
    });
    a_second_passes();
    rig.run(["sync", "m"]).exits(0);
    assert!(counter(&rig, "scribbles") > 0);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
}

fn works(directory: &Path, round: usize) -> std::io::Result<()> {
    if round == 0 {
        fs::create_dir(directory)?;
    }
    let path = directory.join(format!("f{}", round % 5));
    let bytes = content(round, 1 + round % 9);
    fs::write(&path, &bytes)?;
    if round.is_multiple_of(2) {
        File::open(&path)?.sync_all()?;
    }
    assert!(fs::read(&path)? == bytes);
    if round % 7 == 6 {
        fs::remove_file(&path)?;
    }
    Ok(())
}
