//! Directories: an index of entries in the pages of an object.
//!
//! A B+tree on 4 KiB pages, ordered by a 63-bit key: 55 bits of the name's hash (XXH3-64 with a seed per directory)
//! and 8 bits that tell names with the same hash apart. A name gets the lowest key that is free for its hash and keeps
//! it for life. So the key is the cookie of a directory stream: unique, the same after a restart, and not moved by what
//! happens to other names. The root is always in page 0, behind the header; a small directory is that page alone, an
//! empty one may have no page at all.
//!
//! Invariants (asserted while changing, checked while reading, all of them by [`Directory::check`]):
//! - a node names its directory, its page, and a level one below its parent's, so that a walk down ends;
//! - keys ascend strictly in a node and lie within what the parent's branches say;
//! - every page is reachable exactly once from the root or from the list of free pages;
//! - the directory's size is its number of pages.

mod edit;
pub(crate) mod layout;
mod node;
#[cfg(test)]
mod tests;

use crate::audit::{Audit, Called, Counting};
use crate::error::{Error, Result};
use crate::few::{Few, Nothing};
use crate::pages;
use crate::rolled::Rolled;
use crate::stage::Staged;
use holdfast_object::{Kind, ObjectCache, ObjectId, Op, PAGE_SIZE, PinnedPage};
use layout::{HASH_BITS, Image, KEY_END, LEVEL_MAX, SLOT_BITS};
pub(crate) use node::LeafRecord;
use node::{Expect, Header, Node};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Deref};
use twox_hash::XxHash3_64;

/// Smallest key of an entry; cookies below are for the start, `.` and `..`.
pub(crate) const KEY_MIN: u64 = 1 << SLOT_BITS;
/// Verified pages that one request keeps at hand: the paths of two names, where there are no more than millions.
const KEPT_PAGES: usize = 8;

/// An entry without its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) object: ObjectId,
    pub(crate) kind: Kind,
    /// Its key: see [`Directory::name_at`].
    pub(crate) key: u64,
}

/// A directory's index, as stored and with the changes of one request.
pub(crate) struct Directory<'a> {
    cache: &'a dyn ObjectCache,
    id: ObjectId,
    /// As stored; `None`: no page yet.
    stored: Option<Header>,
    header: Option<Header>,
    /// What the header of a directory without pages will say.
    fresh: Header,
    changed: BTreeMap<u64, Rolled>,
    /// All pages but the first were given up.
    cut: Option<Cut>,
    /// Names put in and taken out.
    called: Few<Called, 2>,
    /// Those that are, come first.
    kept: Box<[OnceCell<(u64, PinnedPage)>; KEPT_PAGES]>,
}

/// What was given up when the tree got so low that it is the first page.
struct Cut {
    /// Pages that were changed before.
    changed: Vec<u64>,
    /// Pages that were neither in the tree nor said to be free, in a damaged directory.
    lost: u64,
}

/// A page's bytes: verified, or built by this request.
enum Page<'a> {
    Kept(&'a PinnedPage),
    Stored(PinnedPage),
    Changed(&'a Image),
}

impl Deref for Page<'_> {
    type Target = Image;
    fn deref(&self) -> &Image {
        match self {
            Page::Kept(page) => page.bytes(),
            Page::Stored(page) => page.bytes(),
            Page::Changed(image) => image,
        }
    }
}

/// A page that changes, as stored and as it will be.
type ChangedPage<'a> = (u64, Option<Page<'a>>, Option<&'a Image>);

impl Nothing for ChangedPage<'_> {
    const NOTHING: Self = (0, None, None);
}

/// A branch taken on the way down.
#[derive(Clone, Copy, Debug)]
struct Step {
    page: u64,
    /// Number of the record.
    slot: usize,
    /// Lower bound of the keys below the page.
    low: u64,
}

/// What is there for a name.
struct Search {
    /// Its entry.
    found: Option<Entry>,
    /// The lowest key that is free for it, if the name was not found.
    free: Option<u64>,
}

/// The way to a leaf.
struct Path {
    steps: Vec<Step>,
    leaf: Expect,
}

impl<'a> Directory<'a> {
    /// Opens the directory `id` of `size` bytes. `seed` is for the hash of a directory that has no page yet.
    pub(crate) fn open(cache: &'a dyn ObjectCache, id: ObjectId, size: u64, seed: u64) -> Result<Directory<'a>> {
        let fresh = Header { seed, pages: 1, free_head: 0, free_count: 0, hash_bits: HASH_BITS };
        let kept = Box::new([const { OnceCell::new() }; KEPT_PAGES]);
        let (changed, cut, called) = (BTreeMap::new(), None, Few::new());
        let mut directory = Directory { cache, id, stored: None, header: None, fresh, changed, cut, called, kept };
        if size > 0 {
            let header = Header::parse(&*directory.page(0)?, id, size)?;
            directory.stored = Some(header);
            directory.header = Some(header);
        }
        Ok(directory)
    }

    /// Lets few hashes stand for many names, to test what happens to names with the same hash.
    #[cfg(test)]
    fn with_hash_bits(mut self, bits: u8) -> Self {
        self.fresh.hash_bits = bits;
        self
    }

    /// The entry of `name`.
    pub(crate) fn lookup(&self, name: &[u8]) -> Result<Option<Entry>> {
        Ok(self.find(name)?.found)
    }

    /// The name with this key, if it is one of the object.
    pub(crate) fn name_at(&self, key: u64, object: ObjectId) -> Result<Option<Vec<u8>>> {
        if !(KEY_MIN..KEY_END).contains(&key) {
            return Ok(None);
        }
        let mut name = None;
        self.scan(key - 1, |record| {
            if (record.key, record.object) == (key, object) {
                name = Some(record.name.to_vec());
            }
            ControlFlow::Break(())
        })?;
        Ok(name)
    }

    /// Whether there is no entry.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        let mut empty = true;
        self.scan(0, |_| {
            empty = false;
            ControlFlow::Break(())
        })?;
        Ok(empty)
    }

    /// Shows the entries with keys above `after`, in ascending order, until told to stop.
    pub(crate) fn scan(&self, after: u64, mut show: impl FnMut(LeafRecord<'_>) -> ControlFlow<()>) -> Result<()> {
        if self.header.is_none() {
            return Ok(());
        }
        let mut from = after.saturating_add(1);
        while from < KEY_END {
            let leaf = self.descend(from)?.leaf;
            let image = self.page(leaf.page)?;
            for record in Node::parse(&image, leaf)?.entries() {
                let record = record?;
                if record.key >= from && show(record).is_break() {
                    return Ok(());
                }
            }
            debug_assert!(leaf.high > from);
            from = leaf.high;
        }
        Ok(())
    }

    /// Shows the entries in these pages, in no order. Every leaf of a directory is in use, so the entries of two states in all pages
    /// that differ between them are what differs, and what has only moved from page to page.
    pub(crate) fn scan_pages(&self, pages: &[u64], mut show: impl FnMut(LeafRecord<'_>)) -> Result<()> {
        let expect = self.expect_root();
        for &page in pages.iter().filter(|page| **page < expect.pages) {
            let (image, expect) = (self.page(page)?, Expect { page, ..expect });
            if node::parse_free(&image, expect).is_ok() {
                continue;
            }
            let node = Node::parse(&image, expect)?;
            if node.level == 0 {
                node.entries().try_for_each(|record| record.map(&mut show))?;
            }
        }
        Ok(())
    }

    /// Looks for a name, through all keys that it can have.
    fn find(&self, name: &[u8]) -> Result<Search> {
        let first = self.first_key(name);
        let last = first + ((1 << SLOT_BITS) - 1);
        let (mut found, mut free) = (None, Some(first));
        self.scan(first - 1, |record| {
            if record.key > last {
                return ControlFlow::Break(());
            }
            if free == Some(record.key) {
                free = (record.key < last).then_some(record.key + 1);
            }
            if record.name == name {
                found = Some(Entry { object: record.object, kind: record.kind, key: record.key });
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(Search { found, free })
    }

    /// The lowest key that a name can have.
    fn first_key(&self, name: &[u8]) -> u64 {
        let header = self.header.unwrap_or(self.fresh);
        let hash = XxHash3_64::oneshot_with_seed(header.seed, name) >> (64 - u32::from(header.hash_bits));
        // Keys below KEY_MIN are not keys, and the last ones are avoided so that a cookie can be added to.
        hash.clamp(1, (1 << HASH_BITS) - 2) << SLOT_BITS
    }

    fn expect_root(&self) -> Expect {
        let pages = self.header.map_or(0, |header| header.pages);
        Expect { owner: self.id.live(), page: 0, level: None, low: 0, high: KEY_END, pages }
    }

    /// The way to the leaf where `key` belongs.
    fn descend(&self, key: u64) -> Result<Path> {
        let mut expect = self.expect_root();
        let mut steps = Vec::new();
        loop {
            let image = self.page(expect.page)?;
            let node = Node::parse(&image, expect)?;
            if node.level == 0 {
                return Ok(Path { steps, leaf: Expect { level: Some(0), ..expect } });
            }
            let (mut child, mut slot, mut low, mut high) = (0, 0, expect.low, expect.high);
            for (number, branch) in node.branches().enumerate() {
                let branch = branch?;
                if number > 0 && branch.key > key {
                    high = branch.key;
                    break;
                }
                if number > 0 {
                    low = branch.key;
                }
                (child, slot) = (branch.child, number);
            }
            steps.push(Step { page: expect.page, slot, low: expect.low });
            // Levels fall by one at each step, so this ends.
            expect = Expect { page: child, level: Some(node.level - 1), low, high, ..expect };
        }
    }

    /// The newest version of a page, to be changed and put back; zeroes if there is none.
    fn take_version(&mut self, index: u64) -> Result<Rolled> {
        if let Some(changed) = self.changed.remove(&index) {
            return Ok(changed);
        }
        // Of a cut directory only the first page is left.
        let is_left = index == 0 || self.cut.is_none();
        let is_stored = is_left && self.stored.is_some_and(|stored| index < stored.pages);
        Ok(match is_stored.then(|| self.stored_page(index)).transpose()? {
            Some(Page::Kept(page)) => Rolled::of(page, self.id, index),
            Some(Page::Stored(page)) => Rolled::of(&page, self.id, index),
            Some(Page::Changed(_)) | None => Rolled::zeroes(self.id, index),
        })
    }

    fn page(&self, index: u64) -> Result<Page<'_>> {
        if let Some(image) = self.changed.get(&index) {
            return Ok(Page::Changed(image));
        }
        self.stored_page(index)
    }

    fn stored_page(&self, index: u64) -> Result<Page<'_>> {
        let mut places = self.kept.iter();
        let free = loop {
            let Some(place) = places.next() else { break None };
            match place.get() {
                Some((number, page)) if *number == index => return Ok(Page::Kept(page)),
                Some(_) => {}
                None => break Some(place),
            }
        };
        let page = pages::read_page(self.cache, self.id, index)?.ok_or(Error::CorruptDirectory {
            object: self.id,
            page: index,
            offset: 0,
            what: "page was never written",
        })?;
        match free {
            Some(place) => Ok(Page::Kept(&place.get_or_init(|| (index, page)).1)),
            None => Ok(Page::Stored(page)),
        }
    }

    /// Adds the changes to a transaction: whole new pages, and the new size where it shrinks.
    pub(crate) fn stage(mut self, staged: &mut Staged<'_>) -> Result<()> {
        let Some(header) = self.header else { return Ok(()) };
        if self.stored != self.header || self.changed.contains_key(&0) {
            let mut image = self.take_version(0)?;
            header.put(&mut image);
            self.changed.insert(0, image);
        }
        if let Some(bugs) = staged.bugs() {
            bugs.plant_in_pages(&mut self.changed);
        }
        #[cfg(test)]
        crate::audit::plant::in_pages(self.id, &mut self.changed);
        if let Some(audit) = staged.audit() {
            self.tell(audit)?;
        }
        let size = header.pages * PAGE_SIZE as u64;
        if self.stored.is_some_and(|stored| stored.pages > header.pages) {
            staged.op(Op::Truncate { id: self.id, size });
        }
        assert!(self.changed.keys().all(|&page| page < header.pages), "changed pages are within the directory");
        staged.pages(self.id, self.changed.iter().map(|(&index, image)| (index, image)), size)
    }

    /// Tells the audit what changes in the pages.
    fn tell(&self, audit: &mut Audit<'_>) -> Result<()> {
        let stored = self.stored.map_or(0, |header| header.pages);
        let cut = self.cut.as_ref().map(|cut| &cut.changed[..]);
        // Nobody has looked at what other pages were that were given up.
        let is_known = |page: u64| page < stored && (page == 0 || cut.is_none_or(|cut| cut.contains(&page)));
        let old = |page| is_known(page).then(|| self.stored_page(page)).transpose();
        let mut pages = Few::<ChangedPage<'_>, 2>::new();
        for (page, image) in &self.changed {
            pages.push((*page, old(*page)?, Some(image)));
        }
        for page in cut.into_iter().flatten().filter(|page| !self.changed.contains_key(page)) {
            pages.push((*page, old(*page)?, None));
        }
        let mut counting = Counting::new(self.id, |name| self.first_key(name));
        for (page, old, new) in pages.iter() {
            counting.page(*page, old.as_deref(), *new);
        }
        if let Some(cut) = &self.cut {
            counting.cut(cut.lost);
        }
        audit.index(counting.done(), &self.called);
        Ok(())
    }

    /// Checks the whole directory against its invariants and shows each entry with its key. Gives the number of entries.
    pub(crate) fn check(&self, mut show: impl FnMut(LeafRecord<'_>)) -> Result<u64> {
        let Some(header) = self.header else { return Ok(0) };
        let mut reached = std::collections::BTreeSet::from([0]);
        let mut entries = 0;
        let mut waiting = vec![self.expect_root()];
        while let Some(expect) = waiting.pop() {
            let image = self.page(expect.page)?;
            let node = Node::parse(&image, expect)?;
            node.check(&image)?;
            if node.level == 0 {
                for record in node.entries() {
                    let record = record?;
                    if record.key >> SLOT_BITS != self.first_key(record.name) >> SLOT_BITS {
                        let offset = layout::records_offset(expect.page) + record.at;
                        return Err(expect.corrupt(offset, "key is not that of the name"));
                    }
                    entries += 1;
                    show(record);
                }
                continue;
            }
            let branches = node.branches().collect::<Result<Vec<_>>>()?;
            for (slot, branch) in branches.iter().enumerate() {
                if !reached.insert(branch.child) {
                    return Err(expect.corrupt(layout::node_offset(expect.page), "two branches to one page"));
                }
                waiting.push(Expect {
                    page: branch.child,
                    level: Some(node.level - 1),
                    low: if slot == 0 { expect.low } else { branch.key },
                    high: branches.get(slot + 1).map_or(expect.high, |next| next.key),
                    ..expect
                });
            }
        }
        let (mut free, mut count) = (header.free_head, 0);
        while free != 0 {
            let expect = Expect { page: free, ..self.expect_root() };
            if !reached.insert(free) {
                return Err(expect.corrupt(0, "free page is in use or listed twice"));
            }
            free = node::parse_free(&*self.page(free)?, expect)?;
            count += 1;
        }
        let root = self.expect_root();
        if count != header.free_count {
            return Err(root.corrupt(32, "number of free pages differs from their list"));
        }
        if reached.len() as u64 != header.pages {
            return Err(root.corrupt(16, "pages that nothing refers to"));
        }
        Ok(entries)
    }
}

/// Any bytes as any page of a directory, for fuzzing: an error, or records within the page.
pub(crate) fn decode_page(bytes: &[u8]) -> bool {
    let mut is_one = false;
    let mut image: Image = [0; PAGE_SIZE];
    let length = bytes.len().min(PAGE_SIZE);
    image[..length].copy_from_slice(&bytes[..length]);
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| image[at + byte]));
    for page in [0, word(24)] {
        let owner = ObjectId(word(layout::node_offset(page) + 16));
        for (level, pages) in [(None, 100), (Some(0), u64::MAX), (Some(1), 100)] {
            let expect = Expect { owner, page, level, low: 0, high: KEY_END, pages };
            if let Ok(node) = Node::parse(&image, expect)
                && node.check(&image).is_ok()
            {
                assert!(node.level <= LEVEL_MAX && level.is_none_or(|level| level == node.level));
                let keys: Vec<u64> = match node.level {
                    0 => node.entries().flatten().map(|record| record.key).collect(),
                    _ => node.branches().flatten().map(|branch| branch.key).collect(),
                };
                assert!(keys.is_sorted_by(|a, b| a < b) && keys.iter().all(|&key| key < KEY_END));
                is_one = true;
            }
            is_one |= node::parse_free(&image, expect).is_ok();
        }
    }
    for size in [0, PAGE_SIZE as u64, word(16).saturating_mul(PAGE_SIZE as u64), u64::MAX] {
        if let Ok(header) = Header::parse(&image, ObjectId(2), size) {
            let mut again = Rolled::zeroes(ObjectId(2), 0);
            again.put(0, &image);
            header.put(&mut again);
            assert!(*again == image);
            is_one = true;
        }
    }
    is_one
}
