//! The requests of one connection.
//!
//! One thread at a time reads requests. While the device answers from memory it does them as it reads, and their replies go out
//! together when nothing more has come in. With a request that may take longer it leaves the reading to another thread, and does
//! it: what it has received is then still in its processor's cache. Replies go out in the order in which they are ready.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, Scope};
use std::time::Instant;

use parking_lot::Mutex;

use super::Limits;
use super::buffer::{Buffer, Buffers};
use super::export::{Export, Refusal, covering};
use super::link::Link;
use super::negotiation::{Agreed, LARGEST, context_id};
use super::protocol::{Command, Errno, Put, REQUEST_BYTES, Request, chunk, chunk_head, error_chunk, flag, simple};
use super::reader::Reader;
use super::replies::{Replies, Reply};
use super::speed::Kind;
use crate::BLOCK_SIZE;

/// Of larger requests the next one is fetched meanwhile, if it has come in.
const LARGEST_DONE_HERE: u32 = 128 << 10;

/// A write with more bytes than this, which no client may send, is taken for an attack.
const MOST_PASSED_OVER: u32 = 2 * LARGEST;

/// Replies are not kept back for longer than there are so many.
const MOST_KEPT_BACK: usize = 32;

/// Zeros at the beginning of a read are told in so many words from this length on, in bytes.
const LEAST_HOLE: u64 = BLOCK_SIZE as u64;

/// A connection after its negotiation.
struct Connection<'a> {
    link: &'a Link,
    export: Arc<Export>,
    is_structured: bool,
    contexts: Vec<super::Context>,
    buffers: Arc<Buffers>,
    replies: Replies,
    /// Held by the thread that reads.
    input: Mutex<Input<'a>>,
    /// Threads that wait for the input.
    waiting: AtomicUsize,
    /// A refusal has been told.
    has_told: AtomicBool,
}

/// What comes in, and how far that has got.
struct Input<'a> {
    reader: &'a mut Reader,
    stopping: &'a AtomicBool,
    threads: usize,
    most_threads: usize,
    /// How it ended, once it has.
    end: Option<io::Result<()>>,
}

/// A request with the memory that it needs: of a write, its bytes are in it.
#[derive(Debug)]
struct Job {
    request: Request,
    buffer: Option<Buffer>,
}

/// Serves requests until the client leaves, or `stopping` is set. What has been read by then is done and answered.
pub(super) fn serve(
    link: &Link,
    reader: &mut Reader,
    agreed: Agreed,
    limits: &Limits,
    stopping: &AtomicBool,
) -> io::Result<()> {
    let connection = Connection {
        link,
        export: agreed.export,
        is_structured: agreed.is_structured,
        contexts: agreed.contexts,
        buffers: Buffers::new(limits.connection_bytes.max(LARGEST as usize + 2 * BLOCK_SIZE)),
        replies: Replies::default(),
        // One of them reads while all the others work.
        input: Mutex::new(Input { reader, stopping, threads: 1, most_threads: limits.workers.max(1) + 1, end: None }),
        waiting: AtomicUsize::new(0),
        has_told: AtomicBool::new(false),
    };
    std::thread::scope(|scope| connection.work(scope));
    connection.replies.send(link);
    link.finish();
    connection.input.into_inner().end.unwrap_or(Ok(()))
}

/// Ends the connection if its thread panics, so that no client waits for an answer that will never come.
struct CutOnPanic<'a>(&'a Link);

impl Drop for CutOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cut();
        }
    }
}

impl Connection<'_> {
    /// Reads requests and does them, in turn with other threads, until there are none any more.
    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let _guard = CutOnPanic(self.link);
        loop {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let mut input = self.input.lock();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if input.end.is_some() {
                return;
            }
            let job = match self.next(&mut input) {
                Ok(Some(job)) => job,
                outcome => {
                    input.end = Some(outcome.map(drop));
                    return;
                }
            };
            if self.waiting.load(Ordering::Relaxed) == 0 && input.threads < input.most_threads {
                // Where the system has none left, this one reads on when it is done.
                let spawned = Builder::new().spawn_scoped(scope, || self.work(scope));
                input.threads += usize::from(spawned.is_ok());
            }
            drop(input);
            self.replies.push(self.perform(job));
            self.replies.send(self.link);
        }
    }

    /// Reads up to a request that is not done as it is read; `None` at the end.
    fn next(&self, input: &mut Input<'_>) -> io::Result<Option<Job>> {
        let reader = &mut *input.reader;
        while !input.stopping.load(Ordering::Relaxed) {
            if reader.buffered() < REQUEST_BYTES || self.replies.waiting() >= MOST_KEPT_BACK {
                self.replies.wait_for_room(self.link);
            }
            let Some(header) = reader.message::<REQUEST_BYTES>(self.link)? else { return Ok(None) };
            let Some(request) = Request::decode(&header) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a request without its magic number"));
            };
            if request.command == Command::Disconnect {
                return Ok(None);
            }
            let mut job = match self.check(&request) {
                Ok(needed) => Job { request, buffer: needed.map(|length| self.take(length)) },
                Err(refusal) => {
                    if request.command == Command::Write {
                        self.pass_over(reader, request.length)?;
                    }
                    self.replies.push(self.refused(&request, &refusal));
                    continue;
                }
            };
            if let (Command::Write, Some(buffer)) = (request.command, &mut job.buffer) {
                if reader.buffered() < request.length as usize {
                    self.replies.send(self.link);
                }
                let head = (request.offset % BLOCK_SIZE as u64) as usize;
                reader.fill(self.link, &mut buffer[head..head + request.length as usize])?;
            }
            // A larger one is done here if there is nothing that it could hold up.
            let is_small = request.length <= LARGEST_DONE_HERE || reader.buffered() == 0;
            match kind(&request) {
                Some(kind) if self.export.speed.is_quick(kind) && is_small => self.replies.push(self.perform(job)),
                _ => {
                    self.replies.send(self.link);
                    return Ok(Some(job));
                }
            }
        }
        Ok(None)
    }

    fn take(&self, length: usize) -> Buffer {
        self.buffers.try_take(length).unwrap_or_else(|| {
            // Those waited for may be in replies that nobody has sent yet.
            self.replies.send(self.link);
            self.buffers.take(length)
        })
    }

    /// Passes over the bytes of a write that is refused.
    fn pass_over(&self, reader: &mut Reader, length: u32) -> io::Result<()> {
        if length > MOST_PASSED_OVER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a write of {length} bytes")));
        }
        if reader.buffered() < length as usize {
            self.replies.send(self.link);
        }
        reader.pass_over(self.link, length.into())
    }

    /// Whether a request may be done, and how much memory it needs, if any.
    fn check(&self, request: &Request) -> Result<Option<usize>, Refusal> {
        let Request { flags, command, offset, length, .. } = *request;
        let invalid = |message: String| Err(Refusal::new(Errno::Invalid, message));
        if let Command::Unknown(number) = command {
            return invalid(format!("there is no command {number}"));
        }
        let mut allowed = command.flags();
        if !self.is_structured {
            allowed &= !flag::DF;
        }
        if flags & !allowed != 0 {
            return invalid(format!("flags {:#x} do not go with {command:?}", flags & !allowed));
        }
        if command == Command::Flush {
            return if (offset, length) == (0, 0) {
                Ok(None)
            } else {
                invalid(format!("a flush has no range, not {length} bytes at {offset}"))
            };
        }
        let size = self.export.size_bytes();
        if command.changes() && self.export.is_read_only() {
            return Err(Refusal::new(Errno::NotPermitted, "the export is read-only"));
        }
        if length == 0 {
            return invalid(format!("{command:?} of no bytes"));
        }
        if offset.checked_add(length.into()).is_none_or(|end| end > size) {
            let errno = match command {
                Command::Write | Command::WriteZeroes => Errno::NoSpace,
                _ => Errno::Invalid,
            };
            let message = format!("{command:?} of {length} bytes at {offset}: the export has {size} bytes");
            return Err(Refusal::new(errno, message));
        }
        match command {
            Command::Read | Command::Write if length > LARGEST => {
                let errno =
                    if self.is_structured && command == Command::Read { Errno::Overflow } else { Errno::Invalid };
                Err(Refusal::new(errno, format!("{command:?} of {length} bytes: not more than {LARGEST} at once")))
            }
            Command::Read | Command::Write => {
                let blocks = covering(&range(request));
                Ok(Some((blocks.end - blocks.start) as usize * BLOCK_SIZE))
            }
            Command::BlockStatus if self.contexts.is_empty() => invalid("no context has been chosen".into()),
            _ => Ok(None),
        }
    }

    fn perform(&self, job: Job) -> Reply {
        let Job { request, buffer } = job;
        let start = Instant::now();
        let outcome = self.attempt(&request, buffer);
        if let Some(kind) = kind(&request) {
            self.export.speed.saw(kind, request.length, start.elapsed());
        }
        outcome.unwrap_or_else(|refusal| {
            self.tell(&request, &refusal);
            self.refused(&request, &refusal)
        })
    }

    /// Once for each connection: a client may ask for what it does not get as often as it likes.
    fn tell(&self, request: &Request, refusal: &Refusal) {
        let (peer, export) = (self.link.peer(), self.export.name());
        match self.has_told.swap(true, Ordering::Relaxed) {
            false => {
                tracing::warn!(peer, export, ?request, "NBD: {}; more of this client at level debug", refusal.message)
            }
            true => tracing::debug!(peer, export, ?request, "NBD: {}", refusal.message),
        }
    }

    fn attempt(&self, request: &Request, buffer: Option<Buffer>) -> Result<Reply, Refusal> {
        let bytes = range(request);
        let has = |flag| request.flags & flag != 0;
        match (request.command, buffer) {
            (Command::Read, Some(buffer)) => return self.read(request, buffer),
            (Command::Write, Some(mut buffer)) => self.export.write(&bytes, &mut buffer)?,
            (Command::Flush, _) => self.export.flush()?,
            (Command::Trim, _) => self.export.trim(&bytes)?,
            (Command::WriteZeroes, _) => self.export.zero(&bytes, has(flag::NO_HOLE), has(flag::FAST_ZERO))?,
            (Command::BlockStatus, _) => return self.status(request),
            // There is no cache to fetch anything into; the protocol lets that be a success.
            (Command::Cache, _) => {}
            (Command::Read | Command::Write | Command::Disconnect | Command::Unknown(_), _) => {
                return Err(Refusal::new(Errno::Invalid, "the request should have been refused before"));
            }
        }
        if has(flag::FUA) && request.command.changes() {
            self.export.flush()?;
        }
        let mut head = Vec::with_capacity(16);
        simple(&mut head, 0, request.cookie);
        Ok(Reply { head, data: None })
    }

    fn read(&self, request: &Request, mut buffer: Buffer) -> Result<Reply, Refusal> {
        let bytes = range(request);
        let mut zeros = self.export.read(&bytes, &mut buffer)?;
        let start = (bytes.start % BLOCK_SIZE as u64) as usize;
        let end = start + request.length as usize;
        if zeros < LEAST_HOLE || !self.is_structured || request.flags & flag::DF != 0 {
            buffer[start..start + zeros as usize].fill(0);
            zeros = 0;
        }
        let mut head = Vec::with_capacity(64);
        let rest = request.length - zeros as u32;
        if !self.is_structured {
            simple(&mut head, 0, request.cookie);
        } else {
            if zeros != 0 {
                let flags = if rest == 0 { chunk::DONE } else { 0 };
                chunk_head(&mut head, flags, chunk::OFFSET_HOLE, request.cookie, 12);
                head.u64(bytes.start).u32(zeros as u32);
            }
            if rest != 0 {
                chunk_head(&mut head, chunk::DONE, chunk::OFFSET_DATA, request.cookie, 8 + rest);
                head.u64(bytes.start + zeros);
            }
        }
        let data = (rest != 0).then_some((buffer, start + zeros as usize..end));
        Ok(Reply { head, data })
    }

    fn status(&self, request: &Request) -> Result<Reply, Refusal> {
        let bytes = range(request);
        let one = request.flags & flag::REQ_ONE != 0;
        let mut head = Vec::new();
        for (at, context) in self.contexts.iter().enumerate() {
            let runs = self.export.status(*context, &bytes, one)?;
            let flags = if at + 1 == self.contexts.len() { chunk::DONE } else { 0 };
            chunk_head(&mut head, flags, chunk::BLOCK_STATUS, request.cookie, 4 + 8 * runs.len() as u32);
            head.u32(context_id(*context));
            runs.iter().for_each(|(length, flags)| _ = head.u32(*length).u32(*flags));
        }
        Ok(Reply { head, data: None })
    }

    fn refused(&self, request: &Request, refusal: &Refusal) -> Reply {
        let mut head = Vec::new();
        if self.is_structured {
            error_chunk(&mut head, request.cookie, refusal.errno, &refusal.message);
        } else {
            simple(&mut head, refusal.errno as u32, request.cookie);
        }
        Reply { head, data: None }
    }
}

/// The bytes of the export that a request is about; its end has been checked.
fn range(request: &Request) -> Range<u64> {
    request.offset..request.offset.saturating_add(request.length.into())
}

/// What the time that a request takes depends on; nothing for those that take long by nature.
fn kind(request: &Request) -> Option<Kind> {
    match request.command {
        Command::Read => Some(Kind::Read),
        Command::Write if request.flags & flag::FUA == 0 => Some(Kind::Write),
        Command::Write | Command::Flush => Some(Kind::Flush),
        _ => None,
    }
}
