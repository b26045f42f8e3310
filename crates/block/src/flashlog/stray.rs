//! Labels where none are looked for, or none should be.

use super::Error;
use super::format::{Decoded, Label, Role};
use super::labels::{newest, remove_labels};
use super::outgrown::read_behind;
use crate::{BLOCK_SIZE, Device};

/// Whether there are labels of a device of another size among the blocks from `first` on, where a device that ended soon after it would
/// have them: it was enlarged, and its labels are not where they are looked for.
///
/// # Errors
/// [`Error::Device`].
pub fn has_outgrown_labels(device: &dyn Device, first: u64) -> Result<bool, Error> {
    let (bytes, unread) = read_behind(device, first)?;
    let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    let is_some = blocks.iter().any(Label::is_begun);
    match unread {
        Some((error, _)) if !is_some => Err(error.into()),
        _ => Ok(is_some),
    }
}

/// Makes a device one of no set: whatever labels it has are gone.
///
/// # Errors
/// [`Error::Device`].
pub fn wipe(device: &dyn Device) -> Result<(), Error> {
    let [of_main, of_log] = [Role::Main, Role::Log].map(|role| newest(device, role));
    for (found, role) in [(of_main?, Role::Main), (of_log?, Role::Log)] {
        if found != Decoded::Nothing {
            remove_labels(device, role, device.blocks())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use crate::flashlog::{AREA_UNIT_BLOCKS, Create, Uuid, create, inspect};
    use std::io::{IoSlice, IoSliceMut};
    use std::sync::Arc;

    const NAMES: Create = Create { set: Uuid([1; 16]), main: Uuid([2; 16]), log: Uuid([3; 16]) };

    #[test]
    fn a_wiped_device_is_none_of_a_set() {
        let [main, log] = [1024, 1024].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
        create(main.clone(), log.clone(), &NAMES).unwrap();
        for device in [main, log] {
            assert!(inspect(&*device).unwrap().is_some());
            wipe(&*device).unwrap();
            assert_eq!(inspect(&*device).unwrap(), None);
        }
    }

    #[test]
    fn an_enlarged_main_is_told() {
        for blocks in [2048, 2049, 2303] {
            let [main, log] = [blocks, 2048].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
            let of_set = create(main.clone(), log, &NAMES).unwrap();
            let larger = Arc::new(MemoryDevice::new(blocks + AREA_UNIT_BLOCKS));
            let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
            main.read(0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
            larger.write(0, &[IoSlice::new(&bytes)]).unwrap();
            assert_eq!(inspect(&*larger).unwrap(), None);
            assert!(has_outgrown_labels(&*larger, of_set).unwrap());
            assert!(!has_outgrown_labels(&*larger, blocks).unwrap());
            assert!(!has_outgrown_labels(&*larger, larger.blocks()).unwrap());
        }
    }
}
