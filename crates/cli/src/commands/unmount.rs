//! `holdfast unmount`: the end of a mount. Returns when the store is clean.

use super::status::look;
use crate::args::Unmount;
use crate::failure::{Failure, Result};
use crate::mounts::{self, FILE_SYSTEM, Mount};
use crate::output::{Format, Report, count, print};
use crate::paths::shell;
use crate::process::has_ended;
use crate::progress::Progress;
use crate::quoting;
use crate::report::{Condition, StoreReport};
use crate::stack::{self, Settings, Stack};
use crate::{holder, target, users};
use holdfast_block::{Access, FileDevice};
use holdfast_fuse::control;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Serialize;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often to look whether the daemon has ended: one that can be named, and one that cannot.
const NAMED_STEP: Duration = Duration::from_millis(200);
const UNNAMED_STEP: Duration = Duration::from_millis(20);
/// How long to wait for a daemon that did not answer.
const STUCK_WAIT: Duration = Duration::from_secs(5);
/// How long a mount may be in use still, and how often to try.
const BUSY_WAIT: Duration = Duration::from_millis(500);
const BUSY_STEP: Duration = Duration::from_millis(50);

/// What became of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Left {
    /// In order.
    Clean,
    /// Not in order: its daemon had died, or it was mounted read-only as it was. The next mount for writing recovers it.
    Unclean,
    /// This user may not look.
    Unknown,
}

#[derive(Serialize, Debug)]
struct Unmounted {
    directory: String,
    store: String,
    left: Left,
    #[serde(skip)]
    was: Was,
}

/// What the mount was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Was {
    Writable,
    ReadOnly,
    /// Its daemon had died.
    Abandoned,
    /// Its daemon did not answer.
    Stuck,
}

impl Report for Unmounted {
    fn words(&self) -> String {
        let Unmounted { left, was, .. } = self;
        let (directory, store) = (quoting::name(&self.directory), quoting::name(&self.store));
        let next = "The next mount for writing recovers it.";
        match (was, left) {
            (Was::Writable, Left::Clean) => {
                format!("Unmounted {directory}; everything is written, {store} is clean.\n")
            }
            (Was::Writable, _) => format!("Unmounted {directory}; everything is written to {store}.\n"),
            (Was::ReadOnly, Left::Clean) => format!("Unmounted {directory}, which was read-only; {store} is clean.\n"),
            (Was::ReadOnly, Left::Unclean) => {
                format!(
                    "Unmounted {directory}, which was read-only; {store} is as it was, not closed in order. {next}\n"
                )
            }
            (Was::ReadOnly, Left::Unknown) => format!("Unmounted {directory}, which was read-only.\n"),
            (Was::Abandoned, Left::Clean) => {
                format!("Unmounted {directory}, whose daemon had died; {store} is clean.\n")
            }
            (Was::Abandoned, _) => {
                format!(
                    "Unmounted {directory}, whose daemon had died, so that {store} is not closed in order. {next}\n"
                )
            }
            (Was::Stuck, Left::Clean) => format!("Cut off {directory}; its daemon has ended, {store} is clean.\n"),
            (Was::Stuck, _) => format!("Cut off {directory}; {store} is not closed in order. {next}\n"),
        }
    }
}

pub(crate) fn run(arguments: &Unmount, timeout: Duration, format: Format) -> Result<()> {
    let target = stack::locate(&arguments.target)?;
    let mount = match target::of_store(&target)? {
        Some(mount) => Some(mount),
        None => mounts::at(&target)?.filter(|mount| mount.file_system == FILE_SYSTEM),
    };
    let mount = mount.ok_or_else(|| nothing_there(&target))?;
    let directory = mount.directory.clone();
    // fusermount3 would only say that it finds no such mount.
    let user = rustix::process::geteuid();
    if !user.is_root() && user.as_raw() != mount.owner {
        let owner = users::name(mount.owner);
        let who = if mount.owner == 0 { "root".to_string() } else { format!("root and {owner}") };
        return Err(Failure::new(format!("{} is a mount of {owner}; only {who} can unmount it", directory.display())));
    }
    let state = look(&mount);
    let abandoned = state.condition == Condition::Abandoned;
    // Named before it ends, so that its number cannot be another's.
    let pid = state.daemon.as_ref().and_then(|daemon| holder::number(daemon, &mount.source));
    let daemon = pid.and_then(|pid| {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).ok()
    });
    // This process does not keep the mount in use itself.
    let _ = std::env::set_current_dir("/");
    let stuck = state.condition == Condition::NotAnswering;
    let (bad_pages, not_written) = match () {
        () if stuck || abandoned => (0, None),
        // A remount may have made it so, which forgets nothing.
        () if mount.read_only => (state.pages_bad(), state.not_written.clone()),
        () => {
            let synced = not_stored(&mount, pid, arguments.force, timeout)?;
            (synced.pages_bad(), synced.not_written)
        }
    };
    if bad_pages > 0 && !arguments.force {
        return Err(Failure::new(format!(
            "{}: {} went bad in memory, and the disk has what was there before, if anything was; nothing was unmounted",
            directory.display(),
            count(bad_pages, "page", "pages")
        ))
        .hint(format!(
            "write the files again{}; or give up what was written: holdfast unmount --force {}",
            named_by(&state),
            shell(&directory)
        )));
    }
    if stuck {
        if !arguments.force {
            return Err(Failure::new(format!("{} does not answer; nothing was unmounted", directory.display()))
                .hint(format!("wait, or cut off whoever uses it: holdfast unmount --force {}", shell(&directory))));
        }
        cut_off(&mount)?;
    } else {
        match (arguments.force, &state.daemon) {
            // It cuts off whoever is still there after two seconds, and closes the store.
            (true, Some(_)) => end(pid)?,
            _ => take_away(&directory, abandoned)?,
        }
    }
    if !abandoned {
        let _shown = Progress::unknown("writing what is not on the disk yet");
        wait(&mount, daemon, pid, if stuck { STUCK_WAIT } else { timeout })?;
    }
    let was = match () {
        () if abandoned => Was::Abandoned,
        () if stuck => Was::Stuck,
        () if mount.read_only => Was::ReadOnly,
        () => Was::Writable,
    };
    let left = how_left(&mount.source);
    if left == Left::Unclean && was == Was::Writable {
        let lost = not_written.as_ref().map(|files| {
            let named = files.lines().collect::<Vec<_>>().join("; ");
            format!(
                ": the last writes to {} were in memory only, and are lost: {named}",
                count(files.files, "file", "files")
            )
        });
        let (directory, lost) = (directory.display(), lost.unwrap_or_default());
        let failure = Failure::new(format!("{directory} is unmounted, but its store was not left clean{lost}"));
        let log = state.daemon.and_then(|daemon| daemon.log);
        return Err(failure.hint(match log {
            Some(log) => format!("all that is lost, if anything, is in {log}"),
            None => format!("holdfast check {}", shell(&mount.source)),
        }));
    }
    if bad_pages > 0 {
        let pages = count(bad_pages, "page that went bad in memory has", "pages that went bad in memory have");
        let failure = Failure::new(format!("{} is unmounted; {pages} not been stored", directory.display()));
        return Err(failure.hint(format!(
            "those files have older contents there, or an error where they had none{}",
            named_by(&state)
        )));
    }
    let (directory, store) = (directory.display().to_string(), mount.source.display().to_string());
    print(format, &Unmounted { directory, store, left, was });
    Ok(())
}

/// Writes what is not on the disk yet. Gives the state afterwards, which says which pages cannot be, as their bytes in memory are not what was
/// written, or as the store takes no changes: with the mount ends the chance to write them again, or elsewhere. Waits as [`wait`] does; whoever
/// forces it waits no longer than for a daemon that does not answer, and is told of the pages that are known by then.
fn not_stored(mount: &Mount, pid: Option<u32>, force: bool, timeout: Duration) -> Result<StoreReport> {
    let _shown = Progress::unknown("writing what is not on the disk yet");
    let (told, synced) = mpsc::channel();
    let asked = mount.clone();
    std::thread::spawn(move || {
        // What it says comes from the status below; another error will be told by the store as it is left.
        let _ = target::ask(&asked, "could not be synced", control::sync);
        let _ = told.send(());
    });
    let done = || pid.and_then(holder::work_done);
    let mut life = (Instant::now(), done());
    while synced.recv_timeout(NAMED_STEP) == Err(RecvTimeoutError::Timeout) {
        let done = done();
        if force && life.0.elapsed() >= STUCK_WAIT {
            break;
        }
        if !force && done.is_some() && done != life.1 {
            life = (Instant::now(), done);
        } else if !force && !timeout.is_zero() && life.0.elapsed() >= timeout {
            let (directory, waited) = (mount.directory.display(), timeout.as_secs());
            return Err(Failure::new(format!(
                "{directory}: nothing has been written for {waited} s, and not all of it is; nothing was unmounted"
            ))
            .hint(format!(
                "why: holdfast status {0}; to give it up: holdfast unmount --force {0}",
                shell(&mount.directory)
            )));
        }
    }
    Ok(look(mount))
}

fn named_by(state: &StoreReport) -> String {
    let log = state.daemon.as_ref().and_then(|daemon| daemon.log.as_ref());
    log.map(|log| format!(" (its log names them: {log})")).unwrap_or_default()
}

/// Asks the daemon to end.
fn end(pid: Option<u32>) -> Result<()> {
    let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) else {
        let failure = Failure::new("the daemon cannot be asked to end: its process cannot be seen from here");
        return Err(failure.hint("as root, or where it runs: send it SIGTERM, which cuts off whoever uses the mount"));
    };
    kill_process(pid, Signal::TERM).map_err(|error| Failure::new(format!("the daemon cannot be asked to end: {error}")))
}

/// Ends the connection of a mount whose daemon does not answer, and takes it out of the tree.
fn cut_off(mount: &Mount) -> Result<()> {
    // There is none unless fusectl is mounted; the lazy unmount does without.
    let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", mount.device_minor), "1");
    holdfast_fuse::unmount(&mount.directory, true).map_err(|error| refused(&mount.directory, &error))
}

/// Takes the mount out of the tree. Something that is just being closed is waited for.
fn take_away(directory: &Path, lazy: bool) -> Result<()> {
    let start = Instant::now();
    loop {
        match holdfast_fuse::unmount(directory, lazy) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < BUSY_WAIT => {
                // The kernel tells nobody when a mount stops being busy: it can only be asked again.
                std::thread::sleep(BUSY_STEP);
            }
            Err(error) => return Err(refused(directory, &error)),
        }
    }
}

fn nothing_there(target: &Path) -> Failure {
    let failure = match stack::is_store(target) {
        true => Failure::new(format!("{} is not mounted", target.display())),
        false => Failure::new(format!("no store is mounted on {}", target.display())),
    };
    let others = mounts::of_holdfast().unwrap_or_default();
    let others: Vec<_> = others.iter().map(|mount| mount.directory.display().to_string()).collect();
    if others.is_empty() { failure } else { failure.hint(format!("mounted are: {}", others.join(", "))) }
}

fn refused(directory: &Path, error: &io::Error) -> Failure {
    if error.kind() != io::ErrorKind::ResourceBusy {
        let words = mounts::plain(error);
        let failure = Failure::new(format!("cannot unmount {}: {words}", directory.display()));
        // A bare container has none.
        let lacks_mtab = words.contains("/etc/mtab") && !Path::new("/etc/mtab").exists();
        return match lacks_mtab {
            true => failure.hint("it looks there whose the mount is; as root: ln -s /proc/self/mounts /etc/mtab"),
            false => failure,
        };
    }
    let failure =
        Failure::new(format!("{} is busy: something in it is in use; nothing was unmounted", directory.display()));
    failure.hint(match mounts::users_named(directory) {
        Some(users) => format!("in use by: {users}"),
        None => "by whom, this user may not see; or something else is mounted below it".to_string(),
    })
}

/// Waits until the daemon has ended, for as long as it gets on with writing.
fn wait(mount: &Mount, daemon: Option<OwnedFd>, pid: Option<u32>, timeout: Duration) -> Result<()> {
    let done = || pid.and_then(holder::work_done);
    let mut life = (Instant::now(), done());
    loop {
        let has_ended = match &daemon {
            Some(daemon) => has_ended(daemon, NAMED_STEP)?,
            // The daemon is in another name space of processes, or the kernel is old: the store is free when it has ended. A lock
            // on it could be waited for, but not for a limited time.
            None => {
                std::thread::sleep(UNNAMED_STEP);
                !matches!(FileDevice::open(&mount.source, Access::ReadOnly), Err(holdfast_block::Error::InUse { .. }))
            }
        };
        if has_ended {
            return Ok(());
        }
        let done = done();
        if done.is_some() && done != life.1 {
            life = (Instant::now(), done);
        } else if !timeout.is_zero() && life.0.elapsed() >= timeout {
            return Err(still_there(mount, pid, timeout));
        }
    }
}

/// The mount is gone, and its daemon is not.
fn still_there(mount: &Mount, pid: Option<u32>, timeout: Duration) -> Failure {
    let store = mount.source.display();
    let holders: Vec<_> = match pid {
        Some(pid) => vec![pid],
        None => mounts::users(&mount.source).into_iter().map(|(pid, _)| pid).collect(),
    };
    let failure = Failure::new(format!(
        "{} is unmounted, but its daemon still has {store}, and has written nothing for {} s; do not switch off",
        mount.directory.display(),
        timeout.as_secs()
    ));
    match holders[..] {
        [pid] => failure.hint(holder::if_it_hangs(pid)),
        _ => failure,
    }
}

fn how_left(store: &Path) -> Left {
    let Ok(device) = stack::device(store, Access::ReadOnlyUnlocked) else { return Left::Unknown };
    match Stack::open(device, &Settings::to_look()) {
        Ok(stack) if stack.module.is_clean() => Left::Clean,
        _ => Left::Unclean,
    }
}
