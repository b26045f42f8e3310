//! A new bitmap for a store whose bitmap is wrong.

use crate::module::{Module, OpenOptions};
use crate::open::Bitmap;
use holdfast_block::Device;
use holdfast_object::{Arena, Error, ManualClock, ObjectStore, Result};
use std::sync::Arc;

use crate::format::Superblock;

/// Makes a recovery point that differs from the last one, `last`, in its bitmap only: that is made from the trees. The
/// intent log must have nothing to replay.
pub(super) fn bitmap(device: &Arc<dyn Device>, last: &Superblock) -> Result<()> {
    let arena = Arena::new(1, 0).map_err(|error| Error::Protocol(format!("arena: {error}")))?;
    // The new recovery point has the time of the one before: nothing in it has changed.
    let nanos = (last.time.secs.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(u64::from(last.time.nanos));
    let clock = Arc::new(ManualClock::new(nanos, 0));
    let module = Module::open_with(device.clone(), arena, clock, &OpenOptions::default(), Bitmap::FromTrees)?;
    let epoch = module.epoch_above_log()?;
    module.prepare(epoch)?;
    module.publish(epoch)?;
    if last.clean { module.close() } else { Ok(()) }
}
