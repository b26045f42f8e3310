//! The kernel's part, played over a socket that keeps messages apart.

use super::generate::generate;
use super::operator::Operator;
use crate::stack::{self, Stack, StackOptions};
use holdfast_block::MemoryDevice;
use holdfast_fuse::abi::opcode;
use holdfast_fuse::adapter::{Filesystem, Options, Served};
use holdfast_fuse::{Caching, Session};
use holdfast_naming::Namespace;
use holdfast_object::{Clock, DomainId, ObjectCache, ObjectId};
use holdfast_physical::check::{CheckOptions, check};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use std::sync::Arc;

/// Blocks of the device.
const BLOCKS: u64 = 2048;
/// Time for one reply, in seconds.
const REPLY_S: i64 = 60;
/// Room for the longest reply, which is of 1 MiB.
const REPLY_BYTES: usize = 2 << 20;
/// Marks the request that follows each of the others, so that it is known when there is no reply.
const MARK: u64 = 0xfffe;

/// What came of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Requests sent.
    pub requests: u64,
    /// Of these, done.
    pub done: u64,
    /// Of these, refused with an error.
    pub refused: u64,
}

fn message(code: u32, unique: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = (40 + body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(code.to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(body);
    bytes
}

fn next(kernel: &OwnedFd) -> std::result::Result<Vec<u8>, String> {
    let mut waiting = [PollFd::new(kernel, PollFlags::IN)];
    let limit = Timespec { tv_sec: REPLY_S, tv_nsec: 0 };
    match poll(&mut waiting, Some(&limit)) {
        Ok(0) => return Err(format!("no reply within {REPLY_S} s")),
        Ok(_) => {}
        Err(error) => return Err(error.to_string()),
    }
    let mut bytes = vec![0; REPLY_BYTES];
    let length = rustix::io::read(kernel, &mut bytes[..]).map_err(|error| error.to_string())?;
    bytes.truncate(length);
    if length < 16 { Err("the session has ended".to_string()) } else { Ok(bytes) }
}

/// One reply is of the request `sent`, and what it may be.
fn judge(sent: &[u8], reply: &[u8], counts: &mut Counts) -> std::result::Result<(), String> {
    // Of a request that was cut off, zeros.
    let word =
        |bytes: &[u8], at: usize| u32::from_le_bytes(std::array::from_fn(|byte| *bytes.get(at + byte).unwrap_or(&0)));
    let (code, error) = (word(sent, 4), word(reply, 4) as i32);
    if reply[8..16] != sent[8..16] || word(reply, 0) as usize != reply.len() {
        return Err(format!("the reply {:02x?} is of another request or length", &reply[..16]));
    }
    if !(-511..=0).contains(&error) || error != 0 && reply.len() != 16 {
        return Err(format!("error {error} with {} bytes", reply.len()));
    }
    // What a request asks for by size: in the fifth word of a read, in the first of a request for attributes.
    let limit = match code {
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => word(sent, 40 + 16),
        opcode::GETXATTR | opcode::LISTXATTR => word(sent, 40).max(8),
        _ => REPLY_BYTES as u32,
    };
    if error == 0 && reply.len() - 16 > limit as usize {
        return Err(format!("{} bytes where {limit} were asked for", reply.len() - 16));
    }
    counts.done += u64::from(error == 0);
    counts.refused += u64::from(error != 0);
    Ok(())
}

/// A new store gets `requests` requests by this seed, is checked, closed and checked again.
///
/// # Errors
/// What does not hold, with the request.
pub fn run(seed: u64, requests: u64) -> std::result::Result<Counts, String> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let (device, clock) = (Arc::new(MemoryDevice::new(BLOCKS)), stack::clock());
    stack::create(device.clone(), &clock).map_err(|error| words(&error))?;
    let stack = Stack::open(device.clone(), &StackOptions::new(2048), &clock).map_err(|error| words(&error))?;
    let time: Arc<dyn Clock> = clock.clone();
    let names = Namespace::new(stack.cache.clone(), time, holdfast_naming::Options::default());
    let names = Arc::new(names.with_snapshots(stack.cache.clone()));
    holdfast_object::Snapshots::snapshot_create(&*stack.cache, "first").map_err(|error| words(&error))?;
    let control = Arc::new(Operator::new(&stack));
    let caching = if rng.random_bool(0.5) { Caching::Direct } else { Caching::Kernel };
    let filesystem = Filesystem::new(Arc::new(Served::new(names)), control, Options { caching, ..Options::default() });

    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (kernel, ours) = pair.map_err(|error| words(&error))?;
    for end in [&kernel, &ours] {
        let _ = sockopt::set_socket_send_buffer_size_force(end, 2 * REPLY_BYTES);
    }
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let session = Session::start(ours, caching)?;
            let device = rustix::io::dup(session.device())?;
            let mut worker = session.worker(device)?;
            drop(session);
            worker.serve(&filesystem)
        });
        let outcome = play(&kernel, &mut rng, requests, &mut counts);
        drop(kernel);
        match serving.join() {
            Ok(served) => outcome.and(served.map_err(|error| words(&error))),
            Err(_) => outcome.and(Err("a panic".to_string())),
        }
    })?;
    drop(filesystem);

    stack.cache.check();
    stack.cache.sync_all().map_err(|error| words(&error))?;
    let mut objects: Vec<ObjectId> = Vec::new();
    loop {
        let last = objects.last().copied().unwrap_or(ObjectId::NONE);
        let more = stack.module.objects(DomainId::MAIN, last, 1000).map_err(|error| words(&error))?;
        if more.is_empty() {
            break;
        }
        objects.extend(more.into_iter().map(|(key, _)| key.object));
    }
    let all = objects.iter().filter_map(|id| Some((*id, stack.cache.attributes(*id).ok()?)));
    let report = holdfast_naming::check::check(&*stack.cache, all);
    if !report.is_clean() {
        return Err(format!("the name space is not sound: {:?}", report.findings));
    }
    stack.close().map_err(|error| words(&error))?;
    let report =
        check(device, &CheckOptions { ends: true, ..CheckOptions::default() }).map_err(|error| words(&error))?;
    if report.found > 0 { Err(format!("the store is not sound: {:?}", report.findings)) } else { Ok(counts) }
}

fn play(kernel: &OwnedFd, rng: &mut Pcg64Mcg, requests: u64, counts: &mut Counts) -> std::result::Result<(), String> {
    let send = |bytes: &[u8]| rustix::io::write(kernel, bytes).map(|_| ()).map_err(|error| error.to_string());
    let mut init = [7u32, 45, 1 << 17, u32::MAX, u32::MAX].map(u32::to_le_bytes).concat();
    init.extend([0; 44]);
    send(&message(opcode::INIT, 1, &init))?;
    next(kernel)?;
    for number in 0..requests {
        let sent = generate(rng, 2 * number + 0x10_000);
        let told = |error: String| {
            format!("{error}: request {number}, opcode {}: {:02x?}", sent[4], &sent[16..sent.len().min(160)])
        };
        counts.requests += 1;
        send(&sent).map_err(told)?;
        send(&message(opcode::STATFS, MARK, &[])).map_err(told)?;
        let mut replies = 0;
        loop {
            let reply = next(kernel).map_err(told)?;
            if reply[8..16] == MARK.to_le_bytes() {
                break;
            }
            // A notification: it answers nothing.
            if reply[8..16] == [0; 8] {
                continue;
            }
            replies += 1;
            judge(&sent, &reply, counts).map_err(told)?;
        }
        let silent = [opcode::FORGET, opcode::BATCH_FORGET].contains(&u32::from(sent[4]));
        if replies != u32::from(!silent) && !(silent && replies == 1) {
            return Err(told(format!("{replies} replies")));
        }
    }
    Ok(())
}
