//! From strace's output to a trace: `strace -f -ttt -y -s 0 -o FILE COMMAND`.
//!
//! Descriptors are followed through dup, fork, close and the end of a process (but not exec, which closes some: they stay open until the end), positions through read, write and lseek; `-y` says with each call which file a
//! descriptor is, so that one that was not seen being opened is found too. A mapping counts as one read of what it maps, when it is made: strace does
//! not see which pages of it are used. Only files below one directory are kept. What a file had before is what was seen of its size, or
//! read from it, before it was first written.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use super::format::{Call, Event, TracePath};
use super::strace_line::{Done, Lines, descriptor, ended, number, string};

/// An open file, which several descriptors may be.
#[derive(Debug)]
struct Open {
    file: u64,
    path: TracePath,
    position: Cell<u64>,
    appends: bool,
}

type Table = HashMap<u64, Rc<Open>>;

/// What was converted so far.
#[derive(Debug)]
pub struct Converter {
    root: Vec<u8>,
    lines: Lines,
    /// By process; threads have their process's number in `process_of`.
    tables: HashMap<u64, Table>,
    process_of: HashMap<u64, u64>,
    directory_of: HashMap<u64, Vec<u8>>,
    files: u64,
    /// Calls that were understood, and those of them in which a descriptor has its path.
    calls: u64,
    with_paths: u64,
    start_us: Option<u64>,
    last_us: u64,
    events: Vec<Event>,
    /// Size before the trace of files that were there.
    before: BTreeMap<TracePath, u64>,
    /// Directories that were there.
    directories: HashSet<TracePath>,
    /// Names that the trace itself has made.
    made: HashSet<TracePath>,
    /// How far a file was written; what is read beyond was there before.
    written: HashMap<TracePath, u64>,
}

impl Converter {
    /// For files below the absolute path `root`, which strace saw without symbolic links.
    pub fn new(root: &[u8]) -> Converter {
        Converter {
            root: root.strip_suffix(b"/").unwrap_or(root).to_vec(),
            lines: Lines::default(),
            tables: HashMap::new(),
            process_of: HashMap::new(),
            directory_of: HashMap::new(),
            files: 0,
            calls: 0,
            with_paths: 0,
            start_us: None,
            last_us: 0,
            events: Vec::new(),
            before: BTreeMap::new(),
            directories: HashSet::new(),
            made: HashSet::new(),
            written: HashMap::new(),
        }
    }

    /// One line of strace's output.
    pub fn line(&mut self, line: &str) {
        if let Some(done) = self.lines.take(line) {
            self.calls += 1;
            self.with_paths +=
                u64::from(done.arguments.iter().chain([&done.result]).any(|text| descriptor(text).is_some()));
            let start = *self.start_us.get_or_insert(done.at_us);
            // Calls that were interrupted come late; a trace's time does not go back.
            self.last_us = self.last_us.max(done.at_us.saturating_sub(start));
            // A call that is not understood is not about a file of the trace.
            let _ = self.call(&done);
        } else if let Some(pid) = ended(line) {
            self.ends(pid);
        }
    }

    /// A process has ended: what it had open is closed unless others have it, too. A thread leaves what it shared.
    fn ends(&mut self, pid: u64) {
        if self.process_of.remove(&pid).is_some() {
            return;
        }
        self.directory_of.remove(&pid);
        let mut open: Vec<_> = self.tables.remove(&pid).unwrap_or_default().into_iter().collect();
        open.sort_unstable_by_key(|(fd, _)| *fd);
        for last in open.into_iter().filter_map(|(_, open)| Rc::into_inner(open)) {
            self.emit(Call::Close(last.file));
        }
    }

    /// The trace.
    ///
    /// # Errors
    /// In words: the lines were something else than what `strace -f -ttt -y` prints.
    pub fn finish(self) -> Result<Vec<Event>, &'static str> {
        match (self.calls, self.with_paths) {
            (0, _) => {
                return Err(
                    "no line is a call as `strace -f -ttt -y` prints them: a process, a time in seconds, a call",
                );
            }
            (_, 0) => return Err("no call says which file a descriptor is, as `strace -y` has it"),
            _ => {}
        }
        let at_start = |call| Event { at_us: 0, call };
        let mut directories: Vec<TracePath> = self.directories.into_iter().collect();
        directories.sort();
        let directories = directories.into_iter().map(Call::DirectoryExists);
        let files = self.before.into_iter().map(|(path, bytes)| Call::FileExists(path, bytes));
        Ok(directories.chain(files).map(at_start).chain(self.events).collect())
    }

    fn emit(&mut self, call: Call) {
        self.events.push(Event { at_us: self.last_us, call });
    }

    fn process(&self, pid: u64) -> u64 {
        self.process_of.get(&pid).copied().unwrap_or(pid)
    }

    /// A path of the trace from an absolute one; without `.` and `..`.
    fn inside(&self, path: &[u8]) -> Option<TracePath> {
        let mut names: Vec<&[u8]> = Vec::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                names.pop();
            } else {
                names.push(name);
            }
        }
        let whole = [b"/".as_slice(), &names.join(&b'/')].concat();
        let below = whole.strip_prefix(&self.root[..])?;
        match below.first() {
            None => Some(TracePath(b"/".to_vec())),
            Some(b'/') => Some(TracePath(below.to_vec())),
            Some(_) => None,
        }
    }

    /// The path that a call names, relative to the descriptor before it if there is one.
    fn path(&mut self, pid: u64, at: Option<&str>, path: &str) -> Option<TracePath> {
        let process = self.process(pid);
        let base = match at.and_then(descriptor) {
            Some((None, directory)) => {
                self.directory_of.insert(process, directory.clone());
                Some(directory)
            }
            Some((_, directory)) => Some(directory),
            None => self.directory_of.get(&process).cloned(),
        };
        let path = string(path)?;
        if path.first() == Some(&b'/') {
            return self.inside(&path);
        }
        self.inside(&[&base?, b"/".as_slice(), &path].concat())
    }

    /// Something is at this path that the trace has not made: it was there before.
    fn was_there(&mut self, path: &TracePath, bytes: Option<u64>) {
        if self.made.contains(path) {
            return;
        }
        match bytes {
            Some(bytes) if !self.directories.contains(path) => {
                let known = self.before.entry(path.clone()).or_default();
                if !self.written.contains_key(path) {
                    *known = (*known).max(bytes);
                }
            }
            Some(_) => {}
            None => {
                self.before.remove(path);
                self.directories.insert(path.clone());
            }
        }
        self.parents_were_there(path);
    }

    fn parents_were_there(&mut self, path: &TracePath) {
        let mut above = path.0.as_slice();
        while let Some(end) = above.iter().rposition(|byte| *byte == b'/').filter(|end| *end > 0) {
            above = &above[..end];
            let parent = TracePath(above.to_vec());
            if !self.made.contains(&parent) {
                self.directories.insert(parent);
            }
        }
    }

    /// Of one nothing is read or written, and what is synced of it is not part of a trace.
    fn is_directory(&self, path: &TracePath) -> bool {
        path.0 == b"/" || self.directories.contains(path)
    }

    /// The open file of a descriptor, also if its name has changed since; one that was opened before the trace, or in a way that is not
    /// followed, is open from now on.
    fn open(&mut self, pid: u64, text: &str) -> Option<Rc<Open>> {
        let (fd, path) = descriptor(text)?;
        let (fd, path) = (fd?, self.inside(&path)?);
        if self.is_directory(&path) {
            return None;
        }
        let process = self.process(pid);
        if let Some(open) = self.tables.entry(process).or_default().get(&fd) {
            return Some(open.clone());
        }
        self.was_there(&path, Some(0));
        Some(self.opened(process, fd, path, false, false, false))
    }

    fn opened(
        &mut self,
        process: u64,
        fd: u64,
        path: TracePath,
        create: bool,
        truncate: bool,
        appends: bool,
    ) -> Rc<Open> {
        let file = self.files;
        self.files += 1;
        let open = Rc::new(Open { file, path: path.clone(), position: Cell::new(0), appends });
        self.replace(process, fd, Some(open.clone()));
        self.emit(Call::Open { file, path, create, truncate });
        open
    }

    /// What a descriptor is from now on; what it was is closed if no other is it.
    fn replace(&mut self, process: u64, fd: u64, open: Option<Rc<Open>>) {
        let table = self.tables.entry(process).or_default();
        let old = match open {
            Some(open) => table.insert(fd, open),
            None => table.remove(&fd),
        };
        if let Some(last) = old.and_then(Rc::into_inner) {
            self.emit(Call::Close(last.file));
        }
    }

    fn read(&mut self, open: &Open, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        if offset + length > self.written.get(&open.path).copied().unwrap_or(0) && !self.made.contains(&open.path) {
            let known = self.before.entry(open.path.clone()).or_default();
            *known = (*known).max(offset + length);
        }
        self.emit(Call::Read { file: open.file, offset, length });
    }

    fn write(&mut self, open: &Open, offset: u64, length: u64) {
        let end = self.written.entry(open.path.clone()).or_default();
        *end = (*end).max(offset + length);
        if length > 0 {
            self.emit(Call::Write { file: open.file, offset, length });
        }
    }

    /// The end of a file, for a descriptor that appends: as much as is known.
    fn end(&self, path: &TracePath) -> u64 {
        let written = self.written.get(path).copied().unwrap_or(0);
        written.max(self.before.get(path).copied().unwrap_or(0))
    }

    fn call(&mut self, done: &Done) -> Option<()> {
        let arguments: Vec<&str> = done.arguments.iter().map(String::as_str).collect();
        let pid = done.pid;
        match (done.name.as_str(), &arguments[..]) {
            ("open", [path, flags, ..]) => self.opens(done, None, path, flags),
            ("openat", [at, path, flags, ..]) => self.opens(done, Some(at), path, flags),
            ("creat", [path, ..]) => self.opens(done, None, path, "O_WRONLY|O_CREAT|O_TRUNC"),
            ("read" | "readv", [fd, ..]) => {
                let (open, length) = (self.open(pid, fd)?, number(&done.result)?);
                let offset = open.position.replace(open.position.get() + length);
                self.read(&open, offset, length);
            }
            ("pread64", [fd, .., offset]) | ("preadv", [fd, _, _, offset]) => {
                let open = self.open(pid, fd)?;
                self.read(&open, number(offset)?, number(&done.result)?);
            }
            ("write" | "writev", [fd, ..]) => {
                let (open, length) = (self.open(pid, fd)?, number(&done.result)?);
                let offset = if open.appends { self.end(&open.path) } else { open.position.get() };
                open.position.set(offset + length);
                self.write(&open, offset, length);
            }
            ("pwrite64", [fd, .., offset]) | ("pwritev", [fd, _, _, offset]) => {
                let open = self.open(pid, fd)?;
                self.write(&open, number(offset)?, number(&done.result)?);
            }
            ("copy_file_range", [from, "NULL", to, "NULL", ..]) | ("sendfile", [to, from, "NULL", ..]) => {
                let length = number(&done.result)?;
                if let Some(open) = self.open(pid, from) {
                    let offset = open.position.replace(open.position.get() + length);
                    self.read(&open, offset, length);
                }
                let open = self.open(pid, to)?;
                let offset = open.position.replace(open.position.get() + length);
                self.write(&open, offset, length);
            }
            ("mmap", [_, length, _, _, fd, offset]) => {
                let open = self.open(pid, fd)?;
                let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).ok()?;
                let length = number(length)?.min(self.end(&open.path).saturating_sub(offset));
                self.read(&open, offset, length);
            }
            ("lseek", [fd, ..]) => self.open(pid, fd)?.position.set(number(&done.result)?),
            ("ftruncate", [fd, size]) => {
                let (open, size) = (self.open(pid, fd)?, number(size)?);
                self.written.insert(open.path.clone(), size);
                self.emit(Call::Truncate { file: open.file, size });
            }
            ("fsync" | "fdatasync", [fd]) => {
                let file = self.open(pid, fd)?.file;
                self.emit(Call::Sync(file));
            }
            ("close", [fd]) => self.replace(self.process(pid), number(fd)?, None),
            ("dup" | "dup2" | "dup3", [fd, ..]) | ("fcntl", [fd, "F_DUPFD" | "F_DUPFD_CLOEXEC", ..]) => {
                let open = self.open(pid, fd);
                self.replace(self.process(pid), number(&done.result)?, open);
            }
            ("clone" | "clone3" | "fork" | "vfork", arguments) => {
                let (process, child) = (self.process(pid), number(&done.result)?);
                if arguments.iter().any(|argument| argument.contains("CLONE_FILES")) {
                    self.process_of.insert(child, process);
                } else {
                    let table = self.tables.get(&process).cloned().unwrap_or_default();
                    self.tables.entry(child).or_insert(table);
                    let directory = self.directory_of.get(&process).cloned();
                    self.directory_of.extend(directory.map(|directory| (child, directory)));
                }
            }
            ("chdir", [path]) => {
                let path = string(path)?;
                let process = self.process(pid);
                let base = self.directory_of.get(&process).cloned().unwrap_or_default();
                let whole = if path.first() == Some(&b'/') { path } else { [&base[..], b"/", &path].concat() };
                self.directory_of.insert(process, whole);
            }
            ("stat" | "lstat", [path, status]) => self.seen(done, None, path, status),
            ("newfstatat", [at, path, status, ..]) | ("statx", [at, path, .., status]) => {
                self.seen(done, Some(at), path, status);
            }
            ("fstat", [fd, status]) => {
                let (_, path) = descriptor(fd)?;
                let path = self.inside(&path)?;
                self.status(&path, status);
            }
            ("unlink", [path]) => self.unlinks(done, None, path, ""),
            ("unlinkat", [at, path, flags]) => self.unlinks(done, Some(at), path, flags),
            ("rmdir", [path]) => self.unlinks(done, None, path, "AT_REMOVEDIR"),
            ("mkdir", [path, ..]) => self.makes_directory(done, None, path),
            ("mkdirat", [at, path, ..]) => self.makes_directory(done, Some(at), path),
            ("rename" | "link", [from, to]) => self.names(done, (None, from), (None, to)),
            ("renameat" | "renameat2" | "linkat", [at, from, to_at, to, ..]) => {
                self.names(done, (Some(at), from), (Some(to_at), to));
            }
            _ => {}
        }
        Some(())
    }

    fn opens(&mut self, done: &Done, at: Option<&str>, path: &str, flags: &str) {
        // Also where the file is not one of the trace: it says where the process is.
        let _ = self.path(done.pid, at, path);
        let Some((Some(fd), path)) = descriptor(&done.result) else { return };
        let process = self.process(done.pid);
        let has = |flag: &str| flags.split('|').any(|one| one == flag);
        match self.inside(&path) {
            Some(path) if !has("O_DIRECTORY") && !has("O_PATH") && !has("O_TMPFILE") && !self.is_directory(&path) => {
                let create = has("O_CREAT");
                if create && (has("O_EXCL") || !self.before.contains_key(&path)) {
                    self.made.insert(path.clone());
                    self.parents_were_there(&path);
                } else {
                    self.was_there(&path, Some(0));
                }
                if has("O_TRUNC") {
                    self.written.insert(path.clone(), 0);
                }
                self.opened(process, fd, path, create, has("O_TRUNC"), has("O_APPEND"));
            }
            _ => self.replace(process, fd, None),
        }
    }

    fn seen(&mut self, done: &Done, at: Option<&str>, path: &str, status: &str) {
        let path = match (string(path), at.and_then(descriptor)) {
            // AT_EMPTY_PATH: the descriptor itself.
            (Some(empty), Some((Some(_), path))) if empty.is_empty() => self.inside(&path),
            _ => self.path(done.pid, at, path),
        };
        if let Some(path) = path {
            self.status(&path, status);
        }
    }

    fn status(&mut self, path: &TracePath, status: &str) {
        let is_directory = status.contains("S_IFDIR");
        let size = ["st_size=", "stx_size="].iter().find_map(|name| number(status.split_once(name)?.1));
        match size {
            _ if is_directory => self.was_there(path, None),
            Some(bytes) if status.contains("S_IFREG") => self.was_there(path, Some(bytes)),
            _ => {}
        }
    }

    fn unlinks(&mut self, done: &Done, at: Option<&str>, path: &str, flags: &str) {
        let Some(path) = self.path(done.pid, at, path) else { return };
        let is_directory = flags.contains("AT_REMOVEDIR");
        self.was_there(&path, if is_directory { None } else { Some(0) });
        // What comes there next is the trace's own.
        self.made.insert(path.clone());
        self.written.insert(path.clone(), 0);
        self.emit(if is_directory { Call::RemoveDirectory(path) } else { Call::Unlink(path) });
    }

    fn makes_directory(&mut self, done: &Done, at: Option<&str>, path: &str) {
        let Some(path) = self.path(done.pid, at, path) else { return };
        self.parents_were_there(&path);
        self.made.insert(path.clone());
        self.emit(Call::MakeDirectory(path));
    }

    /// rename and link: the second name is of the trace's making. A rename of a directory is followed for what is opened below it later
    /// by the paths that strace prints.
    fn names(&mut self, done: &Done, (at, from): (Option<&str>, &str), (to_at, to): (Option<&str>, &str)) {
        let (Some(from), Some(to)) = (self.path(done.pid, at, from), self.path(done.pid, to_at, to)) else { return };
        self.was_there(&from, Some(0));
        self.parents_were_there(&to);
        let end = self.end(&from);
        self.written.insert(to.clone(), end);
        self.made.insert(to.clone());
        if done.name.starts_with("link") {
            self.emit(Call::Link(from, to));
        } else {
            self.written.insert(from.clone(), 0);
            self.made.insert(from.clone());
            self.emit(Call::Rename(from, to));
        }
    }
}
