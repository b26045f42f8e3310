//! Why a command failed: what the user reads, and the exit code.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Exit codes. `check` keeps to fsck(8), the others to the shell's habit.
pub(crate) mod exit {
    /// Done.
    pub(crate) const OK: u8 = 0;
    /// The command failed.
    pub(crate) const FAILED: u8 = 1;
    /// The command line makes no sense.
    pub(crate) const USAGE: u8 = 2;
    /// Done, but something is not protected, takes no changes, is not served, is damaged, or is lost.
    pub(crate) const UNWELL: u8 = 3;
    /// `mount --foreground`: the store is in order, without pages that went bad in memory. Units do not start it again for that.
    pub(crate) const GIVEN_UP: u8 = 5;
    /// `check`: errors were found and all of them corrected.
    pub(crate) const CHECK_CORRECTED: u8 = 1;
    /// `check`: errors are left.
    pub(crate) const CHECK_UNCORRECTED: u8 = 4;
    /// `check`: it could not be done.
    pub(crate) const CHECK_OPERATIONAL: u8 = 8;
    /// `check`: the command line makes no sense.
    pub(crate) const CHECK_USAGE: u8 = 16;
    /// `check`: cancelled by the user.
    pub(crate) const CHECK_CANCELLED: u8 = 32;
}

/// One line that says what went wrong, and perhaps one that says what to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// What went wrong.
    pub(crate) message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// Exit code.
    pub(crate) code: u8,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None, code: exit::FAILED }
    }

    /// The command line is at fault.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { code: exit::USAGE, ..Failure::new(message) }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Failure {
        Failure { hint: Some(hint.into()), ..self }
    }

    /// The same failure for `check`, whose exit codes are its own.
    pub(crate) fn of_check(self) -> Failure {
        let code = if self.code == exit::USAGE { exit::CHECK_USAGE } else { exit::CHECK_OPERATIONAL };
        Failure { code, ..self }
    }

    /// For errors that do not say what they are about.
    pub(crate) fn at(path: &Path, error: impl fmt::Display) -> Failure {
        Failure::new(format!("{}: {error}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
