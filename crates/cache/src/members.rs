//! Which objects and pages have changed: sets with a sum.
//!
//! These sets alone say what a recovery point and a log batch consist of. What is not in them because somebody has written over a member, nothing
//! misses later. So the sum goes along with what comes and goes, and is compared before the set decides. If it is another one, the set is made
//! anew from what the pages and objects say themselves, for which all of them are looked at.

use crate::object::{Object, Residence};
use crate::state::State;
use holdfast_object::{Epoch, ObjectId, PageIndex};
use std::collections::BTreeSet;
use std::ops::Deref;

/// What can be a member.
pub(crate) trait Member: Copy + Ord {
    fn number(self) -> u64;
}

impl Member for PageIndex {
    fn number(self) -> u64 {
        self
    }
}

impl Member for ObjectId {
    fn number(self) -> u64 {
        self.0
    }
}

/// See the module.
pub(crate) struct Members<T> {
    set: BTreeSet<T>,
    /// Of all members, modulo 2^64.
    sum: u64,
}

/// Each number has one of its own, and none that an object or a page has is 0. Not linear, so that changes of two members do not cancel out.
fn mixed(member: impl Member) -> u64 {
    let product = (member.number() ^ 0x243f_6a88_85a3_08d3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ product >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl<T> Default for Members<T> {
    fn default() -> Members<T> {
        Members { set: BTreeSet::new(), sum: 0 }
    }
}

impl<T: Member> FromIterator<T> for Members<T> {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> Members<T> {
        let mut all = Members::default();
        for member in members {
            all.insert(member);
        }
        all
    }
}

impl<T> Deref for Members<T> {
    type Target = BTreeSet<T>;

    fn deref(&self) -> &BTreeSet<T> {
        &self.set
    }
}

impl<T: Member> Members<T> {
    /// Whether it was none before.
    pub(crate) fn insert(&mut self, member: T) -> bool {
        let is_new = self.set.insert(member);
        if is_new {
            self.sum = self.sum.wrapping_add(mixed(member));
        }
        is_new
    }

    pub(crate) fn remove(&mut self, member: &T) {
        if self.set.remove(member) {
            self.sum = self.sum.wrapping_sub(mixed(*member));
        }
    }

    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&T) -> bool) {
        let sum = &mut self.sum;
        self.set.retain(|member| {
            let stays = stays(member);
            if !stays {
                *sum = sum.wrapping_sub(mixed(*member));
            }
            stays
        });
    }

    /// Whether there are none, and none was lost.
    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty() && self.sum == 0
    }

    /// Whether the members are those that came and did not go.
    pub(crate) fn is_good(&self) -> bool {
        self.set.iter().fold(0, |sum: u64, member| sum.wrapping_add(mixed(*member))) == self.sum
    }

    /// Another member in place of one, as nobody may; whether it was one.
    pub(crate) fn strike(&mut self, member: T, other: T) -> bool {
        let was_one = self.set.remove(&member);
        if was_one {
            self.set.insert(other);
        }
        was_one
    }
}

impl Object {
    /// Makes the set of pages that no recovery point has anew, if it is bad; whether it was so.
    pub(crate) fn renew_dirty(&mut self) -> bool {
        let is_bad = !self.dirty.is_good();
        if is_bad {
            let dirty = self.pages.iter().filter(|(_, slot)| slot.residence == Residence::Dirty);
            self.dirty = dirty.map(|(&index, _)| index).collect();
        }
        is_bad
    }

    /// The same of those that no log batch has either. Some that one has may be among them then: they are logged once more.
    pub(crate) fn renew_unlogged(&mut self) -> bool {
        let is_bad = !self.unlogged.is_good();
        if is_bad {
            let changed = self.pages.iter().filter(|(_, slot)| !matches!(slot.residence, Residence::Clean(_)));
            self.unlogged = changed.map(|(&index, _)| index).collect();
        }
        is_bad
    }

    /// Whether the open epoch has changes of it.
    fn is_changed_in(&self, epoch: Epoch) -> bool {
        let is_changed = self.progress.changed_in.get().is_none_or(|changed_in| changed_in == epoch);
        is_changed || self.pages.values().any(|slot| slot.residence == Residence::Dirty)
    }
}

impl State {
    /// The objects that the open epoch has changed.
    pub(crate) fn renew_changed(&mut self) {
        if !self.open.objects.is_good() {
            let epoch = self.open.epoch;
            let changed = self.objects.iter().filter(|(_, object)| object.is_changed_in(epoch));
            self.open.objects = changed.map(|(&id, _)| id).collect();
            self.note_members(None, "changed objects");
        }
    }

    /// The objects with changes of the name space that no log batch has.
    pub(crate) fn renew_names(&mut self) {
        if !self.names_unlogged.is_good() {
            let changed = self.objects.iter().filter(|(_, object)| object.progress.has_newer_names());
            self.names_unlogged = changed.map(|(&id, _)| id).collect();
            self.note_members(None, "objects whose names have changed");
        }
    }

    /// Says so.
    pub(crate) fn note_members(&mut self, of: Option<ObjectId>, what: &str) {
        self.operations_renewed += 1;
        let of = of.map(|id| format!(" of {}", self.key(id))).unwrap_or_default();
        tracing::warn!("the set of {what}{of} went bad in memory: it is made anew from what they say themselves");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_leaves_the_set_good_and_a_strike_does_not() {
        let mut members: Members<PageIndex> = [0, 3, 5].into_iter().collect();
        assert!(members.insert(9) && !members.insert(3) && members.is_good());
        members.remove(&5);
        members.remove(&5);
        members.retain(|member| *member != 9);
        assert_eq!((members.is_good(), members.iter().copied().collect::<Vec<_>>()), (true, vec![0, 3]));
        for bit in 0..u64::BITS {
            let mut members: Members<PageIndex> = [0, 3, 5].into_iter().collect();
            assert!(!members.strike(3, 3 ^ 1 << bit) || !members.is_good(), "bit {bit}");
        }
    }

    /// Nor do changes after it.
    #[test]
    fn a_member_that_was_lost_is_missed_for_good() {
        let mut members: Members<PageIndex> = [0, 3].into_iter().collect();
        members.strike(0, 1);
        members.remove(&0);
        members.insert(7);
        assert!(!members.is_good());
        members.remove(&1);
        members.remove(&3);
        members.remove(&7);
        assert_eq!(members.len(), 0);
        assert!(!members.is_empty() && !members.is_good());
    }
}
