//! Serving a mount: from opening the store to leaving it in order.
//!
//! ```text
//!  main thread      waits for the end: a signal, or the last FUSE worker (the kernel has unmounted)
//!  fuse-0 …         receive requests and answer them: naming and cache code runs here
//!  writer           closes epochs in time
//!  scrub            verifies blocks, once it has been asked to
//!  check            compares everything in a recovery point with everything, once it has been asked to
//!  main             writes to the main disk of a Flashlog what is in its log
//!  control, command take commands about the Flashlog that the store is on, if it is on one
//!  signals          turns SIGINT, SIGTERM, SIGHUP into a message to the main thread
//! ```
//!
//! A panic anywhere aborts the process ([`abort_on_panic`]): a thread that died alone would leave applications waiting
//! for ever, and locks and state half changed. An abort is a power cut, which the store is made for. The hook does
//! it and not `panic = "abort"` in the profile, so that it holds for every profile and the log gets the message first.

mod check;
pub(crate) mod given_up;
mod lab;
mod launch;
mod live;
pub(crate) mod log;
pub(crate) mod notify;
mod own;
mod record;
mod remount;
mod scrub;
mod set;

pub(crate) use launch::{Launch, Told, tell};
pub(crate) use remount::{RemountReply, RemountRequest};

use crate::check::{CheckReply, CheckRequest};
use crate::disks::Disks;
use crate::failure::{Failure, Result};
use crate::given_up::{FILES_NAMED, Named, NotStored};
use crate::growth::{self, GrowReply};
use crate::holder;
use crate::options::MountOptions;
use crate::report::{CacheFigures, Condition, Daemon, StoreReport};
use crate::scrub::{ScrubReply, ScrubRequest};
use crate::signals;
use crate::snapshots::{self, LastComparison, SnapshotReply, SnapshotRequest};
use crate::stack::BadFile;
use crate::users;
use check::Checker;
use given_up::Earlier;
use holdfast_block::Access;
use holdfast_cache::Cache;
use holdfast_fuse::adapter::{self, Filesystem, Served, Synchronous};
use holdfast_fuse::control::{Control, STATUS_JSON_BYTES_MAX, Trimmed};
use holdfast_fuse::{Session, Worker};
use holdfast_object::{Epoch, ObjectCache, PAGE_SIZE, StoreStatus};
use live::Live;
use own::OwnMount;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use serde::de::DeserializeOwned;
use set::Backups;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often the writer looks at the age of the open epoch at least.
const WRITER_PERIOD: Duration = Duration::from_millis(100);
/// How long a mount that is asked to end waits for files to be closed before it cuts them off, and then for its workers.
const GRACE: Duration = Duration::from_secs(2);
const GRACE_STEP: Duration = Duration::from_millis(100);

/// Blocks that a trim looks at in one request: 16 MiB. Whoever asks shows how far it is, and can end.
const TRIM_STEP_BLOCKS: u64 = 4096;

/// What names of FUSE workers begin with.
pub(crate) const WORKER_NAME: &str = "fuse-";

/// Why a mount takes no changes that was stopped on purpose.
const SHUT_DOWN: &str = "it was shut down on request: unmount it, and mount it again";

/// What a mount is.
#[derive(Clone, Debug)]
pub(crate) struct Mounting {
    /// The file or disk; absolute.
    pub(crate) store: PathBuf,
    /// Where; absolute.
    pub(crate) directory: PathBuf,
    pub(crate) options: MountOptions,
    /// How long to wait for whoever has the store and shows no sign of life; zero: for ever.
    pub(crate) timeout: Duration,
    /// Where standard error goes, if that is a file.
    pub(crate) log: Option<PathBuf>,
    /// It can be damaged on purpose while it is used.
    pub(crate) lab: bool,
    /// How the memory of metadata is locked, in words.
    pub(crate) metadata_pages: String,
}

enum Event {
    Signal(&'static str),
    WorkerEnded(io::Result<()>),
}

/// Mounts, calls `ready` when the mount can be used, and serves until it ends. The store is clean on `Ok`, and has what was written. If the daemon of the
/// last mount is still closing the store, waits for it. `told` hears of that, and of whatever else takes long.
///
/// # Errors
/// What prevents the mount, before `ready`; what prevented a clean end, after it.
pub(crate) fn serve(
    mounting: &Mounting,
    told: impl Fn(Told),
    ready: impl FnOnce(&StoreReport) -> io::Result<()>,
) -> Result<()> {
    // Before the first thread, so that all inherit it.
    signals::block().map_err(|error| Failure::new(format!("cannot block signals: {error}")))?;
    abort_on_panic();
    let live = open(mounting, told)?;
    let backups = Backups::of(&live.disks);
    let earlier = Earlier::load(&live.stack, live.disks.is_copy());
    let state = Arc::new(State {
        mounting: mounting.clone(),
        served: Arc::new(Served::new(live.stack.namespace.clone())),
        live: RwLock::new(live),
        kernel: OnceLock::new(),
        compared: LastComparison::default(),
        checker: Checker::default(),
        down: OnceLock::new(),
        backups,
        earlier,
        options: Mutex::new(mounting.options.clone()),
        remounting: Mutex::new(()),
    });
    let (session, own) = match mount(mounting) {
        Ok(mounted) => mounted,
        Err(failure) => {
            // Opening has made a recovery point of its own, in a store that is in use.
            state.close()?;
            return Err(failure);
        }
    };
    let (sender, events) = mpsc::channel();
    let mut workers = Workers { events, running: 0 };
    match session.device().try_clone_to_owned() {
        Ok(kernel) => drop(state.kernel.set(kernel)),
        Err(error) => tracing::warn!(%error, "the kernel cannot be told of what a replay changes"),
    }
    let outcome = workers.start(mounting.options.threads, &session, &state, &sender);
    let outcome = outcome.and_then(|()| watch_signals(sender, Arc::downgrade(&state)));
    let writer = Writer::start(&state);
    let commands = set::take_commands(&state);
    let outcome = outcome.and_then(|()| {
        tracing::info!("mounted on {}", mounting.directory.display());
        tracing::info!("metadata pages: {}", mounting.metadata_pages);
        if let Some(warning) = mounting.options.audit.warning() {
            tracing::warn!("audit: {warning}");
        }
        if let Some(warning) = &mounting.options.protection_warning {
            tracing::warn!("{warning}");
        }
        if mounting.lab {
            tracing::warn!("for the lab: its memory and its disk can be damaged on purpose");
        }
        let report = state.report();
        if let Some(warning) = report.unprotected_by_store() {
            tracing::warn!("{warning}");
        }
        if let Some(what) = report.figures.and_then(|figures| figures.space.useless_quota()) {
            tracing::warn!("{what}");
        }
        ready(&state.report())
            .map_err(|error| Failure::new(format!("whoever asked for the mount is gone: {error}")))?;
        notify::ready(&format!("{} is mounted on {}", mounting.store.display(), mounting.directory.display()));
        Ok(())
    });
    match &outcome {
        Ok(()) => workers.serve_until_the_end(&own),
        Err(_) => workers.end_mount(&own),
    }
    notify::stopping("writing what is not on the disk yet");
    if let Some(commands) = commands {
        if let Some(set) = state.live.read().disks.set() {
            set.cut_off();
        }
        commands.end();
    }
    state.live.read().scrubber.stop();
    state.checker.stop();
    writer.stop(&state);
    if state.is_down() {
        tracing::info!("left as it was; the next mount recovers it");
        return outcome;
    }
    let closed = state.close();
    outcome.and(closed)
}

/// A panic in any thread ends the process, after the message has been logged.
pub(crate) fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        tracing::error!(thread = thread.name().unwrap_or("?"), "{panic}");
        std::process::abort();
    }));
}

fn open(mounting: &Mounting, told: impl Fn(Told)) -> Result<Live> {
    let access = if mounting.options.flags.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    tracing::info!("opened by holdfast {version}, process {pid}");
    let device = holder::device(&mounting.store, access, mounting.timeout, &mut |text| {
        tracing::info!("{text}");
        told(Told::Waits(text.to_string()));
    })?;
    let disks = Disks::on(device, &mounting.options.disks)?;
    Live::open(Arc::new(disks), &mounting.options, &mut |what| told(Told::Does(what.to_string())))
}

fn mount(mounting: &Mounting) -> Result<(Session, OwnMount)> {
    let options = holdfast_fuse::MountOptions {
        source: mounting.store.clone().into_os_string(),
        allow_other: mounting.options.allow_other,
        flags: mounting.options.flags,
    };
    let device = holdfast_fuse::mount(&mounting.directory, &options)
        .map_err(|error| users::mount_failed(&mounting.directory, &error))?;
    let own = OwnMount::made_at(&mounting.directory);
    match Session::start(device, mounting.options.caching) {
        Ok(session) => Ok((session, own)),
        Err(error) => {
            own.cut_off();
            Err(Failure::new(format!("cannot agree with the kernel: {error}")))
        }
    }
}

pub(crate) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(run)
}

fn watch_signals(sender: Sender<Event>, state: Weak<State>) -> Result<()> {
    let watch = move || {
        // Ends with the process.
        while let Ok(name) = signals::wait() {
            // Once the mount is gone, nobody receives it any more; a device may still be waited for.
            let _ = sender.send(Event::Signal(name));
            // Whoever waits for one holds the stack, and a remount may wait for that.
            let Some(state) = state.upgrade() else { return };
            if let Some(set) = state.live.read_recursive().disks.set() {
                set.end_waits();
            }
        }
    };
    spawn("signals".into(), watch).map(drop).map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))
}

/// The thread that closes epochs.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn start(state: &Arc<State>) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, state) = (stop.clone(), state.clone());
        let write = move || {
            let mut last = String::new();
            while !stopped.load(Ordering::Acquire) {
                state.cache().wait_for_work(WRITER_PERIOD);
                // The stack is not exchanged in the middle of it.
                let live = state.live.read();
                if let Err(error) = live.stack.cache.tick() {
                    let error = error.to_string();
                    if error != last {
                        notify::status(&format!("takes no changes: {error}"));
                        tracing::error!(%error, "an epoch could not be written, and nothing is from now on");
                        last = error;
                    }
                }
            }
        };
        // Without it, syncs and full pools still close epochs, and so does the end.
        let thread = spawn("writer".into(), write).map_err(|error| tracing::error!(%error, "no writer thread")).ok();
        Writer { stop, thread }
    }

    fn stop(self, state: &State) {
        self.stop.store(true, Ordering::Release);
        state.cache().wake_writer();
        if let Some(thread) = self.thread {
            // A panic has aborted the process.
            let _ = thread.join();
        }
    }
}

/// The FUSE workers, as the main thread sees them.
struct Workers {
    events: Receiver<Event>,
    running: usize,
}

impl Workers {
    fn start(&mut self, count: usize, session: &Session, state: &Arc<State>, sender: &Sender<Event>) -> Result<()> {
        let flags = state.mounting.options.flags;
        let synchronous = match (flags.synchronous, flags.dir_synchronous) {
            (true, _) => Synchronous::Everything,
            (false, true) => Synchronous::Names,
            (false, false) => Synchronous::AsAsked,
        };
        let caching = session.negotiated().caching();
        let options = adapter::Options { caching, synchronous, workers: count, ..adapter::Options::default() };
        let filesystem = Arc::new(Filesystem::new(state.served.clone(), state.clone(), options));
        for number in 0..count {
            let (filesystem, sender) = (filesystem.clone(), sender.clone());
            let serve = move |mut worker: Worker| {
                let ended = worker.serve(&*filesystem);
                // The main thread may have gone on without this one.
                let _ = sender.send(Event::WorkerEnded(ended));
            };
            // A queue of its own is only faster.
            let device = session.clone_device().or_else(|_| session.device().try_clone_to_owned());
            let worker = device.and_then(|device| session.worker(device));
            let started = worker.and_then(|worker| spawn(format!("{WORKER_NAME}{number}"), move || serve(worker)));
            started.map_err(|error| Failure::new(format!("cannot start worker {number}: {error}")))?;
            self.running += 1;
        }
        Ok(())
    }

    fn serve_until_the_end(mut self, own: &OwnMount) {
        while self.running > 0 {
            match self.events.recv() {
                Ok(Event::WorkerEnded(ended)) => self.ended(&ended),
                Ok(Event::Signal(name)) => {
                    tracing::info!("asked to end by {name}");
                    return self.end_mount(own);
                }
                Err(_) => return,
            }
        }
        tracing::info!("unmounted");
    }

    fn ended(&mut self, ended: &io::Result<()>) {
        self.running -= 1;
        if let Err(error) = ended {
            tracing::warn!(%error, "a worker ended");
        }
    }

    /// Takes the mount away: in order if nobody uses it; after a while also if somebody does, whose requests are cut off.
    fn end_mount(mut self, own: &OwnMount) {
        let mut waited = Duration::ZERO;
        while let Err(error) = own.unmount() {
            let busy = error.kind() == io::ErrorKind::ResourceBusy;
            if busy && waited < GRACE {
                // The kernel does not tell when the last user lets go.
                thread::sleep(GRACE_STEP);
                waited += GRACE_STEP;
                continue;
            }
            tracing::warn!(%error, "it cannot be unmounted in order, so whoever uses it is cut off");
            own.cut_off();
            break;
        }
        if self.have_ended() {
            return;
        }
        // Somebody has unmounted it lazily, and somebody still uses it.
        tracing::warn!("it is still in use, so whoever uses it is cut off");
        own.cut_off();
        if !self.have_ended() {
            tracing::warn!("requests still come; what they change from now on is not durable without fsync");
        }
    }

    /// Waits for the workers, but not for ever.
    fn have_ended(&mut self) -> bool {
        while self.running > 0 {
            match self.events.recv_timeout(GRACE) {
                Ok(Event::WorkerEnded(ended)) => self.ended(&ended),
                Ok(Event::Signal(_)) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Why a mount does nothing any more.
struct Down(&'static str);

impl From<Down> for Failure {
    fn from(Down(reason): Down) -> Failure {
        Failure::new(reason)
    }
}

impl From<Down> for holdfast_object::Error {
    fn from(Down(reason): Down) -> holdfast_object::Error {
        holdfast_object::Error::ReadOnly(reason.into())
    }
}

/// What the mount tells about itself.
struct State {
    mounting: Mounting,
    /// Locked for writing by a remount that exchanges it, between `remounting` and `served`.
    live: RwLock<Live>,
    /// What requests of files use of it.
    served: Arc<Served>,
    /// The connection, once there is one.
    kernel: OnceLock<OwnedFd>,
    compared: LastComparison,
    /// Stopped before the stack is exchanged.
    checker: Checker,
    /// Why nothing is answered any more: [`Control::shut_down`], or a remount after which nothing can be shown.
    down: OnceLock<&'static str>,
    backups: Backups,
    /// What the mounts before gave up.
    earlier: Earlier,
    /// As they are now: a remount changes some of them.
    options: Mutex<MountOptions>,
    /// Held by a remount, from its beginning to its end.
    remounting: Mutex<()>,
}

impl State {
    fn cache(&self) -> Arc<Cache> {
        self.live.read().stack.cache.clone()
    }

    fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::geteuid().as_raw()
    }

    /// # Errors
    /// Why it does nothing any more, if it is down.
    fn check_up(&self) -> std::result::Result<(), Down> {
        self.down.get().map_or(Ok(()), |reason| Err(Down(reason)))
    }

    /// What it stands on, for as long as that is not exchanged.
    ///
    /// # Errors
    /// As [`State::check_up`].
    fn up(&self) -> std::result::Result<RwLockReadGuard<'_, Live>, Down> {
        let live = self.live.read();
        self.check_up().map(|()| live)
    }

    /// Leaves the store in order.
    ///
    /// # Errors
    /// It is not, or not all that was written is there.
    fn close(&self) -> Result<()> {
        let live = self.live.read();
        live.close(&self.mounting.store)?;
        self.earlier.add(&live.stack, &self.mounting.store)
    }

    fn report(&self) -> StoreReport {
        let Mounting { store, directory, .. } = &self.mounting;
        let options = self.options.lock().clone();
        let live = self.live.read();
        let stack = &live.stack;
        let cache = stack.cache.status();
        let status = StoreStatus { space: stack.cache.space_expected(), ..stack.status() };
        let mut report = StoreReport::bare(store, Condition::Mounted, Some(directory));
        // Not looked at without a reason: whoever changes the root may be waiting for the device.
        if status.unrepaired > 0 || stack.recovered.root_damage.is_some() {
            report.root_damage = stack.namespace.root_damage().map(|error| error.to_string());
        }
        let down = self.down.get().map(|reason| reason.to_string());
        let asked_for = down.is_none() && options.flags.read_only;
        report.stopped_at_opening = down.is_none() && !asked_for && stack.is_stopped;
        report.read_only = match asked_for {
            true => Some("mounted with the option ro".into()),
            false => down.or_else(|| cache.read_only.clone()).or_else(|| status.read_only.clone()),
        };
        report.latched = !asked_for && report.read_only.is_some();
        report.cache = Some(CacheFigures::from(&cache));
        report.figures = Some(stack.figures(status));
        live.disks.tell(&mut report);
        if let Some(set) = &mut report.flashlog {
            self.backups.tell(set);
        }
        report.not_stored = not_stored(stack.bad_files(FILES_NAMED));
        if report.latched {
            report.not_written = not_stored(stack.unwritten_files(FILES_NAMED));
        }
        report.given_up = self.earlier.report(stack);
        report.scrub = Some(crate::scrub::ScrubReport { findings: Vec::new(), ..live.scrubber.report() });
        report.daemon = Some(Daemon {
            pid: std::process::id(),
            pid_namespace: crate::holder::pid_namespace(),
            options: options.words(),
            version: env!("CARGO_PKG_VERSION").into(),
            lab: self.mounting.lab,
            metadata_pages: self.mounting.metadata_pages.clone(),
            audit: self.mounting.options.audit,
            protection_warning: self.mounting.options.protection_warning.clone(),
            log: self.mounting.log.as_ref().map(|log| log.display().to_string()),
            was_clean: stack.was_clean,
            recovered_from: stack.recovered.from,
            superblocks_lost: stack.module.unknown_slots(),
            batches_replayed: stack.recovered.batches,
            synced_pages_lost: stack.recovered.lost.len() as u64,
            batches_torn: stack.recovered.batches_torn,
            name_audit_failures: stack.namespace.audit_failures(),
        });
        report
    }
}

fn not_stored((bad, files): (Vec<BadFile>, usize)) -> Option<NotStored> {
    let named = |BadFile { path, pages, bytes, .. }| Named { path, pages, bytes };
    (files > 0).then(|| NotStored { files: files as u64, named: bad.into_iter().map(named).collect() })
}

/// A request in JSON.
fn asked<T: DeserializeOwned>(request: &[u8]) -> Result<T> {
    serde_json::from_slice(request)
        .map_err(|error| Failure::new(format!("the mount does not understand what it is asked: {error}")))
}

impl Control for State {
    fn sync(&self) -> holdfast_object::Result<Epoch> {
        let live = self.up()?;
        let epoch = live.stack.cache.sync_all()?;
        match live.stack.cache.errors_tell_all() {
            None => Ok(epoch),
            Some(error) => {
                live.stack.log_bad("is not on the disk as it was written");
                Err(error)
            }
        }
    }

    fn scrub_json(&self, request: &[u8]) -> Vec<u8> {
        let outcome = asked(request).and_then(|request| {
            let scrubber = &self.up()?.scrubber;
            match request {
                ScrubRequest::Begin { rate_bytes_per_s } => scrubber.begin(rate_bytes_per_s),
                ScrubRequest::Status => Ok(scrubber.report()),
                ScrubRequest::Pause => scrubber.pause(),
                ScrubRequest::Resume => scrubber.resume(),
                ScrubRequest::Cancel => scrubber.cancel(),
            }
        });
        let reply = match outcome {
            Ok(report) => ScrubReply::Done(Box::new(report)),
            Err(failure) => ScrubReply::Refused(failure.message),
        };
        reply.to_json(STATUS_JSON_BYTES_MAX)
    }

    fn check_json(&self, uid: u32, request: &[u8]) -> Vec<u8> {
        let outcome = match self.is_owner(uid) {
            false => Err(Failure::new("only root and the user who mounted the store check it")),
            true => asked(request).and_then(|request| {
                let live = self.up()?;
                match request {
                    CheckRequest::Begin => {
                        self.checker.begin(&live.stack, &self.mounting, self.earlier.report(&live.stack))
                    }
                    CheckRequest::Status => Ok(self.checker.reply()),
                    CheckRequest::Cancel => Ok(self.checker.stop()),
                }
            }),
        };
        outcome.unwrap_or_else(|failure| CheckReply::Refused(failure.message)).to_json(STATUS_JSON_BYTES_MAX)
    }

    fn snapshot_json(&self, uid: u32, request: &[u8]) -> Vec<u8> {
        let is_owner = self.is_owner(uid);
        let is_read_only = self.options.lock().flags.read_only;
        let outcome = asked(request).and_then(|request| {
            let live = self.up()?;
            if is_read_only && matches!(request, SnapshotRequest::Create { .. } | SnapshotRequest::Delete { .. }) {
                return Err(Failure::new("it is mounted read-only"));
            }
            snapshots::answer(&live.stack, &request, is_owner, &self.compared)
        });
        let reply = outcome.unwrap_or_else(SnapshotReply::Refused);
        serde_json::to_vec(&reply).unwrap_or_default()
    }

    fn grow_json(&self, uid: u32, request: &[u8]) -> Vec<u8> {
        let grown = match self.is_owner(uid) {
            false => Err(Failure::new("only root and the user who mounted the store make it larger")),
            true => asked(request).and_then(|request| {
                let live = self.up()?;
                growth::grow(&live.stack, &live.disks, &request)
            }),
        };
        serde_json::to_vec(&grown.map_or_else(GrowReply::Refused, GrowReply::Done)).unwrap_or_default()
    }

    fn remount_json(&self, uid: u32, request: &[u8]) -> Vec<u8> {
        let refusal = remount::apply(self, uid, request).err().map(|failure| failure.message);
        serde_json::to_vec(&RemountReply { refusal }).unwrap_or_default()
    }

    fn inject_json(&self, uid: u32, request: &[u8]) -> Option<Vec<u8>> {
        self.mounting.lab.then(|| lab::answer(self, uid, request).to_json(STATUS_JSON_BYTES_MAX))
    }

    fn trim(&self, from_bytes: u64) -> holdfast_object::Result<Trimmed> {
        let live = self.up()?;
        if from_bytes == 0 {
            // What was deleted is free then.
            live.stack.cache.sync_all()?;
            live.disks.main().give_up_reservation();
        }
        let bytes = |blocks: u64| blocks.saturating_mul(PAGE_SIZE as u64);
        let first = from_bytes / PAGE_SIZE as u64;
        let next = first.saturating_add(TRIM_STEP_BLOCKS);
        let discarded = live.stack.cache.trim(first..next)?;
        Ok(Trimmed {
            next_bytes: bytes(next),
            size_bytes: bytes(live.disks.device().blocks()),
            discarded_bytes: bytes(discarded),
        })
    }

    fn shut_down(&self, uid: u32) -> holdfast_object::Result<bool> {
        if !self.is_owner(uid) {
            return Ok(false);
        }
        tracing::warn!("it is shut down by an ioctl of user {uid}: nothing is written from now on");
        // First of all, so that no request comes between.
        let _ = self.down.set(SHUT_DOWN);
        self.live.read().stack.cache.shut_down(SHUT_DOWN).map(|()| true)
    }

    fn is_down(&self) -> bool {
        self.down.get().is_some()
    }

    fn status_json(&self) -> Vec<u8> {
        self.report().to_json(STATUS_JSON_BYTES_MAX)
    }
}
