//! `holdfast flashlog serve`: a set for NBD clients.

use super::{absolute, distinct};
use crate::args::{FlashlogMode, FlashlogServe, LogLevel};
use crate::disks::index_blocks;
use crate::failure::{Failure, Result};
use crate::flashlog::apart;
use crate::flashlog::report::SetReport;
use crate::flashlog::server::{self, Ready, Serving};
use crate::logging;
use crate::mounts::plain;
use crate::output::{Format, Report, print};
use crate::{flashlog::sets, quoting, size};
use holdfast_block::flashlog::{CatchUp, Options};
use holdfast_block::nbd::Listener;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct Begun {
    #[serde(flatten)]
    set: SetReport,
    /// Socket for commands.
    control: String,
    /// What the log had and main may not have had.
    replayed_bytes: u64,
    /// What the devices have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices_warning: Option<String>,
}

impl Report for Begun {
    fn words(&self) -> String {
        let (size, mode) = (size::show(self.set.size_bytes), &self.set.mode);
        let mut text = format!("Serving the Flashlog {} ({size}, {mode}).\n", self.set.set);
        if let Some(problem) = &self.set.problem {
            text.push_str(&format!("NOT PROTECTED: {problem}.\n"));
        }
        text.push_str(&apart::words(self.devices_warning.as_deref()));
        if self.replayed_bytes > 0 {
            text.push_str(&format!("{} of the log may not have been on main.\n", size::show(self.replayed_bytes)));
        }
        for uri in &self.set.uris {
            text.push_str(&format!("Clients: {uri}\n"));
        }
        text.push_str(&format!("Commands: {}\n", quoting::name(&self.control)));
        text
    }
}

pub(super) fn run(arguments: &FlashlogServe, format: Format, level: Option<LogLevel>) -> Result<()> {
    logging::start(Some(&arguments.main), level);
    distinct([Some(&arguments.main), arguments.log.as_ref()].into_iter().flatten().map(PathBuf::as_path))?;
    // Before anything else opens files.
    let inherited = Listener::inherited()
        .map_err(|error| Failure::new(format!("the sockets of the service manager: {}", plain(&error))))?;
    let all = |paths: &[PathBuf]| paths.iter().map(|path| absolute(path)).collect::<Result<Vec<_>>>();
    let one = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
    let catch_up = CatchUp { idle_after: arguments.idle_after, age_most: arguments.age_most };
    let is_for_async = catch_up != CatchUp::default() || arguments.index_memory.is_some();
    if is_for_async && arguments.mode == FlashlogMode::Sync {
        return Err(Failure::usage(
            "--idle-after, --age-most and --index-memory are for --mode async: main has everything otherwise",
        ));
    }
    let serving = Serving {
        main: absolute(&arguments.main)?,
        log: one(&arguments.log)?,
        accept_loss: arguments.accept_loss,
        backup: one(&arguments.backup)?,
        options: Options {
            mode: arguments.mode.mode(),
            catch_up,
            index_blocks: index_blocks(arguments.index_memory),
            ..Options::default()
        },
        policy: arguments.on_failure.clone(),
        read_only: arguments.read_only,
        sockets: all(&arguments.socket)?,
        listen: arguments.listen.clone(),
        #[cfg(feature = "ublk")]
        ublk: arguments.ublk,
        tls: one(&arguments.tls_certificates)?.map(|directory| (directory, arguments.tls_verify_peer)),
        name: arguments.name.clone(),
        connections: arguments.connections.into(),
        control: one(&arguments.control)?,
    };
    let devices_warning = apart::warning(&serving.main, serving.log.as_deref(), serving.backup.as_deref());
    server::serve(serving, inherited, |Ready { report, control, replayed_blocks }| {
        let control = control.display().to_string();
        let replayed_bytes = sets::bytes(*replayed_blocks);
        print(format, &Begun { set: report.clone(), control, replayed_bytes, devices_warning });
    })
}
