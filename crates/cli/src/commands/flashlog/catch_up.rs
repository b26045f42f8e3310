//! `holdfast flashlog catch-up`: by the server or mount of the set, or by opening the set here.

use super::attach::{devices_of, server_of};
use crate::args::FlashlogCatchUp;
use crate::failure::{Failure, Result, exit};
use crate::flashlog::catch_up::CatchUpReport;
use crate::flashlog::sets;
use crate::output::{Format, print};
use crate::progress::Progress;
use crate::stack;
use holdfast_block::flashlog::{Mode, Options};

pub(super) fn run(arguments: &FlashlogCatchUp, format: Format) -> Result<u8> {
    let report = catch_up(arguments)?;
    print(format, &report);
    Ok(if report.is_complete() { exit::OK } else { exit::UNWELL })
}

fn catch_up(arguments: &FlashlogCatchUp) -> Result<CatchUpReport> {
    let which = &arguments.which;
    let server = server_of(which)?;
    let _shown = Progress::unknown("bringing main up to date");
    if let Some(server) = server {
        return match arguments.drop_later {
            true => Err(Failure::usage("the set is in use, so that nothing of its log is to be given up")),
            false => server.catch_up(),
        };
    }
    let (main, log) = devices_of(which)?;
    // The next opening is as the last one was.
    let (mode, drop_later) = (sets::look_for_label(main)?.mode, arguments.drop_later);
    let options = Options { mode, drop_later, ..Options::default() };
    let (set, opened) = sets::open(main, log, &options)?;
    let behind_blocks = if options.mode == Mode::Asynchronous { set.behind_blocks() } else { opened.blocks };
    set.close().map_err(stack::says)?;
    let report = CatchUpReport::of(&set, behind_blocks);
    Ok(if opened.is_end_unread { report.begun_anew(options.mode) } else { report })
}
