//! `holdfast-bench-metadata`: what each step of the protection of metadata costs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use holdfast_bench::error::{At, Error, Result};
use holdfast_bench::metadata::{Load, Plan, Step, execute, tables};
use holdfast_bench::program::{self, Progress};
use holdfast_bench::{cpu, machine};

/// Compares the steps of protection of metadata in memory: transactions with fsync, deletion of large fragmented files, creation and
/// unlinking of files; as ratios of CPU time to a store whose metadata is not protected. All layers and the device are in this process.
#[derive(Debug, Parser)]
#[command(name = "holdfast-bench-metadata", version, max_term_width = 100)]
struct Arguments {
    /// Steps; all are compared with the first
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["off", "rolling", "audited"])]
    steps: Vec<Step>,
    /// Loads
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["oltp", "delete", "delete-shared", "create", "unlink"])]
    loads: Vec<Load>,
    /// A short run: a smaller file, less of it at a time
    #[arg(long)]
    quick: bool,
    /// Rounds, each of which runs every step once; 30 pairs give the intervals that the goals ask for
    #[arg(long, default_value_t = 31)]
    rounds: u64,
    /// Size of the file that is read, written and deleted, in MiB [default: 384, with --quick 64]
    #[arg(long)]
    file_mib: Option<u64>,
    /// Transactions in a measurement [default: 2000, with --quick 400]
    #[arg(long)]
    transactions: Option<u64>,
    /// Files that a measurement creates or unlinks [default: 8000, with --quick 1000]
    #[arg(long)]
    files: Option<u64>,
    /// Seed of all that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the tables into this document, between its marker lines
    #[arg(long, value_name = "DOCUMENT", num_args = 0..=1, default_missing_value = "docs/metadata-speed.md")]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    program::end("holdfast-bench-metadata", compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> Result<()> {
    let plan = plan(arguments)?;
    let cpu = cpu::stay_on_one().at("stay on one processor with", "this program")?;
    let preamble = format!(
        "Command: `{}`\n\nMachine: {}\n\nA file of {} MiB; per measurement {} transactions, or {} files; {} rounds, interleaved, on \
         processor {cpu}",
        program::command_line(),
        machine::describe(&std::env::current_dir().at("find", "the working directory")?),
        plan.file_mib,
        plan.transactions,
        plan.files,
        plan.rounds
    );
    println!("{preamble}\n");
    let progress = Progress::default();
    let rows = execute(&plan, &mut |what| progress.say(what))?;
    drop(progress);
    let measured = format!("Load at the end: {}\n\n{}", machine::load(), tables(&plan, &rows));
    program::publish(arguments.write.as_deref(), &preamble, &measured)
}

fn plan(arguments: &Arguments) -> Result<Plan> {
    let steps = &arguments.steps;
    if steps.len() < 2 || (1..steps.len()).any(|index| steps[..index].contains(&steps[index])) {
        return Err(Error::Usage("--steps must name at least two, each once".to_owned()));
    }
    let (file_mib, transactions, files) = if arguments.quick { (64, 400, 1000) } else { (384, 2000, 8000) };
    let plan = Plan {
        steps: steps.clone(),
        loads: arguments.loads.clone(),
        file_mib: arguments.file_mib.unwrap_or(file_mib),
        transactions: arguments.transactions.unwrap_or(transactions),
        files: arguments.files.unwrap_or(files),
        rounds: arguments.rounds,
        seed: arguments.seed,
    };
    if !(1..=1 << 14).contains(&plan.file_mib) || [plan.transactions, plan.files, plan.rounds].contains(&0) {
        let text = "--file-mib must be from 1 to 16384, --transactions, --files and --rounds at least 1";
        return Err(Error::Usage(text.to_owned()));
    }
    Ok(plan)
}
