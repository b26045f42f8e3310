//! A device in memory, cloned copy-on-write.
//!
//! Blocks hang in a two-level tree of reference-counted nodes: groups of 256 blocks, and blocks. A clone copies one
//! pointer per MiB of device, whatever it holds; a write copies at most one group of pointers and one block that are still
//! shared. Blocks never written take no memory and read as zeros. The crash explorer makes thousands of images this way.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::device::{check_request, total, total_mut};
use crate::nbd::{Context, Extent, Extents, HOLE, ZERO};
use crate::{BLOCK_SIZE, Device, Error, Operation};

const GROUP_BLOCKS: usize = 256;

type Block = [u8; BLOCK_SIZE];

#[derive(Clone)]
struct Group([Option<Arc<Block>>; GROUP_BLOCKS]);

/// A block device in memory. `clone()` gives an independent device with the same contents, in time proportional to the
/// size in MiB and not to the contents.
pub struct MemoryDevice {
    name: Arc<str>,
    blocks: AtomicU64,
    groups: RwLock<Vec<Option<Arc<Group>>>>,
}

impl MemoryDevice {
    /// A device of `blocks` blocks, all zero.
    pub fn new(blocks: u64) -> Self {
        let groups = usize::try_from(blocks.div_ceil(GROUP_BLOCKS as u64)).expect("the device fits the address space");
        MemoryDevice { name: "memory".into(), blocks: AtomicU64::new(blocks), groups: RwLock::new(vec![None; groups]) }
    }

    /// A device holding `bytes`. As with a file, a tail shorter than a block is not part of the device.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let (whole, _tail) = bytes.as_chunks::<BLOCK_SIZE>();
        let device = MemoryDevice::new(whole.len() as u64);
        for (at, block) in whole.iter().enumerate().filter(|(_, block)| **block != [0; BLOCK_SIZE]) {
            device.put(at as u64, block);
        }
        device
    }

    /// The same device under another name, for messages where several are in play.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// All bytes of the device at this moment.
    pub fn snapshot(&self) -> Vec<u8> {
        let groups = self.groups.read();
        let mut bytes = vec![0; self.blocks() as usize * BLOCK_SIZE];
        for (at, out) in bytes.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            if let Some(block) = find(&groups, at as u64) {
                out.copy_from_slice(block);
            }
        }
        bytes
    }

    /// Changes one block in place: how tests and fault devices damage a medium.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn alter(&self, at: u64, change: impl FnOnce(&mut Block)) -> Result<(), Error> {
        check_request(&self.name, Operation::Write, self.blocks(), at, BLOCK_SIZE as u64)?;
        change(slot(&mut self.groups.write(), at));
        Ok(())
    }

    /// Writes one block without copying it: the device shares the caller's, and unshares it at the next write.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn share(&self, at: u64, block: Arc<[u8; BLOCK_SIZE]>) -> Result<(), Error> {
        check_request(&self.name, Operation::Write, self.blocks(), at, BLOCK_SIZE as u64)?;
        let (group, index) = place(at);
        Arc::make_mut(group_mut(&mut self.groups.write(), group)).0[index] = Some(block);
        Ok(())
    }

    fn put(&self, at: u64, block: &Block) {
        *slot(&mut self.groups.write(), at) = *block;
    }
}

/// The block's place in the tree. Addresses are checked by the callers.
fn place(at: u64) -> (usize, usize) {
    ((at / GROUP_BLOCKS as u64) as usize, (at % GROUP_BLOCKS as u64) as usize)
}

fn find(groups: &[Option<Arc<Group>>], at: u64) -> Option<&Block> {
    let (group, index) = place(at);
    groups[group].as_ref()?.0[index].as_deref()
}

/// The block for writing, unshared first.
fn slot(groups: &mut [Option<Arc<Group>>], at: u64) -> &mut Block {
    let (group, index) = place(at);
    let group = Arc::make_mut(group_mut(groups, group));
    Arc::make_mut(group.0[index].get_or_insert_with(|| Arc::new([0; BLOCK_SIZE])))
}

fn group_mut(groups: &mut [Option<Arc<Group>>], group: usize) -> &mut Arc<Group> {
    groups[group].get_or_insert_with(|| Arc::new(Group([const { None }; GROUP_BLOCKS])))
}

impl Clone for MemoryDevice {
    fn clone(&self) -> Self {
        MemoryDevice {
            name: Arc::clone(&self.name),
            blocks: AtomicU64::new(self.blocks()),
            groups: RwLock::new(self.groups.read().clone()),
        }
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        check_request(&self.name, Operation::Read, self.blocks(), first, total_mut(bufs))?;
        let groups = self.groups.read();
        let (mut at, mut within) = (first, 0);
        for buf in bufs {
            let mut rest: &mut [u8] = buf;
            while !rest.is_empty() {
                let step = rest.len().min(BLOCK_SIZE - within);
                let (out, later) = rest.split_at_mut(step);
                match find(&groups, at) {
                    Some(block) => out.copy_from_slice(&block[within..within + step]),
                    None => out.fill(0),
                }
                rest = later;
                (at, within) = advance(at, within, step);
            }
        }
        Ok(())
    }

    fn write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        check_request(&self.name, Operation::Write, self.blocks(), first, total(bufs))?;
        let mut groups = self.groups.write();
        let (mut at, mut within) = (first, 0);
        for buf in bufs {
            let mut rest: &[u8] = buf;
            while !rest.is_empty() {
                let step = rest.len().min(BLOCK_SIZE - within);
                let (data, later) = rest.split_at(step);
                slot(&mut groups, at)[within..within + step].copy_from_slice(data);
                rest = later;
                (at, within) = advance(at, within, step);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Frees the blocks' memory; they read as zeros.
    fn discard(&self, first: u64, count: u64) -> Result<(), Error> {
        let length_bytes = count.saturating_mul(BLOCK_SIZE as u64);
        check_request(&self.name, Operation::Discard, self.blocks(), first, length_bytes)?;
        let mut groups = self.groups.write();
        for at in first..first + count {
            let (group, index) = place(at);
            if let Some(group) = &mut groups[group]
                && group.0[index].is_some()
            {
                Arc::make_mut(group).0[index] = None;
            }
        }
        Ok(())
    }

    fn zero(&self, first: u64, count: u64, _keep: bool) -> Result<bool, Error> {
        self.discard(first, count).map(|()| true)
    }

    fn writes_zeros(&self, _keep: bool) -> bool {
        false
    }

    fn allocation(&self, first: u64, most: u64) -> Extent {
        let unknown = Extent { blocks: most, flags: 0 };
        self.extent(Context::Allocation, first, most).unwrap_or(unknown)
    }

    fn grow(&self, blocks: u64) -> Result<u64, Error> {
        let mut groups = self.groups.write();
        let blocks = blocks.max(self.blocks());
        groups.resize(
            usize::try_from(blocks.div_ceil(GROUP_BLOCKS as u64)).expect("the device fits the address space"),
            None,
        );
        self.blocks.store(blocks, Ordering::Release);
        Ok(blocks)
    }
}

/// Blocks that take no memory are holes.
impl Extents for MemoryDevice {
    fn extent(&self, context: Context, first: u64, most: u64) -> Result<Extent, Error> {
        check_request(&self.name, Operation::Read, self.blocks(), first, most.saturating_mul(BLOCK_SIZE as u64))?;
        if context != Context::Allocation {
            return Ok(Extent { blocks: most, flags: 0 });
        }
        let groups = self.groups.read();
        let is_hole = |at| find(&groups, at).is_none();
        let begins = is_hole(first);
        let blocks = (first + 1..first + most).take_while(|at| is_hole(*at) == begins).count() as u64 + 1;
        Ok(Extent { blocks, flags: if begins { HOLE | ZERO } else { 0 } })
    }

    fn zeros_ahead(&self, first: u64, most: u64) -> u64 {
        match self.extent(Context::Allocation, first, most) {
            Ok(Extent { blocks, flags }) if flags & ZERO != 0 => blocks,
            _ => 0,
        }
    }
}

fn advance(at: u64, within: usize, step: usize) -> (u64, usize) {
    if within + step == BLOCK_SIZE { (at + 1, 0) } else { (at, within + step) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(byte: u8, blocks: usize) -> Vec<u8> {
        vec![byte; blocks * BLOCK_SIZE]
    }

    fn get(device: &MemoryDevice, first: u64, blocks: usize) -> Vec<u8> {
        let mut out = fill(0xee, blocks);
        device.read(first, &mut [IoSliceMut::new(&mut out)]).unwrap();
        out
    }

    #[test]
    fn unwritten_blocks_read_as_zeros_and_writes_read_back() {
        let device = MemoryDevice::new(600);
        assert_eq!(get(&device, 0, 600), fill(0, 600));
        device.write(255, &[IoSlice::new(&fill(1, 1)), IoSlice::new(&fill(2, 2))]).unwrap();
        assert_eq!(get(&device, 254, 5), [fill(0, 1), fill(1, 1), fill(2, 2), fill(0, 1)].concat());
    }

    #[test]
    fn slices_need_not_end_on_block_boundaries() {
        let device = MemoryDevice::new(4);
        let data: Vec<u8> = (0..3 * BLOCK_SIZE).map(|at| (at / 7) as u8).collect();
        let (a, rest) = data.split_at(1000);
        let (b, c) = rest.split_at(5000);
        device.write(1, &[IoSlice::new(a), IoSlice::new(b), IoSlice::new(c)]).unwrap();
        let mut out = vec![0; data.len()];
        let (x, rest) = out.split_at_mut(7001);
        let (y, z) = rest.split_at_mut(1);
        device.read(1, &mut [IoSliceMut::new(x), IoSliceMut::new(y), IoSliceMut::new(z)]).unwrap();
        assert_eq!(out, data);
    }

    #[test]
    fn a_clone_is_independent_both_ways() {
        let device = MemoryDevice::new(512);
        device.write(3, &[IoSlice::new(&fill(1, 1))]).unwrap();
        let copy = device.clone();
        device.write(3, &[IoSlice::new(&fill(2, 1))]).unwrap();
        copy.write(4, &[IoSlice::new(&fill(3, 1))]).unwrap();
        assert_eq!(get(&device, 3, 2), [fill(2, 1), fill(0, 1)].concat());
        assert_eq!(get(&copy, 3, 2), [fill(1, 1), fill(3, 1)].concat());
    }

    #[test]
    fn bytes_in_bytes_out_and_the_tail_is_cut() {
        let mut bytes: Vec<u8> = (0..5 * BLOCK_SIZE).map(|at| (at / 100) as u8).collect();
        let device = MemoryDevice::from_bytes(&bytes);
        assert_eq!((device.blocks(), device.snapshot()), (5, bytes.clone()));
        bytes.push(1);
        assert_eq!(MemoryDevice::from_bytes(&bytes).blocks(), 5);
        assert_eq!(MemoryDevice::from_bytes(&bytes[..4095]).blocks(), 0);
    }

    #[test]
    fn discarded_blocks_read_as_zeros_and_keep_their_neighbours() {
        let device = MemoryDevice::new(300);
        device.write(0, &[IoSlice::new(&fill(9, 300))]).unwrap();
        let before = device.clone();
        device.discard(10, 250).unwrap();
        assert_eq!(get(&device, 9, 252), [fill(9, 1), fill(0, 250), fill(9, 1)].concat());
        assert_eq!(get(&before, 0, 300), fill(9, 300));
    }

    #[test]
    fn what_grows_keeps_its_contents_and_reads_as_zeros_behind() {
        let device = MemoryDevice::new(300);
        device.write(299, &[IoSlice::new(&fill(4, 1))]).unwrap();
        let before = device.clone();
        assert_eq!((device.grow(700).unwrap(), device.grow(0).unwrap(), device.blocks()), (700, 700, 700));
        assert_eq!(get(&device, 299, 401), [fill(4, 1), fill(0, 400)].concat());
        device.write(699, &[IoSlice::new(&fill(5, 1))]).unwrap();
        assert_eq!((before.blocks(), get(&device, 699, 1)), (300, fill(5, 1)));
    }

    #[test]
    fn bad_requests_are_refused_with_their_place() {
        let device = MemoryDevice::new(8).named("left");
        let error = device.write(7, &[IoSlice::new(&fill(0, 2))]).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { first: 7, length_bytes: 8192, blocks: 8, .. }));
        assert_eq!(error.to_string(), "left: write out of range at block 7 (8192 bytes): the device has 8 blocks");
        assert!(matches!(
            device.read(u64::MAX, &mut [IoSliceMut::new(&mut fill(0, 1))]),
            Err(Error::OutOfRange { .. })
        ));
        assert!(matches!(device.write(0, &[]), Err(Error::Misaligned { length_bytes: 0, .. })));
        assert!(matches!(
            device.write(0, &[IoSlice::new(&[0; 100])]),
            Err(Error::Misaligned { length_bytes: 100, .. })
        ));
        assert!(matches!(device.discard(1, u64::MAX), Err(Error::OutOfRange { .. } | Error::Misaligned { .. })));
        assert!(matches!(device.discard(1, 8), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn a_shared_block_is_unshared_by_the_next_write() {
        let device = MemoryDevice::new(300);
        let block = Arc::new([6; BLOCK_SIZE]);
        device.share(299, Arc::clone(&block)).unwrap();
        assert_eq!(get(&device, 298, 2), [fill(0, 1), fill(6, 1)].concat());
        device.alter(299, |block| block[0] = 7).unwrap();
        assert_eq!((block[0], get(&device, 299, 1)[0]), (6, 7));
        assert!(device.share(300, block).is_err());
    }

    #[test]
    fn alter_changes_one_block_in_place() {
        let device = MemoryDevice::new(2);
        device.alter(1, |block| block[5] ^= 4).unwrap();
        assert_eq!(get(&device, 1, 1)[5], 4);
        assert!(device.alter(2, |_| ()).is_err());
    }
}
