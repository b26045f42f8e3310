//! How a set is doing, in words and as data.

use super::sets;
use crate::output::{Report, table};
use crate::{date, quoting, size};
use holdfast_block::flashlog::{
    Bad, Condition, Damage, Error, Inspected, Mode, Policy, Protection, Role, Status, Trouble,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// A backup of a mounted store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct LastBackup {
    /// It has this one, or a later one.
    pub(crate) recovery_point: u64,
    pub(crate) to: String,
    pub(crate) at: SystemTime,
}

/// Main has no log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct AloneReport {
    /// When it came to that; of a main that was alone when its server began, nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since_s: Option<u64>,
    /// The generation in which the log was there last.
    pub(crate) since_generation: u64,
    /// What the log lacks, by region.
    pub(crate) changed_bytes: u64,
}

/// What was found damaged, and not found mended since.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct DamageReport {
    /// Of main, what nobody who was asked has as it was.
    main_bytes: u64,
    /// First block of that; of the set, as the other one.
    main_first_block: u64,
    backup_bytes: u64,
    backup_first_block: u64,
    /// Which of main's these are is not known of all, or only until the set is closed.
    #[serde(default)]
    main_forgotten: bool,
}

impl DamageReport {
    fn of(damage: &Damage, main_forgotten: bool) -> Option<DamageReport> {
        let Damage { main, backup, .. } = *damage;
        (damage != &Damage::default()).then(|| DamageReport {
            main_bytes: sets::bytes(main.blocks),
            main_first_block: main.first,
            backup_bytes: sets::bytes(backup.blocks),
            backup_first_block: backup.first,
            main_forgotten,
        })
    }

    fn problem(damage: &Damage, main_forgotten: bool) -> Option<String> {
        let of = |bad: Bad, what: &str| {
            let shown = size::show(sets::bytes(bad.blocks));
            (bad.blocks > 0).then(|| format!("{shown} of {what} are damaged, first block {} of the set", bad.first))
        };
        let Damage { main, backup, .. } = *damage;
        let all: Vec<String> = [
            of(main, "main").map(|found| {
                let forgotten = match main_forgotten {
                    true => "; which these are is forgotten, or will be when the set is closed, and then older data is read there",
                    false => "",
                };
                format!(
                    "{found}, and the log has not what they were: scrub --backup BACKUP takes what a backup has, rebuild --force makes main anew; what nobody has must be written anew{forgotten}"
                )
            }),
            of(backup, "the backup").map(|found| format!("{found}: the next one replaces what was written since")),
        ]
        .into_iter()
        .flatten()
        .collect();
        let until = match main.blocks > 0 && !main_forgotten {
            true => {
                "until they are written anew, or holdfast flashlog scrub, or backup --verify, finds nothing any more"
            }
            false => "until holdfast flashlog scrub, or backup --verify, finds nothing any more",
        };
        (!all.is_empty()).then(|| format!("{} ({until})", all.join("; ")))
    }
}

/// How a device of a set has failed so far.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TroubleReport {
    device: String,
    /// It has gone, and is waited for since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting_since_s: Option<u64>,
    /// Why what is in its place is not the one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// So often it was gone and came back.
    returns: u64,
    /// Reads that did not fail when they were tried again.
    mended_reads: u64,
    /// Reads that failed, which was told to whoever asked.
    failed_reads: u64,
    /// Of these, what was neither read nor written since.
    unread_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<String>,
}

impl TroubleReport {
    fn of((role, trouble): &(Role, Trouble)) -> TroubleReport {
        TroubleReport {
            device: role.to_string(),
            waiting_since_s: trouble.waiting_since.and_then(seconds),
            refused: trouble.refused.clone(),
            returns: trouble.returns,
            mended_reads: trouble.mended_reads,
            failed_reads: trouble.failed_reads,
            unread_bytes: sets::bytes(trouble.unread_blocks),
            last: trouble.last.as_ref().map(ToString::to_string),
        }
    }

    /// What is wrong now, if anything is.
    fn problem(&self) -> Option<String> {
        let TroubleReport { device, failed_reads, unread_bytes, .. } = self;
        let last = self.last.as_deref().unwrap_or_default();
        if let Some(since_s) = self.waiting_since_s {
            let other =
                self.refused.as_ref().map(|why| format!("; what is there is not it: {why}")).unwrap_or_default();
            return Some(format!("the {device} device has gone, and is waited for since {}{other}", moment(since_s)));
        }
        (*unread_bytes > 0)
            .then(|| {
                let unread = size::show(*unread_bytes);
                format!("{unread} of the {device} device could not be read, and were not read or written since ({failed_reads} reads have failed, the last: {last})")
            })
    }
}

/// What is said of damaged pages of a log.
pub(crate) fn log_damage(error: &Error) -> String {
    format!("the log is damaged, make a backup: {error}")
}

fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs())
}

fn moment(seconds: u64) -> String {
    i64::try_from(seconds).map_or_else(|_| "then".into(), date::utc)
}

const NO_BACKUP: &str =
    "no backup goes with the log: what it does not keep any more is on main alone until one is made";

/// A set that is being served.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct SetReport {
    pub(crate) set: String,
    /// Main, log and backup are in order: the failure of one of them loses nothing that was flushed, but for what is on the log alone.
    pub(crate) protected: bool,
    /// What is wrong, if anything is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    /// Main goes on without its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alone: Option<AloneReport>,
    /// What was found damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) damage: Option<DamageReport>,
    /// What has befallen its devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) troubles: Vec<TroubleReport>,
    /// What is done when a device fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) on_failure: Option<BTreeMap<String, String>>,
    pub(crate) mode: String,
    pub(crate) generation: u64,
    pub(crate) size_bytes: u64,
    pub(crate) main: String,
    /// Or the one that main had.
    pub(crate) log: String,
    /// Waits for main.
    pub(crate) behind_bytes: u64,
    /// Of that, at most so much was flushed and is on no other device before main catches up.
    #[serde(default)]
    pub(crate) log_alone_bytes: u64,
    /// What the log keeps, and has room for.
    pub(crate) log_used_bytes: u64,
    pub(crate) log_bytes: u64,
    /// The same of the entries that tell what is in it, in per cent.
    pub(crate) log_pages_percent: u64,
    /// The backup that the log is kept for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backup: Option<String>,
    /// Written since that backup's state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since_backup_bytes: Option<u64>,
    /// In regions that have changed since then, and that the log does not keep any more: no other device has them.
    #[serde(default)]
    pub(crate) changed_bytes: u64,
    /// The last one of the mount that the set is used by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_backup: Option<LastBackup>,
    /// Where it takes commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) control: Option<String>,
    /// A backup is under way.
    pub(crate) backing_up: bool,
    /// Clients may not write.
    pub(crate) read_only: bool,
    /// Where clients connect.
    pub(crate) uris: Vec<String>,
    pub(crate) pid: u32,
}

/// What only the server knows.
pub(crate) struct Served<'a> {
    pub(crate) main: &'a str,
    pub(crate) log: &'a str,
    pub(crate) backing_up: bool,
    pub(crate) read_only: bool,
    pub(crate) uris: &'a [String],
}

impl SetReport {
    pub(crate) fn new(status: &Status, served: &Served<'_>) -> SetReport {
        let (pages, pages_most) = status.log_pages;
        let troubles: Vec<TroubleReport> = status.troubles.iter().map(TroubleReport::of).collect();
        let stopped = status.failure.as_ref().map(|error| format!("no changes are taken: {error}"));
        let changed_bytes = sets::bytes(status.changed_blocks);
        // Also while the backup is being made: until it is done, backup and log are not all of main.
        let is_overtaken = status.backup.is_some() && changed_bytes > 0;
        let overtaken = is_overtaken.then(|| {
            let changed = size::show(changed_bytes);
            format!("the log does not keep all that the backup lacks: up to {changed} are on main alone until a backup is done")
        });
        // Main is made anew from backup and log, so its death would lose what neither has.
        let single = match (status.backup, status.since_backup_blocks) {
            (None, _) => Some(NO_BACKUP.to_string()),
            (Some(_), None) => {
                Some("what was written since the backup is on main alone until the next one".to_string())
            }
            (Some(_), Some(_)) => None,
        };
        let troubled = || troubles.iter().find_map(TroubleReport::problem);
        let damaged = || DamageReport::problem(&status.damage, status.forgets_damage);
        let log_damaged = || {
            status.log_damage.as_ref().map(|error| match error {
                // A reader has met it.
                Error::Device(error) => format!(
                    "the log has lost data that main does not have (scrub --backup BACKUP takes what a backup has, rebuild --force makes main anew): {error}"
                ),
                error => log_damage(error),
            })
        };
        let problem = stopped.or_else(troubled).or_else(damaged).or_else(log_damaged).or(overtaken).or(single);
        SetReport {
            set: status.set.to_string(),
            protected: problem.is_none(),
            problem,
            alone: None,
            damage: DamageReport::of(&status.damage, status.forgets_damage),
            troubles,
            on_failure: None,
            mode: mode_name(status.mode).into(),
            generation: status.generation,
            size_bytes: sets::bytes(status.blocks),
            main: served.main.into(),
            log: served.log.into(),
            behind_bytes: sets::bytes(status.behind_blocks),
            log_alone_bytes: match status.mode {
                // A flush waits for main as well.
                Mode::Synchronous => 0,
                Mode::Asynchronous => sets::bytes(status.behind_blocks),
            },
            log_used_bytes: sets::bytes(status.log_blocks.0),
            log_bytes: sets::bytes(status.log_blocks.1),
            log_pages_percent: (100 * pages).checked_div(pages_most).unwrap_or(0),
            backup: status.backup.map(|uuid| uuid.to_string()),
            since_backup_bytes: status.since_backup_blocks.map(sets::bytes),
            changed_bytes,
            last_backup: None,
            control: None,
            backing_up: served.backing_up,
            read_only: served.read_only,
            uris: served.uris.to_vec(),
            pid: std::process::id(),
        }
    }
}

impl SetReport {
    /// With what is done when a device fails.
    pub(crate) fn with_policy(self, policy: &Policy) -> SetReport {
        let mode = if self.mode == mode_name(Mode::Synchronous) { Mode::Synchronous } else { Mode::Asynchronous };
        SetReport { on_failure: Some(policy.rows(mode).into_iter().collect()), ..self }
    }

    /// Of a set that may be without its log.
    pub(crate) fn lasting((status, protection): &(Status, Protection), served: &Served<'_>) -> SetReport {
        let mut report = SetReport::new(status, served);
        if let Protection::Alone { since, time, changed_blocks } = protection {
            let since_s = time.and_then(seconds);
            let when = since_s.map_or_else(|| format!("generation {since}"), moment);
            report.protected = false;
            let damaged =
                DamageReport::problem(&status.damage, status.forgets_damage).map(|damaged| format!("; {damaged}"));
            report.problem = Some(format!("main is without a log since {when}{}", damaged.unwrap_or_default()));
            let changed_bytes = sets::bytes(*changed_blocks);
            report.alone = Some(AloneReport { since_s, since_generation: *since, changed_bytes });
        }
        // Main alone has a latch of its own.
        if let Protection::Stopped { cause } = protection {
            report.protected = false;
            report.problem = Some(format!("no changes are taken: {cause}"));
        }
        report
    }
}

pub(crate) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Synchronous => "sync",
        Mode::Asynchronous => "async",
    }
}

impl SetReport {
    fn protection(&self) -> String {
        match &self.problem {
            None if self.log_alone_bytes > 0 => {
                let alone = size::show(self.log_alone_bytes);
                format!("protected: main, log and backup, but for up to {alone} on the log alone until main catches up")
            }
            None => "protected: main, log and backup".to_string(),
            Some(problem) => format!("NOT PROTECTED: {problem}"),
        }
    }

    fn main_and_log(&self) -> [(&'static str, String); 2] {
        let had = if self.log.is_empty() { "" } else { &format!(", it was {}", quoting::name(&self.log)) };
        let main = format!("{}, {} behind", quoting::name(&self.main), size::show(self.behind_bytes));
        if let Some(alone) = &self.alone {
            let log = format!("none{had}; {} written since is on main alone", size::show(alone.changed_bytes));
            return [("main", quoting::name(&self.main)), ("log", log)];
        }
        let log = format!(
            "{}, {} of {} kept ({} % of its pages)",
            quoting::name(&self.log),
            size::show(self.log_used_bytes),
            size::show(self.log_bytes),
            self.log_pages_percent
        );
        [("main", main), ("log", log)]
    }

    fn last_backup(&self) -> String {
        match (&self.backup, self.since_backup_bytes, self.backing_up) {
            (_, _, true) => "under way".to_string(),
            _ if self.alone.is_some() => "none is made without a log".to_string(),
            (Some(backup), Some(bytes), _) => {
                let point = self.last_backup.as_ref().map(|last| format!(" at recovery point {}", last.recovery_point));
                format!("{backup}{}, {} written since", point.unwrap_or_default(), size::show(bytes))
            }
            (Some(backup), None, _) => format!("{backup}; the next one is a full copy"),
            (None, ..) => "none".to_string(),
        }
    }

    /// What the status of a store on it tells.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![("Flashlog", format!("{} ({}, set {})", self.protection(), self.mode, self.set))];
        rows.extend(self.main_and_log());
        rows.push(("backup", self.last_backup()));
        rows
    }
}

impl Report for SetReport {
    fn words(&self) -> String {
        let access = if self.read_only { ", read-only" } else { "" };
        let mut rows = vec![
            ("state", self.protection()),
            ("size", size::show(self.size_bytes)),
            ("mode", format!("{}{access}", self.mode)),
        ];
        rows.extend(self.main_and_log());
        rows.push(("backup", self.last_backup()));
        rows.push(("server", format!("process {}", self.pid)));
        rows.extend(self.uris.iter().map(|uri| ("clients", uri.clone())));
        format!("Flashlog {}\n{}", self.set, table(&rows))
    }
}

/// What a backup says of the main that it was copied from.
fn of_forgotten(main: Bad) -> Option<String> {
    let shown = size::show(sets::bytes(main.blocks));
    (main.blocks > 0).then(|| {
        format!(
            "copied when {shown} of main were damaged, first block {} of the set, and it was not known any more which: it may have older data than main",
            main.first
        )
    })
}

/// A device, by its label.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DeviceReport {
    pub(crate) device: String,
    pub(crate) role: String,
    pub(crate) condition: &'static str,
    pub(crate) set: String,
    pub(crate) uuid: String,
    pub(crate) generation: u64,
    pub(crate) size_bytes: u64,
    pub(crate) set_bytes: u64,
    /// What is wrong, if anything is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    #[serde(skip)]
    is_given_up: bool,
}

impl DeviceReport {
    pub(crate) fn new(device: &str, label: &Inspected) -> DeviceReport {
        let is_forgotten = label.condition == Condition::Alone || !label.damage.log_tells;
        let damaged = match label.role {
            Role::Backup => of_forgotten(label.damage.main),
            _ => DamageReport::problem(&label.damage, is_forgotten),
        };
        let problem = match label.condition {
            Condition::GivenUp => Some(
                "main was being made anew here and is not done, so it is a mixture: holdfast flashlog rebuild --force"
                    .to_string(),
            ),
            Condition::Alone => {
                let damaged = damaged.map(|damaged| format!("; {damaged}")).unwrap_or_default();
                Some(format!("main has gone on without its log{damaged}"))
            }
            Condition::Copying => {
                let (done, all) = (sets::bytes(label.copied_blocks), sets::bytes(label.blocks));
                let damaged = damaged.map(|damaged| format!("; {damaged}")).unwrap_or_default();
                Some(format!("the copy is not complete: {} of {}{damaged}", size::show(done), size::show(all)))
            }
            _ if damaged.is_some() => damaged,
            _ if label.role == Role::Log && label.backup.is_none() => Some(NO_BACKUP.to_string()),
            _ if label.has_map => Some("the log does not keep all that the backup lacks: make a backup".to_string()),
            _ => None,
        };
        DeviceReport {
            device: device.into(),
            role: label.role.to_string(),
            condition: condition_name(label.condition),
            set: label.set.to_string(),
            uuid: label.uuid.to_string(),
            generation: label.generation,
            size_bytes: sets::bytes(label.device_blocks),
            set_bytes: sets::bytes(label.blocks),
            problem,
            is_given_up: label.condition == Condition::GivenUp,
        }
    }

    /// As udev takes it from a program (`IMPORT{program}`), and a shell. Nothing of a device that is no main yet, and has no name of its own.
    pub(crate) fn exported(&self) -> String {
        if self.is_given_up {
            return String::new();
        }
        let all = [("ROLE", &*self.role), ("CONDITION", self.condition), ("SET", &*self.set), ("UUID", &*self.uuid)];
        all.map(|(name, value)| format!("HOLDFAST_FLASHLOG_{name}={value}\n")).concat()
    }
}

fn condition_name(condition: Condition) -> &'static str {
    match condition {
        Condition::GivenUp => "given-up",
        Condition::Open => "open",
        Condition::CatchingUp => "catching-up",
        Condition::Alone => "alone",
        Condition::Copying => "copying",
        Condition::Staged => "staged",
    }
}

impl Report for DeviceReport {
    fn words(&self) -> String {
        let rows = [
            ("role", format!("{} device of Flashlog {}", self.role, self.set)),
            ("state", self.problem.clone().unwrap_or_else(|| self.condition.to_string())),
            ("device", self.uuid.clone()),
            ("size", size::show(self.size_bytes)),
            ("set", format!("{}, generation {}", size::show(self.set_bytes), self.generation)),
        ];
        format!("{}\n{}", quoting::name(&self.device), table(&rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_block::flashlog::Uuid;

    /// Of a set with a backup, of which nothing is wrong.
    fn status() -> Status {
        Status {
            mode: Mode::Synchronous,
            failure: None,
            set: Uuid([1; 16]),
            main: Uuid([2; 16]),
            log: Uuid([3; 16]),
            generation: 1,
            blocks: 1 << 18,
            behind_blocks: 0,
            log_blocks: (10, 1 << 16),
            log_pages: (1, 1 << 10),
            backup: Some(Uuid([4; 16])),
            since_backup_blocks: Some(10),
            changed_blocks: 0,
            barrier: 1,
            damage: Damage::default(),
            forgets_damage: false,
            log_damage: None,
            troubles: Vec::new(),
        }
    }

    fn report(status: &Status, backing_up: bool) -> SetReport {
        report_with(status, Protection::Protected, backing_up)
    }

    fn report_with(status: &Status, protection: Protection, backing_up: bool) -> SetReport {
        let served = Served { main: "m", log: "l", backing_up, read_only: false, uris: &[] };
        SetReport::lasting(&(status.clone(), protection), &served)
    }

    /// What each place of the policy's table comes to, as `holdfast_block`'s tests of it have it.
    #[test]
    fn a_device_that_has_failed_is_told_as_long_as_something_is_amiss() {
        let troubled = |trouble: Trouble| Status { troubles: vec![(Role::Log, trouble)], ..status() };
        let waited = Trouble { waiting_since: Some(UNIX_EPOCH), ..Trouble::default() };
        let unread = Trouble { failed_reads: 3, unread_blocks: 2, ..Trouble::default() };
        let over = Trouble { returns: 1, mended_reads: 2, failed_reads: 3, ..Trouble::default() };
        let device = "l".into();
        let cause = holdfast_block::Error::Unsuitable { device, reason: "it has failed" };
        let alone = Protection::Alone { since: 7, time: None, changed_blocks: 1 };
        for (status, protection, told) in [
            (troubled(waited), Protection::Protected, Some("the log device has gone, and is waited for since 1970")),
            (troubled(unread), Protection::Protected, Some("8.00 KiB of the log device could not be read")),
            (troubled(over), Protection::Protected, None),
            (status(), Protection::Stopped { cause }, Some("no changes are taken: ")),
            (status(), alone, Some("main is without a log since generation 7")),
        ] {
            let report = report_with(&status, protection, false);
            assert_eq!(report.protected, told.is_none(), "{report:?}");
            let words = report.words();
            assert!(
                words.contains(&told.map_or("protected: ".into(), |told| format!("NOT PROTECTED: {told}"))),
                "{words}"
            );
        }
    }

    #[test]
    fn a_backup_under_way_protects_only_if_the_log_has_all_that_it_lacks() {
        for backing_up in [false, true] {
            assert!(report(&status(), backing_up).protected, "{backing_up}");
            // As in a first copy, one after a full log, and one to another disk.
            let copied = report(&Status { changed_blocks: 1 << 18, ..status() }, backing_up);
            assert!(!copied.protected, "{backing_up}");
            assert!(copied.words().contains("NOT PROTECTED: the log does not keep all"), "{}", copied.words());
        }
    }

    /// It is what was asked for, so nothing is wrong; but nobody may take it for more than it is.
    #[test]
    fn what_is_on_the_log_alone_is_told_in_asynchronous_mode() {
        let behind = Status { behind_blocks: 256, ..status() };
        let synchronous = report(&behind, false);
        assert_eq!((synchronous.protected, synchronous.behind_bytes, synchronous.log_alone_bytes), (true, 1 << 20, 0));
        assert!(synchronous.words().contains("protected: main, log and backup\n"), "{}", synchronous.words());
        let asynchronous = report(&Status { mode: Mode::Asynchronous, ..behind }, false);
        assert_eq!((asynchronous.protected, asynchronous.log_alone_bytes), (true, 1 << 20));
        let told = "protected: main, log and backup, but for up to 1.00 MiB on the log alone until main catches up";
        for words in [asynchronous.words(), asynchronous.rows()[0].1.clone()] {
            assert!(words.contains(told), "{words}");
        }
    }
}
