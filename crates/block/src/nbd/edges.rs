//! Who is changing which blocks, so that a write of part of a block loses nothing of what others write to the rest of it.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::{BLOCK_SIZE, Device, Error, Filter};

/// The ranges of blocks that are being changed. A change of whole blocks only waits for one that has part of a block among the
/// same blocks, and reads for nothing.
///
/// One device may be served in several ways at once; those who change it must have the same of these.
#[derive(Debug, Default)]
pub struct Edges {
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
    /// The device, for somebody beside the exports who changes whole blocks of it.
    pub fn over(edges: Arc<Edges>, device: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(Whole { edges, device })
    }

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

/// A device whose blocks are changed as a whole.
struct Whole {
    edges: Arc<Edges>,
    device: Arc<dyn Device>,
}

impl Filter for Whole {
    fn below(&self) -> &dyn Device {
        &*self.device
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let blocks = bufs.iter().map(|buf| buf.len()).sum::<usize>().div_ceil(BLOCK_SIZE) as u64;
        let _hold = self.edges.hold(first..first.saturating_add(blocks), false);
        self.device.write(first, bufs)
    }

    fn on_discard(&self, first: u64, count: u64) -> Result<(), Error> {
        let _hold = self.edges.hold(first..first.saturating_add(count), false);
        self.device.discard(first, count)
    }

    fn on_zero(&self, first: u64, count: u64, keep: bool) -> Result<bool, Error> {
        let _hold = self.edges.hold(first..first.saturating_add(count), false);
        self.device.zero(first, count, keep)
    }

    fn has_to_write_zeros(&self) -> bool {
        // With `keep` or without, as far as one answer can say.
        self.device.writes_zeros(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use crate::nbd::Export;
    use std::io::IoSliceMut;
    use std::sync::Barrier;

    /// Whoever reads it waits for somebody else, twice.
    struct Slow {
        below: MemoryDevice,
        read: Barrier,
    }

    impl Filter for Slow {
        fn below(&self) -> &dyn Device {
            &self.below
        }

        fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
            self.below.read(first, bufs)?;
            self.read.wait();
            self.read.wait();
            Ok(())
        }
    }

    #[test]
    fn who_changes_whole_blocks_beside_an_export_is_not_undone_by_a_part() {
        for what in ["write", "discard", "zero"] {
            let slow = Arc::new(Slow { below: MemoryDevice::new(4), read: Barrier::new(2) });
            slow.below.write(1, &[IoSlice::new(&[1; BLOCK_SIZE])]).unwrap();
            let edges = Arc::new(Edges::default());
            let export = Export::new("", slow.clone()).with_edges(edges.clone());
            let beside = Edges::over(edges, slow.clone());
            std::thread::scope(|scope| {
                // Has read the block of which it writes a part.
                scope.spawn(|| {
                    let at = BLOCK_SIZE as u64 + 8;
                    export.write(&(at..at + 8), &mut [2; BLOCK_SIZE]).unwrap();
                });
                slow.read.wait();
                let other = scope.spawn(|| match what {
                    "write" => beside.write(1, &[IoSlice::new(&[3; BLOCK_SIZE])]).unwrap(),
                    "discard" => beside.discard(1, 1).unwrap(),
                    _ => assert!(beside.zero(1, 1, false).is_ok()),
                });
                // Too short for a fault to show each time, and it never fails without one.
                std::thread::sleep(std::time::Duration::from_millis(20));
                assert!(!other.is_finished(), "{what}");
                slow.read.wait();
            });
            let mut found = [0; BLOCK_SIZE];
            slow.below.read(1, &mut [IoSliceMut::new(&mut found)]).unwrap();
            if what == "write" {
                assert_eq!(found, [3; BLOCK_SIZE]);
            }
        }
    }
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
