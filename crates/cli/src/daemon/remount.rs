//! Other options for a mount while it is used: the daemon's part of mount(8)'s `remount`.
//!
//! The kernel keeps changes away from a read-only mount; what is left for the daemon is to write what it has, to leave times of
//! last access alone, and to refuse what comes by ioctl.

use super::State;
use crate::failure::{Failure, Result};
use crate::options::MountOptions;
use crate::stack::says;
use holdfast_naming::Atime;
use holdfast_object::ObjectCache;
use serde::{Deserialize, Serialize};

/// What the daemon is asked.
#[derive(Serialize, Deserialize)]
pub(crate) struct RemountRequest {
    /// All options of the mount, as after `-o`.
    pub(crate) options: String,
}

/// What it answers.
#[derive(Serialize, Deserialize)]
pub(crate) struct RemountReply {
    /// Why it keeps the options that it had.
    pub(crate) refusal: Option<String>,
}

/// Gives the mount the options that the request has.
pub(super) fn apply(state: &State, uid: u32, request: &[u8]) -> Result<()> {
    if uid != 0 {
        return Err(Failure::new("only root changes the options of a mount"));
    }
    let request: RemountRequest = serde_json::from_slice(request)
        .map_err(|error| Failure::new(format!("the mount does not understand what it is asked: {error}")))?;
    let wanted = MountOptions::parse(&[request.options]).map_err(Failure::new)?;
    // Held to the end: one remount after the other.
    let mut options = state.options.lock();
    options.can_become(&wanted).map_err(Failure::new)?;
    let read_only = wanted.flags.read_only;
    if state.mounting.options.flags.read_only && !read_only {
        return Err(Failure::new("it was mounted with ro, so its store is open for reading only"));
    }
    let atime = if read_only { Atime::Never } else { wanted.atime };
    state.stack.namespace.set_access_times(atime, wanted.flags.no_dir_atime);
    if read_only && !options.flags.read_only {
        state.stack.cache.sync_all().map_err(says)?;
    }
    tracing::info!("has other options now: {}", wanted.words());
    *options = wanted;
    Ok(())
}
