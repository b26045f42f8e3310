//! Giving main a log while it is used, and letting it go.

use super::ground::{self, Ground, Wanted};
use super::sets::{self, explain, explain_attaching};
use crate::failure::Result;
use crate::output::Report;
use crate::{quoting, size, stack};
use holdfast_block::flashlog::{Attached, Lasting, Protection, Role, log_blocks_least};
use holdfast_block::{Access, Device, FileDevice};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// A log that is to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NewLog {
    /// Of a file that is made for it.
    pub(crate) size_bytes: Option<u64>,
    /// Whatever is there may go.
    pub(crate) force: bool,
}

/// Main has a log again.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AttachReport {
    pub(crate) set: String,
    pub(crate) log: String,
    /// Not the one that main had.
    new: bool,
    /// The log got these.
    copied_bytes: u64,
    /// It had lost these of what it keeps for the backup, and has them again.
    mended_bytes: u64,
    /// It had lost these, and main has not what it had.
    lost_bytes: u64,
    /// Pages that it keeps are damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_damage: Option<String>,
    /// It had no room for them, or is new: the next backup copies these from main.
    changed_bytes: u64,
    /// The same, as they may be older on main than on the backup, which is left as it is.
    #[serde(default)]
    may_be_older: bool,
    /// It is forgotten which blocks of main are damaged: that backup may be refused.
    #[serde(default)]
    forgets_damage: bool,
    /// It is new, and it is not known what the backup lacks: the next one compares everything.
    compares_all: bool,
}

impl AttachReport {
    /// Backup and log are everything again, as far as it is the log's.
    pub(crate) fn is_complete(&self) -> bool {
        self.changed_bytes == 0 && !self.compares_all && self.lost_bytes == 0 && self.log_damage.is_none()
    }
}

impl Report for AttachReport {
    fn words(&self) -> String {
        let log = quoting::name(&self.log);
        let soon = match self.forgets_damage {
            true => "without --accept-loss it may be refused, as it is forgotten which blocks of main are damaged",
            false => "make it soon",
        };
        match (self.new, self.changed_bytes) {
            (true, _) if self.compares_all => {
                format!(
                    "Main has the new log {log}. NOT PROTECTED before the next backup, which compares everything: {soon}.\n"
                )
            }
            (true, changed) => format!(
                "Main has the new log {log}. NOT PROTECTED before the next backup, which copies of {} what is otherwise: {soon}.\n",
                size::show(changed)
            ),
            (_, 0) => {
                let mut words = format!("Main has its log {log} back, which got {}.\n", size::show(self.copied_bytes));
                if self.mended_bytes > 0 {
                    let mended = size::show(self.mended_bytes);
                    words += &format!(
                        "IT HAD LOST {mended} of what it keeps, which main has given it again: can it be trusted?\n"
                    );
                }
                if self.lost_bytes > 0 {
                    let lost = size::show(self.lost_bytes);
                    words += &format!(
                        "DAMAGED: {lost} of it that main has not as it was (holdfast flashlog scrub tells more).\n"
                    );
                }
                if let Some(damage) = &self.log_damage {
                    words += &format!("NOT PROTECTED before the next backup, as the log is damaged: {damage}.\n");
                }
                words
            }
            (_, changed) if self.may_be_older => format!(
                "Main has its log {log} back, which does not get what changed: up to {} may be older there than on the backup, as it is forgotten which blocks of main are damaged, and which it has written alone. NOT PROTECTED: the backup is left as it is, and holdfast flashlog backup tells what helps.\n",
                size::show(changed)
            ),
            (_, changed) => format!(
                "Main has its log {log} back, which has no room for what changed. NOT PROTECTED before the next backup, which copies {}: {soon}.\n",
                size::show(changed)
            ),
        }
    }
}

/// Main is without its log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DetachReport {
    pub(crate) set: String,
    pub(crate) log: String,
    /// Nobody has the log open any more.
    pub(crate) free: bool,
}

impl Report for DetachReport {
    fn words(&self) -> String {
        let log = quoting::name(&self.log);
        let free = match self.free {
            true => format!("{log} can be taken away"),
            false => format!("{log} can be taken away when nobody looks at a state of it any more"),
        };
        format!("Main has everything; {free}. NOT PROTECTED: what is written from now on is on main alone.\n")
    }
}

/// A log that main is to have.
pub(crate) enum Log {
    /// The one that it had.
    Had(Arc<FileDevice>),
    New(Ground),
}

/// Takes a log for exclusive use, for a set of this size. Nothing is changed, but that a file is made for a new one.
pub(crate) fn take(path: &Path, new: Option<&NewLog>, set_bytes: u64) -> Result<Log> {
    let Some(new) = new else {
        let had = stack::device(path, Access::ReadWrite).map(Log::Had);
        return had.map_err(|failure| match path.exists() {
            true => failure,
            false => failure.hint("is it plugged in? to make another log there: --new"),
        });
    };
    let wanted = Wanted {
        path,
        role: Role::Log,
        size_bytes: new.size_bytes,
        default_bytes: sets::log_bytes_for(set_bytes),
        least_bytes: sets::bytes(log_blocks_least()),
        force: new.force,
        keeps: false,
    };
    ground::take(&wanted, |_| false).map(Log::New)
}

impl Log {
    /// Gives it to main.
    pub(crate) fn give_to(self, set: &Lasting, path: &Path) -> Result<AttachReport> {
        let over = |log: Arc<FileDevice>| match set.watch() {
            Some(watch) => watch.over(Role::Log, log).map_err(explain),
            None => Ok(log as Arc<dyn Device>),
        };
        let attached = match self {
            Log::Had(log) => {
                let log = over(log)?;
                let has_stopped = matches!(set.protection(), Protection::Stopped { .. });
                set.attach_log(log.clone()).map_err(|error| explain_attaching(log.name(), has_stopped, error))?
            }
            Log::New(mut ground) => {
                let log = over(ground.device.clone())?;
                let attached = set.attach_new_log(log, sets::random_uuid()?).map_err(explain)?;
                ground.keep();
                attached
            }
        };
        let (mut mended, mut lost) = (0, 0);
        let (copied, changed) = match attached {
            Attached::New { changed_blocks } => (0, changed_blocks.unwrap_or(0)),
            Attached::Back { blocks, mended_blocks, lost_blocks } => {
                (mended, lost) = (mended_blocks, lost_blocks);
                (blocks, 0)
            }
            Attached::BackWithMap { blocks, .. } => (0, blocks),
        };
        Ok(AttachReport {
            set: set.status().0.set.to_string(),
            log: path.display().to_string(),
            new: matches!(attached, Attached::New { .. }),
            compares_all: attached == Attached::New { changed_blocks: None },
            copied_bytes: sets::bytes(copied),
            mended_bytes: sets::bytes(mended),
            lost_bytes: sets::bytes(lost),
            log_damage: set.status().0.log_damage.map(|error| error.to_string()),
            changed_bytes: sets::bytes(changed),
            forgets_damage: set.status().0.forgets_damage,
            may_be_older: matches!(attached, Attached::BackWithMap { may_be_older: true, .. }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_why_the_log_does_not_get_what_changed() {
        let report = |may_be_older| AttachReport {
            set: "set".into(),
            log: "stick".into(),
            new: false,
            copied_bytes: 0,
            mended_bytes: 0,
            lost_bytes: 0,
            log_damage: None,
            changed_bytes: 16 * 4096,
            may_be_older,
            forgets_damage: false,
            compares_all: false,
        };
        for (may_be_older, why, other) in
            [(false, "has no room", "may be older"), (true, "may be older", "has no room")]
        {
            let mut report = report(may_be_older);
            let words = report.words();
            assert!(words.contains(why) && words.contains("64.0 KiB") && words.contains("NOT PROTECTED"), "{words}");
            assert!(!words.contains(other) && !report.is_complete(), "{words}");
            // Nor that a backup is to be made soon which is refused.
            report.forgets_damage = true;
            let all = [(false, false), (true, false), (true, true)].map(|(new, compares_all)| {
                (report.new, report.compares_all) = (new, compares_all);
                report.words()
            });
            assert!(all.iter().all(|words| words.contains("forgotten") && !words.contains("soon")), "{all:?}");
        }
    }
}
