//! How long a trial in this process may take. Threads that hang cannot be ended from outside: they are left behind, with their store and its
//! memory, until the program ends.

use super::Outcome;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long anything may take that should be over at once, until it is taken for hung.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What is known of a trial while it runs.
#[derive(Default)]
pub(super) struct Progress {
    /// The bits have flipped.
    pub(super) has_flipped: AtomicBool,
    /// Corrupt bytes were read, without an error.
    pub(super) has_read_wrong: AtomicBool,
    /// Whoever is in it is to end.
    pub(super) is_over: AtomicBool,
}

/// Runs a trial, for no longer than this.
///
/// # Errors
/// Those of the trial; in words if it panics, or hangs before anything has flipped.
pub(super) fn limited(
    time: Duration,
    trial: impl FnOnce(&Progress) -> Result<Outcome, String> + Send + 'static,
) -> Result<Outcome, String> {
    let progress = Arc::new(Progress::default());
    let (tell, told) = channel();
    let shared = progress.clone();
    let running = std::thread::spawn(move || {
        // Nobody listens to a trial that has hung for a while.
        let _ = tell.send(trial(&shared));
    });
    match told.recv_timeout(time) {
        Ok(outcome) => running.join().map_err(|_| "a trial panicked".to_string()).and(outcome),
        Err(RecvTimeoutError::Disconnected) => Err("a trial panicked".into()),
        Err(RecvTimeoutError::Timeout) => {
            progress.is_over.store(true, Ordering::SeqCst);
            if !progress.has_flipped.load(Ordering::SeqCst) {
                return Err(format!("it hangs, and no bit had flipped: not over after {} s", time.as_secs()));
            }
            let read = progress.has_read_wrong.load(Ordering::SeqCst);
            Ok(Outcome { read, crashed: true, hung: true, ..Outcome::default() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Sender;

    /// A trial that waits for something that does not come, as long as the sender is there.
    fn hanging(has_flipped: bool, has_read_wrong: bool) -> (Sender<()>, Result<Outcome, String>) {
        let (awaited, never) = channel::<()>();
        let outcome = limited(Duration::from_millis(50), move |progress| {
            progress.has_read_wrong.store(has_read_wrong, Ordering::SeqCst);
            progress.has_flipped.store(has_flipped, Ordering::SeqCst);
            let _ = never.recv();
            Ok(Outcome { operations: 1, ..Outcome::default() })
        });
        (awaited, outcome)
    }

    #[test]
    fn a_trial_that_hangs_counts_as_a_crash_and_is_told_apart() {
        for has_read_wrong in [false, true] {
            let (_awaited, outcome) = hanging(true, has_read_wrong);
            let Outcome { read, crashed, hung, .. } = outcome.unwrap();
            assert_eq!((read, crashed, hung), (has_read_wrong, true, true));
        }
        let (_awaited, outcome) = hanging(false, false);
        assert!(outcome.unwrap_err().contains("no bit had flipped"), "that is no result");
        let in_time = limited(PATIENCE, |_| Ok(Outcome { operations: 7, ..Outcome::default() })).unwrap();
        assert_eq!((in_time.operations, in_time.crashed, in_time.hung), (7, false, false));
        assert!(limited(PATIENCE, |_| panic!("as a trial may")).unwrap_err().contains("panicked"));
    }

    #[test]
    fn who_can_end_when_a_trial_hangs_ends() {
        let (ended, all_ended) = channel::<()>();
        let (_awaited, never) = channel::<()>();
        let outcome = limited(Duration::from_millis(50), move |progress| {
            progress.has_flipped.store(true, Ordering::SeqCst);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !progress.is_over.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    drop(ended);
                });
                let _ = never.recv();
            });
            Ok(Outcome::default())
        });
        assert!(outcome.unwrap().hung);
        assert_eq!(all_ended.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    }
}
