//! What is in use where a tree block of a snapshot cannot be read. What is under it its domain has too, or a dead list; or neither, where the domain has
//! lost its own way there, and then nothing but the bitmap tells. So whatever the bitmap has in use stays so, for a repair that somebody asks for: what
//! nobody has becomes free when the snapshot is gone and another repair has made the bitmap from the trees alone. A mount makes none.
//!
//! That loses nothing if the bitmap has lost no bit of what is hidden. Whether it has is not to be known for certain, as the number in the superblock
//! tells of the difference of bits lost and bits too many only. So where that number does not fit, or not all of the bitmap can be read, there is a
//! repair only if nothing but pages of files can be hidden. Such a page, given to somebody else, is an error for who reads it in the snapshot: there is
//! no other copy, which a scrub would write over what is there now, and what goes with the snapshot is in its dead list.

use super::account::count;
use super::walk::Seen;
use crate::alloc::{fixed, margin_of};
use crate::format::{BITS, Label, Superblock};
use crate::module::log_area;
use crate::snapshot::{DeletionSlice, slice_blocks};

/// What is in use, as far as that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InUse {
    /// What can be reached.
    Reached,
    /// So many blocks more, which the bitmap has in use; or of which nobody knows, as a part of the bitmap cannot be read. Whether what is left is room
    /// for recovery points.
    Marked { more: u64, has_room: bool },
    /// There may be others.
    Unknown,
}

impl InUse {
    /// Of what has been seen of a recovery point, labels and log included.
    pub(super) fn of(label: &Label, superblock: &Superblock, seen: &Seen) -> InUse {
        let own = || fixed(label.blocks, &log_area(label));
        match (&seen.hidden, &seen.hidden_in_snapshot) {
            (None, None) => return InUse::Reached,
            // Where the store grew, and the bitmap did not, labels are counted elsewhere.
            (None, Some(_)) if superblock.total.checked_add(own().map(blocks_of).sum()) == Some(label.blocks) => {}
            _ => return InUse::Unknown,
        }
        let ones = |word: &dyn Fn(usize) -> u64| count(label.blocks, word);
        let counted = label.blocks.saturating_sub(superblock.free);
        let (reached, stored) = (ones(&|at| seen.used[at]), ones(&|at| seen.bitmap[at]));
        let marked = ones(&|at| seen.used[at] | seen.bitmap[at]);
        let has_lost_bits = marked > stored;
        let has_unread = !seen.bitmap_is_whole;
        let has_room = label.blocks - marked >= room(label, seen);
        // With more in use than a mount takes for used it can but be safer.
        let is_taken_by_mounts = !has_unread && stored == counted && own().flatten().all(|block| has(seen, block));
        let as_marked = InUse::Marked { more: marked - reached, has_room };
        match () {
            () if is_taken_by_mounts => as_marked,
            () if reached > counted || marked < counted => InUse::Unknown,
            () if has_unread && has_lost_bits => InUse::Unknown,
            () if seen.hides_copies => InUse::Unknown,
            // Of all of the bitmap that can be read as well.
            () if has_unread && !has_room && reached == counted && marked - reached == unread(label, seen) => {
                InUse::Reached
            }
            // So bits are lost, and others too many; and some of them may be of what is hidden, if anything is.
            () if has_lost_bits && marked > counted && reached < counted => InUse::Unknown,
            () => as_marked,
        }
    }
}

/// Blocks that are to be free for the recovery point that a repair makes, with a new bitmap, and for those that delete snapshots: for one slice, which may
/// move all notes there are, as each gives back what the next one takes.
fn room(label: &Label, seen: &Seen) -> u64 {
    let most = (DeletionSlice::default().runs).min(seen.dead.len());
    margin_of(label.blocks) + slice_blocks(most as u64) + 4 * label.blocks.div_ceil(BITS)
}

fn blocks_of(range: std::ops::Range<u64>) -> u64 {
    range.end - range.start
}

fn has(seen: &Seen, block: u64) -> bool {
    seen.bitmap.get((block / 64) as usize).is_some_and(|word| word >> (block % 64) & 1 == 1)
}

/// Blocks that are not reached, of which the bitmap cannot be read.
fn unread(label: &Label, seen: &Seen) -> u64 {
    count(label.blocks, |at| if seen.unread.iter().any(|words| words.contains(&at)) { !seen.used[at] } else { 0 })
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
