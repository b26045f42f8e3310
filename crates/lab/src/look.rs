//! Reading everything in a store that may be damaged, and telling errors, which must have a place, from what must never be.

use crate::model::{Driver, Inode, Model, Node};
use holdfast_block::BLOCK_SIZE;
use holdfast_naming::{Namespace, Request};
use holdfast_object::{Kind, ObjectId, SnapshotId};

/// What was met on a way through the store.
#[derive(Default)]
pub(crate) struct Seen {
    /// Errors with a place, in words.
    pub(crate) errors: Vec<String>,
    /// Changes were refused.
    pub(crate) read_only: bool,
    /// What must never be: wrong bytes, errors without a place.
    pub(crate) wrong: Vec<String>,
}

impl Seen {
    pub(crate) fn error(&mut self, what: &str, error: &holdfast_naming::Error) {
        use holdfast_naming::Error;
        use holdfast_object::Error as Below;
        let placed = match error {
            Error::Object(Below::Corrupt(corruption)) => {
                corruption.place.object.is_some() || corruption.place.address.is_some()
            }
            Error::Object(Below::Lost(place)) => place.object.is_some(),
            Error::Object(Below::Device(fault)) => fault.address.is_some(),
            // It is the device as a whole.
            Error::Object(Below::NoStore(_)) => true,
            Error::Object(Below::ReadOnly(_)) => {
                self.read_only = true;
                return;
            }
            Error::CorruptDirectory { .. } | Error::CorruptAttributes { .. } | Error::CorruptTree { .. } => true,
            _ => false,
        };
        if placed {
            self.errors.push(error.to_string());
        } else {
            self.wrong.push(format!("{what}: error without a place: {error}"));
        }
    }

    /// An error that was met at an object: told with its path, as the FUSE layer does.
    fn error_of(&mut self, namespace: &Namespace, id: ObjectId, what: &str, error: &holdfast_naming::Error) {
        let before = self.errors.len();
        self.error(what, error);
        if let Some(told) = self.errors.get_mut(before) {
            *told = format!("{}: {told}", namespace.path_of(id).escape_ascii());
        }
    }
}

/// Reads everything that has a name, now or in a snapshot, and compares it with the model.
pub(crate) fn walk(namespace: &Namespace, model: &Model, driver: &Driver, snapshot: SnapshotId) -> Seen {
    let mut seen = Seen::default();
    for (node, inode) in model.nodes().filter(|(_, inode)| inode.nlink > 0) {
        let Some(id) = driver.object(node).map(|id| id.in_snapshot(snapshot)) else {
            seen.wrong.push(format!("{node:?} has no object"));
            continue;
        };
        let attributes = match namespace.getattr(id) {
            Ok(attributes) => attributes,
            Err(error) => {
                seen.error_of(namespace, id, &format!("attributes of {node:?}"), &error);
                continue;
            }
        };
        let size = if inode.kind == Kind::Directory { attributes.size } else { inode.data.len() as u64 };
        let got = (attributes.kind, attributes.mode, attributes.nlink, attributes.size, attributes.mtime);
        if got != (inode.kind, inode.mode, inode.nlink, size, inode.mtime) {
            seen.wrong.push(format!("attributes of {node:?} ({id}): {got:?}"));
        }
        contents(namespace, driver, node, inode, id, &mut seen);
        for (name, value) in &inode.xattrs {
            match namespace.getxattr(&Request::ROOT, id, name) {
                Ok(got) if got == *value => {}
                Ok(_) => seen.wrong.push(format!("extended attribute of {node:?}")),
                Err(error) => seen.error_of(namespace, id, &format!("extended attribute of {node:?}"), &error),
            }
        }
    }
    seen
}

fn contents(namespace: &Namespace, driver: &Driver, node: Node, inode: &Inode, id: ObjectId, seen: &mut Seen) {
    match inode.kind {
        Kind::Regular => {
            for (index, page) in inode.data.chunks(BLOCK_SIZE).enumerate() {
                match namespace.read(id, (index * BLOCK_SIZE) as u64, BLOCK_SIZE) {
                    Ok(got) if got.to_vec() == page => {}
                    Ok(_) => seen.wrong.push(format!("wrong bytes in page {index} of {node:?} ({id})")),
                    Err(error) => seen.error_of(namespace, id, &format!("page {index} of {node:?}"), &error),
                }
            }
        }
        Kind::Directory => match namespace.entries(&Request::ROOT, id) {
            Ok(entries) => {
                let got = entries.into_iter().map(|(name, object, _)| (name, Some(object)));
                let here = |node| driver.object(node).map(|object| object.in_snapshot(id.snapshot()));
                let expected = inode.entries.iter().map(|(name, node)| (name.clone(), here(*node)));
                let mut differences: Vec<_> = got.collect();
                let mut expected: Vec<_> = expected.collect();
                differences.sort();
                expected.sort();
                if differences != expected {
                    seen.wrong.push(format!("entries of {node:?} ({id})"));
                }
            }
            Err(error) => seen.error_of(namespace, id, &format!("entries of {node:?}"), &error),
        },
        Kind::Symlink => match namespace.readlink(id) {
            Ok(got) if got == inode.data => {}
            Ok(_) => seen.wrong.push(format!("target of {node:?} ({id})")),
            Err(error) => seen.error_of(namespace, id, &format!("target of {node:?}"), &error),
        },
        _ => {}
    }
}
