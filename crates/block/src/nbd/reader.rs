//! What has come in from a client and has not been used yet.

use std::io::{self, IoSliceMut};

use super::link::Link;

/// Many small requests are fetched at once.
const BUFFER_BYTES: usize = 128 << 10;

/// A connection's input.
#[derive(Debug)]
pub(super) struct Reader {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Reader {
    pub(super) fn new() -> Self {
        Reader { buffer: vec![0; BUFFER_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Bytes that are here already.
    pub(super) fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// The next `N` bytes; `None` at the end of the stream, if it is between two messages. A client that has nothing to say may
    /// take its time, one in the middle of a message may not.
    pub(super) fn message<const N: usize>(&mut self, link: &Link) -> io::Result<Option<[u8; N]>> {
        const { assert!(N <= BUFFER_BYTES) };
        while self.buffered() < N {
            self.make_room();
            match link.receive(&mut [IoSliceMut::new(&mut self.buffer[self.end..])]) {
                Ok(0) if self.buffered() == 0 => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.buffered() == 0 => {}
                Err(error) => return Err(error),
            }
        }
        let bytes = self.buffer[self.start..].first_chunk().copied();
        self.start += N;
        Ok(bytes)
    }

    /// Fills `into`; what follows it is taken along.
    pub(super) fn fill(&mut self, link: &Link, into: &mut [u8]) -> io::Result<()> {
        let here = self.buffered().min(into.len());
        into[..here].copy_from_slice(&self.buffer[self.start..self.start + here]);
        self.start += here;
        let mut done = here;
        while done < into.len() {
            self.make_room();
            let wanted = into.len() - done;
            let mut bufs = [IoSliceMut::new(&mut into[done..]), IoSliceMut::new(&mut self.buffer[self.end..])];
            match link.receive(&mut bufs)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => {
                    done += count.min(wanted);
                    self.end += count.saturating_sub(wanted);
                }
            }
        }
        Ok(())
    }

    /// Passes over `count` bytes.
    pub(super) fn pass_over(&mut self, link: &Link, count: u64) -> io::Result<()> {
        let mut left = count;
        loop {
            let here = (self.buffered() as u64).min(left);
            self.start += here as usize;
            left -= here;
            if left == 0 {
                return Ok(());
            }
            self.make_room();
            match link.receive(&mut [IoSliceMut::new(&mut self.buffer[self.end..])])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.end += count,
            }
        }
    }

    /// Moves what there is to the front, where that gives room.
    fn make_room(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
    }
}
