//! What each change writes: a function of the seed and the change's number.

use std::path::{Path, PathBuf};

use crate::pattern::{BLOCK, Generator};

/// Number of blocks that the `block` actor overwrites.
pub(super) const BLOCKS: u64 = 256;

/// Separates the sequences of the actors.
#[derive(Clone, Copy)]
enum Kind {
    LogRecord = 1,
    File = 2,
    Version = 3,
    Block = 4,
}

fn bytes(seed: u64, kind: Kind, number: u64, size: impl FnOnce(&mut Generator) -> u64) -> Vec<u8> {
    let mut generator = Generator::new(&[seed, kind as u64, number]);
    let mut bytes = vec![0; size(&mut generator) as usize];
    generator.fill(&mut bytes);
    bytes
}

/// Record `number` of the log: 16 to 8000 bytes.
pub(super) fn log_record(seed: u64, number: u64) -> Vec<u8> {
    bytes(seed, Kind::LogRecord, number, |generator| 16 + generator.below(7985))
}

/// File `number`: up to 64 KiB, one in eight of them empty.
pub(super) fn file(seed: u64, number: u64) -> Vec<u8> {
    bytes(seed, Kind::File, number, |generator| match generator.below(8) {
        0 => 0,
        _ => 1 + generator.below(65_536),
    })
}

/// Version `number` of the file that is replaced: its number, then up to 32 KiB.
pub(super) fn version(seed: u64, number: u64) -> Vec<u8> {
    let mut bytes = bytes(seed, Kind::Version, number, |generator| 8 + generator.below(32_768));
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Change `number` as it overwrites a block: its number, then the rest of 4 KiB. Number 0 is the block's first content.
pub(super) fn block(seed: u64, number: u64) -> Vec<u8> {
    let mut bytes = bytes(seed, Kind::Block, number, |_| BLOCK as u64);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The number at the start of a version or block.
pub(super) fn number_of(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|number| u64::from_le_bytes(*number))
}

pub(super) fn log_path(root: &Path) -> PathBuf {
    root.join("log")
}

pub(super) fn files_dir(root: &Path) -> PathBuf {
    root.join("files")
}

pub(super) fn file_path(root: &Path, number: u64) -> PathBuf {
    files_dir(root).join(format!("{number:06}"))
}

pub(super) fn versions_dir(root: &Path) -> PathBuf {
    root.join("replaced")
}

pub(super) fn version_path(root: &Path) -> PathBuf {
    versions_dir(root).join("current")
}

pub(super) fn blocks_path(root: &Path) -> PathBuf {
    root.join("blocks")
}
