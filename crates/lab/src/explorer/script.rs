//! Short runs of actions that programs really do, and that recovery has rules for: random actions alone rarely hit them.

use crate::model::{Action, Data, Model, Node};
use holdfast_naming::{NewNode, RenameMode, SetAttr, SpaceMode, XattrMode};
use holdfast_object::{Kind, PAGE_SIZE};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_pcg::Pcg64Mcg;

const PAGE: u64 = PAGE_SIZE as u64;

/// A name with what it refers to.
#[derive(Clone)]
struct Entry {
    parent: Node,
    name: Vec<u8>,
    node: Node,
}

/// The next actions. Some of them may fail by then; the model knows.
pub(super) fn script(model: &Model, rng: &mut Pcg64Mcg) -> Vec<Action> {
    let mut files = Vec::new();
    for (parent, inode) in model.nodes() {
        for (name, &node) in &inode.entries {
            if model.get(node).is_some_and(|child| child.kind == Kind::Regular) {
                files.push(Entry { parent, name: name.clone(), node });
            }
        }
    }
    let (Some(one), Some(other)) = (files.choose(rng).cloned(), files.choose(rng).cloned()) else {
        return vec![new_file(b"first", 0), write(Node(model.created()), 0, 9_000, rng)];
    };
    // What is synced is sometimes the file, sometimes another or a directory, which takes the names along.
    let synced = [one.node, one.node, other.node, Node::ROOT, one.parent];
    let sync = Action::Sync { node: *synced.choose(rng).unwrap_or(&one.node), data_only: rng.random() };
    let fresh = Node(model.created());
    let name = format!("new{}", rng.random_range(0..4)).into_bytes();
    match rng.random_range(0..5) {
        0 => {
            // A file is replaced by a new version of it.
            let Entry { parent, name: new_name, .. } = one;
            let length = rng.random_range(1..12_000);
            let mut actions = vec![new_file(&name, 0), write(fresh, 0, length, rng)];
            if rng.random_bool(0.3) {
                actions.push(Action::Sync { node: fresh, data_only: false });
                actions.push(write(fresh, length as u64 / 2, 100, rng));
            }
            let mode = if rng.random_bool(0.2) { RenameMode::Exchange } else { RenameMode::Replace };
            actions.push(Action::Rename { parent: Node::ROOT, name, new_parent: parent, new_name, mode });
            actions.push(sync);
            actions
        }
        1 => {
            // Blocks are shared, then one side changes.
            let pages = rng.random_range(1..6) * PAGE;
            let target_offset = rng.random_range(0..4) * PAGE;
            let copy =
                Action::Copy { source: one.node, source_offset: 0, target: other.node, target_offset, length: pages };
            let change = write(if rng.random() { one.node } else { other.node }, 10, 5_000, rng);
            let mut actions = vec![copy, sync.clone(), change, sync];
            if rng.random() {
                actions.insert(0, Action::SyncAll);
            }
            actions
        }
        2 => {
            // Extended attributes come and go with the file's own changes.
            let name = b"user.script".to_vec();
            let value = Data { seed: rng.random(), length: rng.random_range(1..5_000) };
            let set = Action::SetXattr { node: one.node, name: name.clone(), value, mode: XattrMode::Set };
            let remove = Action::RemoveXattr { node: one.node, name };
            let unlink = Action::Unlink { parent: one.parent, name: one.name };
            let mut actions = vec![set.clone(), sync.clone(), remove, sync.clone(), set, unlink, sync];
            actions.truncate(rng.random_range(2..=7));
            actions
        }
        3 => {
            // Ids and blocks that are given back are soon used again.
            let forget = Action::Forget { node: one.node, count: 1_000 };
            let unlink = Action::Unlink { parent: one.parent, name: one.name };
            let again = write(fresh, 0, 6_000, rng);
            vec![unlink, forget, Action::SyncAll, new_file(&name, 0), again, sync]
        }
        _ => {
            // Longer, shorter, punched, and each time synced or not.
            let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            let offset = rng.random_range(0..6) * PAGE;
            let mut actions = vec![
                write(one.node, offset, 8_192, rng),
                Action::Allocate { node: one.node, offset, length: 2 * PAGE, mode: SpaceMode::Punch },
                Action::SetAttr { node: one.node, set: size(rng.random_range(0..30_000)) },
                write(one.node, rng.random_range(0..30_000), 300, rng),
            ];
            for _ in 0..2 {
                let at = rng.random_range(0..=actions.len());
                actions.insert(at, sync.clone());
            }
            actions
        }
    }
}

fn new_file(name: &[u8], mode: u16) -> Action {
    Action::Mknod { parent: Node::ROOT, name: name.to_vec(), node: NewNode::Regular, mode }
}

fn write(node: Node, offset: u64, length: usize, rng: &mut Pcg64Mcg) -> Action {
    Action::Write { node, offset, data: Data { seed: rng.random(), length }, clear_set_ids: false }
}
