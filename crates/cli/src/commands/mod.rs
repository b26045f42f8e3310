//! The commands, one file each. A command gives its exit code, or the failure to print.

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod create;
pub(crate) mod flashlog;
pub(crate) mod grow;
pub(crate) mod inject;
pub(crate) mod man;
pub(crate) mod mount;
pub(crate) mod reliability;
pub(crate) mod remount;
pub(crate) mod run;
pub(crate) mod scrub;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod trim;
pub(crate) mod unmount;
pub(crate) mod up;
