//! The operation log: the structural operations of each transaction since the last recovery point, in admission order.
//!
//! It lives in the arena, so that it outlives the process that wrote it. Data and attribute changes are not in it: the
//! newest version of each dirty page and object is their record, which makes older ones obsolete by itself (rvLoris §IV-A).
//!
//! A ring of records `{payload length u32, reserved u32, sequence u64, CRC-64 of sequence and payload}` + payload (postcard).
//! Positions count bytes since the log was made and never go back.
//!
//! Invariant: `head <= tail <= head + capacity`; records fill `head..tail` without gaps.

use holdfast_integrity::Crc64;
use holdfast_object::{Arena, Error, Op, Result};
use std::sync::Arc;

const HEADER_BYTES: usize = 24;

pub(crate) struct OpLog {
    arena: Arc<Arena>,
    head: u64,
    tail: u64,
}

impl OpLog {
    pub(crate) fn new(arena: Arc<Arena>) -> OpLog {
        OpLog { arena, head: 0, tail: 0 }
    }

    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Whether a closed epoch should make room soon.
    pub(crate) fn is_half_full(&self) -> bool {
        self.tail - self.head > self.capacity() / 2
    }

    /// Bytes of the record that [`OpLog::append`] would write.
    pub(crate) fn encode(ops: &[&Op]) -> Result<Vec<u8>> {
        postcard::to_stdvec(ops).map_err(|error| Error::Protocol(format!("operation log: {error}")))
    }

    /// Whether an encoded record fits now.
    pub(crate) fn has_room(&self, payload: &[u8]) -> bool {
        let needed = (HEADER_BYTES + payload.len()) as u64;
        self.tail - self.head + needed <= self.capacity()
    }

    /// Appends an encoded record. The caller has asked [`OpLog::has_room`].
    pub(crate) fn append(&mut self, sequence: u64, payload: &[u8]) {
        assert!(self.has_room(payload), "operation log overrun");
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[8..16].copy_from_slice(&sequence.to_le_bytes());
        header[16..].copy_from_slice(&checksum(sequence, payload).to_le_bytes());
        self.put(self.tail, &header);
        self.put(self.tail + HEADER_BYTES as u64, payload);
        self.tail += (HEADER_BYTES + payload.len()) as u64;
    }

    /// The operations recorded in `from..to`, verified.
    pub(crate) fn read(&self, from: u64, to: u64) -> Result<Vec<Op>> {
        assert!(self.head <= from && from <= to && to <= self.tail, "operation log range {from}..{to}");
        let corrupt = |at: u64, what: &str| {
            Error::Protocol(format!(
                "operation log in memory is corrupt at {at} ({what}); changes since the last recovery point are affected"
            ))
        };
        let mut ops = Vec::new();
        let mut at = from;
        while at < to {
            let mut header = [0; HEADER_BYTES];
            if to - at < HEADER_BYTES as u64 {
                return Err(corrupt(at, "record header"));
            }
            self.get(at, &mut header);
            let length = u64::from(u32::from_le_bytes(header[..4].try_into().expect("4 bytes")));
            let sequence = u64::from_le_bytes(header[8..16].try_into().expect("8 bytes"));
            let expected = u64::from_le_bytes(header[16..].try_into().expect("8 bytes"));
            if length > to - at - HEADER_BYTES as u64 {
                return Err(corrupt(at, "record length"));
            }
            let mut payload = vec![0; length as usize];
            self.get(at + HEADER_BYTES as u64, &mut payload);
            if checksum(sequence, &payload) != expected {
                return Err(corrupt(at, "checksum"));
            }
            let record: Vec<Op> = postcard::from_bytes(&payload).map_err(|_| corrupt(at, "encoding"))?;
            ops.extend(record);
            at += HEADER_BYTES as u64 + length;
        }
        Ok(ops)
    }

    /// Records before `to` are in a recovery point.
    pub(crate) fn release(&mut self, to: u64) {
        assert!(self.head <= to && to <= self.tail, "operation log released to {to}");
        self.head = to;
    }

    fn capacity(&self) -> u64 {
        self.arena.log_region().1 as u64
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let (base, capacity) = self.arena.log_region();
        let start = (at % capacity as u64) as usize;
        let first = bytes.len().min(capacity - start);
        // SAFETY: both parts lie within the region. `&mut self` upstream makes this the only writer, and no reference
        // into the region is ever made: readers copy out of `head..tail`, which does not overlap what is written.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(start), first);
            std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), base, bytes.len() - first);
        }
    }

    fn get(&self, at: u64, bytes: &mut [u8]) {
        let (base, capacity) = self.arena.log_region();
        let start = (at % capacity as u64) as usize;
        let first = bytes.len().min(capacity - start);
        // SAFETY: both parts lie within the region; see `put`.
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
                log.append(next, &record(next));
                next += 1;
            }
            let ops = log.read(start, log.tail()).unwrap();
            let expected: Vec<Op> =
                (first..next).map(|id| Op::Truncate { id: ObjectId(id), size: id * 1000 }).collect();
            assert_eq!(ops, expected);
            log.release(log.tail());
        }
    }

    #[test]
    fn a_flip_is_reported() {
        let arena = Arena::new(1, 4096).unwrap();
        let mut log = OpLog::new(arena.clone());
        log.append(1, &record(1));
        let offset = arena.frame_offset(0) - 4096 + HEADER_BYTES as u64;
        let mut byte = [0];
        rustix::io::pread(arena.memory(), &mut byte, offset).unwrap();
        rustix::io::pwrite(arena.memory(), &[byte[0] ^ 4], offset).unwrap();
        assert!(log.read(0, log.tail()).is_err());
    }
}
