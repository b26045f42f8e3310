//! Sequences of FUSE requests that no kernel would send, to a whole stack: handles and nodes that were never given out, offsets
//! and sizes near their limits, names of every kind, in any order.
//!
//! What must hold: each request gets one reply of its own or none, no longer than it asked for; and afterwards the store and its
//! name space are sound, whatever was asked.

mod generate;
mod operator;
mod serve;

pub use generate::generate;
pub use operator::Operator;
pub use serve::{Counts, run};
