//! A file system in memory, complete enough for real programs: the tests mount it, and `examples/wire_speed.rs` measures
//! the wire with it.

use holdfast_fuse::abi::*;
use holdfast_fuse::{Answer, Attributes, Context, DirBuffer, Entry, Errno, Handler, Opened, Slices};
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

const PAGE: usize = 4096;
const ROOT: u64 = 1;
const VALID: Duration = Duration::from_secs(60);
/// Birth time of every object, to be seen through statx.
pub(crate) const BTIME: (i64, u32) = (1_000_000_007, 42);
/// `_IOWR('H', 9, [u8; 8])`: gives the eight bytes back in reverse.
pub(crate) const REVERSE: u32 = 3 << 30 | 8 << 16 | (b'H' as u32) << 8 | 9;

type Page = Arc<[u8; PAGE]>;

enum Content {
    File { pages: BTreeMap<u64, Page>, size: u64 },
    Directory(BTreeMap<Vec<u8>, u64>),
    Symlink(Vec<u8>),
}

struct Node {
    content: Content,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    mtime: (u64, u32),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct State {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    /// Supplementary groups that came with the last request that made something.
    groups: Vec<u32>,
}

/// The file system. Objects are never forgotten: a test is short.
pub(crate) struct Memory {
    state: RwLock<State>,
    zero: Page,
}

/// Pages of a read, each a slice of its own; the first and the last may be cut.
pub(crate) struct Pages {
    pages: Vec<Page>,
    start: usize,
    length: usize,
}

impl Slices for Pages {
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let end = self.start + self.length;
        self.pages.iter().enumerate().map(move |(index, page)| {
            let base = index * PAGE;
            &page[self.start.saturating_sub(base).min(PAGE)..(end - base).min(PAGE)]
        })
    }
}

impl Memory {
    pub(crate) fn new() -> Memory {
        let root = Node::new(Content::Directory(BTreeMap::new()), libc::S_IFDIR | 0o755, 0, 0);
        let state = State { nodes: BTreeMap::from([(ROOT, root)]), next: 2, groups: Vec::new() };
        Memory { state: RwLock::new(state), zero: Arc::new([0; PAGE]) }
    }

    /// Supplementary groups that the kernel sent with the last request that made something.
    #[allow(dead_code, reason = "the example does not ask")]
    pub(crate) fn groups(&self) -> Vec<u32> {
        self.state.read().unwrap().groups.clone()
    }
}

impl Node {
    fn new(content: Content, mode: u32, uid: u32, gid: u32) -> Node {
        Node { content, mode, uid, gid, nlink: 1, mtime: (1, 2), xattrs: BTreeMap::new() }
    }

    fn attr(&self, ino: u64) -> Attr {
        let (size, pages) = match &self.content {
            Content::File { pages, size } => (*size, pages.len() as u64),
            Content::Directory(names) => (names.len() as u64, 0),
            Content::Symlink(target) => (target.len() as u64, 0),
        };
        Attr {
            ino,
            size,
            blocks: pages * 8,
            mtime: self.mtime.0,
            mtimensec: self.mtime.1,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            blksize: PAGE as u32,
            ..Attr::default()
        }
    }

    fn entry(&self, node: u64) -> Entry {
        Entry { node, generation: 0, attr: self.attr(node), name_valid: VALID, attr_valid: VALID }
    }
}

impl State {
    fn node(&mut self, id: u64) -> Answer<&mut Node> {
        self.nodes.get_mut(&id).ok_or(Errno::STALE)
    }

    fn names(&mut self, id: u64) -> Answer<&mut BTreeMap<Vec<u8>, u64>> {
        match &mut self.node(id)?.content {
            Content::Directory(names) => Ok(names),
            _ => Err(Errno(libc::ENOTDIR)),
        }
    }

    fn file(&mut self, id: u64) -> Answer<(&mut BTreeMap<u64, Page>, &mut u64)> {
        match &mut self.node(id)?.content {
            Content::File { pages, size } => Ok((pages, size)),
            _ => Err(Errno::INVAL),
        }
    }

    fn make(&mut self, context: &Context, parent: u64, name: &[u8], mode: u32, content: Content) -> Answer<Entry> {
        let id = self.next;
        let names = self.names(parent)?;
        if names.contains_key(name) {
            return Err(Errno(libc::EEXIST));
        }
        names.insert(name.to_vec(), id);
        self.next += 1;
        self.groups.clone_from(&context.groups);
        let node = Node::new(content, mode, context.uid, context.gid);
        let entry = node.entry(id);
        self.nodes.insert(id, node);
        Ok(entry)
    }

    fn remove(&mut self, parent: u64, name: &[u8], directory: bool) -> Answer<()> {
        let id = *self.names(parent)?.get(name).ok_or(Errno(libc::ENOENT))?;
        match &self.node(id)?.content {
            Content::Directory(_) if !directory => return Err(Errno(libc::EISDIR)),
            Content::Directory(names) if !names.is_empty() => return Err(Errno(libc::ENOTEMPTY)),
            Content::File { .. } | Content::Symlink(_) if directory => return Err(Errno(libc::ENOTDIR)),
            _ => {}
        }
        self.names(parent)?.remove(name);
        // Whoever has it open goes on.
        self.node(id)?.nlink -= 1;
        Ok(())
    }
}

fn file() -> Content {
    Content::File { pages: BTreeMap::new(), size: 0 }
}

fn opened() -> Opened {
    Opened { fh: 0, flags: open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES }
}

impl Handler for Memory {
    type Data = Pages;

    fn lookup(&self, _: &Context, parent: u64, name: &[u8]) -> Answer<Entry> {
        let mut state = self.state.write().unwrap();
        let id = *state.names(parent)?.get(name).ok_or(Errno(libc::ENOENT))?;
        Ok(state.node(id)?.entry(id))
    }

    fn getattr(&self, _: &Context, node: u64) -> Answer<Attributes> {
        let state = self.state.read().unwrap();
        let attr = state.nodes.get(&node).ok_or(Errno::STALE)?.attr(node);
        Ok(Attributes { attr, btime: BTIME, valid: VALID })
    }

    fn setattr(&self, context: &Context, node: u64, args: &SetattrIn) -> Answer<Attributes> {
        let mut state = self.state.write().unwrap();
        if args.valid & fattr::SIZE != 0 {
            let (pages, size) = state.file(node)?;
            pages.retain(|index, _| index * (PAGE as u64) < args.size);
            if let Some(page) = pages.get_mut(&(args.size / PAGE as u64)) {
                Arc::make_mut(page)[args.size as usize % PAGE..].fill(0);
            }
            *size = args.size;
        }
        let found = state.node(node)?;
        if args.valid & fattr::MODE != 0 {
            found.mode = found.mode & libc::S_IFMT | args.mode & 0o7777;
        }
        if args.valid & fattr::MTIME != 0 && args.valid & fattr::MTIME_NOW == 0 {
            found.mtime = (args.mtime, args.mtimensec);
        }
        drop(state);
        self.getattr(context, node)
    }

    fn readlink(&self, _: &Context, node: u64) -> Answer<Vec<u8>> {
        match &self.state.write().unwrap().node(node)?.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    fn symlink(&self, context: &Context, parent: u64, name: &[u8], target: &[u8]) -> Answer<Entry> {
        let content = Content::Symlink(target.to_vec());
        self.state.write().unwrap().make(context, parent, name, libc::S_IFLNK | 0o777, content)
    }

    fn mkdir(&self, context: &Context, parent: u64, name: &[u8], args: &MkdirIn) -> Answer<Entry> {
        let content = Content::Directory(BTreeMap::new());
        self.state.write().unwrap().make(
            context,
            parent,
            name,
            libc::S_IFDIR | args.mode & !args.umask & 0o7777,
            content,
        )
    }

    fn mknod(&self, context: &Context, parent: u64, name: &[u8], args: &MknodIn) -> Answer<Entry> {
        self.state.write().unwrap().make(context, parent, name, args.mode & !args.umask, file())
    }

    fn create(&self, context: &Context, parent: u64, name: &[u8], args: &CreateIn) -> Answer<(Entry, Opened)> {
        let args = MknodIn { mode: args.mode, umask: args.umask, ..MknodIn::default() };
        Ok((self.mknod(context, parent, name, &args)?, opened()))
    }

    fn unlink(&self, _: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        self.state.write().unwrap().remove(parent, name, false)
    }

    fn rmdir(&self, _: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        self.state.write().unwrap().remove(parent, name, true)
    }

    fn rename(&self, _: &Context, parent: u64, name: &[u8], to: u64, new_name: &[u8], flags: u32) -> Answer<()> {
        let mut state = self.state.write().unwrap();
        let id = *state.names(parent)?.get(name).ok_or(Errno(libc::ENOENT))?;
        let replaced = state.names(to)?.get(new_name).copied();
        match (flags, replaced) {
            (libc::RENAME_NOREPLACE, Some(_)) => return Err(Errno(libc::EEXIST)),
            (libc::RENAME_EXCHANGE, None) => return Err(Errno(libc::ENOENT)),
            (libc::RENAME_EXCHANGE, Some(other)) => {
                state.names(parent)?.insert(name.to_vec(), other);
            }
            (0 | libc::RENAME_NOREPLACE, _) => {
                if let Some(other) = replaced {
                    state.node(other)?.nlink -= 1;
                }
                state.names(parent)?.remove(name);
            }
            _ => return Err(Errno::INVAL),
        }
        state.names(to)?.insert(new_name.to_vec(), id);
        Ok(())
    }

    fn link(&self, _: &Context, node: u64, new_parent: u64, new_name: &[u8]) -> Answer<Entry> {
        let mut state = self.state.write().unwrap();
        if state.names(new_parent)?.contains_key(new_name) {
            return Err(Errno(libc::EEXIST));
        }
        state.names(new_parent)?.insert(new_name.to_vec(), node);
        let found = state.node(node)?;
        found.nlink += 1;
        Ok(found.entry(node))
    }

    fn open(&self, _: &Context, _: u64, _: &OpenIn) -> Answer<Opened> {
        Ok(opened())
    }

    fn read(&self, _: &Context, node: u64, args: &ReadIn) -> Answer<Pages> {
        let state = self.state.read().unwrap();
        let Some(Node { content: Content::File { pages, size }, .. }) = state.nodes.get(&node) else {
            return Err(Errno::STALE);
        };
        let length = size.saturating_sub(args.offset).min(u64::from(args.size)) as usize;
        let start = args.offset as usize % PAGE;
        let first = args.offset / PAGE as u64;
        let count = if length == 0 { 0 } else { (start + length).div_ceil(PAGE) as u64 };
        let page = |index| pages.get(&index).unwrap_or(&self.zero).clone();
        Ok(Pages { pages: (first..first + count).map(page).collect(), start, length })
    }

    fn write(&self, _: &Context, node: u64, args: &WriteIn, bytes: &[u8]) -> Answer<u32> {
        let mut state = self.state.write().unwrap();
        let (pages, size) = state.file(node)?;
        let (mut at, mut rest) = (args.offset, bytes);
        while !rest.is_empty() {
            let start = at as usize % PAGE;
            let (now, later) = rest.split_at(rest.len().min(PAGE - start));
            let page = pages.entry(at / PAGE as u64).or_insert_with(|| self.zero.clone());
            Arc::make_mut(page)[start..start + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            rest = later;
        }
        *size = (*size).max(at);
        Ok(bytes.len() as u32)
    }

    fn fsync(&self, _: &Context, _: u64, _: u64, _: bool) -> Answer<()> {
        Ok(())
    }

    fn opendir(&self, _: &Context, _: u64) -> Answer<Opened> {
        Ok(Opened::default())
    }

    fn readdir(&self, _: &Context, node: u64, offset: u64, out: &mut DirBuffer) -> Answer<()> {
        let mut state = self.state.write().unwrap();
        let names = state.names(node)?.clone();
        let dots = [(b".".to_vec(), node), (b"..".to_vec(), ROOT)];
        // Cookies count; a directory is not changed while a test reads it.
        for (index, (name, id)) in dots.into_iter().chain(names).enumerate().skip(offset as usize) {
            let found = state.node(id)?;
            let entry = (out.is_plus() && index >= 2).then(|| found.entry(id));
            if !out.push(id, index as u64 + 1, found.mode & libc::S_IFMT, &name, entry.as_ref()) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &Context, _: u64) -> Answer<StatfsOut> {
        Ok(StatfsOut {
            blocks: 1 << 20,
            bfree: 1 << 19,
            bavail: 1 << 18,
            bsize: 4096,
            frsize: 4096,
            namelen: 255,
            ..Default::default()
        })
    }

    fn setxattr(&self, _: &Context, node: u64, name: &[u8], value: &[u8], _: u32, _: u32) -> Answer<()> {
        self.state.write().unwrap().node(node)?.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn getxattr(&self, _: &Context, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        self.state.write().unwrap().node(node)?.xattrs.get(name).cloned().ok_or(Errno(libc::ENODATA))
    }

    fn listxattr(&self, _: &Context, node: u64) -> Answer<Vec<u8>> {
        let mut state = self.state.write().unwrap();
        Ok(state.node(node)?.xattrs.keys().flat_map(|name| [name.as_slice(), &[0]].concat()).collect())
    }

    fn ioctl(&self, _: &Context, _: u64, args: &IoctlIn, bytes: &[u8]) -> Answer<(i32, Vec<u8>)> {
        if args.cmd != REVERSE {
            return Err(Errno::NOTTY);
        }
        Ok((7, bytes.iter().rev().copied().collect()))
    }
}
