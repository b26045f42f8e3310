//! A map of regions: one bit for so many blocks each.

use super::{BLOCKS_MAX, FORMAT_VERSION, Fault, Uuid, expect_zero, hex};
use holdfast_integrity::Crc64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"HFFLREGN";
const BLOCK_BYTES: usize = 4096;
const HEAD_BYTES: usize = 128;
/// Where the checksum is, which is of all other bytes.
const CRC_AT: usize = 120;
/// Blocks of a slot; there are two.
pub(crate) const MAP_SLOT_BLOCKS: u64 = 64;
/// Most blocks of a map: two have room in a slot.
pub(crate) const MAP_BLOCKS: u64 = MAP_SLOT_BLOCKS / 2;
/// Fewest blocks of a region: 64 KiB.
const REGION_BLOCKS_LEAST: u64 = 16;
/// A new map takes no more than this, so that writing it is quick: half a million regions.
const MAP_BLOCKS_MOST: usize = 16;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHead {
    magic: [u8; 8],
    version: U32,
    reserved: [u8; 4],
    set: [u8; 16],
    device: [u8; 16],
    sequence: U64,
    blocks: U64,
    region_blocks: U64,
    from: U64,
    to: U64,
    reserved_2: [u8; 32],
    crc: U64,
}
const _: () = assert!(size_of::<RawHead>() == HEAD_BYTES);
const _: () = assert!(std::mem::offset_of!(RawHead, sequence) == 48);
const _: () = assert!(std::mem::offset_of!(RawHead, crc) == CRC_AT);

/// Which regions of a set's device have changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Regions {
    blocks: u64,
    region_blocks: u64,
    bits: Vec<u64>,
    /// It has what the log has from this page on ...
    pub(crate) from: u64,
    /// ... up to this page.
    pub(crate) to: u64,
}

/// Whose map it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MapOf {
    pub(crate) set: Uuid,
    /// The device that the map is on.
    pub(crate) device: Uuid,
    /// Of this map among the device's.
    pub(crate) sequence: u64,
    /// Size of the set's device.
    pub(crate) blocks: u64,
}

fn regions_of(blocks: u64, region_blocks: u64) -> u64 {
    blocks.div_ceil(region_blocks)
}

/// Bytes of a map in whole blocks.
fn map_bytes(regions: u64) -> usize {
    (HEAD_BYTES + regions.div_ceil(8) as usize).next_multiple_of(BLOCK_BYTES)
}

impl Regions {
    /// Nothing has changed.
    pub(crate) fn none(blocks: u64) -> Regions {
        let mut region_blocks = REGION_BLOCKS_LEAST;
        while map_bytes(regions_of(blocks, region_blocks)) > MAP_BLOCKS_MOST * BLOCK_BYTES {
            region_blocks *= 2;
        }
        let words = regions_of(blocks, region_blocks).div_ceil(64) as usize;
        Regions { blocks, region_blocks, bits: vec![0; words], from: 0, to: 0 }
    }

    /// Everything may have changed.
    pub(crate) fn all(blocks: u64) -> Regions {
        let mut regions = Self::none(blocks);
        regions.mark(0, blocks);
        regions
    }

    /// The same regions, of other pages of the log.
    pub(crate) fn about(self, from: u64, to: u64) -> Regions {
        Regions { from, to, ..self }
    }

    /// Marks what these blocks are in. Whether any of it was not marked yet.
    pub(crate) fn mark(&mut self, first: u64, count: u64) -> bool {
        let mut is_new = false;
        for region in first / self.region_blocks..(first + count).div_ceil(self.region_blocks) {
            let (word, bit) = (&mut self.bits[(region / 64) as usize], 1 << (region % 64));
            is_new |= *word & bit == 0;
            *word |= bit;
        }
        is_new
    }

    /// Marks what another map of the same device has marked, and takes its end if it is later.
    pub(crate) fn add(&mut self, other: &Regions) {
        let mut at = 0;
        while let Some((first, count)) = other.next_run(at, u64::MAX) {
            self.mark(first, count);
            at = first + count;
        }
        self.to = self.to.max(other.to);
    }

    /// The same regions of a device that has become as large as this.
    pub(crate) fn of_larger(self, blocks: u64) -> Regions {
        if self.blocks == blocks {
            return self;
        }
        let mut larger = Self::none(blocks).about(self.from, self.to);
        larger.add(&self);
        larger
    }

    fn is_marked(&self, region: u64) -> bool {
        self.bits[(region / 64) as usize] & (1 << (region % 64)) != 0
    }

    /// Whether all of these blocks are in marked regions.
    pub(crate) fn has(&self, first: u64, count: u64) -> bool {
        (first / self.region_blocks..(first + count).div_ceil(self.region_blocks)).all(|region| self.is_marked(region))
    }

    pub(crate) fn is_all(&self) -> bool {
        self.marked_blocks() == self.blocks
    }

    /// Blocks in marked regions.
    pub(crate) fn marked_blocks(&self) -> u64 {
        let regions: u64 = self.bits.iter().map(|word| u64::from(word.count_ones())).sum();
        let last = regions_of(self.blocks, self.region_blocks) - 1;
        let beyond = (last + 1) * self.region_blocks - self.blocks;
        regions * self.region_blocks - if self.is_marked(last) { beyond } else { 0 }
    }

    /// The same from a block on.
    pub(crate) fn marked_from(&self, mut at: u64) -> u64 {
        let mut blocks = 0;
        while let Some((first, count)) = self.next_run(at, u64::MAX) {
            blocks += count;
            at = first + count;
        }
        blocks
    }

    /// The next marked blocks from one on, at most so many.
    pub(crate) fn next_run(&self, from: u64, most: u64) -> Option<(u64, u64)> {
        let end = regions_of(self.blocks, self.region_blocks);
        let region = (from / self.region_blocks..end).find(|region| self.is_marked(*region))?;
        let first = from.max(region * self.region_blocks);
        if first >= self.blocks {
            return None;
        }
        let mut until = region + 1;
        while until < end && until * self.region_blocks < first.saturating_add(most) && self.is_marked(until) {
            until += 1;
        }
        Some((first, most.min((until * self.region_blocks).min(self.blocks) - first)))
    }

    pub(crate) fn encode(&self, of: &MapOf) -> Vec<u8> {
        let regions = regions_of(self.blocks, self.region_blocks);
        let mut bytes = vec![0; map_bytes(regions)];
        let head = RawHead {
            magic: MAGIC,
            version: U32::new(FORMAT_VERSION),
            set: of.set.0,
            device: of.device.0,
            sequence: U64::new(of.sequence),
            blocks: U64::new(self.blocks),
            region_blocks: U64::new(self.region_blocks),
            from: U64::new(self.from),
            to: U64::new(self.to),
            ..RawHead::new_zeroed()
        };
        bytes[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        let words = self.bits.iter().flat_map(|word| word.to_le_bytes());
        for (byte, bits) in bytes[HEAD_BYTES..].iter_mut().zip(words) {
            *byte = bits;
        }
        let crc = crc_of(&bytes);
        bytes[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a slot.
    pub(crate) fn decode(slot: &[u8], of: &MapOf) -> Result<Regions, Fault> {
        let head = RawHead::read_from_prefix(slot);
        let Ok((head, _)) = head else {
            return Err(Fault::new("bytes of the map of regions", HEAD_BYTES, slot.len()));
        };
        if head.magic != MAGIC || head.version.get() != FORMAT_VERSION {
            return Err(Fault::new("magic of the map of regions", format!("{MAGIC:?}"), format!("{:?}", head.magic)));
        }
        let (blocks, region_blocks) = (head.blocks.get(), head.region_blocks.get());
        if blocks != of.blocks || blocks == 0 || blocks > BLOCKS_MAX {
            return Err(Fault::new("blocks of the map of regions", of.blocks, blocks));
        }
        if !region_blocks.is_power_of_two() || map_bytes(regions_of(blocks, region_blocks)) > slot.len() {
            return Err(Fault::new("size of a region", "a power of two that fits", region_blocks));
        }
        let regions = regions_of(blocks, region_blocks);
        let bytes = &slot[..map_bytes(regions)];
        let crc = crc_of(bytes);
        if head.crc.get() != crc {
            return Err(Fault::new("checksum of the map of regions", hex(head.crc.get()), hex(crc)));
        }
        let found = MapOf { set: Uuid(head.set), device: Uuid(head.device), sequence: head.sequence.get(), blocks };
        if found != *of {
            return Err(Fault::new("whose map of regions it is", format!("{of:?}"), format!("{found:?}")));
        }
        expect_zero("reserved bytes of the map of regions", &head.reserved)?;
        expect_zero("reserved bytes of the map of regions", &head.reserved_2)?;
        let mut bits = vec![0; regions.div_ceil(64) as usize];
        for (at, byte) in bytes[HEAD_BYTES..].iter().enumerate().filter(|(_, byte)| **byte != 0) {
            let last_bit = at as u64 * 8 + u64::from(7 - byte.leading_zeros());
            if last_bit >= regions {
                return Err(Fault::new("regions", regions, format!("one with number {last_bit}")));
            }
            bits[at / 8] |= u64::from(*byte) << (at % 8 * 8);
        }
        Ok(Regions { blocks, region_blocks, bits, from: head.from.get(), to: head.to.get() })
    }
}

fn crc_of(bytes: &[u8]) -> u64 {
    let mut crc = Crc64::new();
    crc.update(&bytes[..CRC_AT]);
    crc.update(&bytes[HEAD_BYTES..]);
    crc.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: u64) -> MapOf {
        MapOf { set: Uuid([1; 16]), device: Uuid([2; 16]), sequence: 3, blocks }
    }

    fn runs(regions: &Regions, most: u64) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        let mut at = 0;
        while let Some((first, count)) = regions.next_run(at, most) {
            runs.push((first, count));
            at = first + count;
        }
        runs
    }

    #[test]
    fn marked_regions_are_found_in_runs_and_the_last_one_is_short() {
        let mut regions = Regions::none(1000);
        assert!(regions.mark(15, 2) && !regions.mark(0, 32) && regions.mark(990, 10) && regions.mark(500, 1));
        assert_eq!(runs(&regions, 1 << 40), [(0, 32), (496, 16), (976, 24)]);
        assert_eq!(runs(&regions, 20), [(0, 20), (20, 12), (496, 16), (976, 20), (996, 4)]);
        assert_eq!(
            (regions.marked_blocks(), regions.is_all(), regions.has(30, 2), regions.has(31, 2)),
            (72, false, true, false)
        );
        let all = Regions::all(1000);
        assert_eq!((runs(&all, 1 << 40), all.is_all()), (vec![(0, 1000)], true));
    }

    #[test]
    fn maps_read_back_and_are_small_for_devices_of_any_size() {
        for blocks in [1, 256, 100_000, 1 << 28, (1 << 33) + 77, BLOCKS_MAX] {
            let mut regions = Regions::none(blocks);
            (regions.from, regions.to) = (7, 9);
            regions.mark(blocks - 1, 1);
            regions.mark(blocks / 3, 1);
            let mut bytes = regions.encode(&of(blocks));
            assert!(bytes.len() <= MAP_BLOCKS_MOST * BLOCK_BYTES);
            bytes.resize(MAP_SLOT_BLOCKS as usize * BLOCK_BYTES, 0xee);
            assert_eq!(Regions::decode(&bytes, &of(blocks)).unwrap(), regions, "{blocks}");
        }
    }

    #[test]
    fn the_bytes_are_golden() {
        // A change here is another version of the format.
        let mut regions = Regions::none(256 * 16);
        (regions.from, regions.to) = (7, 9);
        regions.mark(16 * 9, 1);
        let bytes = regions.encode(&of(256 * 16));
        assert_eq!((&bytes[..9], bytes.len()), (&b"HFFLREGN\x01"[..], 4096));
        assert_eq!([16, 32, 48, 57, 64, 72, 80].map(|at| bytes[at]), [1, 2, 3, 16, 16, 7, 9]);
        assert_eq!((bytes[128], bytes[129]), (0, 2));
        assert_eq!(bytes[120..128], crc_of(&bytes).to_le_bytes());
    }

    #[test]
    fn what_is_not_the_map_that_counts_is_told() {
        let good = Regions::all(1000).encode(&of(1000));
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(Regions::decode(&bytes, &of(1000)).is_err(), "byte {at}");
        }
        // Set, device, sequence, blocks.
        for other in [
            MapOf { set: Uuid([9; 16]), ..of(1000) },
            MapOf { device: Uuid([9; 16]), ..of(1000) },
            MapOf { sequence: 4, ..of(1000) },
            of(1001),
        ] {
            assert!(Regions::decode(&good, &other).is_err());
        }
        // Reserved bytes, the size of a region, a region that there is not, behind a good checksum.
        for (at, value) in [(12, 1), (64, 15), (64, 0), (71, 0xff), (88, 1), (128 + 7, 0xff), (4095, 1)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let crc = crc_of(&bytes);
            bytes[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
            assert!(Regions::decode(&bytes, &of(1000)).is_err(), "byte {at}");
        }
        assert!(Regions::decode(&good[..100], &of(1000)).is_err());
    }
}
