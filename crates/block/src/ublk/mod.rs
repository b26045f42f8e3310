//! A device for the kernel of this machine, by ublk: a disk of its own, `/dev/ublkbN`, without a socket in between. Linux 6.4 and later, with
//! the module `ublk_drv`.
//!
//! Each queue has a thread, which does one request after the other; the kernel gives each processor a queue.

mod abi;
mod requests;

use crate::{AlignedBuf, BLOCK_SIZE, Device};
use abi::{ControlCommand, DeviceInfo, IoCommand, Parameters, Request};
use io_uring::{IoUring, opcode, squeue, types};
use requests::carry_out;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use zerocopy::IntoBytes;

/// Where commands go.
const CONTROL: &str = "/dev/ublk-control";
/// Requests of a queue at a time.
const DEPTH: u16 = 32;
/// Most queues.
const QUEUES_MOST: usize = 8;
/// Largest request.
const BUFFER_BYTES: u32 = 512 << 10;
/// Largest request without data: 1 GiB.
const EMPTY_SECTORS_MOST: u32 = 1 << 21;
/// Whoever is no queue.
const NO_QUEUE: u16 = u16::MAX;
/// Any number.
const ANY_DEVICE: u32 = u32::MAX;

/// Why there is no such disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UblkError {
    /// The kernel has no ublk.
    #[error("this kernel has no ublk: there is no {CONTROL} (Linux 6.4 or later, and modprobe ublk_drv)")]
    Missing,
    /// Something did not go as it should.
    #[error("{what}: {source}")]
    Failed {
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> UblkError {
    |source| UblkError::Failed { what: what.into(), source }
}

/// A disk of the kernel's. It is there until it is [stopped](Ublk::stop), or dropped.
#[derive(Debug)]
pub struct Ublk {
    control: Control,
    number: u32,
    queues: Vec<JoinHandle<io::Result<()>>>,
}

impl Ublk {
    /// Makes the kernel a disk of this device.
    ///
    /// # Errors
    /// [`UblkError::Missing`] where the kernel cannot do that.
    pub fn start(device: Arc<dyn Device>, is_read_only: bool) -> Result<Ublk, UblkError> {
        Self::start_at(Path::new(CONTROL), device, is_read_only)
    }

    fn start_at(control: &Path, device: Arc<dyn Device>, is_read_only: bool) -> Result<Ublk, UblkError> {
        let mut control = Control::open(control)?;
        let queues = std::thread::available_parallelism().map_or(1, |count| count.get().min(QUEUES_MOST)) as u16;
        let mut info = DeviceInfo {
            queues,
            depth: DEPTH,
            buffer_bytes: BUFFER_BYTES,
            device: ANY_DEVICE,
            flags: abi::WITH_IOCTL_NUMBERS,
            ..DeviceInfo::default()
        };
        control.ask(abi::ADD, ANY_DEVICE, info.as_mut_bytes(), 0).map_err(failed("ublk cannot add a disk"))?;
        let mut ublk = Ublk { control, number: info.device, queues: Vec::new() };
        let mut parameters = parameters(&*device, is_read_only);
        let bytes = &mut parameters.as_mut_bytes()[..abi::PARAMETERS_BYTES as usize];
        ublk.control.ask(abi::SET_PARAMETERS, info.device, bytes, 0).map_err(failed("ublk takes no such disk"))?;
        for number in 0..info.queues {
            let path = PathBuf::from(format!("/dev/ublkc{}", info.device));
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let file = file.map_err(failed(path.display().to_string()))?;
            let (device, depth) = (Arc::clone(&device), info.depth);
            let serve = move || Queue::new(file, number, depth)?.serve(&*device);
            let thread = std::thread::Builder::new().name(format!("ublk-{number}")).spawn(serve);
            ublk.queues.push(thread.map_err(failed("a thread for ublk"))?);
        }
        // Returns when all queues wait for requests.
        let started = ublk.control.ask(abi::START, info.device, &mut [], std::process::id().into());
        started.map_err(failed("ublk cannot start the disk"))?;
        Ok(ublk)
    }

    /// The disk.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.number))
    }

    /// Takes the disk away. What was answered is with the device, durable or not.
    ///
    /// # Errors
    /// That of the first queue which failed.
    pub fn stop(mut self) -> Result<(), UblkError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), UblkError> {
        let stopped = self.control.ask(abi::STOP, self.number, &mut [], 0);
        let mut outcome = stopped.map(drop).map_err(failed("ublk cannot stop the disk"));
        for queue in self.queues.drain(..) {
            let ended = queue.join().unwrap_or_else(|_| Err(io::Error::other("a thread of ublk's has panicked")));
            outcome = outcome.and(ended.map_err(failed("a queue of ublk's")));
        }
        let deleted = self.control.ask(abi::DELETE, self.number, &mut [], 0);
        outcome.and(deleted.map(drop).map_err(failed("ublk cannot delete the disk")))
    }
}

impl Drop for Ublk {
    fn drop(&mut self) {
        if !self.queues.is_empty()
            && let Err(error) = self.end()
        {
            tracing::error!(%error, "a disk of ublk's could not be taken away");
        }
    }
}

fn parameters(device: &dyn Device, is_read_only: bool) -> Parameters {
    let shift = BLOCK_SIZE.trailing_zeros() as u8;
    Parameters {
        length: abi::PARAMETERS_BYTES,
        types: abi::WITH_BASIC | abi::WITH_DISCARD,
        attributes: abi::HAS_CACHE | abi::HAS_FUA | if is_read_only { abi::IS_READ_ONLY } else { 0 },
        logical_block_shift: shift,
        physical_block_shift: shift,
        best_io_shift: shift,
        least_io_shift: shift,
        sectors_most: BUFFER_BYTES / abi::SECTOR as u32,
        sectors: device.blocks() * (BLOCK_SIZE as u64 / abi::SECTOR),
        discard_granularity: BLOCK_SIZE as u32,
        discard_sectors_most: EMPTY_SECTORS_MOST,
        zeroes_sectors_most: EMPTY_SECTORS_MOST,
        discard_segments_most: 1,
        ..Parameters::default()
    }
}

/// The control device.
struct Control {
    file: File,
    ring: IoUring<squeue::Entry128>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl Control {
    fn open(path: &Path) -> Result<Control, UblkError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => UblkError::Missing,
            _ => failed(path.display().to_string())(error),
        })?;
        let ring = IoUring::<squeue::Entry128>::builder().build(4).map_err(failed("io_uring for ublk"))?;
        Ok(Control { file, ring })
    }

    /// Gives a command, and waits for the answer.
    fn ask(&mut self, command: u32, device: u32, bytes: &mut [u8], data: u64) -> io::Result<i32> {
        let length = u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let address = if bytes.is_empty() { 0 } else { bytes.as_mut_ptr() as u64 };
        let about = ControlCommand { device, queue: NO_QUEUE, length, address, data, ..ControlCommand::default() };
        let mut inline = [0; 80];
        inline[..size_of::<ControlCommand>()].copy_from_slice(about.as_bytes());
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), command).cmd(inline).build();
        // SAFETY: the file and the bytes are there until the answer has come, which is waited for below.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel may have the address of `bytes`, and nobody knows when it is done with it.
                Err(error) => {
                    tracing::error!(%error, "io_uring has failed under a command to ublk");
                    std::process::abort();
                }
                Ok(_) => {}
            }
            if let Some(answer) = self.ring.completion().next() {
                return match answer.result() {
                    errno if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
                    result => Ok(result),
                };
            }
        }
    }
}

/// What a queue shares with the kernel.
struct Queue {
    // Before the memory, which the kernel may write to as long as it is there.
    ring: IoUring,
    file: File,
    number: u16,
    depth: u16,
    requests: Mapped,
    buffers: Vec<AlignedBuf>,
}

impl Queue {
    fn new(file: File, number: u16, depth: u16) -> io::Result<Queue> {
        let offset = u64::from(number) * (abi::DEPTH_MOST * size_of::<Request>()) as u64;
        let requests = Mapped::new(&file, offset, usize::from(depth) * size_of::<Request>())?;
        let buffers = (0..depth).map(|_| AlignedBuf::zeroed(BUFFER_BYTES as usize)).collect();
        Ok(Queue { ring: IoUring::new(depth.into())?, file, number, depth, requests, buffers })
    }

    /// Until the disk is stopped.
    fn serve(mut self, device: &dyn Device) -> io::Result<()> {
        for tag in 0..self.depth {
            self.give(abi::FETCH, tag, 0)?;
        }
        let mut waiting = self.depth;
        while waiting > 0 {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let come: Vec<(u64, i32)> =
                self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (tag, result) in come {
                let tag = tag as u16;
                if result != 0 {
                    // The disk is being stopped: this one asks for nothing any more.
                    waiting -= 1;
                    continue;
                }
                let request = self.requests.get(tag);
                let done = carry_out(device, &request, &mut self.buffers[usize::from(tag)]);
                self.give(abi::COMMIT_AND_FETCH, tag, done)?;
            }
        }
        Ok(())
    }

    /// Asks for a request with this number, with the outcome of the one before.
    fn give(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let address = self.buffers[usize::from(tag)].as_mut_ptr() as u64;
        let about = IoCommand { queue: self.number, tag, result, address };
        let mut inline = [0; 16];
        inline.copy_from_slice(about.as_bytes());
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, command).cmd(inline).build().user_data(tag.into());
        // SAFETY: file and buffers are there as long as the ring is, which is dropped first. There is room for one entry of each tag.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }
}

/// The requests of a queue, which the kernel writes.
struct Mapped {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: it is memory of this process, which only the queue's thread reads.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(file: &File, offset: u64, bytes: usize) -> io::Result<Mapped> {
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE, file, offset)
        }?;
        Ok(Mapped { start, bytes })
    }

    fn get(&self, tag: u16) -> Request {
        assert!((usize::from(tag) + 1) * size_of::<Request>() <= self.bytes);
        // SAFETY: it is within the mapping, aligned as that is, and the kernel does not write to it before it is asked for another one.
        unsafe { self.start.cast::<Request>().add(tag.into()).read_volatile() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn a_kernel_without_it_is_told() {
        let device = Arc::new(MemoryDevice::new(16));
        let error = Ublk::start_at(Path::new("/nowhere/ublk-control"), device.clone(), false).unwrap_err();
        assert!(matches!(error, UblkError::Missing), "{error}");
        assert!(error.to_string().contains("modprobe ublk_drv"));
        // Something else there is no kernel's.
        let error = Ublk::start_at(Path::new("/dev/null"), device, false).unwrap_err();
        assert!(matches!(error, UblkError::Failed { .. }), "{error}");
    }

    #[test]
    fn the_kernel_is_told_what_the_device_is_like() {
        let told = parameters(&MemoryDevice::new(1000), true);
        assert_eq!((told.sectors, told.logical_block_shift, told.attributes), (8000, 12, 0b1101));
        assert_eq!(parameters(&MemoryDevice::new(1), false).attributes, 0b1100);
    }
}
