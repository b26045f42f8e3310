//! The cache on a real store in memory.

mod attributes;
mod deletions;
mod device;
mod during;
mod errors;
mod expected;
mod front;
mod in_a_row;
mod integrity;
mod lab;
mod logged;
mod metadata;
mod pending;
mod power;
mod ranges;
mod read_back;
mod rig;
mod scrub;
mod seal;
mod space;
mod stray_writes;
mod transactions;
mod twins;
mod unreachable;
mod wrong;
