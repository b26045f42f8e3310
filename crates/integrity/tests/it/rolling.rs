//! Rolling checksums: following every change, they are what a fresh checksum over the block would be.

use std::fmt::Debug;
use std::ops::Range;

use holdfast_integrity::*;

use crate::random::Random;

type Block = [u8; ROLLING_BLOCK];

/// A checksum of a block that can follow changes.
trait Rolling {
    type Sum: Copy + Eq + Debug;
    /// Of a block of zeros.
    const ZEROS: Self::Sum;
    /// The delta of no change.
    const NONE: Self::Sum;
    fn fresh(block: &Block) -> Self::Sum;
    fn change(at: usize, old: &[u8], new: &[u8]) -> Self::Sum;
    fn combine(one: Self::Sum, other: Self::Sum) -> Self::Sum;
}

struct RollingCrc64;
impl Rolling for RollingCrc64 {
    type Sum = u64;
    const ZEROS: u64 = CRC64_OF_ZEROS;
    const NONE: u64 = 0;
    fn fresh(block: &Block) -> u64 {
        crc64(block)
    }
    fn change(at: usize, old: &[u8], new: &[u8]) -> u64 {
        crc64_change(at, old, new)
    }
    fn combine(one: u64, other: u64) -> u64 {
        one ^ other
    }
}

/// CRC-64 and tally together.
struct RollingDelta;
impl Rolling for RollingDelta {
    type Sum = Delta;
    const ZEROS: Delta = Delta { crc64: CRC64_OF_ZEROS, tally: 0 };
    const NONE: Delta = Delta::NONE;
    fn fresh(block: &Block) -> Delta {
        Delta { crc64: crc64(block), tally: tally(block) }
    }
    fn change(at: usize, old: &[u8], new: &[u8]) -> Delta {
        Delta::of(at, old, new)
    }
    fn combine(one: Delta, other: Delta) -> Delta {
        let Delta { mut crc64, mut tally } = one.combine(Delta::NONE);
        other.apply(&mut crc64, &mut tally);
        assert_eq!(Delta { crc64, tally }, one.combine(other));
        Delta { crc64, tally }
    }
}

struct RollingAdler32;
impl Rolling for RollingAdler32 {
    type Sum = u32;
    const ZEROS: u32 = ADLER32_OF_ZEROS;
    const NONE: u32 = 0;
    fn fresh(block: &Block) -> u32 {
        adler32(block)
    }
    fn change(at: usize, old: &[u8], new: &[u8]) -> u32 {
        adler32_change(ROLLING_BLOCK, at, old, new)
    }
    fn combine(one: u32, other: u32) -> u32 {
        adler32_add_delta(one, other)
    }
}

struct RollingFletcher256;
impl Rolling for RollingFletcher256 {
    type Sum = [u8; 32];
    const ZEROS: [u8; 32] = [0; 32];
    const NONE: [u8; 32] = [0; 32];
    fn fresh(block: &Block) -> [u8; 32] {
        fletcher256(block)
    }
    fn change(at: usize, old: &[u8], new: &[u8]) -> [u8; 32] {
        fletcher256_change(ROLLING_BLOCK, at, old, new)
    }
    fn combine(one: [u8; 32], other: [u8; 32]) -> [u8; 32] {
        fletcher256_add_delta(one, other)
    }
}

/// Ranges at which arithmetic has its corners: ends of the block, of words of 4, 8 and 16 bytes, of slots; none and all of it.
fn edges() -> Vec<Range<usize>> {
    let ends = [0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 2040, 2048];
    let ends: Vec<usize> = ends.iter().copied().chain(ends.iter().map(|end| ROLLING_BLOCK - end)).collect();
    ends.iter()
        .flat_map(|&start| ends.iter().filter(move |end| start <= **end).map(move |&end| start..end))
        .chain((0..ROLLING_BLOCK).step_by(8).map(|at| at..at + 8))
        .chain((0..ROLLING_BLOCK).step_by(64).map(|at| at..at + 64))
        .collect()
}

fn some_range(random: &mut Random) -> Range<usize> {
    // Half of them short.
    let longest = if random.next().is_multiple_of(2) { 64 } else { ROLLING_BLOCK };
    let start = random.below(ROLLING_BLOCK + 1);
    start..start + random.below(longest.min(ROLLING_BLOCK - start) + 1)
}

/// New contents: of the kinds that come in metadata, and those that make sums wrap.
fn contents(random: &mut Random, old: &[u8]) -> Vec<u8> {
    match random.below(6) {
        0 => vec![0; old.len()],
        1 => vec![0xff; old.len()],
        2 => old.iter().map(|byte| !byte).collect(),
        3 if !old.is_empty() => {
            let mut new = old.to_vec();
            new[random.below(old.len())] ^= 1 << random.below(8);
            new
        }
        _ => old.iter().map(|_| random.next() as u8).collect(),
    }
}

/// Follows changes from a block of zeros on, and compares after each.
fn follow<R: Rolling>(random: &mut Random) {
    let mut block = Box::new([0; ROLLING_BLOCK]);
    let mut sum = R::ZEROS;
    assert_eq!(sum, R::fresh(&block), "of zeros");
    let mut ranges = edges();
    ranges.extend((0..1000).map(|_| some_range(random)));
    for (step, range) in ranges.into_iter().enumerate() {
        let new = contents(random, &block[range.clone()]);
        sum = R::combine(sum, R::change(range.start, &block[range.clone()], &new));
        block[range.clone()].copy_from_slice(&new);
        assert_eq!(sum, R::fresh(&block), "after change {step}, of bytes {range:?}");
    }
}

#[test]
fn crc64_follows_every_change() {
    follow::<RollingCrc64>(&mut Random::new("crc64_follows_every_change"));
}

#[test]
fn crc64_and_tally_follow_every_change() {
    follow::<RollingDelta>(&mut Random::new("crc64_and_tally_follow_every_change"));
}

#[test]
fn adler32_follows_every_change() {
    follow::<RollingAdler32>(&mut Random::new("adler32_follows_every_change"));
}

#[test]
fn fletcher256_follows_every_change() {
    follow::<RollingFletcher256>(&mut Random::new("fletcher256_follows_every_change"));
}

/// Lengths other than a block's, down to none, for the two that take one.
#[test]
fn adler32_and_fletcher256_of_any_length() {
    let mut random = Random::new("adler32_and_fletcher256_of_any_length");
    for length in (0..70).chain([4095, 4097, 70_000]) {
        let old: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        for _ in 0..20 {
            let start = random.below(length + 1);
            let range = start..start + random.below(length - start + 1);
            let mut new = old.clone();
            new[range.clone()].copy_from_slice(&contents(&mut random, &old[range.clone()]));
            let (at, before, after) = (range.start, &old[range.clone()], &new[range.clone()]);
            let change = adler32_change(length, at, before, after);
            assert_eq!(adler32_add_delta(adler32(&old), change), adler32(&new), "bytes {range:?} of {length}");
            let change = fletcher256_change(length, at, before, after);
            assert_eq!(
                fletcher256_add_delta(fletcher256(&old), change),
                fletcher256(&new),
                "bytes {range:?} of {length}"
            );
        }
    }
    // RFC 1950's, of text; as published for "Wikipedia".
    assert_eq!(adler32(b"Wikipedia"), 0x11E6_0398);
    assert_eq!(adler32(b""), 1);
}

#[test]
fn every_bit_word_and_slot() {
    let mut random = Random::new("every_bit_word_and_slot");
    for old in [random.block(), Box::new([0; ROLLING_BLOCK]), Box::new([0xff; ROLLING_BLOCK])] {
        let (sum, before) = (crc64(&*old), tally(&old));
        let mut new = old.clone();
        for bit in 0..ROLLING_BLOCK * 8 {
            new[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(sum ^ crc64_change_word(bit / 64, 1 << (bit % 64)), crc64(&*new), "bit {bit}");
            new[bit / 8] = old[bit / 8];
        }
        for word in 0..512 {
            let at = |block: &Block| u64::from_le_bytes(block.as_chunks::<8>().0[word]);
            for value in [0, u64::MAX, !at(&old), 1 << 63, random.next()] {
                new.as_chunks_mut::<8>().0[word] = value.to_le_bytes();
                let delta = Delta::of_word(word, at(&old), value);
                let fresh = Delta { crc64: sum ^ crc64(&*new), tally: tally(&new).wrapping_sub(before) };
                assert_eq!(delta, fresh, "word {word} from {:#x} to {value:#x}", at(&old));
            }
            new.as_chunks_mut::<8>().0[word] = at(&old).to_le_bytes();
        }
        for slot in 0..64 {
            let from = old.as_chunks::<64>().0[slot];
            for _ in 0..4 {
                let to: [u8; 64] = contents(&mut random, &from).try_into().expect("64 bytes");
                new.as_chunks_mut::<64>().0[slot] = to;
                let delta = Delta::of_slot(slot, &from, &to);
                let fresh = Delta { crc64: sum ^ crc64(&*new), tally: tally(&new).wrapping_sub(before) };
                assert_eq!(delta, fresh, "slot {slot}");
                assert_eq!(crc64_change_slot(slot, &from, &to), fresh.crc64, "slot {slot}");
            }
            new.as_chunks_mut::<64>().0[slot] = from;
        }
    }
}

/// At every place of a word: from and to each value at whose sums arithmetic has its corners, none, all ones, one below and above a byte's and a
/// word's half. The places of the last words are those with the least weight, those of the first with the greatest.
fn edge_words<R: Rolling>(random: &mut Random) {
    let edges =
        [0, u64::MAX, 1, 1 << 63, u64::MAX >> 1, 0x0101_0101_0101_0101, 0x8080_8080_8080_8080, 0x7f7f_7f7f_7f7f_7f7f];
    for filled in [0, 0xff] {
        let mut block = Box::new([filled; ROLLING_BLOCK]);
        let mut sum = R::fresh(&block);
        for word in 0..ROLLING_BLOCK / 8 {
            let at = 8 * word;
            // What was before: an edge, or anything; each change from the last one on, and one fresh sum for two of them.
            for pair in edges.into_iter().chain([random.next()]).collect::<Vec<_>>().chunks(2) {
                let mut deltas = R::NONE;
                for value in pair {
                    let new = value.to_le_bytes();
                    let delta = R::change(at, &block[at..at + 8], &new);
                    deltas = R::combine(deltas, delta);
                    block[at..at + 8].copy_from_slice(&new);
                }
                sum = R::combine(sum, deltas);
                assert_eq!(sum, R::fresh(&block), "word {word}, {pair:x?}");
            }
        }
    }
}

#[test]
fn edge_words_at_every_place() {
    let mut random = Random::new("edge_words_at_every_place");
    edge_words::<RollingCrc64>(&mut random);
    edge_words::<RollingDelta>(&mut random);
    edge_words::<RollingAdler32>(&mut random);
    edge_words::<RollingFletcher256>(&mut random);
}

/// Updaters that all start from the same block and change bytes of their own, one after the other many times over, each with a
/// fragment of its own. The fragments are combined in random order and grouping.
fn fragments_combine<R: Rolling>(random: &mut Random) {
    for updaters in [1, 2, 3, 8, 61] {
        let mut block = random.block();
        let before = R::fresh(&block);
        // Byte i belongs to one updater, so that neighbours share words.
        let mut cuts: Vec<usize> = (1..updaters).map(|_| random.below(ROLLING_BLOCK)).collect();
        cuts.extend([0, ROLLING_BLOCK]);
        cuts.sort_unstable();
        let mut fragments = vec![R::NONE; updaters];
        for _ in 0..updaters * 8 {
            let updater = random.below(updaters);
            let (from, to) = (cuts[updater], cuts[updater + 1]);
            let start = from + random.below(to - from + 1);
            let range = start..start + random.below(to - start + 1);
            let new = contents(random, &block[range.clone()]);
            let delta = R::change(range.start, &block[range.clone()], &new);
            fragments[updater] = R::combine(fragments[updater], delta);
            block[range].copy_from_slice(&new);
        }
        fragments.push(before);
        while fragments.len() > 1 {
            let one = fragments.swap_remove(random.below(fragments.len()));
            let other = random.below(fragments.len());
            fragments[other] = R::combine(one, fragments[other]);
        }
        assert_eq!(fragments[0], R::fresh(&block), "{updaters} updaters");
    }
}

#[test]
fn deltas_combine_in_any_order() {
    let mut random = Random::new("deltas_combine_in_any_order");
    for _ in 0..20 {
        fragments_combine::<RollingCrc64>(&mut random);
        fragments_combine::<RollingDelta>(&mut random);
        fragments_combine::<RollingAdler32>(&mut random);
        fragments_combine::<RollingFletcher256>(&mut random);
    }
}

/// Two updaters that do not know of each other change different bits of one word, each from the same old value.
#[test]
fn deltas_of_different_bits_of_one_word_combine() {
    let mut random = Random::new("deltas_of_different_bits_of_one_word_combine");
    for word in [0, 1, 255, 510, 511] {
        let mut block = random.block();
        let (sum, before) = (crc64(&*block), tally(&block));
        let old = u64::from_le_bytes(block.as_chunks::<8>().0[word]);
        let (mask, values) = (random.next(), random.next());
        let one = Delta::of_word(word, old, old & !mask | values & mask);
        let other = Delta::of_word(word, old, old & mask | values & !mask);
        block.as_chunks_mut::<8>().0[word] = values.to_le_bytes();
        let fresh = Delta { crc64: sum ^ crc64(&*block), tally: tally(&block).wrapping_sub(before) };
        assert_eq!((one.combine(other), other.combine(one)), (fresh, fresh), "word {word}");
    }
}

/// Bytes that change past the checksum stay visible whatever is legally changed afterwards, even if that covers them.
fn scribble_stays<R: Rolling>(random: &mut Random) {
    for _ in 0..20 {
        let mut block = random.block();
        let mut sum = R::fresh(&block);
        let scribbled = random.below(ROLLING_BLOCK);
        block[scribbled] ^= 1 << random.below(8);
        for step in 0..50 {
            let range = if step == 25 { scribbled..scribbled + 1 } else { some_range(random) };
            let new = contents(random, &block[range.clone()]);
            sum = R::combine(sum, R::change(range.start, &block[range.clone()], &new));
            block[range].copy_from_slice(&new);
            assert_ne!(sum, R::fresh(&block), "byte {scribbled}, step {step}");
        }
    }
}

#[test]
fn a_scribble_stays_visible_under_legal_changes() {
    let mut random = Random::new("a_scribble_stays_visible_under_legal_changes");
    scribble_stays::<RollingCrc64>(&mut random);
    scribble_stays::<RollingDelta>(&mut random);
    scribble_stays::<RollingAdler32>(&mut random);
    scribble_stays::<RollingFletcher256>(&mut random);
}

/// What the CRC cannot see, at every place in the block: the tally does.
#[test]
fn neutral_patterns_keep_the_crc_and_change_the_tally() {
    let mut random = Random::new("neutral_patterns_keep_the_crc_and_change_the_tally");
    for mut block in [random.block(), Box::new([0; ROLLING_BLOCK]), Box::new([0xff; ROLLING_BLOCK])] {
        let (sum, before) = (crc64(&*block), tally(&block));
        let mut bit = 0;
        while let Some((at, pattern)) = crc64_neutral(bit) {
            let old: [u8; 9] = std::array::from_fn(|i| block[at + i]);
            let new: [u8; 9] = std::array::from_fn(|i| old[i] ^ pattern[i]);
            assert_eq!(crc64_change(at, &old, &new), 0, "bit {bit}");
            block[at..at + 9].copy_from_slice(&new);
            assert_eq!(crc64(&*block), sum, "bit {bit}");
            assert_ne!(tally(&block), before, "bit {bit}");
            block[at..at + 9].copy_from_slice(&old);
            bit += 1;
        }
        assert_eq!(bit, ROLLING_BLOCK * 8 - 64, "up to the last 65 bits");
    }
}

/// The paper's formulas with the modulus of unsigned numbers: wrong for about four of five bytes that get smaller.
#[test]
fn adler32_without_signs_is_wrong() {
    let unsigned = |old_sum: u32, weight: u32, old: u8, new: u8| {
        let difference = u32::from(new).wrapping_sub(u32::from(old));
        let a = (old_sum & 0xffff).wrapping_add(difference) % 65521;
        let b = (old_sum >> 16).wrapping_add(weight.wrapping_mul(difference)) % 65521;
        a | b << 16
    };
    let mut random = Random::new("adler32_without_signs_is_wrong");
    let (mut wrong, changes) = (0, 10_000);
    let mut block = random.block();
    for _ in 0..changes {
        let (at, new) = (random.below(ROLLING_BLOCK), random.next() as u8);
        let (old, sum) = (block[at], adler32(&*block));
        block[at] = new;
        let fresh = adler32(&*block);
        assert_eq!(adler32_add_delta(sum, adler32_change(ROLLING_BLOCK, at, &[old], &[new])), fresh);
        wrong += u32::from(unsigned(sum, (ROLLING_BLOCK - at) as u32, old, new) != fresh);
    }
    println!("unsigned arithmetic: {wrong} of {changes} changes wrong");
    assert!(wrong > changes / 4, "{wrong}");
}

/// A seed xored onto the sum does not tell that a change goes to the wrong block; the tag does.
#[test]
fn a_change_of_the_wrong_block_is_seen_by_its_tag_alone() {
    let mut random = Random::new("a_change_of_the_wrong_block_is_seen_by_its_tag_alone");
    let (meant, hit) = (identity_mix(1, 2, 3, 4), identity_mix(1, 2, 3, 5));
    let mut block = random.block();
    let mut sum = crc64(&*block) ^ hit;
    let old: [u8; 64] = block.as_chunks::<64>().0[9];
    let new = [7; 64];
    sum ^= crc64_change_slot(9, &old, &new);
    block.as_chunks_mut::<64>().0[9] = new;
    assert_eq!(sum, crc64(&*block) ^ hit, "sum and contents of the wrong block agree");
    assert_ne!(sum, crc64(&*block) ^ meant, "where a block is read under another identity, the seed does see it");
    assert_ne!(identity_tag(meant), identity_tag(hit));
}

#[test]
#[should_panic(expected = "does not lie in a block")]
fn a_change_beyond_the_block_is_refused() {
    crc64_change(4090, &[0; 7], &[1; 7]);
}

#[test]
#[should_panic(expected = "does not move what follows")]
fn a_change_of_length_is_refused() {
    Delta::of(0, &[0; 7], &[1; 8]);
}
