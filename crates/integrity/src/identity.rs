//! What binds a metadata block's checksum to the block's place.

/// Seed of the mix: "HOLDFAST" in ASCII, big-endian. Part of the disk format.
const SEED: u64 = 0x484F_4C44_4641_5354;

/// A 64-bit mix of a metadata block's identity, to be xored onto its CRC-64.
///
/// A block of the right contents and the wrong identity, say one written to another block's address, then fails
/// verification; checksums alone do not see blocks swapped together with their sums (the caller groups of
/// *High-Performance Metadata Integrity Protection in the WAFL Copy-on-Write File System*, FAST 2017). Two identities
/// collide with probability 2^-64. The mix is a constant for a given block, so the CRC stays linear, and can be updated
/// from the changed bytes alone: it is in no delta (see [`identity_tag`]).
///
/// Defined as XXH3-64 with the seed 0x484F_4C44_4641_5354 over 24 bytes, integers little-endian:
///
/// | offset | length | contents |
/// |---|---|---|
/// | 0 | 2 | `domain` |
/// | 2 | 1 | `level` in the block tree, 0 = leaf |
/// | 3 | 5 | zero |
/// | 8 | 8 | `object` |
/// | 16 | 8 | `index` of the block within its level |
pub fn identity_mix(domain: u16, object: u64, level: u8, index: u64) -> u64 {
    let mut packed = [0; 24];
    packed[0..2].copy_from_slice(&domain.to_le_bytes());
    packed[2] = level;
    packed[8..16].copy_from_slice(&object.to_le_bytes());
    packed[16..24].copy_from_slice(&index.to_le_bytes());
    twox_hash::XxHash3_64::oneshot_with_seed(SEED, &packed)
}

/// 32 bits of an [`identity_mix`], kept with a block in memory and compared at every change of it.
///
/// The seed in the checksum does not see a change that goes to the wrong block by a legal method: xored on, it is in no delta, and
/// contents and checksum of the wrong block agree afterwards. Comparing the tag of the block that the caller means with that
/// of the block it has does see it, but for 2^-32, and before anything has changed. In memory only: not part of the disk format.
pub const fn identity_tag(mix: u64) -> u32 {
    (mix >> 32) as u32
}
