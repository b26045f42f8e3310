//! How a command asks the server of a set: a unix socket, named after the set, in the runtime directory. A request is one line of JSON, the
//! answer another, after lines that tell how far a backup is. The socket is its owner's, and whoever may open it may have the server do what its user may.

use super::attach::{AttachReport, DetachReport, NewLog};
use super::backup::{BackupReport, BackupTo};
use super::catch_up::CatchUpReport;
use super::grow::GrowReport;
use super::past::{Moments, PastReport, PastServer, Wanted};
use super::report::SetReport;
use super::scrub::ScrubReport;
use super::sets;
use crate::daemon::spawn;
use crate::failure::{Failure, Result};
use crate::growth::NewSize;
use crate::mounts::plain;
use crate::stack;
use holdfast_block::flashlog::Uuid;
use holdfast_block::nbd::{Listener, Stop};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// How the set is doing.
    Status,
    /// Bring a backup up to date, and perhaps read it back; without a place, the one that the server was started with.
    Backup(Option<BackupTo>, bool),
    /// The moments since a backup's state.
    Moments(Option<PathBuf>),
    /// Serve a state, as long as whoever asks is there: backup, which state, socket.
    Past(Option<PathBuf>, Wanted, Option<PathBuf>),
    /// Give main the log that it had, or a new one.
    Attach { log: PathBuf, new: Option<NewLog> },
    /// Let the log go; main is alone then.
    Detach,
    /// The same, also if only the log tells which blocks of main are damaged.
    DetachForgetting,
    /// Make the set larger; without a size, as large as main is.
    Grow(Option<NewSize>),
    /// Bring main up to date with everything that was written.
    CatchUp,
    /// Compare main with this backup, or the last one, or with the log only.
    Scrub { backup: Option<PathBuf>, log_only: bool },
}

/// How far a backup is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Copied {
    pub(crate) done_bytes: u64,
    /// As far as it is known.
    pub(crate) total_bytes: u64,
    /// Told once, before anything is copied: another backup, whose place this one takes.
    #[serde(default, rename = "in_place_of", skip_serializing_if = "Option::is_none")]
    pub(crate) replaces: Option<Replaced>,
}

/// The backup that a set has had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Replaced {
    pub(crate) backup: String,
    /// It goes with the log until the other one has a state.
    pub(crate) is_kept: bool,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// What was asked for is under way; another answer follows.
    Under(Copied),
    Status(Box<SetReport>),
    BackedUp(Box<BackupReport>),
    Moments(Moments),
    Past(PastReport),
    Attached(AttachReport),
    Detached(DetachReport),
    Grown(GrowReport),
    CaughtUp(CatchUpReport),
    Scrubbed(Box<ScrubReport>),
    Failed(Failure),
}

/// Longest request or answer.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// How long the other side may take for a line that it has begun.
const PATIENCE: Duration = Duration::from_secs(10);
/// Until commands are taken again, if one could not be.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How often is told how far something is.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Another place for sockets, above all.
const DIRECTORY_VARIABLE: &str = "HOLDFAST_RUNTIME_DIR";
/// What a control socket's name ends with.
const SUFFIX: &str = "control";

/// The directory for sockets, made if there is none.
pub(crate) fn directory() -> Result<PathBuf> {
    let directory = directory_path()?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| Failure::at(&directory, plain(&error)))?;
    Ok(directory)
}

fn directory_path() -> Result<PathBuf> {
    let given = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(path) = given(DIRECTORY_VARIABLE) {
        return Ok(path);
    }
    if rustix::process::geteuid().is_root() {
        // Not XDG_RUNTIME_DIR, which a service of the system does not have, but a shell of root's may.
        return Ok(PathBuf::from("/run/holdfast"));
    }
    given("XDG_RUNTIME_DIR").map(|path| path.join("holdfast")).ok_or_else(|| {
        Failure::new("there is no directory for sockets: XDG_RUNTIME_DIR is not set")
            .hint("say where: --control PATH, or HOLDFAST_RUNTIME_DIR")
    })
}

/// The control socket of a set.
pub(crate) fn socket_of(directory: &Path, set: Uuid) -> PathBuf {
    directory.join(format!("flashlog-{set}.{SUFFIX}"))
}

/// Which set a command is about.
#[derive(Clone, Copy, Default)]
pub(crate) struct Target<'a> {
    /// The server's socket.
    pub(crate) control: Option<&'a Path>,
    /// Devices of which at least one tells.
    pub(crate) devices: &'a [&'a Path],
}

/// A connection to the server of a set.
pub(crate) struct Server(UnixStream);

impl Server {
    /// The server that a command is about: at the socket that was given; else that of the set which the devices are of, if there is
    /// one; else, without devices, the only one that runs.
    pub(crate) fn find(target: Target<'_>) -> Result<Option<Server>> {
        if let Some(path) = target.control {
            return Server::connect(path).map(Some).map_err(|error| {
                Failure::at(path, plain(&error))
                    .hint("no server of a set listens there; holdfast flashlog serve starts one")
            });
        }
        let directory = match (directory_path(), target.devices) {
            (Err(failure), []) => return Err(failure),
            (directory, _) => directory.ok(),
        };
        if !target.devices.is_empty() {
            let label = target.devices.iter().find_map(|path| sets::look(path).ok().flatten());
            return Ok(match (label, directory) {
                (Some(label), Some(directory)) => Server::connect(&socket_of(&directory, label.set)).ok(),
                _ => None,
            });
        }
        let mut found: Vec<(PathBuf, Server)> = directory.iter().flat_map(|directory| running(directory)).collect();
        match found.len() {
            0 | 1 => Ok(found.pop().map(|(_, server)| server)),
            many => Err(Failure::usage(format!("{many} sets are served; say which one"))
                .hint(format!("--control PATH: {}", names(&found)))),
        }
    }

    fn connect(path: &Path) -> io::Result<Server> {
        let stream = UnixStream::connect(path)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Server(stream))
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        self.ask_watching(request, &mut |_| ())
    }

    fn ask_watching(&mut self, request: &Request, watch: &mut dyn FnMut(Copied)) -> Result<Answer> {
        let gone = |error: io::Error| Failure::new(format!("the server of the set does not answer: {}", plain(&error)));
        write_line(&mut self.0, request).map_err(gone)?;
        let mut from = BufReader::new(&self.0);
        loop {
            match read_line(&mut from).map_err(gone)? {
                Answer::Under(copied) => watch(copied),
                Answer::Failed(failure) => return Err(failure),
                answer => return Ok(answer),
            }
        }
    }

    /// How the set is doing.
    pub(crate) fn status(mut self) -> Result<SetReport> {
        // It answers at once, or never.
        let _ = self.0.set_read_timeout(Some(PATIENCE));
        match self.ask(&Request::Status)? {
            Answer::Status(report) => Ok(*report),
            _ => Err(senseless()),
        }
    }

    /// Brings a backup up to date. It takes as long as it takes; `watch` gets how far it is.
    pub(crate) fn backup(
        mut self,
        to: Option<BackupTo>,
        verify: bool,
        watch: &mut dyn FnMut(Copied),
    ) -> Result<BackupReport> {
        match self.ask_watching(&Request::Backup(to, verify), watch)? {
            Answer::BackedUp(report) => Ok(*report),
            _ => Err(senseless()),
        }
    }

    /// The moments since a backup's state.
    pub(crate) fn moments(mut self, backup: Option<PathBuf>) -> Result<Moments> {
        match self.ask(&Request::Moments(backup))? {
            Answer::Moments(moments) => Ok(moments),
            _ => Err(senseless()),
        }
    }

    /// Gives main a log. It takes as long as it takes.
    pub(crate) fn attach(mut self, log: PathBuf, new: Option<NewLog>) -> Result<AttachReport> {
        match self.ask(&Request::Attach { log, new })? {
            Answer::Attached(report) => Ok(report),
            _ => Err(senseless()),
        }
    }

    /// Lets the log go.
    pub(crate) fn detach(mut self, accept_loss: bool) -> Result<DetachReport> {
        match self.ask(if accept_loss { &Request::DetachForgetting } else { &Request::Detach })? {
            Answer::Detached(report) => Ok(report),
            _ => Err(senseless()),
        }
    }

    /// Makes the set larger.
    pub(crate) fn grow(mut self, size: Option<NewSize>) -> Result<GrowReport> {
        match self.ask(&Request::Grow(size))? {
            Answer::Grown(report) => Ok(report),
            _ => Err(senseless()),
        }
    }

    /// Brings main up to date. It takes as long as it takes.
    pub(crate) fn catch_up(mut self) -> Result<CatchUpReport> {
        match self.ask(&Request::CatchUp)? {
            Answer::CaughtUp(report) => Ok(report),
            _ => Err(senseless()),
        }
    }

    /// Compares main with its backup, or with the log. It takes as long as it takes.
    pub(crate) fn scrub(mut self, backup: Option<PathBuf>, log_only: bool) -> Result<ScrubReport> {
        match self.ask(&Request::Scrub { backup, log_only })? {
            Answer::Scrubbed(report) => Ok(*report),
            _ => Err(senseless()),
        }
    }

    /// Has a state served, until the answer is dropped.
    pub(crate) fn past(mut self, backup: Option<PathBuf>, at: Wanted, socket: Option<PathBuf>) -> Result<ServedPast> {
        match self.ask(&Request::Past(backup, at, socket))? {
            Answer::Past(report) => Ok(ServedPast { report, stream: self.0 }),
            _ => Err(senseless()),
        }
    }
}

/// A state that a set's server serves.
pub(crate) struct ServedPast {
    pub(crate) report: PastReport,
    stream: UnixStream,
}

impl ServedPast {
    /// Waits until the server ends, which is an error.
    pub(crate) fn wait(mut self) -> Result<()> {
        let _ = io::copy(&mut self.stream, &mut io::sink());
        Err(Failure::new("the server of the set has ended"))
    }
}

fn senseless() -> Failure {
    Failure::new("the server of the set answers something else than it was asked; it may be of another version")
}

/// The servers whose sockets are there and that listen.
fn running(directory: &Path) -> Vec<(PathBuf, Server)> {
    sockets(directory).filter_map(|path| Server::connect(&path).ok().map(|server| (path, server))).collect()
}

fn sockets(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension() == Some(OsStr::new(SUFFIX)))
}

/// The sockets at which nobody listens: whoever was there has ended without taking leave, and nobody has begun again since.
pub(crate) fn left_behind() -> Vec<PathBuf> {
    let is_dead =
        |path: &PathBuf| Server::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    let directory = directory_path();
    directory.iter().flat_map(|directory| sockets(directory)).filter(is_dead).collect()
}

fn names(found: &[(PathBuf, Server)]) -> String {
    let names: Vec<String> = found.iter().map(|(path, _)| crate::paths::shell(path)).collect();
    names.join(", ")
}

/// All sets that are served, as far as this user may ask.
pub(crate) fn all() -> Result<Vec<SetReport>> {
    running(&directory_path()?).into_iter().map(|(_, server)| server.status()).collect()
}

/// What a request leads to.
pub(crate) enum Response {
    Answer(Answer),
    /// A state is to be served as long as the client is there.
    Past(Box<PastServer>),
}

/// The thread that takes commands.
pub(crate) struct Commands {
    ending: Ending,
    /// For whoever else is at work on the set.
    working: Sender<()>,
    /// Ends when nobody is at work any more.
    worked: Receiver<()>,
    thread: JoinHandle<()>,
}

/// For those who serve a state, which ends with the commands.
#[derive(Clone)]
struct Ending {
    /// Readable from then on.
    stop: Arc<OwnedFd>,
    /// No more states are served.
    is_over: Arc<AtomicBool>,
}

impl Commands {
    /// Listens at a path, and has `respond` answer each command in a thread of its own: a backup goes on while the status is asked.
    /// How far it is goes to the function that it gets with the command.
    pub(crate) fn take(
        path: &Path,
        respond: impl Fn(Request, &mut dyn FnMut(Copied)) -> Response + Send + Sync + 'static,
    ) -> Result<Commands> {
        let listener = Listener::unix(path, 0o600).map_err(|error| Failure::at(path, plain(&error)))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(stack::says)?;
        let (working, worked) = channel();
        let ending = Ending { stop: Arc::new(stop), is_over: Arc::default() };
        let (of_thread, at_work) = (ending.clone(), working.clone());
        let run = move || {
            if let Err(error) = take_commands(&listener, &of_thread, &at_work, Arc::new(respond)) {
                tracing::error!(%error, "no commands are taken any more");
            }
        };
        let thread = spawn("control".into(), run).map_err(stack::says)?;
        Ok(Commands { ending, working, worked, thread })
    }

    /// Whoever has it is waited for in the end.
    pub(crate) fn at_work(&self) -> Sender<()> {
        self.working.clone()
    }

    /// No more commands, and no states are served; what is under way is waited for, as it would go on with a set that is closed. What does not end
    /// soon, as a scrub, is cut off with the process.
    pub(crate) fn end(self) {
        self.ending.is_over.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&*self.ending.stop, &1_u64.to_ne_bytes());
        let _ = self.thread.join();
        drop(self.working);
        if self.worked.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a command is still at work, and is cut off");
        }
    }
}

fn take_commands(
    listener: &Listener,
    ending: &Ending,
    at_work: &Sender<()>,
    respond: Arc<impl Fn(Request, &mut dyn FnMut(Copied)) -> Response + Send + Sync + 'static>,
) -> io::Result<()> {
    loop {
        let mut waited = [PollFd::new(&*ending.stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        match poll(&mut waited, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if !waited[0].revents().is_empty() {
            return Ok(());
        }
        let client = match rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
            Ok(client) => client,
            Err(error) => {
                tracing::debug!(%error, "a command cannot be taken");
                // If there are no file descriptors, whoever asks is there to be polled all the time.
                poll(&mut waited[..1], Some(&PAUSE))?;
                continue;
            }
        };
        let (client, respond, ending) = (UnixStream::from(client), respond.clone(), ending.clone());
        let at_work = at_work.clone();
        let talk = move || {
            let _at_work = at_work;
            if let Err(error) = answer(&client, ending, |request, tell| respond(request, tell)) {
                tracing::debug!(%error, "a command went away");
            }
        };
        // If there is no thread for it, the command sees the end of the connection.
        let _ = spawn("command".into(), talk);
    }
}

/// Until a client has gone, who has nothing more to say, or commands end.
fn wait_for_either(client: &UnixStream, end: &OwnedFd) {
    loop {
        let mut waited = [PollFd::new(client, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
        match poll(&mut waited, None) {
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Takes one request from a client and answers it.
fn answer(
    stream: &UnixStream,
    ending: Ending,
    respond: impl FnOnce(Request, &mut dyn FnMut(Copied)) -> Response,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut told = None::<Instant>;
    let mut tell = |copied| {
        if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            told = Some(Instant::now());
            // Whoever asked may be gone; the work goes on.
            let _ = write_line(&mut &*stream, &Answer::Under(copied));
        }
    };
    let response = match read_line(&mut BufReader::new(stream)) {
        Ok(request) => respond(request, &mut tell),
        // A command of another version asks what this one does not know.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let failure = Failure::new(format!("the server does not know what it is asked: {error}"));
            Response::Answer(Answer::Failed(failure))
        }
        Err(error) => return Err(error),
    };
    let mut to = stream;
    match response {
        Response::Answer(answer) => write_line(&mut to, &answer),
        Response::Past(server) => {
            if ending.is_over.load(Ordering::SeqCst) {
                return Ok(());
            }
            write_line(&mut to, &Answer::Past(server.report.clone()))?;
            let (stop, client) = (Stop::new()?, stream.try_clone()?);
            let on_end = stop.clone();
            spawn("past".into(), move || {
                wait_for_either(&client, &ending.stop);
                on_end.stop();
            })?;
            server.run(&stop).map_err(|failure| io::Error::other(failure.message))
        }
    }
}

fn write_line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

fn read_line<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<T> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[test]
    fn a_command_that_is_at_work_is_waited_for_in_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("set.control");
        let (begun, has_begun) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let (may_go_on, is_done) = (Mutex::new(may_go_on), Arc::new(AtomicBool::new(false)));
        let done = is_done.clone();
        let commands = Commands::take(&path, move |_, _| {
            begun.send(()).unwrap();
            may_go_on.lock().recv().unwrap();
            done.store(true, Ordering::SeqCst);
            Response::Answer(Answer::Failed(Failure::new("done")))
        })
        .unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        write_line(&mut client, &Request::CatchUp).unwrap();
        has_begun.recv().unwrap();
        let ending = std::thread::spawn(move || commands.end());
        // It has begun to end: nobody is listened to any more.
        while UnixStream::connect(&path).is_ok() {
            std::thread::yield_now();
        }
        go_on.send(()).unwrap();
        ending.join().unwrap();
        assert!(is_done.load(Ordering::SeqCst));
    }
}
