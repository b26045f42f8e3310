//! Free frames.
//!
//! There is room for as many pages as there are ordinary frames, wherever they lie: whoever takes a frame for one takes a part of the room
//! first. So pages of metadata and of files share one pool, and either may have all of it. Twins take none of it, and are counted.
//!
//! Memory follows: a frame has none before its first use, and if more frames have memory than pages have room, and twins there are, free ones of
//! the other kind give theirs back to the system before another one gets some. So it is that of the room, and of the most twins that there were.
//!
//! Invariants: a frame is in one list, or in use, or on its way between the two; `ready` has memory, `bare` has none (as those from `fresh` on have none).

use super::metadata::METADATA;
use super::{Arena, FrameMut, NO_FRAME};
use crate::PAGE_SIZE;
use rustix::fs::FallocateFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The list of frames for files' pages, and for everything that devices read.
pub(super) const ORDINARY: usize = 0;

/// Free frames of a kind. The first two fields: tag (upper half, against ABA) and number of the first one.
#[repr(C)]
pub(super) struct FrameLists {
    ready: AtomicU64,
    bare: AtomicU64,
    /// From here on to `end` none was ever used.
    fresh: AtomicU32,
    end: u32,
}

impl FrameLists {
    pub(super) fn new(first: u32, end: u32) -> FrameLists {
        let empty = || AtomicU64::new(u64::from(NO_FRAME));
        FrameLists { ready: empty(), bare: empty(), fresh: AtomicU32::new(first), end }
    }

    fn take_fresh(&self) -> Option<u32> {
        let next = |fresh| (fresh < self.end).then_some(fresh + 1);
        self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }
}

impl Arena {
    /// A free frame to fill, if there is one. Its bytes are whatever they were.
    pub fn allocate(self: &Arc<Self>) -> Option<FrameMut> {
        let room = &self.header().free_count;
        room.fetch_update(Ordering::AcqRel, Ordering::Acquire, |room| room.checked_sub(1)).ok()?;
        match self.take(ORDINARY) {
            Some(frame) => Some(FrameMut { arena: self.clone(), frame }),
            None => {
                // The last ones are about to give their memory back.
                room.fetch_add(1, Ordering::AcqRel);
                None
            }
        }
    }

    /// A frame in use is free: no page, no twin.
    pub(super) fn free(&self, frame: u32) {
        let descriptor = self.descriptor(frame);
        descriptor.generation.fetch_add(1, Ordering::AcqRel);
        descriptor.published.store(0, Ordering::Relaxed);
        let was_twin = descriptor.is_twin.swap(0, Ordering::Relaxed) != 0;
        self.put(frame);
        let header = self.header();
        match was_twin {
            true => header.twins.fetch_sub(1, Ordering::Relaxed),
            false => header.free_count.fetch_add(1, Ordering::AcqRel),
        };
    }

    /// A free frame of a kind. The caller has room for it.
    pub(super) fn take(&self, kind: usize) -> Option<u32> {
        let lists = &self.header().lists[kind];
        if let Some(frame) = self.pop(&lists.ready) {
            return Some(frame);
        }
        let frame = lists.take_fresh().or_else(|| self.pop(&lists.bare))?;
        self.header().with_memory.fetch_add(1, Ordering::Relaxed);
        self.bound_memory(1 - kind);
        Some(frame)
    }

    /// Puts a frame that nobody uses in its list.
    pub(super) fn put(&self, frame: u32) {
        let kind = if frame < self.frames { ORDINARY } else { METADATA };
        self.push(&self.header().lists[kind].ready, frame);
    }

    /// Takes memory from free frames of a kind while more frames have some than pages have room, and twins there are.
    pub(super) fn bound_memory(&self, kind: usize) {
        let header = self.header();
        let lists = &header.lists[kind];
        let is_above = || {
            header.with_memory.load(Ordering::Relaxed) > u64::from(self.frames) + header.twins.load(Ordering::Relaxed)
        };
        while is_above() {
            let Some(frame) = self.pop(&lists.ready) else { return };
            let (flags, page) = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, PAGE_SIZE as u64);
            if rustix::fs::fallocate(&self.memory, flags, self.frame_offset(frame), page).is_err() {
                // It keeps its memory, which is all.
                return self.push(&lists.ready, frame);
            }
            header.with_memory.fetch_sub(1, Ordering::Relaxed);
            self.push(&lists.bare, frame);
        }
    }

    fn pop(&self, list: &AtomicU64) -> Option<u32> {
        let mut head = list.load(Ordering::Acquire);
        loop {
            let frame = head as u32;
            if frame == NO_FRAME {
                return None;
            }
            let next = self.descriptor(frame).next_free.load(Ordering::Relaxed);
            let tagged = ((head >> 32).wrapping_add(1) << 32) | u64::from(next);
            match list.compare_exchange_weak(head, tagged, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    debug_assert_eq!(self.descriptor(frame).references.load(Ordering::Relaxed), 0);
                    return Some(frame);
                }
                Err(now) => head = now,
            }
        }
    }

    fn push(&self, list: &AtomicU64, frame: u32) {
        let descriptor = self.descriptor(frame);
        let mut head = list.load(Ordering::Acquire);
        loop {
            descriptor.next_free.store(head as u32, Ordering::Relaxed);
            let tagged = ((head >> 32).wrapping_add(1) << 32) | u64::from(frame);
            match list.compare_exchange_weak(head, tagged, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}
