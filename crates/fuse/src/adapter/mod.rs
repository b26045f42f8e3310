//! A name space as a FUSE file system: each request becomes one call of naming, each error an errno.
//!
//! Node numbers are object ids, handles carry the flags of the open (naming keeps counts, not handles), so that both stay valid
//! when another process takes over. What a handle has been told of bad pages is kept beside it.

mod convert;
mod grown;
mod handle;
mod memory;
mod requests;
mod served;
mod serving;
mod summed;
mod told;

use crate::control::Control;
use crate::handler::Service;
use crate::negotiate::Caching;
use crate::reply::Slices;
use grown::Grown;
use holdfast_naming::ReadData;
use memory::Fetches;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use told::Told;

pub use served::{Served, by_turns};
pub use serving::Serving;

/// Which changes are durable before they are answered (mount(8), `sync` and `dirsync`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Synchronous {
    /// Those that fsync, fdatasync or O_SYNC ask for.
    #[default]
    AsAsked,
    /// And all changes of names.
    Names,
    /// All.
    Everything,
}

/// How a mount behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long the kernel may remember names and attributes. All changes come through the same kernel, which knows what
    /// they invalidate.
    pub valid: Duration,
    /// Distinguishes this mount's requests from those of others.
    pub client: u32,
    /// Who keeps the pages of files: what was agreed with the kernel.
    pub caching: Caching,
    /// What is durable without being asked.
    pub synchronous: Synchronous,
    /// Requests handled at once: all but one may wait for the memory of callers.
    pub workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            valid: Duration::from_secs(3600),
            client: 0,
            caching: Caching::Direct,
            synchronous: Synchronous::AsAsked,
            workers: 1,
        }
    }
}

/// A mounted name space.
pub struct Filesystem {
    served: Arc<Served>,
    control: Arc<dyn Control>,
    options: Options,
    told: Told,
    grown: Grown,
    fetches: Fetches,
    /// For the next handle.
    handles: AtomicU64,
}

/// Verified bytes of a read, in the pages that hold them.
pub struct Data(ReadData);

impl Slices for Data {
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.0.slices()
    }
}

impl Filesystem {
    /// Serves a name space whose permissions the kernel checks (`default_permissions`).
    pub fn new(served: Arc<Served>, control: Arc<dyn Control>, options: Options) -> Filesystem {
        // Not the numbers of the process that served the mount before, as far as files can be open that long.
        let handles = AtomicU64::new(u64::from(options.client) << 24);
        let fetches = Fetches::of(options.workers);
        Filesystem { served, control, options, told: Told::default(), grown: Grown::default(), fetches, handles }
    }

    /// What handles one request.
    pub fn begin(&self) -> Serving<'_> {
        Serving::new(self)
    }
}

impl Service for Filesystem {
    type Handler<'a> = Serving<'a>;

    fn serve<'a>(&'a self, answer: impl FnOnce(&Serving<'a>)) {
        answer(&self.begin());
    }
}
