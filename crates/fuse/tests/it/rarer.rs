//! Requests that the file system in memory has no use for, and notifications: what the handler is asked is what the application
//! asked the kernel, and what it answers is what the application gets.

use crate::mounted::{Watchdog, missing};
use holdfast_fuse::abi::*;
use holdfast_fuse::*;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, makedev};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Writes down what it is asked. Names with a `d` are directories, with a `c` a device, others files of 6 bytes.
struct Scribe {
    asked: Mutex<Vec<String>>,
    contents: Mutex<[u8; 6]>,
    open_flags: u32,
    valid: Duration,
}

impl Scribe {
    fn new(open_flags: u32, valid: Duration) -> Scribe {
        Scribe { asked: Mutex::default(), contents: Mutex::new(*b"before"), open_flags, valid }
    }

    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }

    fn attr(node: u64) -> Attr {
        let mode = match node as u8 {
            1 | b'd' => libc::S_IFDIR | 0o755,
            b'c' => libc::S_IFCHR | 0o600,
            _ => libc::S_IFREG | 0o644,
        };
        let rdev = if node as u8 == b'c' { 0x1230_0145 } else { 0 };
        Attr { ino: node, mode, nlink: 1, size: 6, rdev, blksize: 4096, ..Attr::default() }
    }

    fn entry(&self, name: &[u8]) -> Entry {
        let node = u64::from(name[0]);
        Entry { node, generation: 1, attr: Self::attr(node), name_valid: self.valid, attr_valid: self.valid }
    }

    fn opened(&self) -> Opened {
        Opened { fh: 77, flags: self.open_flags }
    }
}

impl Handler for Scribe {
    type Data = Vec<u8>;

    fn lookup(&self, _: &Context, _: u64, name: &[u8]) -> Answer<Entry> {
        self.note(format!("lookup {}", name.escape_ascii()));
        if name == b"n" { Err(Errno(libc::ENOENT)) } else { Ok(self.entry(name)) }
    }
    fn getattr(&self, _: &Context, node: u64) -> Answer<Attributes> {
        Ok(Attributes { attr: Self::attr(node), btime: (-5, 6), valid: self.valid })
    }
    fn mknod(&self, _: &Context, _: u64, name: &[u8], args: &MknodIn) -> Answer<Entry> {
        let (mode, rdev) = (args.mode & !args.umask, args.rdev);
        self.note(format!("mknod {mode:o} {rdev:x}"));
        Ok(Entry { node: u64::from(b'c'), attr: Self::attr(u64::from(b'c')), ..self.entry(name) })
    }
    fn rename(&self, _: &Context, parent: u64, name: &[u8], to: u64, new_name: &[u8], flags: u32) -> Answer<()> {
        self.note(format!("rename {parent} {} {to} {} {flags}", name.escape_ascii(), new_name.escape_ascii()));
        Ok(())
    }
    fn open(&self, _: &Context, _: u64, _: &OpenIn) -> Answer<Opened> {
        Ok(self.opened())
    }
    fn tmpfile(&self, _: &Context, parent: u64, args: &CreateIn) -> Answer<(Entry, Opened)> {
        self.note(format!("tmpfile {parent} {:o}", args.mode));
        Ok((Entry { attr: Attr { nlink: 0, ..Self::attr(u64::from(b't')) }, ..self.entry(b"t") }, self.opened()))
    }
    fn read(&self, _: &Context, _: u64, args: &ReadIn) -> Answer<Vec<u8>> {
        let contents = *self.contents.lock().unwrap();
        Ok(contents.get(args.offset as usize..).unwrap_or_default().to_vec())
    }
    fn flush(&self, _: &Context, node: u64, args: &FlushIn) -> Answer<()> {
        self.note(format!("flush {node} {}", args.fh));
        Ok(())
    }
    fn release(&self, _: &Context, node: u64, args: &ReleaseIn) {
        self.note(format!("release {node} {}", args.fh));
    }
    fn fsync(&self, _: &Context, node: u64, _: u64, data_only: bool) -> Answer<()> {
        self.note(format!("fsync {node} {data_only}"));
        if data_only { Err(Errno::IO) } else { Ok(()) }
    }
    fn fsyncdir(&self, _: &Context, node: u64, data_only: bool) -> Answer<()> {
        self.note(format!("fsyncdir {node} {data_only}"));
        Ok(())
    }
    fn opendir(&self, _: &Context, _: u64) -> Answer<Opened> {
        Ok(Opened::default())
    }
    fn fallocate(&self, _: &Context, node: u64, args: &FallocateIn) -> Answer<()> {
        self.note(format!("fallocate {node} {} {} {:x}", args.offset, args.length, args.mode));
        Ok(())
    }
    fn lseek(&self, _: &Context, node: u64, args: &LseekIn) -> Answer<u64> {
        self.note(format!("lseek {node} {} {}", args.offset, args.whence));
        Ok(4)
    }
    fn copy_file_range(&self, _: &Context, node: u64, args: &CopyFileRangeIn) -> Answer<u32> {
        self.note(format!("copy {node}+{} {}+{} {}", args.off_in, args.nodeid_out, args.off_out, args.len));
        Ok(2)
    }
    fn removexattr(&self, _: &Context, node: u64, name: &[u8]) -> Answer<()> {
        self.note(format!("removexattr {node} {}", name.escape_ascii()));
        Ok(())
    }
}

/// Runs `application` on a mount of `scribe`; gives what the handler was asked meanwhile.
fn scribed(scribe: &Scribe, application: impl FnOnce(&Path, &Session)) -> Vec<String> {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    let _watchdog = Watchdog::new(directory.to_path_buf(), Duration::from_secs(20));
    let options = MountOptions { source: "rarer".into(), ..MountOptions::default() };
    let session = Session::start(mount(directory, &options).unwrap(), Caching::Direct).unwrap();
    let mut worker = session.worker(session.clone_device().unwrap()).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || worker.serve(scribe));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| application(directory, &session)));
        unmount(directory, true).unwrap();
        serving.join().unwrap().unwrap();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    std::mem::take(&mut scribe.asked.lock().unwrap())
}

#[test]
fn rarer_requests_pass_both_ways() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    let scribe = Scribe::new(open_flags::DIRECT_IO, Duration::from_secs(60));
    let asked = scribed(&scribe, |directory, _| {
        let path = |name: &str| directory.join(name);
        let open = |name| OpenOptions::new().read(true).write(true).open(path(name)).unwrap();
        let (a, b) = (open("a"), open("b"));
        rustix::fs::fallocate(&a, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 8192, 4096).unwrap();
        assert_eq!(rustix::fs::seek(&a, SeekFrom::Hole(3)), Ok(4));
        assert_eq!(rustix::fs::copy_file_range(&a, Some(&mut 1), &b, Some(&mut 100), 5), Ok(2));
        a.sync_all().unwrap();
        assert_eq!(a.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
        File::open(path("d")).unwrap().sync_all().unwrap();
        rustix::fs::removexattr(path("a"), "user.x").unwrap();

        // Not for programs that other tests start meanwhile: it would stay open as long as these run.
        let tmpfile = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let unnamed = rustix::fs::open(directory, tmpfile, Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(rustix::fs::fstat(&unnamed).unwrap().st_nlink, 0);
        let exchange = rustix::fs::renameat_with(CWD, path("a"), CWD, path("d/b"), RenameFlags::EXCHANGE);
        exchange.unwrap();
        rustix::fs::renameat_with(CWD, path("a"), CWD, path("n"), RenameFlags::NOREPLACE).unwrap();

        // The device of `Scribe::attr`, in the encoding that the kernel uses for FUSE.
        let device = makedev(1, 0x12345);
        rustix::fs::mknodat(CWD, path("n"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), device).unwrap();
        assert_eq!(rustix::fs::statat(CWD, path("c"), AtFlags::SYMLINK_NOFOLLOW).unwrap().st_rdev, device);
        // Only STATX has the time of birth.
        let stat = rustix::fs::statx(CWD, path("b"), AtFlags::empty(), StatxFlags::ALL).unwrap();
        assert_eq!((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec, stat.stx_size), (-5, 6, 6));

        // Locks stay in the kernel.
        rustix::fs::flock(&a, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let second = rustix::fs::flock(open("a"), rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert_eq!(second, Err(rustix::io::Errno::WOULDBLOCK));
    });
    let expected = [
        "fallocate 97 8192 4096 3",
        "lseek 97 3 4",
        "copy 97+1 98+100 5",
        "fsync 97 false",
        "fsync 97 true",
        "fsyncdir 100 false",
        "removexattr 97 user.x",
        "tmpfile 1 100600",
        "rename 1 a 100 b 2",
        "rename 1 a 1 n 1",
        "mknod 20600 12300145",
    ];
    let (closes, others): (Vec<_>, Vec<_>) = asked
        .iter()
        .map(String::as_str)
        .filter(|what| !what.starts_with("lookup"))
        .partition(|what| what.starts_with("flush") || what.starts_with("release"));
    assert_eq!(others, expected);
    for what in ["flush 97 77", "release 97 77", "flush 98 77", "release 98 77", "release 116 77"] {
        assert!(closes.contains(&what), "{what} in {closes:?}");
    }
}

#[test]
fn the_kernel_can_be_told_that_it_remembers_wrongly() {
    if let Some(why) = missing() {
        return eprintln!("skipped: {why}");
    }
    let scribe = Scribe::new(open_flags::KEEP_CACHE, Duration::from_secs(3600));
    let asked = scribed(&scribe, |directory, session| {
        let file = File::open(directory.join("a")).unwrap();
        let read = || {
            let mut bytes = [0; 6];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert_eq!(&read(), b"before");
        *scribe.contents.lock().unwrap() = *b"after!";
        assert_eq!(&read(), b"before", "from the page cache");
        notify::invalidate_object(session.device(), u64::from(b'a'), 0, 0).unwrap();
        assert_eq!(&read(), b"after!");

        // A name that is remembered for an hour is asked for again.
        fs::symlink_metadata(directory.join("b")).unwrap();
        fs::symlink_metadata(directory.join("b")).unwrap();
        notify::invalidate_name(session.device(), 1, b"b").unwrap();
        notify::invalidate_name(session.device(), 1, b"never seen").unwrap();
        notify::invalidate_object(session.device(), 4711, 0, 0).unwrap();
        fs::symlink_metadata(directory.join("b")).unwrap();
    });
    assert_eq!(asked.iter().filter(|what| *what == "lookup b").count(), 2);
}
