//! Where clients come in.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// The port that is NBD's.
pub const DEFAULT_PORT: u16 = 10809;

/// Connections that may wait to be taken.
const BACKLOG: i32 = 64;

/// A socket that clients connect to.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    name: String,
    /// The file of a unix socket, with device and inode, to be removed in the end.
    file: Option<(PathBuf, u64, u64)>,
}

impl Listener {
    /// A unix socket at `path`, for those whom `mode` lets write. The remains of a server that is gone are replaced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if a server listens there, [`io::ErrorKind::AlreadyExists`] if the path is no socket.
    pub fn unix(path: &Path, mode: u32) -> io::Result<Self> {
        remove_stale(path)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Linux gives the file the mode that the socket has at this moment, so that it is never open to more than it should be.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(path)?)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        rustix::net::listen(&socket, BACKLOG)?;
        let metadata = fs::symlink_metadata(path)?;
        let file = Some((path.to_owned(), metadata.dev(), metadata.ino()));
        Listener { socket, name: format!("unix:{}", path.display()), file }.ready()
    }

    /// TCP at `address`: `HOST:PORT`, or `HOST` for NBD's own port. One listener for each address of the host.
    ///
    /// # Errors
    /// Those of the system.
    pub fn tcp(address: &str) -> io::Result<Vec<Self>> {
        resolve(address)?
            .into_iter()
            .map(|address| {
                let listener = TcpListener::bind(address)?;
                let name = format!("tcp:{}", listener.local_addr()?);
                Listener { socket: listener.into(), name, file: None }.ready()
            })
            .collect()
    }

    /// The sockets that a service manager has opened for this process (sd_listen_fds(3)), if any. To be called once, before
    /// anything else opens files.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if one of them is no listening stream socket.
    pub fn inherited() -> io::Result<Vec<Self>> {
        let number = |name| std::env::var_os(name).and_then(|value: std::ffi::OsString| parse(&value));
        if number("LISTEN_PID") != Some(std::process::id()) {
            return Ok(Vec::new());
        }
        let count = number("LISTEN_FDS").unwrap_or(0).min(1000) as i32;
        (3..3 + count)
            .map(|number| {
                // SAFETY: this only asks about the number.
                if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
                    return Err(io::Error::last_os_error());
                }
                // SAFETY: it is open, and the service manager has opened it for whoever asks for it here.
                let socket = unsafe { OwnedFd::from_raw_fd(number) };
                let is_listening = sockopt::socket_acceptconn(&socket) == Ok(true)
                    && sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
                if !is_listening {
                    let message = format!("descriptor {number} of the service manager is no listening stream socket");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                }
                Listener { socket, name: format!("socket {number} of the service manager"), file: None }.ready()
            })
            .collect()
    }

    fn ready(self) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&self.socket, true)?;
        Ok(self)
    }

    /// Where it listens, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of a TCP socket.
    pub fn address(&self) -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getsockname(&self.socket).ok()?).ok()
    }

    /// Whether others than this machine can reach it.
    pub fn is_remote(&self) -> bool {
        self.address().is_some_and(|address| !address.ip().is_loopback())
    }

    /// The next client that waits, and its name for messages.
    pub(super) fn accept(&self) -> Result<(OwnedFd, String), Errno> {
        let (socket, from) = rustix::net::acceptfrom_with(&self.socket, SocketFlags::CLOEXEC)?;
        let peer = match from.and_then(|from| SocketAddr::try_from(from).ok()) {
            Some(address) => {
                // Replies are whole messages. Whether a peer that is silent is still there, the system finds out.
                let _ = sockopt::set_tcp_nodelay(&socket, true);
                let _ = sockopt::set_socket_keepalive(&socket, true);
                address.to_string()
            }
            None => match sockopt::socket_peercred(&socket) {
                Ok(who) => format!("process {} of user {}", who.pid.as_raw_nonzero(), who.uid.as_raw()),
                Err(_) => "unix".to_owned(),
            },
        };
        Ok((socket, peer))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    /// A unix socket's file goes, unless somebody has put another one in its place.
    fn drop(&mut self) {
        let Some((path, device, inode)) = &self.file else { return };
        if fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (*device, *inode)) {
            let _ = fs::remove_file(path);
        }
    }
}

fn parse(value: &OsStr) -> Option<u32> {
    value.to_str()?.parse().ok()
}

fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    let with_port: io::Result<Vec<_>> = address.to_socket_addrs().map(Iterator::collect);
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    with_port.or_else(|error| match (bare, DEFAULT_PORT).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(_) => Err(error),
    })
}

/// Removes the socket file of a server that is gone.
fn remove_stale(path: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !kind.is_socket() {
        let message = format!("{} exists and is no socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    // A server that has more clients waiting than it takes would have this one wait, too.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => {
            let message = format!("{}: a server listens there", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, message))
        }
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_unix_socket_has_its_mode_replaces_remains_and_goes_in_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::unix(&path, 0o640).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let error = Listener::unix(&path, 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert_eq!(Listener::unix(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_socket_of_somebody_else_in_its_place_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let first = Listener::unix(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = Listener::unix(&path, 0o600).unwrap();
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn addresses_with_and_without_a_port() {
        assert_eq!(resolve("127.0.0.1:7").unwrap(), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(resolve("127.0.0.1").unwrap(), ["127.0.0.1:10809".parse().unwrap()]);
        assert_eq!(resolve("[::1]").unwrap(), ["[::1]:10809".parse().unwrap()]);
        assert_eq!(resolve("::1").unwrap(), ["[::1]:10809".parse().unwrap()]);
        assert!(resolve("").is_err());
    }
}
