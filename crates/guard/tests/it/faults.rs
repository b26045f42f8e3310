//! Stray writes end the process, and are told.

use crate::child::{Ended, ITS_END, load, protected, run, store};
use holdfast_guard::{Access, Fault, Protect, Region, admit_thread, install, open, report_faults};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;

/// The region a reporter reads.
static REGION: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

fn print_symbols(fault: &Fault<'_>) {
    assert_eq!(fault.access, Access::Write);
    // SAFETY: the region's first byte; reporters may read.
    let first = unsafe { REGION.load(Ordering::Relaxed).read_volatile() };
    eprintln!("reporter: {} at {}, first byte {first}", fault.place.region, fault.place.offset);
    eprintln!("{}", std::backtrace::Backtrace::force_capture());
}

/// The bug that all this is for.
#[inline(never)]
fn planted_overrun(region: &Region) {
    for offset in 8200.. {
        store(region, std::hint::black_box(offset), 0xEE);
    }
}

fn stray(protect: Protect) {
    install(protect).unwrap();
    report_faults(Some(print_symbols)).unwrap();
    let region = protected(protect);
    REGION.store(region.as_ptr(), Ordering::Relaxed);
    open(|| store(&region, 0, 77));
    thread::scope(|scope| {
        thread::Builder::new()
            .name("culprit".into())
            .spawn_scoped(scope, || {
                admit_thread();
                planted_overrun(&region);
            })
            .unwrap();
    });
}

fn exit(_: &Fault<'_>) {
    std::process::exit(ITS_END);
}

/// Against the advice: destructors of the thread run on the very stack that one of them is to give back.
#[test]
fn a_reporter_that_exits_ends_the_process_so() {
    let test = "faults::a_reporter_that_exits_ends_the_process_so";
    let ended = run(test, Protect::Keys, |protect| {
        install(protect).unwrap();
        report_faults(Some(exit)).unwrap();
        let region = protected(protect);
        thread::scope(|scope| {
            scope.spawn(|| {
                admit_thread();
                store(&region, 8, 1);
            });
        });
    });
    ended.inspect(|ended| {
        ended.in_peace();
        ended.tells("byte 8 (4 KiB block 0");
    });
}

fn is_told(ended: &Ended, code: &str) {
    ended.by_fault();
    ended.tells("holdfast: stray write into protected memory: metadata of the test at 0x");
    ended.tells(", byte 8200 (4 KiB block 2, byte 8 of it)");
    ended.tells("(culprit), instruction 0x");
    ended.tells(code);
    ended.tells("holdfast:   called from 0x");
    ended.tells("(program + 0x");
    ended.tells("reporter: metadata of the test at 8200, first byte 77");
    ended.tells("planted_overrun");
}

#[test]
fn a_stray_write_is_told_with_its_place_and_its_culprit_and_ends_the_process() {
    let test = "faults::a_stray_write_is_told_with_its_place_and_its_culprit_and_ends_the_process";
    run(test, Protect::Keys, stray).inspect(|ended| is_told(ended, ", SEGV_PKUERR"));
    run(test, Protect::Pages, stray).inspect(|ended| is_told(ended, ", SEGV_ACCERR"));
}

/// The window before it does not help.
#[test]
fn a_write_after_the_window_faults() {
    let test = "faults::a_write_after_the_window_faults";
    let ended = run(test, Protect::Keys, |protect| {
        let region = protected(protect);
        open(|| store(&region, 0, 1));
        eprintln!("closed");
        store(&region, 0, 2);
    });
    ended.inspect(|ended| {
        ended.by_fault();
        ended.tells("closed\n");
        ended.tells("byte 0 (4 KiB block 0, byte 0 of it)");
    });
}

/// The standard library's signal stacks are too small for unwinding; the facts are told all the same.
#[test]
fn a_thread_that_was_not_admitted_tells_what_it_can() {
    let test = "faults::a_thread_that_was_not_admitted_tells_what_it_can";
    let ended = run(test, Protect::Keys, |protect| {
        let region = protected(protect);
        thread::scope(|scope| {
            scope.spawn(|| store(&region, 4095, 1));
        });
    });
    ended.inspect(|ended| {
        ended.by_fault();
        ended.tells("byte 4095 (4 KiB block 0, byte 4095 of it)");
        ended.tells("its callers are not known");
    });
}

#[test]
fn faults_of_others_are_theirs() {
    let test = "faults::faults_of_others_are_theirs";
    let ended = run(test, Protect::Keys, |protect| {
        let _region = protected(protect);
        // SAFETY: it faults, which is what is wanted of it: nothing can be mapped in the first page.
        unsafe { std::ptr::without_provenance_mut::<u8>(std::hint::black_box(16)).write_volatile(1) };
    });
    ended.inspect(|ended| {
        ended.by_fault();
        assert!(!ended.stderr.contains("holdfast:"), "{}", ended.stderr);
    });
}

extern "C" fn former(_: i32) {
    // SAFETY: the process ends here, with a number that nothing else ends it with.
    unsafe { libc::_exit(FORMER) };
}
const FORMER: i32 = 93;

#[test]
fn the_handler_of_before_has_its_turn() {
    let test = "faults::the_handler_of_before_has_its_turn";
    let ended = run(test, Protect::Keys, |protect| {
        // SAFETY: a handler that only ends the process; and a process of its own to see how it ends.
        let status = unsafe {
            libc::signal(libc::SIGSEGV, former as extern "C" fn(i32) as usize);
            let region = protected(protect);
            let child = libc::fork();
            if child == 0 {
                store(&region, 1, 1);
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), FORMER);
    });
    ended.inspect(|ended| {
        ended.in_peace();
        ended.tells("byte 1 (4 KiB block 0");
    });
}

/// As in a program that is not Rust's: the standard library has a handler, which sets the default when it is called.
fn without_a_handler(protect: Protect) -> Region {
    // SAFETY: the default action has no function.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    protected(protect)
}

#[test]
fn where_nobody_had_a_handler_the_default_has_its_turn() {
    let test = "faults::where_nobody_had_a_handler_the_default_has_its_turn";
    let ended = run(test, Protect::Keys, |protect| store(&without_a_handler(protect), 1, 1));
    ended.inspect(|ended| {
        ended.by_fault();
        ended.tells("byte 1 (4 KiB block 0");
    });
}

/// Such a signal has no instruction that would fault again.
#[test]
fn a_signal_that_was_sent_ends_the_process_at_once() {
    let test = "faults::a_signal_that_was_sent_ends_the_process_at_once";
    let ended = run(test, Protect::Keys, |protect| {
        let region = without_a_handler(protect);
        assert_eq!(load(&region, 0), 0);
        // SAFETY: no memory is involved.
        unsafe { libc::raise(libc::SIGSEGV) };
    });
    ended.inspect(|ended| ended.by_fault());
}
