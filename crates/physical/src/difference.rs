//! In which bytes a block in memory differs from what the device has of it, and since when it was as that: for whoever is to find out
//! who has written there. Of a block that has changed legally since, the device has what it was before.

use crate::disk::Disk;
use crate::format::{BlockPointer, Fault};
use crate::meta_block::{MetaBlock, NodeKey, read_copy};
use holdfast_object::{Difference, Epoch};

/// In words. Nothing depends on it, so errors are part of them. `written`: for which epoch the block was; 0: nobody knows.
pub(crate) fn told(disk: &Disk, block: &MetaBlock, key: NodeKey, address: u64, written: Epoch) -> String {
    let differs = differs(disk, block, key, address);
    if written == 0 { differs } else { format!("{differs}; last changed legally for epoch {written}") }
}

fn differs(disk: &Disk, block: &MetaBlock, key: NodeKey, address: u64) -> String {
    if block.is_at_home(key).is_err() {
        return "its bytes are out of reach".to_string();
    }
    let stored = match disk.read_unverified(address) {
        Ok(bytes) => bytes.verify_identified(block.checksum(key), key.mix()),
        Err(error) => return format!("the device cannot say which bytes differ: {error}"),
    };
    match stored {
        Ok(stored) => between(&stored.into_inner().0.0, block.bytes()),
        Err(mismatch) => format!("the device cannot say which bytes differ: its own are wrong, {mismatch}"),
    }
}

/// The same for a block that the epoch being built has changed, with a comma before it; nothing if the last recovery point has none.
pub(crate) fn since(disk: &Disk, block: &MetaBlock, key: NodeKey, stored: &BlockPointer) -> String {
    if stored.is_hole() || block.is_at_home(key).is_err() {
        return String::new();
    }
    let copy = stored.addresses().find_map(|address| read_copy(disk, key, stored, address).ok());
    copy.map_or_else(String::new, |copy| since_then(&copy.into_inner().0.0, block.bytes()))
}

fn since_then(stored: &[u8; 4096], got: &[u8; 4096]) -> String {
    match Difference::between(stored, got) {
        None => ", no byte differs from the last recovery point's".into(),
        Some(Difference { count, first, last, good, bad }) => format!(
            ", {count} bytes differ from the last recovery point's, legal changes since included, from byte {first} to \
             {last}: {good} then, {bad} now"
        ),
    }
}

/// Of the good one and the one in memory.
pub(crate) fn between(stored: &[u8; 4096], got: &[u8; 4096]) -> String {
    match Difference::between(stored, got) {
        None => "no byte differs from the device's: its checksum has gone bad".to_string(),
        Some(Difference { count, first, last, good, bad }) => {
            format!("{count} bytes differ, from byte {first} to {last}: expected {good}, as on the device, got {bad}")
        }
    }
}

/// Whether a block is what it was meant to be.
///
/// # Errors
/// In which bytes it is not.
pub(crate) fn unless_equal(what: &'static str, meant: &[u8; 4096], got: &[u8; 4096]) -> Result<(), Fault> {
    Difference::between(meant, got).map_or(Ok(()), |Difference { count, first, last, good, bad }| {
        Err(Fault::new(what, good, format!("{bad}; {count} bytes differ, from byte {first} to {last}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::tests::Rig;
    use crate::objects::{system_key, table_of};
    use holdfast_object::{DomainId, ObjectStore};

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

    /// One object's block has a copy of before, the other's is new.
    #[test]
    fn a_changed_block_is_told_with_what_differs_since_the_last_recovery_point() {
        let rig = Rig::new();
        rig.make(3);
        rig.fill(2, 70);
        rig.commit().unwrap();
        let leaf = |object| NodeKey { domain: 1, object, level: 1, index: 0 };
        rig.write(2, 5).unwrap();
        rig.module.trees.write().dirty.get_mut(&leaf(2)).unwrap().block.scribble(4000, &[1]);
        let error = rig.commit().unwrap_err().to_string();
        let told = "bytes differ from the last recovery point's, legal changes since included, from byte 320 to ";
        assert!(error.contains(told), "{error}");
        rig.module.begin_anew().unwrap();
        rig.fill(3, 70);
        rig.module.trees.write().dirty.get_mut(&leaf(3)).unwrap().block.scribble(4000, &[1]);
        let error = rig.commit().unwrap_err().to_string();
        assert!(!error.contains("differ") && error.contains("last changed legally"), "{error}");
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
