//! What is admitted, read and forgotten while a log batch or an epoch is being written.

use crate::front::Front;
use crate::ranges::allocate;
use crate::rig::{Rig, pattern};
use holdfast_block::{Device, MemoryDevice};
use holdfast_object::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long a test waits for the other thread before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Holds the first write after it is armed until it is let go.
#[derive(Default)]
pub(crate) struct Gate(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Gate {
    /// Opens the store of a rig anew, through a gate.
    pub(crate) fn before(rig: Rig) -> (Arc<Gate>, Rig) {
        let (gate, front) = Gate::on(rig.device.clone());
        (gate, rig.remount_through(front))
    }

    /// A device with a gate in front of it.
    pub(crate) fn on(device: Arc<MemoryDevice>) -> (Arc<Gate>, Arc<dyn Device>) {
        let gate = Arc::new(Gate::default());
        let waits = gate.clone();
        let front = Front::new(device, move |first| {
            waits.pass();
            first
        });
        (gate, front)
    }

    fn pass(&self) {
        let armed = self.0.lock().take();
        if let Some((reached, gone)) = armed {
            reached.send(()).expect("the test waits");
            gone.recv_timeout(PATIENCE).expect("the test lets go");
        }
    }

    /// Does `work` in a thread of its own, and `meanwhile` while its first write waits.
    pub(crate) fn during<T: Send>(&self, work: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> T {
        let (reached, is_reached) = channel();
        let (go, gone) = channel();
        *self.0.lock() = Some((reached, gone));
        std::thread::scope(move |scope| {
            let worker = scope.spawn(work);
            is_reached.recv_timeout(PATIENCE).expect("nothing was written");
            meanwhile();
            go.send(()).expect("the writer waits");
            worker.join().expect("the writer")
        })
    }
}

/// Extended attributes of `owner`, as naming makes them.
fn xattr_of(rig: &Rig, owner: ObjectId) -> ObjectId {
    let id = rig.cache.new_object().unwrap();
    let mut attributes = Attributes::new(Kind::Xattr, Class::Own, 0, 1, 2, Timestamp { secs: 5, nanos: 6 });
    (attributes.nlink, attributes.parent) = (1, owner);
    let set = AttrSet { xattr: Some(id), ..AttrSet::default() };
    rig.submit(vec![Op::Create { id, attributes }, Op::SetAttributes { id: owner, set }]).unwrap();
    id
}

/// The deletion of a file's extended attributes waits for the file's own sync. If the file is deleted too, it goes with
/// the names; a batch that was captured before does not have it, though the attributes had been deleted by then.
#[test]
fn a_deletion_that_its_owner_no_longer_brings_is_in_the_next_batch() {
    let (gate, rig) = Gate::before(Rig::new(2048));
    let (file, other) = (rig.create(Kind::Regular), rig.create(Kind::Regular));
    let xattr = xattr_of(&rig, file);
    rig.cache.sync_all().unwrap();
    let none = AttrSet { xattr: Some(ObjectId::NONE), ..AttrSet::default() };
    rig.submit(vec![Op::Delete { id: xattr }, Op::SetAttributes { id: file, set: none }]).unwrap();
    rig.write(other, 0, b"something to log").unwrap();
    gate.during(
        || rig.cache.sync(other, Durability::All).unwrap(),
        || drop(rig.submit(vec![Op::Delete { id: file }]).unwrap()),
    );
    rig.cache.sync(other, Durability::All).unwrap();
    let rig = rig.power_cut();
    assert!(matches!(rig.cache.attributes(file), Err(Error::NoObject(_))));
    assert!(matches!(rig.cache.attributes(xattr), Err(Error::NoObject(_))), "nobody would ever delete it");
}

/// An object of the epoch being written looks clean once the log has it, but the store still has the older version.
#[test]
fn an_object_of_the_epoch_being_written_is_not_forgotten() {
    let rig = Rig::new(2048);
    // More than the cache remembers.
    let others: Vec<ObjectId> = (0..1200).map(|_| rig.create(Kind::Regular)).collect();
    let file = rig.create(Kind::Regular);
    rig.write(file, 0, &pattern(1, PAGE_SIZE)).unwrap();
    let (gate, rig) = Gate::before(rig);
    let set = AttrSet { mode: Some(0o600), ..AttrSet::default() };
    rig.submit(vec![Op::SetAttributes { id: file, set }]).unwrap();
    rig.cache.sync(file, Durability::All).unwrap();
    // What the epoch writes first, and waits in: the store has applied nothing yet.
    rig.write(others[0], 0, b"x").unwrap();
    let mode = || rig.cache.attributes(file).unwrap().mode;
    gate.during(
        || rig.cache.sync_all().unwrap(),
        || {
            for round in 0..4 {
                for &id in &others {
                    rig.cache.attributes(id).unwrap();
                }
                assert_eq!(mode(), 0o600, "round {round}: the store's older version");
            }
        },
    );
    assert_eq!(mode(), 0o600);
}

/// Pages behind the end count for `st_blocks` all the time: dirty, while their epoch is written, and stored.
#[test]
fn pages_behind_the_end_are_counted_while_their_epoch_is_written() {
    let (gate, rig) = Gate::before(Rig::new(2048));
    let file = rig.create(Kind::Regular);
    rig.write(file, 0, &pattern(1, 2 * PAGE_SIZE)).unwrap();
    allocate(&rig, file, 10..30, 2 * PAGE_SIZE as u64).unwrap();
    let blocks = || rig.cache.attributes(file).unwrap().blocks;
    assert_eq!(blocks(), 22);
    gate.during(|| rig.cache.sync_all().unwrap(), || assert_eq!(blocks(), 22));
    assert_eq!(blocks(), 22);
}

/// A cut behind all pages, as setting the size makes it, takes none of those that are being written out of `st_blocks`.
#[test]
fn a_cut_behind_the_pages_of_the_epoch_being_written_leaves_their_count() {
    let (gate, rig) = Gate::before(Rig::new(2048));
    let file = rig.create(Kind::Regular);
    rig.write(file, 0, &pattern(1, 20 * PAGE_SIZE)).unwrap();
    let blocks = || rig.cache.attributes(file).unwrap().blocks;
    gate.during(
        || rig.cache.sync_all().unwrap(),
        || {
            rig.write(file, 20 * PAGE_SIZE as u64, &pattern(2, 5 * PAGE_SIZE)).unwrap();
            rig.submit(vec![Op::Truncate { id: file, size: 30 * PAGE_SIZE as u64 }]).unwrap();
            assert_eq!(blocks(), 25);
            rig.submit(vec![Op::Truncate { id: file, size: 15 * PAGE_SIZE as u64 }]).unwrap();
            assert_eq!(blocks(), 15);
        },
    );
    assert_eq!(blocks(), 15, "the store has 20 and does not know of the cut yet");
    rig.cache.sync_all().unwrap();
    assert_eq!(blocks(), 15);
    rig.submit(vec![Op::Truncate { id: file, size: 3 * PAGE_SIZE as u64 }]).unwrap();
    assert_eq!(blocks(), 3);
    rig.write(file, 10 * PAGE_SIZE as u64, &pattern(3, PAGE_SIZE)).unwrap();
    assert_eq!(blocks(), 4);
    rig.cache.sync_all().unwrap();
    assert_eq!(blocks(), 4);
}
