//! From a request's bytes to the handler's method to the reply's bytes.

use crate::abi::*;
use crate::decode::{self, Body, Request};
use crate::errno::Errno;
use crate::handler::{Answer, Change, Handler, Service, is_truncation};
use crate::notify;
use crate::reply::{self, DirBuffer, Slices};
use holdfast_object::ObjectId;
use rustix::fd::BorrowedFd;
use zerocopy::{Immutable, IntoBytes};

/// Largest reply of variable length that a request can ask for.
const REPLY_BYTES_MAX: usize = crate::negotiate::WRITE_BYTES_MAX as usize;

/// Answers one request. Whatever goes wrong is the request's error, never the session's.
/// `agreed` are the flags of [`init_flags`].
pub(crate) fn dispatch<S: Service>(service: &S, device: BorrowedFd<'_>, bytes: &[u8], agreed: u64) {
    service.serve(|handler| dispatch_to(handler, device, bytes, agreed));
}

fn dispatch_to<H: Handler>(handler: &H, device: BorrowedFd<'_>, bytes: &[u8], agreed: u64) {
    // The reply carries `unique` as it came, with the mark of a request sent again.
    let unique = match decode::header(bytes) {
        Ok(header) => header.unique,
        Err(error) => {
            // Without a header there is nobody to answer.
            tracing::error!(%error, "request from the kernel");
            return;
        }
    };
    let mut out = Out { device, unique, before: &|| Ok(()) };
    match decode::request(bytes, agreed) {
        Ok(request) if needs_store(&request) && handler.is_down() => out.error(Errno::IO),
        Ok(request) => {
            let before = || changes(&request).map_or(Ok(()), |(node, change)| handler.changed(node, change));
            out.before = &before;
            answer(handler, &out, &request);
        }
        Err(error) => {
            tracing::error!(%error, "request from the kernel");
            out.error(Errno::INVAL);
        }
    }
}

struct Out<'a> {
    device: BorrowedFd<'a>,
    unique: u64,
    /// To be done before success is told.
    before: &'a dyn Fn() -> Answer<()>,
}

impl Out<'_> {
    fn error(&self, errno: Errno) {
        reply::send_error(self.device, self.unique, errno);
    }

    fn bytes(&self, parts: &[&[u8]]) {
        match (self.before)() {
            Ok(()) => reply::send(self.device, self.unique, parts.iter().copied()),
            Err(errno) => self.error(errno),
        }
    }

    fn give<T: IntoBytes + Immutable>(&self, answer: Answer<T>) {
        match answer {
            Ok(value) => self.bytes(&[value.as_bytes()]),
            Err(errno) => self.error(errno),
        }
    }

    fn done(&self, answer: Answer<()>) {
        match answer {
            Ok(()) => self.bytes(&[]),
            Err(errno) => self.error(errno),
        }
    }

    /// If `stale`, the kernel asks for the object's attributes before it uses them again. Before the reply, so that they are
    /// right for whoever waits for it; nothing that the kernel holds during the request is needed for it.
    fn forget_attributes(&self, node: u64, stale: bool) {
        const ATTRIBUTES_ONLY: i64 = -1;
        if stale && let Err(error) = notify::invalidate_object(self.device, node, ATTRIBUTES_ONLY, 0) {
            tracing::warn!(node, %error, "the kernel was not told of a changed mode");
        }
    }

    /// The extended-attribute protocol: size 0 asks for the length only.
    fn sized(&self, answer: Answer<Vec<u8>>, size: u32) {
        match answer {
            Err(errno) => self.error(errno),
            Ok(value) if size == 0 => self.bytes(&[GetxattrIn { size: value.len() as u32, padding: 0 }.as_bytes()]),
            Ok(value) if value.len() > size as usize => self.error(Errno::RANGE),
            Ok(value) => self.bytes(&[&value]),
        }
    }
}

/// Whether a request is about what is stored: not so what the kernel only tells, and what asking about the mount takes, which is to open
/// its root.
fn needs_store(request: &Request<'_>) -> bool {
    let is_root = request.node == ObjectId::ROOT.0;
    let is_asked_of_root = is_root && matches!(request.body, Body::Getattr(_) | Body::Statx(_) | Body::Opendir(..));
    !is_asked_of_root
        && !matches!(
            request.body,
            Body::Forget { .. }
                | Body::BatchForget { .. }
                | Body::Release(..)
                | Body::Releasedir(..)
                | Body::Interrupt { .. }
                | Body::Statfs
                | Body::Ioctl { .. }
                | Body::Init(..)
                | Body::Destroy
        )
}

/// What a request changes if it succeeds; not those that write through a handle, by which the handler sees to it itself.
fn changes(request: &Request<'_>) -> Option<(u64, Change)> {
    let node = request.node;
    match &request.body {
        Body::Symlink { .. }
        | Body::Mknod { .. }
        | Body::Mkdir { .. }
        | Body::Unlink { .. }
        | Body::Rmdir { .. }
        | Body::Rename { .. }
        | Body::Link { .. }
        | Body::Create { .. }
        | Body::Tmpfile { .. } => Some((node, Change::Names)),
        Body::Setattr(args) if is_truncation(args) => None,
        Body::Setattr(_) | Body::Setxattr { .. } | Body::Removexattr { .. } => Some((node, Change::Object)),
        _ => None,
    }
}

fn answer<H: Handler>(handler: &H, out: &Out<'_>, request: &Request<'_>) {
    let (context, node) = (&request.context, request.node);
    let entry = |answer: Answer<_>| answer.map(|entry| reply::entry(&entry));
    match &request.body {
        Body::Lookup { name } => out.give(entry(handler.lookup(context, node, name))),
        // The two that are not answered.
        Body::Forget { count } => handler.forget(node, *count),
        Body::BatchForget { forgets } => forgets.iter().for_each(|one| handler.forget(one.nodeid, one.nlookup)),
        Body::Getattr(_) => out.give(handler.getattr(context, node).map(|attributes| reply::attributes(&attributes))),
        Body::Statx(_) => out.give(handler.getattr(context, node).map(|attributes| reply::statx(&attributes))),
        Body::Setattr(args) => {
            out.give(handler.setattr(context, node, args).map(|attributes| reply::attributes(&attributes)))
        }
        Body::Readlink => match handler.readlink(context, node) {
            Ok(target) => out.bytes(&[&target]),
            Err(errno) => out.error(errno),
        },
        Body::Symlink { name, target } => out.give(entry(handler.symlink(context, node, name, target))),
        Body::Mknod { args, name } => out.give(entry(handler.mknod(context, node, name, args))),
        Body::Mkdir { args, name } => out.give(entry(handler.mkdir(context, node, name, args))),
        Body::Unlink { name } => out.done(handler.unlink(context, node, name)),
        Body::Rmdir { name } => out.done(handler.rmdir(context, node, name)),
        Body::Rename { new_parent, flags, name, new_name } => {
            out.done(handler.rename(context, node, name, *new_parent, new_name, *flags))
        }
        Body::Link { node: linked, name } => out.give(entry(handler.link(context, *linked, node, name))),
        Body::Open(args) => out.give(handler.open(context, node, args).map(|opened| reply::opened(&opened))),
        Body::Create { args, name } => created(out, handler.create(context, node, name, args)),
        Body::Tmpfile { args } => created(out, handler.tmpfile(context, node, args)),
        Body::Read(args) => match handler.read(context, node, args) {
            Ok(data) => reply::send(out.device, out.unique, data.slices()),
            Err(errno) => out.error(errno),
        },
        Body::Write { args, bytes } => {
            let clears = args.write_flags & WRITE_KILL_SUIDGID != 0 && handler.has_set_ids(node);
            let written = handler.write(context, node, args, bytes);
            out.forget_attributes(node, clears);
            out.give(written.map(|size| WriteOut { size, padding: 0 }))
        }
        Body::Statfs => out.give(handler.statfs(context, node)),
        Body::Release(args) => {
            handler.release(context, node, args);
            out.bytes(&[])
        }
        Body::Fsync(args) => out.done(handler.fsync(context, node, args.fh, args.fsync_flags & FSYNC_FDATASYNC != 0)),
        Body::Setxattr { flags, extra_flags, name, value } => {
            out.done(handler.setxattr(context, node, name, value, *flags, *extra_flags))
        }
        Body::Getxattr { size, name } => out.sized(handler.getxattr(context, node, name), *size),
        Body::Listxattr { size } => out.sized(handler.listxattr(context, node), *size),
        Body::Removexattr { name } => out.done(handler.removexattr(context, node, name)),
        Body::Flush(args) => out.done(handler.flush(context, node, args)),
        // A session is agreed on once, before its workers start.
        Body::Init(_) => out.error(Errno::IO),
        Body::Opendir(_) => out.give(handler.opendir(context, node).map(|opened| reply::opened(&opened))),
        Body::Readdir { args, plus } => {
            let mut buffer = DirBuffer::new((args.size as usize).min(REPLY_BYTES_MAX), *plus);
            match handler.readdir(context, node, args.offset, &mut buffer) {
                // What was added counts as looked up, so it must arrive; the error comes again behind it.
                Err(errno) if buffer.is_empty() => out.error(errno),
                _ => out.bytes(&[buffer.bytes()]),
            }
        }
        Body::Releasedir(_) => {
            handler.releasedir(context, node);
            out.bytes(&[])
        }
        Body::Fsyncdir(args) => out.done(handler.fsyncdir(context, node, args.fsync_flags & FSYNC_FDATASYNC != 0)),
        Body::Access { mask } => out.done(handler.access(context, node, *mask)),
        // Requests are short; one that is interrupted is simply finished, and the interrupt needs no answer (EAGAIN would ask
        // for it again).
        Body::Interrupt { .. } => {}
        Body::Destroy => out.bytes(&[]),
        Body::Ioctl { args, bytes } => match handler.ioctl(context, node, args, bytes) {
            Ok((result, bytes)) => {
                out.forget_attributes(node, handler.ioctl_writes(args));
                let head = IoctlOut { result, ..IoctlOut::default() };
                let length = bytes.len().min(args.out_size as usize);
                out.bytes(&[head.as_bytes(), &bytes[..length]])
            }
            Err(errno) => out.error(errno),
        },
        Body::Fallocate(args) => {
            let clears = handler.has_set_ids(node);
            let done = handler.fallocate(context, node, args);
            out.forget_attributes(node, clears);
            out.done(done)
        }
        Body::Lseek(args) => out.give(handler.lseek(context, node, args).map(|offset| LseekOut { offset })),
        Body::CopyFileRange(args) => {
            let clears = handler.has_set_ids(args.nodeid_out);
            let copied = handler.copy_file_range(context, node, args);
            out.forget_attributes(args.nodeid_out, clears);
            out.give(copied.map(|size| WriteOut { size, padding: 0 }))
        }
        Body::Syncfs => out.done(handler.syncfs(context)),
        Body::Unknown { opcode } => {
            tracing::debug!(opcode, "request not known");
            out.error(Errno::NOSYS)
        }
    }
}

fn created(out: &Out<'_>, answer: Answer<(crate::handler::Entry, crate::handler::Opened)>) {
    match answer {
        Ok((entry, opened)) => out.bytes(&[reply::entry(&entry).as_bytes(), reply::opened(&opened).as_bytes()]),
        Err(errno) => out.error(errno),
    }
}
