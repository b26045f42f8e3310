//! The header's structures.

use holdfast_client::{Error, Features, Kind, Operation};
use libc::c_char;

const ERROR_BLOCKS: usize = 32;
const TEXT_BYTES: usize = 200;
const MODE_BYTES: usize = 40;
const NO_ADDRESS: u64 = u64::MAX;

/// `struct holdfast_error`.
#[allow(missing_docs, reason = "holdfast.h has it")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HoldfastError {
    pub errnum: i32,
    pub kind: u32,
    pub operation: u32,
    pub block_count: u32,
    pub offset: u64,
    pub done: u64,
    pub device_address: u64,
    pub blocks: [u64; ERROR_BLOCKS],
    pub text: [c_char; TEXT_BYTES],
    pub in_transfer: u32,
    pub reserved_1: u32,
    pub reserved: [u64; 3],
}
const _: () = assert!(size_of::<HoldfastError>() == 528);

/// `struct holdfast_features`.
#[allow(missing_docs, reason = "holdfast.h has it")]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HoldfastFeatures {
    pub interface_version: u32,
    pub page_algorithm: u32,
    pub algorithms: u64,
    pub transfer_bytes_max: u64,
    pub may_read: u32,
    pub may_write: u32,
    pub mode: [c_char; MODE_BYTES],
    pub capabilities: u64,
    pub interface_version_least: u32,
    pub reserved_1: u32,
    pub reserved: [u64; 2],
}
const _: () = assert!(size_of::<HoldfastFeatures>() == 104);

/// Words that end with NUL, cut to fit.
fn words<const N: usize>(text: &str) -> [c_char; N] {
    let mut words = [0; N];
    let mut end = text.len().min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in words.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = *from as c_char;
    }
    words
}

impl From<&Error> for HoldfastError {
    fn from(error: &Error) -> HoldfastError {
        let mut blocks = [0; ERROR_BLOCKS];
        for (to, from) in blocks.iter_mut().zip(&error.blocks) {
            *to = *from;
        }
        HoldfastError {
            errnum: error.errno,
            kind: match error.kind {
                Kind::Memory => 1,
                Kind::Device => 2,
                Kind::Unsupported => 3,
                _ => 4,
            },
            operation: match error.operation {
                Operation::Read => 1,
                Operation::Write => 2,
            },
            block_count: u32::try_from(error.blocks.len()).unwrap_or(u32::MAX),
            offset: error.offset,
            done: error.done as u64,
            device_address: error.device_address.unwrap_or(NO_ADDRESS),
            blocks,
            text: words(&error.words()),
            in_transfer: u32::from(error.in_transfer),
            reserved_1: 0,
            reserved: [0; 3],
        }
    }
}

impl From<&Features> for HoldfastFeatures {
    fn from(features: &Features) -> HoldfastFeatures {
        HoldfastFeatures {
            interface_version: u32::from(features.version),
            page_algorithm: u32::from(features.page_algorithm.id()),
            algorithms: features.algorithms.iter().fold(0, |bits, algorithm| bits | 1 << algorithm.id()),
            transfer_bytes_max: features.transfer_bytes_max as u64,
            may_read: u32::from(features.access.read),
            may_write: u32::from(features.access.write),
            mode: words(&features.mode),
            capabilities: features.capabilities.0,
            interface_version_least: u32::from(features.version_least),
            reserved_1: 0,
            reserved: [0; 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end() {
        assert_eq!(words::<4>("ab"), [b'a' as c_char, b'b' as c_char, 0, 0]);
        assert_eq!(words::<4>("abcd")[2..], [b'c' as c_char, 0]);
        assert_eq!(words::<4>("abä")[2..], [0, 0], "not in the middle of a letter");
    }
}
