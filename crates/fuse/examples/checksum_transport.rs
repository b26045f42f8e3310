//! How bytes and their checksums get through the wire together: the measurement behind
//! docs/decisions/0010-checksum-interface.md.
//!
//! `cargo run --release -p holdfast-fuse --example checksum_transport -- [ROUNDS [CALLS [WORKERS]]]`, as root. A file in
//! memory, direct I/O; each way does what it has to: the writer's CRC-64 of each block is taken by the client and verified by
//! the server, the reader's is known to the server and verified by the client. `plain` is read and write as they are, with a
//! CRC-64 per block on the server's side only. Ways are interleaved; each figure is the median over the rounds of the time of a
//! call, in microseconds.

use holdfast_fuse::abi::*;
use holdfast_fuse::{Answer, Attributes, Caching, Context, Entry, Errno, Handler, MountOptions, Opened, Session};
use holdfast_fuse::{mount, unmount};
use holdfast_integrity::crc64;
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::XattrFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const FILE_BYTES: usize = 32 << 20;
const HEADER: usize = 16;
const SUM: usize = 8;
/// As many blocks with their checksums as an ioctl's 16,383 bytes hold.
const INLINE_BLOCKS: usize = 3;
/// The same for the 65,536 bytes of an extended attribute.
const XATTR_BLOCKS: usize = 15;
const SIZES: [usize; 5] = [BLOCK, 3 * BLOCK, 16 * BLOCK, 32 * BLOCK, 255 * BLOCK];

/// `_IOC` of <asm-generic/ioctl.h>, both ways.
const fn number(number: u32, bytes: usize) -> u32 {
    3 << 30 | (bytes as u32) << 16 | (b'H' as u32) << 8 | number
}

const READ: u32 = 40;
const WRITE: u32 = 41;
const SUMS: u32 = 42;
const READ_TO: u32 = 43;
const WRITE_FROM: u32 = 44;

/// One file in memory, with the checksums of its blocks.
struct Blocks {
    state: RwLock<(Vec<u8>, Vec<u64>)>,
}

fn word(bytes: &[u8], index: usize) -> u64 {
    bytes.get(index * 8..index * 8 + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

impl Blocks {
    fn new() -> Blocks {
        let bytes: Vec<u8> = (0..FILE_BYTES).map(|index| (index / 7) as u8).collect();
        let sums = bytes.chunks(BLOCK).map(crc64).collect();
        Blocks { state: RwLock::new((bytes, sums)) }
    }

    /// Bytes with the checksums that came with them, verified.
    fn put(&self, offset: usize, bytes: &[u8], sums: &[u8]) -> Answer<()> {
        let mut state = self.state.write().expect("no panic");
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            if crc64(block) != word(sums, index) {
                return Err(Errno::IO);
            }
            let at = offset + index * BLOCK;
            state.0[at..at + block.len()].copy_from_slice(block);
            state.1[at / BLOCK] = word(sums, index);
        }
        Ok(())
    }

    /// Checksums, then bytes.
    fn get(&self, offset: usize, length: usize, with_bytes: bool) -> Vec<u8> {
        let state = self.state.read().expect("no panic");
        let sums = &state.1[offset / BLOCK..(offset + length) / BLOCK];
        let mut reply = Vec::with_capacity(sums.len() * SUM + length);
        sums.iter().for_each(|sum| reply.extend_from_slice(&sum.to_ne_bytes()));
        if with_bytes {
            reply.extend_from_slice(&state.0[offset..offset + length]);
        }
        reply
    }
}

const ATTR: Attr = Attr {
    ino: 2,
    size: FILE_BYTES as u64,
    blocks: 0,
    atime: 0,
    mtime: 0,
    ctime: 0,
    atimensec: 0,
    mtimensec: 0,
    ctimensec: 0,
    mode: libc::S_IFREG | 0o666,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: BLOCK as u32,
    flags: 0,
};
const VALID: Duration = Duration::from_secs(3600);

impl Handler for Blocks {
    type Data = Vec<u8>;

    fn lookup(&self, _: &Context, _: u64, _: &[u8]) -> Answer<Entry> {
        Ok(Entry { node: 2, generation: 1, attr: ATTR, name_valid: VALID, attr_valid: VALID })
    }

    fn getattr(&self, _: &Context, node: u64) -> Answer<Attributes> {
        let mode = if node == 1 { libc::S_IFDIR | 0o777 } else { ATTR.mode };
        Ok(Attributes { attr: Attr { ino: node, mode, ..ATTR }, btime: (0, 0), valid: VALID })
    }

    fn open(&self, _: &Context, _: u64, _: &OpenIn) -> Answer<Opened> {
        Ok(Opened { fh: 0, flags: open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES })
    }

    fn read(&self, _: &Context, _: u64, args: &ReadIn) -> Answer<Vec<u8>> {
        let (offset, length) = (args.offset as usize, args.size as usize);
        let state = self.state.read().expect("no panic");
        let bytes = state.0.get(offset..offset + length).ok_or(Errno::INVAL)?;
        let good = bytes.chunks(BLOCK).zip(&state.1[offset / BLOCK..]).all(|(block, sum)| crc64(block) == *sum);
        if good { Ok(bytes.to_vec()) } else { Err(Errno::IO) }
    }

    fn write(&self, _: &Context, _: u64, args: &WriteIn, bytes: &[u8]) -> Answer<u32> {
        let mut state = self.state.write().expect("no panic");
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            let at = args.offset as usize + index * BLOCK;
            state.1[at / BLOCK] = crc64(block);
            state.0[at..at + block.len()].copy_from_slice(block);
        }
        Ok(bytes.len() as u32)
    }

    fn ioctl(&self, context: &Context, _: u64, args: &IoctlIn, bytes: &[u8]) -> Answer<(i32, Vec<u8>)> {
        let (offset, length) = (word(bytes, 0) as usize, word(bytes, 1) as usize);
        let blocks = length / BLOCK;
        let rest = bytes.get(HEADER..).unwrap_or_default();
        match args.cmd & 0xff {
            READ => Ok((0, self.get(offset, length, true))),
            SUMS => Ok((0, self.get(offset, length, false))),
            WRITE => {
                let (sums, bytes) = rest.split_at(blocks * SUM);
                self.put(offset, &bytes[..length], sums).map(|()| (0, Vec::new()))
            }
            READ_TO => {
                let state = self.state.read().expect("no panic");
                let from = &state.0[offset..offset + length];
                let sums = self.get(offset, length, false);
                remote(libc::process_vm_writev, context.pid, from.as_ptr(), word(rest, 0), length)?;
                Ok((0, sums))
            }
            WRITE_FROM => {
                let buffer = vec![0; length];
                remote(libc::process_vm_readv, context.pid, buffer.as_ptr(), word(rest, 0), length)?;
                self.put(offset, &buffer, &rest[8..]).map(|()| (0, Vec::new()))
            }
            _ => Err(Errno::NOTTY),
        }
    }

    fn setxattr(&self, _: &Context, _: u64, _: &[u8], value: &[u8], _: u32, _: u32) -> Answer<()> {
        let (offset, length) = (word(value, 0) as usize, word(value, 1) as usize);
        let (sums, bytes) = value[HEADER..].split_at(length / BLOCK * SUM);
        self.put(offset, bytes, sums)
    }

    fn getxattr(&self, _: &Context, _: u64, name: &[u8]) -> Answer<Vec<u8>> {
        let numbers: Vec<usize> =
            name.split(|byte| *byte == b'.').filter_map(|part| std::str::from_utf8(part).ok()?.parse().ok()).collect();
        let [offset, length] = numbers[..] else { return Err(Errno::NOTTY) };
        Ok(self.get(offset, length, true))
    }
}

type Remote = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

fn remote(call: Remote, pid: u32, local: *const u8, address: u64, length: usize) -> Answer<()> {
    let here = libc::iovec { iov_base: local.cast_mut().cast(), iov_len: length };
    let there = libc::iovec { iov_base: address as *mut _, iov_len: length };
    // SAFETY: `local` has `length` bytes, which process_vm_readv may write (the caller's buffer is its own) and
    // process_vm_writev reads; the addresses of the other process are the kernel's to check.
    let done = unsafe { call(pid as i32, &here, 1, &there, 1, 0) };
    if done == length as isize { Ok(()) } else { Err(Errno::PERM) }
}

fn ask(file: &File, command: u32, payload: &mut [u8]) {
    let command = number(command, payload.len());
    // SAFETY: the number says that so many bytes are read and written, and `payload` has as many.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), command as libc::c_ulong, payload.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// A request's first bytes.
fn header(offset: usize, length: usize, room: usize) -> Vec<u8> {
    let mut payload = vec![0; HEADER + room];
    payload[..8].copy_from_slice(&offset.to_ne_bytes());
    payload[8..16].copy_from_slice(&length.to_ne_bytes());
    payload
}

fn verify(bytes: &[u8], sums: &[u8]) {
    for (index, block) in bytes.chunks(BLOCK).enumerate() {
        assert_eq!(crc64(block), word(sums, index));
    }
}

fn sums_of(bytes: &[u8], sums: &mut [u8]) {
    for (index, block) in bytes.chunks(BLOCK).enumerate() {
        sums[index * SUM..][..SUM].copy_from_slice(&crc64(block).to_ne_bytes());
    }
}

fn read_inline(file: &File, at: usize, buffer: &mut [u8]) {
    for (index, part) in buffer.chunks_mut(INLINE_BLOCKS * BLOCK).enumerate() {
        let sums = part.len() / BLOCK * SUM;
        let mut payload = header(at + index * INLINE_BLOCKS * BLOCK, part.len(), sums + part.len() - HEADER.min(sums));
        payload.resize(HEADER.max(sums + part.len()), 0);
        ask(file, READ, &mut payload);
        part.copy_from_slice(&payload[sums..][..part.len()]);
        verify(part, &payload[..sums]);
    }
}

fn read_pair(file: &File, at: usize, buffer: &mut [u8]) {
    file.read_exact_at(buffer, at as u64).expect("a read");
    let mut payload = header(at, buffer.len(), (buffer.len() / BLOCK * SUM).saturating_sub(HEADER));
    ask(file, SUMS, &mut payload);
    verify(buffer, &payload);
}

fn read_pointer(file: &File, at: usize, buffer: &mut [u8]) {
    let sums = buffer.len() / BLOCK * SUM;
    let mut payload = header(at, buffer.len(), 8.max(sums));
    payload[HEADER..][..8].copy_from_slice(&(buffer.as_mut_ptr() as usize).to_ne_bytes());
    ask(file, READ_TO, &mut payload);
    verify(std::hint::black_box(buffer), &payload);
}

fn read_xattr(file: &File, at: usize, buffer: &mut [u8]) {
    let mut reply = [0; (BLOCK + SUM) * XATTR_BLOCKS];
    for (index, part) in buffer.chunks_mut(XATTR_BLOCKS * BLOCK).enumerate() {
        let sums = part.len() / BLOCK * SUM;
        let name = format!("user.holdfast.{}.{}", at + index * XATTR_BLOCKS * BLOCK, part.len());
        let length = rustix::fs::fgetxattr(file.as_fd(), name, &mut reply[..sums + part.len()]).expect("a reply");
        assert_eq!(length, sums + part.len());
        part.copy_from_slice(&reply[sums..length]);
        verify(part, &reply[..sums]);
    }
}

fn write_inline(file: &File, at: usize, buffer: &mut [u8]) {
    for (index, part) in buffer.chunks(INLINE_BLOCKS * BLOCK).enumerate() {
        let sums = part.len() / BLOCK * SUM;
        let mut payload = header(at + index * INLINE_BLOCKS * BLOCK, part.len(), sums + part.len());
        sums_of(part, &mut payload[HEADER..][..sums]);
        payload[HEADER + sums..].copy_from_slice(part);
        ask(file, WRITE, &mut payload);
    }
}

fn write_pointer(file: &File, at: usize, buffer: &mut [u8]) {
    let mut payload = header(at, buffer.len(), 8 + buffer.len() / BLOCK * SUM);
    payload[HEADER..][..8].copy_from_slice(&(buffer.as_ptr() as usize).to_ne_bytes());
    sums_of(buffer, &mut payload[HEADER + 8..]);
    ask(file, WRITE_FROM, &mut payload);
}

/// Hands the checksums over, then writes: the server here does not match the two, so this is the least that it costs.
fn write_pair(file: &File, at: usize, buffer: &mut [u8]) {
    let mut payload = header(at, buffer.len(), buffer.len() / BLOCK * SUM);
    sums_of(buffer, &mut payload[HEADER..]);
    ask(file, SUMS, &mut payload);
    file.write_all_at(buffer, at as u64).expect("a write");
}

fn write_xattr(file: &File, at: usize, buffer: &mut [u8]) {
    for (index, part) in buffer.chunks(XATTR_BLOCKS * BLOCK).enumerate() {
        let sums = part.len() / BLOCK * SUM;
        let mut payload = header(at + index * XATTR_BLOCKS * BLOCK, part.len(), sums + part.len());
        sums_of(part, &mut payload[HEADER..][..sums]);
        payload[HEADER + sums..].copy_from_slice(part);
        rustix::fs::fsetxattr(file.as_fd(), c"user.holdfast", &payload, XattrFlags::empty()).expect("an attribute");
    }
}

type Way = (&'static str, fn(&File, usize, &mut [u8]));

const WAYS: [Way; 10] = [
    ("read, plain", |file, at, buffer| file.read_exact_at(buffer, at as u64).expect("a read")),
    ("read, ioctl, 3 blocks inline", read_inline),
    ("read, plain and ioctl for sums", read_pair),
    ("read, ioctl, process_vm_writev", read_pointer),
    ("read, extended attribute", read_xattr),
    ("write, plain", |file, at, buffer| file.write_all_at(buffer, at as u64).expect("a write")),
    ("write, ioctl, 3 blocks inline", write_inline),
    ("write, ioctl for sums and plain", write_pair),
    ("write, ioctl, process_vm_readv", write_pointer),
    ("write, extended attribute", write_xattr),
];

fn argument(position: usize, default: usize) -> usize {
    std::env::args().nth(position).map_or(default, |value| value.parse().expect("a number"))
}

#[repr(align(4096))]
struct Aligned([u8; SIZES[4]]);

fn measure(file: &File, rounds: usize, calls: usize) {
    let mut aligned = Box::new(Aligned([3; SIZES[4]]));
    let mut times = vec![Vec::new(); WAYS.len() * SIZES.len()];
    for round in 0..rounds {
        for (row, size) in SIZES.into_iter().enumerate() {
            for step in 0..WAYS.len() {
                // Every round in another order.
                let column = (step + round) % WAYS.len();
                let start = Instant::now();
                for call in 0..calls {
                    let at = call * size % (FILE_BYTES - size) / BLOCK * BLOCK;
                    WAYS[column].1(file, at, &mut aligned.0[..size]);
                }
                times[column * SIZES.len() + row].push(start.elapsed().as_secs_f64() * 1e6 / calls as f64);
            }
        }
    }
    println!("{:34}{}", "", SIZES.map(|size| format!("{:>7} KiB", size >> 10)).concat());
    for (column, (name, _)) in WAYS.iter().enumerate() {
        print!("{name:34}");
        for times in &mut times[column * SIZES.len()..][..SIZES.len()] {
            times.sort_by(f64::total_cmp);
            print!("{:11.1}", times[times.len() / 2]);
        }
        println!();
    }
}

fn main() -> std::io::Result<()> {
    let (rounds, calls, workers) = (argument(1, 15), argument(2, 300), argument(3, 2));
    let directory = tempfile::tempdir()?;
    let options = MountOptions { source: "checksum_transport".into(), ..MountOptions::default() };
    let session = Session::start(mount(directory.path(), &options)?, Caching::Direct)?;
    let blocks = Arc::new(Blocks::new());
    let mut serving = Vec::new();
    for _ in 0..workers {
        let (mut worker, blocks) = (session.worker(session.clone_device()?)?, blocks.clone());
        serving.push(std::thread::spawn(move || worker.serve(&*blocks)));
    }
    println!("{workers} workers, {rounds} rounds of {calls} calls, microseconds");
    let file = File::options().read(true).write(true).open(directory.path().join("data"))?;
    measure(&file, rounds.max(1), calls.max(1));
    drop(file);
    unmount(directory.path(), false)?;
    for worker in serving {
        worker.join().expect("a worker does not panic")?;
    }
    Ok(())
}
