//! A write to metadata by who must not: in a process of its own, which ends by it.

use crate::commit::tests::Rig;
use crate::meta_block::NodeKey;
use crate::{Module, OpenOptions};
use holdfast_block::{Device, Error, MemoryDevice};
use holdfast_guard::{self as guard, Protect};
use holdfast_object::{
    Arena, Batch, DomainId, ManualClock, ObjectId, ObjectKey, ObjectStore, Op, PAGE_SIZE, Timestamp,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// In a child: as a daemon protects its memory.
fn protected(protect: Protect) {
    guard::install(protect).unwrap();
    guard::report_faults(Some(super::tell_aim)).unwrap();
}

/// Runs `body` in a child, and gives how it ended; `None` if this is the child of another case. `test`: the path of the calling test in this
/// binary, which runs again there.
fn in_child(test: &str, name: &str, protect: Protect, body: impl FnOnce()) -> Option<Ended> {
    let case = format!("{test}, {name}, {protect}");
    if let Ok(asked) = std::env::var(CASE) {
        if asked == case {
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
            let ended = in_child(test, name, protect, || {
                protected(protect);
                planted_stray_write(address(&store(changed)));
            });
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
        let ended = in_child(test, name, Protect::Off, || {
            protected(Protect::Off);
            planted_stray_write(address(&store(changed)));
        });
        ended.inspect(|ended| assert_eq!(ended.code, Some(IN_PEACE), "{name}: {}", ended.said));
    }
}

/// All that changes metadata does it in windows, and leaves none open.
#[test]
fn what_may_change_metadata_does() {
    let test = "locked_block::stray_writes::what_may_change_metadata_does";
    for (protect, _) in ways() {
        let ended = in_child(test, "all", protect, || {
            protected(protect);
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
            (0..200).for_each(|choice| drop(module.lab().flip_any(choice)));
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

/// Such a thread can read no locked memory until it is admitted, which is seen where nothing does it on the side: with keys, and without reports of
/// faults.
#[test]
fn a_thread_older_than_the_lock_reads_metadata() {
    let test = "locked_block::stray_writes::a_thread_older_than_the_lock_reads_metadata";
    for (protect, _) in ways() {
        for name in ["trees", "label"] {
            let ended = in_child(test, name, protect, || {
                let (give, take) = std::sync::mpsc::channel::<Rig>();
                let older = std::thread::spawn(move || {
                    let rig = take.recv().unwrap();
                    match name {
                        "trees" => drop(rig.module.attributes(OBJECT).unwrap()),
                        _ => drop(rig.module.label().unwrap()),
                    }
                });
                guard::install(protect).unwrap();
                give.send(store(false)).unwrap();
                older.join().unwrap();
            });
            ended.inspect(|ended| assert_eq!(ended.code, Some(IN_PEACE), "{name}, {protect}: {}", ended.said));
        }
    }
}

/// A device that is to be called outside of windows.
struct Outside {
    device: Arc<MemoryDevice>,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Device for Outside {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn blocks(&self) -> u64 {
        self.device.blocks()
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        assert!(!guard::is_open(), "a read of {first} in a window");
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.device.read(first, bufs)
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        assert!(!guard::is_open(), "a write of {first} in a window");
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.device.write(first, bufs)
    }

    fn flush(&self) -> Result<(), Error> {
        assert!(!guard::is_open(), "a flush in a window");
        self.device.flush()
    }

    fn discard(&self, first: u64, count: u64) -> Result<(), Error> {
        assert!(!guard::is_open(), "a discard of {first} in a window");
        self.device.discard(first, count)
    }
}

#[test]
fn the_device_is_called_outside_of_windows() {
    let rig = Rig::new();
    rig.fill(2, 200);
    rig.make(3);
    rig.commit().unwrap();
    let device = Arc::new(Outside { device: rig.device.clone(), reads: AtomicU64::new(0), writes: AtomicU64::new(0) });
    let (arena, clock) = (Arena::new(64, 0).unwrap(), Arc::new(ManualClock::new(0, 1)));
    let options = OpenOptions { discard: true, ..OpenOptions::default() };
    let module = Module::open(device.clone(), arena, clock, &options).unwrap();
    let done = || (device.reads.load(Ordering::Relaxed), device.writes.load(Ordering::Relaxed));
    let apply = |op: Op| {
        let before = done();
        let epoch = module.epoch() + 1;
        module.apply(&Batch { domain: DomainId::MAIN, epoch, ops: vec![op] }).unwrap();
        (done().0 - before.0, done().1 - before.1)
    };
    // A page is cut: read, and written.
    let (id, size) = (OBJECT.object, 150 * PAGE_SIZE as u64 + 100);
    let (reads, writes) = apply(Op::Truncate { id, size });
    assert!(reads > 0 && writes > 0);
    // Blocks of the tree that are not in memory are read when what is under them goes.
    module.base.cache.clear();
    assert!(apply(Op::Delete { id }).0 > 0);
    let epoch = module.epoch() + 1;
    module.prepare(epoch).unwrap();
    module.publish(epoch).unwrap();
    let snapshot = module.snapshot_create(DomainId::MAIN, epoch + 1, "one", Timestamp { secs: 1, nanos: 0 }).unwrap();
    module.prepare(epoch + 1).unwrap();
    module.publish(epoch + 1).unwrap();
    module.base.cache.clear();
    module.snapshot_delete(DomainId::MAIN, epoch + 2, snapshot).unwrap();
    module.prepare(epoch + 2).unwrap();
    module.publish(epoch + 2).unwrap();
    module.close().unwrap();
    rig.stored();
}
