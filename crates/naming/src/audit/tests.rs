//! Each equation finds the bug that is planted for it, and only bugs are found.

use super::{equations, plant};
use crate::bugs::NameBug;
use crate::check::check;
use crate::directory::layout::*;
use crate::error::{Error, ErrorKind, Result};
use crate::memory_cache::MemoryCache;
use crate::namespace::{Namespace, Options, RenameMode, Request, XattrMode};
use crate::rolled::ATTEMPTS;
use holdfast_object::{Attributes, Kind, ManualClock, NamePlace, ObjectCache, ObjectId, Op, PAGE_SIZE};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

const ROOT: ObjectId = ObjectId::ROOT;
const REQUEST: &Request = &Request::ROOT;

/// All objects, and the entries of the directory.
type State = (Vec<(ObjectId, Attributes)>, Vec<(Vec<u8>, ObjectId, Kind)>);

struct World {
    cache: Arc<MemoryCache>,
    space: Namespace,
    /// A directory with a file `file`, another name of it, `second`, and a directory `below` with nothing in it.
    directory: ObjectId,
    below: ObjectId,
    file: ObjectId,
    is_unaudited: bool,
}

impl World {
    fn new() -> World {
        World::with(false)
    }

    fn with(is_unaudited: bool) -> World {
        let cache = MemoryCache::new(1 << 15);
        let clock = Arc::new(ManualClock::new(1_000_000_000_000, 1_000));
        // A look at a directory is no transaction.
        let options = Options { atime: crate::Atime::Never, unaudited: is_unaudited, ..Options::default() };
        let space = Namespace::new(cache.clone() as Arc<dyn ObjectCache>, clock, options);
        assert!(space.initialise(0, 0, 0o755).unwrap());
        let directory = space.mkdir(REQUEST, ROOT, b"directory", 0o755).unwrap().id;
        let below = space.mkdir(REQUEST, directory, b"below", 0o755).unwrap().id;
        let file = make(&space, directory, b"file").unwrap();
        space.link(REQUEST, file, directory, b"second").unwrap();
        space.setxattr(REQUEST, file, b"user.a", b"1", XattrMode::Set).unwrap();
        for id in [directory, below, file, file] {
            space.forget(id, 1).unwrap();
        }
        World { cache, space, directory, below, file, is_unaudited }
    }

    fn state(&self) -> State {
        (self.cache.objects(), self.space.entries(REQUEST, self.directory).unwrap())
    }

    /// What the check from scratch says of it, which knows nothing of the audit.
    fn is_judged_wrong(&self) -> bool {
        !check(&*self.cache, self.cache.objects()).is_clean()
    }

    fn is_sound(&self) {
        let report = check(&*self.cache, self.cache.objects());
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
}

fn make(space: &Namespace, parent: ObjectId, name: &[u8]) -> Result<ObjectId> {
    space.mknod(REQUEST, parent, name, crate::NewNode::Regular, 0o644).map(|found| found.id)
}

/// What a request does.
type Requested = fn(&World) -> Result<()>;

fn creates(world: &World) -> Result<()> {
    make(&world.space, world.directory, b"new").map(drop)
}

fn links(world: &World) -> Result<()> {
    world.space.link(REQUEST, world.file, world.directory, b"third").map(drop)
}

fn unlinks(world: &World) -> Result<()> {
    world.space.unlink(REQUEST, world.directory, b"second")
}

fn makes_directory(world: &World) -> Result<()> {
    world.space.mkdir(REQUEST, world.directory, b"new", 0o755).map(drop)
}

fn removes_directory(world: &World) -> Result<()> {
    world.space.rmdir(REQUEST, world.directory, b"below")
}

fn moves(world: &World) -> Result<()> {
    world.space.rename(REQUEST, world.directory, b"below", ROOT, b"moved", RenameMode::Replace)
}

fn sets_xattr(world: &World) -> Result<()> {
    world.space.setxattr(REQUEST, world.below, b"user.b", b"2", XattrMode::Set)
}

/// Changes what the operations set of an object.
fn of_set(
    id: impl Fn(ObjectId) -> bool + Clone,
    change: impl Fn(&mut holdfast_object::AttrSet) + Clone,
) -> impl FnMut(&mut Vec<Op>) + Clone {
    move |ops| {
        let sets = ops.iter_mut().filter_map(|op| match op {
            Op::SetAttributes { id: of, set } if id(*of) => Some(set),
            _ => None,
        });
        sets.for_each(&change);
    }
}

/// Changes what a new object is.
fn of_new(change: impl Fn(&mut Attributes) + Clone) -> impl FnMut(&mut Vec<Op>) + Clone {
    move |ops| {
        let new = ops.iter_mut().filter_map(|op| match op {
            Op::Create { attributes, .. } => Some(attributes),
            _ => None,
        });
        new.for_each(&change);
    }
}

/// Plants a bug in the operations of a request, and expects that these equations find it, and that nothing has happened; and that without the audit
/// it does happen, and the check from scratch finds it.
fn finds(expected: &[&str], request: Requested, plant: impl FnMut(&mut Vec<Op>) + Clone + 'static) {
    finds_after(|_| (), expected, request, plant);
}

fn finds_after(
    prepare: fn(&World),
    expected: &[&str],
    request: Requested,
    plant: impl FnMut(&mut Vec<Op>) + Clone + 'static,
) {
    let world = World::new();
    prepare(&world);
    plant::operations(plant.clone());
    refused(&world, expected, request);
    let unaudited = World::with(true);
    prepare(&unaudited);
    unaudited.is_sound();
    plant::operations(plant);
    request(&unaudited).unwrap();
    plant::over();
    assert!(unaudited.is_judged_wrong(), "{expected:?}: the check finds nothing");
}

fn found_in(error: &Error) -> BTreeSet<&'static str> {
    let Error::Audit { failed, .. } = error else { panic!("{error}") };
    equations().filter(|name| failed.contains(&format!("\"{name}\""))).collect()
}

fn refused(world: &World, expected: &[&str], request: Requested) {
    let before = world.state();
    let error = request(world).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(found_in(&error), expected.iter().copied().collect(), "{error}");
    assert_eq!(world.state(), before, "{error}");
    assert_eq!(world.space.audit_failures(), ATTEMPTS as u64);
    world.is_sound();
    // Without the bug it works.
    plant::over();
    request(world).unwrap();
    world.is_sound();
    assert_eq!(world.space.audit_failures(), ATTEMPTS as u64);
}

#[test]
fn wrong_operations_are_refused() {
    let parent = |set: &mut holdfast_object::AttrSet| set.entries = None;
    finds(&["entries"], creates, of_set(|_| true, parent));
    finds(&["entries"], unlinks, of_set(|_| true, |set| set.entries = set.entries.map(|entries| entries - 1)));
    finds(&["links"], creates, of_new(|new| new.nlink = 2));
    finds(&["links"], creates, of_new(|new| new.kind = Kind::Fifo));
    finds(&["links"], links, of_set(|_| true, |set| set.nlink = set.nlink.map(|links| links - 1)));
    finds(&["links"], unlinks, of_set(|_| true, |set| set.nlink = set.nlink.map(|links| links + 1)));
    finds(&["links", "extended attributes"], unlinks, |ops| {
        // A file that has another name goes, its extended attributes stay.
        let id = ops.last().unwrap().target();
        *ops.last_mut().unwrap() = Op::Delete { id };
    });
    let less = |set: &mut holdfast_object::AttrSet| set.nlink = set.nlink.map(|links| links - 1);
    finds(&["links of directories"], makes_directory, of_set(|_| true, less));
    finds(&["links of directories"], makes_directory, of_new(|new| new.nlink = 1));
    finds(&["links of directories"], removes_directory, of_set(|_| true, |set| set.nlink = None));
    finds(&["links of directories"], moves, of_set(|id| id == ROOT, |set| set.nlink = None));
    finds(&["listed names"], creates, of_new(|new| new.name_key += 1));
    finds(&["listed names"], makes_directory, of_new(|new| new.parent = ROOT));
    // A list that lacks a name is no damage: one that has been full lacks some (0012). So only the audit, which knows the state before, can tell.
    let world = World::new();
    plant::operations(of_set(|_| true, |set| set.other_names = None));
    refused(&world, &["listed names"], links);
    finds(&["listed names"], moves, of_set(|_| true, |set| (set.parent, set.name_key) = (None, None)));
    finds(&["extended attributes"], sets_xattr, of_set(|_| true, |set| set.xattr = None));
    finds(&["extended attributes"], sets_xattr, of_new(|new| new.parent = ROOT));
    let one_name = |world: &World| world.space.unlink(REQUEST, world.directory, b"file").unwrap();
    finds_after(one_name, &["extended attributes"], unlinks, |ops| {
        ops.remove(ops.iter().position(|op| matches!(op, Op::Delete { .. })).unwrap());
    });
    finds(&["directory sizes"], creates, |ops| {
        let sizes = ops.iter_mut().filter_map(|op| match op {
            Op::Write { size_min, .. } => Some(size_min),
            _ => None,
        });
        sizes.for_each(|size| *size += 4096);
    });
}

#[test]
fn an_open_file_is_not_deleted() {
    let world = World::new();
    world.space.open(REQUEST, world.file, crate::Access::READ, false).unwrap();
    world.space.unlink(REQUEST, world.directory, b"file").unwrap();
    plant::operations(|ops| {
        let id = ops.last().unwrap().target();
        let Op::SetAttributes { set, .. } = ops.last().unwrap() else { panic!("{ops:?}") };
        assert_eq!(set.nlink, Some(0));
        *ops.last_mut().unwrap() = Op::Delete { id };
        // What a deletion that is meant would do as well.
        ops.push(Op::Delete { id: ObjectId(id.0 + 1) });
    });
    assert_eq!(world.cache.attributes(world.file).unwrap().xattr, ObjectId(world.file.0 + 1));
    let error = unlinks(&world).unwrap_err();
    assert_eq!(found_in(&error), BTreeSet::from(["sessions"]), "{error}");
    plant::over();
    unlinks(&world).unwrap();
    world.is_sound();
    world.space.release(world.file).unwrap();
    assert!(world.cache.attributes(world.file).is_err());
    world.is_sound();
}

/// Changes pages of a directory as they are about to be staged, and tells that it has.
fn on_pages(done: &Rc<Cell<bool>>, change: impl Fn(u64, &mut Image) -> bool + 'static) {
    let done = done.clone();
    plant::pages(move |pages| {
        done.set(pages.iter_mut().any(|(page, image)| change(*page, image)));
    });
}

/// Goes through a directory's growth, or its decline, until a page could be changed wrongly, and expects that this is found: by these equations,
/// and without them by the check from scratch.
fn finds_in_pages(expected: &[&str], grows: bool, change: impl Fn(u64, &mut Image) -> bool + Copy + 'static) {
    is_found_in_pages(&World::new(), expected, grows, change);
    is_found_in_pages(&World::with(true), expected, grows, change);
}

fn is_found_in_pages(
    world: &World,
    expected: &[&str],
    grows: bool,
    change: impl Fn(u64, &mut Image) -> bool + Copy + 'static,
) {
    let name = |number: u32| format!("{number:0200}").into_bytes();
    let count = if grows { 0 } else { 300 };
    for number in 0..count {
        make(&world.space, world.directory, &name(number)).unwrap();
    }
    let done = Rc::new(Cell::new(false));
    for number in 0..300 {
        let before = world.state();
        on_pages(&done, change);
        let result = match grows {
            true => make(&world.space, world.directory, &name(number)).map(drop),
            false => world.space.unlink(REQUEST, world.directory, &name(number)),
        };
        plant::over();
        if !done.get() {
            result.unwrap();
            continue;
        }
        if world.is_unaudited {
            result.unwrap();
            return assert!(world.is_judged_wrong(), "{expected:?}: the check finds nothing");
        }
        let error = result.unwrap_err();
        assert!(found_in(&error).is_superset(&expected.iter().copied().collect()), "{error}");
        assert_eq!(world.state(), before, "{error}");
        world.is_sound();
        return creates(world).unwrap();
    }
    panic!("there never was such a page");
}

fn node_of(page: u64, image: &mut Image) -> Option<(u8, &mut [u8])> {
    let node = &mut image[node_offset(page)..];
    (node[..4] == NODE_MAGIC).then_some((node[4], node))
}

#[test]
fn wrong_pages_are_refused() {
    let leaf = |change: fn(&mut [u8])| {
        move |page: u64, image: &mut Image| match node_of(page, image) {
            Some((0, node)) => {
                change(node);
                true
            }
            _ => false,
        }
    };
    const ENTRY: usize = NODE_BYTES;
    finds_in_pages(&["page forms"], true, leaf(|node| node[0] ^= 1));
    finds_in_pages(&["keys", "names"], true, leaf(|node| node[ENTRY + 6] ^= 1));
    finds_in_pages(&["names", "listed names"], true, leaf(|node| node[ENTRY] ^= 1));
    finds_in_pages(&["names", "listed names"], true, leaf(|node| node[ENTRY + 9] ^= 1));
    finds_in_pages(&["links"], true, leaf(|node| node[ENTRY + 16] = Kind::Fifo as u8));
    finds_in_pages(&["entries of nodes"], true, leaf(|node| node[6] ^= 1));
    let branch = |page: u64, image: &mut Image| match node_of(page, image) {
        Some((1.., node)) => {
            node[NODE_BYTES + 8] ^= 0x40;
            true
        }
        _ => false,
    };
    finds_in_pages(&["branches"], true, branch);
    finds_in_pages(&["branches"], false, branch);
    let header = |at: usize| {
        move |page: u64, image: &mut Image| {
            let is_it = page == 0 && image[32] > 0;
            image[at] ^= u8::from(is_it);
            is_it
        }
    };
    finds_in_pages(&["directory pages", "directory sizes"], false, header(16));
    finds_in_pages(&["free pages"], false, header(24));
    finds_in_pages(&["directory pages"], false, header(32));
    finds_in_pages(&["free pages"], false, |_, image| {
        let is_free = image[..4] == FREE_MAGIC;
        image[24] ^= u8::from(is_free);
        is_free
    });
    // All other pages are given up, and the list of free ones with them.
    finds_in_pages(&["free pages"], false, |page, image| {
        let is_it = page == 0 && image[16..24] == [1, 0, 0, 0, 0, 0, 0, 0];
        image[24] |= u8::from(is_it);
        is_it
    });
    // A leaf that is lost with all that is in it, and its entries in another page twice.
    finds_in_pages(&["names", "entries"], true, |page, image| match node_of(page, image) {
        Some((0, node)) if page != 0 => {
            node[NODE_BYTES..].fill(0);
            node[6..10].fill(0);
            true
        }
        _ => false,
    });
}

#[test]
fn a_failure_says_what_it_is() {
    let world = World::new();
    plant::operations(of_set(|_| true, |set| set.entries = None));
    let error = creates(&world).unwrap_err().to_string();
    plant::over();
    let said = format!(
        "\"entries\": entries in pages, more than before, by directory, is 1 (sum {:#x}, of squares {:#x}); \
         entries that directories say they have, more than before, is 0; they differ in {} only",
        world.directory.0,
        world.directory.0 * world.directory.0,
        world.directory.0
    );
    for words in [&said, "a logic bug", "(Regular, 1 links)", "set attributes of #2"] {
        assert!(error.contains(words), "{error}");
    }
}

/// What it does to a name space, which a request then meets.
type Damage = fn(&World);

/// What an older bug or a bad block has left does not stand in the way.
#[test]
fn a_damaged_name_space_still_takes_changes() {
    let gone = NamePlace { directory: ObjectId(999), key: 77 };
    let damages: [(&str, Damage, Requested); 8] = [
        ("a name of a file without links", |w| w.cache.meddle(w.file, |file| file.nlink = 0), unlinks),
        ("more links than names", |w| w.cache.meddle(w.file, |file| file.nlink = 7), unlinks),
        ("less links than names", |w| w.cache.meddle(w.file, |file| file.nlink = 1), unlinks),
        ("an empty directory with links", |w| w.cache.meddle(w.below, |below| below.nlink = 9), removes_directory),
        ("entries without a count", |w| w.cache.meddle(w.directory, |directory| directory.entries = 0), unlinks),
        ("names that are not there", |w| w.cache.meddle(w.below, |below| below.parent = ObjectId(999)), moves),
        ("another's extended attributes", |w| w.cache.meddle(w.below, |below| below.xattr = w.file), removes_directory),
        ("no extended attributes", |w| w.cache.meddle(w.below, |below| below.xattr = ObjectId(999)), removes_directory),
    ];
    for (what, damage, request) in damages {
        let world = World::new();
        damage(&world);
        request(&world).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(world.space.audit_failures(), 0, "{what}");
    }
    let world = World::new();
    world.cache.meddle(world.file, |file| file.other_names = vec![gone]);
    unlinks(&world).unwrap();
    world.space.unlink(REQUEST, world.directory, b"file").unwrap();
    assert_eq!(world.space.audit_failures(), 0);
}

/// Entries under keys that are not those of their names go from page to page like others. Those that one page splits off are counted as gone and
/// as put if two others are joined in the same request, as a rename does.
#[test]
fn entries_under_wrong_keys_do_not_stand_in_the_way() {
    let name = |number: u32| format!("{number:0200}").into_bytes();
    let damaged = World::with(true);
    for number in 0..300 {
        if number % 2 == 0 {
            plant::pages(move |pages| {
                for image in pages.values_mut() {
                    let at = image.windows(200).position(|bytes| bytes == name(number));
                    at.into_iter().for_each(|at| image[at] ^= 1);
                }
            });
        }
        make(&damaged.space, damaged.directory, &name(number)).unwrap();
        plant::over();
    }
    let wrong = damaged.state().1.into_iter().filter(|(name, ..)| name.len() == 200 && name[0] == b'1').count();
    assert!(wrong == 150 && damaged.is_judged_wrong(), "{wrong}");
    let clock = Arc::new(ManualClock::new(2_000_000_000_000, 1_000));
    let space = Namespace::new(damaged.cache.clone() as Arc<dyn ObjectCache>, clock, Options::default());
    for to in (301..6000).step_by(2) {
        let (from, to) = (name(to - 300), name(to));
        space.rename(REQUEST, damaged.directory, &from, damaged.directory, &to, RenameMode::Replace).unwrap();
    }
    assert_eq!(space.audit_failures(), 0);
}

/// A list of names has room for some of them.
#[test]
fn files_with_many_names_are_right() {
    let world = World::new();
    let name = |number: u32| format!("name {number}").into_bytes();
    for number in 0..30 {
        world.space.link(REQUEST, world.file, world.directory, &name(number)).unwrap();
    }
    for number in 0..30 {
        let to = format!("to {number}").into_bytes();
        let renamed = world.space.rename(REQUEST, world.directory, &name(number), ROOT, &to, RenameMode::Replace);
        renamed.unwrap();
        if number % 3 == 0 {
            world.space.unlink(REQUEST, ROOT, &to).unwrap();
        }
    }
    world.is_sound();
    let names = |directory| world.space.entries(REQUEST, directory).unwrap().into_iter();
    for directory in [world.directory, ROOT] {
        for (name, ..) in names(directory).filter(|(_, id, _)| *id == world.file) {
            world.space.unlink(REQUEST, directory, &name).unwrap();
        }
    }
    world.is_sound();
    assert_eq!(world.space.audit_failures(), 0);
}

#[test]
fn directories_that_grow_and_shrink_are_right() {
    let world = World::new();
    let name = |number: u32| format!("{number:0200}").into_bytes();
    for _ in 0..2 {
        for number in 0..300 {
            make(&world.space, world.below, &name(number)).unwrap();
        }
        assert!(world.cache.attributes(world.below).unwrap().size > 4096);
        world.is_sound();
        (0..300).for_each(|number| world.space.unlink(REQUEST, world.below, &name(number)).unwrap());
        assert_eq!(world.cache.attributes(world.below).unwrap().size, 4096);
    }
    assert_eq!(world.space.audit_failures(), 0);
}

#[test]
fn every_equation_has_a_bug_that_it_finds() {
    // Those above; a new equation needs a new bug.
    let planted = [
        "page forms",
        "keys",
        "entries of nodes",
        "branches",
        "free pages",
        "directory pages",
        "directory sizes",
        "names",
        "entries",
        "links",
        "links of directories",
        "listed names",
        "extended attributes",
        "sessions",
    ];
    assert_eq!(equations().collect::<Vec<_>>(), planted);
    let docs = include_str!("../../../../docs/audit.md");
    for name in planted {
        assert!(docs.contains(&format!("| {name} |")), "{name}");
    }
}

/// What hits a page while a request changes it gets no valid checksum: the request is done anew, and nobody notices.
#[test]
fn a_page_that_goes_bad_while_it_is_changed_is_made_anew() {
    let requests: [Requested; 6] = [creates, links, unlinks, makes_directory, removes_directory, moves];
    for (number, request) in requests.into_iter().enumerate() {
        let expected = World::new();
        request(&expected).unwrap();
        for at in [0, 17, HEADER_BYTES + 6, HEADER_BYTES + NODE_BYTES + 2, 500, PAGE_SIZE - 1] {
            let world = World::new();
            plant::scribble(at);
            request(&world).unwrap_or_else(|error| panic!("request {number}, byte {at}: {error}"));
            assert!(!plant::is_scribble_left(), "request {number} has changed no page");
            assert_eq!(names(&world), names(&expected), "request {number}, byte {at}");
            world.is_sound();
        }
    }
    let world = World::new();
    let before = world.state();
    plant::scribble_always(true);
    let error = creates(&world).unwrap_err();
    plant::scribble_always(false);
    assert!(matches!(error, Error::Scribbled { page: 0, .. }) && error.kind() == ErrorKind::Corrupt, "{error}");
    assert_eq!(world.state(), before, "nothing has happened");
    creates(&world).unwrap();
}

fn names(world: &World) -> Vec<(Vec<u8>, Kind)> {
    let entries = world.space.entries(REQUEST, world.directory).unwrap();
    entries.into_iter().map(|(name, _, kind)| (name, kind)).collect()
}

/// Bugs that the lab has, by the request in which each is possible: all are refused, by their equations, and found from scratch if they are not.
#[test]
fn bugs_of_the_lab_are_found() {
    fn makes_pipe(world: &World) -> Result<()> {
        world.space.mknod(REQUEST, world.below, b"pipe", crate::NewNode::Fifo, 0o644).map(drop)
    }
    let one_name: fn(&World) = |world| world.space.unlink(REQUEST, world.directory, b"file").unwrap();
    let as_it_is: fn(&World) = |_| ();
    type Setting<'a> = (NameBug, fn(&World), Requested, &'a [&'a str]);
    let (links_wrong, xattrs_wrong) = (["links"], ["extended attributes"]);
    let bugs: [Setting<'_>; 17] = [
        (NameBug::LinkCount, as_it_is, links, &links_wrong),
        (NameBug::EntryCount, as_it_is, creates, &["entries"]),
        (NameBug::EntryWithoutObject, as_it_is, makes_pipe, &links_wrong),
        (NameBug::ObjectWithoutEntry, one_name, unlinks, &links_wrong),
        (NameBug::DeletedInUse, as_it_is, unlinks, &["links", "extended attributes"]),
        (NameBug::WrongKind, as_it_is, makes_pipe, &links_wrong),
        (NameBug::WrongName, as_it_is, creates, &["listed names"]),
        (NameBug::WrongParent, as_it_is, creates, &["listed names"]),
        (NameBug::LostXattr, as_it_is, sets_xattr, &xattrs_wrong),
        (NameBug::DirectorySize, as_it_is, creates, &["directory sizes"]),
        (NameBug::PageForm, as_it_is, creates, &["page forms"]),
        (NameBug::NodeCount, as_it_is, creates, &["entries of nodes"]),
        (NameBug::FreePage, as_it_is, creates, &["free pages"]),
        (NameBug::FreePageCount, as_it_is, creates, &["directory pages"]),
        (NameBug::WrongKey, as_it_is, creates, &["keys"]),
        (NameBug::DirectoryLinks, as_it_is, makes_directory, &["links of directories"]),
        (NameBug::KeptUnheld, one_name, unlinks, &["sessions"]),
    ];
    assert_eq!(bugs.map(|(bug, ..)| bug), NameBug::ALL);
    for (bug, prepare, request, expected) in bugs {
        let world = || {
            let world = World::new();
            prepare(&world);
            world
        };
        // One that stays.
        let bad = world();
        let before = bad.state();
        plant::bug(bug);
        let error = request(&bad).unwrap_err();
        plant::over();
        assert!(found_in(&error).is_superset(&expected.iter().copied().collect()), "{bug}: {error}");
        assert_eq!((bad.state(), bad.space.audit_failures()), (before, ATTEMPTS as u64), "{bug}");
        // One that was in memory: the request does not notice.
        let once = world();
        once.space.do_wrongly(bug);
        request(&once).unwrap();
        assert!(once.space.has_done_wrongly(), "{bug}: the request has nothing of the sort");
        assert_eq!(once.space.audit_failures(), 1, "{bug}");
        let right = world();
        request(&right).unwrap();
        // Each attempt has a new object, and its time.
        let names = |world: &World| world.state().1.into_iter().map(|(name, _, kind)| (name, kind)).collect::<Vec<_>>();
        assert_eq!(names(&once), names(&right), "{bug}");
        once.is_sound();
        let unaudited = World::with(true);
        prepare(&unaudited);
        unaudited.space.do_wrongly(bug);
        let done = request(&unaudited);
        // It has happened, whatever the answer: of an object that is not there nothing can be told.
        assert!(done.is_ok() || bug == NameBug::EntryWithoutObject, "{bug}: {done:?}");
        assert!(unaudited.is_judged_wrong(), "{bug}: the check finds nothing");
    }
}
