//! Commands that ask a mount, watched from outside: a request to a daemon that is stuck cannot be taken back, and whoever waits for
//! the answer cannot even be killed. So the command runs in a process of its own, and this one waits for it, looks now and then
//! whether the mount gives a sign of life, and gives up when there was none for too long.

use crate::args::Command;
use crate::commands::status::look;
use crate::failure::{Failure, Result, exit};
use crate::holder::work_done;
use crate::mounts::{self, FILE_SYSTEM, Mount};
use crate::output::{Format, print_failure};
use crate::paths::shell;
use crate::process::{self, has_ended};
use crate::report::Condition;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After how long the mount is looked at first, and how often then.
const PERIOD: Duration = Duration::from_secs(2);

/// The path of a mount that the command asks, if it does.
pub(crate) fn asked(command: &Command) -> Option<PathBuf> {
    use crate::args::SnapshotAction::{Create, Delete, Diff, List};
    match command {
        Command::Status(status) if !status.ask => status.path.clone(),
        Command::Sync(sync) => Some(sync.target.clone()),
        Command::Scrub(scrub) => Some(scrub.target.clone()),
        Command::Trim(trim) => Some(trim.target.clone()),
        Command::Grow(grow) => Some(grow.target.clone()),
        Command::Inject(inject) => Some(inject.store.clone()),
        Command::Snapshot(snapshot) => match &snapshot.action {
            Create { target, .. } | Delete { target, .. } | List { target } | Diff { target, .. } => {
                Some(target.clone())
            }
        },
        _ => None,
    }
}

/// How long the command waits for work of others, while the mount may do nothing.
pub(crate) fn waits(command: &Command) -> Duration {
    match command {
        Command::Inject(inject) => Duration::from_secs(inject.metadata.wait.into()),
        _ => Duration::ZERO,
    }
}

/// Runs this command line again, in a process that is not watched itself. Gives its exit code.
pub(crate) fn run(path: &Path, timeout: Duration, format: Format) -> ExitCode {
    // A process that cannot end would keep pipes open, for whose end somebody may wait; what it says is handed on.
    let stream = |is_terminal: bool| if is_terminal { Stdio::inherit() } else { Stdio::piped() };
    let again = std::process::Command::new("/proc/self/exe")
        .arg0("holdfast")
        .arg("--unwatched")
        .args(process::arguments())
        .stdin(Stdio::null())
        .stdout(stream(io::stdout().is_terminal()))
        .stderr(stream(io::stderr().is_terminal()))
        .spawn()
        .map_err(|error| Failure::new(format!("cannot start a process: {error}")));
    let outcome = again.and_then(|mut child| {
        let out = child.stdout.take().map(|from| hand_on(from, io::stdout()));
        let errors = child.stderr.take().map(|from| hand_on(from, io::stderr()));
        let code = wait(&mut child, path, timeout)?;
        for stream in [out, errors].into_iter().flatten() {
            // It has said everything.
            let _ = stream.join();
        }
        Ok(code)
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            print_failure(format, &failure);
            ExitCode::from(failure.code)
        }
    }
}

fn hand_on(mut from: impl Read + Send + 'static, mut to: impl Write + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        // Nobody reading it is no error.
        let _ = io::copy(&mut from, &mut to).and_then(|_| to.flush());
    })
}

fn wait(child: &mut Child, path: &Path, timeout: Duration) -> Result<u8> {
    let cannot = |error: io::Error| Failure::new(format!("cannot wait for a process: {error}"));
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).map_err(|error| cannot(error.into()))?;
    let mut life = (Instant::now(), None);
    let mut next_look = Instant::now() + PERIOD;
    loop {
        if has_ended(&process, next_look.saturating_duration_since(Instant::now()))? {
            let status = child.wait().map_err(cannot)?;
            // A signal that ends the command ends this one, too, unless it was meant for the command alone.
            return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILED));
        }
        if Instant::now() < next_look {
            continue;
        }
        let (mounts, is_known) = candidates(path);
        let (mut signs, stuck) = signs(&mounts);
        if !is_known && let Some(work) = work_done(child.id()) {
            // Perhaps there is no mount, and the command itself works on a store.
            signs.get_or_insert_with(String::new).push_str(&String::from_utf8_lossy(&work));
        }
        if signs.is_some() && signs != life.1 {
            life = (Instant::now(), signs);
        } else if !timeout.is_zero() && life.0.elapsed() >= timeout {
            // It may have to stay until the daemon is there again; then it ends.
            let _ = child.kill();
            return Err(gave_up(stuck.or(mounts.first()), path, stuck.is_some(), timeout));
        }
        next_look = Instant::now() + PERIOD;
    }
}

/// The mounts that the path may be about, without looking at the path itself; and whether it is about the only one.
fn candidates(path: &Path) -> (Vec<Mount>, bool) {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let of_store = |mount: &Mount| mount.source == path;
    let all = mounts::of_holdfast().unwrap_or_default();
    if let Some(mount) = all.iter().rfind(|mount| of_store(mount)) {
        return (vec![mount.clone()], true);
    }
    match mounts::containing(&path) {
        Ok(Some(mount)) if mount.file_system == FILE_SYSTEM => (vec![mount], true),
        // There are symbolic links on the way, or it is a store that is not mounted.
        _ => (all, false),
    }
}

/// What shows that mounts get on, if anything does, and the first one that does not answer.
fn signs(mounts: &[Mount]) -> (Option<String>, Option<&Mount>) {
    let mut signs = None;
    for mount in mounts {
        let report = look(mount);
        match report.condition {
            Condition::NotAnswering => return (None, Some(mount)),
            Condition::Mounted => {
                let counters = report.figures.as_ref().map(|figures| (&figures.counters, figures.epoch));
                let read = report.scrub.as_ref().map(|scrub| &scrub.counts);
                let transactions = report.cache.as_ref().map(|cache| cache.transactions);
                signs.get_or_insert_with(String::new).push_str(&format!("{counters:?} {read:?} {transactions:?}\n"));
            }
            _ => {}
        }
    }
    (signs, None)
}

fn gave_up(mount: Option<&Mount>, path: &Path, is_stuck: bool, timeout: Duration) -> Failure {
    let seconds = timeout.as_secs();
    let Some(mount) = mount else {
        return Failure::new(format!("{}: no answer for {seconds} s", path.display()));
    };
    let directory = mount.directory.display();
    let failure = Failure::new(match is_stuck {
        true => format!("{directory} does not answer: no sign of life of its daemon for {seconds} s"),
        false => format!(
            "{directory} does not get on: its store {} has done nothing for {seconds} s",
            mount.source.display()
        ),
    });
    failure.hint(format!(
        "its disk may hang (dmesg tells); --timeout waits longer; to cut off the mount: holdfast unmount --force {}",
        shell(&mount.directory)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_works_on_a_store_itself_is_not_given_up() {
        // It reads for longer than the timeout, twice as long as the mounts are looked at.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "for i in 1 2 3 4 5 6 7 8 9 10; do cat /proc/version >/dev/null; sleep 0.5; done"])
            .spawn()
            .unwrap();
        let path = Path::new("/proc/self/no-store");
        assert_eq!(wait(&mut child, path, Duration::from_secs(2)).map_err(|failure| failure.message), Ok(0));
    }
}
