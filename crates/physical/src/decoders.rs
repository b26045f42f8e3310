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

/// A decoder: its name, and a function that panics if it does not keep to the rule above, and says whether the bytes are a value; what
/// is not in use is none.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

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

fn label(bytes: &[u8]) -> bool {
    let block = sealed(bytes);
    let (number, address) = (usize::from(block[12]) % LABELS, u64_at(&block, 16));
    if let LabelState::Valid(label) = Label::decode(&block, number, address)
        && address == label_start(number, label.blocks)
    {
        assert!(label.encode(number) == block);
        return true;
    }
    false
}

fn superblock(bytes: &[u8]) -> bool {
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
        Ok(Some(superblock)) => {
            assert!(superblock.encode(number) == block);
            true
        }
        Ok(None) => {
            assert!(Superblock::unused(&label, number, at) == block);
            false
        }
        Err(_) => false,
    }
}

fn pointer(bytes: &[u8]) -> bool {
    let block = sized::<POINTER_BYTES>(bytes);
    let mut is_one = false;
    for level in 0..3 {
        if let Ok(pointer) = BlockPointer::decode_checked(&block, level, EPOCH, BLOCKS) {
            assert!(pointer.encode() == block);
            is_one |= !pointer.is_hole();
        }
    }
    is_one
}

fn record(bytes: &[u8]) -> bool {
    let block = sized::<RECORD_BYTES>(bytes);
    let mut is_one = false;
    for pending in [false, true] {
        if let Ok(Some(record)) = Record::decode(&block, EPOCH, BLOCKS, pending) {
            assert!(record.encode() == block);
            is_one |= !pending;
        }
    }
    is_one
}

fn snapshot(bytes: &[u8]) -> bool {
    let block = sized::<SNAPSHOT_BYTES>(bytes);
    let Ok(Some(snapshot)) = StoredSnapshot::decode(&block, EPOCH, BLOCKS) else { return false };
    assert!(snapshot.encode() == block);
    true
}

fn dead_run(bytes: &[u8]) -> bool {
    let block = sized::<DEAD_BYTES>(bytes);
    let Ok(Some(run)) = DeadRun::decode(&block, EPOCH, BLOCKS) else { return false };
    assert!(run.encode() == block);
    assert!(run.blocks().flatten().all(|address| address < BLOCKS));
    true
}

fn log_header(bytes: &[u8]) -> bool {
    let mut is_one = false;
    let mut block = sized(bytes);
    let head: [u8; 160] = sealed(&block[..152]);
    block[..160].copy_from_slice(&head);
    for address in [u64_at(&block, 32), u64_at(bytes.get(160..).unwrap_or_default(), 0)] {
        if let Ok((header, copy)) = LogHeader::decode(&block, address) {
            assert!(header.encode(copy) == head);
            is_one = true;
        }
    }
    is_one
}

fn log_entries(bytes: &[u8]) -> bool {
    let Ok((ops, twice)) = decode_ops(bytes) else { return false };
    let mut twice = twice.into_iter();
    let mut again = Vec::new();
    for op in &ops {
        let is_twice = matches!(op, Op::Write { .. }) && twice.next().unwrap_or(false);
        encode_op(&mut again, op, is_twice);
    }
    assert!(again == bytes);
    !ops.is_empty()
}

fn sector_sums(bytes: &[u8]) -> bool {
    let [pages, blocks, rest @ ..] = bytes else { return false };
    let (pages, blocks) = (usize::from(*pages), usize::from(*blocks));
    let Ok((new, old)) = decode_sums(rest, pages, blocks) else { return false };
    assert!(new.len() == pages && old.is_none_or(|old| old.len() == blocks));
    pages > 0
}
