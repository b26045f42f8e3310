use super::*;
use holdfast_object::{ManualClock, SystemClock};
use rand::{Rng, SeedableRng};

/// What nobody may do.
impl Alloc {
    pub(crate) fn lose_placement(&mut self) {
        self.placements.pop_first().expect("one");
    }

    pub(crate) fn move_placement(&mut self) {
        let (block, placed) = self.placements.pop_first().expect("one");
        self.placements.insert(block + 1, placed);
    }

    pub(crate) fn is_used(&self, block: u64) -> bool {
        self.used.get(block)
    }
}

fn alloc() -> Alloc {
    alloc_of(8192)
}

fn alloc_of(blocks: u64) -> Alloc {
    Alloc::new(blocks, 32..160, false, Arc::new(SystemClock::default()))
}

/// Logic bugs.
impl Alloc {
    pub(crate) fn miscount_free(&mut self) {
        self.miscount(false);
    }

    pub(crate) fn miscount_total(&mut self) {
        self.miscount(true);
    }
}

#[test]
fn freed_blocks_wait_for_the_recovery_point() {
    let mut alloc = alloc();
    let all = alloc.space().free;
    let blocks = alloc.allocate_many(2, Zone::Data, all - alloc.margin()).unwrap();
    assert!(alloc.allocate(2, Zone::Data, 1).is_none());
    for &block in &blocks[..100] {
        assert!(alloc.free(block));
        assert!(!alloc.free(block), "only once");
    }
    assert_eq!(alloc.space().pending, 100);
    assert_eq!(alloc.pending_runs(), vec![Range { start: blocks[0], end: blocks[99] + 1 }]);
    assert!(alloc.allocate(2, Zone::Data, 1).is_none());
    assert_eq!(
        alloc.page(0).unwrap()[(blocks[0] / 64) as usize] >> (blocks[0] % 64) & 1,
        0,
        "free in this epoch's bitmap"
    );
    alloc.publish(2);
    assert_eq!(alloc.allocate_many(3, Zone::Data, 100).unwrap().len(), 100);
    alloc.used.check();
}

#[test]
fn what_grows_has_its_labels_at_the_new_end() {
    for blocks in [8192 + 32, 8192 + 33, BITS, BITS + 5, 5 * BITS - 1] {
        let mut alloc = alloc();
        let before = alloc.space();
        alloc.clear_touched();
        alloc.grow(blocks);
        alloc.used.check();
        let (after, fresh) = (alloc.space(), alloc_of(blocks));
        assert_eq!((after.total, after.free), (fresh.total(), fresh.used.free()), "{blocks}");
        assert_eq!(after.free - before.free, blocks - 8192);
        for chunk in 0..alloc.chunks() {
            assert_eq!(alloc.page(chunk), fresh.page(chunk), "{blocks}");
            // What is not written is a hole, and that is a chunk of free blocks.
            assert!(
                alloc.touched().contains(&chunk) || alloc.page(chunk).unwrap() == [0; CHUNK_WORDS],
                "{blocks}: {chunk}"
            );
        }
    }
}

#[test]
fn copies_of_metadata_are_apart() {
    let mut alloc = alloc();
    let first = alloc.allocate_many(2, Zone::Meta(0), 100).unwrap();
    let second = alloc.allocate_many(2, Zone::Meta(1), 100).unwrap();
    assert!(first.iter().zip(&second).all(|(a, b)| b - a > 3000));
    let (_, length) = alloc.allocate(2, Zone::Data, 1000).unwrap();
    assert_eq!(length, 1000, "data in one run beside them");
}

#[test]
fn placed_blocks_belong_to_no_bitmap_until_adopted() {
    let mut alloc = alloc();
    let blocks = alloc.allocate_many(3, Zone::Data, 3).unwrap();
    alloc.place(3, blocks.clone());
    let bit = |alloc: &Alloc, block: u64| alloc.page(0).unwrap()[(block / 64) as usize] >> (block % 64) & 1;
    alloc.clear_touched();
    alloc.settle(2);
    assert_eq!(blocks.iter().map(|&block| bit(&alloc, block)).sum::<u64>(), 0);
    alloc.adopt(blocks[0]);
    alloc.unplace(blocks[1]);
    assert!(!alloc.is_placed(blocks[0]) && !alloc.is_placed(blocks[1]) && alloc.is_placed(blocks[2]));
    alloc.settle(3);
    assert_eq!(blocks.iter().map(|&block| bit(&alloc, block)).collect::<Vec<_>>(), [1, 0, 0]);
    assert!(alloc.touched().contains(&0));
    assert_eq!(alloc.space().pending, 2);
}

#[test]
fn reservations_keep_the_reserve() {
    let mut alloc = alloc();
    let space = alloc.space();
    let most = space.free - space.reserve;
    assert!(alloc.reserve(2, most + 1, Purpose::Ordinary).is_err());
    alloc.reserve(2, most, Purpose::Ordinary).unwrap();
    assert!(alloc.reserve(3, 1, Purpose::Ordinary).is_err());
    alloc.reserve(3, 10, Purpose::Release).unwrap();
    alloc.publish(2);
    assert_eq!(alloc.space().reserved, 10);
    alloc.reserve(3, 100, Purpose::Ordinary).unwrap();
}

#[test]
fn what_goes_beyond_the_reservation_is_counted() {
    let mut alloc = alloc();
    for (epoch, taken, own, beyond) in [(2, 10, 0, 0), (3, 14, 4, 0), (4, 13, 0, 3), (5, 2, 0, 3), (6, 50, 40, 8)] {
        alloc.reserve(epoch, 10, Purpose::Ordinary).unwrap();
        alloc.allocate_many(epoch, Zone::Data, taken).unwrap();
        alloc.note_own(epoch, own);
        assert_eq!(alloc.space().reserved, 10u64.saturating_sub(taken), "epoch {epoch}");
        alloc.publish(epoch);
        assert_eq!(alloc.beyond_max(), beyond, "epoch {epoch}");
    }
    assert_eq!(alloc.margin(), 32);
    alloc.allocate_many(7, Zone::Data, 9).unwrap();
    alloc.publish(7);
    assert_eq!(alloc.beyond_max(), 8, "a replay reserves nothing");
}

/// Takes blocks until `left` are free, all but each `every`th run of `gap` blocks of them.
fn fill_with_gaps(alloc: &mut Alloc, epoch: Epoch, left: u64, gap: u64) {
    let blocks = alloc.allocate_many(epoch, Zone::Data, alloc.space().free - alloc.margin()).unwrap();
    let every = blocks.len() / (left / gap) as usize;
    for start in (0..blocks.len() - gap as usize).step_by(every) {
        assert!(blocks[start..start + gap as usize].iter().all(|&block| alloc.free(block)));
    }
    alloc.publish(epoch);
}

#[test]
fn short_strings_fill_gaps_and_long_ones_take_runs() {
    let mut alloc = alloc();
    fill_with_gaps(&mut alloc, 2, 600, 5);
    // One run of 200 somewhere.
    let run = alloc.allocate_many(3, Zone::Data, 1).unwrap()[0];
    for block in run + 1..run + 200 {
        alloc.free(block);
    }
    alloc.publish(3);
    let blocks = alloc.allocate_strings(4, &[3, 80, 5, 100]).unwrap();
    let is_one_run = |range: Range<usize>| blocks[range].windows(2).all(|pair| pair[1] == pair[0] + 1);
    assert!(is_one_run(0..3) && is_one_run(3..83) && is_one_run(83..88) && is_one_run(88..188));
    let in_run = |block: u64| (run..run + 200).contains(&block);
    assert!(in_run(blocks[3]) && in_run(blocks[88]), "long ones in the run");
    assert!(!in_run(blocks[0]) && !in_run(blocks[83]), "short ones in gaps");
    alloc.used.check();
}

#[test]
fn strings_get_the_last_block_and_then_an_error_that_takes_nothing() {
    let mut alloc = alloc();
    fill_with_gaps(&mut alloc, 2, 600, 5);
    let free = alloc.space().free - alloc.margin();
    assert!(alloc.allocate_strings(3, &[free / 2, free]).is_err());
    assert_eq!(alloc.space().free - alloc.margin(), free);
    let blocks = alloc.allocate_strings(3, &[free - 1, 1]).unwrap();
    assert_eq!(blocks.iter().collect::<BTreeSet<_>>().len() as u64, free);
    assert!(alloc.allocate_strings(3, &[1]).is_err());
}

/// Files that come and go, and one that is overwritten at random, on a device that is three quarters full: the mean length in
/// blocks of the runs in which long files lie in the end.
fn mean_run_after_churn(seed: u64, allocate: impl Fn(&mut Alloc, Epoch, &[u64]) -> Vec<u64>) -> f64 {
    let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
    let mut alloc = alloc_of(1 << 16);
    let mut files: Vec<Vec<u64>> = Vec::new();
    let mut database = allocate(&mut alloc, 2, &[4000]);
    let full = alloc.total() * 3 / 4;
    for epoch in 2..400 {
        // As an epoch is written: new files and overwritten pages in one window.
        let mut strings: Vec<u64> = (0..20).map(|_| rng.random_range(1..8)).collect();
        strings.extend((0..2).map(|_| rng.random_range(100..=256)));
        let new = allocate(&mut alloc, epoch, &[&strings[..], &[1; 100]].concat());
        let mut at = 0;
        for string in strings {
            files.push(new[at..at + string as usize].to_vec());
            at += string as usize;
        }
        for &page in &new[at..] {
            let place = rng.random_range(0..database.len());
            assert!(alloc.free(std::mem::replace(&mut database[place], page)));
        }
        while alloc.total() - alloc.free_after_publish() > full {
            let file = files.swap_remove(rng.random_range(0..files.len()));
            assert!(file.into_iter().all(|block| alloc.free(block)));
        }
        alloc.publish(epoch);
    }
    alloc.used.check();
    let long: Vec<&Vec<u64>> = files.iter().filter(|file| file.len() >= 100).collect();
    let runs = |file: &Vec<u64>| 1 + file.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    long.iter().map(|file| file.len()).sum::<usize>() as f64 / long.into_iter().map(runs).sum::<usize>() as f64
}

#[test]
fn long_files_stay_in_long_runs() {
    for seed in 0..4 {
        let strings =
            mean_run_after_churn(seed, |alloc, epoch, strings| alloc.allocate_strings(epoch, strings).unwrap());
        let mixed = mean_run_after_churn(seed, |alloc, epoch, strings| {
            alloc.allocate_many(epoch, Zone::Data, strings.iter().sum()).unwrap()
        });
        println!("seed {seed}: {strings} and {mixed}");
        assert!(strings > 64.0 && strings > 3.0 * mixed, "seed {seed}: {strings:.1} blocks, all mixed {mixed:.1}");
    }
}

#[test]
fn nothing_is_handed_out_where_somebody_else_has_written() {
    let clock = Arc::new(ManualClock::new(0, 0));
    let mut alloc = Alloc::new(2 * BITS, 32..160, false, clock.clone());
    let used = alloc.allocate_many(2, Zone::Data, 100).unwrap();
    // What is in use looks free, or the other way round.
    for block in [used[50], used[99] + 1] {
        alloc.scribble_used(block);
        clock.advance_ns(1_000_000_000);
        assert_eq!(alloc.free_run(used[0]..BITS, 8), None);
        assert!(alloc.allocate(2, Zone::Data, 10).is_none());
        let (chunk, _) = alloc.scribble.take().expect("noticed");
        assert_eq!(chunk, Some(0));
        assert!(alloc.page(0).is_err());
        // The other chunk is as good as it was.
        assert!(alloc.allocate(2, Zone::Meta(1), 10).is_some_and(|(first, _)| first >= BITS));
        alloc.scribble_used(block);
        assert!(alloc.allocate(2, Zone::Data, 10).is_some());
        assert!(alloc.scribble.is_none());
    }
}
