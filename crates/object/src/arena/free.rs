//! Free frames.
//!
//! There is room for as many pages as there are ordinary frames, wherever they lie: whoever takes a frame for one takes a part of the room
//! first. So pages of metadata and of files share one pool, and either may have all of it. Twins take none of it, and are counted.
//!
//! Memory follows: a frame has none before its first use, and if more frames have memory than pages have room, and twins there are, free ones of
//! the other kind give theirs back to the system before another one gets some. So it is that of the room, and of the most twins that there were.
//!
//! A bit of all this can flip. So a free frame says that it is one, by its [link](link), and whoever takes a frame takes that back from it: no
//! frame is given out while it is in use, whatever the lists say. A list in which something is found that is no link of it is made anew from the
//! frames that say they are free ([`Arena::rebuild`]).
//!
//! Invariants: a frame is in one list, or in use, or on its way between the two; `ready` has memory, `bare` has none (as those from `fresh` on have none);
//! the word of a frame has a link exactly if the frame is in a list, or just being put into one or taken from one.

mod link;

use super::metadata::METADATA;
use super::{Arena, FrameMut, NO_FRAME, UNSAID};
use crate::PAGE_SIZE;
use link::{Key, Which};
use rustix::fs::FallocateFlags;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

pub(super) use link::TIME_MAX_NS;

/// The list of frames for files' pages, and for everything that devices read.
pub(super) const ORDINARY: usize = 0;

/// In the place of the first frame: the list is being made anew. As with any number that is none of a frame, whoever finds it waits.
const BEING_REBUILT: u32 = 0xa5a5_a5a5;

/// How far the number that links are made with goes on when a list is made anew: no power of two.
const REBUILT_STEP: u32 = 3;

/// Free frames of a kind.
#[repr(C)]
pub(super) struct FrameLists {
    ready: FrameList,
    bare: FrameList,
    /// From here on to the last one of the kind none was ever used.
    fresh: AtomicU32,
}

#[repr(C)]
struct FrameList {
    /// Tag (upper half, against ABA) and number of the first one.
    head: AtomicU64,
    /// How often it was made anew, in steps of [`REBUILT_STEP`], modulo 2³².
    rebuilt: AtomicU32,
}

impl FrameLists {
    pub(super) fn new(first: u32) -> FrameLists {
        let empty = || FrameList { head: AtomicU64::new(u64::from(NO_FRAME)), rebuilt: AtomicU32::new(0) };
        FrameLists { ready: empty(), bare: empty(), fresh: AtomicU32::new(first) }
    }
}

/// A head with another first frame.
fn with_first(head: u64, first: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(first)
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
        if let Some(frame) = self.pop(Which { kind, is_bare: false }) {
            return Some(frame);
        }
        let frame = self.take_fresh(kind).or_else(|| self.pop(Which { kind, is_bare: true }))?;
        self.header().with_memory.fetch_add(1, Ordering::Relaxed);
        self.bound_memory(1 - kind);
        Some(frame)
    }

    /// Puts a frame that nobody uses in its list.
    pub(super) fn put(&self, frame: u32) {
        let kind = if frame < self.frames { ORDINARY } else { METADATA };
        self.push(Which { kind, is_bare: false }, frame);
    }

    /// How often a list of free frames was made anew, as memory of it had gone bad.
    pub fn free_lists_rebuilt(&self) -> u64 {
        *self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn frames_of(&self, kind: usize) -> Range<u32> {
        if kind == ORDINARY { 0..self.frames } else { self.frames + 1..self.all_frames }
    }

    fn take_fresh(&self, kind: usize) -> Option<u32> {
        let (fresh, frames) = (&self.header().lists[kind].fresh, self.frames_of(kind));
        let next = |fresh| frames.contains(&fresh).then(|| fresh + 1);
        loop {
            let frame = match fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
                Ok(frame) => frame,
                Err(now) if now == frames.end => return None,
                Err(now) => {
                    // A bit of it has flipped. From the first one on, those that were ever used say so.
                    let _changed = fresh.compare_exchange(now, frames.start, Ordering::Relaxed, Ordering::Relaxed);
                    continue;
                }
            };
            // Not so if a bit of `fresh` has flipped.
            if self.word(frame).compare_exchange(0, UNSAID, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some(frame);
            }
        }
    }

    /// Takes memory from free frames of a kind while more frames have some than pages have room, and twins there are.
    pub(super) fn bound_memory(&self, kind: usize) {
        let header = self.header();
        let ready = Which { kind, is_bare: false };
        let is_above = || {
            header.with_memory.load(Ordering::Relaxed) > u64::from(self.frames) + header.twins.load(Ordering::Relaxed)
        };
        while is_above() {
            let Some(frame) = self.pop(ready) else { return };
            let (flags, page) = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, PAGE_SIZE as u64);
            if rustix::fs::fallocate(&self.memory, flags, self.frame_offset(frame), page).is_err() {
                // It keeps its memory, which is all.
                return self.push(ready, frame);
            }
            header.with_memory.fetch_sub(1, Ordering::Relaxed);
            self.push(Which { is_bare: true, ..ready }, frame);
        }
    }

    fn list(&self, which: Which) -> &FrameList {
        let lists = &self.header().lists[which.kind];
        if which.is_bare { &lists.bare } else { &lists.ready }
    }

    /// What links of a list are made with until it is made anew.
    fn key(&self, which: Which) -> Key {
        Key::new(which, self.list(which).rebuilt.load(Ordering::Acquire))
    }

    /// Where a free frame has its link.
    fn word(&self, frame: u32) -> &AtomicU64 {
        &self.descriptor(frame).since_ns
    }

    fn pop(&self, which: Which) -> Option<u32> {
        let list = &self.list(which).head;
        let mut head = list.load(Ordering::Acquire);
        loop {
            let frame = head as u32;
            if frame == NO_FRAME {
                return None;
            }
            // The key after the head: if the head stays, so has the key.
            let word = (frame < self.all_frames).then(|| self.word(frame).load(Ordering::Acquire));
            let Some(word) = word.filter(|word| self.key(which).made(frame, *word)) else {
                head = self.rebuild(which, head);
                continue;
            };
            let next = with_first(head, link::next(word));
            match list.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_)
                    if self.word(frame).compare_exchange(word, UNSAID, Ordering::AcqRel, Ordering::Relaxed).is_ok() =>
                {
                    debug_assert_eq!(self.descriptor(frame).references.load(Ordering::Relaxed), 0);
                    return Some(frame);
                }
                // The list was made anew, with this frame; or a bit of the word has flipped just now.
                Ok(_) => head = list.load(Ordering::Acquire),
                Err(now) => head = now,
            }
        }
    }

    fn push(&self, which: Which, frame: u32) {
        let (list, word) = (&self.list(which).head, self.word(frame));
        let mut head = list.load(Ordering::Acquire);
        let mut link = self.key(which).link(frame, head as u32);
        word.store(link, Ordering::Release);
        loop {
            let first = head as u32;
            if first != NO_FRAME && first >= self.all_frames {
                head = self.rebuild(which, head);
            } else {
                match list.compare_exchange_weak(head, with_first(head, frame), Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return,
                    Err(now) => head = now,
                }
            }
            let other = self.key(which).link(frame, head as u32);
            if word.compare_exchange(link, other, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // The list was made anew meanwhile, and has it.
                return;
            }
            link = other;
        }
    }

    /// Makes a list anew whose head `found` leads to something that is no link of it, unless that has changed since: of all frames that say
    /// they are free, but for those of the other list. Gives the head as it is then.
    #[cold]
    fn rebuild(&self, which: Which, found: u64) -> u64 {
        let list = self.list(which);
        let now = list.head.load(Ordering::Acquire);
        if now != found {
            // The frame has been taken meanwhile, as it happens all the time.
            return now;
        }
        let mut rebuilt = self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
        // From here on nobody puts a frame into it, or takes one, until there is a head again. Whoever had begun to finds that the head has
        // changed, or that the frame's link has: only one of us two can exchange it.
        let stopped = with_first(found, BEING_REBUILT);
        if let Err(now) = list.head.compare_exchange(found, stopped, Ordering::AcqRel, Ordering::Acquire) {
            return now;
        }
        // By more than a bit: what is counted on from a flipped number is none that links were made with.
        list.rebuilt.fetch_add(REBUILT_STEP, Ordering::AcqRel);
        let (key, other) = (self.key(which), self.key(Which { is_bare: !which.is_bare, ..which }));
        let frames = self.frames_of(which.kind);
        // Of those behind it not even the descriptors have memory yet.
        let used = self.header().lists[which.kind].fresh.load(Ordering::Relaxed).min(frames.end);
        let mut first = NO_FRAME;
        for frame in frames.start..used {
            let word = self.word(frame);
            let link = word.load(Ordering::Acquire);
            // One that has this key already: whoever is about to put it there will do so.
            let is_ours = link::says_free(link) && !key.made(frame, link) && !other.made(frame, link);
            if is_ours
                && word.compare_exchange(link, key.link(frame, first), Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                first = frame;
            }
        }
        let head = with_first(stopped, first);
        list.head.store(head, Ordering::Release);
        *rebuilt += 1;
        head
    }
}

#[cfg(test)]
mod tests;
