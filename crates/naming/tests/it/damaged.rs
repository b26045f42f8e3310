//! Directories damaged on the device, in any field, still take the changes that work in them: the audit of a transaction refuses none, unless
//! what is wrong gets more by it. Pages are stored with checksums, so this is what an older bug has left, or a write that got lost.
//!
//! `HOLDFAST_SEED=n cargo test -p holdfast-naming --test it damaged` replays one seed; `HOLDFAST_RUNS=n` does more of them.

use crate::memory_cache::MemoryCache;
use holdfast_naming::check::check;
use holdfast_naming::{Atime, Error, Namespace, NewNode, Options, RenameMode, Request, Result};
use holdfast_object::{Attributes, Kind, ManualClock, NamePlace, ObjectCache, ObjectId, PAGE_SIZE};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::sync::Arc;

const REQUEST: &Request = &Request::ROOT;
const ROOT: ObjectId = ObjectId::ROOT;
/// Names that are used.
const NAMES: u32 = 90;
/// Requests after the damage.
const STEPS: usize = 40;

type Page = [u8; PAGE_SIZE];

fn space(cache: &Arc<MemoryCache>, unaudited: bool) -> Namespace {
    let clock = Arc::new(ManualClock::new(1_000_000_000_000, 0));
    Namespace::new(cache.clone(), clock, Options { atime: Atime::Never, unaudited, ..Options::default() })
}

/// Long, so that there are few in a page.
fn name(number: u32) -> Vec<u8> {
    let mut name = format!("{number}-").into_bytes();
    name.resize(120 + (number as usize * 37) % 136, b'n');
    name
}

/// Directories in use, the root among them.
fn directories(cache: &MemoryCache) -> Vec<ObjectId> {
    let is_directory = |(_, attributes): &(_, Attributes)| attributes.kind == Kind::Directory;
    cache.objects().into_iter().filter(is_directory).map(|(id, _)| id).collect()
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Create(ObjectId, u32),
    MakeDirectory(ObjectId, u32),
    Unlink(ObjectId, u32),
    RemoveDirectory(ObjectId, u32),
    Link((ObjectId, u32), (ObjectId, u32)),
    Rename((ObjectId, u32), (ObjectId, u32), RenameMode),
}

impl Action {
    fn random(random: &mut Pcg64, directories: &[ObjectId], grows: bool) -> Action {
        let mut place = || {
            let directory = *directories.choose(random).expect("the root at least");
            (directory, random.random_range(0..NAMES))
        };
        let (from, to) = (place(), place());
        match random.random_range(0..20) {
            0 => Action::MakeDirectory(from.0, from.1),
            1 => Action::RemoveDirectory(from.0, from.1),
            2 => Action::Link(from, to),
            3..6 => {
                let modes = [RenameMode::Replace, RenameMode::Exchange, RenameMode::Whiteout { replace: true }];
                Action::Rename(from, to, *modes.choose(random).expect("some"))
            }
            6 => Action::Rename(from, (from.0, to.1), RenameMode::Replace),
            number if grows == (number < 17) => Action::Create(from.0, from.1),
            _ => Action::Unlink(from.0, from.1),
        }
    }

    fn done(self, space: &Namespace) -> Result<()> {
        let forget = |id| space.forget(id, 1);
        match self {
            Action::Create(at, number) => forget(space.mknod(REQUEST, at, &name(number), NewNode::Regular, 0o644)?.id),
            Action::MakeDirectory(at, number) => forget(space.mkdir(REQUEST, at, &name(number), 0o755)?.id),
            Action::Unlink(at, number) => space.unlink(REQUEST, at, &name(number)),
            Action::RemoveDirectory(at, number) => space.rmdir(REQUEST, at, &name(number)),
            Action::Link(from, to) => {
                let id = space.lookup(REQUEST, from.0, &name(from.1))?.id;
                let linked = space.link(REQUEST, id, to.0, &name(to.1));
                forget(id)?;
                linked.and_then(|found| forget(found.id))
            }
            Action::Rename(from, to, mode) => space.rename(REQUEST, from.0, &name(from.1), to.0, &name(to.1), mode),
        }
    }
}

/// Where the fields of a page are, with their lengths.
fn fields(random: &mut Pcg64, index: u64, page: &Page) -> Vec<(usize, usize)> {
    let free = [(0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (40, 1)];
    if index != 0 && page[..4] == *b"HFDF" {
        return free.to_vec();
    }
    let header = [(0, 8), (8, 8), (16, 8), (24, 8), (32, 8), (40, 1), (41, 7)];
    let mut fields = if index == 0 { header.to_vec() } else { Vec::new() };
    let node = if index == 0 { 48 } else { 0 };
    fields.extend([(0, 4), (4, 1), (5, 1), (6, 2), (8, 2), (10, 6), (16, 8), (24, 8)].map(|(at, n)| (node + at, n)));
    let end = (node + 32 + usize::from(u16::from_le_bytes([page[node + 8], page[node + 9]]))).min(PAGE_SIZE);
    let mut records = Vec::new();
    let mut at = node + 32;
    while at + 18 <= end {
        let length = if page[node + 4] > 0 { 16 } else { 18 + usize::from(page[at + 17]) };
        records.push((at, length));
        at += length;
    }
    for _ in 0..4 {
        let Some((at, length)) = records.choose(random).copied() else { break };
        let of_one = match page[node + 4] {
            0 => vec![(at, 8), (at + 8, 8), (at + 16, 1), (at + 17, 1), (at + length - 1, 1)],
            _ => vec![(at, 8), (at + 8, 8)],
        };
        fields.extend(of_one);
    }
    fields.push((end.min(PAGE_SIZE - 1), 1));
    fields
}

/// Another value of a field: of a number, or of any.
fn changed(random: &mut Pcg64, field: &mut [u8]) {
    let mut bytes = [0; 8];
    bytes[..field.len()].copy_from_slice(field);
    let number = u64::from_le_bytes(bytes);
    let other = match random.random_range(0..6) {
        0 => 0,
        1 => number.wrapping_add(1),
        2 => number.wrapping_sub(1),
        3 => random.random_range(0..12),
        4 => number ^ 1 << random.random_range(0..8 * field.len()),
        _ => random.random(),
    };
    field.copy_from_slice(&other.to_le_bytes()[..field.len()]);
}

/// A name space, and what some of its pages were earlier.
struct World {
    cache: Arc<MemoryCache>,
    earlier: Vec<(ObjectId, u64, Box<Page>)>,
}

impl World {
    fn new(random: &mut Pcg64) -> World {
        let cache = MemoryCache::new(1 << 15);
        let made = space(&cache, false);
        assert!(made.initialise(0, 0, 0o755).unwrap());
        let mut world = World { cache, earlier: Vec::new() };
        for number in 0..random.random_range(1..3) {
            Action::MakeDirectory(ROOT, number).done(&made).unwrap();
        }
        for _ in 0..random.random_range(1..4) {
            let grows = random.random();
            for _ in 0..random.random_range(0..200) {
                let directories = directories(&world.cache);
                // What fails is not there, or there already.
                let _ = Action::random(random, &directories, grows).done(&made);
                if random.random_range(0..20) == 0 {
                    world.keep(random);
                }
            }
        }
        assert_eq!(made.audit_failures(), 0);
        world
    }

    /// A random page of a directory.
    fn page(&self, random: &mut Pcg64) -> (ObjectId, u64, Box<Page>) {
        let mut pages = self.cache.objects();
        pages.retain(|(_, attributes)| attributes.kind == Kind::Directory && attributes.size > 0);
        let (id, attributes) = pages.choose(random).expect("there are directories in the root");
        let index = random.random_range(0..attributes.size / PAGE_SIZE as u64);
        (*id, index, Box::new(self.cache.page(*id, index).unwrap_or([0; PAGE_SIZE])))
    }

    fn keep(&mut self, random: &mut Pcg64) {
        let page = self.page(random);
        self.earlier.push(page);
    }

    /// Does some damage to a page; gives which.
    fn damage(&self, random: &mut Pcg64) -> String {
        let earlier: Vec<_> = self.earlier.iter().filter(|page| self.cache.attributes(page.0).is_ok()).collect();
        if let (Some((id, index, page)), 0..2) = (earlier.choose(random), random.random_range(0..6)) {
            self.cache.forge(*id, *index, |image| *image = **page);
            return format!("page {index} of {id} as it was");
        }
        let (id, index, page) = self.page(random);
        let fields = fields(random, index, &page);
        let (at, length) = *fields.choose(random).expect("some");
        let mut field = page[at..at + length].to_vec();
        if random.random_range(0..3) == 0 {
            // Of another place that has something alike.
            let (_, other, from) = self.page(random);
            let like = self::fields(random, other, &from);
            let like: Vec<_> = like.into_iter().filter(|(_, other)| *other == length).collect();
            if let Some((from_at, _)) = like.choose(random) {
                field.copy_from_slice(&from[*from_at..from_at + length]);
            }
        } else {
            for part in field.chunks_mut(8) {
                changed(random, part);
            }
        }
        self.cache.forge(id, index, |image| image[at..at + length].copy_from_slice(&field));
        format!(
            "bytes {at}..{} of page {index} of {id}: {:?} instead of {:?}",
            at + length,
            field,
            &page[at..at + length]
        )
    }

    /// The same to attributes.
    fn damage_attributes(&self, random: &mut Pcg64) -> String {
        let objects = self.cache.objects();
        let (id, attributes) = objects.choose(random).expect("the root at least");
        let any = objects.choose(random).expect("the same").clone();
        let what = random.random_range(0..7);
        self.cache.meddle(*id, |object| match what {
            0 => object.nlink = *[0, 1, 2, 3, object.nlink + 1, u32::MAX].choose(random).expect("some"),
            1 => object.entries = *[0, 1, object.entries + 1, u64::MAX].choose(random).expect("some"),
            2 => object.parent = any.0,
            3 => object.name_key = *[0, any.1.name_key, 700].choose(random).expect("some"),
            4 => object.other_names = any.1.names().collect(),
            5 => object.other_names = vec![NamePlace { directory: any.0, key: 256 }; random.random_range(0..13)],
            _ => object.xattr = any.0,
        });
        format!(
            "field {what} of {id}: {:?} instead of {attributes:?}",
            self.cache.attributes(*id).expect("it is there")
        )
    }
}

fn findings(cache: &Arc<MemoryCache>) -> Vec<String> {
    check(&**cache, cache.objects()).findings.iter().map(ToString::to_string).collect()
}

/// Gives how many requests were done in the damaged directories.
fn one(seed: u64) -> u64 {
    let replay = format!("replay: HOLDFAST_SEED={seed} cargo test -p holdfast-naming --test it damaged");
    let mut random = Pcg64::seed_from_u64(seed);
    let World { mut cache, earlier } = World::new(&mut random);
    let mut done = 0;
    let world = World { cache: cache.clone(), earlier };
    let damages: Vec<String> = (0..random.random_range(1..3))
        .map(|_| match random.random_range(0..5) {
            0 => world.damage_attributes(&mut random),
            _ => world.damage(&mut random),
        })
        .collect();
    for step in 0..STEPS {
        let all = directories(&cache);
        let action = Action::random(&mut random, &all, step < STEPS / 2);
        let (audited, unaudited) = (cache.copy(), cache.copy());
        let (with, without) = (action.done(&space(&audited, false)), action.done(&space(&unaudited, true)));
        if let (Err(error @ Error::Audit { .. }), Ok(())) = (&with, &without) {
            let (before, after) = (findings(&cache), findings(&unaudited));
            assert!(
                after.len() > before.len(),
                "step {step}, {action:?} after {damages:#?}: {error}\nfindings before: {before:#?}\nand after: \
                 {after:#?}\n{replay}"
            );
        } else {
            assert_eq!(with, without, "step {step}, {action:?} after {damages:#?}\n{replay}");
        }
        done += u64::from(with.is_ok());
        cache = unaudited;
    }
    done
}

#[test]
fn damaged_directories_take_what_works_in_them() {
    let number = |variable: &str| std::env::var(variable).ok().map(|value| value.parse().expect("a number"));
    if let Some(seed) = number("HOLDFAST_SEED") {
        one(seed);
        return;
    }
    let runs = number("HOLDFAST_RUNS").unwrap_or(100);
    let done: u64 = (0..runs).map(one).sum();
    assert!(done > runs * 4, "{done} requests were done");
}

/// A directory of some pages, and its first page when it was nearly full and had no other: 18 long names and `short`.
fn grown() -> (Arc<MemoryCache>, Namespace, ObjectId, Box<Page>) {
    let cache = MemoryCache::new(1 << 15);
    let space = space(&cache, false);
    assert!(space.initialise(0, 0, 0o755).unwrap());
    let id = space.mkdir(REQUEST, ROOT, b"directory", 0o755).unwrap().id;
    let make = |name: &[u8]| space.mknod(REQUEST, id, name, NewNode::Regular, 0o644).map(drop).unwrap();
    make(b"short");
    (0..18).for_each(|number| make(&long(number)));
    let first = Box::new(cache.page(id, 0).unwrap());
    assert_eq!(cache.attributes(id).unwrap().size, PAGE_SIZE as u64);
    (18..60).for_each(|number| make(&long(number)));
    assert!(cache.attributes(id).unwrap().size > 3 * PAGE_SIZE as u64);
    (cache, space, id, first)
}

fn long(number: u32) -> Vec<u8> {
    format!("{number:0200}").into_bytes()
}

/// The list of free pages has one more than the directory says: what is left of the pages goes with the last name.
#[test]
fn a_directory_with_lost_pages_gets_empty() {
    let (cache, space, id, _) = grown();
    (0..40).for_each(|number| space.unlink(REQUEST, id, &long(number)).unwrap());
    cache.forge(id, 0, |image| {
        assert!(image[32] > 1, "free pages");
        image[32] -= 1;
    });
    (40..60).for_each(|number| space.unlink(REQUEST, id, &long(number)).unwrap());
    space.unlink(REQUEST, id, b"short").unwrap();
    assert_eq!(cache.attributes(id).unwrap().size, PAGE_SIZE as u64);
    assert!(findings(&cache).is_empty());
}

/// The first page is what it was when there was no other, so that none of the others is known.
#[test]
fn a_directory_whose_root_is_an_older_one_takes_changes() {
    for renames in [false, true] {
        let (cache, space, id, first) = grown();
        cache.forge(id, 0, |image| image[48..].copy_from_slice(&first[48..]));
        if renames {
            // Does not fit where the other was: the root is split, and takes a page that is a lost leaf.
            space.rename(REQUEST, id, b"short", id, &[b'n'; 255], RenameMode::Replace).unwrap();
            assert_eq!(cache.attributes(id).unwrap().size, 3 * PAGE_SIZE as u64);
        } else {
            space.unlink(REQUEST, id, b"short").unwrap();
            assert_eq!(cache.attributes(id).unwrap().size, PAGE_SIZE as u64);
        }
        let names = space.entries(REQUEST, id).unwrap();
        assert_eq!(names.len(), 18 + usize::from(renames));
    }
}
