//! How long pages of a pool take that come from DRAM: to verify them before they are written, and to take bytes into their frames. And how long
//! it takes to get a free frame and to give it back.
//!
//! `cargo run --release -p holdfast-object --example page_speed`
//!
//! Pages in the order in which they lie in memory, and in a random one, as in a pool that has been used for a while. The ways take turns, a window
//! of pages each, which none of them has seen for a while; of each the least and the median time of a page is printed.

use std::hint::black_box;
use std::time::Instant;

use holdfast_integrity::{
    Algorithm, PAGE_SIZE, Protection, crc64, crc64_copied, prefetch, prefetch_ahead, prefetch_start,
};
use holdfast_object::{Arena, FrameMut, PinnedPage};

/// 800 MiB: far more than any cache has.
const FRAMES: usize = 200_000;
const WINDOW: usize = 256;
const ROUNDS: usize = 60;
const SUM: Algorithm = Algorithm::Crc64Nvme;

type Way<'a, T> = (&'a str, &'a dyn Fn(&mut [T]));

/// Least and median of a page's time in nanoseconds, for each way.
fn measure<T>(pages: &mut [T], ways: &[Way<'_, T>]) {
    let mut times = vec![Vec::new(); ways.len()];
    let mut first = 0;
    for _ in 0..ROUNDS {
        for ((_, way), times) in ways.iter().zip(&mut times) {
            let window = &mut pages[first..first + WINDOW];
            first = (first + WINDOW) % (FRAMES - WINDOW);
            let start = Instant::now();
            way(window);
            times.push(start.elapsed().as_nanos() as f64 / WINDOW as f64);
        }
    }
    for ((name, _), times) in ways.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("  {name:48} {:4.0} ns, median {:4.0}", times[0], times[ROUNDS / 2]);
    }
}

/// Into a random order, always the same.
fn shuffle<T>(items: &mut [T]) {
    let mut random = 88_172_645_463_325_252_u64;
    for at in (1..items.len()).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        items.swap(at, (random % (at as u64 + 1)) as usize);
    }
}

fn verify(pages: &mut [PinnedPage], ask: impl Fn(&[PinnedPage], usize)) {
    for at in 0..pages.len() {
        ask(pages, at);
        pages[at].verify().expect("nobody has changed it");
    }
}

fn verify_together(pages: &mut [PinnedPage]) {
    let blocks: Vec<_> = pages.iter().map(PinnedPage::bytes).collect();
    let mut sums = [0; WINDOW];
    SUM.number_each(&blocks, &mut sums);
    assert!(pages.iter().zip(sums).all(|(page, sum)| page.crc64() == Some(sum)), "nobody has changed them");
}

/// The same without a look at the pages' descriptors, which a flush has in its cache.
fn sum_together(pages: &mut [PinnedPage]) {
    let blocks: Vec<_> = pages.iter().map(PinnedPage::bytes).collect();
    let mut sums = [0; WINDOW];
    SUM.number_each(&blocks, &mut sums);
    black_box(sums);
}

/// As readers of `static` have them verified.
fn xor_together(pages: &mut [PinnedPage]) {
    let blocks: Vec<_> = pages.iter().map(PinnedPage::bytes).collect();
    let mut sums = [0; WINDOW];
    Protection::FAST.number_each(&blocks, &mut sums);
    black_box(sums);
}

/// The same page by page.
fn xor_in_turn(pages: &mut [PinnedPage]) {
    for at in 0..pages.len() {
        prefetch_ahead(at, |at| pages.get(at).map(PinnedPage::bytes));
        black_box(Protection::FAST.sum(black_box(pages[at].bytes())));
    }
}

/// As it is done before pages of `static` go to the device.
fn sum_both_together(pages: &mut [PinnedPage]) {
    black_box(Protection::Static { strong: false }.sums_of(pages.iter().map(PinnedPage::bytes)));
}

/// The same page by page: Fletcher-256 made and xor64 verified.
fn sum_both_in_turn(pages: &mut [PinnedPage]) {
    for at in 0..pages.len() {
        prefetch_ahead(at, |at| pages.get(at).map(PinnedPage::bytes));
        for algorithm in [Protection::STRONG, Protection::FAST] {
            black_box(algorithm.sum(black_box(pages[at].bytes())));
        }
    }
}

/// Each page into the same memory, which is in the processor's cache: as a reader gets one.
fn give(pages: &mut [PinnedPage], give: impl Fn(&PinnedPage, &mut [u8; PAGE_SIZE]) -> u64) {
    let mut buffer = [0; PAGE_SIZE];
    for page in pages {
        let sum = give(page, black_box(&mut buffer));
        assert!(page.crc64() == Some(sum), "nobody has changed it");
    }
}

fn receive(frames: &mut [FrameMut], asks: bool, take: impl Fn(&mut FrameMut)) {
    for at in 0..frames.len() {
        if let Some(next) = frames.get(at + 1).filter(|_| asks) {
            prefetch(next);
        }
        take(&mut frames[at]);
    }
}

/// A frame that was given back just now, and a list of many that the processor's cache has forgotten.
fn get_frames() -> std::io::Result<()> {
    let [few, many] = [16, FRAMES as u32].map(|frames| Arena::new(frames, 4096));
    let (few, many) = (few?, many?);
    let mut frames: Vec<FrameMut> = std::iter::from_fn(|| many.allocate()).collect();
    shuffle(&mut frames);
    drop(frames);
    println!("got and given back:");
    let ways: [Way<'_, ()>; 2] = [
        ("one frame again and again", &|windows| windows.iter().for_each(|()| drop(black_box(few.allocate())))),
        ("frames anywhere in memory", &|windows| {
            let frames: Vec<_> = windows.iter().map_while(|()| many.allocate()).collect();
            // Kept back: the next ones are others.
            std::mem::forget(frames);
        }),
    ];
    measure(&mut [(); FRAMES], &ways);
    Ok(())
}

fn main() -> std::io::Result<()> {
    get_frames()?;
    for (order, is_random) in [("in the order of memory", false), ("anywhere in memory", true)] {
        let arena = Arena::new(FRAMES as u32, 4096)?;
        let mut frames: Vec<FrameMut> = std::iter::from_fn(|| arena.allocate()).collect();
        frames.iter_mut().zip(0u32..).for_each(|(frame, n)| frame.fill(n as u8));
        if is_random {
            shuffle(&mut frames);
        }
        let bytes = [7; PAGE_SIZE];
        println!("taken in, {order}:");
        let copy = |frame: &mut FrameMut| frame.copy_from_slice(black_box(&bytes));
        let sum_and_copy = |frame: &mut FrameMut| {
            black_box(SUM.sum(black_box(&bytes)));
            frame.copy_from_slice(black_box(&bytes));
        };
        let sum_copied = |frame: &mut FrameMut| {
            black_box(crc64_copied(black_box(&bytes), frame));
        };
        let xor_and_copy = |frame: &mut FrameMut| {
            black_box(Protection::FAST.sum(black_box(&bytes)));
            frame.copy_from_slice(black_box(&bytes));
        };
        let ways: [Way<'_, FrameMut>; 8] = [
            ("copied", &|frames| receive(frames, false, copy)),
            ("copied, next frame asked for", &|frames| receive(frames, true, copy)),
            ("summed, then copied", &|frames| receive(frames, false, sum_and_copy)),
            ("summed, then copied, next frame asked for", &|frames| receive(frames, true, sum_and_copy)),
            ("summed while copied", &|frames| receive(frames, false, sum_copied)),
            ("summed while copied, next frame asked for", &|frames| receive(frames, true, sum_copied)),
            ("xor64, then copied", &|frames| receive(frames, false, xor_and_copy)),
            ("xor64, then copied, next frame asked for", &|frames| receive(frames, true, xor_and_copy)),
        ];
        measure(&mut frames, &ways);
        let publish = |frame: FrameMut| {
            let sum = SUM.sum(&frame[..]);
            frame.publish(sum)
        };
        let mut pages: Vec<PinnedPage> = frames.into_iter().map(publish).collect();
        println!("verified, {order}:");
        let next = |pages: &[PinnedPage], at: usize, ask: fn(&[u8; PAGE_SIZE])| {
            if let Some(next) = pages.get(at + 1) {
                ask(next.bytes());
            }
        };
        let ways: [Way<'_, PinnedPage>; 10] = [
            ("as before a write: what comes next asked for", &|pages| verify_together(pages)),
            ("the same, summed only", &|pages| sum_together(pages)),
            ("xor64, eight side by side, neighbours in turn", &|pages| xor_together(pages)),
            ("xor64, in turn, two halves asked for", &|pages| xor_in_turn(pages)),
            ("both of static, as before a write", &|pages| sum_both_together(pages)),
            ("both of static, in turn, two halves asked for", &|pages| sum_both_in_turn(pages)),
            ("nothing asked for", &|pages| verify(pages, |_, _| ())),
            ("the start of the next page", &|pages| verify(pages, |pages, at| next(pages, at, prefetch_start))),
            ("all of the next page", &|pages| verify(pages, |pages, at| next(pages, at, prefetch))),
            ("two halves, of neighbours the start", &|pages| {
                verify(pages, |pages, at| prefetch_ahead(at, |at| pages.get(at).map(PinnedPage::bytes)));
            }),
        ];
        measure(&mut pages, &ways);
        println!("given, {order}:");
        let ways: [Way<'_, PinnedPage>; 4] = [
            ("copied", &|pages| {
                give(pages, |page, buffer| {
                    buffer.copy_from_slice(page.bytes());
                    page.page().checksum
                });
            }),
            ("verified, then copied", &|pages| {
                give(pages, |page, buffer| {
                    let sum = crc64(page.bytes());
                    buffer.copy_from_slice(page.bytes());
                    sum
                });
            }),
            ("verified while copied", &|pages| give(pages, |page, buffer| crc64_copied(page.bytes(), buffer))),
            ("copied, then the copy verified", &|pages| {
                give(pages, |page, buffer| {
                    buffer.copy_from_slice(page.bytes());
                    crc64(black_box(buffer))
                });
            }),
        ];
        measure(&mut pages, &ways);
    }
    Ok(())
}
