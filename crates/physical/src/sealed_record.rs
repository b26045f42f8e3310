//! A record that is in use, and the sums of the form that it has on the device.
//!
//! Records of the store's own objects stay in memory for as long as the store is open, those of changed objects until the epoch is a
//! recovery point: roots of trees, numbers of blocks, attributes. What becomes of them is taken over only from what is verified, and only
//! that is put into an object table.
//!
//! Invariant: `sums` are those of `record` encoded, as the last legal change left it. If they are others, somebody has written to the
//! record who must not. A change that leaves the record as it was takes nothing over.

use crate::form_sums::FormSums;
use crate::format::{RECORD_BYTES, Record};
use crate::meta_block::{MetadataProtection, Scribble};
use holdfast_object::Epoch;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) struct SealedRecord {
    record: Record,
    /// `None`: without protection.
    sums: Option<FormSums>,
    /// The form that it has on the device once more, of a record that is used for as long as the store is open.
    copy: Option<Box<[u8; RECORD_BYTES]>>,
    /// Of the clock, in seconds: when it was last verified.
    looked_s: AtomicU32,
}

impl SealedRecord {
    /// Of a record from where it was verified, or a new one.
    pub(crate) fn new(record: Record, protection: MetadataProtection) -> SealedRecord {
        let sums = protection.rolls().then(|| FormSums::of(&record.encode()));
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
        let copy = self.copy.as_ref().filter(|copy| Some(FormSums::of(&copy[..])) == self.sums);
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
        let Some(sums) = self.sums else { return Ok(self.record.encode()) };
        Scribble::unless_equal("bits of the record that it has no place for", 0, self.record.root.excess())?;
        let bytes = self.record.encode();
        sums.verify(&bytes, ["checksum of the record", "second sum of the record"])?;
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
