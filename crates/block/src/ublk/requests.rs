//! What the kernel's requests are in calls of a device.

use super::abi::{DISCARD, FLUSH, FUA, NO_UNMAP, READ, Request, SECTOR, WRITE, WRITE_ZEROES};
use crate::device::write_zeros;
use crate::{BLOCK_SIZE, Device, Error};
use std::io::{IoSlice, IoSliceMut};

const BLOCK_SECTORS: u64 = BLOCK_SIZE as u64 / SECTOR;

/// Does what is asked. `buffer` has the data, or gets it. Gives the bytes that were done, or the negative number of an error.
pub(super) fn carry_out(device: &dyn Device, request: &Request, buffer: &mut [u8]) -> i32 {
    match done(device, request, buffer) {
        Ok(bytes) => bytes,
        Err(errno) => -errno,
    }
}

fn done(device: &dyn Device, request: &Request, buffer: &mut [u8]) -> Result<i32, i32> {
    let (operation, flags) = (request.operation & 0xff, request.operation >> 8 << 8);
    let of_device = |error: Error| errno(&error);
    let is_durable = |device: &dyn Device| if flags & (FUA << 8) == 0 { Ok(()) } else { device.flush() };
    if operation == FLUSH {
        return device.flush().map(|()| 0).map_err(of_device);
    }
    let (first, count) = (request.first_sector, u64::from(request.sectors));
    if count == 0 || !first.is_multiple_of(BLOCK_SECTORS) || !count.is_multiple_of(BLOCK_SECTORS) {
        return Err(libc::EINVAL);
    }
    let bytes = count * SECTOR;
    let (first, count) = (first / BLOCK_SECTORS, count / BLOCK_SECTORS);
    match operation {
        READ | WRITE => {
            let data = usize::try_from(bytes).ok().and_then(|bytes| buffer.get_mut(..bytes)).ok_or(libc::EINVAL)?;
            if operation == READ {
                device.read(first, &mut [IoSliceMut::new(data)]).map_err(of_device)?;
            } else {
                device.write(first, &[IoSlice::new(data)]).map_err(of_device)?;
                is_durable(device).map_err(of_device)?;
            }
        }
        DISCARD => device.discard(first, count).map_err(of_device)?,
        WRITE_ZEROES => {
            if !device.zero(first, count, flags & (NO_UNMAP << 8) != 0).map_err(of_device)? {
                write_zeros(device, first, count).map_err(of_device)?;
            }
            is_durable(device).map_err(of_device)?;
        }
        _ => return Err(libc::EOPNOTSUPP),
    }
    i32::try_from(bytes).map_err(|_| libc::EINVAL)
}

/// The system's number for what went wrong.
fn errno(error: &Error) -> i32 {
    match error.root() {
        Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        Error::ReadOnly { .. } => libc::EROFS,
        Error::OutOfRange { .. } | Error::Misaligned { .. } => libc::EINVAL,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Filter, MemoryDevice};
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Counted(MemoryDevice, AtomicU32);

    impl Filter for Counted {
        fn below(&self) -> &dyn Device {
            &self.0
        }

        fn on_flush(&self) -> Result<(), Error> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.flush()
        }
    }

    fn ask(device: &Counted, operation: u32, first_sector: u64, sectors: u32, buffer: &mut [u8]) -> (i32, u32) {
        let request = Request { operation, sectors, first_sector, address: 0 };
        let before = device.1.load(Ordering::Relaxed);
        let result = carry_out(device, &request, buffer);
        (result, device.1.load(Ordering::Relaxed) - before)
    }

    #[test]
    fn each_request_is_a_call_of_the_device_and_each_error_a_number() {
        let device = Counted(MemoryDevice::new(16), AtomicU32::new(0));
        let mut buffer = vec![7; 4 * BLOCK_SIZE];
        assert_eq!(ask(&device, WRITE, 8, 16, &mut buffer), (8192, 0));
        assert_eq!(ask(&device, WRITE | FUA << 8, 24, 8, &mut buffer), (4096, 1));
        assert_eq!(ask(&device, FLUSH, 0, 0, &mut []), (0, 1));
        let mut read = vec![1; 4 * BLOCK_SIZE];
        assert_eq!(ask(&device, READ, 0, 32, &mut read), (16384, 0));
        assert!(read[..4096] == [0; 4096] && read[4096..] == buffer[4096..]);
        // The device cannot do it otherwise: zeros are written.
        assert_eq!(ask(&device, WRITE_ZEROES | (NO_UNMAP | FUA) << 8, 16, 8, &mut []), (4096, 1));
        assert_eq!(ask(&device, DISCARD, 24, 8, &mut []), (4096, 0));
        assert_eq!(ask(&device, READ, 8, 16, &mut read), (8192, 0));
        assert!(read[..4096] == [7; 4096] && read[4096..8192] == [0; 4096]);
        for (operation, first, sectors, expected) in [
            (READ, 4, 8, libc::EINVAL),
            (READ, 8, 4, libc::EINVAL),
            (READ, 8, 0, libc::EINVAL),
            (READ, 128, 8, libc::EINVAL),
            // More than there is a buffer for.
            (WRITE, 0, 64, libc::EINVAL),
            (4, 0, 8, libc::EOPNOTSUPP),
            (99, 0, 8, libc::EOPNOTSUPP),
        ] {
            assert_eq!(
                ask(&device, operation, first, sectors, &mut buffer),
                (-expected, 0),
                "{operation} {first} {sectors}"
            );
        }
    }
}
