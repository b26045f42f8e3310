//! `holdfast check`: everything in a store compared with everything, while it is not mounted.

use crate::args::Check;
use crate::failure::{Failure, Result, exit};
use crate::output::{Format, Report, count, print};
use crate::signals;
use crate::stack::{self, Settings, Stack};
use holdfast_block::Access;
use holdfast_naming::check::check as check_names;
use holdfast_object::{DomainId, ObjectId};
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
    names: Names,
    /// In all.
    errors: u64,
    /// Of them corrected.
    corrected: u64,
    exit_code: u8,
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

impl Checked {
    fn judge(&mut self) {
        self.errors = self.names.findings.len() as u64;
        let left = self.errors > self.corrected;
        let corrected = if self.corrected > 0 { exit::CHECK_CORRECTED } else { exit::OK };
        self.exit_code = corrected | if left { exit::CHECK_UNCORRECTED } else { exit::OK };
    }
}

impl Report for Checked {
    fn words(&self) -> String {
        let mut text = String::new();
        for finding in &self.names.findings {
            text.push_str(&format!("names: {finding}\n"));
        }
        let names = &self.names;
        text.push_str(&format!(
            "{}: recovery point {}, {} in {}, {}\n",
            self.store,
            self.epoch,
            count(names.entries, "name", "names"),
            count(names.directories, "directory", "directories"),
            count(names.objects, "object", "objects"),
        ));
        if names.orphans > 0 {
            let orphans = count(names.orphans, "file", "files");
            text.push_str(&format!(
                "{orphans} without a name, open when the store was last in use; deleted at the next mount\n"
            ));
        }
        if !self.clean {
            text.push_str("not closed in order; the next mount replays the intent log\n");
        }
        text.push_str(&match (self.errors, self.corrected) {
            (0, 0) => "no errors\n".to_string(),
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
    let stack = Stack::open(device, &Settings::to_look())?;
    let mut checked = Checked {
        store: arguments.store.display().to_string(),
        uuid: crate::report::show_uuid(&stack.module.store_uuid()),
        epoch: stack.module.epoch(),
        clean: stack.module.is_clean(),
        names: names(&stack),
        errors: 0,
        corrected: 0,
        exit_code: 0,
    };
    checked.judge();
    print(format, &checked);
    Ok(checked.exit_code)
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
