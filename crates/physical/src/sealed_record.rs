//! A record that is in use, and the checksum of the form that it has on the device.
//!
//! Records of the store's own objects stay in memory for as long as the store is open, those of changed objects until the epoch is a
//! recovery point: roots of trees, numbers of blocks, attributes. What becomes of them is taken over only from what is verified, and only
//! that is put into an object table.
//!
//! Invariant: `sum` is that of `record` encoded, as the last legal change left it. If it is another one, somebody has written to the
//! record who must not. A change that leaves the record as it was takes nothing over.

use crate::format::{RECORD_BYTES, Record};
use crate::meta_block::{MetadataProtection, Scribble};
use holdfast_integrity::crc64;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) struct SealedRecord {
    record: Record,
    /// `None`: without protection.
    sum: Option<u64>,
    /// Of the clock, in seconds: when it was last verified.
    looked_s: AtomicU32,
}

impl SealedRecord {
    /// Of a record from where it was verified, or a new one.
    pub(crate) fn new(record: Record, protection: MetadataProtection) -> SealedRecord {
        let sum = protection.rolls().then(|| crc64(&record.encode()));
        SealedRecord { sum, record, looked_s: AtomicU32::new(0) }
    }

    /// The form that it has on the device, verified.
    ///
    /// # Errors
    /// Somebody has written to it who must not.
    pub(crate) fn bytes(&self) -> Result<[u8; RECORD_BYTES], Scribble> {
        let bytes = self.record.encode();
        if let Some(sum) = self.sum {
            Scribble::unless_equal("checksum of the record", sum, crc64(&bytes))?;
        }
        Ok(bytes)
    }

    /// Verifies it, unless somebody has in this second.
    ///
    /// # Errors
    /// As [`SealedRecord::bytes`].
    pub(crate) fn look(&self, now_s: u32) -> Result<(), Scribble> {
        if self.sum.is_some() && self.looked_s.load(Ordering::Relaxed) != now_s {
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
        if self.sum.is_none() {
            self.record = record;
        } else if record != self.record {
            self.bytes()?;
            *self = SealedRecord::new(record, MetadataProtection::Rolling).seen(now_s);
        }
        Ok(())
    }
}

impl SealedRecord {
    /// What nobody may do: see [`crate::scribble`].
    pub(crate) fn scribble(&mut self, write: impl FnOnce(&mut Record)) {
        write(&mut self.record);
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
