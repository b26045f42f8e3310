//! Loads after those of filebench, whose bytes are known in advance: each word follows from its file and its place in it, so that every
//! read can be judged by itself, whoever wrote last.

use holdfast_naming::{Namespace, NewNode, Request};
use holdfast_object::{Durability, ObjectId};
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
pub struct Met {
    /// Operations done.
    pub operations: u64,
    /// Reads of other bytes than were written, without an error.
    pub wrong: u64,
    /// Operations that ended in an error.
    pub errors: u64,
}

/// One file of the set.
#[derive(Clone, Copy)]
struct File {
    /// Its number: its bytes follow from it.
    number: u64,
    id: ObjectId,
    size: usize,
}

/// One worker's files, which nobody else touches.
pub struct Worker {
    load: Load,
    files: Vec<File>,
    directory: ObjectId,
    next: u64,
    pub(super) met: Met,
}

/// The bytes `from..from + length` of the file `number`.
fn pattern(number: u64, from: usize, length: usize) -> Vec<u8> {
    let word = |at: usize| (number << 32 ^ at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).to_le_bytes();
    (from..from + length).map(|at| word(at / 8)[at % 8]).collect()
}

impl Worker {
    /// Makes the files that it begins with, about `bytes` in all.
    ///
    /// # Errors
    /// In words; nothing has flipped yet.
    pub fn new(namespace: &Namespace, load: Load, worker: u64, bytes: usize) -> Result<Worker, String> {
        let name = format!("worker {worker}");
        let made = namespace.mkdir(&Request::ROOT, ObjectId::ROOT, name.as_bytes(), 0o755);
        let directory = made.map_err(|error| error.to_string())?.id;
        let mut this = Worker { load, files: Vec::new(), directory, next: worker << 20, met: Met::default() };
        let size = match load {
            Load::Webserver | Load::Varmail => 16 * KIB,
            Load::Fileserver => 128 * KIB,
            Load::Oltp => bytes,
        };
        for _ in 0..(bytes / size).max(1) {
            let file = this.create(namespace).ok_or("a file cannot be made")?;
            this.write(namespace, file, 0, size);
        }
        if this.met.errors > 0 { Err("a file cannot be written".into()) } else { Ok(this) }
    }

    /// One round of the load.
    pub fn step(&mut self, namespace: &Namespace, rng: &mut impl Rng) {
        match self.load {
            Load::Webserver => {
                for _ in 0..10 {
                    let file = self.any(rng);
                    self.read_whole(namespace, file);
                }
                self.append(namespace, 0, 16 * KIB);
            }
            Load::Fileserver => {
                if let Some(file) = self.create(namespace) {
                    self.write(namespace, file, 0, 128 * KIB);
                }
                let appended = self.any(rng);
                self.append(namespace, appended, 16 * KIB);
                let read = self.any(rng);
                self.read_whole(namespace, read);
                self.delete(namespace, rng);
            }
            Load::Varmail => {
                self.delete(namespace, rng);
                if let Some(file) = self.create(namespace) {
                    self.write(namespace, file, 0, 16 * KIB);
                    self.sync(namespace, file);
                }
                let file = self.any(rng);
                self.read_whole(namespace, file);
                self.append(namespace, file, 4 * KIB);
                self.sync(namespace, file);
                let file = self.any(rng);
                self.read_whole(namespace, file);
            }
            Load::Oltp => {
                for _ in 0..20 {
                    let pages = self.files[0].size / (4 * KIB);
                    self.read(namespace, 0, rng.random_range(0..pages) * 4 * KIB, 4 * KIB);
                }
                for _ in 0..5 {
                    let pages = self.files[0].size / (4 * KIB);
                    self.write(namespace, 0, rng.random_range(0..pages) * 4 * KIB, 4 * KIB);
                }
                self.sync(namespace, 0);
            }
        }
    }

    /// Reads everything once more.
    pub fn read_all(&mut self, namespace: &Namespace) {
        for file in 0..self.files.len() {
            self.read_whole(namespace, file);
        }
    }

    fn any(&self, rng: &mut impl Rng) -> usize {
        rng.random_range(0..self.files.len())
    }

    fn count<T>(&mut self, outcome: Result<T, holdfast_naming::Error>) -> Option<T> {
        self.met.operations += 1;
        self.met.errors += u64::from(outcome.is_err());
        outcome.ok()
    }

    fn create(&mut self, namespace: &Namespace) -> Option<usize> {
        let number = self.next;
        self.next += 1;
        let name = format!("{number}");
        let made = namespace.mknod(&Request::ROOT, self.directory, name.as_bytes(), NewNode::Regular, 0o644);
        let id = self.count(made)?.id;
        self.files.push(File { number, id, size: 0 });
        Some(self.files.len() - 1)
    }

    fn delete(&mut self, namespace: &Namespace, rng: &mut impl Rng) {
        // Never the last one.
        if self.files.len() > 1 {
            let at = self.any(rng);
            let file = self.files.swap_remove(at);
            let gone = namespace.unlink(&Request::ROOT, self.directory, format!("{}", file.number).as_bytes());
            self.count(gone);
        }
    }

    fn write(&mut self, namespace: &Namespace, file: usize, from: usize, length: usize) {
        let File { number, id, .. } = self.files[file];
        for piece in (from..from + length).step_by(128 * KIB) {
            let bytes = pattern(number, piece, (128 * KIB).min(from + length - piece));
            let written = namespace.write(&Request::ROOT, id, piece as u64, &bytes, false);
            if self.count(written).is_some() {
                self.files[file].size = self.files[file].size.max(piece + bytes.len());
            }
        }
    }

    fn append(&mut self, namespace: &Namespace, file: usize, length: usize) {
        // Begun anew when it is large.
        let from = if self.files[file].size > 512 * KIB { 0 } else { self.files[file].size };
        self.write(namespace, file, from, length);
    }

    fn read_whole(&mut self, namespace: &Namespace, file: usize) {
        for from in (0..self.files[file].size).step_by(128 * KIB) {
            self.read(namespace, file, from, (128 * KIB).min(self.files[file].size - from));
        }
    }

    fn read(&mut self, namespace: &Namespace, file: usize, from: usize, length: usize) {
        let File { number, id, .. } = self.files[file];
        let read = namespace.read(id, from as u64, length);
        if let Some(data) = self.count(read) {
            self.met.wrong += u64::from(data.to_vec() != pattern(number, from, length));
        }
    }

    fn sync(&mut self, namespace: &Namespace, file: usize) {
        let synced = namespace.sync(self.files[file].id, Durability::All);
        self.count(synced);
    }
}
