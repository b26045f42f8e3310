//! `holdfast flashlog attach` and `detach`: by the server of the set, or the mount that uses it; a set that is not in use is opened here to
//! get its log back.

use super::{absolute, backup, distinct};
use crate::args::{FlashlogAttach, FlashlogDetach, FlashlogWhich};
use crate::failure::{Failure, Result, exit};
use crate::flashlog::attach::{self, AttachReport, NewLog};
use crate::flashlog::control::{self, Server, Target};
use crate::flashlog::sets;
use crate::output::{Format, print};
use crate::progress::Progress;
use crate::stack;
use holdfast_block::Access;
use holdfast_block::flashlog::{self, Condition, Lasting, Options, Policy};
use std::path::Path;

pub(super) fn attach(arguments: &FlashlogAttach, format: Format) -> Result<u8> {
    let report = attached(arguments)?;
    print(format, &report);
    Ok(if report.is_complete() { exit::OK } else { exit::UNWELL })
}

fn attached(arguments: &FlashlogAttach) -> Result<AttachReport> {
    let FlashlogAttach { target, log, main, new, log_size, force, accept_loss, control } = arguments;
    let new = new.then_some(NewLog { size_bytes: *log_size, force: *force });
    // A new log is of no set, and main tells which it is of.
    let of_set: Vec<&Path> = match (main, &new) {
        (Some(main), _) => vec![main],
        (None, None) => vec![log],
        (None, Some(_)) => Vec::new(),
    };
    let server = match (target, control) {
        (Some(target), _) => Some(of_mount(target)?),
        (None, Some(control)) => Server::find(Target { control: Some(control), devices: &[] })?,
        (None, None) => Server::find(Target { control: None, devices: &of_set })?,
    };
    let _shown = Progress::unknown("attaching the log");
    if let Some(server) = server {
        return server.attach(absolute(log)?, new);
    }
    let Some(main) = main else {
        if new.is_none() {
            explain_foreign(log)?;
        }
        return Err(
            Failure::new("no server of a set was found, and no mount").hint("say which main gets it: --main DEVICE")
        );
    };
    distinct([main.as_path(), log.as_path()])?;
    let of_main = sets::main(main, Access::ReadOnlyUnlocked, Some(log))?;
    let label = match flashlog::inspect(&*of_main).map_err(sets::explain)? {
        Some(label) => label,
        None => sets::look_for_label(main)?,
    };
    drop(of_main);
    if label.condition != Condition::Alone && new.is_none() {
        return Err(Failure::new(format!("{}: main has not been used without its log", main.display()))
            .hint("it can be mounted or served with its log as it is"));
    }
    let log_device = attach::take(log, new.as_ref(), sets::bytes(label.blocks))?;
    let device = sets::main(main, Access::ReadWrite, Some(log))?;
    let options = Options { mode: label.mode, ..Options::default() };
    let set = Lasting::open_alone(device, &options, Policy::default(), *accept_loss).map_err(sets::explain)?;
    let report = log_device.give_to(&set, log)?;
    set.close().map_err(stack::says)?;
    Ok(report)
}

/// That a log is none of a set that is served, if there is such a set.
fn explain_foreign(log: &Path) -> Result<()> {
    let served = control::all().unwrap_or_default();
    let Some(first) = served.first() else { return Ok(()) };
    let Some(label) = sets::look(log)? else {
        return Err(
            Failure::at(log, "no device of a Flashlog: there is no label").hint("to make a new log of it: --new")
        );
    };
    let (role, set) = (label.role, label.set);
    let sets = if served.len() > 1 {
        format!("{} sets are served", served.len())
    } else {
        format!("set {} is served", first.set)
    };
    Err(Failure::at(log, format!("it is the {role} device of another set, {set}, which is not served"))
        .hint(format!("{sets}; a new log instead: --new; one for a set that is not in use: --main DEVICE")))
}

pub(super) fn detach(arguments: &FlashlogDetach, format: Format) -> Result<()> {
    let FlashlogDetach { target, main, accept_loss, control } = arguments;
    let devices: Vec<&Path> = main.iter().map(|path| &**path).collect();
    let server = match target {
        Some(target) => Some(of_mount(target)?),
        None => Server::find(Target { control: control.as_deref(), devices: &devices })?,
    };
    let server = server.ok_or_else(|| {
        Failure::new("no server of a set was found, and no mount")
            .hint("a set that is not in use needs no detaching: flashlog serve --without-log, mount -o without-log")
    })?;
    let _shown = Progress::unknown("bringing main up to date");
    print(format, &server.detach(*accept_loss)?);
    Ok(())
}

/// What takes commands for the set that is meant, if it is served or mounted.
pub(super) fn server_of(which: &FlashlogWhich) -> Result<Option<Server>> {
    let FlashlogWhich { target, main, log, control } = which;
    match target {
        Some(target) => of_mount(target).map(Some),
        None => {
            let devices: Vec<&Path> = [main, log].into_iter().flatten().map(|path| &**path).collect();
            Server::find(Target { control: control.as_deref(), devices: &devices })
        }
    }
}

/// Main and log of the set that is meant, to be opened here, as nobody serves it.
pub(super) fn devices_of(which: &FlashlogWhich) -> Result<(&Path, &Path)> {
    let devices = which.main.as_deref().zip(which.log.as_deref());
    devices
        .ok_or_else(|| Failure::new("no server of a set was found").hint("say which set: --main DEVICE --log DEVICE"))
}

/// What takes commands for a mount.
pub(super) fn of_mount(target: &Path) -> Result<Server> {
    let (_, socket) = backup::of_mount(target)?;
    Server::find(Target { control: Some(&socket), devices: &[] })?
        .ok_or_else(|| Failure::at(&socket, "nobody listens there"))
}
