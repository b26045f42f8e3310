//! `holdfast check`: everything in a store compared with everything. A store that is not mounted is read here; one that is, by its mount.

use crate::args::Check;
use crate::check::{CheckReply, CheckRequest, Checked, Stage, Subject, examine};
use crate::daemon::given_up::Earlier;
use crate::disks::{Disks, Given};
use crate::failure::{Failure, Result, exit};
use crate::holder;
use crate::mounts::Mount;
use crate::output::{Format, note, print};
use crate::paths::shell;
use crate::progress::{self, Progress, Unit};
use crate::signals;
use crate::stack::{self, Stack};
use crate::target;
use holdfast_block::Access;
use holdfast_fuse::control;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Gives the exit code.
pub(crate) fn run(arguments: &Check, timeout: Duration, format: Format) -> Result<u8> {
    let store = stack::locate(&arguments.store)?;
    // A file in a mount may be a store of its own.
    let mount = if store.is_dir() { Some(target::mount(&store)?) } else { target::of_store(&store)? };
    // One whose daemon has died is still in the table of mounts, but the store is nobody's.
    let mount = mount.filter(|_| store.is_dir() || is_held(&store));
    let checked = match mount {
        Some(mount) if !arguments.repair => mounted(&mount, format)?,
        Some(mount) => {
            let failure =
                Failure::new(format!("{} is mounted on {}", mount.source.display(), mount.directory.display()));
            let directory = shell(&mount.directory);
            return Err(failure.hint(format!(
                "without --repair it is checked as it is; copies are put right by holdfast scrub {directory}, the rest when it is not \
                 mounted: holdfast unmount {directory}"
            )));
        }
        None => unmounted(arguments, timeout, format)?,
    };
    print(format, &checked);
    Ok(checked.exit_code)
}

/// Whether somebody may write to it: whoever has it open for that has it alone.
fn is_held(store: &Path) -> bool {
    !matches!(stack::try_device(store, Access::ReadOnly), Ok(Some(_)))
}

fn unmounted(arguments: &Check, timeout: Duration, format: Format) -> Result<Checked> {
    cancel_on_signal(format, || {})?;
    let access = if arguments.repair { Access::ReadWrite } else { Access::ReadOnly };
    let main = holder::device(&arguments.store, access, timeout, &mut note)?;
    let disks = Disks::on(main, &Given { log: arguments.log.clone(), ..Given::default() })?;
    let given_up = |stack: &Stack| Earlier::look(stack, disks.is_copy());
    let (store, repair) = (&arguments.store, arguments.repair);
    let subject = Subject { device: disks.device(), store, mounted: None, repair, given_up: &given_up };
    let mut bar = Bar::default();
    let checked = examine(subject, &mut |stage, at, total| bar.is_at(stage, at, total))?;
    disks.close()?;
    Ok(checked)
}

/// The mount does it, while this waits.
fn mounted(mount: &Mount, format: Format) -> Result<Checked> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let (at_end, by_signal) = (mount.clone(), cancelled.clone());
    cancel_on_signal(format, move || {
        by_signal.store(true, Ordering::SeqCst);
        drop(ask(&at_end, CheckRequest::Cancel));
    })?;
    // What the kernel has kept is looked at, too; what it could not hand down is for the writer to be told of.
    if let Err(error) = target::ask(mount, "could not be asked about a check", control::hand_down) {
        note(&format!("what is checked is without what could not be written: {error}"));
    }
    let outcome = follow(mount);
    // Whoever has cancelled it ends the process, with the code for that.
    while cancelled.load(Ordering::SeqCst) {
        std::thread::park();
    }
    outcome
}

fn follow(mount: &Mount) -> Result<Checked> {
    let mut bar = Bar::default();
    let mut reply = ask(mount, CheckRequest::Begin)?;
    let begun = reply.point();
    loop {
        // In between it may have been unmounted, with another mount in its place.
        if reply.point().is_some_and(|point| begun.as_ref() != Some(&point)) {
            let failure = Failure::at(
                &mount.directory,
                "the check has ended without a result: it is not mounted any more as it was",
            );
            return Err(failure.hint(format!("begin again: holdfast check {}", shell(&mount.directory))));
        }
        match reply {
            CheckReply::Done(checked) => return Ok(*checked),
            CheckReply::Refused(message) => return Err(Failure::new(message)),
            CheckReply::Running { stage, at, total, .. } => {
                bar.is_at(stage, at, total);
                bar.pause();
                reply = ask(mount, CheckRequest::Status)?;
            }
        }
    }
}

fn ask(mount: &Mount, request: CheckRequest) -> Result<CheckReply> {
    let request = serde_json::to_vec(&request).map_err(stack::says)?;
    let reply = target::ask(mount, "could not be asked about a check", |file| control::check(file, &request))?;
    serde_json::from_slice(&reply)
        .map_err(|error| Failure::at(&mount.directory, format!("the mount gave no answer that makes sense: {error}")))
}

/// One bar for each stage.
#[derive(Default)]
struct Bar(Option<(Stage, Progress)>);

impl Bar {
    fn is_at(&mut self, stage: Stage, at: u64, total: u64) {
        if self.0.as_ref().is_none_or(|(shown, _)| *shown != stage) {
            // The one before is gone before the next is there.
            self.0 = None;
            let (what, unit) = match stage {
                Stage::Blocks => ("checking blocks", Unit::Bytes),
                Stage::Names => ("checking names", Unit::Objects),
            };
            self.0 = Some((stage, Progress::of(what, total, unit)));
        }
        if let Some((_, progress)) = &self.0 {
            progress.is_at(at);
        }
    }

    fn pause(&self) {
        if let Some((_, progress)) = &self.0 {
            progress.pause();
        }
    }
}

/// SIGINT and the like end the process with fsck's code for it, after `stop`. A repair writes whole blocks that were good before, so it
/// can end anywhere.
fn cancel_on_signal(format: Format, stop: impl FnOnce() + Send + 'static) -> Result<()> {
    signals::block().map_err(|error| Failure::new(format!("cannot block signals: {error}")))?;
    let watch = move || {
        if let Ok(name) = signals::wait() {
            stop();
            let failure = Failure { code: exit::CHECK_CANCELLED, ..Failure::new(format!("cancelled by {name}")) };
            progress::clear_line();
            crate::output::print_failure(format, &failure);
            std::process::exit(failure.code.into());
        }
    };
    let started = std::thread::Builder::new().name("signals".into()).spawn(watch);
    started.map(drop).map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))
}
