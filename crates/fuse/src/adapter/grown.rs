//! Files whose end the kernel may not know: the checksum-aware interface goes past it, so it learns of a file that grew when it asks next.
//!
//! It places a write by O_APPEND at the end that it knows. If somebody has appended through the interface since, that is in the middle of
//! what they wrote. So such a write goes to the end that there is, in a file that was written through the interface.
//!
//! Not in all files: the flags that the kernel sends are those of the open, and RWF_NOAPPEND takes O_APPEND away for one write. In the
//! files noted here that has no effect, as before Linux 6.9.

use parking_lot::RwLock;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// So many files are noted one by one.
const FILES_MAX: usize = 4096;

/// Invariant: whatever was noted may have grown, for as long as this lives. (Whether the kernel has learned of it since is not known: an answer
/// with a size can be older than the write that it overtakes.)
#[derive(Default)]
pub(super) struct Grown {
    /// There were more than are noted one by one: it may be any.
    all: AtomicBool,
    nodes: RwLock<HashSet<u64>>,
}

impl Grown {
    /// The file is about to be written through the interface.
    pub(super) fn note(&self, node: u64) {
        if self.may_be(node) {
            return;
        }
        let mut nodes = self.nodes.write();
        if nodes.len() < FILES_MAX {
            nodes.insert(node);
        } else {
            self.all.store(true, Ordering::Release);
            *nodes = HashSet::new();
        }
    }

    /// Whether the file was noted, or may have been.
    pub(super) fn may_be(&self, node: u64) -> bool {
        // In this order: a file that `note` found no room for, and forgot the others for, is not missed between the two.
        self.nodes.read().contains(&node) || self.all.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_never_forgotten() {
        let grown = Grown::default();
        assert!(!grown.may_be(7));
        let most = FILES_MAX as u64;
        (0..most).for_each(|node| grown.note(node));
        assert!(grown.may_be(7) && !grown.may_be(most));
        grown.note(7);
        assert!(!grown.may_be(most), "nothing new");
        grown.note(most);
        assert!(grown.may_be(7) && grown.may_be(most));
    }
}
