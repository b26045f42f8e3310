//! The options of `mount -o`.
//!
//! Three kinds: what the kernel sees to ([`Flags`]), what the daemon sees to, and what only mount(8) and systemd read in
//! /etc/fstab, which is let pass. What other FUSE file systems take and this one does not has a line that says why.

use crate::args::Assumed;
use crate::audited::Audited;
use crate::disks::{Given, parse_index_bytes};
use crate::duration;
use crate::flashlog::past;
use crate::flashlog::report::mode_name;
use crate::protect::Protect;
use crate::protection::{Chosen, Wanted};
use crate::size;
use clap::builder::PossibleValue;
use holdfast_block::flashlog::{CatchUp, Mode};
use holdfast_fuse::{Caching, Flags};
use holdfast_integrity::Protection;
use holdfast_naming::Atime;

/// How to mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MountOptions {
    /// What the kernel sees to. Read-only: nothing is written to the store either, not even the replay of its intent log.
    pub(crate) flags: Flags,
    /// Who keeps the pages of files for applications.
    pub(crate) caching: Caching,
    /// Size of the page pool, in bytes.
    pub(crate) cache_bytes: u64,
    /// Other users may use the mount, too.
    pub(crate) allow_other: bool,
    /// Mount on a directory that has files; they are hidden.
    pub(crate) nonempty: bool,
    /// Times of last access.
    pub(crate) atime: Atime,
    /// Longest time that a change stays outside a recovery point, in milliseconds.
    pub(crate) epoch_ms: u64,
    /// FUSE workers.
    pub(crate) threads: usize,
    /// Most bytes that may be in use.
    pub(crate) quota_bytes: Option<u64>,
    /// What is freed is given back to the host.
    pub(crate) discard: bool,
    /// How the contents of files are protected, if not as the store says.
    pub(crate) protection: Option<Protection>,
    /// What the reliability model says against that, on this machine.
    pub(crate) protection_warning: Option<String>,
    /// Which equations must hold.
    pub(crate) audit: Audited,
    /// How the memory of metadata is locked.
    pub(crate) protect: Protect,
    /// The devices of a Flashlog, if it is on one.
    pub(crate) disks: Given,
}

const CACHE_BYTES_MIN: u64 = 16 << 20;
const CACHE_BYTES_MAX: u64 = 1 << 40;
const EPOCH_MS_MIN: u64 = 10;
const EPOCH_MS_MAX: u64 = 60_000;
const THREADS_MAX: u64 = 64;

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            flags: Flags::default(),
            caching: Caching::Direct,
            cache_bytes: 256 << 20,
            allow_other: false,
            nonempty: false,
            atime: Atime::Relative,
            epoch_ms: 5_000,
            threads: 2,
            quota_bytes: None,
            discard: false,
            protection: None,
            protection_warning: None,
            audit: Audited::default(),
            protect: Protect::default(),
            disks: Given::default(),
        }
    }
}

/// Read by mount(8) and systemd in /etc/fstab, or written by the kernel into the table of mounts, from which mount(8) takes them
/// for a remount.
const LET_PASS: &[&str] = &[
    "defaults",
    // Always on.
    "acl",
    "user_xattr",
    "default_permissions",
    "async",
    "auto",
    "noauto",
    "nofail",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "_netdev",
    "comment",
    "user_id",
    "group_id",
    // Of mount(8) for every file system. Times of last access wait in memory for the next recovery point in any case, there is no version
    // of inodes, messages go to the log, and Linux has no mandatory locks any more.
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "mand",
    "nomand",
    // Clears what nothing but the default sets; then the kernel's default holds, and that is relatime.
    "norelatime",
];

const SELINUX: &str = "SELinux gives a mount of type fuse the context that its policy has for it";

/// What users of other FUSE file systems may try, and why it is refused.
const REFUSED: &[(&str, &str)] = &[
    ("allow_root", "allow_other lets root in as well, and the kernel checks permissions in any case"),
    (
        "auto_unmount",
        "a mount whose daemon has died is taken away by the next `holdfast mount` or `holdfast unmount` there",
    ),
    ("noacl", "access control lists are always on"),
    ("nouser_xattr", "extended attributes are always on"),
    ("fsname", "the source of a mount is always its store"),
    ("subtype", "the type of a mount is always fuse.holdfast"),
    ("max_read", "how much a request reads is settled between the kernel and the daemon"),
    ("kernel_cache", "it is called cache=kernel here"),
    ("writeback_cache", "it is called cache=kernel here"),
    ("direct_io", "it is called cache=direct here, and is the default"),
    ("loop", "a store in a file needs no loop device"),
    ("offset", "a store begins where its file or disk begins"),
    ("sizelimit", "a store knows its size"),
    ("context", SELINUX),
    ("fscontext", SELINUX),
    ("defcontext", SELINUX),
    ("rootcontext", SELINUX),
    ("uid", "files have owners of their own here"),
    ("gid", "files have groups of their own here"),
    ("umask", "files have modes of their own here"),
];

impl MountOptions {
    /// Reads lists of options separated by commas. Later ones count. An option that is not known is an error.
    pub(crate) fn parse(lists: &[String]) -> Result<MountOptions, String> {
        MountOptions::default().and(lists)
    }

    /// These options, changed by what `lists` say.
    pub(crate) fn and(mut self, lists: &[String]) -> Result<MountOptions, String> {
        // A mode is judged by how long a page waits for its recovery point, wherever that is said.
        let (modes, others): (Vec<&str>, Vec<&str>) =
            each(lists).partition(|option| option.split('=').next() == Some("protection"));
        for option in others.into_iter().chain(modes) {
            self.set(option)?;
        }
        if self.caching == Caching::Kernel && self.atime == Atime::Strict {
            return Err(
                "mount options cache=kernel and strictatime exclude each other: what the kernel reads from its own \
                        pages is told to nobody"
                    .into(),
            );
        }
        if self.disks.without_log && self.disks.log.is_some() {
            return Err("mount options log and without-log exclude each other".into());
        }
        if self.disks.at.is_some() {
            if self.disks.without_log {
                return Err("mount options at and without-log exclude each other".into());
            }
            // There is no other way to look at it.
            self.flags.read_only = true;
        }
        if self.disks.accept_loss && !self.disks.without_log {
            return Err("mount option accept-loss is for mounting without-log".into());
        }
        Ok(self)
    }

    /// Whether `lists` ask for a remount instead of a mount (mount(8)).
    pub(crate) fn is_remount(lists: &[String]) -> bool {
        MountOptions::has(lists, "remount")
    }

    /// Whether an option without a value is in `lists`.
    pub(crate) fn has(lists: &[String], name: &str) -> bool {
        each(lists).any(|option| option == name)
    }

    /// What mount(8) asks its helper for by `lists`, for a remount: all that the kernel sees to is given anew, but for times of last access,
    /// which stay as they are if no option is about them.
    pub(crate) fn given_anew(self, lists: &[String]) -> Result<MountOptions, String> {
        let MountOptions { flags, atime, .. } = self;
        let bare = MountOptions { flags: Flags::default(), atime: Atime::default(), ..self };
        let bare = match each(lists).any(|option| ABOUT_ATIME.contains(&option)) {
            true => bare,
            false => MountOptions { flags: flags.times_only(), atime, ..bare },
        };
        bare.and(lists)
    }

    /// Whether a mount with these options can go over to `wanted` while it is used: only what the kernel sees to can be changed, but
    /// for `sync` and `dirsync`, and for times of last access, which are the daemon's.
    ///
    /// # Errors
    /// The first one that cannot.
    pub(crate) fn can_become(&self, wanted: &MountOptions) -> Result<(), String> {
        let MountOptions { flags, caching, cache_bytes, allow_other, epoch_ms, threads, quota_bytes, .. } = self;
        for (is_same, what) in [
            (*caching == wanted.caching, "cache=direct and cache=kernel"),
            (*cache_bytes == wanted.cache_bytes, "the size of the cache"),
            (*allow_other == wanted.allow_other, "allow_other"),
            (*epoch_ms == wanted.epoch_ms, "epoch"),
            (*threads == wanted.threads, "threads"),
            (*quota_bytes == wanted.quota_bytes, "quota"),
            (self.discard == wanted.discard, "discard"),
            (self.protection == wanted.protection, "protection"),
            (self.audit == wanted.audit, "audit"),
            (self.protect == wanted.protect, "protect"),
            (self.disks.log == wanted.disks.log, "log"),
            (self.disks.without_log == wanted.disks.without_log, "without-log"),
            (self.disks.accept_loss == wanted.disks.accept_loss, "accept-loss"),
            (self.disks.mode == wanted.disks.mode, "log-mode"),
            (self.disks.catch_up == wanted.disks.catch_up, "idle-after and age-most"),
            (self.disks.index_bytes == wanted.disks.index_bytes, "index-memory"),
            (self.disks.policy == wanted.disks.policy, "on-failure"),
            (self.disks.at == wanted.disks.at, "at"),
            (flags.synchronous == wanted.flags.synchronous, "sync"),
            (flags.dir_synchronous == wanted.flags.dir_synchronous, "dirsync"),
        ] {
            if !is_same {
                return Err(format!("{what} cannot be changed by a remount"));
            }
        }
        Ok(())
    }

    /// Without options that are not known (`mount -s`).
    pub(crate) fn known(lists: &[String]) -> Vec<String> {
        let is_known = |option: &&str| {
            let named = MountOptions::default().set(option);
            named.map_or_else(|error| !error.ends_with(LISTED), |()| true)
        };
        each(lists).filter(is_known).map(str::to_string).collect()
    }

    /// As after `-o`, for the status of a mount: what is not as by default.
    pub(crate) fn words(&self) -> String {
        let MountOptions { flags, caching, cache_bytes, allow_other, nonempty, atime, epoch_ms, threads, .. } = self;
        let default = MountOptions::default();
        let mut words = vec![if flags.read_only { "ro" } else { "rw" }.to_string()];
        let mut word = |set: bool, word: &str| words.extend(set.then(|| word.to_string()));
        word(flags.no_suid, "nosuid");
        word(flags.no_dev, "nodev");
        word(flags.no_exec, "noexec");
        word(flags.no_symfollow, "nosymfollow");
        word(flags.synchronous, "sync");
        word(flags.dir_synchronous, "dirsync");
        word(*atime == Atime::Never, "noatime");
        word(*atime == Atime::Strict, "strictatime");
        word(flags.no_dir_atime, "nodiratime");
        word(*caching == Caching::Kernel, "cache=kernel");
        word(*cache_bytes != default.cache_bytes, &format!("cache={cache_bytes}"));
        word(*epoch_ms != default.epoch_ms, &format!("epoch={epoch_ms}"));
        word(*threads != default.threads, &format!("threads={threads}"));
        word(self.quota_bytes.is_some(), &format!("quota={}", self.quota_bytes.unwrap_or(0)));
        word(self.discard, "discard");
        word(self.protection.is_some(), &format!("protection={}", self.protection.unwrap_or_default()));
        word(self.audit != default.audit, &format!("audit={}", self.audit));
        word(self.protect != default.protect, &format!("protect={}", self.protect));
        let Given { log, without_log, accept_loss, mode, catch_up, index_bytes, policy, at } = &self.disks;
        word(
            log.is_some(),
            &format!("log={}", log.iter().map(|path| path.display()).map(|path| path.to_string()).collect::<String>()),
        );
        word(*without_log, "without-log");
        word(*accept_loss, "accept-loss");
        word(mode.is_some(), &format!("log-mode={}", mode.map_or("", mode_name)));
        for (name, time) in [("idle-after", catch_up.idle_after), ("age-most", catch_up.age_most)] {
            word(time.is_some(), &format!("{name}={}s", time.unwrap_or_default().as_secs_f64()));
        }
        word(index_bytes.is_some(), &format!("index-memory={}", index_bytes.unwrap_or_default()));
        word(at.is_some(), &format!("at={}", at.map(past::written).unwrap_or_default()));
        // A comma would end the option.
        word(*policy != default.disks.policy, &format!("on-failure={policy}").replace(',', "/"));
        word(*allow_other, "allow_other");
        word(*nonempty, "nonempty");
        words.join(",")
    }

    fn set_atime(&mut self, atime: Atime) {
        self.atime = atime;
        (self.flags.no_atime, self.flags.strict_atime) = (atime == Atime::Never, atime == Atime::Strict);
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let flags = &mut self.flags;
        match (name, value) {
            ("ro", None) => flags.read_only = true,
            ("rw", None) => flags.read_only = false,
            ("suid" | "nosuid", None) => flags.no_suid = name.starts_with("no"),
            ("dev" | "nodev", None) => flags.no_dev = name.starts_with("no"),
            ("exec" | "noexec", None) => flags.no_exec = name.starts_with("no"),
            ("symfollow" | "nosymfollow", None) => flags.no_symfollow = name.starts_with("no"),
            ("sync", None) => flags.synchronous = true,
            ("async", None) => flags.synchronous = false,
            ("dirsync", None) => flags.dir_synchronous = true,
            ("diratime" | "nodiratime", None) => flags.no_dir_atime = name.starts_with("no"),
            ("relatime" | "atime", None) => self.set_atime(Atime::Relative),
            ("strictatime", None) => self.set_atime(Atime::Strict),
            // The kernel's default holds, unless there is noatime.
            ("nostrictatime", None) if self.atime == Atime::Strict => self.set_atime(Atime::Relative),
            ("nostrictatime", None) => {}
            ("noatime", None) => self.set_atime(Atime::Never),
            ("allow_other", None) => self.allow_other = true,
            ("nonempty", None) => self.nonempty = true,
            ("cache", Some("kernel")) => self.caching = Caching::Kernel,
            ("cache", Some("direct")) => self.caching = Caching::Direct,
            ("cache", Some(value)) => {
                let bytes = size::parse(value)
                    .map_err(|error| format!("mount option cache: neither kernel nor direct, and {error}"))?;
                self.cache_bytes = within(name, bytes, CACHE_BYTES_MIN, CACHE_BYTES_MAX, size::show)?;
            }
            ("epoch", Some(value)) => {
                let show = |ms| format!("{ms} (milliseconds)");
                self.epoch_ms = within(name, number(name, value)?, EPOCH_MS_MIN, EPOCH_MS_MAX, show)?;
            }
            ("threads", Some(value)) => {
                let threads = within(name, number(name, value)?, 1, THREADS_MAX, |threads| threads.to_string())?;
                self.threads = threads as usize;
            }
            ("quota", Some(value)) => {
                let bytes = size::parse(value).map_err(|error| format!("mount option quota: {error}"))?;
                self.quota_bytes = Some(within(name, bytes, 1 << 20, u64::MAX, size::show)?);
            }
            ("discard" | "nodiscard", None) => self.discard = name == "discard",
            ("protection", Some(value)) => {
                let wanted: Wanted = value.parse().map_err(|error| format!("mount option protection: {error}"))?;
                // By what the machine at hand is taken to be: a mount is of no other. A page may wait for longer than is assumed.
                let mut assumed = Assumed::default();
                assumed.flush = assumed.flush.max(self.epoch_ms as f64 / 1000.0);
                let Chosen { protection, warning, machine, .. } = wanted.choose(&assumed);
                self.protection = Some(protection);
                let remedy = "-o protection=auto takes a mode that keeps it, for what is written from then on";
                self.protection_warning = warning.map(|it| format!("{it} ({machine}); {remedy}"));
            }
            ("audit", Some(value)) => {
                self.audit = value.parse().map_err(|error| format!("mount option audit: {error}"))?;
            }
            ("protect", Some(value)) => {
                self.protect = value.parse().map_err(|error| format!("mount option protect: {error}"))?;
            }
            ("log", Some("")) => return Err("mount option log: a path is missing".into()),
            ("log", Some(path)) => self.disks.log = Some(path.into()),
            ("at", Some(value)) => {
                let at = past::parse(value).map_err(|error| format!("mount option at: {error}"))?;
                self.disks.at = Some(at);
            }
            ("log-mode", Some("sync")) => self.disks.mode = Some(Mode::Synchronous),
            ("log-mode", Some("async")) => self.disks.mode = Some(Mode::Asynchronous),
            ("log-mode", Some(value)) => {
                return Err(format!("mount option log-mode: {value:?} is neither sync nor async"));
            }
            ("idle-after" | "age-most", Some(value)) => {
                let time = duration::parse_time(value).map_err(|error| format!("mount option {name}: {error}"))?;
                let CatchUp { idle_after, age_most } = &mut self.disks.catch_up;
                *(if name == "age-most" { age_most } else { idle_after }) = Some(time);
            }
            ("index-memory", Some(value)) => {
                let bytes = parse_index_bytes(value).map_err(|error| format!("mount option index-memory: {error}"))?;
                self.disks.index_bytes = Some(bytes);
            }
            ("without-log", None) => self.disks.without_log = true,
            ("accept-loss", None) => self.disks.accept_loss = true,
            ("on-failure", Some(value)) => {
                let policy = value.replace('/', ",").parse();
                self.disks.policy = policy.map_err(|error| format!("mount option on-failure: {error}"))?;
            }
            (
                "cache" | "epoch" | "threads" | "quota" | "protection" | "audit" | "protect" | "log" | "log-mode"
                | "on-failure" | "at" | "idle-after" | "age-most" | "index-memory",
                None,
            ) => {
                return Err(format!("mount option {name} needs a value: {name}=…"));
            }
            ("subtype", Some("holdfast")) | ("remount", None) => {}
            _ if LET_PASS.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            (_, Some(_)) if OptionHelp::is_known(name) => return Err(format!("mount option {name} takes no value")),
            _ => {
                return Err(match REFUSED.iter().find(|refused| refused.0 == name) {
                    Some((name, why)) => format!("mount option {name} is not taken: {why}"),
                    None => format!("mount option {name:?} is not known; {LISTED}"),
                });
            }
        }
        Ok(())
    }
}

/// Options about times of last access for which the kernel has a flag.
const ABOUT_ATIME: &[&str] = &["atime", "noatime", "relatime", "strictatime", "nodiratime"];

/// Ends the error about an option that is not known.
const LISTED: &str = "`holdfast mount --help` lists them";

fn each(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty())
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("mount option {name}: {value:?} is no whole number"))
}

fn within(name: &str, value: u64, min: u64, max: u64, show: impl Fn(u64) -> String) -> Result<u64, String> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(format!("mount option {name}: {} is not between {} and {}", show(value), show(min), show(max)))
}

/// An option and what it does, for `--help`.
struct OptionHelp(&'static str, &'static str);

const OPTIONS: &[OptionHelp] = &[
    OptionHelp("ro", "take no changes, write nothing to the store"),
    OptionHelp("rw", "take changes (default)"),
    OptionHelp("cache=direct", "every read and write of an application passes the"),
    OptionHelp("", "daemon, which verifies it (default)"),
    OptionHelp("cache=kernel", "the kernel keeps pages and writes them later:"),
    OptionHelp("", "faster, with less protection; see the guide"),
    OptionHelp("cache=SIZE", "memory for pages and metadata, 16M to 1T; default 256M"),
    OptionHelp("epoch=MS", "longest time until a change is in a recovery point,"),
    OptionHelp("", "10 to 60000 ms; default 5000"),
    OptionHelp("threads=N", "requests handled at once, 1 to 64; default 2"),
    OptionHelp("quota=SIZE", "refuse what would take more than this in all with"),
    OptionHelp("", "EDQUOT; at least 1M"),
    OptionHelp("protection=MODE", "checksums of file contents from now on, if not as the"),
    OptionHelp("", "store was made: see create --protection; auto, dynamic"),
    OptionHelp("", "and static go by the machine that it is mounted on"),
    OptionHelp("audit=all", "what changes must fit together, or is not stored: by"),
    OptionHelp("", "sums of recovery points and of names (default)"),
    OptionHelp("audit=store", "without those of names, which cost the most"),
    OptionHelp("audit=none", "not at all"),
    OptionHelp("protect=auto", "lock the memory of metadata against stray writes,"),
    OptionHelp("", "where the processor has protection keys (default)"),
    OptionHelp("protect=keys", "the same, and do not mount where it has none"),
    OptionHelp("protect=pages", "lock it with mprotect: slow, to find a culprit"),
    OptionHelp("protect=off", "do not lock it"),
    OptionHelp("log=PATH", "the log of a store on a Flashlog, where it is not found"),
    OptionHelp("", "by itself: beside main, or on a disk"),
    OptionHelp("without-log", "mount main alone: what is written is on no other device,"),
    OptionHelp("", "until `holdfast flashlog attach` gives it a log"),
    OptionHelp("accept-loss", "with without-log, after asynchronous mode: give up what"),
    OptionHelp("", "only the log may have"),
    OptionHelp("on-failure=HOW", "what is done when main or log fails, where it is not"),
    OptionHelp("", "the default: log.gone=wait:60s/log.write=read-only; as"),
    OptionHelp("", "for holdfast flashlog serve, with / instead of commas"),
    OptionHelp("at=BARRIER", "a store on a Flashlog as it was, by its backup"),
    OptionHelp("", "and log: the number of a barrier, a time (UTC, as"),
    OptionHelp("", "2026-11-22T18:30:00, or @SECONDS since 1970), or now;"),
    OptionHelp("", "see holdfast flashlog at"),
    OptionHelp("log-mode=MODE", "sync: a flush waits for main as well; async: main gets"),
    OptionHelp("", "it later; default: as the last time"),
    OptionHelp("idle-after=TIME", "with log-mode=async: main gets what it lacks when"),
    OptionHelp("", "nothing was written for so long (30s, 5m), and not"),
    OptionHelp("", "only when the log is nearly full"),
    OptionHelp("age-most=TIME", "the same when something that it lacks is so old"),
    OptionHelp("index-memory=SIZE", "the same when the index of what it lacks takes as much"),
    OptionHelp("", "memory (80 MiB, for 4 GiB of data)"),
    OptionHelp("discard", "give freed space back to the host by and by"),
    OptionHelp("nodiscard", "keep it (default); see holdfast trim"),
    OptionHelp("relatime", "update times of last access now and then (default)"),
    OptionHelp("noatime", "never update them"),
    OptionHelp("nodiratime", "never update those of directories"),
    OptionHelp("strictatime", "always update them"),
    OptionHelp("nostrictatime", "not always: as relatime, unless there is noatime"),
    OptionHelp("sync", "make every change durable before it is answered"),
    OptionHelp("dirsync", "the same for changes of names only"),
    OptionHelp("nosuid", "setuid and setgid mean nothing"),
    OptionHelp("nodev", "device files cannot be opened"),
    OptionHelp("noexec", "programs cannot be executed"),
    OptionHelp("nosymfollow", "symbolic links are not followed (needs root)"),
    OptionHelp("allow_other", "let other users in (needs root, or the line"),
    OptionHelp("", "user_allow_other in /etc/fuse.conf)"),
    OptionHelp("nonempty", "mount on a directory that has files, and hide them"),
    OptionHelp("default_permissions", "always on: the kernel checks permissions"),
    OptionHelp("defaults", "nothing; as auto, noauto, nofail, user, users,"),
    OptionHelp("", "_netdev and x-*, which are for /etc/fstab, and"),
    OptionHelp("", "lazytime, norelatime, iversion, silent, loud, mand"),
];

impl OptionHelp {
    fn is_known(name: &str) -> bool {
        OPTIONS.iter().any(|option| !name.is_empty() && option.0.split('=').next() == Some(name))
    }
}

/// The options, one per line, for `mount --help`.
pub(crate) fn help() -> String {
    let rows: Vec<_> = OPTIONS.iter().map(|option| (option.0, option.1.to_string())).collect();
    crate::output::table(&rows)
}

/// The options as a shell can offer them, each with what it does: those that need a value end with `=`.
pub(crate) fn words_for_shells() -> Vec<PossibleValue> {
    let mut words: Vec<(&str, String)> = Vec::new();
    for OptionHelp(option, help) in OPTIONS {
        match words.last_mut() {
            // The help of the one before goes on.
            Some((_, begun)) if option.is_empty() => *begun = format!("{begun} {help}"),
            _ => words.push((option.trim_end_matches(|c: char| c.is_ascii_uppercase()), help.to_string())),
        }
    }
    words.into_iter().map(|(word, help)| PossibleValue::new(word.to_string()).help(help)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions, String> {
        MountOptions::parse(&[list.to_string()])
    }

    #[test]
    fn a_mode_is_judged_by_the_epoch_wherever_that_is_said() {
        let t_switch_s = |list| match parse(list).unwrap().protection {
            Some(Protection::Dynamic { t_switch_s }) => t_switch_s,
            other => panic!("{list}: {other:?}"),
        };
        let [before, behind] = ["epoch=60000,protection=dynamic", "protection=dynamic,epoch=60000"].map(t_switch_s);
        let [default, short] = ["protection=dynamic", "protection=dynamic,epoch=10"].map(t_switch_s);
        assert_eq!((before, short), (behind, default));
        // Zero where the model says that xor is never enough on this machine.
        assert!(behind < default || default == 0, "{behind} s with 60 s until a page is on the disk, else {default} s");
    }

    #[test]
    fn later_options_count() {
        let lists = ["ro,cache=64M,,noatime".to_string(), "rw,epoch=250,threads=4,strictatime".to_string()];
        let options = MountOptions::parse(&lists).unwrap();
        let expected = MountOptions {
            cache_bytes: 64 << 20,
            epoch_ms: 250,
            threads: 4,
            atime: Atime::Strict,
            flags: Flags { strict_atime: true, ..Flags::default() },
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
        assert_eq!(parse("").unwrap(), MountOptions::default());
        assert_eq!(parse("defaults,default_permissions").unwrap(), MountOptions::default());
    }

    #[test]
    fn words_of_mount_8_do_what_they_say() {
        let options =
            parse("ro,nosuid,nodev,noexec,nosymfollow,sync,dirsync,noatime,nodiratime,allow_other,cache=kernel,cache=32M,quota=2G,discard,protect=pages,log=/dev/x,log-mode=async,idle-after=30s,age-most=5m,index-memory=16M,on-failure=sync.log.gone=wait:1m+stop/async.log.write=alone").unwrap();
        let all = Flags {
            read_only: true,
            no_suid: true,
            no_dev: true,
            no_exec: true,
            no_symfollow: true,
            no_atime: true,
            strict_atime: false,
            no_dir_atime: true,
            synchronous: true,
            dir_synchronous: true,
        };
        assert_eq!((options.flags, options.caching, options.cache_bytes), (all, Caching::Kernel, 32 << 20));
        assert_eq!(parse(&options.words()).unwrap(), options, "{}", options.words());
        let undone = options.and(&["rw,suid,dev,exec,symfollow,async,relatime,diratime,cache=direct".into()]).unwrap();
        assert_eq!(undone.flags, Flags { dir_synchronous: true, ..Flags::default() });
        assert_eq!(undone.caching, Caching::Direct);
        let fstab = "defaults,acl,user_xattr,noauto,nofail,user,users,user=me,_netdev,x-systemd.automount,x-gvfs-show,comment=mine";
        assert_eq!(parse(fstab).unwrap(), MountOptions::default());
    }

    #[test]
    fn generic_options_of_mount_8_stop_no_mount() {
        let generic = "lazytime,nolazytime,norelatime,nostrictatime,iversion,noiversion,silent,loud,mand,nomand,nousers,noowner,nogroup";
        assert_eq!(parse(generic).unwrap(), MountOptions::default());
        assert_eq!(MountOptions::known(&[generic.into()]).join(","), generic);
        assert_eq!(parse("strictatime,nostrictatime").unwrap(), MountOptions::default());
        // As the kernel has it: neither takes noatime back, and norelatime does not take strictatime back.
        for (list, atime) in
            [("noatime,nostrictatime,norelatime", Atime::Never), ("strictatime,norelatime", Atime::Strict)]
        {
            assert_eq!(parse(list).unwrap().atime, atime, "{list}");
        }
    }

    #[test]
    fn a_remount_changes_what_can_be_changed() {
        let now = parse("rw,cache=64M,noatime,nosuid").unwrap();
        for fine in ["ro", "rw,relatime", "nodev,noexec,suid", "strictatime,nodiratime", "nonempty"] {
            assert_eq!(now.can_become(&now.clone().and(&[fine.into()]).unwrap()), Ok(()), "{fine}");
        }
        for bad in [
            "cache=32M",
            "cache=kernel",
            "epoch=77",
            "threads=5",
            "allow_other",
            "sync",
            "dirsync",
            "protect=off",
            "log=/x",
            "without-log",
            "at=4711",
            "on-failure=sync.log.gone=stop",
        ] {
            let error = now.can_become(&now.clone().and(&[bad.into()]).unwrap()).unwrap_err();
            assert!(error.contains(bad.split('=').next().unwrap()), "{bad}: {error}");
        }
        // mount(8) has no word for strictatime in the table of mounts, so it names none when something else is changed.
        let anew = |now: &str, list: &str| parse(now).unwrap().given_anew(&[list.into()]).unwrap().words();
        assert_eq!(anew("noatime,nosuid,cache=64M", "rw,relatime"), "rw,cache=67108864");
        assert_eq!(anew("strictatime,nodiratime,nosuid", "rw,nodev,remount"), "rw,nodev,strictatime,nodiratime");
        assert_eq!(anew("strictatime", "rw,remount,noatime"), "rw,noatime");
        assert!(
            MountOptions::is_remount(&["rw,noatime".into(), "remount,ro".into()])
                && !MountOptions::is_remount(&["x-remount".into()])
        );
    }

    #[test]
    fn what_is_not_known_can_be_left_out() {
        let lists = ["ro,sparkle".to_string(), "cache=1,glitter=2,x-any".to_string()];
        assert_eq!(MountOptions::known(&lists), ["ro", "cache=1", "x-any"]);
    }

    #[test]
    fn errors_name_the_option() {
        for (list, named) in [
            ("ro,sparkle", "\"sparkle\""),
            ("sparkle=1", "\"sparkle\""),
            ("ro=1", "ro takes no value"),
            ("cache", "cache needs a value"),
            ("cache=1M", "cache: 1.00 MiB is not between"),
            ("cache=big", "cache"),
            ("epoch=0", "epoch"),
            ("quota", "quota needs a value"),
            ("quota=1K", "quota: 1.00 KiB is not between"),
            ("discard=1", "discard takes no value"),
            ("protect", "protect needs a value"),
            ("protect=some", "protect: \"some\" is none of auto, keys, pages and off"),
            ("epoch=5s", "epoch"),
            ("threads=65", "threads"),
            ("log", "log needs a value"),
            ("log=", "log: a path is missing"),
            ("log=/x,without-log", "log and without-log exclude each other"),
            ("at=7,without-log", "at and without-log exclude each other"),
            ("at=soon", "at: \"soon\" is neither the number of a barrier nor a time"),
            ("at", "at needs a value"),
            ("accept-loss", "accept-loss is for mounting without-log"),
            ("on-failure=sync", "on-failure: \"sync\": write DEVICE"),
            ("age-most", "age-most needs a value"),
            ("idle-after=soon", "idle-after: \"soon\""),
            ("index-memory=1k", "index-memory: \"1k\" is too little"),
            ("index-memory", "index-memory needs a value"),
            ("log-mode=fast", "log-mode: \"fast\" is neither sync nor async"),
            ("strictatime,cache=kernel", "exclude each other"),
            ("allow_root", "allow_other lets root in"),
            ("fsname=x", "fsname is not taken"),
            ("subtype=x", "subtype is not taken: the type of a mount is always fuse.holdfast"),
            ("max_read=4096", "max_read is not taken"),
            ("uid=1000", "owners of their own"),
            ("loop", "loop is not taken"),
            ("context=system_u:object_r:x_t:s0", "context is not taken: SELinux"),
        ] {
            let error = parse(list).unwrap_err();
            assert!(error.contains(named), "{list}: {error}");
        }
    }

    #[test]
    fn the_help_lists_every_option_that_is_taken() {
        for option in OPTIONS {
            let name = option.0;
            let tried = name
                .replace("HOW", "log.gone=wait:60s/log.write=read-only")
                .replace("SIZE", "64M")
                .replace("MS", "100")
                .replace("=N", "=3")
                .replace("PATH", "/log")
                .replace("BARRIER", "4711")
                .replace("TIME", "30s");
            let mode = if name.starts_with("log") { "async" } else { "static" };
            let tried = tried.replace("MODE", mode);
            // It says what may be lost with another one.
            let tried = tried.replace("accept-loss", "without-log,accept-loss");
            assert!(parse(&tried).is_ok(), "{name}");
        }
        assert_eq!(help().lines().count(), OPTIONS.len());
    }
}
