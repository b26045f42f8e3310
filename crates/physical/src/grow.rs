//! Growing: the store takes more blocks of its device, while it is used.
//!
//! Two things depend on the size: where the labels of the end are, which the labels say, and what the bitmap is for, which the
//! superblock says ([`Superblock::covered`]). So the size changes in steps, each durable before the next:
//!
//! 1. the device is larger; nothing knows;
//! 2. behind what was the end there are two labels with the newest superblock. They are not looked for there as long as label 0, or
//!    else label 1, says the old size;
//! 3. label 0 says the new size, and that is the store's from now on; then label 1. Of the two one at most is torn by a power cut.
//!    The labels of the old end are not looked at any more;
//! 4. the bitmap in memory is for all blocks, those of the old labels among them. The next recovery point writes it. When a store is
//!    opened whose bitmap is for less than the labels say, this step is done again.
//!
//! A power cut leaves the old size or the new one. Nothing that a recovery point needs is overwritten.

use crate::create::{write_unused, zero};
use crate::format::superblock::{ring_block, slot};
use crate::format::{DEVICE_BLOCKS_MAX, LABEL_BLOCKS, LABELS, Label, label_start};
use crate::module::Module;
use holdfast_object::{Error, Result};

/// Labels at the end.
const END_LABELS: [usize; 2] = [LABELS - 2, LABELS - 1];

impl Module {
    /// See [`holdfast_object::ObjectStore::grow`].
    pub(crate) fn grow_to(&self, blocks: u64) -> Result<u64> {
        self.disk().check_writable()?;
        // What the log names is claimed first.
        self.claim_first()?;
        let committing = self.committing.lock();
        committing.check_open()?;
        let old = self.label()?.blocks;
        if blocks > DEVICE_BLOCKS_MAX {
            return Err(Error::Limit { what: "blocks of a store", limit: DEVICE_BLOCKS_MAX, got: blocks });
        }
        if blocks != 0 && blocks < old {
            return Err(Error::Smaller { blocks: old, wanted: blocks });
        }
        let measured = self.disk().enlarge(blocks)?.min(DEVICE_BLOCKS_MAX);
        let blocks = if blocks == 0 { measured } else { blocks };
        // The new labels lie behind the old ones.
        if blocks < old + 2 * LABEL_BLOCKS {
            return Ok(old);
        }
        self.disk().extend(blocks);
        // Taken anew each time: the device is asked in between.
        let new =
            || self.sealed.label_of(self.disk(), old).map(|label| Label { blocks: self.disk().blocks(), ..label });
        self.write_end_labels(&new)?;
        for number in 0..LABELS - END_LABELS.len() {
            let label = if number == 0 { new()? } else { self.label()? };
            self.disk().write_blocks([(label_start(number, blocks), &label.encode(number))])?;
            self.disk().flush()?;
            if number == 0 {
                // It is what labels say from when the first one does, and is read there if need be.
                let label = self.sealed.label_of(self.disk(), blocks)?;
                self.set_label(&Label { blocks, ..label });
            }
        }
        self.base.alloc.lock().grow(blocks);
        tracing::info!(from = old, to = blocks, "the store has grown (in blocks of 4 KiB)");
        Ok(blocks)
    }

    /// Labels and rings at the end of a store of this label, durable on return.
    fn write_end_labels(&self, label: &dyn Fn() -> Result<Label>) -> Result<()> {
        let blocks = self.disk().blocks();
        // Whatever was there before the device grew.
        zero(self.disk(), label_start(END_LABELS[0], blocks), 2 * LABEL_BLOCKS)?;
        for number in END_LABELS {
            write_unused(self.disk(), &label()?, number)?;
        }
        self.disk().flush()?;
        for number in END_LABELS {
            let (label, newest) = (label()?, self.superblock()?);
            let (start, ring) = (label_start(number, blocks), ring_block(number, slot(newest.epoch), blocks));
            self.disk().write_blocks([(start, &label.encode(number)), (ring, &newest.encode(number))])?;
        }
        self.disk().flush()
    }
}
