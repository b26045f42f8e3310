//! The command line of `holdfast flashlog`.

mod model;

pub(crate) use model::{FlashlogFigure, FlashlogModel};

use crate::flashlog::past;
use crate::growth::NewSize;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use holdfast_block::flashlog::{At, Mode, Policy};
use std::path::PathBuf;
use std::time::Duration;

pub(super) const HELP: &str = "\
Examples:
  holdfast flashlog create --main disk.img --size 8G --log stick/log.img
  holdfast flashlog serve --main disk.img --log /media/stick/log.img
  holdfast flashlog backup --to /media/backup/backup.img
  holdfast flashlog status
  holdfast flashlog rebuild --backup B --log L --main NEW   the disk is dead
  holdfast flashlog model                  lives and costs, beside RAID's
A disk (main) and a small device (log, a stick) that travels with it are one
device for NBD clients. Everything that is flushed is on both, until a backup
has it: if one of them dies, nothing is lost. With --mode async it is on the
log alone until main catches up; status says how much.";

#[derive(Args, Debug)]
pub(crate) struct Flashlog {
    #[command(subcommand)]
    pub(crate) action: FlashlogAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum FlashlogAction {
    /// Make a set of a disk and a log
    #[command(after_help = "\
Examples:
  holdfast flashlog create --main disk.img --size 8G --log /media/stick/log.img
  sudo holdfast flashlog create --main /dev/sdx --log /dev/sdy
Files are made if they do not exist. What holds anything is refused, unless
--force says that it may go; main keeps what it has even then, but for its last
MiB. The set is as large as main, less about a MiB. The larger the log, the
longer the time between backups that need not copy whole regions.")]
    Create(FlashlogCreate),

    /// Serve a set to NBD clients, until it is told to end
    #[command(after_help = "\
Examples:
  holdfast flashlog serve --main disk.img --log /media/stick/log.img
  holdfast flashlog serve --main /dev/sdx --log /dev/sdy --socket /run/set.nbd
  holdfast flashlog serve --main M --log L --listen ::1 --tls-certificates D
  nbdinfo \"$(holdfast flashlog status --json | jq -r '.sets[0].uris[0]')\"
It stays in the foreground, and ends by Ctrl-C or SIGTERM, with everything on
main. Without --socket and --listen it takes the sockets of a service manager
(systemd.socket(5)), or makes one in the runtime directory.
A log that fails or is pulled out is gone on without in sync mode, and main is
alone then: status says so, and attach gives it a log again, as does serve if it
begins with a main that is alone and its log. In async mode it may have what
main has not: no changes are taken until it is plugged in again and attach gives
it to the set.")]
    Serve(FlashlogServe),

    /// Tell how sets and their devices are doing
    #[command(after_help = "\
Examples:
  holdfast flashlog status                 all sets that are served
  holdfast flashlog status /dev/sdx        what this device is, and its set
  holdfast flashlog status --json | jq .sets[0].protected
  holdfast flashlog status --export /dev/sdx    for udev and shells
A device is looked at without being changed, also while it is in use. The exit
code is 3 if something is not protected, or if who served a set has died.")]
    Status(FlashlogStatus),

    /// Bring a backup up to date, while the set is served or not
    #[command(after_help = "\
Examples:
  holdfast flashlog backup --to /dev/sdz              the set that is served
  holdfast flashlog backup --main M --log L --to B    not served
  holdfast flashlog backup                            where the last one went
  holdfast flashlog backup /mnt --to /dev/sdz         a store that is mounted
The first one copies everything, the next ones what is new. If it is cut off,
the backup has its last state, and the next call goes on. A device that is no
backup of this set yet is made one, if it holds nothing.")]
    Backup(FlashlogBackup),

    /// Bring main up to date with everything that was written
    #[command(after_help = "\
Examples:
  holdfast flashlog catch-up                       the set that is served
  holdfast flashlog catch-up /mnt                  a store that is mounted
  holdfast flashlog catch-up --main M --log L      neither served nor mounted
For asynchronous mode, in which main sleeps until the log is nearly full, or as
--idle-after and --age-most have it. The set can be used meanwhile: main gets
what was written before.")]
    CatchUp(FlashlogCatchUp),

    /// Compare main with its backup, and make good what is damaged
    #[command(after_help = "\
Examples:
  holdfast flashlog scrub                          served: with the last backup
  holdfast flashlog scrub --backup /media/backup/backup.img
  holdfast flashlog scrub --log-only               the backup is not at hand
  holdfast flashlog scrub --main M --log L --backup B      not served
  holdfast flashlog scrub --json | jq .lost
The set can be used meanwhile. What is damaged on main or backup, or in the log,
is made good from whoever has it with the right checksum. Main has no checksums
of its own: without a backup, only what the log still has can be verified, and
how much that leaves out is said. Exit code 3: something is damaged that nobody
has, or that waits for the next backup. What is lost cannot be read until it is
written, which the set knows until it is closed.")]
    Scrub(FlashlogScrub),

    /// Make a new main from backup and log
    #[command(after_help = "\
Examples:
  holdfast flashlog rebuild --backup B --log L --main NEW
  holdfast flashlog rebuild --backup B --log L --main NEW --at 4711
  holdfast flashlog rebuild --backup B --without-log --main NEW   the log is lost
The new device has everything that was in the log, or what was in it at a
barrier (at --list tells which there are). With this log the old one is refused
from then on. Nothing is taken from the backup, and this can be done again.
Without its log main is as the backup is, alone, and takes a new log by attach.")]
    Rebuild(FlashlogRebuild),

    /// Look at a set as it was, read-only: list the moments, serve one of them
    #[command(after_help = "\
Examples:
  holdfast flashlog at --list                        the moments since the backup
  holdfast flashlog at --time '2026-11-22 18:30:00'  the last one not after it
  holdfast flashlog at --barrier 4711
  holdfast flashlog at --backup B --log L --list     not served; main may be dead
  holdfast flashlog at --backup B --without-log      the backup's own state
Each flush of a client is a moment that can be gone back to (a barrier), until
the next backup. The state is served to NBD clients until Ctrl-C; meanwhile the
set can be used, and no backup is made. To go back for good: rebuild --at.
Times are UTC.")]
    At(FlashlogAt),

    /// Give main its log back while it is used, or a new one
    #[command(after_help = "\
Examples:
  holdfast flashlog attach --log /media/stick/log.img      the stick is back
  holdfast flashlog attach /mnt --log /media/stick/log     of a store that is mounted
  holdfast flashlog attach --log /dev/sdy --new            the old one is lost
  holdfast flashlog attach --main M --log L                neither served nor mounted
The log gets what was written without it, while the set is in use. If it has no
room for that, the next backup copies it from main. With a new log it copies
what the lost one had for it, and what main has done alone; if that is not known
(the set was not in use when the log was lost), it compares everything.")]
    Attach(FlashlogAttach),

    /// Let the log go while the set is used: main goes on alone
    #[command(after_help = "\
Examples:
  holdfast flashlog detach
  holdfast flashlog detach /mnt                    of a store that is mounted
  holdfast flashlog detach --main disk.img         if several sets are in use
Main gets everything first. What is written then is on no other device, until
attach gives main its log back. A log that has lost what main lacks is kept, as
only it tells which blocks that are: scrub, or accept that they are older data.")]
    Detach(FlashlogDetach),

    /// Make a set larger that is served
    #[command(after_help = "\
Examples:
  holdfast flashlog grow 20G               main, and the set with it
  holdfast flashlog grow +5G --main disk.img    if several sets are served
  holdfast flashlog grow                   as large as main has become
Clients see the new size when they connect again. Main has no log for a moment;
if that is cut off, attach --main M --log L puts both together. A store on a set
grows by: holdfast grow DIR.")]
    Grow(FlashlogGrow),

    /// Tell how long disk, RAID, backup and Flashlog live, and what they cost
    #[command(after_help = "\
Examples:
  holdfast flashlog model                       as in the thesis
  holdfast flashlog model --disk-mttf 120000h --repair 1w
  holdfast flashlog model --json | jq '.schemes[] | {scheme, mttf_h}'
  holdfast flashlog model --figure costs --out costs.svg
For comparing schemes: devices fail independently and at a constant rate here.
docs/flashlog-model.md has the formulas, and what is weak about them. Prices are
of 2010, in any money.")]
    Model(FlashlogModel),
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogCreate {
    /// File or disk that has every block at its place
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) main: PathBuf,
    /// File or disk, small, that has what was written last
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) log: PathBuf,
    /// File or disk for backups; one can be named later
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) backup: Option<PathBuf>,
    /// Size of a file for main, as 512M, 8G, 1.5T; default: 8G for a new one
    #[arg(long, value_parser = crate::size::parse)]
    pub(crate) size: Option<u64>,
    /// Size of a file for the log; default: an eighth of main for a new one
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub(crate) log_size: Option<u64>,
    /// Size of a file for backups; default: a sixteenth more than main for a new one (16 MiB to 4 GiB), and checksums
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse, requires = "backup")]
    pub(crate) backup_size: Option<u64>,
    /// Overwrite whatever is there; main keeps it, but for its last MiB
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogServe {
    /// Main device of the set
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) main: PathBuf,
    /// Its log device
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath, required_unless_present = "without_log")]
    pub(crate) log: Option<PathBuf>,
    /// Main is served alone: what is written is on no other device
    #[arg(long, conflicts_with = "log")]
    pub(crate) without_log: bool,
    /// In asynchronous mode, give up for good what only the log may have
    #[arg(long, requires = "without_log")]
    pub(crate) accept_loss: bool,
    /// What is done when a device fails, where it is not the default: DEVICE.FAILURE=[retry:TIMES:PAUSE+|wait:TIME+]ACTION, with commas in
    /// between. DEVICE: main, log, backup; FAILURE: read, write, flush, gone; ACTION: tell, alone, read-only, stop. `sync.` or `async.` in
    /// front is for one mode. status --json shows all of it
    #[arg(long, value_name = "POLICY", default_value = "", hide_default_value = true)]
    pub(crate) on_failure: Policy,
    /// Where backups go if `backup` does not say
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) backup: Option<PathBuf>,
    /// What a client's flush waits for
    #[arg(long, value_enum, default_value = "sync")]
    pub(crate) mode: FlashlogMode,
    /// With --mode async, main gets what it lacks when nothing was written for so long, and not only when the log is nearly full
    #[arg(long, value_name = "TIME", value_parser = crate::duration::parse_time)]
    pub(crate) idle_after: Option<Duration>,
    /// The same when something that it lacks is so old
    #[arg(long, value_name = "TIME", value_parser = crate::duration::parse_time)]
    pub(crate) age_most: Option<Duration>,
    /// The same when the index of what it lacks takes as much memory [default: 80M, for 4 GiB of data]
    #[arg(long, value_name = "SIZE", value_parser = crate::disks::parse_index_bytes)]
    pub(crate) index_memory: Option<u64>,
    /// Clients may only read
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Unix socket for clients, for this user only
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Vec<PathBuf>,
    /// Address for clients: HOST:PORT, or HOST
    #[arg(long, value_name = "ADDRESS", value_hint = ValueHint::Hostname)]
    pub(crate) listen: Vec<String>,
    /// A disk of this machine's kernel, /dev/ublkbN, as well; Linux 6.4 and later, with the module ublk_drv
    #[cfg(feature = "ublk")]
    #[arg(long)]
    pub(crate) ublk: bool,
    /// Directory with server-cert.pem and server-key.pem: nobody gets anything without TLS
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) tls_certificates: Option<PathBuf>,
    /// Clients must have a certificate of ca-cert.pem in that directory
    #[arg(long, requires = "tls_certificates")]
    pub(crate) tls_verify_peer: bool,
    /// Name of the export, besides none
    #[arg(long, default_value = "")]
    pub(crate) name: String,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) connections: u16,
    /// Socket for commands; default: one in the runtime directory
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) control: Option<PathBuf>,
}

/// What an answered flush says.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlashlogMode {
    /// Both log and main have it
    Sync,
    /// The log has it, and main gets it later
    Async,
}

impl FlashlogMode {
    pub(crate) fn mode(self) -> Mode {
        match self {
            FlashlogMode::Sync => Mode::Synchronous,
            FlashlogMode::Async => Mode::Asynchronous,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogStatus {
    /// Devices to look at; default: all sets that are served
    #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) devices: Vec<PathBuf>,
    /// Ask the server with this socket for commands
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "devices")]
    pub(crate) control: Option<PathBuf>,
    /// Print what the label of one device says, as NAME=VALUE
    #[arg(long, conflicts_with = "control")]
    pub(crate) export: bool,
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogBackup {
    /// Directory in a mount of a store on the set, or its main device: what is backed up is a recovery point
    #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath, conflicts_with_all = ["main", "control"])]
    pub(crate) target: Option<PathBuf>,
    /// File (made if there is none) or disk for it; default: where the last one of the server went
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) to: Option<PathBuf>,
    /// Main device of a set that is not served
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath, requires = "log")]
    pub(crate) main: Option<PathBuf>,
    /// Its log device
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath, requires = "main")]
    pub(crate) log: Option<PathBuf>,
    /// Size of a file that is made for it; default: a sixteenth more than the set (16 MiB to 4 GiB), and checksums
    #[arg(long, value_parser = crate::size::parse, requires = "to")]
    pub(crate) size: Option<u64>,
    /// Then read all of it back, and compare it with its checksums
    #[arg(long)]
    pub(crate) verify: bool,
    /// Overwrite whatever is there
    #[arg(long, requires = "to")]
    pub(crate) force: bool,
    /// Also if main is damaged and it is not known where: the backup gets older data there
    #[arg(long, requires = "to")]
    pub(crate) accept_loss: bool,
    /// Socket for commands of the set's server
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "main")]
    pub(crate) control: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogAttach {
    /// Directory in a mount of a store on the set, or its main device; default: the set that is served, or mounted
    #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath, conflicts_with_all = ["main", "control"])]
    pub(crate) target: Option<PathBuf>,
    /// The log
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) log: PathBuf,
    /// Main device of the set
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) main: Option<PathBuf>,
    /// It is another one than before: what main knew of the old one is given up
    #[arg(long)]
    pub(crate) new: bool,
    /// Size of a file for a new log; default: an eighth of main
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse, requires = "new")]
    pub(crate) log_size: Option<u64>,
    /// Overwrite whatever a new log holds
    #[arg(long, requires = "new")]
    pub(crate) force: bool,
    /// In asynchronous mode, give up for good what only the old log may have
    #[arg(long, requires_all = ["new", "main"])]
    pub(crate) accept_loss: bool,
    /// Socket for commands of the set's server
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "main")]
    pub(crate) control: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogDetach {
    /// Directory in a mount of a store on the set, or its main device; default: the set that is served, or mounted
    #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath, conflicts_with_all = ["main", "control"])]
    pub(crate) target: Option<PathBuf>,
    /// Main device of the set
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) main: Option<PathBuf>,
    /// Also if only the log tells which blocks of main are damaged: they are older data when main is opened without it
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Socket for commands of the set's server
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "main")]
    pub(crate) control: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogGrow {
    /// New size of the set, as 20G, or what is added to it, as +5G; default: all of main
    #[arg(value_parser = crate::growth::parse)]
    pub(crate) size: Option<NewSize>,
    /// Main device of the set
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) main: Option<PathBuf>,
    /// Socket for commands of the set's server
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "main")]
    pub(crate) control: Option<PathBuf>,
}

/// Which set: one that is served, or mounted, or the devices of one that is not.
#[derive(Args, Debug)]
pub(crate) struct FlashlogWhich {
    /// Directory in a mount of a store on the set, or its main device
    #[arg(value_name = "DIR|STORE", value_hint = ValueHint::AnyPath, conflicts_with_all = ["main", "control"])]
    pub(crate) target: Option<PathBuf>,
    /// Main device of a set that is not served
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath, requires = "log")]
    pub(crate) main: Option<PathBuf>,
    /// Its log device
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath, requires = "main")]
    pub(crate) log: Option<PathBuf>,
    /// Socket for commands of the set's server
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "main")]
    pub(crate) control: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogCatchUp {
    #[command(flatten)]
    pub(crate) which: FlashlogWhich,
    /// What is at the log's end and cannot be read may go
    #[arg(long, requires = "log")]
    pub(crate) drop_later: bool,
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogScrub {
    #[command(flatten)]
    pub(crate) which: FlashlogWhich,
    /// Its backup; default: where the last one of the server went
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) backup: Option<PathBuf>,
    /// Without a backup: only what the log still has
    #[arg(long, conflicts_with = "backup")]
    pub(crate) log_only: bool,
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogRebuild {
    /// Backup of the set
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) backup: PathBuf,
    /// Its log
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath, required_unless_present = "without_log")]
    pub(crate) log: Option<PathBuf>,
    /// The log is lost: main as the backup is, without what was written since
    #[arg(long, conflicts_with_all = ["log", "moment", "drop_later"])]
    pub(crate) without_log: bool,
    /// File (made if there is none) or disk to be main
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) main: PathBuf,
    /// Size of a file that is made for it; default: just enough
    #[arg(long, value_parser = crate::size::parse)]
    pub(crate) size: Option<u64>,
    /// Overwrite whatever is there
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) moment: FlashlogMoment,
    /// What the log has behind that moment may go; without a moment, what is behind damage in the log
    #[arg(long)]
    pub(crate) drop_later: bool,
    /// Go on where blocks of the backup are damaged and the log has no others
    #[arg(long)]
    pub(crate) accept_damage: bool,
}

/// Which state.
#[derive(Args, Debug)]
pub(crate) struct FlashlogMoment {
    /// The last moment whose number is not greater
    #[arg(long, value_name = "N", group = "moment")]
    pub(crate) barrier: Option<u64>,
    /// The last moment that is not later, as '2026-11-22 18:30:00' (UTC) or @SECONDS since 1970
    #[arg(long, value_name = "TIME", group = "moment", value_parser = crate::date::parse)]
    pub(crate) time: Option<i64>,
    /// The same of either, as mount has it: a number alone is a barrier's
    #[arg(long = "at", value_name = "N|TIME", group = "moment", value_parser = past::parse_earlier)]
    pub(crate) either: Option<At>,
}

impl FlashlogMoment {
    /// `None`: all that there is.
    pub(crate) fn at(&self) -> Option<At> {
        self.either.or(self.barrier.map(At::Barrier)).or(self.time.map(past::at_second))
    }
}

#[derive(Args, Debug)]
pub(crate) struct FlashlogAt {
    /// Show the moments
    #[arg(long, group = "moment")]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) moment: FlashlogMoment,
    /// Backup of the set; default: where the last one of the server went
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub(crate) backup: Option<PathBuf>,
    /// Log of a set that is not served
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::FilePath, requires = "backup")]
    pub(crate) log: Option<PathBuf>,
    /// Its log is lost: the backup's own state
    #[arg(long, requires = "backup", conflicts_with_all = ["log", "moment", "control"])]
    pub(crate) without_log: bool,
    /// Unix socket for clients, for this user only; default: one in the runtime directory
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "list")]
    pub(crate) socket: Option<PathBuf>,
    /// Socket for commands of the set's server
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "log")]
    pub(crate) control: Option<PathBuf>,
}
