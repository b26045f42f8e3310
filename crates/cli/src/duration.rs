//! Lengths of time as people write them, in seconds.

use std::time::Duration;

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
    // The letters at the end: a number may have an exponent.
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[number.len()..];
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

/// The same as a [`Duration`].
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    parse(text).map(Duration::from_secs_f64)
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
        assert_eq!(parse("1e2s"), Ok(100.0));
        assert!(parse("1e30y").is_err_and(|error| error.contains("out of range")));
        for text in ["", "s", "-1s", "1 month", "5S", "1e99", "inf", "nan", "2e6y", "é"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
