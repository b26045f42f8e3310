//! A store that grows while it is used, and a power cut at every position of that: it has the old size or the new one, and
//! everything that was in it.

use crate::number;
use holdfast_block::{Device, MemoryDevice};
use holdfast_lab::device::{CrashMode, Recorder};
use holdfast_lab::stack::{self, Stack, StackOptions};
use holdfast_naming::{Atime, ErrorKind, Namespace, NewNode, Request};
use holdfast_object::{Durability, Error, ManualClock, ObjectCache, ObjectId, Snapshots};
use holdfast_physical::check::{CheckOptions, FindingKind, check};
use rand::SeedableRng;
use std::sync::Arc;

const REQUEST: &Request = &Request::ROOT;
/// Blocks of a chunk of the bitmap.
const CHUNK: u64 = 32_768;

fn file(names: &Namespace, name: &str, byte: u8, kib: u64) -> ObjectId {
    let id = names.mknod(REQUEST, ObjectId::ROOT, name.as_bytes(), NewNode::Regular, 0o666).unwrap().id;
    for part in 0..kib.div_ceil(64) {
        names.write(REQUEST, id, part << 16, &[byte; 1 << 16], false).unwrap();
    }
    id
}

fn has(names: &Namespace, name: &str, byte: u8, kib: u64) -> Result<(), String> {
    let found = names.lookup(REQUEST, ObjectId::ROOT, name.as_bytes()).map_err(|error| format!("{name}: {error}"))?;
    let mut offset = 0;
    while offset < kib << 10 {
        let read = names.read(found.id, offset, 1 << 16).map_err(|error| format!("{name}: {error}"))?.to_vec();
        if read.is_empty() || read.iter().any(|got| *got != byte) {
            return Err(format!("{name} is wrong from {offset} on"));
        }
        offset += read.len() as u64;
    }
    Ok(())
}

/// Blocks of a device that labels take, and the log of one of 2048.
fn total_of(blocks: u64, log: u64) -> u64 {
    blocks - 64 - log
}

struct Run {
    device: Arc<Recorder>,
    clock: Arc<ManualClock>,
    log_blocks: u64,
    /// Positions before and after the growth, and when the file behind it was synced.
    positions: [usize; 3],
}

/// A store of 2048 blocks, nearly full, with a snapshot; it grows, and what has no room in the old size is written.
fn run(to: u64) -> Run {
    let memory = Arc::new(MemoryDevice::new(2048));
    let clock = stack::clock();
    stack::create(memory.clone(), &clock).unwrap();
    let device = Arc::new(Recorder::in_memory(&memory));
    let stack = Stack::open(device.clone(), &StackOptions::new(1024), &clock).unwrap();
    let names = stack.namespace(Atime::Relative);
    let log_blocks = 2048 - 64 - stack.cache.space().total;
    file(&names, "before", 1, 4 << 10);
    stack.cache.snapshot_create("kept").unwrap();
    file(&names, "open", 2, 256);
    let start = device.position();
    assert_eq!(stack.cache.grow(to).unwrap(), to);
    let grown = device.position();
    assert_eq!(stack.cache.space().total, total_of(to, log_blocks));
    let behind = file(&names, "behind", 3, 6 << 10);
    names.sync(behind, Durability::All).unwrap();
    let synced = device.position();
    stack.check().unwrap();
    Run { device, clock, log_blocks, positions: [start, grown, synced] }
}

/// What is wrong with an image of a power cut at `position`.
fn judge(run: &Run, image: MemoryDevice, position: usize, to: u64) -> Result<(), String> {
    let [_, grown, synced] = run.positions;
    let says = |error: Error| error.to_string();
    let device = Arc::new(image);
    let report = check(device.clone(), &CheckOptions::default()).map_err(says)?;
    // Torn, or not in all labels yet: opening sees to these.
    let is_torn = |kind: FindingKind| matches!(kind, FindingKind::Superblock | FindingKind::Label);
    if let Some(finding) = report.findings.iter().find(|finding| !is_torn(finding.kind)) {
        return Err(finding.to_string());
    }
    let stack = Stack::open(device.clone(), &StackOptions::new(1024), &run.clock).map_err(says)?;
    let names = stack.namespace(Atime::Relative);
    let status = stack.cache.store_status();
    if let Some(reason) = status.read_only {
        return Err(format!("read-only: {reason}"));
    }
    let [old, new] = [2048, to].map(|blocks| total_of(blocks, run.log_blocks));
    match status.space.total {
        total if total == new => {}
        total if total == old && position < grown => {}
        total => return Err(format!("{total} blocks at position {position} of {grown}")),
    }
    has(&names, "before", 1, 4 << 10)?;
    if position >= grown {
        has(&names, "open", 2, 256)?;
    }
    if position >= synced {
        has(&names, "behind", 3, 6 << 10)?;
    }
    // It goes on from there, whichever size it is.
    stack.cache.grow(to).map_err(says)?;
    let _ = names.unlink(REQUEST, ObjectId::ROOT, b"behind");
    file(&names, "later", 4, 7 << 10);
    stack.check()?;
    stack.close().map_err(says)?;
    let report = check(device, &CheckOptions::default()).map_err(says)?;
    report.findings.first().map_or(Ok(()), |finding| Err(format!("after going on: {finding}")))
}

#[test]
fn a_power_cut_while_a_store_grows_leaves_the_old_size_or_the_new_one() {
    for to in [6000, CHUNK + 2000] {
        let run = run(to);
        let images = run.device.crash_images();
        let seed = number("SEED", 1);
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
        for position in run.positions[0]..=run.positions[2] {
            // Beyond the growth each tenth will do.
            if position > run.positions[1] + 3 && position < run.positions[2] && position % 10 != 0 {
                continue;
            }
            for mode in CrashMode::ALL {
                let image = images.image(position, mode, &mut rng);
                let judged = judge(&run, image, position, to);
                assert_eq!(
                    judged,
                    Ok(()),
                    "to {to}, position {position} of {:?}, {mode:?}, seed {seed}",
                    run.positions
                );
            }
        }
    }
}

/// From one chunk of the bitmap to so many that its tree gets taller.
#[test]
fn a_store_grows_by_any_amount_and_again() {
    let device = Arc::new(MemoryDevice::new(1000));
    let clock = stack::clock();
    stack::create(device.clone(), &clock).unwrap();
    let mut stack = Stack::open(device.clone(), &StackOptions::new(1024), &clock).unwrap();
    let mut last = 1000;
    for blocks in [1001, 1031, 1032, 1064, CHUNK - 1, CHUNK + 40, CHUNK * 3, CHUNK * 70 + 17] {
        let names = stack.namespace(Atime::Relative);
        let free = stack.cache.space().free;
        let got = stack.cache.grow(blocks).unwrap();
        // Less than the labels need is not taken.
        assert_eq!(got, if blocks < last + 32 { last } else { blocks });
        assert!(stack.cache.space().free + 100 >= free + got - last);
        last = got;
        file(&names, &format!("f{blocks}"), 5, 256);
        stack.close().unwrap();
        let report = check(device.clone(), &CheckOptions::default()).unwrap();
        assert_eq!(report.findings, [], "{blocks}");
        stack = Stack::open(device.clone(), &StackOptions::new(1024), &clock).unwrap();
        has(&stack.namespace(Atime::Relative), &format!("f{blocks}"), 5, 256).unwrap();
    }
    // Taken as large as it has become.
    device.grow(last + 500).unwrap();
    assert_eq!(stack.cache.grow(0).unwrap(), last + 500);
    let smaller = stack.cache.grow(last).unwrap_err();
    assert!(matches!(smaller, Error::Smaller { .. }), "{smaller}");
    stack.close().unwrap();
    assert_eq!(check(device, &CheckOptions::default()).unwrap().findings, []);
}

/// What was full takes data again at once, and a label of the old end is nothing to go by.
#[test]
fn a_full_store_that_has_grown_takes_more() {
    let device = Arc::new(MemoryDevice::new(2048));
    let clock = stack::clock();
    stack::create(device.clone(), &clock).unwrap();
    let stack = Stack::open(device.clone(), &StackOptions::new(1024), &clock).unwrap();
    let names = stack.namespace(Atime::Relative);
    let id = file(&names, "f", 1, 64);
    let mut offset = 0;
    let full = loop {
        match names.write(REQUEST, id, offset, &[1; 1 << 16], false) {
            Ok(count) => offset += count as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    stack.cache.grow(3000).unwrap();
    while names.write(REQUEST, id, offset, &[1; 1 << 16], false).is_ok() {
        offset += 1 << 16;
    }
    assert!(offset > 2048 * 4096, "the blocks where the labels were are used too");
    stack.close().unwrap();
    // Of the labels at the start nothing is left; those of the end are found where the device ends.
    device.write(0, &[std::io::IoSlice::new(&[0xff; 2 * 16 * 4096])]).unwrap();
    let stack = Stack::open(device.clone(), &StackOptions::new(1024), &clock).unwrap();
    has(&stack.namespace(Atime::Relative), "f", 1, offset >> 10).unwrap();
    stack.close().unwrap();
    assert_eq!(check(device, &CheckOptions::default()).unwrap().findings, []);
}
