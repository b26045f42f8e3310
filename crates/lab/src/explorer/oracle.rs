//! Whether what a recovery brought back is one of the states that docs/architecture.md ("The life of an fsync") allows.
//!
//! Of the name space, the state after a prefix of all transactions, no shorter than what an answered sync covers. Of each
//! regular file, the state after a prefix of its own changes, no shorter than what an answered sync of it covers, nor than
//! what a rename that is visible brings. A recovery point on which nothing of the intent log was replayed: of everything
//! the state after one and the same prefix.

use super::history::{History, Line, at, names_digest};
use super::objects::{Object, Objects, OwnPart, own_part};
use holdfast_object::{ObjectId, Timestamp};
use std::fmt::Write;

/// Differences shown at most.
const SHOWN_MAX: usize = 8;

/// Checks the objects that a recovery from a crash at `position` found. `pure`: nothing of the intent log was replayed.
/// Gives the prefix of the name space (of several that look alike, the newest).
pub(super) fn judge(history: &History, position: usize, found: &Objects, pure: bool) -> Result<u64, String> {
    let last = history.admitted_by(position);
    let promised = history.promises.iter().filter(|promise| promise.position <= position);
    let first = promised.map(|promise| promise.sequence).max().unwrap_or(0);
    let digest = found.iter().fold(0u64, |sum, (id, object)| sum.wrapping_add(names_digest(*id, &object.names_part())));
    let alike = |prefix: &u64| history.names_digests[*prefix as usize] == digest;
    // Transactions that change no names lie between prefixes that look alike.
    let mut groups: Vec<(u64, u64)> = Vec::new();
    for prefix in (0..=last).filter(alike) {
        match groups.last_mut() {
            Some((_, newest)) if *newest + 1 == prefix => *newest = prefix,
            _ => groups.push((prefix, prefix)),
        }
    }
    groups.retain(|(_, newest)| *newest >= first);
    let mut refused = None;
    for &(oldest, newest) in groups.iter().rev() {
        match judge_files(history, position, (oldest, newest), last, found, pure) {
            Ok(()) => return Ok(newest),
            Err(error) => drop(refused.get_or_insert(error)),
        }
    }
    Err(refused.unwrap_or_else(|| names_difference(history, found, digest, first, last)))
}

/// Checks the regular files, given that the names are as after any of the prefixes `oldest..=newest`.
fn judge_files(
    history: &History,
    position: usize,
    (oldest, newest): (u64, u64),
    last: u64,
    found: &Objects,
    pure: bool,
) -> Result<(), String> {
    let mut common: Vec<u64> = (oldest..=newest).collect();
    for (&id, object) in found.iter().filter(|(_, object)| object.is_own()) {
        let Some(line) = history.lines.get(&id) else { return Err(format!("{id} exists and was never made")) };
        let matching = judge_own(history, position, newest, last, id, line, found, object)?;
        common.retain(|prefix| matching.iter().any(|(from, to)| (from..=to).contains(&prefix)));
        if pure && common.is_empty() {
            return Err(format!(
                "the recovery point is no prefix: names are as after {oldest} to {newest}, but {id} is as after {}",
                ranges(&matching)
            ));
        }
    }
    Ok(())
}

/// The ranges of transactions after which the object's own part was what was found.
#[allow(clippy::too_many_arguments, reason = "one question in one place")]
fn judge_own(
    history: &History,
    position: usize,
    prefix: u64,
    last: u64,
    id: ObjectId,
    line: &Line,
    found: &Objects,
    object: &Object,
) -> Result<Vec<(u64, u64)>, String> {
    let own = own_part(found, object);
    let life = life(line, prefix);
    let all = matching(line, &own, (life.0, life.1.min(last)));
    let (floor, why) = floor(history, position, prefix, id, life.0);
    let allowed: Vec<(u64, u64)> = all.iter().copied().filter(|(_, to)| *to >= floor).collect();
    if allowed.is_empty() {
        let mut message = format!("{id}: contents and attributes ");
        if all.is_empty() {
            let expected = at(&line.objects, prefix).and_then(Option::as_ref);
            let _ = write!(message, "that it never had: {own:?}, of names prefix {prefix} ");
            if let Some(expected) = expected {
                let now = at(&line.own, prefix).and_then(Option::as_ref);
                let _ = write!(message, "with {now:?}; pages that differ: {:?}", object.pages_unlike(expected));
            }
        } else {
            let _ = write!(
                message,
                "as after transactions {}, but {floor} was promised by {why} (\"{}\")",
                ranges(&all),
                history.step_of(floor)
            );
        }
        return Err(message);
    }
    check_ctime(line, &allowed, prefix, object.attributes.ctime).map_err(|error| format!("{id}: {error}"))?;
    Ok(allowed)
}

/// The ranges of transactions of one life of the object after which its own part was this.
fn matching(line: &Line, own: &OwnPart, (first, last): (u64, u64)) -> Vec<(u64, u64)> {
    let until = |index: usize| line.own.get(index + 1).map_or(last, |(next, _)| next - 1).min(last);
    let versions = line.own.iter().enumerate();
    let versions =
        versions.filter(|(_, (from, version))| (first..=last).contains(from) && version.as_ref() == Some(own));
    versions.map(|(index, (from, _))| (*from, until(index))).collect()
}

/// From which to which transaction the object existed that is there after `prefix`. Ids are used again.
fn life(line: &Line, prefix: u64) -> (u64, u64) {
    let after = line.own.partition_point(|(from, _)| *from <= prefix);
    let made = line.own[..after].iter().rev().take_while(|(_, own)| own.is_some()).last();
    let gone = line.own[after..].iter().find(|(_, own)| own.is_none());
    (made.map_or(0, |(from, _)| *from), gone.map_or(u64::MAX, |(from, _)| from - 1))
}

/// The least own prefix that is allowed, and what asks for it.
fn floor(history: &History, position: usize, prefix: u64, id: ObjectId, made: u64) -> (u64, String) {
    let mut floor = (made, "its creation".to_string());
    for promise in history.promises.iter().filter(|promise| promise.position <= position) {
        if promise.object.is_none_or(|object| object == id) && promise.sequence > floor.0 {
            let what = if promise.object.is_some() { "a sync of it" } else { "a recovery point" };
            floor = (promise.sequence, format!("{what} answered at position {}", promise.position));
        }
    }
    for &(sequence, object) in history.brings.iter().filter(|(sequence, _)| *sequence <= prefix) {
        if object == id && sequence > floor.0 {
            floor = (sequence, format!("the rename that is transaction {sequence}"));
        }
    }
    floor
}

/// The time of attribute change comes from the names' prefix, from the object's own, or from between.
fn check_ctime(line: &Line, own: &[(u64, u64)], prefix: u64, found: Timestamp) -> Result<(), String> {
    let fits = own.iter().any(|&(from, to)| {
        let (first, last) = (from.min(prefix), to.max(prefix));
        let before = line.ctime.partition_point(|(sequence, _)| *sequence <= first).saturating_sub(1);
        line.ctime[before..].iter().take_while(|(sequence, _)| *sequence <= last).any(|(_, ctime)| *ctime == found)
    });
    if fits {
        return Ok(());
    }
    let had: Vec<_> = line.ctime.iter().map(|(sequence, ctime)| (sequence, ctime.secs, ctime.nanos)).collect();
    Err(format!(
        "time of attribute change {found:?}, names as after {prefix}, own as after {}; it had {had:?}",
        ranges(own)
    ))
}

fn names_difference(history: &History, found: &Objects, digest: u64, first: u64, last: u64) -> String {
    let elsewhere: Vec<u64> = (0..history.names_digests.len() as u64)
        .filter(|&prefix| history.names_digests[prefix as usize] == digest)
        .collect();
    if let (Some(&from), Some(&to)) = (elsewhere.first(), elsewhere.last()) {
        return format!(
            "names as after transactions {from} to {to}, but {first} (\"{}\") was promised and {last} were admitted",
            history.step_of(first)
        );
    }
    let (nearest, differences) = (first..=last)
        .map(|prefix| (prefix, names_differences(history, found, prefix)))
        .min_by_key(|(prefix, differences)| (differences.len(), u64::MAX - prefix))
        .unwrap_or_default();
    let mut message = format!(
        "names are those of no prefix between {first} and {last}; nearest is {nearest} (\"{}\") with {} objects unlike:",
        history.step_of(nearest),
        differences.len()
    );
    for difference in differences.iter().take(SHOWN_MAX) {
        let _ = write!(message, "\n  {difference}");
    }
    message
}

fn names_differences(history: &History, found: &Objects, prefix: u64) -> Vec<String> {
    let mut differences = Vec::new();
    let mut ids: Vec<ObjectId> = history.lines.keys().chain(found.keys()).copied().collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let expected = history.lines.get(&id).and_then(|line| at(&line.names, prefix)).and_then(Option::as_ref);
        let object = found.get(&id);
        let got = object.and_then(|object| object.names_part());
        if expected == got.as_ref() {
            continue;
        }
        let line = history.lines.get(&id);
        let before = line.and_then(|line| at(&line.objects, prefix)).and_then(Option::as_ref);
        let pages = match (before, object) {
            (Some(before), Some(object)) => object.pages_unlike(before),
            _ => Vec::new(),
        };
        differences.push(format!("{id}: expected {expected:?}, found {got:?}, pages unlike: {pages:?}"));
    }
    differences
}

fn ranges(ranges: &[(u64, u64)]) -> String {
    let ranges: Vec<String> = ranges.iter().map(|(from, to)| format!("{from}..{to}")).collect();
    ranges.join(", ")
}
