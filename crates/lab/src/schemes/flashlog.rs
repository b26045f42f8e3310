//! A Flashlog in either mode, with a backup disk that is attached for backups only.

use super::medium::{Contents, Medium, contents};
use super::{Media, Model};
use holdfast_block::flashlog::{self, At, Create, Error, Flashlog, Mode, Options, Rebuild, Uuid};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::SystemTime;

/// Blocks of main, log and backup.
pub(super) const MEDIA_BLOCKS: [u64; 3] = [512, flashlog::log_blocks_least(), 1536];

/// Blocks that memory keeps in asynchronous mode: the last ones, of all that the log has and main has not.
const MEMORY_BLOCKS: u64 = 8;

fn options(mode: Mode) -> Options {
    let usual = Options::default();
    let memory_blocks = if mode == Mode::Asynchronous { MEMORY_BLOCKS } else { usual.memory_blocks };
    Options { mode, memory_blocks, gather_blocks: 4, now: Arc::new(|| SystemTime::UNIX_EPOCH), ..usual }
}

pub(super) struct Set {
    device: Flashlog,
    backup: Arc<Medium>,
}

impl Set {
    pub(super) fn new(media: &[Arc<Medium>], mode: Mode) -> Result<Set, Error> {
        let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
        flashlog::create(media[0].clone(), media[1].clone(), &names)?;
        let (device, _) = Flashlog::open(media[0].clone(), media[1].clone(), &options(mode))?;
        device.create_backup(media[2].clone(), Uuid([4; 16]))?;
        Ok(Set { device, backup: media[2].clone() })
    }
}

impl Model for Set {
    fn write(&mut self, at: usize, bytes: &[u8; BLOCK_SIZE]) -> Result<(), String> {
        self.device.write(at as u64, &[IoSlice::new(bytes)]).map_err(|error| error.to_string())
    }

    fn flush(&mut self) -> Result<(), String> {
        self.device.flush().map_err(|error| error.to_string())
    }

    fn save(&mut self) -> Result<(), String> {
        self.device.backup(self.backup.clone()).map(drop).map_err(|error| error.to_string())
    }

    fn read(&self) -> Result<Contents, String> {
        contents(&self.device)
    }
}

/// The set opened, or main alone; main made anew from backup and log, at each barrier that there is; the backup.
pub(super) fn recover(media: &Media, mode: Mode) -> Vec<Contents> {
    let [main, log, backup] = [0, 1, 2].map(|at| media[at].as_ref());
    let mut all = Vec::new();
    if let (Some(main), Some(log)) = (main, log) {
        match Flashlog::open(copy(main), copy(log), &options(mode)) {
            Ok((device, _)) => all.extend(contents(&device).ok()),
            Err(Error::Alone { .. }) => all.extend(contents(main).ok()),
            Err(_) => {}
        }
    }
    if let (Some(main), None) = (main, log) {
        all.extend(contents(main).ok());
    }
    if let (Some(log), Some(backup)) = (log, backup) {
        all.extend(rebuilt(log, backup, At::Now, mode));
        let barriers = flashlog::barriers(copy(backup), copy(log)).unwrap_or_default();
        all.extend(barriers.iter().filter_map(|barrier| rebuilt(log, backup, At::Barrier(barrier.number), mode)));
    }
    all.extend(backup.and_then(|backup| contents(backup).ok()));
    all
}

fn rebuilt(log: &MemoryDevice, backup: &MemoryDevice, at: At, mode: Mode) -> Option<Contents> {
    let (main, log) = (Arc::new(MemoryDevice::new(MEDIA_BLOCKS[0])), copy(log));
    let how = Rebuild { name: Uuid([5; 16]), at, drop_later: true, accept_damage: false };
    flashlog::rebuild_at(copy(backup), log.clone(), main.clone(), &how).ok()?;
    let (device, _) = Flashlog::open(main, log, &options(mode)).ok()?;
    contents(&device).ok()
}

fn copy(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(device.clone())
}
