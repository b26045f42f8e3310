//! A main that is made anew in its own place, cut off anywhere, with the last write torn, and blocks that cannot be read until then: it is what it
//! was, with all that it had, or nothing.
use super::format::{Label, Role};
use super::labels::Labelled;
use super::lasting_tests::{BLOCKS, Devices, alone};
use super::tests::{block, get, names, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Filter, MemoryDevice, Operation};
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const LARGER: u64 = 3 * BLOCKS;
const NEW: Uuid = Uuid([71; 16]);

/// Which blocks of the last write arrive.
#[derive(Clone, Copy, Debug)]
pub(super) enum Torn {
    None,
    First,
    Last,
    /// Those in front of a place.
    Before(u64),
    /// Those from there on.
    From(u64),
}

/// A device with blocks that cannot be read until they are written, which is gone after so many requests.
pub(super) struct Failing {
    pub(super) below: Arc<MemoryDevice>,
    unread: Mutex<Vec<u64>>,
    left: AtomicI64,
    torn: Torn,
}

impl Failing {
    pub(super) fn after(requests: i64, below: Arc<MemoryDevice>, unread: Vec<u64>, torn: Torn) -> Failing {
        Failing { below, unread: Mutex::new(unread), left: AtomicI64::new(requests), torn }
    }

    fn fails(&self, operation: Operation, first: u64, error: i32) -> Result<(), crate::Error> {
        let (device, source) = (self.below.name().into(), Arc::new(std::io::Error::from_raw_os_error(error)));
        Err(crate::Error::Io { device, operation, first: Some(first), length_bytes: 0, source })
    }
}

impl Filter for Failing {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), crate::Error> {
        let blocks = bufs.iter().map(|buf| buf.len()).sum::<usize>() / BLOCK_SIZE;
        match self.unread.lock().iter().any(|at| (first..first + blocks as u64).contains(at)) {
            true => self.fails(Operation::Read, first, libc::EIO),
            false => self.below.read(first, bufs),
        }
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), crate::Error> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
        let (all, _none) = bytes.as_chunks::<BLOCK_SIZE>();
        let arrives = match self.torn {
            _ if left > 0 => 0..all.len(),
            Torn::First if left == 0 => 0..all.len().div_ceil(2),
            Torn::Last if left == 0 => all.len() / 2..all.len(),
            Torn::Before(at) if left == 0 => 0..all.len().min(at.saturating_sub(first) as usize),
            Torn::From(at) if left == 0 => all.len().min(at.saturating_sub(first) as usize)..all.len(),
            _ => 0..0,
        };
        let first_there = first + arrives.start as u64;
        for (at, block) in (first_there..).zip(&all[arrives]) {
            self.below.write(at, &[IoSlice::new(block)])?;
            self.unread.lock().retain(|unread| *unread != at);
        }
        if left > 0 { Ok(()) } else { self.fails(Operation::Write, first, libc::ENODEV) }
    }

    fn on_flush(&self) -> Result<(), crate::Error> {
        match self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            true => Ok(()),
            false => self.fails(Operation::Flush, 0, libc::ENODEV),
        }
    }
}

/// What is to be made anew: a set, blocks of its main that cannot be read, and the sizes that its set has, or had.
struct Found {
    what: &'static str,
    devices: Devices,
    label: Label,
    unread: Vec<u64>,
}

fn label_of(main: &Arc<MemoryDevice>) -> Label {
    Labelled::read(main.clone(), Role::Main).unwrap().label
}

fn found(what: &'static str, devices: Devices, unread: impl Fn(&Label) -> Vec<u64>) -> Found {
    let label = label_of(&devices.main);
    let unread = unread(&label);
    Found { what, devices, label, unread }
}

fn both_copies(label: &Label) -> Vec<u64> {
    vec![label.place(), label.place() + 1]
}

/// A main that has become larger alone, with labels left where it ended before, and data around them.
fn grown_alone() -> Devices {
    let (devices, set) = Devices::new(Mode::Synchronous);
    let set = Lasting::of(set, alone());
    set.detach_log().unwrap();
    let old: Vec<Vec<u8>> = (BLOCKS..BLOCKS + 128).map(|at| get(&*devices.main, at)).collect();
    set.grow(LARGER).unwrap();
    for at in (BLOCKS + 128..LARGER).step_by(3) {
        put(&set, at, 70_000 + at).unwrap();
    }
    drop(set);
    for (at, label) in (BLOCKS..).zip(&old) {
        devices.main.write(at, &[IoSlice::new(label)]).unwrap();
    }
    devices
}

fn all() -> Vec<Found> {
    let went_alone = || {
        let (devices, set) = Devices::new(Mode::Synchronous);
        let set = Lasting::of(set, alone());
        set.detach_log().unwrap();
        put(&set, 310, 77).unwrap();
        drop(set);
        devices
    };
    let grown = || {
        let (devices, set) = Devices::new(Mode::Synchronous);
        let set = Lasting::of(set, alone());
        set.grow(LARGER).unwrap();
        (BLOCKS..LARGER).step_by(12).for_each(|at| put(&set, at, 80_000 + at).unwrap());
        set.flush().unwrap();
        set.settle().unwrap();
        drop(set);
        devices
    };
    let with_room = |blocks| {
        let found = found("its disk is larger again", grown_alone(), |_| Vec::new());
        found.devices.main.grow(LARGER + 256 + blocks).unwrap();
        found
    };
    let of_two_sizes = || {
        let found = found("it has grown with its log since its backup, and its disk since", grown(), |_| Vec::new());
        found.devices.main.grow(LARGER + 1000).unwrap();
        found
    };
    vec![
        of_two_sizes(),
        found("neither copy of its newest label can be read", went_alone(), both_copies),
        found("nor the label that would be next", went_alone(), |label| {
            let next = Label { sequence: label.sequence + 1, ..label.clone() };
            [both_copies(label), both_copies(&next)].concat()
        }),
        found("a block of its data cannot be read where it ended before", grown(), |_| vec![BLOCKS + 300]),
        found("it has labels at both ends", grown_alone(), |_| Vec::new()),
        found("the newer of them cannot be read", grown_alone(), both_copies),
        with_room(900),
        with_room(100),
        with_room(3),
    ]
}

/// Which label of the old main counts for whoever takes its set for as large as that.
fn counts(main: &Arc<MemoryDevice>, set_blocks: Option<u64>) -> Option<Label> {
    let (seen, label) = as_labelled(main.clone(), set_blocks).ok()?;
    let is_old = label.is_some_and(|label| label.uuid == names(1).main);
    is_old.then(|| Labelled::read(seen, Role::Main).unwrap().label)
}

/// That main says of itself that it is what it was only if it is; whether it says so.
fn is_as_before(found: &Found, before: &Arc<MemoryDevice>, main: &Arc<MemoryDevice>, what: &str) -> bool {
    let mut is_as_before = false;
    for set_blocks in [None, Some(BLOCKS), Some(LARGER)] {
        let Some(label) = counts(main, set_blocks) else { continue };
        is_as_before = true;
        assert_eq!(Some(label), counts(before, set_blocks), "{what}: an older label counts");
        let blocks = |from: u64, to: u64| from as usize * BLOCK_SIZE..to as usize * BLOCK_SIZE;
        let [now, before] = [main, before].map(|main| main.snapshot());
        // Labels that do not count any more may be gone.
        for part in [blocks(0, BLOCKS), blocks(BLOCKS + 128, found.label.blocks)] {
            assert!(part.is_empty() || now[part.clone()] == before[part], "{what}: it has lost data");
        }
    }
    is_as_before
}

#[test]
fn a_main_that_is_made_anew_in_its_place_is_what_it_was_or_nothing_wherever_that_is_cut_off() {
    for found in all() {
        let before = found.devices.main.clone();
        for (with_log, torn) in
            [true, false].into_iter().flat_map(|log| [Torn::None, Torn::First, Torn::Last].map(|torn| (log, torn)))
        {
            let (mut as_before, mut nothing) = (0, 0);
            for left in 0..1000 {
                assert!(left < 999, "it is done some time");
                let what = format!("{}, with its log {with_log}, {torn:?} of request {left} arrives", found.what);
                let devices = &found.devices;
                let [below, backup, log] =
                    [&devices.main, &devices.backup, &devices.log].map(|device| Arc::new((**device).clone()));
                let main = Arc::new(Failing {
                    below: below.clone(),
                    unread: Mutex::new(found.unread.clone()),
                    left: AtomicI64::new(left),
                    torn,
                });
                let made = match with_log {
                    true => rebuild(backup, log.clone(), main, NEW).map(drop),
                    false => rebuild_without_log(backup, main, NEW, false).map(drop),
                };
                if made.is_ok() {
                    // Torn, the first label is there at once.
                    let is_one = as_before > 0 || !matches!(torn, Torn::None);
                    assert!(is_one && nothing > 5, "{what}: {as_before}, {nothing}");
                    check_made(&found, &below, &log, with_log, &what);
                    break;
                }
                *if is_as_before(&found, &before, &below, &what) { &mut as_before } else { &mut nothing } += 1;
            }
        }
    }
}

fn check_made(found: &Found, main: &Arc<MemoryDevice>, log: &Arc<MemoryDevice>, with_log: bool, what: &str) {
    assert_eq!(inspect(&**main).unwrap().map(|label| label.uuid), Some(NEW), "{what}");
    if with_log {
        let copy = Arc::new((**main).clone());
        let (set, _) = Flashlog::open(copy, log.clone(), &options(Mode::Synchronous)).unwrap();
        found.devices.check(&set, what);
        assert!((BLOCKS..set.blocks()).step_by(12).all(|at| get(&set, at) == block(80_000 + at)), "{what}");
    }
    // Nothing of the old ones is left where somebody would look for them when it becomes larger still.
    let larger = Arc::new((**main).clone());
    larger.grow(main.blocks() + 100).unwrap();
    let old = outgrown(larger, BLOCKS).unwrap().map(|shorter| inspect(&*shorter).unwrap().unwrap().uuid);
    assert!(old.is_none_or(|uuid| uuid == NEW), "{what}: {old:?}");
}

#[test]
fn a_device_of_which_no_label_can_be_read_is_left_as_it_is() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    drop(set);
    let label = label_of(&devices.main);
    let main = Arc::new((*devices.main).clone());
    // Only the newest one is there, as after main has become larger.
    super::labels::remove_others(&*main, &label).unwrap();
    let before = main.snapshot();
    let failing = Failing {
        below: main.clone(),
        unread: Mutex::new(both_copies(&label)),
        left: AtomicI64::new(9),
        torn: Torn::None,
    };
    let refused = rebuild(devices.backup.clone(), devices.log.clone(), Arc::new(failing), NEW);
    assert!(matches!(refused, Err(Error::LabelUnread { role: Role::Main, .. })), "{refused:?}");
    assert!(main.snapshot() == before);
}

#[test]
fn what_cannot_be_read_of_mains_data_is_no_label_of_a_log() {
    let (devices, set) = Devices::new(Mode::Synchronous);
    drop(set);
    let main = Arc::new(Failing {
        below: devices.main.clone(),
        unread: Mutex::new((0..128).collect()),
        left: AtomicI64::new(i64::MAX),
        torn: Torn::None,
    });
    rebuild(devices.backup.clone(), devices.log.clone(), main, NEW).unwrap();
    let (set, _) = Flashlog::open(devices.main.clone(), devices.log.clone(), &options(Mode::Synchronous)).unwrap();
    devices.check(&set, "made anew");
}

#[test]
fn the_label_that_gives_a_device_up_stays_where_those_were_of_a_slightly_smaller_one() {
    for more in [3, 100] {
        let (devices, set) = Devices::new(Mode::Synchronous);
        drop(set);
        let main = devices.main.clone();
        let mut labels = Labelled::read(main.clone(), Role::Main).unwrap();
        // In each place for one.
        (0..70).for_each(|_| labels.write(|_| ()).unwrap());
        main.grow(main.blocks() + more).unwrap();
        let label = Label { device_blocks: main.blocks(), ..labels.label.clone() };
        super::given_up::give_up(main.clone(), &[BLOCKS], &label).unwrap();
        let found = Labelled::read(main, Role::Main).map(|labels| labels.label);
        assert!(matches!(found, Err(Error::GivenUp { .. })), "{more} blocks larger: {found:?}");
    }
}
