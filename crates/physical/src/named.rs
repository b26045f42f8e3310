//! Whether a block is what a pointer says, before something is written over it. A bad copy is replaced by a good one through the pointer that names
//! both. If somebody has written to that pointer, the "bad copy" may be anybody's block, and what would be written over it could not be taken
//! back. So what has the pointer is verified just now. A clean block that had it and has left memory since was verified when it was last used.

use crate::base::Base;
use crate::format::{BlockPointer, RECORDS, Record};
use crate::meta_block::{MetaBlock, NodeKey, Scribble};
use crate::objects::{system_key, table_of};
use crate::sealed_record::SealedRecord;
use crate::tree::{Change, Trees};
use holdfast_object::DomainId;

/// What in memory may have a pointer.
#[derive(Default)]
struct Found {
    /// Something good has it.
    is_named: bool,
    /// Something has gone bad.
    is_bad: bool,
}

impl Found {
    fn look(&mut self, verified: Result<bool, Scribble>) {
        self.is_named |= verified == Ok(true);
        self.is_bad |= verified.is_err();
    }
}

impl Trees {
    /// Whether something good in memory has this pointer in the place where that of the block is; or it has left memory, and nothing is bad that
    /// may have had it.
    pub(crate) fn is_named(&self, base: &Base, node: NodeKey, pointer: &BlockPointer) -> bool {
        if !base.disk.metadata.rolls() {
            return true;
        }
        let mut found = Found::default();
        let (parent, slot) = node.parent();
        self.look_at(base, parent, &mut found, |block| block.pointer(slot) == *pointer);
        self.look_at_records(base, node, pointer, &mut found);
        found.is_named || !found.is_bad
    }

    /// Records of the object, for its topmost block.
    fn look_at_records(&self, base: &Base, node: NodeKey, pointer: &BlockPointer, found: &mut Found) {
        let is_it = |record: &Record| record.levels == node.level && record.root == *pointer;
        let verified = |record: &SealedRecord| record.bytes().map(|_| is_it(record));
        if node.domain == DomainId::SYSTEM.0 {
            let own = self.system.get(&node.object).into_iter();
            own.chain(self.kept.tables()).for_each(|record| found.look(verified(record)));
        }
        if let Some(Change::Present(record)) = self.changed.get(&node.object_key()) {
            found.look(verified(record));
        }
        let table = system_key(table_of(DomainId(node.domain)));
        let (newest, blocks) = (base.disk.newest(), base.disk.blocks());
        self.look_at(base, NodeKey::new(table, 0, node.object / RECORDS), found, |block| {
            let bytes = block.record((node.object % RECORDS) as usize);
            Record::decode(bytes, newest, blocks, true).is_ok_and(|record| record.as_ref().is_some_and(is_it))
        });
    }

    /// All versions of a block that are in memory.
    fn look_at(&self, base: &Base, key: NodeKey, found: &mut Found, has_it: impl Fn(&MetaBlock) -> bool) {
        let dirty = self.dirty.get(&key).map(|dirty| dirty.block.share());
        let versions = base.cache.versions().into_iter().filter(|(of, _)| *of == key);
        let clean = versions.filter_map(|(key, address)| base.cache.get(key, address)).map(|(block, _)| block);
        dirty.into_iter().chain(clean).for_each(|block| found.look(block.verify(key).map(|()| has_it(&block))));
    }
}
