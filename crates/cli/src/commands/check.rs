//! `holdfast check`: everything in a store compared with everything, while it is not mounted.

use crate::args::Check;
use crate::failure::{Failure, Result, exit};
use crate::output::{Format, Report, count, print};
use crate::signals;
use crate::size;
use crate::stack::{self, Settings, Stack};
use holdfast_block::Access;
use holdfast_naming::check::check as check_names;
use holdfast_object::{DomainId, ObjectId, ObjectKey, PAGE_SIZE};
use holdfast_physical::check::{self as physical_check, CheckOptions, Finding};
use serde::Serialize;

/// Objects asked for in one go.
const LISTED: usize = 1024;

/// What a check found.
#[derive(Serialize, Debug)]
struct Checked {
    store: String,
    uuid: String,
    /// Recovery point that was checked.
    epoch: u64,
    /// Whether the store had been closed in order.
    clean: bool,
    blocks: Blocks,
    names: Names,
    /// In all.
    errors: u64,
    /// Of them corrected.
    corrected: u64,
    exit_code: u8,
}

/// The device: labels, trees, both copies, the bitmap, counts.
#[derive(Serialize, Debug)]
struct Blocks {
    used: u64,
    metadata: u64,
    pages: u64,
    /// Pages known to be lost; they read as an error, and are no error of the store.
    lost_pages: u64,
    /// Batches of the intent log, which the next mount replays.
    log_batches: u64,
    /// Something could not be read, so lost space was not looked for.
    incomplete: bool,
    /// The first ones.
    findings: Vec<BlockFinding>,
    found: u64,
    corrected: u64,
}

#[derive(Serialize, Debug)]
struct BlockFinding {
    #[serde(flatten)]
    finding: Finding,
    /// Of the file that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

/// The name space.
#[derive(Serialize, Debug, Default)]
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

impl Report for Checked {
    fn words(&self) -> String {
        let Checked { blocks, names, .. } = self;
        let mut text = String::new();
        for BlockFinding { finding, path } in &blocks.findings {
            let path = path.as_deref().map(|path| format!(", in {path}")).unwrap_or_default();
            text.push_str(&format!("{finding}{path}\n"));
        }
        match blocks.found.saturating_sub(blocks.findings.len() as u64) {
            0 => {}
            more => text.push_str(&format!("and {more} more\n")),
        }
        for finding in &names.findings {
            text.push_str(&format!("{finding}\n"));
        }
        text.push_str(&format!(
            "{}: recovery point {}, {} in use, {} of files read; {} in {}, {}\n",
            self.store,
            self.epoch,
            size::show(blocks.used.saturating_mul(PAGE_SIZE as u64)),
            size::show(blocks.pages.saturating_mul(PAGE_SIZE as u64)),
            count(names.entries, "name", "names"),
            count(names.directories, "directory", "directories"),
            count(names.objects, "object", "objects"),
        ));
        if !self.clean {
            let batches = count(blocks.log_batches, "batch", "batches");
            text.push_str(&format!("not closed in order; the next mount replays {batches} of the intent log\n"));
        }
        if names.orphans > 0 {
            let files = count(names.orphans, "file", "files");
            text.push_str(&format!("{files} without a name, open at the end; deleted at the next mount\n"));
        }
        if blocks.lost_pages > 0 {
            let pages = count(blocks.lost_pages, "page", "pages");
            text.push_str(&format!("{pages} lost earlier; reading them is an error until they are written again\n"));
        }
        if blocks.incomplete || names.incomplete {
            text.push_str("not everything could be read, so not everything could be compared\n");
        }
        text.push_str(&match (self.errors, self.corrected) {
            (0, _) => "no errors\n".to_string(),
            (errors, 0) => format!("{}\n", count(errors, "ERROR", "ERRORS")),
            (errors, corrected) => format!("{}, {corrected} corrected\n", count(errors, "ERROR", "ERRORS")),
        });
        text
    }
}

pub(crate) fn run(arguments: &Check, format: Format) -> Result<u8> {
    cancel_on_signal(format)?;
    let access = if arguments.repair { Access::ReadWrite } else { Access::ReadOnly };
    let device = stack::device(&arguments.store, access)?;
    let options = CheckOptions { repair: arguments.repair, ..CheckOptions::default() };
    let found = physical_check::check(device.clone(), &options).map_err(stack::says)?;
    let (names, paths) = match Stack::open(device, &Settings::to_look()) {
        Ok(stack) => (names(&stack), paths(&stack, &found.findings)),
        Err(failure) => {
            let findings = vec![format!("names could not be checked: {failure}")];
            (Names { incomplete: true, findings, ..Names::default() }, vec![None; found.findings.len()])
        }
    };
    let errors = found.found + names.findings.len() as u64;
    let checked = Checked {
        store: arguments.store.display().to_string(),
        uuid: crate::report::show_uuid(&found.store_uuid),
        epoch: found.epoch,
        clean: found.clean,
        names,
        errors,
        corrected: found.repaired,
        exit_code: exit_code(errors, found.repaired),
        blocks: blocks(found, paths),
    };
    print(format, &checked);
    Ok(checked.exit_code)
}

fn blocks(report: physical_check::Report, paths: Vec<Option<String>>) -> Blocks {
    let findings = report.findings.into_iter().zip(paths);
    Blocks {
        used: report.used_blocks,
        metadata: report.metadata_blocks,
        pages: report.pages,
        lost_pages: report.lost_pages,
        log_batches: report.log_batches,
        incomplete: report.incomplete,
        findings: findings.map(|(finding, path)| BlockFinding { finding, path }).collect(),
        found: report.found,
        corrected: report.repaired,
    }
}

/// Names of the files that findings are about.
fn paths(stack: &Stack, findings: &[Finding]) -> Vec<Option<String>> {
    let object = |finding: &Finding| finding.place.object.filter(|key| key.domain == DomainId::MAIN);
    let path = |key: ObjectKey| String::from_utf8_lossy(&stack.namespace.path_of(key.object)).into_owned();
    findings.iter().map(|finding| object(finding).map(path)).collect()
}

fn names(stack: &Stack) -> Names {
    let mut objects = Vec::new();
    let mut after = ObjectId::NONE;
    let mut findings = Vec::new();
    loop {
        match stack.module.objects(DomainId::MAIN, after, LISTED) {
            Ok(found) => {
                let Some((last, _)) = found.last() else { break };
                after = last.object;
                objects.extend(found.into_iter().map(|(key, attributes)| (key.object, attributes)));
            }
            Err(error) => {
                findings.push(format!("objects beyond {after}: {error}"));
                break;
            }
        }
    }
    let listed = findings.is_empty();
    let report = check_names(&*stack.cache, objects);
    findings.extend(report.findings.iter().map(ToString::to_string));
    Names {
        objects: report.objects,
        directories: report.directories,
        entries: report.entries,
        orphans: report.orphans.len() as u64,
        incomplete: report.incomplete || !listed,
        findings,
    }
}

/// SIGINT and the like end the process with fsck's code for it. A repair writes whole blocks that were good before, so it
/// can end anywhere.
fn cancel_on_signal(format: Format) -> Result<()> {
    signals::block().map_err(|error| Failure::new(format!("cannot block signals: {error}")))?;
    let watch = move || {
        if let Ok(name) = signals::wait() {
            let failure = Failure { code: exit::CHECK_CANCELLED, ..Failure::new(format!("cancelled by {name}")) };
            crate::output::print_failure(format, &failure);
            std::process::exit(failure.code.into());
        }
    };
    let started = std::thread::Builder::new().name("signals".into()).spawn(watch);
    started.map(drop).map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))
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
