//! Dead lists on the device: runs of blocks, in the order in which they died.
//!
//! All dead lists of a domain are in one object. The list of the snapshot in slot *s* has the pages from *s* · 2^20 on, without
//! gaps. A last page that cannot be read is left as it is, and the list goes on behind it.

use super::Kept;
use super::dying::Dying;
use crate::base::Base;
use crate::damage::is_damage;
use crate::format::{DEAD_RUNS, DeadRun, Record};
use crate::meta_block::{MetaBlock, NodeKey};
use crate::objects::{dead_of, system_key};
use crate::tree::{Trees, span};
use holdfast_object::{DomainId, Error, PageIndex, Place, Result, Seek};
use std::ops::Range;

/// Snapshots of a domain at most.
pub(crate) const SLOTS: u16 = 4096;
/// Pages of a dead list at most.
const PAGES: u64 = 1 << 20;

/// Pages of the dead list of a slot.
pub(crate) fn pages_of(slot: u16) -> Range<PageIndex> {
    let first = u64::from(slot) * PAGES;
    first..first + PAGES
}

/// The slot whose dead list has a page.
pub(crate) fn slot_of(page: PageIndex) -> u16 {
    (page / PAGES) as u16
}

/// The runs in a page.
pub(crate) fn runs_in(base: &Base, domain: DomainId, page: PageIndex, block: &MetaBlock) -> Result<Vec<DeadRun>> {
    let mut runs = Vec::new();
    for at in 0..DEAD_RUNS {
        match DeadRun::decode(block.dead_run(at as usize), base.disk.newest(), base.disk.blocks()) {
            Ok(Some(run)) => runs.push(run),
            Ok(None) => break,
            Err(fault) => {
                let object = Some(system_key(dead_of(domain)));
                return Err(fault.at(Place { object, index: Some(page), ..base.disk.place(0) }));
            }
        }
    }
    Ok(runs)
}

impl Trees {
    /// The runs in a dead list, those of the epoch being built last. Its pages are verified just now: a number of blocks is told of them, or they become free.
    pub(super) fn dead_runs(&self, base: &Base, domain: DomainId, slot: u16) -> Result<Vec<DeadRun>> {
        Ok(self.dead_part(base, domain, slot, 0, PAGES)?.0)
    }

    /// The runs in so many pages of a dead list, without the first ones; and whether that is its end, which has those of the epoch being
    /// built.
    pub(super) fn dead_part(
        &self,
        base: &Base,
        domain: DomainId,
        slot: u16,
        skip: u64,
        count: u64,
    ) -> Result<(Vec<DeadRun>, bool)> {
        let key = system_key(dead_of(domain));
        let mut runs = Vec::new();
        if let Some(record) = self.system.get(&key.object.0) {
            let pages = pages_of(slot);
            let first = pages.start + skip;
            let mut page = first;
            while page < pages.end
                && let Some(block) = self.node_now(base, key, record, 0, page)?
            {
                if page - first == count {
                    return Ok((runs, false));
                }
                runs.extend(runs_in(base, domain, page, &block)?);
                page += 1;
            }
        }
        if let Some(of_domain) = self.kept.domains.get(&domain) {
            runs.extend(of_domain.dying.get(&slot).map_or(&[][..], Dying::runs));
        }
        Ok((runs, true))
    }

    /// Whether a slot has no dead list.
    pub(super) fn is_buried_nothing(&self, base: &Base, domain: DomainId, slot: u16) -> Result<bool> {
        let key = system_key(dead_of(domain));
        let Some(record) = self.system.get(&key.object.0) else { return Ok(true) };
        let pages = pages_of(slot);
        let first = self.seek(base, key, record, pages.start, Seek::Data)?;
        Ok(first.is_none_or(|first| first >= pages.end))
    }

    /// The page behind the last one of a dead list.
    pub(super) fn dead_end(&self, base: &Base, record: &Record, domain: DomainId, slot: u16) -> Result<PageIndex> {
        let pages = pages_of(slot);
        // Without a hole the tree is full to its end.
        let end = self.seek(base, system_key(dead_of(domain)), record, pages.start, Seek::Hole)?;
        Ok(end.unwrap_or(span(record.levels)).clamp(pages.start, pages.end))
    }

    /// Before [`Trees::cut_dead`]: all that it changes is dirty afterwards, so that nothing of it can fail.
    pub(super) fn open_dead(
        &mut self,
        base: &Base,
        domain: DomainId,
        slot: u16,
        page: PageIndex,
        is_left: bool,
    ) -> Result<()> {
        let (key, end) = (system_key(dead_of(domain)), pages_of(slot).end);
        self.with_system(base, key.object.0, |trees, record| {
            if is_left {
                return trees.make_dirty(base, key, record, 0, page);
            }
            if trees.pages(base, key, record, page, 1)?[0].is_hole() {
                return Ok(());
            }
            // The lowest tree block that has something else below it; what is below that one goes whole. The end of the list's pages is in
            // the middle of none that does not have the beginning too.
            let keeps = |level: &u8| {
                let first = page / span(*level) * span(*level);
                first < page || first + span(*level) > end
            };
            match (1..=record.levels).find(keeps) {
                Some(level) => trees.make_dirty(base, key, record, level, page / span(level)),
                None => Ok(()),
            }
        })
    }

    /// Cuts a dead list: of `page` these runs are left, which it begins with but for the length of the last one; nothing behind it.
    pub(super) fn cut_dead(
        &mut self,
        base: &Base,
        domain: DomainId,
        slot: u16,
        page: PageIndex,
        left: &[DeadRun],
    ) -> Result<()> {
        let (key, end) = (system_key(dead_of(domain)), pages_of(slot).end);
        self.with_system(base, key.object.0, |trees, record| {
            if left.is_empty() {
                return trees.remove_pages(base, key, record, page, end);
            }
            trees.make_dirty(base, key, record, 0, page)?;
            let mut block = trees.dirty_mut(NodeKey::new(key, 0, page));
            block.put_dead_run(left.len() - 1, &left[left.len() - 1]);
            (left.len()..DEAD_RUNS as usize).for_each(|at| block.clear_dead_run(at));
            trees.remove_pages(base, key, record, page + 1, end)
        })
    }

    /// Appends what died in the epoch being built to the dead lists. May fail, and be called again then.
    pub(crate) fn stage_dead(&mut self, base: &Base) -> Result<()> {
        let domains: Vec<DomainId> = self.kept.domains().collect();
        for domain in domains {
            while let Some((slot, mut runs)) = self.kept.first_dying(domain) {
                let first = NodeKey::new(system_key(dead_of(domain)), 0, pages_of(slot).start);
                let sound = runs.verify().map_err(|scribble| base.give_up_changed(scribble, first, self.building));
                let outcome = sound.and_then(|()| self.append_dead(base, domain, slot, &mut runs));
                if outcome.is_err() {
                    self.kept.still_dying(domain, slot, runs);
                    return outcome;
                }
            }
        }
        Ok(())
    }

    /// Takes from `runs` what it has appended.
    fn append_dead(&mut self, base: &Base, domain: DomainId, slot: u16, runs: &mut Dying) -> Result<()> {
        let (key, pages) = (system_key(dead_of(domain)), pages_of(slot));
        self.with_system(base, key.object.0, |trees, record| {
            let end = trees.dead_end(base, record, domain, slot)?;
            let mut page = end;
            let mut at = 0;
            if end > pages.start {
                // A page that is taken for full is not looked at again.
                match trees.node_now(base, key, record, 0, end - 1) {
                    Ok(Some(block)) => match runs_in(base, domain, end - 1, &block) {
                        Ok(last) if (last.len() as u64) < DEAD_RUNS => (page, at) = (end - 1, last.len()),
                        Ok(_) => {}
                        Err(error) if is_damage(&error) => {}
                        Err(error) => return Err(error),
                    },
                    Ok(None) => {}
                    Err(error) if is_damage(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            while !runs.runs().is_empty() {
                if page >= pages.end {
                    let limit = PAGES * DEAD_RUNS;
                    return Err(Error::Limit { what: "runs of blocks of a snapshot", limit, got: limit + 1 });
                }
                trees.make_dirty(base, key, record, 0, page)?;
                let mut block = trees.dirty_mut(NodeKey::new(key, 0, page));
                let room = DEAD_RUNS as usize - at;
                for (run, at) in runs.take(room).into_iter().zip(at..) {
                    block.put_dead_run(at, &run);
                }
                (page, at) = (page + 1, 0);
            }
            Ok(())
        })
    }
}

impl Kept {
    fn first_dying(&mut self, domain: DomainId) -> Option<(u16, Dying)> {
        self.domains.get_mut(&domain)?.dying.pop_first()
    }

    fn still_dying(&mut self, domain: DomainId, slot: u16, runs: Dying) {
        self.domains.entry(domain).or_default().dying.insert(slot, runs);
    }
}
