//! Integration tests of naming, one binary.

// The same source as `holdfast_lab::model`, so that these tests need none of the layers that the lab needs.
#[path = "../../../lab/src/model/mod.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "a library in the lab")]
mod model;

mod acls;
mod attributes;
mod checks;
mod damaged;
mod data;
mod diff;
mod directories;
mod memory_cache;
mod names;
mod paths;
mod permissions;
mod random;
mod repeated;
mod sums;
mod support;
mod threads;
mod unlinked;
mod xattrs;
