//! `holdfast inject` on the metadata that a mount has in memory.

use super::exchange;
use crate::args::{FaultKind, Inject, Metadata};
use crate::failure::{Failure, Result};
use crate::lab::{
    Asked, InjectReply, MetadataBlow, MetadataListed, MetadataRequest, MetadataStruck, Scribble, Step, When,
};
use crate::mounts::Mount;
use crate::output::{Format, Report, count, print, table};
use crate::paths::shell;
use crate::progress::Progress;
use crate::{quoting, target};
use holdfast_fuse::control;
use holdfast_physical::inject::Copies;
use holdfast_physical::scribble::{Blow, Choice, Pattern};
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a mount is asked whether it has struck.
const LOOKED_EVERY: Duration = Duration::from_millis(50);
/// How much longer than who asks a mount waits.
const SLACK: Duration = Duration::from_secs(2);

/// Bytes shown of what was written over, in words.
const SHOWN: usize = 16;

/// Whether a mount is asked about its metadata.
pub(super) fn is_about(arguments: &Inject) -> bool {
    let of_kind = match arguments.kind {
        Some(kind) => kind.memory.is_some(),
        None => arguments.list,
    };
    arguments.metadata.logic_bug.is_some() || arguments.memory.is_some() && of_kind
}

pub(super) fn run(mount: &Mount, arguments: &Inject, format: Format) -> Result<()> {
    let asked = |metadata| Asked::Metadata { metadata };
    if arguments.list {
        if arguments.kind.is_none() && (arguments.path.is_some() || arguments.metadata.object.is_some()) {
            return Err(Failure::usage("--path and --object choose of one kind: which --kind?"));
        }
        let kind = arguments.kind.and_then(|kind| kind.memory);
        let (object, path) = (arguments.metadata.object, arguments.path.clone());
        let InjectReply::Listed(listed) = exchange(mount, &asked(MetadataRequest::List { kind, object, path }))? else {
            return Err(other_answer(mount));
        };
        print(format, &InMemory { mount: mount.directory.display().to_string(), listed });
        return Ok(());
    }
    let when = arguments.memory.unwrap_or_default();
    let (path, Metadata { times, wait, stray, .. }) = (arguments.path.clone(), &arguments.metadata);
    let (blow, times) = (blow(arguments)?, *times);
    let waits = *wait > 0 && (when == When::Dirty || matches!(blow, Blow::Bug { .. }));
    let strike = |step| asked(MetadataRequest::Strike { blow: blow.clone(), path: path.clone(), when, times, step });
    let ask = || {
        let reply = match waits {
            true => awaited(mount, Duration::from_secs(u64::from(*wait)), &|step| exchange(mount, &strike(step))),
            false => exchange(mount, &strike(Step::Once)),
        };
        match reply? {
            InjectReply::Metadata(done) => {
                let directory = mount.directory.display().to_string();
                Ok(Done { undo: undo(arguments, &done), expected: unseen(arguments, &done), mount: directory, done })
            }
            _ => Err(other_answer(mount)),
        }
    };
    if *stray {
        return astray(mount, format, ask);
    }
    print(format, &ask()?);
    Ok(())
}

/// Has a mount wait for what it is to strike, and asks it again and again whether it has.
fn awaited(mount: &Mount, patience: Duration, ask: &dyn Fn(Step) -> Result<InjectReply>) -> Result<InjectReply> {
    let until = Instant::now() + patience;
    // If this process is killed, nothing is struck after that.
    let within_ms = (patience + SLACK).as_millis() as u64;
    let mut step = Step::Begin { within_ms };
    let shown = Progress::unknown("making a recovery point");
    loop {
        match ask(step)? {
            InjectReply::Waiting(what) => shown.says(format!("waiting up to {} s for {what}", patience.as_secs())),
            reply => return Ok(reply),
        }
        step = match step {
            Step::End => return Err(other_answer(mount)),
            _ if Instant::now() >= until => Step::End,
            _ => Step::Look,
        };
        // There is nothing to be woken by: a mount answers a request at once, and nobody else while it does, so it cannot answer when it has struck.
        std::thread::sleep(LOOKED_EVERY);
    }
}

fn other_answer(mount: &Mount) -> Failure {
    Failure::at(&mount.directory, "the mount answered something else")
}

fn blow(arguments: &Inject) -> Result<Blow> {
    let Inject { kind, checksum, fault, bits, bit, copy, page, seed, metadata, .. } = arguments;
    if let Some(bug) = metadata.logic_bug {
        return Ok(Blow::Bug { bug, seed: *seed });
    }
    let Some(kind) = kind.and_then(|kind| kind.memory) else { return Err(Failure::usage("which --kind?")) };
    let of_pages = [
        ("--checksum", *checksum),
        ("--fault", *fault != FaultKind::Flip),
        ("--bits", *bits != 1),
        ("--bit", bit.is_some()),
        ("--copy", *copy != Copies::One(0)),
        ("--page", page.is_some()),
    ];
    if let Some((option, _)) = of_pages.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::usage(format!("{option} is for pages of files, and {kind} is metadata")).hint(
            "--offset, --field, --length, --pattern and --bytes say what of metadata in memory is written over",
        ));
    }
    let pattern = metadata.pattern();
    Ok(Blow::Scribble(Choice {
        object: metadata.object,
        level: metadata.level,
        index: metadata.index,
        field: metadata.field.clone(),
        offset: metadata.offset,
        length: metadata.length,
        bytes: metadata.bytes.as_ref().map(|bytes| bytes.0.clone()),
        astray: metadata.stray,
        ..Choice::of(kind, pattern, *seed)
    }))
}

/// The command that puts back what was there, of what was struck between two recovery points.
fn undo(arguments: &Inject, done: &MetadataStruck) -> Option<String> {
    let [MetadataBlow { target: Some(target), scribble: Some(scribble), .. }] = &done.struck[..] else { return None };
    if !done.is_only {
        return None;
    }
    let state = arguments.memory.unwrap_or_default().name();
    let mut command = format!("holdfast inject {} --memory={state} --kind {}", shell(&arguments.store), target.kind);
    if let Some(object) = &target.object_number {
        command.push_str(&format!(" --object {object} --level {}", target.level));
    }
    command.push_str(&format!(" --index {} --offset {} --bytes {}", target.index, scribble.offset, scribble.before));
    if arguments.metadata.pattern() == Pattern::KeepAll {
        // Or the sums would stay those of what was struck.
        command.push_str(&format!(" --pattern {}", Pattern::KeepAll));
    }
    Some(command)
}

/// What becomes of what no checksum sees. Nothing of other patterns.
fn unseen(arguments: &Inject, done: &MetadataStruck) -> Option<&'static str> {
    if arguments.metadata.logic_bug.is_some() || arguments.metadata.pattern() != Pattern::KeepAll {
        return None;
    }
    let is_audited = |blow: &MetadataBlow| {
        let (Some(target), Some(scribble)) = (&blow.target, &blow.scribble) else { return false };
        // Of which slot stands behind it.
        target.kind.is_audited(scribble.field.split(" of ").next().unwrap_or_default())
    };
    Some(match done.struck.iter().all(is_audited) {
        true => {
            "No checksum sees it. This field is audited: a legal change in that place (of a bitmap or a snapshot-list, in that block) is found to be a \
             logic bug when a recovery point is made (not with audit=none), and nothing of it is stored. Until then, and where nothing changes there, it is \
             taken for good."
        }
        false => {
            "No checksum sees it, and no equation of the audit has this field: whoever uses it takes it for good, and the next change of that \
             block stores it. Some of that an error tells, some `holdfast check`, some nothing (docs/audit.md, What no checksum sees): use this \
             store for nothing else."
        }
    })
}

/// Has the daemon end itself by a write that a lock keeps out.
pub(super) fn astray<R: Report>(mount: &Mount, format: Format, strike: impl FnOnce() -> Result<R>) -> Result<()> {
    let log = log_of(mount)?;
    let before = log.as_ref().and_then(|log| fs::metadata(log).ok()).map_or(0, |log| log.len());
    match strike() {
        // A window of another thread was open, which with protect=pages is open to all.
        Ok(done) => print(format, &done),
        Err(_) if !is_served(mount) => {
            let text = log.as_ref().and_then(|log| fs::read(log).ok()).unwrap_or_default();
            let new = String::from_utf8_lossy(text.get(before as usize..).unwrap_or_default()).into_owned();
            let report = new.lines().filter(|line| line.starts_with("holdfast: ")).map(str::to_string).collect();
            print(format, &Ended { report, log, mount_again: target::abandoned(mount) });
        }
        Err(failure) => return Err(failure),
    }
    Ok(())
}

fn log_of(mount: &Mount) -> Result<Option<String>> {
    let status = target::ask(mount, "could not be asked for its log", control::status_json)?;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
    Ok(status["daemon"]["log"].as_str().map(str::to_string))
}

fn is_served(mount: &Mount) -> bool {
    target::ask(mount, "", control::status_json).is_ok()
}

/// What was done to metadata in memory.
#[derive(Serialize, Debug)]
struct Done {
    mount: String,
    #[serde(flatten)]
    done: MetadataStruck,
    /// What becomes of it, where no checksum sees it.
    #[serde(skip)]
    expected: Option<&'static str>,
    /// Takes it back, as long as nobody has noticed.
    #[serde(skip_serializing_if = "Option::is_none")]
    undo: Option<String>,
}

impl Report for Done {
    fn words(&self) -> String {
        let mut text = String::new();
        for blow in &self.done.struck {
            text.push_str(&blow_in_words(blow));
        }
        let Some(made) = &self.done.recovery_point else {
            let directory = shell(Path::new(&self.mount));
            let found = "It is found when it is used next, but for what was verified within the last second:";
            text.push_str(&format!(
                "{} {} something, then\n  holdfast sync {directory}; holdfast status {directory}\n",
                self.expected.unwrap_or(found),
                if self.expected.is_some() { "To see it, change" } else { "read or write" }
            ));
            if let Some(undo) = &self.undo {
                text.push_str(&format!("As it was, while nobody has noticed: {undo}\n"));
            }
            return text;
        };
        let mut found = Vec::new();
        found.extend((made.scribbles > 0).then(|| count(made.scribbles, "scribble", "scribbles")));
        found.extend((made.audit_failures > 0).then(|| count(made.audit_failures, "logic bug", "logic bugs")));
        let anew = match made.restarts {
            0 => String::new(),
            restarts => format!("; the recovery point was begun anew {}", count(restarts, "time", "times")),
        };
        text.push_str(&match (found.is_empty(), self.expected) {
            (true, Some(expected)) => format!("found: nothing{anew}. {expected}\n"),
            (true, None) if made.is_unaudited => {
                "found: nothing, and nothing will find it, as this mount has audit=none: it is stored (`holdfast check` finds it)\n"
                    .into()
            }
            (true, None) => format!("found: nothing yet, but when it is used next{anew}\n"),
            (false, _) => format!("found: {}{anew}\n", found.join(" and ")),
        });
        for same in made.found.chunk_by(|one, other| one == other) {
            let times = if same.len() > 1 { format!("{} times: ", same.len()) } else { String::new() };
            text.push_str(&format!("  {times}{}\n", same[0]));
        }
        text + &match &made.read_only {
            None => format!("The recovery point was made, and has all changes: epoch {}\n", made.epoch),
            Some(why) => format!("READ-ONLY: {why}\nThe last recovery point stands: epoch {}\n", made.epoch),
        }
    }
}

fn blow_in_words(blow: &MetadataBlow) -> String {
    let mut text = String::from("struck in memory: ");
    if let (Some(bug), Some(what)) = (blow.logic_bug, &blow.what) {
        text.push_str(&format!("logic bug {bug}: {what}"));
    }
    if let (Some(target), Some(scribble)) = (&blow.target, &blow.scribble) {
        let path = blow.path.as_ref().map(|path| format!(" ({})", quoting::name(path))).unwrap_or_default();
        text.push_str(&format!("{target}{path}\n  {}", in_words(scribble)));
    }
    text + "\n"
}

/// What was written over.
pub(super) fn in_words(scribble: &Scribble) -> String {
    let shown = |hex: &str| match hex.get(..2 * SHOWN) {
        Some(first) if hex.len() > first.len() => format!("{first}…"),
        _ => hex.to_string(),
    };
    let (before, after) = (shown(&scribble.before), shown(&scribble.after));
    format!("from byte {} on ({}): {before} is now {after}", scribble.offset, scribble.field)
}

/// What metadata is in the memory of a mount.
#[derive(Serialize, Debug)]
struct InMemory {
    mount: String,
    #[serde(flatten)]
    listed: MetadataListed,
}

impl Report for InMemory {
    fn words(&self) -> String {
        let MetadataListed { counts, targets, form } = &self.listed;
        let directory = shell(Path::new(&self.mount));
        let row = |(kind, state, count): &(holdfast_physical::scribble::MetaKind, String, u64)| {
            (kind.name(), format!("{count} {state}"))
        };
        let mut text = table(&counts.iter().map(row).collect::<Vec<_>>());
        let Some(form) = form else {
            text.push_str(&format!(
                "One by one, and their fields: holdfast inject {directory} --memory --list --kind KIND\n"
            ));
            return text;
        };
        for listed in targets {
            let path = listed.path.as_ref().map(|path| format!(" ({})", quoting::name(path))).unwrap_or_default();
            text.push_str(&format!("{}{path}\n", listed.target));
        }
        let all: u64 = counts.iter().map(|(.., count)| count).sum();
        if all > targets.len() as u64 {
            text.push_str(&format!("and {} more\n", all - targets.len() as u64));
        }
        text.push_str(&match form.slots {
            1 => format!("The first has {} with these fields:\n", count(form.slot_bytes as u64, "byte", "bytes")),
            slots => format!("The first has {slots} slots of {} bytes with these fields:\n", form.slot_bytes),
        });
        let place = |first: usize, length: usize| match length {
            1 => format!("byte {first}"),
            length => format!("bytes {first} to {}", first + length - 1),
        };
        let fields: Vec<(&str, String)> =
            form.fields.iter().map(|(name, first, length)| (name.as_str(), place(*first, *length))).collect();
        text + &table(&fields)
    }
}

/// The end of a daemon, by its own stray write.
#[derive(Serialize, Debug)]
struct Ended {
    /// What it said of it.
    report: Vec<String>,
    log: Option<String>,
    mount_again: String,
}

impl Report for Ended {
    fn words(&self) -> String {
        let mut text = String::from("The write went astray, and the daemon has ended by it, as it should.\n");
        match &self.log {
            Some(log) => text.push_str(&format!("Its report, in {log}:\n")),
            None => text.push_str("Its report is where its standard error goes.\n"),
        }
        self.report.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        text + &format!("To go on from the last recovery point and what was synced, {}\n", self.mount_again)
    }
}
