//! What a name in a directory can be.

use crate::error::{Error, Result};

/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;

/// Whether the bytes are a name: 1 to 255 of them, no `/`, no NUL.
fn is_plain(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !ends_names(name)
}

/// Whether a byte is `/` or NUL. Each page that is read has a hundred names: eight bytes at a time, the last ones with some of those before.
fn ends_names(name: &[u8]) -> bool {
    let has = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        has_zero(word) || has_zero(word ^ u64::from_le_bytes([b'/'; 8]))
    };
    match name.last_chunk() {
        Some(last) => has(last) || name.as_chunks().0.iter().any(has),
        None => name.iter().any(|&byte| byte == 0 || byte == b'/'),
    }
}

/// Whether a byte of the word is 0: only then the subtraction takes from a byte whose highest bit is not set, in the lowest such byte.
fn has_zero(word: u64) -> bool {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080 != 0
}

/// Whether the bytes can stand in a stored entry: `.` and `..` never do.
pub(crate) fn is_storable(name: &[u8]) -> bool {
    is_plain(name) && name != b"." && name != b".."
}

/// Checks a name that a caller wants to find.
pub(crate) fn check(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong { length: name.len(), limit: NAME_MAX });
    }
    if !is_plain(name) {
        return Err(Error::InvalidArgument("a name is empty or has a slash or a NUL in it"));
    }
    Ok(())
}

/// Checks a name that a caller wants to make or remove: `.` and `..` are always there.
pub(crate) fn check_changeable(name: &[u8]) -> Result<()> {
    check(name)?;
    match name {
        b"." | b".." => Err(Error::InvalidArgument("the names . and .. cannot be made, moved or removed")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_no_name_has_are_found_anywhere() {
        for length in 1..=40 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    for other in [1, b'.', b'0', 0x7f, 0x80, 0xff] {
                        let mut name = vec![other; length];
                        name[at] = byte;
                        assert_eq!(is_plain(&name), byte != 0 && byte != b'/', "{name:?}");
                    }
                }
            }
        }
        assert!(!is_plain(b"") && !is_plain(&[b'n'; NAME_MAX + 1]) && is_plain(&[b'n'; NAME_MAX]));
    }
}
