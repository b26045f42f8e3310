//! A connection's socket, plain or with TLS on it.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
#[cfg(feature = "tls")]
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use super::asking::{ASK, Asking};

/// A stream to a client. One thread receives, one at a time sends.
pub(super) struct Link {
    socket: OwnedFd,
    /// For messages.
    peer: String,
    /// By then the negotiation has to be over.
    deadline: Option<Instant>,
    asking: Asking,
    #[cfg(feature = "tls")]
    tls: OnceLock<super::tls::Session>,
}

impl Link {
    /// With blocking calls; the negotiation has to be over by the deadline.
    pub(super) fn new(socket: OwnedFd, peer: String, deadline: Instant) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, false)?;
        Ok(Link {
            socket,
            peer,
            deadline: Some(deadline),
            asking: Asking::default(),
            #[cfg(feature = "tls")]
            tls: OnceLock::new(),
        })
    }

    /// From now on there is no deadline, but `patience` for each transfer to get on. Nobody has to send anything at all.
    pub(super) fn settle(&mut self, patience: Duration) -> io::Result<()> {
        self.deadline = None;
        set_socket_timeout(&self.socket, Timeout::Recv, Some(patience))?;
        Ok(set_socket_timeout(&self.socket, Timeout::Send, Some(patience))?)
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Receives something, 0 bytes at the end. [`io::ErrorKind::WouldBlock`] after the patience.
    pub(super) fn receive(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls.get() {
            return match bufs.iter_mut().find(|buf| !buf.is_empty()) {
                Some(buf) => tls.receive(self, buf),
                None => Ok(0),
            };
        }
        self.receive_raw(bufs)
    }

    pub(super) fn receive_raw(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.wait_no_longer(Timeout::Recv)?;
        if self.deadline.is_some() {
            return self.receive_blocking(bufs);
        }
        let (start, asks) = (Instant::now(), self.asking.is_worth_it());
        let received = match asks.then(|| self.ask(bufs, start)).flatten() {
            Some(count) => Ok(count),
            None => self.receive_blocking(bufs),
        };
        self.asking.saw(asks, start.elapsed());
        received
    }

    /// The next transfer waits until the deadline at most, if there is one.
    fn wait_no_longer(&self, which: Timeout) -> io::Result<()> {
        let Some(deadline) = self.deadline else { return Ok(()) };
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(set_socket_timeout(&self.socket, which, Some(remaining.max(Duration::from_millis(1))))?)
    }

    fn receive_blocking(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            match rustix::io::readv(&self.socket, bufs) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.deadline.is_some() => return Err(io::ErrorKind::TimedOut.into()),
                other => return Ok(other?),
            }
        }
    }

    /// Receives something if it comes at once, or nearly.
    fn ask(&self, bufs: &mut [IoSliceMut<'_>], start: Instant) -> Option<usize> {
        loop {
            let mut nothing = RecvAncillaryBuffer::default();
            match rustix::net::recvmsg(&self.socket, bufs, &mut nothing, RecvFlags::DONTWAIT) {
                Ok(message) => return Some(message.bytes),
                // The client may have to run on this processor.
                Err(Errno::AGAIN) if start.elapsed() < ASK => std::thread::yield_now(),
                // Sleeping for it tells what is wrong.
                Err(_) => return None,
            }
        }
    }

    /// Sends everything.
    pub(super) fn send(&self, bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls.get() {
            return tls.send(self, bufs);
        }
        self.send_raw(bufs)
    }

    pub(super) fn send_raw(&self, mut bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut bufs, 0);
        while !bufs.is_empty() {
            self.wait_no_longer(Timeout::Send)?;
            let mut nothing = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(&self.socket, bufs, &mut nothing, SendFlags::NOSIGNAL) {
                Ok(count) => IoSlice::advance_slices(&mut bufs, count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Nothing comes in or goes out any more.
    pub(super) fn cut(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Says goodbye, after the last reply.
    pub(super) fn finish(&self) {
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls.get() {
            tls.say_goodbye(self);
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    /// Puts TLS on it.
    #[cfg(feature = "tls")]
    pub(super) fn start_tls(&mut self, tls: &super::Tls) -> io::Result<()> {
        let session = tls.accept(self)?;
        let _ = self.tls.set(session);
        Ok(())
    }

    #[cfg(feature = "tls")]
    pub(super) fn has_tls(&self) -> bool {
        self.tls.get().is_some()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.peer)
    }
}
