//! `holdfast flashlog at`: a set as it was. The server of the set does it, or this command with the devices of a set that is not served.

use super::absolute;
use crate::args::FlashlogAt;
use crate::failure::{Failure, Result};
use crate::flashlog::control::{Server, Target};
use crate::flashlog::past::{Moments, PastServer, Wanted};
use crate::flashlog::sets::explain;
use crate::output::{Format, print};
use crate::{signals, stack};
use holdfast_block::Access;
use holdfast_block::flashlog::{self, Past};
use holdfast_block::nbd::Stop;
use std::path::Path;

pub(super) fn run(arguments: &FlashlogAt, format: Format) -> Result<()> {
    let FlashlogAt { list, moment, backup, log, without_log, socket, control } = arguments;
    let at = moment.at();
    if !list && !without_log && at.is_none() {
        return Err(Failure::usage("which state? --list shows the moments that there are")
            .hint("then: --barrier N, or --time TIME"));
    }
    // For whoever waits for the end; before the first thread.
    signals::block().map_err(|error| Failure::new(format!("cannot block signals: {error}")))?;
    let socket = socket.as_deref().map(absolute).transpose()?;
    if let (Some(backup), Some(log)) = (backup, log) {
        let (backup, log) = (stack::device(backup, Access::ReadOnly)?, stack::device(log, Access::ReadOnly)?);
        let Some(at) = at else {
            print(format, &Moments::of(&flashlog::barriers(backup, log).map_err(explain)?));
            return Ok(());
        };
        return serve(Past::open(backup, log, at).map_err(explain)?, socket.as_deref(), format);
    }
    if let (true, Some(backup)) = (without_log, backup) {
        let past = Past::of_backup(stack::device(backup, Access::ReadOnly)?).map_err(explain)?;
        return serve(past, socket.as_deref(), format);
    }
    let backup = backup.as_deref().map(absolute).transpose()?;
    let devices: Vec<&Path> = backup.as_deref().into_iter().collect();
    let server = Server::find(Target { control: control.as_deref(), devices: &devices })?.ok_or_else(|| {
        Failure::new("no server of a set was found").hint("say which set: --backup DEVICE --log DEVICE")
    })?;
    let Some(wanted) = at.and_then(Wanted::of) else {
        print(format, &server.moments(backup)?);
        return Ok(());
    };
    let served = server.past(backup, wanted, socket)?;
    print(format, &served.report);
    // As long as this is here, it is served.
    std::thread::spawn(move || {
        let _ = signals::wait();
        std::process::exit(0);
    });
    served.wait()
}

/// Until a signal.
fn serve(past: Past, socket: Option<&Path>, format: Format) -> Result<()> {
    let server = PastServer::new(past, socket)?;
    let stop = Stop::new().map_err(|error| Failure::new(error.to_string()))?;
    let on_signal = stop.clone();
    std::thread::spawn(move || {
        let _ = signals::wait();
        on_signal.stop();
    });
    print(format, &server.report);
    server.run(&stop)
}
