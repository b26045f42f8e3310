//! Lengths of time as people write and read them, in seconds.

const MINUTE_S: f64 = 60.0;
const HOUR_S: f64 = 3600.0;
const DAY_S: f64 = 24.0 * HOUR_S;
const WEEK_S: f64 = 7.0 * DAY_S;
const YEAR_S: f64 = 365.25 * DAY_S;

/// Longest that is taken.
const YEARS_MAX: f64 = 1e6;

/// Reads a number with a unit: `s`, `m`, `h`, `d`, `w` or `y`; no unit is seconds.
pub(crate) fn parse(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit_s = match unit {
        "" | "s" => 1.0,
        "m" => MINUTE_S,
        "h" => HOUR_S,
        "d" => DAY_S,
        "w" => WEEK_S,
        "y" => YEAR_S,
        _ => return Err(format!("{unit:?} is no unit of time; try 30s, 5m, 2h, 30d, 7w or 1y")),
    };
    let seconds = number.trim().parse::<f64>().map_err(|_| format!("{text:?} is no time; try 30s or 30d"))? * unit_s;
    if (0.0..=YEARS_MAX * YEAR_S).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("{text:?} is out of range: from 0 to {YEARS_MAX} years"))
    }
}

/// A time with three digits, in the unit of which there are at least two (one of years): `92.4 s`, `7.18 weeks`.
pub(crate) fn show(seconds: f64) -> String {
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
    fn times_are_read_with_their_units() {
        for (text, seconds) in
            [("0", 0.0), ("92", 92.0), ("1.5s", 1.5), ("5m", 300.0), (" 2 h ", 7200.0), ("7w", 4_233_600.0)]
        {
            assert_eq!(parse(text), Ok(seconds), "{text}");
        }
        assert_eq!(parse("1y"), Ok(31_557_600.0));
        for text in ["", "s", "-1s", "1 month", "5S", "1e99", "inf", "nan", "2e6y", "é"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

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
