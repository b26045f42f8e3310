//! The files of a load on one mount: each block is stamped with its file and its place in it, and checked whenever it is read.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use holdfast_lab::load::{Action, Load};

use crate::error::{At, Error, Result};
use crate::pattern::{BLOCK, Generator, check_stamps, stamp};

/// Blocks of each file have numbers of their own; the log is file 0.
const BLOCKS_OF_A_FILE: u64 = 1 << 24;
const LOG: u64 = 0;
const LOG_BLOCKS_MAX: u64 = 4096;
/// What is appended, on average.
const APPEND_BLOCKS: u64 = 4;
/// What is written at once, at most.
const PIECE_BLOCKS: u64 = 256;
/// Files in one directory, on average: filebench's `meandirwidth` for the first two.
const DIRECTORY_WIDTH: u64 = 20;

/// A file, and how long it is.
#[derive(Clone, Copy)]
struct Known {
    number: u64,
    blocks: u64,
}

/// The files of one load on one mount, and what it does next.
pub(in crate::integrity) struct Files {
    load: Load,
    mean_blocks: u64,
    directory: PathBuf,
    directories: u64,
    files: Vec<Known>,
    log_blocks: u64,
    next: u64,
    random: Generator,
    /// What is written, but for the stamps.
    contents: Vec<u8>,
    buffer: Vec<u8>,
    /// Calls to the file system, with the bytes of one file counted as one.
    operations: u64,
}

impl Files {
    /// Makes the files, `bytes` in all or a little more.
    pub(in crate::integrity) fn create(root: &Path, load: Load, bytes: u64, seed: u64) -> Result<Files> {
        let directory = root.join("load");
        let file_bytes = load.file_bytes(bytes).max(BLOCK as u64);
        let count = (bytes / file_bytes).max(1);
        let directories = count.div_ceil(DIRECTORY_WIDTH);
        for number in 0..directories {
            let path = directory.join(format!("d{number}"));
            fs::create_dir_all(&path).at("create", &path)?;
        }
        let mut contents = vec![0; PIECE_BLOCKS as usize * BLOCK];
        Generator::new(&[seed]).fill(&mut contents);
        let random = Generator::new(&[seed, 2]);
        let mut files = Files {
            load,
            mean_blocks: file_bytes / BLOCK as u64,
            directory,
            directories,
            files: Vec::new(),
            log_blocks: 0,
            next: LOG + 1,
            random,
            contents,
            buffer: Vec::new(),
            operations: 0,
        };
        for _ in 0..count {
            files.make(false)?;
        }
        Ok(files)
    }

    /// Goes round so often; gives the number of operations.
    pub(in crate::integrity) fn run(&mut self, rounds: u64) -> Result<u64> {
        self.operations = 0;
        for _ in 0..rounds {
            for (action, times) in self.load.round() {
                for _ in 0..*times {
                    self.act(*action)?;
                }
            }
        }
        Ok(self.operations)
    }

    fn act(&mut self, action: Action) -> Result<()> {
        let at = self.random.below(self.files.len() as u64) as usize;
        match action {
            Action::Read => self.read(at),
            Action::ReadAndAppend => {
                self.read(at)?;
                self.append(at, true)
            }
            Action::Create => self.make(false),
            Action::CreateSynced => self.make(true),
            Action::Append => self.append(at, false),
            Action::Log => self.log(),
            Action::Delete => self.delete(at),
            Action::Look => self.look(at),
            Action::ReadPage => self.read_page(at),
            Action::WritePage => self.write_page(at),
            Action::Sync => self.sync(at),
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        if number == LOG {
            return self.directory.join("log");
        }
        self.directory.join(format!("d{}/f{number}", number % self.directories))
    }

    /// From half of the mean to one and a half.
    fn size(&mut self, mean_blocks: u64) -> u64 {
        mean_blocks / 2 + self.random.below(mean_blocks + 1)
    }

    fn make(&mut self, is_synced: bool) -> Result<()> {
        let blocks = if self.load.sizes_vary() { self.size(self.mean_blocks) } else { self.mean_blocks };
        let known = Known { number: self.next, blocks };
        self.next += 1;
        self.put(known.number, 0, known.blocks, is_synced)?;
        self.files.push(known);
        Ok(())
    }

    fn append(&mut self, at: usize, is_synced: bool) -> Result<()> {
        let more = self.size(APPEND_BLOCKS);
        let Known { number, blocks } = self.files[at];
        // One that has grown long is begun anew, so that a long run has files as a short one.
        let is_long = blocks > 4 * self.mean_blocks;
        self.put(number, if is_long { 0 } else { blocks }, more, is_synced)?;
        self.files[at].blocks = if is_long { more } else { blocks + more };
        Ok(())
    }

    fn log(&mut self) -> Result<()> {
        let more = self.size(APPEND_BLOCKS);
        let from = if self.log_blocks > LOG_BLOCKS_MAX { 0 } else { self.log_blocks };
        self.put(LOG, from, more, false)?;
        self.log_blocks = from + more;
        Ok(())
    }

    /// Writes so many blocks at the end of a file, which has `from`; with none it is made, or made empty.
    fn put(&mut self, number: u64, from: u64, blocks: u64, is_synced: bool) -> Result<()> {
        let path = self.path(number);
        let mut options = OpenOptions::new();
        let options = if from == 0 { options.write(true).create(true).truncate(true) } else { options.append(true) };
        let mut file = options.open(&path).at("open", &path)?;
        for piece in (from..from + blocks).step_by(PIECE_BLOCKS as usize) {
            let count = PIECE_BLOCKS.min(from + blocks - piece);
            let bytes = &mut self.contents[..count as usize * BLOCK];
            stamp(bytes, number * BLOCKS_OF_A_FILE + piece, self.operations);
            file.write_all(bytes).at("write", &path)?;
        }
        self.operations += 1;
        if is_synced {
            file.sync_all().at("fsync", &path)?;
            self.operations += 1;
        }
        Ok(())
    }

    /// Reads a whole file.
    fn read(&mut self, at: usize) -> Result<()> {
        let Known { number, blocks } = self.files[at];
        let path = self.path(number);
        // One byte more than there should be: a file that is longer is wrong.
        self.buffer.resize(blocks as usize * BLOCK + 1, 0);
        let mut file = File::open(&path).at("open", &path)?;
        let mut got = 0;
        while got < self.buffer.len() {
            match file.read(&mut self.buffer[got..]).at("read", &path)? {
                0 => break,
                more => got += more,
            }
        }
        self.operations += 1;
        if got + 1 != self.buffer.len() {
            let reason = format!("{}: {got} bytes, {} were written", path.display(), self.buffer.len() - 1);
            return Err(Error::Usage(reason));
        }
        check_stamps(&self.buffer[..got], number * BLOCKS_OF_A_FILE).map_err(|(expected, got)| Error::WrongContents {
            path,
            offset: 0,
            expected,
            got,
        })
    }

    fn delete(&mut self, at: usize) -> Result<()> {
        // Never the last one.
        if self.files.len() == 1 {
            return Ok(());
        }
        let number = self.files.swap_remove(at).number;
        let path = self.path(number);
        self.operations += 1;
        fs::remove_file(&path).at("remove", &path)
    }

    fn look(&mut self, at: usize) -> Result<()> {
        let path = self.path(self.files[at].number);
        self.operations += 1;
        fs::metadata(&path).at("stat", &path).map(drop)
    }

    fn read_page(&mut self, at: usize) -> Result<()> {
        let Known { number, blocks } = self.files[at];
        let (path, block) = (self.path(number), self.random.below(blocks));
        self.buffer.resize(BLOCK, 0);
        let file = File::open(&path).at("open", &path)?;
        file.read_exact_at(&mut self.buffer, block * BLOCK as u64).at("read", &path)?;
        self.operations += 1;
        check_stamps(&self.buffer, number * BLOCKS_OF_A_FILE + block).map_err(|(expected, got)| Error::WrongContents {
            path,
            offset: block * BLOCK as u64,
            expected,
            got,
        })
    }

    fn write_page(&mut self, at: usize) -> Result<()> {
        let Known { number, blocks } = self.files[at];
        let (path, block) = (self.path(number), self.random.below(blocks));
        let bytes = &mut self.contents[..BLOCK];
        stamp(bytes, number * BLOCKS_OF_A_FILE + block, self.operations);
        let file = OpenOptions::new().write(true).open(&path).at("open", &path)?;
        file.write_all_at(bytes, block * BLOCK as u64).at("write", &path)?;
        self.operations += 1;
        Ok(())
    }

    fn sync(&mut self, at: usize) -> Result<()> {
        let path = self.path(self.files[at].number);
        self.operations += 1;
        File::open(&path).and_then(|file| file.sync_all()).at("fsync", &path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_leaves_files_as_it_knows_them() {
        for load in Load::ALL {
            let dir = tempfile::tempdir().expect("a directory");
            let mut files = Files::create(dir.path(), load, 4 << 20, 7).expect("files");
            let operations = files.run(30).expect("it runs");
            let per_step = match load {
                Load::Webserver => 11,
                Load::Fileserver => 5,
                Load::Varmail => 7,
                Load::Oltp => 26,
            };
            assert_eq!(operations, 30 * per_step, "{load}");
            for Known { number, blocks } in files.files.clone() {
                assert_eq!(fs::metadata(files.path(number)).expect("it is there").len(), blocks * BLOCK as u64);
            }
        }
    }

    #[test]
    fn wrong_bytes_end_a_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut files = Files::create(dir.path(), Load::Webserver, 1 << 20, 7).expect("files");
        for Known { number, .. } in files.files.clone() {
            let path = files.path(number);
            let mut bytes = fs::read(&path).expect("a file");
            bytes[0] ^= 1;
            fs::write(&path, bytes).expect("written");
        }
        assert!(matches!(files.run(1), Err(Error::WrongContents { .. })));
    }
}
