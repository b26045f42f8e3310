//! An [`ObjectCache`] in memory with nothing below: transactions are whole or not at all, pages carry checksums, and a page
//! can be spoilt to see what its readers do. It keeps snapshots, and can be made to fail. For naming's own tests, so that they need no other layer.

use holdfast_integrity::{Algorithm, Checksum, Protection};
use holdfast_object::{
    Arena, Attributes, Class, DomainId, Durability, Epoch, Error, FrameMut, Hold, Holds, ObjectCache, ObjectChange,
    ObjectId, ObjectKey, Op, Outcome, PAGE_SIZE, PageIndex, PageRef, PageView, PinnedPage, Place, Proved, RequestId,
    Result, Seek, SnapshotDeletion, SnapshotId, SnapshotInfo, Snapshots, Space, Transaction,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

const PAGE: u64 = PAGE_SIZE as u64;

#[derive(Clone, Default)]
struct Object {
    attributes: Option<Attributes>,
    pages: BTreeMap<PageIndex, PinnedPage>,
}

#[derive(Default)]
struct State {
    objects: HashMap<ObjectId, Object>,
    holds: HashMap<ObjectId, Holds>,
    answers: HashMap<RequestId, Vec<u8>>,
    last_id: u64,
    sequence: u64,
    /// Good bytes of spoilt pages that can be read again.
    below: HashMap<(ObjectId, PageIndex), Box<[u8; PAGE_SIZE]>>,
    refuse: Option<Error>,
    /// Objects whose pages cannot be read, and how often that was tried.
    failing: HashMap<ObjectId, (Error, u64)>,
    /// Objects whose attributes cannot be read.
    unknown: HashMap<ObjectId, Error>,
    brought: Vec<ObjectId>,
    synced: Vec<ObjectId>,
}

impl State {
    /// What attributes of objects say.
    fn said_by(&self, objects: &BTreeSet<ObjectId>) -> Proved {
        objects.iter().fold(Proved::NOTHING, |sum, id| {
            let attributes = self.objects.get(id).and_then(|object| object.attributes.as_ref());
            sum + attributes.map_or(Proved::NOTHING, |attributes| Proved::by(*id, attributes))
        })
    }
}

/// What takes back one step of a transaction.
enum Undo {
    Attributes(ObjectId, Option<Attributes>),
    Page(ObjectId, PageIndex, Option<PinnedPage>),
}

/// What another thread does.
type Meanwhile = Box<dyn FnOnce() + Send>;

pub(crate) struct MemoryCache {
    arena: Arc<Arena>,
    state: Mutex<State>,
    /// Done once, just before the next transaction.
    before_submit: Mutex<Option<Meanwhile>>,
    /// Done once, when this object is looked at.
    before_look: Mutex<Option<(ObjectId, Meanwhile)>>,
}

impl MemoryCache {
    /// Room for `frames` pages.
    pub(crate) fn new(frames: u32) -> Arc<MemoryCache> {
        let arena = Arena::new(frames, 0).expect("memory for the test");
        let state = Mutex::new(State { last_id: 1, ..State::default() });
        Arc::new(MemoryCache { arena, state, before_submit: Mutex::default(), before_look: Mutex::default() })
    }

    /// All objects, in ascending order.
    pub(crate) fn objects(&self) -> Vec<(ObjectId, Attributes)> {
        let state = self.state.lock();
        let mut objects: Vec<_> =
            state.objects.iter().filter_map(|(&id, object)| Some((id, object.visible()?))).collect();
        objects.retain(|(id, _)| id.snapshot() == SnapshotId::LIVE);
        objects.sort_by_key(|(id, _)| *id);
        objects
    }

    /// Changes an attribute or more of an object behind naming's back.
    pub(crate) fn meddle(&self, id: ObjectId, change: impl FnOnce(&mut Attributes)) {
        change(self.state.lock().objects.get_mut(&id).and_then(|object| object.attributes.as_mut()).expect("object"));
    }

    /// Flips a bit of a page in memory. If `again`, the page below is good.
    pub(crate) fn spoil(&self, id: ObjectId, index: PageIndex, bit: usize, again: bool) {
        let mut state = self.state.lock();
        let page = state.objects[&id].pages[&index].clone();
        let good = Box::new(*page.bytes());
        let byte = good[bit / 8] ^ 1 << (bit % 8);
        let at = self.arena.frame_offset(page.page().frame) + (bit / 8) as u64;
        rustix::io::pwrite(self.arena.memory(), &[byte], at).expect("frame in memory");
        assert!(page.verify().is_err());
        if again {
            state.below.insert((id, index), good);
        }
    }

    /// Gives a page other bytes, with the right checksum.
    pub(crate) fn forge(&self, id: ObjectId, index: PageIndex, change: impl FnOnce(&mut [u8; PAGE_SIZE])) {
        let mut frame = self.arena.allocate().expect("free frame");
        let mut state = self.state.lock();
        let object = state.objects.get_mut(&id).expect("object");
        frame.copy_from_slice(object.pages.get(&index).map_or(&[0; PAGE_SIZE], |page| page.bytes()));
        change(&mut frame);
        let checksum = Algorithm::Crc64Nvme.sum(&*frame);
        object.pages.insert(index, frame.publish(checksum));
    }

    /// The bytes of a page that is stored.
    pub(crate) fn page(&self, id: ObjectId, index: PageIndex) -> Option<[u8; PAGE_SIZE]> {
        self.state.lock().objects.get(&id)?.pages.get(&index).map(|page| *page.bytes())
    }

    /// Another one with the same objects, and their pages in the same memory.
    pub(crate) fn copy(&self) -> Arc<MemoryCache> {
        let state = self.state.lock();
        let (objects, holds) = (state.objects.clone(), state.holds.clone());
        let (last_id, sequence) = (state.last_id, state.sequence);
        let state = Mutex::new(State { objects, holds, last_id, sequence, ..State::default() });
        let (before_submit, before_look) = (Mutex::default(), Mutex::default());
        Arc::new(MemoryCache { arena: self.arena.clone(), state, before_submit, before_look })
    }

    /// The next transaction fails.
    pub(crate) fn refuse(&self, error: Error) {
        self.state.lock().refuse = Some(error);
    }

    /// The pages of the object cannot be read from now on.
    pub(crate) fn fail(&self, id: ObjectId, error: Error) {
        self.state.lock().failing.insert(id, (error, 0));
    }

    /// The attributes of the object cannot be read from now on.
    pub(crate) fn fail_attributes(&self, id: ObjectId, error: Error) {
        self.state.lock().unknown.insert(id, error);
    }

    /// How often pages of an object were asked for since it fails.
    pub(crate) fn failed(&self, id: ObjectId) -> u64 {
        self.state.lock().failing[&id].1
    }

    /// The next object gets this id, which is free.
    pub(crate) fn next_id(&self, id: ObjectId) {
        let mut state = self.state.lock();
        assert!(state.objects.get(&id).is_none_or(|object| object.attributes.is_none()));
        state.last_id = id.0 - 1;
    }

    /// Keeps everything as it is in a snapshot.
    pub(crate) fn keep(&self, snapshot: SnapshotId) {
        let mut state = self.state.lock();
        let live: Vec<ObjectId> = state.objects.keys().copied().filter(|id| *id == id.live()).collect();
        for id in live {
            let Object { attributes, pages } = &state.objects[&id];
            let (mut attributes, pages) = (attributes.clone(), pages.clone());
            if let Some(attributes) = &mut attributes {
                attributes.parent = attributes.parent.in_snapshot(snapshot);
                attributes.xattr = attributes.xattr.in_snapshot(snapshot);
                for name in &mut attributes.other_names {
                    name.directory = name.directory.in_snapshot(snapshot);
                }
            }
            state.objects.insert(id.in_snapshot(snapshot), Object { attributes, pages });
        }
    }

    /// What another thread does just before the next transaction.
    pub(crate) fn before_submit(&self, meanwhile: impl FnOnce() + Send + 'static) {
        *self.before_submit.lock() = Some(Box::new(meanwhile));
    }

    /// What another thread does just before somebody asks for attributes of the object, or just after somebody asked which of its
    /// pages changed.
    pub(crate) fn before_look(&self, id: ObjectId, meanwhile: impl FnOnce() + Send + 'static) {
        *self.before_look.lock() = Some((id, Box::new(meanwhile)));
    }

    /// Whether that is still to come.
    pub(crate) fn will_act(&self) -> bool {
        self.before_look.lock().is_some()
    }

    fn looked_at(&self, id: ObjectId) {
        let meanwhile = self.before_look.lock().take_if(|(before, _)| *before == id);
        if let Some((_, meanwhile)) = meanwhile {
            meanwhile();
        }
    }

    /// What renames brought.
    pub(crate) fn brought(&self) -> Vec<ObjectId> {
        self.state.lock().brought.clone()
    }

    /// What was synced.
    pub(crate) fn synced(&self) -> Vec<ObjectId> {
        self.state.lock().synced.clone()
    }

    /// All sessions end, as when the store is closed.
    pub(crate) fn end_sessions(&self) {
        let mut state = self.state.lock();
        state.holds.clear();
        state.answers.clear();
    }

    fn key(id: ObjectId) -> ObjectKey {
        ObjectKey { domain: DomainId::MAIN, object: id }
    }

    fn place(id: ObjectId, index: PageIndex) -> Place {
        Place { object: Some(Self::key(id)), index: Some(index), ..Place::default() }
    }
}

impl Object {
    fn visible(&self) -> Option<Attributes> {
        self.attributes.clone().map(|attributes| Attributes { blocks: self.pages.len() as u64, ..attributes })
    }
}

/// A transaction being done.
struct Work<'a> {
    arena: &'a Arc<Arena>,
    state: &'a mut State,
    undo: Vec<Undo>,
    /// Objects cut or zeroed: parts of their pages cannot be written in the same transaction any more.
    cut: Vec<ObjectId>,
}

impl Work<'_> {
    fn attributes(&self, id: ObjectId) -> Result<Attributes> {
        let object = self.state.objects.get(&id).and_then(|object| object.attributes.clone());
        object.ok_or(Error::NoObject(MemoryCache::key(id)))
    }

    fn set(&mut self, id: ObjectId, attributes: Option<Attributes>) {
        let object = self.state.objects.entry(id).or_default();
        self.undo.push(Undo::Attributes(id, std::mem::replace(&mut object.attributes, attributes)));
    }

    fn put(&mut self, id: ObjectId, index: PageIndex, page: Option<PinnedPage>) {
        let pages = &mut self.state.objects.entry(id).or_default().pages;
        let old = match page {
            Some(page) => pages.insert(index, page),
            None => pages.remove(&index),
        };
        self.undo.push(Undo::Page(id, index, old));
    }

    fn cut(&mut self, id: ObjectId, first: PageIndex, end: PageIndex) {
        let pages = self.state.objects.get(&id).map(|object| &object.pages);
        let gone: Vec<_> = pages.into_iter().flat_map(|pages| pages.range(first..end)).map(|(&i, _)| i).collect();
        gone.into_iter().for_each(|index| self.put(id, index, None));
    }

    /// Makes a page from its old bytes and new ones.
    fn merge(&mut self, id: ObjectId, index: PageIndex, start: usize, bytes: &[u8]) -> Result<()> {
        let old = self.state.objects.get(&id).and_then(|object| object.pages.get(&index)).cloned();
        let mut frame = self.arena.allocate().ok_or(Error::NoFrames { frames: u64::from(self.arena.frames()) })?;
        frame.copy_from_slice(match &old {
            Some(page) => page.verify().map_err(|mismatch| {
                let (expected, got) = mismatch.expected_and_got();
                Error::corrupt(MemoryCache::place(id, index), "checksum", expected, got)
            })?,
            None => &[0; PAGE_SIZE],
        });
        frame[start..start + bytes.len()].copy_from_slice(bytes);
        let checksum = Algorithm::Crc64Nvme.sum(&*frame);
        self.put(id, index, Some(frame.publish(checksum)));
        Ok(())
    }

    fn zero(&mut self, id: ObjectId, offset: u64, end: u64) -> Result<()> {
        let (first_whole, end_whole) = (offset.div_ceil(PAGE), end / PAGE);
        self.cut(id, first_whole, end_whole.max(first_whole));
        let mut at = offset;
        while at < end {
            let (index, start) = (at / PAGE, at % PAGE);
            let piece = (PAGE - start).min(end - at);
            if piece < PAGE && self.state.objects.get(&id).is_some_and(|object| object.pages.contains_key(&index)) {
                self.merge(id, index, start as usize, &vec![0; piece as usize])?;
            }
            // Whole pages are cut already; go to the last page at once.
            at = if piece == PAGE { (end_whole * PAGE).max(at + PAGE) } else { at + piece };
        }
        Ok(())
    }

    fn resize(&mut self, id: ObjectId, size: u64) -> Result<()> {
        let attributes = self.attributes(id)?;
        if size < attributes.size {
            self.cut(id, size.div_ceil(PAGE), u64::MAX);
            self.zero(id, size, size.next_multiple_of(PAGE))?;
        }
        self.set(id, Some(Attributes { size, ..attributes }));
        Ok(())
    }

    fn grow(&mut self, id: ObjectId, size_min: u64) -> Result<()> {
        let attributes = self.attributes(id)?;
        let size = attributes.size.max(size_min);
        self.set(id, Some(Attributes { size, ..attributes }));
        Ok(())
    }

    fn apply(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Create { id, attributes } => {
                if self.attributes(*id).is_ok() {
                    return Err(Error::ObjectExists(MemoryCache::key(*id)));
                }
                assert_eq!(attributes.size, 0, "a new object has no bytes");
                self.set(*id, Some(Attributes { generation: self.state.sequence + 1, ..attributes.clone() }));
            }
            Op::Delete { id } => {
                self.attributes(*id)?;
                self.cut(*id, 0, u64::MAX);
                self.set(*id, None);
            }
            Op::Write { id, fragments, size_min } => {
                self.attributes(*id)?;
                let ascending = fragments.windows(2).all(|pair| pair[0].index < pair[1].index);
                assert!(ascending, "fragments in ascending order: {fragments:?}");
                for fragment in fragments {
                    let page = self.arena.pin(fragment.page).expect("a fragment's frame is pinned by its sender");
                    let (start, end) = (usize::from(fragment.start), usize::from(fragment.end));
                    if !fragment.is_whole() && self.cut.contains(id) {
                        return Err(Error::Protocol(format!("{id} is cut and written in one transaction")));
                    }
                    let bytes = &page.bytes()[start..end];
                    assert_eq!(page.sum(), page.sum().algorithm().sum(bytes), "a fragment's checksum is of its bytes");
                    if fragment.is_whole() {
                        self.put(*id, fragment.index, Some(page));
                    } else {
                        self.merge(*id, fragment.index, start, bytes)?;
                    }
                }
                self.grow(*id, *size_min)?;
            }
            Op::Truncate { id, size } => {
                self.cut.push(*id);
                self.resize(*id, *size)?;
            }
            Op::Zero { id, offset, length } => {
                self.attributes(*id)?;
                self.cut.push(*id);
                self.zero(*id, *offset, offset + length)?;
            }
            Op::SetAttributes { id, set } => {
                let mut attributes = self.attributes(*id)?;
                set.apply(&mut attributes);
                self.set(*id, Some(attributes));
            }
            Op::Copy { source, source_first, target, target_first, pages, size_min } => {
                self.attributes(*source)?;
                self.attributes(*target)?;
                assert!(source != target || source_first.abs_diff(*target_first) >= *pages, "a copy does not overlap");
                let object = &self.state.objects[source];
                let range = object.pages.range(*source_first..source_first + pages);
                let shared: Vec<_> = range.map(|(&index, page)| (index, page.clone())).collect();
                self.cut(*target, *target_first, target_first + pages);
                for (index, page) in shared {
                    self.put(*target, index - source_first + target_first, Some(page));
                }
                self.grow(*target, *size_min)?;
            }
            Op::Adopt { .. } | Op::Lose { .. } => return Err(Error::Protocol("only below the cache".into())),
        }
        Ok(())
    }

    fn take_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Attributes(id, attributes) => self.state.objects.entry(id).or_default().attributes = attributes,
                Undo::Page(id, index, page) => {
                    let pages = &mut self.state.objects.entry(id).or_default().pages;
                    match page {
                        Some(page) => pages.insert(index, page),
                        None => pages.remove(&index),
                    };
                }
            }
        }
    }
}

impl ObjectCache for MemoryCache {
    fn domain(&self) -> DomainId {
        DomainId::MAIN
    }

    fn protection(&self) -> Protection {
        Protection::Uniform
    }

    fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    fn frames(&self, count: usize) -> Result<Vec<FrameMut>> {
        let frames = (0..count).map(|_| self.arena.allocate());
        frames.collect::<Option<_>>().ok_or(Error::NoFrames { frames: u64::from(self.arena.frames()) })
    }

    fn new_object(&self) -> Result<ObjectId> {
        let mut state = self.state.lock();
        state.last_id += 1;
        Ok(ObjectId(state.last_id))
    }

    fn attributes(&self, id: ObjectId) -> Result<Attributes> {
        self.looked_at(id);
        let state = self.state.lock();
        if let Some(error) = state.unknown.get(&id) {
            return Err(error.clone());
        }
        state.objects.get(&id).and_then(Object::visible).ok_or(Error::NoObject(Self::key(id)))
    }

    fn read(&self, id: ObjectId, first: PageIndex, count: usize) -> Result<Vec<PageView>> {
        let mut state = self.state.lock();
        if let Some((error, tries)) = state.failing.get_mut(&id) {
            *tries += 1;
            return Err(error.clone());
        }
        let object = state.objects.get(&id).filter(|object| object.attributes.is_some());
        let object = object.ok_or(Error::NoObject(Self::key(id)))?;
        let view = |index| object.pages.get(&index).cloned().map_or(PageView::Zero, PageView::Data);
        Ok((first..first + count as u64).map(view).collect())
    }

    fn reread(&self, id: ObjectId, index: PageIndex, bad: PageRef) -> Result<PageView> {
        let mut state = self.state.lock();
        let place = Self::place(id, index);
        let good = state.below.remove(&(id, index));
        let good = good.ok_or_else(|| Error::corrupt(place, "checksum", bad.checksum, "another"))?;
        let mut frame = self.arena.allocate().ok_or(Error::NoFrames { frames: u64::from(self.arena.frames()) })?;
        frame.copy_from_slice(&*good);
        let page = frame.publish(Checksum::crc64(bad.checksum));
        state.objects.get_mut(&id).expect("object").pages.insert(index, page.clone());
        Ok(PageView::Data(page))
    }

    fn submit(&self, transaction: Transaction) -> Result<Outcome> {
        assert!(transaction.answer.len() <= Transaction::ANSWER_MAX);
        let meanwhile = self.before_submit.lock().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        let mut state = self.state.lock();
        if let Some(answer) = transaction.request.and_then(|request| state.answers.get(&request)) {
            return Ok(Outcome::Repeated { answer: answer.clone() });
        }
        let refuse = state.refuse.take();
        let targets: BTreeSet<ObjectId> = transaction.ops.iter().map(Op::target).collect();
        let before = state.said_by(&targets);
        let mut work = Work { arena: &self.arena, state: &mut state, undo: Vec::new(), cut: Vec::new() };
        // A refused transaction goes to its end first, so that there is something to take back.
        let done = transaction.ops.iter().try_for_each(|op| work.apply(op)).and(refuse.map_or(Ok(()), Err));
        if let Err(error) = done {
            work.take_back();
            return Err(error);
        }
        if let Some(proved) = transaction.proved {
            assert_eq!(state.said_by(&targets) - before, proved, "what is proved, by {:?}", transaction.ops);
        }
        state.sequence += 1;
        state.brought.extend(transaction.brings);
        if let Some(request) = transaction.request {
            state.answers.insert(request, transaction.answer);
        }
        Ok(Outcome::Done { sequence: state.sequence })
    }

    fn answer(&self, request: RequestId) -> Option<Vec<u8>> {
        self.state.lock().answers.get(&request).cloned()
    }

    fn sync(&self, id: ObjectId, _: Durability) -> Result<()> {
        self.attributes(id)?;
        self.state.lock().synced.push(id);
        Ok(())
    }

    fn make_durable(&self, id: ObjectId, durability: Durability) -> Result<()> {
        self.sync(id, durability)
    }

    // Nothing goes bad here.
    fn errors_begin(&self, _: ObjectId) -> u64 {
        0
    }

    fn errors_tell(&self, _: ObjectId, _: u64) -> Option<(u64, Error)> {
        None
    }

    fn sync_all(&self) -> Result<Epoch> {
        Ok(self.state.lock().sequence)
    }

    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>> {
        let state = self.state.lock();
        let object = state.objects.get(&id).filter(|object| object.attributes.is_some());
        let object = object.ok_or(Error::NoObject(Self::key(id)))?;
        let size = object.attributes.as_ref().map_or(0, |attributes| attributes.size);
        let first = offset / PAGE;
        let found = match what {
            Seek::Data => object.pages.range(first..).next().map(|(&index, _)| index),
            Seek::Hole => (first..).find(|index| !object.pages.contains_key(index)),
        };
        let position = found.map(|index| (index * PAGE).max(offset));
        Ok(match what {
            Seek::Data => position.filter(|&position| position < size),
            Seek::Hole => position.map(|position| position.min(size)).filter(|_| offset < size),
        })
    }

    fn hold(&self, id: ObjectId, hold: Hold, delta: i64) -> Holds {
        let mut state = self.state.lock();
        let holds = state.holds.entry(id).or_default();
        let count = match hold {
            Hold::Lookup => &mut holds.lookups,
            Hold::Open => &mut holds.opens,
        };
        *count = count.saturating_add_signed(delta);
        *holds
    }

    fn orphans(&self) -> Result<Vec<ObjectId>> {
        let state = self.state.lock();
        let free = |id: &ObjectId| state.holds.get(id).is_none_or(Holds::is_free);
        let unnamed = |object: &Object| object.attributes.as_ref().is_some_and(|attributes| attributes.nlink == 0);
        let mut orphans: Vec<_> =
            state.objects.iter().filter(|(id, object)| unnamed(object) && free(id)).map(|(&id, _)| id).collect();
        orphans.sort();
        Ok(orphans)
    }

    fn space(&self) -> Space {
        let total = u64::from(self.arena.frames());
        Space { total, free: u64::from(self.arena.free_frames()), pending: 0, reserve: total / 64, ..Space::default() }
    }
}

impl Snapshots for MemoryCache {
    fn snapshot_create(&self, name: &str) -> Result<SnapshotInfo> {
        Err(Error::SnapshotName(name.into()))
    }

    fn snapshot_delete(&self, name: &str) -> Result<SnapshotInfo> {
        Err(Error::NoSnapshot(name.into()))
    }

    fn snapshot_delete_more(&self) -> Result<Vec<SnapshotDeletion>> {
        Ok(Vec::new())
    }

    fn snapshot_deletions(&self) -> Vec<SnapshotDeletion> {
        Vec::new()
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        Ok(Vec::new())
    }

    fn snapshots_uncounted(&self) -> Result<Vec<SnapshotInfo>> {
        Ok(Vec::new())
    }

    fn changed_objects(
        &self,
        states: (SnapshotId, SnapshotId),
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<ObjectChange>> {
        let state = self.state.lock();
        let ids: BTreeSet<ObjectId> = state.objects.keys().map(|id| id.live()).filter(|id| *id > after).collect();
        let changes = ids.into_iter().filter_map(|object| {
            let [before, after] = [states.0, states.1].map(|snapshot| state.objects.get(&object.in_snapshot(snapshot)));
            // As stored: what an object refers to is meant in the same state.
            let stored = |object: Option<&Object>| {
                object.and_then(Object::visible).map(|mut attributes| {
                    (attributes.parent, attributes.xattr) = (attributes.parent.live(), attributes.xattr.live());
                    attributes.other_names.iter_mut().for_each(|name| name.directory = name.directory.live());
                    attributes
                })
            };
            let change = ObjectChange { object, before: stored(before), after: stored(after) };
            let is_same = change.before == change.after && different_pages(before, after).is_empty();
            (!is_same).then_some(change)
        });
        Ok(changes.take(limit).collect())
    }

    fn changed_pages(
        &self,
        id: ObjectId,
        states: (SnapshotId, SnapshotId),
        first: PageIndex,
        limit: usize,
    ) -> Result<Vec<PageIndex>> {
        let state = self.state.lock();
        let [before, after] = [states.0, states.1].map(|snapshot| state.objects.get(&id.in_snapshot(snapshot)));
        let pages = different_pages(before, after).into_iter().filter(|page| *page >= first).take(limit).collect();
        drop(state);
        self.looked_at(id);
        Ok(pages)
    }
}

fn different_pages(before: Option<&Object>, after: Option<&Object>) -> BTreeSet<PageIndex> {
    let page =
        |object: Option<&Object>, index| object.and_then(|object| object.pages.get(&index)).map(PinnedPage::page);
    let indices = before.into_iter().chain(after).flat_map(|object| object.pages.keys().copied());
    indices.filter(|&index| page(before, index) != page(after, index)).collect()
}

/// The class that naming gives objects of these attributes, for assertions.
pub(crate) fn expected_class(attributes: &Attributes) -> Class {
    if attributes.kind == holdfast_object::Kind::Regular { Class::Own } else { Class::Names }
}
