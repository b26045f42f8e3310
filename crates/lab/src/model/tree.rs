//! The state of the model.

use holdfast_object::{Kind, Timestamp};
use std::collections::BTreeMap;

/// Number of a node; 0 is the root directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Node(pub u32);

impl Node {
    /// The root directory.
    pub const ROOT: Node = Node(0);
}

/// A file, directory, link or device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Inode {
    pub kind: Kind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub nlink: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// Bytes of a file, target of a link.
    pub data: Vec<u8>,
    /// Entries of a directory.
    pub entries: BTreeMap<Vec<u8>, Node>,
    /// The directory above a directory.
    pub parent: Node,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What sessions hold.
    pub lookups: u64,
    pub opens: u64,
}

impl Inode {
    pub(super) fn new(kind: Kind, mode: u16, parent: Node, now: Timestamp) -> Inode {
        Inode {
            kind,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            data: Vec::new(),
            entries: BTreeMap::new(),
            parent,
            xattrs: BTreeMap::new(),
            lookups: 0,
            opens: 0,
        }
    }

    /// Notes a change of contents.
    pub(super) fn changed(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
    }

    /// Notes an access, as mount(8) says under `relatime`.
    pub(super) fn accessed(&mut self, now: Timestamp) {
        if self.atime <= self.mtime || self.atime <= self.ctime || now.secs - self.atime.secs >= 86_400 {
            self.atime = now;
        }
    }
}

/// A tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    pub(super) nodes: BTreeMap<Node, Inode>,
    /// Number of the next node.
    pub(super) next: u32,
}

impl Model {
    /// A root directory of the superuser and nothing in it.
    pub fn new(mode: u16, now: Timestamp) -> Model {
        let root = Inode::new(Kind::Directory, mode, Node::ROOT, now);
        Model { nodes: BTreeMap::from([(Node::ROOT, root)]), next: 1 }
    }

    /// A node that exists, with or without a name.
    pub fn get(&self, node: Node) -> Option<&Inode> {
        self.nodes.get(&node)
    }

    /// All nodes that exist.
    pub fn nodes(&self) -> impl Iterator<Item = (Node, &Inode)> {
        self.nodes.iter().map(|(&node, inode)| (node, inode))
    }

    /// How many nodes there have been.
    pub fn created(&self) -> u32 {
        self.next
    }

    /// An action that had been done was asked for again: nothing changes but that the node it answered with is held once
    /// more.
    pub(super) fn asked_again(&mut self, node: Node) {
        if let Some(inode) = self.nodes.get_mut(&node) {
            inode.lookups += 1;
        }
    }

    /// All sessions end: nothing is held, and what has no name is gone.
    pub fn end_sessions(&mut self) {
        for inode in self.nodes.values_mut() {
            (inode.lookups, inode.opens) = (0, 0);
        }
        self.nodes.retain(|_, inode| inode.nlink > 0);
    }

    /// Asserts what is true of every tree.
    pub fn check(&self) {
        let mut names: BTreeMap<Node, u32> = BTreeMap::new();
        for (node, inode) in &self.nodes {
            for child in inode.entries.values() {
                *names.entry(*child).or_default() += 1;
                let child = &self.nodes[child];
                assert!(child.kind != Kind::Directory || child.parent == *node, "parent of a directory in {node:?}");
            }
        }
        for (node, inode) in &self.nodes {
            let count = names.get(node).copied().unwrap_or(0);
            if inode.kind != Kind::Directory {
                assert_eq!(inode.nlink, count, "links of {node:?}");
            } else if inode.nlink > 0 {
                let is_directory = |child: &&Node| self.nodes[*child].kind == Kind::Directory;
                let below = inode.entries.values().filter(is_directory).count() as u32;
                assert_eq!(inode.nlink, 2 + below, "links of {node:?}");
                assert_eq!(count, u32::from(*node != Node::ROOT), "names of directory {node:?}");
            }
            assert!(inode.nlink > 0 || inode.lookups + inode.opens > 0, "{node:?} is held by nobody");
        }
    }
}
