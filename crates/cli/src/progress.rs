//! How far long work has come: a bar on a terminal, a line in the log every ten seconds elsewhere.
//!
//! The bar is on standard error, and is gone when the work is done. The lines are seen with `--log-level info`.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const LINES_APART: Duration = Duration::from_secs(10);
const SPINNER_STEP: Duration = Duration::from_millis(100);

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Bytes,
    Objects,
}

/// Work in progress. When it is dropped, the work is done.
pub(crate) struct Progress {
    what: &'static str,
    total: u64,
    bar: ProgressBar,
    last_line: Cell<Instant>,
}

impl Progress {
    /// Work of a known length.
    pub(crate) fn of(what: &'static str, total: u64, unit: Unit) -> Progress {
        let numbers = match unit {
            Unit::Bytes => "{bytes} of {total_bytes}, {binary_bytes_per_sec}",
            Unit::Objects => "{human_pos} of {human_len} objects",
        };
        let template = format!("{{msg}} [{{bar:30}}] {{percent:>3}} %  {numbers}, {{eta}} left");
        let progress = Progress::with(what, Some(total), &template);
        progress.bar.tick();
        progress
    }

    /// Work of unknown length; shown with the time that it takes.
    pub(crate) fn unknown(what: &'static str) -> Progress {
        let progress = Progress::with(what, None, "{spinner} {msg} ({elapsed})");
        if !progress.bar.is_hidden() {
            progress.bar.enable_steady_tick(SPINNER_STEP);
        }
        progress
    }

    fn with(what: &'static str, total: Option<u64>, template: &str) -> Progress {
        // Hidden unless standard error is a terminal.
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        // The templates are the ones above.
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        Progress { what, total: total.unwrap_or(0), bar, last_line: Cell::new(Instant::now()) }
    }

    /// So much is done.
    pub(crate) fn is_at(&self, done: u64) {
        self.bar.set_position(done.min(self.total));
        if self.bar.is_hidden() && self.last_line.get().elapsed() >= LINES_APART {
            self.last_line.set(Instant::now());
            tracing::info!("{}: {} %", self.what, percent(done, self.total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn percent(done: u64, total: u64) -> u64 {
    (u128::from(done.min(total)) * 100).checked_div(total.into()).unwrap_or(100) as u64
}

/// Takes away a bar that is on the terminal, for who ends the process in the middle of work.
pub(crate) fn clear_line() {
    let mut error = std::io::stderr().lock();
    if error.is_terminal() {
        // Erase in line (ECMA-48, 8.3.41).
        let _ = error.write_all(b"\r\x1b[2K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_stay_within_their_bounds() {
        assert_eq!(percent(0, 3), 0);
        assert_eq!(percent(2, 3), 66);
        assert_eq!(percent(9, 3), 100);
        assert_eq!(percent(0, 0), 100);
        assert_eq!(percent(u64::MAX, u64::MAX), 100);
    }

    #[test]
    fn templates_are_understood() {
        for progress in
            [Progress::of("work", 10, Unit::Bytes), Progress::of("work", 10, Unit::Objects), Progress::unknown("work")]
        {
            progress.is_at(5);
            assert_eq!(progress.bar.message(), "work");
        }
        assert!(ProgressStyle::with_template("{msg} [{bar:30}] {percent:>3} % {bytes} {eta}").is_ok());
    }
}
