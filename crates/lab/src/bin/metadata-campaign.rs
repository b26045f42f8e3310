//! Writes to metadata in memory as nobody may, and prints what became of it. Exit code 1 if a promise is broken.

use clap::{Parser, ValueEnum};
use holdfast_lab::metadata::operations::{self, Operation};
use holdfast_lab::metadata::{Kind, Plan, Ways, again, markdown, run, share, text};
use holdfast_lab::sources;
use holdfast_physical::MetadataProtection;
use holdfast_physical::scribble::Pattern;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// A protection to do without: the campaign must fail.
#[derive(ValueEnum, Clone, Copy)]
enum Plant {
    /// Checksums in memory, and with them the audit
    Checksums,
    /// The audit
    Audit,
}

/// Writes to metadata in memory, of every kind and field, in every way and at every moment, makes recovery points, and prints a table.
// `make campaign` has defaults of its own, which others may follow.
#[derive(Parser)]
#[command(args_override_self = true)]
struct Arguments {
    /// Decides what is struck where.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many strikes.
    #[arg(long, default_value_t = 8000)]
    injections: u64,
    /// Strikes once, as a line says that was printed of a strike.
    #[arg(long, conflicts_with_all = ["seed", "injections", "kind", "pattern", "write"])]
    replay: Option<String>,
    /// Only this kind of metadata.
    #[arg(long)]
    kind: Option<String>,
    /// Only in this way; or logic-bug, for these.
    #[arg(long)]
    pattern: Option<String>,
    /// Does without a protection, and must fail.
    #[arg(long)]
    plant: Option<Plant>,
    /// Writes the table to docs/metadata-campaign.md, or docs/metadata-operations.md.
    #[arg(long, conflicts_with_all = ["plant", "kind", "pattern"])]
    write: bool,
    /// Strikes each field once, one bit, directly before each operation of an application; has no use for --injections.
    #[arg(long)]
    by_operation: bool,
    /// Only this operation.
    #[arg(long, requires = "by_operation", conflicts_with = "write")]
    operation: Option<String>,
    /// How often each field is struck before an operation, in each state of the store.
    #[arg(long, requires = "by_operation", default_value_t = 1)]
    times: u64,
    /// Operations that are tried at the same time; by default as many as there are processors.
    #[arg(long, requires = "by_operation")]
    at_once: Option<usize>,
    /// Only so many fields × operations, by the seed.
    #[arg(long, requires = "by_operation", conflicts_with = "write")]
    cells: Option<usize>,
}

/// Writes a page of `docs/`.
fn write_page(name: &str, page: &str) -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))
}

/// The campaign by field and operation: whether all is as it should be.
fn by_operation(arguments: &Arguments, kind: Option<Kind>, metadata: MetadataProtection) -> Result<bool, String> {
    let commit = sources::commit();
    let Arguments { seed, replay, write, operation, times, cells, at_once, .. } = arguments;
    let operation = operation.as_ref().map(|name| Operation::ALL.iter().copied().find(|of| of.name() == name));
    if operation == Some(None) {
        let names: Vec<&str> = Operation::ALL.iter().map(|of| of.name()).collect();
        return Err(format!("the operations are: {}", names.join(", ")));
    }
    let (start, mut number) = (Instant::now(), 0);
    let mut told = |trial: &operations::Trial| {
        number += 1;
        if number % 100 == 0 {
            eprint!("\r{number}, before {:<20}", trial.cell.operation.name());
        }
    };
    let (seed, times, cells) = (*seed, *times, *cells);
    let done = match replay {
        Some(line) => operations::again(line, metadata),
        None => {
            let all = std::thread::available_parallelism().map_or(1, usize::from);
            let (operation, at_once) = (operation.flatten(), at_once.unwrap_or(all));
            let plan = operations::Plan { seed, times, cells, operation, kind, metadata, at_once };
            operations::run(&plan, &mut told)
        }
    }?;
    eprintln!();
    print!("{}", operations::text(&done));
    if replay.is_some() {
        done.trials.iter().for_each(|trial| println!("struck: {}; met: {:?}", trial.struck, trial.outcomes));
    }
    let broken = done.broken().count();
    println!(
        "seed {seed}: {} strikes in {} fields × operations, {} not met, {:.1} s: {broken} failed, gave bad data, or crashed",
        done.trials.len(),
        done.cells(),
        done.missed.len(),
        start.elapsed().as_secs_f64()
    );
    if *write {
        let command = format!(
            "cargo run --release -p holdfast-lab --bin metadata-campaign -- --by-operation --seed {seed} --times {times} --write"
        );
        let page = operations::markdown(&done, &command, commit.as_deref());
        write_page("metadata-operations.md", &page)?;
    }
    Ok(broken == 0 && done.missed.is_empty())
}

fn main() -> ExitCode {
    match run_as_told(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all is as it should be.
fn run_as_told(arguments: Arguments) -> Result<bool, String> {
    let kind = arguments.kind.as_ref().map(|name| Kind::all().find(|kind| kind.name() == name));
    if kind == Some(None) {
        return Err(format!("the kinds are: {}", Kind::all().map(Kind::name).collect::<Vec<_>>().join(", ")));
    }
    let ways = match arguments.pattern.as_deref() {
        None => Some(Ways::All),
        Some("logic-bug") => Some(Ways::Bugs),
        Some(name) => Pattern::ALL.into_iter().find(|pattern| pattern.name() == name).map(Ways::Pattern),
    };
    let Some(ways) = ways else {
        return Err(format!("the patterns are: {}, logic-bug", Pattern::ALL.map(Pattern::name).join(", ")));
    };
    // A panic is a finding, and is reported as one.
    std::panic::set_hook(Box::new(|_| ()));
    let metadata = match arguments.plant {
        None => MetadataProtection::default(),
        Some(Plant::Audit) => MetadataProtection::Rolling,
        Some(Plant::Checksums) => MetadataProtection::Off,
    };
    if arguments.by_operation {
        return by_operation(&arguments, kind.flatten(), metadata);
    }
    let commit = sources::commit();
    let Arguments { seed, injections, replay, write, .. } = arguments;
    let is_whole = kind.is_none() && ways == Ways::All && replay.is_none();
    let start = Instant::now();
    let mut number = 0;
    let mut told = |_: &_| {
        number += 1;
        if number % 100 == 0 {
            eprint!("\r{number} of {injections}");
        }
    };
    let done = match &replay {
        Some(line) => again(line, metadata),
        None => run(&Plan { seed, injections, metadata, kind: kind.flatten(), ways }, &mut told),
    }?;
    eprintln!();
    print!("{}", text(&done));
    if replay.is_some() {
        done.trials.iter().for_each(|trial| println!("struck: {}; found: {}", trial.struck, trial.verdict.name()));
    }
    let broken = done.broken().count();
    let cells = done.coverage.cells();
    let stored = done.trials.iter().filter(|trial| !trial.stored.is_empty()).count();
    let misnamed = done.trials.iter().filter(|trial| trial.is_misnamed()).count();
    println!(
        "seed {seed}: {} strikes in {} of {} cells, {:.1} s: {stored} were stored, {misnamed} were named wrongly; {broken} broke a promise",
        done.trials.len(),
        cells.1,
        cells.0,
        start.elapsed().as_secs_f64()
    );
    if write {
        let command = format!(
            "cargo run --release -p holdfast-lab --bin metadata-campaign -- --seed {seed} --injections {injections} --write"
        );
        write_page("metadata-campaign.md", &markdown(&done, &command, commit.as_deref()))?;
    }
    // A campaign that could have been everywhere and has not proves less than it says.
    let unmet =
        if is_whole && injections >= done.coverage.needs().0 as u64 { done.coverage.unmet() } else { Vec::new() };
    unmet.iter().for_each(|what| println!("NOT MET: {what}"));
    println!("{}", share(&done));
    Ok(broken == 0 && unmet.is_empty())
}
