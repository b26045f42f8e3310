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
///
/// Each change of a block asks for it, so it is written out here for this one length: a tenth of what the general function takes.
#[inline]
pub const fn identity_mix(domain: u16, object: u64, level: u8, index: u64) -> u64 {
    // Its branch for 17 to 32 bytes: the first 16 of them, and the last.
    let packed = domain as u64 | (level as u64) << 16;
    let first = folded(packed ^ SECRET[0].wrapping_add(SEED), object ^ SECRET[1].wrapping_sub(SEED));
    let last = folded(object ^ SECRET[2].wrapping_add(SEED), index ^ SECRET[3].wrapping_sub(SEED));
    let sum = PRIME64_1.wrapping_mul(24).wrapping_add(first).wrapping_add(last);
    let mixed = (sum ^ (sum >> 37)).wrapping_mul(AVALANCHE);
    mixed ^ (mixed >> 32)
}

/// Constants of XXH3: the beginning of its secret, and two multipliers.
const SECRET: [u64; 4] = [0xbe4b_a423_396c_feb8, 0x1cad_21f7_2c81_017c, 0xdb97_9083_e96d_d4de, 0x1f67_b3b7_a4a4_4072];
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const AVALANCHE: u64 = 0x1656_6791_9e37_79f9;

/// Both halves of a product, one xored onto the other.
const fn folded(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// 32 bits of an [`identity_mix`], kept with a block in memory and compared at every change of it.
///
/// The seed in the checksum does not see a change that goes to the wrong block by a legal method: xored on, it is in no delta, and
/// contents and checksum of the wrong block agree afterwards. Comparing the tag of the block that the caller means with that
/// of the block it has does see it, but for 2^-32, and before anything has changed. In memory only: not part of the disk format.
pub const fn identity_tag(mix: u64) -> u32 {
    (mix >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    #[test]
    fn it_is_what_the_general_function_gives() {
        let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(7);
        for round in 0..100_000 {
            let edges = [0, 1, u64::MAX, rng.random(), rng.random::<u64>() >> rng.random_range(0..64)];
            let [object, index] = [0, 1].map(|_| edges[rng.random_range(0..edges.len())]);
            let (domain, level): (u16, u8) = (rng.random(), rng.random());
            let mut packed = [0; 24];
            packed[0..2].copy_from_slice(&domain.to_le_bytes());
            packed[2] = level;
            packed[8..16].copy_from_slice(&object.to_le_bytes());
            packed[16..24].copy_from_slice(&index.to_le_bytes());
            let general = twox_hash::XxHash3_64::oneshot_with_seed(SEED, &packed);
            assert_eq!(identity_mix(domain, object, level, index), general, "round {round}");
        }
    }

    /// `cargo test --release -p holdfast-integrity --lib identity -- --nocapture`: what both take on this machine, the least of some rounds.
    #[test]
    fn it_costs() {
        let least = |mix: fn(u16, u64, u8, u64) -> u64| {
            let rounds = (0..50).map(|_| {
                let start = std::time::Instant::now();
                let all = (0..1000).fold(0, |all, index| mix(1, std::hint::black_box(all), 2, index));
                (start.elapsed().as_nanos() as f64 / 1000.0, all)
            });
            rounds.map(|(nanos, _)| nanos).fold(f64::MAX, f64::min)
        };
        let general = |domain: u16, object: u64, level: u8, index: u64| {
            let packed = [u64::from(domain) | u64::from(level) << 16, object, index].map(u64::to_le_bytes);
            twox_hash::XxHash3_64::oneshot_with_seed(SEED, packed.as_flattened())
        };
        println!("{:.1} ns, one after the other; the general function {:.1}", least(identity_mix), least(general));
    }
}
