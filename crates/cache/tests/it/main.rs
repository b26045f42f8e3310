//! The cache on a real store in memory.

mod device;
mod integrity;
mod power;
mod rig;
mod space;
mod transactions;
