//! Locking the memory that a mount has its metadata in, so that who writes there without being meant to is found in the act.

use crate::failure::{Failure, Result};
use holdfast_guard as guard;
use std::fmt;
use std::str::FromStr;

/// How it is to be locked: `-o protect=…`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Protect {
    /// With protection keys where there are any.
    #[default]
    Auto,
    /// With protection keys, or no mount.
    Keys,
    /// With mprotect: slow, to find a culprit where there are no keys.
    Pages,
    /// Not at all.
    Off,
}

const NAMES: [(&str, Protect); 4] =
    [("auto", Protect::Auto), ("keys", Protect::Keys), ("pages", Protect::Pages), ("off", Protect::Off)];

impl fmt::Display for Protect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, protect)| protect == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Protect {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Protect, String> {
        let known = NAMES.iter().find(|(name, _)| *name == text);
        known.map(|(_, protect)| *protect).ok_or_else(|| format!("{text:?} is none of auto, keys, pages and off"))
    }
}

impl Protect {
    /// Locks it from now on, before there is any, and has stray writes told. Gives how it is locked, in words.
    ///
    /// # Errors
    /// It cannot be locked in the way that was asked for.
    pub(crate) fn install(self) -> Result<String> {
        let (how, words) = match self {
            Protect::Off => return Ok("not locked, as the option protect=off says".into()),
            Protect::Auto | Protect::Keys => (guard::Protect::Keys, "locked with protection keys"),
            Protect::Pages => (guard::Protect::Pages, "locked with mprotect, which is slow"),
        };
        match guard::install(how) {
            Ok(()) => {}
            Err(why) if self == Protect::Auto => return Ok(format!("not locked: {why}")),
            Err(why) => {
                return Err(Failure::new(format!(
                    "the pages of metadata cannot be locked as protect={self} says: {why}"
                ))
                .hint("-o protect=auto locks them where it can; -o protect=pages works everywhere, and is slow"));
            }
        }
        guard::report_faults(Some(tell_aim))
            .map_err(|error| Failure::new(format!("stray writes to metadata cannot be told: {error}")))?;
        Ok(words.into())
    }
}

/// Tells what a stray write was aimed at, whoever's memory it is.
fn tell_aim(fault: &guard::Fault<'_>) {
    holdfast_physical::tell_aim(fault);
    holdfast_object::tell_aim(fault);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_as_they_are_shown() {
        for (name, protect) in NAMES {
            assert_eq!((name.parse(), protect.to_string().as_str()), (Ok(protect), name));
        }
        assert!("key".parse::<Protect>().is_err());
    }
}
