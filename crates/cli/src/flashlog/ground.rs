//! Where a device of a set is made: a new file, or a file or disk that is there, unless it holds something.

use super::sets;
use crate::commands::create::{resize, room};
use crate::failure::{Failure, Result};
use crate::paths::shell;
use crate::probe::{self, Contents};
use crate::progress::{Progress, Unit};
use crate::{mounts, size, stack};
use holdfast_block::flashlog::{Inspected, Role};
use holdfast_block::{Access, BLOCK_SIZE, FileDevice};
use rustix::fs::SeekFrom;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is to be made.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) path: &'a Path,
    /// What for.
    pub(crate) role: Role,
    /// As the user says, of a file.
    pub(crate) size_bytes: Option<u64>,
    /// Of a new file, or one of 0 bytes, if the user does not say.
    pub(crate) default_bytes: u64,
    /// Of less it cannot be made: nothing that is there goes for that.
    pub(crate) least_bytes: u64,
    /// Whatever is there may go.
    pub(crate) force: bool,
    /// It does not go, but for the last MiB.
    pub(crate) keeps: bool,
}

/// A device that may be written to. A file that was made for it is removed again, unless it is kept.
pub(crate) struct Ground {
    pub(crate) device: Arc<FileDevice>,
    /// What its label said.
    pub(crate) label: Option<Inspected>,
    new: Option<PathBuf>,
}

impl Ground {
    /// A file was made for it.
    pub(crate) fn is_new(&self) -> bool {
        self.new.is_some()
    }

    /// The file stays.
    pub(crate) fn keep(&mut self) {
        self.new = None;
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(path) = &self.new {
            // What is left would only be in the way of the next try.
            let _ = fs::remove_file(path);
        }
    }
}

/// Takes a file or disk for exclusive use, or makes a file. What is there is refused, unless `welcome` says of its label that it is
/// what is wanted.
pub(crate) fn take(wanted: &Wanted<'_>, welcome: impl Fn(&Inspected) -> bool) -> Result<Ground> {
    let path = wanted.path;
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return make(wanted),
        Err(error) => return Err(Failure::at(path, mounts::plain(&error))),
        Ok(found) if found.is_dir() => {
            return Err(Failure::new(format!("{} is a directory; a device is a file or a disk", path.display())));
        }
        Ok(found) => found,
    };
    let is_disk = found.file_type().is_block_device();
    let held = stack::device(path, Access::ReadWrite)?;
    let label = match sets::inspect(&held) {
        Err(_) if wanted.force => None,
        label => label?,
    };
    if label.as_ref().is_some_and(&welcome) {
        return Ok(Ground { device: held, label, new: None });
    }
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| Failure::at(path, mounts::plain(&error)))?;
    let length_bytes = rustix::fs::seek(&file, SeekFrom::End(0));
    let length_bytes = length_bytes.map_err(|error| Failure::at(path, mounts::plain(&error.into())))?;
    if !wanted.force {
        refuse_contents(wanted, label.as_ref(), &file, length_bytes, is_disk)?;
    }
    let asked = wanted.size_bytes.map(whole_blocks);
    let new_bytes = match (is_disk, asked) {
        (true, Some(bytes)) if bytes != whole_blocks(length_bytes) => {
            let (shown, size) = (path.display(), size::show(length_bytes));
            return Err(Failure::usage(format!("{shown} is a disk of {size}; a device on a disk takes all of it")));
        }
        (false, Some(bytes)) if bytes != length_bytes => Some(bytes),
        (false, None) if length_bytes == 0 => Some(whole_blocks(wanted.default_bytes)),
        _ => None,
    };
    let Some(bytes) = new_bytes else { return Ok(Ground { device: held, label, new: None }) };
    if bytes < wanted.least_bytes {
        let (shown, role, least) = (path.display(), wanted.role, size::show(wanted.least_bytes));
        let size = size::show(bytes);
        return Err(Failure::usage(format!(
            "{shown}: a {role} device of {size} is too small, it takes {least} at least; nothing was changed"
        )));
    }
    if wanted.keeps && wanted.force && bytes < length_bytes {
        let (shown, size) = (path.display(), size::show(length_bytes));
        return Err(Failure::usage(format!(
            "{shown} is a file of {size}, which a smaller size would cut off; nothing was changed"
        ))
        .hint("leave --size away, or make the file smaller before"));
    }
    drop(held);
    resize(path, &file, bytes)?;
    drop(file);
    Ok(Ground { device: stack::device(path, Access::ReadWrite)?, label, new: None })
}

/// Says what is there, if there is anything.
fn refuse_contents(
    wanted: &Wanted<'_>,
    label: Option<&Inspected>,
    file: &File,
    length_bytes: u64,
    is_disk: bool,
) -> Result<()> {
    let path = wanted.path;
    let contents = match label {
        Some(label) => Some(format!("the {} device of Flashlog {}", label.role, label.set)),
        None => {
            let progress = Progress::of("looking at what it holds", length_bytes, Unit::Bytes);
            match probe::probe(file, length_bytes, is_disk, &mut |at| progress.is_at(at)) {
                Ok(Contents::Empty) => None,
                Ok(Contents::Known(what)) => Some(what.to_string()),
                Ok(Contents::Data(at)) => Some(format!("data, first at byte {at}")),
                Err(error) => return Err(Failure::at(path, mounts::plain(&error))),
            }
        }
    };
    let Some(what) = contents else { return Ok(()) };
    let failure = Failure::new(format!("{} holds {what}; nothing was changed", path.display()));
    Err(failure.hint(match wanted.keeps {
        true => "to keep it, all but the last MiB (so make a file system smaller by 2 MiB first), say --force",
        false => "to overwrite it, say --force",
    }))
}

fn make(wanted: &Wanted<'_>) -> Result<Ground> {
    let path = wanted.path;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.exists() {
        // Also a disk that is not plugged in: nothing is made in its place.
        return Err(Failure::new(format!("{}: there is no such directory", parent.display()))
            .hint(format!("to make the directory: mkdir -p {}", shell(parent))));
    }
    if parent.starts_with("/dev") && !parent.starts_with("/dev/shm") {
        return Err(Failure::new(format!("{}: there is no such disk", path.display())).hint("is it plugged in?"));
    }
    let bytes = whole_blocks(wanted.size_bytes.unwrap_or(wanted.default_bytes));
    let device = FileDevice::create_file(path, bytes).map_err(|error| match room(path) {
        Some(room) if room < bytes => {
            Failure::new(format!("{}: no room for a {} device of {}", path.display(), wanted.role, size::show(bytes)))
                .hint(format!("{} are free there; choose another size or place", size::show(room)))
        }
        _ => stack::says(error),
    })?;
    Ok(Ground { device: Arc::new(device), label: None, new: Some(path.to_path_buf()) })
}

fn whole_blocks(bytes: u64) -> u64 {
    bytes / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
}
