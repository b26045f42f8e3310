//! Loads after those of filebench, whose bytes are known in advance: each word follows from its file and its place in it, so that every
//! read can be judged by itself, whoever wrote last.

use super::target::Target;
use rand::Rng;
use std::fmt;

const KIB: usize = 1024;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Reads ten whole files, appends to a log.
    Webserver,
    /// Creates, writes, appends, reads, deletes.
    Fileserver,
    /// Small files, with an fsync for each change.
    Varmail,
    /// Reads and writes pages of one large file; a log with fsync.
    Oltp,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 4] = [Load::Webserver, Load::Fileserver, Load::Varmail, Load::Oltp];
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Load::Webserver => "webserver",
            Load::Fileserver => "fileserver",
            Load::Varmail => "varmail",
            Load::Oltp => "oltp",
        })
    }
}

/// What a reader or writer met.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Met {
    /// Operations done.
    pub(super) operations: u64,
    /// Reads of other bytes than were written, without an error.
    pub(super) wrong: u64,
    /// Operations that ended in an error.
    pub(super) errors: u64,
}

/// One file of the set.
#[derive(Clone)]
struct File<Id> {
    /// Its number: its bytes follow from it.
    number: u64,
    id: Id,
    size: usize,
}

/// One worker's files, which nobody else touches.
pub(super) struct Worker<T: Target> {
    load: Load,
    files: Vec<File<T::Id>>,
    directory: T::Id,
    next: u64,
    /// Changes may have been lost in an orderly way: a file may be shorter than it was, but what is in it is right.
    pub(super) may_have_lost: bool,
    pub(super) met: Met,
}

/// The bytes `from..from + length` of the file `number`.
fn pattern(number: u64, from: usize, length: usize) -> Vec<u8> {
    let word = |at: usize| (number << 32 ^ at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).to_le_bytes();
    (from..from + length).map(|at| word(at / 8)[at % 8]).collect()
}

impl<T: Target> Worker<T> {
    /// Makes the files that it begins with, about `bytes` in all.
    ///
    /// # Errors
    /// In words; nothing has flipped yet.
    pub(super) fn new(target: &T, load: Load, worker: u64, bytes: usize) -> Result<Worker<T>, String> {
        let directory = target.make_directory(&format!("worker {worker}"))?;
        let next = worker << 20;
        let mut this = Worker { load, files: Vec::new(), directory, next, may_have_lost: false, met: Met::default() };
        let size = match load {
            Load::Webserver | Load::Varmail => 16 * KIB,
            Load::Fileserver => 128 * KIB,
            Load::Oltp => bytes,
        };
        for _ in 0..(bytes / size).max(1) {
            let file = this.create(target).ok_or("a file cannot be made")?;
            this.write(target, file, 0, size);
        }
        if this.met.errors > 0 { Err("a file cannot be written".into()) } else { Ok(this) }
    }

    /// One round of the load.
    pub(super) fn step(&mut self, target: &T, rng: &mut impl Rng) {
        match self.load {
            Load::Webserver => {
                for _ in 0..10 {
                    let file = self.any(rng);
                    self.read_whole(target, file);
                }
                self.append(target, 0, 16 * KIB);
            }
            Load::Fileserver => {
                if let Some(file) = self.create(target) {
                    self.write(target, file, 0, 128 * KIB);
                }
                let appended = self.any(rng);
                self.append(target, appended, 16 * KIB);
                let read = self.any(rng);
                self.read_whole(target, read);
                self.delete(target, rng);
            }
            Load::Varmail => {
                self.delete(target, rng);
                if let Some(file) = self.create(target) {
                    self.write(target, file, 0, 16 * KIB);
                    self.sync(target, file);
                }
                let file = self.any(rng);
                self.read_whole(target, file);
                self.append(target, file, 4 * KIB);
                self.sync(target, file);
                let file = self.any(rng);
                self.read_whole(target, file);
            }
            Load::Oltp => {
                for _ in 0..20 {
                    let pages = self.files[0].size / (4 * KIB);
                    self.read(target, 0, rng.random_range(0..pages) * 4 * KIB, 4 * KIB);
                }
                for _ in 0..5 {
                    let pages = self.files[0].size / (4 * KIB);
                    self.write(target, 0, rng.random_range(0..pages) * 4 * KIB, 4 * KIB);
                }
                self.sync(target, 0);
            }
        }
    }

    /// Reads everything once more.
    pub(super) fn read_all(&mut self, target: &T) {
        for file in 0..self.files.len() {
            self.read_whole(target, file);
        }
    }

    fn any(&self, rng: &mut impl Rng) -> usize {
        rng.random_range(0..self.files.len())
    }

    fn count<V>(&mut self, outcome: Result<V, String>) -> Option<V> {
        self.met.operations += 1;
        self.met.errors += u64::from(outcome.is_err());
        outcome.ok()
    }

    fn create(&mut self, target: &T) -> Option<usize> {
        let number = self.next;
        self.next += 1;
        let made = target.create(&self.directory, &number.to_string());
        let id = self.count(made)?;
        self.files.push(File { number, id, size: 0 });
        Some(self.files.len() - 1)
    }

    fn delete(&mut self, target: &T, rng: &mut impl Rng) {
        // Never the last one.
        if self.files.len() > 1 {
            let at = self.any(rng);
            let file = self.files.swap_remove(at);
            let gone = target.remove(&self.directory, &file.number.to_string());
            self.count(gone);
        }
    }

    fn write(&mut self, target: &T, file: usize, from: usize, length: usize) {
        let File { number, id, .. } = self.files[file].clone();
        for piece in (from..from + length).step_by(128 * KIB) {
            let bytes = pattern(number, piece, (128 * KIB).min(from + length - piece));
            let written = target.write(&id, piece as u64, &bytes);
            if self.count(written).is_some() {
                self.files[file].size = self.files[file].size.max(piece + bytes.len());
            }
        }
    }

    fn append(&mut self, target: &T, file: usize, length: usize) {
        // Begun anew when it is large.
        let from = if self.files[file].size > 512 * KIB { 0 } else { self.files[file].size };
        self.write(target, file, from, length);
    }

    fn read_whole(&mut self, target: &T, file: usize) {
        for from in (0..self.files[file].size).step_by(128 * KIB) {
            self.read(target, file, from, (128 * KIB).min(self.files[file].size - from));
        }
    }

    fn read(&mut self, target: &T, file: usize, from: usize, length: usize) {
        let File { number, id, .. } = &self.files[file];
        let (expected, read) = (pattern(*number, from, length), target.read(id, from as u64, length));
        if let Some(got) = self.count(read) {
            let is_right = if self.may_have_lost { expected.starts_with(&got) } else { expected == got };
            self.met.wrong += u64::from(!is_right);
        }
    }

    fn sync(&mut self, target: &T, file: usize) {
        let synced = target.sync(&self.files[file].id);
        self.count(synced);
    }
}
