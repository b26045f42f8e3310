//! Devices that stand in front of another, and change something of what goes through them.

use crate::{Device, Error};
use std::io::{IoSlice, IoSliceMut};

/// A device in front of another one: what it does not take up goes to the one [below](Filter::below), as it is.
///
/// Batches arrive request by request, so that nothing passes by. It does not grow.
pub trait Filter: Send + Sync {
    /// The device that it stands in front of; messages name that one.
    fn below(&self) -> &dyn Device;

    /// Comes for [`Device::read`].
    ///
    /// # Errors
    /// As there.
    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        self.below().read(first, bufs)
    }

    /// Comes for [`Device::write`].
    ///
    /// # Errors
    /// As there.
    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        self.below().write(first, bufs)
    }

    /// Comes for [`Device::flush`].
    ///
    /// # Errors
    /// As there.
    fn on_flush(&self) -> Result<(), Error> {
        self.below().flush()
    }

    /// Comes for [`Device::discard`].
    ///
    /// # Errors
    /// As there.
    fn on_discard(&self, first: u64, count: u64) -> Result<(), Error> {
        self.below().discard(first, count)
    }

    /// Comes for [`Device::zero`]. Zeros are written if this is not taken up, so that nothing passes by.
    ///
    /// # Errors
    /// As there.
    fn on_zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
        let _ = (first, count, keep);
        Ok(false)
    }

    /// Comes for [`Device::writes_zeros`]: whether [`Filter::on_zero`] is not taken up.
    fn has_to_write_zeros(&self) -> bool {
        true
    }
}

impl<F: Filter> Device for F {
    fn name(&self) -> &str {
        self.below().name()
    }

    fn blocks(&self) -> u64 {
        self.below().blocks()
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        self.on_read(first, bufs)
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        self.on_write(first, bufs)
    }

    fn flush(&self) -> Result<(), Error> {
        self.on_flush()
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), Error> {
        self.on_discard(first, count)
    }

    fn zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
        self.on_zero(first, count, keep)
    }

    fn writes_zeros(&self, _keep: bool) -> bool {
        self.has_to_write_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BLOCK_SIZE, MemoryDevice, Write};

    /// Writes go one block further.
    struct Further(MemoryDevice);

    impl Filter for Further {
        fn below(&self) -> &dyn Device {
            &self.0
        }

        fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
            self.0.write(first + 1, bufs)
        }
    }

    #[test]
    fn what_is_taken_up_is_so_in_batches_too_and_the_rest_goes_below() {
        let device = Further(MemoryDevice::new(8));
        device.write(0, &[IoSlice::new(&[1; BLOCK_SIZE])]).unwrap();
        let bufs = [IoSlice::new(&[2; BLOCK_SIZE])];
        device.write_batch(&[Write { first: 3, bufs: &bufs }]).unwrap();
        let mut bytes = vec![0; 8 * BLOCK_SIZE];
        device.read(0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
        let first_of_each: Vec<u8> = bytes.chunks(BLOCK_SIZE).map(|block| block[0]).collect();
        assert_eq!(first_of_each, [0, 1, 0, 0, 2, 0, 0, 0]);
        assert_eq!(device.blocks(), 8);
        assert!(device.grow(9).is_err());
    }
}
