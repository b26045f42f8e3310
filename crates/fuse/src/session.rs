//! A session with the kernel: its descriptor, the agreement, workers.
//!
//! A session outlives the process that serves it as long as somebody keeps its descriptor and every clone open (closing a
//! clone ends the requests that were read from it). A new process takes over with [`Session::resume`], and asks for what
//! was read and not answered with [`Session::ask_resend`].

use crate::buffer::Buffer;
use crate::decode::{self, Body};
use crate::dispatch::dispatch;
use crate::handler::Service;
use crate::negotiate::{Caching, Negotiated, negotiate};
use crate::{notify, reply};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};
use std::io;
use zerocopy::IntoBytes;

/// `FUSE_DEV_IOC_CLONE`, `_IOR(229, 0, u32)`.
const DEVICE_CLONE: u32 = opcode::read::<u32>(229, 0);
// _IOC of <asm-generic/ioctl.h>: direction (read is 2) << 30, size << 16, type << 8, number.
const _: () = assert!(DEVICE_CLONE == 2 << 30 | 4 << 16 | 229 << 8);
/// Room in the receive buffer besides the bytes of a write.
const HEADER_ROOM: usize = 4096;

/// Opens the FUSE device; mounting connects it with a file system.
pub fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// A mounted file system's connection.
#[derive(Debug)]
pub struct Session {
    device: OwnedFd,
    negotiated: Negotiated,
}

impl Session {
    /// After mounting: answers the kernel's INIT.
    pub fn start(device: OwnedFd, caching: Caching) -> io::Result<Session> {
        let mut buffer = Buffer::new(crate::negotiate::WRITE_BYTES_MAX as usize + HEADER_ROOM)?;
        loop {
            let Some(length) = receive(device.as_fd(), &mut buffer)? else {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "unmounted before it was ready"));
            };
            let request = decode::request(&buffer[..length], 0)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let unique = request.context.unique;
            let Body::Init(offer) = request.body else {
                reply::send_error(device.as_fd(), unique, crate::Errno::IO);
                continue;
            };
            return match negotiate(&offer, caching) {
                Ok((negotiated, answer)) => {
                    reply::send(device.as_fd(), unique, std::iter::once(answer.as_bytes()));
                    Ok(Session { device, negotiated })
                }
                Err(error) => {
                    reply::send_error(device.as_fd(), unique, crate::Errno(libc::EPROTO));
                    Err(io::Error::new(io::ErrorKind::Unsupported, error))
                }
            };
        }
    }

    /// Takes over a session that another process started: no INIT comes.
    pub fn resume(device: OwnedFd, negotiated: Negotiated) -> Session {
        Session { device, negotiated }
    }

    /// Asks the kernel to send again what was read and not answered. The process that read it must be gone, and
    /// reaped.
    pub fn ask_resend(&self) -> io::Result<()> {
        notify::resend(self.device.as_fd())
    }

    /// What was agreed, to be kept for whoever takes over.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// The descriptor, to be kept for whoever takes over, and for notifications.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// A descriptor of the same session, for one worker: requests are taken from the common queue, but each descriptor keeps
    /// a list of its own of those that are not answered. A reply must go to the descriptor that the request was read from.
    pub fn clone_device(&self) -> io::Result<OwnedFd> {
        let clone = open_device()?;
        let session = std::os::fd::AsRawFd::as_raw_fd(&self.device) as u32;
        // SAFETY: the ioctl reads a u32 with a descriptor's number from the pointer, which `Setter` passes.
        unsafe { ioctl(&clone, Setter::<DEVICE_CLONE, u32>::new(session)) }?;
        Ok(clone)
    }

    /// A worker on a descriptor of this session: a clone, or an inherited one.
    pub fn worker(&self, device: OwnedFd) -> io::Result<Worker> {
        let buffer = Buffer::new(self.negotiated.write_bytes_max as usize + HEADER_ROOM)?;
        Ok(Worker { device, buffer, agreed: self.negotiated.flags })
    }
}

/// Receives requests one by one and answers them.
pub struct Worker {
    device: OwnedFd,
    buffer: Buffer,
    agreed: u64,
}

impl Worker {
    /// Serves until the file system is unmounted. The thread is the caller's.
    pub fn serve<S: Service>(&mut self, service: &S) -> io::Result<()> {
        while let Some(length) = receive(self.device.as_fd(), &mut self.buffer)? {
            dispatch(service, self.device.as_fd(), &self.buffer[..length], self.agreed);
        }
        Ok(())
    }
}

/// The next request's length; `None` when the file system has been unmounted. An error: the connection was aborted by an
/// administrator (`ConnectionAborted`), or the descriptor is not that of a session.
fn receive(device: BorrowedFd<'_>, buffer: &mut Buffer) -> io::Result<Option<usize>> {
    let mut aborted = false;
    loop {
        match rustix::io::read(device, &mut buffer[..]) {
            Ok(0) | Err(Errno::NODEV) => return Ok(None),
            Ok(length) => return Ok(Some(length)),
            // A signal, or a request that was aborted while it was read.
            Err(Errno::INTR | Errno::NOENT) => {}
            // So ends the read of a request during which the last user of a lazily unmounted file system goes. The next read
            // tells whether it was that (ENODEV) or an abort (the same error again).
            Err(Errno::CONNABORTED) if !aborted => aborted = true,
            // An inherited descriptor may be non-blocking.
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&device, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
