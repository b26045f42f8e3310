//! What is in use where a tree block of a snapshot cannot be read. What is under it its domain has too, or a dead list; or neither, where the domain has
//! lost its own way there, and then nothing but the bitmap tells. So how many blocks the superblock counts is held against what can be reached. If that is
//! all of them, nothing else is in use. Otherwise what the bitmap has in use stays so: nothing is given away that somebody has, and what nobody has becomes free
//! when the snapshot is gone and a repair has made the bitmap from the trees alone.
//!
//! Not to be known is it where the bitmap has lost bits of blocks that can be reached, and the two together still are fewer than are counted, or
//! more: it may have lost bits of what is hidden, too.

use super::account::count;
use super::walk::Seen;
use crate::format::{Label, Superblock};

/// Fewer free blocks (4 MiB), and four for each block of the bitmap, would not do for the recovery point that says so, and those that delete snapshots.
const ROOM: u64 = 1024;

/// Which blocks are in use, as far as that is certain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InUse {
    /// Those that can be reached.
    Reached,
    /// So many more, which the bitmap has in use; or which nobody knows of, as a part of the bitmap cannot be read.
    Marked { more: u64, has_unread: bool },
    /// There may be others.
    Unknown,
}

impl InUse {
    /// Of what has been seen of a recovery point, labels and log included.
    pub(super) fn of(label: &Label, superblock: &Superblock, seen: &Seen) -> InUse {
        match (&seen.hidden, &seen.hidden_in_snapshot) {
            (None, None) => return InUse::Reached,
            // Where the store grew, and the bitmap did not, labels are counted elsewhere.
            (None, Some(_)) if superblock.covered(label) == label.blocks => {}
            _ => return InUse::Unknown,
        }
        let ones = |word: &dyn Fn(usize) -> u64| count(label.blocks, word);
        let counted = label.blocks.saturating_sub(superblock.free);
        let reached = ones(&|at| seen.used[at]);
        let marked = ones(&|at| seen.used[at] | seen.bitmap[at]);
        let has_lost_bits = ones(&|at| seen.used[at] & !seen.bitmap[at]) > 0;
        let has_unread = !seen.bitmap_is_whole;
        let room = ROOM + 4 * (seen.bitmap.len() / crate::words::CHUNK_WORDS) as u64;
        match () {
            () if reached == counted => InUse::Reached,
            () if reached > counted || marked < counted || has_lost_bits && marked > counted => InUse::Unknown,
            () if has_unread && label.blocks - marked < room => InUse::Unknown,
            () => InUse::Marked { more: marked - reached, has_unread },
        }
    }
}

/// Takes what the bitmap has in use for that.
pub(super) fn add_marked(label: &Label, seen: &mut Seen) {
    for (at, (used, marked)) in seen.used.iter_mut().zip(&seen.bitmap).enumerate() {
        *used |= marked & inside(label.blocks, at);
    }
}

/// The bits of a word that are of the first `blocks`.
pub(super) fn inside(blocks: u64, word: usize) -> u64 {
    match blocks.saturating_sub(64 * word as u64) {
        bits @ 0..64 => (1 << bits) - 1,
        _ => u64::MAX,
    }
}
