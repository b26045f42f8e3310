//! Serving a set: from opening its devices to leaving it settled.
//!
//! ```text
//!  main thread   takes NBD clients, each of which gets threads of its own; ends by a signal
//!  catch-up      brings main up to date while clients write to the log
//!  log           writes to the log what clients have written, while they write more
//!  signals       turns SIGINT, SIGTERM, SIGHUP into the end
//!  control       takes commands, each of which gets a thread: a backup goes on while the status is asked
//! ```
//!
//! A panic ends the process, as one in a mount's daemon does: the set comes out of it as out of a power cut.

use super::backup::{self, BackupTo};
use super::control::{self, Answer, Commands, Copied, Request, Response};
use super::in_use::{InUse, which_backup};
use super::places::Places;
use super::report::{Served, SetReport};
use super::{scrub, sets};
use crate::daemon::{abort_on_panic, notify, spawn};
use crate::failure::{Failure, Result};
use crate::mounts::plain;
use crate::output::Report;
use crate::{signals, stack};
use holdfast_block::flashlog::{Action, Condition, Flashlog, Lasting, Options, Policy, Role, Symptom, Watch, inspect};
#[cfg(feature = "ublk")]
use holdfast_block::nbd::Edges;
use holdfast_block::nbd::{Export, Limits, Listener, Server, Stop, Tls};
use holdfast_block::{Access, Device};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a set is to be served.
pub(crate) struct Serving {
    /// Absolute, as the others are.
    pub(crate) main: PathBuf,
    /// Without one main is served alone.
    pub(crate) log: Option<PathBuf>,
    /// Then what only the log may have is given up.
    pub(crate) accept_loss: bool,
    /// Where backups go if nobody says.
    pub(crate) backup: Option<PathBuf>,
    pub(crate) options: Options,
    pub(crate) policy: Policy,
    pub(crate) read_only: bool,
    /// Unix sockets for clients.
    pub(crate) sockets: Vec<PathBuf>,
    /// Addresses for clients.
    pub(crate) listen: Vec<String>,
    /// A disk of the kernel's as well.
    #[cfg(feature = "ublk")]
    pub(crate) ublk: bool,
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
    in_use: InUse,
    serving: Serving,
    uris: Vec<String>,
    /// Where backups go, and whoever has it makes one.
    backup: Mutex<Option<PathBuf>>,
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
    let watch = Watch::new(serving.policy.clone(), &serving.options, Box::new(Places::default()));
    let Opened { lasting, replayed_blocks, returning } = open(&serving, &watch)?;
    let in_use = InUse::new(lasting, serving.log.as_deref());
    let lasting = in_use.lasting.clone();
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
    // Both write to it, and a client of NBD parts of blocks.
    #[cfg(feature = "ublk")]
    let edges = Arc::new(Edges::default());
    #[cfg(feature = "ublk")]
    {
        export = export.with_edges(edges.clone());
    }
    if serving.read_only {
        export = export.read_only();
    }
    let limits = Limits { connections: serving.connections, ..Limits::default() };
    let mut server = Server::new(vec![export]).limited(limits);
    if let Some(tls) = tls {
        server = server.with_tls(tls);
    }
    #[cfg(feature = "ublk")]
    let disk = match serving.ublk {
        true => {
            let disk = Edges::over(edges, lasting.clone());
            Some(holdfast_block::ublk::Ublk::start(disk, serving.read_only).map_err(says)?)
        }
        false => None,
    };
    #[cfg(feature = "ublk")]
    uris.extend(disk.iter().map(|disk| disk.path().display().to_string()));
    let backup = Mutex::new(serving.backup.clone());
    let set = Arc::new(Set { in_use, serving, uris, backup });
    let stop = Stop::new().map_err(says)?;
    watch_signals(stop.clone(), watch.clone())?;
    let (at_main, at_log, reads) = (lasting.clone(), lasting.clone(), lasting.clone());
    let catching_up = spawn("catch-up".into(), move || at_main.serve_main()).map_err(says)?;
    let logging = spawn("log".into(), move || at_log.serve_log()).map_err(says)?;
    let reading = spawn("reads".into(), move || reads.serve_reads()).map_err(says)?;
    let asked = set.clone();
    let control = Commands::take(&control_path, move |request, tell| asked.respond(request, tell))?;
    if let Some(log) = returning {
        let (set, at_work) = (set.clone(), control.at_work());
        let attach = move || {
            set.take_back(&log);
            drop(at_work);
        };
        spawn("attach".into(), attach).map_err(says)?;
    }
    ready(&Ready { report: set.report(), control: control_path, replayed_blocks });
    notify::ready(&format!("Flashlog {uuid} is served"));
    let served = server.run(&listeners, &stop).map_err(says);
    notify::stopping("bringing main up to date");
    #[cfg(feature = "ublk")]
    let served = served.and(disk.map_or(Ok(()), |disk| disk.stop().map_err(says)));
    // Whoever is still at work would write to a set that is closed.
    watch.cut_off();
    control.end();
    lasting.end_main();
    // A panic would have ended the process.
    let _ = (catching_up.join(), logging.join(), reading.join());
    // The next opening has nothing to do then; without it, it does this.
    let closed = lasting.close().map_err(says);
    served.and(closed)
}

/// A set that was opened.
struct Opened {
    lasting: Lasting,
    /// What its log had and main may not have had.
    replayed_blocks: u64,
    /// The log that main, which is alone, had before, and gets back while it is served.
    returning: Option<PathBuf>,
}

/// Opens the set. A main that is alone is served so, and gets its log meanwhile, so that a server which is started again serves as it did
/// before; also without its log, if the policy goes on alone when that has gone. Nobody else is served without it unasked.
fn open(serving: &Serving, watch: &Arc<Watch>) -> Result<Opened> {
    let over = |device, role| watch.over(role, device).map_err(sets::explain);
    let main = sets::main(&serving.main, Access::ReadWrite, serving.log.as_deref())?;
    let label = inspect(&*main).map_err(sets::explain)?;
    let is_alone = label.is_some_and(|label| label.condition == Condition::Alone);
    let (main, policy) = (over(main, Role::Main)?, serving.policy.clone());
    let options = Options { watch: Some(watch.clone()), ..serving.options.clone() };
    let goes_on = is_alone && policy.entry(Role::Log, Symptom::Gone, options.mode).action == Action::GoOnAlone;
    let log = match &serving.log {
        Some(log) if log.exists() => Some(log),
        Some(log) if goes_on => {
            tracing::warn!("{} is not there: main is served without its log", log.display());
            None
        }
        Some(log) => {
            let hint = "plug it in; to serve main alone: --without-log";
            return Err(Failure::at(log, "the log is not there").hint(hint));
        }
        None => None,
    };
    match log.filter(|_| !is_alone) {
        Some(log) => {
            let log = over(stack::device(log, Access::ReadWrite)?, Role::Log)?;
            let (set, opened) = Flashlog::open(main, log, &options).map_err(sets::explain_opening)?;
            Ok(Opened { lasting: Lasting::of(set, policy), replayed_blocks: opened.blocks, returning: None })
        }
        None => {
            let lasting = Lasting::open_alone(main, &options, policy, serving.accept_loss).map_err(sets::explain)?;
            Ok(Opened { lasting, replayed_blocks: 0, returning: log.cloned() })
        }
    }
}

fn says(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

fn watch_signals(stop: Stop, devices: Arc<Watch>) -> Result<()> {
    let watch = move || {
        if let Ok(name) = signals::wait() {
            tracing::info!("{name}: ending");
        }
        stop.stop();
        // Whoever waits for a device would keep the server from ending.
        devices.end();
    };
    spawn("signals".into(), watch).map(drop).map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))
}

impl Set {
    /// Main, which is alone, gets its log back. If it cannot, it is served alone, as its status says.
    fn take_back(&self, log: &Path) {
        match self.in_use.attach(log, None) {
            Ok(report) => tracing::info!("{}", report.words().trim_end()),
            Err(failure) => tracing::error!("{} does not come back: {failure}", log.display()),
        }
    }

    fn report(&self) -> SetReport {
        let served = Served {
            main: &self.serving.main.display().to_string(),
            log: &self.in_use.log(),
            backing_up: self.backup.is_locked(),
            read_only: self.serving.read_only,
            uris: &self.uris,
        };
        SetReport::lasting(&self.in_use.lasting.status(), &served).with_policy(self.in_use.lasting.policy())
    }

    fn respond(&self, request: Request, tell: &mut dyn FnMut(Copied)) -> Response {
        let in_use = &self.in_use;
        let response = match request {
            Request::Status => Ok(Response::Answer(Answer::Status(Box::new(self.report())))),
            Request::Backup(to, verify) => self.back_up(to, verify, tell).map(Response::Answer),
            Request::Moments(backup) => self.backup_or(backup).and_then(|backup| in_use.moments(&backup)),
            Request::Past(backup, at, socket) => {
                self.backup_or(backup).and_then(|backup| in_use.past(&backup, at, socket.as_deref()))
            }
            Request::Attach { log, new } => {
                in_use.attach(&log, new.as_ref()).map(|report| Response::Answer(Answer::Attached(report)))
            }
            Request::CatchUp => in_use.catch_up(),
            Request::Scrub { backup, log_only } => self.scrub(backup, log_only),
            Request::Grow(_) if self.serving.read_only => Err(Failure::new("the set is served for reading only")),
            Request::Grow(size) => {
                in_use.grow(size, &self.backup).map(|report| Response::Answer(Answer::Grown(report)))
            }
            Request::Detach | Request::DetachForgetting => in_use
                .detach(&self.backup, matches!(request, Request::DetachForgetting))
                .map(|report| Response::Answer(Answer::Detached(report))),
        };
        response.unwrap_or_else(|failure| {
            tracing::warn!("{failure}");
            Response::Answer(Answer::Failed(failure))
        })
    }

    /// The backup that was named, or the last one.
    fn backup_or(&self, named: Option<PathBuf>) -> Result<PathBuf> {
        match (named, self.backup.try_lock()) {
            (Some(named), _) => Ok(named),
            (None, Some(last)) => last.clone().ok_or_else(which_backup),
            (None, None) => Err(Failure::new("a backup is under way").hint("try again when that is done")),
        }
    }

    fn scrub(&self, backup: Option<PathBuf>, log_only: bool) -> Result<Response> {
        let backup = if log_only { None } else { Some(self.backup_or(backup)?) };
        let report = scrub::run(&*self.in_use.flashlog()?, backup.as_deref())?;
        Ok(Response::Answer(Answer::Scrubbed(Box::new(report))))
    }

    fn back_up(&self, to: Option<BackupTo>, verify: bool, tell: &mut dyn FnMut(Copied)) -> Result<Answer> {
        let Some(mut last) = self.backup.try_lock() else {
            return Err(Failure::new("a backup is under way already"));
        };
        let remembered = last.clone().map(BackupTo::remembered);
        let Some(to) = to.or(remembered) else {
            return Err(Failure::usage("it is not known where backups of this set go").hint("say where: --to DEVICE"));
        };
        tracing::info!("backup to {} begins", to.path.display());
        let (lasting, set) = (&self.in_use.lasting, self.in_use.flashlog()?);
        let report = backup::run(&set, &to, verify, tell, |error| lasting.heed(error))?;
        tracing::info!("backup to {} is done", to.path.display());
        *last = Some(to.path);
        Ok(Answer::BackedUp(Box::new(report)))
    }
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
