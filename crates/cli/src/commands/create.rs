//! `holdfast create`: a new store in a file or on a disk.

use super::flashlog::distinct;
use crate::args::{Assumed, Create};
use crate::failure::{Failure, Result};
use crate::flashlog::ground::{self, Ground};
use crate::flashlog::{apart, backup, report::mode_name, sets};
use crate::output::{Format, Report, print};
use crate::paths::shell;
use crate::probe::{self, Contents};
use crate::progress::{Progress, Unit};
use crate::protection::{Chosen, Wanted as Protected};
use crate::quoting;
use crate::size::Share;
use crate::{mounts, size, stack};
use holdfast_block::flashlog::{self, Flashlog, Mode, Options, Role, Uuid};
use holdfast_block::{Access, BLOCK_SIZE, Device, FileDevice};
use holdfast_integrity::Protection;
use holdfast_physical::{DEVICE_BLOCKS_MAX, DEVICE_BLOCKS_MIN};
use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of a store in a new file.
const DEFAULT_BYTES: u64 = 8 << 30;
/// Smallest size of a store.
pub(crate) const SIZE_BYTES_MIN: u64 = DEVICE_BLOCKS_MIN * BLOCK_SIZE as u64;

/// What was made.
#[derive(Serialize, Debug)]
pub(crate) struct Created {
    store: String,
    uuid: String,
    size_bytes: u64,
    /// For new data.
    available_bytes: u64,
    /// Whether the host has set all of it aside, so that it cannot run out of space under the store.
    reserved: bool,
    /// How the contents of files are protected.
    protection: String,
    /// Why, if that was left to Holdfast; or that the model agrees, if a machine or a goal was described.
    #[serde(skip_serializing_if = "Option::is_none")]
    protection_reason: Option<String>,
    /// What the reliability model says against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    protection_warning: Option<String>,
    /// The Flashlog that it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    flashlog: Option<CreatedSet>,
    #[serde(skip)]
    shell_path: String,
}

impl Report for Created {
    fn words(&self) -> String {
        let (size, available) = (size::show(self.size_bytes), size::show(self.available_bytes));
        let mut text = format!("Made the store {}: {size}, {available} for files.\n", quoting::name(&self.store));
        if let Some(reason) = &self.protection_reason {
            text.push_str(&format!(
                "The contents of files are protected as by the mode {}: {reason} (holdfast reliability tells more).\n",
                self.protection
            ));
        } else if self.protection != Protection::default().to_string() {
            text.push_str(&format!("The contents of files are protected as by the mode {}.\n", self.protection));
        }
        if let Some(warning) = &self.protection_warning {
            text.push_str(&format!("Warning: {warning}.\n"));
        }
        if let Some(CreatedSet { set, log, log_bytes, mode, backup, devices_warning }) = &self.flashlog {
            let (log, size) = (quoting::name(log), size::show(*log_bytes));
            text.push_str(&format!("It is on the Flashlog {set}, with a log of {size} on {log} ({mode}).\n"));
            text.push_str(&match backup {
                Some(backup) => format!("Its first backup is on {}.\n", quoting::name(backup)),
                None => {
                    "Without a backup, its log cannot replace a lost main disk: holdfast flashlog backup --to DEVICE\n"
                        .into()
                }
            });
            text.push_str(&apart::words(devices_warning.as_deref()));
        }
        if !self.reserved {
            text.push_str("This host does not set space aside: if it runs out, the store takes no more changes.\n");
        }
        text.push_str(&format!("Mount it with: holdfast mount {} DIR\n", self.shell_path));
        text
    }
}

/// What was made for a store on a Flashlog.
#[derive(Serialize, Debug)]
struct CreatedSet {
    set: String,
    log: String,
    log_bytes: u64,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<String>,
    /// What its devices have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices_warning: Option<String>,
}

/// What a new store is to be, besides its size.
#[derive(Clone, Default)]
pub(crate) struct Wanted {
    /// What only root may fill.
    reserve: Option<Share>,
    /// How the contents of files are protected, if not as by default.
    protection: Option<Chosen>,
    set: Option<WantedSet>,
}

/// Where the log of a new store is to be, and its backup.
#[derive(Clone)]
struct WantedSet {
    log: PathBuf,
    log_bytes: Option<u64>,
    backup: Option<PathBuf>,
    mode: Mode,
}

fn wanted(arguments: &Create) -> Wanted {
    let set = arguments.log.as_ref().map(|log| WantedSet {
        log: log.clone(),
        log_bytes: arguments.log_size,
        backup: arguments.backup.clone(),
        mode: arguments.mode.mode(),
    });
    let mut chosen = arguments.protection.choose(&arguments.assumed);
    if let Some(warning) = &mut chosen.warning {
        // Or else it stands in the reason.
        if chosen.reason.is_none() {
            warning.push_str(&format!(" ({})", chosen.machine));
        }
        warning.push_str("; --protection auto takes a mode that keeps it");
    }
    Wanted { reserve: arguments.reserve, protection: Some(chosen), set }
}

pub(crate) fn run(arguments: &Create, format: Format) -> Result<()> {
    // One of them is there, the command line says.
    let Some(store) = arguments.store.as_ref().or(arguments.main.as_ref()) else {
        return Err(Failure::usage("which file or disk is to be a store?"));
    };
    if arguments.protection != Protected::Auto && arguments.assumed.costs != Assumed::default().costs {
        return Err(Failure::usage("--costs has no effect but on --protection auto, which takes the cheapest mode"));
    }
    let all = [Some(store), arguments.log.as_ref(), arguments.backup.as_ref()];
    distinct(all.into_iter().flatten().map(PathBuf::as_path))?;
    print(format, &create(store, arguments.size, wanted(arguments), arguments.force)?);
    Ok(())
}

/// Makes a store. A new file is removed again if that fails.
pub(crate) fn create(store: &Path, size_bytes: Option<u64>, wanted: Wanted, force: bool) -> Result<Created> {
    if let Some(bytes) = size_bytes {
        check_size(bytes)?;
    }
    match fs::metadata(store) {
        Err(error) if is_not_there(&error) => in_new_file(store, size_bytes.unwrap_or(DEFAULT_BYTES), wanted),
        Err(error) => Err(Failure::at(store, mounts::plain(&error))),
        Ok(found) if found.is_dir() => {
            Err(Failure::new(format!("{} is a directory; a store is a file or a disk", store.display()))
                .hint(format!("try: holdfast create {}", shell(&store.join("main.store")))))
        }
        Ok(found) => over(store, size_bytes, wanted, force, found.file_type().is_block_device()),
    }
}

fn is_not_there(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn check_size(bytes: u64) -> Result<()> {
    let max = DEVICE_BLOCKS_MAX.saturating_mul(BLOCK_SIZE as u64);
    if bytes < SIZE_BYTES_MIN {
        let (got, min) = (size::show(bytes), size::show(SIZE_BYTES_MIN));
        return Err(Failure::usage(format!("a store of {got} is too small: the least is {min}")));
    }
    if bytes > max {
        return Err(Failure::usage(format!(
            "a store of {} is too large: the most is {}",
            size::show(bytes),
            size::show(max)
        )));
    }
    Ok(())
}

fn check_reserve(reserve: Option<Share>, size_bytes: u64) -> Result<()> {
    match reserve {
        Some(share) if share.is_too_much_of(size_bytes) => {
            Err(Failure::usage("--reserve: more than half of the store cannot be set aside"))
        }
        _ => Ok(()),
    }
}

fn in_new_file(store: &Path, size_bytes: u64, wanted: Wanted) -> Result<Created> {
    check_reserve(wanted.reserve, size_bytes)?;
    let directory = store.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(directory) =
        directory.filter(|directory| fs::metadata(directory).is_err_and(|error| is_not_there(&error)))
    {
        return Err(Failure::new(format!("{}: there is no such directory", directory.display()))
            .hint(format!("to make the directory: mkdir -p {}", shell(directory))));
    }
    let size_bytes = size_bytes / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    let device = FileDevice::create_file(store, size_bytes).map_err(|error| {
        let failure = stack::says(&error);
        match room(store) {
            Some(room) if room < size_bytes => {
                Failure::new(format!("{}: no room for a store of {}", store.display(), size::show(size_bytes)))
                    .hint(format!("{} are free there; choose with --size", size::show(room)))
            }
            _ => failure,
        }
    })?;
    make(store, device, &wanted, false).inspect_err(|_| {
        // What is left would only be in the way of the next try.
        let _ = fs::remove_file(store);
    })
}

/// Bytes free in the file system of a file that does not exist yet.
pub(crate) fn room(file: &Path) -> Option<u64> {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let host = rustix::fs::statvfs(directory).ok()?;
    host.f_bavail.checked_mul(host.f_frsize)
}

/// In what exists already.
fn over(store: &Path, size_bytes: Option<u64>, wanted: Wanted, force: bool, is_disk: bool) -> Result<Created> {
    // Held while looking, so that nobody's mount is overwritten.
    let held = stack::device(store, Access::ReadWrite)?;
    let file = File::options().read(true).write(true).open(store);
    let file = file.map_err(|error| Failure::at(store, mounts::plain(&error)))?;
    let length_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0));
    let length_bytes = length_bytes.map_err(|error| Failure::at(store, mounts::plain(&error.into())))?;
    if !force {
        if let Some(label) = sets::inspect(&held)? {
            let is = format!("the {} device of Flashlog {}", label.role, label.set);
            return Err(Failure::new(format!("{} is {is}; nothing was changed", store.display()))
                .hint("to overwrite it, say --force"));
        }
        let contents = {
            let progress = Progress::of("looking at what it holds", length_bytes, Unit::Bytes);
            probe::probe(&file, length_bytes, is_disk, &mut |at| progress.is_at(at))
        };
        let what = match contents.map_err(|error| Failure::at(store, mounts::plain(&error)))? {
            Contents::Empty => None,
            Contents::Known(what) => Some(what.to_string()),
            Contents::Data(at) => Some(format!("data, first at byte {at}")),
        };
        if let Some(what) = what {
            return Err(Failure::new(format!("{} holds {what}; nothing was changed", store.display()))
                .hint("to overwrite it, say --force"));
        }
    }
    match (is_disk, size_bytes, length_bytes) {
        (true, Some(bytes), _) if bytes / BLOCK_SIZE as u64 != held.blocks() => {
            return Err(Failure::usage(format!(
                "{} is a disk of {}; a store on a disk takes all of it",
                store.display(),
                size::show(length_bytes)
            )));
        }
        (false, None, 0) => resize(store, &file, DEFAULT_BYTES)?,
        (false, Some(bytes), _) => resize(store, &file, bytes)?,
        (true, ..) => check_size(length_bytes)?,
        (false, None, _) => {
            check_size(length_bytes)?;
            take(store, &file, length_bytes)?;
        }
    }
    drop((file, held));
    let device = FileDevice::open(store, Access::ReadWrite).map_err(stack::says)?;
    make(store, device, &wanted, force)
}

/// A file becomes as large. If there is no room for that it stays what it was.
pub(crate) fn resize(store: &Path, file: &File, size_bytes: u64) -> Result<()> {
    let size_bytes = size_bytes / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    let fail = |error: io::Error| Failure::new(format!("{}: {}", store.display(), mounts::plain(&error)));
    let length_bytes = file.metadata().map_err(fail)?.len();
    take(store, file, size_bytes).inspect_err(|_| {
        // It may have become larger by a part. Why there is no room is told, whatever becomes of this.
        let _ = file.set_len(length_bytes);
    })?;
    file.set_len(size_bytes).and_then(|()| file.sync_all()).map_err(fail)
}

/// Takes the space of a file from the host, as for a new one.
fn take(store: &Path, file: &File, size_bytes: u64) -> Result<()> {
    let fail = |error: io::Error| Failure::new(format!("{}: {}", store.display(), mounts::plain(&error)));
    match fallocate(file, FallocateFlags::empty(), 0, size_bytes) {
        // The report says that nothing is set aside.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => file.sync_all().map_err(fail),
        Err(rustix::io::Errno::NOSPC) => {
            let failure = Failure::new(format!("{}: no room for all of {}", store.display(), size::show(size_bytes)));
            Err(match room(store) {
                Some(room) => failure.hint(format!("{} are free there", size::show(room))),
                None => failure,
            })
        }
        Err(error) => Err(fail(error.into())),
    }
}

fn make(store: &Path, device: FileDevice, wanted: &Wanted, overwrite: bool) -> Result<Created> {
    let main = Arc::new(device);
    let Some(set) = &wanted.set else {
        flashlog::wipe(&*main).map_err(sets::explain)?;
        let reserved = main.is_reserved();
        return make_on(store, main, wanted, overwrite, reserved);
    };
    let take = |path, role, size_bytes, [default_bytes, least_bytes]: [u64; 2]| {
        let force = overwrite;
        let wanted = ground::Wanted { path, role, size_bytes, default_bytes, least_bytes, keeps: false, force };
        ground::take(&wanted, |_| false)
    };
    let main_bytes = sets::size_bytes(&*main);
    let mut log = take(&set.log, Role::Log, set.log_bytes, sets::log_sizes(main_bytes))?;
    let backup = set.backup.as_deref();
    let mut backup_ground: Option<Ground> = match backup {
        Some(path) => Some(take(path, Role::Backup, None, backup::sizes(main_bytes))?),
        None => None,
    };
    if let Some(ground) = &backup_ground {
        flashlog::check_backup(&*main, &*ground.device).map_err(sets::explain)?;
    }
    let uuid = || stack::uuid().map(Uuid);
    let names = flashlog::Create { set: uuid()?, main: uuid()?, log: uuid()? };
    flashlog::create(main.clone(), log.device.clone(), &names).map_err(sets::explain)?;
    let options = Options { mode: set.mode, ..Options::default() };
    let (flashlog, _) = Flashlog::open(main.clone(), log.device.clone(), &options).map_err(sets::explain)?;
    let flashlog = Arc::new(flashlog);
    let created = make_on(store, flashlog.clone(), wanted, overwrite, main.is_reserved() && log.device.is_reserved())?;
    if let Some(ground) = &mut backup_ground {
        let _shown = Progress::unknown("making the first backup");
        flashlog.create_backup(ground.device.clone(), uuid()?).map_err(sets::explain)?;
        backup::bring_up_to_date(&flashlog, ground.device.clone(), &mut |_, _| ()).map_err(sets::explain)?;
        ground.keep();
    }
    flashlog.close().map_err(stack::says)?;
    log.keep();
    let set = CreatedSet {
        set: names.set.to_string(),
        log: set.log.display().to_string(),
        log_bytes: sets::size_bytes(&*log.device),
        mode: mode_name(set.mode),
        backup: backup.map(|path| path.display().to_string()),
        devices_warning: apart::warning(store, Some(&set.log), backup),
    };
    Ok(Created { flashlog: Some(set), ..created })
}

fn make_on(store: &Path, device: Arc<dyn Device>, wanted: &Wanted, overwrite: bool, reserved: bool) -> Result<Created> {
    let size_bytes = sets::size_bytes(&*device);
    check_reserve(wanted.reserve, size_bytes)?;
    let set_aside_bytes = wanted.reserve.map_or(0, |share| share.of(size_bytes));
    let _shown = Progress::unknown("making the store");
    let chosen = wanted.protection.as_ref();
    let protection = chosen.map_or_else(Protection::default, |chosen| chosen.protection);
    let stack = stack::create(device, overwrite, set_aside_bytes, protection)?;
    Ok(Created {
        store: store.display().to_string(),
        uuid: crate::report::show_uuid(&stack.module.store_uuid()),
        size_bytes,
        available_bytes: crate::report::SpaceFigures::from(&stack.status().space).available_bytes,
        reserved,
        protection: protection.to_string(),
        protection_reason: chosen.and_then(|chosen| chosen.reason.clone()),
        protection_warning: chosen.and_then(|chosen| chosen.warning.clone()),
        flashlog: None,
        shell_path: shell(store),
    })
}
