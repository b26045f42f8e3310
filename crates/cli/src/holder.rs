//! Who holds a store that cannot be opened, and waiting for a daemon that is about to let go of it: umount(8) and
//! fusermount3 return when the mount is gone, which is when its daemon begins to write the last epoch.
//!
//! Nothing here is needed for safety, which is the lock's: whatever /proc tells may be wrong a moment later.

use crate::args::{Cli, Command};
use crate::failure::{Failure, Result};
use crate::mounts::{self, FILE_SYSTEM};
use crate::paths::shell;
use crate::report::Daemon;
use crate::stack;
use clap::Parser;
use holdfast_block::{Access, FileDevice};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two tries. A try for a file takes a tenth of a second itself.
const STEP: Duration = Duration::from_millis(50);
/// How often to look for a holder that has not been found.
const SEARCH_PERIOD: Duration = Duration::from_secs(1);
/// After how long to say that this waits.
const QUIET: Duration = Duration::from_secs(1);
/// How long at most to wait for what does not show that it is closing the store.
const UNCERTAIN_WAIT: Duration = Duration::from_secs(30);

/// What holds a store.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Holder {
    /// A mount that this process sees, on this directory.
    Mount(PathBuf),
    /// A mount that this process sees, of a set that has it as its log.
    MountOfSet(PathBuf),
    /// A mount in a name space of its daemon, which is this process.
    MountElsewhere(u32),
    /// Something else than a mount: a check, a program with the library.
    Process(u32),
    /// The daemon of a mount that is in no table of mounts, with workers: it does not know yet that it has been unmounted, or was
    /// unmounted lazily and is in use.
    Serving(u32),
    /// A daemon without workers, which closes the store or is just opening it, or a process that is just ending; and what it has had
    /// the system do so far.
    Closing(u32, Option<Vec<u8>>),
    /// It cannot be found: another user's process, or in another name space.
    Unseen,
}

/// Opens the file or disk that holds a store, exclusively. If a daemon without a mount has it, waits until it lets go: for
/// `timeout` (zero: for ever) since it was last seen to get on with its work; `say` is told so, once.
///
/// # Errors
/// Those of [`stack::device`], at once if the store is mounted or something else than a daemon has it.
pub(crate) fn device(
    store: &Path,
    access: Access,
    timeout: Duration,
    say: &mut dyn FnMut(&str),
) -> Result<Arc<FileDevice>> {
    if let Some(device) = stack::try_device(store, access)? {
        return Ok(device);
    }
    let mut search = Search::default();
    let mut wait = Wait::begin(Instant::now(), timeout);
    let mut has_said = false;
    loop {
        let holder = search.look(store);
        let now = Instant::now();
        if !wait.goes_on(now, &holder) {
            return Err(holder.refuses(store));
        }
        if !has_said && now.duration_since(wait.start) >= QUIET {
            has_said = true;
            say(&holder.is_waited_for(store));
        }
        // A lock can be waited for, but not while somebody watches whether its holder gets on.
        std::thread::sleep(STEP);
        if let Some(device) = stack::try_device(store, access)? {
            return Ok(device);
        }
    }
}

/// Says who uses a store, as far as it can be found out.
pub(crate) fn in_use(store: &Path) -> Failure {
    Search::default().look(store).refuses(store)
}

/// What a process has had the system do, for comparison with later; readable for whoever may stop it.
pub(crate) fn work_done(pid: u32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/io")).ok()
}

/// The name space that this process's number is of; `None` without /proc.
pub(crate) fn pid_namespace() -> Option<String> {
    Some(fs::read_link("/proc/self/ns/pid").ok()?.to_string_lossy().into_owned())
}

/// Whether the daemon's number means the same process here. An older daemon does not tell.
pub(crate) fn is_of_here(daemon: &Daemon) -> bool {
    daemon.pid_namespace.is_none() || daemon.pid_namespace == pid_namespace()
}

/// The number that a mount's daemon has here, whatever its own name space; `None` if it cannot be seen.
pub(crate) fn number(daemon: &Daemon, store: &Path) -> Option<u32> {
    if is_of_here(daemon) {
        return Some(daemon.pid);
    }
    let path = mounts::resolve(store).unwrap_or_else(|_| store.to_path_buf());
    processes().find(|&pid| holds(pid, &path))
}

/// What to do about a daemon that does not let go of its store.
pub(crate) fn if_it_hangs(pid: u32) -> String {
    format!(
        "if it is stopped: kill -CONT {pid}; if it hangs: kill -KILL {pid}, and the next mount replays what was synced"
    )
}

impl Holder {
    fn refuses(&self, store: &Path) -> Failure {
        let shown = store.display();
        let in_use = || Failure::new(format!("{shown} is in use by another process"));
        match self {
            Holder::Mount(directory) => Failure::new(format!("{shown} is mounted on {}", directory.display()))
                .hint(format!("unmount it first: holdfast unmount {}", shell(directory))),
            Holder::MountOfSet(directory) => {
                Failure::new(format!("{shown} is of the set that is mounted on {}", directory.display())).hint(format!(
                    "unmount it first: holdfast unmount {}; or see its earlier states meanwhile: holdfast flashlog at",
                    shell(directory)
                ))
            }
            Holder::MountElsewhere(pid) => {
                in_use().hint(format!("process {pid}, which has mounted it where this process cannot see it"))
            }
            Holder::Process(pid) => in_use().hint(match fs::read_to_string(format!("/proc/{pid}/comm")) {
                Ok(name) => format!("process {pid}, {}", name.trim_end()),
                Err(_) => format!("process {pid}"),
            }),
            Holder::Serving(pid) => {
                Failure::new(format!("{shown} is still held by the daemon of a mount that is gone (process {pid})"))
                    .hint(format!("it ends when everything in that mount is closed; {}", if_it_hangs(*pid)))
            }
            Holder::Closing(pid, _) => {
                Failure::new(format!("{shown} is still being written by the daemon of a mount (process {pid})"))
                    .hint(if_it_hangs(*pid))
            }
            Holder::Unseen => in_use(),
        }
    }

    fn is_waited_for(&self, store: &Path) -> String {
        match self {
            Holder::Serving(pid) | Holder::Closing(pid, _) => {
                format!("waiting for the daemon that is still closing {} (process {pid})", store.display())
            }
            _ => format!("waiting for whoever is still closing {}", store.display()),
        }
    }
}

/// For how long to wait, by what is seen of the holder.
#[derive(Debug)]
struct Wait {
    start: Instant,
    timeout: Duration,
    /// When the holder was last seen to get on, and what it had done by then.
    life: (Instant, Option<Vec<u8>>),
}

impl Wait {
    fn begin(start: Instant, timeout: Duration) -> Wait {
        Wait { start, timeout, life: (start, None) }
    }

    fn goes_on(&mut self, now: Instant, holder: &Holder) -> bool {
        let (since, longest) = match holder {
            Holder::Mount(_) | Holder::MountOfSet(_) | Holder::MountElsewhere(_) | Holder::Process(_) => return false,
            Holder::Serving(_) | Holder::Unseen => (self.start, UNCERTAIN_WAIT.min(self.timeout)),
            Holder::Closing(_, done) => {
                if done.is_some() && *done != self.life.1 {
                    self.life = (now, done.clone());
                }
                (self.life.0, self.timeout)
            }
        };
        self.timeout.is_zero() || now.duration_since(since) < longest
    }
}

/// Finds the holder of a store; the way through all processes is long, so it is not gone every time.
#[derive(Default)]
struct Search {
    found: Option<u32>,
    next: Option<Instant>,
}

impl Search {
    fn look(&mut self, store: &Path) -> Holder {
        let seen = || mounts::of_holdfast().unwrap_or_default().into_iter().find(|mount| mount.serves(store));
        if let Some(mount) = seen() {
            return Holder::Mount(mount.directory);
        }
        // As /proc has it. What lies in a mount whose daemon does not answer is not found, but neither can it be opened.
        let path = mounts::resolve(store).unwrap_or_else(|_| store.to_path_buf());
        let now = Instant::now();
        if !self.found.is_some_and(|pid| holds(pid, &path)) && self.next.is_none_or(|next| now >= next) {
            self.found = processes().find(|&pid| holds(pid, &path));
            self.next = Some(now + SEARCH_PERIOD);
        }
        match self.found.map_or(Holder::Unseen, |pid| state(pid, &path)) {
            // Or just now, since this looked.
            Holder::MountElsewhere(pid) => {
                seen().map_or(Holder::MountElsewhere(pid), |mount| Holder::Mount(mount.directory))
            }
            // What is mounted may be another device of its set.
            Holder::Serving(pid) => {
                let of_holdfast = mounts::of_holdfast().unwrap_or_default();
                let of_set = of_holdfast.into_iter().find(|mount| holds(pid, &mount.source));
                of_set.map_or(Holder::Serving(pid), |mount| Holder::MountOfSet(mount.directory))
            }
            holder => holder,
        }
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process has the store open, and a file locked (proc(5), `fdinfo`), which others that wait for it have not. A disk
/// is open for one only.
fn holds(pid: u32, store: &Path) -> bool {
    let file = fs::metadata(store).ok().filter(Metadata::is_file);
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let has_its_path = || fs::read_link(descriptor.path()).is_ok_and(|target| target == store);
        let Some(file) = &file else { return has_its_path() };
        let information = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", descriptor.file_name().display()));
        let information = information.unwrap_or_default();
        let mut locks = information.lines().filter(|line| line.starts_with("lock:")).peekable();
        if locks.peek().is_none() {
            return false;
        }
        // The path of a process with another root, or in another name space of mounts, need not be the one from here. The number
        // of the inode comes first: asking for the file itself waits, if it lies in a mount whose daemon does not answer.
        let mut is_it = || {
            let same = |other: Metadata| (other.dev(), other.ino()) == (file.dev(), file.ino());
            locks.any(|lock| locked_inode(lock) == Some(file.ino())) && fs::metadata(descriptor.path()).is_ok_and(same)
        };
        has_its_path() || is_it()
    })
}

/// The inode of `lock: 1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF`.
fn locked_inode(lock: &str) -> Option<u64> {
    lock.split_ascii_whitespace().find_map(|word| match word.split(':').collect::<Vec<_>>()[..] {
        [_, _, inode] => inode.parse().ok(),
        _ => None,
    })
}

/// What the process that holds the store is at.
fn state(pid: u32, store: &Path) -> Holder {
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // A process that ends gives up its memory, and with it its words, before its files and their locks.
    if command_line.is_empty() {
        return Holder::Closing(pid, work_done(pid));
    }
    let words = command_line.split(|&byte| byte == 0).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    if !Cli::try_parse_from(words).is_ok_and(|cli| matches!(cli.command, Command::Mount(_))) {
        return Holder::Process(pid);
    }
    let its_mounts = mounts::of_process(pid).unwrap_or_default();
    if its_mounts.iter().any(|mount| mount.file_system == FILE_SYSTEM && mount.source == store) {
        return Holder::MountElsewhere(pid);
    }
    match has_workers(pid) {
        true => Holder::Serving(pid),
        false => Holder::Closing(pid, work_done(pid)),
    }
}

fn has_workers(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let names = threads.filter_map(|thread| fs::read(thread.path().join("comm")).ok());
    names.into_iter().any(|name| name.starts_with(crate::daemon::WORKER_NAME.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitId, WaitIdOptions};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_shows_that_it_gets_on_is_waited_for() {
        let start = Instant::now();
        let mut wait = Wait::begin(start, 40 * SECOND);
        let closing = |done: u8| Holder::Closing(7, Some(vec![done]));
        for step in 0..100 {
            assert!(wait.goes_on(start + step * 39 * SECOND, &closing(step as u8)), "{step}");
        }
        let last = start + 99 * 39 * SECOND;
        assert!(wait.goes_on(last + 39 * SECOND, &closing(99)));
        assert!(!wait.goes_on(last + 40 * SECOND, &closing(99)));
        // What cannot be read shows nothing.
        assert!(!wait.goes_on(last + 40 * SECOND, &Holder::Closing(7, None)));
        assert!(wait.goes_on(last + 40 * SECOND, &closing(100)));
    }

    #[test]
    fn who_does_not_show_it_is_waited_for_at_most_half_a_minute() {
        let start = Instant::now();
        for holder in [Holder::Serving(7), Holder::Unseen] {
            for (timeout, longest) in [(40, 30), (2, 2)] {
                let mut wait = Wait::begin(start, timeout * SECOND);
                assert!(wait.goes_on(start + longest * SECOND - Duration::from_millis(1), &holder));
                assert!(!wait.goes_on(start + longest * SECOND, &holder));
            }
            assert!(Wait::begin(start, Duration::ZERO).goes_on(start + 10_000 * SECOND, &holder));
        }
    }

    #[test]
    fn who_uses_it_for_good_is_not_waited_for() {
        let start = Instant::now();
        for holder in
            [Holder::Mount("/m".into()), Holder::MountOfSet("/m".into()), Holder::MountElsewhere(7), Holder::Process(7)]
        {
            assert!(!Wait::begin(start, Duration::ZERO).goes_on(start, &holder), "{holder:?}");
        }
    }

    #[test]
    fn who_is_just_ending_is_waited_for() {
        let mut ending = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&ending);
        let until_ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(pid), until_ended).unwrap();
        let holder = state(ending.id(), Path::new("/store"));
        ending.wait().unwrap();
        assert!(matches!(holder, Holder::Closing(..)), "{holder:?}");
        // It is gone since it was found.
        assert!(matches!(state(ending.id(), Path::new("/store")), Holder::Closing(..)));
    }

    #[test]
    fn the_inode_of_a_lock_is_the_last_part_of_its_place() {
        assert_eq!(locked_inode("lock:\t1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF"), Some(11691));
        assert_eq!(locked_inode("lock:\t1: FLOCK  ADVISORY  WRITE 359 00:13 0 EOF"), None);
        assert_eq!(locked_inode("lock:"), None);
    }

    #[test]
    fn a_holder_is_found_where_the_store_has_another_path() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let directory = fs::canonicalize(directory.path()).unwrap();
        let [one, other, third] = ["one", "other", "third"].map(|name| directory.join(name));
        fs::write(&one, [0; 4096]).unwrap();
        fs::hard_link(&one, &other).unwrap();
        fs::write(&third, [0; 4096]).unwrap();
        let _device = FileDevice::open(&one, Access::ReadOnly).unwrap();
        let own = std::process::id();
        assert!(holds(own, &other) && !holds(own, &third));
    }

    #[test]
    fn a_holder_is_found_by_its_lock_and_refused_at_once_if_it_is_no_daemon() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = fs::canonicalize(file.path()).unwrap();
        let own = std::process::id();
        assert!(!holds(own, &path), "open, but not locked");
        let device = FileDevice::open(&path, Access::ReadOnly).unwrap();
        assert!(holds(own, &path));
        assert_eq!(Search::default().look(&path), Holder::Process(own));
        let mut said = Vec::new();
        let refused = super::device(&path, Access::ReadOnly, 60 * SECOND, &mut |text| said.push(text.to_string()));
        let refused = refused.map(drop).unwrap_err();
        assert!(refused.message.ends_with("is in use by another process"), "{refused}");
        assert!(refused.hint.unwrap().starts_with(&format!("process {own}, ")) && said.is_empty());
        drop(device);
        super::device(&path, Access::ReadOnly, 60 * SECOND, &mut |_| {}).unwrap();
    }
}
