//! What trees stand on: the device, blocks in memory, and what is done when one of them has gone bad.

use crate::alloc::Alloc;
use crate::commit::CommitOrder;
use crate::difference;
use crate::dirty::Dirty;
use crate::disk::Disk;
use crate::format::{BlockPointer, RECORD_BYTES, split_address};
use crate::meta_block::{MetaBlock, NodeKey, OwnedBlock, Scribble};
use crate::node_cache::NodeCache;
use crate::objects::{BITMAP, system_key};
use crate::sealed_record::SealedRecord;
use holdfast_integrity::prefetch;
use holdfast_object::{Clock, Epoch, Error, ObjectKey, Place, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// What trees stand on.
pub(crate) struct Base {
    pub(crate) disk: Disk,
    /// Clean blocks: [`Base::clean`] looks into it, [`Base::keep`] adds.
    pub(crate) cache: NodeCache,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) alloc: Mutex<Alloc>,
    /// What a recovery point has freed is discarded.
    pub(crate) discard: bool,
    pub(crate) commit_order: CommitOrder,
}

/// A block that nobody has looked at for so long is verified before an answer or a pointer is taken from it (WAFL paper, §4): a clean one, and one that
/// the epoch being built has changed ([`Dirty::look`]).
pub(crate) const LOOK_AGAIN_MS: u32 = 1000;

impl Base {
    /// Of the clock, in seconds: what was looked at in this second is not looked at again.
    pub(crate) fn now_s(&self) -> u32 {
        if self.disk.metadata.rolls() { (self.clock.monotonic_ms() / 1000) as u32 } else { 0 }
    }

    /// A clean block, if it is in memory.
    pub(crate) fn clean(&self, key: NodeKey, pointer: &BlockPointer) -> Option<Arc<MetaBlock>> {
        self.clean_since(key, pointer, LOOK_AGAIN_MS)
    }

    /// The same, verified just now.
    pub(crate) fn clean_now(&self, key: NodeKey, pointer: &BlockPointer) -> Option<Arc<MetaBlock>> {
        self.clean_since(key, pointer, 0)
    }

    fn clean_since(&self, key: NodeKey, pointer: &BlockPointer, age_max_ms: u32) -> Option<Arc<MetaBlock>> {
        let address = pointer.address[0];
        let (block, checked_ms) = self.cache.get(key, address)?;
        if !self.disk.metadata.rolls() {
            return Some(block);
        }
        let now_ms = self.now_ms();
        if now_ms.wrapping_sub(checked_ms) >= age_max_ms {
            // Nobody has had it for so long: it comes from memory.
            prefetch(block.bytes());
            if self.is_scribbled(&block, key, address, pointer.birth_phys) {
                self.cache.take(key, address);
                return None;
            }
            self.cache.checked(key, address, now_ms);
        }
        Some(block)
    }

    /// A new block of zeros, to change.
    pub(crate) fn new_block(&self, key: NodeKey) -> OwnedBlock {
        OwnedBlock::new(key, self.disk.metadata)
    }

    /// When blocks are verified, which nobody asks without protection.
    pub(crate) fn now_ms(&self) -> u32 {
        if self.disk.metadata.rolls() { self.clock.monotonic_ms() as u32 } else { 0 }
    }

    /// Keeps a block that was written for epoch `birth`, and has just been verified.
    pub(crate) fn keep(&self, key: NodeKey, address: u64, birth: Epoch, block: Arc<MetaBlock>) {
        self.cache.put(key, address, birth, block, self.now_ms());
    }

    /// Takes a clean block out of memory, if it is there and what it was when it was read.
    pub(crate) fn take_clean(&self, key: NodeKey, pointer: &BlockPointer) -> Option<Arc<MetaBlock>> {
        let block = self.cache.take(key, pointer.address[0])?;
        (!self.is_scribbled(&block, key, pointer.address[0], pointer.birth_phys)).then_some(block)
    }

    /// Somebody has written to a block that the epoch being built has changed, so it cannot be read again: no recovery point is made of it.
    pub(crate) fn give_up_epoch(&self, scribble: Scribble, key: NodeKey) -> Error {
        self.give_up(scribble, Place { address: None, ..key.place(&self.disk, 0) }, None)
    }

    /// The same, with what of its bytes is not as the last recovery point has it.
    pub(crate) fn give_up_block(&self, scribble: Scribble, key: NodeKey, dirty: &Dirty) -> Error {
        let place = Place { address: None, ..key.place(&self.disk, 0) };
        let differs = difference::since(&self.disk, &dirty.block, key, &dirty.stored);
        self.give_up_told(scribble, place, Some(dirty.changed), &format!(", {differs}"))
    }

    /// The same, if it is known for which epoch it was last changed legally.
    pub(crate) fn give_up_changed(&self, scribble: Scribble, key: NodeKey, changed: Epoch) -> Error {
        self.give_up(scribble, Place { address: None, ..key.place(&self.disk, 0) }, Some(changed))
    }

    /// The same for the record of an object. `stored`: what an object table has of it.
    pub(crate) fn give_up_record(
        &self,
        scribble: Scribble,
        key: ObjectKey,
        record: &SealedRecord,
        stored: Option<&[u8; RECORD_BYTES]>,
    ) -> Error {
        let place = Place { object: Some(key), address: None, ..self.disk.place(0) };
        self.give_up_with(scribble, place, &record.told(stored))
    }

    /// The same for what is known of one of the store's own objects otherwise, with what of it has gone bad and since when.
    pub(crate) fn give_up_own(&self, scribble: Scribble, key: ObjectKey, told: &str) -> Error {
        let place = Place { object: Some(key), address: None, ..self.disk.place(0) };
        self.give_up_with(scribble, place, told)
    }

    /// The same for numbers that are in no block, nor of one object, and are counted anew for each epoch, or on from one to the next.
    pub(crate) fn give_up_sums(&self, scribble: Scribble) -> Error {
        let told = format!(", as counted for epoch {}", self.disk.newest());
        self.give_up_with(scribble, Place { address: None, ..self.disk.place(0) }, &told)
    }

    fn give_up(&self, scribble: Scribble, place: Place, changed: Option<Epoch>) -> Error {
        self.give_up_told(scribble, place, changed, "")
    }

    fn give_up_told(&self, scribble: Scribble, place: Place, changed: Option<Epoch>, differs: &str) -> Error {
        let changed = match changed {
            Some(changed) => format!(", last changed legally for epoch {changed}"),
            // What can still change legally does so for the newest epoch.
            None => format!(", last changed legally for epoch {} or before", self.disk.newest()),
        };
        self.give_up_with(scribble, place, &format!("{differs}{changed}"))
    }

    fn give_up_with(&self, scribble: Scribble, place: Place, told: &str) -> Error {
        self.disk.counters.scribbled();
        let mut corruption = scribble.at(place);
        corruption.got += told;
        self.disk.give_up(corruption)
    }

    /// Gives up the epoch being built if somebody has written to the allocator's bits who must not.
    pub(crate) fn check_alloc(&self, alloc: &Alloc) -> Result<()> {
        Err(match alloc.scribble() {
            None => return Ok(()),
            Some((Some(chunk), scribble)) => self.give_up_chunk(alloc, scribble, chunk),
            Some((None, scribble)) => {
                let key = NodeKey::new(system_key(BITMAP), 0, 0);
                self.give_up_changed(scribble, key, self.disk.newest())
            }
        })
    }

    /// The same for bits of this chunk.
    pub(crate) fn give_up_chunk(&self, alloc: &Alloc, scribble: Scribble, chunk: u64) -> Error {
        let key = NodeKey::new(system_key(BITMAP), 0, chunk);
        let (bits, changed) = alloc.differs(&self.disk, chunk);
        let place = Place { address: None, ..key.place(&self.disk, 0) };
        self.give_up_told(scribble, place, changed, &format!(", {bits}"))
    }

    /// What was handed out, or the reason why not.
    pub(crate) fn handed_out<T>(&self, alloc: &Alloc, outcome: Result<T>) -> Result<T> {
        outcome.or_else(|error| self.check_alloc(alloc).and(Err(error)))
    }

    /// Whether somebody has written to a clean block who must not, which is counted and told then. `written`: for which epoch it was, or 0.
    pub(crate) fn is_scribbled(&self, block: &MetaBlock, key: NodeKey, address: u64, written: Epoch) -> bool {
        let scribble = block.verify(key).err();
        if let Some(scribble) = scribble {
            let error = scribble.at(key.place(&self.disk, address));
            self.disk.ambush.found(&format_args!("{error}: read again"));
            self.disk.counters.scribbled();
            let differs = difference::told(&self.disk, block, key, address, written);
            tracing::error!(%error, differs, "the block is read again");
        }
        scribble.is_some()
    }

    /// Clean blocks that somebody has written to are forgotten, those too that were looked at a moment ago. Gives these, and for which epoch each was
    /// last changed legally; 0 if that is not known.
    pub(crate) fn weed(&self) -> Vec<(Place, Epoch)> {
        let newest = self.disk.newest();
        let mut found = Vec::new();
        for (key, address) in self.cache.versions() {
            let Some((block, _)) = self.cache.get(key, address) else { continue };
            let written = self.cache.birth(key, address, newest).unwrap_or(0);
            if self.is_scribbled(&block, key, address, written) {
                found.push((key.place(&self.disk, address), written));
                self.cache.take(key, address);
            }
        }
        found
    }

    /// The epoch being built frees the block of an address. `false`: it is free.
    pub(crate) fn free(&self, address: u64) -> bool {
        let block = split_address(address).1;
        let was_used = self.alloc.lock().free(block);
        if !was_used {
            tracing::error!(device = self.disk.name(), block, "freed twice or never in use: left alone");
        }
        was_used
    }
}
