//! Merging a fragment into a cache page: case 4 of checksum chaining on the hot path.

use std::ops::Range;

use crate::protected::look;
use crate::{Algorithm, Checksum, Mismatch};

/// Bytes in a cache page.
pub const PAGE_SIZE: usize = 4096;

/// Bytes of a page that start the processor's own prefetching, which ends with each page.
const PREFETCH_START: usize = 512;

/// Asks the processor for a page, into its second cache: to be called while the page before it, which is in the first one, is copied.
///
/// Pages of a request that come from DRAM, each verified and then copied, 128 KiB in all, least of 31 rounds on AMD EPYC: without asking 12.4 µs, with
/// this 11.2; the copy alone takes 9.7. Asking while the page before is verified makes it 13.4, as both wait for the same few lines on the way.
#[inline]
pub fn prefetch(page: &[u8; PAGE_SIZE]) {
    ask_for(page);
}

/// Asks for the beginning of a page that is verified after another one. All of it would take longer than it saves: 128 KiB verified without copies 10.4
/// µs, where this takes 6.9 and nothing 7.0 on AMD EPYC; on Intel Xeon, with copies, nothing took 27 and all of it 21.
#[inline]
pub fn prefetch_start(page: &[u8; PAGE_SIZE]) {
    ask_for(&page[..PREFETCH_START]);
}

/// Asks for a part of a page that is wanted soon.
///
/// # Panics
/// `part` reaches beyond [`PAGE_SIZE`].
#[inline]
pub fn prefetch_part(page: &[u8; PAGE_SIZE], part: Range<usize>) {
    ask_for(&page[part]);
}

/// Asks for what is verified after page `at` of several: of the next one the second half, of the one behind it the first half. A page that is the
/// neighbour in memory of the one before it, the processor sees coming; of such a one only the beginning, and not everywhere.
///
/// Pages that lie anywhere in memory, under CRC-64 on AMD EPYC: without asking 0.70 µs each, with [`prefetch_start`] 0.65, with all of the next page
/// 0.56, with these halves 0.42, for the about two dozen lines that can be on the way at a time come fastest from two pages. Neighbours take 0.15, and
/// 0.27 where halves are asked for.
#[inline]
pub fn prefetch_ahead<'a>(at: usize, page: impl Fn(usize) -> Option<&'a [u8; PAGE_SIZE]>) {
    let is_neighbour = |page: &[u8; PAGE_SIZE], before: Option<&[u8; PAGE_SIZE]>| {
        before.is_some_and(|before| before.as_ptr_range().end == page.as_ptr())
    };
    let (next, behind) = (page(at + 1), page(at + 2));
    if let Some(behind) = behind.filter(|behind| !is_neighbour(behind, next)) {
        prefetch_part(behind, 0..PAGE_SIZE / 2);
    }
    let follows = next.is_some_and(|next| is_neighbour(next, page(at)));
    match next {
        // Nobody has asked for anything of the first two.
        Some(next) if !follows => prefetch_part(next, if at == 0 { 0 } else { PAGE_SIZE / 2 }..PAGE_SIZE),
        Some(next) if asks_for_neighbours() => prefetch_start(next),
        _ => {}
    }
}

/// Whether the beginning of a neighbour is worth asking for at once. Not on AMD's without AVX-512 (Zen 3): a page verified in the order of memory took
/// 0.44 µs there, and 0.33 without asking. It is asked for on the way there ([`AHEAD`]).
#[inline]
fn asks_for_neighbours() -> bool {
    has_wide()
}

/// Whether the processor has vectors of 64 bytes; also where nothing here is written for its vectors.
#[inline]
pub(crate) fn has_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return crate::simd::has_wide();
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Asks for the 64 bytes at `at`, of a page that is wanted once all the others have been asked for: where each takes its time, nothing waits.
///
/// # Panics
/// `at` is not below [`PAGE_SIZE`].
#[inline]
pub fn prefetch_line(page: &[u8; PAGE_SIZE], at: usize) {
    ask_for(&page[at..=at]);
}

/// Of each of the blocks that are summed side by side next so many bytes are asked for; what comes behind, the processor sees coming.
#[cfg(target_arch = "x86_64")]
const ASKED: usize = 128;

/// Asks for the beginnings of blocks that are summed side by side after others.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ask_for_starts(blocks: &[&[u8; PAGE_SIZE]]) {
    blocks.iter().for_each(|block| prefetch_part(block, 0..ASKED));
}

/// Sums blocks that come from memory by a function that asks for nothing on the way: before each, what comes next is asked for ([`prefetch_ahead`]).
pub(crate) fn each_in_turn(blocks: &[&[u8; PAGE_SIZE]], sums: &mut [u64], sum: impl Fn(&[u8]) -> u64) {
    for (at, (block, of_block)) in blocks.iter().zip(sums).enumerate() {
        prefetch_ahead(at, |at| blocks.get(at).copied());
        *of_block = sum(*block);
    }
}

/// So many blocks ahead the beginning is asked for when two at a time are summed: finding a page of memory takes longer than fetching its bytes.
#[cfg(target_arch = "x86_64")]
const STARTS_AHEAD: usize = 6;

/// Goes through blocks that come from memory, two at a time: `sum` gets them, with the number of the first, to sum them side by side, and the two that come
/// next, to ask for them row by row; one that is left over at the end comes there twice, and is given back.
#[cfg(target_arch = "x86_64")]
pub(crate) fn by_twos<'a>(
    blocks: &[&'a [u8; PAGE_SIZE]],
    mut sum: impl FnMut(usize, &[&'a [u8; PAGE_SIZE]; 2], Option<&[&'a [u8; PAGE_SIZE]; 2]>),
) -> Option<&'a [u8; PAGE_SIZE]> {
    let ask = |blocks: &[&[u8; PAGE_SIZE]]| blocks.iter().for_each(|block| prefetch_line(block, 0));
    let (twos, left_over) = blocks.as_chunks::<2>();
    ask(&blocks[..blocks.len().min(STARTS_AHEAD)]);
    for (at, two) in twos.iter().enumerate() {
        twos.get(at + STARTS_AHEAD / 2).into_iter().for_each(|far| ask(far));
        let next = twos.get(at + 1).copied().or(left_over.first().map(|&block| [block; 2]));
        sum(2 * at, two, next.as_ref());
    }
    left_over.first().copied()
}

/// [`by_twos`] for whoever sums one after the other: `sum` gets a block, and the next but one, to ask for it, if there is one.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn each_by_twos(
    blocks: &[&[u8; PAGE_SIZE]],
    sums: &mut [u64],
    sum: impl Fn(&[u8; PAGE_SIZE], Option<&[u8; PAGE_SIZE]>) -> u64,
) {
    let left_over = by_twos(blocks, |first, two, next| {
        for (of, block) in two.iter().enumerate() {
            sums[first + of] = sum(block, next.map(|next| next[of]));
        }
    });
    if let (Some(block), Some(of_block)) = (left_over, sums.last_mut()) {
        *of_block = sum(block, None);
    }
}

/// Whether most of them lie behind each other: then one is better summed after the other.
#[cfg(target_arch = "x86_64")]
pub(crate) fn are_neighbours(blocks: &[&[u8; PAGE_SIZE]]) -> bool {
    (0..blocks.len()).filter(|&at| is_followed(blocks, at)).count() >= blocks.len() / 2
}

/// So many bytes ahead of what is summed are asked for, if the block behind is summed next (in Fletcher-256 where there is no AVX-512): half a block. What the processor fetches
/// ahead by itself ends with each page, and then it waits for the next one. On AMD EPYC (Zen 3) a page under CRC-64 takes 0.19 to 0.26 µs in the order
/// of memory instead of 0.26 to 0.28, about what xor64 of it takes; both sums of `static` 0.19 to 0.22 instead of 0.27 to 0.29.
#[cfg(target_arch = "x86_64")]
pub(crate) const AHEAD: usize = PAGE_SIZE / 2;

/// Whether the block behind block `at` in memory is the next of them.
pub(crate) fn is_followed(blocks: &[&[u8; PAGE_SIZE]], at: usize) -> bool {
    blocks.get(at + 1).is_some_and(|next| next.as_ptr() == blocks[at].as_ptr_range().end)
}

#[inline]
fn ask_for(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    crate::simd::prefetch(bytes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// A merge was refused; nothing may be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The old page is damaged.
    #[error("old page: {0}")]
    OldPage(Mismatch),
    /// The new bytes are damaged.
    #[error("new fragment: {0}")]
    Fragment(Mismatch),
    /// The fragment does not lie within a page.
    #[error("a fragment of {len} bytes at {at} reaches beyond a page")]
    Range {
        /// Position in the page, in bytes.
        at: usize,
        /// Length of the fragment, in bytes.
        len: usize,
    },
}

/// Builds in `out` the page that is `old` with `fragment` written at byte `at`, and returns its checksum under
/// `algorithm`.
///
/// Case 4 of the dissertation's §4.3.1: the new checksum is generated over the fragment and what remains of the old
/// page, then the old page and the fragment are verified (in this order), then the bytes move. The checksum is taken
/// from where the bytes come from and not from `out`: a bit that flips in `out`, even before the move is over, makes
/// `out` differ from the returned checksum, and one that flips in a source makes that source's verification fail.
///
/// # Errors
/// [`MergeError`]; `out` is then unchanged.
pub fn merge_page(
    old: &[u8; PAGE_SIZE],
    old_sum: Checksum,
    at: usize,
    fragment: &[u8],
    fragment_sum: Checksum,
    algorithm: Algorithm,
    out: &mut [u8; PAGE_SIZE],
) -> Result<Checksum, MergeError> {
    merge(old, old_sum, at, fragment, fragment_sum, algorithm, out)
}

/// [`merge_page`] for a fragment of `len` bytes that was received in its place already: `out[at .. at + len]`.
///
/// # Errors
/// [`MergeError`]; `out` is then unchanged.
pub fn merge_page_in_place(
    old: &[u8; PAGE_SIZE],
    old_sum: Checksum,
    at: usize,
    len: usize,
    fragment_sum: Checksum,
    algorithm: Algorithm,
    out: &mut [u8; PAGE_SIZE],
) -> Result<Checksum, MergeError> {
    merge_in_place(old, old_sum, at, len, fragment_sum, algorithm, out)
}

// Generic over the buffers only so that the tests can let bits flip in them between the steps. All are of PAGE_SIZE
// bytes, but for the fragment.

fn merge<O, F>(
    old: &O,
    old_sum: Checksum,
    at: usize,
    fragment: &F,
    fragment_sum: Checksum,
    algorithm: Algorithm,
    out: &mut impl AsMut<[u8]>,
) -> Result<Checksum, MergeError>
where
    O: AsRef<[u8]> + ?Sized,
    F: AsRef<[u8]> + ?Sized,
{
    let end = fragment_end(at, fragment.as_ref().len())?;
    let new_sum = generate(algorithm, old, at..end, fragment, |fragment| fragment);
    old_sum.verify(look(old)).map_err(MergeError::OldPage)?;
    fragment_sum.verify(look(fragment)).map_err(MergeError::Fragment)?;
    let out = out.as_mut();
    out[..at].copy_from_slice(&look(old)[..at]);
    out[at..end].copy_from_slice(look(fragment));
    out[end..].copy_from_slice(&look(old)[end..]);
    Ok(new_sum)
}

fn merge_in_place<O, P>(
    old: &O,
    old_sum: Checksum,
    at: usize,
    len: usize,
    fragment_sum: Checksum,
    algorithm: Algorithm,
    out: &mut P,
) -> Result<Checksum, MergeError>
where
    O: AsRef<[u8]> + ?Sized,
    P: AsRef<[u8]> + AsMut<[u8]>,
{
    let end = fragment_end(at, len)?;
    let new_sum = generate(algorithm, old, at..end, out, |out| &out[at..end]);
    old_sum.verify(look(old)).map_err(MergeError::OldPage)?;
    fragment_sum.verify(&look(out)[at..end]).map_err(MergeError::Fragment)?;
    out.as_mut()[..at].copy_from_slice(&look(old)[..at]);
    out.as_mut()[end..].copy_from_slice(&look(old)[end..]);
    Ok(new_sum)
}

fn fragment_end(at: usize, len: usize) -> Result<usize, MergeError> {
    at.checked_add(len).filter(|&end| end <= PAGE_SIZE).ok_or(MergeError::Range { at, len })
}

/// The checksum of the page to be: `old` with `replaced` taken from `new`.
fn generate<O, N>(
    algorithm: Algorithm,
    old: &O,
    replaced: Range<usize>,
    new: &N,
    fragment: impl Fn(&[u8]) -> &[u8],
) -> Checksum
where
    O: AsRef<[u8]> + ?Sized,
    N: AsRef<[u8]> + ?Sized,
{
    let mut sum = algorithm.digest();
    sum.update(&look(old)[..replaced.start]);
    sum.update(fragment(look(new)));
    sum.update(&look(old)[replaced.end..]);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flaky::Flaky;
    use proptest::prelude::*;

    /// Before which access to which buffer which bit flips.
    #[derive(Clone, Copy, Debug)]
    enum Faulty {
        Old,
        Fragment,
        Out,
    }

    fn buffer(bytes: &[u8], fault: Option<(usize, usize)>) -> Flaky {
        match fault {
            Some((bit, gap)) => Flaky::new(bytes.to_vec(), bit, gap),
            None => Flaky::sound(bytes.to_vec()),
        }
    }

    fn page(seed: u8) -> Vec<u8> {
        (0..PAGE_SIZE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as u8 ^ seed).collect()
    }

    /// Those that see each flip.
    fn algorithms() -> impl Strategy<Value = Algorithm> {
        proptest::sample::select(Algorithm::ALL.into_iter().filter(|&a| a != Algorithm::None).collect::<Vec<_>>())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// With the bit flipped in any gap of either variant, the result is right, refused, or visibly wrong.
        #[test]
        fn no_gap_is_open(
            seed in any::<u8>(),
            a in 0..=PAGE_SIZE,
            b in 0..=PAGE_SIZE,
            bit in 0..PAGE_SIZE * 8,
            faulty in prop_oneof![Just(Faulty::Old), Just(Faulty::Fragment), Just(Faulty::Out)],
            in_place in any::<bool>(),
            old_with in algorithms(),
            fragment_with in algorithms(),
            algorithm in algorithms(),
        ) {
            let (at, end) = (a.min(b), a.max(b));
            let old = page(seed);
            let fragment = &page(!seed)[..end - at];
            let (old_sum, fragment_sum) = (old_with.sum(&old), fragment_with.sum(fragment));
            let mut right = old.clone();
            right[at..end].copy_from_slice(fragment);

            for gap in (0..10).chain([usize::MAX]) {
                let fault = Some((bit, gap));
                let (mut f_old, mut f_fragment, mut f_out) = (None, None, None);
                match faulty {
                    Faulty::Old => f_old = fault,
                    Faulty::Fragment => f_fragment = fault,
                    Faulty::Out => f_out = fault,
                }
                let flaky_old = buffer(&old, f_old);
                let mut out = vec![0xee; PAGE_SIZE];
                let (result, out) = if in_place {
                    // Here the fragment lies in `out`.
                    out[at..end].copy_from_slice(fragment);
                    let mut out = buffer(&out, f_out.or(f_fragment));
                    let result =
                        merge_in_place(&flaky_old, old_sum, at, end - at, fragment_sum, algorithm, &mut out);
                    (result, out)
                } else {
                    let mut out = buffer(&out, f_out);
                    let flaky_fragment = buffer(fragment, f_fragment);
                    let result =
                        merge(&flaky_old, old_sum, at, &flaky_fragment, fragment_sum, algorithm, &mut out);
                    (result, out)
                };
                match result {
                    Ok(sum) => {
                        let now = out.as_ref();
                        prop_assert!(now == right || algorithm.sum(now) != sum, "silent, gap {}", gap);
                        prop_assert_eq!(sum, algorithm.sum(&right));
                    }
                    Err(error) => {
                        prop_assert!(gap != usize::MAX, "{}", error);
                        let named = match error {
                            MergeError::OldPage(_) => matches!(faulty, Faulty::Old),
                            MergeError::Fragment(_) => !matches!(faulty, Faulty::Old),
                            MergeError::Range { .. } => false,
                        };
                        prop_assert!(named, "{}", error);
                    }
                }
            }
        }
    }

    #[test]
    fn public_forms_agree_and_refuse() {
        let old: [u8; PAGE_SIZE] = page(1).try_into().unwrap();
        let fragment = b"a fragment";
        let with = Algorithm::Crc64Nvme;
        let (old_sum, fragment_sum) = (with.sum(&old), with.sum(fragment));
        let mut out = [0; PAGE_SIZE];
        let sum = merge_page(&old, old_sum, 4086, fragment, fragment_sum, with, &mut out).unwrap();
        assert_eq!(sum, with.sum(&out));
        assert_eq!(&out[4086..], fragment);
        assert_eq!(out[..4086], old[..4086]);

        let mut other = [0; PAGE_SIZE];
        other[4086..].copy_from_slice(fragment);
        let again = merge_page_in_place(&old, old_sum, 4086, 10, fragment_sum, with, &mut other);
        assert_eq!((again, other), (Ok(sum), out));

        for (at, len) in [(4087, 10), (0, 4097), (usize::MAX, 2)] {
            assert_eq!(
                merge_page_in_place(&old, old_sum, at, len, Checksum::none(), with, &mut out),
                Err(MergeError::Range { at, len })
            );
        }
        // A refusal leaves the page alone.
        let before = out;
        let bad = merge_page(&old, fragment_sum, 0, fragment, fragment_sum, with, &mut out);
        assert!(matches!(bad, Err(MergeError::OldPage(m)) if m.got == old_sum));
        let bad = merge_page(&old, old_sum, 0, fragment, old_sum, with, &mut out);
        assert!(matches!(bad, Err(MergeError::Fragment(_))));
        assert_eq!(out, before);
    }
}
