use std::str::FromStr;

use proptest::prelude::*;

use crate::sums::Fletcher;
use crate::*;

const CHECK: &[u8] = b"123456789";

/// Digits as printed by [`Checksum`]'s `Display`.
fn hex(algorithm: Algorithm, bytes: &[u8]) -> String {
    let text = algorithm.sum(bytes).to_string();
    text.split_once(':').unwrap().1.to_owned()
}

#[test]
fn published_vectors() {
    use Algorithm::*;
    assert_eq!(hex(None, CHECK), "");
    // CRC catalogue (reveng): the check values.
    assert_eq!(hex(Crc64Nvme, CHECK), "ae8b14860a799888");
    assert_eq!(hex(Crc32c, CHECK), "e3069283");
    // RFC 3720 B.4: 32 bytes of zeros, of ones, ascending.
    assert_eq!(hex(Crc32c, &[0; 32]), "8a9136aa");
    assert_eq!(hex(Crc32c, &[0xff; 32]), "62a8ab43");
    assert_eq!(hex(Crc32c, &std::array::from_fn::<u8, 32, _>(|i| i as u8)), "46dd794e");
    // xxHash: the empty input with seed 0.
    assert_eq!(hex(Xxh3, b""), "2d06800538d394c2");
    // The reference implementation's, short and long input.
    assert_eq!(hex(Xxh3, CHECK), "72dcb18b67a17dff");
    let repeating: Vec<u8> = (0..=250).cycle().take(4096).collect();
    assert_eq!(hex(Xxh3, &repeating), "7135ffa504f1bc71");
    // BLAKE3 test vectors: inputs of the repeating bytes 0 … 250.
    assert_eq!(hex(Blake3, b""), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
    assert_eq!(hex(Blake3, &[0]), "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213");
    assert_eq!(hex(Blake3, &repeating), "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969");
    // xor of "12345678" and "9" filled up with zeros, by hand.
    assert_eq!(hex(Xor64, CHECK), "3837363534333208");
}

/// w₁ = 1, w₂ = 2^128 − 1 (≡ 0), w₃ = 2^127, w₄ = 2^127 + 5, all modulo 2^128 − 1:
/// A = 1, 1, 2^127 + 1, then 2^128 + 6 ≡ 7; B = 1, 2, 2^127 + 3, 2^127 + 10.
#[test]
fn fletcher_by_hand() {
    let words = [1, u128::MAX, 1 << 127, (1 << 127) + 5].map(u128::to_le_bytes);
    let mut expected = [0; 32];
    expected[0] = 7;
    expected[16] = 10;
    expected[31] = 0x80;
    assert_eq!(fletcher256(words.as_flattened()), expected);
    // A tail is filled up with zeros.
    let mut tail = [0; 32];
    (tail[0], tail[16]) = (9, 9);
    assert_eq!(fletcher256(&[9]), tail);
    // All ones is the other name of zero.
    assert_eq!(fletcher256(&[0xff; 4096]), [0; 32]);
    assert_eq!(fletcher256(&[]), [0; 32]);
}

#[test]
fn numbers_and_names() {
    for (id, algorithm) in (0u8..).zip(Algorithm::ALL) {
        assert_eq!(algorithm.id(), id);
        assert_eq!(Algorithm::parse(id), Ok(algorithm));
        assert_eq!(Algorithm::from_str(&algorithm.to_string().to_uppercase()), Ok(algorithm));
        let sum = algorithm.sum(CHECK);
        assert_eq!(sum.as_bytes().len(), algorithm.digest_len());
        assert_eq!(Checksum::from_bytes(algorithm, sum.as_bytes()), Ok(sum));
        assert_eq!(Checksum::from_bytes(algorithm, &[0; 33]), Err(WrongLength { algorithm, got: 33 }));
        assert_eq!(sum.as_u64().is_some(), algorithm.digest_len() == 8);
    }
    for id in 7..=255 {
        assert_eq!(Algorithm::parse(id), Err(UnknownAlgorithm::Number(id)));
    }
    assert_eq!("CRC64".parse(), Ok(Algorithm::Crc64Nvme));
    assert!("md5".parse::<Algorithm>().is_err());
    assert_eq!(Algorithm::Crc64Nvme.sum(CHECK), Checksum::crc64(crc64(CHECK)));
}

#[test]
fn identity_is_part_of_the_format() {
    // Fixed: a change would make every stored metadata block unreadable.
    // The values are those of the reference implementation over the packing in the documentation.
    assert_eq!(identity_mix(0, 0, 0, 0), 0xc300_fa6f_8208_4620);
    assert_eq!(identity_mix(1, 2, 3, 4), 0xabc2_e7f7_4da8_8abf);
    assert_eq!(identity_mix(u16::MAX, u64::MAX, u8::MAX, u64::MAX), 0x6ad4_6cb1_2be8_17b5);
}

proptest! {
    #[test]
    fn dispatched_fletcher_equals_definition(
        bytes in proptest::collection::vec(any::<u8>(), 0..6000),
        ones in any::<bool>(),
    ) {
        // Long runs of ones reach the carries that random bytes hardly do.
        let bytes: Vec<u8> = bytes.iter().map(|&b| if ones && b > 8 { 0xff } else { b }).collect();
        let mut plain = Fletcher::default();
        let (words, tail) = bytes.as_chunks::<16>();
        plain.add_words_portable(words);
        plain.add_tail(tail);
        prop_assert_eq!(fletcher256(&bytes), plain.digest());
    }

    #[test]
    fn pieces_equal_the_whole(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..700), 0..8),
    ) {
        let whole = pieces.concat();
        for algorithm in Algorithm::ALL {
            let mut digest = algorithm.digest();
            for piece in &pieces {
                digest.update(piece);
            }
            prop_assert_eq!(digest.finish(), algorithm.sum(&whole));
        }
    }
}

/// The library is the judge. Each bit of a block counts, and the block is read as the library reads it.
#[test]
fn xxh3_of_a_block_is_the_librarys() {
    let mut block: [u8; PAGE_SIZE] = std::array::from_fn(|at| ((at as u32).wrapping_mul(2_654_435_761) >> 24) as u8);
    let judged = |block: &[u8; PAGE_SIZE]| twox_hash::XxHash3_64::oneshot(block);
    for special in [[0; PAGE_SIZE], [0xff; PAGE_SIZE], block] {
        assert_eq!(crate::sums::xxh3(&special), judged(&special));
    }
    for at in 0..PAGE_SIZE {
        block[at] ^= 1 << (at % 8);
        assert_eq!(crate::sums::xxh3(&block), judged(&block), "byte {at}");
    }
}

/// Longer than a segment of the vector code.
#[test]
fn long_fletcher() {
    let bytes: Vec<u8> = (0..(1u32 << 20) + 77).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut plain = Fletcher::default();
    let (words, tail) = bytes.as_chunks::<16>();
    plain.add_words_portable(words);
    plain.add_tail(tail);
    assert_eq!(fletcher256(&bytes), plain.digest());
}

/// The portable code is the judge, as in the tests of either sum alone.
#[test]
fn both_sums_of_blocks_wherever_they_lie_and_however_many_there_are() {
    let bytes: Vec<u8> =
        (0..20 * PAGE_SIZE as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let neighbours: Vec<&[u8; PAGE_SIZE]> = bytes.as_chunks().0.iter().collect();
    let scattered: Vec<_> = (0..20).map(|at| neighbours[at * 7 % 20]).collect();
    for blocks in [neighbours, scattered] {
        let expected: Vec<_> = blocks
            .iter()
            .map(|block| {
                let mut state = Fletcher::default();
                state.add_words_portable(block.as_chunks().0);
                assert_eq!(fletcher256(&block[..]), state.digest());
                (state.digest(), crate::sums::xor64_portable(&block[..]))
            })
            .collect();
        for count in 0..=blocks.len() {
            let mut sums = Vec::new();
            fletcher256_and_xor64_each(&blocks[..count], |fletcher, xor| sums.push((fletcher, xor)));
            assert_eq!(sums, expected[..count], "{count}");
        }
    }
}
