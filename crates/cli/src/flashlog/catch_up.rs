//! Bringing main of an opened set up to date when somebody asks for it, by the server or by a command.

use super::sets;
use crate::failure::Result;
use crate::output::Report;
use crate::{size, stack};
use holdfast_block::Device;
use holdfast_block::flashlog::Flashlog;
use serde::{Deserialize, Serialize};

/// Main has everything that was written before.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CatchUpReport {
    set: String,
    /// What main may not have had. Versions of a block count each.
    caught_up_bytes: u64,
    /// What was written meanwhile, and main may not have.
    behind_bytes: u64,
    /// The end of the log could not be read: main is without what was there and it had not, and the next backup compares everything.
    #[serde(default)]
    dropped: bool,
}

impl CatchUpReport {
    pub(crate) fn of(set: &Flashlog, caught_up_blocks: u64, dropped: bool) -> CatchUpReport {
        CatchUpReport {
            set: set.status().set.to_string(),
            caught_up_bytes: sets::bytes(caught_up_blocks),
            behind_bytes: sets::bytes(set.behind_blocks()),
            dropped,
        }
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
        match self.dropped {
            true => format!(
                "{words}GIVEN UP: what the log has at its end and main had not: it cannot be read. NOT PROTECTED until the next backup, which compares everything.\n"
            ),
            false => words,
        }
    }
}

/// Others go on writing meanwhile; main gets what they had written before.
pub(crate) fn run(set: &Flashlog) -> Result<CatchUpReport> {
    let behind_blocks = set.behind_blocks();
    // What is in memory only comes to the log first.
    set.flush().and_then(|()| set.catch_up()).map_err(stack::says)?;
    Ok(CatchUpReport::of(set, behind_blocks, false))
}
