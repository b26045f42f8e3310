//! Everything that can be done with a store: check, read, scrub, compare, change, snapshot, close, open again.
//!
//! Errors are expected and counted. An error of the kind `Internal` is not: it says that a layer asked for something that makes no
//! sense, and has no place.

use crate::stack::{Stack, StackOptions, clock};
use holdfast_block::MemoryDevice;
use holdfast_naming::{
    Access, Atime, Caller, ErrorKind, Namespace, NewNode, Options, Position, RenameMode, Request, Result, SetAttr,
    SpaceMode, XattrMode,
};
use holdfast_object::{
    Clock, Durability, Kind, ObjectCache, ObjectId, ObjectStore, ScrubCursor, Seek, SnapshotId, Snapshots,
};
use holdfast_physical::OpenOptions;
use holdfast_physical::check::{CheckOptions, check};
use holdfast_physical::inject::Catalogue;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Names that are looked at in one store: more than the sample has, whatever a directory says.
const NAMES_MAX: usize = 2000;
/// Blocks of a scrub step.
const STEP_BLOCKS: u64 = 200;
/// Steps of a scrub, or of deleting snapshots: more than any store of the sample's size needs.
const STEPS_MAX: usize = 1000;
const WHO: &Request = &Request::ROOT;

/// What came of a visit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Visit {
    /// It could be opened for changes at first.
    pub opened: bool,
    /// It could be opened again after the changes.
    pub reopened: bool,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that gave an error.
    pub errors: u64,
    /// Errors that should not be.
    pub wrong: Vec<String>,
}

impl Visit {
    fn take<T>(&mut self, what: &str, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.answered += 1;
                Some(value)
            }
            Err(error) => {
                self.errors += 1;
                if error.kind() == ErrorKind::Internal {
                    self.wrong.push(format!("{what}: {error}"));
                }
                None
            }
        }
    }

    fn below<T>(&mut self, what: &str, outcome: holdfast_object::Result<T>) -> Option<T> {
        self.take(what, outcome.map_err(holdfast_naming::Error::Object))
    }
}

/// Visits the store on `device`. Panics only where something is wrong in the code.
pub fn visit(device: MemoryDevice) -> Visit {
    let device = Arc::new(device);
    let mut seen = Visit::default();
    let _ = check(device.clone(), &CheckOptions::default());
    let shared: Arc<dyn holdfast_block::Device> = device.clone();
    let _ = Catalogue::read(&shared);
    let mut options = StackOptions::new(512);
    options.physical = OpenOptions { read_only: true, ..options.physical };
    if let Ok(stack) = Stack::open(Arc::new((*device).clone()), &options, &clock()) {
        look(&mut seen, &stack);
    }
    options.physical.read_only = false;
    if let Ok(stack) = Stack::open(device.clone(), &options, &clock()) {
        seen.opened = true;
        let names = names(&stack);
        let outcome = names.reclaim_orphans();
        seen.take("orphans", outcome);
        scrub(&mut seen, &stack);
        change(&mut seen, &stack);
        look(&mut seen, &stack);
        stack.cache.check();
        let _ = stack.close();
    }
    if let Ok(stack) = Stack::open(device.clone(), &options, &clock()) {
        seen.reopened = true;
        look(&mut seen, &stack);
    }
    let _ = check(device, &CheckOptions { repair: true, ..CheckOptions::default() });
    seen
}

/// As a mount for several users has it: permissions are checked here, snapshots are there to be looked into.
fn names(stack: &Stack) -> Namespace {
    let options = Options { enforce: holdfast_naming::Enforce::InNaming, atime: Atime::Strict, ..Options::default() };
    let clock: Arc<dyn Clock> = stack.clock.clone();
    Namespace::new(stack.cache.clone(), clock, options).with_snapshots(stack.cache.clone())
}

fn scrub(seen: &mut Visit, stack: &Stack) {
    let mut cursor = ScrubCursor::Start;
    for step in 0.. {
        let Some(done) = seen.below("scrub", stack.cache.scrub_step(&cursor, STEP_BLOCKS)) else { break };
        cursor = done.cursor;
        if cursor == ScrubCursor::End {
            break;
        }
        if step == STEPS_MAX {
            seen.wrong.push(format!("a scrub that does not end: at {cursor:?}"));
            break;
        }
    }
}

/// Everything below a directory, breadth first.
fn tree(seen: &mut Visit, names: &Namespace, root: ObjectId) -> Vec<(ObjectId, Vec<u8>, ObjectId)> {
    let (mut found, mut known, mut at) = (Vec::new(), BTreeSet::from([root]), 0);
    let mut waiting = vec![root];
    while let Some(&directory) = waiting.get(at) {
        at += 1;
        let mut entries: Vec<(Vec<u8>, ObjectId)> = Vec::new();
        let mut last = 0;
        let outcome = names.readdir_with_attributes(directory, 0, |entry, _| {
            assert!(entry.cookie > last || entries.is_empty(), "cookies ascend");
            last = entry.cookie;
            entries.push((entry.name.to_vec(), entry.id));
            entries.len() < NAMES_MAX
        });
        seen.take("readdir", outcome);
        for (name, id) in entries {
            if name == b"." || name == b".." || found.len() >= NAMES_MAX {
                continue;
            }
            if known.insert(id) && names.getattr(id).is_ok_and(|attributes| attributes.kind == Kind::Directory) {
                waiting.push(id);
            }
            found.push((directory, name, id));
        }
    }
    found
}

fn look(seen: &mut Visit, stack: &Stack) {
    let names = names(stack);
    let user = Request { caller: Caller { uid: 10, gid: 7, groups: vec![20, 21] }, ..Request::default() };
    let found = tree(seen, &names, ObjectId::ROOT);
    for (parent, name, id) in &found {
        one(seen, &names, &user, *parent, name, *id);
    }
    let snapshots: &dyn Snapshots = &*stack.cache;
    let list = seen.below("snapshots", snapshots.snapshots()).unwrap_or_default();
    let states: Vec<SnapshotId> = list.iter().map(|info| info.id).take(8).chain([SnapshotId::LIVE]).collect();
    for state in &states[..states.len() - 1] {
        for (parent, name, id) in tree(seen, &names, ObjectId::ROOT.in_snapshot(*state)).into_iter().take(40) {
            one(seen, &names, &user, parent, &name, id);
        }
    }
    for pair in states.windows(2) {
        seen.take("diff", names.diff(pair[0], pair[1]));
    }
    for (_, _, id) in found.iter().take(20) {
        let state = (states[0], SnapshotId::LIVE);
        seen.below("changed pages", snapshots.changed_pages(*id, state, 0, 100));
    }
    let mut objects = Vec::new();
    while let Some(more) = seen.below(
        "objects",
        stack.module.objects(names.cache().domain(), objects.last().copied().unwrap_or(ObjectId::NONE), 100),
    ) {
        if more.is_empty() || objects.len() > NAMES_MAX {
            break;
        }
        objects.extend(more.into_iter().map(|(key, _)| key.object));
    }
    let all = objects.iter().filter_map(|id| Some((*id, stack.cache.attributes(*id).ok()?)));
    let _ = holdfast_naming::check::check(&*stack.cache, all);
    let _ = (names.statfs(), stack.module.status(), stack.cache.status());
}

fn one(seen: &mut Visit, names: &Namespace, user: &Request, parent: ObjectId, name: &[u8], id: ObjectId) {
    if seen.take("lookup", names.lookup(user, parent, name)).is_some() {
        let _ = names.forget(id, 1);
    }
    seen.take("access", names.access(user, id, Access::READ.and(Access::WRITE)));
    names.path_of(id);
    let Some(attributes) = seen.take("getattr", names.getattr(id)) else { return };
    for name in seen.take("listxattr", names.listxattr(WHO, id)).unwrap_or_default() {
        seen.take("getxattr", names.getxattr(WHO, id, &name));
    }
    match attributes.kind {
        Kind::Symlink => {
            seen.take("readlink", names.readlink(id));
        }
        Kind::Regular => {
            let end = attributes.size;
            for offset in [0, 1 << 12, 300 << 12, 20_000 << 12, end.saturating_sub(5000), end, u64::MAX - 1] {
                if let Some(data) = seen.take("read", names.read(id, offset, 9000)) {
                    assert!(data.slices().map(<[u8]>::len).sum::<usize>() <= 9000);
                }
            }
            let mut at = 0;
            for _ in 0..20 {
                let Ok(data) = names.seek(id, at, Seek::Data) else { break };
                let Some(hole) = seen.take("seek", names.seek(id, data, Seek::Hole)) else { break };
                assert!(data >= at && hole > data, "data from {data} to {hole}, looked for from {at} on");
                at = hole;
            }
        }
        _ => {}
    }
}

fn change(seen: &mut Visit, stack: &Stack) {
    let names = names(stack);
    let found = tree(seen, &names, ObjectId::ROOT);
    for (number, (parent, name, id)) in found.iter().enumerate().take(150) {
        let attributes = names.getattr(*id);
        match (attributes.map(|found| found.kind), number % 4) {
            (Ok(Kind::Regular), 0) => {
                seen.take("write", names.write(WHO, *id, 3000, &[9; 5000], false));
                seen.take("punch", names.allocate(WHO, *id, 4096, 1 << 40, SpaceMode::Punch, false));
                let how = SpaceMode::Allocate { keep_size: false };
                seen.take("allocate", names.allocate(WHO, *id, 4096, 9000, how, false));
                let set = SetAttr { size: Some(5000), mode: Some(0o600), ..SetAttr::default() };
                seen.take("setattr", names.setattr(WHO, *id, &set));
                let (source, target) = (Position { id: *id, offset: 0 }, Position { id: *id, offset: 1 << 30 });
                seen.take("copy", names.copy_range(WHO, source, target, 4096, false));
                seen.take("sync", names.sync(*id, Durability::Data));
            }
            (_, 1) => {
                seen.take("setxattr", names.setxattr(WHO, *id, b"user.new", b"value", XattrMode::Set));
                seen.take("chmod", names.setattr(WHO, *id, &SetAttr { mode: Some(0o750), ..SetAttr::default() }));
                seen.take("rename", names.rename(WHO, *parent, name, ObjectId::ROOT, b"moved", RenameMode::Replace));
            }
            (Ok(Kind::Directory), _) => {
                seen.take("create", names.mknod(WHO, *id, &[b'n'; 250], NewNode::Regular, 0o666));
                seen.take("mkdir", names.mkdir(WHO, *id, b"new directory", 0o777));
            }
            (_, 2) => {
                seen.take("unlink", names.unlink(WHO, *parent, name));
            }
            _ => {}
        }
    }
    seen.take("sync", names.sync_all());
    let snapshots: &dyn Snapshots = &*stack.cache;
    seen.below("snapshot", snapshots.snapshot_create("new"));
    for (parent, name, _) in found.iter().skip(150) {
        seen.take("unlink", names.unlink(WHO, *parent, name));
    }
    seen.take("sync", names.sync_all());
    let list = seen.below("snapshots", snapshots.snapshots()).unwrap_or_default();
    for info in list.into_iter().take(8) {
        seen.below("delete", snapshots.snapshot_delete(&info.name));
    }
    seen.take("sync", names.sync_all());
    for slice in 0.. {
        match seen.below("delete more", snapshots.snapshot_delete_more()) {
            Some(left) if !left.is_empty() => {}
            _ => break,
        }
        if slice == STEPS_MAX {
            seen.wrong.push("a deletion that does not end".to_string());
            break;
        }
    }
    seen.below("trim", stack.module.trim(0..u64::MAX));
}
