//! Names and messages as they are printed. A name may have any bytes: whatever they are, a terminal shows them and obeys none, and a
//! name with a line feed makes no second line.
//!
//! Names stand as they are, or in quotes with escapes as in C if that could be mistaken for something else ([`name`]). Messages
//! that may have names in them keep their shape, with only the control characters escaped ([`line`]).

use std::fmt::Write;

/// A name or path: as it is, or in quotes with escapes as in C (`\n`, `\033`, `\377`).
pub(crate) fn name(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.starts_with('"')
        && !text.contains(" -> ")
        && !text.contains(|symbol: char| symbol.is_control() || symbol == '\\')
    {
        return text.to_string();
    }
    let mut quoted = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for symbol in chunk.valid().chars() {
            match symbol {
                '"' | '\\' => quoted.extend(['\\', symbol]),
                symbol => escape(symbol, &mut quoted),
            }
        }
        chunk.invalid().iter().for_each(|byte| octal(*byte, &mut quoted));
    }
    quoted + "\""
}

/// What is left of a text where a reply would be too long.
pub(crate) fn cut(text: &mut String) {
    *text = text.chars().take(256).collect();
}

/// A message in one line: control characters are escaped, everything else stays.
pub(crate) fn line(text: &str) -> String {
    without_controls(text, |_| false)
}

/// A text of several lines, with tabs: what only a terminal understands is escaped.
pub(crate) fn lines(text: &str) -> String {
    without_controls(text, |symbol| matches!(symbol, '\n' | '\t'))
}

fn without_controls(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut plain = String::with_capacity(text.len());
    for symbol in text.chars() {
        match stays(symbol) {
            true => plain.push(symbol),
            false => escape(symbol, &mut plain),
        }
    }
    plain
}

/// A character as it is, or as C has it if it is a control character.
fn escape(symbol: char, to: &mut String) {
    match symbol {
        '\n' => to.push_str("\\n"),
        '\t' => to.push_str("\\t"),
        symbol if symbol.is_control() => symbol.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| octal(byte, to)),
        symbol => to.push(symbol),
    }
}

fn octal(byte: u8, to: &mut String) {
    // Nothing fails when it writes into memory.
    let _ = write!(to, "\\{byte:03o}");
}

/// As a shell takes it for the same bytes: as it is, in quotes, or, with control characters and what is not UTF-8, as `$'…'`
/// (POSIX.1-2024, 2.2.4; bash, zsh).
pub(crate) fn shell(bytes: &[u8]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && text.chars().all(plain) => text.to_string(),
        Ok(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', "'\\''")),
        _ => {
            let mut quoted = String::from("$'");
            for chunk in bytes.utf8_chunks() {
                for symbol in chunk.valid().chars() {
                    match symbol {
                        '\'' | '\\' => quoted.extend(['\\', symbol]),
                        symbol => escape(symbol, &mut quoted),
                    }
                }
                chunk.invalid().iter().for_each(|byte| octal(*byte, &mut quoted));
            }
            quoted + "'"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_can_be_told_apart() {
        for (bytes, text) in [
            (&b"a/b c"[..], "a/b c"),
            ("\u{e4}".as_bytes(), "\u{e4}"),
            (b"\xffa\xe4", r#""\377a\344""#),
            (b"a\nb\x01\t", r#""a\nb\001\t""#),
            (b"\x1b[31mred", r#""\033[31mred""#),
            // C1: a terminal takes it for ESC [.
            ("\u{9b}2J".as_bytes(), r#""\302\2332J""#),
            (b"a -> b", r#""a -> b""#),
            (b"\"q\\", r#""\"q\\""#),
        ] {
            assert_eq!(name(bytes), text);
        }
    }

    #[test]
    fn messages_keep_all_but_controls() {
        let text = "no \"a\\b\", \u{e4}:\u{7f}\x1b[2J\r\n\tnext";
        assert_eq!(line(text), "no \"a\\b\", \u{e4}:\\177\\033[2J\\015\\n\\tnext");
        assert_eq!(lines(text), "no \"a\\b\", \u{e4}:\\177\\033[2J\\015\n\tnext");
    }

    #[test]
    fn a_shell_gets_the_same_bytes_back() {
        for bytes in [
            &b"/home/me/Holdfast"[..],
            b"/it's here",
            b"",
            b"a\nb'\\c\x1b[2J\t1",
            b"\xff\xfe1",
            "\u{e4} \u{9b}".as_bytes(),
        ] {
            let script = format!("printf %s {}", shell(bytes));
            assert!(!script.contains(char::is_control), "{script}");
            let ran = std::process::Command::new("bash").arg("-c").arg(&script).output().unwrap();
            assert_eq!(ran.stdout, bytes, "{script}");
        }
        assert_eq!(shell(b"/home/me/Holdfast"), "/home/me/Holdfast");
        assert_eq!(shell(b"/it's here"), "'/it'\\''s here'");
        assert_eq!(shell(b""), "''");
    }
}
