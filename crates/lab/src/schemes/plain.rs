//! A disk, two disks as a mirror, a disk with a backup.

use super::medium::{BLOCKS, Contents, Medium, contents};
use super::{Media, Model};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

fn says(error: holdfast_block::Error) -> String {
    error.to_string()
}

/// One or two disks that have the same; and another that gets a copy now and then.
pub(super) struct Plain {
    disks: Vec<Arc<Medium>>,
    is_working: Vec<bool>,
    backup: Option<Arc<Medium>>,
}

impl Plain {
    pub(super) fn new(media: &[Arc<Medium>], disks: usize) -> Plain {
        let (disks, rest) = media.split_at(disks);
        Plain { is_working: vec![true; disks.len()], disks: disks.to_vec(), backup: rest.first().cloned() }
    }

    /// Does it on all disks that work. One that fails is left out from then on; it is an error if none is left.
    fn on_all(&mut self, act: impl Fn(&Medium) -> Result<(), holdfast_block::Error>) -> Result<(), String> {
        let mut failed = None;
        for (disk, is_working) in self.disks.iter().zip(&mut self.is_working).filter(|(_, is_working)| **is_working) {
            if let Err(error) = act(disk) {
                *is_working = false;
                failed = Some(error);
            }
        }
        match failed {
            _ if self.is_working.contains(&true) => Ok(()),
            Some(error) => Err(says(error)),
            None => Err("no disk is left".to_string()),
        }
    }
}

impl Model for Plain {
    fn write(&mut self, at: usize, bytes: &[u8; BLOCK_SIZE]) -> Result<(), String> {
        self.on_all(|disk| disk.write(at as u64, &[IoSlice::new(bytes)]))
    }

    fn flush(&mut self) -> Result<(), String> {
        self.on_all(|disk| disk.flush())
    }

    fn save(&mut self) -> Result<(), String> {
        let Some(backup) = &self.backup else { return Ok(()) };
        let mut bytes = vec![0; BLOCKS * BLOCK_SIZE];
        self.disks[0].read(0, &mut [IoSliceMut::new(&mut bytes)]).map_err(says)?;
        backup.write(0, &[IoSlice::new(&bytes)]).map_err(says)?;
        backup.flush().map_err(says)
    }

    fn read(&self) -> Result<Contents, String> {
        let mut all = self.disks.iter().zip(&self.is_working).filter(|(_, is_working)| **is_working);
        // A mirror reads from any; from the first is as good.
        contents(&**all.next().ok_or("no disk is left")?.0)
    }
}

/// The first disk that is there (a mirror takes it for the right one, and makes the other the same); and the backup.
pub(super) fn recover(media: &Media, disks: usize) -> Vec<Contents> {
    let read = |device: &MemoryDevice| contents(device).ok();
    let (disks, rest) = media.split_at(disks);
    let first = disks.iter().flatten().next().and_then(read);
    first.into_iter().chain(rest.iter().flatten().filter_map(read)).collect()
}
