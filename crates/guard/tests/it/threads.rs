//! The rights that threads start with, get and lose.

use crate::child::{load, protected, run, store};
use holdfast_guard::{Protect, Region, admit_thread, closed, install, is_open, open};
use std::sync::mpsc;
use std::thread;

/// A thread older than the key gets to see a region, and reads it. `ready`: what it does before.
fn older_thread(ready: fn(), reports: bool) {
    let (give, take) = mpsc::channel::<&'static Region>();
    let older = thread::spawn(move || {
        let region = take.recv().unwrap();
        ready();
        let read = load(region, 0);
        (read, region.admits_writes())
    });
    let region = if reports {
        protected(Protect::Keys)
    } else {
        install(Protect::Keys).unwrap();
        Region::new("metadata of the test", 4096).unwrap()
    };
    let region: &'static Region = Box::leak(Box::new(region));
    open(|| store(region, 0, 7));
    give.send(region).unwrap();
    assert_eq!(older.join().unwrap(), (7, false));
}

#[test]
fn a_thread_older_than_the_key_cannot_read() {
    let test = "threads::a_thread_older_than_the_key_cannot_read";
    run(test, Protect::Keys, |_| older_thread(|| (), false)).inspect(|ended| ended.by_fault());
}

#[test]
fn a_thread_older_than_the_key_reads_when_admitted() {
    let test = "threads::a_thread_older_than_the_key_reads_when_admitted";
    run(test, Protect::Keys, |_| older_thread(admit_thread, false)).inspect(|ended| ended.in_peace());
}

#[test]
fn a_thread_older_than_the_key_is_admitted_by_its_first_read_where_faults_are_reported() {
    let test = "threads::a_thread_older_than_the_key_is_admitted_by_its_first_read_where_faults_are_reported";
    let ended = run(test, Protect::Keys, |_| older_thread(|| (), true));
    ended.inspect(|ended| {
        ended.in_peace();
        assert!(!ended.stderr.contains("holdfast:"), "{}", ended.stderr);
    });
}

#[test]
fn a_thread_older_than_the_key_needs_no_more_than_a_window() {
    let test = "threads::a_thread_older_than_the_key_needs_no_more_than_a_window";
    run(test, Protect::Keys, |_| older_thread(|| open(|| ()), false)).inspect(|ended| ended.in_peace());
}

#[test]
fn a_new_thread_reads_and_does_not_write() {
    let test = "threads::a_new_thread_reads_and_does_not_write";
    let ended = run(test, Protect::Keys, |protect| {
        let region = protected(protect);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(load(&region, 0), 0);
                assert!(!region.admits_writes() && !is_open());
                open(|| store(&region, 0, 1));
            });
        });
        assert_eq!(load(&region, 0), 1);
    });
    ended.inspect(|ended| ended.in_peace());
}

#[test]
fn a_window_is_one_threads_own() {
    let test = "threads::a_window_is_one_threads_own";
    let ended = run(test, Protect::Keys, |protect| {
        let region = protected(protect);
        let (opened, wait) = mpsc::channel();
        let (done, end) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let region = &region;
            scope.spawn(move || {
                open(|| {
                    opened.send(()).unwrap();
                    end.recv().unwrap();
                    assert!(region.admits_writes());
                });
            });
            wait.recv().unwrap();
            assert!(!region.admits_writes());
            open(|| ());
            done.send(()).unwrap();
        });
    });
    ended.inspect(|ended| ended.in_peace());
}

/// With pages the window is everybody's, until the last one closes.
#[test]
fn pages_are_open_while_any_thread_has_a_window() {
    let test = "threads::pages_are_open_while_any_thread_has_a_window";
    let ended = run(test, Protect::Pages, |protect| {
        let region = protected(protect);
        open(|| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    open(|| ());
                    assert!(region.admits_writes() && !is_open());
                });
            });
            closed(|| assert!(!region.admits_writes()));
            assert!(region.admits_writes());
        });
        assert!(!region.admits_writes());
    });
    ended.inspect(|ended| ended.in_peace());
}

#[test]
fn a_thread_made_inside_a_window_can_write_until_it_is_admitted() {
    let test = "threads::a_thread_made_inside_a_window_can_write_until_it_is_admitted";
    let ended = run(test, Protect::Keys, |protect| {
        let region = protected(protect);
        open(|| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(region.admits_writes() && !is_open());
                    admit_thread();
                    assert!(!region.admits_writes());
                });
                closed(|| scope.spawn(|| assert!(!region.admits_writes())));
            })
        });
    });
    ended.inspect(|ended| ended.in_peace());
}

/// Protection is chosen while another thread has a window open, which lifts nothing and leaves nothing behind.
fn installed_beside_a_window(protect: Protect) {
    let (opened, wait) = mpsc::channel();
    let (give, take) = mpsc::channel::<&'static Region>();
    let other = thread::spawn(move || {
        let region = open(|| {
            opened.send(()).unwrap();
            let region = take.recv().unwrap();
            admit_thread();
            assert!(!is_open() && !region.admits_writes());
            open(|| store(region, 0, 1));
            assert!(!is_open() && !region.admits_writes());
            closed(|| assert!(!is_open() && !region.admits_writes()));
            assert!(!is_open() && !region.admits_writes());
            region
        });
        assert!(!is_open() && !region.admits_writes());
    });
    wait.recv().unwrap();
    let region: &'static Region = Box::leak(Box::new(protected(protect)));
    give.send(region).unwrap();
    other.join().unwrap();
    assert!(!region.admits_writes());
    open(|| store(region, 0, 2));
    assert!(!region.admits_writes());
}

#[test]
fn a_window_older_than_protection_lifts_nothing() {
    let test = "threads::a_window_older_than_protection_lifts_nothing";
    for protect in [Protect::Keys, Protect::Pages] {
        run(test, protect, installed_beside_a_window).inspect(|ended| ended.in_peace());
    }
}

#[test]
fn a_case_that_does_not_run_is_no_success() {
    let ended = run("threads::there_is_no_such_case", Protect::Pages, |_| ()).unwrap();
    assert_eq!(ended.how, Err(None), "{}", ended.stderr);
}
