//! Blocks that newer recovery points have freed, kept for whoever still reads an older one.
//!
//! One reader at a time, who reads from the device itself ([`crate::frozen`]). He comes after everybody else: where there is room for something
//! only with what he keeps, all of that is handed out, and he is told when he looks next ([`Alloc::is_held_by`]). So a block that was held is
//! written to only after its reader has been told that it is not any more, if he looks after each read.

use super::Alloc;
use crate::words::{CHUNK_WORDS, Words};
use holdfast_object::Result;

impl Alloc {
    /// From now on keeps what recovery points free, for this reader; one before him is given up.
    pub(crate) fn hold(&mut self, holder: u64) {
        self.let_go();
        self.holder = Some(holder);
    }

    /// Whether all blocks of the recovery point that was the last one at [`Alloc::hold`] are still as they were.
    pub(crate) fn is_held_by(&self, holder: u64) -> bool {
        self.holder == Some(holder)
    }

    /// The reader has what he wanted.
    pub(crate) fn release(&mut self, holder: u64) {
        if self.is_held_by(holder) {
            self.let_go();
        }
    }

    /// Hands out what is held, if there is any.
    pub(super) fn give_up_held(&mut self) -> bool {
        let any = self.held.count() > 0;
        if any {
            self.let_go();
        }
        any
    }

    /// What `check` says of this many free blocks. Where that is no room, but would be one with what is held, that is handed out.
    pub(super) fn check_and_give_way(&mut self, check: impl Fn(&Alloc, u64) -> Result<()>) -> Result<()> {
        let free = self.used.free();
        let outcome = check(self, free);
        if outcome.is_ok() || check(self, free.wrapping_add(self.held.count())).is_err() {
            return outcome;
        }
        self.give_up_held();
        // Not what has gone bad.
        check(self, self.used.free())
    }

    /// Blocks of a chunk that a recovery point has freed.
    pub(super) fn put_back(&mut self, chunk: u64, mask: &Words) {
        if self.holder.is_none() {
            return self.used.clear_mask(chunk, mask);
        }
        self.held.insert_words(chunk, mask);
    }

    fn let_go(&mut self) {
        self.holder = None;
        let chunks: Vec<u64> = self.held.chunks().collect();
        for chunk in chunks {
            match self.used.chunk(chunk).and_then(|_| self.held.words(chunk)) {
                Ok(mask) => self.used.clear_mask(chunk, &mask.unwrap_or([0; CHUNK_WORDS])),
                // What has gone bad stays in use, and is noticed.
                Err(scribble) => self.note_scribble(chunk, scribble),
            }
        }
        self.held.clear();
        self.search_anew();
    }
}

#[cfg(test)]
mod tests {
    use crate::alloc::{Alloc, Zone};
    use holdfast_object::{Purpose, SystemClock};
    use std::sync::Arc;

    fn alloc() -> Alloc {
        Alloc::new(8192, 32..160, false, Arc::new(SystemClock::default()))
    }

    fn is_free_in_bitmap(alloc: &Alloc, block: u64) -> bool {
        alloc.page(0).unwrap()[(block / 64) as usize] >> (block % 64) & 1 == 0
    }

    #[test]
    fn what_is_held_is_free_on_the_device_and_handed_out_only_when_it_is_released() {
        let mut alloc = alloc();
        let all = alloc.space().free;
        let blocks = alloc.allocate_many(2, Zone::Data, 1000).unwrap();
        alloc.publish(2);
        alloc.hold(7);
        for &block in &blocks {
            assert!(alloc.free(block));
        }
        alloc.publish(3);
        assert!(alloc.is_held_by(7) && !alloc.is_held_by(8));
        assert_eq!((alloc.space().free, alloc.space().pending), (all - 1000, 1000));
        assert_eq!(alloc.free_after_publish(), all);
        for &block in &blocks {
            assert!(alloc.is_used(block) && is_free_in_bitmap(&alloc, block) && !alloc.free(block));
        }
        alloc.release(8);
        assert!(alloc.is_held_by(7), "another's");
        alloc.release(7);
        assert!(!alloc.is_held_by(7));
        assert_eq!((alloc.space().free, alloc.space().pending), (all, 0));
        assert!(!alloc.is_used(blocks[0]) && alloc.scribble().is_none());
    }

    #[test]
    fn a_reader_comes_after_everybody_else() {
        let mut alloc = alloc();
        let free = alloc.space().free - alloc.space().reserve;
        let blocks = alloc.allocate_many(2, Zone::Data, free).unwrap();
        alloc.publish(2);
        alloc.hold(7);
        assert!(alloc.reserve(3, 1, Purpose::Ordinary).is_err(), "full");
        assert!(alloc.is_held_by(7), "nothing is held, so nothing is gained");
        assert!(alloc.free(blocks[0]));
        alloc.publish(3);
        assert!(alloc.reserve(4, 2, Purpose::Ordinary).is_err());
        assert!(alloc.is_held_by(7), "what is refused all the same takes nothing from him");
        alloc.reserve(4, 1, Purpose::Ordinary).unwrap();
        assert!(!alloc.is_held_by(7), "he is told");
    }

    /// A store with half of its blocks in use and almost all others held, for reader 7.
    fn with_half_held() -> (Alloc, u64) {
        let mut alloc = alloc();
        let half = alloc.space().total / 2;
        alloc.allocate_many(2, Zone::Data, half).unwrap();
        let rest = alloc.space().free - alloc.margin();
        let blocks = alloc.allocate_many(2, Zone::Data, rest).unwrap();
        alloc.publish(2);
        alloc.hold(7);
        assert!(blocks.iter().all(|&block| alloc.free(block)));
        alloc.publish(3);
        assert!(alloc.is_held_by(7));
        (alloc, rest)
    }

    #[test]
    fn room_for_what_a_snapshot_keeps_is_made_of_what_is_held() {
        let (mut alloc, held) = with_half_held();
        assert!(alloc.check_kept(2 * held).is_err());
        assert!(alloc.is_held_by(7), "what is refused all the same takes nothing from him");
        alloc.check_kept(held / 8).unwrap();
        assert!(!alloc.is_held_by(7));
    }

    /// Also of what was not reserved: an epoch that cannot be written makes the store read-only.
    #[test]
    fn what_is_handed_out_is_what_was_held_before_it_is_nothing() {
        let (mut alloc, held) = with_half_held();
        assert_eq!(alloc.allocate_many(4, Zone::Data, held).unwrap().len() as u64, held);
        assert!(!alloc.is_held_by(7));
        let (mut alloc, held) = with_half_held();
        assert_eq!(alloc.allocate_strings(4, &[held / 2, 1, held / 4]).unwrap().len() as u64, held / 2 + 1 + held / 4);
        assert!(!alloc.is_held_by(7));
        let (mut alloc, held) = with_half_held();
        assert!(alloc.allocate_many(4, Zone::Meta(0), held).is_ok() && !alloc.is_held_by(7));
        assert!(alloc.allocate_many(4, Zone::Meta(0), held).is_err(), "nor does it turn for ever");
    }

    #[test]
    fn one_reader_at_a_time_and_what_somebody_scribbles_shows() {
        let mut alloc = alloc();
        let blocks = alloc.allocate_many(2, Zone::Data, 10).unwrap();
        alloc.publish(2);
        alloc.hold(7);
        assert!(alloc.free(blocks[0]));
        alloc.publish(3);
        alloc.hold(8);
        assert!(!alloc.is_held_by(7) && !alloc.is_used(blocks[0]));
        assert!(alloc.free(blocks[1]));
        alloc.publish(4);
        let words = alloc.held.scribbled(0).unwrap();
        words[(blocks[5] / 64) as usize] ^= 1 << (blocks[5] % 64);
        assert!(alloc.page(0).is_err(), "no bitmap is made of it");
        alloc.release(8);
        assert!(alloc.scribble().is_some() && alloc.is_used(blocks[5]), "nor is it handed out");
    }
}
