use super::*;
use crate::audit::Audits;
use crate::memory_cache::MemoryCache;
use holdfast_object::{AttrSet, Attributes, Class, PageView, Timestamp};
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::BTreeMap as Model;
use std::sync::Arc;

const ID: ObjectId = ObjectId(7);

fn cache() -> Arc<MemoryCache> {
    let cache = MemoryCache::new(1 << 17);
    let mut staged = Staged::new(&*cache);
    let attributes = Attributes::new(Kind::Directory, Class::Names, 0o755, 0, 0, Timestamp::default());
    staged.op(Op::Create { id: ID, attributes });
    staged.submit(None, Vec::new()).unwrap();
    cache
}

fn open(cache: &MemoryCache, bits: u8) -> Directory<'_> {
    let size = cache.attributes(ID).unwrap().size;
    Directory::open(cache, ID, size, 99).unwrap().with_hash_bits(bits)
}

fn change<T>(cache: &MemoryCache, bits: u8, change: impl FnOnce(&mut Directory<'_>) -> Result<T>) -> Result<T> {
    let mut directory = open(cache, bits);
    let result = change(&mut directory)?;
    let audits = Audits::default();
    let mut staged = Staged::new(cache).audited(&audits);
    directory.stage(&mut staged)?;
    // There are no objects behind the names, so what is between pages is all that there is to compare.
    assert_eq!(staged.unaudited().unwrap().wrong_in_pages(), [""; 0]);
    staged.op(Op::SetAttributes { id: ID, set: AttrSet::default() });
    staged.submit(None, Vec::new())?;
    Ok(result)
}

fn listing(cache: &MemoryCache) -> Model<Vec<u8>, u64> {
    let mut names = Model::new();
    let directory = open(cache, HASH_BITS);
    let count = directory.check(|record| {
        names.insert(record.name.to_vec(), record.object.0);
    });
    assert_eq!(count.unwrap(), names.len() as u64);
    names
}

fn random_name(random: &mut Pcg64, names: u32) -> Vec<u8> {
    let number = random.random_range(0..names);
    let mut name = format!("name-{number}").into_bytes();
    // Some are as long as names can be.
    if number % 7 == 0 {
        name.resize(255, b'x');
    }
    name
}

/// Random changes against a map, several in one transaction now and then.
fn random_changes(seed: u64, bits: u8, names: u32, steps: usize) {
    eprintln!("seed {seed}, {bits} hash bits; replay: random_changes({seed}, {bits}, {names}, {steps})");
    let mut random = Pcg64::seed_from_u64(seed);
    let cache = cache();
    let mut model: Model<Vec<u8>, u64> = Model::new();
    for step in 0..steps {
        // Grows for a while, then shrinks for a while.
        let growing = (step / (steps / 4).max(1)).is_multiple_of(2);
        change(&cache, bits, |directory| {
            for _ in 0..random.random_range(1..4) {
                let name = random_name(&mut random, names);
                let object = ObjectId(random.random_range(1..1 << 48));
                let old = directory.lookup(&name)?;
                assert_eq!(old.map(|entry| entry.object.0), model.get(&name).copied());
                match random.random_range(0..10) {
                    0 => {
                        let replaced = directory.replace(&name, object, Kind::Fifo)?;
                        assert_eq!(replaced, old);
                        if replaced.is_some() {
                            model.insert(name, object.0);
                        }
                    }
                    1..8 if growing => match directory.insert(&name, object, Kind::Regular) {
                        Ok(_) => assert_eq!(model.insert(name, object.0), None),
                        Err(Error::Exists { .. }) => assert!(model.contains_key(&name)),
                        Err(Error::DirectoryFull { .. }) => assert!(bits < 8),
                        Err(error) => return Err(error),
                    },
                    _ => assert_eq!(directory.remove(&name)?.map(|entry| entry.object.0), model.remove(&name)),
                }
            }
            Ok(())
        })
        .unwrap();
        if step % 64 == 0 || step + 1 == steps {
            assert_eq!(listing(&cache), model, "after step {step}");
        }
    }
    // Down to nothing: one page is left.
    for name in model.keys() {
        assert!(change(&cache, bits, |directory| directory.remove(name)).unwrap().is_some());
    }
    assert!(open(&cache, bits).is_empty().unwrap());
    assert_eq!(cache.attributes(ID).unwrap().size, PAGE_SIZE as u64);
    open(&cache, bits).check(|_| ()).unwrap();
}

#[test]
fn behaves_like_a_map() {
    for seed in 0..4 {
        random_changes(seed, HASH_BITS, 1500, 3000);
    }
}

#[test]
fn behaves_like_a_map_when_hashes_collide() {
    random_changes(10, 4, 1500, 2000);
    random_changes(11, 1, 600, 1500);
}

#[test]
fn a_hundred_thousand_entries() {
    const COUNT: u64 = 120_000;
    let cache = cache();
    let name = |number: u64| format!("file.{number:07}").into_bytes();
    for first in (0..COUNT).step_by(8) {
        change(&cache, HASH_BITS, |directory| {
            for number in first..first + 8 {
                directory.insert(&name(number), ObjectId(number + 1), Kind::Regular)?;
            }
            Ok(())
        })
        .unwrap();
    }
    let size = cache.attributes(ID).unwrap().size;
    assert!(size < COUNT * 37 * 2, "{size} bytes for {COUNT} entries of 30 bytes");
    let directory = open(&cache, HASH_BITS);
    assert_eq!(directory.check(|_| ()).unwrap(), COUNT);
    assert_eq!(directory.descend(KEY_END / 2).unwrap().steps.len(), 2, "height of the tree");
    for number in (0..COUNT).step_by(997) {
        let entry = open(&cache, HASH_BITS).lookup(&name(number)).unwrap().unwrap();
        assert_eq!(entry.object, ObjectId(number + 1));
    }
    assert_eq!(directory.lookup(b"file.9999999").unwrap(), None);
    // Half of them go; what is left is found, and pages are used again.
    for number in (0..COUNT).filter(|number| number % 2 == 0) {
        change(&cache, HASH_BITS, |directory| directory.remove(&name(number))).unwrap().unwrap();
    }
    assert_eq!(open(&cache, HASH_BITS).check(|_| ()).unwrap(), COUNT / 2);
    for number in (0..COUNT).step_by(2) {
        change(&cache, HASH_BITS, |directory| directory.insert(&name(number), ObjectId(number + 1), Kind::Regular))
            .unwrap();
    }
    assert!(cache.attributes(ID).unwrap().size <= size + size / 8);
}

/// A directory of three levels, and its keys with their names.
fn three_levels() -> (Arc<MemoryCache>, Vec<(u64, Vec<u8>)>) {
    let cache = cache();
    for first in (0..20_000u32).step_by(50) {
        let names: Vec<_> = (first..first + 50).map(|number| format!("{number:0>100}").into_bytes()).collect();
        insert_all(&cache, &names);
    }
    let mut all = Vec::new();
    open(&cache, HASH_BITS)
        .scan(0, |record| {
            all.push((record.key, record.name.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(all.len(), 20_000);
    assert_eq!(open(&cache, HASH_BITS).descend(1).unwrap().steps.len(), 2);
    (cache, all)
}

fn insert_all(cache: &MemoryCache, names: &[Vec<u8>]) {
    change(cache, HASH_BITS, |directory| {
        names.iter().try_for_each(|name| directory.insert(name, ObjectId(1), Kind::Regular).map(drop))
    })
    .unwrap();
}

fn remove_all(cache: &MemoryCache, names: &[Vec<u8>]) {
    change(cache, HASH_BITS, |directory| {
        names.iter().try_for_each(|name| directory.remove(name).map(|removed| assert!(removed.is_some())))
    })
    .unwrap();
}

/// Whole ranges of keys go while their neighbours stay full, from the low end and in the middle, so that nodes are given
/// up and joined at every level; then they come back, below the keys that are left.
#[test]
fn ranges_drain_and_fill_again() {
    let seed = 3;
    eprintln!("seed {seed}");
    let mut random = Pcg64::seed_from_u64(seed);
    let (cache, all) = three_levels();
    let mut all: Vec<Vec<u8>> = all.into_iter().map(|(_, name)| name).collect();
    let size = cache.attributes(ID).unwrap().size;
    for round in 0..8 {
        let start = if round % 3 == 0 { 0 } else { random.random_range(0..all.len()) };
        let end = (start + random.random_range(1..7000)).min(all.len());
        let mut range = all[start..end].to_vec();
        if round % 2 == 1 {
            range.shuffle(&mut random);
        }
        range.chunks(10).for_each(|part| remove_all(&cache, part));
        assert_eq!(open(&cache, HASH_BITS).check(|_| ()).unwrap(), (all.len() - range.len()) as u64);
        range.chunks(10).for_each(|part| insert_all(&cache, part));
        assert_eq!(open(&cache, HASH_BITS).check(|_| ()).unwrap(), all.len() as u64);
    }
    assert!(cache.attributes(ID).unwrap().size < size + size / 4, "free pages are used again");
    all.shuffle(&mut random);
    for (step, part) in all.chunks(10).enumerate() {
        remove_all(&cache, part);
        if step % 200 == 0 {
            open(&cache, HASH_BITS).check(|_| ()).unwrap();
        }
    }
    assert_eq!(cache.attributes(ID).unwrap().size, PAGE_SIZE as u64);
}

/// A branch node that has lost its first child keeps a first key above its lower bound. What comes back in between is not
/// lost when the node joins its left neighbour.
#[test]
fn joined_branches_keep_what_is_below_their_first_key() {
    let (cache, all) = three_levels();
    let bounds: Vec<u64> = {
        let directory = open(&cache, HASH_BITS);
        let page = directory.page(0).unwrap();
        let branches = Node::parse(&page, directory.expect_root()).unwrap().branches();
        branches.map(|branch| branch.unwrap().key).collect()
    };
    let first_key = |bound: u64| {
        let directory = open(&cache, HASH_BITS);
        let path = directory.descend(bound).unwrap();
        let page = path.steps[1].page;
        let image = directory.page(page).unwrap();
        let expect = Expect { page, level: Some(1), ..directory.expect_root() };
        Node::parse(&image, expect).unwrap().branches().next().unwrap().unwrap().key
    };
    // A child goes as such only where its neighbour is too full to join; that is so in some of the nodes.
    let names_from = |bound: u64| all.iter().filter(move |(key, _)| *key >= bound).map(|(_, name)| name.clone());
    let mut gone: Vec<Vec<u8>> = Vec::new();
    let mut raised = 0;
    for &bound in &bounds[1..] {
        for name in names_from(bound).take(80) {
            remove_all(&cache, std::slice::from_ref(&name));
            gone.push(name);
            if first_key(bound) > bound {
                raised += 1;
                break;
            }
        }
        let back = names_from(bound).next().unwrap();
        gone.retain(|name| *name != back);
        insert_all(&cache, &[back]);
    }
    assert!(raised > 0, "no node lost its first child");
    open(&cache, HASH_BITS).check(|_| ()).unwrap();
    // All but the lowest entries of each node go, so that the nodes join.
    let kept: Vec<Vec<u8>> = bounds.iter().flat_map(|&bound| names_from(bound).take(1)).collect();
    let rest: Vec<_> = names_from(0).filter(|name| !gone.contains(name) && !kept.contains(name)).collect();
    for (step, part) in rest.chunks(10).enumerate() {
        remove_all(&cache, part);
        if step % 20 == 0 {
            open(&cache, HASH_BITS).check(|_| ()).unwrap();
        }
    }
    for name in &kept {
        assert!(open(&cache, HASH_BITS).lookup(name).unwrap().is_some());
    }
    assert_eq!(open(&cache, HASH_BITS).check(|_| ()).unwrap(), kept.len() as u64);
}

#[test]
fn names_with_one_hash_have_256_keys() {
    let cache = cache();
    let mut full = 0;
    for number in 0..600u32 {
        let name = format!("n{number}").into_bytes();
        match change(&cache, 1, |directory| directory.insert(&name, ObjectId(1), Kind::Regular)) {
            Ok(_) => {}
            Err(Error::DirectoryFull { .. }) => full += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // One bit of hash: 0 and 1 share a key, so there are 256 of them.
    assert_eq!(full, 600 - 256);
    assert_eq!(open(&cache, 1).check(|_| ()).unwrap(), 256);
}

/// Every entry that is there all the time is seen exactly once, whatever comes and goes meanwhile.
#[test]
fn streams_are_stable_under_changes() {
    for (seed, bits) in [(1, HASH_BITS), (2, 6)] {
        eprintln!("seed {seed}, {bits} hash bits");
        let mut random = Pcg64::seed_from_u64(seed);
        let cache = cache();
        let steady: Vec<Vec<u8>> = (0..1000).map(|number| format!("steady-{number}").into_bytes()).collect();
        for name in &steady {
            change(&cache, bits, |directory| directory.insert(name, ObjectId(1), Kind::Regular)).unwrap();
        }
        let (mut cookie, mut seen) = (0, Model::new());
        let mut last = 0;
        loop {
            let mut batch = Vec::new();
            open(&cache, bits)
                .scan(cookie, |record| {
                    assert!(record.key > last && record.key < KEY_END);
                    last = record.key;
                    batch.push((record.key, record.name.to_vec()));
                    if batch.len() == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .unwrap();
            let Some((key, _)) = batch.last() else { break };
            cookie = *key;
            for (_, name) in batch {
                *seen.entry(name).or_insert(0) += 1;
            }
            for _ in 0..5 {
                let name = format!("passing-{}", random.random_range(0..2000)).into_bytes();
                let _ = change(&cache, bits, |directory| {
                    if directory.remove(&name)?.is_none() {
                        directory.insert(&name, ObjectId(2), Kind::Regular)?;
                    }
                    Ok(())
                });
            }
        }
        for name in &steady {
            assert_eq!(seen.get(name), Some(&1), "{}", name.escape_ascii());
        }
    }
}

/// A directory of three levels with a free page.
fn grown() -> Arc<MemoryCache> {
    let cache = cache();
    change(&cache, HASH_BITS, |directory| {
        for number in 0..6000u32 {
            let mut name = number.to_string().into_bytes();
            name.resize(200, b'.');
            directory.insert(&name, ObjectId(5), Kind::Regular)?;
        }
        for number in 0..1500u32 {
            let mut name = number.to_string().into_bytes();
            name.resize(200, b'.');
            directory.remove(&name)?;
        }
        Ok(())
    })
    .unwrap();
    let directory = open(&cache, HASH_BITS);
    assert_eq!(directory.descend(1).unwrap().steps.len(), 2);
    assert!(directory.header.unwrap().free_count > 0);
    cache
}

/// Whatever a page holds: errors with its place, no panic, no endless walk.
#[test]
fn foreign_bytes_are_errors() {
    let seed = 5;
    eprintln!("seed {seed}");
    let mut random = Pcg64::seed_from_u64(seed);
    let cache = grown();
    let size = cache.attributes(ID).unwrap().size;
    let pages = size / PAGE_SIZE as u64;
    let mut found = 0;
    for round in 0..400 {
        let page = if round % 4 == 0 { 0 } else { random.random_range(0..pages) };
        let mut before = [0; PAGE_SIZE];
        let other = cache.read(ID, random.random_range(0..pages), 1).unwrap().remove(0);
        cache.forge(ID, page, |bytes| {
            before = *bytes;
            match round % 5 {
                0 => random.fill(&mut bytes[..]),
                1 => bytes.fill(0),
                2 => {
                    let PageView::Data(other) = &other else { unreachable!("written before") };
                    *bytes = *other.bytes();
                }
                _ => {
                    let at = random.random_range(0..200);
                    bytes[at] = random.random();
                }
            }
        });
        match Directory::open(&*cache, ID, size, 0) {
            Err(Error::CorruptDirectory { object: ID, page: 0, .. }) => found += 1,
            Err(error) => panic!("{error}"),
            Ok(directory) => {
                let checked = directory.check(|_| ());
                found += usize::from(checked.is_err());
                let _ = directory.scan(0, |_| ControlFlow::Continue(()));
                let mut directory = directory;
                for number in (0..6000u32).step_by(501) {
                    let mut name = number.to_string().into_bytes();
                    name.resize(200, b'.');
                    let _ = directory.remove(&name);
                    let _ = directory.insert(&name, ObjectId(6), Kind::Regular);
                }
            }
        }
        cache.forge(ID, page, |bytes| *bytes = before);
    }
    assert!(found > 250, "{found} of 400 seen by the check");
    open(&cache, HASH_BITS).check(|_| ()).unwrap();
}

proptest! {
    /// Random pages as the only page of a directory.
    #[test]
    fn any_first_page_is_read_without_panic(
        bytes in proptest::collection::vec(any::<u8>(), 200),
        keep in 0usize..120,
    ) {
        let cache = cache();
        change(&cache, HASH_BITS, |directory| {
            directory.insert(b"one", ObjectId(1), Kind::Regular)?;
            directory.insert(b"two", ObjectId(1), Kind::Regular)
        }).unwrap();
        cache.forge(ID, 0, |page| page[keep..keep + 200].copy_from_slice(&bytes));
        if let Ok(mut directory) = Directory::open(&*cache, ID, PAGE_SIZE as u64, 0) {
            let _ = directory.check(|_| ());
            let _ = directory.lookup(b"two");
            let _ = directory.insert(b"three", ObjectId(1), Kind::Regular);
            let _ = directory.remove(b"one");
        }
    }
}
