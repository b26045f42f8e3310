//! The operation log: the structural operations of each transaction since the last recovery point, in admission order.
//!
//! It lives in the arena, so that it outlives the process that wrote it. Data and attribute changes are not in it: the
//! newest version of each dirty page and object is their record, which makes older ones obsolete by itself (rvLoris §IV-A).
//!
//! A ring of records `{payload length u32, reserved u32, sequence u64, CRC-64 of sequence and payload}` + payload (postcard), and its twin in the
//! other half of the region: what has gone bad in one is read of the other. Positions count bytes since the log was made and never go back.
//!
//! Invariant: `head <= tail <= head + capacity`; records fill `head..tail` without gaps, in both halves. What an epoch has is what lies between two
//! positions, and nothing else tells where: each is kept three times ([`crate::thrice`]).

use crate::thrice::{self, AllDiffer, Thrice};
use holdfast_integrity::Crc64;
use holdfast_object::{Arena, Error, Op, Place, Result};
use std::sync::Arc;

const HEADER_BYTES: usize = 24;
/// Most bytes of a record that are told.
const TOLD_BYTES: usize = 16;
/// The ring and its twin.
const HALVES: [usize; 2] = [0, 1];

/// What a part of the log has.
pub(crate) struct Recorded {
    pub(crate) ops: Vec<Op>,
    /// Records that had gone bad in the ring.
    pub(crate) renewed: u64,
    /// What of the first of these.
    pub(crate) differs: String,
}

pub(crate) struct OpLog {
    arena: Arc<Arena>,
    head: Thrice,
    tail: Thrice,
}

const POSITION: &str = "position in the operation log";

/// Nobody knows where the records are.
fn lost_position() -> Error {
    AllDiffer.of(POSITION)
}

impl OpLog {
    pub(crate) fn new(arena: Arc<Arena>) -> OpLog {
        OpLog { arena, head: Thrice::new(0), tail: Thrice::new(0) }
    }

    /// Where the next record begins.
    pub(crate) fn tail(&self) -> Thrice {
        self.tail
    }

    /// Puts positions right that have gone bad, `start` of the open epoch too; how many had.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: no two copies of one agree.
    pub(crate) fn heal(&mut self, start: &mut Thrice) -> Result<u64> {
        [&mut self.head, &mut self.tail, start].into_iter().try_fold(0, |renewed, position| {
            let is_renewed = position.heal().map_err(|_all_differ| lost_position())?;
            Ok(renewed + u64::from(is_renewed))
        })
    }

    /// Bytes in use, if it is known.
    fn used(&self) -> Option<u64> {
        self.tail.get()?.checked_sub(self.head.get()?)
    }

    /// Whether a closed epoch should make room soon.
    pub(crate) fn is_half_full(&self) -> bool {
        self.used().is_none_or(|used| used > self.capacity() / 2)
    }

    /// Bytes of the record that [`OpLog::append`] would write.
    pub(crate) fn encode(ops: &[&Op]) -> Result<Vec<u8>> {
        postcard::to_stdvec(ops).map_err(|error| Error::Protocol(format!("operation log: {error}")))
    }

    /// Whether an encoded record fits now.
    pub(crate) fn has_room(&self, payload: &[u8]) -> bool {
        let needed = (HEADER_BYTES + payload.len()) as u64;
        self.used().is_some_and(|used| used + needed <= self.capacity())
    }

    /// Appends an encoded record. The caller has asked [`OpLog::has_room`].
    ///
    /// # Errors
    /// [`Error::Corrupt`]: there is none any more, as a position has gone bad since.
    pub(crate) fn append(&mut self, sequence: u64, payload: &[u8]) -> Result<()> {
        let tail = self.tail.get().ok_or_else(lost_position)?;
        if !self.has_room(payload) {
            return Err(thrice::lost(POSITION, "one behind which a record has room that had it before", "another one"));
        }
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[8..16].copy_from_slice(&sequence.to_le_bytes());
        header[16..].copy_from_slice(&checksum(sequence, payload).to_le_bytes());
        self.put(tail, &header);
        self.put(tail + HEADER_BYTES as u64, payload);
        self.tail.set(tail + (HEADER_BYTES + payload.len()) as u64);
        Ok(())
    }

    /// The operations recorded in `from..to`, verified.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a record that has gone bad in both halves, and for positions between which there are no records.
    pub(crate) fn read(&self, from: Thrice, to: Thrice) -> Result<Recorded> {
        let [Some(head), Some(from), Some(to), Some(tail)] = [self.head, from, to, self.tail].map(Thrice::get) else {
            return Err(lost_position());
        };
        if !(head <= from && from <= to && to <= tail) {
            let got = format!("{from} and {to}, where it goes from {head} to {tail}");
            return Err(thrice::lost(POSITION, "one between which and the next there are records", &got));
        }
        let mut recorded = Recorded { ops: Vec::new(), renewed: 0, differs: String::new() };
        let mut at = from;
        while at < to {
            let record = self.record(0, at, to).or_else(|_| {
                let good = self.record(1, at, to)?;
                if recorded.renewed == 0 {
                    recorded.differs = self.differs(at, good.1 as usize);
                }
                recorded.renewed += 1;
                Ok(good)
            });
            let (ops, length) = record.map_err(|what: &str| {
                Error::corrupt(
                    Place::default(),
                    "operation log in memory, in both copies",
                    "what was recorded",
                    format!(
                        "a bad {what} at {at}: changes since the last recovery point that were not synced are lost; \
                         unmount, have the memory tested, and mount again"
                    ),
                )
            })?;
            recorded.ops.extend(ops);
            at += length;
        }
        Ok(recorded)
    }

    /// A record, and how long it is; or what of it is bad.
    fn record(&self, half: usize, at: u64, end: u64) -> std::result::Result<(Vec<Op>, u64), &'static str> {
        let mut header = [0; HEADER_BYTES];
        let room = (end - at).checked_sub(HEADER_BYTES as u64).ok_or("header")?;
        self.get(half, at, &mut header);
        let length = u64::from(u32::from_le_bytes(header[..4].try_into().expect("4 bytes")));
        let sequence = u64::from_le_bytes(header[8..16].try_into().expect("8 bytes"));
        let expected = u64::from_le_bytes(header[16..].try_into().expect("8 bytes"));
        if length > room {
            return Err("length");
        }
        let mut payload = vec![0; length as usize];
        self.get(half, at + HEADER_BYTES as u64, &mut payload);
        if checksum(sequence, &payload) != expected {
            return Err("checksum");
        }
        let ops = postcard::from_bytes(&payload).map_err(|_| "encoding")?;
        Ok((ops, HEADER_BYTES as u64 + length))
    }

    /// In which bytes a record that is good in the twin is another one in the ring.
    fn differs(&self, at: u64, length: usize) -> String {
        let [mut bad, mut good] = HALVES.map(|_| vec![0; length]);
        self.get(0, at, &mut bad);
        self.get(1, at, &mut good);
        let sequence = u64::from_le_bytes(good[8..16].try_into().expect("8 bytes"));
        let differing: Vec<usize> = (0..length).filter(|&byte| good[byte] != bad[byte]).collect();
        let (Some(&first), Some(&last)) = (differing.first(), differing.last()) else {
            return format!("transaction {sequence}: it was another one a moment ago");
        };
        let hex = |bytes: &[u8]| {
            let told: String = bytes[first..=last].iter().take(TOLD_BYTES).map(|byte| format!("{byte:02x}")).collect();
            told + if last - first >= TOLD_BYTES { "…" } else { "" }
        };
        format!(
            "transaction {sequence}: {} bytes of its {length} differ, from byte {first} to {last}: expected {}, as in the twin, got {}",
            differing.len(),
            hex(&good),
            hex(&bad)
        )
    }

    /// Records before `to` are in a recovery point.
    pub(crate) fn release(&mut self, to: Thrice) {
        self.head = to;
    }

    /// The positions where it begins and ends.
    pub(crate) fn positions(&mut self) -> [&mut Thrice; 2] {
        [&mut self.head, &mut self.tail]
    }

    fn capacity(&self) -> u64 {
        self.half_bytes() as u64
    }

    fn half_bytes(&self) -> usize {
        self.arena.log_region().1 / HALVES.len()
    }

    /// Where a half is, where in it a position is, and how many of so many bytes lie there before it begins again.
    fn place(&self, half: usize, at: u64, bytes: usize) -> (*mut u8, usize, usize) {
        let capacity = self.half_bytes();
        let start = (at % capacity as u64) as usize;
        // SAFETY: both halves lie within the region.
        let base = unsafe { self.arena.log_region().0.add(half * capacity) };
        (base, start, bytes.min(capacity - start))
    }

    /// Into both halves.
    fn put(&self, at: u64, bytes: &[u8]) {
        for half in HALVES {
            let (base, start, first) = self.place(half, at, bytes.len());
            // SAFETY: both parts lie within the half. `&mut self` upstream makes this the only writer, and no reference
            // into the region is ever made: readers copy out of `head..tail`, which does not overlap what is written.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(start), first);
                std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), base, bytes.len() - first);
            }
        }
    }

    fn get(&self, half: usize, at: u64, bytes: &mut [u8]) {
        let (base, start, first) = self.place(half, at, bytes.len());
        // SAFETY: both parts lie within the half; see `put`.
        unsafe {
            std::ptr::copy_nonoverlapping(base.add(start), bytes.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(base, bytes.as_mut_ptr().add(first), bytes.len() - first);
        }
    }
}

fn checksum(sequence: u64, payload: &[u8]) -> u64 {
    let mut crc = Crc64::new();
    crc.update(&sequence.to_le_bytes());
    crc.update(payload);
    crc.value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_object::ObjectId;

    fn record(id: u64) -> Vec<u8> {
        OpLog::encode(&[&Op::Truncate { id: ObjectId(id), size: id * 1000 }]).unwrap()
    }

    #[test]
    fn records_come_back_in_order_around_the_ring() {
        let arena = Arena::new(1, 4096).unwrap();
        let mut log = OpLog::new(arena);
        let mut next = 1;
        for _ in 0..50 {
            let start = log.tail();
            let first = next;
            while log.has_room(&record(next)) {
                log.append(next, &record(next)).unwrap();
                next += 1;
            }
            let recorded = log.read(start, log.tail()).unwrap();
            let expected: Vec<Op> =
                (first..next).map(|id| Op::Truncate { id: ObjectId(id), size: id * 1000 }).collect();
            assert_eq!((recorded.ops, recorded.renewed), (expected, 0));
            log.release(log.tail());
        }
    }

    #[test]
    fn where_a_position_is_lost_nothing_is_read_or_appended() {
        let made = || {
            let mut log = OpLog::new(Arena::new(1, 4096).unwrap());
            [1, 2].into_iter().for_each(|id| log.append(id, &record(id)).unwrap());
            log
        };
        let all =
            |log: &OpLog| log.read(Thrice::new(0), Thrice::new(made().tail.get().unwrap())).map(|read| read.ops.len());
        assert_eq!(all(&made()).unwrap(), 2);
        for at in [0, 1] {
            for byte in [0, 0xFF] {
                let mut log = made();
                log.positions()[at].overwrite(byte);
                assert!(matches!(all(&log), Err(Error::Corrupt(_))), "position {at}, {byte:#x}");
                let appended = log.append(3, &record(3));
                assert!(matches!(appended, Err(Error::Corrupt(_))), "position {at}, {byte:#x}: {appended:?}");
            }
            // They agree, and there are no records.
            let mut log = made();
            let other = log.positions()[1 - at].get().unwrap();
            log.positions()[at].set(other);
            assert!(matches!(all(&log), Err(Error::Corrupt(_))), "position {at}");
        }
    }

    /// Flips a bit of the record at the beginning of a half.
    fn flip(arena: &Arena, half: u64, at: u64) {
        let offset = arena.frame_offset(0) - 4096 + half * 2048 + at;
        let mut byte = [0];
        rustix::io::pread(arena.memory(), &mut byte, offset).unwrap();
        rustix::io::pwrite(arena.memory(), &[byte[0] ^ 4], offset).unwrap();
    }

    #[test]
    fn a_flip_in_one_half_is_made_good_and_in_both_is_reported() {
        // Of the length, of the checksum, and of the operations.
        for at in [0, 16, HEADER_BYTES as u64] {
            for half in [0, 1] {
                let arena = Arena::new(1, 4096).unwrap();
                let mut log = OpLog::new(arena.clone());
                [1, 2].into_iter().for_each(|id| log.append(id, &record(id)).unwrap());
                let before = log.read(Thrice::new(0), log.tail()).unwrap().ops;
                flip(&arena, half, at);
                let recorded = log.read(Thrice::new(0), log.tail()).unwrap();
                assert_eq!((recorded.ops, recorded.renewed), (before, 1 - half), "byte {at} of half {half}");
                let told = format!("transaction 1: 1 bytes of its 29 differ, from byte {at} to {at}: expected ");
                assert_eq!(recorded.differs.starts_with(&told), half == 0, "{}", recorded.differs);
                flip(&arena, 1 - half, at);
                assert!(matches!(log.read(Thrice::new(0), log.tail()), Err(Error::Corrupt(_))), "byte {at}");
            }
        }
    }
}
