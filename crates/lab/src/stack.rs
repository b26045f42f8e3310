//! The whole stack in one process, on any device, single-threaded, with a clock that stands still: what the model tests,
//! the crash explorer and the fault matrix run.
//!
//! ```text
//!  device ─ physical Module ─ Logical ─ Cache ─ Namespace
//! ```

use holdfast_block::Device;
use holdfast_cache::{Cache, FlipError, FlipPart, Recovered};
use holdfast_integrity::{Algorithm, Protection};
use holdfast_logical::Logical;
use holdfast_naming::{Atime, Namespace};
use holdfast_object::{
    Arena, Clock, DomainId, Error, ManualClock, ObjectCache, ObjectId, ObjectStore, PageIndex, Result, Snapshots,
};
use holdfast_physical::{CreateOptions, Module, OpenOptions};
use std::sync::Arc;

/// Nanoseconds after 1970 at which the lab's time begins: 2020-01-01.
const START_NS: u64 = 1_577_836_800_000_000_000;

/// How a stack is put together.
#[derive(Clone, Debug)]
pub struct StackOptions {
    /// Page frames of 4 KiB.
    pub frames: u32,
    /// Bytes of the operation log.
    pub log_bytes: usize,
    /// Limits of the cache.
    pub cache: holdfast_cache::Options,
    /// How the physical module is opened.
    pub physical: OpenOptions,
    /// Times of last access.
    pub atime: Atime,
}

impl StackOptions {
    /// With a pool of so many page frames.
    pub fn new(frames: u32) -> StackOptions {
        StackOptions {
            frames,
            log_bytes: 512 << 10,
            // Exactly what is needed is reserved, so that what goes beyond it is seen.
            cache: holdfast_cache::Options { reserve_step_blocks: 0, ..holdfast_cache::Options::for_frames(frames) },
            physical: OpenOptions { node_cache_bytes: 1 << 20, ..OpenOptions::default() },
            atime: Atime::Relative,
        }
    }
}

/// One of the protection modes, for runs by seed.
pub fn mode_of(seed: u64) -> Protection {
    const MODES: [Protection; 8] = [
        Protection::Uniform,
        Protection::Static { strong: false },
        Protection::Dynamic { t_switch_s: 3 },
        Protection::Disk,
        Protection::EndToEnd(Algorithm::Fletcher256),
        Protection::None,
        Protection::EndToEnd(Algorithm::Xor64),
        Protection::Static { strong: true },
    ];
    MODES[(seed % MODES.len() as u64) as usize]
}

/// A stack that is open. Dropped without [`Stack::close`], it is as after `kill -9`.
pub struct Stack {
    /// The layer on the device.
    pub module: Arc<Module>,
    /// The layer above.
    pub cache: Arc<Cache>,
    /// Where the cache's pages are.
    pub arena: Arc<Arena>,
    /// What opening found.
    pub recovered: Recovered,
    /// Everybody's time.
    pub clock: Arc<ManualClock>,
}

/// A clock for a stack: it stands still until it is moved.
pub fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(START_NS, 0))
}

/// Makes a store with an empty root directory, and closes it.
///
/// # Errors
/// Those of the layers.
pub fn create(device: Arc<dyn Device>, clock: &Arc<ManualClock>) -> Result<()> {
    create_with(device, clock, Protection::Uniform)
}

/// The same, in a protection mode.
///
/// # Errors
/// Those of the layers.
pub fn create_with(device: Arc<dyn Device>, clock: &Arc<ManualClock>, protection: Protection) -> Result<()> {
    create_reserving(device, clock, protection, 0)
}

/// The same, with blocks that only root may fill.
///
/// # Errors
/// Those of the layers.
pub fn create_reserving(
    device: Arc<dyn Device>,
    clock: &Arc<ManualClock>,
    protection: Protection,
    set_aside_blocks: u64,
) -> Result<()> {
    let options = StackOptions::new(64);
    let arena = arena(&options)?;
    let store = CreateOptions {
        set_aside_blocks,
        protection,
        ..CreateOptions::new(*b"holdfast lab 001", *b"holdfast lab d01")
    };
    Module::create(device.clone(), arena, clock.clone(), &store)?;
    let stack = Stack::open(device, &options, clock)?;
    let namespace = stack.namespace(Atime::Relative);
    namespace.initialise(0, 0, 0o755).map_err(|error| Error::Protocol(error.to_string()))?;
    stack.close()
}

impl Stack {
    /// Opens the store on `device`: what a mount after a power cut does, without reclaiming what has no name.
    ///
    /// # Errors
    /// Those of the layers.
    pub fn open(device: Arc<dyn Device>, options: &StackOptions, clock: &Arc<ManualClock>) -> Result<Stack> {
        Stack::open_between(device, options, clock, |module| module)
    }

    /// The same, with something between the module and the layers above.
    ///
    /// # Errors
    /// Those of the layers.
    pub fn open_between(
        device: Arc<dyn Device>,
        options: &StackOptions,
        clock: &Arc<ManualClock>,
        between: impl FnOnce(Arc<Module>) -> Arc<dyn ObjectStore>,
    ) -> Result<Stack> {
        let arena = arena(options)?;
        let module = Arc::new(Module::open(device, arena.clone(), clock.clone(), &options.physical)?);
        let logical =
            Logical::assemble(vec![between(module.clone())]).map_err(|error| Error::Protocol(error.to_string()))?;
        let store: Arc<dyn ObjectStore> = Arc::new(logical);
        let (cache, recovered) =
            Cache::open(store, arena.clone(), clock.clone(), DomainId::MAIN, options.cache.clone())?;
        Ok(Stack { module, cache: Arc::new(cache), arena, recovered, clock: clock.clone() })
    }

    /// Inverts bits of a page in memory, past everything that looks after it.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the page is not in memory.
    pub fn flip(&self, object: ObjectId, index: PageIndex, bits: &[u32]) -> Result<()> {
        let quiet = self.cache.quiet();
        let pages = quiet.resident_pages(|id, _| id == object);
        let page = pages.iter().find(|page| page.index == index).ok_or(FlipError::NotInMemory);
        let flipped = page.and_then(|page| quiet.flip(page, FlipPart::Bytes, bits));
        flipped.map_err(|error| Error::Protocol(format!("page {index} of object {object}: {error}")))
    }

    /// Frees all that deleted snapshots had.
    ///
    /// # Errors
    /// Those of the store.
    pub fn free_deleted(&self) -> Result<()> {
        while !self.cache.snapshot_delete_more()?.is_empty() {}
        Ok(())
    }

    /// A name space on the stack's cache, with its snapshots.
    pub fn namespace(&self, atime: Atime) -> Arc<Namespace> {
        self.namespace_on(self.cache.clone(), atime)
    }

    /// A name space on something that stands between it and the stack's cache.
    pub fn namespace_on(&self, cache: Arc<dyn ObjectCache>, atime: Atime) -> Arc<Namespace> {
        let options = holdfast_naming::Options { atime, seed: 7, ..holdfast_naming::Options::default() };
        let clock: Arc<dyn Clock> = self.clock.clone();
        let snapshots: Arc<dyn Snapshots> = self.cache.clone();
        Arc::new(Namespace::new(cache, clock, options).with_snapshots(snapshots))
    }

    /// Asserts the invariants of the cache, that no epoch took more blocks than were reserved for it, and that each was held against what requests have
    /// proved.
    ///
    /// # Errors
    /// In words, if one did.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.cache.check();
        let unproved = self.cache.status().epochs_unproved;
        if unproved > 0 {
            return Err(format!("{unproved} epochs were not held against what requests have proved"));
        }
        match self.module.blocks_beyond_reservation() {
            0 => Ok(()),
            beyond => Err(format!("an epoch took {beyond} blocks more than were reserved for it")),
        }
    }

    /// Writes everything and leaves the store in order.
    ///
    /// # Errors
    /// Those of the layers.
    pub fn close(&self) -> Result<()> {
        self.cache.close()
    }
}

fn arena(options: &StackOptions) -> Result<Arc<Arena>> {
    Arena::new(options.frames, options.log_bytes).map_err(|error| Error::Protocol(format!("arena: {error}")))
}
