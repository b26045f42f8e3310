//! A whole Flashlog, whose devices say something else than they should, with checksums that fit: of the blocks themselves, and wherever one block
//! has another's. Whatever they say, everything that is done with a set is an error at worst.

use holdfast_block::flashlog::{
    self, At, Create, Flashlog, Lasting, Mode, Options, Past, Policy, Rebuild, Uuid, log_blocks_least,
};
use holdfast_block::{BLOCK_SIZE, Device, Filter, MemoryDevice};
use holdfast_integrity::{Crc64, crc64};
use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// Edits that bytes can make.
const EDITS_MAX: usize = 8;
/// Blocks of the set's device; main has as many for labels.
const BLOCKS: u64 = 256;
const BACKUP_BLOCKS: u64 = 1536;
/// Where a structure's own checksum is: of a map at another place.
const SEAL: usize = 4088;
const MAP_SEAL: usize = 120;
const MAP_MAGIC: &[u8] = b"HFFLREGN";

type Bytes = [u8; BLOCK_SIZE];
/// Main, log, backup; and the block.
type Place = (usize, u64);

/// What a set was left as, and the blocks on it that have something.
struct Sample {
    devices: [MemoryDevice; 3],
    blocks: Vec<(Place, Box<Bytes>)>,
}

fn options(mode: Mode) -> Options {
    Options { mode, gather_blocks: 8, now: Arc::new(|| SystemTime::UNIX_EPOCH), ..Options::default() }
}

/// Fails after so many writes.
struct CutOff(Arc<MemoryDevice>, AtomicI64);

impl Filter for CutOff {
    fn below(&self) -> &dyn Device {
        &*self.0
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), holdfast_block::Error> {
        if self.1.fetch_sub(1, Ordering::Relaxed) > 0 {
            return self.0.write(first, bufs);
        }
        let (device, reason) = (self.0.name().into(), "it is cut off");
        Err(holdfast_block::Error::Unsuitable { device, reason })
    }
}

/// A set with what a log has behind a backup, zeros among it, with a map, and with a state that is staged.
fn sample() -> Result<[MemoryDevice; 3], flashlog::Error> {
    let main = Arc::new(MemoryDevice::new(2 * BLOCKS).named("main"));
    let log = Arc::new(MemoryDevice::new(log_blocks_least()).named("log"));
    let backup = Arc::new(MemoryDevice::new(BACKUP_BLOCKS).named("backup"));
    let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
    flashlog::create(main.clone(), log.clone(), &names)?;
    let (set, _) = Flashlog::open(main.clone(), log.clone(), &options(Mode::Asynchronous))?;
    let put = |at: u64, number: u64| set.write(at, &[IoSlice::new(&number.to_le_bytes().repeat(BLOCK_SIZE / 8))]);
    set.create_backup(backup.clone(), Uuid([4; 16]))?;
    set.backup(backup.clone())?;
    // So much that the log lets go of some.
    for number in 0..2000 {
        put(number % 60, 1000 + number)?;
    }
    set.zero(100, 20, false)?;
    set.flush()?;
    // Cut off as late as can be while nothing has changed in its place: then all of it is staged.
    let state = |device: &MemoryDevice| device.snapshot()[..BLOCKS as usize * BLOCK_SIZE].to_vec();
    let mut left = Arc::clone(&backup);
    for writes in 0.. {
        let cut = Arc::new((*backup).clone());
        let done = set.backup(Arc::new(CutOff(cut.clone(), AtomicI64::new(writes))));
        if done.is_ok() || state(&cut) != state(&backup) {
            break;
        }
        left = cut;
    }
    for number in 0..50 {
        put(number * 3 % 200, 5000 + number)?;
    }
    set.flush()?;
    drop(set);
    Ok([&main, &log, &left].map(|device| (**device).clone()))
}

fn image() -> &'static Sample {
    static IMAGE: OnceLock<Sample> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let devices = sample().expect("the sample can be made");
        let mut blocks = Vec::new();
        for (device, of) in devices.iter().enumerate() {
            let bytes = of.snapshot();
            let (all, _none) = bytes.as_chunks::<BLOCK_SIZE>();
            let some = (0..).zip(all).filter(|(_, block)| **block != [0; BLOCK_SIZE]);
            blocks.extend(some.map(|(at, block)| ((device, at), Box::new(*block))));
        }
        Sample { devices, blocks }
    })
}

/// The checksum by which others know a block, and where it has it itself, if it does.
fn sum_of(block: &Bytes) -> (u64, Option<usize>) {
    let word = |at: usize| u64::from_le_bytes(*block[at..].first_chunk().expect("it is in the block"));
    match crc64(&block[..SEAL]) == word(SEAL) {
        true => (word(SEAL), Some(SEAL)),
        false => (crc64(block), None),
    }
}

/// The devices after the edits.
fn edited(sample: &Sample, edits: &[(usize, usize, &[u8])]) -> [Arc<MemoryDevice>; 3] {
    let mut now: BTreeMap<Place, Box<Bytes>> = sample.blocks.iter().cloned().collect();
    let mut changed: VecDeque<(Place, u64)> = VecDeque::new();
    for (number, offset, bytes) in edits {
        let at = sample.blocks[*number].0;
        let Some(block) = now.get_mut(&at) else { continue };
        let (before, seal) = sum_of(block);
        block[*offset..][..bytes.len()].copy_from_slice(bytes);
        if seal.is_some() {
            let crc = crc64(&block[..SEAL]);
            block[SEAL..].copy_from_slice(&crc.to_le_bytes());
        }
        changed.push_back((at, before));
    }
    // Wherever a block has the checksum of one that has changed, it has the new one, and is another itself. The pages of a log are a chain, so
    // that this ends; more than a bound is for edits that make a circle of it.
    for _ in 0..4 * sample.blocks.len() {
        let Some((at, before)) = changed.pop_front() else { break };
        let after = sum_of(&now[&at]).0;
        if before == after || before == 0 {
            continue;
        }
        let (before, after) = (before.to_le_bytes(), after.to_le_bytes());
        for (other, block) in now.iter_mut().filter(|(other, _)| **other != at) {
            let (old, Some(_)) = sum_of(block) else { continue };
            let mut has_it = false;
            for word in block[..SEAL].as_chunks_mut::<8>().0.iter_mut().filter(|word| **word == before) {
                (*word, has_it) = (after, true);
            }
            if has_it {
                let crc = crc64(&block[..SEAL]);
                block[SEAL..].copy_from_slice(&crc.to_le_bytes());
                changed.push_back((*other, old));
            }
        }
    }
    seal_maps(&mut now);
    let devices = sample.devices.each_ref().map(|device| Arc::new(device.clone()));
    for ((device, at), block) in now {
        let written = devices[device].write(at, &[IoSlice::new(&block[..])]);
        written.expect("a block of the sample can be written");
    }
    devices
}

/// The checksums of maps of regions without parts of regions. One with parts, which are in the next block, counts as damaged then.
fn seal_maps(blocks: &mut BTreeMap<Place, Box<Bytes>>) {
    for block in blocks.values_mut().filter(|block| block.starts_with(MAP_MAGIC)) {
        let mut crc = Crc64::new();
        crc.update(&block[..MAP_SEAL]);
        crc.update(&block[MAP_SEAL + 8..]);
        block[MAP_SEAL..MAP_SEAL + 8].copy_from_slice(&crc.value().to_le_bytes());
    }
}

/// Each edit: 2 bytes for the block, 2 for the offset, 1 for the length, then as many. A value is a set that can be opened.
pub(super) fn set(bytes: &[u8]) -> bool {
    let sample = image();
    let mut edits = Vec::new();
    let mut rest = bytes;
    while let [a, b, c, d, length, tail @ ..] = rest
        && edits.len() < EDITS_MAX
    {
        let block = usize::from(u16::from_le_bytes([*a, *b])) % sample.blocks.len();
        let offset = usize::from(u16::from_le_bytes([*c, *d])) % BLOCK_SIZE;
        let (bytes, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        edits.push((block, offset, &bytes[..bytes.len().min(BLOCK_SIZE - offset)]));
        rest = tail;
    }
    visit(&edited(sample, &edits))
}

/// Structures to change: each label, page, map and block of checksums, and some of the data.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let numbers = (0..image().blocks.len()).step_by(28);
    numbers.map(|number| [&(number as u16).to_le_bytes()[..], &[64, 0, 2, 0xff, 0x7f]].concat()).collect()
}

/// Sound structures of the sample.
pub(super) fn seeds_of(decoder: &str) -> Vec<Vec<u8>> {
    let is = |block: &Bytes| match decoder {
        "flashlog-label" => block.starts_with(b"HFFLASHL"),
        "flashlog-page" => block.starts_with(b"HFFLPAGE"),
        "flashlog-map" => block.starts_with(MAP_MAGIC),
        _ => !block.starts_with(b"HFFL") && sum_of(block).1.is_some(),
    };
    image().blocks.iter().filter(|(_, block)| is(block)).map(|(_, block)| block.to_vec()).collect()
}

fn read_all(device: &dyn Device) {
    let mut bytes = vec![0; BLOCK_SIZE];
    for at in 0..device.blocks().min(2 * BLOCKS) {
        let _an_error_is_allowed = device.read(at, &mut [IoSliceMut::new(&mut bytes)]);
    }
}

/// Everything that is done with a set, each with devices of its own. Whether it could be opened.
fn visit(devices: &[Arc<MemoryDevice>; 3]) -> bool {
    let copy = || devices.each_ref().map(|device| Arc::new((**device).clone()));
    let new_main = || Arc::new(MemoryDevice::new(2 * BLOCKS).named("new main"));
    let mut is_opened = false;
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        let [main, log, backup] = copy();
        let Ok((set, _)) = Flashlog::open(main, log, &options(mode)) else { continue };
        is_opened = true;
        read_all(&set);
        let set = Lasting::of(set, Policy::default());
        let _ = set.write(7, &[IoSlice::new(&[7; BLOCK_SIZE])]);
        let _ = set.flush();
        if let Some(set) = set.set() {
            let _ = set.barriers(backup.clone());
            let _ = set.backup(backup.clone());
            let _ = set.scrub(backup.clone());
        }
        let _ = set.status();
        let _ = set.close();
    }
    let [main, log, backup] = copy();
    for device in [&main, &log, &backup] {
        let _ = flashlog::inspect(&**device);
    }
    let _ = flashlog::damaged_pages(log.clone());
    let _ = flashlog::verify_backup(backup.clone());
    let _ = flashlog::barriers(backup.clone(), log.clone());
    for past in [Past::open(backup.clone(), log, At::Now), Past::of_backup(backup)].into_iter().flatten() {
        read_all(&past);
    }
    let [_, log, backup] = copy();
    let how = Rebuild { name: Uuid([9; 16]), at: At::Now, drop_later: true, accept_damage: true };
    let main = new_main();
    if flashlog::rebuild_at(backup, log.clone(), main.clone(), &how).is_ok() {
        let _ = Flashlog::open(main, log, &options(Mode::Synchronous)).map(|(set, _)| read_all(&set));
    }
    let [main, log, backup] = copy();
    let _ = flashlog::rebuild_without_log(backup.clone(), new_main(), Uuid([9; 16]), true);
    let _ = flashlog::finish_backup(backup);
    if let Ok(alone) = Lasting::open_alone(main, &options(Mode::Synchronous), Policy::default(), true) {
        read_all(&alone);
        let _ = alone.attach_log(log);
        let _ = alone.close();
    }
    is_opened
}
