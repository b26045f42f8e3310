//! A store that is open in this process.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_block::{Access as DeviceAccess, FileDevice};
use holdfast_integrity::Protection;
use holdfast_naming::Request;
use holdfast_object::{ObjectId, SystemClock};

use super::access::{Access, Embedded};
use super::{DATA, Subject, Way, forget_pages};
use crate::error::{At, Result};
use crate::stack::{Options, Stack, other};

/// A store, closed and opened anew for cold reads.
pub(super) struct InProcess {
    store: PathBuf,
    options: Options,
    open: Option<Stack>,
}

impl InProcess {
    /// Opens an existing store that nobody has mounted, with a pool of so many bytes.
    pub(super) fn open(store: &Path, mode: Protection, pool_bytes: u64) -> Result<InProcess> {
        let options = Options::new(mode, pool_bytes, Arc::new(SystemClock::default()));
        let mut stack = InProcess { store: store.to_path_buf(), options, open: None };
        stack.open = Some(stack.assemble().at("open", store)?);
        Ok(stack)
    }

    fn assemble(&self) -> io::Result<Stack> {
        let device = Arc::new(FileDevice::open(&self.store, DeviceAccess::ReadWrite).map_err(other)?);
        Stack::open(device, &self.options)
    }

    fn close(&mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => open.close().at("close", &self.store),
            None => Ok(()),
        }
    }

    fn running(&self) -> Result<&Stack> {
        self.open.as_ref().ok_or_else(|| other("it is closed")).at("use", &self.store)
    }
}

impl Subject for InProcess {
    fn file(&self, way: Way) -> Result<Box<dyn Access>> {
        let namespace = self.running()?.namespace.clone();
        let found = namespace.lookup(&Request::ROOT, ObjectId::ROOT, DATA.as_bytes()).map_err(other);
        let sums = (way == Way::EmbeddedSums).then(|| self.options.mode.memory());
        Ok(Box::new(Embedded { namespace, id: found.at("look up data in", &self.store)?.id, sums }))
    }

    fn settle(&self) -> Result<()> {
        self.running()?.namespace.sync_all().map_err(other).at("sync", &self.store).map(drop)
    }

    fn stop(&mut self) -> Result<()> {
        self.close()?;
        forget_pages(&self.store)
    }

    fn start(&mut self) -> Result<()> {
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

impl Drop for InProcess {
    fn drop(&mut self) {
        // The store is removed next; nobody reads what could not be written.
        let _ = self.close();
    }
}

/// A new store with an empty file in it, for tests.
#[cfg(test)]
pub(super) fn create(store: &Path, bytes: u64, mode: Protection) {
    use holdfast_naming::NewNode;
    let device = Arc::new(FileDevice::create_file(store, bytes).expect("a file"));
    let options = Options::new(mode, 16 << 20, Arc::new(SystemClock::default()));
    let stack = Stack::create(device, &options).expect("a store");
    let namespace = &stack.namespace;
    namespace.mknod(&Request::ROOT, ObjectId::ROOT, DATA.as_bytes(), NewNode::Regular, 0o644).expect("a file");
    stack.close().expect("it closes");
}
