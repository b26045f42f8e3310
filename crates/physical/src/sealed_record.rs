//! A record that is in use, and the sums of the form that it has on the device.
//!
//! Records of the store's own objects stay in memory for as long as the store is open, those of changed objects until the epoch is a
//! recovery point: roots of trees, numbers of blocks, attributes. What becomes of them is taken over only from what is verified, and only
//! that is put into an object table.
//!
//! Invariant: `sums` are those of `record` encoded, as the last legal change left it. If they are others, somebody has written to the
//! record who must not. A change that leaves the record as it was takes nothing over.

use crate::difference::in_fields;
use crate::form_sums::FormSums;
use crate::format::record::FIELDS;
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
    /// For which epoch it was last changed legally.
    changed_for: Epoch,
    /// Of the clock, in seconds: when it was last verified.
    looked_s: AtomicU32,
}

impl SealedRecord {
    /// Of a record from where it was verified, or a new one, made for an epoch.
    pub(crate) fn new(record: Record, changed_for: Epoch, protection: MetadataProtection) -> SealedRecord {
        let sums = protection.rolls().then(|| FormSums::of(&record.encode()));
        SealedRecord { sums, record, copy: None, changed_for, looked_s: AtomicU32::new(0) }
    }

    /// One of the store's own, which is used for as long as it is open, as of the epoch that it says.
    pub(crate) fn own(record: Record, protection: MetadataProtection) -> SealedRecord {
        let copy = protection.rolls().then(|| Box::new(record.encode()));
        let changed_for = record.changed;
        SealedRecord { copy, ..SealedRecord::new(record, changed_for, protection) }
    }

    /// Puts it right from its copy, if that is good. Gives what has gone bad, and in words which fields.
    ///
    /// `newest` and `blocks` as for [`Record::decode`].
    pub(crate) fn heal(&mut self, newest: Epoch, blocks: u64) -> Option<(Scribble, String)> {
        let scribble = self.bytes().err()?;
        let told = self.told(None);
        let copy = self.copy.as_ref().filter(|copy| Some(FormSums::of(&copy[..])) == self.sums);
        if let Some(Ok(Some(record))) = copy.map(|copy| Record::decode(copy, newest, blocks, true)) {
            self.record = record;
        }
        Some((scribble, told))
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

    /// Puts what has become of it for the epoch being built, after a look at what it was.
    ///
    /// # Errors
    /// As [`SealedRecord::bytes`].
    pub(crate) fn replace(&mut self, record: Record, building: Epoch, now_s: u32) -> Result<(), Scribble> {
        if self.sums.is_none() {
            self.record = record;
        } else if record != self.record {
            self.bytes()?;
            let copy = self.copy.as_ref().map(|_| Box::new(record.encode()));
            *self =
                SealedRecord { copy, ..SealedRecord::new(record, building, MetadataProtection::Rolling) }.seen(now_s);
        }
        Ok(())
    }

    /// In words, of one that has gone bad: which of its fields have. `stored`: what an object table has of it.
    fn differs(&self, stored: Option<&[u8; RECORD_BYTES]>) -> String {
        let Some(sums) = self.sums else { return String::new() };
        match self.root.excess() {
            0 => {}
            excess => return format!("root has bits that it has no place for, {excess:#x}"),
        }
        let bytes = self.encode();
        let before = sums.before(&bytes);
        let copy = self.copy.as_deref().filter(|copy| FormSums::of(&copy[..]) == sums);
        match (before.as_deref().or(copy.map(|copy| &copy[..])), stored) {
            (Some(before), _) => in_fields(FIELDS, before, &bytes),
            (None, Some(stored)) => {
                let differ = in_fields(FIELDS, stored, &bytes);
                format!("by the object table, legal changes since included: {differ}")
            }
            (None, None) => "no object table has one of before, to tell the fields".into(),
        }
    }

    /// The same with a comma before it, and for which epoch it was last changed legally.
    pub(crate) fn told(&self, stored: Option<&[u8; RECORD_BYTES]>) -> String {
        format!(", {}, last changed legally for epoch {}", self.differs(stored), self.changed_for)
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
        let mut sealed = SealedRecord::new(record.clone(), 7, MetadataProtection::Rolling);
        assert_eq!(sealed.bytes(), Ok(record.encode()));
        sealed.replace(Record { changed: 8, ..record.clone() }, 8, 1).unwrap();
        sealed.look(1).unwrap();
        sealed.scribble(|record| record.levels = 3);
        sealed.look(1).unwrap();
        sealed.look(2).unwrap_err();
        let mut next = Record::clone(&sealed);
        sealed.replace(next.clone(), 9, 1).unwrap();
        assert!(sealed.bytes().is_err(), "nothing was changed, and nothing taken over");
        next.changed = 9;
        sealed.replace(next, 9, 1).unwrap_err();
        sealed.scribble(|record| record.levels = 0);
        assert_eq!((sealed.changed, sealed.look(2), sealed.changed_for), (8, Ok(()), 8));
    }

    #[test]
    fn what_has_gone_bad_is_told_by_field() {
        let record = Record::system(SystemKind::Bitmap, 7);
        let sealed = |is_own: bool| match is_own {
            true => SealedRecord::own(record.clone(), MetadataProtection::Rolling),
            false => SealedRecord::new(record.clone(), 7, MetadataProtection::Rolling),
        };
        for is_own in [false, true] {
            let mut bad = sealed(is_own);
            bad.scribble(|record| record.levels = 3);
            assert_eq!(bad.differs(None), "levels: expected 00, got 03", "by the sums alone");
            bad.scribble(|record| record.root.address[1] = 0x1234);
            let both = "levels: expected 00, got 03; root.address: expected 000000000000000000000000, got \
                        000000000000341200000000";
            match is_own {
                true => assert_eq!(bad.differs(None), both),
                false => {
                    assert!(bad.differs(None).starts_with("no object table has one"));
                    let told = bad.differs(Some(&record.encode()));
                    assert_eq!(told, format!("by the object table, legal changes since included: {both}"));
                }
            }
            bad.scribble(|record| record.root.birth_log = 1 << 50);
            assert!(bad.differs(None).starts_with("root has bits"), "which no form has");
        }
    }
}
