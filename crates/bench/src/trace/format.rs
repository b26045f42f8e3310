//! The text form of a trace: what processes asked of the files below one directory, and when.
//!
//! It is described in `docs/traces.md`, of which the tests take the example.

use std::fmt;

/// The first line of every trace.
pub const FIRST_LINE: &str = "# holdfast trace 1";

/// A path below the directory, from `/` on.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TracePath(pub Vec<u8>);

impl TracePath {
    /// The names on the way.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }
}

/// One call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Was a directory before the trace began.
    DirectoryExists(TracePath),
    /// Was a file of so many bytes before the trace began.
    FileExists(TracePath, u64),
    /// Opens a file under a number.
    Open {
        /// The number.
        file: u64,
        /// Which file.
        path: TracePath,
        /// Made if it is not there.
        create: bool,
        /// Emptied.
        truncate: bool,
    },
    /// Reads so many bytes, which were there.
    Read {
        /// The open file.
        file: u64,
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// Writes so many bytes.
    Write {
        /// The open file.
        file: u64,
        /// In bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// Sets an open file's size, in bytes.
    Truncate {
        /// The open file.
        file: u64,
        /// In bytes.
        size: u64,
    },
    /// fsync or fdatasync.
    Sync(u64),
    /// Nobody has the open file any more.
    Close(u64),
    /// Makes a directory.
    MakeDirectory(TracePath),
    /// Removes an empty directory.
    RemoveDirectory(TracePath),
    /// Removes a name.
    Unlink(TracePath),
    /// Renames.
    Rename(TracePath, TracePath),
    /// Gives a file a second name.
    Link(TracePath, TracePath),
}

/// A call and its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Microseconds since the trace began.
    pub at_us: u64,
    /// What was called.
    pub call: Call,
}

impl fmt::Display for TracePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|&byte| match byte {
            b'%' => f.write_str("%25"),
            0x21..=0x7e => write!(f, "{}", byte as char),
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.at_us)?;
        match &self.call {
            Call::DirectoryExists(path) => write!(f, "exists {path}/"),
            Call::FileExists(path, bytes) => write!(f, "exists {path} {bytes}"),
            Call::Open { file, path, create, truncate } => {
                let letters = match (create, truncate) {
                    (false, false) => "-",
                    (true, false) => "c",
                    (false, true) => "t",
                    (true, true) => "ct",
                };
                write!(f, "open {file} {path} {letters}")
            }
            Call::Read { file, offset, length } => write!(f, "read {file} {offset} {length}"),
            Call::Write { file, offset, length } => write!(f, "write {file} {offset} {length}"),
            Call::Truncate { file, size } => write!(f, "truncate {file} {size}"),
            Call::Sync(file) => write!(f, "sync {file}"),
            Call::Close(file) => write!(f, "close {file}"),
            Call::MakeDirectory(path) => write!(f, "mkdir {path}"),
            Call::RemoveDirectory(path) => write!(f, "rmdir {path}"),
            Call::Unlink(path) => write!(f, "unlink {path}"),
            Call::Rename(from, to) => write!(f, "rename {from} {to}"),
            Call::Link(from, to) => write!(f, "link {from} {to}"),
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("not a number: '{text}'"))
}

fn size(text: &str) -> Result<u64, String> {
    number(text).and_then(|bytes| {
        if bytes > FILE_BYTES_MAX { Err(format!("beyond {FILE_BYTES_MAX} bytes")) } else { Ok(bytes) }
    })
}

fn path(text: &str) -> Result<TracePath, String> {
    let wrong = || format!("not a path of a trace: '{text}'");
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| (digit as char).to_digit(16));
                let (Some(high), Some(low)) = (digit(), digit()) else { return Err(wrong()) };
                (high << 4 | low) as u8
            }
            _ => byte,
        });
    }
    let path = TracePath(bytes);
    // A name that leads out of the directory is none of the trace's.
    let is_inside = path.names().all(|name| !matches!(name, b"." | b"..") && !name.contains(&0));
    if path.0.first() == Some(&b'/') && is_inside { Ok(path) } else { Err(wrong()) }
}

/// One line that is not a comment.
///
/// # Errors
/// What is wrong with it.
pub fn parse_line(line: &str) -> Result<Event, String> {
    let words: Vec<&str> = line.split(' ').collect();
    let [at, words @ ..] = &words[..] else { return Err("nothing in it".to_owned()) };
    let call = match words {
        ["exists", directory] if directory.ends_with('/') => {
            Call::DirectoryExists(path(directory.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or("/"))?)
        }
        ["exists", file, bytes] => Call::FileExists(path(file)?, size(bytes)?),
        ["open", file, name, letters @ ("-" | "c" | "t" | "ct")] => Call::Open {
            file: number(file)?,
            path: path(name)?,
            create: letters.contains('c'),
            truncate: letters.contains('t'),
        },
        [name @ ("read" | "write"), file, offset, length] => {
            let (file, offset, length) = (number(file)?, size(offset)?, size(length)?);
            if offset + length > FILE_BYTES_MAX {
                return Err(format!("beyond {FILE_BYTES_MAX} bytes"));
            }
            match *name {
                "read" => Call::Read { file, offset, length },
                _ => Call::Write { file, offset, length },
            }
        }
        ["truncate", file, bytes] => Call::Truncate { file: number(file)?, size: size(bytes)? },
        ["sync", file] => Call::Sync(number(file)?),
        ["close", file] => Call::Close(number(file)?),
        ["mkdir", directory] => Call::MakeDirectory(path(directory)?),
        ["rmdir", directory] => Call::RemoveDirectory(path(directory)?),
        ["unlink", file] => Call::Unlink(path(file)?),
        ["rename", from, to] => Call::Rename(path(from)?, path(to)?),
        ["link", from, to] => Call::Link(path(from)?, path(to)?),
        _ => return Err("not a call of a trace".to_owned()),
    };
    Ok(Event { at_us: number(at)?, call })
}

/// Files of a trace are not larger, so that positions do not overflow.
const FILE_BYTES_MAX: u64 = 16 << 40;

/// A whole trace.
///
/// # Errors
/// The line and what is wrong with it.
pub fn parse(text: &str) -> Result<Vec<Event>, String> {
    let mut lines = (1..).zip(text.lines());
    if lines.next().is_none_or(|(_, first)| first != FIRST_LINE) {
        return Err(format!("line 1: '{FIRST_LINE}' expected"));
    }
    let mut events: Vec<Event> = Vec::new();
    for (number, line) in lines.filter(|(_, line)| !line.starts_with('#') && !line.is_empty()) {
        let event = parse_line(line).map_err(|error| format!("line {number}: {error}"))?;
        if events.last().is_some_and(|last| last.at_us > event.at_us) {
            return Err(format!("line {number}: the time goes back"));
        }
        events.push(event);
    }
    Ok(events)
}

/// The text of a trace.
pub fn text(events: &[Event]) -> String {
    let lines: Vec<String> = events.iter().map(Event::to_string).collect();
    format!("{FIRST_LINE}\n{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Event> {
        let path = |text: &str| TracePath(text.as_bytes().to_vec());
        let calls = [
            Call::DirectoryExists(path("/")),
            Call::DirectoryExists(path("/a b")),
            Call::FileExists(path("/a b/100%\n\u{e9}"), 7),
            Call::Open { file: 0, path: path("/x"), create: true, truncate: true },
            Call::Open { file: 1, path: path("/x"), create: false, truncate: false },
            Call::Read { file: 0, offset: 4096, length: 10 },
            Call::Write { file: 0, offset: 0, length: u64::from(u32::MAX) },
            Call::Truncate { file: 0, size: 3 },
            Call::Sync(0),
            Call::Close(0),
            Call::MakeDirectory(path("/d")),
            Call::RemoveDirectory(path("/d")),
            Call::Unlink(path("/x")),
            Call::Rename(path("/x"), path("/y")),
            Call::Link(path("/x"), path("/y")),
        ];
        (0..).zip(calls).map(|(at_us, call)| Event { at_us, call }).collect()
    }

    #[test]
    fn every_call_goes_round() {
        let text = text(&sample());
        assert!(text.is_ascii());
        assert_eq!(parse(&text), Ok(sample()), "{text}");
    }

    /// The example in the documentation has every call, as it would be written.
    #[test]
    fn the_documentation_has_every_call() {
        let page = include_str!("../../../../docs/traces.md");
        let example = page.split_once("```text\n").and_then(|(_, rest)| rest.split_once("```")).expect("an example").0;
        let events = parse(example).expect("a trace");
        assert_eq!(text(&events), example);
        let kind = |event: &Event| std::mem::discriminant(&event.call);
        let missing = sample().into_iter().find(|call| !events.iter().any(|event| kind(event) == kind(call)));
        assert_eq!(missing, None);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (lines, expected) in [
            ("", "line 1: "),
            ("# holdfast trace 2\n", "line 1: "),
            ("# holdfast trace 1\n# a comment\n\n5 close 1\n4 close 1\n", "line 5: the time goes back"),
            ("# holdfast trace 1\n0 open 1 x -\n", "line 2: not a path"),
            ("# holdfast trace 1\n0 open 1 /../x -\n", "line 2: not a path"),
            ("# holdfast trace 1\n0 open 1 /%4 -\n", "line 2: not a path"),
            ("# holdfast trace 1\n0 open 1 /x q\n", "line 2: not a call"),
            ("# holdfast trace 1\n0 read 1 -1 2\n", "line 2: not a number: '-1'"),
            ("# holdfast trace 1\n0 read 1 18446744073709551615 2\n", "line 2: beyond"),
            ("# holdfast trace 1\n0 exists /x 18446744073709551615\n", "line 2: beyond"),
            ("# holdfast trace 1\n0 close  1\n", "line 2: not a call"),
        ] {
            let error = parse(lines).unwrap_err();
            assert!(error.starts_with(expected), "{lines:?}: {error}");
        }
    }
}
