//! Memory for the requests of one connection: reused, aligned for direct I/O, and not more than a limit.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::AlignedBuf;

/// Of what lies idle, at most so much is kept for later, in bytes.
const MOST_IDLE: usize = 16 << 20;

/// The buffers of one connection. Those in use and those kept for later are together never more than the limit.
#[derive(Debug)]
pub(super) struct Buffers {
    limit: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    in_use: usize,
    idle: Vec<AlignedBuf>,
    idle_bytes: usize,
}

/// A buffer, given back when dropped. It holds what an earlier request of the same connection left in it.
#[derive(Debug)]
pub(super) struct Buffer {
    memory: Option<AlignedBuf>,
    buffers: Arc<Buffers>,
}

impl Buffers {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Buffers { limit, state: Mutex::default(), returned: Condvar::new() })
    }

    /// At least `length` bytes, a multiple of 4096, if the limit allows it now.
    pub(super) fn try_take(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        let memory = self.find(&mut self.state.lock(), length)?;
        Some(Buffer { memory: Some(memory), buffers: Arc::clone(self) })
    }

    /// The same, after waiting for others to be given back. `length` must not exceed the limit.
    pub(super) fn take(self: &Arc<Self>, length: usize) -> Buffer {
        let mut state = self.state.lock();
        loop {
            if let Some(memory) = self.find(&mut state, length) {
                return Buffer { memory: Some(memory), buffers: Arc::clone(self) };
            }
            self.returned.wait(&mut state);
        }
    }

    fn find(&self, state: &mut State, length: usize) -> Option<AlignedBuf> {
        // Not one that is much larger: it counts as a whole.
        let fits = |memory: &AlignedBuf| (length..=length.saturating_mul(2).max(64 << 10)).contains(&memory.len());
        if let Some(at) = state.idle.iter().rposition(fits) {
            let memory = state.idle.swap_remove(at);
            state.idle_bytes -= memory.len();
            state.in_use += memory.len();
            return Some(memory);
        }
        if state.in_use + length > self.limit {
            return None;
        }
        while state.in_use + state.idle_bytes + length > self.limit {
            state.idle_bytes -= state.idle.pop()?.len();
        }
        state.in_use += length;
        Some(AlignedBuf::zeroed(length))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut state = self.buffers.state.lock();
        state.in_use -= memory.len();
        if state.idle_bytes + memory.len() <= MOST_IDLE {
            state.idle_bytes += memory.len();
            state.idle.push(memory);
        }
        drop(state);
        self.buffers.returned.notify_one();
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_what_is_in_use_and_what_is_kept() {
        let buffers = Buffers::new(1 << 20);
        let first = buffers.try_take(768 << 10).unwrap();
        assert!(buffers.try_take(512 << 10).is_none());
        let small = buffers.try_take(4096).unwrap();
        assert_eq!((first.len(), small.len()), (768 << 10, 4096));
        drop(first);
        assert_eq!(buffers.state.lock().idle_bytes, 768 << 10);
        // The idle one is too small, and has to go.
        let all = buffers.try_take((1 << 20) - 4096).unwrap();
        assert_eq!((all.len(), buffers.state.lock().idle_bytes), ((1 << 20) - 4096, 0));
        drop((all, small));
        let state = buffers.state.lock();
        assert_eq!((state.in_use, state.idle_bytes), (0, 1 << 20));
    }

    #[test]
    fn who_waits_gets_what_is_given_back() {
        let buffers = Buffers::new(8192);
        let held = buffers.try_take(8192).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| buffers.take(4096).len());
            drop(held);
            // A buffer of up to 64 KiB serves any small request.
            assert_eq!(waiting.join().unwrap(), 8192);
        });
    }
}
