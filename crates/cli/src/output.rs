//! What commands print: words for people, or one JSON document.

use crate::failure::{Failure, Result};
use crate::quoting;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// Something that can be told in words and as data.
pub(crate) trait Report: Serialize {
    /// In words; ends with a newline unless there is nothing to say.
    fn words(&self) -> String;
}

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    Words,
    Json,
}

/// Prints a report to standard output, with nothing in it that a terminal would obey. Nobody reading it is no error.
pub(crate) fn print(format: Format, report: &impl Report) {
    let text = match format {
        Format::Words => quoting::lines(&report.words()),
        Format::Json => json(report),
    };
    print_text(&text);
}

/// Prints to standard output what is formatted already.
pub(crate) fn print_text(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Puts a figure into a file, or, for `-`, to standard output, and then nothing besides it: whether it is in a file.
pub(crate) fn draw(file: &Path, svg: &str) -> Result<bool> {
    if file.as_os_str() == "-" {
        print_text(svg);
        return Ok(false);
    }
    std::fs::write(file, svg).map_err(|error| Failure::at(file, crate::mounts::plain(&error)))?;
    Ok(true)
}

/// Prints a failure: in words to standard error, as JSON (`{"error": …}`) to standard output, where the document is
/// expected.
pub(crate) fn print_failure(format: Format, failure: &Failure) {
    match format {
        Format::Words => {
            let mut text = format!("holdfast: {}\n", quoting::line(&failure.message));
            if let Some(hint) = &failure.hint {
                text.push_str(&format!("          {}\n", quoting::line(hint)));
            }
            let _ = std::io::stderr().lock().write_all(text.as_bytes());
        }
        Format::Json => {
            let text = json(&serde_json::json!({ "error": failure }));
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
        }
    }
}

/// Tells something by the way, to standard error.
pub(crate) fn note(text: &str) {
    let _ = std::io::stderr().lock().write_all(format!("holdfast: {}\n", quoting::line(text)).as_bytes());
}

/// As JSON of at most so many bytes, for an answer through the kernel: `shorten` leaves something out as long as it is longer and that helps.
pub(crate) fn json_within<T: Serialize + Clone>(value: &T, bytes_max: usize, shorten: impl Fn(&mut T)) -> Vec<u8> {
    let json = |value: &T| serde_json::to_vec(value).unwrap_or_default();
    let mut text = json(value);
    let mut shorter = value.clone();
    while text.len() > bytes_max {
        shorten(&mut shorter);
        let before = std::mem::replace(&mut text, json(&shorter)).len();
        if text.len() >= before {
            break;
        }
    }
    text
}

fn json(value: &impl Serialize) -> String {
    match serde_json::to_string_pretty(value) {
        Ok(text) => text + "\n",
        // Only maps with keys that are no strings and failing implementations can do this; neither is here.
        Err(error) => format!("{}\n", serde_json::json!({ "error": { "message": error.to_string() } })),
    }
}

/// Rows of two columns, the first as wide as its widest entry.
pub(crate) fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("  {name:width$}  {}\n", quoting::line(value))).collect()
}

/// `1 object`, `2 objects`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
