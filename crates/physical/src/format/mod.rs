//! The disk format, defined once. `docs/format.md` is the same in tables.
//!
//! All integers are little-endian; reserved bytes are zero when written and checked when read. A structure whose version
//! or incompatible features are not known is refused; nothing here panics on foreign bytes.

pub(crate) mod blockptr;
pub(crate) mod fields;
pub(crate) mod label;
pub(crate) mod log;
pub(crate) mod ops;
pub(crate) mod record;
pub(crate) mod snapshot;
pub(crate) mod superblock;

pub(crate) use blockptr::BlockPointer;
pub(crate) use label::{Features, Label};
pub(crate) use record::{Record, RecordKind, SystemKind};
pub(crate) use snapshot::{DEAD_RUNS, DeadRun, SNAPSHOTS, StoredSnapshot};
pub(crate) use superblock::Superblock;

/// Version of the format that this code reads and writes.
pub const FORMAT_VERSION: u32 = 6;
/// Number of labels on a device: two at each end.
pub const LABELS: usize = 4;
/// Blocks in a label: one label block and the ring of superblocks.
pub const LABEL_BLOCKS: u64 = 16;
/// Superblocks in the ring of each label; epoch `e` is in slot `e % RING_SLOTS`.
pub const RING_SLOTS: u64 = LABEL_BLOCKS - 1;
/// Block pointers in a tree block.
pub(crate) const POINTERS: u64 = 64;
/// Most levels of tree blocks above the pages of an object.
pub(crate) const LEVELS_MAX: u8 = 6;
/// Most pages of an object.
pub(crate) const PAGES_MAX: u64 = 1 << 32;
/// Bits in a block of a bitmap object.
pub(crate) const BITS: u64 = 8 * 4096;
/// Counters in a block of the reference table.
pub(crate) const COUNTERS: u64 = 4096 / 4;
/// Object records in a block of an object table.
pub(crate) const RECORDS: u64 = 8;
/// Bytes of an object record.
pub(crate) const RECORD_BYTES: usize = 512;
/// Smallest device that can hold a store, in blocks.
pub const DEVICE_BLOCKS_MIN: u64 = 512;
/// Largest device, in blocks: addresses have 48 bits, and the bitmap is one object.
pub const DEVICE_BLOCKS_MAX: u64 = PAGES_MAX * BITS;
/// Smallest intent log area, in blocks.
pub(crate) const LOG_BLOCKS_MIN: u64 = 64;

/// Device number in the upper 16 bits of an address, block number in the lower 48.
pub(crate) fn split_address(address: u64) -> (u16, u64) {
    ((address >> 48) as u16, address & ((1 << 48) - 1))
}

/// Blocks of a device of `blocks` that something can be stored in: those between the labels.
pub(crate) fn room(blocks: u64) -> std::ops::Range<u64> {
    2 * LABEL_BLOCKS..blocks.saturating_sub(2 * LABEL_BLOCKS)
}

/// First block of label `label` on a device of `blocks` blocks.
pub fn label_start(label: usize, blocks: u64) -> u64 {
    match label {
        0 => 0,
        1 => LABEL_BLOCKS,
        2 => blocks.saturating_sub(2 * LABEL_BLOCKS),
        _ => blocks.saturating_sub(LABEL_BLOCKS),
    }
}

/// Blocks of the intent log area of a device of `blocks` blocks: 1/64 of it, at most 64 MiB, at least 2 MiB where that is
/// no more than 1/32 of the device, and never below 256 KiB. Even, for its two halves.
pub fn log_blocks(blocks: u64) -> u64 {
    let floor = (blocks / 32).clamp(LOG_BLOCKS_MIN, 512);
    (blocks / 64).clamp(floor, 16_384) & !1
}

/// What is wrong with foreign bytes; the caller adds the place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) what: &'static str,
    pub(crate) expected: String,
    pub(crate) got: String,
}

impl Fault {
    pub(crate) fn new(what: &'static str, expected: impl ToString, got: impl ToString) -> Fault {
        Fault { what, expected: expected.to_string(), got: got.to_string() }
    }

    pub(crate) fn at(self, place: holdfast_object::Place) -> holdfast_object::Error {
        holdfast_object::Error::corrupt(place, self.what, self.expected, self.got)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: expected {}, got {}", self.what, self.expected, self.got)
    }
}

pub(crate) fn hex(value: u64) -> String {
    format!("{value:#018x}")
}

pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Whether so little is there, between zeros, that one stray write leaves it. More says that a place was in use, whatever else it says.
pub(crate) fn is_stray(bytes: &[u8]) -> bool {
    const STRAY_BYTES: usize = 8;
    let is_used = |byte: &u8| *byte != 0;
    let ends = bytes.iter().position(is_used).zip(bytes.iter().rposition(is_used));
    ends.is_none_or(|(first, last)| last - first < STRAY_BYTES)
}

/// `Err` if `bytes` are not all zero.
pub(crate) fn expect_zero(what: &'static str, bytes: &[u8]) -> Result<(), Fault> {
    match bytes.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => Err(Fault::new(what, "zero", format!("{:#04x} at byte {at}", bytes[at]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_area_grows_with_the_device() {
        for (blocks, log) in [(512, 64), (4096, 128), (16_384, 512), (131_072, 2048), (1 << 30, 16_384)] {
            assert_eq!(log_blocks(blocks), log, "{blocks}");
        }
        for blocks in DEVICE_BLOCKS_MIN..5000 {
            let log = log_blocks(blocks);
            assert!(log.is_multiple_of(2) && (LOG_BLOCKS_MIN..=blocks / 4).contains(&log));
        }
    }

    #[test]
    fn labels_do_not_overlap() {
        let starts: Vec<u64> = (0..LABELS).map(|label| label_start(label, DEVICE_BLOCKS_MIN)).collect();
        assert_eq!(starts, [0, 16, 480, 496]);
    }
}
