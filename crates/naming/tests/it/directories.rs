//! Reading directories while they change, and large ones.

use crate::support::{ROOT, World};
use holdfast_naming::{NewNode, Request};
use holdfast_object::ObjectId;
use std::collections::{BTreeMap, BTreeSet};

const REQUEST: &Request = &Request::ROOT;

/// Small numbers from a seed (xorshift).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A part of a directory: names with their cookies, `count` of them at most.
fn part(world: &World, directory: ObjectId, cookie: u64, count: usize) -> Vec<(Vec<u8>, u64)> {
    let mut entries = Vec::new();
    world
        .space
        .readdir(directory, cookie, |entry| {
            if entries.len() == count {
                return false;
            }
            entries.push((entry.name.to_vec(), entry.cookie));
            true
        })
        .unwrap();
    entries
}

/// Whatever comes and goes between the parts of a reading, an entry that was there all the time is seen exactly once; also
/// from a cookie kept from long before.
#[test]
fn what_stays_is_seen_exactly_once() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5EED_u64);
    println!("replay: SEED={seed} cargo test -p holdfast-naming what_stays_is_seen_exactly_once");
    let mut rng = Rng(seed.max(1));
    let world = World::new();
    let directory = world.directory(ROOT, "d");
    let mut there: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut number = 0;
    let mut change = |there: &mut BTreeSet<Vec<u8>>, rng: &mut Rng, grow: usize| {
        // Not without end: with some seeds it would grow as fast as it is read.
        if rng.below(100) < grow && there.len() < 3000 || there.is_empty() {
            number += 1;
            let name = format!("{number}{}", "x".repeat(rng.below(240))).into_bytes();
            let made = world.space.mknod(REQUEST, directory, &name, NewNode::Fifo, 0o600).unwrap();
            world.space.forget(made.id, 1).unwrap();
            there.insert(name);
        } else {
            let name = there.iter().nth(rng.below(there.len())).unwrap().clone();
            world.space.unlink(REQUEST, directory, &name).unwrap();
            there.remove(&name);
        }
    };
    for round in 0..40 {
        // It grows over several rounds and shrinks again, so that its nodes are cut and joined under the reader.
        let grow = if round % 10 < 5 { 80 } else { 25 };
        let mut stayed = there.clone();
        let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let mut positions = Vec::new();
        let mut cookie = 0;
        loop {
            let entries = part(&world, directory, cookie, 1 + rng.below(20));
            let Some((_, last)) = entries.last() else { break };
            cookie = *last;
            for (name, cookie) in entries {
                *seen.entry(name.clone()).or_default() += 1;
                positions.push((name, cookie));
            }
            for _ in 0..rng.below(30) {
                change(&mut there, &mut rng, grow);
                stayed.retain(|name| there.contains(name));
            }
        }
        for name in &stayed {
            assert_eq!(seen.get(name), Some(&1), "round {round}: {}", name.escape_ascii());
        }
        assert!(seen.values().all(|&times| times == 1), "round {round}");
        // The entry behind a cookie is still the next of those that stayed.
        let positions: Vec<_> = positions.into_iter().filter(|(name, _)| stayed.contains(name)).collect();
        for pair in positions.windows(2).step_by(7) {
            let next = part(&world, directory, pair[0].1, usize::MAX);
            let next = next.into_iter().find(|(name, _)| stayed.contains(name)).unwrap();
            assert_eq!(next, pair[1]);
        }
    }
    world.assert_clean();
}

/// The million of `tests/suites/posix.sh` in small: what an entry costs does not grow with the directory.
#[test]
fn a_hundred_thousand_entries() {
    const COUNT: usize = 100_000;
    let world = World::new();
    let directory = world.directory(ROOT, "d");
    let name = |number: usize| format!("entry {number}").into_bytes();
    for number in 0..COUNT {
        let made = world.space.mknod(REQUEST, directory, &name(number), NewNode::Fifo, 0o600).unwrap();
        world.space.forget(made.id, 1).unwrap();
    }
    let attributes = world.attributes(directory);
    assert_eq!(attributes.entries, COUNT as u64);
    let bytes_per_entry = attributes.size / COUNT as u64;
    assert!(bytes_per_entry < 100, "{bytes_per_entry} bytes for an entry of some 30");
    for number in (0..COUNT).step_by(997) {
        let found = world.space.lookup(REQUEST, directory, &name(number)).unwrap();
        world.space.forget(found.id, 1).unwrap();
    }
    assert!(world.space.lookup(REQUEST, directory, &name(COUNT)).is_err());
    let (mut cookie, mut seen) = (0, BTreeSet::new());
    loop {
        let entries = part(&world, directory, cookie, 1000);
        let Some((_, last)) = entries.last() else { break };
        cookie = *last;
        seen.extend(entries.into_iter().map(|(name, _)| name));
    }
    assert_eq!(seen.len(), COUNT + 2);
    for number in 0..COUNT {
        world.space.unlink(REQUEST, directory, &name(number)).unwrap();
    }
    assert_eq!(world.attributes(directory).entries, 0);
    assert!(world.attributes(directory).size <= 4096, "an empty directory is small again");
    world.assert_clean();
}
