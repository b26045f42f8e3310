//! Comparing two states of which one is damaged, or forged, or has used numbers again, or changes meanwhile. (What sound ones say is compared with a model in the
//! lab.)

use crate::support::{READ_WRITE, ROOT, World, device_fault};
use holdfast_naming::{Error, PathChange, RenameMode, Request};
use holdfast_object::{Attributes, Kind, ObjectCache, ObjectId, SnapshotId};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const REQUEST: &Request = &Request::ROOT;
const OLD: SnapshotId = SnapshotId(1);
const NEW: SnapshotId = SnapshotId(2);

/// A world whose snapshots can be compared.
fn world() -> World {
    let World { cache, clock, space } = World::new();
    let space = space.with_snapshots(Arc::clone(&cache) as _);
    World { cache, clock, space }
}

/// `/top/below/link`, and `/file`, which changes between two snapshots and lists a wrong name, so that it is looked for everywhere.
struct Searched {
    world: World,
    top: ObjectId,
    below: ObjectId,
    file: ObjectId,
}

fn searched() -> Searched {
    let world = world();
    let top = world.directory(ROOT, "top");
    let below = world.directory(top, "below");
    world.space.symlink(REQUEST, below, b"link", b"target").unwrap();
    let file = world.file(ROOT, "file");
    world.cache.keep(OLD);
    world.write(file, 0, b"changed");
    Searched { world, top, below, file }
}

impl Searched {
    /// Makes the link's entry in `below` name a directory.
    fn forge(&self, names: ObjectId) {
        self.world.cache.forge(self.below, 0, |page| {
            assert_eq!(page[96], Kind::Symlink as u8);
            page[88..96].copy_from_slice(&names.0.to_le_bytes());
            page[96] = Kind::Directory as u8;
        });
    }

    /// Keeps what there is now, with another list of the file's names, and compares.
    fn compare(&self, change: impl FnOnce(&mut Attributes)) -> Result<Vec<PathChange>, Error> {
        self.compare_with(NEW, change)
    }

    fn compare_with(&self, to: SnapshotId, change: impl FnOnce(&mut Attributes)) -> Result<Vec<PathChange>, Error> {
        self.world.cache.meddle(self.file, change);
        self.world.cache.keep(NEW);
        self.world.space.diff(OLD, to)
    }

    /// Makes the file one that is nowhere, so that everything is gone through, and compares.
    fn compare_lost(&self, to: SnapshotId) -> Result<Vec<PathChange>, Error> {
        self.world.space.rename(REQUEST, ROOT, b"file", self.top, b"file", RenameMode::Replace).unwrap();
        self.world.cache.forge(self.top, 0, |page| {
            // Its entry names something else than the file.
            let at = page.windows(8).position(|bytes| bytes == self.file.0.to_le_bytes()).unwrap();
            page[at..at + 8].copy_from_slice(&998u64.to_le_bytes());
        });
        self.compare_with(to, |attributes| (attributes.parent, attributes.name_key) = (ObjectId(999), 7))
    }
}

#[test]
fn what_has_a_wrong_list_of_names_is_searched_for() {
    let searched = searched();
    let found = searched.compare(|attributes| attributes.name_key += 1).unwrap();
    assert_eq!(found, [PathChange::Modified(b"file".to_vec())]);
}

/// An entry that leads there is an error that names it, in a snapshot and in the live tree.
fn an_entry_leads_nowhere(to: &[fn(&Searched) -> ObjectId]) {
    for (of, state) in to.iter().flat_map(|of| [(of, NEW), (of, SnapshotId::LIVE)]) {
        let searched = searched();
        let names = of(&searched);
        searched.forge(names);
        let got = searched.compare_lost(state);
        let expected = names.in_snapshot(state);
        assert!(matches!(&got, Err(Error::CorruptTree { object, .. }) if *object == expected), "{names}: {got:?}");
    }
}

/// Also in the live tree, where a directory may be met twice because it was moved.
#[test]
fn a_circle_of_directories_is_an_error_that_names_one() {
    an_entry_leads_nowhere(&[|it| it.top, |it| it.below, |_| ROOT]);
}

/// Also in the live tree, where a directory may be gone because it was removed.
#[test]
fn an_entry_of_a_directory_that_is_not_there_is_an_error_that_names_it() {
    an_entry_leads_nowhere(&[|_| ObjectId(999), |it| it.world.file(it.top, "other")]);
}

#[test]
fn a_directory_that_cannot_be_read_is_not_taken_for_a_wrong_list() {
    let searched = searched();
    let top = searched.top;
    searched.world.space.link(REQUEST, searched.file, top, b"listed").unwrap();
    searched.world.cache.keep(OLD);
    searched.world.write(searched.file, 0, b"changed again");
    searched.world.cache.fail_attributes(top.in_snapshot(NEW), device_fault());
    // Its name in the root would be found by looking everywhere.
    let found = searched.compare(|attributes| {
        let listed = attributes.other_names.remove(0);
        (attributes.parent, attributes.name_key) = (listed.directory, listed.key);
    });
    assert_eq!(found, Err(Error::Object(device_fault())));
}

#[test]
fn a_list_that_names_what_is_gone_or_no_directory_is_wrong() {
    for parent in [|_: &Searched| ObjectId(999), |searched: &Searched| searched.file] {
        let searched = searched();
        let parent = parent(&searched);
        let found = searched.compare(|attributes| attributes.parent = parent).unwrap();
        assert_eq!(found, [PathChange::Modified(b"file".to_vec())], "{parent}");
    }
    // And of a directory above it.
    let searched = searched();
    let below = searched.below;
    let file = searched.world.file(below, "deep");
    searched.world.cache.keep(OLD);
    searched.world.write(file, 0, b"changed");
    searched.world.cache.meddle(below, |attributes| attributes.parent = ObjectId(999));
    let found = searched.compare(|_| {}).unwrap();
    let nameless = format!("{below}/deep").into_bytes();
    assert!(found.contains(&PathChange::Modified(nameless)), "{found:?}");
}

#[test]
fn a_file_in_another_directory_of_the_same_number_is_told() {
    let world = world();
    let (old, aside) = (world.directory(ROOT, "old"), world.directory(ROOT, "aside"));
    let file = world.file(old, "file");
    world.cache.keep(OLD);
    world.space.rename(REQUEST, old, b"file", aside, b"file", RenameMode::Replace).unwrap();
    world.space.rmdir(REQUEST, ROOT, b"old").unwrap();
    world.space.forget(old, 1).unwrap();
    world.cache.next_id(old);
    assert_eq!(world.directory(ROOT, "new"), old, "another directory has its number");
    world.space.rename(REQUEST, aside, b"file", old, b"file", RenameMode::Replace).unwrap();
    world.cache.keep(NEW);
    let changes = world.space.diff(OLD, NEW).unwrap();
    let moved = PathChange::Renamed(b"old/file".to_vec(), b"new/file".to_vec());
    assert!(changes.contains(&moved), "{file}: {changes:?}");
    assert!(changes.contains(&PathChange::Removed(b"old".to_vec())), "{changes:?}");
    assert!(changes.contains(&PathChange::Added(b"new".to_vec())), "{changes:?}");
    assert!(world.cache.attributes(file).is_ok());
}

/// The directories in one, in the order in which they are listed. The last one is gone through first.
fn listed(world: &World, directory: ObjectId) -> [(Vec<u8>, ObjectId); 2] {
    let entries = world.space.entries(REQUEST, directory).unwrap();
    let directories = entries.into_iter().filter(|(.., kind)| *kind == Kind::Directory).map(|(name, id, _)| (name, id));
    directories.collect::<Vec<_>>().try_into().unwrap()
}

/// Between the moment when a directory is listed and the one when it is gone through.
#[test]
fn what_others_do_while_the_live_tree_is_gone_through_is_no_damage() {
    for what in ["moves", "removes", "puts a file in place of"] {
        let world = world();
        for name in ["one", "two"] {
            let above = world.directory(ROOT, name);
            for name in ["a", "b"] {
                world.directory(above, name);
            }
        }
        let [(late_name, late), (_, early)] = listed(&world, ROOT);
        let [(name, first), (_, before)] = listed(&world, early);
        let file = world.file(late, "file");
        world.cache.keep(OLD);
        world.write(file, 0, b"changed");
        // So that it is looked for everywhere.
        world.cache.meddle(file, |attributes| attributes.name_key += 1);
        let (others, cache) = (world.another(), world.cache.clone());
        world.cache.before_look(before, move || {
            if what == "moves" {
                return others.rename(REQUEST, early, &name, late, b"moved", RenameMode::Replace).unwrap();
            }
            others.rmdir(REQUEST, early, &name).unwrap();
            others.forget(first, 1).unwrap();
            assert!(cache.attributes(first).is_err());
            if what != "removes" {
                cache.next_id(first);
                assert_eq!(others.create(REQUEST, early, &name, &READ_WRITE).unwrap().found.id, first);
            }
        });
        let changes = world.space.diff(OLD, SnapshotId::LIVE);
        let path = [&late_name[..], b"/file"].concat();
        assert_eq!(changes, Ok(vec![PathChange::Modified(path)]), "somebody {what} a directory");
        assert!(!world.cache.will_act());
        world.cache.meddle(file, |attributes| attributes.name_key -= 1);
        world.assert_clean();
    }
}

/// Its pages at the last recovery point are not those that it has now, nor are its entries in the same ones.
#[test]
fn a_directory_that_changed_since_the_recovery_point_is_compared_as_it_is() {
    let world = world();
    let directory = world.directory(ROOT, "directory");
    let name = |number: usize| format!("a name of a length that makes some pages {number}");
    for number in 0..300 {
        world.file(directory, &name(number));
    }
    world.cache.keep(OLD);
    let old = world.names(directory);
    world.space.unlink(REQUEST, directory, name(0).as_bytes()).unwrap();
    let others = world.another();
    world.cache.before_look(directory, move || {
        // Pages become one, and are divided.
        (1..250).for_each(|number| others.unlink(REQUEST, directory, name(number).as_bytes()).unwrap());
        for number in 300..900 {
            others.create(REQUEST, directory, name(number).as_bytes(), &READ_WRITE).unwrap();
        }
    });
    let mut changes = world.space.diff(OLD, SnapshotId::LIVE).unwrap();
    assert!(!world.cache.will_act());
    let new = world.names(directory);
    let path = |name: &&String| format!("directory/{name}").into_bytes();
    let gone = old.iter().filter(|name| !new.contains(name)).map(|name| PathChange::Removed(path(&name)));
    let come = new.iter().filter(|name| !old.contains(name)).map(|name| PathChange::Added(path(&name)));
    let modified = PathChange::Modified(b"directory".to_vec());
    let mut expected: Vec<_> = gone.chain(come).chain([modified]).collect();
    changes.sort();
    expected.sort();
    assert_eq!((expected.len(), changes), (1 + 250 + 600, expected));
}

#[test]
fn a_directory_that_is_gone_since_the_recovery_point_has_nothing() {
    let world = world();
    let directory = world.directory(ROOT, "directory");
    let files = ["a", "b"].map(|name| world.file(directory, name));
    world.cache.keep(OLD);
    world.space.unlink(REQUEST, directory, b"a").unwrap();
    let others = world.another();
    world.cache.before_look(directory, move || {
        others.unlink(REQUEST, directory, b"b").unwrap();
        others.rmdir(REQUEST, ROOT, b"directory").unwrap();
        others.forget(directory, 1).unwrap();
    });
    let changes = world.space.diff(OLD, SnapshotId::LIVE).unwrap();
    assert!(!world.cache.will_act() && world.cache.attributes(directory).is_err());
    for path in ["directory/a", "directory/b"] {
        assert!(changes.contains(&PathChange::Removed(path.into())), "{files:?}: {changes:?}");
    }
}

#[test]
fn comparing_the_live_tree_does_not_fail_whatever_happens_in_it() {
    let seed = 7;
    eprintln!("seed {seed} (the order of the threads is the machine's)");
    let world = world();
    let tops: Vec<_> = (0..3).map(|number| world.directory(ROOT, &format!("d{number}"))).collect();
    let file = world.file(ROOT, "file");
    // What nobody touches while others do their work beside it, and what becomes of it before.
    for (number, top) in tops.iter().enumerate() {
        for name in ["changed", "kept", "removed", "renamed"] {
            world.file(*top, &format!("{name}-{number}"));
        }
    }
    world.cache.keep(OLD);
    let mut expected = Vec::new();
    for (number, top) in tops.iter().enumerate() {
        let path = |name: &str| format!("d{number}/{name}-{number}").into_bytes();
        let name = |name: &str| format!("{name}-{number}").into_bytes();
        let changed = world.space.lookup(REQUEST, *top, &name("changed")).unwrap().id;
        world.write(changed, 0, b"changed");
        world.space.unlink(REQUEST, *top, &name("removed")).unwrap();
        world.space.rename(REQUEST, *top, &name("renamed"), *top, &name("new"), RenameMode::Replace).unwrap();
        world.file(*top, &format!("added-{number}"));
        expected.extend([PathChange::Modified(path("changed")), PathChange::Removed(path("removed"))]);
        expected.extend([PathChange::Renamed(path("renamed"), path("new")), PathChange::Added(path("added"))]);
        expected.push(PathChange::Modified(format!("d{number}").into_bytes()));
    }
    world.write(file, 0, b"changed");
    // Nowhere, so that everything is gone through.
    world.cache.meddle(file, |attributes| (attributes.parent, attributes.name_key) = (ObjectId(999_999), 7));
    expected.push(PathChange::Modified(b"file".to_vec()));
    expected.sort();
    // Names of others are 60 digits.
    let is_theirs = |change: &PathChange| {
        let PathChange::Added(path) = change else { return false };
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap();
        name.len() == 60 && name.iter().all(u8::is_ascii_digit)
    };
    let running = AtomicUsize::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (world, tops, running) = (&world, &tops, &running);
            scope.spawn(move || {
                let mut random = Pcg64::seed_from_u64(seed * 100 + thread);
                for _ in 0..3000 {
                    let [from, to] = [(); 2].map(|()| *tops.choose(&mut random).unwrap());
                    let [name, other] = [(); 2].map(|()| format!("{:060}", random.random_range(0..150)).into_bytes());
                    let space = &world.space;
                    // What is refused is refused.
                    let _ = match random.random_range(0..4) {
                        0 => space.mkdir(REQUEST, from, &name, 0o755).and_then(|made| space.forget(made.id, 1)),
                        1 => space.rmdir(REQUEST, from, &name),
                        2 => space.create(REQUEST, from, &name, &READ_WRITE).and_then(|made| {
                            space.release(made.found.id)?;
                            space.forget(made.found.id, 1)
                        }),
                        _ => space.rename(REQUEST, from, &name, to, &other, RenameMode::Replace),
                    };
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        let mut compared = 0;
        while running.load(Ordering::Acquire) > 0 || compared == 0 {
            let mut changes = world.space.diff(OLD, SnapshotId::LIVE).unwrap_or_else(|error| panic!("{error}"));
            // What nobody touches is told as if it were alone.
            changes.retain(|change| !is_theirs(change));
            assert_eq!(changes, expected);
            compared += 1;
        }
        println!("{compared} comparisons");
    });
}
