//! Changed pages that went bad in memory, and that the intent log has.
//!
//! What a sync has answered is in the log until the next recovery point has it. So a page whose newest version is there is as good as a clean one: it is
//! read again from below, by readers and by the recovery point. If only an older version is there, that one becomes durable in place of the
//! newest, which is lost: it had been answered, and what the recovery point before has is older still.
//!
//! Pages of metadata have twins for this (see `twin`).

use crate::Cache;
use crate::flush::{Written, whole};
use crate::pages::EVICT_AT_LEAST;
use crate::state::{FrozenEpoch, State};
use holdfast_object::{Batch, FrameMut, LoggedPage, ObjectId, Op, PAGE_SIZE, PageIndex, PinnedPage, Result};

const PAGE: u64 = PAGE_SIZE as u64;

impl Cache {
    /// Puts what the log has in place of a changed page that went bad, if that is the same version. Called without any lock.
    pub(crate) fn bring_back(&self, id: ObjectId, index: PageIndex, bad: &PinnedPage) -> Option<PinnedPage> {
        if self.is_metadata(id) {
            return None;
        }
        let page = self.newest_in_log(&[(id, index)]).pop()??;
        if !is_version(&page, bad) {
            return None;
        }
        self.state.write().put_back(id, index, bad, &page);
        self.counters.reread.add(1);
        Some(page)
    }

    /// The same for what the epoch being written lacks, as it went bad: pages that the store has refused, and those that were found before. Of
    /// those whose newest version is lost, an older one.
    pub(crate) fn bring_back_frozen(
        &self,
        frozen: &mut FrozenEpoch,
        batch: &mut Batch,
        written: &mut Written,
    ) -> Result<()> {
        let refused = std::mem::take(&mut written.rejected);
        let wanted: Vec<_> =
            refused.iter().chain(&frozen.unsettled).copied().filter(|(id, _)| !self.is_metadata(*id)).collect();
        if wanted.is_empty() {
            written.rejected = refused;
            return Ok(());
        }
        let mut is_lost = refused;
        for ((id, index), page) in wanted.iter().copied().zip(self.newest_in_log(&wanted)) {
            let Some(page) = page else { continue };
            let Some(object) = frozen.objects.iter_mut().find(|object| object.id == id) else { continue };
            let size_min = object.attributes.size;
            let bad = object.pages.iter_mut().find(|(at, _)| *at == index).map(|(_, page)| page);
            match bad {
                // It may have been refused for the tree blocks above it.
                Some(bad) if bad.verify().is_ok() => continue,
                Some(bad) if is_version(&page, bad) => {
                    self.state.write().put_back(id, index, bad, &page);
                    *bad = page.clone();
                    self.counters.reread.add(1);
                    is_lost.retain(|lost| *lost != (id, index));
                }
                _ if index * PAGE < size_min && !self.state.read().is_cut_since_log(id, index) => {
                    let key = self.state.read().key(id);
                    tracing::warn!(%key, page = index, "of a page that went bad in memory, the version that was synced last is stored");
                }
                _ => continue,
            }
            batch.ops.push(Op::Write { id, fragments: vec![whole(index, page.page())], size_min });
            // The frame is needed until the store has taken it.
            self.apply(frozen, batch, written)?;
        }
        written.rejected.extend(is_lost);
        Ok(())
    }

    /// Of these pages what the log has, in frames of their own. A log that cannot be read has nothing.
    fn newest_in_log(&self, pages: &[(ObjectId, PageIndex)]) -> Vec<Option<PinnedPage>> {
        match self.store.logged_pages(self.domain, pages) {
            Ok(found) => {
                let mut state = self.state.write();
                found.into_iter().map(|logged| state.page_of_logged(&logged?)).collect()
            }
            Err(error) => {
                tracing::error!(%error, "pages that went bad in memory are not found in the intent log");
                pages.iter().map(|_| None).collect()
            }
        }
    }

    fn is_metadata(&self, id: ObjectId) -> bool {
        self.state.read().objects.get(&id).is_none_or(|object| object.attributes.kind.is_metadata())
    }
}

/// Whether a page is what another one was before it, or its checksum, went bad.
fn is_version(page: &PinnedPage, bad: &PinnedPage) -> bool {
    let sum = bad.sum();
    sum.algorithm().sum(page.bytes()) == sum || page.bytes() == bad.bytes()
}

impl State {
    /// A page with the checksum that it has in memory, generated before the log's is verified. `None`: there is no frame for it.
    fn page_of_logged(&mut self, logged: &LoggedPage) -> Option<PinnedPage> {
        let mut frame = self.frame()?;
        frame.copy_from_slice(&logged.bytes[..]);
        let sum = self.protection.memory().sum(&frame[..]);
        let is_good = logged.checksum.algorithm().sum(&frame[..]) == logged.checksum;
        is_good.then(|| frame.publish(sum))
    }

    /// A free frame, or one that becomes free. Not by writing an epoch.
    pub(crate) fn frame(&mut self) -> Option<FrameMut> {
        loop {
            match self.arena.allocate() {
                Some(frame) => return Some(frame),
                None if self.evict(EVICT_AT_LEAST) == 0 => return None,
                None => {}
            }
        }
    }

    /// In place of `bad`, if that is still the page's newest version.
    fn put_back(&mut self, id: ObjectId, index: PageIndex, bad: &PinnedPage, page: &PinnedPage) {
        let key = self.key(id);
        tracing::warn!(%key, page = index, "a changed page went bad in memory: it is read again from the intent log");
        let slot = self.objects.get_mut(&id).and_then(|object| object.pages.get_mut(&index));
        if let Some(slot) = slot.filter(|slot| slot.page.page() == bad.page()) {
            slot.page = page.clone();
        }
    }

    /// Whether the page has been cut off, zeroed or copied over since what the log has.
    fn is_cut_since_log(&self, id: ObjectId, index: PageIndex) -> bool {
        let Some(object) = self.objects.get(&id) else { return true };
        let oldest = self.freezing.unwrap_or(self.open.epoch);
        object.progress.is_copied_since(oldest)
            || object.structural.iter().any(|change| match change.op() {
                Some((_, op)) => op.target() == id && op.cuts(index),
                // It may have been one.
                None => true,
            })
    }
}
