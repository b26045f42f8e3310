//! The decoders of single structures as functions of bytes alone, for fuzzing: any bytes are an error or a value.

use super::at::Kept;
use super::format::{Decoded, GROUP_BLOCKS, Label, MAP_BLOCKS, MapOf, Page, Regions, Uuid, sums};
use crate::BLOCK_SIZE;
use holdfast_integrity::{Crc64, crc64};

/// Blocks of the set's device that pages are held against.
const BLOCKS: u64 = 1024;
/// Most blocks of a set's device whose map is decoded.
const MAP_SET_BLOCKS_MOST: u64 = 1 << 48;

/// A decoder: its name, and a function that panics if it does not keep to the rule above, and says whether the bytes are a value.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// All of them.
pub const DECODERS: [Decoder; 4] =
    [("flashlog-label", label), ("flashlog-page", page), ("flashlog-map", map), ("flashlog-sums", group_sums)];

/// The bytes, cut or filled with zeros, with a checksum in the last eight that fits.
fn sealed(bytes: &[u8]) -> [u8; BLOCK_SIZE] {
    let mut block = [0; BLOCK_SIZE];
    let length = bytes.len().min(BLOCK_SIZE);
    block[..length].copy_from_slice(&bytes[..length]);
    let crc = crc64(&block[..BLOCK_SIZE - 8]);
    block[BLOCK_SIZE - 8..].copy_from_slice(&crc.to_le_bytes());
    block
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn uuid_at(bytes: &[u8], at: usize) -> Uuid {
    Uuid(bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default())
}

/// A label, on a device of the size that it says; it is written as it was read.
fn label(bytes: &[u8]) -> bool {
    let block = sealed(bytes);
    let (own, device_blocks) = (u64_at(&block, 16), u64_at(&block, 96));
    let Decoded::Valid(label) = Label::decode(&block, own, device_blocks) else { return false };
    let again = label.encode();
    assert!(again[(own - label.place()) as usize] == block, "a label is written as it was read");
    true
}

/// A page of the log or of a staging area, with all blocks that it names.
fn page(bytes: &[u8]) -> bool {
    let mut block = sealed(bytes);
    let Ok(page) = Page::decode(&block, BLOCKS) else { return false };
    let named = page.entries.iter().flat_map(Kept::of).filter(|kept| kept.address < BLOCKS).count() as u64;
    assert_eq!(named, page.blocks(), "all blocks are the set's");
    // What one flipped bit makes of it is the same page.
    let at = page.sum as usize % BLOCK_SIZE;
    block[at] ^= 1;
    assert_eq!(Page::decode_mending(&mut block, BLOCKS).as_ref(), Ok(&page));
    true
}

/// A map of regions, of whoever it says; what is marked is on the set's device, and it says the same when it is written again.
fn map(bytes: &[u8]) -> bool {
    let length = bytes.len().next_multiple_of(BLOCK_SIZE).clamp(BLOCK_SIZE, MAP_BLOCKS as usize * BLOCK_SIZE);
    let mut slot = bytes.to_vec();
    slot.resize(length, 0);
    let blocks = u64_at(&slot, 56).min(MAP_SET_BLOCKS_MOST);
    let of = MapOf { set: uuid_at(&slot, 16), device: uuid_at(&slot, 32), sequence: u64_at(&slot, 48), blocks };
    let mut crc = Crc64::new();
    crc.update(&slot[..120]);
    crc.update(&slot[128..]);
    slot[120..128].copy_from_slice(&crc.value().to_le_bytes());
    let Ok(regions) = Regions::decode(&slot, &of) else { return false };
    if let Some((first, count)) = regions.next_run(0, u64::MAX) {
        assert!(count > 0 && first + count <= blocks, "what is marked is on the set's device");
    }
    assert!(regions.marked_blocks() <= blocks);
    assert_eq!(Regions::decode(&regions.encode(&of), &of).as_ref(), Ok(&regions));
    true
}

/// The checksums of a group, at the place that they say; they are written as they were read.
fn group_sums(bytes: &[u8]) -> bool {
    let block = sealed(bytes);
    let own = u64_at(&block, 0);
    let Some(found) = sums::decode(&block, own) else { return false };
    assert!(found.len() as u64 == GROUP_BLOCKS && sums::encode(own, &found) == block);
    true
}
