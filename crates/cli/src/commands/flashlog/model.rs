//! `holdfast flashlog model`: lives and costs of redundancy schemes.

use crate::args::{FlashlogFigure, FlashlogModel};
use crate::failure::{Failure, Result};
use crate::output::{self, Format, Report, print};
use crate::quoting;
use holdfast_reliability::{Bill, Scheme, draw_bars, failure_within};
use serde::Serialize;
use std::fmt::Write;

const YEAR_H: f64 = 8760.0;

#[derive(Serialize)]
struct Modelled {
    schemes: Vec<Judged>,
    costs: Vec<Cost>,
}

#[derive(Serialize)]
struct Judged {
    scheme: &'static str,
    /// Until what was written last is lost.
    mttf_h: f64,
    fails_within_5_years: f64,
    fails_within_10_years: f64,
    mttf_of_everything_h: f64,
}

#[derive(Serialize)]
struct Cost {
    scheme: &'static str,
    initial: f64,
    replacement: f64,
    energy: f64,
    total: f64,
}

impl Report for Modelled {
    fn words(&self) -> String {
        let mut text = format!(
            "  {:18} {:>14} {:>10} {:>10} {:>18}\n  {:18} {:>14} {:>10} {:>10} {:>18}\n",
            "scheme",
            "newest data",
            "within",
            "within",
            "everything",
            "",
            "lost after",
            "5 years",
            "10 years",
            "lost after"
        );
        for judged in &self.schemes {
            let [five, ten] = [judged.fails_within_5_years, judged.fails_within_10_years].map(percent);
            let (last, all) = (years(judged.mttf_h), years(judged.mttf_of_everything_h));
            let _ = writeln!(text, "  {:18} {last:>14} {five:>10} {ten:>10} {all:>18}", judged.scheme);
        }
        text.push_str("\n  scheme               initial  replacement    energy     total\n");
        for Cost { scheme, initial, replacement, energy, total } in &self.costs {
            let _ = writeln!(text, "  {scheme:18} {initial:>9.2} {replacement:>12.2} {energy:>9.2} {total:>9.2}");
        }
        text.push_str("\nIndependent failures at a constant rate: for comparison, not a promise.\n");
        text
    }
}

/// Two digits of it.
fn percent(part: f64) -> String {
    let digits = (1.0 - (100.0 * part).log10().floor()).clamp(0.0, 5.0) as usize;
    format!("{:.digits$} %", 100.0 * part)
}

fn years(hours: f64) -> String {
    let years = hours / YEAR_H;
    if years < 1000.0 { format!("{years:.1} years") } else { format!("{years:.0} years") }
}

#[derive(Serialize)]
struct Drawn {
    figure: &'static str,
    file: String,
}

impl Report for Drawn {
    fn words(&self) -> String {
        format!("Drew {} in {}.\n", self.figure, quoting::name(&self.file))
    }
}

pub(super) fn run(arguments: &FlashlogModel, format: Format) -> Result<()> {
    let (devices, prices) = (arguments.devices(), arguments.prices());
    if let (Some(figure), Some(file)) = (arguments.figure.map(FlashlogFigure::bars), &arguments.out) {
        let svg = draw_bars(figure, &devices, &prices).map_err(|error| Failure::new(error.to_string()))?;
        if output::draw(file, &svg)? {
            print(format, &Drawn { figure: figure.name(), file: file.display().to_string() });
        }
        return Ok(());
    }
    let judged = |scheme: Scheme| {
        let mttf_h = scheme.mttf_h(&devices);
        Judged {
            scheme: scheme.name(),
            mttf_h,
            fails_within_5_years: failure_within(5.0 * YEAR_H, mttf_h),
            fails_within_10_years: failure_within(10.0 * YEAR_H, mttf_h),
            mttf_of_everything_h: scheme.mttf_of_everything_h(&devices),
        }
    };
    let cost = |scheme: Scheme| {
        let bill = Bill::of(scheme, &devices, &prices);
        let Bill { initial, replacement, energy } = bill;
        Cost { scheme: scheme.name(), initial, replacement, energy, total: bill.total() }
    };
    let schemes = Scheme::ALL.map(judged).into();
    print(format, &Modelled { schemes, costs: Scheme::ALL.map(cost).into() });
    Ok(())
}
