//! What a reply from the pages that hold the bytes costs, against one that is joined first, and what the pages' place has to do
//! with it: slices that begin at a page's boundary, slices that straddle two, one joined slice, and the same once more, which
//! shows how far two equal things differ.
//!
//! `cargo run --release -p holdfast-fuse --example slices -- [ROUNDS]`, as root. Each line gives, for one size of direct reads by one
//! thread, the median of processor time per read (client, kernel and server together, which other work on the machine
//! disturbs less than the clock on the wall), the quartiles, and the best throughput.

use holdfast_fuse::abi::{Attr, OpenIn, ReadIn, open_flags};
use holdfast_fuse::{
    Answer, Attributes, Caching, Context, Entry, Errno, Handler, MountOptions, Opened, Session, Slices, mount, unmount,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PAGE: usize = 4096;
const PAGES: usize = 32 << 10;
const FILE: u64 = 2;
const STEP: Duration = Duration::from_millis(200);

#[derive(Clone, Copy)]
enum How {
    /// Slices, the first byte of the first this far from a page's boundary.
    Slices(usize),
    Joined,
}

/// One file. Its pages lie in memory in an order of their own, as those of a cache do.
struct Frames {
    how: How,
    /// Memory for all pages, and room to choose where they begin.
    bytes: Vec<u8>,
    start: usize,
}

impl Frames {
    fn new(how: How) -> Frames {
        let bytes = vec![7; (PAGES + 2) * PAGE];
        let aligned = bytes.as_ptr().align_offset(PAGE);
        let start = aligned + if let How::Slices(offset) = how { offset } else { 0 };
        Frames { how, bytes, start }
    }

    /// A page of the file: an odd factor makes a permutation of the frames.
    fn page(&self, index: usize) -> &[u8] {
        let frame = index * 12_289 % PAGES;
        &self.bytes[self.start + frame * PAGE..][..PAGE]
    }
}

enum Data {
    Slices(Vec<&'static [u8]>),
    Joined(Vec<u8>),
}

impl Slices for Data {
    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (many, one) = match self {
            Data::Slices(slices) => (&slices[..], None),
            Data::Joined(bytes) => (&[][..], Some(&bytes[..])),
        };
        many.iter().copied().chain(one)
    }
}

/// Frames that live as long as the program, so that replies can refer to them.
struct Server(&'static Frames);

fn attributes(node: u64) -> Attributes {
    let (mode, size) =
        if node == FILE { (libc::S_IFREG | 0o644, (PAGES * PAGE) as u64) } else { (libc::S_IFDIR | 0o755, 0) };
    let attr = Attr { ino: node, mode, size, nlink: 1, blksize: PAGE as u32, ..Attr::default() };
    Attributes { attr, btime: (0, 0), valid: Duration::from_secs(3600) }
}

impl Handler for Server {
    type Data = Data;

    fn lookup(&self, _: &Context, _: u64, name: &[u8]) -> Answer<Entry> {
        if name != b"file" {
            return Err(Errno(libc::ENOENT));
        }
        let Attributes { attr, valid, .. } = attributes(FILE);
        Ok(Entry { node: FILE, generation: 1, attr, name_valid: valid, attr_valid: valid })
    }

    fn getattr(&self, _: &Context, node: u64) -> Answer<Attributes> {
        Ok(attributes(node))
    }

    fn open(&self, _: &Context, _: u64, _: &OpenIn) -> Answer<Opened> {
        Ok(Opened { fh: 0, flags: open_flags::DIRECT_IO })
    }

    /// Whole pages only, which is what is asked for here.
    fn read(&self, _: &Context, _: u64, args: &ReadIn) -> Answer<Data> {
        let first = args.offset as usize / PAGE;
        let pages = (first..first + args.size as usize / PAGE).map(|index| self.0.page(index));
        Ok(match self.0.how {
            How::Slices(_) => Data::Slices(pages.collect()),
            How::Joined => {
                let mut bytes = Vec::with_capacity(args.size as usize);
                pages.for_each(|page| bytes.extend_from_slice(page));
                Data::Joined(bytes)
            }
        })
    }
}

struct Mounted {
    name: &'static str,
    directory: TempDir,
    worker: JoinHandle<io::Result<()>>,
    file: File,
    /// Processor microseconds per read, and bytes per second.
    measured: Vec<(f64, f64)>,
}

fn mounted(name: &'static str, how: How) -> io::Result<Mounted> {
    let server = Server(Box::leak(Box::new(Frames::new(how))));
    let directory = tempfile::tempdir()?;
    let options = MountOptions { source: "slices".into(), ..MountOptions::default() };
    let session = Session::start(mount(directory.path(), &options)?, Caching::Direct)?;
    let mut worker = session.worker(session.device().try_clone_to_owned()?)?;
    let worker = std::thread::spawn(move || worker.serve(&server));
    let file = File::open(Path::join(directory.path(), "file"))?;
    Ok(Mounted { name, directory, worker, file, measured: Vec::new() })
}

/// Processor time of this process, in seconds.
fn processor_secs() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the one timespec that it is given.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn step(file: &File, buffer: &mut [u8]) -> io::Result<(f64, f64)> {
    let (start, before, mut reads) = (Instant::now(), processor_secs(), 0u64);
    while start.elapsed() < STEP {
        file.read_exact_at(buffer, reads * buffer.len() as u64 % (PAGES * PAGE) as u64)?;
        reads += 1;
    }
    let cost = (processor_secs() - before) * 1e6 / reads as f64;
    Ok((cost, (reads * buffer.len() as u64) as f64 / start.elapsed().as_secs_f64()))
}

fn main() -> io::Result<()> {
    let rounds: usize = std::env::args().nth(1).map_or(20, |value| value.parse().expect("a number")).max(1);
    let mut mounts = [
        mounted("at boundaries", How::Slices(0))?,
        mounted("straddling", How::Slices(16))?,
        mounted("joined", How::Joined)?,
        mounted("joined again", How::Joined)?,
    ];
    // 256 pages fit in a request only if the reader's buffer begins at a page's boundary.
    let mut memory = vec![0; (1 << 20) + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    for kib in [4, 64, 1024] {
        let buffer = &mut memory[start..][..kib << 10];
        for round in 0..rounds {
            // Each comes first, second, third and last equally often.
            for turn in 0..mounts.len() {
                let which = &mut mounts[(round + turn) % 4];
                let measured = step(&which.file, buffer)?;
                which.measured.push(measured);
            }
        }
        for which in &mut mounts {
            let best = which.measured.iter().map(|it| it.1).fold(0.0, f64::max) / 1e9;
            let mut costs: Vec<f64> = which.measured.drain(..).map(|it| it.0).collect();
            costs.sort_by(f64::total_cmp);
            let at = |part: usize| costs[part * (costs.len() - 1) / 4];
            println!(
                "{kib:5} KiB  {:14} {:7.1} µs ({:.1} to {:.1}), best {best:.2} GB/s",
                which.name,
                at(2),
                at(1),
                at(3)
            );
        }
    }
    for Mounted { directory, worker, file, .. } in mounts {
        drop(file);
        unmount(directory.path(), false)?;
        worker.join().expect("a worker does not panic")?;
    }
    Ok(())
}
