//! What can be done to a tree, and what it answers.

use super::tree::Node;
use holdfast_naming::{NewNode, RenameMode, SetAttr, SpaceMode, XattrMode};
use rand::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Bytes by seed, so that an action is short to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    /// Of the generator.
    pub seed: u64,
    /// In bytes.
    pub length: usize,
}

impl Data {
    /// The bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        Pcg64Mcg::seed_from_u64(self.seed).fill_bytes(&mut bytes);
        bytes
    }
}

/// One request. All by the superuser.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as the requests of a name space are")]
pub enum Action {
    Create { parent: Node, name: Vec<u8>, mode: u16, exclusive: bool, truncate: bool },
    Mknod { parent: Node, name: Vec<u8>, node: NewNode, mode: u16 },
    Mkdir { parent: Node, name: Vec<u8>, mode: u16 },
    Symlink { parent: Node, name: Vec<u8>, target: Vec<u8> },
    Link { node: Node, parent: Node, name: Vec<u8> },
    Unlink { parent: Node, name: Vec<u8> },
    Rmdir { parent: Node, name: Vec<u8> },
    Rename { parent: Node, name: Vec<u8>, new_parent: Node, new_name: Vec<u8>, mode: RenameMode },
    Lookup { parent: Node, name: Vec<u8> },
    Forget { node: Node, count: u64 },
    Open { node: Node, truncate: bool },
    Release { node: Node },
    Read { node: Node, offset: u64, length: usize },
    Write { node: Node, offset: u64, data: Data, clear_set_ids: bool },
    Allocate { node: Node, offset: u64, length: u64, mode: SpaceMode },
    Copy { source: Node, source_offset: u64, target: Node, target_offset: u64, length: u64 },
    SetAttr { node: Node, set: SetAttr },
    Readlink { node: Node },
    ReadDir { node: Node },
    SetXattr { node: Node, name: Vec<u8>, value: Data, mode: XattrMode },
    GetXattr { node: Node, name: Vec<u8> },
    RemoveXattr { node: Node, name: Vec<u8> },
    ListXattr { node: Node },
    Sync { node: Node, data_only: bool },
    SyncAll,
}

/// The answer to an action that was done.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Reply {
    Done,
    Node(Node),
    Bytes(Vec<u8>),
    Count(u64),
    /// In ascending order.
    Names(Vec<Vec<u8>>),
}
