//! Random actions by seed. They look at the model, so that most of them can be done and some of them cannot.

use super::action::{Action, Data};
use super::tree::{Inode, Model, Node};
use holdfast_naming::{NewNode, RenameMode, SetAttr, SpaceMode, TimeSet, XattrMode};
use holdfast_object::{Kind, Timestamp};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// How large things get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Nodes in the tree, about.
    pub nodes: usize,
    /// Different names.
    pub names: u32,
    /// Largest file, in bytes, about.
    pub file_bytes: u64,
    /// Share of actions that sync, in percent.
    pub sync_percent: u32,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile { nodes: 30, names: 12, file_bytes: 40_000, sync_percent: 3 }
    }
}

/// Makes actions; the same seed and the same models give the same actions.
#[derive(Clone, Debug)]
pub struct Generator {
    random: Pcg64Mcg,
    profile: Profile,
}

impl Generator {
    /// A generator of its own.
    pub fn new(seed: u64, profile: Profile) -> Generator {
        Generator { random: Pcg64Mcg::seed_from_u64(seed), profile }
    }

    /// The next action for a tree in this state.
    pub fn next(&mut self, model: &Model) -> Action {
        if self.chance(self.profile.sync_percent) {
            return match self.random.random_range(0..4) {
                0 => Action::SyncAll,
                kind => Action::Sync { node: self.node(model, |_| true), data_only: kind == 1 },
            };
        }
        let full = model.nodes.len() > self.profile.nodes;
        match self.random.random_range(0..100) {
            0..22 if !full => self.addition(model),
            0..35 => self.removal(model),
            35..48 => self.rename(model),
            48..75 => self.contents(model),
            75..83 => self.set_attributes(model),
            83..91 => self.xattr(model),
            _ => self.look(model),
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    /// A node that fits, most of the time.
    fn node(&mut self, model: &Model, fits: impl Fn(&Inode) -> bool) -> Node {
        if self.chance(2) {
            // One that may be gone.
            return Node(self.random.random_range(0..model.next));
        }
        let any = self.chance(3);
        // What has lost its name and is still held is worth a look now and then.
        let unnamed = self.chance(8);
        let fits = |inode: &Inode| (unnamed || inode.nlink > 0) && (any || fits(inode));
        let nodes: Vec<Node> = model.nodes.iter().filter(|(_, inode)| fits(inode)).map(|(&node, _)| node).collect();
        nodes.choose(&mut self.random).copied().unwrap_or(Node::ROOT)
    }

    /// A node that sessions hold, with or without a name.
    fn held(&mut self, model: &Model, count: impl Fn(&Inode) -> u64) -> Node {
        let nodes: Vec<Node> =
            model.nodes.iter().filter(|(_, inode)| count(inode) > 0).map(|(&node, _)| node).collect();
        nodes.choose(&mut self.random).copied().unwrap_or(Node::ROOT)
    }

    fn directory(&mut self, model: &Model) -> Node {
        if self.chance(30) { Node::ROOT } else { self.node(model, |inode| inode.kind == Kind::Directory) }
    }

    fn regular(&mut self, model: &Model) -> Node {
        self.node(model, |inode| inode.kind == Kind::Regular)
    }

    fn name(&mut self) -> Vec<u8> {
        if self.chance(1) {
            let odd = [&b""[..], b".", b"..", b"a/b", b"nul\0", &[b'l'; 256], &[b'm'; 255], b"\xff\xfe"];
            return odd.choose(&mut self.random).copied().unwrap_or(b"x").to_vec();
        }
        let number = self.random.random_range(0..self.profile.names);
        let mut name = format!("n{number}").into_bytes();
        if number % 5 == 0 {
            // Long names make directories of several pages.
            name.resize(240, b'.');
        }
        name
    }

    /// A name that is there, most of the time.
    fn entry(&mut self, model: &Model) -> (Node, Vec<u8>) {
        let filled = |inode: &Inode| inode.kind == Kind::Directory && !inode.entries.is_empty();
        let parent = self.node(model, filled);
        let names: Vec<&Vec<u8>> =
            model.nodes.get(&parent).into_iter().flat_map(|inode| inode.entries.keys()).collect();
        match names.choose(&mut self.random) {
            Some(name) if !self.chance(10) => (parent, (*name).clone()),
            _ => (parent, self.name()),
        }
    }

    fn mode(&mut self) -> u16 {
        if self.chance(20) { self.random.random_range(0..0o10000) } else { 0o755 }
    }

    fn addition(&mut self, model: &Model) -> Action {
        let (parent, name) = (self.directory(model), self.name());
        let mode = self.mode();
        match self.random.random_range(0..20) {
            0..9 => Action::Create { parent, name, mode, exclusive: self.chance(30), truncate: self.chance(20) },
            9..14 => Action::Mkdir { parent, name, mode },
            14 => {
                let length = if self.chance(5) { self.random.random_range(0..4200) } else { 40 };
                Action::Symlink { parent, name, target: vec![b't'; length] }
            }
            15 => {
                let rdev = self.random.random();
                let nodes = [
                    NewNode::Regular,
                    NewNode::Fifo,
                    NewNode::Socket,
                    NewNode::CharDevice(rdev),
                    NewNode::BlockDevice(rdev),
                ];
                let node = nodes.choose(&mut self.random).copied().unwrap_or(NewNode::Fifo);
                Action::Mknod { parent, name, node, mode }
            }
            _ => {
                let node = self.node(model, |inode| inode.kind != Kind::Directory);
                Action::Link { node, parent, name }
            }
        }
    }

    fn removal(&mut self, model: &Model) -> Action {
        let (parent, name) = self.entry(model);
        let node = model.nodes.get(&parent).and_then(|inode| inode.entries.get(&name));
        let is_directory = node.is_some_and(|node| model.nodes[node].kind == Kind::Directory);
        if is_directory != self.chance(5) { Action::Rmdir { parent, name } } else { Action::Unlink { parent, name } }
    }

    fn rename(&mut self, model: &Model) -> Action {
        let (parent, name) = self.entry(model);
        let (new_parent, new_name) =
            if self.chance(50) { self.entry(model) } else { (self.directory(model), self.name()) };
        let mode = match self.random.random_range(0..10) {
            0 => RenameMode::NoReplace,
            1 | 2 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        Action::Rename { parent, name, new_parent, new_name, mode }
    }

    /// A position, often at or near the border of a page.
    fn offset(&mut self) -> u64 {
        let offset = self.random.random_range(0..self.profile.file_bytes);
        match self.random.random_range(0..10) {
            0..4 => offset / 4096 * 4096,
            4 => (offset / 4096 * 4096).saturating_sub(1),
            5 => 0,
            _ => offset,
        }
    }

    fn length(&mut self) -> u64 {
        match self.random.random_range(0..10) {
            0..3 => 4096 * self.random.random_range(1..4),
            3 => self.random.random_range(0..3 * self.profile.file_bytes / 4),
            _ => self.random.random_range(0..6000),
        }
    }

    fn contents(&mut self, model: &Model) -> Action {
        let node = self.regular(model);
        let (offset, length) = (self.offset(), self.length());
        match self.random.random_range(0..20) {
            0..9 => {
                let data = Data { seed: self.random.random(), length: length as usize };
                Action::Write { node, offset, data, clear_set_ids: self.chance(50) }
            }
            9..12 => Action::SetAttr { node, set: SetAttr { size: Some(offset), ..SetAttr::default() } },
            12 | 13 => {
                let keep_size = self.chance(50);
                let modes = [SpaceMode::Punch, SpaceMode::Zero { keep_size }, SpaceMode::Allocate { keep_size }];
                let mode = modes.choose(&mut self.random).copied().unwrap_or(SpaceMode::Punch);
                Action::Allocate { node, offset, length, mode }
            }
            14..17 => {
                let (target, target_offset) = (self.regular(model), self.offset());
                Action::Copy { source: node, source_offset: offset, target, target_offset, length }
            }
            _ => Action::Read { node, offset, length: length as usize },
        }
    }

    fn time(&mut self) -> TimeSet {
        if self.chance(30) {
            return TimeSet::Now;
        }
        let (secs, nanos) =
            (self.random.random_range(-1000..4_000_000_000), self.random.random_range(0..1_000_000_000));
        TimeSet::At(Timestamp { secs, nanos })
    }

    fn set_attributes(&mut self, model: &Model) -> Action {
        let node = self.node(model, |_| true);
        let mut set = SetAttr::default();
        match self.random.random_range(0..4) {
            0 => set.mode = Some(self.random.random_range(0..0o10000)),
            1 => (set.uid, set.gid) = (Some(self.random.random_range(0..5)), Some(self.random.random_range(0..5))),
            2 => (set.atime, set.mtime) = (Some(self.time()), Some(self.time())),
            _ => set.atime = Some(self.time()),
        }
        Action::SetAttr { node, set }
    }

    fn xattr(&mut self, model: &Model) -> Action {
        let node = self.node(model, |_| true);
        let number = self.random.random_range(0..4);
        let class = if self.chance(80) { "user" } else { "trusted" };
        let name = format!("{class}.attribute{number}").into_bytes();
        match self.random.random_range(0..10) {
            0..6 => {
                let length = if self.chance(10) { self.random.random_range(0..66_000) } else { 20 };
                let value = Data { seed: self.random.random(), length };
                let modes = [XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace];
                let mode = modes.choose(&mut self.random).copied().unwrap_or(XattrMode::Set);
                Action::SetXattr { node, name, value, mode }
            }
            6 | 7 => Action::RemoveXattr { node, name },
            8 => Action::GetXattr { node, name },
            _ => Action::ListXattr { node },
        }
    }

    fn look(&mut self, model: &Model) -> Action {
        match self.random.random_range(0..10) {
            0 | 1 => {
                let (parent, name) = self.entry(model);
                Action::Lookup { parent, name }
            }
            2 => Action::Open { node: self.node(model, |_| true), truncate: self.chance(30) },
            3 | 4 => Action::Release { node: self.held(model, |inode| inode.opens) },
            5 | 6 => {
                let node = self.held(model, |inode| inode.lookups);
                let all = model.nodes.get(&node).map_or(1, |inode| inode.lookups);
                Action::Forget { node, count: if self.chance(60) { all } else { 1 } }
            }
            7 => Action::Readlink { node: self.node(model, |inode| inode.kind == Kind::Symlink) },
            _ => Action::ReadDir { node: self.directory(model) },
        }
    }
}
