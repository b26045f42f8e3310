//! Names: making, finding, moving, removing.

use crate::support::{READ_WRITE, ROOT, World};
use holdfast_naming::{Create, Error, ErrorKind, LINK_MAX, NAME_MAX, NewNode, RenameMode, Request};
use holdfast_object::{Attributes, Error as ObjectError, Kind, NAMES_LISTED_MAX, ObjectCache, ObjectId};

const REQUEST: &Request = &Request::ROOT;

impl World {
    fn rename(&self, from: (ObjectId, &str), to: (ObjectId, &str), mode: RenameMode) -> Result<(), Error> {
        self.space.rename(REQUEST, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode)
    }

    fn id(&self, parent: ObjectId, name: &str) -> Option<ObjectId> {
        match self.space.lookup(REQUEST, parent, name.as_bytes()) {
            Ok(found) => {
                self.space.forget(found.id, 1).unwrap();
                Some(found.id)
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound);
                None
            }
        }
    }
}

#[test]
fn names_are_bytes_up_to_255() {
    let world = World::new();
    let longest = vec![0xff; NAME_MAX];
    let id = world.space.mkdir(REQUEST, ROOT, &longest, 0o755).unwrap().id;
    assert_eq!(world.space.lookup(REQUEST, ROOT, &longest).unwrap().id, id);
    let errors = [
        (vec![b'x'; 256], ErrorKind::NameTooLong),
        (b"a/b".to_vec(), ErrorKind::InvalidArgument),
        (b"a\0".to_vec(), ErrorKind::InvalidArgument),
        (b"".to_vec(), ErrorKind::InvalidArgument),
        (b".".to_vec(), ErrorKind::InvalidArgument),
        (b"..".to_vec(), ErrorKind::InvalidArgument),
    ];
    for (name, kind) in errors {
        assert_eq!(world.space.mkdir(REQUEST, ROOT, &name, 0o755).unwrap_err().kind(), kind, "{name:?}");
        assert_eq!(world.space.unlink(REQUEST, ROOT, &name).unwrap_err().kind(), kind, "{name:?}");
    }
    world.assert_clean();
}

#[test]
fn dots_lead_to_the_directory_and_its_parent() {
    let world = World::new();
    let (a, b) = (world.directory(ROOT, "a"), world.directory(ROOT, "b"));
    let inner = world.directory(a, "inner");
    assert_eq!(world.id(inner, "."), Some(inner));
    assert_eq!(world.id(inner, ".."), Some(a));
    assert_eq!(world.id(ROOT, ".."), Some(ROOT));
    world.rename((a, "inner"), (b, "inner"), RenameMode::Replace).unwrap();
    assert_eq!(world.id(inner, ".."), Some(b));
    assert_eq!((world.attributes(a).nlink, world.attributes(b).nlink), (2, 3));
    world.assert_clean();
}

#[test]
fn a_directory_cannot_move_below_itself() {
    let world = World::new();
    let a = world.directory(ROOT, "a");
    let b = world.directory(a, "b");
    let c = world.directory(b, "c");
    for (to, name) in [(a, "x"), (b, "x"), (c, "x")] {
        let error = world.rename((ROOT, "a"), (to, name), RenameMode::Replace).unwrap_err();
        assert_eq!(error, Error::IntoItself { directory: a, into: to });
    }
    // An exchange would put the ancestor below its descendant.
    let error = world.rename((b, "c"), (ROOT, "a"), RenameMode::Exchange).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = world.rename((b, "c"), (ROOT, "a"), RenameMode::Replace).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotEmpty);
    world.assert_clean();
}

#[test]
fn rename_replaces_and_brings_the_contents() {
    let world = World::new();
    let (old, new) = (world.file(ROOT, "old"), world.file(ROOT, "new"));
    world.write(new, 0, b"new contents");
    world.rename((ROOT, "new"), (ROOT, "old"), RenameMode::Replace).unwrap();
    assert_eq!(world.cache.brought(), [new], "the file that takes another's place");
    assert_eq!(world.names(ROOT), ["old"]);
    assert_eq!(world.id(ROOT, "old"), Some(new));
    assert_eq!(world.attributes(old).nlink, 0, "held by id");
    world.rename((ROOT, "old"), (ROOT, "free"), RenameMode::Replace).unwrap();
    assert_eq!(world.cache.brought().len(), 1, "no name was replaced");
    world.space.forget(old, 1).unwrap();
    assert_eq!(world.space.getattr(old), Err(Error::Stale(old)));
    world.assert_clean();
}

#[test]
fn rename_minds_kinds_and_flags() {
    let world = World::new();
    let directory = world.directory(ROOT, "directory");
    let file = world.file(ROOT, "file");
    world.file(directory, "inside");
    let empty = world.directory(ROOT, "empty");
    let kind = |from: &str, to: &str, mode| world.rename((ROOT, from), (ROOT, to), mode).unwrap_err().kind();
    assert_eq!(kind("file", "directory", RenameMode::Replace), ErrorKind::IsDirectory);
    assert_eq!(kind("directory", "file", RenameMode::Replace), ErrorKind::NotDirectory);
    assert_eq!(kind("empty", "directory", RenameMode::Replace), ErrorKind::NotEmpty);
    assert_eq!(kind("file", "empty", RenameMode::NoReplace), ErrorKind::Exists);
    assert_eq!(kind("file", "nothing", RenameMode::Exchange), ErrorKind::NotFound);
    assert_eq!(kind("nothing", "file", RenameMode::Replace), ErrorKind::NotFound);
    world.rename((ROOT, "directory"), (ROOT, "empty"), RenameMode::Replace).unwrap();
    assert_eq!(world.id(ROOT, "empty"), Some(directory));
    assert_eq!(world.attributes(empty).nlink, 0);
    assert_eq!(world.attributes(ROOT).nlink, 3);
    world.rename((ROOT, "empty"), (ROOT, "file"), RenameMode::Exchange).unwrap();
    assert_eq!((world.id(ROOT, "file"), world.id(ROOT, "empty")), (Some(directory), Some(file)));
    world.assert_clean();
}

#[test]
fn exchange_across_directories_moves_both() {
    let world = World::new();
    let (left, right) = (world.directory(ROOT, "left"), world.directory(ROOT, "right"));
    let (directory, file) = (world.directory(left, "x"), world.file(right, "y"));
    world.rename((left, "x"), (right, "y"), RenameMode::Exchange).unwrap();
    assert_eq!((world.id(left, "x"), world.id(right, "y")), (Some(file), Some(directory)));
    assert_eq!((world.attributes(left).nlink, world.attributes(right).nlink), (2, 3));
    assert_eq!(world.attributes(directory).parent, right);
    assert_eq!(world.attributes(file).parent, left);
    world.assert_clean();
}

#[test]
fn two_names_of_one_file() {
    let world = World::new();
    let file = world.file(ROOT, "one");
    world.space.link(REQUEST, file, ROOT, b"two").unwrap();
    assert_eq!(world.attributes(file).nlink, 2);
    world.rename((ROOT, "one"), (ROOT, "two"), RenameMode::Replace).unwrap();
    assert_eq!(world.names(ROOT), ["one", "two"], "a rename between names of one file does nothing");
    world.space.unlink(REQUEST, ROOT, b"one").unwrap();
    assert_eq!(world.attributes(file).nlink, 1);
    assert_eq!(world.id(ROOT, "two"), Some(file));
    let directory = world.directory(ROOT, "directory");
    let error = world.space.link(REQUEST, directory, ROOT, b"second").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission);
    world.assert_clean();
}

#[test]
fn links_have_a_limit_and_directories_have_none() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.cache.meddle(file, |attributes| attributes.nlink = LINK_MAX);
    assert_eq!(world.space.link(REQUEST, file, ROOT, b"more").unwrap_err(), Error::TooManyLinks(file));
    world.cache.meddle(ROOT, |attributes| attributes.nlink = LINK_MAX + 7);
    world.directory(ROOT, "directory");
    assert_eq!(world.attributes(ROOT).nlink, LINK_MAX + 8);
}

#[test]
fn nothing_is_made_in_a_removed_directory() {
    let world = World::new();
    let gone = world.directory(ROOT, "gone");
    let file = world.file(ROOT, "file");
    world.space.rmdir(REQUEST, ROOT, b"gone").unwrap();
    let kinds = [
        world.space.mkdir(REQUEST, gone, b"x", 0o755).map(drop),
        world.space.create(REQUEST, gone, b"x", &READ_WRITE).map(drop),
        world.space.link(REQUEST, file, gone, b"x").map(drop),
        world.rename((ROOT, "file"), (gone, "x"), RenameMode::Replace),
        world.space.lookup(REQUEST, gone, b"..").map(drop),
    ];
    for result in kinds {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NotFound);
    }
    let mut shown = 0;
    world
        .space
        .readdir(gone, 0, |_| {
            shown += 1;
            true
        })
        .unwrap();
    assert_eq!(shown, 0);
    world.assert_clean();
}

#[test]
fn special_files_and_links() {
    let world = World::new();
    let device = world.space.mknod(REQUEST, ROOT, b"device", NewNode::CharDevice(0x0103), 0o666).unwrap();
    assert_eq!((device.attributes.kind, device.attributes.rdev), (Kind::CharDevice, 0x0103));
    let target = vec![b'x'; 4095];
    let link = world.space.symlink(REQUEST, ROOT, b"link", &target).unwrap();
    assert_eq!((link.attributes.size, link.attributes.mode), (4095, 0o777));
    assert_eq!(world.space.readlink(link.id).unwrap(), target);
    let error = world.space.symlink(REQUEST, ROOT, b"longer", &[b'x'; 4096]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NameTooLong);
    assert_eq!(world.space.readlink(device.id).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(world.space.read(device.id, 0, 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    world.assert_clean();
}

#[test]
fn create_opens_what_is_there() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.write(file, 0, b"contents");
    let exclusive = Create { exclusive: true, ..READ_WRITE };
    assert_eq!(world.space.create(REQUEST, ROOT, b"file", &exclusive).unwrap_err().kind(), ErrorKind::Exists);
    let opened = world.space.create(REQUEST, ROOT, b"file", &READ_WRITE).unwrap();
    assert!(!opened.new && opened.found.id == file && opened.found.attributes.size == 8);
    let emptied = world.space.create(REQUEST, ROOT, b"file", &Create { truncate: true, ..READ_WRITE }).unwrap();
    assert_eq!(emptied.found.attributes.size, 0);
    world.directory(ROOT, "directory");
    let error = world.space.create(REQUEST, ROOT, b"directory", &READ_WRITE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IsDirectory);
    world.assert_clean();
}

#[test]
fn a_refused_transaction_leaves_nothing_behind() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.space.mkdir(REQUEST, ROOT, b"directory", 0o755).unwrap();
    let (objects, frames) = (world.cache.objects(), world.cache.arena().free_frames());
    let full = || ObjectError::NoSpace { needed: 9, available: 1 };
    type Attempt = fn(&World, ObjectId) -> Option<Error>;
    let attempts: [Attempt; 6] = [
        |world, _| world.space.mkdir(REQUEST, ROOT, b"new", 0o755).err(),
        |world, _| world.space.symlink(REQUEST, ROOT, b"new", b"target").err(),
        |world, file| world.space.link(REQUEST, file, ROOT, b"new").err(),
        |world, file| world.space.write(REQUEST, file, 0, &[1; 9000], false).err(),
        |world, _| world.rename((ROOT, "file"), (ROOT, "new"), RenameMode::Replace).err(),
        |world, _| world.space.unlink(REQUEST, ROOT, b"file").err(),
    ];
    for attempt in attempts {
        world.cache.refuse(full());
        assert_eq!(attempt(&world, file), Some(Error::Object(full())));
        let after: Vec<(ObjectId, Attributes)> = world.cache.objects();
        assert_eq!(after, objects);
        assert_eq!(world.cache.arena().free_frames(), frames, "no frame is kept");
    }
    world.assert_clean();
}

#[test]
fn streams_go_on_where_they_were() {
    let world = World::new();
    for number in 0..500 {
        world.file(ROOT, &format!("file-{number:03}-with-a-name-of-some-length-so-that-pages-fill"));
    }
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        // A buffer for seven entries; the eighth is not taken.
        let mut batch = Vec::new();
        world
            .space
            .readdir(ROOT, cookie, |entry| {
                if batch.len() == 7 {
                    return false;
                }
                assert!(entry.cookie < 1 << 63);
                batch.push((entry.cookie, entry.name.to_vec()));
                true
            })
            .unwrap();
        let Some((last, _)) = batch.last() else { break };
        cookie = *last;
        names.extend(batch.into_iter().map(|(_, name)| name));
    }
    assert_eq!((&names[0][..], &names[1][..], names.len()), (&b"."[..], &b".."[..], 502));
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 502);
}

#[test]
fn entries_with_attributes_are_held() {
    let world = World::new();
    let file = world.file(ROOT, "file");
    world.space.forget(file, 1).unwrap();
    let mut seen = 0;
    world
        .space
        .readdir_with_attributes(ROOT, 0, |entry, attributes| {
            seen += 1;
            assert_eq!(attributes.map(|attributes| attributes.kind), Some(entry.kind));
            true
        })
        .unwrap();
    assert_eq!(seen, 3);
    world.space.unlink(REQUEST, ROOT, b"file").unwrap();
    assert_eq!(world.attributes(file).nlink, 0, "held by the listing");
    world.space.forget(file, 1).unwrap();
    assert_eq!(world.space.getattr(file), Err(Error::Stale(file)));
    world.space.forget(ROOT, 1).unwrap();
    assert!(world.space.getattr(ROOT).is_ok());
}

#[test]
fn messages_can_name_a_path() {
    let world = World::new();
    let a = world.directory(ROOT, "a");
    let file = world.file(a, "file");
    assert_eq!(world.space.path_of(file), b"/a/file");
    assert_eq!(world.space.path_of(ROOT), b"/");
    assert_eq!(world.space.path_of(ObjectId(999)), b"/#999");
    // By whichever name is left.
    world.space.link(REQUEST, file, ROOT, b"second").unwrap();
    assert_eq!(world.space.path_of(file), b"/a/file");
    world.space.unlink(REQUEST, a, b"file").unwrap();
    assert_eq!(world.space.path_of(file), b"/second");
    world.rename((ROOT, "second"), (a, "file"), RenameMode::Replace).unwrap();
    assert_eq!(world.space.path_of(file), b"/a/file");
    // A circle of parents, as only corruption makes one, is cut off.
    let b = world.directory(a, "b");
    world.cache.meddle(a, |attributes| attributes.parent = b);
    assert!(world.space.path_of(file).starts_with(b"/.../"));
}

#[test]
fn an_object_lists_its_names() {
    let world = World::new();
    let (a, b) = (world.directory(ROOT, "a"), world.directory(ROOT, "b"));
    let file = world.file(a, "0");
    let name = |number: usize| number.to_string();
    let listed = || world.attributes(file).names().count();
    for number in 1..15 {
        world.space.link(REQUEST, file, b, name(number).as_bytes()).unwrap();
        assert_eq!(listed(), (number + 1).min(NAMES_LISTED_MAX));
    }
    assert!(world.check().is_clean());
    world.rename((b, "3"), (a, "3"), RenameMode::Replace).unwrap();
    world.rename((b, "14"), (a, "14"), RenameMode::Replace).unwrap();
    // What was not listed is now, in the place of another one.
    assert_eq!((listed(), world.space.path_of(file)), (NAMES_LISTED_MAX, b"/a/14".to_vec()));
    let other = world.file(ROOT, "other");
    world.rename((ROOT, "other"), (b, "4"), RenameMode::Exchange).unwrap();
    assert_eq!((world.space.path_of(file), world.space.path_of(other)), (b"/other".to_vec(), b"/b/4".to_vec()));
    world.rename((b, "4"), (b, "5"), RenameMode::Replace).unwrap();
    assert!(world.check().is_clean());
    // Down to the last one; of those that were never listed nothing is known.
    for (directory, name) in [(ROOT, "other"), (a, "14"), (a, "3"), (a, "0")] {
        world.space.unlink(REQUEST, directory, name.as_bytes()).unwrap();
        assert!(world.check().is_clean());
    }
    for number in [1, 2, 6, 7, 8, 9, 10, 11, 12] {
        world.space.unlink(REQUEST, b, name(number).as_bytes()).unwrap();
        assert!(world.check().is_clean());
    }
    assert_eq!((world.attributes(file).nlink, listed()), (1, 0));
    assert_eq!(world.space.path_of(file), format!("/b/{file}").into_bytes());
    world.space.link(REQUEST, file, b, b"again").unwrap();
    assert_eq!((listed(), world.space.path_of(file)), (1, b"/b/again".to_vec()));
    world.space.unlink(REQUEST, b, b"13").unwrap();
    world.space.unlink(REQUEST, b, b"again").unwrap();
    assert_eq!((world.attributes(file).nlink, listed()), (0, 0), "held, and nameless");
}

#[test]
fn a_circle_of_parents_is_an_error() {
    let world = World::new();
    let a = world.directory(ROOT, "a");
    let b = world.directory(a, "b");
    world.directory(ROOT, "moved");
    world.cache.meddle(a, |attributes| attributes.parent = b);
    let error = world.rename((ROOT, "moved"), (b, "moved"), RenameMode::Replace).unwrap_err();
    assert!(matches!(error, Error::CorruptTree { .. }), "{error}");
}

#[test]
fn a_rename_can_leave_a_whiteout() {
    let world = World::new();
    let (from, to) = (world.directory(ROOT, "from"), world.directory(ROOT, "to"));
    let file = world.file(from, "name");
    let below = world.directory(from, "below");
    let rename = |name: &[u8], new_name: &[u8], replace| {
        world.space.rename(REQUEST, from, name, to, new_name, RenameMode::Whiteout { replace })
    };
    rename(b"name", b"name", false).unwrap();
    assert_eq!(world.space.lookup(REQUEST, to, b"name").unwrap().id, file);
    let whiteout = world.space.lookup(REQUEST, from, b"name").unwrap();
    assert_eq!((whiteout.attributes.kind, whiteout.attributes.rdev), (Kind::CharDevice, 0));
    assert_eq!((whiteout.attributes.mode, whiteout.attributes.nlink), (0, 1));
    assert_eq!(rename(b"below", b"name", false).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(rename(b"below", b"name", true).unwrap_err().kind(), ErrorKind::NotDirectory);
    rename(b"below", b"moved", false).unwrap();
    assert_eq!((world.attributes(below).parent, world.attributes(from).nlink), (to, 2));
    rename(b"name", b"name", true).unwrap();
    assert_eq!(world.names(from), ["below", "name"]);
    world.assert_clean();
}
