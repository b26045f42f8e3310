//! What each call says in a full store and beyond a quota, with pages of the daemon's and of the kernel's, with a snapshot of everything and
//! without: ENOSPC or EDQUOT, and nothing else; and which calls are never refused.

use crate::caching::{mapped, write_mapped};
use crate::rig::{Rig, fuse};
use holdfast_fuse::control;
use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range, fallocate, setxattr};
use std::fs::{self, File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// So often a call is tried until it is refused: the last blocks, and the room that is left in directories, go to it.
const TRIES: usize = 20_000;
/// Files that are there before the store is full.
const FILES: usize = 40;
/// Pages of each file that is to be written over.
const FULL_PAGES: usize = 8;
const SNAPSHOT: &str = "kept";

/// What limits what can be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    Store,
    Quota,
}

impl Limit {
    fn errno(self) -> i32 {
        if self == Limit::Store { libc::ENOSPC } else { libc::EDQUOT }
    }
}

/// Whether a snapshot has what is there before the store is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Snapshot {
    None,
    OfAll,
}

fn fresh(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// close(2), which tells what a drop does not.
fn close(file: File) -> Result<()> {
    // SAFETY: nobody else has the descriptor any more.
    if unsafe { libc::close(file.into_raw_fd()) } == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// A call that needs room, on names and pages of its own for each `number`.
type Call = fn(mount: &Path, number: usize) -> Result<()>;

/// Writes to a file that was there and is not yet as large: only the pages need room, not the name.
fn existing(mount: &Path, number: usize) -> (File, u64) {
    let file = OpenOptions::new().read(true).write(true).open(mount.join(format!("old/{}", number % FILES))).unwrap();
    (file, ((1 + number / FILES) * 16 * PAGE) as u64)
}

fn synchronous_write(mount: &Path, number: usize) -> Result<()> {
    let path = mount.join(format!("old/{}", number % FILES));
    let file = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(path)?;
    file.write_all_at(&[1; PAGE], ((1 + number / FILES) * 16 * PAGE) as u64)
}

fn write_and_fsync(mount: &Path, number: usize) -> Result<()> {
    let (file, at) = existing(mount, number);
    file.write_all_at(&[2; PAGE], at)?;
    file.sync_all()
}

fn write_alone(mount: &Path, number: usize) -> Result<()> {
    let (file, at) = existing(mount, number);
    file.write_all_at(&[3; PAGE], at)
}

fn write_and_close(mount: &Path, number: usize) -> Result<()> {
    let (file, at) = existing(mount, number);
    file.write_all_at(&[3; PAGE], at)?;
    close(file)
}

/// A file that is all hole, made before there was no room.
fn hole(mount: &Path, number: usize) -> File {
    OpenOptions::new().read(true).write(true).open(mount.join(format!("holes/{}", number % FILES))).unwrap()
}

const NEEDING: [(&str, Call); 14] = [
    ("mkdir", |mount, number| fs::create_dir(mount.join(format!("new/directory{number}")))),
    ("open with O_CREAT", |mount, number| fresh(&mount.join(format!("new/file{number}"))).map(drop)),
    ("symlink", |mount, number| symlink("t".repeat(3000), mount.join(format!("new/symlink{number}")))),
    ("link", |mount, number| fs::hard_link(mount.join("old/0"), mount.join(format!("new/link{number}{:0200}", 0)))),
    ("setxattr", |mount, number| {
        let path = mount.join(format!("old/{}", number % FILES));
        Ok(setxattr(path, format!("user.{}", number / FILES), &[4; 3000], XattrFlags::CREATE)?)
    }),
    ("fallocate", |mount, number| {
        let (file, at) = existing(mount, number);
        Ok(fallocate(&file, FallocateFlags::empty(), at, PAGE as u64)?)
    }),
    ("copy_file_range", |mount, number| {
        // Blocks are shared, so what needs room are the trees: each copy begins another leaf.
        let (source, target) = (File::open(mount.join("old/0")).unwrap(), hole(mount, 0));
        let mut at = (number as u64 + 1) << 24;
        copy_file_range(&source, Some(&mut 0), &target, Some(&mut at), PAGE)?;
        Ok(())
    }),
    ("write with O_SYNC", synchronous_write),
    ("write and fsync", write_and_fsync),
    (CLOSE, write_and_close),
    (WRITE, write_alone),
    ("msync of mapped pages", |mount, number| Ok(write_mapped(&hole(mount, number), FILES, 5)?)),
    ("fsync of mapped pages", |mount, number| {
        let file = hole(mount, number);
        Ok(mapped(&file, FILES, 6, |_, _| rustix::fs::fsync(&file))?)
    }),
    (AFTER_MUNMAP, |mount, number| {
        let file = hole(mount, number);
        mapped(&file, FILES, 7, |_, _| Ok(()))?;
        file.sync_all()
    }),
];

const WRITE: &str = "write";
const CLOSE: &str = "write and close";
const AFTER_MUNMAP: &str = "munmap and fsync";

/// A file that was there, and a page of it that this `number` is the first to change.
fn full(mount: &Path, number: usize) -> (File, u64) {
    let file = OpenOptions::new().read(true).write(true).open(mount.join(format!("full/{}", number % FILES))).unwrap();
    (file, ((FULL_PAGES - 1 - number / FILES) * PAGE) as u64)
}

/// What needs room only if a snapshot has the page: then it is stored anew, and nothing comes back for it.
const NEEDING_IF_KEPT: [(&str, Call); 6] = [
    ("truncate within a page", |mount, number| {
        let (file, at) = full(mount, number);
        file.set_len(at + 77)
    }),
    ("punch a hole within a page", |mount, number| {
        let (file, at) = full(mount, number);
        Ok(fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at + 77, 77)?)
    }),
    ("write over, with O_SYNC", |mount, number| {
        let (_, at) = full(mount, number);
        let path = mount.join(format!("full/{}", number % FILES));
        OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(path)?.write_all_at(&[1; PAGE], at)
    }),
    ("write over, and fsync", |mount, number| {
        let (file, at) = full(mount, number);
        file.write_all_at(&[2; PAGE], at)?;
        file.sync_all()
    }),
    ("allocate what is there, and write over it", |mount, number| {
        let (file, at) = full(mount, number);
        fallocate(&file, FallocateFlags::empty(), at, PAGE as u64)?;
        file.write_all_at(&[3; PAGE], at)?;
        file.sync_all()
    }),
    ("msync of mapped pages that are there", |mount, number| Ok(write_mapped(&full(mount, number).0, 1, 4)?)),
];

/// What may be told, or nothing: the kernel takes it in any case, and tells later.
fn told(name: &str, options: &str, limit: Limit) -> &'static [i32] {
    let keeps = options == "cache=kernel";
    match (name, limit) {
        (WRITE, _) if keeps => &[],
        // Of what it could not hand down, Linux' close knows ENOSPC and EIO only; so does munmap, which tells fsync.
        (CLOSE, Limit::Quota) if keeps => &[libc::EIO],
        (AFTER_MUNMAP, Limit::Quota) => &[libc::EDQUOT, libc::EIO],
        (_, Limit::Store) => &[libc::ENOSPC],
        (_, Limit::Quota) => &[libc::EDQUOT],
    }
}

/// Until it is refused, at most so often; says what was wrong with that.
fn refused(name: &str, call: Call, tries: usize, mount: &Path, expected: &[i32]) -> Option<String> {
    let refusal = (0..tries).find_map(|number| call(mount, number).err());
    match refusal.as_ref().map(Error::raw_os_error) {
        Some(Some(errno)) if expected.contains(&errno) => None,
        _ => Some(format!("{name}: {refusal:?}, and not one of {expected:?}")),
    }
}

/// What is there before the store is full.
fn prepare(mount: &Path) {
    for directory in ["old", "holes", "new", "targets", "full", "empty"] {
        fs::create_dir(mount.join(directory)).unwrap();
    }
    for number in 0..FILES {
        fs::write(mount.join(format!("old/{number}")), vec![number as u8; 16 * PAGE]).unwrap();
        fresh(&mount.join(format!("holes/{number}"))).unwrap().set_len((FILES * PAGE) as u64).unwrap();
        fs::write(mount.join(format!("targets/{number}")), "to be replaced").unwrap();
        fs::write(mount.join(format!("full/{number}")), vec![9; FULL_PAGES * PAGE]).unwrap();
        fs::create_dir(mount.join(format!("empty/{number}"))).unwrap();
        fs::create_dir(mount.join(format!("own{number}"))).unwrap();
        fs::write(mount.join(format!("own{number}/new")), "new").unwrap();
        fs::write(mount.join(format!("own{number}/old")), "old").unwrap();
    }
}

/// Everything that can be allocated is.
fn fill(mount: &Path) -> Error {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(mount.join("filler")).unwrap();
    let (mut at, mut length) = (file.metadata().unwrap().len(), MIB as u64);
    loop {
        match fallocate(&file, FallocateFlags::empty(), at, length) {
            Ok(()) => at += length,
            Err(error) if length == PAGE as u64 => return error.into(),
            Err(_) => length /= 2,
        }
    }
}

/// What works in a full store all the same; tells what does not.
fn never_refused(mount: &Path, snapshot: Snapshot) -> Vec<String> {
    // What could not be handed down of these is told once more, to who opens them next.
    for number in 0..FILES {
        let _ = hole(mount, number).sync_all();
        let _ = existing(mount, number).0.sync_all();
        let _ = full(mount, number).0.sync_all();
    }
    let calls: [(&str, Call); 12] = [
        (OVERWRITE, |mount, number| {
            let file = OpenOptions::new().write(true).open(mount.join(format!("full/{number}")))?;
            file.write_all_at(&[8; FULL_PAGES * PAGE], 0)?;
            file.sync_all()
        }),
        ("rename over, in a recovery point of its own", |mount, number| {
            let directory = mount.join(format!("own{number}"));
            let _ = control::sync(File::open(&directory)?);
            fs::rename(directory.join("new"), directory.join("old"))
        }),
        ("rename over", |mount, number| {
            fs::rename(mount.join(format!("full/{number}")), mount.join(format!("targets/{number}")))
        }),
        ("rename over in the same directory", |mount, number| match number % 2 {
            0 => fs::rename(mount.join(format!("targets/{number}")), mount.join(format!("targets/{}", number + 1))),
            _ => fs::rename(mount.join(format!("targets/{number}")), mount.join(format!("old/{number}"))),
        }),
        ("chmod", |mount, number| {
            fs::set_permissions(mount.join(format!("old/{number}")), fs::Permissions::from_mode(0o600))
        }),
        ("truncate to whole pages", |mount, number| {
            OpenOptions::new().write(true).open(mount.join(format!("old/{number}")))?.set_len(4 * PAGE as u64)
        }),
        (TRUNCATE_WITHIN, |mount, number| {
            OpenOptions::new().write(true).open(mount.join(format!("old/{number}")))?.set_len(2 * PAGE as u64 + 77)
        }),
        ("truncate to nothing", |mount, number| {
            File::create(mount.join(format!("old/{number}"))).and_then(|file| file.sync_all())
        }),
        ("truncate to a hole", |mount, number| {
            OpenOptions::new().write(true).open(mount.join(format!("holes/{number}")))?.set_len(1 << 40)
        }),
        ("unlink", |mount, number| fs::remove_file(mount.join(format!("old/{number}")))),
        ("rmdir", |mount, number| fs::remove_dir(mount.join(format!("empty/{number}")))),
        ("unlink of what was refused", |mount, number| fs::remove_file(mount.join(format!("holes/{number}")))),
    ];
    let failed = |(name, call): &(&str, Call)| {
        let wrong = (0..FILES).find_map(|number| call(mount, number).err().map(|error| (number, error)));
        wrong.map(|(number, error)| format!("{name}, number {number}: {error:?}, and it must work"))
    };
    let needs_room = |name| snapshot == Snapshot::OfAll && [OVERWRITE, TRUNCATE_WITHIN].contains(&name);
    calls.iter().filter(|(name, _)| !needs_room(*name)).filter_map(failed).collect()
}

const OVERWRITE: &str = "write over what is stored, and fsync";
const TRUNCATE_WITHIN: &str = "truncate within a page";

fn table(options: &str, limit: Limit, snapshot: Snapshot) {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", if limit == Limit::Store { "24M" } else { "64M" });
    let mount: PathBuf = rig.directory("m");
    let all = if limit == Limit::Store { options.to_string() } else { format!("{options},quota=24M") };
    rig.run(["mount", "s", "m", "-o", &all]).exits(0);
    prepare(&mount);
    rig.run(["sync", "m"]).exits(0);
    if snapshot == Snapshot::OfAll {
        rig.run(["snapshot", "create", "m", SNAPSHOT]).exits(0);
    }
    let mut wrong: Vec<String> = Vec::new();
    let full = fill(&mount);
    if full.raw_os_error() != Some(limit.errno()) {
        wrong.push(format!("fallocate: {full:?}"));
    }
    for (name, call) in NEEDING {
        let expected = told(name, options, limit);
        if !expected.is_empty() {
            wrong.extend(refused(name, call, TRIES, &mount, expected));
        }
    }
    if snapshot == Snapshot::OfAll {
        if limit == Limit::Store {
            // The kernel tells first what it could not hand down. (Of a quota, a snapshot itself takes next to nothing.)
            rig.run(["sync", "m"]);
            rig.run(["snapshot", "create", "m", "another"]).exits(1).says("no room for a snapshot");
        }
        for (name, call) in NEEDING_IF_KEPT {
            wrong.extend(refused(name, call, FILES * FULL_PAGES, &mount, &[limit.errno()]));
        }
    }
    wrong.extend(never_refused(&mount, snapshot));
    assert!(wrong.is_empty(), "{all}, {snapshot:?}:\n{}", wrong.join("\n"));
    // There is room again: what filled the store goes, or what only the snapshot has of all that was removed.
    match snapshot {
        Snapshot::None => fs::remove_file(mount.join("filler")).unwrap(),
        Snapshot::OfAll => {
            // The kernel has a page that it could not hand down. It tells who asks for all of the mount next, which a deletion does not.
            fill(&mount);
            let msync: Call = |mount, number| {
                let file = OpenOptions::new().read(true).write(true).open(mount.join(format!("own{number}/old")))?;
                Ok(write_mapped(&file, 1, 8)?)
            };
            assert_eq!(refused("msync", msync, FILES, &mount, &[limit.errno()]), None);
            rig.run(["snapshot", "delete", "m", SNAPSHOT]).exits(0);
        }
    }
    // The kernel tells once more what it could not hand down, to who asks for all of the mount.
    rig.run(["sync", "m"]);
    rig.run(["sync", "m"]).exits(0);
    let again = fresh(&mount.join("again")).unwrap();
    again.write_all_at(&vec![7; MIB], 0).unwrap();
    again.sync_all().unwrap();
    drop(again);
    rig.run(["unmount", "m"]).exits(0);
    rig.run(["check", "s"]).exits(0);
    rig.run(["mount", "s", "m"]).exits(0);
    assert!(fs::read(mount.join("again")).unwrap() == vec![7; MIB]);
    rig.run(["unmount", "m"]).exits(0);
}

/// One test for each row: how the table is run, and what it is about.
macro_rules! tables {
    ($($name:ident: $options:expr, $limit:ident, $snapshot:ident;)*) => {$(
        #[test]
        fn $name() {
            table($options, Limit::$limit, Snapshot::$snapshot);
        }
    )*};
}

tables! {
    every_call_says_that_the_store_is_full: "cache=direct", Store, None;
    every_call_says_that_the_store_is_full_with_pages_of_the_kernels: "cache=kernel", Store, None;
    every_call_says_that_the_quota_is_used_up: "cache=direct", Quota, None;
    every_call_says_that_the_quota_is_used_up_with_pages_of_the_kernels: "cache=kernel", Quota, None;
    every_call_says_that_a_store_with_a_snapshot_is_full: "cache=direct", Store, OfAll;
    every_call_says_that_a_store_with_a_snapshot_is_full_with_pages_of_the_kernels: "cache=kernel", Store, OfAll;
    every_call_says_that_the_quota_is_used_up_by_a_snapshot_too: "cache=direct", Quota, OfAll;
    every_call_says_that_the_quota_is_used_up_by_a_snapshot_too_with_pages_of_the_kernels: "cache=kernel", Quota, OfAll;
}
