//! How far long work has come: a bar on a terminal, a line in the log every ten seconds elsewhere.
//!
//! The bar is on standard error, comes when the work has taken a second, and is gone when it is done. The lines are seen with `--log-level info`.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LINES_APART: Duration = Duration::from_secs(10);
const SPINNER_STEP: Duration = Duration::from_millis(100);
/// What takes no longer shows no bar.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// Another time, in milliseconds.
const SHOWN_AFTER_VARIABLE: &str = "HOLDFAST_BAR_AFTER_MS";
/// How often a mount is asked how far its own work is.
const ASKED_EVERY: Duration = Duration::from_millis(50);
/// How often a bar is drawn, in a second.
const DRAWN_HZ: u8 = 10;

/// What is printed is for a program.
static SILENT: AtomicBool = AtomicBool::new(false);

/// No bars from now on.
pub(crate) fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Bytes,
    Objects,
    /// Of blocks.
    Runs,
    /// Parts of the whole, which mean nothing to anybody.
    Parts,
}

/// Work in progress. When it is dropped, the work is done.
pub(crate) struct Progress {
    what: &'static str,
    total: Cell<u64>,
    bar: ProgressBar,
    last_line: Cell<Instant>,
    /// How the bar looks from the first step on, until then.
    moving: Cell<Option<ProgressStyle>>,
}

impl Progress {
    /// Work of a known length.
    pub(crate) fn of(what: &'static str, total: u64, unit: Unit) -> Progress {
        let [still, moving] = templates(unit);
        let progress = Progress::with(what, Some(total), &still);
        progress.moving.set(Some(style(&moving)));
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
        let bar = ProgressBar::with_draw_target(total, target());
        bar.set_style(style(template));
        bar.set_message(what);
        let (total, last_line) = (Cell::new(total.unwrap_or(0)), Cell::new(Instant::now()));
        Progress { what, total, bar, last_line, moving: Cell::new(None) }
    }

    /// What is being done has changed.
    pub(crate) fn says(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Prints something, and the bar below it.
    pub(crate) fn suspended<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }

    /// Until a mount should be asked again how far it is.
    pub(crate) fn pause(&self) {
        // A mount answers at once and does not call back: a request that waited for the end would hold a worker of the daemon, which with
        // `threads=1` is the only one, for as long as a scrub takes.
        std::thread::sleep(ASKED_EVERY);
    }

    /// So much is done, of as much as is known by now.
    pub(crate) fn is_at_of(&self, done: u64, total: u64) {
        self.total.set(total);
        self.bar.set_length(total);
        self.is_at(done);
    }

    /// So much is done.
    pub(crate) fn is_at(&self, done: u64) {
        if done > 0
            && let Some(moving) = self.moving.take()
        {
            self.bar.set_style(moving);
        }
        self.bar.set_position(done.min(self.total.get()));
        if self.bar.is_hidden() && self.last_line.get().elapsed() >= LINES_APART {
            self.last_line.set(Instant::now());
            tracing::info!("{}: {} %", self.what, percent(done, self.total.get()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// What a bar shows while nothing is done, when there is no speed and no time to tell, and afterwards.
fn templates(unit: Unit) -> [String; 2] {
    let (numbers, speed) = match unit {
        Unit::Bytes => ("{bytes} of {total_bytes}", ", {binary_bytes_per_sec}, {eta} left"),
        Unit::Objects => ("{human_pos} of {human_len} objects", ", {eta} left"),
        Unit::Runs => ("{human_pos} of {human_len} runs of blocks", ", {eta} left"),
        Unit::Parts => ("", ""),
    };
    ["", speed].map(|speed| format!("{{msg}} [{{bar:30}}] {{percent:>3}} %  {numbers}{speed}"))
}

/// Nothing, unless standard error is a terminal.
fn target() -> ProgressDrawTarget {
    if SILENT.load(Ordering::Relaxed) || !io::stderr().is_terminal() {
        return ProgressDrawTarget::hidden();
    }
    let given = std::env::var(SHOWN_AFTER_VARIABLE).ok().and_then(|text| text.parse().ok());
    let after = given.map_or(SHOWN_AFTER, Duration::from_millis);
    ProgressDrawTarget::term_like_with_hz(Box::new(LateTerminal { from: Instant::now() + after }), DRAWN_HZ)
}

/// Standard error, a terminal, from a moment on; nothing is written before. A bar has one line, so the cursor stays in it.
#[derive(Debug)]
struct LateTerminal {
    from: Instant,
}

impl LateTerminal {
    fn write(&self, text: &str) -> io::Result<()> {
        if Instant::now() < self.from { Ok(()) } else { io::stderr().lock().write_all(text.as_bytes()) }
    }
}

impl TermLike for LateTerminal {
    fn width(&self) -> u16 {
        const USUAL: u16 = 80;
        let size = rustix::termios::tcgetwinsize(io::stderr());
        size.map(|size| size.ws_col).ok().filter(|columns| *columns > 0).unwrap_or(USUAL)
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        if lines == 0 { Ok(()) } else { self.write(&format!("\x1b[{lines}A")) }
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        if lines == 0 { Ok(()) } else { self.write(&format!("\x1b[{lines}B")) }
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        if columns == 0 { Ok(()) } else { self.write(&format!("\x1b[{columns}C")) }
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        if columns == 0 { Ok(()) } else { self.write(&format!("\x1b[{columns}D")) }
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.write(&format!("{line}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.write(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write(CLEAR_LINE)
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// To its beginning, and erase in line (ECMA-48, 8.3.41).
const CLEAR_LINE: &str = "\r\x1b[2K";

fn style(template: &str) -> ProgressStyle {
    // The templates are the ones of this file.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

fn percent(done: u64, total: u64) -> u64 {
    (u128::from(done.min(total)) * 100).checked_div(total.into()).unwrap_or(100) as u64
}

/// Takes away a bar that is on the terminal, for who ends the process in the middle of work.
pub(crate) fn clear_line() {
    let mut error = std::io::stderr().lock();
    if error.is_terminal() {
        let _ = error.write_all(CLEAR_LINE.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// A terminal of which only what was written is kept.
    #[derive(Clone, Default, Debug)]
    struct Screen(Arc<Mutex<String>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            120
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

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
        for template in [Unit::Bytes, Unit::Objects, Unit::Runs, Unit::Parts].into_iter().flat_map(templates) {
            assert!(ProgressStyle::with_template(&template).is_ok(), "{template}");
        }
    }

    #[test]
    fn a_bar_guesses_nothing_before_the_first_step() {
        for unit in [Unit::Bytes, Unit::Objects] {
            let screen = Screen::default();
            let progress = Progress::of("work", 1 << 30, unit);
            progress.bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
            for done in [0, 0, 1 << 20] {
                progress.is_at(done);
                screen.0.lock().clear();
                progress.bar.force_draw();
                let seen = std::mem::take(&mut *screen.0.lock());
                assert!(seen.contains("work ["), "{seen:?}");
                for guess in ["left", "/s"] {
                    let is_told = done > 0 && (guess == "left" || unit == Unit::Bytes);
                    assert_eq!(seen.contains(guess), is_told, "{done}: {seen:?}");
                }
            }
        }
    }
}
