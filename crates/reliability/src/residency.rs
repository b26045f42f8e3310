//! For how long something holds.

use std::fmt;

const MINUTE_S: f64 = 60.0;
const HOUR_S: f64 = 3600.0;
const DAY_S: f64 = 24.0 * HOUR_S;
const WEEK_S: f64 = 7.0 * DAY_S;
const YEAR_S: f64 = 365.25 * DAY_S;

/// For how long a page may stay in memory until something happens.
// The derived order is that of time.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub enum Residency {
    /// It has happened already when the page comes in.
    Never,
    /// For so many seconds.
    UpTo(f64),
    /// For ever.
    Always,
}

impl Residency {
    /// Whether it has not happened after so many seconds.
    pub fn covers(self, residency_s: f64) -> bool {
        match self {
            Residency::Never => false,
            Residency::UpTo(limit_s) => residency_s <= limit_s,
            Residency::Always => true,
        }
    }
}

/// With three digits, in the unit of which there are at least two (one of years): `92.4 s`, `7.18 weeks`; or `never`, `always`.
impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Residency::Never => f.pad("never"),
            Residency::UpTo(seconds) => f.pad(&show(seconds)),
            Residency::Always => f.pad("always"),
        }
    }
}

fn show(seconds: f64) -> String {
    const UNITS: [(f64, &str); 6] =
        [(YEAR_S, "years"), (WEEK_S, "weeks"), (DAY_S, "days"), (HOUR_S, "hours"), (MINUTE_S, "minutes"), (1.0, "s")];
    if seconds == 0.0 {
        return "0 s".into();
    }
    if seconds < 0.001 {
        return "under 1 ms".into();
    }
    if seconds < 0.9995 {
        return format!("{:.0} ms", seconds * 1e3);
    }
    let enough = |(unit_s, unit): &(f64, &str)| seconds >= unit_s * if *unit == "years" { 1.0 } else { 2.0 };
    let (unit_s, unit) = UNITS.into_iter().find(enough).unwrap_or((1.0, "s"));
    let value = seconds / unit_s;
    if value >= 1e4 {
        return format!("{value:.0e} {unit}");
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    let digits = format!("{value:.decimals$}");
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    let unit = if digits == "1" && unit == "years" { "year" } else { unit };
    format!("{digits} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_times_are_short() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (1e-7, "under 1 ms"),
            (0.0123, "12 ms"),
            (0.9997, "1 s"),
            (1.0, "1 s"),
            (92.36, "92.4 s"),
            (119.96, "120 s"),
            (120.0, "2 minutes"),
            (1807.0, "30.1 minutes"),
            (30.0 * DAY_S, "4.29 weeks"),
            (0.9 * YEAR_S, "47 weeks"),
            (YEAR_S, "1 year"),
            (7.18 * WEEK_S, "7.18 weeks"),
            (875.4 * YEAR_S, "875 years"),
            (12_345.0 * YEAR_S, "1e4 years"),
            (3.4e9 * YEAR_S, "3e9 years"),
        ] {
            assert_eq!(show(seconds), text);
        }
    }
}
