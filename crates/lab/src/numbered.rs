//! Blocks that say which write they are of.

use holdfast_block::BLOCK_SIZE;

/// What a block has, by number: 0 is zeros.
pub(crate) fn block(content: u64) -> [u8; BLOCK_SIZE] {
    let mut bytes = [0; BLOCK_SIZE];
    let (words, _none) = bytes.as_chunks_mut::<8>();
    for (at, word) in words.iter_mut().enumerate().filter(|_| content != 0) {
        *word = (content + at as u64 * 0x1_0000_0000).to_le_bytes();
    }
    bytes
}

/// Which content a block has, if it is something that was written.
pub(crate) fn content(found: &[u8; BLOCK_SIZE]) -> Option<u64> {
    let content = u64::from_le_bytes(*found.first_chunk::<8>().expect("a block has 8 bytes"));
    (*found == block(content)).then_some(content)
}
