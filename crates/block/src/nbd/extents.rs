//! What is known of blocks besides their contents.

use crate::Error;

/// A kind of knowledge about blocks, which clients ask for by its name (the protocol's "metadata context").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// `base:allocation`: flags [`HOLE`] and [`ZERO`].
    Allocation,
    /// `x-holdfast:not-backed-up`: flag [`NOT_BACKED_UP`].
    BackUp,
}

/// Nothing is allocated there, so that a write can fail for want of room.
pub const HOLE: u32 = 1;
/// It reads as zeros.
pub const ZERO: u32 = 2;
/// It has changed since the last backup.
pub const NOT_BACKED_UP: u32 = 1;

impl Context {
    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Context::Allocation => "base:allocation",
            Context::BackUp => "x-holdfast:not-backed-up",
        }
    }

    /// Whether a query for names asks for it: by its name, or by the name space alone where such a query lists.
    pub(super) fn is_asked_for(self, query: &str, listing: bool) -> bool {
        let name = self.name();
        name == query || listing && query.ends_with(':') && name.starts_with(query)
    }
}

/// A run of blocks of which the same is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// How many; not 0.
    pub blocks: u64,
    /// The context's flags.
    pub flags: u32,
}

/// What a device knows of its blocks besides their contents. By default, that all of them are data.
pub trait Extents: Send + Sync {
    /// What it can tell.
    fn contexts(&self) -> &[Context] {
        &[Context::Allocation]
    }

    /// The run of blocks that begins at `first`, in one of [its contexts](Extents::contexts). It may be longer than `most`, and
    /// shorter than what has the same flags. What writes change meanwhile may be told as it was or as it is.
    ///
    /// # Errors
    /// The device's own, which the client gets.
    fn extent(&self, context: Context, first: u64, most: u64) -> Result<Extent, Error> {
        let _ = (context, first);
        Ok(Extent { blocks: most, flags: 0 })
    }

    /// How many blocks from `first` are known to be zeros without being looked at; not more than `most`. It is asked before large
    /// reads, so it should be quick.
    fn zeros_ahead(&self, first: u64, most: u64) -> u64 {
        let _ = (first, most);
        0
    }
}

/// Knows nothing: all is data.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllData;

impl Extents for AllData {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_found_by_name_and_listed_by_name_space() {
        let found = |query, listing| Context::Allocation.is_asked_for(query, listing);
        assert!(found("base:allocation", false) && found("base:allocation", true) && found("base:", true));
        assert!(!found("base:", false) && !found("base:all", true) && !found("x-holdfast:", true) && !found("", true));
        assert!(Context::BackUp.is_asked_for("x-holdfast:", true));
    }
}
