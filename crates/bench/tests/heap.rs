//! What is counted of memory, by the allocator of this program.

use std::hint::black_box;

use holdfast_bench::heap::{Heap, Peak, apart, only_from_here, peak_of};

#[global_allocator]
static HEAP: Heap = Heap;

const MIB: i64 = 1 << 20;
/// What the threads of the tests ask for in the meantime is less.
const OTHERS: i64 = 64 << 10;

fn mib(number: usize) -> Vec<u8> {
    black_box(vec![1; number << 20])
}

fn grown(mut bytes: Vec<u8>, by: usize) -> Vec<u8> {
    bytes.reserve_exact(by);
    black_box(bytes)
}

/// One test, as the memory is that of the process.
#[test]
fn the_most_at_a_time_is_what_counts() {
    let before = mib(3);
    type Case = (&'static str, i64, Box<dyn FnOnce()>);
    let cases: [Case; 7] = [
        ("nothing", 0, Box::new(|| ())),
        ("what stays", MIB, Box::new(|| std::mem::forget(mib(1)))),
        ("what goes again", 5 * MIB, Box::new(|| drop((mib(2), mib(3))))),
        ("one after the other", 3 * MIB, Box::new(|| [2, 3].into_iter().for_each(|number| drop(mib(number))))),
        ("what grows", 4 * MIB, Box::new(|| drop(grown(mib(1), 3 << 20)))),
        ("zeros", 2 * MIB, Box::new(|| drop(black_box(vec![0_u8; 2 << 20])))),
        ("what is apart", 2 * MIB, Box::new(|| drop((apart(|| mib(7)), mib(2))))),
    ];
    for (what, expected, case) in cases {
        let ((), Peak { heap_bytes, blocks }) = peak_of(case);
        assert!((expected..expected + OTHERS).contains(&heap_bytes), "{what}: {heap_bytes} bytes and not {expected}");
        assert_eq!(blocks, 0, "{what}");
    }
    let ((), peak) = peak_of(|| drop((before, mib(1))));
    assert!(peak.heap_bytes < MIB + OTHERS, "it had been there before: {peak:?}");
    let ((), peak) = peak_of(|| {
        let (kept, gone) = (mib(1), mib(4));
        drop(gone);
        only_from_here();
        drop((kept, mib(2)));
    });
    assert!((3 * MIB..3 * MIB + OTHERS).contains(&peak.heap_bytes), "what stays of before, and no more: {peak:?}");
    drop(mib(9));
    let ((), peak) = peak_of(|| ());
    assert!(peak.heap_bytes < OTHERS, "what came when nothing was measured: {peak:?}");
}
