//! Whether anything lies behind the end of an object that must not: a file that grows reads zeros there, and what is stored shows.
//!
//! Blocks may lie behind the end of a file, where somebody has allocated them (`docs/decisions/0006-allocated-ranges.md`); what is in
//! them is zeros, as the rest of the page is in which a file ends. Of all else nothing is stored behind the end. The cache sees to that, and not
//! the store, which keeps what it is given: so who asks says whether it is to be so ([`CheckOptions::ends`](super::CheckOptions::ends)).

use super::report::FindingKind;
use super::walk::{Owner, Walk};
use crate::format::RecordKind;
use crate::scrub::in_state;
use holdfast_object::{Kind, PAGE_SIZE, Place};

impl Walk<'_> {
    /// A page is stored there.
    pub(super) fn stored_at(&mut self, owner: &Owner<'_>, index: u64) {
        let size = owner.record.attributes.size;
        if self.ends
            && owner.record.kind != RecordKind::Object(Kind::Regular)
            && index >= size.div_ceil(PAGE_SIZE as u64)
        {
            self.behind(owner, index, format!("a page behind the end, which is at byte {size}"));
        }
    }

    /// It has these bytes.
    pub(super) fn has_bytes(&mut self, owner: &Owner<'_>, index: u64, bytes: &[u8; PAGE_SIZE]) {
        if !self.ends {
            return;
        }
        let size = owner.record.attributes.size;
        let end = size.saturating_sub(index * PAGE_SIZE as u64).min(PAGE_SIZE as u64) as usize;
        if let Some(at) = bytes[end..].iter().position(|byte| *byte != 0) {
            let at = index * PAGE_SIZE as u64 + (end + at) as u64;
            self.behind(owner, index, format!("byte {at} is not zero, behind the end, which is at byte {size}"));
        }
    }

    fn behind(&mut self, owner: &Owner<'_>, index: u64, what: String) {
        let place = Place { object: Some(owner.key), level: Some(0), index: Some(index), ..Place::default() };
        self.report.find(FindingKind::Record, in_state(place, self.state), what);
    }
}

#[cfg(test)]
mod tests {
    use crate::check::{CheckOptions, FindingKind, check};
    use crate::commit::tests::Rig;
    use crate::format::{Record, RecordKind};
    use crate::tree::Change;
    use holdfast_object::{DomainId, Kind, ObjectId, ObjectKey};

    /// The object's record says something else, and no equation is about that.
    fn tell(rig: &Rig, change: impl FnOnce(&mut Record)) {
        let mut trees = rig.module.trees.write();
        let key = ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) };
        let Some(Change::Present(sealed)) = trees.changed.get_mut(&key) else { panic!("it was written") };
        let mut record = Record::clone(sealed);
        change(&mut record);
        sealed.replace(record, 0, 0).unwrap();
    }

    fn found(rig: &Rig, skip_data: bool) -> Vec<String> {
        let report =
            check(rig.device.clone(), &CheckOptions { skip_data, ends: true, ..CheckOptions::default() }).unwrap();
        assert!(report.findings.iter().all(|finding| finding.kind == FindingKind::Record), "{:?}", report.findings);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn what_is_behind_the_end_of_a_file_is_zeros() {
        // Page 256 has zeros, as page 0 has; the others have their number in each byte.
        let page = 4096;
        for (size, expected) in [
            (4 * page, None),
            (4 * page - 1, Some("byte 16383 is not zero, behind the end, which is at byte 16383")),
            (3 * page + 7, Some("byte 12295 is not zero, behind the end, which is at byte 12295")),
            (3 * page, Some("byte 12288 is not zero, behind the end, which is at byte 12288")),
        ] {
            let rig = Rig::new();
            rig.fill(2, 4);
            rig.write(2, 256).unwrap();
            tell(&rig, |record| record.attributes.size = size);
            rig.commit().unwrap();
            assert_eq!(found(&rig, false), Vec::from_iter(expected), "{size}");
            assert!(found(&rig, true).is_empty(), "{size}: contents are not read");
            assert!(check(rig.device.clone(), &CheckOptions::default()).unwrap().findings.is_empty(), "not asked");
        }
    }

    #[test]
    fn nothing_is_behind_the_end_of_anything_else() {
        for (kind, many) in [(Kind::Regular, 0), (Kind::Directory, 1), (Kind::Symlink, 1), (Kind::Xattr, 1)] {
            let rig = Rig::new();
            rig.fill(2, 1);
            rig.write(2, 256).unwrap();
            tell(&rig, |record| (record.kind, record.attributes.size) = (RecordKind::Object(kind), 4096));
            rig.commit().unwrap();
            let found = found(&rig, true);
            let of_it = found.iter().filter(|what| what.contains("a page behind the end, which is at byte 4096"));
            assert_eq!(of_it.count(), many, "{kind:?}: {found:?}");
        }
    }
}
