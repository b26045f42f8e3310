//! The format on the devices, defined once. `docs/format-flashlog.md` is the same in tables.
//!
//! All integers are little-endian; reserved bytes are zero when written and checked when read. What has another version is
//! refused; nothing here panics on foreign bytes.

mod damage;
mod label;
mod page;
mod regions;
pub(crate) mod sums;

pub use damage::{Bad, Damage};
pub(crate) use label::{Areas, Decoded, Label, Point, Staging, State, place};
pub use label::{Role, Uuid};
pub(crate) use page::{Damaged, Entry, Of, PAGE_ZEROS_MOST, Page, PageBuilder, PageHead, pages_most};
pub(crate) use regions::{MAP_BLOCKS, MAP_SLOT_BLOCKS, MapOf, Regions};
pub(crate) use sums::{GROUP_BLOCKS, GroupSums, sums_area_blocks};

use std::fmt;

/// Version of the format that this code reads and writes.
pub const FORMAT_VERSION: u32 = 1;
/// Blocks of 1 MiB: all areas begin and end on a multiple of it.
pub const AREA_UNIT_BLOCKS: u64 = 256;
/// Blocks of the area of labels: the first of a log device, the last of the others.
pub(crate) const LABEL_AREA_BLOCKS: u64 = AREA_UNIT_BLOCKS;
/// Pairs of blocks in that area; each label is written to both blocks of a pair.
pub(crate) const LABEL_PAIRS: u64 = 64;
/// Blocks of it that pairs are in; behind them are two slots for maps of regions.
pub(crate) const LABELS_BLOCKS: u64 = 2 * LABEL_PAIRS;
const _: () = assert!(LABELS_BLOCKS + 2 * regions::MAP_SLOT_BLOCKS == LABEL_AREA_BLOCKS);
/// Largest device, in blocks: addresses have 48 bits.
pub(crate) const BLOCKS_MAX: u64 = 1 << 48;

/// What is wrong with bytes that were read; the caller adds the place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The field.
    pub what: &'static str,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub got: String,
}

impl Fault {
    pub(crate) fn new(what: &'static str, expected: impl ToString, got: impl ToString) -> Fault {
        Fault { what, expected: expected.to_string(), got: got.to_string() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.what, self.expected, self.got)
    }
}

pub(crate) fn hex(value: u64) -> String {
    format!("{value:#018x}")
}

/// `Err` if `bytes` are not all zero.
fn expect_zero(what: &'static str, bytes: &[u8]) -> Result<(), Fault> {
    match bytes.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => Err(Fault::new(what, "zero", format!("{:#04x} at byte {at}", bytes[at]))),
    }
}
