//! One store, watched: what it panics with, and whether it ends.

use super::edit::{Edit, render};
use super::image::Image;
use super::visit::{Visit, visit};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Once, mpsc};
use std::time::Duration;

/// Time that one store may take; most take 50 ms.
const HANG: Duration = Duration::from_secs(60);

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What should not have been.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Message and place of a panic, or errors that make no sense.
    pub what: String,
    /// The edits, as lines of a file.
    pub edits: String,
}

/// Visits the store after the edits. Ends the process if that hangs, since nothing else can be done then; `what` says in the
/// message which one it was.
///
/// # Errors
/// What went wrong.
pub fn try_edits(image: &Image, edits: &[Edit], what: &str) -> Result<Visit, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANIC.with(|panic| *panic.borrow_mut() = Some(info.to_string()));
            before(info);
        }));
    });
    let device = image.with_edits(edits);
    let (done, waiting) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if waiting.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("still at it after {HANG:?}: {what}:\n{}", render(edits));
                std::process::abort();
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| visit(device)));
        drop(done);
        let fail = |what| Err(Failure { what, edits: render(edits) });
        match outcome {
            Ok(seen) if seen.wrong.is_empty() => Ok(seen),
            Ok(seen) => fail(format!("{:?}", seen.wrong)),
            Err(_) => fail(PANIC.with(|panic| panic.borrow_mut().take()).unwrap_or_else(|| "panic".to_string())),
        }
    })
}
