//! Planning a transaction: everything that can fail or needs bytes from elsewhere, before anything is changed.
//!
//! A plan holds for the state that it was made from, so it is made and carried out under one lock. What is missing (an
//! object's attributes, an old page to merge with, frames) is fetched without the lock, and the planning starts anew.

use crate::object::Residence;
use crate::pages::{Found, bad_page};
use crate::state::{State, Tree, TreeBlock};
use holdfast_integrity::{Algorithm, Checksum, MergeError, merge_page_in_place};
use holdfast_object::space::{Demand, OBJECTS_PER_MAP_BLOCK, POINTERS_PER_BLOCK, RECORDS_PER_BLOCK, levels};
use holdfast_object::{
    Arena, BlockIdentity, Error, Fragment, FrameMut, Kind, MAX_OBJECT_BYTES, MetadataFrame, ObjectId, Op, PAGE_SIZE,
    PageIndex, PageMismatch, PageRef, PageView, PinnedPage, Result,
};
use rustc_hash::FxHashSet;
use std::sync::{Arc, LazyLock};

const PAGE: u64 = PAGE_SIZE as u64;
/// A page of zeroes.
pub(crate) static ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
/// What a [`PageRef`] to a page of zeroes can have for a checksum, under any algorithm.
pub(crate) static ZERO_SUMS: LazyLock<[u64; Algorithm::ALL.len()]> =
    LazyLock::new(|| Algorithm::ALL.map(|algorithm| algorithm.sum(&ZEROES).as_number()));
static ZERO_SUM: LazyLock<Checksum> = LazyLock::new(|| Algorithm::Crc64Nvme.sum(&ZEROES));

/// What has to be fetched before a plan can be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// Attributes of an object.
    Object(ObjectId),
    /// A page of the store.
    Page(ObjectId, PageIndex),
    /// A clean page whose bytes do not match any more.
    Reread(ObjectId, PageIndex, PageRef),
    /// A frame to build a page in.
    Frame,
    /// The pages are known once this epoch is a recovery point.
    Epoch(u64),
}

/// What one operation puts into the cache.
pub(crate) enum Step {
    /// Nothing but the operation itself.
    Plain,
    /// New page versions: of a write, or at the ragged ends of a zeroed range.
    Pages(Vec<(PageIndex, PinnedPage)>),
    /// Pages of a copy's source that are in memory, shared by the target; the identity of clean ones.
    Shared(Vec<(PageIndex, PinnedPage, Option<BlockIdentity>)>),
}

/// A transaction that cannot fail any more.
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) demand: Demand,
    /// Tree blocks counted in `demand`.
    pub(crate) tree: FxHashSet<TreeBlock>,
}

pub(crate) enum Planned {
    Ready(Plan),
    Wants(Vec<Want>),
}

/// A page fetched for a plan. It counts as long as the object has not changed since.
pub(crate) struct Held {
    pub(crate) id: ObjectId,
    pub(crate) index: PageIndex,
    pub(crate) version: Option<u64>,
    pub(crate) view: PageView,
}

pub(crate) struct Planner<'a> {
    state: &'a mut State,
    arena: &'a Arc<Arena>,
    spare: &'a mut Vec<FrameMut>,
    held: &'a [Held],
    wants: Vec<Want>,
    demand: Demand,
    tree: FxHashSet<TreeBlock>,
    /// Most blocks that the reference table can have.
    reference_blocks: u64,
    created: Vec<(ObjectId, Kind)>,
    deleted: Vec<ObjectId>,
    resized: Vec<ObjectId>,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        state: &'a mut State,
        arena: &'a Arc<Arena>,
        spare: &'a mut Vec<FrameMut>,
        held: &'a [Held],
        reference_blocks: u64,
    ) -> Planner<'a> {
        Planner {
            state,
            arena,
            spare,
            held,
            wants: Vec::new(),
            demand: Demand::default(),
            tree: FxHashSet::default(),
            reference_blocks,
            created: Vec::new(),
            deleted: Vec::new(),
            resized: Vec::new(),
        }
    }

    pub(crate) fn plan(mut self, ops: &[Op]) -> Result<Planned> {
        let mut steps = Vec::with_capacity(ops.len());
        for op in ops {
            let step = self.op(op)?;
            steps.push(step);
        }
        Ok(if self.wants.is_empty() {
            Planned::Ready(Plan { steps, demand: self.demand, tree: self.tree })
        } else {
            Planned::Wants(self.wants)
        })
    }

    fn op(&mut self, op: &Op) -> Result<Step> {
        match op {
            Op::Create { id, attributes } => {
                if self.state.objects.contains_key(id) || self.is_created(*id) {
                    return Err(Error::ObjectExists(self.state.key(*id)));
                }
                if attributes.size != 0 || holdfast_object::ObjectId::from_raw(id.0).is_none() {
                    return Err(Error::Protocol(format!("creation of {id} with size {}", attributes.size)));
                }
                self.created.push((*id, attributes.kind));
                self.touch(*id);
                Ok(Step::Plain)
            }
            Op::Delete { id } => {
                self.known(*id)?;
                self.deleted.push(*id);
                self.count_gone(*id, u64::MAX);
                self.touch(*id);
                Ok(Step::Plain)
            }
            Op::SetAttributes { id, .. } => {
                self.known(*id)?;
                self.touch(*id);
                Ok(Step::Plain)
            }
            Op::Write { id, fragments, size_min } => {
                if *size_min > MAX_OBJECT_BYTES {
                    return Err(Error::Limit { what: "object size", limit: MAX_OBJECT_BYTES, got: *size_min });
                }
                if !self.known(*id)? {
                    return Ok(Step::Plain);
                }
                self.touch(*id);
                self.write(*id, fragments)
            }
            Op::Truncate { id, size } => {
                if *size > MAX_OBJECT_BYTES {
                    return Err(Error::Limit { what: "object size", limit: MAX_OBJECT_BYTES, got: *size });
                }
                if !self.known(*id)? {
                    return Ok(Step::Plain);
                }
                self.touch(*id);
                self.resized.push(*id);
                let old = self.state.objects.get(id).map_or(0, |object| object.attributes.size);
                self.count_gone(*id, old.saturating_sub(*size).div_ceil(PAGE) + 1);
                // What was allocated behind the end goes, too, even if the object grows.
                let levels_now = self.state.objects.get(id).map_or(0, |object| object.levels);
                if *size < old || levels(size / PAGE) <= levels_now {
                    self.count_path(*id, size / PAGE, size / PAGE);
                }
                let within = (size % PAGE) as usize;
                if *size >= old || within == 0 {
                    return Ok(Step::Plain);
                }
                let edge = self.zero_within(*id, size / PAGE, within, PAGE_SIZE)?;
                Ok(Step::Pages(edge.into_iter().collect()))
            }
            Op::Zero { id, offset, length } => {
                let end = offset.checked_add(*length).filter(|&end| end <= MAX_OBJECT_BYTES).ok_or(Error::Limit {
                    what: "object size",
                    limit: MAX_OBJECT_BYTES,
                    got: offset.saturating_add(*length),
                })?;
                if !self.known(*id)? || *length == 0 {
                    return Ok(Step::Plain);
                }
                self.touch(*id);
                self.resized.push(*id);
                let (first, last) = (offset / PAGE, end / PAGE);
                self.count_gone(*id, last - first + 1);
                self.count_path(*id, first, first);
                self.count_path(*id, last, first);
                let (from, to) = ((offset % PAGE) as usize, (end % PAGE) as usize);
                let mut edges = Vec::new();
                if first == last {
                    edges.extend(self.zero_within(*id, first, from, to)?);
                } else {
                    if from != 0 {
                        edges.extend(self.zero_within(*id, first, from, PAGE_SIZE)?);
                    }
                    if to != 0 {
                        edges.extend(self.zero_within(*id, last, 0, to)?);
                    }
                }
                Ok(Step::Pages(edges))
            }
            Op::Copy { source, source_first, target, target_first, pages, size_min } => {
                let sane = |first: u64| first.checked_add(*pages).is_some_and(|end| end <= MAX_OBJECT_BYTES / PAGE);
                let overlaps = source == target
                    && source_first < &(target_first + pages)
                    && target_first < &(source_first + pages);
                if !sane(*source_first) || !sane(*target_first) || *size_min > MAX_OBJECT_BYTES || overlaps {
                    return Err(Error::Protocol(format!(
                        "copy of {pages} pages {source} {source_first} to {target} {target_first}"
                    )));
                }
                if !(self.known(*source)? & self.known(*target)?) {
                    return Ok(Step::Plain);
                }
                self.count_gone(*target, *pages);
                self.touch(*target);
                self.resized.push(*target);
                self.copy(*source, *source_first, *target, *target_first, *pages)
            }
            Op::Adopt { .. } | Op::Lose { .. } => Err(Error::Protocol("operation is for the store only".into())),
        }
    }

    fn is_created(&self, id: ObjectId) -> bool {
        self.created.iter().any(|(created, _)| *created == id)
    }

    /// Whether the object's attributes are in memory; if not, they are wanted. An error also if this transaction has deleted it before:
    /// so it is with an object that a foreign record calls its own extended attributes.
    fn known(&mut self, id: ObjectId) -> Result<bool> {
        if self.deleted.contains(&id) {
            return Err(Error::NoObject(self.state.key(id)));
        }
        // What the operation goes by, and what it leaves as it is.
        self.state.heal(id)?;
        if self.state.objects.contains_key(&id) || self.is_created(id) {
            return Ok(true);
        }
        if self.state.gone.contains_key(&id) {
            return Err(Error::NoObject(self.state.key(id)));
        }
        self.want(Want::Object(id));
        Ok(false)
    }

    fn want(&mut self, want: Want) {
        if want == Want::Frame || !self.wants.contains(&want) {
            self.wants.push(want);
        }
    }

    /// Counts what a change of the object's record costs.
    fn touch(&mut self, id: ObjectId) {
        if self.state.open.objects.contains(&id) {
            return;
        }
        let pages = [id.0 / RECORDS_PER_BLOCK, id.0 / OBJECTS_PER_MAP_BLOCK];
        for (known, page) in self.state.table_levels.iter_mut().zip(pages) {
            *known = levels(page).max(*known);
        }
        let [table, maps] = self.state.table_levels;
        self.count_tree(Tree::Table, 0, pages[0], table);
        if self.count_tree(Tree::Maps, 0, pages[1], maps) {
            // There are two maps.
            self.demand.tree_blocks += 1 + u64::from(maps);
        }
    }

    /// Counts a block and those above it, up to `top`; whether it is the first time.
    fn count_tree(&mut self, tree: Tree, level: u8, index: u64, top: u8) -> bool {
        let mut new = false;
        let mut at = index;
        for level in level..=top {
            // The first block of a level is there too when the tree becomes taller, that of the lowest if it had none.
            for index in [at, 0] {
                let block = (tree, level, index);
                if !self.state.open.tree.contains(&block) && self.tree.insert(block) {
                    self.demand.tree_blocks += 1;
                    new = true;
                }
            }
            at /= POINTERS_PER_BLOCK;
        }
        new
    }

    /// Counts at most `pages` stored pages of an object that go away.
    fn count_gone(&mut self, id: ObjectId, pages: u64) {
        let stored = self.state.objects.get(&id).map_or(0, |object| object.attributes.blocks);
        self.demand.pages_gone = self.demand.pages_gone.saturating_add(pages.min(stored));
    }

    /// Counts the tree blocks above a page of an object that will have pages up to `last`.
    fn count_path(&mut self, id: ObjectId, index: PageIndex, last: PageIndex) {
        let leaf = (Tree::Pages(id), 1, index / POINTERS_PER_BLOCK);
        if self.tree.contains(&leaf) || self.state.open.tree.contains(&leaf) {
            return;
        }
        let object = self.state.objects.get(&id);
        let (size, tall) = object.map_or((0, 0), |object| (object.attributes.size, object.levels));
        let last = last.max(index).max(size.div_ceil(PAGE).saturating_sub(1));
        self.count_tree(Tree::Pages(id), 1, index / POINTERS_PER_BLOCK, levels(last).max(tall));
    }

    fn is_metadata(&self, id: ObjectId) -> bool {
        let kind = match self.state.objects.get(&id) {
            Some(object) => Some(object.attributes.kind),
            None => self.created.iter().find(|(created, _)| *created == id).map(|(_, kind)| *kind),
        };
        kind.is_some_and(Kind::is_metadata)
    }

    /// What its pages have in memory.
    fn algorithm(&self, id: ObjectId) -> Algorithm {
        if self.is_metadata(id) { Algorithm::Crc64Nvme } else { self.state.protection.memory() }
    }

    fn count_page(&mut self, id: ObjectId, index: PageIndex) {
        if self.state.objects.get(&id).is_some_and(|object| object.dirty.contains(&index)) {
            return;
        }
        if self.is_metadata(id) {
            self.demand.metadata_pages += 1;
        } else {
            self.demand.pages += 1;
        }
        self.count_path(id, index, index);
    }

    fn write(&mut self, id: ObjectId, fragments: &[Fragment]) -> Result<Step> {
        let mut pages = Vec::with_capacity(fragments.len());
        let mut last = None;
        let is_metadata = self.is_metadata(id);
        for fragment in fragments {
            let (start, end) = (usize::from(fragment.start), usize::from(fragment.end));
            let ordered = last.is_none_or(|last| last < fragment.index);
            if start >= end || end > PAGE_SIZE || fragment.index >= MAX_OBJECT_BYTES / PAGE || !ordered {
                return Err(Error::Protocol(format!("fragment {start}..{end} of page {}", fragment.index)));
            }
            last = Some(fragment.index);
            let Some(bytes) = self.arena.pin(fragment.page) else {
                return Err(Error::Protocol(format!("frame {} was given back before its use", fragment.page.frame)));
            };
            self.count_page(id, fragment.index);
            if bytes.seal().is_some_and(|seal| !(is_metadata && seal.is_of(id, fragment.index))) {
                return Err(Error::Protocol(format!("page {} of {id} is sealed as another one", fragment.index)));
            }
            if fragment.is_whole() {
                // Only what takes the sums along from the last version seals a page ([`FrameMut`] is anybody's): no sums are made anew of bytes that
                // came another way. Of a part the cache does that itself, from the old page's sums.
                if bytes.seal().is_none() && is_metadata {
                    return Err(Error::Protocol(format!("page {} of {id} has no second sum", fragment.index)));
                }
                if bytes.is_in_place() || !is_metadata {
                    pages.push((fragment.index, bytes));
                } else if let Some(Out::Metadata(frame)) = self.out(id) {
                    pages.push((fragment.index, frame.publish_copy(&bytes)));
                }
                continue;
            }
            if self.resized.contains(&id) {
                return Err(Error::Protocol(format!("{id} is cut and written in one transaction")));
            }
            let old = match self.replaces_all(id, fragment) {
                true => Old::Zero,
                false => match self.old_page(id, fragment.index)? {
                    Some(old) => old,
                    None => continue,
                },
            };
            let Some(mut out) = self.out(id) else { continue };
            let part = (&bytes.bytes()[start..end], bytes.sum());
            let merged = out.merge(old.parts(), start, part, self.algorithm(id));
            match merged {
                Ok(sum) => pages.push((fragment.index, out.publish(sum))),
                Err(error) => self.refused(id, fragment.index, &old, error)?,
            }
        }
        Ok(Step::Pages(pages))
    }

    /// Whether nothing of the page that a file has there is left: behind its end a page is zero. So the block at the end of a file that has gone bad
    /// can be written again, as all others.
    fn replaces_all(&self, id: ObjectId, fragment: &Fragment) -> bool {
        let size = self.state.objects.get(&id).map_or(0, |object| object.attributes.size);
        !self.is_metadata(id) && fragment.start == 0 && fragment.index * PAGE + u64::from(fragment.end) >= size
    }

    /// A frame for a new version of one of the object's pages, if there is one; otherwise it is wanted.
    fn out(&mut self, id: ObjectId) -> Option<Out> {
        let Some(frame) = self.spare.pop() else {
            self.want(Want::Frame);
            return None;
        };
        Some(if self.is_metadata(id) { Out::Metadata(frame.into_metadata()) } else { Out::File(frame) })
    }

    /// The page with `from..to` zeroed; nothing if it reads as zero anyway.
    fn zero_within(
        &mut self,
        id: ObjectId,
        index: PageIndex,
        from: usize,
        to: usize,
    ) -> Result<Option<(PageIndex, PinnedPage)>> {
        let Some(old) = self.old_page(id, index)? else { return Ok(None) };
        let Old::Page(page) = &old else { return Ok(None) };
        self.count_page(id, index);
        let Some(mut out) = self.out(id) else { return Ok(None) };
        let (zeroes, algorithm) = (&ZEROES[from..to], self.algorithm(id));
        match out.merge((page.bytes(), page.expected()), from, (zeroes, algorithm.sum(zeroes)), algorithm) {
            Ok(sum) => Ok(Some((index, out.publish(sum)))),
            Err(error) => self.refused(id, index, &old, error).map(|()| None),
        }
    }

    /// The newest version of a page, if it is at hand; otherwise it is wanted.
    fn old_page(&mut self, id: ObjectId, index: PageIndex) -> Result<Option<Old>> {
        let Some(object) = self.state.objects.get(&id) else { return Ok(Some(Old::Zero)) };
        let want = match object.find(index)? {
            Found::Page(page) => {
                // A merge verifies the checksum only.
                return match page.verify_seal() {
                    Ok(()) => Ok(Some(Old::Page(self.state.for_reader(page)))),
                    Err(mismatch) => self.old_is_bad(id, index, &page, &mismatch).map(|()| None),
                };
            }
            Found::Zero => return Ok(Some(Old::Zero)),
            Found::InStore => {
                let now = self.state.version(id);
                let fetched = |held: &&Held| held.id == id && held.index == index && held.version == now;
                match self.held.iter().rfind(fetched) {
                    Some(Held { view: PageView::Data(page), .. }) => return Ok(Some(Old::Page(page.clone()))),
                    Some(Held { view: PageView::Zero, .. }) => return Ok(Some(Old::Zero)),
                    None => Want::Page(id, index),
                }
            }
            Found::After(epoch) => Want::Epoch(epoch),
        };
        self.want(want);
        Ok(None)
    }

    /// A merge found damage: a clean page is mended from below, one of metadata by its twin, a changed one of a file from the intent log; in the new
    /// bytes it is an error.
    fn refused(&mut self, id: ObjectId, index: PageIndex, old: &Old, error: MergeError) -> Result<()> {
        match (error, old) {
            (MergeError::OldPage(mismatch), Old::Page(page)) => self.old_is_bad(id, index, page, &mismatch.into()),
            (error, _) => Err(Error::Protocol(format!("bytes for page {index} of {id}: {error}"))),
        }
    }

    fn old_is_bad(&mut self, id: ObjectId, index: PageIndex, page: &PinnedPage, why: &PageMismatch) -> Result<()> {
        let slot = self.state.objects.get(&id).and_then(|object| object.pages.get(&index));
        if slot.is_some() {
            self.want(Want::Reread(id, index, page.page()));
            return Ok(());
        }
        let error = bad_page(self.state, id, index, why);
        self.state.lose_dirty(id, index, &error);
        Err(error)
    }

    fn copy(
        &mut self,
        source: ObjectId,
        source_first: PageIndex,
        target: ObjectId,
        target_first: PageIndex,
        pages: u64,
    ) -> Result<Step> {
        if self.is_metadata(source) || self.is_metadata(target) {
            return Err(Error::Protocol(format!(
                "pages of {source} for {target}: those of metadata are nobody else's"
            )));
        }
        let mut shared = Vec::new();
        if let Some(object) = self.state.objects.get(&source) {
            let range = source_first..source_first + pages;
            if let Some(error) = object.bad.first_of(range.clone()) {
                return Err(error.clone());
            }
            for (&index, slot) in object.pages.range(range) {
                // Of a page that the intent log has, it knows by the source only.
                let is_logged = !matches!(slot.residence, Residence::Clean(_)) && !object.unlogged.contains(&index);
                if is_logged && slot.page.verify().is_err() {
                    self.wants.push(Want::Reread(source, index, slot.page.page()));
                }
                let identity = match slot.residence {
                    Residence::Clean(identity) => Some(identity),
                    Residence::Dirty | Residence::Frozen => None,
                };
                shared.push((target_first + (index - source_first), slot.page.clone(), identity));
            }
        }
        let last = target_first + pages;
        for leaf in target_first / POINTERS_PER_BLOCK..=last / POINTERS_PER_BLOCK {
            self.count_path(target, leaf * POINTERS_PER_BLOCK, last);
        }
        for (index, _, identity) in &shared {
            if identity.is_none() {
                self.count_page(target, *index);
            }
        }
        // Extra references: in the worst case each in a block of its own, as far as there are so many.
        self.demand.metadata_pages += pages.min(self.reference_blocks);
        Ok(Step::Shared(shared))
    }
}

/// Where a new version of a page is made.
enum Out {
    File(FrameMut),
    Metadata(MetadataFrame),
}

impl Out {
    /// Makes the page `old` with `part` at byte `at`, each under its checksum, and gives the new one's.
    fn merge(
        &mut self,
        old: (&[u8; PAGE_SIZE], Checksum),
        at: usize,
        part: (&[u8], Checksum),
        algorithm: Algorithm,
    ) -> std::result::Result<Checksum, MergeError> {
        match self {
            Out::File(frame) => {
                frame[at..at + part.0.len()].copy_from_slice(part.0);
                merge_page_in_place(old.0, old.1, at, part.0.len(), part.1, algorithm, frame)
            }
            Out::Metadata(frame) => frame.merge(old, at, part, algorithm),
        }
    }

    fn publish(self, sum: Checksum) -> PinnedPage {
        match self {
            Out::File(frame) => frame.publish(sum),
            Out::Metadata(frame) => frame.publish(sum),
        }
    }
}

enum Old {
    Page(PinnedPage),
    Zero,
}

impl Old {
    fn parts(&self) -> (&[u8; PAGE_SIZE], Checksum) {
        match self {
            Old::Page(page) => (page.bytes(), page.expected()),
            Old::Zero => (&ZEROES, *ZERO_SUM),
        }
    }
}
