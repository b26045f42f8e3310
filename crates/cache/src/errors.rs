//! Error tables: changed pages whose bytes went bad in memory before the store had them, and who has been told.
//!
//! Each object has one. A page is entered when it is found bad, wherever that is: by the thread that writes an epoch, by a sync,
//! by a write to a part of it, by a reader. It leaves the table when it is written again, or cut off, or its object is deleted.
//! Until then whoever reads it gets the error.
//! Beside these pages are runs of such that the store has lost, in a copy: what is read of them is the store's to refuse, and the table is there to tell.
//!
//! Who has been told is known by a sequence, as in Linux' errseq_t: one counter of the cache, that goes up with each page entered.
//! A descriptor keeps the counter as of when it was told last; what has a higher one is new to it. It begins with what somebody
//! has been told of already, so that an error that nobody knows of is told to whoever comes next. Whoever syncs everything is told by a
//! sequence of its own, as syncfs(2) is by that of the superblock.
//!
//! Invariant: no sequence in a table is above the cache's counter.

use crate::Cache;
use crate::object::{Residence, Slot};
use crate::ranges::Missing;
use crate::state::State;
use holdfast_object::{Error, ObjectId, PAGE_SIZE, PageIndex, Result};
use std::collections::BTreeMap;
use std::ops::{Range, RangeBounds};

/// Entry of a table.
#[derive(Clone)]
struct Bad {
    sequence: u64,
    error: Error,
    /// The store has an older version of the page, or knows that it has lost it: it will not take it for a hole.
    settled: bool,
}

/// Pages that the store knows to be lost.
#[derive(Clone)]
struct Run {
    pages: Range<PageIndex>,
    sequence: u64,
    error: Error,
}

/// An object's bad pages.
#[derive(Clone, Default)]
pub(crate) struct ErrorTable {
    pages: BTreeMap<PageIndex, Bad>,
    /// Not empty, and none overlaps another one.
    runs: Vec<Run>,
    /// Highest sequence that any descriptor has been told of.
    told: u64,
}

impl ErrorTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.runs.is_empty()
    }

    fn len(&self) -> usize {
        self.pages.len() + self.runs.iter().map(|run| (run.pages.end - run.pages.start) as usize).sum::<usize>()
    }

    pub(crate) fn enter(&mut self, index: PageIndex, sequence: u64, error: Error) {
        self.pages.insert(index, Bad { sequence, error, settled: false });
    }

    /// Pages that the store has lost.
    pub(crate) fn enter_run(&mut self, pages: Range<PageIndex>, sequence: u64, error: Error) {
        self.cut_runs(pages.start, pages.end);
        self.runs.push(Run { pages, sequence, error });
    }

    pub(crate) fn remove(&mut self, index: PageIndex) {
        self.pages.remove(&index);
        self.cut_runs(index, index + 1);
    }

    /// The pages `first..end` are gone.
    pub(crate) fn cut(&mut self, first: PageIndex, end: PageIndex) {
        self.pages.retain(|index, _| !(first..end).contains(index));
        self.cut_runs(first, end);
    }

    fn cut_runs(&mut self, first: PageIndex, end: PageIndex) {
        // As a rule there is none.
        if self.runs.iter().any(|run| run.pages.start < end && first < run.pages.end) {
            for Run { pages, sequence, error } in std::mem::take(&mut self.runs) {
                let left = [pages.start..pages.end.min(first), pages.start.max(end)..pages.end];
                let left = left.into_iter().filter(|left| !left.is_empty());
                self.runs.extend(left.map(|pages| Run { pages, sequence, error: error.clone() }));
            }
        }
    }

    pub(crate) fn contains(&self, index: PageIndex) -> bool {
        self.pages.contains_key(&index)
    }

    pub(crate) fn get(&self, index: PageIndex) -> Option<&Error> {
        self.pages.get(&index).map(|bad| &bad.error)
    }

    /// Bad pages in the range, ascending.
    pub(crate) fn range(&self, range: impl RangeBounds<PageIndex>) -> impl Iterator<Item = (&PageIndex, &Error)> {
        self.pages.range(range).map(|(index, bad)| (index, &bad.error))
    }

    /// The error of the first of these pages that has one, or is of a run.
    pub(crate) fn first_of(&self, pages: Range<PageIndex>) -> Option<&Error> {
        let page = self.range(pages.clone()).next().map(|(&index, error)| (index, error));
        let runs = self.runs.iter().filter(|run| run.pages.start < pages.end && pages.start < run.pages.end);
        let runs = runs.map(|run| (run.pages.start.max(pages.start), &run.error));
        page.into_iter().chain(runs).min_by_key(|(index, _)| *index).map(|(_, error)| error)
    }

    /// Pages from `first` on that are bad, those of runs too, `limit` at most, ascending.
    pub(crate) fn list(&self, first: PageIndex, limit: usize) -> Vec<PageIndex> {
        let of_runs = self.runs.iter().flat_map(|run| (run.pages.start.max(first)..run.pages.end).take(limit));
        let mut pages: Vec<PageIndex> = self.pages.range(first..).map(|(&index, _)| index).take(limit).collect();
        pages.extend(of_runs);
        pages.sort_unstable();
        pages.dedup();
        pages.truncate(limit);
        pages
    }

    /// Pages that the store could take for holes.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = PageIndex> {
        self.pages.iter().filter(|(_, bad)| !bad.settled).map(|(&index, _)| index)
    }

    /// The store will not take the page for a hole; said of an entry of up to `sequence`, and of no later one: the page may have been cut
    /// off and written again since.
    pub(crate) fn settle(&mut self, index: PageIndex, sequence: u64) {
        if let Some(bad) = self.pages.get_mut(&index).filter(|bad| bad.sequence <= sequence) {
            bad.settled = true;
        }
    }

    /// What a descriptor opened now begins with, while the cache's counter is `counter`.
    fn begin(&self, counter: u64) -> u64 {
        if self.is_news(self.told) { self.told } else { counter }
    }

    fn is_news(&self, seen: u64) -> bool {
        self.since(seen).next().is_some()
    }

    /// The first page that is new to whoever was told up to `seen`; tells it, with all others.
    fn tell(&mut self, seen: u64, counter: u64) -> Option<(u64, Error)> {
        let error = self.since(seen).next()?.1.clone();
        self.told = counter;
        Some((counter, error))
    }

    /// What went bad after `seen`.
    fn since(&self, seen: u64) -> impl Iterator<Item = (u64, &Error)> {
        let pages = self.pages.values().map(|bad| (bad.sequence, &bad.error));
        let runs = self.runs.iter().map(|run| (run.sequence, &run.error));
        pages.chain(runs).filter(move |(sequence, _)| *sequence > seen)
    }

    /// Asserts the invariant.
    pub(crate) fn check(&self, counter: u64) {
        for (index, bad) in &self.pages {
            assert!(bad.sequence <= counter, "page {index} went bad in the future");
        }
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_unstable_by_key(|run| run.pages.start);
        for run in &runs {
            assert!(run.sequence <= counter && !run.pages.is_empty(), "a run of lost pages: {:?}", run.pages);
        }
        assert!(runs.windows(2).all(|pair| pair[0].pages.end <= pair[1].pages.start), "runs of lost pages overlap");
    }
}

impl Cache {
    /// See [`holdfast_object::ObjectCache::errors_begin`].
    pub(crate) fn begin_errors(&self, id: ObjectId) -> u64 {
        let state = self.state.read();
        state.objects.get(&id).map_or(state.errors, |object| object.bad.begin(state.errors))
    }

    /// See [`holdfast_object::ObjectCache::errors_tell`]. Without `seen`, what nobody has been told of.
    pub(crate) fn tell_errors(&self, id: ObjectId, seen: Option<u64>) -> Option<(u64, Error)> {
        let since = |table: &ErrorTable| seen.unwrap_or(table.told);
        {
            // As a rule there is nothing to tell.
            let state = self.state.read();
            let table = &state.objects.get(&id)?.bad;
            if !table.is_news(since(table)) {
                return None;
            }
        }
        let mut state = self.state.write();
        let counter = state.errors;
        let table = &mut state.objects.get_mut(&id)?.bad;
        table.tell(since(table), counter)
    }

    /// See [`holdfast_object::ObjectCache::errors_tell_all`].
    pub(crate) fn tell_errors_of_all(&self) -> Option<Error> {
        {
            let state = self.state.read();
            if state.errors == state.errors_told {
                return None;
            }
        }
        let mut state = self.state.write();
        let counter = state.errors;
        let seen = std::mem::replace(&mut state.errors_told, counter);
        let news = state.objects.values().flat_map(|object| object.bad.since(seen));
        news.min_by_key(|(sequence, _)| *sequence).map(|(_, error)| error.clone())
    }

    /// Takes over what is bad in another cache of the same domain, which has been closed since or was opened for reading only: what the
    /// store has of those pages is what it had before. Descriptors keep what they were told by the other one's sequence. That one stays
    /// as it is.
    ///
    /// # Errors
    /// Why an object with bad pages cannot be had: without them its old contents would be taken for what was written.
    pub(crate) fn adopt_errors(&self, of: &Cache) -> Result<()> {
        let (errors, told, tables) = {
            let state = of.state.read();
            let bad = state.objects.iter().filter(|(_, object)| !object.bad.is_empty());
            let tables: Vec<_> = bad.map(|(&id, object)| (id, object.bad.clone())).collect();
            (state.errors, state.errors_told, tables)
        };
        {
            let mut state = self.state.write();
            state.errors = state.errors.max(errors);
            state.errors_told = state.errors_told.max(told);
        }
        for (id, mut table) in tables {
            match self.with_object(id, |_, _| ()) {
                // One that is gone has no readers.
                Err(Error::NoObject(_)) => continue,
                found => found?,
            }
            let mut state = self.state.write();
            let Some(object) = state.objects.get_mut(&id) else { continue };
            table.pages.retain(|index, _| !object.pages.contains_key(index));
            table.pages.values_mut().for_each(|bad| bad.settled = true);
            object.pages.keys().for_each(|&index| table.cut_runs(index, index + 1));
            object.bad = table;
            object.version += 1;
        }
        Ok(())
    }

    /// Objects with pages that went bad in memory and have not been written again, with how many; ascending.
    pub fn bad_objects(&self) -> Vec<(ObjectId, usize)> {
        let state = self.state.read();
        if state.errors == 0 {
            return Vec::new();
        }
        let bad = state.objects.iter().map(|(&id, object)| (id, object.bad.len())).filter(|(_, pages)| *pages > 0);
        let mut bad: Vec<_> = bad.collect();
        bad.sort_unstable();
        bad
    }

    /// Files with pages that have been written and that no recovery point has, nor the intent log, with how many; ascending.
    pub fn unwritten_objects(&self) -> Vec<(ObjectId, usize)> {
        let state = self.state.read();
        let files = state.objects.iter().filter(|(_, object)| !object.attributes.kind.is_metadata());
        let unwritten = files.map(|(&id, object)| (id, object.unlogged.len()));
        let mut unwritten: Vec<_> = unwritten.filter(|(_, pages)| *pages > 0).collect();
        unwritten.sort_unstable();
        unwritten
    }

    /// Which pages of an object these are, `limit` at most, ascending.
    pub fn unwritten_pages(&self, id: ObjectId, limit: usize) -> Vec<PageIndex> {
        let state = self.state.read();
        let Some(object) = state.objects.get(&id) else { return Vec::new() };
        let mut pages: Vec<PageIndex> = object.unlogged.iter().copied().collect();
        pages.sort_unstable();
        pages.truncate(limit);
        pages
    }

    /// Whether the page is not what the last recovery point has: it has been written since, whatever became of that, or is cut off, zeroed or
    /// copied over.
    ///
    /// # Errors
    /// [`Error::NoObject`], and those of reading its attributes.
    pub fn is_changed(&self, id: ObjectId, index: PageIndex) -> Result<bool> {
        self.with_object(id, |_, object| {
            let is_newer = |slot: &Slot| !matches!(slot.residence, Residence::Clean(_));
            index >= object.attributes.size.div_ceil(PAGE_SIZE as u64)
                || object.pages.get(&index).is_some_and(is_newer)
                || object.bad.contains(index)
                || object.overlay.missing(index) != Missing::Stored
        })
    }
}

impl State {
    /// A page's newest bytes are gone before they reached the store: it is an error until it is written again.
    pub(crate) fn lose_dirty(&mut self, id: ObjectId, index: PageIndex, error: &Error) {
        let key = self.key(id);
        tracing::error!(%key, page = index, %error, "a changed page went bad in memory, and was not stored");
        self.give_up_dirty(id, index, error);
    }

    /// The same, for whoever has logged why.
    pub(crate) fn give_up_dirty(&mut self, id: ObjectId, index: PageIndex, error: &Error) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        if object.dirty.contains(&index) {
            self.open.pages = self.open.pages.saturating_sub(1);
        }
        self.open.proved.drop_pages(id, object, index..=index);
        object.drop_page(index);
        self.errors += 1;
        object.bad.enter(index, self.errors, error.clone());
        self.unsettled.insert(id);
        object.version += 1;
    }

    /// Pages that a copy has lost: the store knows it.
    pub(crate) fn tell_lost(&mut self, id: ObjectId, pages: Range<PageIndex>, error: Error) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        self.errors += 1;
        object.bad.enter_run(pages, self.errors, error);
    }

    /// Bad pages of all objects.
    pub(crate) fn bad_pages(&self) -> u64 {
        // As a rule there has never been one, and it need not be looked for.
        if self.errors == 0 { 0 } else { self.objects.values().map(|object| object.bad.len() as u64).sum() }
    }

    /// Bad pages of which it is not known what the store makes of them. All are of objects that the epoch being frozen has.
    pub(crate) fn unsettled_pages(&mut self) -> Vec<(ObjectId, PageIndex)> {
        let mut pages = Vec::new();
        for id in std::mem::take(&mut self.unsettled) {
            let Some(object) = self.objects.get(&id) else { continue };
            pages.extend(object.bad.unsettled().map(|index| (id, index)));
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::Side;

    fn error() -> Error {
        Error::Lost { side: Side::Memory, place: Box::default() }
    }

    #[test]
    fn each_descriptor_is_told_once() {
        let mut table = ErrorTable::default();
        let (one, other) = (table.begin(7), table.begin(7));
        table.enter(3, 8, error());
        let (one, _) = table.tell(one, 8).expect("the first");
        assert!(table.tell(one, 8).is_none(), "once");
        let (other, _) = table.tell(other, 8).expect("the second, though the first was told");
        assert!(table.tell(other, 8).is_none());
        table.enter(4, 9, error());
        assert!(table.tell(one, 9).is_some() && table.tell(other, 9).is_some(), "another error");
        table.check(9);
    }

    #[test]
    fn what_nobody_knows_of_is_told_to_whoever_comes_next() {
        let mut table = ErrorTable::default();
        table.enter(3, 8, error());
        let late = table.begin(8);
        assert!(table.tell(late, 8).is_some());
        let later = table.begin(8);
        assert!(table.tell(later, 8).is_none(), "somebody has been told");
        assert!(table.contains(3), "which does not mend it");
    }

    #[test]
    fn a_run_is_told_until_all_of_it_is_written_again_or_cut() {
        let mut table = ErrorTable::default();
        table.enter_run(10..20, 1, error());
        table.enter(12, 2, error());
        assert_eq!((table.list(11, 3), table.list(0, 99).len()), (vec![11, 12, 13], 10));
        table.remove(10);
        table.cut(15, 18);
        assert!(table.first_of(0..11).is_none() && table.first_of(15..18).is_none());
        assert!(table.first_of(9..12).is_some() && table.first_of(17..30).is_some());
        assert_eq!(table.list(0, 99), [11, 12, 13, 14, 18, 19]);
        table.enter_run(14..16, 3, error());
        table.check(3);
        assert!(table.tell(2, 3).is_some() && table.tell(3, 3).is_none());
        table.cut(0, 19);
        assert!(table.begin(3) == 3 && !table.is_empty());
        table.remove(19);
        assert!(table.is_empty());
    }

    #[test]
    fn what_is_written_again_or_cut_is_no_error() {
        let mut table = ErrorTable::default();
        let seen = table.begin(0);
        (1..=4).for_each(|index| table.enter(index, index, error()));
        table.remove(1);
        table.cut(3, 9);
        assert_eq!(table.range(..).map(|(&index, _)| index).collect::<Vec<_>>(), [2]);
        table.remove(2);
        assert!(table.tell(seen, 4).is_none() && table.is_empty());
    }
}
