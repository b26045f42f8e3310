//! The protection modes, which are the papers' systems and ours.

use holdfast_integrity::{Algorithm, Protection};
use std::fmt;

/// Which checksum protects a block where: a row of the papers' tables.
///
/// A [`Protection`] is what a store is told to do, and has the t_switch that it goes by; here t_switch is
/// what the model works out from a machine, so a mode has none. [`Model::chosen`](crate::Model::chosen) makes one of the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// None anywhere: the papers' NCFS, a file system without checksums.
    None,
    /// Fletcher on the disk, nothing in memory: ZFS.
    Disk,
    /// One checksum from writer to reader, which alone verifies it: E²ZFS.
    EndToEnd(Algorithm),
    /// xor in memory, xor and Fletcher on the disk, chained: Z²FS (static).
    Static,
    /// Fletcher in memory too, chained: what `static` is told to be where xor is never enough.
    StaticStrong,
    /// The same as `static`, with Fletcher instead of xor for pages that have been in memory for longer than t_switch, and from the beginning if
    /// xor is never enough: Z²FS (dynamic).
    Dynamic,
    /// CRC-64/NVME everywhere, verified at each boundary: Holdfast.
    Uniform,
}

impl Mode {
    /// The checksum of memory where a weak one will do.
    pub const WEAK: Algorithm = Protection::FAST;
    /// The papers' checksum of disks.
    pub const STRONG: Algorithm = Protection::STRONG;

    /// All that tables show, the papers' first.
    pub const ALL: [Mode; 8] = [
        Mode::None,
        Mode::Disk,
        Mode::EndToEnd(Mode::WEAK),
        Mode::EndToEnd(Mode::STRONG),
        Mode::Static,
        Mode::StaticStrong,
        Mode::Dynamic,
        Mode::Uniform,
    ];

    /// The papers' name of it, or ours.
    pub fn stands_for(self) -> String {
        match self {
            Mode::None => "NCFS".into(),
            Mode::Disk => "ZFS".into(),
            Mode::EndToEnd(Mode::WEAK) => "E²ZFS (xor)".into(),
            Mode::EndToEnd(Mode::STRONG) => "E²ZFS (Fletcher)".into(),
            Mode::EndToEnd(other) => format!("E²ZFS with {other}"),
            Mode::Static => "Z²FS (static)".into(),
            Mode::StaticStrong => "Z²FS (static), Fletcher throughout".into(),
            Mode::Dynamic => "Z²FS (dynamic)".into(),
            Mode::Uniform => "Holdfast".into(),
        }
    }
}

/// As it is written in options.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::None => f.pad("none"),
            Mode::Disk => f.pad("disk"),
            Mode::EndToEnd(algorithm) => f.pad(&format!("end-to-end={algorithm}")),
            Mode::Static => f.pad("static"),
            Mode::StaticStrong => f.pad("static=strong"),
            Mode::Dynamic => f.pad("dynamic"),
            Mode::Uniform => f.pad("uniform"),
        }
    }
}
