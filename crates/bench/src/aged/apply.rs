//! Carries out the steps of the plan on a file system, and knows what must be in the files.
//!
//! Each block of a file names the file and its own number, so that every read of a measurement also checks what it got.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::year::Step;
use crate::error::{At, Error, Result};
use crate::pattern::{BLOCK, Generator};
use crate::peer::Peer;

/// Bytes written at once: what cp uses.
const CHUNK: usize = 128 << 10;

/// Makes contents of files.
#[derive(Debug)]
pub(super) struct Contents {
    random: Vec<u8>,
    chunk: Vec<u8>,
    writes: u64,
}

impl Contents {
    /// By seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = vec![0; 256 * BLOCK];
        Generator::new(&[seed, 4096]).fill(&mut random);
        Self { random, chunk: vec![0; CHUNK + BLOCK], writes: 0 }
    }

    /// Writes `bytes` bytes of file `id` from `offset` on.
    pub(super) fn write(&mut self, file: &File, id: u64, offset: u64, bytes: u64) -> io::Result<()> {
        self.writes += 1;
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let first = at / BLOCK as u64;
            let skipped = (at % BLOCK as u64) as usize;
            let length = (CHUNK - skipped).min((end - at) as usize);
            for (block, index) in
                self.chunk[..(skipped + length).next_multiple_of(BLOCK)].chunks_mut(BLOCK).zip(first..)
            {
                let from = (id.wrapping_mul(7).wrapping_add(index) % 256) as usize * BLOCK;
                block.copy_from_slice(&self.random[from..from + BLOCK]);
                for (place, word) in block.chunks_exact_mut(8).zip([id, index, self.writes]) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
            }
            file.write_all_at(&self.chunk[skipped..skipped + length], at)?;
            at += length as u64;
        }
        Ok(())
    }
}

/// Checks that `bytes`, read from `offset` (whole blocks) of file `id`, are of that file and place.
pub(super) fn check(path: &Path, id: u64, offset: u64, bytes: &[u8]) -> Result<()> {
    for (block, index) in bytes.chunks(BLOCK).zip(offset / BLOCK as u64..) {
        let mut words = block.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let (Some(got_id), Some(got)) = (words.next(), words.next()) else { continue };
        if (got_id, got) != (id, index) {
            let offset = index * BLOCK as u64;
            return Err(Error::WrongContents { path: path.to_path_buf(), offset, expected: index, got });
        }
    }
    Ok(())
}

/// Carries out one step.
pub(super) fn apply(step: &Step, peer: &Peer, contents: &mut Contents) -> Result<()> {
    let root = peer.root();
    match step {
        Step::MakeDirectory(path) => fs::create_dir(root.join(path)).at("create", path),
        Step::Create { path, id, bytes } => {
            let full = root.join(path);
            let file = OpenOptions::new().write(true).create_new(true).open(&full).at("create", &full)?;
            contents.write(&file, *id, 0, *bytes).at("write", &full)
        }
        Step::Save { path, id, bytes } => {
            let (full, beside) = (root.join(path), root.join(format!("{path}.new")));
            let file = OpenOptions::new().write(true).create_new(true).open(&beside).at("create", &beside)?;
            contents.write(&file, *id, 0, *bytes).at("write", &beside)?;
            file.sync_all().at("fsync", &beside)?;
            fs::rename(&beside, &full).at("rename", &beside)
        }
        Step::Overwrite { path, id, places } => {
            let full = root.join(path);
            let file = OpenOptions::new().write(true).open(&full).at("open", &full)?;
            for (first, count) in places {
                contents.write(&file, *id, first * BLOCK as u64, count * BLOCK as u64).at("write", &full)?;
            }
            file.sync_all().at("fsync", &full)
        }
        Step::Append { path, id, offset, bytes, sync } => {
            let full = root.join(path);
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&full).at("open", &full)?;
            contents.write(&file, *id, *offset, *bytes).at("append to", &full)?;
            if *sync { file.sync_all().at("fsync", &full) } else { Ok(()) }
        }
        Step::Rename { from, to } => fs::rename(root.join(from), root.join(to)).at("rename", from),
        Step::Remove(path) => fs::remove_file(root.join(path)).at("remove", path),
        Step::Settle => peer.settle(),
        Step::Snapshot(name) => peer.snapshot(name),
        Step::DropSnapshot(name) => peer.drop_snapshot(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_know_their_place_however_they_were_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("file");
        let file = File::create(&path).expect("a file");
        let mut contents = Contents::new(1);
        let (mut at, mut random) = (0, Generator::new(&[1]));
        while at < 1 << 20 {
            let bytes = 1 + random.below(3 * CHUNK as u64);
            contents.write(&file, 9, at, bytes).expect("append");
            at += bytes;
        }
        contents.write(&file, 9, 40 * BLOCK as u64, 3 * BLOCK as u64).expect("overwrite");
        let bytes = fs::read(&path).expect("read");
        assert_eq!(bytes.len() as u64, at);
        check(&path, 9, 0, &bytes).expect("all is in its place");
        check(&path, 9, 4 * BLOCK as u64, &bytes[4 * BLOCK..]).expect("also from the middle");
        for (id, offset) in [(8, 0), (9, BLOCK as u64)] {
            assert!(matches!(check(&path, id, offset, &bytes), Err(Error::WrongContents { .. })), "{id} {offset}");
        }
    }
}
