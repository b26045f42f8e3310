//! What is done when a device fails: a table by device, by what fails, and by mode.

use super::device::Mode;
use super::format::Role;
use crate::{Error, Operation};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What of a device fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Symptom {
    /// A read, or what was read is not what was written.
    Read,
    /// A write.
    Write,
    /// Making writes durable.
    Flush,
    /// All of it: it was unplugged, or its connection is lost.
    Gone,
}

impl Symptom {
    /// All, in the order of the table.
    pub const ALL: [Symptom; 4] = [Symptom::Read, Symptom::Write, Symptom::Flush, Symptom::Gone];

    /// What an error of a device is a sign of.
    pub fn of(error: &Error) -> Symptom {
        match error.root() {
            Error::Io { source, .. } if source.raw_os_error().is_some_and(|errno| GONE.contains(&errno)) => {
                Symptom::Gone
            }
            Error::EndedEarly { .. } | Error::Shrunk { .. } => Symptom::Gone,
            other => match other.operation() {
                Operation::Read => Symptom::Read,
                Operation::Flush => Symptom::Flush,
                _ => Symptom::Write,
            },
        }
    }
}

/// What the system says of a device that is not there any more.
const GONE: [i32; 5] = [libc::ENODEV, libc::ENXIO, libc::ENOMEDIUM, libc::ENOLINK, libc::ESHUTDOWN];

/// What is tried before a failure counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Patience {
    /// Nothing.
    #[default]
    None,
    /// The same read again.
    Retry {
        /// So often.
        times: u32,
        /// After so long.
        pause: Duration,
    },
    /// Everybody who needs the device waits until it is back.
    Wait {
        /// At most so long.
        most: Duration,
    },
}

/// What is done when a failure counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Whoever asked is told; the set goes on.
    Tell,
    /// Main takes changes alone, which is said: what is written then is on no other device.
    GoOnAlone,
    /// Reads go on, changes are refused.
    ReadOnly,
    /// Neither reads nor changes.
    Stop,
}

/// One place in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Before the failure counts.
    pub patience: Patience,
    /// When it counts.
    pub action: Action,
}

/// What is done when a device fails. In words, what differs from the default: `log.gone=wait:60s+alone,async.main.read=stop`.
///
/// In asynchronous mode the log may have what main has not; then no set goes on alone, whatever is said here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// By mode, device and symptom. Arguments of a command have it in them.
    entries: Box<[[[Entry; 4]; 3]; 2]>,
}

/// The devices, in the order of the table.
const ROLES: [Role; 3] = [Role::Main, Role::Log, Role::Backup];
const MODES: [(Mode, &str); 2] = [(Mode::Synchronous, "sync"), (Mode::Asynchronous, "async")];
/// Of a read that fails: a disk's own patience is much longer, a cable's is not.
const RETRY: Patience = Patience::Retry { times: 3, pause: Duration::from_millis(100) };

impl Default for Policy {
    fn default() -> Policy {
        let read = Entry { patience: RETRY, action: Action::Tell };
        let all = |action| {
            let entry = Entry { patience: Patience::None, action };
            [read, entry, entry, entry]
        };
        let by_mode = |of_log| [all(Action::ReadOnly), all(of_log), all(Action::Tell)];
        Policy { entries: Box::new([by_mode(Action::GoOnAlone), by_mode(Action::ReadOnly)]) }
    }
}

impl Policy {
    /// What is done in a case.
    pub fn entry(&self, role: Role, symptom: Symptom, mode: Mode) -> Entry {
        self.entries[mode_index(mode)][role_index(role)][symptom as usize]
    }

    /// Sets one place, if it can be done.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn set(&mut self, role: Role, symptom: Symptom, mode: Mode, entry: Entry) -> Result<(), &'static str> {
        possible(role, symptom, entry)?;
        self.entries[mode_index(mode)][role_index(role)][symptom as usize] = entry;
        Ok(())
    }

    /// All of a mode, as `log.gone` and `wait:60s+alone`.
    pub fn rows(&self, mode: Mode) -> Vec<(String, String)> {
        let all = ROLES.iter().flat_map(|role| Symptom::ALL.iter().map(move |symptom| (*role, *symptom)));
        all.map(|(role, symptom)| (format!("{role}.{symptom}"), self.entry(role, symptom, mode).to_string())).collect()
    }

    /// All of it, as documentation has it.
    pub fn table(&self) -> String {
        let mut text = "| what fails | sync | async |\n|---|---|---|\n".to_string();
        for ((name, sync), (_, not)) in self.rows(Mode::Synchronous).iter().zip(self.rows(Mode::Asynchronous)) {
            text.push_str(&format!("| `{name}` | `{sync}` | `{not}` |\n"));
        }
        text
    }
}

fn mode_index(mode: Mode) -> usize {
    usize::from(mode == Mode::Asynchronous)
}

fn role_index(role: Role) -> usize {
    match role {
        Role::Main => 0,
        Role::Log => 1,
        Role::Backup => 2,
    }
}

/// Whether that can be done in that case; otherwise why not.
fn possible(role: Role, symptom: Symptom, Entry { patience, action }: Entry) -> Result<(), &'static str> {
    match (patience, symptom) {
        (Patience::Retry { .. }, Symptom::Write | Symptom::Flush) => {
            return Err("after a write or flush that failed nobody knows what a device has: it takes no other");
        }
        (Patience::Retry { .. }, Symptom::Gone) => return Err("a device that has gone is waited for: wait:TIME"),
        (Patience::Wait { .. }, Symptom::Read | Symptom::Write | Symptom::Flush) => {
            return Err("the device is there: only one that has gone is waited for");
        }
        _ => {}
    }
    match (role, symptom, action) {
        (Role::Backup, _, Action::Tell) => Ok(()),
        (Role::Backup, ..) => Err("the set does not need its backup to go on: a backup that fails is told"),
        (Role::Main, _, Action::GoOnAlone) => Err("without main nobody could read what is written"),
        (_, Symptom::Write | Symptom::Flush | Symptom::Gone, Action::Tell) => {
            Err("a device that lacks what was written is none of the set's any more")
        }
        _ => Ok(()),
    }
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Symptom::Read => "read",
            Symptom::Write => "write",
            Symptom::Flush => "flush",
            Symptom::Gone => "gone",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Tell => "tell",
            Action::GoOnAlone => "alone",
            Action::ReadOnly => "read-only",
            Action::Stop => "stop",
        })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.patience {
            Patience::None => {}
            Patience::Retry { times, pause } => write!(f, "retry:{times}:{}+", Time(pause))?,
            Patience::Wait { most } => write!(f, "wait:{}+", Time(most))?,
        }
        self.action.fmt(f)
    }
}

/// What differs from the default; nothing if nothing does.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Policy::default();
        let mut is_first = true;
        for (mode, name) in MODES {
            for ((cell, entry), (_, usual)) in self.rows(mode).into_iter().zip(default.rows(mode)) {
                if entry != usual {
                    write!(f, "{}{name}.{cell}={entry}", if is_first { "" } else { "," })?;
                    is_first = false;
                }
            }
        }
        Ok(())
    }
}

/// A time as it is written, in the largest unit that has no fraction.
struct Time(Duration);

const UNITS_MS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let is_whole = |unit_ms: u64| ms >= unit_ms && ms.is_multiple_of(unit_ms);
        let (unit, unit_ms) = UNITS_MS.into_iter().find(|(_, unit_ms)| is_whole(*unit_ms)).unwrap_or(("s", 1000));
        write!(f, "{}{unit}", ms / unit_ms)
    }
}

fn time(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let (_, unit_ms) = UNITS_MS.into_iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(unit_ms).map(Duration::from_millis)
}

/// A policy that cannot be understood, or not be followed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{part:?}: {why}")]
pub struct BadPolicy {
    /// What of it.
    part: String,
    /// Why not.
    why: &'static str,
}

impl FromStr for Policy {
    type Err = BadPolicy;

    /// What is not mentioned is as it is by default. `log=alone` is for all that can befall the log, but for reads.
    fn from_str(text: &str) -> Result<Policy, BadPolicy> {
        let mut policy = Policy::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            policy.change(part).map_err(|why| BadPolicy { part: part.to_string(), why })?;
        }
        Ok(policy)
    }
}

impl Policy {
    fn change(&mut self, part: &str) -> Result<(), &'static str> {
        let (cell, entry) = part.split_once('=').ok_or("write DEVICE.FAILURE=ACTION, as log.gone=wait:60s+alone")?;
        let mut names = cell.split('.').peekable();
        let mode = names.next_if(|name| MODES.iter().any(|(_, mode)| mode == name));
        let role = names.next().and_then(|name| ROLES.into_iter().find(|role| role.to_string() == name));
        let role = role.ok_or("the devices are main, log and backup; before that sync. or async. for one mode")?;
        let symptoms = match names.next() {
            None => Symptom::ALL[1..].to_vec(),
            Some(name) => {
                let found = Symptom::ALL.into_iter().find(|symptom| symptom.to_string() == name);
                vec![found.ok_or("what fails is read, write, flush or gone")?]
            }
        };
        if names.next().is_some() {
            return Err("write DEVICE.FAILURE=ACTION, as log.gone=wait:60s+alone");
        }
        for symptom in symptoms {
            for (of, _) in MODES.into_iter().filter(|(_, name)| mode.is_none_or(|mode| mode == *name)) {
                let entry = entry_of(entry, self.entry(role, symptom, of))?;
                self.set(role, symptom, of, entry)?;
            }
        }
        Ok(())
    }
}

/// `retry:TIMES[:PAUSE]` or `wait:TIME`, and what is done then, with `+` in between. What is not said is as before: the action, not the
/// patience.
fn entry_of(text: &str, before: Entry) -> Result<Entry, &'static str> {
    let mut entry = Entry { patience: Patience::None, ..before };
    let mut parts = text.split('+').peekable();
    let is_patience = |part: &&str| part.starts_with("retry") || part.starts_with("wait");
    if let Some(part) = parts.next_if(is_patience) {
        let mut words = part.split(':');
        entry.patience = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("retry"), Some(times), pause, None) => {
                let times = times.parse().ok().filter(|times| (1..=1000).contains(times));
                let times = times.ok_or("write retry:TIMES, from 1 to 1000, or retry:TIMES:PAUSE")?;
                let pause = pause.map_or(Some(Duration::from_millis(100)), time);
                Patience::Retry { times, pause: pause.ok_or("a time is a number with ms, s, m or h")? }
            }
            (Some("wait"), Some(most), None, None) => {
                Patience::Wait { most: time(most).ok_or("write wait:TIME; a time is a number with ms, s, m or h")? }
            }
            _ => return Err("write retry:TIMES, retry:TIMES:PAUSE or wait:TIME"),
        };
    }
    match parts.next() {
        None => {}
        Some(name) => {
            let all = [Action::Tell, Action::GoOnAlone, Action::ReadOnly, Action::Stop];
            let action = all.into_iter().find(|action| action.to_string() == name);
            entry.action =
                action.ok_or("what can be done is tell, alone, read-only, stop, and before that retry or wait")?;
        }
    }
    if parts.next().is_some() {
        return Err("there is one thing to be done at the end, after a retry or a wait");
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_back() {
        let texts = [
            ("", ""),
            ("log=alone", "async.log.write=alone,async.log.flush=alone,async.log.gone=alone"),
            ("sync.log=read-only", "sync.log.write=read-only,sync.log.flush=read-only,sync.log.gone=read-only"),
            ("log.gone=wait:60s", "sync.log.gone=wait:1m+alone,async.log.gone=wait:1m+read-only"),
            ("sync.main.read=retry:5:0s+stop", "sync.main.read=retry:5:0s+stop"),
            (
                "async.main.read=read-only,backup.gone=wait:1500ms",
                "sync.backup.gone=wait:1500ms+tell,async.main.read=read-only,async.backup.gone=wait:1500ms+tell",
            ),
        ];
        for (text, all) in texts {
            let policy: Policy = text.parse().unwrap();
            assert_eq!(policy.to_string(), all, "{text}");
            assert_eq!(all.parse(), Ok(policy), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        for (text, why) in [
            ("log", "write DEVICE.FAILURE=ACTION"),
            ("log.gone.now=stop", "write DEVICE.FAILURE=ACTION"),
            ("disk.read=stop", "the devices are main, log and backup"),
            ("log.burnt=stop", "what fails is read, write, flush or gone"),
            ("log.gone=panic", "what can be done is"),
            ("log.gone=", "what can be done is"),
            ("log.flush=retry:3", "nobody knows what a device has"),
            ("main.write=retry:1", "nobody knows what a device has"),
            ("log.gone=retry:3", "waited for"),
            ("main.read=wait:5s", "the device is there"),
            ("main.flush=wait:5s", "the device is there"),
            ("main.gone=alone", "without main"),
            ("main.write=tell", "lacks what was written"),
            ("log.flush=tell", "lacks what was written"),
            ("backup.write=stop", "does not need its backup"),
            ("backup.gone=wait:9s+alone", "does not need its backup"),
            ("log.gone=wait:5", "a time is a number with"),
            ("main.read=retry:0", "from 1 to 1000"),
            ("main.read=retry", "write retry:TIMES"),
            ("log.gone=wait:5s+alone+stop", "one thing to be done"),
        ] {
            let error = text.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn the_documentation_has_the_table() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flashlog.md");
        let table = Policy::default().table();
        assert!(std::fs::read_to_string(docs).unwrap().contains(&table), "docs/flashlog.md has not\n{table}");
    }
}
