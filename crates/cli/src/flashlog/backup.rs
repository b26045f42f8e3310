//! Bringing a backup of an opened set up to date, by the server or by a command.

use super::ground::{self, Wanted};
use super::sets::{self, explain};
use crate::failure::Result;
use crate::output::Report;
use crate::{quoting, size};
use holdfast_block::flashlog::{Flashlog, Role};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where a backup goes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BackupTo {
    /// File or disk; absolute.
    pub(crate) path: PathBuf,
    /// Size of a file that is made for it.
    pub(crate) size_bytes: Option<u64>,
    /// Whatever is there may go.
    pub(crate) force: bool,
}

/// What a backup did.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BackupReport {
    set: String,
    backup: String,
    /// The device is a backup of this set only now.
    new: bool,
    /// Everything was copied.
    full: bool,
    copied_bytes: u64,
    /// How many states it went through.
    steps: u64,
}

impl Report for BackupReport {
    fn words(&self) -> String {
        let (backup, copied) = (quoting::name(&self.backup), size::show(self.copied_bytes));
        match self.full {
            true => format!("{backup} is a complete copy: {copied}.\n"),
            false => format!("{backup} is up to date: {copied} were new.\n"),
        }
    }
}

/// Makes the device a backup of the set if it is none yet, and brings it up to date.
pub(crate) fn run(flashlog: &Flashlog, to: &BackupTo) -> Result<BackupReport> {
    let status = flashlog.status();
    let set_bytes = sets::bytes(status.blocks);
    let wanted = Wanted {
        path: &to.path,
        role: Role::Backup,
        size_bytes: to.size_bytes,
        default_bytes: default_bytes(set_bytes),
        force: to.force,
        keeps: false,
    };
    let is_own = |label: &holdfast_block::flashlog::Inspected| label.role == Role::Backup && label.set == status.set;
    let mut ground = ground::take(&wanted, is_own)?;
    let new = !ground.label.as_ref().is_some_and(is_own);
    if new {
        flashlog.create_backup(ground.device.clone(), sets::random_uuid()?).map_err(explain)?;
    }
    // From here on it is worth going on with.
    ground.keep();
    let done = flashlog.backup(ground.device.clone()).map_err(explain)?;
    Ok(BackupReport {
        set: status.set.to_string(),
        backup: shown(&to.path),
        new,
        full: done.is_full,
        copied_bytes: if done.is_full { set_bytes } else { sets::bytes(done.blocks) },
        steps: done.steps,
    })
}

/// Of a file for a backup: the set, and a staging area.
pub(crate) fn default_bytes(set_bytes: u64) -> u64 {
    set_bytes.saturating_add((set_bytes / 16).clamp(16 << 20, 4 << 30))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
