//! `holdfast status`: how stores and mounts are doing.

use crate::args::Status;
use crate::daemon::given_up::Earlier;
use crate::disks::{self, Given};
use crate::failure::{Failure, Result, exit};
use crate::metrics;
use crate::mounts::{self, FILE_SYSTEM, Mount};
use crate::output::{Format, Report, print, print_text};
use crate::progress::Progress;
use crate::report::{Condition, StoreReport};
use crate::stack::{self, Settings, Stack};
use holdfast_block::Access;
use holdfast_fuse::control;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

#[derive(Serialize)]
struct All {
    mounts: Vec<StoreReport>,
}

impl Report for All {
    fn words(&self) -> String {
        if self.mounts.is_empty() {
            return "Nothing is mounted. `holdfast up` makes a store and mounts it.\n".into();
        }
        self.mounts.iter().map(Report::words).collect::<Vec<_>>().join("\n")
    }
}

/// How long a mount has to answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(arguments: &Status, format: Format) -> Result<u8> {
    let given = Given { log: arguments.log.clone(), ..Given::default() };
    match &arguments.path {
        Some(directory) if arguments.ask => {
            let mount = mounts::at(directory)?.ok_or_else(|| Failure::new("nothing is mounted there"))?;
            print(format, &ask(&mount));
            Ok(exit::OK)
        }
        _ if arguments.metrics && format == Format::Json => {
            Err(Failure::usage("--metrics and --json are two formats; choose one"))
        }
        path if arguments.metrics => {
            let reports = match path {
                None => mounts::of_holdfast()?.iter().map(look).collect(),
                Some(path) => vec![one(path, &given)?],
            };
            print_text(&metrics::text(&reports));
            Ok(code(&reports))
        }
        None => {
            let all = All { mounts: mounts::of_holdfast()?.iter().map(look).collect() };
            print(format, &all);
            Ok(code(&all.mounts))
        }
        Some(path) => {
            let report = one(path, &given)?;
            print(format, &report);
            Ok(code(&[report]))
        }
    }
}

/// Whether there is one that somebody has to see to.
fn code(reports: &[StoreReport]) -> u8 {
    if reports.iter().any(StoreReport::is_unwell) { exit::UNWELL } else { exit::OK }
}

fn one(path: &Path, given: &Given) -> Result<StoreReport> {
    let path = stack::locate(path)?;
    if let Some(mount) = mounts::at(&path)?.filter(|mount| mount.file_system == FILE_SYSTEM) {
        return Ok(look(&mount));
    }
    if path.is_dir() {
        let mount = mounts::containing(&path)?.filter(|mount| mount.file_system == FILE_SYSTEM);
        let mount = mount.ok_or_else(|| Failure::new(format!("{} is in no mount of a store", path.display())))?;
        return Ok(look(&mount));
    }
    let mounted = mounts::of_holdfast()?.into_iter().find(|mount| mount.serves(&path));
    match mounted.map(|mount| look(&mount)) {
        Some(report) if report.condition != Condition::Abandoned => Ok(report),
        abandoned => {
            let mounted_on = abandoned.and_then(|report| report.mounted_on);
            Ok(StoreReport { mounted_on, ..unmounted(&path, given)? })
        }
    }
}

/// The state of a mount. It is asked by a process of its own, because a request to a daemon that is stuck cannot be taken
/// back: whoever waits for the answer cannot even be killed.
pub(crate) fn look(mount: &Mount) -> StoreReport {
    let bare = |condition| StoreReport::bare(&mount.source, condition, Some(&mount.directory));
    let asked = Command::new("/proc/self/exe")
        .args(["status", "--json", "--ask", "--"])
        .arg(&mount.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut asked) = asked else { return ask(mount) };
    let Some(mut out) = asked.stdout.take() else { return bare(Condition::NotAnswering) };
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let mut json = Vec::new();
        let read = out.read_to_end(&mut json);
        // Too late is no matter.
        let _ = sender.send(read.map(|_| json));
    });
    match answer.recv_timeout(PATIENCE) {
        Ok(Ok(json)) => {
            let _ = asked.wait();
            serde_json::from_slice(&json).unwrap_or_else(|_| bare(Condition::NotAnswering))
        }
        _ => {
            let _ = asked.kill();
            bare(Condition::NotAnswering)
        }
    }
}

/// The state of a mount, asked of its daemon.
fn ask(mount: &Mount) -> StoreReport {
    let answer = File::open(&mount.directory).and_then(control::status_json);
    let bare = |condition| StoreReport::bare(&mount.source, condition, Some(&mount.directory));
    match answer {
        Ok(json) => match serde_json::from_slice(&json) {
            Ok(report) => report,
            Err(_) => bare(Condition::NotAnswering),
        },
        Err(error) if error.kind() == io::ErrorKind::NotConnected => bare(Condition::Abandoned),
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => bare(Condition::Abandoned),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => bare(Condition::Inaccessible),
        Err(_) => bare(Condition::NotAnswering),
    }
}

/// The state of a store that is not mounted. Nothing in it is changed.
fn unmounted(store: &Path, given: &Given) -> Result<StoreReport> {
    let _shown = Progress::unknown("opening the store");
    let disks = match disks::open(store, Access::ReadOnly, given) {
        Err(_) if disks::lacks_log(store, given) => {
            return Ok(StoreReport::bare(store, Condition::WithoutLog, None));
        }
        disks => disks?,
    };
    let stack = Stack::open(disks.device(), &Settings::to_look())?;
    let condition = if stack.module.is_clean() { Condition::Clean } else { Condition::Unclean };
    let mut report = StoreReport::bare(store, condition, None);
    report.figures = Some(stack.figures(stack.status()));
    disks.tell(&mut report);
    report.given_up = Earlier::look(&stack, disks.is_copy());
    if report.given_up.is_some() && condition == Condition::Unclean {
        // What was synced after it is in the intent log only.
        let replayed = Stack::replayed(disks.device());
        report.given_up = Earlier::look(replayed.as_ref().unwrap_or(&stack), disks.is_copy());
    }
    Ok(report)
}
