//! A store behind its daemon, in one protection mode.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use holdfast_integrity::Protection;

use super::access::Access;
use super::{DATA, Subject, Way, forget_pages};
use crate::cpu;
use crate::error::{At, Error, Result, run};
use crate::peer::{Kind, Peer, Site};

/// A mounted store.
pub(super) struct Mounted {
    peer: Peer,
    site: Site,
}

impl Mounted {
    /// Makes the store, with an empty file in it, in a directory of its own below the site's.
    pub(super) fn create(site: &Site, mode: Protection, pool_bytes: u64) -> Result<Mounted> {
        let dir = site.dir.join(mode.to_string());
        fs::create_dir_all(&dir).at("create", &dir)?;
        let options = format!("cache={},protection={mode}", pool_bytes);
        let options = [site.holdfast_options.as_str(), &options].join(",");
        let site = Site { dir, holdfast_options: options.trim_start_matches(',').to_owned(), ..site.clone() };
        let peer = Peer::create(Kind::Holdfast, &site)?;
        let path = peer.root().join(DATA);
        File::create(&path).at("create", &path)?;
        Ok(Mounted { peer, site })
    }

    /// Where it is mounted.
    pub(super) fn root(&self) -> &Path {
        self.peer.root()
    }

    /// A counter of the daemon's cache.
    pub(super) fn counter(&self, name: &str) -> Result<u64> {
        let root = self.peer.root().display().to_string();
        let status = run(&self.site.holdfast, &["status", &root, "--json"])?;
        let status: serde_json::Value =
            serde_json::from_str(&status).map_err(std::io::Error::from).at("read", &root)?;
        let of = |place: &str| status.pointer(&format!("{place}/{name}")).and_then(serde_json::Value::as_u64);
        of("/cache")
            .or_else(|| of("/mounts/0/cache"))
            .ok_or_else(|| Error::Usage(format!("no {name} in the status of {root}")))
    }

    /// The file with the store.
    pub(super) fn store(&self) -> &Path {
        self.peer.store()
    }

    /// Leaves the store to somebody else.
    pub(super) fn unmount(&mut self) -> Result<()> {
        self.peer.unmount()
    }
}

impl Subject for Mounted {
    fn file(&self, way: Way) -> Result<Box<dyn Access>> {
        let path = self.peer.root().join(DATA);
        let file = OpenOptions::new().read(true).write(true).open(&path).at("open", &path)?;
        if way == Way::Mount {
            return Ok(Box::new(file));
        }
        Ok(Box::new(holdfast_client::File::new(file).at("use the interface on", &path)?))
    }

    fn settle(&self) -> Result<()> {
        self.peer.settle()
    }

    fn stop(&mut self) -> Result<()> {
        self.peer.unmount()?;
        forget_pages(self.peer.store())
    }

    fn start(&mut self) -> Result<()> {
        self.peer.mount()
    }

    fn daemon_cpu(&self) -> Result<Duration> {
        let pid = self.peer.daemon_pid().ok_or_else(|| Error::Usage("the store is not mounted".to_owned()))?;
        cpu::of_process(pid).at("find the daemon of", self.peer.root())
    }

    fn page_misses(&self) -> Result<u64> {
        self.counter("page_misses")
    }
}
