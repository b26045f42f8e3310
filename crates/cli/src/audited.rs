//! What is audited: `mount -o audit=…`. See docs/audit.md for what an equation costs.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which equations must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Audited {
    /// All: of recovery points and of transactions of names.
    #[default]
    All,
    /// Those of recovery points; not those of names, which cost the most.
    Store,
    /// None.
    #[serde(rename = "none")]
    Nothing,
}

impl Audited {
    /// What is not, for `status`; nothing if all is.
    pub(crate) fn warning(self) -> Option<&'static str> {
        match self {
            Audited::All => None,
            Audited::Store => Some("recovery points only: changes of names are NOT AUDITED"),
            Audited::Nothing => Some("OFF: what a bug of Holdfast changes wrongly may be stored"),
        }
    }
}

impl fmt::Display for Audited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Audited::All => "all",
            Audited::Store => "store",
            Audited::Nothing => "none",
        })
    }
}

impl FromStr for Audited {
    type Err = String;

    fn from_str(text: &str) -> Result<Audited, String> {
        [Audited::All, Audited::Store, Audited::Nothing]
            .into_iter()
            .find(|audited| audited.to_string() == text)
            .ok_or_else(|| format!("{text:?} is neither all nor store nor none"))
    }
}
