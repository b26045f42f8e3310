//! `holdfast mount`: a store on a directory.

use super::remount;
use crate::args::{LogLevel, Mount};
use crate::daemon::{self, Launch, Mounting, Told};
use crate::failure::{Failure, Result, exit};
use crate::mounts::{self, FILE_SYSTEM};
use crate::options::MountOptions;
use crate::output::{Format, Report, count, note, print};
use crate::paths::shell;
use crate::quoting;
use crate::report::{Condition, StoreReport};
use crate::users;
use serde::Serialize;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// A mount was made.
#[derive(Serialize, Debug)]
struct Mounted<'a> {
    #[serde(flatten)]
    report: &'a StoreReport,
}

impl Report for Mounted<'_> {
    fn words(&self) -> String {
        let directory = quoting::name(self.report.mounted_on.as_deref().unwrap_or("?"));
        let mut text = format!("Mounted {} on {directory}.\n", quoting::name(&self.report.store));
        text.push_str(&notes(self.report));
        text
    }
}

/// What the user should know about a mount just made.
pub(crate) fn notes(report: &StoreReport) -> String {
    let mut text = String::new();
    if let Some(daemon) = report.daemon.as_ref().filter(|daemon| !daemon.was_clean) {
        let (point, batches) = (daemon.recovered_from, count(daemon.batches_replayed, "batch", "batches"));
        text.push_str(&match report.read_only {
            _ if report.flashlog_device.as_ref().is_some_and(|device| device.at.is_some()) => {
                let at = report.flashlog_device.as_ref().and_then(|device| device.at.clone()).unwrap_or_default();
                format!("It is an earlier state, {at}, and shows recovery point {point}.\n")
            }
            _ if report.is_backup() => format!("It is a backup, and shows recovery point {point}.\n"),
            None => format!(
                "It had not been closed in order: {batches} of its intent log replayed on recovery point {point}. What \
                 was neither synced nor in that point, the last seconds at most, is gone.\n"
            ),
            // Why is told with what to do, and no mount sees what is newer.
            Some(_) if report.latched => format!("It shows recovery point {point}.\n"),
            Some(_) => format!(
                "It had not been closed in order: this shows recovery point {point}. What was synced later is seen once \
                 it has been mounted for writing.\n"
            ),
        });
    }
    if let Some(daemon) = report.daemon.as_ref().filter(|daemon| daemon.superblocks_lost > 0) {
        text.push_str(&format!(
            "{} in all four labels: unless the power failed while it was written, this may be an older state than what was \
             synced last.\n",
            count(daemon.superblocks_lost, "superblock is damaged", "superblocks are damaged")
        ));
    }
    if let Some(reason) = report.read_only.as_ref().filter(|_| !report.latched) {
        text.push_str(&format!("It takes no changes: {}.\n", quoting::line(reason)));
    }
    text
}

/// Whether it is as it was asked for: a store that stops when it is opened is mounted, so that what is in it can be copied.
pub(crate) fn code(report: &StoreReport) -> u8 {
    if report.latched { exit::UNWELL } else { exit::OK }
}

/// What the user must know about a mount just made, whatever else is printed: of what was synced something is not there, or an option
/// does nothing, or less than one may think.
pub(crate) fn alarms(report: &StoreReport) -> Vec<String> {
    let mut alarms: Vec<String> = report.figures.iter().filter_map(|figures| figures.space.useless_quota()).collect();
    if let Some(reason) = report.read_only.as_ref().filter(|_| report.latched) {
        let directory = shell(Path::new(report.mounted_on.as_deref().unwrap_or("DIR")));
        let store = shell(Path::new(&report.store));
        alarms.push(format!(
            "READ-ONLY: what can be read can be copied from {directory}; what is wrong, and what mends it: holdfast unmount {directory}, then \
             holdfast check {store}. It takes no changes: {}",
            quoting::line(reason)
        ));
    }
    if let Some(problem) = report.flashlog.as_ref().and_then(|set| set.problem.as_ref()) {
        alarms.push(format!("NOT PROTECTED: {}", quoting::line(problem)));
    }
    if let Some(given_up) = &report.given_up {
        alarms.push(format!("GIVEN UP: {}", given_up.line()));
    }
    alarms.extend(report.unprotected_by_store().map(|warning| format!("warning: {warning}")));
    let Some(daemon) = &report.daemon else { return alarms };
    alarms.extend(daemon.protection_warning.as_ref().map(|warning| format!("warning: {warning}")));
    if daemon.synced_pages_lost > 0 {
        let pages = count(daemon.synced_pages_lost, "synced page is LOST", "synced pages are LOST");
        let log = daemon.log.as_deref().map(|log| format!("; its log names the files: {log}")).unwrap_or_default();
        alarms.push(format!("{pages}: the intent log was damaged, and reading them is an error{log}"));
    }
    if daemon.batches_torn > 0 {
        alarms.push(
            "the end of the intent log is not whole and was left out: the last sync was cut short by a power cut; if the power \
             did not fail, the disk has lost it"
                .to_string(),
        );
    }
    alarms
}

pub(crate) fn run(arguments: &Mount, timeout: Duration, format: Format, log_level: Option<LogLevel>) -> Result<u8> {
    if MountOptions::is_remount(&arguments.options) {
        if arguments.lab {
            return Err(Failure::usage("a mount is made with --lab, or without: it cannot be changed by a remount"));
        }
        return remount::run(&arguments.store, &arguments.directory, &arguments.options, format).map(|()| exit::OK);
    }
    let mounting = prepare(arguments, timeout)?;
    if arguments.foreground {
        // Before the first thread, and before there is any metadata.
        let metadata_pages = mounting.options.protect.install()?;
        let mounting = Mounting { metadata_pages, ..mounting };
        return foreground(&mounting, arguments.report_ready, format, log_level).map(|()| exit::OK);
    }
    let report = launch(&mounting, &arguments.options, log_level).run(&mut note)?;
    alarms(&report).iter().for_each(|alarm| note(alarm));
    print(format, &Mounted { report: &report });
    Ok(code(&report))
}

fn launch<'a>(mounting: &'a Mounting, options: &'a [String], log_level: Option<LogLevel>) -> Launch<'a> {
    let Mounting { store, directory, timeout, lab, .. } = mounting;
    let log = mounting.options.disks.log.as_deref();
    Launch { store, directory, options, log, timeout: *timeout, log_level, lab: *lab }
}

/// As mount(8) does it: says nothing if all went well, unless asked to, or to somebody who sits before it and waits.
pub(crate) fn quietly(arguments: &Mount, timeout: Duration, verbose: bool) -> Result<()> {
    let mounting = prepare(arguments, timeout)?;
    let is_heard = verbose || io::stderr().is_terminal();
    let mut waits = |text: &str| {
        if is_heard {
            note(text);
        }
    };
    let report = launch(&mounting, &arguments.options, None).run(&mut waits)?;
    alarms(&report).iter().for_each(|alarm| note(alarm));
    if verbose {
        print(Format::Words, &Mounted { report: &report });
    }
    Ok(())
}

/// Everything that comes before a mount.
pub(crate) fn try_out(arguments: &Mount) -> Result<()> {
    prepare(arguments, Duration::ZERO).map(drop)
}

/// Whatever can be wrong with the command line.
fn prepare(arguments: &Mount, timeout: Duration) -> Result<Mounting> {
    let mut options = MountOptions::parse(&arguments.options).map_err(Failure::usage)?;
    let given = &arguments.store;
    if given.is_dir() && arguments.directory.is_file() {
        let (store, directory) = (shell(given), shell(&arguments.directory));
        return Err(Failure::usage(format!("{store} is a directory and {directory} a file; the store comes first"))
            .hint(format!("holdfast mount {directory} {store}")));
    }
    let store = crate::stack::locate(&arguments.store)?;
    let directory = directory(&arguments.directory, options.nonempty)?;
    if let Some(log) = &mut options.disks.log {
        *log = mounts::resolve(log).map_err(|failure| failure.hint("to mount main without its log: -o without-log"))?;
        if log.as_os_str().as_encoded_bytes().contains(&b',') {
            return Err(Failure::usage(format!("mount option log: a comma in {} ends the option", log.display())));
        }
    }
    users::may_mount()?;
    let log = arguments.report_ready.then(|| daemon::log::path(&store)).flatten();
    let metadata_pages = String::new();
    Ok(Mounting { store, directory, options, timeout, log, lab: arguments.lab, metadata_pages })
}

/// A directory that can be mounted on. What a daemon that died has left there is taken away.
pub(crate) fn directory(directory: &Path, nonempty: bool) -> Result<PathBuf> {
    let path = mounts::resolve(directory).map_err(|failure| match directory.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            failure.hint(format!("to make the directory: mkdir -p {}", shell(directory)))
        }
        _ => failure,
    })?;
    let mounted = mounts::at(&path)?.filter(|mount| mount.file_system == FILE_SYSTEM);
    if let Some(mount) = mounted {
        if super::status::look(&mount).condition != Condition::Abandoned {
            let (directory, source) = (path.display(), mount.source.display());
            return Err(Failure::new(format!("{directory}: {source} is mounted there already"))
                .hint(format!("to unmount it: holdfast unmount {}", shell(&path))));
        }
        holdfast_fuse::unmount(&path, true)
            .map_err(|error| Failure::new(format!("{}: an abandoned mount is in the way: {error}", path.display())))?;
    }
    let fail = |error: io::Error| Failure::at(&path, mounts::plain(&error));
    if !fs::metadata(&path).map_err(fail)?.is_dir() {
        return Err(Failure::new(format!("{} is no directory", path.display())));
    }
    if !nonempty && fs::read_dir(&path).map_err(fail)?.next().is_some() {
        return Err(Failure::new(format!("{} is not empty; a mount would hide what is in it", path.display()))
            .hint("to mount there nevertheless: -o nonempty"));
    }
    Ok(path)
}

/// Arenas of the C library's allocator. It would give nearly each thread one, and each keeps what has been freed in it: with a million files
/// that is a third of the daemon's memory beside its pool.
#[cfg(target_env = "gnu")]
const ALLOCATOR_ARENAS: i32 = 2;

fn foreground(mounting: &Mounting, report_ready: bool, format: Format, log_level: Option<LogLevel>) -> Result<()> {
    // SAFETY: sets a number that is looked at when an arena is made.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ALLOCATOR_ARENAS)
    };
    if report_ready {
        // Away from the terminal of whoever started this; fails only for the leader of a process group.
        let _ = rustix::process::setsid();
        let _ = rustix::thread::set_name(c"holdfast");
    }
    crate::logging::start(Some(&mounting.store), log_level);
    let told = |told: Told| {
        if report_ready {
            // Whether anybody listens comes out in the end.
            let _ = daemon::tell(&told);
        }
    };
    daemon::serve(mounting, told, |report| {
        if report_ready {
            daemon::tell(&Told::Ready(Box::new(report.clone())))?;
        } else {
            print(format, &Mounted { report });
        }
        Ok(())
    })
}
