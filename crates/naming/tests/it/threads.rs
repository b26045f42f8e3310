//! Several threads on one name space: nothing waits for ever, nothing gets lost.

use crate::support::{READ_WRITE, ROOT, World};
use holdfast_naming::{Error, ErrorKind, Namespace, Options, RenameMode, Request};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const REQUEST: &Request = &Request::ROOT;

fn expected(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::Exists
            | ErrorKind::NotEmpty
            | ErrorKind::IsDirectory
            | ErrorKind::NotDirectory
            | ErrorKind::InvalidArgument
            | ErrorKind::Permission
            | ErrorKind::Stale
    )
}

#[test]
fn random_requests_of_several_threads_leave_order() {
    let seed = 11;
    eprintln!("seed {seed} (the order of the threads is the machine's)");
    let world = World::new();
    let directories: Vec<_> = (0..4).map(|number| world.directory(ROOT, &format!("d{number}"))).collect();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (world, directories) = (&world, &directories);
            scope.spawn(move || {
                let mut random = Pcg64::seed_from_u64(seed * 100 + thread);
                for _ in 0..1500 {
                    let a = *directories.choose(&mut random).unwrap();
                    let b = *directories.choose(&mut random).unwrap();
                    let name = format!("n{}", random.random_range(0..6)).into_bytes();
                    let other = format!("n{}", random.random_range(0..6)).into_bytes();
                    let space = &world.space;
                    let result = match random.random_range(0..9) {
                        0 | 1 => space.create(REQUEST, a, &name, &READ_WRITE).and_then(|made| {
                            let id = made.found.id;
                            space.write(REQUEST, id, random.random_range(0..9000), &[1; 3000], false)?;
                            space.read(id, 0, 12_000)?;
                            space.release(id)?;
                            space.forget(id, 1)
                        }),
                        2 => space.mkdir(REQUEST, a, &name, 0o755).and_then(|found| space.forget(found.id, 1)),
                        3 => space.unlink(REQUEST, a, &name),
                        4 => space.rmdir(REQUEST, a, &name),
                        5 => space.lookup(REQUEST, a, &name).and_then(|found| {
                            let linked = space.link(REQUEST, found.id, b, &other);
                            space.forget(found.id, 1 + u64::from(linked.is_ok()))?;
                            linked.map(drop)
                        }),
                        6 => space.rename(REQUEST, a, &name, b, &other, RenameMode::Exchange),
                        7 => space.readdir(a, 0, |_| true),
                        _ => space.rename(REQUEST, a, &name, b, &other, RenameMode::Replace),
                    };
                    if let Err(error) = result {
                        assert!(expected(error.kind()), "{error}");
                    }
                }
            });
        }
    });
    let report = world.check();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert!(report.orphans.is_empty(), "nobody holds anything any more: {:?}", report.orphans);
}

/// Directories moved into each other by two threads never form a circle.
#[test]
fn crossing_moves_do_not_make_a_circle() {
    let world = World::new();
    for _ in 0..300 {
        let (a, b) = (world.directory(ROOT, "a"), world.directory(ROOT, "b"));
        std::thread::scope(|scope| {
            for (name, into) in [(&b"a"[..], b), (b"b", a)] {
                let space = &world.space;
                scope.spawn(move || space.rename(REQUEST, ROOT, name, into, name, RenameMode::Replace));
            }
        });
        world.assert_clean();
        let above = if world.names(ROOT) == ["a"] { (a, b"a", b"b") } else { (b, b"b", b"a") };
        world.space.rmdir(REQUEST, above.0, above.2).unwrap();
        world.space.rmdir(REQUEST, ROOT, above.1).unwrap();
    }
}

/// Two moves with no directory in common, each of which would put the other's target below what it moves: the second
/// waits for the first, and then sees the circle.
#[test]
fn moves_far_apart_do_not_make_a_circle_either() {
    let world = World::new();
    let (left, right) = (world.directory(ROOT, "left"), world.directory(ROOT, "right"));
    let (a, b) = (world.directory(left, "a"), world.directory(right, "b"));
    let (below_a, below_b) = (world.directory(a, "below"), world.directory(b, "below"));
    let space = Arc::new(Namespace::new(world.cache.clone(), world.clock.clone(), Options::default()));
    let (sender, receiver) = channel();
    let second = space.clone();
    world.cache.before_submit(move || {
        let (done, finished) = channel();
        let thread = std::thread::spawn(move || {
            let moved = second.rename(REQUEST, right, b"b", below_a, b"b", RenameMode::Replace);
            let _ = done.send(());
            moved
        });
        // Time enough for the second move, if nothing held it back.
        let early = finished.recv_timeout(Duration::from_millis(100)).is_ok();
        sender.send((early, thread)).unwrap();
    });
    space.rename(REQUEST, left, b"a", below_b, b"a", RenameMode::Replace).unwrap();
    let (early, thread) = receiver.recv().unwrap();
    assert!(!early, "the second move did not wait");
    let error = thread.join().unwrap().unwrap_err();
    assert_eq!(error, Error::IntoItself { directory: b, into: below_a });
    world.assert_clean();
}
