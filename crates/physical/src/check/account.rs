//! The accounts: what was reached against what is written down.

use super::marked::inside;
use super::report::{FindingKind, Report};
use super::walk::Seen;
use crate::alloc::fixed;
use crate::disk::Disk;
use crate::format::{DeadRun, Label, Superblock, split_address};
use crate::module::log_area;
use holdfast_object::{DomainId, ObjectId, ObjectKey, Place};
use std::collections::BTreeMap;

/// Compares, and says whether the bitmap is right, as far as can be seen.
pub(super) fn check(disk: &Disk, label: &Label, superblock: &Superblock, seen: &mut Seen, report: &mut Report) -> bool {
    add_fixed(disk, label, seen, report);
    report.used_blocks = count(seen.used.len() as u64 * 64, |word| seen.used[word]);
    let before = report.found;
    if seen.bitmap_is_whole {
        bitmap(disk, label, seen, report);
        free_blocks(disk, label, superblock, seen, report);
    }
    let bitmap_is_right = seen.bitmap_is_whole && report.found == before;
    references(disk, seen, report);
    dead(disk, label, seen, report);
    maps("map of objects", &ids(&seen.objects, |_| true), &seen.mapped, report);
    maps("map of orphans", &ids(&seen.objects, |orphan| orphan), &seen.orphans, report);
    objects(disk, superblock, seen, report);
    metadata(disk, superblock, seen, bitmap_is_right, report);
    bitmap_is_right
}

/// Labels and log are in use, by nothing else.
pub(super) fn add_fixed(disk: &Disk, label: &Label, seen: &mut Seen, report: &mut Report) {
    for block in fixed(label.blocks, &log_area(label)).flatten() {
        let (word, bit) = ((block / 64) as usize, 1u64 << (block % 64));
        if seen.used[word] & bit != 0 {
            let what = "a block of a label or the log is used by a tree";
            seen.hidden.get_or_insert_with(|| (disk.place(block), what.to_string()));
            report.find(FindingKind::DoublyUsed, disk.place(block), what);
        }
        seen.used[word] |= bit;
    }
}

/// Blocks reached are in use in the bitmap; the others are not.
fn bitmap(disk: &Disk, label: &Label, seen: &Seen, report: &mut Report) {
    for (first, count) in runs(label.blocks, |word| seen.used[word] & !seen.bitmap[word]) {
        let what = format!("{count} blocks in use, and free in the bitmap");
        report.find(FindingKind::UsedButFree, disk.place(first), what);
    }
    if seen.hidden.is_none() && seen.hidden_in_snapshot.is_none() {
        for (first, count) in runs(label.blocks, |word| seen.bitmap[word] & !seen.used[word]) {
            let what = format!("{count} blocks not in use, and not free in the bitmap");
            report.find(FindingKind::Leaked, disk.place(first), what);
        }
    }
    let bits = seen.bitmap.len() as u64 * 64;
    if (label.blocks..bits).any(|bit| seen.bitmap[(bit / 64) as usize] >> (bit % 64) & 1 == 0) {
        report.find(
            FindingKind::FreeBlocks,
            disk.place(label.blocks),
            "blocks beyond the device are free in the bitmap",
        );
    }
}

/// Runs of set bits among the first `blocks`, given by words of 64.
fn runs(blocks: u64, word: impl Fn(usize) -> u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for at in 0..blocks.div_ceil(64) {
        let mut bits = word(at as usize);
        while bits != 0 {
            let block = at * 64 + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            match runs.last_mut() {
                _ if block >= blocks => {}
                Some((first, count)) if *first + *count == block => *count += 1,
                _ => runs.push((block, 1)),
            }
        }
    }
    runs
}

/// Set bits among the first `blocks`, given by words of 64.
pub(super) fn count(blocks: u64, word: impl Fn(usize) -> u64) -> u64 {
    let words = 0..blocks.div_ceil(64) as usize;
    words.map(|at| u64::from((word(at) & inside(blocks, at)).count_ones())).sum()
}

/// What is in a dead list, and not in use by a domain, a snapshot reaches.
fn dead(disk: &Disk, label: &Label, seen: &Seen, report: &mut Report) {
    if report.incomplete {
        return;
    }
    let mut dead = vec![0u64; seen.used.len()];
    let runs_held = seen.dead.iter().filter(|dead| !dead.of_deleted).map(|dead| dead.run);
    for address in runs_held.flat_map(DeadRun::blocks).flatten().filter(|address| *address != 0) {
        let block = split_address(address).1;
        if let Some(word) = dead.get_mut((block / 64) as usize) {
            *word |= 1 << (block % 64);
        }
    }
    for (first, count) in runs(label.blocks, |word| dead[word] & !seen.live[word] & !seen.held[word]) {
        report.find(
            FindingKind::Unheld,
            disk.place(first),
            format!("{count} blocks in a dead list, and in no snapshot"),
        );
    }
}

/// The reference table counts the uses of a block beyond the first. If it can be read, those that it lacks are told where they are named twice. Those that
/// it has too many can be taken off if all that there are have been seen.
fn references(disk: &Disk, seen: &mut Seen, report: &mut Report) {
    let mut addresses: Vec<u64> = seen.extra.keys().chain(seen.references.keys()).copied().collect();
    addresses.sort_unstable();
    addresses.dedup();
    for address in addresses {
        let counted = seen.extra.get(&address).copied().unwrap_or(0);
        let written = u64::from(seen.references.get(&address).copied().unwrap_or(0));
        let what = format!("{counted} uses beyond the first, the reference table has {written}");
        let is_untold = counted > written && !seen.references_are_whole;
        if is_untold {
            report.find(FindingKind::References, disk.place(address), what);
        } else if counted < written && !report.incomplete {
            report.find(FindingKind::UnusedReferences, disk.place(address), what);
            // One that a snapshot reaches may have no other use than that, which is in a dead list or lost with the block above it.
            let block = split_address(address).1;
            let bits = seen.of_snapshots.get((block / 64) as usize).copied().unwrap_or(u64::MAX);
            if seen.hidden.is_none() && bits >> (block % 64) & 1 == 0 {
                seen.entries.references.push((address, (written - counted) as u32));
            } else {
                seen.entries.has_counts_left = true;
            }
        }
    }
}

fn ids(objects: &BTreeMap<DomainId, Vec<(u64, bool)>>, which: impl Fn(bool) -> bool) -> BTreeMap<DomainId, Vec<u64>> {
    let of = |ids: &Vec<(u64, bool)>| ids.iter().filter(|(_, orphan)| which(*orphan)).map(|(id, _)| *id).collect();
    objects.iter().map(|(domain, ids)| (*domain, of(ids))).collect()
}

/// Both lists are ascending.
fn maps(name: &str, there: &BTreeMap<DomainId, Vec<u64>>, mapped: &BTreeMap<DomainId, Vec<u64>>, report: &mut Report) {
    let domains: std::collections::BTreeSet<DomainId> = there.keys().chain(mapped.keys()).copied().collect();
    for domain in domains {
        let (there, mapped) = (there.get(&domain), mapped.get(&domain));
        let (there, mapped) = (there.map_or(&[][..], Vec::as_slice), mapped.map_or(&[][..], Vec::as_slice));
        let mut find = |id: &u64, what: &str| {
            let object = Some(ObjectKey { domain, object: ObjectId(*id) });
            report.find(FindingKind::Maps, Place { object, ..Place::default() }, format!("{what} the {name}"));
        };
        there.iter().filter(|id| mapped.binary_search(id).is_err()).for_each(|id| find(id, "missing in"));
        mapped.iter().filter(|id| there.binary_search(id).is_err()).for_each(|id| find(id, "wrongly in"));
    }
}

fn free_blocks(disk: &Disk, label: &Label, superblock: &Superblock, seen: &Seen, report: &mut Report) {
    let total = label.blocks - fixed(label.blocks, &log_area(label)).map(|range| range.end - range.start).sum::<u64>();
    let used = count(label.blocks, |word| seen.bitmap[word]);
    let expected = (total, label.blocks - used);
    if (superblock.total, superblock.free) != expected {
        let what = format!("the superblock says {} of {} blocks free", superblock.free, superblock.total);
        report.find(FindingKind::FreeBlocks, disk.place(0), format!("{what}, the bitmap {} of {total}", expected.1));
    }
}

/// What the superblock counts of metadata. Too much does no harm: what an object leaves that is deleted though it cannot be read stays
/// counted, and in use.
fn metadata(disk: &Disk, superblock: &Superblock, seen: &Seen, nothing_leaked: bool, report: &mut Report) {
    if report.incomplete || seen.hidden.is_some() {
        return;
    }
    let (told, kept) = (superblock.metadata, superblock.metadata_kept);
    if told < seen.metadata || kept < seen.metadata_kept || nothing_leaked && told > seen.metadata {
        let (there, of_snapshot) = (seen.metadata, seen.metadata_kept);
        let what = format!("the superblock counts {told} blocks of metadata, {kept} of them a snapshot's");
        report.find(FindingKind::Counters, disk.place(0), format!("{what}, there are {there}, {of_snapshot}"));
    }
}

fn objects(disk: &Disk, superblock: &Superblock, seen: &Seen, report: &mut Report) {
    let objects = seen.objects.get(&DomainId::MAIN).map_or(0, Vec::len) as u64;
    if superblock.objects != objects && !report.incomplete {
        let what = format!("the superblock counts {} objects, there are {objects}", superblock.objects);
        report.find(FindingKind::Counters, disk.place(0), what);
    }
}
