//! `holdfast-trace`: converts recorded system calls into traces, and replays traces in the protection modes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use holdfast_bench::error::{At, Error, Result};
use holdfast_bench::program::{self, Place, Progress};
use holdfast_bench::trace::format::{Event, parse, text};
use holdfast_bench::trace::replay::{Outcome, compare, replay};
use holdfast_bench::trace::strace::Converter;
use holdfast_bench::trace::{MODES, Replays, tables};
use holdfast_bench::{cpu, integrity, machine};

/// Records of what real programs ask of files: converted from strace's output, replayed on all layers in this process at the
/// times at which they were recorded, in each protection mode.
#[derive(Debug, Parser)]
#[command(name = "holdfast-trace", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a trace of what strace has seen: strace -f -ttt -y -s 0 -o OUTPUT COMMAND
    Convert {
        /// Only files below this directory
        #[arg(long)]
        root: PathBuf,
        /// strace's output
        output: PathBuf,
        /// The trace to write
        trace: PathBuf,
    },
    /// Replay traces in every mode, and print what they are and how long their reads take
    Replay(Replay),
}

#[derive(Debug, clap::Args)]
struct Replay {
    /// Traces
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// Rounds, each of which replays a trace once in every mode
    #[arg(long, default_value_t = 31)]
    rounds: u64,
    /// Memory for pages, in MiB
    #[arg(long, default_value_t = 24)]
    pool_mib: u64,
    #[command(flatten)]
    place: Place,
    /// Also write the tables into this document, between its marker lines
    #[arg(long, value_name = "DOCUMENT", num_args = 0..=1, default_missing_value = "docs/traces.md")]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Convert { root, output, trace } => convert(&root, &output, &trace),
        Command::Replay(arguments) => replay_all(&arguments),
    };
    program::end("holdfast-trace", result)
}

fn convert(root: &Path, output: &Path, trace: &Path) -> Result<()> {
    let root = std::fs::canonicalize(root).at("find", root)?;
    let mut converter = Converter::new(root.as_os_str().as_encoded_bytes());
    let mut lines = BufReader::new(std::fs::File::open(output).at("open", output)?);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).at("read", output)? > 0 {
        converter.line(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    let events = converter.finish().map_err(|what| Error::Usage(format!("{}: {what}", output.display())))?;
    std::fs::write(trace, text(&events)).at("write", trace)?;
    println!("{}: {} calls", trace.display(), events.len());
    Ok(())
}

fn replay_all(arguments: &Replay) -> Result<()> {
    if arguments.rounds == 0 || arguments.pool_mib < 8 {
        return Err(Error::Usage("--rounds must be at least 1, --pool-mib at least 8".to_owned()));
    }
    let dir = &arguments.place.dir;
    std::fs::create_dir_all(dir).at("create", dir)?;
    let cpu = cpu::stay_on_one().at("stay on one processor with", "this program")?;
    let preamble = format!(
        "{}\n\nA pool of {} MiB; {} rounds, interleaved, on processor {cpu}",
        program::heading(dir),
        arguments.pool_mib,
        arguments.rounds
    );
    println!("{preamble}\n");
    let progress = Progress::default();
    let mut traces = Vec::new();
    for path in &arguments.traces {
        traces.push(replay_one(arguments, path, &progress)?);
    }
    drop(progress);
    let measured = format!("Load at the end: {}\n\n{}", machine::load(), tables(&traces));
    program::publish(arguments.write.as_deref(), &preamble, &measured)
}

fn replay_one(arguments: &Replay, path: &Path, progress: &Progress) -> Result<Replays> {
    let events: Vec<Event> = parse(&std::fs::read_to_string(path).at("read", path)?)
        .map_err(|error| Error::Usage(format!("{}, {error}", path.display())))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); MODES.len()];
    for round in 0..arguments.rounds {
        for index in integrity::turns(MODES.len(), round) {
            progress.say(&format!("{name}: round {} of {}, {}", round + 1, arguments.rounds, MODES[index]));
            let store = arguments.place.dir.join("replay.store");
            let outcome = replay(&events, &store, MODES[index], arguments.pool_mib << 20);
            let _ = std::fs::remove_file(&store);
            outcomes[index].push(outcome?);
        }
        let this: Vec<_> =
            MODES.into_iter().zip(&outcomes).map(|(mode, outcomes)| (mode, &outcomes[round as usize])).collect();
        compare(&this)?;
    }
    let seconds = events.last().map_or(0, |last| last.at_us / 1_000_000);
    Ok(Replays { name, seconds, outcomes: MODES.into_iter().zip(outcomes).collect() })
}
