//! Labels where none are looked for, or none should be.

use super::Error;
use super::format::{Decoded, LABEL_AREA_BLOCKS, Label, Role};
use super::labels::newest;
use crate::{AlignedBuf, BLOCK_SIZE, Device};
use std::io::{IoSlice, IoSliceMut};

/// Whether there are labels of a device of another size among the blocks from `first` on, where a device that ended soon after it would
/// have them: it was enlarged, and its labels are not where they are looked for.
///
/// # Errors
/// [`Error::Device`].
pub fn has_outgrown_labels(device: &dyn Device, first: u64) -> Result<bool, Error> {
    // In front of its labels main has less than a MiB that is not of the set.
    let count = (2 * LABEL_AREA_BLOCKS).min(device.blocks().saturating_sub(first));
    if count == 0 {
        return Ok(false);
    }
    let mut bytes = AlignedBuf::zeroed(count as usize * BLOCK_SIZE);
    device.read(first, &mut [IoSliceMut::new(&mut bytes)])?;
    let (blocks, _none) = bytes.as_chunks::<BLOCK_SIZE>();
    Ok(blocks.iter().any(Label::is_begun))
}

/// Makes a device one of no set: whatever labels it has are gone.
///
/// # Errors
/// [`Error::Device`].
pub fn wipe(device: &dyn Device) -> Result<(), Error> {
    for role in [Role::Main, Role::Log] {
        if newest(device, role)? != Decoded::Nothing {
            let zeros = AlignedBuf::zeroed(LABEL_AREA_BLOCKS as usize * BLOCK_SIZE);
            device.write(Label::area(role, device.blocks()), &[IoSlice::new(&zeros)])?;
            device.flush()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use crate::flashlog::{AREA_UNIT_BLOCKS, Create, Uuid, create, inspect};
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
