//! Random actions on the whole stack against the model of a POSIX tree, compared whole after each.
//!
//! `HOLDFAST_SEED=n cargo test -p holdfast-lab --test it model` replays one seed; `HOLDFAST_RUNS=n` does more of them.

use holdfast_block::MemoryDevice;
use holdfast_cache::{Cache, Options as CacheOptions};
use holdfast_lab::model::{Model, Plan, Profile, compare, run};
use holdfast_logical::Logical;
use holdfast_naming::check::check;
use holdfast_naming::{Atime, Namespace, Options};
use holdfast_object::{Arena, Attributes, DomainId, ManualClock, ObjectCache, ObjectId, ObjectStore};
use holdfast_physical::{CreateOptions, Module, OpenOptions};
use std::sync::Arc;

const START_NS: u64 = 1_700_000_000_000_000_000;

/// The stack from naming's cache down to a memory device.
struct Stack {
    device: Arc<MemoryDevice>,
    module: Arc<Module>,
    cache: Arc<Cache>,
}

impl Stack {
    fn create(blocks: u64, frames: u32) -> Stack {
        let device = Arc::new(MemoryDevice::new(blocks));
        let options = CreateOptions::new([1; 16], [2; 16]);
        let clock = Arc::new(ManualClock::new(START_NS, 1));
        Module::create(device.clone(), Arena::new(64, 4096).expect("memory"), clock, &options).expect("a new store");
        Stack::open(device, frames)
    }

    fn open(device: Arc<MemoryDevice>, frames: u32) -> Stack {
        // Ages of epochs come from a clock of their own; the name space's clock stands still during an action.
        let clock = Arc::new(ManualClock::new(START_NS, 10_000));
        let arena = Arena::new(frames, 256 << 10).expect("memory");
        let module = Module::open(device.clone(), arena.clone(), clock.clone(), &OpenOptions::default());
        let module = Arc::new(module.expect("the store opens"));
        let store = Arc::new(Logical::assemble(vec![module.clone()]).expect("one device is enough"));
        let options = CacheOptions { reserve_step_blocks: 0, ..CacheOptions::for_frames(frames) };
        let (cache, _) = Cache::open(store, arena, clock, DomainId::MAIN, options).expect("the cache opens");
        Stack { device, module, cache: Arc::new(cache) }
    }

    /// All objects, as of the last recovery point.
    fn objects(&self) -> Vec<(ObjectId, Attributes)> {
        let (mut objects, mut after) = (Vec::new(), ObjectId::NONE);
        loop {
            let some = self.module.objects(DomainId::MAIN, after, 100).expect("objects can be listed");
            let Some((last, _)) = some.last() else { return objects };
            after = last.object;
            objects.extend(some.into_iter().map(|(key, attributes)| (key.object, attributes)));
        }
    }

    fn assert_equal(&self, model: &Model, clock: &Arc<ManualClock>, hint: &str) {
        let options = Options { atime: Atime::Never, ..Options::default() };
        let space = Namespace::new(self.cache.clone(), clock.clone(), options);
        let differences = compare(&space, model);
        assert!(differences.is_empty(), "{hint}\n{}", lines(&differences));
        self.cache.sync_all().expect("a recovery point");
        let report = check(&*self.cache, self.objects());
        assert!(report.is_clean(), "{hint}\n{}", lines(&report.findings));
    }
}

fn lines<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

fn one(seed: u64, steps: usize, profile: Profile, frames: u32) {
    let hint = format!("replay: HOLDFAST_SEED={seed} cargo test -p holdfast-lab --test it model");
    let stack = Stack::create(1 << 15, frames);
    let clock = Arc::new(ManualClock::new(START_NS, 0));
    let plan = Plan { seed, steps, profile, naming_dies_each: 50, repeat_each: 3 };
    let mut model = match run(stack.cache.clone(), clock.clone(), plan) {
        Ok(model) => model,
        Err(failure) => panic!("{failure}\n{hint}"),
    };
    stack.assert_equal(&model, &clock, &hint);
    stack.cache.check();
    assert_eq!(stack.module.blocks_beyond_reservation(), 0, "{hint}");
    // A clean end, then a start with everything read from the device.
    stack.cache.close().expect("the store closes");
    let device = stack.device.clone();
    drop(stack);
    let stack = Stack::open(device, frames);
    model.end_sessions();
    let space = Namespace::new(stack.cache.clone(), clock.clone(), Options::default());
    space.reclaim_orphans().expect("orphans are deleted");
    stack.assert_equal(&model, &clock, &hint);
    let nodes =
        stack.objects().iter().filter(|(_, attributes)| attributes.kind != holdfast_object::Kind::Xattr).count();
    assert_eq!(nodes, model.nodes().count(), "{hint}");
    assert_eq!(stack.module.status().read_only, None);
}

#[test]
fn random_actions_agree_with_the_model() {
    if let Some(seed) = number("HOLDFAST_SEED") {
        return one(seed, 2000, Profile::default(), 4096);
    }
    for seed in 0..number("HOLDFAST_RUNS").unwrap_or(6) {
        one(seed, 500, Profile::default(), 4096);
    }
}

/// With few frames pages are evicted and epochs are closed for want of memory.
#[test]
fn random_actions_in_little_memory_agree_with_the_model() {
    for seed in 500..500 + number("HOLDFAST_RUNS").unwrap_or(3) {
        one(seed, 400, Profile { sync_percent: 10, ..Profile::default() }, 512);
    }
}
