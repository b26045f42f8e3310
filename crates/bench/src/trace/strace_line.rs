//! One line of strace's output, taken apart.

/// A call that has returned without an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Done {
    /// Process or thread.
    pub(super) pid: u64,
    /// When it was called, in microseconds since 1970.
    pub(super) at_us: u64,
    /// The system call.
    pub(super) name: String,
    /// Its arguments, as printed.
    pub(super) arguments: Vec<String>,
    /// What it returned, as printed: a number, behind which a path may stand in `<>`.
    pub(super) result: String,
}

/// Lines of several processes, of which a call may be on two.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By process: the beginning of a call that is not finished, and when that was.
    unfinished: std::collections::HashMap<u64, (u64, String)>,
}

impl Lines {
    /// A call if the line ends one without an error; other lines, as those about signals, are nothing.
    pub(super) fn take(&mut self, line: &str) -> Option<Done> {
        let (pid, rest) = line.split_once(' ')?;
        let (time, rest) = rest.trim_start().split_once(' ')?;
        let (pid, at_us) = (pid.parse().ok()?, micros(time)?);
        if let Some(begun) = rest.strip_suffix("<unfinished ...>") {
            self.unfinished.insert(pid, (at_us, begun.trim_end().to_owned()));
            return None;
        }
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let (at_us, begun) = self.unfinished.remove(&pid)?;
            let (_, end) = resumed.split_once(" resumed>")?;
            return call(pid, at_us, &format!("{begun}{end}"));
        }
        call(pid, at_us, rest)
    }
}

/// The process or thread whose end a line tells of.
pub(super) fn ended(line: &str) -> Option<u64> {
    let (pid, rest) = line.split_once(' ')?;
    let (_, what) = rest.trim_start().split_once(' ')?;
    if what.starts_with("+++ exited") || what.starts_with("+++ killed") { pid.parse().ok() } else { None }
}

fn micros(time: &str) -> Option<u64> {
    let (seconds, micros) = time.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros.parse().ok().filter(|_| micros.len() == 6)?)
}

fn call(pid: u64, at_us: u64, text: &str) -> Option<Done> {
    let (name, rest) = text.split_once('(')?;
    // The last such place, as a string among the arguments may have one too.
    let ends = rest.rmatch_indices(" = ").map(|(at, equals)| (&rest[..at], &rest[at + equals.len()..]));
    let (arguments, result) =
        ends.into_iter().find_map(|(before, result)| Some((before.trim_end().strip_suffix(')')?, result)))?;
    if result.starts_with(['-', '?']) {
        return None;
    }
    Some(Done { pid, at_us, name: name.to_owned(), arguments: split(arguments), result: result.to_owned() })
}

/// Arguments: what stands between the commas that are neither in a string, a path nor a structure.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut depth, mut quoted, mut escaped, mut in_path) = (0, false, false, false);
    for letter in text.chars() {
        if letter == ',' && depth == 0 && !quoted && !in_path {
            parts.push(String::new());
            continue;
        }
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' if !in_path => quoted = !quoted,
            '<' if !quoted => in_path = true,
            '>' if !quoted => in_path = false,
            '{' | '[' | '(' if !quoted && !in_path => depth += 1,
            '}' | ']' | ')' if !quoted && !in_path => depth -= 1,
            _ => {}
        }
        parts.last_mut().expect("one at least").push(letter);
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

/// A descriptor and the path that strace's `-y` prints with it; the path alone for `AT_FDCWD`.
pub(super) fn descriptor(text: &str) -> Option<(Option<u64>, Vec<u8>)> {
    let (number, rest) = text.split_once('<')?;
    // "(deleted)" may stand behind it, or within.
    let (path, _) = rest.rsplit_once('>')?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let number = if number == "AT_FDCWD" { None } else { Some(number.parse().ok()?) };
    path.starts_with('/').then(|| (number, unescape(path)))
}

/// A string argument.
pub(super) fn string(text: &str) -> Option<Vec<u8>> {
    Some(unescape(text.strip_prefix('"')?.strip_suffix('"')?))
}

/// The number with which an argument or a result begins.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).map_or(text, |end| &text[..end]);
    digits.parse().ok()
}

/// As C escapes it.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let octal = after.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
        let (byte, taken) = match (first, after) {
            (b'\\', digits) if octal > 0 => {
                (digits[..octal].iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0')) as u8, 1 + octal)
            }
            (b'\\', [letter, ..]) => {
                let plain = [(b'n', b'\n'), (b't', b'\t'), (b'r', b'\r'), (b'v', 0x0b), (b'f', 0x0c), (b'b', 0x08)];
                (plain.iter().find(|(name, _)| name == letter).map_or(*letter, |(_, byte)| *byte), 2)
            }
            (byte, _) => (*byte, 1),
        };
        bytes.push(byte);
        rest = &rest[taken..];
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_line_comes_apart() {
        let mut lines = Lines::default();
        let line = r#"148  1795287344.526920 openat(AT_FDCWD</a, b>, "x = (\"y\", z", O_RDWR|O_CREAT, 0666) = 3</a, b/x = ("y", z>"#;
        let done = lines.take(line).unwrap();
        assert_eq!((done.pid, done.at_us), (148, 1_795_287_344_526_920));
        assert_eq!(done.name, "openat");
        assert_eq!(done.arguments, strings(&["AT_FDCWD</a, b>", r#""x = (\"y\", z""#, "O_RDWR|O_CREAT", "0666"]));
        assert_eq!(string(&done.arguments[1]).unwrap(), b"x = (\"y\", z");
        let done = lines.take(r#"1 1.000001 fstat(3</x>, {st_mode=S_IFREG|0644, st_size=22, ...}) = 0"#).unwrap();
        assert_eq!(done.arguments, strings(&["3</x>", "{st_mode=S_IFREG|0644, st_size=22, ...}"]));
        assert_eq!(descriptor(&done.arguments[0]), Some((Some(3), b"/x".to_vec())));
    }

    #[test]
    fn a_call_on_two_lines_is_one() {
        let mut lines = Lines::default();
        assert_eq!(lines.take("7 1.000000 read(3</x>,  <unfinished ...>"), None);
        assert!(lines.take("8 1.000001 close(3</x>) = 0").is_some());
        let done = lines.take(r#"7 1.000002 <... read resumed>""..., 22) = 22"#).unwrap();
        assert_eq!((done.pid, done.at_us, done.name.as_str()), (7, 1_000_000, "read"));
        assert_eq!(done.arguments, strings(&["3</x>", r#"""..."#, "22"]));
        assert_eq!(number(&done.result), Some(22));
    }

    #[test]
    fn errors_signals_and_exits_are_nothing() {
        let mut lines = Lines::default();
        for line in [
            "7 1.000000 open(\"/x\", O_RDONLY) = -1 ENOENT (No such file or directory)",
            "7 1.000000 --- SIGCHLD {si_signo=SIGCHLD} ---",
            "7 1.000000 +++ exited with 0 +++",
            "7 1.000000 exit_group(0) = ?",
            "",
            "nonsense",
            "7 now read(3</x>) = 0",
        ] {
            assert_eq!(lines.take(line), None, "{line}");
        }
    }

    #[test]
    fn ends_are_found() {
        assert_eq!(ended("7 1.000000 +++ exited with 0 +++"), Some(7));
        assert_eq!(ended("7  1.000000 +++ killed by SIGKILL +++"), Some(7));
        assert_eq!(ended("7 1.000000 close(3</x>) = 0"), None);
    }

    #[test]
    fn strings_are_unescaped() {
        assert_eq!(unescape(r#"a\303\251\n\\\"\0b"#), b"a\xc3\xa9\n\\\"\0b");
    }
}
