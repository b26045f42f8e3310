//! A store that is open in this process by the library for that.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_embedded::{Options, Store};
use holdfast_integrity::Protection;

use super::access::{Access, WithSums};
use super::{DATA, Subject, Way, forget_pages};
use crate::error::{At, Result};
use crate::stack::other;

/// A store, closed and opened anew for cold reads.
pub(super) struct ByLibrary {
    store: PathBuf,
    mode: Protection,
    options: Options,
    open: Option<Store>,
}

impl ByLibrary {
    /// Opens an existing store that nobody has mounted, with a pool of so many bytes.
    pub(super) fn open(store: &Path, mode: Protection, pool_bytes: u64) -> Result<ByLibrary> {
        let options = Options { protection: Some(mode), memory_bytes: pool_bytes, ..Options::default() };
        let mut subject = ByLibrary { store: store.to_path_buf(), mode, options, open: None };
        subject.start()?;
        Ok(subject)
    }

    fn running(&self) -> Result<&Store> {
        self.open.as_ref().ok_or_else(|| other("it is closed")).at("use", &self.store)
    }
}

impl Subject for ByLibrary {
    fn file(&self, way: Way) -> Result<Box<dyn Access>> {
        let file = self.running()?.open_file(DATA).map_err(other).at("open data in", &self.store)?;
        if way != Way::LibrarySums {
            return Ok(Box::new(file));
        }
        // In the mode `none` there are none to be made, as in the other ways.
        let file = file.with_algorithm(self.mode.memory()).map_err(other).at("ask for checksums in", &self.store)?;
        Ok(Box::new(WithSums(file)))
    }

    fn settle(&self) -> Result<()> {
        self.running()?.namespace().sync_all().map_err(other).at("sync", &self.store).map(drop)
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(open) = self.open.take() {
            open.close().map_err(other).at("close", &self.store)?;
        }
        forget_pages(&self.store)
    }

    fn start(&mut self) -> Result<()> {
        self.open = Some(Store::open(&self.store, &self.options).map_err(other).at("open", &self.store)?);
        Ok(())
    }

    fn daemon_cpu(&self) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn page_misses(&self) -> Result<u64> {
        Ok(self.running()?.page_misses())
    }
}
