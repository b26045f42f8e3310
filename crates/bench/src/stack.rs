//! All layers of a store in this process, as in `crates/cli/src/stack.rs`, for a program that brings no mount. No thread writes epochs
//! here: whoever writes and syncs does, so that its CPU time is that of the whole.

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use holdfast_block::Device;
use holdfast_cache::{Cache, Options as CacheOptions};
use holdfast_integrity::Protection;
use holdfast_logical::Logical;
use holdfast_naming::{Atime, Namespace, Options as NamingOptions};
use holdfast_object::{Arena, Clock, DomainId, PAGE_SIZE};
use holdfast_physical::{CreateOptions, MetadataProtection, Module, OpenOptions};

/// Bytes for the store's metadata, beside the pool.
const NODE_CACHE_BYTES: usize = 16 << 20;

/// The upper two layers, which hold the others, and the lowest.
pub(crate) struct Stack {
    pub(crate) module: Arc<Module>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) namespace: Arc<Namespace>,
}

/// How a store is used.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) mode: Protection,
    /// How blocks of metadata are protected.
    pub(crate) metadata: MetadataProtection,
    /// Whether transactions of names are audited.
    pub(crate) audits_names: bool,
    /// Memory for file contents.
    pub(crate) pool_bytes: u64,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Options {
    /// With metadata protected as everywhere.
    pub(crate) fn new(mode: Protection, pool_bytes: u64, clock: Arc<dyn Clock>) -> Options {
        Options { mode, metadata: MetadataProtection::default(), audits_names: true, pool_bytes, clock }
    }
}

impl Stack {
    /// Opens the store on a device.
    pub(crate) fn open(device: Arc<dyn Device>, options: &Options) -> io::Result<Stack> {
        let Options { mode, metadata, audits_names, pool_bytes, clock } = options.clone();
        let frames = u32::try_from(pool_bytes / PAGE_SIZE as u64).map_err(io::Error::other)?;
        let log_bytes = (pool_bytes / 16).clamp(2 << 20, 32 << 20) as usize;
        let arena = Arena::new(frames, log_bytes).map_err(other)?;
        let options = OpenOptions {
            node_cache_bytes: NODE_CACHE_BYTES,
            protection: Some(mode),
            metadata,
            ..OpenOptions::default()
        };
        let module = Arc::new(Module::open(device, arena.clone(), clock.clone(), &options).map_err(other)?);
        let store = Arc::new(Logical::assemble(vec![module.clone()]).map_err(other)?);
        let limits = CacheOptions::for_frames(frames);
        let (cache, _) = Cache::open(store, arena, clock.clone(), DomainId::MAIN, limits).map_err(other)?;
        let cache = Arc::new(cache);
        let options = NamingOptions { atime: Atime::Relative, unaudited: !audits_names, ..NamingOptions::default() };
        let namespace = Arc::new(Namespace::new(cache.clone(), clock, options));
        Ok(Stack { module, cache, namespace })
    }

    /// Makes a store with an empty root directory, and opens it.
    pub(crate) fn create(device: Arc<dyn Device>, options: &Options) -> io::Result<Stack> {
        // One of them is open at a time on its device: nobody tells them apart by these.
        let create = CreateOptions {
            store_uuid: *b"holdfast bench 1",
            device_uuid: *b"holdfast bench d",
            set_aside_blocks: 0,
            protection: options.mode,
            // Whoever gives a device gives all of it.
            overwrite: true,
        };
        let arena = Arena::new(64, 1 << 20).map_err(other)?;
        Module::create(device.clone(), arena, options.clock.clone(), &create).map_err(other)?;
        let stack = Stack::open(device, options)?;
        stack.namespace.initialise(0, 0, 0o755).map_err(other)?;
        Ok(stack)
    }

    /// Writes everything out.
    pub(crate) fn close(self) -> io::Result<()> {
        self.cache.close().map_err(other)
    }
}

/// Errors of all layers in one type.
pub(crate) fn other(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}
