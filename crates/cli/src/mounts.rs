//! What is mounted: `/proc/self/mountinfo` (proc(5)).

use crate::failure::{Failure, Result};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The type that Holdfast's mounts have.
pub(crate) use holdfast_fuse::TYPE as FILE_SYSTEM;

/// A mount, as far as it matters here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mount {
    /// Where.
    pub(crate) directory: PathBuf,
    /// Minor number of its device, which is the number of a FUSE connection.
    pub(crate) device_minor: u32,
    /// Of which type.
    pub(crate) file_system: String,
    /// For Holdfast's: the store.
    pub(crate) source: PathBuf,
    /// Whether it takes no changes.
    pub(crate) read_only: bool,
    /// Of a FUSE mount: the user who made it, by number.
    pub(crate) owner: u32,
}

/// All mounts that this process sees, in the order in which they were made.
pub(crate) fn all() -> Result<Vec<Mount>> {
    read(Path::new("/proc/self/mountinfo"))
}

/// All mounts that another process sees.
pub(crate) fn of_process(pid: u32) -> Result<Vec<Mount>> {
    read(Path::new(&format!("/proc/{pid}/mountinfo")))
}

fn read(table: &Path) -> Result<Vec<Mount>> {
    let text = fs::read(table).map_err(|error| Failure::at(table, error))?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// Holdfast's mounts.
pub(crate) fn of_holdfast() -> Result<Vec<Mount>> {
    Ok(all()?.into_iter().filter(|mount| mount.file_system == FILE_SYSTEM).collect())
}

/// The mount on top at exactly this (absolute) directory.
pub(crate) fn at(directory: &Path) -> Result<Option<Mount>> {
    Ok(all()?.into_iter().rfind(|mount| mount.directory == directory))
}

/// The mount that an absolute path without symbolic links is in.
pub(crate) fn containing(path: &Path) -> Result<Option<Mount>> {
    let mut found: Option<Mount> = None;
    for mount in all()? {
        let depth = |mount: &Mount| mount.directory.components().count();
        // Of mounts at one place the last is on top.
        if path.starts_with(&mount.directory) && found.as_ref().is_none_or(|found| depth(found) <= depth(&mount)) {
            found = Some(mount);
        }
    }
    Ok(found)
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let device_minor = device.split_once(':')?.1.parse().ok()?;
    let directory = unescape(fields.nth(1)?);
    let options = fields.next()?;
    fields.find(|&field| field == b"-")?;
    let file_system = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let all = [options, fields.next()?];
    let mut words = all.iter().flat_map(|all| all.split(|&byte| byte == b','));
    let read_only = words.clone().any(|word| word == b"ro");
    let owner = words.find_map(|word| std::str::from_utf8(word.strip_prefix(b"user_id=")?).ok()?.parse().ok());
    Some(Mount { directory, device_minor, file_system, source, read_only, owner: owner.unwrap_or(0) })
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = |digit: u8| (b'0'..=b'7').contains(&digit).then(|| u32::from(digit - b'0'));
        let escaped = match after {
            [a, b, c, ..] if byte == b'\\' => match (octal(*a), octal(*b), octal(*c)) {
                (Some(a), Some(b), Some(c)) => u8::try_from(a * 64 + b * 8 + c).ok(),
                _ => None,
            },
            _ => None,
        };
        match escaped {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// An absolute path without symbolic links, `.` and `..`. A mount point of Holdfast's is not looked at for this: who does so
/// waits for its daemon, gets an error if that has died, and nothing else if it is another user's.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf> {
    let named = path.components().next_back().is_some_and(|last| matches!(last, std::path::Component::Normal(_)));
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let (true, Ok(parent), Some(name)) = (named, fs::canonicalize(parent), path.file_name()) {
        let place = parent.join(name);
        if at(&place)?.is_some_and(|mount| mount.file_system == FILE_SYSTEM) {
            return Ok(place);
        }
    }
    fs::canonicalize(path).map_err(|error| Failure::at(path, plain(&error)))
}

impl Mount {
    /// Whether the mount serves this store. A store that lies in a mount itself is looked at only on behalf of one that lies there,
    /// too: if nobody serves that mount, looking takes for ever.
    pub(crate) fn serves(&self, store: &Path) -> bool {
        let host = |store: &Path| containing(store).ok().flatten().filter(|mount| mount.file_system == FILE_SYSTEM);
        self.source == store || {
            let host_of_source = host(&self.source);
            (host_of_source.is_none() || host_of_source == host(store)) && is_same_file(&self.source, store)
        }
    }
}

/// Whether two paths lead to one file or disk.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let (Ok(a), Ok(b)) = (fs::metadata(one), fs::metadata(other)) else { return false };
    let disks = a.file_type().is_block_device() && b.file_type().is_block_device();
    if disks { a.rdev() == b.rdev() } else { (a.dev(), a.ino()) == (b.dev(), b.ino()) }
}

/// The system's words without the number.
pub(crate) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}

/// Processes that use something below `directory`, as far as this user may see: number and name.
pub(crate) fn users(directory: &Path) -> Vec<(u32, String)> {
    let mut users = Vec::new();
    let Ok(processes) = fs::read_dir("/proc") else { return users };
    for process in processes.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let of_process = process.path();
        let uses = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(directory));
        let open = || {
            let Ok(descriptors) = fs::read_dir(of_process.join("fd")) else { return false };
            descriptors.flatten().any(|descriptor| uses(&descriptor.path()))
        };
        let mapped = || {
            fs::read(of_process.join("maps")).is_ok_and(|maps| {
                maps.split(|&byte| byte == b'\n').any(|line| {
                    let path = line.iter().position(|&byte| byte == b'/').map(|at| &line[at..]);
                    path.is_some_and(|path| Path::new(std::ffi::OsStr::from_bytes(path)).starts_with(directory))
                })
            })
        };
        if uses(&of_process.join("cwd")) || uses(&of_process.join("root")) || open() || mapped() {
            let name = fs::read_to_string(of_process.join("comm")).unwrap_or_default();
            users.push((pid, name.trim_end().to_string()));
        }
    }
    users.sort();
    users
}

/// The first of [`users`] by name, if any can be seen.
pub(crate) fn users_named(directory: &Path) -> Option<String> {
    const NAMED: usize = 5;
    let users = users(directory);
    let mut named: Vec<_> = users.iter().take(NAMED).map(|(pid, name)| format!("{name} ({pid})")).collect();
    if users.len() > NAMED {
        named.push(format!("{} more", users.len() - NAMED));
    }
    (!named.is_empty()).then(|| named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line = b"36 35 0:7 / /mnt/a\\040b\\134 rw,noatime master:1 shared:2 - fuse.holdfast /s\\011t rw,errors=x";
        let mount = parse(line).unwrap();
        assert_eq!(mount.directory, Path::new("/mnt/a b\\"));
        assert_eq!(mount.device_minor, 7);
        assert_eq!(mount.file_system, FILE_SYSTEM);
        assert_eq!(mount.source, Path::new("/s\tt"));
        assert!(!mount.read_only && mount.owner == 0);
        let of_a_user =
            parse(b"22 42 0:39 / /m rw - fuse.holdfast /s ro,user_id=1000,group_id=100,default_permissions").unwrap();
        assert!(of_a_user.read_only && of_a_user.owner == 1000);
        let plain = parse(b"1 0 0:1 / / ro - ext4 /dev/vda rw").unwrap();
        assert!(plain.read_only && plain.file_system == "ext4");
        for bad in [&b""[..], b"1 2 3", b"36 35 98:0 / /mnt rw - ", b"36 35 98:0 / /mnt rw master:1"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn half_escapes_stay_as_they_are() {
        assert_eq!(unescape(b"a\\04"), Path::new("a\\04"));
        assert_eq!(unescape(b"a\\089\\777"), Path::new("a\\089\\777"));
    }

    #[test]
    fn the_root_contains_everything_and_proc_itself() {
        assert_eq!(containing(Path::new("/proc/self")).unwrap().unwrap().directory, Path::new("/proc"));
        assert!(containing(Path::new("/")).unwrap().is_some());
    }

    #[test]
    fn a_process_is_found_by_its_working_directory_and_open_files() {
        let directory = std::env::current_dir().unwrap();
        assert!(users(&directory).iter().any(|&(pid, _)| pid == std::process::id()));
        let executable = std::env::current_exe().unwrap();
        assert!(users(&executable).iter().any(|&(pid, _)| pid == std::process::id()));
        assert!(users(Path::new("/nowhere/at/all")).is_empty());
    }
}
