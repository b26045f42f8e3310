//! What is logged, to standard error, and how a line looks.
//!
//! ```text
//!  file, terminal   2026-11-21T05:04:09.123456Z warning /data/my.store: a bad copy … replaced by the good one (block 12)
//!  journal          <4>/data/my.store: a bad copy of a block was replaced by the good one (block 12)
//! ```
//!
//! One event is one line, and names the store. The journal has the time already, and takes the level from the number (see
//! sd-daemon(3)). A line that repeats the last one is counted instead, so that a program that tries the same bad block
//! for ever does not fill the host's disk.

use crate::args::LogLevel;
use rustix::fs::fstat;
use std::fmt::{self, Write};
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// What is logged if `--log-level` does not say: a level, or levels by module, as `info,holdfast_cache=debug`.
const VARIABLE: &str = "HOLDFAST_LOG";
/// For how long a line that repeats the last one is only counted.
const REPEATS_FOR: Duration = Duration::from_secs(60);

/// Logs to standard error from now on. Without `store` (a command, not a mount) only if somebody has asked for it.
pub(crate) fn start(store: Option<&Path>, level: Option<LogLevel>) {
    let asked = std::env::var(VARIABLE).ok().filter(|asked| !asked.is_empty());
    if store.is_none() && level.is_none() && asked.is_none() {
        return;
    }
    let (filter, wrong) = match (level, &asked) {
        (Some(level), _) => (EnvFilter::new(level.name()), None),
        (None, Some(asked)) => match EnvFilter::try_new(asked) {
            Ok(filter) => (filter, None),
            Err(error) => (EnvFilter::new("info"), Some(format!("{VARIABLE}={asked} makes no sense: {error}"))),
        },
        (None, None) => (EnvFilter::new("info"), None),
    };
    let lines = Lines::new(store, is_journal());
    // Fails only if there is one already.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).event_format(lines).try_init();
    if let Some(wrong) = wrong {
        tracing::warn!("{wrong}");
    }
}

/// Whether standard error goes to the journal (systemd.exec(5), JOURNAL_STREAM).
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(io::stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// How lines look.
struct Lines {
    /// What they begin with, if anything.
    store: Option<String>,
    journal: bool,
    last: Mutex<Last>,
}

/// The last line written.
#[derive(Default)]
struct Last {
    text: String,
    written: Option<Instant>,
    /// How often it has come again since.
    repeated: u64,
}

impl Lines {
    fn new(store: Option<&Path>, journal: bool) -> Lines {
        Lines { store: store.map(|store| store.display().to_string()), journal, last: Mutex::default() }
    }

    fn begin(&self, level: Level, out: &mut Writer<'_>) -> fmt::Result {
        // syslog(3)'s numbers.
        let (number, name) = match level {
            Level::ERROR => (3, "error"),
            Level::WARN => (4, "warning"),
            Level::INFO => (6, "info"),
            Level::DEBUG => (7, "debug"),
            Level::TRACE => (7, "trace"),
        };
        if self.journal {
            return write!(out, "<{number}>");
        }
        SystemTime.format_time(out)?;
        write!(out, " {name:7} ")
    }

    /// The line, and before it how often the last one came again; nothing if it is the last one.
    fn put(&self, level: Level, text: String, now: Instant, out: &mut Writer<'_>) -> fmt::Result {
        // A panic with the lock held ends the process.
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_recent = |written: Instant| now.saturating_duration_since(written) < REPEATS_FOR;
        if last.text == text && last.written.is_some_and(is_recent) {
            last.repeated += 1;
            return Ok(());
        }
        let repeated = std::mem::take(&mut last.repeated);
        if repeated > 0 {
            self.begin(level, out)?;
            writeln!(out, "the line before came {repeated} more times")?;
        }
        self.begin(level, out)?;
        writeln!(out, "{text}")?;
        (last.text, last.written) = (text, Some(now));
        Ok(())
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut words = Words::default();
        event.record(&mut words);
        self.put(*event.metadata().level(), words.text(self.store.as_deref()), Instant::now(), &mut out)
    }
}

/// An event in words: `message: error (name value, …)`.
#[derive(Default)]
struct Words {
    message: String,
    error: Option<String>,
    others: Vec<String>,
}

impl Words {
    fn text(&self, store: Option<&str>) -> String {
        let mut text = String::new();
        let mut put = |part: &str, separator: &str| {
            if !part.is_empty() {
                text.push_str(if text.is_empty() { "" } else { separator });
                text.push_str(part);
            }
        };
        put(store.unwrap_or_default(), "");
        put(&self.message, ": ");
        put(self.error.as_deref().unwrap_or_default(), ": ");
        if !self.others.is_empty() {
            let _ = write!(text, " ({})", self.others.join(", "));
        }
        // One event, one line.
        text.replace(|c: char| c.is_control(), " ")
    }
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "error" => self.error = Some(format!("{value:?}")),
            // A place says itself what it is.
            "place" => self.others.push(format!("{value:?}")),
            name => self.others.push(format!("{} {value:?}", name.replace('_', " "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Memory {
        type Writer = Memory;

        fn make_writer(&'a self) -> Memory {
            self.clone()
        }
    }

    fn logged(journal: bool, events: impl FnOnce()) -> String {
        let memory = Memory::default();
        let lines = Lines::new(Some(Path::new("/s")), journal);
        let log = tracing_subscriber::fmt().with_writer(memory.clone()).event_format(lines).finish();
        tracing::subscriber::with_default(log, events);
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_journal_gets_priorities_and_no_times() {
        let text = logged(true, || {
            tracing::error!(error = "no room", took_ms = 7, "it\nfailed");
            tracing::warn!(place = %"block 9", "repaired");
            tracing::info!("mounted");
        });
        assert_eq!(text, "<3>/s: it failed: no room (took ms 7)\n<4>/s: repaired (block 9)\n<6>/s: mounted\n");
    }

    #[test]
    fn a_file_gets_times_and_levels() {
        let text = logged(false, || tracing::warn!(pages = 3, "slow"));
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{time}");
        assert_eq!(rest, "warning /s: slow (pages 3)\n");
    }

    #[test]
    fn repeated_lines_are_counted() {
        let text = logged(true, || {
            for _ in 0..1000 {
                tracing::error!("the same");
            }
            tracing::info!("another");
        });
        assert_eq!(text, "<3>/s: the same\n<6>the line before came 999 more times\n<6>/s: another\n");
    }

    #[test]
    fn a_line_that_still_comes_is_told_now_and_then() {
        let lines = Lines::new(None, true);
        let start = Instant::now();
        let mut text = String::new();
        for second in [0, 1, 59, 61, 62] {
            let now = start + Duration::from_secs(second);
            lines.put(Level::ERROR, "bad".into(), now, &mut Writer::new(&mut text)).unwrap();
        }
        assert_eq!(text, "<3>bad\n<3>the line before came 2 more times\n<3>bad\n");
    }
}
