//! What a store is on: one file or disk, or the main and the log device of a Flashlog. The one place that finds out and opens them.
//!
//! A main device says so itself, in its last MiB. It is used without its log only if that is wanted: the log may have what main lacks, and
//! does not get what is changed. A log that is back gets that from main when both are opened. For reading only, main and log are looked at
//! as they are, and what opening them changes is changed in memory; the backup of a set can be looked at by itself.

use crate::daemon::spawn;
use crate::failure::{Failure, Result};
use crate::flashlog::backup::BackupTo;
use crate::flashlog::in_use::InUse;
use crate::flashlog::past::{self, Moment};
use crate::flashlog::places::Places;
use crate::flashlog::report::{Served, SetReport};
use crate::flashlog::sets::{self, explain, explain_attaching, explain_opening, explain_under_store, inspect};
use crate::report::{OneDevice, StoreReport};
use crate::scratch::Scratch;
use crate::{holder, size, stack};
use holdfast_block::flashlog::{
    At, CatchUp, Condition, Flashlog, INDEX_ENTRY_BYTES, Inspected, Lasting, Mode, Options, Past, Policy, Role, Uuid,
    Watch, as_labelled, finish_backup, has_outgrown_labels,
};
use holdfast_block::{Access, BLOCK_SIZE, Device, FileDevice};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// What the user says about the devices of a set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Given {
    /// Where the log is.
    pub(crate) log: Option<PathBuf>,
    /// Main is used alone.
    pub(crate) without_log: bool,
    /// What only the log may have is given up then.
    pub(crate) accept_loss: bool,
    /// What an answered flush says, if not as the last time.
    pub(crate) mode: Option<Mode>,
    /// When main catches up in asynchronous mode.
    pub(crate) catch_up: CatchUp,
    /// What the index of what is newer in the log may take, in bytes, if not the default.
    pub(crate) index_bytes: Option<u64>,
    /// What is done when a device fails.
    pub(crate) policy: Policy,
    /// The state that is wanted, by backup and log, if not the last one.
    pub(crate) at: Option<At>,
}

/// How many blocks the index may have in so much memory.
pub(crate) fn index_blocks(bytes: Option<u64>) -> u64 {
    bytes.map_or(Options::default().index_blocks, |bytes| bytes / INDEX_ENTRY_BYTES)
}

/// Least memory for an index: of 50 MB of data.
const INDEX_BYTES_MIN: u64 = 1 << 20;

/// Reads how much memory the index may take.
pub(crate) fn parse_index_bytes(text: &str) -> std::result::Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes < INDEX_BYTES_MIN => {
            Err(format!("{text:?} is too little: at least {}", size::show(INDEX_BYTES_MIN)))
        }
        bytes => Ok(bytes),
    }
}

/// The opened file or disk of a store, or those of its set.
pub(crate) struct Disks {
    main: Arc<FileDevice>,
    kind: Kind,
}

enum Kind {
    /// It is the store.
    Plain,
    /// A state of a set, of backup and log.
    Past(Inspected, Arc<Past>),
    /// The backup of a set, at the end of a state; as a mount for reading sees it.
    Backup(Inspected, Arc<dyn Device>),
    Set(Set),
}

/// The set that a store is on.
pub(crate) struct Set {
    pub(crate) in_use: InUse,
    /// What main's label said before it was opened.
    pub(crate) label: Inspected,
    /// The log, if it stays as it is. One that is written to may go, and nobody holds it then.
    looked_at: Option<Arc<FileDevice>>,
    /// Main and log stay as they are.
    pub(crate) is_read_only: bool,
    /// Waits for devices that have gone.
    watch: Arc<Watch>,
    /// They bring main up to date while the log takes more, and to the log what has come while more comes.
    threads: Vec<JoinHandle<()>>,
}

/// Opens what a store is on, exclusively. What is in use is refused at once.
pub(crate) fn open(store: &Path, access: Access, given: &Given) -> Result<Disks> {
    Disks::on(stack::device(store, access)?, given)
}

/// How long a log is waited for.
const LOG_WAIT: Duration = Duration::from_secs(10);

/// Blocks of the largest set with a main device of so many.
fn set_blocks_most(device_blocks: u64) -> u64 {
    const MIB_BLOCKS: u64 = (1 << 20) / BLOCK_SIZE as u64;
    (device_blocks / MIB_BLOCKS).saturating_sub(1) * MIB_BLOCKS
}

impl Disks {
    /// What the store is on that begins on this file or disk: opened as that is.
    pub(crate) fn on(main: Arc<FileDevice>, given: &Given) -> Result<Disks> {
        let store_blocks = holdfast_physical::blocks_of_store(&*main);
        // What is where labels would be is the store's, whatever it is.
        if store_blocks.is_some_and(|blocks| blocks > set_blocks_most(main.blocks())) {
            return Disks::plain(main, given);
        }
        let (shown, is_writable) = (main.name().to_string(), main.is_writable());
        let (seen, label) = labelled(&main, store_blocks)?;
        match label {
            None => {
                let has_moved = store_blocks.map(|blocks| has_outgrown_labels(&*main, blocks));
                if has_moved.transpose().map_err(explain)? == Some(true) {
                    return Err(Failure::new(format!(
                        "{shown} was the main disk of a Flashlog, its size has changed, and its labels are damaged"
                    ))
                    .hint("give it the size that it had, or make it anew from the backup: holdfast flashlog rebuild"));
                }
                Disks::plain(main, given)
            }
            Some(label) => match (label.role, label.condition) {
                (Role::Main | Role::Backup, _) if given.at.is_some() => Disks::past(main, label, given),
                (Role::Log, _) => Err(Failure::new(format!("{shown} is the log of a Flashlog, not its main disk"))
                    .hint(format!("the store is on the main disk of set {}", label.set))),
                (Role::Backup, _) if is_writable => Err(Failure::new(format!("{shown} is the backup of a Flashlog"))
                    .hint("it is changed by backups only; to look at it, mount it with -o ro")),
                (Role::Backup, _) => Disks::backup(main, label),
                (Role::Main, condition) => {
                    // To look at, it has everything.
                    let is_alone = given.without_log || !is_writable && condition == Condition::Alone;
                    let log = if is_alone { None } else { Some(found_log(&main, &label, given.log.as_deref())?) };
                    let set = Set::open(&seen, log, label, !is_writable, given)?;
                    Ok(Disks { main, kind: Kind::Set(set) })
                }
            },
        }
    }

    fn plain(main: Arc<FileDevice>, given: &Given) -> Result<Disks> {
        let is_none = format!("{} is not the main disk of a Flashlog: it has no log", main.name());
        match given {
            Given { log: Some(log), .. } => Err(Failure::usage(format!("{is_none}, also not {}", log.display()))),
            Given { at: Some(at), .. } => {
                let wanted = match at {
                    At::Barrier(number) => format!("barrier {number}"),
                    at => past::written(*at),
                };
                let shown = main.name();
                Err(Failure::usage(format!("{shown} is on no Flashlog: its state at {wanted} is nowhere"))
                    .hint("a snapshot keeps a state of any store: holdfast snapshot list"))
            }
            Given { without_log: true, .. } => {
                Err(Failure::usage(is_none).hint("mount it without the option without-log"))
            }
            _ => Ok(Disks { main, kind: Kind::Plain }),
        }
    }

    /// A state of the set that the device is main or backup of. Nothing is written, and main is not looked at.
    fn past(device: Arc<FileDevice>, label: Inspected, given: &Given) -> Result<Disks> {
        if device.is_writable() {
            return Err(Failure::usage("a state of the past takes no changes")
                .hint("to go back for good: holdfast flashlog rebuild"));
        }
        let (shown, at) = (device.name(), given.at.unwrap_or_default());
        let log = match &given.log {
            Some(log) => log.clone(),
            None => search(Path::new(shown), Role::Log, label.log).ok_or_else(|| {
                Failure::new(format!("{shown} has the log {}, which is not there", label.log))
                    .hint("plug it in, or say where it is: -o log=PATH")
            })?,
        };
        // Whoever has one of them uses the set: there is nothing to wait for.
        let open = |path: &Path| stack::device(path, Access::ReadOnly);
        let log = open(&log)?;
        let backup = match label.role {
            Role::Backup => device.clone(),
            _ => {
                let backup = inspect(&log)?
                    .and_then(|label| label.backup)
                    .ok_or_else(|| Failure::new(format!("no backup goes with the log {}", log.name())))?;
                let path = search(Path::new(shown), Role::Backup, backup).ok_or_else(|| {
                    Failure::new(format!("the backup {backup} of {shown} is not there"))
                        .hint("plug it in, or mount it by itself: holdfast mount BACKUP DIR -o at=…,log=LOG")
                })?;
                open(&path)?
            }
        };
        let past = Past::open(backup, log, at).map_err(explain)?;
        tracing::info!(state = past.name(), "a state of the past is looked at");
        Ok(Disks { main: device, kind: Kind::Past(label, Arc::new(past)) })
    }

    fn backup(device: Arc<FileDevice>, label: Inspected) -> Result<Disks> {
        let shown: Arc<dyn Device> = match label.condition {
            Condition::Staged => Arc::new(Scratch::over(device.clone())),
            _ => device.clone(),
        };
        finish_backup(shown.clone()).map_err(explain)?;
        Ok(Disks { main: device, kind: Kind::Backup(label, shown) })
    }

    /// Whether it is a backup, or an earlier state: not the store that mounts go on with.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.kind, Kind::Past(..) | Kind::Backup(..))
    }

    /// What the store is on.
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        match &self.kind {
            Kind::Plain => self.main.clone(),
            Kind::Past(_, past) => past.clone(),
            Kind::Backup(_, shown) => shown.clone(),
            Kind::Set(set) => set.in_use.lasting.clone(),
        }
    }

    /// The file or disk that the store begins on: main, of a set.
    pub(crate) fn main(&self) -> &Arc<FileDevice> {
        &self.main
    }

    pub(crate) fn set(&self) -> Option<&Set> {
        match &self.kind {
            Kind::Set(set) => Some(set),
            _ => None,
        }
    }

    /// The same for writing, under the locks of these.
    pub(crate) fn for_writing(self: &Arc<Disks>, given: &Given) -> Result<Arc<Disks>> {
        if self.main.is_writable() {
            return Ok(self.clone());
        }
        let again =
            |device: &Arc<FileDevice>| FileDevice::open_writable(device.clone()).map(Arc::new).map_err(stack::says);
        let main = again(&self.main)?;
        let Kind::Set(Set { looked_at: Some(log), label, .. }) = &self.kind else {
            return Disks::on(main, given).map(Arc::new);
        };
        let (seen, _) = labelled(&main, holdfast_physical::blocks_of_store(&*main))?;
        let set = Set::open(&seen, Some(again(log)?), label.clone(), false, given)?;
        Ok(Arc::new(Disks { main, kind: Kind::Set(set) }))
    }

    /// Main has everything, and the next opening nothing to do. For a store that has been closed.
    pub(crate) fn close(&self) -> Result<()> {
        match &self.kind {
            Kind::Set(set) if !set.is_read_only => set.in_use.lasting.close().map_err(stack::says),
            _ => Ok(()),
        }
    }

    /// Adds to a report what it is on.
    pub(crate) fn tell(&self, report: &mut StoreReport) {
        match &self.kind {
            Kind::Plain => {}
            Kind::Backup(label, _) => {
                let (role, set) = (label.role.to_string(), label.set.to_string());
                report.flashlog_device = Some(OneDevice { role, set, at: None });
            }
            Kind::Past(label, past) => {
                let (role, set) = (label.role.to_string(), label.set.to_string());
                let at = match past.barrier() {
                    Some(barrier) => Moment::of(&barrier).words(),
                    None => "the end of the log, or the backup's state".to_string(),
                };
                report.flashlog_device = Some(OneDevice { role, set, at: Some(at) });
            }
            Kind::Set(set) => {
                let (mut status, protection) = set.in_use.lasting.status();
                if set.is_read_only {
                    status.mode = set.label.mode;
                }
                let served = Served {
                    main: self.main.name(),
                    log: &set.in_use.log(),
                    backing_up: false,
                    read_only: set.is_read_only,
                    uris: &[],
                };
                let told = SetReport::lasting(&(status, protection), &served);
                report.flashlog = Some(told.with_policy(set.in_use.lasting.policy()));
            }
        }
    }

    /// Whether the set's log is kept for a backup.
    pub(crate) fn has_backup(&self) -> bool {
        self.set().is_some_and(|set| set.in_use.lasting.status().0.backup.is_some())
    }

    /// The backup that the set's log is kept for, if it is there: on a disk, or a file beside main.
    pub(crate) fn backup_device(&self) -> Option<BackupTo> {
        let backup = self.set()?.in_use.lasting.status().0.backup?;
        let path = search(Path::new(self.main.name()), Role::Backup, backup)?;
        Some(BackupTo::remembered(path))
    }

    /// The file or disk that has what is in the store: what is done to it there is seen.
    pub(crate) fn bare(&self) -> Result<&Arc<FileDevice>> {
        self.close().map(|()| &self.main)
    }
}

impl Set {
    fn open(
        main: &Arc<dyn Device>,
        log: Option<Arc<FileDevice>>,
        label: Inspected,
        is_read_only: bool,
        given: &Given,
    ) -> Result<Set> {
        let options = match is_read_only {
            false => {
                let mode = given.mode.unwrap_or(label.mode);
                Options {
                    mode,
                    catch_up: given.catch_up,
                    index_blocks: index_blocks(given.index_bytes),
                    ..Options::default()
                }
            }
            // In this mode nothing that is in the log is copied, and all of it is in the index.
            true => Options { mode: Mode::Asynchronous, index_blocks: u64::MAX, ..Options::default() },
        };
        let watch = Watch::new(given.policy.clone(), &options, Box::new(Places::default()));
        let options = Options { watch: Some(watch.clone()), ..options };
        let below = |device: Arc<dyn Device>, role| -> Result<Arc<dyn Device>> {
            match is_read_only {
                true => Ok(Arc::new(Scratch::over(device))),
                false => watch.over(role, device).map_err(explain),
            }
        };
        let over_main = below(main.clone(), Role::Main)?;
        let was_alone = label.condition == Condition::Alone;
        let lasting = match &log {
            Some(log) if !was_alone => {
                let (flashlog, opened) =
                    Flashlog::open(over_main, below(log.clone(), Role::Log)?, &options).map_err(explain_opening)?;
                if !is_read_only {
                    let (generation, blocks) = (opened.generation, opened.blocks);
                    tracing::info!(set = %label.set, log = log.name(), generation, blocks, "the Flashlog is open");
                }
                Lasting::of(flashlog, given.policy.clone())
            }
            log => {
                // Whoever only reads gives up nothing.
                let may_lose = given.accept_loss || is_read_only;
                let lasting = Lasting::open_alone(over_main, &options, given.policy.clone(), may_lose);
                let lasting = lasting.map_err(explain)?;
                if let Some(log) = log {
                    let attached = lasting.attach_log(below(log.clone(), Role::Log)?);
                    attached.map_err(|error| explain_attaching(log.name(), false, error))?;
                }
                lasting
            }
        };
        let path = log.as_ref().map(|log| Path::new(log.name()));
        let in_use = InUse::new(lasting, path);
        let [at_main, at_log, reads] = [(); 3].map(|()| in_use.lasting.clone());
        let threads = match is_read_only {
            true => Vec::new(),
            // Without one of them, whoever writes does its work.
            false => [
                spawn("main".into(), move || at_main.serve_main()),
                spawn("log".into(), move || at_log.serve_log()),
                spawn("reads".into(), move || reads.serve_reads()),
            ]
            .into_iter()
            .flatten()
            .collect(),
        };
        let looked_at = log.filter(|_| is_read_only);
        Ok(Set { in_use, label, looked_at, is_read_only, watch, threads })
    }

    /// Nobody waits for its devices any longer, nor from now on: what they fail at has failed.
    pub(crate) fn end_waits(&self) {
        self.watch.end();
    }

    /// What is at work on it for commands ends soon.
    pub(crate) fn cut_off(&self) {
        self.watch.cut_off();
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        self.in_use.lasting.end_main();
        for thread in self.threads.drain(..) {
            // A panic has been told, or has ended the process.
            let _ = thread.join();
        }
    }
}

/// Whether a store is on a main disk whose log is not there, and has not been given, so that it cannot be opened.
pub(crate) fn lacks_log(store: &Path, given: &Given) -> bool {
    let label = || sets::look(store).ok().flatten().filter(|label| label.role == Role::Main);
    given.log.is_none() && label().is_some_and(|label| !has_log(store, &label))
}

/// Whether the log of a main disk is there, beside it or on any disk.
pub(crate) fn has_log(main: &Path, label: &Inspected) -> bool {
    search(main, Role::Log, label.log).is_some()
}

/// What a device says that it is, if it is one of a set. A main that has become larger is as large as it was, until it grows.
fn labelled(device: &Arc<FileDevice>, store_blocks: Option<u64>) -> Result<(Arc<dyn Device>, Option<Inspected>)> {
    as_labelled(device.clone(), store_blocks).map_err(explain_under_store)
}

/// The log of a main device, opened as that is.
fn found_log(main: &Arc<FileDevice>, label: &Inspected, given: Option<&Path>) -> Result<Arc<FileDevice>> {
    let access = if main.is_writable() { Access::ReadWrite } else { Access::ReadOnly };
    let shown = main.name();
    let path = match given {
        Some(path) => path.to_path_buf(),
        None => search(Path::new(shown), Role::Log, label.log).ok_or_else(|| match label.condition {
            Condition::Alone => {
                Failure::new(format!("{shown} has gone on without its log {}, which is not there", label.log)).hint(
                    "plug it in, or say where it is: -o log=PATH; go on without it: -o without-log; with another: \
                     holdfast flashlog attach --main MAIN --log LOG --new",
                )
            }
            _ => Failure::new(format!(
                "{shown} is the main disk of a Flashlog, and its log {} is not there",
                label.log
            ))
            .hint(
                "plug it in, or say where it is: -o log=PATH for a mount, --log PATH otherwise; to mount main alone: \
                         -o without-log",
            ),
        })?,
    };
    // Main is free already, so whoever had both is about to let go of it.
    let log = holder::device(&path, access, LOG_WAIT, &mut |_| {})?;
    match inspect(&log)? {
        Some(found) if found.role == Role::Log && found.uuid == label.log => Ok(log),
        Some(found) => {
            let is = format!("the {} device {} of set {}", found.role, found.uuid, found.set);
            Err(Failure::new(format!("{} is not the log of {shown} but {is}", path.display()))
                .hint(format!("it has the log {}", label.log)))
        }
        None => Err(Failure::new(format!("{} is no log of a Flashlog", path.display()))
            .hint(format!("{shown} has the log {}", label.log))),
    }
}

/// Looks for a device of a set: among the files beside main, and among all disks.
fn search(main: &Path, role: Role, uuid: Uuid) -> Option<PathBuf> {
    beside(main).chain(disks()).find(|path| is_device(path, role, uuid))
}

/// The first files in main's directory, if main is a file.
fn beside(main: &Path) -> impl Iterator<Item = PathBuf> {
    const LOOKED_AT: usize = 1000;
    let parent = main.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = main.is_file().then(|| std::fs::read_dir(parent).ok()).flatten();
    // Opening anything else could wait, or do something.
    let files = entries.into_iter().flatten().take(LOOKED_AT).flatten();
    files.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())).map(|entry| entry.path())
}

/// All disks and partitions of this machine, but for those that have no medium in general, or take long to say so.
fn disks() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let is_slow =
        |name: &OsStr| ["sr", "fd", "ram"].iter().any(|kind| name.as_encoded_bytes().starts_with(kind.as_bytes()));
    entries.map(|entry| entry.file_name()).filter(move |name| !is_slow(name)).map(|name| Path::new("/dev").join(name))
}

fn is_device(path: &Path, role: Role, uuid: Uuid) -> bool {
    let device = || FileDevice::open(path, Access::ReadOnlyUnlocked).map(Arc::new).ok();
    (role != Role::Log || begins_as_log(path))
        && device()
            .and_then(|device| inspect(&device).ok().flatten())
            .is_some_and(|found| found.role == role && found.uuid == uuid)
}

/// Whether it may be a log, by a few bytes.
fn begins_as_log(path: &Path) -> bool {
    // The first label and its copy; every later one in this place begins in the same way.
    const FIRST_LABELS: [u64; 2] = [2 * BLOCK_SIZE as u64, 3 * BLOCK_SIZE as u64];
    const MAGIC: &[u8; 8] = b"HFFLASHL";
    let Ok(file) = File::open(path) else { return false };
    FIRST_LABELS.iter().any(|at| {
        let mut bytes = [0; MAGIC.len()];
        file.read_exact_at(&mut bytes, *at).is_ok() && bytes == *MAGIC
    })
}
