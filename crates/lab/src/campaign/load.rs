//! Loads whose bytes are known in advance: each word follows from its file and its place in it, so that every read can be judged by
//! itself, whoever wrote last.

use super::target::{Target, says};
use crate::load::{Action, Load};
use holdfast_naming::{Namespace, Request};
use holdfast_object::ObjectId;
use rand::Rng;
use std::fmt;

const KIB: usize = 1024;
const PAGE: usize = 4 * KIB;

/// What a reader or writer met.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Met {
    /// Operations done.
    pub(super) operations: u64,
    /// The first read of other bytes than were written, without an error.
    pub(super) wrong: Option<Wrong>,
    /// Operations that ended in an error.
    pub(super) errors: u64,
}

/// A read of other bytes than were written: whether it is a bit or a page that is wrong tells how it came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong {
    file: u64,
    from: usize,
    expected: usize,
    got: usize,
    /// Where the first byte is that differs, from the beginning of the file.
    first: usize,
    /// Of what both have.
    bits: u32,
}

impl Wrong {
    fn of(file: u64, from: usize, expected: &[u8], got: &[u8]) -> Wrong {
        let differing = || expected.iter().zip(got).map(|(expected, got)| (expected ^ got).count_ones());
        let first = differing().position(|bits| bits > 0).unwrap_or(expected.len().min(got.len()));
        Wrong { file, from, expected: expected.len(), got: got.len(), first: from + first, bits: differing().sum() }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { file, from, expected, got, first, bits } = self;
        write!(
            f,
            "file {file}, from byte {from}: {got} of {expected} bytes, {bits} bits of them wrong, the first in byte {first}"
        )
    }
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
    /// Size of a new file.
    file_bytes: usize,
    next: u64,
    /// Changes may have been lost in an orderly way: a file may be shorter than it was, but what is in it is right.
    pub(super) may_have_lost: bool,
    pub(super) met: Met,
}

/// Whether a file of any worker has other bytes than its own. What cannot be read is not wrong.
///
/// # Errors
/// In words: a directory cannot be read.
pub(super) fn has_wrong_bytes(store: &Namespace) -> Result<bool, String> {
    let entries = |directory| store.entries(&Request::ROOT, directory).map_err(says);
    for (_, worker, _) in entries(ObjectId::ROOT)? {
        for (name, file, _) in entries(worker)? {
            let number: u64 = String::from_utf8_lossy(&name).parse().map_err(says)?;
            let Ok(size) = Target::size(store, &file) else { continue };
            for from in (0..size as usize).step_by(PAGE) {
                let length = PAGE.min(size as usize - from);
                let read = Target::read(store, &file, from as u64, length);
                if read.is_ok_and(|got| got != pattern(number, from, length)) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
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
        let file_bytes = load.file_bytes(bytes as u64) as usize;
        let mut this = Worker {
            load,
            files: Vec::new(),
            directory,
            file_bytes,
            next: worker << 20,
            may_have_lost: false,
            met: Met::default(),
        };
        for _ in 0..(bytes / file_bytes).max(1) {
            let file = this.create(target).ok_or("a file cannot be made")?;
            this.write(target, file, 0, file_bytes);
        }
        if this.met.errors > 0 { Err("a file cannot be written".into()) } else { Ok(this) }
    }

    /// One round of the load.
    pub(super) fn step(&mut self, target: &T, rng: &mut impl Rng) {
        for (action, times) in self.load.round() {
            for _ in 0..*times {
                self.act(*action, target, rng);
            }
        }
    }

    fn act(&mut self, action: Action, target: &T, rng: &mut impl Rng) {
        let file = self.any(rng);
        match action {
            Action::Read => self.read_whole(target, file),
            Action::ReadAndAppend => {
                self.read_whole(target, file);
                self.append(target, file, 4 * KIB);
                self.sync(target, file);
            }
            Action::Create | Action::CreateSynced => {
                let Some(file) = self.create(target) else { return };
                self.write(target, file, 0, self.file_bytes);
                if action == Action::CreateSynced {
                    self.sync(target, file);
                }
            }
            Action::Append => self.append(target, file, 16 * KIB),
            Action::Log => self.append(target, 0, 16 * KIB),
            Action::Delete => self.delete(target, file),
            Action::Look => self.look(target, file),
            Action::ReadPage => {
                let at = self.any_page(file, rng);
                self.read(target, file, at, PAGE);
            }
            Action::WritePage => {
                let at = self.any_page(file, rng);
                self.write(target, file, at, PAGE);
            }
            Action::Sync => self.sync(target, file),
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

    /// Where a page of a file begins.
    fn any_page(&self, file: usize, rng: &mut impl Rng) -> usize {
        rng.random_range(0..(self.files[file].size / PAGE).max(1)) * PAGE
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

    fn look(&mut self, target: &T, file: usize) {
        let File { number, id, size } = self.files[file].clone();
        let found = target.size(&id);
        // Of a write that failed a part may be there.
        if let Some(got) = self.count(found).filter(|got| *got < size as u64) {
            let short =
                Wrong { file: number, from: 0, expected: size, got: got as usize, first: got as usize, bits: 0 };
            self.met.wrong.get_or_insert(short);
        }
    }

    fn delete(&mut self, target: &T, file: usize) {
        // Never the last one.
        if self.files.len() > 1 {
            let file = self.files.swap_remove(file);
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
        // Begun anew when it has doubled, so that the files keep to what the store has room for.
        let from = if self.files[file].size >= 2 * self.file_bytes { 0 } else { self.files[file].size };
        self.write(target, file, from, length);
    }

    fn read_whole(&mut self, target: &T, file: usize) {
        for from in (0..self.files[file].size).step_by(128 * KIB) {
            self.read(target, file, from, (128 * KIB).min(self.files[file].size - from));
        }
    }

    fn read(&mut self, target: &T, file: usize, from: usize, length: usize) {
        let File { number, id, .. } = &self.files[file];
        let number = *number;
        let (expected, read) = (pattern(number, from, length), target.read(id, from as u64, length));
        if let Some(got) = self.count(read) {
            let is_right = if self.may_have_lost { expected.starts_with(&got) } else { expected == got };
            if !is_right {
                self.met.wrong.get_or_insert(Wrong::of(number, from, &expected, &got));
            }
        }
    }

    fn sync(&mut self, target: &T, file: usize) {
        let synced = target.sync(&self.files[file].id);
        self.count(synced);
    }
}
