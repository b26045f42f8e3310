//! The command line.

mod flashlog;
mod inject;
mod reliability;

pub(crate) use flashlog::{
    Flashlog, FlashlogAction, FlashlogAt, FlashlogAttach, FlashlogBackup, FlashlogCatchUp, FlashlogCreate,
    FlashlogDetach, FlashlogFigure, FlashlogGrow, FlashlogMode, FlashlogModel, FlashlogRebuild, FlashlogScrub,
    FlashlogServe, FlashlogStatus, FlashlogWhich,
};
pub(crate) use inject::{FaultKind, Inject, Metadata, TargetKind};
pub(crate) use reliability::{Assumed, Ecc, Reliability};

use crate::growth::NewSize;
use crate::protection::Wanted;
use crate::size::Share;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum, ValueHint};
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;

/// Seconds without a sign of life after which a mount is given up.
pub(crate) const TIMEOUT_S: u32 = 60;

const EXAMPLES: &str = "\
Start here:
  holdfast up                        make a store, mount it on ~/Holdfast
  cp -a Documents ~/Holdfast/        use it as any directory
  holdfast status                    how it is doing
  holdfast unmount ~/Holdfast        stop; returns when all is on disk

By hand:
  holdfast create /data/my.store --size 20G
  holdfast mount /data/my.store /mnt
  holdfast sync /mnt                 all of it durable, now
  holdfast unmount /mnt
  holdfast check /data/my.store      read and compare every byte

A store is one file or one disk. `holdfast COMMAND --help` tells more.
With --json, a command prints one JSON document, also when it fails.";

/// Keeps files true: a file system in which every byte is checked, from the application to the disk.
#[derive(Parser, Debug)]
#[command(name = "holdfast", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Print one JSON document instead of words
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// What to log; a mount in the background has a file for it, everything else logs to standard error
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,

    /// Give up when a mount has shown no sign of life for so many seconds; 0: never
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = TIMEOUT_S)]
    pub(crate) timeout: u32,

    /// Ask the mount, and wait for however long it takes
    #[arg(long, global = true, hide = true)]
    pub(crate) unwatched: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How much is logged.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            LogLevel::Off => "off",
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a new store in a file or on a disk
    #[command(after_help = "\
Examples:
  holdfast create /data/my.store                 8 GiB in a new file
  holdfast create /data/my.store --size 100G
  holdfast create /data/my.store --reserve 5%    of which root alone has 5 %
  sudo holdfast create /dev/sdx                  a whole disk
  sudo holdfast create --main /dev/sdx --log /dev/sdy --backup /dev/sdz
                                 a disk, a log on a stick, and a first backup
A file or disk that holds anything is refused, unless --force says that it
may go. The space is taken from the host at once, so that it cannot run out
under the store.")]
    Create(Create),

    /// Mount a store on a directory; returns when it can be used
    #[command(after_help = mount_help())]
    Mount(Mount),

    /// Unmount; returns when everything is written and the store is clean
    #[command(after_help = "\
Example:
  holdfast unmount /mnt
  holdfast unmount --force /mnt      also if it is in use, or does not answer
If files are still open there, it says by whom, and nothing is unmounted; nor
if pages went bad in memory, as they can be written again until then. With
--force, whoever uses files gets errors, and pages that went bad are given up
(exit code 1); the store is clean all the same, unless its daemon does not
answer.")]
    Unmount(Unmount),

    /// Make a store on first use, mount it, and say what to do next
    #[command(after_help = "\
Examples:
  holdfast up                 mounted on ~/Holdfast
  holdfast up /mnt            the same store elsewhere
The store is ~/.local/share/holdfast/main.store ($XDG_DATA_HOME is honoured):
8 GiB, or half of what is free there. Calling it again does no harm. The exit
code is 3 if the store takes no changes, as something is wrong with it.")]
    Up(Up),

    /// Tell how a store or a mount is doing
    #[command(after_help = "\
Examples:
  holdfast status                      everything that is mounted
  holdfast status ~/Holdfast           one mount
  holdfast status /data/my.store       a store; nothing in it is changed
  holdfast status --json | jq .mounts[0].space.free_bytes
  holdfast status --metrics            the same for Prometheus
The exit code is 3 if somebody has to see to one of them, with --json and
--metrics too: it takes no changes as a device or the memory failed or
something in it is wrong, its root directory cannot be read, its daemon has
died or does not answer, its Flashlog is not protected or lacks the log, pages
went bad in memory and have to be written again (NOT STORED), blocks could not
be put right (CORRUPT since it was mounted, LOST or NOT repaired in its last
scrub), or entries that are free have something in them (NOT EMPTY).
Each of these has a line that says what to do.")]
    Status(Status),

    /// Make everything in a mount durable now
    #[command(after_help = "\
Example:
  holdfast sync ~/Holdfast
When this returns, all changes made before are in a recovery point. The
sync(1) command cannot do this: Linux does not pass it on to FUSE file systems.
fsync(2) on single files works as everywhere.")]
    Sync(Sync),

    /// Read a whole store, and compare everything with everything
    #[command(after_help = "\
Examples:
  holdfast check /data/my.store            report only, change nothing
  holdfast check /data/my.store --repair   also put right what can be
  holdfast check /mnt                      while it is mounted and used
A mounted store is checked as it is when the check begins; it goes on
meanwhile, but for space: what is freed comes back at the end, or as soon as
somebody needs it, and then the check ends without a result.
--repair, of a store that is not mounted, writes good copies over bad ones, a
wrong bitmap anew, empties entries that are free and not empty, and DELETES a
snapshot whose entry in the list of snapshots cannot be read.
File data is stored once: where it is bad, it cannot be repaired, and reading
it is an error until it is written again.
Exit codes are fsck's, added up: 0 nothing wrong, 1 errors corrected, 4 errors
left, 8 it could not be done, 16 usage, 32 cancelled.")]
    Check(Check),

    /// Read and verify every block of a mounted store, while it is used
    #[command(after_help = "\
Examples:
  holdfast scrub /mnt                  start; it goes on by itself
  holdfast scrub /mnt --rate 50M       at most 50 MiB a second; 0: no limit
  holdfast scrub /mnt --wait           show how far it is, tell what it found
  holdfast scrub /mnt --status
Bad copies of metadata are replaced by good ones. File data is stored once:
where it is bad and not in memory, the page is marked as lost, and reading it
is an error until it is written again. A scrub goes on with the next mount,
also after a crash, and keeps its rate until another one is given. With
--wait, the exit code is 3, as of status, if anything is lost, from before too,
or could not be repaired; and 1 if the scrub did not come to its end.")]
    Scrub(Scrub),

    /// Keep the files as they are now, look at what is kept, compare
    #[command(after_help = "\
Examples:
  holdfast snapshot create /mnt monday      at once, whatever the size
  ls /mnt/.holdfast/snapshots/monday        the files as they were, read-only
  cp -a /mnt/.holdfast/snapshots/monday/letter /mnt/
  holdfast snapshot list /mnt               and what each takes up
  holdfast snapshot diff /mnt monday        what has changed since
  holdfast snapshot diff /mnt monday tuesday
  holdfast snapshot delete /mnt monday
A snapshot takes up space only for what has changed since it was made. The
directory .holdfast is there, but not shown by ls.")]
    Snapshot(Snapshot),

    /// Run a program whose reads and writes of files in mounts go with checksums, made and verified in its own memory
    #[command(after_help = "\
Examples:
  holdfast run -- cp -r Documents /mnt/
  holdfast run --stats -- tar -xf archive.tar -C /mnt   count what was verified
  holdfast run -- sh -c 'sort /mnt/in >/mnt/out'        what it starts, too
Bytes that do not have their checksum are an I/O error for the program, and one
line on standard error says where. Without effect on programs that are linked
statically or set-user-id, on mappings (mmap), and on appends too long for one
request. The exit code is the program's; 127 and 126 as of a shell.")]
    Run(Run),

    /// Make a store larger, while it is mounted or not
    #[command(after_help = "\
Examples:
  holdfast grow /mnt 20G              20 GiB in all
  holdfast grow /mnt +5G              5 GiB more than now
  holdfast grow /data/my.store 20G    not mounted
  holdfast grow /mnt                  all of the disk, which has grown
The file of a store is enlarged, and its space taken from the host at once if
that of the store was. A power cut meanwhile leaves the old size or the new
one. A store cannot become smaller.")]
    Grow(Grow),

    /// Give the space that is free in a mounted store back to its host
    #[command(after_help = "\
Example:
  holdfast trim /mnt
A store in a file gets holes where it is free, a disk is told which blocks are
not needed. A file that was allocated in full is not any more: if its host has
no space left when the store wants to grow into it again, the store takes no
more changes.")]
    Trim(Trim),

    /// Damage a store on purpose, to see what becomes of it
    #[command(after_help = inject::HELP)]
    Inject(Box<Inject>),

    /// Tell how probable silent corruption is on a machine, and which protection it needs
    #[command(after_help = reliability::HELP)]
    Reliability(Reliability),

    /// A disk, a log of what is written to it, and a backup
    #[command(after_help = flashlog::HELP)]
    Flashlog(Flashlog),

    /// Print what a shell needs to complete commands, options and paths
    #[command(after_help = "\
Examples:
  source <(holdfast completions bash)      for this shell only
  holdfast completions zsh > ~/.zfunc/_holdfast
  holdfast completions fish > ~/.config/fish/completions/holdfast.fish
`make install` puts them where the shells look.")]
    Completions(Completions),

    /// Print a manual page, or write all of them to a directory
    #[command(after_help = "\
Examples:
  holdfast man mount | man -l -
  holdfast man --out ~/.local/share/man/man1
`make install` puts them where man(1) looks.")]
    Man(Man),
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("judged").args(Assumed::IDS).multiple(true).requires("protection"))]
pub(crate) struct Create {
    /// File (made if there is none) or block device
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "main")]
    pub(crate) store: Option<PathBuf>,
    /// The same, as the main disk of a Flashlog: everything that is written is on its log, too
    #[arg(long, value_name = "FILE|DISK", value_hint = ValueHint::FilePath, conflicts_with = "store", requires = "log")]
    pub(crate) main: Option<PathBuf>,
    /// The log of the Flashlog: a file (made if there is none), or a USB stick or SSD, all of which it takes
    #[arg(long, value_name = "FILE|DISK", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// Size of a log in a file; default: an eighth of the store's
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse, requires = "log")]
    pub(crate) log_size: Option<u64>,
    /// Make a first backup on this file (made if there is none) or disk
    #[arg(long, value_name = "FILE|DISK", value_hint = ValueHint::FilePath, requires = "log")]
    pub(crate) backup: Option<PathBuf>,
    /// When the Flashlog answers a flush: when main has everything, too, or when the log has it
    #[arg(long, value_enum, requires = "log", default_value = "sync")]
    pub(crate) mode: FlashlogMode,
    /// Size of the store, as 512M, 8G, 1.5T; default: 8G for a new file or one of 0 bytes, all of what is there otherwise
    #[arg(long, value_parser = crate::size::parse)]
    pub(crate) size: Option<u64>,
    /// How much of it only root may fill, as 1G or 5%; default: nothing
    #[arg(long, value_name = "SIZE|N%", value_parser = crate::size::parse_share)]
    pub(crate) reserve: Option<Share>,
    /// Checksums of the contents of files: uniform, uniform=blake3, none, disk, end-to-end=ALGORITHM, static, static=strong, dynamic, dynamic=TIME;
    /// or auto, what `holdfast reliability` recommends for this machine
    #[arg(long, value_name = "MODE", default_value = "uniform")]
    pub(crate) protection: Wanted,
    /// Overwrite whatever is there
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten, next_help_heading = "Options by which --protection auto, static and dynamic are decided")]
    pub(crate) assumed: Assumed,
}

#[derive(Args, Debug)]
pub(crate) struct Mount {
    /// File or block device with a store
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) store: PathBuf,
    /// Directory to mount it on
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTS")]
    pub(crate) options: Vec<String>,
    /// Stay in the foreground and log to standard error; ends when unmounted, or by Ctrl-C, which unmounts
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Let root and whoever mounts it damage its memory and its disk on purpose, by `holdfast inject`
    #[arg(long)]
    pub(crate) lab: bool,
    /// Tell the command that started this one how it went
    #[arg(long, hide = true, requires = "foreground")]
    pub(crate) report_ready: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Unmount {
    /// Directory that a store is mounted on, or the store
    #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath)]
    pub(crate) target: PathBuf,
    /// Cut off whoever uses it; also for a mount that does not answer
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Up {
    /// Directory to mount it on (made if there is none); default: ~/Holdfast
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Status {
    /// A store, or a directory in a mount; default: everything that is mounted
    #[arg(value_name = "STORE|DIR", value_hint = ValueHint::AnyPath)]
    pub(crate) path: Option<PathBuf>,
    /// Where the log of its Flashlog is, for a store that is not mounted; default: it is looked for beside it and on all disks
    #[arg(long, value_name = "FILE|DISK", value_hint = ValueHint::FilePath, requires = "path")]
    pub(crate) log: Option<PathBuf>,
    /// Print metrics in the text format of Prometheus
    #[arg(long)]
    pub(crate) metrics: bool,
    /// Ask the mount at exactly this directory, and wait for however long it takes
    #[arg(long, hide = true, requires = "path", conflicts_with = "metrics")]
    pub(crate) ask: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Sync {
    /// Directory in the mount, or the store that is mounted
    #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath)]
    pub(crate) target: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// File or block device with a store, or a directory in the mount of one
    #[arg(value_name = "STORE|DIR", value_hint = ValueHint::AnyPath)]
    pub(crate) store: PathBuf,
    /// Write good copies over bad ones
    #[arg(long)]
    pub(crate) repair: bool,
    /// Where the log of its Flashlog is; default: it is looked for beside it and on all disks
    #[arg(long, value_name = "FILE|DISK", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Scrub {
    /// Directory in the mount, or the store that is mounted
    #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath)]
    pub(crate) target: PathBuf,
    /// Most to read in a second, as 50M; 0: as fast as it goes; default: as the scrub that is there has it, 0 for a new one
    #[arg(long, value_parser = crate::size::parse, value_name = "SIZE")]
    pub(crate) rate: Option<u64>,
    /// Return when it has ended, or is paused
    #[arg(long)]
    pub(crate) wait: bool,
    /// Only tell how far it is and what it found
    #[arg(long, group = "what", conflicts_with = "rate")]
    pub(crate) status: bool,
    /// Let it rest
    #[arg(long, group = "what", conflicts_with = "rate")]
    pub(crate) pause: bool,
    /// Go on with one that rests
    #[arg(long, group = "what", conflicts_with = "rate")]
    pub(crate) resume: bool,
    /// Give it up
    #[arg(long, group = "what", conflicts_with = "rate")]
    pub(crate) cancel: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    pub(crate) action: SnapshotAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SnapshotAction {
    /// Keep the files as they are now
    #[command(after_help = "\
Example:
  holdfast snapshot create /mnt monday
If pages went bad in memory and have to be written again (NOT STORED in
`holdfast status`), the snapshot is made, with what they had before, and the
exit code is 1.")]
    Create {
        /// Directory in the mount, or the store that is mounted
        #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath)]
        target: PathBuf,
        /// Name of the snapshot
        name: String,
    },
    /// Show the snapshots
    #[command(after_help = "\
Example:
  holdfast snapshot list /mnt")]
    List {
        /// Directory in the mount, or a store
        #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath)]
        target: PathBuf,
    },
    /// Give up a snapshot, and the space that only it takes up
    #[command(after_help = "\
Example:
  holdfast snapshot delete /mnt monday")]
    Delete {
        /// Directory in the mount, or the store that is mounted
        #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath)]
        target: PathBuf,
        /// Name of the snapshot
        name: String,
    },
    /// Show what has changed since a snapshot, or between two: + new, - gone, M modified, A only attributes changed, R renamed
    #[command(after_help = "\
Example:
  holdfast snapshot diff /mnt monday tuesday")]
    Diff {
        /// Directory in the mount, or a store
        #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath)]
        target: PathBuf,
        /// Name of the first snapshot
        from: String,
        /// Name of the second one; without it, the files as they are now
        to: Option<String>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Tell on standard error what was verified, when the program has ended, and how many calls failed or ended early since bytes were bad; what goes by mappings (mmap) is not verified, and not counted
    #[arg(long)]
    pub(crate) stats: bool,
    /// Say nothing on standard error when bytes are bad: the program gets its error, and that is all
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Program and arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Grow {
    /// Directory in the mount, or a store
    #[arg(value_name = "STORE|DIR", value_hint = ValueHint::AnyPath)]
    pub(crate) target: PathBuf,
    /// New size, as 20G, or what is added to it, as +5G; default: all of the file or disk
    #[arg(value_parser = crate::growth::parse)]
    pub(crate) size: Option<NewSize>,
    /// The log of a store on a Flashlog that is not mounted, where it is not found by itself
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Trim {
    /// Directory in the mount, or the store that is mounted
    #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath)]
    pub(crate) target: PathBuf,
}

/// A shell that completions can be made for.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// For which shell
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Command whose page to print; default: the page of holdfast itself
    #[arg(conflicts_with = "out")]
    pub(crate) command: Vec<String>,
    /// Write all pages to this directory (made if there is none)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
}

fn mount_help() -> String {
    format!(
        "\
Mount options:
{}
Examples:
  holdfast mount /data/my.store /mnt
  holdfast mount /data/my.store /mnt -o ro
  holdfast mount /data/my.store /mnt -o cache=1G,noatime
A power cut takes at most the last 5 seconds, and nothing that fsync(2) or
`holdfast sync` has answered. SIGTERM to the daemon unmounts and leaves a clean
store. The exit code is 3 if the store is mounted and takes no changes, as
something is wrong with it: what can be read can be copied.",
        crate::options::help()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_fits_into_80_columns() {
        let mut cli = Cli::command();
        for command in std::iter::once(&cli.clone()).chain(cli.get_subcommands_mut().map(|command| &*command)) {
            let help = command.get_after_help().expect("examples").to_string();
            for line in help.lines() {
                assert!(line.chars().count() < 80, "{}: {line}", command.get_name());
            }
        }
    }
}
