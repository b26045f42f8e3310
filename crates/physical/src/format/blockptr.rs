//! Block pointers: where a block is, since when, and what its checksum is.

use super::{Fault, hex, split_address};
use holdfast_object::{BlockIdentity, Epoch};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block pointer of size code 0.
pub(crate) const POINTER_BYTES: usize = 64;

/// Checksum algorithm number of CRC-64/NVME, the only one so far.
pub(crate) const CHECKSUM_CRC64: u8 = 1;

const FLAG_SEEDED: u8 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    address: [U64; 2],
    birth_phys: U64,
    birth_log: U64,
    kind: u8,
    level: u8,
    checksum_alg: u8,
    checksum_alg_2: u8,
    flags: u8,
    compression: u8,
    stored_blocks: U16,
    run_position: U16,
    reserved: [u8; 6],
    checksum: [U64; 2],
}
const _: () = assert!(size_of::<Raw>() == POINTER_BYTES);

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
    /// A page whose bytes are gone: reads as an error.
    Lost = 3,
}

/// A decoded block pointer.
///
/// Invariants (of one that came from a device): a hole is all zero; data and tree have an address on the device, a second
/// one or 0, and `1 <= birth_phys <= birth_log`; lost has births and nothing else.
/// In memory only, a tree pointer without an address stands for a tree block that is dirty ([`BlockPointer::PENDING`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BlockPointer {
    pub(crate) address: [u64; 2],
    pub(crate) birth_phys: Epoch,
    pub(crate) birth_log: Epoch,
    pub(crate) kind: PointerKind,
    pub(crate) level: u8,
    /// Whether the block's identity is mixed into the checksum (all metadata of the store's own).
    pub(crate) seeded: bool,
    pub(crate) checksum: u64,
}

impl BlockPointer {
    pub(crate) const HOLE: BlockPointer = BlockPointer {
        address: [0; 2],
        birth_phys: 0,
        birth_log: 0,
        kind: PointerKind::Hole,
        level: 0,
        seeded: false,
        checksum: 0,
    };

    /// Stands for a block that is dirty in memory: found there by its identity, never written to a device.
    pub(crate) const PENDING: BlockPointer = BlockPointer { kind: PointerKind::Tree, ..BlockPointer::HOLE };

    pub(crate) fn is_hole(&self) -> bool {
        self.kind == PointerKind::Hole
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

    pub(crate) fn lost(epoch: Epoch) -> BlockPointer {
        BlockPointer { kind: PointerKind::Lost, birth_phys: epoch, birth_log: epoch, ..BlockPointer::HOLE }
    }

    pub(crate) fn encode(&self) -> [u8; POINTER_BYTES] {
        let stored = self.is_stored();
        let raw = Raw {
            address: self.address.map(U64::new),
            birth_phys: U64::new(self.birth_phys),
            birth_log: U64::new(self.birth_log),
            kind: self.kind as u8,
            level: self.level,
            checksum_alg: if stored { CHECKSUM_CRC64 } else { 0 },
            checksum_alg_2: 0,
            flags: if self.seeded { FLAG_SEEDED } else { 0 },
            compression: 0,
            stored_blocks: U16::new(u16::from(stored)),
            run_position: U16::new(0),
            reserved: [0; 6],
            checksum: [U64::new(self.checksum), U64::new(0)],
        };
        zerocopy::transmute!(raw)
    }

    /// Decodes without judging: for pointers in blocks that were checked when they were read. A pointer of an unknown kind
    /// decodes as lost.
    pub(crate) fn decode(bytes: &[u8; POINTER_BYTES]) -> BlockPointer {
        let raw: Raw = zerocopy::transmute!(*bytes);
        BlockPointer {
            address: raw.address.map(U64::get),
            birth_phys: raw.birth_phys.get(),
            birth_log: raw.birth_log.get(),
            kind: match raw.kind {
                0 => PointerKind::Hole,
                1 => PointerKind::Data,
                2 => PointerKind::Tree,
                _ => PointerKind::Lost,
            },
            level: raw.level,
            seeded: raw.flags & FLAG_SEEDED != 0,
            checksum: raw.checksum[0].get(),
        }
    }

    /// Decodes a pointer from a device and checks everything that can be checked without following it: `level` is the
    /// level of what it points to, `epoch` the newest possible birth, `blocks` the size of the device.
    pub(crate) fn decode_checked(
        bytes: &[u8; POINTER_BYTES],
        level: u8,
        epoch: Epoch,
        blocks: u64,
    ) -> Result<BlockPointer, Fault> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        let pointer = BlockPointer::decode(bytes);
        match raw.kind {
            0 if bytes == &[0; POINTER_BYTES] => return Ok(pointer),
            0 => return Err(Fault::new("hole pointer", "zeros", "other bytes")),
            1 | 3 if level == 0 => {}
            2 if level > 0 => {}
            1..=3 => return Err(Fault::new("kind of block pointer", format!("one for level {level}"), raw.kind)),
            kind => return Err(Fault::new("kind of block pointer", "0 to 3", kind)),
        }
        if raw.level != level {
            return Err(Fault::new("level of block pointer", level, raw.level));
        }
        let (first, last) = (pointer.birth_phys, pointer.birth_log);
        if first == 0 || first > last || last > epoch {
            return Err(Fault::new(
                "births",
                format!("1 <= physical <= logical <= {epoch}"),
                format!("{first}, {last}"),
            ));
        }
        if raw.kind == 3 {
            if pointer != BlockPointer::lost(first)
                && pointer != (BlockPointer { birth_log: last, ..BlockPointer::lost(first) })
            {
                return Err(Fault::new("lost pointer", "births only", "other bytes"));
            }
        } else {
            for (copy, &address) in pointer.address.iter().enumerate() {
                if address == 0 && copy == 1 {
                    continue;
                }
                let (device, block) = split_address(address);
                if device != 0
                    || block < 2 * super::LABEL_BLOCKS
                    || block >= blocks.saturating_sub(2 * super::LABEL_BLOCKS)
                {
                    return Err(Fault::new("address", format!("a block of device 0 below {blocks}"), hex(address)));
                }
            }
            if pointer.address[0] == pointer.address[1] {
                return Err(Fault::new("second address", "apart from the first", hex(pointer.address[1])));
            }
        }
        if pointer.encode() != *bytes {
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
            checksum: 0x1234_5678_9abc_def0,
        }
    }

    #[test]
    fn round_trip() {
        for pointer in [BlockPointer::HOLE, data(), BlockPointer::lost(4), BlockPointer { address: [100, 0], ..data() }]
        {
            assert_eq!(BlockPointer::decode_checked(&pointer.encode(), 0, 5, 1000).unwrap(), pointer);
        }
        assert_eq!(BlockPointer::decode(&BlockPointer::PENDING.encode()), BlockPointer::PENDING);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |pointer: BlockPointer| BlockPointer::decode_checked(&pointer.encode(), 0, 5, 1000).is_err();
        assert!(refused(BlockPointer { birth_log: 6, ..data() }));
        assert!(refused(BlockPointer { birth_phys: 0, ..data() }));
        assert!(refused(BlockPointer { level: 1, ..data() }));
        assert!(refused(BlockPointer { kind: PointerKind::Tree, ..data() }));
        assert!(refused(BlockPointer { address: [1000, 0], ..data() }));
        assert!(refused(BlockPointer { address: [1 << 48 | 100, 0], ..data() }));
        assert!(refused(BlockPointer { address: [31, 0], ..data() }));
        assert!(refused(BlockPointer { address: [100, 100], ..data() }));
        assert!(refused(BlockPointer::PENDING));
    }

    #[test]
    fn any_flipped_bit_of_the_reserve_is_seen() {
        for byte in (32..48).chain(56..64) {
            let mut bytes = data().encode();
            bytes[byte] ^= 0x80;
            assert!(BlockPointer::decode_checked(&bytes, 0, 5, 1000).is_err(), "byte {byte}");
        }
    }
}
