//! What a workload did and what it was told: every transaction in admission order, and every answered sync.
//!
//! [`Tap`] stands between naming and cache and writes it down. Sequence 0 is the state at the start.

use super::objects::{Change, NamesPart, Object, Objects, OwnPart, apply, digest, own_part};
use super::snapshots::{Contents, Kept, Life, whole_digest};
use holdfast_integrity::Protection;
use holdfast_object::{
    Arena, Attributes, Class, DomainId, Durability, Epoch, Error, FrameMut, Hold, Holds, Kind, ObjectCache, ObjectId,
    Op, Outcome, PageIndex, PageRef, PageView, RequestId, Result, Seek, Space, Timestamp, Transaction,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The versions of one object, each from a transaction on.
#[derive(Default)]
pub(super) struct Line {
    pub(super) names: Vec<(u64, Option<NamesPart>)>,
    pub(super) own: Vec<(u64, Option<OwnPart>)>,
    pub(super) ctime: Vec<(u64, Timestamp)>,
    /// Whole objects, for messages.
    pub(super) objects: Vec<(u64, Option<Arc<Object>>)>,
}

/// The newest version at `sequence`.
pub(super) fn at<T>(versions: &[(u64, T)], sequence: u64) -> Option<&T> {
    let after = versions.partition_point(|(from, _)| *from <= sequence);
    versions.get(after.checked_sub(1)?).map(|(_, version)| version)
}

/// What an answered sync promised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// Recorder position when it was answered.
    pub(super) position: usize,
    /// The last transaction admitted before it was called.
    pub(super) sequence: u64,
    /// The object whose own changes it covers; `None` for all.
    pub(super) object: Option<ObjectId>,
}

/// What was done, for messages.
pub(super) struct Step {
    /// The last transaction before.
    sequence: u64,
    /// Recorder position before.
    position: usize,
    action: String,
}

/// All of it.
pub(super) struct History {
    pub(super) lines: BTreeMap<ObjectId, Line>,
    pub(super) current: Objects,
    /// Last transaction.
    pub(super) sequence: u64,
    /// Per transaction, from 1 on: the recorder position when it was admitted.
    pub(super) admitted: Vec<usize>,
    /// Per sequence, from 0 on: the digests of all objects' names parts, summed up.
    pub(super) names_digests: Vec<u64>,
    /// The same of everything that the objects are.
    pub(super) whole_digests: Vec<u64>,
    /// The share of each object in the last of them.
    wholes: BTreeMap<ObjectId, u64>,
    /// In the order in which they were asked for.
    pub(super) snapshots: Vec<Life>,
    pub(super) promises: Vec<Promise>,
    /// Transactions that put a file in another's place.
    pub(super) brings: Vec<(u64, ObjectId)>,
    /// What was done, for messages: after which transaction, at which recorder position.
    pub(super) steps: Vec<Step>,
}

impl History {
    /// Begins with these objects and snapshots.
    pub(super) fn new(objects: Objects, snapshots: &[Kept]) -> History {
        let mut history = History {
            lines: BTreeMap::new(),
            current: objects,
            sequence: 0,
            admitted: Vec::new(),
            names_digests: Vec::new(),
            whole_digests: Vec::new(),
            wholes: BTreeMap::new(),
            snapshots: snapshots.iter().map(Life::kept).collect(),
            promises: Vec::new(),
            brings: Vec::new(),
            steps: Vec::new(),
        };
        let all: BTreeSet<ObjectId> = history.current.keys().copied().collect();
        let [names, whole] = history.note_versions(&all);
        history.names_digests.push(names);
        history.whole_digests.push(whole);
        history
    }

    fn admit(&mut self, sequence: u64, position: usize, changes: &[Change], brings: Option<ObjectId>) {
        assert_eq!(sequence, self.sequence + 1, "transactions come in admission order");
        self.sequence = sequence;
        self.admitted.push(position);
        let mut touched = BTreeSet::new();
        for change in changes {
            let id = match change {
                Change::Write { id, .. } => *id,
                Change::Other(op) => op.target(),
            };
            touched.insert(id);
            touched.extend(self.owner(id));
            apply(&mut self.current, change);
            touched.extend(self.owner(id));
        }
        let [names, whole] = self.note_versions(&touched);
        let before = |digests: &[u64]| digests.last().copied().unwrap_or_default();
        self.names_digests.push(before(&self.names_digests).wrapping_add(names));
        self.whole_digests.push(before(&self.whole_digests).wrapping_add(whole));
        if let Some(id) = brings {
            self.brings.push((sequence, id));
        }
    }

    /// The file to which an object with extended attributes belongs.
    fn owner(&self, id: ObjectId) -> Option<ObjectId> {
        let object = self.current.get(&id)?;
        (object.attributes.kind == Kind::Xattr && object.attributes.class == Class::Own)
            .then_some(object.attributes.parent)
    }

    /// Notes new versions of objects; gives by how much the digests change, that of all names and that of everything.
    fn note_versions(&mut self, ids: &BTreeSet<ObjectId>) -> [u64; 2] {
        let (mut change, mut whole) = (0u64, 0u64);
        for &id in ids {
            let object = self.current.get(&id).cloned();
            let line = self.lines.entry(id).or_default();
            let names = object.as_ref().and_then(|object| object.names_part());
            let before = line.names.last().and_then(|(_, names)| names.clone());
            if names != before {
                change = change.wrapping_add(names_digest(id, &names)).wrapping_sub(names_digest(id, &before));
                line.names.push((self.sequence, names));
            }
            let own = object.as_ref().filter(|object| object.is_own()).map(|object| own_part(&self.current, object));
            if line.own.last().and_then(|(_, own)| own.clone()) != own {
                line.own.push((self.sequence, own));
            }
            if let Some(object) = &object {
                line.ctime.push((self.sequence, object.attributes.ctime));
            }
            let share = object.as_ref().map_or(0, |object| whole_digest(&self.current, id, object));
            let before = self.wholes.insert(id, share).unwrap_or(0);
            whole = whole.wrapping_add(share).wrapping_sub(before);
            line.objects.push((self.sequence, object));
        }
        [change, whole]
    }

    /// Whether a crash at a position is in the middle of making or deleting a snapshot.
    pub(super) fn is_snapshot_in_flight(&self, position: usize) -> bool {
        self.snapshots.iter().any(|life| life.is_in_flight(position))
    }

    /// The last transaction that a crash at a position can have brought.
    pub(super) fn admitted_by(&self, position: usize) -> u64 {
        self.admitted.partition_point(|admitted| *admitted <= position) as u64
    }

    /// The step during or after which a transaction was admitted.
    pub(super) fn step_of(&self, sequence: u64) -> &str {
        let after = self.steps.partition_point(|step| step.sequence < sequence);
        after.checked_sub(1).map_or("(start)", |step| &self.steps[step].action)
    }

    /// The step that was under way at a position.
    pub(super) fn step_at(&self, position: usize) -> &str {
        let after = self.steps.partition_point(|step| step.position <= position);
        after.checked_sub(1).map_or("(start)", |step| &self.steps[step].action)
    }

    /// Everything that was done and promised.
    pub(super) fn trace(&self) -> Vec<String> {
        let steps = self.steps.iter();
        let steps = steps.map(|step| (step.position, format!("after {}: {}", step.sequence, step.action)));
        let promises = self.promises.iter().map(|promise| {
            let what = promise.object.map_or("everything".into(), |id| format!("names, and {id}"));
            (promise.position, format!("  promised: {what} up to {}", promise.sequence))
        });
        let mut lines: Vec<(usize, String)> = steps.chain(promises).collect();
        lines.sort_by_key(|(position, _)| *position);
        lines.into_iter().map(|(position, line)| format!("[{position}] {}", shortened(&line))).collect()
    }
}

/// A line that fits a screen.
fn shortened(line: &str) -> String {
    const CHARACTERS_MAX: usize = 200;
    line.chars().take(CHARACTERS_MAX).collect()
}

/// The share of one object in the digest of all names.
pub(super) fn names_digest(id: ObjectId, names: &Option<NamesPart>) -> u64 {
    names.as_ref().map_or(0, |names| digest(&(id, names)))
}

/// A cache that writes down what passes.
pub(super) struct Tap {
    inner: Arc<dyn ObjectCache>,
    history: Mutex<History>,
    position: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Tap {
    /// `position` tells the recorder's.
    pub(super) fn new(
        inner: Arc<dyn ObjectCache>,
        objects: Objects,
        snapshots: &[Kept],
        position: impl Fn() -> usize + Send + Sync + 'static,
    ) -> Tap {
        Tap { inner, history: Mutex::new(History::new(objects, snapshots)), position: Box::new(position) }
    }

    /// The recorder's.
    pub(super) fn position(&self) -> usize {
        (self.position)()
    }

    /// The last transaction so far.
    pub(super) fn sequence(&self) -> u64 {
        self.history.lock().sequence
    }

    /// Notes what is about to be done.
    pub(super) fn note_step(&self, step: String) {
        let mut history = self.history.lock();
        let sequence = history.sequence;
        let position = (self.position)();
        history.steps.push(Step { sequence, position, action: shortened(&step) });
    }

    /// Everything up to `sequence` was said to be durable.
    pub(super) fn note_recovery_point(&self, sequence: u64) {
        let position = (self.position)();
        self.history.lock().promises.push(Promise { position, sequence, object: None });
    }

    /// A snapshot is asked for.
    pub(super) fn ask_snapshot(&self, name: &str) {
        let mut history = self.history.lock();
        let first = history.sequence;
        history.snapshots.push(Life::asked(name.to_string(), (self.position)(), first));
    }

    /// The snapshot asked for last was answered at `position`; or it was refused.
    pub(super) fn answer_snapshot(&self, answer: Option<(usize, Arc<Contents>)>) {
        let mut history = self.history.lock();
        let Some(mut life) = history.snapshots.pop() else { return };
        if let Some((position, contents)) = answer {
            life.answer(position, contents);
            history.snapshots.push(life);
        }
    }

    /// The deletion of a snapshot is asked for, or has been answered.
    pub(super) fn note_deletion(&self, name: &str, is_answered: bool) {
        let position = (self.position)();
        let mut history = self.history.lock();
        let Some(life) = history.snapshots.iter_mut().rev().find(|life| life.name == name) else { return };
        if is_answered { life.answer_deletion(position) } else { life.ask_deletion(position) }
    }

    /// What was written down.
    pub(super) fn with_history<T>(&self, use_it: impl FnOnce(&History) -> T) -> T {
        use_it(&self.history.lock())
    }

    /// What was written down; nothing is from now on.
    pub(super) fn take_history(&self) -> History {
        std::mem::replace(&mut self.history.lock(), History::new(Objects::new(), &[]))
    }

    fn changes(&self, ops: &[Op]) -> Result<Vec<Change>> {
        let change = |op: &Op| {
            let Op::Write { id, fragments, size_min } = op else { return Ok(Change::Other(op.clone())) };
            let pieces = fragments.iter().map(|fragment| {
                let page = self.inner.arena().pin(fragment.page);
                let page = page.ok_or_else(|| Error::Protocol("a fragment's frame is not in use".into()))?;
                let (start, end) = (usize::from(fragment.start), usize::from(fragment.end));
                Ok((fragment.index, start, page.bytes()[start..end].to_vec()))
            });
            Ok(Change::Write { id: *id, pieces: pieces.collect::<Result<_>>()?, size_min: *size_min })
        };
        ops.iter().map(change).collect()
    }
}

impl ObjectCache for Tap {
    fn domain(&self) -> DomainId {
        self.inner.domain()
    }

    fn protection(&self) -> Protection {
        self.inner.protection()
    }

    fn arena(&self) -> &Arc<Arena> {
        self.inner.arena()
    }

    fn frames(&self, count: usize) -> Result<Vec<FrameMut>> {
        self.inner.frames(count)
    }

    fn new_object(&self) -> Result<ObjectId> {
        self.inner.new_object()
    }

    fn attributes(&self, id: ObjectId) -> Result<Attributes> {
        self.inner.attributes(id)
    }

    fn read(&self, id: ObjectId, first: PageIndex, count: usize) -> Result<Vec<PageView>> {
        self.inner.read(id, first, count)
    }

    fn reread(&self, id: ObjectId, index: PageIndex, bad: PageRef) -> Result<PageView> {
        self.inner.reread(id, index, bad)
    }

    fn submit(&self, transaction: Transaction) -> Result<Outcome> {
        let mut changes = self.changes(&transaction.ops)?;
        let brings = transaction.brings;
        let outcome = self.inner.submit(transaction)?;
        if let Outcome::Done { sequence } = outcome {
            for change in &mut changes {
                // The cache gives generations.
                if let Change::Other(Op::Create { id, attributes }) = change {
                    attributes.generation = self.inner.attributes(*id)?.generation;
                }
            }
            let position = (self.position)();
            self.history.lock().admit(sequence, position, &changes, brings);
        }
        Ok(outcome)
    }

    fn answer(&self, request: RequestId) -> Option<Vec<u8>> {
        self.inner.answer(request)
    }

    fn sync(&self, id: ObjectId, durability: Durability) -> Result<()> {
        let sequence = self.sequence();
        self.inner.sync(id, durability)?;
        let position = (self.position)();
        self.history.lock().promises.push(Promise { position, sequence, object: Some(id) });
        Ok(())
    }

    fn make_durable(&self, id: ObjectId, durability: Durability) -> Result<()> {
        let sequence = self.sequence();
        self.inner.make_durable(id, durability)?;
        let position = (self.position)();
        self.history.lock().promises.push(Promise { position, sequence, object: Some(id) });
        Ok(())
    }

    fn errors_begin(&self, id: ObjectId) -> u64 {
        self.inner.errors_begin(id)
    }

    fn errors_tell(&self, id: ObjectId, seen: u64) -> Option<(u64, Error)> {
        self.inner.errors_tell(id, seen)
    }

    fn bad_pages(&self, id: ObjectId, first: PageIndex, limit: usize) -> Result<Vec<PageIndex>> {
        self.inner.bad_pages(id, first, limit)
    }

    fn sync_all(&self) -> Result<Epoch> {
        let sequence = self.sequence();
        let epoch = self.inner.sync_all()?;
        self.note_recovery_point(sequence);
        Ok(epoch)
    }

    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>> {
        self.inner.seek(id, offset, what)
    }

    fn hold(&self, id: ObjectId, hold: Hold, delta: i64) -> Holds {
        self.inner.hold(id, hold, delta)
    }

    fn orphans(&self) -> Result<Vec<ObjectId>> {
        self.inner.orphans()
    }

    fn space(&self) -> Space {
        self.inner.space()
    }

    fn space_expected(&self) -> Space {
        self.inner.space_expected()
    }
}
