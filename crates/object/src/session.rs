//! What sessions hold. Kept below naming, so that naming itself can die.

use serde::{Deserialize, Serialize};

/// A reason for which an object stays although no name refers to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Hold {
    /// The client remembers the object by its id (a FUSE lookup count).
    Lookup,
    /// An open handle.
    Open,
}

/// How often an object is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Holds {
    /// By id.
    pub lookups: u64,
    /// By open handles.
    pub opens: u64,
}

impl Holds {
    /// Nobody holds it.
    pub fn is_free(&self) -> bool {
        self.lookups == 0 && self.opens == 0
    }
}
