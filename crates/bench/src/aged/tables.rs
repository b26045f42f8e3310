//! What came out, as tables that are readable as text and as Markdown.

use std::time::Duration;

use super::layout::{Layout, ROLES};
use super::{GROUPS, Pair, Probe, Subject};
use crate::measure::{Summary, Unit};
use crate::report::{number, spread, table};

/// Blocks in a run of 1 MiB.
const LONG_RUN: u64 = 256;

/// All tables.
pub fn tables(pairs: &[Pair]) -> String {
    let mut text = format!("The year:\n\n{}", years(pairs));
    text += &format!(
        "\nSpeed, aged and fresh (median, minimum–maximum; the ratio is the median of those within a round):\n\n{}",
        speeds(pairs)
    );
    text += &format!("\nRuns of neighbouring blocks per file, and the mean length of a run:\n\n{}", runs(pairs));
    for pair in pairs {
        if let (Some(fresh), Some(aged)) = (&pair.fresh.layout, &pair.aged.layout) {
            let name = pair.kind.name();
            text += &format!("\nMetadata of {name}, in KiB, each copy counted:\n\n{}", metadata(pair, fresh, aged));
            text += &format!("\nFree space of {name}:\n\n{}", free(fresh, aged));
        }
        if let (Some(fresh), Some(aged)) = (pair.fresh.metadata_bytes, pair.aged.metadata_bytes) {
            let (name, mib) = (pair.kind.name(), |bytes: u64| number(bytes as f64 / f64::from(1 << 20)));
            text += &format!(
                "\nMetadata of {name}: fresh {} MiB, aged with its snapshots {} MiB.\n",
                mib(fresh),
                mib(aged)
            );
        }
    }
    text
}

fn years(pairs: &[Pair]) -> String {
    let header = [
        "",
        "files",
        "MiB",
        "snapshots",
        "MiB pinned",
        "whole year, s",
        "a day in the first month, ms",
        "in the last, ms",
    ];
    let body = pairs.iter().map(|pair| {
        let ageing = &pair.ageing;
        let mib = |bytes: u64| number(bytes as f64 / f64::from(1 << 20));
        let days = ageing.days.get(1..).unwrap_or(&[]);
        let median = |days: &[Duration]| {
            Summary::of(days.iter().map(|day| day.as_secs_f64() * 1e3)).map_or("–".into(), |s| number(s.median))
        };
        vec![
            pair.kind.name().to_owned(),
            ageing.files.to_string(),
            mib(ageing.live_bytes),
            ageing.snapshots.to_string(),
            if ageing.snapshots > 0 { mib(ageing.pinned_bytes) } else { "–".into() },
            number(ageing.days.iter().sum::<Duration>().as_secs_f64()),
            median(&days[..days.len().min(30)]),
            median(&days[days.len().saturating_sub(30)..]),
        ]
    });
    table(&header.map(str::to_owned), body.collect())
}

fn rates(subject: &Subject, at: usize) -> Vec<f64> {
    let unit = if Probe::ALL[at].unit() == Unit::MibPerSecond { f64::from(1 << 20) } else { 1.0 };
    let rate = |(amount, time): &(u64, Duration)| *amount as f64 / unit / time.as_secs_f64().max(1e-9);
    subject.measured[at].iter().map(rate).collect()
}

fn speeds(pairs: &[Pair]) -> String {
    let mut header = vec!["workload".to_owned(), "unit".to_owned()];
    for pair in pairs {
        header.extend(["fresh", "aged", "aged / fresh"].map(|what| format!("{}, {what}", pair.kind.name())));
    }
    let body = Probe::ALL.into_iter().enumerate().map(|(at, probe)| {
        let mut cells = vec![probe.name().to_owned(), probe.unit().name().to_owned()];
        for pair in pairs {
            let (fresh, aged) = (rates(&pair.fresh, at), rates(&pair.aged, at));
            let ratio = Summary::of_ratios(&aged, &fresh);
            cells.extend([spread(&fresh), spread(&aged)]);
            cells.push(ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{:.2}", ratio.median)));
        }
        cells
    });
    table(&header, body.collect())
}

fn runs(pairs: &[Pair]) -> String {
    let mut header = vec!["".to_owned(), "files".to_owned()];
    for pair in pairs {
        header.extend(["fresh", "aged"].map(|what| format!("{}, {what}", pair.kind.name())));
    }
    let body = GROUPS.iter().enumerate().map(|(at, (name, ..))| {
        let of = |subject: &Subject| subject.runs.get(at).copied().unwrap_or_default();
        let mut cells = vec![(*name).to_owned()];
        cells.push(pairs.first().map_or_else(String::new, |pair| of(&pair.aged).0.to_string()));
        for subject in pairs.iter().flat_map(|pair| [&pair.fresh, &pair.aged]) {
            let (files, runs) = of(subject);
            let per_file = runs.runs as f64 / files.max(1) as f64;
            let kib = runs.pages as f64 * 4.0 / runs.runs.max(1) as f64;
            cells.push(format!("{}, {} KiB", number(per_file), number(kib)));
        }
        cells
    });
    table(&header, body.collect())
}

fn metadata(pair: &Pair, fresh: &Layout, aged: &Layout) -> String {
    let mut header = ["", "fresh", "aged", "aged, only snapshots'"].map(str::to_owned).to_vec();
    let mut columns = vec![(fresh.live, fresh.data_live), (aged.live, aged.data_live), (aged.held, aged.data_held)];
    if let Some((emptied, took, new)) = &pair.emptied {
        header.push(format!("aged, emptied (snapshots gone in {} s)", number(took.as_secs_f64())));
        header.push("new".to_owned());
        columns.extend([emptied, new].map(|layout| (layout.live, layout.data_live)));
    }
    let kib = |blocks: u64| (blocks * 4).to_string();
    let mut body = Vec::new();
    for (at, (name, _)) in ROLES.iter().enumerate() {
        body.push([vec![(*name).to_owned()], columns.iter().map(|(live, _)| kib(live[at])).collect()].concat());
    }
    let sum = |(live, _): &([u64; ROLES.len()], u64)| live.iter().sum::<u64>();
    body.push([vec!["all metadata".to_owned()], columns.iter().map(|column| kib(sum(column))).collect()].concat());
    body.push([vec!["file data".to_owned()], columns.iter().map(|(_, data)| kib(*data)).collect()].concat());
    let share = |column: &([u64; ROLES.len()], u64)| match column.1 {
        0 => "–".to_owned(),
        data => format!("{:.2} %", 100.0 * sum(column) as f64 / data as f64),
    };
    body.push([vec!["metadata / data".to_owned()], columns.iter().map(share).collect()].concat());
    table(&header, body)
}

fn free(fresh: &Layout, aged: &Layout) -> String {
    let header =
        ["", "MiB", "runs", "median run, KiB", "longest run, MiB", "in runs of 1 MiB and more"].map(str::to_owned);
    let row = |name: &str, layout: &Layout| {
        let (all, long) = layout.free(LONG_RUN);
        let mib = |blocks: u64| number(blocks as f64 / 256.0);
        let runs = &layout.free_runs;
        vec![
            name.to_owned(),
            mib(all),
            runs.len().to_string(),
            number(runs.get(runs.len() / 2).copied().unwrap_or(0) as f64 * 4.0),
            mib(runs.last().copied().unwrap_or(0)),
            format!("{:.0} %", 100.0 * long as f64 / all.max(1) as f64),
        ]
    };
    table(&header, vec![row("fresh", fresh), row("aged", aged)])
}
