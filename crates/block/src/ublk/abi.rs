//! What the kernel and a ublk server tell each other, as `linux/ublk_cmd.h` has it, in the machine's byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a sector, the unit of requests.
pub(super) const SECTOR: u64 = 512;

/// A command to the control device.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default, Debug)]
#[repr(C)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    /// All ones if it is not about a queue.
    pub(super) queue: u16,
    /// Of what is at the address.
    pub(super) length: u16,
    pub(super) address: u64,
    pub(super) data: u64,
    pub(super) path_length: u16,
    pub(super) pad: u16,
    pub(super) reserved: u32,
}

/// A device, as it is asked for and as it was made.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default, Debug)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    pub(super) pad0: u16,
    /// Largest request.
    pub(super) buffer_bytes: u32,
    pub(super) device: u32,
    pub(super) pid: i32,
    pub(super) pad1: u32,
    pub(super) flags: u64,
    pub(super) server_flags: u64,
    pub(super) owner_uid: u32,
    pub(super) owner_gid: u32,
    pub(super) reserved: [u64; 2],
}

/// What a device is like.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default, Debug)]
#[repr(C)]
pub(super) struct Parameters {
    pub(super) length: u32,
    /// Which of the parts count.
    pub(super) types: u32,
    pub(super) attributes: u32,
    pub(super) logical_block_shift: u8,
    pub(super) physical_block_shift: u8,
    pub(super) best_io_shift: u8,
    pub(super) least_io_shift: u8,
    pub(super) sectors_most: u32,
    pub(super) chunk_sectors: u32,
    pub(super) sectors: u64,
    pub(super) boundary_mask: u64,
    pub(super) discard_alignment: u32,
    pub(super) discard_granularity: u32,
    pub(super) discard_sectors_most: u32,
    pub(super) zeroes_sectors_most: u32,
    pub(super) discard_segments_most: u16,
    pub(super) reserved: u16,
    /// The kernel's length ends before it.
    pub(super) tail: u32,
}

/// A request, in memory that the kernel shares.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default, Debug)]
#[repr(C)]
pub(super) struct Request {
    /// What, in the lowest 8 bits, and how.
    pub(super) operation: u32,
    pub(super) sectors: u32,
    pub(super) first_sector: u64,
    pub(super) address: u64,
}

/// A request is fetched, or another one and the outcome of the last.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default, Debug)]
#[repr(C)]
pub(super) struct IoCommand {
    pub(super) queue: u16,
    pub(super) tag: u16,
    pub(super) result: i32,
    /// Where data goes or comes from.
    pub(super) address: u64,
}

const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<Parameters>() == 64 && std::mem::offset_of!(Parameters, discard_alignment) == 40);
const _: () = assert!(size_of::<Request>() == 24);
const _: () = assert!(size_of::<IoCommand>() == 16);

/// Of the parameters that the kernel is told.
pub(super) const PARAMETERS_BYTES: u32 = std::mem::offset_of!(Parameters, tail) as u32;
pub(super) const WITH_BASIC: u32 = 1;
pub(super) const WITH_DISCARD: u32 = 1 << 1;
pub(super) const IS_READ_ONLY: u32 = 1;
pub(super) const HAS_CACHE: u32 = 1 << 2;
pub(super) const HAS_FUA: u32 = 1 << 3;

/// Commands are numbers as those of ioctl.
pub(super) const WITH_IOCTL_NUMBERS: u64 = 1 << 6;

/// Both ways, with an argument of so many bytes.
const fn both_ways(number: u32, bytes: usize) -> u32 {
    (3 << 30) | ((bytes as u32) << 16) | ((b'u' as u32) << 8) | number
}

pub(super) const ADD: u32 = both_ways(0x04, size_of::<ControlCommand>());
pub(super) const DELETE: u32 = both_ways(0x05, size_of::<ControlCommand>());
pub(super) const START: u32 = both_ways(0x06, size_of::<ControlCommand>());
pub(super) const STOP: u32 = both_ways(0x07, size_of::<ControlCommand>());
pub(super) const SET_PARAMETERS: u32 = both_ways(0x08, size_of::<ControlCommand>());
pub(super) const FETCH: u32 = both_ways(0x20, size_of::<IoCommand>());
pub(super) const COMMIT_AND_FETCH: u32 = both_ways(0x21, size_of::<IoCommand>());

pub(super) const READ: u32 = 0;
pub(super) const WRITE: u32 = 1;
pub(super) const FLUSH: u32 = 2;
pub(super) const DISCARD: u32 = 3;
pub(super) const WRITE_ZEROES: u32 = 5;
/// In what is behind the 8 bits of the operation.
pub(super) const FUA: u32 = 1 << 13;
pub(super) const NO_UNMAP: u32 = 1 << 15;

/// Requests of a queue for which there is room in what the kernel shares.
pub(super) const DEPTH_MOST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// As a C compiler has them of the kernel's header.
    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!(
            [ADD, DELETE, START, STOP, SET_PARAMETERS],
            [0xc0207504, 0xc0207505, 0xc0207506, 0xc0207507, 0xc0207508]
        );
        assert_eq!([FETCH, COMMIT_AND_FETCH], [0xc0107520, 0xc0107521]);
        assert_eq!(PARAMETERS_BYTES, 60);
        let command = IoCommand { queue: 1, tag: 2, result: -5, address: 0x0102_0304_0506_0708 };
        let bytes = [1, 0, 2, 0, 0xfb, 0xff, 0xff, 0xff, 8, 7, 6, 5, 4, 3, 2, 1];
        assert_eq!(command.as_bytes(), if cfg!(target_endian = "little") { &bytes[..] } else { command.as_bytes() });
    }
}
