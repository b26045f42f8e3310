//! Copies that share blocks: pages of one object become those of another, each with a reference to its block.

use crate::damage::{pages_of, unreadable_pages};
use crate::format::blockptr::PointerKind;
use crate::format::{BlockPointer, POINTERS, Record};
use crate::module::Module;
use crate::tree::{Trees, span};
use holdfast_object::{Epoch, Error, ObjectKey, PageIndex, Result, Seek, Side};
use std::ops::Range;

/// Pages whose pointers are shared under one lock.
const COPY_PIECE: u64 = 1 << 12;

impl Module {
    /// Pages of the source under a tree block of it that cannot be read are lost in the target, and told: in `lost`, also if not everything is copied. So
    /// are those that the source itself has lost in this epoch.
    pub(crate) fn copy(
        &self,
        (source, source_first): (ObjectKey, PageIndex),
        (target, target_first): (ObjectKey, PageIndex),
        pages: u64,
        epoch: Epoch,
        lost: &mut Vec<Range<PageIndex>>,
    ) -> Result<()> {
        let mut done = 0;
        while done < pages {
            let (from, to, left) = (source_first + done, target_first + done, pages - done);
            done += self.change(target, epoch, |trees, record| {
                let of_source = trees.get(&self.base, source)?;
                let next = trees.seek(&self.base, source, &of_source, from, Seek::Data);
                let found = match next.map(|next| next.map_or(left, |next| next - from).min(left)) {
                    Ok(0) => trees.pages_now(&self.base, source, &of_source, from, COPY_PIECE.min(left) as usize),
                    Ok(gap) => {
                        trees.remove_pages(&self.base, target, record, to, to + gap)?;
                        return Ok(gap);
                    }
                    Err(error) => Err(error),
                };
                let pointers = match found {
                    Ok(pointers) => pointers,
                    Err(error) => self.copied_past(trees, (source, &of_source), (from, left), &error, epoch)?,
                };
                // What the source had lost before is told there.
                add_runs(lost, to, &pointers, |pointer| pointer.kind.lost().is_some() && pointer.birth_log == epoch);
                share(self, trees, target, record, to, &pointers, epoch)?;
                Ok(pointers.len() as u64)
            })?;
        }
        if !lost.is_empty() {
            let pages: u64 = lost.iter().map(|run| run.end - run.start).sum();
            tracing::error!(key = %source, to = %target, pages, "pages of a copy are lost: tree blocks cannot be read");
        }
        Ok(())
    }

    /// See [`holdfast_object::ObjectStore::lost_pages`].
    pub(crate) fn find_lost(&self, key: ObjectKey, pages: Range<PageIndex>) -> Result<Vec<Range<PageIndex>>> {
        let (mut lost, mut from) = (Vec::new(), pages.start);
        while from < pages.end {
            let trees = self.trees();
            let (state, live) = trees.state_of(key)?;
            let record = state.find_now(&self.base, live)?.ok_or(Error::NoObject(key))?;
            let to = pages.end.min(span(record.levels)).min(from.saturating_add(COPY_PIECE));
            if from >= to {
                break;
            }
            let pointers = state.pages(&self.base, live, &record, from, (to - from) as usize)?;
            add_runs(&mut lost, from, &pointers, |pointer| {
                !matches!(pointer.kind, PointerKind::Data | PointerKind::Hole)
            });
            from = to;
        }
        Ok(lost)
    }

    /// Pointers that a copy of these pages begins with, of which a tree block cannot be read (`error`): those in front of it, or what has been found of
    /// it after all, or lost ones, up to its end.
    fn copied_past(
        &self,
        trees: &Trees,
        (source, record): (ObjectKey, &Record),
        (from, pages): (PageIndex, u64),
        error: &Error,
        epoch: Epoch,
    ) -> Result<Vec<BlockPointer>> {
        // Of which nothing is asked for, it can be none of these.
        let bad = unreadable_pages(error, source).filter(|bad| bad.end > from).ok_or_else(|| error.clone())?;
        if bad.start > from {
            let count = (bad.start - from).min(pages).min(COPY_PIECE);
            return trees.pages_now(&self.base, source, record, from, count as usize);
        }
        if bad.end - bad.start == POINTERS
            && let Some(found) = trees.pages_again(&self.base, source, record, (from, pages))?
        {
            return Ok(found);
        }
        let count = (bad.end - from).min(pages).min(COPY_PIECE);
        // Behind the end are zeros.
        let (end, lost) = (pages_of(record), BlockPointer::lost(epoch, Side::Device));
        let of_page = |page| if page < end { lost } else { BlockPointer::HOLE };
        Ok((from..from + count).map(of_page).collect())
    }
}

/// Adds those of the pages from `first` on whose pointer is such a one to `runs`, which are ascending.
fn add_runs(
    runs: &mut Vec<Range<PageIndex>>,
    first: PageIndex,
    pointers: &[BlockPointer],
    is: impl Fn(&BlockPointer) -> bool,
) {
    for (page, _) in (first..).zip(pointers).filter(|(_, pointer)| is(pointer)) {
        match runs.last_mut() {
            Some(Range { end, .. }) if *end == page => *end += 1,
            _ => runs.push(page..page + 1),
        }
    }
}

/// Makes `pointers` those of the target's pages from `first` on.
fn share(
    module: &Module,
    trees: &mut Trees,
    target: ObjectKey,
    record: &mut Record,
    first: PageIndex,
    pointers: &[BlockPointer],
    epoch: Epoch,
) -> Result<()> {
    let mut pages = Vec::with_capacity(pointers.len());
    // Each page with a reference taken to its block; what the target has where the source has nothing is removed.
    let mut take_references = |trees: &mut Trees, record: &mut Record| -> Result<()> {
        let has_one = |olds: &[BlockPointer]| {
            pointers
                .iter()
                .zip(olds)
                .any(|(pointer, old)| pointer.kind == PointerKind::Data && old.is_data_at(pointer.address))
        };
        let olds = trees.pages_before(&module.base, target, record, (first, pointers.len()), has_one)?;
        for (page, (pointer, old)) in (first..).zip(pointers.iter().zip(&olds)) {
            match pointer.kind {
                PointerKind::Data if old.is_data_at(pointer.address) => {}
                PointerKind::Data => {
                    trees.add_reference(&module.base, pointer.address[0])?;
                    trees.audit.shared(pointer.address);
                    pages.push((page, BlockPointer { birth_log: epoch, ..*pointer }));
                }
                PointerKind::LostInMemory | PointerKind::LostOnDevice => {
                    pages.push((page, BlockPointer { birth_phys: epoch, birth_log: epoch, ..*pointer }));
                }
                PointerKind::Hole | PointerKind::Tree if old.is_hole() => {}
                PointerKind::Hole | PointerKind::Tree => {
                    trees.remove_pages(&module.base, target, record, page, page + 1)?;
                }
            }
        }
        Ok(())
    };
    let outcome = take_references(trees, record).and_then(|()| trees.put_pages(&module.base, target, record, &pages));
    outcome.inspect_err(|_| {
        for (_, pointer) in pages.iter().filter(|(_, pointer)| pointer.kind == PointerKind::Data) {
            match trees.drop_reference(&module.base, pointer.address[0]) {
                Ok(_) => trees.audit.unshared(pointer.address),
                Err(error) => tracing::error!(%error, "reference table: a block keeps one reference too many"),
            }
        }
    })
}
