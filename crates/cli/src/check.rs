//! What a check of a store finds: everything compared with everything, of the last recovery point of a store that is not mounted, or of one
//! that a mount keeps while it goes on ([`holdfast_physical::Frozen`]).

use crate::advice::Found;
use crate::failure::Result;
use crate::failure::exit;
use crate::given_up::GivenUp;
use crate::output::{self, Report, count};
use crate::quoting;
use crate::scrub::{CHECKSUM_REMEDY, without_checksum};
use crate::size;
use crate::stack::{self, Settings, Stack};
use holdfast_block::Device;
use holdfast_naming::check::{Finding as NamesFinding, check_watched as check_names};
use holdfast_object::{DomainId, Error, Kind, ObjectCache, ObjectId, ObjectKey, PAGE_SIZE};
use holdfast_physical::check::{self as physical_check, CheckOptions, Finding, FindingKind};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Objects asked for in one go.
const LISTED: usize = 1024;
/// Findings about names that are shown in words where what could not be read explains many.
const NAMES_NAMED: usize = 20;
/// Files without checksums that are named.
const UNVERIFIED_NAMED: usize = 100;

/// What is checked.
pub(crate) struct Subject<'a> {
    pub(crate) device: Arc<dyn Device>,
    /// For what is said of it.
    pub(crate) store: &'a Path,
    /// Where it is mounted, if it is.
    pub(crate) mounted: Option<&'a Path>,
    /// Errors are corrected.
    pub(crate) repair: bool,
    /// Gives what earlier mounts gave up, of a store that is open.
    pub(crate) given_up: &'a dyn Fn(&Stack) -> Option<GivenUp>,
}

/// What a check is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Stage {
    /// In bytes.
    Blocks,
    /// In objects.
    Names,
}

/// What is checked, so that two who speak of a check know whether it is the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Of the store.
    pub(crate) uuid: String,
    /// The recovery point.
    pub(crate) epoch: u64,
}

/// Is told how far a check is, and of how much.
pub(crate) type Watch<'a> = &'a mut dyn FnMut(Stage, u64, u64);

/// What a check found.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Checked {
    store: String,
    /// Where it is mounted, if it is: what is newer than the recovery point was not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mounted: Option<PathBuf>,
    uuid: String,
    /// Recovery point that was checked.
    epoch: u64,
    /// Whether the store had been closed in order.
    clean: bool,
    blocks: Blocks,
    names: Names,
    /// What earlier mounts gave up: no error of the store's, which has what was there before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given_up: Option<GivenUp>,
    /// In all.
    errors: u64,
    /// Of them corrected.
    corrected: u64,
    /// What to do about what is left.
    advice: Vec<String>,
    pub(crate) exit_code: u8,
}

/// The device: labels, trees, both copies, the bitmap, counts.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
struct Blocks {
    used: u64,
    metadata: u64,
    pages: u64,
    /// Pages known to be lost; they read as an error, and are no error of the store.
    lost_pages: u64,
    /// Blocks that were read and could not be verified.
    #[serde(default)]
    no_checksum: NoChecksum,
    /// Batches of the intent log, which the next mount replays.
    log_batches: u64,
    /// What a power cut leaves at the end of the intent log, or a disk that has lost a write; no errors.
    remarks: Vec<BlockFinding>,
    /// Something could not be read, so lost space was not looked for.
    incomplete: bool,
    /// Blocks that a snapshot may have where it cannot be read: they stay in use until it is deleted.
    #[serde(default)]
    withheld: u64,
    /// The first ones.
    findings: Vec<BlockFinding>,
    found: u64,
    corrected: u64,
    /// Of what was found, blocks without a good copy.
    unreadable: u64,
}

/// Blocks of files that were written in mode `none`: no errors.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug, Default)]
struct NoChecksum {
    blocks: u64,
    bytes: u64,
    files: u64,
    /// The first ones.
    named: Vec<Unverified>,
}

/// A file with such blocks, shared ones included.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
struct Unverified {
    path: String,
    bytes: u64,
}

impl NoChecksum {
    fn of(found: &physical_check::NoChecksum, stack: Option<&Stack>) -> NoChecksum {
        let bytes = |blocks: u64| blocks.saturating_mul(PAGE_SIZE as u64);
        let path = |key: &ObjectKey| {
            let stack = stack.filter(|_| key.domain == DomainId::MAIN)?;
            Some(String::from_utf8_lossy(&stack.namespace.path_of(key.object)).into_owned())
        };
        let named = found.first.iter().take(UNVERIFIED_NAMED);
        let named = named.filter_map(|(key, pages)| Some(Unverified { path: path(key)?, bytes: bytes(*pages) }));
        NoChecksum { blocks: found.blocks, bytes: bytes(found.blocks), files: found.files, named: named.collect() }
    }

    /// What could not be verified, behind what is said of the rest.
    fn exception(&self) -> String {
        match self.blocks {
            0 => String::new(),
            blocks => {
                format!(
                    "; {}, in {}, could NOT be verified",
                    without_checksum(blocks),
                    count(self.files, "file", "files")
                )
            }
        }
    }

    fn words(&self) -> String {
        if self.blocks == 0 {
            return String::new();
        }
        let mut text = String::from("not verified, as it has no checksum:\n");
        for Unverified { path, bytes } in &self.named {
            text.push_str(&format!("  {}: {}\n", quoting::name(path), size::show(*bytes)));
        }
        match self.files.saturating_sub(self.named.len() as u64) {
            0 => {}
            more => text.push_str(&format!("  and {}\n", count(more, "more file", "more files"))),
        }
        text + &format!("  {CHECKSUM_REMEDY}\n")
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
struct BlockFinding {
    #[serde(flatten)]
    finding: Finding,
    #[serde(flatten)]
    damage: Option<Damage>,
}

/// What the names were found to be, and whether something is wrong with them that no bad block explains.
type NamesFound = (Names, bool);

/// What a finding means for a file.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
struct Damage {
    path: String,
    /// What it is, if that can be read.
    #[serde(skip)]
    kind: Option<Kind>,
    /// The bytes of the file that are in the bad block, or behind it, if it is about some.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_byte: Option<u64>,
}

/// The name space.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug, Default)]
struct Names {
    objects: u64,
    directories: u64,
    entries: u64,
    /// Objects without a name; the next mount deletes them.
    orphans: u64,
    /// A directory could not be read, so links and connections were not compared.
    incomplete: bool,
    findings: Vec<String>,
}

/// What fsck(8) calls it.
fn exit_code(errors: u64, corrected: u64) -> u8 {
    let some = if corrected > 0 { exit::CHECK_CORRECTED } else { exit::OK };
    some | if errors > corrected { exit::CHECK_UNCORRECTED } else { exit::OK }
}

impl std::fmt::Display for BlockFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BlockFinding { finding, damage } = self;
        write!(f, "{}", quoting::line(&finding.to_string()))?;
        let Some(Damage { path, first_byte, last_byte, .. }) = damage else { return Ok(()) };
        write!(f, ", in {}", quoting::name(path))?;
        match (first_byte, last_byte) {
            (Some(first), Some(last)) => write!(f, ", bytes {first} to {last}"),
            _ => Ok(()),
        }
    }
}

impl Checked {
    fn point(&self) -> Point {
        Point { uuid: self.uuid.clone(), epoch: self.epoch }
    }

    /// Whether something may be said to be wrong because the other half of it is in what cannot be read.
    fn follows(&self, finding: &Finding) -> bool {
        let has_other_half = {
            use FindingKind::{Leaked, Maps, Snapshot, Unheld, Unlisted};
            matches!(finding.kind, Maps | Leaked | Snapshot | Unheld | Unlisted)
        };
        self.blocks.incomplete && has_other_half && !finding.repaired
    }

    /// What became of what was found, in the words of a scrub; of what is corrected and no bad block, as what is free, in others.
    fn sums(&self) -> String {
        let is_other = |it: &&BlockFinding| it.finding.repaired && !it.finding.is_about_bytes();
        let entries = self.blocks.findings.iter().filter(is_other).count() as u64;
        let blocks = self.corrected.saturating_sub(entries);
        let lost = self.blocks.unreadable.saturating_add(self.blocks.lost_pages);
        let others = self.errors.saturating_sub(self.corrected).saturating_sub(lost);
        let sums = [
            (blocks, count(blocks, "block", "blocks") + " repaired"),
            (entries, count(entries, "other error", "other errors") + " corrected"),
            (lost, count(lost, "block", "blocks") + " LOST"),
            (others, count(others, "other error", "other errors") + " NOT corrected"),
        ];
        let sums: Vec<_> = sums.into_iter().filter_map(|(number, sum)| (number > 0).then_some(sum)).collect();
        if sums.is_empty() { String::new() } else { sums.join("; ") + "\n" }
    }
}

/// Findings that follow from others, in one line: how many for each reason.
fn in_sums(findings: &[&BlockFinding]) -> String {
    let mut sums: Vec<(String, u64, &BlockFinding)> = Vec::new();
    for found in findings {
        let reason = found.finding.what.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        match sums.iter_mut().find(|(known, ..)| known == reason) {
            Some((_, count, _)) => *count += 1,
            None => sums.push((reason.to_string(), 1, found)),
        }
    }
    let sums: Vec<_> = sums
        .iter()
        .map(|(reason, count, first)| quoting::line(&format!("{count} × {reason}, first {}", first.finding.place)))
        .collect();
    match sums.is_empty() {
        true => String::new(),
        false => format!("following from what could not be read (each: --json): {}\n", sums.join("; ")),
    }
}

impl Report for Checked {
    fn words(&self) -> String {
        let Checked { blocks, names, .. } = self;
        let mut text = String::new();
        let (following, told): (Vec<_>, Vec<_>) = blocks.findings.iter().partition(|it| self.follows(&it.finding));
        for finding in told {
            text.push_str(&format!("{finding}\n"));
        }
        text.push_str(&in_sums(&following));
        match blocks.found.saturating_sub(blocks.findings.len() as u64) {
            0 => {}
            more => text.push_str(&format!("and {more} more, in the sums only\n")),
        }
        let named = if blocks.incomplete { NAMES_NAMED } else { usize::MAX };
        for finding in names.findings.iter().take(named) {
            text.push_str(&format!("{}\n", quoting::line(finding)));
        }
        match names.findings.len().saturating_sub(named) {
            0 => {}
            more => text.push_str(&format!("and {more} more about names, which --json has\n")),
        }
        // An answer of a mount has room for so many only.
        match self.errors.saturating_sub(blocks.found).saturating_sub(names.findings.len() as u64) {
            0 => {}
            more => text.push_str(&format!("and {more} more about names, in the sums only\n")),
        }
        text.push_str(&format!(
            "{}: recovery point {}, {} in use, {} of files read; {} in {}, {}\n",
            quoting::name(&self.store),
            self.epoch,
            size::show(blocks.used.saturating_mul(PAGE_SIZE as u64)),
            size::show(blocks.pages.saturating_mul(PAGE_SIZE as u64)),
            count(names.entries, "name", "names"),
            count(names.directories, "directory", "directories"),
            count(names.objects, "object", "objects"),
        ));
        if let Some(directory) = &self.mounted {
            let directory = quoting::name(directory.display().to_string());
            text.push_str(&format!("mounted on {directory}; what has changed since was not looked at\n"));
        } else if !self.clean {
            let batches = count(blocks.log_batches, "batch", "batches");
            text.push_str(&format!("not closed in order; the next mount replays {batches} of the intent log\n"));
        }
        for remark in &blocks.remarks {
            text.push_str(&format!("no error: {remark}\n"));
        }
        text.push_str(&blocks.no_checksum.words());
        if names.orphans > 0 {
            let files = count(names.orphans, "file", "files");
            text.push_str(&match self.mounted {
                Some(_) => format!("{files} without a name, open or being deleted\n"),
                None => format!("{files} without a name, open at the end; deleted at the next mount\n"),
            });
        }
        if let Some(given_up) = &self.given_up {
            text.push_str(&format!("GIVEN UP: {}\n", given_up.line()));
            given_up.lines().for_each(|line| text.push_str(&format!("  {line}\n")));
        }
        if blocks.incomplete || names.incomplete {
            text.push_str("not everything could be read, so not everything could be compared\n");
        }
        if blocks.withheld > 0 {
            let (blocks, bytes) = (
                count(blocks.withheld, "block", "blocks"),
                size::show(blocks.withheld.saturating_mul(PAGE_SIZE as u64)),
            );
            text.push_str(&format!(
                "{blocks} ({bytes}) can be reached by nothing, and stay in use, as a snapshot may have them where it cannot be read\n"
            ));
        }
        text.push_str(&self.sums());
        text.push_str(&match (self.errors, self.corrected) {
            (0, _) if blocks.no_checksum.blocks > 0 => "no errors in what could be verified".to_string(),
            (0, _) => "no errors".to_string(),
            (errors, 0) => count(errors, "ERROR", "ERRORS"),
            (errors, corrected) => format!("{}, {corrected} corrected", count(errors, "ERROR", "ERRORS")),
        });
        text.push_str(&format!("{}\n", blocks.no_checksum.exception()));
        for advice in &self.advice {
            text.push_str(&format!("  {advice}\n"));
        }
        text
    }
}

/// Compares everything with everything.
///
/// # Errors
/// The store cannot be made out, or a repair failed.
pub(crate) fn examine(subject: Subject<'_>, watch: Watch<'_>) -> Result<Checked> {
    let Subject { device, store, mounted, repair, given_up } = subject;
    let options = CheckOptions { repair, ends: true, ..CheckOptions::default() };
    let mut found = check_blocks(&device, mounted, &options, watch)?;
    // Nothing is wrong with the store, but something is with a file.
    found.found += found.lost_pages;
    found.findings.extend(found.lost.drain(..).map(|(place, side)| Finding {
        kind: FindingKind::Lost,
        place,
        what: format!("lost, as its bytes went bad {side}: an error when it is read, until it is written again"),
        repaired: false,
    }));
    let unverified = |stack: Option<&Stack>| NoChecksum::of(&found.no_checksum, stack);
    let ((names, names_are_wrong), damage, remarks, given_up, no_checksum) =
        match Stack::open(device.clone(), &Settings::to_look()) {
            Ok(stack) => {
                let given_up_before = given_up(&stack);
                let has_log = found.log_batches > 0 && (is_about_a_file(&found) || given_up_before.is_some());
                let replayed = if has_log { Stack::replayed(device.clone()) } else { None };
                let named = replayed.as_ref().unwrap_or(&stack);
                let remarks = damage(named, &found.remarks);
                let given_up = if has_log { given_up(named) } else { given_up_before };
                let no_checksum = unverified(Some(named));
                (names(&stack, &found, watch), damage(named, &found.findings), remarks, given_up, no_checksum)
            }
            Err(failure) => {
                let findings = vec![format!("names could not be checked: {failure}")];
                let names = Names { incomplete: true, findings, ..Names::default() };
                ((names, true), Vec::new(), Vec::new(), None, unverified(None))
            }
        };
    let errors = found.found + names.findings.len() as u64;
    let kinds = damage.iter().map(|damage| damage.as_ref().and_then(|damage| damage.kind));
    let findings: Vec<_> = found.findings.iter().zip(kinds.chain(std::iter::repeat(None))).collect();
    let physical_check::Report { bitmap, withheld_blocks, .. } = found;
    let advice =
        Found { store, mounted, findings: &findings, bitmap, withheld_blocks, names_are_wrong, repair }.advice();
    Ok(Checked {
        store: store.display().to_string(),
        mounted: mounted.map(Path::to_path_buf),
        uuid: crate::report::show_uuid(&found.store_uuid),
        epoch: found.epoch,
        clean: found.clean,
        names,
        given_up,
        errors,
        corrected: found.repaired,
        advice,
        exit_code: exit_code(errors, found.repaired),
        blocks: blocks(found, damage, remarks, no_checksum),
    })
}

/// The first look, at all blocks.
fn check_blocks(
    device: &Arc<dyn Device>,
    mounted: Option<&Path>,
    options: &CheckOptions,
    watch: Watch<'_>,
) -> Result<physical_check::Report> {
    let report = physical_check::check_watched(device.clone(), options, &mut |at| {
        let bytes = |blocks: u64| blocks.saturating_mul(PAGE_SIZE as u64);
        watch(Stage::Blocks, bytes(at.blocks), bytes(at.blocks_total));
    });
    report.map_err(|error| match (&error, mounted) {
        (Error::Corrupt(_), Some(_)) => stack::says(error).hint(
            "copy what is needed now, from this mount, as what is in memory may be all that leads there; then make a new store",
        ),
        // One before it.
        (Error::Corrupt(_), None) if Stack::open(device.clone(), &Settings::to_look()).is_ok() => stack::says(error).hint(
            "another recovery point can be read: mount it, which takes no changes then, copy what is needed, make a new store",
        ),
        _ => stack::says(error),
    })
}

/// Whether something that is told of a file depends on what the intent log has.
fn is_about_a_file(found: &physical_check::Report) -> bool {
    found.findings.iter().chain(&found.remarks).any(|finding| finding.place.object.is_some())
}

fn blocks(
    report: physical_check::Report,
    damage: Vec<Option<Damage>>,
    remarks: Vec<Option<Damage>>,
    no_checksum: NoChecksum,
) -> Blocks {
    let with = |findings: Vec<Finding>, damage: Vec<Option<Damage>>| -> Vec<BlockFinding> {
        let damage = damage.into_iter().chain(std::iter::repeat_with(|| None));
        findings.into_iter().zip(damage).map(|(finding, damage)| BlockFinding { finding, damage }).collect()
    };
    Blocks {
        used: report.used_blocks,
        metadata: report.metadata_blocks,
        pages: report.pages,
        lost_pages: report.lost_pages,
        no_checksum,
        log_batches: report.log_batches,
        incomplete: report.incomplete,
        withheld: report.withheld_blocks,
        remarks: with(report.remarks, remarks),
        findings: with(report.findings, damage),
        found: report.found,
        corrected: report.repaired,
        unreadable: report.unreadable,
    }
}

/// What findings mean for files.
fn damage(stack: &Stack, findings: &[Finding]) -> Vec<Option<Damage>> {
    let of = |finding: &Finding| {
        let ObjectKey { object, .. } = finding.place.object.filter(|key| key.domain == DomainId::MAIN)?;
        let path = String::from_utf8_lossy(&stack.namespace.path_of(object)).into_owned();
        // Behind the end nothing can be read anyhow.
        let attributes = stack.cache.attributes(object).ok();
        let (size, kind) = attributes.map_or((u64::MAX, None), |attributes| (attributes.size, Some(attributes.kind)));
        let bytes = finding.pages().and_then(|(_, pages)| {
            let byte = |page: u64| page.saturating_mul(PAGE_SIZE as u64).min(size);
            let (first, end) = (byte(pages.start), byte(pages.end));
            (first < end).then(|| (first, end - 1))
        });
        Some(Damage { path, kind, first_byte: bytes.map(|bytes| bytes.0), last_byte: bytes.map(|bytes| bytes.1) })
    };
    findings.iter().map(of).collect()
}

fn names(stack: &Stack, found: &physical_check::Report, watch: Watch<'_>) -> NamesFound {
    let mut after = ObjectId::NONE;
    let mut findings = Vec::new();
    let mut more = || match stack.module.objects(DomainId::MAIN, after, LISTED) {
        Ok(found) => {
            after = found.last()?.0.object;
            Some(found)
        }
        Err(error) => {
            findings.push(format!("objects beyond {after}: {error}"));
            None
        }
    };
    let objects = std::iter::from_fn(&mut more).flatten().map(|(key, attributes)| (key.object, attributes));
    let report = check_names(&*stack.cache, objects, &mut |reached| watch(Stage::Names, reached, found.objects));
    let listed = findings.is_empty();
    let is_explained = |wrong: &NamesFinding| match wrong {
        NamesFinding::Unreadable { object, .. } => {
            let key = ObjectKey { domain: DomainId::MAIN, object: *object };
            let is_bad =
                |finding: &Finding| finding.kind == FindingKind::Unreadable && finding.place.object == Some(key);
            found.findings.iter().any(is_bad)
        }
        _ => false,
    };
    let are_wrong = !listed || !report.findings.iter().all(is_explained);
    findings.extend(report.findings.iter().map(ToString::to_string));
    let names = Names {
        objects: report.objects,
        directories: report.directories,
        entries: report.entries,
        orphans: report.orphans.len() as u64,
        incomplete: report.incomplete || !listed,
        findings,
    };
    (names, are_wrong)
}

/// What a mount is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckRequest {
    /// Begins a check of what there is now; one under way goes on.
    Begin,
    Status,
    Cancel,
}

/// What it answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckReply {
    Running {
        point: Point,
        stage: Stage,
        at: u64,
        total: u64,
    },
    Done(Box<Checked>),
    /// There is nothing to tell of, or it came to nothing.
    Refused(String),
}

impl CheckReply {
    /// What the check is about that it tells of, if it tells of one.
    pub(crate) fn point(&self) -> Option<Point> {
        match self {
            CheckReply::Running { point, .. } => Some(point.clone()),
            CheckReply::Done(checked) => Some(checked.point()),
            CheckReply::Refused(_) => None,
        }
    }

    /// As JSON of at most so many bytes: the last findings are left out if it would be longer.
    pub(crate) fn to_json(&self, bytes_max: usize) -> Vec<u8> {
        output::json_within(self, bytes_max, |reply| {
            if let CheckReply::Done(checked) = reply {
                let Checked { blocks, names, given_up, .. } = &mut **checked;
                blocks.findings.truncate(blocks.findings.len() / 2);
                blocks.remarks.truncate(blocks.remarks.len() / 2);
                blocks.no_checksum.named.truncate(blocks.no_checksum.named.len() / 2);
                names.findings.truncate(names.findings.len() / 2);
                given_up.as_mut().map(GivenUp::shorten);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_fsck() {
        assert_eq!(exit_code(0, 0), 0);
        assert_eq!(exit_code(3, 3), 1);
        assert_eq!(exit_code(3, 0), 4);
        assert_eq!(exit_code(3, 1), 5);
    }
}
