//! A flipped bit of the lists of free frames gives no frame out twice; of a link, of the first fresh frame beyond all, and of how often a list was made
//! anew, it costs none either.

use super::*;
use std::sync::atomic::AtomicBool;

const FRAMES: u32 = 9;
const READY: Which = Which { kind: ORDINARY, is_bare: false };

/// An arena of which these frames are in use and all others in a list, one after the other.
fn in_use(used: impl Fn(u32) -> bool) -> (Arc<Arena>, Vec<FrameMut>) {
    let arena = Arena::new(FRAMES, 0).unwrap();
    let (used, free): (Vec<_>, Vec<_>) =
        std::iter::from_fn(|| arena.allocate()).partition(|frame: &FrameMut| used(frame.frame));
    drop(free);
    (arena, used)
}

/// All frames that can be taken, and those that are in use: sorted. More than there are if one is given out again and again.
fn all(arena: &Arc<Arena>, used: &[FrameMut]) -> Vec<u32> {
    let taken: Vec<_> = std::iter::from_fn(|| arena.take(ORDINARY)).take(2 * FRAMES as usize).collect();
    let mut frames: Vec<_> = used.iter().map(|frame| frame.frame).chain(taken).collect();
    frames.sort_unstable();
    frames
}

#[test]
fn a_flipped_bit_of_a_link_gives_no_frame_out_twice() {
    for bit in 0..u64::BITS {
        for frame in (1..FRAMES).step_by(2) {
            let (arena, used) = in_use(|frame| frame % 2 == 0);
            arena.word(frame).fetch_xor(1 << bit, Ordering::Relaxed);
            assert_eq!(all(&arena, &used), Vec::from_iter(0..FRAMES), "bit {bit} of the link of frame {frame}");
            assert_eq!(arena.free_lists_rebuilt(), 1);
        }
    }
}

#[test]
fn a_flipped_bit_of_a_head_gives_no_frame_out_twice() {
    for bit in 0..u64::BITS {
        for last in [1, 7] {
            let (arena, used) = in_use(|frame| frame % 2 == 0 || frame > last);
            arena.list(READY).head.fetch_xor(1 << bit, Ordering::Relaxed);
            let mut frames = all(&arena, &used);
            // A head that leads to a later frame of the list leaves out those before it.
            let count = frames.len();
            frames.dedup();
            assert_eq!(frames.len(), count, "bit {bit} of the head");
            assert!(frames.iter().all(|frame| *frame < FRAMES));
        }
    }
}

#[test]
fn a_flipped_bit_of_the_other_numbers_gives_no_frame_out_twice() {
    for bit in 0..u32::BITS {
        let (arena, used) = in_use(|frame| frame % 2 == 0);
        arena.header().lists[ORDINARY].fresh.fetch_xor(1 << bit, Ordering::Relaxed);
        assert_eq!(all(&arena, &used), Vec::from_iter(0..FRAMES), "bit {bit} of the first fresh frame");
        for times in 0..4 {
            let (arena, used) = in_use(|frame| frame % 2 == 0);
            for _ in 0..times {
                arena.rebuild(READY, arena.list(READY).head.load(Ordering::Relaxed));
            }
            arena.list(READY).rebuilt.fetch_xor(1 << bit, Ordering::Relaxed);
            assert_eq!(all(&arena, &used), Vec::from_iter(0..FRAMES), "bit {bit} of a list made anew {times} times");
        }
    }
}

/// There are frames that nobody has used yet, and the number of the first of them leads beyond all.
#[test]
fn a_flipped_bit_of_the_first_fresh_frame_leaves_none_out() {
    for bit in (0..u32::BITS).filter(|bit| 1 << bit > FRAMES) {
        let arena = Arena::new(FRAMES, 0).unwrap();
        let used = Vec::from_iter(std::iter::from_fn(|| arena.allocate()).take(3));
        arena.header().lists[ORDINARY].fresh.fetch_xor(1 << bit, Ordering::Relaxed);
        assert_eq!(all(&arena, &used), Vec::from_iter(0..FRAMES), "bit {bit}");
    }
}

#[test]
fn a_list_with_a_frame_in_use_is_made_anew_without_it() {
    let (arena, used) = in_use(|frame| frame % 2 == 0);
    // What a link that has been exchanged for another one does, which is right in itself.
    let key = arena.key(READY);
    arena.word(5).store(key.link(5, 4), Ordering::Relaxed);
    assert_eq!(all(&arena, &used), Vec::from_iter(0..FRAMES));
    assert_eq!(arena.free_lists_rebuilt(), 1);
}

#[test]
fn a_list_without_memory_is_made_anew_for_itself() {
    let (arena, used) = in_use(|frame| frame % 2 == 0);
    let bare = Which { is_bare: true, ..READY };
    for _ in 0..2 {
        let frame = arena.pop(READY).unwrap();
        arena.push(bare, frame);
    }
    let first = arena.list(bare).head.load(Ordering::Relaxed) as u32;
    arena.word(first).fetch_xor(1 << 40, Ordering::Relaxed);
    let of = |which| std::iter::from_fn(|| arena.pop(which)).count();
    assert_eq!((of(bare), of(READY)), (2, 2));
    assert_eq!((arena.free_lists_rebuilt(), used.len()), (1, 5));
}

/// The flips hit words of free frames, of those in use, and of those in between; never more than one of the three bits that say which.
#[test]
fn threads_own_their_frames_while_bits_flip() {
    const ROUNDS: u32 = 4000;
    let arena = Arena::new(FRAMES, 0).unwrap();
    drop(Vec::from_iter(std::iter::from_fn(|| arena.allocate())));
    let owned: [AtomicBool; FRAMES as usize] = Default::default();
    let own = |frame: u32, owns: bool| {
        assert_ne!(owned[frame as usize].swap(owns, Ordering::AcqRel), owns, "frame {frame} has two owners");
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let frames = Vec::from_iter((0..3).filter_map(|_| arena.take(ORDINARY)));
                    frames.iter().for_each(|frame| own(*frame, true));
                    frames.iter().for_each(|frame| own(*frame, false));
                    frames.iter().for_each(|frame| arena.put(*frame));
                }
            });
        }
        let mut random = 88_172_645_463_325_252_u64;
        for _ in 0..ROUNDS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (frame, bit) = (random as u32 % FRAMES, (random >> 32) % 62);
            arena.word(frame).fetch_xor(1 << bit, Ordering::Relaxed);
        }
    });
    // A frame that was hit while it was taken says that it is free, and is in no list until that is made anew.
    arena.rebuild(READY, arena.list(READY).head.load(Ordering::Relaxed));
    assert_eq!(all(&arena, &[]), Vec::from_iter(0..FRAMES));
}
