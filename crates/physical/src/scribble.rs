//! For the lab: writes to metadata in memory as nobody may, past everything that keeps the sums right.
//!
//! It stands in for a flipped bit, or for a program that writes through a wrong pointer. What it hits is chosen by a number, so that a run
//! can be made again.

use crate::format::Record;
use crate::module::Module;
use crate::tree::Change;
use std::sync::Arc;

/// What is left of a number that choices are taken from.
struct Choices(u64);

impl Choices {
    /// One of so many, at least 1.
    fn one_of(&mut self, many: u64) -> u64 {
        let choice = self.0 % many;
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0 = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.0 = (self.0 ^ (self.0 >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 ^= self.0 >> 31;
        choice
    }
}

fn change_record(record: &mut Record, choices: &mut Choices) -> &'static str {
    let bit = choices.one_of(32);
    let flipped = 1u64 << bit;
    match choices.one_of(7) {
        0 => {
            record.attributes.size ^= flipped;
            "size"
        }
        1 => {
            record.attributes.blocks ^= flipped;
            "blocks"
        }
        2 => {
            record.attributes.mtime.secs ^= flipped as i64;
            "mtime"
        }
        3 => {
            record.attributes.nlink ^= flipped as u32;
            "nlink"
        }
        4 => {
            record.page_bound ^= flipped;
            "page bound"
        }
        5 => {
            record.attributes.parent.0 ^= flipped;
            "parent"
        }
        _ => {
            record.attributes.generation ^= flipped;
            "generation"
        }
    }
}

impl Module {
    /// Flips a bit of something that memory has of the store's metadata: a block that the epoch being built has changed, or that is as
    /// on the device; a record; the allocator's bits, but for those of blocks written ahead, with which no epoch can be begun anew; the
    /// label; the superblock. `choice` says of what and which bit, 64 random bits. Gives what was hit; `None` if there is no such thing
    /// now, or somebody is at work with it.
    pub fn scribble(&self, choice: u64) -> Option<String> {
        let mut choices = Choices(choice);
        // The number itself chooses the kind, so that whoever counts up gets each in turn.
        let kind = choices.one_of(7);
        let mut trees = self.trees.try_write()?;
        match kind {
            0 => {
                let mut keys: Vec<_> = trees.dirty.keys().copied().collect();
                keys.sort_unstable();
                let key = *keys.get(choices.one_of(keys.len().max(1) as u64) as usize)?;
                let (at, bit) = (choices.one_of(4096), choices.one_of(8));
                trees.dirty.get_mut(&key)?.block.scribble(at as usize, &[1 << bit]);
                Some(format!("changed block {key:?}, byte {at}"))
            }
            1 => {
                let (key, address) = self.base.cache.nth(choices.one_of(1 << 20))?;
                let mut block = self.base.cache.take(key, address)?;
                let (at, bit) = (choices.one_of(4096), choices.one_of(8));
                Arc::make_mut(&mut block).scribble(at as usize, &[1 << bit]);
                self.base.keep(key, address, block);
                Some(format!("clean block {key:?}, byte {at}"))
            }
            2 => {
                let mut keys: Vec<_> = trees.changed.keys().copied().collect();
                keys.sort_unstable();
                let key = *keys.get(choices.one_of(keys.len().max(1) as u64) as usize)?;
                let Some(Change::Present(record)) = trees.changed.get_mut(&key) else { return None };
                let mut field = "";
                record.scribble(|record| field = change_record(record, &mut choices));
                Some(format!("record of {key}, {field}"))
            }
            3 => {
                let nth = choices.one_of(trees.system.len() as u64);
                let (id, record) = trees.system.iter_mut().nth(nth as usize)?;
                let mut field = "";
                record.scribble(|record| field = change_record(record, &mut choices));
                Some(format!("record of {id} of domain 0, {field}"))
            }
            4 => {
                let block = choices.one_of(self.blocks());
                self.base.alloc.try_lock()?.scribble_used(block);
                Some(format!("use of block {block}"))
            }
            5 => {
                let block = choices.one_of(self.blocks());
                self.base.alloc.try_lock()?.scribble_pending(block).then(|| format!("freeing of block {block}"))
            }
            _ => {
                let (at, bit) = (choices.one_of(4096) as usize, choices.one_of(8));
                self.sealed.scribble(choices.one_of(2) == 0, at, 1 << bit);
                Some(format!("label or superblock, byte {at}"))
            }
        }
    }
}
