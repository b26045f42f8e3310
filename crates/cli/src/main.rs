//! The `holdfast` command.
//!
//! | file | job |
//! |---|---|
//! | `args`, `options`, `size`, `duration`, `date` | what can be asked: the command line, `mount -o`, sizes, times |
//! | `commands/` | one file for each command |
//! | `advice` | what to do about what a check found |
//! | `helper` | called by mount(8) under the name `mount.holdfast` |
//! | `disks` | what a store is on: a file or disk, or a Flashlog's; opening it |
//! | `stack` | puts the layers together |
//! | `daemon/` | serves a mount: threads, signals, the end; starting it in the background; its log |
//! | `logging` | what is logged, and how a line looks |
//! | `flashlog/` | sets of disk, log and backup: opening them, serving them, asking their servers |
//! | `ecc` | whether the machine's memory has ECC |
//! | `man` | manual pages, from the definitions of the command line |
//! | `metrics` | what `status` tells, for Prometheus |
//! | `progress` | how far long work has come |
//! | `given_up` | what a mount could not store as it ended |
//! | `scrub` | what a scrub has done, and what a mount can be asked about it |
//! | `check` | what a check finds, and what a mount can be asked about it |
//! | `report`, `output`, `failure` | what is answered: words or JSON, exit codes |
//! | `quoting` | names of any bytes, as they are printed and as a shell takes them |
//! | `holder` | who holds a store, and waiting for a daemon that is closing it |
//! | `mounts`, `paths`, `probe`, `signals` | the world outside: mounts, directories, what a disk holds, signals |
//! | `audited` | which equations must hold in a mount |
//! | `protect` | locks the memory of metadata against stray writes |
//! | `process` | this process's arguments, another one's end |
//! | `target` | the mount that a command is about |
//! | `unwell` | why somebody has to see to a store, and what to do |
//! | `users` | what an ordinary user may |
//! | `watch` | gives up on a mount that shows no sign of life |

/// What verifies nothing is for the lab alone.
const _: () = assert!(!holdfast_integrity::IS_BLIND, "`holdfast` is not built with the feature `blind`");

mod advice;
mod args;
mod audited;
mod check;
mod commands;
mod daemon;
mod date;
mod disks;
mod duration;
mod ecc;
mod failure;
mod flashlog;
mod given_up;
mod growth;
mod helper;
mod holder;
mod lab;
mod logging;
mod man;
mod metrics;
mod mounts;
mod options;
mod output;
mod paths;
mod probe;
mod process;
mod progress;
mod protect;
mod protection;
mod quoting;
mod report;
mod scratch;
mod scrub;
mod signals;
mod size;
mod snapshots;
mod stack;
mod target;
mod unwell;
mod users;
mod watch;

use args::{Cli, Command};
use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use failure::{Failure, exit};
use output::Format;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    if helper::is_called() {
        keep_open_files();
        return helper::run();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if !matches!(cli.command, Command::Run(_)) {
        keep_open_files();
    }
    let format = if cli.json { Format::Json } else { Format::Words };
    if format == Format::Json {
        progress::silence();
    }
    let timeout = Duration::from_secs(cli.timeout.into());
    if let Some(path) = watch::asked(&cli.command).filter(|_| !cli.unwatched) {
        let patience = if timeout.is_zero() { timeout } else { timeout + watch::waits(&cli.command) };
        return watch::run(&path, patience, format);
    }
    if cli.unwatched {
        // Not without the one that waits for it.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    }
    let told = matches!(&cli.command, Command::Mount(mount) if mount.report_ready);
    if !matches!(cli.command, Command::Mount(_)) && !commands::flashlog::is_server(&cli.command) {
        logging::start(None, cli.log_level);
    }
    let code = match &cli.command {
        Command::Create(arguments) => commands::create::run(arguments, format).map(|()| exit::OK),
        Command::Mount(arguments) => commands::mount::run(arguments, timeout, format, cli.log_level),
        Command::Unmount(arguments) => commands::unmount::run(arguments, timeout, format).map(|()| exit::OK),
        Command::Up(arguments) => commands::up::run(arguments, timeout, format, cli.log_level),
        Command::Status(arguments) => commands::status::run(arguments, format),
        Command::Sync(arguments) => commands::sync::run(arguments, format).map(|()| exit::OK),
        Command::Scrub(arguments) => commands::scrub::run(arguments, format),
        Command::Snapshot(arguments) => commands::snapshot::run(&arguments.action, format).map(|()| exit::OK),
        Command::Run(arguments) => commands::run::run(arguments, format),
        Command::Grow(arguments) => commands::grow::run(arguments, format),
        Command::Trim(arguments) => commands::trim::run(arguments, format).map(|()| exit::OK),
        Command::Inject(arguments) => commands::inject::run(arguments, format).map(|()| exit::OK),
        Command::Reliability(arguments) => commands::reliability::run(arguments, format).map(|()| exit::OK),
        Command::Flashlog(arguments) => commands::flashlog::run(&arguments.action, format, cli.log_level),
        Command::Completions(arguments) => {
            commands::completions::run(arguments, format);
            Ok(exit::OK)
        }
        Command::Man(arguments) => commands::man::run(arguments, format).map(|()| exit::OK),
        Command::Check(arguments) => commands::check::run(arguments, timeout, format).map_err(Failure::of_check),
    };
    let code = code.unwrap_or_else(|failure| {
        if told {
            // Whoever started the daemon prints it; if it is gone, or has been told that all is well, the log has it.
            tracing::error!("{failure}");
            let _ = daemon::tell(&daemon::Told::Failed(failure.clone()));
        } else {
            output::print_failure(format, &failure);
        }
        failure.code
    });
    ExitCode::from(code)
}

/// Nothing of this process's open files goes to those that it starts, which would hold them for as long as they live: a daemon,
/// or a process that waits for a mount that does not answer. (What `run` starts has a right to them.)
fn keep_open_files() {
    // SAFETY: only sets the close-on-exec flag of whatever descriptors there are. On kernels before 5.11 it fails, and
    // then only what was inherited without the flag is passed on.
    unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
}

/// `--help` and `--version` come here as well.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(exit::OK);
    }
    // The command line as it is: it could not be made sense of.
    let json = process::arguments().take_while(|argument| argument != "--").any(|argument| argument == "--json");
    let commands = <Cli as clap::CommandFactory>::command();
    let command =
        process::arguments().find_map(|argument| Some(commands.find_subcommand(argument)?.get_name().to_owned()));
    let code = if command.as_deref() == Some("check") { exit::CHECK_USAGE } else { exit::USAGE };
    let format = if json { Format::Json } else { Format::Words };
    if let Some(failure) = restores(error) {
        output::print_failure(format, &failure);
    } else if json {
        // The first paragraph says what is wrong; without colours, and in one line.
        let text = error.to_string();
        let words: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        let message = words.join(" ");
        let message = message.strip_prefix("error: ").unwrap_or(&message);
        // What else it says is about what could have been meant.
        let tip = words_of(error, ContextKind::SuggestedSubcommand).or(words_of(error, ContextKind::SuggestedArg));
        let help = command
            .map_or("holdfast --help lists what there is".to_string(), |command| format!("holdfast {command} --help"));
        let hint = tip.map_or(help.clone(), |tip| format!("{tip} may be meant; {help}"));
        output::print_failure(Format::Json, &Failure { code, ..Failure::usage(message).hint(hint) });
    } else {
        let _ = error.print();
    }
    ExitCode::from(code)
}

fn words_of(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        ContextValue::Strings(words) => words.first().cloned(),
        _ => None,
    }
}

/// What to say to those who look for a command that restores a snapshot.
fn restores(error: &clap::Error) -> Option<Failure> {
    let given = words_of(error, ContextKind::InvalidSubcommand)?;
    ["restore", "rollback", "revert"].contains(&given.as_str()).then(|| {
        Failure::usage(format!("there is no command {given}: what a snapshot has is there to be copied"))
            .hint("cp -a --reflink=auto DIR/.holdfast/snapshots/NAME/FILE DIR/FILE")
    })
}
