//! How a store lies on its device: what the blocks are used for, in how many runs files lie, in how many the free blocks.
//!
//! A Holdfast store, unmounted, is read through the walk of `holdfast check`, the only crate of the stack that this library
//! knows. Of the file systems in the kernel only the runs of files can be told, by filefrag.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_block::{Access, Device, FileDevice};
use holdfast_object::DomainId;
use holdfast_physical::check::{BlockRole, BlockUse, block_uses};
use holdfast_physical::{LABEL_BLOCKS, log_blocks};

use crate::error::{Error, Result, run};

/// What metadata is counted by, in the order of the table.
pub(super) const ROLES: [(&str, &[BlockRole]); 7] = [
    ("tree blocks", &[BlockRole::Tree]),
    ("object table", &[BlockRole::ObjectTable]),
    ("directories, links, xattrs", &[BlockRole::MetadataPage]),
    ("bitmap", &[BlockRole::Bitmap]),
    ("reference table, maps of ids", &[BlockRole::References, BlockRole::Map]),
    ("snapshot list", &[BlockRole::SnapshotList]),
    ("dead lists", &[BlockRole::DeadList]),
];

/// Blocks of a store, copies counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// By the index in [`ROLES`]: in use by the files as they are.
    pub(super) live: [u64; ROLES.len()],
    /// By the index in [`ROLES`]: only snapshots have them.
    pub(super) held: [u64; ROLES.len()],
    /// Pages of regular files as they are.
    pub(super) data_live: u64,
    /// Pages of regular files that only snapshots have.
    pub(super) data_held: u64,
    /// Lengths in blocks of the runs of free blocks, ascending.
    pub(super) free_runs: Vec<u64>,
    /// Pages and runs of each regular file as it is, by object.
    files: HashMap<u64, Runs>,
}

/// Pages and the runs they lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs {
    /// Pages, of 4 KiB.
    pub(super) pages: u64,
    /// Runs of neighbouring blocks.
    pub(super) runs: u64,
}

impl Layout {
    /// Of a store that nobody has open.
    pub(super) fn read(store: &Path) -> Result<Self> {
        let says = |error: &dyn std::fmt::Display| Error::Usage(format!("{}: {error}", store.display()));
        let device = FileDevice::open(store, Access::ReadOnly).map_err(|error| says(&error))?;
        let blocks = device.blocks();
        let uses = block_uses(Arc::new(device)).map_err(|error| says(&error))?;
        Ok(Self::of(&uses, blocks))
    }

    /// From the uses of the blocks of a device.
    pub(super) fn of(uses: &[BlockUse], blocks: u64) -> Self {
        let mut layout = Self::default();
        let mut used = vec![false; blocks as usize];
        let log = 2 * LABEL_BLOCKS..2 * LABEL_BLOCKS + log_blocks(blocks);
        for fixed in [0..2 * LABEL_BLOCKS, log, blocks - 2 * LABEL_BLOCKS..blocks] {
            fixed.for_each(|block| used[block as usize] = true);
        }
        let mut pages: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for one in uses {
            if let Some(used) = used.get_mut(one.block as usize) {
                *used = true;
            }
            if one.role == BlockRole::Data {
                *(if one.held { &mut layout.data_held } else { &mut layout.data_live }) += 1;
                if let (Some(key), false) = (one.object.filter(|key| key.domain == DomainId::MAIN), one.held) {
                    pages.insert((key.object.0, one.index), one.block);
                }
            } else if let Some(at) = ROLES.iter().position(|(_, roles)| roles.contains(&one.role)) {
                (if one.held { &mut layout.held } else { &mut layout.live })[at] += 1;
            }
        }
        let mut before = None;
        for ((object, index), block) in pages {
            let runs = layout.files.entry(object).or_default();
            runs.pages += 1;
            runs.runs += u64::from(before != Some((object, index.wrapping_sub(1), block.wrapping_sub(1))));
            before = Some((object, index, block));
        }
        let free = used.chunk_by(|a, b| a == b).filter(|run| run.first() == Some(&false));
        layout.free_runs = free.map(|run| run.len() as u64).collect();
        layout.free_runs.sort_unstable();
        layout
    }

    /// Pages and runs of all the files with these inode numbers.
    pub(super) fn runs_of(&self, inodes: impl IntoIterator<Item = u64>) -> Runs {
        inodes
            .into_iter()
            .filter_map(|inode| self.files.get(&inode))
            .fold(Runs::default(), |all, one| Runs { pages: all.pages + one.pages, runs: all.runs + one.runs })
    }

    /// Free blocks, and of them those in runs of at least `least` blocks.
    pub(super) fn free(&self, least: u64) -> (u64, u64) {
        let long = self.free_runs.iter().filter(|run| **run >= least);
        (self.free_runs.iter().sum(), long.sum())
    }
}

/// Runs of files on a file system in the kernel, which filefrag can ask for. `bytes` is the size of all of them.
pub(super) fn runs_by_filefrag(paths: &[PathBuf], bytes: u64) -> Result<Runs> {
    let mut runs = 0;
    for some in paths.chunks(500) {
        let names: Vec<String> = some.iter().map(|path| path.display().to_string()).collect();
        let arguments: Vec<&str> = names.iter().map(String::as_str).collect();
        // "NAME: 12 extents found"
        let found = run("filefrag", &arguments)?;
        runs += found
            .lines()
            .filter_map(|line| line.rsplit_once(": ")?.1.split(' ').next()?.parse::<u64>().ok())
            .sum::<u64>();
    }
    Ok(Runs { pages: bytes.div_ceil(4096), runs })
}

/// Bytes of metadata on a mounted btrfs, copies counted.
pub(super) fn btrfs_metadata(root: &Path) -> Result<u64> {
    let text = run("btrfs", &["filesystem", "df", "-b", &root.display().to_string()])?;
    // "Metadata, DUP: total=268435456, used=114688"
    let bytes = |line: &str| {
        let used = line.rsplit_once("used=")?.1.trim().parse::<u64>().ok()?;
        let copies = 1 + u64::from(line.contains("DUP"));
        line.starts_with("Metadata").then_some(used * copies)
    };
    Ok(text.lines().filter_map(bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::{Kind, ObjectId, ObjectKey};

    #[test]
    fn runs_and_roles_are_counted() {
        let of = |role, object, index, block, held| BlockUse {
            block,
            role,
            copy: 0,
            object: Some(ObjectKey { domain: DomainId::MAIN, object: ObjectId(object) }),
            kind: Some(Kind::Regular),
            level: 0,
            index,
            held,
        };
        let start = 2 * LABEL_BLOCKS + log_blocks(4096);
        let data = [(5, 0, 0), (5, 1, 1), (5, 2, 9), (5, 4, 10), (6, 0, 11), (6, 1, 12)];
        let mut uses: Vec<BlockUse> =
            data.map(|(object, index, block)| of(BlockRole::Data, object, index, start + block, false)).to_vec();
        uses.push(of(BlockRole::Data, 5, 0, start + 20, true));
        uses.push(of(BlockRole::Tree, 5, 0, start + 21, false));
        uses.push(of(BlockRole::DeadList, 0, 0, start + 22, false));
        let layout = Layout::of(&uses, 4096);
        assert_eq!(layout.runs_of([5]), Runs { pages: 4, runs: 3 }, "a hole ends a run, and so does another block");
        assert_eq!(layout.runs_of([6, 7]), Runs { pages: 2, runs: 1 });
        assert_eq!((layout.data_live, layout.data_held), (6, 1));
        assert_eq!(layout.live, [1, 0, 0, 0, 0, 0, 1]);
        let last = 4096 - 2 * LABEL_BLOCKS - (start + 23);
        assert_eq!(layout.free_runs, [7, 7, last]);
        assert_eq!(layout.free(8), (14 + last, last));
    }
}
