//! Why a set cannot be made or opened.

use super::at::{At, Barrier};
use super::backup::PASSES_MOST;
use super::format::{Fault, Role, Uuid};
use super::rebuild::Later;
use std::fmt;
use std::sync::Arc;

/// A set that cannot be made or opened.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request to a device failed.
    #[error(transparent)]
    Device(#[from] crate::Error),
    /// The device has no label of a Flashlog.
    #[error("{device}: no {role} device of a Flashlog: there is no label")]
    NoLabel {
        /// Name of the device.
        device: Arc<str>,
        /// What it should be.
        role: Role,
    },
    /// Where the newest label is or would be, neither copy can be read, and the one before may not be true any more.
    #[error("{device}: neither copy of the {role} device's newest label can be read: {cause}")]
    LabelUnread {
        /// Name of the device.
        device: Arc<str>,
        /// What it should be.
        role: Role,
        /// Why the first of them cannot.
        cause: crate::Error,
    },
    /// A device on which main was being made anew, which was cut off.
    #[error("{device}: main was being made anew here and is not done, so it is a mixture")]
    GivenUp {
        /// Name of the device.
        device: Arc<str>,
    },
    /// The device is of another version of the format.
    #[error("{device}: version {version} of the format is not known here (only {})", super::FORMAT_VERSION)]
    OtherVersion {
        /// Name of the device.
        device: Arc<str>,
        /// Its version.
        version: u32,
    },
    /// The device is something else in its set.
    #[error("{device}: it is the {got} device of a set, not the {expected} device")]
    OtherRole {
        /// Name of the device.
        device: Arc<str>,
        /// What it should be.
        expected: Role,
        /// What it is.
        got: Role,
    },
    /// The devices are not of the same set.
    #[error("{device}: it belongs to set {got}, and not to set {expected}")]
    OtherSet {
        /// Name of the device.
        device: Arc<str>,
        /// The set that it should belong to.
        expected: Uuid,
        /// The set of the device.
        got: Uuid,
    },
    /// The set has another device in this role now.
    #[error("{device}: the set has another {role} device: {expected}, and this is {got}")]
    Replaced {
        /// Name of the device.
        device: Arc<str>,
        /// Its role.
        role: Role,
        /// The device that the set has.
        expected: Uuid,
        /// This one.
        got: Uuid,
    },
    /// The device has missed something: the set has been opened or changed without it, or it is an old copy.
    #[error("{device}: it is older than the other device: generation {got}, and the set is at {expected}")]
    Older {
        /// Name of the device.
        device: Arc<str>,
        /// Generation of the newest device.
        expected: u64,
        /// Generation of this one.
        got: u64,
    },
    /// The log failed or left while the set was in use; main has everything, and takes no log with less.
    #[error("{device}: main has been alone, without a log, since generation {generation}: a log must be attached")]
    Alone {
        /// Name of main.
        device: Arc<str>,
        /// Generation of main.
        generation: u64,
    },
    /// The log was bringing main from one state to the next when it was lost.
    #[error(
        "{device}: without the log, main is a mixture of two states: with the log it can be used, or be made anew from the backup"
    )]
    Mixture {
        /// Name of main.
        device: Arc<str>,
    },
    /// The set was in asynchronous mode, so that its log may have what has been answered and main has not.
    #[error(
        "{device}: in asynchronous mode the log may have what main has not; it is given up if main goes on without it"
    )]
    PerhapsBehind {
        /// Name of main.
        device: Arc<str>,
    },
    /// The set has a log, or has none, and this is for the other case.
    #[error("{device}: this cannot be done {with}")]
    Protection {
        /// Name of the set.
        device: Arc<str>,
        /// Which of them.
        with: &'static str,
    },
    /// Main could not become larger, and the log, which had left for that, has not come back.
    #[error("{device}: it cannot become larger, and its log has not come back, so main is without it: {cause}")]
    Parted {
        /// Name of the set.
        device: Arc<str>,
        /// Why it cannot become larger.
        cause: Box<Error>,
    },
    /// The backup is being copied for the first time, or anew, and is no state of the set yet.
    #[error("{device}: the copy is not complete")]
    Incomplete {
        /// Name of the backup.
        device: Arc<str>,
    },
    /// The log has gone on without keeping what the backup does not have.
    #[error(
        "{device}: the log does not reach back to this backup: it begins with page {first}, and {needed} is needed"
    )]
    Gap {
        /// Name of the backup.
        device: Arc<str>,
        /// First page of the log.
        first: u64,
        /// The page after the backup's state.
        needed: u64,
    },
    /// The backup has gone past the state that is wanted.
    #[error("{device}: the backup's state is later than what is wanted ({wanted}): {}", Earliest(*first))]
    TooEarly {
        /// Name of the backup.
        device: Arc<str>,
        /// What is wanted.
        wanted: At,
        /// The first barrier behind the backup's state, if there is one.
        first: Option<Barrier>,
    },
    /// The log has no barrier of this number yet.
    #[error("{device}: there is no barrier {wanted}: the last one is {last}")]
    NoBarrier {
        /// Name of the log.
        device: Arc<str>,
        /// The number that is wanted.
        wanted: u64,
        /// The last barrier.
        last: Barrier,
    },
    /// Main is to be made anew at a state that has others behind it, which would be gone.
    #[error(
        "{device}: behind that state are {} barriers with {} blocks{}, which would be gone",
        later.barriers, later.blocks, if later.is_damaged { " and damage" } else { "" }
    )]
    Later {
        /// Name of the log.
        device: Arc<str>,
        /// What would be gone.
        later: Box<Later>,
    },
    /// The backup is in use in another way.
    #[error("{device}: its backup is in use by {with}")]
    Busy {
        /// Name of the set.
        device: Arc<str>,
        /// What it is used for.
        with: &'static str,
    },
    /// The set has become larger since the backup was made, which is for its old size.
    #[error(
        "{device}: the set has become larger since this backup was made: {blocks} blocks, and the backup is of {of_backup}"
    )]
    Outgrown {
        /// Name of the backup.
        device: Arc<str>,
        /// Blocks of the set's device.
        blocks: u64,
        /// Those that it had.
        of_backup: u64,
    },
    /// Blocks of main are damaged, and which these are is not known any more: what main has there is older, and a copy would get it over what a
    /// backup has.
    #[error(
        "{device}: {blocks} blocks are damaged, the first of them {first}, and it is not known any more which: a copy of main would bring older data over what the backup has"
    )]
    Forgotten {
        /// Name of main.
        device: Arc<str>,
        /// Blocks that were found damaged.
        blocks: u64,
        /// The first of them.
        first: u64,
    },
    /// A backup was copied from main while it was forgotten which blocks of it are damaged. Of these it may have what main had, which is older than
    /// what main has got since: main is not compared with it.
    #[error(
        "{device}: copied when {blocks} blocks of main were damaged, the first of them {first}, and it was not known any more which: it may have older data than main"
    )]
    OfForgotten {
        /// Name of the backup.
        device: Arc<str>,
        /// Blocks that main's label told of.
        blocks: u64,
        /// The first of them.
        first: u64,
    },
    /// So much was written meanwhile that the log has let go of what the backup does not have.
    #[error("{device}: the log was full, and has let go of what is wanted of it")]
    LetGo {
        /// Name of the log.
        device: Arc<str>,
    },
    /// So much was written during a backup that the log was full again and again. The next call goes on.
    #[error("{device}: the log was full {PASSES_MOST} times during one backup: it is not complete")]
    Overflowed {
        /// Name of the log.
        device: Arc<str>,
    },
    /// Reading what a backup copies has ended in a bug.
    #[error("{device}: a bug while {blocks} blocks from block {first} on were read for the backup: {what}")]
    Panicked {
        /// Name of the set.
        device: Arc<str>,
        /// The first block of the set.
        first: u64,
        /// How many.
        blocks: u64,
        /// What the panic said.
        what: Arc<str>,
    },
    /// Bytes of the format are not as they should be.
    #[error("{device}: damaged at block {block}: {fault}")]
    Damaged {
        /// Name of the device.
        device: Arc<str>,
        /// The block.
        block: u64,
        /// What is wrong.
        fault: Fault,
    },
    /// The log has fewer pages than it had durably, as its label says, or that of a main that is alone.
    #[error(
        "{device}: it has the pages in front of {got} only, and had those in front of {expected} durably: some are damaged (block {block}), or it is an older copy"
    )]
    MissingPages {
        /// Name of the log.
        device: Arc<str>,
        /// Where the first one that is missing should be.
        block: u64,
        /// The page behind those that it had.
        expected: u64,
        /// The first one that is missing.
        got: u64,
    },
    /// There is no room for what a device of this role must have.
    #[error("{device}: too small for a {role} device: {blocks} blocks, and at least {least} are needed")]
    TooSmall {
        /// Name of the device.
        device: Arc<str>,
        /// What it should be.
        role: Role,
        /// Its size.
        blocks: u64,
        /// The least.
        least: u64,
    },
}

impl Error {
    /// What a device answered, if it is that.
    pub fn of_device(&self) -> Option<&crate::Error> {
        match self {
            Error::Device(error) | Error::LabelUnread { cause: error, .. } => Some(error),
            _ => None,
        }
    }
}

/// What a too early state's error says of those that can be had.
struct Earliest(Option<Barrier>);

impl fmt::Display for Earliest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(barrier) => write!(f, "the first one behind it is {barrier}"),
            None => f.write_str("there is no barrier behind it"),
        }
    }
}
