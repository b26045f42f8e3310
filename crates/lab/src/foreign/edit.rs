//! Changes of bytes in the blocks of an image: made at random from values that mean something, or read from a file.
//!
//! A file has one edit per line: `BLOCK @OFFSET HEX`, the block as [`BlockName`] is written; `#` begins a comment.

use super::image::{BlockName, Image, Part};
use holdfast_block::BLOCK_SIZE;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

type Bytes = [u8; BLOCK_SIZE];

/// Other bytes at a place of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    /// Where.
    pub block: BlockName,
    /// In bytes from the block's start.
    pub offset: usize,
    /// What.
    pub bytes: Vec<u8>,
}

/// As lines of a file.
pub fn render(edits: &[Edit]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    edits.iter().map(|edit| format!("{} @{} {}\n", edit.block, edit.offset, hex(&edit.bytes))).collect()
}

/// Edits from the lines of a file.
///
/// # Errors
/// In words, with the line.
pub fn parse(text: &str) -> Result<Vec<Edit>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim()).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let wrong = |what: &str| format!("{line}: {what}");
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[block, offset, hex] = words.as_slice() else { return Err(wrong("expected BLOCK @OFFSET HEX")) };
            let block = block.parse().map_err(|error: String| wrong(&error))?;
            let offset: usize =
                offset.strip_prefix('@').and_then(|number| number.parse().ok()).ok_or_else(|| wrong("no offset"))?;
            let digits: Option<Vec<u8>> = hex.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
            let digits = digits.filter(|digits| digits.len() % 2 == 0).ok_or_else(|| wrong("no hexadecimal bytes"))?;
            let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
            if offset + bytes.len() > BLOCK_SIZE {
                return Err(wrong("beyond the block"));
            }
            Ok(Edit { block, offset, bytes })
        })
        .collect()
}

/// The blocks after the edits.
pub(super) fn apply(image: &Image, edits: &[Edit]) -> BTreeMap<BlockName, Box<Bytes>> {
    let mut changed: BTreeMap<BlockName, Box<Bytes>> = BTreeMap::new();
    for edit in edits {
        // A block that the sample does not have any more is passed over: old edits stay useful.
        let block = match changed.entry(edit.block) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => match image.bytes(edit.block) {
                Some(bytes) => new.insert(bytes),
                None => continue,
            },
        };
        block[edit.offset..][..edit.bytes.len()].copy_from_slice(&edit.bytes);
    }
    changed
}

/// What random edits are made of.
pub struct Pool {
    /// Blocks by what they are part of, so that the one page of a list is hit as often as the many of a file.
    groups: Vec<Vec<BlockName>>,
    values: Vec<u64>,
}

impl Pool {
    /// For an image.
    pub fn new(image: &Image) -> Pool {
        let mut groups: BTreeMap<(Part, bool, bool), Vec<BlockName>> = BTreeMap::new();
        for name in image.names() {
            groups.entry((name.part, name.level > 0, name.version > 0)).or_default().push(name);
        }
        let (blocks, epoch) = (image.blocks(), image.epoch());
        let mut values = vec![0, 1, 2, 3, blocks - 1, blocks, blocks + 1, epoch - 1, epoch, epoch + 1];
        values.extend((0..64).map(|bit| 1 << bit));
        values.extend([0xff, 0xfff, 0xffff, 0x7fff_ffff, 0xffff_ffff, (1 << 48) - 1, i64::MAX as u64, u64::MAX - 4095]);
        values.extend([u64::MAX - 1, u64::MAX, 1 << 48 | 40, 4095, 4097, 1_000_000_000]);
        let mut addresses: Vec<u64> = image.addresses().collect();
        addresses.sort_unstable();
        values.extend(addresses.iter().step_by(addresses.len() / 64 + 1));
        Pool { groups: groups.into_values().collect(), values }
    }
}

/// A few edits of one block, or of two.
pub fn random(image: &Image, pool: &Pool, rng: &mut Pcg64Mcg) -> Vec<Edit> {
    let count = if rng.random_bool(0.2) { 2 } else { 1 };
    let mut edits = Vec::new();
    for _ in 0..count {
        let group = pool.groups.choose(rng).expect("a store has blocks");
        let block = *group.choose(rng).expect("no group is empty");
        let bytes = image.bytes(block).expect("it was found there");
        for _ in 0..rng.random_range(1..4) {
            let (offset, bytes) = edit(image, pool, block, &bytes, rng);
            edits.push(Edit { block, offset, bytes });
        }
    }
    edits
}

/// Most of what a block holds is zeros that mean nothing, so most edits are near what is not zero.
fn somewhere(bytes: &Bytes, rng: &mut Pcg64Mcg) -> usize {
    if rng.random_bool(0.8) {
        let used: Vec<usize> = (0..BLOCK_SIZE).filter(|at| bytes[*at] != 0).collect();
        if let Some(&at) = used.choose(rng) {
            return (at + rng.random_range(0..4)).min(BLOCK_SIZE - 1);
        }
    }
    rng.random_range(0..BLOCK_SIZE)
}

fn edit(image: &Image, pool: &Pool, block: BlockName, bytes: &Bytes, rng: &mut Pcg64Mcg) -> (usize, Vec<u8>) {
    let at = somewhere(bytes, rng);
    let word = |width: usize| (at / width * width).min(BLOCK_SIZE - width);
    let value = *pool.values.choose(rng).expect("there are values");
    match rng.random_range(0..9) {
        0 => (at, vec![bytes[at] ^ 1 << rng.random_range(0..8)]),
        1 => (at, vec![rng.random()]),
        2 => (word(8), value.to_le_bytes().to_vec()),
        3 => (word(4), (value as u32).to_le_bytes().to_vec()),
        4 => {
            let at = word(2);
            (at, (value as u16).to_le_bytes().to_vec())
        }
        5 => {
            // A little more or less: lengths, counts, indices.
            let width = *[1, 2, 4, 8].choose(rng).expect("widths");
            let at = word(width);
            let mut number = [0; 8];
            number[..width].copy_from_slice(&bytes[at..at + width]);
            let near = u64::from_le_bytes(number).wrapping_add(rng.random_range(0..5)).wrapping_sub(2);
            (at, near.to_le_bytes()[..width].to_vec())
        }
        6 => {
            // Bytes from elsewhere in the block, at distances that structures have.
            let width = *[8, 16, 32, 64, 512, 1024].choose(rng).expect("widths");
            let from = rng.random_range(0..BLOCK_SIZE / width) * width;
            (word(width), bytes[from..from + width].to_vec())
        }
        7 => {
            let width = *[16, 64, 512].choose(rng).expect("widths");
            (word(width), vec![*[0, 0, 0xff].choose(rng).expect("bytes"); width])
        }
        _ => {
            // A pointer that verifies, to a block that belongs elsewhere.
            let BlockName { part: Part::Object { domain, object }, level, index, .. } = block else {
                return (word(8), value.to_le_bytes().to_vec());
            };
            let group = pool.groups.choose(rng).expect("a store has blocks");
            let target = *group.choose(rng).expect("no group is empty");
            let slot = at / 64;
            let place = match level {
                0 => (domain, object, target.level, 0),
                _ => (domain, object, level - 1, index * 64 + slot as u64),
            };
            match image.pointer_to(target, place, None) {
                Some(pointer) => (slot * 64, pointer.to_vec()),
                None => (word(8), value.to_le_bytes().to_vec()),
            }
        }
    }
}
