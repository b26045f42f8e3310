//! A write to metadata by who must not: in a process of its own, which ends by it.

use crate::commit::tests::Rig;
use crate::meta_block::NodeKey;
use holdfast_guard::{self as guard, Protect};
use holdfast_object::{DomainId, ObjectId, ObjectKey, ObjectStore, Timestamp};
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

/// Whether this process has protection keys, asked of the system and not of what is tested.
fn has_keys() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    info.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "ospke"))
}

/// Ways that are to be had here, and how their faults are called.
fn ways() -> impl Iterator<Item = (Protect, &'static str)> {
    let keys = has_keys();
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

/// Runs `body` in a child that protects its memory in this way, and gives how it ended; `None` if this is the child of another case.
/// `test`: the path of the calling test in this binary, which runs again there.
fn in_child(test: &str, name: &str, protect: Protect, body: impl FnOnce()) -> Option<Ended> {
    let case = format!("{test}, {name}, {protect}");
    if let Ok(asked) = std::env::var(CASE) {
        if asked == case {
            guard::install(protect).unwrap();
            guard::report_faults(Some(super::tell_aim)).unwrap();
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
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(Ended { code: output.status.code(), signal: output.status.signal(), said })
}

const OBJECT: ObjectKey = ObjectKey { domain: DomainId::MAIN, object: ObjectId(2) };
const LEAF: NodeKey = NodeKey { domain: OBJECT.domain.0, object: OBJECT.object.0, level: 1, index: 0 };

/// A store with an object of some pages, one of which the epoch being built has changed if it is to be.
fn store(changed: bool) -> Rig {
    let rig = Rig::new();
    rig.fill(2, 3);
    if !changed {
        rig.commit().unwrap();
    }
    rig
}

/// Something to write to who must not.
struct Target {
    name: &'static str,
    address: fn(&Rig) -> *const u8,
    /// In an epoch that is being built.
    changed: bool,
    /// What is told of it.
    told: &'static str,
}

fn targets() -> [Target; 4] {
    let clean = |rig: &Rig| {
        let trees = rig.module.trees.read();
        let record = trees.get(&rig.module.base, OBJECT).unwrap();
        let block = trees.node(&rig.module.base, OBJECT, &record, 1, 0).unwrap().unwrap();
        &raw const block.bytes()[1000]
    };
    let dirty = |rig: &Rig| &raw const rig.module.trees.read().dirty[&LEAF].block.bytes()[1000];
    let label = |rig: &Rig| rig.module.sealed.address_of_label(77);
    let table = |rig: &Rig| {
        let block = rig.module.trees.read().dirty[&LEAF].block.bytes().as_ptr();
        let slab = block.addr() / super::SLAB_BYTES * super::SLAB_BYTES;
        block.with_addr(slab + 8)
    };
    let told = "byte 1000 of the block of object 1:2, level 1, index 0, block ";
    let clean = Target { name: "clean", address: clean, changed: false, told };
    let told = "byte 1000 of the block of object 1:2, level 1, index 0, not on the device yet";
    let dirty = Target { name: "dirty", address: dirty, changed: true, told };
    let label = Target { name: "label", address: label, changed: false, told: "byte 77 of the label" };
    let table = Target { name: "table", address: table, changed: true, told: "the table of what the blocks are" };
    [clean, dirty, label, table]
}

#[test]
fn a_stray_write_to_metadata_faults_and_names_the_block() {
    let test = "locked_block::stray_writes::a_stray_write_to_metadata_faults_and_names_the_block";
    for (protect, code) in ways() {
        for Target { name, address, changed, told } in targets() {
            let ended = in_child(test, name, protect, || planted_stray_write(address(&store(changed))));
            let Some(Ended { signal, said, .. }) = ended else { continue };
            let case = format!("{name}, {protect}:\n{said}");
            assert_eq!(signal, Some(SIGSEGV), "{case}");
            for part in [
                "holdfast: stray write into protected memory: metadata blocks at 0x",
                code,
                "holdfast:   called from 0x",
                &format!("holdfast: it was aimed at {told}"),
            ] {
                assert!(said.contains(part), "no {part:?}: {case}");
            }
        }
    }
}

/// Sums see it then, later.
#[test]
fn without_protection_nothing_is_in_its_way() {
    let test = "locked_block::stray_writes::without_protection_nothing_is_in_its_way";
    for Target { name, address, changed, .. } in targets() {
        let ended = in_child(test, name, Protect::Off, || planted_stray_write(address(&store(changed))));
        ended.inspect(|ended| assert_eq!(ended.code, Some(IN_PEACE), "{name}: {}", ended.said));
    }
}

/// All that changes metadata does it in windows, and leaves none open.
#[test]
fn what_may_change_metadata_does() {
    let test = "locked_block::stray_writes::what_may_change_metadata_does";
    for (protect, _) in ways() {
        let ended = in_child(test, "all", protect, || {
            let rig = store(true);
            let (module, epoch) = (&rig.module, || rig.module.epoch() + 1);
            rig.commit().unwrap();
            let time = Timestamp { secs: 1, nanos: 0 };
            let snapshot = module.snapshot_create(DomainId::MAIN, epoch(), "one", time).unwrap();
            rig.fill(2, 70);
            rig.make(3);
            rig.commit().unwrap();
            rig.delete(2);
            rig.commit().unwrap();
            while module.snapshot_delete(DomainId::MAIN, epoch(), snapshot).unwrap() {
                rig.commit().unwrap();
            }
            rig.commit().unwrap();
            // From the device, where one copy is bad.
            module.base.cache.clear();
            let root = module.trees.read().system[&16].root;
            rig.device.alter(root.address[0], |bytes| bytes[9] ^= 1).unwrap();
            assert_eq!(module.orphans(DomainId::MAIN).unwrap(), []);
            module.attributes(ObjectKey { object: ObjectId(3), ..OBJECT }).unwrap();
            // What the lab does to memory is no stray write.
            rig.make(4);
            (0..200).for_each(|choice| drop(module.scribble(choice)));
            rig.commit().unwrap_err();
            module.begin_anew().unwrap();
            rig.make(4);
            rig.commit().unwrap();
            module.close().unwrap();
            assert!(!guard::is_open());
            std::thread::scope(|scope| scope.spawn(|| rig.stored()).join().unwrap());
        });
        ended.inspect(|ended| assert_eq!(ended.code, Some(IN_PEACE), "{protect}: {}", ended.said));
    }
}
