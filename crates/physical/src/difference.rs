//! In which bytes a clean block in memory differs from what the device has of it: for whoever is to find out who has written there.

use crate::disk::Disk;
use crate::meta_block::{MetaBlock, NodeKey};
use std::fmt::Write;

/// Most bytes that are told.
const BYTES_MAX: usize = 16;

/// In words. Nothing depends on it, so errors are part of them.
pub(crate) fn told(disk: &Disk, block: &MetaBlock, key: NodeKey, address: u64) -> String {
    let stored = match disk.read_unverified(address) {
        Ok(bytes) => bytes.verify_identified(block.checksum(key), key.mix()),
        Err(error) => return format!("the device cannot say which bytes differ: {error}"),
    };
    match stored {
        Ok(stored) => between(&stored.into_inner().0.0, block.bytes()),
        Err(mismatch) => format!("the device cannot say which bytes differ: its own are wrong, {mismatch}"),
    }
}

fn between(stored: &[u8; 4096], got: &[u8; 4096]) -> String {
    let differs = |at: &usize| stored[*at] != got[*at];
    let (Some(first), Some(last)) = ((0..4096).find(differs), (0..4096).rev().find(differs)) else {
        return "no byte differs from the device's: its checksum has gone bad".to_string();
    };
    let count = (first..=last).filter(differs).count();
    let end = last.min(first + BYTES_MAX - 1);
    let hex = |bytes: &[u8; 4096]| {
        bytes[first..=end].iter().fold(String::new(), |mut hex, byte| {
            // Writing to a string does not fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    };
    let more = if end < last { "…" } else { "" };
    let (expected, got) = (hex(stored), hex(got));
    format!(
        "{count} bytes differ, from byte {first} to {last}: expected {expected}{more}, as on the device, got {got}{more}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_named() {
        let stored = [7; 4096];
        let mut got = stored;
        (got[100], got[102]) = (0, 255);
        let told = between(&stored, &got);
        assert_eq!(told, "2 bytes differ, from byte 100 to 102: expected 070707, as on the device, got 0007ff");
        got[4095] = 1;
        assert!(between(&stored, &got).contains("3 bytes differ, from byte 100 to 4095: expected 0707"));
        assert!(between(&stored, &stored).contains("checksum has gone bad"));
    }
}
