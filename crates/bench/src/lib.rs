//! Holdfast measured, mostly from outside, through a mount. Of the crates of the stack, `physical` is used to see how an unmounted store
//! lies on its device (`aged::layout`), and all of them to measure the stack without a mount (`stack`).
//!
//! Eight programs share this library:
//! - `holdfast-bench` runs the same workloads on Holdfast (both ways to cache), ext4, btrfs and fuse2fs in turn and prints a table
//!   ([`plan`], [`workload`], [`peer`], [`report`]);
//! - `holdfast-aged` ages a store by a simulated year and compares it with a fresh one ([`aged`]);
//! - `holdfast-bench-integrity` compares the protection modes with each other ([`integrity`]);
//! - `holdfast-bench-metadata` compares the steps of protection of metadata with each other ([`metadata`]);
//! - `holdfast-bench-flashlog` compares Flashlog with single devices, modelled ones ([`flashlog`]);
//! - `holdfast-recovery` measures what recovering from a flipped bit takes ([`recovery`]);
//! - `holdfast-trace` replays what real programs did in every protection mode ([`trace`]);
//! - `holdfast-witness` makes changes, notes outside the file system what `fsync` answered, and verifies after a crash
//!   that all of it is there ([`witness`]).

pub mod aged;
pub mod cpu;
pub mod error;
pub mod flashlog;
pub mod heap;
pub mod integrity;
pub mod machine;
pub mod measure;
pub mod metadata;
pub mod pattern;
pub mod peer;
pub mod plan;
pub mod program;
pub mod recovery;
pub mod report;
mod stack;
pub mod trace;
pub mod witness;
pub mod workload;
