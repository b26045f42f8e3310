//! A recovery point in the place of one in which something is wrong that can be made of the rest.

use super::walk::Entries;
use crate::format::{Record, Superblock};
use crate::meta_block::NodeKey;
use crate::module::{Module, OpenOptions};
use crate::open::Bitmap;
use crate::tree::Trees;
use holdfast_block::Device;
use holdfast_object::{Arena, DomainId, Epoch, Error, ManualClock, ObjectId, ObjectKey, ObjectStore, Result};
use std::sync::Arc;

/// Makes a recovery point that differs from the last one, `last`, in its bitmap, which is made anew, and in these entries. The intent log must
/// have nothing to replay. `sees_all`: all snapshots can be read everywhere.
pub(super) fn anew(device: &Arc<dyn Device>, last: &Superblock, entries: &Entries, sees_all: bool) -> Result<()> {
    let arena = Arena::new(1, 0).map_err(|error| Error::Protocol(format!("arena: {error}")))?;
    // The new recovery point has the time of the one before: nothing in it has changed.
    let nanos = (last.time.secs.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(u64::from(last.time.nanos));
    let clock = Arc::new(ManualClock::new(nanos, 0));
    let module = Module::open_with(device.clone(), arena, clock, &OpenOptions::default(), Bitmap::Anew { sees_all })?;
    let epoch = module.epoch_above_log()?;
    if entries.have_snapshots {
        module.bury_unreadable(epoch, sees_all)?;
    }
    module.write_anew(epoch, &entries.remains)?;
    module.take_off(epoch, &entries.references)?;
    module.prepare(epoch)?;
    module.publish(epoch)?;
    if last.clean { module.close() } else { Ok(()) }
}

impl Module {
    /// Has the recovery point `epoch` write these blocks as they are read: without what means nothing.
    fn write_anew(&self, epoch: Epoch, blocks: &[NodeKey]) -> Result<()> {
        let mut trees = self.trees.write();
        trees.building = epoch;
        for &NodeKey { level, index, domain, object } in blocks {
            let key = ObjectKey { domain: DomainId(domain), object: ObjectId(object) };
            let anew = |trees: &mut Trees, record: &mut Record| {
                trees.make_dirty(&self.base, key, record, level, index)?;
                // No map, list or table has a page of nothing but zeros.
                let block = trees.node(&self.base, key, record, level, index)?;
                let is_empty = level == 0 && block.is_some_and(|block| block.is_zero());
                if is_empty { trees.remove_pages(&self.base, key, record, index, index + 1) } else { Ok(()) }
            };
            if key.domain == DomainId::SYSTEM {
                trees.with_system(&self.base, object, anew)?;
            } else {
                let mut record = trees.get(&self.base, key)?;
                anew(&mut trees, &mut record)?;
                trees.put(&self.base, key, record)?;
            }
        }
        Ok(())
    }

    /// Has the recovery point `epoch` count so many uses of blocks less, which there are not.
    fn take_off(&self, epoch: Epoch, references: &[(u64, u32)]) -> Result<()> {
        let mut trees = self.trees.write();
        trees.building = epoch;
        for &(address, times) in references {
            let taken = trees.take_off_references(&self.base, address, times)?;
            trees.audit.were_none(address, taken);
        }
        Ok(())
    }
}
