//! `holdfast flashlog rebuild`: main from backup and log.

use super::distinct;
use crate::args::FlashlogRebuild;
use crate::failure::{Failure, Result, exit};
use crate::flashlog::backup::BadBlocks;
use crate::flashlog::ground::{self, Ground, Wanted};
use crate::flashlog::past::{LACKING, Moment};
use crate::flashlog::sets::{self, explain};
use crate::output::{Format, Report, print};
use crate::paths::shell;
use crate::progress::Progress;
use crate::{quoting, size, stack};
use holdfast_block::flashlog::{self, AREA_UNIT_BLOCKS, Error, Flashlog, Inspected, Mode, Options, Rebuild, Role};
use holdfast_block::{Access, BLOCK_SIZE, Device, FileDevice};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Serialize)]
struct Rebuilt {
    set: String,
    main: String,
    size_bytes: u64,
    /// If it is not all that there was.
    #[serde(skip_serializing_if = "Option::is_none")]
    moment: Option<Moment>,
    /// What the log had behind that, and has no more.
    dropped_bytes: u64,
    /// There was more, which is damaged.
    dropped_damaged: bool,
    /// What came from the log.
    replayed_bytes: u64,
    /// It is as the backup is, without what was written since.
    without_log: bool,
    /// Damaged on the backup, and not in the log: zeros, or what is left of it.
    damaged: BadBlocks,
    /// What to do next.
    #[serde(skip)]
    next: String,
}

impl Report for Rebuilt {
    fn words(&self) -> String {
        let (size, replayed) = (size::show(self.size_bytes), size::show(self.replayed_bytes));
        let moment =
            self.moment.as_ref().map_or(String::new(), |moment| format!("It is as it was at {}.\n", moment.words()));
        let more =
            if self.dropped_damaged { " and what is damaged, of which nobody knows how much it was" } else { "" };
        let dropped = match self.dropped_bytes {
            0 if !self.dropped_damaged => String::new(),
            bytes => format!("GIVEN UP: what the log had behind that, {}{more}.\n", size::show(bytes)),
        };
        let (of, lacking) = match self.without_log {
            true => (format!("{size} of the backup, without a log"), LACKING),
            false => (format!("{size} of the backup, then {replayed} of the log"), ""),
        };
        format!(
            "{} is main of the Flashlog {} now: {of}.\n{lacking}{moment}{dropped}{}{}\n",
            quoting::name(&self.main),
            self.set,
            self.damaged.words("DAMAGED on the backup, and nowhere else"),
            self.next
        )
    }
}

pub(super) fn run(arguments: &FlashlogRebuild, format: Format) -> Result<u8> {
    let devices = [Some(&arguments.main), Some(&arguments.backup), arguments.log.as_ref()];
    distinct(devices.into_iter().flatten().map(PathBuf::as_path))?;
    let backup = stack::device(&arguments.backup, Access::ReadWrite)?;
    let label = sets::inspect(&backup)?.filter(|label| label.role == Role::Backup).ok_or_else(|| {
        Failure::new(format!("{}: no backup of a Flashlog", arguments.backup.display()))
            .hint("holdfast flashlog status DEVICE tells what a device is")
    })?;
    let rebuilt = match &arguments.log {
        Some(log) => with_log(arguments, backup, &label, log)?,
        None => without_log(arguments, backup, &label)?,
    };
    print(format, &rebuilt);
    Ok(if rebuilt.damaged.is_none() { exit::OK } else { exit::UNWELL })
}

/// Where main is to be, for a set of so many blocks.
fn ground(arguments: &FlashlogRebuild, blocks: u64) -> Result<Ground> {
    let FlashlogRebuild { main, size, force, .. } = arguments;
    let default_bytes = sets::bytes(blocks + AREA_UNIT_BLOCKS);
    let (role, size_bytes, force) = (Role::Main, *size, *force);
    let least_bytes = default_bytes;
    let wanted = Wanted { path: main, role, size_bytes, default_bytes, least_bytes, force, keeps: false };
    ground::take(&wanted, |_| false)
}

/// A file that becomes smaller or larger is not what it was from then on: not before it is certain that main can be made there.
fn check_resized(arguments: &FlashlogRebuild, backup: &Arc<FileDevice>, log: Option<&Arc<FileDevice>>) -> Result<()> {
    let FlashlogRebuild { main, size: Some(bytes), force: true, .. } = arguments else { return Ok(()) };
    let blocks = *bytes / BLOCK_SIZE as u64;
    if !fs::metadata(main).is_ok_and(|found| found.is_file() && found.len() != sets::bytes(blocks)) {
        return Ok(());
    }
    let (device, log) = (stack::device(main, Access::ReadOnly)?, log.map(|log| Arc::clone(log) as Arc<dyn Device>));
    let _shown = Progress::unknown("looking whether main can be made anew");
    flashlog::check_rebuild(backup.clone(), log, device, blocks, &how(arguments)?).map_err(refused)
}

fn how(arguments: &FlashlogRebuild) -> Result<Rebuild> {
    let FlashlogRebuild { moment, drop_later, accept_damage, .. } = arguments;
    let (name, at) = (sets::random_uuid()?, moment.at().unwrap_or_default());
    Ok(Rebuild { name, at, drop_later: *drop_later, accept_damage: *accept_damage })
}

fn with_log(arguments: &FlashlogRebuild, backup: Arc<FileDevice>, label: &Inspected, log: &Path) -> Result<Rebuilt> {
    let main = &arguments.main;
    let log_device = stack::device(log, Access::ReadWrite)?;
    // The set may have become larger than it was when the backup was made.
    let blocks = sets::inspect(&log_device)?.map_or(label.blocks, |of_log| of_log.blocks.max(label.blocks));
    check_resized(arguments, &backup, Some(&log_device))?;
    let mut ground = ground(arguments, blocks)?;
    let _shown = Progress::unknown(WHAT);
    let rebuilt = flashlog::rebuild_at(backup, log_device.clone(), ground.device.clone(), &how(arguments)?);
    let rebuilt = rebuilt.map_err(refused)?;
    ground.keep();
    // What the log has is brought to it at once, so that the next opening has nothing to do.
    let mode = sets::inspect(&log_device)?.map_or(Mode::default(), |label| label.mode);
    let options = Options { mode, ..Options::default() };
    let (set, opened) = Flashlog::open(ground.device.clone(), log_device, &options).map_err(explain)?;
    set.close().map_err(|error| Failure::new(error.to_string()))?;
    Ok(Rebuilt {
        set: label.set.to_string(),
        main: main.display().to_string(),
        size_bytes: sets::bytes(rebuilt.blocks),
        moment: rebuilt.barrier.as_ref().map(Moment::of),
        dropped_bytes: sets::bytes(rebuilt.dropped.blocks),
        dropped_damaged: rebuilt.dropped.is_damaged,
        replayed_bytes: sets::bytes(opened.blocks),
        without_log: false,
        damaged: BadBlocks::of(&rebuilt.damaged),
        next: match is_store(&ground) {
            true => format!("Mount it with: holdfast mount {} DIR -o log={}", shell(main), shell(log)),
            false => format!("Serve it with: holdfast flashlog serve --main {} --log {}", shell(main), shell(log)),
        },
    })
}

fn without_log(arguments: &FlashlogRebuild, backup: Arc<FileDevice>, label: &Inspected) -> Result<Rebuilt> {
    let FlashlogRebuild { main, accept_damage, .. } = arguments;
    check_resized(arguments, &backup, None)?;
    let mut ground = ground(arguments, label.blocks)?;
    let _shown = Progress::unknown(WHAT);
    let (device, name) = (ground.device.clone(), sets::random_uuid()?);
    let rebuilt = flashlog::rebuild_without_log(backup, device, name, *accept_damage).map_err(refused)?;
    ground.keep();
    Ok(Rebuilt {
        set: label.set.to_string(),
        main: main.display().to_string(),
        size_bytes: sets::bytes(rebuilt.blocks),
        moment: None,
        dropped_bytes: 0,
        dropped_damaged: false,
        replayed_bytes: 0,
        without_log: true,
        damaged: BadBlocks::of(&rebuilt.damaged),
        next: match is_store(&ground) {
            true => format!("Mount it with: holdfast mount {} DIR -o without-log", shell(main)),
            false => format!("Serve it with: holdfast flashlog serve --main {} --without-log", shell(main)),
        } + "; holdfast flashlog attach --new gives it a log",
    })
}

/// What to do if the device cannot be taken out of what it was, or the log is of no use.
fn refused(error: Error) -> Failure {
    let hint = match &error {
        Error::LabelUnread { role: Role::Main, .. } => OTHER_DEVICE,
        Error::Gap { .. } | Error::Replaced { .. } | Error::NoLabel { role: Role::Log, .. } => WITHOUT,
        _ => return explain(error),
    };
    explain(error).hint(hint)
}

fn is_store(ground: &Ground) -> bool {
    holdfast_physical::blocks_of_store(&*ground.device).is_some()
}

const WHAT: &str = "making main anew";
const OTHER_DEVICE: &str = "nothing was changed: use another device for main";
const WITHOUT: &str =
    "this log is of no use with the backup: --without-log makes main as the backup is, without what was written since";
