//! Several buffers as one row of bytes.

use holdfast_integrity::{Algorithm, Checksum};
use std::hint::black_box;
use std::ops::{Deref, Range};

/// Bytes in all.
pub fn length<B: Deref<Target = [u8]>>(buffers: &[B]) -> usize {
    buffers.iter().map(|buffer| buffer.len()).sum()
}

/// The parts of the buffers that the range covers: buffer, and bytes in it.
pub fn parts<B: Deref<Target = [u8]>>(
    buffers: &[B],
    range: Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut start = 0;
    buffers.iter().enumerate().filter_map(move |(index, buffer)| {
        let here = range.start.max(start)..range.end.min(start + buffer.len());
        let within = here.start.saturating_sub(start)..here.end.saturating_sub(start);
        start += buffer.len();
        (here.start < here.end).then_some((index, within))
    })
}

/// The checksum of the range, whose bytes are read anew.
pub fn sum<B: Deref<Target = [u8]>>(buffers: &[B], range: Range<usize>, algorithm: Algorithm) -> Checksum {
    if let [buffer] = buffers {
        return algorithm.sum(&black_box::<&[u8]>(buffer)[range]);
    }
    let mut digest = algorithm.digest();
    for (index, within) in parts(buffers, range) {
        digest.update(&black_box::<&[u8]>(&buffers[index])[within]);
    }
    digest.finish()
}

/// Copies the range to `to`, which has its length.
pub fn gather<B: Deref<Target = [u8]>>(buffers: &[B], range: Range<usize>, to: &mut [u8]) {
    let mut rest = to;
    for (index, within) in parts(buffers, range) {
        let (here, after) = rest.split_at_mut(within.len());
        here.copy_from_slice(&buffers[index][within]);
        rest = after;
    }
}

/// Copies `from` to the buffers from byte `at` on.
pub fn scatter(buffers: &mut [std::io::IoSliceMut<'_>], at: usize, from: &[u8]) {
    let mut rest = from;
    let targets: Vec<_> = parts(buffers, at..at + from.len()).collect();
    for (index, within) in targets {
        let (here, after) = rest.split_at(within.len());
        buffers[index][within].copy_from_slice(here);
        rest = after;
    }
}

/// Fills the range with zeros.
pub fn clear(buffers: &mut [std::io::IoSliceMut<'_>], range: Range<usize>) {
    let targets: Vec<_> = parts(buffers, range).collect();
    for (index, within) in targets {
        buffers[index][within].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::IoSliceMut;

    #[test]
    fn buffers_are_one_row() {
        let (mut a, mut b, mut c, mut d) = ([0; 3], [0; 0], [0; 5], [0; 2]);
        let mut buffers =
            [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c), IoSliceMut::new(&mut d)];
        assert_eq!(length(&buffers), 10);
        let bytes: Vec<u8> = (1..=10).collect();
        scatter(&mut buffers, 0, &bytes);
        for start in 0..=10 {
            for end in start..=10 {
                let mut back = vec![0; end - start];
                gather(&buffers, start..end, &mut back);
                assert_eq!(back, bytes[start..end]);
                let algorithm = Algorithm::Fletcher256;
                assert_eq!(sum(&buffers, start..end, algorithm), algorithm.sum(&bytes[start..end]));
            }
        }
        scatter(&mut buffers, 2, &[20, 21, 22]);
        clear(&mut buffers, 4..9);
        assert_eq!((a, c, d), ([1, 2, 20], [21, 0, 0, 0, 0], [0, 10]));
    }
}
