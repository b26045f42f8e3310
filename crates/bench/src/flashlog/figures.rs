//! The thesis's figures 6.4, 6.5, 6.9 and 6.10 as bar charts. They are drawn from the tables of the page, so that they show what stands there.

use super::loads::length;
use super::tables::{RATES, READS, WRITES};
use super::{Load, Setup};
use crate::error::{At, Error, Result};
use crate::report::number;
use holdfast_reliability::{Chart, Row, draw_chart};
use std::fs;
use std::path::Path;

/// Draws the figures into `figures/` beside the page.
///
/// # Errors
/// The page cannot be read, or has not the tables; a figure cannot be written.
pub fn draw(page: &Path) -> Result<()> {
    let text = fs::read_to_string(page).at("read", page)?;
    let directory = page.with_file_name("figures");
    fs::create_dir_all(&directory).at("create", &directory)?;
    for (name, svg) in figures(&text)? {
        let file = directory.join(name);
        fs::write(&file, svg).at("write", &file)?;
        println!("written to {}", file.display());
    }
    Ok(())
}

/// The figures, by the names of their files.
fn figures(page: &str) -> Result<[(&'static str, String); 3]> {
    Ok([
        ("flashlog-in-a-row.svg", in_a_row(page)?),
        ("flashlog-reads.svg", scattered("scattered reads, by their length", page, READS, Load::Reads)?),
        ("flashlog-writes.svg", scattered("scattered writes, by their length", page, WRITES, Load::Scattered)?),
    ])
}

/// A row of bars for each setup.
fn in_a_row(page: &str) -> Result<String> {
    let [first, again] = [rates(page, RATES, Load::Sequential)?, rates(page, RATES, Load::Rewrite)?];
    // What a Flashlog consists of stands in a second line.
    let names = Setup::ALL.map(|setup| setup.name().replacen(", ", "\n", 1));
    let both = first.into_iter().zip(again).map(|(first, again)| vec![first, again]);
    let rows: Vec<Row> = names.iter().map(String::as_str).zip(both).collect();
    let legend = ["write", "rewrite"];
    drawn(&Chart { title: "1 MiB in a row", unit: "MB/s", rows: &rows, legend: &legend, tick: &number, label: &number })
}

/// A row of bars for each length of a request, with one for each setup: too many for numbers above them.
fn scattered(title: &str, page: &str, heading: &str, load: fn(u64) -> Load) -> Result<String> {
    let names = Load::RECORDS.map(length);
    let all = Load::RECORDS.iter().map(|blocks| rates(page, heading, load(*blocks)));
    let rows = names.iter().zip(all).map(|(name, rates)| rates.map(|rates| (name.as_str(), rates)));
    let rows: Vec<Row> = rows.collect::<Result<_>>()?;
    let legend = Setup::ALL.map(Setup::name);
    drawn(&Chart { title, unit: "MB/s", rows: &rows, legend: &legend, tick: &number, label: &|_| String::new() })
}

fn drawn(chart: &Chart) -> Result<String> {
    draw_chart(chart).map_err(|error| Error::Usage(format!("{}: {error}", chart.title)))
}

/// The rates of a load in the table below this heading, in the order of [`Setup::ALL`].
fn rates(page: &str, heading: &str, load: Load) -> Result<Vec<f64>> {
    let missing = || Error::Usage(format!("the page has no rates of '{}' below '{heading}'", load.name()));
    let (_, below) = page.split_once(&format!("\n## {heading}\n")).ok_or_else(missing)?;
    let table = below.split("\n## ").next().unwrap_or(below);
    let row_of = |name: &str| {
        let mut rows = table.lines().map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
        rows.find(|cells| cells.first() == Some(&name))
    };
    let header = row_of("load").ok_or_else(missing)?;
    let row = row_of(&load.name()).ok_or_else(missing)?;
    let rate = |setup: Setup| row.get(header.iter().position(|cell| *cell == setup.name())?)?.parse::<f64>().ok();
    Setup::ALL.map(rate).into_iter().collect::<Option<_>>().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn docs() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    // Elsewhere a last digit of a logarithm, and then a pixel, may be another.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_figures_are_those_of_the_page() {
        let page = fs::read_to_string(docs().join("flashlog-speed.md")).unwrap();
        for (name, svg) in figures(&page).unwrap() {
            assert!(page.contains(&format!("](figures/{name})")), "{name} is not shown");
            let drawn = fs::read_to_string(docs().join("figures").join(name)).unwrap();
            assert!(drawn == svg, "{name}: make it anew: make bench-flashlog BENCH_ARGS=--figures");
        }
    }

    #[test]
    fn a_rate_is_that_of_its_setup_and_table() {
        let names = Setup::ALL.map(Setup::name);
        let backwards: Vec<&str> = names.iter().rev().copied().collect();
        let page = format!(
            "# A page\n\n## {RATES}\n\n| load | {} |\n|---|\n| rewrite, 1 MiB in a row | 7 | 6 | 5 | 4 | 3 | 2 | 1.5 |\n\n\
             ## {READS}\n\n| load | {} |\n|---|\n| write, 1 MiB in a row | 1 | 2 | 3 | 4 | 5 | 6 | – |\n",
            backwards.join(" | "),
            names.join(" | ")
        );
        assert_eq!(rates(&page, RATES, Load::Rewrite).unwrap(), [1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let refused = rates(&page, RATES, Load::Sequential).unwrap_err().to_string();
        assert!(refused.contains("no rates of 'write, 1 MiB in a row' below 'Rates, MB/s'"), "{refused}");
        assert!(rates(&page, READS, Load::Sequential).is_err(), "there is a dash");
        assert!(rates(&page, WRITES, Load::Sequential).is_err(), "there is no such table");
    }
}
