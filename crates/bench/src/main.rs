//! `holdfast-bench`: the same workloads on Holdfast, ext4, btrfs and fuse2fs, interleaved on one disk.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use holdfast_bench::error::{Error, Result, run};
use holdfast_bench::peer::{Kind, Peer, Site};
use holdfast_bench::plan::{Plan, Row, execute};
use holdfast_bench::program::{self, Progress, Setting};
use holdfast_bench::report;
use holdfast_bench::workload::{Scale, Workload};

/// Compares Holdfast with ext4, btrfs and fuse2fs: the same workloads, interleaved, on stores of equal size on one disk.
///
/// Needs root (it mounts, and drops the kernel's caches). Rates are medians over the rounds with minimum and maximum;
/// ratios are taken within each round. Workloads that write include a final fsync.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// File systems to compare
    #[arg(long, value_enum, value_delimiter = ',', default_value = "holdfast,holdfast-kernel,ext4,btrfs,fuse2fs")]
    peers: Vec<Kind>,
    /// A short run: smaller files, fewer rounds
    #[arg(long)]
    quick: bool,
    /// Rounds [default: 5, with --quick 3]
    #[arg(long)]
    rounds: Option<u64>,
    /// Size of the file that is read and written, in MiB [default: 512, with --quick 64]
    #[arg(long)]
    file_mib: Option<u64>,
    /// Show only the workloads whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    #[command(flatten)]
    setting: Setting,
    /// Size of each store in MiB, taken from the host at once
    #[arg(long, default_value_t = 4096)]
    store_mib: u64,
    /// Mount options for holdfast, both ways; its pool should hold the file, as the kernel's page cache does for the others
    #[arg(long, value_name = "OPTS", default_value = "cache=1G")]
    holdfast_options: String,
    /// Also write the tables into this document, between its marker lines
    #[arg(long, value_name = "DOCUMENT", num_args = 0..=1, default_missing_value = "docs/benchmarks.md")]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    program::end("holdfast-bench", compare(&Arguments::parse()))
}

fn compare(arguments: &Arguments) -> Result<()> {
    let site = Site::prepare(&arguments.setting.place, arguments.store_mib, &arguments.holdfast_options)?;
    let kinds = available(&arguments.peers, &site)?;
    let plan = plan(arguments)?;
    let mut peers = Vec::new();
    for kind in &kinds {
        peers.push(Peer::create(*kind, &site)?);
    }
    let transports: Vec<String> = peers.iter().map(|p| format!("{} on {}", p.kind().name(), p.transport())).collect();
    let preamble = format!(
        "{}\n\nStores: {} MiB each; {}\n\nAmounts: file {} MiB, {} random 4 KiB requests, \
         {} appends, {} files; {} rounds, interleaved; median (minimum–maximum)",
        program::heading(&site.dir),
        arguments.store_mib,
        transports.join("; "),
        plan.scale.file_mib,
        plan.scale.random_requests,
        plan.scale.appends,
        plan.scale.files,
        plan.rounds
    );
    println!("{preamble}\n");
    let progress = Progress::default();
    let rows = execute(&plan, &mut peers, |round, workload, kind| {
        progress.say(&format!("round {}: {} on {}", round + 1, workload.name(), kind.name()));
    })?;
    drop(progress);
    program::publish(arguments.write.as_deref(), &preamble, &tables(&rows, &kinds))
}

/// The file systems that can be measured here; says why for each that cannot.
fn available(wanted: &[Kind], site: &Site) -> Result<Vec<Kind>> {
    let mut kinds = Vec::new();
    for kind in wanted {
        let program = kind.required_program(&site.holdfast).display().to_string();
        if run("sh", &["-c", "PATH=$PATH:/usr/sbin:/sbin command -v \"$0\"", &program]).is_ok() {
            kinds.push(*kind);
        } else if kind.is_holdfast() {
            return Err(Error::Usage(format!(
                "{program} is not there; build it (cargo build --release), or name the others with --peers"
            )));
        } else {
            println!("{} is left out: {program} is not installed", kind.name());
        }
    }
    Ok(kinds)
}

fn plan(arguments: &Arguments) -> Result<Plan> {
    let mut scale = if arguments.quick {
        Scale { file_mib: 64, random_requests: 4096, appends: 200, files: 2000 }
    } else {
        Scale { file_mib: 512, random_requests: 16_384, appends: 1000, files: 10_000 }
    };
    scale.file_mib = arguments.file_mib.unwrap_or(scale.file_mib);
    if scale.file_mib == 0 || scale.file_mib > arguments.store_mib / 4 {
        return Err(Error::Usage("--file-mib must be at least 1 and at most a quarter of --store-mib".to_owned()));
    }
    let wanted =
        |workload: &Workload| arguments.only.as_ref().is_none_or(|text| workload.name().contains(text.as_str()));
    let shown: Vec<Workload> = Workload::ALL.into_iter().filter(wanted).collect();
    if shown.is_empty() {
        let names = Workload::ALL.map(Workload::name).join("\n  ");
        return Err(Error::Usage(format!("no workload has that name; there are:\n  {names}")));
    }
    let workloads =
        Workload::ALL.into_iter().filter(|w| shown.contains(w) || shown.iter().any(|s| s.needs(*w))).collect();
    let rounds = arguments.rounds.unwrap_or(if arguments.quick { 3 } else { 5 });
    Ok(Plan { workloads, shown, scale, rounds, seed: arguments.setting.seed })
}

fn tables(rows: &[Row], kinds: &[Kind]) -> String {
    let mut text = report::rates(rows, kinds);
    for kind in [Kind::Holdfast, Kind::HoldfastKernel, Kind::Fuse2fs].into_iter().filter(|kind| kinds.contains(kind)) {
        text += &format!(
            "\nWhere the time of one request goes on {}, in µs:\n\n{}",
            kind.name(),
            report::times(rows, kind)
        );
    }
    if kinds.contains(&Kind::Holdfast) && kinds.contains(&Kind::Btrfs) {
        let behind = report::far_behind(rows);
        text += &match behind.len() {
            0 => "\nNo row is more than 4 times slower than btrfs.\n".to_owned(),
            _ => format!("\nMore than 4 times slower than btrfs:\n- {}\n", behind.join("\n- ")),
        };
    }
    text
}
