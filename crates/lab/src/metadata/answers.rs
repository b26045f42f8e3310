//! What the store says to whoever asks it past the cache: what it has verified a moment ago and does not look at again has to be right all the same.

use super::between::Moment;
use super::script::Memory;
use holdfast_block::BLOCK_SIZE;
use holdfast_integrity::crc64;
use holdfast_object::{Attributes, DomainId, ObjectId, ObjectKey, ObjectStore, PageIndex, Seek, SnapshotId};
use std::collections::BTreeMap;

/// Ids of objects are below this: the scripts make a few dozen.
const IDS: u64 = 256;
/// Pages that are read at once.
const PIECE: u64 = 16;

/// Whether the store can be asked: nobody is at work with it.
pub(super) fn can_be_asked(moment: Moment) -> bool {
    matches!(moment, Moment::Rest | Moment::Logged)
}

/// Whether pages can be asked for: nobody is in the store meanwhile. It may have a part of an epoch, and take that back.
pub(super) fn can_be_read(moment: Moment) -> bool {
    matches!(moment, Moment::Rest | Moment::Between | Moment::Applied)
}

/// Sums of pages.
pub(super) type Sums = BTreeMap<(ObjectKey, PageIndex), u64>;

/// Each page of all objects that are in no snapshot, alone. What cannot be read is left out.
pub(super) fn pages(memory: &Memory) -> Sums {
    let objects = memory.module.objects(DomainId::MAIN, ObjectId::NONE, IDS as usize).unwrap_or_default();
    let of = |(key, attributes): (ObjectKey, Attributes)| {
        (0..attributes.size.div_ceil(BLOCK_SIZE as u64).min(IDS)).map(move |page| (key, page))
    };
    let all = objects.into_iter().flat_map(of);
    all.filter_map(|of| Some((of, page(memory, of).ok()?))).collect()
}

fn page(memory: &Memory, (key, page): (ObjectKey, PageIndex)) -> Result<u64, String> {
    let mut frames = [memory.arena.allocate().ok_or("no frame")?];
    frames[0].fill(0);
    memory.module.read(key, page, &mut frames).map_err(|error| error.to_string())?;
    Ok(crc64(&frames[0][..]))
}

/// Pages that are neither as they are in the epoch being built nor as they were before it: what the store answers where that has gone bad.
pub(super) fn wrong_pages(memory: &Memory, now: &Sums, before: &Sums) -> Vec<String> {
    let is_in_both = |of: &(ObjectKey, PageIndex)| before.contains_key(of);
    let wrong = |of: &(ObjectKey, PageIndex)| match page(memory, *of) {
        Ok(sum) if sum == now[of] || sum == before[of] => None,
        Ok(_) => Some(format!("{}: page {} has other contents", of.0, of.1)),
        Err(error) => Some(format!("{}: page {}: {error}", of.0, of.1)),
    };
    now.keys().filter(|of| is_in_both(of)).filter_map(wrong).collect()
}

/// Which objects there are, also in snapshots. Asked before the strike: who asks for one that there is not makes the store look at everything again.
pub(super) fn objects(memory: &Memory) -> Vec<ObjectKey> {
    let snapshots = memory.module.snapshots_uncounted(DomainId::MAIN).unwrap_or_default();
    let states: Vec<SnapshotId> = snapshots.iter().map(|info| info.id).chain([SnapshotId::LIVE]).collect();
    let all = states.iter().flat_map(|state| (0..IDS).map(|id| ObjectId(id).in_snapshot(*state)));
    let all = all.map(|object| ObjectKey { domain: DomainId::MAIN, object });
    all.filter(|key| memory.module.attributes(*key).is_ok()).collect()
}

/// Attributes, contents and holes of these objects; and which are without a name.
pub(super) fn all(memory: &Memory, objects: &[ObjectKey]) -> Vec<String> {
    let mut said = Vec::new();
    for key in objects.iter().copied() {
        match memory.module.attributes(key) {
            Ok(attributes) => {
                said.push(format!("{key}: {attributes:?}"));
                said.extend(contents(memory, key, &attributes));
            }
            Err(error) => said.push(format!("{key}: {error}")),
        }
    }
    said.push(format!("without a name: {:?}", memory.module.orphans(DomainId::MAIN)));
    said
}

fn contents(memory: &Memory, key: ObjectKey, attributes: &Attributes) -> Vec<String> {
    let pages = attributes.size.div_ceil(BLOCK_SIZE as u64).min(IDS);
    let mut said = Vec::new();
    for first in (0..pages).step_by(PIECE as usize) {
        let mut frames: Vec<_> = (first..pages.min(first + PIECE)).filter_map(|_| memory.arena.allocate()).collect();
        let outcome = memory.module.read(key, first, &mut frames);
        let sums: Vec<u64> = frames.iter().map(|frame| crc64(&frame[..])).collect();
        said.push(match outcome {
            Ok(_) => format!("{key}: pages from {first} on are {sums:x?}"),
            Err(error) => format!("{key}: pages from {first} on: {error}"),
        });
    }
    let mut page: PageIndex = 0;
    for what in [Seek::Data, Seek::Hole].into_iter().cycle() {
        match memory.module.seek(key, page, what) {
            Ok(Some(next)) if next < pages => {
                said.push(format!("{key}: {what:?} from {page} on is at {next}"));
                page = next;
            }
            Ok(_) => break,
            Err(error) => {
                said.push(format!("{key}: {what:?} from {page} on: {error}"));
                break;
            }
        }
    }
    said
}

/// What is said otherwise than it should be.
pub(super) fn differences(said: &[String], expected: &[String]) -> Vec<String> {
    let missing = expected.iter().filter(|line| !said.contains(line));
    let more = said.iter().filter(|line| !expected.contains(line));
    let missing = missing.map(|line| format!("asked at once, not said by the store: {line}"));
    missing.chain(more.map(|line| format!("asked at once, said by the store: {line}"))).collect()
}
