//! `holdfast unmount`: the end of a mount. Returns when the store is clean.

use super::status::look;
use crate::args::Unmount;
use crate::failure::{Failure, Result};
use crate::mounts::{self, FILE_SYSTEM, Mount};
use crate::output::{Format, Report, print};
use crate::paths::shell;
use crate::progress::Progress;
use crate::report::Condition;
use crate::stack::{self, Settings, Stack};
use crate::{target, users};
use holdfast_block::{Access, FileDevice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait for a daemon that cannot be named, and how often to look.
const UNNAMED_WAIT: Duration = Duration::from_secs(60);
const UNNAMED_STEP: Duration = Duration::from_millis(20);
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
}

impl Report for Unmounted {
    fn words(&self) -> String {
        let Unmounted { directory, store, left } = self;
        match left {
            Left::Clean => format!("Unmounted {directory}; everything is written, {store} is clean.\n"),
            Left::Unclean => {
                format!(
                    "Unmounted {directory}. {store} is not clean: its daemon had died, or it was like that and mounted \
                     read-only. It is recovered when it is mounted for writing next.\n"
                )
            }
            Left::Unknown => format!("Unmounted {directory}; everything is written to {store}.\n"),
        }
    }
}

pub(crate) fn run(arguments: &Unmount, format: Format) -> Result<()> {
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
        return Err(Failure::new(format!(
            "{} is a mount of {owner}; only root and {owner} can unmount it",
            directory.display()
        )));
    }
    let state = look(&mount);
    let abandoned = state.condition == Condition::Abandoned;
    // Named before it ends, so that its number cannot be another's.
    let daemon = state.daemon.as_ref().and_then(|daemon| {
        let pid = Pid::from_raw(i32::try_from(daemon.pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).ok()
    });
    // This process does not keep the mount in use itself.
    let _ = std::env::set_current_dir("/");
    take_away(&directory, abandoned)?;
    if !abandoned {
        let _shown = Progress::unknown("writing what is not on the disk yet");
        wait(&mount, daemon)?;
    }
    let left = how_left(&mount.source);
    if left == Left::Unclean && !abandoned && !mount.read_only {
        let failure = Failure::new(format!("{} is unmounted, but its store was not left clean", directory.display()));
        let log = state.daemon.and_then(|daemon| daemon.log);
        return Err(failure.hint(match log {
            Some(log) => format!("what is lost, if anything, is in {log}"),
            None => format!("holdfast check {}", shell(&mount.source)),
        }));
    }
    let (directory, store) = (directory.display().to_string(), mount.source.display().to_string());
    print(format, &Unmounted { directory, store, left });
    Ok(())
}

/// Takes the mount out of the tree. Something that is just being closed is waited for.
fn take_away(directory: &Path, lazy: bool) -> Result<()> {
    let start = Instant::now();
    loop {
        match holdfast_fuse::unmount(directory, lazy) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < BUSY_WAIT => {
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
        return Failure::new(format!("cannot unmount {}: {}", directory.display(), mounts::plain(error)));
    }
    let failure =
        Failure::new(format!("{} is busy: something in it is in use; nothing was unmounted", directory.display()));
    failure.hint(match mounts::users_named(directory) {
        Some(users) => format!("in use by: {users}"),
        None => "by whom, this user may not see; or something else is mounted below it".to_string(),
    })
}

/// Waits until the daemon has ended, however long that takes: it is writing.
fn wait(mount: &Mount, daemon: Option<OwnedFd>) -> Result<()> {
    if let Some(daemon) = daemon {
        loop {
            match poll(&mut [PollFd::new(&daemon, PollFlags::IN)], None::<&Timespec>) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
    }
    // The daemon is in another name space of processes, or the kernel is old: the store is free when it has ended.
    let start = Instant::now();
    while let Err(holdfast_block::Error::InUse { .. }) = FileDevice::open(&mount.source, Access::ReadOnly) {
        if start.elapsed() > UNNAMED_WAIT {
            return Err(Failure::new(format!(
                "{} is unmounted, but still being written; do not switch off",
                mount.directory.display()
            )));
        }
        std::thread::sleep(UNNAMED_STEP);
    }
    Ok(())
}

fn how_left(store: &Path) -> Left {
    let Ok(device) = stack::device(store, Access::ReadOnlyUnlocked) else { return Left::Unknown };
    match Stack::open(device, &Settings::to_look()) {
        Ok(stack) if stack.module.is_clean() => Left::Clean,
        _ => Left::Unclean,
    }
}
