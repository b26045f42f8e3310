//! What is done with a store before, while and after its metadata in memory is struck: the same in every run of the same number.

use super::attributes::Attributes;
use super::between::{Between, Front, Moment, Watch};
use super::names;
use super::pages::Pages;
use crate::enemy::reference::Reference;
use crate::look::walk;
use crate::maker::Maker;
use crate::model::{Action, Data, Driver, Model, Node};
use crate::stack::{Stack, StackOptions};
use holdfast_block::{BLOCK_SIZE, Device, MemoryDevice};
use holdfast_naming::{Atime, NameBug, NewNode, RenameMode, SetAttr, SpaceMode, XattrMode};
use holdfast_object::{Arena, Clock, ManualClock, SnapshotId, SnapshotInfo, Snapshots};
use holdfast_physical::{DeletionSlice, MetadataProtection, Module};
use std::sync::Arc;

/// A clean block that nobody has looked at for so long is verified before it is used.
pub(super) const SECOND_NS: u64 = 1_000_000_000;

/// What a sync takes that is struck on its way, and more.
const SYNC_NS: u64 = 60 * SECOND_NS;

/// How different scripts are: what makes the recovery point (a sync, a new snapshot, a deleted one), and how far it is prepared for.
pub(super) const SCRIPTS: u64 = 6;

/// Whether logic bugs of names are tried at a moment: while requests are made.
pub(super) fn can_have_name_bugs(moment: Moment) -> bool {
    matches!(moment, Moment::Rest | Moment::Logged)
}

/// A store in use, by a script.
pub(super) struct Run {
    pub(super) device: Arc<MemoryDevice>,
    pub(super) module: Arc<Module>,
    watch: Arc<Watch>,
    pub(super) maker: Maker,
    pub(super) snapshots: Vec<Kept>,
    script: u64,
    /// Whether it is looked at what a power cut right after a sync would leave.
    pub(super) looks_at_log: bool,
    /// The moment before which all is looked at, so that nothing is looked at again in the second after it.
    pub(super) at_once: Option<usize>,
    /// What has not gone as it should have.
    pub(super) errors: Vec<String>,
}

/// A snapshot, with what is in it.
pub(super) struct Kept {
    info: SnapshotInfo,
    model: Model,
    /// Knows its objects, also those that have gone since.
    driver: Driver,
}

/// What can be struck.
pub(super) struct Memory {
    pub(super) module: Arc<Module>,
    pub(super) pages: Pages,
    pub(super) attributes: Attributes,
    pub(super) arena: Arc<Arena>,
}

/// Told of each moment, by number.
pub(super) type Strike = Box<dyn FnMut(usize, Moment, &Memory) + Send>;

fn in_model(model: &Model, path: &[&str]) -> Result<Node, String> {
    path.iter().try_fold(Node::ROOT, |node, name| {
        let inode = model.get(node).ok_or("no such directory")?;
        inode.entries.get(name.as_bytes()).copied().ok_or(format!("{path:?} is not in the store"))
    })
}

impl Run {
    pub(super) fn open(store: &Reference, script: u64, metadata: MetadataProtection) -> Result<Run, String> {
        let device = Arc::new(store.image.clone());
        let watch = Arc::new(Watch::default());
        let front = Arc::new(Front { inner: device.clone(), watch: watch.clone() });
        let mut options = StackOptions::new(1024);
        options.physical.metadata = metadata;
        // A list of dead blocks is cut before it is put together with the rest.
        options.physical.deletion_slice = DeletionSlice { runs: 1, ..DeletionSlice::default() };
        let clock = Arc::new(ManualClock::new(store.now_ns, 0));
        let mut opened = None;
        let between = |module: Arc<Module>| {
            opened = Some(module.clone());
            Arc::new(Between { module, watch: watch.clone() }) as Arc<dyn holdfast_object::ObjectStore>
        };
        let stack = Stack::open_between(front, &options, &clock, between).map_err(|error| error.to_string())?;
        let module = opened.ok_or("no module was opened")?;
        let namespace = stack.namespace(Atime::Never);
        namespace.reclaim_orphans().map_err(|error| error.to_string())?;
        let mut driver = store.driver.clone();
        driver.forget_gone(&store.model);
        driver.replace_namespace(namespace);
        let maker = Maker { driver, model: store.model.clone(), stack };
        let infos = maker.stack.cache.snapshots_uncounted().map_err(|error| error.to_string())?;
        let kept = |(id, model): &(SnapshotId, Model)| {
            let info = infos.iter().find(|info| info.id == *id).ok_or("a snapshot is not listed")?;
            Ok(Kept { info: info.clone(), model: model.clone(), driver: store.driver.clone() })
        };
        let snapshots = store.snapshots.iter().map(kept).collect::<Result<_, String>>()?;
        Ok(Run {
            device,
            module,
            watch,
            maker,
            snapshots,
            script,
            looks_at_log: false,
            at_once: None,
            errors: Vec::new(),
        })
    }

    /// All of it, up to the recovery point that may be struck.
    /// `then`: the same moment, when whatever was looked at before the strike is looked at again, if that is not at once.
    pub(super) fn up_to_recovery_point(&mut self, mut strike: Strike, mut then: Strike) -> Result<(), String> {
        self.read_all("before");
        self.begin()?;
        let mut number = 0;
        let stack = &self.maker.stack;
        let pages = Pages::new(stack.cache.clone(), stack.arena.clone());
        let attributes = Attributes::new(stack.cache.clone());
        let memory = Memory { module: self.module.clone(), pages, attributes, arena: stack.arena.clone() };
        let (mut memory, clock) = (memory, stack.clock.clone());
        let at_once = self.at_once;
        let hook = Box::new(move |moment| {
            // There is a second to each moment: before the strike, or after it.
            let is_at_once = at_once == Some(number);
            if is_at_once {
                clock.advance_ns(SECOND_NS);
                memory.module.lab().look_at_all();
            }
            if matches!(moment, Moment::Rest | Moment::Appending | Moment::Logged) {
                memory.pages.look();
            }
            strike(number, moment, &memory);
            if !is_at_once {
                clock.advance_ns(SECOND_NS);
            }
            then(number, moment, &memory);
            number += 1;
        });
        self.watch.set(Some(hook));
        self.watch.tell(Moment::Rest);
        let clock = self.maker.stack.clock.clone();
        let then_ns = clock.monotonic_ns() + SYNC_NS;
        self.sync_one()?;
        // However often it was tried.
        clock.advance_ns(then_ns - clock.monotonic_ns());
        if self.looks_at_log {
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::clone(&self.device));
            let seen = match Stack::open(device, &StackOptions::new(1024), &self.maker.stack.clock.clone()) {
                Ok(stack) => see_all(&self.maker, &self.snapshots, &stack),
                Err(error) => vec![format!("it cannot be mounted: {error}")],
            };
            self.errors.extend(seen.into_iter().map(|error| format!("after a power cut behind the sync: {error}")));
        }
        // Only what the recovery point consists of.
        let hook = self.watch.take();
        let outcome = self.update(0).and_then(|()| self.update(1));
        self.watch.set(hook);
        outcome?;
        self.watch.tell(Moment::Logged);
        let outcome = self.make_recovery_point();
        self.watch.set(None);
        outcome
    }

    /// The same with a request that has a logic bug, at one of the moments that [`can_have_name_bugs`]. Gives how often that was found.
    pub(super) fn with_name_bug(&mut self, bug: NameBug, moment: Moment, choice: u64) -> Result<u64, String> {
        self.read_all("before");
        self.begin()?;
        let parent = self.node(&[&format!("directory {}", choice % 2)])?;
        let mut found = 0;
        let mut do_wrongly = |run: &mut Run| {
            let (times, mut wrong) = names::do_wrongly(&mut run.maker, bug, parent)?;
            found += times;
            run.errors.append(&mut wrong);
            Ok::<_, String>(())
        };
        if moment == Moment::Rest {
            do_wrongly(self)?;
        }
        self.sync_one()?;
        self.update(0)?;
        self.update(1)?;
        if moment == Moment::Logged {
            do_wrongly(self)?;
        }
        self.make_recovery_point()?;
        Ok(found)
    }

    /// Goes on, so that what was struck and not met would be.
    pub(super) fn go_on(&mut self) -> Result<(), String> {
        self.read_all("after the recovery point");
        self.update(2)?;
        self.maker.act(Action::SyncAll)?;
        self.read_all("later");
        Ok(())
    }

    /// Everything, as an application would.
    pub(super) fn read_all(&mut self, when: &str) {
        let seen = see_all(&self.maker, &self.snapshots, &self.maker.stack);
        self.errors.extend(seen.into_iter().map(|error| format!("{when}: {error}")));
    }

    pub(super) fn node(&self, path: &[&str]) -> Result<Node, String> {
        in_model(&self.maker.model, path)
    }

    /// Before: a file in use that has no name, a block of each kind in memory, a log that has been used.
    pub(super) fn begin(&mut self) -> Result<(), String> {
        let maker = &mut self.maker;
        let orphan = in_model(&maker.model, &["file 5"])?;
        maker.act(Action::Lookup { parent: Node::ROOT, name: b"file 5".to_vec() })?;
        maker.act(Action::Open { node: orphan, truncate: false })?;
        maker.act(Action::Unlink { parent: Node::ROOT, name: b"file 5".to_vec() })?;
        let large = in_model(&maker.model, &["large"])?;
        for round in 0..=self.script % 3 {
            maker.write(large, 7 * round as usize, 300 + round, 2 * BLOCK_SIZE)?;
            maker.act(Action::SyncAll)?;
        }
        Ok(())
    }

    /// Changes of names and of a file, and a sync that puts them into the log. All else is in the last recovery point.
    fn sync_one(&mut self) -> Result<(), String> {
        let small = self.node(&["directory 0", "small"])?;
        let maker = &mut self.maker;
        maker.act(Action::Mkdir { parent: Node::ROOT, name: b"synced".to_vec(), mode: 0o755 })?;
        let synced = in_model(&maker.model, &["synced"])?;
        maker.act(Action::Symlink { parent: synced, name: b"pointing".to_vec(), target: b"../large".to_vec() })?;
        let value = Data { seed: 77 + self.script, length: 100 };
        maker.act(Action::SetXattr { node: small, name: b"user.synced".to_vec(), value, mode: XattrMode::Set })?;
        maker.write(small, 100, 5000 + self.script, BLOCK_SIZE)?;
        maker.act(Action::Sync { node: small, data_only: false })
    }

    /// Updates of every sort, others in each round.
    pub(super) fn update(&mut self, round: u64) -> Result<(), String> {
        let (large, second) = (self.node(&["large"])?, self.node(&["large too"])?);
        let directory = self.node(&[&format!("directory {round}")])?;
        let small = self.node(&[&format!("directory {round}"), "small"])?;
        let seed = 1000 * self.script + 100 * round;
        let maker = &mut self.maker;
        let name = |what: &str| format!("{what} {round}").into_bytes();
        maker.act(Action::Mkdir { parent: Node::ROOT, name: name("made"), mode: 0o755 })?;
        let made = in_model(&maker.model, &[&format!("made {round}")])?;
        let file = maker.file(made, "new", 3)?;
        maker.write(large, 11 + round as usize, seed + 1, 3 * BLOCK_SIZE)?;
        maker.act(Action::Copy {
            source: second,
            source_offset: (4 + round) * BLOCK_SIZE as u64,
            target: file,
            target_offset: 8 * BLOCK_SIZE as u64,
            length: 2 * BLOCK_SIZE as u64,
        })?;
        let value = Data { seed: seed + 2, length: 200 };
        maker.act(Action::SetXattr { node: small, name: b"user.note".to_vec(), value, mode: XattrMode::Set })?;
        maker.act(Action::Link { node: small, parent: made, name: b"linked".to_vec() })?;
        maker.act(Action::Rename {
            parent: directory,
            name: b"other".to_vec(),
            new_parent: made,
            new_name: b"moved".to_vec(),
            mode: RenameMode::Replace,
        })?;
        maker.act(Action::Symlink { parent: made, name: b"pointing".to_vec(), target: b"../large".to_vec() })?;
        let gone = format!("file {}", 6 + round);
        maker.act(Action::Unlink { parent: Node::ROOT, name: gone.into_bytes() })?;
        let mode = SpaceMode::Punch;
        let offset = (30 + 3 * round) * BLOCK_SIZE as u64;
        maker.act(Action::Allocate { node: large, offset, length: 2 * BLOCK_SIZE as u64, mode })?;
        let size = Some((68 - 2 * round) * BLOCK_SIZE as u64 - 50);
        maker.act(Action::SetAttr { node: second, set: SetAttr { size, ..SetAttr::default() } })?;
        if round == 1 {
            // The file without a name goes.
            let orphan =
                maker.model.nodes().find(|(_, inode)| inode.nlink == 0 && inode.opens > 0).map(|(node, _)| node);
            let orphan = orphan.ok_or("nothing without a name is open")?;
            maker.act(Action::Release { node: orphan })?;
            maker.act(Action::Forget { node: orphan, count: 1 })?;
        }
        let node = NewNode::Regular;
        maker.act(Action::Mknod { parent: directory, name: name("empty"), node, mode: 0o600 })?;
        maker.write(small, 0, seed + 3, BLOCK_SIZE)?;
        maker.act(Action::Sync { node: small, data_only: false })?;
        maker.write(large, 50 + round as usize, seed + 4, BLOCK_SIZE)?;
        maker.act(Action::Sync { node: large, data_only: round == 1 })
    }

    pub(super) fn make_recovery_point(&mut self) -> Result<(), String> {
        let cache = self.maker.stack.cache.clone();
        let told = |error: holdfast_object::Error| error.to_string();
        match self.script % 3 {
            0 => self.maker.act(Action::SyncAll),
            1 => {
                let info = cache.snapshot_create("struck").map_err(told)?;
                let (model, driver) = (self.maker.model.clone(), self.maker.driver.clone());
                self.snapshots.push(Kept { info, model, driver });
                Ok(())
            }
            _ => {
                cache.snapshot_delete("two").map_err(told)?;
                self.snapshots.remove(1);
                Ok(())
            }
        }
    }

    pub(super) fn is_closed_in_the_end(&self) -> bool {
        self.script >= SCRIPTS / 2
    }
}

/// Reads everything in a stack, and in its snapshots; gives what is wrong, or cannot be read.
pub(super) fn see_all(maker: &Maker, snapshots: &[Kept], stack: &Stack) -> Vec<String> {
    let namespace = stack.namespace(Atime::Never);
    let mut found = Vec::new();
    let live = std::iter::once((SnapshotId::LIVE, &maker.model, &maker.driver));
    for (id, model, driver) in live.chain(snapshots.iter().map(|kept| (kept.info.id, &kept.model, &kept.driver))) {
        let mut seen = walk(&namespace, model, driver, id);
        found.append(&mut seen.errors);
        found.append(&mut seen.wrong);
    }
    let expected: Vec<SnapshotInfo> = snapshots.iter().map(|kept| uncounted(&kept.info)).collect();
    match stack.cache.snapshots() {
        Ok(listed) => {
            let listed: Vec<SnapshotInfo> = listed.iter().map(uncounted).collect();
            if listed != expected {
                found.push(format!("the snapshots are {listed:?}, not {expected:?}"));
            }
        }
        Err(error) => found.push(format!("the snapshots cannot be listed: {error}")),
    }
    found
}

/// Without what only it has, which depends on what was changed since.
fn uncounted(info: &SnapshotInfo) -> SnapshotInfo {
    SnapshotInfo { blocks_only: 0, ..info.clone() }
}
