//! `holdfast flashlog backup`: by the server of the set, or by opening the set here.

use super::absolute;
use crate::args::FlashlogBackup;
use crate::commands::status;
use crate::failure::{Failure, Result, exit};
use crate::flashlog::backup::{self, BackupReport, BackupTo};
use crate::flashlog::control::{Copied, Replaced, Server, Target};
use crate::flashlog::sets;
use crate::mounts::Mount;
use crate::output::{self, Format, print};
use crate::progress::{Progress, Unit};
use crate::target;
use holdfast_block::flashlog::Options;
use holdfast_fuse::control;
use std::path::{Path, PathBuf};

pub(super) fn run(arguments: &FlashlogBackup, format: Format) -> Result<u8> {
    let to = match &arguments.to {
        Some(path) => {
            let (size_bytes, force) = (arguments.size, arguments.force);
            let accept_loss = arguments.accept_loss;
            Some(BackupTo { path: absolute(path)?, size_bytes, force, is_remembered: false, accept_loss })
        }
        None => None,
    };
    let report = back_up(arguments, to)?;
    print(format, &report);
    Ok(if report.is_good() { exit::OK } else { exit::UNWELL })
}

fn back_up(arguments: &FlashlogBackup, to: Option<BackupTo>) -> Result<BackupReport> {
    let FlashlogBackup { main, log, control, .. } = arguments;
    if let Some(target) = &arguments.target {
        let (mount, socket) = of_mount(target)?;
        // What was written counts, also if it is still in the kernel's keeping.
        target::ask(&mount, "could not take all that was written", control::hand_down)?;
        let mut bar = Bar::new();
        return match Server::find(Target { control: Some(&socket), devices: &[] })? {
            Some(server) => server.backup(to, arguments.verify, &mut |copied| bar.is_at(copied)),
            None => Err(Failure::at(&socket, "nobody listens there")),
        };
    }
    let of_set: Vec<&Path> = [main, log].into_iter().flatten().map(|path| &**path).collect();
    if let Some(server) = find(control.as_deref(), &of_set, to.as_ref())? {
        let mut bar = Bar::new();
        return server.backup(to, arguments.verify, &mut |copied| bar.is_at(copied));
    }
    let (Some(main), Some(log)) = (main, log) else {
        return Err(Failure::new("no server of a set was found").hint("say which set: --main DEVICE --log DEVICE"));
    };
    let Some(to) = to else {
        return Err(Failure::usage("the set is not served, so it is not known where its backups go")
            .hint("say where: --to DEVICE"));
    };
    let options = Options { mode: sets::look_for_label(main)?.mode, ..Options::default() };
    let mut bar = Bar::new();
    let (set, _) = sets::open(main, log, &options)?;
    let report = backup::run(&set, &to, arguments.verify, &mut |copied| bar.is_at(copied), |_| ())?;
    set.close().map_err(|error| Failure::new(error.to_string()))?;
    Ok(report)
}

/// What shows how far a backup is. How much there is to copy is known only after a while.
struct Bar(Progress, bool);

impl Bar {
    fn new() -> Bar {
        Bar(Progress::unknown(WHAT), false)
    }

    fn is_at(&mut self, Copied { done_bytes, total_bytes, replaces }: Copied) {
        if let Some(Replaced { backup: before, is_kept }) = replaces {
            let until = match is_kept {
                true => {
                    "main can be made anew with that one and the log until the copy is complete, if the log does not get full meanwhile, and from \
                     then on with this one"
                }
                false => {
                    "main cannot be made anew with that one and the log, and with this one not before the copy is complete: if main dies before, \
                     what was written since the backup of before is lost"
                }
            };
            self.0.suspended(|| {
                output::note(&format!("this takes the place of the backup of before, {before}: {until}"))
            });
        }
        if !self.1 {
            *self = Bar(Progress::of(WHAT, total_bytes, Unit::Bytes), true);
        }
        self.0.is_at_of(done_bytes, total_bytes);
    }
}

const WHAT: &str = "backing up";

/// A mount, and where it takes commands about its set.
pub(super) fn of_mount(target: &Path) -> Result<(Mount, PathBuf)> {
    let mount = target::mount(target)?;
    let report = status::look(&mount);
    let Some(set) = report.flashlog else {
        return Err(Failure::new(format!("{} is on no Flashlog", mount.source.display()))
            .hint("holdfast create --main DISK --log STICK makes a store on one"));
    };
    match set.control {
        Some(socket) => Ok((mount, socket.into())),
        None => Err(Failure::new(format!("{} takes no commands about its Flashlog", mount.directory.display()))
            .hint("its log tells why: holdfast status tells where that is")),
    }
}

/// The server of the set that was named; otherwise of the set that the backup is of, if it is one; otherwise the only one.
fn find(control: Option<&Path>, of_set: &[&Path], to: Option<&BackupTo>) -> Result<Option<Server>> {
    if control.is_some() || !of_set.is_empty() {
        return Server::find(Target { control, devices: of_set });
    }
    if let Some(to) = to
        && let Ok(Some(_)) = sets::look(&to.path)
        && let Some(server) = Server::find(Target { control: None, devices: &[&to.path] })?
    {
        return Ok(Some(server));
    }
    Server::find(Target::default())
}
