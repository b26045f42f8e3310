//! TLS by rustls.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::link::Link;

/// Encrypted bytes that are fetched at once: the longest record.
const FETCH_BYTES: usize = 17 << 10;

/// Bytes that are encrypted at once.
const PIECE_BYTES: usize = 256 << 10;

/// A server's certificate, and which clients it wants.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl Tls {
    /// From a directory with `server-cert.pem` (the certificate, and those between it and the root) and `server-key.pem`; with
    /// `verify_clients` also `ca-cert.pem`, by which the certificates of clients must be signed. These are the names that other NBD
    /// servers and clients use.
    ///
    /// # Errors
    /// A file that is missing, or is not what it should be, by name.
    pub fn from_directory(directory: &Path, verify_clients: bool) -> io::Result<Self> {
        let path = |name: &str| directory.join(name);
        let chain = certificates(&path("server-cert.pem"))?;
        let key_path = path("server-key.pem");
        let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|error| bad(&key_path, &error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let builder = if verify_clients {
            let authority = path("ca-cert.pem");
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&authority)? {
                roots.add(certificate).map_err(|error| bad(&authority, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| bad(&authority, &error))?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| bad(&key_path, &error))?;
        Ok(Tls(Arc::new(config)))
    }

    /// Does the server's part of the handshake.
    pub(super) fn accept(&self, link: &Link) -> io::Result<Session> {
        let mut connection = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        connection.set_buffer_limit(None);
        let mut input = Input::default();
        while connection.is_handshaking() {
            if connection.wants_write() {
                send_records(&mut connection, link)?;
                continue;
            }
            if input.is_empty() && !input.fetch(link)? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if let Err(error) = input.feed(&mut connection) {
                // The alert tells the client why.
                let _ = send_records(&mut connection, link);
                return Err(error);
            }
        }
        send_records(&mut connection, link)?;
        Ok(Session { connection: Mutex::new(connection), input: Mutex::new(input) })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn bad(path: &Path, error: &dyn fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{}: {error}", path.display()))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let file = File::open(path).map_err(|error| bad(path, &error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(BufReader::new(file)).collect();
    let found = found.map_err(|error| bad(path, &error))?;
    if found.is_empty() { Err(bad(path, &"there is no certificate in it")) } else { Ok(found) }
}

/// Sends what the connection has to say.
fn send_records(connection: &mut ServerConnection, link: &Link) -> io::Result<()> {
    let mut records = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut records)?;
    }
    link.send_raw(&mut [IoSlice::new(&records)])
}

/// TLS on one connection. One thread receives, one at a time sends; neither waits for the network with the lock held.
pub(super) struct Session {
    connection: Mutex<ServerConnection>,
    input: Mutex<Input>,
}

impl Session {
    pub(super) fn receive(&self, link: &Link, into: &mut [u8]) -> io::Result<usize> {
        let mut input = self.input.lock();
        loop {
            {
                let mut connection = self.connection.lock();
                match connection.reader().read(into) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    other => return other,
                }
                if !input.is_empty() {
                    input.feed(&mut connection)?;
                    continue;
                }
            }
            if !input.fetch(link)? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    pub(super) fn send(&self, link: &Link, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut records = Vec::new();
        for piece in bufs.iter().flat_map(|buf| buf.chunks(PIECE_BYTES)) {
            let mut connection = self.connection.lock();
            connection.writer().write_all(piece)?;
            while connection.wants_write() {
                connection.write_tls(&mut records)?;
            }
            drop(connection);
            if records.len() >= PIECE_BYTES {
                link.send_raw(&mut [IoSlice::new(&records)])?;
                records.clear();
            }
        }
        link.send_raw(&mut [IoSlice::new(&records)])
    }

    pub(super) fn say_goodbye(&self, link: &Link) {
        let mut connection = self.connection.lock();
        connection.send_close_notify();
        let _ = send_records(&mut connection, link);
    }
}

/// Encrypted bytes that have not been looked at.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    start: usize,
}

impl Input {
    fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Fetches some more, when there are none; says whether there are any.
    fn fetch(&mut self, link: &Link) -> io::Result<bool> {
        self.start = 0;
        self.bytes.resize(FETCH_BYTES, 0);
        let received = link.receive_raw(&mut [IoSliceMut::new(&mut self.bytes)]);
        self.bytes.truncate(*received.as_ref().unwrap_or(&0));
        Ok(received? != 0)
    }

    /// Gives them to the connection, as many as it takes.
    fn feed(&mut self, connection: &mut ServerConnection) -> io::Result<()> {
        let mut rest = &self.bytes[self.start..];
        connection.read_tls(&mut rest)?;
        self.start = self.bytes.len() - rest.len();
        connection.process_new_packets().map(drop).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }
}
