//! What is measured on an aged store and on a fresh one: the rates at which an application gets on.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::apply::{Contents, check};
use super::year::{Class, File as Aged};
use crate::error::{At, Result};
use crate::measure::Unit;
use crate::pattern::{BLOCK, Generator};
use crate::peer::{BTRFS_SNAPSHOTS, Peer};

/// Bytes of a large request.
const LARGE: usize = 1 << 20;
/// Files from this size on are large.
pub(super) const LARGE_FILE_BYTES: u64 = 512 << 10;
/// Most bytes of large files that one probe reads, most small files, and how many of the other things it does.
const READ_BYTES_MAX: u64 = 192 << 20;
const SMALL_FILES_MAX: usize = 1500;
const RANDOM_READS: u64 = 2048;
const RANDOM_WRITES: u64 = 1024;
const WRITE_BYTES: u64 = 64 << 20;
const CREATES: u64 = 2000;
const SNAPSHOTS: u64 = 5;

/// One thing measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Large files that were written as a whole, read from the start to the end; cold.
    ReadLarge,
    /// Small files read one after another, project by project; cold.
    ReadSmall,
    /// The databases, read from the start to the end; cold.
    ReadDatabases,
    /// 4 KiB at random in the databases; cold, or what was read before.
    ReadRandom { cold: bool },
    /// The names and attributes of everything, as find and rsync ask for them.
    StatAll { cold: bool },
    /// A new file, then fsync.
    WriteNew,
    /// 4 KiB at random over the databases, then fsync.
    WriteRandom,
    /// Empty files in one directory, then fsync of it.
    Create,
    /// Removes these.
    Unlink,
    /// Snapshots.
    SnapshotCreate,
    /// The list of them.
    SnapshotList,
    /// Gives them up.
    SnapshotDelete,
    /// Removes all files, with the snapshots there.
    RemoveAll,
}

impl Probe {
    /// In the order of a round: each finds what the ones before have left. The last one only once, at the end.
    pub(super) const ALL: [Self; 15] = [
        Self::ReadLarge,
        Self::ReadSmall,
        Self::ReadDatabases,
        Self::ReadRandom { cold: true },
        Self::ReadRandom { cold: false },
        Self::StatAll { cold: true },
        Self::StatAll { cold: false },
        Self::WriteNew,
        Self::WriteRandom,
        Self::Create,
        Self::Unlink,
        Self::SnapshotCreate,
        Self::SnapshotList,
        Self::SnapshotDelete,
        Self::RemoveAll,
    ];

    /// As in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ReadLarge => "read large files, cold",
            Self::ReadSmall => "read small files, cold",
            Self::ReadDatabases => "read databases, cold",
            Self::ReadRandom { cold: true } => "random read, 4 KiB, cold",
            Self::ReadRandom { cold: false } => "random read, 4 KiB, warm",
            Self::StatAll { cold: true } => "stat everything, cold",
            Self::StatAll { cold: false } => "stat everything, warm",
            Self::WriteNew => "write a new file",
            Self::WriteRandom => "random write, 4 KiB",
            Self::Create => "create files",
            Self::Unlink => "unlink files",
            Self::SnapshotCreate => "snapshot, create",
            Self::SnapshotList => "snapshot, list",
            Self::SnapshotDelete => "snapshot, delete",
            Self::RemoveAll => "remove everything (once)",
        }
    }

    /// The unit of its rate.
    pub(super) fn unit(self) -> Unit {
        match self {
            Self::ReadLarge | Self::ReadDatabases | Self::WriteNew => Unit::MibPerSecond,
            _ => Unit::PerSecond,
        }
    }

    /// Whether it starts with the store mounted anew and the kernel's caches dropped.
    pub(super) fn starts_cold(self) -> bool {
        match self {
            Self::ReadLarge | Self::ReadSmall | Self::ReadDatabases => true,
            Self::ReadRandom { cold } | Self::StatAll { cold } => cold,
            _ => false,
        }
    }

    /// Whether the file system can do it.
    pub(super) fn is_for(self, peer: &Peer) -> bool {
        let of_snapshots = matches!(self, Self::SnapshotCreate | Self::SnapshotList | Self::SnapshotDelete);
        !of_snapshots || peer.kind().has_snapshots()
    }
}

/// The files that are there, and what a probe needs besides.
#[derive(Debug)]
pub(super) struct Ground {
    files: Vec<(String, Aged)>,
    contents: Contents,
    seed: u64,
}

/// Requests or bytes, by the unit of the probe, and the time they took.
pub(super) type Measured = (u64, Duration);

impl Ground {
    /// Of a store with these files.
    pub(super) fn new(files: Vec<(String, Aged)>, seed: u64) -> Self {
        Self { files, contents: Contents::new(seed), seed }
    }

    /// Paths, relative to the root, and numbers of the files of a class in a range of sizes.
    pub(super) fn of(&self, class: Class, bytes: std::ops::Range<u64>) -> impl Iterator<Item = &(String, Aged)> {
        self.files.iter().filter(move |(_, file)| file.class == class && bytes.contains(&file.bytes))
    }

    /// Unmeasured: what a warm probe needs.
    pub(super) fn prepare(&mut self, probe: Probe, peer: &Peer, round: u64) -> Result<()> {
        match probe {
            Probe::ReadRandom { cold: false } | Probe::StatAll { cold: false } => {
                self.run(probe, peer, round).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// The measured part.
    pub(super) fn run(&mut self, probe: Probe, peer: &Peer, round: u64) -> Result<Measured> {
        let root = peer.root();
        let start = Instant::now();
        let amount = match probe {
            Probe::ReadLarge => self.read_large(root)?,
            Probe::ReadSmall => self.read_small(root)?,
            Probe::ReadDatabases => self
                .databases()
                .iter()
                .try_fold(0, |sum, (path, file)| read_whole(&root.join(path), file).map(|bytes| sum + bytes))?,
            Probe::ReadRandom { .. } => self.read_random(root, round)?,
            Probe::StatAll { .. } => walk(root, &mut |_| Ok(()))?,
            Probe::WriteNew => self.write_new(root, round)?,
            Probe::WriteRandom => self.write_random(root, round)?,
            Probe::Create => create(&root.join("created"))?,
            Probe::Unlink => unlink(&root.join("created"))?,
            Probe::SnapshotCreate => snapshots(|name| peer.snapshot(name))?,
            Probe::SnapshotList => snapshots(|_| peer.list_snapshots())?,
            Probe::SnapshotDelete => snapshots(|name| peer.drop_snapshot(name))?,
            Probe::RemoveAll => {
                let removed = walk(root, &mut |path| fs::remove_file(path).at("remove", path))?;
                peer.settle()?;
                removed
            }
        };
        Ok((amount, start.elapsed()))
    }

    fn databases(&self) -> Vec<(String, Aged)> {
        self.of(Class::Database, 0..u64::MAX).cloned().collect()
    }

    fn read_large(&self, root: &Path) -> Result<u64> {
        let mut sum = 0;
        for (path, file) in self.of(Class::Document, LARGE_FILE_BYTES..u64::MAX) {
            if sum >= READ_BYTES_MAX {
                break;
            }
            sum += read_whole(&root.join(path), file)?;
        }
        Ok(sum)
    }

    fn read_small(&self, root: &Path) -> Result<u64> {
        // In the order of their names: by project.
        let mut small: Vec<&(String, Aged)> = self.of(Class::Document, 0..LARGE_FILE_BYTES / 8).collect();
        small.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        small.truncate(SMALL_FILES_MAX);
        for (path, file) in &small {
            read_whole(&root.join(path), file)?;
        }
        Ok(small.len() as u64)
    }

    /// Places in the databases, in random order.
    fn places(&self, count: u64, round: u64) -> Vec<(usize, u64)> {
        let mut random = Generator::new(&[self.seed, round, count]);
        let databases = self.databases();
        let place = |_| {
            let at = random.below(databases.len() as u64) as usize;
            (at, random.below(databases[at].1.bytes / BLOCK as u64))
        };
        if databases.is_empty() { Vec::new() } else { (0..count).map(place).collect() }
    }

    fn read_random(&self, root: &Path, round: u64) -> Result<u64> {
        let databases = self.databases();
        let open = |(path, _): &(String, Aged)| File::open(root.join(path)).at("open", path);
        let opened = databases.iter().map(open).collect::<Result<Vec<File>>>()?;
        let places = self.places(RANDOM_READS, round);
        let mut buffer = [0; BLOCK];
        for (at, block) in &places {
            let (path, file) = &databases[*at];
            let offset = block * BLOCK as u64;
            opened[*at].read_exact_at(&mut buffer, offset).at("read", path)?;
            check(Path::new(path), file.id, offset, &buffer)?;
        }
        Ok(places.len() as u64)
    }

    fn write_random(&mut self, root: &Path, round: u64) -> Result<u64> {
        let databases = self.databases();
        let open = |(path, _): &(String, Aged)| OpenOptions::new().write(true).open(root.join(path)).at("open", path);
        let opened = databases.iter().map(open).collect::<Result<Vec<File>>>()?;
        let places = self.places(RANDOM_WRITES, round);
        for (at, block) in &places {
            let (path, file) = &databases[*at];
            self.contents.write(&opened[*at], file.id, block * BLOCK as u64, BLOCK as u64).at("write", path)?;
        }
        opened.iter().try_for_each(|file| file.sync_all().at("fsync", root))?;
        Ok(places.len() as u64)
    }

    fn write_new(&mut self, root: &Path, round: u64) -> Result<u64> {
        let path = root.join(format!("new-{round}"));
        let file = OpenOptions::new().write(true).create_new(true).open(&path).at("create", &path)?;
        self.contents.write(&file, round, 0, WRITE_BYTES).at("write", &path)?;
        file.sync_all().at("fsync", &path)?;
        Ok(WRITE_BYTES)
    }

    /// Unmeasured: takes away what the probe has left for no other.
    pub(super) fn clear(&self, probe: Probe, peer: &Peer, round: u64) -> Result<()> {
        let path = peer.root().join(format!("new-{round}"));
        if probe == Probe::WriteNew { fs::remove_file(&path).at("remove", &path) } else { Ok(()) }
    }
}

fn read_whole(path: &Path, file: &Aged) -> Result<u64> {
    let opened = File::open(path).at("open", path)?;
    let mut buffer = vec![0; LARGE.min(file.bytes as usize)];
    let mut at = 0;
    while at < file.bytes {
        let length = buffer.len().min((file.bytes - at) as usize);
        opened.read_exact_at(&mut buffer[..length], at).at("read", path)?;
        check(path, file.id, at, &buffer[..length])?;
        at += length as u64;
    }
    Ok(file.bytes)
}

/// Asks for the attributes of everything below `root`, and has `visit` get what is no directory. How many things there are.
pub(super) fn walk(root: &Path, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<u64> {
    let mut count = 0;
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let mut names: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&directory).at("read", &directory)? {
            names.push(entry.at("read", &directory)?.path());
        }
        for path in names.into_iter().filter(|path| !path.ends_with(BTRFS_SNAPSHOTS)) {
            count += 1;
            if fs::symlink_metadata(&path).at("stat", &path)?.is_dir() {
                directories.push(path);
            } else {
                visit(&path)?;
            }
        }
    }
    Ok(count)
}

fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).at("open", path)?.sync_all().at("fsync", path)
}

fn create(directory: &Path) -> Result<u64> {
    fs::create_dir_all(directory).at("create", directory)?;
    for index in 0..CREATES {
        let path = directory.join(format!("created-{index}"));
        OpenOptions::new().write(true).create_new(true).open(&path).at("create", &path)?;
    }
    sync_directory(directory)?;
    Ok(CREATES)
}

fn unlink(directory: &Path) -> Result<u64> {
    for index in 0..CREATES {
        let path = directory.join(format!("created-{index}"));
        fs::remove_file(&path).at("remove", &path)?;
    }
    sync_directory(directory)?;
    Ok(CREATES)
}

fn snapshots(act: impl Fn(&str) -> Result<()>) -> Result<u64> {
    (0..SNAPSHOTS).try_for_each(|index| act(&format!("probe-{index}")))?;
    Ok(SNAPSHOTS)
}
