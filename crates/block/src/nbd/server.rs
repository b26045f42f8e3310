//! The life of a server: clients come, are served, and leave; in the end it waits for what they have under way.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::export::Export;
use super::link::Link;
use super::listen::Listener;
use super::negotiation::{Offer, negotiate};
use super::reader::Reader;
use super::transmission;

/// What clients may take up, all of them together: `connections` times `connection_bytes` and `workers`.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time; more are closed at once.
    pub connections: usize,
    /// Memory for the requests of one connection. A request needs up to 32 MiB and 8 KiB; what is less than that is taken as that.
    pub connection_bytes: usize,
    /// Requests of one connection that are done at the same time.
    pub workers: usize,
    /// In this time a client must have chosen its export.
    pub negotiation: Duration,
    /// So long may a client be silent in the middle of a message, or not take what is sent to it. Between requests it may be silent
    /// for ever.
    pub patience: Duration,
    /// So long connections have to come to an end after [`Stop::stop`].
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 32,
            connection_bytes: 64 << 20,
            workers: 16,
            negotiation: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            grace: Duration::from_secs(10),
        }
    }
}

/// Ends a server, from whatever thread.
#[derive(Debug, Clone)]
pub struct Stop(Arc<OwnedFd>);

impl Stop {
    /// One that has not been used.
    ///
    /// # Errors
    /// The system's, if descriptors are short.
    pub fn new() -> io::Result<Self> {
        Ok(Stop(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Has the server take no more requests, answer those it has, and return from [`Server::run`].
    pub fn stop(&self) {
        // It fails only when it has been called 2^64 times.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// Serves exports to NBD clients.
pub struct Server {
    offer: Offer,
    limits: Limits,
    stopping: AtomicBool,
    clients: Mutex<Clients>,
    left: Condvar,
}

#[derive(Default)]
struct Clients {
    /// Counts all that ever came.
    last: u64,
    present: usize,
    /// Their sockets.
    sockets: HashMap<u64, OwnedFd>,
}

impl Server {
    /// A server of `exports`, the first of which is that of clients which give no name.
    pub fn new(exports: Vec<Export>) -> Self {
        let exports = exports.into_iter().map(Arc::new).collect();
        Server {
            offer: Offer {
                exports,
                #[cfg(feature = "tls")]
                tls: None,
            },
            limits: Limits::default(),
            stopping: AtomicBool::new(false),
            clients: Mutex::default(),
            left: Condvar::new(),
        }
    }

    /// Within limits other than the default.
    #[must_use]
    pub fn limited(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// With TLS, without which nobody gets anything.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: super::Tls) -> Self {
        self.offer.tls = Some(tls);
        self
    }

    /// Takes clients from the listeners until `stop`; then waits for the requests under way, and makes everything durable. The
    /// listeners stay open until then: who connects in the meantime waits for the next server on the same socket.
    ///
    /// # Errors
    /// Of the system while waiting for clients; of a device that could not be flushed.
    pub fn run(&self, listeners: &[Listener], stop: &Stop) -> io::Result<()> {
        let outcome = std::thread::scope(|scope| {
            let outcome = self.take_clients(listeners, stop, |socket, peer| {
                if let Err(error) = Builder::new().spawn_scoped(scope, move || self.client(socket, peer)) {
                    tracing::warn!(%error, "NBD: no thread for a connection");
                    self.leaves();
                }
            });
            self.end_clients();
            outcome
        });
        for export in &self.offer.exports {
            export.flush().map_err(|refusal| io::Error::other(refusal.message))?;
        }
        outcome
    }

    fn take_clients(
        &self,
        listeners: &[Listener],
        stop: &Stop,
        mut begin: impl FnMut(OwnedFd, String),
    ) -> io::Result<()> {
        /// Descriptors or memory are short: somebody else may give some back, which nothing tells.
        const PAUSE: Duration = Duration::from_millis(100);
        // Told once each time that it becomes full.
        let mut is_full = false;
        loop {
            let mut waited = vec![PollFd::new(&*stop.0, PollFlags::IN)];
            waited.extend(listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
            match poll(&mut waited, None) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if !waited[0].revents().is_empty() {
                return Ok(());
            }
            for (listener, _) in listeners.iter().zip(&waited[1..]).filter(|(_, event)| !event.revents().is_empty()) {
                match listener.accept() {
                    Ok((socket, peer)) if self.enters() => {
                        is_full = false;
                        begin(socket, peer);
                    }
                    Ok((_, peer)) if is_full => tracing::debug!(%peer, "NBD: too many connections"),
                    Ok((_, peer)) => {
                        is_full = true;
                        tracing::warn!(%peer, limit = self.limits.connections, "NBD: too many connections");
                    }
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        tracing::warn!(listener = listener.name(), "NBD: no descriptor or memory for a connection");
                        let pause = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
                        let _ = poll(&mut [PollFd::new(&*stop.0, PollFlags::IN)], Some(&pause));
                    }
                    // The client has gone again, or somebody else has taken it.
                    Err(errno) => tracing::debug!(listener = listener.name(), %errno, "NBD: accept"),
                }
            }
        }
    }

    fn enters(&self) -> bool {
        let mut clients = self.clients.lock();
        let fits = clients.present < self.limits.connections;
        clients.present += usize::from(fits);
        fits
    }

    /// Serves one client from its first byte to its last.
    fn client(&self, socket: OwnedFd, peer: String) {
        // A panic is this client's end, not the server's; the panic hook has told of it.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.serve(socket, &peer)));
        match outcome {
            Ok(Ok(())) => tracing::debug!(%peer, "NBD: left"),
            Ok(Err(error)) => tracing::info!(%peer, %error, "NBD: connection ended"),
            Err(_) => tracing::error!(%peer, "NBD: connection ended by a bug"),
        }
        self.leaves();
    }

    fn leaves(&self) {
        self.clients.lock().present -= 1;
        self.left.notify_all();
    }

    pub(super) fn serve(&self, socket: OwnedFd, peer: &str) -> io::Result<()> {
        let _present = Present::new(self, socket.try_clone()?);
        let deadline = Instant::now() + self.limits.negotiation;
        let mut link = Link::new(socket, peer.to_owned(), deadline)?;
        let mut reader = Reader::new();
        let Some(agreed) = negotiate(&mut link, &mut reader, &self.offer)? else { return Ok(()) };
        link.settle(self.limits.patience)?;
        tracing::debug!(peer, export = agreed.export.name(), structured = agreed.is_structured, "NBD: connected");
        transmission::serve(&link, &mut reader, agreed, &self.limits, &self.stopping)
    }

    /// Has the clients' connections end, in a while by force.
    fn end_clients(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + self.limits.grace;
        let mut clients = self.clients.lock();
        // Whoever reads is told the end.
        clients.sockets.values().for_each(|socket| _ = shutdown(socket, Shutdown::Read));
        while clients.present > 0 {
            if self.left.wait_until(&mut clients, deadline).timed_out() {
                clients.sockets.values().for_each(|socket| _ = shutdown(socket, Shutdown::Both));
                return;
            }
        }
    }
}

/// A client in the list of those that are to be told when the server ends.
struct Present<'a> {
    server: &'a Server,
    number: u64,
}

impl<'a> Present<'a> {
    fn new(server: &'a Server, socket: OwnedFd) -> Self {
        let mut clients = server.clients.lock();
        clients.last += 1;
        let number = clients.last;
        if server.stopping.load(Ordering::Relaxed) {
            let _ = shutdown(&socket, Shutdown::Read);
        }
        clients.sockets.insert(number, socket);
        Present { server, number }
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.server.clients.lock().sockets.remove(&self.number);
    }
}
