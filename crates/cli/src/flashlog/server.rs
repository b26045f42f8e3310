//! Serving a set: from opening its devices to leaving it settled.
//!
//! ```text
//!  main thread   takes NBD clients, each of which gets threads of its own; ends by a signal
//!  catch-up      brings main up to date while clients write to the log
//!  signals       turns SIGINT, SIGTERM, SIGHUP into the end
//!  control       takes commands, each of which gets a thread: a backup goes on while the status is asked
//! ```
//!
//! A panic ends the process, as one in a mount's daemon does: the set comes out of it as out of a power cut.

use super::attach::{self, AttachReport, DetachReport, NewLog};
use super::backup::{self, BackupTo};
use super::control::{self, Answer, Commands, Request, Response};
use super::past::{Moments, PastServer, Wanted};
use super::report::{Served, SetReport};
use super::sets;
use crate::daemon::{abort_on_panic, notify, spawn};
use crate::failure::{Failure, Result};
use crate::mounts::plain;
use crate::{signals, stack};
use holdfast_block::flashlog::{Flashlog, Lasting, Options, Policy, Protection};
use holdfast_block::nbd::{Export, Limits, Listener, Server, Stop, Tls};
use holdfast_block::{Access, Device, FileDevice};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest that a detached log may be held by those who were at it.
const LET_GO: Duration = Duration::from_secs(2);

/// How a set is to be served.
pub(crate) struct Serving {
    /// Absolute, as the others are.
    pub(crate) main: PathBuf,
    /// Without one main is served alone.
    pub(crate) log: Option<PathBuf>,
    /// Where backups go if nobody says.
    pub(crate) backup: Option<PathBuf>,
    pub(crate) options: Options,
    pub(crate) policy: Policy,
    pub(crate) read_only: bool,
    /// Unix sockets for clients.
    pub(crate) sockets: Vec<PathBuf>,
    /// Addresses for clients.
    pub(crate) listen: Vec<String>,
    /// Certificates, and whether clients must have one.
    pub(crate) tls: Option<(PathBuf, bool)>,
    pub(crate) name: String,
    pub(crate) connections: usize,
    pub(crate) control: Option<PathBuf>,
}

/// What the server tells when clients can come.
pub(crate) struct Ready {
    pub(crate) report: SetReport,
    pub(crate) control: PathBuf,
    /// What the log had and main may not have had.
    pub(crate) replayed_blocks: u64,
}

/// Who can be asked about the set.
struct Set {
    lasting: Arc<Lasting>,
    serving: Serving,
    uris: Vec<String>,
    /// Where backups go, and whoever has it makes one.
    backup: Mutex<Option<PathBuf>>,
    /// Path of the log, or of the last one that there was.
    log: Mutex<String>,
    /// Whoever has it attaches or detaches a log.
    changing: Mutex<()>,
}

/// Serves until a signal. `inherited` are the sockets of the service manager.
///
/// # Errors
/// What prevents it, before `ready`; a device that could not be flushed, after it.
pub(crate) fn serve(serving: Serving, inherited: Vec<Listener>, ready: impl FnOnce(&Ready)) -> Result<()> {
    // Before the first thread, so that all inherit it.
    signals::block().map_err(|error| Failure::new(format!("cannot block signals: {error}")))?;
    abort_on_panic();
    let tls = match &serving.tls {
        Some((directory, verify)) => Some(Tls::from_directory(directory, *verify).map_err(says)?),
        None => None,
    };
    let (lasting, replayed_blocks) = open(&serving)?;
    let lasting = Arc::new(lasting);
    let uuid = lasting.status().0.set;
    let mut listeners = inherited;
    let with_tls = tls.is_some();
    let given = serving.sockets.len() + serving.listen.len() + listeners.len();
    let sockets = match given {
        0 => vec![control::directory()?.join(format!("flashlog-{uuid}.nbd"))],
        _ => serving.sockets.clone(),
    };
    let mut uris = Vec::new();
    for path in &sockets {
        listeners.push(Listener::unix(path, 0o600).map_err(|error| Failure::at(path, plain(&error)))?);
        uris.push(unix_uri(&serving.name, path, with_tls));
    }
    for address in &serving.listen {
        for listener in Listener::tcp(address).map_err(|error| Failure::new(format!("{address}: {}", plain(&error))))? {
            uris.extend(listener.address().map(|address| tcp_uri(&serving.name, &address.to_string(), with_tls)));
            if listener.is_remote() && !with_tls {
                tracing::warn!(
                    "{address}: whoever can reach it can read and write everything; --tls-certificates prevents that"
                );
            }
            listeners.push(listener);
        }
    }
    let control_path = match &serving.control {
        Some(path) => path.clone(),
        None => control::socket_of(&control::directory()?, uuid),
    };
    let device: Arc<dyn Device> = lasting.clone();
    let mut export = Export::new(&serving.name, device).described(&format!("Flashlog {uuid}"));
    export = export.with_extents(lasting.clone());
    if serving.read_only {
        export = export.read_only();
    }
    let limits = Limits { connections: serving.connections, ..Limits::default() };
    let mut server = Server::new(vec![export]).limited(limits);
    if let Some(tls) = tls {
        server = server.with_tls(tls);
    }
    let backup = Mutex::new(serving.backup.clone());
    let log = serving.log.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let (log, changing) = (Mutex::new(log), Mutex::new(()));
    let set = Arc::new(Set { lasting, serving, uris, backup, log, changing });
    let stop = Stop::new().map_err(says)?;
    watch_signals(stop.clone())?;
    let main_side = set.lasting.clone();
    let catching_up = spawn("catch-up".into(), move || main_side.serve_main()).map_err(says)?;
    let asked = set.clone();
    let control = Commands::take(&control_path, move |request| asked.respond(request))?;
    ready(&Ready { report: set.report(), control: control_path, replayed_blocks });
    notify::ready(&format!("Flashlog {uuid} is served"));
    let served = server.run(&listeners, &stop).map_err(says);
    notify::stopping("bringing main up to date");
    control.end();
    set.lasting.end_main();
    // A panic would have ended the process.
    let _ = catching_up.join();
    // The next opening has nothing to do then; without it, it does this.
    let settled = set.lasting.settle().map_err(says);
    served.and(settled)
}

/// The set, and how many blocks its log had that main may not have had.
fn open(serving: &Serving) -> Result<(Lasting, u64)> {
    match &serving.log {
        Some(log) => {
            let (set, opened) = sets::open(&serving.main, log, &serving.options)?;
            Ok((Lasting::of(set, serving.policy), opened.blocks))
        }
        None => {
            let main = stack::device(&serving.main, Access::ReadWrite)?;
            Ok((Lasting::open_alone(main, &serving.options, serving.policy).map_err(sets::explain)?, 0))
        }
    }
}

fn says(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

fn watch_signals(stop: Stop) -> Result<()> {
    let watch = move || {
        if let Ok(name) = signals::wait() {
            tracing::info!("{name}: ending");
        }
        stop.stop();
    };
    spawn("signals".into(), watch).map(drop).map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))
}

impl Set {
    fn report(&self) -> SetReport {
        let served = Served {
            main: &self.serving.main.display().to_string(),
            log: &self.log.lock(),
            backing_up: self.backup.is_locked(),
            read_only: self.serving.read_only,
            uris: &self.uris,
        };
        SetReport::lasting(&self.lasting.status(), &served)
    }

    fn respond(&self, request: Request) -> Response {
        let response = match request {
            Request::Status => Ok(Response::Answer(Answer::Status(Box::new(self.report())))),
            Request::Backup(to, verify) => self.back_up(to, verify).map(Response::Answer),
            Request::Moments(backup) => self.moments(backup).map(Response::Answer),
            Request::Past(backup, at, socket) => {
                self.past(backup, at, socket).map(|past| Response::Past(Box::new(past)))
            }
            Request::Attach { log, new } => {
                self.attach(log, new.as_ref()).map(|report| Response::Answer(Answer::Attached(report)))
            }
            Request::Detach => self.detach().map(|report| Response::Answer(Answer::Detached(report))),
        };
        response.unwrap_or_else(|failure| {
            tracing::warn!("{failure}");
            Response::Answer(Answer::Failed(failure))
        })
    }

    /// The set with its log.
    fn flashlog(&self) -> Result<Arc<Flashlog>> {
        self.lasting.set().ok_or_else(|| {
            Failure::new("the set is without its log").hint("give it one: holdfast flashlog attach --log LOG")
        })
    }

    fn attach(&self, path: PathBuf, new: Option<&NewLog>) -> Result<AttachReport> {
        let Some(_changing) = self.changing.try_lock() else { return Err(is_changing()) };
        if matches!(self.lasting.protection(), Protection::Protected) {
            return Err(Failure::new("the set has its log").hint("to take it away: holdfast flashlog detach"));
        }
        let report = attach::take(&path, new, sets::bytes(self.lasting.blocks()))?.give_to(&self.lasting, &path)?;
        self.log.lock().clone_from(&report.log);
        Ok(report)
    }

    fn detach(&self) -> Result<DetachReport> {
        let Some(_changing) = self.changing.try_lock() else { return Err(is_changing()) };
        let Some(_no_backup) = self.backup.try_lock() else {
            return Err(Failure::new("a backup is under way").hint("try again when it is done"));
        };
        let flashlog = self.flashlog()?;
        let (set, held) = (flashlog.status().set.to_string(), Arc::downgrade(&flashlog));
        drop(flashlog);
        self.lasting.detach_log().map_err(sets::explain)?;
        // Who was at it is done soon; whoever gets the answer may attach it again at once.
        let begun = Instant::now();
        while held.strong_count() > 0 && begun.elapsed() < LET_GO {
            // An `Arc` tells nobody when its last holder lets go of it.
            thread::sleep(Duration::from_millis(5));
        }
        Ok(DetachReport { set, log: self.log.lock().clone(), free: held.strong_count() == 0 })
    }

    fn moments(&self, backup: Option<PathBuf>) -> Result<Answer> {
        let barriers = self.flashlog()?.barriers(self.backup_device(backup)?).map_err(sets::explain)?;
        Ok(Answer::Moments(Moments::of(&barriers)))
    }

    fn past(&self, backup: Option<PathBuf>, at: Wanted, socket: Option<PathBuf>) -> Result<PastServer> {
        let past = self.flashlog()?.past(self.backup_device(backup)?, at.at()).map_err(sets::explain)?;
        PastServer::new(past, socket.as_deref())
    }

    /// The backup that was named, or the last one. Several states may be looked at at once, and nobody makes a backup meanwhile.
    fn backup_device(&self, path: Option<PathBuf>) -> Result<Arc<FileDevice>> {
        let last = || self.backup.try_lock().and_then(|last| last.clone());
        let Some(path) = path.or_else(last) else {
            return Err(
                Failure::usage("it is not known where the backup of this set is").hint("say where: --backup DEVICE")
            );
        };
        stack::device(&path, Access::ReadOnlyUnlocked)
    }

    fn back_up(&self, to: Option<BackupTo>, verify: bool) -> Result<Answer> {
        let Some(mut last) = self.backup.try_lock() else {
            return Err(Failure::new("a backup is under way already"));
        };
        let remembered = last.clone().map(|path| BackupTo { path, size_bytes: None, force: false });
        let Some(to) = to.or(remembered) else {
            return Err(Failure::usage("it is not known where backups of this set go").hint("say where: --to DEVICE"));
        };
        tracing::info!("backup to {} begins", to.path.display());
        let report = backup::run(&*self.flashlog()?, &to, verify)?;
        tracing::info!("backup to {} is done", to.path.display());
        *last = Some(to.path);
        Ok(Answer::BackedUp(report))
    }
}

fn is_changing() -> Failure {
    Failure::new("a log is being attached or detached")
}

pub(super) fn unix_uri(name: &str, path: &Path, with_tls: bool) -> String {
    let scheme = if with_tls { "nbds+unix" } else { "nbd+unix" };
    format!("{scheme}:///{}?socket={}", escaped(name.as_bytes()), escaped(path.as_os_str().as_encoded_bytes()))
}

fn tcp_uri(name: &str, address: &str, with_tls: bool) -> String {
    format!("{}://{address}/{}", if with_tls { "nbds" } else { "nbd" }, escaped(name.as_bytes()))
}

/// As RFC 3986 has it.
fn escaped(bytes: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    bytes.iter().map(|&byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_have_nothing_in_them_that_means_something_else() {
        assert_eq!(unix_uri("", Path::new("/run/a b?c"), false), "nbd+unix:///?socket=/run/a%20b%3Fc");
        assert_eq!(tcp_uri("x&y", "[::1]:10809", true), "nbds://[::1]:10809/x%26y");
    }
}
