//! What a comparison of two snapshots reads, counted on the device: in proportion to what changed, whatever else the store has.

use holdfast_block::{Device, Error, Filter, MemoryDevice};
use holdfast_lab::stack::{self, Stack, StackOptions};
use holdfast_naming::{Access, Atime, Create, Namespace, PathChange, Request};
use holdfast_object::{NAMES_LISTED_MAX, ObjectId, SnapshotId, Snapshots};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::sync::Arc;

const REQUEST: &Request = &Request::ROOT;
/// Files in a directory.
const WIDTH: usize = 200;

/// Counts how often each block is read.
struct Counting {
    inner: MemoryDevice,
    reads: Mutex<BTreeMap<u64, u64>>,
}

impl Filter for Counting {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut reads = self.reads.lock();
        for block in first..first + (bytes / 4096) as u64 {
            *reads.entry(block).or_default() += 1;
        }
        self.inner.read(first, bufs)
    }
}

struct Rig {
    device: Arc<Counting>,
    stack: Stack,
    names: Arc<Namespace>,
    directories: Vec<ObjectId>,
}

/// Blocks read by a comparison: different ones, and in all.
#[derive(Clone, Copy, Debug)]
struct Cost {
    blocks: u64,
    reads: u64,
}

impl Cost {
    /// Hardly anything is read twice: pages of directories that both states have, once for each.
    fn check(&self) {
        assert!(self.reads <= self.blocks * 5 / 4, "blocks are read again: {self:?}");
    }
}

impl Rig {
    /// A store with `files` files: a quarter in one directory, the others in directories below one another's neighbours.
    fn new(files: usize) -> Rig {
        let inner = MemoryDevice::new(64 * files as u64 + 16384);
        let device = Arc::new(Counting { inner, reads: Mutex::default() });
        let clock = stack::clock();
        stack::create(device.clone(), &clock).unwrap();
        let rig = Rig::open(device);
        let wide = rig.directory(ObjectId::ROOT, "wide");
        let fill = |directory, count: usize| {
            for number in 0..count {
                rig.file(directory, &format!("file {number}"));
            }
        };
        fill(wide, files / 4);
        let mut directories = vec![wide];
        for number in 0..files * 3 / 4 / WIDTH {
            // A tree of width 4.
            let above = if number < 4 { ObjectId::ROOT } else { directories[number / 4] };
            let directory = rig.directory(above, &format!("directory {number}"));
            directories.push(directory);
            fill(directory, WIDTH);
        }
        Rig { directories, ..rig }
    }

    fn open(device: Arc<Counting>) -> Rig {
        let mut options = StackOptions::new(4096);
        options.physical.node_cache_bytes = 16 << 20;
        let stack = Stack::open(device.clone(), &options, &stack::clock()).unwrap();
        let names = stack.namespace(Atime::Never);
        Rig { device, stack, names, directories: Vec::new() }
    }

    fn directory(&self, above: ObjectId, name: &str) -> ObjectId {
        self.names.mkdir(REQUEST, above, name.as_bytes(), 0o755).unwrap().id
    }

    fn file(&self, directory: ObjectId, name: &str) -> ObjectId {
        let how = Create { mode: 0o644, exclusive: true, wanted: Access::WRITE, truncate: false };
        let id = self.names.create(REQUEST, directory, name.as_bytes(), &how).unwrap().found.id;
        self.names.release(id).unwrap();
        self.names.forget(id, 1).unwrap();
        id
    }

    fn find(&self, directory: ObjectId, name: &str) -> ObjectId {
        self.names.lookup(REQUEST, directory, name.as_bytes()).unwrap().id
    }

    fn write(&self, id: ObjectId) {
        self.names.write(REQUEST, id, 0, b"changed", false).unwrap();
    }

    fn keep(&self, name: &str) -> SnapshotId {
        self.stack.cache.snapshot_create(name).unwrap().id
    }

    /// Compares with empty caches.
    fn compare(self, from: SnapshotId, to: SnapshotId) -> (Vec<PathChange>, Cost) {
        self.stack.close().unwrap();
        let Rig { device, .. } = self;
        let rig = Rig::open(device.clone());
        device.reads.lock().clear();
        let changes = rig.names.diff(from, to).unwrap();
        let reads = device.reads.lock();
        (changes, Cost { blocks: reads.len() as u64, reads: reads.values().sum() })
    }
}

fn text(path: &[u8]) -> &str {
    std::str::from_utf8(path).unwrap()
}

/// Changes the contents of so many files all over the store of `files` files, and compares.
fn cost(files: usize, changes: usize) -> Cost {
    let rig = Rig::new(files);
    let from = rig.keep("from");
    let in_wide = changes / 2;
    for number in 0..in_wide {
        rig.write(rig.find(rig.directories[0], &format!("file {}", number * (files / 4 / in_wide))));
    }
    let others = rig.directories.len() - 1;
    for number in in_wide..changes {
        let directory = rig.directories[1 + number * 7 % others];
        rig.write(rig.find(directory, &format!("file {}", number * 13 % WIDTH)));
    }
    let to = rig.keep("to");
    let (found, cost) = rig.compare(from, to);
    println!("{files} files, {changes} changes: {cost:?}");
    assert!(found.iter().all(|change| matches!(change, PathChange::Modified(path) if !text(path).contains('#'))));
    assert_eq!(found.len(), changes);
    cost
}

#[test]
fn a_comparison_reads_in_proportion_to_the_changes() {
    let few = cost(4000, 10);
    let few_of_many = cost(32_000, 10);
    let many = cost(32_000, 100);
    [few, few_of_many, many].iter().for_each(Cost::check);
    // Trees are a level higher in the larger store, and fewer changes share a block.
    assert!(few_of_many.blocks <= few.blocks * 2, "{few:?}, and {few_of_many:?} in a store eight times as large");
    assert!(many.blocks <= 10 * few_of_many.blocks, "{few_of_many:?}, and {many:?} for ten times the changes");
    // Per change: the object in both states, its contents, its name in its directory, and that one's way up.
    assert!(few_of_many.blocks <= 20 * 10, "{few_of_many:?}");
}

#[test]
fn files_that_lost_a_name_are_not_searched_for() {
    const FILES: usize = 16_000;
    let rig = Rig::new(FILES);
    let ids: Vec<ObjectId> = (0..10)
        .map(|number| {
            let id = rig.find(rig.directories[1 + number], "file 5");
            rig.names.link(REQUEST, id, rig.directories[20 + number], b"second name").unwrap();
            id
        })
        .collect();
    let (early, late) = ids.split_at(5);
    let unlink = |number: usize| rig.names.unlink(REQUEST, rig.directories[1 + number], b"file 5").unwrap();
    (0..early.len()).for_each(unlink);
    let from = rig.keep("from");
    (early.len()..ids.len()).for_each(unlink);
    ids.iter().for_each(|&id| rig.write(id));
    let to = rig.keep("to");
    let (changes, cost) = rig.compare(from, to);
    println!("{FILES} files, names lost by {} before and {} after: {cost:?}", early.len(), late.len());
    let of = |wanted: fn(&PathChange) -> Option<&[u8]>| changes.iter().filter_map(wanted).map(text).collect::<Vec<_>>();
    let modified = of(|change| if let PathChange::Modified(path) = change { Some(path) } else { None });
    let removed = of(|change| if let PathChange::Removed(path) = change { Some(path) } else { None });
    assert_eq!(modified.iter().filter(|path| path.ends_with("/second name")).count(), ids.len(), "{changes:?}");
    assert_eq!(removed.iter().filter(|path| path.ends_with("/file 5")).count(), late.len(), "{changes:?}");
    // The directories that lost a name are modified as well.
    assert_eq!(changes.len(), ids.len() + 2 * late.len(), "{changes:?}");
    cost.check();
    assert!(cost.blocks <= 20 * 15, "{cost:?}");
}

#[test]
fn what_lost_all_names_that_it_listed_is_found_all_the_same() {
    let rig = Rig::new(1600);
    let id = rig.file(rig.directories[1], "0");
    for number in 1..=NAMES_LISTED_MAX {
        rig.names.link(REQUEST, id, rig.directories[2], number.to_string().as_bytes()).unwrap();
    }
    let from = rig.keep("from");
    rig.names.unlink(REQUEST, rig.directories[1], b"0").unwrap();
    for number in 1..NAMES_LISTED_MAX {
        rig.names.unlink(REQUEST, rig.directories[2], number.to_string().as_bytes()).unwrap();
    }
    rig.write(id);
    let to = rig.keep("to");
    let (changes, _) = rig.compare(from, to);
    let left = format!("directory 1/{NAMES_LISTED_MAX}").into_bytes();
    assert!(changes.contains(&PathChange::Modified(left)), "{changes:?}");
}

#[test]
fn a_deep_tree_has_paths() {
    const DEPTH: usize = 3000;
    let rig = Rig::new(0);
    let mut at = ObjectId::ROOT;
    for _ in 0..DEPTH {
        at = rig.directory(at, "d");
    }
    let id = rig.file(at, "f");
    let from = rig.keep("from");
    rig.write(id);
    let to = rig.keep("to");
    let (changes, cost) = rig.compare(from, to);
    assert_eq!(changes, [PathChange::Modified([b"d/".repeat(DEPTH), b"f".to_vec()].concat())]);
    assert!(cost.reads <= 3 * DEPTH as u64, "{cost:?}");
}
