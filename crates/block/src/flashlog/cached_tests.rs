//! Devices whose cache outlives a process that is killed, but not the power: a label that was read is not one that is durable.
use super::backup_tests::{Set, contents};
use super::format::{LABELS_BLOCKS, Label, Role};
use super::lasting_tests::{Devices, alone};
use super::tests::{open, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Error, Filter, MemoryDevice, Operation};
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A main or backup device with a cache.
struct Cached {
    /// What readers find.
    cache: MemoryDevice,
    state: Mutex<State>,
}

struct State {
    medium: MemoryDevice,
    unflushed: Vec<(u64, Vec<u8>)>,
    /// The process is killed before the flush of the label after so many.
    labels_left: usize,
    /// The power goes before the write or flush after so many.
    requests_left: usize,
    is_dead: bool,
}

impl Cached {
    fn over(device: &MemoryDevice) -> Arc<Cached> {
        let state = State {
            medium: device.clone(),
            unflushed: Vec::new(),
            labels_left: usize::MAX,
            requests_left: usize::MAX,
            is_dead: false,
        };
        Arc::new(Cached { cache: device.clone(), state: Mutex::new(state) })
    }

    fn is_label(&self, first: u64) -> bool {
        let area = Label::area(Role::Main, self.cache.blocks());
        (area..area + LABELS_BLOCKS).contains(&first)
    }

    fn is_killed_at_label(&self, number: usize) {
        self.state.lock().labels_left = number;
    }

    /// Another process, which has so many requests.
    fn is_taken_up(&self, requests_left: usize) {
        let mut state = self.state.lock();
        (state.is_dead, state.labels_left, state.requests_left) = (false, usize::MAX, requests_left);
    }

    /// What a power cut leaves: of what was not flushed all but the labels.
    fn without_power(&self) -> Arc<MemoryDevice> {
        let state = self.state.lock();
        let left = state.medium.clone();
        for (first, bytes) in state.unflushed.iter().filter(|(first, _)| !self.is_label(*first)) {
            left.write(*first, &[IoSlice::new(bytes)]).unwrap();
        }
        Arc::new(left)
    }

    fn check(state: &mut State, operation: Operation) -> Result<(), Error> {
        state.is_dead |= state.requests_left == 0;
        state.requests_left = state.requests_left.saturating_sub(1);
        if !state.is_dead {
            return Ok(());
        }
        let source = Arc::new(std::io::Error::from_raw_os_error(libc::EIO));
        Err(Error::Io { device: "cached".into(), operation, first: None, length_bytes: 0, source })
    }
}

impl Filter for Cached {
    fn below(&self) -> &dyn Device {
        &self.cache
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        self.cache.read(first, bufs)
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let mut state = self.state.lock();
        Self::check(&mut state, Operation::Write)?;
        self.cache.write(first, bufs)?;
        state.unflushed.push((first, bufs.iter().flat_map(|buf| buf.to_vec()).collect()));
        if self.is_label(first) {
            state.is_dead = state.labels_left == 0;
            state.labels_left = state.labels_left.saturating_sub(1);
        }
        Ok(())
    }

    fn on_flush(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        Self::check(&mut state, Operation::Flush)?;
        state.medium = self.cache.clone();
        state.unflushed.clear();
        Ok(())
    }
}

#[test]
fn a_backup_that_was_killed_at_a_label_has_a_state_whenever_the_power_goes_later() {
    let (set, device) = Set::new();
    let mut states = vec![contents(&device)];
    let logs: Vec<(MemoryDevice, MemoryDevice)> = [1000, 2000]
        .map(|number| {
            (0..12).for_each(|at| put(&device, 5 * at + number / 1000, number + at).unwrap());
            device.flush().unwrap();
            states.push(contents(&device));
            ((*set.main).clone(), (*set.log).clone())
        })
        .into();
    drop(device);
    let shown = Cached::over(&set.backup);
    shown.is_taken_up(0);
    finish_backup(shown).expect("whoever only reads writes and flushes nothing");
    let back_up = |(main, log): &(MemoryDevice, MemoryDevice), backup: &Arc<Cached>| {
        let (device, _) = open(&Arc::new(main.clone()), &Arc::new(log.clone()), Mode::Synchronous).unwrap();
        device.backup(backup.clone()).is_ok()
    };
    let mut killed = 0;
    for label in 0.. {
        let first = Cached::over(&set.backup);
        first.is_killed_at_label(label);
        if back_up(&logs[0], &first) {
            break;
        }
        killed += 1;
        for requests in 0.. {
            let backup = Cached::over(&set.backup);
            backup.is_killed_at_label(label);
            assert!(!back_up(&logs[0], &backup));
            backup.is_taken_up(requests);
            let is_done = back_up(&logs[1], &backup);
            let what = format!("killed at label {label}, and no power after {requests} requests");
            let past = Past::of_backup(backup.without_power()).unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut bytes = vec![0; states[0].len()];
            let read = past.read(0, &mut [IoSliceMut::new(&mut bytes)]);
            assert!(read.is_ok() && states.contains(&bytes), "{what}: {read:?}");
            if is_done {
                break;
            }
        }
    }
    assert!(killed >= 2, "what is staged has a label, and what is in its place");
}

#[test]
fn main_alone_that_was_killed_at_a_label_marks_what_it_changes_whenever_the_power_goes_later() {
    let mode = Mode::Synchronous;
    let open_alone = |main: Arc<dyn Device>| Lasting::open_alone(main, &options(mode), alone(), false);
    for label in 0..2 {
        let (devices, set) = Devices::new(mode);
        set.settle().unwrap();
        drop(set);
        let main = Cached::over(&devices.main);
        main.is_killed_at_label(label);
        // The first label says that it is alone, the second one has a map with the block's region.
        let changed = open_alone(main.clone()).is_ok_and(|set| put(&set, 5, 500).is_ok());
        assert!(!changed);
        main.is_taken_up(usize::MAX);
        let set = open_alone(main.clone()).unwrap();
        put(&set, 5, 501).unwrap();
        let left = main.without_power();
        drop(set);
        let set = open_alone(left).unwrap();
        set.attach_log(devices.log.clone()).unwrap();
        set.settle().unwrap();
        let found = read_all(&set);
        drop(set);
        let anew = Arc::new(MemoryDevice::new(devices.main.blocks()));
        rebuild(devices.backup.clone(), devices.log.clone(), anew.clone(), Uuid([71; 16])).unwrap();
        let set = Flashlog::open(anew, devices.log.clone(), &options(mode)).unwrap().0;
        assert!(read_all(&set) == found, "killed at label {label}: backup and log are not what main has");
    }
}

fn read_all(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.blocks() as usize * BLOCK_SIZE];
    device.read(0, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
    bytes
}
