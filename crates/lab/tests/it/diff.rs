//! What snapshots say has changed, against what changed in the model: random actions, every pair of snapshots.
//!
//! `HOLDFAST_SEED=n cargo test -p holdfast-lab --test it diff` replays one seed.

use super::number;
use holdfast_block::MemoryDevice;
use holdfast_lab::model::{Driver, Generator, Inode, Model, Node, Profile};
use holdfast_lab::stack::{self, Stack, StackOptions};
use holdfast_naming::{Atime, ErrorKind, PathChange};
use holdfast_object::{Clock, ObjectCache, SnapshotId, Snapshots};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Entry = (Node, Vec<u8>);

/// Every entry of a tree, with its node and its path.
fn entries(model: &Model) -> BTreeMap<Entry, (Node, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![(Node::ROOT, Vec::new())];
    while let Some((directory, above)) = waiting.pop() {
        for (name, &node) in &model.get(directory).unwrap().entries {
            let path = if above.is_empty() { name.clone() } else { [&above[..], b"/", name].concat() };
            if !model.get(node).unwrap().entries.is_empty() {
                waiting.push((node, path.clone()));
            }
            found.insert((directory, name.clone()), (node, path));
        }
    }
    found
}

/// What counts as a change of a node itself. A name that comes or goes changes its number of names, its parent and its ctime.
fn attributes(inode: &Inode, is_renamed: bool) -> Inode {
    let ctime = if is_renamed { inode.mtime } else { inode.ctime };
    Inode { atime: inode.mtime, ctime, nlink: 0, parent: Node::ROOT, lookups: 0, opens: 0, ..inode.clone() }
}

fn compare(before: &Model, after: &Model, changes: &[PathChange]) {
    let [old, new] = [before, after].map(entries);
    let node_at = |entries: &BTreeMap<Entry, (Node, Vec<u8>)>, path: &[u8]| {
        entries.values().find(|(_, at)| at == path).map(|(node, _)| *node)
    };
    let only = |mine: &BTreeMap<Entry, (Node, Vec<u8>)>, other: &BTreeMap<Entry, (Node, Vec<u8>)>| {
        let differs = |(entry, (node, _)): &(&Entry, &(Node, Vec<u8>))| other.get(*entry).map(|it| it.0) != Some(*node);
        mine.iter().filter(differs).map(|(_, (node, path))| (path.clone(), *node)).collect::<Vec<_>>()
    };
    let (gone, come) = (only(&old, &new), only(&new, &old));
    let sorted = |mut paths: Vec<Vec<u8>>| {
        paths.sort_unstable();
        paths
    };
    let (mut lost, mut won, mut renamed) = (Vec::new(), Vec::new(), BTreeMap::new());
    let (mut modified, mut touched) = (BTreeSet::new(), BTreeSet::new());
    let is_added =
        |path: &[u8]| changes.iter().any(|change| matches!(change, PathChange::Added(other) if other == path));
    for change in changes {
        match change.clone() {
            PathChange::Removed(path) => lost.push(path),
            PathChange::Added(path) => won.push(path),
            PathChange::Renamed(path, to) => {
                let node = node_at(&old, &path);
                assert_eq!(node, node_at(&new, &to), "{change:?} is of one node");
                *renamed.entry(node.unwrap()).or_insert(0) += 1;
                lost.push(path);
                won.push(to);
            }
            PathChange::Modified(ref path) | PathChange::Attributes(ref path) => {
                let node = if path.is_empty() { Some(Node::ROOT) } else { node_at(&new, path) };
                let node = node.unwrap_or_else(|| panic!("{change:?} is of nothing"));
                let is_other = !modified.contains(&node) && !touched.contains(&node);
                assert!(is_other, "{change:?} once");
                assert!(!is_added(path), "{change:?} by a name that is new itself");
                if matches!(change, PathChange::Modified(_)) {
                    modified.insert(node)
                } else {
                    touched.insert(node)
                };
            }
        }
    }
    assert_eq!(sorted(lost), sorted(gone.iter().map(|(path, _)| path.clone()).collect()));
    assert_eq!(sorted(won), sorted(come.iter().map(|(path, _)| path.clone()).collect()));
    let count = |all: &[(Vec<u8>, Node)], node| all.iter().filter(|(_, other)| *other == node).count();
    for (_, node) in &gone {
        let most = count(&gone, *node).min(count(&come, *node));
        assert_eq!(renamed.get(node).copied().unwrap_or(0), most, "renames of {node:?}");
    }
    // What had no name has one that is new.
    let named = |(node, inode): &(Node, &Inode)| inode.nlink > 0 && before.get(*node).is_some_and(|was| was.nlink > 0);
    for (node, inode) in after.nodes().filter(named) {
        let was = before.get(node).unwrap();
        let is_renamed = gone.iter().chain(&come).any(|(_, other)| *other == node);
        let differs = attributes(inode, is_renamed) != attributes(was, is_renamed);
        let told = [modified.contains(&node), touched.contains(&node)];
        assert_eq!(told.contains(&true), differs, "{node:?}: {was:?}, then {inode:?}");
        // Bytes written anew count as other ones, also if they are the same: the time of the write is another one.
        let has_other_bytes = inode.data != was.data || inode.entries != was.entries;
        assert!(!has_other_bytes || modified.contains(&node), "{node:?}: {was:?}, then {inode:?}");
        assert!(
            !modified.contains(&node) || has_other_bytes || inode.mtime != was.mtime,
            "{node:?}: {was:?}, then {inode:?}"
        );
    }
}

#[test]
fn what_changed_is_told_between_all_snapshots() {
    let first = number("HOLDFAST_SEED", 1);
    let runs = number("HOLDFAST_RUNS", 12);
    for seed in first..first + runs {
        println!("seed {seed}; again: HOLDFAST_SEED={seed} HOLDFAST_RUNS=1 cargo test -p holdfast-lab --test it diff");
        let device = Arc::new(MemoryDevice::new(8192));
        let clock = stack::clock();
        stack::create(device.clone(), &clock).unwrap();
        let stack = Stack::open(device, &StackOptions::new(1024), &clock).unwrap();
        let names = stack.namespace(Atime::Relative);
        let mut driver = Driver::new(names.clone());
        let mut model = Model::new(0o755, clock.now());
        // Half of them with directories of many pages.
        let wide = if seed % 2 == 0 { 400 } else { 40 };
        let profile = Profile { nodes: wide, names: wide as u32 / 2, file_bytes: 30_000, ..Profile::default() };
        let mut generator = Generator::new(seed, profile);
        let mut kept = Vec::new();
        for step in 0..5 * wide {
            clock.advance_ns(1_000_003);
            let action = generator.next(&model);
            let got = driver.reply(&action);
            if got == Err(ErrorKind::NoSpace) {
                continue;
            }
            assert_eq!(got, model.apply(&action, clock.now()), "{action:?}");
            driver.forget_gone(&model);
            if step % wide == wide - 1 {
                let made = stack.cache.snapshot_create(&format!("{step}")).unwrap();
                kept.push((made.id, model.clone()));
            }
        }
        // And with now.
        ObjectCache::sync_all(&*stack.cache).unwrap();
        kept.push((SnapshotId::LIVE, model));
        for (from, before) in &kept {
            for (to, after) in &kept {
                compare(before, after, &names.diff(*from, *to).unwrap());
            }
        }
    }
}
