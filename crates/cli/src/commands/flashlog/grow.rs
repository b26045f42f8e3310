//! `holdfast flashlog grow`: by the server of the set.

use crate::args::FlashlogGrow;
use crate::failure::{Failure, Result, exit};
use crate::flashlog::control::{Server, Target};
use crate::flashlog::sets;
use crate::output::{Format, print};
use crate::progress::Progress;
use std::path::Path;

pub(super) fn run(arguments: &FlashlogGrow, format: Format) -> Result<u8> {
    let FlashlogGrow { size, main, control } = arguments;
    // One that was enlarged by hand has no label at its end: then it is for the only server that there is.
    let has_label = |path: &&Path| sets::look(path).is_ok_and(|label| label.is_some());
    let devices: Vec<&Path> = main.iter().map(|path| &**path).filter(has_label).collect();
    let server = Server::find(Target { control: control.as_deref(), devices: &devices })?.ok_or_else(|| {
        Failure::new("no server of a set was found")
            .hint("holdfast flashlog serve starts one; a store on a set grows by: holdfast grow STORE")
    })?;
    let _shown = Progress::unknown("making room");
    let report = server.grow(*size)?;
    print(format, &report);
    Ok(if report.is_protected() { exit::OK } else { exit::UNWELL })
}
