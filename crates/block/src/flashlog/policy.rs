//! What is done when a log fails.

use super::device::Mode;
use std::fmt;
use std::str::FromStr;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Reads go on, changes are refused.
    Stop,
    /// Main takes changes alone, which is said: what is written then is on no other device.
    GoOnAlone,
}

/// What is done when the log fails, by mode. The failure of main, and damage in memory, stop a set in any case: what is written would be
/// where nobody can read it from.
///
/// In words: `sync=alone,async=stop`, which is the default. In asynchronous mode the log may have what main has not, and then the set
/// stops whatever is said here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// In synchronous mode.
    pub synchronous: Action,
    /// In asynchronous mode.
    pub asynchronous: Action,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { synchronous: Action::GoOnAlone, asynchronous: Action::Stop }
    }
}

impl Policy {
    pub(super) fn log_fails(&self, mode: Mode) -> Action {
        match mode {
            Mode::Synchronous => self.synchronous,
            Mode::Asynchronous => self.asynchronous,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Stop => "stop",
            Action::GoOnAlone => "alone",
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sync={},async={}", self.synchronous, self.asynchronous)
    }
}

/// A policy that cannot be understood.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no policy: sync or async, =, stop or alone, and a comma between two")]
pub struct BadPolicy(String);

impl FromStr for Policy {
    type Err = BadPolicy;

    /// What is not mentioned is as it is by default.
    fn from_str(text: &str) -> Result<Policy, BadPolicy> {
        let bad = || BadPolicy(text.to_string());
        let mut policy = Policy::default();
        for part in text.split(',') {
            let (mode, action) = part.split_once('=').ok_or_else(bad)?;
            let action = match action {
                "stop" => Action::Stop,
                "alone" => Action::GoOnAlone,
                _ => return Err(bad()),
            };
            match mode {
                "sync" => policy.synchronous = action,
                "async" => policy.asynchronous = action,
                _ => return Err(bad()),
            }
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_back() {
        for text in ["sync=alone,async=stop", "sync=stop,async=alone"] {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
        assert_eq!("sync=alone".parse(), Ok(Policy::default()));
        for text in ["", "sync", "sync=", "main=stop", "sync=alone,", "sync=retry"] {
            assert!(text.parse::<Policy>().is_err(), "{text}");
        }
    }
}
