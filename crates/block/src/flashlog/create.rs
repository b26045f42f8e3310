//! Making a set of two devices.

use super::Error;
use super::format::{AREA_UNIT_BLOCKS, Areas, LABEL_AREA_BLOCKS, Label, Role, Uuid};
use super::labels::Labelled;
use super::staging::Backup;
use crate::Device;
use std::sync::Arc;

/// Names of a new set, which must be random.
#[derive(Clone, Copy, Debug)]
pub struct Create {
    /// The set.
    pub set: Uuid,
    /// Its main device.
    pub main: Uuid,
    /// Its log device.
    pub log: Uuid,
}

/// Blocks of the smallest main device: a MiB, and its labels.
pub const fn main_blocks_least() -> u64 {
    2 * AREA_UNIT_BLOCKS
}

/// Blocks of the smallest log device: an area of labels, one of pages, and two of data.
pub const fn log_blocks_least() -> u64 {
    LABEL_AREA_BLOCKS + 3 * AREA_UNIT_BLOCKS
}

/// Blocks of the set's device with a main of so many: what is before its labels, in whole MiB.
pub fn set_blocks(main_blocks: u64) -> u64 {
    main_blocks.saturating_sub(LABEL_AREA_BLOCKS) / AREA_UNIT_BLOCKS * AREA_UNIT_BLOCKS
}

/// Blocks of the smallest device for backups of a set of so many: with their checksums, and the smallest staging area.
pub fn backup_blocks_least(set_blocks: u64) -> u64 {
    Backup::blocks_least(set_blocks)
}

/// That a backup of a set on this main has room on a device: for whoever makes both, before anything is changed.
///
/// # Errors
/// [`Error::TooSmall`].
pub fn check_backup(main: &dyn Device, backup: &dyn Device) -> Result<(), Error> {
    Backup::check_room(backup, set_blocks(main.blocks()))
}

/// Makes a set. Main keeps what it has, but for the last MiB (and what is behind the last whole one); a set's device is smaller
/// than main by these. What the log device had is lost.
///
/// # Errors
/// [`Error::TooSmall`], [`Error::Device`].
pub fn create(main: Arc<dyn Device>, log: Arc<dyn Device>, names: &Create) -> Result<u64, Error> {
    let sizes = [(&main, Role::Main, main_blocks_least()), (&log, Role::Log, log_blocks_least())];
    for (device, role, least) in sizes {
        if device.blocks() < least {
            return Err(Error::TooSmall { device: device.name().into(), role, blocks: device.blocks(), least });
        }
    }
    let blocks = set_blocks(main.blocks());
    let first = |role, device: &Arc<dyn Device>, areas| {
        Label::first([names.set, names.main, names.log], blocks, role, device.blocks(), areas)
    };
    let of_log = first(Role::Log, &log, Areas::between(LABEL_AREA_BLOCKS, log.blocks()));
    Labelled::create(log, of_log)?;
    let of_main = first(Role::Main, &main, Areas::default());
    Labelled::create(main, of_main)?;
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::super::{Flashlog, Options};
    use super::*;
    use crate::{BLOCK_SIZE, Error as DeviceError, Filter, MemoryDevice, Operation};
    use std::io::{IoSlice, IoSliceMut};

    /// A log that was used for something else, and can be trimmed or not.
    struct Used {
        device: MemoryDevice,
        is_able: bool,
    }

    impl Filter for Used {
        fn below(&self) -> &dyn Device {
            &self.device
        }

        fn on_discard(&self, first: u64, count: u64) -> Result<(), DeviceError> {
            if self.is_able {
                return self.device.discard(first, count);
            }
            let (device, operation, source) = ("log".into(), Operation::Discard, Arc::new(std::io::Error::other("no")));
            Err(DeviceError::Io { device, operation, first: Some(first), length_bytes: 0, source })
        }
    }

    #[test]
    fn what_a_new_log_had_is_discarded_if_that_can_be_done_and_main_keeps_all() {
        let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
        for is_able in [true, false] {
            let [main, log] = [1280, 2560].map(|blocks| {
                let device = MemoryDevice::new(blocks);
                device.write(0, &[IoSlice::new(&vec![7; blocks as usize * BLOCK_SIZE])]).unwrap();
                Arc::new(Used { device, is_able })
            });
            create(main.clone(), log.clone(), &names).unwrap();
            let has = |device: &Used, byte: u8, blocks: std::ops::Range<u64>| {
                let mut bytes = vec![0; (blocks.end - blocks.start) as usize * BLOCK_SIZE];
                device.device.read(blocks.start, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
                bytes.iter().all(|found| *found == byte)
            };
            assert!(
                has(&main, 7, 0..1024) && has(&log, if is_able { 0 } else { 7 }, LABEL_AREA_BLOCKS..2560),
                "{is_able}"
            );
            assert!(Labelled::read(log, Role::Log).is_ok());
        }
    }

    #[test]
    fn a_main_and_a_backup_of_any_number_of_blocks_are_opened_again() {
        let names = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };
        for more in [0, 1, 255] {
            let backup = Backup::blocks_least(512) + more;
            let [main, log, backup] =
                [768 + more, 1024 + more, backup].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
            create(main.clone(), log.clone(), &names).unwrap();
            for round in 0..3 {
                let (set, _) = Flashlog::open(main.clone(), log.clone(), &Options::default()).unwrap();
                if round == 0 {
                    set.create_backup(backup.clone(), Uuid([4; 16])).unwrap();
                }
                set.write(round, &[IoSlice::new(&[7; BLOCK_SIZE])]).unwrap();
                set.backup(backup.clone()).unwrap();
                set.close().unwrap();
            }
        }
    }

    #[test]
    fn areas_are_whole_mib_and_fill_the_device() {
        let blocks = [log_blocks_least(), 1024 + 255, 2560, 2816, 4096, 1 << 22, (1 << 30) + 77];
        for device_blocks in blocks {
            let areas = Areas::between(LABEL_AREA_BLOCKS, device_blocks);
            assert_eq!(areas.meta_start, 256);
            assert_eq!(areas.meta_start + areas.meta_blocks, areas.data_start);
            assert_eq!(areas.data_start + areas.data_blocks, device_blocks / 256 * 256);
            assert!(areas.data_blocks >= 512 && areas.meta_blocks >= 256);
            assert!(areas.meta_blocks * 9 >= areas.data_blocks || areas.data_blocks <= 512, "{device_blocks}");
            assert!(areas.meta_blocks * 8 <= areas.data_blocks + 9 * 256, "{device_blocks}");
        }
    }
}
