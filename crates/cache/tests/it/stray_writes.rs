//! A write to a page of metadata by who must not: in a process of its own, which ends by it.

use crate::rig::{Rig, pattern};
use holdfast_guard::{self as guard, Protect};
use holdfast_object::*;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

/// Which case a child is.
const CASE: &str = "HOLDFAST_STRAY_WRITE";
/// Exit code of a child whose case came to its end: not that of a test binary that found no test of this name.
const IN_PEACE: i32 = 92;
const SIGSEGV: i32 = 11;

/// The bug that all this is for.
#[inline(never)]
fn planted_stray_write(address: *const u8) {
    // SAFETY: the memory is there, and nobody else is at work with it; where it is locked, the write faults, which is what is wanted of it.
    unsafe { address.cast_mut().write_volatile(!address.read_volatile()) };
}

/// Ways that are to be had here, and how their faults are called.
fn ways() -> impl Iterator<Item = (Protect, &'static str)> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let keys = info.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "ospke"));
    if !keys {
        eprintln!("not with protection keys: this machine has none");
    }
    [(Protect::Keys, "SEGV_PKUERR"), (Protect::Pages, "SEGV_ACCERR")]
        .into_iter()
        .filter(move |(protect, _)| keys || *protect != Protect::Keys)
}

/// How a child ended.
struct Ended {
    code: Option<i32>,
    signal: Option<i32>,
    said: String,
}

/// Runs `body` in a child that protects its memory as a daemon does, and gives how it ended; `None` if this is the child of another case.
/// `test`: the name of the calling test.
fn in_child(test: &str, name: &str, protect: Protect, body: impl FnOnce()) -> Option<Ended> {
    let test = format!("stray_writes::{test}");
    let case = format!("{test}, {name}, {protect}");
    if let Ok(asked) = std::env::var(CASE) {
        if asked == case {
            guard::install(protect).unwrap();
            guard::report_faults(Some(tell_aim)).unwrap();
            body();
            std::process::exit(IN_PEACE);
        }
        return None;
    }
    // No memory images in the directory of the tests, and nothing that hangs.
    let script = "ulimit -c 0; exec timeout --signal=KILL 60 \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .args([&test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(Ended { code: output.status.code(), signal: output.status.signal(), said })
}

/// An object of three pages, which the store has unless they are to be changed.
fn object(rig: &Rig, kind: Kind, changed: bool) -> ObjectId {
    let id = rig.create(kind);
    rig.write(id, 0, &pattern(1, 3 * PAGE_SIZE)).unwrap();
    if !changed {
        rig.cache.sync_all().unwrap();
    }
    id
}

fn page(rig: &Rig, id: ObjectId) -> PinnedPage {
    let PageView::Data(page) = rig.cache.read(id, 1, 1).unwrap().remove(0) else { panic!("no bytes") };
    assert!(page.verify().is_ok());
    page
}

#[derive(Clone, Copy, PartialEq)]
enum Target {
    /// In memory, as the store has it.
    Clean,
    /// The same, as it was read.
    Read,
    Changed,
    /// Of which a part was changed.
    Merged,
    /// By whoever has the page, in a place that was of another one.
    Freed,
}

const TARGETS: [(&str, Target); 5] = [
    ("clean", Target::Clean),
    ("read", Target::Read),
    ("changed", Target::Changed),
    ("merged", Target::Merged),
    ("freed", Target::Freed),
];

/// Byte 1000 of the page 1 of an object.
fn address(kind: Kind, target: Target) -> (Rig, *const u8) {
    let rig = Rig::new(2048);
    let changed = !matches!(target, Target::Clean | Target::Read);
    let id = object(&rig, kind, changed);
    let rig = if target == Target::Read { rig.remount() } else { rig };
    if target == Target::Merged {
        rig.write(id, PAGE_SIZE as u64 + 10, &[1, 2, 3]).unwrap();
    }
    let at = &raw const page(&rig, id).bytes()[1000];
    if target == Target::Freed {
        rig.submit(vec![Op::Delete { id }]).unwrap();
    }
    (rig, at)
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::Directory, "a directory"), (Kind::Symlink, "a symbolic link"), (Kind::Xattr, "extended attributes")];

#[test]
fn a_stray_write_to_a_page_of_metadata_faults_and_names_it() {
    let test = "a_stray_write_to_a_page_of_metadata_faults_and_names_it";
    for (protect, code) in ways() {
        for (kind, told) in KINDS {
            for (name, target) in TARGETS {
                let case = format!("{name} {kind:?}");
                let ended = in_child(test, &case, protect, || {
                    let (_rig, at) = address(kind, target);
                    planted_stray_write(at);
                });
                let Some(Ended { signal, said, .. }) = ended else { continue };
                let case = format!("{case}, {protect}:\n{said}");
                assert_eq!(signal, Some(SIGSEGV), "{case}");
                let of = if target == Target::Freed {
                    "; the last one was page 1 of object #"
                } else {
                    "byte 1000 of page 1 of object #"
                };
                for part in [
                    "holdfast: stray write into protected memory: pages of directories, links and attributes at 0x",
                    code,
                    "holdfast:   called from 0x",
                    "holdfast: it was aimed at byte 1000 of ",
                    of,
                    told,
                ] {
                    assert!(said.contains(part), "no {part:?}: {case}");
                }
            }
        }
    }
}

/// They have no lock: files' pages are written all the time.
#[test]
fn pages_of_files_and_processes_without_protection_are_not_locked() {
    let test = "pages_of_files_and_processes_without_protection_are_not_locked";
    for (name, protect, kind) in [("file", Protect::Pages, Kind::Regular), ("off", Protect::Off, Kind::Directory)] {
        let ended = in_child(test, name, protect, || {
            let (_rig, at) = address(kind, Target::Changed);
            planted_stray_write(at);
        });
        ended.inspect(|ended| assert_eq!(ended.code, Some(IN_PEACE), "{name}: {}", ended.said));
    }
}

/// All that changes, reads, renews and writes pages of metadata does it in windows, and leaves none open.
#[test]
fn what_may_change_them_does() {
    let test = "what_may_change_them_does";
    for (protect, _) in ways() {
        let ended = in_child(test, "all", protect, || {
            let rig = Rig::new(4096);
            for (kind, _) in KINDS {
                let id = object(&rig, kind, false);
                rig.write(id, 100, &pattern(2, 2 * PAGE_SIZE)).unwrap();
                // What the lab does to memory is no stray write, and twins are there for it.
                let quiet = rig.cache.quiet();
                let pages = quiet.resident_pages(|object, _| object == id);
                quiet.flip(&pages[1], holdfast_cache::FlipPart::Bytes, &[5]).unwrap();
                drop(quiet);
                rig.cache.sync_all().unwrap();
                assert_eq!(rig.contents(id).unwrap()[100..100 + 2 * PAGE_SIZE], pattern(2, 2 * PAGE_SIZE));
                rig.submit(vec![Op::Zero { id, offset: 50, length: 60 }]).unwrap();
                rig.cache.sync(id, Durability::All).unwrap();
            }
            assert_eq!(rig.cache.status().pages_renewed, 3);
            // Far more than there is room for, and read again.
            let ids: Vec<_> = (0..400).map(|_| object(&rig, Kind::Directory, true)).collect();
            rig.cache.sync_all().unwrap();
            for id in &ids {
                assert_eq!(rig.contents(*id).unwrap(), pattern(1, 3 * PAGE_SIZE));
            }
            rig.cache.check();
            assert_eq!(rig.arena.twins(), 0, "the store has all of them");
            // From the log.
            rig.write(ids[0], 0, &pattern(3, PAGE_SIZE)).unwrap();
            rig.cache.sync(ids[0], Durability::All).unwrap();
            let rig = rig.power_cut();
            assert_eq!(rig.contents(ids[0]).unwrap()[..PAGE_SIZE], pattern(3, PAGE_SIZE));
            assert!(!guard::is_open());
            std::thread::scope(|scope| scope.spawn(|| rig.contents(ids[1]).unwrap()).join().unwrap());
        });
        ended.inspect(|ended| assert_eq!(ended.code, Some(IN_PEACE), "{protect}: {}", ended.said));
    }
}
