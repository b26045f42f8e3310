//! Holdfast seen from outside, through a mount. The only crate of the stack that is used here is `physical`, to see how an unmounted
//! store lies on its device (`aged::layout`).
//!
//! Three programs share this library:
//! - `holdfast-bench` runs the same workloads on Holdfast (both ways to cache), ext4, btrfs and fuse2fs in turn and prints a table
//!   ([`plan`], [`workload`], [`peer`], [`report`]);
//! - `holdfast-aged` ages a store by a simulated year and compares it with a fresh one ([`aged`]);
//! - `holdfast-witness` makes changes, notes outside the file system what `fsync` answered, and verifies after a crash
//!   that all of it is there ([`witness`]).

pub mod aged;
pub mod error;
pub mod machine;
pub mod measure;
pub mod pattern;
pub mod peer;
pub mod plan;
pub mod report;
pub mod witness;
pub mod workload;
