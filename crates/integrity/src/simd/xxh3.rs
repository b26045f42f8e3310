//! XXH3-64 of a block in vectors of 64 bytes: the library has them of 32 at most. Anything but a block of 4 KiB is the library's.
//!
//! After the specification (xxHash, *XXH3 Algorithm Description*): eight lanes of 64 bits take up a stripe of 64 bytes at a time, each with another part of the
//! secret; after 16 stripes they are scrambled; the last stripe of all has a part of its own.

use std::arch::x86_64::*;

use super::load512;
use crate::PAGE_SIZE;

const STRIPE: usize = 64;
/// Stripes until the lanes are scrambled: as many as there are places in the secret, eight bytes apart.
const STRIPES: usize = 16;
const SECRET_BYTES: usize = 192;
/// Where in the secret the last stripe's part is, and that of the end.
const LAST_AT: usize = SECRET_BYTES - STRIPE - 7;
const END_AT: usize = 11;

const PRIME32: [u32; 3] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];
const PRIME64: [u64; 5] =
    [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x85eb_ca77_c2b2_ae63, 0x27d4_eb2f_1656_67c5];
const START: [u64; 8] = [
    PRIME32[2] as u64,
    PRIME64[0],
    PRIME64[1],
    PRIME64[2],
    PRIME64[3],
    PRIME32[1] as u64,
    PRIME64[4],
    PRIME32[0] as u64,
];
const AVALANCHE: u64 = 0x1656_6791_9e37_79f9;

/// The specification's default secret, in words of little-endian bytes.
const SECRET_WORDS: [u64; SECRET_BYTES / 8] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
    0x4c26_3a81_e690_35e0,
    0xcb00_c391_bb52_283c,
    0xa32e_531b_8b65_d088,
    0x4ef9_0da2_9748_6471,
    0xd8ac_dea9_46ef_1938,
    0x3f34_9ce3_3f76_faa8,
    0x1d4f_0bc7_c7bb_dcf9,
    0x3159_b4cd_4be0_518a,
    0x6473_78d9_c97e_9fc8,
    0xc3eb_d334_83ac_c5ea,
    0xeb63_13fa_ffa0_81c5,
    0x49da_f0b7_51dd_0d17,
    0x9e68_d429_2655_16d3,
    0xfca1_477d_58be_162b,
    0xce31_d07a_d1b8_f88f,
    0x2804_1695_8f3a_cb45,
    0x7e40_4bbb_cafb_d7af,
];
const SECRET: [u8; SECRET_BYTES] = {
    let (mut bytes, mut at) = ([0; SECRET_BYTES], 0);
    while at < SECRET_BYTES {
        bytes[at] = (SECRET_WORDS[at / 8] >> (at % 8 * 8)) as u8;
        at += 1;
    }
    bytes
};

/// The part of the secret that begins there.
const fn part(at: usize) -> [u8; STRIPE] {
    let (mut part, mut byte) = ([0; STRIPE], 0);
    while byte < STRIPE {
        part[byte] = SECRET[at + byte];
        byte += 1;
    }
    part
}

/// Each stripe's part of it until the lanes are scrambled, and the one for that, where none lies in two lines of the cache.
#[repr(align(64))]
struct Keys([[u8; STRIPE]; STRIPES + 1]);

static KEYS: Keys = {
    let (mut keys, mut number) = ([[0; STRIPE]; STRIPES + 1], 0);
    while number <= STRIPES {
        keys[number] = part(8 * number);
        number += 1;
    }
    Keys(keys)
};

/// Takes up a stripe.
#[target_feature(enable = "avx512f")]
#[inline]
fn with_stripe(lanes: __m512i, stripe: &[u8; STRIPE], key: &[u8; STRIPE]) -> __m512i {
    let stripe = load512(stripe);
    let keyed = _mm512_xor_si512(stripe, load512(key));
    let product = _mm512_mul_epu32(keyed, _mm512_srli_epi64::<32>(keyed));
    // Each lane's bytes go into its neighbour.
    let crossed = _mm512_shuffle_epi32::<0b01_00_11_10>(stripe);
    _mm512_add_epi64(_mm512_add_epi64(product, crossed), lanes)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn scrambled(lanes: __m512i) -> __m512i {
    let mixed = _mm512_ternarylogic_epi64::<0x96>(lanes, _mm512_srli_epi64::<47>(lanes), load512(&KEYS.0[STRIPES]));
    let prime = _mm512_set1_epi64(i64::from(PRIME32[0]));
    let upper = _mm512_mul_epu32(_mm512_srli_epi64::<32>(mixed), prime);
    _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64::<32>(upper))
}

/// The sum of a block. `ask` gets each stripe's number before it is read.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn xxh3_avx512(block: &[u8; PAGE_SIZE], ask: impl Fn(usize)) -> u64 {
    let stripes = block.as_chunks::<STRIPE>().0;
    // SAFETY: `START` is 64 readable bytes, and the load has no demand on alignment.
    let mut lanes = unsafe { _mm512_loadu_si512(START.as_ptr().cast()) };
    let (last, others) = stripes.split_last().expect("a block has stripes");
    for (group, of_group) in others.chunks(STRIPES).enumerate() {
        for (number, (stripe, key)) in of_group.iter().zip(&KEYS.0).enumerate() {
            ask(STRIPES * group + number);
            lanes = with_stripe(lanes, stripe, key);
        }
        if of_group.len() == STRIPES {
            lanes = scrambled(lanes);
        }
    }
    ask(others.len());
    end(super::lanes512(with_stripe(lanes, last, const { &part(LAST_AT) })))
}

fn end(lanes: [u64; 8]) -> u64 {
    let part = const { part(END_AT) };
    let part = part.as_chunks::<8>().0;
    let keyed = |lane: usize| u128::from(lanes[lane] ^ u64::from_le_bytes(part[lane]));
    let mixed = (0..4).map(|pair| {
        let product = keyed(2 * pair) * keyed(2 * pair + 1);
        product as u64 ^ (product >> 64) as u64
    });
    let sum = mixed.fold((PAGE_SIZE as u64).wrapping_mul(PRIME64[0]), u64::wrapping_add);
    let sum = (sum ^ sum >> 37).wrapping_mul(AVALANCHE);
    sum ^ sum >> 32
}
