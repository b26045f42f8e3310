//! Moving names.

use super::answer::Answer;
use super::remove::one_name_fewer;
use super::{Namespace, Request};
use crate::directory::{Directory, Entry};
use crate::error::{Error, Result};
use crate::locks::Use;
use crate::name;
use crate::permission::{self, Access};
use crate::rolled::until_sound;
use holdfast_object::{AttrSet, Attributes, Class, Kind, NamePlace, ObjectId, Op, Timestamp};

/// What becomes of an entry that has the new name already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    /// It goes.
    Replace,
    /// The rename fails.
    NoReplace,
    /// It gets the old name. There must be one.
    Exchange,
    /// It goes if there is one and `replace`, and the old name gets a whiteout: a character device with number 0, which
    /// tells overlay file systems that there is nothing of that name.
    Whiteout {
        /// Otherwise the rename fails if there is one.
        replace: bool,
    },
}

/// A name in a directory.
#[derive(Clone, Copy)]
struct Place<'a> {
    directory: ObjectId,
    name: &'a [u8],
}

/// The two entries that a rename is about.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pair {
    moved: Entry,
    other: Option<Entry>,
}

/// One of the two directories with what changes in it.
struct Side {
    id: ObjectId,
    attributes: Attributes,
    entries_delta: i64,
    links_delta: i64,
}

impl Side {
    fn new(id: ObjectId, attributes: Attributes) -> Side {
        Side { id, attributes, entries_delta: 0, links_delta: 0 }
    }

    fn set(&self, now: Timestamp) -> Result<AttrSet> {
        let wrong = Error::CorruptTree { object: self.id, what: "number of links or entries is wrong" };
        let nlink = i64::from(self.attributes.nlink) + self.links_delta;
        let nlink = u32::try_from(nlink).ok().filter(|&nlink| nlink >= 2).ok_or(wrong.clone())?;
        let entries = self.attributes.entries.checked_add_signed(self.entries_delta).ok_or(wrong)?;
        Ok(AttrSet {
            nlink: (self.links_delta != 0).then_some(nlink),
            entries: (self.entries_delta != 0).then_some(entries),
            mtime: Some(now),
            ctime: Some(now),
            ..AttrSet::default()
        })
    }
}

impl Namespace {
    /// Moves the entry `name` of `parent` to `new_name` of `new_parent`. A rename of one name of a file to another name
    /// of the same file does nothing.
    pub fn rename(
        &self,
        request: &Request,
        parent: ObjectId,
        name: &[u8],
        new_parent: ObjectId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        if self.earlier(request)?.is_some() {
            return Ok(());
        }
        name::check_changeable(name)?;
        name::check_changeable(new_name)?;
        let (from, to) = (Place { directory: parent, name }, Place { directory: new_parent, name: new_name });
        loop {
            let seen = {
                let _in_use = self.locks.lock(&[(parent, Use::Shared), (new_parent, Use::Shared)]);
                self.pair(request, from, to)?
            };
            let is_directory = |entry: Option<Entry>| entry.is_some_and(|entry| entry.kind == Kind::Directory);
            let moves = parent != new_parent && (is_directory(Some(seen.moved)) || is_directory(seen.other));
            let _moves = moves.then(|| self.locks.lock_moves());
            let mut wanted = vec![parent, new_parent, seen.moved.object];
            wanted.extend(seen.other.map(|other| other.object));
            let wanted: Vec<_> = wanted.into_iter().map(|id| (id, Use::Exclusive)).collect();
            let in_use = self.locks.lock(&wanted);
            if self.pair(request, from, to)? != seen {
                continue;
            }
            let kept = until_sound(|| self.rename_in_use(request, from, to, seen, mode))?;
            drop(in_use);
            if let Some(id) = kept {
                self.settle(id);
            }
            return Ok(());
        }
    }

    fn pair(&self, request: &Request, from: Place<'_>, to: Place<'_>) -> Result<Pair> {
        let find = |place: Place<'_>| -> Result<Option<Entry>> {
            let directory = self.directory_to_change(request, place.directory, place.name)?;
            self.open_directory(place.directory, &directory)?.lookup(place.name)
        };
        let moved = find(from)?;
        // An error about the target directory comes before one about the source's name, as in Linux.
        let other = find(to)?;
        let moved = moved.ok_or_else(|| Error::not_found(from.directory, from.name))?;
        Ok(Pair { moved, other })
    }

    /// Gives the object that lost its last name and was kept.
    fn rename_in_use(
        &self,
        request: &Request,
        from: Place<'_>,
        to: Place<'_>,
        Pair { moved, other }: Pair,
        mode: RenameMode,
    ) -> Result<Option<ObjectId>> {
        let mut source = Side::new(from.directory, self.directory_attributes(from.directory)?);
        let mut target = Side::new(to.directory, self.directory_attributes(to.directory)?);
        let same = from.directory == to.directory;
        let replaces = matches!(mode, RenameMode::Replace | RenameMode::Whiteout { replace: true });
        if matches!(mode, RenameMode::NoReplace | RenameMode::Whiteout { replace: false }) && other.is_some() {
            return Err(Error::exists(to.directory, to.name));
        }
        if mode == RenameMode::Exchange && other.is_none() {
            return Err(Error::not_found(to.directory, to.name));
        }
        let moved_attributes = self.child(moved.object, moved.kind)?;
        let other = match other {
            Some(entry) => Some((entry, self.child(entry.object, entry.kind)?)),
            None => None,
        };
        let moved_is_directory = moved.kind == Kind::Directory;
        let other_is_directory = other.as_ref().is_some_and(|(entry, _)| entry.kind == Kind::Directory);
        if !same && moved_is_directory {
            self.check_not_below(moved.object, to.directory)?;
        }
        if !same && mode == RenameMode::Exchange && other_is_directory {
            self.check_not_below(moved_into(&other), from.directory)?;
        }
        if other.as_ref().is_some_and(|(entry, _)| entry.object == moved.object) {
            return Ok(None);
        }
        self.check_rename_allowed(request, (&source, &target), (moved, &moved_attributes), other.as_ref(), mode)?;
        if let (true, Some((entry, attributes))) = (replaces, &other) {
            match (moved_is_directory, other_is_directory) {
                (true, false) => return Err(Error::NotDirectory(entry.object)),
                (false, true) => return Err(Error::IsDirectory(entry.object)),
                (true, true) => self.check_empty(entry.object, attributes)?,
                (false, false) => {}
            }
        }

        let now = self.clock.now();
        let mut staged = self.stage().by(request.caller.is_privileged());
        if mode == RenameMode::Replace && other.is_some() {
            // It is the removal of what had the name, and writes nothing but blocks that are there.
            staged.may_use_reserve();
        }
        let mut source_index = self.open_directory(source.id, &source.attributes)?;
        let mut target_index = if same { None } else { Some(self.open_directory(target.id, &target.attributes)?) };
        let back = (mode == RenameMode::Exchange).then_some(()).and(other.as_ref().map(|(entry, _)| *entry));
        let whiteout = if let RenameMode::Whiteout { .. } = mode {
            let id = self.cache.new_object()?;
            let caller = &request.caller;
            let (gid, _) = permission::inherit(&source.attributes, Kind::CharDevice, caller, 0);
            let mut attributes = Attributes::new(Kind::CharDevice, Class::Names, 0, caller.uid, gid, now);
            (attributes.nlink, attributes.parent, attributes.name_key) = (1, from.directory, moved.key);
            staged.op(Op::Create { id, attributes });
            Some(Entry { object: id, kind: Kind::CharDevice, key: moved.key })
        } else {
            None
        };
        match back.or(whiteout) {
            Some(other) => set_entry(&mut source_index, from.name, other)?,
            None => {
                source_index.remove(from.name)?;
                source.entries_delta -= 1;
            }
        }
        let index = target_index.as_mut().unwrap_or(&mut source_index);
        let key = match &other {
            Some((entry, _)) => {
                set_entry(index, to.name, moved)?;
                entry.key
            }
            None => {
                target.entries_delta += 1;
                index.insert(to.name, moved.object, moved.kind)?
            }
        };
        let old = NamePlace { directory: from.directory, key: moved.key };
        let new = NamePlace { directory: to.directory, key };
        source_index.stage(&mut staged)?;
        if let Some(index) = target_index {
            index.stage(&mut staged)?;
        }

        if moved_is_directory {
            source.links_delta -= 1;
            target.links_delta += 1;
        }
        if other_is_directory {
            target.links_delta -= 1;
            source.links_delta += i64::from(back.is_some());
        }
        if same {
            source.entries_delta += target.entries_delta;
            source.links_delta += target.links_delta;
        } else {
            staged.op(Op::SetAttributes { id: target.id, set: target.set(now)? });
        }
        staged.op(Op::SetAttributes { id: source.id, set: source.set(now)? });
        let moved_to = |attributes: &Attributes, old: NamePlace, new: NamePlace| {
            let others = attributes.names().filter(|name| *name != old);
            let names: Vec<_> = std::iter::once(new).chain(others).collect();
            AttrSet { ctime: Some(now), ..Attributes::list_names(&names) }
        };
        staged.op(Op::SetAttributes { id: moved.object, set: moved_to(&moved_attributes, old, new) });
        let mut kept = None;
        if let Some((entry, attributes)) = &other {
            if moved.kind == Kind::Regular {
                staged.brings(moved.object);
            } else if back.is_some() && entry.kind == Kind::Regular {
                staged.brings(entry.object);
            }
            if back.is_some() {
                staged.op(Op::SetAttributes { id: entry.object, set: moved_to(attributes, new, old) });
            } else if other_is_directory || attributes.nlink <= 1 {
                kept = self.stage_last_name_gone(&mut staged, entry.object, attributes, now).then_some(entry.object);
            } else {
                let set = one_name_fewer(attributes, to.directory, entry.key, now);
                staged.op(Op::SetAttributes { id: entry.object, set });
            }
        }
        staged.submit(request.id, Answer::Nothing.encode())?;
        Ok(kept)
    }

    fn check_rename_allowed(
        &self,
        request: &Request,
        (source, target): (&Side, &Side),
        (moved, moved_attributes): (Entry, &Attributes),
        other: Option<&(Entry, Attributes)>,
        mode: RenameMode,
    ) -> Result<()> {
        self.check_access(request, source.id, &source.attributes, Access::CHANGE)?;
        self.check_access(request, target.id, &target.attributes, Access::CHANGE)?;
        self.check_sticky(request, &source.attributes, moved.object, moved_attributes)?;
        // A directory that gets another parent is written to: its `..` changes.
        let moves = source.id != target.id;
        if moves && moved.kind == Kind::Directory {
            self.check_access(request, moved.object, moved_attributes, Access::WRITE)?;
        }
        if let Some((entry, attributes)) = other {
            self.check_sticky(request, &target.attributes, entry.object, attributes)?;
            if moves && mode == RenameMode::Exchange && entry.kind == Kind::Directory {
                self.check_access(request, entry.object, attributes, Access::WRITE)?;
            }
        }
        Ok(())
    }

    /// Checks that `directory` is not `place` nor above it. No directory is on its way to another parent meanwhile, so
    /// the parents seen stay the parents.
    fn check_not_below(&self, directory: ObjectId, place: ObjectId) -> Result<()> {
        // Brent's method finds a circle that corrupt parents may form.
        let (mut at, mut landmark, mut steps, mut limit) = (place, ObjectId::NONE, 0u64, 2u64);
        loop {
            if at == directory {
                return Err(Error::IntoItself { directory, into: place });
            }
            if at == ObjectId::ROOT {
                return Ok(());
            }
            if at == landmark {
                return Err(Error::CorruptTree { object: at, what: "directory is above itself" });
            }
            if steps == limit {
                (landmark, steps, limit) = (at, 0, limit.saturating_mul(2));
            }
            at = self.child(at, Kind::Directory)?.parent;
            steps += 1;
        }
    }
}

fn moved_into(other: &Option<(Entry, Attributes)>) -> ObjectId {
    other.as_ref().map_or(ObjectId::NONE, |(entry, _)| entry.object)
}

fn set_entry(index: &mut Directory<'_>, name: &[u8], entry: Entry) -> Result<()> {
    index.replace(name, entry.object, entry.kind)?;
    Ok(())
}
