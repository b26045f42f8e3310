//! Points in time as people read them.

/// Seconds after 1970 as a date and time of day in UTC. (The proleptic Gregorian calendar, years beginning in March.)
pub(crate) fn utc(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Reads a date and time of day in UTC, as [`utc`] writes it (`T` for the first blank, `Z` or nothing for UTC), or seconds since 1970, which may have
/// an `@` in front, as date(1) has them. In seconds since 1970.
pub(crate) fn parse(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let wrong = || format!("{text:?} is no time; try '2026-11-22 18:30:00' (UTC), or @SECONDS since 1970");
    if let Ok(seconds) = text.strip_prefix('@').unwrap_or(text).parse::<u32>() {
        return Ok(seconds.into());
    }
    let plain = text.trim_end_matches("UTC").trim_end_matches('Z').trim();
    let (day, time) = plain.split_once(['T', ' ']).unwrap_or((plain, "00:00"));
    let numbers =
        |text: &str, by: char| text.split(by).map(|part| part.trim().parse::<i64>().ok()).collect::<Option<Vec<_>>>();
    let (day, time) = (numbers(day, '-').ok_or_else(wrong)?, numbers(time, ':').ok_or_else(wrong)?);
    let &[year, month, day] = &day[..] else { return Err(wrong()) };
    let (hour, minute, second) = match time[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return Err(wrong()),
    };
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_date || !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..60).contains(&second) {
        return Err(wrong());
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Ok(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_given() {
        for seconds in [0, 951_782_399, 951_782_400, 1_795_237_203, 4_102_444_799] {
            assert_eq!(parse(&utc(seconds)), Ok(seconds));
        }
        assert_eq!(parse("2026-11-21T05:00:03Z"), Ok(1_795_237_203));
        assert_eq!(parse("2026-11-21 05:00"), Ok(1_795_237_200));
        assert_eq!(parse("2026-11-21"), Ok(1_795_219_200));
        for seconds in ["86400", "@86400", " @86400 "] {
            assert_eq!(parse(seconds), Ok(86_400));
        }
        for wrong in [
            "",
            "yesterday",
            "2026-13-01",
            "2026-11-22 25:00",
            "1969-12-31",
            "2026-11",
            "1-2-3 4:5:6:7",
            "@",
            "@2026-11-21",
            "@-1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_795_237_203, "2026-11-21 05:00:03 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
