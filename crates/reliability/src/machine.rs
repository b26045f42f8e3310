//! A memory and a disk together, and the papers' samples of them.

use crate::device::{Disk, Memory};
use std::fmt;

/// How long a written block stays in memory before it is on the disk, in seconds: what file systems usually do, by z2fs
/// §II-D. (A Holdfast mount closes an epoch every 5 s.)
pub const FLUSH_S: f64 = 30.0;

/// What a block goes through.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// Of the writer and the reader.
    pub memory: Memory,
    /// Between them.
    pub disk: Disk,
    /// How long a written block stays in memory before it is on the disk, in seconds; [`FLUSH_S`] in the papers.
    pub flush_s: f64,
}

/// The sample configurations (z2fs table I; dissertation table 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Config {
    /// Number 1: the worst memory and disk.
    LowEnd,
    /// Number 2: memory without ECC, regular disk.
    Consumer,
    /// Number 3: memory with ECC, regular disk.
    Enterprise,
    /// Number 4: memory with ECC, best disk.
    Server,
}

impl Config {
    /// All, in the order of their numbers.
    pub const ALL: [Config; 4] = [Config::LowEnd, Config::Consumer, Config::Enterprise, Config::Server];

    /// The configuration with this number, from 1.
    pub fn of_number(number: u8) -> Option<Config> {
        Config::ALL.into_iter().find(|config| config.number() == number)
    }

    /// Its number in the papers.
    pub const fn number(self) -> u8 {
        match self {
            Config::LowEnd => 1,
            Config::Consumer => 2,
            Config::Enterprise => 3,
            Config::Server => 4,
        }
    }

    /// Its name in the dissertation.
    pub const fn name(self) -> &'static str {
        match self {
            Config::LowEnd => "low-end",
            Config::Consumer => "consumer",
            Config::Enterprise => "enterprise",
            Config::Server => "server",
        }
    }

    /// Memory and disk, with the rates themselves and not the rounded indices, which are off by up to 0.05 and scores then by 0.1.
    pub const fn machine(self) -> Machine {
        let (memory, disk) = match self {
            Config::LowEnd => (Memory::WORST, Disk::WORST),
            Config::Consumer => (Memory::NON_ECC, Disk::REGULAR),
            Config::Enterprise => (Memory::ECC, Disk::REGULAR),
            Config::Server => (Memory::ECC, Disk::BEST),
        };
        Machine { memory, disk, flush_s: FLUSH_S }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
