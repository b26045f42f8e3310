//! `holdfast up`: from nothing to a mounted store.

use super::{create, mount, status};
use crate::args::{LogLevel, Up};
use crate::daemon::Launch;
use crate::failure::{Failure, Result};
use crate::mounts;
use crate::output::{Format, Report, note, print};
use crate::paths::{self, shell};
use crate::quoting;
use crate::report::{Condition, StoreReport};
use crate::size;
use crate::users;
use serde::Serialize;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Size of a store made on first use, if the host has twice as much free; otherwise half of what it has.
const SIZE_BYTES: u64 = 8 << 30;
/// Less is not worth having.
const SIZE_BYTES_MIN: u64 = 64 << 20;

/// What `up` found or did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Done {
    /// Made a store and mounted it.
    Created,
    /// Mounted the store that there was.
    Mounted,
    /// It was mounted already.
    AlreadyUp,
}

#[derive(Serialize)]
struct Raised {
    done: Done,
    #[serde(flatten)]
    report: StoreReport,
}

impl Report for Raised {
    fn words(&self) -> String {
        let directory = self.report.mounted_on.as_deref().unwrap_or("?");
        let path = shell(Path::new(directory));
        let figures = self.report.figures.as_ref();
        let space = figures.map(|figures| format!(", {} available", size::show(figures.space.available_bytes)));
        let space = space.unwrap_or_default();
        let headline = match self.done {
            Done::Created => "Holdfast is up, with a new store.",
            Done::Mounted => "Holdfast is up.",
            Done::AlreadyUp => "Holdfast is already up.",
        };
        format!(
            "{headline}
  directory  {directory}
  store      {store}{space}
{notes}
Use {path} as any directory; every byte in it is checked. What next:
  cp -a ~/Documents {path}/    put files there
  holdfast status              see how it is doing
  holdfast sync {path}         make everything durable now (else: within 5 seconds, or by fsync)
  holdfast unmount {path}      stop; `holdfast up` starts again
",
            directory = quoting::name(directory),
            store = quoting::name(&self.report.store),
            notes = mount::notes(&self.report),
        )
    }
}

pub(crate) fn run(arguments: &Up, timeout: Duration, format: Format, log_level: Option<LogLevel>) -> Result<u8> {
    let raised = up(arguments.directory.as_deref(), timeout, log_level)?;
    if !matches!(raised.done, Done::AlreadyUp) {
        mount::alarms(&raised.report).iter().for_each(|alarm| note(alarm));
    }
    print(format, &raised);
    Ok(mount::code(&raised.report))
}

fn up(given: Option<&Path>, timeout: Duration, log_level: Option<LogLevel>) -> Result<Raised> {
    let directory = match given {
        Some(directory) => directory.to_path_buf(),
        None => paths::home()?.join("Holdfast"),
    };
    let store = paths::directory("XDG_DATA_HOME", ".local/share")?.join("holdfast/main.store");
    if let Some(report) = already_up(&store)? {
        let mounted_on = report.mounted_on.as_ref().map(PathBuf::from).unwrap_or_default();
        let elsewhere = match mounts::resolve(&directory) {
            Ok(wanted) => wanted != mounted_on,
            Err(_) => given.is_some(),
        };
        return match elsewhere {
            true => {
                let (shown, other) = (store.display(), mounted_on.display());
                Err(Failure::new(format!("{shown} is mounted on {other} already, and can be in one place only"))
                    .hint(format!("to move it: holdfast unmount {}, then this again", shell(&mounted_on))))
            }
            false => Ok(Raised { done: Done::AlreadyUp, report }),
        };
    }
    // Before anything is made in vain.
    users::may_mount()?;
    make_directory(&directory, 0o755)?;
    // Whatever is wrong with the directory comes out before a store is made.
    let directory = mount::directory(&directory, false)?;
    let done = if store.exists() { Done::Mounted } else { Done::Created };
    if done == Done::Created {
        if let Some(parent) = store.parent() {
            make_directory(parent, 0o700)?;
        }
        create::create(&store, Some(first_size(&store)?), create::Wanted::default(), false)?;
    }
    let store = mounts::resolve(&store)?;
    let report =
        Launch { store: &store, directory: &directory, options: &[], log: None, timeout, log_level, lab: false }
            .run(&mut note)?;
    Ok(Raised { done, report })
}

fn already_up(store: &Path) -> Result<Option<StoreReport>> {
    let ours = mounts::of_holdfast()?.into_iter().filter(|mount| mount.serves(store));
    Ok(ours.map(|mount| status::look(&mount)).find(|report| report.condition != Condition::Abandoned))
}

fn make_directory(directory: &Path, mode: u32) -> Result<()> {
    // Also there: what an abandoned mount hides, which cannot be looked at.
    if mounts::resolve(directory).is_ok() {
        return Ok(());
    }
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(directory);
    made.map_err(|error| Failure::at(directory, mounts::plain(&error)))
}

fn first_size(store: &Path) -> Result<u64> {
    let room = create::room(store).unwrap_or(0);
    let bytes = SIZE_BYTES.min(room / 2) >> 20 << 20;
    if bytes < SIZE_BYTES_MIN {
        return Err(Failure::new(format!("{}: only {} free there", store.display(), size::show(room)))
            .hint("make a store elsewhere: holdfast create STORE --size SIZE, then holdfast mount STORE DIR"));
    }
    Ok(bytes)
}
