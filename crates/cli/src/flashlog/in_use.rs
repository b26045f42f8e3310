//! A set in use, by a server or a mount: its log, which comes and goes, and its past.

use super::attach::{self, AttachReport, DetachReport, NewLog};
use super::catch_up;
use super::control::{Answer, Response};
use super::grow::{self, GrowReport};
use super::past::{Moments, PastServer, Wanted};
use super::sets;
use crate::failure::{Failure, Result};
use crate::growth::NewSize;
use crate::{size, stack};
use holdfast_block::flashlog::{Flashlog, Lasting, Protection};
use holdfast_block::{Access, Device};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Longest that a detached log may be held by those who were at it.
const LET_GO: Duration = Duration::from_secs(2);

/// A set and which log it has.
pub(crate) struct InUse {
    pub(crate) lasting: Arc<Lasting>,
    /// Path of the log, or of the last one that there was.
    log: Mutex<String>,
    /// Whoever has it attaches or detaches a log.
    changing: Mutex<()>,
}

impl InUse {
    pub(crate) fn new(lasting: Lasting, log: Option<&Path>) -> InUse {
        let log = log.map(|path| path.display().to_string()).unwrap_or_default();
        InUse { lasting: Arc::new(lasting), log: Mutex::new(log), changing: Mutex::new(()) }
    }

    /// Path of the log, or of the last one that there was; empty if there was none.
    pub(crate) fn log(&self) -> String {
        self.log.lock().clone()
    }

    /// The set with its log.
    pub(crate) fn flashlog(&self) -> Result<Arc<Flashlog>> {
        self.lasting.set().ok_or_else(|| {
            Failure::new("the set is without its log").hint("give it one: holdfast flashlog attach --log LOG")
        })
    }

    /// Gives main a log.
    pub(crate) fn attach(&self, path: &Path, new: Option<&NewLog>) -> Result<AttachReport> {
        let Some(_changing) = self.changing.try_lock() else { return Err(is_changing()) };
        if matches!(self.lasting.protection(), Protection::Protected) {
            return Err(Failure::new("the set has its log").hint("to take it away: holdfast flashlog detach"));
        }
        let report = attach::take(path, new, sets::bytes(self.lasting.blocks()))?.give_to(&self.lasting, path)?;
        self.log.lock().clone_from(&report.log);
        Ok(report)
    }

    /// Lets the log go. Whoever has `backup` makes one, and needs the log. If only the log tells which blocks of main are older than what was
    /// written there, it is kept, unless that is accepted.
    pub(crate) fn detach(&self, backup: &Mutex<Option<PathBuf>>, accept_loss: bool) -> Result<DetachReport> {
        let Some(_changing) = self.changing.try_lock() else { return Err(is_changing()) };
        let Some(_no_backup) = backup.try_lock() else {
            return Err(Failure::new("a backup is under way").hint("try again when it is done"));
        };
        let flashlog = self.flashlog()?;
        let lost = flashlog.lost_blocks();
        if lost.blocks > 0 && !accept_loss {
            let (lost_size, first) = (size::show(sets::bytes(lost.blocks)), lost.first);
            return Err(Failure::new(format!(
                "{lost_size} of main are damaged, first block {first} of the set, and only the log tells which: once main is opened without it, it has older data there"
            ))
            .hint("scrub --backup BACKUP takes what a backup has; what nobody has must be written anew; to let the log go as it is: --accept-loss"));
        }
        let (set, gone) = (flashlog.status().set.to_string(), flashlog.until_gone());
        drop(flashlog);
        self.lasting.detach_log().map_err(sets::explain)?;
        // Who was at it is done soon; whoever gets the answer may attach it again at once.
        let free = gone.recv_timeout(LET_GO) == Err(RecvTimeoutError::Disconnected);
        Ok(DetachReport { set, log: self.log(), free })
    }

    /// Makes the set larger. Main is without its log for a moment, so it is as for [`InUse::detach`].
    pub(crate) fn grow(&self, size: Option<NewSize>, backup: &Mutex<Option<PathBuf>>) -> Result<GrowReport> {
        let Some(_changing) = self.changing.try_lock() else { return Err(is_changing()) };
        let Some(_no_backup) = backup.try_lock() else {
            return Err(Failure::new("a backup is under way").hint("try again when it is done"));
        };
        grow::run(&self.lasting, size)
    }

    /// Brings main up to date with everything that was written.
    pub(crate) fn catch_up(&self) -> Result<Response> {
        Ok(Response::Answer(Answer::CaughtUp(catch_up::run(&*self.flashlog()?)?)))
    }

    /// The moments since the state of a backup.
    pub(crate) fn moments(&self, backup: &Path) -> Result<Response> {
        let barriers = self.flashlog()?.barriers(backup_device(backup)?).map_err(sets::explain)?;
        Ok(Response::Answer(Answer::Moments(Moments::of(&barriers))))
    }

    /// A state since that of a backup. Several may be looked at at once, and nobody makes a backup meanwhile.
    pub(crate) fn past(&self, backup: &Path, at: Wanted, socket: Option<&Path>) -> Result<Response> {
        let past = self.flashlog()?.past(backup_device(backup)?, at.at()).map_err(sets::explain)?;
        PastServer::new(past, socket).map(|server| Response::Past(Box::new(server)))
    }
}

fn is_changing() -> Failure {
    Failure::new("a log is being attached or detached")
}

fn backup_device(path: &Path) -> Result<Arc<dyn Device>> {
    Ok(stack::device(path, Access::ReadOnlyUnlocked)?)
}

/// What to say if a command does not name the backup, and nobody knows it.
pub(crate) fn which_backup() -> Failure {
    Failure::usage("it is not known where the backup of this set is").hint("say where: --backup DEVICE")
}
