//! A life of a set: random actions, recorded.

use super::Options;
use crate::device::{CrashImages, Recorder};
use holdfast_block::flashlog::{self, Create, Flashlog, Mode, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice};
use parking_lot::Mutex;
use rand::Rng;
use rand_pcg::Pcg64Mcg;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Blocks of main: 1 MiB for the set's device, 1 MiB for labels.
pub(super) const MAIN_BLOCKS: u64 = 512;
/// Blocks of the set's device.
pub(super) const BLOCKS: usize = 256;
/// Blocks of the backup: the set's, 1 MiB for pages and 2 for data of what is staged, 1 MiB for labels.
const BACKUP_BLOCKS: u64 = 1280;
/// Contents that are written again and again, so that what lies about in the log may have the right bytes by chance.
const COMMON: u64 = 3;

/// What a block has, by number: 0 is zeros.
pub(super) fn block(content: u64) -> [u8; BLOCK_SIZE] {
    let mut bytes = [0; BLOCK_SIZE];
    let (words, _none) = bytes.as_chunks_mut::<8>();
    for (at, word) in words.iter_mut().enumerate().filter(|_| content != 0) {
        *word = (content + at as u64 * 0x1_0000_0000).to_le_bytes();
    }
    bytes
}

/// Reads all blocks; which content each has.
pub(super) fn contents(device: &dyn Device) -> Result<Vec<u64>, String> {
    let mut bytes = vec![0; BLOCKS * BLOCK_SIZE];
    device.read(0, &mut [IoSliceMut::new(&mut bytes)]).map_err(|error| error.to_string())?;
    let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    let content = |(at, found): (usize, &[u8; BLOCK_SIZE])| {
        let content = u64::from_le_bytes(*found.first_chunk::<8>().expect("a block has 8 bytes"));
        if *found == block(content) { Ok(content) } else { Err(format!("block {at} has bytes that nobody wrote")) }
    };
    blocks.iter().enumerate().map(content).collect()
}

/// What a life begins with.
pub(super) struct Start {
    pub(super) main: MemoryDevice,
    pub(super) log: MemoryDevice,
    pub(super) backup: MemoryDevice,
    pub(super) has_backup: bool,
    pub(super) contents: Vec<u64>,
    /// Which state the backup has.
    pub(super) backed_up: Vec<u64>,
    /// The next content that nobody has written.
    pub(super) next_content: u64,
    /// Blocks written in all lives so far.
    pub(super) written: u64,
    pub(super) options: flashlog::Options,
}

impl Start {
    /// A new set, used for a while so that the rings may go around anywhere.
    pub(super) fn new(options: &Options, has_backup: bool, rng: &mut Pcg64Mcg) -> Result<Start, String> {
        let main = Arc::new(MemoryDevice::new(MAIN_BLOCKS).named("main"));
        let log = Arc::new(MemoryDevice::new(flashlog::log_blocks_least()).named("log"));
        let names = Create { set: Uuid(rng.random()), main: Uuid(rng.random()), log: Uuid(rng.random()) };
        let backup = Arc::new(MemoryDevice::new(BACKUP_BLOCKS).named("backup"));
        flashlog::create(main.clone(), log.clone(), &names).map_err(|error| error.to_string())?;
        let options = flashlog::Options {
            mode: if rng.random_bool(0.5) { Mode::Synchronous } else { Mode::Asynchronous },
            gather_blocks: [1, 3, 8, 20, 64][rng.random_range(0..5)],
            memory_blocks: rng.random_range(8..200),
            index_blocks: rng.random_range(8..200),
            now: Arc::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)),
            order: options.order,
            ..flashlog::Options::default()
        };
        let (device, _) =
            Flashlog::open(main.clone(), log.clone(), &options).map_err(|error| format!("first opening: {error}"))?;
        let (mut next_content, mut written) = (COMMON, 0);
        for _ in 0..rng.random_range(0..300) {
            next_content += 1;
            let (at, count) = (rng.random_range(0..BLOCKS as u64 - 8), rng.random_range(1..8));
            written += count as u64;
            let bytes = block(next_content).repeat(count);
            device.write(at, &[IoSlice::new(&bytes)]).map_err(|error| error.to_string())?;
            if rng.random_bool(0.3) {
                device.flush().map_err(|error| error.to_string())?;
            }
        }
        device.settle().map_err(|error| error.to_string())?;
        if has_backup {
            device.create_backup(backup.clone(), Uuid([5; 16])).map_err(|error| error.to_string())?;
            device.backup(backup.clone()).map_err(|error| format!("first backup: {error}"))?;
        }
        let contents = contents(&device)?;
        let [main, log, backup] = [main, log, backup].map(|device| (*device).clone());
        Ok(Start {
            main,
            log,
            backup,
            has_backup,
            backed_up: contents.clone(),
            contents,
            next_content,
            written,
            options,
        })
    }
}

/// How far the workload was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Blocks whose writes have begun.
    pub(super) begun: usize,
    /// Blocks whose writes a flush has answered.
    pub(super) flushed: usize,
    /// The set has been opened: main has what the life began with.
    pub(super) is_open: bool,
    /// The action.
    step: usize,
}

/// A moment at which the power may be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Recorder positions of main, log and backup.
    pub(super) positions: [usize; 3],
    pub(super) progress: Progress,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([main, log, backup], Progress { begun, flushed, step, .. }) = (self.positions, self.progress);
        write!(f, "positions {main}, {log} and {backup}, in step {step} ({flushed} blocks flushed, {begun} begun)")
    }
}

/// All recorders, and the moments so far.
pub(super) struct Watched {
    recorders: Vec<Recorder>,
    seen: Mutex<(Progress, Vec<Moment>)>,
}

impl Watched {
    pub(super) fn over(devices: [&MemoryDevice; 3]) -> Arc<Watched> {
        let recorders = devices.iter().map(|device| Recorder::in_memory(device)).collect();
        let watched = Arc::new(Watched { recorders, seen: Mutex::default() });
        watched.note();
        watched
    }

    pub(super) fn devices(watched: &Arc<Watched>) -> [Arc<dyn Device>; 3] {
        [0, 1, 2].map(|at| Arc::new(Watch(Arc::clone(watched), at)) as Arc<dyn Device>)
    }

    pub(super) fn moments(&self) -> Vec<Moment> {
        self.seen.lock().1.clone()
    }

    pub(super) fn images(&self) -> [CrashImages; 3] {
        [0, 1, 2].map(|at| self.recorders[at].crash_images())
    }

    fn note(&self) {
        let positions = [0, 1, 2].map(|at| self.recorders[at].position());
        let mut seen = self.seen.lock();
        let progress = seen.0;
        seen.1.push(Moment { positions, progress });
    }
}

/// One of the devices. Each request to it is a moment.
struct Watch(Arc<Watched>, usize);

impl Filter for Watch {
    fn below(&self) -> &dyn Device {
        &self.0.recorders[self.1]
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        self.below().write(first, bufs)?;
        self.0.note();
        Ok(())
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.below().flush()?;
        self.0.note();
        Ok(())
    }
}

/// A recorded life.
pub(super) struct Life {
    /// What was there at first.
    pub(super) base: Vec<u64>,
    /// Each block that was written, in order: address, content.
    pub(super) writes: Vec<(usize, u64)>,
    pub(super) moments: Vec<Moment>,
    pub(super) has_backup: bool,
    /// Which state the backup had at first.
    pub(super) backed_up: Vec<u64>,
    /// Of main, log and backup.
    pub(super) images: [CrashImages; 3],
    pub(super) options: flashlog::Options,
    pub(super) next_content: u64,
    pub(super) trace: Vec<String>,
    /// Blocks written in this and all lives before.
    pub(super) written: u64,
}

impl Life {
    pub(super) fn live(start: &Start, steps: usize, rng: &mut Pcg64Mcg) -> Result<Life, String> {
        let watched = Watched::over([&start.main, &start.log, &start.backup]);
        let [main, log, backup] = Watched::devices(&watched);
        let (device, _) = Flashlog::open(main, log, &start.options).map_err(|error| format!("opening: {error}"))?;
        watched.seen.lock().0.is_open = true;
        let mut now = start.contents.clone();
        let (mut writes, mut trace, mut next_content) = (Vec::new(), Vec::new(), start.next_content);
        for step in 0..steps {
            watched.seen.lock().0.step = step;
            let text = match rng.random_range(0..100) {
                0..70 => {
                    let count = if rng.random_bool(0.1) { rng.random_range(1..100) } else { rng.random_range(1..8) };
                    // Half of the writes are to a few blocks, that are written again before they are on main.
                    let end = if rng.random_bool(0.5) { 16 } else { BLOCKS - count };
                    let first = rng.random_range(0..end);
                    let content: Vec<u64> = (0..count)
                        .map(|_| match rng.random_bool(0.3) {
                            true => rng.random_range(0..COMMON),
                            false => {
                                next_content += 1;
                                next_content
                            }
                        })
                        .collect();
                    for (at, content) in (first..).zip(&content) {
                        writes.push((at, *content));
                        now[at] = *content;
                    }
                    watched.seen.lock().0.begun = writes.len();
                    let bytes: Vec<u8> = content.iter().flat_map(|content| block(*content)).collect();
                    device.write(first as u64, &[IoSlice::new(&bytes)]).map_err(|error| format!("write: {error}"))?;
                    format!("write {count} from {first}")
                }
                70..90 => {
                    device.flush().map_err(|error| format!("flush: {error}"))?;
                    watched.seen.lock().0.flushed = writes.len();
                    "flush".to_string()
                }
                90..94 => {
                    device.catch_up().map_err(|error| format!("catch up: {error}"))?;
                    "catch up".to_string()
                }
                96..99 if start.has_backup => match device.backup(backup.clone()) {
                    Ok(done) => format!("backup of {} blocks", done.blocks),
                    Err(error) => return Err(format!("backup: {error}")),
                },
                94..96 => {
                    device.settle().map_err(|error| format!("settle: {error}"))?;
                    watched.seen.lock().0.flushed = writes.len();
                    "settle".to_string()
                }
                _ => match contents(&device)? == now {
                    true => "read".to_string(),
                    false => return Err("what is read is not what was written".to_string()),
                },
            };
            watched.note();
            trace.push(format!("{step}: {text}; {} blocks written", writes.len()));
        }
        let (images, moments) = (watched.images(), watched.moments());
        let written = start.written + writes.len() as u64;
        let (base, backed_up, options) = (start.contents.clone(), start.backed_up.clone(), start.options.clone());
        Ok(Life {
            base,
            has_backup: start.has_backup,
            backed_up,
            writes,
            moments,
            images,
            options,
            next_content,
            trace,
            written,
        })
    }

    pub(super) fn is_synchronous(&self) -> bool {
        self.options.mode == Mode::Synchronous
    }
}
