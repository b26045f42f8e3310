//! Replies on their way to the client.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use parking_lot::{Condvar, Mutex};

use super::buffer::Buffer;
use super::link::Link;

/// Replies that go out in one call.
const AT_ONCE: usize = 64;

/// So many may wait for a client that does not take them; then no more of its requests are read.
const MOST_WAITING: usize = 256;

/// One reply: headers, and what was read.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) head: Vec<u8>,
    pub(super) data: Option<(Buffer, Range<usize>)>,
}

impl Reply {
    fn data(&self) -> &[u8] {
        self.data.as_ref().map_or(&[], |(buffer, range)| &buffer[range.clone()])
    }
}

/// The replies of one connection. Whoever has one puts it here, and one of those who do sends for all.
#[derive(Debug, Default)]
pub(super) struct Replies {
    state: Mutex<State>,
    sent: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Reply>,
    someone_sends: bool,
    /// The client is gone.
    broken: bool,
}

impl Replies {
    /// Leaves a reply, to be sent with the next [`Replies::send`] of anybody.
    pub(super) fn push(&self, reply: Reply) {
        let mut state = self.state.lock();
        if !state.broken {
            state.waiting.push_back(reply);
        }
    }

    /// Sends what waits, unless somebody is doing so.
    pub(super) fn send(&self, link: &Link) {
        let mut state = self.state.lock();
        if state.someone_sends || state.waiting.is_empty() {
            return;
        }
        state.someone_sends = true;
        while !state.waiting.is_empty() {
            let count = state.waiting.len().min(AT_ONCE);
            let replies: Vec<Reply> = state.waiting.drain(..count).collect();
            drop(state);
            let mut slices: Vec<IoSlice<'_>> =
                replies.iter().flat_map(|reply| [IoSlice::new(&reply.head), IoSlice::new(reply.data())]).collect();
            let outcome = link.send(&mut slices);
            drop(slices);
            drop(replies);
            state = self.state.lock();
            if let Err(error) = outcome {
                if !state.broken {
                    tracing::debug!(peer = link.peer(), %error, "NBD: replies cannot be sent");
                }
                state.broken = true;
                state.waiting.clear();
                link.cut();
            }
            self.sent.notify_all();
        }
        state.someone_sends = false;
    }

    /// Waits while too many replies wait for the client.
    pub(super) fn wait_for_room(&self, link: &Link) {
        self.send(link);
        let mut state = self.state.lock();
        while state.waiting.len() >= MOST_WAITING && state.someone_sends {
            self.sent.wait(&mut state);
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }
}
