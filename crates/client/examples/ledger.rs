//! A program that keeps a ledger in a mounted store, and mends what goes bad there as long as it has good bytes of its own.
//!
//! `cargo run -p holdfast-client --example ledger -- FILE` writes a ledger to FILE, which is in a mount, has it stored, and reads it again.
//! A test has bits flipped meanwhile (`cargo test -p holdfast --test it survives`).

use holdfast_client::{Error, File, Kind};
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

const BLOCK: usize = holdfast_client::BLOCK_BYTES;
/// What goes bad again while it is mended has a cause that writing does not mend.
const ATTEMPTS: usize = 3;

/// A file in a mount, and what is to be in it.
pub(crate) struct Ledger {
    file: File<fs::File>,
    entries: Vec<u8>,
}

impl Ledger {
    /// Writes the entries to a file, in the place of what it had. It is an error ([`Kind::Unsupported`]) if it is in no mount that takes
    /// checksums; then it stays as it was.
    pub(crate) fn create(path: &Path, entries: Vec<u8>) -> io::Result<Ledger> {
        let plain = fs::File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let ledger = Ledger::open(plain, entries)?;
        ledger.file.get_ref().set_len(0)?;
        ledger.file.write_at(&ledger.entries, 0)?;
        Ok(ledger)
    }

    /// With a descriptor of a file that has them already.
    pub(crate) fn open(file: fs::File, entries: Vec<u8>) -> io::Result<Ledger> {
        Ok(Ledger { file: File::new(file)?, entries })
    }

    /// Has all of it on the disk. fsync says EIO of blocks that went bad in the mount's memory, which it has not stored; the
    /// mount names them, and they are written again.
    pub(crate) fn sync(&self) -> io::Result<()> {
        for _ in 1..ATTEMPTS {
            let Err(error) = self.file.get_ref().sync_all() else { return Ok(()) };
            let blocks = self.file.bad_blocks()?;
            if blocks.is_empty() {
                // It failed of something else.
                return Err(error);
            }
            eprintln!("went bad before they were stored, and are written again: blocks {blocks:?}");
            self.write_again(&blocks)?;
        }
        self.file.get_ref().sync_all()
    }

    /// Reads all of it. Bytes that are bad on the device, where there is no second copy, are written again.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; self.entries.len()];
        for _ in 1..ATTEMPTS {
            match self.file.read_at(&mut buffer, 0) {
                Ok(length) => {
                    buffer.truncate(length);
                    return Ok(buffer);
                }
                Err(Error { kind: kind @ (Kind::Device | Kind::Memory), blocks, .. }) if !blocks.is_empty() => {
                    eprintln!("bad ({kind:?}), and are written again: blocks {blocks:?}");
                    self.write_again(&blocks)?;
                    self.sync()?;
                }
                // There can be more kinds in the future.
                Err(error) => return Err(error.into()),
            }
        }
        let length = self.file.read_at(&mut buffer, 0)?;
        buffer.truncate(length);
        Ok(buffer)
    }

    /// A whole block is replaced without what was there being read.
    fn write_again(&self, blocks: &[u64]) -> io::Result<()> {
        for &block in blocks {
            let start = block as usize * BLOCK;
            let end = self.entries.len().min(start + BLOCK);
            let bytes = self.entries.get(start..end).ok_or_else(|| io::Error::other("another program's block"))?;
            self.file.write_at(bytes, start as u64)?;
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("ledger: which file in a mount?");
        return ExitCode::FAILURE;
    };
    match keep(Path::new(&path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ledger: {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

fn keep(path: &Path) -> io::Result<()> {
    let entries = (0..5000).map(|number| format!("credit {number}\n")).collect::<String>().into_bytes();
    let ledger = Ledger::create(path, entries)?;
    ledger.sync()?;
    assert_eq!(ledger.read()?, ledger.entries, "read as it was written");
    println!("{} bytes written, stored and read, all of them verified", ledger.entries.len());
    Ok(())
}
