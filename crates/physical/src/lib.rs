//! The physical layer: objects on one device, copy-on-write, every block verified by its parent, consistent at every
//! recovery point. `docs/format.md` has the layout on disk.
//!
//! A [`Module`] is one device. It implements [`holdfast_object::ObjectStore`]. Where to find what:
//!
//! | module | job |
//! |---|---|
//! | `format` | structures on disk, and their checks |
//! | `disk`, `counters` | the device, its latch, repairs; what has been done |
//! | `requests` | what goes where in a write, and that it does |
//! | `meta_block`, `node_cache`, `locked_block` | metadata blocks in memory |
//! | `block_pool` | buffers for single blocks |
//! | `words`, `bitmap`, `alloc` | bits that are summed up in memory; which blocks can be handed out |
//! | `tree`, `dirty`, `objects` | block trees; their blocks that have changed; records, maps of ids, references |
//! | `own_records` | records of the store's own objects, put right when they have gone bad in memory |
//! | `read`, `write`, `apply` | pages and operations |
//! | `op_limits`, `damage` | operations that are wrong; what a damaged object costs |
//! | `commit`, `restart` | recovery points: what is written in which order; what happens if that has gone bad in memory |
//! | `audit` | whether what changed in an epoch fits together |
//! | `slots` | whether what is in a block can be there at all |
//! | `intent_log`, `log_recovery`, `log_pages` | what a sync made durable between two recovery points |
//! | `scrub` | every copy of every block in use, verified while the store is used |
//! | `trim` | discards of free blocks |
//! | `scribble` | for the lab: what memory has of the metadata, changes of it that nobody may make, and logic bugs |
//! | `inject` | a catalogue of blocks by kind, and damage to them on purpose |
//! | `create`, `open`, `check` | a store's beginning, its opening, everything in it compared with everything |
//! | `frozen` | a recovery point that stays as it is, for the check of a store in use |
//! | `mend` | damaged labels and superblocks, when a store is opened |
//! | `decoders` | decoders of single structures, for fuzzing |

mod alloc;
mod apply;
mod audit;
mod base;
mod bitmap;
mod block_pool;
pub mod check;
mod commit;
mod copy;
mod counters;
mod create;
mod damage;
#[doc(hidden)]
pub mod decoders;
mod difference;
mod dirty;
mod disk;
mod form_sums;
mod format;
mod frozen;
mod grow;
mod guarded;
pub mod inject;
mod intent_log;
mod locked_block;
mod log_check;
mod log_lookup;
mod log_pages;
mod log_recovery;
mod mend;
mod meta_block;
mod module;
mod named;
mod node_cache;
mod objects;
mod op_limits;
mod open;
mod own_records;
mod read;
mod read_ahead;
mod requests;
mod restart;
pub mod scribble;
mod scrub;
mod sealed;
mod sealed_record;
mod slots;
mod snapshot;
mod tree;
mod trim;
mod words;
mod write;
mod written_pages;

pub use commit::CommitOrder;
pub use create::CreateOptions;
pub use dirty::PROTECTION_BYTES_PER_CHANGED_BLOCK;
pub use format::{DEVICE_BLOCKS_MAX, DEVICE_BLOCKS_MIN, FORMAT_VERSION, LABEL_BLOCKS, LABELS, RING_SLOTS};
pub use format::{label_start, log_blocks};
pub use frozen::Frozen;
pub use locked_block::{metadata_blocks, tell_aim};
pub use meta_block::{AUDIT_BYTES_PER_CHANGED_BLOCK, MetadataProtection, PROTECTION_BYTES_PER_BLOCK};
pub use module::{Module, OpenOptions};
pub use open::blocks_of_store;
pub use snapshot::DeletionSlice;
