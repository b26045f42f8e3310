//! Integration tests of the physical layer on devices in memory.

mod basic;
mod model;
mod random;
mod rig;
