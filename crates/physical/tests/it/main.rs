//! Integration tests of the physical layer on devices in memory.

mod around_the_hook;
mod basic;
mod copies;
mod crash;
mod damage;
mod deletions;
mod faults;
mod frozen;
mod fuzz;
mod intent_log;
mod kept;
mod log_ends;
mod mend;
mod model;
mod own_damage;
mod random;
mod rig;
mod scrub;
mod seal;
mod slots;
mod snapshots;
mod trim;
mod two_damages;
