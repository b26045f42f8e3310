//! The Flashlog that a mount's store is on: commands about it, its log that comes and goes, and backups at recovery points. Commands find the mount as they find the
//! server of a set, by a socket that is named after the set.

use super::State;
use crate::disks::Set;
use crate::failure::{Failure, Result};
use crate::flashlog::backup::{self, BackupReport, BackupTo};
use crate::flashlog::control::{self, Answer, Commands, Copied, Request, Response};
use crate::flashlog::in_use::which_backup;
use crate::flashlog::report::{LastBackup, SetReport};
use crate::flashlog::scrub::{self, ScrubReport};
use crate::stack::says;
use holdfast_fuse::control::Control;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// What the mount knows of its set, besides the set itself.
#[derive(Default)]
pub(super) struct Backups {
    /// Where commands come in.
    pub(super) socket: Option<PathBuf>,
    /// Where the last one went; whoever has it makes one.
    to: Mutex<Option<PathBuf>>,
    last: Mutex<Option<LastBackup>>,
}

impl Backups {
    /// Of a mount of this store; there is a socket for a set only.
    pub(super) fn of(disks: &crate::disks::Disks) -> Backups {
        let socket =
            disks.set().map(|set| control::directory().map(|directory| control::socket_of(&directory, set.label.set)));
        let socket = socket.transpose().unwrap_or_else(|failure| {
            tracing::warn!("no commands are taken about its Flashlog: {failure}");
            None
        });
        Backups { socket, ..Backups::default() }
    }

    /// Adds to the report of a set what the mount knows of it.
    pub(super) fn tell(&self, report: &mut SetReport) {
        report.backing_up = self.to.is_locked();
        report.last_backup = self.last.lock().clone();
        report.control = self.socket.as_ref().map(|path| path.display().to_string());
    }
}

/// Takes commands from now on.
pub(super) fn take_commands(state: &Arc<State>) -> Option<Commands> {
    let asked = state.clone();
    let commands =
        Commands::take(state.backups.socket.as_deref()?, move |request, tell| respond(&asked, request, tell));
    commands.inspect_err(|failure| tracing::warn!("no commands are taken about its Flashlog: {failure}")).ok()
}

fn respond(state: &State, request: Request, tell: &mut dyn FnMut(Copied)) -> Response {
    let response = match request {
        Request::Status => match state.report().flashlog {
            Some(report) => Ok(Response::Answer(Answer::Status(Box::new(report)))),
            None => Err(Failure::new("the store is on no Flashlog any more")),
        },
        Request::Backup(to, verify) => {
            back_up(state, to, verify, tell).map(|report| Response::Answer(Answer::BackedUp(Box::new(report))))
        }
        Request::Moments(backup) => with_backup(state, backup, |set, backup| set.in_use.moments(backup)),
        Request::Past(backup, at, socket) => {
            with_backup(state, backup, |set, backup| set.in_use.past(backup, at, socket.as_deref()))
        }
        Request::CatchUp => with_set(state, |set| set.in_use.catch_up()),
        Request::Scrub { backup: _, log_only: true } => {
            with_set(state, |set| scrub::run(&*set.in_use.flashlog()?, None)).map(scrubbed)
        }
        Request::Scrub { backup, log_only: false } => {
            with_backup(state, backup, |set, backup| scrub::run(&*set.in_use.flashlog()?, Some(backup))).map(scrubbed)
        }
        Request::Attach { log, new } => with_set(state, |set| set.in_use.attach(&log, new.as_ref()))
            .map(|report| Response::Answer(Answer::Attached(report))),
        Request::Detach => detached(state, false),
        Request::DetachForgetting => detached(state, true),
        Request::Grow(_) => Err(Failure::new("the set grows with the store on it").hint("holdfast grow DIR")),
    };
    response.unwrap_or_else(|failure| {
        tracing::warn!("{failure}");
        Response::Answer(Answer::Failed(failure))
    })
}

fn detached(state: &State, accept_loss: bool) -> Result<Response> {
    with_set(state, |set| set.in_use.detach(&state.backups.to, accept_loss))
        .map(|report| Response::Answer(Answer::Detached(report)))
}

fn scrubbed(report: ScrubReport) -> Response {
    Response::Answer(Answer::Scrubbed(Box::new(report)))
}

/// Does something with the set that the mount has open for changes.
fn with_set<T>(state: &State, act: impl FnOnce(&Set) -> Result<T>) -> Result<T> {
    // Not held longer: a remount may come in between, and then these are as good as before.
    let disks = state.up()?.disks.clone();
    match disks.set() {
        Some(set) if !set.is_read_only => act(set),
        _ => Err(Failure::new("it was mounted for reading only, and its Flashlog is only looked at")),
    }
}

/// Does something with the set and the backup that was named, or the last one.
fn with_backup<T>(state: &State, named: Option<PathBuf>, act: impl FnOnce(&Set, &Path) -> Result<T>) -> Result<T> {
    let last = || state.backups.to.try_lock()?.clone();
    let found = || Some(state.live.read().disks.backup_device()?.path);
    let backup = named.or_else(last).or_else(found).ok_or_else(which_backup)?;
    with_set(state, |set| act(set, &backup))
}

/// Makes a recovery point, and a backup that has it. What is written meanwhile is in the backup as well, or not: at any moment what the
/// store has in all is a recovery point, and what belongs to the next one.
fn back_up(state: &State, to: Option<BackupTo>, verify: bool, tell: &mut dyn FnMut(Copied)) -> Result<BackupReport> {
    let Some(mut last) = state.backups.to.try_lock() else {
        return Err(Failure::new("a backup is under way already"));
    };
    let remembered = last.clone().map(BackupTo::remembered);
    let flashlog = with_set(state, |set| set.in_use.flashlog())?;
    let Some(to) = to.or(remembered).or_else(|| state.live.read().disks.backup_device()) else {
        return Err(Failure::usage("it is not known where backups of this set go").hint("say where: --to DEVICE"));
    };
    let is_read_only = state.live.read().read_only;
    let recovery_point =
        if is_read_only { state.live.read().stack.status().epoch } else { state.sync().map_err(says)? };
    tracing::info!(recovery_point, "a backup to {} begins", to.path.display());
    let mut report = backup::run(&flashlog, &to, verify, tell, |error| {
        // Of a set that is not there any more nobody needs to know it.
        if let Ok(lasting) = with_set(state, |set| Ok(set.in_use.lasting.clone())) {
            lasting.heed(error);
        }
    })?;
    report.recovery_point = Some(recovery_point);
    tracing::info!(recovery_point, "the backup to {} is done", to.path.display());
    *state.backups.last.lock() =
        Some(LastBackup { recovery_point, to: to.path.display().to_string(), at: SystemTime::now() });
    *last = Some(to.path);
    Ok(report)
}
