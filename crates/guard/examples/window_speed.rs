//! What a window costs on this machine: with a protection key against mprotect.
//!
//! `cargo run --release -p holdfast-guard --example window_speed`
//!
//! For a region of 1 and of 1,000 pages: opening and closing a window, and the same with a store into each page between; with no other
//! thread, and beside one that runs (whose CPU mprotect must interrupt). Median and fastest of the rounds; each way of
//! protection in a process of its own, because it is chosen once.

use holdfast_guard::{Protect, Region, admit_thread, install, open};
use std::hint::black_box;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const ROUNDS: usize = 31;
const PAGE: usize = 4096;

fn main() {
    let all = [Protect::Off, Protect::Keys, Protect::Pages];
    match std::env::args().nth(1) {
        None => {
            println!(
                "{:8}{:>7}  {:14}{:>22}{:>32}",
                "protect", "pages", "other threads", "window, ns", "window and a store per page, ns"
            );
            println!("{:31}{:>11}{:>11}{:>16}{:>16}", "", "median", "fastest", "median", "fastest");
            for protect in all {
                let this = std::env::current_exe().expect("this program has a path");
                let status = Command::new(this).arg(protect.to_string()).status().expect("this program runs again");
                assert!(status.success(), "{protect}: {status}");
            }
        }
        Some(asked) => {
            let protect = all.into_iter().find(|protect| protect.to_string() == asked).expect("off, keys or pages");
            match install(protect) {
                Ok(()) => [1, 1000].into_iter().for_each(|pages| measure(protect, pages)),
                Err(reason) => println!("{protect:8}{reason}"),
            }
        }
    }
}

fn measure(protect: Protect, pages: usize) {
    let region = Region::new("measured", pages * PAGE).expect("memory");
    let touch = || {
        for page in 0..pages {
            // SAFETY: in the region, by the only thread that uses it, inside a window.
            unsafe { region.as_ptr().add(page * PAGE).write_volatile(black_box(1)) };
        }
    };
    let empty = || open(|| black_box(()));
    let with_stores = || open(touch);
    with_stores();
    for busy in [false, true] {
        let stop = AtomicBool::new(!busy);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                admit_thread();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            // At most about a millisecond per round, so that others on the same CPUs do not come between.
            let per_pages = (10_000 / pages).max(10);
            let per_window = if protect == Protect::Pages { per_pages.min(100) } else { 10_000 };
            let [window, stores] = rounds((per_window, empty), (per_pages.min(per_window), with_stores));
            let others = if busy { "one, running" } else { "none" };
            println!(
                "{:8}{pages:>7}  {others:14}{:>11.1}{:>11.1}{:>16.1}{:>16.1}",
                protect.to_string(),
                window.0,
                window.1,
                stores.0,
                stores.1
            );
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// What it takes once, in nanoseconds: median and least of the rounds, in which the two take turns.
fn rounds(window: (usize, impl Fn()), stores: (usize, impl Fn())) -> [(f64, f64); 2] {
    fn time(repeats: usize, what: &impl Fn()) -> f64 {
        let start = Instant::now();
        (0..repeats).for_each(|_| what());
        start.elapsed().as_nanos() as f64 / repeats as f64
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        times[0].push(time(window.0, &window.1));
        times[1].push(time(stores.0, &stores.1));
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        (times[ROUNDS / 2], times[0])
    })
}
