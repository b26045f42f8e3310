//! The `holdfast` command.
//!
//! | file | job |
//! |---|---|
//! | `args`, `options`, `size` | what can be asked: the command line, `mount -o`, sizes |
//! | `commands/` | one file for each command |
//! | `helper` | called by mount(8) under the name `mount.holdfast` |
//! | `stack` | puts the layers together |
//! | `daemon/` | serves a mount: threads, signals, the end; starting it in the background; its log |
//! | `logging` | what is logged, and how a line looks |
//! | `man` | manual pages, from the definitions of the command line |
//! | `metrics` | what `status` tells, for Prometheus |
//! | `progress` | how far long work has come |
//! | `scrub` | what a scrub has done, and what a mount can be asked about it |
//! | `report`, `output`, `failure` | what is answered: words or JSON, exit codes |
//! | `mounts`, `paths`, `probe`, `signals` | the world outside: mounts, directories, what a disk holds, signals |
//! | `target` | the mount that a command is about |
//! | `users` | what an ordinary user may |

mod args;
mod commands;
mod daemon;
mod failure;
mod growth;
mod helper;
mod logging;
mod man;
mod metrics;
mod mounts;
mod options;
mod output;
mod paths;
mod probe;
mod progress;
mod report;
mod scrub;
mod signals;
mod size;
mod snapshots;
mod stack;
mod target;
mod users;

use args::{Cli, Command};
use clap::Parser;
use failure::{Failure, exit};
use output::Format;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = helper::run() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let format = if cli.json { Format::Json } else { Format::Words };
    let told = matches!(&cli.command, Command::Mount(mount) if mount.report_ready);
    if !matches!(cli.command, Command::Mount(_)) {
        logging::start(None, cli.log_level);
    }
    let code = match &cli.command {
        Command::Create(arguments) => commands::create::run(arguments, format).map(|()| exit::OK),
        Command::Mount(arguments) => commands::mount::run(arguments, format, cli.log_level).map(|()| exit::OK),
        Command::Unmount(arguments) => commands::unmount::run(arguments, format).map(|()| exit::OK),
        Command::Up(arguments) => commands::up::run(arguments, format, cli.log_level).map(|()| exit::OK),
        Command::Status(arguments) => commands::status::run(arguments, format).map(|()| exit::OK),
        Command::Sync(arguments) => commands::sync::run(arguments, format).map(|()| exit::OK),
        Command::Scrub(arguments) => commands::scrub::run(arguments, format),
        Command::Snapshot(arguments) => commands::snapshot::run(&arguments.action, format).map(|()| exit::OK),
        Command::Grow(arguments) => commands::grow::run(arguments, format).map(|()| exit::OK),
        Command::Trim(arguments) => commands::trim::run(arguments, format).map(|()| exit::OK),
        Command::Inject(arguments) => commands::inject::run(arguments, format).map(|()| exit::OK),
        Command::Completions(arguments) => {
            commands::completions::run(arguments, format);
            Ok(exit::OK)
        }
        Command::Man(arguments) => commands::man::run(arguments, format).map(|()| exit::OK),
        Command::Check(arguments) => commands::check::run(arguments, format).map_err(Failure::of_check),
    };
    let code = code.unwrap_or_else(|failure| {
        if told {
            // Whoever started the daemon prints it; if it is gone, or has been told that all is well, the log has it.
            tracing::error!("{failure}");
            let _ = daemon::tell(Err(&failure));
        } else {
            output::print_failure(format, &failure);
        }
        failure.code
    });
    ExitCode::from(code)
}

/// `--help` and `--version` come here as well.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(exit::OK);
    }
    // The command line as it is: it could not be made sense of.
    let mut arguments = std::env::args().skip(1).take_while(|argument| argument != "--");
    let json = arguments.any(|argument| argument == "--json");
    let command = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let code = if command.as_deref() == Some("check") { exit::CHECK_USAGE } else { exit::USAGE };
    if json {
        // The first paragraph says what is wrong; without colours, and in one line.
        let text = error.to_string();
        let words: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        let message = words.join(" ");
        let message = message.strip_prefix("error: ").unwrap_or(&message);
        let hint = command.map_or("holdfast --help".to_string(), |command| format!("holdfast {command} --help"));
        output::print_failure(Format::Json, &Failure { code, ..Failure::usage(message).hint(hint) });
    } else {
        let _ = error.print();
    }
    ExitCode::from(code)
}
