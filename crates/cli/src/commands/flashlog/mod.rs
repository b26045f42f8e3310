//! `holdfast flashlog`: a disk, a log of what is written to it, and a backup.

mod model;

use crate::args::FlashlogAction;
use crate::failure::Result;
use crate::output::Format;

pub(crate) fn run(action: &FlashlogAction, format: Format) -> Result<()> {
    match action {
        FlashlogAction::Model(arguments) => model::run(arguments, format),
    }
}
