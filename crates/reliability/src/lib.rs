//! How probable it is that a read returns wrong bytes and nobody notices: the analytical model of Z²FS.
//!
//! A block of 4 KiB is written, stays in the writer's memory until it is flushed, lies on the disk, is read into memory
//! again, stays there for its *residency*, and is delivered. At each station bits flip by themselves, and the
//! checksum that is verified afterwards sees it or does not. The *score* of a protection mode on a machine is −log10 of
//! the probability that a flip at one of the stations gets through.
//!
//! ```
//! use holdfast_reliability::{ChecksumData, Config, Goal, Mode, Model, Residency};
//!
//! let consumer = Model { machine: Config::Consumer.machine(), data: ChecksumData::Published, goal: Goal::Zettabyte };
//! assert!(consumer.score(Mode::Static, 1.0) > consumer.goal.score());
//! // Memory without ECC: xor is strong enough for a minute and a half.
//! assert!(matches!(consumer.t_switch(), Residency::UpTo(seconds) if (92.0..93.0).contains(&seconds)));
//! ```
//!
//! | file | job |
//! |---|---|
//! | `probability` | probabilities down to 10^-1000; tails of the Poisson and the binomial distribution |
//! | `device` | memory and disks: how often bits flip |
//! | `checksum` | what checksums do not see, published and measured |
//! | `machine` | a memory and a disk together; the papers' sample configurations |
//! | `mode` | the protection modes, and what protects a block where |
//! | `model`, `residency` | scores, t_switch, how long a mode keeps a goal |
//! | `recommend` | the mode for a machine |
//! | `figure`, `contour` | the paper's figures as SVG; marching squares |
//! | `chart` | bars, also those of others |
//! | `document` | the tables of `docs/reliability.md` |
//! | `schemes` | whole devices that fail: lives and costs of RAID, backups and Flashlog |
//!
//! # What holds everywhere
//!
//! - A block has [`BLOCK_BITS`] bits. Times are in seconds, rates in flips per bit and second.
//! - One corruption at a time: flips at two stations of one block's life are not combined (z2fs §II-C).
//! - Probabilities are kept as logarithms, as those of strong checksums are too small for the exponent of an `f64`.
//! - Everything is a pure function: no clock, no files, no machine at hand; that is found out by whoever asks.
//!
//! # Sources
//!
//! Y. Zhang, D. S. Myers, A. C. Arpaci-Dusseau, R. H. Arpaci-Dusseau, *Zettabyte Reliability with Flexible End-to-end Data
//! Integrity* (MSST 2013), sections II and III: "z2fs" in this crate; Y. Zhang, *Cooperative Data Protection*
//! (dissertation), sections 4.1 and 4.2. `docs/reliability.md` has the equations, the tables, and what is weak about them.

mod chart;
mod checksum;
mod contour;
mod device;
mod document;
mod figure;
mod goal;
mod machine;
mod mode;
mod model;
mod probability;
mod recommend;
mod residency;
mod schemes;

pub use chart::{Chart, Row, draw_chart};
pub use checksum::{ChecksumData, Strength, strength};
pub use device::{Disk, Memory, OutOfRange};
pub use document::{MissingMark, renewed};
pub use figure::{DrawError, Figure, draw};
pub use goal::Goal;
pub use machine::{Config, FLUSH_S, Machine};
pub use mode::Mode;
pub use model::Model;
pub use probability::Probability;
pub use recommend::{Costs, Recommendation, recommend};
pub use residency::Residency;
pub use schemes::{Bars, Bill, Devices, Prices, Scheme, draw_bars, failure_within, renewed_schemes};

/// Bits in a block: 4 KiB, as in z2fs §II-B.
pub const BLOCK_BITS: u32 = 32768;
