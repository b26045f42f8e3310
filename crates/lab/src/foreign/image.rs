//! The blocks of a sound store, who points to whom, and the checksums made to fit after some of them were changed.
//!
//! The walk reads a store that was written a moment ago by this code, so it trusts what it reads. It keeps to the offsets of
//! `docs/format.md` and uses none of the decoders that are to be tested.

use super::edit::{Edit, apply};
use holdfast_block::{BLOCK_SIZE, MemoryDevice};
use holdfast_integrity::{Algorithm, crc64, identity_mix};
use holdfast_physical::{LABEL_BLOCKS, LABELS, label_start};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

type Bytes = [u8; BLOCK_SIZE];

const POINTER_BYTES: usize = 64;
const POINTER_ADDRESS_BYTES: usize = 6;
/// Five bytes of an epoch, little-endian.
const POINTER_BIRTH: usize = 12;
/// Kind in 2 bits, level in 4, seeded in 1.
const POINTER_SHAPE: usize = 22;
const SHAPE_SEEDED: u8 = 0x40;
/// The primary checksum's in the lower 4 bits, the secondary's in the upper.
const POINTER_ALGORITHMS: usize = 23;
const POINTER_CHECKSUM: usize = 24;
const POINTER_SECONDARY: usize = 56;
const RECORD_BYTES: usize = 512;
const RECORD_LEVELS: usize = 2;
const RECORD_ROOT: usize = 384;
const SNAPSHOT_BYTES: usize = 1024;
const SNAPSHOT_DELETED: usize = 40;
const SNAPSHOT_TABLE: usize = 512;
/// Where the record of domain 0's object table is in a superblock.
const SUPERBLOCK_RECORD: usize = 512;
const SUPERBLOCK_EPOCH: usize = 48;
/// Where the checksum of a label or a superblock is.
const SEAL: usize = 4088;
/// What is not the same in all labels: of a superblock the number of the label and the slot; of a label block also its
/// address.
const NUMBER_AND_SLOT: [Range<usize>; 2] = [12..14, 14..16];
const NUMBER_AND_BLOCK: [Range<usize>; 2] = [12..14, 16..24];
/// Of the head of a log batch: which of the two it is, bytes of the entries and of the sector sums, their checksum, the header's.
const HEAD_NUMBER: usize = 12;
const HEAD_ENTRIES: usize = 72;
const HEAD_SUMS: usize = 104;
const HEAD_ENTRIES_CHECKSUM: usize = 88;
const HEAD_CHECKSUM: usize = 152;
const HEAD_BYTES: usize = 160;
/// Kinds of records that lead to others.
const KIND_OBJECT_TABLE: u8 = 0x80;
const KIND_SNAPSHOT_LIST: u8 = 0x85;

/// What a block is a part of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// The label block, in all labels alike.
    Label,
    /// The newest superblock, in all labels alike.
    Superblock,
    /// The head of a batch in the intent log, in both copies alike.
    LogHead(u64),
    /// A block of an object's tree.
    Object {
        /// Its domain.
        domain: u16,
        /// Its number there.
        object: u64,
    },
}

/// Which block is meant. The same in every store that is made in the same way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockName {
    /// Whose.
    pub part: Part,
    /// Level in the tree; 0 is pages.
    pub level: u8,
    /// Number in that level.
    pub index: u64,
    /// How many other blocks of this place come first: the domain's own has 0, those of snapshots come behind it.
    pub version: u32,
}

impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Label => write!(f, "label"),
            Part::Superblock => write!(f, "superblock"),
            Part::LogHead(number) => write!(f, "log:{number}"),
            Part::Object { domain, object } => {
                write!(f, "{domain}:{object}:{}:{}:{}", self.level, self.index, self.version)
            }
        }
    }
}

impl FromStr for BlockName {
    type Err = String;

    fn from_str(text: &str) -> Result<BlockName, String> {
        let fixed = |part| BlockName { part, level: 0, index: 0, version: 0 };
        match text {
            "label" => return Ok(fixed(Part::Label)),
            "superblock" => return Ok(fixed(Part::Superblock)),
            _ => {}
        }
        if let Some(number) = text.strip_prefix("log:").and_then(|number| number.parse().ok()) {
            return Ok(fixed(Part::LogHead(number)));
        }
        let wrong = || format!("{text}: expected label, superblock, log:NUMBER or DOMAIN:OBJECT:LEVEL:INDEX:VERSION");
        let numbers: Vec<u64> =
            text.split(':').map(|number| number.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
        let &[domain, object, level, index, version] = numbers.as_slice() else { return Err(wrong()) };
        Ok(BlockName {
            part: Part::Object { domain: domain as u16, object },
            level: level as u8,
            index,
            version: version as u32,
        })
    }
}

struct Node {
    name: BlockName,
    address: [u64; 2],
    /// Mixed into its checksum; 0 for pages of objects.
    seed: u64,
    /// Blocks with a pointer to it, and where in them.
    parents: Vec<(usize, usize)>,
}

/// A store as blocks that know their parents. Node 0 is the superblock.
pub struct Image {
    device: MemoryDevice,
    blocks: u64,
    epoch: u64,
    nodes: Vec<Node>,
    /// Both copies of the head of each batch, which is one block.
    heads: Vec<[u64; 2]>,
}

/// Both addresses of the pointer at `at`.
fn addresses(block: &Bytes, at: usize) -> [u64; 2] {
    [0, POINTER_ADDRESS_BYTES].map(|copy| u64_at(block, at + copy) & 0xffff_ffff_ffff)
}

fn u64_at(block: &Bytes, at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}

/// Makes both checksums of the pointer at `at` those of `bytes`, each of the kind that the pointer names; `seed` is mixed into the first,
/// which is a CRC-64 if there is one. A checksum of a kind that nobody knows is left as it is.
fn fit(block: &mut [u8], at: usize, bytes: &Bytes, seed: u64) {
    let kinds = block[at + POINTER_ALGORITHMS];
    for (kind, from, to, seed) in
        [(kinds & 0xf, POINTER_CHECKSUM, POINTER_SECONDARY, seed), (kinds >> 4, POINTER_SECONDARY, POINTER_BYTES, 0)]
    {
        let Ok(algorithm) = Algorithm::parse(kind) else { continue };
        let mut sum = algorithm.sum(bytes).as_bytes().to_vec();
        sum.iter_mut().zip(seed.to_le_bytes()).for_each(|(byte, mixed)| *byte ^= mixed);
        if let Some(place) = block[at + from..at + to].get_mut(..sum.len()) {
            place.copy_from_slice(&sum);
        }
    }
}

fn put_u64(block: &mut Bytes, at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

impl Image {
    /// The store on `device`, which is sound and closed.
    pub fn new(device: MemoryDevice) -> Image {
        let blocks = holdfast_block::Device::blocks(&device);
        let mut image = Image { device, blocks, epoch: 0, nodes: Vec::new(), heads: Vec::new() };
        let heads: Vec<u64> = (0..blocks).filter(|at| image.read(*at)[..8] == *b"HFINTENT").collect();
        let is = |at: u64, second: u8| image.read(at)[HEAD_NUMBER] == second;
        // The second head is the next one behind the first: batches are appended.
        let pairs = heads.windows(2).filter(|pair| is(pair[0], 0) && is(pair[1], 1));
        image.heads = pairs.map(|pair| [pair[0], pair[1]]).collect();
        let newest = image.superblocks().max_by_key(|at| u64_at(&image.read(*at), SUPERBLOCK_EPOCH));
        let at = newest.expect("a store has a superblock");
        let superblock = image.read(at);
        image.epoch = u64_at(&superblock, SUPERBLOCK_EPOCH);
        let name = BlockName { part: Part::Superblock, level: 0, index: 0, version: 0 };
        image.nodes.push(Node { name, address: [at, 0], seed: 0, parents: Vec::new() });
        let mut known = BTreeMap::new();
        image.record(0, SUPERBLOCK_RECORD, (0, 0), &mut known);
        let mut versions: BTreeMap<BlockName, u32> = BTreeMap::new();
        for node in &mut image.nodes {
            let seen = versions.entry(node.name).or_default();
            node.name.version = *seen;
            *seen += 1;
        }
        image
    }

    /// All blocks that can be changed.
    pub fn names(&self) -> impl Iterator<Item = BlockName> {
        let fixed = |part| BlockName { part, level: 0, index: 0, version: 0 };
        let heads = (0..self.heads.len() as u64).map(Part::LogHead);
        let first = std::iter::once(Part::Label).chain(heads).map(fixed);
        first.chain(self.nodes.iter().map(|node| node.name))
    }

    /// What a block of the sound store holds.
    pub fn bytes(&self, name: BlockName) -> Option<Box<Bytes>> {
        let at = match name.part {
            Part::Label => label_start(0, self.blocks),
            Part::LogHead(number) => self.heads.get(usize::try_from(number).ok()?)?[0],
            _ => self.nodes.iter().find(|node| node.name == name)?.address[0],
        };
        Some(Box::new(self.read(at)))
    }

    /// Blocks of the device.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The recovery point.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Where blocks are, and when they were written: values that make a pointer plausible.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.nodes.iter().flat_map(|node| node.address).filter(|&address| address != 0)
    }

    fn read(&self, at: u64) -> Bytes {
        let mut block = [0; BLOCK_SIZE];
        let mut buffers = [std::io::IoSliceMut::new(&mut block)];
        holdfast_block::Device::read(&self.device, at, &mut buffers).expect("a block of the device");
        block
    }

    /// Blocks of the rings that have a superblock.
    fn superblocks(&self) -> impl Iterator<Item = u64> {
        let slots = (0..LABELS).flat_map(|label| (1..LABEL_BLOCKS).map(move |slot| (label, slot)));
        slots
            .map(|(label, slot)| label_start(label, self.blocks) + slot)
            .filter(|at| self.read(*at)[..8] == *b"HFSUPER1")
    }

    /// Follows the record at `at` of a block, which is that of `owner`.
    fn record(&mut self, parent: usize, at: usize, owner: (u16, u64), known: &mut BTreeMap<u64, usize>) {
        let block = self.read(self.nodes[parent].address[0]);
        let record = &block[at..at + RECORD_BYTES];
        let (kind, levels) = (record[0], record[RECORD_LEVELS]);
        if kind != 0 {
            self.pointer(parent, at + RECORD_ROOT, owner, kind, (levels, 0), known);
        }
    }

    fn pointer(
        &mut self,
        parent: usize,
        at: usize,
        owner: (u16, u64),
        kind: u8,
        (level, index): (u8, u64),
        known: &mut BTreeMap<u64, usize>,
    ) {
        let block = self.read(self.nodes[parent].address[0]);
        let address = addresses(&block, at);
        if address[0] == 0 {
            return;
        }
        if let Some(&node) = known.get(&address[0]) {
            self.nodes[node].parents.push((parent, at));
            return;
        }
        let seeded = block[at + POINTER_SHAPE] & SHAPE_SEEDED != 0;
        let seed = if seeded { identity_mix(owner.0, owner.1, level, index) } else { 0 };
        let part = Part::Object { domain: owner.0, object: owner.1 };
        let node = self.nodes.len();
        let name = BlockName { part, level, index, version: 0 };
        self.nodes.push(Node { name, address, seed, parents: vec![(parent, at)] });
        known.insert(address[0], node);
        if level > 0 {
            for slot in 0..BLOCK_SIZE / POINTER_BYTES {
                let child = (level - 1, index * 64 + slot as u64);
                self.pointer(node, slot * POINTER_BYTES, owner, kind, child, known);
            }
            return;
        }
        match (kind, owner) {
            (KIND_OBJECT_TABLE, (0, table)) => {
                let domain = (table / 16) as u16;
                for slot in 0..BLOCK_SIZE / RECORD_BYTES {
                    let object = index * (BLOCK_SIZE / RECORD_BYTES) as u64 + slot as u64;
                    // Object 0 of domain 0 is the table itself, rooted in the superblock.
                    if table != 0 || object != 0 {
                        self.record(node, slot * RECORD_BYTES, (domain, object), known);
                    }
                }
            }
            (KIND_SNAPSHOT_LIST, (0, list)) => {
                let list_page = self.read(address[0]);
                for at in (0..BLOCK_SIZE).step_by(SNAPSHOT_BYTES) {
                    // The trees of a deleted one are freed in part.
                    if list_page[at + SNAPSHOT_DELETED] == 0 {
                        self.record(node, at + SNAPSHOT_TABLE, (0, list / 16 * 16), known);
                    }
                }
            }
            _ => {}
        }
    }

    /// A device with these edits done, see [`Image::with`].
    pub fn with_edits(&self, edits: &[Edit]) -> MemoryDevice {
        self.with(&apply(self, edits))
    }

    /// A device with these blocks changed, each in all its copies, and with all checksums made to fit. A pointer keeps what
    /// a change made of it unless it still points to where it did.
    pub fn with(&self, changes: &BTreeMap<BlockName, Box<Bytes>>) -> MemoryDevice {
        let mut now: BTreeMap<usize, Bytes> = BTreeMap::new();
        for (name, bytes) in changes {
            if let Some(node) = self.nodes.iter().position(|node| node.name == *name) {
                now.insert(node, **bytes);
            }
        }
        // Nothing points up, so this ends at the superblock.
        let mut waiting: BTreeSet<usize> = now.keys().copied().collect();
        while let Some(at) = waiting.pop_last() {
            let Node { address, seed, parents, .. } = &self.nodes[at];
            let bytes = now[&at];
            for &(parent, offset) in parents {
                let block = now.entry(parent).or_insert_with(|| self.read(self.nodes[parent].address[0]));
                if addresses(block, offset) != *address {
                    continue;
                }
                let before = *block;
                fit(block, offset, &bytes, *seed);
                if *block != before {
                    waiting.insert(parent);
                }
            }
        }
        let device = self.device.clone();
        let put = |at: u64, block: &Bytes| device.alter(at, |bytes| *bytes = *block).expect("a block of the device");
        for (node, block) in &now {
            if *node == 0 {
                continue;
            }
            let copies = self.nodes[*node].address.into_iter().filter(|&address| address != 0);
            copies.for_each(|address| put(address, block));
        }
        // Labels and superblocks have numbers of their own, which a change of all alike must leave as they are.
        let alike = |at: u64, own: [Range<usize>; 2], changed: &Bytes, sound: &Bytes| {
            let mut block = *changed;
            let here = self.read(at);
            for range in own {
                if changed[range.clone()] == sound[range.clone()] {
                    block[range.clone()].copy_from_slice(&here[range.clone()]);
                }
            }
            let sum = crc64(&block[..SEAL]);
            put_u64(&mut block, SEAL, sum);
            put(at, &block);
        };
        if let Some(changed) = now.get(&0) {
            let sound = self.read(self.nodes[0].address[0]);
            for at in self.superblocks().filter(|at| u64_at(&self.read(*at), SUPERBLOCK_EPOCH) == self.epoch) {
                alike(at, NUMBER_AND_SLOT, changed, &sound);
            }
        }
        let label = BlockName { part: Part::Label, level: 0, index: 0, version: 0 };
        if let Some(changed) = changes.get(&label) {
            let sound = self.read(label_start(0, self.blocks));
            for number in 0..LABELS {
                alike(label_start(number, self.blocks), NUMBER_AND_BLOCK, changed, &sound);
            }
        }
        for (number, head) in self.heads.iter().enumerate() {
            let name = BlockName { part: Part::LogHead(number as u64), ..label };
            let Some(changed) = changes.get(&name) else { continue };
            let (entries, sums) = (u64_at(changed, HEAD_ENTRIES) as u32, u64_at(changed, HEAD_SUMS) as u32);
            let end = (HEAD_BYTES as u64 + u64::from(entries) + u64::from(sums)).min(BLOCK_SIZE as u64) as usize;
            let mut block = **changed;
            let sum = crc64(&block[HEAD_BYTES..end]);
            put_u64(&mut block, HEAD_ENTRIES_CHECKSUM, sum);
            for (copy, at) in head.iter().enumerate() {
                block[HEAD_NUMBER] = changed[HEAD_NUMBER] ^ copy as u8;
                let sum = crc64(&block[..HEAD_CHECKSUM]);
                put_u64(&mut block, HEAD_CHECKSUM, sum);
                put(*at, &block);
            }
        }
        device
    }

    /// A pointer as bytes to a block of the store, for a place where one of this object, level and index is expected; its
    /// checksum is that of the bytes that are given, or else of the block's own.
    pub fn pointer_to(&self, name: BlockName, place: (u16, u64, u8, u64), bytes: Option<&Bytes>) -> Option<[u8; 64]> {
        let target = self.nodes.iter().skip(1).find(|node| node.name == name)?;
        let &(parent, offset) = target.parents.first()?;
        let block = self.read(self.nodes[parent].address[0]);
        let mut pointer: [u8; POINTER_BYTES] = block[offset..offset + POINTER_BYTES].try_into().expect("64 bytes");
        let (domain, object, level, index) = place;
        let seeded = domain == 0 || level > 0;
        let seed = if seeded { identity_mix(domain, object, level, index) } else { 0 };
        let own = self.read(target.address[0]);
        // Of metadata it has to be this one.
        pointer[POINTER_ALGORITHMS] = Algorithm::Crc64Nvme.id();
        pointer[POINTER_CHECKSUM..].fill(0);
        fit(&mut pointer, 0, bytes.unwrap_or(&own), seed);
        let kind = if level == 0 { 1 } else { 2 };
        pointer[POINTER_SHAPE] = kind | level << 2 | if seeded { SHAPE_SEEDED } else { 0 };
        pointer[POINTER_BIRTH..][..5].copy_from_slice(&1u64.to_le_bytes()[..5]);
        Some(pointer)
    }
}
