//! What somebody writes to metadata in memory who must not.

use super::*;
use crate::check::{CheckOptions, check};
use crate::{CreateOptions, OpenOptions};
use holdfast_block::MemoryDevice;
use holdfast_integrity::{Protection, crc64_neutral};
use holdfast_object::{Arena, Attributes, Batch, Class, Kind, ManualClock, ObjectId, ObjectStore, Op, Timestamp};

struct Rig {
    device: Arc<MemoryDevice>,
    module: Module,
}

fn open(device: Arc<MemoryDevice>) -> Module {
    let (arena, clock) = (Arena::new(64, 0).unwrap(), Arc::new(ManualClock::new(0, 1)));
    Module::open(device, arena, clock, &OpenOptions::default()).unwrap()
}

impl Rig {
    /// With one object in a recovery point, and in memory what that took.
    fn new() -> Rig {
        let device = Arc::new(MemoryDevice::new(4096));
        let options = CreateOptions {
            store_uuid: *b"0123456789abcdef",
            device_uuid: *b"fedcba9876543210",
            set_aside_blocks: 0,
            protection: Protection::Uniform,
            overwrite: false,
        };
        let (arena, clock) = (Arena::new(64, 0).unwrap(), Arc::new(ManualClock::new(0, 1)));
        Module::create(device.clone(), arena, clock, &options).unwrap();
        let rig = Rig { module: open(device.clone()), device };
        rig.make(2);
        rig.commit().unwrap();
        rig
    }

    fn make(&self, id: u64) {
        let attributes = Attributes::new(Kind::Regular, Class::Own, 0o644, 0, 0, Timestamp { secs: 1, nanos: 0 });
        let ops = vec![Op::Create { id: ObjectId(id), attributes: Attributes { nlink: 1, ..attributes } }];
        self.module.apply(&Batch { domain: DomainId::MAIN, epoch: self.module.epoch() + 1, ops }).unwrap();
    }

    fn commit(&self) -> Result<()> {
        let epoch = self.module.epoch() + 1;
        self.module.prepare(epoch)?;
        self.module.publish(epoch)
    }

    fn scribbles(&self) -> u64 {
        self.module.status().counters.scribbles
    }

    /// The objects and the epoch of what is on the device, of which nothing is wrong.
    fn stored(&self) -> (usize, Epoch) {
        let report = check(self.device.clone(), &CheckOptions::default()).unwrap();
        assert_eq!(report.findings, [], "{report:?}");
        let module = open(self.device.clone());
        (module.objects(DomainId::MAIN, ObjectId(0), 10).unwrap().len(), module.epoch())
    }
}

#[test]
fn no_scribble_on_a_changed_block_becomes_a_recovery_point() {
    let (at, unseen) = crc64_neutral(3000 * 8).unwrap();
    for (at, pattern) in [(0, &[1][..]), (100, &[0xFF; 64]), (4095, &[0x80]), (at, &unseen)] {
        let rig = Rig::new();
        let before = rig.stored();
        rig.make(3);
        let key = {
            let mut trees = rig.module.trees.write();
            let (key, dirty) = trees.dirty.iter_mut().min_by_key(|(key, _)| **key).unwrap();
            Arc::make_mut(&mut dirty.block).scribble(at, pattern);
            *key
        };
        // Legal changes of the same epoch do not make it right.
        rig.make(4);
        let error = rig.commit().unwrap_err();
        assert!(matches!(&error, Error::Corrupt(found) if found.place.object == Some(key.object_key())), "{error}");
        assert!(error.to_string().contains("in memory, to which somebody has written"), "{error}");
        assert_eq!(rig.scribbles(), 1);
        assert!(matches!(rig.commit(), Err(Error::ReadOnly(_))), "no later epoch is built upon it");
        assert_eq!(rig.stored(), before, "at {at}");
    }
}

#[test]
fn a_scribble_on_a_clean_block_is_read_again_before_it_is_changed() {
    let rig = Rig::new();
    let before = rig.stored();
    {
        let trees = rig.module.trees.read();
        for (id, record) in trees.system.iter().filter(|(id, record)| **id != 0 && !record.root.is_hole()) {
            let node = NodeKey::new(system_key(*id), record.levels, 0);
            let mut block = rig.module.base.cache.take(node, record.root.address[0]).expect("it was just written");
            // Where nobody looks before it is changed.
            Arc::make_mut(&mut block).scribble(4000, &[4]);
            rig.module.base.cache.put(node, record.root.address[0], block);
        }
    }
    rig.make(3);
    rig.commit().unwrap();
    assert!(rig.scribbles() >= 2, "the object table and the map of objects at least: {}", rig.scribbles());
    assert_eq!(rig.stored(), (before.0 + 1, before.1 + 1));
}
