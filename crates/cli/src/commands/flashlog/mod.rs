//! `holdfast flashlog`: a disk, a log of what is written to it, and a backup.

mod at;
mod attach;
mod backup;
mod catch_up;
mod create;
mod grow;
mod model;
mod rebuild;
mod scrub;
mod serve;
mod status;

pub(super) use create::distinct;

use crate::args::{Command, FlashlogAction, LogLevel};
use crate::failure::{Failure, Result, exit};
use crate::output::Format;
use std::path::{Path, PathBuf};

/// Gives the exit code.
pub(crate) fn run(action: &FlashlogAction, format: Format, level: Option<LogLevel>) -> Result<u8> {
    match action {
        FlashlogAction::Create(arguments) => create::run(arguments, format).map(|()| exit::OK),
        FlashlogAction::Serve(arguments) => serve::run(arguments, format, level).map(|()| exit::OK),
        FlashlogAction::Status(arguments) => status::run(arguments, format),
        FlashlogAction::Backup(arguments) => backup::run(arguments, format),
        FlashlogAction::Rebuild(arguments) => rebuild::run(arguments, format),
        FlashlogAction::CatchUp(arguments) => catch_up::run(arguments, format),
        FlashlogAction::Scrub(arguments) => scrub::run(arguments, format),
        FlashlogAction::At(arguments) => at::run(arguments, format).map(|()| exit::OK),
        FlashlogAction::Attach(arguments) => attach::attach(arguments, format),
        FlashlogAction::Detach(arguments) => attach::detach(arguments, format).map(|()| exit::OK),
        FlashlogAction::Grow(arguments) => grow::run(arguments, format),
        FlashlogAction::Model(arguments) => model::run(arguments, format).map(|()| exit::OK),
    }
}

/// Whether the command logs as a server does.
pub(crate) fn is_server(command: &Command) -> bool {
    matches!(command, Command::Flashlog(arguments) if matches!(arguments.action, FlashlogAction::Serve(_)))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Failure::at(path, error))
}
