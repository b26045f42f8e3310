//! `holdfast grow`: a store made larger, mounted or not.

use crate::args::Grow;
use crate::disks::{self, Given};
use crate::failure::{Failure, Result, exit};
use crate::growth::{self, GrowReply, GrowRequest, Grown};
use crate::mounts::Mount;
use crate::output::{Format, Report, print};
use crate::progress::Progress;
use crate::quoting;
use crate::size;
use crate::stack::{self, Settings, Stack};
use crate::target;
use holdfast_block::Access;
use holdfast_fuse::control;
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct Told {
    store: String,
    #[serde(flatten)]
    grown: Grown,
}

impl Report for Told {
    fn words(&self) -> String {
        let Grown { before_bytes, size_bytes, available_bytes, allocated, backup_outgrown, without_log } = self.grown;
        let (store, size, available) =
            (quoting::name(&self.store), size::show(size_bytes), size::show(available_bytes));
        let has_grown = before_bytes != size_bytes;
        let mut text = match has_grown {
            true => {
                let before = size::show(before_bytes);
                format!("{store} has grown from {before} to {size}; {available} are available for files.\n")
            }
            false => format!("{store} has {size} already, all that is there; say how large it is to be.\n"),
        };
        if without_log {
            text.push_str("NOT PROTECTED: its main disk is without its log. Give it back: holdfast flashlog attach DIR --log LOG\n");
        }
        if has_grown && !allocated {
            text.push_str("Its host has not set all of it aside: if it runs out, the store takes no more changes.\n");
        }
        if backup_outgrown {
            text.push_str(
                "Its backup is of the size before. Make another one soon: holdfast flashlog backup DIR --to OTHER\n",
            );
        }
        text
    }
}

pub(crate) fn run(arguments: &Grow, format: Format) -> Result<u8> {
    let request = GrowRequest { size: arguments.size };
    let path = stack::locate(&arguments.target)?;
    let mount = match target::of_store(&path)? {
        None if path.is_dir() => Some(target::mount(&path)?),
        mount => mount,
    };
    let (store, grown) = {
        let _shown = Progress::unknown("making room");
        match mount {
            Some(mount) => (mount.source.clone(), ask(&mount, &request)?),
            None => (path.clone(), unmounted(&path, arguments.log.as_deref(), &request)?),
        }
    };
    print(format, &Told { store: store.display().to_string(), grown });
    Ok(if grown.without_log { exit::UNWELL } else { exit::OK })
}

fn ask(mount: &Mount, request: &GrowRequest) -> Result<Grown> {
    let json = serde_json::to_vec(request).map_err(stack::says)?;
    let reply = target::ask(mount, "could not be asked to grow", |file| control::grow(file, &json))?;
    let reply = serde_json::from_slice(&reply).map_err(|error| {
        Failure::at(&mount.directory, format!("the mount gave no answer that makes sense: {error}"))
    })?;
    match reply {
        GrowReply::Done(grown) => Ok(grown),
        GrowReply::Refused(failure) => Err(failure),
    }
}

fn unmounted(store: &Path, log: Option<&Path>, request: &GrowRequest) -> Result<Grown> {
    let given = Given { log: log.map(Path::to_path_buf), ..Given::default() };
    let disks = disks::open(store, Access::ReadWrite, &given)?;
    let settings = Settings { read_only: false, ..Settings::to_look() };
    let stack = Stack::open(disks.device(), &settings)?;
    let grown = growth::grow(&stack, &disks, request);
    // It has been opened for changes, so it is left in order also if it has not grown.
    let closed = stack.cache.close().map_err(stack::says).and_then(|()| disks.close());
    let grown = grown?;
    closed.map(|()| grown)
}
