//! Pages that the intent log has, for whoever has lost them in memory before they came to a recovery point.
//!
//! The log is read as after a crash, but while it is in use: what is in it has been appended since the last recovery point, by this module. So
//! nothing is reported and nothing repaired; a page that is not whole is not found.

use crate::log_pages::{PageBytes, find_page};
use crate::log_recovery::{Found, HalfBytes, LogOf, Survey};
use crate::module::Module;
use holdfast_integrity::Checksum;
use holdfast_object::{DomainId, LoggedPage, ObjectId, Op, PAGE_SIZE, PageIndex, Result};
use rustc_hash::FxHashMap;

const PAGE: u64 = PAGE_SIZE as u64;

/// The newest versions so far of the pages that are looked for.
type Newest = FxHashMap<(ObjectId, PageIndex), Option<LoggedPage>>;

impl Module {
    /// See [`holdfast_object::ObjectStore::logged_pages`].
    pub(crate) fn find_in_log(
        &self,
        domain: DomainId,
        pages: &[(ObjectId, PageIndex)],
    ) -> Result<Vec<Option<LoggedPage>>> {
        let mut newest: Newest = pages.iter().map(|page| (*page, None)).collect();
        // Nobody appends meanwhile.
        let mut log = self.log.lock();
        if !log.is_unread() && self.log_is_used(&mut log)? {
            let (last, ends) = (self.superblock()?, self.ends(&mut log)?);
            let [one, other] = [0, 1].map(|half| HalfBytes::read(self.disk(), ends.used(half)));
            let halves = [one?, other?];
            let survey = Survey::of(&halves, &LogOf { store: &self.label()?.store, last: &last })?;
            // Epochs in order, and the batches of each.
            for (_, half, batches) in &survey.parts {
                for found in batches.iter().filter(|found| DomainId(found.header.domain) == domain) {
                    replay(half, found, &mut newest);
                }
            }
        }
        Ok(pages.iter().map(|page| newest.get(page).cloned().flatten()).collect())
    }
}

/// What the operations of a batch make of these pages.
fn replay(half: &HalfBytes<'_>, found: &Found, newest: &mut Newest) {
    let mut logged = half.pages(found).into_iter();
    for op in &found.ops {
        if let Op::Write { id, fragments, .. } = op {
            for (fragment, page) in fragments.iter().zip(&mut logged) {
                if let Some(newest) = newest.get_mut(&(*id, fragment.index)) {
                    let bytes = find_page(&page.copies, page.checksum, page.new).ok().and_then(|bytes| match bytes {
                        PageBytes::At(address) => half.block(address).copied(),
                        PageBytes::Corrected(_, block) => Some(block.0),
                    });
                    let checksum = Checksum::crc64(page.checksum);
                    *newest = bytes.map(|bytes| LoggedPage { bytes: Box::new(bytes), checksum });
                }
            }
            continue;
        }
        for ((object, index), newest) in newest.iter_mut() {
            let is_kept = |page: &LoggedPage| *object != op.target() || keeps(op, *index, &page.bytes);
            newest.take_if(|page| !is_kept(page));
        }
    }
}

/// Whether an operation on its object leaves a page with these bytes as it is.
fn keeps(op: &Op, index: PageIndex, bytes: &[u8; PAGE_SIZE]) -> bool {
    match op {
        Op::Write { .. } | Op::SetAttributes { .. } => true,
        // Of the page that it ends within, what is behind becomes zero; as a rule it is.
        Op::Truncate { size, .. } => {
            let within = usize::try_from(size.saturating_sub(index * PAGE)).unwrap_or(PAGE_SIZE).min(PAGE_SIZE);
            within > 0 && bytes[within..].iter().all(|byte| *byte == 0)
        }
        Op::Zero { .. } => !op.cuts(index),
        Op::Create { .. } | Op::Delete { .. } | Op::Adopt { .. } | Op::Lose { .. } | Op::Copy { .. } => false,
    }
}
