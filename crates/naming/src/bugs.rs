//! Logic bugs on purpose: a transaction that says something else than its request meant. Nothing calls this but tests, the lab, and a mount made
//! for it (`holdfast mount --lab`).
//!
//! What is wrong is what a mistake in the requests would leave in their operations: all checksums are right, and the audit has to find it.

use crate::directory::layout::{EntryRaw, HeaderRaw, NODE_BYTES, NODE_MAGIC, NodeRaw, node_offset};
use crate::rolled::Rolled;
use holdfast_object::{AttrSet, Attributes, Kind, ObjectId, Op, PAGE_SIZE};
use std::collections::BTreeMap;
use std::fmt;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, Ordering};

/// What is done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum NameBug {
    /// A link count that is one too high.
    LinkCount = 1,
    /// A directory's count of entries that stays what it was.
    EntryCount,
    /// A name whose object is not made.
    EntryWithoutObject,
    /// An object that stays, with no name, and nobody knows that it has none.
    ObjectWithoutEntry,
    /// A file that has another name is deleted.
    DeletedInUse,
    /// An object of another kind than its name says.
    WrongKind,
    /// An object that says to have its name under another key.
    WrongName,
    /// An object that says to be in another directory.
    WrongParent,
    /// Extended attributes that nobody has.
    LostXattr,
    /// A directory that is longer than its pages.
    DirectorySize,
    /// A page of a directory that is nothing that a directory has.
    PageForm,
    /// A node that counts an entry more, or less, than it has.
    NodeCount,
    /// A directory that names a page as free that is none, or not one that is.
    FreePage,
    /// A directory that counts a free page more, or less, than it has.
    FreePageCount,
    /// An entry under a key that is not its name's.
    WrongKey,
    /// A directory whose links do not count another one that is made in it.
    DirectoryLinks,
    /// An object that loses its last name and stays, though nobody holds it.
    KeptUnheld,
}

impl NameBug {
    /// All of them.
    pub const ALL: [NameBug; 17] = [
        NameBug::LinkCount,
        NameBug::EntryCount,
        NameBug::EntryWithoutObject,
        NameBug::ObjectWithoutEntry,
        NameBug::DeletedInUse,
        NameBug::WrongKind,
        NameBug::WrongName,
        NameBug::WrongParent,
        NameBug::LostXattr,
        NameBug::DirectorySize,
        NameBug::PageForm,
        NameBug::NodeCount,
        NameBug::FreePage,
        NameBug::FreePageCount,
        NameBug::WrongKey,
        NameBug::DirectoryLinks,
        NameBug::KeptUnheld,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            NameBug::LinkCount => "link-count",
            NameBug::EntryCount => "entry-count",
            NameBug::EntryWithoutObject => "entry-without-object",
            NameBug::ObjectWithoutEntry => "object-without-entry",
            NameBug::DeletedInUse => "deleted-in-use",
            NameBug::WrongKind => "wrong-kind",
            NameBug::WrongName => "wrong-name",
            NameBug::WrongParent => "wrong-parent",
            NameBug::LostXattr => "lost-xattr",
            NameBug::DirectorySize => "directory-size",
            NameBug::PageForm => "page-form",
            NameBug::NodeCount => "node-count",
            NameBug::FreePage => "free-page",
            NameBug::FreePageCount => "free-page-count",
            NameBug::WrongKey => "wrong-key",
            NameBug::DirectoryLinks => "directory-links",
            NameBug::KeptUnheld => "kept-unheld",
        }
    }

    /// Makes the operations wrong; `false` if there is nothing of the sort in them.
    pub(crate) fn plant(self, ops: &mut Vec<Op>) -> bool {
        match self {
            NameBug::LinkCount => any_set(ops, |set| set.nlink.as_mut().map(|links| *links += 1)),
            NameBug::EntryCount => any_set(ops, |set| set.entries.take().map(drop)),
            NameBug::EntryWithoutObject => {
                let made = ops.iter().find_map(|op| match op {
                    Op::Create { id, attributes } if attributes.name_key != 0 => Some(*id),
                    _ => None,
                });
                ops.retain(|op| Some(op.target()) != made);
                made.is_some()
            }
            NameBug::ObjectWithoutEntry => {
                let before = ops.len();
                ops.retain(|op| !matches!(op, Op::Delete { .. }));
                ops.len() < before
            }
            NameBug::DeletedInUse => {
                let has_names =
                    |op: &Op| matches!(op, Op::SetAttributes { set, .. } if set.nlink.is_some_and(|links| links > 0));
                let is_unlink = |op: &Op| matches!(op, Op::SetAttributes { set, .. } if set.entries.is_some());
                let found = ops.iter().rposition(has_names).filter(|_| ops.iter().any(is_unlink));
                found.map(|at| ops[at] = Op::Delete { id: ops[at].target() }).is_some()
            }
            NameBug::WrongKind => any_new(ops, |new| {
                (new.kind == Kind::Fifo || new.kind == Kind::Socket).then(|| new.kind = Kind::CharDevice)
            }),
            NameBug::WrongName => any_new(ops, |new| (new.name_key != 0).then(|| new.name_key += 1)),
            NameBug::WrongParent => any_new(ops, |new| {
                (new.name_key != 0 && new.parent != ObjectId::ROOT).then(|| new.parent = ObjectId::ROOT)
            }),
            NameBug::LostXattr => any_set(ops, |set| set.xattr.take().map(drop)),
            NameBug::DirectorySize => {
                let is_named = |id: ObjectId, ops: &[Op]| {
                    ops.iter()
                        .any(|op| matches!(op, Op::SetAttributes { id: of, set } if *of == id && set.entries.is_some()))
                };
                let directory = ops.iter().position(|op| matches!(op, Op::Write { id, .. } if is_named(*id, ops)));
                let Some(Op::Write { size_min, .. }) = directory.map(|at| &mut ops[at]) else { return false };
                *size_min += PAGE_SIZE as u64;
                true
            }
            NameBug::DirectoryLinks => {
                let is_directory =
                    |op: &Op| matches!(op, Op::Create { attributes, .. } if attributes.kind == Kind::Directory);
                ops.iter().any(is_directory) && any_set(ops, |set| set.nlink.take().map(drop))
            }
            NameBug::KeptUnheld => {
                let found = ops.iter().rposition(|op| matches!(op, Op::Delete { .. }));
                let set = AttrSet { nlink: Some(0), ..Attributes::list_names(&[]) };
                found.map(|at| ops[at] = Op::SetAttributes { id: ops[at].target(), set }).is_some()
            }
            NameBug::PageForm | NameBug::NodeCount | NameBug::FreePage | NameBug::FreePageCount | NameBug::WrongKey => {
                false
            }
        }
    }

    /// The same of the pages of a directory: a legal change, by a mistake of whoever makes it.
    pub(crate) fn plant_in_pages(self, pages: &mut BTreeMap<u64, Rolled>) -> bool {
        let of_leaf =
            |at| move |page, image: &Rolled| is_leaf(&image[node_offset(page)..]).then_some(node_offset(page) + at);
        let of_header = |at| move |page, _: &Rolled| (page == 0).then_some(at);
        match self {
            NameBug::PageForm => any_page(pages, of_leaf(offset_of!(NodeRaw, magic))),
            NameBug::NodeCount => any_page(pages, of_leaf(offset_of!(NodeRaw, count))),
            // In the part that is the name's hash, of the first entry: a request that makes one has one.
            NameBug::WrongKey => any_page(pages, of_leaf(NODE_BYTES + offset_of!(EntryRaw, key) + 6)),
            NameBug::FreePage => any_page(pages, of_header(offset_of!(HeaderRaw, free_head))),
            NameBug::FreePageCount => any_page(pages, of_header(offset_of!(HeaderRaw, free_count))),
            _ => false,
        }
    }
}

impl fmt::Display for NameBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Changes the first of what is set that can be changed so.
fn any_set(ops: &mut [Op], change: impl Fn(&mut AttrSet) -> Option<()>) -> bool {
    let mut sets = ops.iter_mut().filter_map(|op| match op {
        Op::SetAttributes { set, .. } => Some(set),
        _ => None,
    });
    sets.find_map(change).is_some()
}

fn is_leaf(node: &[u8]) -> bool {
    node.starts_with(&NODE_MAGIC) && node[offset_of!(NodeRaw, level)] == 0
}

/// Inverts a bit of the first page that has such a place.
fn any_page(pages: &mut BTreeMap<u64, Rolled>, place: impl Fn(u64, &Rolled) -> Option<usize>) -> bool {
    let found = pages.iter_mut().find_map(|(page, image)| Some((place(*page, image)?, image)));
    let is_found = found.is_some();
    if let Some((at, image)) = found {
        image.put(at, &[image[at] ^ 1]);
    }
    is_found
}

/// The same of what is made.
fn any_new(ops: &mut [Op], change: impl Fn(&mut Attributes) -> Option<()>) -> bool {
    let mut new = ops.iter_mut().filter_map(|op| match op {
        Op::Create { attributes, .. } => Some(attributes),
        _ => None,
    });
    new.find_map(change).is_some()
}

/// The bug that a name space has at the moment: none, as a rule.
#[derive(Debug, Default)]
pub(crate) struct Bugs(AtomicU8);

impl Bugs {
    /// The next transaction in which it is possible has it.
    pub(crate) fn set(&self, bug: NameBug) {
        self.0.store(bug as u8, Ordering::Relaxed);
    }

    /// Whether none is left.
    pub(crate) fn are_done(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn plant(&self, ops: &mut Vec<Op>) {
        self.plant_by(|bug| bug.plant(ops));
    }

    /// The same of the pages of a directory that is about to be staged.
    pub(crate) fn plant_in_pages(&self, pages: &mut BTreeMap<u64, Rolled>) {
        self.plant_by(|bug| bug.plant_in_pages(pages));
    }

    fn plant_by(&self, plant: impl FnOnce(NameBug) -> bool) {
        let number = self.0.load(Ordering::Relaxed);
        if number == 0 {
            return;
        }
        if let Some(bug) = NameBug::ALL.into_iter().find(|bug| *bug as u8 == number)
            && plant(bug)
        {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}
