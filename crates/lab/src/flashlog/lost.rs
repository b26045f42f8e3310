//! A set that has lost a device: come back, or gone for good.

use super::life::{BACKUP_BLOCKS, Life, MAIN_BLOCKS, contents};
use super::state::{Images, judge, judge_disk, judge_main, open};
use super::watch::{BACKUP, LOG, MAIN, Moment, Progress};
use holdfast_block::MemoryDevice;
use holdfast_block::flashlog::{self, Error, Flashlog, Opened, Uuid};
use std::sync::Arc;

/// What became of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovered {
    /// The device that failed.
    pub(super) device: Option<usize>,
    /// Main was found to have gone on alone.
    pub(super) is_alone: bool,
    /// Main got a new log, and it was known what the backup lacked.
    pub(super) is_new_log: bool,
    /// A new backup was made.
    pub(super) is_copied: bool,
}

/// Opens what is left when a device has failed, with the device as it was then. (Main made anew is looked at for every state with a backup.)
pub(super) fn examine(
    life: &Life,
    moment: &Moment,
    images: &Images,
    device: usize,
) -> Result<(Opened, Vec<u64>, Recovered), String> {
    let mut recovered = Recovered { device: Some(device), ..Recovered::default() };
    let (opened, contents) = match device {
        MAIN => open(life, moment, &images.main, &images.log)?,
        LOG => match alone(life, moment, images)? {
            Some(contents) => {
                recovered.is_alone = true;
                (Opened::default(), contents)
            }
            None if !moment.progress.is_left => open(life, moment, &images.main, &images.log)?,
            None => (Opened::default(), taken_back(life, moment, images)?),
        },
        BACKUP => {
            recovered.is_copied = true;
            new_backup(life, moment, images)?;
            open(life, moment, &images.main, &images.log)?
        }
        other => unreachable!("there is no device {other}"),
    };
    Ok((opened, contents, recovered))
}

/// If main says that it has gone on alone: it must have everything, and be at a state that there was. If the power was cut before that, it
/// is as a disk.
fn alone(life: &Life, moment: &Moment, images: &Images) -> Result<Option<Vec<u64>>, String> {
    let (main, log) = (Arc::new(images.main.clone()), Arc::new(images.log.clone()));
    match Flashlog::open(main, log, &life.options) {
        Err(Error::Alone { .. }) => {
            if !moment.progress.is_rescued {
                judge_main(life, moment, moment.progress.flushed, &images.main)?;
                return Ok(Some(Vec::new()));
            }
            let found = contents(&images.main)?;
            let (flushed, begun) = (moment.progress.flushed, moment.progress.begun);
            judge(life, flushed, begun, &found).map_err(|what| format!("main alone: {what}"))?;
            Ok(Some(found))
        }
        _ => Ok(None),
    }
}

/// The next process has found the log there again, and perhaps given it to a main that was alone, which was as a disk until it had everything.
fn taken_back(life: &Life, moment: &Moment, images: &Images) -> Result<Vec<u64>, String> {
    let (main, log) = (Arc::new(images.main.clone()), Arc::new(images.log.clone()));
    let (device, _) = Flashlog::open(main, log, &life.options).map_err(|error| format!("cannot be opened: {error}"))?;
    let found = contents(&device)?;
    let Progress { flushed, begun, is_rescued, .. } = moment.progress;
    if is_rescued {
        judge(life, flushed, begun, &found)?;
        return Ok(found);
    }
    let on_main: Vec<Option<u64>> = found.into_iter().map(Some).collect();
    judge_disk(&life.base, &life.writes[..begun.min(life.writes.len())], flushed, &on_main)?;
    Ok(Vec::new())
}

/// Another backup is copied from the set, and with the log makes the same main.
fn new_backup(life: &Life, moment: &Moment, images: &Images) -> Result<(), String> {
    let says = |error: Error| format!("with a new backup: {error}");
    let (main, log) = (Arc::new(images.main.clone()), Arc::new(images.log.clone()));
    let backup = Arc::new(MemoryDevice::new(BACKUP_BLOCKS));
    let found = {
        let (device, _) = Flashlog::open(main, log.clone(), &life.options).map_err(says)?;
        device.create_backup(backup.clone(), Uuid([8; 16])).map_err(says)?;
        if !device.backup(backup.clone()).map_err(says)?.is_full {
            return Err("a new backup is not copied whole".to_string());
        }
        contents(&device)?
    };
    let new_main = Arc::new(MemoryDevice::new(MAIN_BLOCKS));
    flashlog::rebuild(backup, log.clone(), new_main.clone(), Uuid([7; 16])).map_err(says)?;
    let (_, rebuilt) = open(life, moment, &new_main, &log).map_err(|what| format!("from a new backup: {what}"))?;
    if rebuilt == found { Ok(()) } else { Err("a new backup and the log make another main".to_string()) }
}
