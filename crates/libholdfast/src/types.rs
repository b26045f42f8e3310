//! The header's structures.

use holdfast_client::{Error, Features, Kind, Operation};
use holdfast_interface::words::without_end;
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
    let text = without_end(text, N - 1);
    for (to, from) in words.iter_mut().zip(text.as_bytes()) {
        *to = *from as c_char;
    }
    words
}

/// Blocks that are named in words; `blocks` has more of them.
const BLOCKS_IN_WORDS: usize = 3;

/// What was being done and where, which side and blocks are bad, and what can be done; then the details, of which the end may have no room.
fn told(error: &Error) -> String {
    let operation = match error.operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let bad = match error.kind {
        Kind::Memory => format!("bad bytes in memory{}: ", blocks_and_advice(error)),
        Kind::Device if error.blocks.is_empty() => "the device failed, or has bad bytes: ".into(),
        Kind::Device => format!("bad bytes on the device{}: ", blocks_and_advice(error)),
        _ => String::new(),
    };
    format!("{operation} at byte {}: {bad}{}", error.offset, error.words())
}

fn blocks_and_advice(error: &Error) -> String {
    let named: Vec<String> = error.blocks.iter().take(BLOCKS_IN_WORDS).map(u64::to_string).collect();
    let (noun, them) = match error.blocks.len() {
        0 => return String::new(),
        1 => ("block", "it"),
        _ => ("blocks", "them"),
    };
    let more = if error.blocks.len() > named.len() { ", …" } else { "" };
    let advice = match (error.kind, error.operation) {
        (Kind::Memory, Operation::Read) if error.in_transfer => format!("read {them} again"),
        (Kind::Memory, Operation::Write) if error.in_transfer => format!("write {them} again"),
        (Kind::Memory, _) => format!("write {them} again, whole"),
        _ => format!("write {them} again, whole, or restore {them}"),
    };
    format!(" ({noun} {}{more}; {advice})", named.join(", "))
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
            text: words(&told(error)),
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
        assert_eq!(words::<4>("abc")[2..], [b'c' as c_char, 0]);
        let cut = words::<8>("abäcdefg").map(|byte| byte as u8);
        assert_eq!(&cut, "abä…\0".as_bytes());
        let cut = words::<7>("abäcdefg").map(|byte| byte as u8);
        assert_eq!(&cut, "ab…\0\0".as_bytes(), "not in the middle of a letter");
    }

    fn text(error: &Error) -> String {
        let bytes = HoldfastError::from(error).text.map(|byte| byte as u8);
        std::ffi::CStr::from_bytes_until_nul(&bytes).unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn a_text_tells_all_that_matters_and_what_to_do() {
        let details =
            format!("corrupt: object 1:2, page 2, device /s, block 77: checksum: {}", "0123456789abcdef".repeat(20));
        let mut error = Error::from_errno(Operation::Read, 8192, libc::EIO, &details);
        error.kind = Kind::Device;
        error.blocks = vec![2];
        let told = text(&error);
        let first =
            "read at byte 8192: bad bytes on the device (block 2; write it again, whole, or restore it): corrupt: ";
        assert!(told.starts_with(first) && told.contains("block 77: checksum: ") && told.ends_with('…'), "{told}");
        error.kind = Kind::Memory;
        error.text = "short".into();
        assert_eq!(text(&error), "read at byte 8192: bad bytes in memory (block 2; write it again, whole): short");
        error.blocks = vec![2, 3, 5, 8];
        error.in_transfer = true;
        assert_eq!(text(&error), "read at byte 8192: bad bytes in memory (blocks 2, 3, 5, …; read them again): short");
        error.operation = Operation::Write;
        assert_eq!(
            text(&error),
            "write at byte 8192: bad bytes in memory (blocks 2, 3, 5, …; write them again): short"
        );
        error.blocks.clear();
        assert_eq!(text(&error), "write at byte 8192: bad bytes in memory: short");
        let full = Error::from_errno(Operation::Write, 7, libc::ENOSPC, "");
        assert_eq!(text(&full), "write at byte 7: No space left on device (os error 28)");
    }
}
