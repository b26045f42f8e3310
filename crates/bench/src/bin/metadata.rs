//! `holdfast-bench-metadata`: what each step of the protection of metadata costs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use holdfast_bench::error::{At, Error, Result};
use holdfast_bench::heap::Heap;
use holdfast_bench::metadata::{Load, Locked, Plan, Step, execute, serve, tables};
use holdfast_bench::program::{self, Progress};
use holdfast_bench::{cpu, machine};
use holdfast_guard::Protect;

#[global_allocator]
static HEAP: Heap = Heap;

/// Beside the stores in memory: pools, caches, the programs themselves.
const BESIDE_MIB: u64 = 1024;

/// Compares the steps of protection of metadata in memory: transactions with fsync, deletion of large fragmented files, creation and
/// unlinking of files; as ratios of CPU time to a store whose metadata is not protected. All layers and the device are in this process.
#[derive(Debug, Parser)]
#[command(name = "holdfast-bench-metadata", version, max_term_width = 100)]
struct Arguments {
    /// Steps; all are compared with the first [default: all, locked where the processor has protection keys]
    #[arg(long, value_enum, value_delimiter = ',')]
    steps: Option<Vec<Step>>,
    /// Loads [default: all, delete-huge where there is memory for it and without --quick]
    #[arg(long, value_enum, value_delimiter = ',')]
    loads: Option<Vec<Load>>,
    /// A short run: a smaller file, less of it at a time
    #[arg(long)]
    quick: bool,
    /// Rounds, each of which runs every step once; 30 pairs give the intervals that the goals ask for
    #[arg(long, default_value_t = 31)]
    rounds: u64,
    /// Size of the file that is read, written and deleted, in MiB [default: 384, with --quick 64]
    #[arg(long)]
    file_mib: Option<u64>,
    /// Size of the very large file that delete-huge deletes, in MiB
    #[arg(long, default_value_t = 4096)]
    huge_mib: u64,
    /// Transactions in a measurement [default: 20000, with --quick 400]
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
    /// How pages are locked: with pages instead of keys, to see that it works where there are no keys
    #[arg(long, hide = true, default_value = "keys", value_parser = ["keys", "pages"])]
    lock_with: String,
    /// Be the process with locked memory
    #[arg(long, hide = true)]
    serve: bool,
}

fn main() -> ExitCode {
    program::end("holdfast-bench-metadata", compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> Result<()> {
    machine::keep_freed_memory();
    let mut plan = plan(arguments)?;
    if arguments.serve {
        let how = if arguments.lock_with == "pages" { Protect::Pages } else { Protect::Keys };
        let (requests, answers) = (std::io::stdin().lock(), std::io::stdout().lock());
        return serve(&plan, how, requests, answers).at("answer", "standard output");
    }
    let cpu = cpu::stay_on_one().at("stay on one processor with", "this program")?;
    let (mut locked, mut not_measured) = (None, String::new());
    if plan.steps.contains(&Step::Locked) {
        let mut own = std::env::args_os();
        let _program = own.next();
        match Locked::start(own.chain(["--serve".into()]))? {
            Ok(process) => locked = Some(process),
            Err(why) if arguments.steps.is_some() => return Err(Error::Usage(format!("no locked pages: {why}"))),
            Err(why) => {
                plan.steps.retain(|step| *step != Step::Locked);
                not_measured = format!("\n\nNot measured: locked pages. {why}");
            }
        }
    }
    if let Some(why) = no_room(&plan) {
        if arguments.loads.is_some() {
            return Err(Error::Usage(why));
        }
        plan.loads.retain(|load| *load != Load::DeleteHuge);
        not_measured = format!("{not_measured}\n\nNot measured: {}. {why}", Load::DeleteHuge.name());
    }
    let huge = plan.loads.contains(&Load::DeleteHuge).then(|| format!(", a very large one of {} MiB", plan.huge_mib));
    let preamble = format!(
        "{}\n\nA file of {} MiB{}; per measurement {} transactions, or {} files; {} rounds, interleaved, on \
         processor {cpu}{not_measured}",
        program::heading(&std::env::current_dir().at("find", "the working directory")?),
        plan.file_mib,
        huge.unwrap_or_default(),
        plan.transactions,
        plan.files,
        plan.rounds
    );
    println!("{preamble}\n");
    let progress = Progress::default();
    let rows = execute(&plan, &mut locked, &mut |what| progress.say(what))?;
    drop(progress);
    let measured = format!("Load at the end: {}\n\n{}", machine::load(), tables(&plan, &rows));
    program::publish(arguments.write.as_deref(), &preamble, &measured)
}

fn plan(arguments: &Arguments) -> Result<Plan> {
    let steps = arguments.steps.clone().unwrap_or_else(|| Step::ALL.to_vec());
    if steps.len() < 2 || (1..steps.len()).any(|index| steps[..index].contains(&steps[index])) {
        return Err(Error::Usage("--steps must name at least two, each once".to_owned()));
    }
    // As many transactions as take a second or two: clean blocks are due for verification once a second, and all are at the start.
    let (file_mib, transactions, files) = if arguments.quick { (64, 400, 1000) } else { (384, 20_000, 8000) };
    let without = |load: &Load| arguments.quick && *load == Load::DeleteHuge;
    let loads = || Load::ALL.into_iter().filter(|load| !without(load)).collect();
    let plan = Plan {
        steps,
        loads: arguments.loads.clone().unwrap_or_else(loads),
        file_mib: arguments.file_mib.unwrap_or(file_mib),
        huge_mib: arguments.huge_mib,
        transactions: arguments.transactions.unwrap_or(transactions),
        files: arguments.files.unwrap_or(files),
        rounds: arguments.rounds,
        seed: arguments.seed,
    };
    let is_too_large_or_none = [plan.file_mib, plan.huge_mib].iter().any(|mib| !(1..=1 << 14).contains(mib));
    if is_too_large_or_none || [plan.transactions, plan.files, plan.rounds].contains(&0) {
        let text = "--file-mib and --huge-mib must be from 1 to 16384, --transactions, --files and --rounds at least 1";
        return Err(Error::Usage(text.to_owned()));
    }
    Ok(plan)
}

/// Why the very large file cannot be measured here: its store is in the memory of each process that measures.
fn no_room(plan: &Plan) -> Option<String> {
    let load = plan.loads.iter().find(|load| **load == Load::DeleteHuge)?;
    let processes = 1 + u64::from(plan.steps.contains(&Step::Locked));
    let (needed, available) = (processes * load.store_mib(plan) + BESIDE_MIB, machine::available_mib()?);
    let why = format!("It needs {needed} MiB of memory, and there are {available} (--huge-mib makes it smaller)");
    (available < needed).then_some(why)
}
