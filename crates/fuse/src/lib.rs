//! Holdfast: fuse.

pub mod control;
