//! Flashlog: one block device of two, a *main* device that has every block at its address, and a *log* (small, flash) that has
//! what was written, in order. (After E. Hoh's thesis of 2010; `docs/decisions/0017-flashlog.md` tells what is done otherwise.)
//!
//! ```text
//!  write ─► memory ─► log: data area, meta area ─► flush of the log ─► main ─► flush of main
//! ```
//!
//! **Main never gets a block before the log has it durably**, so that after a power cut main, with the log, is always at a state
//! that it had: all writes up to some moment, which is not before the last flush that was answered, and none after it.
//!
//! - [`Mode::Synchronous`]: a flush is answered when log and main have everything. A write that was answered survives the failure
//!   of either device: what is not on both yet is in memory, and goes to the other one.
//! - [`Mode::Asynchronous`]: a flush is answered when the log has everything. Main gets it when [`Flashlog::catch_up`] is called, or
//!   a bound is reached; until then reads come from the log, by an index in memory.
//!
//! A *backup*, a third device that is there now and then, gets what is new from the log ([`Flashlog::backup`]); if main is lost, backup
//! and log make another ([`rebuild`]).
//!
//! Checksums are taken of the caller's bytes, and compared each time before bytes go to a device or to a reader.
//!
//! | room | job |
//! |---|---|
//! | `format` | bytes on the devices |
//! | `labels` | who a device is: newest label, next label |
//! | `ring` | positions to blocks of the log |
//! | `chunk`, `stages` | what main does not have yet |
//! | `append`, `seal` | to the log; saying that it is durable when nothing follows |
//! | `catch_up` | from memory or the log to main |
//! | `fetch` | reading from the log what main gets next, in a thread of the caller's |
//! | `zeros` | discards and zeros, as entries of the log without data |
//! | `trim` | discarding what the log has let go of |
//! | `serve`, `turns` | the same in a thread of the caller's; how threads wait for each other |
//! | `device` | the [`Device`](crate::Device), and what it does when one below fails |
//! | `create`, `open`, `scan` | making a set, and putting it together again |
//! | `sparse` | zeros of a copy, which take no room |
//! | `ahead` | reading in advance what a backup copies, in a thread of the caller's |
//! | `enlarge` | a backup that becomes larger with its set |
//! | `backup`, `staging`, `staged` | bringing a backup to the next state: which blocks; all of them or none; in bounded memory |
//! | `successor` | another backup in the place of the one that the set has, when it has a state |
//! | `alone`, `attach` | main without a log; giving it one; a larger main |
//! | `rejoin` | a log that was pulled out while it had what main has not, put back |
//! | `dirty` | what the backup lacks, for when the log is lost |
//! | `lasting`, `policy` | the device that goes on when the log fails; what is done when a device fails |
//! | `patience`, `unread` | devices that are read again, or waited for, before that; what could not be read |
//! | `outgrown` | a main that has become larger, whose labels are where it ended before |
//! | `sums`, `verify`, `scrub`, `scrub_log` | checksums of a backup's blocks; reading it back; comparing main with it, or with the log |
//! | `kept` | what the log keeps for a backup, read again and made good from main |
//! | `damage` | what was found damaged, until it is found mended |
//! | `doubtful` | blocks of a backup whose checksums were damaged |
//! | `rebuild` | main from backup and log, or from the backup alone |
//! | `inspect`, `status`, `stray` | what a label says; how a set in use is doing; labels where none should be |
//! | `lacking` | what the backup does not have, for NBD clients |
//! | `at`, `past` | barriers, and the states at them as devices |
//! | `newest`, `ranges` | the newest version of each block, and zeros by runs, in memory |
//! | `decoders` | decoders of single structures, for fuzzing |

mod ahead;
#[cfg(test)]
mod ahead_tests;
mod alone;
#[cfg(test)]
mod anew_tests;
mod append;
mod at;
mod attach;
mod backup;
#[cfg(test)]
mod backup_tests;
#[cfg(test)]
mod cached_tests;
mod catch_up;
#[cfg(test)]
mod cells_tests;
mod chunk;
mod create;
mod damage;
pub mod decoders;
mod device;
mod dirty;
#[cfg(test)]
mod dirty_tests;
#[cfg(test)]
mod discard_tests;
mod doubtful;
#[cfg(test)]
mod doubtful_tests;
mod enlarge;
mod error;
#[cfg(test)]
mod failure_tests;
mod fetch;
#[cfg(test)]
mod fetch_tests;
#[cfg(test)]
mod follow_tests;
mod format;
mod given_up;
#[cfg(test)]
mod given_up_tests;
#[cfg(test)]
mod grow_tests;
mod inspect;
mod kept;
#[cfg(test)]
mod kept_tests;
mod labels;
mod lacking;
mod lasting;
#[cfg(test)]
mod lasting_tests;
mod lost;
#[cfg(test)]
mod lost_tests;
mod newest;
mod open;
mod outgrown;
mod over;
#[cfg(test)]
mod over_tests;
#[cfg(test)]
mod own_tests;
mod past;
#[cfg(test)]
mod past_tests;
mod patience;
#[cfg(test)]
mod patience_tests;
mod policy;
mod ranges;
mod rebuild;
#[cfg(test)]
mod rebuild_tests;
mod recent;
mod rejoin;
#[cfg(test)]
mod rejoin_tests;
mod ring;
mod scan;
mod scrub;
mod scrub_log;
#[cfg(test)]
mod scrub_tests;
mod seal;
#[cfg(test)]
mod seal_tests;
mod serve;
#[cfg(test)]
mod serve_tests;
mod sparse;
mod staged;
#[cfg(test)]
mod staged_tests;
mod stages;
mod staging;
mod status;
mod stray;
mod successor;
#[cfg(test)]
mod successor_tests;
mod sums;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod told_tests;
mod trim;
mod turns;
mod unread;
#[cfg(test)]
mod unreadable_tests;
#[cfg(test)]
mod unwritten_tests;
mod verify;
#[cfg(test)]
mod verify_tests;
mod zeros;
#[cfg(test)]
mod zeros_tests;

pub use ahead::ReadAhead;
pub use at::{At, Barrier, barriers};
pub use attach::Attached;
pub use backup::BackedUp;
pub use create::{Create, backup_blocks_least, check_backup, create, log_blocks_least, main_blocks_least, set_blocks};
pub use device::{CatchUp, Flashlog, INDEX_ENTRY_BYTES, Mode, Options, Order};
pub use error::Error;
pub use format::{AREA_UNIT_BLOCKS, Bad, Damage, FORMAT_VERSION, Fault, Role, Uuid};
pub use inspect::{Condition, Inspected, damaged_pages, inspect};
pub use lasting::{Lasting, Protection};
pub use open::Opened;
pub use outgrown::{as_labelled, outgrown};
pub use past::Past;
pub use patience::{Source, Trouble, Watch};
pub use policy::{Action, BadPolicy, Entry, Patience, Policy, Symptom};
pub use rebuild::{Later, Rebuild, Rebuilt, check_rebuild, later, rebuild, rebuild_at, rebuild_without_log};
pub use scrub::Scrubbed;
pub use staging::finish_backup;
pub use status::Status;
pub use stray::{has_outgrown_labels, wipe};
pub use turns::{RealTimer, Timer};
pub use verify::{Verified, verify_backup};
