//! A file system over a directory, for the test of killed workers: whatever it knows is on the disk below, so that the next process
//! knows it too.
//!
//! Node numbers are the inode numbers of the files below. `objects/INODE` is each file's first name, `names/NAME` its
//! name in the one directory that is shown. A request that has been sent again may have been done:
//! every name is used by one application thread only, which waits for each answer, so what is already there (or gone) is
//! this request's own doing. Counting is not idempotent and goes by the request's identity: `counted` has one record of eight
//! bytes, the request's `unique`, for each time.

use holdfast_fuse::abi::*;
use holdfast_fuse::{Answer, Attributes, Context, DirBuffer, Entry, Errno, Handler, Opened};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const ROOT: u64 = 1;
/// `_IOR('H', 10, u64)`: counts one up; gives nothing that depends on the order.
pub(crate) const COUNT: u32 = 2 << 30 | 8 << 16 | (b'H' as u32) << 8 | 10;

pub(crate) struct Backed {
    directory: PathBuf,
    counted: File,
    /// A byte for each request that came again: a process that is killed says nothing at its end.
    resent: File,
    temporary: AtomicU64,
}

fn errno(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Backed {
    pub(crate) fn prepare(directory: &Path) {
        fs::create_dir(directory.join("objects")).unwrap();
        fs::create_dir(directory.join("names")).unwrap();
        File::create(directory.join("counted")).unwrap();
    }

    pub(crate) fn new(directory: &Path) -> io::Result<Backed> {
        let counted = OpenOptions::new().append(true).read(true).open(directory.join("counted"))?;
        let resent = OpenOptions::new().append(true).create(true).open(directory.join("resent"))?;
        Ok(Backed { directory: directory.into(), counted, resent, temporary: AtomicU64::new(0) })
    }

    fn object(&self, node: u64) -> PathBuf {
        self.directory.join("objects").join(node.to_string())
    }

    fn name(&self, name: &[u8]) -> PathBuf {
        self.directory.join("names").join(std::ffi::OsStr::from_bytes(name))
    }

    fn file(&self, node: u64) -> Answer<File> {
        OpenOptions::new().read(true).write(true).open(self.object(node)).map_err(errno)
    }

    fn attr(&self, node: u64) -> Answer<Attr> {
        if node == ROOT {
            return Ok(Attr { ino: ROOT, mode: libc::S_IFDIR | 0o755, nlink: 1, blksize: 4096, ..Attr::default() });
        }
        let found = fs::metadata(self.object(node)).map_err(errno)?;
        Ok(Attr {
            ino: node,
            size: found.len(),
            mode: libc::S_IFREG | 0o600,
            nlink: 1,
            blksize: 4096,
            ..Attr::default()
        })
    }

    fn entry(&self, node: u64) -> Answer<Entry> {
        // Not remembered, so that there is much to ask.
        let valid = Duration::ZERO;
        Ok(Entry { node, generation: 0, attr: self.attr(node)?, name_valid: valid, attr_valid: valid })
    }

    fn note(&self, context: &Context) {
        if context.resent {
            (&self.resent).write_all(b".").unwrap();
        }
    }

    /// Between doing and answering, so that kills hit there: what is done again is noticed only then.
    fn dawdle(&self, context: &Context) {
        if (context.unique / 2).is_multiple_of(4) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn find(&self, name: &[u8]) -> Answer<Entry> {
        self.entry(fs::metadata(self.name(name)).map_err(errno)?.ino())
    }

    /// Names that start with `c` go through the kernel's page cache.
    fn opened(&self, name: &[u8]) -> Opened {
        let flags = if name.starts_with(b"c") { 0 } else { open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES };
        Opened { fh: 0, flags }
    }
}

/// `missing` is right if the request has been done before.
fn done(context: &Context, result: io::Result<()>, missing: io::ErrorKind) -> Answer<()> {
    match result {
        Err(error) if context.resent && error.kind() == missing => Ok(()),
        result => result.map_err(errno),
    }
}

impl Handler for Backed {
    type Data = Vec<u8>;

    fn lookup(&self, context: &Context, _: u64, name: &[u8]) -> Answer<Entry> {
        self.note(context);
        self.find(name)
    }

    fn getattr(&self, context: &Context, node: u64) -> Answer<Attributes> {
        self.note(context);
        Ok(Attributes { attr: self.attr(node)?, btime: (0, 0), valid: Duration::ZERO })
    }

    fn setattr(&self, context: &Context, node: u64, args: &SetattrIn) -> Answer<Attributes> {
        if args.valid & fattr::SIZE != 0 {
            self.file(node)?.set_len(args.size).map_err(errno)?;
        }
        self.getattr(context, node)
    }

    fn create(&self, context: &Context, _: u64, name: &[u8], _: &CreateIn) -> Answer<(Entry, Opened)> {
        self.note(context);
        let temporary = self.temporary.fetch_add(1, Ordering::Relaxed);
        let new = self.directory.join(format!("objects/new-{}-{temporary}", std::process::id()));
        let inode = File::create_new(&new).and_then(|file| file.metadata()).map_err(errno)?.ino();
        fs::rename(&new, self.object(inode)).map_err(errno)?;
        done(context, fs::hard_link(self.object(inode), self.name(name)), io::ErrorKind::AlreadyExists)?;
        self.dawdle(context);
        // Not the one just made, if an earlier process had got as far as to give the name to another.
        Ok((self.find(name)?, self.opened(name)))
    }

    fn unlink(&self, context: &Context, _: u64, name: &[u8]) -> Answer<()> {
        self.note(context);
        // The object stays: it may be open.
        let removed = done(context, fs::remove_file(self.name(name)), io::ErrorKind::NotFound);
        self.dawdle(context);
        removed
    }

    fn rename(&self, context: &Context, _: u64, name: &[u8], _: u64, new_name: &[u8], _: u32) -> Answer<()> {
        self.note(context);
        let renamed = done(context, fs::rename(self.name(name), self.name(new_name)), io::ErrorKind::NotFound);
        self.dawdle(context);
        renamed
    }

    fn open(&self, context: &Context, node: u64, _: &OpenIn) -> Answer<Opened> {
        self.note(context);
        // Which names are cached is told by the name; an open file's node is found among them.
        let names = fs::read_dir(self.directory.join("names")).map_err(errno)?;
        for name in names.flatten() {
            if std::os::unix::fs::DirEntryExt::ino(&name) == node {
                return Ok(self.opened(&name.file_name().into_vec()));
            }
        }
        Ok(self.opened(b""))
    }

    fn read(&self, context: &Context, node: u64, args: &ReadIn) -> Answer<Vec<u8>> {
        self.note(context);
        let file = self.file(node)?;
        let mut bytes = vec![0; args.size as usize];
        let mut have = 0;
        while have < bytes.len() {
            match file.read_at(&mut bytes[have..], args.offset + have as u64).map_err(errno)? {
                0 => break,
                more => have += more,
            }
        }
        bytes.truncate(have);
        Ok(bytes)
    }

    fn write(&self, context: &Context, node: u64, args: &WriteIn, bytes: &[u8]) -> Answer<u32> {
        self.note(context);
        self.file(node)?.write_all_at(bytes, args.offset).map_err(errno)?;
        Ok(bytes.len() as u32)
    }

    fn fsync(&self, context: &Context, _: u64, _: u64, _: bool) -> Answer<()> {
        self.note(context);
        Ok(())
    }

    fn opendir(&self, _: &Context, _: u64) -> Answer<Opened> {
        Ok(Opened::default())
    }

    fn readdir(&self, context: &Context, _: u64, offset: u64, out: &mut DirBuffer) -> Answer<()> {
        self.note(context);
        let mut names: Vec<_> = fs::read_dir(self.directory.join("names")).map_err(errno)?.flatten().collect();
        // The cookie is the object's number, which does not depend on what comes and goes beside it.
        names.sort_by_key(std::os::unix::fs::DirEntryExt::ino);
        for name in names {
            let inode = std::os::unix::fs::DirEntryExt::ino(&name);
            let file_name = name.file_name().into_vec();
            if inode > offset {
                let entry = out.is_plus().then(|| self.entry(inode)).transpose()?;
                if !out.push(inode, inode, libc::S_IFREG, &file_name, entry.as_ref()) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn ioctl(&self, context: &Context, _: u64, args: &IoctlIn, _: &[u8]) -> Answer<(i32, Vec<u8>)> {
        self.note(context);
        if args.cmd != COUNT {
            return Err(Errno::NOTTY);
        }
        let id = context.unique.to_ne_bytes();
        if context.resent {
            let counted = fs::read(self.directory.join("counted")).map_err(errno)?;
            if counted.chunks(8).any(|one| one == id) {
                return Ok((0, id.to_vec()));
            }
        }
        (&self.counted).write_all(&id).map_err(errno)?;
        self.dawdle(context);
        Ok((0, id.to_vec()))
    }
}
