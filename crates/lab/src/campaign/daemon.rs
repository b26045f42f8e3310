//! The experiment on a daemon: bits flip in all of its memory but the pages of the pool, which verify themselves.
//!
//! Whoever promises nothing about this memory may read or store wrong bytes, crash, hang, or notice nothing; what happens how often is
//! what is to be known. A daemon that is gone is started again, as somebody would, and what it has lost in an orderly way, because it was
//! not synced, is no wrong byte.

use super::limit::PATIENCE;
use super::load::Worker;
use super::process::{Flip, Spared};
use super::target::{Mount, says};
use super::{FILES_BYTES, FLIPS, Options, Outcome, WORKERS, process};
use crate::running::Running;
use holdfast_object::{Arena, PAGE_SIZE};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use rustix::fs::fstat;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const POOL_BYTES: u64 = 32 << 20;
/// What a daemon says that has left its store in order, but for pages that had gone bad in memory (`holdfast mount`, exit code 5).
const GIVEN_UP: i32 = 5;
/// Errors after which a worker stops: its mount is gone.
const ERRORS_MAX: u64 = 1000;

/// The program that is tried, and where it works.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// `holdfast`.
    pub program: PathBuf,
    /// A directory for the store, the mount point and the log.
    pub directory: PathBuf,
}

/// How a daemon ended that was unmounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    InOrder,
    /// In order, and it has said that something was not stored.
    GivenUp,
    /// It was killed, as it did not end.
    Hung,
    /// It died, or says that its store is not in order.
    Otherwise,
}

impl Daemon {
    fn store(&self) -> PathBuf {
        self.directory.join("flips.store")
    }

    fn mount_point(&self) -> PathBuf {
        self.directory.join("flips")
    }

    fn command(&self, arguments: &[&str], path: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg(path).stdin(Stdio::null());
        command
    }

    fn log(&self) -> Result<File, String> {
        File::options().create(true).append(true).open(self.directory.join("flips.log")).map_err(says)
    }

    /// Runs it to its end, or what is taken for that.
    fn run(&self, arguments: &[&str], path: &Path) -> Result<ExitStatus, String> {
        let log = self.log()?;
        let errors = log.try_clone().map_err(says)?;
        let running = Running::start(self.command(arguments, path).stdout(log).stderr(errors)).map_err(says)?;
        ended(running)
    }

    /// Makes the store.
    fn create(&self, options: &Options) -> Result<(), String> {
        fs::create_dir_all(self.mount_point()).map_err(says)?;
        let _ = fs::remove_file(self.store());
        let mode = options.mode.to_string();
        let made = self.run(&["create", "--size", "512M", "--protection", &mode], &self.store())?;
        if made.success() { Ok(()) } else { Err(format!("create: {made}")) }
    }

    /// Mounts it. `None` if that fails.
    fn mount(&self) -> Result<Option<Running>, String> {
        let log = self.log()?;
        let errors = log.try_clone().map_err(says)?;
        let cache = format!("cache={POOL_BYTES}");
        let mut command = self.command(&["mount", "--foreground", "-o", &cache], &self.store());
        let command = command.arg(self.mount_point()).stdout(log).stderr(errors);
        let mut mounted = Running::start(command).map_err(says)?;
        if mounted.has_mounted(&self.mount_point(), PATIENCE).map_err(says)? {
            return Ok(Some(mounted));
        }
        drop(mounted);
        self.clear();
        Ok(None)
    }

    /// Takes away what a daemon that is gone has left.
    fn clear(&self) {
        let _ = Command::new("umount").arg("-l").arg(self.mount_point()).stderr(Stdio::null()).status();
    }

    /// Unmounts.
    fn unmount(&self, mut mounted: Running) -> Result<Left, String> {
        // Not by the daemon's own command, which leaves a mount with bad pages in place until they are given up.
        let left = Command::new("umount").arg(self.mount_point()).status().map_err(says)?.success();
        if !left {
            mounted.kill().map_err(says)?;
        }
        let hangs = left && mounted.wait(PATIENCE).map_err(says)?.is_none();
        if hangs {
            mounted.kill().map_err(says)?;
        }
        let ended = ended(mounted)?.code();
        self.clear();
        Ok(match (left, ended) {
            _ if hangs => Left::Hung,
            (true, Some(0)) => Left::InOrder,
            (true, Some(GIVEN_UP)) => Left::GivenUp,
            _ => Left::Otherwise,
        })
    }
}

/// Waits until it has ended, and no longer than anybody would.
fn ended(mut running: Running) -> Result<ExitStatus, String> {
    if let Some(status) = running.wait(PATIENCE).map_err(says)? {
        return Ok(status);
    }
    running.kill().map_err(says)?;
    running.wait(PATIENCE).map_err(says)?.ok_or_else(|| format!("process {} does not end", running.id()))
}

/// Runs one trial on a daemon of its own.
///
/// # Errors
/// In words, for what fails before anything has flipped, and for what the machine refuses.
pub fn trial_anywhere(options: &Options, daemon: &Daemon) -> Result<Outcome, String> {
    // Behind the pool are the frames of metadata, as in any arena with as many frames.
    let frames = (POOL_BYTES / PAGE_SIZE as u64) as u32;
    let arena = Arena::new(frames, 0).map_err(says)?;
    let from_end = fstat(arena.memory()).map_err(says)?.st_size as u64 - arena.frame_offset(0);
    let pool = Spared { mapping: "/memfd:holdfast-arena", from_end, bytes: POOL_BYTES };
    tried(options, daemon, |pid, rng| process::flip(pid, FLIPS, &pool, rng).map_err(says))
}

/// The same with whatever `strike` does to the daemon's process.
fn tried(
    options: &Options,
    daemon: &Daemon,
    strike: impl FnOnce(u32, &mut Pcg64Mcg) -> Result<Vec<Flip>, String>,
) -> Result<Outcome, String> {
    daemon.clear();
    let outcome = mounted_and_struck(options, daemon, strike);
    daemon.clear();
    outcome
}

fn mounted_and_struck(
    options: &Options,
    daemon: &Daemon,
    strike: impl FnOnce(u32, &mut Pcg64Mcg) -> Result<Vec<Flip>, String>,
) -> Result<Outcome, String> {
    let mut log = daemon.log()?;
    writeln!(log, "-- {}, {}, seed {}", options.load, options.mode, options.seed).map_err(says)?;
    daemon.create(options)?;
    let mut mounted = daemon.mount()?.ok_or("the store cannot be mounted")?;
    let target = Mount(daemon.mount_point());
    let made = (0..WORKERS).map(|worker| Worker::new(&target, options.load, worker, FILES_BYTES));
    let workers: Vec<Worker<Mount>> = made.collect::<Result<_, _>>()?;
    let mut outcome = Outcome::default();
    let (mut workers, flips) = used(&target, workers, (options, strike), &mut mounted, &mut outcome)?;
    for Flip { address, mapping } in flips {
        writeln!(log, "flipped a bit at {address:#x} of {mapping}").map_err(says)?;
    }
    let left = daemon.unmount(mounted)?;
    outcome.crashed |= matches!(left, Left::Otherwise | Left::Hung);
    outcome.hung |= left == Left::Hung;
    outcome.told |= left == Left::GivenUp;
    outcome.count_run(&mut workers);
    tell(&mut log, &outcome)?;
    for worker in &mut workers {
        worker.may_have_lost = outcome.crashed;
    }
    let Some(mounted) = daemon.mount()? else {
        outcome.crashed = true;
        return Ok(outcome);
    };
    let was_told = outcome.wrong.is_some();
    outcome.count_anew(workers, &target);
    if !was_told {
        tell(&mut log, &outcome)?;
    }
    outcome.told |= daemon.unmount(mounted)? != Left::InOrder;
    outcome.told |= !daemon.run(&["check"], &daemon.store())?.success();
    Ok(outcome)
}

/// What was read wrong, for whoever looks for the reason.
fn tell(log: &mut File, outcome: &Outcome) -> Result<(), String> {
    outcome.wrong.map_or(Ok(()), |wrong| writeln!(log, "read wrong: {wrong}").map_err(says))
}

/// The load, with the strike in it, and everything read back.
fn used(
    target: &Mount,
    workers: Vec<Worker<Mount>>,
    (options, strike): (&Options, impl FnOnce(u32, &mut Pcg64Mcg) -> Result<Vec<Flip>, String>),
    mounted: &mut Running,
    outcome: &mut Outcome,
) -> Result<(Vec<Worker<Mount>>, Vec<Flip>), String> {
    let is_over = &AtomicBool::new(false);
    let mut rng = Pcg64Mcg::seed_from_u64(options.seed);
    std::thread::scope(|scope| {
        let (ended, all_ended) = channel::<()>();
        let running: Vec<_> = (0u64..)
            .zip(workers)
            .map(|(number, mut worker)| {
                let mut rng = Pcg64Mcg::seed_from_u64(options.seed ^ (number + 1) << 56);
                let ended = ended.clone();
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) && worker.met.errors < ERRORS_MAX {
                        worker.step(target, &mut rng);
                    }
                    worker.read_all(target);
                    drop(ended);
                    worker
                })
            })
            .collect();
        drop(ended);
        let wait =
            |time: Duration, all_ended: &Receiver<()>| all_ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        let moment = options.moment(&mut rng);
        wait(moment, &all_ended);
        let flipped = strike(mounted.id(), &mut rng);
        wait(options.time.saturating_sub(moment), &all_ended);
        is_over.store(true, Ordering::Relaxed);
        if wait(PATIENCE, &all_ended) {
            // It hangs: without the daemon every request ends.
            outcome.crashed = true;
            outcome.hung = true;
            mounted.kill().map_err(says)?;
        }
        let workers =
            running.into_iter().map(|thread| thread.join().map_err(|_| "a worker of the load panicked".into()));
        let workers = workers.collect::<Result<_, String>>()?;
        Ok((workers, flipped?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Load;
    use holdfast_integrity::Protection;
    use rustix::process::{Pid, Signal, kill_process};

    /// What comes of a strike on the daemon with this process and mount point, in a real mount.
    fn outcome(daemon: &Daemon, strike: impl FnOnce(u32, &Path)) -> Outcome {
        let time = Duration::from_millis(500);
        let (load, mode, targets) = (Load::Webserver, Protection::Uniform, crate::campaign::Targets::All);
        let options = Options { load, mode, targets, time, seed: 1 };
        let mount_point = daemon.mount_point();
        let struck = |pid: u32, _: &mut Pcg64Mcg| {
            strike(pid, &mount_point);
            Ok(Vec::new())
        };
        let outcome = tried(&options, daemon, struck).unwrap();
        assert!(outcome.operations > 0, "{outcome:?}");
        outcome
    }

    #[test]
    fn what_comes_of_a_trial_is_counted_as_what_it_is() {
        let program = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("holdfast");
        match () {
            () if !rustix::process::geteuid().is_root() => {
                return crate::required::lacks("root", "only root may mount");
            }
            () if !Path::new("/dev/fuse").exists() => return crate::required::lacks("fuse", "there is no /dev/fuse"),
            () if !program.exists() => return crate::required::lacks("program", "not built: cargo build -p holdfast"),
            () => {}
        }
        let directory = std::env::temp_dir().join(format!("holdfast-struck-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let daemon = Daemon { program, directory: directory.clone() };
        let files = |mount_point: &Path| {
            let files = fs::read_dir(mount_point.join("worker 1")).unwrap();
            files.map(|file| file.unwrap().path()).collect::<Vec<_>>()
        };
        let of = |Outcome { read, written, crashed, told, .. }: Outcome| (read, written, crashed, told);

        let sound = outcome(&daemon, |_, _| {});
        assert!(sound.is_sound(), "S: {sound:?}");
        let wrong = outcome(&daemon, |_, mount_point| {
            for file in files(mount_point) {
                let length = fs::metadata(&file).unwrap().len();
                let file = File::options().write(true).open(file).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xff; length as usize], 0).unwrap();
            }
        });
        assert_eq!(of(wrong), (true, true, false, false), "R and W: {wrong:?}");
        let killed = outcome(&daemon, |pid, _| {
            kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        });
        assert_eq!(of(killed), (false, false, true, true), "C, and the load was told: {killed:?}");
        // The webserver reads them, and is told that there are none.
        let told = outcome(&daemon, |_, mount_point| {
            files(mount_point).iter().for_each(|file| fs::remove_file(file).unwrap())
        });
        assert_eq!(of(told), (false, false, false, true), "told: {told:?}");
        fs::remove_dir_all(directory).unwrap();
    }
}
