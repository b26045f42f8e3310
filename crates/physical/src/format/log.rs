//! Batches of the intent log.
//!
//! A batch is one run of blocks: *head* (header and entries), pages, second copies of metadata pages, and the head once
//! more. Entries begin behind the header and go on over the blocks of the head.

use super::{FORMAT_VERSION, Fault, hex};
use holdfast_integrity::crc64;
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
    reserved_2: [u8; 48],
    crc: U64,
}
const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, crc) == HEADER_BYTES - 8);

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
    /// The epoch before, if it was not yet a recovery point, and how many batches it had by then; else 0.
    pub(crate) previous_epoch: Epoch,
    pub(crate) previous_batches: u32,
    pub(crate) entries_crc: u64,
    /// [`LogHeader::link`] of the batch before in the epoch, 0 in the first.
    pub(crate) chain: u64,
}

impl LogHeader {
    /// Blocks of the whole batch.
    pub(crate) fn blocks(&self) -> u64 {
        2 * u64::from(self.head_blocks) + u64::from(self.page_blocks)
    }

    /// Block where the second copy of the head begins.
    pub(crate) fn copy_start(&self) -> u64 {
        self.start + u64::from(self.head_blocks) + u64::from(self.page_blocks)
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
            reserved_2: [0; 48],
            crc: U64::new(0),
        };
        raw.crc = U64::new(crc64(&raw.as_bytes()[..HEADER_BYTES - 8]));
        zerocopy::transmute!(raw)
    }

    /// Decodes the header at the start of the block at `address`; the flag says whether it is the second copy's.
    pub(crate) fn decode(bytes: &[u8; 4096], address: u64) -> Result<(LogHeader, bool), Fault> {
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
        if raw.version.get() != FORMAT_VERSION || raw.reserved.get() != 0 || raw.reserved_2 != [0; 48] {
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
            entries_crc: raw.entries_crc.get(),
            chain: raw.chain.get(),
        };
        let head_bytes = u64::from(header.head_blocks) * 4096;
        if head_bytes < HEADER_BYTES as u64 + u64::from(header.entries_bytes) || header.start >= 1 << 48 {
            return Err(Fault::new("log header lengths", "entries within the head", header.entries_bytes));
        }
        let copy = raw.copy.get() == 1;
        let own = if copy { header.copy_start() } else { header.start };
        if raw.copy.get() > 1 || own != address {
            return Err(Fault::new("log header's own place", address, own));
        }
        Ok((header, copy))
    }

    /// The head as stored: header, entries, zeros.
    pub(crate) fn head(&self, entries: &[u8], copy: bool) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.head_blocks as usize * 4096);
        head.extend(self.encode(copy));
        head.extend(entries);
        head.resize(self.head_blocks as usize * 4096, 0);
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            entries_bytes: 5000,
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
            }
        }
    }
}
