//! What shall go wrong, where and when.

use std::ops::Range;

use rand::Rng;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::SECTORS_PER_BLOCK;

/// Which 512-byte sectors of a torn write reach the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tear {
    /// The first so many.
    Prefix(usize),
    /// The last so many.
    Suffix(usize),
    /// Those whose number modulo 64 is a set bit here.
    Subset(u64),
}

impl Tear {
    /// Whether sector `sector` of `sectors` reaches the medium.
    pub fn keeps(&self, sector: usize, sectors: usize) -> bool {
        match *self {
            Tear::Prefix(count) => sector < count,
            Tear::Suffix(count) => sector >= sectors.saturating_sub(count),
            Tear::Subset(mask) => mask >> (sector % 64) & 1 == 1,
        }
    }

    /// A tear of `sectors` sectors (at least 2) that keeps one at least and loses one at least.
    pub fn random(sectors: usize, rng: &mut impl Rng) -> Tear {
        assert!(sectors >= 2, "a single sector cannot be torn");
        match rng.random_range(0..3) {
            0 => Tear::Prefix(rng.random_range(1..sectors)),
            1 => Tear::Suffix(rng.random_range(1..sectors)),
            _ => {
                let all = if sectors >= 64 { u64::MAX } else { (1 << sectors) - 1 };
                loop {
                    let mask = rng.random::<u64>() & all;
                    if mask != 0 && mask != all {
                        return Tear::Subset(mask);
                    }
                }
            }
        }
    }
}

/// One way to fail. It strikes the part of a request that lies within the rule's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The read returns one flipped bit, the medium stays as it is. The bit is counted from the first byte struck, modulo
    /// the number of bits struck.
    ReadFlip {
        /// Number of the bit.
        bit: u64,
    },
    /// The read fails.
    ReadError,
    /// One bit flips on the way to the medium, counted as for [`Fault::ReadFlip`].
    WriteFlip {
        /// Number of the bit.
        bit: u64,
    },
    /// Acknowledged and never done.
    WriteLost,
    /// Acknowledged and done in part.
    WriteTorn(Tear),
    /// Acknowledged and done elsewhere: the blocks at `to` are overwritten, as far as the device reaches, and the right
    /// ones keep their old contents.
    WriteMisdirected {
        /// Where the first block struck lands.
        to: u64,
    },
    /// The write fails, nothing of the part struck is done, and the device latches. Together with [`Fault::WriteTorn`]
    /// of the same blocks, some of it is done.
    WriteError,
    /// The flush fails, and the device latches.
    FlushError,
    /// The flush is acknowledged and not passed on: a disk that lies about its cache. Only a [`super::Recorder`] below
    /// sees the difference.
    FlushLost,
    /// From this write on every request fails: the plug is pulled.
    Unplugged,
}

/// What kind of request a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Read,
    Write,
    Flush,
}

impl Fault {
    pub(super) fn event(&self) -> Event {
        match self {
            Fault::ReadFlip { .. } | Fault::ReadError => Event::Read,
            Fault::WriteFlip { .. }
            | Fault::WriteLost
            | Fault::WriteTorn(_)
            | Fault::WriteMisdirected { .. }
            | Fault::WriteError
            | Fault::Unplugged => Event::Write,
            Fault::FlushError | Fault::FlushLost => Event::Flush,
        }
    }
}

/// A fault with its occasion. By default: the first fitting request anywhere on the device, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub(super) fault: Fault,
    pub(super) blocks: Range<u64>,
    pub(super) nth: u64,
    pub(super) times: u64,
    pub(super) healed_by_write: bool,
}

impl Rule {
    /// A rule for the first request of the fault's kind.
    pub fn new(fault: Fault) -> Self {
        Rule { fault, blocks: 0..u64::MAX, nth: 1, times: 1, healed_by_write: false }
    }

    /// Only requests that touch this block count. Has no meaning for flushes.
    pub fn block(self, at: u64) -> Self {
        self.blocks(at..at.saturating_add(1))
    }

    /// Only requests that touch one of these blocks count. Has no meaning for flushes.
    pub fn blocks(self, blocks: Range<u64>) -> Self {
        Rule { blocks, ..self }
    }

    /// Strikes the `nth` request that counts, from 1, instead of the first.
    pub fn nth(self, nth: u64) -> Self {
        assert!(nth >= 1, "requests are counted from 1");
        Rule { nth, ..self }
    }

    /// Strikes so many requests in a row instead of one.
    pub fn times(self, times: u64) -> Self {
        Rule { times, ..self }
    }

    /// Strikes every request from the first one on.
    pub fn forever(self) -> Self {
        self.times(u64::MAX)
    }

    /// A block that has been written after the rule was made is struck no more, as a disk replaces a bad sector when it is
    /// written. For read faults.
    pub fn healed_by_write(self) -> Self {
        Rule { healed_by_write: true, ..self }
    }
}

/// The rules for one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    pub(super) rules: Vec<Rule>,
}

impl FaultPlan {
    /// A plan in which nothing goes wrong.
    pub fn new() -> Self {
        FaultPlan::default()
    }

    /// Adds a rule. All rules see every request; where several strike the same one, all their effects show.
    pub fn with(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// The rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// `count` silent or reported faults of reads and writes, drawn from `seed`, for a device of `blocks` blocks. The
    /// occasions are spread over the first `requests` requests of each kind. Flush faults and unplugging are left out: they
    /// end a run, and belong into a plan by name.
    pub fn random(seed: u64, blocks: u64, requests: u64, count: usize) -> Self {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let rule = |rng: &mut Pcg64Mcg| {
            let fault = match rng.random_range(0..7) {
                0 => Fault::ReadFlip { bit: rng.random() },
                1 => Fault::ReadError,
                2 => Fault::WriteFlip { bit: rng.random() },
                3 => Fault::WriteLost,
                4 => Fault::WriteTorn(Tear::random(SECTORS_PER_BLOCK, rng)),
                5 => Fault::WriteMisdirected { to: rng.random_range(0..blocks.max(1)) },
                _ => Fault::WriteError,
            };
            Rule::new(fault).nth(rng.random_range(1..=requests.max(1)))
        };
        FaultPlan { rules: (0..count).map(|_| rule(&mut rng)).collect() }
    }
}
