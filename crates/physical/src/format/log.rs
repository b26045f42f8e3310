//! Batches of the intent log.
//!
//! A batch is one run of blocks: *head* (header, entries, sector sums), pages, second copies of metadata pages, and the head
//! once more. Entries begin behind the header and go on over the blocks of the head; sector sums follow them. A batch without
//! entries is a *seal*: it was written after the flush of the batch before, so it proves that this had been acknowledged.
//!
//! A power cut leaves each sector of 512 bytes with its old contents or its new ones. The CRC-32C of each sector of each
//! page, and of what the page's block held before, tell a page that was torn from one that was damaged.

use super::{FORMAT_VERSION, Fault, hex};
use holdfast_integrity::{FlipsMax, correct_flips, crc32c, crc64};
use holdfast_object::Epoch;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(crate) const LOG_MAGIC: [u8; 8] = *b"HFINTENT";
/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 160;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    copy: U32,
    store: [u8; 16],
    start: U64,
    base: U64,
    epoch: U64,
    sequence: U32,
    domain: U16,
    reserved: U16,
    head_blocks: U32,
    page_blocks: U32,
    entries_bytes: U32,
    previous_batches: U32,
    previous_epoch: U64,
    entries_crc: U64,
    chain: U64,
    sums_bytes: U32,
    reserved_2: [u8; 44],
    crc: U64,
}
const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, crc) == HEADER_BYTES - 8);

/// CRC-32C of each sector of a block.
pub(crate) type SectorSums = [u32; SECTORS];
/// Sectors of 512 bytes in a block.
const SECTORS: usize = 8;
/// What a power cut leaves old or new as a whole.
pub(crate) const SECTOR_BYTES: usize = 4096 / SECTORS;
/// Of one block, as stored.
const SUMS_BYTES: usize = 4 * SECTORS;

/// The sector sums of a block.
pub(crate) fn sector_sums(block: &[u8; 4096]) -> SectorSums {
    let mut sums = [0; SECTORS];
    for (sum, sector) in sums.iter_mut().zip(block.as_chunks::<SECTOR_BYTES>().0) {
        *sum = crc32c(sector);
    }
    sums
}

/// Appends sector sums: of the pages, and of what the blocks of pages held before, if that is known of all of them.
pub(crate) fn encode_sums(out: &mut Vec<u8>, new: &[SectorSums], old: Option<&[SectorSums]>) {
    let sums = new.iter().chain(old.unwrap_or_default()).flatten();
    sums.for_each(|sum| out.extend(sum.to_le_bytes()));
}

/// Decodes the sector sums of a batch with so many pages and blocks of pages.
pub(crate) fn decode_sums(
    bytes: &[u8],
    pages: usize,
    blocks: usize,
) -> Result<(Vec<SectorSums>, Option<Vec<SectorSums>>), Fault> {
    let (chunks, rest) = bytes.as_chunks::<SUMS_BYTES>();
    let has_old = chunks.len() != pages;
    let expected = if has_old { pages.saturating_add(blocks) } else { pages };
    if chunks.len() != expected || !rest.is_empty() {
        return Err(Fault::new("sector sums", format!("of {pages} pages in {blocks} blocks"), bytes.len()));
    }
    let decode = |bytes: &[u8; SUMS_BYTES]| {
        let mut sums = [0; SECTORS];
        for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *sum = u32::from_le_bytes(*bytes);
        }
        sums
    };
    let all: Vec<SectorSums> = chunks.iter().map(decode).collect();
    let (new, old) = all.split_at(pages);
    Ok((new.to_vec(), has_old.then(|| old.to_vec())))
}

/// Header of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogHeader {
    pub(crate) store: [u8; 16],
    /// Block where the batch begins.
    pub(crate) start: u64,
    /// Last recovery point when the batch was appended.
    pub(crate) base: Epoch,
    /// The epoch that was open.
    pub(crate) epoch: Epoch,
    /// Number of the batch in its epoch, from 0.
    pub(crate) sequence: u32,
    pub(crate) domain: u16,
    pub(crate) head_blocks: u32,
    /// Blocks of pages, with second copies.
    pub(crate) page_blocks: u32,
    pub(crate) entries_bytes: u32,
    /// The epoch before, if it was not yet a recovery point, and how many batches it had by then, without a seal at their end; else
    /// 0.
    pub(crate) previous_epoch: Epoch,
    pub(crate) previous_batches: u32,
    /// Bytes of sector sums behind the entries.
    pub(crate) sums_bytes: u32,
    /// Of entries and sector sums.
    pub(crate) entries_crc: u64,
    /// [`LogHeader::link`] of the batch before in the epoch, 0 in the first.
    pub(crate) chain: u64,
}

impl LogHeader {
    /// Of [`LogHeader::words`].
    pub(crate) const WORDS: usize = 12;

    /// All that it says, in words.
    pub(crate) fn words(&self) -> [u64; LogHeader::WORDS] {
        let LogHeader { store, start, base, epoch, sequence, domain, head_blocks, page_blocks, .. } = *self;
        let LogHeader { entries_bytes, previous_epoch, previous_batches, sums_bytes, entries_crc, chain, .. } = *self;
        let two = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let [low, high]: [u64; 2] = zerocopy::transmute!(store);
        let (counts, lengths) = (two(head_blocks, page_blocks), two(entries_bytes, sums_bytes));
        let number = two(sequence, domain.into());
        [
            low,
            high,
            start,
            base,
            epoch,
            number,
            counts,
            lengths,
            previous_epoch,
            previous_batches.into(),
            entries_crc,
            chain,
        ]
    }

    /// Blocks of the whole batch.
    pub(crate) fn blocks(&self) -> u64 {
        2 * u64::from(self.head_blocks) + u64::from(self.page_blocks)
    }

    /// Block where the second copy of the head begins.
    pub(crate) fn copy_start(&self) -> u64 {
        self.start + u64::from(self.head_blocks) + u64::from(self.page_blocks)
    }

    /// Bytes of entries and sector sums.
    pub(crate) fn body_bytes(&self) -> u64 {
        u64::from(self.entries_bytes) + u64::from(self.sums_bytes)
    }

    /// The header of the seal behind this batch. It follows from the batch alone, so that a seal which is gone can be told from a
    /// batch which is gone, by what the next one refers to.
    pub(crate) fn seal(&self) -> LogHeader {
        LogHeader {
            start: self.start + self.blocks(),
            sequence: self.sequence.wrapping_add(1),
            head_blocks: 1,
            page_blocks: 0,
            entries_bytes: 0,
            sums_bytes: 0,
            entries_crc: crc64(&[]),
            chain: self.link(),
            ..*self
        }
    }

    /// It comes right behind this one.
    pub(crate) fn follows(&self, before: &LogHeader) -> bool {
        self.epoch == before.epoch
            && self.sequence == before.sequence.wrapping_add(1)
            && self.start == before.start + before.blocks()
            && self.chain == before.link()
    }

    /// There is nothing in it: it is a seal.
    pub(crate) fn is_empty(&self) -> bool {
        self.page_blocks == 0 && self.entries_bytes == 0
    }

    /// By what the next batch refers to this one.
    pub(crate) fn link(&self) -> u64 {
        crc64(&self.encode(false)[..HEADER_BYTES - 8])
    }

    pub(crate) fn encode(&self, copy: bool) -> [u8; HEADER_BYTES] {
        let mut raw = Raw {
            magic: LOG_MAGIC,
            version: U32::new(FORMAT_VERSION),
            copy: U32::new(u32::from(copy)),
            store: self.store,
            start: U64::new(self.start),
            base: U64::new(self.base),
            epoch: U64::new(self.epoch),
            sequence: U32::new(self.sequence),
            domain: U16::new(self.domain),
            reserved: U16::new(0),
            head_blocks: U32::new(self.head_blocks),
            page_blocks: U32::new(self.page_blocks),
            entries_bytes: U32::new(self.entries_bytes),
            previous_batches: U32::new(self.previous_batches),
            previous_epoch: U64::new(self.previous_epoch),
            entries_crc: U64::new(self.entries_crc),
            chain: U64::new(self.chain),
            sums_bytes: U32::new(self.sums_bytes),
            reserved_2: [0; 44],
            crc: U64::new(0),
        };
        raw.crc = U64::new(crc64(&raw.as_bytes()[..HEADER_BYTES - 8]));
        zerocopy::transmute!(raw)
    }

    /// Decodes the header at the start of the block at `address`; the flag says whether it is the second copy's.
    pub(crate) fn decode(bytes: &[u8; 4096], address: u64) -> Result<(LogHeader, bool), Fault> {
        let (header, copy) = LogHeader::decode_anywhere(bytes)?;
        let own = header.own_place(copy);
        if own != address {
            return Err(Fault::new("log header's own place", address, own));
        }
        Ok((header, copy))
    }

    /// Whether a block begins as a header does, but for two bits at most.
    pub(crate) fn may_be_in(bytes: &[u8; 4096]) -> bool {
        bytes.iter().zip(LOG_MAGIC).map(|(is, should)| (is ^ should).count_ones()).sum::<u32>() <= 2
    }

    /// As [`LogHeader::decode`], also if one or two bits of the header are flipped.
    pub(crate) fn decode_flipped(bytes: &[u8; 4096], address: u64) -> Result<(LogHeader, bool), Fault> {
        let outcome = LogHeader::decode(bytes, address);
        if outcome.is_ok() || !LogHeader::may_be_in(bytes) {
            return outcome;
        }
        let mut mended = *bytes;
        let Some((head, _)) = mended.split_first_chunk_mut::<HEADER_BYTES>() else { return outcome };
        let Some((body, stored)) = head.split_last_chunk_mut::<8>() else { return outcome };
        let crc = u64::from_le_bytes(*stored);
        if (crc64(body) ^ crc).count_ones() <= 2 {
            *stored = crc64(body).to_le_bytes();
        } else if correct_flips(body, crc, FlipsMax::Two).is_none() {
            return outcome;
        }
        LogHeader::decode(&mended, address).or(outcome)
    }

    /// Where the copy of a head is that says of itself that it is this one.
    pub(crate) fn own_place(&self, copy: bool) -> u64 {
        if copy { self.copy_start() } else { self.start }
    }

    /// Decodes a header wherever it was found: it may belong elsewhere.
    pub(crate) fn decode_anywhere(bytes: &[u8; 4096]) -> Result<(LogHeader, bool), Fault> {
        let Some((head, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Fault::new("log header", HEADER_BYTES, 0));
        };
        let raw: Raw = zerocopy::transmute!(*head);
        if raw.magic != LOG_MAGIC {
            return Err(Fault::new("log header magic", "HFINTENT", String::from_utf8_lossy(&raw.magic)));
        }
        let crc = crc64(&head[..HEADER_BYTES - 8]);
        if raw.crc.get() != crc {
            return Err(Fault::new("log header checksum", hex(raw.crc.get()), hex(crc)));
        }
        if raw.version.get() != FORMAT_VERSION || raw.reserved.get() != 0 || raw.reserved_2 != [0; 44] {
            return Err(Fault::new("log header version", FORMAT_VERSION, raw.version));
        }
        let header = LogHeader {
            store: raw.store,
            start: raw.start.get(),
            base: raw.base.get(),
            epoch: raw.epoch.get(),
            sequence: raw.sequence.get(),
            domain: raw.domain.get(),
            head_blocks: raw.head_blocks.get(),
            page_blocks: raw.page_blocks.get(),
            entries_bytes: raw.entries_bytes.get(),
            previous_epoch: raw.previous_epoch.get(),
            previous_batches: raw.previous_batches.get(),
            sums_bytes: raw.sums_bytes.get(),
            entries_crc: raw.entries_crc.get(),
            chain: raw.chain.get(),
        };
        let head_bytes = u64::from(header.head_blocks) * 4096;
        if head_bytes < HEADER_BYTES as u64 + header.body_bytes() || header.start >= 1 << 48 {
            return Err(Fault::new("log header lengths", "entries within the head", header.entries_bytes));
        }
        match raw.copy.get() {
            copy @ (0 | 1) => Ok((header, copy == 1)),
            copy => Err(Fault::new("log header's copy", "0 or 1", copy)),
        }
    }

    /// The head as stored: header, entries and sector sums, zeros.
    pub(crate) fn head(&self, body: &[u8], copy: bool) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.head_blocks as usize * 4096);
        head.extend(self.encode(copy));
        head.extend(body);
        head.resize(self.head_blocks as usize * 4096, 0);
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_sums_round_trip() {
        let mut block = [7; 4096];
        let before = sector_sums(&block);
        block[512] ^= 1;
        let after = sector_sums(&block);
        assert_eq!((0..SECTORS).filter(|&at| before[at] != after[at]).collect::<Vec<_>>(), [1]);
        for old in [None, Some(&[after, before, after][..])] {
            let mut bytes = Vec::new();
            encode_sums(&mut bytes, &[before, after], old);
            assert_eq!(decode_sums(&bytes, 2, 3).unwrap(), (vec![before, after], old.map(<[_]>::to_vec)));
            assert!(decode_sums(&bytes[1..], 2, 3).is_err() && decode_sums(&bytes, 3, 4).is_err());
        }
        assert_eq!(decode_sums(&[], 0, 0).unwrap(), (vec![], None));
    }

    #[test]
    fn round_trip_at_its_own_place_only() {
        let header = LogHeader {
            store: [7; 16],
            start: 40,
            base: 1,
            epoch: 2,
            sequence: 3,
            domain: 1,
            head_blocks: 2,
            page_blocks: 5,
            entries_bytes: 4900,
            sums_bytes: 100,
            previous_epoch: 0,
            previous_batches: 0,
            entries_crc: 9,
            chain: 8,
        };
        for (copy, place) in [(false, 40), (true, 47)] {
            let head: [u8; 4096] = *header.head(&[1; 5000], copy).first_chunk().unwrap();
            assert_eq!(LogHeader::decode(&head, place).unwrap(), (header, copy));
            assert!(LogHeader::decode(&head, place + 1).is_err());
            for at in 0..HEADER_BYTES {
                let mut bad = head;
                bad[at] ^= 1;
                assert!(LogHeader::decode(&bad, place).is_err(), "byte {at}");
                assert_eq!(LogHeader::decode_flipped(&bad, place).unwrap(), (header, copy), "byte {at}");
                assert!(LogHeader::decode_flipped(&bad, place + 1).is_err(), "byte {at}");
                bad[at] ^= 0xf0;
                assert!(LogHeader::decode_flipped(&bad, place).is_err(), "byte {at}");
            }
        }
    }
}
