//! Holdfast seen from outside, through a mount: no crate of the stack is used here.
//!
//! Two programs share this library:
//! - `holdfast-bench` runs the same workloads on Holdfast (both ways to cache), ext4, btrfs and fuse2fs in turn and prints a table
//!   ([`plan`], [`workload`], [`peer`], [`report`]);
//! - `holdfast-witness` makes changes, notes outside the file system what `fsync` answered, and verifies after a crash
//!   that all of it is there ([`witness`]).

pub mod error;
pub mod machine;
pub mod measure;
pub mod pattern;
pub mod peer;
pub mod plan;
pub mod report;
pub mod witness;
pub mod workload;
