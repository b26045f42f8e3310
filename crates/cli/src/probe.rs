//! What a file or disk holds, before it is overwritten.

use rustix::fs::{SeekFrom, seek};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// Nothing but zeros, as far as looked at.
    Empty,
    /// Something that can be named.
    Known(&'static str),
    /// Something, first seen at this byte.
    Data(u64),
}

/// A name, where its signature is in bytes from the start, and the signature.
type Signature = (&'static str, u64, &'static [u8]);

/// What a store begins with (docs/format.md).
pub(crate) const MAGIC: &[u8; 8] = b"HOLDFAST";

/// From the formats' own documentation; the order matters where one thing holds another.
const SIGNATURES: &[Signature] = &[
    ("a Holdfast store", 0, MAGIC),
    ("a Holdfast store", 64 << 10, MAGIC),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an ext2, ext3 or ext4 file system", 0x438, b"\x53\xef"),
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("an F2FS file system", 0x400, b"\x10\x20\xf5\xf2"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x52, b"FAT32   "),
    ("a FAT file system", 0x36, b"FAT1"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a squashfs image", 0, b"hsqs"),
    ("an LVM physical volume", 0x218, b"LVM2 001"),
    ("a Linux RAID member", 0x1000, b"\xfc\x4e\x2b\xa9"),
    ("a swap area", 4086, b"SWAPSPACE2"),
    ("a QEMU disk image", 0, b"QFI\xfb"),
    ("an SQLite database", 0, b"SQLite format 3\0"),
    ("a GUID partition table", 512, b"EFI PART"),
    ("a partition table", 510, b"\x55\xaa"),
];

/// Bytes looked at in one go.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes read in full at either end of a disk.
const DISK_END_BYTES: u64 = 4 << 20;
/// Places looked at in between.
const DISK_SAMPLES: u64 = 1024;
const DISK_SAMPLE_BYTES: u64 = 64 << 10;

/// Looks for signatures, then for anything but zeros: everywhere in a regular file (holes are skipped), at both ends and
/// in a thousand places of a disk. `progress` gets the number of bytes that are behind it in a file.
pub(crate) fn probe(
    file: &File,
    length_bytes: u64,
    is_disk: bool,
    progress: &mut dyn FnMut(u64),
) -> io::Result<Contents> {
    for &(name, at, signature) in SIGNATURES {
        let mut bytes = vec![0; signature.len()];
        match file.read_exact_at(&mut bytes, at) {
            Ok(()) if bytes == signature => return Ok(Contents::Known(name)),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    let found = if is_disk { sample(file, length_bytes)? } else { scan_extents(file, length_bytes, progress)? };
    Ok(found.map_or(Contents::Empty, Contents::Data))
}

fn sample(file: &File, length_bytes: u64) -> io::Result<Option<u64>> {
    let end = DISK_END_BYTES.min(length_bytes);
    let step = (length_bytes / DISK_SAMPLES).max(1);
    let middle = (0..DISK_SAMPLES).map(|number| number * step);
    let ranges = [(0, end), (length_bytes - end, end)].into_iter().chain(middle.map(|at| (at, DISK_SAMPLE_BYTES)));
    for (start, length) in ranges {
        if let Some(at) = scan(file, start, start.saturating_add(length).min(length_bytes), &mut |_| {})? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

fn scan_extents(file: &File, length_bytes: u64, progress: &mut dyn FnMut(u64)) -> io::Result<Option<u64>> {
    let mut at = 0;
    while at < length_bytes {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(length_bytes);
        if let Some(found) = scan(file, start, end, progress)? {
            return Ok(Some(found));
        }
        at = end.max(start + 1);
    }
    Ok(None)
}

fn scan(file: &File, start: u64, end: u64, progress: &mut dyn FnMut(u64)) -> io::Result<Option<u64>> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = start;
    while at < end {
        let want = CHUNK_BYTES.min(usize::try_from(end - at).unwrap_or(usize::MAX));
        let got = match file.read_at(&mut buffer[..want], at) {
            Ok(0) => return Ok(None),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if let Some(within) = buffer[..got].iter().position(|&byte| byte != 0) {
            return Ok(Some(at + within as u64));
        }
        at += got as u64;
        progress(at);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(file: &File, length_bytes: u64, is_disk: bool) -> io::Result<Contents> {
        probe(file, length_bytes, is_disk, &mut |at| assert!(at <= length_bytes))
    }

    fn file(length_bytes: u64, at: u64, bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(length_bytes).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file
    }

    #[test]
    fn every_signature_is_seen() {
        for &(name, at, signature) in SIGNATURES {
            let file = file(1 << 20, at, signature);
            for is_disk in [false, true] {
                assert_eq!(look(&file, 1 << 20, is_disk).unwrap(), Contents::Known(name));
            }
        }
    }

    #[test]
    fn one_byte_in_the_middle_of_a_file_is_seen() {
        let length = 64 << 20;
        let at = 33_333_333;
        assert_eq!(look(&file(length, at, &[1]), length, false).unwrap(), Contents::Data(at));
        assert_eq!(look(&file(length, length - 1, &[1]), length, true).unwrap(), Contents::Data(length - 1));
        assert_eq!(look(&file(length, 5 << 20, &[1; 70_000]), length, true).unwrap(), Contents::Data(5 << 20));
    }

    #[test]
    fn zeros_and_holes_are_empty() {
        let length = 16 << 20;
        let file = file(length, 1 << 20, &vec![0; 3 << 20]);
        for is_disk in [false, true] {
            assert_eq!(look(&file, length, is_disk).unwrap(), Contents::Empty);
        }
        assert_eq!(look(&tempfile::tempfile().unwrap(), 0, false).unwrap(), Contents::Empty);
        assert_eq!(look(&tempfile::tempfile().unwrap(), 0, true).unwrap(), Contents::Empty);
    }
}
