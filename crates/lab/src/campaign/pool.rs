//! Bits that flip in the page pool of a cache in use, and in the checksums of its pages.

use super::Targets;
use holdfast_cache::{Cache, FlipError, FlipPart, ResidentPage};
use holdfast_object::PAGE_BITS;
use rand::Rng;
use std::time::{Duration, Instant};

/// How long a page that somebody looks at is waited for, before another bit is drawn.
const PATIENCE: Duration = Duration::from_millis(100);

/// Flips one bit of the pages and their checksums, each as likely as any other. Nothing happens if there is none.
pub(super) fn flip(cache: &Cache, targets: Targets, rng: &mut impl Rng) {
    let at_any_moment = cache.at_any_moment();
    loop {
        let pages = at_any_moment.resident_pages(|_, _| true);
        let Some((page, part, bit)) = drawn(&pages, targets, rng) else { return };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match at_any_moment.flip(&page, part, &[bit]) {
                Ok(()) => return,
                Err(FlipError::InUse) if Instant::now() < deadline => std::thread::yield_now(),
                // It has been written, or let go of, since it was drawn; or it is read all the time.
                Err(_) => break,
            }
        }
    }
}

/// A random bit of the pages and the checksums; a frame without a page has none. Nothing if there is none at all.
fn drawn(pages: &[ResidentPage], targets: Targets, rng: &mut impl Rng) -> Option<(ResidentPage, FlipPart, u32)> {
    let of_bytes = match targets {
        Targets::All => pages.len() as u64 * u64::from(PAGE_BITS),
        Targets::Sums => 0,
    };
    let of_sums: u64 = pages.iter().map(|page| u64::from(page.sum_bits)).sum();
    if of_bytes + of_sums == 0 {
        return None;
    }
    let at = rng.random_range(0..of_bytes + of_sums);
    let Some(mut at) = at.checked_sub(of_bytes) else {
        let page = pages.get((at / u64::from(PAGE_BITS)) as usize)?;
        return Some((*page, FlipPart::Bytes, (at % u64::from(PAGE_BITS)) as u32));
    };
    for page in pages {
        match at.checked_sub(page.sum_bits.into()) {
            Some(behind) => at = behind,
            None => return Some((*page, FlipPart::Sum, at as u32)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_cache::PageState;
    use holdfast_object::ObjectId;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    #[test]
    fn every_bit_is_as_likely() {
        const DRAWN: u32 = 20_000;
        let page = |index, sum_bits| ResidentPage { object: ObjectId(7), index, state: PageState::Clean, sum_bits };
        let pages = [page(0, 64), page(1, 0), page(2, 192)];
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        let mut share = |targets, is: &dyn Fn(ResidentPage, FlipPart, u32) -> bool| {
            let drawn = (0..DRAWN).map(|_| drawn(&pages, targets, &mut rng).expect("there are pages"));
            drawn.filter(|(page, part, bit)| is(*page, *part, *bit)).count() as f64 / f64::from(DRAWN)
        };
        let last =
            share(Targets::All, &|page, part, bit| page.index == 2 && part == FlipPart::Bytes && bit < PAGE_BITS / 2);
        assert!((last - 1.0 / 6.0).abs() < 0.02, "half of one page of three: {last}");
        let sums =
            share(Targets::Sums, &|page, part, bit| page.index == 2 && part == FlipPart::Sum && bit < page.sum_bits);
        assert!((sums - 0.75).abs() < 0.02, "192 bits of 256: {sums}");
        assert_eq!(share(Targets::Sums, &|page, _, _| page.index == 1), 0.0);
        assert!(drawn(&[], Targets::All, &mut rng).is_none());
    }
}
