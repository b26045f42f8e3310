//! The file systems that are compared: each on a store of its own in one directory, so all on the same disk.
//!
//! ext4 and btrfs sit on a loop device over the store file (with direct I/O where the host allows it, so that no file system
//! is cached twice); holdfast and fuse2fs open the store file themselves.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use holdfast_lab::running::Running;

use crate::cpu;
use crate::error::{At, Error, Result, run};
use crate::program::Place;

/// Where snapshots of btrfs are kept, below the root. Those of holdfast are below `.holdfast`, which no listing shows.
pub const BTRFS_SNAPSHOTS: &str = ".snapshots";
/// How long a mount or unmount may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long an unmount is tried again.
const BUSY: Duration = Duration::from_secs(10);

/// Which file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The one this project builds, as it is mounted by default: every request passes the daemon.
    Holdfast,
    /// The same with `-o cache=kernel`: the kernel's page cache and writeback in front of it.
    HoldfastKernel,
    /// In the kernel, without data checksums.
    Ext4,
    /// In the kernel, copy-on-write with CRC-32C checksums: the yardstick.
    Btrfs,
    /// ext4 in user space, without a journal: another FUSE daemon.
    Fuse2fs,
}

impl Kind {
    /// As in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holdfast => "holdfast",
            Self::HoldfastKernel => "holdfast, cache=kernel",
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
            Self::Fuse2fs => "fuse2fs",
        }
    }

    /// Whether it can keep snapshots.
    pub fn has_snapshots(self) -> bool {
        self.is_holdfast() || self == Self::Btrfs
    }

    /// Stem of the names of its files, and, for one in the kernel, its type as mount(8) knows it.
    fn stem(self) -> &'static str {
        match self {
            Self::HoldfastKernel => "holdfast-kernel",
            _ => self.name(),
        }
    }

    /// Whether it is this project's, however mounted.
    pub fn is_holdfast(self) -> bool {
        matches!(self, Self::Holdfast | Self::HoldfastKernel)
    }

    /// The program without which this one cannot be measured.
    pub fn required_program(self, holdfast: &Path) -> PathBuf {
        match self {
            Self::Holdfast | Self::HoldfastKernel => holdfast.to_path_buf(),
            Self::Ext4 => "mkfs.ext4".into(),
            Self::Btrfs => "mkfs.btrfs".into(),
            Self::Fuse2fs => "fuse2fs".into(),
        }
    }
}

/// Where and how the stores are made.
#[derive(Clone, Debug)]
pub struct Site {
    /// Directory of the stores, on the disk to be measured.
    pub dir: PathBuf,
    /// Size of each store in MiB, taken from the host at once, as `holdfast create` does.
    pub store_mib: u64,
    /// The `holdfast` binary.
    pub holdfast: PathBuf,
    /// Mount options for holdfast.
    pub holdfast_options: String,
}

impl Site {
    /// A site in the directory, which is made if it is not there.
    ///
    /// # Errors
    /// Who calls is not root, who alone may mount and drop the kernel's caches; the directory cannot be made.
    pub fn prepare(place: &Place, store_mib: u64, holdfast_options: &str) -> Result<Site> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage("needs root: it mounts file systems and drops the kernel's caches".to_owned()));
        }
        let dir = &place.dir;
        std::fs::create_dir_all(dir).at("create", dir)?;
        let holdfast = match &place.holdfast {
            Some(path) => path.clone(),
            None => std::env::current_exe().at("find", "this program")?.with_file_name("holdfast"),
        };
        let dir = std::fs::canonicalize(dir).at("find", dir)?;
        Ok(Site { dir, store_mib, holdfast, holdfast_options: holdfast_options.to_owned() })
    }

    /// The mount options of one that [is ours](Kind::is_holdfast).
    fn options(&self, kind: Kind) -> String {
        let more = if kind == Kind::HoldfastKernel { "cache=kernel" } else { "" };
        [self.holdfast_options.as_str(), more].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",")
    }
}

/// A file system on its store. Dropping it unmounts it and removes the store.
#[derive(Debug)]
pub struct Peer {
    kind: Kind,
    site: Site,
    store: PathBuf,
    mount_point: PathBuf,
    loop_device: Option<PathBuf>,
    daemon: Option<Running>,
}

impl Peer {
    /// Makes an empty store and mounts it. Remains of an interrupted run are cleared away first.
    pub fn create(kind: Kind, site: &Site) -> Result<Self> {
        let store = site.dir.join(format!("{}.store", kind.stem()));
        let mount_point = site.dir.join(format!("{}.mnt", kind.stem()));
        let mut peer = Self { kind, site: site.clone(), store, mount_point, loop_device: None, daemon: None };
        peer.clear_remains();
        fs::create_dir_all(&peer.mount_point).at("create", &peer.mount_point)?;
        let store = peer.store.display().to_string();
        let size = format!("{}M", site.store_mib);
        match kind {
            Kind::Holdfast | Kind::HoldfastKernel => run(&site.holdfast, &["create", &store, "--size", &size])?,
            Kind::Ext4 | Kind::Fuse2fs => {
                run("fallocate", &["-l", &size, &store])?;
                // Everything is initialised now; lazily, the kernel would write during the measurements.
                run("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", &store])?
            }
            Kind::Btrfs => {
                run("fallocate", &["-l", &size, &store])?;
                run("mkfs.btrfs", &["-q", "-f", &store])?
            }
        };
        peer.mount()?;
        Ok(peer)
    }

    /// Which file system this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.mount_point
    }

    /// What stands between the file system and the disk.
    pub fn transport(&self) -> String {
        let Some(device) = &self.loop_device else {
            let options = self.site.options(self.kind);
            let shown = if self.kind.is_holdfast() { format!(" (-o {options})") } else { String::new() };
            return format!("store file{shown}");
        };
        let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let direct = fs::read_to_string(format!("/sys/block/{name}/loop/dio")).is_ok_and(|dio| dio.trim() == "1");
        format!("loop device, direct I/O {}", if direct { "on" } else { "off" })
    }

    /// Mounts the store; returns when it is usable.
    pub fn mount(&mut self) -> Result<()> {
        let (store, mount_point) = (self.store.display().to_string(), self.mount_point.display().to_string());
        let mut command = match self.kind {
            Kind::Ext4 | Kind::Btrfs => {
                let device = attach_loop(&store)?;
                self.loop_device = Some(device.clone());
                run("mount", &["-t", self.kind.stem(), &device.display().to_string(), &mount_point])?;
                return Ok(());
            }
            Kind::Holdfast | Kind::HoldfastKernel => {
                let mut command = Command::new(&self.site.holdfast);
                command.args(["mount", &store, &mount_point, "--foreground"]);
                let options = self.site.options(self.kind);
                if !options.is_empty() {
                    command.args(["-o", &options]);
                }
                command
            }
            Kind::Fuse2fs => {
                let mut command = Command::new("fuse2fs");
                command.args(["-f", "-o", "fakeroot", &store, &mount_point]);
                command
            }
        };
        let log_path = self.site.dir.join(format!("{}.log", self.kind.stem()));
        let log = File::create(&log_path).at("create", &log_path)?;
        let errors = log.try_clone().at("open", &log_path)?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let program = command.get_program().to_owned();
        let start = Instant::now();
        let daemon = self.daemon.insert(Running::start(&mut command).at("start", program)?);
        if daemon.has_mounted(&self.mount_point, TIMEOUT).at("mount on", &self.mount_point)? {
            return Ok(());
        }
        let detail = fs::read_to_string(&log_path).unwrap_or_default().trim().to_owned();
        let what = format!("{} is not mounted", self.kind.name());
        Err(Error::Timeout { what, seconds: start.elapsed().as_secs(), detail })
    }

    /// Unmounts the store in an orderly way and waits until the daemon has ended; nothing if it is not mounted.
    pub fn unmount(&mut self) -> Result<()> {
        if self.daemon.is_none() && self.loop_device.is_none() {
            return Ok(());
        }
        let mount_point = self.mount_point.display().to_string();
        let start = Instant::now();
        let unmount = || match self.kind {
            Kind::Holdfast | Kind::HoldfastKernel => run(&self.site.holdfast, &["unmount", &mount_point]),
            _ => run("umount", &[&mount_point]),
        };
        while let Err(error) = unmount() {
            // Somebody may just look at all mounts that there are.
            if start.elapsed() > BUSY {
                return Err(error);
            }
            // The kernel tells nobody when a mount stops being busy.
            sleep(Duration::from_millis(100));
        }
        if let Some(daemon) = &mut self.daemon {
            if daemon.wait(TIMEOUT).at("wait for the daemon of", &self.mount_point)?.is_none() {
                let what = format!("the daemon of {} still runs", self.kind.name());
                return Err(Error::Timeout { what, seconds: TIMEOUT.as_secs(), detail: String::new() });
            }
            self.daemon = None;
        }
        if let Some(device) = self.loop_device.take() {
            run("losetup", &["-d", &device.display().to_string()])?;
        }
        Ok(())
    }

    /// Makes everything durable, so that one measurement does not pay for the writes of another.
    pub fn settle(&self) -> Result<()> {
        let root = File::open(&self.mount_point).at("open", &self.mount_point)?;
        rustix::fs::syncfs(&root).at("syncfs", &self.mount_point)?;
        if self.kind.is_holdfast() {
            // The kernel passes syncfs to no FUSE file system; all it does is to hand down the pages that it keeps.
            run(&self.site.holdfast, &["sync", &self.mount_point.display().to_string()])?;
        }
        Ok(())
    }

    /// Keeps a snapshot of everything, read-only; nothing on a file system that has none.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        let root = self.mount_point.display().to_string();
        match self.kind {
            Kind::Holdfast | Kind::HoldfastKernel => run(&self.site.holdfast, &["snapshot", "create", &root, name])?,
            Kind::Btrfs => {
                let kept = self.mount_point.join(BTRFS_SNAPSHOTS);
                fs::create_dir_all(&kept).at("create", &kept)?;
                let to = kept.join(name).display().to_string();
                run("btrfs", &["subvolume", "snapshot", "-r", &root, &to])?
            }
            Kind::Ext4 | Kind::Fuse2fs => return Ok(()),
        };
        Ok(())
    }

    /// Gives up a snapshot. btrfs marks it only, and clears up behind it later.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        match self.kind {
            Kind::Holdfast | Kind::HoldfastKernel => {
                run(&self.site.holdfast, &["snapshot", "delete", &self.mount_point.display().to_string(), name])?
            }
            Kind::Btrfs => {
                let kept = self.mount_point.join(BTRFS_SNAPSHOTS).join(name);
                run("btrfs", &["subvolume", "delete", "-c", &kept.display().to_string()])?
            }
            Kind::Ext4 | Kind::Fuse2fs => return Ok(()),
        };
        Ok(())
    }

    /// Asks for the list of snapshots, with what each pins where the file system can tell.
    pub fn list_snapshots(&self) -> Result<()> {
        let root = self.mount_point.display().to_string();
        match self.kind {
            Kind::Holdfast | Kind::HoldfastKernel => run(&self.site.holdfast, &["snapshot", "list", &root])?,
            Kind::Btrfs => run("btrfs", &["subvolume", "list", "-s", &root])?,
            Kind::Ext4 | Kind::Fuse2fs => return Ok(()),
        };
        Ok(())
    }

    /// The file with its store.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// CPU time the daemon and its threads have used so far; `None` for a kernel file system.
    pub fn daemon_cpu(&self) -> Option<Duration> {
        cpu::of_process(self.daemon_pid()?).ok()
    }

    /// The process that serves the mount, if it is one.
    pub fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Running::id)
    }

    fn clear_remains(&self) {
        // Each of these fails when there is nothing to clear, which is the usual case.
        let _ = run("umount", &["-l", &self.mount_point.display().to_string()]);
        if let Ok(devices) = run("losetup", &["-n", "-O", "NAME", "-j", &self.store.display().to_string()]) {
            for device in devices.lines() {
                let _ = run("losetup", &["-d", device.trim()]);
            }
        }
        let _ = fs::remove_file(&self.store);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.unmount().is_err() {
            let _ = run("umount", &["-l", &self.mount_point.display().to_string()]);
            self.daemon = None;
        }
        self.clear_remains();
        let _ = fs::remove_dir(&self.mount_point);
    }
}

/// Attaches a loop device to the store, with direct I/O if the host's file system can.
fn attach_loop(store: &str) -> Result<PathBuf> {
    let attach = |direct: &str| run("losetup", &["--find", "--show", direct, store]);
    attach("--direct-io=on").or_else(|_| attach("--direct-io=off")).map(PathBuf::from)
}

/// Empties the kernel's page, dentry and inode caches. Dirty pages stay, so sync first. Needs root.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").at("write", "/proc/sys/vm/drop_caches")
}
