//! `holdfast flashlog status`: how sets and their devices are doing. The exit code tells whether all is well.

use crate::args::FlashlogStatus;
use crate::disks;
use crate::failure::{Failure, Result, exit};
use crate::flashlog::control::{self, Server, Target};
use crate::flashlog::report::{DeviceReport, SetReport};
use crate::flashlog::sets;
use crate::output::{Format, Report, print, print_text};
use crate::quoting;
use holdfast_block::flashlog::Role;
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct All {
    /// Those that are served.
    sets: Vec<SetReport>,
    /// Those that were asked for.
    devices: Vec<DeviceReport>,
    /// Sockets of servers and mounts that have ended without taking leave: how these sets are doing nobody knows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ended: Vec<String>,
}

impl Report for All {
    fn words(&self) -> String {
        let ended = self.ended.iter().map(|socket| {
            let socket = quoting::name(socket);
            format!(
                "NOT KNOWN: who served a set at {socket} has ended without taking leave.\n\
                 Start it again, or look at its devices: holdfast flashlog status MAIN LOG\n"
            )
        });
        let devices = self.devices.iter().map(Report::words);
        let all: Vec<String> = devices.chain(self.sets.iter().map(Report::words)).chain(ended).collect();
        if all.is_empty() { "No set is served.\n".into() } else { all.join("\n") }
    }
}

pub(super) fn run(arguments: &FlashlogStatus, format: Format) -> Result<u8> {
    // Of those that can be looked at all is told, whatever becomes of the others.
    let (mut devices, mut logs, mut mains, mut failed) = (Vec::new(), Vec::new(), Vec::new(), None);
    for path in &arguments.devices {
        match sets::look_for_label(path) {
            Ok(label) => {
                devices.push(DeviceReport::new(&path.display().to_string(), &label));
                let at = devices.len() - 1;
                match label.role {
                    Role::Log => logs.push((at, path)),
                    Role::Main => mains.push((at, (path, label))),
                    Role::Backup => {}
                }
            }
            Err(failure) if arguments.export || arguments.devices.len() == 1 => return Err(failure),
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    if arguments.export {
        let [device] = &devices[..] else { return Err(Failure::usage("--export is about one device")) };
        print_text(&device.exported());
        return Ok(exit::OK);
    }
    let mut found: Vec<SetReport> = match &arguments.control {
        Some(path) => {
            let target = Target { control: Some(path), devices: &[] };
            Server::find(target)?.map(Server::status).transpose()?.into_iter().collect()
        }
        None if devices.is_empty() => control::all()?,
        None => Vec::new(),
    };
    for path in &arguments.devices {
        let devices: &[&Path] = &[path];
        if let Some(server) = Server::find(Target { control: None, devices })? {
            let report = server.status()?;
            if !found.iter().any(|other| other.set == report.set) {
                found.push(report);
            }
        }
    }
    let given: Vec<String> = logs.iter().map(|(at, _)| devices[*at].uuid.clone()).collect();
    for (at, (path, label)) in mains {
        let device = &mut devices[at];
        let is_served = found.iter().any(|set| set.set == device.set);
        if device.problem.is_none()
            && !is_served
            && !given.contains(&label.log.to_string())
            && !disks::has_log(path, &label)
        {
            device.problem = Some(format!("its log {} is not there, which may have what was written last", label.log));
        }
    }
    for (at, path) in logs {
        let device = &mut devices[at];
        if found.iter().any(|set| set.set == device.set) {
            // Who serves it knows better.
            device.problem = None;
        } else if device.problem.is_none() {
            device.problem = sets::damaged_pages(path);
        }
    }
    let mut ended = if arguments.control.is_none() { control::left_behind() } else { Vec::new() };
    let is_of = |path: &PathBuf, set: &str| path.to_string_lossy().contains(set);
    // One that serves at another socket now.
    ended.retain(|path| !found.iter().any(|set| is_of(path, &set.set)));
    ended.retain(|path| devices.is_empty() || devices.iter().any(|device| is_of(path, &device.set)));
    let is_well = ended.is_empty()
        && found.iter().all(|set| set.protected)
        && devices.iter().all(|device| device.problem.is_none());
    let ended = ended.iter().map(|path| path.display().to_string()).collect();
    print(format, &All { sets: found, devices, ended });
    failed.map_or(Ok(()), Err)?;
    Ok(if is_well { exit::OK } else { exit::UNWELL })
}
