//! The workloads: what an application does, timed from its first system call to the end of its last.
//!
//! Every workload that writes ends with fsync inside the measured time, on every file system alike. Every read checks that the
//! block it got is the one it asked for.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{At, Error, Result};
use crate::measure::Unit;
use crate::pattern::{BLOCK, Generator, check_stamps, stamp};

/// Bytes of a large request.
const LARGE: usize = 1 << 20;

/// Order of the requests in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From the start to the end.
    Sequential,
    /// In a random order, each place at most once.
    Random,
}

/// State of the caches before the measured part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Remounted, the kernel's caches dropped.
    Cold,
    /// Everything that is read was read just before.
    Warm,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Writes a new file (sequential) or over the existing one (random), then fsync.
    Write(Order, usize),
    /// Reads the file.
    Read(Cache, Order, usize),
    /// Appends 4 KiB and calls fsync, again and again.
    AppendFsync,
    /// Creates empty files in one directory, then fsync of the directory.
    Create,
    /// Asks for the attributes of each of the files, in random order.
    Stat(Cache),
    /// Removes all of the files, in random order, then fsync of the directory.
    Unlink,
}

/// How much each workload does.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Size of the file that is read and written, in MiB.
    pub file_mib: u64,
    /// Number of random 4 KiB requests.
    pub random_requests: u64,
    /// Number of appends with fsync.
    pub appends: u64,
    /// Number of files created, asked about and removed.
    pub files: u64,
}

/// Amounts of one run: requests made and bytes moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Requests.
    pub requests: u64,
    /// Bytes; 0 where only the requests count.
    pub bytes: u64,
}

impl Workload {
    /// All of them in the order in which a round runs them: each finds what the ones before have left.
    pub const ALL: [Self; 17] = [
        Self::Write(Order::Sequential, BLOCK),
        Self::Write(Order::Sequential, LARGE),
        Self::Read(Cache::Cold, Order::Sequential, BLOCK),
        Self::Read(Cache::Cold, Order::Sequential, LARGE),
        Self::Read(Cache::Cold, Order::Random, BLOCK),
        Self::Read(Cache::Cold, Order::Random, LARGE),
        Self::Read(Cache::Warm, Order::Sequential, BLOCK),
        Self::Read(Cache::Warm, Order::Sequential, LARGE),
        Self::Read(Cache::Warm, Order::Random, BLOCK),
        Self::Read(Cache::Warm, Order::Random, LARGE),
        Self::Write(Order::Random, BLOCK),
        Self::Write(Order::Random, LARGE),
        Self::AppendFsync,
        Self::Create,
        Self::Stat(Cache::Warm),
        Self::Stat(Cache::Cold),
        Self::Unlink,
    ];

    /// As in the table.
    pub fn name(self) -> String {
        let order = |order| if order == Order::Sequential { "sequential" } else { "random" };
        let cache = |cache| if cache == Cache::Cold { "cold" } else { "warm" };
        let size = |bytes| if bytes == LARGE { "1 MiB" } else { "4 KiB" };
        match self {
            Self::Write(o, bytes) => format!("{} write, {}", order(o), size(bytes)),
            Self::Read(c, o, bytes) => format!("{} read, {}, {}", order(o), size(bytes), cache(c)),
            Self::AppendFsync => "append 4 KiB + fsync".to_owned(),
            Self::Create => "create files".to_owned(),
            Self::Stat(c) => format!("stat files, {}", cache(c)),
            Self::Unlink => "unlink files".to_owned(),
        }
    }

    /// The unit of its rate.
    pub fn unit(self) -> Unit {
        match self {
            Self::Write(..) | Self::Read(..) => Unit::MibPerSecond,
            _ => Unit::PerSecond,
        }
    }

    /// Whether every round must also run `other`, because this one uses what it leaves.
    pub fn needs(self, other: Self) -> bool {
        match self {
            Self::Read(..) | Self::Write(Order::Random, _) => other == Self::Write(Order::Sequential, LARGE),
            Self::Create | Self::Stat(_) | Self::Unlink => matches!(other, Self::Create | Self::Unlink),
            Self::Write(Order::Sequential, _) | Self::AppendFsync => false,
        }
    }

    /// Whether the file system must be remounted and the caches dropped before it.
    pub fn starts_cold(self) -> bool {
        matches!(self, Self::Read(Cache::Cold, ..) | Self::Stat(Cache::Cold))
    }
}

/// The files of one file system, and the bytes written to them.
#[derive(Debug)]
pub struct Ground {
    root: PathBuf,
    scale: Scale,
    seed: u64,
    buffer: Vec<u8>,
}

impl Ground {
    /// Works below `root`; the same `seed` gives the same requests.
    pub fn new(root: &Path, scale: Scale, seed: u64) -> Self {
        let mut buffer = vec![0; LARGE];
        Generator::new(&[seed]).fill(&mut buffer);
        Self { root: root.to_path_buf(), scale, seed, buffer }
    }

    fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    fn directory(&self) -> PathBuf {
        self.root.join("files")
    }

    /// Places, in units of `bytes`, in the order in which round `round` visits them.
    fn places(&self, order: Order, bytes: usize, round: u64) -> Vec<u64> {
        let count = self.scale.file_mib * LARGE as u64 / bytes as u64;
        match order {
            Order::Sequential => (0..count).collect(),
            Order::Random => {
                let mut places = Generator::new(&[self.seed, round, bytes as u64]).permutation(count);
                if bytes == BLOCK {
                    places.truncate(self.scale.random_requests as usize);
                }
                places
            }
        }
    }

    /// Unmeasured: what the workload needs to find, and what it must not find.
    pub fn prepare(&mut self, workload: Workload, round: u64) -> Result<()> {
        match workload {
            Workload::Write(Order::Sequential, _) => remove_if_there(&self.data()),
            Workload::Read(Cache::Warm, order, bytes) => self.read(order, bytes, round).map(|_| ()),
            Workload::AppendFsync => remove_if_there(&self.root.join("log")),
            Workload::Create => {
                let directory = self.directory();
                fs::create_dir_all(&directory).at("create", &directory)
            }
            Workload::Stat(Cache::Warm) => self.stat(round).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The measured part.
    pub fn run(&mut self, workload: Workload, round: u64) -> Result<Amount> {
        match workload {
            Workload::Write(order, bytes) => self.write(order, bytes, round),
            Workload::Read(_, order, bytes) => self.read(order, bytes, round),
            Workload::AppendFsync => self.append(round),
            Workload::Create => self.create(),
            Workload::Stat(_) => self.stat(round),
            Workload::Unlink => self.unlink(round),
        }
    }

    fn write(&mut self, order: Order, bytes: usize, round: u64) -> Result<Amount> {
        let path = self.data();
        let mut amount = Amount { requests: 0, bytes: 0 };
        let places = self.places(order, bytes, round);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).at("open", &path)?;
        for place in places {
            let first_block = place * (bytes / BLOCK) as u64;
            stamp(&mut self.buffer[..bytes], first_block, round);
            file.write_all_at(&self.buffer[..bytes], place * bytes as u64).at("write", &path)?;
            amount.requests += 1;
            amount.bytes += bytes as u64;
        }
        file.sync_all().at("fsync", &path)?;
        Ok(amount)
    }

    fn read(&mut self, order: Order, bytes: usize, round: u64) -> Result<Amount> {
        let path = self.data();
        let mut amount = Amount { requests: 0, bytes: 0 };
        let mut buffer = vec![0; bytes];
        let file = File::open(&path).at("open", &path)?;
        for place in self.places(order, bytes, round) {
            let offset = place * bytes as u64;
            file.read_exact_at(&mut buffer, offset).at("read", &path)?;
            check_stamps(&buffer, place * (bytes / BLOCK) as u64).map_err(|(expected, got)| Error::WrongContents {
                path: path.clone(),
                offset,
                expected,
                got,
            })?;
            amount.requests += 1;
            amount.bytes += bytes as u64;
        }
        Ok(amount)
    }

    fn append(&mut self, round: u64) -> Result<Amount> {
        let path = self.root.join("log");
        let file = OpenOptions::new().append(true).create(true).open(&path).at("open", &path)?;
        for index in 0..self.scale.appends {
            stamp(&mut self.buffer[..BLOCK], index, round);
            std::io::Write::write_all(&mut &file, &self.buffer[..BLOCK]).at("append to", &path)?;
            file.sync_all().at("fsync", &path)?;
        }
        Ok(Amount { requests: self.scale.appends, bytes: 0 })
    }

    fn create(&self) -> Result<Amount> {
        let directory = self.directory();
        for index in 0..self.scale.files {
            let path = file_name(&directory, index);
            OpenOptions::new().write(true).create_new(true).open(&path).at("create", &path)?;
        }
        sync_directory(&directory)?;
        Ok(Amount { requests: self.scale.files, bytes: 0 })
    }

    fn stat(&self, round: u64) -> Result<Amount> {
        let directory = self.directory();
        for index in Generator::new(&[self.seed, round, 1]).permutation(self.scale.files) {
            let path = file_name(&directory, index);
            fs::symlink_metadata(&path).at("stat", &path)?;
        }
        Ok(Amount { requests: self.scale.files, bytes: 0 })
    }

    fn unlink(&self, round: u64) -> Result<Amount> {
        let directory = self.directory();
        for index in Generator::new(&[self.seed, round, 2]).permutation(self.scale.files) {
            let path = file_name(&directory, index);
            fs::remove_file(&path).at("unlink", &path)?;
        }
        sync_directory(&directory)?;
        Ok(Amount { requests: self.scale.files, bytes: 0 })
    }
}

fn file_name(directory: &Path, index: u64) -> PathBuf {
    directory.join(format!("file-{index:06}"))
}

fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).at("open", path)?.sync_all().at("fsync", path)
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.at("remove", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Scale = Scale { file_mib: 2, random_requests: 100, appends: 3, files: 20 };

    #[test]
    fn a_round_of_all_workloads_runs_on_any_directory() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut ground = Ground::new(dir.path(), SMALL, 1);
        for round in 0..2 {
            for workload in Workload::ALL {
                ground.prepare(workload, round).expect("prepare");
                let amount = ground.run(workload, round).expect("run");
                let expected_bytes = match workload {
                    Workload::Write(Order::Random, BLOCK) | Workload::Read(_, Order::Random, BLOCK) => {
                        100 * BLOCK as u64
                    }
                    Workload::Write(..) | Workload::Read(..) => 2 << 20,
                    _ => 0,
                };
                assert_eq!(amount.bytes, expected_bytes, "{}", workload.name());
            }
        }
    }

    #[test]
    fn a_read_of_wrong_contents_is_an_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut ground = Ground::new(dir.path(), SMALL, 1);
        ground.run(Workload::Write(Order::Sequential, LARGE), 0).expect("write");
        let file = OpenOptions::new().write(true).open(ground.data()).expect("open");
        file.write_all_at(&[0xff; BLOCK], 5 * BLOCK as u64).expect("damage a block");
        for bytes in [BLOCK, LARGE] {
            let result = ground.run(Workload::Read(Cache::Warm, Order::Sequential, bytes), 0);
            assert!(matches!(result, Err(Error::WrongContents { expected: 5, .. })), "{result:?}");
        }
    }
}
