//! In which bytes a block in memory differs from what the device has of it, and since when it was as that: for whoever is to find out
//! who has written there. Of a block that has changed legally since, the device has what it was before.

use crate::disk::Disk;
use crate::format::fields::Fields;
use crate::format::{BITS, BlockPointer, Fault, RECORD_BYTES, blockptr, record};
use crate::meta_block::{MetaBlock, NodeKey};
use crate::named::{StoredCopies, stored_block, stored_pointer};
use crate::words::{Bad, Words};
use holdfast_object::{Difference, Epoch, ObjectKey};
use std::fmt::Write;

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

/// The same for a block that the epoch being built has changed: by its sums if no more than one word has gone bad, else by the last recovery point.
pub(crate) fn since(disk: &Disk, block: &MetaBlock, key: NodeKey, stored: &StoredCopies) -> String {
    if block.is_at_home(key).is_err() {
        return "its bytes are out of reach".to_string();
    }
    if let Bad::Word(at, was) = block.bad(key) {
        let mut before = *block.bytes();
        before[8 * at..8 * at + 8].copy_from_slice(&was.to_le_bytes());
        return with(&before, block.bytes(), "by its sums");
    }
    if stored.is_hole() {
        return "it is new, so the last recovery point has none to tell the bytes by".into();
    }
    match stored.read(disk, key) {
        Some(stored) => since_then(&stored, block.bytes()),
        None => "the last recovery point's cannot be read to tell the bytes".into(),
    }
}

fn since_then(stored: &[u8; 4096], got: &[u8; 4096]) -> String {
    match Difference::between(stored, got) {
        None => "no byte differs from the last recovery point's".into(),
        Some(Difference { count, first, last, good, bad }) => format!(
            "{count} bytes differ from the last recovery point's, legal changes since included, from byte {first} to \
             {last}: {good} then, {bad} now"
        ),
    }
}

/// Of the good one and the one in memory.
pub(crate) fn between(stored: &[u8; 4096], got: &[u8; 4096]) -> String {
    with(stored, got, "as on the device")
}

/// The same, where it is known otherwise what the good one is.
pub(crate) fn with(good: &[u8; 4096], got: &[u8; 4096], how: &str) -> String {
    match Difference::between(good, got) {
        None => "no byte differs from the device's: its checksum has gone bad".to_string(),
        Some(Difference { count, first, last, good, bad }) => {
            format!("{count} bytes differ, from byte {first} to {last}: expected {good}, {how}, got {bad}")
        }
    }
}

/// A page of one of the store's own objects as a recovery point has it, and for which epoch it was written; by the pointer to the object's tree.
pub(crate) fn stored_page(
    disk: &Disk,
    object: ObjectKey,
    levels: u8,
    root: &BlockPointer,
    page: u64,
) -> Option<([u8; 4096], Epoch)> {
    let node = NodeKey::new(object, 0, page);
    let pointer = stored_pointer(disk, node, levels, root)?;
    stored_block(disk, node, &pointer).map(|bytes| (bytes, pointer.birth_phys))
}

/// Most fields that are told, most bytes of one, and most runs of blocks.
const FIELDS_MAX: usize = 16;
const BYTES_MAX: usize = 16;
const RUNS_MAX: usize = 8;

/// Which fields of a form are others than in a good one, by name: those of a record in a snapshot, and of a pointer in a record, by their own.
pub(crate) fn in_fields(fields: Fields, good: &[u8], bad: &[u8]) -> String {
    let mut told = Vec::new();
    put_fields(fields, "", good, bad, &mut told);
    match told.len().saturating_sub(FIELDS_MAX) {
        0 if told.is_empty() => "no field differs: its sums have gone bad".into(),
        0 => told.join("; "),
        more => format!("{}; and {more} fields more", told[..FIELDS_MAX].join("; ")),
    }
}

fn put_fields(fields: Fields, prefix: &str, good: &[u8], bad: &[u8], told: &mut Vec<String>) {
    for (name, at, length) in fields.each() {
        let (good, bad) = (&good[at..at + length], &bad[at..at + length]);
        let within = match name {
            "table" => Some(record::FIELDS),
            // A superblock's is a record.
            "root" if length == RECORD_BYTES => Some(record::FIELDS),
            "root" => Some(blockptr::FIELDS),
            _ => None,
        };
        match within {
            _ if good == bad => {}
            Some(within) => put_fields(within, &format!("{prefix}{name}."), good, bad, told),
            None => {
                // Long ones from the first byte on that differs.
                let from =
                    if length > BYTES_MAX { good.iter().zip(bad).take_while(|(g, b)| g == b).count() } else { 0 };
                let from_there = if from > 0 { format!(" from its byte {from}") } else { String::new() };
                let (good, bad) = (hex(&good[from..]), hex(&bad[from..]));
                told.push(format!("{prefix}{name}{from_there}: expected {good}, got {bad}"));
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut hex = bytes.iter().take(BYTES_MAX).fold(String::new(), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    if bytes.len() > BYTES_MAX {
        hex.push('…');
    }
    hex
}

/// The blocks, by number, of which a chunk of the bitmap says something else.
pub(crate) fn in_blocks(chunk: u64, good: &Words, bad: &Words) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (at, (good, bad)) in (0..).zip(good.iter().zip(bad)) {
        for bit in (0..64).filter(|bit| (good ^ bad) >> bit & 1 == 1) {
            let block = chunk * BITS + 64 * at + bit;
            match runs.last_mut() {
                Some((_, end)) if *end + 1 == block => *end = block,
                _ => runs.push((block, block)),
            }
        }
    }
    let told: Vec<String> = runs.iter().take(RUNS_MAX).map(|(first, last)| run(*first, *last)).collect();
    match runs.len().saturating_sub(RUNS_MAX) {
        0 if told.is_empty() => "no block".into(),
        0 => told.join(", "),
        more => format!("{}, and {more} runs more", told.join(", ")),
    }
}

fn run(first: u64, last: u64) -> String {
    if first == last { format!("block {first}") } else { format!("blocks {first} to {last}") }
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
        let strike = |object, at, bits: &[u8]| {
            rig.module.trees.write().dirty.get_mut(&leaf(object)).unwrap().block.scribble(at, bits);
        };
        // Two words.
        strike(2, 3990, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let error = rig.commit().unwrap_err().to_string();
        let told = "bytes differ from the last recovery point's, legal changes since included, from byte 320 to ";
        assert!(error.contains(told), "{error}");
        rig.module.begin_anew().unwrap();
        rig.fill(3, 70);
        strike(3, 3990, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let error = rig.commit().unwrap_err().to_string();
        assert!(error.contains("it is new, so") && error.contains(", last changed legally for epoch "), "{error}");
    }

    #[test]
    fn one_word_of_a_changed_block_is_told_by_its_sums() {
        // One object's block has changed since the last recovery point, the other's is new.
        for object in [2, 3] {
            let rig = Rig::new();
            rig.make(3);
            rig.fill(2, 70);
            rig.commit().unwrap();
            rig.fill(object, 70);
            let leaf = NodeKey { domain: 1, object, level: 1, index: 0 };
            rig.module.trees.write().dirty.get_mut(&leaf).unwrap().block.scribble(4001, &[0x41]);
            let error = rig.commit().unwrap_err().to_string();
            let byte = "1 bytes differ, from byte 4001 to 4001: expected ";
            assert!(error.contains(byte) && error.contains(", by its sums, got "), "{error}");
        }
    }

    #[test]
    fn blocks_of_the_bitmap_are_named() {
        let good = [0x10; 512];
        let mut bad = good;
        assert_eq!(in_blocks(2, &good, &bad), "no block");
        bad[0] ^= 0b1101 << 60;
        bad[1] ^= 0b11;
        assert_eq!(in_blocks(2, &good, &bad), "block 65596, blocks 65598 to 65601");
        for word in &mut bad[100..120] {
            *word ^= 2;
        }
        assert!(in_blocks(2, &good, &bad).ends_with("and 14 runs more"));
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
