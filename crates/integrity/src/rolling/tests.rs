//! The portable code and that with carry-less multiplication, each against fresh sums over the block; and that an error planted in a
//! table is seen there. The properties are in `tests/it/rolling.rs`.

use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::tally::{self, WEIGHTS, Weights};
use super::*;
use crate::crc::{crc32c_by_library, crc64_by_library};
use crate::{Algorithm, Checksum};

type Block = [u8; ROLLING_BLOCK];

/// Ways to the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Multiplied,
}

/// The ways this machine has.
fn codes() -> Vec<Code> {
    let mut codes = vec![Code::Portable];
    #[cfg(target_arch = "x86_64")]
    match x86::tally(&[0; ROLLING_BLOCK]) {
        Some(_) => codes.push(Code::Multiplied),
        None => eprintln!("this CPU has no PCLMULQDQ and AVX2: the code that needs them is not tested"),
    }
    codes
}

fn block(rng: &mut impl Rng) -> Box<Block> {
    let mut block = Box::new([0; ROLLING_BLOCK]);
    rng.fill(&mut block[..]);
    block
}

/// What CRC and tally change by, in every form that there is for `range`. Forms of the CRC alone have no tally.
fn changes(code: Code, keys: &Keys, range: Range<usize>, old: &Block, new: &Block) -> Vec<(u64, Option<u32>)> {
    let (at, before, after) = (range.start, &old[range.clone()], &new[range.clone()]);
    let word = (at % 8 == 0 && range.len() == 8).then(|| {
        let [before, after] = [before, after].map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        (at / 8, before, after)
    });
    let tally_of_word = word.map(|(word, before, after)| tally::change_word(&WEIGHTS, word, before, after));
    match code {
        Code::Portable => {
            let whole = (change_portable(keys, at, before, after), Some(tally::change(&WEIGHTS, at, before, after)));
            let word =
                word.map(|(word, before, after)| (change_word_portable(keys, word, before ^ after), tally_of_word));
            std::iter::once(whole).chain(word).collect()
        }
        #[cfg(target_arch = "x86_64")]
        Code::Multiplied => {
            let slot = (at % 64 == 0 && range.len() == 64)
                .then(|| (at / 64, old.as_chunks::<64>().0[at / 64], new.as_chunks::<64>().0[at / 64]));
            let both = |delta: Delta| (delta.crc64, Some(delta.tally));
            let crc = |change| (change, None);
            [x86::change(keys, at, before, after).map(crc), x86::delta(keys, at, before, after).map(both)]
                .into_iter()
                .chain(word.map(|(word, before, after)| {
                    x86::change_word(keys, word, before ^ after).map(|change| (change, tally_of_word))
                }))
                .chain(slot.map(|(slot, before, after)| x86::change_slot(keys, slot, &before, &after).map(crc)))
                .chain(slot.map(|(slot, before, after)| x86::delta_slot(keys, slot, &before, &after).map(both)))
                .map(|change| change.expect("the CPU has it"))
                .collect()
        }
    }
}

/// Whether every form says what the sums of the block change by in fact.
fn right(code: Code, keys: &Keys, range: Range<usize>, old: &Block, new: &Block) -> bool {
    let crc_fact = crc64(old) ^ crc64(new);
    let tally_fact = tally_by_definition(&WEIGHTS, new).wrapping_sub(tally_by_definition(&WEIGHTS, old));
    let forms = changes(code, keys, range, old, new);
    forms.into_iter().all(|(crc, tally)| crc == crc_fact && tally.is_none_or(|tally| tally == tally_fact))
}

/// The block with other bytes in `range`.
fn changed(rng: &mut impl Rng, old: &Block, range: Range<usize>) -> Box<Block> {
    let mut new = Box::new(*old);
    rng.fill(&mut new[range]);
    new
}

#[test]
fn every_word_slot_and_edge_in_both_codes() {
    let mut rng = Pcg64Mcg::seed_from_u64(64);
    let old = block(&mut rng);
    let words = (0..WORDS).map(|word| word * 8..word * 8 + 8);
    let slots = (0..64).map(|slot| slot * 64..slot * 64 + 64);
    // All pairs of ends within the first two and the last two words.
    let edges = || (0..=16).chain(ROLLING_BLOCK - 16..=ROLLING_BLOCK);
    let pairs = edges().flat_map(|start| edges().filter(move |end| start <= *end).map(move |end| start..end));
    for range in words.chain(slots).chain(pairs) {
        let new = changed(&mut rng, &old, range.clone());
        for code in codes() {
            assert!(right(code, &KEYS, range.clone(), &old, &new), "{code:?}, bytes {range:?}");
        }
    }
}

/// A planted error: one bit of one key. The change of its word comes out wrong, whatever the word.
#[test]
fn a_mutated_key_is_seen() {
    let mut rng = Pcg64Mcg::seed_from_u64(65);
    let old = block(&mut rng);
    for code in codes() {
        for word in 0..WORDS {
            let range = word * 8..word * 8 + 8;
            let new = changed(&mut rng, &old, range.clone());
            let mut keys = KEYS;
            keys[word] ^= 1 << rng.random_range(0..64);
            assert!(right(code, &KEYS, range.clone(), &old, &new));
            assert!(!right(code, &keys, range, &old, &new), "{code:?}: key {word}");
        }
    }
}

#[test]
fn weights_are_odd_and_different() {
    let weights = WEIGHTS.as_flattened();
    assert!(weights.iter().all(|weight| weight % 2 == 1));
    assert_eq!(weights.iter().collect::<std::collections::HashSet<_>>().len(), 1024);
}

/// The tally as documented, word by word.
fn tally_by_definition(weights: &Weights, block: &Block) -> u32 {
    let words = block.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    weights.as_flattened().iter().zip(words).fold(0, |sum, (weight, word)| sum.wrapping_add(weight.wrapping_mul(word)))
}

#[test]
fn the_tally_of_both_codes_is_as_defined() {
    let mut rng = Pcg64Mcg::seed_from_u64(66);
    let blocks = [Box::new([0; ROLLING_BLOCK]), Box::new([0xff; ROLLING_BLOCK]), block(&mut rng), block(&mut rng)];
    for block in blocks {
        let defined = tally_by_definition(&WEIGHTS, &block);
        assert_eq!(tally::of_block(&block), defined);
        #[cfg(target_arch = "x86_64")]
        assert!(x86::tally(&block).is_none_or(|tally| tally == defined));
    }
    assert_eq!(tally(&[0; ROLLING_BLOCK]), 0);
}

#[test]
fn both_sums_of_a_block_in_one_pass() {
    for block in blocks_to_sum() {
        let judged = crc64_by_library(&block[..]);
        assert_eq!((crc64(&block[..]), crc64_and_tally(&block)), (judged, (judged, tally(&block))));
    }
}

/// The CRC-64 of a block as eight side by side have it.
#[cfg(target_arch = "x86_64")]
fn abreast(each: fn(&Keys, &[&Block; 8], &mut [u64; 8]) -> bool, keys: &Keys, block: &Block) -> Option<u64> {
    let mut sums = [0; 8];
    let has = each(keys, &[block; 8], &mut sums);
    assert_eq!(sums, [sums[0]; 8]);
    has.then_some(sums[0])
}

/// The same as two side by side have it.
#[cfg(target_arch = "x86_64")]
fn of_two(keys: &Keys, block: &Block, asks: bool) -> Option<u64> {
    x86_blocks::has_vectors().then(|| {
        let [one, two] = x86_blocks::crc64_of_two(keys, &[block; 2], asks.then_some(&[block; 2]));
        assert_eq!(one, two);
        one
    })
}

/// A way to the sum of a block.
#[cfg(target_arch = "x86_64")]
struct Way {
    name: &'static str,
    /// Words of the last rows: eight of a block by itself, four of each of two, one of each of eight; of a CRC-32C in vectors of 64 bytes six.
    words: usize,
    /// Words of the streams of a block's front.
    stream: usize,
    keys: &'static Keys,
    judge: fn(&Block) -> u64,
    sum: fn(&Keys, &Block) -> Option<u64>,
}

#[cfg(target_arch = "x86_64")]
fn ways() -> [Way; 13] {
    fn crc64(name: &'static str, words: usize, sum: fn(&Keys, &Block) -> Option<u64>) -> Way {
        Way { name, words, stream: 0, keys: &KEYS, judge: |block| crc64_by_library(block), sum }
    }
    fn crc32c(name: &'static str, words: usize, stream: usize, sum: fn(&Keys, &Block) -> Option<u64>) -> Way {
        Way { name, words, stream, keys: &KEYS_32C, judge: |block| crc32c_by_library(block).into(), sum }
    }
    [
        crc64("both sums", 32, |keys, block| x86_sums::sums(keys, block).map(|(crc64, _)| crc64)),
        crc64("narrow", 32, x86_narrow::crc64),
        crc64("narrow, copied", 32, |keys, block| x86_narrow::copied(keys, block, &mut [0; ROLLING_BLOCK], false)),
        crc64("narrow, copied, followed", 32, |keys, block| {
            x86_narrow::copied(keys, block, &mut [0; ROLLING_BLOCK], true)
        }),
        crc64("narrow, side by side", 4, |keys, block| abreast(x86_narrow::each, keys, block)),
        crc64("wide", 64, x86_blocks::crc64),
        crc64("wide, copied", 64, |keys, block| x86_blocks::copied(keys, block, &mut [0; ROLLING_BLOCK], false)),
        crc64("wide, copied, followed", 64, |keys, block| {
            x86_blocks::copied(keys, block, &mut [0; ROLLING_BLOCK], true)
        }),
        crc64("wide, two", 32, |keys, block| of_two(keys, block, false)),
        crc64("wide, two, asking", 32, |keys, block| of_two(keys, block, true)),
        crc32c("narrow, CRC-32C", 32, 64, |keys, block| x86_narrow::crc32c(keys, block).map(u64::from)),
        crc32c("wide, CRC-32C", 48, 32, |keys, block| x86_blocks::crc32c(keys, block).map(u64::from)),
        crc32c("wide, CRC-32C, asking", 48, 32, |keys, block| {
            x86_blocks::has_vectors().then(|| x86_blocks::crc32c_asking(keys, block, Some(block)).into())
        }),
    ]
}

/// A planted error: one bit of one of the keys that fold a block, or that its last rows are multiplied by.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_mutated_key_is_seen_in_the_sum_of_a_block() {
    let mut rng = Pcg64Mcg::seed_from_u64(69);
    let block = block(&mut rng);
    for Way { name, words, stream, keys, judge, sum } in ways() {
        let judged = judge(&block);
        let Some(summed) = sum(keys, &block) else {
            eprintln!("this CPU has not what {name} needs: it is not tested");
            continue;
        };
        assert_eq!(summed, judged, "{name}");
        // And the one that moves rows on, and those of the streams.
        let streams = (1..=4).map(|of| of * stream).filter(|&key| key > 0);
        for key in (WORDS - words - 1..WORDS).chain(streams) {
            let mut keys = *keys;
            keys[key] ^= 1 << rng.random_range(0..64);
            assert_ne!(sum(&keys, &block), Some(judged), "{name}, key {key}");
        }
    }
}

/// Each byte alone, so that none is left out; and blocks full of them.
fn blocks_to_sum() -> impl Iterator<Item = Box<Block>> {
    let single = (0..ROLLING_BLOCK).map(|at| {
        let mut block = Box::new([0; ROLLING_BLOCK]);
        block[at] = 1 << (at % 8);
        block
    });
    let mut rng = Pcg64Mcg::seed_from_u64(68);
    let full = (0..100).map(move |_| block(&mut rng));
    single.chain(full).chain([Box::new([0xff; ROLLING_BLOCK])])
}

#[test]
fn every_way_to_the_sum_of_a_block() {
    for block in blocks_to_sum() {
        assert_eq!(crate::crc32c(&block[..]), crc32c_by_library(&block[..]));
        #[cfg(target_arch = "x86_64")]
        for Way { name, keys, judge, sum, .. } in ways() {
            assert!(sum(keys, &block).is_none_or(|sum| sum == judge(&block)), "{name}");
        }
    }
}

/// A processor with wider vectors never gets there by itself.
#[test]
#[cfg(target_arch = "x86_64")]
fn narrow_vectors_give_the_same() {
    let mut rng = Pcg64Mcg::seed_from_u64(72);
    let blocks: [Box<Block>; 8] = std::array::from_fn(|_| block(&mut rng));
    let blocks: [&Block; 8] = std::array::from_fn(|at| &*blocks[at]);
    let judged = blocks.map(|block| crc64_by_library(&block[..]));
    let mut sums = [0; 8];
    if !x86_narrow::each(&KEYS, &blocks, &mut sums) {
        eprintln!("this CPU has no VPCLMULQDQ: the code that needs it is not tested");
        return;
    }
    assert_eq!(sums, judged);
    for (block, judged) in blocks.into_iter().zip(judged) {
        let mut copy = Box::new([0; ROLLING_BLOCK]);
        let sums = [
            x86_narrow::crc64(&KEYS, block),
            x86_narrow::crc64_of_followed(&KEYS, block),
            x86_narrow::copied(&KEYS, block, &mut copy, false),
        ];
        assert_eq!((sums, &*copy), ([Some(judged); 3], block));
    }
}

#[test]
fn blocks_are_summed_wherever_they_lie_and_however_many_there_are() {
    let mut rng = Pcg64Mcg::seed_from_u64(70);
    let mut bytes = vec![0; 40 * ROLLING_BLOCK];
    rng.fill(&mut bytes[..]);
    let all: Vec<&Block> = bytes.as_chunks::<ROLLING_BLOCK>().0.iter().collect();
    let scattered: Vec<&Block> = (0..40).map(|at| all[at * 7 % 40]).collect();
    for (blocks, count) in [&all, &scattered].into_iter().flat_map(|blocks| (0..=40).map(move |count| (blocks, count)))
    {
        let blocks = &blocks[..count];
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.digest_len() <= 8) {
            let mut numbers = vec![0; count];
            algorithm.number_each(blocks, &mut numbers);
            let sums = numbers.into_iter().map(|number| Checksum::from_number(algorithm, number));
            assert!(sums.eq(blocks.iter().map(|block| algorithm.sum(&block[..]))), "{algorithm}, {count} blocks");
        }
    }
    let mut crcs = [0; 40];
    Algorithm::Crc64Nvme.number_each(&all, &mut crcs);
    assert!(crcs.iter().zip(&all).all(|(crc, block)| *crc == crc64_by_library(&block[..])));
}

#[test]
fn a_copy_is_what_was_summed() {
    let mut rng = Pcg64Mcg::seed_from_u64(71);
    for _ in 0..100 {
        let (from, mut to) = (block(&mut rng), block(&mut rng));
        assert_eq!((crc64_copied(&from, &mut to), &to), (crc64_by_library(&from[..]), &from));
    }
    for algorithm in crate::Algorithm::ALL {
        for length in [0, 1, 100, ROLLING_BLOCK - 1, ROLLING_BLOCK, 2 * ROLLING_BLOCK] {
            let (mut from, mut to) = (vec![0; length], vec![0; length]);
            rng.fill(&mut from[..]);
            assert_eq!((algorithm.sum_copied(&from, &mut to), &to), (algorithm.sum(&from), &from), "{algorithm}");
        }
    }
}

/// A planted error: one bit of one weight.
#[test]
fn a_mutated_weight_is_seen() {
    let mut rng = Pcg64Mcg::seed_from_u64(67);
    let old = block(&mut rng);
    for word in 0..1024usize {
        let range = word * 4..word * 4 + 4;
        let mut new = Box::new(*old);
        // By one, so that no bit of the weight is lost above 2^32.
        new[range.start] ^= 1;
        let mut weights = WEIGHTS;
        weights[word / 16][word % 16] ^= 1 << rng.random_range(0..32);
        let fact = tally(&new).wrapping_sub(tally(&old));
        assert_eq!(tally::change(&WEIGHTS, range.start, &old[range.clone()], &new[range.clone()]), fact);
        assert_ne!(tally::change(&weights, range.start, &old[range.clone()], &new[range]), fact, "weight {word}");
    }
}
