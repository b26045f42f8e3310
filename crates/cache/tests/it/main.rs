//! The cache on a real store in memory.

mod integrity;
mod power;
mod rig;
mod space;
mod transactions;
