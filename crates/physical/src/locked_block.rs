//! Memory for blocks of metadata. Where the process protects it ([`holdfast_guard`]), it is locked: bytes change in windows only, and what
//! else writes there faults.
//!
//! Blocks are cut from slabs, as those of [`crate::block_pool`] are. A slab is a region of its own, and begins at a multiple of its size, so that it is
//! found from the address of any byte in it. Its first blocks are a table of what the others are ([`Identity`]): it says which block a
//! stray write was aimed at, to a signal handler too, which can take no lock; and by it the node cache's clock finds what it points to.
//!
//! Invariants: a block is either in `FREE` or owned by exactly one [`LockedBlock`], and `OWNED` says how many are; bytes and identity of a block change
//! only by its owner, in a window.

use crate::disk::Block;
use crate::meta_block::NodeKey;
use holdfast_guard::{self as guard, Region};
use parking_lot::Mutex;
use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a slab, and what its first address is a multiple of.
const SLAB_BYTES: usize = 2 << 20;
/// Blocks in a slab, those of the table too.
const SLAB_BLOCKS: usize = SLAB_BYTES / size_of::<Block>();
/// Blocks that the table takes.
const TABLE_BLOCKS: usize = (SLAB_BLOCKS * size_of::<Identity>()).div_ceil(size_of::<Block>());

/// What reports call the memory.
const REGION: &str = "metadata blocks";

/// Stands for the label, which is in no tree; no domain has the number.
pub(crate) const LABEL: NodeKey = NodeKey { domain: u16::MAX, object: 0, level: 0, index: 0 };
/// The same for a superblock.
pub(crate) const SUPERBLOCK: NodeKey = NodeKey { object: 1, ..LABEL };
/// The same for what is in no memory of blocks.
const NOWHERE: NodeKey = NodeKey { object: u64::MAX, ..LABEL };

/// A block that nobody owns.
struct Free(NonNull<Block>);

// SAFETY: the memory behind it belongs to nobody else, and no thread is special to it.
unsafe impl Send for Free {}

static FREE: Mutex<Vec<Free>> = Mutex::new(Vec::new());

/// Changes with `FREE` locked, and is read without: by an allocator, too, which may be asked for memory for `FREE`.
static OWNED: AtomicU64 = AtomicU64::new(0);

/// Blocks of metadata that this process has in memory, of all its stores: clean, changed, and on their way to a device. For measurements.
pub fn metadata_blocks() -> u64 {
    OWNED.load(Ordering::Relaxed)
}

/// Bits of an address that the system gives a process: on x86-64 the lower half of 48, elsewhere all of them.
const ADDRESS_BITS: u32 = if cfg!(target_arch = "x86_64") { 47 } else { 48 };
/// Slabs that there is room for.
const SLABS_MAX: usize = (1 << ADDRESS_BITS) / SLAB_BYTES;

/// Which of them there are, bit by bit: what an address in ordinary memory says is believed only of these. 8 MiB (or 16), of which the system has to find
/// those pages that have a bit.
static SLABS: [AtomicU64; SLABS_MAX / 64] = [const { AtomicU64::new(0) }; SLABS_MAX / 64];

/// Whether there is memory of blocks at an address, and not of a table.
#[inline]
fn is_of_a_block(address: usize) -> bool {
    let (slab, offset) = (address / SLAB_BYTES, address % SLAB_BYTES);
    let is_there = SLABS.get(slab / 64).is_some_and(|slabs| slabs.load(Ordering::Relaxed) >> (slab % 64) & 1 == 1);
    is_there && offset >= TABLE_BLOCKS * size_of::<Block>()
}

/// Which block is in a place of a slab, and where it is on the device. Whoever reads it while it changes may see some of both.
struct Identity {
    object: AtomicU64,
    /// [`IN_USE`], level, domain and index, from the highest bit down.
    within: AtomicU64,
    /// 0: nowhere yet.
    address: AtomicU64,
}

const IN_USE: u64 = 1 << 63;
const LEVEL_BITS: u32 = 7;
const INDEX_BITS: u32 = 40;

impl Identity {
    /// Of the block in which an address lies that is in a slab.
    fn of(address: usize) -> &'static Identity {
        let (slab, offset) = (address / SLAB_BYTES * SLAB_BYTES, address % SLAB_BYTES);
        let table = ptr::with_exposed_provenance::<Identity>(slab);
        // SAFETY: every slab begins with a table of as many identities as it has blocks, which is zeros at first; it is never freed, and
        // changes as atomics do.
        unsafe { &*table.add(offset / size_of::<Block>()) }
    }

    /// Of a block that begins at an address; none if no block of a slab does.
    #[inline]
    fn of_start(address: usize) -> Option<&'static Identity> {
        (address.is_multiple_of(size_of::<Block>()) && is_of_a_block(address)).then(|| Identity::of(address))
    }

    /// Where a block is within its object, and that it is in use.
    fn within(key: NodeKey) -> u64 {
        let level = u64::from(key.level) & ((1 << LEVEL_BITS) - 1);
        // As far as trees go, and further.
        let index = key.index & ((1 << INDEX_BITS) - 1);
        IN_USE | level << (64 - 1 - LEVEL_BITS) | u64::from(key.domain) << INDEX_BITS | index
    }

    fn is_of(&self, key: NodeKey) -> bool {
        self.within.load(Ordering::Relaxed) == Identity::within(key)
            && self.object.load(Ordering::Relaxed) == key.object
    }

    /// In a window.
    fn put(&self, key: NodeKey, address: u64) {
        self.object.store(key.object, Ordering::Relaxed);
        self.within.store(Identity::within(key), Ordering::Relaxed);
        self.address.store(address, Ordering::Relaxed);
    }

    fn get(&self) -> (NodeKey, u64) {
        let within = self.within.load(Ordering::Relaxed);
        let key = NodeKey {
            domain: (within >> INDEX_BITS) as u16,
            object: self.object.load(Ordering::Relaxed),
            level: (within >> (64 - 1 - LEVEL_BITS)) as u8 & ((1 << LEVEL_BITS) - 1),
            index: within & ((1 << INDEX_BITS) - 1),
        };
        (key, self.address.load(Ordering::Relaxed))
    }

    fn is_in_use(&self) -> bool {
        self.within.load(Ordering::Relaxed) & IN_USE != 0
    }

    /// In a window, by the owner.
    fn freed(&self) {
        self.within.store(self.within.load(Ordering::Relaxed) & !IN_USE, Ordering::Relaxed);
    }
}

/// A block of its own, aligned for direct I/O. It can be written to a device from here, and is read into a buffer elsewhere: the kernel
/// knows no windows.
pub(crate) struct LockedBlock {
    start: NonNull<Block>,
}

// SAFETY: it owns its memory exclusively, as a box does, and bytes have no thread affinity.
unsafe impl Send for LockedBlock {}
// SAFETY: shared access only reads, but for the identity, which is atomic.
unsafe impl Sync for LockedBlock {}

impl LockedBlock {
    pub(crate) fn zeroed(key: NodeKey) -> LockedBlock {
        LockedBlock::take(key, 0, |block| {
            // SAFETY: all of it is this block's, which nobody else has.
            unsafe { block.start.as_ptr().write_bytes(0, 1) };
        })
    }

    /// With a copy of `bytes`, which are those of that block at `address`.
    pub(crate) fn new(bytes: &[u8; 4096], key: NodeKey, address: u64) -> LockedBlock {
        LockedBlock::take(key, address, |block| block.write(0, bytes))
    }

    /// One that nobody has, which is that block's from now on; `fill`, in a window, gives it bytes in place of those of the last owner.
    fn take(key: NodeKey, address: u64, fill: impl FnOnce(&mut LockedBlock)) -> LockedBlock {
        guard::open(|| {
            loop {
                let mut free = FREE.lock();
                if free.is_empty() {
                    free.extend(new_slab());
                }
                let Free(start) = free.pop().expect("a slab was added");
                let mut block = LockedBlock { start };
                // The list is in ordinary memory: it may have a block twice. The second one to get it finds that it is in use.
                match Identity::of_start(start.as_ptr().addr()).filter(|identity| !identity.is_in_use()) {
                    Some(identity) => {
                        identity.put(key, address);
                        OWNED.store(metadata_blocks() + 1, Ordering::Relaxed);
                        drop(free);
                        fill(&mut block);
                        return block;
                    }
                    None => {
                        drop(free);
                        tracing::error!(address = ?start, "an address in the list of free memory is none of that: left alone");
                        block.forget();
                    }
                }
            }
        })
    }

    /// Puts bytes at an offset, in a window. Where its address is none of a block that is in use, nowhere: who verifies it finds out.
    #[inline]
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= size_of::<Block>() && bytes.len() <= size_of::<Block>() - at, "{} bytes at {at}", bytes.len());
        if self.resident().is_none() {
            return;
        }
        let start = self.start.as_ptr().cast::<u8>();
        // SAFETY: within the block, which is exclusively this one's, so that the bytes are elsewhere. The pointer is that of the region and no
        // reference: the compiler leaves the bytes inside the window.
        guard::open(|| unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(at), bytes.len()) });
    }

    /// What nobody may do: see [`crate::scribble`]. Inverts bits, in a window, as it stands for what no lock keeps out. `astray`: outside of
    /// any window, which ends the process where the memory is locked.
    pub(crate) fn scribble(&mut self, at: usize, pattern: &[u8], astray: bool) {
        let scribbled: Vec<u8> = self.0[at..].iter().zip(pattern).map(|(byte, flipped)| byte ^ flipped).collect();
        match astray {
            true => scribbled.iter().enumerate().for_each(|(nth, byte)| self.write_astray(at + nth, *byte)),
            false => self.write(at, &scribbled),
        }
    }

    /// A function of its own, to be found in reports.
    #[inline(never)]
    fn write_astray(&mut self, at: usize, byte: u8) {
        assert!(at < size_of::<Block>());
        // SAFETY: within the block, which is exclusively this one's. Where it is locked, the write faults, which is what it is for.
        unsafe { self.start.as_ptr().cast::<u8>().add(at).write_volatile(byte) };
    }

    /// What the memory itself says of the block that is there: none if it is not memory of a block that is in use. The address is in ordinary memory,
    /// and may have gone bad.
    #[inline]
    fn resident(&self) -> Option<&'static Identity> {
        Identity::of_start(self.start.as_ptr().expose_provenance()).filter(|identity| identity.is_in_use())
    }

    /// Whether the memory says that it is that block's.
    ///
    /// # Errors
    /// Which one's it is, if any's.
    #[inline]
    pub(crate) fn is_home_of(&self, key: NodeKey) -> Result<(), Option<NodeKey>> {
        match self.resident() {
            Some(identity) if identity.is_of(key) => Ok(()),
            other => Err(other.map(|identity| identity.get().0)),
        }
    }

    /// Which block's the memory is by what it says itself, if any's.
    pub(crate) fn home_of(&self) -> Option<NodeKey> {
        guard::admit_thread();
        self.resident().map(|identity| identity.get().0)
    }

    /// The memory may be another block's: it is left alone from now on.
    pub(crate) fn forget(&mut self) {
        self.start = NonNull::dangling();
    }

    #[cfg(test)]
    pub(crate) fn misplace(&mut self, address: usize) {
        self.start = NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("an address");
    }

    /// It is at this address on the device from now on.
    pub(crate) fn put_address(&self, address: u64) {
        let Some(Identity { address: known, .. }) = self.resident() else { return };
        if known.load(Ordering::Relaxed) != address {
            guard::open(|| known.store(address, Ordering::Relaxed));
        }
    }

    /// Which memory it is, for as long as it lives.
    pub(crate) fn slot(&self) -> Slot {
        Slot(self.start.as_ptr().expose_provenance())
    }
}

impl Drop for LockedBlock {
    fn drop(&mut self) {
        let was_resident = guard::open(|| self.resident().map(Identity::freed).is_some());
        if was_resident {
            let mut free = FREE.lock();
            free.push(Free(self.start));
            OWNED.store(metadata_blocks().saturating_sub(1), Ordering::Relaxed);
        }
    }
}

impl Deref for LockedBlock {
    type Target = Block;

    fn deref(&self) -> &Block {
        // SAFETY: initialised memory of a slab, aligned, owned by self alone (the module's invariant).
        unsafe { self.start.as_ref() }
    }
}

impl Clone for LockedBlock {
    fn clone(&self) -> LockedBlock {
        match self.resident() {
            Some(identity) => {
                let (key, address) = identity.get();
                LockedBlock::new(&self.0, key, address)
            }
            // There may be no memory to read.
            None => LockedBlock::zeroed(NOWHERE),
        }
    }
}

/// A new slab's blocks.
fn new_slab() -> impl Iterator<Item = Free> {
    let slab = match Region::aligned(REGION, SLAB_BYTES, SLAB_BYTES) {
        // For as long as the process lives.
        Ok(region) => std::mem::ManuallyDrop::new(region).as_ptr().cast::<Block>(),
        Err(error) => {
            tracing::error!(%error, "no memory for metadata");
            handle_alloc_error(Layout::new::<[Block; SLAB_BLOCKS]>());
        }
    };
    let number = slab.addr() / SLAB_BYTES;
    let slabs = SLABS.get(number / 64).expect("the system gives addresses of so many bits");
    slabs.fetch_or(1 << (number % 64), Ordering::Relaxed);
    (TABLE_BLOCKS..SLAB_BLOCKS).map(move |at| {
        // SAFETY: within the slab, and so not null.
        Free(unsafe { NonNull::new_unchecked(slab.add(at)) })
    })
}

/// A place that a block was in. Others may be there by now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Slot(usize);

impl Slot {
    /// Which block is there now, or was last.
    pub(crate) fn identity(self) -> (NodeKey, u64) {
        Identity::of_start(self.0).map_or((NOWHERE, 0), Identity::get)
    }
}

/// For [`guard::report_faults`]: tells which block a stray write was aimed at.
pub fn tell_aim(fault: &guard::Fault<'_>) {
    if fault.place.region == REGION {
        guard::tell(format_args!("holdfast: it was aimed at {}", Aim::at(fault.address)));
    }
}

/// What a stray write was aimed at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Aim {
    what: What,
    /// The byte of the block.
    byte: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// The table of what the blocks are.
    Table,
    /// A block, which is at an address on the device, or at none yet.
    Block(NodeKey, u64),
    /// A block that is not in use any more.
    Freed(NodeKey, u64),
    /// A block that was never in use.
    Unused,
}

impl Aim {
    /// Of an address in a slab. Takes no lock and no memory: called in a signal handler.
    fn at(address: usize) -> Aim {
        let byte = address % size_of::<Block>();
        let identity = Identity::of(address);
        let what = match identity.get() {
            _ if address % SLAB_BYTES / size_of::<Block>() < TABLE_BLOCKS => What::Table,
            (key, address) if identity.is_in_use() => What::Block(key, address),
            (NodeKey { domain: 0, object: 0, level: 0, index: 0 }, 0) => What::Unused,
            (key, address) => What::Freed(key, address),
        };
        Aim { what, byte }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, address, was) = match self.what {
            What::Table => return f.write_str("the table of what the blocks are"),
            What::Unused => return f.write_str("a block that was never in use"),
            What::Block(key, address) => (key, address, ""),
            What::Freed(key, address) => (key, address, ", which was freed"),
        };
        let NodeKey { level, index, .. } = key;
        match key {
            LABEL => return write!(f, "byte {} of the label{was}", self.byte),
            SUPERBLOCK => return write!(f, "byte {} of a superblock{was}", self.byte),
            _ => write!(f, "byte {} of the block of {}, level {level}, index {index}", self.byte, key.object_key())?,
        }
        match address {
            0 => f.write_str(", not on the device yet")?,
            address => write!(f, ", block {} of the device", crate::format::split_address(address).1)?,
        }
        f.write_str(was)
    }
}

#[cfg(test)]
mod stray_writes;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const KEY: NodeKey = NodeKey { domain: 1, object: 0xFFFF_0000_1234_5678, level: 6, index: (1 << 36) - 1 };

    fn told(block: &LockedBlock, byte: usize) -> String {
        Aim::at(block.0.as_ptr().addr() + byte).to_string()
    }

    #[test]
    fn blocks_are_apart_aligned_and_zeroed_when_used_again() {
        for round in 0..3 {
            let mut blocks: Vec<LockedBlock> = (0..2 * SLAB_BLOCKS).map(|_| LockedBlock::zeroed(KEY)).collect();
            let addresses: BTreeSet<usize> = blocks.iter().map(|block| block.0.as_ptr().addr()).collect();
            assert_eq!(addresses.len(), blocks.len(), "round {round}");
            assert!(addresses.iter().all(|address| address.is_multiple_of(4096)));
            assert!(blocks.iter().all(|block| block.0 == [0; 4096]));
            blocks.iter_mut().enumerate().for_each(|(at, block)| block.write(0, &[(at % 251) as u8; 4096]));
            let copies = blocks.clone();
            blocks.iter_mut().for_each(|block| block.write(0, &[0xff; 4096]));
            assert!(copies.iter().enumerate().all(|(at, block)| block.0 == [(at % 251) as u8; 4096]));
        }
    }

    #[test]
    fn each_block_says_which_one_it_is() {
        let keys = [
            KEY,
            NodeKey { domain: 0, object: 3, level: 0, index: 70_000 },
            NodeKey { domain: u16::MAX, object: u64::MAX, level: 0, index: 0 },
        ];
        let blocks: Vec<LockedBlock> = keys.iter().map(|key| LockedBlock::zeroed(*key)).collect();
        for (block, key) in blocks.iter().zip(keys) {
            assert_eq!(block.slot().identity(), (key, 0));
            block.put_address(1 << 40);
            assert_eq!(block.slot().identity(), (key, 1 << 40));
            let copy = block.clone();
            assert_eq!(copy.slot().identity(), (key, 1 << 40));
            assert_ne!(copy.slot(), block.slot());
        }
    }

    #[test]
    fn what_a_write_was_aimed_at_is_told() {
        let key = NodeKey { domain: 1, object: 77, level: 2, index: 5 };
        let block = LockedBlock::zeroed(key);
        assert_eq!(told(&block, 9), "byte 9 of the block of object 1:77, level 2, index 5, not on the device yet");
        block.put_address(4711);
        let of = "byte 4095 of the block of object 1:77, level 2, index 5, block 4711 of the device";
        assert_eq!(told(&block, 4095), of);
        let label = LockedBlock::new(&[0; 4096], LABEL, 0);
        assert_eq!(told(&label, 3), "byte 3 of the label");
        let slab = block.0.as_ptr().addr() / SLAB_BYTES * SLAB_BYTES;
        assert_eq!(Aim::at(slab + 100).to_string(), "the table of what the blocks are");
    }

    #[test]
    fn a_freed_block_is_told_as_one() {
        let identity = Identity { object: AtomicU64::new(0), within: AtomicU64::new(0), address: AtomicU64::new(0) };
        identity.put(KEY, 7);
        assert!(identity.is_in_use());
        identity.freed();
        assert!(!identity.is_in_use());
        assert_eq!(identity.get(), (KEY, 7));
        let aim = Aim { what: What::Freed(KEY, 7), byte: 1 };
        assert!(aim.to_string().ends_with("block 7 of the device, which was freed"), "{aim}");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095")]
    fn nothing_is_written_beyond_a_block() {
        LockedBlock::zeroed(KEY).write(4095, &[1, 2]);
    }

    #[test]
    fn a_list_of_free_memory_that_has_gone_bad_gives_nobody_s() {
        let used = LockedBlock::new(&[7; 4096], KEY, 0);
        let ordinary = Block::zeroed();
        let taken = [ordinary.0.as_ptr(), used.0.as_ptr()].map(|bytes| bytes.expose_provenance());
        let within = used.0.as_ptr().addr() + 64;
        let table = within / SLAB_BYTES * SLAB_BYTES;
        for address in taken.into_iter().chain([within, table, 4096, 1 << 62]) {
            let start = NonNull::new(ptr::with_exposed_provenance_mut(address)).unwrap();
            FREE.lock().push(Free(start));
            let blocks: Vec<LockedBlock> = (0..10).map(|_| LockedBlock::new(&[9; 4096], KEY, 0)).collect();
            assert!(blocks.iter().all(|block| block.0.as_ptr().addr() != address), "{address:#x}");
        }
        assert!(used.0 == [7; 4096] && ordinary.0 == [0; 4096]);
    }

    /// Other tests have blocks, too, but not a GiB of them.
    #[test]
    fn blocks_count_while_they_have_an_owner() {
        const MANY: u64 = 1 << 18;
        let kept: Vec<LockedBlock> = (0..256).map(|_| LockedBlock::zeroed(KEY)).collect();
        (0..MANY).for_each(|_| drop(LockedBlock::zeroed(KEY)));
        let counted = metadata_blocks();
        assert!((kept.len() as u64..MANY).contains(&counted), "{counted} blocks");
    }

    #[test]
    fn threads_share_the_memory() {
        std::thread::scope(|scope| {
            for thread in 1..5_u8 {
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let mut block = LockedBlock::zeroed(KEY);
                        block.write(0, &[thread; 4096]);
                        let copy = block.clone();
                        assert!(block.0 == [thread; 4096] && copy.0 == [thread; 4096]);
                    }
                });
            }
        });
    }
}
