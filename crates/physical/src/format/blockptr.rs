//! Block pointers: where a block is, since when, and what its checksum is.

use super::fields::{Fields, fields};
use super::{Fault, hex};
use holdfast_integrity::{Algorithm, Checksum, DIGEST_MAX, StoredSums, crc64};
use holdfast_object::{BlockIdentity, Epoch, Side};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block pointer of size code 0.
pub(crate) const POINTER_BYTES: usize = 64;
/// Last epoch that a pointer can name. At a hundred recovery points a second it comes after 348 years.
pub(crate) const EPOCH_MAX: Epoch = (1 << 40) - 1;

/// Of `shape`: kind, level, whether the block's identity is mixed in, of a lost page that the device lost it.
const KIND_BITS: u8 = 0b0000_0011;
pub(crate) const LEVEL_SHIFT: u8 = 2;
const LEVEL_BITS: u8 = 0b0011_1100;
pub(crate) const FLAG_SEEDED: u8 = 0b0100_0000;
const FLAG_DEVICE: u8 = 0b1000_0000;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    address: [[u8; 6]; 2],
    birth_phys: [u8; 5],
    birth_log: [u8; 5],
    shape: u8,
    /// Lower half: of the primary checksum; upper half: of the secondary.
    algorithms: u8,
    primary: [u8; DIGEST_MAX],
    secondary: [u8; 8],
}
const _: () = assert!(size_of::<Raw>() == POINTER_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, shape) == 22);
const KIND_SHIFT: usize = 8 * (std::mem::offset_of!(Raw, shape) - 16);
const _: () = assert!(std::mem::offset_of!(Raw, primary) == 24);

pub(crate) const FIELDS: Fields =
    fields!(Raw { address, birth_phys, birth_log, shape, algorithms, primary, secondary });

/// A number in fewer than 8 bytes, little-endian.
fn narrow<const N: usize>(number: u64) -> [u8; N] {
    assert!(number >> (8 * N) == 0, "{number:#x} has more than {N} bytes");
    std::array::from_fn(|at| (number >> (8 * at)) as u8)
}

fn wide<const N: usize>(bytes: [u8; N]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// What a block pointer stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub(crate) enum PointerKind {
    /// Nothing stored: reads as zero. All bytes of the pointer are zero.
    #[default]
    Hole = 0,
    /// A page of the object.
    Data = 1,
    /// A block of pointers of the next lower level.
    Tree = 2,
    /// A page whose bytes went bad in memory before they were stored: reads as an error.
    LostInMemory = 3,
    /// A page whose bytes the device has no more: the same.
    LostOnDevice = 3 | FLAG_DEVICE,
}

impl PointerKind {
    /// Where the bytes of a lost page went bad.
    pub(crate) fn lost(self) -> Option<Side> {
        match self {
            PointerKind::LostInMemory => Some(Side::Memory),
            PointerKind::LostOnDevice => Some(Side::Device),
            PointerKind::Hole | PointerKind::Data | PointerKind::Tree => None,
        }
    }
}

/// A decoded block pointer.
///
/// Invariants (of one that came from a device): a hole is all zero; data and tree have an address on the device, a second
/// one or 0, and `1 <= birth_phys <= birth_log`; lost has births and nothing else.
/// In memory only, a tree pointer without an address stands for a tree block that is dirty ([`BlockPointer::PENDING`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockPointer {
    pub(crate) address: [u64; 2],
    pub(crate) birth_phys: Epoch,
    pub(crate) birth_log: Epoch,
    pub(crate) kind: PointerKind,
    pub(crate) level: u8,
    /// Whether the block's identity is mixed into the checksum (all metadata of the store's own).
    pub(crate) seeded: bool,
    pub(crate) sums: StoredSums,
}

/// What of a block pointer the audit counts: all but its checksums, read without judging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Glance {
    pub(crate) address: [u64; 2],
    pub(crate) birth_phys: Epoch,
    pub(crate) birth_log: Epoch,
    pub(crate) kind: PointerKind,
    pub(crate) level: u8,
}

impl Glance {
    pub(crate) const PENDING: Glance = Glance::of(&BlockPointer::PENDING);

    /// Where the kind is in the little-endian word in bytes 16 to 23 of an encoded pointer, which begins with both addresses; and a page's.
    pub(crate) const KIND_MASK: u64 = (KIND_BITS as u64) << KIND_SHIFT;
    pub(crate) const DATA: u64 = (PointerKind::Data as u64) << KIND_SHIFT;

    /// At an encoded pointer.
    pub(crate) fn at(bytes: &[u8; POINTER_BYTES]) -> Glance {
        let raw: &Raw = zerocopy::transmute_ref!(bytes);
        Glance {
            address: raw.address.map(wide),
            birth_phys: wide(raw.birth_phys),
            birth_log: wide(raw.birth_log),
            kind: kind_of(raw.shape),
            level: level_of(raw.shape),
        }
    }

    /// Whether its births can be: none before the first epoch, and the physical one no later than the logical one.
    #[inline]
    pub(crate) fn is_born_in_order(&self) -> bool {
        0 < self.birth_phys && self.birth_phys <= self.birth_log
    }

    /// A page that is stored once, and born when it can be: as most are.
    #[inline]
    pub(crate) fn is_plain_page(&self) -> bool {
        let is_single = self.address[0] != 0 && self.address[1] == 0;
        self.kind == PointerKind::Data && self.level == 0 && is_single && self.is_born_in_order()
    }

    pub(crate) const fn of(pointer: &BlockPointer) -> Glance {
        let BlockPointer { address, birth_phys, birth_log, kind, level, .. } = *pointer;
        Glance { address, birth_phys, birth_log, kind, level }
    }
}

pub(crate) fn kind_of(shape: u8) -> PointerKind {
    match shape & KIND_BITS {
        0 => PointerKind::Hole,
        1 => PointerKind::Data,
        2 => PointerKind::Tree,
        _ if shape & FLAG_DEVICE != 0 => PointerKind::LostOnDevice,
        _ => PointerKind::LostInMemory,
    }
}

pub(crate) fn level_of(shape: u8) -> u8 {
    (shape & LEVEL_BITS) >> LEVEL_SHIFT
}

const NO_SUMS: StoredSums = StoredSums { primary: Checksum::none(), secondary: Checksum::none() };

impl Default for BlockPointer {
    fn default() -> Self {
        BlockPointer::HOLE
    }
}

impl BlockPointer {
    pub(crate) const HOLE: BlockPointer = BlockPointer {
        address: [0; 2],
        birth_phys: 0,
        birth_log: 0,
        kind: PointerKind::Hole,
        level: 0,
        seeded: false,
        sums: NO_SUMS,
    };

    /// Stands for a block that is dirty in memory: found there by its identity, never written to a device.
    pub(crate) const PENDING: BlockPointer = BlockPointer { kind: PointerKind::Tree, ..BlockPointer::HOLE };

    /// The bits of its numbers that have no place in the encoded form: one that is whole has none.
    pub(crate) fn excess(&self) -> u64 {
        let BlockPointer { address: [first, second], birth_phys, birth_log, level, .. } = *self;
        (first | second) >> 48 | (birth_phys | birth_log) >> 40 | u64::from(level) >> 4
    }

    pub(crate) fn is_hole(&self) -> bool {
        self.kind == PointerKind::Hole
    }

    /// Whether it names these blocks, as the contents of a page.
    pub(crate) fn is_data_at(&self, address: [u64; 2]) -> bool {
        self.kind == PointerKind::Data && self.address == address
    }

    /// Whether an encoded pointer is one, without decoding the rest.
    pub(crate) fn encodes_hole(bytes: &[u8; POINTER_BYTES]) -> bool {
        bytes[std::mem::offset_of!(Raw, shape)] & KIND_BITS == PointerKind::Hole as u8
    }

    /// Has a block on the device.
    pub(crate) fn is_stored(&self) -> bool {
        self.address[0] != 0
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> + use<> {
        self.address.into_iter().filter(|&address| address != 0)
    }

    pub(crate) fn identity(&self) -> BlockIdentity {
        BlockIdentity { address: self.address[0], birth: self.birth_phys }
    }

    pub(crate) fn lost(epoch: Epoch, side: Side) -> BlockPointer {
        let kind = match side {
            Side::Memory => PointerKind::LostInMemory,
            Side::Device => PointerKind::LostOnDevice,
        };
        BlockPointer { kind, birth_phys: epoch, birth_log: epoch, ..BlockPointer::HOLE }
    }

    /// Whether bytes read from one of its addresses are those that were written; `mix` is of the block's identity, which counts if
    /// the pointer is seeded.
    pub(crate) fn matches(&self, bytes: &[u8], mix: u64) -> bool {
        match self.seeded {
            true => Checksum::crc64(crc64(bytes) ^ mix) == self.sums.primary,
            false => self.sums.primary.verify(bytes).is_ok(),
        }
    }

    /// Whether anything tells if its bytes are those that were written: of a page of a file in mode `none` nothing does.
    pub(crate) fn has_checksum(&self) -> bool {
        self.sums.primary.algorithm() != Algorithm::None
    }

    pub(crate) fn encode(&self) -> [u8; POINTER_BYTES] {
        let StoredSums { primary, secondary } = self.sums;
        assert!(secondary.algorithm().digest_len() <= 8, "a secondary checksum of {}", secondary.algorithm());
        let raw = Raw {
            address: self.address.map(narrow),
            birth_phys: narrow(self.birth_phys),
            birth_log: narrow(self.birth_log),
            shape: self.kind as u8 | self.level << LEVEL_SHIFT | if self.seeded { FLAG_SEEDED } else { 0 },
            algorithms: primary.algorithm().id() | secondary.algorithm().id() << 4,
            primary: primary.to_padded(),
            secondary: secondary.as_number().to_le_bytes(),
        };
        zerocopy::transmute!(raw)
    }

    /// Decodes without judging: for pointers in blocks that were checked when they were read. What is not known is left out.
    pub(crate) fn decode(bytes: &[u8; POINTER_BYTES]) -> BlockPointer {
        let raw: Raw = zerocopy::transmute!(*bytes);
        let sum = |id: u8, bytes: &[u8]| {
            let algorithm = Algorithm::parse(id).unwrap_or(Algorithm::None);
            let bytes = bytes.get(..algorithm.digest_len());
            bytes.and_then(|bytes| Checksum::from_bytes(algorithm, bytes).ok()).unwrap_or(Checksum::none())
        };
        BlockPointer {
            address: raw.address.map(wide),
            birth_phys: wide(raw.birth_phys),
            birth_log: wide(raw.birth_log),
            kind: kind_of(raw.shape),
            level: level_of(raw.shape),
            seeded: raw.shape & FLAG_SEEDED != 0,
            sums: StoredSums {
                primary: sum(raw.algorithms & 0xf, &raw.primary),
                secondary: sum(raw.algorithms >> 4, &raw.secondary),
            },
        }
    }

    /// Whether a slot says that it is a hole, holds no more than one stray write, and would not be a pointer if it did not say so. `level`, `epoch` and `blocks` as for
    /// [`BlockPointer::decode_checked`].
    pub(crate) fn is_free(bytes: &[u8; POINTER_BYTES], level: u8, epoch: Epoch, blocks: u64) -> bool {
        let is_used = |kind: u8| {
            let mut bytes = *bytes;
            bytes[std::mem::offset_of!(Raw, shape)] |= kind;
            BlockPointer::decode_checked(&bytes, level, epoch, blocks).is_ok()
        };
        let may_be_lost = || level == 0 && BlockPointer::may_have_been_lost(bytes, epoch);
        BlockPointer::encodes_hole(bytes) && super::is_stray(bytes) && !(1..=KIND_BITS).any(is_used) && !may_be_lost()
    }

    /// Whether nothing but births is in a slot of a page, as a stray write of zeros over the kind leaves it of a lost one: that has nothing else. With the
    /// logical birth it takes a part of the physical one at most, so no more of that is left than there was.
    fn may_have_been_lost(bytes: &[u8; POINTER_BYTES], epoch: Epoch) -> bool {
        let raw: &Raw = zerocopy::transmute_ref!(bytes);
        let births = std::mem::offset_of!(Raw, birth_phys)..std::mem::offset_of!(Raw, shape);
        let is_elsewhere = (0..).zip(bytes).any(|(at, byte)| *byte != 0 && !births.contains(&at));
        !is_elsewhere && (1..=epoch).contains(&wide(raw.birth_phys))
    }

    /// [`BlockPointer::decode_checked`] for who needs no pointer: most are holes, or have a CRC-64 and nothing else, which a few comparisons tell.
    pub(crate) fn check(bytes: &[u8; POINTER_BYTES], level: u8, epoch: Epoch, blocks: u64) -> Result<(), Fault> {
        match BlockPointer::is_plain(bytes, level, epoch, blocks) {
            true => Ok(()),
            false => BlockPointer::decode_checked(bytes, level, epoch, blocks).map(drop),
        }
    }

    /// Whether it is one of those most frequent ones that can be.
    fn is_plain(bytes: &[u8; POINTER_BYTES], level: u8, epoch: Epoch, blocks: u64) -> bool {
        let raw: &Raw = zerocopy::transmute_ref!(bytes);
        if raw.shape == 0 {
            return *bytes == [0; POINTER_BYTES];
        }
        let kind = if level == 0 { PointerKind::Data } else { PointerKind::Tree };
        let [first, second] = raw.address.map(wide);
        let (born, born_log) = (wide(raw.birth_phys), wide(raw.birth_log));
        let room = super::room(blocks);
        raw.shape & !FLAG_SEEDED == kind as u8 | level << LEVEL_SHIFT
            && raw.algorithms == Algorithm::Crc64Nvme.id() | Algorithm::None.id() << 4
            && raw.primary[8..] == [0; DIGEST_MAX - 8]
            && raw.secondary == [0; 8]
            && 0 < born
            && born <= born_log
            && born_log <= epoch
            && room.contains(&first)
            && (second == 0 || room.contains(&second) && second != first)
    }

    /// Decodes a pointer from a device and checks everything that can be checked without following it: `level` is the
    /// level of what it points to, `epoch` the newest possible birth, `blocks` the size of the device.
    pub(crate) fn decode_checked(
        bytes: &[u8; POINTER_BYTES],
        level: u8,
        epoch: Epoch,
        blocks: u64,
    ) -> Result<BlockPointer, Fault> {
        let pointer = BlockPointer::decode(bytes);
        match pointer.kind {
            PointerKind::Hole if bytes == &[0; POINTER_BYTES] => return Ok(pointer),
            PointerKind::Hole => return Err(Fault::new("hole pointer", "zeros", "other bytes")),
            PointerKind::Data | PointerKind::LostInMemory | PointerKind::LostOnDevice if level == 0 => {}
            PointerKind::Tree if level > 0 => {}
            kind => {
                return Err(Fault::new("kind of block pointer", format!("one for level {level}"), format!("{kind:?}")));
            }
        }
        if pointer.level != level {
            return Err(Fault::new("level of block pointer", level, pointer.level));
        }
        let (first, last) = (pointer.birth_phys, pointer.birth_log);
        if first == 0 || first > last || last > epoch {
            return Err(Fault::new(
                "births",
                format!("1 <= physical <= logical <= {epoch}"),
                format!("{first}, {last}"),
            ));
        }
        if let Some(side) = pointer.kind.lost() {
            if pointer != (BlockPointer { birth_log: last, ..BlockPointer::lost(first, side) }) {
                return Err(Fault::new("lost pointer", "births only", "other bytes"));
            }
        } else {
            for (copy, &block) in pointer.address.iter().enumerate() {
                if block == 0 && copy == 1 {
                    continue;
                }
                if !super::room(blocks).contains(&block) {
                    return Err(Fault::new("address", format!("a block below {blocks}"), hex(block)));
                }
            }
            if pointer.address[0] == pointer.address[1] {
                return Err(Fault::new("second address", "apart from the first", hex(pointer.address[1])));
            }
        }
        let is_metadata = pointer.seeded || level > 0;
        if is_metadata && pointer.sums.primary.algorithm() != Algorithm::Crc64Nvme {
            let got = pointer.sums.primary.algorithm();
            return Err(Fault::new("checksum of metadata", Algorithm::Crc64Nvme, got));
        }
        if pointer.sums.secondary.algorithm().digest_len() > 8 || pointer.encode() != *bytes {
            return Err(Fault::new("block pointer", "known algorithms and flags, zero reserve", "others"));
        }
        Ok(pointer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> BlockPointer {
        BlockPointer {
            address: [100, 900],
            birth_phys: 3,
            birth_log: 5,
            kind: PointerKind::Data,
            level: 0,
            seeded: true,
            sums: StoredSums::of(Checksum::crc64(0x1234_5678_9abc_def0)),
        }
    }

    #[test]
    fn round_trip() {
        let lost = [Side::Memory, Side::Device].map(|side| BlockPointer::lost(4, side));
        for pointer in [BlockPointer::HOLE, data(), lost[0], lost[1], BlockPointer { address: [100, 0], ..data() }] {
            assert_eq!(BlockPointer::decode_checked(&pointer.encode(), 0, 5, 1000).unwrap(), pointer);
            assert_eq!(Glance::at(&pointer.encode()), Glance::of(&pointer));
        }
        assert_eq!(BlockPointer::decode(&BlockPointer::PENDING.encode()), BlockPointer::PENDING);
        assert_eq!(Glance::at(&BlockPointer::PENDING.encode()), Glance::PENDING);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |pointer: BlockPointer| BlockPointer::decode_checked(&pointer.encode(), 0, 5, 1000).is_err();
        assert!(refused(BlockPointer { birth_log: 6, ..data() }));
        assert!(refused(BlockPointer { birth_phys: 0, ..data() }));
        assert!(refused(BlockPointer { level: 1, ..data() }));
        assert!(refused(BlockPointer { kind: PointerKind::Tree, ..data() }));
        assert!(refused(BlockPointer { address: [1000, 0], ..data() }));
        assert!(refused(BlockPointer { address: [31, 0], ..data() }));
        assert!(refused(BlockPointer { address: [100, 100], ..data() }));
        assert!(refused(BlockPointer::PENDING));
    }

    #[test]
    fn every_pair_of_checksums_leads_back() {
        let page = [3; 4096];
        let mut other = page;
        other[77] = 2;
        for primary in Algorithm::ALL {
            for secondary in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.digest_len() <= 8) {
                let sums = StoredSums { primary: primary.sum(&page), secondary: secondary.sum(&page) };
                let pointer = BlockPointer { seeded: false, sums, ..data() };
                assert_eq!(BlockPointer::decode_checked(&pointer.encode(), 0, 5, 1000).unwrap(), pointer);
                assert!(pointer.matches(&page, 9) && (primary == Algorithm::None || !pointer.matches(&other, 9)));
            }
        }
        assert!(data().sums.primary.verify(&page).is_err() && !data().matches(&page, 0));
    }

    #[test]
    fn what_no_pointer_has_is_refused() {
        let refused = |at: usize, change: &dyn Fn(u8) -> u8| {
            let mut bytes = data().encode();
            bytes[at] = change(bytes[at]);
            BlockPointer::decode_checked(&bytes, 0, 5, 1000).is_err()
        };
        assert!(refused(22, &|shape| shape | 0x80), "a reserved flag");
        for byte in 32..64 {
            assert!(refused(byte, &|byte| byte ^ 0x80), "byte {byte} behind the checksum");
        }
        assert!(refused(23, &|_| 7) && refused(23, &|_| 15), "an algorithm that does not exist");
        assert!(refused(23, &|algorithms| algorithms | 0x70), "a second one that does not exist");
        assert!(refused(23, &|algorithms| algorithms | 0x60), "a second one of 32 bytes");
        assert!(refused(23, &|_| 5), "metadata under another checksum than CRC-64");
    }

    /// Whatever one stray write of zeros leaves of a pointer, it is none that is free: of a lost page, which has births alone, as of any other.
    #[test]
    fn what_is_left_of_a_pointer_is_not_free() {
        let epochs = [1, 5, 0xff, 0x100, 0x1_0203, 0x7_0605_0403, EPOCH_MAX];
        let lost =
            epochs.into_iter().flat_map(|epoch| [Side::Memory, Side::Device].map(|s| BlockPointer::lost(epoch, s)));
        for pointer in lost.chain([data()]) {
            let good = pointer.encode();
            let epoch = pointer.birth_log;
            for at in 0..POINTER_BYTES - 7 {
                let mut bytes = good;
                bytes[at..at + 8].fill(0);
                if bytes != good {
                    assert!(
                        !BlockPointer::is_free(&bytes, 0, epoch, 1000),
                        "{pointer:?} without bytes {at} to {}",
                        at + 7
                    );
                }
            }
        }
        for at in 0..POINTER_BYTES - 7 {
            let mut bytes = [0; POINTER_BYTES];
            bytes[at..at + 8].fill(0xa4);
            let is_hole = BlockPointer::encodes_hole(&bytes);
            assert_eq!(BlockPointer::is_free(&bytes, 0, 1000, 1000), is_hole, "a write to a free one at byte {at}");
        }
        let mut births = [0; POINTER_BYTES];
        births[12] = 5;
        assert!(BlockPointer::is_free(&births, 1, 9, 1000), "of a tree block, which is not lost");
        assert!(BlockPointer::is_free(&births, 0, 4, 1000), "of the future");
    }

    /// What is told by a few comparisons is what is told by all.
    #[test]
    fn what_is_plain_can_be() {
        let tree = BlockPointer { kind: PointerKind::Tree, level: 2, ..data() };
        let alone = BlockPointer { address: [100, 0], seeded: false, ..data() };
        let lost = BlockPointer::lost(4, Side::Device);
        let mut plain = 0;
        for pointer in [BlockPointer::HOLE, BlockPointer::PENDING, data(), alone, tree, lost] {
            let good = pointer.encode();
            let flipped = (0..8 * POINTER_BYTES).map(|bit| {
                let mut bytes = good;
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            });
            for bytes in std::iter::once(good).chain(flipped) {
                for (level, epoch, blocks) in
                    [(0, 5, 1000), (2, 5, 1000), (1, 5, 1000), (0, 4, 1000), (0, 5, 932), (0, 5, 10)]
                {
                    let is_one = BlockPointer::decode_checked(&bytes, level, epoch, blocks).map(drop);
                    assert_eq!(BlockPointer::check(&bytes, level, epoch, blocks), is_one, "{pointer:?}");
                    plain += u32::from(BlockPointer::is_plain(&bytes, level, epoch, blocks));
                }
            }
            assert_eq!(
                BlockPointer::is_plain(&good, pointer.level, 5, 1000),
                !matches!(pointer.kind, PointerKind::LostOnDevice) && pointer != BlockPointer::PENDING
            );
        }
        assert!(plain > 300, "{plain}");
    }

    #[test]
    #[should_panic(expected = "more than 5 bytes")]
    fn an_epoch_beyond_the_last_is_not_written() {
        let _ = BlockPointer { birth_log: EPOCH_MAX + 1, ..data() }.encode();
    }
}
