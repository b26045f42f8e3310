//! Moments that a set can be looked at, and serving the state at one, read-only.

use super::control;
use crate::date;
use crate::failure::{Failure, Result};
use crate::mounts::plain;
use crate::output::Report;
use crate::size;
use holdfast_block::Device;
use holdfast_block::flashlog::{At, Barrier, Past};
use holdfast_block::nbd::{Export, Listener, Server, Stop};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The state of a time. The whole second counts: times are shown without what is behind the point.
pub(crate) fn at_second(seconds: i64) -> At {
    let end = Duration::from_secs(u64::try_from(seconds).unwrap_or(0)) + Duration::from_nanos(999_999_999);
    At::Time(SystemTime::UNIX_EPOCH + end)
}

/// Reads the number of a barrier, a time, or `now`. Seconds since 1970 have an `@` in front: a number alone is a barrier's.
pub(crate) fn parse(text: &str) -> std::result::Result<At, String> {
    match text.parse() {
        Ok(number) => Ok(At::Barrier(number)),
        Err(_) if text == "now" => Ok(At::Now),
        Err(_) => date::parse(text).map(at_second).map_err(|_| {
            format!("{text:?} is neither the number of a barrier nor a time; try 2026-11-22T18:30:00 (UTC), or @SECONDS since 1970")
        }),
    }
}

/// The same without `now`, which is what there is if nobody asks for a moment.
pub(crate) fn parse_earlier(text: &str) -> std::result::Result<At, String> {
    match parse(text)? {
        At::Now => Err("now is all that there is, as without a moment".to_string()),
        at => Ok(at),
    }
}

/// As it is read.
pub(crate) fn written(at: At) -> String {
    match at {
        At::Barrier(number) => number.to_string(),
        At::Time(time) => shown(time).replacen(' ', "T", 1).replace(" UTC", "Z"),
        At::Now => "now".to_string(),
        At::Backup => "backup".to_string(),
    }
}

/// For people.
pub(super) fn shown(time: SystemTime) -> String {
    date::utc(i64::try_from(seconds(time)).unwrap_or(i64::MAX))
}

/// Since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A barrier, for people.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Moment {
    number: u64,
    /// Since 1970.
    seconds: u64,
    time: String,
    /// Written since the one before.
    bytes: u64,
}

impl Moment {
    pub(crate) fn of(barrier: &Barrier) -> Moment {
        let (seconds, time) = (seconds(barrier.time), shown(barrier.time));
        Moment { number: barrier.number, seconds, time, bytes: super::sets::bytes(barrier.blocks) }
    }

    pub(crate) fn words(&self) -> String {
        format!("barrier {}, {}", self.number, self.time)
    }
}

/// Those that there are. The answer of a server has room for the last ones only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Moments {
    pub(crate) moments: Vec<Moment>,
    /// How many there are before these.
    pub(crate) earlier: u64,
}

/// Most that are listed.
const LISTED_MAX: usize = 400;

impl Moments {
    pub(crate) fn of(barriers: &[Barrier]) -> Moments {
        let earlier = barriers.len().saturating_sub(LISTED_MAX);
        Moments { moments: barriers[earlier..].iter().map(Moment::of).collect(), earlier: earlier as u64 }
    }
}

impl Report for Moments {
    fn words(&self) -> String {
        let mut text = match (self.moments.len(), self.earlier) {
            (0, _) => "Nothing was flushed since the backup.\n".to_string(),
            (_, 0) => "  barrier  time                     written\n".to_string(),
            (_, earlier) => format!("{earlier} earlier ones can be had by number or time.\n"),
        };
        for Moment { number, time, bytes, .. } in &self.moments {
            text.push_str(&format!("  {number:>7}  {time}  {}\n", size::show(*bytes)));
        }
        text
    }
}

/// Which state, on its way to a server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wanted {
    Barrier(u64),
    /// Nanoseconds since 1970.
    Time(u64),
}

impl Wanted {
    pub(crate) fn of(at: At) -> Option<Wanted> {
        match at {
            At::Barrier(number) => Some(Wanted::Barrier(number)),
            At::Time(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                Some(Wanted::Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
            }
            _ => None,
        }
    }

    pub(crate) fn at(self) -> At {
        match self {
            Wanted::Barrier(number) => At::Barrier(number),
            Wanted::Time(nanoseconds) => At::Time(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)),
        }
    }
}

/// What is said of the state of a backup whose log is lost.
pub(crate) const LACKING: &str = "LACKING: all that was written since this backup was brought up to date, which only its log has; the backup \
     does not say when that was.\n";

/// A state that is being served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PastReport {
    /// None before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) moment: Option<Moment>,
    pub(crate) uri: String,
    pub(crate) size_bytes: u64,
    /// It is the backup's, without a log.
    #[serde(default)]
    pub(crate) without_log: bool,
}

impl Report for PastReport {
    fn words(&self) -> String {
        let state = self.moment.as_ref().map_or("the backup's state".to_string(), Moment::words);
        let lacking = if self.without_log { LACKING } else { "" };
        format!("Serving {state}, read-only, until Ctrl-C.\n{lacking}Clients: {}\n", self.uri)
    }
}

/// A server of one state.
pub(crate) struct PastServer {
    pub(crate) report: PastReport,
    server: Server,
    listener: Listener,
}

impl PastServer {
    /// At a socket, or at one of its own in the runtime directory.
    pub(crate) fn new(past: Past, socket: Option<&Path>) -> Result<PastServer> {
        let path = match socket {
            Some(path) => path.to_path_buf(),
            None => own_socket()?,
        };
        let listener = Listener::unix(&path, 0o600).map_err(|error| Failure::at(&path, plain(&error)))?;
        let report = PastReport {
            moment: past.barrier().as_ref().map(Moment::of),
            uri: super::server::unix_uri("", &path, false),
            size_bytes: super::sets::size_bytes(&past),
            without_log: past.is_without_log(),
        };
        let name = past.name().to_string();
        let server = Server::new(vec![Export::new("", Arc::new(past)).described(&name).read_only()]);
        Ok(PastServer { report, server, listener })
    }

    pub(crate) fn run(self, stop: &Stop) -> Result<()> {
        self.server.run(&[self.listener], stop).map_err(|error| Failure::new(plain(&error)))
    }
}

/// A path where nobody else's is.
fn own_socket() -> Result<PathBuf> {
    let name = super::sets::random_uuid()?;
    Ok(control::directory()?.join(format!("flashlog-at-{name}.nbd")))
}
