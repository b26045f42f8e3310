//! Comparing main of an opened set with its backup, or with its log, by the server or by a command.

use super::backup::BadBlocks;
use super::sets::{self, explain};
use crate::failure::{Failure, Result};
use crate::output::Report;
use crate::{quoting, size, stack};
use holdfast_block::Access;
use holdfast_block::flashlog::{Error, Flashlog, Role, Scrubbed};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;

/// What a comparison has shown.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ScrubReport {
    set: String,
    /// Without one, main was compared with the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<String>,
    compared_bytes: u64,
    /// There is no checksum of these.
    unverified_bytes: u64,
    main_repaired: BadBlocks,
    backup_repaired: BadBlocks,
    /// The next backup replaces them.
    waiting: BadBlocks,
    lost: BadBlocks,
    doubtful: BadBlocks,
    /// In the log.
    log_repaired: BadBlocks,
    /// In the log; main has not the same.
    log_damaged: BadBlocks,
    /// Nothing that was compared is damaged any more.
    good: bool,
}

impl ScrubReport {
    fn of(set: String, backup: Option<&Path>, done: &Scrubbed) -> ScrubReport {
        let bad = |blocks: &[u64]| BadBlocks::of(&runs(blocks));
        ScrubReport {
            set,
            backup: backup.map(|path| path.display().to_string()),
            compared_bytes: sets::bytes(done.blocks),
            unverified_bytes: sets::bytes(done.unverified),
            main_repaired: bad(&done.main_repaired),
            backup_repaired: bad(&done.backup_repaired),
            waiting: bad(&done.waiting),
            lost: bad(&done.lost),
            doubtful: bad(&done.doubtful),
            log_repaired: bad(&done.log_repaired),
            log_damaged: bad(&done.log_damaged),
            good: done.is_good(),
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.good
    }
}

/// Neighbours together. The addresses are in order; several versions of a block may be there.
fn runs(blocks: &[u64]) -> Vec<Range<u64>> {
    blocks.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1).collect()
}

impl Report for ScrubReport {
    fn words(&self) -> String {
        let compared = size::show(self.compared_bytes);
        let mut words = match &self.backup {
            Some(backup) => {
                format!("{compared} of main and of {} were compared, and the log was read.\n", quoting::name(backup))
            }
            None => format!("{compared} of main were compared with the log, and what that has was read.\n"),
        };
        if self.unverified_bytes > 0 {
            let unverified = size::show(self.unverified_bytes);
            words += &format!("NOT VERIFIED, as only a backup has checksums of it: {unverified}.\n");
        }
        words += &self.main_repaired.words("Made good on main");
        words += &self.backup_repaired.words("Made good on the backup");
        words += &self.waiting.words("Damaged on the backup until the next one is made");
        let lost = match &self.backup {
            Some(_) => "DAMAGED on main, and neither log nor this backup has it as it was",
            None => {
                "DAMAGED on main, and the log has not what it was; no backup was asked (scrub --backup, or rebuild)"
            }
        };
        words += &self.lost.words(lost);
        words += &self
            .doubtful
            .words("DOUBTFUL, as the backup's checksums were damaged and main has something else, or is damaged there, or one of the two cannot be read");
        words += &self.log_repaired.words("Made good in the log");
        words += &self.log_damaged.words("Damaged in the log, for states to go back to");
        if self.good {
            words += "Nothing of that is damaged.\n";
        }
        words
    }
}

/// Compares main with a backup, or with the log if there is none.
pub(crate) fn run(flashlog: &Flashlog, backup: Option<&Path>) -> Result<ScrubReport> {
    let set = flashlog.status().set;
    let done = match backup {
        Some(path) => {
            let device = stack::device(path, Access::ReadWrite)?;
            let label = sets::inspect(&device)?.filter(|label| label.role == Role::Backup && label.set == set);
            if label.is_none() {
                return Err(Failure::at(path, "it is no backup of this set"));
            }
            flashlog.scrub(device)
        }
        None => flashlog.scrub_with_log(),
    };
    let done = done.map_err(|error| match error {
        Error::Gap { .. } => {
            Failure::new(error.to_string()).hint("bring it up to date first: holdfast flashlog backup")
        }
        Error::Damaged { .. } => {
            Failure::new(error.to_string()).hint("make a backup, which compares everything: holdfast flashlog backup")
        }
        other => explain(other),
    })?;
    Ok(ScrubReport::of(set.to_string(), backup, &done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_and_what_was_not_looked_at_is_said() {
        let done = Scrubbed { blocks: 10, lost: vec![3, 4, 9], unverified: 256, ..Scrubbed::default() };
        let report = ScrubReport::of("S".into(), None, &done);
        let words = report.words();
        assert!(!words.contains("DOUBTFUL"), "{words}");
        assert!(words.contains("40.0 KiB of main were compared with the log"), "{words}");
        assert!(words.contains("NOT VERIFIED") && words.contains("1.00 MiB"), "{words}");
        let lost = "no backup was asked (scrub --backup, or rebuild): 12.0 KiB, first block 3 of the set";
        assert!(words.contains(lost), "{words}");
        let words = ScrubReport::of("S".into(), Some(Path::new("/b")), &done).words();
        assert!(words.contains("neither log nor this backup has it as it was: 12.0 KiB"), "{words}");
        assert!(!report.is_good() && !words.contains("Nothing of that"));
        assert_eq!(runs(&done.lost), [3..5, 9..10]);
        let doubtful = Scrubbed { doubtful: vec![7], ..Scrubbed::default() };
        let words = ScrubReport::of("S".into(), Some(Path::new("/b")), &doubtful).words();
        assert!(words.contains("main has something else, or is damaged there, or one of the two cannot be read: 4.00 KiB, first block 7"), "{words}");
    }
}
