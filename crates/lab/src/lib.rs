//! The lab: devices that fail, a model of what is right, and programs that look for the difference.
//!
//! | module | job |
//! |---|---|
//! | `campaign` | flips in the page pool while loads run, and what becomes of them |
//! | `load` | what loads like a web or a mail server do, for the campaign and for benchmarks |
//! | `running` | a daemon beside this process: until it has mounted, until it has ended |
//! | `device` | fault devices; a recorder of writes and the images that power cuts leave |
//! | `model` | a POSIX tree in plain memory, random actions, comparison |
//! | `stack` | the whole stack in one process, on any device |
//! | `soak` | random actions on the stack, compared with the model |
//! | `torture` | full stores, emptied and filled again, with power cuts |
//! | `budget` | how much an explorer explores, from which seed |
//! | `explorer` | power cuts anywhere in random workloads, recovered and judged |
//! | `flashlog` | power cuts over the devices of a Flashlog, and their loss |
//! | `schemes` | a disk, a mirror, a backup, snapshots, a Flashlog × every mishap |
//! | `numbered` | blocks that say which write they are of |
//! | `faults` | every kind of block × every fault |
//! | `protection` | each protection mode × flips at each moment of a page's life |
//! | `required` | what tests need of the machine |
//! | `requests` | FUSE requests that no kernel would send |
//! | `foreign` | structures that say something else, behind good checksums |
//! | `enemy` | every kind of block × every injection × mount, remount, create, read |
//! | `metadata` | metadata in memory, every kind and field × every way to write to it |
//! | `maker` | a store in use and the model, side by side |
//! | `document` | tables of pages under `docs/` |
//! | `sources` | of which commit a program is |
//! | `caught` | a panic as an error |
//! | `look` | reading everything in a store that may be damaged |

pub mod budget;
pub mod campaign;
mod caught;
pub mod device;
pub mod document;
pub mod enemy;
pub mod explorer;
pub mod faults;
pub mod flashlog;
pub mod foreign;
pub mod load;
mod look;
mod maker;
pub mod metadata;
pub mod model;
mod numbered;
pub mod protection;
pub mod requests;
#[cfg(test)]
mod required;
pub mod running;
pub mod schemes;
pub mod soak;
pub mod sources;
pub mod stack;
pub mod torture;
