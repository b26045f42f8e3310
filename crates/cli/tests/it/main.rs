//! The `holdfast` command from outside: processes, exit codes, what is printed, what is on the disk afterwards.
//!
//! Tests that mount need /dev/fuse and say so when they are skipped.

mod c_library;
mod caching;
mod check_mounted;
mod closing;
mod confined;
mod damage;
mod embedded;
mod errors;
mod flashlog;
mod flashlog_sets;
mod flashlog_story;
mod full;
mod grow;
mod inject;
mod kept;
mod lab;
mod locked;
mod logcheck;
mod logs;
mod manual;
mod metadata;
mod metrics;
mod mount8;
mod mounts;
mod nbd;
mod newcomers;
mod no_room;
mod on_flashlog;
mod protection;
mod reliability;
mod remounts;
mod rig;
mod room;
mod run;
mod scrub;
mod shutdown;
mod snapshots;
mod stores;
mod summed;
mod survives;
mod terminal;
mod tour;
mod trim;
mod up;
