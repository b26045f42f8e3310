//! Bringing main of an opened set up to date when somebody asks for it, by the server or by a command.

use super::sets;
use crate::failure::Result;
use crate::output::Report;
use crate::{size, stack};
use holdfast_block::Device;
use holdfast_block::flashlog::{Flashlog, Mode};
use serde::{Deserialize, Serialize};

/// Main has everything that was written before.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CatchUpReport {
    set: String,
    /// What main may not have had. Versions of a block count each.
    caught_up_bytes: u64,
    /// What was written meanwhile, and main may not have.
    behind_bytes: u64,
    /// The end of the log could not be read: main is without what was there and it had not.
    #[serde(default)]
    dropped: bool,
    /// The same, or main has it: the log began anew, and the next backup compares everything.
    #[serde(default)]
    begun_anew: bool,
}

impl CatchUpReport {
    /// Main has everything, and the log did not begin anew for that.
    pub(crate) fn of(set: &Flashlog, caught_up_blocks: u64) -> CatchUpReport {
        CatchUpReport {
            set: set.status().set.to_string(),
            caught_up_bytes: sets::bytes(caught_up_blocks),
            behind_bytes: sets::bytes(set.behind_blocks()),
            dropped: false,
            begun_anew: false,
        }
    }

    /// The end of the log could not be read, of a set of this mode.
    pub(crate) fn begun_anew(self, mode: Mode) -> CatchUpReport {
        CatchUpReport { dropped: mode == Mode::Asynchronous, begun_anew: true, ..self }
    }

    /// Whether backup and log are all that there is.
    pub(crate) fn is_complete(&self) -> bool {
        !self.begun_anew
    }
}

impl Report for CatchUpReport {
    fn words(&self) -> String {
        let (was, is) = (size::show(self.caught_up_bytes), size::show(self.behind_bytes));
        let words = match (self.caught_up_bytes, self.behind_bytes) {
            (0, 0) => "Main had everything already.\n".to_string(),
            (_, 0) => format!("Main has everything; it was {was} behind.\n"),
            _ => format!("Main has everything that was written before; it was {was} behind, and is {is} now.\n"),
        };
        let unread = match (self.begun_anew, self.dropped) {
            (false, _) => return words,
            (true, true) => "GIVEN UP: what the log has at its end and main had not: it cannot be read.",
            (true, false) => "The end of the log cannot be read; main has what was there.",
        };
        format!("{words}{unread} The log began anew: NOT PROTECTED until the next backup, which compares everything.\n")
    }
}

/// Others go on writing meanwhile; main gets what they had written before.
pub(crate) fn run(set: &Flashlog) -> Result<CatchUpReport> {
    let behind_blocks = set.behind_blocks();
    // What is in memory only comes to the log first.
    set.flush().and_then(|()| set.catch_up()).map_err(stack::says)?;
    Ok(CatchUpReport::of(set, behind_blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_is_said_of_a_set_that_gives_something_up() {
        let report = |mode: Option<Mode>| {
            let (set, caught_up_bytes, behind_bytes) = (String::new(), 0, 0);
            let well = CatchUpReport { set, caught_up_bytes, behind_bytes, dropped: false, begun_anew: false };
            match mode {
                Some(mode) => well.begun_anew(mode),
                None => well,
            }
        };
        let well = report(None);
        assert!(well.is_complete() && !well.words().contains("NOT PROTECTED"));
        for (mode, is_given_up) in [(Mode::Synchronous, false), (Mode::Asynchronous, true)] {
            let report = report(Some(mode));
            assert!(!report.is_complete() && report.words().contains("NOT PROTECTED"), "{mode:?}");
            assert_eq!((report.words().contains("GIVEN UP"), report.dropped), (is_given_up, is_given_up), "{mode:?}");
        }
    }
}
