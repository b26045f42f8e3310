//! Pages of metadata are looked at again once their write is over: between their verification and the device's taking them, memory can go
//! bad, and the superblock would name what was written then. As for blocks of metadata ([`crate::commit`]), that gives the epoch up, and
//! whoever hands it down once more has a twin of the page.

use crate::base::Base;
use crate::write::{Landed, Outgoing};
use holdfast_integrity::prefetch;
use holdfast_object::{Arena, Batch, Corruption, ObjectKey, Op, PageIndex, PageRef, Place, Result};
use std::sync::Arc;

/// The pages of metadata that the epoch being built has written. Whoever applied them keeps them in memory until it is published.
#[derive(Default)]
pub(crate) struct WrittenPages(Vec<(ObjectKey, PageIndex, PageRef)>);

impl WrittenPages {
    /// A batch was written. `runs` says of each of its operations whether it was carried out, `outgoing` and `landed` have the pages of these.
    pub(crate) fn note(&mut self, batch: &Batch, runs: &[bool], outgoing: &[Outgoing], landed: &[Landed]) {
        let mut pages = outgoing.iter().zip(landed);
        for (op, runs) in batch.ops.iter().zip(runs) {
            let (Op::Write { id, fragments, .. }, true) = (op, runs) else { continue };
            let key = ObjectKey { domain: batch.domain, object: *id };
            for (fragment, (outgoing, landed)) in fragments.iter().zip(&mut pages) {
                if outgoing.twice && landed.is_some() {
                    self.0.push((key, fragment.index, outgoing.page));
                }
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether all of them are what they were when they were verified, after the device has them.
    ///
    /// # Errors
    /// [`holdfast_object::Error::GivenUp`]: one is not, which is counted and told.
    pub(crate) fn verify(&self, base: &Base, arena: &Arc<Arena>) -> Result<()> {
        if !base.disk.metadata.rolls() {
            return Ok(());
        }
        let mut pages = self.0.iter().filter_map(|(key, index, page)| Some((key, index, arena.pin(*page)?))).peekable();
        while let Some((key, index, page)) = pages.next() {
            if let Some((.., next)) = pages.peek() {
                prefetch(next.bytes());
            }
            let is_its_own = page.seal().is_none_or(|seal| seal.is_of(key.object, *index));
            let (expected, got) = match page.verify() {
                Ok(_) if is_its_own => continue,
                Ok(_) => ("the second sum of this page".to_string(), "that of another one".to_string()),
                Err(mismatch) => mismatch.expected_and_got(),
            };
            base.disk.counters.scribbled();
            let place =
                Place { object: Some(*key), level: Some(0), index: Some(*index), address: None, ..base.disk.place(0) };
            return Err(base.disk.give_up(Corruption {
                place,
                what: "checksum of a page of metadata in memory, after it was written".into(),
                expected,
                got,
            }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::tests::Rig;
    use holdfast_integrity::Algorithm;
    use holdfast_object::{DomainId, Error, ObjectId, ObjectStore, PAGE_SIZE};

    /// What is found of a page of sevens that was written for page 2 of object 5, when it is looked for elsewhere, or has the checksum of other bytes.
    fn found(rig: &Rig, summed: u8, (object, index): (u64, PageIndex)) -> Result<()> {
        let mut frame = rig.arena.allocate().unwrap();
        frame.fill(7);
        let page = frame.publish(Algorithm::Crc64Nvme.sum(&[summed; PAGE_SIZE]));
        page.seal_for(ObjectId(5), 2);
        let key = ObjectKey { domain: DomainId::MAIN, object: ObjectId(object) };
        WrittenPages(vec![(key, index, page.page())]).verify(&rig.module.base, &rig.arena)
    }

    #[test]
    fn other_bytes_and_another_page_than_were_written_give_the_epoch_up() {
        let rig = Rig::new();
        found(&rig, 7, (5, 2)).unwrap();
        for (summed, place, what) in [
            (7, (6, 2), "that of another one"),
            (7, (5, 3), "that of another one"),
            (8, (5, 2), "after it was written"),
        ] {
            let error = found(&rig, summed, place).unwrap_err();
            assert!(matches!(error, Error::GivenUp(_)) && error.to_string().contains(what), "{error}");
        }
        assert_eq!(rig.module.status().counters.scribbles, 3);
    }
}
