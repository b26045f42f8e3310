//! Pages of the meta area: the table of contents of the data area.

use super::{BLOCKS_MAX, FORMAT_VERSION, Fault, Uuid, expect_zero};
use holdfast_integrity::{FlipsMax, correct_flips, crc64};
use std::time::{Duration, SystemTime};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"HFFLPAGE";
const BARRIER: u32 = 1;
const PARTIAL: u32 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    flags: U32,
    log: [u8; 16],
    number: U64,
    previous: U64,
    generation: U64,
    data: U64,
    applied: U64,
    durable: U64,
    barrier: U64,
    time_ns: U64,
    entries: U16,
    reserved: [u8; 6],
    body: [u8; BODY_BYTES],
    crc: U64,
}
const _: () = assert!(size_of::<Raw>() == 4096);
const _: () = assert!(std::mem::offset_of!(Raw, number) == 32);
const _: () = assert!(std::mem::offset_of!(Raw, entries) == 96);
const _: () = assert!(std::mem::offset_of!(Raw, body) == 104);
const _: () = assert!(std::mem::offset_of!(Raw, crc) == 4088);

const BODY_BYTES: usize = 3984;
/// Where the checksum is.
const SUM_AT: usize = 4088;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawEntry {
    first: U64,
    data: U64,
    count: U16,
    kind: U16,
    reserved: [u8; 4],
}
const ENTRY_BYTES: usize = 24;
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);
const _: () = assert!(std::mem::offset_of!(RawEntry, kind) == 18);

/// Kinds of entries.
const DATA: u16 = 0;
const ZEROS: u16 = 1;
const ZEROS_KEPT: u16 = 2;

/// Most blocks of zeros that one page names: 16 MiB. With their checksums, what a page comes to has room in the smallest staging area, and
/// foreign bytes cannot ask for much memory.
pub(crate) const PAGE_ZEROS_MOST: u64 = 4096;

/// Most pages that so many entries take, one after the other, with so many blocks of data and of zeros.
pub(crate) fn pages_most(entries: u64, data_blocks: u64, zeros: u64) -> u64 {
    // A page has no room for an entry of one block when it is full, and may begin with the rest of one.
    let least = (BODY_BYTES - (ENTRY_BYTES + 8 - 1) - ENTRY_BYTES) as u64;
    (ENTRY_BYTES as u64 * entries + 8 * data_blocks).div_ceil(least) + zeros / PAGE_ZEROS_MOST + 1
}

/// Blocks of the largest entry: a page that has no other.
#[cfg(test)]
pub(crate) const ENTRY_BLOCKS_MAX: usize = (BODY_BYTES - ENTRY_BYTES) / 8;

/// What a page says beside its entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PageHead {
    /// The log device that it was written for.
    pub(crate) log: Uuid,
    /// Pages ever written before it.
    pub(crate) number: u64,
    /// Checksum of the page before.
    pub(crate) previous: u64,
    /// Generation of the set in which it was written.
    pub(crate) generation: u64,
    /// Position of its first block of data.
    pub(crate) data: u64,
    /// When it was written, pages before this one were durable on main ...
    pub(crate) applied: u64,
    /// ... and pages before this one were durable here, with their data.
    pub(crate) durable: u64,
    /// It is the last one before a flush.
    pub(crate) is_barrier: bool,
    /// There is no state behind it: it goes on in the next page.
    pub(crate) is_partial: bool,
    /// Number of the barrier that it is or comes before.
    pub(crate) barrier: u64,
    /// When it was written.
    pub(crate) time: SystemTime,
}

/// Consecutive blocks that were written together, or became zeros together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Address of the first block.
    pub(crate) first: u64,
    /// Position of its data; of zeros, which have none, of what follows.
    pub(crate) data: u64,
    /// What it has of its blocks.
    pub(crate) of: Of,
}

/// What an entry has of its blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    /// Checksum of each.
    Data(Vec<u64>),
    /// They are zeros, so many; with `keep`, without giving up their room.
    Zeros { count: u64, keep: bool },
}

impl PageHead {
    /// Pages before this one are durable, with their data. Of those that have no state in between none is there before all are.
    pub(crate) fn durable_pages(&self) -> u64 {
        if self.is_partial { self.number + 2 } else { self.durable }
    }
}

impl Entry {
    /// How many.
    pub(crate) fn blocks(&self) -> u64 {
        match &self.of {
            Of::Data(sums) => sums.len() as u64,
            Of::Zeros { count, .. } => *count,
        }
    }

    /// Checksums of those that have data.
    pub(crate) fn sums(&self) -> &[u64] {
        match &self.of {
            Of::Data(sums) => sums,
            Of::Zeros { .. } => &[],
        }
    }
}

/// A decoded page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    pub(crate) head: PageHead,
    pub(crate) entries: Vec<Entry>,
    /// Its own checksum, which the next page has as that of the page before.
    pub(crate) sum: u64,
}

/// Why a block of the meta area is not the page that was expected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Damaged {
    /// The checksum, which should be this one, does not hold.
    Sum(u64),
    /// Something else behind a good checksum.
    Other(Fault),
}

/// A page being filled.
pub(crate) struct PageBuilder {
    body: [u8; BODY_BYTES],
    used: usize,
    entries: u16,
    blocks: u64,
    zeros: u64,
    /// Where the last entry is, its kind, and the address after it.
    last: Option<(usize, u16, u64)>,
}

impl PageBuilder {
    pub(crate) fn new() -> PageBuilder {
        PageBuilder { body: [0; BODY_BYTES], used: 0, entries: 0, blocks: 0, zeros: 0, last: None }
    }

    /// Blocks of data that belong to it.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Appends blocks, as many as there is room for, and says how many: 0 if it is full. `data` is the position of the page's first
    /// block.
    pub(crate) fn append(&mut self, data: u64, first: u64, sums: &[u64]) -> usize {
        let continues = self.continues(DATA, first);
        let room = BODY_BYTES - self.used;
        let count = match continues {
            Some(_) => room / 8,
            None => room.saturating_sub(ENTRY_BYTES) / 8,
        };
        let count = count.min(sums.len());
        if count == 0 {
            return 0;
        }
        let at = continues.unwrap_or_else(|| self.begin_entry(DATA, data, first));
        self.lengthen(at, count as u16);
        for sum in &sums[..count] {
            self.body[self.used..self.used + 8].copy_from_slice(&sum.to_le_bytes());
            self.used += 8;
        }
        self.blocks += count as u64;
        self.last = Some((at, DATA, first + count as u64));
        count
    }

    /// The same of blocks that become zeros.
    pub(crate) fn append_zeros(&mut self, data: u64, first: u64, count: u64, keep: bool) -> u64 {
        let kind = if keep { ZEROS_KEPT } else { ZEROS };
        let continues = self.continues(kind, first);
        let has_room = continues.is_some() || BODY_BYTES - self.used >= ENTRY_BYTES;
        let count = if has_room { count.min(PAGE_ZEROS_MOST - self.zeros) } else { 0 };
        if count == 0 {
            return 0;
        }
        let at = continues.unwrap_or_else(|| self.begin_entry(kind, data, first));
        // Not more than a page's, so it fits.
        self.lengthen(at, count as u16);
        self.zeros += count;
        self.last = Some((at, kind, first + count));
        count
    }

    /// Where the last entry is, if a block at this address goes on with it.
    fn continues(&self, kind: u16, first: u64) -> Option<usize> {
        self.last.filter(|(_, of, next)| *of == kind && *next == first).map(|(at, ..)| at)
    }

    fn begin_entry(&mut self, kind: u16, data: u64, first: u64) -> usize {
        let entry = RawEntry {
            first: U64::new(first),
            data: U64::new(data + self.blocks),
            count: U16::new(0),
            kind: U16::new(kind),
            reserved: [0; 4],
        };
        let at = self.used;
        self.body[at..at + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
        self.used += ENTRY_BYTES;
        self.entries += 1;
        at
    }

    fn lengthen(&mut self, at: usize, count: u16) {
        let count_at = at + std::mem::offset_of!(RawEntry, count);
        let before = u16::from_le_bytes([self.body[count_at], self.body[count_at + 1]]);
        self.body[count_at..count_at + 2].copy_from_slice(&(before + count).to_le_bytes());
    }

    /// The page, and its checksum.
    pub(crate) fn finish(self, head: &PageHead) -> ([u8; 4096], u64) {
        let since = head.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut raw = Raw {
            magic: MAGIC,
            version: U32::new(FORMAT_VERSION),
            flags: U32::new(match head {
                PageHead { is_barrier: true, .. } => BARRIER,
                PageHead { is_partial: true, .. } => PARTIAL,
                _ => 0,
            }),
            log: head.log.0,
            number: U64::new(head.number),
            previous: U64::new(head.previous),
            generation: U64::new(head.generation),
            data: U64::new(head.data),
            applied: U64::new(head.applied),
            durable: U64::new(head.durable),
            barrier: U64::new(head.barrier),
            time_ns: U64::new(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
            entries: U16::new(self.entries),
            body: self.body,
            ..Raw::new_zeroed()
        };
        let sum = crc64(&raw.as_bytes()[..4088]);
        raw.crc = U64::new(sum);
        (zerocopy::transmute!(raw), sum)
    }
}

impl Page {
    /// Reads a block that may be a page of a set's device of `blocks` blocks.
    pub(crate) fn decode(bytes: &[u8; 4096], blocks: u64) -> Result<Page, Damaged> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        let sum = crc64(&bytes[..4088]);
        if raw.crc.get() != sum {
            return Err(Damaged::Sum(raw.crc.get()));
        }
        Self::judge(&raw, sum, blocks).map_err(Damaged::Other)
    }

    /// The same of a block in which one bit may have flipped, which is then flipped back.
    pub(crate) fn decode_mending(bytes: &mut [u8; 4096], blocks: u64) -> Result<Page, Damaged> {
        match Self::decode(bytes, blocks) {
            Err(Damaged::Sum(found)) => {
                let sum = crc64(&bytes[..SUM_AT]);
                if (sum ^ found).is_power_of_two() {
                    bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
                } else if correct_flips(&mut bytes[..SUM_AT], found, FlipsMax::One).is_none() {
                    return Err(Damaged::Sum(found));
                }
                Self::decode(bytes, blocks)
            }
            decoded => decoded,
        }
    }

    fn judge(raw: &Raw, sum: u64, blocks: u64) -> Result<Page, Fault> {
        if raw.magic != MAGIC {
            return Err(Fault::new("magic of the page", format!("{MAGIC:?}"), format!("{:?}", raw.magic)));
        }
        if raw.version.get() != FORMAT_VERSION {
            return Err(Fault::new("version of the page", FORMAT_VERSION, raw.version));
        }
        if raw.flags.get() > PARTIAL {
            return Err(Fault::new("flags of the page", "0 to 2", raw.flags));
        }
        expect_zero("reserved bytes of the page", &raw.reserved)?;
        let head = PageHead {
            log: Uuid(raw.log),
            number: raw.number.get(),
            previous: raw.previous.get(),
            generation: raw.generation.get(),
            data: raw.data.get(),
            applied: raw.applied.get(),
            durable: raw.durable.get(),
            is_barrier: raw.flags.get() == BARRIER,
            is_partial: raw.flags.get() == PARTIAL,
            barrier: raw.barrier.get(),
            time: SystemTime::UNIX_EPOCH + Duration::from_nanos(raw.time_ns.get()),
        };
        let in_order = head.applied <= head.durable && head.durable <= head.number;
        if !in_order || head.number >= 1 << 60 || head.data >= 1 << 60 || head.barrier >= 1 << 60 {
            let got = format!("{} of {}, {} of {}", head.number, head.data, head.applied, head.durable);
            return Err(Fault::new("points of the page", "in order", got));
        }
        let entries = Self::entries(raw, &head, blocks)?;
        Ok(Page { head, entries, sum })
    }

    fn entries(raw: &Raw, head: &PageHead, blocks: u64) -> Result<Vec<Entry>, Fault> {
        let mut entries = Vec::with_capacity(usize::from(raw.entries.get()).min(BODY_BYTES / ENTRY_BYTES));
        let mut rest = &raw.body[..];
        let (mut data, mut zeros) = (head.data, 0);
        for number in 0..raw.entries.get() {
            let Ok((entry, after)) = RawEntry::read_from_prefix(rest) else {
                return Err(Fault::new("entries of the page", "as many as have room", raw.entries));
            };
            let (count, kind) = (usize::from(entry.count.get()), entry.kind.get());
            if kind > ZEROS_KEPT {
                return Err(Fault::new("kind of an entry", "0 to 2", kind));
            }
            let data_blocks = if kind == DATA { count } else { 0 };
            zeros += (count - data_blocks) as u64;
            if count == 0 || after.len() < data_blocks * 8 || zeros > PAGE_ZEROS_MOST {
                return Err(Fault::new(
                    "blocks of an entry",
                    "1 to as many as have room",
                    format!("{count} in {number}"),
                ));
            }
            let first = entry.first.get();
            let fits = first.checked_add(count as u64).is_some_and(|end| end <= blocks.min(BLOCKS_MAX));
            if !fits || entry.data.get() != data {
                let got = format!("{count} from {first} at {}", entry.data);
                return Err(Fault::new("an entry", format!("one within {blocks} blocks at {data}"), got));
            }
            expect_zero("reserved bytes of an entry", &entry.reserved)?;
            let (sums, after) = after.split_at(data_blocks * 8);
            let (sums, _none) = sums.as_chunks::<8>();
            let of = match kind {
                DATA => Of::Data(sums.iter().map(|sum| u64::from_le_bytes(*sum)).collect()),
                _ => Of::Zeros { count: count as u64, keep: kind == ZEROS_KEPT },
            };
            entries.push(Entry { first, data, of });
            data += data_blocks as u64;
            rest = after;
        }
        expect_zero("unused bytes of the page", rest)?;
        Ok(entries)
    }

    /// Blocks of data that belong to it.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.entries.iter().map(|entry| entry.sums().len() as u64).sum()
    }

    /// Blocks that it names, those that became zeros as well.
    pub(crate) fn blocks(&self) -> u64 {
        self.entries.iter().map(Entry::blocks).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> PageHead {
        PageHead {
            log: Uuid([3; 16]),
            number: 9,
            previous: 8,
            generation: 7,
            data: 100,
            applied: 5,
            durable: 6,
            is_barrier: true,
            is_partial: false,
            barrier: 4,
            time: SystemTime::UNIX_EPOCH + Duration::from_nanos(3_000_000_001),
        }
    }

    fn page() -> ([u8; 4096], u64) {
        let mut builder = PageBuilder::new();
        assert_eq!(builder.append(100, 50, &[11, 12]), 2);
        assert_eq!(builder.append(100, 52, &[13]), 1);
        assert_eq!(builder.append_zeros(100, 30, 2, false), 2);
        assert_eq!(builder.append_zeros(100, 32, 3, false), 3);
        assert_eq!(builder.append_zeros(100, 35, 1, true), 1);
        assert_eq!(builder.append(100, 7, &[14]), 1);
        assert_eq!(builder.blocks(), 4);
        builder.finish(&head())
    }

    fn seal(bytes: &mut [u8; 4096]) {
        let crc = crc64(&bytes[..4088]);
        bytes[4088..].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn a_page_reads_back_and_neighbours_are_one_entry() {
        let (bytes, sum) = page();
        let page = Page::decode(&bytes, 53).unwrap();
        let zeros = |count, keep| Of::Zeros { count, keep };
        let all = [
            (50, 100, Of::Data(vec![11, 12, 13])),
            (30, 103, zeros(5, false)),
            (35, 103, zeros(1, true)),
            (7, 103, Of::Data(vec![14])),
        ];
        let entries = all.map(|(first, data, of)| Entry { first, data, of }).into();
        assert_eq!(page, Page { head: head(), entries, sum });
        assert_eq!((page.data_blocks(), page.blocks()), (4, 10));
        assert!(matches!(Page::decode(&bytes, 52), Err(Damaged::Other(_))));
    }

    #[test]
    fn the_bytes_are_golden() {
        // A change here is another version of the format.
        let (bytes, sum) = page();
        assert_eq!(&bytes[..16], b"HFFLPAGE\x01\0\0\0\x01\0\0\0");
        assert_eq!([16, 32, 40, 48, 56, 64, 72, 80].map(|at| bytes[at]), [3, 9, 8, 7, 100, 5, 6, 4]);
        assert_eq!(u64::from_le_bytes(bytes[88..96].try_into().unwrap()), 3_000_000_001);
        assert_eq!([96, 104, 112, 120, 122, 128, 136, 144].map(|at| bytes[at]), [4, 50, 100, 3, 0, 11, 12, 13]);
        assert_eq!([152, 160, 168, 170].map(|at| bytes[at]), [30, 103, 5, 1]);
        assert_eq!([176, 184, 192, 194].map(|at| bytes[at]), [35, 103, 1, 2]);
        assert_eq!([200, 208, 216, 218, 224, 232].map(|at| bytes[at]), [7, 103, 1, 0, 14, 0]);
        assert_eq!(sum, 0x8df4_1b82_1fe3_bee4);
    }

    #[test]
    fn a_page_takes_what_has_room_and_says_so() {
        let sums: Vec<u64> = (0..1000).collect();
        let mut builder = PageBuilder::new();
        assert_eq!(builder.append(0, 0, &sums), ENTRY_BLOCKS_MAX);
        assert_eq!(builder.append(0, 5000, &sums), 0);
        let (bytes, _) = builder.finish(&PageHead { data: 0, ..head() });
        assert_eq!(Page::decode(&bytes, 1000).unwrap().entries[0].sums(), &sums[..ENTRY_BLOCKS_MAX]);
        let mut builder = PageBuilder::new();
        let singles = (0..1000).take_while(|at| builder.append(0, at * 2, &[1]) == 1).count();
        assert_eq!(singles, BODY_BYTES / 32);
        let mut builder = PageBuilder::new();
        assert_eq!(builder.append_zeros(0, 0, 3000, false), 3000);
        assert_eq!(builder.append_zeros(0, 5000, 3000, true), PAGE_ZEROS_MOST - 3000);
        assert_eq!((builder.append_zeros(0, 0, 1, true), builder.append(0, 0, &[1])), (0, 1));
        let mut builder = PageBuilder::new();
        let runs = (0..1000).take_while(|at| builder.append_zeros(0, at * 2, 1, false) == 1).count();
        assert_eq!(runs, BODY_BYTES / ENTRY_BYTES);
    }

    #[test]
    fn every_flipped_byte_is_seen() {
        let (good, sum) = page();
        for at in 0..4088 {
            let mut bytes = good;
            bytes[at] ^= 1;
            assert_eq!(Page::decode(&bytes, 1000), Err(Damaged::Sum(sum)), "byte {at}");
        }
    }

    #[test]
    fn a_flipped_bit_is_flipped_back_wherever_it_is_and_two_are_not() {
        let (good, _) = page();
        for at in (0..4096).step_by(7).chain(SUM_AT..4096) {
            let mut bytes = good;
            bytes[at] ^= 1 << (at % 8);
            assert!(Page::decode_mending(&mut bytes, 53).is_ok() && bytes == good, "byte {at}");
            bytes[at] ^= 1 << (at % 8);
            bytes[(at + 100) % 4096] ^= 0x10;
            let damaged = bytes;
            assert!(Page::decode_mending(&mut bytes, 53).is_err() && bytes == damaged, "byte {at}");
        }
    }

    #[test]
    fn nonsense_behind_a_good_checksum_is_refused() {
        let (good, _) = page();
        let edits =
            [(0, 0), (8, 2), (12, 3), (39, 0xff), (63, 0xff), (64, 7), (72, 10), (96, 3), (97, 9), (98, 1), (110, 1)];
        let more = [(112, 9), (120, 0), (120, 9), (121, 9), (122, 1), (122, 3), (124, 1)];
        let zeros = [(168, 0), (169, 16), (170, 0), (170, 3), (184, 9), (217, 9), (232, 1), (4087, 1)];
        for (at, value) in edits.into_iter().chain(more).chain(zeros) {
            let mut bytes = good;
            bytes[at] = value;
            seal(&mut bytes);
            assert!(matches!(Page::decode(&bytes, 1000), Err(Damaged::Other(_))), "byte {at}");
        }
    }

    #[test]
    fn entries_take_no_more_pages_than_are_reckoned_with() {
        // Of each so many blocks, of data or of zeros, and of one that comes up short now and then.
        for (data, zeros) in
            [(1, 0), (2, 0), (125, 0), (500, 0), (0, 1), (0, 3000), (0, 9000), (1, 1), (3, 1), (124, 5000)]
        {
            let (mut builder, mut pages, mut at) = (PageBuilder::new(), 1, 0);
            let (mut entries, mut blocks, mut made) = (0, 0, 0);
            for round in 0..2000_u64 {
                let data = if round % 7 == 0 { data / 2 } else { data };
                for is_zeros in [false, true] {
                    let (count, mut done) = (if is_zeros { zeros } else { data }, 0);
                    entries += u64::from(count > 0);
                    (blocks, made) = if is_zeros { (blocks, made + count) } else { (blocks + count, made) };
                    while done < count {
                        let some = match is_zeros {
                            true => builder.append_zeros(0, at + done, count - done, false),
                            false => builder.append(0, at + done, &vec![7; (count - done) as usize]) as u64,
                        };
                        if some == 0 {
                            (builder, pages) = (PageBuilder::new(), pages + 1);
                        }
                        done += some;
                    }
                    // Not in a row with the next one.
                    at += count + 1;
                }
            }
            let most = pages_most(entries, blocks, made);
            assert!(pages <= most && most <= pages * 5 / 4 + 2, "{data} and {zeros}: {pages} pages, {most} at most");
        }
    }
}
