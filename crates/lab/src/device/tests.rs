use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use holdfast_block::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_SIZE]
}

fn put(device: &dyn Device, first: u64, bytes: &[u8]) {
    device.write(first, &[IoSlice::new(bytes)]).unwrap();
}

fn try_get(device: &dyn Device, first: u64, blocks: usize) -> Result<Vec<u8>, Error> {
    let mut out = vec![0xee; blocks * BLOCK_SIZE];
    // Two slices, so that a flip must find its byte.
    let (a, b) = out.split_at_mut(1000);
    device.read(first, &mut [IoSliceMut::new(a), IoSliceMut::new(b)])?;
    Ok(out)
}

fn get(device: &dyn Device, first: u64, blocks: usize) -> Vec<u8> {
    try_get(device, first, blocks).unwrap()
}

/// A medium of 32 blocks, block n filled with n, and a device over it that fails by these rules.
fn faulty(rules: impl IntoIterator<Item = Rule>) -> (Arc<MemoryDevice>, FaultDevice) {
    let medium = Arc::new(MemoryDevice::new(32));
    (0..32).for_each(|at| put(&*medium, at, &block(at as u8)));
    let plan = rules.into_iter().fold(FaultPlan::new(), FaultPlan::with);
    (Arc::clone(&medium), FaultDevice::new(medium, plan))
}

/// The bits in which two buffers differ, by number.
fn flips(a: &[u8], b: &[u8]) -> Vec<usize> {
    let bits = |at: usize| (0..8).filter(move |bit| (a[at] ^ b[at]) >> bit & 1 == 1).map(move |bit| at * 8 + bit);
    (0..a.len()).flat_map(bits).collect()
}

/// Per sector of some blocks, its (uniform) byte.
fn sectors(bytes: &[u8]) -> Vec<u8> {
    bytes
        .chunks(SECTOR_BYTES)
        .map(|sector| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is never torn in itself");
            sector[0]
        })
        .collect()
}

#[test]
fn without_rules_nothing_goes_wrong() {
    let (medium, device) = faulty([]);
    put(&device, 3, &[block(100), block(101)].concat());
    device.flush().unwrap();
    device.discard(9, 1).unwrap();
    assert_eq!(get(&device, 2, 4), [block(2), block(100), block(101), block(5)].concat());
    assert_eq!(get(&*medium, 9, 1), block(0));
    assert!(device.fired().is_empty());
    assert!(matches!(try_get(&device, 31, 2), Err(Error::OutOfRange { .. })));
}

#[test]
fn a_read_flip_shows_once_and_leaves_the_medium() {
    let (medium, device) = faulty([Rule::new(Fault::ReadFlip { bit: 9000 }).block(7).nth(2)]);
    assert_eq!(get(&device, 5, 4), get(&*medium, 5, 4));
    // Block 7 is the third block of this read.
    assert_eq!(flips(&get(&device, 5, 4), &get(&*medium, 5, 4)), [2 * 32768 + 9000]);
    assert_eq!(get(&device, 5, 4), get(&*medium, 5, 4));
    assert_eq!(device.fired(), [Firing { fault: Fault::ReadFlip { bit: 9000 }, blocks: 7..8 }]);
}

#[test]
fn a_persistent_read_flip_stays_until_the_block_is_written() {
    let (_medium, device) = faulty([Rule::new(Fault::ReadFlip { bit: 1 }).blocks(7..9).forever().healed_by_write()]);
    for _ in 0..3 {
        assert_eq!(flips(&get(&device, 7, 1), &block(7)), [1]);
    }
    put(&device, 7, &block(70));
    assert_eq!(get(&device, 7, 1), block(70));
    assert_eq!(flips(&get(&device, 7, 2), &[block(70), block(8)].concat()), [32768 + 1]);
}

#[test]
fn rot_on_the_medium_stays_there() {
    let (medium, device) = faulty([]);
    device.flip_on_medium(4, 32767).unwrap();
    assert_eq!(flips(&get(&*medium, 4, 1), &block(4)), [32767]);
    assert_eq!(get(&device, 4, 1), get(&*medium, 4, 1));
}

#[test]
fn a_flip_on_the_way_lands_on_the_medium() {
    let (medium, device) = faulty([Rule::new(Fault::WriteFlip { bit: 12 }).block(4)]);
    put(&device, 3, &[block(30), block(40)].concat());
    assert_eq!(flips(&get(&*medium, 3, 2), &[block(30), block(40)].concat()), [32768 + 12]);
}

#[test]
fn a_lost_write_is_acknowledged_and_loses_only_its_blocks() {
    let (medium, device) = faulty([Rule::new(Fault::WriteLost).block(4).nth(2)]);
    put(&device, 4, &block(100));
    put(&device, 3, &[block(101), block(102), block(103)].concat());
    device.flush().unwrap();
    assert_eq!(get(&*medium, 3, 3), [block(101), block(100), block(103)].concat());
}

#[test]
fn a_torn_write_keeps_the_sectors_it_says() {
    let tears = [
        (Tear::Prefix(3), vec![9, 9, 9, 5, 5, 5, 5, 5]),
        (Tear::Suffix(2), vec![5, 5, 5, 5, 5, 5, 9, 9]),
        (Tear::Subset(0b1010_0001), vec![9, 5, 5, 5, 5, 9, 5, 9]),
    ];
    for (tear, expected) in tears {
        let (medium, device) = faulty([Rule::new(Fault::WriteTorn(tear)).block(5)]);
        put(&device, 4, &[block(9), block(9), block(9)].concat());
        assert_eq!(sectors(&get(&*medium, 5, 1)), expected);
        assert_eq!((get(&*medium, 4, 1), get(&*medium, 6, 1)), (block(9), block(9)));
    }
    // Over a run of blocks: 10 of 16 sectors.
    let (medium, device) = faulty([Rule::new(Fault::WriteTorn(Tear::Prefix(10)))]);
    put(&device, 4, &[block(9), block(9)].concat());
    assert_eq!(sectors(&get(&*medium, 4, 2)), [[9; 8], [9, 9, 5, 5, 5, 5, 5, 5]].concat());
}

#[test]
fn a_misdirected_write_lands_elsewhere_and_the_target_keeps_its_old_contents() {
    let (medium, device) = faulty([Rule::new(Fault::WriteMisdirected { to: 20 }).block(5)]);
    put(&device, 4, &[block(100), block(101), block(102)].concat());
    assert_eq!(get(&*medium, 4, 3), [block(100), block(5), block(102)].concat());
    assert_eq!(get(&*medium, 19, 3), [block(19), block(101), block(21)].concat());
    // Past the end, what does not fit is lost.
    let (medium, device) = faulty([Rule::new(Fault::WriteMisdirected { to: 31 })]);
    put(&device, 4, &[block(100), block(101)].concat());
    assert_eq!(get(&*medium, 4, 2), [block(4), block(5)].concat());
    assert_eq!(get(&*medium, 31, 1), block(100));
}

#[test]
fn read_errors_last_as_long_as_they_should() {
    let (_medium, device) = faulty([
        Rule::new(Fault::ReadError).block(3).times(2),
        Rule::new(Fault::ReadError).block(9).forever().healed_by_write(),
    ]);
    for _ in 0..2 {
        let error = try_get(&device, 2, 4).unwrap_err();
        assert_eq!(error.to_string(), "memory: read failed at block 2 (16384 bytes): Input/output error (os error 5)");
    }
    assert_eq!(get(&device, 3, 1), block(3));
    for _ in 0..5 {
        assert!(try_get(&device, 9, 1).is_err());
    }
    put(&device, 9, &block(90));
    assert_eq!(get(&device, 9, 1), block(90));
}

#[test]
fn a_write_error_changes_nothing_and_latches() {
    let (medium, device) = faulty([Rule::new(Fault::WriteError).block(3)]);
    put(&device, 1, &block(10));
    let data = [block(20), block(30)].concat();
    let error = device.write(2, &[IoSlice::new(&data)]).unwrap_err();
    assert!(matches!(error, Error::Io { first: Some(2), length_bytes: 8192, .. }), "{error}");
    assert_eq!(get(&*medium, 3, 1), block(3));
    for later in [device.write(1, &[IoSlice::new(&data)]), device.flush(), device.discard(1, 1)] {
        assert!(matches!(later, Err(Error::Latched { .. })));
    }
    assert_eq!(get(&device, 1, 1), block(10));
}

#[test]
fn a_write_can_fail_and_be_torn() {
    let (medium, device) =
        faulty([Rule::new(Fault::WriteTorn(Tear::Prefix(1))).block(3), Rule::new(Fault::WriteError).block(3)]);
    assert!(device.write(3, &[IoSlice::new(&block(9))]).is_err());
    assert_eq!(sectors(&get(&*medium, 3, 1)), [9, 3, 3, 3, 3, 3, 3, 3]);
}

#[test]
fn a_flush_error_latches() {
    let (_medium, device) = faulty([Rule::new(Fault::FlushError).nth(2)]);
    device.flush().unwrap();
    assert!(matches!(device.flush(), Err(Error::Io { first: None, .. })));
    assert!(matches!(device.flush(), Err(Error::Latched { .. })));
    assert!(matches!(device.write(0, &[IoSlice::new(&block(1))]), Err(Error::Latched { .. })));
    assert_eq!(get(&device, 1, 1), block(1));
}

#[test]
fn a_lost_flush_is_seen_by_a_recorder_below() {
    let recorder = Arc::new(Recorder::in_memory(&MemoryDevice::new(4)));
    let plan = FaultPlan::new().with(Rule::new(Fault::FlushLost).nth(2));
    let device = FaultDevice::new(Arc::clone(&recorder) as Arc<dyn Device>, plan);
    for at in 0..3 {
        put(&device, at, &block(1));
        device.flush().unwrap();
    }
    let images = recorder.crash_images();
    // Writes at 0, 2 and 3; flushes at 1 and 4.
    assert_eq!(images.flushes().collect::<Vec<_>>(), [2, 5]);
    assert_eq!((images.at_stake(3), images.at_stake(4), images.at_stake(5)), (1, 2, 0));
}

#[test]
fn an_unplugged_device_answers_nothing_more() {
    let (medium, device) = faulty([Rule::new(Fault::Unplugged).nth(2)]);
    put(&device, 1, &block(10));
    assert!(device.write(2, &[IoSlice::new(&block(20))]).is_err());
    assert!(try_get(&device, 1, 1).is_err() && device.flush().is_err() && device.discard(0, 1).is_err());
    assert_eq!((get(&*medium, 1, 1), get(&*medium, 2, 1)), (block(10), block(2)));
}

#[test]
fn a_seed_gives_the_same_plan_and_another_seed_another() {
    let plan = FaultPlan::random(7, 1000, 50, 20);
    assert_eq!(plan, FaultPlan::random(7, 1000, 50, 20));
    assert_ne!(plan, FaultPlan::random(8, 1000, 50, 20));
    assert_eq!(plan.rules().len(), 20);
}

#[test]
fn random_tears_always_keep_and_lose_something() {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    for _ in 0..5000 {
        let sectors = rng.random_range(2..200);
        let tear = Tear::random(sectors, &mut rng);
        let kept = (0..sectors).filter(|sector| tear.keeps(*sector, sectors)).count();
        assert!(kept > 0 && kept < sectors, "{tear:?} of {sectors}");
    }
}

#[test]
fn the_recorder_passes_everything_on_and_starts_from_what_was_there() {
    let medium = Arc::new(MemoryDevice::new(600));
    put(&*medium, 599, &block(9));
    let recorder = Recorder::new(Arc::clone(&medium) as Arc<dyn Device>).unwrap();
    put(&recorder, 1, &[block(1), block(2)].concat());
    recorder.flush().unwrap();
    recorder.discard(2, 1).unwrap();
    assert_eq!(get(&*medium, 0, 4), [block(0), block(1), block(0), block(0)].concat());
    assert_eq!(recorder.position(), 3);
    let images = recorder.crash_images();
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut at = |position, mode| images.image(position, mode, &mut rng);
    assert_eq!(get(&at(0, CrashMode::AllApplied), 599, 1), block(9));
    assert_eq!(get(&at(0, CrashMode::AllApplied), 1, 1), block(0));
    assert_eq!(get(&at(3, CrashMode::AllDropped), 1, 2), [block(1), block(2)].concat());
    assert_eq!(at(3, CrashMode::AllApplied).snapshot(), medium.snapshot());
    assert!(matches!(recorder.write(599, &[IoSlice::new(&[0; 8192])]), Err(Error::OutOfRange { .. })));
    assert_eq!(recorder.position(), 3);
}

#[test]
fn reordering_gives_an_earlier_write_the_last_word() {
    let recorder = Recorder::in_memory(&MemoryDevice::new(8));
    put(&recorder, 1, &[block(1), block(1)].concat());
    put(&recorder, 2, &[block(2), block(2)].concat());
    let images = recorder.crash_images();
    for seed in 0..20 {
        let image = images.image(2, CrashMode::Reordered, &mut Pcg64Mcg::seed_from_u64(seed));
        assert_eq!(get(&image, 1, 3), [block(1), block(1), block(2)].concat());
    }
}

#[test]
fn a_torn_tail_tears_the_last_write_and_keeps_the_first() {
    let recorder = Recorder::in_memory(&MemoryDevice::new(8));
    (0..5).for_each(|at| put(&recorder, at, &block(1)));
    let images = recorder.crash_images();
    for seed in 0..20 {
        let image = images.image(5, CrashMode::TornTail, &mut Pcg64Mcg::seed_from_u64(seed));
        assert_eq!(get(&image, 0, 2), [block(1), block(1)].concat());
        let last = sectors(&get(&image, 4, 1));
        assert!(last.contains(&0) && last.contains(&1), "{last:?}");
    }
}

#[test]
fn a_write_in_flight_during_a_flush_is_not_covered_by_it() {
    // The device below starts a flush from within the write, as another thread would.
    struct FlushesMidWrite(std::sync::OnceLock<std::sync::Weak<Recorder>>, MemoryDevice);
    impl Filter for FlushesMidWrite {
        fn below(&self) -> &dyn Device {
            &self.1
        }

        fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
            if first == 1 {
                self.0.get().unwrap().upgrade().unwrap().flush()?;
            }
            self.1.write(first, bufs)
        }

        fn on_flush(&self) -> Result<(), Error> {
            Ok(())
        }
    }
    let below = Arc::new(FlushesMidWrite(Default::default(), MemoryDevice::new(4)));
    let recorder = Arc::new(Recorder::new(Arc::clone(&below) as Arc<dyn Device>).unwrap());
    below.0.set(Arc::downgrade(&recorder)).unwrap();
    put(&*recorder, 0, &block(1));
    put(&*recorder, 1, &block(1));
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let images = recorder.crash_images();
    let image = images.image(3, CrashMode::AllDropped, &mut rng);
    assert_eq!(get(&image, 0, 2), [block(1), block(0)].concat());
    recorder.flush().unwrap();
    let image = recorder.crash_images().image(4, CrashMode::AllDropped, &mut rng);
    assert_eq!(get(&image, 0, 2), [block(1), block(1)].concat());
}

/// Random runs: at every position and in every mode, each sector of an image holds what the last flushed write of it left,
/// or what one of the later writes would; the extreme modes give exactly the extremes; seeds repeat.
#[test]
fn images_hold_what_was_flushed_and_nothing_that_was_not_written() {
    let seeds = match std::env::var("HOLDFAST_SEED") {
        Ok(seed) => vec![seed.parse().expect("HOLDFAST_SEED is a number")],
        Err(_) => (0..30).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        println!("HOLDFAST_SEED={seed} cargo test -p holdfast-lab images_hold_what_was_flushed");
        check_images(seed);
    }
}

fn check_images(seed: u64) {
    const BLOCKS: u64 = 24;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let base = MemoryDevice::new(BLOCKS);
    put(&base, 0, &block(250));
    let recorder = Recorder::in_memory(&base);
    // Per block: (position from which it counts, byte written, flushed at), the model of the log.
    let mut history: Vec<Vec<(usize, u8, usize)>> = vec![vec![(0, 0, 0)]; BLOCKS as usize];
    history[0] = vec![(0, 250, 0)];
    for step in 1..60_u8 {
        let position = recorder.position();
        match rng.random_range(0..6) {
            0 => {
                recorder.flush().unwrap();
                let writes = history.iter_mut().flatten();
                writes.filter(|write| write.2 == usize::MAX).for_each(|write| write.2 = position + 1);
            }
            kind => {
                let first = rng.random_range(0..BLOCKS);
                let count = rng.random_range(1..=4.min(BLOCKS - first));
                let byte = if kind == 1 { 0 } else { step };
                if kind == 1 {
                    recorder.discard(first, count).unwrap();
                } else {
                    put(&recorder, first, &vec![step; count as usize * BLOCK_SIZE]);
                }
                let written = &mut history[first as usize..(first + count) as usize];
                written.iter_mut().for_each(|block| block.push((position + 1, byte, usize::MAX)));
            }
        }
    }
    let images = recorder.crash_images();
    assert_eq!(*images.positions().end(), recorder.position());
    for position in images.positions() {
        for mode in CrashMode::ALL {
            let draw: u64 = rng.random();
            let image = images.image(position, mode, &mut Pcg64Mcg::seed_from_u64(draw)).snapshot();
            let again = images.image(position, mode, &mut Pcg64Mcg::seed_from_u64(draw)).snapshot();
            assert!(image == again, "the same seed gives the same image");
            for (at, writes) in history.iter().enumerate() {
                let written: Vec<_> = writes.iter().filter(|write| write.0 <= position).collect();
                let flushed = written.iter().rposition(|write| write.2 <= position).unwrap();
                let found = sectors(&image[at * BLOCK_SIZE..(at + 1) * BLOCK_SIZE]);
                let allowed: Vec<u8> = match mode {
                    CrashMode::AllDropped => vec![written[flushed].1],
                    CrashMode::AllApplied => vec![written.last().unwrap().1],
                    _ => written[flushed..].iter().map(|write| write.1).collect(),
                };
                assert!(
                    found.iter().all(|byte| allowed.contains(byte)),
                    "seed {seed} position {position} {mode:?} block {at}: {found:?}, allowed {allowed:?}"
                );
            }
        }
    }
}

/// The modes differ where they should: over many seeds each shows what it is for.
#[test]
fn modes_reach_the_states_they_are_for() {
    let recorder = Recorder::in_memory(&MemoryDevice::new(8));
    (0..4).for_each(|at| put(&recorder, at, &block(1)));
    let images = recorder.crash_images();
    let states = |mode| {
        let draw = |seed| images.image(4, mode, &mut Pcg64Mcg::seed_from_u64(seed)).snapshot();
        (0..400).map(draw).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!((states(CrashMode::AllDropped).len(), states(CrashMode::AllApplied).len()), (1, 1));
    assert_eq!(states(CrashMode::RandomSubset).len(), 16);
    // All but the empty set.
    assert_eq!(states(CrashMode::Reordered).len(), 15);
    assert!(states(CrashMode::TornTail).len() > 100);
    assert!(states(CrashMode::Mixed).len() > 300);
}

#[test]
fn a_device_that_has_lost_its_power_alone_is_another_one_from_then_on() {
    let recorder = Recorder::in_memory(&MemoryDevice::new(8));
    put(&recorder, 0, &block(1));
    recorder.flush().unwrap();
    put(&recorder, 0, &block(2));
    put(&recorder, 1, &block(3));
    let before = recorder.position();
    recorder.cut(CrashMode::AllDropped, &mut Pcg64Mcg::seed_from_u64(0)).unwrap();
    assert_eq!(get(&recorder, 0, 2), [block(1), block(0)].concat());
    put(&recorder, 2, &block(4));
    recorder.flush().unwrap();
    let images = recorder.crash_images();
    let all = |position| {
        let image = images.image(position, CrashMode::AllApplied, &mut Pcg64Mcg::seed_from_u64(0));
        image.snapshot()[..3 * BLOCK_SIZE].to_vec()
    };
    // What it has lost no flush brings back.
    assert!(all(before) == [block(2), block(3), block(0)].concat());
    assert!(all(before + 1) == [block(1), block(0), block(0)].concat());
    assert!(all(before + 2) == [block(1), block(0), block(4)].concat());
    assert!(all(before + 3) == [block(1), block(0), block(4)].concat());
    assert_eq!((images.at_stake(before), images.at_stake(before + 1), images.at_stake(before + 2)), (2, 0, 1));
}
