//! In which bytes a clean block in memory differs from what the device has of it, and since when it was as that: for whoever is to find out
//! who has written there.

use crate::disk::Disk;
use crate::meta_block::{MetaBlock, NodeKey};
use holdfast_object::Epoch;
use std::fmt::Write;

/// Most bytes that are told.
const BYTES_MAX: usize = 16;

/// In words. Nothing depends on it, so errors are part of them. `written`: for which epoch the block was; 0: nobody knows.
pub(crate) fn told(disk: &Disk, block: &MetaBlock, key: NodeKey, address: u64, written: Epoch) -> String {
    let differs = differs(disk, block, key, address);
    if written == 0 { differs } else { format!("{differs}; last changed legally for epoch {written}") }
}

fn differs(disk: &Disk, block: &MetaBlock, key: NodeKey, address: u64) -> String {
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
    use crate::commit::tests::Rig;
    use crate::objects::{system_key, table_of};
    use holdfast_object::DomainId;

    #[test]
    fn a_scribble_is_told_with_its_bytes_and_the_epoch_of_the_last_change() {
        let rig = Rig::new();
        rig.fill(2, 1);
        rig.commit().unwrap();
        let (base, table) = (&rig.module.base, system_key(table_of(DomainId::MAIN)));
        let root = rig.module.trees.read().system[&table.object.0].root;
        let key = NodeKey { domain: 0, object: table.object.0, level: root.level, index: 0 };
        rig.scribble_cached(key, &root, 77);
        let (block, _) = base.cache.get(key, root.address[0]).unwrap();
        let told = told(&base.disk, &block, key, root.address[0], root.birth_phys);
        assert!(told.starts_with("1 bytes differ, from byte 77 to 77: expected "), "{told}");
        let epoch = rig.module.epoch();
        assert!(told.ends_with(&format!("; last changed legally for epoch {epoch}")), "{told}");
    }

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
