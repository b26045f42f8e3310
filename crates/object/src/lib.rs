//! The object protocol: what the layers say to each other.
//!
//! Naming, cache, logical and physical are joined by the plain data in this crate and by its two traits:
//!
//! ```text
//!  naming ──(ObjectCache: transactions of object operations)──► cache
//!  cache  ──(ObjectStore: batches of object operations per epoch)──► logical ──(ObjectStore)──► physical
//! ```
//!
//! Nothing here points into another layer's memory. Objects are named by [`ObjectId`], bytes by [`PageRef`] into the
//! [`arena::Arena`] of offset-only structures, requests by [`RequestId`]. So the same layer code runs in one process,
//! in several, or in the simulator.
#![warn(missing_docs)]

pub mod arena;
mod attributes;
mod cache;
mod clock;
mod difference;
mod error;
mod ids;
mod op;
mod proved;
mod scrub;
mod session;
mod snapshot;
pub mod space;
mod store;

pub use arena::{
    Arena, FrameMut, MetadataFrame, PAGE_BITS, PageMismatch, PageRef, PageSeal, PinnedPage, changing, tell_aim,
};
pub use attributes::{AttrSet, Attributes, Class, Kind, NAMES_LISTED_MAX, NamePlace, Timestamp};
pub use cache::{Durability, ObjectCache, Outcome, PageView, RequestId, Seek, Snapshots, Transaction};
pub use clock::{Clock, ManualClock, SystemClock};
pub use difference::Difference;
pub use error::{Corruption, DeviceFault, Error, Place, Result, Side};
pub use ids::{BlockIdentity, DomainId, Epoch, ObjectId, ObjectKey, PageIndex, PolicyId, SnapshotId};
pub use op::{Batch, Fragment, Op};
pub use proved::{Proved, link_number, mixed, name_number};
pub use scrub::{Fate, ScrubCounts, ScrubCursor, ScrubFinding, ScrubStep};
pub use session::{Hold, Holds};
pub use snapshot::{
    ObjectChange, SNAPSHOT_NAME_MAX, SnapshotCount, SnapshotDeletion, SnapshotInfo, check_snapshot_name,
};
pub use space::{Purpose, Space};
pub use store::{
    Applied, Found, LogBatch, LoggedPage, Mending, ObjectStore, PageSource, Placement, RecoveredBatch, StoreCounters,
    StoreStatus, VerifiedBy,
};

/// Bytes in a page of an object and in a block of a device.
pub const PAGE_SIZE: usize = 4096;
/// Largest object: 16 TiB.
pub const MAX_OBJECT_BYTES: u64 = 1 << 44;
