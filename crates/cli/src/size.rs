//! Sizes in bytes as people write and read them.

/// Reads a size: a number, perhaps with a fraction, and a unit. `K M G T P` and `KiB` … count in 1024, `KB` … in 1000,
/// as with coreutils; no unit is bytes.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = factor(unit.trim()).ok_or_else(|| format!("{unit:?} is no unit of size; try 512M, 8G or 1T"))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.contains('.') || fraction.len() > 9 {
        return Err(format!("{text:?} is no size; try 512M, 8G or 1T"));
    }
    let digits = |digits: &str| digits.parse::<u64>().map_err(|_| format!("{text:?} is too large"));
    let bytes = digits(whole)?.checked_mul(factor);
    let part = match fraction {
        "" => 0,
        fraction => u128::from(digits(fraction)?) * u128::from(factor) / 10u128.pow(fraction.len() as u32),
    };
    // The part is below the factor, which is a u64.
    bytes.and_then(|bytes| bytes.checked_add(part as u64)).ok_or_else(|| format!("{text:?} is too large"))
}

fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    if matches!(unit.as_str(), "" | "b") {
        return Some(1);
    }
    let mut rest = unit.chars();
    let power = "kmgtp".find(rest.next()?)? as u32 + 1;
    let base: u64 = match rest.as_str() {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return None,
    };
    Some(base.pow(power))
}

/// A part of something: so many bytes, or so many hundredths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Share {
    Bytes(u64),
    Percent(u64),
}

/// Most of a store that can be set aside, in hundredths.
const PERCENT_MAX: u64 = 50;

/// Reads a size, or whole per cents up to 50.
pub(crate) fn parse_share(text: &str) -> Result<Share, String> {
    match text.trim().strip_suffix('%') {
        None => match parse(text)? {
            bytes @ 1..4096 => Err(format!("{bytes} bytes are less than a block; try 1G, or {bytes}%")),
            bytes => Ok(Share::Bytes(bytes)),
        },
        Some(percent) => match percent.trim().parse() {
            Ok(percent @ 0..=PERCENT_MAX) => Ok(Share::Percent(percent)),
            _ => Err(format!("{text:?} is no share; try 1G, or 0% to {PERCENT_MAX}%")),
        },
    }
}

impl Share {
    /// In bytes, of so many.
    pub(crate) fn of(self, bytes: u64) -> u64 {
        match self {
            Share::Bytes(part) => part,
            Share::Percent(percent) => (u128::from(bytes) * u128::from(percent) / 100) as u64,
        }
    }

    /// Whether it is more than can be set aside of so many bytes.
    pub(crate) fn is_too_much_of(self, bytes: u64) -> bool {
        self.of(bytes) > Share::Percent(PERCENT_MAX).of(bytes)
    }
}

/// A size with three or four digits: `8.00 GiB`.
pub(crate) fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_coreutils_does() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096b", 4096),
            ("8G", 8 << 30),
            ("8g", 8 << 30),
            ("8GiB", 8 << 30),
            ("8 GiB", 8 << 30),
            ("8GB", 8_000_000_000),
            ("1.5G", 3 << 29),
            ("0.25K", 256),
            ("16P", 16 << 50),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        for text in ["", "G", "-1", "8X", "8GG", "8iB", "1..5G", ".5G", "1.G", "20000P", "99999999999999999999", "8é"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_sizes_or_per_cents() {
        assert_eq!(parse_share("1G").map(|share| share.of(8 << 30)), Ok(1 << 30));
        assert_eq!(parse_share("5%").map(|share| share.of(1000)), Ok(50));
        assert_eq!(parse_share("50%").map(|share| share.of(u64::MAX)), Ok(u64::MAX / 2));
        assert!(parse_share("51%").is_err() && parse_share("-1%").is_err() && parse_share("%").is_err());
        assert!(Share::Bytes(501).is_too_much_of(1000) && !Share::Bytes(500).is_too_much_of(1000));
    }

    #[test]
    fn shown_sizes_are_short() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(8 << 30), "8.00 GiB");
        assert_eq!(show(100 << 20), "100 MiB");
        assert_eq!(show(12_345_678), "11.8 MiB");
        assert_eq!(show(u64::MAX), "16384 PiB");
    }
}
