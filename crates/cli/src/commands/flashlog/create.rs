//! `holdfast flashlog create`: a set of new devices.

use crate::args::FlashlogCreate;
use crate::failure::{Failure, Result};
use crate::flashlog::ground::{self, Ground, Wanted};
use crate::flashlog::{apart, backup, sets};
use crate::output::{Format, Report, print};
use crate::paths::shell;
use crate::{quoting, size};
use holdfast_block::flashlog::{self, Create, Flashlog, Options, Role};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Of main in a new file.
const DEFAULT_BYTES: u64 = 8 << 30;

#[derive(Serialize)]
struct Created {
    set: String,
    size_bytes: u64,
    main: String,
    log: String,
    log_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<String>,
    /// What they have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices_warning: Option<String>,
    #[serde(skip)]
    serve: String,
    #[serde(skip)]
    back_up: String,
}

impl Report for Created {
    fn words(&self) -> String {
        let (size, log) = (size::show(self.size_bytes), size::show(self.log_bytes));
        let name = quoting::name(&self.main);
        let mut text = format!("Made the Flashlog {}: {size} on {name}, with a log of {log}.\n", self.set);
        text.push_str(&apart::words(self.devices_warning.as_deref()));
        text.push_str(&format!("Serve it with: {}\n", self.serve));
        text.push_str(&format!("Then back it up with: {}\n", self.back_up));
        text
    }
}

pub(super) fn run(arguments: &FlashlogCreate, format: Format) -> Result<()> {
    let FlashlogCreate { main, log, backup, size, log_size, backup_size, force } = arguments;
    distinct([Some(main), Some(log), backup.as_ref()].into_iter().flatten().map(PathBuf::as_path))?;
    let take = |path, role, size_bytes, [default_bytes, least_bytes]: [u64; 2]| {
        let (force, keeps) = (*force, role == Role::Main);
        ground::take(&Wanted { path, role, size_bytes, default_bytes, least_bytes, force, keeps }, |_| false)
    };
    // What is on the devices can be refused before anything is changed.
    let mut main_ground = take(main, Role::Main, *size, [DEFAULT_BYTES, sets::bytes(flashlog::main_blocks_least())])?;
    let main_bytes = sets::size_bytes(&*main_ground.device);
    let mut log_ground = take(log, Role::Log, *log_size, sets::log_sizes(main_bytes))?;
    let mut backup_ground: Option<Ground> = match backup {
        Some(path) => Some(take(path, Role::Backup, *backup_size, backup::sizes(main_bytes))?),
        None => None,
    };
    if let Some(ground) = &backup_ground {
        flashlog::check_backup(&*main_ground.device, &*ground.device).map_err(sets::explain)?;
    }
    let names = Create { set: sets::random_uuid()?, main: sets::random_uuid()?, log: sets::random_uuid()? };
    let (main_device, log_device) = (main_ground.device.clone(), log_ground.device.clone());
    let blocks = flashlog::create(main_device.clone(), log_device.clone(), &names).map_err(sets::explain)?;
    if let Some(ground) = &backup_ground {
        let (set, _) = Flashlog::open(main_device, log_device, &Options::default()).map_err(sets::explain)?;
        set.create_backup(ground.device.clone(), sets::random_uuid()?).map_err(sets::explain)?;
    }
    for ground in [Some(&mut main_ground), Some(&mut log_ground), backup_ground.as_mut()].into_iter().flatten() {
        ground.keep();
    }
    let to = backup.as_deref().map_or("DEVICE".to_string(), shell);
    print(
        format,
        &Created {
            set: names.set.to_string(),
            size_bytes: sets::bytes(blocks),
            main: main.display().to_string(),
            log: log.display().to_string(),
            log_bytes: sets::size_bytes(&*log_ground.device),
            backup: backup.as_ref().map(|path| path.display().to_string()),
            devices_warning: apart::warning(main, Some(log), backup.as_deref()),
            serve: format!("holdfast flashlog serve --main {} --log {}", shell(main), shell(log)),
            back_up: format!("holdfast flashlog backup --to {to}"),
        },
    );
    Ok(())
}

/// The same one twice is a slip.
pub(crate) fn distinct<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let paths: Vec<&Path> = paths.into_iter().collect();
    let resolved = |path: &Path| fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok();
    for (at, path) in paths.iter().enumerate() {
        if paths[..at].iter().any(|other| resolved(other) == resolved(path)) {
            return Err(Failure::usage(format!("{} cannot be two devices of a set", path.display())));
        }
    }
    Ok(())
}
