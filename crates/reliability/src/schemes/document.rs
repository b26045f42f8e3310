//! The tables of `docs/flashlog-model.md`.

use super::bars::YEAR_H;
use super::{Bill, Devices, Prices, Scheme, failure_within};
use crate::document::{MissingMark, put_tables, table};

/// The document with its tables as the model has them now.
///
/// # Errors
/// [`MissingMark`] if the place of a table is not there.
pub fn renewed_schemes(document: &str) -> Result<String, MissingMark> {
    put_tables(document, [("lives", lives()), ("costs", costs())])
}

fn lives() -> String {
    let devices = Devices::default();
    let rows = Scheme::ALL.into_iter().map(|scheme| {
        let life = scheme.mttf_h(&devices);
        let within = |years: f64| percent(failure_within(years * YEAR_H, life));
        let hours = |hours: f64| format!("{hours:.2e}");
        vec![scheme.name().into(), hours(life), within(5.0), within(10.0), hours(scheme.mttf_of_everything_h(&devices))]
    });
    table(&["scheme", "MTTF, h", "fails in 5 years", "in 10 years", "until everything is lost, h"], rows)
}

fn costs() -> String {
    let rows = Scheme::ALL.into_iter().map(|scheme| {
        let bill = Bill::of(scheme, &Devices::default(), &Prices::default());
        let amounts = [bill.initial, bill.replacement, bill.energy, bill.total()];
        [scheme.name().to_string()].into_iter().chain(amounts.map(|amount| format!("{amount:.2}"))).collect()
    });
    table(&["scheme", "initial", "replacement", "energy", "total"], rows)
}

/// Two digits of it.
fn percent(part: f64) -> String {
    let digits = (1.0 - (100.0 * part).log10().floor()).max(0.0) as usize;
    format!("{:.digits$} %", 100.0 * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_two_digits() {
        assert_eq!([0.136, 0.0488, 0.000_007, 0.999].map(percent), ["14 %", "4.9 %", "0.00070 %", "100 %"]);
    }
}
