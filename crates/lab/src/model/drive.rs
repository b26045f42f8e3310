//! Doing actions to a real name space.

use super::action::{Action, Reply};
use super::tree::{Model, Node};
use holdfast_naming::{Access, Create, ErrorKind, Namespace, Position, Request};
use holdfast_object::{Durability, ObjectId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A name space with the objects that the model's nodes are.
#[derive(Clone)]
pub struct Driver {
    namespace: Arc<Namespace>,
    objects: BTreeMap<Node, ObjectId>,
    nodes: BTreeMap<ObjectId, Node>,
    next: u32,
}

impl Driver {
    /// Starts with an empty name space, whose root is there.
    pub fn new(namespace: Arc<Namespace>) -> Driver {
        Driver::below(namespace, ObjectId::ROOT)
    }

    /// Starts with an empty directory of a name space as root.
    pub fn below(namespace: Arc<Namespace>, root: ObjectId) -> Driver {
        Driver {
            namespace,
            objects: BTreeMap::from([(Node::ROOT, root)]),
            nodes: BTreeMap::from([(root, Node::ROOT)]),
            next: 1,
        }
    }

    /// Forgets the objects of nodes that are gone: after a restart their ids are used again.
    pub fn forget_gone(&mut self, model: &Model) {
        self.objects.retain(|node, _| model.get(*node).is_some());
        self.nodes.retain(|_, node| model.get(*node).is_some());
    }

    /// The name space.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Goes on with another name space on the same objects.
    pub fn replace_namespace(&mut self, namespace: Arc<Namespace>) {
        self.namespace = namespace;
    }

    /// The object that a node is.
    pub fn object(&self, node: Node) -> Option<ObjectId> {
        self.objects.get(&node).copied()
    }

    /// Does one action. Errors that no tree can give are passed on as they are.
    pub fn apply(&mut self, action: &Action) -> Result<Reply, holdfast_naming::Error> {
        self.apply_as(&Request::ROOT, action)
    }

    /// Does one action under a request's identity.
    pub fn apply_as(&mut self, request: &Request, action: &Action) -> Result<Reply, holdfast_naming::Error> {
        let space = self.namespace.clone();
        let id = |node: &Node| self.objects.get(node).copied().unwrap_or(ObjectId::MAX);
        let reply = match action {
            Action::Create { parent, name, mode, exclusive, truncate } => {
                let how = Create {
                    mode: *mode,
                    exclusive: *exclusive,
                    wanted: Access::READ.and(Access::WRITE),
                    truncate: *truncate,
                };
                let created = space.create(request, id(parent), name, &how)?;
                self.known(created.found.id)
            }
            Action::Mknod { parent, name, node, mode } => {
                let found = space.mknod(request, id(parent), name, *node, *mode)?;
                self.known(found.id)
            }
            Action::Mkdir { parent, name, mode } => {
                let found = space.mkdir(request, id(parent), name, *mode)?;
                self.known(found.id)
            }
            Action::Symlink { parent, name, target } => {
                let found = space.symlink(request, id(parent), name, target)?;
                self.known(found.id)
            }
            Action::Link { node, parent, name } => {
                let found = space.link(request, id(node), id(parent), name)?;
                self.known(found.id)
            }
            Action::Unlink { parent, name } => done(space.unlink(request, id(parent), name))?,
            Action::Rmdir { parent, name } => done(space.rmdir(request, id(parent), name))?,
            Action::Rename { parent, name, new_parent, new_name, mode } => {
                done(space.rename(request, id(parent), name, id(new_parent), new_name, *mode))?
            }
            Action::Lookup { parent, name } => {
                let found = space.lookup(request, id(parent), name)?;
                self.known(found.id)
            }
            Action::Forget { node, count } => done(space.forget(id(node), *count))?,
            Action::Open { node, truncate } => done(space.open(request, id(node), Access::READ, *truncate))?,
            Action::Release { node } => done(space.release(id(node)))?,
            Action::Read { node, offset, length } => Reply::Bytes(space.read(id(node), *offset, *length)?.to_vec()),
            Action::Write { node, offset, data, clear_set_ids } => {
                Reply::Count(space.write(request, id(node), *offset, &data.bytes(), *clear_set_ids)? as u64)
            }
            Action::Allocate { node, offset, length, mode } => {
                done(space.allocate(request, id(node), *offset, *length, *mode, false))?
            }
            Action::Copy { source, source_offset, target, target_offset, length } => {
                let source = Position { id: id(source), offset: *source_offset };
                let target = Position { id: id(target), offset: *target_offset };
                Reply::Count(space.copy_range(request, source, target, *length, false)?)
            }
            Action::SetAttr { node, set } => done(space.setattr(request, id(node), set).map(drop))?,
            Action::Readlink { node } => Reply::Bytes(space.readlink(id(node))?),
            Action::ReadDir { node } => {
                let mut names = Vec::new();
                space.readdir(id(node), 0, |entry| {
                    if !matches!(entry.name, b"." | b"..") {
                        names.push(entry.name.to_vec());
                    }
                    true
                })?;
                names.sort();
                Reply::Names(names)
            }
            Action::SetXattr { node, name, value, mode } => {
                done(space.setxattr(request, id(node), name, &value.bytes(), *mode))?
            }
            Action::GetXattr { node, name } => Reply::Bytes(space.getxattr(request, id(node), name)?),
            Action::RemoveXattr { node, name } => done(space.removexattr(request, id(node), name))?,
            Action::ListXattr { node } => {
                let mut names = space.listxattr(request, id(node))?;
                names.sort();
                Reply::Names(names)
            }
            Action::Sync { node, data_only } => {
                let durability = if *data_only { Durability::Data } else { Durability::All };
                done(space.sync(id(node), durability))?
            }
            Action::SyncAll => done(space.sync_all().map(drop))?,
        };
        Ok(reply)
    }

    /// The answer without the place of an error, to compare with the model's.
    pub fn reply(&mut self, action: &Action) -> Result<Reply, ErrorKind> {
        self.apply(action).map_err(|error| error.kind())
    }

    /// The node of an object that an action answered with. Nodes are numbered in order of creation, so an object not seen
    /// before is the next.
    fn known(&mut self, object: ObjectId) -> Reply {
        let node = *self.nodes.entry(object).or_insert_with(|| {
            let node = Node(self.next);
            self.next += 1;
            self.objects.insert(node, object);
            node
        });
        Reply::Node(node)
    }
}

fn done(result: Result<(), holdfast_naming::Error>) -> Result<Reply, holdfast_naming::Error> {
    result.map(|()| Reply::Done)
}
