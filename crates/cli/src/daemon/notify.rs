//! Telling the service manager how the daemon is doing (sd_notify(3)), if one wants to know.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The mount can be used.
pub(crate) fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={}\n", one_line(status)));
}

/// How it is doing, in words.
pub(crate) fn status(status: &str) {
    tell(&format!("STATUS={}\n", one_line(status)));
}

/// It is going to end.
pub(crate) fn stopping(status: &str) {
    tell(&format!("STOPPING=1\nSTATUS={}\n", one_line(status)));
}

fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

fn tell(lines: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&address, lines) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

/// To a path, or to a name that begins with `@` and is in no directory.
fn send(address: &OsStr, lines: &str) -> io::Result<()> {
    let to = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read holds nobody up.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(lines.as_bytes(), &to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_address_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("@{}", path.display());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name[1..]).unwrap()).unwrap();
        for (address, socket) in [(path.as_os_str(), by_path), (OsStr::new(&name), by_name)] {
            send(address, "READY=1\n").unwrap();
            let mut got = [0; 100];
            let length = socket.recv(&mut got).unwrap();
            assert_eq!(&got[..length], b"READY=1\n");
        }
        assert!(send(OsStr::new("/nowhere/at/all"), "READY=1\n").is_err());
        assert_eq!(one_line("a\nREADY=1"), "a READY=1");
    }
}
