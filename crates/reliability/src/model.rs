//! A machine, a goal and the strengths of checksums together: scores, t_switch, and how long a mode keeps the goal.
//!
//! Invariant: but for the one jump of `dynamic` at t_switch, a mode's score falls as the residency grows.

use crate::checksum::{ChecksumData, Strength, strength};
use crate::goal::Goal;
use crate::machine::Machine;
use crate::mode::Mode;
use crate::probability::Probability;
use crate::residency::Residency;
use holdfast_integrity::{Algorithm, Protection};

/// What scores are computed from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Model {
    /// Memory and disk.
    pub machine: Machine,
    /// Whose figures for checksums.
    pub data: ChecksumData,
    /// What decides when `dynamic` switches.
    pub goal: Goal,
}

/// What protects a block at the stations of its life. On the disk there can be two checksums.
struct Stations {
    writer: Strength,
    disk: [Strength; 2],
    reader: Strength,
}

impl Stations {
    fn of_one(strength: Strength) -> Stations {
        Stations { writer: strength, disk: [strength; 2], reader: strength }
    }
}

impl Model {
    /// −log10 of the probability that a block comes to its reader wrong and unnoticed, if it has been in memory for so many
    /// seconds (0 to infinity) since it was read from the disk.
    pub fn score(&self, mode: Mode, residency_s: f64) -> f64 {
        self.undetected(mode, residency_s).score()
    }

    /// That a block comes to its reader wrong and unnoticed (z2fs §III, P_sys-udc).
    pub fn undetected(&self, mode: Mode, residency_s: f64) -> Probability {
        let stations = match mode {
            Mode::Dynamic => match self.t_switch() {
                Residency::Never => self.stations(Mode::StaticStrong),
                until if until.covers(residency_s) => self.stations(Mode::Static),
                _ => self.switched(),
            },
            mode => self.stations(mode),
        };
        self.of_stations(&stations, residency_s)
    }

    /// The largest residency at which `static` keeps the goal: after it, `dynamic` relies on the strong checksum.
    /// [`Residency::Never`] where the xor of the writer's side alone misses the goal: then both use the strong one throughout.
    pub fn t_switch(&self) -> Residency {
        self.keeps(&self.stations(Mode::Static), self.goal)
    }

    /// How long a page may stay in memory until the mode misses `goal`, which may be another than the one by which `dynamic` switches.
    pub fn keeps_goal(&self, mode: Mode, goal: Goal) -> Residency {
        if mode != Mode::Dynamic {
            return self.keeps(&self.stations(mode), goal);
        }
        match self.t_switch() {
            Residency::Never => self.keeps(&self.stations(Mode::StaticStrong), goal),
            switches => self.keeps_switching(switches, goal),
        }
    }

    /// What a store is told to do for a mode on this machine, by the goal by which `dynamic` switches: `static` and `dynamic` have the
    /// strong checksum throughout where xor is never enough.
    pub fn chosen(&self, mode: Mode) -> Protection {
        match mode {
            Mode::None => Protection::None,
            Mode::Disk => Protection::Disk,
            Mode::EndToEnd(algorithm) => Protection::EndToEnd(algorithm),
            Mode::Static => Protection::Static { strong: self.t_switch() == Residency::Never },
            Mode::StaticStrong => Protection::Static { strong: true },
            Mode::Dynamic => Protection::Dynamic {
                t_switch_s: match self.t_switch() {
                    Residency::Never => 0,
                    // Rounded down, and not more than there is room for: sooner is safer.
                    Residency::UpTo(seconds) => seconds as u32,
                    Residency::Always => u32::MAX,
                },
            },
            Mode::Uniform => Protection::Uniform,
        }
    }

    /// How long a page may stay in memory until a store that is told so misses the model's goal.
    pub fn keeps_as_told(&self, protection: Protection) -> Residency {
        let mode = match protection {
            Protection::None => Mode::None,
            Protection::Disk => Mode::Disk,
            Protection::EndToEnd(algorithm) => Mode::EndToEnd(algorithm),
            Protection::Static { strong: false } => Mode::Static,
            Protection::Static { strong: true } | Protection::Dynamic { t_switch_s: 0 } => Mode::StaticStrong,
            Protection::Dynamic { t_switch_s } => {
                return self.keeps_switching(Residency::UpTo(f64::from(t_switch_s)), self.goal);
            }
            // BLAKE3 is for blocks of the disk, of which CRC-64 misses less than of memory already.
            Protection::Uniform | Protection::UniformBlake3 => Mode::Uniform,
        };
        self.keeps(&self.stations(mode), self.goal)
    }

    /// For `dynamic` with a t_switch of somebody's choice.
    fn keeps_switching(&self, switches: Residency, goal: Goal) -> Residency {
        let before = self.keeps(&self.stations(Mode::Static), goal);
        if before < switches {
            return before;
        }
        // Up to the switch, and on for as long as it holds behind it.
        let after = self.keeps(&self.switched(), goal);
        if after > switches { after } else { switches }
    }

    fn stations(&self, mode: Mode) -> Stations {
        let of = |algorithm| strength(algorithm, self.data);
        match mode {
            Mode::None => Stations::of_one(Strength::NONE),
            Mode::Disk => Stations { disk: [of(Mode::STRONG); 2], ..Stations::of_one(Strength::NONE) },
            Mode::EndToEnd(algorithm) => Stations::of_one(of(algorithm)),
            Mode::StaticStrong => Stations::of_one(of(Mode::STRONG)),
            // What `dynamic` is until t_switch.
            Mode::Static | Mode::Dynamic => {
                Stations { disk: [of(Mode::WEAK), of(Mode::STRONG)], ..Stations::of_one(of(Mode::WEAK)) }
            }
            Mode::Uniform => Stations::of_one(of(Algorithm::Crc64Nvme)),
        }
    }

    /// `dynamic` after t_switch.
    fn switched(&self) -> Stations {
        Stations { writer: strength(Mode::WEAK, self.data), ..self.stations(Mode::StaticStrong) }
    }

    fn of_stations(&self, stations: &Stations, residency_s: f64) -> Probability {
        let Machine { memory, disk, flush_s } = self.machine;
        let in_memory = |strength: &Strength, seconds| strength.unseen(|flips| memory.flips_at_least(flips, seconds));
        // What two checksums miss is at most what the stronger one misses; that they miss different things is left aside.
        let [first, second] = stations.disk.map(|strength| strength.unseen(|flips| disk.flips_at_least(flips)));
        in_memory(&stations.reader, residency_s).plus(first.min(second)).plus(in_memory(&stations.writer, flush_s))
    }

    fn keeps(&self, stations: &Stations, goal: Goal) -> Residency {
        let holds = |residency_s| self.of_stations(stations, residency_s) <= goal.probability();
        if !holds(0.0) {
            return Residency::Never;
        }
        if holds(f64::INFINITY) {
            return Residency::Always;
        }
        let (mut low, mut high) = (0.0, 1.0);
        while holds(high) {
            (low, high) = (high, 2.0 * high);
        }
        loop {
            let middle = low + (high - low) / 2.0;
            if middle <= low || middle >= high {
                return Residency::UpTo(low);
            }
            *(if holds(middle) { &mut low } else { &mut high }) = middle;
        }
    }
}
