//! Making a set larger that is served.

use super::sets;
use crate::failure::{Failure, Result};
use crate::growth::NewSize;
use crate::output::Report;
use crate::{size, stack};
use holdfast_block::flashlog::{AREA_UNIT_BLOCKS, Lasting, Protection};
use holdfast_block::{BLOCK_SIZE, Device};
use serde::{Deserialize, Serialize};

/// A set was made larger, or was as large as that.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GrowReport {
    set: String,
    before_bytes: u64,
    size_bytes: u64,
    /// Main has its log; otherwise it is alone.
    protected: bool,
}

impl GrowReport {
    pub(crate) fn is_protected(&self) -> bool {
        self.protected
    }
}

impl Report for GrowReport {
    fn words(&self) -> String {
        let (before, now) = (size::show(self.before_bytes), size::show(self.size_bytes));
        let mut text = match self.before_bytes == self.size_bytes {
            true => format!("The set has {now} already, all that is there; say how large it is to be.\n"),
            false => format!("The set has grown from {before} to {now}. Clients see it when they connect again.\n"),
        };
        if !self.protected {
            text.push_str("NOT PROTECTED: main is without its log. Give it back: holdfast flashlog attach --log LOG\n");
        }
        text
    }
}

/// Makes a set larger, with main.
pub(super) fn run(set: &Lasting, wanted: Option<NewSize>) -> Result<GrowReport> {
    let before_bytes = sets::size_bytes(set);
    let wanted_bytes = match wanted {
        None => None,
        Some(NewSize::To(bytes)) => Some(bytes),
        Some(NewSize::By(bytes)) => Some(before_bytes.saturating_add(bytes)),
    };
    if wanted_bytes.is_some_and(|bytes| bytes < before_bytes) {
        let has = size::show(before_bytes);
        return Err(Failure::usage(format!("the set has {has} already, and cannot become smaller")));
    }
    // Zero asks for what is there. A set has whole MiB.
    let unit_bytes = AREA_UNIT_BLOCKS * BLOCK_SIZE as u64;
    let blocks = wanted_bytes.map_or(0, |bytes| bytes.div_ceil(unit_bytes).max(1).saturating_mul(AREA_UNIT_BLOCKS));
    set.grow(blocks).map_err(stack::says)?;
    Ok(GrowReport {
        set: set.status().0.set.to_string(),
        before_bytes,
        size_bytes: sets::size_bytes(set),
        protected: matches!(set.protection(), Protection::Protected),
    })
}
