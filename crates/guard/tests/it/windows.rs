//! Windows let writes through, and nothing else does.

use crate::child::{load, protected, run, store};
use holdfast_guard::{Protect, Region, Unavailable, closed, install, open, report_faults};
use std::io;
use std::ptr::NonNull;

const BOTH: [Protect; 2] = [Protect::Keys, Protect::Pages];

fn lets_through(protect: Protect) {
    let region = protected(protect);
    assert!(!region.admits_writes());
    open(|| {
        store(&region, 5, 1);
        open(|| store(&region, 5, 2));
        store(&region, 5, load(&region, 5) + 1);
        closed(|| {
            assert!(!region.admits_writes());
            open(|| store(&region, 6, 1));
            assert!(!region.admits_writes());
        });
        assert!(region.admits_writes());
        let _ = std::panic::catch_unwind(|| closed(|| panic!("planted")));
        assert!(region.admits_writes());
    });
    assert_eq!(load(&region, 5), 3);
    assert!(!region.admits_writes());
    let _ = std::panic::catch_unwind(|| open(|| panic!("planted")));
    assert!(!region.admits_writes());
}

#[test]
fn a_window_lets_its_thread_write_and_no_longer() {
    let test = "windows::a_window_lets_its_thread_write_and_no_longer";
    for protect in BOTH {
        run(test, protect, lets_through).inspect(|ended| ended.in_peace());
    }
}

/// What a region made inside a window is, when the window is closed.
fn made_inside(protect: Protect) {
    let first = protected(protect);
    let second = open(|| {
        let second = Region::new("made inside", 4096).unwrap();
        store(&second, 0, 1);
        second
    });
    assert!(!first.admits_writes() && !second.admits_writes());
    drop(first);
    open(|| store(&second, 4095, 1));
}

#[test]
fn regions_come_and_go_inside_windows() {
    let test = "windows::regions_come_and_go_inside_windows";
    for protect in BOTH {
        run(test, protect, made_inside).inspect(|ended| ended.in_peace());
    }
}

/// Memory of a memory file, as the page pool's, is locked through the mapping that is covered and through no other.
fn covered(protect: Protect) {
    drop(protected(protect));
    let bytes = 4 * 4096;
    // SAFETY: a memory file and two mappings of it, which stay for the life of the child.
    let [ours, alias] = unsafe {
        let file = libc::memfd_create(c"covered".as_ptr(), 0);
        assert_eq!(libc::ftruncate(file, bytes as i64), 0);
        [(); 2].map(|()| {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), bytes, rights, libc::MAP_SHARED, file, 0);
            assert_ne!(at, libc::MAP_FAILED);
            NonNull::new(at.cast::<u8>()).unwrap()
        })
    };
    // SAFETY: mapped for good, above, the two pages in the middle.
    let region = unsafe { Region::cover("covered", ours.add(4096), 2 * 4096) }.unwrap();
    assert!(!region.admits_writes());
    // SAFETY: mapped, and nobody else's; the alias has no key.
    unsafe {
        ours.write_volatile(1);
        ours.add(3 * 4096).write_volatile(1);
        alias.add(4096).write_volatile(9);
    }
    assert_eq!(load(&region, 0), 9);
    drop(region);
    // SAFETY: as above.
    unsafe { ours.add(4096).write_volatile(1) };
}

#[test]
fn memory_of_others_can_be_covered_and_uncovered() {
    let test = "windows::memory_of_others_can_be_covered_and_uncovered";
    for protect in BOTH {
        run(test, protect, covered).inspect(|ended| ended.in_peace());
    }
}

/// The kernel locks the first of two mappings and fails at the second, which it would have to split when the process has as many as it may.
fn locked_in_part(protect: Protect) {
    drop(protected(protect));
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let map = |at: *mut libc::c_void, bytes, rights, flags, file| {
        // SAFETY: where the kernel finds room, or over pages reserved below.
        unsafe { libc::mmap(at, bytes, rights, flags, file, 0) }
    };
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let start = map(std::ptr::null_mut(), 3 * 4096, libc::PROT_NONE, anonymous, -1).cast::<u8>();
    // Of different files, so that they stay two mappings.
    for (at, bytes) in [(0, 4096), (4096, 2 * 4096)] {
        // SAFETY: a new memory file.
        let file = unsafe { libc::memfd_create(c"part".as_ptr(), 0) };
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::ftruncate(file, bytes as i64) }, 0);
        let place = start.wrapping_add(at).cast();
        assert_eq!(map(place, bytes, rights, libc::MAP_SHARED | libc::MAP_FIXED, file), place);
    }
    // Neighbours of different rights do not become one.
    let mut mappings = 0;
    while map(std::ptr::null_mut(), 4096, [libc::PROT_NONE, libc::PROT_READ][mappings % 2], anonymous, -1)
        != libc::MAP_FAILED
    {
        mappings += 1;
    }
    let memory = NonNull::new(start).unwrap();
    // SAFETY: mapped for good, above: the first mapping, and half of the second.
    let error = unsafe { Region::cover("part", memory, 2 * 4096) }.err().unwrap();
    assert_eq!(error.source.raw_os_error(), Some(libc::ENOMEM), "{error}, after {mappings} mappings");
    // SAFETY: as above.
    unsafe { [0, 4096, 8192].into_iter().for_each(|at| memory.add(at).write_volatile(1)) };
}

/// More are too many to be made one by one.
const MAPPINGS_MAX: u64 = 1 << 18;

#[test]
fn what_could_not_be_locked_in_whole_is_not_locked_in_part() {
    let allowed = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if allowed.trim().parse::<u64>().unwrap() > MAPPINGS_MAX {
        return eprintln!("SKIPPED: a process may have {} mappings (vm.max_map_count)", allowed.trim());
    }
    let test = "windows::what_could_not_be_locked_in_whole_is_not_locked_in_part";
    for protect in BOTH {
        run(test, protect, locked_in_part).inspect(|ended| ended.in_peace());
    }
}

/// What the kernel copies has the rights of the thread: into a region only inside a window, out of it always.
fn system_calls(protect: Protect) {
    let region = protected(protect);
    let mut pipe = [0; 2];
    // SAFETY: there is room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let read = || {
        // SAFETY: the kernel checks the rights to the region; there is one byte to read.
        let count = unsafe { libc::read(pipe[0], region.as_ptr().cast(), 1) };
        (count, io::Error::last_os_error().raw_os_error())
    };
    // SAFETY: a byte of a region, which can be read.
    assert_eq!(unsafe { libc::write(pipe[1], region.as_ptr().cast(), 1) }, 1);
    assert_eq!(read(), (-1, Some(libc::EFAULT)));
    // A pipe takes the byte out only if it could be copied.
    open(|| assert_eq!(read().0, 1));
}

#[test]
fn system_calls_have_the_rights_of_their_thread() {
    let test = "windows::system_calls_have_the_rights_of_their_thread";
    for protect in BOTH {
        run(test, protect, system_calls).inspect(|ended| ended.in_peace());
    }
}

#[test]
fn protection_is_chosen_once_and_before_the_first_region() {
    let test = "windows::protection_is_chosen_once_and_before_the_first_region";
    let ended = run(test, Protect::Pages, |_| {
        let early = Region::new("early", 1).unwrap();
        assert!(matches!(install(Protect::Pages), Err(Unavailable::RegionsExist)));
        assert!(early.admits_writes());
        drop(early);
        install(Protect::Pages).unwrap();
        install(Protect::Pages).unwrap();
        for other in [Protect::Off, Protect::Keys] {
            assert!(matches!(install(other), Err(Unavailable::Installed(Protect::Pages))));
        }
        report_faults(None).unwrap();
        report_faults(None).unwrap();
        assert!(!Region::new("late", 1).unwrap().admits_writes());
    });
    ended.inspect(|ended| ended.in_peace());
}

#[test]
fn without_a_key_left_the_reason_is_told_and_nothing_changes() {
    let test = "windows::without_a_key_left_the_reason_is_told_and_nothing_changes";
    let ended = run(test, Protect::Keys, |_| {
        // SAFETY: no memory is involved.
        while unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) } > 0 {}
        let error = install(Protect::Keys).unwrap_err();
        assert!(matches!(error, Unavailable::NoKeyLeft), "{error}");
        assert_eq!(holdfast_guard::protect(), Protect::Off);
        assert!(Region::new("open", 1).unwrap().admits_writes());
    });
    ended.inspect(|ended| ended.in_peace());
}
