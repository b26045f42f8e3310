use super::*;
use crate::sums::{FLETCHER_SEGMENT, xor64_portable};
use proptest::prelude::*;

/// The column sums by definition: every value of A is added to B.
fn columns_by_definition(words: &[[u8; 16]]) -> FletcherColumns {
    let mut sums = FletcherColumns { a: [0; 2], b: [0; 2] };
    for word in words {
        for (c, column) in word.as_chunks::<8>().0.iter().enumerate() {
            sums.a[c] += u128::from(u64::from_le_bytes(*column));
            sums.b[c] += sums.a[c];
        }
    }
    sums
}

fn check(bytes: &[u8]) {
    let words = bytes.as_chunks::<16>().0;
    let words = &words[..words.len().min(FLETCHER_SEGMENT)];
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was detected on the line above.
        let (xor, (done, columns)) = unsafe { (xor64_avx512(bytes), fletcher_avx512(words)) };
        assert_eq!(xor, xor64_portable(bytes));
        assert!(words.len() - done < 8);
        assert_eq!(columns, columns_by_definition(&words[..done]));
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was detected on the line above.
        let (xor, (done, columns)) = unsafe { (xor64_avx2(bytes), fletcher_avx2(words)) };
        assert_eq!(xor, xor64_portable(bytes));
        assert!(words.len() - done < 4);
        assert_eq!(columns, columns_by_definition(&words[..done]));
    }
}

proptest! {
    /// Every length and every alignment within a vector.
    #[test]
    fn vector_code_equals_portable(
        bytes in proptest::collection::vec(any::<u8>(), 0..6000),
        skip in 0usize..64,
    ) {
        check(&bytes[skip.min(bytes.len())..]);
    }
}

/// The largest sums there can be: nothing overflows (the tests run with overflow checks; vectors are compared).
#[test]
fn longest_segment_of_all_ones() {
    check(&[0xff; FLETCHER_SEGMENT * 16]);
}

/// Of every vector width that the CPU has, both sums of one block and of several, as by definition.
fn check_blocks(blocks: &[[u8; PAGE_SIZE]; ABREAST]) {
    let expected: [_; ABREAST] =
        std::array::from_fn(|at| (columns_by_definition(blocks[at].as_chunks::<16>().0), xor64_portable(&blocks[at])));
    let each = blocks.each_ref();
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was detected on the line above.
        let (one, two) = unsafe { (fletcher_and_xor64_avx512(each[0]), two_avx512(&[each[0], each[1]], |_| {})) };
        assert_eq!((one, two), (expected[0], [expected[0], expected[1]]));
        // SAFETY: as above.
        assert_eq!(unsafe { fletcher_block_avx512(each[0]) }, expected[0].0);
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was detected on the line above.
        let one = [false, true].map(|is_followed| unsafe { fletcher_and_xor64_avx2(each[0], is_followed) });
        // SAFETY: as above.
        let all = unsafe { fletcher_and_xor64_each_avx2(&each) };
        assert_eq!((one, all), ([expected[0]; 2], expected));
    }
    assert!(xor64_each(&each).is_none_or(|sums| sums == expected.map(|(_, xor)| xor)));
}

proptest! {
    #[test]
    fn blocks_side_by_side_have_the_sums_of_each(
        bytes in proptest::collection::vec(any::<u8>(), ABREAST * PAGE_SIZE),
    ) {
        check_blocks(bytes.as_chunks().0.try_into().expect("as many blocks"));
    }
}

#[test]
fn blocks_of_all_ones() {
    check_blocks(&[[0xff; PAGE_SIZE]; ABREAST]);
}
