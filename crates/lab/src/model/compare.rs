//! Comparing a whole name space with a model.

use super::tree::{Inode, Model, Node};
use holdfast_naming::{Error, Namespace, Request};
use holdfast_object::{Attributes, Kind, ObjectId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One difference between what is and what should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Where; names escaped.
    pub path: String,
    /// In what.
    pub what: &'static str,
    /// What the model has.
    pub expected: String,
    /// What the name space has.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: expected {}, got {}", self.path, self.what, self.expected, self.got)
    }
}

struct Walk<'a> {
    namespace: &'a Namespace,
    model: &'a Model,
    /// Which object a node turned out to be, by its first name.
    objects: BTreeMap<Node, ObjectId>,
    nodes: BTreeMap<ObjectId, Node>,
    differences: Vec<Difference>,
}

/// Compares names, attributes, times, contents, targets and extended attributes of everything that has a name. The name
/// space must not note accesses ([`holdfast_naming::Atime::Never`]), or looking changes it.
pub fn compare(namespace: &Namespace, model: &Model) -> Vec<Difference> {
    compare_below(namespace, model, ObjectId::ROOT)
}

/// The same for a tree whose root is this directory.
pub fn compare_below(namespace: &Namespace, model: &Model, root: ObjectId) -> Vec<Difference> {
    let mut walk = Walk { namespace, model, objects: BTreeMap::new(), nodes: BTreeMap::new(), differences: Vec::new() };
    walk.node("", Node::ROOT, root);
    walk.differences
}

impl Walk<'_> {
    fn differs(&mut self, path: &str, what: &'static str, expected: impl fmt::Display, got: impl fmt::Display) {
        let path = if path.is_empty() { "/" } else { path };
        let (expected, got) = (expected.to_string(), got.to_string());
        self.differences.push(Difference { path: path.into(), what, expected, got });
    }

    fn same<T: PartialEq + fmt::Debug>(&mut self, path: &str, what: &'static str, expected: T, got: T) {
        if expected != got {
            self.differs(path, what, format!("{expected:?}"), format!("{got:?}"));
        }
    }

    fn node(&mut self, path: &str, node: Node, object: ObjectId) {
        let known = (self.objects.insert(node, object), self.nodes.insert(object, node));
        if known != (None, None) {
            // Another name of something seen before: the same on both sides?
            return self.same(path, "hard link", known, (Some(object), Some(node)));
        }
        let Some(inode) = self.model.get(node) else {
            return self.differs(path, "model", "a node", "none");
        };
        let attributes = match self.namespace.getattr(object) {
            Ok(attributes) => attributes,
            Err(error) => return self.differs(path, "attributes", "some", error),
        };
        self.attributes(path, inode, &attributes);
        self.xattrs(path, inode, object);
        match inode.kind {
            Kind::Directory => self.directory(path, inode, object),
            Kind::Regular => {
                let bytes = self.contents(object, attributes.size);
                self.bytes(path, "contents", &inode.data, bytes);
            }
            Kind::Symlink => {
                let target = self.namespace.readlink(object);
                self.bytes(path, "target", &inode.data, target);
            }
            _ => {}
        }
    }

    /// Read in pieces: a file that only a snapshot has may be larger than the memory of a later run.
    fn contents(&self, object: ObjectId, size: u64) -> Result<Vec<u8>, Error> {
        const PIECE: usize = 1 << 16;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let piece = self.namespace.read(object, bytes.len() as u64, PIECE)?.to_vec();
            if piece.is_empty() {
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    fn attributes(&mut self, path: &str, inode: &Inode, got: &Attributes) {
        self.same(path, "kind", inode.kind, got.kind);
        self.same(path, "mode", format!("{:o}", inode.mode), format!("{:o}", got.mode));
        self.same(path, "owner", (inode.uid, inode.gid), (got.uid, got.gid));
        self.same(path, "links", inode.nlink, got.nlink);
        self.same(path, "device number", inode.rdev, got.rdev);
        if inode.kind == Kind::Directory {
            self.same(path, "number of entries", inode.entries.len() as u64, got.entries);
        } else {
            self.same(path, "size", inode.data.len() as u64, got.size);
        }
        self.same(path, "atime", inode.atime, got.atime);
        self.same(path, "mtime", inode.mtime, got.mtime);
        self.same(path, "ctime", inode.ctime, got.ctime);
        self.same(path, "btime", inode.btime, got.btime);
    }

    fn directory(&mut self, path: &str, inode: &Inode, object: ObjectId) {
        let entries = match self.namespace.entries(&Request::ROOT, object) {
            Ok(entries) => entries,
            Err(error) => return self.differs(path, "entries", format!("{} of them", inode.entries.len()), error),
        };
        let got: BTreeMap<&[u8], (ObjectId, Kind)> =
            entries.iter().map(|(name, object, kind)| (&name[..], (*object, *kind))).collect();
        if got.len() != entries.len() {
            self.differs(path, "entries", "each name once", "a name twice");
        }
        let names: BTreeSet<&[u8]> = inode.entries.keys().map(Vec::as_slice).chain(got.keys().copied()).collect();
        for name in names {
            let below = format!("{path}/{}", name.escape_ascii());
            match (inode.entries.get(name), got.get(name)) {
                (Some(node), Some((object, kind))) => {
                    let expected = self.model.get(*node).map(|inode| inode.kind);
                    self.same(&below, "kind of the entry", expected, Some(*kind));
                    self.node(&below, *node, *object);
                }
                (Some(_), None) => self.differs(&below, "name", "there", "not there"),
                (None, Some(_)) => self.differs(&below, "name", "not there", "there"),
                (None, None) => {}
            }
        }
    }

    fn xattrs(&mut self, path: &str, inode: &Inode, object: ObjectId) {
        let names = match self.namespace.listxattr(&Request::ROOT, object) {
            Ok(names) => names,
            Err(error) => return self.differs(path, "extended attributes", "readable", error),
        };
        let got: BTreeSet<Vec<u8>> = names.into_iter().collect();
        let expected: BTreeSet<Vec<u8>> = inode.xattrs.keys().cloned().collect();
        self.same(path, "names of extended attributes", &expected, &got);
        for (name, value) in &inode.xattrs {
            let got = self.namespace.getxattr(&Request::ROOT, object, name);
            self.bytes(&format!("{path} ({})", name.escape_ascii()), "value", value, got);
        }
    }

    fn bytes(&mut self, path: &str, what: &'static str, expected: &[u8], got: holdfast_naming::Result<Vec<u8>>) {
        let got = match got {
            Ok(got) => got,
            Err(error) => return self.differs(path, what, format!("{} bytes", expected.len()), error),
        };
        if got == expected {
            return;
        }
        let at = expected.iter().zip(&got).take_while(|(expected, got)| expected == got).count();
        let show = |bytes: &[u8]| match bytes.get(at) {
            Some(byte) => format!("{byte:#04x} at byte {at} of {}", bytes.len()),
            None => format!("the end at byte {at}"),
        };
        self.differs(path, what, show(expected), show(&got));
    }
}
