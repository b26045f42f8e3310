//! A map of regions: one bit for so many blocks each; and of regions of which a part has changed, which blocks that are, as far as there is
//! room for it. A block that nobody has written must not be taken for one that was: it may have been damaged since.

use super::{BLOCKS_MAX, FORMAT_VERSION, Fault, Uuid, expect_zero, hex};
use holdfast_integrity::Crc64;
use std::collections::BTreeMap;
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
/// What is known of parts of regions takes no more in memory than so many words, roughly: 2 MiB.
const PART_WORDS_MOST: usize = 1 << 18;
/// What a part takes beside its bits.
const PART_WORDS: usize = 8;
/// Blocks that are not marked, and are read nevertheless, if others on both sides of them are.
const GAP_BLOCKS: u64 = 15;

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
    parts: U64,
    reserved_2: [u8; 24],
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
    /// Of marked regions, those of which a part has changed only: a bit for each block.
    parts: BTreeMap<u64, Box<[u64]>>,
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
        Regions { blocks, region_blocks, bits: vec![0; words], parts: BTreeMap::new(), from: 0, to: 0 }
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

    /// Marks these blocks; if there is no room for the parts of so many regions, what they are in.
    pub(crate) fn mark(&mut self, first: u64, count: u64) {
        self.mark_as(first, count, true);
    }

    /// Marks of these blocks those that there is room to know one by one, and no others.
    pub(crate) fn mark_known(&mut self, first: u64, count: u64) {
        self.mark_as(first, count, false);
    }

    fn mark_as(&mut self, first: u64, count: u64, or_region: bool) {
        let end = first + count;
        for region in first / self.region_blocks..end.div_ceil(self.region_blocks) {
            let (start, until) = self.range_of(region);
            let is_whole = first <= start && until <= end;
            let is_part = self.parts.contains_key(&region) || (!self.is_marked(region) && self.has_room_for_part());
            if is_whole || is_part || or_region {
                self.bits[(region / 64) as usize] |= 1 << (region % 64);
            }
            if is_whole {
                self.parts.remove(&region);
            } else if is_part {
                self.mark_part(region, first.max(start) - start, end.min(until) - start);
            }
        }
    }

    /// Marks all of the regions that these blocks are in.
    pub(crate) fn mark_regions(&mut self, first: u64, count: u64) {
        let (from, _) = self.range_of(first / self.region_blocks);
        let until = (first + count).next_multiple_of(self.region_blocks).min(self.blocks);
        self.mark(from, until - from);
    }

    fn has_room_for_part(&self) -> bool {
        (self.parts.len() + 1) * (self.part_words() + PART_WORDS) <= PART_WORDS_MOST
    }

    fn part_words(&self) -> usize {
        self.region_blocks.div_ceil(64) as usize
    }

    fn mark_part(&mut self, region: u64, from: u64, until: u64) {
        let (words, (start, end)) = (self.part_words(), self.range_of(region));
        let part = self.parts.entry(region).or_insert_with(|| vec![0; words].into());
        for at in from..until {
            part[(at / 64) as usize] |= 1 << (at % 64);
        }
        if count_ones(part) == end - start {
            self.parts.remove(&region);
        }
    }

    /// The blocks of a region: the first, and the one behind.
    fn range_of(&self, region: u64) -> (u64, u64) {
        let start = region * self.region_blocks;
        (start, (start + self.region_blocks).min(self.blocks))
    }

    /// Marks what another map of the same device has marked, and takes its end if it is later.
    pub(crate) fn add(&mut self, other: &Regions) {
        self.add_as(other, true);
        self.to = self.to.max(other.to);
    }

    fn add_as(&mut self, other: &Regions, or_region: bool) {
        let mut at = 0;
        while let Some((first, count)) = other.next_run(at, u64::MAX) {
            self.mark_as(first, count, or_region);
            at = first + count;
        }
    }

    /// Of what is marked, what is known block by block: not whole regions, which may be so for lack of room.
    pub(crate) fn parts(&self) -> Regions {
        let mut known = Regions { bits: vec![0; self.bits.len()], ..self.clone() };
        for region in self.parts.keys() {
            known.bits[(region / 64) as usize] |= 1 << (region % 64);
        }
        known
    }

    /// The same, but whole regions where not all that is marked of them is in another map of the same device.
    pub(crate) fn with_parts_in(mut self, other: &Regions) -> Regions {
        let is_like_it = self.region_blocks == other.region_blocks;
        self.parts.retain(|region, part| is_like_it && other.has_part(*region, part));
        self
    }

    fn has_part(&self, region: u64, part: &[u64]) -> bool {
        let has_all = |own: &[u64]| part.iter().zip(own).all(|(theirs, own)| theirs & !own == 0);
        self.is_marked(region) && self.parts.get(&region).is_none_or(|own| has_all(own))
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

    /// Of what is marked, what there is room to know block by block for a device that has become as large as this.
    pub(crate) fn known_of_larger(&self, blocks: u64) -> Regions {
        let mut larger = Self::none(blocks);
        larger.add_as(self, false);
        larger
    }

    fn is_marked(&self, region: u64) -> bool {
        self.bits[(region / 64) as usize] & (1 << (region % 64)) != 0
    }

    /// Whether this block is marked. Of one behind the end nothing is.
    pub(crate) fn has_block(&self, at: u64) -> bool {
        let region = at / self.region_blocks;
        let has = |part: &[u64]| {
            let at = at % self.region_blocks;
            part[(at / 64) as usize] & 1 << (at % 64) != 0
        };
        at < self.blocks && self.is_marked(region) && self.parts.get(&region).is_none_or(|part| has(part))
    }

    /// Whether all of these blocks are marked.
    pub(crate) fn has(&self, first: u64, count: u64) -> bool {
        self.next_run(first, count).is_some_and(|run| run == (first, count))
    }

    pub(crate) fn is_all(&self) -> bool {
        self.marked_blocks() == self.blocks
    }

    /// Whether it is known of this block itself that it has changed, not only of what it is in.
    pub(crate) fn is_exact_at(&self, address: u64) -> bool {
        self.parts.contains_key(&(address / self.region_blocks))
    }

    /// Blocks that are marked.
    pub(crate) fn marked_blocks(&self) -> u64 {
        let regions: u64 = self.bits.iter().map(|word| u64::from(word.count_ones())).sum();
        let last = regions_of(self.blocks, self.region_blocks) - 1;
        let beyond = (last + 1) * self.region_blocks - self.blocks;
        let unmarked = self.parts.iter().map(|(region, part)| {
            let (start, end) = self.range_of(*region);
            end - start - count_ones(part)
        });
        let unmarked: u64 = unmarked.sum();
        regions * self.region_blocks - if self.is_marked(last) { beyond } else { 0 } - unmarked
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
        let (mut first, mut until) = (None, from);
        for region in from / self.region_blocks..end {
            if !self.is_marked(region) {
                match first {
                    None => continue,
                    Some(_) => break,
                }
            }
            let (start, behind) = self.range_of(region);
            let at = start.max(from);
            let begin = if first.is_some() { at } else { self.change_from(region, at, true) };
            let stop = self.change_from(region, begin, false);
            if begin == stop {
                match first {
                    None => continue,
                    Some(_) => break,
                }
            }
            let begun = *first.get_or_insert(begin);
            until = stop;
            if stop < behind || until - begun >= most {
                break;
            }
        }
        first.map(|first| (first, most.min(until - first)))
    }

    /// The first block of a marked region, from one on, that is marked, or is not; the one behind the region if there is none.
    fn change_from(&self, region: u64, from: u64, is_marked: bool) -> u64 {
        let (start, end) = self.range_of(region);
        let Some(part) = self.parts.get(&region) else { return if is_marked { from.min(end) } else { end } };
        let has = |at: &u64| part[((at - start) / 64) as usize] & 1 << ((at - start) % 64) != 0;
        (from..end).find(|at| has(at) == is_marked).unwrap_or(end)
    }

    /// The next marked blocks from one on that are read at once: what is between runs of them, near each other, is as well. At most so many
    /// blocks. Of the last one, the run may go on.
    pub(crate) fn next_runs(&self, from: u64, most: u64) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = self.next_run(from, most).into_iter().collect();
        while let (Some(&(begin, _)), Some(&(first, count))) = (runs.first(), runs.last()) {
            let (end, limit) = (first + count, begin + most);
            match self.next_run(end, limit.saturating_sub(end)) {
                Some((next, count)) if count > 0 && next - end <= GAP_BLOCKS && next < limit => {
                    runs.push((next, count.min(limit - next)));
                }
                _ => break,
            }
        }
        runs
    }

    /// Parts of regions come behind the bits; what has no room there counts as changed in the whole region.
    pub(crate) fn encode(&self, of: &MapOf) -> Vec<u8> {
        let regions = regions_of(self.blocks, self.region_blocks);
        let mut bytes = vec![0; map_bytes(regions)];
        let room = MAP_BLOCKS as usize * BLOCK_BYTES - bytes.len();
        let parts = self.parts.len().min(room / self.part_bytes());
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
            parts: U64::new(parts as u64),
            ..RawHead::new_zeroed()
        };
        bytes[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        let words = self.bits.iter().flat_map(|word| word.to_le_bytes());
        for (byte, bits) in bytes[HEAD_BYTES..].iter_mut().zip(words) {
            *byte = bits;
        }
        let part_bytes = self.region_blocks.div_ceil(8) as usize;
        for (region, part) in self.parts.iter().take(parts) {
            bytes.extend_from_slice(&(*region as u32).to_le_bytes());
            bytes.extend(part.iter().flat_map(|word| word.to_le_bytes()).take(part_bytes));
        }
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        let crc = crc_of(&bytes);
        bytes[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Bytes of a part: number of its region, and its bits.
    fn part_bytes(&self) -> usize {
        size_of::<u32>() + self.region_blocks.div_ceil(8) as usize
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
        let (parts_at, part_bytes) = (map_bytes(regions), region_blocks.div_ceil(8).saturating_add(4));
        let end = head.parts.get().checked_mul(part_bytes).and_then(|bytes| bytes.checked_add(parts_at as u64));
        let end = end.filter(|end| *end <= slot.len() as u64).map(|end| (end as usize).next_multiple_of(BLOCK_BYTES));
        let Some(bytes) = end.and_then(|end| slot.get(..end)) else {
            return Err(Fault::new("parts of regions", "as many as fit", head.parts));
        };
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
        for (at, byte) in bytes[HEAD_BYTES..parts_at].iter().enumerate().filter(|(_, byte)| **byte != 0) {
            let last_bit = at as u64 * 8 + u64::from(7 - byte.leading_zeros());
            if last_bit >= regions {
                return Err(Fault::new("regions", regions, format!("one with number {last_bit}")));
            }
            bits[at / 8] |= u64::from(*byte) << (at % 8 * 8);
        }
        let (from, to, parts) = (head.from.get(), head.to.get(), BTreeMap::new());
        let mut map = Regions { blocks, region_blocks, bits, parts, from, to };
        let (listed, rest) = bytes[parts_at..].split_at((head.parts.get() * part_bytes) as usize);
        for part in listed.chunks_exact(part_bytes as usize) {
            map.add_part(part)?;
        }
        expect_zero("what is behind the parts of regions", rest)?;
        Ok(map)
    }

    /// Takes a part as it is on the device: of a marked region behind those that there are, neither nothing of it nor all.
    fn add_part(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some((number, bits)) = bytes.split_first_chunk() else {
            return Err(Fault::new("bytes of a part of a region", self.part_bytes(), bytes.len()));
        };
        let region = u64::from(u32::from_le_bytes(*number));
        let is_next = self.parts.last_key_value().is_none_or(|(last, _)| *last < region);
        if !is_next || region >= regions_of(self.blocks, self.region_blocks) || !self.is_marked(region) {
            return Err(Fault::new("region of a part", "a marked one behind the one before", region));
        }
        let mut part = vec![0; self.part_words()].into_boxed_slice();
        for (at, byte) in bits.iter().enumerate() {
            part[at / 8] |= u64::from(*byte) << (at % 8 * 8);
        }
        let (start, end) = self.range_of(region);
        let highest = part.iter().rposition(|word| *word != 0).map(|at| at as u64 * 64 + u64::from(part[at].ilog2()));
        if highest.is_none_or(|at| at >= end - start) || count_ones(&part) == end - start {
            return Err(Fault::new("blocks of a part", format!("some of {}", end - start), count_ones(&part)));
        }
        self.parts.insert(region, part);
        Ok(())
    }
}

fn count_ones(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
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
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;

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
    fn marked_blocks_are_found_in_runs_and_the_last_region_is_short() {
        let mut regions = Regions::none(1000);
        for (first, count) in [(15, 2), (0, 16), (17, 3), (990, 10), (500, 1), (985, 1)] {
            regions.mark(first, count);
        }
        assert_eq!(runs(&regions, 1 << 40), [(0, 20), (500, 1), (985, 1), (990, 10)]);
        assert_eq!(runs(&regions, 7), [(0, 7), (7, 7), (14, 6), (500, 1), (985, 1), (990, 7), (997, 3)]);
        assert_eq!((regions.marked_blocks(), regions.marked_from(501), regions.is_all()), (32, 11, false));
        assert_eq!(
            [(10, 10), (19, 2), (500, 1), (501, 1)].map(|(at, count)| regions.has(at, count)),
            [true, false, true, false]
        );
        assert_eq!([0, 16, 500, 600].map(|at| regions.is_exact_at(at)), [false, true, true, false]);
        assert_eq!(regions.next_runs(0, 256), [(0, 20)]);
        assert_eq!(regions.next_runs(501, 256), [(985, 1), (990, 10)]);
        assert_eq!(regions.next_runs(501, 7), [(985, 1), (990, 2)]);
        regions.mark_regions(500, 1);
        regions.mark_regions(985, 1);
        assert_eq!(runs(&regions, 1 << 40), [(0, 20), (496, 16), (976, 24)]);
        assert!(!regions.is_exact_at(500) && regions.is_exact_at(16) && !regions.is_exact_at(999));
        let all = Regions::all(1000);
        assert_eq!((runs(&all, 1 << 40), all.is_all()), (vec![(0, 1000)], true));
    }

    #[test]
    fn marks_at_random_are_found_as_they_were_made_and_read_back() {
        let mut rng = Pcg64Mcg::seed_from_u64(7);
        for blocks in [1, 15, 16, 17, 999, 5000] {
            let (mut regions, mut expected) = (Regions::none(blocks), vec![false; blocks as usize]);
            for _ in 0..rng.random_range(0..60) {
                let first = rng.random_range(0..blocks);
                let count = rng.random_range(1..=(blocks - first).min(40));
                regions.mark(first, count);
                expected[first as usize..(first + count) as usize].fill(true);
            }
            let mut found = vec![false; blocks as usize];
            for (first, count) in runs(&regions, rng.random_range(1..100)) {
                found[first as usize..(first + count) as usize].fill(true);
            }
            let marked = expected.iter().filter(|is| **is).count() as u64;
            assert!(found == expected && regions.marked_blocks() == marked, "{blocks} blocks");
            let (mut at, mut in_spans) = (0, 0);
            while let Some((last, count)) = regions.next_runs(at, 64).last() {
                in_spans += regions.next_runs(at, 64).iter().map(|(_, count)| count).sum::<u64>();
                at = last + count;
            }
            assert_eq!(in_spans, marked);
            let bytes = regions.encode(&of(blocks));
            assert_eq!(Regions::decode(&bytes, &of(blocks)).unwrap(), regions);
        }
    }

    #[test]
    fn what_is_known_block_by_block_is_told_from_whole_regions() {
        let [mut regions, mut own] = [Regions::none(1000), Regions::none(1000)];
        for (first, count) in [(3, 2), (500, 100), (990, 1)] {
            regions.mark(first, count);
        }
        assert_eq!(runs(&regions.parts(), 1 << 40), [(3, 2), (500, 12), (592, 8), (990, 1)]);
        own.mark(0, 16);
        own.mark(501, 99);
        let told = regions.clone().with_parts_in(&own);
        assert_eq!(runs(&told, 1 << 40), [(3, 2), (496, 104), (976, 16)]);
        assert_eq!(regions.clone().with_parts_in(&Regions::none(1000)).parts(), Regions::none(1000));
        for at in [0, 2, 3, 4, 5, 499, 500, 511, 512, 599, 600, 990, 991, 999, 1000, 5000] {
            assert_eq!(regions.has_block(at), at < 1000 && regions.has(at, 1), "{at}");
        }
        // In a map of larger regions the whole ones are parts.
        let of_larger = own.known_of_larger(1 << 23);
        assert!(of_larger.region_blocks == 32 && of_larger == own.of_larger(1 << 23).about(0, 0));
        assert_eq!(runs(&of_larger.parts(), 1 << 40), [(0, 16), (501, 11), (576, 24)]);
    }

    #[test]
    fn maps_read_back_and_are_small_for_devices_of_any_size() {
        for blocks in [1, 256, 100_000, 1 << 28, (1 << 33) + 77, BLOCKS_MAX] {
            let mut regions = Regions::none(blocks);
            (regions.from, regions.to) = (7, 9);
            regions.mark_regions(blocks - 1, 1);
            regions.mark_regions(blocks / 3, 1);
            let mut bytes = regions.encode(&of(blocks));
            assert!(bytes.len() <= MAP_BLOCKS_MOST * BLOCK_BYTES);
            bytes.resize(MAP_SLOT_BLOCKS as usize * BLOCK_BYTES, 0xee);
            assert_eq!(Regions::decode(&bytes, &of(blocks)).unwrap(), regions, "{blocks}");
        }
    }

    #[test]
    fn parts_that_have_no_room_are_whole_regions() {
        let blocks = 1 << 30;
        let mut regions = Regions::none(blocks);
        let (size, many) = (regions.region_blocks, regions.bits.len() as u64 * 60);
        let mut own = regions.clone();
        for region in 0..many {
            regions.mark(region * size, 1);
            own.mark_known(region * size, 1);
        }
        let exact = (0..many).filter(|region| regions.is_exact_at(region * size)).count();
        assert!(exact > 1000 && exact * (regions.part_words() + PART_WORDS) <= PART_WORDS_MOST, "{exact}");
        // Whole ones, and more of those that are known.
        for known in [&mut regions, &mut own] {
            known.mark_known(1, 1);
            known.mark_known(many * size, size);
        }
        assert!(own.marked_blocks() == exact as u64 + 1 + size && own.known_of_larger(blocks) == own);
        assert!(own.parts() == regions.parts() && !own.has_block((many - 1) * size) && own.has_block(1));
        let bytes = regions.encode(&of(blocks));
        assert!(bytes.len() <= MAP_BLOCKS as usize * BLOCK_BYTES);
        let back = Regions::decode(&bytes, &of(blocks)).unwrap();
        assert!((100..regions.parts.len()).contains(&back.parts.len()) && back.bits == regions.bits);
        assert!((0..many).all(|region| back.has(region * size, 1)));
        assert!(back.parts.iter().all(|(region, part)| regions.parts.get(region) == Some(part)));
    }

    #[test]
    fn the_bytes_are_golden() {
        // A change here is another version of the format.
        let mut regions = Regions::none(256 * 16);
        (regions.from, regions.to) = (7, 9);
        regions.mark_regions(16 * 9, 1);
        let bytes = regions.encode(&of(256 * 16));
        assert_eq!((&bytes[..9], bytes.len()), (&b"HFFLREGN\x01"[..], 4096));
        assert_eq!([16, 32, 48, 57, 64, 72, 80, 88].map(|at| bytes[at]), [1, 2, 3, 16, 16, 7, 9, 0]);
        assert_eq!((bytes[128], bytes[129]), (0, 2));
        assert_eq!(bytes[120..128], crc_of(&bytes).to_le_bytes());
        regions.mark(16 * 11 + 3, 1);
        regions.mark(16 * 12 + 8, 2);
        let bytes = regions.encode(&of(256 * 16));
        assert_eq!((bytes.len(), bytes[88], bytes[129]), (8192, 2, 2 + 8 + 16));
        assert_eq!(bytes[4096..4110], [11, 0, 0, 0, 8, 0, 12, 0, 0, 0, 0, 3, 0, 0]);
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
        for (at, value) in
            [(12, 1), (64, 15), (64, 0), (71, 0xff), (88, 1), (95, 0xff), (96, 1), (128 + 7, 0xff), (4095, 1)]
        {
            let mut bytes = good.clone();
            bytes[at] = value;
            let crc = crc_of(&bytes);
            bytes[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
            assert!(Regions::decode(&bytes, &of(1000)).is_err(), "byte {at}");
        }
        assert!(Regions::decode(&good[..100], &of(1000)).is_err());
        // A part: of a region that is not marked, or is not there, out of order; of nothing, of everything, of what is behind the end.
        let mut regions = Regions::none(1000);
        regions.mark(33, 1);
        regions.mark(993, 1);
        let good = regions.encode(&of(1000));
        assert_eq!(Regions::decode(&good, &of(1000)).unwrap(), regions);
        for (at, values) in [
            (0, [3, 0]),
            (2, [1, 0]),
            (0, [62, 0]),
            (4, [0, 0]),
            (4, [0xff; 2]),
            (10, [0xff, 0]),
            (11, [1, 0]),
            (12, [1, 0]),
        ] {
            let mut bytes = good.clone();
            bytes[4096 + at..][..2].copy_from_slice(&values);
            let crc = crc_of(&bytes);
            bytes[CRC_AT..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
            assert!(Regions::decode(&bytes, &of(1000)).is_err(), "byte {at} of a part");
        }
    }
}
