//! Pages of metadata in the cache: of directories, of links, of extended attributes. They are in no memory of the store's, so they are struck
//! in the pool itself.

use holdfast_cache::{Cache, PageState};
use holdfast_integrity::crc64_neutral;
use holdfast_object::{Arena, Kind, ObjectCache, ObjectId, PAGE_SIZE, PageIndex, PageView};
use holdfast_physical::scribble::{Pattern, State};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;
use std::ops::Range;
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

    fn of(kind: Kind) -> Option<PageKind> {
        match kind {
            Kind::Directory => Some(PageKind::Directory),
            Kind::Symlink => Some(PageKind::Link),
            Kind::Xattr => Some(PageKind::Attributes),
            _ => None,
        }
    }

    /// What is in such a page, by name: see docs/format-directory.md.
    fn fields(self, index: PageIndex, bytes: &[u8; PAGE_SIZE]) -> Vec<(&'static str, Range<usize>)> {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let form: &[(&str, usize)] = match self {
            PageKind::Link => &[],
            PageKind::Attributes if index == 0 => &[("magic", 4), ("count", 4), ("owner", 8)],
            PageKind::Attributes => &[],
            PageKind::Directory if index == 0 => &[
                ("header.magic", 8),
                ("header.seed", 8),
                ("header.pages", 8),
                ("header.free_head", 8),
                ("header.free_count", 8),
                ("header.hash_bits", 1),
                ("header.reserved", 7),
                ("node.magic", 4),
                ("node.level", 1),
                ("node.reserved", 1),
                ("node.count", 2),
                ("node.used", 2),
                ("node.reserved_2", 6),
                ("node.owner", 8),
                ("node.page", 8),
            ],
            PageKind::Directory => &[
                ("node.magic", 4),
                ("node.level", 1),
                ("node.reserved", 1),
                ("node.count", 2),
                ("node.used", 2),
                ("node.reserved_2", 6),
                ("node.owner", 8),
                ("node.page", 8),
            ],
        };
        let mut at = 0;
        let mut fields: Vec<_> = form
            .iter()
            .map(|(name, length)| {
                at += length;
                (*name, at - length..at)
            })
            .collect();
        let contents = if self == PageKind::Link { "target" } else { "records" };
        fields.push((contents, at..end.max(at)));
        fields.push(("behind the end", end.max(at)..PAGE_SIZE));
        fields.retain(|(_, range)| !range.is_empty());
        fields
    }
}

/// Bits to be inverted in a field.
fn bits(pattern: Pattern, field: &Range<usize>, random: &mut Pcg64Mcg) -> (usize, Vec<u8>) {
    let (at, count) = match pattern {
        Pattern::Bit => return (random.random_range(field.clone()), vec![1 << random.random_range(0..8)]),
        Pattern::KeepChecksum => {
            // One that begins in the last bytes would reach beyond the page.
            let bit = 8 * random.random_range(field.clone()) + random.random_range(0..8);
            let (at, neutral) = (0..=bit).rev().find_map(crc64_neutral).expect("there is one from the first bit on");
            return (at, neutral.to_vec());
        }
        Pattern::Word => (random.random_range(field.clone()), 8),
        Pattern::Range => (field.start, random.random_range(16..=512)),
    };
    let count = count.min(PAGE_SIZE - at);
    (at, (0..count).map(|nth| random.random::<u8>() | u8::from(nth == 0)).collect())
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
}

impl Pages {
    pub(super) fn new(cache: Arc<Cache>, arena: Arc<Arena>) -> Pages {
        Pages { cache, arena, known: Vec::new() }
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
            let fields = self.bytes(known).map(|(_, bytes)| known.kind.fields(known.index, &bytes)).unwrap_or_default();
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
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut found = Vec::new();
        for known in self.known.iter().filter(|known| known.kind == kind && known.state == state) {
            let Some((frame, bytes)) = self.bytes(known) else { continue };
            let fields = known.kind.fields(known.index, &bytes);
            found
                .extend(fields.into_iter().filter(|(name, _)| *name == field).map(|(_, at)| (known, frame, bytes, at)));
        }
        if found.is_empty() {
            return None;
        }
        let (known, frame, bytes, range) = &found[random.random_range(0..found.len())];
        let (at, flipped) = bits(pattern, range, &mut random);
        let new: Vec<u8> = bytes[at..].iter().zip(&flipped).map(|(byte, bits)| byte ^ bits).collect();
        // As another process would: nobody looks at the page meanwhile, as the lab has one thread.
        rustix::io::pwrite(self.arena.memory(), &new, self.arena.frame_offset(*frame) + at as u64).ok()?;
        Some(format!("{}, page {}, {}, bytes {at} to {}", known.object, known.index, state.name(), at + new.len() - 1))
    }
}
