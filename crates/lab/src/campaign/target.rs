//! What a load works on: a name space in this process, or a mount.

use holdfast_naming::{Namespace, NewNode, Request};
use holdfast_object::{Durability, ObjectId};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Directories and files. Errors are in words: the experiment only counts them.
pub(super) trait Target: Sync {
    /// Of a directory or file.
    type Id: Clone + Send;

    fn make_directory(&self, name: &str) -> Result<Self::Id, String>;
    fn create(&self, directory: &Self::Id, name: &str) -> Result<Self::Id, String>;
    fn remove(&self, directory: &Self::Id, name: &str) -> Result<(), String>;
    fn write(&self, file: &Self::Id, offset: u64, bytes: &[u8]) -> Result<(), String>;
    /// Fewer bytes if the file ends before.
    fn read(&self, file: &Self::Id, offset: u64, length: usize) -> Result<Vec<u8>, String>;
    fn size(&self, file: &Self::Id) -> Result<u64, String>;
    fn sync(&self, file: &Self::Id) -> Result<(), String>;
}

pub(super) fn says(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Target for Namespace {
    type Id = ObjectId;

    fn make_directory(&self, name: &str) -> Result<ObjectId, String> {
        self.mkdir(&Request::ROOT, ObjectId::ROOT, name.as_bytes(), 0o755).map(|made| made.id).map_err(says)
    }

    fn create(&self, directory: &ObjectId, name: &str) -> Result<ObjectId, String> {
        let made = self.mknod(&Request::ROOT, *directory, name.as_bytes(), NewNode::Regular, 0o644);
        let id = made.map_err(says)?.id;
        // Or it would stay when its name is gone, as long as the stack does.
        self.forget(id, 1).map_err(says)?;
        Ok(id)
    }

    fn remove(&self, directory: &ObjectId, name: &str) -> Result<(), String> {
        self.unlink(&Request::ROOT, *directory, name.as_bytes()).map(drop).map_err(says)
    }

    fn write(&self, file: &ObjectId, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.write(&Request::ROOT, *file, offset, bytes, false).map(drop).map_err(says)
    }

    fn read(&self, file: &ObjectId, offset: u64, length: usize) -> Result<Vec<u8>, String> {
        self.read(*file, offset, length).map(|data| data.to_vec()).map_err(says)
    }

    fn size(&self, file: &ObjectId) -> Result<u64, String> {
        self.getattr(*file).map(|found| found.size).map_err(says)
    }

    fn sync(&self, file: &ObjectId) -> Result<(), String> {
        self.sync(*file, Durability::All).map_err(says)
    }
}

/// The directory of a mount. A file is opened for each call, so that a mount that comes back is used again.
pub(super) struct Mount(pub(super) PathBuf);

impl Target for Mount {
    type Id = PathBuf;

    fn make_directory(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.0.join(name);
        fs::create_dir(&path).map(|()| path).map_err(says)
    }

    fn create(&self, directory: &PathBuf, name: &str) -> Result<PathBuf, String> {
        let path = directory.join(name);
        File::create_new(&path).map(|_| path).map_err(says)
    }

    fn remove(&self, directory: &PathBuf, name: &str) -> Result<(), String> {
        fs::remove_file(directory.join(name)).map_err(says)
    }

    fn write(&self, file: &PathBuf, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let write = || OpenOptions::new().write(true).open(file)?.write_all_at(bytes, offset);
        write().map_err(says)
    }

    fn read(&self, file: &PathBuf, offset: u64, length: usize) -> Result<Vec<u8>, String> {
        let read = || {
            let mut file = File::open(file)?;
            io::Seek::seek(&mut file, io::SeekFrom::Start(offset))?;
            let mut bytes = Vec::with_capacity(length);
            file.take(length as u64).read_to_end(&mut bytes).map(|_| bytes)
        };
        read().map_err(says)
    }

    fn size(&self, file: &PathBuf) -> Result<u64, String> {
        fs::metadata(file).map(|found| found.len()).map_err(says)
    }

    fn sync(&self, file: &PathBuf) -> Result<(), String> {
        File::open(file).and_then(|file| file.sync_all()).map_err(says)
    }
}
