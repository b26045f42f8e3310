//! Who is changing which blocks, so that a write of part of a block loses nothing of what others write to the rest of it.

use std::ops::Range;

use parking_lot::{Condvar, Mutex};

/// The ranges of blocks that are being changed. A change of whole blocks only waits for one that has part of a block among the
/// same blocks, and reads for nothing.
#[derive(Debug, Default)]
pub(super) struct Edges {
    held: Mutex<Vec<Held>>,
    released: Condvar,
}

#[derive(Debug)]
struct Held {
    blocks: Range<u64>,
    in_part: bool,
}

/// Holds a range until it is dropped.
#[derive(Debug)]
pub(super) struct Hold<'a> {
    edges: &'a Edges,
    blocks: Range<u64>,
    in_part: bool,
}

impl Edges {
    /// Waits until the blocks may be changed, in part or as a whole.
    pub(super) fn hold(&self, blocks: Range<u64>, in_part: bool) -> Hold<'_> {
        let mut held = self.held.lock();
        while held.iter().any(|other| {
            (in_part || other.in_part) && other.blocks.start < blocks.end && blocks.start < other.blocks.end
        }) {
            self.released.wait(&mut held);
        }
        held.push(Held { blocks: blocks.clone(), in_part });
        Hold { edges: self, blocks, in_part }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut held = self.edges.held.lock();
        let mine = |other: &Held| other.blocks == self.blocks && other.in_part == self.in_part;
        if let Some(at) = held.iter().position(mine) {
            held.swap_remove(at);
        }
        drop(held);
        self.edges.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn whole_blocks_wait_for_parts_only_and_parts_for_all() {
        let edges = Edges::default();
        let (whole, again) = (edges.hold(0..10, false), edges.hold(5..15, false));
        let apart = edges.hold(20..21, true);
        let (told, got) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let part = edges.hold(9..10, true);
                told.send("part").unwrap();
                drop(part);
            });
            drop(again);
            // That nobody comes has no event to wait for. The wait is too short for a fault to show each time, and never fails without one.
            assert!(got.recv_timeout(std::time::Duration::from_millis(20)).is_err());
            drop(whole);
            assert_eq!(got.recv(), Ok("part"));
            let (later, told) = (apart, told.clone());
            let edges = &edges;
            scope.spawn(move || {
                drop(edges.hold(0..21, false));
                told.send("whole").unwrap();
            });
            // As above.
            assert!(got.recv_timeout(std::time::Duration::from_millis(20)).is_err());
            drop(later);
            assert_eq!(got.recv(), Ok("whole"));
        });
    }
}
