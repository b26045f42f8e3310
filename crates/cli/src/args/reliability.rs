//! The command line of `holdfast reliability`.

use crate::{duration, paths};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, FromArgMatches, ValueEnum, ValueHint};
use holdfast_reliability::{ChecksumData, Config, Costs, Disk, Figure, Goal, Memory};
use std::path::PathBuf;

pub(super) const HELP: &str = "\
Examples:
  holdfast reliability                  this machine, as far as can be told
  holdfast reliability --ecc yes --goal exabyte
  holdfast reliability --memory-fit 167066 --uber 1e-10
  holdfast reliability --config 2 --checksum-data published --costs published
  holdfast reliability --json | jq .recommendation.mode
  holdfast reliability --figure 5 --out figure-5.svg
A score is -log10 of the probability that a read of 4 KiB returns wrong bytes
and nobody notices; 8.4 is one in a Terabyte read, 17.5 one in a Zettabyte. For
each goal the table tells for how long a page may stay in memory until the mode
misses it. t_switch is when the mode `dynamic` goes over from xor to the strong
checksum.
Whether memory has ECC is looked up (EDAC, DMI), and said. How often bits flip
is not known of any machine, and taken from the literature. docs/reliability.md
has the model, and what is weak about it.";

#[derive(Args, Debug)]
pub(crate) struct Reliability {
    #[command(flatten)]
    pub(crate) assumed: Assumed,
    /// How long a page has been in memory for which scores are given
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1s")]
    pub(crate) residency: f64,
    /// Draw a figure of the Z²FS paper instead, as SVG: 2 to 5
    #[arg(long, value_name = "N", value_parser = figure, requires = "out",
        conflicts_with_all = ["config", "ecc", "memory_fit", "uber", "flush", "residency", "uptime", "costs"])]
    pub(crate) figure: Option<Figure>,
    /// File for the figure; - is standard output
    #[arg(long, value_name = "FILE", value_parser = paths::svg, value_hint = ValueHint::FilePath, requires = "figure")]
    pub(crate) out: Option<PathBuf>,
}

/// What modes are judged by.
#[derive(Args, PartialEq, Debug)]
pub(crate) struct Assumed {
    /// A sample configuration of the papers: 1 low-end, 2 consumer, 3 enterprise, 4 server; default: the machine at hand
    #[arg(long, value_name = "N", value_parser = config)]
    pub(crate) config: Option<Config>,
    /// Whether the memory has ECC
    #[arg(long, value_enum, conflicts_with = "memory_fit")]
    pub(crate) ecc: Option<Ecc>,
    /// Flipped bits that reach the software, in FIT per Mbit: so many in 10^9 hours
    #[arg(long, value_name = "FIT", value_parser = memory, allow_negative_numbers = true)]
    pub(crate) memory_fit: Option<Memory>,
    /// Undetected bit error rate of the disk, as 1e-12
    #[arg(long, value_name = "RATE", value_parser = disk, allow_negative_numbers = true)]
    pub(crate) uber: Option<Disk>,
    /// How long a written page stays in memory before it is on the disk, as 5s
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s")]
    pub(crate) flush: f64,
    /// At most one silent corruption in so many bytes read
    #[arg(long, value_parser = goal(), default_value = "zettabyte")]
    pub(crate) goal: Goal,
    /// Longest time that a page stays in memory, by which a mode is recommended: as 30d or 1y
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1y")]
    pub(crate) uptime: f64,
    /// Strength of the checksums: as measured, as the paper has it, or with a Fletcher that adds modulo 2^128
    #[arg(long, value_name = "WHOSE", value_parser = checksum_data(), default_value = "measured")]
    pub(crate) checksum_data: ChecksumData,
    /// What the modes cost, by which one is recommended: as measured here, or as in the paper, where xor is much cheaper
    #[arg(long, value_name = "WHOSE", value_parser = costs(), default_value = "measured")]
    pub(crate) costs: Costs,
}

impl Assumed {
    /// Their names, for a command with which they need another option.
    pub(super) const IDS: [&str; 9] =
        ["config", "ecc", "memory_fit", "uber", "flush", "goal", "uptime", "checksum_data", "costs"];
}

/// As without any option.
impl Default for Assumed {
    fn default() -> Assumed {
        let arguments = Assumed::augment_args(clap::Command::new("reliability")).get_matches_from(["reliability"]);
        Assumed::from_arg_matches(&arguments).expect("all options have defaults")
    }
}

/// What is known of the memory.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ecc {
    Yes,
    No,
}

fn config(text: &str) -> Result<Config, String> {
    let number = text.parse().ok().and_then(Config::of_number);
    number.ok_or_else(|| format!("a number from 1 to {}", Config::ALL.len()))
}

fn figure(text: &str) -> Result<Figure, String> {
    text.parse().ok().and_then(Figure::of_number).ok_or_else(|| "a number from 2 to 5".to_string())
}

fn memory(text: &str) -> Result<Memory, String> {
    Memory::of_fit(number(text)?).map_err(|error| error.to_string())
}

fn disk(text: &str) -> Result<Disk, String> {
    Disk::of_uber(number(text)?).map_err(|error| error.to_string())
}

fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| "not a number; try 25000 or 1e-12".to_string())
}

fn goal() -> impl TypedValueParser<Value = Goal> {
    named(Goal::ALL.map(|goal| (goal.name(), goal)))
}

fn checksum_data() -> impl TypedValueParser<Value = ChecksumData> {
    named(ChecksumData::ALL.map(|data| (data.name(), data)))
}

fn costs() -> impl TypedValueParser<Value = Costs> {
    named(Costs::ALL.map(|costs| (costs.name(), costs)))
}

fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.map(|(name, _)| name)).map(move |given| {
        let found = values.into_iter().find(|(name, _)| *name == given);
        found.expect("one of the possible values").1
    })
}
