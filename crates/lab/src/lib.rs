//! Holdfast: lab.

pub mod device;
