//! The tables: rates, the motor, wear, and the goals.

use super::{Load, Log, Measured, Setup};
use crate::report::{number, table};
use holdfast_block::flashlog::Mode;
use std::collections::BTreeMap;

const SYNC_STICK: Setup = Setup::Flashlog(Log::Stick, Mode::Synchronous);
const ASYNC_STICK: Setup = Setup::Flashlog(Log::Stick, Mode::Asynchronous);
const SYNC_SSD: Setup = Setup::Flashlog(Log::Ssd, Mode::Synchronous);
const ASYNC_SSD: Setup = Setup::Flashlog(Log::Ssd, Mode::Asynchronous);

/// Headings of the tables of rates, by which figures find them on the page.
pub(super) const RATES: &str = "Rates, MB/s";
pub(super) const READS: &str = "Scattered reads, MB/s";
pub(super) const WRITES: &str = "Scattered writes, MB/s";

/// Results by load and setup, as numbers of [`Load::RATES`] and [`Setup::ALL`].
pub struct Results(BTreeMap<(String, &'static str), Measured>);

impl FromIterator<(Load, Setup, Measured)> for Results {
    fn from_iter<I: IntoIterator<Item = (Load, Setup, Measured)>>(all: I) -> Results {
        Results(all.into_iter().map(|(load, setup, measured)| ((load.name(), setup.name()), measured)).collect())
    }
}

impl Results {
    fn of(&self, load: Load, setup: Setup) -> Option<&Measured> {
        self.0.get(&(load.name(), setup.name()))
    }

    fn rate(&self, load: Load, setup: Setup) -> Option<f64> {
        self.of(load, setup).map(Measured::mb_per_s)
    }
}

/// All tables.
pub fn tables(results: &Results) -> String {
    format!(
        "## {RATES}\n\n{}\n## {READS}\n\n{}\n## {WRITES}\n\n{}\n\
         ## How long a disk is awake\n\n{}\n## Wear of the flash\n\n{}\n## Goals\n\n{}",
        rates(results, &Load::RATES),
        rates(results, &Load::RECORDS.map(Load::Reads)),
        rates(results, &Load::RECORDS.map(Load::Scattered)),
        awake(results),
        wear(results),
        goals(results)
    )
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), number)
}

fn rates(results: &Results, loads: &[Load]) -> String {
    let header: Vec<String> = ["load"].into_iter().chain(Setup::ALL.map(Setup::name)).map(str::to_owned).collect();
    let body = loads.iter().map(|load| {
        let cells = Setup::ALL.map(|setup| cell(results.rate(*load, setup)));
        [vec![load.name()], cells.to_vec()].concat()
    });
    table(&header, body.collect())
}

fn awake(results: &Results) -> String {
    let header =
        ["load", "setup", "time, s", "disk at work, % of it", "its motor on, %", "motor started"].map(str::to_owned);
    let all = Load::AWAKE.iter().flat_map(|load| Setup::AWAKE.map(|setup| (*load, setup)));
    let body = all.filter_map(|(load, setup)| {
        let measured = results.of(load, setup)?;
        let percent = |ns: u64| number(ns as f64 / 1e7 / measured.seconds);
        let time = number(measured.seconds);
        let numbers = [time, percent(measured.main.busy_ns), percent(measured.main.motor.on_ns)];
        let starts = measured.main.motor.starts.to_string();
        Some([vec![load.name(), setup.name().to_owned()], numbers.to_vec(), vec![starts]].concat())
    });
    table(&header, body.collect())
}

fn wear(results: &Results) -> String {
    let header =
        ["load", "flash", "pages written", "programmed", "erase blocks erased", "most of one"].map(str::to_owned);
    let mut body = Vec::new();
    for load in Load::WEAR {
        for setup in Setup::WEAR {
            let Some(measured) = results.of(load, setup) else { continue };
            let wear = measured.log.unwrap_or(measured.main).wear;
            let numbers = [measured.bytes >> 12, wear.programmed, wear.erased, wear.erased_most];
            let numbers = numbers.map(|number| number.to_string());
            let flash = if setup == Setup::Stick { "stick alone" } else { setup.name() };
            body.push([vec![load.name(), flash.to_owned()], numbers.to_vec()].concat());
        }
    }
    table(&header, body)
}

fn goals(results: &Results) -> String {
    let header = ["what", "goal", "measured", "verdict"].map(str::to_owned);
    let mut body = Vec::new();
    let mut judge = |what: String, goal: f64, measured: Option<f64>| {
        let Some(measured) = measured else { return };
        let verdict = if measured >= goal { "met" } else { "**missed**" };
        body.push(vec![what, number(goal), number(measured), verdict.to_owned()]);
    };
    let ratio = |load, setup, to: Setup| Some(results.rate(load, setup)? / results.rate(load, to)?);
    let slower = |load, setups: [Setup; 2]| {
        let [one, other] = setups.map(|setup| results.rate(load, setup));
        Some(one?.min(other?))
    };
    for load in [Load::Sequential, Load::Rewrite, Load::Overflow, Load::Longer, Load::Durable] {
        for (setup, log) in [(SYNC_STICK, Setup::Stick), (SYNC_SSD, Setup::Ssd)] {
            let measured =
                results.rate(load, setup).zip(slower(load, [Setup::Disk, log])).map(|(own, slow)| own / slow);
            judge(format!("{}: {} / the slower device", load.name(), setup.name()), 0.95, measured);
        }
        for (setup, log) in [(ASYNC_STICK, Setup::Stick), (ASYNC_SSD, Setup::Ssd)] {
            judge(format!("{}: {} / the log device", load.name(), setup.name()), 0.90, ratio(load, setup, log));
        }
    }
    for setup in [SYNC_STICK, ASYNC_STICK] {
        let load = Load::Scattered(1);
        judge(format!("{}: {} / the stick alone", load.name(), setup.name()), 20.0, ratio(load, setup, Setup::Stick));
        judge(format!("{}: {} / the disk alone", load.name(), setup.name()), 1.0, ratio(load, setup, Setup::Disk));
    }
    for (setup, log) in [(ASYNC_STICK, Setup::Stick), (ASYNC_SSD, Setup::Ssd)] {
        // One after the other, half from each device.
        let [one, other] = [Setup::Disk, log].map(|device| results.rate(Load::Reads(1), device));
        let possible = one.zip(other).map(|(one, other)| 2.0 / (1.0 / one + 1.0 / other));
        let measured = results.rate(Load::MixedReads, setup).zip(possible).map(|(own, possible)| own / possible);
        judge(format!("{}: {} / half from each device", Load::MixedReads.name(), setup.name()), 0.90, measured);
    }
    for (setup, log) in [(ASYNC_STICK, Setup::Stick), (ASYNC_SSD, Setup::Ssd)] {
        let load = Load::Mixed;
        judge(format!("{}: {} / the log device", load.name(), setup.name()), 0.90, ratio(load, setup, log));
    }
    let idle = |load, setup| {
        let measured = results.of(load, setup)?;
        Some(1.0 - measured.main.motor.on_ns as f64 / 1e9 / measured.seconds)
    };
    let sleepers = [ASYNC_STICK, ASYNC_SSD];
    for (load, setup) in [Load::Stream, Load::Compilation].iter().flat_map(|load| sleepers.map(|of| (*load, of))) {
        let what = format!("{}, {}: part of the time that the disk's motor is off", load.name(), setup.name());
        judge(what, 0.9, idle(load, setup));
    }
    table(&header, body)
}
