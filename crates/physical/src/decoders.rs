//! The decoders of single structures as functions of bytes alone, for fuzzing: any bytes are an error or a value, and a value is
//! written as the bytes that it was read from.

use crate::format::blockptr::POINTER_BYTES;
use crate::format::label::LabelState;
use crate::format::log::{LogHeader, decode_sums};
use crate::format::ops::{decode_ops, encode_op};
use crate::format::snapshot::{DEAD_BYTES, SNAPSHOT_BYTES};
use crate::format::{
    BlockPointer, DeadRun, Features, LABELS, Label, RECORD_BYTES, Record, StoredSnapshot, Superblock, label_start,
};
use holdfast_integrity::crc64;
use holdfast_object::{Op, Timestamp};

/// Newest epoch and blocks of the device that the structures are held against.
const EPOCH: u64 = 1000;
const BLOCKS: u64 = 1024;

/// A decoder: its name, and a function that panics if it does not keep to the rule above.
pub type Decoder = (&'static str, fn(&[u8]));

/// All of them.
pub const DECODERS: [Decoder; 9] = [
    ("label", label),
    ("superblock", superblock),
    ("pointer", pointer),
    ("record", record),
    ("snapshot", snapshot),
    ("dead-run", dead_run),
    ("log-header", log_header),
    ("log-entries", log_entries),
    ("sector-sums", sector_sums),
];

/// The bytes, cut or filled with zeros.
fn sized<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut sized = [0; N];
    let length = bytes.len().min(N);
    sized[..length].copy_from_slice(&bytes[..length]);
    sized
}

/// The same with a checksum in the last eight bytes that fits.
fn sealed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut block = sized(bytes);
    let crc = crc64(&block[..N - 8]);
    block[N - 8..].copy_from_slice(&crc.to_le_bytes());
    block
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(sized(&bytes[at..]))
}

fn label(bytes: &[u8]) {
    let block = sealed(bytes);
    let (number, address) = (usize::from(block[12]) % LABELS, u64_at(&block, 16));
    if let LabelState::Valid(label) = Label::decode(&block, number, address)
        && address == label_start(number, label.blocks)
    {
        assert!(label.encode(number) == block);
    }
}

fn superblock(bytes: &[u8]) {
    let block = sealed(bytes);
    let number = usize::from(block[12]) % LABELS;
    let label = Label {
        store: sized(&block[16..]),
        device: sized(&block[32..]),
        blocks: BLOCKS,
        features: Features::default(),
        created: Timestamp::default(),
        log_start: 0,
        log_blocks: 0,
    };
    let at = u64::from(block[14]);
    match Superblock::decode(&block, &label, number, at) {
        Ok(Some(superblock)) => assert!(superblock.encode(number) == block),
        Ok(None) => assert!(Superblock::unused(&label, number, at) == block),
        Err(_) => {}
    }
}

fn pointer(bytes: &[u8]) {
    let block = sized::<POINTER_BYTES>(bytes);
    for level in 0..3 {
        if let Ok(pointer) = BlockPointer::decode_checked(&block, level, EPOCH, BLOCKS) {
            assert!(pointer.encode() == block);
        }
    }
}

fn record(bytes: &[u8]) {
    let block = sized::<RECORD_BYTES>(bytes);
    for pending in [false, true] {
        if let Ok(Some(record)) = Record::decode(&block, EPOCH, BLOCKS, pending) {
            assert!(record.encode() == block);
        }
    }
}

fn snapshot(bytes: &[u8]) {
    let block = sized::<SNAPSHOT_BYTES>(bytes);
    if let Ok(Some(snapshot)) = StoredSnapshot::decode(&block, EPOCH, BLOCKS) {
        assert!(snapshot.encode() == block);
    }
}

fn dead_run(bytes: &[u8]) {
    let block = sized::<DEAD_BYTES>(bytes);
    if let Ok(Some(run)) = DeadRun::decode(&block, EPOCH, BLOCKS) {
        assert!(run.encode() == block);
        assert!(run.blocks().flatten().all(|address| address < BLOCKS));
    }
}

fn log_header(bytes: &[u8]) {
    let mut block = sized(bytes);
    let head: [u8; 160] = sealed(&block[..152]);
    block[..160].copy_from_slice(&head);
    for address in [u64_at(&block, 32), u64_at(bytes.get(160..).unwrap_or_default(), 0)] {
        if let Ok((header, copy)) = LogHeader::decode(&block, address) {
            assert!(header.encode(copy) == head);
        }
    }
}

fn log_entries(bytes: &[u8]) {
    if let Ok((ops, twice)) = decode_ops(bytes) {
        let mut twice = twice.into_iter();
        let mut again = Vec::new();
        for op in &ops {
            let is_twice = matches!(op, Op::Write { .. }) && twice.next().unwrap_or(false);
            encode_op(&mut again, op, is_twice);
        }
        assert!(again == bytes);
    }
}

fn sector_sums(bytes: &[u8]) {
    let [pages, blocks, rest @ ..] = bytes else { return };
    let (pages, blocks) = (usize::from(*pages), usize::from(*blocks));
    if let Ok((new, old)) = decode_sums(rest, pages, blocks) {
        assert!(new.len() == pages && old.is_none_or(|old| old.len() == blocks));
    }
}
