//! What to do about what a check has found, by kind of damage.

use crate::paths::shell;
use holdfast_object::{DomainId, Kind, ObjectId, SnapshotId};
use holdfast_physical::check::{BitmapRemedy, Finding, FindingKind};
use std::path::Path;

/// What a check has found.
pub(crate) struct Found<'a> {
    pub(crate) store: &'a Path,
    /// Where it is mounted, if it is.
    pub(crate) mounted: Option<&'a Path>,
    /// Of the blocks, each with what its object is, if that is known and it is one of a domain.
    pub(crate) findings: &'a [(&'a Finding, Option<Kind>)],
    pub(crate) bitmap: BitmapRemedy,
    /// Blocks that stay in use as a snapshot may have them where it cannot be read.
    pub(crate) withheld_blocks: u64,
    /// Something is wrong with the names that no bad block explains.
    pub(crate) names_are_wrong: bool,
    /// It was to correct what it can.
    pub(crate) repair: bool,
}

/// Which of these helps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Remedy {
    Repair,
    /// First a mount, for the intent log.
    RepairAfterReplay,
    Replay,
    WriteAgain,
    WriteAgainAndRepair,
    CopyAndRemove,
    MakeAnew,
    MoveAside,
    DeleteSnapshot,
    /// Then a repair.
    DeleteSnapshotFirst,
    /// Others as well, until it is gone.
    DeleteNewest,
    LeaveAlone,
    DropSnapshot,
    /// Nothing brings it back.
    LostPoint,
    NewRoot,
    NewStore,
}

impl Remedy {
    /// Whether a mount changes something for it.
    fn is_a_change(self) -> bool {
        use Remedy::{CopyAndRemove, DeleteNewest, DeleteSnapshot, DeleteSnapshotFirst, MakeAnew, MoveAside};
        use Remedy::{WriteAgain, WriteAgainAndRepair};
        match self {
            WriteAgain | WriteAgainAndRepair | CopyAndRemove | MakeAnew | MoveAside => true,
            DeleteSnapshot | DeleteSnapshotFirst | DeleteNewest => true,
            Remedy::Repair | Remedy::RepairAfterReplay | Remedy::Replay | Remedy::LeaveAlone => false,
            Remedy::DropSnapshot | Remedy::LostPoint | Remedy::NewRoot | Remedy::NewStore => false,
        }
    }
}

impl Found<'_> {
    /// The most urgent first.
    pub(crate) fn advice(&self) -> Vec<String> {
        let mut remedies: Vec<Remedy> = self
            .findings
            .iter()
            .filter(|(finding, _)| !finding.repaired)
            .map(|(it, kind)| self.of(it, *kind))
            .collect();
        remedies.extend(self.names_are_wrong.then_some(Remedy::NewStore));
        remedies.extend((self.withheld_blocks > 0).then_some(Remedy::DeleteSnapshotFirst));
        if self.is_beyond_repair() {
            remedies.retain(|remedy| !remedy.is_a_change());
        }
        let store = shell(self.store);
        let after_replay = match self.findings.iter().any(|(finding, _)| finding.is_about_bitmap()) {
            true => "which blocks are free",
            false => "what entries that are free have",
        };
        let (repair, repair_after_replay, replay) = match self.mounted.map(shell) {
            None => (
                format!("to put right what can be: holdfast check --repair {store}"),
                format!(
                    "to put right {after_replay}: mount the store once, which replays its intent log, unmount it, then: \
                     holdfast check --repair {store}"
                ),
                "to be rid of what the intent log has no use for any more: mount the store once".to_string(),
            ),
            Some(directory) => (
                format!(
                    "to put right what can be: holdfast unmount {directory}, then: holdfast check --repair {store}"
                ),
                format!(
                    "to put right {after_replay}: holdfast unmount {directory}, then: holdfast check --repair {store}"
                ),
                format!("to be rid of what the intent log has no use for any more: holdfast sync {directory}"),
            ),
        };
        let unmounted = self.mounted.map(|directory| format!("holdfast unmount {}, then: ", shell(directory)));
        let drop_snapshot = format!(
            "the snapshot whose entry is damaged cannot be kept: {}holdfast check --repair {store} DELETES it, and what only it had is lost (until \
             then everything else can be copied from a mount, which takes no changes)",
            unmounted.unwrap_or_default()
        );
        let new_store = match self.mounted {
            Some(_) => {
                "the store's own records are damaged: copy what is needed now, from this mount, as what is in memory may be all that leads \
                 there; then make a new store"
            }
            None => "the store's own records are damaged: mount it with -o ro, copy what is needed, make a new store",
        };
        let words = [
            (Remedy::Repair, repair),
            (Remedy::DropSnapshot, drop_snapshot),
            (Remedy::RepairAfterReplay, repair_after_replay),
            (
                Remedy::WriteAgain,
                "to mend a file: write the bytes named, or all of it, again from a backup; the rest of it is good".into(),
            ),
            (
                Remedy::WriteAgainAndRepair,
                "to mend a file of which a block above its pages cannot be read: write the bytes named, or all of it, again from a backup; the first \
                 of them that is written makes that block anew, and the others are lost pages from then on. Then, unmounted, holdfast check --repair \
                 frees what is left"
                    .into(),
            ),
            (
                Remedy::CopyAndRemove,
                "to mend a file whose tree of blocks is damaged further up, or that has bytes behind its end: copy what can be read of it (dd \
                 conv=noerror,sync), remove it, and move the copy to its place; what is written under a block further up that cannot be read is \
                 not stored, and fsync says so. Then, unmounted, holdfast check --repair frees what is left"
                    .into(),
            ),
            (
                Remedy::MakeAnew,
                "to mend a symbolic link, or a file whose extended attributes are bad: remove it and make it again (what is in the file \
                 can be copied before)"
                    .into(),
            ),
            (
                Remedy::MoveAside,
                "a directory that cannot be read can be neither emptied nor removed: move it aside, make another, and put into that \
                 what was in it, from a snapshot or a backup"
                    .into(),
            ),
            (
                Remedy::DeleteSnapshot,
                "what is bad in a snapshot only stays so, and goes with it: holdfast snapshot delete DIR NAME".into(),
            ),
            (
                Remedy::DeleteSnapshotFirst,
                format!(
                    "what snapshots may need is neither freed nor counted down: once they are deleted that have it, or that cannot be read (holdfast \
                     snapshot delete DIR NAME), unmounted, holdfast check --repair {store} puts right the rest; if there is no room to delete one, \
                     delete files first that no snapshot has"
                ),
            ),
            (
                Remedy::DeleteNewest,
                "blocks that no snapshot has any more, in the list of one, become free when that is deleted, as a rule the newest, and those before it \
                 that they go over to: holdfast snapshot delete DIR NAME"
                    .into(),
            ),
            (
                Remedy::NewRoot,
                "the root directory can be neither read nor moved aside: mount the store, copy what snapshots have \
                 (DIR/.holdfast/snapshots) and what has a path that is known, and make a new store of that and a backup"
                    .into(),
            ),
            (
                Remedy::LostPoint,
                "what a lost recovery point had does not come back: mount the store, which replays what its intent log has, and look whether what was \
                 written last is there"
                    .into(),
            ),
            (Remedy::Replay, replay),
            (
                Remedy::LeaveAlone,
                "where two pointers name one block, nothing is repaired, as each would write over what the other one has: mount it with -o ro, \
                 copy what can be read of the files named, make a new store (to remove or write one of them frees the block, which is the \
                 other's)"
                    .into(),
            ),
            (Remedy::NewStore, new_store.into()),
        ];
        let wanted = words.into_iter().filter(|(remedy, _)| remedies.contains(remedy));
        let mut advice: Vec<String> = wanted.map(|(_, words)| words).collect();
        if !self.findings.is_empty() {
            advice.push("if this happens again, look at the disk (smartctl -a), then at the memory (memtest)".into());
        }
        advice
    }

    fn of(&self, finding: &Finding, kind: Option<Kind>) -> Remedy {
        match finding.kind {
            _ if finding.is_about_bitmap() => self.of_bitmap(),
            FindingKind::DoublyUsed => Remedy::LeaveAlone,
            FindingKind::BadCopy | FindingKind::Unreadable if self.is_named_twice(finding) => Remedy::LeaveAlone,
            FindingKind::Unlisted => Remedy::DeleteSnapshotFirst,
            FindingKind::Unheld => Remedy::DeleteNewest,
            FindingKind::FreeEntry | FindingKind::UnusedReferences => self.of_bitmap(),
            FindingKind::SnapshotEntry if self.bitmap == BitmapRemedy::Repair && !self.repair => Remedy::DropSnapshot,
            FindingKind::Superblock if self.is_lost_point(finding) => Remedy::LostPoint,
            FindingKind::BadCopy | FindingKind::Label | FindingKind::Superblock => Remedy::Repair,
            FindingKind::Obsolete => Remedy::Replay,
            // A table of objects, or what is above it.
            FindingKind::Unreadable | FindingKind::Pointer | FindingKind::Record if is_in_snapshot(finding) => {
                Remedy::DeleteSnapshot
            }
            FindingKind::Lost | FindingKind::Unreadable if finding.pages().is_some() => match kind {
                _ if is_in_snapshot(finding) => Remedy::DeleteSnapshot,
                _ if finding.place.object.is_some_and(|key| key.object == ObjectId::ROOT) => Remedy::NewRoot,
                Some(Kind::Directory) => Remedy::MoveAside,
                Some(Kind::Symlink | Kind::Xattr) => Remedy::MakeAnew,
                _ if finding.place.level > Some(1) => Remedy::CopyAndRemove,
                _ if finding.place.level == Some(1) => Remedy::WriteAgainAndRepair,
                _ => Remedy::WriteAgain,
            },
            // Bytes behind its end.
            FindingKind::Record
                if kind == Some(Kind::Regular) && finding.pages().is_some() && !is_in_snapshot(finding) =>
            {
                Remedy::CopyAndRemove
            }
            _ => Remedy::NewStore,
        }
    }

    /// The bitmap is wrong, or another of the store's own records cannot be read: a mount takes no changes then, or writes over blocks in use, or does
    /// not get far.
    fn is_beyond_repair(&self) -> bool {
        let is_own = |finding: &Finding| {
            finding.kind == FindingKind::Unreadable
                && finding.place.object.is_some_and(|key| key.domain == DomainId::SYSTEM)
                && !is_in_snapshot(finding)
        };
        let is_left = |finding: &Finding| match finding.is_about_bitmap() {
            true => self.of_bitmap() == Remedy::NewStore,
            false => is_own(finding),
        };
        self.findings.iter().any(|(finding, _)| !finding.repaired && is_left(finding))
    }

    /// That of a slot of superblocks none is left, of which the copies have been put right.
    fn is_lost_point(&self, finding: &Finding) -> bool {
        let same = |it: &Finding| it.kind == finding.kind && it.repaired && it.place.address == finding.place.address;
        self.findings.iter().any(|(it, _)| same(it))
    }

    fn is_named_twice(&self, bad: &Finding) -> bool {
        let same = |it: &Finding| it.kind == FindingKind::DoublyUsed && it.place.address == bad.place.address;
        self.findings.iter().any(|(finding, _)| same(finding))
    }

    fn of_bitmap(&self) -> Remedy {
        match self.bitmap {
            BitmapRemedy::Repair if !self.repair => Remedy::Repair,
            BitmapRemedy::AfterSnapshots => Remedy::DeleteSnapshotFirst,
            // A mount makes anew a bitmap that cannot be read or that counts wrong. Of any other, it takes blocks for free that are.
            BitmapRemedy::RepairAfterReplay if self.is_safe_to_mount() => Remedy::RepairAfterReplay,
            _ => Remedy::NewStore,
        }
    }

    /// Whether no mount would write over blocks in use.
    fn is_safe_to_mount(&self) -> bool {
        let any = |kind: FindingKind| self.findings.iter().any(|(finding, _)| finding.kind == kind);
        let is_made_anew = |(finding, _): &(&Finding, _)| {
            finding.kind == FindingKind::FreeBlocks
                || finding.kind == FindingKind::Unreadable && finding.is_about_bitmap()
        };
        // With such an entry, a mount replays nothing.
        !any(FindingKind::SnapshotEntry) && (!any(FindingKind::UsedButFree) || self.findings.iter().any(is_made_anew))
    }
}

/// Whether only snapshots have it.
fn is_in_snapshot(finding: &Finding) -> bool {
    finding.place.object.is_some_and(|key| key.object.snapshot() != SnapshotId::LIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::{ObjectKey, Place};

    fn finding(kind: FindingKind, domain: DomainId, object: u64) -> Finding {
        let object = Some(ObjectKey { domain, object: ObjectId(object) });
        let place = Place { object, level: Some(0), index: Some(0), ..Place::default() };
        Finding { kind, place, what: "bad".into(), repaired: false }
    }

    fn advice(findings: &[(&Finding, Option<Kind>)], bitmap: BitmapRemedy, repair: bool) -> String {
        advice_of(&Found { bitmap, repair, ..found(findings) })
    }

    fn found<'a>(findings: &'a [(&'a Finding, Option<Kind>)]) -> Found<'a> {
        let (store, bitmap) = (Path::new("/s"), BitmapRemedy::NotNeeded);
        let (mounted, withheld_blocks, names_are_wrong, repair) = (None, 0, false, false);
        Found { store, mounted, findings, bitmap, withheld_blocks, names_are_wrong, repair }
    }

    fn advice_of(found: &Found<'_>) -> String {
        let mut advice = found.advice();
        assert!(advice.pop().is_none_or(|last| last.starts_with("if this happens again")));
        advice.join("|")
    }

    #[test]
    fn what_is_bad_in_a_snapshot_only_goes_with_it() {
        let id = ObjectId(16).in_snapshot(SnapshotId(3)).0;
        for kind in [FindingKind::Unreadable, FindingKind::Pointer, FindingKind::Record] {
            let table = finding(kind, DomainId::SYSTEM, id);
            let findings = [(&table, None)];
            let told = advice_of(&found(&findings));
            assert!(told.contains("goes with it: holdfast snapshot delete") && !told.contains('|'), "{kind:?}: {told}");
            let told = advice_of(&Found { withheld_blocks: 9, ..found(&findings) });
            let (_, then) = told.split_once('|').unwrap_or_else(|| panic!("{kind:?}: {told}"));
            assert!(then.contains("unmounted, holdfast check --repair /s puts right the rest"), "{kind:?}: {told}");
        }
    }

    #[test]
    fn each_kind_of_damage_gets_what_helps() {
        use FindingKind::{BadCopy, FreeEntry, Leaked, Lost, Maps, Obsolete, SnapshotEntry};
        use FindingKind::{Unlisted, Unreadable, UnusedReferences, UsedButFree};
        const BITMAP: u64 = 1;
        let (repair, new_store) = ("to put right what can be: holdfast check --repair /s", "make a new store");
        let system = |kind, object| finding(kind, DomainId::SYSTEM, object);
        for (kind, object, bitmap, was_repair, part) in [
            (BadCopy, 16, BitmapRemedy::NotNeeded, false, repair),
            (Unreadable, BITMAP, BitmapRemedy::Repair, false, repair),
            (Unreadable, BITMAP, BitmapRemedy::Repair, true, new_store),
            (Unreadable, BITMAP, BitmapRemedy::RepairAfterReplay, false, "mount the store once, which replays"),
            (Unreadable, BITMAP, BitmapRemedy::None, false, new_store),
            (UsedButFree, 0, BitmapRemedy::Repair, false, repair),
            (UsedButFree, 0, BitmapRemedy::RepairAfterReplay, false, new_store),
            (Leaked, 0, BitmapRemedy::RepairAfterReplay, false, "mount the store once, which replays"),
            (Unreadable, 16, BitmapRemedy::NotNeeded, false, new_store),
            (Unreadable, 16, BitmapRemedy::Repair, false, new_store),
            (Maps, 16, BitmapRemedy::NotNeeded, false, new_store),
            (Obsolete, 0, BitmapRemedy::NotNeeded, false, "has no use for any more: mount the store once"),
            (FreeEntry, 19, BitmapRemedy::Repair, false, repair),
            (UnusedReferences, 0, BitmapRemedy::Repair, false, repair),
            (UnusedReferences, 0, BitmapRemedy::AfterSnapshots, true, "once they are deleted that have it"),
            (UnusedReferences, 0, BitmapRemedy::None, false, new_store),
            (FreeEntry, 19, BitmapRemedy::AfterSnapshots, false, "once they are deleted that have it"),
            (Unlisted, 16, BitmapRemedy::NotNeeded, false, "once they are deleted that have it"),
            (FindingKind::Snapshot, 16, BitmapRemedy::NotNeeded, false, new_store),
            (FindingKind::Unheld, 0, BitmapRemedy::NotNeeded, false, "become free when that is deleted"),
            (
                FreeEntry,
                19,
                BitmapRemedy::RepairAfterReplay,
                false,
                "what entries that are free have: mount the store once",
            ),
            (FreeEntry, 19, BitmapRemedy::None, false, new_store),
            (SnapshotEntry, 19, BitmapRemedy::Repair, false, "cannot be kept: holdfast check --repair /s DELETES it"),
            (SnapshotEntry, 19, BitmapRemedy::RepairAfterReplay, false, new_store),
        ] {
            let told = advice(&[(&system(kind, object), None)], bitmap, was_repair);
            assert!(told.contains(part) && !told.contains('|'), "{kind:?} {object} {bitmap:?}: {told}");
        }
        let root = finding(Unreadable, DomainId::MAIN, ObjectId::ROOT.0);
        let told = advice(&[(&root, Some(Kind::Directory))], BitmapRemedy::NotNeeded, false);
        assert!(told.contains("neither read nor moved aside") && !told.contains('|'), "{told}");
        for (object_kind, part) in [
            (None, "to mend a file"),
            (Some(Kind::Regular), "to mend a file"),
            (Some(Kind::Symlink), "remove it and make it again"),
            (Some(Kind::Xattr), "remove it and make it again"),
            (Some(Kind::Directory), "move it aside"),
        ] {
            for kind in [Unreadable, Lost] {
                let told = advice(&[(&finding(kind, DomainId::MAIN, 7), object_kind)], BitmapRemedy::NotNeeded, false);
                assert!(told.contains(part) && !told.contains('|'), "{object_kind:?}: {told}");
                let kept = finding(kind, DomainId::MAIN, ObjectId(7).in_snapshot(SnapshotId(3)).0);
                let told = advice(&[(&kept, object_kind)], BitmapRemedy::NotNeeded, false);
                assert!(told.contains("snapshot delete") && !told.contains('|'), "{object_kind:?}: {told}");
            }
        }
    }

    /// The block above pages is made anew with what is written; what is written under one further up is not stored. Bytes behind the end of a file concern
    /// that file alone.
    #[test]
    fn a_file_whose_tree_is_damaged_is_written_again_or_copied_and_removed() {
        let tree = |level| {
            let mut tree = finding(FindingKind::Unreadable, DomainId::MAIN, 7);
            tree.place.level = Some(level);
            tree
        };
        let told = |bad: &Finding| advice(&[(bad, Some(Kind::Regular))], BitmapRemedy::NotNeeded, false);
        for bad in [&tree(2), &tree(3), &finding(FindingKind::Record, DomainId::MAIN, 7)] {
            let told = told(bad);
            assert!(told.contains("remove it, and move the copy") && !told.contains('|'), "{told}");
        }
        let told = told(&tree(1));
        assert!(
            told.contains("write the bytes named") && told.contains("check --repair frees") && !told.contains('|'),
            "{told}"
        );
    }

    /// Of which the copies are good again, or for that matter say that they were never written.
    #[test]
    fn a_repair_is_not_to_be_done_again_for_a_recovery_point_that_is_lost() {
        let at = |address, repaired| {
            let place = Place { address: Some(address), ..Place::default() };
            Finding { kind: FindingKind::Superblock, place, what: "bad".into(), repaired }
        };
        let (lost, copies) = (at(15, false), [at(15, true), at(31, true)]);
        let told = advice(&[(&lost, None), (&copies[0], None), (&copies[1], None)], BitmapRemedy::NotNeeded, true);
        assert!(told.starts_with("what a lost recovery point had does not come back") && !told.contains('|'), "{told}");
        // One copy could not be written.
        let left = at(31, false);
        let told = advice(&[(&lost, None), (&copies[0], None), (&left, None)], BitmapRemedy::NotNeeded, true);
        assert!(told.starts_with("to put right what can be: ") && told.contains("|what a lost"), "{told}");
        let told = advice(&[(&lost, None), (&left, None)], BitmapRemedy::NotNeeded, false);
        assert!(told.starts_with("to put right what can be: ") && !told.contains('|'), "{told}");
    }

    /// A mount takes no changes, and who follows the advice has an error for it.
    #[test]
    fn nothing_is_to_be_changed_where_the_store_takes_no_changes() {
        let bitmap = finding(FindingKind::Unreadable, DomainId::SYSTEM, 1);
        let kept = finding(FindingKind::Unreadable, DomainId::MAIN, ObjectId(7).in_snapshot(SnapshotId(3)).0);
        let (lost, unheld) =
            (finding(FindingKind::Lost, DomainId::MAIN, 7), finding(FindingKind::Unheld, DomainId::SYSTEM, 0));
        for kind in [Kind::Regular, Kind::Symlink, Kind::Directory] {
            let findings = [(&bitmap, None), (&kept, Some(kind)), (&lost, Some(kind)), (&unheld, None)];
            let told = advice(&findings, BitmapRemedy::None, false);
            assert!(
                told.starts_with("the store's own records are damaged: mount it with -o ro") && !told.contains('|'),
                "{told}"
            );
            let told = advice(&findings, BitmapRemedy::Repair, false);
            assert_eq!(told.split('|').count(), 4, "a repair, and the three: {told}");
            // Dead lists.
            let list = finding(FindingKind::Unreadable, DomainId::SYSTEM, 20);
            let unlisted = finding(FindingKind::Unlisted, DomainId::SYSTEM, 16);
            let told = advice(&[(&list, None), (&unlisted, None), (&lost, Some(kind))], BitmapRemedy::NotNeeded, false);
            assert!(told.starts_with("the store's own records are damaged") && !told.contains('|'), "{told}");
        }
    }

    /// The one copy that can be put right is another block's.
    #[test]
    fn nothing_is_to_be_repaired_where_two_pointers_name_one_block() {
        let at = |kind, object, address| {
            let mut finding = finding(kind, DomainId::MAIN, object);
            finding.place.address = Some(address);
            finding
        };
        let twice = [7, 8].map(|object| at(FindingKind::DoublyUsed, object, 100));
        let (bad, other) = (at(FindingKind::BadCopy, 7, 100), at(FindingKind::BadCopy, 7, 101));
        let page = at(FindingKind::Unreadable, 7, 100);
        let of = |bad| {
            let findings = [&twice[0], &twice[1], bad].map(|finding| (finding, Some(Kind::Regular)));
            advice(&findings, BitmapRemedy::None, true)
        };
        for bad in [&bad, &page] {
            assert!(of(bad).starts_with("where two pointers name one block") && !of(bad).contains('|'), "{}", of(bad));
        }
        assert!(
            of(&other).starts_with("to put right what can be: holdfast check --repair /s|where two"),
            "{}",
            of(&other)
        );
    }

    #[test]
    fn what_is_repaired_needs_nothing_and_what_needs_several_things_gets_them() {
        let mut bitmap = finding(FindingKind::Unreadable, DomainId::SYSTEM, 1);
        let file = finding(FindingKind::Lost, DomainId::MAIN, 7);
        let both = advice(&[(&file, Some(Kind::Regular)), (&bitmap, None)], BitmapRemedy::Repair, false);
        assert!(
            both.starts_with("to put right") && both.contains("|to mend a file") && !both.contains("new store"),
            "{both}"
        );
        bitmap.repaired = true;
        assert_eq!(advice(&[(&bitmap, None)], BitmapRemedy::NotNeeded, true), "");
        let counted = [
            finding(FindingKind::UsedButFree, DomainId::SYSTEM, 0),
            finding(FindingKind::FreeBlocks, DomainId::SYSTEM, 0),
        ];
        let told = advice(&[(&counted[0], None), (&counted[1], None)], BitmapRemedy::RepairAfterReplay, false);
        assert!(told.starts_with("to put right which blocks are free: mount the store once"), "{told}");
    }
}
