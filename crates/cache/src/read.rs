//! Reading pages: from memory, else from the store with some more behind them for a sequential reader.

use crate::Cache;
use crate::pages::Found;
use holdfast_object::{Error, ObjectId, PAGE_SIZE, PageIndex, PageView, Result, VerifiedBy};

/// A page in memory, known to be zero, or to be loaded.
type Maybe = Option<PageView>;

impl Cache {
    /// See [`holdfast_object::ObjectCache::read`].
    pub(crate) fn read_pages(&self, id: ObjectId, first: PageIndex, count: usize) -> Result<Vec<PageView>> {
        self.read_pages_by(id, first, count, VerifiedBy::Reader)
    }

    pub(crate) fn read_pages_by(
        &self,
        id: ObjectId,
        first: PageIndex,
        count: usize,
        by: VerifiedBy,
    ) -> Result<Vec<PageView>> {
        loop {
            let looked = self.with_object(id, |state, object| -> Result<_> {
                let mut views: Vec<Maybe> = Vec::with_capacity(count);
                let (mut wait, mut switched) = (None, 0);
                for index in first..first + count as u64 {
                    views.push(match object.find(index)? {
                        Found::Page(page) => {
                            let page = state.for_reader(page);
                            switched += u64::from(page.is_switched());
                            Some(PageView::Data(page))
                        }
                        Found::Zero => Some(PageView::Zero),
                        Found::InStore => None,
                        Found::After(epoch) => {
                            wait = Some(epoch);
                            None
                        }
                    });
                }
                let ahead = object.readahead.advise(first, count as u64, self.options.readahead_pages_max);
                let end = object.attributes.size.div_ceil(PAGE_SIZE as u64);
                // Behind what was asked: only what is neither in memory nor behind the end.
                let next = first + count as u64;
                let ahead = (next..(first + ahead).min(end))
                    .take_while(|&index| match object.find(index) {
                        Ok(Found::InStore) => true,
                        Ok(Found::Page(found)) if index == next => {
                            if let Some(Some(PageView::Data(last))) = views.last_mut() {
                                last.set_next(&found);
                            }
                            false
                        }
                        _ => false,
                    })
                    .count();
                Ok((views, wait, switched, ahead, object.version))
            })?;
            let (mut views, wait, switched, ahead, version) = looked?;
            if let Some(epoch) = wait {
                tracing::debug!(%id, epoch, "a read waits for the epoch that copies its pages");
                self.close_epoch()?;
                continue;
            }
            let misses = views.iter().filter(|view| view.is_none()).count();
            self.counters.misses.add(misses as u64);
            self.counters.hits.add((count - misses) as u64);
            if switched > 0 {
                self.counters.switched.add(switched);
            }
            let mut position = 0;
            while position < count {
                if views[position].is_some() {
                    position += 1;
                    continue;
                }
                let missing = views[position..].iter().take_while(|view| view.is_none()).count();
                let wanted = if position + missing == count { missing + ahead } else { missing };
                let loaded = self.load(id, first + position as u64, missing, wanted, version, by)?;
                if loaded.len() != missing {
                    return Err(Error::Protocol(format!("{missing} pages asked, {} loaded", loaded.len())));
                }
                for view in loaded {
                    views[position] = Some(view);
                    position += 1;
                }
            }
            return Ok(views.into_iter().flatten().collect());
        }
    }
}
