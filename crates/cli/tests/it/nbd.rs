//! As much of an NBD client as a test needs: one request after the other, over a unix socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub(crate) struct Client {
    stream: UnixStream,
    pub(crate) size_bytes: u64,
}

impl Client {
    /// Takes the export without a name.
    pub(crate) fn connect(socket: &Path) -> Client {
        Client::over(UnixStream::connect(socket).unwrap())
    }

    pub(crate) fn over(mut stream: UnixStream) -> Client {
        stream.set_read_timeout(Some(crate::rig::PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeros; then EXPORT_NAME.
        stream
            .write_all(&[&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat())
            .unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        Client { stream, size_bytes: u64::from_be_bytes(answer[..8].try_into().unwrap()) }
    }

    fn ask(&mut self, kind: u16, at: u64, length: usize, data: &[u8], out: &mut [u8]) -> io::Result<()> {
        let head = [
            &0x2560_9513u32.to_be_bytes()[..],
            &[0; 2],
            &kind.to_be_bytes(),
            &[7; 8],
            &at.to_be_bytes(),
            &(length as u32).to_be_bytes(),
            data,
        ];
        self.stream.write_all(&head.concat())?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(&reply[..4], &0x6744_6698u32.to_be_bytes());
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => self.stream.read_exact(out),
            number => Err(io::Error::from_raw_os_error(number as i32)),
        }
    }

    pub(crate) fn try_write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        self.ask(1, at, data.len(), data, &mut [])
    }

    pub(crate) fn try_flush(&mut self) -> io::Result<()> {
        self.ask(3, 0, 0, &[], &mut [])
    }

    /// Writes, and makes it durable.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) {
        self.try_write(at, data).unwrap();
        self.try_flush().unwrap();
    }

    pub(crate) fn read(&mut self, at: u64, length: usize) -> Vec<u8> {
        self.try_read(at, length).unwrap()
    }

    pub(crate) fn try_read(&mut self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut out = vec![0; length];
        self.ask(0, at, length, &[], &mut out).map(|()| out)
    }
}
