//! What actions do to the model: the rules of POSIX and Linux, in the simplest way.

use super::action::{Action, Data, Reply};
use super::tree::{Inode, Model, Node};
use holdfast_naming::{ErrorKind, LINK_MAX, NewNode, RenameMode, SetAttr, SpaceMode, TimeSet, WRITE_MAX, XattrMode};
use holdfast_object::{Kind, MAX_OBJECT_BYTES, PAGE_SIZE, Timestamp};

type Result<T> = std::result::Result<T, ErrorKind>;

const PAGE: u64 = PAGE_SIZE as u64;
const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;

impl Model {
    /// Does one action at the time `now`. On an error nothing has changed.
    pub fn apply(&mut self, action: &Action, now: Timestamp) -> Result<Reply> {
        let done = |()| Reply::Done;
        match action {
            Action::Create { parent, name, mode, exclusive, truncate } => {
                self.create(*parent, name, *mode, *exclusive, *truncate, now)
            }
            Action::Mknod { parent, name, node, mode } => {
                let (kind, rdev) = match *node {
                    NewNode::Regular => (Kind::Regular, 0),
                    NewNode::Fifo => (Kind::Fifo, 0),
                    NewNode::Socket => (Kind::Socket, 0),
                    NewNode::CharDevice(rdev) => (Kind::CharDevice, rdev),
                    NewNode::BlockDevice(rdev) => (Kind::BlockDevice, rdev),
                };
                self.make(*parent, name, Inode { rdev, ..Inode::new(kind, *mode, *parent, now) }, now)
            }
            Action::Mkdir { parent, name, mode } => {
                self.make(*parent, name, Inode::new(Kind::Directory, *mode, *parent, now), now)
            }
            Action::Symlink { parent, name, target } => {
                if target.is_empty() {
                    return Err(ErrorKind::InvalidArgument);
                }
                if target.len() > 4095 {
                    return Err(ErrorKind::NameTooLong);
                }
                let inode = Inode { data: target.clone(), ..Inode::new(Kind::Symlink, 0o777, *parent, now) };
                self.make(*parent, name, inode, now)
            }
            Action::Link { node, parent, name } => self.link(*node, *parent, name, now),
            Action::Unlink { parent, name } => self.remove(*parent, name, false, now).map(done),
            Action::Rmdir { parent, name } => self.remove(*parent, name, true, now).map(done),
            Action::Rename { parent, name, new_parent, new_name, mode } => {
                self.rename((*parent, name), (*new_parent, new_name), *mode, now).map(done)
            }
            Action::Lookup { parent, name } => self.lookup(*parent, name).map(Reply::Node),
            Action::Forget { node, count } => self.let_go(*node, |inode| inode.lookups -= (*count).min(inode.lookups)),
            Action::Open { node, truncate } => self.open(*node, *truncate, now).map(done),
            Action::Release { node } => self.let_go(*node, |inode| inode.opens -= 1.min(inode.opens)),
            Action::Read { node, offset, length } => {
                let inode = self.regular(*node)?;
                let size = inode.data.len() as u64;
                let start = (*offset).min(size) as usize;
                let end = start + (*length).min(inode.data.len() - start);
                if end > start {
                    inode.accessed(now);
                }
                Ok(Reply::Bytes(inode.data[start..end].to_vec()))
            }
            Action::Write { node, offset, data, clear_set_ids } => {
                self.write(*node, *offset, *data, *clear_set_ids, now).map(Reply::Count)
            }
            Action::Allocate { node, offset, length, mode } => {
                self.allocate(*node, *offset, *length, *mode, now).map(done)
            }
            Action::Copy { source, source_offset, target, target_offset, length } => {
                self.copy((*source, *source_offset), (*target, *target_offset), *length, now).map(Reply::Count)
            }
            Action::SetAttr { node, set } => self.set_attributes(*node, set, now).map(done),
            Action::Readlink { node } => {
                let inode = self.inode(*node)?;
                if inode.kind != Kind::Symlink {
                    return Err(ErrorKind::InvalidArgument);
                }
                inode.accessed(now);
                Ok(Reply::Bytes(inode.data.clone()))
            }
            Action::ReadDir { node } => {
                let inode = self.directory(*node)?;
                if inode.nlink > 0 {
                    inode.accessed(now);
                }
                Ok(Reply::Names(inode.entries.keys().cloned().collect()))
            }
            Action::SetXattr { node, name, value, mode } => self.set_xattr(*node, name, *value, *mode, now).map(done),
            Action::GetXattr { node, name } => {
                let value = self.inode(*node)?.xattrs.get(name).cloned();
                value.map(Reply::Bytes).ok_or(ErrorKind::NoAttribute)
            }
            Action::RemoveXattr { node, name } => {
                let inode = self.inode(*node)?;
                check_xattr(inode.kind, name)?;
                inode.xattrs.remove(name).ok_or(ErrorKind::NoAttribute)?;
                inode.ctime = now;
                Ok(Reply::Done)
            }
            Action::ListXattr { node } => Ok(Reply::Names(self.inode(*node)?.xattrs.keys().cloned().collect())),
            Action::Sync { node, .. } => self.inode(*node).map(|_| Reply::Done),
            Action::SyncAll => Ok(Reply::Done),
        }
    }

    fn inode(&mut self, node: Node) -> Result<&mut Inode> {
        self.nodes.get_mut(&node).ok_or(ErrorKind::Stale)
    }

    fn directory(&mut self, node: Node) -> Result<&mut Inode> {
        let inode = self.inode(node)?;
        if inode.kind == Kind::Directory { Ok(inode) } else { Err(ErrorKind::NotDirectory) }
    }

    /// A directory that has a name itself.
    fn named_directory(&mut self, node: Node) -> Result<&mut Inode> {
        let inode = self.directory(node)?;
        if inode.nlink > 0 { Ok(inode) } else { Err(ErrorKind::NotFound) }
    }

    fn regular(&mut self, node: Node) -> Result<&mut Inode> {
        let inode = self.inode(node)?;
        match inode.kind {
            Kind::Regular => Ok(inode),
            Kind::Directory => Err(ErrorKind::IsDirectory),
            _ => Err(ErrorKind::InvalidArgument),
        }
    }

    fn entry(&mut self, parent: Node, name: &[u8]) -> Result<Option<Node>> {
        Ok(self.named_directory(parent)?.entries.get(name).copied())
    }

    /// The node goes if it has no name and nobody holds it.
    fn reclaim(&mut self, node: Node) {
        if self.nodes.get(&node).is_some_and(|inode| inode.nlink == 0 && inode.lookups == 0 && inode.opens == 0) {
            self.nodes.remove(&node);
        }
    }

    fn let_go(&mut self, node: Node, release: impl FnOnce(&mut Inode)) -> Result<Reply> {
        if let Some(inode) = self.nodes.get_mut(&node) {
            release(inode);
        }
        self.reclaim(node);
        Ok(Reply::Done)
    }

    fn lookup(&mut self, parent: Node, name: &[u8]) -> Result<Node> {
        check_name(name)?;
        let directory = self.named_directory(parent)?;
        let node = match name {
            b"." => parent,
            b".." => directory.parent,
            _ => *directory.entries.get(name).ok_or(ErrorKind::NotFound)?,
        };
        self.inode(node)?.lookups += 1;
        Ok(node)
    }

    fn open(&mut self, node: Node, truncate: bool, now: Timestamp) -> Result<()> {
        let inode = self.inode(node)?;
        if truncate && inode.kind == Kind::Directory {
            return Err(ErrorKind::IsDirectory);
        }
        inode.opens += 1;
        if truncate && inode.kind == Kind::Regular {
            inode.data.clear();
            inode.changed(now);
        }
        Ok(())
    }

    fn create(
        &mut self,
        parent: Node,
        name: &[u8],
        mode: u16,
        exclusive: bool,
        truncate: bool,
        now: Timestamp,
    ) -> Result<Reply> {
        match self.make(parent, name, Inode::new(Kind::Regular, mode, parent, now), now) {
            Err(ErrorKind::Exists) if !exclusive => {}
            made => {
                if let Ok(Reply::Node(node)) = made {
                    self.inode(node)?.opens += 1;
                }
                return made;
            }
        }
        let node = self.lookup(parent, name)?;
        let opened = match self.inode(node)?.kind {
            Kind::Directory => Err(ErrorKind::IsDirectory),
            _ => self.open(node, truncate, now),
        };
        if let Err(error) = opened {
            self.inode(node)?.lookups -= 1;
            return Err(error);
        }
        Ok(Reply::Node(node))
    }

    fn make(&mut self, parent: Node, name: &[u8], mut inode: Inode, now: Timestamp) -> Result<Reply> {
        check_new_name(name)?;
        if self.entry(parent, name)?.is_some() {
            return Err(ErrorKind::Exists);
        }
        let node = Node(self.next);
        let directory = self.directory(parent)?;
        directory.entries.insert(name.to_vec(), node);
        directory.changed(now);
        if directory.mode & SETGID != 0 {
            inode.gid = directory.gid;
            if inode.kind == Kind::Directory {
                inode.mode |= SETGID;
            }
        }
        if inode.kind == Kind::Directory {
            directory.nlink += 1;
        }
        inode.lookups = 1;
        self.next += 1;
        self.nodes.insert(node, inode);
        Ok(Reply::Node(node))
    }

    fn link(&mut self, node: Node, parent: Node, name: &[u8], now: Timestamp) -> Result<Reply> {
        check_new_name(name)?;
        let (kind, nlink) = self.inode(node).map(|inode| (inode.kind, inode.nlink))?;
        if self.entry(parent, name)?.is_some() {
            return Err(ErrorKind::Exists);
        }
        match (kind, nlink) {
            (Kind::Directory, _) => return Err(ErrorKind::Permission),
            (_, 0) => return Err(ErrorKind::NotFound),
            (_, LINK_MAX..) => return Err(ErrorKind::TooManyLinks),
            _ => {}
        }
        let directory = self.directory(parent)?;
        directory.entries.insert(name.to_vec(), node);
        directory.changed(now);
        let inode = self.inode(node)?;
        inode.nlink += 1;
        inode.lookups += 1;
        inode.ctime = now;
        Ok(Reply::Node(node))
    }

    fn remove(&mut self, parent: Node, name: &[u8], wants_directory: bool, now: Timestamp) -> Result<()> {
        check_new_name(name)?;
        let node = self.entry(parent, name)?.ok_or(ErrorKind::NotFound)?;
        let inode = self.inode(node)?;
        match (wants_directory, inode.kind == Kind::Directory) {
            (true, false) => return Err(ErrorKind::NotDirectory),
            (false, true) => return Err(ErrorKind::IsDirectory),
            _ if !inode.entries.is_empty() => return Err(ErrorKind::NotEmpty),
            _ => {}
        }
        let directory = self.directory(parent)?;
        directory.entries.remove(name);
        directory.changed(now);
        if wants_directory {
            directory.nlink -= 1;
        }
        self.unname(node, now);
        Ok(())
    }

    /// A node loses a name.
    fn unname(&mut self, node: Node, now: Timestamp) {
        if let Some(inode) = self.nodes.get_mut(&node) {
            inode.nlink = if inode.kind == Kind::Directory { 0 } else { inode.nlink - 1 };
            inode.ctime = now;
        }
        self.reclaim(node);
    }

    fn is_below(&self, node: Node, directory: Node) -> bool {
        let mut at = node;
        loop {
            if at == directory {
                return true;
            }
            match self.nodes.get(&at) {
                Some(inode) if at != Node::ROOT => at = inode.parent,
                _ => return false,
            }
        }
    }

    fn rename(
        &mut self,
        (parent, name): (Node, &[u8]),
        (new_parent, new_name): (Node, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        check_new_name(name)?;
        check_new_name(new_name)?;
        let moved = self.entry(parent, name)?;
        let other = self.entry(new_parent, new_name)?;
        let moved = moved.ok_or(ErrorKind::NotFound)?;
        match (mode, other) {
            (RenameMode::NoReplace, Some(_)) => return Err(ErrorKind::Exists),
            (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound),
            _ => {}
        }
        let is_directory = |model: &Model, node: Node| model.nodes[&node].kind == Kind::Directory;
        let moved_is_directory = is_directory(self, moved);
        let other_is_directory = other.is_some_and(|other| is_directory(self, other));
        if parent != new_parent {
            let into_itself = moved_is_directory && self.is_below(new_parent, moved);
            let exchanged = other.filter(|_| mode == RenameMode::Exchange && other_is_directory);
            if into_itself || exchanged.is_some_and(|other| self.is_below(parent, other)) {
                return Err(ErrorKind::InvalidArgument);
            }
        }
        if other == Some(moved) {
            return Ok(());
        }
        if let (Some(other), RenameMode::Replace) = (other, mode) {
            match (moved_is_directory, other_is_directory) {
                (true, false) => return Err(ErrorKind::NotDirectory),
                (false, true) => return Err(ErrorKind::IsDirectory),
                _ if !self.nodes[&other].entries.is_empty() => return Err(ErrorKind::NotEmpty),
                _ => {}
            }
        }
        // Both names go, then both come back; link counts of directories follow their subdirectories.
        let mut put = |directory: Node, name: &[u8], node: Option<Node>| -> Result<()> {
            let is_directory = node.is_some_and(|node| is_directory(self, node));
            let entries = &mut self.directory(directory)?.entries;
            let old = match node {
                Some(node) => entries.insert(name.to_vec(), node),
                None => entries.remove(name),
            };
            let was_directory = old.is_some_and(|old| self.nodes[&old].kind == Kind::Directory);
            let inode = self.directory(directory)?;
            inode.nlink = inode.nlink + u32::from(is_directory) - u32::from(was_directory);
            inode.changed(now);
            Ok(())
        };
        let back = other.filter(|_| mode == RenameMode::Exchange);
        put(parent, name, back)?;
        put(new_parent, new_name, Some(moved))?;
        let mut place = |node: Node, parent: Node| {
            self.inode(node).map(|inode| {
                inode.parent = parent;
                inode.ctime = now;
            })
        };
        place(moved, new_parent)?;
        match (other, back) {
            (_, Some(back)) => place(back, parent)?,
            (Some(other), None) => self.unname(other, now),
            (None, None) => {}
        }
        Ok(())
    }

    fn write(&mut self, node: Node, offset: u64, data: Data, clear: bool, now: Timestamp) -> Result<u64> {
        let room = MAX_OBJECT_BYTES.saturating_sub(offset);
        if room == 0 && data.length > 0 {
            return Err(ErrorKind::FileTooBig);
        }
        let inode = self.regular(node)?;
        let bytes = data.bytes();
        let bytes = &bytes[..bytes.len().min(WRITE_MAX).min(usize::try_from(room).unwrap_or(usize::MAX))];
        if !bytes.is_empty() {
            put_bytes(&mut inode.data, offset, bytes);
            inode.changed(now);
            clear_set_ids(inode, clear);
        }
        Ok(bytes.len() as u64)
    }

    fn allocate(&mut self, node: Node, offset: u64, length: u64, mode: SpaceMode, now: Timestamp) -> Result<()> {
        if length == 0 {
            return Err(ErrorKind::InvalidArgument);
        }
        let end = offset.checked_add(length).filter(|&end| end <= MAX_OBJECT_BYTES).ok_or(ErrorKind::FileTooBig)?;
        let inode = self.regular(node)?;
        let (zero, keep_size) = match mode {
            SpaceMode::Allocate { keep_size } => (false, keep_size),
            SpaceMode::Punch => (true, true),
            SpaceMode::Zero { keep_size } => (true, keep_size),
        };
        if zero {
            let size = inode.data.len() as u64;
            inode.data[offset.min(size) as usize..end.min(size) as usize].fill(0);
        }
        if !keep_size && end as usize > inode.data.len() {
            inode.data.resize(end as usize, 0);
        }
        inode.changed(now);
        Ok(())
    }

    fn copy(
        &mut self,
        (source, source_offset): (Node, u64),
        (target, target_offset): (Node, u64),
        length: u64,
        now: Timestamp,
    ) -> Result<u64> {
        let size = self.regular(source)?.data.len() as u64;
        let target_size = self.regular(target)?.data.len() as u64;
        let mut length = length.min(size.saturating_sub(source_offset));
        if source == target && source_offset.abs_diff(target_offset) < length {
            return Err(ErrorKind::InvalidArgument);
        }
        if length == 0 {
            return Ok(0);
        }
        // Between page boundaries whole pages are copied first; the rest is for the next call.
        let reaches_end = source_offset + length == size && target_offset + length >= target_size;
        if source_offset.is_multiple_of(PAGE) && target_offset.is_multiple_of(PAGE) && length > PAGE && !reaches_end {
            length -= length % PAGE;
        }
        // Ranges that lie alike in their pages are brought to a page boundary first, for the next call to share pages.
        let within = source_offset % PAGE;
        if within != 0 && within == target_offset % PAGE {
            length = length.min(PAGE - within);
        }
        let start = source_offset as usize;
        let bytes = self.regular(source)?.data[start..start + length as usize].to_vec();
        let inode = self.regular(target)?;
        put_bytes(&mut inode.data, target_offset, &bytes);
        inode.changed(now);
        Ok(length)
    }

    fn set_attributes(&mut self, node: Node, set: &SetAttr, now: Timestamp) -> Result<()> {
        let inode = self.inode(node)?;
        if let Some(size) = set.size {
            match inode.kind {
                Kind::Regular if size > MAX_OBJECT_BYTES => return Err(ErrorKind::FileTooBig),
                Kind::Regular => inode.data.resize(size as usize, 0),
                Kind::Directory => return Err(ErrorKind::IsDirectory),
                _ => return Err(ErrorKind::InvalidArgument),
            }
            inode.mtime = now;
        }
        let time = |set: TimeSet| match set {
            TimeSet::Now => now,
            TimeSet::At(time) => time,
        };
        match set.mode {
            Some(mode) => inode.mode = mode & 0o7777,
            None => clear_set_ids(inode, set.uid.is_some() || set.gid.is_some() || set.clear_set_ids),
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        inode.atime = set.atime.map_or(inode.atime, time);
        inode.mtime = set.mtime.map_or(inode.mtime, time);
        inode.ctime = set.ctime.unwrap_or(now);
        Ok(())
    }

    fn set_xattr(&mut self, node: Node, name: &[u8], value: Data, mode: XattrMode, now: Timestamp) -> Result<()> {
        if value.length > 65_536 {
            return Err(ErrorKind::AttributeTooBig);
        }
        let inode = self.inode(node)?;
        check_xattr(inode.kind, name)?;
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(ErrorKind::Exists),
            (XattrMode::Replace, false) => return Err(ErrorKind::NoAttribute),
            _ => {}
        }
        inode.xattrs.insert(name.to_vec(), value.bytes());
        inode.ctime = now;
        Ok(())
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        256.. => Err(ErrorKind::NameTooLong),
        0 => Err(ErrorKind::InvalidArgument),
        _ if name.contains(&b'/') || name.contains(&0) => Err(ErrorKind::InvalidArgument),
        _ => Ok(()),
    }
}

fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if matches!(name, b"." | b"..") { Err(ErrorKind::InvalidArgument) } else { Ok(()) }
}

fn check_xattr(kind: Kind, name: &[u8]) -> Result<()> {
    let user = name.starts_with(b"user.");
    if user && !matches!(kind, Kind::Regular | Kind::Directory) { Err(ErrorKind::Permission) } else { Ok(()) }
}

fn put_bytes(data: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = offset as usize;
    if data.len() < start + bytes.len() {
        data.resize(start + bytes.len(), 0);
    }
    data[start..start + bytes.len()].copy_from_slice(bytes);
}

fn clear_set_ids(inode: &mut Inode, clear: bool) {
    if clear && inode.kind != Kind::Directory {
        let group_executes = inode.mode & 0o010 != 0;
        inode.mode &= if group_executes { !(SETUID | SETGID) } else { !SETUID };
    }
}
