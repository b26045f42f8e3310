//! Pages of metadata in the cache: of directories, of links, of extended attributes. They are in no memory of the store's, so they are struck
//! in the pool itself.

use holdfast_cache::{Cache, PageState};
use holdfast_naming::{PageField, page_fields};
use holdfast_object::{Arena, Kind, ObjectCache, ObjectId, PAGE_SIZE, PageIndex, PageView};
use holdfast_physical::inject::Random;
use holdfast_physical::scribble::{Aim, Pattern, State};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Whose page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PageKind {
    /// A directory's.
    Directory,
    /// A symbolic link's: its target.
    Link,
    /// Extended attributes'.
    Attributes,
}

impl PageKind {
    /// All of them.
    pub const ALL: [PageKind; 3] = [PageKind::Directory, PageKind::Link, PageKind::Attributes];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            PageKind::Directory => "directory-page",
            PageKind::Link => "link-page",
            PageKind::Attributes => "attributes-page",
        }
    }

    /// Whose they are.
    fn kind(self) -> Kind {
        match self {
            PageKind::Directory => Kind::Directory,
            PageKind::Link => Kind::Symlink,
            PageKind::Attributes => Kind::Xattr,
        }
    }

    fn of(kind: Kind) -> Option<PageKind> {
        PageKind::ALL.into_iter().find(|page| page.kind() == kind)
    }
}

struct Known {
    kind: PageKind,
    object: ObjectId,
    index: PageIndex,
    state: State,
}

/// The pages of a stack's cache.
pub(super) struct Pages {
    cache: Arc<Cache>,
    arena: Arc<Arena>,
    /// As of the last time that no epoch was being written.
    known: Vec<Known>,
    /// What is struck is of one of these, if one of them has it.
    pub(super) about: Vec<ObjectId>,
}

impl Known {
    fn fields(&self, bytes: &[u8; PAGE_SIZE]) -> Vec<PageField> {
        page_fields(self.kind.kind(), self.index, bytes)
    }
}

impl Pages {
    pub(super) fn new(cache: Arc<Cache>, arena: Arc<Arena>) -> Pages {
        Pages { cache, arena, known: Vec::new(), about: Vec::new() }
    }

    /// Looks which there are. Not while an epoch is written.
    pub(super) fn look(&mut self) {
        self.known.clear();
        for kind in PageKind::ALL {
            let quiet = self.cache.quiet();
            let pages = quiet.resident_pages(|id, attributes| {
                // Snapshots have theirs, too; those of live objects are what changes.
                id.live() == id && PageKind::of(attributes.kind) == Some(kind)
            });
            self.known.extend(pages.iter().map(|page| {
                let state = if page.state == PageState::Clean { State::Clean } else { State::Changed };
                Known { kind, object: page.object, index: page.index, state }
            }));
        }
    }

    fn bytes(&self, known: &Known) -> Option<(u32, [u8; PAGE_SIZE])> {
        let views = self.cache.read(known.object, known.index, 1).ok()?;
        let Some(PageView::Data(page)) = views.first() else { return None };
        Some((page.page().frame, *page.bytes()))
    }

    /// What can be struck.
    pub(super) fn survey(&self) -> BTreeSet<(PageKind, State, &'static str)> {
        let of = |known: &Known| {
            let fields = self.bytes(known).map(|(_, bytes)| known.fields(&bytes)).unwrap_or_default();
            fields.into_iter().map(|(name, _)| (known.kind, known.state, name)).collect::<Vec<_>>()
        };
        self.known.iter().flat_map(of).collect()
    }

    /// Strikes; tells what was hit.
    pub(super) fn strike(
        &self,
        kind: PageKind,
        state: State,
        field: &str,
        pattern: Pattern,
        seed: u64,
    ) -> Option<String> {
        let mut random = Random::new(seed);
        let mut found = Vec::new();
        for known in self.known.iter().filter(|known| known.kind == kind && known.state == state) {
            let Some((frame, bytes)) = self.bytes(known) else { continue };
            let fields = known.fields(&bytes);
            if fields.iter().any(|(name, _)| *name == field) {
                found.push((known, frame, bytes, fields));
            }
        }
        if found.iter().any(|(known, ..)| self.about.contains(&known.object)) {
            found.retain(|(known, ..)| self.about.contains(&known.object));
        }
        let (known, frame, bytes, fields) = found.get(random.below(found.len() as u64) as usize)?;
        let aim = Aim { field: Some(field.into()), pattern, ..Aim::default() };
        let (at, flipped) = aim.bits(fields, bytes, &mut random).ok()?;
        let new: Vec<u8> = bytes[at..].iter().zip(&flipped).map(|(byte, bits)| byte ^ bits).collect();
        // As another process would: nobody looks at the page meanwhile, as the lab has one thread.
        rustix::io::pwrite(self.arena.memory(), &new, self.arena.frame_offset(*frame) + at as u64).ok()?;
        Some(format!("{}, page {}, {}, bytes {at} to {}", known.object, known.index, state.name(), at + new.len() - 1))
    }
}
