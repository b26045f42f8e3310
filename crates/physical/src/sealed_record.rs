//! A record that is in use, and the sums of the form that it has on the device.
//!
//! Records of the store's own objects stay in memory for as long as the store is open, those of changed objects until the epoch is a
//! recovery point: roots of trees, numbers of blocks, attributes. What becomes of them is taken over only from what is verified, and only
//! that is put into an object table.
//!
//! Invariant: `sums` are those of `record` encoded, as the last legal change left it. If they are others, somebody has written to the
//! record who must not. A change that leaves the record as it was takes nothing over.

use crate::format::{RECORD_BYTES, Record};
use crate::meta_block::{MetadataProtection, Scribble};
use holdfast_integrity::crc64;
use holdfast_object::Epoch;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

/// The CRC-64 of an encoded record, and a second sum, which sees what a CRC cannot.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sums(u64, u64);

/// Odd, and unlike each other: SplitMix64.
const WEIGHTS: [u64; RECORD_BYTES / 8] = {
    let mut weights = [0; RECORD_BYTES / 8];
    let mut at = 0;
    while at < weights.len() {
        let mut z = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        weights[at] = (z ^ (z >> 31)) | 1;
        at += 1;
    }
    weights
};

impl Sums {
    fn of(bytes: &[u8; RECORD_BYTES]) -> Sums {
        let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let second = words.zip(WEIGHTS).fold(0, |sum: u64, (word, weight)| sum.wrapping_add(word.wrapping_mul(weight)));
        Sums(crc64(bytes), second)
    }
}

pub(crate) struct SealedRecord {
    record: Record,
    /// `None`: without protection.
    sums: Option<Sums>,
    /// The form that it has on the device once more, of a record that is used for as long as the store is open.
    copy: Option<Box<[u8; RECORD_BYTES]>>,
    /// Of the clock, in seconds: when it was last verified.
    looked_s: AtomicU32,
}

impl SealedRecord {
    /// Of a record from where it was verified, or a new one.
    pub(crate) fn new(record: Record, protection: MetadataProtection) -> SealedRecord {
        let sums = protection.rolls().then(|| Sums::of(&record.encode()));
        SealedRecord { sums, record, copy: None, looked_s: AtomicU32::new(0) }
    }

    /// One that is used for as long as the store is open.
    pub(crate) fn own(record: Record, protection: MetadataProtection) -> SealedRecord {
        let copy = protection.rolls().then(|| Box::new(record.encode()));
        SealedRecord { copy, ..SealedRecord::new(record, protection) }
    }

    /// Puts it right from its copy, if that is good. Gives what has gone bad.
    ///
    /// `newest` and `blocks` as for [`Record::decode`].
    pub(crate) fn heal(&mut self, newest: Epoch, blocks: u64) -> Option<Scribble> {
        let scribble = self.bytes().err()?;
        let copy = self.copy.as_ref().filter(|copy| Some(Sums::of(copy)) == self.sums);
        if let Some(Ok(Some(record))) = copy.map(|copy| Record::decode(copy, newest, blocks, true)) {
            self.record = record;
        }
        Some(scribble)
    }

    /// The form that it has on the device, verified.
    ///
    /// # Errors
    /// Somebody has written to it who must not.
    pub(crate) fn bytes(&self) -> Result<[u8; RECORD_BYTES], Scribble> {
        let Some(Sums(sum, second)) = self.sums else { return Ok(self.record.encode()) };
        Scribble::unless_equal("bits of the record that it has no place for", 0, self.record.root.excess())?;
        let bytes = self.record.encode();
        let got = Sums::of(&bytes);
        Scribble::unless_equal("checksum of the record", sum, got.0)?;
        Scribble::unless_equal("second sum of the record", second, got.1)?;
        Ok(bytes)
    }

    /// Verifies it, unless somebody has in this second.
    ///
    /// # Errors
    /// As [`SealedRecord::bytes`].
    pub(crate) fn look(&self, now_s: u32) -> Result<(), Scribble> {
        if self.sums.is_some() && self.looked_s.load(Ordering::Relaxed) != now_s {
            self.bytes()?;
            self.looked_s.store(now_s, Ordering::Relaxed);
        }
        Ok(())
    }

    /// This one, which has just been made.
    pub(crate) fn seen(self, now_s: u32) -> SealedRecord {
        self.looked_s.store(now_s, Ordering::Relaxed);
        self
    }

    /// Puts what has become of it, after a look at what it was.
    ///
    /// # Errors
    /// As [`SealedRecord::bytes`].
    pub(crate) fn replace(&mut self, record: Record, now_s: u32) -> Result<(), Scribble> {
        if self.sums.is_none() {
            self.record = record;
        } else if record != self.record {
            self.bytes()?;
            let new = if self.copy.is_some() { SealedRecord::own } else { SealedRecord::new };
            *self = new(record, MetadataProtection::Rolling).seen(now_s);
        }
        Ok(())
    }
}

impl SealedRecord {
    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn scribble<R>(&mut self, write: impl FnOnce(&mut Record) -> R) -> R {
        write(&mut self.record)
    }
}

/// As it is in memory.
impl Deref for SealedRecord {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SystemKind;

    #[test]
    fn no_change_makes_a_scribble_right() {
        let record = Record::system(SystemKind::Bitmap, 7);
        let mut sealed = SealedRecord::new(record.clone(), MetadataProtection::Rolling);
        assert_eq!(sealed.bytes(), Ok(record.encode()));
        sealed.replace(Record { changed: 8, ..record.clone() }, 1).unwrap();
        sealed.look(1).unwrap();
        sealed.scribble(|record| record.levels = 3);
        sealed.look(1).unwrap();
        sealed.look(2).unwrap_err();
        let mut next = Record::clone(&sealed);
        sealed.replace(next.clone(), 1).unwrap();
        assert!(sealed.bytes().is_err(), "nothing was changed, and nothing taken over");
        next.changed = 9;
        sealed.replace(next, 1).unwrap_err();
        sealed.scribble(|record| record.levels = 0);
        assert_eq!((sealed.changed, sealed.look(2)), (8, Ok(())));
    }
}
