//! Opening the devices of a set, and what to say when that fails.

use super::past::{Moment, shown};
use super::report::log_damage;
use crate::failure::{Failure, Result};
use crate::stack;
use holdfast_block::flashlog::{
    self, At, Barrier, Error, Flashlog, Inspected, Mode, Opened, Options, Role, Uuid, log_blocks_least,
};
use holdfast_block::{Access, Device, FileDevice};
use std::path::Path;
use std::sync::Arc;

/// A random name.
pub(crate) fn random_uuid() -> Result<Uuid> {
    stack::uuid().map(Uuid)
}

/// Opens main and log for exclusive use, and puts the set together.
pub(crate) fn open(main: &Path, log: &Path, options: &Options) -> Result<(Flashlog, Opened)> {
    let main = self::main(main, Access::ReadWrite, Some(log))?;
    let log = stack::device(log, Access::ReadWrite)?;
    Flashlog::open(main, log, options).map_err(explain_opening)
}

/// Does something to make good what is damaged, and leaves the set settled: as it was used last, or, if the log has lost what main lacks, so
/// that main need not have it. Then it is opened once more as it was used, which its labels say from then on.
pub(crate) fn mend<T>(main: &Path, log: &Path, mend: impl FnOnce(&Flashlog) -> Result<T>) -> Result<T> {
    let close = |set: &Flashlog| set.close().map_err(stack::says);
    let options = Options { mode: look_for_label(main)?.mode, ..Options::default() };
    let of_main = self::main(main, Access::ReadWrite, Some(log))?;
    let of_log: Arc<dyn Device> = stack::device(log, Access::ReadWrite)?;
    let is_other = match Flashlog::open(of_main.clone(), of_log.clone(), &options) {
        Err(error) if options.mode == Mode::Synchronous && is_lost_data(&error) => error,
        opened => {
            let (set, _) = opened.map_err(explain_opening)?;
            let mended = mend(&set)?;
            return close(&set).map(|()| mended);
        }
    };
    tracing::warn!(error = %is_other, "the set is opened in asynchronous mode, as main need not have then what the log has lost");
    let (set, _) = Flashlog::open(of_main, of_log, &Options { mode: Mode::Asynchronous, ..options.clone() })
        .map_err(explain_opening)?;
    let mended = mend(&set).and_then(|mended| close(&set).map(|()| mended));
    drop(set);
    match (open(main, log, &options).and_then(|(set, _)| close(&set)), mended) {
        (Ok(()), mended) => mended,
        (Err(_), Err(failure)) => Err(failure),
        (Err(failure), Ok(_)) => {
            let message = format!("{failure}: what could be mended is, and the set is in asynchronous mode now");
            Err(Failure { message, ..failure })
        }
    }
}

/// Whether a set could not be opened because the log has lost data that main must have.
fn is_lost_data(error: &Error) -> bool {
    matches!(error, Error::Device(holdfast_block::Error::Damaged { .. }))
}

/// What happened when a set was opened, and what to do.
pub(crate) fn explain_opening(error: Error) -> Failure {
    if !is_lost_data(&error) {
        return explain(error);
    }
    Failure::new(format!("{error}: the log has lost data that main does not have")).hint(
        "scrub --main MAIN --log LOG --backup BACKUP takes what the backup has, rebuild --force makes main anew; in async mode the set can be used without it",
    )
}

/// What happened when main was to get the log that it had, and what to do. Main has everything that was answered, unless the set has stopped.
pub(crate) fn explain_attaching(log: &str, has_stopped: bool, error: Error) -> Failure {
    let is_of_log = match &error {
        Error::MissingPages { .. } | Error::Replaced { role: Role::Log, .. } => true,
        Error::Older { device, .. } | Error::Damaged { device, .. } => **device == *log,
        _ => false,
    };
    if !is_of_log {
        return explain(error);
    }
    if has_stopped {
        return Failure::new(words(&error)).hint(
            "main lacks what was answered: only the log that it had when it stopped has that; if the server is started again with that log, \
             what was flushed is there",
        );
    }
    Failure::new(words(&error)).hint(
        "with the log that it had last nothing is missing; holdfast flashlog attach --new gives main a new one (over this one: --force), and the next backup gets what it lacks from main",
    )
}

/// Opens main. One that has become larger than its set is as large as it was, until that grows; its log tells how large the set is.
pub(crate) fn main(path: &Path, access: Access, log: Option<&Path>) -> Result<Arc<dyn Device>> {
    let main = stack::device(path, access)?;
    // What is wrong with the log is told by whoever opens it.
    let label = log.and_then(|log| look(log).ok().flatten());
    let (main, _) = flashlog::as_labelled(main, label.map(|label| label.blocks)).map_err(explain)?;
    Ok(main)
}

/// What a device's label says.
pub(crate) fn inspect(device: &Arc<FileDevice>) -> Result<Option<Inspected>> {
    flashlog::inspect(&**device).map_err(explain_unknown)
}

/// The same of a device that may be in use.
pub(crate) fn look(path: &Path) -> Result<Option<Inspected>> {
    inspect(&stack::device(path, Access::ReadOnlyUnlocked)?)
}

/// The same; a device that has no label is an error.
pub(crate) fn look_for_label(path: &Path) -> Result<Inspected> {
    look(path)?.ok_or_else(|| {
        Failure::new(format!("{}: no device of a Flashlog: there is no label", path.display()))
            .hint("holdfast flashlog create makes a set of devices")
    })
}

/// What is wrong with the pages of a log that is not in use, if anything is.
pub(crate) fn damaged_pages(path: &Path) -> Option<String> {
    let damage = stack::device(path, Access::ReadOnlyUnlocked)
        .and_then(|log| flashlog::damaged_pages(log).map_err(|error| Failure::new(error.to_string())));
    match damage {
        Ok(damage) => damage.as_ref().map(log_damage),
        Err(failure) => Some(failure.message),
    }
}

/// Of a file for a log, if nobody says.
pub(crate) fn log_bytes_for(main_bytes: u64) -> u64 {
    (main_bytes / 8).clamp(16 << 20, 64 << 30)
}

/// The same, and of one at least.
pub(crate) fn log_sizes(main_bytes: u64) -> [u64; 2] {
    [log_bytes_for(main_bytes), bytes(log_blocks_least())]
}

/// How large a device is, in bytes.
pub(crate) fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(holdfast_block::BLOCK_SIZE as u64)
}

/// Its size.
pub(crate) fn size_bytes(device: &dyn Device) -> u64 {
    bytes(device.blocks())
}

/// The same of a device of which nobody has said what it is.
fn explain_unknown(error: Error) -> Failure {
    match error {
        // Those of main and backup are in the same place.
        Error::LabelUnread { role: Role::Main, .. } => Failure::new(words(&error)).hint(
            "try it in another port; if it stays so, and it was main, rebuild --force makes main anew from the backup and the log; if it was the backup, make another: --to OTHER",
        ),
        error => explain(error),
    }
}

/// The same of a disk with a store, which may be by itself.
pub(crate) fn explain_under_store(error: Error) -> Failure {
    match error {
        Error::LabelUnread { role: Role::Main, .. } => Failure::new(words(&error)).hint(
            "try it in another port; if it stays so, and it was main of a Flashlog, holdfast flashlog rebuild --force makes main anew from the backup and the log; a store by itself has no labels there: what it has in these blocks may be lost, copy the rest to another disk",
        ),
        error => explain(error),
    }
}

/// What happened, and what to do.
pub(crate) fn explain(error: Error) -> Failure {
    let words = words(&error);
    let hint = match &error {
        Error::NoLabel { .. } => "holdfast flashlog status DEVICE tells what a device is",
        Error::OtherRole { .. } => "the devices may have been given in another order: status DEVICE tells what each is",
        Error::LabelUnread { role: Role::Log, .. } => {
            "try it in another port; if it stays so, main goes on without it: serve --without-log (in async mode with --accept-loss), and attach --new gives main a new one"
        }
        Error::LabelUnread { role: Role::Main, .. } => {
            "try it in another port; if it stays so, rebuild --force makes main anew from the backup and the log"
        }
        Error::LabelUnread { .. } => "try it in another port; if it stays so, make another backup: --to OTHER",
        Error::OtherSet { .. } => "it is another set's: holdfast flashlog status DEVICE tells which",
        Error::Alone { .. } => {
            "give it its log back: holdfast flashlog attach --main MAIN --log LOG; or serve --without-log"
        }
        Error::PerhapsBehind { .. } => {
            "with its log nothing is lost; --accept-loss (of a mount: -o accept-loss) gives that up, if the log is gone for good"
        }
        Error::GivenUp { .. } => "make it anew from the backup and the log: holdfast flashlog rebuild --force",
        Error::Replaced { role: Role::Main, .. } => {
            "main was made anew from the backup, and this is the one before, or the new one if that was cut off in the end: rebuild --force makes it again"
        }
        Error::Replaced { .. } => "use the one that the set has now; status DEVICE tells which that is",
        Error::Older { .. } => {
            "it is a copy, or the set has been used without it: use the newer one. If that is lost, and this is the log, main goes on: serve --without-log; if this is main, rebuild makes one anew from the backup and the log"
        }
        Error::Incomplete { .. } => "a backup that is not complete is nothing to rebuild from; go on with the backup",
        Error::Gap { .. } => {
            "main has what was written in between: holdfast flashlog backup; without main it is nowhere"
        }
        Error::TooEarly { .. } => "holdfast flashlog at --list tells which moments there are",
        Error::NoBarrier { .. } => {
            "holdfast flashlog at --list tells which moments there are; a number alone is a barrier's, and @SECONDS a time since 1970"
        }
        Error::Later { .. } => {
            "to give that up, say --drop-later; at --barrier shows the state without giving up anything"
        }
        Error::Forgotten { .. } => {
            "scrub --backup BACKUP takes what this one has, if the log reaches back to it; or make another: --to OTHER, keep this one, and write anew what is older; or give up what it has: --to BACKUP --accept-loss"
        }
        Error::OfForgotten { .. } => "holdfast flashlog backup compares all of it with main, which counts by now",
        Error::Outgrown { .. } => {
            "its device has no room for more, but with the log it makes main anew; make another: --to OTHER, or give it up: --force --size SIZE"
        }
        Error::Busy { .. } => "try again when that is done",
        Error::TooSmall { least, .. } => {
            let least = bytes(*least);
            return Failure::new(words)
                .hint(format!("use a larger device; of a file, say a size for it: {least} bytes at least"));
        }
        Error::Damaged { .. } | Error::MissingPages { .. } => {
            "if it is the log: rebuild --drop-later goes on with what is in front of it; so does catch-up --drop-later without a backup, if it is the log's end that cannot be read; serve --without-log with main as it is"
        }
        _ => return Failure::new(words),
    };
    Failure::new(words).hint(hint)
}

/// What happened, with times as people read them.
fn words(error: &Error) -> String {
    let moment = |barrier: &Barrier| Moment::of(barrier).words();
    match error {
        Error::TooEarly { device, wanted: At::Time(time), first } => {
            let first = first.as_ref().map_or_else(
                || "there is no barrier behind it".into(),
                |first| format!("the first one behind it is {}", moment(first)),
            );
            format!("{device}: the backup's state is later than {}: {first}", shown(*time))
        }
        Error::NoBarrier { device, wanted, last } => {
            format!("{device}: there is no barrier {wanted}: the last one is {}", moment(last))
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_device_is_whose_label_cannot_be_read_something_is_advised() {
        let advised = |role| {
            let cause = holdfast_block::Error::Unsuitable { device: "stick".into(), reason: "bad" };
            explain_unknown(Error::LabelUnread { device: "stick".into(), role, cause }).hint.unwrap_or_default()
        };
        let (of_main, of_log) = (advised(Role::Main), advised(Role::Log));
        assert!(of_main.contains("rebuild --force") && of_main.contains("--to OTHER"), "{of_main}");
        assert!(of_log.contains("--without-log") && of_log.contains("attach --new"), "{of_log}");
    }

    #[test]
    fn what_is_too_small_may_be_as_large_as_is_advised() {
        let too_small = Error::TooSmall { device: "main".into(), role: Role::Main, blocks: 100, least: 512 };
        let hint = explain(too_small).hint.unwrap_or_default();
        assert!(hint.contains("larger device") && hint.contains("2097152 bytes"), "{hint}");
    }

    #[test]
    fn a_log_that_cannot_be_read_is_not_taken_for_a_good_one() {
        let told = damaged_pages(Path::new("/nonexistent/log")).unwrap_or_default();
        assert!(told.contains("/nonexistent/log"), "{told}");
    }
}
