//! What a name in a directory can be.

use crate::error::{Error, Result};

/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;

/// Whether the bytes are a name: 1 to 255 of them, no `/`, no NUL.
fn is_plain(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.iter().any(|&byte| byte == 0 || byte == b'/')
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
