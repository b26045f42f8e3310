//! Workers are killed in the middle of application traffic; applications see no error and no wrong byte.
//!
//! The test is the supervisor: it keeps the session's descriptor and every clone, starts a worker process (this binary again),
//! kills it, reaps it, and starts the next one, which takes over without INIT and asks for what was not answered.
//! `HOLDFAST_KILL_SECONDS` sets how long.

use crate::backed::{Backed, COUNT};
use crate::mounted::{Watchdog, cut_off, missing};
use holdfast_fuse::{Caching, MountOptions, Negotiated, Session, mount, unmount};
use rand::{Rng, SeedableRng};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::FdFlags;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const WORKERS: usize = 3;
/// Descriptors, what was agreed, and the directory below, for a worker process.
const ROLE: &str = "HOLDFAST_TEST_WORKER";

/// Not a test: the worker process, when the environment says so.
#[test]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // Nobody must be left behind if the test is killed itself.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let (numbers, agreed, directory): (Vec<RawFd>, Negotiated, PathBuf) = serde_json::from_str(&role).unwrap();
    // SAFETY: the supervisor leaves these descriptors open for us, and nothing else in this process knows them.
    let mut descriptors = numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) });
    let session = Session::resume(descriptors.next().unwrap(), agreed);
    let handler = Arc::new(Backed::new(&directory).unwrap());
    // Before anything new is read, so that it is what the last process had.
    session.ask_resend().unwrap();
    let workers: Vec<_> = descriptors
        .map(|descriptor| {
            let (mut worker, handler) = (session.worker(descriptor).unwrap(), handler.clone());
            std::thread::spawn(move || worker.serve(&*handler))
        })
        .collect();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
}

/// The session, as a supervisor has it.
struct Supervisor {
    descriptors: Vec<OwnedFd>,
    agreed: Negotiated,
    directory: PathBuf,
}

impl Supervisor {
    fn start_worker(&self) -> Child {
        let numbers: Vec<RawFd> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let role = serde_json::to_string(&(numbers, self.agreed, &self.directory)).unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::worker", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// What the applications did.
#[derive(Default)]
struct Tally {
    operations: AtomicU64,
    bytes: AtomicU64,
    counts: AtomicU64,
    stop: AtomicBool,
    failures: Mutex<Vec<String>>,
}

/// One application: works on files of its own and knows what must be in them.
fn application(directory: &Path, number: u64, seed: u64, tally: &Tally) -> std::io::Result<()> {
    let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed ^ number);
    // Some through the kernel's page cache.
    let kind = if number.is_multiple_of(3) { 'c' } else { 'd' };
    let path = |round: u64| directory.join(format!("{kind}{number}-{round}"));
    let mut round = 0;
    let open = |path: PathBuf, new| File::options().read(true).write(true).create_new(new).open(path);
    let mut file = open(path(round), true)?;
    let mut model: Vec<u8> = Vec::new();
    let wrong = |what: String| Err(std::io::Error::other(what));
    while !tally.stop.load(Ordering::Relaxed) {
        let offset = rng.random_range(0..200_000usize);
        let length = if rng.random_bool(0.1) { rng.random_range(1..400_000) } else { rng.random_range(1..9_000usize) };
        match rng.random_range(0..100) {
            0..40 => {
                let mut data = vec![0; length];
                rng.fill(&mut data[..]);
                file.write_all_at(&data, offset as u64)?;
                if model.len() < offset + length {
                    model.resize(offset + length, 0);
                }
                model[offset..offset + length].copy_from_slice(&data);
                tally.bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
            40..75 => {
                let expected = &model[offset.min(model.len())..(offset + length).min(model.len())];
                let mut got = vec![0; expected.len()];
                file.read_exact_at(&mut got, offset as u64)?;
                if got != expected {
                    return wrong(format!("wrong bytes: {length} at {offset}"));
                }
                tally.bytes.fetch_add(got.len() as u64, Ordering::Relaxed);
            }
            75..80 => {
                // SAFETY: the number says that eight bytes are written, and there are as many.
                let result = unsafe { libc::ioctl(file.as_raw_fd(), u64::from(COUNT), &mut [0u8; 8]) };
                if result != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                tally.counts.fetch_add(1, Ordering::Relaxed);
            }
            80..85 => {
                round += 1;
                fs::rename(path(round - 1), path(round))?;
            }
            85..89 => {
                let other = directory.join(format!("{kind}{number}-other"));
                fs::write(&other, b"other")?;
                if fs::read(&other)? != b"other" {
                    return wrong("wrong bytes in a new file".into());
                }
                fs::remove_file(&other)?;
                if other.exists() {
                    return wrong("a removed file is there".into());
                }
            }
            89..92 => {
                let size = offset.min(model.len());
                file.set_len(size as u64)?;
                model.truncate(size);
            }
            92..94 => {
                let name = path(round).file_name().map(ToOwned::to_owned);
                let names = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.file_name()));
                if !names.collect::<Result<BTreeSet<_>, _>>()?.contains(&name.unwrap_or_default()) {
                    return wrong("a file is not listed".into());
                }
            }
            94..97 => file = open(path(round), false)?,
            _ => file.sync_all()?,
        }
        tally.operations.fetch_add(1, Ordering::Relaxed);
    }
    if fs::read(path(round))? == model { Ok(()) } else { wrong("wrong bytes at the end".into()) }
}

fn supports_resend(agreed: &Negotiated) -> bool {
    agreed.flags & holdfast_fuse::abi::init_flags::HAS_RESEND != 0
}

#[test]
fn killed_workers_cost_applications_nothing() {
    if let Some(reason) = missing() {
        return eprintln!("skipped: {reason}");
    }
    let seconds = std::env::var("HOLDFAST_KILL_SECONDS").map_or(5, |seconds| seconds.parse().unwrap());
    let seed = std::env::var("HOLDFAST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("replay: HOLDFAST_SEED={seed} cargo test -p holdfast-fuse --test it killed -- --nocapture");
    let below = tempfile::tempdir().unwrap();
    let mountpoint = tempfile::tempdir().unwrap();
    Backed::prepare(below.path());
    let options = MountOptions { source: "killed".into(), ..MountOptions::default() };
    let session = Session::start(mount(mountpoint.path(), &options).unwrap(), Caching::Direct).unwrap();
    let agreed = session.negotiated();
    if !supports_resend(&agreed) {
        unmount(mountpoint.path(), false).unwrap();
        return eprintln!("skipped: this kernel cannot send requests again (Linux 6.9 can)");
    }
    let _watchdog = Watchdog::new(mountpoint.path().into(), Duration::from_secs(seconds + 60));
    let mut descriptors = vec![session.device().try_clone_to_owned().unwrap()];
    descriptors.extend((0..WORKERS).map(|_| session.clone_device().unwrap()));
    drop(session);
    for descriptor in &descriptors {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).unwrap();
    }
    let supervisor = Supervisor { descriptors, agreed, directory: below.path().into() };
    let tally = Tally::default();
    let mut kills = 0;
    let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
    std::thread::scope(|scope| {
        let mut worker = supervisor.start_worker();
        // From this the kernel learns that FLUSH is not answered. Otherwise a worker that is being started might be the first to send
        // it, for the copies of the applications' files that its exec closes, and wait for an answer that only it can give.
        drop(File::create(mountpoint.path().join("flushed")).unwrap());
        let run = |number| {
            let (tally, directory) = (&tally, mountpoint.path());
            scope.spawn(move || {
                if let Err(error) = application(directory, number, seed, tally) {
                    tally.failures.lock().unwrap().push(format!("application {number}: {error}"));
                    tally.stop.store(true, Ordering::Relaxed);
                }
            })
        };
        let applications: Vec<_> = (0..6).map(run).collect();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds) && !tally.stop.load(Ordering::Relaxed) {
            // Where the kill hits is to be left to chance.
            std::thread::sleep(Duration::from_millis(rng.random_range(3..60)));
            worker.kill().unwrap();
            // Reaped: its threads have let go of the requests that they were copying.
            let status = worker.wait().unwrap();
            assert!(!status.success());
            if std::os::unix::process::ExitStatusExt::signal(&status) != Some(libc::SIGKILL) {
                tally.failures.lock().unwrap().push(format!("a worker ended by itself: {status}"));
                break;
            }
            kills += 1;
            worker = supervisor.start_worker();
        }
        tally.stop.store(true, Ordering::Relaxed);
        // The last worker answers what is still asked, and the unmount.
        scope.spawn(move || worker.wait());
        applications.into_iter().for_each(|application| application.join().unwrap());
        while !mountpoint_is_free(mountpoint.path()) {
            // The kernel tells nobody when a mount stops being busy.
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let failures = tally.failures.into_inner().unwrap();
    let resent = fs::metadata(below.path().join("resent")).map_or(0, |file| file.len());
    let counted = fs::read(below.path().join("counted")).unwrap();
    let different: BTreeSet<&[u8]> = counted.chunks(8).collect();
    let (operations, counts) = (tally.operations.into_inner(), tally.counts.into_inner());
    println!(
        "{kills} kills, {operations} operations, {} MB, at least {resent} requests came again, {counts} counted {} times",
        tally.bytes.into_inner() >> 20,
        counted.len() / 8,
    );
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(counted.len() as u64 / 8, counts, "each count once");
    assert_eq!(different.len() as u64, counts);
    assert!(kills >= 5 * seconds && operations > 100 * seconds, "too little happened for a test");
    assert!(resent > kills / 10, "kills hit nothing");
}

/// Tries to unmount; cuts off when the watchdog has.
fn mountpoint_is_free(mountpoint: &Path) -> bool {
    match unmount(mountpoint, false) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => false,
        Err(_) => {
            cut_off(mountpoint);
            true
        }
    }
}
