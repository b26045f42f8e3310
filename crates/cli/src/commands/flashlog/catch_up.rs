//! `holdfast flashlog catch-up`: by the server or mount of the set, or by opening the set here.

use super::attach::of_mount;
use crate::args::FlashlogCatchUp;
use crate::failure::{Failure, Result};
use crate::flashlog::catch_up::CatchUpReport;
use crate::flashlog::control::{Server, Target};
use crate::flashlog::sets;
use crate::output::{Format, print};
use crate::progress::Progress;
use crate::stack;
use holdfast_block::flashlog::{Mode, Options};
use std::path::Path;

pub(super) fn run(arguments: &FlashlogCatchUp, format: Format) -> Result<()> {
    print(format, &catch_up(arguments)?);
    Ok(())
}

fn catch_up(arguments: &FlashlogCatchUp) -> Result<CatchUpReport> {
    let FlashlogCatchUp { target, main, log, control } = arguments;
    let server = match target {
        Some(target) => Some(of_mount(target)?),
        None => {
            let devices: Vec<&Path> = [main, log].into_iter().flatten().map(|path| &**path).collect();
            Server::find(Target { control: control.as_deref(), devices: &devices })?
        }
    };
    let _shown = Progress::unknown("bringing main up to date");
    if let Some(server) = server {
        return server.catch_up();
    }
    let (Some(main), Some(log)) = (main, log) else {
        return Err(Failure::new("no server of a set was found").hint("say which set: --main DEVICE --log DEVICE"));
    };
    // The next opening is as the last one was.
    let options = Options { mode: sets::look_for_label(main)?.mode, ..Options::default() };
    let (set, opened) = sets::open(main, log, &options)?;
    let behind_blocks = if options.mode == Mode::Asynchronous { set.behind_blocks() } else { opened.blocks };
    set.settle().map_err(stack::says)?;
    Ok(CatchUpReport::of(&set, behind_blocks))
}
