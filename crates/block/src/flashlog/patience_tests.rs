//! Devices that fail for a while, that go and come back, and others in their place. What is done in each case of the table: `cells_tests`.
use super::tests::{block, get, names, options, put};
use super::*;
use crate::{BLOCK_SIZE, Device, Error as DeviceError, Filter, MemoryDevice, Operation};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

pub(super) const BLOCKS: u64 = 256;

/// A device that fails at what it is told to.
pub(super) struct Failing {
    pub(super) device: MemoryDevice,
    /// What fails, and with which error of the system; so often; before that so many go well.
    at: Mutex<Option<(Symptom, i32)>>,
    pub(super) times: AtomicI64,
    spared: AtomicI64,
}

impl Failing {
    pub(super) fn over(device: MemoryDevice) -> Arc<Failing> {
        let (times, spared) = (AtomicI64::new(i64::MAX), AtomicI64::new(0));
        Arc::new(Failing { device, at: Mutex::default(), times, spared })
    }

    pub(super) fn fail(&self, symptom: Symptom) {
        let errno = if symptom == Symptom::Gone { libc::ENODEV } else { libc::EIO };
        *self.at.lock().unwrap() = Some((symptom, errno));
    }

    fn judge(&self, operation: Operation, symptom: Symptom, first: Option<u64>) -> Result<(), DeviceError> {
        let at = *self.at.lock().unwrap();
        let Some((_, errno)) = at.filter(|(at, _)| *at == symptom || *at == Symptom::Gone) else { return Ok(()) };
        if self.spared.fetch_sub(1, Ordering::Relaxed) > 0 || self.times.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Ok(());
        }
        let (device, source) = (self.device.name().into(), Arc::new(io::Error::from_raw_os_error(errno)));
        Err(DeviceError::Io { device, operation, first, length_bytes: BLOCK_SIZE as u64, source })
    }
}

impl Filter for Failing {
    fn below(&self) -> &dyn Device {
        &self.device
    }

    fn on_read(&self, first: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceError> {
        self.judge(Operation::Read, Symptom::Read, Some(first))?;
        self.device.read(first, bufs)
    }

    fn on_write(&self, first: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        self.judge(Operation::Write, Symptom::Write, Some(first))?;
        self.device.write(first, bufs)
    }

    fn on_flush(&self) -> Result<(), DeviceError> {
        self.judge(Operation::Flush, Symptom::Flush, None)?;
        self.device.flush()
    }
}

/// What is in the places of the devices.
#[derive(Default)]
pub(super) struct Places {
    pub(super) there: Mutex<Vec<(Role, Arc<dyn Device>)>>,
    /// So often somebody looks until it is put there.
    pub(super) looks: AtomicI64,
    looked: AtomicU64,
    is_away: Mutex<Vec<Role>>,
    /// So often a device that is away is said to be there still.
    going: AtomicI64,
}

impl Source for Arc<Places> {
    fn opened(&self, _name: &str) {}

    fn is_there(&self, name: &str) -> bool {
        !self.is_away.lock().unwrap().iter().any(|role| role.to_string() == name)
            || self.going.fetch_sub(1, Ordering::Relaxed) > 0
    }

    fn reopen(&self, name: &str) -> Option<Arc<dyn Device>> {
        self.looked.fetch_add(1, Ordering::Relaxed);
        if self.looks.fetch_sub(1, Ordering::Relaxed) > 0 {
            return None;
        }
        self.there.lock().unwrap().iter().find(|(of, _)| of.to_string() == name).map(|(_, device)| Arc::clone(device))
    }
}

/// Time goes on when somebody waits for it.
#[derive(Default)]
pub(super) struct Jumping(Mutex<Duration>, AtomicU64);

impl Timer for Jumping {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn ticket(&self) -> u64 {
        self.1.load(Ordering::SeqCst)
    }

    fn wait(&self, ticket: u64, until: Option<Duration>) {
        match until {
            Some(until) => {
                let mut now = self.0.lock().unwrap();
                *now = until.max(*now);
            }
            None => assert_ne!(self.ticket(), ticket, "one thread waits for itself"),
        }
    }

    fn wake(&self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

pub(super) struct Rig {
    pub(super) main: Arc<Failing>,
    pub(super) log: Arc<Failing>,
    pub(super) places: Arc<Places>,
    pub(super) watch: Arc<Watch>,
    pub(super) timer: Arc<Jumping>,
    pub(super) set: Lasting,
}

impl Rig {
    fn new(mode: Mode, policy: &str) -> Rig {
        // Memory would give what is to be read from a log.
        let forgets = mode == Mode::Asynchronous;
        Rig::with_memory(mode, policy, if forgets { 0 } else { options(mode).memory_blocks })
    }

    pub(super) fn with_memory(mode: Mode, policy: &str, memory_blocks: u64) -> Rig {
        let policy: Policy = policy.parse().unwrap();
        let main = Failing::over(MemoryDevice::new(BLOCKS + 256).named("main"));
        let log = Failing::over(MemoryDevice::new(256 * 6).named("log"));
        create(main.clone(), log.clone(), &names(1)).unwrap();
        let places = Arc::new(Places::default());
        let timer = Arc::new(Jumping::default());
        let timed = Options { memory_blocks, timer: timer.clone(), ..options(mode) };
        let watch = Watch::new(policy.clone(), &timed, Box::new(Arc::clone(&places)));
        let [over_main, over_log] = [(Role::Main, main.clone()), (Role::Log, log.clone())]
            .map(|(role, device)| watch.over(role, device).unwrap());
        let timed = Options { watch: Some(Arc::clone(&watch)), ..timed };
        let (set, _) = Flashlog::open(over_main, over_log, &timed).unwrap();
        Rig { main, log, places, watch, timer, set: Lasting::of(set, policy) }
    }

    fn device(&self, role: Role) -> &Arc<Failing> {
        if role == Role::Main { &self.main } else { &self.log }
    }

    /// Something for each device to fail at; gives what was answered, and whether all was.
    fn use_it(&self, numbers: std::ops::Range<u64>) -> (Vec<u64>, bool) {
        let mut answered = Vec::new();
        for number in numbers {
            if put(&self.set, number % 100, number).is_err() {
                return (answered, false);
            }
            answered.push(number);
            let is_durable = if number % 10 == 9 { self.set.settle() } else { self.set.flush() };
            if is_durable.is_err() {
                return (answered, false);
            }
        }
        let settled = self.set.settle().is_ok();
        let mut bytes = vec![0; BLOCK_SIZE];
        let is_read = (0..BLOCKS).all(|at| self.set.read(at, &mut [IoSliceMut::new(&mut bytes)]).is_ok());
        (answered, settled && is_read)
    }

    pub(super) fn trouble(&self, role: Role) -> Trouble {
        self.set.status().0.troubles.into_iter().find(|(of, _)| *of == role).map(|(_, t)| t).unwrap_or_default()
    }

    /// That whoever asks is told: the set is not protected, or reads have failed.
    fn is_told(&self) -> bool {
        let (status, protection) = self.set.status();
        !matches!(protection, Protection::Protected) || status.troubles.iter().any(|(_, of)| of.failed_reads > 0)
    }
}

#[test]
fn reads_are_tried_again_and_pass_if_one_of_them_does() {
    let rig = Rig::new(Mode::Synchronous, "main.read=retry:3:1s");
    assert!(rig.use_it(0..50).1);
    for (fails, is_ok) in [(1, true), (3, true), (4, false)] {
        rig.main.times.store(fails, Ordering::Relaxed);
        rig.main.fail(Symptom::Read);
        let mut bytes = vec![0; BLOCK_SIZE];
        assert_eq!(rig.set.read(7, &mut [IoSliceMut::new(&mut bytes)]).is_ok(), is_ok, "{fails} fail");
        assert!(!is_ok || bytes == block(7));
        assert!(rig.main.times.load(Ordering::Relaxed) <= 0);
    }
    let trouble = rig.trouble(Role::Main);
    assert_eq!((trouble.mended_reads, trouble.failed_reads, trouble.last.is_some()), (2, 1, true));
    assert!(rig.is_told() && trouble.unread_blocks == 1);
    // Others are read, and this one is not.
    let read = |at: u64, count: usize| {
        let mut bytes = vec![0; count * BLOCK_SIZE];
        rig.set.read(at, &mut [IoSliceMut::new(&mut bytes)]).is_ok()
    };
    assert!(read(3, 4) && read(8, 4));
    assert_eq!(rig.trouble(Role::Main).unread_blocks, 1);
    assert!(read(5, 10));
    assert_eq!((rig.trouble(Role::Main).unread_blocks, rig.trouble(Role::Main).failed_reads), (0, 1));
    // What is written again need not be read.
    rig.main.times.store(4, Ordering::Relaxed);
    rig.main.fail(Symptom::Read);
    assert!(!read(5, 10));
    assert_eq!(rig.trouble(Role::Main).unread_blocks, 10);
    assert!(rig.use_it(5..15).1);
    rig.set.settle().unwrap();
    assert_eq!(rig.trouble(Role::Main).unread_blocks, 0);
}

/// A copy as the device is, without what it has not flushed if that is lost.
fn now(device: &Failing) -> MemoryDevice {
    device.device.clone()
}

#[test]
fn a_device_that_has_gone_is_waited_for_and_nothing_is_missing() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        for role in [Role::Main, Role::Log] {
            for spared in 0..30 {
                let what = format!("{mode:?} {role} goes after {spared} requests");
                let rig = Rig::new(mode, &format!("{role}.gone=wait:60s"));
                assert!(rig.use_it(0..50).1);
                let flushed = now(rig.device(role));
                // It comes back as its last flush has left it, after a while; or with everything that it had.
                rig.places.looks.store(7, Ordering::Relaxed);
                let device = rig.device(role);
                if spared % 2 == 1 {
                    // An adapter that says something else, while nothing is there.
                    device.fail(Symptom::Write);
                    rig.places.is_away.lock().unwrap().push(role);
                } else {
                    device.fail(Symptom::Gone);
                }
                device.spared.store(spared, Ordering::Relaxed);
                let back: Arc<dyn Device> = match spared {
                    0 => Arc::new(flushed),
                    // What it has got meanwhile.
                    _ => Arc::new(Back(Arc::clone(device))),
                };
                rig.places.there.lock().unwrap().push((role, back));
                let (answered, is_all) = rig.use_it(50..150);
                assert!(is_all && answered.len() == 100, "{what}");
                assert!(matches!(rig.set.protection(), Protection::Protected), "{what}");
                assert_eq!((rig.trouble(role).returns, rig.trouble(role).waiting_since), (1, None), "{what}");
                for number in answered {
                    assert!(get(&rig.set, number % 100) == block(number), "{what}: {number}");
                }
            }
        }
    }
}

/// The same device, whole again.
pub(super) struct Back(pub(super) Arc<Failing>);

impl Filter for Back {
    fn below(&self) -> &dyn Device {
        &self.0.device
    }
}

#[test]
fn what_was_not_flushed_is_written_again_to_a_device_that_has_lost_it() {
    let rig = Rig::new(Mode::Asynchronous, "log.gone=wait:60s");
    assert!(rig.use_it(0..50).1);
    let flushed = now(&rig.log);
    // Written to the log, and never flushed.
    for number in 100..180 {
        put(&rig.set, number, number).unwrap();
    }
    rig.places.there.lock().unwrap().push((Role::Log, Arc::new(flushed)));
    rig.log.fail(Symptom::Gone);
    rig.set.flush().unwrap();
    assert_eq!(rig.trouble(Role::Log).returns, 1);
    for number in 100..180 {
        assert!(get(&rig.set, number) == block(number), "{number}");
    }
    rig.set.settle().unwrap();
    assert!((100..180).all(|number| get(&rig.main.device, number) == block(number)));
}

/// A log with a cache: without that, once it was gone.
struct Cached {
    log: Arc<Failing>,
    durable: Mutex<MemoryDevice>,
}

impl Filter for Cached {
    fn below(&self) -> &dyn Device {
        &*self.log
    }

    fn on_flush(&self) -> Result<(), DeviceError> {
        self.log.flush()?;
        *self.durable.lock().unwrap() = now(&self.log);
        Ok(())
    }
}

impl Source for Arc<Cached> {
    fn opened(&self, _name: &str) {}

    fn is_there(&self, _name: &str) -> bool {
        true
    }

    fn reopen(&self, _name: &str) -> Option<Arc<dyn Device>> {
        Some(Arc::new(self.durable.lock().unwrap().clone()))
    }
}

#[test]
fn what_a_killed_process_has_left_in_its_cache_is_not_what_a_device_loses_that_goes() {
    let mut returns = Vec::new();
    for spared in 0..40 {
        let rig = Rig::new(Mode::Asynchronous, "");
        assert!(rig.use_it(0..50).1);
        let durable = now(&rig.log);
        for number in 100..180 {
            put(&rig.set, number, number).unwrap();
        }
        // Killed: nobody has flushed the last pages.
        let (main, log) = (now(&rig.main), Failing::over(now(&rig.log)));
        drop(rig);
        assert!(log.device.snapshot() != durable.snapshot());
        let cached = Arc::new(Cached { log: log.clone(), durable: Mutex::new(durable) });
        let timed = Options { timer: Arc::new(Jumping::default()), ..options(Mode::Asynchronous) };
        let watch = Watch::new("log.gone=wait:60s".parse().unwrap(), &timed, Box::new(Arc::clone(&cached)));
        let over = watch.over(Role::Log, cached).unwrap();
        log.spared.store(spared, Ordering::Relaxed);
        log.fail(Symptom::Gone);
        let (set, _) = Flashlog::open(Arc::new(main), over, &timed).unwrap_or_else(|error| panic!("{spared}: {error}"));
        set.settle().unwrap();
        assert!((0..50).all(|number| get(&set, number) == block(number)), "{spared}");
        returns.push(watch.troubles().first().map_or(0, |(_, of)| of.returns));
    }
    assert!(returns[..5] == [1; 5], "{returns:?}");
}

#[test]
fn another_device_in_its_place_and_one_that_comes_too_late_are_no_return() {
    let older = |rig: &Rig| now(&rig.log);
    let foreign = |_: &Rig| {
        let (main, log) = (Arc::new(MemoryDevice::new(1024)), Arc::new(MemoryDevice::new(256 * 6)));
        create(main, log.clone(), &names(40)).unwrap();
        (*log).clone()
    };
    let empty = |_: &Rig| MemoryDevice::new(256 * 6);
    type Make<'a> = &'a dyn Fn(&Rig) -> MemoryDevice;
    for (make, why) in
        [(&older as Make, "not as it was flushed"), (&foreign as Make, "set"), (&empty as Make, "no label")]
    {
        let rig = Rig::new(Mode::Synchronous, "log.gone=wait:60s");
        assert!(rig.use_it(0..20).1);
        let other = make(&rig);
        for number in 20..30 {
            put(&rig.set, number, number).unwrap();
            rig.set.flush().unwrap();
        }
        rig.places.there.lock().unwrap().push((Role::Log, Arc::new(other)));
        let device = rig.set.set().unwrap();
        rig.log.fail(Symptom::Gone);
        assert!(rig.use_it(30..40).1, "main goes on alone: {why}");
        drop(device);
        assert!(matches!(rig.set.protection(), Protection::Alone { .. }), "{why}");
        assert!((0..40).all(|number| get(&rig.main.device, number) == block(number)), "{why}");
        let trouble = rig.trouble(Role::Log);
        assert_eq!((trouble.returns, trouble.waiting_since), (0, None), "{why}");
        // A minute, five times a second.
        assert!((300..302).contains(&rig.places.looked.load(Ordering::Relaxed)), "{why}");
    }
}

#[test]
fn the_status_tells_of_a_wait_while_it_lasts_and_the_end_ends_it() {
    let real = Options { timer: Arc::new(RealTimer::default()), ..options(Mode::Synchronous) };
    let policy: Policy = "log.gone=wait:1h".parse().unwrap();
    let main = Arc::new(MemoryDevice::new(BLOCKS + 256).named("main"));
    let log = Failing::over(MemoryDevice::new(256 * 6).named("log"));
    create(main.clone(), log.clone(), &names(1)).unwrap();
    let [other_main, other] = [1024, 256 * 6].map(|blocks| Arc::new(MemoryDevice::new(blocks)));
    create(other_main, other.clone(), &names(40)).unwrap();
    let places = Arc::new(Places::default());
    places.there.lock().unwrap().push((Role::Log, other));
    let watch = Watch::new(policy.clone(), &real, Box::new(places));
    let over = watch.over(Role::Log, log.clone()).unwrap();
    let real = Options { watch: Some(Arc::clone(&watch)), ..real };
    let set = Lasting::of(Flashlog::open(main.clone(), over, &real).unwrap().0, policy);
    put(&set, 3, 3).unwrap();
    log.fail(Symptom::Gone);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| set.flush());
        loop {
            let ticket = real.timer.ticket();
            let troubles = set.status().0.troubles;
            let refused = |(role, of): &(Role, Trouble)| of.refused.clone().filter(|_| *role == Role::Log);
            if let Some(refused) = troubles.iter().find_map(refused) {
                assert!(troubles.iter().any(|(_, of)| of.waiting_since.is_some()));
                let (is, was) = (names(40), names(1));
                let is = format!("it is the log device {} of set {}, generation 1, label ", is.log, is.set);
                let was = format!("the one that has gone is {} of set {}, generation 2, label ", was.log, was.set);
                assert!(refused.starts_with(&is) && refused.contains(&was) && !refused.contains('['), "{refused}");
                break;
            }
            real.timer.wait(ticket, Some(real.timer.now() + Duration::from_millis(5)));
        }
        // Main can be read meanwhile.
        assert!(get(&set, 3) == block(3));
        watch.end();
        writer.join().unwrap().unwrap();
    });
    assert!(matches!(set.protection(), Protection::Alone { .. }));
    assert!(get(&*main, 3) == block(3));
}

#[test]
fn a_backup_is_waited_for_and_its_failures_are_told_to_whoever_makes_it() {
    for symptom in Symptom::ALL {
        for waits in [false, true] {
            if waits && symptom != Symptom::Gone {
                continue;
            }
            let rig = Rig::new(Mode::Synchronous, if waits { "backup.gone=wait:60s" } else { "" });
            let failing = Failing::over(MemoryDevice::new(2048).named("backup"));
            let set = rig.set.set().unwrap();
            set.create_backup(failing.clone(), Uuid([9; 16])).unwrap();
            assert!(rig.use_it(0..20).1);
            let backup = rig.watch.over(Role::Backup, failing.clone()).unwrap();
            rig.places.there.lock().unwrap().push((Role::Backup, Arc::new(Back(failing.clone()))));
            failing.spared.store(2, Ordering::Relaxed);
            failing.fail(symptom);
            let done = set.backup(backup.clone()).and_then(|_| verify_backup(backup.clone()).map(|_| ()));
            assert_eq!(done.is_ok(), waits, "{symptom}, waits: {waits}: {done:?}");
            if let Err(Error::Device(error)) = done {
                rig.set.heed(&error);
            }
            let trouble = rig.trouble(Role::Backup);
            assert!(trouble.last.is_some() && trouble.returns == u64::from(waits), "{symptom}: {trouble:?}");
            // The set is none the worse.
            assert!(matches!(rig.set.protection(), Protection::Protected));
            assert!(rig.use_it(20..40).1);
        }
    }
}

/// There is nothing at any path but a name, and whoever looks sees the set being closed from then on.
#[derive(Default)]
struct Closing {
    watch: OnceLock<Weak<Watch>>,
    asked: AtomicU64,
}

impl Closing {
    fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.watch.get().and_then(Weak::upgrade).unwrap().cut_off();
    }
}

impl Source for Arc<Closing> {
    fn opened(&self, _name: &str) {}

    fn is_there(&self, _name: &str) -> bool {
        self.ask();
        true
    }

    fn reopen(&self, _name: &str) -> Option<Arc<dyn Device>> {
        self.ask();
        None
    }
}

#[test]
fn a_set_that_is_being_closed_waits_for_no_backup() {
    let rig = Rig::new(Mode::Synchronous, "");
    let set = rig.set.set().unwrap();
    for symptom in [Symptom::Gone, Symptom::Write, Symptom::Flush] {
        let failing = Failing::over(MemoryDevice::new(2048).named("backup"));
        set.create_backup(failing.clone(), Uuid([9; 16])).unwrap();
        let closing = Arc::new(Closing::default());
        let timed = Options { timer: Arc::new(Jumping::default()), ..options(Mode::Synchronous) };
        let policy = "backup.gone=wait:1h".parse().unwrap();
        let watch = Watch::new(policy, &timed, Box::new(Arc::clone(&closing)));
        closing.watch.set(Arc::downgrade(&watch)).unwrap();
        let backup = watch.over(Role::Backup, failing.clone()).unwrap();
        failing.fail(symptom);
        assert!(set.backup(backup).is_err());
        assert_eq!(closing.asked.load(Ordering::Relaxed), 1, "{symptom}");
    }
}

#[test]
fn a_device_whose_requests_fail_before_its_place_is_empty_has_gone() {
    for (symptom, errno) in [
        (Symptom::Write, libc::EIO),
        (Symptom::Flush, libc::EIO),
        (Symptom::Write, libc::ENOLINK),
        (Symptom::Flush, libc::ESHUTDOWN),
    ] {
        let rig = Rig::new(Mode::Synchronous, "log.gone=wait:60s");
        assert!(rig.use_it(0..20).1);
        rig.places.there.lock().unwrap().push((Role::Log, rig.log.clone()));
        rig.places.is_away.lock().unwrap().push(Role::Log);
        rig.places.going.store(if errno == libc::EIO { 5 } else { i64::MAX }, Ordering::Relaxed);
        rig.log.times.store(1, Ordering::Relaxed);
        *rig.log.at.lock().unwrap() = Some((symptom, errno));
        let (_, is_all) = rig.use_it(20..40);
        assert!(is_all && matches!(rig.set.protection(), Protection::Protected), "{symptom:?} {errno}");
        assert_eq!(rig.trouble(Role::Log).returns, 1, "{symptom:?} {errno}");
    }
}

#[test]
fn a_device_that_stays_where_it_is_has_failed_after_a_second_and_at_once_if_nothing_else_is_to_be_done() {
    for (policy, asked) in [("log.gone=wait:60s", 20..=22), ("log.gone=alone", 1..=2)] {
        let rig = Rig::new(Mode::Synchronous, policy);
        rig.places.is_away.lock().unwrap().push(Role::Log);
        rig.places.going.store(1000, Ordering::Relaxed);
        rig.log.fail(Symptom::Write);
        rig.log.times.store(1, Ordering::Relaxed);
        assert!(rig.use_it(0..20).1 && matches!(rig.set.protection(), Protection::Alone { .. }), "{policy}");
        let times = 1000 - rig.places.going.load(Ordering::Relaxed);
        assert!(asked.contains(&times), "{policy}: asked {times} times");
    }
}
