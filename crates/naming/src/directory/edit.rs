//! Changing a directory: every change is a set of whole new pages.

use super::layout::*;
use super::node::{self, BranchRecord, Expect, Node};
use super::{Cut, Directory, Entry, Search, Step};
use crate::audit::Called;
use crate::error::{Error, Result};
use holdfast_object::{Kind, ObjectId};

/// A node with fewer bytes of records than this tries to join a neighbour.
const SPARSE: usize = capacity(1) / 4;
/// Nodes are joined if the result has at most this many bytes of records, so that it does not split again soon.
const JOINED_MAX: usize = capacity(1) / 4 * 3;

/// The key that an entry will have, if there is one left.
#[must_use]
pub(crate) struct Vacancy(Option<u64>);

impl Directory<'_> {
    /// A place for an entry of this name, of which there must be none.
    pub(crate) fn vacancy(&self, name: &[u8]) -> Result<Vacancy> {
        match self.find(name)? {
            Search { found: None, free } => Ok(Vacancy(free)),
            _ => Err(Error::exists(self.id, name)),
        }
    }

    /// Adds an entry. There must be none of that name. Gives its key.
    pub(crate) fn insert(&mut self, name: &[u8], object: ObjectId, kind: Kind) -> Result<u64> {
        let vacancy = self.vacancy(name)?;
        self.fill(vacancy, name, object, kind)
    }

    /// Adds an entry in the place found for its name; nothing has changed since. Gives its key.
    pub(crate) fn fill(&mut self, vacancy: Vacancy, name: &[u8], object: ObjectId, kind: Kind) -> Result<u64> {
        let key = vacancy.0.ok_or_else(|| Error::DirectoryFull { parent: self.id, name: name.into() })?;
        if self.header.is_none() {
            self.header = Some(self.fresh);
            self.put(0, 0, &[], 0)?;
        }
        let path = self.descend(key)?;
        let mut record = Vec::new();
        node::push_entry(&mut record, key, object, kind, name);
        let mut records = self.checked_records(path.leaf)?;
        let at = position(&records, 0, key);
        records.splice(at..at, record);
        self.store(&path.steps, path.leaf.page, 0, records, at)?;
        self.called.push(Called { object, key, is_put: true });
        Ok(key)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Result<Option<Entry>> {
        let Some(entry) = self.find(name)?.found else { return Ok(None) };
        self.take_out(entry)?;
        Ok(Some(entry))
    }

    /// Removes an entry that was found; nothing has changed since.
    pub(crate) fn take_out(&mut self, entry: Entry) -> Result<()> {
        let path = self.descend(entry.key)?;
        let mut records = self.checked_records(path.leaf)?;
        let at = position(&records, 0, entry.key);
        assert_eq!(node::record_key(&records, at), entry.key, "entry found before");
        let length = node::record_lengths(&records[at..], 0).next().unwrap_or(0);
        records.drain(at..at + length);
        self.shrink(&path.steps, path.leaf.page, 0, records, at)?;
        self.called.push(Called { object: entry.object, key: entry.key, is_put: false });
        Ok(())
    }

    /// Makes the entry of `name` refer to another object. Gives what it was.
    pub(crate) fn replace(&mut self, name: &[u8], object: ObjectId, kind: Kind) -> Result<Option<Entry>> {
        let Some(entry) = self.find(name)?.found else { return Ok(None) };
        let path = self.descend(entry.key)?;
        let mut records = self.checked_records(path.leaf)?;
        let at = position(&records, 0, entry.key);
        let mut record = Vec::new();
        node::push_entry(&mut record, entry.key, object, kind, name);
        assert_eq!(node::record_key(&records, at), entry.key, "entry found before");
        records[at..at + record.len()].copy_from_slice(&record);
        self.put(path.leaf.page, 0, &records, at)?;
        self.called.push(Called { object: entry.object, key: entry.key, is_put: false });
        self.called.push(Called { object, key: entry.key, is_put: true });
        Ok(Some(entry))
    }

    /// The records of a node that is about to change, all of them checked.
    fn checked_records(&self, expect: Expect) -> Result<Vec<u8>> {
        let image = self.page(expect.page)?;
        let node = Node::parse(&image, expect)?;
        node.check(&image)?;
        Ok(node.records().to_vec())
    }

    /// As above, for a node that was passed on the way down.
    fn records_of(&self, page: u64, level: u8) -> Result<Vec<u8>> {
        self.checked_records(Expect { page, level: Some(level), ..self.expect_root() })
    }

    /// Gives a page these records; the first `same` bytes of them it has already.
    fn put(&mut self, page: u64, level: u8, records: &[u8], same: usize) -> Result<()> {
        let mut image = self.take_version(page)?;
        node::put_node(&mut image, self.id, page, level, records, same);
        self.changed.insert(page, image);
        Ok(())
    }

    /// Gives a node these records, which begin with `same` bytes that it has already; splits it, and the branches above, if they are too many.
    fn store(&mut self, steps: &[Step], page: u64, level: u8, records: Vec<u8>, same: usize) -> Result<()> {
        if records.len() <= capacity(page) {
            return self.put(page, level, &records, same);
        }
        let cut = middle(&records, level);
        let separator = node::record_key(&records, cut);
        let (left, right) = records.split_at(cut);
        let right_page = self.allocate()?;
        self.put(right_page, level, right, 0)?;
        let Some((step, above)) = steps.split_last() else {
            assert_eq!(page, 0, "only the root has no parent");
            let left_page = self.allocate()?;
            self.put(left_page, level, left, 0)?;
            let mut branches = Vec::new();
            node::push_branch(&mut branches, BranchRecord { key: 0, child: left_page });
            node::push_branch(&mut branches, BranchRecord { key: separator, child: right_page });
            if level == LEVEL_MAX {
                return Err(self.expect_root().corrupt(HEADER_BYTES, "tree is too high"));
            }
            return self.put(0, level + 1, &branches, 0);
        };
        self.put(page, level, left, same.min(cut))?;
        let mut branches = self.records_of(step.page, level + 1)?;
        let mut branch = Vec::new();
        node::push_branch(&mut branch, BranchRecord { key: separator, child: right_page });
        // The first key may have stayed above the separator, because it counts as the node's lower bound whatever it is.
        branches[..8].copy_from_slice(&step.low.to_le_bytes());
        let at = (step.slot + 1) * BRANCH_BYTES;
        branches.splice(at..at, branch);
        self.store(above, step.page, level + 1, branches, 0)
    }

    /// Gives a node these records, fewer than before, which begin with `same` bytes that it has already; joins it with a neighbour if they have become few.
    fn shrink(&mut self, steps: &[Step], page: u64, level: u8, records: Vec<u8>, same: usize) -> Result<()> {
        let Some((step, above)) = steps.split_last() else {
            return self.shrink_root(level, records, same);
        };
        if records.len() >= SPARSE {
            return self.put(page, level, &records, same);
        }
        let mut branches = self.records_of(step.page, level + 1)?;
        let remove_branch = |branches: &mut Vec<u8>, slot: usize| {
            branches.drain(slot * BRANCH_BYTES..(slot + 1) * BRANCH_BYTES);
        };
        if records.is_empty() {
            self.free(page)?;
            remove_branch(&mut branches, step.slot);
            return self.shrink(above, step.page, level + 1, branches, step.slot * BRANCH_BYTES);
        }
        let count = branches.len() / BRANCH_BYTES;
        for left_slot in [step.slot.checked_sub(1), Some(step.slot)].into_iter().flatten() {
            let right_slot = left_slot + 1;
            if right_slot >= count {
                continue;
            }
            let neighbour_slot = if left_slot == step.slot { right_slot } else { left_slot };
            let neighbour = branch_child(&branches, neighbour_slot);
            let low = if neighbour_slot == 0 { 0 } else { node::record_key(&branches, neighbour_slot * BRANCH_BYTES) };
            let next = (neighbour_slot + 1) * BRANCH_BYTES;
            let high = if next < branches.len() { node::record_key(&branches, next) } else { KEY_END };
            let expect = Expect { page: neighbour, level: Some(level), low, high, ..self.expect_root() };
            let other = self.checked_records(expect)?;
            if other.len() + records.len() > JOINED_MAX {
                continue;
            }
            let (mut left, mut right) = if left_slot == step.slot { (records, other) } else { (other, records) };
            if level > 0 {
                // The first key of a node need not be its lower bound, but in the middle of the joined one it must.
                let bound = node::record_key(&branches, right_slot * BRANCH_BYTES);
                right[..8].copy_from_slice(&bound.to_le_bytes());
            }
            left.extend_from_slice(&right);
            let left_page = branch_child(&branches, left_slot);
            let right_page = branch_child(&branches, right_slot);
            self.put(left_page, level, &left, 0)?;
            self.free(right_page)?;
            remove_branch(&mut branches, right_slot);
            return self.shrink(above, step.page, level + 1, branches, right_slot * BRANCH_BYTES);
        }
        self.put(page, level, &records, same)
    }

    /// Gives the root these records; takes over its only child if that fits, so that the tree gets lower.
    fn shrink_root(&mut self, mut level: u8, mut records: Vec<u8>, mut same: usize) -> Result<()> {
        while level > 0 && records.len() == BRANCH_BYTES {
            let child = branch_child(&records, 0);
            let below = self.records_of(child, level - 1)?;
            if below.len() > capacity(0) {
                break;
            }
            self.free(child)?;
            (level, records, same) = (level - 1, below, 0);
        }
        if records.is_empty() {
            level = 0;
        }
        if level == 0 {
            // All other pages are free.
            let others = self.changed.split_off(&1);
            if let Some(header) = self.header.as_mut().filter(|header| header.pages > 1) {
                let lost = (header.pages - 1).wrapping_sub(header.free_count);
                match &mut self.cut {
                    Some(cut) => cut.lost = cut.lost.wrapping_add(lost),
                    cut => *cut = Some(Cut { changed: others.into_keys().collect(), lost }),
                }
                (header.pages, header.free_head, header.free_count) = (1, 0, 0);
            }
        }
        self.put(0, level, &records, same)
    }

    fn allocate(&mut self) -> Result<u64> {
        let expect = self.expect_root();
        let head = self.header.map_or(0, |header| header.free_head);
        let next = match head {
            0 => 0,
            page => node::parse_free(&*self.page(page)?, Expect { page, ..expect })?,
        };
        let Some(header) = &mut self.header else { return Err(expect.corrupt(0, "no header")) };
        if head == 0 {
            header.pages += 1;
            return Ok(header.pages - 1);
        }
        let Some(count) = header.free_count.checked_sub(1).filter(|&count| (count == 0) == (next == 0)) else {
            return Err(expect.corrupt(32, "number of free pages differs from their list"));
        };
        (header.free_head, header.free_count) = (next, count);
        Ok(head)
    }

    fn free(&mut self, page: u64) -> Result<()> {
        let expect = self.expect_root();
        let Some(header) = &mut self.header else { return Err(expect.corrupt(0, "no header")) };
        if page == 0 || page >= header.pages || page == header.free_head {
            return Err(Expect { page, ..expect }.corrupt(0, "page is free already"));
        }
        let next = std::mem::replace(&mut header.free_head, page);
        header.free_count += 1;
        let mut image = self.take_version(page)?;
        node::put_free(&mut image, self.id, page, next);
        self.changed.insert(page, image);
        Ok(())
    }
}

/// Child of the branch record number `slot` in records that are checked.
fn branch_child(records: &[u8], slot: usize) -> u64 {
    node::record_key(records, slot * BRANCH_BYTES + 8)
}

/// Where the record with the first key not below `key` begins.
fn position(records: &[u8], level: u8, key: u64) -> usize {
    let mut at = 0;
    for length in node::record_lengths(records, level) {
        if node::record_key(records, at) >= key {
            break;
        }
        at += length;
    }
    at
}

/// Where to cut records in two parts of about the same number of bytes, none of them empty.
fn middle(records: &[u8], level: u8) -> usize {
    let mut at = 0;
    for length in node::record_lengths(records, level) {
        let closer = (at + length).abs_diff(records.len() / 2) < at.abs_diff(records.len() / 2);
        if at > 0 && !closer {
            break;
        }
        at += length;
    }
    assert!(at > 0 && at < records.len(), "a node that is too full has at least two records");
    at
}
