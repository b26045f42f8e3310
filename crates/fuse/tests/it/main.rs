//! The wire against the real kernel: requests of all kinds, and a session that survives the death of who serves it. Needs
//! /dev/fuse and root; where one is missing, a test says so and passes.

mod backed;
mod helper;
mod killed;
mod memory;
mod misbehaving;
mod mounted;
mod rarer;
mod requests;
mod resume;
