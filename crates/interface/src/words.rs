//! Words for a place with less room than they need: what is cut says so.

use std::borrow::Cow;

const MARK: &str = "…";

/// The words in at most `room` bytes: if they are longer their end is cut off, at a character, and "…" stands for it. Without room for that,
/// nothing is left.
pub fn without_end(words: &str, room: usize) -> Cow<'_, str> {
    if words.len() <= room {
        return words.into();
    }
    let Some(kept) = room.checked_sub(MARK.len()) else { return "".into() };
    let end = (0..=kept).rev().find(|&end| words.is_char_boundary(end)).unwrap_or(0);
    format!("{}{MARK}", &words[..end]).into()
}

/// The same, of words whose end says more than their start, as that of a path does.
pub fn without_start(words: &str, room: usize) -> Cow<'_, str> {
    if words.len() <= room {
        return words.into();
    }
    let Some(kept) = room.checked_sub(MARK.len()) else { return "".into() };
    let start = (words.len() - kept..words.len()).find(|&start| words.is_char_boundary(start)).unwrap_or(words.len());
    format!("{MARK}{}", &words[start..]).into()
}
