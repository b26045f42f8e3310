//! What the snapshots of a recovered store must be.
//!
//! A snapshot is the state after a prefix of all transactions: at least those admitted before it was asked for, at most
//! those admitted by the time that it was answered. Once answered it is there after every crash, with just these objects,
//! until its deletion is asked for; once that is answered it is gone after every crash. In between either is right. What
//! the tree looks like through the name space is compared with the model too, where the model was kept at that point.

use super::history::{History, at};
use super::objects::{Object, Objects, digest, own_part};
use super::observe;
use crate::model::{Model, compare_below};
use crate::stack::Stack;
use holdfast_naming::{Atime, Request};
use holdfast_object::{ObjectId, SnapshotInfo, Snapshots};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

/// Objects shown at most in a message.
const SHOWN_MAX: usize = 8;

/// Everything that a snapshot has.
pub(super) struct Contents {
    digest: u64,
    objects: Objects,
    /// The tree, if the model was kept after the same transactions.
    model: Option<Model>,
}

/// A snapshot in the history of a workload. Positions are the recorder's.
pub(super) struct Life {
    pub(super) name: String,
    /// Where the snapshot was asked for; none if it was there at the start.
    asked: Option<usize>,
    /// Where it was answered.
    answered: Option<usize>,
    /// The last transaction before it was asked for.
    first: u64,
    /// Known from the answer on.
    contents: Option<Arc<Contents>>,
    deletion_asked: Option<usize>,
    deletion_answered: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Must,
    May,
    MustNot,
}

/// A snapshot that was there when a workload began, or that a recovery found to be as it should.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) contents: Arc<Contents>,
}

impl Kept {
    /// Size of its largest object.
    pub(super) fn largest_bytes(&self) -> u64 {
        self.contents.objects.values().map(|object| object.attributes.size).max().unwrap_or(0)
    }
}

impl Life {
    /// One that is there from the start.
    pub(super) fn kept(kept: &Kept) -> Life {
        let contents = Some(kept.contents.clone());
        Life { answered: Some(0), asked: None, contents, ..Life::asked(kept.name.clone(), 0, 0) }
    }

    /// One that is asked for, after `first` transactions.
    pub(super) fn asked(name: String, position: usize, first: u64) -> Life {
        Life {
            name,
            asked: Some(position),
            answered: None,
            first,
            contents: None,
            deletion_asked: None,
            deletion_answered: None,
        }
    }

    pub(super) fn answer(&mut self, position: usize, contents: Arc<Contents>) {
        (self.answered, self.contents) = (Some(position), Some(contents));
    }

    pub(super) fn ask_deletion(&mut self, position: usize) {
        self.deletion_asked = Some(position);
    }

    pub(super) fn answer_deletion(&mut self, position: usize) {
        self.deletion_answered = Some(position);
    }

    /// Whether it is there as far as the workload knows.
    pub(super) fn is_there(&self) -> bool {
        self.answered.is_some() && self.deletion_asked.is_none()
    }

    /// After a crash at a position.
    fn presence(&self, position: usize) -> Presence {
        let by = |answered: Option<usize>| answered.is_some_and(|answered| answered <= position);
        if by(self.answered) && self.deletion_asked.is_none_or(|asked| position <= asked) {
            Presence::Must
        } else if self.asked.is_some_and(|asked| position <= asked) || by(self.deletion_answered) {
            Presence::MustNot
        } else {
            Presence::May
        }
    }

    /// Whether a crash at a position is in the middle of making or deleting it.
    pub(super) fn is_in_flight(&self, position: usize) -> bool {
        self.presence(position) == Presence::May
    }
}

/// The share of an object in the digest of everything that a state has.
pub(super) fn whole_digest(objects: &Objects, id: ObjectId, object: &Object) -> u64 {
    let ctime = object.is_own().then_some(object.attributes.ctime);
    digest(&(id, object.names_part(), own_part(objects, object), ctime))
}

/// The snapshots of a stack with what is in them. Objects are looked for by all ids that the history knows; that there are
/// no others their number tells.
pub(super) fn observe_snapshots(stack: &Stack, history: &History) -> Result<Vec<(SnapshotInfo, Objects)>, String> {
    let infos = stack.cache.snapshots().map_err(|error| format!("snapshots cannot be listed: {error}"))?;
    let kept = history.snapshots.iter().filter_map(|life| life.contents.as_ref());
    let mut ids: BTreeSet<ObjectId> = kept.flat_map(|contents| contents.objects.keys().copied()).collect();
    ids.extend(history.lines.keys());
    let mut found = Vec::new();
    for info in infos {
        let objects =
            observe::snapshot(stack, info.id, &ids).map_err(|error| format!("snapshot {}: {error}", info.name))?;
        if objects.len() as u64 != info.objects {
            let (name, got) = (&info.name, objects.len());
            return Err(format!("snapshot {name} says it has {} objects, and has {got}", info.objects));
        }
        found.push((info, objects));
    }
    Ok(found)
}

/// What a snapshot has that has just been answered: the state after one of the transactions that it can have been made
/// after.
pub(super) fn contents_of(
    history: &History,
    first: u64,
    last: u64,
    found: &Objects,
    model_at: impl Fn(u64) -> Option<Model>,
) -> Result<Arc<Contents>, String> {
    let sum = |sum: u64, (id, object): (&ObjectId, &Arc<Object>)| sum.wrapping_add(whole_digest(found, *id, object));
    let digest = found.iter().fold(0, sum);
    let alike: Vec<u64> = (first..=last).filter(|prefix| history.whole_digests[*prefix as usize] == digest).collect();
    let Some(&prefix) = alike.last() else {
        let unlike = |prefix: &u64| differences(&objects_at(history, *prefix), found);
        let nearest = (first..=last).map(|prefix| (prefix, unlike(&prefix))).min_by_key(|(_, unlike)| unlike.len());
        let (nearest, unlike) = nearest.unwrap_or_default();
        let message = format!("is as after none of the transactions {first} to {last}; nearest is {nearest}");
        return Err(with_lines(message, &unlike));
    };
    let model = alike.iter().find_map(|prefix| model_at(*prefix));
    Ok(Arc::new(Contents { digest, objects: objects_at(history, prefix), model }))
}

/// Judges the snapshots that a recovery from a crash at `position` found. Gives them.
pub(super) fn judge_snapshots(
    history: &History,
    position: usize,
    stack: &Stack,
    model_at: impl Fn(u64) -> Option<Model>,
) -> Result<Vec<Kept>, String> {
    let found = observe_snapshots(stack, history)?;
    for life in history.snapshots.iter().filter(|life| life.presence(position) == Presence::Must) {
        if !found.iter().any(|(info, _)| info.name == life.name) {
            let answered = life.answered.unwrap_or_default();
            return Err(format!("snapshot {} was answered at position {answered} and is not there", life.name));
        }
    }
    let mut kept = Vec::new();
    for (info, objects) in &found {
        let name = &info.name;
        let lives = history.snapshots.iter().filter(|life| life.name == *name);
        let mut possible = lives.filter(|life| life.presence(position) != Presence::MustNot);
        let Some(life) = possible.next() else {
            return Err(format!("snapshot {name} is there and was not made yet, or is deleted"));
        };
        let contents = match &life.contents {
            Some(contents) => contents.clone(),
            None => contents_of(history, life.first, history.admitted_by(position), objects, &model_at)
                .map_err(|error| format!("snapshot {name} {error}"))?,
        };
        judge_contents(stack, info, objects, &contents)?;
        kept.push(Kept { name: name.clone(), contents });
    }
    Ok(kept)
}

/// The snapshots of a stack are those found before, with the same in them; `gone` may be there or not.
pub(super) fn judge_again(
    stack: &Stack,
    history: &History,
    before: &[Kept],
    gone: Option<&Kept>,
) -> Result<(), String> {
    let found = observe_snapshots(stack, history)?;
    let is_there = |name: &str| found.iter().any(|(info, _)| info.name == name);
    let is_gone = |kept: &&Kept| gone.is_some_and(|gone| gone.name == kept.name) && !is_there(&kept.name);
    let before: Vec<&Kept> = before.iter().filter(|kept| !is_gone(kept)).collect();
    let names: Vec<&str> = found.iter().map(|(info, _)| &*info.name).collect();
    let expected: Vec<&str> = before.iter().map(|kept| &*kept.name).collect();
    if names != expected {
        return Err(format!("there were the snapshots {expected:?}, and now there are {names:?}"));
    }
    found
        .iter()
        .zip(before)
        .try_for_each(|((info, objects), kept)| judge_contents(stack, info, objects, &kept.contents))
}

fn judge_contents(stack: &Stack, info: &SnapshotInfo, found: &Objects, expected: &Contents) -> Result<(), String> {
    let name = &info.name;
    let sum = |sum: u64, (id, object): (&ObjectId, &Arc<Object>)| sum.wrapping_add(whole_digest(found, *id, object));
    if found.iter().fold(0, sum) != expected.digest {
        let message = format!("snapshot {name} is not as it was made");
        return Err(with_lines(message, &differences(&expected.objects, found)));
    }
    let Some(model) = &expected.model else { return Ok(()) };
    let namespace = stack.namespace(Atime::Never);
    let mut directory = ObjectId::ROOT;
    for component in [&b".holdfast"[..], b"snapshots", name.as_bytes()] {
        let next = namespace.lookup(&Request::ROOT, directory, component);
        directory = next.map_err(|error| format!("the way to snapshot {name}: {error}"))?.id;
    }
    let unlike: Vec<String> = compare_below(&namespace, model, directory).iter().map(ToString::to_string).collect();
    if unlike.is_empty() {
        return Ok(());
    }
    Err(with_lines(format!("the tree of snapshot {name} differs from the model"), &unlike))
}

fn objects_at(history: &History, prefix: u64) -> Objects {
    let object = |(id, line): (&ObjectId, &super::history::Line)| Some((*id, at(&line.objects, prefix)?.clone()?));
    history.lines.iter().filter_map(object).collect()
}

fn differences(expected: &Objects, found: &Objects) -> Vec<String> {
    let ids: BTreeSet<ObjectId> = expected.keys().chain(found.keys()).copied().collect();
    let mut unlike = Vec::new();
    for id in ids {
        match (expected.get(&id), found.get(&id)) {
            (Some(expected_one), Some(got)) => {
                if whole_digest(expected, id, expected_one) != whole_digest(found, id, got) {
                    let (pages, had, has) = (got.pages_unlike(expected_one), &expected_one.attributes, &got.attributes);
                    unlike.push(format!("{id}: expected {had:?}, found {has:?}, pages unlike: {pages:?}"));
                }
            }
            (Some(_), None) => unlike.push(format!("{id} is not there")),
            (None, _) => unlike.push(format!("{id} is there and should not be")),
        }
    }
    unlike
}

fn with_lines(mut message: String, lines: &[String]) -> String {
    for line in lines.iter().take(SHOWN_MAX) {
        let _ = write!(message, "\n  {line}");
    }
    message
}
