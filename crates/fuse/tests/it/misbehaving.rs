//! A handler that breaks its promises costs its caller an error, and nobody else anything.

use crate::mounted::{Mounted, missing};
use holdfast_fuse::abi::*;
use holdfast_fuse::*;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

/// Answers to `getxattr`, by name, and to `read`.
struct Misbehaving;

impl Handler for Misbehaving {
    type Data = Vec<u8>;

    fn getattr(&self, _: &Context, node: u64) -> Answer<Attributes> {
        let mode = if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
        let attr = Attr { ino: node, mode, nlink: 1, size: 1 << 20, blksize: 4096, ..Attr::default() };
        Ok(Attributes { attr, btime: (0, 0), valid: Duration::from_secs(9) })
    }

    fn lookup(&self, context: &Context, _: u64, _: &[u8]) -> Answer<Entry> {
        let Attributes { attr, valid, .. } = self.getattr(context, 2)?;
        Ok(Entry { node: 2, generation: 1, attr, name_valid: valid, attr_valid: valid })
    }

    fn open(&self, _: &Context, _: u64, _: &OpenIn) -> Answer<Opened> {
        Ok(Opened { fh: 0, flags: open_flags::DIRECT_IO })
    }

    /// Twice what was asked for.
    fn read(&self, _: &Context, _: u64, args: &ReadIn) -> Answer<Vec<u8>> {
        Ok(vec![7; args.size as usize * 2])
    }

    fn getxattr(&self, _: &Context, _: u64, name: &[u8]) -> Answer<Vec<u8>> {
        match name {
            b"user.errno" => Err(Errno(100_000)),
            b"user.zero" => Err(Errno(0)),
            _ => Ok(b"fine".to_vec()),
        }
    }
}

#[test]
fn it_costs_its_caller_an_error_and_nobody_else_anything() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    let mounted = Mounted::new(&Arc::new(Misbehaving), 1);
    let path = mounted.directory.join("file");
    let mut value = [0; 100];
    let mut get = |name: &str| rustix::fs::getxattr(&path, name, &mut value[..]);
    assert_eq!(get("user.fine"), Ok(4));
    let read = fs::File::open(&path).and_then(|mut file| std::io::Read::read(&mut file, &mut [0; 4096]));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO), "more than asked for");
    assert_eq!(get("user.fine"), Ok(4));
    for bad in ["user.errno", "user.zero"] {
        assert_eq!(get(bad), Err(rustix::io::Errno::IO), "{bad}");
        assert_eq!(get("user.fine"), Ok(4), "after {bad}");
    }
    mounted.unmount();
}
