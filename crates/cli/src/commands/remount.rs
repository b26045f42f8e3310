//! Other options for a mount while it is used: mount(8)'s `remount`.

use super::status::look;
use crate::daemon::{RemountReply, RemountRequest};
use crate::failure::{Failure, Result};
use crate::mounts::{self, FILE_SYSTEM, Mount};
use crate::options::MountOptions;
use crate::output::{Format, Report, print};
use crate::paths::shell;
use crate::progress::Progress;
use crate::quoting;
use crate::report::Condition;
use crate::{stack, target};
use holdfast_fuse::control;
use serde::Serialize;
use std::io;
use std::path::Path;

#[derive(Serialize)]
struct Remounted {
    directory: String,
    store: String,
    /// All options, as after `-o`.
    options: String,
}

impl Report for Remounted {
    fn words(&self) -> String {
        format!("{} has other options now: {}\n", quoting::name(&self.directory), self.options)
    }
}

/// `holdfast mount -o remount,…`: options that are not named stay.
pub(crate) fn run(store: &Path, directory: &Path, lists: &[String], format: Format) -> Result<()> {
    let (mount, current) = find(store, directory)?;
    let wanted = current.clone().and(lists).map_err(Failure::usage)?;
    change(&mount, &current, &wanted)?;
    let (directory, store) = (mount.directory.display().to_string(), mount.source.display().to_string());
    print(format, &Remounted { directory, store, options: wanted.words() });
    Ok(())
}

/// As mount(8) asks its helper, which gives all that the kernel sees to, from /etc/fstab and the table of mounts.
pub(crate) fn as_helper(store: &Path, directory: &Path, lists: &[String], fake: bool) -> Result<()> {
    let (mount, current) = find(store, directory)?;
    let wanted = current.clone().given_anew(lists).map_err(Failure::usage)?;
    if fake {
        return possible(&mount, &current, &wanted);
    }
    change(&mount, &current, &wanted)
}

/// The mount and the options that it has.
fn find(store: &Path, directory: &Path) -> Result<(Mount, MountOptions)> {
    let directory = mounts::resolve(directory)?;
    let mount = mounts::at(&directory)?.filter(|mount| mount.file_system == FILE_SYSTEM);
    let mount = mount.ok_or_else(|| {
        Failure::new(format!("no store is mounted on {}, so there is nothing to remount", directory.display()))
    })?;
    if !mount.serves(store) {
        let (source, store) = (mount.source.display(), store.display());
        return Err(Failure::new(format!("{} is a mount of {source}, not of {store}", directory.display())));
    }
    let report = look(&mount);
    match (report.condition, report.daemon) {
        (_, Some(daemon)) => {
            let options = MountOptions::parse(&[daemon.options]).map_err(Failure::new)?;
            Ok((mount, options))
        }
        (Condition::Abandoned, None) => {
            let hint = target::abandoned(&mount);
            Err(Failure::new(format!("{}: its daemon has died", directory.display())).hint(hint))
        }
        (Condition::Inaccessible, None) => Err(crate::users::mount_refused(&mount)),
        _ => Err(Failure::new(format!("{} does not answer", directory.display()))),
    }
}

fn again(mount: &Mount) -> String {
    let (store, directory) = (shell(&mount.source), shell(&mount.directory));
    format!("holdfast unmount {directory}, then holdfast mount {store} {directory} -o …")
}

fn possible(mount: &Mount, current: &MountOptions, wanted: &MountOptions) -> Result<()> {
    let directory = mount.directory.display();
    if !rustix::process::geteuid().is_root() {
        return Err(
            Failure::new(format!("{directory}: only root can change the options of a mount")).hint(again(mount))
        );
    }
    current.can_become(wanted).map_err(|why| Failure::new(format!("{directory}: {why}")).hint(again(mount)))
}

fn change(mount: &Mount, current: &MountOptions, wanted: &MountOptions) -> Result<()> {
    possible(mount, current, wanted)?;
    let directory = &mount.directory;
    let kernel = |options: &MountOptions| {
        holdfast_fuse::remount(directory, options.flags).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                let failure =
                    Failure::new(format!("{} is busy: something in it is open for writing", directory.display()));
                match mounts::users_named(directory) {
                    Some(users) => failure.hint(format!("in use by: {users}")),
                    None => failure,
                }
            }
            _ => Failure::new(format!("cannot remount {}: {}", directory.display(), mounts::plain(&error))),
        })
    };
    // What the kernel remembers of names, and that there are none, goes by a remount of any kind. A daemon that refuses may have replayed the
    // intent log before.
    let as_before = || drop(kernel(current));
    // The one that refuses changes goes first when it becomes read-only, and last when it takes changes again.
    if wanted.flags.read_only {
        kernel(wanted)?;
        tell(mount, wanted).inspect_err(|_| as_before())
    } else {
        tell(mount, wanted).inspect_err(|_| as_before())?;
        kernel(wanted).inspect_err(|_| {
            drop(tell(mount, current));
            as_before();
        })
    }
}

/// Tells the daemon.
fn tell(mount: &Mount, options: &MountOptions) -> Result<()> {
    let request = serde_json::to_vec(&RemountRequest { options: options.words() }).map_err(stack::says)?;
    let _shown = Progress::unknown("opening the store anew");
    let reply = target::ask(mount, "could not be remounted", |file| control::remount(file, &request))?;
    let reply: RemountReply = serde_json::from_slice(&reply).map_err(|error| Failure::at(&mount.directory, error))?;
    match reply.refusal {
        None => Ok(()),
        Some(why) => {
            Err(Failure::new(format!("{} could not be remounted: {why}", mount.directory.display())).hint(again(mount)))
        }
    }
}
