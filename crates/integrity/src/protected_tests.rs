//! A bit is flipped in every gap between the steps of every case. Whatever comes of it, a wrong byte must not be
//! under a checksum that matches it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::flaky::Flaky;

/// Every algorithm that sees one flipped bit.
fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    proptest::sample::select(&Algorithm::ALL[1..])
}

fn any_bytes(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), len)
}

/// What became of an operation with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The result is right.
    Right,
    /// The operation refused.
    Refused,
    /// The result is wrong and its checksum says so.
    Visible,
    /// The result is wrong and its checksum matches it: silent corruption.
    Silent,
}

fn outcome<B: AsRef<[u8]>>(result: Result<Protected<B>, ChainError>, right: &[u8]) -> Outcome {
    match result {
        Err(ChainError::Mismatch { .. }) => Outcome::Refused,
        Err(other) => panic!("{other}"),
        Ok(protected) => {
            // One look, lest the fault falls between the verification and the comparison.
            let now = look(&protected.bytes);
            match (now == right, protected.checksum.verify(now).is_ok()) {
                (true, true) => Outcome::Right,
                (false, true) => Outcome::Silent,
                (_, false) => Outcome::Visible,
            }
        }
    }
}

/// Which buffer is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faulty {
    Org,
    Dst,
}

#[derive(Clone, Debug)]
struct Case {
    org: Vec<u8>,
    dst: Vec<u8>,
    org_alg: Algorithm,
    dst_alg: Algorithm,
    start: prop::sample::Index,
    len: prop::sample::Index,
    at: prop::sample::Index,
    bit: prop::sample::Index,
    faulty: Faulty,
}

fn any_case() -> impl Strategy<Value = Case> {
    let place = any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index, prop::sample::Index)>();
    let faulty = prop_oneof![Just(Faulty::Org), Just(Faulty::Dst)];
    (any_bytes(1..300), any_bytes(1..300), any_algorithm(), any_algorithm(), place, faulty).prop_map(
        |(org, dst, org_alg, dst_alg, (start, len, at, bit), faulty)| Case {
            org,
            dst,
            org_alg,
            dst_alg,
            start,
            len,
            at,
            bit,
            faulty,
        },
    )
}

impl Case {
    /// Bytes as a buffer, with the fault if it is the faulty one; the checksum is that of the sound bytes.
    fn buffer(&self, which: Faulty, bytes: &[u8], flip_before: usize) -> Flaky {
        if which == self.faulty {
            let bit = self.bit.index(bytes.len().max(1) * 8);
            Flaky::new(bytes.to_vec(), bit, flip_before)
        } else {
            Flaky::sound(bytes.to_vec())
        }
    }

    fn origin(&self, flip_before: usize) -> Protected<Flaky> {
        let bytes = self.buffer(Faulty::Org, &self.org, flip_before);
        Protected::from_parts(bytes, self.org_alg.sum(&self.org))
    }

    /// An empty destination of `len` bytes.
    fn empty(&self, len: usize, flip_before: usize) -> Flaky {
        self.buffer(Faulty::Dst, &vec![0; len], flip_before)
    }

    /// A destination with contents.
    fn destination(&self, flip_before: usize) -> Protected<Flaky> {
        let bytes = self.buffer(Faulty::Dst, &self.dst, flip_before);
        Protected::from_parts(bytes, self.dst_alg.sum(&self.dst))
    }

    /// A part of the origin, and where in the destination it fits.
    fn range(&self) -> (Range<usize>, usize) {
        let start = self.start.index(self.org.len() + 1);
        let most = (self.org.len() - start).min(self.dst.len());
        let len = self.len.index(most + 1);
        let at = self.at.index(self.dst.len() - len + 1);
        (start..start + len, at)
    }

    fn overwritten(&self, range: &Range<usize>, at: usize) -> Vec<u8> {
        let mut right = self.dst.clone();
        right[at..at + range.len()].copy_from_slice(&self.org[range.clone()]);
        right
    }
}

/// More accesses than any operation makes.
const LAST_GAP: usize = 16;

/// Runs `operation` with the fault in each gap; none may be silent, and without a fault the result is right.
///
/// A fault up to the verification of the old checksum is refused, at once. Behind it are only the moves of the bytes, and the look at the
/// result: `late` gaps in which it is left to whoever uses the result to notice it.
fn in_every_gap(late: usize, mut operation: impl FnMut(usize) -> Outcome) {
    let outcomes: Vec<Outcome> = (0..LAST_GAP).map(&mut operation).collect();
    let of = |which| outcomes.iter().filter(|outcome| **outcome == which).count();
    assert_eq!(of(Outcome::Silent), 0, "{outcomes:?}");
    assert!(of(Outcome::Visible) <= late, "noticed later than at once: {outcomes:?}");
    assert_eq!(operation(usize::MAX), Outcome::Right);
}

proptest! {
    #[test]
    fn case_1_forward(case in any_case()) {
        in_every_gap(LAST_GAP, |gap| {
            let dst = case.empty(case.org.len(), gap);
            outcome(case.origin(gap).forward(dst), &case.org)
        });
    }

    #[test]
    fn case_1_forward_verified(case in any_case()) {
        in_every_gap(1, |gap| {
            let dst = case.empty(case.org.len(), gap);
            outcome(case.origin(gap).forward_verified(dst), &case.org)
        });
    }

    #[test]
    fn case_2_convert(case in any_case()) {
        in_every_gap(1, |gap| {
            let dst = case.empty(case.org.len(), gap);
            outcome(case.origin(gap).convert(case.dst_alg, dst), &case.org)
        });
    }

    #[test]
    fn case_2_switch(case in any_case()) {
        in_every_gap(1, |gap| {
            let mut buffer = case.origin(gap);
            match buffer.switch(case.dst_alg) {
                Ok(()) => {
                    assert_eq!(buffer.checksum().algorithm(), case.dst_alg);
                    outcome(Ok(buffer), &case.org)
                }
                Err(_) => {
                    // The old checksum still accuses the bytes.
                    assert_eq!(buffer.checksum(), case.org_alg.sum(&case.org));
                    Outcome::Refused
                }
            }
        });
    }

    #[test]
    fn case_3_extract(case in any_case()) {
        let (range, _) = case.range();
        in_every_gap(1, |gap| {
            let dst = case.empty(range.len(), gap);
            let result = case.origin(gap).extract(range.clone(), case.dst_alg, dst);
            outcome(result, &case.org[range.clone()])
        });
    }

    #[test]
    fn case_3_slice(case in any_case()) {
        let (range, _) = case.range();
        in_every_gap(1, |gap| {
            let origin = case.origin(gap);
            outcome(origin.slice(range.clone(), case.dst_alg), &case.org[range.clone()])
        });
    }

    #[test]
    fn cases_4_and_5_overwrite(case in any_case(), whole in any::<bool>()) {
        let (mut range, at) = case.range();
        if whole && at + case.org.len() <= case.dst.len() {
            range = 0..case.org.len();
        }
        let right = case.overwritten(&range, at);
        in_every_gap(if case.faulty == Faulty::Org { 1 } else { 2 }, |gap| {
            let mut dst = case.destination(gap);
            match dst.overwrite(at, &case.origin(gap), range.clone()) {
                Ok(()) => outcome(Ok(dst), &right),
                Err(error) => {
                    assert_eq!(dst.checksum(), case.dst_alg.sum(&case.dst));
                    outcome::<Flaky>(Err(error), &right)
                }
            }
        });
    }

    /// The same into a new version of the page.
    #[test]
    fn cases_4_and_5_assemble(case in any_case(), new_alg in any_algorithm()) {
        let (range, at) = case.range();
        let right = case.overwritten(&range, at);
        let end = at + range.len();
        in_every_gap(if case.faulty == Faulty::Org { 1 } else { 2 }, |gap| {
            let (org, old) = (case.origin(gap), case.destination(gap));
            let piece = |source, range| Piece { source, range };
            let pieces = [
                piece(1, 0..at),
                piece(0, range.clone()),
                piece(1, end..case.dst.len()),
            ];
            let out = vec![0; right.len()];
            outcome(assemble(&[org.source(), old.source()], &pieces, new_alg, out), &right)
        });
    }

    /// Ranges and sizes that do not fit are errors, never panics.
    #[test]
    fn wrong_ranges(org in any_bytes(0..20), start in 0usize..30, end in 0usize..30, at in 0usize..30) {
        let origin = Protected::seal(org.clone(), Algorithm::Crc64Nvme);
        let exists = start <= end && end <= org.len();
        let slice = origin.slice(start..end, Algorithm::Crc32c);
        prop_assert_eq!(slice.is_ok(), exists);
        let mut dst = Protected::seal(vec![1u8; 20], Algorithm::Xor64);
        let fits = exists && at + (end - start) <= 20;
        prop_assert_eq!(dst.overwrite(at, &origin, start..end).is_ok(), fits);
        prop_assert!(dst.verify().is_ok());
        prop_assert!(dst.overwrite(usize::MAX, &origin, 0..org.len()).is_err());
        prop_assert_eq!(origin.forward(vec![0; at]).is_ok(), at == org.len());
        let nowhere = Piece { source: 1, range: 0..0 };
        prop_assert!(assemble(&[origin.source()], &[nowhere], Algorithm::None, []).is_err());
    }
}

/// The wrong order, verification first: it must lose a flip, or else the tests above prove nothing.
#[test]
fn the_wrong_order_is_silent() {
    let bytes = vec![0x5a; 100];
    let mut seen = BTreeMap::new();
    for gap in 0..LAST_GAP {
        let wrong_order = || {
            let org = Protected::from_parts(Flaky::new(bytes.clone(), 77, gap), Algorithm::Xor64.sum(&bytes));
            org.verify().map_err(at_source(0))?;
            let checksum = Algorithm::Crc64Nvme.sum(look(&org.bytes));
            Ok(Protected::from_parts(look(&org.bytes).to_vec(), checksum))
        };
        *seen.entry(outcome(wrong_order(), &bytes)).or_insert(0) += 1;
    }
    assert_eq!(seen.get(&Outcome::Refused), Some(&1), "{seen:?}");
    assert_eq!(seen.get(&Outcome::Silent), Some(&1), "{seen:?}");
    assert_eq!(seen.get(&Outcome::Visible), Some(&1), "{seen:?}");
}

/// The faults of the tests above reach every gap: no operation makes as many accesses as there are.
#[test]
fn gaps_suffice() {
    let org = Protected::seal(Flaky::sound(vec![1; 50]), Algorithm::Crc64Nvme);
    let mut dst = Protected::seal(Flaky::sound(vec![2; 99]), Algorithm::Crc64Nvme);
    dst.overwrite(10, &org, 5..50).unwrap();
    for buffer in [&org.bytes, &dst.bytes] {
        assert!((4..LAST_GAP).contains(&buffer.accesses()), "{}", buffer.accesses());
    }
}
