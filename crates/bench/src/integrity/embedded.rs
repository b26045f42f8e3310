//! All layers of a store in this process, as in `crates/cli/src/stack.rs`, for a program that brings no mount. No thread writes epochs
//! here: whoever writes and syncs does, so that its CPU time is that of the whole.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_block::{Access as DeviceAccess, FileDevice};
use holdfast_cache::{Cache, Options as CacheOptions};
use holdfast_integrity::Protection;
use holdfast_logical::Logical;
use holdfast_naming::{Atime, Namespace, Options as NamingOptions, Request};
use holdfast_object::{Arena, Clock, DomainId, ObjectId, PAGE_SIZE, SystemClock};
use holdfast_physical::{Module, OpenOptions};

use super::access::{Access, Embedded};
use super::{DATA, Subject, Way, forget_pages};
use crate::error::{At, Result};

/// Bytes for the store's metadata, beside the pool.
const NODE_CACHE_BYTES: usize = 16 << 20;

/// A store that is open in this process.
pub(super) struct Stack {
    store: PathBuf,
    mode: Protection,
    pool_bytes: u64,
    open: Option<Open>,
}

struct Open {
    cache: Arc<Cache>,
    namespace: Arc<Namespace>,
}

impl Stack {
    /// Opens an existing store that nobody has mounted, with a pool of so many bytes.
    pub(super) fn open(store: &Path, mode: Protection, pool_bytes: u64) -> Result<Stack> {
        let mut stack = Stack { store: store.to_path_buf(), mode, pool_bytes, open: None };
        stack.open = Some(stack.assemble().at("open", store)?);
        Ok(stack)
    }

    fn assemble(&self) -> io::Result<Open> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let frames = u32::try_from(self.pool_bytes / PAGE_SIZE as u64).map_err(io::Error::other)?;
        let log_bytes = (self.pool_bytes / 32).clamp(1 << 20, 16 << 20) as usize;
        let arena = Arena::new(frames, log_bytes).map_err(other)?;
        let device = Arc::new(FileDevice::open(&self.store, DeviceAccess::ReadWrite).map_err(other)?);
        let options =
            OpenOptions { node_cache_bytes: NODE_CACHE_BYTES, protection: Some(self.mode), ..OpenOptions::default() };
        let module = Module::open(device, arena.clone(), clock.clone(), &options).map_err(other)?;
        let store = Arc::new(Logical::assemble(vec![Arc::new(module)]).map_err(other)?);
        let limits = CacheOptions::for_frames(frames);
        let (cache, _) = Cache::open(store, arena, clock.clone(), DomainId::MAIN, limits).map_err(other)?;
        let cache = Arc::new(cache);
        let options = NamingOptions { atime: Atime::Relative, ..NamingOptions::default() };
        let namespace = Arc::new(Namespace::new(cache.clone(), clock, options));
        Ok(Open { cache, namespace })
    }

    fn close(&mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => open.cache.close().map_err(other).at("close", &self.store),
            None => Ok(()),
        }
    }

    fn running(&self) -> Result<&Open> {
        self.open.as_ref().ok_or_else(|| other("it is closed")).at("use", &self.store)
    }
}

impl Subject for Stack {
    fn file(&self, way: Way) -> Result<Box<dyn Access>> {
        let namespace = self.running()?.namespace.clone();
        let found = namespace.lookup(&Request::ROOT, ObjectId::ROOT, DATA.as_bytes()).map_err(other);
        let sums = (way == Way::EmbeddedSums).then(|| self.mode.memory());
        Ok(Box::new(Embedded { namespace, id: found.at("look up data in", &self.store)?.id, sums }))
    }

    fn settle(&self) -> Result<()> {
        self.running()?.namespace.sync_all().map_err(other).at("sync", &self.store).map(drop)
    }

    fn restart(&mut self) -> Result<()> {
        self.close()?;
        forget_pages(&self.store)?;
        self.open = Some(self.assemble().at("open", &self.store)?);
        Ok(())
    }

    fn daemon_cpu(&self) -> Result<std::time::Duration> {
        Ok(std::time::Duration::ZERO)
    }

    fn page_misses(&self) -> Result<u64> {
        Ok(self.running()?.cache.status().page_misses)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // The store is removed next; nobody reads what could not be written.
        let _ = self.close();
    }
}

fn other(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// A new store with an empty file in it, for tests.
#[cfg(test)]
pub(super) fn create(store: &Path, bytes: u64, mode: Protection) {
    use holdfast_naming::NewNode;
    let device = Arc::new(FileDevice::create_file(store, bytes).expect("a file"));
    let options = holdfast_physical::CreateOptions {
        store_uuid: [1; 16],
        device_uuid: [2; 16],
        set_aside_blocks: 0,
        protection: mode,
        overwrite: false,
    };
    let arena = Arena::new(64, 1 << 20).expect("an arena");
    Module::create(device, arena, Arc::new(SystemClock::default()), &options).expect("a store");
    let mut stack = Stack::open(store, mode, 16 << 20).expect("it opens");
    let namespace = stack.running().expect("it is open").namespace.clone();
    namespace.initialise(0, 0, 0o755).expect("a root directory");
    namespace.mknod(&Request::ROOT, ObjectId::ROOT, DATA.as_bytes(), NewNode::Regular, 0o644).expect("a file");
    drop(namespace);
    stack.close().expect("it closes");
}
