//! The tables: as text for the terminal and the document (Markdown tables are readable in both).

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::error::{At, Error, Result};
use crate::measure::{Sample, Summary};
use crate::peer::Kind;
use crate::plan::Row;

/// Lines between which `--write` replaces the tables in the document.
const BEGIN: &str = "<!-- measured: begin -->";
const END: &str = "<!-- measured: end -->";

/// A row in which Holdfast is slower than btrfs by more than this says that something is wrong with the design.
const TOLERATED_RATIO_TO_BTRFS: f64 = 0.25;

/// Rates: median and extremes per file system, and Holdfast's ratio to the two yardsticks.
pub fn rates(rows: &[Row], kinds: &[Kind]) -> String {
    let yardsticks: Vec<Kind> = [Kind::Btrfs, Kind::Ext4]
        .into_iter()
        .filter(|kind| kinds.contains(kind) && kinds.contains(&Kind::Holdfast))
        .collect();
    let mut header = vec!["workload".to_owned(), "unit".to_owned()];
    header.extend(kinds.iter().map(|kind| kind.name().to_owned()));
    header.extend(yardsticks.iter().map(|kind| format!("holdfast / {}", kind.name())));
    let body = rows.iter().map(|row| {
        let mut cells = vec![row.workload.name(), row.workload.unit().name().to_owned()];
        cells.extend(kinds.iter().map(|kind| spread(&row.rates(*kind))));
        for yardstick in &yardsticks {
            let ratio = Summary::of_ratios(&row.rates(Kind::Holdfast), &row.rates(*yardstick));
            cells.push(ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{:.2}", ratio.median)));
        }
        cells
    });
    table(&header, body.collect())
}

/// Where the time of one request goes, in microseconds, for a file system with a daemon.
pub fn times(rows: &[Row], kind: Kind) -> String {
    let header = ["workload", "wall", "application CPU", "daemon CPU", "daemon CPU / wall"].map(str::to_owned);
    let body = rows.iter().map(|row| {
        let samples = row.of(kind);
        let micros = |part: &dyn Fn(&Sample) -> f64| Summary::of(samples.iter().map(part)).map_or(0.0, |s| s.median);
        let wall = micros(&|s| s.micros_per_request(s.wall));
        let application = micros(&|s| s.micros_per_request(s.application_cpu));
        let daemon = micros(&|s| s.micros_per_request(s.daemon_cpu.unwrap_or_default()));
        let numbers = [number(wall), number(application), number(daemon), format!("{:.2}", daemon / wall.max(1e-9))];
        [vec![row.workload.name()], numbers.to_vec()].concat()
    });
    table(&header, body.collect())
}

/// The rows in which Holdfast is more than four times slower than btrfs, one line each.
pub fn far_behind(rows: &[Row]) -> Vec<String> {
    let behind = rows.iter().filter_map(|row| {
        let ratio = Summary::of_ratios(&row.rates(Kind::Holdfast), &row.rates(Kind::Btrfs))?.median;
        (ratio < TOLERATED_RATIO_TO_BTRFS)
            .then(|| format!("{}: {:.1} times slower than btrfs", row.workload.name(), 1.0 / ratio))
    });
    behind.collect()
}

/// Replaces what stands between the two marker lines of the document; the text around them is written by people.
pub fn write_into(document: &Path, measured: &str) -> Result<()> {
    let text = fs::read_to_string(document).at("read", document)?;
    let changed = splice(&text, measured)
        .ok_or_else(|| Error::Usage(format!("{}: no lines {BEGIN} and {END} to write between", document.display())))?;
    fs::write(document, changed).at("write", document)
}

fn splice(text: &str, measured: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", measured.trim()))
}

pub(crate) fn spread(rates: &[f64]) -> String {
    match Summary::of(rates.iter().copied()) {
        None => "–".to_owned(),
        Some(s) if rates.len() == 1 => number(s.median),
        Some(s) => format!("{} ({}–{})", number(s.median), number(s.min), number(s.max)),
    }
}

/// Three significant digits are more than the noise leaves.
pub(crate) fn number(value: f64) -> String {
    match value {
        v if v >= 99_500.0 => format!("{:.0}k", v / 1000.0),
        v if v >= 9_950.0 => format!("{:.1}k", v / 1000.0),
        v if v >= 99.5 => format!("{v:.0}"),
        v if v >= 9.95 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A Markdown table padded so that it can be read as text: first column to the left, the others to the right.
pub(crate) fn table(header: &[String], body: Vec<Vec<String>>) -> String {
    let width = |column: usize| {
        let cells = body.iter().filter_map(|row| row.get(column)).chain(header.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let _ = if column == 0 { write!(text, "| {cell:<width$} ") } else { write!(text, "| {cell:>width$} ") };
        }
        text.push_str("|\n");
    };
    line(header);
    let rule = |(column, width): (usize, &usize)| {
        if column == 0 { "-".repeat(*width) } else { format!("{}:", "-".repeat(width.saturating_sub(1))) }
    };
    line(&widths.iter().enumerate().map(rule).collect::<Vec<_>>());
    body.iter().for_each(|row| line(row));
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::workload::Workload;

    fn sample(requests: u64) -> Sample {
        let wall = Duration::from_secs(1);
        Sample { requests, bytes: 0, wall, application_cpu: wall / 2, daemon_cpu: Some(wall / 4) }
    }

    fn row(holdfast: [u64; 3], btrfs: [u64; 3]) -> Row {
        let samples = |rates: [u64; 3]| rates.map(sample).to_vec();
        Row {
            workload: Workload::Create,
            samples: vec![(Kind::Holdfast, samples(holdfast)), (Kind::Btrfs, samples(btrfs))],
        }
    }

    #[test]
    fn rates_show_median_extremes_and_ratio() {
        let text = rates(&[row([100, 300, 200], [400, 1200, 800])], &[Kind::Holdfast, Kind::Btrfs]);
        let cells: Vec<&str> = text.lines().nth(2).expect("a body row").split('|').map(str::trim).collect();
        assert_eq!(cells, ["", "create files", "op/s", "200 (100–300)", "800 (400–1200)", "0.25", ""]);
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    }

    #[test]
    fn a_row_more_than_four_times_slower_is_named() {
        assert!(far_behind(&[row([100, 300, 200], [400, 1200, 800])]).is_empty());
        let named = far_behind(&[row([100, 100, 100], [500, 500, 500])]);
        assert_eq!(named, ["create files: 5.0 times slower than btrfs"]);
    }

    #[test]
    fn times_are_per_request() {
        let text = times(&[row([1000, 1000, 1000], [1, 1, 1])], Kind::Holdfast);
        let cells: Vec<&str> = text.lines().nth(2).expect("a body row").split('|').map(str::trim).collect();
        assert_eq!(cells, ["", "create files", "1000", "500", "250", "0.25", ""]);
    }

    #[test]
    fn the_text_around_the_tables_stays() {
        let text = format!("# Title\n{BEGIN}\nold\n{END}\nnotes\n");
        let once = splice(&text, "new\n").expect("both markers are there");
        assert_eq!(once, format!("# Title\n{BEGIN}\n\nnew\n\n{END}\nnotes\n"));
        assert_eq!(splice(&once, "new\n"), Some(once));
        assert_eq!(splice("no markers", "new"), None);
    }
}
